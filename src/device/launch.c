/* launch.c: see launch.h. The sizes here and the texts' own limits meet in params.h. */
#include "device/launch.h"

#include <math.h>
#include <string.h>

#include "device/extend8_sm90a.h"
#include "device/launch_sm90a.h"
#include "device/sm90a.h"

enum {
    GRID_X_MAX = 1 << 22,            /* HIP: blocks x lanes of an axis stay below 2^32 */
    GRID_Y_MAX = 65535,
    BLOCKS_PER_UNIT = 32,            /* of a grid; the rest is reached by striding */
    WANTED_PER_UNIT = 5,             /* blocks that splits aim for: a few rounds, so that uneven ones even out; more cost their beginnings and ends */
    WANTED_PER_TEN_UNITS = 17,       /* the same of blocks that have a unit each: two rounds, and not quite, since what is cut evenly comes to a few more */
    SPLIT_KEYS_MIN = 256,            /* below this the finishing costs more than the waiting */
    PART_KEYS_MIN = 128,             /* of blocks that each take a part */
    PART_TASK_UNITS = 14,            /* params.h: task_units; some 10 us of one of three blocks that share an H200's multiprocessor */
    SPLIT_KEYS_MAX = 32768,          /* f32 sums of a decode stay short */
    DECODE_ROWS_MAX = 16,
    FIXED_DECODE_KEYS = 1024,        /* deterministic mode */
    FIXED_EXTEND_KEYS = 4096,
    FIXED_EXTEND_TILES = 64,
    FINISHES_PER_BLOCK = 8,          /* of an extend whose blocks have a unit each */
    ALIGN = 256
};
#define NEVER_SPLIT UINT32_C(0x40000000)

void oct__dev_grid(uint64_t n, oct__dev_launch *launch)
{
    launch->grid_x = (uint32_t)(n < GRID_X_MAX ? n : GRID_X_MAX);
    const uint64_t y = (n + launch->grid_x - 1) / launch->grid_x;
    launch->grid_y = (uint32_t)(y < GRID_Y_MAX ? y : GRID_Y_MAX);
}

/* ---- the write --------------------------------------------------------------------------------------------------------------- */

static oct__dev_side side_of(const oct_kv_layer *l, bool is_k)
{
    const oct_kv_format *format = is_k ? &l->spec.k : &l->spec.v;
    oct__dev_side s;
    memset(&s, 0, sizeof s);
    s.base = is_k ? l->k : l->v;
    s.scale = is_k ? l->k_scale : l->v_scale;
    s.token_scale = is_k ? l->k_token_scale : l->v_token_scale;
    s.page_stride = is_k ? l->k_page_stride : l->v_page_stride;
    s.token_stride = is_k ? l->k_token_stride : l->v_token_stride;
    s.head_stride = is_k ? l->k_head_stride : l->v_head_stride;
    s.scale_page_stride = is_k ? l->k_scale_page_stride : l->v_scale_page_stride;
    s.dim = is_k ? l->spec.dim_k : l->spec.dim_v;
    s.dtype = format->dtype;
    s.scale_mode = format->scale_mode;
    s.scale_dtype = format->scale_dtype;
    s.rotated = format->rotated;
    return s;
}

void oct__dev_pack_layer(const oct_kv_layer *layer, oct__dev_layer *packed)
{
    memset(packed, 0, sizeof *packed);
    packed->k = side_of(layer, true);
    packed->v = side_of(layer, false);
    packed->n_pages = layer->n_pages;
    packed->layout = layer->spec.layout;
    packed->heads = layer->spec.heads;
    packed->page_size = layer->spec.page_size;
}

bool oct__dev_pack_kv_check(const oct_kv_write_args *args, uint32_t *refused, oct__kv_check_params *params, oct__dev_launch *launch)
{
    memset(params, 0, sizeof *params);
    params->slots = args->slots;
    params->n_tokens = args->n_tokens;
    params->capacity = args->layer->n_pages * (int64_t)args->layer->spec.page_size;
    params->refused = refused;
    if (args->layer_window != NULL) {
        params->slots_window = args->slots_window;
        params->capacity_window = args->layer_window->n_pages * (int64_t)args->layer_window->spec.page_size;
    }
    *launch = (oct__dev_launch){ .kernel = "kv_check", .threads = 256 };
    oct__dev_grid(args->n_tokens > 0 ? ((uint64_t)args->n_tokens + 255) / 256 : 1, launch);
    return args->n_tokens > 0;
}

bool oct__dev_pack_kv_write(const oct__dev_chip *chip, const oct_kv_write_args *args, const uint32_t *refused, oct__kv_write_params *params,
                            oct__dev_launch *launch)
{
    const uint32_t threads = 128, warps = threads / chip->warp, most_parts = (2 * args->layer->spec.heads + warps - 1) / warps;
    memset(params, 0, sizeof *params);
    oct__dev_pack_layer(args->layer, &params->layer);
    oct__dev_pack_layer(args->layer_window != NULL ? args->layer_window : args->layer, &params->window);
    params->has_window = args->layer_window != NULL;
    params->slots = args->slots;
    params->slots_window = args->slots_window;
    params->k = args->k;
    params->v = args->v;
    params->k_token_stride = args->k_token_stride;
    params->k_head_stride = args->k_head_stride;
    params->v_token_stride = args->v_token_stride;
    params->v_head_stride = args->v_head_stride;
    params->n_tokens = args->n_tokens;
    params->k_counts = args->k_counts;
    params->v_counts = args->v_counts;
    params->refused = refused;
    params->src_dtype = args->src_dtype;
    if (args->rope != NULL) {
        params->has_rope = 1;
        params->positions = args->positions;
        params->rope_factors = args->rope->factors;
        params->rope_style = args->rope->style;
        params->rope_dims = args->rope->n_dims;
        params->rope_log2_base = log2((double)args->rope->base);
        params->rope_turns = (double)args->rope->position_scale / 6.28318530717958647693;
    }
    /* A token's heads are shared by as many blocks as it takes to fill the chip. */
    const uint64_t wanted = (uint64_t)chip->n_units * BLOCKS_PER_UNIT;
    const uint64_t parts = args->n_tokens > 0 ? (wanted + (uint64_t)args->n_tokens - 1) / (uint64_t)args->n_tokens : 1;
    params->parts = (uint32_t)(parts < most_parts ? parts : most_parts);
    const bool has_v4 = args->layer->spec.v.dtype == OCT_DTYPE_V4 || (args->layer_window != NULL && args->layer_window->spec.v.dtype == OCT_DTYPE_V4);
    *launch = (oct__dev_launch){ .kernel = has_v4 ? "kv_write_v4" : "kv_write", .threads = threads };
    oct__dev_grid(args->n_tokens > 0 ? (uint64_t)args->n_tokens * params->parts : 1, launch);
    return args->n_tokens > 0;
}

/* ---- attention ----------------------------------------------------------------------------------------------------------------- */

static void cut_heads(const oct_attn_spec *spec, uint32_t tile_vectors, oct__dev_attn_shape *shape)
{
    const uint32_t group = spec->heads_q / spec->kv.heads;
    shape->tile_vectors = tile_vectors;
    shape->n_cuts = (group + tile_vectors - 1) / tile_vectors;
    shape->tile_rows = tile_vectors / ((group + shape->n_cuts - 1) / shape->n_cuts);
    shape->n_head_tiles = spec->kv.heads * shape->n_cuts;
}

static uint32_t shared_bytes_of(const oct_attn_spec *spec, uint32_t tile_vectors)
{
    return oct__attn_shared_of(spec->kv.dim_k, spec->kv.k.dtype, spec->kv.dim_v, tile_vectors).bytes;
}

/* Of a name's attn_*_mma_<bits of K>_<bits of V>_<dims>: 0, or what its tiles hold. */
static uint32_t mma_form(const oct__dev_chip *chip, const char *kernel, uint32_t *shared_bytes)
{
    const uint32_t is_extend = strncmp(kernel, "attn_extend_mma_", 16) == 0;
    if (!is_extend && strncmp(kernel, "attn_decode_mma_", 16) != 0) {
        return 0;
    }
    const char *at = kernel + 16;
    const uint32_t k_size = *at == '8' ? 1 : 2, v_size = at[k_size + 1] == '8' ? 1 : 2, dim = at[k_size + v_size + 2] == '1' ? 128 : 256;
    *shared_bytes = oct__mma_shared_of(chip->warp, k_size, v_size, dim, is_extend).bytes;
    return oct__mma_vectors(chip->warp, dim, is_extend);
}

/* The matrix units' kernels hold formats of 8 and 16 bits and dims of up to 256; an extend's, K and V of one size. */
static const char *mma_kernel(const oct__dev_chip *chip, const oct_attn_spec *spec, uint32_t op)
{
    static const char *const names[OCT__DEV_OPS][2][2][2] = {
        { { { "attn_decode_mma_8_8_128", "attn_decode_mma_8_8_256" }, { "attn_decode_mma_8_16_128", "attn_decode_mma_8_16_256" } },
          { { "attn_decode_mma_16_8_128", "attn_decode_mma_16_8_256" }, { "attn_decode_mma_16_16_128", "attn_decode_mma_16_16_256" } } },
        { { { "attn_extend_mma_8_8_128", "attn_extend_mma_8_8_256" }, { NULL, NULL } },
          { { NULL, NULL }, { "attn_extend_mma_16_16_128", "attn_extend_mma_16_16_256" } } },
    };
    const uint32_t dim = spec->kv.dim_k > spec->kv.dim_v ? spec->kv.dim_k : spec->kv.dim_v;
    if (!chip->has_mma || dim > 256 || spec->kv.k.dtype == OCT_DTYPE_F32 || spec->kv.v.dtype == OCT_DTYPE_F32 || spec->kv.v.dtype == OCT_DTYPE_V4) {
        return NULL;
    }
    return names[op][spec->kv.k.dtype < OCT_DTYPE_E4M3FN][spec->kv.v.dtype < OCT_DTYPE_E4M3FN][dim > 128];
}

bool oct__dev_attn_shape_for(const oct__dev_chip *chip, const oct_attn_spec *spec, const char *kernel, uint32_t tile_vectors, oct__dev_attn_shape *shape)
{
    memset(shape, 0, sizeof *shape);
    shape->kernel = kernel;
    const uint32_t mma_vectors = mma_form(chip, kernel, &shape->shared_bytes);
    if (oct__dev_is_sm90a(kernel)) {
        shape->kernel = oct__dev_sm90a_form(spec, kernel, &tile_vectors);
        cut_heads(spec, tile_vectors, shape);
        oct__dev_sm90a_shape(chip, spec, shape);
        return shape->shared_bytes <= chip->shared_limit_bytes;
    }
    if (oct__dev_is_sm90a_extend(kernel)) {
        cut_heads(spec, OCT__EXTEND_VECTORS, shape);
        oct__dev_sm90a_extend_shape(kernel, shape);
        return shape->shared_bytes <= chip->shared_limit_bytes;
    }
    if (mma_vectors > 0) {
        shape->threads = OCT__MMA_LANES;
        tile_vectors = mma_vectors;
    } else if (strncmp(kernel, "attn_decode_", 12) == 0) {
        shape->threads = 128;
        shape->shared_bytes = shared_bytes_of(spec, tile_vectors);
    } else {
        /* Lanes hold four dims of V for 16 vectors: a quarter of the block's 256 lanes reaches 256 dims, half of them 512. */
        tile_vectors = spec->kv.dim_v <= 256 || tile_vectors < 32 ? tile_vectors : 32;
        while (tile_vectors > 16 && shared_bytes_of(spec, tile_vectors) > chip->shared_limit_bytes) {
            tile_vectors /= 2;
        }
        shape->threads = 256;
        shape->shared_bytes = shared_bytes_of(spec, tile_vectors);
    }
    cut_heads(spec, tile_vectors, shape);
    return shape->shared_bytes <= chip->shared_limit_bytes;
}

bool oct__dev_attn_shape_of(const oct__dev_chip *chip, const oct_attn_spec *spec, uint32_t op, oct__dev_attn_shape *shape)
{
    const uint32_t group = spec->heads_q / spec->kv.heads;
    uint32_t vectors;
    const char *why, *sm90a = chip->has_sm90a && op == OCT__DEV_DECODE ? oct__dev_sm90a_kernel(spec, &vectors, &why) : NULL;
    if (sm90a != NULL && oct__dev_attn_shape_for(chip, spec, sm90a, vectors, shape)) {
        return true;
    }
    const char *extend = chip->has_sm90a && op == OCT__DEV_EXTEND ? oct__dev_sm90a_extend_kernel(spec, &why) : NULL;
    if (extend != NULL && oct__dev_attn_shape_for(chip, spec, extend, 0, shape)) {
        return true;
    }
    const char *mma = mma_kernel(chip, spec, op);
    if (mma != NULL && oct__dev_attn_shape_for(chip, spec, mma, 0, shape)) {
        return true;
    }
    const bool is_v4 = spec->kv.v.dtype == OCT_DTYPE_V4;
    if (op != OCT__DEV_DECODE) {
        return oct__dev_attn_shape_for(chip, spec, is_v4 ? "attn_extend_v4" : "attn_extend", 64, shape);
    }
    if (is_v4) {
        return oct__dev_attn_shape_for(chip, spec, group <= 4 ? "attn_decode_v4_4" : "attn_decode_v4_8", group <= 4 ? 4 : 8, shape);
    }
    /* One row's heads decide; a few rows (speculation) share larger tiles only as far as the heads do. */
    const uint32_t tile_vectors = group <= 4 ? 4 : group <= 8 ? 8 : 16;
    return oct__dev_attn_shape_for(chip, spec, tile_vectors == 4 ? "attn_decode_4" : tile_vectors == 8 ? "attn_decode_8" : "attn_decode_16", tile_vectors,
                                   shape);
}

static uint32_t fixed_keys(const oct_attn_spec *spec, uint32_t op)
{
    if (spec->split_tokens > 0) {
        return spec->split_tokens < NEVER_SPLIT ? spec->split_tokens : NEVER_SPLIT;
    }
    return !spec->deterministic ? 0 : op == OCT__DEV_DECODE ? FIXED_DECODE_KEYS : FIXED_EXTEND_KEYS;
}

/* Splits of deterministic mode are chosen by their row's length (plan_step.h). */
static bool has_even_splits(const oct_attn_spec *spec, uint32_t op)
{
    return spec->deterministic && spec->split_tokens == 0 && op == OCT__DEV_DECODE;
}

static uint32_t at_most_u32(uint64_t n)
{
    return n < INT32_MAX ? (uint32_t)n : INT32_MAX;
}

static size_t place(size_t *at, uint64_t bytes)
{
    const size_t here = *at;
    *at = (size_t)((here + bytes + ALIGN - 1) / ALIGN * ALIGN);
    return here;
}

static uint32_t wanted_blocks(const oct__dev_chip *chip, const oct__dev_attn_shape *shape)
{
    return oct__dev_is_sm90a_extend(shape->kernel) ? chip->n_units * WANTED_PER_TEN_UNITS / 10 : chip->n_units * WANTED_PER_UNIT;
}

/* Tasks: every tile has one, and splits add theirs. With chosen splits of S keys, W keys in all and n = W / S wanted tasks, a tile is split
 * only when its span s is longer than S, and then into at most s / S + 2 < 3 s / S: fewer than 3 n in all. */
static void size_op(const oct__dev_chip *chip, const oct_attn_spec *spec, const oct__dev_step_limits *limits, uint32_t op, oct__dev_workspace *w)
{
    const oct__dev_attn_shape *shape = &w->shape[op];
    const uint64_t rows = (uint64_t)limits->n_rows, keys = (uint64_t)limits->n_keys;
    uint64_t tiles = rows / shape->tile_rows + limits->n_sequences;
    tiles = tiles < rows ? tiles : rows;
    const uint32_t fixed = fixed_keys(spec, op);
    const uint64_t wanted = wanted_blocks(chip, shape) / shape->n_head_tiles + 1;
    uint64_t partials = 3 * wanted;
    if (fixed > 0) {
        partials = keys > fixed ? tiles * (keys / fixed + 2) : 0;
        partials += shape->blocks_a_unit > 0 && has_even_splits(spec, op) ? partials / 3 + tiles : 0;   /* 3 n / 4 of them may become n, and n keys are not a whole number of units */
    } else if (op == OCT__DEV_DECODE && keys > SPLIT_KEYS_MAX) {
        /* Long sequences are cut even where there is work enough; where they are too many, plan_step makes the splits longer. */
        const uint64_t splits = keys / SPLIT_KEYS_MAX + 2, n = tiles < wanted ? tiles : wanted;
        partials = 3 * wanted > n * splits ? 3 * wanted : n * splits;
    }
    if (shape->blocks_a_unit > 0) {
        oct__dev_sm90a_parts(chip, spec, shape, &w->n_parts[op], &w->heads_a_block[op]);
        partials = fixed > 0 || partials > 2 * (uint64_t)w->n_parts[op] ? partials : 2 * (uint64_t)w->n_parts[op];   /* an end cuts a row in two */
    }
    w->max_partials[op] = at_most_u32(partials);
    w->max_groups[op] = at_most_u32(partials / 2 < tiles ? partials / 2 : tiles);
    w->max_tasks[op] = at_most_u32(tiles + partials);
    /* Hopper's extend takes a multiprocessor for itself, so more blocks would come in rounds. */
    const uint64_t blocks = (uint64_t)w->max_tasks[op] * shape->n_head_tiles;
    const uint64_t most = (uint64_t)chip->n_units * (oct__dev_is_sm90a_extend(shape->kernel) ? 1 : BLOCKS_PER_UNIT);
    w->n_blocks[op] = (uint32_t)(blocks == 0 ? 1 : blocks < most ? blocks : most);
    if (w->n_parts[op] > 0) {
        w->n_blocks[op] = w->n_parts[op] * (shape->n_head_tiles / w->heads_a_block[op]);
    }
}

bool oct__dev_workspace_of(const oct__dev_chip *chip, const oct_attn_spec *spec, const oct__dev_step_limits *limits, oct__dev_workspace *workspace)
{
    oct__dev_attn_shape shapes[OCT__DEV_OPS];
    for (uint32_t op = 0; op < OCT__DEV_OPS; op++) {
        if (!oct__dev_attn_shape_of(chip, spec, op, &shapes[op])) {
            return false;
        }
    }
    oct__dev_workspace_for(chip, spec, limits, shapes, workspace);
    return true;
}

void oct__dev_workspace_for(const oct__dev_chip *chip, const oct_attn_spec *spec, const oct__dev_step_limits *limits,
                            const oct__dev_attn_shape shapes[OCT__DEV_OPS], oct__dev_workspace *workspace)
{
    oct__dev_workspace *w = workspace;
    size_t at = 0;
    memset(w, 0, sizeof *w);
    for (uint32_t op = 0; op < OCT__DEV_OPS; op++) {
        w->shape[op] = shapes[op];
        size_op(chip, spec, limits, op, w);
    }
    w->plan_at = place(&at, sizeof(oct__dev_plan));
    for (uint32_t op = 0; op < OCT__DEV_OPS; op++) {
        w->tasks_at[op] = place(&at, w->max_tasks[op] * (uint64_t)sizeof(oct__dev_task));
        w->groups_at[op] = place(&at, w->max_groups[op] * (uint64_t)sizeof(oct__dev_group));
        w->parts_at[op] = place(&at, w->n_parts[op] > 0 ? (w->n_parts[op] + 1) * (uint64_t)sizeof(uint32_t) : 0);
    }
    for (uint32_t op = 0; op < OCT__DEV_OPS; op++) {
        w->partials_at[op] = place(&at, (uint64_t)w->max_partials[op] * w->shape[op].n_head_tiles *
                                            oct__dev_state_floats(w->shape[op].tile_vectors, spec->kv.dim_v) * sizeof(float));
    }
    w->bytes = at;
}

void oct__dev_pack_batch(const oct_attn_spec *spec, const oct_attn_batch *batch, oct__dev_batch *packed)
{
    memset(packed, 0, sizeof *packed);
    packed->qo_indptr = batch->qo_indptr;
    packed->block_table = batch->block_table;
    packed->seq_lens = batch->seq_lens;
    packed->kv_indptr = batch->kv_indptr;
    packed->kv_indices = batch->kv_indices;
    packed->kv_last_page_len = batch->kv_last_page_len;
    packed->max_pages = batch->max_pages;
    packed->n_sequences = batch->n_sequences;
    packed->page_size = spec->kv.page_size;
}

static uint32_t window_of(const oct_attn_spec *spec)
{
    return spec->window_tokens < INT32_MAX ? spec->window_tokens : INT32_MAX;
}

/* As many rows as two of decode's tiles hold; more of them share the keys' bytes better in an extend's. */
static int32_t decode_rows_max(const oct_attn_spec *spec, const oct__dev_workspace *w)
{
    const uint32_t group = spec->heads_q / spec->kv.heads, rows = 2 * w->shape[OCT__DEV_DECODE].tile_vectors / group;
    return rows < 1 ? 1 : rows < DECODE_ROWS_MAX ? (int32_t)rows : DECODE_ROWS_MAX;
}

bool oct__dev_may_have(const oct_attn_spec *spec, const oct__dev_workspace *workspace, uint32_t op)
{
    return op == OCT__DEV_DECODE || spec->max_rows > decode_rows_max(spec, workspace);
}

void oct__dev_pack_plan(const oct__dev_chip *chip, const oct_attn_spec *spec, const oct__dev_batch *batch, const oct__dev_workspace *workspace,
                        void *memory, oct__plan_params *params, oct__dev_launch *launch)
{
    const oct__dev_workspace *w = workspace;
    unsigned char *at = memory;
    memset(params, 0, sizeof *params);
    params->batch = *batch;
    params->plan = (oct__dev_plan *)(void *)(at + w->plan_at);
    params->causal = spec->causal;
    params->window = window_of(spec);
    params->decode_rows_max = decode_rows_max(spec, w);
    for (uint32_t op = 0; op < OCT__DEV_OPS; op++) {
        oct__dev_plan_op *o = &params->op[op];
        o->tasks = (oct__dev_task *)(void *)(at + w->tasks_at[op]);
        o->groups = (oct__dev_group *)(void *)(at + w->groups_at[op]);
        o->max_tasks = w->max_tasks[op];
        o->max_groups = w->max_groups[op];
        o->max_partials = w->max_partials[op];
        o->tile_rows = w->shape[op].tile_rows;
        o->n_head_tiles = w->shape[op].n_head_tiles;
        o->split_keys = fixed_keys(spec, op);
        o->whole_from_tiles = op == OCT__DEV_EXTEND && spec->split_tokens == 0 ? FIXED_EXTEND_TILES : 0;
        o->min_split_keys = SPLIT_KEYS_MIN;
        o->max_split_keys = op == OCT__DEV_DECODE ? SPLIT_KEYS_MAX : NEVER_SPLIT;
        o->target_blocks = wanted_blocks(chip, &w->shape[op]);
        if (w->n_parts[op] > 0) {
            o->n_parts = w->n_parts[op];
            o->part_keys_min = PART_KEYS_MIN;
            o->task_units = PART_TASK_UNITS;
            o->even_splits = has_even_splits(spec, op) ? w->n_parts[op] : 0;
            o->parts = (uint32_t *)(void *)(at + w->parts_at[op]);
        }
    }
    *launch = (oct__dev_launch){ .kernel = "plan_step", .grid_x = 1, .grid_y = 1, .threads = 256 };
}

void oct__dev_pack_attn(const oct_attn_spec *spec, const oct__dev_batch *batch, const oct_attn_args *args, const oct__dev_workspace *workspace,
                        void *memory, uint32_t op, oct__attn_params *params, oct__dev_launch *attend, oct__dev_launch *finish)
{
    const oct__dev_workspace *w = workspace;
    const oct__dev_attn_shape *shape = &w->shape[op];
    unsigned char *at = memory;
    oct__attn_params *p = params;
    memset(p, 0, sizeof *p);
    oct__dev_pack_layer(args->layer, &p->layer);
    p->batch = *batch;
    p->plan = (const oct__dev_plan *)(void *)(at + w->plan_at);
    p->tasks = (const oct__dev_task *)(void *)(at + w->tasks_at[op]);
    p->groups = (const oct__dev_group *)(void *)(at + w->groups_at[op]);
    p->partials = (float *)(void *)(at + w->partials_at[op]);
    p->q = args->q;
    p->out = args->out;
    p->lse = args->lse;
    p->q_scale = args->q_scale;
    p->out_scale = args->out_scale;
    p->sink = spec->has_sink ? args->sink : NULL;
    p->mask = spec->has_mask ? args->mask : NULL;
    p->q_row_stride = args->q_row_stride;
    p->q_head_stride = args->q_head_stride;
    p->out_row_stride = args->out_row_stride;
    p->out_head_stride = args->out_head_stride;
    p->lse_row_stride = args->lse_row_stride;
    p->lse_head_stride = args->lse_head_stride;
    p->mask_row_stride = args->mask_row_stride;
    p->sm_scale = spec->sm_scale;
    p->softcap = spec->softcap;
    p->q_dtype = spec->q_dtype;
    p->out_dtype = spec->out_dtype;
    p->causal = spec->causal;
    p->window = window_of(spec);
    p->op = op;
    p->group = spec->heads_q / spec->kv.heads;
    p->n_cuts = shape->n_cuts;
    p->n_head_tiles = shape->n_head_tiles;
    p->tile_vectors = shape->tile_vectors;
    p->total_keys = spec->products == OCT_PRODUCTS_8BIT_PRECISE ? OCT__EXTEND8_TOTAL_KEYS_PRECISE : OCT__EXTEND8_TOTAL_KEYS;
    *attend = (oct__dev_launch){ .kernel = shape->kernel, .threads = shape->threads, .shared_bytes = shape->shared_bytes };
    oct__dev_grid(w->n_blocks[op], attend);
    *finish = (oct__dev_launch){ .kernel = "attn_finish", .threads = 128 };
    uint64_t groups = (uint64_t)w->max_groups[op] * shape->n_head_tiles;
    if (w->n_parts[op] > 0) {
        p->parts = (const uint32_t *)(const void *)(at + w->parts_at[op]);
        p->n_parts = w->n_parts[op];
        p->heads_a_block = w->heads_a_block[op];
        attend->is_early = 1;
    }
    uint64_t most = w->n_parts[op] > 0 ? (uint64_t)w->n_blocks[op] * 2 : w->n_blocks[op];
    if (w->n_parts[op] > 0 || oct__dev_is_sm90a_extend(shape->kernel)) {
        finish->kernel = "attn_finish_sm90a";   /* a block a row and head */
        finish->threads = OCT__FINISH_SM90A_LANES;
        finish->is_early = 1;
        groups *= shape->tile_vectors;
        most = w->n_parts[op] > 0 ? most : most * FINISHES_PER_BLOCK;
    }
    oct__dev_grid(groups == 0 ? 1 : groups < most ? groups : most, finish);
    oct__dev_sm90a_make_plain(p, attend, finish);
}

/* ---- merge ----------------------------------------------------------------------------------------------------------------------- */

bool oct__dev_pack_merge(const oct__dev_chip *chip, const oct_attn_merge_args *args, oct__merge_params *params, oct__dev_launch *launch)
{
    memset(params, 0, sizeof *params);
    params->out = args->out;
    params->lse = args->lse;
    params->merged = args->merged;
    params->lse_merged = args->lse_merged;
    params->rows = args->rows;
    params->out_part_stride = args->out_part_stride;
    params->out_row_stride = args->out_row_stride;
    params->out_head_stride = args->out_head_stride;
    params->lse_part_stride = args->lse_part_stride;
    params->lse_row_stride = args->lse_row_stride;
    params->lse_head_stride = args->lse_head_stride;
    params->merged_row_stride = args->merged_row_stride;
    params->merged_head_stride = args->merged_head_stride;
    params->lse_merged_row_stride = args->lse_merged_row_stride;
    params->lse_merged_head_stride = args->lse_merged_head_stride;
    params->n_parts = args->n_parts;
    params->heads = args->heads;
    params->dim = args->dim;
    const uint64_t vectors = args->rows > 0 ? (uint64_t)args->rows * args->heads : 0, warps = 128 / chip->warp;
    const uint64_t blocks = (vectors + warps - 1) / warps, most = (uint64_t)chip->n_units * BLOCKS_PER_UNIT;
    *launch = (oct__dev_launch){ .kernel = "attn_merge", .threads = 128 };
    oct__dev_grid(blocks == 0 ? 1 : blocks < most ? blocks : most, launch);
    return vectors > 0;
}

/* ---- measuring -------------------------------------------------------------------------------------------------------------------- */

enum { MEASURE_BLOCKS_A_UNIT = 8, MEASURE_LANES = 256 };

uint64_t oct__dev_measure_words(const oct__dev_chip *chip)
{
    return (uint64_t)chip->n_units * MEASURE_BLOCKS_A_UNIT * MEASURE_LANES;
}

void oct__dev_pack_measure(const oct__dev_chip *chip, const void *from, void *to, uint32_t *left, uint64_t steps, bool one_block, oct__measure_params *params,
                           oct__dev_launch *launch)
{
    const uint64_t most = one_block ? 1 : (uint64_t)chip->n_units * MEASURE_BLOCKS_A_UNIT;
    *params = (oct__measure_params){ .from = from, .to = to, .left = left, .steps = steps };
    *launch = (oct__dev_launch){ .kernel = "measure", .threads = MEASURE_LANES };
    oct__dev_grid(steps < most ? steps : most, launch);
}
