/* serve.c: owns `octavo bench serve`: the load on a server, and what its users would have felt, in vLLM's words and units. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "apps/bench/bench.h"
#include "apps/bench/client.h"
#include "apps/bench/serve_report.h"
#include "apps/interrupt.h"
#include "apps/output.h"

typedef struct serve_bench_options {
    const char *base_url, *host, *endpoint, *backend, *model, *api_key, *dataset, *request_rate, *percentiles, *output, *form;
    app_texts goodput;
    uint32_t port, n_prompts, max_concurrency, seed, input_tokens, output_tokens, prefix_tokens, n_prefixes, vocab, timeout_seconds, n_warmups;
    float range_ratio;
    bool ignore_eos, save_detailed;
} serve_bench_options;

#define OPTION(field) offsetof(serve_bench_options, field)
static const app_flag flags[] = {
    { "--base-url", "URL", APP_TEXT, OPTION(base_url), 0, 0, false, "the server (http://HOST:PORT of the next two)" },
    { "--host", "NAME", APP_TEXT, OPTION(host), 0, 0, false, "its machine (127.0.0.1)" },
    { "--port", "N", APP_COUNT, OPTION(port), 1, 65535, false, "its port (8000)" },
    { "--endpoint", "PATH", APP_TEXT, OPTION(endpoint), 0, 0, false, "the route (that of --backend)" },
    { "--backend", "openai|openai-chat", APP_CHOICE, OPTION(backend), 0, 0, false, "completions of lists of tokens, or chats of as many short words (openai)" },
    { "--model", "NAME", APP_TEXT, OPTION(model), 0, 0, false, "model to ask for (the first that /v1/models names)" },
    { "--api-key", "KEY", APP_TEXT, OPTION(api_key), 0, 0, false, "sent as 'Authorization: Bearer KEY'" },
    { "--dataset-name", "random|prefix_repetition", APP_CHOICE, OPTION(dataset), 0, 0, false,
      "random: one prefix for all, then tokens of each's own; prefix_repetition: as many prefixes as --prefix-repetition-num-prefixes says (random)" },
    { "--num-prompts", "N", APP_COUNT, OPTION(n_prompts), 1, 1u << 20, false, "requests (1000)" },
    { "--num-warmups", "N", APP_COUNT, OPTION(n_warmups), 0, 1000, false, "requests before them that are not counted (0)" },
    { "--random-input-len, --prefix-repetition-suffix-len", "N", APP_COUNT, OPTION(input_tokens), 1, 1u << 20, false, "a prompt's own tokens (1024)" },
    { "--random-output-len, --prefix-repetition-output-len", "N", APP_COUNT, OPTION(output_tokens), 1, 1u << 20, false, "tokens of an answer at most (128)" },
    { "--random-prefix-len, --prefix-repetition-prefix-len", "N", APP_COUNT, OPTION(prefix_tokens), 0, 1u << 20, false, "tokens that prompts have in common before their own (0)" },
    { "--prefix-repetition-num-prefixes", "N", APP_COUNT, OPTION(n_prefixes), 1, 1u << 16, false, "different prefixes (10)" },
    { "--random-range-ratio", "R", APP_NUMBER, OPTION(range_ratio), 0, 1, false, "lengths are drawn from (1 - R) to (1 + R) times what was asked for (0)" },
    { "--random-vocab", "N", APP_COUNT, OPTION(vocab), 20, 1u << 22, false, "tokens are drawn from 10 to N - 1 (10000)" },
    { "--request-rate", "R", APP_TEXT, OPTION(request_rate), 0, 0, false, "requests a second, at random (Poisson); inf: all at once (inf)" },
    { "--max-concurrency", "N", APP_COUNT, OPTION(max_concurrency), 1, 1u << 16, false, "requests under way at most (any number)" },
    { "--ignore-eos", NULL, APP_SWITCH, OPTION(ignore_eos), 0, 0, false, "answers of full length" },
    { "--seed", "N", APP_COUNT, OPTION(seed), 0, 4294967295.0, false, "of prompts, lengths and times (0)" },
    { "--metric-percentiles", "LIST", APP_TEXT, OPTION(percentiles), 0, 0, false, "percentiles to tell (50,99)" },
    { "--goodput", "METRIC:MS", APP_TEXTS, OPTION(goodput), 0, 0, false, "a request is good that keeps all of these: ttft:200, tpot:50, e2el:5000; may be given several times" },
    { "--request-timeout", "SECONDS", APP_COUNT, OPTION(timeout_seconds), 1, 86400, false, "a request that takes longer has failed (21600)" },
    { "--save-detailed", NULL, APP_SWITCH, OPTION(save_detailed), 0, 0, false, "JSON has each request's numbers, too" },
    { "-o, --output-format", "text|json", APP_CHOICE, OPTION(form), 0, 0, false, "form of the report (text)" },
    { "--result-filename, --output", "FILE", APP_TEXT, OPTION(output), 0, 0, false, "write it to FILE, whole or not at all, instead of standard output" },
};

/* ---- the load ---------------------------------------------------------------------------------------------------------- */

typedef struct dice { uint64_t state; } dice;

static double chance(dice *d)
{
    d->state = d->state * 6364136223846793005u + 1442695040888963407u;
    return (double)((d->state >> 11) + 1) / 9007199254740993.0;   /* 0 < x < 1 */
}

static uint32_t between(dice *d, uint32_t least, uint32_t most) { return least + (uint32_t)(chance(d) * ((double)most - least + 1)); }

static uint32_t length_near(dice *d, uint32_t n, float ratio)
{
    const uint32_t least = (uint32_t)((double)n * (1 - (double)ratio)), most = (uint32_t)((double)n * (1 + (double)ratio));
    return between(d, least > 0 ? least : 1, most > 0 ? most : 1);
}

static void add_tokens(json_t *tokens, dice *d, uint32_t n, uint32_t vocab)
{
    for (uint32_t i = 0; i < n; i++) {
        (void)json_array_append_new(tokens, json_integer(between(d, 10, vocab - 1)));
    }
}

/* A chat takes text: words that most vocabularies have as one token each. */
static json_t *words_of(const json_t *tokens)
{
    static const char *const words[] = { "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state", "family", "student", "group", "country",
                                         "problem", "hand", "part", "place", "case", "week", "company", "system", "program", "question", "work", "number", "night", "point", "home" };
    app_text text = { 0 };
    for (size_t i = 0; i < json_array_size(tokens); i++) {
        app_text_add(&text, "%s%s", i > 0 ? " " : "", words[json_integer_value(json_array_get(tokens, i)) % 32]);
    }
    json_t *const whole = json_string(text.bytes != NULL ? text.bytes : "");
    app_text_free(&text);
    return json_pack("[{s:s, s:o}]", "role", "user", "content", whole);
}

static bool make_request(const serve_bench_options *o, const char *model, uint32_t i, dice *d, bench_request *r)
{
    const bool chat = strcmp(o->backend, "openai-chat") == 0, repeats = strcmp(o->dataset, "prefix_repetition") == 0;
    json_t *const tokens = json_array();
    dice prefix = { o->seed * 2654435761u + (repeats ? i % o->n_prefixes : 0) + 77 };
    (void)chance(&prefix);
    add_tokens(tokens, &prefix, o->prefix_tokens, o->vocab);
    add_tokens(tokens, d, length_near(d, o->input_tokens, o->range_ratio), o->vocab);
    r->n_input = (uint32_t)json_array_size(tokens);
    const uint32_t n_output = length_near(d, o->output_tokens, o->range_ratio);
    json_t *const body = json_pack("{s:s, s:o, s:I, s:f, s:b, s:{s:b}}", "model", model, chat ? "messages" : "prompt", chat ? words_of(tokens) : json_incref(tokens),
                                   chat ? "max_completion_tokens" : "max_tokens", (json_int_t)n_output, "temperature", 0.0, "stream", 1, "stream_options", "include_usage", 1);
    if (o->ignore_eos) {
        (void)json_object_set_new(body, "ignore_eos", json_true());
    }
    r->body = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    json_decref(tokens);
    return r->body != NULL;
}

/* NULL: no memory. */
static bench_request *make_load(const serve_bench_options *o, const char *model, uint32_t n, uint64_t seed, double rate)
{
    bench_request *const requests = calloc(n, sizeof(*requests));
    dice d = { seed }, times = { ~seed };   /* the same prompts at any rate */
    double at = 0;
    (void)chance(&d);
    (void)chance(&times);
    for (uint32_t i = 0; requests != NULL && i < n; i++) {
        requests[i].at = at;
        at += isfinite(rate) ? -log(chance(&times)) / rate : 0;
        if (!make_request(o, model, i, &d, &requests[i])) {
            bench_client_free(requests, n);
            return NULL;
        }
    }
    return requests;
}

/* ---- the command -------------------------------------------------------------------------------------------------------------- */

static int read_options(const app_command *command, const serve_bench_options *o, double *rate, bench_serve_report *report)
{
    char *end;
    *rate = strcmp(o->request_rate, "inf") == 0 ? INFINITY : strtod(o->request_rate, &end);
    if (!(*rate > 0) || (isfinite(*rate) && *end != '\0')) {
        return app_arguments_complain(command, "--request-rate is '%.60s'; must be a positive number or inf", o->request_rate);
    }
    if (!bench_serve_read_percentiles(o->percentiles, report)) {
        return app_arguments_complain(command, "--metric-percentiles is '%.60s'; must be numbers from 0 to 100, at most %d, with commas between", o->percentiles, BENCH_PERCENTILES_MAX);
    }
    for (uint32_t i = 0; i < o->goodput.n; i++) {
        if (!bench_serve_read_goal(o->goodput.item[i], report)) {
            return app_arguments_complain(command, "--goodput is '%.60s'; must be ttft, tpot or e2el, a colon and milliseconds", o->goodput.item[i]);
        }
    }
    return APP_OK;
}

static int measure(const serve_bench_options *o, bench_client *client, double rate, bench_serve_report *report)
{
    if (o->n_warmups > 0) {
        bench_request *const before = make_load(o, report->model, o->n_warmups, (uint64_t)o->seed + 0x5EED, INFINITY);
        double seconds;
        uint32_t most;
        const bool fine = before != NULL && bench_client_run(client, before, o->n_warmups, &seconds, &most);
        bench_client_free(before, before != NULL ? o->n_warmups : 0);
        if (!fine) {
            return app_interrupted() ? APP_INTERRUPTED : app_output_fail("the requests before the measurement could not be sent");
        }
    }
    report->requests = make_load(o, report->model, o->n_prompts, o->seed, rate);
    report->n = report->requests != NULL ? o->n_prompts : 0;
    if (report->requests == NULL || !bench_client_run(client, report->requests, report->n, &report->seconds, &report->most_at_once)) {
        return app_interrupted() ? APP_INTERRUPTED : app_output_fail("the requests could not be sent");
    }
    return APP_OK;
}

static int run(const app_command *command, int argc, char **argv)
{
    serve_bench_options o = { .host = "127.0.0.1", .port = 8000, .backend = "openai", .dataset = "random", .request_rate = "inf", .percentiles = "50,99", .form = "text", .n_prompts = 1000,
                              .input_tokens = 1024, .output_tokens = 128, .n_prefixes = 10, .vocab = 10000, .timeout_seconds = 21600 };
    int code;
    double rate;
    bench_serve_report report = { 0 };
    if (!app_arguments_parse(command, argc, argv, &o, &code)) {
        return code;
    }
    code = read_options(command, &o, &rate, &report);
    if (code != APP_OK) {
        return code;
    }
    char base[600], url[800];
    const char *const endpoint = o.endpoint != NULL ? o.endpoint : strcmp(o.backend, "openai-chat") == 0 ? "/v1/chat/completions" : "/v1/completions";
    (void)snprintf(base, sizeof(base), o.base_url != NULL ? "%.500s" : "http://%.400s:%u", o.base_url != NULL ? o.base_url : o.host, o.port);
    (void)snprintf(url, sizeof(url), "%s/v1/models", base);
    bench_client client = { .url = url, .api_key = o.api_key, .max_concurrency = o.max_concurrency, .timeout_seconds = o.timeout_seconds, .where = command->name };
    char *const found = o.model == NULL ? bench_client_model(&client) : NULL;
    if (o.model == NULL && found == NULL) {
        return APP_FAILED;
    }
    (void)snprintf(url, sizeof(url), "%s%.180s", base, endpoint);
    report.model = o.model != NULL ? o.model : found;
    report.backend = o.backend;
    report.request_rate = rate;
    report.max_concurrency = o.max_concurrency;
    report.when = (int64_t)time(NULL);
    report.detailed = o.save_detailed;
    app_interrupt_install();
    code = measure(&o, &client, rate, &report);
    if (code == APP_OK) {
        app_text text = { 0 };
        bench_serve_write(&report, strcmp(o.form, "json") == 0, &text);
        code = app_output_report(&text, o.output);
        app_text_free(&text);
        for (uint32_t i = 0; i < report.n && code == APP_OK; i++) {
            code = report.requests[i].ok ? code : app_output_fail("a request has failed: %s", report.requests[i].error);
        }
    }
    bench_client_free(report.requests, report.n);
    free(found);
    return code;
}

const app_command app_command_bench_serve = {
    .name = "bench serve",
    .summary = "the load of many users on an OpenAI-compatible server: throughput and latencies",
    .operands = "[--base-url URL] [flags]",
    .notes = "Flags and JSON keys are those of `vllm bench serve`. Times run from sending a request: ttft to the first piece of text, itl from piece to piece, tpot per token after the first, "
             "e2el to the last. A request that fails makes the exit status 1, after the report.",
    .flags = flags,
    .n_flags = sizeof(flags) / sizeof(flags[0]),
    .run = run,
};
