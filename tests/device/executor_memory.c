/* executor_memory.c: allocations, and what every access of a kernel goes through: bounds, alignment, "has it been written", races. */
#define _GNU_SOURCE
#include "device/executor_group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { GAP_BYTES = 1 << 20, POISON_MAX_BYTES = 16 << 20, PAGE_BYTES = 4096 };

simt_device *simt_running;

/* ---- allocations --------------------------------------------------------------------------------------------------------------- */

static void *map(size_t size_bytes, int protection)
{
    void *at = mmap(NULL, size_bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

simt_device *simt_open(size_t memory_bytes, uint32_t shared_limit_bytes)
{
    simt_device *d = calloc(1, sizeof *d);
    if (d == NULL || shared_limit_bytes > SHARED_BYTES - SHARED_STATIC_BYTES) {
        free(d);
        return NULL;
    }
    d->size_bytes = (memory_bytes + SHARED_BYTES + 2 * (size_t)GAP_BYTES + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    d->shared_limit_bytes = shared_limit_bytes;
    d->view = map(d->size_bytes, PROT_NONE);
    d->bytes = map(d->size_bytes, PROT_READ | PROT_WRITE);
    d->wrote = map(d->size_bytes * sizeof *d->wrote, PROT_READ | PROT_WRITE);
    d->read = map(d->size_bytes * sizeof *d->read, PROT_READ | PROT_WRITE);
    if (d->view == NULL || d->bytes == NULL || d->wrote == NULL || d->read == NULL) {
        simt_close(d);
        return NULL;
    }
    return d;
}

void simt_close(simt_device *device)
{
    if (device == NULL)
        return;
    for (uint32_t i = 0; i < LANES_MAX; i++)
        fiber_drop(&device->lanes[i].fiber);
    if (device->view != NULL)
        munmap(device->view, device->size_bytes);
    if (device->bytes != NULL)
        munmap(device->bytes, device->size_bytes);
    if (device->wrote != NULL)
        munmap(device->wrote, device->size_bytes * sizeof *device->wrote);
    if (device->read != NULL)
        munmap(device->read, device->size_bytes * sizeof *device->read);
    if (device->stacks != NULL)
        munmap(device->stacks, LANES_MAX * device->stack_stride_bytes);
    free(device->allocations);
    free(device->block_times);
    free(device->releases);
    free(device->acquired);
    free(device);
}

/* Index of the last allocation that begins at or before the offset; n_allocations when there is none. */
static size_t find(const simt_device *d, size_t at)
{
    size_t low = 0, high = d->n_allocations;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (d->allocations[middle].at <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low == 0 ? d->n_allocations : low - 1;
}

static size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

/* All bytes of the allocation are `stamp` again. Its pages belong to nobody else: allocations are a gap apart. */
static void forget(simt_device *d, allocation *a, uint32_t stamp)
{
    const size_t size_bytes = round_up(a->size_bytes, PAGE_BYTES) * sizeof *d->wrote;
    a->stamp = stamp;
    if (size_bytes == 0)
        return;
    if (size_bytes <= 64 * 1024) {
        memset(d->wrote + a->at, 0, size_bytes);
        memset(d->read + a->at, 0, size_bytes);
    } else {
        madvise(d->wrote + a->at, size_bytes, MADV_DONTNEED);
        madvise(d->read + a->at, size_bytes, MADV_DONTNEED);
    }
}

void *simt_alloc(simt_device *device, size_t size_bytes, const char *name)
{
    simt_device *d = device;
    size_t at = SHARED_BYTES + GAP_BYTES, i = 0;
    for (; i < d->n_allocations; i++) {   /* the first hole that is large enough */
        if (d->allocations[i].at >= at && d->allocations[i].at - at >= size_bytes + GAP_BYTES)
            break;
        at = round_up(d->allocations[i].at + d->allocations[i].size_bytes + GAP_BYTES, PAGE_BYTES);
    }
    if (size_bytes > d->size_bytes || at > d->size_bytes - size_bytes)
        return NULL;
    if (d->n_allocations == d->allocations_room) {
        const size_t room = d->allocations_room * 2 + 16;
        allocation *grown = realloc(d->allocations, room * sizeof *grown);
        if (grown == NULL)
            return NULL;
        d->allocations = grown;
        d->allocations_room = room;
    }
    memmove(d->allocations + i + 1, d->allocations + i, (d->n_allocations - i) * sizeof *d->allocations);
    d->n_allocations++;
    d->allocations[i] = (allocation){ at, size_bytes, STAMP_NEVER, name };
    forget(d, &d->allocations[i], STAMP_NEVER);
    if (size_bytes <= POISON_MAX_BYTES)
        memset(d->bytes + at, 0xFF, size_bytes);
    return d->view + at;
}

/* The allocation that holds the range, or NULL. */
static allocation *holder(simt_device *d, const void *at, size_t size_bytes)
{
    const size_t offset = (size_t)((uintptr_t)at - (uintptr_t)d->view), i = find(d, offset);
    if (i == d->n_allocations)
        return NULL;
    allocation *a = &d->allocations[i];
    return offset - a->at <= a->size_bytes && size_bytes <= a->size_bytes - (offset - a->at) ? a : NULL;
}

void simt_free(simt_device *device, void *at)
{
    if (at == NULL)
        return;
    allocation *a = holder(device, at, 0);
    if (a == NULL || device->view + a->at != (unsigned char *)at)
        abort();   /* the test's own mistake */
    forget(device, a, STAMP_NEVER);
    if (a->size_bytes > POISON_MAX_BYTES)
        madvise(device->bytes + a->at, round_up(a->size_bytes, PAGE_BYTES), MADV_DONTNEED);
    const size_t i = (size_t)(a - device->allocations);
    memmove(a, a + 1, (device->n_allocations - i - 1) * sizeof *a);
    device->n_allocations--;
}

static unsigned char *bytes_of(const simt_device *d, const void *at) { return d->bytes + ((uintptr_t)at - (uintptr_t)d->view); }

static int mark_written(simt_device *d, void *to, size_t size_bytes)
{
    allocation *a = holder(d, to, size_bytes);
    if (a == NULL)
        return -1;
    const size_t at = (size_t)((uintptr_t)to - (uintptr_t)d->view);
    if (at == a->at && size_bytes == a->size_bytes) {
        forget(d, a, STAMP_WRITTEN);
        return 0;
    }
    for (size_t i = 0; i < size_bytes && a->stamp != STAMP_CONST; i++)
        d->wrote[at + i] = STAMP_WRITTEN;
    return 0;
}

int simt_copy_in(simt_device *device, void *to, const void *from, size_t size_bytes)
{
    if (mark_written(device, to, size_bytes) != 0)
        return -1;
    if (size_bytes > 0)
        memcpy(bytes_of(device, to), from, size_bytes);
    return 0;
}

int simt_fill(simt_device *device, void *to, int byte, size_t size_bytes)
{
    if (mark_written(device, to, size_bytes) != 0)
        return -1;
    memset(bytes_of(device, to), byte, size_bytes);
    return 0;
}

int simt_copy_out(simt_device *device, void *to, const void *from, size_t size_bytes)
{
    if (holder(device, from, size_bytes) == NULL)
        return -1;
    if (size_bytes > 0)
        memcpy(to, bytes_of(device, from), size_bytes);
    return 0;
}

int simt_protect(simt_device *device, void *at, int on)
{
    allocation *a = holder(device, at, 0);
    if (a == NULL)
        return -1;
    forget(device, a, on ? STAMP_CONST : STAMP_WRITTEN);
    return 0;
}

/* ---- time ------------------------------------------------------------------------------------------------------------------------ */

/* Time ran out: all that has been is past, and shared bytes stay written in this block. */
static void rewind_time(simt_device *d)
{
    for (size_t i = 0; i < SHARED_BYTES; i++) {
        d->wrote[i] = d->wrote[i] & STAMP_WRITTEN && stamp_time(d->wrote[i]) >= d->block_time ? STAMP_WRITTEN | stamp_make(1, 0) : 0;
        d->read[i] = 0;
    }
    for (size_t a = 0; a < d->n_allocations; a++)
        for (size_t i = d->allocations[a].at; i < d->allocations[a].at + d->allocations[a].size_bytes; i++) {
            if (d->wrote[i] != 0 && d->wrote[i] != STAMP_CONST)
                d->wrote[i] = d->wrote[i] & STAMP_WRITTEN ? STAMP_WRITTEN : STAMP_NEVER;
            d->read[i] = 0;
        }
    d->launch_time = d->block_time = 1;
    d->n_block_times = 0;
    d->n_releases = d->n_acquired = 0;
    d->now = 1;
    group_rewind();
}

void simt_tick(simt_device *device)
{
    if (device->now >= TIME_MAX)
        rewind_time(device);
    device->now++;
}

void simt_begin_launch(simt_device *device)
{
    simt_tick(device);
    device->launch_time = device->now;
    device->n_block_times = 0;
    device->n_releases = 0;
}

void simt_begin_block(simt_device *device)
{
    simt_tick(device);
    if (device->n_block_times == device->block_times_room) {
        const uint64_t room = device->block_times_room * 2 + 1024;
        uint32_t *grown = realloc(device->block_times, room * sizeof *grown);
        if (grown == NULL)
            abort();
        device->block_times = grown;
        device->block_times_room = room;
    }
    device->block_times[device->n_block_times++] = device->now;
    device->block_time = device->barrier_time = device->now;
    for (uint32_t w = 0; w < LANES_MAX / 32; w++)
        device->warp_time[w] = device->now;
    device->n_acquired = 0;
}

/* Which block of the launch, counted from its first one (or from the last time that time ran out), was running at a time. */
static uint64_t block_at(const simt_device *d, uint32_t time)
{
    uint64_t low = 0, high = d->n_block_times;
    while (low < high) {
        const uint64_t middle = (low + high) / 2;
        if (d->block_times[middle] <= time)
            low = middle + 1;
        else
            high = middle;
    }
    return low - 1;
}

/* Whether what a stamp speaks of happened before the running lane's present: the usual answer here, the rest in is_past_slowly. Shared memory
 * begins anew in every block. */
static int is_past_slowly(const simt_device *d, uint32_t stamp);
static inline int is_past(const simt_device *d, uint32_t stamp, int is_shared)
{
    const uint32_t time = stamp_time(stamp);
    return (time < d->barrier_time && (is_shared || time >= d->block_time || time < d->launch_time)) || is_past_slowly(d, stamp);
}

static int is_past_slowly(const simt_device *d, uint32_t stamp)
{
    const uint32_t time = stamp_time(stamp), who = stamp_who(stamp);
    if (time >= d->barrier_time) {
        if (who == d->me)
            return 1;
        if ((who < LANES_MAX ? who / d->kernel->warp == d->my_warp : who == WHO_WARP + d->my_warp) && time < d->warp_time[d->my_warp])
            return 1;
        if (!group_is_used || (who >= LANES_MAX && who != WHO_WARP + d->my_warp))
            return 0;
        for (uint32_t l = who < LANES_MAX ? who : d->my_warp * d->kernel->warp; l < (who < LANES_MAX ? who + 1 : (d->my_warp + 1) * d->kernel->warp); l++)
            if (!group_sees(d, l, time))
                return 0;
        return 1;
    }
    const uint64_t block = block_at(d, time);   /* another block of this launch */
    for (size_t i = 0; i < d->n_acquired; i++)
        if (d->acquired[i].block == block && (time < d->acquired[i].time || who == d->acquired[i].lane))
            return 1;
    return 0;
}

/* ---- faults ------------------------------------------------------------------------------------------------------------------------ */

static void describe_who(const simt_device *d, uint32_t stamp, char *text, size_t size)
{
    const uint32_t who = stamp_who(stamp);
    char block[64] = "";
    if (stamp_time(stamp) < d->block_time)
        snprintf(block, sizeof block, " of another block");
    if (who < LANES_MAX)
        snprintf(text, size, "lane %u%s", who, block);
    else if (who == WHO_ATOMIC)
        snprintf(text, size, "an atomic%s", block);
    else if (who == WHO_MANY)
        snprintf(text, size, "several lanes%s", block);
    else
        snprintf(text, size, "several lanes of warp %u%s", who - WHO_WARP, block);
}

static void describe_place(const simt_device *d, size_t at, char *text, size_t size)
{
    if (at < SHARED_BYTES) {
        if (at < SHARED_STATIC_BYTES)
            snprintf(text, size, "byte %zu of static shared memory", at);
        else
            snprintf(text, size, "byte %zu of dynamic shared memory", at - SHARED_STATIC_BYTES);
        return;
    }
    const size_t i = find(d, at);
    if (i < d->n_allocations) {
        const allocation *a = &d->allocations[i];
        if (at < a->at + a->size_bytes) {
            snprintf(text, size, "byte %zu of '%s'", at - a->at, a->name);
            return;
        }
        if (i + 1 == d->n_allocations || d->allocations[i + 1].at - at > at - (a->at + a->size_bytes)) {
            snprintf(text, size, "%zu bytes past the end of '%s'", at - (a->at + a->size_bytes), a->name);
            return;
        }
    }
    const size_t next = i == d->n_allocations ? 0 : i + 1;
    if (next < d->n_allocations)
        snprintf(text, size, "%zu bytes before '%s'", d->allocations[next].at - at, d->allocations[next].name);
    else
        snprintf(text, size, "address %p", (void *)(d->view + at));
}

static _Noreturn void raise_race(const simt_device *d, size_t at, const char *verb, uint32_t other, const char *other_verb, const char *site)
{
    char place[128], who[96];
    describe_place(d, at, place, sizeof place);
    describe_who(d, other, who, sizeof who);
    simt_raise(SIMT_RACE, site, "%s %s, which %s %s with nothing between them", verb, place, who, other_verb);
}

static _Noreturn void raise_place(const simt_device *d, simt_fault fault, size_t at, size_t size_bytes, const char *verb, const char *why, const char *site)
{
    char place[128];
    describe_place(d, at, place, sizeof place);
    simt_raise(fault, site, "%s %zu bytes at %s%s", verb, size_bytes, place, why);
}

/* ---- accesses ---------------------------------------------------------------------------------------------------------------------- */

/* The stamp of a byte that has none of its own yet. */
static uint32_t first_stamp(simt_device *d, size_t at, size_t size_bytes, const char *verb, const char *site)
{
    const size_t i = find(d, at);
    if (i == d->n_allocations || at - d->allocations[i].at >= d->allocations[i].size_bytes)
        raise_place(d, SIMT_OUT_OF_BOUNDS, at, size_bytes, verb, "", site);
    return d->wrote[at] = d->allocations[i].stamp;
}

static inline size_t offset_of(const simt_device *d, const volatile void *at, size_t size_bytes, const char *verb, int is_shared, const char *site)
{
    const size_t offset = (size_t)((uintptr_t)at - (uintptr_t)d->view);
    if (offset >= d->size_bytes || (offset < SHARED_BYTES) != (is_shared != 0))
        simt_raise(SIMT_OUT_OF_BOUNDS, site, "%s %zu bytes at %p, which is no %s address", verb, size_bytes, (void *)(uintptr_t)at, is_shared ? "shared" : "global");
    if (offset % (size_bytes < 16 ? size_bytes : 16) != 0)
        raise_place(d, SIMT_MISALIGNED, offset, size_bytes, verb, ", which is not a multiple of them", site);
    return offset;
}

static inline uint32_t my_stamp(const simt_device *d) { return stamp_make(d->now, d->me); }

/* The reader's stamp after one more reader. */
static inline uint32_t joined(const simt_device *d, uint32_t before, int is_shared)
{
    const uint32_t who = stamp_who(before);
    if (before == 0 || who == d->me || is_past(d, before, is_shared))
        return my_stamp(d);
    if (is_shared && group_is_used && (who < LANES_MAX ? who / d->kernel->warp : who - WHO_WARP) != d->my_warp)
        return my_stamp(d);   /* executor_group.c remembers other warps' */
    if (who < LANES_MAX ? who / d->kernel->warp == d->my_warp : who == WHO_WARP + d->my_warp)
        return stamp_make(d->now, stamp_time(before) >= d->block_time ? WHO_WARP + d->my_warp : WHO_MANY);
    return stamp_make(d->now, WHO_MANY);
}

static inline void read_byte(simt_device *d, size_t at, size_t size_bytes, int is_shared, const char *site)
{
    uint32_t stamp = d->wrote[at];
    if (!is_shared) {
        if (stamp == STAMP_CONST)
            return;
        if (stamp == 0 && (stamp = first_stamp(d, at, size_bytes, "reads", site)) == STAMP_CONST)
            return;
    }
    if (!(stamp & STAMP_WRITTEN) || (is_shared && stamp_time(stamp) < d->block_time))
        raise_place(d, SIMT_UNWRITTEN, at, size_bytes, "reads", ", which nobody has written", site);
    if (!is_past(d, stamp, is_shared))
        raise_race(d, at, "reads", stamp, "has written", site);
    d->read[at] = joined(d, d->read[at], is_shared);
}

static inline void write_byte(simt_device *d, size_t at, size_t size_bytes, int is_shared, int is_atomic, const char *site)
{
    uint32_t stamp = d->wrote[at];
    if (!is_shared) {
        if (stamp == 0)
            stamp = first_stamp(d, at, size_bytes, "writes", site);
        if (stamp == STAMP_CONST)
            raise_place(d, SIMT_READ_ONLY, at, size_bytes, "writes", ", which is read-only", site);
    }
    if (!(is_atomic && stamp_who(stamp) == WHO_ATOMIC) && !is_past(d, stamp, is_shared))
        raise_race(d, at, "writes", stamp, "has written", site);
    if (d->read[at] != 0 && !is_past(d, d->read[at], is_shared) &&
        !(is_shared && group_is_used && (stamp_who(d->read[at]) < LANES_MAX ? stamp_who(d->read[at]) / d->kernel->warp : stamp_who(d->read[at]) - WHO_WARP) != d->my_warp))
        raise_race(d, at, "writes", d->read[at], "has read", site);
    d->wrote[at] = STAMP_WRITTEN | (is_atomic ? stamp_make(d->now, WHO_ATOMIC) : my_stamp(d));
}

/* Whether all bytes of an access have one history, so that a look at the first tells of all. */
static inline int is_alike(const uint32_t *stamp, size_t n)
{
    uint32_t other = 0;
    for (size_t i = 1; i < n; i++)
        other |= stamp[i] ^ stamp[0];
    return other == 0;
}

static inline void spread(uint32_t *stamp, size_t n)
{
    for (size_t i = 1; i < n; i++)
        stamp[i] = stamp[0];
}

static inline void read_bytes(simt_device *d, size_t at, size_t size_bytes, int is_shared, const char *site)
{
    if (d->wrote[at] != 0 && is_alike(d->wrote + at, size_bytes) && is_alike(d->read + at, size_bytes)) {
        read_byte(d, at, size_bytes, is_shared, site);
        spread(d->read + at, size_bytes);
        return;
    }
    for (size_t i = 0; i < size_bytes; i++)
        read_byte(d, at + i, size_bytes, is_shared, site);
}

static inline void write_bytes(simt_device *d, size_t at, size_t size_bytes, int is_shared, const char *site)
{
    if (d->wrote[at] != 0 && is_alike(d->wrote + at, size_bytes) && is_alike(d->read + at, size_bytes)) {
        write_byte(d, at, size_bytes, is_shared, 0, site);
        spread(d->wrote + at, size_bytes);
        return;
    }
    for (size_t i = 0; i < size_bytes; i++)
        write_byte(d, at + i, size_bytes, is_shared, 0, site);
}

void *oct__simt_read(const volatile void *at, size_t size_bytes, const char *site)
{
    simt_device *d = simt_running;
    const size_t offset = offset_of(d, at, size_bytes, "reads", 0, site);
    read_bytes(d, offset, size_bytes, 0, site);
    return d->bytes + offset;
}

void *oct__simt_write(const volatile void *at, size_t size_bytes, const char *site)
{
    simt_device *d = simt_running;
    const size_t offset = offset_of(d, at, size_bytes, "writes", 0, site);
    write_bytes(d, offset, size_bytes, 0, site);
    return d->bytes + offset;
}

static inline size_t shared_offset(simt_device *d, const volatile void *at, size_t size_bytes, const char *verb, const char *site)
{
    const size_t offset = offset_of(d, at, size_bytes, verb, 1, site);
    if (offset >= SHARED_STATIC_BYTES) {
        if (offset + size_bytes > SHARED_STATIC_BYTES + (size_t)d->dynamic_shared_bytes)
            raise_place(d, SIMT_OUT_OF_BOUNDS, offset, size_bytes, verb, ", beyond what the launch gave", site);
        return offset;
    }
    for (uint32_t i = 0; i < d->n_arrays; i++)
        if (offset >= d->arrays[i].at && offset + size_bytes <= (size_t)d->arrays[i].at + d->arrays[i].size_bytes)
            return offset;
    raise_place(d, SIMT_OUT_OF_BOUNDS, offset, size_bytes, verb, ", outside of every array", site);
}

void *oct__simt_shared_read(const volatile void *at, size_t size_bytes, const char *site)
{
    simt_device *d = simt_running;
    const size_t offset = shared_offset(d, at, size_bytes, "reads", site);
    read_bytes(d, offset, size_bytes, 1, site);
    if (group_is_used)
        group_read(d, offset, size_bytes);
    return d->bytes + offset;
}

void *oct__simt_shared_write(const volatile void *at, size_t size_bytes, const char *site)
{
    simt_device *d = simt_running;
    const size_t offset = shared_offset(d, at, size_bytes, "writes", site);
    write_bytes(d, offset, size_bytes, 1, site);
    const int reader = group_is_used ? group_reader(d, offset, size_bytes) : -1;
    if (reader >= 0)
        raise_race(d, offset, "writes", stamp_make(d->now, (uint32_t)reader), "has read", site);
    return d->bytes + offset;
}

/* ---- atomics ----------------------------------------------------------------------------------------------------------------------- */

static release *push(release **list, size_t *n, size_t *room)
{
    if (*n == *room) {
        *room = *room * 2 + 64;
        release *grown = realloc(*list, *room * sizeof *grown);
        if (grown == NULL)
            abort();
        *list = grown;
    }
    return &(*list)[(*n)++];
}

/* Releases what this block did before its last barrier and what this lane did at all; acquires what earlier blocks released here. */
static void acquire_release(simt_device *d, size_t at)
{
    for (size_t i = 0; i < d->n_releases; i++)
        if (d->releases[i].at == at)
            *push(&d->acquired, &d->n_acquired, &d->acquired_room) = d->releases[i];
    *push(&d->releases, &d->n_releases, &d->releases_room) =
        (release){ at, d->n_block_times - 1, d->barrier_time, (uint32_t)(d->self - d->lanes) };
}

uint64_t oct__simt_atomic_run(oct__simt_atomic op, volatile void *at, uint64_t value, const char *site)
{
    simt_device *d = simt_running;
    const int is_shared = op == OCT__SIMT_OR_U32_SHARED;
    const size_t size_bytes = op == OCT__SIMT_ADD_U64 ? 8 : 4;
    const size_t offset = is_shared ? shared_offset(d, at, size_bytes, "changes", site) : offset_of(d, at, size_bytes, "changes", 0, site);
    uint64_t old64 = 0;
    uint32_t old32 = 0;
    for (size_t i = 0; i < size_bytes; i++) {
        const uint32_t stamp = d->wrote[offset + i] != 0 || is_shared ? d->wrote[offset + i] : first_stamp(d, offset + i, size_bytes, "changes", site);
        if (!(stamp & STAMP_WRITTEN) || (is_shared && stamp_time(stamp) < d->block_time))
            raise_place(d, SIMT_UNWRITTEN, offset + i, size_bytes, "changes", ", which nobody has written", site);
        write_byte(d, offset + i, size_bytes, is_shared, 1, site);
    }
    if (size_bytes == 8) {
        memcpy(&old64, d->bytes + offset, 8);
        const uint64_t new64 = old64 + value;
        memcpy(d->bytes + offset, &new64, 8);
        return old64;
    }
    memcpy(&old32, d->bytes + offset, 4);
    const uint32_t v = (uint32_t)value;
    const uint32_t new32 = op == OCT__SIMT_MAX_U32 ? (v > old32 ? v : old32) : op == OCT__SIMT_OR_U32_SHARED ? old32 | v : old32 + v;
    memcpy(d->bytes + offset, &new32, 4);
    if (op == OCT__SIMT_ADD_ACQ_REL_U32)
        acquire_release(d, offset);
    return old32;
}

/* ---- shared arrays -------------------------------------------------------------------------------------------------------------------- */

void *oct__simt_shared(size_t size_bytes, const char *site)
{
    simt_device *d = simt_running;
    const uint32_t i = d->self->n_shared++;
    if (i < d->n_arrays) {
        if (d->arrays[i].site != site || d->arrays[i].size_bytes != size_bytes)
            simt_raise(SIMT_BAD_LAUNCH, site, "asks for shared arrays in another order than the lanes before it");
        return d->view + d->arrays[i].at;
    }
    const shared_array *last = i > 0 ? &d->arrays[i - 1] : NULL;
    const size_t at = last == NULL ? 0 : round_up((size_t)last->at + last->size_bytes + SHARED_GAP_BYTES, 16);
    size_t used = d->dynamic_shared_bytes + size_bytes;
    for (uint32_t j = 0; j < i; j++)
        used += d->arrays[j].size_bytes;
    if (i >= SHARED_ARRAYS || at + size_bytes > SHARED_STATIC_BYTES || used > d->shared_limit_bytes)
        simt_raise(SIMT_BAD_LAUNCH, site, "asks for more shared memory than a block may have (%zu of %u bytes)", used, d->shared_limit_bytes);
    d->arrays[d->n_arrays++] = (shared_array){ (uint32_t)at, (uint32_t)size_bytes, site };
    return d->view + at;
}

void *oct__simt_shared_dynamic(void)
{
    return simt_running->view + SHARED_STATIC_BYTES;
}
