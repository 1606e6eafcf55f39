/* measure.h: reads an array, or copies it, as fast as the device's memory allows: what oct_rates_measure takes the time of. Steps of 16 KB, four loads a lane
 * on their way. Each lane leaves the exclusive or of what it has read, so that no load can be left out and a test can tell. */
#ifndef OCT_DEVICE_MEASURE_H
#define OCT_DEVICE_MEASURE_H

#include "device/params.h"
#include "device/simt.h"

KERNEL(measure, 256, 8, oct__measure_params)
{
    uint32_t x = 0;
    for (uint64_t step = block_id(); step < p->steps; step += block_count()) {
        const uint64_t at = step * OCT__MEASURE_STEP + tid() * 16u;
        u32x4 v[4];
        UNROLL
        for (uint32_t u = 0; u < 4; u++) {
            v[u] = global_load_16(p->from + at + u * 4096u);
        }
        UNROLL
        for (uint32_t u = 0; u < 4; u++) {
            if (p->to != 0) {
                global_store_16(p->to + at + u * 4096u, v[u]);
            }
            x ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
        }
    }
    PUT(p->left[block_id() * 256 + tid()], x);
}

#endif
