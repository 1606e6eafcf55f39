/* compare.c: see compare.h. */
#include "parity/compare.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

compare_bound compare_bound_of(oct__tolerance tolerance)
{
    switch (tolerance) {
    case OCT__TOL_16BIT: return (compare_bound){ 2e-2, 0.9999, 1.0, 2e-2, 1e-2, 0x1p-8 };
    case OCT__TOL_8BIT: return (compare_bound){ 1.0, 0.998, 0.05, 1.0, 1e-2, 0x1p-5 };   /* two terms of e4m3 hold eight bits of q */
    default: return (compare_bound){ 1e-5, 0.9999, 1.0, 1e-5, 1e-5, 0.0 };
    }
}

compare_bound compare_bound_for(const oct__variant *variant)
{
    static const char *const in_f32[] = { "scalar", "avx2", "avx512" };
    compare_bound bound = compare_bound_of(variant->tolerance);
    for (size_t i = 0; i < sizeof in_f32 / sizeof in_f32[0]; i++)
        if (strcmp(variant->name, in_f32[i]) == 0 && bound.watch > 1e-4)
            bound.watch = bound.lse = 1e-4;
    /* Those of CPUs multiply by two bf16 where one does not hold q. */
    if (strncmp(variant->name, "mma_", 4) != 0 && strncmp(variant->name, "sm90a_", 6) != 0)
        bound.q_unit = 0.0;
    return bound;
}

compare_bound compare_bound_either(compare_bound a, compare_bound b)
{
    return (compare_bound){ fmax(a.max_error, b.max_error), fmin(a.cosine, b.cosine), fmax(a.l2, b.l2), fmax(a.watch, b.watch), fmax(a.lse, b.lse),
                            fmax(a.q_unit, b.q_unit) };
}

static void __attribute__((format(printf, 2, 3))) fail(compare_verdict *verdict, const char *form, ...)
{
    va_list args;
    if (!verdict->ok)
        return;   /* the first failure says the most */
    verdict->ok = 0;
    va_start(args, form);
    vsnprintf(verdict->text, sizeof verdict->text, form, args);
    va_end(args);
}

static void judge_vector(const compare_output *output, const oracle_result *expected, const compare_bound *bound, int64_t row,
                         uint32_t head, compare_verdict *verdict)
{
    const int64_t at = row * output->heads + head, start = row * output->row_stride + head * output->head_stride;
    const double *ref = expected->out + at * output->dim, v_max = expected->v_max[at];
    double worst = 0.0, dot = 0.0, ref2 = 0.0, got2 = 0.0, error2 = 0.0;
    uint32_t worst_dim = 0;
    for (uint32_t d = 0; d < output->dim; d++) {
        const uint32_t code = oracle_code_at(output->dtype, output->out, start + d);
        const double stored = oracle_decode_code(output->dtype, code) * output->out_scale;
        double low, high;
        const int overflows = output->dtype == OCT_DTYPE_F16 || output->dtype == OCT_DTYPE_BF16;   /* as IEEE 754 says */
        if (isnan(stored) || (isinf(stored) && !overflows)) {
            fail(verdict, "row %lld head %u dim %u holds code 0x%x (%g): %s; expected %.9g", (long long)row, head, d, code, stored,
                 isnan(stored) ? "NaN, or never written" : "infinite", ref[d]);
            return;
        }
        oracle_cell(output->dtype, code, &low, &high);
        low *= output->out_scale;
        high *= output->out_scale;
        const double error = ref[d] < low ? low - ref[d] : ref[d] > high ? high - ref[d] : 0.0;   /* signed, rounding taken out */
        const double got = ref[d] + error;
        if (fabs(error) > worst) {
            worst = fabs(error);
            worst_dim = d;
        }
        dot += ref[d] * got;
        ref2 += ref[d] * ref[d];
        got2 += got * got;
        error2 += error * error;
    }
    const double relative = worst == 0.0 ? 0.0 : worst / v_max;   /* infinite where the row sees nothing but zeros */
    const double l2 = error2 == 0.0 ? 0.0 : sqrt(error2 / ref2);
    /* A row that averages to nearly nothing has no direction; max_error judges it. */
    const int has_direction = sqrt(ref2 / output->dim) > 1e-3 * v_max;
    const double cosine = has_direction ? dot / sqrt(ref2 * got2) : 1.0;
    verdict->max_error = fmax(verdict->max_error, relative);
    if (has_direction)
        verdict->l2 = fmax(verdict->l2, l2);
    verdict->cosine = fmin(verdict->cosine, cosine);
    if (!(relative <= bound->max_error))
        fail(verdict, "row %lld head %u dim %u: error %.3g of max|V| %.6g, bound %.3g; expected %.9g, stored %.9g", (long long)row, head,
             worst_dim, relative, v_max, bound->max_error, ref[worst_dim],
             oracle_decode(output->dtype, output->out, start + worst_dim) * output->out_scale);
    if (!(cosine >= bound->cosine))
        fail(verdict, "row %lld head %u: cosine %.9f, bound %.6f", (long long)row, head, cosine, bound->cosine);
    if (has_direction && !(l2 <= bound->l2))
        fail(verdict, "row %lld head %u: relative L2 %.3g, bound %.3g", (long long)row, head, l2, bound->l2);
    if (!(relative <= bound->watch))
        fail(verdict, "row %lld head %u dim %u: error %.3g of max|V| is within the class's bound %.3g but above the watch of f32 arithmetic, %.3g",
             (long long)row, head, worst_dim, relative, bound->max_error, bound->watch);
}

static void judge_lse(const compare_output *output, const oracle_result *expected, const compare_bound *bound, int64_t row, uint32_t head,
                      compare_verdict *verdict)
{
    const double ref = expected->lse[row * output->heads + head];
    const double got = (double)output->lse[row * output->lse_row_stride + head * output->lse_head_stride];
    if (isinf(ref) || isinf(got) || isnan(got)) {
        if (got != ref)
            fail(verdict, "row %lld head %u: lse is %g, expected %g", (long long)row, head, got, ref);
        return;
    }
    const double error = fabs(got - ref) / fmax(1.0, fabs(ref));
    double allowed = bound->lse;
    if (!(error <= allowed) && bound->q_unit > 0.0 && expected->of != NULL) {
        const double unit = expected->of->spec->kv.k.dtype == OCT_DTYPE_BF16 ? bound->q_unit : bound->q_unit / 8.0;
        /* A rotated q of few bits lies on a lattice, and all of its elements may round one way: as far as 16 of them can. */
        const double deviations = expected->of->spec->kv.k.rotated ? 4.0 : sqrt(3.0);
        allowed = fmax(allowed, deviations * unit * oracle_score_norm(expected->of, row, head) / fmax(1.0, fabs(ref)));
    }
    verdict->lse_error = fmax(verdict->lse_error, error);
    if (!(error <= allowed))
        fail(verdict, "row %lld head %u: lse is %.9g, expected %.9g: error %.3g, bound %.3g", (long long)row, head, got, ref, error, allowed);
}

compare_verdict compare_judge(const compare_output *output, const oracle_result *expected, const compare_bound *bound)
{
    compare_verdict verdict = { 1, 0.0, 1.0, 0.0, 0.0, { 0 } };
    for (int64_t row = 0; row < output->rows; row++)
        for (uint32_t head = 0; head < output->heads; head++) {
            judge_vector(output, expected, bound, row, head, &verdict);
            if (output->lse != NULL)
                judge_lse(output, expected, bound, row, head, &verdict);
        }
    return verdict;
}
