/* split.c: see split.h.
 *
 * All KV heads of a row tile cost the same, so the walk is over row tiles and head cuts; heads are counted, not visited, until
 * the items are written. Nothing is done per key. */
#include "plan/split.h"

#include <stdbool.h>
#include <string.h>

enum {
    SPLIT_KEYS_MIN = 256,        /* below this the merge costs more than the waiting */
    SPLIT_KEYS_ALIGN = 64,       /* a whole number of V5D chunks and of every kernel's key block */
    SPLITS_MAX = 64,
    SPLIT_KEYS_MAX = 8192,       /* an f32 sum loses what is below half a unit of it: longer sums would lose in proportion to their keys */
    ITEMS_PER_THREAD = 4,        /* so that the last item to end is a small part of the whole */
    FIXED_DECODE_KEYS = 512,     /* deterministic mode */
    FIXED_EXTEND_KEYS = 2048,
    FIXED_EXTEND_TILES = 64      /* a sequence with as many tiles as this keeps threads busy without splits */
};

/* How the vectors of one KV head's group are cut into tiles. */
typedef struct shape {
    uint32_t n_rows;             /* most rows of a tile */
    uint32_t n_cuts;             /* cuts of the group's heads; cut c: heads [c * group / n_cuts, (c + 1) * group / n_cuts) */
    uint32_t group;
} shape;

static shape shape_of(const oct_attn_spec *spec, uint32_t tile_vectors)
{
    shape s = { .group = spec->heads_q / spec->kv.heads };
    s.n_cuts = (s.group + tile_vectors - 1) / tile_vectors;
    s.n_rows = tile_vectors / ((s.group + s.n_cuts - 1) / s.n_cuts);
    return s;
}

static uint32_t cut_begin(const shape *s, uint32_t cut)
{
    return (uint32_t)((uint64_t)cut * s->group / s->n_cuts);
}

/* Keys that some row of [pos0, pos0 + n_rows) may see; 0, 0 when there is none. */
static void span_of(const oct_attn_spec *spec, int64_t kv_len, int64_t pos0, uint32_t n_rows, int64_t *key0, int64_t *key1)
{
    const int64_t first = spec->window_tokens > 0 ? pos0 - (int64_t)spec->window_tokens + 1 : 0;
    const int64_t last = spec->causal ? pos0 + n_rows : kv_len;
    *key0 = first > 0 ? first : 0;
    *key1 = last < kv_len ? last : kv_len;
    if (*key0 >= *key1) {
        *key0 = *key1 = 0;
    }
}

/* ---- amounts ---------------------------------------------------------------------------------------------------------- */

static oct__op op_of(int32_t n_rows)
{
    return n_rows <= (int32_t)OCT__DECODE_ROWS_MAX ? OCT__OP_attn_decode : OCT__OP_attn_extend;
}

void oct__split_count(const oct__split *split, oct__op op, int64_t *n_rows, int64_t *n_keys)
{
    *n_rows = *n_keys = 0;
    for (uint32_t b = 0; b < split->n_sequences; b++) {
        const int32_t q_len = split->qo_indptr[b + 1] - split->qo_indptr[b];
        if (q_len > 0 && op_of(q_len) == op) {
            *n_rows += q_len;
            *n_keys += split->kv_len[b];
        }
    }
}

oct__amount oct__split_amount(const oct__split *split, const oct__variant *variant)
{
    const oct_attn_spec *spec = split->spec;
    const shape s = shape_of(spec, variant->tile_vectors);
    oct__tally tally = { .tiles = 0 };
    for (uint32_t b = 0; b < split->n_sequences; b++) {
        const int32_t q_len = split->qo_indptr[b + 1] - split->qo_indptr[b];
        if (op_of(q_len) != variant->op) {
            continue;
        }
        for (int64_t r = 0; r < q_len; r += s.n_rows) {
            const uint32_t n = q_len - r < s.n_rows ? (uint32_t)(q_len - r) : s.n_rows;
            const int64_t pos0 = (int64_t)split->kv_len[b] - q_len + r;
            int64_t key0, key1;
            span_of(spec, split->kv_len[b], pos0, n, &key0, &key1);
            for (uint32_t cut = 0; cut < s.n_cuts; cut++) {
                oct__tally_tile(&tally, spec, &variant->cost, n, cut_begin(&s, cut + 1) - cut_begin(&s, cut), key0, key1, pos0);
            }
        }
    }
    return oct__amount_of_tally(spec, &tally, spec->kv.heads);
}

/* ---- the walk --------------------------------------------------------------------------------------------------------- */

static double item_seconds(const oct__split *split, const oct__item *item, int64_t key0, int64_t key1)
{
    oct__tally tally = { .tiles = 0 };
    oct__tally_tile(&tally, split->spec, &item->variant->cost, item->n_rows, item->n_heads, key0, key1, item->pos0);
    const oct__amount amount = oct__amount_of_tally(split->spec, &tally, 1);
    return oct__cost_seconds(&item->variant->cost, split->rates, &amount, 1);
}

/* Positive floats order like their bits: the exponent and three bits of the mantissa. Bucket 0 is the dearest. */
static uint32_t bucket_of(double seconds)
{
    const float rounded = (float)seconds;
    uint32_t bits;
    memcpy(&bits, &rounded, sizeof(bits));
    const uint32_t key = bits >> 20;
    return OCT__SPLIT_BUCKETS - 1 - (key < OCT__SPLIT_BUCKETS ? key : OCT__SPLIT_BUCKETS - 1);
}

/* Where the splits of a span begin: the first at key0, the others at base + i * keys, i = 1 .. n - 1. */
typedef struct cutting {
    int64_t base, keys;
    uint32_t n;
} cutting;

static cutting cut_at_multiples(int64_t key0, int64_t key1, int64_t keys)
{
    const int64_t base = key0 / keys * keys;
    return (cutting){ base, keys, (uint32_t)((key1 - base + keys - 1) / keys) };
}

/* n_tiles: of the whole sequence; seconds: of this tile unsplit. */
static cutting cutting_of(const oct__split *split, const oct__variant *variant, int64_t key0, int64_t key1, int64_t n_tiles, double seconds)
{
    const oct_attn_spec *spec = split->spec;
    const int64_t n_keys = key1 - key0;
    const cutting whole = { key0, n_keys, 1 };
    if (n_keys == 0) {
        return whole;
    }
    if (spec->split_tokens > 0) {
        return cut_at_multiples(key0, key1, spec->split_tokens);
    }
    /* Deterministic: where a row is cut depends on its own sequence only, neither on batch mates nor on threads. */
    if (spec->deterministic) {
        if (variant->op == OCT__OP_attn_decode) {
            return cut_at_multiples(key0, key1, FIXED_DECODE_KEYS);
        }
        return cut_at_multiples(key0, key1, n_tiles >= FIXED_EXTEND_TILES ? SPLIT_KEYS_MAX : FIXED_EXTEND_KEYS);
    }
    if (split->seconds_per_split <= 0 || seconds <= split->seconds_per_split) {
        return n_keys <= SPLIT_KEYS_MAX ? whole : cut_at_multiples(key0, key1, SPLIT_KEYS_MAX);
    }
    const double wanted = seconds / split->seconds_per_split;
    int64_t n = n_keys / SPLIT_KEYS_MIN < SPLITS_MAX ? n_keys / SPLIT_KEYS_MIN : SPLITS_MAX;
    if (wanted < (double)n) {
        n = (int64_t)wanted + 1;
    }
    if (n < (n_keys + SPLIT_KEYS_MAX - 1) / SPLIT_KEYS_MAX) {
        n = (n_keys + SPLIT_KEYS_MAX - 1) / SPLIT_KEYS_MAX;
    }
    if (n <= 1) {
        return whole;
    }
    int64_t keys = (n_keys + n - 1) / n;
    keys = (keys + SPLIT_KEYS_ALIGN - 1) / SPLIT_KEYS_ALIGN * SPLIT_KEYS_ALIGN;
    const int64_t base = key0 / SPLIT_KEYS_ALIGN * SPLIT_KEYS_ALIGN;
    return (cutting){ base, keys, (uint32_t)((key1 - base + keys - 1) / keys) };
}

typedef struct walk {
    oct__split *split;
    oct__item *items;            /* NULL: count */
    int64_t group, partial;
} walk;

/* The items of one row tile's head cut: n_splits for each KV head. `item` holds what they have in common. */
static void walk_cut(walk *w, const shape *s, oct__item *item, uint32_t cut, int64_t key0, int64_t key1, int64_t n_tiles)
{
    oct__split *split = w->split;
    const uint32_t heads_kv = split->spec->kv.heads;
    item->n_heads = cut_begin(s, cut + 1) - cut_begin(s, cut);
    const uint32_t n_vectors = item->n_rows * item->n_heads;
    const double seconds = item_seconds(split, item, key0, key1);
    const cutting c = cutting_of(split, item->variant, key0, key1, n_tiles, seconds);
    const uint32_t o_stride = (split->spec->kv.dim_v + 15) / 16 * 16;
    const int64_t state_floats = oct__partial_floats(n_vectors, o_stride);

    item->n_splits = c.n;
    for (uint32_t i = 0; i < c.n; i++) {
        item->split = i;
        item->key0 = i == 0 ? key0 : c.base + i * c.keys;
        item->key1 = i + 1 == c.n ? key1 : c.base + (i + 1) * c.keys;
        const uint32_t bucket = bucket_of(c.n == 1 ? seconds : item_seconds(split, item, item->key0, item->key1));
        if (w->items == NULL) {
            split->bucket_at[bucket] += heads_kv;
            continue;
        }
        for (uint32_t head = 0; head < heads_kv; head++) {
            item->head_kv = head;
            item->head0 = head * s->group + cut_begin(s, cut);
            item->group = c.n > 1 ? w->group + head : -1;
            item->partial0 = c.n > 1 ? w->partial + ((int64_t)head * c.n + i) * state_floats : 0;
            w->items[split->bucket_at[bucket]++] = *item;
        }
    }
    if (c.n > 1) {
        w->group += heads_kv;
        w->partial += (int64_t)heads_kv * c.n * state_floats;
    }
    if (w->items == NULL) {
        split->n_items += (int64_t)heads_kv * c.n;
        split->n_items_split += c.n > 1 ? (int64_t)heads_kv * c.n : 0;
        split->seconds += seconds * heads_kv;
    }
}

static void walk_batch(walk *w)
{
    const oct__split *split = w->split;
    const oct_attn_spec *spec = split->spec;
    const shape decode = shape_of(spec, split->decode->tile_vectors), extend = shape_of(spec, split->extend->tile_vectors);
    for (uint32_t b = 0; b < split->n_sequences; b++) {
        const int32_t q_len = split->qo_indptr[b + 1] - split->qo_indptr[b];
        const bool is_decode = op_of(q_len) == OCT__OP_attn_decode;
        const shape *s = is_decode ? &decode : &extend;
        const int64_t n_tiles = ((int64_t)q_len + s->n_rows - 1) / s->n_rows * s->n_cuts * spec->kv.heads;
        for (int64_t r = 0; r < q_len; r += s->n_rows) {
            int64_t key0, key1;
            oct__item item = {
                .variant = is_decode ? split->decode : split->extend,
                .sequence = (int32_t)b,
                .n_rows = q_len - r < s->n_rows ? (uint32_t)(q_len - r) : s->n_rows,
                .row0 = split->qo_indptr[b] + r,
                .pos0 = (int64_t)split->kv_len[b] - q_len + r,
            };
            span_of(spec, split->kv_len[b], item.pos0, item.n_rows, &key0, &key1);
            for (uint32_t cut = 0; cut < s->n_cuts; cut++) {
                walk_cut(w, s, &item, cut, key0, key1, n_tiles);
            }
        }
    }
}

/* The time of all tiles, which the size of a split depends on. */
static double total_seconds(const oct__split *split)
{
    double seconds = 0;
    for (int i = 0; i < 2; i++) {
        const oct__variant *variant = i == 0 ? split->decode : split->extend;
        const oct__amount amount = oct__split_amount(split, variant);
        seconds += oct__cost_seconds(&variant->cost, split->rates, &amount, 1);
    }
    return seconds;
}

void oct__split_measure(oct__split *split)
{
    const bool free_choice = split->spec->split_tokens == 0 && !split->spec->deterministic;
    split->seconds_per_split = free_choice && split->n_threads > 1 ? total_seconds(split) / ((double)split->n_threads * ITEMS_PER_THREAD) : 0;
    split->n_items = split->n_items_split = 0;
    split->seconds = 0;
    memset(split->bucket_at, 0, sizeof(split->bucket_at));
    walk w = { .split = split };
    walk_batch(&w);
    split->n_groups = w.group;
    split->n_partial_floats = w.partial;

    int64_t at = 0;
    for (uint32_t i = 0; i < OCT__SPLIT_BUCKETS; i++) {
        const int64_t n = split->bucket_at[i];
        split->bucket_at[i] = at;
        at += n;
    }
}

void oct__split_emit(oct__split *split, oct__item *items)
{
    /* walk_cut tells counting from writing by the array; an empty batch has neither. */
    if (split->n_items > 0) {
        walk w = { .split = split, .items = items };
        walk_batch(&w);
    }
}
