/* problem_data.c: the numbers of a problem: K, V and q by kind of data, scales of scores and outputs, sinks and masks. */
#include "parity/problem_data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* How many codes wide normal numbers are: most bits used, few values beyond the largest. */
static double spread_of(uint32_t dtype)
{
    return dtype == OCT_DTYPE_I8 || dtype == OCT_DTYPE_V4 ? 40.0 : dtype == OCT_DTYPE_E4M3FNUZ ? 50.0 : oracle_is_8bit(dtype) ? 100.0 : 1.0;
}

static uint32_t random_code(rng *r, uint32_t dtype, oracle_which which)
{
    if (dtype == OCT_DTYPE_I8)
        return (uint32_t)rng_between(r, -127, 127) & 0xFF;
    if (dtype == OCT_DTYPE_V4)
        return (uint32_t)rng_below(r, 16);
    for (;;) {
        const uint32_t code = (uint32_t)rng_next(r) & 0xFF;
        /* K in e5m2 stays below 32: one code among thousands would be every softmax's only key. */
        if (isfinite(oracle_decode_code(dtype, code)) && !(dtype == OCT_DTYPE_E5M2 && which == ORACLE_K && (code & 0x7F) > 0x50))
            return code;
    }
}

static uint32_t subnormal_code(rng *r, uint32_t dtype)
{
    const uint32_t sign = rng_one_in(r, 2) ? 1u << (8 * oracle_size_bytes(dtype) - 1) : 0;
    switch (dtype) {
    case OCT_DTYPE_I8: return (uint32_t)rng_between(r, -2, 2) & 0xFF;
    case OCT_DTYPE_V4: return (uint32_t)rng_between(r, -1, 1) & 15;
    case OCT_DTYPE_E4M3FN: case OCT_DTYPE_E4M3FNUZ: return sign | (uint32_t)rng_between(r, 1, 7);
    case OCT_DTYPE_E5M2: return sign | (uint32_t)rng_between(r, 1, 3);
    case OCT_DTYPE_F16: return sign | (uint32_t)rng_between(r, 1, 1023);
    default: return oracle_encode(dtype, rng_normal(r));
    }
}

static uint32_t code_of_data(const problem *p, oracle_which which, rng *r, int64_t data, int64_t key, uint32_t head, uint32_t dim, double scale)
{
    const uint32_t dtype = oracle_format(&p->layer, which)->dtype;
    const int narrow = oracle_is_8bit(dtype);
    switch (data) {
    case DATA_CODES: return narrow ? random_code(r, dtype, which) : oracle_encode(dtype, rng_normal(r));
    case DATA_HALF: return oracle_encode(dtype, (0.5 + 0.05 * rng_normal(r)) / scale);
    case DATA_HUGE: return oracle_encode(dtype, 16.0 * (double)rng_between(r, -1, 1));
    case DATA_SATURATED:
        return oracle_encode(dtype, (narrow ? oracle_max(dtype) : 1.0) * (rng_one_in(r, 2) ? 1.0 : -1.0));
    case DATA_SUBNORMAL: return subnormal_code(r, dtype);
    case DATA_ONE_HOT: return oracle_encode(dtype, key % oracle_dim(&p->layer, which) == dim ? 1.0 / scale : 0.0);
    case DATA_HEAD: return oracle_encode(dtype, (head + 1.0) / scale);
    default: return oracle_encode(dtype, rng_normal(r) * spread_of(dtype));
    }
}

void problem_fill(problem *p, oracle_which which)
{
    const problem_shape *s = &p->shape;
    const uint32_t dtype = oracle_format(&p->layer, which)->dtype, dim = oracle_dim(&p->layer, which);
    void *base = which == ORACLE_K ? p->layer.k : p->layer.v;
    const int64_t data = which == ORACLE_K ? s->k_data : s->v_data;
    rng r = problem_stream(p, which == ORACLE_K ? STREAM_K : STREAM_V);
    for (int64_t b = 0; b < s->n_sequences; b++)
        for (int64_t j = 0; j < p->kv_len[b]; j++)
            for (uint32_t h = 0; h < s->heads; h++) {
                const int64_t page = p->pages[p->page_at[b] + j / s->page_size];
                const uint32_t token = (uint32_t)(j % s->page_size);
                if (data == DATA_EQUAL)   /* every token draws the same numbers */
                    r = rng_make((uint64_t)s->seed * 64 + h);
                for (uint32_t d = 0; d < dim; d++) {
                    const double scale = oracle_scale(&p->layer, which, page, token, h, d);
                    oracle_put_code(dtype, base, oracle_address(&p->layer, which, page, token, h, d),
                                    code_of_data(p, which, &r, data, j, h, d, scale));
                }
            }
}

/* Normal numbers through the library's own write; their amplitude is such that bytes spread as in problem_fill. */
int problem_fill_by_write(problem *p)
{
    const problem_shape *s = &p->shape;
    const int64_t tokens = p->page_at[s->n_sequences] * s->page_size, k_row = s->heads * s->dim_k, v_row = s->heads * s->dim_v;
    int64_t n = 0;
    rng r = problem_stream(p, STREAM_K);
    float *k = malloc((size_t)(tokens * k_row + 1) * sizeof *k), *v = malloc((size_t)(tokens * v_row + 1) * sizeof *v);
    int32_t *slots = malloc((size_t)(tokens + 1) * sizeof *slots);
    oct_status status = OCT_OUT_OF_MEMORY;
    if (k != NULL && v != NULL && slots != NULL) {
        const double k_amplitude = p->layer.k_scale != NULL ? (double)p->layer.k_scale[0] * spread_of(p->layer.spec.k.dtype) : 1.0;
        const double v_amplitude = p->layer.v_scale != NULL ? (double)p->layer.v_scale[0] * spread_of(p->layer.spec.v.dtype) : 1.0;
        for (int64_t b = 0; b < s->n_sequences; b++)
            for (int64_t j = 0; j < p->kv_len[b]; j++, n++) {
                slots[n] = (int32_t)(p->pages[p->page_at[b] + j / s->page_size] * s->page_size + j % s->page_size);
                for (int64_t d = 0; d < k_row; d++)
                    k[n * k_row + d] = (float)(rng_normal(&r) * k_amplitude);
                for (int64_t d = 0; d < v_row; d++)
                    v[n * v_row + d] = (float)(rng_normal(&r) * v_amplitude);
            }
        oct_kv_write_args args;
        memset(&args, 0, sizeof args);
        args.struct_size = sizeof args;
        args.checked = 1;
        args.layer = &p->layer;
        args.slots = slots;
        args.n_tokens = n;
        args.src_dtype = OCT_DTYPE_F32;
        args.k = k;
        args.v = v;
        args.k_token_stride = k_row;
        args.k_head_stride = s->dim_k;
        args.v_token_stride = v_row;
        args.v_head_stride = s->dim_v;
        status = oct_kv_write(problem_context(1), &args);
    }
    free(k);
    free(v);
    free(slots);
    return status == OCT_OK ? 0 : -1;
}

void problem_put(problem *p, oracle_which which, uint32_t sequence, int64_t key, uint32_t head, const double *values)
{
    const int64_t page = p->pages[p->page_at[sequence] + key / p->shape.page_size];
    const uint32_t token = (uint32_t)(key % p->shape.page_size), dim = oracle_dim(&p->layer, which);
    const oct_kv_format *format = oracle_format(&p->layer, which);
    double x[512];
    memcpy(x, values, dim * sizeof *x);
    if (format->rotated)
        oracle_hadamard(x, dim);
    for (uint32_t d = 0; d < dim; d++)
        oracle_put_code(format->dtype, which == ORACLE_K ? p->layer.k : p->layer.v, oracle_address(&p->layer, which, page, token, head, d),
                        oracle_encode(format->dtype, x[d] / oracle_scale(&p->layer, which, page, token, head, d)));
}

static double key_vector(const problem *p, oracle_which which, int64_t b, int64_t key, uint32_t head, double *x)
{
    double length = 0.0;
    oracle_vector(&p->layer, which, p->pages[p->page_at[b] + key / p->shape.page_size], (uint32_t)(key % p->shape.page_size), head, x);
    for (uint32_t d = 0; d < oracle_dim(&p->layer, which); d++)
        length += x[d] * x[d];
    return sqrt(length);
}

static int64_t needle_of(const problem *p, int64_t b)
{
    rng r = rng_make((uint64_t)(p->shape.seed * 131 + b));
    const int64_t last = p->kv_len[b] - 1;
    return p->shape.needle_key < 0 ? rng_below(&r, last + 1) : p->shape.needle_key < last ? p->shape.needle_key : last;
}

/* Queries after K, since a needle's queries point along its key. */
int problem_fill_q(problem *p)
{
    const problem_shape *s = &p->shape;
    const uint32_t dtype = p->spec.q_dtype, group = (uint32_t)(s->heads_q / s->heads);
    rng r = problem_stream(p, STREAM_Q);
    double spread = 1.0;
    if (oracle_is_8bit(dtype)) {
        if (guard_make(&p->q_scale, sizeof(float), problem_side(p)) != 0)
            return -1;
        *(float *)p->q_scale.at = s->k_data == DATA_HUGE ? 0.0625f : (float)exp2(-5.0 * rng_unit(&r));
        p->args.q_scale = p->q_scale.at;
        spread = 16.0;
    }
    for (int64_t b = 0; b < s->n_sequences; b++)
        for (int64_t row = p->qo_indptr[b]; row < p->qo_indptr[b + 1]; row++)
            for (uint32_t h = 0; h < s->heads_q; h++) {
                double key[512], length = 0.0;
                const int along = s->k_data == DATA_NEEDLE && p->kv_len[b] > 0;
                if (along)
                    length = key_vector(p, ORACLE_K, b, needle_of(p, b), h / group, key);
                for (uint32_t d = 0; d < s->dim_k; d++) {
                    const double x = s->k_data == DATA_HUGE ? (double)rng_between(&r, -2, 2)
                                     : along && length > 0.0 ? key[d] / length * sqrt((double)s->dim_k) + 0.02 * rng_normal(&r)
                                                             : rng_normal(&r);
                    oracle_put_code(dtype, p->q.at, row * p->args.q_row_stride + h * p->args.q_head_stride + d, oracle_encode(dtype, x * spread));
                }
            }
    return 0;
}

static double raw_score(const problem *p, int64_t b, int64_t row, uint32_t h, int64_t key)
{
    double k[512], sum = 0.0;
    key_vector(p, ORACLE_K, b, key, h / (uint32_t)(p->shape.heads_q / p->shape.heads), k);
    for (uint32_t d = 0; d < p->shape.dim_k; d++)
        sum += oracle_decode(p->spec.q_dtype, p->q.at, row * p->args.q_row_stride + h * p->args.q_head_stride + d) * k[d];
    return p->args.q_scale != NULL ? sum * (double)p->args.q_scale[0] : sum;
}

/* sm_scale from a sample of scores; the output's scale from a sample of V. */
int problem_choose_scales(problem *p)
{
    const problem_shape *s = &p->shape;
    rng r = problem_stream(p, STREAM_Q + 32);
    double scores = 0.0, v_squares = 0.0, v[512];
    int64_t n = 0, n_v = 0, any = -1;
    for (int i = 0; i < 128; i++) {
        const int64_t b = rng_below(&r, most(s->n_sequences, 1));
        if (s->n_sequences == 0 || p->kv_len[b] == 0)
            continue;
        const double length = key_vector(p, ORACLE_V, b, rng_below(&r, p->kv_len[b]), (uint32_t)rng_below(&r, s->heads), v);
        v_squares += length * length / (double)s->dim_v;
        n_v++;
        const int64_t rows = p->qo_indptr[b + 1] - p->qo_indptr[b];
        if (rows == 0)
            continue;
        any = b;
        const double score = raw_score(p, b, p->qo_indptr[b] + rng_below(&r, rows), (uint32_t)rng_below(&r, s->heads_q), rng_below(&r, p->kv_len[b]));
        scores += score * score;
        n++;
    }
    double sm_scale = s->sm_scale;
    if (sm_scale <= 0.0) {
        sm_scale = n > 0 && scores > 0.0 ? s->score_deviation / sqrt(scores / (double)n) : 1.0 / sqrt((double)s->dim_k);
        if (s->k_data == DATA_NEEDLE && any >= 0)
            sm_scale = s->needle_gap / fabs(raw_score(p, any, p->qo_indptr[any], 0, needle_of(p, any)));
        if (s->k_data == DATA_HUGE)   /* one step of an integer score is 64 */
            sm_scale = 64.0 / (16.0 * (p->spec.kv.k.scale_mode == OCT_SCALE_NONE ? 1.0 : 0.25));
    }
    p->spec.sm_scale = (float)sm_scale;
    if (oracle_is_8bit(p->spec.out_dtype)) {
        if (guard_make(&p->out_scale, sizeof(float), problem_side(p)) != 0)
            return -1;
        *(float *)p->out_scale.at = (float)(v_squares > 0.0 ? sqrt(v_squares / (double)n_v) / 30.0 : 0.5);
        p->args.out_scale = p->out_scale.at;
    }
    return 0;
}

int problem_make_sink_and_mask(problem *p)
{
    const problem_shape *s = &p->shape;
    rng r = problem_stream(p, STREAM_SINK);
    if (s->sink != SINK_NONE) {
        if (guard_make(&p->sink, (size_t)s->heads_q * sizeof(float), problem_side(p)) != 0)
            return -1;
        for (int64_t h = 0; h < s->heads_q; h++) {
            const float x = (float)(2.0 * rng_normal(&r));
            const int minus = s->sink == SINK_MINUS_INFINITY || (s->sink == SINK_MIXED && h % 2 == 0);
            ((float *)p->sink.at)[h] = minus ? -INFINITY : s->sink == SINK_HUGE ? 50.0f : x;
        }
        p->args.sink = p->sink.at;
    }
    if (!s->mask)
        return 0;
    int64_t longest = 1;
    r = problem_stream(p, STREAM_MASK);
    for (int64_t b = 0; b < s->n_sequences; b++)
        longest = most(longest, p->qo_indptr[b + 1] - p->qo_indptr[b]);
    const int64_t words = (longest + 31) / 32, stride = words + (s->strides & STRIDE_Q ? 3 : 0), rows = most(p->rows, 1);
    if (guard_make(&p->mask, (size_t)((rows - 1) * stride + words) * sizeof(uint32_t), problem_side(p)) != 0)
        return -1;
    for (int64_t i = 0; i < (rows - 1) * stride + words; i++) {
        const uint64_t bits = rng_next(&r);   /* three bits in four; some words see nothing */
        ((uint32_t *)p->mask.at)[i] = rng_one_in(&r, 12) ? 0 : (uint32_t)(bits | bits >> 32);
    }
    p->args.mask = p->mask.at;
    p->args.mask_row_stride = stride;
    return 0;
}
