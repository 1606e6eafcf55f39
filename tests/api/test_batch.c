/* test_batch.c: what oct_plan_update refuses in a step's metadata, in both forms, naming sequence and value; what it takes; and that
 * size is no obstacle. */
#include "api_test.h"

#include <time.h>

static oct_context *context;

static int make_context(void **state)
{
    (void)state;
    return oct_context_create(NULL, &context, NULL) != OCT_OK;
}

static int drop_context(void **state)
{
    (void)state;
    oct_context_destroy(context);
    return 0;
}

static oct_plan *plan_of(const oct_attn_spec *spec)
{
    oct_plan *plan = NULL;
    oct_error error = OCT_ERROR_INIT;
    if (oct_plan_create(context, spec, &plan, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    return plan;
}

static oct_plan_info info_of(const oct_plan *plan)
{
    oct_plan_info info = { .struct_size = sizeof(info) };
    assert_int_equal(oct_plan_info_get(plan, &info), OCT_OK);
    return info;
}

/* Refused with these words, and the plan holds an empty batch although it held a good one before. */
static void check_refused(problem *p, const oct_attn_batch *bad, const char *words)
{
    problem good;
    oct_error error = OCT_ERROR_INIT;
    problem_init(&good);
    oct_plan *plan = plan_of(&p->spec);
    assert_int_equal(oct_plan_update(plan, &good.padded, &error), OCT_OK);
    assert_int_equal(info_of(plan).n_rows, 3);
    assert_int_equal(oct_plan_update(plan, bad, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.where, "oct_plan_update");
    assert_words(error.text, words);
    const oct_plan_info info = info_of(plan);
    assert_true(info.n_sequences == 0 && info.n_rows == 0 && info.n_items == 0 && info.n_keys == 0);
    assert_int_equal(oct_plan_update(plan, &good.padded, &error), OCT_OK);   /* and it recovers */
    oct_plan_destroy(plan);
}

#define REFUSED(form, change, words)             \
    do {                                         \
        problem p;                               \
        problem_init(&p);                        \
        oct_attn_batch *b = &p.form;             \
        change;                                  \
        (void)b;                                 \
        check_refused(&p, &p.form, words);       \
    } while (0)

static void rows_in_either_form(void **state)
{
    (void)state;
    REFUSED(padded, b->qo_indptr = NULL, "batch.qo_indptr is NULL");
    REFUSED(padded, p.qo_indptr[0] = 1, "batch.qo_indptr[0] is 1; must be 0");
    REFUSED(padded, p.qo_indptr[0] = -1, "batch.qo_indptr[0] is -1; must be 0");
    REFUSED(padded, p.qo_indptr[1] = -2, "sequence 0: batch.qo_indptr falls from 0 to -2");
    REFUSED(compressed, p.qo_indptr[2] = 1, "sequence 1: batch.qo_indptr falls from 2 to 1");
    REFUSED(compressed, b->n_pages = -1, "batch.n_pages is -1; must be >= 0");
    REFUSED(compressed, b->n_sequences = UINT32_MAX, "batch.n_sequences is 4294967295; must be below 2^31");
}

static void one_form_and_only_one(void **state)
{
    (void)state;
    REFUSED(padded, b->block_table = NULL; b->seq_lens = NULL, "batch holds neither block_table and seq_lens nor kv_indptr");
    REFUSED(padded, b->kv_indptr = p.kv_indptr, "batch holds both");
    REFUSED(compressed, b->seq_lens = p.kv_len, "batch holds both");
    REFUSED(compressed, b->block_table = p.block_table, "batch holds both");
    REFUSED(padded, b->seq_lens = NULL, "batch.block_table is given, batch.seq_lens is NULL");
    REFUSED(padded, b->block_table = NULL, "sequence 0: batch.seq_lens is 9, but batch.block_table is NULL");
    REFUSED(compressed, b->kv_indptr = NULL, "batch.kv_indptr is NULL");
    REFUSED(compressed, b->kv_last_page_len = NULL, "batch.kv_last_page_len is NULL");
    REFUSED(compressed, b->kv_indices = NULL, "sequence 0 has 3 pages, but batch.kv_indices is NULL");
}

static void lengths_padded(void **state)
{
    (void)state;
    REFUSED(padded, p.kv_len[1] = -1, "sequence 1: batch.seq_lens is -1; must be >= 0");
    REFUSED(padded, p.kv_len[0] = INT32_MIN, "sequence 0: batch.seq_lens is -2147483648; must be >= 0");
    REFUSED(padded, p.kv_len[1] = 17, "sequence 1: batch.seq_lens is 17, but batch.max_pages 4 x page size 4 hold only 16 keys");
    REFUSED(padded, p.kv_len[1] = INT32_MAX, "sequence 1: batch.seq_lens is 2147483647");
    REFUSED(padded, b->max_pages = -1, "batch.max_pages is -1; must be >= 0");
    REFUSED(padded, b->max_pages = 2, "sequence 0: batch.seq_lens is 9, but batch.max_pages 2 x page size 4 hold only 8 keys");
}

static void lengths_compressed(void **state)
{
    (void)state;
    REFUSED(compressed, p.last_page_len[0] = 5, "sequence 0: batch.kv_last_page_len is 5; must be 1..4, the page size");
    REFUSED(compressed, p.last_page_len[1] = 0, "sequence 1: batch.kv_last_page_len is 0; must be 1..4");
    REFUSED(compressed, p.last_page_len[1] = -1, "sequence 1: batch.kv_last_page_len is -1; must be 1..4");
    REFUSED(compressed, p.kv_indptr[2] = 3, "sequence 1: batch.kv_last_page_len is 4 without a page; must be 0");
    REFUSED(compressed, p.kv_indptr[0] = 1, "batch.kv_indptr[0] is 1; must be 0");
    REFUSED(compressed, p.kv_indptr[2] = 2, "sequence 1: batch.kv_indptr falls from 3 to 2");
    REFUSED(compressed, p.kv_indptr[1] = -1, "sequence 0: batch.kv_indptr falls from 0 to -1");
    /* A page count whose keys no int32 can count; nothing behind it is read. */
    REFUSED(compressed, p.kv_indptr[1] = INT32_MAX; p.kv_indptr[2] = INT32_MAX, "sequence 0 has 8589934585 keys; must be below 2^31");
}

static void pages_in_either_form(void **state)
{
    (void)state;
    REFUSED(padded, p.block_table[2] = 8, "sequence 0: page 2 of its 3 is 8; must be 0..7");
    REFUSED(padded, p.block_table[4] = -1, "sequence 1: page 0 of its 1 is -1; must be 0..7, since a row sees it");
    REFUSED(padded, p.block_table[0] = -2, "sequence 0: page 0 of its 3 is -2; must be 0..7");
    REFUSED(padded, p.block_table[1] = INT32_MAX, "sequence 0: page 1 of its 3 is 2147483647; must be 0..7");
    REFUSED(compressed, p.kv_indices[3] = 8, "sequence 1: page 0 of its 1 is 8; must be 0..7");
    REFUSED(compressed, p.kv_indices[0] = INT32_MIN, "sequence 0: page 0 of its 3 is -2147483648");
    REFUSED(compressed, b->n_pages = 7, "sequence 1: page 0 of its 1 is 7; must be 0..6");
}

/* A window of 3: the rows of sequence 0 stand at 7 and 8 and see from key 5 on, so page 0 (keys 0..3) is behind them. */
static void pages_behind_the_window_may_be_none(void **state)
{
    (void)state;
    problem p;
    problem_init(&p);
    p.spec.window_tokens = 3;
    oct_plan *plan = plan_of(&p.spec);
    p.block_table[0] = p.kv_indices[0] = OCT_PAGE_NONE;
    assert_int_equal(oct_plan_update(plan, &p.padded, NULL), OCT_OK);
    assert_int_equal(oct_plan_update(plan, &p.compressed, NULL), OCT_OK);
    assert_int_equal(info_of(plan).n_keys, 13);
    oct_plan_destroy(plan);
    REFUSED(padded, p.spec.window_tokens = 3; p.block_table[0] = -2, "sequence 0: page 0 of its 3 is -2; must be 0..7");
    REFUSED(padded, p.spec.window_tokens = 3; p.block_table[0] = 8, "sequence 0: page 0 of its 3 is 8");
    REFUSED(padded, p.spec.window_tokens = 3; p.block_table[1] = -1, "sequence 0: page 1 of its 3 is -1; must be 0..7, since a row sees it");
    /* One more key and page 0 is seen: key 3 by the row at 7. */
    REFUSED(padded, p.spec.window_tokens = 5; p.block_table[0] = -1, "sequence 0: page 0 of its 3 is -1");
    problem_init(&p);
    p.spec.window_tokens = 4;
    plan = plan_of(&p.spec);
    p.block_table[0] = OCT_PAGE_NONE;
    assert_int_equal(oct_plan_update(plan, &p.padded, NULL), OCT_OK);
    /* A sequence without rows sees nothing at all. */
    p.qo_indptr[1] = 0;
    p.block_table[1] = p.block_table[2] = OCT_PAGE_NONE;
    assert_int_equal(oct_plan_update(plan, &p.padded, NULL), OCT_OK);
    oct_plan_destroy(plan);
}

static void empty_batches_are_fine(void **state)
{
    (void)state;
    problem p;
    problem_init(&p);
    oct_plan *plan = plan_of(&p.spec);
    oct_attn_batch batch = { .struct_size = sizeof(batch) };
    assert_int_equal(oct_plan_update(plan, &batch, NULL), OCT_OK);
    assert_int_equal(oct_attn_run(plan, &p.args), OCT_OK);
    p.args.q = p.args.out = NULL;   /* nothing to read or write */
    assert_int_equal(oct_attn_run(plan, &p.args), OCT_OK);
    /* Sequences without rows, without keys, without both. */
    memcpy(p.qo_indptr, (int32_t[]){ 0, 0, 0 }, sizeof(p.qo_indptr));
    memcpy(p.kv_len, (int32_t[]){ 9, 0 }, sizeof(p.kv_len));
    assert_int_equal(oct_plan_update(plan, &p.padded, NULL), OCT_OK);
    assert_int_equal(info_of(plan).n_items, 0);
    memcpy(p.kv_indptr, (int32_t[]){ 0, 0, 0 }, sizeof(p.kv_indptr));
    memcpy(p.last_page_len, (int32_t[]){ 0, 0 }, sizeof(p.last_page_len));
    p.compressed.kv_indices = NULL;
    p.compressed.n_pages = 0;
    assert_int_equal(oct_plan_update(plan, &p.compressed, NULL), OCT_OK);
    oct_plan_destroy(plan);
}

/* Rows that see no key: written all the same, 0 and -inf. */
static void rows_without_keys_are_written(void **state)
{
    (void)state;
    problem p;
    problem_init(&p);
    oct_plan *plan = plan_of(&p.spec);
    memset(p.out, 0xFF, sizeof(p.out));
    memset(p.lse, 0xFF, sizeof(p.lse));
    memcpy(p.kv_len, (int32_t[]){ 0, 0 }, sizeof(p.kv_len));
    p.padded.block_table = NULL;
    p.padded.n_pages = 0;
    assert_int_equal(oct_plan_update(plan, &p.padded, NULL), OCT_OK);
    assert_int_equal(oct_attn_run(plan, &p.args), OCT_OK);
    for (int i = 0; i < N_ROWS * HEADS_Q * DIM; i++) {
        assert_true(p.out[i] == 0 && !signbit(p.out[i]));
    }
    for (int i = 0; i < N_ROWS * HEADS_Q; i++) {
        assert_true(p.lse[i] == -INFINITY);
    }
    oct_plan_destroy(plan);
}

static void both_forms_give_the_same_bits(void **state)
{
    (void)state;
    problem p;
    problem_init(&p);
    oct_plan *plan = plan_of(&p.spec);
    assert_int_equal(oct_kv_write(context, &p.write), OCT_OK);
    assert_int_equal(oct_plan_update(plan, &p.padded, NULL), OCT_OK);
    memset(p.block_table, 0xFF, sizeof(p.block_table));   /* update has copied them */
    memset(p.out, 0xFF, sizeof(p.out));
    assert_int_equal(oct_attn_run(plan, &p.args), OCT_OK);
    float first[N_ROWS * HEADS_Q * DIM];
    memcpy(first, p.out, sizeof(first));
    memset(p.out, 0xFF, sizeof(p.out));
    assert_int_equal(oct_plan_update(plan, &p.compressed, NULL), OCT_OK);
    assert_int_equal(oct_attn_run(plan, &p.args), OCT_OK);
    assert_memory_equal(first, p.out, sizeof(first));
    float largest = 0;
    for (int i = 0; i < N_ROWS * HEADS_Q * DIM; i++) {
        assert_true(isfinite(first[i]));
        largest = fmaxf(largest, fabsf(first[i]));
    }
    assert_true(largest > 0.5f);
    oct_plan_destroy(plan);
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);   /* what else runs on the machine doesn't count */
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* 70,000 sequences, and 64 of 8k keys: right in count, and no allocation once the room is there. */
static void large_batches_are_right_and_allocate_once(void **state)
{
    (void)state;
    enum { MANY = 70000, FEW = 7000, LONG = 64, LONG_KEYS = 8192 };
    counting c = { 0 };
    oct_context *counted = context_of(&c, 2);
    problem p;
    problem_init(&p);
    oct_plan *plan;
    assert_int_equal(oct_plan_create(counted, &p.spec, &plan, NULL), OCT_OK);
    int32_t *qo_indptr = calloc(MANY + 1, sizeof(int32_t)), *kv_len = calloc(MANY, sizeof(int32_t)), *table = calloc(LONG * LONG_KEYS / PAGE_SIZE, sizeof(int32_t));
    for (int32_t i = 0; i < MANY; i++) {
        qo_indptr[i + 1] = i + 1;
        kv_len[i] = 1 + i % 3;
    }
    oct_attn_batch batch = { .struct_size = sizeof(batch), .n_sequences = MANY, .qo_indptr = qo_indptr, .block_table = table, .seq_lens = kv_len, .max_pages = 1, .n_pages = 1 };
    double best = INFINITY, best_of_few = INFINITY;
    size_t made = 0;
    for (int i = 0; i < 3; i++) {
        batch.n_sequences = MANY;
        double begin = seconds_now();
        assert_int_equal(oct_plan_update(plan, &batch, NULL), OCT_OK);
        best = fmin(best, seconds_now() - begin);
        assert_true(i == 0 || c.made == made);
        made = c.made;
        batch.n_sequences = FEW;
        begin = seconds_now();
        assert_int_equal(oct_plan_update(plan, &batch, NULL), OCT_OK);
        best_of_few = fmin(best_of_few, seconds_now() - begin);
        assert_true(c.made == made);
    }
    batch.n_sequences = MANY;
    assert_int_equal(oct_plan_update(plan, &batch, NULL), OCT_OK);
    oct_plan_info info = info_of(plan);
    assert_int_equal(info.n_rows, MANY);
    assert_int_equal(info.n_items, MANY * HEADS);
    printf("update of %d sequences: %.0f us, of %d %.0f us\n", MANY, best * 1e6, FEW, best_of_few * 1e6);
    assert_true(best < 40 * best_of_few);   /* ten times as many: a square would be a hundred */

    for (int32_t i = 0; i < LONG; i++) {
        kv_len[i] = LONG_KEYS;
    }
    batch.n_sequences = LONG;
    batch.max_pages = LONG_KEYS / PAGE_SIZE;
    best = 1;
    for (int i = 0; i < 10; i++) {
        const double begin = seconds_now();
        assert_int_equal(oct_plan_update(plan, &batch, NULL), OCT_OK);
        best = fmin(best, seconds_now() - begin);
        assert_true(i == 0 || c.made == made);
        made = c.made;
    }
    printf("update of %d sequences of %d keys in pages of %d: %.0f us\n", LONG, LONG_KEYS, PAGE_SIZE, best * 1e6);
    assert_true(best < 0.02);
    oct_plan_destroy(plan);
    oct_context_destroy(counted);
    assert_int_equal(c.live, 0);
    assert_int_equal(c.live_bytes, 0);
    free(qo_indptr);
    free(kv_len);
    free(table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_in_either_form),
        cmocka_unit_test(one_form_and_only_one),
        cmocka_unit_test(lengths_padded),
        cmocka_unit_test(lengths_compressed),
        cmocka_unit_test(pages_in_either_form),
        cmocka_unit_test(pages_behind_the_window_may_be_none),
        cmocka_unit_test(empty_batches_are_fine),
        cmocka_unit_test(rows_without_keys_are_written),
        cmocka_unit_test(both_forms_give_the_same_bits),
        cmocka_unit_test(large_batches_are_right_and_allocate_once),
    };
    return cmocka_run_group_tests(tests, make_context, drop_context);
}
