/* html.c: see html.h. The page and what its parts share. */
#include "apps/eval/html.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "apps/eval/inside.h"

enum { DIGITS = 6 };

/* ---- text ------------------------------------------------------------------------------------------------------------------------------------ */

/* Bytes of the valid UTF-8 character at s and its number; 0 bytes: none. */
static size_t decode(const unsigned char *s, uint32_t *code)
{
    const size_t n = s[0] < 0x80 ? 1 : s[0] < 0xC2 ? 0 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : s[0] < 0xF5 ? 4 : 0;
    *code = n == 1 ? s[0] : n > 1 ? s[0] & (0xFFu >> (n + 1)) : 0;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80) {
            return 0;
        }
        *code = *code << 6 | (s[i] & 0x3F);
    }
    const uint32_t least = n == 3 ? 0x800 : n == 4 ? 0x10000 : 0;
    return *code < least || *code > 0x10FFFF || (*code >= 0xD800 && *code < 0xE000) ? 0 : n;
}

static bool turns_direction(uint32_t c) { return (c >= 0x202A && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069) || c == 0x200E || c == 0x200F || c == 0x061C; }

void eval_html_text(app_text *text, const char *string)
{
    for (const unsigned char *s = (const unsigned char *)(string != NULL ? string : ""); *s != '\0';) {
        uint32_t c;
        const size_t n = decode(s, &c);
        if (n == 0 || c == 0xFFFE || c == 0xFFFF || (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7F && c < 0xA0)) {
            app_text_add(text, "\xEF\xBF\xBD");
        } else if (turns_direction(c)) {
            app_text_add(text, "[U+%04X]", c);
        } else if (c == '&' || c == '<' || c == '>' || c == '"' || c == '\'') {
            app_text_add(text, "&#%u;", c);
        } else if (c == '\n') {
            app_text_add(text, "\xE2\x8F\x8E");   /* a sign for the end of a line: texts stand in cells */
        } else {
            app_text_add_bytes(text, (const char *)s, n);
        }
        s += n > 0 ? n : 1;
    }
}

void eval_html_number(app_text *text, const char *format, double value)
{
    if (!isfinite(value)) {
        app_text_add(text, "\xE2\x80\x93");
        return;
    }
    app_text_add(text, "<data value=\"");
    app_text_add_number(text, value, DIGITS);
    app_text_add(text, "\">");
    app_text_add(text, format, value);
    app_text_add(text, "</data>");
}

/* ---- pictures ----------------------------------------------------------------------------------------------------------------------------------- */

void eval_html_figure(app_text *text, const char *id, const char *title, const char *description, int width, int height)
{
    app_text_add(text, "<figure>\n<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-labelledby=\"%s-t %s-d\">\n<title id=\"%s-t\">", width, height, id, id, id);
    eval_html_text(text, title);
    app_text_add(text, "</title>\n<desc id=\"%s-d\">", id);
    eval_html_text(text, description);
    app_text_add(text, "</desc>\n");
}

void eval_html_figure_end(app_text *text, const char *caption)
{
    app_text_add(text, "</svg>\n<figcaption>");
    eval_html_text(text, caption);
    app_text_add(text, "</figcaption>\n</figure>\n");
}

void eval_svg_text(app_text *text, double x, double y, const char *anchor, const char *string)
{
    app_text_add(text, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    eval_html_text(text, string);
    app_text_add(text, "</text>\n");
}

void eval_svg_sign(app_text *text, uint32_t format, double x, double y)
{
    static const char *const paths[] = { "M-4,-4h8v8h-8z", "M0,-5L5,4H-5z", "M0,-5L5,0L0,5L-5,0z", "M-5,-5L5,5M5,-5L-5,5", "M0,-6V6M-6,0H6", "M0,5L5,-4H-5z", "M-5,-2H5V2H-5z", "M-2,-5H2V5H-2z" };
    const uint32_t n = sizeof(paths) / sizeof(paths[0]);
    const bool hollow = format % (2 * n) >= n;
    app_text_add(text, "<path class=\"c%u%s\" transform=\"translate(%.1f,%.1f)\" d=\"%s\"/>\n", format % 6, hollow ? " hollow" : "", x, y, paths[format % n]);
}

double eval_axis_at(const eval_axis *a, double value)
{
    const double x = a->is_log ? log10(value > 0 ? value : a->least) : value, least = a->is_log ? log10(a->least) : a->least, most = a->is_log ? log10(a->most) : a->most;
    const double share = most > least ? (x - least) / (most - least) : 0.5;
    return a->from + (share < 0 ? 0 : share > 1 ? 1 : share) * (a->to - a->from);
}

static double round_step(double range)
{
    const double power = pow(10, floor(log10(range / 4)));
    const double times = range / 4 / power;
    return (times < 1.5 ? 1 : times < 3.5 ? 2 : times < 7.5 ? 5 : 10) * power;
}

eval_axis eval_axis_make(double least, double most, bool is_log, double from, double to)
{
    eval_axis a = { least, most, from, to, is_log };
    if (is_log) {
        a.least = isfinite(least) && least > 0 ? pow(10, floor(log10(least))) : 1e-6;
        a.most = isfinite(most) && most > a.least ? pow(10, ceil(log10(most))) : a.least;
        a.most = a.most > a.least ? a.most : 10 * a.least;
    } else {
        if (!isfinite(least) || !isfinite(most)) {
            a.least = 0;
            a.most = 1;
        } else if (!(most > least)) {
            a.most = least + 1;
        }
        const double step = round_step(a.most - a.least);
        a.least = floor(a.least / step) * step;
        a.most = ceil(a.most / step) * step;
    }
    return a;
}

void eval_svg_axis(app_text *text, const eval_axis *a, bool vertical, double at, double across, const char *unit)
{
    const double step = a->is_log ? 1 : round_step(a->most - a->least), least = a->is_log ? log10(a->least) : a->least, most = a->is_log ? log10(a->most) : a->most;
    const int n = (int)floor((most - least) / step + 0.5), every = a->is_log && n > 6 ? (n + 5) / 6 : 1;
    for (int i = 0; i <= n && i < 40; i += every) {
        const double x = least + i * step, value = a->is_log ? pow(10, x) : fabs(x) < step / 1000 ? 0 : x, place = eval_axis_at(a, value);
        char label[48];
        (void)snprintf(label, sizeof(label), a->is_log && (value < 0.01 || value >= 10000) ? "1e%.0f%s" : "%.6g%s", a->is_log && (value < 0.01 || value >= 10000) ? x : value, unit);
        if (vertical) {
            app_text_add(text, "<path class=\"grid\" d=\"M%.1f,%.1fh%.1f\"/>\n", at, place, across);
            eval_svg_text(text, at - 4, place + 3.5, "end", label);
        } else {
            app_text_add(text, "<path class=\"grid\" d=\"M%.1f,%.1fv%.1f\"/>\n", place, at, -across);
            eval_svg_text(text, i == n ? place + 8 : place, at + 13, i == n ? "end" : "middle", label);
        }
    }
}

/* ---- the page -------------------------------------------------------------------------------------------------------------------------------------- */

/* No colour says anything alone: signs have shapes, lines have dashes, squares have sizes, and numbers stand beside. */
static const char style[] =
    ":root{color-scheme:light dark;--ink:#1c1c1c;--paper:#fff;--line:#bbb;--soft:#f0f0f0;--c0:#444;--c1:#0050b3;--c2:#b34700;--c3:#00704a;--c4:#7a2fa0;--c5:#a0002d}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#eee;--paper:#161616;--line:#666;--soft:#262626;--c0:#bbb;--c1:#7db7ff;--c2:#ffae70;--c3:#6fd3a8;--c4:#d3a0f0;--c5:#ff8fa8}}\n"
    "*{box-sizing:border-box}body{margin:0 auto;padding:1rem;max-width:60rem;font:16px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper);overflow-wrap:anywhere}\n"
    "a{color:var(--c1)}a:focus,.wide:focus,summary:focus{outline:3px solid var(--c2);outline-offset:2px}nav ul{columns:14rem;padding-left:1.2rem}\n"
    "h2{border-top:2px solid var(--ink);padding-top:.5rem;margin-top:2.5rem}h3{margin-top:1.8rem}figure{margin:1rem 0;max-width:38rem}\n"
    "svg{width:100%;height:auto;display:block}svg text{font:10px system-ui,sans-serif;fill:var(--ink);stroke:var(--paper);stroke-width:3px;paint-order:stroke}figcaption{font-size:.9rem}\n"
    ".grid{stroke:var(--line);stroke-width:.5;fill:none}.axis{stroke:var(--ink);stroke-width:1;fill:none}.bar{stroke:var(--ink);stroke-width:1;fill:none}.floor{stroke:var(--ink);stroke-dasharray:2 3;fill:none}\n"
    ".c0{fill:var(--c0);stroke:var(--c0)}.c1{fill:var(--c1);stroke:var(--c1)}.c2{fill:var(--c2);stroke:var(--c2)}.c3{fill:var(--c3);stroke:var(--c3)}.c4{fill:var(--c4);stroke:var(--c4)}.c5{fill:var(--c5);stroke:var(--c5)}\n"
    ".line{fill:none;stroke-width:1.5}.hollow{fill:var(--paper)}.cell{fill:var(--ink)}.frame{fill:var(--soft);stroke:none}.hatch{fill:none;stroke:var(--ink);stroke-width:1}\n"
    ".wide{overflow-x:auto;max-height:34rem;overflow-y:auto;border:1px solid var(--line);margin:.8rem 0}table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums}\n"
    "th,td{border:1px solid var(--line);padding:.15rem .45rem;text-align:right;vertical-align:top;overflow-wrap:normal}td{white-space:nowrap}th{background:var(--soft)}td.t,th.t{text-align:left;white-space:pre-wrap;min-width:7rem;overflow-wrap:anywhere}caption{text-align:left;font-weight:bold;padding:.3rem}\n"
    ".finding{border-left:6px double var(--ink);padding:.2rem .8rem;margin:.5rem 0;background:var(--soft)}bdi{white-space:pre-wrap}mark{background:none;color:inherit;font-weight:bold;text-decoration:underline}\n"
    "@media print{body{max-width:none;font-size:10pt}.wide{overflow:visible;max-height:none;border:0}table{font-size:7pt}nav{display:none}figure,tr{break-inside:avoid}}\n";

static void add_fact(app_text *text, const char *name, const char *value)
{
    app_text_add(text, "<tr><th class=\"t\" scope=\"row\">%s</th><td class=\"t\">", name);
    eval_html_text(text, value);
    app_text_add(text, "</td></tr>\n");
}

static void add_provenance(const eval_result *r, app_text *text)
{
    const eval_provenance *const p = &r->provenance;
    char line[256];
    app_text_add(text, "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"what was evaluated\"><table>\n<caption>What was evaluated</caption>\n");
    add_fact(text, "model", p->model_name);
    add_fact(text, "file", p->model_file);
    char window[64] = "";
    if (p->n_layers_window > 0) {
        (void)snprintf(window, sizeof(window), " (%u of them see %u tokens)", p->n_layers_window, p->window_tokens);
    }
    (void)snprintf(line, sizeof(line), "%s, %u layers%s, %u heads on %u of K and V, %u dims, context %u", p->architecture, p->n_layers, window, p->n_heads, p->n_heads_kv, p->head_dim, p->n_ctx_train);
    add_fact(text, "shape", line);
    (void)snprintf(line, sizeof(line), "%s, %u threads", p->cpu, p->n_threads);
    add_fact(text, "machine", line);
    (void)snprintf(line, sizeof(line), "%s, %.0f s, Octavo %s", p->began, p->seconds, p->octavo);
    add_fact(text, "run", line);
    add_fact(text, "command", p->command);
    app_text_add(text, "</table></div>\n");
}

static void add_floor(const eval_result *r, const eval_pass *pass, app_text *text)
{
    if (!pass->floor.measured && pass->n_texts > 0 && r->n_formats > 1) {
        app_text_add(text, "<p>Noise floor: not measured.%s</p>\n", pass->is_f32 ? "" : " Quantised weights make the same mathematics in another order differ by a KL of some 3e-3; differences of that size are not the cache&#39;s.");
    }
    if (pass->floor.measured) {
        app_text_add(text, "<p>Noise floor: ");
        eval_html_text(text, pass->floor.how);
        app_text_add(text, ", KL ");
        eval_html_number(text, "%.2e", pass->floor.kl);
        app_text_add(text, ", same top-1 ");
        eval_html_number(text, "%.4f", pass->floor.same_top);
        app_text_add(text, pass->is_f32 ? ". Nothing but the cache differs here." : ". What is not well above it is not the cache&#39;s; <code>--f32-weights</code> judges without it.");
        for (uint32_t f = 1; f < r->n_formats && pass->n_texts > 0; f++) {
            app_text_add(text, "%s ", f == 1 ? "" : ";");
            eval_html_text(text, r->formats[f].label);
            app_text_add(text, ": %s", eval_floor_words(&pass->texts[0].quality[f]));
        }
        app_text_add(text, ".</p>\n");
    }
}

static void add_link(app_text *text, uint32_t p, const char *id, const char *name, const char *weights)
{
    app_text_add(text, "<li><a href=\"#%s%u\">%s%s</a></li>\n", id, p, name, weights);
}

static bool pass_has_greedy(const eval_result *r, const eval_pass *pass) { return pass->greedy.n_prompts > 0 && pass->greedy.n_done == r->n_formats && r->n_formats > 1; }

static void add_contents(const eval_result *r, app_text *text)
{
    app_text_add(text, "<nav aria-label=\"contents\"><ul>\n");
    for (uint32_t p = 0; p < r->n_passes; p++) {
        const char *const weights = r->n_passes < 2 ? "" : r->passes[p].is_f32 ? ", F32 copy" : ", file as it is";
        add_link(text, p, "quality", "Quality against bytes", weights);
        add_link(text, p, "position", "Loss against position", weights);
        if (pass_has_greedy(r, &r->passes[p])) {
            add_link(text, p, "greedy", "Greedy continuations", weights);
        }
        add_link(text, p, "tasks", "Tasks", weights);
        add_link(text, p, "worst", "Worst tokens", weights);
        if (r->passes[p].inside != NULL) {
            add_link(text, p, "inside", "Inside the model", weights);
            add_link(text, p, "alone", "Sensitivity", weights);
            add_link(text, p, "saturation", "Saturation", weights);
        }
    }
    app_text_add(text, "<li><a href=\"#all\">All numbers</a></li>\n</ul></nav>\n");
}

void eval_report_html(const eval_result *r, app_text *text)
{
    app_text_add(text, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
                       "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src &#39;none&#39;; style-src &#39;unsafe-inline&#39;\"/>\n<title>What 8 bits do to ");
    eval_html_text(text, r->provenance.model_name);
    app_text_add(text, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<header><h1>What 8 bits do to <bdi>", style);
    eval_html_text(text, r->provenance.model_name);
    app_text_add(text, "</bdi></h1>\n%s", r->complete ? "" : "<p><strong>This evaluation is not complete.</strong></p>\n");
    add_provenance(r, text);
    add_contents(r, text);
    app_text_add(text, "</header>\n<main>\n");
    for (uint32_t p = 0; p < r->n_passes; p++) {
        const eval_pass *const pass = &r->passes[p];
        app_text_add(text, "<section aria-label=\"%s\">\n<h2>%s</h2>\n", pass->is_f32 ? "F32 copy" : "file as it is", pass->is_f32 ? "On the copy with F32 weights" : "On the file as it is");
        add_floor(r, pass, text);
        eval_html_quality(r, pass, p, text);
        eval_html_positions(r, pass, p, text);
        if (pass_has_greedy(r, pass)) {
            eval_html_greedy(r, pass, p, text);
        }
        eval_html_tasks(r, pass, p, text);
        eval_html_worst(r, pass, text);
        if (pass->inside != NULL) {
            eval_html_inside(r, pass, p, text);
        }
        app_text_add(text, "</section>\n");
    }
    eval_html_all(r, text);
    app_text_add(text, "</main>\n</body>\n</html>\n");
}
