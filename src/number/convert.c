/* convert.c: row conversions. Values travel as bits from load to store, so that no compiler flag and no
 * mode of the thread touches a NaN or a subnormal on the way. */
#include "convert.h"

#include <string.h>

#include "dtype.h"
#include "number.h"
#include "scale.h"

/* Rows start anywhere (head dims of 80 or 100 bytes, a base offset by 4), hence memcpy for the wide elements. */
static uint16_t load_u16(const uint8_t *at)
{
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint32_t load_u32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static void store_u16(uint8_t *at, uint16_t value)
{
    memcpy(at, &value, sizeof value);
}

static void store_u32(uint8_t *at, uint32_t value)
{
    memcpy(at, &value, sizeof value);
}

static uint32_t element_to_f32_bits(const uint8_t *src, uint32_t dtype, size_t i)
{
    switch (dtype) {
    case OCT_DTYPE_F16:
        return oct__f16_to_f32_bits(load_u16(src + 2 * i));
    case OCT_DTYPE_BF16:
        return oct__bf16_to_f32_bits(load_u16(src + 2 * i));
    case OCT_DTYPE_E4M3FN:
        return oct__e4m3fn_to_f32_bits(src[i]);
    case OCT_DTYPE_E4M3FNUZ:
        return oct__e4m3fnuz_to_f32_bits(src[i]);
    case OCT_DTYPE_E5M2:
        return oct__e5m2_to_f32_bits(src[i]);
    case OCT_DTYPE_I8:
        return oct__f32_to_bits(oct__i8_to_f32((int8_t)src[i]));
    default: /* f32: the caller has refused anything else */
        return load_u32(src + 4 * i);
    }
}

static void element_from_f32_bits(uint8_t *dst, uint32_t dtype, size_t i, uint32_t bits)
{
    switch (dtype) {
    case OCT_DTYPE_F16:
        store_u16(dst + 2 * i, oct__f16_from_f32_bits(bits));
        break;
    case OCT_DTYPE_BF16:
        store_u16(dst + 2 * i, oct__bf16_from_f32_bits(bits));
        break;
    case OCT_DTYPE_E4M3FN:
        dst[i] = oct__e4m3fn_from_f32_bits(bits);
        break;
    case OCT_DTYPE_E4M3FNUZ:
        dst[i] = oct__e4m3fnuz_from_f32_bits(bits);
        break;
    case OCT_DTYPE_E5M2:
        dst[i] = oct__e5m2_from_f32_bits(bits);
        break;
    case OCT_DTYPE_I8:
        dst[i] = (uint8_t)oct__i8_from_f32_bits(bits);
        break;
    default: /* f32, as above */
        store_u32(dst + 4 * i, bits);
        break;
    }
}

/* ---- v4 ------------------------------------------------------------------------------------------------ */

static void blocks_to_f32(uint8_t *to, const uint8_t *from, size_t n)
{
    for (size_t i = 0; i < n; i += OCT__V4_BLOCK, from += OCT__V4_BLOCK_BYTES) {
        const uint32_t scale_bits = oct__f16_to_f32_bits(load_u16(from));
        for (size_t j = 0; j < OCT__V4_BLOCK; j++) {
            const uint32_t code = from[2 + j % 16] >> (j < 16 ? 0 : 4) & 15;
            /* Not multiplied: -ffast-math may take it that there is no NaN. The product's bits are exact. */
            const uint32_t bits = oct__f32_bits_are_nan(scale_bits) ? scale_bits : oct__f32_to_bits((float)oct__v4_number(code) * oct__f32_of_bits(scale_bits));
            store_u32(to + 4 * (i + j), bits);
        }
    }
}

static void blocks_from_f32(uint8_t *to, const float *from, size_t n, struct oct__convert_count *count)
{
    for (size_t i = 0; i < n; i += OCT__V4_BLOCK, to += OCT__V4_BLOCK_BYTES) {
        uint8_t numbers[OCT__V4_BLOCK];
        const float scale = oct__scale_dynamic(from + i, OCT__V4_BLOCK, OCT_DTYPE_I8, OCT_DTYPE_F16, NULL);
        store_u16(to, oct__f16_from_f32(scale)); /* exact: oct__scale_dynamic has rounded it */
        oct__row_from_f32(numbers, OCT_DTYPE_I8, from + i, OCT__V4_BLOCK, scale, count);
        for (size_t j = 0; j < 16; j++) {
            to[2 + j] = (uint8_t)(oct__v4_code((int8_t)numbers[j]) | oct__v4_code((int8_t)numbers[j + 16]) << 4);
        }
    }
}

/* ---- rows ---------------------------------------------------------------------------------------------- */

bool oct__row_to_f32(float *dst, const void *src, uint32_t dtype, size_t n)
{
    const uint8_t *from = src;
    uint8_t *to = (uint8_t *)dst;
    if (!oct__dtype_is_valid(dtype) || (dtype == OCT_DTYPE_V4 && n % OCT__V4_BLOCK != 0)) {
        return false;
    }
    if (dtype == OCT_DTYPE_V4) {
        blocks_to_f32(to, from, n);
        return true;
    }
    for (size_t i = 0; i < n; i++) {
        store_u32(to + 4 * i, element_to_f32_bits(from, dtype, i));
    }
    return true;
}

bool oct__row_from_f32(void *dst, uint32_t dtype, const float *src, size_t n, float scale,
                       struct oct__convert_count *count)
{
    const uint8_t *from = (const uint8_t *)src;
    const uint32_t scale_bits = oct__f32_to_bits(scale);
    const uint32_t saturates_from_bits = oct__dtype_saturates_from_bits(dtype);
    struct oct__convert_count met = {0, 0};
    if (!oct__dtype_is_valid(dtype) || (dtype == OCT_DTYPE_V4 && n % OCT__V4_BLOCK != 0)) {
        return false;
    }
    if (dtype == OCT_DTYPE_V4) {
        blocks_from_f32(dst, src, n, count);
        return true;
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = load_u32(from + 4 * i);
        if (oct__f32_bits_are_nan(bits)) {
            /* Not divided: a division may change a NaN's sign and payload, and the byte keeps the sign. */
            met.nans++;
        } else {
            if (scale_bits != OCT__F32_ONE_BITS) {
                bits = oct__f32_divide_bits(bits, scale_bits);
            }
            /* Under the NaN scale of an i8 row the quotient is NaN; that is not a saturation. */
            met.saturated += (bits & OCT__F32_ABS_MASK) >= saturates_from_bits && !oct__f32_bits_are_nan(bits);
        }
        element_from_f32_bits(dst, dtype, i, bits);
    }
    if (count != NULL) {
        count->saturated += met.saturated;
        count->nans += met.nans;
    }
    return true;
}
