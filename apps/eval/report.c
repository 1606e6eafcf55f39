/* report.c: an evaluation as Markdown, for people. Every number is one of the result's; result.h is the door. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/eval/inside.h"
#include "apps/eval/result.h"
#include "apps/table.h"

static void end_table(app_table *table, app_text *text)
{
    app_table_markdown(table, text);
    app_table_free(table);
    app_text_add(text, "\n");
}

/* ---- what ran ------------------------------------------------------------------------------------------------------------------ */

static void add_head(const eval_result *r, app_text *text)
{
    const eval_provenance *const p = &r->provenance;
    /* Names come from the model's file. */
    app_text_add(text, "# What 8 bits do to ");
    app_text_add_markdown(text, p->model_name[0] != '\0' ? p->model_name : p->model_file);
    app_text_add(text, "\n\n");
    app_text_add_markdown(text, p->model_file);
    app_text_add(text, ": ");
    app_text_add_markdown(text, p->architecture);
    app_text_add(text, ", %u layers, %u query and %u KV heads of %u, context %u", p->n_layers, p->n_heads, p->n_heads_kv, p->head_dim, p->n_ctx_train);
    if (p->n_layers_window > 0) {
        app_text_add(text, ", %u layers see a window of %u", p->n_layers_window, p->window_tokens);
    }
    app_text_add(text, "; file %s. %s, %u thread%s; octavo %s; begun %s, took %.0f s", p->model_sum, p->cpu, p->n_threads, p->n_threads == 1 ? "" : "s", p->octavo, p->began,
                 p->seconds);
    if (p->n_resumed > 0) {
        app_text_add(text, ", continued %u time%s", p->n_resumed, p->n_resumed == 1 ? "" : "s");
    }
    app_text_add(text, ".\n\n");
    if (p->command != NULL) {
        app_text_add(text, "    ");
        app_text_add_line(text, p->command);   /* a line of code: a second one would be none */
        app_text_add(text, "\n\n");
    }
    if (!r->complete) {
        app_text_add(text, "**This evaluation is not complete.**\n\n");
    }
}

static const char *weights_of(const eval_pass *pass) { return pass->is_f32 ? "the F32 copy" : "the file's weights"; }

/* ---- token level ------------------------------------------------------------------------------------------------------------------ */

static void add_interval_small(app_table *table, double value, const eval_interval *interval)
{
    char low[16], high[16];
    (void)snprintf(low, sizeof(low), "%.1e", interval->low);
    (void)snprintf(high, sizeof(high), "%.1e", interval->high);
    app_table_cell(table, value == 0 ? "0" : "%.1e [%s, %s]", value, low, high);
}

/* A table with a row for each cache. */
static void begin_caches(app_table *table, const char *const *heads, size_t n_heads)
{
    app_table_column(table, "cache", true);
    for (size_t i = 0; i < n_heads; i++) {
        app_table_column(table, heads[i], false);
    }
}

static void add_quality_table(const eval_result *r, const eval_text *t, app_text *text)
{
    static const char *const heads[] = { "KV bytes a token", "perplexity", "× base [95 %]", "KL mean [95 %]", "KL p99", "KL max", "reverse KL mean", "p99", "max",
                                         "same top-1", "p moved mean", "p moved p99", "saturated" };
    app_table table = { 0 };
    begin_caches(&table, heads, sizeof(heads) / sizeof(heads[0]));
    for (uint32_t f = 0; f < r->n_formats; f++) {
        const eval_quality *const q = &t->quality[f];
        app_table_cell(&table, "%s%s", r->formats[f].label, f == 0 ? " (base)" : "");
        app_table_cell(&table, "%llu", (unsigned long long)r->formats[f].kv_bytes_per_token);
        app_table_cell(&table, "%.3f ± %.3f", q->ppl, q->ppl_stderr);
        app_table_cell(&table, f == 0 ? "1" : "%.4f [%.4f, %.4f]", q->ppl_ratio, q->ppl_ratio_interval.low, q->ppl_ratio_interval.high);
        add_interval_small(&table, q->kl.mean, &q->kl.mean_interval);
        app_table_small(&table, q->kl.p99);
        app_table_small(&table, q->kl.max);
        app_table_small(&table, q->reverse_kl.mean);
        app_table_small(&table, q->reverse_kl.p99);
        app_table_small(&table, q->reverse_kl.max);
        app_table_cell(&table, "%.1f %%", 100 * q->same_top);
        app_table_small(&table, q->moved);
        app_table_small(&table, q->moved_p99);
        if (q->saturated < 0) {
            app_table_cell(&table, "–");
        } else {
            app_table_cell(&table, "%lld", (long long)q->saturated);
        }
    }
    end_table(&table, text);
}

/* What the table above has no room for. */
static void add_more_table(const eval_result *r, const eval_text *t, app_text *text)
{
    static const char *const heads[] = { "KL p50", "KL p90", "reverse KL mean [95 %]", "p50", "p90", "same top-1 [95 %]", "p moved with its sign", "p moved, largest", "KL beyond the floor [95 %]" };
    app_table table = { 0 };
    begin_caches(&table, heads, sizeof(heads) / sizeof(heads[0]));
    for (uint32_t f = 0; f < r->n_formats; f++) {
        const eval_quality *const q = &t->quality[f];
        app_table_cell(&table, "%s%s", r->formats[f].label, f == 0 ? " (base)" : "");
        app_table_small(&table, q->kl.p50);
        app_table_small(&table, q->kl.p90);
        add_interval_small(&table, q->reverse_kl.mean, &q->reverse_kl.mean_interval);
        app_table_small(&table, q->reverse_kl.p50);
        app_table_small(&table, q->reverse_kl.p90);
        app_table_cell(&table, "%.1f %% [%.1f, %.1f]", 100 * q->same_top, 100 * q->same_top_interval.low, 100 * q->same_top_interval.high);
        app_table_small(&table, q->moved_signed);
        app_table_small(&table, q->moved_max);
        if (isnan(q->beyond_floor)) {
            app_table_cell(&table, "–");
        } else {
            add_interval_small(&table, q->beyond_floor, &q->beyond_floor_interval);
        }
    }
    end_table(&table, text);
}

/* Caches that stand side by side where each has a column: more go into a table of their own below. */
enum { ABREAST = 8 };

/* Of caches first .. end. */
static void add_position_table(const eval_result *r, const eval_text *t, uint32_t first, uint32_t end, app_text *text)
{
    app_table table = { 0 };
    app_table_column(&table, "position", false);
    app_table_column(&table, "tokens", false);
    for (uint32_t f = first; f < end; f++) {
        app_table_column(&table, r->formats[f].label, false);
    }
    for (uint32_t i = 0; i < t->quality[0].n_positions; i++) {
        const eval_position *const p = &t->quality[0].positions[i];
        app_table_cell(&table, "%u – %u", p->first, p->last);
        app_table_cell(&table, "%llu", (unsigned long long)p->n_tokens);
        for (uint32_t f = first; f < end; f++) {
            const eval_position *const own = &t->quality[f].positions[i];
            app_table_cell(&table, isnan(own->kl_stderr) ? "%.1e" : "%.1e ± %.0e", own->kl, own->kl_stderr);
        }
    }
    end_table(&table, text);
}

static void add_positions(const eval_result *r, const eval_text *t, app_text *text)
{
    app_text_add(text, "KL by the token's position in its sequence, with its standard error:\n\n");
    for (uint32_t first = 1; first < r->n_formats; first += ABREAST) {
        add_position_table(r, t, first, first + ABREAST < r->n_formats ? first + ABREAST : r->n_formats, text);
    }
}

/* A token's own bytes so that they can be seen. */
static void add_visible(app_text *out, const char *bytes)
{
    for (const char *at = bytes != NULL ? bytes : ""; *at != '\0'; at++) {
        if (*at == '\n') {
            app_text_add(out, "⏎");
        } else if (*at == '\t') {
            app_text_add(out, "⇥");
        } else {
            app_text_add_bytes(out, at, 1);
        }
    }
}

static void add_visible_cell(app_table *table, const char *bytes)
{
    app_text cell = { 0 };
    add_visible(&cell, bytes);
    app_table_cell(table, "‹%s›", cell.bytes != NULL ? cell.bytes : "");
    table->failed |= cell.failed;
    app_text_free(&cell);
}

static void add_worst(const eval_result *r, uint32_t format, const eval_quality *q, app_text *text)
{
    static const char *const heads[] = { "KL", "position", "before it", "token", "p, base", "p", "base says", "this says" };
    app_table table = { 0 };
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        app_table_column(&table, heads[i], i == 2 || i == 3 || i > 5);
    }
    for (uint32_t i = 0; i < q->n_worst; i++) {
        const eval_worst *const w = &q->worst[i];
        app_table_small(&table, w->kl);
        app_table_cell(&table, "%u", w->position);
        add_visible_cell(&table, w->before);
        add_visible_cell(&table, w->token);
        app_table_cell(&table, "%.3f", w->base_p);
        app_table_cell(&table, "%.3f", w->p);
        add_visible_cell(&table, w->base_top);
        add_visible_cell(&table, w->top);
    }
    app_text_add(text, "The %u tokens that %s changed most:\n\n", q->n_worst, r->formats[format].label);
    end_table(&table, text);
}

/* Each format held against the floor, in words. */
static void add_floor(const eval_result *r, const eval_pass *pass, app_text *text)
{
    const eval_floor *const floor = &pass->floor;
    if (!floor->measured) {
        app_text_add(text, "Noise floor: not measured.%s\n\n",
                     pass->is_f32 ? "" : " Quantised weights make the same mathematics in another order differ by a KL of some 3e-3; differences of that size are not the cache's.");
        return;
    }
    app_text_add(text, "Noise floor with %s: KL %.1e (p99 %.1e), same top-1 %.1f %%: %s. ", weights_of(pass), floor->kl, floor->kl_p99, 100 * floor->same_top, floor->how);
    if (pass->is_f32) {
        app_text_add(text, "Nothing but the cache differs here.");
    } else {
        app_text_add(text, "Quantised weights make ggml quantise activations too, and a last bit there moves whole steps; what is not well above this floor is not the cache's. "
                           "`--f32-weights` judges without it.");
    }
    for (uint32_t f = 1; f < r->n_formats; f++) {
        app_text_add(text, "%s %s: %s", f == 1 ? "" : ";", r->formats[f].label, eval_floor_words(&pass->texts[0].quality[f]));
    }
    app_text_add(text, ".\n\n");
}

static void add_text_level(const eval_result *r, const eval_text *t, app_text *text)
{
    app_text_add(text, "### '");
    app_text_add_markdown(text, t->name);
    app_text_add(text, "': %llu tokens, in sequences of %u\n\n", (unsigned long long)t->n_done, t->chunk_tokens);
    add_quality_table(r, t, text);
    add_more_table(r, t, text);
    if (r->n_formats < 2) {
        return;
    }
    add_positions(r, t, text);
    for (uint32_t f = 1; f < r->n_formats; f++) {
        if (t->quality[f].n_worst > 0) {
            add_worst(r, f, &t->quality[f], text);
        }
    }
}

static void add_greedy(const eval_result *r, const eval_greedy *g, app_text *text)
{
    app_table table = { 0 };
    app_table_column(&table, "cache", true);
    app_table_column(&table, "median of the first other token", false);
    app_table_column(&table, "never another", false);
    app_table_column(&table, "first other token by prompt", true);
    for (uint32_t f = 1; f < r->n_formats; f++) {
        app_text list = { 0 };
        for (uint32_t i = 0; i < g->n_prompts; i++) {
            const uint32_t first = g->first_different[(size_t)f * g->n_prompts + i];
            app_text_add(&list, first == g->n_tokens ? "%s–" : "%s%u", i > 0 ? " " : "", first);
        }
        app_table_cell(&table, "%s", r->formats[f].label);
        app_table_cell(&table, "%.4g", g->summary[f].median);
        app_table_cell(&table, "%u of %u", g->summary[f].n_same, g->n_prompts);
        app_table_cell(&table, "%s", list.bytes != NULL ? list.bytes : "");
        table.failed |= list.failed;
        app_text_free(&list);
    }
    app_text_add(text, "### Greedy continuations\n\n%u prompts, %u tokens each; where a format's words first differ from the base's (counted from 0):\n\n", g->n_prompts, g->n_tokens);
    end_table(&table, text);
}

/* ---- tasks -------------------------------------------------------------------------------------------------------------------------- */

static void add_verdict(const eval_task *t, const eval_verdict *v, app_table *table)
{
    app_table_cell(table, "%.1f %% [%.1f, %.1f]", 100 * v->accuracy, 100 * v->accuracy_interval.low, 100 * v->accuracy_interval.high);
    if (isnan(v->p_value)) {
        for (int i = 0; i < 7; i++) {
            app_table_cell(table, "%s", "");
        }
        return;
    }
    app_table_cell(table, "%+.1f [%+.1f, %+.1f]", 100 * v->difference, 100 * v->difference_interval.low, 100 * v->difference_interval.high);
    app_table_cell(table, "%u / %u", v->n_lost, v->n_won);
    app_table_cell(table, "%u", v->n_same);
    app_table_cell(table, "%.3g", v->p_value);
    app_table_cell(table, "%.3g", v->p_holm);
    if (isnan(v->score_change)) {
        app_table_cell(table, "–");
    } else {
        app_table_cell(table, "%+.1e [%+.1e, %+.1e]", v->score_change, v->score_change_interval.low, v->score_change_interval.high);
    }
    if (v->distinguishable) {
        app_table_cell(table, "%s than the base", v->difference < 0 ? "worse" : "better");
    } else {
        app_table_cell(table, "not distinguishable with %u items", t->n_items);
    }
}

/* Of caches first .. end. */
static void add_cell_table(const eval_result *r, const eval_task *t, uint32_t first, uint32_t end, app_text *text)
{
    app_table table = { 0 };
    app_table_column(&table, "length", false);
    app_table_column(&table, "depth", false);
    app_table_column(&table, "items", false);
    for (uint32_t f = first; f < end; f++) {
        app_table_column(&table, r->formats[f].label, false);
    }
    for (uint32_t c = 0; c < t->n_cells; c++) {
        const eval_cell *const cell = &t->cells[c];
        app_table_cell(&table, "%u", cell->length_tokens);
        if (cell->depth < 0) {
            app_table_cell(&table, "–");
        } else {
            app_table_cell(&table, "%.0f %%", 100 * cell->depth);
        }
        app_table_cell(&table, "%u", cell->n_items);
        for (uint32_t f = first; f < end; f++) {
            app_table_cell(&table, "%u", cell->n_correct[f]);
        }
    }
    end_table(&table, text);
}

static void add_cells(const eval_result *r, const eval_task *t, app_text *text)
{
    app_text_add(text, "Right answers of %s by length and depth:\n\n", t->title);
    for (uint32_t first = 0; first < r->n_formats; first += ABREAST) {
        add_cell_table(r, t, first, first + ABREAST < r->n_formats ? first + ABREAST : r->n_formats, text);
    }
}

static void add_task(const eval_result *r, const eval_task *t, app_text *text)
{
    static const char *const heads[] = { "right [95 %]", "difference in points [95 %]", "lost / won", "same answer", "p", "p, Holm", "score change [95 %]", "verdict" };
    app_table table = { 0 };
    app_text_add(text, "#### %s\n\n", t->title);
    if (t->skipped != NULL) {
        app_text_add(text, "Not run: ");
        app_text_add_markdown(text, t->skipped);
        app_text_add(text, "\n\n");
        return;
    }
    app_text_add(text, "%u items; %s", t->n_items, t->how);
    if (t->chance > 0) {
        app_text_add(text, " Guessing gives %.1f %%.", 100 * t->chance);
    }
    app_text_add(text, " Items: %s.\n\n", t->source);
    app_table_column(&table, "cache", true);
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        app_table_column(&table, heads[i], i == 7);
    }
    for (uint32_t f = 0; f < r->n_formats; f++) {
        app_table_cell(&table, "%s%s", r->formats[f].label, f == 0 ? " (base)" : "");
        add_verdict(t, &t->verdicts[f], &table);
    }
    end_table(&table, text);
    for (uint32_t f = 1; f < r->n_formats; f++) {
        if (eval_n_unscored(t, f) > 0) {
            app_text_add(text, "%s: the score's change is without %u items that have no score, with it or with the base.\n\n", r->formats[f].label, eval_n_unscored(t, f));
        }
    }
    if (t->n_cells > 1) {
        add_cells(r, t, text);
    }
}

/* The whole of it in one line a format: what a page shows first. */
static void add_summary(const eval_result *r, const eval_pass *pass, app_text *text)
{
    app_table table = { 0 };
    app_table_column(&table, "cache", true);
    app_table_column(&table, "KV bytes a token", false);
    if (pass->n_texts > 0) {
        app_table_column(&table, "perplexity", false);
        app_table_column(&table, "KL", false);
        app_table_column(&table, "same top-1", false);
    }
    for (uint32_t t = 0; t < pass->n_tasks; t++) {
        if (pass->tasks[t].skipped == NULL) {
            app_table_column(&table, pass->tasks[t].title, false);
        }
    }
    if (pass->n_tasks > 0) {
        app_table_column(&table, "tasks", true);
    }
    for (uint32_t f = 0; f < r->n_formats; f++) {
        uint32_t n_told = 0, n_run = 0;
        app_table_cell(&table, "%s%s", r->formats[f].label, f == 0 ? " (base)" : "");
        app_table_cell(&table, "%llu", (unsigned long long)r->formats[f].kv_bytes_per_token);
        if (pass->n_texts > 0) {
            const eval_quality *const q = &pass->texts[0].quality[f];
            app_table_cell(&table, "%.2f ± %.2f", q->ppl, q->ppl_stderr);
            app_table_small(&table, q->kl.mean);
            app_table_cell(&table, "%.1f %%", 100 * q->same_top);
        }
        for (uint32_t t = 0; t < pass->n_tasks; t++) {
            const eval_task *const task = &pass->tasks[t];
            if (task->skipped == NULL) {
                n_run++;
                n_told += task->verdicts[f].distinguishable;
                app_table_cell(&table, "%u / %u", task->verdicts[f].n_correct, task->n_items);
            }
        }
        if (pass->n_tasks > 0) {
            if (f == 0) {
                app_table_cell(&table, "%s", "");
            } else if (n_told == 0) {
                app_table_cell(&table, "none of %u distinguishable from the base", n_run);
            } else {
                app_table_cell(&table, "%u of %u differ from the base", n_told, n_run);
            }
        }
    }
    end_table(&table, text);
}

void eval_report_markdown(const eval_result *r, app_text *text)
{
    add_head(r, text);
    for (uint32_t p = 0; p < r->n_passes; p++) {
        const eval_pass *const pass = &r->passes[p];
        app_text_add(text, "## With %s\n\n", weights_of(pass));
        add_summary(r, pass, text);
        if (pass->n_texts > 0 && r->n_formats > 1) {
            add_floor(r, pass, text);
        }
        for (uint32_t i = 0; i < pass->n_texts; i++) {
            add_text_level(r, &pass->texts[i], text);
        }
        if (pass->greedy.n_prompts > 0 && r->n_formats > 1) {
            add_greedy(r, &pass->greedy, text);
        }
        if (pass->n_tasks > 0) {
            app_text_add(text, "### Tasks\n\nPaired with the base on the same items. Lost / won: items that only the base, only this cache got right; p: exact McNemar test, two-sided; "
                               "the verdict is at 5 %% after Holm's correction over all tasks and caches of these weights.\n\n");
        }
        for (uint32_t t = 0; t < pass->n_tasks; t++) {
            add_task(r, &pass->tasks[t], text);
        }
        if (pass->inside != NULL) {
            const char *names[EVAL_MAX_FORMATS];
            for (uint32_t f = 0; f < r->n_formats; f++) {
                names[f] = r->formats[f].label;
            }
            eval_inside_markdown(pass->inside, names, text);
        }
    }
}
