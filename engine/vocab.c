/* vocab.c: see vocab.h. */
#include "engine/vocab.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <llama.h>

#include "engine/report.h"
#include "engine/runtime.h"
#include "engine/vocab_check.h"
#include "engine/vocab_state.h"

/* libllama counts in int32. */
enum { MAX_TEXT_BYTES = 1 << 30 };

oct_status octe_vocab_open(const char *path, octe_vocab **vocab, oct_error *error)
{
    static const char where[] = "octe_vocab_open";
    if (vocab == NULL || path == NULL) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "%s is NULL", path == NULL ? "path" : "vocab");
    }
    *vocab = NULL;
    octe__runtime_start();
    const oct_status s = octe__vocab_check_file(path, error);
    if (s != OCT_OK) {
        return s;
    }
    octe_vocab *v = calloc(1, sizeof(*v));
    if (v == NULL) {
        return octe__report(error, OCT_OUT_OF_MEMORY, where, path, "no memory for the vocabulary's record");
    }
    struct llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    octe__runtime_clear();
    v->model = llama_model_load_from_file(path, params);
    if (v->model == NULL) {
        free(v);
        return octe__report(error, OCT_BAD_DATA, where, path, "libllama can't load the vocabulary: %s", octe__runtime_complaint());
    }
    v->vocab = llama_model_get_vocab(v->model);
    *vocab = v;
    return OCT_OK;
}

void octe_vocab_close(octe_vocab *v)
{
    if (v != NULL) {
        llama_model_free(v->model);
        free(v);
    }
}

uint32_t octe_vocab_size(const octe_vocab *v) { return (uint32_t)llama_vocab_n_tokens(v->vocab); }
int32_t octe_vocab_bos(const octe_vocab *v) { return llama_vocab_bos(v->vocab); }
int32_t octe_vocab_eos(const octe_vocab *v) { return llama_vocab_eos(v->vocab); }
bool octe_vocab_adds_bos(const octe_vocab *v) { return llama_vocab_get_add_bos(v->vocab) && octe_vocab_bos(v) >= 0; }
static bool adds_eos(const octe_vocab *v) { return llama_vocab_get_add_eos(v->vocab) && octe_vocab_eos(v) >= 0; }

static bool is_token(const octe_vocab *v, int32_t token) { return token >= 0 && (uint32_t)token < octe_vocab_size(v); }

bool octe_vocab_is_eog(const octe_vocab *v, int32_t token) { return is_token(v, token) && llama_vocab_is_eog(v->vocab, token); }

/* ---- text to tokens ------------------------------------------------------------------------------------------ */

oct_status octe_vocab_tokenize(const octe_vocab *v, const char *text, size_t length, bool add_special, bool parse_special, int32_t **tokens, uint32_t *n_tokens,
                               oct_error *error)
{
    static const char where[] = "octe_vocab_tokenize";
    *tokens = NULL;
    *n_tokens = 0;
    length = length == SIZE_MAX ? strlen(text) : length;
    if (length > MAX_TEXT_BYTES) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "the text has %zu bytes; at most %d", length, MAX_TEXT_BYTES);
    }
    /* The flags' own tokens are put around the text here: libllama aborts where a flag is set and its token is missing, and adds a second
     * BOS to a text that brings its own. A text never becomes more tokens than bytes, but for one space before it. */
    const uint32_t room = (uint32_t)length + 4;
    int32_t *made = malloc(room * sizeof(*made));
    if (made == NULL) {
        return octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for the tokens of %zu bytes", length);
    }
    const bool bos = add_special && octe_vocab_adds_bos(v), eos = add_special && adds_eos(v);
    int32_t n = llama_tokenize(v->vocab, text, (int32_t)length, made + 1, (int32_t)room - 2, false, parse_special);
    if (n < 0 && n != INT32_MIN) {
        const size_t needed = (size_t)-n + 2;
        int32_t *larger = realloc(made, needed * sizeof(*made));
        if (larger == NULL) {
            free(made);
            return octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for %zu tokens", needed);
        }
        made = larger;
        n = llama_tokenize(v->vocab, text, (int32_t)length, made + 1, (int32_t)needed - 2, false, parse_special);
    }
    if (n < 0) {
        free(made);
        return octe__report(error, OCT_BAD_DATA, where, NULL, "libllama can't tokenize %zu bytes", length);
    }
    const bool has_bos = n > 0 && made[1] == octe_vocab_bos(v), has_eos = n > 0 && made[n] == octe_vocab_eos(v);
    uint32_t total = (uint32_t)n;
    if (bos && !has_bos) {
        made[0] = octe_vocab_bos(v);
        total++;
    } else {
        memmove(made, made + 1, (size_t)n * sizeof(*made));
    }
    if (eos && !has_eos) {
        made[total++] = octe_vocab_eos(v);
    }
    if (total == 0) {
        free(made);
        return OCT_OK;
    }
    *tokens = made;
    *n_tokens = total;
    return OCT_OK;
}

/* Places that begin as a special token does, by their first two bytes: never fewer than libllama finds, and in prose hardly more. */
size_t octe_vocab_most_special(const octe_vocab *v, const char *text, size_t length)
{
    enum { PAIRS = 65536 };
    static const int special = LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_USER_DEFINED | LLAMA_TOKEN_ATTR_UNKNOWN;
    bool *const begins = calloc(PAIRS, sizeof(*begins));
    size_t n = 0;
    if (begins == NULL) {
        return length;
    }
    for (uint32_t i = 0; i < octe_vocab_size(v); i++) {
        if (((int)llama_vocab_get_attr(v->vocab, (llama_token)i) & special) == 0) {
            continue;
        }
        const unsigned char *const own = (const unsigned char *)llama_vocab_get_text(v->vocab, (llama_token)i);
        if (own[0] != 0 && own[1] != 0) {
            begins[own[0] * 256u + own[1]] = true;
        } else if (own[0] != 0) {
            for (uint32_t next = 0; next < 256; next++) {
                begins[own[0] * 256u + next] = true;   /* of one byte */
            }
        }
    }
    for (size_t i = 0; i < length; i++) {
        const unsigned next = i + 1 < length ? (unsigned char)text[i + 1] : 0;
        n += begins[(unsigned char)text[i] * 256u + next];
    }
    free(begins);
    return n;
}

/* ---- chat ------------------------------------------------------------------------------------------------------- */

bool octe_vocab_has_chat_template(const octe_vocab *v) { return llama_model_chat_template(v->model, NULL) != NULL; }

oct_status octe_vocab_apply_chat(const octe_vocab *v, const octe_message *messages, size_t n_messages, bool add_assistant, char **text, oct_error *error)
{
    static const char where[] = "octe_vocab_apply_chat";
    *text = NULL;
    const char *chat_template = llama_model_chat_template(v->model, NULL);
    if (chat_template == NULL) {
        return octe__report(error, OCT_UNSUPPORTED, where, NULL, "the model has no chat template (key 'tokenizer.chat_template')");
    }
    struct llama_chat_message *chat = calloc(n_messages + 1, sizeof(*chat));
    if (chat == NULL) {
        return octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for %zu messages", n_messages);
    }
    for (size_t i = 0; i < n_messages; i++) {
        chat[i] = (struct llama_chat_message){messages[i].role, messages[i].content};
    }
    const int32_t n = llama_chat_apply_template(chat_template, chat, n_messages, add_assistant, NULL, 0);
    char *made = n >= 0 ? calloc(1, (size_t)n + 1) : NULL;
    oct_status s = OCT_OK;
    if (n < 0) {
        s = octe__report(error, OCT_UNSUPPORTED, where, NULL, "libllama doesn't know the model's chat template (key 'tokenizer.chat_template')");
    } else if (made == NULL) {
        s = octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for a chat of %d bytes", n);
    } else {
        (void)llama_chat_apply_template(chat_template, chat, n_messages, add_assistant, made, n);
        made[n] = '\0';
        *text = made;
    }
    free(chat);
    return s;
}

/* ---- tokens to text ----------------------------------------------------------------------------------------------- */

size_t octe_vocab_piece(const octe_vocab *v, int32_t token, bool special, char *bytes, size_t size)
{
    if (!is_token(v, token)) {
        return 0;
    }
    const int32_t room = size > INT32_MAX ? INT32_MAX : (int32_t)size;
    const int32_t n = llama_token_to_piece(v->vocab, token, bytes, room, 0, special);
    return n < 0 ? (size_t)-n : (size_t)n;
}

oct_status octe_stream_add(octe_stream *stream, const octe_vocab *v, int32_t token, bool special, char **text, size_t *n_text, oct_error *error)
{
    static const char where[] = "octe_stream_add";
    char small[256], *bytes = small;
    *text = NULL;
    size_t n = octe_vocab_piece(v, token, special, small, sizeof(small));
    if (n > sizeof(small)) {
        bytes = malloc(n);
        n = bytes != NULL ? octe_vocab_piece(v, token, special, bytes, n) : n;
    }
    *text = bytes != NULL ? malloc(3 * (n + sizeof(stream->held)) + 1) : NULL;
    if (*text != NULL) {
        const size_t length = octe_stream_bytes(stream, bytes, n, *text);
        (*text)[length] = '\0';
        if (n_text != NULL) {
            *n_text = length;
        }
    }
    if (bytes != small) {
        free(bytes);
    }
    return *text != NULL ? OCT_OK : octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for the %zu bytes of token %" PRId32, n, token);
}
