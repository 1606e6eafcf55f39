/* test_attn.c: what a run and a merge refuse, with the words of oct_attn_check; that a refused run writes nothing; and that shares of a run
 * make the whole, whoever runs them. Whether the numbers are right is for tests/parity. */
#include "api_test.h"

static oct_context *context;

static int make_context(void **state)
{
    const oct_context_options options = { .struct_size = sizeof(options), .max_threads = 3 };
    (void)state;
    return oct_context_create(&options, &context, NULL) != OCT_OK;
}

static int drop_context(void **state)
{
    (void)state;
    oct_context_destroy(context);
    return 0;
}

static oct_plan *plan_with(problem *p)
{
    oct_plan *plan = NULL;
    oct_error error = OCT_ERROR_INIT;
    if (oct_plan_create(context, &p->spec, &plan, &error) != OCT_OK || oct_plan_update(plan, &p->padded, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    return plan;
}

/* Refused by check with these words, by run and by each share of it without; and nothing was written. */
static void check_refused(problem *p, const char *words)
{
    oct_error error = OCT_ERROR_INIT;
    oct_plan *plan = plan_with(p);
    float out[N_ROWS * HEADS_Q * DIM];
    memset(p->out, 0xCD, sizeof(p->out));
    memcpy(out, p->out, sizeof(out));
    const oct_status status = oct_attn_check(plan, &p->args, &error);
    if (status != OCT_INVALID_ARGUMENT) {
        fail_msg("'%s' was not refused", words);
    }
    assert_string_equal(error.where, "oct_attn_check");
    assert_words(error.text, words);
    assert_int_equal(oct_attn_check(plan, &p->args, NULL), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_attn_run(plan, &p->args), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_attn_run_part(plan, &p->args, 0, 1), OCT_INVALID_ARGUMENT);
    assert_memory_equal(out, p->out, sizeof(out));
    oct_plan_destroy(plan);
}

#define REFUSED(change, words)         \
    do {                               \
        problem p;                     \
        problem_init(&p);              \
        oct_attn_args *a = &p.args;    \
        oct_kv_layer *l = &p.layer;    \
        change;                        \
        (void)a, (void)l;              \
        check_refused(&p, words);      \
    } while (0)

#define AT(pointer, bytes) ((void *)((unsigned char *)(pointer) + (bytes)))

static void operands(void **state)
{
    (void)state;
    REFUSED(a->q = NULL, "args.q is NULL");
    REFUSED(a->q = AT(p.q, 2), "args.q is not aligned to its elements of 4 bytes");
    REFUSED(a->q_row_stride = -1, "args.q_row_stride -1, q_head_stride 16: must be >= 0");
    REFUSED(a->q_head_stride = INT64_MAX, "must be >= 0 and stay in the address space");
    REFUSED(a->out = NULL, "args.out is NULL");
    REFUSED(a->out = AT(p.out, 1), "args.out is not aligned to its elements of 4 bytes");
    REFUSED(a->out_row_stride = 3 * DIM, "args.out_row_stride 48, out_head_stride 16 let vectors of 16 elements overlap");
    REFUSED(a->out_head_stride = DIM - 1, "out_head_stride 15 let vectors of 16 elements overlap");
    REFUSED(a->out_row_stride = -HEADS_Q * DIM, "args.out_row_stride -64");
    REFUSED(a->lse = AT(p.lse, 2), "args.lse is not aligned");
    REFUSED(a->lse_row_stride = 0, "args.lse_row_stride 0, lse_head_stride 1 let values overlap");
    REFUSED(a->reserved = 1, "args.reserved is 1; must be 0");
}

static void operand_scales(void **state)
{
    (void)state;
    static const float good = 0.5f, zero = 0, negative = -1, nan_scale = NAN, infinite = INFINITY;
    REFUSED(a->q_scale = &good, "args.q_scale is given; nothing would read it, so it must be NULL");
    REFUSED(a->out_scale = &good, "args.out_scale is given; nothing would read it");
    REFUSED(p.spec.q_dtype = OCT_DTYPE_E4M3FN, "args.q_scale is NULL; an 8-bit operand needs one");
    REFUSED(p.spec.out_dtype = OCT_DTYPE_E5M2, "args.out_scale is NULL; an 8-bit operand needs one");
    const float *const bad[] = { &zero, &negative, &nan_scale, &infinite };
    for (int i = 0; i < 4; i++) {
        REFUSED(p.spec.q_dtype = OCT_DTYPE_E4M3FN; a->q_scale = bad[i], "args.q_scale is not an aligned f32 that is finite and > 0");
        REFUSED(p.spec.out_dtype = OCT_DTYPE_E4M3FNUZ; a->out_scale = bad[i], "args.out_scale is not an aligned f32 that is finite and > 0");
    }
}

static void sinks_and_masks(void **state)
{
    (void)state;
    REFUSED(a->sink = p.sink, "args.sink is given, but the plan's has_sink is 0");
    REFUSED(p.spec.has_sink = 1, "args.sink is NULL, but the plan's has_sink is 1");
    REFUSED(p.spec.has_sink = 1; a->sink = p.sink; p.sink[2] = NAN, "args.sink[2] is nan; must be finite or -inf");
    REFUSED(p.spec.has_sink = 1; a->sink = p.sink; p.sink[3] = INFINITY, "args.sink[3] is inf; must be finite or -inf");
    REFUSED(p.spec.has_sink = 1; a->sink = AT(p.sink, 1), "args.sink is not aligned to f32");
    REFUSED(a->mask = p.mask, "args.mask is given, but the plan's has_mask is 0");
    REFUSED(p.spec.has_mask = 1, "args.mask is NULL, but the plan's has_mask is 1");
    REFUSED(p.spec.has_mask = 1; a->mask = p.mask, "args.mask_row_stride is 0; must be at least 1 words for 2 rows of one sequence");
    REFUSED(p.spec.has_mask = 1; a->mask = AT(p.mask, 2); a->mask_row_stride = 1, "args.mask is not aligned to 32-bit words");
    /* 40 rows need two words each. */
    REFUSED(p.spec.has_mask = 1; a->mask = p.mask; a->mask_row_stride = 1; p.qo_indptr[1] = 40; p.qo_indptr[2] = 41,
            "args.mask_row_stride is 1; must be at least 2 words for 40 rows of one sequence");
}

static void layers(void **state)
{
    (void)state;
    REFUSED(a->layer = NULL, "args.layer is NULL");
    REFUSED(l->struct_size = 8, "args.layer.struct_size is 8");
    REFUSED(l->reserved = 1, "args.layer.reserved is 1; must be 0");
    REFUSED(l->spec.heads = 0, "args.layer.spec.heads is 0");
    REFUSED(l->n_pages = -1, "args.layer.n_pages is -1");
    REFUSED(l->n_pages = 7, "the batch uses page 7, args.layer has 7 pages");
    REFUSED(l->n_pages = 7; p.block_table[0] = 7; p.block_table[4] = 5, "the batch uses page 7, args.layer has 7 pages");
    REFUSED(l->k = NULL, "args.layer.k is NULL");
    REFUSED(l->v = NULL, "args.layer.v is NULL");
    REFUSED(l->k_head_stride = DIM - 1, "args.layer: k strides (page 128, token 32, head 15) let vectors overlap");
    REFUSED(l->v_token_stride = 0, "args.layer: v strides (page 128, token 0, head 16) let vectors overlap");
    REFUSED(l->k_page_stride = 127, "args.layer: k strides (page 127, token 32, head 16) let vectors overlap");
    REFUSED(l->v_page_stride = -128, "args.layer: v strides (page -128, token 32, head 16) let vectors overlap");
    REFUSED(l->k_page_stride = INT64_MAX / 4, "let vectors overlap or leave the address space");
}

/* The fault kind of A1 and A3: a scale that never reaches the arithmetic must be a refusal, not a 1. */
static void layer_scales(void **state)
{
    (void)state;
    REFUSED(l->k_scale = NULL, "args.layer.k_scale is NULL; scale mode layer_head reads it");
    REFUSED(l->k_scale = AT(p.k_scale, 2), "args.layer.k_scale is not aligned to f32");
    REFUSED(p.k_scale[1] = 0, "args.layer.k_scale[1] (head 1) is 0; must be finite and > 0");
    REFUSED(p.k_scale[0] = -1, "args.layer.k_scale[0] (head 0) is -1");
    REFUSED(p.k_scale[1] = NAN, "args.layer.k_scale[1] (head 1) is nan");
    REFUSED(p.k_scale[0] = INFINITY, "args.layer.k_scale[0] (head 0) is inf");
    REFUSED(l->k_token_scale = p.v_token_scale, "args.layer.k_token_scale is given, but scale mode layer_head does not read it; must be NULL");
    REFUSED(l->v_token_scale = NULL, "args.layer.v_token_scale is NULL; scale mode token_head reads it");
    REFUSED(l->v_token_scale = AT(p.v_token_scale, 2), "args.layer.v_token_scale is not aligned to its elements");
    REFUSED(l->v_scale = p.k_scale, "args.layer.v_scale is given, but scale mode token_head does not read it; must be NULL");
    REFUSED(l->v_scale_page_stride = 7, "args.layer.v_scale_page_stride is 7; must be at least page_size x heads = 8");
    REFUSED(p.spec.kv.k.scale_mode = l->spec.k.scale_mode = OCT_SCALE_LAYER; p.k_scale[0] = -2, "args.layer.k_scale[0] (head 0) is -2; must be finite and > 0");
    REFUSED(p.spec.kv.k.scale_mode = l->spec.k.scale_mode = OCT_SCALE_TENSOR; l->k_scale = NULL, "args.layer.k_scale is NULL; scale mode tensor reads it");
    /* By channel: heads x dim numbers, all of them looked at. */
    REFUSED(p.spec.kv.k.scale_mode = l->spec.k.scale_mode = OCT_SCALE_CHANNEL; p.k_scale[HEADS * DIM - 1] = 0, "args.layer.k_scale[31] (head 1) is 0");
    /* 16-bit pages have no scale. */
    REFUSED(p.spec.kv.k = l->spec.k = ((oct_kv_format){ OCT_DTYPE_F32, OCT_SCALE_NONE, 0, 0 }); l->k = p.src, "args.layer.k_scale is given, but scale mode none does not read it");
}

/* The fault kind of A6: bytes of one format are never read as another. */
static void a_layer_that_is_not_the_plans_is_refused(void **state)
{
    (void)state;
    static const char words[] = "args.layer.spec differs from the plan's kv spec; bytes of one format are never read as another";
    REFUSED(l->spec.k.dtype = OCT_DTYPE_E4M3FNUZ, words);
    REFUSED(l->spec.k.dtype = OCT_DTYPE_E5M2, words);
    REFUSED(l->spec.k.rotated = 1, words);
    REFUSED(l->spec.v.rotated = 1, words);
    REFUSED(l->spec.k.scale_mode = OCT_SCALE_LAYER, words);
    REFUSED(l->spec.v.scale_dtype = OCT_DTYPE_F16, words);
    REFUSED(l->spec.v.dtype = OCT_DTYPE_E5M2, words);
    REFUSED(l->spec.page_size = 2, words);
    REFUSED(l->spec.heads = 1, words);
    REFUSED(p.spec.kv.dim_k = 24, words);
    REFUSED(p.spec.kv.dim_v = 24, words);
    REFUSED(l->spec.layout = OCT_LAYOUT_HND; l->k_token_stride = l->v_token_stride = DIM; l->k_head_stride = l->v_head_stride = DIM * PAGE_SIZE, words);
}

static void missing_pointers(void **state)
{
    (void)state;
    problem p;
    oct_error error = OCT_ERROR_INIT;
    problem_init(&p);
    assert_int_equal(oct_attn_check(NULL, &p.args, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "plan is NULL");
    assert_int_equal(oct_attn_run(NULL, &p.args), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_attn_run_part(NULL, &p.args, 0, 1), OCT_INVALID_ARGUMENT);
    oct_plan *plan = plan_with(&p);
    assert_int_equal(oct_attn_check(plan, NULL, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "args is NULL");
    assert_int_equal(oct_attn_run(plan, NULL), OCT_INVALID_ARGUMENT);
    oct_plan_destroy(plan);
}

/* ---- what is legal --------------------------------------------------------------------------------------------------------- */

static void unusual_but_legal_arguments_pass(void **state)
{
    (void)state;
    problem p;
    oct_error error = OCT_ERROR_INIT;
    problem_init(&p);
    p.spec.has_sink = 1;
    p.args.sink = p.sink;
    p.sink[0] = -INFINITY;
    oct_plan *plan = plan_with(&p);
    p.args.lse = NULL;
    p.args.q_row_stride = p.args.q_head_stride = 0;          /* one vector for all */
    p.args.out_row_stride = DIM;                             /* rows within heads */
    p.args.out_head_stride = DIM * N_ROWS;
    assert_int_equal(oct_attn_check(plan, &p.args, &error), OCT_OK);
    p.args.out_row_stride = HEADS_Q * DIM + 12;              /* gaps */
    p.args.out_head_stride = DIM;
    assert_int_equal(oct_attn_check(plan, &p.args, &error), OCT_OK);
    p.layer.k_page_stride *= 2;                              /* K and V of a page side by side */
    p.layer.v_page_stride *= 2;
    assert_int_equal(oct_attn_check(plan, &p.args, &error), OCT_OK);
    assert_string_equal(error.text, "");
    /* A layer without pages, for a batch without any. */
    const oct_attn_batch none = { .struct_size = sizeof(none) };
    assert_int_equal(oct_plan_update(plan, &none, NULL), OCT_OK);
    p.layer.n_pages = 0;
    p.layer.k = p.layer.v = p.layer.v_token_scale = NULL;
    assert_int_equal(oct_attn_check(plan, &p.args, &error), OCT_OK);
    assert_int_equal(oct_attn_run(plan, &p.args), OCT_OK);
    oct_plan_destroy(plan);
}

/* ---- shares ---------------------------------------------------------------------------------------------------------------- */

static void shares_make_the_whole(void **state)
{
    (void)state;
    problem p;
    problem_init(&p);
    p.spec.split_tokens = 2;
    p.spec.max_threads = 5;
    oct_plan *plan = plan_with(&p);
    assert_int_equal(oct_kv_write(context, &p.write), OCT_OK);
    float whole[N_ROWS * HEADS_Q * DIM], lse[N_ROWS * HEADS_Q];
    assert_int_equal(oct_attn_run(plan, &p.args), OCT_OK);
    memcpy(whole, p.out, sizeof(whole));
    memcpy(lse, p.lse, sizeof(lse));
    for (uint32_t nth = 1; nth <= 5; nth++) {
        for (uint32_t first = 0; first < nth; first++) {
            memset(p.out, 0xFF, sizeof(p.out));
            memset(p.lse, 0xFF, sizeof(p.lse));
            for (uint32_t i = 0; i < nth; i++) {
                assert_int_equal(oct_attn_run_part(plan, &p.args, (first + i) % nth, nth), OCT_OK);
            }
            assert_memory_equal(whole, p.out, sizeof(whole));
            assert_memory_equal(lse, p.lse, sizeof(lse));
        }
    }
    assert_int_equal(oct_attn_run_part(plan, &p.args, 0, 6), OCT_INVALID_ARGUMENT);   /* more than the plan's max_threads */
    assert_int_equal(oct_attn_run_part(plan, &p.args, 2, 2), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_attn_run_part(plan, &p.args, 0, 0), OCT_INVALID_ARGUMENT);
    /* A share that nobody joined leaves the counters where they were; an update sets them right, and so does a whole run. */
    for (int updated = 1; updated >= 0; updated--) {
        assert_int_equal(oct_attn_run_part(plan, &p.args, 0, 3), OCT_OK);
        assert_int_equal(updated ? oct_plan_update(plan, &p.padded, NULL) : OCT_OK, OCT_OK);
        memset(p.out, 0xFF, sizeof(p.out));
        assert_int_equal(oct_attn_run(plan, &p.args), OCT_OK);
        assert_memory_equal(whole, p.out, sizeof(whole));
    }
    oct_plan_destroy(plan);
}

/* A sequence of 3333 keys alone, among others before and after it, and with other numbers of threads: the same bits. */
static void a_deterministic_row_does_not_know_its_mates(void **state)
{
    (void)state;
    enum { LONG = 3333, PAGES = 1200, MATES = 7 };
    problem p;
    problem_init(&p);
    unsigned char *k = malloc(PAGES * PAGE_SIZE * HEADS * DIM), *v = malloc(PAGES * PAGE_SIZE * HEADS * DIM);
    float *v_scale = malloc(PAGES * PAGE_SIZE * HEADS * sizeof(float)), first[HEADS_Q * DIM], out[(MATES + 1) * HEADS_Q * DIM], q[(MATES + 1) * HEADS_Q * DIM];
    int32_t *table = malloc((MATES + 1) * PAGES * sizeof(int32_t)), indptr[MATES + 2] = { 0 }, kv_len[MATES + 1];
    uint32_t noise = 1;
    for (int i = 0; i < PAGES * PAGE_SIZE * HEADS * DIM; i++) {
        noise = noise * 1664525u + 1013904223u;
        k[i] = (unsigned char)(noise >> 24 & 0xb7);   /* e4m3fn up to 1.75, no NaN */
        v[i] = (unsigned char)(noise >> 16);
    }
    for (int i = 0; i < PAGES * PAGE_SIZE * HEADS; i++) {
        v_scale[i] = 0.01f * (float)(1 + i % 7);
    }
    p.layer.k = k;
    p.layer.v = v;
    p.layer.v_token_scale = v_scale;
    p.layer.n_pages = PAGES;
    p.spec.deterministic = 1;
    for (uint32_t n = 1; n <= MATES + 1; n += MATES) {
        for (uint32_t at = 0; at < n; at++) {
            for (uint32_t n_threads = 1; n_threads <= 3; n_threads++) {
                oct_plan *plan;
                p.spec.max_threads = n_threads;
                for (uint32_t i = 0; i < n; i++) {
                    indptr[i + 1] = (int32_t)i + 1;
                    kv_len[i] = i == at ? LONG : (int32_t)(97 * i + 500 * at) % 4000 + 1;
                    for (int page = 0; page < PAGES; page++) {
                        table[i * PAGES + (uint32_t)page] = (page * 7 + (i == at ? 0 : (int32_t)i)) % PAGES;
                    }
                    for (int d = 0; d < HEADS_Q * DIM; d++) {
                        q[i * HEADS_Q * DIM + (uint32_t)d] = (float)((d * 5 + (i == at ? 0 : (int32_t)i)) % 13) * 0.1f - 0.6f;
                    }
                }
                const oct_attn_batch batch = { .struct_size = sizeof(batch), .n_sequences = n, .qo_indptr = indptr, .block_table = table, .seq_lens = kv_len, .max_pages = PAGES,
                                               .n_pages = PAGES };
                p.args.q = q;
                p.args.out = out;
                p.args.lse = NULL;
                assert_int_equal(oct_plan_create(context, &p.spec, &plan, NULL), OCT_OK);
                assert_int_equal(oct_plan_update(plan, &batch, NULL), OCT_OK);
                assert_int_equal(oct_attn_run(plan, &p.args), OCT_OK);
                if (n == 1 && n_threads == 1) {
                    memcpy(first, out, sizeof(first));
                }
                assert_memory_equal(first, out + at * HEADS_Q * DIM, sizeof(first));
                oct_plan_destroy(plan);
            }
        }
    }
    assert_true(isfinite(first[0]) && first[0] != first[1]);
    free(k);
    free(v);
    free(v_scale);
    free(table);
}

/* Decode and extend on eight threads that claim small items, several times: the bits of one thread. Under the thread sanitizer this is the proof
 * that items, arrivals and merges of split groups don't race. */
static void eight_threads_agree_with_one(void **state)
{
    (void)state;
    enum { THREADS = 8, MANY = 20, SEQUENCES = 6, PAGES = 400, TURNS = 4, VECTOR = HEADS_Q * DIM };
    const oct_context_options options = { .struct_size = sizeof(options), .max_threads = THREADS };
    oct_context *eight;
    problem p;
    problem_init(&p);
    assert_int_equal(oct_context_create(&options, &eight, NULL), OCT_OK);
    const size_t pool = (size_t)PAGES * PAGE_SIZE * HEADS * DIM;
    unsigned char *k = malloc(pool), *v = malloc(pool);
    float *v_scale = malloc(PAGES * PAGE_SIZE * HEADS * sizeof(float));
    int32_t *table = malloc(SEQUENCES * PAGES * sizeof(int32_t));
    for (size_t i = 0; i < pool; i++) {
        k[i] = (unsigned char)((i * 2654435761u >> 13) & 0xb7);
        v[i] = (unsigned char)((i * 2246822519u >> 11) & 0xb7);
    }
    for (int i = 0; i < PAGES * PAGE_SIZE * HEADS; i++) {
        v_scale[i] = 0.01f * (float)(1 + i % 7);
    }
    for (int i = 0; i < SEQUENCES * PAGES; i++) {
        table[i] = i * 7 % PAGES;
    }
    p.layer.k = k;
    p.layer.v = v;
    p.layer.v_token_scale = v_scale;
    p.layer.n_pages = PAGES;
    p.spec.deterministic = 1;
    p.spec.split_tokens = 64;
    p.args.lse = NULL;
    for (int32_t rows = 1; rows <= 70; rows += 69) {
        int32_t indptr[SEQUENCES + 1] = { 0 }, kv_len[SEQUENCES];
        for (int32_t i = 0; i < SEQUENCES; i++) {
            indptr[i + 1] = indptr[i] + rows;
            kv_len[i] = 150 + 97 * i;
        }
        const size_t n = (size_t)(SEQUENCES * rows) * VECTOR;
        float *q = malloc(n * sizeof(float)), *one = malloc(n * sizeof(float)), *out = malloc(n * sizeof(float));
        for (size_t i = 0; i < n; i++) {
            q[i] = (float)(i * 5 % 13) * 0.1f - 0.6f;
        }
        const oct_attn_batch batch = { .struct_size = sizeof(batch), .n_sequences = SEQUENCES, .qo_indptr = indptr, .block_table = table, .seq_lens = kv_len,
                                       .max_pages = PAGES, .n_pages = PAGES };
        p.args.q = q;
        for (int turn = 0; turn <= TURNS; turn++) {
            oct_plan *plan;
            p.spec.max_threads = turn == 0 ? 1 : THREADS;
            p.args.out = turn == 0 ? one : out;
            assert_int_equal(oct_plan_create(eight, &p.spec, &plan, NULL), OCT_OK);
            assert_int_equal(oct_plan_update(plan, &batch, NULL), OCT_OK);
            assert_int_equal(oct_attn_run(plan, &p.args), OCT_OK);
            if (turn > 0) {
                assert_memory_equal(one, out, n * sizeof(float));
            }
            oct_plan_destroy(plan);
        }
        /* By parts of more threads than one eight has, the later ones first: whoever comes finds what is left. */
        oct_plan *plan;
        p.spec.max_threads = MANY;
        memset(out, 0xff, n * sizeof(float));
        assert_int_equal(oct_plan_create(eight, &p.spec, &plan, NULL), OCT_OK);
        assert_int_equal(oct_plan_update(plan, &batch, NULL), OCT_OK);
        for (int turn = 0; turn < 2; turn++) {
            for (uint32_t i = MANY; i-- > 0;) {
                assert_int_equal(oct_attn_run_part(plan, &p.args, i, MANY), OCT_OK);
            }
            assert_memory_equal(one, out, n * sizeof(float));
        }
        oct_plan_destroy(plan);
        assert_true(isfinite(one[0]) && one[0] != one[1]);
        free(q);
        free(one);
        free(out);
    }
    free(k);
    free(v);
    free(v_scale);
    free(table);
    oct_context_destroy(eight);
}

static void runs_allocate_nothing(void **state)
{
    (void)state;
    counting c = { 0 };
    problem p;
    oct_plan *plan;
    problem_init(&p);
    oct_context *counted = context_of(&c, 2);
    assert_int_equal(oct_plan_create(counted, &p.spec, &plan, NULL), OCT_OK);
    assert_int_equal(oct_plan_update(plan, &p.padded, NULL), OCT_OK);
    const size_t made = c.made;
    oct_attn_merge_args merge = { .struct_size = sizeof(merge), .n_parts = 1, .rows = 1, .heads = 1, .dim = DIM, .out = p.q, .lse = p.q, .merged = p.out };
    for (int i = 0; i < 3; i++) {
        assert_int_equal(oct_kv_write(counted, &p.write), OCT_OK);
        assert_int_equal(oct_attn_run(plan, &p.args), OCT_OK);
        assert_int_equal(oct_attn_merge(counted, &merge), OCT_OK);
    }
    assert_int_equal(c.made, made);
    oct_plan_destroy(plan);
    oct_context_destroy(counted);
    assert_int_equal(c.live_bytes, 0);
}

/* ---- merge ------------------------------------------------------------------------------------------------------------------ */

static char logged[512];

static void keep(void *user, int level, const char *text)
{
    (void)user, (void)level;
    snprintf(logged, sizeof(logged), "%s", text);
}

#define MERGE_REFUSED(change, words)                                                                                                      \
    do {                                                                                                                                  \
        oct_attn_merge_args a = { .struct_size = sizeof(a), .n_parts = 2, .rows = 2, .heads = 2, .dim = 4, .out = parts, .out_part_stride = 16, \
                                  .out_row_stride = 8, .out_head_stride = 4, .lse = parts, .lse_part_stride = 4, .lse_row_stride = 2,     \
                                  .lse_head_stride = 1, .merged = merged, .merged_row_stride = 8, .merged_head_stride = 4,                \
                                  .lse_merged = lse, .lse_merged_row_stride = 2, .lse_merged_head_stride = 1 };                           \
        assert_int_equal(oct_attn_merge(logging, &a), OCT_OK);                                                                            \
        memset(merged, 0xCD, sizeof(merged));                                                                                             \
        change;                                                                                                                           \
        assert_int_equal(oct_attn_merge(logging, &a), OCT_INVALID_ARGUMENT);                                                              \
        assert_words(logged, words);                                                                                                      \
        assert_true(((unsigned char *)merged)[0] == 0xCD);                                                                                \
    } while (0)

static void merges_are_checked(void **state)
{
    (void)state;
    static float parts[32], merged[16], lse[4];
    const oct_context_options options = { .struct_size = sizeof(options), .log = keep };
    oct_context *logging;
    assert_int_equal(oct_context_create(&options, &logging, NULL), OCT_OK);
    MERGE_REFUSED(a.n_parts = 0, "args.n_parts is 0; must be at least 1");
    MERGE_REFUSED(a.heads = 0, "args.heads is 0");
    MERGE_REFUSED(a.dim = 0, "args.dim is 0");
    MERGE_REFUSED(a.rows = -1, "args.rows is -1; must be >= 0");
    MERGE_REFUSED(a.out = NULL, "args.out is NULL");
    MERGE_REFUSED(a.lse = NULL, "args.lse is NULL");
    MERGE_REFUSED(a.merged = NULL, "args.merged is NULL");
    MERGE_REFUSED(a.out = AT(parts, 2), "args.out is not aligned");
    MERGE_REFUSED(a.lse_merged = AT(lse, 1), "args.lse_merged is not aligned");
    MERGE_REFUSED(a.out_part_stride = -16, "strides of args.out or args.lse must be >= 0");
    MERGE_REFUSED(a.lse_row_stride = INT64_MIN, "strides of args.out or args.lse must be >= 0");
    MERGE_REFUSED(a.merged_row_stride = 7, "strides of args.merged or args.lse_merged let vectors overlap");
    MERGE_REFUSED(a.lse_merged_head_stride = 0, "strides of args.merged or args.lse_merged let vectors overlap");
    oct_attn_merge_args none = { .struct_size = sizeof(none), .n_parts = 1, .heads = 1, .dim = 4 };
    assert_int_equal(oct_attn_merge(logging, &none), OCT_OK);   /* no rows: nothing is looked at */
    assert_int_equal(oct_attn_merge(NULL, &none), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_attn_merge(logging, NULL), OCT_INVALID_ARGUMENT);
    oct_context_destroy(logging);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operands),
        cmocka_unit_test(operand_scales),
        cmocka_unit_test(sinks_and_masks),
        cmocka_unit_test(layers),
        cmocka_unit_test(layer_scales),
        cmocka_unit_test(a_layer_that_is_not_the_plans_is_refused),
        cmocka_unit_test(missing_pointers),
        cmocka_unit_test(unusual_but_legal_arguments_pass),
        cmocka_unit_test(shares_make_the_whole),
        cmocka_unit_test(a_deterministic_row_does_not_know_its_mates),
        cmocka_unit_test(eight_threads_agree_with_one),
        cmocka_unit_test(runs_allocate_nothing),
        cmocka_unit_test(merges_are_checked),
    };
    return cmocka_run_group_tests(tests, make_context, drop_context);
}
