/* device_check.c: see device_check.h. */
#include "device/device_check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

device_rig *device_check_rig(uint32_t warp)
{
    static device_rig rigs[2];
    device_rig *rig = &rigs[warp == 64];
    if (rig->device == NULL && device_rig_make(rig, warp) != 0)
        return NULL;
    return rig;
}

compare_bound device_check_bound(int has_mma)
{
    compare_bound bound = compare_bound_of(has_mma ? OCT__TOL_16BIT : OCT__TOL_F32);
    if (has_mma)
        bound.watch = bound.lse = 1e-2;
    return bound;
}

static int64_t check_made(device_rig *rig, problem *p)
{
    oct__dev_plan plan;
    char why[640], name[64];
    const uint32_t warp = rig->chip.warp;
    isolate_doing("attention, warp %u, %s kernels", warp, rig->chip.has_mma ? "matrix" : "portable");
    if (device_run_attn(rig, p, NULL, &plan, why, sizeof why) != 0) {
        isolate_fail("%s", why);
        return 1;
    }
    isolate_doing("%s, %s, %s after plan_step, warp %u", rig->attended_by[OCT__DEV_DECODE], rig->attended_by[OCT__DEV_EXTEND], rig->finished_by[OCT__DEV_DECODE], warp);
    int is_mma = 0;
    for (uint32_t op = 0; op < OCT__DEV_OPS; op++) {
        oct__dev_attn_shape used;
        if (oct__dev_attn_shape_of(&rig->chip, &p->spec, op, &used) && plan.n_tasks[op] > 0)
            is_mma |= strstr(used.kernel, "_mma") != NULL;
    }
    compare_bound bound = device_check_bound(is_mma);
    /* f16 has three bits more than bf16 in q and in the weights, and five more than the two codes of a weight that is multiplied in 8 bits. */
    const int is_rough = simt_fp8(warp, p->spec.kv.k.dtype) >= SIMT_FP8_USED || simt_fp8(warp, p->spec.kv.v.dtype) >= SIMT_FP8_USED;
    if (is_mma && !is_rough && p->spec.kv.k.dtype != OCT_DTYPE_BF16 && p->spec.kv.v.dtype != OCT_DTYPE_BF16)
        bound.watch = bound.lse = 2e-3;
    const compare_verdict verdict = problem_judge(p, &bound);
    snprintf(name, sizeof name, "plan_step/%u", warp);   /* its tasks are what the judged attention did */
    isolate_ran(name, 0.0);
    for (uint32_t op = 0; op < OCT__DEV_OPS; op++) {
        oct__dev_attn_shape used;
        if (plan.n_tasks[op] > 0 && oct__dev_attn_shape_of(&rig->chip, &p->spec, op, &used)) {
            snprintf(name, sizeof name, "%s/%u", used.kernel, warp);
            isolate_ran(name, verdict.max_error);
            if (plan.n_groups[op] > 0) {
                snprintf(name, sizeof name, "attn_finish/%u", warp);
                isolate_ran(name, is_mma ? 0.0 : verdict.max_error);
            }
        }
    }
    if (!verdict.ok)
        isolate_fail("%s", verdict.text);
    return !verdict.ok;
}

int64_t device_check_attn_of(uint32_t warp, const problem_shape *shape, int kernels)
{
    problem p;
    char text[PROBLEM_TEXT];
    problem_print(shape, text, sizeof text);
    isolate_doing("making the problem");
    isolate_repeat("device_one %u '%s'", warp, text);
    const int made = problem_make(&p, shape);
    if (made != 0 || problem_expect(&p) != 0) {
        isolate_fail(made > 0 ? "oct_kv_spec_check refuses the spec" : "the problem could not be made");
        return 1;
    }
    device_rig *rig = device_check_rig(warp);
    int64_t failures = rig == NULL;
    if (rig == NULL)
        isolate_fail("no memory for the device");
    for (uint32_t has_mma = 0; rig != NULL && has_mma < 2; has_mma++) {
        oct__dev_attn_shape used;
        rig->chip.has_mma = has_mma;
        if ((kernels & (has_mma ? DEVICE_MMA : DEVICE_PORTABLE)) == 0 ||
            (has_mma && (!oct__dev_attn_shape_of(&rig->chip, &p.spec, OCT__DEV_DECODE, &used) || strstr(used.kernel, "_mma") == NULL)))
            continue;
        failures += check_made(rig, &p);
    }
    if (rig != NULL)
        rig->chip.has_mma = 0;
    problem_drop(&p);
    return failures;
}

int64_t device_check_attn(uint32_t warp, const problem_shape *shape)
{
    return device_check_attn_of(warp, shape, DEVICE_PORTABLE | DEVICE_MMA);
}

int64_t device_check_write(uint32_t warp, const write_shape *shape)
{
    write_case c;
    char text[PROBLEM_TEXT], why[640], name[64];
    write_print(shape, text, sizeof text);
    isolate_doing("making the case");
    isolate_repeat("device_one %u write '%s'", warp, text);
    const int made = write_make(&c, shape);
    if (made != 0) {
        isolate_fail(made > 0 ? "oct_kv_spec_check refuses the spec" : "the case could not be made");
        return 1;
    }
    int64_t failures = 1;
    device_rig *rig = device_check_rig(warp);
    isolate_doing("kv_write, warp %u", warp);
    write_reset(&c);
    if (rig == NULL || device_run_write(rig, &c, why, sizeof why) != 0)
        isolate_fail("%s", rig == NULL ? "no memory for the device" : why);
    else if (isolate_doing("%s, warp %u", rig->written_by, warp), write_judge(&c, why, sizeof why) != 0)
        isolate_fail("%s", why);
    else
        failures = 0;
    snprintf(name, sizeof name, "%s/%u", rig != NULL && rig->written_by != NULL ? rig->written_by : "kv_write", warp);
    isolate_ran(name, 0.0);
    write_drop(&c);
    return failures;
}

int64_t device_check_checked_writes(device_rig *rig)
{
    int64_t failures = 0;
    for (int beyond = 0; beyond < 3; beyond++) {
        write_case c;
        write_shape s = write_plain(40 + beyond);
        char why[640];
        s.window = 1;
        s.slots = 0;
        s.n_tokens = 300;
        s.heads = 1;
        s.n_pages = 20;
        if (write_make(&c, &s) != 0) {
            printf("a checked write: no case\n");
            return 1;
        }
        write_reset(&c);
        c.args.checked = 1;
        if (beyond > 0)   /* the last token: the first blocks must not have begun */
            c.pool[beyond - 1].slots[299] = (int32_t)(c.pool[beyond - 1].layer.n_pages * c.pool[beyond - 1].layer.spec.page_size);
        int bad = rig == NULL || device_run_write(rig, &c, why, sizeof why) != 0 || (beyond == 0 && write_judge(&c, why, sizeof why) != 0);
        if (bad)
            printf("%s: a checked write: %s\n", rig == NULL ? "no rig" : rig->written_by, rig == NULL ? "no memory for the device" : why);
        for (int i = 0; i < 2 && beyond > 0 && !bad; i++)
            for (int j = 0; j < 4; j++)
                if (c.pool[i].memory[j].size_bytes > 0 && memcmp(c.pool[i].memory[j].at, c.pool[i].before[j], c.pool[i].memory[j].size_bytes) != 0) {
                    printf("%s: a write with a slot beyond pool %d has stored\n", rig->written_by, beyond - 1);
                    bad = 1;
                }
        failures += bad;
        write_drop(&c);
    }
    if (failures == 0)
        printf("kv_check/%u judged on 3 cases\n", (unsigned)rig->chip.warp);
    fflush(stdout);
    return failures;
}

int device_check_hidden(device_rig *rig, const device_hidden *hidden, char *why, size_t why_bytes)
{
    enum { HEADS = 3, KEYS = 37, DIM = 3, ROWS_MOST = 20, DIMS_MOST = 256 };
    static float before[ROWS_MOST * HEADS * DIMS_MOST];
    const oracle_which which = hidden->is_in_k ? ORACLE_K : ORACLE_V;
    const int is_v4 = which == ORACLE_V && hidden->v_dtype == OCT_DTYPE_V4;
    const uint32_t dtype = hidden->is_in_k ? hidden->k_dtype : hidden->v_dtype;
    const int n_rows = hidden->n_rows, key = hidden->is_new ? KEYS - 1 : KEYS - n_rows - 4;
    const int64_t dim = hidden->dim;
    problem p;
    problem_shape s = problem_plain(80 + dim + n_rows + hidden->is_in_k);
    s.k_dtype = hidden->k_dtype;
    s.v_dtype = hidden->v_dtype;
    s.k_scale_mode = s.v_scale_mode = OCT_SCALE_NONE;
    s.heads = 1;
    s.heads_q = HEADS;
    s.dim_k = s.dim_v = dim;
    s.q_dtype = s.out_dtype = OCT_DTYPE_F32;
    s.window = hidden->is_new ? 0 : 5;   /* the first row sees the key, the last does not */
    problem_lengths(&s, 1, (int32_t[]){ n_rows }, (int32_t[]){ KEYS });
    if (rig == NULL || n_rows > ROWS_MOST || dim > DIMS_MOST || problem_make(&p, &s) != 0) {
        snprintf(why, why_bytes, "the problem could not be made");
        return 1;
    }
    rig->chip.has_mma = 1;
    int bad = device_run_attn(rig, &p, NULL, NULL, why, why_bytes);
    memcpy(before, p.args.out, (size_t)(n_rows * HEADS * dim) * 4);
    if (is_v4)
        oracle_put_block_scale(&p.layer, p.pages[key / s.page_size], (uint32_t)(key % s.page_size), 0, DIM, oracle_decode_code(OCT_DTYPE_F16, hidden->code));
    for (int64_t d = hidden->is_everywhere ? 0 : DIM; !is_v4 && d < (hidden->is_everywhere ? dim : DIM + 1); d++)
        oracle_put_code(dtype, which == ORACLE_K ? p.layer.k : p.layer.v,
                        oracle_address(&p.layer, which, p.pages[key / s.page_size], (uint32_t)(key % s.page_size), 0, (uint32_t)d), hidden->code);
    bad = bad != 0 || device_run_attn(rig, &p, NULL, NULL, why, why_bytes) != 0;
    rig->chip.has_mma = 0;
    const int is_infinity = !oracle_code_is_nan(is_v4 ? (uint32_t)OCT_DTYPE_F16 : dtype, hidden->code);
    int n_seen = 0;
    for (int64_t e = 0; !bad && e < n_rows * HEADS * dim; e++) {
        const int64_t row = e / (HEADS * dim);
        const float after = ((const float *)p.args.out)[e];
        const int is_seen = oracle_visible(&p.spec, &p.args, row, row, n_rows, KEYS, key);
        const int is_spoiled = is_seen && (which == ORACLE_K || hidden->is_everywhere || (is_v4 ? e % dim < 32 : e % dim == DIM));
        n_seen += is_seen;
        /* K's infinity may make a score of -inf, which is a weight of 0. */
        bad = !is_spoiled ? memcmp(&after, &before[e], 4) != 0 : which == ORACLE_V ? isfinite(after) : !is_infinity && !isnan(after);
        if (bad)
            snprintf(why, why_bytes, "%u in %c, code 0x%x of key %d, %d rows: row %d, which %s it, dim %d: %.9g, was %.9g", (unsigned)dtype, which == ORACLE_K ? 'K' : 'V',
                     (unsigned)hidden->code, key, n_rows, (int)row, is_seen ? "sees" : "does not see", (int)(e % dim), (double)after, (double)before[e]);
    }
    if (!bad && (n_seen == 0 || n_seen == n_rows * HEADS * dim)) {
        snprintf(why, why_bytes, "the code is hidden from no row, or from all");
        bad = 1;
    }
    problem_drop(&p);
    return bad;
}
