/* draft.c: see draft.h. */
#include "engine/serve/draft.h"

uint32_t octe__draft_lookup(const int32_t *tokens, uint32_t n, uint32_t least_match, uint32_t most_match, uint32_t most, int32_t *draft)
{
    uint32_t best = 0, best_at = 0;
    for (uint32_t at = n > 0 ? n - 1 : 0; at > 0 && best < most_match; at--) {
        uint32_t length = 0;
        while (length < most_match && length < at && tokens[at - 1 - length] == tokens[n - 1 - length]) {
            length++;
        }
        if (length > best) {
            best = length;
            best_at = at;
        }
    }
    if (best == 0 || best < least_match) {
        return 0;
    }
    for (uint32_t i = 0; i < most; i++) {
        draft[i] = best_at + i < n ? tokens[best_at + i] : draft[best_at + i - n];
    }
    return most;
}
