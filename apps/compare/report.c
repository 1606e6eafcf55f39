/* report.c: see report.h. The forms for people; report_data.c has those for programs. */
#include "apps/compare/report.h"

#include <stdio.h>
#include <string.h>

#include "apps/compare/report_data.h"
#include "apps/table.h"
#include "octavo/version.h"

/* whose: the first line of each head, or NULL. */
static void add_quality_columns(app_table *table, const char *whose)
{
    static const char *const heads[] = { "perplexity", "KL", "same top-1", "saturated" };
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        char head[64];
        (void)snprintf(head, sizeof(head), "%s\n%s", whose != NULL ? whose : i == 2 ? "same" : "", whose == NULL && i == 2 ? "top-1" : heads[i]);
        app_table_column(table, head, false);
    }
}

static void add_quality_cells(app_table *table, const compare_quality *quality)
{
    app_table_cell(table, "%.2f ± %.2f", quality->ppl, quality->ppl_stderr);
    app_table_small(table, quality->kld_mean);
    app_table_cell(table, "%.1f %%", 100 * quality->same_top);
    if (quality->saturated < 0) {
        app_table_cell(table, "–");
    } else {
        app_table_cell(table, "%lld", (long long)quality->saturated);
    }
}

/* "271 / 240 / 131": one number a depth. */
static void add_speeds(app_table *table, const double *tps, uint32_t n)
{
    char cell[COMPARE_MAX_DEPTHS * 16] = "";
    for (uint32_t d = 0; d < n; d++) {
        const size_t at = strlen(cell);
        (void)snprintf(cell + at, sizeof(cell) - at, "%s%.*f", d > 0 ? " / " : "", tps[d] < 10 ? 1 : 0, tps[d]);
    }
    app_table_cell(table, "%s", cell);
}

static void add_speed_column(app_table *table, const char *what, const compare_speed_options *o)
{
    char head[128];
    (void)snprintf(head, sizeof(head), "%s\n", what);
    for (uint32_t d = 0; d < o->n_depths; d++) {
        const size_t at = strlen(head);
        (void)snprintf(head + at, sizeof(head) - at, "%s%u", d > 0 ? " / " : "", o->depths[d]);
    }
    app_table_column(table, head, false);
}

/* The main table: one row a format, the first judgement. */
static void fill_main(const compare_report *r, app_table *table, bool with_answers)
{
    app_table_column(table, "cache", true);
    app_table_column(table, "KV bytes\na token", false);
    app_table_column(table, "tokens\nin 1 GiB", false);
    if (r->model->n_layers_window > 0) {
        app_table_column(table, "longest\nsequence", false);
    }
    if (r->speed_options->n_depths > 0) {
        add_speed_column(table, "prefill tok/s", r->speed_options);
        add_speed_column(table, "decode tok/s", r->speed_options);
    }
    if (r->n_judgements > 0) {
        add_quality_columns(table, NULL);
    }
    if (with_answers) {
        app_table_column(table, "begins its answer", true);
    }
    for (uint32_t i = 0; i < r->n_formats; i++) {
        app_table_cell(table, "%s%s", r->formats[i].label, i == 0 ? " (base)" : "");
        app_table_cell(table, "%llu", (unsigned long long)r->capacity[i].bytes_per_token);
        app_table_cell(table, "%lld", (long long)r->capacity[i].tokens_per_gib);
        if (r->model->n_layers_window > 0) {
            app_table_cell(table, "%lld", (long long)r->capacity[i].tokens_per_gib_window);
        }
        if (r->speed_options->n_depths > 0) {
            add_speeds(table, r->speed[i].prefill_tps, r->speed_options->n_depths);
            add_speeds(table, r->speed[i].decode_tps, r->speed_options->n_depths);
        }
        if (r->n_judgements > 0) {
            add_quality_cells(table, &r->judgements[0].quality[i]);
        }
        if (with_answers) {
            app_table_cell(table, "%s", r->answers[i] != NULL ? r->answers[i] : "");
        }
    }
}

static bool same_text(const compare_judgement *a, const compare_judgement *b)
{
    return strcmp(a->text, b->text) == 0;
}

/* All judgements on the text of judgement `first`, from there on. */
static void fill_text_quality(const compare_report *r, uint32_t first, app_table *table)
{
    app_table_column(table, "cache", true);
    for (uint32_t j = first; j < r->n_judgements; j++) {
        if (same_text(&r->judgements[j], &r->judgements[first])) {
            add_quality_columns(table, r->judgements[j].is_f32 ? "F32 copy:" : "as is:");
        }
    }
    for (uint32_t i = 0; i < r->n_formats; i++) {
        app_table_cell(table, "%s%s", r->formats[i].label, i == 0 ? " (base)" : "");
        for (uint32_t j = first; j < r->n_judgements; j++) {
            if (same_text(&r->judgements[j], &r->judgements[first])) {
                add_quality_cells(table, &r->judgements[j].quality[i]);
            }
        }
    }
}

/* One paragraph: an item of a list in Markdown, else lines of at most so many columns. Frees the prose. */
static void add_prose(app_text *text, app_text *prose, bool markdown)
{
    enum { COLUMNS = 118 };
    text->failed |= prose->failed;
    size_t column = 0;
    app_text_add(text, "%s", markdown ? "- " : "");
    for (char *word = prose->failed ? NULL : strtok(prose->bytes, " "); word != NULL; word = strtok(NULL, " ")) {
        const size_t n = app_text_columns(word);
        const bool breaks = !markdown && column > 0 && column + 1 + n > COLUMNS;
        app_text_add(text, "%s%s", column == 0 ? "" : breaks ? "\n" : " ", word);
        column = breaks ? n : column + (column > 0) + n;
    }
    app_text_add(text, "\n");
    app_text_free(prose);
}

static void add_head(const compare_report *r, app_text *text)
{
    const octe_model_info *const m = r->model;
    app_text_add(text, "%s: %s, %u layers, %u query and %u KV heads of %u", r->file, m->architecture, m->n_layers, m->n_heads, m->n_heads_kv, m->head_dim);
    if (m->n_layers_window > 0) {
        app_text_add(text, ", %u layers see a window of %u", m->n_layers_window, m->window_tokens);
    }
    app_text_add(text, "; %s, %u thread%s; octavo %s; took %.0f s.\n\n", r->cpu, r->n_threads, r->n_threads == 1 ? "" : "s", oct_version_string(), r->seconds);
}

/* How the main table's numbers were measured. */
static void add_notes(const compare_report *r, app_text *text, bool markdown)
{
    const compare_speed_options *const s = r->speed_options;
    app_text prose = { 0 };
    if (s->n_depths > 0) {
        app_text_add(&prose,
                     "Speed: medians of %u round%s in which the caches take turns. Prefill: %u tokens in one step after so many in the cache; decode: one token a step, "
                     "%u a round. Down to that depth our pages are filled with arbitrary values by the same write, llama.cpp's by a real prefill.",
                     s->n_rounds, s->n_rounds == 1 ? "" : "s", s->prefill_tokens, s->decode_tokens);
        if (r->model->n_layers_window > 0) {
            /* compare_runner_approach */
            app_text_add(&prose, " llama.cpp's cache can't be cut back where layers see a window only, so each of its turns may lie %u tokens deeper than the one before.",
                         s->prefill_tokens + s->decode_tokens + 1);
        }
        add_prose(text, &prose, markdown);
    }
    if (r->n_judgements > 0) {
        app_text_add(&prose,
                     "Quality: %llu tokens of '%s', in sequences of %u. Perplexity ± its standard error; KL: mean divergence from %s, nats a token; same top-1: the "
                     "likeliest token is the base's; saturated: values of K and V cut to the format's range.",
                     (unsigned long long)r->judgements[0].quality[0].n_tokens, r->judgements[0].text, r->quality_options->chunk_tokens, r->formats[0].label);
        add_prose(text, &prose, markdown);
    }
    if (r->model->n_layers_window > 0) {
        app_text_add(&prose, "Longest sequence: in 1 GiB, when window layers keep only what their window sees; tokens in 1 GiB: when every layer keeps every token.");
        add_prose(text, &prose, markdown);
    }
    for (uint32_t i = 0; i < r->n_formats; i++) {
        if (strchr(r->formats[i].label, '*') != NULL) {
            app_text_add(&prose, "%s* The recommended one: --kv-cache-dtype int8_rotated.", markdown ? "\\" : "");
            add_prose(text, &prose, markdown);
        }
    }
    bool is_f32 = false;
    for (uint32_t j = 0; j < r->n_judgements; j++) {
        is_f32 |= r->judgements[j].is_f32;
    }
    if (is_f32) {
        app_text_add(&prose,
                     "Quantised weights make ggml quantise activations too, so the same mathematics in another order already differs: llama.cpp's f16 row shows by how much. "
                     "On the copy with F32 weights that noise is gone, and what differs is the cache alone.");
        add_prose(text, &prose, markdown);
    }
}

static void add_answers(const compare_report *r, app_text *text)
{
    app_table table = { 0 };
    app_table_column(&table, "cache", true);
    app_table_column(&table, "begins its answer", true);
    for (uint32_t i = 0; i < r->n_formats; i++) {
        app_table_cell(&table, "%s", r->formats[i].label);
        app_table_cell(&table, "%s", r->answers[i] != NULL ? r->answers[i] : "");
    }
    app_text_add(text, "\nGreedy answers to: %s\n", r->prompt);
    app_table_text(&table, text);
    app_table_free(&table);
}

/* The judgements on one text but the first of all, which is in the main table, in one table. */
static void add_text_quality(const compare_report *r, const char *name, app_text *text, bool markdown)
{
    uint32_t first = 1;
    while (first < r->n_judgements && strcmp(r->judgements[first].text, name) != 0) {
        first++;
    }
    if (first == r->n_judgements) {
        return;
    }
    app_table table = { 0 };
    app_text_add(text, "\n%sQuality on '%s'%s, %llu tokens%s\n%s", markdown ? "**" : "", name, strcmp(r->judgements[0].text, name) == 0 ? ", F32 copy" : "",
                 (unsigned long long)r->judgements[first].quality[0].n_tokens, markdown ? "**" : ":", markdown ? "\n" : "");
    fill_text_quality(r, first, &table);
    (markdown ? app_table_markdown : app_table_text)(&table, text);
    app_table_free(&table);
}

/* The texts in the order they were given in. */
static void add_further_quality(const compare_report *r, app_text *text, bool markdown)
{
    for (uint32_t j = 0; j < r->n_judgements; j++) {
        bool shown = false;
        for (uint32_t before = 0; before < j; before++) {
            shown |= same_text(&r->judgements[before], &r->judgements[j]);
        }
        if (!shown) {
            add_text_quality(r, r->judgements[j].text, text, markdown);
        }
    }
}

static void add_for_people(const compare_report *r, app_text *text, bool markdown)
{
    const bool answered = r->answers[0] != NULL;
    app_table table = { 0 };
    add_head(r, text);
    fill_main(r, &table, answered && markdown);
    (markdown ? app_table_markdown : app_table_text)(&table, text);
    app_table_free(&table);
    app_text_add(text, "\n");
    add_notes(r, text, markdown);
    if (answered && markdown) {
        app_text prose = { 0 };
        app_text_add(&prose, "Greedy answers to: %s", r->prompt);
        add_prose(text, &prose, markdown);
    } else if (answered) {
        add_answers(r, text);
    }
    add_further_quality(r, text, markdown);
}

void compare_report_add(const compare_report *report, const char *form, app_text *text)
{
    if (strcmp(form, "json") == 0) {
        compare_report_json(report, text);
    } else if (strcmp(form, "csv") == 0) {
        compare_report_csv(report, text);
    } else {
        add_for_people(report, text, strcmp(form, "md") == 0);
    }
}
