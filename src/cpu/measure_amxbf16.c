/* measure_amxbf16.c: what AMX's tiles do in a second. See measure.h. */
#include "cpu/amx.h"
#include "cpu/measure.h"

double oct__measure_dot_amx(const oct__measure_work *work, float *sink)
{
    enum { TURNS = 1024, PRODUCTS = 4 /* as many sums at once as the kernels keep, which hide a product's latency */ };
    _Alignas(64) float out[AMX_TILE_BYTES / sizeof(float)];
    (void)work;
    amx_fence();
    _tile_loadconfig(&amx_whole_tiles);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int turn = 0; turn < TURNS; turn++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(3, out, AMX_ROW_BYTES);
    _tile_release();
    amx_fence();
    *sink += out[0];
    return (double)TURNS * PRODUCTS * AMX_LANES * AMX_LANES * AMX_PAIRS * 2;
}
