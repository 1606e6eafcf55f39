/* format.h: owns the rows of a comparison: which caches, how they are named on the command line and for people. Pure. */
#ifndef APP_COMPARE_FORMAT_H
#define APP_COMPARE_FORMAT_H

#include "engine/kv_config.h"

enum { COMPARE_MAX_FORMATS = 24 };

/* What is compared where nobody says; the first is the base. What is recommended keeps K rotated and V plain, as int8_rotated does: only K's loss
 * is worth the turn. */
#define COMPARE_DEFAULT_FORMATS "f16,bf16,e4m3,e4m3:layer,e4m3:token,e5m2,i8,i8+rot/i8,i8+rot/e4m3,f16/e4m3,llama:f16,llama:q8_0"

typedef struct compare_format {
    char name[56];              /* as typed: "f16", "i8+rot/e4m3" (K/V), "llama:q8_0" */
    char label[40];             /* for people; a star marks the recommended one */
    const char *k_scale_mode;   /* "none", "tensor", "layer", "head", "token", "channel"; "block" for llama.cpp's q8_0 */
    bool is_reference;          /* llama.cpp's own cache and attention */
    uint32_t reference_cache;   /* octe_reference_cache */
    oct_kv_format k, v;
} compare_format;

/* A list "f16,e4m3:layer,i8+rot/i8,llama:f16", with names of --kv-cache-dtype too (int8_rotated). INVALID_ARGUMENT names the part that is wrong, an empty list, too many, the same twice,
 * or a first one that is llama.cpp's: the base must be ours, since its logits lie beside everybody's. */
oct_status compare_formats_parse(const char *list, compare_format *formats, uint32_t *n, oct_error *error);

/* True when the format's scales must be calibrated first. */
bool compare_format_needs_scales(const compare_format *format);

#endif
