/* memory.c: owns global memory: allocations at addresses of their own, far apart and across multiples of 4 GiB, so that a carry that is lost
 * between address halves shows; what of them anyone has written; and the instructions that reach it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amdsim/machine.h"

#define FIRST_AT UINT64_C(0x7F10FFFF0000)   /* 64 KiB below a multiple of 4 GiB */
#define GAP_BYTES UINT64_C(0x100000)

sim_memory *sim_memory_make(void) { return calloc(1, sizeof(sim_memory)); }

static void drop_allocation(allocation *a)
{
    free(a->bytes);
    free(a->known);
}

void sim_memory_drop(sim_memory *memory)
{
    for (size_t i = 0; memory != NULL && i < memory->n; i++)
        drop_allocation(&memory->all[i]);
    if (memory != NULL)
        free(memory->all);
    free(memory);
}

uint64_t sim_alloc(sim_memory *memory, size_t size_bytes, const char *name)
{
    uint64_t at = FIRST_AT;
    size_t i = 0;
    for (; i < memory->n; i++) {   /* the first hole that is large enough */
        if (memory->all[i].at >= at && memory->all[i].at - at >= size_bytes + GAP_BYTES)
            break;
        at = (memory->all[i].at + memory->all[i].size_bytes + GAP_BYTES + 255) / 256 * 256;
    }
    if (memory->n == memory->room) {
        const size_t room = memory->room * 2 + 16;
        allocation *grown = realloc(memory->all, room * sizeof *grown);
        if (grown == NULL)
            return 0;
        memory->all = grown;
        memory->room = room;
    }
    allocation a = { .at = at, .size_bytes = size_bytes, .bytes = malloc(size_bytes + 1), .known = calloc(size_bytes + 1, 1), .name = name };
    if (a.bytes == NULL || a.known == NULL) {
        drop_allocation(&a);
        return 0;
    }
    memset(a.bytes, 0xFF, size_bytes);
    memmove(memory->all + i + 1, memory->all + i, (memory->n - i) * sizeof a);
    memory->all[i] = a;
    memory->n++;
    memory->last = 0;
    return at;
}

allocation *memory_find(sim_memory *memory, uint64_t at, size_t size_bytes)
{
    if (memory->last < memory->n) {
        allocation *a = &memory->all[memory->last];
        if (at >= a->at && at - a->at <= a->size_bytes && size_bytes <= a->size_bytes - (at - a->at))
            return a;
    }
    for (size_t i = 0; i < memory->n; i++) {
        allocation *a = &memory->all[i];
        if (at >= a->at && at - a->at <= a->size_bytes && size_bytes <= a->size_bytes - (at - a->at)) {
            memory->last = i;
            return a;
        }
    }
    return NULL;
}

int sim_free(sim_memory *memory, uint64_t at)
{
    for (size_t i = 0; i < memory->n; i++)
        if (memory->all[i].at == at) {
            drop_allocation(&memory->all[i]);
            memmove(memory->all + i, memory->all + i + 1, (memory->n - i - 1) * sizeof memory->all[0]);
            memory->n--;
            memory->last = 0;
            return 0;
        }
    return -1;
}

int sim_copy_in(sim_memory *memory, uint64_t to, const void *from, size_t size_bytes)
{
    allocation *a = memory_find(memory, to, size_bytes);
    if (a == NULL)
        return -1;
    if (size_bytes > 0) {
        memcpy(a->bytes + (to - a->at), from, size_bytes);
        memset(a->known + (to - a->at), 1, size_bytes);
    }
    return 0;
}

int sim_fill(sim_memory *memory, uint64_t to, int byte, size_t size_bytes)
{
    allocation *a = memory_find(memory, to, size_bytes);
    if (a == NULL)
        return -1;
    memset(a->bytes + (to - a->at), byte, size_bytes);
    memset(a->known + (to - a->at), 1, size_bytes);
    return 0;
}

int sim_copy_out(const sim_memory *memory, void *to, uint64_t from, size_t size_bytes)
{
    for (size_t i = 0; i < memory->n; i++) {
        const allocation *a = &memory->all[i];
        if (from >= a->at && from - a->at <= a->size_bytes && size_bytes <= a->size_bytes - (from - a->at)) {
            if (size_bytes > 0)
                memcpy(to, a->bytes + (from - a->at), size_bytes);
            return 0;
        }
    }
    return -1;
}

int sim_protect(sim_memory *memory, uint64_t at, int on)
{
    allocation *a = memory_find(memory, at, 0);
    if (a == NULL)
        return -1;
    memset(a->known, 1, a->size_bytes);
    a->is_read_only = on != 0;
    return 0;
}

void memory_describe(const sim_memory *memory, uint64_t at, char *text, size_t size)
{
    const allocation *before = NULL, *after = NULL;
    for (size_t i = 0; i < memory->n; i++) {
        if (memory->all[i].at <= at)
            before = &memory->all[i];
        else if (after == NULL)
            after = &memory->all[i];
    }
    if (before != NULL && at - before->at < before->size_bytes)
        snprintf(text, size, "byte %llu of the %zu of '%s'", (unsigned long long)(at - before->at), before->size_bytes, before->name);
    else if (before != NULL && (after == NULL || at - before->at - before->size_bytes <= after->at - at))
        snprintf(text, size, "%llu bytes past the end of '%s'", (unsigned long long)(at - before->at - before->size_bytes), before->name);
    else if (after != NULL)
        snprintf(text, size, "%llu bytes before '%s'", (unsigned long long)(after->at - at), after->name);
    else
        snprintf(text, size, "address 0x%llx", (unsigned long long)at);
}

/* ---- accesses ---------------------------------------------------------------------------------------------------------------------- */

/* Where lanes reach: a 64-bit address in vectors, or a scalar base and a 32-bit offset. */
static void addresses(wave *w, const instruction *in, const operand *vector, const operand *base, uint64_t exec, uint64_t *at)
{
    const uint32_t *low, *high;
    taint t = { ALL_LANES, 0 }, scalar = { ALL_LANES, 0 };
    uint64_t from = 0;
    if (vector->kind != OPERAND_VGPR || (base->kind == OPERAND_SGPR ? base->count != 2 || vector->count != 1 : base->kind != OPERAND_OFF || vector->count != 2))
        raise_fault(w, in, SIM_UNKNOWN, -1, "a form of address that is not modelled");
    read_vector(w, in, vector->reg, &low, &t);
    if (base->kind == OPERAND_SGPR) {
        from = read_scalar(w, in, base, 2, &scalar);
        require_scalar(w, in, scalar, "an address");
        for (int i = 0; i < LANES; i++)
            at[i] = from + low[i] + (uint64_t)(int64_t)in->offset;
    } else {
        read_vector(w, in, vector->reg + 1u, &high, &t);
        for (int i = 0; i < LANES; i++)
            at[i] = ((uint64_t)high[i] << 32 | low[i]) + (uint64_t)(int64_t)in->offset;
    }
    require_known(w, in, exec, t, "an address");
}

/* The bytes a lane reaches. HSA has the machine take any alignment, and the compiler joins loads of bytes because of that; atomics are whole. */
static allocation *reach(wave *w, const instruction *in, int lane, uint64_t at, uint32_t size_bytes, const char *verb)
{
    char place[160];
    allocation *a = memory_find(w->group->memory, at, size_bytes);
    if (a == NULL || (in->op->run == run_global_atomic && at % size_bytes != 0)) {
        memory_describe(w->group->memory, at, place, sizeof place);
        raise_fault(w, in, a == NULL ? SIM_GLOBAL_BOUNDS : SIM_MISALIGNED, lane, "%s %u bytes at %s", verb, size_bytes, place);
    }
    if (verb[0] != 'r' && a->is_read_only) {
        memory_describe(w->group->memory, at, place, sizeof place);
        raise_fault(w, in, SIM_READ_ONLY, lane, "%s %u bytes at %s, which is read-only", verb, size_bytes, place);
    }
    return a;
}

static int all_known(const unsigned char *known, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!known[i])
            return 0;
    return 1;
}

void run_global_load(wave *w, const instruction *in)
{
    uint64_t at[LANES];
    uint32_t r[4][LANES];
    const uint32_t size = (uint32_t)in->op->first, words = (size + 3) / 4, reg = in->targets[0].reg;
    const int is_signed = in->op->second == 1;
    const uint64_t exec = exec_of(w, in);
    taint t[4] = { { ALL_LANES, 0 }, { ALL_LANES, 0 }, { ALL_LANES, 0 }, { ALL_LANES, 0 } };
    if (in->targets[0].kind != OPERAND_VGPR || in->targets[0].count != words)
        raise_fault(w, in, SIM_UNKNOWN, -1, "a target of another size");
    addresses(w, in, &in->sources[0], &in->sources[1], exec, at);
    for (uint64_t left = exec; left != 0; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        const allocation *a = reach(w, in, lane, at[lane], size, "reads");
        const unsigned char *from = a->bytes + (at[lane] - a->at), *known = a->known + (at[lane] - a->at);
        for (uint32_t word = 0; word < words; word++) {
            uint32_t v = 0;
            const uint32_t n = size < 4 ? size : 4;
            memcpy(&v, from + 4 * word, n);
            if (is_signed)
                v = n == 1 ? (uint32_t)(int32_t)(int8_t)v : (uint32_t)(int32_t)(int16_t)v;
            r[word][lane] = v;
            if (!all_known(known + 4 * word, n)) {
                t[word].known &= ~(UINT64_C(1) << lane);
                t[word].origin = in->line;
            }
        }
    }
    for (uint32_t word = 0; word < words; word++) {
        for (uint64_t left = exec; left != 0; left &= left - 1) {
            const int lane = __builtin_ctzll(left);
            w->v[reg + word][lane] = r[word][lane];
        }
        w->v_known[reg + word] = (w->v_known[reg + word] & ~exec) | (t[word].known & exec);
        if (t[word].origin != 0)
            w->v_origin[reg + word] = t[word].origin;
    }
    owe(w, in, COUNTER_VM, 0, reg, words, 0);
}

void run_global_store(wave *w, const instruction *in)
{
    uint64_t at[LANES];
    const operand *data = &in->sources[1];
    const uint32_t size = (uint32_t)in->op->first, words = (size + 3) / 4;
    const uint64_t exec = exec_of(w, in);
    const uint32_t *from[4];
    if (data->kind != OPERAND_VGPR || data->count != words)
        raise_fault(w, in, SIM_UNKNOWN, -1, "data of another size");
    addresses(w, in, &in->sources[0], &in->sources[2], exec, at);
    for (uint32_t word = 0; word < words; word++) {
        taint t = { ALL_LANES, 0 };
        read_vector(w, in, data->reg + word, &from[word], &t);
        require_known(w, in, exec, t, "a stored value");
    }
    for (uint64_t left = exec; left != 0; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        allocation *a = reach(w, in, lane, at[lane], size, "writes");
        for (uint32_t word = 0; word < words; word++)
            memcpy(a->bytes + (at[lane] - a->at) + 4 * word, &from[word][lane], size < 4 ? size : 4);
        memset(a->known + (at[lane] - a->at), 1, size);
    }
    owe(w, in, COUNTER_VM, 0, 0, 0, 0);
}

uint64_t atomic_result(uint64_t old, uint64_t v, int operation)
{
    return operation == '+' ? old + v : operation == '|' ? old | v : old > v ? old : v;
}

void run_global_atomic(wave *w, const instruction *in)
{
    uint64_t at[LANES];
    const operand *data = &in->sources[1];
    const uint32_t size = (uint32_t)in->op->first, words = size / 4;
    const uint64_t exec = exec_of(w, in);
    const uint32_t *from[2];
    uint32_t old_words[2][LANES];
    taint result = { ALL_LANES, 0 };
    memset(old_words, 0, sizeof old_words);
    if (data->kind != OPERAND_VGPR || data->count != words || (in->returns && in->targets[0].count != words))
        raise_fault(w, in, SIM_UNKNOWN, -1, "data of another size");
    addresses(w, in, &in->sources[0], &in->sources[2], exec, at);
    for (uint32_t word = 0; word < words; word++) {
        taint t = { ALL_LANES, 0 };
        read_vector(w, in, data->reg + word, &from[word], &t);
        require_known(w, in, exec, t, "a stored value");
    }
    for (uint64_t left = exec; left != 0; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        allocation *a = reach(w, in, lane, at[lane], size, "adds to");
        unsigned char *bytes = a->bytes + (at[lane] - a->at), *known = a->known + (at[lane] - a->at);
        uint64_t old = 0;
        memcpy(&old, bytes, size);
        const uint64_t v = words == 2 ? (uint64_t)from[1][lane] << 32 | from[0][lane] : from[0][lane];
        const uint64_t r = atomic_result(old, v, in->op->second);
        if (!all_known(known, size))
            raise_fault(w, in, SIM_UNDEFINED, lane, "an atomic on bytes that nobody wrote");
        memcpy(bytes, &r, size);
        old_words[0][lane] = (uint32_t)old;
        old_words[1][lane] = (uint32_t)(old >> 32);
    }
    for (uint32_t word = 0; in->returns && word < words; word++)
        write_vector(w, in, in->targets[0].reg + word, old_words[word], exec, result);
    owe(w, in, COUNTER_VM, 0, in->returns ? in->targets[0].reg : 0, in->returns ? words : 0, 0);
}

void run_s_load(wave *w, const instruction *in)
{
    taint t = { ALL_LANES, 0 };
    char place[160];
    const uint32_t words = (uint32_t)in->op->first, reg = in->targets[0].reg;
    const uint64_t at = read_scalar(w, in, &in->sources[0], 2, &t) + read_scalar(w, in, &in->sources[1], 1, &t);
    require_scalar(w, in, t, "an address");
    allocation *a = memory_find(w->group->memory, at, 4 * words);
    if (a == NULL || at % 4 != 0) {
        memory_describe(w->group->memory, at, place, sizeof place);
        raise_fault(w, in, a == NULL ? SIM_GLOBAL_BOUNDS : SIM_MISALIGNED, -1, "reads %u bytes at %s", 4 * words, place);
    }
    if (in->targets[0].kind != OPERAND_SGPR || in->targets[0].count != words)
        raise_fault(w, in, SIM_UNKNOWN, -1, "a target of another size");
    for (uint32_t i = 0; i < words; i++) {
        uint32_t v;
        memcpy(&v, a->bytes + (at - a->at) + 4 * i, 4);
        const taint one = { all_known(a->known + (at - a->at) + 4 * i, 4) ? ALL_LANES : 0, in->line };
        write_scalar(w, in, reg + i, 1, v, one);
    }
    owe(w, in, COUNTER_SMEM, 1, reg, words, 0);
}
