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
} plan_count;

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

/* Splits are cut at multiples of `keys`: where a row is cut depends on its own sequence alone. A span that one split holds is not cut. */
DEV int32_t plan_splits(int32_t key0, int32_t key1, uint32_t keys)
{
    const uint32_t base = (uint32_t)key0 / keys * keys;
    return (uint32_t)(key1 - key0) <= keys ? 1 : (int32_t)(((uint32_t)key1 - base + keys - 1) / keys);
}

/* Keys a split of this sequence may have. */
DEV uint32_t plan_keys_of(const oct__plan_op *op, int32_t n_rows, uint32_t split_keys)
{
    const uint32_t n_tiles = ((uint32_t)n_rows + op->tile_rows - 1) / op->tile_rows * op->n_head_tiles;
    return op->whole_from_tiles > 0 && n_tiles >= op->whole_from_tiles ? 0x40000000u : split_keys;
}

/* Adds one sequence's tasks to *count, and writes them from there on when `write`. keys: 0, and *keys_sum grows by the spans instead. */
DEV void plan_sequence(const oct__plan_params *p, uint32_t op_index, uint32_t sequence, int32_t n_rows, uint32_t keys, const int write, plan_count *count,
                       int64_t *keys_sum)
{
    const oct__plan_op *op = &p->op[op_index];
    const int32_t kv_len = batch_kv_len(&p->batch, sequence);
    const int64_t first_row = write ? GET(p->batch.qo_indptr[sequence]) : 0;
    for (int32_t r = 0; r < n_rows; r += (int32_t)op->tile_rows) {
        const int32_t n = n_rows - r < (int32_t)op->tile_rows ? n_rows - r : (int32_t)op->tile_rows;
        const int32_t pos0 = kv_len - n_rows + r;
        int32_t key0, key1;
        plan_span(p, kv_len, pos0, n, &key0, &key1);
        if (keys == 0) {
            *keys_sum += key1 - key0;
            continue;
        }
        const int32_t n_splits = plan_splits(key0, key1, keys);
        const int64_t base = (int64_t)((uint32_t)key0 / keys) * keys;
        for (int32_t s = 0; write && s < n_splits; s++) {
            oct__dev_task *task = op->tasks + count->n_tasks + s;
            const int64_t begin = base + (int64_t)s * keys;
            PUT(task->row0, first_row + r);
            PUT(task->sequence, (int32_t)sequence);
            PUT(task->n_rows, n);
            PUT(task->key0, s == 0 ? key0 : (int32_t)begin);   /* one split: the whole span */
            PUT(task->key1, s + 1 == n_splits ? key1 : (int32_t)(begin + keys));
            PUT(task->pos0, pos0);
            PUT(task->n_splits, n_splits);
            PUT(task->partial, (int64_t)count->n_partials + s);
        }
        count->n_tasks += (uint32_t)n_splits;
        if (n_splits > 1) {
            if (write) {
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

/* Keys of a split: fixed, or so that the tasks fill the GPU. */
DEV uint32_t plan_choose(const oct__plan_op *op, uint64_t keys_sum)
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
    const uint32_t begin = (uint32_t)((uint64_t)tid() * n / PLAN_LANES), end = (uint32_t)((uint64_t)(tid() + 1) * n / PLAN_LANES);
    uint32_t status = OCT__DEV_PLAN_OK;
    for (uint32_t i = 0; i < OCT__DEV_OPS; i++) {
        const oct__plan_op *op = &p->op[i];
        plan_count count = { 0, 0, 0 }, all = { 0, 0, 0 };
        uint32_t split_keys = 0;
        /* Spans, then counts, until they fit, then writing. */
        for (uint32_t fits = 0;;) {
            int64_t keys_sum = 0;
            plan_count own = count;   /* while writing: where this lane's begin */
            if (!fits) {
                own.n_tasks = own.n_groups = own.n_partials = 0;
            }
            for (uint32_t b = begin; b < end; b++) {
                const int32_t n_rows = GET(p->batch.qo_indptr[b + 1]) - GET(p->batch.qo_indptr[b]);
                if (n_rows > 0 && (n_rows <= p->decode_rows_max) == (i == OCT__DEV_DECODE)) {
                    const uint32_t keys = split_keys == 0 ? 0 : plan_keys_of(op, n_rows, split_keys);
                    if (fits) {
                        plan_sequence(p, i, b, n_rows, keys, 1, &own, &keys_sum);
                    } else {
                        plan_sequence(p, i, b, n_rows, keys, 0, &own, &keys_sum);
                    }
                }
            }
            if (fits) {
                break;
            }
            uint64_t total, n_tasks, n_groups, n_partials;
            if (split_keys == 0) {
                (void)plan_scan(shared, (uint64_t)keys_sum, &total);
                split_keys = plan_choose(op, total);
                continue;
            }
            count.n_tasks = (uint32_t)plan_scan(shared, own.n_tasks, &n_tasks);
            count.n_groups = (uint32_t)plan_scan(shared, own.n_groups, &n_groups);
            count.n_partials = (uint32_t)plan_scan(shared, own.n_partials, &n_partials);
            fits = n_tasks <= op->max_tasks && n_groups <= op->max_groups && n_partials <= op->max_partials;
            if (fits) {
                all.n_tasks = (uint32_t)n_tasks;
                all.n_groups = (uint32_t)n_groups;
                all.n_partials = (uint32_t)n_partials;
            } else if (split_keys >= 0x40000000u) {
                status = OCT__DEV_PLAN_FULL;
                break;
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
    }
    if (tid() == 0) {
        for (uint32_t i = 0; status == OCT__DEV_PLAN_FULL && i < OCT__DEV_OPS; i++) {   /* not half of a batch */
            PUT(p->plan->n_tasks[i], 0);
            PUT(p->plan->n_groups[i], 0);
            PUT(p->plan->n_partials[i], 0);
        }
        PUT(p->plan->status, status);
    }
}

#endif
