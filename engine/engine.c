/* engine.c: see engine.h. Opening, sequences, statistics; a step is in step.c. */
#include "engine/engine.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine_state.h"
#include "engine/report.h"
#include "host/threads.h"

/* ggml's GGML_MAX_N_THREADS; above it ggml aborts. */
enum { MAX_THREADS = 512 };
/* A sequence's record is small, a plan's not: both are made per step for the sequences that take part. */
enum { MAX_SEQUENCES = 65536, MAX_ROWS = 1 << 20 };
enum { DEFAULT_ROWS = 512, DEFAULT_LOGITS = 64 };

static const char *const where = "octe_engine_open";

void octe_engine_options_init(octe_engine_options *options)
{
    *options = (octe_engine_options){0};
    options->kv.k.dtype = OCT_DTYPE_F16;
    options->kv.v.dtype = OCT_DTYPE_F16;
}

static oct_status resolve(octe_engine *e, const octe_engine_options *given, oct_error *error)
{
    octe_engine_options *o = &e->options;
    const octe_model_info *info = octe_model_info_get(e->model);
    *o = *given;
    if (o->pool_tokens > 0 && o->pool_bytes > 0) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "pool_tokens (%" PRId64 ") and pool_bytes (%" PRIu64 ") are both given; give one", o->pool_tokens,
                            o->pool_bytes);
    }
    if (o->pool_tokens < 0) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "pool_tokens is %" PRId64 "; must be at least 0", o->pool_tokens);
    }
    o->n_threads = o->n_threads != 0 ? o->n_threads : oct__threads_usable_cpus();
    o->max_sequences = o->max_sequences != 0 ? o->max_sequences : 1;
    o->max_step_rows = o->max_step_rows != 0 ? o->max_step_rows : DEFAULT_ROWS;
    if (o->n_threads > MAX_THREADS && given->n_threads == 0) {
        o->n_threads = MAX_THREADS;
    }
    if (o->n_threads > MAX_THREADS) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "n_threads is %u; at most %d", o->n_threads, MAX_THREADS);
    }
    if (o->max_sequences > MAX_SEQUENCES || o->max_step_rows > MAX_ROWS) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "max_sequences is %u, max_step_rows %u; at most %d and %d", o->max_sequences, o->max_step_rows,
                            MAX_SEQUENCES, MAX_ROWS);
    }
    o->max_step_parts = o->max_step_parts != 0 ? o->max_step_parts : o->max_sequences;
    if (o->max_step_parts < o->max_sequences || o->max_step_parts > MAX_ROWS) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "max_step_parts is %u; must be max_sequences = %u to %d", o->max_step_parts, o->max_sequences, MAX_ROWS);
    }
    if (o->max_context_tokens > info->n_ctx_train) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, info->path, "a context of %u tokens is longer than the model was made for (%u)", o->max_context_tokens,
                            info->n_ctx_train);
    }
    if (o->max_step_logits == 0) {
        o->max_step_logits = o->max_sequences > DEFAULT_LOGITS ? o->max_sequences : DEFAULT_LOGITS;
    }
    if (o->max_step_logits > o->max_step_rows) {
        o->max_step_logits = o->max_step_rows;
    }
    if (!(o->test.rope_base_window >= 0.0f) || isinf(o->test.rope_base_window)) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "test.rope_base_window is %g; must be finite and >= 0", (double)o->test.rope_base_window);
    }
    /* A step whose logits fill up to as many as its rows takes one group of rows more: see octe__step_run. */
    const uint32_t together = o->deterministic ? OCTE__ROWS_TOGETHER : 1;
    e->logits_room = (o->max_step_logits + together - 1) / together * together;
    e->rows_room = o->deterministic ? (o->max_step_rows + together - 1) / together * together + together : o->max_step_rows;
    e->window_tokens = info->window_tokens != 0 && o->test.window_tokens != 0 ? o->test.window_tokens : info->window_tokens;
    return OCT_OK;
}

static oct_status open_plans(octe_engine *e, oct_error *error)
{
    const octe_engine_options *o = &e->options;
    const octe__hparams *h = &e->model->hparams;
    for (uint32_t i = 0; i < e->cache.n_kinds; i++) {
        const octe__kind *kind = &e->cache.kinds[i];
        oct_attn_spec spec = {
            .struct_size = sizeof(spec),
            .heads_q = h->n_heads,
            .kv = kind->spec,
            .q_dtype = OCT_DTYPE_F32,
            .out_dtype = OCT_DTYPE_F32,
            .sm_scale = h->attn_scale,
            .causal = 1,
            .window_tokens = kind->group == OCTE__WINDOW ? e->window_tokens : 0,
            .deterministic = o->deterministic,
            .max_threads = o->n_threads,
            .force_variant = o->force_variant,
            .deny_variant = o->deny_variant,
        };
        oct_status s = oct_plan_create(e->context, &spec, &e->seam.plan[i], error);
        if (s == OCT_OK && o->token_masks) {
            spec.has_mask = 1;
            s = oct_plan_create(e->context, &spec, &e->seam.tree_plan[i], error);
        }
        if (s != OCT_OK) {
            return s;
        }
    }
    return OCT_OK;
}

static oct_status open_step_memory(octe_engine *e, oct_error *error)
{
    const octe_engine_options *o = &e->options;
    const size_t rows = e->rows_room, parts = o->max_step_parts;
    octe__step_memory *m = &e->step;
    m->tokens = calloc(rows, sizeof(int32_t));
    m->positions = calloc(rows, sizeof(int32_t));
    m->output_rows = calloc(rows, sizeof(int32_t));
    m->parts = calloc(parts, sizeof(*m->parts));
    m->old_length = calloc(parts, sizeof(uint32_t));
    m->seen = calloc(o->max_sequences, sizeof(bool));
    m->qo_indptr = calloc(parts + 1, sizeof(int32_t));
    bool there = m->tokens != NULL && m->positions != NULL && m->output_rows != NULL && m->parts != NULL && m->old_length != NULL && m->seen != NULL && m->qo_indptr != NULL;
    for (int g = 0; g < OCTE__GROUPS; g++) {
        m->slots[g] = calloc(rows, sizeof(int32_t));
        m->kv_indptr[g] = calloc(parts + 1, sizeof(int32_t));
        m->last_page_len[g] = calloc(parts, sizeof(int32_t));
        there = there && m->slots[g] != NULL && m->kv_indptr[g] != NULL && m->last_page_len[g] != NULL;
    }
    if (there && o->count) {
        const size_t n = (size_t)e->cache.n_layers * o->n_threads;
        e->seam.k_counts = calloc(n, sizeof(*e->seam.k_counts));
        e->seam.v_counts = calloc(n, sizeof(*e->seam.v_counts));
        there = e->seam.k_counts != NULL && e->seam.v_counts != NULL;
    }
    return there ? OCT_OK : octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for steps of %zu rows and %zu parts", rows, parts);
}

static oct_status open(octe_engine *e, const octe_engine_options *given, oct_error *error)
{
    oct_status s = resolve(e, given, error);
    octe_engine_options *o = &e->options;
    if (s == OCT_OK) {
        /* The engine brings ggml's threads: the context needs none of its own. */
        const oct_context_options options = {.struct_size = sizeof(options), .max_threads = 1, .rates = o->rates};
        s = oct_context_create(&options, &e->context, error);
    }
    if (s == OCT_OK) {
        const octe__cache_options options = {
            .config = &given->kv,
            .max_sequences = o->max_sequences,
            .max_step_rows = o->max_step_rows,
            .window_tokens = e->window_tokens,
            .max_context_tokens = &o->max_context_tokens,
            .pool_tokens = o->pool_tokens,
            .pool_bytes = o->pool_bytes,
        };
        s = octe__cache_open(&e->cache, e->context, e->model, &options, error);
    }
    if (s == OCT_OK) {
        e->seam.cache = &e->cache;
        e->seam.model = e->model;
        e->seam.context = e->context;
        e->seam.n_threads = o->n_threads;
        e->seam.tap = o->tap;
        s = open_plans(e, error);
    }
    if (s == OCT_OK) {
        s = open_step_memory(e, error);
    }
    if (s == OCT_OK) {
        s = octe__seam_open(&e->seam, error);
    }
    if (s == OCT_OK) {
        const float base = o->test.rope_base_window > 0.0f ? o->test.rope_base_window : e->model->hparams.rope_base_window;
        s = octe__graphs_open(&e->graphs, e->model, &e->seam, o->n_threads, e->rows_room, e->logits_room, base, error);
    }
    if (s != OCT_OK) {
        return s;
    }
    o->pool_tokens = e->cache.n_pages[OCTE__FULL] * e->cache.spec.page_size;
    o->pool_bytes = 0;
    for (uint32_t i = 0; i < e->cache.n_kinds; i++) {
        o->pool_bytes += oct_kv_pool_bytes(e->cache.kinds[i].pool);
    }
    o->kv.page_size = e->cache.spec.page_size;
    /* Read while opening; the caller may free them now. */
    o->kv.scales = NULL;
    if (o->kv.layers != NULL) {
        const size_t bytes = e->cache.n_layers * sizeof(*e->layer_formats);
        e->layer_formats = malloc(bytes);
        if (e->layer_formats == NULL) {
            return octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for the formats of %u layers", e->cache.n_layers);
        }
        memcpy(e->layer_formats, o->kv.layers, bytes);
        o->kv.layers = e->layer_formats;
    }
    o->force_variant = o->deny_variant = NULL;
    o->rates = NULL;
    return OCT_OK;
}

oct_status octe_engine_open(const octe_model *model, const octe_engine_options *options, octe_engine **engine, oct_error *error)
{
    if (model == NULL || options == NULL || engine == NULL) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "%s is NULL", model == NULL ? "model" : options == NULL ? "options" : "engine");
    }
    *engine = NULL;
    octe_engine *e = calloc(1, sizeof(*e));
    if (e == NULL) {
        return octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for the engine's record");
    }
    e->model = model;
    const oct_status s = open(e, options, error);
    if (s != OCT_OK) {
        octe_engine_close(e);
        return s;
    }
    *engine = e;
    return OCT_OK;
}

void octe_engine_close(octe_engine *e)
{
    if (e == NULL) {
        return;
    }
    octe__graphs_close(&e->graphs);
    octe__seam_close(&e->seam);
    for (uint32_t i = 0; i < e->cache.n_kinds; i++) {
        oct_plan_destroy(e->seam.plan[i]);
        oct_plan_destroy(e->seam.tree_plan[i]);
    }
    free(e->layer_formats);
    free(e->step.mask);
    for (int g = 0; g < OCTE__GROUPS; g++) {
        free(e->step.slots[g]);
        free(e->step.kv_indptr[g]);
        free(e->step.last_page_len[g]);
        free(e->step.kv_indices[g]);
    }
    free(e->seam.k_counts);
    free(e->seam.v_counts);
    free(e->step.tokens);
    free(e->step.positions);
    free(e->step.output_rows);
    free(e->step.parts);
    free(e->step.old_length);
    free(e->step.seen);
    free(e->step.qo_indptr);
    octe__cache_close(&e->cache);
    oct_context_destroy(e->context);
    free(e);
}

const octe_model *octe_engine_model(const octe_engine *e) { return e->model; }
const octe_engine_options *octe_engine_options_get(const octe_engine *e) { return &e->options; }
oct_context *octe_engine_context(const octe_engine *e) { return e->context; }
const oct_kv_spec *octe_engine_kv_spec(const octe_engine *e) { return &e->cache.spec; }

uint32_t octe_engine_n_kinds(const octe_engine *e) { return e->cache.n_kinds; }
uint32_t octe_engine_layer_kind(const octe_engine *e, uint32_t layer) { return e->cache.kind[layer]; }

octe_engine_kind octe_engine_kind_get(const octe_engine *e, uint32_t i)
{
    const octe__kind *kind = &e->cache.kinds[i];
    return (octe_engine_kind){.spec = &kind->spec, .plan = e->seam.plan[i], .window = kind->group == OCTE__WINDOW, .n_layers = kind->n_layers};
}

const oct_plan *octe_engine_plan(const octe_engine *e, bool window)
{
    for (uint32_t i = 0; i < e->cache.n_kinds; i++) {
        if ((e->cache.kinds[i].group == OCTE__WINDOW) == window) {
            return e->seam.plan[i];
        }
    }
    return NULL;
}

/* ---- sequences ------------------------------------------------------------------------------------------- */

uint32_t octe_engine_length(const octe_engine *e, uint32_t sequence) { return octe__cache_length(&e->cache, sequence); }

uint32_t octe_engine_free_sequence(const octe_engine *e)
{
    for (uint32_t i = 0; i < e->options.max_sequences; i++) {
        if (octe__cache_length(&e->cache, i) == 0) {
            return i;
        }
    }
    return UINT32_MAX;
}

static oct_status check_sequence(const octe_engine *e, uint32_t sequence, const char *who, oct_error *error)
{
    return sequence < e->options.max_sequences
               ? OCT_OK
               : octe__report(error, OCT_INVALID_ARGUMENT, who, NULL, "sequence is %u; ids are 0 to %u", sequence, e->options.max_sequences - 1);
}

oct_status octe_engine_truncate(octe_engine *e, uint32_t sequence, uint32_t n_tokens, oct_error *error)
{
    static const char who[] = "octe_engine_truncate";
    oct_status s = check_sequence(e, sequence, who, error);
    if (s != OCT_OK) {
        return s;
    }
    s = octe__cache_truncate(&e->cache, sequence, n_tokens);
    return s == OCT_OK ? s
                       : octe__report(error, s, who, NULL, "sequence %u of %u tokens can't be cut to %u: longer than it is, or its window has let the keys go", sequence,
                                      octe_engine_length(e, sequence), n_tokens);
}

oct_status octe_engine_share(octe_engine *e, uint32_t from, uint32_t to, uint32_t n_tokens, oct_error *error)
{
    static const char who[] = "octe_engine_share";
    oct_status s = check_sequence(e, from, who, error);
    if (s == OCT_OK) {
        s = check_sequence(e, to, who, error);
    }
    if (s != OCT_OK) {
        return s;
    }
    s = octe__cache_share(&e->cache, from, to, n_tokens);
    return s == OCT_OK ? s
                       : octe__report(error, s, who, NULL,
                                      "%u tokens of sequence %u (%u long) can't be shared into sequence %u (%u long; must be empty), or their window is gone", n_tokens, from,
                                      octe_engine_length(e, from), to, octe_engine_length(e, to));
}

oct_status octe_engine_free(octe_engine *e, uint32_t sequence, oct_error *error)
{
    static const char who[] = "octe_engine_free";
    oct_status s = check_sequence(e, sequence, who, error);
    if (s != OCT_OK || octe_engine_length(e, sequence) == 0) {
        return s;
    }
    s = octe__cache_free(&e->cache, sequence);
    return s == OCT_OK ? s : octe__report(error, s, who, NULL, "sequence %u can't be freed: %s", sequence, oct_status_message(s));
}

oct_status octe_engine_stored(const octe_engine *e, uint32_t layer, uint32_t sequence, uint32_t position, oct_kv_layer *view, int32_t *slot)
{
    if (layer >= e->cache.n_layers || position >= octe_engine_length(e, sequence)) {
        return OCT_INVALID_ARGUMENT;
    }
    uint32_t n_pages;
    const uint32_t page_size = e->cache.spec.page_size;
    const int32_t *pages = oct_kv_table_pages(octe__cache_table(&e->cache, (octe__group)e->cache.group[layer]), sequence, &n_pages);
    if (position / page_size >= n_pages) {
        return OCT_INVALID_ARGUMENT;
    }
    const int32_t page = pages[position / page_size];
    *view = e->cache.layers[layer];
    *slot = page == OCT_PAGE_NONE ? -1 : page * (int32_t)page_size + (int32_t)(position % page_size);
    return OCT_OK;
}

/* ---- statistics --------------------------------------------------------------------------------------------- */

void octe_engine_stats_get(const octe_engine *e, octe_engine_stats *stats)
{
    oct_kv_table_stats full = {.struct_size = sizeof(full)}, window = {.struct_size = sizeof(window)};
    *stats = (octe_engine_stats){0};
    if (oct_kv_table_stats_get(octe__cache_table(&e->cache, OCTE__FULL), &full) == OCT_OK) {
        stats->pages_full = full.n_pages;
        stats->pages_full_free = full.n_free;
    }
    if (e->cache.twin != NULL && oct_kv_table_stats_get(octe__cache_table(&e->cache, OCTE__WINDOW), &window) == OCT_OK) {
        stats->pages_window = window.n_pages;
        stats->pages_window_free = window.n_free;
    }
    stats->n_copied = e->cache.n_copied;
    stats->pool_bytes = e->options.pool_bytes;
    stats->arena_bytes = octe__graphs_arena_bytes(&e->graphs);
    stats->n_steps = e->n_steps;
    stats->n_graphs_built = e->graphs.n_built;
    stats->n_graphs_reused = e->graphs.n_reused;
}

static void sum_counts(const octe_engine *e, const oct_kv_counts *by_thread, oct_kv_counts *sums)
{
    const uint32_t n_threads = e->options.n_threads;
    for (uint32_t il = 0; il < e->cache.n_layers && sums != NULL; il++) {
        sums[il] = (oct_kv_counts){0};
        for (uint32_t t = 0; t < n_threads && by_thread != NULL; t++) {
            const oct_kv_counts *c = &by_thread[(size_t)il * n_threads + t];
            sums[il].n_values += c->n_values;
            sums[il].n_saturated += c->n_saturated;
            sums[il].n_nan += c->n_nan;
            sums[il].amax = fmaxf(sums[il].amax, c->amax);
        }
    }
}

void octe_engine_counts(const octe_engine *e, oct_kv_counts *k, oct_kv_counts *v)
{
    sum_counts(e, e->seam.k_counts, k);
    sum_counts(e, e->seam.v_counts, v);
}

void octe_engine_counts_reset(octe_engine *e)
{
    const size_t n = (size_t)e->cache.n_layers * e->options.n_threads * sizeof(oct_kv_counts);
    if (e->seam.k_counts != NULL) {
        memset(e->seam.k_counts, 0, n);
        memset(e->seam.v_counts, 0, n);
    }
}
