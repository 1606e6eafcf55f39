/* The dense part of a step as ggml graphs, one a shape (rows, output rows), built once and reused; and the seam through which each layer's
 * K, V and q reach liboctavo inside ggml's own threads. One thread at a time computes; ggml's workers meet the seam's data read-only, but for the
 * first error, which is atomic. */
#ifndef OCTE_GRAPH_H
#define OCTE_GRAPH_H

#include <stdatomic.h>

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include "engine/cache.h"
#include "engine/engine.h"
#include "engine/weights.h"

/* Shapes kept: a server's decode batches of 1 .. 16 sequences and its prefill chunks. Some 400 KiB each for 30 layers. */
enum { OCTE__MAX_GRAPHS = 32 };

/* What the custom operations need of a step; everything that changes between steps is reached through it, so that graphs don't. */
typedef struct octe__seam {
    const octe__cache *cache;
    const octe_model *model;
    oct_context *context;
    oct_plan *plan[OCTE_KV_MAX_KINDS];       /* of the cache's kinds */
    oct_plan *tree_plan[OCTE_KV_MAX_KINDS];  /* the same with a token mask; NULL without token_masks */
    const uint32_t *mask;                    /* of this step's rows, or NULL: no part of it is a tree */
    uint32_t mask_words;                     /* of a row */
    const int32_t *slots[OCTE__GROUPS];      /* of this step's rows */
    oct_kv_counts *k_counts, *v_counts;      /* [n_layers][n_threads], or NULL */
    const octe_engine_tap *tap;              /* NULL: nobody looks */
    uint32_t n_threads, n_rows;              /* n_rows: of this step; a graph's further ones are idle */
    _Atomic int status;                      /* the step's first error in an operation */
    _Atomic uint32_t status_layer;
    struct octe__seam_layer *layers;         /* [n_layers] the operations' arguments */
} octe__seam;

typedef struct octe__graph {
    uint32_t n_rows, n_outputs;
    uint64_t last_used;
    struct ggml_context *context;            /* NULL: an empty place */
    struct ggml_cgraph *graph;
    struct ggml_tensor *tokens, *positions, *output_rows, *logits;   /* output_rows, logits: NULL where the shape has none */
} octe__graph;

typedef struct octe__graphs {
    const octe_model *model;
    octe__seam *seam;
    ggml_backend_t backend;
    ggml_threadpool_t threads;
    ggml_gallocr_t arena;
    float rope_base_window;
    octe__graph graph[OCTE__MAX_GRAPHS];
    uint64_t clock, n_built, n_reused;
} octe__graphs;

/* Makes the seam's arguments for every layer. Its cache, plans and counts must be set. On an error the caller still calls close. */
oct_status octe__seam_open(octe__seam *seam, oct_error *error);
void octe__seam_close(octe__seam *seam);

/* Starts the threads and reserves the arena for the largest shape. On an error the caller still calls close. */
oct_status octe__graphs_open(octe__graphs *graphs, const octe_model *model, octe__seam *seam, uint32_t n_threads, uint32_t max_rows, uint32_t max_outputs,
                             float rope_base_window, oct_error *error);
void octe__graphs_close(octe__graphs *graphs);

/* The graph of a shape, allocated; NULL when memory runs out. Valid until the next call. */
octe__graph *octe__graphs_get(octe__graphs *graphs, uint32_t n_rows, uint32_t n_outputs);

/* Runs it; the inputs are set. Errors: what an operation of the seam reported, DEVICE_FAULT when ggml failed. */
oct_status octe__graphs_compute(octe__graphs *graphs, octe__graph *graph, oct_error *error);

uint64_t octe__graphs_arena_bytes(const octe__graphs *graphs);

#endif
