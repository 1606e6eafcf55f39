/* main.c: all faults, or those whose names match the pattern given ("fault_A1*"). */
#include "faults/faults.h"

int64_t fault_each_pair(problem *p, fault_body *body, void *arg)
{
    char text[PROBLEM_TEXT], force[96];
    int64_t failures = 0;
    problem_print(&p->shape, text, sizeof text);
    for (uint32_t i = 0; problem_pair(i, force, sizeof force); i++) {
        isolate_doing("%s", force);
        isolate_repeat("problem '%s' as the test changes it", text);
        const problem_outcome outcome = problem_run(p, problem_context(p->spec.max_threads > 0 ? p->spec.max_threads : 1), force, RUN_WHOLE);
        if (outcome.status == OCT_UNSUPPORTED) {
            isolate_skipped();
        } else if (outcome.status != OCT_OK) {
            isolate_fail("%s", outcome.text);
            failures++;
        } else {
            const compare_bound bound = problem_pair_bound(i);
            failures += body(p, &bound, arg);
        }
    }
    return failures;
}

void fault_set_formats(problem_shape *shape, uint32_t dtype, uint32_t mode)
{
    shape->k_dtype = shape->v_dtype = dtype;
    shape->k_scale_mode = shape->v_scale_mode = mode;
    shape->k_scale_dtype = shape->v_scale_dtype = mode == OCT_SCALE_TOKEN_HEAD ? OCT_DTYPE_F32 : 0;
}

int fault_formats_for(problem_shape *shape, uint32_t i)
{
    char force[96];
    if (!problem_pair(i, force, sizeof force))
        return 0;
    for (int attempt = 0; attempt < 3; attempt++) {
        if (attempt > 0)
            fault_set_formats(shape, OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD);
        if (attempt == 1) {
            shape->v_dtype = OCT_DTYPE_E4M3FN;
            shape->v_scale_mode = OCT_SCALE_LAYER;
            shape->v_scale_dtype = 0;
        }
        problem_shape small = *shape;
        problem p;
        problem_lengths(&small, 2, (int32_t[]){ 1, 20 }, (int32_t[]){ 5, 30 });
        if (problem_make(&p, &small) != 0)
            return 0;
        const oct_status status = problem_run(&p, problem_context(1), force, RUN_WHOLE).status;
        problem_drop(&p);
        if (status != OCT_UNSUPPORTED)
            return status == OCT_OK;
    }
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
#define FAULT(name) { "fault_" #name, fault_##name, NULL, NULL, NULL },
#define SLOW_FAULT(name) FAULT(name)
#include "faults/faults.def"
#undef FAULT
#undef SLOW_FAULT
    };
    oracle_init();
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
