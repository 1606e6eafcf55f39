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

/* Few: a block that all rows see is taken PASS vectors at a time; of any other each row takes its keys by itself. */
static void tally_few(oct__tally *tally, const oct_attn_spec *spec, uint32_t n_rows, uint32_t n_heads, int64_t key0, int64_t key1, int64_t pos0)
{
    const uint32_t n_vectors = n_rows * n_heads;
    int64_t common0 = key0, common1 = key1;
    if (n_rows > 1 && spec->causal) {
        common1 = least(key1, most(pos0 + 1, 0) / BLOCK * BLOCK);
    }
    if (n_rows > 1 && spec->window_tokens > 0) {
        common0 = most(key0, blocks_of(most(pos0 + n_rows - (int64_t)spec->window_tokens, 0)) * BLOCK);
    }
    if (common1 <= common0) {
        common0 = common1 = key0;
    }
    const int64_t n_common = common1 - common0;
    const int64_t passes = (n_vectors + PASS - 1) / PASS, passes_row = (n_heads + PASS - 1) / PASS;
    tally->few.scores += n_common * n_vectors;
    tally->few.keys += n_common;
    tally->few.loads += n_common * passes;
    tally->few.blocks += blocks_of(n_common) * passes;
    if (n_common == key1 - key0) {
        return;
    }
    for (uint32_t r = 0; r < n_rows; r++) {
        const int64_t pos = pos0 + r;
        const int64_t low = spec->window_tokens > 0 ? most(key0, pos - (int64_t)spec->window_tokens + 1) : key0;
        const int64_t high = spec->causal ? least(key1, pos + 1) : key1;
        const int64_t n = most(high - low, n_common) - n_common;
        tally->few.scores += n * n_heads;
        tally->few.keys += n;
        tally->few.loads += n * passes_row;
        tally->few.blocks += blocks_of(n) * passes_row;
    }
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
        tally_few(tally, spec, n_rows, n_heads, key0, key1, pos0);
        return;
    }
    tally->many.scores += n_keys * n_vectors;
    tally->many.keys += n_keys;
    tally->many.loads += n_keys;
    tally->many.blocks += blocks_of(n_keys);
    tally->many.pads += n_keys * ((n_vectors + LANES - 1) / LANES * LANES - n_vectors);
}

/* ---- amounts -------------------------------------------------------------------------------------------------------------- */

static double token_bytes(const oct_kv_format *format, uint32_t dim)
{
    double bytes = (double)dim * oct_dtype_size_bytes(format->dtype);
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

static oct__amount_way way_of(const oct_attn_spec *spec, double scores, double keys, double loads, double blocks, double pads)
{
    const oct_kv_spec *const kv = &spec->kv;
    /* A q that bf16 holds is one term of it, any other two. */
    const bool is_one_term = spec->q_dtype == OCT_DTYPE_BF16 && !kv->k.rotated && kv->k.scale_mode != OCT_SCALE_CHANNEL;
    oct__amount_way way = {
        .macs = scores * (kv->dim_k + kv->dim_v),
        .again = is_one_term ? 0 : (scores + pads) * kv->dim_k,
        .exps = scores + pads,
        .blocks = blocks,
        .pads = pads * kv->dim_k,
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
        .bytes = n_heads * (double)t->keys * (token_bytes(&kv->k, kv->dim_k) + token_bytes(&kv->v, kv->dim_v)),
        .many = way_of(spec, n_heads * (double)t->many.scores, n_heads * (double)t->many.keys, n_heads * (double)t->many.loads, n_heads * (double)t->many.blocks,
                       n_heads * (double)t->many.pads),
        .few = way_of(spec, n_heads * (double)t->few.scores, n_heads * (double)t->few.keys, n_heads * (double)t->few.loads, n_heads * (double)t->few.blocks,
                      n_heads * (double)t->few.pads),
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
