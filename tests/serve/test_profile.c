/* What a step consists of, operation by operation: K and V go from where the projections left them into the pages in one operation for each layer, and nothing is copied or
 * cast on the way. Prints the profile of a step of prompts' chunks and single tokens; with a model file as argument (and a cache's name), that one's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <ggml-backend.h>
#include <ggml.h>

#include "engine/seam.h"
#include "engine/serve/runner.h"
#include "engine/small_engine.h"
#include "host/clock.h"

static const char *file, *file_kv = "int8_rotated";

static bool go_on(void *context, const octe_scheduled *part, const float *logits, int32_t *token)
{
    (void)context;
    (void)part;
    *token = logits[0] > logits[1] ? 5 : 6;
    return false;
}

/* The graph of the step that ran last, with its inputs as they were: the memory of what is no longer needed has been used again. */
static struct ggml_cgraph *last_graph(const octe_engine *e)
{
    const octe__graph *last = &e->graphs.graph[0];
    for (int i = 1; i < OCTE__MAX_GRAPHS; i++) {
        last = e->graphs.graph[i].last_used > last->last_used ? &e->graphs.graph[i] : last;
    }
    memcpy(last->tokens->data, e->step.tokens, last->n_rows * sizeof(int32_t));
    memcpy(last->positions->data, e->step.positions, last->n_rows * sizeof(int32_t));
    if (last->output_rows != NULL) {
        memcpy(last->output_rows->data, e->step.output_rows, last->n_outputs * sizeof(int32_t));
    }
    return last->graph;
}

static ggml_custom_op_t function_of(const struct ggml_tensor *t)
{
    ggml_custom_op_t function;
    memcpy(&function, t->op_params, sizeof(function));
    return function;
}

static bool writes(const struct ggml_tensor *t) { return t->op == GGML_OP_CUSTOM && (function_of(t) == octe__seam_write_op || function_of(t) == octe__seam_write_only_op); }

/* Of one kind of operation. */
typedef struct kind {
    const char *name;
    uint32_t n;
    double seconds;
} kind;

static double seconds_of(octe_engine *e, struct ggml_tensor *node)
{
    const struct ggml_init_params params = {ggml_graph_overhead_custom(8, false) + ggml_tensor_overhead(), NULL, true};
    struct ggml_context *c = ggml_init(params);
    struct ggml_cgraph *one = ggml_new_graph_custom(c, 8, false);
    double least = 1e9;
    ggml_graph_add_node(one, node);
    for (int i = 0; i < 3; i++) {
        const double begin = oct__clock_seconds();
        assert_int_equal(ggml_backend_graph_compute(e->graphs.backend, one), GGML_STATUS_SUCCESS);
        const double s = oct__clock_seconds() - begin;
        least = s < least ? s : least;
    }
    ggml_free(c);
    return least;
}

static void profile(octe_engine *e, const char *title)
{
    struct ggml_cgraph *graph = last_graph(e);
    const uint32_t n_layers = octe_model_info_get(octe_engine_model(e))->n_layers;
    uint32_t *n_writes = calloc(n_layers, sizeof(*n_writes));
    kind kinds[64];
    uint32_t n_kinds = 0;
    double all = 0;
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        struct ggml_tensor *t = ggml_graph_node(graph, i);
        /* Nothing is copied, made contiguous, cast or stored by ggml: all that is computed is f32. */
        assert_true(t->op != GGML_OP_CPY && t->op != GGML_OP_DUP && t->op != GGML_OP_CONT && t->op != GGML_OP_SET_ROWS && t->op != GGML_OP_SET);
        assert_true(t->type == GGML_TYPE_F32 || t->type == GGML_TYPE_I32);
        const char *name = ggml_op_desc(t);
        if (writes(t)) {
            octe__seam_layer *layer = NULL;
            const int first = function_of(t) == octe__seam_write_op ? 1 : 0;
            const struct ggml_tensor *k = t->src[first], *v = t->src[first + 1];
            memcpy(&layer, (const char *)t->op_params + 2 * sizeof(void *), sizeof(layer));
            n_writes[layer->index]++;
            /* K as the rotation by position left it, V as its product did: only the shape is another. */
            assert_int_equal(k->op, GGML_OP_ROPE);
            assert_int_equal(v->op, GGML_OP_RESHAPE);
            assert_true(v->src[0]->op == GGML_OP_MUL_MAT || v->src[0]->op == GGML_OP_ADD);
            name = "write of K and V into pages";
        } else if (t->op == GGML_OP_CUSTOM) {
            assert_ptr_equal(function_of(t), octe__seam_attend_op);
            assert_true(writes(t->src[0]));   /* reads what the pages have, right after the write */
            name = "attention over pages";
        } else if (t->op == GGML_OP_RESHAPE || t->op == GGML_OP_VIEW) {
            continue;   /* no work */
        }
        const double s = seconds_of(e, t);
        uint32_t which = 0;
        while (which < n_kinds && strcmp(kinds[which].name, name) != 0) {
            which++;
        }
        assert_true(which < 64);
        if (which == n_kinds) {
            kinds[n_kinds++] = (kind){name, 0, 0};
        }
        kinds[which].n++;
        kinds[which].seconds += s;
        all += s;
    }
    for (uint32_t il = 0; il < n_layers; il++) {
        assert_int_equal(n_writes[il], 1);
    }
    print_message("%s: %u layers, operations of a step one by one:\n", title, n_layers);
    for (uint32_t i = 0; i < n_kinds; i++) {
        print_message("  %-28s %4u  %9.3f ms  %5.1f %%\n", kinds[i].name, kinds[i].n, 1e3 * kinds[i].seconds, 100 * kinds[i].seconds / all);
    }
    free(n_writes);
}

/* A step of single tokens of three answers and a chunk of a prompt. */
static void run_mixed(octe_engine *e, const char *title)
{
    oct_error error = OCT_ERROR_INIT;
    octe_runner *r;
    const octe_runner_options o = {.max_running = 4};
    if (octe_runner_open(e, &o, &r, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    int32_t prompt[64];
    uint32_t n_rows;
    uint64_t id;
    for (uint32_t i = 0; i < 4; i++) {
        for (uint32_t t = 0; t < 40; t++) {
            prompt[t] = (int32_t)((t * 7 + i * 13) % 60 + 5);
        }
        const octe_request_spec q = {.prompt = prompt, .n_prompt = 40, .max_new_tokens = 50};
        assert_int_equal(octe_scheduler_add(octe_runner_scheduler(r), &q, &id, NULL), OCT_OK);
        assert_int_equal(octe_runner_step(r, go_on, NULL, NULL, &n_rows, &error), OCT_OK);
    }
    assert_int_equal(n_rows, 43);
    profile(e, title);
    octe_runner_close(r);
}

static void fused_write(void **state)
{
    (void)state;
    static const char *const caches[] = {"bf16", "fp8", "int8_rotated", "fp8_per_token_head"};
    for (int model = LLAMA; model <= GEMMA; model++) {
        for (size_t c = 0; c < sizeof(caches) / sizeof(caches[0]); c++) {
            char title[64];
            const octe_engine_options o = options(caches[c]);
            octe_engine *e = open_engine(model, &o);
            (void)snprintf(title, sizeof(title), "%s, %s", model == LLAMA ? "llama" : "gemma3", caches[c]);
            run_mixed(e, title);
            octe_engine_close(e);
        }
    }
}

static void of_file(void **state)
{
    (void)state;
    octe_model *m;
    octe_engine *e = NULL;
    oct_error error = OCT_ERROR_INIT;
    octe_engine_options o = options(file_kv);
    o.n_threads = 1;
    o.deny_variant = NULL;
    if (octe_model_open(file, NULL, &m, &error) != OCT_OK || octe_engine_open(m, &o, &e, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    run_mixed(e, file);
    octe_engine_close(e);
    octe_model_close(m);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(fused_write)}, files[] = {cmocka_unit_test(of_file)};
    if (argc > 1) {
        file = argv[1];
        file_kv = argc > 2 ? argv[2] : file_kv;
        return cmocka_run_group_tests(files, NULL, NULL);
    }
    return cmocka_run_group_tests(tests, open_models, close_models);
}
