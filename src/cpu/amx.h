/* amx.h: owns how kernels hold AMX's tiles. The system keeps eight tiles of 16 rows x 64 bytes a thread for programs that asked (probe.c); they
 * are configured on entry of a kernel, always in full size, and released before it returns, so that the system has no tiles to save in between.
 *
 * gcc's tile intrinsics are assembly that doesn't say which memory it reads or writes: amx_fence() stands before and after every run of them. */
#ifndef OCT_CPU_AMX_H
#define OCT_CPU_AMX_H

#include <immintrin.h>
#include <stdint.h>

#include "cpu/avx512_number.h"

#define AMX_LANES 16u /* rows of a tile, and f32 in one of them */
#define AMX_PAIRS 32u /* 16-bit elements in a row */
enum { AMX_TILE_BYTES = 1024, AMX_ROW_BYTES = 64 };

#define amx_fence() __asm__ volatile("" ::: "memory")

typedef struct amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} amx_config;

static const _Alignas(64) amx_config amx_whole_tiles = {
    .palette = 1,
    .row_bytes = { AMX_ROW_BYTES, AMX_ROW_BYTES, AMX_ROW_BYTES, AMX_ROW_BYTES, AMX_ROW_BYTES, AMX_ROW_BYTES, AMX_ROW_BYTES, AMX_ROW_BYTES },
    .rows = { AMX_LANES, AMX_LANES, AMX_LANES, AMX_LANES, AMX_LANES, AMX_LANES, AMX_LANES, AMX_LANES },
};

/* The transpose of 16 x 16 words of 32 bits. */
AVX512_INLINE void amx_turn(__m512i *x)
{
    __m512i y[16];
    AVX512_UNROLL for (uint32_t i = 0; i < 16; i += 2)
    {
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    AVX512_UNROLL for (uint32_t i = 0; i < 16; i += 4)
    {
        x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
        x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
        x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
        x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
    /* x[4 g + c]: in lane l, elements of row 4 l + c, columns 4 g to 4 g + 3 */
    AVX512_UNROLL for (uint32_t c = 0; c < 4; c++)
    {
        const __m512i even = _mm512_shuffle_i32x4(x[c], x[4 + c], 0x88), odd = _mm512_shuffle_i32x4(x[c], x[4 + c], 0xDD);
        const __m512i even_high = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0x88), odd_high = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0xDD);
        y[c] = _mm512_shuffle_i32x4(even, even_high, 0x88);
        y[8 + c] = _mm512_shuffle_i32x4(even, even_high, 0xDD);
        y[4 + c] = _mm512_shuffle_i32x4(odd, odd_high, 0x88);
        y[12 + c] = _mm512_shuffle_i32x4(odd, odd_high, 0xDD);
    }
    AVX512_UNROLL for (uint32_t i = 0; i < 16; i++)
    {
        x[i] = y[i];
    }
}

#endif
