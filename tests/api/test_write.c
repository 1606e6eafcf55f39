/* test_write.c: what oct_kv_write and its shares refuse, with the words that go to the log, and that a refused write leaves every byte as it
 * was; slots that are skipped; shares that make the whole. Whether the bytes are right is for tests/cpu and tests/parity. */
#include "api_test.h"

static oct_context *context;
static char logged[512];

static void keep(void *user, int level, const char *text)
{
    (void)user;
    assert_int_equal(level, 0);
    snprintf(logged, sizeof(logged), "%s", text);
}

static int make_context(void **state)
{
    const oct_context_options options = { .struct_size = sizeof(options), .max_threads = 3, .log = keep };
    (void)state;
    return oct_context_create(&options, &context, NULL) != OCT_OK;
}

static int drop_context(void **state)
{
    (void)state;
    oct_context_destroy(context);
    return 0;
}

typedef struct window {
    problem p;
    oct_rope rope;
    float factors[DIM / 2];
    oct_kv_counts counts[3];
} window;

static void window_init(window *w, problem *p)
{
    problem_init(p);
    memset(w, 0, sizeof(*w));
    problem_init(&w->p);
    for (int i = 0; i < DIM / 2; i++) {
        w->factors[i] = 1;
    }
    w->rope = (oct_rope){ .struct_size = sizeof(w->rope), .n_dims = DIM, .base = 10000.0f, .position_scale = 1.0f, .factors = w->factors };
}

static void check_refused(problem *p, const problem *second, const char *words)
{
    problem before, before_second;
    memset(p->k, 0xAB, sizeof(p->k));
    memset(p->v, 0xAB, sizeof(p->v));
    memcpy(&before, p, sizeof(before));
    memcpy(&before_second, second, sizeof(before_second));
    logged[0] = '\0';
    if (oct_kv_write(context, &p->write) != OCT_INVALID_ARGUMENT) {
        fail_msg("'%s' was not refused", words);
    }
    assert_words(logged, words);
    assert_int_equal(strncmp(logged, "oct_kv_write: ", 14), 0);
    assert_int_equal(oct_kv_write_part(context, &p->write, 1, 2), OCT_INVALID_ARGUMENT);
    assert_memory_equal(&before, p, sizeof(before));
    assert_memory_equal(&before_second, second, sizeof(before_second));
}

#define REFUSED(change, words)                  \
    do {                                        \
        problem p;                              \
        window w;                               \
        window_init(&w, &p);                    \
        oct_kv_write_args *a = &p.write;        \
        change;                                 \
        (void)a;                                \
        check_refused(&p, &w.p, words);         \
    } while (0)

#define AT(pointer, bytes) ((void *)((unsigned char *)(pointer) + (bytes)))

static void tokens_and_sources(void **state)
{
    (void)state;
    REFUSED(a->checked = 2, "args.checked must be 0 or 1");
    REFUSED(a->reserved = 1, "args.reserved and reserved2 must be 0");
    REFUSED(a->reserved2 = 1, "args.reserved and reserved2 must be 0");
    REFUSED(a->n_tokens = -1, "args.n_tokens is -1; must be >= 0");
    REFUSED(a->src_dtype = 0, "args.src_dtype is 0; must be f32, f16 or bf16");
    REFUSED(a->src_dtype = OCT_DTYPE_E4M3FN, "args.src_dtype is 4");
    REFUSED(a->k = NULL, "args.k is NULL");
    REFUSED(a->v = NULL, "args.v is NULL");
    REFUSED(a->k = AT(p.src, 2), "args.k is not aligned to its elements of 4 bytes");
    REFUSED(a->v = AT(p.src, 1), "args.v is not aligned to its elements of 4 bytes");
    REFUSED(a->src_dtype = OCT_DTYPE_BF16; a->k = AT(p.src, 1), "args.k is not aligned to its elements of 2 bytes");
    REFUSED(a->k_token_stride = -1, "args.k_token_stride -1");
    REFUSED(a->v_head_stride = INT64_MAX / 2, "v_head_stride 4611686018427387903: must be >= 0 and stay in the address space");
    REFUSED(a->slots = NULL, "args.slots is NULL");
}

/* D5: a slot that no page has is refused before anything is written, wherever in the batch it stands. */
static void slots_past_the_pool(void **state)
{
    (void)state;
    REFUSED(p.slots[0] = N_TOKENS, "args.slots[0] is 32; the layer has 32 slots");
    REFUSED(p.slots[N_TOKENS - 1] = N_TOKENS, "args.slots[31] is 32; the layer has 32 slots");
    REFUSED(p.slots[7] = INT32_MAX, "args.slots[7] is 2147483647; the layer has 32 slots");
    REFUSED(a->layer_window = &w.p.layer; a->slots_window = w.p.slots; w.p.slots[3] = 40, "args.slots_window[3] is 40; the layer has 32 slots");
}

static void layers(void **state)
{
    (void)state;
    REFUSED(a->layer = NULL, "args.layer is NULL");
    REFUSED(p.layer.k_scale = NULL, "args.layer.k_scale is NULL; scale mode layer_head reads it");
    REFUSED(p.k_scale[1] = 0, "args.layer.k_scale[1] (head 1) is 0; must be finite and > 0");
    REFUSED(p.k_scale[0] = NAN, "args.layer.k_scale[0] (head 0) is nan");
    REFUSED(p.layer.v_token_scale = NULL, "args.layer.v_token_scale is NULL");
    REFUSED(p.layer.k = NULL, "args.layer.k is NULL");
    REFUSED(p.layer.v_head_stride = 8, "args.layer: v strides (page 128, token 32, head 8) let vectors overlap");
    REFUSED(a->slots_window = w.p.slots, "args.slots_window is given, but args.layer_window is NULL");
    REFUSED(a->layer_window = &w.p.layer, "args.slots_window is NULL");
    REFUSED(a->layer_window = &w.p.layer; a->slots_window = w.p.slots; w.p.k_scale[0] = -1, "args.layer_window.k_scale[0] (head 0) is -1");
    REFUSED(a->layer_window = &w.p.layer; a->slots_window = w.p.slots; w.p.layer.spec.heads = 1, "args.layer_window has 1 heads of 16 and 16 dims, args.layer 2 of 16 and 16");
}

static void rope(void **state)
{
    (void)state;
#define ROPED a->rope = &w.rope; a->positions = p.positions
    REFUSED(a->rope = &w.rope, "args.positions is NULL");
    REFUSED(ROPED; a->positions = AT(p.positions, 2), "args.positions is not aligned");
    REFUSED(ROPED; w.rope.struct_size = 4, "args.rope.struct_size is 4");
    REFUSED(ROPED; w.rope.style = 2, "args.rope.style is 2; must be 0 (neox) or 1 (normal)");
    REFUSED(ROPED; w.rope.n_dims = 0, "args.rope.n_dims is 0; must be even, from 2 to dim_k = 16");
    REFUSED(ROPED; w.rope.n_dims = 15, "args.rope.n_dims is 15");
    REFUSED(ROPED; w.rope.n_dims = 18, "args.rope.n_dims is 18");
    REFUSED(ROPED; w.rope.base = 0, "args.rope.base is 0; must be finite and > 0");
    REFUSED(ROPED; w.rope.base = NAN, "args.rope.base is nan");
    REFUSED(ROPED; w.rope.position_scale = INFINITY, "args.rope.position_scale is inf; must be finite");
    REFUSED(ROPED; w.rope.factors = (const float *)(const void *)((const char *)w.factors + 1), "args.rope.factors is not aligned to its elements of 4 bytes");
    REFUSED(ROPED; w.factors[7] = 0, "args.rope.factors[7] is 0; must be finite and not 0");
    REFUSED(ROPED; w.factors[0] = NAN, "args.rope.factors[0] is nan");
}

static void counts(void **state)
{
    (void)state;
    REFUSED(a->v_counts = (oct_kv_counts *)(void *)((char *)w.counts + 4); a->n_counts = 1, "args.v_counts is not aligned");
    REFUSED(a->k_counts = w.counts, "args.n_counts is 0; must be at least 1, one entry a thread");
    /* One entry does for a call that brings its own threads, two shares need two. */
    problem p;
    window w;
    window_init(&w, &p);
    p.write.k_counts = p.write.v_counts = w.counts;
    p.write.n_counts = 1;
    assert_int_equal(oct_kv_write(context, &p.write), OCT_OK);
    assert_int_equal(w.counts[0].n_values, 2 * N_TOKENS * HEADS * DIM);
    assert_int_equal(oct_kv_write_part(context, &p.write, 0, 2), OCT_INVALID_ARGUMENT);
    assert_words(logged, "args.n_counts is 1; must be at least 2");
    p.write.n_counts = 2;
    assert_int_equal(oct_kv_write_part(context, &p.write, 0, 2), OCT_OK);
    assert_int_equal(oct_kv_write_part(context, &p.write, 1, 2), OCT_OK);
    assert_int_equal(w.counts[0].n_values + w.counts[1].n_values, 4 * N_TOKENS * HEADS * DIM);   /* added to, never reset */
}

static void the_least_rope_is_legal(void **state)
{
    (void)state;
    problem p;
    window w;
    window_init(&w, &p);
    p.write.rope = &w.rope;
    p.write.positions = p.positions;
    w.rope.n_dims = 2;
    w.rope.style = 1;
    w.rope.position_scale = 0;   /* every angle 0: legal, if useless */
    assert_int_equal(oct_kv_write(context, &p.write), OCT_OK);
    problem plain;
    problem_init(&plain);
    assert_int_equal(oct_kv_write(context, &plain.write), OCT_OK);
    assert_memory_equal(plain.k, p.k, sizeof(p.k));
}

static void missing_pointers(void **state)
{
    (void)state;
    problem p;
    problem_init(&p);
    assert_int_equal(oct_kv_write(NULL, &p.write), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_kv_write(context, NULL), OCT_INVALID_ARGUMENT);
    assert_words(logged, "args is NULL");
    assert_int_equal(oct_kv_write_part(NULL, &p.write, 0, 0), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_kv_write_part(context, &p.write, 0, 0), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_kv_write_part(context, &p.write, 3, 3), OCT_INVALID_ARGUMENT);
    assert_words(logged, "oct_kv_write_part: ith is 3, nth 3; must be ith < nth");
    p.write.n_tokens = 0;
    p.write.k = p.write.v = NULL;
    p.write.slots = NULL;
    assert_int_equal(oct_kv_write(context, &p.write), OCT_OK);
}

/* ---- what is written --------------------------------------------------------------------------------------------------------- */

/* The case of D5, in both modes: negative slots are skipped, and so are slots past the pool in unchecked mode. */
static void only_named_slots_change(void **state)
{
    (void)state;
    static const int32_t slots[] = { 0, 5, -1, 17, -1, INT32_MIN, 31, -1 };
    for (uint32_t checked = 0; checked < 2; checked++) {
        problem p;
        problem_init(&p);
        memset(p.k, 0xAB, sizeof(p.k));
        memset(p.v, 0xAB, sizeof(p.v));
        memcpy(p.slots, slots, sizeof(slots));
        p.write.n_tokens = 8;
        p.write.checked = checked;
        if (!checked) {
            p.slots[4] = N_TOKENS;
            p.slots[7] = INT32_MAX;
        }
        assert_int_equal(oct_kv_write(context, &p.write), OCT_OK);
        for (int slot = 0; slot < N_TOKENS; slot++) {
            const bool named = slot == 0 || slot == 5 || slot == 17 || slot == 31;
            bool changed_k = false, changed_v = false;
            for (int i = slot * HEADS * DIM; i < (slot + 1) * HEADS * DIM; i++) {
                changed_k |= p.k[i] != 0xAB;
                changed_v |= p.v[i] != 0xAB;
            }
            assert_int_equal(changed_k, named);
            assert_int_equal(changed_v, named);
        }
    }
}

static void shares_make_the_whole(void **state)
{
    (void)state;
    problem whole, parts;
    problem_init(&whole);
    assert_int_equal(oct_kv_write(context, &whole.write), OCT_OK);
    for (uint32_t nth = 1; nth <= 40; nth += nth < 6 ? 1 : 17) {
        problem_init(&parts);
        for (uint32_t ith = nth; ith-- > 0;) {
            assert_int_equal(oct_kv_write_part(context, &parts.write, ith, nth), OCT_OK);
        }
        assert_memory_equal(whole.k, parts.k, sizeof(whole.k));
        assert_memory_equal(whole.v, parts.v, sizeof(whole.v));
        assert_memory_equal(whole.v_token_scale, parts.v_token_scale, sizeof(whole.v_token_scale));
    }
}

static void both_destinations_are_written_at_once(void **state)
{
    (void)state;
    problem full, twin;
    problem_init(&full);
    problem_init(&twin);
    for (int i = 0; i < N_TOKENS; i++) {
        twin.slots[i] = i % 2 == 0 ? -1 : N_TOKENS - 1 - i;
    }
    full.write.layer_window = &twin.layer;
    full.write.slots_window = twin.slots;
    assert_int_equal(oct_kv_write(context, &full.write), OCT_OK);
    for (int i = 0; i < N_TOKENS; i++) {
        static const unsigned char none[HEADS * DIM];
        const int to = N_TOKENS - 1 - i;
        assert_memory_equal(twin.v + to * HEADS * DIM, i % 2 == 0 ? none : full.v + i * HEADS * DIM, HEADS * DIM);
    }
}

/* V in v4: strides of whole blocks where an axis has more than one point, and the alignment of a block's scale. */
static void layers_in_4_bits(void **state)
{
    static uint16_t k[2 * 4 * 3 * 32], v[2 * 4 * 3 * 64 / 32 * 9 + 9];
    static const float source[3 * 64] = { 0.5f };
    static const int32_t slot = 1;
    const oct_kv_spec spec = { sizeof(spec), OCT_LAYOUT_NHD, 3, 32, 64, 4, { OCT_DTYPE_BF16, OCT_SCALE_NONE, 0, 0 }, { OCT_DTYPE_V4, OCT_SCALE_NONE, 0, 1 } };
    oct_kv_layer layer;
    oct_kv_write_args args = { .struct_size = sizeof(args), .checked = 1, .layer = &layer, .slots = &slot, .n_tokens = 1, .src_dtype = OCT_DTYPE_F32, .k = source, .v = source,
                               .k_token_stride = 96, .k_head_stride = 32, .v_token_stride = 192, .v_head_stride = 64 };
    (void)state;
    assert_int_equal(oct_kv_layer_init(&layer, &spec, 2, NULL), OCT_OK);
    layer.k = k;
    layer.v = v;
    assert_int_equal(oct_kv_write(context, &args), OCT_OK);
#define REFUSED_V4(change, undo, words)                                     \
    change;                                                                 \
    assert_int_equal(oct_kv_write(context, &args), OCT_INVALID_ARGUMENT);   \
    assert_non_null(strstr(logged, words));                                 \
    undo
    REFUSED_V4(layer.v_token_stride += 16, layer.v_token_stride -= 16, "args.layer: v strides (page 768, token 208, head 64) must be multiples of 32: v4 lies in blocks");
    REFUSED_V4(layer.v_head_stride = 72, layer.v_head_stride = 64, "head 72) must be multiples of 32");
    REFUSED_V4(layer.v_page_stride = 769, layer.v_page_stride = 768, "(page 769,");
    REFUSED_V4(layer.v_head_stride = 32, layer.v_head_stride = 64, "let vectors overlap");
    REFUSED_V4(layer.v = (uint8_t *)v + 1, layer.v = v, "args.layer.v is not aligned to its elements of v4");
    REFUSED_V4(layer.v_token_scale = v, layer.v_token_scale = NULL, "args.layer.v_token_scale is given, but scale mode none does not read it");
#undef REFUSED_V4
    layer.v_page_stride += 32; /* room between pages */
    assert_int_equal(oct_kv_write(context, &args), OCT_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_and_sources),
        cmocka_unit_test(slots_past_the_pool),
        cmocka_unit_test(layers_in_4_bits),
        cmocka_unit_test(layers),
        cmocka_unit_test(rope),
        cmocka_unit_test(counts),
        cmocka_unit_test(the_least_rope_is_legal),
        cmocka_unit_test(missing_pointers),
        cmocka_unit_test(only_named_slots_change),
        cmocka_unit_test(shares_make_the_whole),
        cmocka_unit_test(both_destinations_are_written_at_once),
    };
    return cmocka_run_group_tests(tests, make_context, drop_context);
}
