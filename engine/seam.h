/* The custom operations of a layer, for graph.c. Called by every worker of ggml with the same user data; none waits for another. */
#ifndef OCTE_SEAM_H
#define OCTE_SEAM_H

#include "engine/graph.h"

/* One layer's user data; lives as long as the graphs. */
typedef struct octe__seam_layer {
    octe__seam *seam;
    uint32_t index;
    octe__group group;
    uint32_t kind;
    const oct_kv_layer *write, *read;   /* both the cache's; apart where a test makes the two disagree */
} octe__seam_layer;

/* ggml_custom_inplace on q [dim][heads][rows] with k and v: stores k and v. */
void octe__seam_write_op(struct ggml_tensor *dst, int ith, int nth, void *user);
/* ggml_custom_inplace on k with v. */
void octe__seam_write_only_op(struct ggml_tensor *dst, int ith, int nth, void *user);
/* ggml_custom_4d [dim * heads][rows] of q. */
void octe__seam_attend_op(struct ggml_tensor *dst, int ith, int nth, void *user);

/* The engine's tap. before: ggml_custom_inplace on q with k and v, ahead of the write. after: ggml_custom_inplace on attention's result with q, k, v. */
void octe__seam_before_op(struct ggml_tensor *dst, int ith, int nth, void *user);
void octe__seam_after_op(struct ggml_tensor *dst, int ith, int nth, void *user);

#endif
