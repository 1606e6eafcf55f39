/* advise_choose.c: which candidate is chosen, with some layers in 16 bits where that may pay, and why the others are not; see advise.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/eval/advise.h"
#include "apps/eval/inside.h"
#include "apps/interrupt.h"
#include "host/error.h"

static const char where[] = "octavo advise";

enum { MOST_MIXED = 3 };

/* What a candidate costs: the time of a decode on the machine that was asked for, else bytes. */
static double cost(const advise *a, const advise_candidate *c)
{
    return a->target.machine != NULL && !isnan(c->seconds) ? c->seconds : (double)c->bytes_per_token;
}

/* Negative: the first is the better choice of two that both meet the target. */
static int compare_choice(const advise *a, const advise_candidate *x, const advise_candidate *y)
{
    /* A loss is sought as small as possible where only the size was given, else the cheapest. */
    if (a->target.max_kl <= 0 && a->target.machine == NULL && x->kl != y->kl) {
        return x->kl < y->kl ? -1 : 1;
    }
    const double p = cost(a, x), q = cost(a, y);
    if (fabs(p - q) > 1e-3 * (p < q ? p : q)) {
        return p < q ? -1 : 1;
    }
    return x->bytes_per_token != y->bytes_per_token ? (x->bytes_per_token < y->bytes_per_token ? -1 : 1) : (x->kl > y->kl) - (x->kl < y->kl);
}

static advise_candidate *best_of(advise *a)
{
    advise_candidate *best = a->base.meets ? &a->base : NULL;
    for (uint32_t i = 0; i < a->n_candidates; i++) {
        advise_candidate *const c = &a->candidates[i];
        if (!c->is_refused && c->meets && (best == NULL || compare_choice(a, c, best) < 0)) {
            best = c;
        }
    }
    return best;
}

static void name_mixed(const advise_candidate *parent, const octe_kv_layer_format *layers, const octe_kv_layer_format *wide, uint32_t n_layers, advise_candidate *mixed)
{
    int n = snprintf(mixed->name, sizeof(mixed->name), "%s, in f16:", parent->name);
    for (uint32_t il = 0; il < n_layers && n > 0; il++) {
        if (!octe_kv_layer_format_same(&layers[il], wide)) {
            continue;
        }
        if ((size_t)n + 16 >= sizeof(mixed->name)) {
            (void)snprintf(mixed->name + n, sizeof(mixed->name) - (size_t)n, " ...");   /* the formats of all layers are in the file and in JSON */
            return;
        }
        n += snprintf(mixed->name + n, sizeof(mixed->name) - (size_t)n, " %u", il);
    }
}

/* parent with the n costliest layers of `order` in 16 bits, judged. */
static oct_status try_mixed(advise *a, const advise_candidate *parent, const eval_alone *order, uint32_t n, advise_candidate *mixed, oct_error *error)
{
    const uint32_t n_layers = octe_model_info_get(a->model)->n_layers;
    const octe_kv_layer_format wide = { a->base.format.k, a->base.format.v };
    if (mixed->layers == NULL) {
        *mixed = *parent;
        mixed->layers = calloc(n_layers, sizeof(*mixed->layers));
        if (mixed->layers == NULL) {
            return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory");
        }
    }
    for (uint32_t il = 0; il < n_layers; il++) {
        mixed->layers[il] = (octe_kv_layer_format){ parent->format.k, parent->format.v };
    }
    for (uint32_t i = 0; i < n; i++) {
        mixed->layers[order[i].layer] = wide;
    }
    mixed->n_kept = n;
    mixed->seconds = (parent->seconds * (n_layers - n) + a->base.seconds * n) / n_layers;
    name_mixed(parent, mixed->layers, &wide, n_layers, mixed);
    return advise_judge_one(a, mixed, error);
}

/* The layers of a candidate by what each costs alone. */
static oct_status order_layers(advise *a, const advise_candidate *c, eval_inside **inside, oct_error *error)
{
    const eval_inside_wanted wanted = { .format = 0, .kv = advise_config(a, c), .sensitivity = true };
    const eval_inside_options o = { .model = a->model, .tokens = a->tokens, .n_tokens = a->n_tokens, .n_threads = a->n_threads, .quick = true, .base = advise_config(a, &a->base), .rates = a->rates };
    return app_interrupted() ? oct__error_set(error, OCT_CANCELLED, where, "stopped") : eval_inside_measure(&o, &wanted, 1, inside, error);
}

/* Layers that may be kept in 16 bits before a candidate costs as much as the best, or more than is allowed. */
static uint32_t most_kept(const advise *a, const advise_candidate *parent, const advise_candidate *best)
{
    const uint32_t n_layers = octe_model_info_get(a->model)->n_layers;
    const double step = (1 - parent->share) / n_layers;   /* a layer's bytes, in shares */
    const double most_share = a->target.max_share > 0 && (best == NULL || a->target.max_kl <= 0) ? a->target.max_share : best != NULL ? best->share : 1;
    uint32_t most = step > 0 && most_share > parent->share ? (uint32_t)floor((most_share - parent->share) / step + 1e-9) : 0;
    most = most < n_layers ? most : n_layers - 1;
    /* As dear as the best there is: no win. */
    if (most > 0 && a->target.max_kl > 0 && best != NULL && parent->share + most * step >= best->share - 1e-9) {
        most--;
    }
    return most;
}

/* The fewest kept layers that meet the loss, or (without a loss) as many as the size allows. */
static oct_status mix(advise *a, const advise_candidate *parent, uint32_t most, oct_error *error)
{
    eval_inside *inside = NULL;
    app_progress_say(a->progress, "one layer at a time");
    oct_status status = order_layers(a, parent, &inside, error);
    advise_candidate mixed = { .layers = NULL }, last = { .layers = NULL };
    uint32_t low = 1, high = most;
    while (status == OCT_OK && low <= high) {
        /* Without a loss to meet, all that fit; else the fewest, by halving. */
        const uint32_t n = a->target.max_kl > 0 && last.layers == NULL && low == 1 && high == most ? most : a->target.max_kl > 0 ? (low + high) / 2 : most;
        status = try_mixed(a, parent, inside->sensitivities[0].alone, n, &mixed, error);
        if (status != OCT_OK || a->target.max_kl <= 0 || !mixed.meets) {
            if (n == most) {
                break;   /* not even with all that would pay, or nothing to seek */
            }
            low = n + 1;
            continue;
        }
        free(last.layers);
        last = mixed;
        mixed.layers = NULL;
        high = n - 1;
    }
    eval_inside_free(inside);
    if (last.layers == NULL && mixed.layers != NULL && status == OCT_OK) {
        last = mixed;
        mixed.layers = NULL;
    }
    free(mixed.layers);
    if (last.layers != NULL && status == OCT_OK) {
        a->candidates[a->n_candidates++] = last;
    } else {
        free(last.layers);
    }
    return status;
}

/* How many layers a candidate might win with in 16 bits; 0: none. To look for them costs a run a layer: it is left where not even layers that cost four times the
 * average would make up for the loss. */
static uint32_t may_keep(const advise *a, const advise_candidate *c, const advise_candidate *best)
{
    if (c->is_refused || c->layers != NULL || isnan(c->kl) || c->meets != (a->target.max_kl <= 0)) {
        return 0;
    }
    const uint32_t most = most_kept(a, c, best);
    const double left = 1 - 4.0 * most / octe_model_info_get(a->model)->n_layers;
    return a->target.max_kl > 0 && left > 0 && c->kl * left > a->target.max_kl ? 0 : most;
}

static void explain_choice(advise *a, const advise_candidate *chosen)
{
    for (uint32_t i = 0; i < a->n_candidates; i++) {
        advise_candidate *const c = &a->candidates[i];
        const double most = isfinite(c->kl_interval.high) && c->kl_interval.high > c->kl ? c->kl_interval.high : c->kl;
        if (c == chosen || c->is_refused) {
            continue;
        }
        if (isnan(c->kl)) {
            (void)snprintf(c->why, sizeof(c->why), "its loss is not a number");
        } else if (a->target.max_share > 0 && c->share > a->target.max_share) {
            (void)snprintf(c->why, sizeof(c->why), "%.3f of the 16-bit cache's bytes, allowed are %.3f", c->share, a->target.max_share);
        } else if (a->target.max_kl > 0 && c->kl > a->target.max_kl) {
            (void)snprintf(c->why, sizeof(c->why), "loses %.2e, allowed is %.2e", c->kl, a->target.max_kl);
        } else if (a->target.max_kl > 0 && most > a->target.max_kl) {
            (void)snprintf(c->why, sizeof(c->why), "may lose %.2e (95 %%), allowed is %.2e", most, a->target.max_kl);
        } else if (chosen == NULL) {
            (void)snprintf(c->why, sizeof(c->why), "no target to meet");
        } else if (a->target.max_kl <= 0 && a->target.machine == NULL) {
            const bool apart = chosen->kl_interval.high < c->kl_interval.low;
            if (chosen->kl > 0) {
                (void)snprintf(c->why, sizeof(c->why), "loses %.2g times as much%s", c->kl / chosen->kl, apart ? "" : "; the intervals overlap");
            } else {
                (void)snprintf(c->why, sizeof(c->why), "loses %.2e, the choice nothing", c->kl);
            }
        } else if (a->target.machine != NULL && c->seconds > chosen->seconds * 1.001) {
            (void)snprintf(c->why, sizeof(c->why), "a decode takes %.2f times as long on %s (predicted)", c->seconds / chosen->seconds, a->target.machine);
        } else if (c->bytes_per_token > chosen->bytes_per_token) {
            (void)snprintf(c->why, sizeof(c->why), "%.1f %% more bytes", 100 * ((double)c->bytes_per_token / (double)chosen->bytes_per_token - 1));
        } else {
            (void)snprintf(c->why, sizeof(c->why), "as cheap, loses %.2e", c->kl);
        }
    }
}

oct_status advise_choose(advise *a, advise_candidate **chosen, oct_error *error)
{
    oct_status status = OCT_OK;
    const uint32_t n = a->n_candidates;
    bool tried[ADVISE_MAX_CANDIDATES] = { false };
    for (uint32_t round = 0; round < MOST_MIXED && status == OCT_OK; round++) {
        const advise_candidate *const best = best_of(a);
        uint32_t next = n;
        for (uint32_t i = 0; i < n; i++) {
            const advise_candidate *const c = &a->candidates[i];
            /* The least lossy first: it needs the fewest layers. */
            if (!tried[i] && may_keep(a, c, best) > 0 && (next == n || c->kl < a->candidates[next].kl)) {
                next = i;
            }
        }
        if (next == n || a->n_candidates == ADVISE_MAX_CANDIDATES) {
            break;
        }
        tried[next] = true;
        status = mix(a, &a->candidates[next], may_keep(a, &a->candidates[next], best), error);
    }
    *chosen = status == OCT_OK ? best_of(a) : NULL;
    if (*chosen != NULL) {
        (*chosen)->is_chosen = true;
        (void)snprintf((*chosen)->why, sizeof((*chosen)->why), a->target.max_kl <= 0 && a->target.machine == NULL ? "the least loss within the bytes" : "the cheapest that meets the target");
    }
    if (status == OCT_OK) {
        explain_choice(a, *chosen);
    }
    return status;
}
