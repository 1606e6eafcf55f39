/* html_inside.c: the pictures of what was seen inside the model. See html.h. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "apps/eval/html.h"
#include "apps/eval/inside.h"

enum { WIDTH = 340, LEFT = 44, RIGHT = 328, MAX_ROWS = 48 };

/* ---- heat maps: a square is larger the more noise there is, so that they can be read without colours ---------------------------------------------------- */

#define QUIET_DB 60.0

typedef struct map { const char *name; const char *records; size_t record_bytes, offset; uint32_t n_heads; } map;

static double size_of(double db) { return isnan(db) ? 0 : db >= QUIET_DB ? 0.08 : db <= 0 ? 1 : 1 - 0.92 * db / QUIET_DB; }

/* Layers run across, heads down. Returns where the next may begin. */
static double add_map(const eval_inside *in, const map *m, double y, app_text *text)
{
    const double cell = (double)(RIGHT - LEFT) / in->n_layers < 12 ? (double)(RIGHT - LEFT) / in->n_layers : 12;
    double least = (double)NAN;
    uint32_t at_layer = 0, at_head = 0;
    app_text squares = { 0 };
    for (uint32_t il = 0; il < in->n_layers; il++) {
        for (uint32_t h = 0; h < m->n_heads; h++) {
            double db;
            memcpy(&db, m->records + ((size_t)il * m->n_heads + h) * m->record_bytes + m->offset, sizeof(db));
            const double side = size_of(db) * cell;
            if (db < least || (isnan(least) && !isnan(db))) {
                least = db;
                at_layer = il;
                at_head = h;
            }
            if (side > 0) {
                app_text_add(&squares, "M%.2f,%.2fh%.2fv%.2fh-%.2fz", LEFT + (il + 0.5) * cell - side / 2, y + 4 + (h + 0.5) * cell - side / 2, side, side, side);
            }
        }
    }
    char line[128];
    (void)snprintf(line, sizeof(line), isnan(least) ? "%s: not measured" : least == EVAL_EXACT_DB ? "%s: exact" : "%s: the noisiest has %.1f dB, layer %u, head %u", m->name, least, at_layer, at_head);
    eval_svg_text(text, 2, y, "start", line);
    app_text_add(text, "<rect class=\"frame\" x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n", LEFT, y + 4, cell * in->n_layers, cell * m->n_heads);
    app_text_add(text, "<path class=\"cell\" d=\"%s\"/>\n", squares.bytes != NULL ? squares.bytes : "");
    eval_svg_text(text, LEFT - 4, y + 4 + cell / 2 + 3, "end", "head 0");
    const double foot = y + 4 + cell * m->n_heads + 10;
    for (uint32_t il = 0; il < in->n_layers; il += (in->n_layers + 7) / 8) {
        (void)snprintf(line, sizeof(line), "%u", il);
        eval_svg_text(text, LEFT + (il + 0.5) * cell, foot, "middle", line);
    }
    text->failed |= squares.failed;
    app_text_free(&squares);
    return foot + 18;
}

static void add_maps(const eval_result *r, const eval_inside *in, const eval_inside_format *f, const char *id, app_text *text)
{
    const map maps[] = {
        { "K", (const char *)f->kept[0], sizeof(eval_kept), offsetof(eval_kept, snr_db), in->n_heads_kv },
        { "V", (const char *)f->kept[1], sizeof(eval_kept), offsetof(eval_kept, snr_db), in->n_heads_kv },
        { "scores", (const char *)f->attended, sizeof(eval_attended), offsetof(eval_attended, scores_db), in->n_heads },
        { "attention output", (const char *)f->attended, sizeof(eval_attended), offsetof(eval_attended, output_db), in->n_heads },
    };
    const double cell = (double)(RIGHT - LEFT) / in->n_layers < 12 ? (double)(RIGHT - LEFT) / in->n_layers : 12;
    const int height = (int)(4 * 34 + 2 * cell * (in->n_heads_kv + in->n_heads)) + 4;
    char title[128], line[16];
    (void)snprintf(title, sizeof(title), "%.60s: noise of each layer and head", r->formats[f->format].label);
    eval_html_figure(text, id, title, "Layers run from left to right, heads from top to bottom. The larger a square, the more noise: full at 0 dB, a dot at 60 dB. All numbers are at the end of the page.", WIDTH,
                     height);
    double y = 10;
    for (size_t i = 0; i < sizeof(maps) / sizeof(maps[0]); i++) {
        y = add_map(in, &maps[i], y, text);
    }
    (void)snprintf(line, sizeof(line), "layer");
    eval_svg_text(text, LEFT - 4, y - 18, "end", line);
    eval_html_figure_end(text, title);
}

/* ---- saturated and zeroed -------------------------------------------------------------------------------------------------------------------------------- */

static void add_shares(const eval_inside *in, const eval_inside_format *f, int side, double y, app_text *text)
{
    const double width = (double)(RIGHT - LEFT) / in->n_layers;
    const eval_axis axis = { 1e-6, 1, y + 70, y, true };
    eval_svg_axis(text, &axis, true, LEFT, RIGHT - LEFT, "");
    eval_svg_text(text, 2, y - 6, "start", side == 0 ? "K, share of values" : "V, share of values");
    for (uint32_t il = 0; il < in->n_layers; il++) {
        double saturated = 0, zeroed = 0;
        for (uint32_t h = 0; h < in->n_heads_kv; h++) {
            saturated += f->kept[side][(size_t)il * in->n_heads_kv + h].saturated / in->n_heads_kv;
            zeroed += f->kept[side][(size_t)il * in->n_heads_kv + h].zeroed / in->n_heads_kv;
        }
        const double x = LEFT + il * width;
        if (zeroed > 0) {
            app_text_add(text, "<rect class=\"hatch\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\"/>\n", x + width * 0.1, eval_axis_at(&axis, zeroed), width * 0.35,
                         axis.from - eval_axis_at(&axis, zeroed));
        }
        if (saturated > 0) {
            app_text_add(text, "<rect class=\"cell\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\"/>\n", x + width * 0.55, eval_axis_at(&axis, saturated), width * 0.35,
                         axis.from - eval_axis_at(&axis, saturated));
        }
    }
}

static void add_saturation(const eval_result *r, const eval_inside *in, const eval_inside_format *f, const char *id, app_text *text)
{
    char title[128];
    (void)snprintf(title, sizeof(title), "%.60s: values saturated and stored as 0", r->formats[f->format].label);
    eval_html_figure(text, id, title, "By layer from left to right. Filled bars: shares of values cut to the format's largest. Hollow bars: stored as 0 without being 0.", WIDTH, 212);
    add_shares(in, f, 0, 20, text);
    add_shares(in, f, 1, 124, text);
    eval_svg_text(text, RIGHT, 208, "end", "filled: saturated; hollow: stored as 0");
    eval_html_figure_end(text, title);
}

/* ---- one layer at a time ------------------------------------------------------------------------------------------------------------------------------------ */

static void add_alone_picture(const eval_result *r, const eval_sensitivity *s, const char *id, app_text *text)
{
    enum { ROW = 13, TOP = 28 };
    double least = s->floor > 0 ? s->floor : (double)NAN, most = s->kl_all > 0 ? s->kl_all : (double)NAN;
    for (uint32_t i = 0; i < s->n; i++) {
        const double all[3] = { s->alone[i].kl, s->alone[i].kl_k, s->alone[i].kl_v };
        for (int j = 0; j < 3; j++) {
            least = all[j] > 0 && !(all[j] >= least) ? all[j] : least;
            most = all[j] > 0 && !(all[j] <= most) ? all[j] : most;
        }
    }
    const uint32_t n = s->n < MAX_ROWS ? s->n : MAX_ROWS;
    const int bottom = TOP + ROW * (int)n;
    const eval_axis x = eval_axis_make(least, most, true, LEFT + 12, RIGHT);
    char line[128];
    (void)snprintf(line, sizeof(line), "%.60s: what one layer alone costs", r->formats[s->format].label);
    eval_html_figure(text, id, line, "One row a layer, the costliest first: KL with that layer alone in the format. Square: K and V; triangle: K alone; diamond: V alone.", WIDTH, bottom + 46);
    eval_svg_axis(text, &x, false, bottom, bottom - TOP + 4, "");
    const double marks[2] = { s->floor, s->kl_all };
    for (int j = 0; j < 2; j++) {
        if (marks[j] > 0) {
            app_text_add(text, "<path class=\"floor\" d=\"M%.1f,%dV%d\"/>\n", eval_axis_at(&x, marks[j]), TOP - 4, bottom);
            /* One above the other, wherever the two lie, and within the picture. */
            eval_svg_text(text, eval_axis_at(&x, marks[j]), j == 0 ? 10 : 21, eval_axis_at(&x, marks[j]) > WIDTH / 2 ? "end" : "start", j == 0 ? "noise" : "all layers");
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        const eval_alone *const a = &s->alone[i];
        const double y = TOP + ROW * (i + 0.5), all[3] = { a->kl, a->kl_k, a->kl_v };
        (void)snprintf(line, sizeof(line), "layer %u", a->layer);
        eval_svg_text(text, LEFT + 6, y + 3.5, "end", line);
        for (int j = 2; j >= 0; j--) {
            if (all[j] > 0) {
                eval_svg_sign(text, (uint32_t)j, eval_axis_at(&x, all[j]), y);
            }
        }
    }
    eval_svg_text(text, RIGHT, bottom + 26, "end", "KL, nats a token, with that layer alone in the format");
    eval_svg_text(text, RIGHT, bottom + 40, "end", "square: K and V; triangle: K alone; diamond: V alone");
    (void)snprintf(line, sizeof(line), "%u of %u layers, the costliest first.", n, s->n);
    eval_html_figure_end(text, line);
}

static void add_alone_table(const eval_result *r, const eval_inside *in, const eval_sensitivity *s, app_text *text)
{
    app_text_add(text, "<p>");
    eval_html_text(text, r->formats[s->format].label);
    app_text_add(text, ": %u tokens judged behind %u. All layers together: KL ", in->n_alone_judged, in->n_alone_tokens - in->n_alone_judged);
    eval_html_number(text, "%.2e", s->kl_all);
    app_text_add(text, "; the base against the same cache in f32, which is the arithmetic&#39;s own noise: ");
    eval_html_number(text, "%.2e", s->floor);
    app_text_add(text, ".</p>\n<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"one layer at a time\"><table>\n<caption>One layer at a time, ");
    eval_html_text(text, r->formats[s->format].label);
    app_text_add(text, "</caption>\n<tr><th scope=\"col\">rank</th><th scope=\"col\">layer</th><th scope=\"col\">K and V</th><th scope=\"col\">K alone</th><th scope=\"col\">V alone</th><th scope=\"col\">same top-1</th></tr>\n");
    for (uint32_t i = 0; i < s->n; i++) {
        app_text_add(text, "<tr><td>%u</td><th scope=\"row\">%u</th><td>", i + 1, s->alone[i].layer);
        eval_html_number(text, "%.2e", s->alone[i].kl);
        app_text_add(text, "</td><td>");
        eval_html_number(text, "%.2e", s->alone[i].kl_k);
        app_text_add(text, "</td><td>");
        eval_html_number(text, "%.2e", s->alone[i].kl_v);
        app_text_add(text, "</td><td>");
        eval_html_number(text, "%.3f", s->alone[i].same_top);
        app_text_add(text, "</td></tr>\n");
    }
    app_text_add(text, "</table></div>\n");
}

/* ---- the part ------------------------------------------------------------------------------------------------------------------------------------------------- */

void eval_html_inside(const eval_result *r, const eval_pass *pass, uint32_t p, app_text *text)
{
    const eval_inside *const in = pass->inside;
    char id[32];
    app_text_add(text, "<h3 id=\"inside%u\">Inside the model</h3>\n<p>%u tokens through every layer, each judged on its own inputs; attention of %u rows against f64 over K and V as the model made them.</p>\n", p,
                 in->n_tokens, in->n_rows);
    if (in->n_findings == 0) {
        app_text_add(text, "<p>Nothing stands out that the formats&#39; rounding does not explain.</p>\n");
    }
    for (uint32_t i = 0; i < in->n_findings; i++) {
        const eval_finding *const f = &in->findings[i];
        app_text_add(text, "<p class=\"finding\"><strong>Layer %u, %s</strong>, ", f->layer, f->part == EVAL_PART_LAYER ? "K and V" : eval_part_name(f->part));
        eval_html_text(text, f->format < r->n_formats ? r->formats[f->format].label : "?");
        app_text_add(text, ": ");
        eval_html_text(text, f->text);
        app_text_add(text, ".</p>\n");
    }
    if (in->n_findings_more > 0) {
        app_text_add(text, "<p class=\"finding\">And %u more, for which this list has no room.</p>\n", in->n_findings_more);
    }
    for (uint32_t i = 0; i < in->n_formats; i++) {
        (void)snprintf(id, sizeof(id), "h%uf%u", p, i);
        add_maps(r, in, &in->formats[i], id, text);
    }
    app_text_add(text, "<h3 id=\"alone%u\">Sensitivity: one layer at a time</h3>\n", p);
    for (uint32_t i = 0; i < in->n_sensitivities; i++) {
        (void)snprintf(id, sizeof(id), "a%uf%u", p, i);
        add_alone_picture(r, &in->sensitivities[i], id, text);
        add_alone_table(r, in, &in->sensitivities[i], text);
    }
    app_text_add(text, "<h3 id=\"saturation%u\">Saturation</h3>\n", p);
    for (uint32_t i = 0; i < in->n_formats; i++) {
        (void)snprintf(id, sizeof(id), "s%uf%u", p, i);
        add_saturation(r, in, &in->formats[i], id, text);
    }
}
