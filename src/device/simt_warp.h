/* simt_warp.h: what both GPU shims make from shuffles. */
#ifndef OCT_DEVICE_SIMT_WARP_H
#define OCT_DEVICE_SIMT_WARP_H

DEV float warp_sum_f32(float v)
{
    UNROLL
    for (uint32_t mask = WARP / 2; mask > 0; mask /= 2) {
        v += shfl_xor_f32(v, mask);
    }
    return v;
}

DEV float warp_max_f32(float v)
{
    UNROLL
    for (uint32_t mask = WARP / 2; mask > 0; mask /= 2) {
        v = max_f32(v, shfl_xor_f32(v, mask));
    }
    return v;
}

DEV uint32_t warp_sum_u32(uint32_t v)
{
    UNROLL
    for (uint32_t mask = WARP / 2; mask > 0; mask /= 2) {
        v += shfl_xor_u32(v, mask);
    }
    return v;
}

/* Each step halves what a lane holds: n / 2 + n / 4 + n / 8 shuffles instead of three for each element. */
DEV void group8_sum(float *v, const uint32_t n)
{
    const uint32_t lane = tid() % 8;
    UNROLL
    for (uint32_t i = 0; i < n / 2; i++) {
        const float sent = lane & 4 ? v[i] : v[i + n / 2], kept = lane & 4 ? v[i + n / 2] : v[i];
        v[i] = kept + shfl_xor_f32(sent, 4);
    }
    UNROLL
    for (uint32_t i = 0; i < n / 4; i++) {
        const float sent = lane & 2 ? v[i] : v[i + n / 4], kept = lane & 2 ? v[i + n / 4] : v[i];
        v[i] = kept + shfl_xor_f32(sent, 2);
    }
    UNROLL
    for (uint32_t i = 0; i < n / 8; i++) {
        const float sent = lane & 1 ? v[i] : v[i + n / 8], kept = lane & 1 ? v[i + n / 8] : v[i];
        v[i] = kept + shfl_xor_f32(sent, 1);
    }
}

#endif
