/* serve.c: owns `octavo serve`: opens model, engine and service, listens, and goes down in order. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "apps/cache_flags.h"
#include "apps/interrupt.h"
#include "apps/output.h"
#include "apps/rates.h"
#include "apps/serve/server.h"
#include "apps/thread_note.h"
#include "host/clock.h"

typedef struct serve_options {
    const char *model, *cache_file, *prefix_directory, *alias, *host, *api_key, *force, *deny, *rates;
    app_cache_flags cache;
    uint32_t port, n_threads, context_tokens, max_sequences, max_rows, chunk, max_open, max_connections, request_seconds, drain_seconds;
    uint64_t memory_bytes, swap_bytes, body_bytes, upload_bytes;
    app_texts allowed_hosts;
    const char *speculative;
    octe_draft_options draft;
    bool deterministic, no_prefix_cache;
} serve_options;

#define OPTION(field) offsetof(serve_options, field)
static const app_flag flags[] = {
    { "-m, --model", "MODEL.gguf", APP_TEXT, OPTION(model), 0, 0, true, "the model" },
    { "--host", "ADDRESS", APP_TEXT, OPTION(host), 0, 0, false, "where to listen (127.0.0.1: this machine alone)" },
    { "--port", "N", APP_COUNT, OPTION(port), 0, 65535, false, "port; 0: any free one, which standard error names (8000)" },
    { "--api-key", "KEY", APP_TEXT, OPTION(api_key), 0, 0, false, "ask for 'Authorization: Bearer KEY' on every route but / and /health (nobody is asked)" },
    { "--allowed-host", "NAME", APP_TEXTS, OPTION(allowed_hosts), 0, 0, false,
      "a name under which clients may ask when there is no key, beside addresses, localhost and this machine's own name; a port is not looked at; may be given several times" },
    { "--served-model-name, --alias", "NAME", APP_TEXT, OPTION(alias), 0, 0, false, "the model's name in requests (that in the file)" },
    APP_CACHE_FLAGS(serve_options),
    { "-t, --threads", "N", APP_COUNT, OPTION(n_threads), 0, 512, false, "threads of the model; 0: the machine's cores (0)" },
    { "--max-num-seqs", "N", APP_COUNT, OPTION(max_sequences), 1, 4096, false, "requests that run at once (16)" },
    { "-c, --ctx-size, --max-model-len", "N", APP_COUNT, OPTION(context_tokens), 0, 1u << 24, false, "tokens of prompt and answer; 0: what model and memory bear (0)" },
    { "--kv-cache-memory", "BYTES", APP_BYTES, OPTION(memory_bytes), 1, 1ull << 50, false, "memory of the pool of pages; K, M, G (1G)" },
    { "--swap-space", "BYTES", APP_BYTES, OPTION(swap_bytes), 0, 1ull << 50, false,
      "host memory for the pages of requests that must make room; without, they are computed again; K, M, G (0)" },
    { "--max-num-batched-tokens", "N", APP_COUNT, OPTION(max_rows), 1, 1u << 20, false, "tokens of a step (512)" },
    { "--chunk", "N", APP_COUNT, OPTION(chunk), 0, 1u << 20, false, "prompt tokens of one request in a step; 0: what the step takes (0)" },
    { "--deterministic", NULL, APP_SWITCH, OPTION(deterministic), 0, 0, false, "an answer's bits don't depend on what runs beside it; few requests at once are slower" },
    { "--speculative-config, -sc", "JSON", APP_TEXT, OPTION(speculative), 0, 0, false,
      "guess tokens from the text so far (prompt lookup): {\"method\": \"ngram\", \"num_speculative_tokens\": 4, \"prompt_lookup_max\": 4, \"prompt_lookup_min\": 2}; at most 15; "
      "\"disable_by_batch_size\": N: not while more than N requests run; \"num_speculative_branches\": to 4, a tree of what followed in several places (off)" },
    { "--no-prefix-cache", NULL, APP_SWITCH, OPTION(no_prefix_cache), 0, 0, false, "keep no pages of what is done" },
    { "--cache-file", "FILE", APP_TEXT, OPTION(cache_file), 0, 0, false,
      "the prefix cache between runs: read at the beginning if it is there, written when the program goes down; one that is damaged or of another model ends the program" },
    { "--slot-save-path", "DIRECTORY", APP_TEXT, OPTION(prefix_directory), 0, 0, false,
      "where POST /prefix/save and /prefix/restore keep the cached pages of a text's beginning, by names that clients give (none are kept)" },
    { "--max-open", "N", APP_COUNT, OPTION(max_open), 1, 1u << 20, false, "answers made or waiting; more get status 429 (1024)" },
    { "--max-connections", "N", APP_COUNT, OPTION(max_connections), 1, 60000, false, "connections (2000)" },
    { "--max-body", "BYTES", APP_BYTES, OPTION(body_bytes), 1, 1ull << 30, false, "longest body of a request; K, M, G (8M)" },
    { "--max-upload", "BYTES", APP_BYTES, OPTION(upload_bytes), 1, 1ull << 40, false,
      "memory for all bodies that are on their way; who comes when it is full gets status 503; at least twice --max-body; K, M, G (64M)" },
    { "--request-timeout", "SECONDS", APP_COUNT, OPTION(request_seconds), 1, 86400, false,
      "a connection that has brought no whole request in so long, or a reply's begun MiB has not been read in it, is closed (60)" },
    { "--drain-timeout", "SECONDS", APP_COUNT, OPTION(drain_seconds), 0, 86400, false, "on SIGTERM, how long answers may still take (30)" },
    { "--force-variant", "NAMES", APP_TEXT, OPTION(force), 0, 0, false, "use these kernels or fail: attn_decode.avx2,attn_extend.scalar (octavo explain lists them)" },
    { "--deny-variant", "NAMES", APP_TEXT, OPTION(deny), 0, 0, false, "never use these" },
    APP_RATES_FLAG(OPTION(rates)),
};

/* vLLM's object. Answers stay what they are without it. */
static int read_speculative(const app_command *command, serve_options *o)
{
    static const char *const names[] = { "method", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min", "disable_by_batch_size", "num_speculative_branches" };
    json_error_t error;
    json_t *const root = o->speculative != NULL ? json_loads(o->speculative, JSON_REJECT_DUPLICATES, &error) : NULL;
    if (o->speculative == NULL) {
        return APP_OK;
    }
    enum { N = sizeof(names) / sizeof(names[0]) };
    json_int_t value[N] = { 0, 0, 4, 2, 0, 1 };
    const char *key;
    json_t *item;
    const json_t *const method = json_object_get(root, names[0]);
    bool fine = json_is_object(root) && (method == NULL || (json_is_string(method) && strcmp(json_string_value(method), "ngram") == 0));
    json_object_foreach(root, key, item) {
        size_t i = 0;
        while (i < N && strcmp(names[i], key) != 0) {
            i++;
        }
        fine = fine && i < N && (i == 0 || json_is_integer(item));
        if (fine) {
            value[i] = json_integer_value(item);
        }
    }
    value[3] = json_object_get(root, names[3]) == NULL && value[2] < value[3] ? value[2] : value[3];
    fine = fine && value[1] >= 1 && value[1] <= OCTE_DRAFT_MAX && value[3] >= 1 && value[3] <= value[2] && value[2] <= 64 && value[4] >= 0 && value[4] <= UINT32_MAX && value[5] >= 1 && value[5] <= OCTE_BRANCHES_MAX;
    json_decref(root);
    o->draft = (octe_draft_options){ (uint32_t)value[1], (uint32_t)value[3], (uint32_t)value[2], (uint32_t)value[4], (uint32_t)value[5] };
    return fine ? APP_OK
                : app_arguments_complain(command, "--speculative-config must be an object with \"method\": \"ngram\", \"num_speculative_tokens\" from 1 to %d, \"prompt_lookup_max\" to 64 and no less than "
                                                  "\"prompt_lookup_min\", \"disable_by_batch_size\" and \"num_speculative_branches\" from 1 to %d",
                                         OCTE_DRAFT_MAX, OCTE_BRANCHES_MAX);
}

static void nap(void)
{
    const struct timespec time = { .tv_nsec = 50 * 1000 * 1000 };
    (void)nanosleep(&time, NULL);
}

/* What is being answered is answered, new requests are not. */
static void drain(app_server *server, app_http *http, uint32_t seconds)
{
    const double begin = oct__clock_seconds();
    server->draining = true;
    app_http_stop_listening(http);
    fprintf(stderr, "octavo serve: going down, %u requests to answer\n", server->n_exchanges);
    while (server->n_exchanges > 0 && oct__clock_seconds() - begin < seconds) {
        nap();
        app_http_tend(http);
    }
    /* Whoever still waits hears why, however long a busy machine takes to say it; then the replies need a moment to leave, and who does not read his holds nobody up. */
    octe_service_stop(server->service);
    app_reader_stop(server);
    for (const double stopped = oct__clock_seconds(); server->n_unsaid > 0 && oct__clock_seconds() - stopped < server->request_seconds;) {
        nap();
    }
    for (int i = 0; i < 20 && server->n_exchanges > 0; i++) {
        nap();
    }
}

/* A file that isn't there yet is fine. */
static bool restore(const serve_options *o, app_server *server)
{
    oct_error error = OCT_ERROR_INIT;
    uint64_t n_pages = 0;
    FILE *const there = o->cache_file != NULL ? fopen(o->cache_file, "rb") : NULL;
    if (there == NULL && (o->cache_file == NULL || errno == ENOENT)) {
        return true;
    }
    if (there != NULL) {
        (void)fclose(there);
    }
    if (octe_service_restore(server->service, o->cache_file, &n_pages, &error) != OCT_OK) {
        (void)app_output_error(&error);
        return false;
    }
    fprintf(stderr, "octavo serve: %llu pages from %s\n", (unsigned long long)n_pages, o->cache_file);
    return true;
}

static int save(const serve_options *o, app_server *server)
{
    oct_error error = OCT_ERROR_INIT;
    uint64_t n_pages = 0;
    octe_service_stop(server->service);
    return o->cache_file == NULL || octe_service_save(server->service, o->cache_file, &n_pages, &error) == OCT_OK ? APP_OK : app_output_error(&error);
}

static int serve(const serve_options *o, app_server *server)
{
    uint16_t port = (uint16_t)o->port;
    app_http *http;
    if (!restore(o, server) || !app_http_start(server, o->host, &port, o->max_connections, &http)) {
        return APP_FAILED;
    }
    const octe_engine_options *const e = octe_engine_options_get(server->engine);
    const bool brackets = strchr(o->host, ':') != NULL;   /* IPv6 */
    fprintf(stderr, "octavo serve: %s on http://%s%s%s:%u, %u sequences of up to %u tokens, %lld tokens in %llu MiB of pages\n", server->model_name, brackets ? "[" : "", o->host, brackets ? "]" : "", port, o->max_sequences,
            e->max_context_tokens, (long long)e->pool_tokens, (unsigned long long)(e->pool_bytes >> 20));
    fflush(stderr);
    while (!app_interrupted()) {
        nap();
        app_http_tend(http);
    }
    drain(server, http, o->drain_seconds);
    app_http_stop(http);
    return save(o, server);
}

/* In a process of its own, which is made while this one has one thread. Standard error says what is missing without. */
static void open_sandbox(app_server *server)
{
    oct_error error = OCT_ERROR_INIT;
    if (octe_sandbox_open(&server->sandbox, &error) != OCT_OK) {
        fprintf(stderr, "octavo serve: %s; chat templates are taken for those that libllama knows by their looks, and JSON Schemas are refused\n", error.text);
    }
}

static void check_chat(app_server *server)
{
    oct_error error = OCT_ERROR_INIT;
    if (server->sandbox == NULL || !octe_vocab_has_chat_template(server->vocab)) {
        return;
    }
    server->renders_chat = octe_sandbox_check_chat(server->sandbox, server->vocab, &error) == OCT_OK;
    if (!server->renders_chat) {
        fprintf(stderr, "octavo serve: %s; it is taken for one that libllama knows by its looks, if there is such a one\n", error.text);
    }
}

static oct_status open_engine(const serve_options *o, const octe_kv_config *config, const octe_model *model, const app_rates *rates, octe_engine **engine, oct_error *error)
{
    octe_engine_options options;
    octe_engine_options_init(&options);
    options.n_threads = o->n_threads;
    options.max_context_tokens = o->context_tokens;
    const uint32_t most_samples = o->max_sequences * (1 + o->draft.n_tokens);
    options.max_sequences = o->max_sequences;
    /* Deterministic, a chunk of a prompt always fits beside a token of everybody. */
    options.max_step_rows = o->deterministic || o->max_rows < o->max_sequences ? o->max_rows + o->max_sequences : o->max_rows;
    options.max_step_logits = most_samples < options.max_step_rows ? most_samples : options.max_step_rows;
    /* Deterministic, each guess is a part of a step by itself. */
    options.max_step_parts = o->deterministic ? options.max_step_logits : o->max_sequences;
    options.token_masks = o->draft.n_branches > 1 && !o->deterministic;
    options.pool_bytes = o->memory_bytes;
    options.kv = *config;
    options.deterministic = o->deterministic;
    options.force_variant = o->force;
    options.deny_variant = o->deny;
    options.rates = rates->pointer;
    return octe_engine_open(model, &options, engine, error);
}

static int run(const app_command *command, int argc, char **argv)
{
    serve_options o = { .host = "127.0.0.1", .port = 8000, .max_sequences = 16, .memory_bytes = 1u << 30, .max_rows = 512, .max_open = 1024, .max_connections = 2000,
                        .body_bytes = 8u << 20, .upload_bytes = 64u << 20, .request_seconds = 60, .drain_seconds = 30 };
    int code;
    if (!app_arguments_parse(command, argc, argv, &o, &code)) {
        return code;
    }
    octe_kv_config config;
    octe_scales scales;
    app_rates rates;
    code = app_cache_config(command, &o.cache, &config, &scales);
    if (code == APP_OK) {
        code = read_speculative(command, &o);
    }
    for (uint32_t i = 0; code == APP_OK && i < o.allowed_hosts.n; i++) {
        code = app_guard_can_name(o.allowed_hosts.item[i]) ? APP_OK : app_arguments_complain(command, "--allowed-host must be a name, not '%s'", o.allowed_hosts.item[i]);
    }
    if (code == APP_OK) {
        code = app_rates_load(o.rates, &rates);
    }
    if (code != APP_OK) {
        octe_scales_free(&scales);
        return code;
    }
    app_thread_note(o.n_threads);
    (void)umask(S_IRWXG | S_IRWXO);   /* what is written has everybody's prompts in it */
    const int prefix_folder = o.prefix_directory != NULL ? open(o.prefix_directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (o.prefix_directory != NULL && prefix_folder < 0) {
        octe_scales_free(&scales);
        return app_arguments_complain(command, "--slot-save-path is '%.200s'; must be a directory", o.prefix_directory);
    }
    struct sigaction ignore = { .sa_handler = SIG_IGN };
    (void)sigaction(SIGPIPE, &ignore, NULL);
    octe_model *model = NULL;
    octe_vocab *vocab = NULL;
    oct_error error = OCT_ERROR_INIT;
    app_server server = { .api_key = o.api_key, .host = o.host, .prefix_folder = prefix_folder, .allowed_hosts = o.allowed_hosts, .max_body_bytes = o.body_bytes,
                          .max_upload_bytes = o.upload_bytes < 2 * o.body_bytes ? 2 * o.body_bytes : o.upload_bytes, .request_seconds = o.request_seconds, .begun = oct__clock_seconds() };
    open_sandbox(&server);
    oct_status status = octe_model_open(o.model, NULL, &model, &error);
    if (status == OCT_OK) {
        status = octe_vocab_open(o.model, &vocab, &error);
    }
    if (status == OCT_OK) {
        status = open_engine(&o, &config, model, &rates, &server.engine, &error);
    }
    if (status == OCT_OK) {
        const octe_service_options options = { .runner = { .max_running = o.max_sequences, .draft = o.draft, .chunk_tokens = o.chunk, .no_prefix_cache = o.no_prefix_cache, .swap_bytes = o.swap_bytes }, .max_open = o.max_open };
        status = octe_service_open(server.engine, vocab, &options, &server.service, &error);
    }
    if (status == OCT_OK) {
        server.vocab = vocab;
        check_chat(&server);
        server.draft_tokens = o.draft.n_tokens;
        server.model_name = o.alias != NULL ? o.alias : octe_model_info_get(model)->name;
        code = serve(&o, &server);
    } else {
        error.status = status;
        code = app_output_error(&error);
    }
    octe_service_destroy(server.service);
    octe_sandbox_close(server.sandbox);
    octe_engine_close(server.engine);
    octe_vocab_close(vocab);
    octe_model_close(model);
    octe_scales_free(&scales);
    if (prefix_folder >= 0) {
        (void)close(prefix_folder);
    }
    return code;
}

const app_command app_command_serve = {
    .name = "serve",
    .summary = "answer many at once over HTTP, as OpenAI's API",
    .operands = "-m MODEL.gguf [flags]",
    .notes = "Routes: /v1/chat/completions, /v1/completions, /v1/models, /tokenize, /detokenize, /health, /metrics, /explain; all of them: /openapi.json. SIGTERM or Ctrl-C: what is being\n"
             "answered is answered, then the program ends.",
    .flags = flags,
    .n_flags = sizeof(flags) / sizeof(flags[0]),
    .run = run,
};
