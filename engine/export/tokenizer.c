/* tokenizer.c: tokenizer.json from a GGUF's vocabulary: GPT-2's byte-level BPE with the splits of a few models, and SentencePiece's pieces as BPE with
 * merges made of their scores, as transformers makes them. See parts.h. */
#include <stdlib.h>
#include <string.h>

#include "engine/export/parts.h"
#include "engine/report.h"

/* llama.cpp's types of tokens. */
enum { TOKEN_UNKNOWN = 2, TOKEN_CONTROL = 3, TOKEN_USER = 4, TOKEN_UNUSED = 5 };

static const char qwen2_split[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char llama3_split[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

typedef struct vocabulary {
    const struct gguf_context *gguf;
    int64_t tokens, types, scores, merges;   /* keys; -1: none */
    size_t n;
} vocabulary;

static oct_status array_at(const octe__metadata *m, const char *key, enum gguf_type type, bool required, int64_t *id, size_t n)
{
    *id = gguf_find_key(m->gguf, key);
    if (*id < 0) {
        return required ? octe__metadata_fail(m, OCT_BAD_DATA, key, "is missing") : OCT_OK;
    }
    if (gguf_get_kv_type(m->gguf, *id) != GGUF_TYPE_ARRAY || gguf_get_arr_type(m->gguf, *id) != type) {
        return octe__metadata_fail(m, OCT_BAD_DATA, key, "must be an array of %s", gguf_type_name(type));
    }
    if (n > 0 && gguf_get_arr_n(m->gguf, *id) != n) {
        return octe__metadata_fail(m, OCT_BAD_DATA, key, "has %zu elements; must have one for each of %zu tokens", gguf_get_arr_n(m->gguf, *id), n);
    }
    return OCT_OK;
}

static int32_t type_of(const vocabulary *v, size_t id)
{
    int32_t type = 1;
    if (v->types >= 0) {
        memcpy(&type, (const char *)gguf_get_arr_data(v->gguf, v->types) + id * sizeof(type), sizeof(type));
    }
    return type;
}

static const char *text_of(const vocabulary *v, size_t id) { return gguf_get_arr_str(v->gguf, v->tokens, id); }

/* { token: id }, without places that only fill the embedding table. */
static json_t *vocab_of(const octe__metadata *m, const vocabulary *v, oct_status *status)
{
    json_t *const o = json_object();
    for (size_t id = 0; id < v->n && o != NULL && *status == OCT_OK; id++) {
        if (type_of(v, id) != TOKEN_UNUSED && json_object_set_new(o, text_of(v, id), json_integer((json_int_t)id)) != 0) {
            *status = octe__metadata_fail(m, OCT_BAD_DATA, "tokenizer.ggml.tokens", "has a token %zu that is no UTF-8", id);
        }
    }
    return o;
}

static json_t *added_of(const vocabulary *v)
{
    json_t *const list = json_array();
    for (size_t id = 0; id < v->n && list != NULL; id++) {
        const int32_t type = type_of(v, id);
        /* A run of SentencePiece's blanks is found by merges, behind the normaliser. */
        if (type != TOKEN_CONTROL && type != TOKEN_UNKNOWN && (type != TOKEN_USER || strstr(text_of(v, id), "\xe2\x96\x81") != NULL)) {
            continue;
        }
        (void)json_array_append_new(list, json_pack("{s:I, s:s, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)id, "content", text_of(v, id), "single_word", 0, "lstrip", 0,
                                                    "rstrip", 0, "normalized", 0, "special", type != TOKEN_USER));
    }
    return list;
}

/* "a b" of GPT-2's merges as ["a", "b"]. A token begins with no blank, so the first one past its first byte parts the two. */
static json_t *merges_of(const octe__metadata *m, const vocabulary *v, oct_status *status)
{
    json_t *const list = json_array();
    const size_t n = v->merges >= 0 ? gguf_get_arr_n(v->gguf, v->merges) : 0;
    for (size_t i = 0; i < n && list != NULL && *status == OCT_OK; i++) {
        const char *const merge = gguf_get_arr_str(v->gguf, v->merges, i);
        const char *const blank = merge[0] != '\0' ? strchr(merge + 1, ' ') : NULL;
        json_t *const left = blank != NULL ? json_stringn(merge, (size_t)(blank - merge)) : NULL, *const right = blank != NULL ? json_string(blank + 1) : NULL;
        if (left == NULL || right == NULL || json_array_append_new(list, json_pack("[o,o]", left, right)) != 0) {
            *status = octe__metadata_fail(m, OCT_BAD_DATA, "tokenizer.ggml.merges", "has an element %zu that is no pair of tokens", i);
        }
    }
    return list;
}

/* ---- merges from scores --------------------------------------------------------------------------------- */

typedef struct piece { const char *text; uint32_t id; float score; } piece;

/* Open addressing, at most half full; a slot holds id + 1. */
typedef struct index { uint32_t *slots; size_t mask; } index;

static uint64_t hash(const char *text, size_t n)
{
    uint64_t sum = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n; i++) {
        sum = (sum ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
    }
    return sum ^ sum >> 29;
}

static bool has(const index *at, const vocabulary *v, const char *text, size_t n)
{
    for (size_t i = hash(text, n) & at->mask; at->slots[i] != 0; i = (i + 1) & at->mask) {
        const char *const other = text_of(v, at->slots[i] - 1);
        if (strncmp(other, text, n) == 0 && other[n] == '\0') {
            return true;
        }
    }
    return false;
}

static int best_first(const void *a, const void *b)
{
    const piece *const x = a, *const y = b;
    return x->score != y->score ? (x->score < y->score ? 1 : -1) : x->id > y->id ? 1 : -1;
}

/* Every way to make a piece of two others, best pieces first, longest left halves first. */
static json_t *merges_of_scores(const vocabulary *v, oct_status *status)
{
    size_t room = 16;
    while (room < 2 * v->n) {
        room *= 2;
    }
    index at = { calloc(room, sizeof(*at.slots)), room - 1 };
    piece *const pieces = calloc(v->n + 1, sizeof(*pieces));
    json_t *const list = json_array();
    if (at.slots == NULL || pieces == NULL || list == NULL) {
        *status = OCT_OUT_OF_MEMORY;
    }
    const float *const scores = gguf_get_arr_data(v->gguf, v->scores);
    for (size_t id = 0; id < v->n && *status == OCT_OK; id++) {
        const char *const text = text_of(v, id);
        pieces[id] = (piece){ text, (uint32_t)id, scores[id] };
        size_t i = hash(text, strlen(text)) & at.mask;
        while (at.slots[i] != 0) {
            i = (i + 1) & at.mask;
        }
        at.slots[i] = (uint32_t)id + 1;
    }
    if (*status == OCT_OK) {
        qsort(pieces, v->n, sizeof(*pieces), best_first);
    }
    for (size_t i = 0; i < v->n && *status == OCT_OK; i++) {
        const char *const text = pieces[i].text;
        for (size_t left = strlen(text); left-- > 1;) {
            const bool character = ((unsigned char)text[left] & 0xC0) != 0x80;
            if (character && has(&at, v, text, left) && has(&at, v, text + left, strlen(text + left)) &&
                json_array_append_new(list, json_pack("[o,s]", json_stringn(text, left), text + left)) != 0) {
                *status = OCT_OUT_OF_MEMORY;
            }
        }
    }
    free(pieces);
    free(at.slots);
    return list;
}

/* ---- the rest of tokenizer.json ------------------------------------------------------------------------- */

static json_t *byte_level(bool with_regex) { return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex", with_regex); }

static json_t *split_then_bytes(const char *pattern)
{
    return json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, o]}", "type", "Sequence", "pretokenizers", "type", "Split", "pattern", "Regex", pattern, "behavior", "Isolated",
                     "invert", 0, byte_level(false));
}

/* How a text is cut before BPE; by the name that a GGUF has for it. */
static oct_status cut_of(const octe__metadata *m, json_t **cut, json_t **normalizer, bool *ignore_merges)
{
    const char *pre = "gpt-2";
    const oct_status status = octe__metadata_string(m, "tokenizer.ggml.pre", OCTE__OPTIONAL, &pre);
    if (status != OCT_OK) {
        return status;
    }
    *normalizer = json_null();
    if (strcmp(pre, "gpt-2") == 0) {
        *cut = byte_level(true);
    } else if (strcmp(pre, "smollm") == 0) {
        *cut = json_pack("{s:s, s:[{s:s, s:b}, o]}", "type", "Sequence", "pretokenizers", "type", "Digits", "individual_digits", 1, byte_level(true));
    } else if (strcmp(pre, "qwen2") == 0) {
        *cut = split_then_bytes(qwen2_split);
        *normalizer = json_pack("{s:s}", "type", "NFC");
    } else if (strcmp(pre, "llama-bpe") == 0) {
        *cut = split_then_bytes(llama3_split);
        *ignore_merges = true;
    } else {
        return octe__metadata_fail(m, OCT_UNSUPPORTED, "tokenizer.ggml.pre", "is '%.40s'; known for an export are gpt-2, smollm, qwen2 and llama-bpe", pre);
    }
    return OCT_OK;
}

/* The first token of every text, where the model wants one. */
static json_t *template_of(const octe__metadata *m)
{
    bool adds = false;
    const int64_t bos = octe__hf_token_id(m, "tokenizer.ggml.bos_token_id");
    const char *const text = octe__hf_token(m, bos);
    if (octe__metadata_bool(m, "tokenizer.ggml.add_bos_token", OCTE__OPTIONAL, &adds) != OCT_OK || !adds || text == NULL) {
        return json_null();
    }
    return json_pack("{s:s, s:[{s:{s:s, s:i}}, {s:{s:s, s:i}}], s:[{s:{s:s, s:i}}, {s:{s:s, s:i}}, {s:{s:s, s:i}}, {s:{s:s, s:i}}], s:{s:{s:s, s:[I], s:[s]}}}",
                     "type", "TemplateProcessing", "single", "SpecialToken", "id", text, "type_id", 0, "Sequence", "id", "A", "type_id", 0,
                     "pair", "SpecialToken", "id", text, "type_id", 0, "Sequence", "id", "A", "type_id", 0, "SpecialToken", "id", text, "type_id", 1, "Sequence", "id", "B",
                     "type_id", 1, "special_tokens", text, "id", text, "ids", (json_int_t)bos, "tokens", text);
}

static json_t *whole(const octe__metadata *m, const vocabulary *v, json_t *normalizer, json_t *cut, json_t *decoder, json_t *model)
{
    return json_pack("{s:s, s:n, s:n, s:o, s:o, s:o, s:o, s:o, s:o}", "version", "1.0", "truncation", "padding", "added_tokens", added_of(v), "normalizer", normalizer,
                     "pre_tokenizer", cut, "post_processor", template_of(m), "decoder", decoder, "model", model);
}

static oct_status byte_bpe(const octe__metadata *m, const vocabulary *v, json_t **tokenizer)
{
    json_t *cut = NULL, *normalizer = NULL;
    bool ignore_merges = false;
    oct_status status = cut_of(m, &cut, &normalizer, &ignore_merges);
    if (status != OCT_OK) {
        return status;
    }
    json_t *const vocab = vocab_of(m, v, &status), *const merges = merges_of(m, v, &status);
    json_t *const model = json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout", "unk_token", "continuing_subword_prefix",
                                    "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0, "ignore_merges", ignore_merges, "vocab", vocab, "merges", merges);
    *tokenizer = whole(m, v, normalizer, cut, byte_level(true), model);
    return status;
}

static oct_status pieces_bpe(const octe__metadata *m, const vocabulary *v, json_t **tokenizer)
{
    const char *const unknown = octe__hf_token(m, octe__hf_token_id(m, "tokenizer.ggml.unknown_token_id"));
    bool prefix = true;   /* llama.cpp's default */
    oct_status status = octe__metadata_bool(m, "tokenizer.ggml.add_space_prefix", OCTE__OPTIONAL, &prefix);
    if (status != OCT_OK) {
        return status;
    }
    json_t *const vocab = vocab_of(m, v, &status), *const merges = merges_of_scores(v, &status);
    json_t *const model = json_pack("{s:s, s:n, s:s?, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout", "unk_token", unknown, "continuing_subword_prefix",
                                    "end_of_word_suffix", "fuse_unk", 1, "byte_fallback", 1, "ignore_merges", 0, "vocab", vocab, "merges", merges);
    static const char blank[] = "\xe2\x96\x81";
    json_t *normalizer = json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", " ", "content", blank);
    json_t *cut = json_null();
    json_t *decoders = json_pack("[{s:s, s:{s:s}, s:s}, {s:s}, {s:s}]", "type", "Replace", "pattern", "String", blank, "content", " ", "type", "ByteFallback", "type", "Fuse");
    if (prefix) {
        normalizer = json_pack("{s:s, s:[{s:s, s:s}, o]}", "type", "Sequence", "normalizers", "type", "Prepend", "prepend", blank, normalizer);
        (void)json_array_append_new(decoders, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content", " ", "start", 1, "stop", 0));
    } else {
        cut = json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "String", " ", "behavior", "MergedWithPrevious", "invert", 0);
    }
    *tokenizer = whole(m, v, normalizer, cut, json_pack("{s:s, s:o}", "type", "Sequence", "decoders", decoders), model);
    return status;
}

oct_status octe__hf_tokenizer(const octe__metadata *m, json_t **tokenizer)
{
    *tokenizer = NULL;
    vocabulary v = { .gguf = m->gguf, .merges = -1, .scores = -1 };
    const char *model = NULL;
    oct_status status = octe__metadata_string(m, "tokenizer.ggml.model", OCTE__REQUIRED, &model);
    if (status == OCT_OK) {
        status = array_at(m, "tokenizer.ggml.tokens", GGUF_TYPE_STRING, true, &v.tokens, 0);
    }
    if (status == OCT_OK) {
        v.n = gguf_get_arr_n(m->gguf, v.tokens);
        status = v.n > INT32_MAX ? octe__metadata_fail(m, OCT_BAD_DATA, "tokenizer.ggml.tokens", "has too many elements")
                                 : array_at(m, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, false, &v.types, v.n);
    }
    if (status != OCT_OK) {
        return status;
    }
    if (strcmp(model, "gpt2") == 0) {
        status = array_at(m, "tokenizer.ggml.merges", GGUF_TYPE_STRING, true, &v.merges, 0);
        status = status == OCT_OK ? byte_bpe(m, &v, tokenizer) : status;
    } else if (strcmp(model, "llama") == 0) {
        status = array_at(m, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, true, &v.scores, v.n);
        status = status == OCT_OK ? pieces_bpe(m, &v, tokenizer) : status;
    } else {
        return octe__metadata_fail(m, OCT_UNSUPPORTED, "tokenizer.ggml.model", "is '%.40s'; gpt2 and llama can be exported", model);
    }
    if (status == OCT_OUT_OF_MEMORY || (status == OCT_OK && *tokenizer == NULL)) {
        status = octe__report(m->error, OCT_OUT_OF_MEMORY, m->where, m->file, "no memory for a vocabulary of %zu tokens", v.n);
    }
    return status;
}
