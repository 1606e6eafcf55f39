/* Scales from a text: the model runs on an f32 cache and the largest |K| and |V| that the cache really held are taken by layer, head and channel. */
#ifndef OCTE_CALIBRATE_H
#define OCTE_CALIBRATE_H

#include "engine/engine.h"

typedef struct octe_calibrate_options {
    uint32_t n_threads;        /* 0: the machine's cores */
    uint32_t chunk_tokens;     /* the text is cut into sequences of this many tokens; 0: min(2048, the model's context) */
    uint32_t dtype;            /* scale = amax / largest finite of this format; 0: OCT_DTYPE_E4M3FN. Files carry e4m3fn only */
    bool rotate[2];            /* K, V: measure the rotated values, for a pool that keeps them rotated */
    /* Called between steps; done and total in tokens. Returning false stops with CANCELLED. May be NULL. */
    bool (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
} octe_calibrate_options;

/* tokens: at least 1. *scales: layer, head and channel scales, to be freed with octe_scales_free. Scales are floored at 1e-6: channels that
 * are exactly zero exist. */
oct_status octe_calibrate(const octe_model *model, const int32_t *tokens, uint32_t n_tokens, const octe_calibrate_options *options,
                          octe_scales *scales, oct_error *error);

#endif
