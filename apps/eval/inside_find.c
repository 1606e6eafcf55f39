/* inside_find.c: what stands out of a measurement in a way that no format's rounding explains, in words that name layer and part. See inside_probe.h. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/eval/inside_probe.h"
#include "host/error.h"

/* Stored otherwise than asked for when it is that much noisier, in dB. */
#define LESS_THAN_ASKED 1.0
/* One token's vector is by chance some dB noisier than the mean of all. */
#define NOISY_TOKEN 10.0
/* A kernel that rounds q and weights to 8 bits keeps some 35 dB; wrong keys or scales leave less than this. */
#define KERNEL_DB 25.0
/* Another window explains what a kernel did when it leaves so small a share of the error. */
#define WINDOW_SHARE 0.25
/* Cost of a layer over the median layer's. */
#define COSTLY 10.0
/* A static scale whose range is used less than this share of what the other layers use. */
#define RANGE_SHARE 0.6

void eval_inside_add_finding(eval_inside *inside, uint32_t format, uint32_t layer, uint32_t part, int32_t head, const char *text)
{
    if (inside->n_findings < EVAL_INSIDE_MAX_FINDINGS) {
        eval_finding *const f = &inside->findings[inside->n_findings++];
        *f = (eval_finding){ .format = format, .layer = layer, .part = part, .head = head };
        (void)snprintf(f->text, sizeof(f->text), "%s", text);
    } else {
        inside->n_findings_more++;
    }
}

static bool same_format(const oct_kv_format *a, const oct_kv_format *b)
{
    return a->dtype == b->dtype && a->scale_mode == b->scale_mode && a->scale_dtype == b->scale_dtype && a->rotated == b->rotated;
}

/* Formats and static scales of the engine against what was asked; true when something was said of this side. */
static bool find_settings(const eval_probe *p, eval_inside *inside, uint32_t il, int side, const oct_kv_layer *is, const oct_kv_layer *asked)
{
    char text[256];
    const oct_kv_format *const f = side == 0 ? &is->spec.k : &is->spec.v, *const wanted = side == 0 ? &asked->spec.k : &asked->spec.v;
    const oct_kv_format *const other = side == 0 ? &asked->spec.v : &asked->spec.k;
    if (!same_format(f, wanted)) {
        char a[48], b[48];
        (void)octe_kv_format_name(f, a, sizeof(a));
        (void)octe_kv_format_name(wanted, b, sizeof(b));
        (void)snprintf(text, sizeof(text), "%c of layer %u is kept in %s, asked for was %s%s", "KV"[side], il, a, b,
                       same_format(f, other) ? ": the formats of K and V are swapped" : "");
        eval_inside_add_finding(inside, p->wanted->format, il, (uint32_t)side, -1, text);
        return true;
    }
    const float *const scale = side == 0 ? is->k_scale : is->v_scale, *const right = side == 0 ? asked->k_scale : asked->v_scale;
    const size_t n = f->scale_mode == OCT_SCALE_LAYER_HEAD ? asked->spec.heads
                     : f->scale_mode == OCT_SCALE_CHANNEL  ? (size_t)asked->spec.heads * (side == 0 ? asked->spec.dim_k : asked->spec.dim_v) : 1;
    for (size_t i = 0; scale != NULL && right != NULL && i < n; i++) {
        if (fabsf(scale[i] - right[i]) > 1e-5f * right[i]) {
            (void)snprintf(text, sizeof(text), "%c of layer %u has a scale of %.4g where the calibration says %.4g: %.3g times it", "KV"[side], il, (double)scale[i],
                           (double)right[i], (double)(scale[i] / right[i]));
            eval_inside_add_finding(inside, p->wanted->format, il, (uint32_t)side, -1, text);
            return true;
        }
    }
    return false;
}

/* The tokens of a head that are much noisier than the format makes the whole: " in tokens 16 to 31", or nothing where most are. */
static void say_tokens(const eval_probe *p, uint32_t il, int side, uint32_t head, double asked_db, char *text, size_t size)
{
    const uint32_t dim = p->info->head_dim;
    const size_t at = ((size_t)il * p->info->n_heads_kv + head) * p->n_tokens * dim;
    uint32_t n = 0, first = 0, last = 0;
    for (uint32_t t = 0; t < p->n_tokens; t++) {
        eval_energy e = { 0, 0 };
        for (uint32_t d = 0; d < dim; d++) {
            const double made = (double)p->made[side][at + (size_t)t * dim + d], error = (double)p->kept[side][at + (size_t)t * dim + d] - made;
            e.signal += made * made;
            e.error += error * error;
        }
        if (!(eval_energy_db(e) >= (asked_db < 100 ? asked_db : 100) - NOISY_TOKEN) && e.error != 0) {
            first = n == 0 ? t : first;
            last = t;
            n++;
        }
    }
    text[0] = '\0';
    if (n > 0 && last - first + 1 < p->n_tokens / 2 + 1) {
        (void)snprintf(text, size, " in tokens %u to %u", first, last);
    }
}

/* What is stored is not what the format makes of these values. */
static void find_stored(const eval_probe *p, eval_inside *inside, const eval_inside_format *f, uint32_t il, int side)
{
    const uint32_t n = p->info->n_heads_kv;
    const eval_kept *const kept = f->kept[side] + (size_t)il * n;
    uint32_t n_wrong = 0, worst = 0;
    for (uint32_t h = 0; h < n; h++) {
        /* Not-a-number, too, is less. */
        const bool wrong = !(kept[h].snr_db >= kept[h].asked_db - LESS_THAN_ASKED) && !isnan(kept[h].asked_db);
        n_wrong += wrong;
        worst = wrong && (n_wrong == 1 || kept[h].snr_db < kept[worst].snr_db) ? h : worst;
    }
    if (n_wrong > 0) {
        char text[256], tokens[48];
        say_tokens(p, il, side, worst, kept[worst].asked_db, tokens, sizeof(tokens));
        (void)snprintf(text, sizeof(text), "%c of layer %u, KV head %u%s: what is stored has %.1f dB, the format gives these values %.1f dB%s%s", "KV"[side], il, worst,
                       n_wrong == n && n > 1 ? " and all others" : n_wrong > 1 ? " and more" : "", kept[worst].snr_db, kept[worst].asked_db, tokens[0] != '\0' ? "; the noise is" : "", tokens);
        eval_inside_add_finding(inside, p->wanted->format, il, (uint32_t)side, n_wrong == 1 ? (int32_t)worst : -1, text);
    }
}

/* What the kernel made of what is stored. */
static void find_kernel(const eval_probe *p, eval_inside *inside, uint32_t il, uint32_t page_tokens)
{
    char text[256];
    eval_kernel_sums all = { 0 };
    for (uint32_t h = 0; h < p->info->n_heads; h++) {
        const eval_kernel_sums *const k = &p->kernels[(size_t)il * p->info->n_heads + h];
        all.signal += k->signal;
        for (int w = 0; w < EVAL_N_WINDOWS; w++) {
            all.error[w] += k->error[w];
        }
    }
    const double right = all.error[EVAL_WINDOW_RIGHT];
    const bool is_less = all.error[EVAL_WINDOW_LESS] < WINDOW_SHARE * right, is_more = all.error[EVAL_WINDOW_MORE] < WINDOW_SHARE * right;
    if (octe_model_layer_has_window(p->options->model, il) && (is_less || is_more)) {
        (void)snprintf(text, sizeof(text), "attention of layer %u sees a window of %u keys, the model has %u: its error falls from %.3g to %.3g of the signal with that", il,
                       p->info->window_tokens + (is_more ? 1u : 0u) - (is_less ? 1u : 0u), p->info->window_tokens, right / all.signal,
                       all.error[is_less ? EVAL_WINDOW_LESS : EVAL_WINDOW_MORE] / all.signal);
        eval_inside_add_finding(inside, p->wanted->format, il, EVAL_PART_ATTENTION, -1, text);
        return;
    }
    uint32_t heads[1024], n = 0;
    double worst = EVAL_EXACT_DB;
    for (uint32_t h = 0; h < p->info->n_heads && h < sizeof(heads) / sizeof(heads[0]); h++) {
        const eval_kernel_sums *const k = &p->kernels[(size_t)il * p->info->n_heads + h];
        const double of_head = eval_energy_db((eval_energy){ k->signal, k->error[EVAL_WINDOW_RIGHT] });
        /* No error at all has a ratio only where there is a signal; not-a-number does not fit. */
        if (!(of_head >= KERNEL_DB) && k->error[EVAL_WINDOW_RIGHT] != 0) {
            heads[n++] = h;
            worst = isnan(of_head) || of_head < worst ? of_head : worst;
        }
    }
    if (n == 0) {
        return;
    }
    const uint32_t group = p->info->n_heads / p->info->n_heads_kv;
    const int32_t head = n < p->info->n_heads && heads[0] / group == heads[n - 1] / group ? (int32_t)(heads[0] / group) : -1;
    eval_finding f = { .part = EVAL_PART_ATTENTION, .head = head };
    if (!eval_probe_explain(p, il, page_tokens, heads, n, &f)) {
        (void)snprintf(f.text, sizeof(f.text), "attention of layer %u does not fit what is stored: %.1f dB against the same K and V in f64, %u of %u query heads", il, worst, n, p->info->n_heads);
    }
    eval_inside_add_finding(inside, p->wanted->format, il, f.part, f.head, f.text);
}

static double most_used(const eval_inside *inside, const eval_inside_format *f, uint32_t il, int side)
{
    double most = 0;
    for (uint32_t h = 0; h < inside->n_heads_kv; h++) {
        const double used = f->kept[side][(size_t)il * inside->n_heads_kv + h].range_used;
        most = used > most ? used : most;
    }
    return most;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A scale that is too large for its values wastes bits of an integer, and says that file and model don't fit. Layers speak for each other. */
static void find_ranges(eval_inside *inside, const eval_inside_format *f, int side)
{
    double used[1024];
    const uint32_t n = inside->n_layers;
    if (n < 3 || n > sizeof(used) / sizeof(used[0])) {
        return;
    }
    for (uint32_t il = 0; il < n; il++) {
        used[il] = most_used(inside, f, il, side);
    }
    qsort(used, n, sizeof(used[0]), by_size);
    const double median = used[n / 2];
    for (uint32_t il = 0; il < n && median > 0; il++) {
        const double one = most_used(inside, f, il, side);
        if (one < RANGE_SHARE * median) {
            char text[256];
            (void)snprintf(text, sizeof(text), "%c of layer %u uses %.0f %% of its range, the median layer %.0f %%: its scale is about %.2g times what its values need", "KV"[side],
                           il, 100 * one, 100 * median, median / one);
            eval_inside_add_finding(inside, f->format, il, (uint32_t)side, -1, text);
        }
    }
}

void eval_probe_find(const eval_probe *p, eval_inside *inside, const eval_inside_format *f)
{
    for (uint32_t il = 0; il < p->info->n_layers; il++) {
        oct_kv_layer is = { .struct_size = sizeof(is) }, asked = { .struct_size = sizeof(asked) };
        int32_t slot;
        const bool there = octe_engine_stored(p->engine, il, 0, p->n_tokens - 1, &is, &slot) == OCT_OK && octe_engine_stored(p->asked, il, 0, 0, &asked, &slot) == OCT_OK;
        for (int side = 0; side < 2; side++) {
            if (!there || !find_settings(p, inside, il, side, &is, &asked)) {
                find_stored(p, inside, f, il, side);
            }
        }
        find_kernel(p, inside, il, there ? is.spec.page_size : p->n_tokens);
    }
    for (int side = 0; side < 2; side++) {
        find_ranges(inside, f, side);
    }
}

oct_status eval_alone_find(eval_inside *inside, const eval_sensitivity *s, oct_error *error)
{
    double *const costs = malloc((s->n > 0 ? s->n : 1) * sizeof(*costs));
    if (costs == NULL) {
        return oct__error_set(error, OCT_OUT_OF_MEMORY, "octavo eval", "out of memory");
    }
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        if (!isnan(s->alone[i].kl)) {
            costs[n++] = s->alone[i].kl;
        }
    }
    qsort(costs, n, sizeof(*costs), by_size);
    const double median = n > 0 ? costs[n / 2] : (double)NAN;
    for (uint32_t i = 0; i < s->n && s->n > 2; i++) {
        const eval_alone *const one = &s->alone[i];
        if (!(one->kl <= COSTLY * median) && !(one->kl <= COSTLY * s->floor)) {
            const uint32_t part = one->kl_k > 4 * one->kl_v ? EVAL_PART_K : one->kl_v > 4 * one->kl_k ? EVAL_PART_V : EVAL_PART_LAYER;
            char text[256];
            if (isnan(one->kl)) {
                (void)snprintf(text, sizeof(text), "with layer %u alone in it the model's logits are not all numbers", one->layer);
                eval_inside_add_finding(inside, s->format, one->layer, EVAL_PART_LAYER, -1, text);
                continue;
            }
            (void)snprintf(text, sizeof(text), "layer %u alone costs a KL of %.2e, %.0f times the median layer's%s%s", one->layer, one->kl, one->kl / median,
                           part != EVAL_PART_LAYER ? "; it is its " : "", part != EVAL_PART_LAYER ? eval_part_name(part) : "");
            eval_inside_add_finding(inside, s->format, one->layer, part, -1, text);
        }
    }
    free(costs);
    return OCT_OK;
}
