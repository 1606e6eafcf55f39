/* avx512_value.h: owns the value products of many vectors in registers, O[vector][dim] += P V with 6 vectors x 64 dims at a time. Included once by
 * each file that makes such a part, which says before what it multiplies:
 *   value_element    what V and the weights consist of; VALUE_KEYS of them, of successive keys, lie in a lane
 *   value_sums       a register of running sums; value_none() is none of them
 *   value_weights(p) the weights of VALUE_KEYS keys in all lanes
 *   value_dot(sums, weights, v)
 *   value_of(sums, gain) as f32; gain: what the vector's sums are worth, where the part keeps that
 *   value_v_stride(spec), value_p(x), value_p_stride(x): elements from keys to the next ones, in V and in the weights; where weights lie
 * Sums of a block are added to o at once, so that its rounding error grows with the number of blocks and not of keys. */
#ifndef OCT_CPU_AVX512_VALUE_H
#define OCT_CPU_AVX512_VALUE_H

#include "cpu/avx512_many.h"

/* o[vector][dim] = o * keep + the sum over n times VALUE_KEYS keys of p[..][vector] . v[..][dim], for n_vectors vectors and n_dims x 16 dims. */
AVX512_INLINE void value_product(float *o, int64_t o_stride, const float *keep, const float *gain, const value_element *p, size_t p_stride,
                                 const value_element *v, size_t v_stride, uint32_t n, const uint32_t n_vectors, const uint32_t n_dims)
{
    value_sums sum[AVX512_VECTORS][4];
    AVX512_UNROLL for (uint32_t i = 0; i < n_vectors; i++)
    {
        AVX512_UNROLL for (uint32_t d = 0; d < n_dims; d++)
        {
            sum[i][d] = value_none();
        }
    }
    for (uint32_t j = 0; j < n; j++, p += p_stride, v += v_stride) {
        __m512i x[4];
        AVX512_UNROLL for (uint32_t d = 0; d < n_dims; d++)
        {
            x[d] = _mm512_load_si512(v + 16 * VALUE_KEYS * d);
        }
        AVX512_UNROLL for (uint32_t i = 0; i < n_vectors; i++)
        {
            const __m512i weights = value_weights(p + VALUE_KEYS * i);
            AVX512_UNROLL for (uint32_t d = 0; d < n_dims; d++)
            {
                sum[i][d] = value_dot(sum[i][d], weights, x[d]);
            }
        }
    }
    AVX512_UNROLL for (uint32_t i = 0; i < n_vectors; i++)
    {
        const __m512 factor = _mm512_set1_ps(keep[i]);
        AVX512_UNROLL for (uint32_t d = 0; d < n_dims; d++)
        {
            float *to = o + i * o_stride + 16 * d;
            _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_load_ps(to), factor, value_of(sum[i][d], gain + i)));
        }
    }
}

#define VALUE(n_vectors, n_dims)                                                                                                                   \
    static void value_##n_vectors##_##n_dims(float *o, int64_t o_stride, const float *keep, const float *gain, const value_element *p,             \
                                             size_t p_stride, const value_element *v, size_t v_stride, uint32_t n)                                 \
    {                                                                                                                                              \
        value_product(o, o_stride, keep, gain, p, p_stride, v, v_stride, n, n_vectors, n_dims);                                                    \
    }
#define VALUES(n_dims) VALUE(1, n_dims) VALUE(2, n_dims) VALUE(3, n_dims) VALUE(4, n_dims) VALUE(5, n_dims) VALUE(6, n_dims)
VALUES(1)
VALUES(2)
VALUES(3)
VALUES(4)

typedef void value_product_fn(float *o, int64_t o_stride, const float *keep, const float *gain, const value_element *p, size_t p_stride,
                              const value_element *v, size_t v_stride, uint32_t n);
#define VALUE_ROW(n_dims) { value_1_##n_dims, value_2_##n_dims, value_3_##n_dims, value_4_##n_dims, value_5_##n_dims, value_6_##n_dims }
static value_product_fn *const value_products[4][AVX512_VECTORS] = { VALUE_ROW(1), VALUE_ROW(2), VALUE_ROW(3), VALUE_ROW(4) };

/* The whole block: all vectors, all dims. */
static void sum_values(const oct__attn_tile *tile, const avx512_many *x)
{
    const uint32_t dim = tile->kv->spec.dim_v, n_vectors = tile->n_rows * tile->n_heads;
    const uint32_t n_parts = (n_vectors + AVX512_VECTORS - 1) / AVX512_VECTORS;
    const size_t v_stride = value_v_stride(&tile->kv->spec), p_stride = value_p_stride(x);
    for (uint32_t d = 0; d < dim; d += 64) {
        const uint32_t n_dims = dim - d < 64 ? (dim - d + 15) / 16 : 4;
        /* Parts of nearly one size: a last part of one vector would wait for its few sums. */
        for (uint32_t part = 0, i = 0; part < n_parts; part++) {
            const uint32_t next = (uint32_t)((uint64_t)n_vectors * (part + 1) / n_parts);
            uint32_t from, to;
            avx512_lanes_range(x, i, next, &from, &to);
            if (from < to) {
                from /= VALUE_KEYS;
                to = (to + VALUE_KEYS - 1) / VALUE_KEYS;
                value_products[n_dims - 1][next - i - 1](tile->o + i * tile->o_stride + d, tile->o_stride, x->keep + i, x->gain + i,
                                                         value_p(x) + from * p_stride + VALUE_KEYS * i, p_stride,
                                                         (const value_element *)x->v + from * v_stride + VALUE_KEYS * d, v_stride, to - from);
            }
            i = next;
        }
    }
}

#endif
