/* run.c: owns `octavo run`: one prompt, one answer, streamed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/cache_flags.h"
#include "apps/interrupt.h"
#include "apps/output.h"
#include "apps/prompt.h"
#include "apps/rates.h"
#include "apps/texts.h"
#include "apps/thread_note.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "host/clock.h"
#include "host/error.h"

static const char where[] = "octavo run";

enum { STEP_ROWS = 512 };

typedef struct run_options {
    const char *model, *prompt, *file, *force, *deny, *rates;
    app_cache_flags cache;
    uint32_t n_threads, context_tokens, pool_tokens, n_predict, top_k, seed;
    float temp, top_p, min_p;
    bool ignore_eos, chat, no_chat, stats;
} run_options;

#define OPTION(field) offsetof(run_options, field)
static const app_flag flags[] = {
    { "-m, --model", "MODEL.gguf", APP_TEXT, OPTION(model), 0, 0, true, "the model" },
    { "-p, --prompt", "PROMPT", APP_TEXT, OPTION(prompt), 0, 0, false, "the prompt" },
    { "-f, --file", "FILE", APP_TEXT, OPTION(file), 0, 0, false, "the prompt from a file" },
    { "-n, --n-predict", "N", APP_COUNT, OPTION(n_predict), 1, 1u << 24, false, "tokens to answer at most (128)" },
    { "--chat", NULL, APP_SWITCH, OPTION(chat), 0, 0, false, "through the model's chat template (the default where it has one)" },
    { "--no-chat", NULL, APP_SWITCH, OPTION(no_chat), 0, 0, false, "the prompt as it is, to be continued" },
    APP_CACHE_FLAGS(run_options),
    { "-t, --threads", "N", APP_COUNT, OPTION(n_threads), 0, 512, false, "threads; 0: the machine's cores (0)" },
    { "-c, --ctx-size", "N", APP_COUNT, OPTION(context_tokens), 0, 1u << 24, false, "tokens of context; 0: what prompt and answer need, at most the model's (0)" },
    { "--pool-tokens", "N", APP_COUNT, OPTION(pool_tokens), 0, 1u << 30, false, "tokens that the pool of pages holds; 0: the context (0)" },
    { "--temp", "T", APP_NUMBER, OPTION(temp), 0, 100, false, "temperature; 0: always the likeliest token (0.8)" },
    { "--top-k", "K", APP_COUNT, OPTION(top_k), 0, 1u << 30, false, "draw among the K likeliest; 0: all (40)" },
    { "--top-p", "P", APP_NUMBER, OPTION(top_p), 0, 1, false, "draw among the likeliest that make up P (0.95)" },
    { "--min-p", "P", APP_NUMBER, OPTION(min_p), 0, 1, false, "drop what is less likely than P times the likeliest (0.05)" },
    { "-s, --seed", "N", APP_COUNT, OPTION(seed), 0, 4294967295.0, false, "seed of the draw; the same seed gives the same answer (0)" },
    { "--ignore-eos", NULL, APP_SWITCH, OPTION(ignore_eos), 0, 0, false, "never end before N tokens" },
    { "--force-variant", "NAMES", APP_TEXT, OPTION(force), 0, 0, false, "use these kernels or fail: attn_decode.avx2,attn_extend.scalar (octavo explain lists them)" },
    { "--deny-variant", "NAMES", APP_TEXT, OPTION(deny), 0, 0, false, "never use these" },
    APP_RATES_FLAG(OPTION(rates)),
    { "-v, --verbose", NULL, APP_SWITCH, OPTION(stats), 0, 0, false, "speed, cache and kernels on standard error when done" },
};

typedef struct generation {
    const run_options *options;
    octe_model *model;
    octe_vocab *vocab;
    octe_engine *engine;
    octe_sampler *sampler;
    octe_sandbox *sandbox;
    octe_scales scales;
    app_rates rates;
    int32_t *prompt;
    uint32_t n_prompt, n_answer;
    double prefill_seconds, decode_seconds;
} generation;

static oct_status read_prompt(generation *g, oct_error *error)
{
    const run_options *const o = g->options;
    char *bytes = NULL;
    size_t n = o->prompt != NULL ? strlen(o->prompt) : 0;
    oct_status status = OCT_OK;
    if (o->file != NULL) {
        /* A file of the name "built-in" is meant here, not the chronicle. */
        status = strcmp(o->file, APP_TEXT_BUILT_IN) == 0 ? app_text_read("./" APP_TEXT_BUILT_IN, 0, 0, &bytes, &n, error)
                                                         : app_text_read(o->file, 0, 0, &bytes, &n, error);
    }
    if (status == OCT_OK) {
        const app_chat chat = o->chat ? APP_CHAT_ON : o->no_chat ? APP_CHAT_OFF : APP_CHAT_AUTO;
        status = app_prompt_tokens(g->sandbox, g->vocab, bytes != NULL ? bytes : o->prompt, n, chat, &g->prompt, &g->n_prompt, error);
    }
    free(bytes);
    return status;
}

static oct_status open_engine(generation *g, const octe_kv_config *config, oct_error *error)
{
    const run_options *const o = g->options;
    const uint32_t limit = octe_model_info_get(g->model)->n_ctx_train;
    const uint64_t needed = (uint64_t)g->n_prompt + o->n_predict;
    octe_engine_options options;
    octe_engine_options_init(&options);
    options.n_threads = o->n_threads;
    options.max_context_tokens = o->context_tokens != 0 ? o->context_tokens : needed < limit ? (uint32_t)needed : limit;
    options.pool_tokens = o->pool_tokens;
    options.max_step_rows = STEP_ROWS;
    options.max_step_logits = 1;
    options.kv = *config;
    options.force_variant = o->force;
    options.deny_variant = o->deny;
    options.rates = g->rates.pointer;
    const oct_status status = octe_engine_open(g->model, &options, &g->engine, error);
    if (status != OCT_OK) {
        return status;
    }
    const uint32_t context = octe_engine_options_get(g->engine)->max_context_tokens;
    if (g->n_prompt >= context) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "the prompt has %u tokens, the context holds %u: nothing could be answered (-c)", g->n_prompt, context);
    }
    return OCT_OK;
}

/* Runs the prompt in steps, so that Ctrl-C is heard between them. */
static oct_status prefill(generation *g, const float **logits, oct_error *error)
{
    for (uint32_t done = 0; done < g->n_prompt;) {
        const uint32_t n = g->n_prompt - done < STEP_ROWS ? g->n_prompt - done : STEP_ROWS;
        const octe_part part = { .sequence = 0, .n_tokens = n, .tokens = g->prompt + done, .n_logits = done + n == g->n_prompt };
        if (app_interrupted()) {
            return oct__error_set(error, OCT_CANCELLED, where, "stopped");
        }
        const oct_status status = octe_engine_step(g->engine, &part, 1, logits, error);
        if (status != OCT_OK) {
            return status;
        }
        done += n;
    }
    return OCT_OK;
}

/* *written: standard output took everything so far; why not is said when the program ends. */
static oct_status decode(generation *g, const float *logits, bool *written, oct_error *error)
{
    const uint32_t context = octe_engine_options_get(g->engine)->max_context_tokens, n_vocab = octe_model_info_get(g->model)->n_vocab;
    octe_stream stream = { 0 };
    oct_status status = OCT_OK;
    *written = true;
    while (status == OCT_OK && *written && g->n_answer < g->options->n_predict) {
        int32_t token = 0;
        char *piece = NULL;
        size_t n_piece = 0;
        if (app_interrupted()) {
            status = oct__error_set(error, OCT_CANCELLED, where, "stopped");
            break;
        }
        status = octe_sampler_sample(g->sampler, logits, n_vocab, &token, error);
        if (status != OCT_OK || (!g->options->ignore_eos && octe_vocab_is_eog(g->vocab, token))) {
            break;
        }
        g->n_answer++;
        status = octe_stream_add(&stream, g->vocab, token, false, &piece, &n_piece, error);
        if (status == OCT_OK) {
            *written = app_output_write(piece, n_piece);
        }
        free(piece);
        if (status != OCT_OK || g->n_answer == g->options->n_predict || octe_engine_length(g->engine, 0) >= context) {
            break;
        }
        const octe_part part = { .sequence = 0, .n_tokens = 1, .tokens = &token, .n_logits = 1 };
        status = octe_engine_step(g->engine, &part, 1, &logits, error);
    }
    char rest[4];
    octe_stream_finish(&stream, rest);
    /* Whatever ended it, what was shown ends with a whole character and a line. */
    *written = *written && app_output_write(rest, strlen(rest)) && app_output_write("\n", 1);
    return status;
}

static oct_status generate(generation *g, const octe_kv_config *config, bool *written, oct_error *error)
{
    const run_options *const o = g->options;
    const octe_sampler_options sampling = {
        .temp = o->temp, .top_k = (int32_t)o->top_k, .top_p = o->top_p, .min_p = o->min_p, .seed = o->seed, .ignore_eog = o->ignore_eos,
    };
    const float *logits = NULL;
    *written = true;
    /* Before anything is loaded: it forks. Where it is not built, libllama takes the template for one that it knows. */
    oct_error why = OCT_ERROR_INIT;
    if (!o->no_chat && octe_sandbox_is_built() && octe_sandbox_open(&g->sandbox, &why) != OCT_OK) {
        (void)app_output_fail("note: %s; libllama takes the chat template for one that it knows by its looks", why.text);
    }
    oct_status status = octe_model_open(o->model, NULL, &g->model, error);
    if (status == OCT_OK) {
        status = octe_vocab_open(o->model, &g->vocab, error);
    }
    if (status == OCT_OK) {
        status = octe_sampler_create(g->vocab, &sampling, &g->sampler, error);
    }
    if (status == OCT_OK) {
        status = read_prompt(g, error);
    }
    if (status == OCT_OK) {
        status = open_engine(g, config, error);
    }
    const double begin = oct__clock_seconds();
    if (status == OCT_OK) {
        status = prefill(g, &logits, error);
    }
    g->prefill_seconds = oct__clock_seconds() - begin;
    if (status == OCT_OK) {
        status = decode(g, logits, written, error);
    }
    g->decode_seconds = oct__clock_seconds() - begin - g->prefill_seconds;
    return status;
}

static void add_variants(const oct_plan *plan, const char *layers, app_text *text)
{
    oct_plan_info info = { .struct_size = sizeof(info) };
    if (plan != NULL && oct_plan_info_get(plan, &info) == OCT_OK) {
        app_text_add(text, "%s: %s%s%s\n", layers, info.decode_variant, info.decode_variant[0] != '\0' && info.extend_variant[0] != '\0' ? ", " : "", info.extend_variant);
    }
}

static void report(const generation *g, const octe_kv_config *config)
{
    char name[96];
    octe_engine_stats stats;
    octe_kv_capacity capacity = { 0 };
    app_text text = { 0 };
    app_cache_name(config, name, sizeof(name));
    octe_engine_stats_get(g->engine, &stats);
    (void)octe_kv_capacity_get(g->model, config, &capacity, NULL);
    app_text_add(&text, "\ncache: %s, %llu bytes a token, pages of %u; the pool has %.1f MiB\n", name, (unsigned long long)capacity.bytes_per_token,
                 octe_engine_kv_spec(g->engine)->page_size, (double)stats.pool_bytes / (1 << 20));
    app_text_add(&text, "prompt: %u tokens, %.1f tokens/s; answer: %u tokens, %.1f tokens/s; %u threads\n", g->n_prompt, g->n_prompt / g->prefill_seconds, g->n_answer,
                 g->n_answer > 1 ? (g->n_answer - 1) / g->decode_seconds : 0, octe_engine_options_get(g->engine)->n_threads);
    add_variants(octe_engine_plan(g->engine, false), "kernels of the last step, full layers", &text);
    add_variants(octe_engine_plan(g->engine, true), "kernels of the last step, window layers", &text);
    fputs(text.bytes != NULL ? text.bytes : "", stderr);
    app_text_free(&text);
}

static int run(const app_command *command, int argc, char **argv)
{
    run_options options = { .n_predict = 128, .temp = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f };
    int code;
    if (!app_arguments_parse(command, argc, argv, &options, &code)) {
        return code;
    }
    if ((options.prompt == NULL) == (options.file == NULL)) {
        return app_arguments_complain(command, "give one of -p PROMPT and -f FILE");
    }
    if (options.chat && options.no_chat) {
        return app_arguments_complain(command, "--chat and --no-chat exclude each other");
    }
    app_thread_note(options.n_threads);
    generation g = { .options = &options };
    octe_kv_config config;
    code = app_cache_config(command, &options.cache, &config, &g.scales);
    if (code == APP_OK) {
        code = app_rates_load(options.rates, &g.rates);
    }
    if (code == APP_OK) {
        oct_error error = OCT_ERROR_INIT;
        bool written;
        const oct_status status = generate(&g, &config, &written, &error);
        if (status != OCT_OK) {
            error.status = status;
            code = app_output_error(&error);
        } else if (!written) {
            code = APP_FAILED;
        }
        if (options.stats && g.engine != NULL && (code == APP_OK || code == APP_INTERRUPTED)) {
            report(&g, &config);
        }
    }
    octe_sandbox_close(g.sandbox);
    octe_sampler_destroy(g.sampler);
    octe_engine_close(g.engine);
    octe_vocab_close(g.vocab);
    octe_model_close(g.model);
    octe_scales_free(&g.scales);
    free(g.prompt);
    return code;
}

const app_command app_command_run = {
    .name = "run",
    .summary = "answer a prompt, the text streamed",
    .operands = "-m MODEL.gguf -p PROMPT [flags]",
    .notes = "The answer alone goes to standard output, without the prompt, as valid UTF-8.",
    .flags = flags,
    .n_flags = sizeof(flags) / sizeof(flags[0]),
    .run = run,
};
