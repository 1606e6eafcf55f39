/* fault_size.c: pools beyond 4 GiB, batches beyond 65535 rows. */
#include <math.h>

#include "faults/faults.h"

/* ---- E1 ------------------------------------------------------------------------------------------------------- */

enum { HUGE_PAGES = 8401239, E1_HEADS = 8, E1_DIM = 64, E1_ROW = E1_HEADS * E1_DIM };

/* 4 requests of 128 one-token pages in a pool of 4.3 GB each of K and V, of which only the touched pages take memory: two from page
 * 16435 on, two at the top end, and against the same rows in a small pool, to the bit. */
static int64_t run_huge_pool(void *arg, int64_t index)
{
    problem_shape s = problem_plain(600);
    problem p;
    guard k, v;
    char force[96];
    int64_t failures = 0;
    (void)arg;
    (void)index;
    s.heads_q = s.heads = E1_HEADS;
    s.page_size = 1;
    problem_lengths(&s, 4, (int32_t[]){ 128, 1, 128, 1 }, (int32_t[]){ 128, 128, 128, 128 });
    isolate_repeat("faults fault_E1*");
    if (problem_make(&p, &s) != 0 || problem_expect(&p) != 0)
        return 1;
    if (guard_make(&k, (size_t)HUGE_PAGES * E1_ROW, GUARD_END) != 0 || guard_make(&v, (size_t)HUGE_PAGES * E1_ROW, GUARD_END) != 0) {
        isolate_fail("no address space for the pool");
        return 1;
    }
    oct_kv_layer small = p.layer, huge = p.layer;
    huge.k = k.at;
    huge.v = v.at;
    huge.n_pages = HUGE_PAGES;
    huge.k_page_stride = huge.v_page_stride = E1_ROW;
    int32_t *ids = malloc(512 * sizeof *ids), *small_ids = malloc(512 * sizeof *ids);
    float *source = malloc((size_t)512 * E1_ROW * sizeof *source);
    if (ids == NULL || small_ids == NULL || source == NULL)
        return 1;
    memcpy(small_ids, p.table_pages, 512 * sizeof *ids);
    for (int i = 0; i < 512; i++)
        ids[i] = i < 256 ? 16435 + i : HUGE_PAGES - 512 + i;
    /* The same numbers through the write into both pools. */
    rng r = rng_make(600);
    for (int64_t i = 0; i < 512 * E1_ROW; i++)
        source[i] = (float)rng_normal(&r);
    oct_kv_write_args args;
    memset(&args, 0, sizeof args);
    args.struct_size = sizeof args;
    args.checked = 1;
    args.n_tokens = 512;
    args.src_dtype = OCT_DTYPE_F32;
    args.k = args.v = source;
    args.k_token_stride = args.v_token_stride = E1_ROW;
    args.k_head_stride = args.v_head_stride = E1_DIM;
    args.layer = &small;
    args.slots = small_ids;
    oct_status status = oct_kv_write(problem_context(1), &args);
    args.layer = &huge;
    args.slots = ids;
    status = status != OCT_OK ? status : oct_kv_write(problem_context(1), &args);
    if (status != OCT_OK) {
        isolate_fail("oct_kv_write: %s", oct_status_name(status));
        failures++;
    }
    for (int i = 0; i < 512 && failures == 0; i++)
        if (memcmp((char *)small.k + (int64_t)small_ids[i] * E1_ROW, (char *)k.at + (int64_t)ids[i] * E1_ROW, E1_ROW) != 0 ||
            memcmp((char *)small.v + (int64_t)small_ids[i] * E1_ROW, (char *)v.at + (int64_t)ids[i] * E1_ROW, E1_ROW) != 0) {
            isolate_fail("page %d does not hold what page %d of the small pool holds", ids[i], small_ids[i]);
            failures++;
        }
    p.spec.sm_scale = 1.0f;
    failures += problem_check_made(&p, RUN_WHOLE);
    const int64_t small_pages = p.n_pages;
    unsigned char *reference = malloc(p.out.size_bytes);
    for (uint32_t i = 0; reference != NULL && problem_pair(i, force, sizeof force); i++) {
        isolate_doing("%s", force);
        p.layer = small;
        p.n_pages = small_pages;
        memcpy(p.table_pages, small_ids, 512 * sizeof *ids);
        problem_outcome outcome = problem_run(&p, problem_context(1), force, RUN_WHOLE);
        memcpy(reference, p.out.at, p.out.size_bytes);
        p.layer = huge;
        p.n_pages = HUGE_PAGES;
        memcpy(p.table_pages, ids, 512 * sizeof *ids);
        if (outcome.status == OCT_OK)
            outcome = problem_run(&p, problem_context(1), force, RUN_WHOLE);
        if (outcome.status == OCT_UNSUPPORTED) {
            problem_skip_pair(i);
        } else if (outcome.status != OCT_OK || memcmp(reference, p.out.at, p.out.size_bytes) != 0) {
            isolate_fail("%s: the large pool does not give the bits of the small one", outcome.text);
            failures++;
        }
    }
    failures += reference == NULL;
    free(reference);
    free(ids);
    free(small_ids);
    free(source);
    guard_drop(&k);
    guard_drop(&v);
    problem_drop(&p);
    return failures;
}

/* Strides alone can pass 2^32 elements: three pages, two terabytes apart would be too much, 6 GiB are not. */
static int64_t run_far_pages(void *arg, int64_t index)
{
    problem_shape s = problem_plain(610 + index);
    problem p;
    guard k, v;
    (void)arg;
    s.layout = index % 3;
    s.page_size = 16;
    problem_lengths(&s, 2, (int32_t[]){ 1, 20 }, (int32_t[]){ 16, 30 });
    if (problem_make(&p, &s) != 0)
        return 1;
    const int64_t stride = INT64_C(1300000000), extent = 16 * 2 * 64;
    if (guard_make(&k, (size_t)((p.n_pages - 1) * stride + extent), GUARD_END) != 0 || guard_make(&v, (size_t)((p.n_pages - 1) * stride + extent), GUARD_END) != 0) {
        isolate_fail("no address space for the pool");
        return 1;
    }
    for (int64_t page = 0; page < p.n_pages; page++) {
        memcpy((char *)k.at + page * stride, (char *)p.layer.k + page * p.layer.k_page_stride, (size_t)extent);
        memcpy((char *)v.at + page * stride, (char *)p.layer.v + page * p.layer.v_page_stride, (size_t)extent);
    }
    p.layer.k = k.at;
    p.layer.v = v.at;
    p.layer.k_page_stride = p.layer.v_page_stride = stride;
    const int64_t failures = problem_check_made(&p, RUN_WHOLE);
    guard_drop(&k);
    guard_drop(&v);
    problem_drop(&p);
    return failures;
}

void fault_E1_pools_beyond_4_gib(void **state)
{
    (void)state;
    RUN_CASES("E1", 1, 240, run_huge_pool);
    RUN_CASES("E1 far pages", 3, 60, run_far_pages);
}

/* ---- E3 ------------------------------------------------------------------------------------------------------- */

static int64_t run_large_batch(void *arg, int64_t index)
{
    static const int32_t batches[] = { 70000, 65536, 65535, 40000 };
    problem_shape s = problem_plain(620 + index);
    (void)arg;
    s.heads = 1;
    s.heads_q = index == 3 ? 2 : 1;   /* 40000 x 2 heads: more than 65535 vectors by fewer rows */
    s.threads = 2;
    s.poison = POISON_ZERO;           /* 146 MB that need not be touched */
    s.compressed = index % 2;
    problem_lengths(&s, 3, (int32_t[]){ 1, 1, 1 }, (int32_t[]){ 1, 2, 3 });
    s.n_sequences = batches[index];
    return problem_check(&s);
}

/* 70,000 rows of one sequence, over few keys; and 70,000 tokens appended at once. */
static int64_t run_many_rows(void *arg, int64_t index)
{
    problem_shape s = problem_plain(630);
    write_shape w = write_plain(631);
    (void)arg;
    if (index == 0) {
        s.heads = s.heads_q = 1;
        s.causal = 0;
        s.threads = 2;
        problem_lengths(&s, 1, (int32_t[]){ 70000 }, (int32_t[]){ 3 });
        return problem_check(&s);
    }
    w.heads = 1;
    w.dim_k = w.dim_v = 16;
    w.n_pages = 4400;
    w.n_tokens = 70000;
    return write_check(&w);
}

void fault_E3_batches_beyond_65535(void **state)
{
    (void)state;
    RUN_CASES("E3", 4, 240, run_large_batch);
    RUN_CASES("E3 rows", 2, 240, run_many_rows);
}
