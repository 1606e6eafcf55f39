/* tiles.c: see tiles.h. */
#define _DEFAULT_SOURCE /* syscall */
#include "host/tiles.h"

#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* Linux gives the tiles' state, 8 KiB a thread, only to processes that ask, and refuses where a thread's alternate signal stack
 * is too small to hold it. To ask again is harmless. */
bool oct__tiles_request(void)
{
#if defined(__linux__) && defined(__x86_64__)
    enum { REQUEST_STATE = 0x1023, TILE_DATA = 18 };   /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    return syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0;
#else
    return false;
#endif
}
