/* words.h: owns what every row of integer products must hold over i8 pages: a small rest beside one large weight, and K scales below 0.
 * The exact results are made here in float64, of the stored bytes.
 *
 * Threads: pure. */
#ifndef TEST_CPU_AVX2_WORDS_H
#define TEST_CPU_AVX2_WORDS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "cpu/scalar.h"
#include "rig.h"

enum { WORDS_KEYS = 131, WORDS_PAGE = 64, WORDS_PAGES = 3, WORDS_DIM_K = 64, WORDS_DIM_V = 72, WORDS_VECTORS = 40 };

typedef struct words {
    rig_layer layer;
    int32_t pages[WORDS_PAGES];
    _Alignas(64) float q[WORDS_VECTORS * WORDS_DIM_K], o[WORDS_VECTORS * 80], m[WORDS_VECTORS], z[WORDS_VECTORS];
} words;

/* Random bytes of K and V, K's by k_most at most, scales of 0.01. */
static inline words *words_make(uint64_t *seed, uint32_t k_most)
{
    words *w = rig_alloc(sizeof(*w));
    const oct_kv_spec spec = { .struct_size = sizeof(spec), .layout = OCT_LAYOUT_HND, .heads = 1, .dim_k = WORDS_DIM_K, .dim_v = WORDS_DIM_V, .page_size = WORDS_PAGE,
                               .k = { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32, 0 }, .v = { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32, 0 } };
    memset(w, 0, sizeof(*w));
    rig_layer_make(&w->layer, &spec, WORDS_PAGES);
    for (int32_t i = 0; i < WORDS_PAGES; i++) {
        w->pages[i] = i;
    }
    for (size_t i = 0; i < w->layer.k_bytes; i++) {
        w->layer.k.at[i] = (uint8_t)(int8_t)((int32_t)rig_below(seed, 2 * k_most + 1) - (int32_t)k_most);
    }
    for (size_t i = 0; i < w->layer.v_bytes; i++) {
        w->layer.v.at[i] = (uint8_t)(int8_t)((int32_t)rig_below(seed, 255) - 127);
    }
    for (int i = 0; i < WORDS_PAGES * WORDS_PAGE; i++) {
        ((float *)w->layer.kv.k_token_scale)[i] = 0.01f;
        ((float *)w->layer.kv.v_token_scale)[i] = 0.01f;
    }
    return w;
}

static inline void words_free(words *w)
{
    rig_layer_free(&w->layer);
    free(w);
}

static inline void words_run(words *w, oct__attn_fn *attn, oct__attn_scratch_fn *scratch, uint32_t n)
{
    const oct__attn_tile tile = { .kv = &w->layer.kv, .pages = w->pages, .n_rows = n, .n_heads = 1, .key1 = WORDS_KEYS, .pos0 = WORDS_KEYS, .score_scale = 1.0f,
                                  .q = w->q, .q_stride = WORDS_DIM_K, .o = w->o, .o_stride = 80, .m = w->m, .z = w->z,
                                  .scratch = rig_alloc(scratch(&w->layer.kv.spec, n)) };
    attn(&tile);
    free(tile.scratch);
}

/* out[WORDS_DIM_V] of vector i, and its lse. */
static inline double words_exact(const words *w, uint32_t i, double *out)
{
    double s[WORDS_KEYS], most = -INFINITY, z = 0;
    for (int j = 0; j < WORDS_KEYS; j++) {
        s[j] = 0;
        for (int d = 0; d < WORDS_DIM_K; d++) {
            s[j] += (double)w->q[i * WORDS_DIM_K + (uint32_t)d] * (int8_t)w->layer.k.at[j * WORDS_DIM_K + d];
        }
        s[j] *= (double)((const float *)w->layer.kv.k_token_scale)[j];
        most = fmax(most, s[j]);
    }
    memset(out, 0, WORDS_DIM_V * sizeof(*out));
    for (int j = 0; j < WORDS_KEYS; j++) {
        const double p = exp(s[j] - most);
        z += p;
        for (int d = 0; d < WORDS_DIM_V; d++) {
            out[d] += p * (double)((const float *)w->layer.kv.v_token_scale)[j] * (int8_t)w->layer.v.at[j * WORDS_DIM_V + d];
        }
    }
    for (int d = 0; d < WORDS_DIM_V; d++) {
        out[d] /= z;
    }
    return most + log(z);
}

/* One key takes nearly all of the weight, the others about 2^-14 each: two of 15 bits' units. Where its V is zeros, they are the whole result. */
static inline void words_check_rest(const char *name, oct__attn_fn *attn, oct__attn_scratch_fn *scratch, uint32_t n)
{
    static const int needles[] = { 0, 37, 63, 100, 130 };
    for (uint32_t t = 0; t < 15; t++) {
        uint64_t seed = 77 + t;
        words *w = words_make(&seed, 127);
        const int needle = needles[t % 5];
        for (int j = 0; j < WORDS_KEYS; j++) {
            w->layer.k.at[j * WORDS_DIM_K] = j == needle ? 100 : 0;
        }
        memset(w->layer.v.at + needle * WORDS_DIM_V, t < 5 ? 0 : 50, WORDS_DIM_V);
        ((float *)w->layer.kv.v_token_scale)[needle] = t < 10 ? 0.01f : -0.01f;
        for (uint32_t i = 0; i < n; i++) { /* every third has its weight spread, beside those that have not */
            w->q[i * WORDS_DIM_K] = i % 3 == 2 ? 0.0f : (float)(14 * log(2.0));
            w->q[i * WORDS_DIM_K + 1] = w->q[i * WORDS_DIM_K + 2] = 0.7f;
        }
        words_run(w, attn, scratch, n);
        for (uint32_t i = 0; i < n; i++) {
            double out[WORDS_DIM_V], error = 0, size = 0;
            (void)words_exact(w, i, out);
            for (int d = 0; d < WORDS_DIM_V; d++) {
                const double is = (double)w->o[i * 80 + (uint32_t)d] / (double)w->z[i];
                error += (is - out[d]) * (is - out[d]);
                size += out[d] * out[d];
            }
            if (!(sqrt(error / size) < 2e-3)) {
                fail_msg("%s, %u vectors, key %d: vector %u is off by %g of itself", name, n, needle, i, sqrt(error / size));
            }
        }
        words_free(w);
    }
}

/* Scores of hundreds, which a q in 16 bits would leave 0.03 off: a block's K scales forbid it by their magnitude, whatever their sign. */
static inline void words_check_signs(const char *name, oct__attn_fn *attn, oct__attn_scratch_fn *scratch, uint32_t n)
{
    uint64_t seed = 5;
    words *w = words_make(&seed, 127);
    for (int j = 0; j < WORDS_KEYS; j++) {
        ((float *)w->layer.kv.k_token_scale)[j] = -1.0f;
    }
    for (uint32_t i = 0; i < n * WORDS_DIM_K; i++) {
        w->q[i] = rig_normal(&seed);
    }
    words_run(w, attn, scratch, n);
    for (uint32_t i = 0; i < n; i++) {
        double out[WORDS_DIM_V];
        const double lse = words_exact(w, i, out), is = (double)w->m[i] + log((double)w->z[i]);
        if (!(fabs(is - lse) < 3e-3)) {
            fail_msg("%s, %u vectors: the lse of vector %u is %.6f, expected %.6f", name, n, i, is, lse);
        }
    }
    words_free(w);
}

#endif
