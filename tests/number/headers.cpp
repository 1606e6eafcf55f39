/* Compiled as C++17 by the test number_headers_as_cxx; it is the shape in which device code takes the headers. */
#include "number/number.h"
#include "number/scale.h"

template <typename Code, Code (*encode)(float), float (*decode)(Code)>
float through(float x)
{
    return decode(encode(x));
}

float through_all(float x);
float through_all(float x)
{
    return through<uint8_t, oct__e4m3fn_from_f32, oct__e4m3fn_to_f32>(x) +
           through<uint8_t, oct__e4m3fnuz_from_f32, oct__e4m3fnuz_to_f32>(x) +
           through<uint8_t, oct__e5m2_from_f32, oct__e5m2_to_f32>(x) +
           through<int8_t, oct__i8_from_f32, oct__i8_to_f32>(x) +
           through<uint16_t, oct__bf16_from_f32, oct__bf16_to_f32>(x) +
           through<uint16_t, oct__f16_from_f32, oct__f16_to_f32>(x) +
           (float)oct__v4_number(oct__v4_code(oct__i8_from_f32(x))) +
           oct__f16_to_f32(oct__scale_to_f16(oct__scale_from_amax(x, OCT__E4M3FN_MAX_F32)));
}
