/* counters.c: owns what memory operations owe a wave, and s_waitcnt. Vector memory operations (vmcnt) are done in their order, and so are those
 * of LDS; scalar loads, which share a counter with LDS (lgkmcnt), are done in any order, so that only a wait for none of them is a wait for one. */
#include "amdsim/machine.h"

static void settle(wave *w, const owed *o)
{
    for (uint32_t i = 0; i < o->count; i++) {
        if (o->is_scalar)
            w->s_owed[o->reg + i] = 0;
        else
            w->v_owed[o->reg + i]--;
    }
}

/* Takes the oldest of a kind from the queue until `keep` are left. */
static void settle_oldest(wave *w, int is_lgkm, uint32_t keep)
{
    uint32_t n = 0, kept = 0;
    for (uint32_t i = 0; i < w->n_queue; i++)
        n += (w->queue[i].counter != COUNTER_VM) == is_lgkm;
    for (uint32_t i = 0; i < w->n_queue; i++) {
        const owed o = w->queue[i];
        if ((o.counter != COUNTER_VM) == is_lgkm && n > keep) {
            settle(w, &o);
            n--;
        } else {
            w->queue[kept++] = o;
        }
    }
    w->n_queue = kept;
}

/* The counters hold 63 and 15: the machine waits for the oldest before it lets one more begin. */
enum { VM_MAX = 63, LGKM_MAX = 15 };

static int has_scalar_loads(const wave *w)
{
    int found = 0;
    for (uint32_t i = 0; i < w->n_queue; i++)
        found |= w->queue[i].counter == COUNTER_SMEM;
    return found;
}

void owe(wave *w, const instruction *in, counter c, int is_scalar, uint32_t reg, uint32_t count, int writes_lds)
{
    if (c == COUNTER_VM)
        settle_oldest(w, 0, VM_MAX - 1);
    else if (c == COUNTER_LDS && !has_scalar_loads(w))
        settle_oldest(w, 1, LGKM_MAX - 1);
    if (w->n_queue == QUEUE_MAX)
        raise_fault(w, in, SIM_UNKNOWN, -1, "more than %d memory operations without a wait", QUEUE_MAX);
    w->queue[w->n_queue++] = (owed){ (uint8_t)c, (uint8_t)count, (uint8_t)is_scalar, (uint8_t)writes_lds, (uint16_t)reg, in->line };
    for (uint32_t i = 0; i < count; i++) {
        if (is_scalar) {
            if (w->s_owed[reg + i])
                raise_owed(w, in, 1, reg + i, "overwrites");
            w->s_owed[reg + i] = 1;
        } else {
            /* Loads of one kind come back in their order, so the later one wins. */
            if (w->v_owed[reg + i] && w->v_owed_by[reg + i] != c)
                raise_owed(w, in, 0, reg + i, "overwrites");
            w->v_owed[reg + i]++;
            w->v_owed_by[reg + i] = (uint8_t)c;
        }
    }
}

void run_waitcnt(wave *w, const instruction *in)
{
    if (in->is_planted)
        return;
    if (in->vmcnt >= 0)
        settle_oldest(w, 0, (uint32_t)in->vmcnt);
    if (in->lgkmcnt == 0 || (in->lgkmcnt > 0 && !has_scalar_loads(w)))
        settle_oldest(w, 1, (uint32_t)in->lgkmcnt);
}

void require_lds_written(wave *w, const instruction *in)
{
    for (uint32_t i = 0; i < w->n_queue; i++)
        if (w->queue[i].writes_lds)
            raise_fault(w, in, SIM_WAIT, -1, "LDS may not be written yet: no s_waitcnt lgkmcnt since line %d", w->queue[i].line);
}

void raise_owed(wave *w, const instruction *in, int is_scalar, uint32_t reg, const char *verb)
{
    const owed *by = NULL;
    for (uint32_t i = 0; i < w->n_queue; i++)
        if (w->queue[i].is_scalar == is_scalar && reg >= w->queue[i].reg && reg < (uint32_t)w->queue[i].reg + w->queue[i].count)
            by = &w->queue[i];
    raise_fault(w, in, SIM_WAIT, -1, "%s %c%u, which line %d still owes: no s_waitcnt %s in between", verb,
                is_scalar ? 's' : reg >= AGPR0 ? 'a' : 'v', reg % AGPR0, by == NULL ? 0 : by->line, by != NULL && by->counter == COUNTER_VM ? "vmcnt" : "lgkmcnt");
}
