/* What an engine is made of, for engine.c and step.c. */
#ifndef OCTE_ENGINE_STATE_H
#define OCTE_ENGINE_STATE_H

#include "engine/cache.h"
#include "engine/engine.h"
#include "engine/graph.h"

/* A step's numbers, in arrays made once. */
typedef struct octe__step_memory {
    int32_t *tokens, *positions, *output_rows;      /* [max_step_rows] */
    int32_t *slots[OCTE__GROUPS];                   /* [max_step_rows] */
    uint32_t *old_length;                           /* [max_sequences] by part */
    bool *seen;                                     /* [max_sequences] */
    int32_t *qo_indptr;                             /* [max_sequences + 1] */
    int32_t *kv_indptr[OCTE__GROUPS];               /* [max_sequences + 1] */
    int32_t *last_page_len[OCTE__GROUPS];           /* [max_sequences] */
    int32_t *kv_indices[OCTE__GROUPS];              /* grows */
    size_t n_indices_room[OCTE__GROUPS];
} octe__step_memory;

struct octe_engine {
    const octe_model *model;
    octe_engine_options options;     /* resolved */
    uint32_t window_tokens;          /* of window layers; 0: none */
    oct_context *context;
    octe__cache cache;
    octe__seam seam;
    octe__graphs graphs;
    octe__step_memory step;
    uint64_t n_steps;
};

#endif
