/* scales.h: owns the calibrated scales of the formats that a run judges, made in the run from a text that is not judged. Single-threaded. */
#ifndef APP_COMPARE_SCALES_H
#define APP_COMPARE_SCALES_H

#include "apps/compare/format.h"
#include "engine/vocab.h"

/* Zero-initialise. */
typedef struct compare_scales {
    octe_scales by_rotation[4];     /* by what is kept rotated: K + 2 V */
    bool has[4];
} compare_scales;

/* Scales for those of the formats that need some, from 1,024 tokens of another chronicle than the one that is judged on, in sequences of
 * chunk_tokens. Those that are there already are kept. CANCELLED after Ctrl-C. */
oct_status compare_scales_calibrate(compare_scales *scales, const compare_format *formats, uint32_t n_formats, const octe_model *model, const octe_vocab *vocab,
                                    uint32_t n_threads, uint32_t chunk_tokens, oct_error *error);

/* What a format reads of them; of a format that needs none, anything. */
const octe_scales *compare_scales_of(const compare_scales *scales, const compare_format *format);

void compare_scales_free(compare_scales *scales);

#endif
