/* How an engine keeps K and V: formats, scales, rotation, layout, page size; and what a token then costs. Plain data, any thread. */
#ifndef OCTE_KV_CONFIG_H
#define OCTE_KV_CONFIG_H

#include "engine/model.h"
#include "engine/scales.h"

/* Layers that differ in K's or V's format, or in their window, at most: each kind has a pool and a plan of its own. */
enum { OCTE_KV_MAX_KINDS = 32 };

typedef struct octe_kv_config {
    oct_kv_format k, v;
    /* Formats of each layer instead of k and v: [n_layers], the model's number; NULL and 0: every layer as k and v. Read while the engine opens. */
    const octe_kv_layer_format *layers;
    uint32_t n_layers;
    uint32_t layout;              /* oct_layout; all zero: NHD */
    uint32_t page_size;           /* tokens; 0: 16 */
    /* Where static scales (TENSOR, LAYER, LAYER_HEAD, CHANNEL) come from: a calibration, read while the engine opens and not kept, or,
     * when it is NULL, one number for everything, which must then be set: finite and > 0. */
    const octe_scales *scales;
    float k_scale, v_scale;
} octe_kv_config;

/* The names of --kv-cache-dtype: auto (f16) bf16 f16 f32 fp8 (= fp8_e4m3) fp8_e4m3 fp8_e5m2 fp8_e4m3fnuz (8-bit floats of scale 1)
 * fp8_per_token_head int8_per_token_head int8_rotated (K rotated) int8_v4 (K in i8, V in v4, both rotated). Fills the whole config with defaults around the formats.
 * INVALID_ARGUMENT lists the names. */
oct_status octe_kv_config_from_name(const char *name, octe_kv_config *config, oct_error *error);

/* One side, for -ctk/-ctv: f32 f16 bf16 e4m3 (= e4m3fn) e4m3fn e4m3fnuz e5m2 (scale 1), each 8-bit float also as NAME:layer, NAME:head,
 * NAME:tensor, NAME:channel (calibrated) and NAME:token (dynamic); i8 (= i8:token), i8:channel, v4 (V only; 4 bits). A suffix "+rot" keeps it rotated: "i8+rot". */
oct_status octe_kv_format_from_name(const char *name, oct_kv_format *format, oct_error *error);

/* The inverse of octe_kv_format_from_name, as snprintf. */
size_t octe_kv_format_name(const oct_kv_format *format, char *text, size_t size);

/* True when a format needs octe_kv_config.scales or a fixed scale. */
bool octe_kv_format_is_static(const oct_kv_format *format);

/* Names by index from 0, for usage texts; NULL past the end. */
const char *octe_kv_config_name(uint32_t index);

/* Formats by layer, and as k and v those that most layers have. layers: kept by pointer. */
void octe_kv_config_set_layers(octe_kv_config *config, const octe_kv_layer_format *layers, uint32_t n_layers);

bool octe_kv_layer_format_same(const octe_kv_layer_format *a, const octe_kv_layer_format *b);

/* What layer il is kept in. */
octe_kv_layer_format octe_kv_config_layer(const octe_kv_config *config, uint32_t layer);

/* True when some layer's format of a side (0: K, 1: V) needs octe_kv_config.scales or a fixed scale. */
bool octe_kv_config_is_static(const octe_kv_config *config, int side);

/* What a config costs for a model. Exact: pages with their dynamic scales. */
typedef struct octe_kv_capacity {
    uint64_t bytes_per_token_full;     /* layers that see everything */
    uint64_t bytes_per_token_window;   /* layers that see a window; kept for the last window_tokens only */
    uint64_t bytes_per_token;          /* the sum: what one token writes */
    int64_t tokens_per_gib;            /* 2^30 / bytes_per_token, whole pages: every layer keeps every token */
    int64_t tokens_per_gib_window;     /* longest single sequence in 2^30 bytes when window layers keep only their window; = tokens_per_gib without one */
} octe_kv_capacity;

oct_status octe_kv_capacity_get(const octe_model *model, const octe_kv_config *config, octe_kv_capacity *capacity, oct_error *error);

#endif
