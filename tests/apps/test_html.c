/* The HTML report of a made-up evaluation whose texts are as hostile as tokens can be: they stay text, nothing is fetched, nothing runs, what was found is named.
 * With a folder as argument it also leaves page.html and result.json there, for test_report.py to look at as a browser does. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "apps/eval/html.h"
#include "apps/eval/inside.h"

enum { N_FORMATS = 3, N_LAYERS = 5, N_HEADS = 4, N_HEADS_KV = 2, N_ITEMS = 7, N_PROMPTS = 3 };

#define HOSTILE "<script>alert(1)</script>\"'>&amp;<img src=x onerror=alert(2)>]]><!--"

static char *copy(const char *string)
{
    const size_t n = strlen(string) + 1;
    char *const bytes = malloc(n);
    assert_non_null(bytes);
    memcpy(bytes, string, n);
    return bytes;
}

static void *room(size_t n, size_t bytes)
{
    void *const all = calloc(n, bytes);
    assert_non_null(all);
    return all;
}

static eval_inside *make_inside(void)
{
    eval_inside *in = room(1, sizeof(*in));
    in->n_layers = N_LAYERS;
    in->n_heads = N_HEADS;
    in->n_heads_kv = N_HEADS_KV;
    in->head_dim = 32;
    in->n_tokens = 90;
    in->n_rows = 16;
    in->n_alone_tokens = 64;
    in->n_alone_judged = 32;
    in->n_formats = 2;
    for (uint32_t f = 0; f < 2; f++) {
        eval_inside_format *format = &in->formats[f];
        format->format = f + 1;
        format->attended = room(N_LAYERS * N_HEADS, sizeof(*format->attended));
        for (uint32_t i = 0; i < N_LAYERS * N_HEADS; i++) {
            format->attended[i] = (eval_attended){ 20.125 + i, 21.0625 + i, i == 0 ? EVAL_EXACT_DB : 50.03125 + i };
        }
        for (int side = 0; side < 2; side++) {
            format->kept[side] = room(N_LAYERS * N_HEADS_KV, sizeof(*format->kept[side]));
            for (uint32_t i = 0; i < N_LAYERS * N_HEADS_KV; i++) {
                format->kept[side][i] = (eval_kept){ 31.5 + i, 31.625 + i, 7.25, 1.75, i == 3 ? 0.0125 : 0, 0.00225 * i, i == 1 ? (double)NAN : 0.8, i, i, 3.5 };
            }
        }
    }
    in->n_sensitivities = 1;
    eval_sensitivity *s = &in->sensitivities[0];
    *s = (eval_sensitivity){ .format = 2, .floor = 1.5e-5, .kl_all = 0.0425, .n = N_LAYERS, .alone = room(N_LAYERS, sizeof(eval_alone)) };
    for (uint32_t i = 0; i < N_LAYERS; i++) {
        s->alone[i] = (eval_alone){ (i + 3) % N_LAYERS, 0.03 / (i + 1), i < 2 ? 0.02 / (i + 1) : (double)NAN, i < 2 ? 0.01 / (i + 1) : (double)NAN, 0.9 };
    }
    in->n_findings = 1;
    in->findings[0] = (eval_finding){ .format = 2, .layer = 3, .part = EVAL_PART_V, .head = -1, .text = "V of layer 3 is read as 2 times what is stored" };
    return in;
}

static void fill_quality(eval_quality *q, uint32_t f)
{
    *q = (eval_quality){
        .ppl = 12.75 + f, .ppl_stderr = 0.375, .ppl_ratio = 1 + 0.0015 * f, .ppl_ratio_interval = { 1 - 0.001 * f, 1 + 0.004 * f },
        .kl = { 0.0035 * f, { 0.003 * f, 0.00425 * f }, 0.001 * f, 0.006 * f, 0.0575 * f, 0.825 * f }, .reverse_kl = { 0.0036 * f, { 0.0031 * f, 0.0043 * f }, 0.001, 0.006, 0.0625, 0.9 },
        .beyond_floor = 0.0002 * f, .beyond_floor_interval = { f == 1 ? -0.00125 : 0.00015, 0.0015 }, .same_top = 1 - 0.02 * f, .same_top_interval = { 0.9, 0.99 }, .moved = 0.0046 * f, .moved_p99 = 0.07, .moved_max = 0.25, .moved_signed = -0.0001, .saturated = f == 0 ? -1 : 17, .n_positions = 3,
        .n_worst = f == 0 ? 0 : 2,
    };
    for (uint32_t i = 0; i < 3; i++) {
        q->positions[i] = (eval_position){ .first = 1 + 64 * i, .last = 64 + 64 * i, .n_tokens = 64, .kl = 0.002 * f * (i + 1), .kl_stderr = 0.0005 * f, .nll_change = 0.001, .nll_change_stderr = 0.0007, .same_top = 0.97 };
    }
    for (uint32_t i = 0; i < q->n_worst; i++) {
        q->worst[i] = (eval_worst){ .index = 40 + i, .position = 41 + i, .before = copy("once \xE2\x80\xAE upon\n a time " HOSTILE), .token = copy(HOSTILE), .base_top = copy(" \xEF\xBF\xBF\x01 https://evil.example/a.js"),
                                    .top = copy("\xF0\x9F\x92\xA5\xED\xA0\x80"), .kl = 0.75 - i * 0.25, .base_p = 0.3125, .p = 0.0625 };
    }
}

static void make_task(eval_task *t, const char *name, bool skipped)
{
    *t = (eval_task){ .chance = 0.25 };
    snprintf(t->name, sizeof(t->name), "%s", name);
    snprintf(t->title, sizeof(t->title), "%s <b>", name);
    snprintf(t->how, sizeof(t->how), "by log-likelihood & \"more\"");
    snprintf(t->source, sizeof(t->source), "made here");
    if (skipped) {
        t->skipped = copy("the context of 64 tokens is too short " HOSTILE);
        return;
    }
    t->n_items = N_ITEMS;
    t->items = room(N_ITEMS, sizeof(*t->items));
    t->answers = room(N_FORMATS * N_ITEMS, sizeof(*t->answers));
    t->verdicts = room(N_FORMATS, sizeof(*t->verdicts));
    for (uint32_t i = 0; i < N_ITEMS; i++) {
        t->items[i] = (eval_item){ .id = copy(HOSTILE), .n_context_tokens = 50 + i, .depth = -1, .n_choices = 4 };
    }
    for (uint32_t i = 0; i < N_FORMATS * N_ITEMS; i++) {
        t->answers[i] = (eval_answer){ .correct = (int8_t)(i % 2), .choice = (int32_t)(i % 4), .score = 0.21875 * i, .said = copy(HOSTILE) };
    }
    t->n_cells = 2;
    t->cells = room(2, sizeof(*t->cells));
    t->cells[0] = (eval_cell){ .length_tokens = 4096, .depth = 0.375, .n_items = 3, .n_correct = { 3, 2, 1 } };
    t->cells[1] = (eval_cell){ .length_tokens = 8192, .depth = -1, .n_items = 4, .n_correct = { 4, 3, 2 } };
    for (uint32_t f = 0; f < N_FORMATS; f++) {
        t->n_done[f] = N_ITEMS;
        t->verdicts[f] = (eval_verdict){ .n_correct = 4, .accuracy = 4.0 / 7, .accuracy_interval = { 0.25, 0.84375 }, .difference = -0.15625 * f, .difference_interval = { -0.4375, 0.125 }, .n_lost = f, .n_won = 0,
                                         .n_same = 5, .p_value = 0.25, .p_holm = 0.5, .distinguishable = f == 2, .score_change = 0.03125, .score_change_interval = { -0.1, 0.2 }, .n_unscored = f == 1 ? 2 : 0 };
    }
}

static void make(eval_result *r)
{
    *r = (eval_result){ .n_formats = N_FORMATS, .n_passes = 1, .complete = true };
    snprintf(r->provenance.model_name, sizeof(r->provenance.model_name), "%s", "tiny </title><script>alert(3)</script>");
    snprintf(r->provenance.model_file, sizeof(r->provenance.model_file), "%s", "a\"b.gguf");
    snprintf(r->provenance.architecture, sizeof(r->provenance.architecture), "llama");
    snprintf(r->provenance.cpu, sizeof(r->provenance.cpu), "a cpu");
    snprintf(r->provenance.began, sizeof(r->provenance.began), "2026-01-31T12:00:00Z");
    r->provenance.n_layers = N_LAYERS;
    r->provenance.seconds = 12.5;
    r->provenance.command = copy("octavo eval -m 'x y' <b>");
    static const char *const names[N_FORMATS] = { "f16", "e4m3", "i8+rot/i8" };
    for (uint32_t f = 0; f < N_FORMATS; f++) {
        snprintf(r->formats[f].name, sizeof(r->formats[f].name), "%s", names[f]);
        snprintf(r->formats[f].label, sizeof(r->formats[f].label), "%s & co", names[f]);
        r->formats[f].kv_bytes_per_token = 23040 - 11000 * (f > 0) + 100 * f;
    }
    eval_pass *pass = &r->passes[0];
    pass->floor = (eval_floor){ .measured = true, .how = "llama.cpp's f16 cache against ours", .kl = 0.0033, .kl_p99 = 0.04, .same_top = 0.984 };
    pass->n_texts = 1;
    pass->texts[0] = (eval_text){ .name = copy(HOSTILE), .n_tokens = 192, .chunk_tokens = 193, .n_done = 192, .quality = room(N_FORMATS, sizeof(eval_quality)) };
    for (uint32_t f = 0; f < N_FORMATS; f++) {
        fill_quality(&pass->texts[0].quality[f], f);
    }
    pass->greedy = (eval_greedy){ .n_prompts = N_PROMPTS, .n_tokens = 32, .n_done = N_FORMATS };
    pass->greedy.first_different = room(N_FORMATS * N_PROMPTS, sizeof(uint32_t));
    pass->greedy.summary = room(N_FORMATS, sizeof(*pass->greedy.summary));
    for (uint32_t i = 0; i < N_FORMATS * N_PROMPTS; i++) {
        pass->greedy.first_different[i] = 32 - i;
    }
    pass->n_tasks = 2;
    make_task(&pass->tasks[0], "hellaswag", false);
    make_task(&pass->tasks[1], "needle", true);
    pass->inside = make_inside();
}

static bool has(const app_text *text, const char *words) { return strstr(text->bytes, words) != NULL; }

/* Whether words stand within a tag and not in a text. */
static bool in_tag(const app_text *text, const char *words)
{
    for (const char *at = text->bytes; (at = strstr(at, words)) != NULL; at++) {
        const char *before = at;
        while (before > text->bytes && *before != '<' && *before != '>') {
            before--;
        }
        if (*before == '<') {
            return true;
        }
    }
    return false;
}

static void hostile_texts_stay_text(void **state)
{
    (void)state;
    eval_result r;
    app_text page = { 0 };
    make(&r);
    eval_report_html(&r, &page);
    assert_false(page.failed);
    /* Nothing of the texts is markup, nothing is fetched, nothing runs. */
    assert_false(has(&page, "<script") || has(&page, "<img") || has(&page, "onerror=alert(2)>") || has(&page, "<!--") || has(&page, "<b>") || has(&page, "]]>"));
    assert_false(in_tag(&page, "src=") || in_tag(&page, "onerror") || in_tag(&page, "http:") || in_tag(&page, "https:") || has(&page, "url(") || has(&page, "@import") || has(&page, "<link") || has(&page, "<iframe") || has(&page, "<object") || has(&page, "<base"));
    /* They are there all the same, also what no page can hold. */
    assert_true(has(&page, "&#60;script&#62;alert(1)") && has(&page, "[U+202E]") && has(&page, "https://evil.example/a.js") && has(&page, "\xEF\xBF\xBD\xEF\xBF\xBD"));
    for (size_t i = 0; i < page.length; i++) {
        assert_true((unsigned char)page.bytes[i] >= 0x20 || page.bytes[i] == '\n');
    }
    /* Links lead within the page. */
    for (const char *at = page.bytes; (at = strstr(at, "href=\"")) != NULL; at++) {
        assert_true(at[6] == '#');
    }
    app_text_free(&page);
    eval_result_free(&r);
}

static void names_what_was_found(void **state)
{
    (void)state;
    eval_result r;
    app_text page = { 0 };
    make(&r);
    eval_report_html(&r, &page);
    /* What stands against the floor, where words part, and what was found at which length: in tables of their own, not at the end alone. */
    assert_true(has(&page, "e4m3 &#38; co: not distinguishable from it; i8+rot/i8 &#38; co: above it."));
    assert_true(has(&page, "id=\"greedy0\"") && has(&page, "3 of 3") == false && has(&page, "0 of 3</td><td class=\"t\">29 28 27</td>"));
    assert_true(has(&page, "<th scope=\"row\">4096</th><td>38 %</td><td>3</td><td>3</td><td>2</td><td>1</td>") && has(&page, "<th scope=\"row\">8192</th><td>\xE2\x80\x93</td>"));
    assert_true(has(&page, "<strong>Layer 3, V</strong>, i8+rot/i8 &#38; co: V of layer 3 is read as 2 times what is stored."));
    assert_true(has(&page, "<td>1</td><th scope=\"row\">3</th>"));   /* the first rank is layer 3's */
    assert_true(has(&page, "not distinguishable with 7 items") && has(&page, "worse than the base") && has(&page, "was not run: the context of 64 tokens is too short"));
    assert_true(has(&page, ">score change (95 %)<") && has(&page, " without 2 items that have no score</td>") && !has(&page, "without 0 items"));
    assert_true(has(&page, "noise floor") && !has(&page, "not complete"));
    app_text_free(&page);
    r.complete = false;
    r.n_passes = 0;
    eval_report_html(&r, &page);
    assert_true(!page.failed && has(&page, "not complete") && has(&page, "</html>"));
    app_text_free(&page);
    r.n_passes = 1;
    eval_result_free(&r);
}

/* Texts, axes and signs at their ends. */
static void parts(void **state)
{
    (void)state;
    app_text text = { 0 };
    eval_html_text(&text, "\xC0\x80|\xE0\x80\x80|\xF4\x90\x80\x80|\xE2\x82|\xEF\xBF\xBE|\x7F|\xC2\x85|\xE2\x81\xA6");
    assert_string_equal(text.bytes, "\xEF\xBF\xBD\xEF\xBF\xBD|\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD|\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD|\xEF\xBF\xBD\xEF\xBF\xBD|\xEF\xBF\xBD|\xEF\xBF\xBD|\xEF\xBF\xBD|[U+2066]");
    app_text_free(&text);
    const eval_axis log_axis = eval_axis_make(2e-4, 0.03, true, 100, 0), flat = eval_axis_make(5, 5, false, 0, 10), none = eval_axis_make((double)NAN, (double)NAN, true, 0, 10);
    assert_true(log_axis.least == 1e-4 && fabs(log_axis.most - 0.1) < 1e-12 && fabs(eval_axis_at(&log_axis, 0.01) - 100.0 / 3) < 1e-9);
    assert_true(eval_axis_at(&log_axis, 0) == 100 && eval_axis_at(&log_axis, 7) == 0);
    assert_true(flat.most > flat.least && flat.least <= 5 && none.most > none.least && none.least > 0);
    eval_svg_axis(&text, &log_axis, true, 0, 10, "");
    eval_svg_axis(&text, &flat, false, 0, 10, " %");
    assert_true(has(&text, ">1e-4<") && has(&text, ">0.1<") && has(&text, ">5 %<"));
    app_text_free(&text);
    eval_html_number(&text, "%.1f", (double)NAN);
    eval_html_number(&text, "%.1f", 0.123456789);
    assert_string_equal(text.bytes, "\xE2\x80\x93<data value=\"0.123457\">0.1</data>");
    app_text_free(&text);
}

static int leave(const char *folder, const char *name, const app_text *text)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    const bool written = file != NULL && !text->failed && fwrite(text->bytes, 1, text->length, file) == text->length;
    return file != NULL && fclose(file) == 0 && written ? 0 : 1;
}

int main(int argc, char **argv)
{
    if (argc == 2) {
        eval_result r;
        app_text page = { 0 }, json = { 0 };
        make(&r);
        eval_report_html(&r, &page);
        eval_result_json(&r, false, &json);
        const int code = leave(argv[1], "page.html", &page) + leave(argv[1], "result.json", &json);
        app_text_free(&page);
        app_text_free(&json);
        eval_result_free(&r);
        return code;
    }
    const struct CMUnitTest tests[] = { cmocka_unit_test(hostile_texts_stay_text), cmocka_unit_test(names_what_was_found), cmocka_unit_test(parts) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
