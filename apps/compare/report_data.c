/* report_data.c: see report_data.h. */
#include "apps/compare/report_data.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Significant digits: more than any of these measurements has. */
enum { DIGITS = 6 };

static const compare_quality nothing = { .ppl = NAN, .ppl_stderr = NAN, .kld_mean = NAN, .same_top = NAN, .saturated = -1 };

/* One row: a format under a judgement, or under none. */
typedef struct data_row {
    const compare_format *format;
    const octe_kv_capacity *capacity;
    const compare_speed *speed;
    uint32_t n_depths;                  /* 0: speed was not measured here */
    const compare_quality *quality;
    const char *text;                   /* NULL: not judged */
    char model[192];
} data_row;

static data_row row_of(const compare_report *r, uint32_t judgement, uint32_t format)
{
    const bool judged = r->n_judgements > 0, is_f32 = judged && r->judgements[judgement].is_f32;
    data_row row = {
        .format = &r->formats[format],
        .capacity = &r->capacity[format],
        .speed = &r->speed[format],
        .n_depths = is_f32 ? 0 : r->speed_options->n_depths,
        .quality = judged ? &r->judgements[judgement].quality[format] : &nothing,
        .text = judged ? r->judgements[judgement].text : NULL,
    };
    (void)snprintf(row.model, sizeof(row.model), "%s%s", r->file, is_f32 ? ", F32 copy" : "");
    return row;
}

static uint32_t n_blocks(const compare_report *r)
{
    return r->n_judgements > 0 ? r->n_judgements : 1;
}

static void add_key(app_text *text, const char *key)
{
    app_text_add(text, ", ");
    app_text_add_json(text, key);
    app_text_add(text, ": ");
}

static void add_by_depth(app_text *text, const char *key, const compare_speed_options *o, const double *tps, uint32_t n_depths)
{
    add_key(text, key);
    app_text_add(text, "{");
    for (uint32_t d = 0; d < n_depths; d++) {
        app_text_add(text, "%s\"%u\": ", d > 0 ? ", " : "", o->depths[d]);
        app_text_add_number(text, tps[d], DIGITS);
    }
    app_text_add(text, "}");
}

static void add_number(app_text *text, const char *key, double value)
{
    add_key(text, key);
    app_text_add_number(text, value, DIGITS);
}

static void add_string(app_text *text, const char *key, const char *value)
{
    add_key(text, key);
    app_text_add_json(text, value);
}

void compare_report_json(const compare_report *r, app_text *text)
{
    app_text_add(text, "[");
    for (uint32_t j = 0; j < n_blocks(r); j++) {
        for (uint32_t i = 0; i < r->n_formats; i++) {
            const data_row row = row_of(r, j, i);
            app_text_add(text, "%s\n  {\"format\": ", j + i > 0 ? "," : "");
            app_text_add_json(text, row.format->name);
            add_string(text, "k_scale_mode", row.format->k_scale_mode);
            add_key(text, "kv_bytes_per_token");
            app_text_add(text, "%llu", (unsigned long long)row.capacity->bytes_per_token);
            add_key(text, "tokens_per_gib");
            app_text_add(text, "%lld", (long long)row.capacity->tokens_per_gib);
            add_by_depth(text, "prefill_tps", r->speed_options, row.speed->prefill_tps, row.n_depths);
            add_by_depth(text, "decode_tps", r->speed_options, row.speed->decode_tps, row.n_depths);
            add_number(text, "ppl", row.quality->ppl);
            add_number(text, "ppl_stderr", row.quality->ppl_stderr);
            add_number(text, "kld_mean", row.quality->kld_mean);
            add_number(text, "same_top", row.quality->same_top);
            add_key(text, "saturated");
            if (row.quality->saturated < 0) {
                app_text_add(text, "null");
            } else {
                app_text_add(text, "%lld", (long long)row.quality->saturated);
            }
            add_string(text, "text", row.text);
            add_string(text, "cpu", r->cpu);
            add_string(text, "model", row.model);
            add_key(text, "n_threads");
            app_text_add(text, "%u}", r->n_threads);
        }
    }
    app_text_add(text, "\n]\n");
}

/* ---- CSV: RFC 4180; a missing number is an empty field ------------------------------------------------------------ */

static void add_field(app_text *text, const char *field)
{
    app_text_add(text, ",");
    if (field == NULL) {
        return;
    }
    if (strpbrk(field, ",\"\r\n") == NULL) {
        app_text_add(text, "%s", field);
        return;
    }
    app_text_add(text, "\"");
    for (; *field != '\0'; field++) {
        app_text_add(text, "%s%c", *field == '"' ? "\"" : "", *field);
    }
    app_text_add(text, "\"");
}

static void add_number_field(app_text *text, double value)
{
    app_text_add(text, ",");
    if (isfinite(value)) {
        app_text_add_number(text, value, DIGITS);
    }
}

static void add_depth_fields(app_text *text, const compare_report *r, const double *tps, uint32_t n_depths)
{
    for (uint32_t d = 0; d < r->speed_options->n_depths; d++) {
        add_number_field(text, d < n_depths ? tps[d] : NAN);
    }
}

void compare_report_csv(const compare_report *r, app_text *text)
{
    const compare_speed_options *const s = r->speed_options;
    app_text_add(text, "format,k_scale_mode,kv_bytes_per_token,tokens_per_gib");
    for (uint32_t d = 0; d < s->n_depths; d++) {
        app_text_add(text, ",prefill_tps_%u", s->depths[d]);
    }
    for (uint32_t d = 0; d < s->n_depths; d++) {
        app_text_add(text, ",decode_tps_%u", s->depths[d]);
    }
    app_text_add(text, ",ppl,ppl_stderr,kld_mean,same_top,saturated,text,cpu,model,n_threads\n");
    for (uint32_t j = 0; j < n_blocks(r); j++) {
        for (uint32_t i = 0; i < r->n_formats; i++) {
            const data_row row = row_of(r, j, i);
            app_text_add(text, "%s,%s,%llu,%lld", row.format->name, row.format->k_scale_mode, (unsigned long long)row.capacity->bytes_per_token,
                         (long long)row.capacity->tokens_per_gib);
            add_depth_fields(text, r, row.speed->prefill_tps, row.n_depths);
            add_depth_fields(text, r, row.speed->decode_tps, row.n_depths);
            add_number_field(text, row.quality->ppl);
            add_number_field(text, row.quality->ppl_stderr);
            add_number_field(text, row.quality->kld_mean);
            add_number_field(text, row.quality->same_top);
            if (row.quality->saturated < 0) {
                app_text_add(text, ",");
            } else {
                app_text_add(text, ",%lld", (long long)row.quality->saturated);
            }
            add_field(text, row.text);
            add_field(text, r->cpu);
            add_field(text, row.model);
            app_text_add(text, ",%u\n", r->n_threads);
        }
    }
}
