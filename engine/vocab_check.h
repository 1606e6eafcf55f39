/* What libllama takes for granted in a vocabulary and aborts or throws over when it isn't so. Pure reading; any thread. */
#ifndef OCTE_VOCAB_CHECK_H
#define OCTE_VOCAB_CHECK_H

#include "engine/metadata.h"

/* Checks the file with octe_gguf_check_file, then its tokenizer keys: a kind of vocabulary that is built in, tokens that differ, arrays of
 * one length, byte tokens that name bytes, and a way to write every byte. BAD_DATA, UNSUPPORTED, IO_ERROR, OUT_OF_MEMORY. */
oct_status octe__vocab_check_file(const char *path, oct_error *error);

/* The second half alone, on keys that are already read. */
oct_status octe__vocab_check(const octe__metadata *m);

#endif
