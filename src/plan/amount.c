/* amount.c: see amount.h. What it counts is what the kernels of src/cpu do; tests/plan/test_cost.c does some by hand. */
#include "plan/amount.h"

#include <stdbool.h>

enum { LANES = 16, PASS = 4, BLOCK = 64 };

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t blocks_of(int64_t n_keys)
{
    return (n_keys + BLOCK - 1) / BLOCK;
}

/* ---- tiles ---------------------------------------------------------------------------------------------------------------- */

/* Times that few vectors bring a key into registers: as many at once as the kernel can, the rest PASS at a time. */
static int64_t passes_of(const oct__cost *cost, uint32_t n_vectors)
{
    const uint32_t pass = cost->few_pass > PASS ? cost->few_pass : PASS;
    return n_vectors / pass + (n_vectors % pass + PASS - 1) / PASS;
}

/* Whole blocks that all rows see, [*common0, *common1); nothing: both are key0. */
static void find_common(const oct_attn_spec *spec, uint32_t n_rows, int64_t key0, int64_t key1, int64_t pos0, int64_t *common0, int64_t *common1)
{
    *common0 = key0;
    *common1 = key1;
    if (n_rows > 1 && spec->causal) {
        *common1 = least(key1, most(pos0 + 1, 0) / BLOCK * BLOCK);
    }
    if (n_rows > 1 && spec->window_tokens > 0) {
        *common0 = most(key0, blocks_of(most(pos0 + n_rows - (int64_t)spec->window_tokens, 0)) * BLOCK);
    }
    if (*common1 <= *common0) {
        *common0 = *common1 = key0;
    }
}

/* Keys of [key0, key1) that any of the rows from pos0 to pos1 sees. */
static int64_t keys_seen(const oct_attn_spec *spec, int64_t key0, int64_t key1, int64_t pos0, int64_t pos1)
{
    const int64_t low = spec->window_tokens > 0 ? most(key0, pos0 - (int64_t)spec->window_tokens + 1) : key0;
    const int64_t high = spec->causal ? least(key1, pos1 + 1) : key1;
    return most(high - low, 0);
}

/* Few: a block that all rows see is taken in passes of some vectors; of any other each row takes its keys by itself. */
static void tally_few(oct__tally *tally, const oct_attn_spec *spec, const oct__cost *cost, uint32_t n_rows, uint32_t n_heads, int64_t key0, int64_t key1, int64_t pos0)
{
    const uint32_t n_vectors = n_rows * n_heads;
    int64_t common0, common1;
    find_common(spec, n_rows, key0, key1, pos0, &common0, &common1);
    const int64_t n_common = common1 - common0;
    const int64_t passes = passes_of(cost, n_vectors), passes_row = passes_of(cost, n_heads);
    int64_t scores = n_common * n_vectors;
    tally->few.keys += n_common;
    tally->few.loads += n_common * passes;
    tally->few.blocks += blocks_of(n_common) * passes;
    for (uint32_t r = 0; r < n_rows && n_common < key1 - key0; r++) {
        const int64_t n = most(keys_seen(spec, key0, key1, pos0 + r, pos0 + r), n_common) - n_common;
        scores += n * n_heads;
        tally->few.keys += n;
        tally->few.loads += n * passes_row;
        tally->few.blocks += blocks_of(n) * passes_row;
    }
    tally->few.scores += scores;
    tally->few.seen += scores;
    tally->few.exps += scores;
}

/* Many: scores by groups of registers of nearly one size, softmax by register, products with V by so few vectors that they see nearly the same. */
static void tally_many(oct__tally *tally, const oct_attn_spec *spec, const oct__cost *cost, uint32_t n_rows, uint32_t n_heads, int64_t key0, int64_t key1, int64_t pos0)
{
    const int64_t n_vectors = (int64_t)n_rows * n_heads, n_keys = key1 - key0, width = cost->lanes > 0 ? cost->lanes : LANES;
    const int64_t n_lanes = (n_vectors + width - 1) / width * width, n_registers = (n_lanes + LANES - 1) / LANES;
    tally->many.keys += n_keys;
    tally->many.loads += n_keys;
    tally->many.blocks += blocks_of(n_keys);
    tally->lanes += n_lanes;
    if (cost->span == 0 || n_rows == 1) {
        tally->many.scores += n_keys * n_vectors;
        tally->many.seen += n_keys * n_vectors;
        tally->many.exps += n_keys * n_lanes;
        tally->many.pads += n_keys * (n_lanes - n_vectors);
        return;
    }
    const int64_t n_groups = (n_registers * LANES + cost->span - 1) / cost->span;
    for (int64_t g = 0; g < n_groups; g++) {
        const int64_t begin = n_registers * g / n_groups, end = n_registers * (g + 1) / n_groups;
        const int64_t lane0 = begin * LANES, lane1 = least(end * LANES, n_lanes), real = least(lane1, n_vectors) - lane0;
        const int64_t n = keys_seen(spec, key0, key1, pos0 + lane0 / n_heads, pos0 + (lane0 + real - 1) / n_heads);
        tally->many.scores += n * real;
        tally->many.pads += n * (lane1 - lane0 - real);
        for (int64_t lane = lane0; lane < lane1; lane += LANES) {
            const int64_t last = least(lane + LANES, lane1);
            tally->many.exps += (last - lane) * keys_seen(spec, key0, key1, pos0 + lane / n_heads, pos0 + (least(last, n_vectors) - 1) / n_heads);
        }
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        tally->many.seen += n_heads * keys_seen(spec, key0, key1, pos0 + r, pos0 + r);
    }
    int64_t common0, common1;
    find_common(spec, n_rows, key0, key1, pos0, &common0, &common1);
    tally->edges += n_keys - (common1 - common0);
}

void oct__tally_tile(oct__tally *tally, const oct_attn_spec *spec, const oct__cost *cost, uint32_t n_rows, uint32_t n_heads, int64_t key0, int64_t key1,
                     int64_t pos0)
{
    const int64_t n_vectors = (int64_t)n_rows * n_heads, n_keys = key1 - key0;
    tally->tiles++;
    tally->vectors += n_vectors;
    tally->keys += n_keys;
    tally->pages += (n_keys + spec->kv.page_size - 1) / spec->kv.page_size;
    if (n_vectors <= cost->few_vectors && (n_rows == 1 || n_keys >= (int64_t)cost->few_keys * n_rows)) {
        tally_few(tally, spec, cost, n_rows, n_heads, key0, key1, pos0);
    } else {
        tally_many(tally, spec, cost, n_rows, n_heads, key0, key1, pos0);
    }
}

/* ---- amounts -------------------------------------------------------------------------------------------------------------- */

static double token_bytes(const oct_kv_format *format, uint32_t dim)
{
    double bytes = (double)oct_dtype_bytes(format->dtype, dim);
    if (format->scale_mode == OCT_SCALE_TOKEN_HEAD) {
        bytes += oct_dtype_size_bytes(format->scale_dtype);
    }
    return bytes;
}

static void add_converts(oct__amount_way *way, const oct_kv_format *format, double n)
{
    way->converts += n;
    switch (format->dtype) {
    case OCT_DTYPE_I8:
        way->converts_i8 += n;
        break;
    case OCT_DTYPE_F16:
    case OCT_DTYPE_BF16:
        way->converts_16bit += n;
        break;
    case OCT_DTYPE_F32:
        way->converts_f32 += n;
        break;
    default:
        break;
    }
}

static bool is_float8(uint32_t dtype)
{
    return dtype != OCT_DTYPE_I8 && oct_dtype_size_bytes(dtype) == 1;
}

static oct__amount_way way_of(const oct_attn_spec *spec, const oct__tally_way *t, double n_heads)
{
    const oct_kv_spec *const kv = &spec->kv;
    /* A q that bf16 holds is one term of it, any other two. */
    const bool is_one_term = spec->q_dtype == OCT_DTYPE_BF16 && !kv->k.rotated && kv->k.scale_mode != OCT_SCALE_CHANNEL;
    const double scores = n_heads * (double)t->scores, pads = n_heads * (double)t->pads, keys = n_heads * (double)t->keys, loads = n_heads * (double)t->loads;
    oct__amount_way way = {
        .macs = scores * kv->dim_k + n_heads * (double)t->seen * kv->dim_v,
        .again = is_one_term ? 0 : (scores + pads) * kv->dim_k,
        .exps = n_heads * (double)t->exps,
        .blocks = n_heads * (double)t->blocks,
        .pads = pads * kv->dim_k,
        .values = kv->v.dtype != OCT_DTYPE_I8 ? n_heads * (double)t->seen * kv->dim_v : 0,
    };
    add_converts(&way, &kv->k, loads * kv->dim_k);
    add_converts(&way, &kv->v, loads * kv->dim_v);
    way.staged = (is_float8(kv->k.dtype) ? keys * kv->dim_k : 0) + (is_float8(kv->v.dtype) ? keys * kv->dim_v : 0);
    return way;
}

oct__amount oct__amount_of_tally(const oct_attn_spec *spec, const oct__tally *t, double n_heads)
{
    const oct_kv_spec *const kv = &spec->kv;
    return (oct__amount){
        .items = n_heads * (double)t->tiles,
        .vectors = n_heads * (double)t->vectors * ((double)kv->dim_k + kv->dim_v),
        .keys = n_heads * (double)t->keys,
        .pages = n_heads * (double)t->pages,
        .edges = n_heads * (double)t->edges * kv->dim_v,
        .scales = n_heads * (double)t->pages * ((kv->k.scale_mode == OCT_SCALE_TOKEN_HEAD) + (kv->v.scale_mode == OCT_SCALE_TOKEN_HEAD)),
        .lanes = n_heads * (double)t->lanes * kv->dim_k,
        .bytes = n_heads * (double)t->keys * (token_bytes(&kv->k, kv->dim_k) + token_bytes(&kv->v, kv->dim_v)),
        .many = way_of(spec, &t->many, n_heads),
        .few = way_of(spec, &t->few, n_heads),
    };
}

oct__amount oct__amount_of_write(const oct_kv_spec *kv, uint32_t src_dtype, int64_t n_tokens)
{
    const double vectors = (double)n_tokens * kv->heads, dims = (double)kv->dim_k + kv->dim_v;
    return (oct__amount){
        .items = vectors,
        .bytes = vectors * (dims * oct_dtype_size_bytes(src_dtype) + token_bytes(&kv->k, kv->dim_k) + token_bytes(&kv->v, kv->dim_v)),
        .many = { .converts = vectors * dims },
    };
}

oct__amount oct__amount_of_merge(int64_t rows, uint32_t heads, uint32_t dim, uint32_t n_parts)
{
    const double vectors = (double)rows * heads;
    return (oct__amount){
        .items = vectors,
        .bytes = vectors * n_parts * (dim + 1.0) * 4,
        .many = { .macs = vectors * n_parts * dim, .exps = vectors * n_parts },
    };
}
