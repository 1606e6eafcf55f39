/* step_paged.c: steps over pages that the caller hands out, and copies of them. */
#include <inttypes.h>
#include <string.h>

#include "engine/engine_state.h"
#include "engine/report.h"

static const char *const where = "octe_engine_step_paged";

static oct_status check_part(const octe_engine *e, const octe_paged_part *p, uint32_t i, oct_error *error)
{
    const octe_engine_options *o = &e->options;
    const uint32_t n_vocab = octe_model_info_get(e->model)->n_vocab;
    if (p->n_tokens == 0 || p->tokens == NULL || p->n_logits > p->n_tokens) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "part %u: %u tokens%s with logits of %u; must be at least 1, with logits of at most as many", i,
                            p->n_tokens, p->tokens == NULL ? " (NULL)" : "", p->n_logits);
    }
    if (p->n_past > o->max_context_tokens || p->n_tokens > o->max_context_tokens - p->n_past) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "part %u: %u more tokens after %u exceed the context of %u", i, p->n_tokens, p->n_past,
                            o->max_context_tokens);
    }
    for (uint32_t t = 0; t < p->n_tokens; t++) {
        if (p->tokens[t] < 0 || (uint32_t)p->tokens[t] >= n_vocab) {
            return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "part %u: token %u is %" PRId32 "; must be 0 to %u", i, t, p->tokens[t], n_vocab - 1);
        }
    }
    if (p->parents != NULL) {
        const bool fits = e->window_tokens == 0 || e->cache.n_in_group[OCTE__WINDOW] == 0 || p->n_past + p->n_tokens <= e->window_tokens;
        bool fine = o->token_masks && p->n_tokens <= 32 && fits;
        for (uint32_t t = 1; t < p->n_tokens; t++) {
            fine = fine && p->parents[t] < t;
        }
        if (!fine) {
            return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "part %u: a tree of %u tokens after %u%s; must have at most 32, each after its parent, with token_masks and within the window", i,
                                p->n_tokens, p->n_past, o->token_masks ? "" : " without token_masks");
        }
    }
    /* Pages that are written; those that are read are checked by the plan. */
    const uint32_t page_size = e->cache.spec.page_size, last = (p->n_past + p->n_tokens - 1) / page_size;
    for (int g = 0; g < OCTE__GROUPS; g++) {
        for (uint32_t k = p->n_past / page_size; e->cache.n_in_group[g] > 0 && k <= last; k++) {
            if (p->pages[g] == NULL || p->pages[g][k] < 0 || p->pages[g][k] >= e->cache.n_pages[g]) {
                return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "part %u: page %u of the %s pool is %" PRId32 "; must be 0 to %" PRId64, i, k,
                                    g == OCTE__WINDOW ? "window" : "full", p->pages[g] == NULL ? -1 : p->pages[g][k], e->cache.n_pages[g] - 1);
            }
        }
    }
    return OCT_OK;
}

static oct_status check(const octe_engine *e, const octe_paged_part *parts, uint32_t n_parts, oct_error *error)
{
    const octe_engine_options *o = &e->options;
    uint64_t rows = 0, outputs = 0;
    if (parts == NULL || n_parts == 0 || n_parts > o->max_step_parts) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "%u parts; must be 1 to %u", parts == NULL ? 0 : n_parts, o->max_step_parts);
    }
    oct_kv_table_stats stats = {.struct_size = sizeof(stats)};
    if (oct_kv_table_stats_get(octe__cache_table(&e->cache, OCTE__FULL), &stats) != OCT_OK || stats.n_used > 0) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "the engine's own sequences hold %" PRId64 " pages; free them first", stats.n_used);
    }
    for (uint32_t i = 0; i < n_parts; i++) {
        const oct_status s = check_part(e, &parts[i], i, error);
        if (s != OCT_OK) {
            return s;
        }
        rows += parts[i].n_tokens;
        outputs += parts[i].n_logits;
    }
    return rows <= o->max_step_rows && outputs <= o->max_step_logits
               ? OCT_OK
               : octe__report(error, OCT_INVALID_ARGUMENT, where, NULL,
                              "the step has %" PRIu64 " rows, %" PRIu64 " of them with logits; at most max_step_rows = %u and max_step_logits = %u", rows, outputs,
                              o->max_step_rows, o->max_step_logits);
}

static void place(octe_engine *e, const octe_paged_part *parts, uint32_t n_parts, uint32_t *n_rows, uint32_t *n_logits)
{
    octe__step_memory *m = &e->step;
    const uint32_t page_size = e->cache.spec.page_size;
    uint32_t row = 0, output = 0;
    for (uint32_t i = 0; i < n_parts; i++) {
        const octe_paged_part *p = &parts[i];
        const uint32_t first = row;
        m->qo_indptr[i] = (int32_t)row;
        for (uint32_t t = 0; t < p->n_tokens; t++, row++) {
            const uint32_t position = p->n_past + t;
            m->tokens[row] = p->tokens[t];
            m->positions[row] = p->parents != NULL && t > 0 ? m->positions[first + p->parents[t]] + 1 : (int32_t)position;
            for (int g = 0; g < OCTE__GROUPS; g++) {
                m->slots[g][row] = e->cache.n_in_group[g] > 0 ? p->pages[g][position / page_size] * (int32_t)page_size + (int32_t)(position % page_size) : -1;
            }
            if (t + p->n_logits >= p->n_tokens) {
                m->output_rows[output++] = (int32_t)row;
            }
        }
    }
    m->qo_indptr[n_parts] = (int32_t)row;
    *n_rows = row;
    *n_logits = output;
}

oct_status octe_engine_step_paged(octe_engine *e, const octe_paged_part *parts, uint32_t n_parts, const float **logits, oct_error *error)
{
    if (logits != NULL) {
        *logits = NULL;
    }
    oct_status s = check(e, parts, n_parts, error);
    if (s != OCT_OK) {
        return s;
    }
    uint32_t n_rows, n_logits;
    place(e, parts, n_parts, &n_rows, &n_logits);
    s = octe__step_run(e, parts, n_parts, n_rows, n_logits, logits, error);
    e->n_steps += s == OCT_OK;
    return s;
}

oct_status octe_engine_copy_page(octe_engine *e, uint32_t pool, int32_t from, int32_t to, oct_error *error)
{
    static const char who[] = "octe_engine_copy_page";
    if (pool >= OCTE__GROUPS) {
        return octe__report(error, OCT_INVALID_ARGUMENT, who, NULL, "pool is %u; must be 0 or 1", pool);
    }
    if (e->cache.n_in_group[pool] == 0) {
        return OCT_OK;
    }
    const oct_status s = octe__cache_copy_page(&e->cache, (octe__group)pool, from, to);
    if (s != OCT_OK) {
        return octe__report(error, s, who, NULL, "page %" PRId32 " can't be copied to %" PRId32 "; pages are 0 to %" PRId64, from, to, e->cache.n_pages[pool] - 1);
    }
    e->cache.n_copied++;
    return OCT_OK;
}

/* ---- pages out of the pool and back ------------------------------------------------------------------------------ */

/* One piece of a page: K, V or their dynamic scales in one layer. A pool's pages are contiguous in each. */
typedef struct piece {
    unsigned char *begin;
    size_t bytes;
} piece;

static void pieces_of(const oct_kv_layer *l, int32_t page, piece pieces[4])
{
    const oct_kv_spec *spec = &l->spec;
    void *const values[2] = {l->k, l->v}, *const scales[2] = {l->k_token_scale, l->v_token_scale};
    const int64_t strides[2] = {l->k_page_stride, l->v_page_stride}, scale_strides[2] = {l->k_scale_page_stride, l->v_scale_page_stride};
    for (int side = 0; side < 2; side++) {
        const oct_kv_format *f = side == 0 ? &spec->k : &spec->v;
        const size_t scale = scales[side] != NULL ? oct_dtype_size_bytes(f->scale_dtype) : 0;
        const size_t n = (size_t)spec->page_size * spec->heads;
        pieces[2 * side] = (piece){(unsigned char *)values[side] + (size_t)oct_dtype_bytes(f->dtype, (uint64_t)page * (uint64_t)strides[side]),
                                  (size_t)oct_dtype_bytes(f->dtype, n * (side == 0 ? spec->dim_k : spec->dim_v))};
        pieces[2 * side + 1] = scale > 0 ? (piece){(unsigned char *)scales[side] + (size_t)page * (size_t)scale_strides[side] * scale, n * scale} : (piece){NULL, 0};
    }
}

size_t octe_engine_page_bytes(const octe_engine *e, uint32_t pool)
{
    size_t n = 0;
    for (uint32_t il = 0; il < e->cache.n_layers; il++) {
        n += e->cache.group[il] == pool ? oct_kv_page_bytes(&e->cache.layers[il].spec) : 0;
    }
    return n;
}

/* out or in: one of the two. */
static oct_status move_page(const octe_engine *e, uint32_t pool, int32_t page, unsigned char *out, const unsigned char *in)
{
    if (pool >= OCTE__GROUPS || page < 0 || page >= e->cache.n_pages[pool]) {
        return OCT_INVALID_ARGUMENT;
    }
    size_t at = 0;
    for (uint32_t il = 0; il < e->cache.n_layers; il++) {
        piece pieces[4];
        if (e->cache.group[il] != pool) {
            continue;
        }
        pieces_of(&e->cache.layers[il], page, pieces);
        for (int i = 0; i < 4; i++) {
            if (pieces[i].bytes > 0) {
                memcpy(out != NULL ? out + at : pieces[i].begin, out != NULL ? pieces[i].begin : in + at, pieces[i].bytes);
                at += pieces[i].bytes;
            }
        }
    }
    return OCT_OK;
}

oct_status octe_engine_page_read(const octe_engine *e, uint32_t pool, int32_t page, void *bytes) { return move_page(e, pool, page, bytes, NULL); }
oct_status octe_engine_page_write(octe_engine *e, uint32_t pool, int32_t page, const void *bytes) { return move_page(e, pool, page, NULL, bytes); }
