/* fault_lse.c: rows that see nothing, and the merging of parts. */
#include <math.h>

#include "faults/faults.h"

/* ---- F1 ------------------------------------------------------------------------------------------------------- */

/* Values are all 1: a row that sees a key gives 1, a row that sees none 0 and lse -inf, or the sink. */
static int64_t judge_ones(problem *p, const compare_bound *bound, void *arg)
{
    (void)arg;
    for (uint32_t b = 0; b < p->attn.n_sequences; b++)
        for (int64_t row = p->qo_indptr[b]; row < p->qo_indptr[b + 1]; row++)
            for (uint32_t h = 0; h < p->spec.heads_q; h++) {
                const int64_t n = p->qo_indptr[b + 1] - p->qo_indptr[b], position = p->kv_len[b] - n + row - p->qo_indptr[b];
                const int sees = p->kv_len[b] > 0 && (position >= 0 || !p->spec.causal);
                const double lse = (double)((float *)p->lse.at)[row * p->args.lse_row_stride + h * p->args.lse_head_stride];
                const double sink = p->spec.has_sink ? (double)p->args.sink[h] : -(double)INFINITY;
                if (sees ? isinf(lse) || isnan(lse) : !((isinf(sink) && isinf(lse) && lse < 0) || lse == sink)) {
                    isolate_fail("row %lld head %u, which sees %s: lse %g", (long long)row, h, sees ? "a key" : "nothing", lse);
                    return 1;
                }
                for (uint32_t d = 0; d < p->spec.kv.dim_v; d++) {
                    const double out = problem_out(p, row, h, d);
                    if (sees ? !p->spec.has_sink && !(fabs(out - 1.0) <= bound->watch) : !(out >= 0.0 && out <= 0.0)) {
                        isolate_fail("row %lld head %u dim %u, which sees %s: %g", (long long)row, h, d, sees ? "a key" : "nothing", out);
                        return 1;
                    }
                }
            }
    return 0;
}

static int64_t run_blind_rows(void *arg, int64_t index)
{
    problem_shape s = problem_plain(700 + index);
    problem p;
    (void)arg;
    s.heads = 1;   /* DATA_HEAD: head 0 holds 1 */
    s.heads_q = 32;
    s.v_data = DATA_HEAD;
    fault_set_formats(&s, index % 2 ? OCT_DTYPE_I8 : OCT_DTYPE_E4M3FN, index % 2 ? OCT_SCALE_TOKEN_HEAD : OCT_SCALE_LAYER);
    s.v_rotated = 0;
    s.sink = (int64_t[]){ SINK_NONE, SINK_RANDOM, SINK_MINUS_INFINITY, SINK_MIXED }[index / 2 % 4];
    s.split_tokens = index / 8 % 2 ? 4 : 0;
    s.compressed = index / 4 % 2;
    switch (index / 16) {
    case 0: problem_lengths(&s, 1, (int32_t[]){ 33 }, (int32_t[]){ 1 }); break;
    case 1: problem_lengths(&s, 5, (int32_t[]){ 1, 1, 1, 1, 1 }, (int32_t[]){ 0, 5, 0, 16, 0 }); break;
    case 2: problem_lengths(&s, 5, (int32_t[]){ 3, 20, 40, 0, 5 }, (int32_t[]){ 0, 5, 0, 16, 0 }); break;
    case 3: problem_lengths(&s, 3, (int32_t[]){ 1, 30, 2 }, (int32_t[]){ 0, 0, 0 }); break;       /* all empty */
    case 4: problem_lengths(&s, 3, (int32_t[]){ 0, 0, 0 }, (int32_t[]){ 7, 0, 20 }); break;       /* no rows */
    case 5: problem_lengths(&s, 5, (int32_t[]){ 12, 1, 3, 1, 17 }, (int32_t[]){ 4, 5, 0, 16, 9 }); break;
    default: s.n_sequences = 0; break;                                                            /* no sequences */
    }
    if (problem_make(&p, &s) != 0)
        return 1;
    int64_t failures = problem_check_made(&p, RUN_WHOLE);
    failures += fault_each_pair(&p, judge_ones, NULL);
    problem_drop(&p);
    return failures;
}

void fault_F1_rows_without_keys(void **state)
{
    (void)state;
    RUN_CASES("F1", 112, 60, run_blind_rows);
}

/* ---- F3 ------------------------------------------------------------------------------------------------------- */

/* Up to three parts of one row; a part is (value, lse). */
typedef struct merge_row { uint32_t n; float value[3], lse[3], merged, lse_merged; } merge_row;

static void check_merge(const merge_row *row)
{
    enum { DIM = 16 };
    uint32_t n;
    float out[3 * DIM], merged[DIM], lse_merged;
    const oct__variant *all = oct__variants(&n);
    for (uint32_t i = 0; i < row->n * DIM; i++)
        out[i] = row->value[i / DIM];
    for (uint32_t i = 0; i <= n; i++) {
        oct_attn_merge_args args = { (uint32_t)sizeof args, row->n, 1, 1, DIM, out, DIM, DIM, DIM, row->lse, 1, 1, 1, merged, DIM, DIM, &lse_merged, 1, 1, NULL };
        if (i < n && (all[i].op != OCT__OP_attn_merge || !roster_machine_can(&all[i])))
            continue;
        memset(merged, 0xFF, sizeof merged);
        lse_merged = NAN;
        if (i < n)
            all[i].merge(&args, 0, 1);
        else
            assert_int_equal(oct_attn_merge(problem_context(1), &args), OCT_OK);
        assert_true(isinf(row->lse_merged) ? isinf(lse_merged) && lse_merged < 0 : fabsf(lse_merged - row->lse_merged) <= 1e-6f);
        for (int d = 0; d < DIM; d++)
            assert_true(fabsf(merged[d] - row->merged) <= 1e-6f);
    }
}

void fault_F3_empty_parts_merge(void **state)
{
    static const float none = -INFINITY, nan = NAN, infinite = INFINITY;
    const merge_row rows[] = {
        { 2, { 0, 0, 0 }, { none, none, 0 }, 0, none },
        { 2, { 0, 3, 0 }, { none, 1.5f, 0 }, 3, 1.5f },
        { 2, { 3, 0, 0 }, { 1.5f, none, 0 }, 3, 1.5f },
        { 2, { nan, 3, 0 }, { none, 1.5f, 0 }, 3, 1.5f },          /* garbage under -inf */
        { 2, { 3, infinite, 0 }, { -700.0f, none, 0 }, 3, -700.0f },
        { 2, { nan, nan, 0 }, { none, none, 0 }, 0, none },
        { 1, { nan, 0, 0 }, { none, 0, 0 }, 0, none },
        { 1, { 7, 0, 0 }, { 12, 0, 0 }, 7, 12 },
        { 3, { nan, infinite, nan }, { none, none, none }, 0, none },
        { 3, { 1, nan, 4 }, { 0, none, 1.0986123f }, 3.25f, 1.3862944f },   /* weights 1/4 and 3/4 */
        { 2, { 5, 3, 0 }, { infinite, 1.5f, 0 }, 3, 1.5f },        /* +inf and NaN count as empty, as attn.h says */
        { 2, { 5, 3, 0 }, { nan, 1.5f, 0 }, 3, 1.5f },
        { 2, { 2, 4, 0 }, { 3e38f, 3e38f, 0 }, 3, 3e38f },
    };
    (void)state;
    for (int64_t i = 0; i < COUNT(rows); i++)
        check_merge(&rows[i]);
}

/* ---- F5 ------------------------------------------------------------------------------------------------------- */

enum { PREFIX = 3072, SUFFIX = 64 };

typedef struct two_parts { float *out, *lse; int head_major; } two_parts;

/* Copies a view's result into part `which`. */
static void keep_part(const problem *view, two_parts *parts, int64_t which)
{
    const int64_t heads = view->spec.heads_q, dim = view->spec.kv.dim_v;
    for (int64_t row = 0; row < SUFFIX; row++)
        for (int64_t h = 0; h < heads; h++) {
            const int64_t at = parts->head_major ? h * SUFFIX + row : row * heads + h;
            parts->lse[which * SUFFIX * heads + at] = ((float *)view->lse.at)[row * heads + h];
            memcpy(parts->out + (which * SUFFIX * heads + at) * dim, (float *)view->out.at + (row * heads + h) * dim, (size_t)dim * sizeof(float));
        }
}

static int64_t run_prefix(void *arg, int64_t index)
{
    problem_shape s = problem_plain(760 + index);
    problem all, prefix, suffix;
    char force[96];
    int64_t failures = 0;
    two_parts parts = { NULL, NULL, (int)(index % 2) };
    (void)arg;
    s.heads_q = 8;
    s.softcap = index / 2 % 2 ? 10.0 : 0.0;
    s.score_deviation = 2.0;
    s.sink = index / 2 % 2 ? SINK_RANDOM : SINK_NONE;
    problem_lengths(&s, 1, (int32_t[]){ SUFFIX }, (int32_t[]){ PREFIX + SUFFIX });
    if (problem_make(&all, &s) != 0 || problem_expect(&all) != 0)
        return 1;
    const problem_part before = { 0, 0, SUFFIX, PREFIX, 0 }, own = { 0, 0, SUFFIX, SUFFIX, PREFIX / 16 };
    if (problem_select(&prefix, &all, &before, 1) != 0 || problem_select(&suffix, &all, &own, 1) != 0)
        return 1;
    prefix.spec.causal = 0;     /* every row sees the whole prefix */
    prefix.spec.has_sink = 0;   /* the sink belongs to one part only */
    prefix.args.sink = NULL;
    const int64_t heads = s.heads_q, dim = s.dim_v, vectors = SUFFIX * heads;
    parts.out = malloc((size_t)(2 * vectors * dim) * sizeof(float));
    parts.lse = malloc((size_t)(2 * vectors) * sizeof(float));
    if (parts.out == NULL || parts.lse == NULL)
        return 1;
    for (uint32_t i = 0; problem_pair(i, force, sizeof force); i++) {
        isolate_doing("%s", force);
        isolate_repeat("faults fault_F5*");
        const problem_outcome first = problem_run(&prefix, problem_context(1), force, RUN_WHOLE), second = problem_run(&suffix, problem_context(1), force, RUN_WHOLE);
        if (first.status == OCT_UNSUPPORTED && second.status == OCT_UNSUPPORTED) {
            problem_skip_pair(i);
            continue;
        }
        if (first.status != OCT_OK || second.status != OCT_OK) {
            isolate_fail("%s %s", first.text, second.text);
            failures++;
            continue;
        }
        keep_part(&prefix, &parts, 0);
        keep_part(&suffix, &parts, 1);
        problem_blank(&all);
        oct_attn_merge_args args;
        memset(&args, 0, sizeof args);
        args.struct_size = sizeof args;
        args.n_parts = 2;
        args.rows = SUFFIX;
        args.heads = (uint32_t)heads;
        args.dim = (uint32_t)dim;
        args.out = parts.out;
        args.lse = parts.lse;
        args.out_part_stride = vectors * dim;
        args.out_row_stride = parts.head_major ? dim : heads * dim;
        args.out_head_stride = parts.head_major ? SUFFIX * dim : dim;
        args.lse_part_stride = vectors;
        args.lse_row_stride = parts.head_major ? 1 : heads;
        args.lse_head_stride = parts.head_major ? SUFFIX : 1;
        args.merged = all.out.at;
        args.merged_row_stride = all.args.out_row_stride;
        args.merged_head_stride = all.args.out_head_stride;
        args.lse_merged = all.lse.at;
        args.lse_merged_row_stride = all.args.lse_row_stride;
        args.lse_merged_head_stride = all.args.lse_head_stride;
        const oct_status status = oct_attn_merge(problem_context(1), &args);
        const compare_bound bound = problem_pair_bound(i);
        const compare_verdict verdict = problem_judge(&all, &bound);   /* against one pass over all keys in f64 */
        if (status != OCT_OK || !verdict.ok) {
            isolate_fail("%s: %s", oct_status_name(status), verdict.text);
            failures++;
        }
    }
    free(parts.out);
    free(parts.lse);
    problem_drop(&prefix);
    problem_drop(&suffix);
    problem_drop(&all);
    return failures;
}

void fault_F5_prefix_and_suffix_merge(void **state)
{
    (void)state;
    RUN_CASES("F5", 4, 60, run_prefix);
}
