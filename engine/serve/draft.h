/* Guesses of what follows a text, from the text itself (prompt lookup): where its end stood before, what followed there. Pure; any thread. */
#ifndef OCTE_SERVE_DRAFT_H
#define OCTE_SERVE_DRAFT_H

#include <stdint.h>

/* Guesses for speculation, checked by the model in the step that continues the text: a sequence's row and its guesses' are one decode of several query rows. */
enum { OCTE_DRAFT_MAX = 15, OCTE_BRANCHES_MAX = 4 };

/* The longest end of tokens[n], of most_match down to least_match tokens, that stands somewhere before; the last such place. Fills draft[most] with what follows
 * there (going on into the draft itself where the text is over) and returns most, or 0: there is none. */
uint32_t octe__draft_lookup(const int32_t *tokens, uint32_t n, uint32_t least_match, uint32_t most_match, uint32_t most, int32_t *draft);

/* A tree of what followed in up to n_branches such places: the first, longest branch is what octe__draft_lookup gives, the others leave it where they differ. Returns how
 * many guesses draft[most] has, at most OCTE_DRAFT_MAX; parents[1 + i] is the place of the one before guess i, counted from 1, 0: the text's end. A guess stands behind its parent. */
uint32_t octe__draft_tree(const int32_t *tokens, uint32_t n, uint32_t least_match, uint32_t most_match, uint32_t n_branches, uint32_t most, int32_t *draft, uint8_t *parents);

#endif
