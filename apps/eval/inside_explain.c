/* inside_explain.c: which of a few mistakes explains what a kernel made of what is stored. Looks at the rows that were kept, and at the heads whose results don't fit
 * what is stored: a fault of one head must not hide among the others. Single-threaded. See inside_probe.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "apps/eval/inside_probe.h"

/* A mistake explains results when it leaves so small a share of their error. */
#define EXPLAINED 0.25

/* As many heads as say what it is: a model whose every head is wrong is not looked at for minutes. */
enum { HEADS_LOOKED_AT = 8 };

/* What a kernel with a mistake would see: keys first .. end, page `page` of them left out, as zeros, or read as page `other`; K times `factor`, V times `gain`, with
 * the query of head `head` and K and V of `group`. */
typedef enum page_fault { PAGE_RIGHT, PAGE_LEFT_OUT, PAGE_OF_ZEROS, PAGE_OF_ANOTHER } page_fault;
typedef struct mistake {
    int first, end;                 /* relative to where a row's keys begin and end */
    page_fault fault;
    uint32_t page, other;
    double factor, gain;
    uint32_t head, group;           /* OWN_HEAD: the head's own */
} mistake;

#define OWN_HEAD UINT32_MAX
static const mistake none = { .factor = 1, .gain = 1, .head = OWN_HEAD, .group = OWN_HEAD };

typedef struct evidence {
    const eval_probe *p;
    uint32_t layer, page_tokens;
    uint32_t n_heads, *heads;       /* query heads that don't fit, the first of n_wrong */
    uint32_t n_wrong;
    double *weights, *result;       /* [n_tokens], [dim] */
    double right;                   /* the error of what the kernel should have seen, over all rows and heads here */
} evidence;

static const float *stored(const eval_probe *p, int side, uint32_t layer, uint32_t group, uint32_t token)
{
    return p->kept[side] + (((size_t)layer * p->info->n_heads_kv + group) * p->n_tokens + token) * p->info->head_dim;
}

static size_t kept_row(const eval_probe *p, uint32_t layer, uint32_t row, uint32_t head)
{
    return (((size_t)layer * EVAL_KEPT_ROWS + row) * p->info->n_heads + head) * p->info->head_dim;
}

/* The token whose K and V a kernel with the mistake reads for a token; -1: none, -2: zeros. */
static int64_t seen_for(const evidence *e, const mistake *m, uint32_t token)
{
    if (m->fault == PAGE_RIGHT || token / e->page_tokens != m->page) {
        return token;
    }
    const uint32_t other = m->other * e->page_tokens + token % e->page_tokens;
    return m->fault == PAGE_LEFT_OUT ? -1 : m->fault == PAGE_OF_ZEROS || other >= e->p->n_tokens ? -2 : (int64_t)other;
}

static double product(const float *q, const float *k, uint32_t dim)
{
    double sum = 0;
    for (uint32_t d = 0; d < dim; d++) {
        sum += (double)q[d] * (double)k[d];
    }
    return sum;
}

/* Attention of one row in f64 with the mistake into e->result. False: it would see nothing. */
static bool attend(const evidence *e, const mistake *m, uint32_t row, uint32_t head)
{
    const eval_probe *const p = e->p;
    const octe_model_info *const info = p->info;
    const uint32_t dim = info->head_dim, of = m->head == OWN_HEAD ? head : m->head, group = m->group == OWN_HEAD ? of / (info->n_heads / info->n_heads_kv) : m->group, position = p->row_position[row];
    const bool has_window = octe_model_layer_has_window(p->options->model, e->layer) && position >= info->window_tokens;
    const int64_t first = (has_window ? (int64_t)position + 1 - info->window_tokens : 0) + m->first, end = (int64_t)position + 1 + m->end;
    const float *const q = p->row_q + kept_row(p, e->layer, row, of);
    double most = -INFINITY, sum = 0;
    if (first < 0 || end > p->n_tokens || first >= end) {
        return false;
    }
    for (int64_t t = first; t < end; t++) {
        const int64_t seen = seen_for(e, m, (uint32_t)t);
        double *const w = &e->weights[t - first];
        *w = seen == -1 ? -INFINITY : seen == -2 ? 0 : m->factor * (double)info->attn_scale * product(q, stored(p, 0, e->layer, group, (uint32_t)seen), dim);
        most = *w > most ? *w : most;
    }
    for (uint32_t d = 0; d < dim; d++) {
        e->result[d] = 0;
    }
    for (int64_t t = first; t < end; t++) {
        const int64_t seen = seen_for(e, m, (uint32_t)t);
        const double w = seen == -1 ? 0 : exp(e->weights[t - first] - most);
        sum += w;
        for (uint32_t d = 0; d < dim && seen >= 0; d++) {
            e->result[d] += w * (double)stored(p, 1, e->layer, group, (uint32_t)seen)[d];
        }
    }
    for (uint32_t d = 0; d < dim; d++) {
        e->result[d] *= m->gain / sum;
    }
    return sum > 0;
}

/* The error that is left with the mistake, given up once it is past `most`. One head: its place among the heads; -1: all of them. A row where the mistake can't be (the last
 * one has no next key) is attended rightly: what is wrong with it the mistake does not explain. */
static double left_with(const evidence *e, const mistake *m, double most, int one)
{
    const eval_probe *const p = e->p;
    double error = 0;
    uint32_t n = 0;
    for (uint32_t row = 0; row < p->n_rows_kept; row++) {
        for (uint32_t i = one >= 0 ? (uint32_t)one : 0; i < (one >= 0 ? (uint32_t)one + 1 : e->n_heads) && error < most; i++) {
            const float *const out = p->row_out + kept_row(p, e->layer, row, e->heads[i]);
            if (attend(e, m, row, e->heads[i])) {
                n++;
            } else {
                (void)attend(e, &none, row, e->heads[i]);
            }
            for (uint32_t d = 0; d < p->info->head_dim; d++) {
                error += ((double)out[d] - e->result[d]) * ((double)out[d] - e->result[d]);
            }
        }
    }
    return n > 0 && error < most ? error : INFINITY;
}

/* Keeps the better of two. */
static void attempt(const evidence *e, const mistake *m, mistake *best, double *least)
{
    const double left = left_with(e, m, *least, -1);
    if (left < *least) {
        *least = left;
        *best = *m;
    }
}

/* The factor on K's numbers that leaves least, sought from a grid of eighths of an octave inwards. */
static void try_factors(const evidence *e, mistake *best, double *least)
{
    mistake m = none;
    double step = 0.125, at = 0, most = INFINITY;
    for (int i = -32; i <= 32; i++) {
        m.factor = exp2(i * step);
        const double left = left_with(e, &m, most, -1);
        at = left < most ? i * step : at;
        most = left < most ? left : most;
    }
    for (int turn = 0; turn < 10; turn++) {
        step /= 2;
        for (int side = -1; side <= 1; side += 2) {
            m.factor = exp2(at + side * step);
            const double left = left_with(e, &m, most, -1);
            if (left < most) {
                most = left;
                at += side * step;
                break;
            }
        }
    }
    m.factor = exp2(at);
    if (fabs(at) > 0.02) {
        attempt(e, &m, best, least);
    }
}

/* The factor on V's numbers: by least squares. */
static void try_gain(const evidence *e, mistake *best, double *least)
{
    mistake m = none;
    double dot = 0, signal = 0;
    for (uint32_t row = 0; row < e->p->n_rows_kept; row++) {
        for (uint32_t i = 0; i < e->n_heads; i++) {
            const float *const out = e->p->row_out + kept_row(e->p, e->layer, row, e->heads[i]);
            (void)attend(e, &m, row, e->heads[i]);
            for (uint32_t d = 0; d < e->p->info->head_dim; d++) {
                dot += (double)out[d] * e->result[d];
                signal += e->result[d] * e->result[d];
            }
        }
    }
    m.gain = dot / signal;
    if (fabs(m.gain - 1) > 0.02) {
        attempt(e, &m, best, least);
    }
}

/* Pairs of pages are as many as pages by pages: tried up to so many pages, a window of 1,024 tokens and 64 more in pages of 16. Of more (pages of one token) only lost ones. */
enum { MOST_PAGES_PAIRED = 80 };

static void try_pages(const evidence *e, mistake *best, double *least)
{
    const uint32_t n_pages = (e->p->n_tokens - 1) / e->page_tokens + 1;
    for (uint32_t page = 0; page < n_pages; page++) {
        mistake m = none;
        m.page = page;
        m.fault = PAGE_LEFT_OUT;
        attempt(e, &m, best, least);
        m.fault = PAGE_OF_ZEROS;
        attempt(e, &m, best, least);
        m.fault = PAGE_OF_ANOTHER;
        for (m.other = 0; m.other < n_pages && n_pages <= MOST_PAGES_PAIRED; m.other++) {
            if (m.other != page) {
                attempt(e, &m, best, least);
            }
        }
    }
}

/* Every head that doesn't fit has the result of another: with its query (by_head) or with its own query on another head's K and V. Names the first two. */
static bool explain_swapped(const evidence *e, bool by_head, char *text, size_t size)
{
    const uint32_t n = by_head ? e->p->info->n_heads : e->p->info->n_heads_kv;
    size_t length = 0;
    for (uint32_t i = 0; i < e->n_heads; i++) {
        mistake m = none;
        double most = EXPLAINED * left_with(e, &none, INFINITY, (int)i);
        uint32_t found = OWN_HEAD;
        for (uint32_t other = 0; other < n; other++) {
            *(by_head ? &m.head : &m.group) = other;
            const double left = left_with(e, &m, most, (int)i);
            found = left < most ? other : found;
            most = left < most ? left : most;
        }
        if (found == OWN_HEAD) {
            return false;
        }
        if (i < 4) {
            length += (size_t)snprintf(text + length, size - length, by_head ? "%s query head %u has the result of head %u" : "%s query head %u reads K and V of KV head %u", i > 0 ? "," : "", e->heads[i], found);
        }
    }
    if (e->n_wrong > 4) {
        (void)snprintf(text + length, size - length, "; %u more don't fit", e->n_wrong - 4);
    }
    return true;
}

static void say(const evidence *e, const mistake *m, eval_finding *f)
{
    const uint32_t first = m->page * e->page_tokens, from = m->other * e->page_tokens, n = e->page_tokens - 1;
    f->part = EVAL_PART_ATTENTION;
    if (m->factor != 1) {
        f->part = EVAL_PART_K;
        (void)snprintf(f->text, sizeof(f->text), "K of layer %u is read as %.3g times what is stored: its scale is not the one it was written with", e->layer, m->factor);
    } else if (m->gain != 1) {
        f->part = EVAL_PART_V;
        (void)snprintf(f->text, sizeof(f->text), "V of layer %u is read as %.3g times what is stored: its scale is not the one it was written with", e->layer, m->gain);
    } else if (m->fault == PAGE_LEFT_OUT || m->fault == PAGE_OF_ZEROS) {
        /* Beside large scores a score of 0 weighs nothing: the two can't always be told apart. */
        (void)snprintf(f->text, sizeof(f->text), "attention of layer %u does not see tokens %u to %u, page %u of the sequence: it is left out, or reads as zeros", e->layer, first, first + n, m->page);
    } else if (m->fault == PAGE_OF_ANOTHER) {
        (void)snprintf(f->text, sizeof(f->text), "attention of layer %u reads tokens %u to %u again in place of tokens %u to %u: page %u of the sequence is another's", e->layer, from, from + n, first, first + n,
                       m->page);
    } else {
        (void)snprintf(f->text, sizeof(f->text), m->end > 0 ? "attention of layer %u sees one key behind each row's own: it is not causal" : "attention of layer %u does not see each row's own key", e->layer);
    }
}

/* Whether the mistake fits the other heads of the layer better as well: it is the whole layer's, and theirs is small by chance. */
static bool is_of_all(const evidence *e, const mistake *m)
{
    evidence others = *e;
    uint32_t heads[1024];
    others.heads = heads;
    others.n_heads = 0;
    for (uint32_t h = 0, i = 0; h < e->p->info->n_heads && h < sizeof(heads) / sizeof(heads[0]); h++) {
        i += i < e->n_heads && e->heads[i] < h;
        if (i == e->n_heads || e->heads[i] != h) {
            heads[others.n_heads++] = h;
        }
    }
    return others.n_heads > 0 && left_with(&others, m, INFINITY, -1) < left_with(&others, &none, INFINITY, -1);
}

bool eval_probe_explain(const eval_probe *p, uint32_t layer, uint32_t page_tokens, uint32_t *heads, uint32_t n_heads, eval_finding *f)
{
    evidence e = { .p = p, .layer = layer, .page_tokens = page_tokens, .heads = heads, .n_heads = n_heads < HEADS_LOOKED_AT ? n_heads : HEADS_LOOKED_AT, .n_wrong = n_heads };
    e.weights = malloc(((size_t)p->n_tokens + 1) * sizeof(*e.weights));
    e.result = malloc(p->info->head_dim * sizeof(*e.result));
    bool found = false;
    if (e.weights != NULL && e.result != NULL && n_heads > 0 && p->n_rows_kept > 0) {
        e.right = left_with(&e, &none, INFINITY, -1);
        double least = EXPLAINED * e.right;
        mistake best = none;
        char text[sizeof(f->text) - 40];
        for (int end = -1; end <= 1; end += 2) {
            mistake m = none;
            m.end = end;
            attempt(&e, &m, &best, &least);
        }
        try_gain(&e, &best, &least);
        try_factors(&e, &best, &least);
        try_pages(&e, &best, &least);
        found = least < EXPLAINED * e.right;
        if (found) {
            say(&e, &best, f);
            f->head = is_of_all(&e, &best) ? -1 : f->head;
        } else if (explain_swapped(&e, true, text, sizeof(text)) || explain_swapped(&e, false, text, sizeof(text))) {
            f->part = EVAL_PART_ATTENTION;
            (void)snprintf(f->text, sizeof(f->text), "heads of layer %u are mixed up:%s", layer, text);
            found = true;
        }
    }
    free(e.weights);
    free(e.result);
    return found;
}
