/* fixture.h: owns what the tests of src/cpu share: a small attention problem made by hand (layer, batch, step) and the same attention
 * in f64 over the stored bytes. The full oracle and the feature matrix are in tests/parity.
 *
 * Threads: a fixture belongs to one test; run_step starts threads of its own. */
#ifndef TEST_CPU_FIXTURE_H
#define TEST_CPU_FIXTURE_H

#include <stdint.h>

#include "plan/work.h"

#define FIXTURE_MAX_SEQUENCES 8

typedef struct fixture {
    oct_kv_layer layer;
    oct_attn_spec spec;
    oct_attn_args args;
    uint32_t n_sequences;
    int32_t q_len[FIXTURE_MAX_SEQUENCES], kv_len[FIXTURE_MAX_SEQUENCES];
    /* made by fixture_make */
    int32_t qo_indptr[FIXTURE_MAX_SEQUENCES + 1];
    int64_t page_offset[FIXTURE_MAX_SEQUENCES + 1];
    int32_t *pages;
    float *q_f32;                 /* [rows][heads_q][dim_k], what args.q holds, before its dtype */
    void *q, *out;
    float *lse, *k_scale, *v_scale, *sink;
    uint32_t *mask;
    float q_scale, out_scale;
    uint64_t seed;
} fixture;

/* A legal spec: f32 K and V in NHD, 1 KV head, 2 query heads, dims 24 and 24, pages of 4, causal, f32 q and out. Change it, then make. */
void fixture_init(fixture *f);

/* Allocates, gives every sequence shuffled pages, fills the pages with 0xFF and then stores normal random K and V by the scalar write;
 * random q, scales near 1/8, sinks and (has_mask) a random mask. out is filled with NaN bytes. */
void fixture_make(fixture *f);
void fixture_free(fixture *f);

/* Runs the batch with tiles of at most tile_rows x tile_heads, every sequence in n_splits parts, by n_threads. Checks that the counters
 * are left at zero. Twice is as legal as once: the counters say so. */
void fixture_run(fixture *f, uint32_t tile_rows, uint32_t tile_heads, uint32_t n_splits, uint32_t n_threads);

/* Where row and head of out lie; its elements as f32 without out_scale. */
unsigned char *fixture_out(const fixture *f, int64_t row, uint32_t head);
void fixture_out_f32(const fixture *f, int64_t row, uint32_t head, float *x);

/* The row in f64: out[dim_v] and lse; returns max |V| over the keys it sees (0: none). */
double fixture_expect(const fixture *f, uint32_t sequence, int32_t row, uint32_t head, double *out, double *lse);

/* The worst |out - expected| / max |V| over the batch; asserts empty rows and the lse (to 1e-5 absolute + relative). */
double fixture_worst(const fixture *f);

double random_normal(uint64_t *seed);

/* A dequantised element, static and dynamic scales applied, rotation not undone. */
double stored_value(const oct_kv_layer *layer, int is_k, int64_t page, uint32_t token, uint32_t head, uint32_t dim);

#endif
