/* step.c: one step of an engine: rows of many sequences through the model at once. All or nothing. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine_state.h"
#include "engine/report.h"

static const char *const where = "octe_engine_step";

static oct_status check_part(octe_engine *e, const octe_part *p, uint32_t i, oct_error *error)
{
    const octe_engine_options *o = &e->options;
    const uint32_t n_vocab = octe_model_info_get(e->model)->n_vocab;
    if (p->sequence >= o->max_sequences || e->step.seen[p->sequence]) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "part %u: sequence is %u; must be 0 to %u, each in one part only", i, p->sequence,
                            o->max_sequences - 1);
    }
    e->step.seen[p->sequence] = true;
    if (p->n_tokens == 0 || p->tokens == NULL || p->n_logits > p->n_tokens) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "part %u: %u tokens%s with logits of %u; must be at least 1, with logits of at most as many", i,
                            p->n_tokens, p->tokens == NULL ? " (NULL)" : "", p->n_logits);
    }
    const uint32_t length = octe_engine_length(e, p->sequence);
    if (p->n_tokens > o->max_context_tokens - length) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "part %u: %u more tokens after the %u of sequence %u exceed the context of %u", i, p->n_tokens,
                            length, p->sequence, o->max_context_tokens);
    }
    for (uint32_t t = 0; t < p->n_tokens; t++) {
        if (p->tokens[t] < 0 || (uint32_t)p->tokens[t] >= n_vocab) {
            return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "part %u: token %u is %" PRId32 "; must be 0 to %u", i, t, p->tokens[t], n_vocab - 1);
        }
    }
    return OCT_OK;
}

static oct_status check(octe_engine *e, const octe_part *parts, uint32_t n_parts, uint32_t *n_rows, uint32_t *n_logits, oct_error *error)
{
    const octe_engine_options *o = &e->options;
    uint64_t rows = 0, outputs = 0;
    if (parts == NULL || n_parts == 0 || n_parts > o->max_sequences) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "%u parts; must be 1 to %u", parts == NULL ? 0 : n_parts, o->max_sequences);
    }
    memset(e->step.seen, 0, o->max_sequences * sizeof(*e->step.seen));
    for (uint32_t i = 0; i < n_parts; i++) {
        const oct_status s = check_part(e, &parts[i], i, error);
        if (s != OCT_OK) {
            return s;
        }
        rows += parts[i].n_tokens;
        outputs += parts[i].n_logits;
    }
    if (rows > o->max_step_rows || outputs > o->max_step_logits) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL,
                            "the step has %" PRIu64 " rows, %" PRIu64 " of them with logits; at most max_step_rows = %u and max_step_logits = %u", rows, outputs,
                            o->max_step_rows, o->max_step_logits);
    }
    *n_rows = (uint32_t)rows;
    *n_logits = (uint32_t)outputs;
    return OCT_OK;
}

/* Cuts the first n parts' sequences back to what they were. Nothing has slid since: it can't fail. */
static void roll_back(octe_engine *e, const octe_part *parts, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        (void)octe__cache_truncate(&e->cache, parts[i].sequence, e->step.old_length[i]);
    }
}

/* Rows and slots of all parts. */
static oct_status append(octe_engine *e, const octe_part *parts, uint32_t n_parts, oct_error *error)
{
    octe__step_memory *m = &e->step;
    uint32_t row = 0, output = 0;
    for (uint32_t i = 0; i < n_parts; i++) {
        const octe_part *p = &parts[i];
        m->old_length[i] = octe_engine_length(e, p->sequence);
        m->qo_indptr[i] = (int32_t)row;
        const oct_status s = octe__cache_append(&e->cache, p->sequence, p->n_tokens, m->slots[OCTE__FULL] + row, m->slots[OCTE__WINDOW] + row, error);
        if (s != OCT_OK) {
            /* Pages that could not be copied leave their sequence longer; cutting it to its old length is right either way. */
            roll_back(e, parts, i + (octe_engine_length(e, p->sequence) != m->old_length[i]));
            return s;
        }
        for (uint32_t t = 0; t < p->n_tokens; t++, row++) {
            m->tokens[row] = p->tokens[t];
            m->positions[row] = (int32_t)(m->old_length[i] + t);
            if (t + p->n_logits >= p->n_tokens) {
                m->output_rows[output++] = (int32_t)row;
            }
        }
    }
    m->qo_indptr[n_parts] = (int32_t)row;
    return OCT_OK;
}

static bool room_for_indices(octe__step_memory *m, int g, size_t wanted)
{
    if (wanted <= m->n_indices_room[g]) {
        return true;
    }
    const size_t room = wanted + wanted / 2 + 64;
    int32_t *larger = realloc(m->kv_indices[g], room * sizeof(*larger));
    if (larger == NULL) {
        return false;
    }
    m->kv_indices[g] = larger;
    m->n_indices_room[g] = room;
    return true;
}

static oct_status update_plans(octe_engine *e, const octe_paged_part *parts, uint32_t n_parts, octe__group g, oct_error *error)
{
    octe__step_memory *m = &e->step;
    const uint32_t page_size = e->cache.spec.page_size;
    size_t n = 0;
    m->kv_indptr[g][0] = 0;
    for (uint32_t i = 0; i < n_parts; i++) {
        const uint32_t length = parts[i].n_past + parts[i].n_tokens, n_pages = (length - 1) / page_size + 1;
        if (!room_for_indices(m, g, n + n_pages)) {
            return octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for %zu page indices", n + n_pages);
        }
        memcpy(m->kv_indices[g] + n, parts[i].pages[g], n_pages * sizeof(int32_t));
        n += n_pages;
        m->kv_indptr[g][i + 1] = (int32_t)n;
        m->last_page_len[g][i] = (int32_t)((length - 1) % page_size + 1);
    }
    const oct_attn_batch batch = {
        .struct_size = sizeof(batch),
        .n_sequences = n_parts,
        .qo_indptr = m->qo_indptr,
        .kv_indptr = m->kv_indptr[g],
        .kv_indices = m->kv_indices[g],
        .kv_last_page_len = m->last_page_len[g],
        .n_pages = e->cache.n_pages[g],
    };
    oct_status s = OCT_OK;
    for (uint32_t i = 0; i < e->cache.n_kinds && s == OCT_OK; i++) {
        s = e->cache.kinds[i].group == g ? oct_plan_update(e->seam.mask != NULL ? e->seam.tree_plan[i] : e->seam.plan[i], &batch, error) : OCT_OK;
    }
    return s;
}

static uint32_t fill_up(const octe_engine *e, uint32_t n)
{
    const uint32_t together = e->options.deterministic ? OCTE__ROWS_TOGETHER : 1;
    return (n + together - 1) / together * together;
}

/* The rows that only fill up: of any token, stored nowhere, and their logits not looked at. */
static void add_idle_rows(octe__step_memory *m, uint32_t n_rows, uint32_t n_all_rows, uint32_t n_logits, uint32_t n_all_logits)
{
    for (uint32_t row = n_rows; row < n_all_rows; row++) {
        m->tokens[row] = m->positions[row] = 0;
        m->slots[OCTE__FULL][row] = m->slots[OCTE__WINDOW][row] = -1;
    }
    for (uint32_t i = n_logits; i < n_all_logits; i++) {
        m->output_rows[i] = 0;
    }
}

/* Which of its part's tokens each row sees, where a part is a tree: a word is enough for a tree, a step may have longer parts that see all of theirs. False: no memory. */
static bool write_masks(octe_engine *e, const octe_paged_part *parts, uint32_t n_parts, uint32_t n_rows)
{
    octe__step_memory *m = &e->step;
    uint32_t longest = 0;
    bool trees = false;
    for (uint32_t i = 0; i < n_parts; i++) {
        trees = trees || parts[i].parents != NULL;
        longest = parts[i].n_tokens > longest ? parts[i].n_tokens : longest;
    }
    e->seam.mask = NULL;
    e->seam.mask_words = 0;
    if (!trees) {
        return true;
    }
    const uint32_t words = (longest + 31) / 32;
    const size_t wanted = (size_t)words * n_rows;
    if (wanted > m->mask_room) {
        uint32_t *const larger = realloc(m->mask, wanted * sizeof(*larger));
        if (larger == NULL) {
            return false;
        }
        m->mask = larger;
        m->mask_room = wanted;
    }
    memset(m->mask, 0xFF, wanted * sizeof(*m->mask));
    for (uint32_t i = 0; i < n_parts; i++) {
        uint32_t *const row = m->mask + (size_t)words * (uint32_t)m->qo_indptr[i];
        for (uint32_t t = 0; parts[i].parents != NULL && t < parts[i].n_tokens; t++) {
            row[(size_t)words * t] = (t > 0 ? row[(size_t)words * parts[i].parents[t]] : 0) | 1u << t;
        }
    }
    e->seam.mask = m->mask;
    e->seam.mask_words = words;
    return true;
}

oct_status octe__step_run(octe_engine *e, const octe_paged_part *parts, uint32_t n_parts, uint32_t n_rows, uint32_t n_logits, const float **logits, oct_error *error)
{
    octe__step_memory *m = &e->step;
    if (!write_masks(e, parts, n_parts, n_rows)) {
        return octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for the masks of %u rows", n_rows);
    }
    for (int g = 0; g < OCTE__GROUPS; g++) {
        if (e->cache.n_in_group[g] == 0) {
            continue;
        }
        const oct_status s = update_plans(e, parts, n_parts, (octe__group)g, error);
        if (s != OCT_OK) {
            return s;
        }
        e->seam.slots[g] = m->slots[g];
    }
    e->seam.n_rows = n_rows;
    uint32_t n_all_rows = fill_up(e, n_rows);
    const uint32_t n_all_logits = fill_up(e, n_logits);
    /* A graph with logits of all its rows gives them in the rows' order. */
    if (n_all_logits == n_all_rows && n_logits != n_rows) {
        n_all_rows += OCTE__ROWS_TOGETHER;
    }
    add_idle_rows(m, n_rows, n_all_rows, n_logits, n_all_logits);
    octe__graph *graph = octe__graphs_get(&e->graphs, n_all_rows, n_all_logits);
    if (graph == NULL) {
        return octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for a graph of %u rows", n_all_rows);
    }
    memcpy(graph->tokens->data, m->tokens, n_all_rows * sizeof(*m->tokens));
    memcpy(graph->positions->data, m->positions, n_all_rows * sizeof(*m->positions));
    if (graph->output_rows != NULL) {
        memcpy(graph->output_rows->data, m->output_rows, n_all_logits * sizeof(*m->output_rows));
    }
    const oct_status s = octe__graphs_compute(&e->graphs, graph, error);
    if (s == OCT_OK && logits != NULL) {
        *logits = graph->logits != NULL ? graph->logits->data : NULL;
    }
    return s;
}

/* The parts with the pages that the tables have for them. */
static void find_pages(octe_engine *e, const octe_part *parts, uint32_t n_parts)
{
    for (uint32_t i = 0; i < n_parts; i++) {
        octe_paged_part *p = &e->step.parts[i];
        *p = (octe_paged_part){.tokens = parts[i].tokens, .n_tokens = parts[i].n_tokens, .n_past = e->step.old_length[i], .n_logits = parts[i].n_logits};
        for (int g = 0; g < OCTE__GROUPS; g++) {
            p->pages[g] = e->cache.n_in_group[g] > 0 ? oct_kv_table_pages(octe__cache_table(&e->cache, (octe__group)g), parts[i].sequence, NULL) : NULL;
        }
    }
}

oct_status octe_engine_step(octe_engine *e, const octe_part *parts, uint32_t n_parts, const float **logits, oct_error *error)
{
    uint32_t n_rows = 0, n_logits = 0;
    if (logits != NULL) {
        *logits = NULL;
    }
    oct_status s = check(e, parts, n_parts, &n_rows, &n_logits, error);
    if (s == OCT_OK) {
        s = append(e, parts, n_parts, error);
    }
    if (s != OCT_OK) {
        return s;
    }
    find_pages(e, parts, n_parts);
    s = octe__step_run(e, e->step.parts, n_parts, n_rows, n_logits, logits, error);
    if (s != OCT_OK) {
        roll_back(e, parts, n_parts);
        return s;
    }
    for (uint32_t i = 0; i < n_parts; i++) {
        octe__cache_slide(&e->cache, parts[i].sequence);
    }
    e->n_steps++;
    return OCT_OK;
}

oct_status octe_engine_prefill(octe_engine *e, uint32_t sequence, const int32_t *tokens, uint32_t n_tokens, const float **logits, oct_error *error)
{
    const uint32_t old_length = octe_engine_length(e, sequence), most = e->options.max_step_rows;
    if (n_tokens == 0 || n_tokens > e->options.max_context_tokens - old_length) {
        return octe__report(error, OCT_INVALID_ARGUMENT, "octe_engine_prefill", NULL, "%u more tokens after the %u of sequence %u; must be 1 to the context of %u in all",
                            n_tokens, old_length, sequence, e->options.max_context_tokens);
    }
    for (uint32_t done = 0; done < n_tokens;) {
        const uint32_t n = n_tokens - done < most ? n_tokens - done : most;
        const bool last = done + n == n_tokens;
        const octe_part part = {.sequence = sequence, .n_tokens = n, .tokens = tokens != NULL ? tokens + done : NULL, .n_logits = last && logits != NULL};
        const oct_status s = octe_engine_step(e, &part, 1, last ? logits : NULL, error);
        if (s != OCT_OK) {
            if (done > 0 && octe__cache_truncate(&e->cache, sequence, old_length) != OCT_OK) {
                (void)octe__cache_free(&e->cache, sequence);
            }
            return s;
        }
        done += n;
    }
    return OCT_OK;
}
