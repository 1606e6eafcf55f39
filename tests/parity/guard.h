/* guard.h: owns memory that catches stray access: a block with an unreadable page on either side, flush against one of
 * them, and a known pattern in the slack that alignment leaves. Threads: a block belongs to one thread at a time. */
#ifndef PARITY_GUARD_H
#define PARITY_GUARD_H

#include <stddef.h>

typedef struct guard {
    void *at;            /* size_bytes of memory, zero-filled at first */
    size_t size_bytes;
    unsigned char *map;
    size_t map_bytes;
} guard;

typedef enum guard_side {
    GUARD_END,     /* the block ends at the unreadable page; its address is only as aligned as its size */
    GUARD_START    /* the block begins right after the unreadable page, page-aligned */
} guard_side;

/* 0 on success. An empty block is legal: any access to it faults. */
int guard_make(guard *g, size_t size_bytes, guard_side side);

/* 1 while nobody has written into the slack around the block. */
int guard_intact(const guard *g);

/* From here on a write into the block faults; or may happen again. */
void guard_write_protect(guard *g, int protect);

void guard_drop(guard *g);   /* a zeroed guard is fine */

#endif
