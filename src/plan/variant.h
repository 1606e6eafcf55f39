/* Dispatch as data: what a variant is. A variant is one source file and one row in its room's variants.def; the row makes
 * the prototype, the table entry, the parity test, the bench line and the explain line.
 * Tables are constant; facts are made once per machine (context) and once per problem (plan). */
#ifndef OCT_PLAN_VARIANT_H
#define OCT_PLAN_VARIANT_H

#include <stddef.h>
#include <stdint.h>

#include "octavo/attn.h"

/* ---- facts and gates ------------------------------------------------------------------------------------- */

typedef enum oct__fact {
#define FACT(id, name) OCT__FACT_##id,
#include "plan/fact.def"
#undef FACT
    OCT__FACT_COUNT
} oct__fact;

typedef struct oct__facts { uint64_t v[OCT__FACT_COUNT]; } oct__facts;

/* Values of the fact cpu.vendor. */
enum { OCT__VENDOR_OTHER = 0, OCT__VENDOR_INTEL = 1, OCT__VENDOR_AMD = 2 };

/* What a context computes on, and values of the fact dev.kind. */
typedef enum oct__device { OCT__DEVICE_CPU, OCT__DEVICE_CUDA, OCT__DEVICE_HIP, OCT__DEVICE_COUNT } oct__device;

typedef enum oct__gate_op { OCT__GATE_EQ, OCT__GATE_MIN, OCT__GATE_MAX, OCT__GATE_MULT, OCT__GATE_IN } oct__gate_op;

typedef struct oct__gate {
    oct__fact fact;
    oct__gate_op op;
    uint64_t arg;          /* IN: bit n set = value n is fine */
    const char *why;
} oct__gate;

/* Sets for IN of the facts prob.k_dtype and prob.v_dtype. */
#define OCT__DTYPES_8BIT (1u << OCT_DTYPE_E4M3FN | 1u << OCT_DTYPE_E4M3FNUZ | 1u << OCT_DTYPE_E5M2 | 1u << OCT_DTYPE_I8)
/* Formats whose elements have bytes of their own: all but v4, whose blocks a kernel has to know. */
#define OCT__DTYPES_WHOLE (1u << OCT_DTYPE_F32 | OCT__DTYPES_16BIT | OCT__DTYPES_8BIT)
#define OCT__DTYPES_16BIT (1u << OCT_DTYPE_F16 | 1u << OCT_DTYPE_BF16)

/* ---- cost ------------------------------------------------------------------------------------------------ */

/* What a multiply-add's time follows from machine to machine: a core's speed alone, or its rate of 512-bit FMAs, of bf16 dot products, of int8 ones, or of
 * both of the last (scores by one, values by the other). Their rates beside each other differ fivefold between CPUs. */
typedef enum oct__unit { OCT__UNIT_CORE, OCT__UNIT_FMA512, OCT__UNIT_BF16, OCT__UNIT_I8, OCT__UNIT_I8_BF16, OCT__UNIT_COUNT } oct__unit;

/* One way of going over a tile's keys: mac_ps for each multiply-add, again_ps for each multiply-add of a score that a second term of q takes,
 * exp_ps for each score, block_ns for each block of 64 keys (each pass over it), convert_ps for each stored K or V element brought into registers. */
typedef struct oct__cost_way {
    oct__unit unit;
    double mac_ps, again_ps, exp_ps, block_ns;
    double convert_ps, convert_i8_ps, convert_16bit_ps, convert_f32_ps;   /* 8-bit floats, and the others; 0: as convert_ps */
    double stage_ps;  /* for each 8-bit float of a tile's keys besides, however many passes there are */
    double pad_ps;    /* for each multiply-add of a score with lanes that no vector fills, see oct__amount_way */
    double value_ps;  /* for each multiply-add with a V that isn't i8, besides: what a kernel of integers sums as f32, by 512-bit FMAs */
} oct__cost_way;

/* Predicted time of one thread (of a GPU: of one unit, a multiprocessor with all its lanes): item_ns for each work item, vector_ps for each
 * element of its q and o, key_ps for each key of a tile, and what its way over the keys costs; never below the bytes over the machine's read bandwidth.
 * Measured on the machines named where the rows stand, scaled by the context's rates. */
typedef struct oct__cost {
    double item_ns;
    double vector_ps; /* what short sequences mostly cost: bringing q into a kernel's form, and its o out */
    double key_ps;    /* finding a key's bytes and scales */
    double page_ps;   /* and a page's */
    double scale_ps;  /* for each page again whose tokens have scales, of K and of V: they lie apart from the elements, in lines that are waited for */
    double edge_ps;   /* for each V element of a block of keys that not all vectors of many see: it is looked at for NaN */
    double lane_ps;   /* for each element of q in lanes of many, filled or not */
    double wait_share; /* of the time that memory needs for the bytes: what a kernel waits besides its own work, because it asks late */
    oct__cost_way many, few;
    /* Tiles of at most few_vectors vectors go the way of few, which takes few_pass vectors a pass (the rest, or with 0 all, four) and brings elements into
     * registers in each, unless they have several rows and less than few_keys keys for each. 0: all go the way of many. */
    uint32_t few_vectors, few_keys, few_pass;
    /* Many have their vectors in registers of `lanes`, and at most `span` of them share a score product, over the keys that any of them sees. 0: lanes of
     * 16, and scores of all vectors with all keys. */
    uint32_t lanes, span;
} oct__cost;

/* ---- kernels --------------------------------------------------------------------------------------------- */

/* One tile of attention: n_rows query rows of one sequence x n_heads query heads of one KV head x keys [key0, key1).
 * Vector i (of n_rows * n_heads) is row i / n_heads, head i % n_heads.
 * The runner has brought q to f32, folded channel scales of K into it and rotated it when K is kept rotated; the kernel
 *   - computes s = score_scale * token_scale_k[j] * <q, k_j>, caps it, masks it (doc/NUMERICS.md; the mask comes after the cap),
 *   - leaves m = max s over visible keys (-inf when none), z = sum exp(s - m), o = sum exp(s - m) * token_scale_v[j] * v_j
 *     (stored bytes decoded, no static scale),
 * and the runner merges splits and finishes rows (sink, division, static V scale, inverse rotation, output format).
 * Every m, z and o of the tile is written. No key outside [key0, key1) is read except within the pages that hold them, and no
 * unseen byte may change a bit of the result. */
typedef struct oct__attn_tile {
    const oct_kv_layer *kv;
    const int32_t *pages;        /* page ids of the sequence, from key 0; OCT_PAGE_NONE only where no row sees the page */
    uint32_t head_kv;
    uint32_t n_rows, n_heads;
    int64_t key0, key1;          /* key0 < key1 <= kv_len */
    int64_t pos0;                /* absolute position of row 0, row r is at pos0 + r; negative where q_len > kv_len */
    uint32_t causal;             /* key j visible to a row at p: j <= p */
    uint32_t window;             /* > 0: and p - j < window */
    float score_scale;           /* sm_scale * q_scale * static K scale of the head */
    float softcap;               /* 0: none */
    const float *q;              /* f32 [n_rows * n_heads], stride q_stride floats, 64-byte aligned, zero-padded to a multiple of 16 floats */
    int64_t q_stride;
    const uint32_t *mask;        /* row r: mask[r * mask_row_stride + ...], or NULL; bit t speaks of key mask_key0 + t; keys before mask_key0 are unmasked */
    int64_t mask_row_stride;
    int64_t mask_key0;
    float *o;                    /* f32 [n_rows * n_heads], stride o_stride floats, 64-byte aligned, room for dim_v rounded up to 16 floats */
    int64_t o_stride;
    float *m, *z;                /* f32 [n_rows * n_heads] */
    void *scratch;               /* the variant's scratch_bytes, 64-byte aligned, this thread's own */
} oct__attn_tile;

typedef void oct__attn_fn(const oct__attn_tile *tile);

/* Scratch for tiles of at most n_vectors vectors; the same at plan time and at run time. */
typedef size_t oct__attn_scratch_fn(const oct_kv_spec *spec, uint32_t n_vectors);

/* Tokens [token0, token1) of a checked write. k_counts, v_counts: this thread's own entries, or NULL. */
typedef void oct__kv_write_fn(const oct_kv_write_args *args, int64_t token0, int64_t token1, oct_kv_counts *k_counts, oct_kv_counts *v_counts);

/* Rows [row0, row1) of a checked merge. */
typedef void oct__attn_merge_fn(const oct_attn_merge_args *args, int64_t row0, int64_t row1);

/* ---- rows ------------------------------------------------------------------------------------------------ */

typedef enum oct__op { OCT__OP_kv_write, OCT__OP_attn_decode, OCT__OP_attn_extend, OCT__OP_attn_merge, OCT__OP_COUNT } oct__op;

/* Which error bound of doc/NUMERICS.md a variant must hold; the parity tests read it. */
typedef enum oct__tolerance { OCT__TOL_EXACT, OCT__TOL_F32, OCT__TOL_16BIT, OCT__TOL_8BIT } oct__tolerance;

typedef struct oct__variant {
    oct__op op;
    const char *name;                 /* "avx2"; the full name is "<op>.<name>" */
    const char *full_name;
    oct__attn_fn *attn;               /* attn_decode, attn_extend */
    oct__attn_scratch_fn *scratch;
    oct__kv_write_fn *write;
    oct__attn_merge_fn *merge;
    const char *kernel;               /* on a GPU, in place of the functions: a name of device/kernels.def */
    oct__tolerance tolerance;
    uint32_t tile_vectors;            /* attn: most vectors (rows x heads) in a tile */
    oct__cost cost;
    const oct__gate *gates;
    uint32_t n_gates;
} oct__variant;

/* The rows of the CPU, or of one kind of device, in table order. */
const oct__variant *oct__variants(uint32_t *n);
const oct__variant *oct__variants_of(oct__device device, uint32_t *n);

#endif
