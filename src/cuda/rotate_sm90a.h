/* rotate_sm90a.h: the rotation of rows that lie side by side in a warp, a power of two of lanes each, eight dims a lane. */
#ifndef OCT_CUDA_ROTATE_SM90A_H
#define OCT_CUDA_ROTATE_SM90A_H

#include "device/simt.h"

/* row_rotate over a team of lanes: the same order of operations. All lanes of the warp; lanes past dim hold zeros and stay among themselves. */
DEV void team_rotate(float *x, uint32_t dim)
{
    const uint32_t block = dim & (~dim + 1u);
    float norm = 1.0f;
    UNROLL
    for (uint32_t step = 1; step < 8; step *= 2) {
        UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            if ((i & step) == 0) {
                const float a = x[i], b = x[i + step];
                x[i] = a + b;
                x[i + step] = a - b;
            }
        }
    }
    UNROLL
    for (uint32_t step = 8; step < 8 * WARP; step *= 2) {
        if (step < block) {
            const float sign = tid() & (step / 8) ? -1.0f : 1.0f;   /* other - own, or other + own: the product is exact */
            UNROLL
            for (uint32_t i = 0; i < 8; i++) {
                x[i] = fma_f32(x[i], sign, shfl_xor_f32(x[i], step / 8));
            }
        }
    }
    for (uint32_t rest = block; rest > 1; rest /= 4) {
        norm *= rest >= 4 ? 0.5f : 0.707106781186547524f;
    }
    UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        x[i] *= norm;
    }
}

#endif
