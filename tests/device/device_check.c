/* device_check.c: see device_check.h. */
#include "device/device_check.h"

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
    else if (write_judge(&c, why, sizeof why) != 0)
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
            printf("a checked write: %s\n", rig == NULL ? "no memory for the device" : why);
        for (int i = 0; i < 2 && beyond > 0 && !bad; i++)
            for (int j = 0; j < 4; j++)
                if (c.pool[i].memory[j].size_bytes > 0 && memcmp(c.pool[i].memory[j].at, c.pool[i].before[j], c.pool[i].memory[j].size_bytes) != 0) {
                    printf("a write with a slot beyond pool %d has stored\n", beyond - 1);
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
