/* fixture.c: see fixture.h. The f64 attention goes key by key, straight from the definition, with the rotation undone on K and V. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/scalar.h"
#include "fixture.h"
#include "kv/layout.h"
#include "number/convert.h"
#include "number/dtype.h"

#define MAX_DIM 512

static uint64_t random_bits(uint64_t *seed)
{
    uint64_t z = (*seed += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

double random_normal(uint64_t *seed)
{
    double sum = -6.0;
    for (int i = 0; i < 12; i++) {
        sum += (double)(random_bits(seed) >> 11) * 0x1p-53;
    }
    return sum;
}

static void *take(size_t n, size_t size)
{
    void *memory = calloc(n > 0 ? n : 1, size);
    assert_non_null(memory);
    return memory;
}

/* ---- making ----------------------------------------------------------------------------------------------------------- */

void fixture_init(fixture *f)
{
    memset(f, 0, sizeof *f);
    f->spec.kv = (oct_kv_spec){ .struct_size = sizeof(oct_kv_spec), .layout = OCT_LAYOUT_NHD, .heads = 1, .dim_k = 24, .dim_v = 24,
                                .page_size = 4, .k = { OCT_DTYPE_F32, OCT_SCALE_NONE, 0, 0 }, .v = { OCT_DTYPE_F32, OCT_SCALE_NONE, 0, 0 } };
    f->spec.heads_q = 2;
    f->spec.q_dtype = f->spec.out_dtype = OCT_DTYPE_F32;
    f->spec.sm_scale = 0.25f;
    f->spec.causal = 1;
    f->q_scale = 0.5f;
    f->out_scale = 0.125f;
    f->seed = 1;
}

static int64_t total_rows(const fixture *f) { return f->qo_indptr[f->n_sequences]; }

static void make_pages(fixture *f)
{
    int64_t n = 0;
    for (uint32_t s = 0; s < f->n_sequences; s++) {
        f->qo_indptr[s + 1] = f->qo_indptr[s] + f->q_len[s];
        n += (f->kv_len[s] + (int32_t)f->spec.kv.page_size - 1) / (int32_t)f->spec.kv.page_size;
        f->page_offset[s + 1] = n;
    }
    f->pages = take((size_t)n, sizeof *f->pages);
    for (int64_t i = 0; i < n; i++) {
        const int64_t j = (int64_t)(random_bits(&f->seed) % (uint64_t)(i + 1));
        f->pages[i] = f->pages[j];
        f->pages[j] = (int32_t)i;
    }
    assert_int_equal(oct_kv_layer_init(&f->layer, &f->spec.kv, n + 1, NULL), OCT_OK);
}

static float *make_scale(fixture *f, const oct_kv_format *format, uint32_t dim)
{
    const uint32_t heads = f->spec.kv.heads;
    const uint32_t n = format->scale_mode == OCT_SCALE_CHANNEL ? heads * dim : format->scale_mode == OCT_SCALE_LAYER_HEAD ? heads : 1;
    if (format->scale_mode == OCT_SCALE_NONE || format->scale_mode == OCT_SCALE_TOKEN_HEAD) {
        return NULL;
    }
    float *scale = take(n, sizeof *scale);
    for (uint32_t i = 0; i < n; i++) {
        scale[i] = 0.125f * (1.0f + 0.5f * (float)(random_bits(&f->seed) % 1000) / 1000.0f);
    }
    return scale;
}

static void *poisoned(int64_t n_bytes)
{
    void *memory = take((size_t)n_bytes, 1);
    memset(memory, 0xFF, (size_t)n_bytes);
    return memory;
}

static void store_keys(fixture *f)
{
    const oct_kv_spec *kv = &f->spec.kv;
    const int64_t nk = (int64_t)kv->heads * kv->dim_k, nv = (int64_t)kv->heads * kv->dim_v;
    for (uint32_t s = 0; s < f->n_sequences; s++) {
        const int64_t n = f->kv_len[s];
        int32_t *slots = take((size_t)n, sizeof *slots);
        float *k = take((size_t)(n * nk), sizeof *k), *v = take((size_t)(n * nv), sizeof *v);
        for (int64_t i = 0; i < n; i++) {
            slots[i] = f->pages[f->page_offset[s] + i / kv->page_size] * (int32_t)kv->page_size + (int32_t)(i % kv->page_size);
        }
        for (int64_t i = 0; i < n * nk; i++) {
            k[i] = (float)random_normal(&f->seed);
        }
        for (int64_t i = 0; i < n * nv; i++) {
            v[i] = (float)random_normal(&f->seed);
        }
        const oct_kv_write_args write = { .struct_size = sizeof write, .layer = &f->layer, .slots = slots, .n_tokens = n,
                                          .src_dtype = OCT_DTYPE_F32, .k = k, .v = v, .k_token_stride = nk, .k_head_stride = kv->dim_k,
                                          .v_token_stride = nv, .v_head_stride = kv->dim_v };
        oct__kv_write__scalar(&write, 0, n, NULL, NULL);
        free(slots);
        free(k);
        free(v);
    }
}

void fixture_make(fixture *f)
{
    const oct_kv_spec *kv = &f->spec.kv;
    make_pages(f);
    oct_kv_layer *l = &f->layer;
    l->k = poisoned(l->n_pages * l->k_page_stride * oct__dtype_size_bytes(kv->k.dtype));
    l->v = poisoned(l->n_pages * l->v_page_stride * oct__dtype_size_bytes(kv->v.dtype));
    if (kv->k.scale_mode == OCT_SCALE_TOKEN_HEAD) {
        l->k_token_scale = poisoned(l->n_pages * l->k_scale_page_stride * oct__dtype_size_bytes(kv->k.scale_dtype));
    }
    if (kv->v.scale_mode == OCT_SCALE_TOKEN_HEAD) {
        l->v_token_scale = poisoned(l->n_pages * l->v_scale_page_stride * oct__dtype_size_bytes(kv->v.scale_dtype));
    }
    l->k_scale = f->k_scale = make_scale(f, &kv->k, kv->dim_k);
    l->v_scale = f->v_scale = make_scale(f, &kv->v, kv->dim_v);
    store_keys(f);

    const int64_t rows = total_rows(f), heads = f->spec.heads_q;
    const int64_t n_q = rows * heads * kv->dim_k;
    f->q_f32 = take((size_t)n_q, sizeof(float));
    f->q = take((size_t)n_q, sizeof(float));
    for (int64_t i = 0; i < n_q; i++) {
        f->q_f32[i] = (float)random_normal(&f->seed);
    }
    oct__row_from_f32(f->q, f->spec.q_dtype, f->q_f32, (size_t)n_q, 1.0f, NULL);
    oct__row_to_f32(f->q_f32, f->q, f->spec.q_dtype, (size_t)n_q);
    /* A gap after each head and row, which nobody may write. */
    const int64_t out_head = kv->dim_v + 5, out_row = heads * out_head + 3;
    f->out = poisoned(rows * out_row * (int64_t)sizeof(float));
    f->lse = take((size_t)(rows * (heads + 1)), sizeof(float));
    f->sink = take((size_t)heads, sizeof(float));
    for (int64_t h = 0; h < heads; h++) {
        f->sink[h] = (float)random_normal(&f->seed);
    }
    const int64_t mask_words = 4;
    f->mask = take((size_t)(rows * mask_words), sizeof *f->mask);
    for (int64_t i = 0; i < rows * mask_words; i++) {
        f->mask[i] = (uint32_t)random_bits(&f->seed);
    }
    f->args = (oct_attn_args){ .struct_size = sizeof(oct_attn_args), .layer = &f->layer, .q = f->q,
                               .q_row_stride = heads * kv->dim_k, .q_head_stride = kv->dim_k,
                               .q_scale = oct__dtype_is_8bit(f->spec.q_dtype) ? &f->q_scale : NULL,
                               .out = f->out, .out_row_stride = out_row, .out_head_stride = out_head,
                               .out_scale = oct__dtype_is_8bit(f->spec.out_dtype) ? &f->out_scale : NULL,
                               .lse = f->lse, .lse_row_stride = heads + 1, .lse_head_stride = 1,
                               .sink = f->spec.has_sink ? f->sink : NULL, .mask = f->spec.has_mask ? f->mask : NULL,
                               .mask_row_stride = mask_words };
}

void fixture_free(fixture *f)
{
    free(f->layer.k);
    free(f->layer.v);
    free(f->layer.k_token_scale);
    free(f->layer.v_token_scale);
    free(f->pages);
    free(f->k_scale);
    free(f->v_scale);
    free(f->q_f32);
    free(f->q);
    free(f->out);
    free(f->lse);
    free(f->sink);
    free(f->mask);
}

/* ---- running ---------------------------------------------------------------------------------------------------------- */

static atomic_int n_broken_tiles;

/* The scalar kernel behind a check of what the runner promises a kernel, and with the least that a kernel promises the runner: where
 * no key was seen, o holds anything. Threads other than the test's must not assert. */
static void wary_kernel(const oct__attn_tile *tile)
{
    const uint32_t n = tile->n_rows * tile->n_heads, dim_k = tile->kv->spec.dim_k;
    int is_broken = (uintptr_t)tile->q % 64 != 0 || (uintptr_t)tile->o % 64 != 0 || (uintptr_t)tile->scratch % 64 != 0;
    is_broken |= tile->q_stride % 16 != 0 || tile->o_stride % 16 != 0 || tile->key0 >= tile->key1;
    for (uint32_t i = 0; i < n; i++) {
        for (int64_t d = dim_k; d < tile->q_stride; d++) {
            is_broken |= tile->q[i * tile->q_stride + d] != 0.0f;
        }
    }
    atomic_fetch_add(&n_broken_tiles, is_broken);
    oct__attn__scalar(tile);
    for (uint32_t i = 0; i < n; i++) {
        if (tile->z[i] == 0.0f) {
            memset(tile->o + i * tile->o_stride, 0xFF, (size_t)tile->o_stride * sizeof(float));
        }
    }
}

typedef struct thread_arg {
    const oct__step *step;
    const fixture *f;
    uint32_t ith, nth;
} thread_arg;

static void *thread_main(void *arg)
{
    const thread_arg *a = arg;
    oct__attn_run_part(a->step, &a->f->spec, &a->f->args, a->ith, a->nth);
    return NULL;
}

/* Appends the splits of one tile. */
static void add_group(const fixture *f, oct__step *step, const oct__item *tile, uint32_t n_splits, int64_t *n_floats)
{
    const int64_t len = f->kv_len[tile->sequence];
    for (uint32_t s = 0; s < n_splits; s++) {
        oct__item *item = &step->items[step->n_items++];
        *item = *tile;
        item->split = s;
        item->n_splits = n_splits;
        item->group = n_splits > 1 ? step->n_groups : -1;
        item->key0 = len * s / n_splits;
        item->key1 = len * (s + 1) / n_splits;
        if (n_splits > 1) {
            item->partial0 = *n_floats;
            *n_floats += oct__partial_floats(tile->n_rows * tile->n_heads, step->o_stride);
        }
    }
    step->n_groups += n_splits > 1;
}

void fixture_run(fixture *f, uint32_t tile_rows, uint32_t tile_heads, uint32_t n_splits, uint32_t n_threads)
{
    const oct_kv_spec *kv = &f->spec.kv;
    const uint32_t ratio = f->spec.heads_q / kv->heads;
    const oct__variant variant = { .name = "scalar", .attn = wary_kernel, .scratch = oct__attn_scratch__scalar,
                                   .tile_vectors = tile_rows * tile_heads };
    const size_t max_items = (size_t)total_rows(f) * f->spec.heads_q * n_splits;
    oct__claims claims[2] = { { 0 }, { 0 } };   /* two eights of threads at most */
    oct__step step = { .n_sequences = f->n_sequences, .n_rows = total_rows(f), .page_offset = f->page_offset, .pages = f->pages,
                       .kv_len = f->kv_len, .qo_indptr = f->qo_indptr, .claims = claims,
                       .q_stride = (kv->dim_k + 15) / 16 * 16, .o_stride = (kv->dim_v + 15) / 16 * 16 };
    int64_t n_floats = 0;
    step.items = take(max_items, sizeof *step.items);
    for (uint32_t s = 0; s < f->n_sequences; s++) {
        for (int32_t r = 0; r < f->q_len[s]; r += (int32_t)tile_rows) {
            for (uint32_t h = 0; h < f->spec.heads_q; h += tile_heads) {
                const uint32_t rows_left = (uint32_t)(f->q_len[s] - r);
                const oct__item tile = { .variant = &variant, .sequence = (int32_t)s, .n_rows = rows_left < tile_rows ? rows_left : tile_rows,
                                         .row0 = f->qo_indptr[s] + r, .head_kv = h / ratio, .head0 = h, .n_heads = tile_heads,
                                         .pos0 = (int64_t)f->kv_len[s] - f->q_len[s] + r };
                assert_int_equal(ratio % tile_heads, 0);
                add_group(f, &step, &tile, n_splits, &n_floats);
            }
        }
    }
    step.arrived = take((size_t)step.n_groups, sizeof *step.arrived);
    step.partials = aligned_alloc(64, (size_t)n_floats * sizeof(float) + 64);
    step.scratch_stride_bytes = (oct__attn_run_scratch_bytes(&f->spec, variant.tile_vectors) + variant.scratch(kv, variant.tile_vectors) + 63) / 64 * 64;
    step.scratch = aligned_alloc(64, step.scratch_stride_bytes * n_threads);
    assert_non_null(step.partials);
    assert_non_null(step.scratch);
    memset(step.scratch, 0xFF, step.scratch_stride_bytes * n_threads); /* NaN: nobody may count on zeros */
    memset(step.partials, 0xFF, (size_t)n_floats * sizeof(float));

    pthread_t threads[16];
    thread_arg thread_args[16];
    assert_true(n_threads <= 16);
    for (uint32_t i = 0; i < n_threads; i++) {
        thread_args[i] = (thread_arg){ &step, f, i, n_threads };
        if (i > 0) {
            assert_int_equal(pthread_create(&threads[i], NULL, thread_main, &thread_args[i]), 0);
        }
    }
    thread_main(&thread_args[0]);
    for (uint32_t i = 1; i < n_threads; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(atomic_load(&n_broken_tiles), 0);
    assert_true(atomic_load(&claims[0].next) == 0 && atomic_load(&claims[1].next) == 0);
    for (int64_t g = 0; g < step.n_groups; g++) {
        assert_int_equal(atomic_load(&step.arrived[g]), 0);
    }
    free(step.items);
    free(step.arrived);
    free(step.partials);
    free(step.scratch);
}

/* ---- judging ---------------------------------------------------------------------------------------------------------- */

unsigned char *fixture_out(const fixture *f, int64_t row, uint32_t head)
{
    const int64_t at = row * f->args.out_row_stride + head * f->args.out_head_stride;
    return (unsigned char *)f->out + at * oct__dtype_size_bytes(f->spec.out_dtype);
}

void fixture_out_f32(const fixture *f, int64_t row, uint32_t head, float *x)
{
    oct__row_to_f32(x, fixture_out(f, row, head), f->spec.out_dtype, f->spec.kv.dim_v);
    for (uint32_t d = 0; d < f->spec.kv.dim_v && f->args.out_scale != NULL; d++) {
        x[d] *= *f->args.out_scale;
    }
}

double stored_value(const oct_kv_layer *l, int is_k, int64_t page, uint32_t token, uint32_t head, uint32_t dim)
{
    const oct_kv_format *format = is_k ? &l->spec.k : &l->spec.v;
    const float *fixed = is_k ? l->k_scale : l->v_scale;
    const int64_t at = is_k ? oct__k_index(l, page, token, head, dim) : oct__v_index(l, page, token, head, dim);
    const unsigned char *base = is_k ? l->k : l->v;
    float x, scale = 1.0f;
    oct__row_to_f32(&x, base + at * oct__dtype_size_bytes(format->dtype), format->dtype, 1);
    if (format->scale_mode == OCT_SCALE_TOKEN_HEAD) {
        const int64_t scale_at = is_k ? oct__k_scale_index(l, page, token, head) : oct__v_scale_index(l, page, token, head);
        const unsigned char *scales = is_k ? l->k_token_scale : l->v_token_scale;
        oct__row_to_f32(&scale, scales + scale_at * oct__dtype_size_bytes(format->scale_dtype), format->scale_dtype, 1);
    } else if (format->scale_mode == OCT_SCALE_CHANNEL) {
        scale = fixed[head * (is_k ? l->spec.dim_k : l->spec.dim_v) + dim];
    } else if (format->scale_mode == OCT_SCALE_LAYER_HEAD) {
        scale = fixed[head];
    } else if (format->scale_mode != OCT_SCALE_NONE) {
        scale = fixed[0];
    }
    return (double)x * (double)scale;
}

/* H[r][c] = (-1)^popcount(r & c) / sqrt(block) over blocks of the largest power of two that divides n. */
static void unrotate(double *x, uint32_t n)
{
    double y[MAX_DIM];
    const uint32_t block = n & (~n + 1);
    for (uint32_t r = 0; r < n; r++) {
        y[r] = 0.0;
        for (uint32_t c = r / block * block; c < r / block * block + block; c++) {
            y[r] += __builtin_popcount(r & c & (block - 1)) % 2 ? -x[c] : x[c];
        }
        y[r] /= sqrt(block);
    }
    memcpy(x, y, n * sizeof *x);
}

double fixture_expect(const fixture *f, uint32_t sequence, int32_t row, uint32_t head, double *out, double *lse)
{
    const oct_kv_spec *kv = &f->spec.kv;
    const int64_t len = f->kv_len[sequence], position = len - f->q_len[sequence] + row, mask_key0 = len - f->q_len[sequence];
    const int64_t batch_row = f->qo_indptr[sequence] + row;
    const uint32_t head_kv = head / (f->spec.heads_q / kv->heads);
    const float *q = f->q_f32 + (batch_row * f->spec.heads_q + head) * kv->dim_k;
    double m = f->spec.has_sink ? (double)f->sink[head] : -INFINITY, z = f->spec.has_sink && m > -INFINITY ? 1.0 : 0.0, v_max = 0.0;
    double x[MAX_DIM];
    memset(out, 0, kv->dim_v * sizeof *out);
    for (int64_t j = 0; j < len; j++) {
        const int64_t t = j - mask_key0;
        if ((f->spec.causal && j > position) || (f->spec.window_tokens > 0 && position - j >= f->spec.window_tokens) ||
            (f->spec.has_mask && t >= 0 && !(f->mask[batch_row * f->args.mask_row_stride + t / 32] >> (t % 32) & 1))) {
            continue;
        }
        const int64_t page = f->pages[f->page_offset[sequence] + j / kv->page_size];
        const uint32_t token = (uint32_t)(j % kv->page_size);
        double s = 0.0;
        for (uint32_t d = 0; d < kv->dim_k; d++) {
            x[d] = stored_value(&f->layer, 1, page, token, head_kv, d);
        }
        if (kv->k.rotated) {
            unrotate(x, kv->dim_k);
        }
        for (uint32_t d = 0; d < kv->dim_k; d++) {
            s += (double)q[d] * x[d];
        }
        s *= (double)f->spec.sm_scale * (f->args.q_scale != NULL ? (double)f->q_scale : 1.0);
        if (f->spec.softcap > 0) {
            s = (double)f->spec.softcap * tanh(s / (double)f->spec.softcap);
        }
        const double m_new = s > m ? s : m, keep = exp(m - m_new), p = exp(s - m_new);
        for (uint32_t d = 0; d < kv->dim_v; d++) {
            x[d] = stored_value(&f->layer, 0, page, token, head_kv, d);
        }
        if (kv->v.rotated) {
            unrotate(x, kv->dim_v);
        }
        for (uint32_t d = 0; d < kv->dim_v; d++) {
            out[d] = out[d] * keep + p * x[d];
            v_max = fabs(x[d]) > v_max ? fabs(x[d]) : v_max;
        }
        z = z * keep + p;
        m = m_new;
    }
    *lse = z > 0.0 ? m + log(z) : -INFINITY;
    for (uint32_t d = 0; d < kv->dim_v && z > 0.0; d++) {
        out[d] /= z;
    }
    return v_max;
}

double fixture_worst(const fixture *f)
{
    double worst = 0.0;
    for (uint32_t s = 0; s < f->n_sequences; s++) {
        for (int32_t r = 0; r < f->q_len[s]; r++) {
            for (uint32_t h = 0; h < f->spec.heads_q; h++) {
                const int64_t row = f->qo_indptr[s] + r;
                double out[MAX_DIM], lse;
                float got[MAX_DIM];
                const double v_max = fixture_expect(f, s, r, h, out, &lse);
                const double got_lse = (double)f->lse[row * f->args.lse_row_stride + h];
                fixture_out_f32(f, row, h, got);
                assert_true(got_lse == lse || fabs(got_lse - lse) <= 1e-5 * (1.0 + fabs(lse)));
                for (uint32_t d = 0; d < f->spec.kv.dim_v; d++) {
                    const double error = fabs((double)got[d] - out[d]);
                    assert_false(isnan(error));
                    assert_true(v_max > 0.0 || got[d] == 0.0f);
                    worst = v_max > 0.0 && error / v_max > worst ? error / v_max : worst;
                }
                /* The gap after the head is as it was. */
                const unsigned char *gap = fixture_out(f, row, h) + f->spec.kv.dim_v * oct__dtype_size_bytes(f->spec.out_dtype);
                for (uint32_t b = 0; b < 5 * oct__dtype_size_bytes(f->spec.out_dtype); b++) {
                    assert_int_equal(gap[b], 0xFF);
                }
            }
        }
    }
    return worst;
}
