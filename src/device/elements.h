/* elements.h: owns loads of neighbouring elements at any alignment that their type allows, and stores of encoded ones. Rows may begin anywhere
 * (head dims of 24 or 40, bases moved by a few elements); wide accesses are used wherever the address lets them. */
#ifndef OCT_DEVICE_ELEMENTS_H
#define OCT_DEVICE_ELEMENTS_H

#include "device/simt.h"

/* `bytes` (4, 8, 16 or 32, a constant) at `at` into words. element_bytes: 1, 2 or 4, which the address is a multiple of. */
DEV void load_words(const void *at, const uint32_t bytes, const uint32_t element_bytes, uint32_t *word)
{
    const uint8_t *from = (const uint8_t *)at;
    const uint64_t address = (uint64_t)(uintptr_t)at;
    if (bytes >= 16 && address % 16 == 0) {
        UNROLL
        for (uint32_t i = 0; i < bytes / 16; i++) {
            const u32x4 v = global_load_16(from + 16 * i);
            word[4 * i] = v.x;
            word[4 * i + 1] = v.y;
            word[4 * i + 2] = v.z;
            word[4 * i + 3] = v.w;
        }
    } else if (bytes == 8 && address % 8 == 0) {
        const u32x2 v = global_load_8(from);
        word[0] = v.x;
        word[1] = v.y;
    } else if (element_bytes == 4 || address % 4 == 0) {
        UNROLL
        for (uint32_t i = 0; i < bytes / 4; i++) {
            word[i] = global_load_u32(from + 4 * i);
        }
    } else if (element_bytes == 2) {
        UNROLL
        for (uint32_t i = 0; i < bytes / 4; i++) {
            word[i] = GET(*(const uint16_t *)(from + 4 * i)) | (uint32_t)GET(*(const uint16_t *)(from + 4 * i + 2)) << 16;
        }
    } else {
        UNROLL
        for (uint32_t i = 0; i < bytes / 4; i++) {
            word[i] = GET(from[4 * i]) | (uint32_t)GET(from[4 * i + 1]) << 8 | (uint32_t)GET(from[4 * i + 2]) << 16 | (uint32_t)GET(from[4 * i + 3]) << 24;
        }
    }
}

/* As load_words. */
DEV void store_words(void *at, const uint32_t bytes, const uint32_t element_bytes, const uint32_t *word)
{
    uint8_t *to = (uint8_t *)at;
    const uint64_t address = (uint64_t)(uintptr_t)at;
    if (bytes >= 16 && address % 16 == 0) {
        UNROLL
        for (uint32_t i = 0; i < bytes / 16; i++) {
            const u32x4 v = { word[4 * i], word[4 * i + 1], word[4 * i + 2], word[4 * i + 3] };
            global_store_16(to + 16 * i, v);
        }
    } else if (bytes == 8 && address % 8 == 0) {
        const u32x2 v = { word[0], word[1] };
        global_store_8(to, v);
    } else if (element_bytes == 4 || address % 4 == 0) {
        UNROLL
        for (uint32_t i = 0; i < bytes / 4; i++) {
            PUT(*(uint32_t *)(to + 4 * i), word[i]);
        }
    } else if (element_bytes == 2) {
        UNROLL
        for (uint32_t i = 0; i < bytes / 2; i++) {
            PUT(*(uint16_t *)(to + 2 * i), (uint16_t)(word[i / 2] >> (16 * (i % 2))));
        }
    } else {
        UNROLL
        for (uint32_t i = 0; i < bytes; i++) {
            PUT(to[i], (uint8_t)(word[i / 4] >> (8 * (i % 4))));
        }
    }
}

/* n elements (4 or 8, a constant) of `dtype`, undecoded: into n / 4, n / 2 or n words. */
DEV void load_codes(const void *at, uint32_t dtype, const uint32_t n, uint32_t *word)
{
    if (dtype >= OCT_DTYPE_E4M3FN) {
        load_words(at, n, 1, word);
    } else if (dtype == OCT_DTYPE_F32) {
        load_words(at, n * 4, 4, word);
    } else {
        load_words(at, n * 2, 2, word);
    }
}

/* The first four elements of each of m rows of codes (m a constant) that begin `stride` words apart; x: [m][4]. One branch for all: the formats
 * are no constants, since a copy of attention for each pair of them would be fifty copies. */
DEV void decode_fours(const uint32_t *word, const uint32_t stride, const uint32_t m, uint32_t dtype, float *x)
{
    switch (dtype) {
#define DECODE_FOURS(name, words)                                                        \
    case name:                                                                           \
        UNROLL                                                                           \
        for (uint32_t i = 0; i < m; i++) {                                               \
            UNROLL                                                                       \
            for (uint32_t w = 0; w < (words); w++) {                                     \
                decode_word(word[i * stride + w], name, x + 4 * i + w * (4 / (words)));  \
            }                                                                            \
        }                                                                                \
        break;
        DECODE_FOURS(OCT_DTYPE_E4M3FN, 1)
        DECODE_FOURS(OCT_DTYPE_E4M3FNUZ, 1)
        DECODE_FOURS(OCT_DTYPE_E5M2, 1)
        DECODE_FOURS(OCT_DTYPE_I8, 1)
        DECODE_FOURS(OCT_DTYPE_F16, 2)
        DECODE_FOURS(OCT_DTYPE_BF16, 2)
    default:
        DECODE_FOURS(OCT_DTYPE_F32, 4)
#undef DECODE_FOURS
    }
}

/* The next four of each row of n words (a constant, or 8) move to its front. */
DEV void next_fours(uint32_t *word, const uint32_t stride, const uint32_t m, uint32_t dtype)
{
    UNROLL
    for (uint32_t i = 0; i < m * stride; i++) {
        const uint32_t in_row = i % stride;
        const uint32_t by_1 = in_row + 1 < stride ? word[i + 1] : 0, by_2 = in_row + 2 < stride ? word[i + 2] : 0, by_4 = in_row + 4 < stride ? word[i + 4] : 0;
        word[i] = dtype >= OCT_DTYPE_E4M3FN ? by_1 : dtype == OCT_DTYPE_F32 ? by_4 : by_2;
    }
}

/* Eight elements of `dtype` at `at`, as floats. */
DEV void load_eight(const void *at, uint32_t dtype, float *x)
{
    uint32_t word[8] = { 0, 0, 0, 0, 0, 0, 0, 0 };
    load_codes(at, dtype, 8, word);
    decode_fours(word, 8, 1, dtype, x);
    next_fours(word, 8, 1, dtype);
    decode_fours(word, 8, 1, dtype, x + 4);
}

/* Eight values, as bits, into codes of `dtype`; in place. One branch for all eight. */
DEV void encode_eight(uint32_t dtype, uint32_t *code)
{
    switch (dtype) {
#define ENCODE_EIGHT(name, call)                  \
    case name:                                    \
        UNROLL                                    \
        for (uint32_t i = 0; i < 8; i++) {        \
            code[i] = call(code[i]);              \
        }                                         \
        break;
        ENCODE_EIGHT(OCT_DTYPE_F16, oct__f16_from_f32_bits)
        ENCODE_EIGHT(OCT_DTYPE_BF16, oct__bf16_from_f32_bits)
    case OCT_DTYPE_E4M3FN:
        encode_e4m3fn_8(code);
        break;
        ENCODE_EIGHT(OCT_DTYPE_E4M3FNUZ, oct__e4m3fnuz_from_f32_bits)
    case OCT_DTYPE_E5M2:
        encode_e5m2_8(code);
        break;
        ENCODE_EIGHT(OCT_DTYPE_I8, (uint8_t)oct__i8_from_f32_bits)
#undef ENCODE_EIGHT
    default:
        break;
    }
}

/* Eight codes into words: 2, 4 or 8 of them. */
DEV void pack_8(uint32_t dtype, const uint32_t *code, uint32_t *word)
{
    if (dtype >= OCT_DTYPE_E4M3FN) {
        word[0] = code[0] | code[1] << 8 | code[2] << 16 | code[3] << 24;
        word[1] = code[4] | code[5] << 8 | code[6] << 16 | code[7] << 24;
    } else if (dtype == OCT_DTYPE_F32) {
        UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            word[i] = code[i];
        }
    } else {
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            word[i] = code[2 * i] | code[2 * i + 1] << 16;
        }
    }
}

/* Eight codes side by side. */
DEV void store_8(void *at, uint32_t dtype, const uint32_t *code)
{
    uint32_t word[8];
    pack_8(dtype, code, word);
    if (dtype >= OCT_DTYPE_E4M3FN) {
        store_words(at, 8, 1, word);
    } else if (dtype == OCT_DTYPE_F32) {
        store_words(at, 32, 4, word);
    } else {
        store_words(at, 16, 2, word);
    }
}

/* The highest bit of every code of the word that is no finite number. dtype: of 8 or 16 bits. */
DEV uint32_t word_is_odd(uint32_t word, const uint32_t dtype)
{
    switch (dtype) {
    case OCT_DTYPE_E4M3FN:
        return ((word & 0x7F7F7F7Fu) + 0x01010101u) & 0x80808080u;
    case OCT_DTYPE_E4M3FNUZ: {
        const uint32_t like = word ^ 0x80808080u;   /* a zero byte is a NaN */
        return ~(((like & 0x7F7F7F7Fu) + 0x7F7F7F7Fu) | like) & 0x80808080u;
    }
    case OCT_DTYPE_E5M2:
        return ((word & 0x7F7F7F7Fu) + 0x04040404u) & 0x80808080u;
    case OCT_DTYPE_F16:
        return ((word & 0x7FFF7FFFu) + 0x04000400u) & 0x80008000u;
    case OCT_DTYPE_BF16:
        return ((word & 0x7FFF7FFFu) + 0x00800080u) & 0x80008000u;
    default:
        return 0;
    }
}

/* All bits of those codes. */
DEV uint32_t word_odd_codes(uint32_t word, const uint32_t dtype)
{
    const uint32_t high = word_is_odd(word, dtype);
    return high | (high - (high >> (dtype >= OCT_DTYPE_E4M3FN ? 7 : 15)));
}

#endif
