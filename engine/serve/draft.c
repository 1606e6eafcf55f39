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

/* Equal tokens before `at` and at the end. */
static uint32_t match_at(const int32_t *tokens, uint32_t n, uint32_t at, uint32_t most_match)
{
    uint32_t length = 0;
    while (length < most_match && length < at && tokens[at - 1 - length] == tokens[n - 1 - length]) {
        length++;
    }
    return length;
}

/* Adds what followed at `at` to the tree, at most `deep` tokens of it. Returns the new number of guesses. */
static uint32_t add_branch(const int32_t *tokens, uint32_t n, uint32_t at, uint32_t deep, uint32_t most, uint32_t n_draft, int32_t *draft, uint8_t *parents)
{
    int32_t follows[OCTE_DRAFT_MAX];
    uint32_t parent = 0;
    for (uint32_t i = 0; i < deep; i++) {
        follows[i] = at + i < n ? tokens[at + i] : follows[at + i - n];
        uint32_t child = 1;
        while (child <= n_draft && (parents[child] != parent || draft[child - 1] != follows[i])) {
            child++;
        }
        if (child > n_draft) {
            if (n_draft == most) {
                break;
            }
            draft[n_draft++] = follows[i];
            parents[child] = (uint8_t)parent;
        }
        parent = child;
    }
    return n_draft;
}

uint32_t octe__draft_tree(const int32_t *tokens, uint32_t n, uint32_t least_match, uint32_t most_match, uint32_t n_branches, uint32_t most, int32_t *draft, uint8_t *parents)
{
    /* Half of the guesses for the first branch, the rest in equal parts. */
    most = most < OCTE_DRAFT_MAX ? most : OCTE_DRAFT_MAX;
    const uint32_t n_others = n_branches > 1 && most > 1 ? n_branches - 1 : 0, trunk = n_others > 0 ? (most + 1) / 2 : most;
    uint32_t n_draft = octe__draft_lookup(tokens, n, least_match, most_match, trunk, draft), n_added = 0;
    for (uint32_t i = 0; i < n_draft; i++) {
        parents[1 + i] = (uint8_t)i;
    }
    if (n_draft == 0 || n_others == 0) {
        return n_draft;
    }
    const uint32_t deep = (most - trunk + n_others - 1) / n_others;
    for (uint32_t length = most_match; length >= least_match && length > 0 && n_added < n_others && n_draft < most; length--) {
        for (uint32_t at = n - 1; at > 0 && n_added < n_others && n_draft < most; at--) {
            if (match_at(tokens, n, at, most_match) == length) {
                const uint32_t before = n_draft;
                n_draft = add_branch(tokens, n, at, deep, most, n_draft, draft, parents);
                n_added += n_draft > before;
            }
        }
    }
    return n_draft;
}
