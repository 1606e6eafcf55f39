/* device_check.c: see device_check.h. */
#include "device/device_check.h"

#include <stdio.h>

device_rig *device_check_rig(uint32_t warp)
{
    static device_rig rigs[2];
    device_rig *rig = &rigs[warp == 64];
    if (rig->device == NULL && device_rig_make(rig, warp) != 0)
        return NULL;
    return rig;
}

compare_bound device_check_bound(void)
{
    return compare_bound_of(OCT__TOL_F32);
}

int64_t device_check_attn(uint32_t warp, const problem_shape *shape)
{
    problem p;
    oct__dev_plan plan;
    char text[PROBLEM_TEXT], why[640], name[32];
    problem_print(shape, text, sizeof text);
    isolate_doing("making the problem");
    isolate_repeat("device_one %u '%s'", warp, text);
    const int made = problem_make(&p, shape);
    if (made != 0 || problem_expect(&p) != 0) {
        isolate_fail(made > 0 ? "oct_kv_spec_check refuses the spec" : "the problem could not be made");
        return 1;
    }
    int64_t failures = 0;
    device_rig *rig = device_check_rig(warp);
    const compare_bound bound = device_check_bound();
    isolate_doing("attention, warp %u", warp);
    if (rig == NULL || device_run_attn(rig, &p, NULL, &plan, why, sizeof why) != 0) {
        isolate_fail("%s", rig == NULL ? "no memory for the device" : why);
        failures++;
    } else {
        const compare_verdict verdict = problem_judge(&p, &bound);
        for (uint32_t op = 0; op < OCT__DEV_OPS; op++) {
            oct__dev_attn_shape used;
            if (plan.n_tasks[op] > 0 && oct__dev_attn_shape_of(&rig->chip, &p.spec, op, &used)) {
                snprintf(name, sizeof name, "%s/%u", used.kernel, warp);
                isolate_ran(name, verdict.max_error);
                if (plan.n_groups[op] > 0) {
                    snprintf(name, sizeof name, "attn_finish/%u", warp);
                    isolate_ran(name, verdict.max_error);
                }
            }
        }
        if (!verdict.ok) {
            isolate_fail("%s", verdict.text);
            failures++;
        }
    }
    problem_drop(&p);
    return failures;
}

int64_t device_check_write(uint32_t warp, const write_shape *shape)
{
    write_case c;
    char text[PROBLEM_TEXT], why[640], name[32];
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
    snprintf(name, sizeof name, "kv_write/%u", warp);
    isolate_ran(name, 0.0);
    write_drop(&c);
    return failures;
}
