/* problem.c: makes a problem's memory from its shape. Everything random comes from the seed, each part from a stream of its own, so that
 * shapes that differ in poison or strides only hold the same numbers. */
#include "parity/problem.h"
#include "parity/problem_data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STRIDE_OUT = 2, STRIDE_LSE = 4, STRIDE_PAGES = 8, STRIDE_TOKENS = 16, HEAD_MAJOR = 32 };
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- batch --------------------------------------------------------------------------------------------------- */

static int make_batch(problem *p)
{
    const problem_shape *s = &p->shape;
    const int64_t n = s->n_sequences;
    int64_t needed = 0;
    rng r = problem_stream(p, STREAM_PAGES);
    p->qo_indptr = calloc((size_t)n + 1, sizeof *p->qo_indptr);
    p->kv_len = calloc((size_t)n + 1, sizeof *p->kv_len);
    p->page_at = calloc((size_t)n + 1, sizeof *p->page_at);
    if (p->qo_indptr == NULL || p->kv_len == NULL || p->page_at == NULL)
        return -1;
    for (int64_t b = 0; b < n; b++) {
        p->kv_len[b] = s->kv_len[b % s->n_lengths];
        p->qo_indptr[b + 1] = p->qo_indptr[b] + s->q_len[b % s->n_lengths];
        needed += (p->kv_len[b] + s->page_size - 1) / s->page_size;
        p->page_at[b + 1] = needed;
    }
    p->rows = p->qo_indptr[n];
    p->n_pages = needed + rng_between(&r, 1, 4);
    p->pages = malloc((size_t)(p->n_pages) * sizeof *p->pages);
    p->table_pages = malloc((size_t)(p->n_pages) * sizeof *p->table_pages);
    if (p->pages == NULL || p->table_pages == NULL)
        return -1;
    for (int64_t i = 0; i < p->n_pages; i++) {   /* shuffled: page i goes where page j was */
        const int64_t j = rng_below(&r, i + 1);
        p->pages[i] = p->pages[j];
        p->pages[j] = (int32_t)i;
    }
    for (int64_t b = 1; b < n && s->share; b++) {
        const int64_t both = p->kv_len[b] < p->kv_len[0] ? p->kv_len[b] : p->kv_len[0];
        memcpy(p->pages + p->page_at[b], p->pages, (size_t)(both / s->page_size) * sizeof *p->pages);
    }
    memcpy(p->table_pages, p->pages, (size_t)p->n_pages * sizeof *p->pages);
    for (int64_t b = 0; b < n && s->page_none && s->window > 0; b++) {
        const int64_t first = p->kv_len[b] - (p->qo_indptr[b + 1] - p->qo_indptr[b]) - s->window + 1;
        for (int64_t i = 0; (i + 1) * s->page_size <= first; i++)
            p->table_pages[p->page_at[b] + i] = OCT_PAGE_NONE;
    }
    return 0;
}

/* ---- memory -------------------------------------------------------------------------------------------------- */

static void fill_poison(guard *g, int64_t poison, rng *r)
{
    unsigned char *at = g->at;
    if (poison == POISON_RANDOM)
        for (size_t i = 0; i < g->size_bytes; i++)
            at[i] = (unsigned char)rng_next(r);
    else
        memset(at, poison == POISON_FF ? 0xFF : poison == POISON_7F ? 0x7F : 0, g->size_bytes);
}

static int make_tensor(problem *p, oracle_which which, guard *g, rng *pad, rng *poison)
{
    const problem_shape *s = &p->shape;
    const int64_t dim = oracle_dim(&p->layer, which), heads = s->heads, tokens = s->page_size;
    const uint32_t dtype = oracle_format(&p->layer, which)->dtype;
    const int64_t unit = dtype == OCT_DTYPE_V4 ? 32 : 1;   /* elements that can be between two vectors */
    const int64_t inner = unit * (s->strides & STRIDE_TOKENS ? rng_between(pad, 1, 9) : 0), outer = unit * (s->strides & STRIDE_TOKENS ? rng_between(pad, 0, 7) : 0);
    int64_t page, token, head, extent;
    if (s->layout == OCT_LAYOUT_NHD) {
        head = dim + inner;
        token = heads * head + outer;
        extent = (tokens - 1) * token + (heads - 1) * head + dim;
    } else if (s->layout == OCT_LAYOUT_HND) {
        token = dim + inner;
        head = tokens * token + outer;
        extent = (tokens - 1) * token + (heads - 1) * head + dim;
    } else {
        token = 0;
        head = tokens * dim + inner;
        extent = (heads - 1) * head + tokens * dim;
    }
    page = extent + unit * (s->strides & STRIDE_PAGES ? rng_between(pad, 1, 40) : 0);
    const int64_t elements = unit * s->base_offset + (p->n_pages - 1) * page + extent;
    if (guard_make(g, oracle_bytes(dtype, elements), problem_side(p)) != 0)
        return -1;
    if (s->poison != POISON_ZERO)
        fill_poison(g, s->poison, poison);
    void *base = (unsigned char *)g->at + oracle_bytes(dtype, unit * s->base_offset);
    oct_kv_layer *l = &p->layer;
    if (which == ORACLE_K)
        l->k = base, l->k_page_stride = page, l->k_token_stride = token, l->k_head_stride = head;
    else
        l->v = base, l->v_page_stride = page, l->v_token_stride = token, l->v_head_stride = head;
    return 0;
}

/* Static scales, or the memory of dynamic ones. Scores and sums of special data need equal powers of two. */
static int make_scales(problem *p, oracle_which which, guard *fixed, guard *dynamic, rng *poison)
{
    const problem_shape *s = &p->shape;
    const oct_kv_format *format = oracle_format(&p->layer, which);
    const int64_t data = which == ORACLE_K ? s->k_data : s->v_data;
    const int exact = data == DATA_NEEDLE || data == DATA_EQUAL || data == DATA_HUGE || data == DATA_ONE_HOT || data == DATA_HEAD;
    rng r = problem_stream(p, STREAM_SCALES + 16 * (uint64_t)which);
    int64_t n = 0;
    switch (format->scale_mode) {
    case OCT_SCALE_TENSOR: case OCT_SCALE_LAYER: n = 1; break;
    case OCT_SCALE_LAYER_HEAD: n = s->heads; break;
    case OCT_SCALE_CHANNEL: n = s->heads * oracle_dim(&p->layer, which); break;
    default: break;
    }
    /* V in e5m2 of any code reaches 57344: a small scale keeps the output within f16. */
    const double common = exact ? 0.25 : exp2(-5.0 + rng_unit(&r) * (format->dtype == OCT_DTYPE_E5M2 ? 2.0 : 6.0));
    if (n > 0) {
        if (guard_make(fixed, (size_t)n * sizeof(float), problem_side(p)) != 0)
            return -1;
        for (int64_t i = 0; i < n; i++)
            ((float *)fixed->at)[i] = (float)(exact ? common : common * exp2(2.0 * rng_unit(&r) - 1.0));
        if (which == ORACLE_K)
            p->layer.k_scale = fixed->at;
        else
            p->layer.v_scale = fixed->at;
    }
    for (int64_t b = 0; b < s->n_sequences && format->dtype == OCT_DTYPE_V4; b++)
        for (int64_t j = 0; j < p->kv_len[b]; j++)
            for (uint32_t h = 0; h < s->heads; h++)
                for (uint32_t d = 0; d < s->dim_v; d += 32)
                    oracle_put_block_scale(&p->layer, p->pages[p->page_at[b] + j / s->page_size], (uint32_t)(j % s->page_size), h, d,
                                           exact ? 0x1p-5 : common * exp2(2.0 * rng_unit(&r) - 1.0));
    if (format->scale_mode != OCT_SCALE_TOKEN_HEAD)
        return 0;
    const int64_t page = s->page_size * s->heads + (s->strides & STRIDE_PAGES ? rng_between(&r, 1, 5) : 0);
    const int64_t elements = (p->n_pages - 1) * page + s->page_size * s->heads;
    if (guard_make(dynamic, (size_t)elements * oracle_size_bytes(format->scale_dtype), problem_side(p)) != 0)
        return -1;
    fill_poison(dynamic, s->poison, poison);
    if (which == ORACLE_K)
        p->layer.k_token_scale = dynamic->at, p->layer.k_scale_page_stride = page;
    else
        p->layer.v_token_scale = dynamic->at, p->layer.v_scale_page_stride = page;
    for (int64_t b = 0; b < s->n_sequences; b++)
        for (int64_t j = 0; j < p->kv_len[b]; j++)
            for (uint32_t h = 0; h < s->heads; h++) {
                const double scale = exact ? common : common * exp2(2.0 * rng_unit(&r) - 1.0);
                oracle_put_code(format->scale_dtype, dynamic->at,
                                oracle_scale_address(&p->layer, which, p->pages[p->page_at[b] + j / s->page_size], (uint32_t)(j % s->page_size), h),
                                oracle_encode(format->scale_dtype, scale));
            }
    return 0;
}

static int make_rows(problem *p, rng *pad)
{
    const problem_shape *s = &p->shape;
    const int64_t rows = most(p->rows, 1), heads = s->heads_q;
    oct_attn_args *a = &p->args;
    int64_t q_gap = s->strides & STRIDE_Q ? rng_between(pad, 1, 9) : 0, out_gap = s->strides & STRIDE_OUT ? rng_between(pad, 1, 9) : 0;
    const int64_t lse_gap = s->strides & STRIDE_LSE ? rng_between(pad, 1, 5) : 0;
    if (s->strides & HEAD_MAJOR) {
        a->q_row_stride = s->dim_k + q_gap;
        a->q_head_stride = rows * a->q_row_stride + q_gap;
        a->out_row_stride = s->dim_v + out_gap;
        a->out_head_stride = rows * a->out_row_stride + out_gap;
        a->lse_row_stride = 1 + lse_gap;
        a->lse_head_stride = rows * a->lse_row_stride;
    } else {
        a->q_head_stride = s->dim_k + q_gap;
        a->q_row_stride = heads * a->q_head_stride + q_gap;
        a->out_head_stride = s->dim_v + out_gap;
        a->out_row_stride = heads * a->out_head_stride + out_gap;
        a->lse_head_stride = 1 + lse_gap;
        a->lse_row_stride = heads * a->lse_head_stride + lse_gap;
    }
    const int64_t q_elements = (rows - 1) * a->q_row_stride + (heads - 1) * a->q_head_stride + s->dim_k;
    p->out_elements = (rows - 1) * a->out_row_stride + (heads - 1) * a->out_head_stride + s->dim_v;
    p->lse_elements = (rows - 1) * a->lse_row_stride + (heads - 1) * a->lse_head_stride + 1;
    if (guard_make(&p->q, (size_t)q_elements * oracle_size_bytes(p->spec.q_dtype), problem_side(p)) != 0 ||
        guard_make(&p->out, (size_t)p->out_elements * oracle_size_bytes(p->spec.out_dtype), problem_side(p)) != 0 ||
        guard_make(&p->lse, (size_t)p->lse_elements * sizeof(float), problem_side(p)) != 0)
        return -1;
    memset(p->q.at, 0xFF, p->q.size_bytes);   /* NaN in every format between the rows */
    a->q = p->q.at;
    a->out = p->out.at;
    a->lse = s->with_lse ? p->lse.at : NULL;
    return 0;
}

/* ---- the whole ------------------------------------------------------------------------------------------------ */

static void fill_specs(problem *p)
{
    const problem_shape *s = &p->shape;
    oct_kv_spec *kv = &p->layer.spec;
    *kv = (oct_kv_spec){ (uint32_t)sizeof *kv, (uint32_t)s->layout, (uint32_t)s->heads, (uint32_t)s->dim_k, (uint32_t)s->dim_v, (uint32_t)s->page_size,
                         { (uint32_t)s->k_dtype, (uint32_t)s->k_scale_mode, (uint32_t)s->k_scale_dtype, (uint32_t)s->k_rotated },
                         { (uint32_t)s->v_dtype, (uint32_t)s->v_scale_mode, (uint32_t)s->v_scale_dtype, (uint32_t)s->v_rotated } };
    p->layer.struct_size = sizeof p->layer;
    p->spec.struct_size = sizeof p->spec;
    p->spec.heads_q = (uint32_t)s->heads_q;
    p->spec.kv = *kv;
    p->spec.q_dtype = (uint32_t)s->q_dtype;
    p->spec.out_dtype = (uint32_t)s->out_dtype;
    p->spec.softcap = (float)s->softcap;
    p->spec.causal = (uint32_t)s->causal;
    p->spec.window_tokens = (uint32_t)s->window;
    p->spec.has_sink = s->sink != SINK_NONE;
    p->spec.has_mask = (uint32_t)s->mask;
    p->spec.deterministic = (uint32_t)s->deterministic;
    p->spec.products = (uint32_t)s->products;
    p->spec.split_tokens = (uint32_t)s->split_tokens;
    p->spec.max_threads = (uint32_t)s->threads;
    p->args.struct_size = sizeof p->args;
    p->args.layer = &p->layer;
}

int problem_make(problem *p, const problem_shape *shape)
{
    memset(p, 0, sizeof *p);
    oracle_init();
    p->shape = *shape;
    fill_specs(p);
    if (oct_kv_spec_check(&p->layer.spec, NULL) != OCT_OK)
        return 1;
    rng pad = problem_stream(p, STREAM_PAD), poison = problem_stream(p, STREAM_POISON);
    int bad = make_batch(p);
    p->layer.n_pages = p->n_pages;
    bad = bad || make_tensor(p, ORACLE_K, &p->k, &pad, &poison) || make_tensor(p, ORACLE_V, &p->v, &pad, &poison) ||
          make_scales(p, ORACLE_K, &p->k_scale, &p->k_token_scale, &poison) || make_scales(p, ORACLE_V, &p->v_scale, &p->v_token_scale, &poison) ||
          make_rows(p, &pad);
    if (!bad && shape->by_write) {
        bad = problem_fill_by_write(p);
    } else if (!bad) {
        problem_fill(p, ORACLE_K);
        problem_fill(p, ORACLE_V);
    }
    bad = bad || problem_fill_q(p) || problem_choose_scales(p) || problem_make_sink_and_mask(p);
    p->attn = (oracle_attn){ &p->spec, &p->args, (uint32_t)shape->n_sequences, p->qo_indptr, p->kv_len, p->page_at, p->pages };
    const size_t vectors = (size_t)(p->rows * shape->heads_q) + 1;
    p->expected.out = malloc(vectors * (size_t)shape->dim_v * sizeof(double));
    p->expected.lse = malloc(vectors * sizeof(double));
    p->expected.v_max = malloc(vectors * sizeof(double));
    p->expected.s_max = malloc(vectors * sizeof(double));
    if (p->expected.out == NULL || p->expected.lse == NULL || p->expected.v_max == NULL || p->expected.s_max == NULL)
        bad = 1;
    if (bad)
        problem_drop(p);
    return bad ? -1 : 0;
}

int problem_expect(problem *p) { return oracle_attend(&p->attn, &p->expected); }

void problem_drop(problem *p)
{
    guard *const guards[] = { &p->k, &p->v, &p->k_token_scale, &p->v_token_scale, &p->k_scale, &p->v_scale, &p->q, &p->q_scale,
                              &p->out, &p->out_scale, &p->lse, &p->sink, &p->mask };
    for (size_t i = 0; i < sizeof guards / sizeof guards[0]; i++)
        guard_drop(guards[i]);
    free(p->qo_indptr);
    free(p->kv_len);
    free(p->page_at);
    free(p->pages);
    free(p->table_pages);
    free(p->expected.out);
    free(p->expected.lse);
    free(p->expected.v_max);
    free(p->expected.s_max);
    memset(p, 0, sizeof *p);
}
