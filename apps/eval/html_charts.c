/* html_charts.c: the pictures of tokens and tasks. See html.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "apps/eval/html.h"

enum { WIDTH = 340, LEFT = 44, RIGHT = 328, LINE = 14 };

static double least_of(double a, double b) { return isnan(a) || b < a ? b : a; }
static double most_of(double a, double b) { return isnan(a) || b > a ? b : a; }

/* Signs and names, one a line. */
static double add_legend(const eval_result *r, uint32_t first, double y, app_text *text)
{
    for (uint32_t f = first; f < r->n_formats; f++, y += LINE) {
        eval_svg_sign(text, f, LEFT, y - 3);
        eval_svg_text(text, LEFT + 12, y, "start", r->formats[f].label);
    }
    return y;
}

/* ---- quality against bytes ------------------------------------------------------------------------------------------------------------------ */

static void add_quality_table(const eval_result *r, const eval_text *t, app_text *text)
{
    app_text_add(text, "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"quality of each format\"><table>\n<caption>Quality on ");
    eval_html_text(text, t->name);
    app_text_add(text, ", %llu tokens</caption>\n<tr><th class=\"t\" scope=\"col\">format</th><th scope=\"col\">bytes a token</th><th scope=\"col\">perplexity</th><th scope=\"col\">ratio (95 %%)</th>"
                       "<th scope=\"col\">KL (95 %%)</th><th scope=\"col\">KL p99</th><th scope=\"col\">KL max</th><th scope=\"col\">reverse KL</th><th scope=\"col\">reverse p99</th><th scope=\"col\">reverse max</th><th scope=\"col\">same top-1</th>"
                       "<th scope=\"col\">probability moved</th><th scope=\"col\">saturated</th></tr>\n", (unsigned long long)t->n_tokens);
    for (uint32_t f = 0; f < r->n_formats; f++) {
        const eval_quality *const q = &t->quality[f];
        app_text_add(text, "<tr><th class=\"t\" scope=\"row\">");
        eval_html_text(text, r->formats[f].label);
        app_text_add(text, "</th><td>%llu</td><td>", (unsigned long long)r->formats[f].kv_bytes_per_token);
        eval_html_number(text, "%.4f", q->ppl);
        app_text_add(text, " \xC2\xB1 ");
        eval_html_number(text, "%.3f", q->ppl_stderr);
        app_text_add(text, "</td><td>");
        eval_html_number(text, "%.5f", q->ppl_ratio);
        app_text_add(text, " (");
        eval_html_number(text, "%.5f", q->ppl_ratio_interval.low);
        app_text_add(text, " to ");
        eval_html_number(text, "%.5f", q->ppl_ratio_interval.high);
        app_text_add(text, ")</td><td>");
        eval_html_number(text, "%.2e", q->kl.mean);
        app_text_add(text, " (");
        eval_html_number(text, "%.2e", q->kl.mean_interval.low);
        app_text_add(text, " to ");
        eval_html_number(text, "%.2e", q->kl.mean_interval.high);
        app_text_add(text, ")</td><td>");
        eval_html_number(text, "%.2e", q->kl.p99);
        app_text_add(text, "</td><td>");
        eval_html_number(text, "%.2e", q->kl.max);
        app_text_add(text, "</td><td>");
        eval_html_number(text, "%.2e", q->reverse_kl.mean);
        app_text_add(text, "</td><td>");
        eval_html_number(text, "%.2e", q->reverse_kl.p99);
        app_text_add(text, "</td><td>");
        eval_html_number(text, "%.2e", q->reverse_kl.max);
        app_text_add(text, "</td><td>");
        eval_html_number(text, "%.4f", q->same_top);
        app_text_add(text, "</td><td>");
        eval_html_number(text, "%.2e", q->moved);
        app_text_add(text, "</td><td>%s", q->saturated < 0 ? "\xE2\x80\x93" : "");
        if (q->saturated >= 0) {
            app_text_add(text, "%lld", (long long)q->saturated);
        }
        app_text_add(text, "</td></tr>\n");
    }
    app_text_add(text, "</table></div>\n");
}

static void add_quality_picture(const eval_result *r, const eval_pass *pass, const eval_text *t, const char *id, app_text *text)
{
    double least = (double)NAN, most = (double)NAN, fewest = (double)NAN, widest = (double)NAN;
    const bool has_floor = t == pass->texts && pass->floor.measured && pass->floor.kl > 0;   /* measured on the first text alone */
    for (uint32_t f = 0; f < r->n_formats; f++) {
        const double bytes = (double)r->formats[f].kv_bytes_per_token, kl = t->quality[f].kl.mean;
        fewest = least_of(fewest, bytes);
        widest = most_of(widest, bytes);
        if (f > 0 && kl > 0) {
            const eval_interval i = t->quality[f].kl.mean_interval;
            least = least_of(least, i.low > 0 ? i.low : kl);
            most = most_of(most, i.high > kl ? i.high : kl);
        }
    }
    if (has_floor) {
        least = least_of(least, pass->floor.kl);
        most = most_of(most, pass->floor.kl);
    }
    const int bottom = 200, height = bottom + 34 + LINE * (int)r->n_formats;
    const eval_axis y = eval_axis_make(least, most, true, bottom, 16), x = eval_axis_make(fewest * 0.95, widest, false, LEFT, RIGHT);
    eval_html_figure(text, id, "Quality against bytes a token", "Each format by the bytes of its cache a token and its mean KL from the base; bars are 95 % intervals. Numbers are in the table below.", WIDTH, height);
    eval_svg_axis(text, &y, true, LEFT, RIGHT - LEFT, "");
    eval_svg_axis(text, &x, false, bottom, bottom - 16, "");
    eval_svg_text(text, 2, 10, "start", "KL, nats a token");
    eval_svg_text(text, RIGHT, bottom + 25, "end", "bytes of K and V a token");
    if (has_floor) {
        app_text_add(text, "<path class=\"floor\" d=\"M%d,%.1fH%d\"/>\n", LEFT, eval_axis_at(&y, pass->floor.kl), RIGHT);
        eval_svg_text(text, RIGHT, eval_axis_at(&y, pass->floor.kl) - 3, "end", "noise floor");
    }
    for (uint32_t f = 0; f < r->n_formats; f++) {
        const eval_quality *const q = &t->quality[f];
        const double at = eval_axis_at(&x, (double)r->formats[f].kv_bytes_per_token);
        if (f > 0 && q->kl.mean > 0 && isfinite(q->kl.mean_interval.low)) {
            app_text_add(text, "<path class=\"bar\" d=\"M%.1f,%.1fV%.1f\"/>\n", at, eval_axis_at(&y, q->kl.mean_interval.low), eval_axis_at(&y, q->kl.mean_interval.high));
        }
        /* The base loses nothing: it stands at the foot. */
        eval_svg_sign(text, f, at, f > 0 && q->kl.mean > 0 ? eval_axis_at(&y, q->kl.mean) : bottom);
    }
    (void)add_legend(r, 0, bottom + 42, text);
    eval_html_figure_end(text, "Lower and further left is better. The base, which loses nothing against itself, stands at the foot.");
}

void eval_html_quality(const eval_result *r, const eval_pass *pass, uint32_t p, app_text *text)
{
    app_text_add(text, "<h3 id=\"quality%u\">Quality against bytes</h3>\n", p);
    for (uint32_t i = 0; i < pass->n_texts; i++) {
        char id[32];
        (void)snprintf(id, sizeof(id), "q%ut%u", p, i);
        if (pass->texts[i].quality != NULL && pass->texts[i].n_tokens > 0) {
            add_quality_picture(r, pass, &pass->texts[i], id, text);
            add_quality_table(r, &pass->texts[i], text);
        }
    }
    if (pass->n_texts == 0) {
        app_text_add(text, "<p>Tokens were not judged.</p>\n");
    }
}

/* ---- loss against position --------------------------------------------------------------------------------------------------------------------- */

static void add_position_picture(const eval_result *r, const eval_text *t, const char *id, app_text *text)
{
    static const char *const dashes[] = { "", "6 3", "2 3", "8 3 2 3", "12 4", "4 2" };
    double least = (double)NAN, most = (double)NAN;
    uint32_t last = 1;
    for (uint32_t f = 1; f < r->n_formats; f++) {
        for (uint32_t i = 0; i < t->quality[f].n_positions; i++) {
            const eval_position *const at = &t->quality[f].positions[i];
            last = at->last > last ? at->last : last;
            if (at->kl > 0) {
                least = least_of(least, at->kl);
                most = most_of(most, at->kl + (at->kl_stderr > 0 ? at->kl_stderr : 0));
            }
        }
    }
    const int bottom = 200, height = bottom + 34 + LINE * (int)(r->n_formats > 1 ? r->n_formats - 1 : 0);
    const eval_axis y = eval_axis_make(least, most, true, bottom, 16), x = eval_axis_make(0, last, false, LEFT, RIGHT);
    eval_html_figure(text, id, "Loss against position", "Mean KL of each format by position in the context; bars are one standard error.", WIDTH, height);
    eval_svg_axis(text, &y, true, LEFT, RIGHT - LEFT, "");
    eval_svg_axis(text, &x, false, bottom, bottom - 16, "");
    eval_svg_text(text, 2, 10, "start", "KL, nats a token");
    eval_svg_text(text, RIGHT, bottom + 25, "end", "tokens before");
    for (uint32_t f = 1; f < r->n_formats; f++) {
        const eval_quality *const q = &t->quality[f];
        app_text line = { 0 };
        for (uint32_t i = 0; i < q->n_positions; i++) {
            const eval_position *const at = &q->positions[i];
            const double px = eval_axis_at(&x, ((double)at->first + at->last) / 2), py = eval_axis_at(&y, at->kl);
            if (!(at->kl > 0)) {
                continue;
            }
            app_text_add(&line, "%s%.1f,%.1f", line.length > 0 ? " " : "", px, py);
            if (at->kl_stderr > 0 && at->kl > at->kl_stderr) {
                app_text_add(text, "<path class=\"bar\" d=\"M%.1f,%.1fV%.1f\"/>\n", px, eval_axis_at(&y, at->kl - at->kl_stderr), eval_axis_at(&y, at->kl + at->kl_stderr));
            }
            eval_svg_sign(text, f, px, py);
        }
        if (line.length > 0) {
            app_text_add(text, "<polyline class=\"line c%u\" style=\"fill:none\" stroke-dasharray=\"%s\" points=\"%s\"/>\n", f % 6, dashes[f % 6][0] != '\0' ? dashes[f % 6] : "none", line.bytes);
        }
        text->failed |= line.failed;
        app_text_free(&line);
    }
    (void)add_legend(r, 1, bottom + 42, text);
    eval_html_figure_end(text, "A line that climbs loses more the longer the context.");
}

void eval_html_positions(const eval_result *r, const eval_pass *pass, uint32_t p, app_text *text)
{
    app_text_add(text, "<h3 id=\"position%u\">Loss against position</h3>\n", p);
    for (uint32_t i = 0; i < pass->n_texts; i++) {
        char id[32];
        (void)snprintf(id, sizeof(id), "p%ut%u", p, i);
        if (pass->texts[i].quality != NULL && r->n_formats > 1) {
            add_position_picture(r, &pass->texts[i], id, text);
        }
    }
}

/* ---- tasks ---------------------------------------------------------------------------------------------------------------------------------------- */

static bool has_verdicts(const eval_task *t) { return t->skipped == NULL && t->verdicts != NULL && t->n_items > 0; }

static void add_task_row(const eval_result *r, const eval_task *t, uint32_t f, const eval_axis *x, double y, app_text *text)
{
    const eval_verdict *const v = &t->verdicts[f];
    char line[160];
    const char *const name = r->formats[f].label;
    (void)snprintf(line, sizeof(line), "%.46s", name);
    eval_svg_text(text, 8, y, "start", line);
    (void)snprintf(line, sizeof(line), v->distinguishable ? "%+.1f points *" : "%+.1f points", 100 * v->difference);
    eval_svg_text(text, RIGHT, y, "end", line);
    const double low = 100 * v->difference_interval.low, high = 100 * v->difference_interval.high;
    if (isfinite(low) && isfinite(high)) {
        app_text_add(text, "<path class=\"bar\" d=\"M%.1f,%.1fH%.1fM%.1f,%.1fv6M%.1f,%.1fv6\"/>\n", eval_axis_at(x, low), y + 9, eval_axis_at(x, high), eval_axis_at(x, low), y + 6,
                     eval_axis_at(x, high), y + 6);
    }
    eval_svg_sign(text, f, eval_axis_at(x, 100 * v->difference), y + 9);
}

static void add_task_picture(const eval_result *r, const eval_pass *pass, const char *id, app_text *text)
{
    enum { ROW = 32, TITLE = 22 };
    double least = -1, most = 1;
    uint32_t n_rows = 0, n_tasks = 0;
    for (uint32_t i = 0; i < pass->n_tasks; i++) {
        for (uint32_t f = 1; f < r->n_formats && has_verdicts(&pass->tasks[i]); f++, n_rows++) {
            const eval_interval d = pass->tasks[i].verdicts[f].difference_interval;
            least = isfinite(d.low) ? least_of(least, 100 * d.low) : least;
            most = isfinite(d.high) ? most_of(most, 100 * d.high) : most;
        }
        n_tasks += has_verdicts(&pass->tasks[i]);
    }
    if (n_rows == 0) {
        return;
    }
    const int bottom = 10 + ROW * (int)n_rows + TITLE * (int)n_tasks;
    const eval_axis x = eval_axis_make(least, most, false, 16, RIGHT - 8);
    eval_html_figure(text, id, "Differences from the base on tasks", "Difference of accuracy from the base in points, with 95 % intervals for matched items; a star marks what chance hardly does.", WIDTH, bottom + 22);
    eval_svg_axis(text, &x, false, bottom, bottom - 10, "");
    app_text_add(text, "<path class=\"axis\" d=\"M%.1f,10V%d\"/>\n", eval_axis_at(&x, 0), bottom);
    double y = 10;
    for (uint32_t i = 0; i < pass->n_tasks; i++) {
        if (!has_verdicts(&pass->tasks[i])) {
            continue;
        }
        char title[128];
        (void)snprintf(title, sizeof(title), "%s: %u items, the base %.1f %%", pass->tasks[i].title, pass->tasks[i].n_items, 100 * pass->tasks[i].verdicts[0].accuracy);
        y += TITLE;
        app_text_add(text, "<g font-weight=\"bold\">");
        eval_svg_text(text, 2, y - 6, "start", title);
        app_text_add(text, "</g>\n");
        for (uint32_t f = 1; f < r->n_formats; f++, y += ROW) {
            add_task_row(r, &pass->tasks[i], f, &x, y + 8, text);
        }
    }
    eval_html_figure_end(text, "An interval that crosses the middle line: the difference is not distinguishable from chance with so many items. * p below 0.05 after Holm's correction.");
}

static void add_task_table(const eval_result *r, const eval_task *t, app_text *text)
{
    app_text_add(text, "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"");
    eval_html_text(text, t->title);
    app_text_add(text, "\"><table>\n<caption>");
    eval_html_text(text, t->title);
    app_text_add(text, ": %u items. ", t->n_items);
    eval_html_text(text, t->how);
    app_text_add(text, "</caption>\n<tr><th class=\"t\" scope=\"col\">format</th><th scope=\"col\">right</th><th scope=\"col\">accuracy (95 %%)</th><th scope=\"col\">difference in points (95 %%)</th><th scope=\"col\">lost</th>"
                       "<th scope=\"col\">won</th><th scope=\"col\">p</th><th scope=\"col\">p, Holm</th><th scope=\"col\">score change (95 %%)</th><th class=\"t\" scope=\"col\">verdict</th></tr>\n");
    for (uint32_t f = 0; f < r->n_formats; f++) {
        const eval_verdict *const v = &t->verdicts[f];
        app_text_add(text, "<tr><th class=\"t\" scope=\"row\">");
        eval_html_text(text, r->formats[f].label);
        app_text_add(text, "</th><td>%u</td><td>%.1f (%.1f to %.1f)</td>", v->n_correct, 100 * v->accuracy, 100 * v->accuracy_interval.low, 100 * v->accuracy_interval.high);
        if (f == 0) {
            app_text_add(text, "<td></td><td></td><td></td><td></td><td></td><td></td><td class=\"t\">the base</td></tr>\n");
            continue;
        }
        app_text_add(text, "<td>%+.1f (%+.1f to %+.1f)</td><td>%u</td><td>%u</td><td>", 100 * v->difference, 100 * v->difference_interval.low, 100 * v->difference_interval.high, v->n_lost, v->n_won);
        eval_html_number(text, "%.3g", v->p_value);
        app_text_add(text, "</td><td>");
        eval_html_number(text, "%.3g", v->p_holm);
        app_text_add(text, "</td><td>");
        eval_html_number(text, "%+.1e", v->score_change);
        if (isfinite(v->score_change)) {
            app_text_add(text, " (");
            eval_html_number(text, "%+.1e", v->score_change_interval.low);
            app_text_add(text, " to ");
            eval_html_number(text, "%+.1e", v->score_change_interval.high);
            app_text_add(text, ")");
        }
        if (eval_n_unscored(t, f) > 0) {
            app_text_add(text, " without %u items that have no score", eval_n_unscored(t, f));
        }
        app_text_add(text, "</td><td class=\"t\">");
        if (v->distinguishable) {
            app_text_add(text, "%s than the base", v->difference < 0 ? "worse" : "better");
        } else {
            app_text_add(text, "not distinguishable with %u items", t->n_items);
        }
        app_text_add(text, "</td></tr>\n");
    }
    app_text_add(text, "</table></div>\n");
}

void eval_html_tasks(const eval_result *r, const eval_pass *pass, uint32_t p, app_text *text)
{
    char id[32];
    (void)snprintf(id, sizeof(id), "k%u", p);
    app_text_add(text, "<h3 id=\"tasks%u\">Tasks</h3>\n", p);
    add_task_picture(r, pass, id, text);
    for (uint32_t i = 0; i < pass->n_tasks; i++) {
        if (has_verdicts(&pass->tasks[i])) {
            add_task_table(r, &pass->tasks[i], text);
            eval_html_cells(r, &pass->tasks[i], text);
        } else {
            app_text_add(text, "<p>");
            eval_html_text(text, pass->tasks[i].title);
            app_text_add(text, " was not run: ");
            eval_html_text(text, pass->tasks[i].skipped != NULL ? pass->tasks[i].skipped : "no items");
            app_text_add(text, "</p>\n");
        }
    }
    if (pass->n_tasks == 0) {
        app_text_add(text, "<p>No tasks were run.</p>\n");
    }
}

/* ---- worst tokens ----------------------------------------------------------------------------------------------------------------------------------- */

static void add_worst_table(const eval_result *r, const eval_quality *q, uint32_t f, app_text *text)
{
    app_text_add(text, "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"worst tokens\"><table>\n<caption>");
    eval_html_text(text, r->formats[f].label);
    app_text_add(text, "</caption>\n<tr><th scope=\"col\">KL</th><th scope=\"col\">position</th><th class=\"t\" scope=\"col\">what stands before, and the token</th><th class=\"t\" scope=\"col\">the base would say</th>"
                       "<th class=\"t\" scope=\"col\">this format</th><th scope=\"col\">p, base</th><th scope=\"col\">p</th></tr>\n");
    for (uint32_t i = 0; i < q->n_worst; i++) {
        const eval_worst *const w = &q->worst[i];
        app_text_add(text, "<tr><td>");
        eval_html_number(text, "%.3g", w->kl);
        app_text_add(text, "</td><td>%u</td><td class=\"t\"><bdi>", w->position);
        eval_html_text(text, w->before);
        app_text_add(text, "</bdi><mark><bdi>");
        eval_html_text(text, w->token);
        app_text_add(text, "</bdi></mark></td><td class=\"t\"><bdi>");
        eval_html_text(text, w->base_top);
        app_text_add(text, "</bdi></td><td class=\"t\"><bdi>");
        eval_html_text(text, w->top);
        app_text_add(text, "</bdi></td><td>");
        eval_html_number(text, "%.3g", w->base_p);
        app_text_add(text, "</td><td>");
        eval_html_number(text, "%.3g", w->p);
        app_text_add(text, "</td></tr>\n");
    }
    app_text_add(text, "</table></div>\n");
}

void eval_html_worst(const eval_result *r, const eval_pass *pass, app_text *text)
{
    app_text_add(text, "<h3 id=\"worst%u\">Worst tokens</h3>\n", (unsigned)(pass - r->passes));
    for (uint32_t i = 0; i < pass->n_texts; i++) {
        for (uint32_t f = 1; f < r->n_formats && pass->texts[i].quality != NULL; f++) {
            if (pass->texts[i].quality[f].n_worst > 0) {
                add_worst_table(r, &pass->texts[i].quality[f], f, text);
            }
        }
    }
}
