/* answer.c: see answer.h. generate.c has the tasks whose answers are generated. */
#include "apps/eval/answer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/compare/divergence.h"
#include "apps/compare/quality.h"
#include "apps/eval/generate.h"
#include "host/error.h"

static const char where[] = "octavo eval";

/* A group: so many questions, and so many tokens of them, lie in the pool at once. Those behind one shared text add little, and a second group computes it again. */
enum { GROUP_QUESTIONS = 16, GROUP_SHARING = 32, GROUP_TOKENS = 4096, STEP_ROWS = 512 };

static oct_status no_memory(oct_error *error)
{
    return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory for the answers");
}

oct_status eval_task_prepare(eval_task *task, const eval_task_kind *kind, const eval_questions *questions, uint32_t n_formats, oct_error *error)
{
    (void)snprintf(task->name, sizeof(task->name), "%s", kind->name);
    (void)snprintf(task->title, sizeof(task->title), "%s", kind->title);
    (void)snprintf(task->how, sizeof(task->how), "%s", kind->how);
    (void)snprintf(task->source, sizeof(task->source), "%s", kind->source);
    task->items = calloc(questions->n + 1, sizeof(*task->items));
    task->answers = calloc((size_t)questions->n * n_formats + 1, sizeof(*task->answers));
    task->verdicts = calloc(n_formats, sizeof(*task->verdicts));
    if (task->items == NULL || task->answers == NULL || task->verdicts == NULL) {
        return no_memory(error);
    }
    task->n_items = questions->n;
    for (uint32_t i = 0; i < questions->n; i++) {
        const eval_question *const q = &questions->items[i];
        const size_t n = strlen(q->id) + 1;
        task->items[i] = (eval_item){ .id = malloc(n), .n_context_tokens = q->n_context, .length_tokens = q->length_tokens, .depth = q->depth, .n_choices = q->n_choices > 1 ? q->n_choices : 0 };
        if (task->items[i].id == NULL) {
            return no_memory(error);
        }
        memcpy(task->items[i].id, q->id, n);
        task->chance += q->n_choices > 1 ? 1.0 / q->n_choices / questions->n : 0;
    }
    for (size_t i = 0; i < (size_t)questions->n * n_formats; i++) {
        task->answers[i] = (eval_answer){ .correct = -1, .choice = -1, .score = NAN };
    }
    return OCT_OK;
}

static uint32_t choice_tokens(const eval_question *q)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < q->n_choices; i++) {
        n += q->choices[i].n_tokens;
    }
    return n;
}

/* Whether question i begins with the same text as the one before it, as it says. */
static bool shares(const eval_questions *questions, uint32_t i)
{
    const eval_question *const q = &questions->items[i], *const before = i > 0 ? q - 1 : q;
    return i > 0 && q->n_shared > 0 && before->n_shared == q->n_shared && memcmp(before->context, q->context, q->n_shared * sizeof(*q->context)) == 0;
}

/* The questions of the group that begins with `first`, and what the group takes. */
typedef struct group {
    uint32_t first, end;
    uint32_t n_sequences, n_tokens;   /* n_tokens: of the pool at most, whole pages and a copied one a sequence */
} group;

static group group_at(const eval_questions *questions, uint32_t first, uint32_t page_size)
{
    group g = { .first = first, .end = first, .n_sequences = 1 };
    uint32_t new_tokens = 0;
    while (g.end < questions->n) {
        const eval_question *const q = &questions->items[g.end];
        /* Of a shared text only the first question of the group pays. */
        const bool begins = g.end == first || !shares(questions, g.end);
        const uint32_t own = q->n_context + choice_tokens(q) - (begins ? 0 : q->n_shared);
        if (g.end > first && (g.end - first == (questions->items[first].n_shared > 0 ? GROUP_SHARING : GROUP_QUESTIONS) || new_tokens + own > GROUP_TOKENS || (begins && q->n_shared > 0) || (begins && questions->items[first].n_shared > 0))) {
            break;
        }
        new_tokens += own;
        g.n_sequences += 1 + (q->n_choices > 1 ? q->n_choices : 0);
        g.end++;
    }
    g.n_tokens = new_tokens + g.n_sequences * 3 * page_size;
    return g;
}

double eval_task_work(const eval_task_kind *kind, const eval_questions *questions, uint32_t n_done, uint32_t generate_tokens)
{
    double rows = 0;
    for (uint32_t i = n_done; i < questions->n; i++) {
        const eval_question *const q = &questions->items[i];
        rows += q->n_context - (shares(questions, i) ? q->n_shared : 0) + choice_tokens(q) + (kind->scoring == EVAL_GENERATE ? generate_tokens : 0);
    }
    return rows;
}

/* ---- steps ---------------------------------------------------------------------------------------------------------------------------- */

/* Tokens to append to a sequence, in one step or several; with targets their likelihoods are added up. */
typedef struct job {
    uint32_t sequence, n, n_done;
    const int32_t *tokens;
    const int32_t *targets;         /* [n] what follows each; NULL: no logits */
    double log_likelihood;
    bool is_greedy;                 /* every target so far was the likeliest */
} job;

typedef struct stepper {
    const eval_run *run;
    octe_engine *engine;
    uint32_t step_rows, step_logits;
} stepper;

static void judge_rows(const stepper *s, job *j, const float *logits, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const int32_t target = j->targets[j->n_done + i];
        uint32_t top;
        j->log_likelihood -= compare_nll(logits + (size_t)i * s->run->n_vocab, s->run->n_vocab, (uint32_t)target, &top);
        j->is_greedy &= top == (uint32_t)target;
    }
}

/* Full steps of whatever is left, in order. All jobs want logits, or none does; each has a sequence of its own. */
static oct_status run_jobs(const stepper *s, job *jobs, uint32_t n_jobs, oct_error *error)
{
    octe_part *const parts = malloc((n_jobs + 1) * sizeof(*parts));
    oct_status status = parts != NULL ? OCT_OK : no_memory(error);
    const bool wants = n_jobs > 0 && jobs[0].targets != NULL;
    const uint32_t most = wants && s->step_logits < s->step_rows ? s->step_logits : s->step_rows;
    for (uint32_t first = 0; first < n_jobs && status == OCT_OK;) {
        uint32_t n_parts = 0, rows = 0;
        for (uint32_t i = first; i < n_jobs && rows < most; i++) {
            const uint32_t rest = jobs[i].n - jobs[i].n_done, n = rest < most - rows ? rest : most - rows;
            parts[n_parts++] = (octe_part){ .sequence = jobs[i].sequence, .n_tokens = n, .tokens = jobs[i].tokens + jobs[i].n_done, .n_logits = wants ? n : 0 };
            rows += n;
        }
        const float *logits = NULL;
        status = eval_run_check(error);
        if (status == OCT_OK) {
            status = octe_engine_step(s->engine, parts, n_parts, wants ? &logits : NULL, error);
        }
        for (uint32_t i = 0; i < n_parts && status == OCT_OK; i++) {
            job *const j = &jobs[first + i];
            if (wants) {
                judge_rows(s, j, logits, parts[i].n_tokens);
                logits += (size_t)parts[i].n_tokens * s->run->n_vocab;
            }
            j->n_done += parts[i].n_tokens;
        }
        app_progress_add(s->run->progress, rows);
        while (first < n_jobs && jobs[first].n_done == jobs[first].n) {
            first++;
        }
    }
    free(parts);
    return status;
}

/* ---- groups ---------------------------------------------------------------------------------------------------------------------------- */

/* All contexts but for their last token, in sequences 1 on; sequence 0 holds what they share. */
static oct_status read_contexts(const stepper *s, const eval_questions *questions, const group *g, job *jobs, oct_error *error)
{
    const eval_question *const q = &questions->items[g->first];
    const uint32_t n_shared = q->n_shared;
    oct_status status = OCT_OK;
    uint32_t n_jobs = 0;
    if (n_shared > 0) {
        job shared = { .sequence = 0, .n = n_shared, .tokens = q->context };
        status = run_jobs(s, &shared, 1, error);
    }
    for (uint32_t i = g->first; i < g->end && status == OCT_OK; i++) {
        const eval_question *const one = &questions->items[i];
        const uint32_t sequence = 1 + i - g->first, n = one->n_context - 1 - n_shared;
        if (n_shared > 0) {
            status = octe_engine_share(s->engine, 0, sequence, n_shared, error);
        }
        if (n > 0) {
            jobs[n_jobs++] = (job){ .sequence = sequence, .n = n, .tokens = one->context + n_shared };
        }
    }
    return status == OCT_OK ? run_jobs(s, jobs, n_jobs, error) : status;
}

/* A job for each choice: the context's last token and all of the choice but its own last. inputs: room for them. */
static oct_status prepare_choices(const stepper *s, const eval_questions *questions, const group *g, job *jobs, uint32_t *n_jobs, int32_t *inputs, oct_error *error)
{
    oct_status status = OCT_OK;
    uint32_t next = 1 + g->end - g->first;
    *n_jobs = 0;
    for (uint32_t i = g->first; i < g->end && status == OCT_OK; i++) {
        const eval_question *const q = &questions->items[i];
        const uint32_t own = 1 + i - g->first;
        for (uint32_t c = 0; c < q->n_choices && status == OCT_OK; c++) {
            const eval_choice *const choice = &q->choices[c];
            const uint32_t sequence = q->n_choices > 1 ? next++ : own;
            if (sequence != own && q->n_context > 1) {
                status = octe_engine_share(s->engine, own, sequence, q->n_context - 1, error);
            }
            inputs[0] = q->context[q->n_context - 1];
            memcpy(inputs + 1, choice->tokens, (choice->n_tokens - 1) * sizeof(*inputs));
            jobs[(*n_jobs)++] = (job){ .sequence = sequence, .n = choice->n_tokens, .tokens = inputs, .targets = choice->tokens, .is_greedy = true };
            inputs += choice->n_tokens;
        }
    }
    return status;
}

static eval_answer decide(const eval_task_kind *kind, const eval_question *q, const job *jobs)
{
    if (kind->scoring == EVAL_RECITE) {
        return (eval_answer){ .correct = jobs[0].is_greedy, .choice = -1, .score = jobs[0].log_likelihood };
    }
    double right = NAN, wrong = -INFINITY, best = -INFINITY;
    int32_t choice = -1;
    for (uint32_t c = 0; c < q->n_choices; c++) {
        const double score = jobs[c].log_likelihood / (kind->by_character ? q->choices[c].n_characters : 1);
        if (score > best) {
            best = score;
            choice = (int32_t)c;
        }
        if (c == q->right) {
            right = score;
        } else if (score > wrong) {
            wrong = score;
        }
    }
    return (eval_answer){ .correct = choice == (int32_t)q->right, .choice = choice, .score = right - wrong };
}

static oct_status answer_group(const stepper *s, const eval_task_kind *kind, const eval_questions *questions, const group *g, eval_answer *answers, oct_error *error)
{
    uint32_t n_inputs = 0, n_jobs = 0;
    for (uint32_t i = g->first; i < g->end; i++) {
        n_inputs += choice_tokens(&questions->items[i]);
    }
    job *const jobs = malloc((g->n_sequences + 1) * sizeof(*jobs));
    int32_t *const inputs = malloc((n_inputs + 1) * sizeof(*inputs));
    oct_status status = jobs != NULL && inputs != NULL ? read_contexts(s, questions, g, jobs, error) : no_memory(error);
    if (status == OCT_OK) {
        status = prepare_choices(s, questions, g, jobs, &n_jobs, inputs, error);
    }
    if (status == OCT_OK) {
        status = run_jobs(s, jobs, n_jobs, error);
    }
    const job *at = jobs;
    for (uint32_t i = g->first; i < g->end && status == OCT_OK; i++) {
        answers[i] = decide(kind, &questions->items[i], at);
        at += questions->items[i].n_choices;
    }
    free(jobs);
    free(inputs);
    for (uint32_t sequence = 0; sequence < g->n_sequences && status == OCT_OK; sequence++) {
        status = octe_engine_length(s->engine, sequence) > 0 ? octe_engine_free(s->engine, sequence, error) : OCT_OK;
    }
    return status;
}

static oct_status open_engine(const eval_run *run, uint32_t format, const eval_questions *questions, stepper *s, oct_error *error)
{
    const uint32_t rows = compare_block_rows(run->n_vocab);
    eval_engine_size size = { .step_rows = STEP_ROWS, .step_logits = rows < STEP_ROWS ? rows : STEP_ROWS };
    for (uint32_t first = 0; first < questions->n;) {
        const group g = group_at(questions, first, run->page_size);
        size.n_sequences = g.n_sequences > size.n_sequences ? g.n_sequences : size.n_sequences;
        size.pool_tokens = g.n_tokens > size.pool_tokens ? g.n_tokens : size.pool_tokens;
        for (uint32_t i = first; i < g.end; i++) {
            const eval_question *const q = &questions->items[i];
            for (uint32_t c = 0; c < q->n_choices; c++) {
                const uint32_t longest = q->n_context + q->choices[c].n_tokens;
                size.context_tokens = longest > size.context_tokens ? longest : size.context_tokens;
            }
        }
        first = g.end;
    }
    s->run = run;
    s->step_rows = size.step_rows;
    s->step_logits = size.step_logits;
    return eval_run_open(run, format, &size, &s->engine, error);
}

oct_status eval_task_run(const eval_run *run, uint32_t format, const eval_task_kind *kind, const eval_questions *questions, uint32_t generate_tokens, eval_task *task,
                         oct_error *error)
{
    eval_answer *const answers = task->answers + (size_t)format * task->n_items;
    if (task->n_done[format] == task->n_items) {
        return OCT_OK;
    }
    if (kind->scoring == EVAL_GENERATE) {
        return eval_generate_run(run, format, questions, generate_tokens, answers, &task->n_done[format], error);
    }
    stepper s = { 0 };
    oct_status status = open_engine(run, format, questions, &s, error);
    for (uint32_t first = 0; first < questions->n && status == OCT_OK;) {
        const group g = group_at(questions, first, run->page_size);
        if (first >= task->n_done[format]) {
            status = answer_group(&s, kind, questions, &g, answers, error);
            for (uint32_t i = first; i < g.end && status == OCT_OK; i++) {
                status = format == 0 && isnan(answers[i].score) ? eval_run_no_numbers(error) : OCT_OK;
            }
            if (status == OCT_OK) {
                task->n_done[format] = g.end;
                status = eval_run_keep(run, error);
            }
        }
        first = g.end;
    }
    octe_engine_close(s.engine);
    return status;
}
