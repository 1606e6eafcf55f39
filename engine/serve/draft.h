/* Guesses of what follows a text, from the text itself (prompt lookup): where its end stood before, what followed there. Pure; any thread. */
#ifndef OCTE_SERVE_DRAFT_H
#define OCTE_SERVE_DRAFT_H

#include <stdint.h>

/* Guesses for speculation, checked by the model in the step that continues the text: a sequence's row and its guesses' are one decode of several query rows. */
enum { OCTE_DRAFT_MAX = 15 };

/* The longest end of tokens[n], of most_match down to least_match tokens, that stands somewhere before; the last such place. Fills draft[most] with what follows
 * there (going on into the draft itself where the text is over) and returns most, or 0: there is none. */
uint32_t octe__draft_lookup(const int32_t *tokens, uint32_t n, uint32_t least_match, uint32_t most_match, uint32_t most, int32_t *draft);

#endif
