/* test_attn_avx2.c: the AVX2 attention tiles against the scalar one, over random features and shapes, with guard pages behind the pools;
 * that bytes a row doesn't see change none of its bits; and small weights beside a large one in integers. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "cpu/avx2.h"
#include "cpu/scalar.h"
#include "rig.h"
#include "words.h"

typedef struct problem {
    oct_kv_spec spec;
    rig_layer layer;
    oct__attn_tile tile;
    int32_t *pages;
    float *q, *o, *m, *z;
    uint32_t *mask;
    uint64_t seed;
    int64_t kv_len;
} problem;

static uint32_t pick(uint64_t *seed, const uint32_t *from, size_t n)
{
    return from[rig_below(seed, (uint32_t)n)];
}
#define PICK(seed, ...) pick(seed, (const uint32_t[]){ __VA_ARGS__ }, sizeof((const uint32_t[]){ __VA_ARGS__ }) / sizeof(uint32_t))

static oct_kv_format random_format(uint64_t *seed)
{
    oct_kv_format f = { .dtype = 1 + rig_below(seed, OCT_DTYPE_I8) };
    if (f.dtype == OCT_DTYPE_I8 || (oct__dtype_is_8bit(f.dtype) && rig_below(seed, 3) == 0)) {
        f.scale_mode = OCT_SCALE_TOKEN_HEAD;
        f.scale_dtype = rig_below(seed, 2) ? OCT_DTYPE_F32 : OCT_DTYPE_F16;
    }
    return f;
}

/* Stores one finite random vector of K or V, with its dynamic scale. */
static void store_vector(problem *p, bool is_k, int64_t page, uint32_t token, uint32_t head)
{
    oct_kv_layer *kv = &p->layer.kv;
    const oct_kv_format *f = is_k ? &p->spec.k : &p->spec.v;
    const uint32_t dim = is_k ? p->spec.dim_k : p->spec.dim_v, size = oct__dtype_size_bytes(f->dtype);
    float x[512];
    uint8_t bytes[2048];
    for (uint32_t d = 0; d < dim; d++) {
        x[d] = rig_normal(&p->seed) * (rig_below(&p->seed, 64) == 0 ? 0.01f : 1.0f); /* subnormals of e4m3 as well */
    }
    float scale = 1.0f;
    if (f->scale_mode == OCT_SCALE_TOKEN_HEAD) {
        scale = oct__scale_dynamic(x, dim, f->dtype, f->scale_dtype, NULL);
        void *scales = is_k ? kv->k_token_scale : kv->v_token_scale;
        const int64_t at = is_k ? oct__k_scale_index(kv, page, token, head) : oct__v_scale_index(kv, page, token, head);
        if (f->scale_dtype == OCT_DTYPE_F16) {
            ((uint16_t *)scales)[at] = oct__f16_from_f32(scale);
        } else {
            ((float *)scales)[at] = scale;
        }
    }
    oct__row_from_f32(bytes, f->dtype, x, dim, scale, NULL);
    for (uint32_t d = 0; d < dim; d++) {
        const int64_t at = is_k ? oct__k_index(kv, page, token, head, d) : oct__v_index(kv, page, token, head, d);
        memcpy((uint8_t *)(is_k ? kv->k : kv->v) + at * size, bytes + (size_t)d * size, size);
    }
}

static void problem_make(problem *p, uint64_t seed, uint32_t max_vectors)
{
    memset(p, 0, sizeof(*p));
    p->seed = seed;
    uint64_t *s = &p->seed;
    oct_kv_spec *spec = &p->spec;
    spec->struct_size = sizeof(*spec);
    do {
        spec->layout = rig_below(s, 3);
        spec->heads = 1 + rig_below(s, 3);
        spec->dim_k = rig_below(s, 2) ? PICK(s, 64, 128) : 8 * (2 + rig_below(s, rig_below(s, 4) ? 31 : 63));
        spec->dim_v = rig_below(s, 2) ? spec->dim_k : 8 * (2 + rig_below(s, 31));
        spec->page_size = PICK(s, 1, 2, 3, 4, 8, 16, 16, 32, 48, 64, 128, 1024);
        spec->k = random_format(s);
        spec->v = random_format(s);
    } while (oct_kv_spec_check(spec, NULL) != OCT_OK);

    p->kv_len = 1 + rig_below(s, rig_below(s, 2) ? 40 : 400);
    const int64_t n_pages = (p->kv_len + spec->page_size - 1) / spec->page_size;
    rig_layer_make(&p->layer, spec, n_pages + 2);
    p->pages = rig_alloc((size_t)n_pages * sizeof(int32_t));
    for (int64_t i = 0; i < n_pages; i++) { /* the highest page is used, so that reading past it meets the guard */
        p->pages[i] = (int32_t)(n_pages + 1 - i);
    }
    for (int64_t i = n_pages - 1; i > 0; i--) {
        const uint32_t j = rig_below(s, (uint32_t)i + 1);
        const int32_t swap = p->pages[i];
        p->pages[i] = p->pages[j];
        p->pages[j] = swap;
    }

    oct__attn_tile *t = &p->tile;
    t->kv = &p->layer.kv;
    t->pages = p->pages;
    t->head_kv = rig_below(s, spec->heads);
    t->n_heads = 1 + rig_below(s, max_vectors < 8 ? max_vectors : 8);
    t->n_rows = 1 + rig_below(s, max_vectors / t->n_heads);
    if (rig_below(s, 3) == 0) {
        t->n_rows = max_vectors / t->n_heads;
    }
    t->key0 = rig_below(s, 3) ? 0 : rig_below(s, (uint32_t)p->kv_len);
    t->key1 = rig_below(s, 3) ? p->kv_len : t->key0 + 1 + rig_below(s, (uint32_t)(p->kv_len - t->key0));
    t->causal = rig_below(s, 4) != 0;
    t->window = rig_below(s, 3) ? 0 : 1 + rig_below(s, 100);
    t->pos0 = rig_below(s, 2) ? p->kv_len - t->n_rows : (int64_t)rig_below(s, (uint32_t)p->kv_len) - 3;
    t->score_scale = 1.0f / sqrtf((float)spec->dim_k);
    t->softcap = rig_below(s, 4) ? 0.0f : 3.0f;
    t->q_stride = (spec->dim_k + 15) / 16 * 16;
    t->o_stride = (spec->dim_v + 15) / 16 * 16;
    const uint32_t n = t->n_rows * t->n_heads;
    p->q = rig_alloc((size_t)n * t->q_stride * sizeof(float));
    memset(p->q, 0, (size_t)n * t->q_stride * sizeof(float));
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t d = 0; d < spec->dim_k; d++) {
            p->q[i * t->q_stride + d] = 2 * rig_normal(s);
        }
    }
    t->q = p->q;
    if (rig_below(s, 4) == 0) {
        t->mask_key0 = p->kv_len - (p->kv_len < 70 ? p->kv_len : 70);
        t->mask_row_stride = 4;
        p->mask = rig_alloc((size_t)t->n_rows * 4 * sizeof(uint32_t));
        for (uint32_t i = 0; i < t->n_rows * 4; i++) {
            p->mask[i] = (uint32_t)rig_random(s);
        }
        t->mask = p->mask;
    }
    p->o = rig_alloc((size_t)n * t->o_stride * sizeof(float));
    p->m = rig_alloc(n * sizeof(float));
    p->z = rig_alloc(n * sizeof(float));
    t->o = p->o;
    t->m = p->m;
    t->z = p->z;
    t->scratch = NULL;
}

static bool sees(const oct__attn_tile *t, uint32_t row, int64_t key)
{
    const int64_t position = t->pos0 + row, bit = key - t->mask_key0;
    return !(t->causal && key > position) && !(t->window > 0 && position - key >= (int64_t)t->window) &&
           !(t->mask != NULL && bit >= 0 && !((t->mask[row * t->mask_row_stride + bit / 32] >> (bit % 32)) & 1));
}

static bool is_seen(const oct__attn_tile *t, int64_t key)
{
    for (uint32_t r = 0; r < t->n_rows; r++) {
        if (key >= t->key0 && key < t->key1 && sees(t, r, key)) {
            return true;
        }
    }
    return false;
}

static void problem_fill(problem *p)
{
    for (int64_t key = 0; key < p->kv_len; key++) {
        if (is_seen(&p->tile, key)) {
            store_vector(p, true, p->pages[key / p->spec.page_size], (uint32_t)(key % p->spec.page_size), p->tile.head_kv);
            store_vector(p, false, p->pages[key / p->spec.page_size], (uint32_t)(key % p->spec.page_size), p->tile.head_kv);
        }
    }
    /* Pages that no row sees may be gone. */
    const int64_t n_pages = (p->kv_len + p->spec.page_size - 1) / p->spec.page_size;
    for (int64_t i = 0; i < n_pages; i++) {
        bool any = false;
        for (uint32_t t = 0; t < p->spec.page_size; t++) {
            const int64_t key = i * p->spec.page_size + t;
            any = any || (key < p->kv_len && is_seen(&p->tile, key));
        }
        if (!any) {
            p->pages[i] = OCT_PAGE_NONE;
        }
    }
}

static void problem_free(problem *p)
{
    rig_layer_free(&p->layer);
    free(p->pages);
    free(p->q);
    free(p->o);
    free(p->m);
    free(p->z);
    free(p->mask);
}

/* fill: what the scratch holds before; no bit of a result may come of it. */
static void run(problem *p, oct__attn_fn *attn, oct__attn_scratch_fn *scratch, int fill)
{
    const oct__attn_tile *t = &p->tile;
    const uint32_t n = t->n_rows * t->n_heads;
    const size_t bytes = scratch(&p->spec, n);
    uint8_t *memory = rig_alloc(bytes);
    memset(memory, fill, bytes);
    memset(p->o, 0xFF, (size_t)n * t->o_stride * sizeof(float));
    memset(p->m, 0xFF, n * sizeof(float));
    memset(p->z, 0xFF, n * sizeof(float));
    p->tile.scratch = memory;
    attn(t);
    p->tile.scratch = NULL;
    free(memory);
}

/* out and lse of the vector, as the runner makes them. */
static void finish(const problem *p, uint32_t i, float *out, double *lse)
{
    const oct__attn_tile *t = &p->tile;
    for (uint32_t d = 0; d < p->spec.dim_v; d++) {
        out[d] = p->z[i] == 0 ? 0 : p->o[i * t->o_stride + d] / p->z[i];
    }
    *lse = (double)p->m[i] + log((double)p->z[i]);
}

typedef struct way {
    const char *name;
    oct__attn_fn *attn;
    oct__attn_scratch_fn *scratch;
    uint32_t max_vectors;
    bool in_words; /* over i8, q in 16 bits and weights in 15 */
} way;
static const way ways[] = {
    { "few", oct__attn_few__avx2, oct__attn_few_scratch__avx2, OCT__AVX2_FEW, false },
    { "many", oct__attn_many__avx2, oct__attn_many_scratch__avx2, 130, false },
    { "decode", oct__attn_decode__avx2, oct__attn_decode_scratch__avx2, 16, false },
    { "extend", oct__attn_extend__avx2, oct__attn_extend_scratch__avx2, 64, false },
    { "few, words", oct__attn_few__avx2word, oct__attn_few_scratch__avx2word, OCT__AVX2_FEW, true },
    { "many, words", oct__attn_many__avx2word, oct__attn_many_scratch__avx2word, 130, true },
    { "decode, words", oct__attn_decode__avx2word, oct__attn_decode_scratch__avx2word, 64, true },
};
enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

static void describe(const problem *p, const char *name, uint64_t seed)
{
    const oct__attn_tile *t = &p->tile;
    fprintf(stderr,
            "%s seed %llu: layout %u dims %u/%u page %u K %s%s V %s%s rows %u heads %u keys [%lld, %lld) of %lld pos0 %lld causal %u "
            "window %u cap %g "
            "mask %d\n",
            name, (unsigned long long)seed, p->spec.layout, p->spec.dim_k, p->spec.dim_v, p->spec.page_size,
            oct__dtype_name(p->spec.k.dtype), p->spec.k.scale_mode ? "*" : "", oct__dtype_name(p->spec.v.dtype),
            p->spec.v.scale_mode ? "*" : "", t->n_rows, t->n_heads, (long long)t->key0, (long long)t->key1, (long long)p->kv_len,
            (long long)t->pos0, t->causal, t->window, (double)t->softcap, t->mask != NULL);
}

static void test_like_scalar(void **state)
{
    (void)state;
    double worst[2] = { 0, 0 };
    for (uint64_t seed = 1; seed <= 300 * WAYS; seed++) {
        const way *w = &ways[seed % WAYS];
        problem p;
        float expected[512], got[512];
        double expected_lse, got_lse;
        problem_make(&p, seed * UINT64_C(0x9E3779B97F4A7C15), w->max_vectors);
        problem_fill(&p);
        const uint32_t n = p.tile.n_rows * p.tile.n_heads;
        const bool is_k_rounded = w->in_words && p.spec.k.dtype == OCT_DTYPE_I8, is_rounded = is_k_rounded || (w->in_words && p.spec.v.dtype == OCT_DTYPE_I8);
        const double lse_bound = is_k_rounded ? 1e-3 : 1e-5, out_bound = is_rounded ? 6e-4 : 1e-5;
        run(&p, oct__attn__scalar, oct__attn_scratch__scalar, 0xFF);
        float *o = rig_alloc((size_t)n * p.tile.o_stride * sizeof(float)), *m = rig_alloc(n * sizeof(float)),
              *z = rig_alloc(n * sizeof(float));
        memcpy(o, p.o, (size_t)n * p.tile.o_stride * sizeof(float));
        memcpy(m, p.m, n * sizeof(float));
        memcpy(z, p.z, n * sizeof(float));
        run(&p, w->attn, w->scratch, 0);
        float *zeroed = rig_alloc((size_t)n * (p.tile.o_stride + 2) * sizeof(float));
        float *const zeroed_m = zeroed + n * p.tile.o_stride, *const zeroed_z = zeroed_m + n;
        memcpy(zeroed, p.o, (size_t)n * p.tile.o_stride * sizeof(float));
        memcpy(zeroed_m, p.m, n * sizeof(float));
        memcpy(zeroed_z, p.z, n * sizeof(float));
        run(&p, w->attn, w->scratch, 0xFF);
        bool is_scratch_seen = memcmp(zeroed_m, p.m, n * sizeof(float)) != 0 || memcmp(zeroed_z, p.z, n * sizeof(float)) != 0;
        for (uint32_t i = 0; i < n; i++) {
            is_scratch_seen |= memcmp(zeroed + i * p.tile.o_stride, p.o + i * p.tile.o_stride, p.spec.dim_v * sizeof(float)) != 0;
        }
        free(zeroed);
        if (is_scratch_seen) {
            describe(&p, w->name, seed);
            fail_msg("bits depend on what the scratch held before");
        }
        for (uint32_t i = 0; i < n; i++) {
            float *const got_o = p.o, *const got_m = p.m, *const got_z = p.z;
            finish(&p, i, got, &got_lse);
            p.o = o, p.m = m, p.z = z;
            finish(&p, i, expected, &expected_lse);
            p.o = got_o, p.m = got_m, p.z = got_z;
            bool same = (m[i] == -INFINITY) == (p.m[i] == -INFINITY) && (z[i] == 0) == (p.z[i] == 0);
            if (m[i] != -INFINITY) {
                same = same && fabs(got_lse - expected_lse) <= lse_bound * (1 + fabs(expected_lse));
            }
            for (uint32_t d = 0; d < p.spec.dim_v; d++) { /* |V| is about 4 at most, and near 1 where few keys are seen */
                const double error = fabs((double)got[d] - (double)expected[d]);
                worst[is_rounded] = error > worst[is_rounded] ? error : worst[is_rounded];
                same = same && error <= out_bound;
            }
            if (!same) {
                describe(&p, w->name, seed);
                fail_msg("vector %u: lse %g, scalar %g; out[0] %g, scalar %g", i, got_lse, expected_lse, (double)got[0],
                         (double)expected[0]);
            }
        }
        free(o);
        free(m);
        free(z);
        problem_free(&p);
    }
    print_message("largest difference from the scalar tile: %.2e, in words %.2e\n", worst[0], worst[1]);
    assert_true(worst[1] > 10 * worst[0]); /* integers did multiply */
}

/* Poison one key that some rows see and others don't: who sees it turns NaN, and nobody else changes by a bit. */
static void test_unseen_bytes(void **state)
{
    (void)state;
    uint32_t n_tried = 0;
    for (uint64_t seed = 1; seed <= 1500; seed++) {
        const way *w = &ways[seed % WAYS];
        problem p;
        problem_make(&p, seed * UINT64_C(0xD1342543DE82EF95), w->max_vectors);
        if (p.tile.softcap > 0) {
            problem_free(&p);
            continue;
        }
        problem_fill(&p);
        const oct__attn_tile *t = &p.tile;
        const uint32_t n = t->n_rows * t->n_heads;
        for (uint32_t attempt = 0; attempt < 2; attempt++) {
            const int64_t key = t->key0 + rig_below(&p.seed, (uint32_t)(t->key1 - t->key0));
            const bool is_k = attempt == 0;
            if (!is_seen(t, key)) {
                continue;
            }
            n_tried++;
            const size_t o_bytes = (size_t)n * t->o_stride * sizeof(float);
            float *o = rig_alloc(o_bytes), *m = rig_alloc(n * sizeof(float)), *z = rig_alloc(n * sizeof(float));
            run(&p, w->attn, w->scratch, 0);
            memcpy(o, p.o, o_bytes);
            memcpy(m, p.m, n * sizeof(float));
            memcpy(z, p.z, n * sizeof(float));
            /* NaN bytes into one element; of i8, which has none, into the scale */
            const oct_kv_format *f = is_k ? &p.spec.k : &p.spec.v;
            const bool is_scale = f->dtype == OCT_DTYPE_I8;
            const uint32_t size = oct__dtype_size_bytes(is_scale ? f->scale_dtype : f->dtype), d = rig_below(&p.seed, is_k ? p.spec.dim_k : p.spec.dim_v);
            const int64_t page = p.pages[key / p.spec.page_size];
            const uint32_t token = (uint32_t)(key % p.spec.page_size), head = t->head_kv;
            uint8_t *element;
            if (is_scale) {
                element = (uint8_t *)(is_k ? t->kv->k_token_scale : t->kv->v_token_scale) +
                          (is_k ? oct__k_scale_index(t->kv, page, token, head) : oct__v_scale_index(t->kv, page, token, head)) * size;
            } else {
                element = (uint8_t *)(is_k ? t->kv->k : t->kv->v) + (is_k ? oct__k_index(t->kv, page, token, head, d) : oct__v_index(t->kv, page, token, head, d)) * size;
            }
            uint8_t saved[4];
            memcpy(saved, element, size);
            memset(element, f->dtype == OCT_DTYPE_E4M3FNUZ ? 0x80 : 0xFF, size);
            run(&p, w->attn, w->scratch, 0);
            for (uint32_t i = 0; i < n; i++) {
                const float *now = p.o + i * t->o_stride, *before = o + i * t->o_stride;
                bool right;
                if (sees(t, i / t->n_heads, key)) {
                    right = is_k ? isnan(p.z[i]) && isnan(now[0]) : isnan(now[d]) && p.z[i] == z[i] && isnan(now[d == 0 ? 1 : 0]) == is_scale;
                } else {
                    right = memcmp(&p.m[i], &m[i], 4) == 0 && memcmp(&p.z[i], &z[i], 4) == 0 &&
                            memcmp(now, before, p.spec.dim_v * sizeof(float)) == 0;
                }
                if (!right) {
                    describe(&p, w->name, seed);
                    fail_msg("vector %u (sees: %d) after a NaN in %s of key %lld, dim %u", i, sees(t, i / t->n_heads, key),
                             is_k ? "K" : "V", (long long)key, d);
                }
            }
            memcpy(element, saved, size);
            free(o);
            free(m);
            free(z);
        }
        problem_free(&p);
    }
    print_message("%u poisoned keys\n", n_tried);
    assert_true(n_tried > 500);
}

static void test_words(void **state)
{
    (void)state;
    for (size_t i = 0; i < WAYS; i++) {
        for (uint32_t n = 1; n <= ways[i].max_vectors && n <= WORDS_VECTORS; n += n < 8 ? 1 : 8) {
            if (ways[i].in_words) {
                words_check_rest(ways[i].name, ways[i].attn, ways[i].scratch, n);
                words_check_signs(ways[i].name, ways[i].attn, ways[i].scratch, n);
            }
        }
    }
}

int main(void)
{
    if (!rig_can_run()) {
        print_message("no AVX2, FMA or F16C on this machine\n");
        return 77;
    }
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_like_scalar), cmocka_unit_test(test_unseen_bytes), cmocka_unit_test(test_words) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
