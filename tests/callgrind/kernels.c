/* kernels.c: seven fixed pieces of work on scalar and AVX2 rows named one by one, each inside a function that callgrind can tell by its name.
 * tests/callgrind/check.py runs it and compares the instructions with record.txt. What is random is seeded and has no part in which way the
 * kernels go. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "octavo/octavo.h"
#include "plan/variant.h"

enum { HEADS_Q = 8, HEADS = 2, DIM = 128, PAGE = 16, KEYS = 512, ROWS = 64, TOKENS = 256, PARTS = 8, N_PAGES = KEYS / PAGE };

static oct_context *context;
static float source[2][TOKENS][HEADS][DIM], q[ROWS][HEADS_Q][DIM], out[ROWS][HEADS_Q][DIM], parts[PARTS][ROWS][HEADS_Q][DIM], lse[PARTS][ROWS][HEADS_Q];

static void fail(const char *what, const oct_error *error)
{
    fprintf(stderr, "%s: %s\n", what, error != NULL ? error->text : "failed");
    exit(1);
}

static uint64_t state = 1;
static float draw(void)
{
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (float)(state >> 40) / (float)(1 << 23) - 1.0f;
}

/* ---- the measured functions: one a kernel, so that callgrind tells them by name --------------------------------------------- */

/* Differs from function to function, or the compiler makes them one. */
static volatile int stage;

#define MEASURED_ATTN(number, name)                                                                 \
    __attribute__((noinline)) static oct_status name(oct_plan *plan, const oct_attn_args *args)     \
    {                                                                                               \
        const oct_status status = oct_attn_run(plan, args);                                         \
        stage = (number);                                                                           \
        return status;                                                                              \
    }
MEASURED_ATTN(1, measured_decode_avx2)
MEASURED_ATTN(2, measured_extend_avx2)
MEASURED_ATTN(3, measured_decode_scalar)
typedef oct_status measured_attn(oct_plan *plan, const oct_attn_args *args);

#define MEASURED_WRITE(number, name)                                                                \
    __attribute__((noinline)) static void name(const oct__variant *row, const oct_kv_write_args *args) \
    {                                                                                               \
        row->write(args, 0, args->n_tokens, NULL, NULL);                                            \
        stage = (number);                                                                           \
    }
MEASURED_WRITE(4, measured_write_avx2)
MEASURED_WRITE(5, measured_write_scalar)
typedef void measured_write(const oct__variant *row, const oct_kv_write_args *args);

#define MEASURED_MERGE(number, name)                                                                            \
    __attribute__((noinline)) static void name(const oct__variant *row, const oct_attn_merge_args *args)        \
    {                                                                                                           \
        row->merge(args, 0, args->rows);                                                                        \
        stage = (number);                                                                                       \
    }
MEASURED_MERGE(6, measured_merge_scalar)
MEASURED_MERGE(7, measured_merge_avx2)
typedef void measured_merge(const oct__variant *row, const oct_attn_merge_args *args);

/* ---- set-up ------------------------------------------------------------------------------------------------------------------ */

static const oct__variant *row_of(const char *name)
{
    uint32_t n;
    const oct__variant *rows = oct__variants(&n);
    for (uint32_t i = 0; i < n; i++) {
        if (strcmp(rows[i].full_name, name) == 0) {
            return &rows[i];
        }
    }
    fail(name, NULL);
    return NULL;
}

static oct_kv_pool *make_layer(oct_kv_format k, oct_kv_format v, oct_kv_spec *spec, oct_kv_layer *layer)
{
    oct_error error = OCT_ERROR_INIT;
    oct_kv_pool *pool = NULL;
    *spec = (oct_kv_spec){ .struct_size = sizeof(*spec), .layout = OCT_LAYOUT_NHD, .heads = HEADS, .dim_k = DIM, .dim_v = DIM, .page_size = PAGE, .k = k, .v = v };
    const oct_kv_pool_options options = { .struct_size = sizeof(options), .n_layers = 1, .n_pages = N_PAGES, .spec = *spec };
    layer->struct_size = sizeof(*layer);
    if (oct_kv_pool_create(context, &options, &pool, &error) != OCT_OK || oct_kv_pool_layer(pool, 0, layer, &error) != OCT_OK) {
        fail("pool", &error);
    }
    return pool;
}

static oct_kv_write_args write_args(const oct_kv_layer *layer, int32_t *slots, int32_t first)
{
    for (int32_t i = 0; i < TOKENS; i++) {
        slots[i] = first + i;
    }
    return (oct_kv_write_args){ .struct_size = sizeof(oct_kv_write_args), .layer = layer, .slots = slots, .n_tokens = TOKENS, .src_dtype = OCT_DTYPE_F32, .k = source[0], .v = source[1],
                                .k_token_stride = HEADS * DIM, .k_head_stride = DIM, .v_token_stride = HEADS * DIM, .v_head_stride = DIM };
}

static void run_write(measured_write *measured, const char *variant, oct_kv_format k, oct_kv_format v)
{
    oct_kv_spec spec;
    oct_kv_layer layer;
    int32_t slots[TOKENS];
    oct_kv_pool *pool = make_layer(k, v, &spec, &layer);
    const oct_kv_write_args args = write_args(&layer, slots, 0);
    measured(row_of(variant), &args);
    oct_kv_pool_destroy(pool);
}

static void run_attn(measured_attn *measured, const char *variant, oct_kv_format k, oct_kv_format v, int32_t n_rows)
{
    oct_kv_spec spec;
    oct_kv_layer layer;
    int32_t slots[TOKENS], pages[N_PAGES];
    oct_error error = OCT_ERROR_INIT;
    oct_plan *plan = NULL;
    oct_kv_pool *pool = make_layer(k, v, &spec, &layer);
    for (int32_t first = 0; first < KEYS; first += TOKENS) {
        const oct_kv_write_args write = write_args(&layer, slots, first);
        if (oct_kv_write(context, &write) != OCT_OK) {
            fail("oct_kv_write", NULL);
        }
    }
    for (int32_t i = 0; i < N_PAGES; i++) {
        pages[i] = (i * 7 + 3) % N_PAGES;
    }
    const oct_attn_spec attention = { .struct_size = sizeof(attention), .heads_q = HEADS_Q, .kv = spec, .q_dtype = OCT_DTYPE_F32, .out_dtype = OCT_DTYPE_F32,
                                      .sm_scale = 0.0883883476f, .causal = 1, .force_variant = variant };
    const int32_t qo_indptr[] = { 0, n_rows }, length[] = { KEYS };
    const oct_attn_batch batch = { .struct_size = sizeof(batch), .n_sequences = 1, .qo_indptr = qo_indptr, .block_table = pages, .seq_lens = length, .max_pages = N_PAGES, .n_pages = N_PAGES };
    const oct_status status = oct_plan_create(context, &attention, &plan, &error);
    if (status == OCT_UNSUPPORTED) {
        puts(error.text);
        exit(77);   /* a machine without AVX2 */
    }
    if (status != OCT_OK || oct_plan_update(plan, &batch, &error) != OCT_OK) {
        fail(variant, &error);
    }
    const oct_attn_args args = { .struct_size = sizeof(args), .layer = &layer, .q = q, .q_row_stride = HEADS_Q * DIM, .q_head_stride = DIM, .out = out, .out_row_stride = HEADS_Q * DIM,
                                 .out_head_stride = DIM };
    if (measured(plan, &args) != OCT_OK) {
        fail(variant, NULL);
    }
    oct_plan_destroy(plan);
    oct_kv_pool_destroy(pool);
}

static void run_merge(measured_merge *measured, const char *variant)
{
    const oct_attn_merge_args args = { .struct_size = sizeof(args), .n_parts = PARTS, .rows = ROWS, .heads = HEADS_Q, .dim = DIM, .out = &parts[0][0][0][0],
                                       .out_part_stride = ROWS * HEADS_Q * DIM, .out_row_stride = HEADS_Q * DIM, .out_head_stride = DIM, .lse = &lse[0][0][0],
                                       .lse_part_stride = ROWS * HEADS_Q, .lse_row_stride = HEADS_Q, .lse_head_stride = 1, .merged = &out[0][0][0],
                                       .merged_row_stride = HEADS_Q * DIM, .merged_head_stride = DIM };
    measured(row_of(variant), &args);
}

int main(void)
{
    float *const arrays[] = { &source[0][0][0][0], &q[0][0][0], &parts[0][0][0][0], &lse[0][0][0] };
    const size_t sizes[] = { sizeof(source), sizeof(q), sizeof(parts), sizeof(lse) };
    for (size_t a = 0; a < 4; a++) {
        for (size_t i = 0; i < sizes[a] / sizeof(float); i++) {
            arrays[a][i] = draw();
        }
    }
    oct_error error = OCT_ERROR_INIT;
    if (oct_context_create(NULL, &context, &error) != OCT_OK) {
        fail("context", &error);
    }
    const oct_kv_format e4m3 = { OCT_DTYPE_E4M3FN, OCT_SCALE_NONE, 0, 0 }, i8 = { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16, 0 },
                        i8_rotated = { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16, 1 };
    /* Attention first: it is what says that the machine lacks AVX2. */
    run_attn(measured_decode_avx2, "attn_decode.avx2", e4m3, e4m3, 1);
    run_attn(measured_extend_avx2, "attn_extend.avx2", e4m3, e4m3, ROWS);
    run_attn(measured_decode_scalar, "attn_decode.scalar", i8_rotated, e4m3, 1);
    run_write(measured_write_avx2, "kv_write.avx2", i8_rotated, i8);
    run_write(measured_write_scalar, "kv_write.scalar", e4m3, e4m3);
    run_merge(measured_merge_scalar, "attn_merge.scalar");
    run_merge(measured_merge_avx2, "attn_merge.avx2");
    oct_context_destroy(context);
    return 0;
}
