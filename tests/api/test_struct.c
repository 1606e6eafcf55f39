/* test_struct.c: the rule of doc/ABI.md for structs of another age, on the functions that carry it out and on every public struct. */
#include "api_test.h"

#include "api/struct.h"

/* A struct's life: version 1 ended at b, version 2 at c, version 3 at d. */
typedef struct aged { uint32_t struct_size, a; uint64_t b, c, d; } aged;
enum { V1 = offsetof(aged, c), V2 = offsetof(aged, d), V3 = sizeof(aged) };

static void a_missing_tail_is_zero(void **state)
{
    (void)state;
    const aged given = { V1, 1, 2, 3, 4 };
    aged known;
    memset(&known, 0xFF, sizeof(known));
    assert_int_equal(oct__struct_read(&known, V3, V1, &given, "key", "where", NULL), OCT_OK);
    assert_int_equal(known.struct_size, V3);
    assert_int_equal(known.a, 1);
    assert_int_equal(known.b, 2);
    assert_int_equal(known.c, 0);   /* past the caller's size: never read */
    assert_int_equal(known.d, 0);
}

static void an_unknown_tail_must_be_zero(void **state)
{
    (void)state;
    aged given = { V3, 1, 2, 0, 0 }, known = { 0 };
    oct_error error = OCT_ERROR_INIT;
    assert_int_equal(oct__struct_read(&known, V1, V1, &given, "key", "where", &error), OCT_OK);
    assert_int_equal(known.struct_size, V1);
    assert_int_equal(known.b, 2);
    ((unsigned char *)&given)[V3 - 1] = 1;
    assert_int_equal(oct__struct_read(&known, V1, V1, &given, "key", "where", &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "key uses a field at byte 31 that this version of the library does not know");
    assert_string_equal(error.where, "where");
    given.d = 0;
    given.c = 1;
    assert_int_equal(oct__struct_read(&known, V2, V1, &given, "key", "where", &error), OCT_OK);
    assert_int_equal(known.c, 1);
}

static void no_struct_and_no_size_are_refused(void **state)
{
    (void)state;
    aged given = { 0, 1, 2, 3, 4 }, known;
    oct_error error = OCT_ERROR_INIT;
    assert_int_equal(oct__struct_read(&known, V3, V1, NULL, "key", "where", &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "key is NULL");
    for (uint32_t size = 0; size < V1; size++) {
        given.struct_size = size;
        assert_int_equal(oct__struct_read(&known, V3, V1, &given, "key", "where", &error), OCT_INVALID_ARGUMENT);
        assert_words(error.text, "key.struct_size is");
    }
}

static void an_answer_fills_what_there_is_room_for(void **state)
{
    (void)state;
    const aged known = { V2, 1, 2, 3, 0 };
    aged given = { V1, 9, 9, 9, 9 };
    assert_int_equal(oct__struct_write(&given, &known, V2, V1), OCT_OK);
    assert_true(given.struct_size == V1 && given.a == 1 && given.b == 2 && given.c == 9 && given.d == 9);
    given = (aged){ V3, 9, 9, 9, 9 };
    assert_int_equal(oct__struct_write(&given, &known, V2, V1), OCT_OK);
    assert_true(given.struct_size == V3 && given.b == 2 && given.c == 3 && given.d == 0);   /* what the library does not know is 0 */
    given = (aged){ V1 - 1, 9, 9, 9, 9 };
    assert_int_equal(oct__struct_write(&given, &known, V2, V1), OCT_INVALID_ARGUMENT);
    assert_true(given.a == 9 && given.b == 9);
    assert_int_equal(oct__struct_write(NULL, &known, V2, V1), OCT_INVALID_ARGUMENT);
}

/* ---- every public struct ------------------------------------------------------------------------------------------------ */

typedef oct_status door(void *subject, void *given);

/* Through `open`: size 0 and one byte less than the struct had at its first release are refused; that size is taken, and what lies past it is not
 * looked at; a longer struct with zeroes is taken, with anything else refused. */
static void check_ages(door *open, void *subject, const void *legal, size_t first, size_t size)
{
    union { uint32_t struct_size; unsigned char bytes[1024]; uint64_t align; } given;
    assert_true(size + 16 <= sizeof(given));
    memset(&given, 0, sizeof(given));
    memcpy(&given, legal, size);
    assert_int_equal(given.struct_size, size);
    assert_int_equal(open(subject, &given), OCT_OK);
    given.struct_size = 0;
    assert_int_equal(open(subject, &given), OCT_INVALID_ARGUMENT);
    given.struct_size = (uint32_t)first - 1;
    assert_int_equal(open(subject, &given), OCT_INVALID_ARGUMENT);
    given.struct_size = (uint32_t)first;
    memset(given.bytes + first, 0xA5, size - first);
    assert_int_equal(open(subject, &given), OCT_OK);
    memset(given.bytes + first, 0, size - first);
    given.struct_size = (uint32_t)size + 16;
    assert_int_equal(open(subject, &given), OCT_OK);
    given.bytes[size + 15] = 1;
    assert_int_equal(open(subject, &given), OCT_INVALID_ARGUMENT);
}

typedef struct subject {
    problem p;
    oct_context *context;
    oct_plan *plan;
} subject;

static oct_status open_context(void *s, void *given)
{
    (void)s;
    oct_context *context;
    const oct_status status = oct_context_create(given, &context, NULL);
    if (status == OCT_OK) {
        oct_context_destroy(context);
    }
    return status;
}

static oct_status open_spec(void *s, void *given)
{
    oct_plan *plan;
    const oct_status status = oct_plan_create(((subject *)s)->context, given, &plan, NULL);
    if (status == OCT_OK) {
        oct_plan_destroy(plan);
    }
    return status;
}

static oct_status open_batch(void *s, void *given)
{
    return oct_plan_update(((subject *)s)->plan, given, NULL);
}

static oct_status open_args(void *s, void *given)
{
    return oct_attn_run(((subject *)s)->plan, given);
}

static oct_status open_layer(void *s, void *given)
{
    subject *t = s;
    oct_attn_args args = t->p.args;
    oct_kv_write_args write = t->p.write;
    args.layer = given;
    write.layer = given;
    const oct_status status = oct_attn_run(t->plan, &args);
    assert_int_equal(oct_kv_write(t->context, &write), status);
    return status;
}

static oct_status open_write(void *s, void *given)
{
    return oct_kv_write(((subject *)s)->context, given);
}

static oct_status open_rope(void *s, void *given)
{
    subject *t = s;
    oct_kv_write_args write = t->p.write;
    write.rope = given;
    write.positions = t->p.positions;
    return oct_kv_write(t->context, &write);
}

static oct_status open_merge(void *s, void *given)
{
    return oct_attn_merge(((subject *)s)->context, given);
}

static void every_struct_follows_the_rule(void **state)
{
    (void)state;
    static subject s;
    problem_init(&s.p);
    assert_int_equal(oct_context_create(NULL, &s.context, NULL), OCT_OK);
    assert_int_equal(oct_plan_create(s.context, &s.p.spec, &s.plan, NULL), OCT_OK);
    const oct_context_options options = { .struct_size = sizeof(options) };
    const oct_rope rope = { .struct_size = sizeof(rope), .n_dims = DIM, .base = 10000.0f, .position_scale = 1.0f };
    const oct_attn_merge_args merge = { .struct_size = sizeof(merge), .n_parts = 1, .rows = 1, .heads = 1, .dim = DIM, .out = s.p.q, .lse = s.p.q, .merged = s.p.out };
    check_ages(open_context, &s, &options, offsetof(oct_context_options, rates), sizeof(options));
    check_ages(open_spec, &s, &s.p.spec, offsetof(oct_attn_spec, max_sequences), sizeof(s.p.spec));
    check_ages(open_batch, &s, &s.p.padded, offsetof(oct_attn_batch, stream), sizeof(s.p.padded));
    assert_int_equal(oct_plan_update(s.plan, &s.p.padded, NULL), OCT_OK);
    check_ages(open_args, &s, &s.p.args, offsetof(oct_attn_args, stream), sizeof(s.p.args));
    check_ages(open_layer, &s, &s.p.layer, sizeof(s.p.layer), sizeof(s.p.layer));
    check_ages(open_write, &s, &s.p.write, offsetof(oct_kv_write_args, stream), sizeof(s.p.write));
    check_ages(open_rope, &s, &rope, sizeof(rope), sizeof(rope));
    check_ages(open_merge, &s, &merge, offsetof(oct_attn_merge_args, stream), sizeof(merge));
    oct_plan_destroy(s.plan);
    oct_context_destroy(s.context);
}

static void answers_keep_the_callers_size(void **state)
{
    (void)state;
    struct { oct_plan_info known; uint64_t unknown; } info;
    problem p;
    oct_context *context;
    oct_plan *plan;
    problem_init(&p);
    assert_int_equal(oct_context_create(NULL, &context, NULL), OCT_OK);
    assert_int_equal(oct_plan_create(context, &p.spec, &plan, NULL), OCT_OK);
    assert_int_equal(oct_plan_update(plan, &p.padded, NULL), OCT_OK);
    memset(&info, 0xFF, sizeof(info));
    info.known.struct_size = sizeof(info);
    assert_int_equal(oct_plan_info_get(plan, &info.known), OCT_OK);
    assert_int_equal(info.known.struct_size, sizeof(info));
    assert_int_equal(info.known.n_rows, 3);
    assert_int_equal(info.unknown, 0);
    info.known.struct_size = sizeof(info.known) - 1;
    assert_int_equal(oct_plan_info_get(plan, &info.known), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_plan_info_get(NULL, &info.known), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_plan_info_get(plan, NULL), OCT_INVALID_ARGUMENT);
    oct_plan_destroy(plan);
    oct_context_destroy(context);
}

static void no_struct_ends_in_padding(void **state)
{
    (void)state;
    /* A field added there would not change sizeof, and no size could tell the versions apart. */
#define ENDS_WITH(type, field) assert_int_equal(offsetof(type, field) + sizeof(((type *)NULL)->field), sizeof(type))
    ENDS_WITH(oct_error, where);
    ENDS_WITH(oct_context_options, machine);
    ENDS_WITH(oct_kv_spec, v);
    ENDS_WITH(oct_kv_layer, v_scale_page_stride);
    ENDS_WITH(oct_kv_pool_options, spec);
    ENDS_WITH(oct_rope, factors);
    ENDS_WITH(oct_kv_write_args, refused);
    ENDS_WITH(oct_kv_table_options, window_tokens);
    ENDS_WITH(oct_kv_table_stats, n_copied);
    ENDS_WITH(oct_kv_twin_options, window_tokens);
    ENDS_WITH(oct_attn_spec, max_keys);
    ENDS_WITH(oct_attn_batch, stream);
    ENDS_WITH(oct_plan_info, extend_variant);
    ENDS_WITH(oct_attn_args, stream);
    ENDS_WITH(oct_attn_merge_args, stream);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_tail_is_zero),
        cmocka_unit_test(an_unknown_tail_must_be_zero),
        cmocka_unit_test(no_struct_and_no_size_are_refused),
        cmocka_unit_test(an_answer_fills_what_there_is_room_for),
        cmocka_unit_test(every_struct_follows_the_rule),
        cmocka_unit_test(answers_keep_the_callers_size),
        cmocka_unit_test(no_struct_ends_in_padding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
