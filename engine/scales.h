/* Static scales of a model's cache and the JSON file that carries them: what vLLM and SGLang read (kv_cache.scaling_factor by tensor-parallel
 * rank and layer, one number for K and V), plus our finer form under the key "octavo", which they ignore. Plain data, any thread. */
#ifndef OCTE_SCALES_H
#define OCTE_SCALES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "octavo/kv.h"

/* Limits of a file, so that a hostile one can't cost memory or time. */
enum {
    OCTE_SCALES_MAX_LAYERS = 1024,
    OCTE_SCALES_MAX_HEADS = 1024,
    OCTE_SCALES_MAX_DIM = 512,
    OCTE_SCALES_MAX_RANKS = 1024,
    OCTE_SCALES_MAX_FILE_BYTES = 32 << 20,
    OCTE_SCALES_VERSION = 2   /* newest of the key "octavo" that is read and written */
};

/* What one layer is kept in. */
typedef struct octe_kv_layer_format {
    oct_kv_format k, v;
} octe_kv_layer_format;

/* real value = byte * scale. Each array is NULL when the file doesn't give it; which: [0] for K, [1] for V. */
typedef struct octe_scales {
    char model_type[64];       /* "" when the file names none */
    uint32_t dtype;            /* oct_dtype the numbers were made for: OCT_DTYPE_E4M3FN in files */
    uint32_t n_layers;
    uint32_t n_heads;          /* 0 without head and channel scales */
    uint32_t dim;              /* 0 without channel scales */
    float *layer[2];           /* [n_layers]; never NULL */
    float *head[2];            /* [n_layers][n_heads] */
    float *channel[2];         /* [n_layers][n_heads][dim] */
    bool layer_split;          /* K and V have layer numbers of their own; false: the file gave one for both */
    bool rotated[2];           /* the numbers speak of values kept rotated */
    octe_kv_layer_format *formats;   /* [n_layers] what the layers are to be kept in; NULL when the file doesn't say (version 1) */
} octe_scales;

/* Allocates arrays filled with 1; n_heads 0: layer scales only, dim 0: no channel scales. No formats. */
oct_status octe_scales_create(octe_scales *scales, uint32_t n_layers, uint32_t n_heads, uint32_t dim, oct_error *error);
/* Formats of n_layers, copied. */
oct_status octe_scales_set_formats(octe_scales *scales, const octe_kv_layer_format *formats, oct_error *error);

void octe_scales_free(octe_scales *scales);   /* frees the arrays and zeroes the struct; fine on a zeroed one */

/* For a rank: a process that holds the heads of all of them. Of each layer the largest number, which saturates no rank's heads. */
#define OCTE_SCALES_ALL_RANKS UINT32_MAX

/* Reads a file: the numbers of tensor-parallel rank `rank`, or OCTE_SCALES_ALL_RANKS. Strict: every layer 0 .. n-1 present once, every number finite and > 0, sizes
 * capped, no duplicate key. Errors: IO_ERROR, BAD_DATA (names the file and the key), OUT_OF_MEMORY. */
oct_status octe_scales_read(const char *path, uint32_t rank, octe_scales *scales, oct_error *error);

/* The same from memory; name is for messages. */
oct_status octe_scales_parse(const char *json, size_t size, const char *name, uint32_t rank, octe_scales *scales, oct_error *error);

/* Writes the file in one step: a temporary file beside it, flushed, then renamed; on an error nothing is left behind and an old file stays.
 * Without formats it is of version 1, as it always was; with them of version 2, whose formats stand by name, one a layer.
 * n_ranks (>= 1): every rank gets the same numbers; scaling_factor holds the larger of K and V, which saturates neither. */
oct_status octe_scales_write(const octe_scales *scales, uint32_t n_ranks, const char *path, oct_error *error);

/* The same without the key "octavo": what engines without octavo can do. UNSUPPORTED for numbers of rotated values, and for a layer that is to be kept in anything but e4m3fn
 * with a scale of the layer, which it names. */
oct_status octe_scales_write_shared(const octe_scales *scales, uint32_t n_ranks, const char *path, oct_error *error);

#endif
