/* serve_report.c: see serve_report.h. */
#include "apps/bench/serve_report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const metric_names[] = { "ttft", "tpot", "itl", "e2el" };
static const char *const metric_titles[] = { "Time to First Token", "Time per Output Token (excl. 1st token)", "Inter-token Latency", "End-to-end Latency" };

bool bench_serve_read_percentiles(const char *text, bench_serve_report *r)
{
    r->n_percentiles = 0;
    for (char *end; r->n_percentiles < BENCH_PERCENTILES_MAX; text = end + 1) {
        const double p = strtod(text, &end);
        if (end == text || !(p >= 0 && p <= 100) || (*end != ',' && *end != '\0')) {
            return false;
        }
        r->percentiles[r->n_percentiles++] = p;
        if (*end == '\0') {
            return true;
        }
    }
    return false;
}

bool bench_serve_read_goal(const char *text, bench_serve_report *r)
{
    for (int m = 0; m < BENCH_METRICS; m++) {
        const size_t n = strlen(metric_names[m]);
        if (m != BENCH_ITL && strncmp(text, metric_names[m], n) == 0 && text[n] == ':') {
            char *end;
            r->goal_ms[m] = strtod(text + n + 1, &end);
            r->has_goals = true;
            return *end == '\0' && end > text + n + 1 && r->goal_ms[m] > 0;
        }
    }
    return false;
}

double bench_percentile(const double *values, size_t n, double p)
{
    const double at = p / 100 * (double)(n - 1);
    const size_t i = (size_t)at;
    return i + 1 < n ? values[i] + (at - (double)i) * (values[i + 1] - values[i]) : values[n - 1];
}

/* ---- sums ------------------------------------------------------------------------------------------------------------- */

/* Milliseconds; false: the request has no such number. */
static bool metric_of(const bench_request *r, int metric, double *ms)
{
    switch (metric) {
    case BENCH_TTFT:
        *ms = (r->first - r->begun) * 1e3;
        return r->n_pieces > 0;
    case BENCH_TPOT:
        *ms = r->n_output > 1 ? (r->last - r->first) * 1e3 / (r->n_output - 1) : 0;
        return r->n_output > 1 && r->n_pieces > 0;
    default:
        *ms = (r->last - r->begun) * 1e3;
        return r->n_pieces > 0;
    }
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* All values of a metric in milliseconds, ascending; free() them. */
static double *values_of(const bench_serve_report *r, int metric, size_t *n)
{
    size_t room = 1;
    for (uint32_t i = 0; i < r->n; i++) {
        room += metric == BENCH_ITL ? r->requests[i].n_gaps : 1;
    }
    double *const values = malloc(room * sizeof(*values));
    *n = 0;
    for (uint32_t i = 0; i < r->n && values != NULL; i++) {
        const bench_request *q = &r->requests[i];
        for (uint32_t k = 0; q->ok && metric == BENCH_ITL && k < q->n_gaps; k++) {
            values[(*n)++] = q->gaps[k] * 1e3;
        }
        *n += q->ok && metric != BENCH_ITL && metric_of(q, metric, &values[*n]);
    }
    if (values != NULL) {
        qsort(values, *n, sizeof(*values), compare);
    }
    return values;
}

typedef struct sums {
    uint32_t n_completed, n_good;
    double n_input, n_output, n_cached;
} sums;

static sums sum_up(const bench_serve_report *r)
{
    sums s = { 0 };
    for (uint32_t i = 0; i < r->n; i++) {
        const bench_request *q = &r->requests[i];
        bool good = q->ok;
        for (int m = 0; m < BENCH_METRICS; m++) {
            double ms;
            good = good && (r->goal_ms[m] == 0 || !metric_of(q, m, &ms) || ms <= r->goal_ms[m]);
        }
        s.n_completed += q->ok;
        s.n_good += good;
        s.n_input += q->ok ? q->n_input : 0;
        s.n_output += q->ok ? q->n_output : 0;
        s.n_cached += q->ok ? q->n_cached : 0;
    }
    return s;
}

/* ---- writing ------------------------------------------------------------------------------------------------------------- */

static void add_key(app_text *t, const char *key, double value)
{
    app_text_add(t, ", \"%s\": ", key);
    app_text_add_number(t, value, 10);
}

static void add_metric_json(const bench_serve_report *r, int metric, app_text *t)
{
    size_t n;
    double *const values = values_of(r, metric, &n), mean = 0, square = 0;
    char key[48];
    for (size_t i = 0; i < n; i++) {
        mean += values[i] / (double)n;
    }
    for (size_t i = 0; i < n; i++) {
        square += (values[i] - mean) * (values[i] - mean) / (double)n;
    }
    const char *const name = metric_names[metric];
    (void)snprintf(key, sizeof(key), "mean_%s_ms", name);
    add_key(t, key, mean);
    (void)snprintf(key, sizeof(key), "median_%s_ms", name);
    add_key(t, key, n > 0 ? bench_percentile(values, n, 50) : 0);
    (void)snprintf(key, sizeof(key), "std_%s_ms", name);
    add_key(t, key, sqrt(square));
    for (uint32_t i = 0; i < r->n_percentiles; i++) {
        (void)snprintf(key, sizeof(key), "p%g_%s_ms", r->percentiles[i], name);
        add_key(t, key, n > 0 ? bench_percentile(values, n, r->percentiles[i]) : 0);
    }
    free(values);
}

static void add_detailed(const bench_serve_report *r, app_text *t)
{
    static const char *const keys[] = { "input_lens", "output_lens", "ttfts", "itls", "errors" };
    for (int k = 0; k < 5; k++) {
        app_text_add(t, ", \"%s\": [", keys[k]);
        for (uint32_t i = 0; i < r->n; i++) {
            const bench_request *q = &r->requests[i];
            app_text_add(t, "%s", i > 0 ? ", " : "");
            if (k < 2) {
                app_text_add(t, "%u", k == 0 ? q->n_input : q->n_output);
            } else if (k == 2) {
                app_text_add_number(t, q->n_pieces > 0 ? q->first - q->begun : 0, 9);
            } else if (k == 3) {
                app_text_add(t, "[");
                for (uint32_t g = 0; g < q->n_gaps; g++) {
                    app_text_add(t, "%s", g > 0 ? ", " : "");
                    app_text_add_number(t, q->gaps[g], 9);
                }
                app_text_add(t, "]");
            } else {
                app_text_add_json(t, q->error);
            }
        }
        app_text_add(t, "]");
    }
}

static void write_json(const bench_serve_report *r, const sums *s, app_text *t)
{
    char when[32] = "";
    struct tm utc;
    const time_t seconds = (time_t)r->when;
    if (gmtime_r(&seconds, &utc) != NULL) {
        (void)strftime(when, sizeof(when), "%Y%m%d-%H%M%S", &utc);
    }
    app_text_add(t, "{\"date\": \"%s\", \"backend\": \"%s\", \"endpoint_type\": \"%s\", \"model_id\": ", when, r->backend, r->backend);
    app_text_add_json(t, r->model);
    app_text_add(t, ", \"num_prompts\": %u, \"request_rate\": ", r->n);
    if (isfinite(r->request_rate)) {
        app_text_add_number(t, r->request_rate, 9);
    } else {
        app_text_add(t, "\"inf\"");
    }
    app_text_add(t, ", \"burstiness\": 1.0, \"max_concurrency\": ");
    app_text_add(t, r->max_concurrency > 0 ? "%u" : "null", r->max_concurrency);
    add_key(t, "duration", r->seconds);
    add_key(t, "completed", s->n_completed);
    add_key(t, "failed", r->n - s->n_completed);
    add_key(t, "total_input_tokens", s->n_input);
    add_key(t, "total_output_tokens", s->n_output);
    add_key(t, "total_cached_tokens", s->n_cached);
    add_key(t, "request_throughput", s->n_completed / r->seconds);
    if (r->has_goals) {
        add_key(t, "request_goodput", s->n_good / r->seconds);
    }
    add_key(t, "output_throughput", s->n_output / r->seconds);
    add_key(t, "total_token_throughput", (s->n_input + s->n_output) / r->seconds);
    add_key(t, "max_concurrent_requests", r->most_at_once);
    for (int m = 0; m < BENCH_METRICS; m++) {
        add_metric_json(r, m, t);
    }
    if (r->detailed) {
        add_detailed(r, t);
    }
    app_text_add(t, "}\n");
}

static void add_line(app_text *t, const char *name, double value, int decimals)
{
    app_text_add_padded(t, name, 40);
    app_text_add(t, " %.*f\n", decimals, value);
}

static void write_text(const bench_serve_report *r, const sums *s, app_text *t)
{
    app_text_add(t, "============ Serving Benchmark Result ============\n");
    add_line(t, "Successful requests:", s->n_completed, 0);
    add_line(t, "Failed requests:", r->n - s->n_completed, 0);
    add_line(t, "Benchmark duration (s):", r->seconds, 2);
    add_line(t, "Total input tokens:", s->n_input, 0);
    add_line(t, "Of these, found in the server's cache:", s->n_cached, 0);
    add_line(t, "Total generated tokens:", s->n_output, 0);
    add_line(t, "Request throughput (req/s):", s->n_completed / r->seconds, 2);
    if (r->has_goals) {
        add_line(t, "Request goodput (req/s):", s->n_good / r->seconds, 2);
    }
    add_line(t, "Output token throughput (tok/s):", s->n_output / r->seconds, 2);
    add_line(t, "Total token throughput (tok/s):", (s->n_input + s->n_output) / r->seconds, 2);
    add_line(t, "Peak concurrent requests:", r->most_at_once, 0);
    for (int m = 0; m < BENCH_METRICS; m++) {
        size_t n;
        char name[48];
        double *const values = values_of(r, m, &n), mean = 0;
        for (size_t i = 0; i < n; i++) {
            mean += values[i] / (double)n;
        }
        const char *const short_name[] = { "TTFT", "TPOT", "ITL", "E2EL" };
        app_text_add(t, "--- %s\n", metric_titles[m]);
        (void)snprintf(name, sizeof(name), "Mean %s (ms):", short_name[m]);
        add_line(t, name, mean, 2);
        for (uint32_t i = 0; i < r->n_percentiles; i++) {
            (void)snprintf(name, sizeof(name), "P%g %s (ms):", r->percentiles[i], short_name[m]);
            add_line(t, name, n > 0 ? bench_percentile(values, n, r->percentiles[i]) : 0, 2);
        }
        free(values);
    }
    app_text_add(t, "==================================================\n");
}

void bench_serve_write(const bench_serve_report *r, bool json, app_text *t)
{
    const sums s = sum_up(r);
    if (json) {
        write_json(r, &s, t);
    } else {
        write_text(r, &s, t);
    }
}
