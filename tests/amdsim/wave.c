/* wave.c: owns launches: a group's waves run one after the other, each up to the next barrier or its end, groups in their order. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amdsim/machine.h"

#define INSTRUCTIONS_MAX UINT64_C(2000000000)   /* of a group; beyond, it counts as endless */
enum { HIDDEN_BYTES = 256, PACKET_BYTES = 64 };

const char *sim_fault_name(sim_fault fault)
{
    static const char *const names[] = { "ok", "bad launch", "unknown instruction", "missing wait", "undefined value", "global access out of bounds",
                                         "LDS access out of bounds", "write to read-only memory", "misaligned access", "divergent barrier", "race in LDS",
                                         "endless" };
    return (size_t)fault < sizeof names / sizeof names[0] ? names[fault] : "?";
}

void raise_fault(wave *w, const instruction *in, sim_fault fault, int lane, const char *form, ...)
{
    group *g = w->group;
    sim_report *r = g->report;
    const struct sim_kernel *k = g->kernel;
    char why[256], who[32] = "";
    va_list args;
    va_start(args, form);
    vsnprintf(why, sizeof why, form, args);
    va_end(args);
    if (lane >= 0)
        snprintf(who, sizeof who, ", lane %d", lane);
    const char *line = in->line > 0 && (size_t)in->line <= k->program->n_lines ? k->program->lines[in->line - 1] : "";
    while (*line == ' ' || *line == '\t')
        line++;
    size_t n = strcspn(line, "\n;");
    while (n > 0 && (line[n - 1] == ' ' || line[n - 1] == '\t'))
        n--;
    r->fault = fault;
    r->block = g->block;
    r->wave = w->number;
    r->line = in->line;
    snprintf(r->text, sizeof r->text, "%s: %s in block %llu, wave %u%s: %s\n  %s:%d: %.*s", k->name, sim_fault_name(fault), (unsigned long long)g->block,
             w->number, who, why, k->program->name, in->line, (int)(n < 120 ? n : 120), line);
    longjmp(g->out, 1);
}

/* ---- barriers ------------------------------------------------------------------------------------------------------------------------ */

void run_barrier(wave *w, const instruction *in)
{
    if (exec_of(w, in) != w->all)
        raise_fault(w, in, SIM_BARRIER, -1, "lanes are masked off: the mask is 0x%llx of 0x%llx", (unsigned long long)exec_of(w, in),
                    (unsigned long long)w->all);
    require_lds_written(w, in);
    w->is_at_barrier = 1;
}

void run_endpgm(wave *w, const instruction *in)
{
    (void)in;
    w->is_done = 1;
}

static void run_wave(wave *w)
{
    const instruction *code = w->group->kernel->code;
    const int32_t n = (int32_t)w->group->kernel->n_code;
    unsigned char *reached = w->group->kernel->reached;
    while (!w->is_done && !w->is_at_barrier) {
        if (reached != NULL)
            reached[w->pc] = 1;
        const instruction *in = &code[w->pc++];
        if (++w->group->instructions > INSTRUCTIONS_MAX)
            raise_fault(w, in, SIM_ENDLESS, -1, "the group does not end");
        in->op->run(w, in);
        if (w->pc >= n && !w->is_done)
            raise_fault(w, in, SIM_UNKNOWN, -1, "the code ends without s_endpgm");
    }
}

static void run_group(wave *waves, uint32_t n_waves)
{
    group *g = waves[0].group;
    for (;;) {
        uint32_t n_done = 0;
        for (uint32_t i = 0; i < n_waves; i++) {
            run_wave(&waves[i]);
            n_done += (uint32_t)waves[i].is_done;
        }
        if (n_done == n_waves)
            return;
        const wave *first = NULL;
        for (uint32_t i = 0; i < n_waves; i++) {
            if (waves[i].is_done)
                continue;
            const instruction *at = &g->kernel->code[waves[i].pc - 1];
            if (n_done > 0)
                raise_fault(&waves[i], at, SIM_BARRIER, -1, "%u waves of %u have ended", n_done, n_waves);
            if (first != NULL && first->pc != waves[i].pc)
                raise_fault(&waves[i], at, SIM_BARRIER, -1, "wave %u waits in line %d", first->number, g->kernel->code[first->pc - 1].line);
            first = &waves[i];
        }
        for (uint32_t i = 0; i < n_waves; i++)
            waves[i].is_at_barrier = 0;
        g->epoch++;
    }
}

/* ---- the beginning ---------------------------------------------------------------------------------------------------------------------- */

static void set_scalars(wave *w, uint32_t *at, uint64_t value, uint32_t words)
{
    for (uint32_t i = 0; i < words; i++, (*at)++) {
        w->s[*at] = (uint32_t)(value >> (32 * i));
        w->s_known[*at] = UINT32_MAX;
    }
}

/* Registers hold what the descriptor asks for, in its order, and otherwise nothing that anyone has written. */
static void begin_wave(wave *w, group *g, uint32_t number, uint32_t threads, uint32_t x, uint32_t y, uint64_t packet, uint64_t kernarg)
{
    const struct sim_kernel *k = g->kernel;
    const uint32_t n_lanes = threads - number * LANES < LANES ? threads - number * LANES : LANES;
    uint32_t at = 0;
    memset(w, 0, sizeof *w);
    memset(w->v, 0xA5, sizeof w->v);
    memset(w->s, 0xA5, sizeof w->s);
    w->group = g;
    w->number = number;
    w->all = n_lanes == LANES ? ALL_LANES : (UINT64_C(1) << n_lanes) - 1;
    if (k->has_dispatch_ptr)
        set_scalars(w, &at, packet, 2);
    if (k->has_queue_ptr)
        at += 2;
    if (k->has_kernarg_ptr)
        set_scalars(w, &at, kernarg, 2);
    if (k->has_dispatch_id)
        at += 2;
    if (k->has_private_size)
        set_scalars(w, &at, 0, 1);
    at = k->user_sgprs;
    if (k->has_block_x)
        set_scalars(w, &at, x, 1);
    if (k->has_block_y)
        set_scalars(w, &at, y, 1);
    if (k->has_block_z)
        set_scalars(w, &at, 0, 1);
    at = SGPR_EXEC;
    set_scalars(w, &at, w->all, 2);
    for (uint32_t lane = 0; lane < LANES; lane++)
        w->v[0][lane] = number * LANES + lane;
    w->v_known[0] = w->all;
}

static void put(unsigned char *to, uint64_t value, size_t n) { memcpy(to, &value, n); }

/* The dispatch packet's sizes, and behind the arguments the hidden ones of code object version 5. */
static void fill_launch(unsigned char *packet, unsigned char *hidden, uint32_t grid_x, uint32_t grid_y, uint32_t threads)
{
    put(packet + 4, threads, 2);
    put(packet + 6, 1, 2);
    put(packet + 8, 1, 2);
    put(packet + 12, (uint64_t)grid_x * threads, 4);
    put(packet + 16, grid_y, 4);
    put(packet + 20, 1, 4);
    put(hidden, grid_x, 4);
    put(hidden + 4, grid_y, 4);
    put(hidden + 8, 1, 4);
    put(hidden + 12, threads, 2);
    put(hidden + 14, 1, 2);
    put(hidden + 16, 1, 2);
    put(hidden + 64, 1, 2);   /* dimensions of the grid, of which y is the last that counts */
}

static sim_fault refuse(sim_report *report, const struct sim_kernel *k, const char *why)
{
    report->fault = SIM_BAD_LAUNCH;
    snprintf(report->text, sizeof report->text, "%s: %s", k->name, why);
    return SIM_BAD_LAUNCH;
}

sim_fault sim_launch(sim_memory *memory, const sim_kernel *kernel, uint32_t grid_x, uint32_t grid_y, uint32_t threads, uint32_t dynamic_lds_bytes,
                     const void *params, size_t params_bytes, sim_report *report)
{
    const uint32_t lds_limit = strcmp(kernel->program->arch, "gfx950") == 0 ? 163840 : 65536;
    const uint32_t lds_bytes = kernel->lds_bytes + dynamic_lds_bytes, n_waves = (threads + LANES - 1) / LANES;
    const size_t hidden_at = (params_bytes + 7) / 8 * 8, kernarg_bytes = kernel->kernarg_bytes;
    unsigned char packet[PACKET_BYTES] = { 0 }, arguments[4096] = { 0 };
    memset(report, 0, sizeof *report);
    if (kernel->error[0] != 0) {
        report->fault = SIM_UNKNOWN;
        snprintf(report->text, sizeof report->text, "%s", kernel->error);
        return SIM_UNKNOWN;
    }
    if (grid_x == 0 || grid_y == 0 || threads == 0 || threads > WAVES_MAX * LANES)
        return refuse(report, kernel, "the grid or the block is empty, or the block has more than 1024 lanes");
    if (lds_bytes > lds_limit || lds_bytes < dynamic_lds_bytes)
        return refuse(report, kernel, "more LDS than the chip has");
    if (kernarg_bytes != params_bytes && kernarg_bytes != hidden_at + HIDDEN_BYTES)
        return refuse(report, kernel, "arguments of another size than the kernel's");
    if (hidden_at + HIDDEN_BYTES > sizeof arguments)
        return refuse(report, kernel, "more arguments than there is room for");
    wave *waves = malloc(n_waves * sizeof *waves);
    group g = { .memory = memory, .kernel = kernel, .report = report, .lds = calloc(lds_bytes + 4, 1), .lds_words = calloc(lds_bytes / 4 + 1, sizeof *g.lds_words),
                .lds_bytes = lds_bytes, .is_fnuz = strcmp(kernel->program->arch, "gfx942") == 0 };
    const uint64_t packet_at = sim_alloc(memory, PACKET_BYTES, "dispatch packet"), kernarg_at = sim_alloc(memory, kernarg_bytes, "kernel arguments");
    if (waves == NULL || g.lds == NULL || g.lds_words == NULL || packet_at == 0 || kernarg_at == 0) {
        refuse(report, kernel, "no memory");
    } else {
        memcpy(arguments, params, params_bytes);
        fill_launch(packet, arguments + hidden_at, grid_x, grid_y, threads);
        sim_copy_in(memory, packet_at, packet, PACKET_BYTES);
        sim_copy_in(memory, kernarg_at, arguments, kernarg_bytes);
        sim_protect(memory, packet_at, 1);
        sim_protect(memory, kernarg_at, 1);
        if (setjmp(g.out) == 0) {
            const uint64_t blocks = (uint64_t)grid_x * grid_y;
            for (g.block = 0; g.block < blocks; g.block++) {
                g.instructions = 0;
                g.epoch = 1;
                memset(g.lds_words, 0, (lds_bytes / 4 + 1) * sizeof *g.lds_words);
                for (uint32_t i = 0; i < n_waves; i++)
                    begin_wave(&waves[i], &g, i, threads, (uint32_t)(g.block % grid_x), (uint32_t)(g.block / grid_x), packet_at, kernarg_at);
                run_group(waves, n_waves);
                report->instructions += g.instructions;
            }
        }
    }
    sim_free(memory, packet_at);
    sim_free(memory, kernarg_at);
    free(waves);
    free(g.lds);
    free(g.lds_words);
    return report->fault;
}
