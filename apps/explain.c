/* explain.c: owns `octavo explain`: which kernels would run a model here, on a device of this machine or on a recorded machine, and why the others would
 * not. */
#include <stdlib.h>
#include <string.h>

#include "apps/cache_flags.h"
#include "apps/output.h"
#include "apps/rates.h"
#include "engine/engine.h"

typedef struct explain_options {
    const char *model, *form, *output, *force, *deny, *rates, *machine, *device;
    app_cache_flags cache;
    uint32_t n_threads, context_tokens;
} explain_options;

#define OPTION(field) offsetof(explain_options, field)
static const app_flag flags[] = {
    { "-m, --model", "MODEL.gguf", APP_TEXT, OPTION(model), 0, 0, true, "the model" },
    APP_CACHE_FLAGS(explain_options),
    { "--force", "NAMES", APP_TEXT, OPTION(force), 0, 0, false, "as if these kernels were forced: attn_decode.avx2,attn_extend.scalar" },
    { "--deny", "NAMES", APP_TEXT, OPTION(deny), 0, 0, false, "as if these were denied" },
    { "--machine", "NAME", APP_TEXT, OPTION(machine), 0, 0, false, "as if on this recorded machine: zen4, h200, mi300x ... (see below)" },
    { "--device", "NAME", APP_TEXT, OPTION(device), 0, 0, false, "as if on this device here: cpu, cuda, cuda:1, hip (cpu)" },
    { "-t, --threads", "N", APP_COUNT, OPTION(n_threads), 0, 512, false, "threads; 0: the machine's cores (0)" },
    { "-c, --ctx-size", "N", APP_COUNT, OPTION(context_tokens), 0, 1u << 24, false, "tokens of context; 0: the model's (0)" },
    APP_RATES_FLAG(OPTION(rates)),
    { "-o, --output-format", "text|json", APP_CHOICE, OPTION(form), 0, 0, false, "form of the report (text)" },
    { "--output", "FILE", APP_TEXT, OPTION(output), 0, 0, false, "write it to FILE, whole or not at all, instead of standard output" },
};

/* Who answers: the engine's own plans, or plans of the same problems on another machine or device. */
typedef struct answer {
    const octe_engine *engine;
    oct_context *context;
    const oct_plan *plan[OCTE_KV_MAX_KINDS];   /* of the engine's kinds of layers */
    uint32_t n;
    bool by_layer;              /* layers differ in their formats */
    bool is_own;                /* the engine's: not to be destroyed */
} answer;

/* One of the library's texts: a plan's (plan not NULL) or that of the write into such pages. */
static void add_explanation(app_text *text, const answer *a, const oct_plan *plan, const oct_kv_spec *spec, uint32_t form)
{
    for (size_t size = 0;;) {
        char *const bytes = size > 0 ? malloc(size) : NULL;
        if (size > 0 && bytes == NULL) {
            text->failed = true;
            return;
        }
        const size_t length = plan != NULL ? oct_plan_explain(plan, form, bytes, size)
                                           : oct_kv_write_explain(a->context, spec, OCT_DTYPE_F32, form, bytes, size);
        if (length < size) {
            /* The library may end its text with a line feed; here the frame says where lines end. */
            size_t n = length;
            while (n > 0 && bytes[n - 1] == '\n') {
                n--;
            }
            app_text_add_bytes(text, bytes, n);
            free(bytes);
            return;
        }
        free(bytes);
        size = length + 1;
    }
}

/* The first kind of layers with a window or without; the engine's number of kinds: there is none. */
static uint32_t first_kind(const answer *a, bool window)
{
    uint32_t i = 0;
    while (i < a->n && octe_engine_kind_get(a->engine, i).window != window) {
        i++;
    }
    return i;
}

static void add_kind_name(app_text *text, const answer *a, uint32_t kind)
{
    const octe_engine_kind k = octe_engine_kind_get(a->engine, kind);
    const octe_kv_config config = { .k = k.spec->k, .v = k.spec->v };
    char name[96];
    app_cache_name(&config, name, sizeof(name));
    app_text_add(text, "%s", name);
}

/* "0, 3, 29", in JSON's words too. */
static void add_layers(app_text *text, const answer *a, uint32_t kind)
{
    const uint32_t n_layers = octe_model_info_get(octe_engine_model(a->engine))->n_layers;
    bool first = true;
    for (uint32_t il = 0; il < n_layers; il++) {
        if (octe_engine_layer_kind(a->engine, il) == kind) {
            app_text_add(text, "%s%u", first ? "" : ", ", il);
            first = false;
        }
    }
}

static void add_text(app_text *text, const answer *a, const char *cache)
{
    const octe_model_info *const info = octe_model_info_get(octe_engine_model(a->engine));
    app_text_add(text, "%s: %s, cache %s\n", info->path, info->architecture, cache);
    for (uint32_t i = 0; i < a->n; i++) {
        const octe_engine_kind kind = octe_engine_kind_get(a->engine, i);
        app_text_add(text, "\n%u layers that see ", kind.n_layers);
        if (kind.window) {
            app_text_add(text, "a window of %u tokens", info->window_tokens);
        } else {
            app_text_add(text, "everything");
        }
        if (a->by_layer) {
            app_text_add(text, ", kept in ");
            add_kind_name(text, a, i);
            app_text_add(text, ": ");
            add_layers(text, a, i);
        }
        app_text_add(text, "\n");
        add_explanation(text, a, a->plan[i], NULL, OCT_TEXT_PLAIN);
        app_text_add(text, "\n");
    }
    for (uint32_t i = 0; i < (a->by_layer ? a->n : 1); i++) {
        app_text_add(text, "\nthe write of K and V");
        if (a->by_layer) {
            app_text_add(text, " in ");
            add_kind_name(text, a, i);
        }
        app_text_add(text, "\n");
        add_explanation(text, a, NULL, octe_engine_kind_get(a->engine, i).spec, OCT_TEXT_PLAIN);
        app_text_add(text, "\n");
    }
}

static void add_json_plan(app_text *text, const answer *a, const char *key, uint32_t kind)
{
    app_text_add(text, ", \"%s\": ", key);
    if (kind < a->n) {
        add_explanation(text, a, a->plan[kind], NULL, OCT_TEXT_JSON);
    } else {
        app_text_add(text, "null");
    }
}

static void add_json_kinds(app_text *text, const answer *a)
{
    app_text_add(text, ", \"kinds\": [");
    for (uint32_t i = 0; i < a->n; i++) {
        const octe_engine_kind kind = octe_engine_kind_get(a->engine, i);
        char k[48], v[48];
        (void)octe_kv_format_name(&kind.spec->k, k, sizeof(k));
        (void)octe_kv_format_name(&kind.spec->v, v, sizeof(v));
        app_text_add(text, "%s{\"k\": \"%s\", \"v\": \"%s\", \"window\": %s, \"layers\": [", i > 0 ? ", " : "", k, v, kind.window ? "true" : "false");
        add_layers(text, a, i);
        app_text_add(text, "]");
        add_json_plan(text, a, "attn", i);
        app_text_add(text, ", \"kv_write\": ");
        add_explanation(text, a, NULL, kind.spec, OCT_TEXT_JSON);
        app_text_add(text, "}");
    }
    app_text_add(text, "]");
}

static void add_json(app_text *text, const answer *a, const char *cache)
{
    const octe_model_info *const info = octe_model_info_get(octe_engine_model(a->engine));
    app_text_add(text, "{\"model\": ");
    app_text_add_json(text, info->path);
    app_text_add(text, ", \"architecture\": ");
    app_text_add_json(text, info->architecture);
    app_text_add(text, ", \"cache\": ");
    app_text_add_json(text, cache);
    app_text_add(text, ", \"window_tokens\": %u", info->window_tokens);
    add_json_plan(text, a, "attn_full", first_kind(a, false));
    add_json_plan(text, a, "attn_window", first_kind(a, true));
    app_text_add(text, ", \"kv_write\": ");
    add_explanation(text, a, NULL, octe_engine_kv_spec(a->engine), OCT_TEXT_JSON);
    if (a->by_layer) {
        add_json_kinds(text, a);
    }
    app_text_add(text, "}\n");
}

static bool is_elsewhere(const explain_options *options)
{
    return options->machine != NULL || (options->device != NULL && strcmp(options->device, "cpu") != 0);
}

/* The engine's answer, or that of plans for the same layers on another machine or device. */
static oct_status answer_open(answer *a, const octe_engine *engine, const explain_options *options, oct_error *error)
{
    *a = (answer){ .engine = engine, .context = octe_engine_context(engine), .n = octe_engine_n_kinds(engine), .by_layer = octe_engine_options_get(engine)->kv.layers != NULL, .is_own = true };
    for (uint32_t i = 0; i < a->n; i++) {
        a->plan[i] = octe_engine_kind_get(engine, i).plan;
    }
    if (!is_elsewhere(options)) {
        return OCT_OK;
    }
    const oct_context_options wanted = { .struct_size = sizeof(wanted), .max_threads = options->n_threads, .machine = options->machine, .device = options->device };
    const octe_model_info *const info = octe_model_info_get(octe_engine_model(engine));
    memset(a->plan, 0, sizeof(a->plan));
    a->context = NULL;
    a->is_own = false;
    oct_status status = oct_context_create(&wanted, &a->context, error);
    for (uint32_t i = 0; i < a->n && status == OCT_OK; i++) {
        const octe_engine_kind kind = octe_engine_kind_get(engine, i);
        const oct_attn_spec spec = {
            .struct_size = sizeof(spec),
            .heads_q = info->n_heads,
            .kv = *kind.spec,
            .q_dtype = OCT_DTYPE_F32,
            .out_dtype = OCT_DTYPE_F32,
            .sm_scale = 1.0f,          /* no gate looks at it */
            .causal = 1,
            .window_tokens = kind.window ? info->window_tokens : 0,
            .force_variant = options->force,
            .deny_variant = options->deny,
            .max_sequences = 1,        /* of a GPU's plan, which is not run */
            .max_rows = 512,
            .max_keys = 4096,
        };
        oct_plan *plan = NULL;
        status = oct_plan_create(a->context, &spec, &plan, error);
        a->plan[i] = plan;
    }
    return status;
}

static void answer_close(answer *a)
{
    if (a->engine != NULL && !a->is_own) {
        for (uint32_t i = 0; i < a->n; i++) {
            oct_plan_destroy((oct_plan *)(uintptr_t)a->plan[i]);
        }
        oct_context_destroy(a->context);
    }
}

static int explain(const explain_options *options, const octe_kv_config *config, const oct_rates *rates)
{
    oct_error error = OCT_ERROR_INIT;
    octe_model *model = NULL;
    octe_engine *engine = NULL;
    octe_engine_options wanted;
    octe_engine_options_init(&wanted);
    wanted.n_threads = options->n_threads;
    wanted.max_context_tokens = options->context_tokens;
    wanted.max_step_logits = 1;
    wanted.kv = *config;
    /* Names of another machine's kernels mean nothing here. */
    wanted.force_variant = is_elsewhere(options) ? NULL : options->force;
    wanted.deny_variant = is_elsewhere(options) ? NULL : options->deny;
    wanted.rates = rates;
    /* Nothing is computed here: no second copy of the weights. */
    const octe_model_options plain = { .no_repack = true };
    oct_status status = octe_model_open(options->model, &plain, &model, &error);
    if (status == OCT_OK) {
        status = octe_engine_open(model, &wanted, &engine, &error);
    }
    answer a = { .engine = NULL };
    if (status == OCT_OK) {
        status = answer_open(&a, engine, options, &error);
    }
    int code;
    if (status == OCT_OK) {
        char cache[96];
        app_text text = { 0 };
        app_cache_name(config, cache, sizeof(cache));
        if (strcmp(options->form, "json") == 0) {
            add_json(&text, &a, cache);
        } else {
            add_text(&text, &a, cache);
        }
        code = app_output_report(&text, options->output);
        app_text_free(&text);
    } else {
        error.status = status;
        code = app_output_error(&error);
    }
    answer_close(&a);
    octe_engine_close(engine);
    octe_model_close(model);
    return code;
}

static int run(const app_command *command, int argc, char **argv)
{
    explain_options options = { .form = "text" };
    int code;
    if (!app_arguments_parse(command, argc, argv, &options, &code)) {
        return code;
    }
    if (options.machine != NULL && options.device != NULL) {
        (void)app_output_fail("--machine and --device exclude each other: a recorded machine has its own device");
        return APP_USAGE;
    }
    octe_kv_config config;
    octe_scales scales;
    code = app_cache_config(command, &options.cache, &config, &scales);
    app_rates rates = { .pointer = NULL };
    if (code == APP_OK) {
        code = app_rates_load(options.rates, &rates);
    }
    if (code == APP_OK) {
        code = explain(&options, &config, rates.pointer);
    }
    octe_scales_free(&scales);
    return code;
}

const app_command app_command_explain = {
    .name = "explain",
    .summary = "which kernels would run a model, and why the others would not",
    .operands = "-m MODEL.gguf [flags]",
    .notes = "Recorded machines, as octavo explain --machine NAME takes them: zen4, zen3, xeon_amx, avx512_vm_without_zmm, x86_64_without_avx2; and GPUs, from their "
             "vendors' documents: a100, h100, h200, mi300x, mi355x. Kernels are compared on a nominal decode and extend.",
    .flags = flags,
    .n_flags = sizeof(flags) / sizeof(flags[0]),
    .run = run,
};
