/* The engine: a model running on paged KV. ggml computes the dense part, liboctavo keeps K and V and attends, inside ggml's threads.
 * One thread at a time drives an engine; engines are independent of each other and may share a model. */
#ifndef OCTE_ENGINE_H
#define OCTE_ENGINE_H

#include "engine/kv_config.h"
#include "engine/model.h"

typedef struct octe_engine octe_engine;

/* Deliberate faults for negative controls: a test that can't see these can't see a wrong window or RoPE. 0: as the model says. */
typedef struct octe_engine_test {
    uint32_t window_tokens;        /* instead of the model's window */
    float rope_base_window;        /* instead of the window layers' RoPE base */
} octe_engine_test;

/* What passes between a layer and its cache in one step: f32, strides in elements, rows in the step's order. */
typedef struct octe_tap_rows {
    uint32_t layer, n_rows;
    const float *q;                /* [rows][n_heads][head_dim], after RoPE, before the scale of attention */
    float *k, *v;                  /* [rows][n_heads_kv][head_dim], after RoPE, as the model made them */
    const float *out;              /* [rows][n_heads][head_dim]; NULL before */
    int64_t q_row_stride, q_head_stride, k_row_stride, k_head_stride, v_row_stride, v_head_stride, out_row_stride, out_head_stride;
} octe_tap_rows;

/* Who wants to look. Every thread of the step calls with its number: who splits the work by heads needs no lock. before: nothing is stored yet, and
 * what is changed in k and v is what gets stored. after: stored, and attention has run. The last layer of a step without logits is left out. */
typedef struct octe_engine_tap {
    void (*before)(void *user, const octe_tap_rows *rows, uint32_t ith, uint32_t nth);   /* either may be NULL */
    void (*after)(void *user, const octe_tap_rows *rows, uint32_t ith, uint32_t nth);
    void *user;
} octe_engine_tap;

typedef struct octe_engine_options {
    uint32_t n_threads;            /* 0: the machine's cores */
    uint32_t max_context_tokens;   /* of one sequence; 0: the model's n_ctx_train */
    uint32_t max_sequences;        /* 0: 1 */
    uint32_t max_step_rows;        /* rows (tokens) of one step, llama.cpp's n_ubatch; 0: 512 */
    uint32_t max_step_logits;      /* rows of one step with logits; memory: this x n_vocab x 4 bytes. 0: max(64, max_sequences), at most max_step_rows */
    uint32_t max_step_parts;       /* parts of octe_engine_step_paged's step; no pool is sized by them. 0: max_sequences; not fewer */
    bool token_masks;              /* parts of octe_engine_step_paged may be trees: a second plan for each kind of layer */
    int64_t pool_tokens;           /* tokens that all sequences together may hold in the pool. 0: by pool_bytes, else max_sequences x max_context_tokens */
    uint64_t pool_bytes;           /* as pool_tokens, in bytes of pages of all layers; 0: by pool_tokens. Not both */
    octe_kv_config kv;
    const char *force_variant;     /* as in oct_attn_spec; NULL */
    const char *deny_variant;
    bool deterministic;            /* a part's bits don't depend on the step's other parts; single tokens cost as much as a few together */
    bool count;                    /* fill octe_engine_counts (costs a pass over K and V) */
    const oct_rates *rates;        /* of this machine, as in oct_context_options; read while opening. NULL: defaults */
    const octe_engine_tap *tap;    /* looks into every step; lives as long as the engine. NULL: nobody */
    octe_engine_test test;
} octe_engine_options;

/* All zero but for an f16 cache. */
void octe_engine_options_init(octe_engine_options *options);

/* Errors: INVALID_ARGUMENT (names the option; a context longer than the pool says both numbers), UNSUPPORTED (variants),
 * OUT_OF_MEMORY, BAD_DATA (scales that don't fit the model). The model must outlive the engine. */
oct_status octe_engine_open(const octe_model *model, const octe_engine_options *options, octe_engine **engine, oct_error *error);
void octe_engine_close(octe_engine *engine);   /* NULL is fine */

const octe_model *octe_engine_model(const octe_engine *engine);

/* The options as resolved: no zeros left where zero meant "choose". */
const octe_engine_options *octe_engine_options_get(const octe_engine *engine);

/* ---- sequences --------------------------------------------------------------------------------------------------------
 * Ids 0 .. max_sequences - 1. A sequence needs no creation: an id that holds no token is an empty sequence. */

/* Tokens held; 0 for an id out of range. */
uint32_t octe_engine_length(const octe_engine *engine, uint32_t sequence);

/* An id that holds no token, or UINT32_MAX. It stays "free" until tokens are appended or shared into it. */
uint32_t octe_engine_free_sequence(const octe_engine *engine);

/* Cuts to n_tokens. INVALID_ARGUMENT when longer than the sequence, or (window layers) when keys that a next token would need are gone. */
oct_status octe_engine_truncate(octe_engine *engine, uint32_t sequence, uint32_t n_tokens, oct_error *error);

/* The empty sequence `to` gets the first n_tokens of `from`, sharing pages; a later append copies the one page both would write. */
oct_status octe_engine_share(octe_engine *engine, uint32_t from, uint32_t to, uint32_t n_tokens, oct_error *error);

/* Empties the sequence and gives its pages back. */
oct_status octe_engine_free(octe_engine *engine, uint32_t sequence, oct_error *error);

/* ---- steps --------------------------------------------------------------------------------------------------------------- */

/* One sequence's part of a step: n_tokens continue it at its present length. Prompts, continued prompts and single decoded tokens mix. */
typedef struct octe_part {
    uint32_t sequence;       /* at most one part of a step speaks of it */
    uint32_t n_tokens;       /* >= 1 */
    const int32_t *tokens;   /* 0 .. n_vocab - 1 */
    uint32_t n_logits;       /* logits of the last n_logits of these tokens; 0: none */
} octe_part;

/* Runs one step. *logits (may be NULL when no part wants any): f32 [sum of n_logits][n_vocab], parts in order, owned by the engine and
 * valid until its next call. All or nothing: after an error every sequence has its old length. Errors: INVALID_ARGUMENT (part, limits
 * with numbers, token out of range, context exceeded), OUT_OF_PAGES (needed and free pages), UNSUPPORTED, OUT_OF_MEMORY, DEVICE_FAULT. */
oct_status octe_engine_step(octe_engine *engine, const octe_part *parts, uint32_t n_parts, const float **logits, oct_error *error);

/* Appends any number of tokens to one sequence in steps of max_step_rows; *logits (or NULL): f32[n_vocab] after the last.
 * After an error the sequence has its old length where the window allows it, else it is freed. */
oct_status octe_engine_prefill(octe_engine *engine, uint32_t sequence, const int32_t *tokens, uint32_t n_tokens, const float **logits, oct_error *error);

/* Appends n_tokens that no model computed: arbitrary finite values, the same in every layer, stored by the same write as any others. For
 * measuring speed at a depth without the prefill that leads there; what is generated after it means nothing. Errors and what they
 * leave behind as octe_engine_prefill. */
oct_status octe_engine_fill(octe_engine *engine, uint32_t sequence, uint32_t n_tokens, oct_error *error);

/* ---- steps on pages that somebody else hands out ------------------------------------------------------------------------
 * For a scheduler with page accounting of its own (engine/serve). The pools are the same: an engine whose sequences hold tokens
 * refuses these steps, so that no page has two owners. */

/* The pools' indices in `pages` and of octe_engine_copy_page. */
enum { OCTE_POOL_FULL = 0, OCTE_POOL_WINDOW = 1 };

typedef struct octe_paged_part {
    const int32_t *tokens;       /* [n_tokens], as of octe_part; they continue n_past stored ones */
    uint32_t n_tokens, n_past, n_logits;
    const int32_t *pages[2];     /* page i holds keys i * page_size on; of the pools that the model has, else not looked at. Pages behind the window
                                  * may be OCT_PAGE_NONE. Pages that are written must be of this part alone, or of parts that continue each
                                  * other token by token: all rows are stored before any is read */
    const uint8_t *parents;      /* NULL: each token follows the one before it. Else [n_tokens], token_masks, at most 32 tokens: parents[i] < i is the token that i follows
                                  * (parents[0] is not looked at: it follows the stored ones). A token sees the stored ones and those on its way to the first, at the position
                                  * that so many give; it is stored in the place of its index. Layers with a window: the whole text must fit into it */
} octe_paged_part;

/* As octe_engine_step; nothing of the parts is kept. At most max_step_parts of them. A step that failed may have stored some of its rows. */
oct_status octe_engine_step_paged(octe_engine *engine, const octe_paged_part *parts, uint32_t n_parts, const float **logits, oct_error *error);

/* Bytes of one page of a pool in all its layers, dynamic scales included; 0 for a pool that the model has no layers for. */
size_t octe_engine_page_bytes(const octe_engine *engine, uint32_t pool);

/* A page's bytes, octe_engine_page_bytes of them, out of the pool and back into any page of it. INVALID_ARGUMENT: no such page. */
oct_status octe_engine_page_read(const octe_engine *engine, uint32_t pool, int32_t page, void *bytes);
oct_status octe_engine_page_write(octe_engine *engine, uint32_t pool, int32_t page, const void *bytes);

/* Copies a page of a pool in all its layers. Fine for a pool that the model has no layers for. */
oct_status octe_engine_copy_page(octe_engine *engine, uint32_t pool, int32_t from, int32_t to, oct_error *error);

/* ---- what it does ----------------------------------------------------------------------------------------------------------- */

typedef struct octe_engine_stats {
    int64_t pages_full, pages_full_free;       /* of the pool of full-attention layers */
    int64_t pages_window, pages_window_free;   /* of the twin pool; 0 without window layers */
    int64_t n_copied;                          /* pages copied on write */
    uint64_t pool_bytes;                       /* pages and scales, both pools */
    uint64_t arena_bytes;                      /* activations */
    uint64_t n_steps, n_graphs_built, n_graphs_reused;
} octe_engine_stats;

void octe_engine_stats_get(const octe_engine *engine, octe_engine_stats *stats);

/* Values written since opening or the last reset, with options.count: k and v: oct_kv_counts[n_layers], either may be NULL. */
void octe_engine_counts(const octe_engine *engine, oct_kv_counts *k, oct_kv_counts *v);
void octe_engine_counts_reset(octe_engine *engine);

/* Layers that share window and formats; full layers' kinds before window layers'. spec and plan are owned by the engine, for oct_plan_explain,
 * oct_plan_info_get and oct_kv_write_explain. */
typedef struct octe_engine_kind {
    const oct_kv_spec *spec;
    const oct_plan *plan;
    bool window;
    uint32_t n_layers;
} octe_engine_kind;

uint32_t octe_engine_n_kinds(const octe_engine *engine);
octe_engine_kind octe_engine_kind_get(const octe_engine *engine, uint32_t kind);
uint32_t octe_engine_layer_kind(const octe_engine *engine, uint32_t layer);

/* The plan of the first kind of full-attention layers (window = false) or of window layers; NULL when the model has none of those. */
const oct_plan *octe_engine_plan(const octe_engine *engine, bool window);

/* The context the engine made, for oct_kv_write_explain and oct_context_machine; owned by the engine. */
oct_context *octe_engine_context(const octe_engine *engine);

/* What layers hold that have no format of their own; layout, heads, dims and page size are every layer's. */
const oct_kv_spec *octe_engine_kv_spec(const octe_engine *engine);

/* Reads back what is stored of one token in one layer: view of the layer's pages and the token's slot in it, -1 when its window has let
 * it go. For calibration and tests. */
oct_status octe_engine_stored(const octe_engine *engine, uint32_t layer, uint32_t sequence, uint32_t position, oct_kv_layer *view, int32_t *slot);

#endif
