/* Fuzz target: V in 4 bits. The first byte says whether it is rotated; the rest is read twice: as f32, which every row of kv_write that runs here must store as the same
 * bytes and count alike, and as the bytes of pages, of which every row of attn_decode must read what the format says, whatever scales and codes stand
 * there: one key a sequence, so that its value comes out. The first call makes what all share; one thread. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "api/context.h"
#include "octavo/octavo.h"
#include "plan/choose.h"
#include "plan/facts.h"
#include "plan/gate.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { TOKENS = 4, HEADS = 2, DIM = 64, BLOCKS = TOKENS * HEADS * DIM / 32, BLOCK_BYTES = 18, K_DIM = 16, PLANS = 16 };

static oct_context *context;
static oct_plan *plans[2][PLANS];   /* by rotation: one of every row that takes it */

static void demand(int holds)
{
    if (!holds) {
        abort();
    }
}

static oct_kv_spec spec_of(uint8_t is_rotated)
{
    return (oct_kv_spec){ sizeof(oct_kv_spec), OCT_LAYOUT_NHD, HEADS, K_DIM, DIM, 1, { OCT_DTYPE_F32, OCT_SCALE_NONE, 0, 0 },
                          { OCT_DTYPE_V4, OCT_SCALE_NONE, 0, is_rotated } };
}

static void open_all(void)
{
    const oct_context_options options = { .struct_size = sizeof(options), .max_threads = 1 };
    demand(oct_context_create(&options, &context, NULL) == OCT_OK);
    for (uint8_t rotated = 0; rotated < 2; rotated++) {
        uint32_t n_plans = 0;
        const char *name;
        for (uint32_t i = 0; (name = oct_variant_name(i)) != NULL; i++) {
            const oct_attn_spec spec = { .struct_size = sizeof(spec), .heads_q = HEADS, .kv = spec_of(rotated), .q_dtype = OCT_DTYPE_F32, .out_dtype = OCT_DTYPE_F32, .sm_scale = 1, .force_variant = name };
            demand(n_plans < PLANS);
            n_plans += strncmp(name, "attn_decode.", 12) == 0 && oct_plan_create(context, &spec, &plans[rotated][n_plans], NULL) == OCT_OK;
        }
        demand(n_plans > 0);
    }
}

static oct_kv_layer layer_of(uint8_t is_rotated, float *k, uint8_t *v)
{
    oct_kv_layer layer = { .struct_size = sizeof(layer), .spec = spec_of(is_rotated), .n_pages = TOKENS, .k = k, .v = v };
    layer.k_page_stride = layer.k_token_stride = HEADS * K_DIM;
    layer.k_head_stride = K_DIM;
    layer.v_page_stride = layer.v_token_stride = HEADS * DIM;
    layer.v_head_stride = DIM;
    return layer;
}

/* ---- the writes ---------------------------------------------------------------------------------------------------------- */

static void write_alike(uint8_t is_rotated, const float *source)
{
    static const int32_t slots[TOKENS] = { 2, 0, 3, 1 };
    static float k[TOKENS * HEADS * K_DIM], k_source[TOKENS * HEADS * K_DIM];
    uint8_t first[BLOCKS * BLOCK_BYTES], v[BLOCKS * BLOCK_BYTES];
    oct_kv_counts first_counts = { 0 };
    uint32_t n_rows, n_ran = 0;
    const oct_kv_spec spec = spec_of(is_rotated);
    const oct_kv_layer layer = layer_of(is_rotated, k, v);
    const oct__facts facts = oct__facts_of_write(&context->machine.facts, &spec, OCT_DTYPE_F32);
    const oct__variant *rows = oct__variants_of(OCT__DEVICE_CPU, &n_rows);
    const oct_kv_write_args args = { .struct_size = sizeof(args), .layer = &layer, .slots = slots, .n_tokens = TOKENS, .k = k_source, .v = source, .src_dtype = OCT_DTYPE_F32,
                                     .k_token_stride = HEADS * K_DIM, .k_head_stride = K_DIM, .v_token_stride = HEADS * DIM, .v_head_stride = DIM };
    for (uint32_t i = 0; i < n_rows; i++) {
        oct_kv_counts k_counts = { 0 }, counts = { 0 };
        if (rows[i].op != OCT__OP_kv_write || oct__gates_first_failed(&rows[i], &facts) != NULL) {
            continue;
        }
        memset(v, 0xA5, sizeof(v));
        rows[i].write(&args, 0, TOKENS, &k_counts, &counts);
        if (n_ran++ == 0) {
            memcpy(first, v, sizeof(first));
            first_counts = counts;
        }
        demand(memcmp(first, v, sizeof(first)) == 0 && memcmp(&first_counts, &counts, sizeof(counts)) == 0);
    }
    demand(n_ran > 0 && first_counts.n_values == TOKENS * HEADS * DIM);
    for (int b = 0; b < BLOCKS; b++) {
        const uint8_t *block = first + b * BLOCK_BYTES;
        const uint32_t scale = block[0] | (uint32_t)block[1] << 8;
        demand(scale > 0 && scale <= 0x7E00 && scale != 0x7C00);   /* positive: a number, or the NaN */
        for (int i = 2; i < BLOCK_BYTES; i++) {
            demand(scale < 0x7C00 || block[i] == 0);
        }
    }
}

/* ---- the reads ----------------------------------------------------------------------------------------------------------- */

static double half_of(uint32_t code)
{
    const int exponent = (int)(code >> 10 & 31);
    const double fraction = (double)(code & 1023), sign = (code & 0x8000) != 0 ? -1 : 1;
    return exponent == 31 ? (fraction > 0 ? (double)NAN : sign * (double)INFINITY) : sign * (exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25));
}

static double value_of(const uint8_t *v, int at)
{
    static const int numbers[16] = { 0, 11, 22, 35, 48, 63, 80, 99, 124, -123, -94, -73, -56, -41, -26, -13 };
    const uint8_t *block = v + at / 32 * BLOCK_BYTES;
    return numbers[block[2 + at % 16] >> (at % 32 < 16 ? 0 : 4) & 15] * half_of(block[0] | (uint32_t)block[1] << 8);
}

static void read_alike(uint8_t is_rotated, uint8_t *v)
{
    static const int32_t qo_indptr[TOKENS + 1] = { 0, 1, 2, 3, 4 }, seq_lens[TOKENS] = { 1, 1, 1, 1 }, table[TOKENS] = { 0, 1, 2, 3 };
    static float k[TOKENS * HEADS * K_DIM], q[TOKENS * HEADS * K_DIM];
    float out[TOKENS * HEADS * DIM];
    const oct_kv_layer layer = layer_of(is_rotated, k, v);
    const oct_attn_batch batch = { .struct_size = sizeof(batch), .n_sequences = TOKENS, .qo_indptr = qo_indptr, .block_table = table, .max_pages = 1, .seq_lens = seq_lens, .n_pages = TOKENS };
    const oct_attn_args args = { .struct_size = sizeof(args), .layer = &layer, .q = q, .q_row_stride = HEADS * K_DIM, .q_head_stride = K_DIM, .out = out, .out_row_stride = HEADS * DIM,
                                 .out_head_stride = DIM };
    for (int p = 0; p < PLANS && plans[is_rotated][p] != NULL; p++) {
        demand(oct_plan_update(plans[is_rotated][p], &batch, NULL) == OCT_OK && oct_attn_run(plans[is_rotated][p], &args) == OCT_OK);
        for (int at = 0; !is_rotated && at < TOKENS * HEADS * DIM; at++) {
            const double is = (double)out[at], wanted = value_of(v, at);
            demand(isfinite(wanted) ? fabs(is - wanted) <= 1e-4 * fabs(wanted) : !isfinite(is));   /* a weight of 1 in 15 bits */
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    float source[TOKENS * HEADS * DIM] = { 0 };
    uint8_t pages[BLOCKS * BLOCK_BYTES] = { 0 };
    if (context == NULL) {
        open_all();
    }
    if (size == 0) {
        return 0;
    }
    const uint8_t is_rotated = data[0] & 1;
    memcpy(source, data + 1, size - 1 < sizeof(source) ? size - 1 : sizeof(source));
    memcpy(pages, data + 1, size - 1 < sizeof(pages) ? size - 1 : sizeof(pages));
    write_alike(is_rotated, source);
    read_alike(is_rotated, pages);
    return 0;
}
