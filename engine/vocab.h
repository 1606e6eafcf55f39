/* Text to tokens and back, through libllama's vocabulary. An octe_vocab is immutable and shared between threads; a stream has one owner. */
#ifndef OCTE_VOCAB_H
#define OCTE_VOCAB_H

#include <stdbool.h>

#include "octavo/status.h"

typedef struct octe_vocab octe_vocab;

/* Loads the vocabulary and chat template of a GGUF (no weights), after octe_gguf_check_file. Errors: IO_ERROR, BAD_DATA, UNSUPPORTED. */
oct_status octe_vocab_open(const char *path, octe_vocab **vocab, oct_error *error);
void octe_vocab_close(octe_vocab *vocab);   /* NULL is fine */

uint32_t octe_vocab_size(const octe_vocab *vocab);      /* tokens */
int32_t octe_vocab_bos(const octe_vocab *vocab);        /* -1: none */
int32_t octe_vocab_eos(const octe_vocab *vocab);        /* -1: none */
bool octe_vocab_adds_bos(const octe_vocab *vocab);      /* the model's own flag */
bool octe_vocab_is_eog(const octe_vocab *vocab, int32_t token);   /* ends a generation */

/* Tokens of text (length bytes; SIZE_MAX: strlen). add_special: BOS/EOS as the model's add_bos/add_eos flags say, and never a second BOS
 * where the text brings its own. parse_special: text such as "<|im_start|>" becomes its control token. *tokens is malloc'ed, free() it;
 * an empty text may give 0 tokens and a NULL. Takes time with the square of the special tokens in the text: for a stranger's text ask octe_vocab_most_special first. */
oct_status octe_vocab_tokenize(const octe_vocab *vocab, const char *text, size_t length, bool add_special, bool parse_special,
                               int32_t **tokens, uint32_t *n_tokens, oct_error *error);

/* One message of a chat. */
typedef struct octe_message { const char *role, *content; } octe_message;

bool octe_vocab_has_chat_template(const octe_vocab *vocab);

/* The model's chat template applied (libllama's built-in renderer of known templates); add_assistant opens the answer. *text is malloc'ed
 * and zero-terminated. UNSUPPORTED: the model has no template, or one that libllama doesn't know. */
oct_status octe_vocab_apply_chat(const octe_vocab *vocab, const octe_message *messages, size_t n_messages, bool add_assistant, char **text, oct_error *error);

/* The bytes of one token: written to bytes (size), returns their number; as snprintf, without a zero. Special tokens give 0 bytes unless
 * special. The bytes of a token need not be whole UTF-8 characters: use a stream for people. */
size_t octe_vocab_piece(const octe_vocab *vocab, int32_t token, bool special, char *bytes, size_t size);

/* Token by token to valid UTF-8: bytes of an unfinished character are held back until the rest arrives; bytes that can't become one
 * turn into U+FFFD. What was given out is never changed. Zero-initialise. */
typedef struct octe_stream {
    unsigned char held[4];
    uint32_t n_held;
} octe_stream;

enum { OCTE_STREAM_PIECE_MAX_BYTES = 4096 };

/* At least as many as octe_vocab_tokenize finds special tokens in text, in one pass over it. */
size_t octe_vocab_most_special(const octe_vocab *vocab, const char *text, size_t length);

/* Adds a token; *text is malloc'ed, valid UTF-8 of *n bytes (n NULL: not wanted), zero-terminated, maybe empty; U+0000 may be in it. */
oct_status octe_stream_add(octe_stream *stream, const octe_vocab *vocab, int32_t token, bool special, char **text, size_t *n, oct_error *error);

/* The end: gives U+FFFD for held bytes, else "". text: at least 4 bytes. */
void octe_stream_finish(octe_stream *stream, char text[4]);

/* The core of both: bytes in, valid UTF-8 out. out: room for 3 * (n + 3) + 1 bytes; returns its length. */
size_t octe_stream_bytes(octe_stream *stream, const char *bytes, size_t n, char *out);

#endif
