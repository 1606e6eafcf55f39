/* dtype.c: one row a format. The numbers themselves stand in the format's own header. */
#include "dtype.h"

#include <float.h>
#include <stddef.h>
#include <string.h>

#include "number.h"

struct format {
    const char *name;
    uint32_t bits;
    float max;
    uint32_t saturates_from_bits;
    bool has_nan;
    bool has_inf;
};

static const struct format formats[OCT__DTYPE_LAST + 1] = {
    [OCT_DTYPE_F32] = {"f32", 32, FLT_MAX, OCT__F32_INF_BITS, true, true},
    [OCT_DTYPE_F16] = {"f16", 16, OCT__F16_MAX_F32, OCT__F16_SATURATES_FROM_BITS, true, true},
    [OCT_DTYPE_BF16] = {"bf16", 16, OCT__BF16_MAX_F32, OCT__BF16_SATURATES_FROM_BITS, true, true},
    [OCT_DTYPE_E4M3FN] = {"e4m3fn", 8, OCT__E4M3FN_MAX_F32, OCT__E4M3FN_SATURATES_FROM_BITS, true, false},
    [OCT_DTYPE_E4M3FNUZ] = {"e4m3fnuz", 8, OCT__E4M3FNUZ_MAX_F32, OCT__E4M3FNUZ_SATURATES_FROM_BITS, true, false},
    [OCT_DTYPE_E5M2] = {"e5m2", 8, OCT__E5M2_MAX_F32, OCT__E5M2_SATURATES_FROM_BITS, true, true},
    [OCT_DTYPE_I8] = {"i8", 8, OCT__I8_MAX_F32, OCT__I8_SATURATES_FROM_BITS, false, false},
    [OCT_DTYPE_V4] = {"v4", 4, OCT__V4_MAX_F32, OCT__I8_SATURATES_FROM_BITS, false, false},
};

/* Row 0 answers for every unknown format, so that no caller needs a branch for it. */
static const struct format *format_of(uint32_t dtype)
{
    return &formats[oct__dtype_is_valid(dtype) ? dtype : 0];
}

bool oct__dtype_is_valid(uint32_t dtype)
{
    return dtype >= 1 && dtype <= OCT__DTYPE_LAST;
}

uint32_t oct__dtype_bits(uint32_t dtype)
{
    return format_of(dtype)->bits;
}

uint32_t oct__dtype_size_bytes(uint32_t dtype)
{
    return format_of(dtype)->bits / 8;
}

uint64_t oct__dtype_bytes(uint32_t dtype, uint64_t n)
{
    return dtype == OCT_DTYPE_V4 ? n / OCT__V4_BLOCK * OCT__V4_BLOCK_BYTES : n * oct__dtype_size_bytes(dtype);
}

uint32_t oct__dtype_align_bytes(uint32_t dtype)
{
    const uint32_t size = oct__dtype_size_bytes(dtype);
    return dtype == OCT_DTYPE_V4 ? 2 : size > 0 ? size : 1;
}

bool oct__dtype_is_8bit(uint32_t dtype)
{
    return format_of(dtype)->bits == 8;
}

float oct__dtype_max_f32(uint32_t dtype)
{
    return format_of(dtype)->max;
}

uint32_t oct__dtype_saturates_from_bits(uint32_t dtype)
{
    return oct__dtype_is_valid(dtype) ? formats[dtype].saturates_from_bits : UINT32_MAX;
}

bool oct__dtype_has_nan(uint32_t dtype)
{
    return format_of(dtype)->has_nan;
}

bool oct__dtype_has_inf(uint32_t dtype)
{
    return format_of(dtype)->has_inf;
}

const char *oct__dtype_name(uint32_t dtype)
{
    return format_of(dtype)->name;
}

uint32_t oct__dtype_from_name(const char *name)
{
    if (name == NULL) {
        return 0;
    }
    for (uint32_t dtype = 1; dtype <= OCT__DTYPE_LAST; dtype++) {
        if (strcmp(name, formats[dtype].name) == 0) {
            return dtype;
        }
    }
    return 0;
}
