/* attn_run.c: owns the execution of a step (plan/work.h) on the CPU: claims items, brings q to what the kernels want, calls them, merges
 * splits and finishes rows. Everything that does not depend on how a kernel multiplies stands here, once.
 *
 * Threads: all nth of a run call oct__attn_run_part and never wait for each other. They meet in two kinds of atomics: the counters of claims
 * (relaxed: they order nothing but themselves) and the arrivals of a split group (acquire-release: the last to arrive reads the others'
 * partial states). Each leaves them at zero. Whatever order threads arrive in, states are merged in split order, so bits do not vary. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "cpu/attn_ahead.h"
#include "cpu/attn_merge.h"
#include "cpu/row.h"
#include "number/dtype.h"
#include "plan/work.h"

/* ---- a thread's block ------------------------------------------------------------------------------------------------- */

typedef struct block {
    float *q, *o, *m, *z;
    void *variant_scratch;
} block;

static size_t round_up(size_t n, size_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

size_t oct__attn_run_scratch_bytes(const oct_attn_spec *spec, uint32_t tile_vectors)
{
    const size_t q = round_up(spec->kv.dim_k, 16), o = round_up(spec->kv.dim_v, 16);
    return tile_vectors * (q + o) * sizeof(float) + 2 * round_up(tile_vectors * sizeof(float), 64);
}

/* The parts of a thread's block for a tile; all are 64-byte aligned since the strides are multiples of 16 floats. */
static block block_of(const oct__step *step, uint32_t n_vectors, uint32_t ith)
{
    const size_t state_bytes = round_up(n_vectors * sizeof(float), 64);
    unsigned char *at = step->scratch + ith * step->scratch_stride_bytes;
    block b;
    b.q = (float *)(void *)at;
    at += (size_t)n_vectors * step->q_stride * sizeof(float);
    b.o = (float *)(void *)at;
    at += (size_t)n_vectors * step->o_stride * sizeof(float);
    b.m = (float *)(void *)at;
    b.z = (float *)(void *)(at + state_bytes);
    b.variant_scratch = at + 2 * state_bytes;
    return b;
}

static const oct__row_kernels *rows_of(const oct__step *step)
{
    return step->has_avx2 ? &oct__row_avx2 : &oct__row_plain;
}

/* ---- before the kernel -------------------------------------------------------------------------------------------------- */

/* A static scale of the head; 1 where there is none, where it lies beside the page, or where it goes by channel. */
static float static_scale(uint32_t mode, const float *scale, uint32_t head_kv)
{
    switch (mode) {
    case OCT_SCALE_TENSOR:
    case OCT_SCALE_LAYER:
        return scale[0];
    case OCT_SCALE_LAYER_HEAD:
        return scale[head_kv];
    default:
        return 1.0f;
    }
}

/* q of the tile's vectors in f32, so that its product with stored K bytes is the score up to one factor: rotated as K is, and then
 * times K's channel scales, which were divided out of K after its rotation. After each vector n_each rows of `ahead` are asked for. */
static void bring_q(const oct__step *step, const oct_attn_spec *spec, const oct_attn_args *args, const oct__item *item, float *q,
                    oct__ahead *ahead, uint32_t n_each)
{
    const uint32_t dim = spec->kv.dim_k;
    const int64_t size = oct__dtype_size_bytes(spec->q_dtype);
    const float *channel = spec->kv.k.scale_mode == OCT_SCALE_CHANNEL ? args->layer->k_scale + (size_t)item->head_kv * dim : NULL;
    for (uint32_t r = 0; r < item->n_rows; r++) {
        for (uint32_t h = 0; h < item->n_heads; h++, q += step->q_stride) {
            const int64_t at = (item->row0 + r) * args->q_row_stride + (int64_t)(item->head0 + h) * args->q_head_stride;
            rows_of(step)->bring(q, (const unsigned char *)args->q + at * size, spec->q_dtype, dim);
            for (uint32_t d = dim; d < step->q_stride; d++) {
                q[d] = 0.0f;
            }
            if (spec->kv.k.rotated) {
                rows_of(step)->rotate(q, dim);
            }
            if (channel != NULL) {
                rows_of(step)->scale_each(q, channel, dim);
            }
            oct__ahead_ask(ahead, n_each);
        }
    }
}

static void run_kernel(const oct__step *step, const oct_attn_spec *spec, const oct_attn_args *args, const oct__item *item, const block *b,
                       oct__ahead *ahead, uint32_t n_each)
{
    const uint32_t n_vectors = item->n_rows * item->n_heads;
    if (item->key0 == item->key1) {
        for (uint32_t i = 0; i < n_vectors; i++) {
            b->m[i] = -INFINITY;
            b->z[i] = 0.0f;
        }
        memset(b->o, 0, (size_t)n_vectors * step->o_stride * sizeof(float));
        return;
    }
    bring_q(step, spec, args, item, b->q, ahead, n_each);
    const int32_t n_rows_sequence = step->qo_indptr[item->sequence + 1] - step->qo_indptr[item->sequence];
    const oct__attn_tile tile = {
        .kv = args->layer,
        .pages = step->pages + step->page_offset[item->sequence],
        .head_kv = item->head_kv,
        .n_rows = item->n_rows,
        .n_heads = item->n_heads,
        .key0 = item->key0,
        .key1 = item->key1,
        .pos0 = item->pos0,
        .causal = spec->causal,
        .window = spec->window_tokens,
        .score_scale = spec->sm_scale * (args->q_scale != NULL ? args->q_scale[0] : 1.0f) *
                       static_scale(spec->kv.k.scale_mode, args->layer->k_scale, item->head_kv),
        .softcap = spec->softcap,
        .q = b->q,
        .q_stride = step->q_stride,
        .mask = spec->has_mask ? args->mask + item->row0 * args->mask_row_stride : NULL,
        .mask_row_stride = args->mask_row_stride,
        .mask_key0 = (int64_t)step->kv_len[item->sequence] - n_rows_sequence,
        .o = b->o,
        .o_stride = step->o_stride,
        .m = b->m,
        .z = b->z,
        .scratch = b->variant_scratch,
    };
    item->variant->attn(&tile);
}

/* ---- after the kernel --------------------------------------------------------------------------------------------------- */

/* A state that holds no key. A NaN in z is a stored NaN that was seen, whatever m says, and must come out. */
static bool is_empty(float m, float z)
{
    return z == 0.0f || (m == -INFINITY && !isnan(z));
}

/* From a vector's state to its row of out and lse. o is used up. */
static void finish_vector(const oct__step *step, const oct_attn_spec *spec, const oct_attn_args *args, const oct__item *item, uint32_t i, float *o, float m, float z)
{
    const int64_t row = item->row0 + i / item->n_heads;
    const uint32_t head = item->head0 + i % item->n_heads;
    const uint32_t dim = spec->kv.dim_v;
    const float sink = spec->has_sink ? args->sink[head] : -INFINITY;
    const int64_t out_at = (row * args->out_row_stride + head * args->out_head_stride) * (int64_t)oct__dtype_size_bytes(spec->out_dtype);
    float lse;

    if (is_empty(m, z)) {
        lse = sink;
        memset(o, 0, dim * sizeof(float));
    } else {
        const double max = (double)(sink > m ? sink : m);
        double keep = 1.0, total = (double)z;
        if (sink > -INFINITY || !isfinite(m)) { /* else just these numbers, and two exponentials are a sixth of a vector with few keys */
            keep = exp((double)m - max);
            total = (double)z * keep + exp((double)sink - max);
        }
        const float factor = (float)(keep / total * (double)static_scale(spec->kv.v.scale_mode, args->layer->v_scale, item->head_kv));
        lse = args->lse != NULL ? (float)(max + log(total)) : 0.0f;
        rows_of(step)->scale(o, factor, dim);
        if (spec->kv.v.scale_mode == OCT_SCALE_CHANNEL) {
            /* Divided out of V after its rotation, so back in before the inverse, which is the rotation itself. */
            const float *channel = args->layer->v_scale + (size_t)item->head_kv * dim;
            rows_of(step)->scale_each(o, channel, dim);
        }
        if (spec->kv.v.rotated) {
            rows_of(step)->rotate(o, dim);
        }
    }
    rows_of(step)->deliver((unsigned char *)args->out + out_at, spec->out_dtype, o, dim, args->out_scale != NULL ? args->out_scale[0] : 1.0f);
    if (args->lse != NULL) {
        args->lse[row * args->lse_row_stride + head * args->lse_head_stride] = lse;
    }
}

/* ---- the run ------------------------------------------------------------------------------------------------------------- */

static void run_split(const oct__step *step, const oct_attn_spec *spec, const oct_attn_args *args, const oct__item *item, const block *b)
{
    const uint32_t n_vectors = item->n_rows * item->n_heads;
    const int64_t part_floats = oct__partial_floats(n_vectors, step->o_stride);
    float *part = step->partials + item->partial0;
    const float *first = part - item->split * part_floats;
    memcpy(part, b->o, (size_t)n_vectors * step->o_stride * sizeof(float));
    part += (size_t)n_vectors * step->o_stride;
    memcpy(part, b->m, n_vectors * sizeof(float));
    memcpy(part + n_vectors, b->z, n_vectors * sizeof(float));

    if (atomic_fetch_add_explicit(&step->arrived[item->group], 1, memory_order_acq_rel) + 1 < item->n_splits) {
        return;
    }
    atomic_store_explicit(&step->arrived[item->group], 0, memory_order_relaxed);
    const float *states = first + (size_t)n_vectors * step->o_stride;
    for (uint32_t i = 0; i < n_vectors; i++) {
        const merge_parts parts = { first + (size_t)i * step->o_stride, states + i, states + n_vectors + i, part_floats, part_floats, item->n_splits };
        float m;
        double z;
        merge_vector(&parts, spec->kv.dim_v, b->o, &m, &z, rows_of(step)->weigh);
        finish_vector(step, spec, args, item, i, b->o, m, (float)z);
    }
}

/* The rows of the item that this thread claims next if all go on alike. */
static void point_ahead(const oct__step *step, const oct_attn_args *args, int64_t claim, oct__ahead *ahead)
{
    ahead->at = ahead->n = 0;
    /* An item without keys may belong to a batch without pages. */
    if (claim < step->n_items && step->items[claim].key0 < step->items[claim].key1) {
        const oct__item *item = &step->items[claim];
        oct__ahead_point(ahead, args->layer, step->pages + step->page_offset[item->sequence], item);
    }
}

void oct__attn_run_part(const oct__step *step, const oct_attn_spec *spec, const oct_attn_args *args, uint32_t ith, uint32_t nth)
{
    oct__claimant claimant = oct__claimant_of(ith, nth);
    int64_t claim;
    bool is_first = true;
    oct__ahead ahead;
    while ((claim = oct__claim(step, &claimant)) >= 0) {
        const oct__item *item = &step->items[claim];
        const uint32_t n_vectors = item->n_rows * item->n_heads;
        const block b = block_of(step, n_vectors, ith);
        if (is_first) {
            point_ahead(step, args, claim, &ahead);
            oct__ahead_ask(&ahead, ahead.n);
            is_first = false;
        }
        point_ahead(step, args, oct__claim_ahead(&claimant, claim), &ahead);
        const uint32_t n_each = (ahead.n + 2 * n_vectors - 1) / (2 * n_vectors); /* half on the way in, half on the way out */
        run_kernel(step, spec, args, item, &b, &ahead, n_each);
        if (item->n_splits > 1) {
            oct__ahead_ask(&ahead, ahead.n);
            run_split(step, spec, args, item, &b);
            continue;
        }
        for (uint32_t i = 0; i < n_vectors; i++) {
            finish_vector(step, spec, args, item, i, b.o + (size_t)i * step->o_stride, b.m[i], b.z[i]);
            oct__ahead_ask(&ahead, n_each);
        }
    }
}
