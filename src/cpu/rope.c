/* rope.c: angles in f64. At position 100,000 an f32 angle is off by up to 0.004 rad, more than e4m3 rounds away. */
#include "cpu/rope.h"

#include <math.h>

void oct__rope_prepare(oct__rope_table *table, const oct_rope *rope)
{
    const uint32_t n_pairs = rope->n_dims / 2;
    for (uint32_t i = 0; i < n_pairs; i++) {
        double frequency = pow((double)rope->base, -2.0 * i / rope->n_dims) * (double)rope->position_scale;
        if (rope->factors != NULL) {
            frequency /= (double)rope->factors[i];
        }
        table->frequency[i] = frequency;
    }
}

void oct__rope_turn_to(oct__rope_table *table, const oct_rope *rope, int32_t position)
{
    const uint32_t n_pairs = rope->n_dims / 2;
    for (uint32_t i = 0; i < n_pairs; i++) {
        const double angle = position * table->frequency[i];
        table->cosine[i] = (float)cos(angle);
        table->sine[i] = (float)sin(angle);
    }
}

void oct__rope_apply_f32(float *x, const oct_rope *rope, const oct__rope_table *table)
{
    const uint32_t n_pairs = rope->n_dims / 2;
    const uint32_t step = rope->style == 0 ? 1 : 2;    /* from pair to pair */
    const uint32_t apart = rope->style == 0 ? n_pairs : 1; /* from a to b */
    for (uint32_t i = 0; i < n_pairs; i++) {
        const float a = x[i * step];
        const float b = x[i * step + apart];
        x[i * step] = a * table->cosine[i] - b * table->sine[i];
        x[i * step + apart] = a * table->sine[i] + b * table->cosine[i];
    }
}
