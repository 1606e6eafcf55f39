/* oracle.h: owns the float64 judge of the numeric operations: formats, addresses, rotation, RoPE, the write, attention and
 * merge, written from the page that says what the numbers mean and from the public headers alone. It shares no code with src/, and
 * where a kernel uses bit tricks it uses tables, searches and double arithmetic. Slow on purpose.
 * Threads: call oracle_init once before others; after that everything is a pure function. */
#ifndef PARITY_ORACLE_H
#define PARITY_ORACLE_H

#include "octavo/octavo.h"

/* ---- formats --------------------------------------------------------------------------------------------- */

void oracle_init(void);

uint32_t oracle_size_bytes(uint32_t dtype);   /* v4: 1, which says that its codes are few */
size_t oracle_bytes(uint32_t dtype, int64_t n);   /* of n elements that lie together */
int oracle_is_8bit(uint32_t dtype);

/* Largest finite value. */
double oracle_max(uint32_t dtype);

/* Element `index` of an array of `dtype`, at any alignment. Of v4: the number without the scale of its block. */
double oracle_decode(uint32_t dtype, const void *base, int64_t index);
double oracle_decode_code(uint32_t dtype, uint32_t code);
uint32_t oracle_code_at(uint32_t dtype, const void *base, int64_t index);
void oracle_put_code(uint32_t dtype, void *base, int64_t index, uint32_t code);

/* The code nearest to y, ties to the even code. 8-bit formats saturate, infinities included; f16, bf16 and f32 overflow to
 * infinity as IEEE 754 says. A NaN gives a NaN code, in i8 0. */
uint32_t oracle_encode(uint32_t dtype, double y);

int oracle_code_is_nan(uint32_t dtype, uint32_t code);

/* The real numbers that round to this code lie in [low, high]. A saturating format's last code reaches to infinity; infinity is a legal
 * code in f16 and bf16 only. */
void oracle_cell(uint32_t dtype, uint32_t code, double *low, double *high);

/* x / scale rounded to f32, as the write divides. */
double oracle_divide(double x, double scale);

/* ---- rotation and RoPE ------------------------------------------------------------------------------------ */

/* The orthonormal Hadamard transform over blocks of the largest power of two that divides n, from its definition
 * H[r][c] = (-1)^popcount(r & c) / sqrt(block): n * block operations in float64. */
void oracle_hadamard(double *x, uint32_t n);

/* The same in f32, in the order of operations that src/number/hadamard.h makes part of the contract: what the write's bytes are held to. */
void oracle_hadamard_f32(float *x, uint32_t n);

void oracle_rope(double *x, const oct_rope *rope, int32_t position);

/* ---- pages ------------------------------------------------------------------------------------------------ */

typedef enum oracle_which { ORACLE_K = 0, ORACLE_V = 1 } oracle_which;

const oct_kv_format *oracle_format(const oct_kv_layer *layer, oracle_which which);
uint32_t oracle_dim(const oct_kv_layer *layer, oracle_which which);

/* Index of an element in its tensor; `token` counts within the page. */
int64_t oracle_address(const oct_kv_layer *layer, oracle_which which, int64_t page, uint32_t token, uint32_t head, uint32_t dim);

/* Index of the dynamic scale. */
int64_t oracle_scale_address(const oct_kv_layer *layer, oracle_which which, int64_t page, uint32_t token, uint32_t head);

/* The number that byte (page, token, head, dim) is multiplied with; in v4 the scale of its block. */
double oracle_scale(const oct_kv_layer *layer, oracle_which which, int64_t page, uint32_t token, uint32_t head, uint32_t dim);

/* Puts an f16 as the scale of a block of v4. */
void oracle_put_block_scale(const oct_kv_layer *layer, int64_t page, uint32_t token, uint32_t head, uint32_t dim, double scale);

/* The vector of (page, token, head) as it counts in attention: dequantised, and turned back where it is kept rotated. */
void oracle_vector(const oct_kv_layer *layer, oracle_which which, int64_t page, uint32_t token, uint32_t head, double *x);

/* ---- the write -------------------------------------------------------------------------------------------- */

/* What one vector of a write must become. Without RoPE everything is exact; with it, every stored code must be one that a
 * value within `slack` of the float64 result rounds to. */
typedef struct oracle_written {
    int exact;                /* without RoPE: the code itself is known, a zero's sign included */
    float x[512];             /* after RoPE and rotation */
    double slack[512];        /* with RoPE: how far f32 arithmetic may be from x */
    double scale_low, scale_high;   /* TOKEN_HEAD: the legal range of the stored scale; NaN: it must be NaN */
    double amax;              /* largest finite |x| of the vector as quantised */
} oracle_written;

/* source: f32 values of the vector. rope: NULL for V or without. */
void oracle_write_vector(const oct_kv_layer *layer, oracle_which which, const float *source, const oct_rope *rope, int32_t position,
                         oracle_written *w);

/* Dimension of the first stored code that is wrong, -2 for a wrong scale, -1 when all is right. Adds to the counts what the
 * write must count (only meaningful without slack); they may be NULL. */
int64_t oracle_check_written(const oct_kv_layer *layer, oracle_which which, int64_t page, uint32_t token, uint32_t head,
                             const oracle_written *w, oct_kv_counts *counts);

/* ---- attention -------------------------------------------------------------------------------------------- */

/* A problem as attention sees it: args->out and args->lse are not read. */
typedef struct oracle_attn {
    const oct_attn_spec *spec;
    const oct_attn_args *args;
    uint32_t n_sequences;
    const int32_t *qo_indptr;
    const int32_t *kv_len;
    const int64_t *page_at;      /* [n_sequences + 1] into pages */
    const int32_t *pages;
} oracle_attn;

/* All [rows][heads_q](...), contiguous. The caller owns them. */
typedef struct oracle_result {
    double *out;      /* [rows][heads_q][dim_v]: the real value, before out_scale */
    double *lse;      /* natural logarithm */
    double *v_max;    /* largest |v| the row sees; 0 when it sees none */
    double *s_max;    /* largest |score| before the soft cap that the row sees: how well f32 can know its softmax */
    const oracle_attn *of;   /* by oracle_attend: the problem, for oracle_score_norm; else NULL */
} oracle_result;

/* Whether row r of n query rows sees key j of kv_len, the token mask included. */
int oracle_visible(const oct_attn_spec *spec, const oct_attn_args *args, int64_t batch_row, int64_t r, int64_t n, int64_t kv_len, int64_t j);

/* The length of the vector of products of which a row's score is the sum (of rotated numbers where K is kept rotated), times sm_scale; of its keys, averaged by weight.
 * Where each element of q is rounded within a share u of it, lse moves with a standard deviation of at most u / sqrt(3) of this. 0 where products of 16 bits
 * hold q as it is: neither rotated nor scaled by channel, and of no more bits. */
double oracle_score_norm(const oracle_attn *problem, int64_t batch_row, uint32_t head);

/* 0 on success, -1 without memory. */
int oracle_attend(const oracle_attn *problem, oracle_result *result);

/* Merges part by part in float64, into merged[rows][heads][dim] and lse[rows][heads], contiguous. */
void oracle_merge(const oct_attn_merge_args *args, double *merged, double *lse, double *v_max);

#endif
