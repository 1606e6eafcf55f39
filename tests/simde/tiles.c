/* tiles.c: owns the tiles of tiles.h.
 *
 * Threads: each has its own. */
#include <immintrin.h>

_Thread_local model_tile model_tiles[8];
_Thread_local uint8_t model_tiles_are_configured;
