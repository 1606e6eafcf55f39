/* html_tables.c: tables of their own: where greedy continuations part, and right answers by length and depth. See html.h. */
#include "apps/eval/html.h"

static void begin_table(const char *name, app_text *text)
{
    app_text_add(text, "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"");
    eval_html_text(text, name);
    app_text_add(text, "\"><table>\n<caption>");
    eval_html_text(text, name);
    app_text_add(text, "</caption>\n");
}

void eval_html_greedy(const eval_result *r, const eval_pass *pass, uint32_t p, app_text *text)
{
    const eval_greedy *const g = &pass->greedy;
    app_text_add(text, "<h3 id=\"greedy%u\">Greedy continuations</h3>\n<p>%u prompts, %u tokens each: where a format&#39;s words first differ from the base&#39;s, counted from 0.</p>\n", p, g->n_prompts, g->n_tokens);
    begin_table("First other token", text);
    app_text_add(text, "<tr><th class=\"t\" scope=\"col\">format</th><th scope=\"col\">median</th><th scope=\"col\">never another</th><th class=\"t\" scope=\"col\">by prompt</th></tr>\n");
    for (uint32_t f = 1; f < r->n_formats; f++) {
        app_text_add(text, "<tr><th class=\"t\" scope=\"row\">");
        eval_html_text(text, r->formats[f].label);
        app_text_add(text, "</th><td>");
        eval_html_number(text, "%.4g", g->summary[f].median);
        app_text_add(text, "</td><td>%u of %u</td><td class=\"t\">", g->summary[f].n_same, g->n_prompts);
        for (uint32_t i = 0; i < g->n_prompts; i++) {
            const uint32_t first = g->first_different[(uint64_t)f * g->n_prompts + i];
            app_text_add(text, first == g->n_tokens ? "%s\xE2\x80\x93" : "%s%u", i > 0 ? " " : "", first);
        }
        app_text_add(text, "</td></tr>\n");
    }
    app_text_add(text, "</table></div>\n");
}

void eval_html_cells(const eval_result *r, const eval_task *t, app_text *text)
{
    if (t->n_cells < 2) {
        return;
    }
    app_text_add(text, "<p>");
    eval_html_text(text, t->title);
    app_text_add(text, ", right answers by length and depth:</p>\n");
    begin_table("By length and depth", text);
    app_text_add(text, "<tr><th scope=\"col\">length</th><th scope=\"col\">depth</th><th scope=\"col\">items</th>");
    for (uint32_t f = 0; f < r->n_formats; f++) {
        app_text_add(text, "<th scope=\"col\">");
        eval_html_text(text, r->formats[f].label);
        app_text_add(text, "</th>");
    }
    app_text_add(text, "</tr>\n");
    for (uint32_t c = 0; c < t->n_cells; c++) {
        const eval_cell *const cell = &t->cells[c];
        app_text_add(text, "<tr><th scope=\"row\">%u</th><td>", cell->length_tokens);
        if (cell->depth < 0) {
            app_text_add(text, "\xE2\x80\x93");
        } else {
            app_text_add(text, "%.0f %%", 100 * cell->depth);
        }
        app_text_add(text, "</td><td>%u</td>", cell->n_items);
        for (uint32_t f = 0; f < r->n_formats; f++) {
            app_text_add(text, "<td>%u</td>", cell->n_correct[f]);
        }
        app_text_add(text, "</tr>\n");
    }
    app_text_add(text, "</table></div>\n");
}
