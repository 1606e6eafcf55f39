/* inside_markdown.c: the report's chapter about the inside of the model. See inside.h. */
#include <math.h>

#include "apps/eval/inside.h"

static void add_number(app_text *text, const char *format, double value)
{
    if (isnan(value)) {
        app_text_add(text, " – |");
    } else if (value == EVAL_EXACT_DB) {
        app_text_add(text, " exact |");
    } else {
        app_text_add(text, format, value);
    }
}

/* The noisiest of a layer's records. */
static double least_kept(const eval_inside *in, const eval_inside_format *f, int side, uint32_t il)
{
    double least = (double)NAN;
    for (uint32_t h = 0; h < in->n_heads_kv; h++) {
        const double x = f->kept[side][(size_t)il * in->n_heads_kv + h].snr_db;
        least = isnan(least) || x < least ? x : least;
    }
    return least;
}

static double least_attended(const eval_inside *in, const eval_inside_format *f, uint32_t il, size_t offset)
{
    double least = (double)NAN;
    for (uint32_t h = 0; h < in->n_heads; h++) {
        const double x = *(const double *)(const void *)((const char *)&f->attended[(size_t)il * in->n_heads + h] + offset);
        least = isnan(least) || x < least ? x : least;
    }
    return least;
}

static void add_layers(const eval_inside *in, const eval_inside_format *f, const char *name, app_text *text)
{
    app_text_add(text, "\n**%s**, by layer: signal to noise in dB of the noisiest head; shares of values saturated and stored as 0; outlier channels of K and V, the largest channel.\n\n"
                       "| layer | K | V | scores | output | kernel | K saturated | K zeroed | V saturated | V zeroed | K amax | V amax | K outliers | V outliers |\n"
                       "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n", name);
    for (uint32_t il = 0; il < in->n_layers; il++) {
        double saturated[2] = { 0, 0 }, zeroed[2] = { 0, 0 }, amax[2] = { 0, 0 };
        uint32_t n_outliers[2] = { 0, 0 };
        for (uint32_t i = 0; i < 2 * in->n_heads_kv; i++) {
            const eval_kept *const k = &f->kept[i % 2][(size_t)il * in->n_heads_kv + i / 2];
            saturated[i % 2] += k->saturated / in->n_heads_kv;
            zeroed[i % 2] += k->zeroed / in->n_heads_kv;
            amax[i % 2] = k->amax > amax[i % 2] ? k->amax : amax[i % 2];
            n_outliers[i % 2] += k->n_outliers;
        }
        app_text_add(text, "| %u |", il);
        add_number(text, " %.1f |", least_kept(in, f, 0, il));
        add_number(text, " %.1f |", least_kept(in, f, 1, il));
        add_number(text, " %.1f |", least_attended(in, f, il, offsetof(eval_attended, scores_db)));
        add_number(text, " %.1f |", least_attended(in, f, il, offsetof(eval_attended, output_db)));
        add_number(text, " %.1f |", least_attended(in, f, il, offsetof(eval_attended, kernel_db)));
        app_text_add(text, " %.2e | %.2e | %.2e | %.2e | %.3g | %.3g | %u | %u |\n", saturated[0], zeroed[0], saturated[1], zeroed[1], amax[0], amax[1], n_outliers[0], n_outliers[1]);
    }
}

static void add_sensitivity(const eval_inside *in, const eval_sensitivity *s, const char *name, app_text *text)
{
    app_text_add(text, "\n**%s, one layer at a time**, all others in the base: KL in nats a token over %u tokens behind %u; all layers together %.2e. What the arithmetic itself differs by (the base "
                       "against the same cache in f32): %.2e.\n\n| layer | K and V | K alone | V alone | same top-1 |\n|---:|---:|---:|---:|---:|\n",
                 name, in->n_alone_judged, in->n_alone_tokens - in->n_alone_judged, s->kl_all, s->floor);
    for (uint32_t i = 0; i < s->n; i++) {
        app_text_add(text, "| %u |", s->alone[i].layer);
        add_number(text, " %.2e |", s->alone[i].kl);
        add_number(text, " %.2e |", s->alone[i].kl_k);
        add_number(text, " %.2e |", s->alone[i].kl_v);
        add_number(text, " %.1f %% |", 100 * s->alone[i].same_top);
        app_text_add(text, "\n");
    }
}

void eval_inside_markdown(const eval_inside *in, const char *const *names, app_text *text)
{
    app_text_add(text, "\n%u tokens through every layer; attention of %u rows against f64 over the same K and V.\n\n", in->n_tokens, in->n_rows);
    if (in->n_findings == 0) {
        app_text_add(text, "Nothing stands out that the formats' rounding does not explain.\n");
    }
    for (uint32_t i = 0; i < in->n_findings; i++) {
        app_text_add(text, "- **%s**: %s.\n", names[in->findings[i].format], in->findings[i].text);
    }
    if (in->n_findings_more > 0) {
        app_text_add(text, "- and %u more, for which this list has no room.\n", in->n_findings_more);
    }
    for (uint32_t i = 0; i < in->n_sensitivities; i++) {
        add_sensitivity(in, &in->sensitivities[i], names[in->sensitivities[i].format], text);
    }
    for (uint32_t i = 0; i < in->n_formats; i++) {
        add_layers(in, &in->formats[i], names[in->formats[i].format], text);
    }
}
