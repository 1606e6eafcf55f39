/* conclude.c: see conclude.h. */
#include "apps/eval/conclude.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "apps/eval/statistics.h"
#include "host/error.h"

static const char where[] = "octavo eval";

static oct_status no_memory(oct_error *error)
{
    return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory for the statistics");
}

/* ---- token level -------------------------------------------------------------------------------------------------------------- */

/* What of a token a mean is taken of. */
typedef double token_value(const eval_token *token, const eval_token *base);

static double nll_of(const eval_token *token, const eval_token *base) { (void)base; return token->nll; }
static double kl_of(const eval_token *token, const eval_token *base) { (void)base; return token->kl; }
static double reverse_of(const eval_token *token, const eval_token *base) { (void)base; return token->reverse_kl; }
static double beyond_of(const eval_token *token, const eval_token *noise) { return token->kl - noise->kl; }
static double change_of(const eval_token *token, const eval_token *base) { return token->nll - base->nll; }
static double moved_of(const eval_token *token, const eval_token *base) { return exp(-token->nll) - exp(-base->nll); }
static double distance_of(const eval_token *token, const eval_token *base) { return fabs(moved_of(token, base)); }
static double same_of(const eval_token *token, const eval_token *base) { return token->top == base->top && !isnan(token->kl); }

/* A format's tokens of one text and room to work in. */
typedef struct sample {
    const eval_token *tokens, *base;
    const uint32_t *positions;
    uint64_t n;
    double *values;                 /* [n] */
    eval_cluster *clusters;         /* [n] */
} sample;

/* Blocks of neighbours whose positions lie within first .. last. A block ends with its sequence too. */
static uint64_t fill_clusters(const sample *s, token_value *value, uint32_t first, uint32_t last)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < s->n; i++) {
        if (s->positions[i] < first || s->positions[i] > last) {
            continue;
        }
        const bool follows = n > 0 && s->clusters[n - 1].n < EVAL_BLOCK_TOKENS && i > 0 && s->positions[i] == s->positions[i - 1] + 1;
        if (!follows) {
            s->clusters[n++] = (eval_cluster){ 0, 0 };
        }
        s->clusters[n - 1].sum += value(&s->tokens[i], &s->base[i]);
        s->clusters[n - 1].n++;
    }
    return n;
}

static void fill_values(const sample *s, token_value *value)
{
    for (uint64_t i = 0; i < s->n; i++) {
        s->values[i] = value(&s->tokens[i], &s->base[i]);
    }
}

static double mean_of(const sample *s, token_value *value)
{
    return eval_clusters_mean(s->clusters, fill_clusters(s, value, 0, UINT32_MAX));
}

static eval_spread spread_of(const sample *s, token_value *value, uint64_t seed)
{
    const uint64_t n_blocks = fill_clusters(s, value, 0, UINT32_MAX);
    fill_values(s, value);
    eval_sort(s->values, s->n);
    return (eval_spread){
        .mean = eval_clusters_mean(s->clusters, n_blocks),
        .mean_interval = eval_bootstrap(s->clusters, n_blocks, seed),
        .p50 = eval_quantile(s->values, s->n, 0.5),
        .p90 = eval_quantile(s->values, s->n, 0.9),
        .p99 = eval_quantile(s->values, s->n, 0.99),
        .max = s->n > 0 ? s->values[s->n - 1] : NAN,
    };
}

static void conclude_perplexity(const sample *s, eval_quality *q, uint64_t seed)
{
    const double n = (double)s->n, mean = mean_of(s, nll_of);
    double squares = 0;
    for (uint64_t i = 0; i < s->n; i++) {
        squares += (s->tokens[i].nll - mean) * (s->tokens[i].nll - mean);
    }
    q->ppl = exp(mean);
    /* First order of exp around the mean, tokens taken as independent. */
    q->ppl_stderr = s->n > 1 ? q->ppl * sqrt(squares / (n - 1) / n) : NAN;
    const uint64_t n_blocks = fill_clusters(s, change_of, 0, UINT32_MAX);
    const eval_interval change = eval_bootstrap(s->clusters, n_blocks, seed);
    q->ppl_ratio = exp(eval_clusters_mean(s->clusters, n_blocks));
    q->ppl_ratio_interval = (eval_interval){ exp(change.low), exp(change.high) };
}

static void conclude_positions(const sample *s, eval_quality *q)
{
    q->n_positions = 0;
    for (uint32_t first = 0, last = 31; q->n_positions < EVAL_MAX_POSITIONS; first = last + 1, last = 2 * last + 1) {
        eval_position p = { .first = first, .last = last };
        const uint64_t n_blocks = fill_clusters(s, same_of, first, last);
        for (uint64_t i = 0; i < n_blocks; i++) {
            p.n_tokens += s->clusters[i].n;
        }
        if (p.n_tokens == 0) {
            return;
        }
        p.same_top = eval_clusters_mean(s->clusters, n_blocks);
        (void)fill_clusters(s, kl_of, first, last);
        p.kl = eval_clusters_mean(s->clusters, n_blocks);
        p.kl_stderr = eval_clusters_stderr(s->clusters, n_blocks);
        (void)fill_clusters(s, change_of, first, last);
        p.nll_change = eval_clusters_mean(s->clusters, n_blocks);
        p.nll_change_stderr = eval_clusters_stderr(s->clusters, n_blocks);
        q->positions[q->n_positions++] = p;
    }
}

static void free_worst(eval_quality *q)
{
    for (uint32_t i = 0; i < q->n_worst; i++) {
        free(q->worst[i].before);
        free(q->worst[i].token);
        free(q->worst[i].base_top);
        free(q->worst[i].top);
    }
    q->n_worst = 0;
}

/* By insertion: the list is short, and most tokens end at its last place. */
static void conclude_worst(const sample *s, eval_quality *q)
{
    free_worst(q);
    for (uint64_t i = 0; i < s->n; i++) {
        uint32_t at = q->n_worst;
        while (at > 0 && s->tokens[i].kl > q->worst[at - 1].kl) {
            at--;
        }
        if (at == EVAL_N_WORST || !(s->tokens[i].kl > 0)) {
            continue;
        }
        q->n_worst += q->n_worst < EVAL_N_WORST;
        memmove(&q->worst[at + 1], &q->worst[at], (q->n_worst - 1 - at) * sizeof(q->worst[0]));
        q->worst[at] = (eval_worst){
            .index = (uint32_t)i, .position = s->positions[i], .kl = s->tokens[i].kl, .base_p = exp(-s->base[i].nll), .p = exp(-s->tokens[i].nll),
        };
    }
}

static void conclude_quality(const sample *s, eval_quality *q, uint64_t seed)
{
    conclude_perplexity(s, q, seed);
    q->beyond_floor = q->beyond_floor_interval.low = q->beyond_floor_interval.high = NAN;
    q->kl = spread_of(s, kl_of, seed);
    q->reverse_kl = spread_of(s, reverse_of, seed);
    q->same_top = mean_of(s, same_of);
    q->same_top_interval = eval_wilson((uint64_t)llround(q->same_top * (double)s->n), s->n);
    q->moved_signed = mean_of(s, moved_of);
    const eval_spread moved = spread_of(s, distance_of, seed);
    q->moved = moved.mean;
    q->moved_p99 = moved.p99;
    q->moved_max = moved.max;
    conclude_positions(s, q);
    conclude_worst(s, q);
}

static oct_status make_room(sample *s, uint64_t n, oct_error *error)
{
    s->values = malloc((n + 1) * sizeof(*s->values));
    s->clusters = malloc((n + 1) * sizeof(*s->clusters));
    return s->values != NULL && s->clusters != NULL ? OCT_OK : no_memory(error);
}

static void free_room(sample *s)
{
    free(s->values);
    free(s->clusters);
}

oct_status eval_text_conclude(eval_text *text, uint32_t n_formats, uint64_t seed, oct_error *error)
{
    sample s = { .base = text->tokens, .positions = text->positions, .n = text->n_done };
    const oct_status status = text->n_done > 0 ? make_room(&s, text->n_done, error) : OCT_OK;
    for (uint32_t f = 0; f < n_formats && status == OCT_OK && text->n_done > 0; f++) {
        s.tokens = eval_text_tokens(text, f);
        conclude_quality(&s, &text->quality[f], seed);
    }
    free_room(&s);
    return status;
}

oct_status eval_floor_conclude(eval_floor *floor, const eval_text *text, uint32_t n_formats, uint64_t seed, oct_error *error)
{
    sample s = { .tokens = text->noise, .base = text->tokens, .positions = text->positions, .n = text->n_done };
    if (text->noise == NULL || text->n_done == 0) {
        return OCT_OK;
    }
    const oct_status status = make_room(&s, s.n, error);
    if (status == OCT_OK) {
        const eval_spread kl = spread_of(&s, kl_of, 0);
        floor->measured = true;
        floor->kl = kl.mean;
        floor->kl_p99 = kl.p99;
        floor->same_top = mean_of(&s, same_of);
        s.base = text->noise;
        for (uint32_t f = 1; f < n_formats; f++) {
            s.tokens = eval_text_tokens(text, f);
            const uint64_t n_blocks = fill_clusters(&s, beyond_of, 0, UINT32_MAX);
            text->quality[f].beyond_floor = eval_clusters_mean(s.clusters, n_blocks);
            text->quality[f].beyond_floor_interval = eval_bootstrap(s.clusters, n_blocks, seed);
        }
    }
    free_room(&s);
    return status;
}

const char *eval_floor_words(const eval_quality *q)
{
    return isnan(q->beyond_floor) ? "not a number" : q->beyond_floor_interval.low > 0 ? "above it" : q->beyond_floor_interval.high < 0 ? "below it" : "not distinguishable from it";
}

void eval_greedy_conclude(eval_greedy *greedy, uint32_t n_formats)
{
    for (uint32_t f = 0; f < n_formats && greedy->n_done == n_formats && greedy->n_prompts > 0; f++) {
        const uint32_t *const first = greedy->first_different + (size_t)f * greedy->n_prompts;
        double sorted[256];
        const uint32_t n = greedy->n_prompts < 256 ? greedy->n_prompts : 256;
        greedy->summary[f].n_same = 0;
        for (uint32_t i = 0; i < n; i++) {
            sorted[i] = first[i];
            greedy->summary[f].n_same += first[i] == greedy->n_tokens;
        }
        eval_sort(sorted, n);
        greedy->summary[f].median = eval_quantile(sorted, n, 0.5);
    }
}

/* ---- tasks ------------------------------------------------------------------------------------------------------------------------ */

static bool same_answer(const eval_answer *a, const eval_answer *b)
{
    const bool both = a->said != NULL && b->said != NULL, neither = a->said == NULL && b->said == NULL;
    return a->correct == b->correct && a->choice == b->choice && (both ? strcmp(a->said, b->said) == 0 : neither);
}

static void judge_format(const eval_task *task, uint32_t format, eval_cluster *changes, uint64_t seed)
{
    const eval_answer *const base = eval_task_answers(task, 0), *const answers = eval_task_answers(task, format);
    eval_verdict v = { .p_value = NAN, .p_holm = NAN };
    uint64_t n_changes = 0;
    for (uint32_t i = 0; i < task->n_items; i++) {
        const double change = answers[i].score - base[i].score;
        v.n_correct += answers[i].correct == 1;
        v.n_lost += base[i].correct == 1 && answers[i].correct != 1;
        v.n_won += base[i].correct != 1 && answers[i].correct == 1;
        v.n_same += same_answer(&answers[i], &base[i]);
        if (isfinite(change)) {
            changes[n_changes++] = (eval_cluster){ change, 1 };
        }
    }
    const double n = task->n_items;
    v.accuracy = v.n_correct / n;
    v.accuracy_interval = eval_wilson(v.n_correct, task->n_items);
    v.difference = ((double)v.n_won - v.n_lost) / n;
    v.difference_interval = eval_matched_interval(v.n_lost, v.n_won, task->n_items);
    v.n_unscored = task->n_items - (uint32_t)n_changes;
    v.score_change = eval_clusters_mean(changes, n_changes);
    v.score_change_interval = eval_bootstrap(changes, n_changes, seed);
    if (format > 0) {
        v.p_value = v.p_holm = eval_mcnemar(v.n_lost, v.n_won);
    }
    task->verdicts[format] = v;
}

static oct_status conclude_cells(eval_task *task, uint32_t n_formats, oct_error *error)
{
    free(task->cells);
    task->cells = calloc(task->n_items, sizeof(*task->cells));
    task->n_cells = 0;
    if (task->cells == NULL) {
        return no_memory(error);
    }
    for (uint32_t i = 0; i < task->n_items; i++) {
        const eval_item *const item = &task->items[i];
        if (item->length_tokens == 0) {
            continue;
        }
        uint32_t c = 0;
        while (c < task->n_cells && (task->cells[c].length_tokens != item->length_tokens || task->cells[c].depth != item->depth)) {
            c++;
        }
        eval_cell *const cell = &task->cells[c];
        task->n_cells += c == task->n_cells;
        cell->length_tokens = item->length_tokens;
        cell->depth = item->depth;
        cell->n_items++;
        for (uint32_t f = 0; f < n_formats; f++) {
            cell->n_correct[f] += eval_task_answers(task, f)[i].correct == 1;
        }
    }
    return OCT_OK;
}

static bool is_answered(const eval_task *task, uint32_t n_formats)
{
    bool all = task->n_items > 0 && task->skipped == NULL;
    for (uint32_t f = 0; f < n_formats; f++) {
        all &= task->n_done[f] == task->n_items;
    }
    return all;
}

oct_status eval_task_conclude(eval_task *task, uint32_t n_formats, uint64_t seed, oct_error *error)
{
    if (!is_answered(task, n_formats)) {
        return OCT_OK;
    }
    eval_cluster *const changes = malloc(task->n_items * sizeof(*changes));
    if (changes == NULL) {
        return no_memory(error);
    }
    for (uint32_t f = 0; f < n_formats; f++) {
        judge_format(task, f, changes, seed);
    }
    free(changes);
    return conclude_cells(task, n_formats, error);
}

oct_status eval_pass_conclude(eval_pass *pass, uint32_t n_formats, uint64_t seed, oct_error *error)
{
    double p[EVAL_MAX_TASKS * EVAL_MAX_FORMATS];
    uint32_t n = 0;
    oct_status status = OCT_OK;
    for (uint32_t i = 0; i < pass->n_texts && status == OCT_OK; i++) {
        status = eval_text_conclude(&pass->texts[i], n_formats, seed, error);
    }
    if (status == OCT_OK && pass->n_texts > 0) {
        status = eval_floor_conclude(&pass->floor, &pass->texts[0], n_formats, seed, error);
    }
    eval_greedy_conclude(&pass->greedy, n_formats);
    for (uint32_t t = 0; t < pass->n_tasks && status == OCT_OK; t++) {
        status = eval_task_conclude(&pass->tasks[t], n_formats, seed, error);
        for (uint32_t f = 1; f < n_formats; f++) {
            p[n++] = is_answered(&pass->tasks[t], n_formats) ? pass->tasks[t].verdicts[f].p_value : NAN;
        }
    }
    if (status == OCT_OK && !eval_holm(p, n)) {
        return no_memory(error);
    }
    n = 0;
    for (uint32_t t = 0; t < pass->n_tasks && status == OCT_OK; t++) {
        for (uint32_t f = 1; f < n_formats; f++, n++) {
            if (is_answered(&pass->tasks[t], n_formats)) {
                pass->tasks[t].verdicts[f].p_holm = p[n];
                pass->tasks[t].verdicts[f].distinguishable = p[n] < 0.05;
            }
        }
    }
    return status;
}
