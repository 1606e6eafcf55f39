/* api_test.h: what the tests of the doors share: cmocka, contexts whose allocations are counted and can fail, and one small legal problem
 * (a layer of hand-made pages, a plan, its arguments) from which each test takes one thing away. */
#ifndef OCT_TESTS_API_API_TEST_H
#define OCT_TESTS_API_API_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "octavo/octavo.h"

/* ---- memory ------------------------------------------------------------------------------------------------------------ */

/* Hooks that count what is out and let the nth allocation from now on fail (0: none). One thread at a time. */
typedef struct counting {
    size_t live, live_bytes, made, fail_at;
} counting;

static inline void *counting_alloc(void *user, size_t size_bytes, size_t align)
{
    counting *c = user;
    void *memory = NULL;
    assert_true(size_bytes > 0);
    assert_true(align > 0 && (align & (align - 1)) == 0);
    if (++c->made == c->fail_at || posix_memalign(&memory, align < sizeof(void *) ? sizeof(void *) : align, size_bytes) != 0) {
        return NULL;
    }
    memset(memory, 0xA5, size_bytes);   /* nobody may count on zeroes from a hook */
    c->live++;
    c->live_bytes += size_bytes;
    return memory;
}

static inline void counting_free(void *user, void *memory, size_t size_bytes)
{
    counting *c = user;
    assert_non_null(memory);
    c->live--;
    c->live_bytes -= size_bytes;   /* a wrong size leaves it other than 0 in the end */
    free(memory);
}

static inline oct_context *context_of(counting *c, uint32_t max_threads)
{
    const oct_context_options options = { .struct_size = sizeof(options), .max_threads = max_threads, .alloc = counting_alloc, .free = counting_free, .user = c };
    oct_context *context = NULL;
    assert_int_equal(oct_context_create(&options, &context, NULL), OCT_OK);
    return context;
}

/* ---- a small problem ------------------------------------------------------------------------------------------------------ */

enum { HEADS = 2, HEADS_Q = 4, DIM = 16, PAGE_SIZE = 4, N_PAGES = 8, N_TOKENS = N_PAGES * PAGE_SIZE, N_ROWS = 3 };

typedef struct problem {
    unsigned char k[N_TOKENS * HEADS * DIM], v[N_TOKENS * HEADS * DIM];
    float k_scale[HEADS * DIM], v_token_scale[N_TOKENS * HEADS];
    float q[N_ROWS * HEADS_Q * DIM], out[N_ROWS * HEADS_Q * DIM], lse[N_ROWS * HEADS_Q], sink[HEADS_Q];
    uint32_t mask[N_ROWS];
    float src[N_TOKENS * HEADS * DIM];
    int32_t slots[N_TOKENS], positions[N_TOKENS];
    int32_t qo_indptr[3], kv_len[2], block_table[2 * 4], kv_indptr[3], kv_indices[8], last_page_len[2];
    oct_kv_layer layer;
    oct_attn_spec spec;
    oct_attn_batch padded, compressed;
    oct_attn_args args;
    oct_kv_write_args write;
} problem;

/* K in e4m3fn with a scale a head, V in i8 with dynamic scales. Sequence 0: 2 rows over 9 keys, sequence 1: 1 row over 4 keys. */
static inline void problem_init(problem *p)
{
    memset(p, 0, sizeof(*p));
    const oct_kv_spec kv = {
        .struct_size = sizeof(kv), .layout = OCT_LAYOUT_NHD, .heads = HEADS, .dim_k = DIM, .dim_v = DIM, .page_size = PAGE_SIZE,
        .k = { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER_HEAD, 0, 0 }, .v = { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32, 0 },
    };
    assert_int_equal(oct_kv_layer_init(&p->layer, &kv, N_PAGES, NULL), OCT_OK);
    for (int i = 0; i < HEADS * DIM; i++) {
        p->k_scale[i] = 0.5f;
    }
    for (int i = 0; i < N_TOKENS; i++) {
        p->slots[i] = i;
        p->positions[i] = i;
    }
    for (int i = 0; i < N_TOKENS * HEADS * DIM; i++) {
        p->src[i] = (float)(i % 37) * 0.25f - 4;
    }
    for (int i = 0; i < N_ROWS * HEADS_Q * DIM; i++) {
        p->q[i] = (float)(i % 11) * 0.125f - 0.5f;
    }
    p->layer.k = p->k;
    p->layer.v = p->v;
    p->layer.k_scale = p->k_scale;
    p->layer.v_token_scale = p->v_token_scale;
    p->spec = (oct_attn_spec){ .struct_size = sizeof(p->spec), .heads_q = HEADS_Q, .kv = kv, .q_dtype = OCT_DTYPE_F32, .out_dtype = OCT_DTYPE_F32, .sm_scale = 0.25f, .causal = 1 };
    const int32_t table[] = { 5, 0, 3, 99, 7, -5, -6, -7 }, indices[] = { 5, 0, 3, 7 };
    memcpy(p->block_table, table, sizeof(table));   /* what stands past a sequence's pages is never looked at */
    memcpy(p->kv_indices, indices, sizeof(indices));
    memcpy(p->qo_indptr, (int32_t[]){ 0, 2, 3 }, sizeof(p->qo_indptr));
    memcpy(p->kv_len, (int32_t[]){ 9, 4 }, sizeof(p->kv_len));
    memcpy(p->kv_indptr, (int32_t[]){ 0, 3, 4 }, sizeof(p->kv_indptr));
    memcpy(p->last_page_len, (int32_t[]){ 1, 4 }, sizeof(p->last_page_len));
    p->padded = (oct_attn_batch){ .struct_size = sizeof(p->padded), .n_sequences = 2, .qo_indptr = p->qo_indptr, .block_table = p->block_table, .seq_lens = p->kv_len,
                                  .max_pages = 4, .n_pages = N_PAGES };
    p->compressed = (oct_attn_batch){ .struct_size = sizeof(p->compressed), .n_sequences = 2, .qo_indptr = p->qo_indptr, .kv_indptr = p->kv_indptr, .kv_indices = p->kv_indices,
                                      .kv_last_page_len = p->last_page_len, .n_pages = N_PAGES };
    p->args = (oct_attn_args){ .struct_size = sizeof(p->args), .layer = &p->layer, .q = p->q, .q_row_stride = HEADS_Q * DIM, .q_head_stride = DIM, .out = p->out,
                               .out_row_stride = HEADS_Q * DIM, .out_head_stride = DIM, .lse = p->lse, .lse_row_stride = HEADS_Q, .lse_head_stride = 1 };
    p->write = (oct_kv_write_args){ .struct_size = sizeof(p->write), .checked = 1, .layer = &p->layer, .slots = p->slots, .n_tokens = N_TOKENS, .src_dtype = OCT_DTYPE_F32,
                                    .k = p->src, .v = p->src, .k_token_stride = HEADS * DIM, .k_head_stride = DIM, .v_token_stride = HEADS * DIM, .v_head_stride = DIM };
}

static inline void assert_words(const char *text, const char *words)
{
    if (strstr(text, words) == NULL) {
        fail_msg("'%s' does not say '%s'", text, words);
    }
}

#endif
