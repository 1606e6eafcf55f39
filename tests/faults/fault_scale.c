/* fault_scale.c: scales that are given must be used, each where it belongs. */
#include <math.h>

#include "faults/faults.h"

/* ---- A1 ------------------------------------------------------------------------------------------------------- */

enum { LAYERS = 3, TOKENS = 40, HEADS = 2, DIM = 64 };

static const float layer_k_scale[LAYERS] = { 0.04f, 0.5f, 2.0f }, layer_v_scale[LAYERS] = { 0.1f, 1.0f, 4.0f };

typedef struct layered {
    problem p;                      /* its pages and queries; the memory of K and V is the pool's */
    oct_kv_pool *pool;
    float k[TOKENS * HEADS * DIM], v[TOKENS * HEADS * DIM];
    int32_t slots[TOKENS];
    float own[LAYERS][2][HEADS * DIM];   /* the scales as given, apart from the pool */
} layered;

static size_t n_scales(uint32_t mode)
{
    return mode == OCT_SCALE_CHANNEL ? HEADS * DIM : mode == OCT_SCALE_LAYER_HEAD ? HEADS : 1;
}

static int make_layered(layered *l, uint32_t dtype, uint32_t mode, int64_t seed)
{
    problem_shape s = problem_plain(seed);
    rng r = rng_make((uint64_t)seed);
    fault_set_formats(&s, dtype, mode);
    problem_lengths(&s, 2, (int32_t[]){ 1, 20 }, (int32_t[]){ TOKENS, TOKENS });   /* decode and extend, over the same pages */
    if (problem_make(&l->p, &s) != 0)
        return -1;
    memcpy(l->p.pages + l->p.page_at[1], l->p.pages, (size_t)l->p.page_at[1] * sizeof(int32_t));
    memcpy(l->p.table_pages, l->p.pages, (size_t)l->p.page_at[2] * sizeof(int32_t));
    l->p.spec.sm_scale = 0.125f;
    for (int i = 0; i < TOKENS; i++)
        l->slots[i] = l->p.pages[i / 16] * 16 + i % 16;
    for (int i = 0; i < TOKENS * HEADS * DIM; i++) {
        l->k[i] = (float)(2.0 * rng_normal(&r));
        l->v[i] = (float)(2.0 * rng_normal(&r));
    }
    oct_kv_pool_options options = { (uint32_t)sizeof options, LAYERS, l->p.n_pages, l->p.spec.kv };
    return oct_kv_pool_create(problem_context(1), &options, &l->pool, NULL) == OCT_OK ? 0 : -1;
}

/* to_layer's scale is that of from_layer; heads and channels deviate from it. */
static int give_scales(layered *l, uint32_t mode, uint32_t to_layer, uint32_t from_layer)
{
    for (size_t i = 0; i < n_scales(mode); i++) {
        const float deviation = 1.0f + 0.25f * (float)(i % 7);
        l->own[to_layer][0][i] = layer_k_scale[from_layer] * deviation;
        l->own[to_layer][1][i] = layer_v_scale[from_layer] * deviation;
    }
    if (mode == OCT_SCALE_TENSOR)   /* layer 0 speaks for the whole model */
        memcpy(l->own[to_layer], l->own[0], sizeof l->own[0]);
    if (mode == OCT_SCALE_NONE || (mode == OCT_SCALE_TENSOR && to_layer > 0))
        return 0;
    return oct_kv_pool_set_scale(l->pool, to_layer, 0, l->own[to_layer][0], n_scales(mode), NULL) == OCT_OK &&
                   oct_kv_pool_set_scale(l->pool, to_layer, 1, l->own[to_layer][1], n_scales(mode), NULL) == OCT_OK
               ? 0
               : -1;
}

/* Writes the tokens into one layer; its view and one whose scales are the test's own. */
static int write_layer(layered *l, uint32_t layer, oct_kv_layer *view, oct_kv_layer *own)
{
    if (oct_kv_pool_layer(l->pool, layer, view, NULL) != OCT_OK)
        return -1;
    *own = *view;
    if (own->k_scale != NULL) {
        own->k_scale = l->own[layer][0];
        own->v_scale = l->own[layer][1];
    }
    oct_kv_write_args args;
    memset(&args, 0, sizeof args);
    args.struct_size = sizeof args;
    args.checked = 1;
    args.layer = view;
    args.slots = l->slots;
    args.n_tokens = TOKENS;
    args.src_dtype = OCT_DTYPE_F32;
    args.k = l->k;
    args.v = l->v;
    args.k_token_stride = args.v_token_stride = HEADS * DIM;
    args.k_head_stride = args.v_head_stride = DIM;
    return oct_kv_write(problem_context(1), &args) == OCT_OK ? 0 : -1;
}

static int64_t judge_bytes(const layered *l, const oct_kv_layer *own)
{
    for (int which = 0; which < 2; which++)
        for (int32_t t = 0; t < TOKENS; t++)
            for (uint32_t h = 0; h < HEADS; h++) {
                oracle_written w;
                oracle_write_vector(own, (oracle_which)which, (which == 0 ? l->k : l->v) + (t * HEADS + (int32_t)h) * DIM, NULL, 0, &w);
                const int64_t wrong = oracle_check_written(own, (oracle_which)which, l->slots[t] / 16, (uint32_t)(l->slots[t] % 16), h, &w, NULL);
                if (wrong != -1) {
                    isolate_fail("%s of token %d head %u dim %lld is not x / scale of this layer", which == 0 ? "K" : "V", t, h, (long long)wrong);
                    return 1;
                }
            }
    return 0;
}

static int64_t run_layers(void *arg, int64_t index)
{
    static const uint32_t dtypes[] = { OCT_DTYPE_E4M3FN, OCT_DTYPE_E5M2, OCT_DTYPE_E4M3FNUZ };
    static const uint32_t modes[] = { OCT_SCALE_LAYER, OCT_SCALE_LAYER_HEAD, OCT_SCALE_CHANNEL, OCT_SCALE_TENSOR };
    const uint32_t mode = modes[index / 3];
    int64_t failures = 0;
    layered *l = calloc(1, sizeof *l);
    oct_kv_layer view, own;
    (void)arg;
    isolate_doing("dtype %u, scale mode %u", dtypes[index % 3], mode);
    if (l == NULL || make_layered(l, dtypes[index % 3], mode, 10 + index) != 0)
        return 1;
    view.struct_size = sizeof view;
    if (oct_kv_pool_layer(l->pool, LAYERS - 1, &view, NULL) != OCT_INVALID_ARGUMENT) {
        isolate_fail("a layer without scales can be used");
        failures++;
    }
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        failures += give_scales(l, mode, layer, layer) != 0;
    unsigned char *bytes[LAYERS] = { NULL };
    const size_t n_bytes = (size_t)l->p.n_pages * 16 * HEADS * DIM;
    for (uint32_t layer = 0; layer < LAYERS && failures == 0; layer++) {
        if (write_layer(l, layer, &view, &own) != 0)
            return 1;
        isolate_doing("layer %u, dtype %u, scale mode %u", layer, dtypes[index % 3], mode);
        failures += judge_bytes(l, &own);
        bytes[layer] = malloc(n_bytes);
        if (bytes[layer] == NULL)
            return 1;
        memcpy(bytes[layer], view.k, n_bytes);
        oct_attn_args oracle_args = l->p.args;
        oracle_args.layer = &own;
        l->p.layer = view;
        l->p.attn.args = &oracle_args;
        failures += problem_check_made(&l->p, RUN_WHOLE);
    }
    if (mode != OCT_SCALE_TENSOR) {   /* two layers' scales change places: so do bytes */
        for (uint32_t layer = 0; layer < 2 && failures == 0; layer++) {
            if (give_scales(l, mode, layer, 1 - layer) != 0 || write_layer(l, layer, &view, &own) != 0)
                return 1;
            if (memcmp(bytes[layer], view.k, n_bytes) == 0) {
                isolate_fail("layer %u holds the same bytes under another scale", layer);
                failures++;
            }
        }
        isolate_doing("layer 0 under the scale of layer 1");
        if (failures == 0 && (oct_kv_pool_layer(l->pool, 0, &view, NULL) != OCT_OK || memcmp(bytes[1], view.k, n_bytes) != 0)) {
            isolate_fail("the bytes are not those that layer 1 had");
            failures++;
        }
    }
    for (int layer = 0; layer < LAYERS; layer++)
        free(bytes[layer]);
    oct_kv_pool_destroy(l->pool);
    problem_drop(&l->p);
    free(l);
    return failures;
}

void fault_A1_each_layer_writes_and_reads_with_its_own_scale(void **state)
{
    (void)state;
    RUN_CASES("A1", 12, 60, run_layers);
}

/* ---- A3 ------------------------------------------------------------------------------------------------------- */

static void set_scale(problem *p, oracle_which which, float value)
{
    guard *g = which == ORACLE_K ? &p->k_scale : &p->v_scale;
    for (size_t i = 0; i < g->size_bytes / sizeof(float); i++)
        ((float *)g->at)[i] = value;
}

static int64_t compare_doubled(const problem *p, const void *single)
{
    for (int64_t i = 0; i < p->out_elements; i++) {
        const double now = oracle_decode(p->spec.out_dtype, p->out.at, i), before = oracle_decode(p->spec.out_dtype, single, i);
        if (!(fabs(now - 2.0 * before) <= 0x1p-7 * fabs(now))) {   /* one unit of bf16 */
            isolate_fail("element %lld is %g under v_scale 1 and %g under v_scale 2", (long long)i, before, now);
            return 1;
        }
    }
    return 0;
}

static int64_t compare_sharpened(const problem *p, const void *sharp)
{
    double largest = 0.0;
    for (int64_t i = 0; i < p->out_elements; i++)
        largest = fmax(largest, fabs(oracle_decode(p->spec.out_dtype, p->out.at, i) - oracle_decode(p->spec.out_dtype, sharp, i)));
    if (largest > 1e-2)
        return 0;
    isolate_fail("k_scale 1 and 0.1 give the same output to %g", largest);
    return 1;
}

/* One pair at a time, since the body compares two runs of the same pair. */
static int64_t run_descales(void *arg, int64_t index)
{
    static const uint32_t modes[] = { OCT_SCALE_LAYER, OCT_SCALE_TENSOR, OCT_SCALE_LAYER_HEAD, OCT_SCALE_CHANNEL };
    problem_shape s = problem_plain(30 + index);
    problem p;
    int64_t failures = 0;
    char force[96];
    (void)arg;
    fault_set_formats(&s, OCT_DTYPE_E4M3FN, modes[index / 2]);
    s.heads_q = index < 2 ? 64 : 8;
    s.heads = index < 2 ? 16 : 2;
    s.dim_k = s.dim_v = 128;
    s.page_size = 1;
    s.out_dtype = OCT_DTYPE_BF16;
    s.causal = 0;
    if (index % 2 == 0) {   /* 100 rows of one sequence */
        problem_lengths(&s, 1, (int32_t[]){ 100 }, (int32_t[]){ 128 });
    } else {                /* one row each of some */
        problem_lengths(&s, 4, (int32_t[]){ 1, 1, 1, 1 }, (int32_t[]){ 128, 128, 128, 128 });
    }
    if (problem_make(&p, &s) != 0)
        return 1;
    set_scale(&p, ORACLE_K, 1.0f);
    set_scale(&p, ORACLE_V, 1.0f);
    p.spec.sm_scale = 2.0f / (100.0f * sqrtf(128.0f));   /* codes of K have the deviation 100 */
    failures += problem_check_made(&p, RUN_WHOLE);
    unsigned char *before = malloc(p.out.size_bytes);
    for (uint32_t i = 0; before != NULL && problem_pair(i, force, sizeof force); i++) {
        problem_outcome outcome = problem_run(&p, problem_context(1), force, RUN_WHOLE);
        if (outcome.status == OCT_UNSUPPORTED)
            continue;
        memcpy(before, p.out.at, p.out.size_bytes);
        isolate_doing("%s", force);
        isolate_repeat("faults fault_A3*");
        set_scale(&p, ORACLE_V, 2.0f);
        outcome = problem_run(&p, problem_context(1), force, RUN_WHOLE);
        failures += outcome.status != OCT_OK || compare_doubled(&p, before) != 0;
        set_scale(&p, ORACLE_V, 1.0f);
        set_scale(&p, ORACLE_K, 0.1f);
        outcome = problem_run(&p, problem_context(1), force, RUN_WHOLE);
        failures += outcome.status != OCT_OK || compare_sharpened(&p, before) != 0;
        set_scale(&p, ORACLE_K, 1.0f);
    }
    set_scale(&p, ORACLE_K, 0.1f);
    set_scale(&p, ORACLE_V, 2.0f);
    failures += problem_check_made(&p, RUN_WHOLE) + (before == NULL);
    free(before);
    problem_drop(&p);
    return failures;
}

void fault_A3_descales_reach_the_kernel(void **state)
{
    (void)state;
    RUN_CASES("A3", 8, 120, run_descales);
}

/* ---- A5 ------------------------------------------------------------------------------------------------------- */

static int64_t run_cells(void *arg, int64_t index)
{
    static const int64_t q_dtypes[] = { OCT_DTYPE_BF16, OCT_DTYPE_E4M3FN, OCT_DTYPE_E5M2, OCT_DTYPE_E4M3FNUZ, OCT_DTYPE_F16, OCT_DTYPE_F32 };
    static const uint32_t dtypes[] = { OCT_DTYPE_E4M3FN, OCT_DTYPE_E5M2, OCT_DTYPE_E4M3FNUZ };
    static const float k_scales[] = { 1.0f, 0.07f }, v_scales[] = { 1.0f, 3.0f };
    problem_shape s = problem_plain(60 + index);
    problem p;
    int64_t failures = 0;
    (void)arg;
    fault_set_formats(&s, dtypes[index / COUNT(q_dtypes)], OCT_SCALE_LAYER);
    s.q_dtype = q_dtypes[index % COUNT(q_dtypes)];
    s.heads = 1;
    problem_lengths(&s, 4, (int32_t[]){ 1, 1, 1, 30 }, (int32_t[]){ 1, 17, 300, 300 });
    if (problem_make(&p, &s) != 0)
        return 1;
    const float made_with = *(float *)p.k_scale.at;
    p.spec.sm_scale *= 2.0f * made_with;   /* scores of deviation 2 under k_scale 1 */
    for (int i = 0; i < 4; i++) {
        set_scale(&p, ORACLE_K, k_scales[i % 2]);
        set_scale(&p, ORACLE_V, v_scales[i / 2]);
        failures += problem_check_made(&p, RUN_WHOLE);
    }
    problem_drop(&p);
    return failures;
}

void fault_A5_descales_with_every_q_and_kv_format(void **state)
{
    (void)state;
    RUN_CASES("A5", 18, 60, run_cells);
}
