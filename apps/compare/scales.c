/* scales.c: see scales.h. */
#include "apps/compare/scales.h"

#include <stdlib.h>

#include "apps/chronicle.h"
#include "apps/interrupt.h"
#include "apps/texts.h"
#include "engine/calibrate.h"

static uint32_t rotation_of(const compare_format *format)
{
    return (format->k.rotated != 0) + 2u * (format->v.rotated != 0);
}

static bool go_on(void *user, uint64_t done, uint64_t total)
{
    (void)user;
    (void)done;
    (void)total;
    return !app_interrupted();
}

oct_status compare_scales_calibrate(compare_scales *scales, const compare_format *formats, uint32_t n_formats, const octe_model *model, const octe_vocab *vocab,
                                    uint32_t n_threads, uint32_t chunk_tokens, oct_error *error)
{
    enum { TOKENS = 1024 };
    oct_status status = OCT_OK;
    for (uint32_t i = 0; i < n_formats && status == OCT_OK; i++) {
        const uint32_t rotation = rotation_of(&formats[i]);
        if (!compare_format_needs_scales(&formats[i]) || scales->has[rotation]) {
            continue;
        }
        int32_t *tokens = NULL;
        uint32_t n = 0;
        const octe_calibrate_options options = {
            .n_threads = n_threads, .chunk_tokens = chunk_tokens, .rotate = { (rotation & 1) != 0, (rotation & 2) != 0 }, .progress = go_on,
        };
        status = app_text_tokens(vocab, APP_TEXT_BUILT_IN, APP_CHRONICLE_CALIBRATION, TOKENS, &tokens, &n, error);
        if (status == OCT_OK) {
            status = octe_calibrate(model, tokens, n, &options, &scales->by_rotation[rotation], error);
            scales->has[rotation] = status == OCT_OK;
        }
        free(tokens);
    }
    return status;
}

const octe_scales *compare_scales_of(const compare_scales *scales, const compare_format *format)
{
    return &scales->by_rotation[rotation_of(format)];
}

void compare_scales_free(compare_scales *scales)
{
    for (size_t i = 0; i < sizeof(scales->by_rotation) / sizeof(scales->by_rotation[0]); i++) {
        octe_scales_free(&scales->by_rotation[i]);
    }
    *scales = (compare_scales){ 0 };
}
