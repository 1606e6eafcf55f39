/* tile_calls.h: owns AMX's tile instructions as functions, built twice like calls.h: from the models here, and from the instructions.
 *
 * Threads: each has its own tiles. */
#ifndef TEST_SIMDE_TILE_CALLS_H
#define TEST_SIMDE_TILE_CALLS_H

#include <stddef.h>
#include <stdint.h>

typedef struct tile_calls {
    void (*configure)(void);
    void (*release)(void);
    void (*load)(int tile, const uint8_t *from, size_t stride);
    void (*store)(int tile, uint8_t *to, size_t stride);
    void (*zero)(int tile);
    void (*product)(int kind);   /* 0: tile 0 += 4 x 6; 1: tile 3 += 5 x 7; 2: tile 1 += 4 x 7 */
} tile_calls;

extern const tile_calls simde_tile_calls, native_tile_calls;

#endif
