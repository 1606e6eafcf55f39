/* fault_format.c: what bytes mean, and what happens at the edges of their formats. */
#include <math.h>

#include "faults/faults.h"

/* ---- A6 ------------------------------------------------------------------------------------------------------- */

enum { CODES = 256 };

static int64_t judge_codes(problem *p, const compare_bound *bound, void *arg)
{
    const uint32_t dtype = p->spec.kv.v.dtype;
    const int is_k = *(int *)arg;
    (void)bound;
    for (uint32_t code = 0; code < CODES; code++) {
        const double value = oracle_decode_code(dtype, code);
        if (is_k) {
            /* Row `code` asks for dim `code` of the only key: its score, and so its lse, is the decoded byte, up to the last bit of the
             * logarithm of 1. */
            const double lse = (double)((float *)p->lse.at)[code * p->args.lse_row_stride];
            double low, high;
            if (isfinite(value))
                oracle_cell(dtype, code, &low, &high);
            if (isfinite(value) && !(fabs(lse - value) <= 1e-6 * fmax(1.0, fabs(value)) && lse > (value + low) / 2 && lse < (value + high) / 2)) {
                isolate_fail("K's code 0x%02x is read as %g, means %g", code, lse, value);
                return 1;
            }
        } else {
            const double out = problem_out(p, 0, 0, code);
            if (isnan(value) ? !isnan(out) : out < value || out > value || isnan(out)) {
                isolate_fail("V's code 0x%02x is read as %g, means %g", code, out, value);
                return 1;
            }
        }
    }
    return 0;
}

static int64_t run_every_code(void *arg, int64_t index)
{
    static const uint32_t dtypes[] = { OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FNUZ, OCT_DTYPE_E5M2, OCT_DTYPE_I8 };
    const uint32_t dtype = dtypes[index % 4];
    const int layout = (int)(index / 4) % 3, decode = (int)(index / 12) % 2;
    problem_shape s = problem_plain(90 + index);
    problem p;
    int64_t failures = 0;
    (void)arg;
    s.heads = s.heads_q = 1;
    s.layout = layout;
    s.dim_k = s.dim_v = CODES;
    s.q_dtype = OCT_DTYPE_F32;
    s.causal = 0;
    s.sm_scale = 1.0;
    s.poison = POISON_7F;
    fault_set_formats(&s, dtype, dtype == OCT_DTYPE_I8 ? OCT_SCALE_CHANNEL : OCT_SCALE_NONE);
    /* 256 rows ask for one dim of K each, all of one sequence or one a sequence. */
    if (decode) {
        s.n_sequences = CODES;
        s.kv_len[0] = 1;
    } else {
        problem_lengths(&s, 1, (int32_t[]){ CODES }, (int32_t[]){ 1 });
    }
    for (int is_k = 0; is_k < 2; is_k++) {
        if (problem_make(&p, &s) != 0)
            return failures + 1;
        for (size_t i = 0; p.k_scale.at != NULL && i < CODES; i++)
            ((float *)p.k_scale.at)[i] = ((float *)p.v_scale.at)[i] = 1.0f;
        memset(p.q.at, 0, p.q.size_bytes);
        for (uint32_t row = 0; row < CODES; row++)
            ((float *)p.q.at)[row * p.args.q_row_stride + row] = is_k ? 1.0f : 0.0f;
        for (int64_t b = 0; b < s.n_sequences; b++)
            for (uint32_t code = 0; code < CODES; code++) {
                const int64_t page = p.pages[p.page_at[b]];
                const int finite = isfinite(oracle_decode_code(dtype, code));
                /* 0 times NaN or infinity would spoil the scores of the other rows. */
                oracle_put_code(dtype, p.layer.k, oracle_address(&p.layer, ORACLE_K, page, 0, 0, code), finite ? code : 0);
                oracle_put_code(dtype, p.layer.v, oracle_address(&p.layer, ORACLE_V, page, 0, 0, code), is_k ? 0 : code);
            }
        failures += fault_each_pair(&p, judge_codes, &is_k);
        problem_drop(&p);
    }
    return failures;
}

/* One field of the spec after the other is changed in the layer that the plan is run with. */
static int64_t run_wrong_layers(void *arg, int64_t index)
{
    problem_shape s = problem_plain(95);
    problem p;
    oct_plan *plan = NULL;
    oct_error error = OCT_ERROR_INIT;
    (void)arg;
    if (problem_make(&p, &s) != 0 || oct_plan_create(problem_context(1), &p.spec, &plan, NULL) != OCT_OK || problem_update(&p, plan, NULL) != OCT_OK)
        return 1;
    oct_kv_layer wrong = p.layer;
    static const float ones[2] = { 1.0f, 1.0f };   /* the layers are sound in themselves: only not what the plan is for */
    switch (index) {
    case 0: wrong.spec.k.dtype = OCT_DTYPE_E4M3FNUZ; break;
    case 1: wrong.spec.v.dtype = OCT_DTYPE_E4M3FNUZ; break;
    case 2: wrong.spec.k.dtype = OCT_DTYPE_E5M2; break;
    case 3: wrong.spec.v.dtype = OCT_DTYPE_E5M2; break;
    case 4: wrong.spec.k.rotated = 1; break;
    case 5: wrong.spec.v.rotated = 1; break;
    case 6: wrong.spec.k.scale_mode = OCT_SCALE_LAYER_HEAD; wrong.k_scale = ones; break;
    case 7: wrong.spec.v.scale_mode = OCT_SCALE_NONE; wrong.v_scale = NULL; break;
    case 8: wrong.spec.layout = OCT_LAYOUT_HND; break;
    case 9: wrong.spec.page_size = 8; break;
    case 10: wrong.spec.heads = 1; break;
    case 11: wrong.spec.dim_k = 32; break;
    case 12: wrong.spec.dim_v = 32; break;
    default: wrong.k_scale = NULL; break;
    }
    oct_attn_args args = p.args;
    args.layer = &wrong;
    isolate_doing("layer with wrong field %lld", (long long)index);
    problem_blank(&p);
    const oct_status checked = oct_attn_check(plan, &args, &error), run = oct_attn_run(plan, &args), part = oct_attn_run_part(plan, &args, 0, 1);
    int64_t failures = 0;
    if (checked != OCT_INVALID_ARGUMENT || run != OCT_INVALID_ARGUMENT || part != OCT_INVALID_ARGUMENT || error.text[0] == 0) {
        isolate_fail("check %s, run %s, run_part %s, text '%s'", oct_status_name(checked), oct_status_name(run), oct_status_name(part), error.text);
        failures++;
    }
    for (int64_t i = 0; i < p.out_elements && failures == 0; i++)
        if (!isnan(((float *)p.out.at)[i])) {
            isolate_fail("the refused run wrote");
            failures++;
        }
    oct_plan_destroy(plan);
    problem_drop(&p);
    return failures;
}

void fault_A6_a_format_is_never_read_as_another(void **state)
{
    (void)state;
    assert_true(oracle_decode_code(OCT_DTYPE_E4M3FN, 0x38) == 1.0 && oracle_decode_code(OCT_DTYPE_E4M3FNUZ, 0x38) == 0.5);
    assert_true(oracle_decode_code(OCT_DTYPE_E4M3FN, 0x7E) == 448.0 && oracle_decode_code(OCT_DTYPE_E4M3FNUZ, 0x7F) == 240.0);
    RUN_CASES("A6 every code", 24, 60, run_every_code);
    RUN_CASES("A6 wrong layers", 14, 60, run_wrong_layers);
}

/* ---- A8 ------------------------------------------------------------------------------------------------------- */

typedef struct expected_code { double x; int e4m3fn, e4m3fnuz, e5m2; } expected_code;   /* -1: any NaN */

/* By hand. 464 is half way between 448 and 480, which e4m3fn lacks; 248 between 240 and 256; 61440 between 57344 and 65536. */
static const expected_code edges[] = {
    { 447, 0x7E, 0x7F, 0x5F }, { 448, 0x7E, 0x7F, 0x5F }, { 449, 0x7E, 0x7F, 0x5F }, { 464, 0x7E, 0x7F, 0x5F },
    { 465, 0x7E, 0x7F, 0x5F }, { 1e6, 0x7E, 0x7F, 0x7B }, { -1e6, 0xFE, 0xFF, 0xFB }, { 240, 0x77, 0x7F, 0x5C },
    { 241, 0x77, 0x7F, 0x5C }, { 256, 0x78, 0x7F, 0x5C }, { 57344, 0x7E, 0x7F, 0x7B }, { 61440, 0x7E, 0x7F, 0x7B },
    { (double)INFINITY, 0x7E, 0x7F, 0x7B }, { -(double)INFINITY, 0xFE, 0xFF, 0xFB }, { (double)NAN, -1, -1, -1 }, { 0x1p-9, 0x01, 0x02, 0x18 },
    { 0x1p-10, 0x00, 0x01, 0x14 }, { 0x1.8p-10, 0x01, 0x02, 0x16 }, { -0.0, 0x80, 0x00, 0x80 }, { -0x1p-9, 0x81, 0x82, 0x98 },
    { 1.0625, 0x38, 0x40, 0x3C }, { 1.1875, 0x3A, 0x42, 0x3D }, { 1.125, 0x39, 0x41, 0x3C }, { 1.375, 0x3B, 0x43, 0x3E },
};

static int64_t judge_edges(const write_case *c, uint32_t dtype)
{
    for (int64_t i = 0; i < COUNT(edges); i++) {
        const int want = dtype == OCT_DTYPE_E4M3FN ? edges[i].e4m3fn : dtype == OCT_DTYPE_E4M3FNUZ ? edges[i].e4m3fnuz : edges[i].e5m2;
        for (int which = 0; which < 2; which++) {
            const oct_kv_layer *l = &c->pool[0].layer;
            const uint32_t code = oracle_code_at(dtype, which == 0 ? l->k : l->v, oracle_address(l, (oracle_which)which, 0, 0, 0, (uint32_t)i));
            if (want == -1 ? !oracle_code_is_nan(dtype, code) : code != (uint32_t)want) {
                isolate_fail("%g is stored as 0x%02x in format %u, must be 0x%02x", edges[i].x, code, dtype, (unsigned)want);
                return 1;
            }
        }
    }
    return 0;
}

static int64_t run_edges(void *arg, int64_t index)
{
    static const uint32_t dtypes[] = { OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FNUZ, OCT_DTYPE_E5M2 };
    static const int64_t sources[] = { OCT_DTYPE_F32, OCT_DTYPE_F16, OCT_DTYPE_BF16 };
    static const float scales[] = { 1.0f, 0.25f, 8.0f };   /* powers of two: x * scale / scale is x */
    const uint32_t dtype = dtypes[index % 3], src = (uint32_t)sources[index / 3 % 3];
    const float scale = scales[index / 9];
    write_shape s = write_plain(5);
    write_case c;
    uint32_t n;
    int64_t failures = 0;
    (void)arg;
    s.k_dtype = s.v_dtype = dtype;
    s.heads = 1;
    s.n_tokens = 1;
    s.n_pages = 1;
    s.dim_k = s.dim_v = 24;
    s.src_dtype = src;
    if (write_make(&c, &s) != 0)
        return 1;
    *(float *)c.pool[0].memory[4].at = *(float *)c.pool[0].memory[5].at = scale;
    c.pool[0].slots[0] = 0;
    for (uint32_t d = 0; d < 24; d++) {
        double x = edges[d].x * (double)scale;
        const double kept = oracle_decode_code(src, oracle_encode(src, x));
        if (!isnan(x) && (kept < x || kept > x))   /* 465, or 10^6 in f16, are no numbers of the source: it holds a neighbour, the verdict of write_judge holds */
            x = kept;
        oracle_put_code(src, c.k.at, d, oracle_encode(src, x));
        oracle_put_code(src, c.v.at, d, oracle_encode(src, x));
    }
    const oct__variant *all = oct__variants(&n);
    for (uint32_t i = 0; i < n; i++) {
        char text[512];
        if (all[i].op != OCT__OP_kv_write || !roster_write_is_eligible(&all[i], &c.args))
            continue;
        isolate_doing("%s from dtype %u under scale %g", all[i].full_name, src, (double)scale);
        isolate_repeat("faults fault_A8*");
        write_reset(&c);
        all[i].write(&c.args, 0, 1, &c.k_counts[0], &c.v_counts[0]);
        if (write_judge(&c, text, sizeof text) != 0) {
            isolate_fail("%s", text);
            failures++;
        }
        if (src == OCT_DTYPE_F32)
            failures += judge_edges(&c, dtype);
    }
    write_drop(&c);
    return failures;
}

/* Whatever is written except NaN, attention gives numbers. With dynamic scales values of 10^30 are kept, and sums of f32 hold some
 * of them. */
static int64_t judge_numbers(problem *p, const compare_bound *bound, void *arg)
{
    const int64_t nan_head = *(int64_t *)arg;
    (void)bound;
    for (int64_t row = 0; row < p->rows; row++)
        for (uint32_t h = 0; h < p->spec.heads_q; h++)
            for (uint32_t d = 0; d < p->spec.kv.dim_v; d++) {
                const int spoiled = nan_head >= 0 && h / (p->spec.heads_q / p->spec.kv.heads) == (uint32_t)nan_head && d == 3;
                if (spoiled ? !isnan(problem_out(p, row, h, d)) : !isfinite(problem_out(p, row, h, d))) {
                    isolate_fail("row %lld head %u dim %u is %g", (long long)row, h, d, problem_out(p, row, h, d));
                    return 1;
                }
            }
    return 0;
}

static int64_t run_spoiled_pool(void *arg, int64_t index)
{
    static const uint32_t formats[][2] = { { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER }, { OCT_DTYPE_E5M2, OCT_SCALE_LAYER }, { OCT_DTYPE_E4M3FNUZ, OCT_SCALE_LAYER },
                                           { OCT_DTYPE_E4M3FN, OCT_SCALE_TOKEN_HEAD }, { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD }, { OCT_DTYPE_E5M2, OCT_SCALE_NONE } };
    static const double wild[] = { 1e30, -1e30, 7e29, (double)INFINITY, -(double)INFINITY, 1e-40, -0.0, 500.0 };
    problem_shape s = problem_plain(110 + index);
    problem p;
    int64_t nan_head = index < 6 ? -1 : 1, failures = 0;
    enum { N = 33, WIDTH = 2 * 64 };
    float *k = calloc(N * WIDTH, sizeof *k), *v = calloc(N * WIDTH, sizeof *v);
    int32_t slots[N];
    (void)arg;
    fault_set_formats(&s, formats[index % 6][0], formats[index % 6][1]);
    problem_lengths(&s, 2, (int32_t[]){ 1, 20 }, (int32_t[]){ N, N });
    if (k == NULL || v == NULL || problem_make(&p, &s) != 0)
        return 1;
    memcpy(p.pages + p.page_at[1], p.pages, (size_t)p.page_at[1] * sizeof(int32_t));
    memcpy(p.table_pages, p.pages, (size_t)p.page_at[2] * sizeof(int32_t));
    for (int i = 0; i < N; i++)
        slots[i] = p.pages[i / 16] * 16 + i % 16;
    for (int i = 0; i < N * WIDTH; i++) {
        k[i] = (float)wild[i % 8];
        v[i] = (float)wild[(i / 3) % 8];
    }
    if (nan_head >= 0)
        v[64 + 3] = NAN;   /* token 0, head 1, dim 3: seen by every row */
    p.spec.sm_scale = 1e-6f;
    oct_kv_write_args args;
    memset(&args, 0, sizeof args);
    args.struct_size = sizeof args;
    args.layer = &p.layer;
    args.slots = slots;
    args.n_tokens = N;
    args.src_dtype = OCT_DTYPE_F32;
    args.k = k;
    args.v = v;
    args.k_token_stride = args.v_token_stride = WIDTH;
    args.k_head_stride = args.v_head_stride = 64;
    if (oct_kv_write(problem_context(1), &args) != OCT_OK)
        failures++;
    if (formats[index % 6][0] == OCT_DTYPE_I8 && nan_head >= 0) {   /* i8 has no NaN: the whole vector becomes one, through its scale */
        const double scale = oracle_scale(&p.layer, ORACLE_V, p.pages[0], 0, 1, 0);
        if (!isnan(scale)) {
            isolate_fail("the scale of an i8 vector with a NaN is %g", scale);
            failures++;
        }
    } else {
        failures += fault_each_pair(&p, judge_numbers, &nan_head);
    }
    problem_drop(&p);
    free(k);
    free(v);
    return failures;
}

void fault_A8_overflow_saturates_and_nan_stays(void **state)
{
    (void)state;
    RUN_CASES("A8 edges", 27, 60, run_edges);
    RUN_CASES("A8 spoiled pool", 12, 60, run_spoiled_pool);
}

/* ---- A10 ------------------------------------------------------------------------------------------------------ */

static int64_t run_tile_edges(void *arg, int64_t index)
{
    static const int32_t starts[] = { 120, 248, 504 };
    problem_shape s = problem_plain(130 + index);
    (void)arg;
    s.heads_q = 6;
    s.heads = 1;
    s.dim_k = s.dim_v = 128;
    s.page_size = 128;
    s.q_dtype = OCT_DTYPE_E4M3FN;
    const int32_t kv_len = starts[index / 17 % 3] + (int32_t)(index % 17);
    if (index / 51 == 1) {   /* the largest logit, by 6, lies in the second tile: the running maximum moves late */
        s.k_data = DATA_NEEDLE;
        s.needle_gap = 6.0;
        s.needle_key = kv_len > 200 ? 128 + index % 64 : 118;
    }
    problem_lengths(&s, 2, (int32_t[]){ 1, 20 }, (int32_t[]){ kv_len, kv_len });
    return problem_check(&s);
}

void fault_A10_eight_bit_q_at_tile_edges(void **state)
{
    (void)state;
    RUN_CASES("A10", 102, 60, run_tile_edges);
}
