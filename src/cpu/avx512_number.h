/* avx512_number.h: owns what AVX-512 kernels do to single numbers: exact decoding of stored elements, exp2 and the soft cap.
 * All functions are inlined; `kind` must be a constant where a loop is meant to be fast.
 *
 * Decoding an 8-bit float: its low seven bits look up the two bytes of the bf16 of the same value in tables of 128 bytes (vpermi2b), the
 * sign bit is put on top, and the bytes are interleaved. Every code is exact, subnormals and NaN included, and no arithmetic is done, so
 * neither DAZ nor a slow path for denormals matters. A vpermb on the way in makes the dims come out in order.
 * Ladder, e4m3, elements/ns in registers, one Zen 4 core at 3.7 GHz: to bf16 by vpermi2b 49, by vpermi2w 26; to f32 from there, in order, 32
 * (fnuz 26; leaving out the vpermb doesn't help, picking f32's bytes by a third vpermi2b is slower in a dot product); vpmovsxbw and vcvtph2ps
 * 18, and NaN bytes must be looked for; shift into f32 with 2^120 folded into q 32, but subnormals are lost under DAZ, and an Intel Xeon
 * pays for each (0.5 to 1.8 inside a dot product). i8 31, bf16 41, f16 30. On that Xeon vpermi2b to bf16 26-29, vcvtph2ps 15-17. */
#ifndef OCT_CPU_AVX512_NUMBER_H
#define OCT_CPU_AVX512_NUMBER_H

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "octavo/kv.h"

/* tests/simde defines both as plain functions and loops, whose constants need no copies. */
#if !defined(AVX512_INLINE)
#define AVX512_INLINE static inline __attribute__((always_inline))
#endif
#if defined(AVX512_UNROLL)
#elif defined(__clang__)
#define AVX512_UNROLL _Pragma("clang loop unroll(full)")
#else
#define AVX512_UNROLL _Pragma("GCC unroll 16")
#endif

#include "cpu/avx512_v4.h"

/* ---- kinds of stored elements ------------------------------------------------------------------------------------------ */

/* What decoding depends on. e4m3fn and e5m2 differ in their table only; e4m3fnuz has its NaN where others have -0. */
typedef enum avx512_kind { AVX512_BYTE, AVX512_BYTE_NUZ, AVX512_I8, AVX512_F16, AVX512_BF16, AVX512_F32, AVX512_V4, AVX512_KINDS } avx512_kind;

AVX512_INLINE avx512_kind avx512_kind_of(uint32_t dtype)
{
    switch (dtype) {
    case OCT_DTYPE_E4M3FN:
    case OCT_DTYPE_E5M2:
        return AVX512_BYTE;
    case OCT_DTYPE_E4M3FNUZ:
        return AVX512_BYTE_NUZ;
    case OCT_DTYPE_I8:
        return AVX512_I8;
    case OCT_DTYPE_F16:
        return AVX512_F16;
    case OCT_DTYPE_BF16:
        return AVX512_BF16;
    case OCT_DTYPE_V4:
        return AVX512_V4;
    default:
        return AVX512_F32;
    }
}

AVX512_INLINE uint32_t avx512_size(avx512_kind kind)
{
    return kind == AVX512_F32 ? 4 : kind == AVX512_F16 || kind == AVX512_BF16 ? 2 : 1;
}

/* Of n elements, of V in 4 bits whole blocks. */
AVX512_INLINE uint32_t avx512_bytes(uint32_t n, avx512_kind kind)
{
    return kind == AVX512_V4 ? n / OCT__V4_BLOCK * OCT__V4_BLOCK_BYTES : n * avx512_size(kind);
}

/* ---- tables -------------------------------------------------------------------------------------------------------------- */

/* bf16 of a code without sign. A format of `man` mantissa bits and this bias; the first row of `sub` normalises a subnormal. */
#define AVX512_NORMAL(code, man, bias) ((((code) >> (man)) + 127 - (bias)) << 7 | ((code) & ((1 << (man)) - 1)) << (7 - (man)))
#define AVX512_SUBNORMAL(m, unit) /* m * 2^unit, m < 8 */                                                          \
    ((m) == 0 ? 0 : (m) == 1 ? ((unit) + 127) << 7 : (m) < 4 ? (((unit) + 128) << 7 | ((m) & 1) << 6) : (((unit) + 129) << 7 | ((m) & 3) << 5))
#define AVX512_OF_E4M3FN(c) ((c) == 127 ? 0x7FC0 : (c) < 8 ? AVX512_SUBNORMAL(c, -9) : AVX512_NORMAL(c, 3, 7))
#define AVX512_OF_E4M3FNUZ(c) ((c) < 8 ? AVX512_SUBNORMAL(c, -10) : AVX512_NORMAL(c, 3, 8))
#define AVX512_INTEGER(c, top) (((top) + 127) << 7 | ((c) & ((1 << (top)) - 1)) << (7 - (top)))
#define AVX512_OF_I8(c)                                                                                                             \
    ((c) < 8 ? AVX512_SUBNORMAL(c, 0) : (c) < 16 ? AVX512_INTEGER(c, 3) : (c) < 32 ? AVX512_INTEGER(c, 4) : (c) < 64 ? AVX512_INTEGER(c, 5) \
                                                                                                                   : AVX512_INTEGER(c, 6))
#define AVX512_OF_E5M2(c) ((c) > 124 ? 0x7FC0 : (c) == 124 ? 0x7F80 : (c) < 4 ? AVX512_SUBNORMAL(c, -16) : AVX512_NORMAL(c, 2, 15))

#define AVX512_8(X, c) X((c)), X((c) + 1), X((c) + 2), X((c) + 3), X((c) + 4), X((c) + 5), X((c) + 6), X((c) + 7)
#define AVX512_64(X, c)                                                                                                        \
    AVX512_8(X, c), AVX512_8(X, (c) + 8), AVX512_8(X, (c) + 16), AVX512_8(X, (c) + 24), AVX512_8(X, (c) + 32), AVX512_8(X, (c) + 40), \
        AVX512_8(X, (c) + 48), AVX512_8(X, (c) + 56)
#define AVX512_128(X) { AVX512_64(X, 0), AVX512_64(X, 64) }

/* Bytes of the bf16 by the low seven bits of a code, i8: of its magnitude. */
typedef struct avx512_table { _Alignas(64) uint8_t low[128], high[128]; } avx512_table;

#define AVX512_LOW_E4M3FN(c) (AVX512_OF_E4M3FN(c) & 0xFF)
#define AVX512_HIGH_E4M3FN(c) (AVX512_OF_E4M3FN(c) >> 8)
#define AVX512_LOW_E4M3FNUZ(c) (AVX512_OF_E4M3FNUZ(c) & 0xFF)
#define AVX512_HIGH_E4M3FNUZ(c) (AVX512_OF_E4M3FNUZ(c) >> 8)
#define AVX512_LOW_E5M2(c) (AVX512_OF_E5M2(c) & 0xFF)
#define AVX512_HIGH_E5M2(c) (AVX512_OF_E5M2(c) >> 8)
#define AVX512_LOW_I8(c) (AVX512_OF_I8(c) & 0xFF)
#define AVX512_HIGH_I8(c) (AVX512_OF_I8(c) >> 8)
static const avx512_table avx512_tables[4] = {
    { AVX512_128(AVX512_LOW_E4M3FN), AVX512_128(AVX512_HIGH_E4M3FN) },
    { AVX512_128(AVX512_LOW_E4M3FNUZ), AVX512_128(AVX512_HIGH_E4M3FNUZ) },
    { AVX512_128(AVX512_LOW_E5M2), AVX512_128(AVX512_HIGH_E5M2) },
    { AVX512_128(AVX512_LOW_I8), AVX512_128(AVX512_HIGH_I8) },
};

/* The table of an 8-bit format; that of another one is never looked at. */
AVX512_INLINE const avx512_table *avx512_table_of(uint32_t dtype)
{
    return &avx512_tables[dtype == OCT_DTYPE_E4M3FNUZ ? 1 : dtype == OCT_DTYPE_E5M2 ? 2 : dtype == OCT_DTYPE_I8 ? 3 : 0];
}

/* Where byte p of a row must come from, so that after the interleaving of low and high bytes (which works within 16-byte lanes, bytes 0-7
 * into the first and 8-15 into the second register) the even words of the first register are dims 0-15 and its odd words dims 16-31. */
#define AVX512_ORDER(p) ((((p) & 15) >= 8) * 32 + ((p) & 1) * 16 + (((p) >> 4) * 4 + (((p) & 7) >> 1)))
static const _Alignas(64) uint8_t avx512_order[64] = { AVX512_64(AVX512_ORDER, 0) };

/* ---- decoding ------------------------------------------------------------------------------------------------------------ */

/* A table in registers. */
typedef struct avx512_decoder { __m512i low0, low1, high0, high1, order; } avx512_decoder;

AVX512_INLINE avx512_decoder avx512_decoder_of(const avx512_table *t)
{
    avx512_decoder d;
    d.low0 = _mm512_load_si512(t->low);
    d.low1 = _mm512_load_si512(t->low + 64);
    d.high0 = _mm512_load_si512(t->high);
    d.high1 = _mm512_load_si512(t->high + 64);
    d.order = _mm512_load_si512(avx512_order);
    return d;
}

/* The bytes of the bf16 of 64 codes. */
AVX512_INLINE void avx512_lookup(__m512i codes, const avx512_decoder *d, avx512_kind kind, __m512i *low, __m512i *high)
{
    const __m512i top = _mm512_set1_epi8((char)0x80);
    const __m512i index = kind == AVX512_I8 ? _mm512_abs_epi8(codes) : codes;
    *low = _mm512_permutex2var_epi8(d->low0, index, d->low1);
    *high = _mm512_ternarylogic_epi32(_mm512_permutex2var_epi8(d->high0, index, d->high1), codes, top, 0xF8); /* a | (b & c) */
    if (kind == AVX512_BYTE_NUZ || kind == AVX512_I8) {
        /* The code whose low seven bits don't tell it from 0: fnuz's NaN, and -128. */
        const __mmask64 is_top = _mm512_cmpeq_epi8_mask(codes, top);
        *low = _mm512_mask_mov_epi8(*low, is_top, _mm512_set1_epi8(kind == AVX512_I8 ? 0 : (char)0xC0));
        *high = _mm512_mask_mov_epi8(*high, is_top, _mm512_set1_epi8(kind == AVX512_I8 ? (char)0xC3 : 0x7F));
    }
}

/* 64 elements of a row on their way: as much as is shared between the four pieces of 16. */
typedef struct avx512_chunk {
    __m512i words[2]; /* 8-bit floats: bf16, pieces 0 and 1, pieces 2 and 3 */
    const uint8_t *at;
} avx512_chunk;

AVX512_INLINE bool avx512_is_byte_float(avx512_kind kind) { return kind == AVX512_BYTE || kind == AVX512_BYTE_NUZ; }

AVX512_INLINE avx512_chunk avx512_chunk_of(__m512i codes_in_order, const uint8_t *at, const avx512_decoder *d, avx512_kind kind)
{
    avx512_chunk c = { .at = at };
    __m512i low, high;
    avx512_lookup(codes_in_order, d, kind, &low, &high);
    c.words[0] = _mm512_unpacklo_epi8(low, high);
    c.words[1] = _mm512_unpackhi_epi8(low, high);
    return c;
}

/* Opens 64 elements; reads exactly their bytes, at any alignment. */
AVX512_INLINE avx512_chunk avx512_open(const uint8_t *at, const avx512_decoder *d, avx512_kind kind)
{
    if (avx512_is_byte_float(kind)) {
        return avx512_chunk_of(_mm512_permutexvar_epi8(d->order, _mm512_loadu_si512(at)), at, d, kind);
    }
    return (avx512_chunk){ .at = at };
}

/* Opens n < 64 elements, a multiple of 8; the others are 0. Reads exactly the n elements. */
AVX512_INLINE avx512_chunk avx512_open_some(const uint8_t *at, uint32_t n, const avx512_decoder *d, avx512_kind kind)
{
    if (avx512_is_byte_float(kind)) {
        const __m512i codes = _mm512_maskz_loadu_epi8(((__mmask64)1 << n) - 1, at);
        return avx512_chunk_of(_mm512_permutexvar_epi8(d->order, codes), at, d, kind);
    }
    return (avx512_chunk){ .at = at };
}

/* Elements [16 i, 16 i + 16) of the chunk in f32. is_half: only the first eight are there, the others are 0. */
AVX512_INLINE __m512 avx512_piece_of(const avx512_chunk *c, uint32_t i, avx512_kind kind, bool is_half)
{
    const uint8_t *at = c->at + 16 * i * avx512_size(kind);
    const __m128i *x = (const __m128i *)(const void *)at;
    const __m256i *y = (const __m256i *)(const void *)at;
    switch (kind) {
    case AVX512_V4: /* in pieces of whole blocks only */
        return avx512_v4_half(c->at + i / 2 * OCT__V4_BLOCK_BYTES, i % 2);
    case AVX512_BYTE:
    case AVX512_BYTE_NUZ:
        return _mm512_castsi512_ps(i % 2 == 0 ? _mm512_slli_epi32(c->words[i / 2], 16)
                                              : _mm512_and_si512(c->words[i / 2], _mm512_set1_epi32((int32_t)0xFFFF0000)));
    case AVX512_I8:
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(is_half ? _mm_loadl_epi64(x) : _mm_loadu_si128(x)));
    case AVX512_F16:
        return _mm512_cvtph_ps(is_half ? _mm256_zextsi128_si256(_mm_loadu_si128(x)) : _mm256_loadu_si256(y));
    case AVX512_BF16:
        return _mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(is_half ? _mm256_zextsi128_si256(_mm_loadu_si128(x)) : _mm256_loadu_si256(y)), 16));
    default:
        return is_half ? _mm512_zextps256_ps512(_mm256_loadu_ps((const float *)(const void *)at)) : _mm512_loadu_ps(at);
    }
}

AVX512_INLINE __m512 avx512_piece(const avx512_chunk *c, uint32_t i, avx512_kind kind) { return avx512_piece_of(c, i, kind, false); }

/* The same of a chunk of n elements, 16 i < n. */
AVX512_INLINE __m512 avx512_piece_some(const avx512_chunk *c, uint32_t i, uint32_t n, avx512_kind kind)
{
    return 16 * i + 16 <= n || avx512_is_byte_float(kind) ? avx512_piece_of(c, i, kind, false) : avx512_piece_of(c, i, kind, true);
}

/* ---- functions ------------------------------------------------------------------------------------------------------------ */

/* 2^x for x <= 0 (it holds for all x up to 127): relative error below 2.5e-7, 0 below -126 (2^x would be subnormal) and for -inf, NaN for
 * NaN. */
AVX512_INLINE __m512 avx512_exp2(__m512 x)
{
    const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 r = _mm512_sub_ps(x, n);
    const __mmask16 keep = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    /* Least largest relative error on [-1/2, 1/2], with the constant held at 1, so that 2^0 = 1. */
    __m512 y = _mm512_set1_ps(1.32647273e-3f);
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(9.67151299e-3f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(5.55073358e-2f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(2.40222424e-1f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(6.93147004e-1f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(keep, y, n);
}

/* Below 0.625 an odd polynomial (relative error 2e-7), above it (1 - e) / (1 + e) with e = e^-2|x|; +-1 for +-inf, NaN for NaN. */
AVX512_INLINE __m512 avx512_tanh(__m512 x)
{
    const __m512i sign = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(INT32_MIN));
    const __m512 a = _mm512_castsi512_ps(_mm512_andnot_si512(_mm512_set1_epi32(INT32_MIN), _mm512_castps_si512(x)));
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 e = avx512_exp2(_mm512_mul_ps(a, _mm512_set1_ps(-2.88539008f)));
    const __m512 large = _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(_mm512_div_ps(_mm512_sub_ps(one, e), _mm512_add_ps(one, e))), sign));
    const __m512 square = _mm512_mul_ps(x, x);
    __m512 y = _mm512_set1_ps(-5.70498872745e-3f);
    y = _mm512_fmadd_ps(y, square, _mm512_set1_ps(2.06390887954e-2f));
    y = _mm512_fmadd_ps(y, square, _mm512_set1_ps(-5.37397155531e-2f));
    y = _mm512_fmadd_ps(y, square, _mm512_set1_ps(1.33314422036e-1f));
    y = _mm512_fmadd_ps(y, square, _mm512_set1_ps(-3.33332819422e-1f));
    const __m512 small = _mm512_fmadd_ps(_mm512_mul_ps(y, square), x, x);
    return _mm512_mask_mov_ps(large, _mm512_cmp_ps_mask(a, _mm512_set1_ps(0.625f), _CMP_LT_OQ), small);
}

#endif
