/* tile_check.h: the matrix units' words (src/device/tile.h) one at a time, by the kernel tile_probe, against plain loops: every fragment layout on whatever
 * stands behind executor.h. Threads: one. */
#ifndef DEVICE_TILE_CHECK_H
#define DEVICE_TILE_CHECK_H

#include <stdint.h>

/* From within a test: fails it at the first lane that is wrong. Returns the cases judged, and prints their number. */
int64_t tile_check(uint32_t warp);

#endif
