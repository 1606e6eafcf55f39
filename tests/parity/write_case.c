/* write_case.c: makes a write's memory and judges what a write leaves in it, byte by byte. */
#include "parity/write_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SOURCE_ROWS = 1, SOURCE_HEADS = 2, PAGES = 4, TOKENS = 8 };
enum { MEMORY_K, MEMORY_V, MEMORY_K_DYNAMIC, MEMORY_V_DYNAMIC, MEMORY_K_STATIC, MEMORY_V_STATIC };

static guard_side side_of(const write_case *c) { return c->shape.guard_start ? GUARD_START : GUARD_END; }

/* ---- pools ----------------------------------------------------------------------------------------------------- */

static int make_tensor(write_case *c, write_pool *pool, oracle_which which, rng *r)
{
    const write_shape *s = &c->shape;
    oct_kv_layer *l = &pool->layer;
    const int64_t dim = oracle_dim(l, which), heads = l->spec.heads, tokens = l->spec.page_size;
    const uint32_t dtype = oracle_format(l, which)->dtype;
    const int64_t unit = dtype == OCT_DTYPE_V4 ? 32 : 1;   /* elements that can be between two vectors */
    const int64_t inner = unit * (s->strides & TOKENS ? rng_between(r, 1, 9) : 0), outer = unit * (s->strides & TOKENS ? rng_between(r, 0, 7) : 0);
    int64_t token = 0, head, extent;
    if (l->spec.layout == OCT_LAYOUT_NHD) {
        head = dim + inner;
        token = heads * head + outer;
        extent = (tokens - 1) * token + (heads - 1) * head + dim;
    } else if (l->spec.layout == OCT_LAYOUT_HND) {
        token = dim + inner;
        head = tokens * token + outer;
        extent = (tokens - 1) * token + (heads - 1) * head + dim;
    } else {
        head = tokens * dim + inner;
        extent = (heads - 1) * head + tokens * dim;
    }
    const int64_t page = extent + unit * (s->strides & PAGES ? rng_between(r, 1, 40) : 0);
    guard *g = &pool->memory[which == ORACLE_K ? MEMORY_K : MEMORY_V];
    if (guard_make(g, oracle_bytes(dtype, unit * s->base_offset + (l->n_pages - 1) * page + extent), side_of(c)) != 0)
        return -1;
    void *base = (unsigned char *)g->at + oracle_bytes(dtype, unit * s->base_offset);
    if (which == ORACLE_K)
        l->k = base, l->k_page_stride = page, l->k_token_stride = token, l->k_head_stride = head;
    else
        l->v = base, l->v_page_stride = page, l->v_token_stride = token, l->v_head_stride = head;
    return 0;
}

static int make_scales(write_case *c, write_pool *pool, oracle_which which, rng *r)
{
    oct_kv_layer *l = &pool->layer;
    const oct_kv_format *format = oracle_format(l, which);
    int64_t n = 0;
    switch (format->scale_mode) {
    case OCT_SCALE_TENSOR: case OCT_SCALE_LAYER: n = 1; break;
    case OCT_SCALE_LAYER_HEAD: n = l->spec.heads; break;
    case OCT_SCALE_CHANNEL: n = (int64_t)l->spec.heads * oracle_dim(l, which); break;
    default: break;
    }
    if (n > 0) {
        guard *g = &pool->memory[which == ORACLE_K ? MEMORY_K_STATIC : MEMORY_V_STATIC];
        /* Ties need quotients without rounding, so powers of two; else any number, now and then the smallest there is. */
        const double common = c->shape.data == WRITE_TIES ? 0.25 : rng_one_in(r, 20) ? 1e-44 : exp2(-6.0 + 9.0 * rng_unit(r));
        if (guard_make(g, (size_t)n * sizeof(float), side_of(c)) != 0)
            return -1;
        for (int64_t i = 0; i < n; i++)
            ((float *)g->at)[i] = (float)(c->shape.data == WRITE_TIES ? common : common * (1.0 + rng_unit(r)));
        if (which == ORACLE_K)
            l->k_scale = g->at;
        else
            l->v_scale = g->at;
    }
    if (format->scale_mode == OCT_SCALE_TOKEN_HEAD) {
        guard *g = &pool->memory[which == ORACLE_K ? MEMORY_K_DYNAMIC : MEMORY_V_DYNAMIC];
        const int64_t page = (int64_t)l->spec.page_size * l->spec.heads + (c->shape.strides & PAGES ? rng_between(r, 1, 5) : 0);
        const int64_t elements = (l->n_pages - 1) * page + (int64_t)l->spec.page_size * l->spec.heads;
        if (guard_make(g, (size_t)elements * oracle_size_bytes(format->scale_dtype), side_of(c)) != 0)
            return -1;
        if (which == ORACLE_K)
            l->k_token_scale = g->at, l->k_scale_page_stride = page;
        else
            l->v_token_scale = g->at, l->v_scale_page_stride = page;
    }
    return 0;
}

/* Every valid slot once at most, in any order. */
static int make_slots(write_case *c, write_pool *pool, rng *r)
{
    const int64_t capacity = pool->layer.n_pages * pool->layer.spec.page_size, n = c->shape.n_tokens;
    int32_t *all = malloc((size_t)capacity * sizeof *all);
    if (all == NULL || guard_make(&pool->slots_guard, (size_t)n * sizeof *all, GUARD_END) != 0) {
        free(all);
        return -1;
    }
    for (int64_t i = 0; i < capacity; i++) {
        const int64_t j = rng_below(r, i + 1);
        all[i] = all[j];
        all[j] = (int32_t)i;
    }
    pool->slots = pool->slots_guard.at;
    for (int64_t i = 0; i < n; i++) {
        pool->slots[i] = i < capacity ? all[i] : -1;
        if (c->shape.slots >= 1 && rng_one_in(r, 5))
            pool->slots[i] = rng_one_in(r, 3) ? INT32_MIN : (int32_t)-rng_between(r, 1, 40);
        if (c->shape.slots == 2 && rng_one_in(r, 5))
            pool->slots[i] = rng_one_in(r, 3) ? INT32_MAX : (int32_t)(capacity + rng_below(r, 40));
    }
    free(all);
    return 0;
}

static int make_pool(write_case *c, write_pool *pool, rng *r)
{
    if (oct_kv_spec_check(&pool->layer.spec, NULL) != OCT_OK)
        return 1;
    pool->layer.struct_size = sizeof pool->layer;
    for (int which = 0; which < 2; which++)
        if (make_tensor(c, pool, (oracle_which)which, r) != 0 || make_scales(c, pool, (oracle_which)which, r) != 0)
            return -1;
    for (int i = 0; i < 4; i++) {
        guard *g = &pool->memory[i];
        for (size_t j = 0; j < g->size_bytes; j++)   /* bytes that a stray write is unlikely to repeat */
            ((unsigned char *)g->at)[j] = c->shape.poison != 0 ? (unsigned char)rng_next(r) : 0;
        pool->before[i] = malloc(g->size_bytes + 1);
        pool->first[i] = malloc(g->size_bytes + 1);
        if (pool->before[i] == NULL || pool->first[i] == NULL)
            return -1;
        if (g->size_bytes > 0)
            memcpy(pool->before[i], g->at, g->size_bytes);
    }
    return make_slots(c, pool, r);
}

/* ---- sources ----------------------------------------------------------------------------------------------------- */

static double special_value(rng *r, int calm)
{
    static const double values[] = { 0.0, -0.0, 0x1p-9, 0x1p-10, -0x1p-10, 447, 448, 449, 464, -464, 465, 240, 247, 248, 249, 57344,
                                     61439, 61440, -61441, 127, 127.49, 127.5, -127.5, 128, 1e6, -1e6, 1e-30, 1e-40, 65504, 65520, 3e4, 1e30 };
    if (!calm && rng_one_in(r, 30))
        return rng_one_in(r, 3) ? (double)NAN : rng_one_in(r, 2) ? (double)INFINITY : -(double)INFINITY;
    return RNG_PICK(r, values);
}

static double source_value(const write_case *c, oracle_which which, rng *r, int calm, double scale)
{
    const uint32_t stored = oracle_format(&c->pool[0].layer, which)->dtype, dtype = stored == OCT_DTYPE_V4 ? (uint32_t)OCT_DTYPE_I8 : stored;
    const double spread = dtype == OCT_DTYPE_I8 ? 40.0 : oracle_is_8bit(dtype) ? 100.0 : 1.0;
    switch (c->shape.data) {
    case WRITE_SPECIAL: return special_value(r, calm) * (rng_one_in(r, 2) ? 1.0 : scale);
    case WRITE_TIES: {
        if (dtype == OCT_DTYPE_F32 || oracle_max(dtype) > 1e9)
            return rng_normal(r);
        double low, high;
        const uint32_t last = oracle_encode(dtype, oracle_max(dtype));
        oracle_cell(dtype, (uint32_t)rng_below(r, dtype == OCT_DTYPE_I8 ? 127 : last), &low, &high);
        return (rng_one_in(r, 2) ? high : -high) * scale * (rng_one_in(r, 4) ? 1.0 + 0x1p-23 : 1.0);
    }
    case WRITE_ZERO: return rng_one_in(r, 2) ? 0.0 : -0.0;
    case WRITE_TINY: return rng_normal(r) * exp2(-(double)rng_between(r, 10, 148));
    case WRITE_LARGE: return rng_normal(r) * exp2((double)rng_between(r, 5, 60));
    default: return rng_normal(r) * spread * scale;
    }
}

static int make_source(write_case *c, oracle_which which, rng *r)
{
    const write_shape *s = &c->shape;
    const oct_kv_layer *l = &c->pool[0].layer;
    const int64_t dim = oracle_dim(l, which), head = dim + (s->strides & SOURCE_HEADS ? rng_between(r, 1, 9) : 0);
    const int64_t row = s->heads * head + (s->strides & SOURCE_ROWS ? rng_between(r, 1, 9) : 0);
    const int64_t n = s->n_tokens, elements = n == 0 ? 0 : s->source_offset + (n - 1) * row + (s->heads - 1) * head + dim;
    guard *g = which == ORACLE_K ? &c->k : &c->v;
    if (guard_make(g, (size_t)elements * oracle_size_bytes((uint32_t)s->src_dtype), side_of(c)) != 0)
        return -1;
    memset(g->at, 0xFF, g->size_bytes);
    unsigned char *base = (unsigned char *)g->at + (n == 0 ? 0 : s->source_offset * oracle_size_bytes((uint32_t)s->src_dtype));
    const float *scale = which == ORACLE_K ? l->k_scale : l->v_scale;
    for (int64_t t = 0; t < n; t++)
        for (int64_t h = 0; h < s->heads; h++) {
            const int calm = rng_one_in(r, 2);   /* a vector without NaN and infinities, which swallow everything where it is rotated */
            for (int64_t d = 0; d < dim; d++) {
                const double x = source_value(c, which, r, calm, scale != NULL ? (double)scale[0] : c->shape.data == WRITE_TIES ? 0.25 : 1.0);
                oracle_put_code((uint32_t)s->src_dtype, base, t * row + h * head + d, oracle_encode((uint32_t)s->src_dtype, x));
            }
        }
    if (which == ORACLE_K)
        c->args.k = base, c->args.k_token_stride = row, c->args.k_head_stride = head;
    else
        c->args.v = base, c->args.v_token_stride = row, c->args.v_head_stride = head;
    return 0;
}

static int make_rope(write_case *c, rng *r)
{
    static const float bases[] = { 10000.0f, 1000000.0f, 500000.0f };
    const write_shape *s = &c->shape;
    if (s->rope == 0)
        return 0;
    if (guard_make(&c->positions, (size_t)s->n_tokens * sizeof(int32_t), GUARD_END) != 0 ||
        (s->rope_factors && guard_make(&c->factors, (size_t)(s->rope_dims / 2) * sizeof(float), GUARD_END) != 0))
        return -1;
    for (int64_t i = 0; i < s->n_tokens; i++)
        ((int32_t *)c->positions.at)[i] = rng_one_in(r, 6) ? 0 : (int32_t)rng_below(r, s->position_max);
    for (int64_t i = 0; s->rope_factors && i < s->rope_dims / 2; i++)
        ((float *)c->factors.at)[i] = (float)(1.0 + 7.0 * rng_unit(r));
    c->rope = (oct_rope){ (uint32_t)sizeof c->rope, (uint32_t)(s->rope - 1), (uint32_t)s->rope_dims, RNG_PICK(r, bases),
                          rng_one_in(r, 3) ? 0.25f : 1.0f, s->rope_factors ? c->factors.at : NULL };
    c->args.rope = &c->rope;
    c->args.positions = c->positions.at;
    return 0;
}

static void fill_specs(write_case *c)
{
    const write_shape *s = &c->shape;
    const oct_kv_format k = { (uint32_t)s->k_dtype, (uint32_t)s->k_scale_mode, (uint32_t)s->k_scale_dtype, (uint32_t)s->k_rotated };
    const oct_kv_format v = { (uint32_t)s->v_dtype, (uint32_t)s->v_scale_mode, (uint32_t)s->v_scale_dtype, (uint32_t)s->v_rotated };
    const uint32_t size = sizeof(oct_kv_spec), heads = (uint32_t)s->heads, dim_k = (uint32_t)s->dim_k, dim_v = (uint32_t)s->dim_v;
    const uint32_t other = s->layout == OCT_LAYOUT_NHD ? OCT_LAYOUT_HND : OCT_LAYOUT_NHD;
    c->pool[0].layer.spec = (oct_kv_spec){ size, (uint32_t)s->layout, heads, dim_k, dim_v, (uint32_t)s->page_size, k, v };
    c->pool[0].layer.n_pages = s->n_pages;
    c->n_pools = s->window ? 2 : 1;
    /* The second pool keeps K as the first keeps V and the other way round: nothing may be taken over from the first. */
    c->pool[1].layer.spec = (oct_kv_spec){ size, other, heads, dim_k, dim_v, 7, v, k };
    if (v.dtype == OCT_DTYPE_V4) {   /* which K can't have */
        c->pool[1].layer.spec.k = (oct_kv_format){ OCT_DTYPE_BF16, OCT_SCALE_NONE, 0, 0 };
        c->pool[1].layer.spec.v = v;
        c->pool[1].layer.spec.v.rotated = 1 - v.rotated;
        if (s->window > 1) /* one of them keeps V as the first keeps K */
            c->pool[s->window == 2].layer.spec.v = k;
    }
    c->pool[1].layer.n_pages = 5;
}

int write_make(write_case *c, const write_shape *shape)
{
    memset(c, 0, sizeof *c);
    oracle_init();
    c->shape = *shape;
    rng r = rng_make((uint64_t)shape->seed);
    fill_specs(c);
    int bad = 0;
    for (int i = 0; i < c->n_pools && bad == 0; i++)
        bad = make_pool(c, &c->pool[i], &r);
    if (bad == 0 && (make_source(c, ORACLE_K, &r) != 0 || make_source(c, ORACLE_V, &r) != 0 || make_rope(c, &r) != 0))
        bad = -1;
    if (bad != 0) {
        write_drop(c);
        return bad;
    }
    c->args.struct_size = sizeof c->args;
    c->args.layer = &c->pool[0].layer;
    c->args.slots = c->pool[0].slots;
    if (shape->window) {
        c->args.layer_window = &c->pool[1].layer;
        c->args.slots_window = c->pool[1].slots;
    }
    c->args.n_tokens = shape->n_tokens;
    c->args.src_dtype = (uint32_t)shape->src_dtype;
    if (shape->counts) {
        c->args.k_counts = c->k_counts;
        c->args.v_counts = c->v_counts;
        c->args.n_counts = 8;
    }
    return 0;
}

void write_drop(write_case *c)
{
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < 6; j++)
            guard_drop(&c->pool[i].memory[j]);
        for (int j = 0; j < 4; j++) {
            free(c->pool[i].before[j]);
            free(c->pool[i].first[j]);
        }
        guard_drop(&c->pool[i].slots_guard);
    }
    guard_drop(&c->k);
    guard_drop(&c->v);
    guard_drop(&c->positions);
    guard_drop(&c->factors);
    memset(c, 0, sizeof *c);
}

void write_reset(write_case *c)
{
    for (int i = 0; i < c->n_pools; i++)
        for (int j = 0; j < 4; j++)
            if (c->pool[i].memory[j].size_bytes > 0)
                memcpy(c->pool[i].memory[j].at, c->pool[i].before[j], c->pool[i].memory[j].size_bytes);
    memset(c->k_counts, 0, sizeof c->k_counts);
    memset(c->v_counts, 0, sizeof c->v_counts);
}
