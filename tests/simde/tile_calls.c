/* tile_calls.c: see tile_calls.h. A tile's number is part of the instruction, so each has a function's branch of its own.
 *
 * Threads: each has its own tiles. */
#include "simde/tile_calls.h"

#include "cpu/amx.h"

#define TILES(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

static void configure(void) { _tile_loadconfig(&amx_whole_tiles); }
static void release(void) { _tile_release(); }

static void load(int tile, const uint8_t *from, size_t stride)
{
    amx_fence();
    switch (tile) {
#define CASE(n)                             \
    case n:                                 \
        _tile_loadd(n, from, stride);       \
        break;
        TILES(CASE)
#undef CASE
    }
}

static void store(int tile, uint8_t *to, size_t stride)
{
    switch (tile) {
#define CASE(n)                           \
    case n:                               \
        _tile_stored(n, to, stride);      \
        break;
        TILES(CASE)
#undef CASE
    }
    amx_fence();
}

static void zero(int tile)
{
    switch (tile) {
#define CASE(n)             \
    case n:                 \
        _tile_zero(n);      \
        break;
        TILES(CASE)
#undef CASE
    }
}

static void product(int kind)
{
    switch (kind) {
    case 0:
        _tile_dpbf16ps(0, 4, 6);
        break;
    case 1:
        _tile_dpbf16ps(3, 5, 7);
        break;
    default:
        _tile_dpbf16ps(1, 4, 7);
    }
}

#if defined(OCT_TEST_SIMDE)
const tile_calls simde_tile_calls = { configure, release, load, store, zero, product };
#else
const tile_calls native_tile_calls = { configure, release, load, store, zero, product };
#endif
