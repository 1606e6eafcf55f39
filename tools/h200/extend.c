/* extend.c: times the library's extend (prefill) on the NVIDIA GPU at hand: Hopper's kernels beside those of every GPU's matrix units, which choosing falls
 * back to, in turns within one run, since a card at its power limit slows down as it warms. Everything goes the library's way: plan_step plans on the device,
 * attention and its finish follow. The two outputs of each shape are compared.
 *
 * usage: extend CODE.cubin READ.cubin [-s SHAPE] [-r REPEATS] [-g GRID] [-m 0] [-c MORE.cubin] [-p PRODUCTS] [-t KEYS]
 * PRODUCTS: as oct_attn_spec.products; KEYS: of a total of 8-bit products, instead of the library's choice. MORE.cubin: where CODE lacks a kernel. GRID: blocks of Hopper's kernel, instead of the library's choice. -m 0: without the other kernels, and small outputs alone compared.
 *
 * Method: medians of single launches with a write of 256 MB before each; TFLOP/s count 4 x dim for each key that a row sees. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/launch.h"
#include "number/number.h"

typedef unsigned long long address;
typedef struct config { unsigned grid[3], block[3], shared; void *stream; void *attributes; unsigned n_attributes; } config;
typedef struct attribute { int id; char pad[4]; union { int allowed; char room[64]; } value; } attribute;

#define ENTRIES(X)                                                                                                                              \
    X(cuInit, (unsigned))                                                                                                                       \
    X(cuDeviceGet, (int *, int))                                                                                                                \
    X(cuDeviceGetName, (char *, int, int))                                                                                                      \
    X(cuDeviceGetAttribute, (int *, int, int))                                                                                                  \
    X(cuDevicePrimaryCtxRetain, (void **, int))                                                                                                 \
    X(cuCtxSetCurrent, (void *))                                                                                                                \
    X(cuModuleLoad, (void **, const char *))                                                                                                    \
    X(cuModuleGetFunction, (void **, void *, const char *))                                                                                     \
    X(cuFuncSetAttribute, (void *, int, int))                                                                                                   \
    X(cuMemAlloc_v2, (address *, size_t))                                                                                                       \
    X(cuMemFree_v2, (address))                                                                                                                  \
    X(cuMemcpyHtoD_v2, (address, const void *, size_t))                                                                                         \
    X(cuMemcpyDtoH_v2, (void *, address, size_t))                                                                                               \
    X(cuMemsetD8Async, (address, unsigned char, size_t, void *))                                                                                \
    X(cuLaunchKernelEx, (const config *, void *, void **, void **))                                                                             \
    X(cuStreamCreate, (void **, unsigned))                                                                                                      \
    X(cuStreamSynchronize, (void *))                                                                                                            \
    X(cuEventCreate, (void **, unsigned))                                                                                                       \
    X(cuEventRecord, (void *, void *))                                                                                                          \
    X(cuEventElapsedTime, (float *, void *, void *))

static struct {
#define X(name, arguments) int (*name) arguments;
    ENTRIES(X)
#undef X
} cu;

static void must(int error, const char *what)
{
    if (error != 0) {
        fprintf(stderr, "%s: error %d\n", what, error);
        exit(1);
    }
}
#define MUST(call) must(cu.call, #call)

static void *stream, *begin_event, *end_event, *code, *more, *extra;
static address flush_at;
static int n_units;

static address alloc(size_t bytes)
{
    address at = 0;
    MUST(cuMemAlloc_v2(&at, bytes + 256));
    return at;
}

static address upload(const void *from, size_t bytes)
{
    const address at = alloc(bytes);
    MUST(cuMemcpyHtoD_v2(at, from, bytes));
    return at;
}

static void *pointer(address at) { return (void *)(uintptr_t)at; }

static void launch(void *module, const char *symbol, unsigned grid_x, unsigned grid_y, unsigned threads, unsigned shared, void **arguments, int is_early)
{
    void *function;
    attribute early = { 6 /* programmatic stream serialization */, { 0 }, { 1 } };
    const config c = { { grid_x, grid_y, 1 }, { threads, 1, 1 }, shared, stream, &early, is_early != 0 };
    if (cu.cuModuleGetFunction(&function, module, symbol) != 0)
        MUST(cuModuleGetFunction(&function, more, symbol));
    if (shared > 48 * 1024)
        MUST(cuFuncSetAttribute(function, 8, (int)shared));
    MUST(cuLaunchKernelEx(&c, function, arguments, NULL));
}

static void run(const oct__dev_launch *l, const void *params, int is_early)
{
    char symbol[96];
    union { const void *from; void *to; } pun = { params };
    void *arguments[] = { pun.to };
    snprintf(symbol, sizeof symbol, "oct__dev_%s", l->kernel);
    launch(code, symbol, l->grid_x, l->grid_y, l->threads, l->shared_bytes, arguments, is_early);
}

/* ---- shapes ---------------------------------------------------------------------------------------------------------------------- */

typedef struct shape {
    const char *name;
    uint32_t heads_q, heads, dim_k, dim_v;
    int n, rows, keys, page;     /* sequences; rows of each; keys of each, the rows included */
    uint32_t dtype, layout;
    int features;                /* 1: window, 2: sinks, 4: soft cap, 8: lse, 16: scales of each token, 32: near-equal weights and V of mean 0.5, 64: q of e4m3,
                                  * 128: scales of each channel, 256: K rotated */
} shape;

#define E4M3 OCT_DTYPE_E4M3FN
#define NHD OCT_LAYOUT_NHD
static const shape shapes[] = {
    { "32/8x128 1x16384 bf16", 32, 8, 128, 128, 1, 16384, 16384, 16, OCT_DTYPE_BF16, NHD, 0 },
    { "32/8x128 1x16384 e4m3", 32, 8, 128, 128, 1, 16384, 16384, 16, E4M3, NHD, 0 },
    { "32/8x64 1x16384 bf16", 32, 8, 64, 64, 1, 16384, 16384, 16, OCT_DTYPE_BF16, NHD, 0 },
    { "32/8x64 1x16384 e4m3", 32, 8, 64, 64, 1, 16384, 16384, 16, E4M3, NHD, 0 },
    { "32/2x256 1x16384 bf16", 32, 2, 256, 256, 1, 16384, 16384, 16, OCT_DTYPE_BF16, NHD, 0 },
    { "32/2x256 1x16384 e4m3", 32, 2, 256, 256, 1, 16384, 16384, 16, E4M3, NHD, 0 },
    { "16/4x256 1x16384 bf16", 16, 4, 256, 256, 1, 16384, 16384, 16, OCT_DTYPE_BF16, NHD, 0 },
    { "16/4x256 1x16384 e4m3", 16, 4, 256, 256, 1, 16384, 16384, 16, E4M3, NHD, 0 },
    { "32/2x256 8x2048 e4m3", 32, 2, 256, 256, 8, 2048, 2048, 16, E4M3, NHD, 0 },
    { "32/8x128 8x2048 bf16", 32, 8, 128, 128, 8, 2048, 2048, 16, OCT_DTYPE_BF16, NHD, 0 },
    { "32/8x128 8x2048 e4m3", 32, 8, 128, 128, 8, 2048, 2048, 16, E4M3, NHD, 0 },
    { "32/8x128 8192 after 57344 e4m3", 32, 8, 128, 128, 1, 8192, 65536, 16, E4M3, NHD, 0 },
    { "32/8x128 512 after 32256 e4m3", 32, 8, 128, 128, 1, 512, 32768, 16, E4M3, NHD, 0 },
    { "32/8x128 1x512 e4m3", 32, 8, 128, 128, 1, 512, 512, 16, E4M3, NHD, 0 },
    { "32/8x128 16x512 e4m3", 32, 8, 128, 128, 16, 512, 512, 16, E4M3, NHD, 0 },
    { "32/8x128 16x512 bf16", 32, 8, 128, 128, 16, 512, 512, 16, OCT_DTYPE_BF16, NHD, 0 },
    { "32/8x128 64 rows after 32704 e4m3", 32, 8, 128, 128, 1, 64, 32768, 16, E4M3, NHD, 0 },
    { "32/8x128 1x64 e4m3", 32, 8, 128, 128, 1, 64, 64, 16, E4M3, NHD, 0 },
    { "32/8x128 1x5 after 32763 e4m3", 32, 8, 128, 128, 1, 5, 32768, 16, E4M3, NHD, 0 },
    { "32/8x128 64x5 after 4091 e4m3", 32, 8, 128, 128, 64, 5, 4096, 16, E4M3, NHD, 0 },
    { "32/8x128 64x5 after 4091 bf16", 32, 8, 128, 128, 64, 5, 4096, 16, OCT_DTYPE_BF16, NHD, 0 },
    { "32/8x128 16x17 e4m3", 32, 8, 128, 128, 16, 17, 17, 16, E4M3, NHD, 0 },
    { "32/32x128 16x17 after 4079 e4m3", 32, 32, 128, 128, 16, 17, 4096, 16, E4M3, NHD, 0 },
    { "32/32x64 16x17 after 4079 e4m3", 32, 32, 64, 64, 16, 17, 4096, 16, E4M3, NHD, 0 },
    { "32/8x128 decodes alone 64x4096 e4m3", 32, 8, 128, 128, 64, 1, 4096, 16, E4M3, NHD, 0 },
    { "32/2x256 16x5 after 4091 e4m3", 32, 2, 256, 256, 16, 5, 4096, 16, E4M3, NHD, 0 },
    { "8/4x256 1x64 after 32704 e4m3", 8, 4, 256, 256, 1, 64, 32768, 16, E4M3, NHD, 0 },
    { "32/8x128 64x64 e4m3", 32, 8, 128, 128, 64, 64, 64, 16, E4M3, NHD, 0 },
    { "32/8x128 1x16384 i8 tokens", 32, 8, 128, 128, 1, 16384, 16384, 16, OCT_DTYPE_I8, NHD, 16 },
    { "32/8x128 1x16384 e4m3 all on", 32, 8, 128, 128, 1, 16384, 16384, 16, E4M3, NHD, 31 },
    { "32/8x128 1x16384 e4m3 window 1024", 32, 8, 128, 128, 1, 16384, 16384, 16, E4M3, NHD, 1 },
    { "32/8x128 1x16384 e4m3 pages of 1", 32, 8, 128, 128, 1, 16384, 16384, 1, E4M3, NHD, 0 },
    { "32/8x128 1x16384 e4m3 HND", 32, 8, 128, 128, 1, 16384, 16384, 16, E4M3, OCT_LAYOUT_HND, 0 },
    { "2/1x128 8x32 after 32736 e4m3", 2, 1, 128, 128, 8, 32, 32768, 16, E4M3, NHD, 0 },
    { "2/1x128 8x32 after 32736 bf16", 2, 1, 128, 128, 8, 32, 32768, 16, OCT_DTYPE_BF16, NHD, 0 },
    { "32/8x128 1x5 after 32763 bf16", 32, 8, 128, 128, 1, 5, 32768, 16, OCT_DTYPE_BF16, NHD, 0 },
    { "24/8x64 64x17 after 111 e4m3 channels", 24, 8, 64, 64, 64, 17, 128, 1, E4M3, NHD, 128 },
    { "24/8x64 64x17 after 111 bf16", 24, 8, 64, 64, 64, 17, 128, 1, OCT_DTYPE_BF16, NHD, 0 },
    { "32/8x128 8x2048 e4m3 channels", 32, 8, 128, 128, 8, 2048, 2048, 16, E4M3, NHD, 128 },
    { "32/8x128 8x2048 i8 tokens, K rotated", 32, 8, 128, 128, 8, 2048, 2048, 16, OCT_DTYPE_I8, NHD, 272 },
    { "8/2x192 64x64 after 2936 i8 tokens, K rotated", 8, 2, 192, 192, 64, 64, 3000, 64, OCT_DTYPE_I8, NHD, 272 },
    { "8/2x192 64x64 after 2936 bf16", 8, 2, 192, 192, 64, 64, 3000, 64, OCT_DTYPE_BF16, NHD, 0 },
    { "28/4x128 1x16384 bf16", 28, 4, 128, 128, 1, 16384, 16384, 16, OCT_DTYPE_BF16, NHD, 0 },
    { "32/8x80 1x16384 e4m3", 32, 8, 80, 80, 1, 16384, 16384, 16, E4M3, NHD, 0 },
    { "32/8x96 1x16384 bf16", 32, 8, 96, 96, 1, 16384, 16384, 16, OCT_DTYPE_BF16, NHD, 0 },
    { "32/8x192 1x8192 bf16", 32, 8, 192, 192, 1, 8192, 8192, 16, OCT_DTYPE_BF16, NHD, 0 },
    { "32/32x192/128 1x8192 bf16", 32, 32, 192, 128, 1, 8192, 8192, 16, OCT_DTYPE_BF16, NHD, 0 },
    { "8: 32/2x256 1x16384 q8 V5D", 32, 2, 256, 256, 1, 16384, 16384, 16, E4M3, OCT_LAYOUT_V5D, 64 },
    { "8: 32/8x128 1x16384 q8 V5D", 32, 8, 128, 128, 1, 16384, 16384, 16, E4M3, OCT_LAYOUT_V5D, 64 },
    { "8: 32/2x256 1x16384 q16 V5D", 32, 2, 256, 256, 1, 16384, 16384, 16, E4M3, OCT_LAYOUT_V5D, 0 },
    { "8: 32/8x128 1x16384 q16 V5D", 32, 8, 128, 128, 1, 16384, 16384, 16, E4M3, OCT_LAYOUT_V5D, 0 },
    { "8: flat 4/2x256 128 after 65408 V5D", 4, 2, 256, 256, 1, 128, 65536, 16, E4M3, OCT_LAYOUT_V5D, 96 },
    { "8: flat 4/2x128 128 after 65408 V5D", 4, 2, 128, 128, 1, 128, 65536, 16, E4M3, OCT_LAYOUT_V5D, 96 },
    { "8: 32/2x256 8x2048 q8 V5D", 32, 2, 256, 256, 8, 2048, 2048, 16, E4M3, OCT_LAYOUT_V5D, 64 },
    { "8: 32/8x128 8x2048 q8 V5D", 32, 8, 128, 128, 8, 2048, 2048, 16, E4M3, OCT_LAYOUT_V5D, 64 },
    { "8: 32/2x256 1x65536 q8 V5D", 32, 2, 256, 256, 1, 65536, 65536, 16, E4M3, OCT_LAYOUT_V5D, 64 },
    { "8: 16/4x256 1x16384 q8 V5D", 16, 4, 256, 256, 1, 16384, 16384, 16, E4M3, OCT_LAYOUT_V5D, 64 },
    { "8: 32/8x128 1x16384 q8 lse V5D", 32, 8, 128, 128, 1, 16384, 16384, 16, E4M3, OCT_LAYOUT_V5D, 72 },
    { "8: 32/8x128 1x16384 q8 pages of 64 V5D", 32, 8, 128, 128, 1, 16384, 16384, 64, E4M3, OCT_LAYOUT_V5D, 64 },
    { "8: 32/8x128 8192 after 57344 q8 V5D", 32, 8, 128, 128, 1, 8192, 65536, 16, E4M3, OCT_LAYOUT_V5D, 64 },
    { "8: 32/8x128 16x512 q8 V5D", 32, 8, 128, 128, 16, 512, 512, 16, E4M3, OCT_LAYOUT_V5D, 64 },
};

/* ---- timing ---------------------------------------------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

typedef struct job {
    oct_attn_spec spec;
    oct_attn_args args;
    oct_kv_layer layer;
    oct__dev_batch batch;
    oct__dev_workspace w;
    void *memory;
    oct__plan_params plan;
    oct__dev_launch plan_launch;
    unsigned grid;
} job;

static uint32_t products, total_keys;

static void attend(job *j)
{
    oct__attn_params params;
    oct__dev_launch attn, finish;
    j->args.layer = &j->layer;
    oct__dev_pack_attn(&j->spec, &j->batch, &j->args, &j->w, j->memory, OCT__DEV_EXTEND, &params, &attn, &finish);
    if (total_keys > 0)
        params.total_keys = total_keys;
    if (j->grid > 0)
        attn.grid_x = j->grid, attn.grid_y = 1;
    run(&attn, &params, 0);
    run(&finish, &params, 0);
}

static float timed(job *j)
{
    float ms;
    MUST(cuMemsetD8Async(flush_at, 0, (size_t)256 << 20, stream));
    MUST(cuEventRecord(begin_event, stream));
    attend(j);
    MUST(cuEventRecord(end_event, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuEventElapsedTime(&ms, begin_event, end_event));
    return ms;
}

static void prepare(job *j, const oct__dev_chip *chip, const oct__dev_step_limits *limits)
{
    if (!oct__dev_workspace_of(chip, &j->spec, limits, &j->w)) {
        fprintf(stderr, "no workspace\n");
        exit(1);
    }
    j->memory = pointer(alloc(j->w.bytes));
    oct__dev_pack_plan(chip, &j->spec, &j->batch, &j->w, j->memory, &j->plan, &j->plan_launch);
    run(&j->plan_launch, &j->plan, 0);
    MUST(cuStreamSynchronize(stream));
}

static uint32_t random_state = 1;
static uint32_t draw(void) { return random_state = random_state * 1664525u + 1013904223u; }
static double normal(void)
{
    double sum = 0.0;
    for (int i = 0; i < 12; i++)
        sum += (double)(draw() >> 8) / 16777216.0;
    return sum - 6.0;
}

static address pool[2], q_at, out_at, lse_at, scale_at[2];
static const size_t pool_bytes = (size_t)600 << 20, q_bytes = (size_t)1 << 30;   /* of 65,536 rows of 32 heads of 256 dims */

static void fill(address to, size_t bytes, address table, uint32_t code_bytes, uint64_t seed)
{
    uint64_t n = bytes / 4;
    void *arguments[] = { &to, &n, &table, &code_bytes, &seed };
    launch(extra, "bench_fill", (unsigned)n_units * 8, 1, 256, 0, arguments, 0);
}

static void measure(const shape *s, const oct__dev_chip *chips, int repeats, unsigned grid, int with_other)
{
    job j[2];
    const uint32_t size = s->dtype >= OCT_DTYPE_E4M3FN ? 1 : 2;
    const int is_token = s->features & 16, is_channel = s->features & 128, most = (s->keys + s->page - 1) / s->page;
    int32_t *lens = calloc((size_t)s->n, sizeof *lens), *rows = calloc((size_t)s->n + 1, sizeof *rows);
    const int64_t n_pages = (int64_t)s->n * most;
    int32_t *table = calloc((size_t)n_pages, sizeof *table);
    for (int i = 0; i < s->n; i++) {
        lens[i] = s->keys;
        rows[i + 1] = (i + 1) * s->rows;
    }
    for (int64_t i = 0; i < n_pages; i++)
        table[i] = (int32_t)i;
    for (int64_t i = n_pages - 1; i > 0; i--) {
        const int64_t k = (int64_t)(((uint64_t)draw() * (uint64_t)(i + 1)) >> 32);
        const int32_t t = table[i];
        table[i] = table[k], table[k] = t;
    }
    memset(j, 0, sizeof j);

    /* Codes of N(0, 1) under scales of 1 / 20 (i8: 1 / 40). */
    uint8_t *codes = malloc(65536);
    uint16_t *halves = malloc(65536);
    for (int i = 0; i < 65536 / (int)size; i++) {
        const double x = normal();
        if (size == 2)
            ((uint16_t *)(void *)codes)[i] = s->dtype == OCT_DTYPE_BF16 ? oct__bf16_from_f32((float)x) : oct__f16_from_f32((float)x);
        else
            codes[i] = s->dtype == OCT_DTYPE_I8 ? (uint8_t)(int8_t)lrint(fmax(-127, fmin(127, x * 40))) : oct__e4m3fn_from_f32((float)(x * 20));
    }
    const int is_flat = s->features & 32, q_is_8bit = s->features & 64;
    const address codes_at = upload(codes, 65536);
    for (int i = 0; i < 65536 && is_flat; i++)
        codes[i] = oct__e4m3fn_from_f32((float)(20 * (0.5 + 0.25 * normal())));
    const address v_codes_at = upload(codes, 65536);
    for (int i = 0; i < 32768; i++)
        halves[i] = oct__bf16_from_f32((float)normal());
    for (int i = 0; i < 65536 && q_is_8bit; i++)
        ((uint8_t *)(void *)halves)[i] = oct__e4m3fn_from_f32((float)(20 * (is_flat ? 0.1 : 1.0) * normal()));
    const address halves_at = upload(halves, 65536);
    fill(pool[0], pool_bytes, codes_at, size, 1);
    fill(pool[1], pool_bytes, v_codes_at, size, 2);
    fill(q_at, q_bytes, halves_at, q_is_8bit ? 1 : 2, 3);
    for (int side = 0; side < 2 && is_token; side++) {
        uint64_t n = (uint64_t)n_pages * (uint64_t)s->page * s->heads;
        float low = s->dtype == OCT_DTYPE_I8 ? 0.02f : 0.04f, high = s->dtype == OCT_DTYPE_I8 ? 0.03f : 0.06f;
        void *arguments[] = { &scale_at[side], &n, &low, &high };
        launch(extra, "bench_fill_f32", (unsigned)n_units * 8, 1, 256, 0, arguments, 0);
    }
    MUST(cuStreamSynchronize(stream));

    const size_t row_k = (size_t)s->heads * s->dim_k, row_v = (size_t)s->heads * s->dim_v, n_rows = (size_t)s->n * (size_t)s->rows;
    oct_attn_spec *spec = &j[0].spec;
    oct_kv_spec *kv = &spec->kv;
    spec->struct_size = sizeof *spec;
    kv->struct_size = sizeof *kv;
    kv->heads = s->heads;
    kv->dim_k = s->dim_k;
    kv->dim_v = s->dim_v;
    kv->page_size = (uint32_t)s->page;
    kv->layout = s->layout;
    kv->k.dtype = kv->v.dtype = s->dtype;
    kv->k.scale_mode = kv->v.scale_mode = is_token ? OCT_SCALE_TOKEN_HEAD : is_channel ? OCT_SCALE_CHANNEL : size == 1 ? OCT_SCALE_LAYER : OCT_SCALE_NONE;
    kv->k.scale_dtype = kv->v.scale_dtype = is_token ? OCT_DTYPE_F32 : 0;
    kv->k.rotated = (s->features & 256) != 0;
    spec->heads_q = s->heads_q;
    spec->q_dtype = q_is_8bit ? OCT_DTYPE_E4M3FN : OCT_DTYPE_BF16;
    spec->products = products;
    spec->out_dtype = OCT_DTYPE_BF16;
    spec->sm_scale = 1.0f / sqrtf((float)s->dim_k);
    spec->causal = 1;
    oct_kv_layer *layer = &j[0].layer;
    const float scale = 0.05f;
    layer->struct_size = sizeof *layer;
    layer->spec = *kv;
    layer->n_pages = n_pages;
    layer->k = pointer(pool[0]);
    layer->v = pointer(pool[1]);
    const int is_hnd = s->layout != OCT_LAYOUT_NHD;
    layer->k_page_stride = (int64_t)s->page * (int64_t)row_k;
    layer->v_page_stride = (int64_t)s->page * (int64_t)row_v;
    layer->k_token_stride = is_hnd ? s->dim_k : (int64_t)row_k;
    layer->v_token_stride = is_hnd ? s->dim_v : (int64_t)row_v;
    layer->k_head_stride = (int64_t)s->dim_k * (is_hnd ? s->page : 1);
    layer->v_head_stride = (int64_t)s->dim_v * (is_hnd ? s->page : 1);
    layer->k_scale_page_stride = layer->v_scale_page_stride = (int64_t)s->page * s->heads;
    if (is_token)
        layer->k_token_scale = pointer(scale_at[0]), layer->v_token_scale = pointer(scale_at[1]);
    else if (is_channel) {
        const size_t n_channels = row_k > row_v ? row_k : row_v;
        float *channels = malloc(n_channels * sizeof *channels);
        for (size_t i = 0; i < n_channels; i++)
            channels[i] = scale * (float)(1 + i % 3) / 2;
        layer->k_scale = layer->v_scale = pointer(upload(channels, n_channels * sizeof *channels));
        free(channels);
    } else if (size == 1)
        layer->k_scale = layer->v_scale = pointer(upload(&scale, sizeof scale));
    oct_attn_args *args = &j[0].args;
    args->struct_size = sizeof *args;
    args->q = pointer(q_at);
    args->q_scale = q_is_8bit ? pointer(upload(&scale, sizeof scale)) : NULL;
    args->out = pointer(out_at);
    args->q_head_stride = s->dim_k;
    args->q_row_stride = (int64_t)s->heads_q * s->dim_k;
    args->out_head_stride = s->dim_v;
    args->out_row_stride = (int64_t)s->heads_q * s->dim_v;
    if (s->features & 1)
        spec->window_tokens = s->features == 1 ? 1024 : (uint32_t)s->keys - 100;
    if (s->features & 2) {
        float *sink = malloc(s->heads_q * sizeof *sink);
        for (uint32_t i = 0; i < s->heads_q; i++)
            sink[i] = (float)normal();
        spec->has_sink = 1;
        args->sink = pointer(upload(sink, s->heads_q * sizeof *sink));
        free(sink);
    }
    if (s->features & 4)
        spec->softcap = 30.0f;
    if (s->features & 8) {
        args->lse = pointer(lse_at);
        args->lse_row_stride = s->heads_q;
        args->lse_head_stride = 1;
    }
    oct_attn_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.struct_size = sizeof batch;
    batch.n_sequences = (uint32_t)s->n;
    batch.n_pages = n_pages;
    batch.qo_indptr = pointer(upload(rows, ((size_t)s->n + 1) * 4));
    batch.seq_lens = pointer(upload(lens, (size_t)s->n * 4));
    batch.block_table = pointer(upload(table, (size_t)n_pages * 4));
    batch.max_pages = most;
    oct__dev_pack_batch(spec, &batch, &j[0].batch);
    const oct__dev_step_limits limits = { (uint32_t)s->n, (int64_t)n_rows, s->keys };
    j[1] = j[0];
    prepare(&j[0], &chips[0], &limits);
    prepare(&j[1], &chips[1], &limits);
    j[0].grid = grid;
    const size_t n_out = n_rows * s->heads_q * s->dim_v;
    uint16_t *out[2] = { malloc(n_out * 2), malloc(n_out * 2) };
    double error = 0.0;
    const int is_compared = with_other || n_out < ((size_t)1 << 22);
    for (int i = 0; i < 2 && is_compared; i++) {
        MUST(cuMemsetD8Async(out_at, 0xFF, n_out * 2, stream));
        attend(&j[i]);
        MUST(cuStreamSynchronize(stream));
        MUST(cuMemcpyDtoH_v2(out[i], out_at, n_out * 2));
    }
    double square = 0.0, off = 0.0;
    for (size_t i = 0; i < n_out && is_compared; i++) {
        const double a = (double)oct__bf16_to_f32(out[1][i]), d = (double)oct__bf16_to_f32(out[0][i]) - a;
        square += a * a;
        off += d * d;
    }
    error = is_compared ? sqrt(off / square) : 0.0;
    float times[2][64];
    for (int i = 0; i < repeats; i++) {
        times[0][i] = timed(&j[0]);
        times[1][i] = with_other ? timed(&j[1]) : 1.0f;
    }
    for (int i = 0; i < 2; i++)
        qsort(times[i], (size_t)repeats, sizeof times[i][0], compare);
    double pairs = 0.0;
    for (int i = 0; i < s->rows; i++) {
        const double keys = s->keys - s->rows + i + 1;
        pairs += spec->window_tokens > 0 && keys > spec->window_tokens ? spec->window_tokens : keys;
    }
    const double flops = pairs * s->n * s->heads_q * 2.0 * (s->dim_k + s->dim_v);
    const double ms = (double)times[0][repeats / 2], other = (double)times[1][repeats / 2];
    printf("%-36s %8.3f ms %6.1f TFLOP/s (best %6.1f)  matrix units of every GPU %8.3f ms %6.1f  x %.2f  off %.5f%s  %s\n", s->name, ms, flops / ms * 1e-9,
           flops / (double)times[0][0] * 1e-9, other, flops / other * 1e-9, other / ms, error, error < (strstr(j[0].w.shape[1].kernel, "_e4m3_") != NULL ? 0.05 : 0.006) ? "" : " WRONG", j[0].w.shape[1].kernel + 12);
    fflush(stdout);
    cu.cuMemFree_v2((address)(uintptr_t)j[0].memory);
    cu.cuMemFree_v2((address)(uintptr_t)j[1].memory);
    free(lens), free(rows), free(table), free(codes), free(halves), free(out[0]), free(out[1]);
}

int main(int argc, char **argv)
{
    const char *only = "", *more_name = argc > 1 ? argv[1] : "";
    int repeats = 9, device, limit, with_other = 1;
    unsigned grid = 0;
    char name[128];
    void *context, *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (argc < 3 || library == NULL)
        return fprintf(stderr, "usage: extend CODE.cubin READ.cubin [-s SHAPE] [-r REPEATS] [-g GRID] [-m 0]; needs libcuda\n"), 2;
#define X(entry, arguments)                                                \
    *(void **)&cu.entry = dlsym(library, #entry);                          \
    if (cu.entry == NULL)                                                  \
        return fprintf(stderr, "libcuda lacks %s\n", #entry), 1;
    ENTRIES(X)
#undef X
    for (int i = 3; i + 1 < argc; i += 2) {
        if (argv[i][1] == 's')
            only = argv[i + 1];
        else if (argv[i][1] == 'r')
            repeats = atoi(argv[i + 1]);
        else if (argv[i][1] == 'g')
            grid = (unsigned)atoi(argv[i + 1]);
        else if (argv[i][1] == 'm')
            with_other = atoi(argv[i + 1]);
        else if (argv[i][1] == 'p')
            products = (uint32_t)atoi(argv[i + 1]);
        else if (argv[i][1] == 't')
            total_keys = (uint32_t)atoi(argv[i + 1]);
        else if (argv[i][1] == 'c')
            more_name = argv[i + 1];
    }
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDeviceGetName(name, sizeof name, device));
    MUST(cuDeviceGetAttribute(&n_units, 16, device));
    MUST(cuDeviceGetAttribute(&limit, 97, device));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    MUST(cuModuleLoad(&code, argv[1]));
    MUST(cuModuleLoad(&more, more_name));
    MUST(cuModuleLoad(&extra, argv[2]));
    MUST(cuStreamCreate(&stream, 1));
    MUST(cuEventCreate(&begin_event, 0));
    MUST(cuEventCreate(&end_event, 0));
    flush_at = alloc((size_t)256 << 20);
    pool[0] = alloc(pool_bytes);
    pool[1] = alloc(pool_bytes);
    q_at = alloc(q_bytes);
    out_at = alloc(q_bytes);
    lse_at = alloc((size_t)16384 * 64 * 4);
    scale_at[0] = alloc((size_t)65536 * 8 * 4);
    scale_at[1] = alloc((size_t)65536 * 8 * 4);
    printf("%s, %d multiprocessors; medians of %d\n", name, n_units, repeats);
    const oct__dev_chip chips[2] = {
        { .warp = 32, .n_units = (uint32_t)n_units, .shared_limit_bytes = (uint32_t)limit, .has_mma = 1, .has_sm90a = 1 },
        { .warp = 32, .n_units = (uint32_t)n_units, .shared_limit_bytes = (uint32_t)limit, .has_mma = 1 },
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        if (strstr(shapes[i].name, only) != NULL)
            measure(&shapes[i], chips, repeats, grid, with_other);
    return 0;
}
