/* kernels.c: every kernel text in one unit, for nvcc (-x cu), clang (-x hip) and, at each warp width, the host executor of tests/device.
 * cmake/OctavoDevice.cmake has the commands. Compiled without contraction (-ffp-contract=off, -fmad=false): a fused multiply-add
 * stands where a text says so, and the write stores the same bytes everywhere. */
#include "device/attn_finish.h"
#include "device/attn_merge.h"
#include "device/attn_mma.h"
#include "device/attn_tile.h"
#include "device/tile_probe.h"
#include "device/kv_write.h"
#include "device/measure.h"
#include "device/plan_step.h"
