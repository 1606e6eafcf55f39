/* texts.c: see texts.h. */
#include "apps/texts.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "apps/chronicle.h"
#include "host/error.h"
#include "host/file.h"

static const char where[] = "octavo";

oct_status app_text_read(const char *name, uint64_t seed, size_t min_bytes, char **bytes, size_t *n_bytes, oct_error *error)
{
    *bytes = NULL;
    if (strcmp(name, APP_TEXT_BUILT_IN) == 0) {
        app_text text = { 0 };
        app_chronicle_add(&text, seed, min_bytes);
        if (text.failed) {
            app_text_free(&text);
            return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory for %zu bytes of text", min_bytes);
        }
        *bytes = text.bytes;
        *n_bytes = text.length;
        return OCT_OK;
    }
    /* Copied, so that one free() serves both. */
    const oct__allocator plain = { 0 };
    char *read = NULL;
    const oct_status status = oct__file_read(&plain, name, APP_TEXT_MAX_BYTES, &read, n_bytes, error);
    if (status != OCT_OK) {
        return status;
    }
    *bytes = malloc(*n_bytes + 1);
    if (*bytes != NULL) {
        memcpy(*bytes, read, *n_bytes + 1);
    }
    oct__file_release(&plain, read, *n_bytes);
    if (*bytes == NULL) {
        return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "%s: out of memory for %zu bytes", name, *n_bytes);
    }
    if (*n_bytes == 0) {
        free(*bytes);
        *bytes = NULL;
        return oct__error_set(error, OCT_BAD_DATA, where, "%s: the file is empty", name);
    }
    return OCT_OK;
}

static bool is_utf8(const char *bytes, size_t n)
{
    json_t *const text = json_stringn(bytes, n);
    json_decref(text);
    return text != NULL;
}

static oct_status read_tokens(const octe_vocab *vocab, const char *name, uint64_t seed, uint32_t max_tokens, bool is_checked, int32_t **tokens, uint32_t *n_tokens,
                              oct_error *error)
{
    /* No tokenizer makes a token of more than this many bytes of English, and few of less than one; a longer start is not looked at. */
    const size_t enough = (size_t)max_tokens * 16 + 4096;
    char *bytes;
    size_t n;
    oct_status status = app_text_read(name, seed, (size_t)max_tokens * 6, &bytes, &n, error);
    *tokens = NULL;
    if (status != OCT_OK) {
        return status;
    }
    if (is_checked && !is_utf8(bytes, n)) {
        free(bytes);
        return oct__error_set(error, OCT_BAD_DATA, where, "%s: the text is not UTF-8", name);
    }
    if (n > enough) {
        n = enough;
        while (n > 0 && ((unsigned char)bytes[n] & 0xc0) == 0x80) {
            n--;
        }
    }
    status = octe_vocab_tokenize(vocab, bytes, n, false, false, tokens, n_tokens, error);
    free(bytes);
    if (status != OCT_OK) {
        return status;
    }
    *n_tokens = *n_tokens < max_tokens ? *n_tokens : max_tokens;
    if (*n_tokens < 2) {
        free(*tokens);
        *tokens = NULL;
        return oct__error_set(error, OCT_BAD_DATA, where, "%s: the text has fewer than 2 tokens", name);
    }
    return OCT_OK;
}

oct_status app_text_tokens(const octe_vocab *vocab, const char *name, uint64_t seed, uint32_t max_tokens, int32_t **tokens, uint32_t *n_tokens, oct_error *error)
{
    return read_tokens(vocab, name, seed, max_tokens, false, tokens, n_tokens, error);
}

oct_status app_text_tokens_checked(const octe_vocab *vocab, const char *name, uint64_t seed, uint32_t max_tokens, int32_t **tokens, uint32_t *n_tokens, oct_error *error)
{
    return read_tokens(vocab, name, seed, max_tokens, true, tokens, n_tokens, error);
}

const char *app_text_title(const char *name)
{
    if (strcmp(name, APP_TEXT_BUILT_IN) == 0) {
        return "built-in chronicle";
    }
    const char *const slash = strrchr(name, '/');
    return slash != NULL && slash[1] != '\0' ? slash + 1 : name;
}
