/* ggml's own attention at operation level (GGML_OP_FLASH_ATTN_EXT on its CPU back end), as the peer that benchmarks measure against. One
 * thread drives a peer; ggml's threads run it. */
#ifndef OCTE_PEER_ATTN_H
#define OCTE_PEER_ATTN_H

#include "octavo/status.h"

typedef struct octe_peer_attn octe_peer_attn;

typedef struct octe_peer_attn_options {
    const char *type;               /* of K and V, ggml's name: "f16", "bf16", "q8_0", "q4_0", "f32" */
    uint32_t heads_q, heads_kv, dim_k, dim_v, batch, q_len, kv_len;
    uint32_t window_tokens;         /* 0: none */
    uint32_t n_threads;
    uint64_t cold_bytes;            /* one run goes over caches of at least so many bytes together, one operation each; 0: one cache */
} octe_peer_attn_options;

/* Causal attention of the last q_len of kv_len positions of each of `batch` sequences; caches as llama.cpp's lie: a row of all heads a position.
 * Errors: INVALID_ARGUMENT (no such type), UNSUPPORTED (what ggml's blocks cannot hold), OUT_OF_MEMORY. */
oct_status octe_peer_attn_open(const octe_peer_attn_options *options, octe_peer_attn **peer, oct_error *error);
void octe_peer_attn_close(octe_peer_attn *peer);   /* NULL is fine */

/* Operations in one run. */
uint32_t octe_peer_attn_operations(const octe_peer_attn *peer);
oct_status octe_peer_attn_run(octe_peer_attn *peer);

/* Stored bytes of K and V of one operation, all positions. */
uint64_t octe_peer_attn_bytes(const octe_peer_attn *peer);

/* The last operation's result, f32 [batch][q_len][heads_q][dim_v], and the q it was asked, f32 [batch][heads_q][q_len][dim_k]; owned by the peer. */
const float *octe_peer_attn_out(const octe_peer_attn *peer);
const float *octe_peer_attn_q(const octe_peer_attn *peer);

/* K (which 0) or V (1) of one position and head of the last cache, as ggml decodes it: dim floats. */
void octe_peer_attn_stored(const octe_peer_attn *peer, int which, uint32_t sequence, uint32_t position, uint32_t head, float *to);

#endif
