/* guard.c: the mapping is [unreadable page][slack and block][unreadable page]. MAP_NORESERVE: the pool of fault E1 is larger than
 * what it touches. */
#define _DEFAULT_SOURCE
#include "parity/guard.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SLACK_BYTE = 0xA5 };

int guard_make(guard *g, size_t size_bytes, guard_side side)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t body = (size_bytes + page - 1) / page * page;
    memset(g, 0, sizeof *g);
    unsigned char *map = mmap(NULL, body + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        return -1;
    if (mprotect(map, page, PROT_NONE) != 0 || mprotect(map + page + body, page, PROT_NONE) != 0) {
        munmap(map, body + 2 * page);
        return -1;
    }
    g->map = map;
    g->map_bytes = body + 2 * page;
    g->size_bytes = size_bytes;
    const size_t slack = body - size_bytes;
    if (side == GUARD_END) {
        g->at = map + page + slack;
        memset(map + page, SLACK_BYTE, slack);
    } else {
        g->at = map + page;
        memset(map + page + size_bytes, SLACK_BYTE, slack);
    }
    return 0;
}

int guard_intact(const guard *g)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (g->map == NULL)
        return 1;
    const unsigned char *at = g->at;
    for (const unsigned char *p = g->map + page; p < at; p++)
        if (*p != SLACK_BYTE)
            return 0;
    for (const unsigned char *p = at + g->size_bytes; p < g->map + g->map_bytes - page; p++)
        if (*p != SLACK_BYTE)
            return 0;
    return 1;
}

void guard_write_protect(guard *g, int protect)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (g->map != NULL && g->map_bytes > 2 * page && mprotect(g->map + page, g->map_bytes - 2 * page, protect ? PROT_READ : PROT_READ | PROT_WRITE) != 0)
        abort();   /* the block is ours and mapped: this cannot fail */
}

void guard_drop(guard *g)
{
    if (g->map != NULL)
        munmap(g->map, g->map_bytes);
    memset(g, 0, sizeof *g);
}
