/* metrics.c: owns /metrics: what Prometheus reads, under vLLM's names and with its labels. */
#include <stdio.h>
#include <stdlib.h>

#include "apps/serve/server.h"
#include "host/text.h"

/* Each sample has vLLM's labels, here ready as text, and may have more. Of a name that anybody may have given backslash, quote and end of line are to be marked. */
typedef struct metrics {
    oct__text *text;
    char labels[600];
} metrics;

static void write_labels(metrics *m, const char *model_name)
{
    char name[512];
    size_t n = 0;
    for (const char *c = model_name; *c != '\0' && n < sizeof(name) - 3; c++) {
        if (*c == '\\' || *c == '"' || *c == '\n') {
            name[n++] = '\\';
        }
        name[n++] = *c == '\n' ? 'n' : *c;
    }
    name[n] = '\0';
    (void)snprintf(m->labels, sizeof(m->labels), "engine=\"0\",model_name=\"%s\"", name);
}

static void add_head(const metrics *m, const char *name, const char *type, const char *help) { oct__text_add(m->text, "# HELP octavo:%s %s\n# TYPE octavo:%s %s\n", name, help, name, type); }

/* label NULL: none but those that all have. */
static void add_sample(const metrics *m, const char *name, const char *label, const char *is, double value)
{
    oct__text_add(m->text, "octavo:%s{%s", name, m->labels);
    if (label != NULL) {
        oct__text_add(m->text, ",%s=\"%s\"", label, is);
    }
    oct__text_add(m->text, "} ");
    oct__text_add_number(m->text, value, 15);
    oct__text_add(m->text, "\n");
}

static void add_metric(const metrics *m, const char *name, const char *type, const char *help, double value)
{
    add_head(m, name, type, help);
    add_sample(m, name, NULL, NULL, value);
}

static void add_histogram(const metrics *m, const char *name, const char *help, const double *bounds, const octe_histogram *h)
{
    uint64_t n = 0;
    char part[64], bound[32];
    add_head(m, name, "histogram", help);
    (void)snprintf(part, sizeof(part), "%s_bucket", name);
    for (uint32_t i = 0; i < OCTE_BUCKETS; i++) {
        n += h->n[i];
        oct__text number;
        oct__text_init(&number, bound, sizeof(bound));
        if (i < OCTE_BUCKETS - 1) {
            oct__text_add_number(&number, bounds[i], 6);
        } else {
            oct__text_add(&number, "+Inf");
        }
        add_sample(m, part, "le", bound, (double)n);
    }
    (void)snprintf(part, sizeof(part), "%s_sum", name);
    add_sample(m, part, NULL, NULL, h->sum);
    (void)snprintf(part, sizeof(part), "%s_count", name);
    add_sample(m, part, NULL, NULL, (double)n);
}

static void add_pages(const metrics *m, const octe_scheduler_stats *c)
{
    static const char *const pool_name[] = { "full", "window" };
    add_head(m, "pages", "gauge", "Pages of a pool by what they are.");
    for (int g = 0; g < 2 && c->pool[g].n > 0; g++) {
        const struct { const char *state; int64_t n; } states[] = { { "free", c->pool[g].n_free }, { "cached", c->pool[g].n_cached }, { "used", c->pool[g].n_used }, { "all", c->pool[g].n } };
        for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++) {
            char both[48];
            (void)snprintf(both, sizeof(both), "%s\",state=\"%s", pool_name[g], states[i].state);
            add_sample(m, "pages", "pool", both, (double)states[i].n);
        }
    }
    add_head(m, "prefix_cache_evicted_pages_total", "counter", "Cached pages that made room.");
    for (int g = 0; g < 2 && c->pool[g].n > 0; g++) {
        add_sample(m, "prefix_cache_evicted_pages_total", "pool", pool_name[g], (double)c->pool[g].n_evicted);
    }
}

static void write_metrics(const app_server *server, const octe_service_stats *s, oct__text *to)
{
    metrics with_labels = { .text = to }, *const text = &with_labels;
    write_labels(text, server->model_name);
    const octe_scheduler_stats *const c = &s->scheduler;
    const double used = (double)c->pool[0].n_used / (double)(c->pool[0].n > 0 ? c->pool[0].n : 1);
    /* Those that the thread between two steps has not seen yet wait, too. */
    const uint32_t unseen = s->n_open > c->n_running ? s->n_open - c->n_running : 0, waiting = unseen > c->n_waiting ? unseen : c->n_waiting;
    add_metric(text, "num_requests_running", "gauge", "Requests that hold pages.", c->n_running);
    add_metric(text, "num_requests_waiting", "gauge", "Requests that wait for pages.", waiting);
    add_metric(text, "kv_cache_usage_perc", "gauge", "Pages in use, of 1.", used);
    add_metric(text, "num_preemptions_total", "counter", "Requests that gave their pages back.", (double)c->n_preempted);
    add_metric(text, "swapped_out_total", "counter", "Of these, requests whose pages went to host memory.", (double)c->n_swapped_out);
    add_metric(text, "prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.", (double)c->n_prompt_tokens);
    add_metric(text, "prefix_cache_hits_total", "counter", "Prompt tokens found there.", (double)c->n_cached_tokens);
    add_metric(text, "computed_tokens_total", "counter", "Tokens that went through the model.", (double)c->n_rows);
    add_metric(text, "prompt_tokens_total", "counter", "Tokens of prompts, computed or found in the cache, of answers with a first token.", (double)s->n_prompt);
    add_metric(text, "generation_tokens_total", "counter", "Tokens sampled.", (double)s->n_sampled);
    add_metric(text, "steps_total", "counter", "Steps of the model.", (double)c->n_steps);
    add_metric(text, "failed_steps_total", "counter", "Steps that failed.", (double)s->n_failed_steps);
    add_metric(text, "step_seconds_total", "counter", "Seconds of steps, and between them while requests are there.", s->busy_seconds);
    add_metric(text, "model_seconds_total", "counter", "Of these, seconds of the model.", s->seconds.model);
    add_metric(text, "sampling_seconds_total", "counter", "Of these, seconds of sampling and of what answers are told.", s->seconds.sampling);
    add_metric(text, "http_requests_total", "counter", "Requests of any route.", (double)server->n_requests);
    add_metric(text, "http_refused_total", "counter", "Requests answered by an error.", (double)server->n_refused);
    add_histogram(text, "time_to_first_token_seconds", "From a request to its first token.", octe_bucket_seconds, &s->first_token);
    add_histogram(text, "inter_token_latency_seconds", "From a token to the next; tokens of one step share its time.", octe_bucket_seconds, &s->between_tokens);
    add_histogram(text, "e2e_request_latency_seconds", "From a request to its last token.", octe_bucket_seconds, &s->whole);
    add_histogram(text, "request_queue_time_seconds", "From a request to the first step that has it.", octe_bucket_seconds, &s->queue);
    add_histogram(text, "request_inference_time_seconds", "From there to its last token.", octe_bucket_seconds, &s->inference);
    add_histogram(text, "request_prefill_time_seconds", "From there to its first token.", octe_bucket_seconds, &s->prefill);
    add_histogram(text, "request_decode_time_seconds", "From its first token to its last.", octe_bucket_seconds, &s->decode);
    add_histogram(text, "request_prompt_tokens", "Tokens of the prompt, of answers that ended.", octe_bucket_tokens, &s->prompt_tokens);
    add_histogram(text, "request_generation_tokens", "Tokens of the answer, of answers that ended.", octe_bucket_tokens, &s->answer_tokens);
    if (server->draft_tokens > 0) {
        add_metric(text, "spec_decode_num_drafts_total", "counter", "Steps of an answer with guesses.", (double)c->n_drafts);
        add_metric(text, "spec_decode_num_draft_tokens_total", "counter", "Tokens guessed.", (double)c->n_draft_tokens);
        add_metric(text, "spec_decode_num_accepted_tokens_total", "counter", "Guesses that came true.", (double)c->n_accepted_tokens);
        add_head(text, "spec_decode_num_accepted_tokens_per_pos_total", "counter", "Guesses that came true, by place.");
        for (uint32_t i = 0; i < server->draft_tokens; i++) {
            char place[16];
            (void)snprintf(place, sizeof(place), "%u", i);
            add_sample(text, "spec_decode_num_accepted_tokens_per_pos_total", "position", place, (double)c->n_accepted_at[i]);
        }
    }
    add_head(text, "request_success_total", "counter", "Answers that ended.");
    add_sample(text, "request_success_total", "finished_reason", "stop", (double)s->n_ended[OCTE_END_STOP]);
    add_sample(text, "request_success_total", "finished_reason", "length", (double)s->n_ended[OCTE_END_LENGTH]);
    add_sample(text, "request_success_total", "finished_reason", "abort", (double)s->n_ended[OCTE_END_FAILED]);
    add_pages(text, c);
}

char *app_reply_metrics(const app_server *server)
{
    octe_service_stats stats;
    octe_service_stats_get(server->service, &stats);
    oct__text text;
    oct__text_init(&text, NULL, 0);
    write_metrics(server, &stats, &text);
    /* Counters of this server may grow between the two passes, by a digit each at most. */
    const size_t room = text.length + 256;
    char *const bytes = malloc(room);
    if (bytes != NULL) {
        oct__text_init(&text, bytes, room);
        write_metrics(server, &stats, &text);
    }
    return bytes;
}
