/* launch_write_sm90a.c: see launch_write_sm90a.h. */
#include "device/launch_write_sm90a.h"

#include <string.h>

enum { MERGE_LANES = 128, MERGE_BLOCKS_A_UNIT = 32 };
enum {
    ROUNDS_FROM_BLOCKS_A_UNIT = 8,   /* below it, more blocks hide more than more loads of a lane do */
    EARLY_BLOCKS_A_UNIT = 8
};

static oct__dev_cut cut_of(const oct_kv_layer *layer)
{
    const uint64_t slots = (uint64_t)layer->n_pages * layer->spec.page_size;
    oct__dev_cut cut = { slots < UINT64_C(0x80000000) ? (uint32_t)slots : UINT32_C(0x80000000), 0, 31 };
    while ((UINT32_C(1) << (cut.shift - 31)) < layer->spec.page_size) {
        cut.shift++;
    }
    /* magic * page_size exceeds 2^shift by less than page_size <= 2^(shift - 31): the error stays below 1 for slots below 2^31. */
    cut.magic = (uint32_t)(((UINT64_C(1) << cut.shift) + layer->spec.page_size - 1) / layer->spec.page_size);
    return cut;
}

static uint32_t size_of(uint32_t dtype)
{
    return dtype >= OCT_DTYPE_E4M3FN ? 1 : dtype == OCT_DTYPE_F32 ? 4 : 2;
}

/* Whether the side goes the quick way: strides of 32 bits, and each lane's bytes on both sides at addresses of their own size. */
static bool way_of(const oct_kv_write_args *args, const oct_kv_layer *l, bool is_k, oct__write_way *way)
{
    static const uint32_t kinds[] = { [OCT_SCALE_NONE] = OCT__WRITE_ONE, [OCT_SCALE_TENSOR] = OCT__WRITE_STATIC, [OCT_SCALE_LAYER] = OCT__WRITE_STATIC,
                                      [OCT_SCALE_LAYER_HEAD] = OCT__WRITE_HEAD, [OCT_SCALE_CHANNEL] = OCT__WRITE_CHANNEL };
    const oct_kv_format *format = is_k ? &l->spec.k : &l->spec.v;
    const uint64_t from = size_of(args->src_dtype), to = size_of(format->dtype), x = 16 / to;
    const uint64_t from_token = from * (uint64_t)(is_k ? args->k_token_stride : args->v_token_stride), from_head = from * (uint64_t)(is_k ? args->k_head_stride : args->v_head_stride);
    const uint64_t page = to * (uint64_t)(is_k ? l->k_page_stride : l->v_page_stride), head = to * (uint64_t)(is_k ? l->k_head_stride : l->v_head_stride);
    const bool is_v5d = l->spec.layout == OCT_LAYOUT_V5D;
    const uint64_t place = is_v5d ? 16 : to * (uint64_t)(is_k ? l->k_token_stride : l->v_token_stride), chunk = (uint64_t)l->spec.page_size * 16;
    way->from = is_k ? args->k : args->v;
    way->to = is_k ? l->k : l->v;
    way->scale = is_k ? l->k_scale : l->v_scale;
    way->token_scale = is_k ? l->k_token_scale : l->v_token_scale;
    way->from_token = (uint32_t)from_token;
    way->from_head = (uint32_t)from_head;
    way->to_page = (uint32_t)page;
    way->to_place = (uint32_t)place;
    way->to_head = (uint32_t)head;
    way->to_pair = (uint32_t)(!is_v5d ? 16 * to : x == 16 ? chunk : 2 * chunk);
    way->to_odd = (uint32_t)(!is_v5d || x == 16 ? 8 * to : chunk);
    way->scale_page = (uint32_t)(is_k ? l->k_scale_page_stride : l->v_scale_page_stride);
    way->scale_kind = format->scale_mode != OCT_SCALE_TOKEN_HEAD ? kinds[format->scale_mode] : format->scale_dtype == OCT_DTYPE_F16 ? OCT__WRITE_TOKEN_F16 : OCT__WRITE_TOKEN_F32;
    way->dtype = format->dtype;
    way->dim = is_k ? l->spec.dim_k : l->spec.dim_v;
    way->rotated = format->rotated;
    const uint64_t step = to == 1 ? 8 : 16;
    const bool is_aligned = ((uintptr_t)way->from | from_token | from_head) % 16 == 0 && ((uintptr_t)way->to | page | place | head) % step == 0;
    const bool is_small = ((from_token | from_head | page | place | head | 2 * chunk) >> 32) == 0 && (is_k ? l->k_scale_page_stride : l->v_scale_page_stride) >> 32 == 0;
    return is_aligned && is_small && !(is_v5d && (is_k ? x < 8 : x < 16));
}

/* The kernel that is made for all of it. */
static const char *kernel_of(const oct__kv_write_sm90a_params *p, bool is_v5d)
{
    const oct__write_way *k = &p->way[0][0], *v = &p->way[0][1];
    if (!p->is_quick || p->n_ways > 1 || p->is_counted || p->write.has_rope || p->src_dtype == OCT_DTYPE_F32 || k->dtype != v->dtype) {
        return "kv_write_sm90a";
    }
    const bool is_static = k->scale_kind <= OCT__WRITE_HEAD && v->scale_kind <= OCT__WRITE_HEAD && !k->rotated && !v->rotated;
    const bool is_token = k->scale_kind == OCT__WRITE_TOKEN_F32 && v->scale_kind == OCT__WRITE_TOKEN_F32;
    if (is_v5d) {
        return k->dtype == OCT_DTYPE_E4M3FN && is_static ? "kv_write_sm90a_e4m3_v5d" : "kv_write_sm90a";
    }
    return k->dtype == OCT_DTYPE_E4M3FN && is_static                          ? "kv_write_sm90a_e4m3"
         : k->dtype == OCT_DTYPE_E4M3FN && is_token                           ? "kv_write_sm90a_e4m3_token"
         : k->dtype == OCT_DTYPE_I8 && is_token                               ? "kv_write_sm90a_i8_token"
         : (k->dtype == OCT_DTYPE_BF16 || k->dtype == OCT_DTYPE_F16) && is_static ? "kv_write_sm90a_16"
                                                                              : "kv_write_sm90a";
}

bool oct__dev_pack_kv_write_sm90a(const oct__dev_chip *chip, const oct_kv_write_args *args, const uint32_t *refused, oct__kv_write_sm90a_params *params,
                                  oct__dev_launch *launch)
{
    const oct_kv_spec *spec = &args->layer->spec;
    const uint32_t dim = spec->dim_k > spec->dim_v ? spec->dim_k : spec->dim_v;
    oct__kv_write_sm90a_params *p = params;
    memset(p, 0, sizeof *p);
    const bool is_some = oct__dev_pack_kv_write(chip, args, refused, &p->write, launch);
    bool is_v5d = false;
    p->is_quick = 1;
    p->n_ways = args->layer_window != NULL ? 2 : 1;
    for (uint32_t i = 0; i < p->n_ways; i++) {
        const oct_kv_layer *layer = i == 0 ? args->layer : args->layer_window;
        p->is_quick &= way_of(args, layer, true, &p->way[i][0]);
        p->is_quick &= way_of(args, layer, false, &p->way[i][1]);
        is_v5d |= layer->spec.layout == OCT_LAYOUT_V5D;
        p->cut[i] = cut_of(layer);
        p->slots[i] = i == 0 ? args->slots : args->slots_window;
    }
    p->page_size = spec->page_size;
    p->page_size_window = args->layer_window != NULL ? args->layer_window->spec.page_size : spec->page_size;
    p->heads = spec->heads;
    p->refused = refused;
    p->src_dtype = args->src_dtype;
    p->is_counted = args->k_counts != NULL || args->v_counts != NULL;
    while (8u << p->team_shift < dim) {
        p->team_shift++;
    }
    const char *kernel = kernel_of(p, is_v5d);
    const bool is_turned = strcmp(kernel, "kv_write_sm90a_e4m3_v5d") == 0;
    p->is_quick &= is_turned || !is_v5d;
    const uint32_t teams = OCT__WRITE_SM90A_LANES >> p->team_shift;
    p->parts = is_turned ? spec->heads : (spec->heads + teams - 1) / teams;   /* neighbouring tokens of one head, whose bytes of V stand side by side */
    p->heads_a_block = (spec->heads + p->parts - 1) / p->parts;
    p->tokens_a_block = teams / p->heads_a_block;
    p->head_magic = (65536 + p->heads_a_block - 1) / p->heads_a_block;
    const uint64_t tokens = args->n_tokens > 0 ? (uint64_t)args->n_tokens : 1, rows = (tokens + p->tokens_a_block - 1) / p->tokens_a_block;
    p->n_tokens = args->n_tokens > 0 ? (uint64_t)args->n_tokens : 0;
    const bool is_many = rows * p->parts >= (uint64_t)chip->n_units * ROUNDS_FROM_BLOCKS_A_UNIT;
    p->rounds = is_many && !is_turned && strcmp(kernel, "kv_write_sm90a") != 0 ? 2 : 1;
    *launch = (oct__dev_launch){ .kernel = kernel, .threads = OCT__WRITE_SM90A_LANES };
    if (args->rope != NULL) {
        launch->shared_bytes = oct__write_sm90a_shared_bytes(p->tokens_a_block, args->rope->n_dims);
    }
    const uint64_t blocks = (rows + p->rounds - 1) / p->rounds * p->parts;
    oct__dev_grid(blocks, launch);
    /* Half a microsecond less where a launch is much of it. */
    launch->is_early = p->is_early = blocks <= (uint64_t)chip->n_units * EARLY_BLOCKS_A_UNIT || strcmp(kernel, "kv_write_sm90a_e4m3") == 0 || strcmp(kernel, "kv_write_sm90a_16") == 0 || is_turned;
    return is_some;
}

bool oct__dev_pack_merge_sm90a(const oct__dev_chip *chip, const oct_attn_merge_args *args, oct__merge_sm90a_params *params, oct__dev_launch *launch)
{
    memset(params, 0, sizeof *params);
    const bool is_some = oct__dev_pack_merge(chip, args, &params->merge, launch);
    const uint64_t all = (uint64_t)(uintptr_t)args->out | (uint64_t)(uintptr_t)args->merged |
                         4 * ((uint64_t)args->out_part_stride | (uint64_t)args->out_row_stride | (uint64_t)args->out_head_stride | (uint64_t)args->merged_row_stride |
                              (uint64_t)args->merged_head_stride | args->dim);
    params->is_wide = all % 16 == 0;
    while (4u << params->team_shift < args->dim && params->team_shift < 5) {
        params->team_shift++;
    }
    const uint64_t vectors = args->rows > 0 ? (uint64_t)args->rows * args->heads : 0, teams = MERGE_LANES >> params->team_shift;
    const uint64_t blocks = (vectors + teams - 1) / teams, most = (uint64_t)chip->n_units * MERGE_BLOCKS_A_UNIT;
    *launch = (oct__dev_launch){ .kernel = "attn_merge_sm90a", .threads = MERGE_LANES, .is_early = 1 };
    oct__dev_grid(blocks == 0 ? 1 : blocks < most ? blocks : most, launch);
    return is_some;
}
