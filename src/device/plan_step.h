/* plan_step.h: the batch scheduler's metadata step: from the lengths that stand in device memory to the tasks of attention, so that a captured
 * graph follows new lengths. One block; each lane walks a run of sequences twice (or more, where splits do not fit): once to count,
 * once to write. Tasks are in sequence order, so nothing depends on timing. */
#ifndef OCT_DEVICE_PLAN_STEP_H
#define OCT_DEVICE_PLAN_STEP_H

#include "device/page.h"

#define PLAN_LANES 256u

/* What a run of sequences, or one of them, needs. */
typedef struct plan_count {
    uint32_t n_tasks, n_groups, n_partials;
    uint64_t n_units;   /* of keys, where the plan has parts */
} plan_count;

/* ---- parts -------------------------------------------------------------------------------------------------------------------
 * All keys of all tasks stand in one line, in units of PLAN_UNIT of them, and part i of n begins at unit i * units / n. A task has at least one unit, and
 * before its keys task_units more for what it costs beside them: parts that begin there begin with the task, so that a part of short sequences gets as
 * few of them as take the time of the others' keys. */
#define PLAN_UNIT 32

/* Hopper's decode alone asks for parts: on AMD they would be code that nothing runs. */
DEV int plan_has_parts(const oct__dev_plan_op *op)
{
    return WARP == 32 && op->n_parts > 0;
}

typedef struct plan_parts {
    uint64_t units, each;        /* units of all; units / n */
    uint32_t n, rest;            /* units % n. n < 2^16 */
} plan_parts;

DEV uint64_t plan_units(const oct__dev_plan_op *op, int32_t key0, int32_t key1)
{
    return op->task_units + (key0 < key1 ? (uint64_t)((key1 - 1) / PLAN_UNIT - key0 / PLAN_UNIT + 1) : 1);
}

DEV uint64_t plan_part_begin(const plan_parts *parts, uint32_t part)
{
    return part * parts->each + part * parts->rest / parts->n;
}

/* The part that a unit lies in; n for the end of the line. n <= units: no two parts begin at one unit. */
DEV uint32_t plan_part_of(const plan_parts *parts, uint64_t unit)
{
    return (uint32_t)(((unit + 1) * parts->n - 1) / parts->units);
}

DEV plan_parts plan_parts_of(uint64_t units, uint32_t n)
{
    plan_parts parts;
    parts.units = units;
    parts.n = n;
    parts.each = n > 0 ? units / n : 0;
    parts.rest = n > 0 ? (uint32_t)(units % n) : 0;
    return parts;
}

/* As many as there are, but none with fewer keys than it takes. */
DEV uint32_t plan_parts_wanted(const oct__dev_plan_op *op, uint64_t units)
{
    const uint64_t most = units * PLAN_UNIT / op->part_keys_min;
    return op->n_parts < most ? op->n_parts : most > 0 ? (uint32_t)most : units > 0 ? 1 : 0;
}

/* The task before `next` holds the units [begin, end): parts that begin in (begin, end] begin with `next`. */
DEV void plan_mark(const oct__dev_plan_op *op, const plan_parts *parts, uint64_t begin, uint64_t end, uint32_t next)
{
    const uint32_t last = plan_part_of(parts, end);
    for (uint32_t part = plan_part_of(parts, begin) + 1; part <= last; part++) {
        PUT(op->parts[part], next);
    }
}

/* ---- cuts --------------------------------------------------------------------------------------------------------------------- */

/* Keys that some row of [pos0, pos0 + n_rows) may see; 0, 0 when there is none. */
DEV void plan_span(const oct__plan_params *p, int32_t kv_len, int32_t pos0, int32_t n_rows, int32_t *key0, int32_t *key1)
{
    const int64_t first = p->window > 0 ? (int64_t)pos0 - (int64_t)p->window + 1 : 0;
    const int64_t last = p->causal ? (int64_t)pos0 + n_rows : kv_len;
    *key0 = first > 0 ? (int32_t)first : 0;
    *key1 = last < kv_len ? (int32_t)(last > 0 ? last : 0) : kv_len;
    if (*key0 >= *key1) {
        *key0 = *key1 = 0;
    }
}

/* How a span is cut: the first split at key0, split i at base + i * keys. Where fixed splits are cut depends on their own span alone: at multiples of their
 * size, or, where there are enough to give every part of the GPU one, into as many even ones as parts (twice, three times as many), from key0 on, so that a
 * long row alone leaves no part idle. Chosen ones are made even, so that none is left with a few keys. A span that one split holds is not cut. */
typedef struct plan_cut {
    int64_t base;
    uint32_t keys;
    int32_t n;
} plan_cut;

DEV plan_cut plan_cut_of(const oct__dev_plan_op *op, int32_t key0, int32_t key1, uint32_t keys)
{
    const uint32_t span = (uint32_t)(key1 - key0), even = plan_has_parts(op) ? op->even_splits : 0;
    const int is_fixed = op->split_keys > 0;
    plan_cut c;
    c.keys = keys;
    c.base = (uint32_t)key0 / keys * keys;
    if (span <= keys) {
        c.n = 1;
        return c;
    }
    if (even > 0 && (span + keys - 1) / keys * 4 >= even * 3) {
        const uint32_t n = ((span + keys - 1) / keys + even / 2) / even * even;
        c.base = (uint32_t)key0 / PLAN_UNIT * PLAN_UNIT;
        c.keys = (((uint32_t)key1 - (uint32_t)c.base + n - 1) / n + PLAN_UNIT - 1) / PLAN_UNIT * PLAN_UNIT;
    } else if (!is_fixed) {
        const uint32_t n = (span + keys - 1) / keys;
        c.keys = ((span + n - 1) / n + OCT__DEV_KEYS - 1) / OCT__DEV_KEYS * OCT__DEV_KEYS;
        c.base = (uint32_t)key0 / OCT__DEV_KEYS * OCT__DEV_KEYS;
    }
    c.n = (int32_t)(((uint32_t)key1 - (uint32_t)c.base + c.keys - 1) / c.keys);
    return c;
}

/* Keys a split of this sequence may have. */
DEV uint32_t plan_keys_of(const oct__dev_plan_op *op, int32_t n_rows, uint32_t split_keys)
{
    const uint32_t n_tiles = ((uint32_t)n_rows + op->tile_rows - 1) / op->tile_rows * op->n_head_tiles;
    return op->whole_from_tiles > 0 && n_tiles >= op->whole_from_tiles ? 0x40000000u : split_keys;
}

/* The lanes that walk over the same sequences: `n` of them count alike, and lane i writes every n-th split from i on. */
typedef struct plan_team {
    uint32_t i, n;
} plan_team;

/* Adds one sequence's tasks to *count, and writes them from there on when `write`. keys: 0, and *keys_sum grows by the spans instead. */
DEV void plan_sequence(const oct__plan_params *p, uint32_t op_index, uint32_t sequence, int32_t n_rows, uint32_t keys, const plan_parts *parts, plan_team team,
                       const int write, plan_count *count, int64_t *keys_sum)
{
    const oct__dev_plan_op *op = &p->op[op_index];
    const int32_t kv_len = batch_kv_len(&p->batch, sequence);
    const int64_t first_row = write ? GET(p->batch.qo_indptr[sequence]) : 0;
    const int is_even = plan_has_parts(op) && op->split_keys == 0, is_fixed_parts = plan_has_parts(op) && op->split_keys > 0;
    for (int32_t r = 0; r < n_rows; r += (int32_t)op->tile_rows) {
        const int32_t n = n_rows - r < (int32_t)op->tile_rows ? n_rows - r : (int32_t)op->tile_rows;
        const int32_t pos0 = kv_len - n_rows + r;
        int32_t key0, key1;
        plan_span(p, kv_len, pos0, n, &key0, &key1);
        const uint64_t units = plan_units(op, key0, key1), unit0 = count->n_units, first = unit0 + op->task_units;
        if (keys == 0) {
            *keys_sum += key1 - key0;
            count->n_units += units;
            continue;
        }
        const plan_cut cut = plan_cut_of(op, key0, key1, keys);
        const uint32_t part0 = is_even ? plan_part_of(parts, first) : 0;
        const int32_t n_splits = is_even ? (int32_t)(plan_part_of(parts, unit0 + units - 1) - part0) + 1 : cut.n;
        const uint32_t base = (uint32_t)(key0 / PLAN_UNIT * PLAN_UNIT) - (uint32_t)first * PLAN_UNIT;   /* of the line's unit 0; wraps, as the sums below do */
        if (write && is_even && team.i == 0) {
            plan_mark(op, parts, unit0, first, count->n_tasks);
        }
        /* Fixed splits have whole units each, so whoever wants to know where one stands counts them all. */
        for (int32_t s = is_fixed_parts ? 0 : (int32_t)team.i; (write || is_fixed_parts) && s < n_splits; s += is_fixed_parts ? 1 : (int32_t)team.n) {
            const int32_t from = is_even ? (int32_t)(base + (uint32_t)plan_part_begin(parts, part0 + (uint32_t)s) * PLAN_UNIT) : (int32_t)(cut.base + (int64_t)s * cut.keys);
            const int32_t to = is_even ? (int32_t)(base + (uint32_t)plan_part_begin(parts, part0 + (uint32_t)s + 1) * PLAN_UNIT) : (int32_t)(cut.base + (int64_t)(s + 1) * cut.keys);
            const int32_t begin = s == 0 ? key0 : from, end = s + 1 == n_splits ? key1 : to;   /* one split: the whole span */
            const int is_mine = (uint32_t)s % team.n == team.i;
            if (write && is_mine) {
                oct__dev_task *task = op->tasks + count->n_tasks + s;
                PUT(task->row0, first_row + r);
                PUT(task->sequence, (int32_t)sequence);
                PUT(task->n_rows, n);
                PUT(task->key0, begin);
                PUT(task->key1, end);
                PUT(task->pos0, pos0);
                PUT(task->n_splits, n_splits);
                PUT(task->partial, (int64_t)count->n_partials + s);
                if (is_even && (s + 1 < n_splits || plan_part_of(parts, unit0 + units) == part0 + (uint32_t)n_splits)) {
                    PUT(op->parts[part0 + (uint32_t)s + 1], count->n_tasks + (uint32_t)s + 1);
                }
            }
            if (is_fixed_parts) {
                const uint64_t before = count->n_units;
                count->n_units += plan_units(op, begin, end);
                if (write && is_mine) {
                    plan_mark(op, parts, before, count->n_units, count->n_tasks + (uint32_t)s + 1);
                }
            }
        }
        count->n_units = is_even ? unit0 + units : count->n_units;
        count->n_tasks += (uint32_t)n_splits;
        if (n_splits > 1) {
            if (write && team.i == 0) {
                oct__dev_group *group = op->groups + count->n_groups;
                PUT(group->row0, first_row + r);
                PUT(group->partial, (int64_t)count->n_partials);
                PUT(group->n_rows, n);
                PUT(group->n_splits, n_splits);
            }
            count->n_groups++;
            count->n_partials += (uint32_t)n_splits;
        }
    }
}

/* Sum over the lanes before this one; *total: over all. All lanes of the block; shared: [PLAN_LANES]. */
DEV uint64_t plan_scan(uint64_t *shared, uint64_t v, uint64_t *total)
{
    uint64_t sum = v;
    SPUT(shared[tid()], sum);
    block_sync();
    for (uint32_t step = 1; step < PLAN_LANES; step *= 2) {
        const uint64_t below = tid() >= step ? SGET(shared[tid() - step]) : 0;
        block_sync();
        sum += below;
        SPUT(shared[tid()], sum);
        block_sync();
    }
    *total = SGET(shared[PLAN_LANES - 1]);
    block_sync();   /* before the next use of shared */
    return sum - v;
}

/* The same over teams, each of which has one value. */
DEV uint64_t plan_scan_teams(uint64_t *shared, plan_team team, uint64_t v, uint64_t *total)
{
    const uint64_t before = plan_scan(shared, team.i == 0 ? v : 0, total);
    return team.i == 0 ? before : before - v;
}

/* Keys of a split: fixed, or so that the tasks fill the GPU. */
DEV uint32_t plan_choose(const oct__dev_plan_op *op, uint64_t keys_sum)
{
    if (op->split_keys > 0) {
        return op->split_keys;
    }
    const uint64_t wanted = op->target_blocks / op->n_head_tiles > 0 ? op->target_blocks / op->n_head_tiles : 1;
    uint64_t keys = (keys_sum + wanted - 1) / wanted;
    keys = (keys + OCT__DEV_KEYS - 1) / OCT__DEV_KEYS * OCT__DEV_KEYS;
    keys = keys < op->min_split_keys ? op->min_split_keys : keys;
    return (uint32_t)(keys > op->max_split_keys ? op->max_split_keys : keys);
}

KERNEL(plan_step, 256, 1, oct__plan_params)
{
    SHARED(uint64_t, shared, PLAN_LANES);
    const uint32_t n = p->batch.n_sequences;
    plan_team team;
    team.n = 1;
    while (n > 0 && (uint64_t)team.n * 2 * n <= PLAN_LANES) {
        team.n *= 2;
    }
    team.i = tid() % team.n;
    const uint32_t n_teams = PLAN_LANES / team.n, own_team = tid() / team.n;
    const uint32_t begin = (uint32_t)((uint64_t)own_team * n / n_teams), end = (uint32_t)((uint64_t)(own_team + 1) * n / n_teams);
    uint32_t status = OCT__DEV_PLAN_OK;
    for (uint32_t i = 0; i < OCT__DEV_OPS; i++) {
        const oct__dev_plan_op *op = &p->op[i];
        plan_count count = { 0, 0, 0, 0 }, all = { 0, 0, 0, 0 };
        plan_parts parts = { 0, 0, 0, 0 };
        uint32_t split_keys = 0;
        /* Spans, then counts, until they fit, then writing. */
        for (uint32_t fits = 0;;) {
            int64_t keys_sum = 0;
            plan_count own = count;   /* while writing: where this lane's begin */
            if (!fits) {
                own.n_tasks = own.n_groups = own.n_partials = 0;   /* units: of the spans, once those are known */
            }
            for (uint32_t b = begin; b < end; b++) {
                const int32_t n_rows = GET(p->batch.qo_indptr[b + 1]) - GET(p->batch.qo_indptr[b]);
                if (n_rows > 0 && (n_rows <= p->decode_rows_max) == (i == OCT__DEV_DECODE)) {
                    const uint32_t keys = split_keys == 0 ? 0 : plan_keys_of(op, n_rows, split_keys);
                    if (fits) {
                        plan_sequence(p, i, b, n_rows, keys, &parts, team, 1, &own, &keys_sum);
                    } else {
                        plan_sequence(p, i, b, n_rows, keys, &parts, team, 0, &own, &keys_sum);
                    }
                }
            }
            if (fits) {
                break;
            }
            uint64_t total, n_tasks, n_groups, n_partials;
            const int is_even = plan_has_parts(op) && op->split_keys == 0;
            if (split_keys == 0) {
                (void)plan_scan_teams(shared, team, (uint64_t)keys_sum, &total);
                split_keys = plan_choose(op, total);
                if (is_even) {
                    count.n_units = plan_scan_teams(shared, team, own.n_units, &total);
                    parts = plan_parts_of(total, plan_parts_wanted(op, total));
                }
                continue;
            }
            if (plan_has_parts(op) && !is_even) {
                count.n_units = plan_scan_teams(shared, team, own.n_units - count.n_units, &total);
                parts = plan_parts_of(total, plan_parts_wanted(op, total));
            }
            count.n_tasks = (uint32_t)plan_scan_teams(shared, team, own.n_tasks, &n_tasks);
            count.n_groups = (uint32_t)plan_scan_teams(shared, team, own.n_groups, &n_groups);
            count.n_partials = (uint32_t)plan_scan_teams(shared, team, own.n_partials, &n_partials);
            fits = n_tasks <= op->max_tasks && n_groups <= op->max_groups && n_partials <= op->max_partials;
            if (fits) {
                all.n_tasks = (uint32_t)n_tasks;
                all.n_groups = (uint32_t)n_groups;
                all.n_partials = (uint32_t)n_partials;
            } else if (is_even ? parts.n <= 1 : split_keys >= 0x40000000u) {
                status = OCT__DEV_PLAN_FULL;
                break;
            } else if (is_even) {
                parts = plan_parts_of(parts.units, parts.n / 2);
            } else {
                split_keys = split_keys * 2 < 0x40000000u ? split_keys * 2 : 0x40000000u;
                status = op->split_keys > 0 && status == OCT__DEV_PLAN_OK ? OCT__DEV_PLAN_COARSER : status;
            }
        }
        if (tid() == 0) {
            PUT(p->plan->n_tasks[i], all.n_tasks);
            PUT(p->plan->n_groups[i], all.n_groups);
            PUT(p->plan->n_partials[i], all.n_partials);
            PUT(p->plan->split_keys[i], split_keys);
        }
        for (uint32_t part = tid(); plan_has_parts(op) && part <= op->n_parts; part += PLAN_LANES) {   /* those that plan_mark does not reach */
            if (part == 0 || part > parts.n || all.n_tasks == 0) {
                PUT(op->parts[part], part == 0 ? 0 : all.n_tasks);
            }
        }
    }
    block_sync();
    for (uint32_t i = 0; status == OCT__DEV_PLAN_FULL && i < OCT__DEV_OPS; i++) {
        for (uint64_t part = tid(); plan_has_parts(&p->op[i]) && part <= p->op[i].n_parts; part += PLAN_LANES) {
            PUT(p->op[i].parts[part], 0);
        }
    }
    if (plan_has_parts(&p->op[OCT__DEV_DECODE])) {
        block_sync();
    }
    if (tid() == 0) {
        for (uint32_t i = 0; status == OCT__DEV_PLAN_FULL && i < OCT__DEV_OPS; i++) {   /* not half of a batch */
            PUT(p->plan->n_tasks[i], 0);
            PUT(p->plan->n_groups[i], 0);
            PUT(p->plan->n_partials[i], 0);
        }
        PUT(p->plan->status, status);
        if (plan_has_parts(&p->op[OCT__DEV_DECODE])) {   /* Hopper's decode reads the plan before it waits: this orders what the block wrote before its end */
            PUT(p->plan->ended, 0);
            (void)atomic_add_acq_rel_u32(&p->plan->ended, 1);
        }
    }
}

#endif
