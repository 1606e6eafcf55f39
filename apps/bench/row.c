/* row.c: see row.h. */
#include "apps/bench/row.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "apps/table.h"

enum { DIGITS = 6, N_KEYS = 21 };

typedef enum kind { TEXT, NUMBER } kind;

typedef struct field {
    const char *key;
    kind kind;
    const char *text;
    double number;
} field;

static double gbps(const bench_row *r)
{
    return r->bytes / r->seconds_median * 1e-9;
}

static double gflops(const bench_row *r)
{
    return bench_amount_of(&r->problem).flops / r->seconds_median * 1e-9;
}

static void fields_of(const bench_row *r, const char *cpu, field fields[N_KEYS])
{
    const bench_problem *const p = &r->problem;
    const field all[N_KEYS] = {
        { "op", TEXT, bench_op_name(p->op), 0 },
        { "variant", TEXT, r->variant, 0 },
        { "device", TEXT, r->device != NULL ? r->device : "cpu", 0 },
        { "cpu", TEXT, cpu, 0 },
        { "k_format", TEXT, r->k_format, 0 },
        { "v_format", TEXT, r->v_format, 0 },
        { "heads_q", NUMBER, NULL, p->heads_q },
        { "heads_kv", NUMBER, NULL, p->heads_kv },
        { "dim_k", NUMBER, NULL, p->dim_k },
        { "dim_v", NUMBER, NULL, p->dim_v },
        { "page", NUMBER, NULL, p->page },
        { "batch", NUMBER, NULL, p->batch },
        { "q_len", NUMBER, NULL, p->q_len },
        { "kv_len", NUMBER, NULL, p->kv_len },
        { "window", NUMBER, NULL, p->window },
        { "threads", NUMBER, NULL, p->threads },
        { "ns_median", NUMBER, NULL, r->seconds_median * 1e9 },
        { "ns_min", NUMBER, NULL, r->seconds_min * 1e9 },
        { "gbps", NUMBER, NULL, gbps(r) },
        { "gflops", NUMBER, NULL, gflops(r) },
        { "fraction_of_limit", NUMBER, NULL, r->fraction_of_limit },
    };
    memcpy(fields, all, sizeof(all));
}

/* Whole numbers whole: "ns_median": 1234567.8 becomes 1234568. */
static void add_number(app_text *text, const field *f)
{
    if (f->number >= 1000 && f->number < 1e15) {
        app_text_add(text, "%.0f", f->number);
    } else {
        app_text_add_number(text, f->number, DIGITS);
    }
}

static void add_object(const bench_row *row, const char *cpu, app_text *text)
{
    field fields[N_KEYS];
    fields_of(row, cpu, fields);
    for (int i = 0; i < N_KEYS; i++) {
        app_text_add(text, "%s\"%s\": ", i > 0 ? ", " : "{", fields[i].key);
        if (fields[i].kind == TEXT) {
            app_text_add_json(text, fields[i].text);
        } else {
            add_number(text, &fields[i]);
        }
    }
    app_text_add(text, "}");
}

void bench_row_line(const bench_row *row, const char *cpu, app_text *text)
{
    add_object(row, cpu, text);
    app_text_add(text, "\n");
}

static void add_csv(const bench_row *rows, uint32_t n, const char *cpu, app_text *text)
{
    field fields[N_KEYS];
    const bench_row none = { .seconds_median = 1 };
    fields_of(&none, cpu, fields);
    for (int i = 0; i < N_KEYS; i++) {
        app_text_add(text, "%s%s", i > 0 ? "," : "", fields[i].key);
    }
    app_text_add(text, "\n");
    for (uint32_t r = 0; r < n; r++) {
        fields_of(&rows[r], cpu, fields);
        for (int i = 0; i < N_KEYS; i++) {
            app_text_add(text, "%s", i > 0 ? "," : "");
            if (fields[i].kind == NUMBER) {
                add_number(text, &fields[i]);
                continue;
            }
            app_text_add(text, "\"");
            for (const char *at = fields[i].text; *at != '\0'; at++) {
                app_text_add(text, "%s%c", *at == '"' ? "\"" : "", *at);
            }
            app_text_add(text, "\"");
        }
        app_text_add(text, "\n");
    }
}

static void add_markdown(const bench_row *rows, uint32_t n, app_text *text)
{
    static app_table table;   /* large; single-threaded as the rest */
    static const struct { const char *head; bool left; } columns[] = {
        { "operation", true }, { "K", true },   { "V", true },    { "heads", true },    { "dim", true },  { "page", false },   { "batch", false },    { "q", false },
        { "kv", false },       { "window", false }, { "t", false }, { "µs", false }, { "GB/s", false }, { "GFLOP/s", false }, { "of limit", false }, { "saturated", false },
    };
    table = (app_table){ 0 };
    for (size_t i = 0; i < sizeof(columns) / sizeof(columns[0]); i++) {
        app_table_column(&table, columns[i].head, columns[i].left);
    }
    for (uint32_t r = 0; r < n; r++) {
        const bench_problem *const p = &rows[r].problem;
        const char *const op = bench_op_name(p->op);
        if (strncmp(rows[r].variant, op, strlen(op)) == 0) {
            app_table_cell(&table, "%s", rows[r].variant);
        } else {
            app_table_cell(&table, "%s, %s", op, rows[r].variant);
        }
        app_table_cell(&table, "%s", rows[r].k_format);
        app_table_cell(&table, "%s", rows[r].v_format);
        app_table_cell(&table, "%u/%u", p->heads_q, p->heads_kv);
        if (p->dim_k == p->dim_v) {
            app_table_cell(&table, "%u", p->dim_k);
        } else {
            app_table_cell(&table, "%u/%u", p->dim_k, p->dim_v);
        }
        app_table_cell(&table, "%u", p->page);
        app_table_cell(&table, "%u", p->batch);
        app_table_cell(&table, "%u", p->q_len);
        app_table_cell(&table, "%u", p->kv_len);
        app_table_cell(&table, "%u", p->window);
        app_table_cell(&table, "%u", p->threads);
        app_table_cell(&table, "%.1f", rows[r].seconds_median * 1e6);
        app_table_cell(&table, "%.2f", gbps(&rows[r]));
        app_table_cell(&table, "%.1f", gflops(&rows[r]));
        app_table_cell(&table, "%.0f %%", 100 * rows[r].fraction_of_limit);
        if (isnan(rows[r].saturated)) {
            app_table_cell(&table, "–");
        } else {
            app_table_cell(&table, "%.2g %%", 100 * rows[r].saturated);
        }
    }
    app_table_markdown(&table, text);
    app_table_free(&table);
}

void bench_rows_write(const bench_row *rows, uint32_t n, const char *cpu, const char *form, app_text *text)
{
    if (strcmp(form, "md") == 0) {
        app_text_add(text, "%s\n\n", cpu);
        add_markdown(rows, n, text);
        return;
    }
    if (strcmp(form, "csv") == 0) {
        add_csv(rows, n, cpu, text);
        return;
    }
    const bool lines = strcmp(form, "jsonl") == 0;
    app_text_add(text, lines ? "" : "[\n");
    for (uint32_t r = 0; r < n; r++) {
        add_object(&rows[r], cpu, text);
        app_text_add(text, "%s\n", lines || r + 1 == n ? "" : ",");
    }
    app_text_add(text, lines ? "" : "]\n");
}
