/* hadamard.c: the scalar form of the rotation; src/cpu has the vector forms. */
#include "hadamard.h"

size_t oct__hadamard_block(size_t dim)
{
    return dim & (~dim + 1);
}

float oct__hadamard_norm(size_t block)
{
    /* Powers of two stay exact, so that only an odd exponent brings in the rounding of 1/sqrt(2). */
    float norm = 1.0f;
    while (block >= 4) {
        norm *= 0.5f;
        block /= 4;
    }
    return block == 2 ? norm * 0.707106781186547524f : norm;
}

static void transform_block(float *x, size_t block, float norm)
{
    for (size_t step = 1; step < block; step *= 2) {
        for (size_t base = 0; base < block; base += 2 * step) {
            for (size_t i = base; i < base + step; i++) {
                float a = x[i];
                float b = x[i + step];
                x[i] = a + b;
                x[i + step] = a - b;
            }
        }
    }
    for (size_t i = 0; i < block; i++) {
        x[i] *= norm;
    }
}

void oct__hadamard_f32(float *x, size_t dim)
{
    const size_t block = oct__hadamard_block(dim);
    const float norm = oct__hadamard_norm(block);
    for (size_t at = 0; at < dim; at += block) {
        transform_block(x + at, block, norm);
    }
}

void oct__hadamard_inverse_f32(float *x, size_t dim)
{
    oct__hadamard_f32(x, dim);
}
