/* write_case.h: owns cases of kv_write: a shape in one line of text, the memory it needs, and the judging of every byte of the pools
 * after a variant has run. Threads: a case belongs to one thread. */
#ifndef PARITY_WRITE_CASE_H
#define PARITY_WRITE_CASE_H

#include "parity/guard.h"
#include "parity/oracle.h"
#include "parity/rng.h"
#include "plan/variant.h"

#define WRITE_FIELDS(X)                                                                                        \
    X(seed) X(heads) X(dim_k) X(dim_v) X(page_size) X(layout) X(n_pages) X(n_tokens) X(src_dtype)              \
    X(k_dtype) X(k_scale_mode) X(k_scale_dtype) X(k_rotated)                                                   \
    X(v_dtype) X(v_scale_mode) X(v_scale_dtype) X(v_rotated)                                                   \
    X(window)           /* 1: a second destination, of another layout, page size and format; with V in v4 2: only the first keeps it so, 3: only the second */ \
    X(rope)             /* 0 none, 1 neox pairs, 2 normal pairs */                                             \
    X(rope_dims) X(rope_factors) X(position_max)                                                               \
    X(slots)            /* 0: all inside; 1: some negative; 2: some negative, some beyond the capacity */      \
    X(strides)          /* bits: 1 source rows, 2 source heads, 4 pages, 8 tokens and heads of a page */       \
    X(base_offset)      /* elements by which K's and V's bases are moved */                                    \
    X(source_offset)    /* elements by which the sources are moved */                                          \
    X(data)             /* write_data */                                                                       \
    X(flush)            /* 1: the calling thread flushes subnormals to zero, as numerical host programs do; bytes must not change */ \
    X(counts) X(guard_start) X(poison)

enum write_data { WRITE_NORMAL, WRITE_SPECIAL, WRITE_TIES, WRITE_ZERO, WRITE_TINY, WRITE_LARGE };

typedef struct write_shape {
#define WRITE_FIELD(name) int64_t name;
    WRITE_FIELDS(WRITE_FIELD)
#undef WRITE_FIELD
} write_shape;

write_shape write_plain(int64_t seed);
write_shape write_random(int64_t seed);

/* The same with V in v4, two in three rotated. Of two destinations both keep it so (not in the same rotation), or only the first, or only the second. */
write_shape write_random_v4(int64_t seed);
void write_print(const write_shape *shape, char *text, size_t size);
int write_parse(write_shape *shape, const char *text);

typedef struct write_pool {
    oct_kv_layer layer;
    guard memory[6];          /* K, V, their dynamic scales, their static scales */
    void *before[4];          /* copies of the first four as they were before the write */
    void *first[4];           /* as the first variant left them, for comparison of variants */
    int32_t *slots;
    guard slots_guard;
} write_pool;

typedef struct write_case {
    write_shape shape;
    oct_kv_write_args args;
    write_pool pool[2];
    int n_pools, n_judged;
    guard k, v, positions, factors;
    oct_rope rope;
    oct_kv_counts k_counts[8], v_counts[8];
} write_case;

/* 0 on success, 1 when the spec is refused, -1 without memory. */
int write_make(write_case *c, const write_shape *shape);
void write_drop(write_case *c);

/* The pools as they were before any write, counts zeroed. */
void write_reset(write_case *c);

/* Judges every stored vector, every other byte, and the counts; 0 when all is right, else 1 and the reason. */
int write_judge(write_case *c, char *text, size_t size);

/* Runs and judges every eligible variant directly, and the public doors. Returns the failures. */
int64_t write_check(const write_shape *shape);

#endif
