/* vocab_check.c: see vocab_check.h. */
#include "engine/vocab_check.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/gguf_check.h"
#include "engine/map.h"
#include "engine/report.h"
#include "engine/runtime.h"

static const char *const where = "octe_vocab_open";

static const char key_tokens[] = "tokenizer.ggml.tokens", key_scores[] = "tokenizer.ggml.scores", key_types[] = "tokenizer.ggml.token_type",
                  key_merges[] = "tokenizer.ggml.merges", key_model[] = "tokenizer.ggml.model";

/* Ids are int32, and libllama keeps some 100 bytes a token. */
enum { MAX_TOKENS = 1 << 24 };
enum { TYPE_BYTE = 6 };   /* LLAMA_TOKEN_TYPE_BYTE, as files store it */
enum { BYTE_TOKEN_BYTES = 6 };   /* "<0x0A>" */

/* An array key of a type, or -1 and *status; -1 and OCT_OK when an optional one is missing. */
static int64_t find_array(const octe__metadata *m, const char *key, enum gguf_type type, octe__presence presence, oct_status *status)
{
    const int64_t id = gguf_find_key(m->gguf, key);
    *status = OCT_OK;
    if (id < 0) {
        if (presence == OCTE__REQUIRED) {
            *status = octe__metadata_fail(m, OCT_BAD_DATA, key, "is missing");
        }
        return -1;
    }
    if (gguf_get_kv_type(m->gguf, id) != GGUF_TYPE_ARRAY || gguf_get_arr_type(m->gguf, id) != type) {
        *status = octe__metadata_fail(m, OCT_BAD_DATA, key, "has the wrong type; must be an array of %s", gguf_type_name(type));
        return -1;
    }
    return id;
}

static int compare_texts(const void *left, const void *right) { return strcmp(*(const char *const *)left, *(const char *const *)right); }

/* libllama asserts that no two tokens have one text; an empty one it renames to "[EMPTY_<id>]". */
static oct_status check_unique(const octe__metadata *m, int64_t id, size_t n)
{
    const char **texts = malloc(n * sizeof(*texts));
    if (texts == NULL) {
        return octe__report(m->error, OCT_OUT_OF_MEMORY, where, m->file, "no memory to compare %zu tokens", n);
    }
    size_t n_kept = 0;
    bool renamed = false;
    for (size_t i = 0; i < n; i++) {
        const char *text = gguf_get_arr_str(m->gguf, id, i);
        renamed = renamed || text[0] == '\0';
        if (text[0] != '\0') {
            texts[n_kept++] = text;
        }
    }
    qsort(texts, n_kept, sizeof(*texts), compare_texts);
    oct_status s = OCT_OK;
    for (size_t i = 0; i < n_kept && s == OCT_OK; i++) {
        char quoted[OCTE__QUOTE_SIZE];
        if (i > 0 && strcmp(texts[i - 1], texts[i]) == 0) {
            s = octe__metadata_fail(m, OCT_BAD_DATA, key_tokens, "has two tokens with the text '%s'", octe__quote(quoted, texts[i], strlen(texts[i])));
        } else if (renamed && strncmp(texts[i], "[EMPTY_", 7) == 0) {
            s = octe__metadata_fail(m, OCT_BAD_DATA, key_tokens, "has empty tokens and one that looks like their replacement, '%s'",
                                    octe__quote(quoted, texts[i], strlen(texts[i])));
        }
    }
    free(texts);
    return s;
}

/* The byte that a text like "<0x0A>" names, or -1. */
static int byte_of(const char *text)
{
    if (strlen(text) != BYTE_TOKEN_BYTES || strncmp(text, "<0x", 3) != 0 || text[5] != '>' || !isxdigit((unsigned char)text[3]) || !isxdigit((unsigned char)text[4])) {
        return -1;
    }
    return (int)strtol(text + 3, NULL, 16);
}

static oct_status check_bytes(const octe__metadata *m, int64_t tokens, int64_t types, size_t n, bool needs_bytes)
{
    bool has[256] = {false};
    for (size_t i = 0; i < n; i++) {
        const char *text = gguf_get_arr_str(m->gguf, tokens, i);
        int32_t type = 0;
        if (types >= 0) {
            memcpy(&type, (const char *)gguf_get_arr_data(m->gguf, types) + i * sizeof(type), sizeof(type));
        }
        const int byte = byte_of(text);
        if (type == TYPE_BYTE && byte < 0) {
            char quoted[OCTE__QUOTE_SIZE];
            return octe__metadata_fail(m, OCT_BAD_DATA, key_types, "calls token %zu ('%s') a byte; must look like '<0x0A>'", i, octe__quote(quoted, text, strlen(text)));
        }
        /* libllama looks bytes up in capitals. */
        if (byte >= 0 && !islower((unsigned char)text[3]) && !islower((unsigned char)text[4])) {
            has[byte] = true;
        }
        if (text[0] != '\0' && text[1] == '\0') {
            has[(unsigned char)text[0]] = true;
        }
    }
    for (int b = 0; b < 256 && needs_bytes; b++) {
        /* libllama falls back to bytes for what has no token, and throws where there is none. */
        if (!has[b]) {
            return octe__metadata_fail(m, OCT_BAD_DATA, key_tokens, "has no token for byte 0x%02X ('<0x%02X>')", (unsigned)b, (unsigned)b);
        }
    }
    return OCT_OK;
}

static oct_status check_arrays(const octe__metadata *m, bool spm)
{
    oct_status s;
    const int64_t tokens = find_array(m, key_tokens, GGUF_TYPE_STRING, OCTE__REQUIRED, &s);
    if (tokens < 0) {
        return s;
    }
    const size_t n = gguf_get_arr_n(m->gguf, tokens);
    if (n < 1 || n > MAX_TOKENS) {
        return octe__metadata_fail(m, OCT_BAD_DATA, key_tokens, "has %zu tokens; must be 1 to %d", n, MAX_TOKENS);
    }
    const struct {
        const char *key;
        enum gguf_type type;
    } beside[] = {{key_scores, GGUF_TYPE_FLOAT32}, {key_types, GGUF_TYPE_INT32}};
    int64_t types = -1;
    for (size_t i = 0; i < sizeof(beside) / sizeof(beside[0]); i++) {
        const int64_t id = find_array(m, beside[i].key, beside[i].type, OCTE__OPTIONAL, &s);
        if (s != OCT_OK) {
            return s;
        }
        if (id >= 0 && gguf_get_arr_n(m->gguf, id) != n) {
            return octe__metadata_fail(m, OCT_BAD_DATA, beside[i].key, "has %zu elements for %zu tokens", gguf_get_arr_n(m->gguf, id), n);
        }
        types = beside[i].key == key_types ? id : types;
    }
    (void)find_array(m, key_merges, GGUF_TYPE_STRING, spm ? OCTE__OPTIONAL : OCTE__REQUIRED, &s);
    if (s == OCT_OK) {
        s = check_unique(m, tokens, n);
    }
    return s == OCT_OK ? check_bytes(m, tokens, types, n, spm) : s;
}

oct_status octe__vocab_check(const octe__metadata *m)
{
    const char *model = "";
    oct_status s = octe__metadata_string(m, key_model, OCTE__REQUIRED, &model);
    const bool spm = strcmp(model, "llama") == 0, bpe = strcmp(model, "gpt2") == 0;
    if (s == OCT_OK && !spm && !bpe) {
        char quoted[OCTE__QUOTE_SIZE];
        s = octe__metadata_fail(m, OCT_UNSUPPORTED, key_model, "is '%s'; built in are 'llama' (SentencePiece) and 'gpt2' (byte-pair encoding)",
                                octe__quote(quoted, model, strlen(model)));
    }
    static const char *const flags[] = {"tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token", "tokenizer.ggml.add_space_prefix"};
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]) && s == OCT_OK; i++) {
        bool ignored;
        s = octe__metadata_bool(m, flags[i], OCTE__OPTIONAL, &ignored);
    }
    static const char *const texts[] = {"general.architecture", "tokenizer.chat_template", "tokenizer.ggml.pre"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]) && s == OCT_OK; i++) {
        const char *ignored;
        s = octe__metadata_string(m, texts[i], i == 0 ? OCTE__REQUIRED : OCTE__OPTIONAL, &ignored);
    }
    return s == OCT_OK ? check_arrays(m, spm) : s;
}

oct_status octe__vocab_check_file(const char *path, oct_error *error)
{
    octe__map map;
    oct_status s = octe__map_open(path, &map, where, error);
    if (s == OCT_OK) {
        s = octe_gguf_check_memory(map.data, map.size_bytes, path, NULL, error);
    }
    if (s == OCT_OK) {
        const struct gguf_init_params params = {.no_alloc = true, .ctx = NULL};
        octe__runtime_clear();
        struct gguf_context *gguf = gguf_init_from_buffer(map.data, map.size_bytes, params);
        const octe__metadata m = {.gguf = gguf, .file = path, .architecture = "", .where = where, .error = error};
        s = gguf != NULL ? octe__vocab_check(&m) : octe__report(error, OCT_BAD_DATA, where, path, "ggml refuses the header: %s", octe__runtime_complaint());
        if (gguf != NULL) {
            gguf_free(gguf);
        }
    }
    octe__map_close(&map);
    return s;
}
