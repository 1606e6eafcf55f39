/* launch_sm90a.c: see launch_sm90a.h. */
#include "device/launch_sm90a.h"

#include <string.h>

#include "device/extend8_sm90a.h"
#include "device/extend_sm90a.h"
#include "device/sm90a.h"

enum {
    SHARED_UNIT_BYTES = 228 * 1024,   /* of a multiprocessor; each block takes a KB more than it asks for */
    SHARED_BLOCK_BYTES = 1024,
    Q_BYTES_OF_TWO = 4096,
    PARTS_MAX = 32768                 /* plan_step.h */
};

static uint32_t bytes_of(uint32_t dtype)
{
    return dtype >= OCT_DTYPE_E4M3FN ? 1 : 2;
}

static uint32_t dims_of(const oct_attn_spec *spec)
{
    const uint32_t dim = spec->kv.dim_k > spec->kv.dim_v ? spec->kv.dim_k : spec->kv.dim_v;
    const bool is_mixed = bytes_of(spec->kv.k.dtype) != bytes_of(spec->kv.v.dtype);
    return dim <= 64 && !is_mixed ? 64 : dim <= 128 ? 128 : 256;
}

/* Whether the kernel is of one format, or of 16-bit ones. */
static bool is_one(const oct_attn_spec *spec)
{
    const uint32_t dtype = spec->kv.k.dtype;
    return bytes_of(dtype) == 2 || (dtype == spec->kv.v.dtype && (dtype == OCT_DTYPE_E4M3FN || dtype == OCT_DTYPE_I8));
}

const char *oct__dev_sm90a_kernel(const oct_attn_spec *spec, uint32_t *tile_vectors, const char **why)
{
    /* Dims of 64, 128, 256; tiles of 8 and of 16 vectors. */
    static const char *const bytes[3][2] = {
        { "attn_decode_sm90a_8_8_64_8", "attn_decode_sm90a_8_8_64_16" },
        { "attn_decode_sm90a_8_8_128_8", "attn_decode_sm90a_e4m3_128_16" },
        { "attn_decode_sm90a_8_8_256_8", "attn_decode_sm90a_8_8_256_16" },
    };
    static const char *const halves[3][2] = {
        { "attn_decode_sm90a_16_16_64_8", NULL },
        { "attn_decode_sm90a_16_16_128_8", "attn_decode_sm90a_16_16_128_16" },
        { "attn_decode_sm90a_16_16_256_8", "attn_decode_sm90a_16_16_256_16" },
    };
    static const char *const mixed[2][2] = {
        { "attn_decode_sm90a_8_16_128_8", "attn_decode_sm90a_8_16_256_8" },
        { "attn_decode_sm90a_16_8_128_8", "attn_decode_sm90a_16_8_256_8" },
    };
    const oct_kv_spec *kv = &spec->kv;
    const uint32_t group = spec->heads_q / kv->heads;
    *why = NULL;
    if (kv->k.dtype == OCT_DTYPE_F32 || kv->v.dtype == OCT_DTYPE_F32) {
        *why = "pages of 8 or 16 bits";
    } else if (kv->v.dtype == OCT_DTYPE_V4) {
        *why = "elements of V with bytes of their own";
    } else if (kv->dim_k > 256 || kv->dim_v > 256) {
        *why = "head dims of up to 256: a row of the output in registers";
    } else if (kv->layout == OCT_LAYOUT_V5D) {
        *why = "V with the dims of a token side by side (NHD, HND)";
    }
    if (*why != NULL) {
        return NULL;
    }
    const uint32_t dims = dims_of(spec), at = dims == 64 ? 0 : dims == 128 ? 1 : 2;
    const char *name;
    *tile_vectors = group > 8 ? 16 : 8;
    if (bytes_of(kv->k.dtype) != bytes_of(kv->v.dtype)) {
        name = mixed[bytes_of(kv->k.dtype) - 1][at - 1];
        *tile_vectors = 8;
    } else if (bytes_of(kv->k.dtype) == 1) {
        *tile_vectors = at == 1 && !is_one(spec) ? 8 : *tile_vectors;   /* of any formats, 16 vectors are more registers than there are */
        name = bytes[at][*tile_vectors == 16];
    } else {
        *tile_vectors = halves[at][1] == NULL ? 8 : *tile_vectors;
        name = halves[at][*tile_vectors == 16];
    }
    return name;
}

bool oct__dev_is_sm90a(const char *kernel)
{
    return strncmp(kernel, "attn_decode_sm90a_", 18) == 0;
}

static oct__sm90a_shared shared_of(const oct_attn_spec *spec, uint32_t tile_vectors, uint32_t heads_a_block)
{
    return oct__sm90a_shared_of(bytes_of(spec->kv.k.dtype), bytes_of(spec->kv.v.dtype), dims_of(spec), tile_vectors, is_one(spec), heads_a_block);
}

/* Head tiles of a block. One: a row is then cut by the fewest parts. Two cuts of one KV head meet in a block, and so read its bytes at one time, if
 * shared memory holds q of both beside the rings. */
static uint32_t heads_of(const oct_attn_spec *spec, const oct__dev_attn_shape *shape)
{
    return shape->n_cuts % 2 == 0 && dims_of(spec) <= 128 && oct__sm90a_q_bytes(dims_of(spec), shape->tile_vectors) <= Q_BYTES_OF_TWO ? 2 : 1;
}

/* The kernel of K and V of one format in the place of that of their bits; or that. */
static const char *kernel_of_format(const oct_attn_spec *spec, uint32_t tile_vectors, const char *kernel)
{
    static const char *const names[2][3][2] = {
        { { "attn_decode_sm90a_e4m3_64_8", "attn_decode_sm90a_e4m3_64_16" },
          { "attn_decode_sm90a_e4m3_128_8", "attn_decode_sm90a_e4m3_128_16" },
          { "attn_decode_sm90a_e4m3_256_8", "attn_decode_sm90a_e4m3_256_16" } },
        { { "attn_decode_sm90a_i8_64_8", "attn_decode_sm90a_i8_64_16" },
          { "attn_decode_sm90a_i8_128_8", "attn_decode_sm90a_i8_128_16" },
          { "attn_decode_sm90a_i8_256_8", "attn_decode_sm90a_i8_256_16" } },
    };
    const uint32_t dtype = spec->kv.k.dtype, dims = dims_of(spec);
    if (bytes_of(dtype) == 2 || !is_one(spec)) {
        return kernel;
    }
    return names[dtype == OCT_DTYPE_I8][dims == 64 ? 0 : dims == 128 ? 1 : 2][tile_vectors == 16];
}

const char *oct__dev_sm90a_form(const oct_attn_spec *spec, const char *kernel, uint32_t *tile_vectors)
{
    const char *why;
    uint32_t vectors;
    const char *own = oct__dev_sm90a_kernel(spec, &vectors, &why);
    if (own == NULL || (dims_of(spec) <= 128 && vectors >= *tile_vectors)) {
        return kernel_of_format(spec, *tile_vectors, kernel);
    }
    *tile_vectors = vectors;
    return kernel_of_format(spec, vectors, own);
}

/* ---- plain launches ------------------------------------------------------------------------------------------------------------------- */

/* Rows that begin at multiples of 16 bytes. */
static bool is_wide(const void *base, int64_t row_stride, int64_t head_stride, uint32_t element_bytes)
{
    return (((uint64_t)(uintptr_t)base | ((uint64_t)row_stride | (uint64_t)head_stride) * element_bytes) & 15) == 0;
}

/* K and V in whole chunks of 16 bytes that lie alike, where 32 bits count them. */
static bool lie_alike(const oct__dev_layer *layer)
{
    const oct__dev_side *k = &layer->k, *v = &layer->v;
    const uint64_t bytes = bytes_of(k->dtype), page = (uint64_t)k->page_stride * bytes / 16, token = (uint64_t)k->token_stride * bytes / 16;
    const uint64_t n_pages = layer->n_pages < INT32_MAX ? (uint64_t)layer->n_pages : INT32_MAX;
    return is_wide(k->base, k->page_stride | k->token_stride, k->head_stride, (uint32_t)bytes) && is_wide(v->base, v->page_stride | v->token_stride, v->head_stride, (uint32_t)bytes) &&
           (k->dim | v->dim) * bytes % 16 == 0 && k->page_stride == v->page_stride && k->token_stride == v->token_stride && page < UINT32_MAX && token < UINT32_MAX &&
           page * n_pages + token * layer->page_size < UINT32_MAX;
}

static bool has_plain_scales(const oct__dev_side *side)
{
    return side->dtype == OCT_DTYPE_I8 ? side->scale_mode == OCT_SCALE_TOKEN_HEAD && side->scale_dtype == OCT_DTYPE_F32 : side->scale_mode <= OCT_SCALE_LAYER_HEAD;
}

void oct__dev_sm90a_make_plain(const oct__attn_params *params, oct__dev_launch *attend, oct__dev_launch *finish)
{
    static const char *const plain[][2] = {
        { "attn_decode_sm90a_e4m3_64_8", "attn_decode_sm90a_plain_e4m3_64_8" },
        { "attn_decode_sm90a_e4m3_64_16", "attn_decode_sm90a_plain_e4m3_64_16" },
        { "attn_decode_sm90a_e4m3_128_8", "attn_decode_sm90a_plain_e4m3_128_8" },
        { "attn_decode_sm90a_e4m3_128_16", "attn_decode_sm90a_plain_e4m3_128_16" },
        { "attn_decode_sm90a_e4m3_256_8", "attn_decode_sm90a_plain_e4m3_256_8" },
        { "attn_decode_sm90a_e4m3_256_16", "attn_decode_sm90a_plain_e4m3_256_16" },
        { "attn_decode_sm90a_i8_64_8", "attn_decode_sm90a_plain_i8_64_8" },
        { "attn_decode_sm90a_i8_64_16", "attn_decode_sm90a_plain_i8_64_16" },
        { "attn_decode_sm90a_i8_128_8", "attn_decode_sm90a_plain_i8_128_8" },
        { "attn_decode_sm90a_i8_128_16", "attn_decode_sm90a_plain_i8_128_16" },
        { "attn_decode_sm90a_i8_256_8", "attn_decode_sm90a_plain_i8_256_8" },
        { "attn_decode_sm90a_i8_256_16", "attn_decode_sm90a_plain_i8_256_16" },
        { "attn_decode_sm90a_16_16_64_8", "attn_decode_sm90a_plain_bf16_64_8" },
        { "attn_decode_sm90a_16_16_128_8", "attn_decode_sm90a_plain_bf16_128_8" },
        { "attn_decode_sm90a_16_16_128_16", "attn_decode_sm90a_plain_bf16_128_16" },
        { "attn_decode_sm90a_16_16_256_8", "attn_decode_sm90a_plain_bf16_256_8" },
        { "attn_decode_sm90a_16_16_256_16", "attn_decode_sm90a_plain_bf16_256_16" },
    };
    const oct__dev_layer *layer = &params->layer;
    const oct__dev_side *k = &layer->k, *v = &layer->v;
    if (params->out_dtype != OCT_DTYPE_BF16 || params->out_scale != NULL || !is_wide(params->out, params->out_row_stride, params->out_head_stride, 2) || v->rotated ||
        v->scale_mode == OCT_SCALE_CHANNEL) {
        return;
    }
    if (strcmp(finish->kernel, "attn_finish_sm90a") == 0) {
        finish->kernel = "attn_finish_sm90a_plain";
    }
    if (k->dtype != v->dtype || k->dtype == OCT_DTYPE_F16 || !has_plain_scales(k) || !has_plain_scales(v) || (k->rotated && k->dtype != OCT_DTYPE_I8) || !lie_alike(layer) ||
        (layer->page_size & (layer->page_size - 1)) != 0 || params->q_dtype != OCT_DTYPE_BF16 || !is_wide(params->q, params->q_row_stride, params->q_head_stride, 2) ||
        params->softcap != 0.0f || params->mask != NULL) {
        return;
    }
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        if (strcmp(attend->kernel, plain[i][0]) == 0) {
            attend->kernel = plain[i][1];
            return;
        }
    }
}

void oct__dev_sm90a_shape(const oct__dev_chip *chip, const oct_attn_spec *spec, oct__dev_attn_shape *shape)
{
    (void)chip;
    shape->threads = 32 * OCT__SM90A_WARPS(dims_of(spec), shape->tile_vectors);
    shape->shared_bytes = shared_of(spec, shape->tile_vectors, heads_of(spec, shape)).bytes;
    const uint32_t fit = SHARED_UNIT_BYTES / (shape->shared_bytes + SHARED_BLOCK_BYTES);
    const uint32_t most = OCT__SM90A_BLOCKS(bytes_of(spec->kv.k.dtype), bytes_of(spec->kv.v.dtype), dims_of(spec), shape->tile_vectors, is_one(spec));
    shape->blocks_a_unit = fit < 1 ? 1 : fit < most ? fit : most;
}

void oct__dev_sm90a_parts(const oct__dev_chip *chip, const oct_attn_spec *spec, const oct__dev_attn_shape *shape, uint32_t *n_parts, uint32_t *heads_a_block)
{
    *heads_a_block = heads_of(spec, shape);
    const uint32_t blocks = chip->n_units * shape->blocks_a_unit, n_blocks = shape->n_head_tiles / *heads_a_block;
    /* Parts x n_blocks blocks: as many as stay at a time, or where that leaves a good part of them idle, twice as many, then three times. */
    uint32_t rounds = 1;
    while (rounds < 4 && (uint64_t)(blocks * rounds / n_blocks) * n_blocks * 20 < (uint64_t)blocks * rounds * 19) {
        rounds++;
    }
    const uint32_t parts = blocks * rounds / n_blocks;
    *n_parts = parts < 1 ? 1 : parts < PARTS_MAX ? parts : PARTS_MAX;
}

/* ---- extends ------------------------------------------------------------------------------------------------------------------------ */

/* Dims of K and V that there are kernels for; smaller ones are padded. */
static const struct extend_form { uint32_t dim_k, dim_v; const char *f16, *bf16; } extends[] = {
    { 64, 64, "attn_extend_sm90a_f16_64_64", "attn_extend_sm90a_bf16_64_64" },
    { 128, 128, "attn_extend_sm90a_f16_128_128", "attn_extend_sm90a_bf16_128_128" },
    { 192, 128, "attn_extend_sm90a_f16_192_128", "attn_extend_sm90a_bf16_192_128" },
    { 256, 256, "attn_extend_sm90a_f16_256_256", "attn_extend_sm90a_bf16_256_256" },
};
enum { EXTENDS = sizeof extends / sizeof extends[0] };

/* Products of 8 bits, for who permits them: dims of up to 128, 256; q in one term and in two. */
static const struct extend8_form { const char *kernel; uint32_t dim, terms; } extends8[2][2] = {
    { { "attn_extend_sm90a_e4m3_128_1", 128, 1 }, { "attn_extend_sm90a_e4m3_128_2", 128, 2 } },
    { { "attn_extend_sm90a_e4m3_256_1", 256, 1 }, { "attn_extend_sm90a_e4m3_256_2", 256, 2 } },
};

/* q of e4m3 needs one term, unless the kernel changes it on its way. Scales beside tokens have room where tiles are small. */
static const char *extend8_kernel(const oct_attn_spec *spec)
{
    const oct_kv_spec *kv = &spec->kv;
    const uint32_t dim = kv->dim_k > kv->dim_v ? kv->dim_k : kv->dim_v;
    const bool is_as_it_is = spec->q_dtype == OCT_DTYPE_E4M3FN && !kv->k.rotated && kv->k.scale_mode != OCT_SCALE_CHANNEL;
    if (spec->products == OCT_PRODUCTS_16BIT || kv->k.dtype != OCT_DTYPE_E4M3FN || kv->v.dtype != OCT_DTYPE_E4M3FN || kv->layout != OCT_LAYOUT_V5D ||
        kv->v.scale_mode == OCT_SCALE_TOKEN_HEAD || dim > 256) {
        return NULL;
    }
    return extends8[dim > 128][!is_as_it_is || (dim > 128 && kv->k.scale_mode == OCT_SCALE_TOKEN_HEAD)].kernel;
}

const char *oct__dev_sm90a_extend_kernel(const oct_attn_spec *spec, const char **why)
{
    const oct_kv_spec *kv = &spec->kv;
    const bool is_bf16 = kv->k.dtype == OCT_DTYPE_BF16;
    *why = NULL;
    if (kv->k.dtype == OCT_DTYPE_F32 || kv->v.dtype == OCT_DTYPE_F32) {
        *why = "pages of 8 or 16 bits";
    } else if (kv->v.dtype == OCT_DTYPE_V4) {
        *why = "elements of V with bytes of their own";
    } else if (kv->v.dtype == (is_bf16 ? OCT_DTYPE_F16 : OCT_DTYPE_BF16)) {
        *why = "products of one 16-bit format: bf16 where K is, else f16";
    } else if (kv->dim_k > 256 || kv->dim_v > 256) {
        *why = "head dims of up to 256: a row of the output in registers";
    } else if (kv->layout == OCT_LAYOUT_V5D) {
        *why = "V with the dims of a token side by side (NHD, HND)";
    }
    const char *in_8bit = extend8_kernel(spec);
    if (in_8bit != NULL) {
        *why = NULL;
        return in_8bit;
    }
    for (int i = 0; i < EXTENDS && *why == NULL; i++) {
        if (kv->dim_k <= extends[i].dim_k && kv->dim_v <= extends[i].dim_v) {
            return is_bf16 ? extends[i].bf16 : extends[i].f16;
        }
    }
    return NULL;
}

bool oct__dev_is_sm90a_extend(const char *kernel)
{
    return strncmp(kernel, "attn_extend_sm90a_", 18) == 0;
}

void oct__dev_sm90a_extend_shape(const char *kernel, oct__dev_attn_shape *shape)
{
    const struct extend_form *form = &extends[0];
    for (int i = 0; i < 4; i++) {
        const struct extend8_form *of_8bit = &extends8[i / 2][i % 2];
        if (strcmp(kernel, of_8bit->kernel) == 0) {
            shape->threads = OCT__EXTEND8_LANES;
            shape->shared_bytes = oct__extend8_shared_of(of_8bit->dim, of_8bit->terms).at.bytes;
            return;
        }
    }
    for (int i = 0; i < EXTENDS; i++) {
        form = strcmp(kernel, extends[i].f16) == 0 || strcmp(kernel, extends[i].bf16) == 0 ? &extends[i] : form;
    }
    const uint32_t is_bf16 = strcmp(kernel, form->bf16) == 0;
    shape->threads = OCT__EXTEND_LANES(form->dim_k, is_bf16);
    shape->shared_bytes = oct__extend_shared_of(form->dim_k, form->dim_v, is_bf16).bytes;
}
