/* test_plan.c: what oct_plan_create refuses and why; forced and denied variants; what the plan's info says. */
#include "api_test.h"

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

static void check_refused(const oct_attn_spec *spec, oct_status expected, const char *words)
{
    oct_plan *plan = (oct_plan *)(void *)&plan;   /* an error leaves NULL, which may be destroyed */
    oct_error error = OCT_ERROR_INIT;
    assert_int_equal(oct_plan_create(context, spec, &plan, &error), expected);
    assert_null(plan);
    assert_int_equal(error.status, expected);
    assert_string_equal(error.where, "oct_plan_create");
    assert_words(error.text, words);
    assert_int_equal(oct_plan_create(context, spec, &plan, NULL), expected);   /* the words are optional */
}

#define REFUSED(change, words)                                  \
    do {                                                        \
        problem p;                                              \
        problem_init(&p);                                       \
        oct_attn_spec *spec = &p.spec;                          \
        change;                                                 \
        check_refused(spec, OCT_INVALID_ARGUMENT, words);       \
    } while (0)

static void each_illegal_field_is_named(void **state)
{
    (void)state;
    REFUSED(spec->heads_q = 0, "spec.heads_q is 0; must be a multiple of spec.kv.heads = 2");
    REFUSED(spec->heads_q = 7, "spec.heads_q is 7; must be a multiple of spec.kv.heads = 2");
    REFUSED(spec->heads_q = 65538, "spec.heads_q is 65538; must be at most 65536");
    REFUSED(spec->heads_q = 4294967294u, "spec.heads_q is 4294967294; must be at most 65536");
    REFUSED(spec->q_dtype = 0, "spec.q_dtype is 0");
    REFUSED(spec->q_dtype = OCT_DTYPE_I8, "spec.q_dtype is 7; must be f32, f16, bf16 or an 8-bit float");
    REFUSED(spec->out_dtype = 99, "spec.out_dtype is 99");
    REFUSED(spec->out_dtype = OCT_DTYPE_I8, "spec.out_dtype is 7");
    REFUSED(spec->sm_scale = 0, "spec.sm_scale is 0; must be finite and > 0");
    REFUSED(spec->sm_scale = -1, "spec.sm_scale is -1");
    REFUSED(spec->sm_scale = NAN, "spec.sm_scale is nan");
    REFUSED(spec->sm_scale = INFINITY, "spec.sm_scale is inf");
    REFUSED(spec->softcap = -1, "spec.softcap is -1; must be finite and >= 0");
    REFUSED(spec->softcap = NAN, "spec.softcap is nan");
    REFUSED(spec->causal = 2, "spec.causal is 2; must be 0 or 1");
    REFUSED(spec->has_sink = 3, "spec.has_sink is 3");
    REFUSED(spec->has_mask = 4, "spec.has_mask is 4");
    REFUSED(spec->deterministic = 5, "spec.deterministic is 5");
    REFUSED(spec->max_threads = 1025, "spec.max_threads is 1025; must be at most 1024");
    REFUSED(spec->products = 3, "spec.products is 3; must be one of OCT_PRODUCTS_*");
    REFUSED(spec->reserved2 = 1, "spec.reserved2 is 1; must be 0");
    REFUSED(spec->kv.struct_size = 0, "spec.kv.struct_size is 0");
    REFUSED(spec->kv.heads = 0, "spec.kv.heads is 0");
    REFUSED(spec->kv.dim_k = 46, "spec.kv.dim_k is 46");
    REFUSED(spec->kv.dim_v = 8, "spec.kv.dim_v is 8");
    REFUSED(spec->kv.page_size = 0, "spec.kv.page_size is 0");
    REFUSED(spec->kv.layout = 3, "spec.kv.layout is 3");
    REFUSED(spec->kv.k.dtype = 0, "spec.kv.k.dtype is 0");
    REFUSED(spec->kv.k.scale_mode = 6, "spec.kv.k.scale_mode is 6");
    REFUSED(spec->kv.v.scale_mode = OCT_SCALE_LAYER, "spec.kv.v.scale_mode is 2");   /* i8 cannot live on one scale a layer */
    REFUSED(spec->kv.v.scale_dtype = OCT_DTYPE_BF16, "spec.kv.v.scale_dtype is 3");
    REFUSED(spec->kv.v.rotated = 2, "spec.kv.v.rotated is 2");
    REFUSED(spec->force_variant = "attn_decode.nonsense", "force_variant: there is no variant 'attn_decode.nonsense'");
    REFUSED(spec->force_variant = "kv_write.scalar", "force_variant: 'kv_write.scalar' is a variant, but kv_write is not chosen here");
    REFUSED(spec->deny_variant = "attn_decode.scalar,,", "deny_variant: there is no variant ''");
    REFUSED(spec->force_variant = "attn_decode.scalar"; spec->deny_variant = "attn_decode.scalar", "force_variant and deny_variant both name 'attn_decode.scalar'");
}

static void missing_pointers_are_named(void **state)
{
    (void)state;
    problem p;
    oct_plan *plan;
    oct_error error = OCT_ERROR_INIT;
    problem_init(&p);
    assert_int_equal(oct_plan_create(NULL, &p.spec, &plan, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "context is NULL");
    assert_int_equal(oct_plan_create(context, &p.spec, NULL, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "plan is NULL");
    assert_int_equal(oct_plan_create(context, NULL, &plan, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "spec is NULL");
    assert_int_equal(oct_plan_update(NULL, &p.padded, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "plan is NULL");
    oct_plan_destroy(NULL);
}

static void every_gqa_ratio_is_legal(void **state)
{
    (void)state;
    for (uint32_t ratio = 1; ratio <= 71; ratio++) {
        problem p;
        oct_plan *plan;
        problem_init(&p);
        p.spec.heads_q = ratio * HEADS;
        assert_int_equal(oct_plan_create(context, &p.spec, &plan, NULL), OCT_OK);
        oct_plan_destroy(plan);
    }
}

/* ---- force and deny ------------------------------------------------------------------------------------------------------- */

static oct_plan_info info_with(const char *force, const char *deny)
{
    problem p;
    oct_plan *plan;
    oct_error error = OCT_ERROR_INIT;
    oct_plan_info info = { .struct_size = sizeof(info) };
    problem_init(&p);
    p.spec.force_variant = force;
    p.spec.deny_variant = deny;
    if (oct_plan_create(context, &p.spec, &plan, &error) != OCT_OK || oct_plan_update(plan, &p.padded, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    assert_int_equal(oct_plan_info_get(plan, &info), OCT_OK);
    oct_plan_destroy(plan);
    return info;
}

static void force_and_deny_decide(void **state)
{
    (void)state;
    assert_string_equal(info_with("attn_decode.scalar", NULL).decode_variant, "attn_decode.scalar");
    char others[1024] = "";
    for (uint32_t i = 0; oct_variant_name(i) != NULL; i++) {
        const char *name = oct_variant_name(i);
        if (strncmp(name, "attn_decode.", 12) == 0 && strcmp(name, "attn_decode.scalar") != 0) {
            snprintf(others + strlen(others), sizeof(others) - strlen(others), "%s%s", others[0] != '\0' ? "," : "", name);
        }
    }
    assert_string_equal(info_with(NULL, others).decode_variant, "attn_decode.scalar");
    /* Nothing is left: a status with the reasons, no quiet way out. */
    problem p;
    problem_init(&p);
    snprintf(others + strlen(others), sizeof(others) - strlen(others), ",attn_decode.scalar");
    p.spec.deny_variant = others;
    check_refused(&p.spec, OCT_UNSUPPORTED, "attn_decode.scalar is denied");
}

static void names_need_not_outlive_create(void **state)
{
    (void)state;
    char name[32] = "attn_decode.scalar", text[8192];
    problem p;
    oct_plan *plan;
    problem_init(&p);
    p.spec.force_variant = name;
    assert_int_equal(oct_plan_create(context, &p.spec, &plan, NULL), OCT_OK);
    memset(name, 'x', sizeof(name));
    assert_int_equal(oct_plan_update(plan, &p.padded, NULL), OCT_OK);
    oct_plan_explain(plan, OCT_TEXT_PLAIN, text, sizeof(text));
    assert_words(text, "chosen    attn_decode.scalar");
    assert_words(text, ", forced\n");
    oct_plan_destroy(plan);
}

/* ---- info ------------------------------------------------------------------------------------------------------------------- */

static void info_counts_the_batch(void **state)
{
    (void)state;
    problem p;
    oct_plan *plan;
    oct_plan_info info = { .struct_size = sizeof(info) };
    problem_init(&p);
    p.spec.split_tokens = 4;
    p.spec.force_variant = "attn_decode.scalar,attn_extend.scalar";
    assert_int_equal(oct_plan_create(context, &p.spec, &plan, NULL), OCT_OK);
    assert_int_equal(oct_plan_info_get(plan, &info), OCT_OK);
    assert_true(info.n_sequences == 0 && info.n_rows == 0 && info.n_items == 0 && info.n_keys == 0 && info.predicted_seconds == 0);
    assert_string_equal(info.decode_variant, "");
    assert_string_equal(info.extend_variant, "");
    const uint64_t empty_bytes = info.workspace_bytes;
    assert_true(empty_bytes > 0);   /* the threads' scratch */
    assert_int_equal(oct_plan_update(plan, &p.padded, NULL), OCT_OK);
    assert_int_equal(oct_plan_info_get(plan, &info), OCT_OK);
    assert_int_equal(info.n_sequences, 2);
    assert_int_equal(info.n_rows, 3);
    assert_int_equal(info.n_keys, 13);
    assert_int_equal(info.n_items, 2 * (3 + 1));       /* two KV heads; 9 keys in splits of 4, 4 keys in one */
    assert_int_equal(info.n_items_split, 2 * 3);
    assert_true(info.workspace_bytes > empty_bytes);
    assert_true(info.predicted_seconds > 0);
    assert_string_equal(info.decode_variant, "attn_decode.scalar");
    assert_string_equal(info.extend_variant, "");
    /* 17 rows of one sequence are an extend, 16 a decode. */
    for (int32_t n = 16; n <= 17; n++) {
        p.qo_indptr[1] = p.qo_indptr[2] = n;
        assert_int_equal(oct_plan_update(plan, &p.padded, NULL), OCT_OK);
        assert_int_equal(oct_plan_info_get(plan, &info), OCT_OK);
        assert_string_equal(info.decode_variant, n == 16 ? "attn_decode.scalar" : "");
        assert_string_equal(info.extend_variant, n == 16 ? "" : "attn_extend.scalar");
    }
    oct_plan_destroy(plan);
}

static void write_is_explained_too(void **state)
{
    (void)state;
    char text[8192];
    problem p;
    problem_init(&p);
    const size_t length = oct_kv_write_explain(context, &p.spec.kv, OCT_DTYPE_BF16, OCT_TEXT_PLAIN, text, sizeof(text));
    assert_int_equal(strlen(text), length);
    assert_words(text, "kv_write: 512 tokens");
    assert_words(text, "kv_write.scalar");
    assert_words(text, "src_dtype bf16");
    assert_int_equal(oct_kv_write_explain(context, &p.spec.kv, OCT_DTYPE_BF16, OCT_TEXT_PLAIN, NULL, 0), length);
    p.spec.kv.heads = 0;
    assert_int_equal(oct_kv_write_explain(context, &p.spec.kv, OCT_DTYPE_BF16, OCT_TEXT_PLAIN, text, sizeof(text)), 0);
    assert_string_equal(text, "");
    assert_int_equal(oct_kv_write_explain(NULL, &p.spec.kv, OCT_DTYPE_BF16, OCT_TEXT_PLAIN, text, sizeof(text)), 0);
}

/* What is said is chosen is what runs: the row of the lowest time among those that the machine can run. */
static void merge_is_explained_too(void **state)
{
    (void)state;
    char text[16384], other[16384];
    const size_t length = oct_attn_merge_explain(context, 12, 8, 64, 3, OCT_TEXT_PLAIN, text, sizeof(text));
    assert_int_equal(strlen(text), length);
    assert_words(text, "attn_merge: batch of 12 rows of 3 parts, 1 thread\n");
    assert_words(text, "attn_merge.scalar");
    const char *const chosen = strstr(text, "  chosen  ");
    assert_non_null(chosen);
    assert_null(strstr(chosen + 1, "  chosen  "));
    assert_null(strstr(text, "head_dim_k"));
    assert_int_equal(oct_attn_merge_explain(context, 12, 8, 64, 3, OCT_TEXT_PLAIN, NULL, 0), length);
    assert_true(oct_attn_merge_explain(context, 12, 8, 64, 3, OCT_TEXT_JSON, other, sizeof(other)) < sizeof(other));
    assert_words(other, "\"operation\": \"attn_merge\", \"problem\": \"batch\", \"rows\": 12, \"parts\": 3, \"threads\": 1, ");
    char name[64];
    assert_int_equal(sscanf(chosen, " chosen %63[^,\n]", name), 1);
    char wanted[128];
    snprintf(wanted, sizeof(wanted), "{\"name\": \"%s\", \"state\": \"chosen\"", name);
    assert_words(other, wanted);
    assert_int_equal(oct_attn_merge_explain(NULL, 12, 8, 64, 3, OCT_TEXT_PLAIN, text, sizeof(text)), 0);
    assert_int_equal(oct_attn_merge_explain(context, -1, 8, 64, 3, OCT_TEXT_PLAIN, text, sizeof(text)), 0);
    assert_int_equal(oct_attn_merge_explain(context, 12, 8, 0, 3, OCT_TEXT_PLAIN, text, sizeof(text)), 0);
    assert_int_equal(oct_attn_merge_explain(context, 12, 8, 64, 0, OCT_TEXT_PLAIN, text, sizeof(text)), 0);
    assert_string_equal(text, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_illegal_field_is_named),
        cmocka_unit_test(missing_pointers_are_named),
        cmocka_unit_test(every_gqa_ratio_is_legal),
        cmocka_unit_test(force_and_deny_decide),
        cmocka_unit_test(names_need_not_outlive_create),
        cmocka_unit_test(info_counts_the_batch),
        cmocka_unit_test(write_is_explained_too),
        cmocka_unit_test(merge_is_explained_too),
    };
    return cmocka_run_group_tests(tests, make_context, drop_context);
}
