/* oracle.c: the oracle's pages, write, attention and merge, in float64. */
#include "parity/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- pages ------------------------------------------------------------------------------------------------ */

const oct_kv_format *oracle_format(const oct_kv_layer *layer, oracle_which which)
{
    return which == ORACLE_K ? &layer->spec.k : &layer->spec.v;
}

uint32_t oracle_dim(const oct_kv_layer *layer, oracle_which which)
{
    return which == ORACLE_K ? layer->spec.dim_k : layer->spec.dim_v;
}

int64_t oracle_address(const oct_kv_layer *layer, oracle_which which, int64_t page, uint32_t token, uint32_t head, uint32_t dim)
{
    const int is_k = which == ORACLE_K;
    const int64_t page_at = page * (is_k ? layer->k_page_stride : layer->v_page_stride);
    const int64_t head_at = (int64_t)head * (is_k ? layer->k_head_stride : layer->v_head_stride);
    if (layer->spec.layout != OCT_LAYOUT_V5D)
        return page_at + head_at + (int64_t)token * (is_k ? layer->k_token_stride : layer->v_token_stride) + dim;
    const int64_t x = 16 / (int64_t)oracle_size_bytes(oracle_format(layer, which)->dtype);
    if (is_k)   /* [dim/x][token][x] */
        return page_at + head_at + (dim / x) * layer->spec.page_size * x + token * x + dim % x;
    /* [token/x][dim][x] */
    return page_at + head_at + (token / x) * layer->spec.dim_v * x + dim * x + token % x;
}

int64_t oracle_scale_address(const oct_kv_layer *layer, oracle_which which, int64_t page, uint32_t token, uint32_t head)
{
    return page * (which == ORACLE_K ? layer->k_scale_page_stride : layer->v_scale_page_stride) + (int64_t)token * layer->spec.heads + head;
}

/* The block of V in v4 that holds a dim: its scale, and then the codes. */
static unsigned char *block_of(const oct_kv_layer *layer, int64_t page, uint32_t token, uint32_t head, uint32_t dim)
{
    return (unsigned char *)layer->v + oracle_address(layer, ORACLE_V, page, token, head, dim) / 32 * 18;
}

double oracle_scale(const oct_kv_layer *layer, oracle_which which, int64_t page, uint32_t token, uint32_t head, uint32_t dim)
{
    const oct_kv_format *format = oracle_format(layer, which);
    const float *scale = which == ORACLE_K ? layer->k_scale : layer->v_scale;
    switch (format->scale_mode) {
    case OCT_SCALE_TENSOR:
    case OCT_SCALE_LAYER: return (double)scale[0];
    case OCT_SCALE_LAYER_HEAD: return (double)scale[head];
    case OCT_SCALE_CHANNEL: return (double)scale[(int64_t)head * oracle_dim(layer, which) + dim];
    case OCT_SCALE_TOKEN_HEAD:
        return oracle_decode(format->scale_dtype, which == ORACLE_K ? layer->k_token_scale : layer->v_token_scale,
                             oracle_scale_address(layer, which, page, token, head));
    default:
        if (format->dtype == OCT_DTYPE_V4)
            return oracle_decode(OCT_DTYPE_F16, block_of(layer, page, token, head, dim), 0);
        return 1.0;
    }
}

void oracle_put_block_scale(const oct_kv_layer *layer, int64_t page, uint32_t token, uint32_t head, uint32_t dim, double scale)
{
    oracle_put_code(OCT_DTYPE_F16, block_of(layer, page, token, head, dim), 0, oracle_encode(OCT_DTYPE_F16, scale));
}

void oracle_vector(const oct_kv_layer *layer, oracle_which which, int64_t page, uint32_t token, uint32_t head, double *x)
{
    const oct_kv_format *format = oracle_format(layer, which);
    const void *base = which == ORACLE_K ? layer->k : layer->v;
    const uint32_t dim = oracle_dim(layer, which);
    for (uint32_t d = 0; d < dim; d++)
        x[d] = oracle_decode(format->dtype, base, oracle_address(layer, which, page, token, head, d)) *
               oracle_scale(layer, which, page, token, head, d);
    if (format->rotated)
        oracle_hadamard(x, dim);
}

/* ---- the write -------------------------------------------------------------------------------------------- */

/* f16 keeps a dynamic scale rounded up, so that the vector's largest element stays within the format (src/number/scale.h). */
static double scale_as_kept(double scale, uint32_t scale_dtype)
{
    if (scale_dtype != OCT_DTYPE_F16)
        return scale;
    if (scale >= 65504.0)
        return 65504.0;
    uint32_t code = oracle_encode(OCT_DTYPE_F16, scale);
    if (oracle_decode_code(OCT_DTYPE_F16, code) < scale)
        code++;
    return oracle_decode_code(OCT_DTYPE_F16, code);
}

static double dynamic_scale(double amax, const oct_kv_format *format)
{
    const double scale = fmax(oracle_divide(amax, oracle_max(format->dtype)), (double)1e-6f);
    return scale_as_kept(scale, format->scale_dtype);
}

static void rotate_with_slack(oracle_written *w, double *x, uint32_t dim)
{
    uint32_t block = 1;
    while (dim % (2 * block) == 0)
        block *= 2;
    oracle_hadamard(x, dim);
    for (uint32_t at = 0; at < dim; at += block) {
        double slack = 0.0, length = 0.0;
        for (uint32_t i = at; i < at + block; i++) {
            slack += w->slack[i] / sqrt((double)block);
            length += x[i] * x[i];
        }
        /* Each of log2(block) additions and the norm round by half a unit of at most the block's length. */
        slack += (sqrt(length) * 0x1p-24 + 0x1p-149) * (log2((double)block) + 2.0);
        for (uint32_t i = at; i < at + block; i++)
            w->slack[i] = slack;
    }
}

void oracle_write_vector(const oct_kv_layer *layer, oracle_which which, const float *source, const oct_rope *rope, int32_t position,
                         oracle_written *w)
{
    const oct_kv_format *format = oracle_format(layer, which);
    const uint32_t dim = oracle_dim(layer, which);
    int has_nan = 0;
    double slack_max = 0.0;
    memset(w->slack, 0, sizeof w->slack);
    w->exact = rope == NULL;
    memcpy(w->x, source, dim * sizeof *source);
    if (rope != NULL) {
        double x[512];
        for (uint32_t d = 0; d < dim; d++)
            x[d] = (double)source[d];
        for (uint32_t i = 0; i < rope->n_dims / 2; i++) {
            /* A rounded cosine, a rounded sine, two products and a sum: four half units of |a| + |b| at most, or of subnormals. */
            const uint32_t first = rope->style == 0 ? i : 2 * i, second = rope->style == 0 ? i + rope->n_dims / 2 : 2 * i + 1;
            w->slack[first] = w->slack[second] = (fabs(x[first]) + fabs(x[second])) * 0x1p-22 + 0x1p-147;
        }
        oracle_rope(x, rope, position);
        if (format->rotated)
            rotate_with_slack(w, x, dim);
        for (uint32_t d = 0; d < dim; d++)
            w->x[d] = (float)x[d];
    } else if (format->rotated) {
        oracle_hadamard_f32(w->x, dim);
    }
    w->amax = 0.0;
    for (uint32_t d = 0; d < dim; d++) {
        if (isnan(w->x[d]))
            has_nan = 1;
        if (isfinite(w->x[d])) {
            w->amax = fmax(w->amax, fabs((double)w->x[d]));
            slack_max = fmax(slack_max, w->slack[d]);
        }
    }
    w->scale_low = dynamic_scale(fmax(w->amax - slack_max, 0.0), format);
    w->scale_high = dynamic_scale(w->amax + slack_max, format);
    if (has_nan && format->dtype == OCT_DTYPE_I8)
        w->scale_low = w->scale_high = (double)NAN;
}

static int rounds_beyond_max(uint32_t dtype, double y)
{
    double low, high;
    if (isnan(y))
        return 0;
    if (isinf(y))
        return 1;
    dtype = dtype == OCT_DTYPE_V4 ? (uint32_t)OCT_DTYPE_I8 : dtype;
    if (fabs(y) <= oracle_max(dtype) || dtype == OCT_DTYPE_F32)
        return 0;
    const uint32_t last = oracle_encode(dtype, oracle_max(dtype));
    oracle_cell(dtype, last, &low, &high);
    const double half_step = oracle_max(dtype) - low, beyond = fabs(y) - oracle_max(dtype);
    return beyond > half_step || (beyond == half_step && last % 2 != 0);
}

static int code_is_right(uint32_t dtype, uint32_t code, int exact, double x, double slack, double scale)
{
    if (isnan(x))
        return dtype == OCT_DTYPE_I8 ? code == 0 : oracle_code_is_nan(dtype, code);
    if (exact || isinf(x))
        return code == oracle_encode(dtype, oracle_divide(x, scale));
    if (oracle_code_is_nan(dtype, code))
        return 0;
    const double value = oracle_decode_code(dtype, code);
    return value >= oracle_decode_code(dtype, oracle_encode(dtype, oracle_divide(x - slack, scale))) &&
           value <= oracle_decode_code(dtype, oracle_encode(dtype, oracle_divide(x + slack, scale)));
}

int64_t oracle_check_written(const oct_kv_layer *layer, oracle_which which, int64_t page, uint32_t token, uint32_t head,
                             const oracle_written *w, oct_kv_counts *counts)
{
    const oct_kv_format *format = oracle_format(layer, which);
    const void *base = which == ORACLE_K ? layer->k : layer->v;
    const uint32_t dim = oracle_dim(layer, which);
    int64_t wrong = -1;
    if (format->scale_mode == OCT_SCALE_TOKEN_HEAD) {
        const double scale = oracle_scale(layer, which, page, token, head, 0);
        if (isnan(w->scale_low) ? !isnan(scale) : !(scale >= w->scale_low && scale <= w->scale_high))
            return -2;
    }
    for (uint32_t at = 0; at < dim && format->dtype == OCT_DTYPE_V4; at += 32) {
        const oct_kv_format kept = { OCT_DTYPE_V4, OCT_SCALE_NONE, OCT_DTYPE_F16, 0 };
        const double scale = oracle_scale(layer, which, page, token, head, at);
        double amax = 0.0;
        int has_nan = 0;
        for (uint32_t d = at; d < at + 32; d++) {
            has_nan |= isnan(w->x[d]);
            amax = isfinite(w->x[d]) ? fmax(amax, fabs((double)w->x[d])) : amax;
        }
        if (has_nan ? !isnan(scale) : scale != dynamic_scale(amax, &kept))
            return -2;
    }
    for (uint32_t d = 0; d < dim; d++) {
        const double scale = oracle_scale(layer, which, page, token, head, d), x = (double)w->x[d];
        const uint32_t code = oracle_code_at(format->dtype, base, oracle_address(layer, which, page, token, head, d));
        if (wrong < 0 && (isnan(scale) ? code != 0 : !code_is_right(format->dtype, code, w->exact, x, w->slack[d], scale)))
            wrong = d;
        if (counts != NULL) {
            counts->n_values++;
            counts->n_nan += isnan(x) != 0;
            counts->n_saturated += !isnan(scale) && rounds_beyond_max(format->dtype, oracle_divide(x, scale));
        }
    }
    if (counts != NULL)
        counts->amax = fmaxf(counts->amax, (float)w->amax);
    return wrong;
}

/* ---- attention -------------------------------------------------------------------------------------------- */

int oracle_visible(const oct_attn_spec *spec, const oct_attn_args *args, int64_t batch_row, int64_t r, int64_t n, int64_t kv_len, int64_t j)
{
    const int64_t p = kv_len - n + r;   /* the last row is at kv_len - 1 */
    if (j < 0 || j >= kv_len)
        return 0;
    if (spec->causal && j > p)
        return 0;
    if (spec->window_tokens > 0 && p - j >= (int64_t)spec->window_tokens)
        return 0;
    if (spec->has_mask) {
        const int64_t t = j - (kv_len - n);
        if (t >= 0 && !((args->mask[batch_row * args->mask_row_stride + t / 32] >> (t % 32)) & 1))
            return 0;
    }
    return 1;
}

/* The keys [first, kv_len) of one KV head that some row may see; NULL without memory. */
static double *gather(const oracle_attn *problem, oracle_which which, uint32_t sequence, uint32_t head, int64_t first)
{
    const oct_kv_layer *layer = problem->args->layer;
    const int64_t kv_len = problem->kv_len[sequence], page_size = layer->spec.page_size, dim = oracle_dim(layer, which);
    const int32_t *pages = problem->pages + problem->page_at[sequence];
    double *x = malloc((size_t)((kv_len - first) * dim + 1) * sizeof *x);
    if (x != NULL)
        for (int64_t j = first; j < kv_len; j++)
            oracle_vector(layer, which, pages[j / page_size], (uint32_t)(j % page_size), head, x + (j - first) * dim);
    return x;
}

typedef struct row { int64_t batch_row, r, n, kv_len, first; uint32_t head; } row;

static void attend_row(const oracle_attn *problem, const row *at, const double *k, const double *v, double *scores, oracle_result *result)
{
    const oct_attn_spec *spec = problem->spec;
    const oct_attn_args *args = problem->args;
    const int64_t dim_k = spec->kv.dim_k, dim_v = spec->kv.dim_v, index = at->batch_row * spec->heads_q + at->head;
    double *out = result->out + index * dim_v;
    double q[512], m = -(double)INFINITY, z = 0.0, v_max = 0.0, s_max = 0.0;
    const double q_scale = args->q_scale != NULL ? (double)args->q_scale[0] : 1.0;
    const double sink = spec->has_sink ? (double)args->sink[at->head] : -(double)INFINITY;
    for (int64_t d = 0; d < dim_k; d++)
        q[d] = oracle_decode(spec->q_dtype, args->q, at->batch_row * args->q_row_stride + at->head * args->q_head_stride + d) * q_scale;
    for (int64_t j = at->first; j < at->kv_len; j++) {
        double s = -(double)INFINITY;
        if (oracle_visible(spec, args, at->batch_row, at->r, at->n, at->kv_len, j)) {
            s = 0.0;
            for (int64_t d = 0; d < dim_k; d++)
                s += q[d] * k[(j - at->first) * dim_k + d];
            s *= (double)spec->sm_scale;
            s_max = fmax(s_max, fabs(s));
            if (spec->softcap > 0.0f)
                s = (double)spec->softcap * tanh(s / (double)spec->softcap);
            m = fmax(m, s);
        }
        scores[j - at->first] = s;
    }
    m = fmax(m, sink);
    memset(out, 0, (size_t)dim_v * sizeof *out);
    result->v_max[index] = 0.0;
    result->s_max[index] = s_max;
    result->lse[index] = m;
    if (m == -(double)INFINITY)
        return;
    for (int64_t j = at->first; j < at->kv_len; j++) {
        const double s = scores[j - at->first], p = exp(s - m);
        if (s == -(double)INFINITY)   /* unseen: its bytes may be anything */
            continue;
        z += p;
        for (int64_t d = 0; d < dim_v; d++) {
            const double x = v[(j - at->first) * dim_v + d];
            out[d] += p * x;
            v_max = fmax(v_max, fabs(x));
        }
    }
    z += exp(sink - m);
    for (int64_t d = 0; d < dim_v; d++)
        out[d] /= z;
    result->v_max[index] = v_max;
    result->lse[index] = m + log(z);
}

int oracle_attend(const oracle_attn *problem, oracle_result *result)
{
    const oct_attn_spec *spec = problem->spec;
    const uint32_t group = spec->heads_q / spec->kv.heads;
    result->of = problem;
    for (uint32_t b = 0; b < problem->n_sequences; b++) {
        const int64_t kv_len = problem->kv_len[b], row0 = problem->qo_indptr[b], n = problem->qo_indptr[b + 1] - row0;
        int64_t first = 0;   /* keys that the window hides from the first row are hidden from all, and their pages may be gone */
        if (spec->window_tokens > 0 && kv_len - n - (int64_t)spec->window_tokens + 1 > 0)
            first = kv_len - n - (int64_t)spec->window_tokens + 1;
        if (n == 0)
            continue;
        double *scores = malloc((size_t)(kv_len - first + 1) * sizeof *scores);
        for (uint32_t g = 0; g < spec->kv.heads; g++) {
            double *k = gather(problem, ORACLE_K, b, g, first), *v = gather(problem, ORACLE_V, b, g, first);
            if (k == NULL || v == NULL || scores == NULL) {
                free(k);
                free(v);
                free(scores);
                return -1;
            }
            for (int64_t r = 0; r < n; r++)
                for (uint32_t i = 0; i < group; i++) {
                    const row at = { row0 + r, r, n, kv_len, first, g * group + i };
                    attend_row(problem, &at, k, v, scores, result);
                }
            free(k);
            free(v);
        }
        free(scores);
    }
    return 0;
}

static int rounds_q(const oct_attn_spec *spec)
{
    return spec->kv.k.rotated || spec->kv.k.scale_mode == OCT_SCALE_CHANNEL || spec->q_dtype == OCT_DTYPE_F32 ||
           (spec->q_dtype == OCT_DTYPE_F16 && spec->kv.k.dtype == OCT_DTYPE_BF16);
}

double oracle_score_norm(const oracle_attn *problem, int64_t batch_row, uint32_t head)
{
    const oct_attn_spec *spec = problem->spec;
    const oct_attn_args *args = problem->args;
    const oct_kv_layer *layer = args->layer;
    const uint32_t dim = spec->kv.dim_k, head_kv = head / (spec->heads_q / spec->kv.heads);
    double q[512], k[512], m = -(double)INFINITY, z = 0.0, norm = 0.0;
    uint32_t b = 0;
    while (problem->qo_indptr[b + 1] <= batch_row)
        b++;
    const int64_t kv_len = problem->kv_len[b], r = batch_row - problem->qo_indptr[b], n = problem->qo_indptr[b + 1] - problem->qo_indptr[b];
    for (uint32_t d = 0; d < dim; d++)
        q[d] = oracle_decode(spec->q_dtype, args->q, batch_row * args->q_row_stride + head * args->q_head_stride + d) * (args->q_scale != NULL ? (double)args->q_scale[0] : 1.0);
    if (spec->kv.k.rotated)
        oracle_hadamard(q, dim);
    for (int64_t j = 0; j < kv_len && rounds_q(spec); j++) {
        double s = 0.0, squares = 0.0;
        if (!oracle_visible(spec, args, batch_row, r, n, kv_len, j))
            continue;
        oracle_vector(layer, ORACLE_K, problem->pages[problem->page_at[b] + j / layer->spec.page_size], (uint32_t)(j % layer->spec.page_size), head_kv, k);
        if (spec->kv.k.rotated)   /* its own inverse */
            oracle_hadamard(k, dim);
        for (uint32_t d = 0; d < dim; d++) {
            s += q[d] * k[d];
            squares += q[d] * k[d] * q[d] * k[d];
        }
        s *= (double)spec->sm_scale;
        double slope = 1.0;   /* of the cap: what an error of the raw score leaves */
        if (spec->softcap > 0.0f) {
            s = (double)spec->softcap * tanh(s / (double)spec->softcap);
            slope -= s / (double)spec->softcap * (s / (double)spec->softcap);
        }
        const double keep = s > m ? exp(m - s) : 1.0, p = s > m ? 1.0 : exp(s - m);
        m = fmax(m, s);
        z = z * keep + p;
        norm = norm * keep + p * slope * sqrt(squares) * fabs((double)spec->sm_scale);
    }
    return z > 0.0 ? norm / z : 0.0;
}

void oracle_merge(const oct_attn_merge_args *args, double *merged, double *lse, double *v_max)
{
    for (int64_t r = 0; r < args->rows; r++)
        for (int64_t h = 0; h < args->heads; h++) {
            const int64_t at = r * args->heads + h;
            double m = -(double)INFINITY, z = 0.0;
            double *out = merged + at * args->dim;
            memset(out, 0, args->dim * sizeof *out);
            v_max[at] = 0.0;
            for (int pass = 0; pass < 2; pass++)
                for (uint32_t i = 0; i < args->n_parts; i++) {
                    const double l = (double)args->lse[i * args->lse_part_stride + r * args->lse_row_stride + h * args->lse_head_stride];
                    const float *part = args->out + i * args->out_part_stride + r * args->out_row_stride + h * args->out_head_stride;
                    if (!isfinite(l))   /* empty: -inf; +inf and NaN count as such */
                        continue;
                    if (pass == 0) {
                        m = fmax(m, l);
                        continue;
                    }
                    z += exp(l - m);
                    for (uint32_t d = 0; d < args->dim; d++) {
                        out[d] += exp(l - m) * (double)part[d];
                        v_max[at] = fmax(v_max[at], fabs((double)part[d]));
                    }
                }
            for (uint32_t d = 0; d < args->dim && z > 0.0; d++)
                out[d] /= z;
            lse[at] = z > 0.0 ? m + log(z) : -(double)INFINITY;
        }
}
