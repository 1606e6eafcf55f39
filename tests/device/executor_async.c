/* executor_async.c: copies from global to shared memory that run by themselves (src/cuda/simt_sm90a.h). A lane's copies land when it waits for their
 * group, not before: until then their place counts as not written, and whoever still reads it when they are asked for is in a race. */
#include "device/executor_group.h"

#include <string.h>

#include "cuda/simt_sm90a.h"

enum { COPIES_MAX = 256, LANES = 512, CHUNK_BYTES = 16 };

typedef struct copy { shared_at at; uint32_t group; unsigned char bytes[CHUNK_BYTES]; const char *site; } copy;

/* Of the block that runs; a lane's copies in order. */
static struct queue { copy copies[COPIES_MAX]; uint32_t n, group, ended; } queues[LANES];
static uint64_t queues_block;
static uint32_t queues_time;

static struct queue *own_queue(const char *site)
{
    const simt_device *d = simt_running;
    if (queues_block != d->block || queues_time != d->block_time) {
        uint32_t left = 0;
        for (uint32_t i = 0; i < LANES; i++) {
            left += queues[i].n;
            queues[i].n = queues[i].group = 0;
        }
        queues_block = d->block;
        queues_time = d->block_time;
        if (left > 0)
            simt_raise(SIMT_RACE, site, "%u copies of the block before were never waited for", left);
    }
    if (d->me >= LANES)
        simt_raise(SIMT_BAD_LAUNCH, site, "the model of copies holds %d lanes", LANES);
    return &queues[d->me];
}

void oct__simt_async_load(shared_at at, const void *from, uint32_t bytes, const char *site)
{
    simt_device *d = simt_running;
    struct queue *q = own_queue(site);
    unsigned char *place = oct__shared_place(at);
    if (((uintptr_t)from & 15) != 0 || (bytes != 0 && bytes != 8 && bytes != 16))
        simt_raise(SIMT_MISALIGNED, site, "copies %u bytes from %p", bytes, (void *)(uintptr_t)from);
    if (q->n == COPIES_MAX)
        simt_raise(SIMT_BAD_LAUNCH, site, "more than %d copies of a lane on their way", COPIES_MAX);
    copy *c = &q->copies[q->n++];
    *c = (copy){ .at = at, .group = q->group, .site = site };
    if (bytes > 0)
        memcpy(c->bytes, oct__simt_read(from, bytes, site), bytes);
    (void)oct__simt_shared_write(place, CHUNK_BYTES, site);
    memset(d->wrote + (place - d->view), 0, CHUNK_BYTES * sizeof *d->wrote);
}

void oct__simt_async_commit(void)
{
    own_queue("commit")->group++;
}

void oct__simt_async_wait(uint32_t n, const char *site)
{
    struct queue *q = own_queue(site);
    uint32_t done = 0;
    for (; done < q->n && q->copies[done].group + n < q->group; done++)
        memcpy(oct__simt_shared_write(oct__shared_place(q->copies[done].at), CHUNK_BYTES, q->copies[done].site), q->copies[done].bytes, CHUNK_BYTES);
    memmove(q->copies, q->copies + done, (q->n - done) * sizeof *q->copies);
    q->n -= done;
}

uint32_t async_queue_length(uint32_t lane)
{
    return queues[lane].n;
}

void async_land(simt_device *device, uint32_t lane, uint32_t n)
{
    struct queue *q = &queues[lane];
    const uint32_t me = device->me, my_warp = device->my_warp;
    device->me = lane;
    device->my_warp = lane / 32;
    for (uint32_t i = 0; i < n; i++)
        memcpy(oct__simt_shared_write(oct__shared_place(q->copies[i].at), CHUNK_BYTES, q->copies[i].site), q->copies[i].bytes, CHUNK_BYTES);
    device->me = me;
    device->my_warp = my_warp;
    memmove(q->copies, q->copies + n, (q->n - n) * sizeof *q->copies);
    q->n -= n;
}
