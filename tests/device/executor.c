/* executor.c: runs the lanes of a block in turn. A lane runs until it must wait; then the next lane of its warp does, and when none can, the
 * one that stopped last settles the warp: all at the same warp operation, all at the barrier, all done, or a fault. */
#define _GNU_SOURCE
#include "device/executor_group.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STACK_BYTES = 256 * 1024 };
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
enum { STACK_BYTES = 256 * 1024 };
#else
enum { STACK_BYTES = 64 * 1024 };
#endif
#else
enum { STACK_BYTES = 64 * 1024 };
#endif
enum { GUARD_BYTES = 4096 };

uint32_t simt_units(const simt_device *device)
{
    (void)device;
    return 3;
}

const char *simt_fault_name(simt_fault fault)
{
    switch (fault) {
    case SIMT_OK: return "ok";
    case SIMT_BAD_LAUNCH: return "bad launch";
    case SIMT_DIVERGENT_WARP: return "divergent warp operation";
    case SIMT_DIVERGENT_BARRIER: return "divergent barrier";
    case SIMT_OUT_OF_BOUNDS: return "out of bounds";
    case SIMT_READ_ONLY: return "write to read-only memory";
    case SIMT_MISALIGNED: return "misaligned";
    case SIMT_UNWRITTEN: return "read of unwritten memory";
    case SIMT_RACE: return "race";
    default: return "access around GET and PUT";
    }
}

/* ---- faults ------------------------------------------------------------------------------------------------------------------- */

static void report_v(simt_device *d, simt_fault fault, uint32_t at_lane, const char *site, const char *form, va_list args)
{
    simt_report *r = d->report;
    char what[320];
    vsnprintf(what, sizeof what, form, args);
    r->fault = fault;
    r->block = d->block;
    r->lane = at_lane;
    snprintf(r->text, sizeof r->text, "%s (warp %u), block %llu, lane %u: %s: %s [%s]", d->kernel->name, d->kernel->warp, (unsigned long long)d->block, at_lane,
             simt_fault_name(fault), what, site);
}

static void __attribute__((format(printf, 5, 6))) report(simt_device *d, simt_fault fault, uint32_t at_lane, const char *site, const char *form, ...)
{
    va_list args;
    va_start(args, form);
    report_v(d, fault, at_lane, site, form, args);
    va_end(args);
}

void simt_raise(simt_fault fault, const char *site, const char *form, ...)
{
    simt_device *d = simt_running;
    va_list args;
    va_start(args, form);
    report_v(d, fault, (uint32_t)(d->self - d->lanes), site, form, args);
    va_end(args);
    fiber_switch(&d->self->fiber, &d->main, 1);
    abort();
}

/* ---- meetings ------------------------------------------------------------------------------------------------------------------ */

/* Floats are added in the order of a butterfly, as the GPU shims do. */
static void reduce_f32(lane *lanes, uint32_t warp, int is_max)
{
    float a[64], b[64];
    for (uint32_t i = 0; i < warp; i++)
        a[i] = *(const float *)lanes[i].v;
    for (uint32_t mask = warp / 2; mask > 0; mask /= 2) {
        for (uint32_t i = 0; i < warp; i++)
            b[i] = is_max ? max_f32(a[i], a[i ^ mask]) : a[i] + a[i ^ mask];
        memcpy(a, b, sizeof a);
    }
    for (uint32_t i = 0; i < warp; i++)
        *(float *)lanes[i].v = a[i];
}

static void reduce_u32(lane *lanes, uint32_t warp, int is_any)
{
    uint32_t sum = 0;
    for (uint32_t i = 0; i < warp; i++)
        sum = is_any ? sum | *(const uint32_t *)lanes[i].v : sum + *(const uint32_t *)lanes[i].v;
    for (uint32_t i = 0; i < warp; i++)
        *(uint32_t *)lanes[i].v = sum;
}

static void exchange(lane *lanes, uint32_t warp)
{
    uint32_t all[64];
    for (uint32_t i = 0; i < warp; i++)
        memcpy(&all[i], lanes[i].v, sizeof all[i]);
    for (uint32_t i = 0; i < warp; i++)
        memcpy(lanes[i].v, &all[(i ^ lanes[i].argument) % warp], sizeof all[i]);
}

/* Element e of a group of eight lanes goes to lane e / (n / 8); added in the order of simt_warp.h's three steps. */
static void group8(lane *lanes, uint32_t warp)
{
    const uint32_t n = lanes[0].n, own = n / 8;
    float out[8 * 64];
    for (uint32_t first = 0; first < warp; first += 8) {
        for (uint32_t e = 0; e < n; e++) {
            float v[8];
            const uint32_t to = e / own;
            for (uint32_t l = 0; l < 8; l++)
                v[l] = ((const float *)lanes[first + l].v)[e];
            for (uint32_t bit = 4; bit > 0; bit /= 2)
                for (uint32_t l = 0; l < 8; l++)
                    if ((l & bit) == (to & bit) && (l & (2 * bit) & 7) == (to & (2 * bit) & 7))
                        v[l] = v[l] + v[l ^ bit];
            out[e] = v[to];
        }
        for (uint32_t e = 0; e < n; e++)
            ((float *)lanes[first + e / own].v)[e % own] = out[e];
    }
}

/* Lane 4 g + c: columns 2c, 2c + 1 of row g in, rows 2c, 2c + 1 of column g out. */
static void transpose(lane *lanes)
{
    uint16_t matrix[8][8];
    for (uint32_t l = 0; l < 32; l++) {
        const uint32_t v = *(const uint32_t *)lanes[l].v;
        matrix[l / 4][2 * (l % 4)] = (uint16_t)v;
        matrix[l / 4][2 * (l % 4) + 1] = (uint16_t)(v >> 16);
    }
    for (uint32_t l = 0; l < 32; l++)
        *(uint32_t *)lanes[l].v = matrix[2 * (l % 4)][l / 4] | (uint32_t)matrix[2 * (l % 4) + 1][l / 4] << 16;
}

static float half_of(const uint32_t *words, uint32_t i, int is_bf16)
{
    const uint16_t code = (uint16_t)(words[i / 2] >> (16 * (i % 2)));
    return is_bf16 ? oct__bf16_to_f32(code) : oct__f16_to_f32(code);
}

/* D += A B by the fragment layouts of the instructions' own documents, written without tile.h: row and column of each element of a lane. */
static void multiply(lane *lanes, uint32_t warp, int is_bf16)
{
    const uint32_t n = warp == 32 ? 8 : 16;
    float a[16][16], b[16][16], d[16][16];
    for (uint32_t l = 0; l < warp; l++) {
        const oct__simt_mma *m = lanes[l].v;
        for (uint32_t i = 0; i < (warp == 32 ? 8u : 4u); i++) {
            /* m16n8k16, A: element i of 8 is at row l / 4 + 8 for i in 2, 3, 6, 7; column (l % 4) * 2 + i % 2, + 8 for i >= 4. */
            const uint32_t row = warp == 32 ? l / 4 + (i % 4 >= 2 ? 8 : 0) : l % 16;
            const uint32_t column = warp == 32 ? l % 4 * 2 + i % 2 + (i >= 4 ? 8 : 0) : l / 16 * 4 + i;
            a[row][column] = half_of(m->a, i, is_bf16);
        }
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t row = warp == 32 ? l % 4 * 2 + i % 2 + (i >= 2 ? 8 : 0) : l / 16 * 4 + i, column = warp == 32 ? l / 4 : l % 16;
            b[row][column] = half_of(m->b, i, is_bf16);
        }
        for (uint32_t i = 0; i < 4; i++)
            d[warp == 32 ? l / 4 + (i >= 2 ? 8 : 0) : l / 16 * 4 + i][warp == 32 ? l % 4 * 2 + i % 2 : l % 16] = m->d[i];
    }
    for (uint32_t row = 0; row < 16; row++)
        for (uint32_t column = 0; column < n; column++) {
            float sum = d[row][column];
            for (uint32_t k = 0; k < 16; k++)
                sum += a[row][k] * b[k][column];
            d[row][column] = sum;
        }
    for (uint32_t l = 0; l < warp; l++)
        for (uint32_t i = 0; i < 4; i++)
            ((oct__simt_mma *)lanes[l].v)->d[i] = d[warp == 32 ? l / 4 + (i >= 2 ? 8 : 0) : l / 16 * 4 + i][warp == 32 ? l % 4 * 2 + i % 2 : l % 16];
}

/* A code of the 8-bit floats that matrix units know. */
static float byte_of(const uint32_t *words, uint32_t i, int is_fnuz, int is_e5m2)
{
    const uint8_t code = (uint8_t)(words[i / 4] >> (8 * (i % 4)));
    if (!is_e5m2)
        return is_fnuz ? oct__e4m3fnuz_to_f32(code) : oct__e4m3fn_to_f32(code);
    if (!is_fnuz)
        return oct__e5m2_to_f32(code);
    /* e5m2fnuz: bias 16, no infinity, 0x80 is NaN. */
    const int exponent = code >> 2 & 31, mantissa = code & 3;
    const float size = exponent == 0 ? ldexpf((float)mantissa, -17) : ldexpf((float)(4 + mantissa), exponent - 18);
    return code == 0x80 ? NAN : code & 0x80 ? -size : size;
}

/* The same of 8-bit operands: m16n8k32, 16x16x32, and 16x16x128 of gfx950. is_i8: integers, whose sums stay below 2^24. */
static void multiply_8(lane *lanes, uint32_t warp, uint32_t kind, uint32_t n_k, int is_i8)
{
    static float a[16][128], b[16][128];   /* rows of A, columns of B */
    const int is_fnuz = kind & OCT__SIMT_IS_FNUZ, b_is_e5m2 = (kind & OCT__SIMT_B_IS_E5M2) != 0;
    const uint32_t n_a = 16 * n_k / warp, n_b = (warp == 32 ? 8 : 16) * n_k / warp;   /* elements of a lane */
    for (uint32_t l = 0; l < warp; l++) {
        const oct__simt_mma *m = lanes[l].v;
        /* m16n8k32: a word's bytes are neighbouring columns of A; the second word is eight rows down, the next two 16 columns on. */
        for (uint32_t i = 0; i < n_a; i++) {
            const uint32_t row = warp == 32 ? l / 4 + i / 4 % 2 * 8 : l % 16, column = warp == 32 ? l % 4 * 4 + i % 4 + i / 8 * 16 : l / 16 * n_a + i;
            a[row][column] = is_i8 ? (float)(int8_t)(m->a[i / 4] >> (8 * (i % 4))) : byte_of(m->a, i, is_fnuz, 0);
        }
        for (uint32_t i = 0; i < n_b; i++) {
            const uint32_t row = warp == 32 ? l % 4 * 4 + i % 4 + i / 4 * 16 : l / 16 * n_b + i, column = warp == 32 ? l / 4 : l % 16;
            b[column][row] = is_i8 ? (float)(int8_t)(m->b[i / 4] >> (8 * (i % 4))) : byte_of(m->b, i, is_fnuz, b_is_e5m2);
        }
    }
    for (uint32_t l = 0; l < warp; l++)
        for (uint32_t i = 0; i < 4; i++) {
            oct__simt_mma *m = lanes[l].v;
            const uint32_t row = warp == 32 ? l / 4 + (i >= 2 ? 8 : 0) : l / 16 * 4 + i, column = warp == 32 ? l % 4 * 2 + i % 2 : l % 16;
            float sum = is_i8 ? 0.0f : m->d[i];
            for (uint32_t k = 0; k < n_k; k++)
                sum += a[row][k] * b[column][k];
            if (is_i8)
                m->n[i] += (int32_t)sum;
            else
                m->d[i] = sum;
        }
}

static void settle_op(simt_device *d, lane *lanes)
{
    const uint32_t warp = d->kernel->warp;
    switch (lanes[0].op) {
    case OCT__SIMT_WARP_SYNC:
        simt_tick(d);
        d->warp_time[d->warp] = d->now;
        if (group_is_used)
            group_join_warp(d);
        break;
    case OCT__SIMT_MMA_FP8: multiply_8(lanes, warp, lanes[0].argument, 32, 0); break;
    case OCT__SIMT_MMA_FP8_WIDE: multiply_8(lanes, warp, 0, 128, 0); break;
    case OCT__SIMT_MMA_I8: multiply_8(lanes, warp, 0, 32, 1); break;
    case OCT__SIMT_XOR: exchange(lanes, warp); break;
    case OCT__SIMT_SUM_F32: reduce_f32(lanes, warp, 0); break;
    case OCT__SIMT_MAX_F32: reduce_f32(lanes, warp, 1); break;
    case OCT__SIMT_SUM_U32: reduce_u32(lanes, warp, 0); break;
    case OCT__SIMT_ANY: reduce_u32(lanes, warp, 1); break;
    case OCT__SIMT_GROUP8_SUM: group8(lanes, warp); break;
    case OCT__SIMT_TRANSPOSE: transpose(lanes); break;
    case OCT__SIMT_MMA_F16: multiply(lanes, warp, 0); break;
    case OCT__SIMT_MMA_BF16: multiply(lanes, warp, 1); break;
    case OCT__SIMT_WG_BEGIN:
    case OCT__SIMT_WG_MMA:
    case OCT__SIMT_WG_END:
    case OCT__SIMT_WG_WAIT:
        wgmma_settle(d, lanes[0].op, lanes[0].argument, lanes[0].site);
        break;
    }
}

static const char *state_text(const lane *l)
{
    return l->state == LANE_DONE ? "has ended" : l->site;
}

/* The warp's lanes have all stopped. 1: go on with them; 0: they wait for the block or have ended; -1: fault. */
static int settle_warp(simt_device *d)
{
    const uint32_t warp = d->kernel->warp, first = d->warp * warp;
    lane *lanes = d->lanes + first;
    uint32_t meets = warp;
    for (uint32_t i = 0; i < warp; i++)
        if (lanes[i].state == LANE_MEETS) {
            meets = i;
            break;
        }
    if (meets == warp) {
        uint32_t n_waits = 0;
        for (uint32_t i = 0; i < warp; i++)
            n_waits += lanes[i].state == LANE_WAITS;
        if (n_waits == 0)
            return 0;
        for (uint32_t i = 0; i < warp; i++)
            if (lanes[i].state != LANE_WAITS || lanes[i].site != lanes[0].site) {
                report(d, SIMT_DIVERGENT_WARP, first + i, lanes[i].site, "is not where its warp waits");
                return -1;
            }
        if (!group_may_pass(d, first))
            return 0;
        for (uint32_t i = 0; i < warp; i++)
            lanes[i].state = LANE_RUNS;
        return 1;
    }
    for (uint32_t i = 0; i < warp; i++)
        if (lanes[i].state != LANE_MEETS || lanes[i].op != lanes[meets].op || lanes[i].site != lanes[meets].site || lanes[i].n != lanes[meets].n) {
            report(d, SIMT_DIVERGENT_WARP, first + meets, lanes[meets].site, "waits for its warp, but lane %u %s%s", first + i,
                   lanes[i].state == LANE_DONE ? "" : "is at ", state_text(&lanes[i]));
            return -1;
        }
    settle_op(d, lanes);
    for (uint32_t i = 0; i < warp; i++)
        lanes[i].state = LANE_RUNS;
    return 1;
}

/* All warps have stopped. 1: the barrier is passed; 0: the block has ended; -1: fault. */
static int settle_block(simt_device *d)
{
    uint32_t waits = d->kernel->threads;
    for (uint32_t i = 0; i < d->kernel->threads; i++)
        if (d->lanes[i].state == LANE_WAITS) {
            if (d->has_run) {   /* those who went on may have let this one */
                d->has_run = 0;
                return 1;
            }
            report(d, SIMT_DIVERGENT_BARRIER, i, d->lanes[i].site, "waits for what nobody will do");
            return -1;
        }
    for (uint32_t i = 0; i < d->kernel->threads; i++)
        if (d->lanes[i].state == LANE_AT_BARRIER) {
            waits = i;
            break;
        }
    if (waits == d->kernel->threads)
        return 0;
    for (uint32_t i = 0; i < d->kernel->threads; i++)
        if (d->lanes[i].state != LANE_AT_BARRIER || d->lanes[i].site != d->lanes[waits].site) {
            report(d, SIMT_DIVERGENT_BARRIER, waits, d->lanes[waits].site, "waits at a barrier, but lane %u %s%s", i,
                   d->lanes[i].state == LANE_DONE ? "" : "is at ", state_text(&d->lanes[i]));
            return -1;
        }
    for (uint32_t i = 0; i < d->kernel->threads; i++)
        d->lanes[i].state = LANE_RUNS;
    simt_tick(d);
    d->barrier_time = d->now;
    return 1;
}

/* Who runs next; NULL when the block has ended or failed. */
static lane *next_lane(simt_device *d)
{
    const uint32_t warp = d->kernel->warp;
    for (;;) {
        while (d->cursor < (d->warp + 1) * warp) {
            lane *l = &d->lanes[d->cursor++];
            if (l->state == LANE_RUNS) {
                d->has_run = 1;
                return l;
            }
        }
        int settled = settle_warp(d);
        if (settled == 0 && (d->warp + 1) * warp < d->kernel->threads) {
            d->warp++;
            settled = 1;
        } else if (settled == 0 && (settled = settle_block(d)) == 1) {
            d->warp = 0;
        }
        if (settled != 1)
            return NULL;
        d->cursor = d->warp * warp;
    }
}

static void set_self(simt_device *d, lane *l)
{
    d->self = l;
    d->me = (uint32_t)(l - d->lanes);
    d->my_warp = d->warp;
}

/* Called by the lane that runs, once it has said why it stops; returns when it may go on. */
static void stop(simt_device *d)
{
    lane *from = d->self, *to = next_lane(d);
    if (to == from)
        return;
    if (to == NULL) {
        fiber_switch(&from->fiber, &d->main, 0);
        return;
    }
    set_self(d, to);
    fiber_switch(&from->fiber, &to->fiber, 0);
}

void oct__simt_block_sync(const char *site)
{
    simt_device *d = simt_running;
    d->self->state = LANE_AT_BARRIER;
    d->self->site = site;
    stop(d);
}

void simt_wait(simt_device *device)
{
    device->self->state = LANE_WAITS;
    stop(device);
}

void oct__simt_meet(oct__simt_op op, void *v, uint32_t n, uint32_t argument, const char *site)
{
    simt_device *d = simt_running;
    lane *l = d->self;
    l->state = LANE_MEETS;
    l->op = op;
    l->v = v;
    l->n = n;
    l->argument = argument;
    l->site = site;
    stop(d);
}

/* The life of a lane: a block after the other. */
static void live(void)
{
    fiber_entered(&simt_running->self->fiber);
    for (;;) {
        simt_device *d = simt_running;
        d->kernel->run(d->params);
        d = simt_running;
        d->self->state = LANE_DONE;
        stop(d);
    }
}

uint32_t oct__simt_tid(void) { return simt_running->me; }
uint64_t oct__simt_block(void) { return simt_running->block; }
uint64_t oct__simt_blocks(void) { return (uint64_t)simt_running->grid_x * simt_running->grid_y; }

/* ---- access around the shim ------------------------------------------------------------------------------------------------------ */

static void __attribute__((noreturn)) land(void)
{
    simt_raise(SIMT_RAW_ACCESS, "no site", "touches a device address around GET and PUT");
}

/* A lane touched the view: go on in land() on the lane's own stack. Anything else is a crash like any other. */
static void on_fault(int number, siginfo_t *info, void *context)
{
    const simt_device *d = simt_running;
    ucontext_t *u = context;
    if (d != NULL && (unsigned char *)info->si_addr >= d->view && (unsigned char *)info->si_addr < d->view + d->size_bytes) {
        union {
            void (*function)(void);
            uintptr_t address;
        } landing = { .function = land };
        u->uc_mcontext.gregs[REG_RSP] = (greg_t)((((uintptr_t)u->uc_mcontext.gregs[REG_RSP] - 256) & ~(uintptr_t)15) - 8);
        u->uc_mcontext.gregs[REG_RIP] = (greg_t)landing.address;
        return;
    }
    signal(number, SIG_DFL);
}

/* ---- launch ------------------------------------------------------------------------------------------------------------------------ */

static int make_lanes(simt_device *d)
{
    if (d->stacks == NULL) {
        d->stack_stride_bytes = STACK_BYTES + GUARD_BYTES;
        unsigned char *stacks = mmap(NULL, LANES_MAX * d->stack_stride_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stacks == MAP_FAILED)
            return -1;
        d->stacks = stacks;
        for (uint32_t i = 0; i < LANES_MAX; i++)
            if (mprotect(stacks + i * d->stack_stride_bytes, GUARD_BYTES, PROT_NONE) != 0)
                return -1;
    }
    for (uint32_t i = 0; i < LANES_MAX; i++)
        fiber_make(&d->lanes[i].fiber, d->stacks + i * d->stack_stride_bytes + GUARD_BYTES, STACK_BYTES, live);
    d->lanes_are_made = 1;
    return 0;
}

static void run_block(simt_device *d)
{
    for (uint32_t i = 0; i < d->kernel->threads; i++) {
        d->lanes[i].state = LANE_RUNS;
        d->lanes[i].n_shared = 0;
    }
    simt_begin_block(d);
    group_begin_block(d);
    d->has_run = 0;
    d->warp = 0;
    d->cursor = 1;
    set_self(d, &d->lanes[0]);
    fiber_switch(&d->main, &d->lanes[0].fiber, 0);
    if (d->report->fault != SIMT_OK)
        d->lanes_are_made = 0;   /* some stand in the middle of a kernel */
}

simt_fault simt_launch(simt_device *device, const simt_kernel *kernel, uint32_t grid_x, uint32_t grid_y, uint32_t dynamic_shared_bytes,
                       const void *params, simt_report *report)
{
    simt_device *d = device;
    const uint64_t n_blocks = (uint64_t)grid_x * grid_y;
    memset(report, 0, sizeof *report);
    if (n_blocks == 0 || grid_x > INT32_MAX || grid_y > 65535 || kernel->threads == 0 || kernel->threads > LANES_MAX ||
        kernel->threads % kernel->warp != 0 || dynamic_shared_bytes > d->shared_limit_bytes || simt_running != NULL) {
        report->fault = SIMT_BAD_LAUNCH;
        snprintf(report->text, sizeof report->text, "%s: a grid of %u x %u blocks with %u bytes of dynamic shared memory (of at most %u)", kernel->name, grid_x,
                 grid_y, dynamic_shared_bytes, d->shared_limit_bytes);
        return report->fault;
    }
    unsigned char *params_copy = malloc(kernel->params_bytes);
    if (params_copy == NULL || (!d->lanes_are_made && make_lanes(d) != 0)) {
        free(params_copy);
        report->fault = SIMT_BAD_LAUNCH;
        snprintf(report->text, sizeof report->text, "%s: no memory for the lanes", kernel->name);
        return report->fault;
    }
    memcpy(params_copy, params, kernel->params_bytes);
    d->kernel = kernel;
    d->params = params_copy;
    d->grid_x = grid_x;
    d->grid_y = grid_y;
    d->dynamic_shared_bytes = dynamic_shared_bytes;
    d->report = report;
    d->n_arrays = 0;
    fiber_adopt(&d->main);

    struct sigaction action, before[2];
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &action, &before[0]);
    sigaction(SIGBUS, &action, &before[1]);
    simt_running = d;
    simt_begin_launch(d);
    for (d->block = 0; d->block < n_blocks && report->fault == SIMT_OK; d->block++)
        run_block(d);
    simt_running = NULL;
    sigaction(SIGSEGV, &before[0], NULL);
    sigaction(SIGBUS, &before[1], NULL);
    free(params_copy);
    return report->fault;
}
