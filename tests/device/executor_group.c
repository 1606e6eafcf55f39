/* executor_group.c: barriers in shared memory and named ones, and who sees what by them: see executor_group.h. A lane that waits stops; its warp goes on
 * once the phase is complete. Copies whose arrival a barrier counts (bar_arrive_loaded) land no sooner than somebody waits for it. */
#include "device/executor_group.h"

#include <stdlib.h>
#include <string.h>

#include "cuda/simt_group_sm90a.h"

enum { LANES = 512, WARPS = LANES / 32, BARS = 32, NAMED = 16, PENDING = 1024, BULKS = 64, GRANULE_BYTES = 16, GRANULES = SHARED_BYTES / GRANULE_BYTES,
       MULTIPROCESSOR_REGISTERS = 65536 };

typedef struct pending { uint32_t lane, n; } pending;

/* A copy of the copy engine on its way: of the lane and the time that asked for it. */
typedef struct bulk { shared_at at; uint32_t bytes, lane, time; unsigned char *data; } bulk;

/* missing: bytes of bulk copies that the phase still expects. released: what those who have arrived so far make known; complete: what it was when the last phase ended. */
typedef struct bar {
    shared_at at;
    uint32_t expected, left, parity, n_pending, n_bulks;
    int64_t missing;
    pending pending[PENDING];
    bulk bulks[BULKS];
    uint32_t released[LANES], complete[LANES];
} bar;

static bar bars[BARS];
static uint32_t n_bars;
static struct named { uint32_t count, turn, here[WARPS], released[LANES], complete[LANES]; } named[NAMED];   /* here: lanes of a warp that has not arrived */

/* [lane][other]: the lane sees what the other did before that time; the same as its last proxy_fence found it. */
static uint32_t known[LANES][LANES], fenced[LANES][LANES], fence_time[LANES];
static uint32_t read_by[GRANULES][WARPS], of_engine[GRANULES];   /* of_engine: the stamp with which the copy engine wrote last */

/* Registers that lanes have asked for (setmaxnreg); 0: none yet. */
static uint32_t asked[LANES];

/* What each stopped lane waits for. */
static struct wait { bar *bar; struct named *named; uint32_t value; } waits[LANES];

int group_is_used;

void group_begin_block(simt_device *device)
{
    (void)device;
    group_is_used = 0;
    for (uint32_t i = 0; i < n_bars; i++)
        for (uint32_t j = 0; j < bars[i].n_bulks; j++)
            free(bars[i].bulks[j].data);
    n_bars = 0;
    wgmma_begin_block();
}

static void use(const simt_device *d, const char *site)
{
    if (d->kernel->threads > LANES || d->kernel->warp != 32)
        simt_raise(SIMT_BAD_LAUNCH, site, "the model of barriers holds %d lanes in warps of 32", LANES);
    if (group_is_used)
        return;
    group_is_used = 1;
    memset(known, 0, sizeof known);
    memset(fenced, 0, sizeof fenced);
    memset(fence_time, 0, sizeof fence_time);
    memset(read_by, 0, sizeof read_by);
    memset(of_engine, 0, sizeof of_engine);
    memset(named, 0, sizeof named);
    memset(asked, 0, sizeof asked);
}

/* Time begins anew: all that has been is seen by all, and fenced. */
void group_rewind(void)
{
    for (uint32_t l = 0; l < LANES; l++) {
        fence_time[l] = 2;
        for (uint32_t other = 0; other < LANES; other++)
            known[l][other] = fenced[l][other] = 2;
    }
    memset(read_by, 0, sizeof read_by);
    memset(of_engine, 0, sizeof of_engine);   /* those stamps are of lane 0 and fenced now */
    for (uint32_t i = 0; i < n_bars; i++) {
        for (uint32_t j = 0; j < bars[i].n_bulks; j++)
            bars[i].bulks[j].time = 1;
        memset(bars[i].released, 0, sizeof bars[i].released);
        memset(bars[i].complete, 0, sizeof bars[i].complete);
    }
    for (uint32_t i = 0; i < NAMED; i++) {
        memset(named[i].released, 0, sizeof named[i].released);
        memset(named[i].complete, 0, sizeof named[i].complete);
    }
}

static uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* ---- who sees what ------------------------------------------------------------------------------------------------------------------ */

int group_sees(const simt_device *device, uint32_t lane, uint32_t time)
{
    return lane == device->me || time < known[device->me][lane] || (lane / 32 == device->my_warp && time < device->warp_time[device->my_warp]);
}

void group_join_warp(simt_device *device)
{
    const uint32_t first = device->warp * 32, n = device->kernel->threads;
    for (uint32_t other = 0; other < n; other++) {
        uint32_t most = 0;
        for (uint32_t l = first; l < first + 32; l++)
            most = larger(most, known[l][other]);
        for (uint32_t l = first; l < first + 32; l++)
            known[l][other] = most;
    }
}

/* Whatever the lane sees now goes into `released`. */
static void release_clock(simt_device *d, uint32_t lane, uint32_t *released)
{
    simt_tick(d);
    for (uint32_t i = 0; i < d->kernel->threads; i++)
        released[i] = larger(released[i], known[lane][i]);
    for (uint32_t i = lane / 32 * 32; i < lane / 32 * 32 + 32; i++)
        released[i] = larger(released[i], d->warp_time[lane / 32]);
    released[lane] = d->now;
}

static void acquire_clock(const simt_device *d, uint32_t lane, const uint32_t *complete)
{
    for (uint32_t i = 0; i < d->kernel->threads; i++)
        known[lane][i] = larger(known[lane][i], complete[i]);
}

void group_read(simt_device *device, size_t at, size_t size_bytes)
{
    for (size_t g = at / GRANULE_BYTES; g <= (at + size_bytes - 1) / GRANULE_BYTES; g++)
        read_by[g][device->my_warp] = device->now;
}

int group_reader(const simt_device *device, size_t at, size_t size_bytes)
{
    for (size_t g = at / GRANULE_BYTES; g <= (at + size_bytes - 1) / GRANULE_BYTES; g++)
        for (uint32_t w = 0; w < device->kernel->threads / 32; w++) {
            const uint32_t time = read_by[g][w];
            if (w == device->my_warp || time < device->barrier_time)
                continue;
            for (uint32_t l = 32 * w; l < 32 * w + 32; l++)
                if (time >= known[device->me][l])
                    return (int)l;
        }
    return -1;
}

void oct__simt_proxy_fence(void)
{
    simt_device *d = simt_running;
    use(d, "proxy_fence");
    simt_tick(d);
    fence_time[d->me] = d->now;
    memcpy(fenced[d->me], known[d->me], sizeof fenced[0]);
}

int group_is_fenced(const simt_device *device, uint32_t reader, uint32_t writer, uint32_t time)
{
    (void)device;
    return fence_time[writer] > time || time < fenced[reader][writer];
}

/* ---- barriers ------------------------------------------------------------------------------------------------------------------------- */

static bar *find_bar(shared_at at, const char *site)
{
    for (uint32_t i = 0; i < n_bars; i++)
        if (bars[i].at == at)
            return &bars[i];
    simt_raise(SIMT_UNWRITTEN, site, "there is no barrier at byte %u of dynamic shared memory", at);
}

void oct__simt_bar_init(shared_at at, uint32_t n, const char *site)
{
    simt_device *d = simt_running;
    use(d, site);
    if (n_bars == BARS || at % 8 != 0 || n == 0)
        simt_raise(SIMT_BAD_LAUNCH, site, "no barrier of %u arrivals at byte %u", n, at);
    (void)oct__simt_shared_write(oct__shared_place(at), 8, site);
    bar *b = &bars[n_bars++];
    b->at = at;
    b->expected = b->left = n;
    b->parity = b->n_pending = b->n_bulks = 0;
    b->missing = 0;
    memset(b->released, 0, sizeof b->released);
    memset(b->complete, 0, sizeof b->complete);
}

static void end_phase(bar *b)
{
    if (b->left == 0 && b->missing == 0) {
        b->left = b->expected;
        b->parity ^= 1;
        memcpy(b->complete, b->released, sizeof b->complete);
    }
}

static void arrive(simt_device *d, bar *b, uint32_t lane, const char *site)
{
    if (b->left == 0)
        simt_raise(SIMT_RACE, site, "more arrivals than the barrier at byte %u has in a phase", b->at);
    release_clock(d, lane, b->released);
    b->left--;
    end_phase(b);
}

void oct__simt_bar_arrive(shared_at at, uint32_t is_loaded, const char *site)
{
    simt_device *d = simt_running;
    bar *b = find_bar(at, site);
    if (!is_loaded) {
        arrive(d, b, d->me, site);
        return;
    }
    if (b->n_pending == PENDING)
        simt_raise(SIMT_BAD_LAUNCH, site, "more than %d arrivals on their way", PENDING);
    b->pending[b->n_pending++] = (pending){ d->me, async_queue_length(d->me) };
}

int group_is_of_engine(size_t at, uint32_t stamp) { return of_engine[at / GRANULE_BYTES] == stamp; }

/* Bulk copies count as written when they were asked for: whoever sees the arrival that followed sees them, once they are there. */
static void land_bulks(simt_device *d, bar *b)
{
    for (uint32_t i = 0; i < b->n_bulks; i++) {
        const bulk *c = &b->bulks[i];
        const uint32_t stamp = STAMP_WRITTEN | stamp_make(c->time, c->lane);
        const size_t place = (size_t)((unsigned char *)oct__shared_place(c->at) - d->view);
        memcpy(d->bytes + place, c->data, c->bytes);
        for (uint32_t byte = 0; byte < c->bytes; byte++) {
            d->wrote[place + byte] = stamp;
            of_engine[(place + byte) / GRANULE_BYTES] = stamp;
        }
        b->missing -= c->bytes;
        free(c->data);
    }
    if (b->n_bulks > 0) {
        b->n_bulks = 0;
        end_phase(b);
    }
}

static void land_all(simt_device *d, bar *b)
{
    for (uint32_t i = 0; i < b->n_pending; i++) {
        const pending p = b->pending[i];
        async_land(d, p.lane, p.n);
        for (uint32_t other = 0; other < n_bars; other++)   /* those that count the same lane's copies from its queue's front */
            for (uint32_t j = other == (uint32_t)(b - bars) ? i + 1 : 0; j < bars[other].n_pending; j++)
                if (bars[other].pending[j].lane == p.lane)
                    bars[other].pending[j].n -= bars[other].pending[j].n < p.n ? bars[other].pending[j].n : p.n;
        arrive(d, b, p.lane, "copies");
    }
    b->n_pending = 0;
    land_bulks(d, b);
}

void oct__simt_bar_expect(shared_at at, uint32_t bytes, const char *site)
{
    bar *b = find_bar(at, site);
    b->missing += bytes;
    arrive(simt_running, b, simt_running->me, site);
}

void oct__simt_bulk_load(shared_at at, const void *from, uint32_t bytes, shared_at bar_at, const char *site)
{
    simt_device *d = simt_running;
    bar *b = find_bar(bar_at, site);
    if (((uintptr_t)from | at | bytes) % GRANULE_BYTES != 0 || bytes == 0)
        simt_raise(SIMT_MISALIGNED, site, "the copy engine brings %u bytes from %p to byte %u", bytes, (void *)(uintptr_t)from, at);
    if (b->n_bulks == BULKS)
        simt_raise(SIMT_BAD_LAUNCH, site, "more than %d bulk copies of a barrier on their way", BULKS);
    bulk *c = &b->bulks[b->n_bulks++];
    *c = (bulk){ at, bytes, d->me, 0, malloc(bytes) };
    for (uint32_t i = 0; i < bytes; i += GRANULE_BYTES) {
        unsigned char *place = oct__shared_place(at + i);
        memcpy(c->data + i, oct__simt_read((const unsigned char *)from + i, GRANULE_BYTES, site), GRANULE_BYTES);
        (void)oct__simt_shared_write(place, GRANULE_BYTES, site);   /* whoever still reads there is in a race */
        memset(d->wrote + (place - d->view), 0, GRANULE_BYTES * sizeof *d->wrote);
    }
    c->time = d->now;
}

static void stop_for(simt_device *d, bar *b, struct named *n, uint32_t value, const char *site)
{
    waits[d->me].bar = b;
    waits[d->me].named = n;
    waits[d->me].value = value;
    d->self->site = site;
    simt_wait(d);
}

void oct__simt_bar_wait(shared_at at, uint32_t parity, const char *site)
{
    stop_for(simt_running, find_bar(at, site), NULL, parity, site);
}

void oct__simt_named_sync(uint32_t id, uint32_t n, const char *site)
{
    simt_device *d = simt_running;
    use(d, site);
    if (id == 0 || id >= NAMED || n % 32 != 0)
        simt_raise(SIMT_BAD_LAUNCH, site, "no barrier %u of %u lanes", id, n);
    struct named *at = &named[id];
    const uint32_t turn = at->turn;
    if (++at->here[d->my_warp] == 32) {   /* bar.sync: lanes wait for their warp, which arrives as one; so all that its lanes did lies before */
        at->here[d->my_warp] = 0;
        for (uint32_t l = d->my_warp * 32; l < d->my_warp * 32 + 32; l++)
            release_clock(d, l, at->released);
        at->count += 32;
    }
    if (at->count == n) {
        at->count = 0;
        at->turn++;
        memcpy(at->complete, at->released, sizeof at->complete);
    }
    stop_for(d, NULL, at, turn, site);
}

/* A block has the registers that it began with, a multiple of 8 for each lane of as many as a multiprocessor has; who asks for more waits for ever. */
void oct__simt_registers(uint32_t n, const char *site)
{
    simt_device *d = simt_running;
    const uint32_t lanes = d->kernel->threads, each = MULTIPROCESSOR_REGISTERS / lanes / 8 * 8;
    uint32_t sum = 0, n_asked = 0;
    use(d, site);
    asked[d->me] = n;
    for (uint32_t l = 0; l < lanes; l++) {
        sum += asked[l];
        n_asked += asked[l] > 0;
    }
    if (n % 8 != 0 || n < 24 || n > 256 || (n_asked == lanes && sum > lanes * each))
        simt_raise(SIMT_BAD_LAUNCH, site, "%u registers a lane: the block's lanes ask for %u and began with %u", n, sum, lanes * each);
}

int group_may_pass(simt_device *device, uint32_t first_lane)
{
    int may = 1;
    for (uint32_t l = first_lane; l < first_lane + 32; l++) {
        const struct wait *w = &waits[l];
        if (w->bar != NULL) {
            if (w->bar->parity == w->value && w->bar->n_pending + w->bar->n_bulks > 0)
                land_all(device, w->bar);
            may &= w->bar->parity != w->value;
        } else {
            may &= w->named->turn != w->value;
        }
    }
    for (uint32_t l = first_lane; may && l < first_lane + 32; l++)
        acquire_clock(device, l, waits[l].bar != NULL ? waits[l].bar->complete : waits[l].named->complete);
    return may;
}
