/* texts.h: owns texts from outside and the built-in one, as tokens. Single-threaded. */
#ifndef APP_TEXTS_H
#define APP_TEXTS_H

#include "engine/vocab.h"

/* What names the built-in text where a file is asked for; a file of that name is ./built-in. */
#define APP_TEXT_BUILT_IN "built-in"

enum { APP_TEXT_MAX_BYTES = 64 << 20 };

/* The whole file, or with APP_TEXT_BUILT_IN at least min_bytes of the chronicle of a seed; zero-terminated, free() it. IO_ERROR,
 * BAD_DATA (too long, empty), OUT_OF_MEMORY; the text names the file. */
oct_status app_text_read(const char *name, uint64_t seed, size_t min_bytes, char **bytes, size_t *n_bytes, oct_error *error);

/* The same as tokens without special ones, at most max_tokens (at least 2, or BAD_DATA); free() them. */
oct_status app_text_tokens(const octe_vocab *vocab, const char *name, uint64_t seed, uint32_t max_tokens, int32_t **tokens, uint32_t *n_tokens, oct_error *error);

/* The same, and BAD_DATA where the text is no UTF-8: what is broken in it would be judged as if somebody had written it. Read once, so that a pipe is a text, too. */
oct_status app_text_tokens_checked(const octe_vocab *vocab, const char *name, uint64_t seed, uint32_t max_tokens, int32_t **tokens, uint32_t *n_tokens, oct_error *error);

/* "bible.txt", or "built-in chronicle". */
const char *app_text_title(const char *name);

#endif
