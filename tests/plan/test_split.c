/* test_split.c: what split.c owes to the runner, on random batches: every row x head x visible key in exactly one item, tiles within their
 * limits, groups and partials apart, dearest first; and in deterministic mode the same items whatever the batch and the threads. */
#include "plan_test.h"

#include <math.h>

static const oct__variant decode_rows[] = {
    { .op = OCT__OP_attn_decode, .name = "a", .tile_vectors = 64, .cost = { .item_ns = 300, .many = { .mac_ps = 30, .convert_ps = 70, .exp_ps = 600 } } },
    { .op = OCT__OP_attn_decode, .name = "b", .tile_vectors = 1, .cost = { .item_ns = 300, .many = { .mac_ps = 30, .convert_ps = 70, .exp_ps = 600 } } },
    { .op = OCT__OP_attn_decode, .name = "c", .tile_vectors = 12, .cost = { .item_ns = 300, .many = { .mac_ps = 1, .convert_ps = 1, .exp_ps = 1 } } },
};
static const oct__variant extend_rows[] = {
    { .op = OCT__OP_attn_extend, .name = "a", .tile_vectors = 64, .cost = { .item_ns = 300, .many = { .mac_ps = 20, .convert_ps = 70, .exp_ps = 600 } } },
    { .op = OCT__OP_attn_extend, .name = "b", .tile_vectors = 7, .cost = { .item_ns = 300, .many = { .mac_ps = 20, .convert_ps = 70, .exp_ps = 600 } } },
    { .op = OCT__OP_attn_extend, .name = "c", .tile_vectors = 128, .cost = { .item_ns = 0, .many = { .mac_ps = 1, .convert_ps = 0, .exp_ps = 0 } } },
};
static const oct__rates rates = { 20e9, 60e9, 1.0, "test", 1.0, 1.0, 1.0 };

enum { MAX_SEQUENCES = 24 };

typedef struct batch {
    oct_attn_spec spec;
    oct__split split;
    int32_t qo_indptr[MAX_SEQUENCES + 1], kv_len[MAX_SEQUENCES];
    oct__item *items;
} batch;

static void batch_split(batch *b)
{
    b->split.spec = &b->spec;
    b->split.rates = &rates;
    b->split.qo_indptr = b->qo_indptr;
    b->split.kv_len = b->kv_len;
    oct__split_measure(&b->split);
    b->items = malloc(((size_t)b->split.n_items + 1) * sizeof(oct__item));
    memset(b->items, 0xEE, ((size_t)b->split.n_items + 1) * sizeof(oct__item));
    oct__split_emit(&b->split, b->items);
}

static void batch_random(batch *b, uint64_t *s)
{
    static const uint32_t groups[] = { 1, 2, 3, 5, 6, 7, 8, 12, 16, 64, 71 };
    memset(b, 0, sizeof(*b));
    b->spec = plain_spec();
    b->spec.kv.heads = (uint32_t)random_between(s, 1, 4);
    b->spec.heads_q = b->spec.kv.heads * groups[random_between(s, 0, 10)];
    b->spec.kv.dim_k = 8 * (uint32_t)random_between(s, 2, 16);
    b->spec.kv.dim_v = 8 * (uint32_t)random_between(s, 2, 16);
    b->spec.causal = random_between(s, 0, 3) > 0;
    b->spec.window_tokens = random_between(s, 0, 1) ? (uint32_t)random_between(s, 1, random_between(s, 1, 3000)) : 0;
    b->spec.deterministic = random_between(s, 0, 3) == 0;
    b->spec.split_tokens = random_between(s, 0, 3) == 0 ? (uint32_t)random_between(s, 1, random_between(s, 1, 900)) : 0;
    b->split.decode = &decode_rows[random_between(s, 0, 2)];
    b->split.extend = &extend_rows[random_between(s, 0, 2)];
    b->split.n_threads = (uint32_t)random_between(s, 1, random_between(s, 1, 64));
    b->split.n_sequences = (uint32_t)random_between(s, 0, MAX_SEQUENCES);
    for (uint32_t i = 0; i < b->split.n_sequences; i++) {
        const int64_t q_most = random_between(s, 0, 2) == 0 ? 200 : random_between(s, 0, 1) ? 18 : 1;
        b->qo_indptr[i + 1] = b->qo_indptr[i] + (int32_t)random_between(s, random_between(s, 0, 1), q_most);
        b->kv_len[i] = (int32_t)random_between(s, 0, random_between(s, 0, 4) == 0 ? 20000 : random_between(s, 0, 1) ? 700 : 20);
    }
}

/* ---- coverage ------------------------------------------------------------------------------------------------------------ */

/* For one row and head: how far the keys are covered. Items come sorted by key here, so that a gap or an overlap shows at once. */
typedef struct cover { int64_t at; bool begun; } cover;

static int by_key(const void *a, const void *b)
{
    const oct__item *x = a, *y = b;
    return x->key0 < y->key0 ? -1 : x->key0 > y->key0;
}

static void check_cover(const batch *b)
{
    const oct__split *split = &b->split;
    const int64_t n_rows = b->qo_indptr[split->n_sequences];
    cover *covers = calloc((size_t)n_rows * b->spec.heads_q + 1, sizeof(*covers));
    oct__item *items = malloc(((size_t)split->n_items + 1) * sizeof(*items));
    memcpy(items, b->items, (size_t)split->n_items * sizeof(*items));
    qsort(items, (size_t)split->n_items, sizeof(*items), by_key);
    for (int64_t i = 0; i < split->n_items; i++) {
        const oct__item *item = &items[i];
        for (int64_t r = item->row0; r < item->row0 + item->n_rows; r++) {
            for (uint32_t h = item->head0; h < item->head0 + item->n_heads; h++) {
                cover *c = &covers[r * b->spec.heads_q + h];
                if (c->begun && c->at != item->key0) {
                    fail_msg("row %lld head %u: keys up to %lld, then from %lld", (long long)r, h, (long long)c->at, (long long)item->key0);
                }
                const int64_t kv_len = b->kv_len[item->sequence], pos = kv_len - (b->qo_indptr[item->sequence + 1] - r);
                const int64_t first = b->spec.window_tokens > 0 && pos - (int64_t)b->spec.window_tokens + 1 > 0 ? pos - (int64_t)b->spec.window_tokens + 1 : 0;
                const int64_t last = b->spec.causal ? pos : kv_len - 1;
                if (!c->begun && first <= last && item->key0 > first) {
                    fail_msg("row %lld head %u sees key %lld, items begin at %lld", (long long)r, h, (long long)first, (long long)item->key0);
                }
                c->begun = true;
                c->at = item->key1;
            }
        }
    }
    for (uint32_t q = 0; q < split->n_sequences; q++) {
        for (int64_t r = b->qo_indptr[q]; r < b->qo_indptr[q + 1]; r++) {
            const int64_t pos = b->kv_len[q] - (b->qo_indptr[q + 1] - r), last = b->spec.causal ? pos : (int64_t)b->kv_len[q] - 1;
            for (uint32_t h = 0; h < b->spec.heads_q; h++) {
                const cover *c = &covers[r * b->spec.heads_q + h];
                assert_true(c->begun);   /* a row that sees nothing is written too */
                if (c->at <= last && last >= 0) {
                    fail_msg("row %lld head %u sees key %lld, items end at %lld", (long long)r, h, (long long)last, (long long)c->at);
                }
            }
        }
    }
    free(items);
    free(covers);
}

/* ---- items --------------------------------------------------------------------------------------------------------------- */

static double seconds_of(const batch *b, const oct__item *item)
{
    oct__tally tally = { .tiles = 0 };
    oct__tally_tile(&tally, &b->spec, &item->variant->cost, item->n_rows, item->n_heads, item->key0, item->key1, item->pos0);
    const oct__amount amount = oct__amount_of_tally(&b->spec, &tally, 1);
    return oct__cost_seconds(&item->variant->cost, &rates, &amount, 1);
}

static void check_items(const batch *b)
{
    const oct__split *split = &b->split;
    const uint32_t group = b->spec.heads_q / b->spec.kv.heads, o_stride = (b->spec.kv.dim_v + 15) / 16 * 16;
    int64_t n_split = 0;
    for (int64_t i = 0; i < split->n_items; i++) {
        const oct__item *item = &b->items[i];
        assert_in_range(item->sequence, 0, split->n_sequences - 1);
        const int64_t begin = b->qo_indptr[item->sequence], end = b->qo_indptr[item->sequence + 1], kv_len = b->kv_len[item->sequence];
        assert_ptr_equal(item->variant, end - begin <= 16 ? split->decode : split->extend);
        assert_true(item->n_rows >= 1 && item->row0 >= begin && item->row0 + item->n_rows <= end);
        assert_true(item->n_heads >= 1 && item->head0 / group == item->head_kv && (item->head0 + item->n_heads - 1) / group == item->head_kv);
        assert_true(item->n_rows * item->n_heads <= item->variant->tile_vectors);
        assert_true(item->pos0 == kv_len - end + item->row0);
        assert_true(item->key0 >= 0 && item->key0 <= item->key1 && item->key1 <= kv_len);
        assert_true(item->split < item->n_splits);
        assert_true(item->n_splits == 1 || item->key0 < item->key1);
        assert_true((item->n_splits == 1) == (item->group == -1));
        n_split += item->n_splits > 1;
        if (i > 0 && seconds_of(b, &b->items[i - 1]) < seconds_of(b, item) * 0.87) {   /* buckets are an eighth of an octave apart at most */
            fail_msg("item %lld is dearer than the one before", (long long)i);
        }
    }
    assert_int_equal(n_split, split->n_items_split);

    /* Groups: every split once, states one after the other, and no two groups' states in one place. */
    const oct__item **first = calloc((size_t)split->n_groups + 1, sizeof(*first));
    uint32_t *seen = calloc((size_t)split->n_groups + 1, sizeof(*seen));
    for (int64_t i = 0; i < split->n_items; i++) {
        const oct__item *item = &b->items[i];
        if (item->n_splits > 1) {
            assert_in_range(item->group, 0, split->n_groups - 1);
            seen[item->group]++;
            if (item->split == 0) {
                assert_null(first[item->group]);
                first[item->group] = item;
            }
        }
    }
    int64_t floats = 0;
    for (int64_t g = 0; g < split->n_groups; g++) {
        assert_non_null(first[g]);
        assert_int_equal(seen[g], first[g]->n_splits);
        floats += first[g]->n_splits * oct__partial_floats(first[g]->n_rows * first[g]->n_heads, o_stride);
    }
    assert_int_equal(floats, split->n_partial_floats);   /* with the next check: they fill the room, each part once */
    unsigned char *used = calloc((size_t)split->n_partial_floats / 16 + 1, 1);
    for (int64_t i = 0; i < split->n_items; i++) {
        const oct__item *item = &b->items[i];
        if (item->n_splits > 1) {
            const oct__item *f = first[item->group];
            const int64_t state = oct__partial_floats(item->n_rows * item->n_heads, o_stride);
            assert_true(item->n_rows == f->n_rows && item->row0 == f->row0 && item->head0 == f->head0 && item->n_heads == f->n_heads && item->n_splits == f->n_splits);
            assert_int_equal(item->partial0, f->partial0 + item->split * state);
            assert_int_equal(item->partial0 % 16, 0);
            assert_true(item->partial0 + state <= split->n_partial_floats);
            for (int64_t at = item->partial0; at < item->partial0 + state; at += 16) {
                assert_int_equal(used[at / 16]++, 0);
            }
        }
    }
    free(used);
    free(seen);
    free(first);
}

static void assert_near(double have, double want)
{
    if (fabs(have - want) > 1e-9 * fabs(want)) {
        fail_msg("%.17g is not %.17g", have, want);
    }
}

/* What costs are computed from is what the items do. */
static void check_amounts(const batch *b)
{
    for (int i = 0; i < 2; i++) {
        const oct__variant *variant = i == 0 ? b->split.decode : b->split.extend;
        const oct__amount whole = oct__split_amount(&b->split, variant);
        oct__tally sum = { .tiles = 0 }, split = { .tiles = 0 };
        int64_t n_rows, n_keys, rows = 0, keys = 0;
        for (int64_t j = 0; j < b->split.n_items; j++) {
            const oct__item *item = &b->items[j];
            if (item->variant == variant) {
                oct__tally_tile(&sum, &b->spec, &variant->cost, item->n_rows, item->n_heads, item->key0, item->key1, item->pos0);
                if (item->split > 0) { /* what a split's vectors cost again is no part of a choice */
                    split.tiles++;
                    split.vectors += (int64_t)item->n_rows * item->n_heads;
                }
            }
        }
        sum.tiles -= split.tiles;
        sum.vectors -= split.vectors;
        const oct__amount parts = oct__amount_of_tally(&b->spec, &sum, 1);
        assert_near(parts.items, whole.items);
        assert_near(parts.vectors, whole.vectors);
        assert_near(parts.keys, whole.keys);
        assert_near(parts.bytes, whole.bytes);
        /* These rows have one way. Splits begin at blocks or where the tile does, so that only a spec's own split size cuts a block in two. */
        assert_near(parts.many.macs, whole.many.macs);
        assert_near(parts.many.exps, whole.many.exps);
        assert_near(parts.many.converts, whole.many.converts);
        assert_near(parts.many.pads, whole.many.pads);
        assert_true(parts.many.blocks >= whole.many.blocks && whole.few.macs == 0);
        oct__split_count(&b->split, variant->op, &n_rows, &n_keys);
        for (uint32_t q = 0; q < b->split.n_sequences; q++) {
            const int32_t n = b->qo_indptr[q + 1] - b->qo_indptr[q];
            if (n > 0 && (n <= 16) == (i == 0)) {
                rows += n;
                keys += b->kv_len[q];
            }
        }
        assert_int_equal(rows, n_rows);
        assert_int_equal(keys, n_keys);
    }
}

static void random_batches_are_covered_once(void **state)
{
    (void)state;
    const uint64_t seed = 20;
    printf("seed %llu\n", (unsigned long long)seed);
    for (uint64_t i = 0; i < 500; i++) {
        uint64_t s = seed * 1000003 + i;
        batch b;
        batch_random(&b, &s);
        batch_split(&b);
        check_items(&b);
        check_cover(&b);
        check_amounts(&b);
        for (int64_t j = 0; b.spec.split_tokens == 0 && j < b.split.n_items; j++) {
            const oct__item *item = &b.items[j];
            assert_true(item->key1 - item->key0 <= 8192);   /* sums stay short enough for f32 */
            if (!b.spec.deterministic && b.split.n_threads == 1 && b.kv_len[item->sequence] <= 8192) {
                assert_int_equal(item->n_splits, 1);   /* nobody waits, so nothing is to be won */
            }
        }
        free(b.items);
    }
}

/* ---- where splits fall ----------------------------------------------------------------------------------------------------- */

static batch batch_plain(uint32_t n, const int32_t *q_len, const int32_t *kv_len, uint32_t n_threads)
{
    batch b = { .spec = plain_spec() };
    b.split.decode = &decode_rows[0];
    b.split.extend = &extend_rows[0];
    b.split.n_threads = n_threads;
    b.split.n_sequences = n;
    for (uint32_t i = 0; i < n; i++) {
        b.qo_indptr[i + 1] = b.qo_indptr[i] + q_len[i];
        b.kv_len[i] = kv_len[i];
    }
    return b;
}

static void a_long_sequence_keeps_all_threads_busy(void **state)
{
    (void)state;
    for (uint32_t n_threads = 2; n_threads <= 64; n_threads *= 2) {
        batch b = batch_plain(1, (int32_t[]){ 1 }, (int32_t[]){ 65536 }, n_threads);
        batch_split(&b);
        assert_true(b.split.n_items >= 3 * (int64_t)n_threads);
        assert_true(b.split.n_items <= 3 * 64);
        double longest = 0, sum = 0;
        for (int64_t i = 0; i < b.split.n_items; i++) {
            longest = fmax(longest, seconds_of(&b, &b.items[i]));
            sum += seconds_of(&b, &b.items[i]);
        }
        assert_true(longest <= 1.1 * sum / (n_threads * 3.0) || b.split.n_items == 3 * 64);
        free(b.items);
    }
    /* A long one among short ones is split, the short ones are not. */
    int32_t q_len[9], kv_len[9];
    for (int i = 0; i < 9; i++) {
        q_len[i] = 1;
        kv_len[i] = i == 4 ? 65536 : 128;
    }
    batch b = batch_plain(9, q_len, kv_len, 8);
    batch_split(&b);
    for (int64_t i = 0; i < b.split.n_items; i++) {
        assert_int_equal(b.items[i].n_splits > 1, b.items[i].sequence == 4);
        assert_true(b.items[i].n_splits == 1 || b.items[i].key1 - b.items[i].key0 >= 64);
    }
    free(b.items);
}

static void short_sequences_are_not_split(void **state)
{
    (void)state;
    batch b = batch_plain(1, (int32_t[]){ 1 }, (int32_t[]){ 511 }, 64);
    batch_split(&b);
    assert_int_equal(b.split.n_items_split, 0);
    free(b.items);
    b = batch_plain(1, (int32_t[]){ 1 }, (int32_t[]){ 512 }, 64);
    batch_split(&b);
    assert_int_equal(b.split.n_items, 3 * 2);
    free(b.items);
}

static void asked_for_splits_fall_on_multiples(void **state)
{
    (void)state;
    for (uint32_t tokens = 1; tokens <= 333; tokens += 83) {
        batch b = batch_plain(2, (int32_t[]){ 1, 40 }, (int32_t[]){ 1000, 777 }, 1);
        b.spec.split_tokens = tokens;
        b.spec.window_tokens = 600;
        batch_split(&b);
        for (int64_t i = 0; i < b.split.n_items; i++) {
            const oct__item *item = &b.items[i];
            assert_true(item->split == 0 || item->key0 % tokens == 0);
            assert_true(item->split + 1 == item->n_splits || item->key1 % tokens == 0);
            assert_true(item->key1 - item->key0 <= tokens);
        }
        free(b.items);
    }
}

/* ---- deterministic --------------------------------------------------------------------------------------------------------- */

/* What decides a row's bits: the tile it is in, relative to its sequence, and where its keys are cut. */
typedef struct trace { int64_t row, key0, key1, pos0; uint32_t head0, n_rows, n_heads, split, n_splits, no_padding; } trace;

static int by_place(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(trace));
}

static size_t traces_of(const batch *b, int32_t sequence, trace **traces)
{
    size_t n = 0;
    *traces = calloc((size_t)b->split.n_items + 1, sizeof(trace));
    for (int64_t i = 0; i < b->split.n_items; i++) {
        const oct__item *item = &b->items[i];
        if (item->sequence == sequence) {
            (*traces)[n++] = (trace){ item->row0 - b->qo_indptr[sequence], item->key0, item->key1, item->pos0, item->head0, item->n_rows, item->n_heads, item->split, item->n_splits, 0 };
        }
    }
    qsort(*traces, n, sizeof(trace), by_place);
    return n;
}

static void deterministic_items_depend_on_their_own_sequence_only(void **state)
{
    (void)state;
    const uint64_t seed = 33;
    printf("seed %llu\n", (unsigned long long)seed);
    for (uint64_t i = 0; i < 300; i++) {
        uint64_t s = seed * 1000003 + i;
        batch many;
        do {
            batch_random(&many, &s);
        } while (many.split.n_sequences == 0);
        many.spec.deterministic = 1;
        batch_split(&many);
        const int32_t sequence = (int32_t)random_between(&s, 0, many.split.n_sequences - 1);
        batch alone = many;
        alone.items = NULL;
        alone.split.n_sequences = 1;
        alone.qo_indptr[1] = many.qo_indptr[sequence + 1] - many.qo_indptr[sequence];
        alone.kv_len[0] = many.kv_len[sequence];
        alone.split.n_threads = (uint32_t)random_between(&s, 1, 64);
        batch_split(&alone);
        trace *a, *b;
        const size_t n = traces_of(&many, sequence, &a);
        assert_int_equal(traces_of(&alone, 0, &b), n);
        assert_memory_equal(a, b, n * sizeof(trace));
        free(a);
        free(b);
        free(many.items);
        free(alone.items);
    }
}

static void deterministic_cuts_do_not_move_as_a_sequence_grows(void **state)
{
    (void)state;
    for (int32_t kv_len = 1; kv_len < 5000; kv_len += 97) {
        batch b = batch_plain(1, (int32_t[]){ 1 }, &kv_len, 8);
        b.spec.deterministic = 1;
        batch_split(&b);
        for (int64_t i = 0; i < b.split.n_items; i++) {
            const oct__item *item = &b.items[i];
            assert_int_equal(item->key0 % 512, 0);
            assert_true(item->key1 % 512 == 0 || item->key1 == kv_len);
        }
        free(b.items);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_batches_are_covered_once),
        cmocka_unit_test(a_long_sequence_keeps_all_threads_busy),
        cmocka_unit_test(short_sequences_are_not_split),
        cmocka_unit_test(asked_for_splits_fall_on_multiples),
        cmocka_unit_test(deterministic_items_depend_on_their_own_sequence_only),
        cmocka_unit_test(deterministic_cuts_do_not_move_as_a_sequence_grows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
