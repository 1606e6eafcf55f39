/* scale.c: dynamic scales of a vector, and the import of calibrated ones. */
#include "scale.h"

#include "dtype.h"

float oct__scale_amax(const float *x, size_t n, bool *has_nan)
{
    uint32_t amax_bits = 0;
    bool nan = false;
    for (size_t i = 0; i < n; i++) {
        uint32_t abs_bits = oct__f32_to_bits(x[i]) & OCT__F32_ABS_MASK;
        if (abs_bits < OCT__F32_INF_BITS) {
            amax_bits = abs_bits > amax_bits ? abs_bits : amax_bits;
        } else {
            nan = nan || abs_bits > OCT__F32_INF_BITS;
        }
    }
    if (has_nan != NULL) {
        *has_nan = nan;
    }
    return oct__f32_of_bits(amax_bits);
}

float oct__scale_dynamic(const float *x, size_t n, uint32_t dtype, uint32_t scale_dtype, uint64_t *nan_vectors)
{
    bool has_nan = false;
    float scale;
    if (!oct__dtype_is_valid(dtype) || (scale_dtype != OCT_DTYPE_F32 && scale_dtype != OCT_DTYPE_F16)) {
        return 0.0f;
    }
    if (!oct__dtype_is_8bit(dtype)) {
        return 1.0f;
    }
    scale = oct__scale_from_amax(oct__scale_amax(x, n, &has_nan), oct__dtype_max_f32(dtype));
    if (has_nan && !oct__dtype_has_nan(dtype)) {
        /* No byte can say NaN, so the scale says it for the whole vector: a NaN is never read as a number. */
        if (nan_vectors != NULL) {
            *nan_vectors += 1;
        }
        return oct__f32_of_bits(OCT__F32_QNAN_BITS);
    }
    return scale_dtype == OCT_DTYPE_F16 ? oct__f16_to_f32(oct__scale_to_f16(scale)) : scale;
}

enum oct__scale_import oct__scale_import(float scale, uint32_t from, uint32_t to, float *out)
{
    bool doubled = from == OCT_DTYPE_E4M3FN && to == OCT_DTYPE_E4M3FNUZ;
    if (!oct__dtype_is_8bit(from) || !oct__scale_is_valid(scale) || (from != to && !doubled)) {
        return OCT__SCALE_IMPORT_REFUSED;
    }
    if (doubled) {
        scale *= 2.0f;
        if (!oct__scale_is_valid(scale)) {
            return OCT__SCALE_IMPORT_REFUSED;
        }
    }
    *out = scale;
    return doubled ? OCT__SCALE_IMPORT_DOUBLED : OCT__SCALE_IMPORT_AS_IS;
}
