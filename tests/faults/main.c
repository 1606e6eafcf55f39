/* main.c: all faults, or those whose names match the pattern given ("fault_A1*"); then every=N, prompt=N, pairs=TEXT (D4: those pairs of rows
 * alone whose names hold the text). */
#include "faults/faults.h"
#include "test_pattern.h"

int64_t fault_every = 1;
int32_t fault_prompt = 1000;
static const char *pairs = "";

int fault_takes_pair(const char *force)
{
    return strstr(force, pairs) != NULL;
}

static int any_pair_is_taken(void)
{
    char force[96];
    for (uint32_t i = 0; problem_pair(i, force, sizeof force); i++)
        if (fault_takes_pair(force))
            return 1;
    return 0;
}

static int64_t run_nth(void *arg, int64_t index)
{
    isolate_case *const *run = arg;
    return (*run)(NULL, index * fault_every);
}

int64_t fault_run_cases(const char *title, int64_t n, unsigned seconds, isolate_case *run)
{
    return isolate_run(title, (n + fault_every - 1) / fault_every, seconds, run_nth, &run);
}

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
            problem_skip_pair(i);
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

/* Status of pair `force` on a small problem of these formats and dims; OUT_OF_MEMORY when there is none. */
static oct_status try_pair(const problem_shape *shape, const char *force)
{
    problem_shape small = *shape;
    problem p;
    problem_lengths(&small, 2, (int32_t[]){ 1, 20 }, (int32_t[]){ 5, 30 });
    if (problem_make(&p, &small) != 0)
        return OCT_OUT_OF_MEMORY;
    const oct_status status = problem_run(&p, problem_context(1), force, RUN_WHOLE).status;
    problem_drop(&p);
    return status;
}

int fault_formats_for(problem_shape *shape, uint32_t i)
{
    static const struct { uint32_t k_dtype, k_mode, v_dtype, v_mode; } others[] = {
        { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER }, { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD },
        /* Rows of GPUs: */
        { OCT_DTYPE_BF16, OCT_SCALE_NONE, OCT_DTYPE_BF16, OCT_SCALE_NONE }, { OCT_DTYPE_BF16, OCT_SCALE_NONE, OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER },
        { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, OCT_DTYPE_F16, OCT_SCALE_NONE },
    };
    static const int64_t dims[] = { 0, 64, 128, 192 };   /* 0: the shape's own */
    const problem_shape given = *shape;
    char force[96];
    if (!problem_pair(i, force, sizeof force))
        return 0;
    for (int64_t d = 0; d < COUNT(dims); d++)
        for (int64_t f = -1; f < COUNT(others); f++) {
            *shape = given;
            if (dims[d] > 0)
                shape->dim_k = shape->dim_v = dims[d];
            if (f >= 0) {
                shape->k_dtype = others[f].k_dtype;
                shape->k_scale_mode = others[f].k_mode;
                shape->k_scale_dtype = others[f].k_mode == OCT_SCALE_TOKEN_HEAD ? OCT_DTYPE_F32 : 0;
                shape->v_dtype = others[f].v_dtype;
                shape->v_scale_mode = others[f].v_mode;
                shape->v_scale_dtype = others[f].v_mode == OCT_SCALE_TOKEN_HEAD ? OCT_DTYPE_F32 : 0;
            }
            const oct_status status = try_pair(shape, force);
            if (status != OCT_UNSUPPORTED)
                return status == OCT_OK ? 1 : -1;
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
    for (int i = 2; i < argc; i++) {
        if (strncmp(argv[i], "every=", 6) == 0)
            fault_every = strtoll(argv[i] + 6, NULL, 10);
        else if (strncmp(argv[i], "prompt=", 7) == 0)
            fault_prompt = (int32_t)strtol(argv[i] + 7, NULL, 10);
        else if (strncmp(argv[i], "pairs=", 6) == 0)
            pairs = argv[i] + 6;
        else
            return fprintf(stderr, "usage: faults [PATTERN [every=N] [prompt=N] [pairs=TEXT]]\n"), 2;
    }
    if (argc > 1 && !test_pattern(tests, sizeof(tests) / sizeof(tests[0]), argv[1]))
        return 2;
    if (!any_pair_is_taken())
        return fprintf(stderr, "no pair of rows has '%s' in its names\n", pairs), 2;
    if (fault_every < 1 || fault_prompt < 100)
        return fprintf(stderr, "every must be at least 1, prompt 100\n"), 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
