/* table.c: owns the tables of all variants, one a kind of device, made from each room's variants.def. The CPU's is read three times: for the
 * prototypes, for the gates of each row, and for the rows; a GPU's twice, since its rows name kernels instead of functions.
 *
 * Threads: constant data. */
#include "plan/table.h"

/* The order of a file's rows decides ties and the order of explain's lines. */

#define COST(item_ns_, mac_ps_, convert_ps_, exp_ps_) \
    { .item_ns = (item_ns_), .many = { .mac_ps = (mac_ps_), .convert_ps = (convert_ps_), .exp_ps = (exp_ps_) } }
#define COST_BY(item_ns_, vector_ps_, mac_ps_, bf16_ps_, exp_ps_, float8_ps_, i8_ps_, half_ps_, f32_ps_, pad_ps_) \
    { .item_ns = (item_ns_), .vector_ps = (vector_ps_), \
      .many = { .unit = (bf16_ps_) > 0 ? OCT__UNIT_BF16 : OCT__UNIT_CORE, .mac_ps = (mac_ps_) + (bf16_ps_), .exp_ps = (exp_ps_), .convert_ps = (float8_ps_), \
                .convert_i8_ps = (i8_ps_), .convert_16bit_ps = (half_ps_), .convert_f32_ps = (f32_ps_), .pad_ps = (pad_ps_) } }
#define WAY(unit_, mac_ps_, again_ps_, exp_ps_, block_ns_, stage_ps_, float8_ps_, i8_ps_, half_ps_, f32_ps_, pad_ps_, value_ps_) \
    { .unit = OCT__UNIT_##unit_, .mac_ps = (mac_ps_), .again_ps = (again_ps_), .exp_ps = (exp_ps_), .block_ns = (block_ns_), .stage_ps = (stage_ps_), .convert_ps = (float8_ps_), \
      .convert_i8_ps = (i8_ps_), .convert_16bit_ps = (half_ps_), .convert_f32_ps = (f32_ps_), .pad_ps = (pad_ps_), .value_ps = (value_ps_) }
/* Of a kernel that takes all tiles the way of many. */
#define NO_WAY { .unit = OCT__UNIT_CORE }
#define COST_WAYS(item_ns_, vector_ps_, key_ps_, page_ps_, scale_ps_, edge_ps_, lane_ps_, wait_share_, few_vectors_, few_keys_, few_pass_, lanes_, span_, few_, many_) \
    { .item_ns = (item_ns_), .vector_ps = (vector_ps_), .key_ps = (key_ps_), .page_ps = (page_ps_), .scale_ps = (scale_ps_), .edge_ps = (edge_ps_), .lane_ps = (lane_ps_), \
      .wait_share = (wait_share_), .few_vectors = (few_vectors_), .few_keys = (few_keys_), .few_pass = (few_pass_), .lanes = (lanes_), .span = (span_), .few = few_, .many = many_ }

/* ---- prototypes: a row's entries are what its macro says they are, or the file that defines them does not compile ---- */
#define NEED(fact, op, arg, why)
#define NO_GATE
#define WRITE_VARIANT(name, entry, tolerance, cost, ...) extern oct__kv_write_fn entry;
#define DECODE_VARIANT(name, entry, scratch, tolerance, tile_vectors, cost, ...) extern oct__attn_fn entry; extern oct__attn_scratch_fn scratch;
#define EXTEND_VARIANT DECODE_VARIANT
#define MERGE_VARIANT(name, entry, tolerance, cost, ...) extern oct__attn_merge_fn entry;
#include "cpu/variants.def"
#undef WRITE_VARIANT
#undef DECODE_VARIANT
#undef EXTEND_VARIANT
#undef MERGE_VARIANT
#undef NEED

/* ---- gates: each array begins with an entry that is never looked at, since C has no empty arrays --------------------- */
#define NEED(fact, op, arg, why) { OCT__FACT_##fact, OCT__GATE_##op, (arg), (why) }
#define GATES(op, name, ...) static const oct__gate gates_##op##_##name[] = { { OCT__FACT_COUNT, OCT__GATE_EQ, 0, "" }, __VA_ARGS__ };
#define WRITE_VARIANT(name, entry, tolerance, cost, ...) GATES(kv_write, name, __VA_ARGS__)
#define DECODE_VARIANT(name, entry, scratch, tolerance, tile_vectors, cost, ...) GATES(attn_decode, name, __VA_ARGS__)
#define EXTEND_VARIANT(name, entry, scratch, tolerance, tile_vectors, cost, ...) GATES(attn_extend, name, __VA_ARGS__)
#define MERGE_VARIANT(name, entry, tolerance, cost, ...) GATES(attn_merge, name, __VA_ARGS__)
#include "cpu/variants.def"
#undef WRITE_VARIANT
#undef DECODE_VARIANT
#undef EXTEND_VARIANT
#undef MERGE_VARIANT

#define DEVICE_VARIANT(op, name, kernel, tolerance, tile_vectors, cost, ...) GATES(cuda_##op, name, __VA_ARGS__)
#include "cuda/variants.def"
#undef DEVICE_VARIANT
#define DEVICE_VARIANT(op, name, kernel, tolerance, tile_vectors, cost, ...) GATES(hip_##op, name, __VA_ARGS__)
#include "hip/variants.def"
#undef DEVICE_VARIANT

/* ---- rows ------------------------------------------------------------------------------------------------------------ */
#define NAMES(op_, name_) .op = OCT__OP_##op_, .name = #name_, .full_name = #op_ "." #name_
#define GATED(op_, name_) .gates = gates_##op_##_##name_ + 1, .n_gates = (uint32_t)(sizeof(gates_##op_##_##name_) / sizeof(oct__gate)) - 1
#define ATTN_ROW(op_, name_, entry, scratch_, tolerance_, tile_vectors_, ...) \
    { NAMES(op_, name_), .attn = (entry), .scratch = (scratch_), .tolerance = OCT__TOL_##tolerance_, .tile_vectors = (tile_vectors_), \
      .cost = __VA_ARGS__, GATED(op_, name_) },
#define WRITE_VARIANT(name_, entry, tolerance_, cost_, ...) \
    { NAMES(kv_write, name_), .write = (entry), .tolerance = OCT__TOL_##tolerance_, .cost = cost_, GATED(kv_write, name_) },
#define DECODE_VARIANT(name_, entry, scratch_, tolerance_, tile_vectors_, cost_, ...) \
    ATTN_ROW(attn_decode, name_, entry, scratch_, tolerance_, tile_vectors_, cost_)
#define EXTEND_VARIANT(name_, entry, scratch_, tolerance_, tile_vectors_, cost_, ...) \
    ATTN_ROW(attn_extend, name_, entry, scratch_, tolerance_, tile_vectors_, cost_)
#define MERGE_VARIANT(name_, entry, tolerance_, cost_, ...) \
    { NAMES(attn_merge, name_), .merge = (entry), .tolerance = OCT__TOL_##tolerance_, .cost = cost_, GATED(attn_merge, name_) },

static const oct__variant rows[] = {
#include "cpu/variants.def"
};

#define DEVICE_ROW(room, op_, name_, kernel_, tolerance_, tile_vectors_, ...) \
    { NAMES(op_, name_), .kernel = (kernel_), .tolerance = OCT__TOL_##tolerance_, .tile_vectors = (tile_vectors_), .cost = __VA_ARGS__, \
      GATED(room##_##op_, name_) },
#define DEVICE_VARIANT(op_, name_, kernel_, tolerance_, tile_vectors_, cost_, ...) DEVICE_ROW(cuda, op_, name_, kernel_, tolerance_, tile_vectors_, cost_)
static const oct__variant cuda_rows[] = {
#include "cuda/variants.def"
};
#undef DEVICE_VARIANT
#define DEVICE_VARIANT(op_, name_, kernel_, tolerance_, tile_vectors_, cost_, ...) DEVICE_ROW(hip, op_, name_, kernel_, tolerance_, tile_vectors_, cost_)
static const oct__variant hip_rows[] = {
#include "hip/variants.def"
};

#define COUNT(table) ((uint32_t)(sizeof(table) / sizeof((table)[0])))
_Static_assert(COUNT(rows) <= OCT__VARIANTS_MAX && COUNT(cuda_rows) <= OCT__VARIANTS_MAX && COUNT(hip_rows) <= OCT__VARIANTS_MAX, "raise OCT__VARIANTS_MAX");

const oct__variant *oct__variants_of(oct__device device, uint32_t *n)
{
    static const struct { const oct__variant *rows; uint32_t n; } tables[OCT__DEVICE_COUNT] = {
        [OCT__DEVICE_CPU] = { rows, COUNT(rows) },
        [OCT__DEVICE_CUDA] = { cuda_rows, COUNT(cuda_rows) },
        [OCT__DEVICE_HIP] = { hip_rows, COUNT(hip_rows) },
    };
    *n = tables[device].n;
    return tables[device].rows;
}

const oct__variant *oct__variants(uint32_t *n)
{
    return oct__variants_of(OCT__DEVICE_CPU, n);
}

const char *oct__op_name(oct__op op)
{
    static const char *const names[OCT__OP_COUNT] = {
        [OCT__OP_kv_write] = "kv_write",
        [OCT__OP_attn_decode] = "attn_decode",
        [OCT__OP_attn_extend] = "attn_extend",
        [OCT__OP_attn_merge] = "attn_merge",
    };
    return (unsigned)op < OCT__OP_COUNT ? names[op] : "?";
}
