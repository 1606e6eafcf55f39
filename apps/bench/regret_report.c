/* regret_report.c: see regret_report.h. */
#include "apps/bench/regret_report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/bench/timing.h"
#include "apps/table.h"
#include "engine/kv_config.h"

enum { DIGITS = 4 };

bool regret_is_far(const regret_row *row, const char *variant)
{
    for (uint32_t i = 0; i < row->n_far; i++) {
        if (strcmp(row->far[i], variant) == 0) {
            return true;
        }
    }
    return false;
}

regret_summary regret_summarise(const double *values, uint32_t n, uint32_t *n_counted)
{
    regret_summary s = { .median = NAN, .p95 = NAN, .worst = NAN };
    double *const counted = n > 0 ? malloc(n * sizeof(*counted)) : NULL;
    *n_counted = 0;
    for (uint32_t i = 0; counted != NULL && i < n; i++) {
        if (isnan(values[i])) {
            continue;
        }
        counted[(*n_counted)++] = values[i];
        uint32_t at = s.n_worst;
        while (at > 0 && values[s.at[at - 1]] < values[i]) {
            at--;
        }
        if (at == REGRET_WORST || values[i] <= 0) {
            continue;
        }
        s.n_worst += s.n_worst < REGRET_WORST;
        for (uint32_t k = s.n_worst - 1; k > at; k--) {
            s.at[k] = s.at[k - 1];
        }
        s.at[at] = i;
    }
    if (*n_counted > 0) {
        s.median = bench_quantile(counted, *n_counted, 0.5);
        s.p95 = bench_quantile(counted, *n_counted, 0.95);
        s.worst = bench_quantile(counted, *n_counted, 1);
    }
    free(counted);
    return s;
}

static regret_summary summary_of(const regret_report *r, bool losses, uint32_t *n)
{
    double *const values = r->n_rows > 0 ? malloc(r->n_rows * sizeof(*values)) : NULL;
    for (uint32_t i = 0; values != NULL && i < r->n_rows; i++) {
        values[i] = losses ? r->rows[i].loss : r->rows[i].regret;
    }
    const regret_summary s = regret_summarise(values, values != NULL ? r->n_rows : 0, n);
    free(values);
    return s;
}

/* ---- JSON ------------------------------------------------------------------------------------------------------------------ */

static void add_problem(const bench_problem *p, app_text *text)
{
    char k[48], v[48];
    (void)octe_kv_format_name(&p->k, k, sizeof(k));
    (void)octe_kv_format_name(&p->v, v, sizeof(v));
    app_text_add(text, "\"op\": \"%s\", \"k_format\": \"%s\", \"v_format\": \"%s\", \"heads_q\": %u, \"heads_kv\": %u, \"dim_k\": %u, \"dim_v\": %u, \"page\": %u, \"batch\": %u, "
                       "\"q_len\": %u, \"kv_len\": %u, \"window\": %u, \"operand\": \"%s\", \"threads\": %u",
                 bench_op_name(p->op), k, v, p->heads_q, p->heads_kv, p->dim_k, p->dim_v, p->page, p->batch, p->q_len, p->kv_len, p->window, oct_dtype_name(p->operand), p->threads);
}

static void add_number(const char *key, double value, app_text *text)
{
    app_text_add(text, ", \"%s\": ", key);
    app_text_add_number(text, value, DIGITS);
}

static void add_worst(const regret_report *r, const regret_summary *s, bool losses, app_text *text)
{
    app_text_add(text, "[");
    for (uint32_t i = 0; i < s->n_worst; i++) {
        const regret_row *const row = &r->rows[s->at[i]];
        app_text_add(text, "%s\n    {", i > 0 ? "," : "");
        add_problem(&row->problem, text);
        app_text_add(text, ", \"chosen\": \"%s\"", row->variant[0]);
        add_number("ns_chosen", row->seconds[0] * 1e9, text);
        if (losses) {
            add_number("ns_16_bit", row->seconds_16_bit * 1e9, text);
        } else {
            app_text_add(text, ", \"best\": \"%s\"", row->variant[row->best]);
            add_number("ns_best", row->seconds[row->best] * 1e9, text);
        }
        add_number("pct", 100 * (losses ? row->loss : row->regret), text);
        app_text_add(text, "}");
    }
    app_text_add(text, "]");
}

static uint32_t n_above(const regret_report *r, double share)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_rows; i++) {
        n += r->rows[i].loss > share;
    }
    return n;
}

void regret_report_json(const regret_report *r, app_text *text)
{
    uint32_t n, n_losses;
    const regret_summary regret = summary_of(r, false, &n), loss = summary_of(r, true, &n_losses);
    app_text_add(text, "{\"problems\": %u", n);
    add_number("median_pct", 100 * regret.median, text);
    add_number("p95_pct", 100 * regret.p95, text);
    add_number("worst_pct", 100 * regret.worst, text);
    app_text_add(text, ", \"worst\": ");
    add_worst(r, &regret, false, text);
    app_text_add(text, ",\n  \"cpu\": ");
    app_text_add_json(text, r->cpu);
    app_text_add(text, ", \"threads\": %u", r->threads);
    add_number("seconds", r->seconds, text);
    add_number("budget_seconds", r->budget_seconds, text);
    app_text_add(text, ",\n  \"loss_8_bit\": {\"problems\": %u, \"above_2_pct\": %u", n_losses, n_above(r, 0.02));
    add_number("median_pct", 100 * loss.median, text);
    add_number("p95_pct", 100 * loss.p95, text);
    add_number("worst_pct", 100 * loss.worst, text);
    app_text_add(text, ", \"worst\": ");
    add_worst(r, &loss, true, text);
    app_text_add(text, "}}\n");
}

/* ---- text -------------------------------------------------------------------------------------------------------------------- */

static const char *short_name(const char *full_name)
{
    const char *const dot = strchr(full_name, '.');
    return dot != NULL ? dot + 1 : full_name;
}

static void add_table(const regret_report *r, const regret_summary *s, bool losses, app_text *text)
{
    static app_table table;
    static const char *const heads[] = { "slower", "operation", "K", "V", "heads", "dim", "batch", "q", "kv", "window", "chosen", "µs" };
    table = (app_table){ 0 };
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        app_table_column(&table, heads[i], i > 0 && i < 6);
    }
    app_table_column(&table, losses ? "with" : "best", false);
    app_table_column(&table, "µs", false);
    for (uint32_t i = 0; i < s->n_worst; i++) {
        const regret_row *const row = &r->rows[s->at[i]];
        const bench_problem *const p = &row->problem;
        char k[48], v[48];
        (void)octe_kv_format_name(&p->k, k, sizeof(k));
        (void)octe_kv_format_name(&p->v, v, sizeof(v));
        app_table_cell(&table, "%.1f %%", 100 * (losses ? row->loss : row->regret));
        app_table_cell(&table, "%s", bench_op_name(p->op));
        app_table_cell(&table, "%s", k);
        app_table_cell(&table, "%s", v);
        app_table_cell(&table, "%u/%u", p->heads_q, p->heads_kv);
        app_table_cell(&table, "%u/%u", p->dim_k, p->dim_v);
        app_table_cell(&table, "%u", p->batch);
        app_table_cell(&table, "%u", p->q_len);
        app_table_cell(&table, "%u", p->kv_len);
        app_table_cell(&table, "%u", p->window);
        app_table_cell(&table, "%s", short_name(row->variant[0]));
        app_table_cell(&table, "%.1f", row->seconds[0] * 1e6);
        app_table_cell(&table, "%s", losses ? "bf16" : short_name(row->variant[row->best]));
        app_table_cell(&table, "%.1f", (losses ? row->seconds_16_bit : row->seconds[row->best]) * 1e6);
    }
    if (s->n_worst > 0) {
        app_table_text(&table, text);
    }
    app_table_free(&table);
}

void regret_report_text(const regret_report *r, app_text *text)
{
    uint32_t n, n_losses, n_rounds = 0, n_far = 0;
    const regret_summary regret = summary_of(r, false, &n), loss = summary_of(r, true, &n_losses);
    for (uint32_t i = 0; i < r->n_rows; i++) {
        n_rounds += r->rows[i].n_rounds;
        n_far += r->rows[i].n_far;
    }
    const char *const unit = r->on_gpu ? "unit" : "thread", *const more = r->on_gpu ? "s" : r->threads == 1 ? ", its CPU time" : "s";
    app_text_add(text, "%s, %u %s%s: %u problems, %.1f rounds each, %.0f s%s\n", r->cpu, r->threads, unit, more, n, (double)n_rounds / (n > 0 ? n : 1),
                 r->seconds, r->seconds > r->budget_seconds ? " (more than the budget: the least number of rounds took so long)" : "");
    app_text_add(text, "%u variants were far off on %s problem\n\n", n_far, r->on_gpu ? "a first run of their" : "a small version of their");
    app_text_add(text, "chosen against best: median %.1f %%, p95 %.1f %%, worst %.1f %% slower\n", 100 * regret.median, 100 * regret.p95, 100 * regret.worst);
    add_table(r, &regret, false, text);
    if (n_losses > 0) {
        app_text_add(text, "\n8-bit cache against bf16 cache, %u problems: median %.1f %%, p95 %.1f %%, worst %.1f %% slower; %u by more than 2 %%\n", n_losses, 100 * loss.median,
                     100 * loss.p95, 100 * loss.worst, n_above(r, 0.02));
        add_table(r, &loss, true, text);
    }
}

void regret_row_line(const regret_row *row, uint32_t number, const char *cpu, app_text *text)
{
    app_text_add(text, "{\"number\": %u, \"cpu\": ", number);
    app_text_add_json(text, cpu);
    app_text_add(text, ", ");
    add_problem(&row->problem, text);
    app_text_add(text, ", \"chosen\": \"%s\"", row->variant[0]);
    add_number("regret", row->regret, text);
    add_number("loss", row->loss, text);
    add_number("seconds_16_bit", row->seconds_16_bit, text);
    app_text_add(text, ", \"seconds\": {");
    for (uint32_t i = 0; i < row->n; i++) {
        app_text_add(text, "%s\"%s\": ", i > 0 ? ", " : "", row->variant[i]);
        app_text_add_number(text, row->seconds[i], DIGITS + 1);
    }
    app_text_add(text, "}, \"predicted\": {");
    for (uint32_t i = 0; i < row->n; i++) {
        app_text_add(text, "%s\"%s\": ", i > 0 ? ", " : "", row->variant[i]);
        app_text_add_number(text, row->predicted[i], DIGITS + 1);
    }
    app_text_add(text, "}, \"far\": [");
    for (uint32_t i = 0; i < row->n_far; i++) {
        app_text_add(text, "%s\"%s\"", i > 0 ? ", " : "", row->far[i]);
    }
    app_text_add(text, "]}\n");
}
