/* What an engine is made of, for engine.c and step.c. */
#ifndef OCTE_ENGINE_STATE_H
#define OCTE_ENGINE_STATE_H

#include "engine/cache.h"
#include "engine/engine.h"
#include "engine/graph.h"

/* Deterministic, the rows of a step are filled up to a multiple of this: how ggml's products round a row depends on the number of rows (one alone, a rest of
 * four), not on which of them it is. */
enum { OCTE__ROWS_TOGETHER = 4 };

/* A step's numbers, in arrays made once. */
typedef struct octe__step_memory {
    int32_t *tokens, *positions, *output_rows;      /* [rows_room] */
    int32_t *slots[OCTE__GROUPS];                   /* [rows_room] */
    octe_paged_part *parts;                         /* [max_step_parts] */
    uint32_t *old_length;                           /* [max_step_parts] by part */
    bool *seen;                                     /* [max_sequences] */
    int32_t *qo_indptr;                             /* [max_step_parts + 1] */
    int32_t *kv_indptr[OCTE__GROUPS];               /* [max_step_parts + 1] */
    int32_t *last_page_len[OCTE__GROUPS];           /* [max_step_parts] */
    int32_t *kv_indices[OCTE__GROUPS];              /* grows */
    size_t n_indices_room[OCTE__GROUPS];
    uint32_t *mask;                                 /* grows */
    size_t mask_room;                               /* words */
} octe__step_memory;

struct octe_engine {
    const octe_model *model;
    octe_engine_options options;     /* resolved */
    octe_kv_layer_format *layer_formats;   /* what options.kv.layers points to; NULL without */
    uint32_t window_tokens;          /* of window layers; 0: none */
    oct_context *context;
    octe__cache cache;
    octe__seam seam;
    octe__graphs graphs;
    octe__step_memory step;
    uint32_t rows_room, logits_room; /* the options' limits, filled up */
    uint64_t n_steps;
};

/* Runs rows whose slots are set (step.tokens, positions, output_rows, slots, qo_indptr), each part's keys as its pages say. */
oct_status octe__step_run(octe_engine *engine, const octe_paged_part *parts, uint32_t n_parts, uint32_t n_rows, uint32_t n_logits, const float **logits, oct_error *error);

#endif
