/* decode.c: times the library's decode on the NVIDIA GPU at hand, beside the floor of the same run: a cold read of as many bytes. Everything goes the
 * library's way: plan_step plans on the device, attention and its finish follow. Each shape is also run by the f32 kernels and compared.
 *
 * usage: decode CODE.cubin READ.cubin [-s SHAPE] [-r REPEATS] [-k sm90a|mma|f32]
 *
 * Method: one CUDA graph over distinct sets of pages (500 MB or more together, so that each set is cold), a write of 256 MB before each launch of it, the
 * median of the repeats. No planning in the times; it is a column of its own. */
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
    X(cuStreamBeginCapture_v2, (void *, int))                                                                                                   \
    X(cuStreamEndCapture, (void *, void **))                                                                                                    \
    X(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long))                                                                       \
    X(cuGraphLaunch, (void *, void *))                                                                                                          \
    X(cuGraphExecDestroy, (void *))                                                                                                             \
    X(cuGraphDestroy, (void *))                                                                                                                 \
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

static void *stream, *begin_event, *end_event, *code, *extra;
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
    MUST(cuModuleGetFunction(&function, module, symbol));
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

enum { EVERYTHING = 1, DETERMINISTIC = 2, V_IN_V4 = 3 };

typedef struct shape {
    const char *name;
    uint32_t heads_q, heads, dim;
    int n, keys, page;
    uint32_t dtype;
    int everything;          /* EVERYTHING: window, sinks, soft cap, lse, scales of each token; DETERMINISTIC: fixed splits; V_IN_V4: V in v4, rotated */
    int mixed;               /* the first sequence has `keys`, the others so many */
    double must, aim;        /* of the issue; 0: none */
} shape;

static const shape shapes[] = {
    { "32/8x128 64x4096", 32, 8, 128, 64, 4096, 16, OCT_DTYPE_E4M3FN, 0, 0, 1.12, 1.07 },
    { "32/8x128 1x65536", 32, 8, 128, 1, 65536, 16, OCT_DTYPE_E4M3FN, 0, 0, 1.25, 1.15 },
    { "32/8x128 16x8192", 32, 8, 128, 16, 8192, 16, OCT_DTYPE_E4M3FN, 0, 0, 1.17, 1.10 },
    { "32/8x128 256x2048", 32, 8, 128, 256, 2048, 16, OCT_DTYPE_E4M3FN, 0, 0, 1.10, 1.05 },
    { "32/8x128 1x8192", 32, 8, 128, 1, 8192, 16, OCT_DTYPE_E4M3FN, 0, 0, 2.0, 1.6 },
    { "64/8x128 64x4096", 64, 8, 128, 64, 4096, 16, OCT_DTYPE_E4M3FN, 0, 0, 1.14, 1.08 },
    { "32/2x256 64x4096", 32, 2, 256, 64, 4096, 16, OCT_DTYPE_E4M3FN, 0, 0, 1.20, 1.12 },
    { "32/2x256 1x65536", 32, 2, 256, 1, 65536, 16, OCT_DTYPE_E4M3FN, 0, 0, 1.60, 1.40 },
    { "8/4x256 16x8192", 8, 4, 256, 16, 8192, 16, OCT_DTYPE_E4M3FN, 0, 0, 1.18, 1.10 },
    { "8/4x256 1x65536", 8, 4, 256, 1, 65536, 16, OCT_DTYPE_E4M3FN, 0, 0, 1.30, 1.18 },
    { "32/8x128 16x8192 pages of 1", 32, 8, 128, 16, 8192, 1, OCT_DTYPE_E4M3FN, 0, 0, 1.22, 1.15 },
    { "32/8x128 64x4096 i8 rotated", 32, 8, 128, 64, 4096, 16, OCT_DTYPE_I8, 0, 0, 0, 0 },
    { "32/8x128 64x4096 i8 r., v4", 32, 8, 128, 64, 4096, 16, OCT_DTYPE_I8, V_IN_V4, 0, 0, 0 },
    { "64/8x128 64x4096 i8 r., v4", 64, 8, 128, 64, 4096, 16, OCT_DTYPE_I8, V_IN_V4, 0, 0, 0 },
    { "64/8x128 64x4096 i8 rotated", 64, 8, 128, 64, 4096, 16, OCT_DTYPE_I8, 0, 0, 0, 0 },
    { "32/8x128 64x4096 bf16", 32, 8, 128, 64, 4096, 16, OCT_DTYPE_BF16, 0, 0, 0, 0 },
    { "32/2x256 64x4096 bf16", 32, 2, 256, 64, 4096, 16, OCT_DTYPE_BF16, 0, 0, 0, 0 },
    { "32/8x64 64x4096", 32, 8, 64, 64, 4096, 16, OCT_DTYPE_E4M3FN, 0, 0, 0, 0 },
    { "32/8x128 64x4096 all on", 32, 8, 128, 64, 4096, 16, OCT_DTYPE_E4M3FN, EVERYTHING, 0, 0, 0 },
    { "32/8x128 64x4096 determ.", 32, 8, 128, 64, 4096, 16, OCT_DTYPE_E4M3FN, DETERMINISTIC, 0, 0, 0 },
    { "32/8x128 1x65536 determ.", 32, 8, 128, 1, 65536, 16, OCT_DTYPE_E4M3FN, DETERMINISTIC, 0, 0, 0 },
    { "32/8x128 65536 + 31x128", 32, 8, 128, 32, 65536, 16, OCT_DTYPE_E4M3FN, 0, 128, 0, 0 },
};

/* ---- timing ---------------------------------------------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

typedef void (*turn)(void *of, int i);

/* Microseconds of a turn: median, least and most. */
static double timed(turn f, void *of, int n, int repeats, double *least, double *most)
{
    void *graph, *ready;
    float times[64];
    for (int i = 0; i < (n < 2 ? n : 2); i++)
        f(of, i);
    MUST(cuStreamSynchronize(stream));
    MUST(cuStreamBeginCapture_v2(stream, 0));
    for (int i = 0; i < n; i++)
        f(of, i);
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuGraphInstantiateWithFlags(&ready, graph, 0));
    MUST(cuGraphLaunch(ready, stream));
    MUST(cuStreamSynchronize(stream));
    for (int i = 0; i < repeats; i++) {
        MUST(cuMemsetD8Async(flush_at, 0, (size_t)256 << 20, stream));
        MUST(cuEventRecord(begin_event, stream));
        MUST(cuGraphLaunch(ready, stream));
        MUST(cuEventRecord(end_event, stream));
        MUST(cuStreamSynchronize(stream));
        MUST(cuEventElapsedTime(&times[i], begin_event, end_event));
    }
    cu.cuGraphExecDestroy(ready);
    cu.cuGraphDestroy(graph);
    qsort(times, (size_t)repeats, sizeof times[0], compare);
    if (least != NULL)
        *least = (double)times[0] * 1e3 / n;
    if (most != NULL)
        *most = (double)times[repeats - 1] * 1e3 / n;
    return (double)times[repeats / 2] * 1e3 / n;
}

typedef struct job {
    oct_attn_spec spec;
    oct_attn_args args;
    oct_kv_layer layer;
    oct__dev_batch batch;
    oct__dev_workspace w;
    void *memory;
    size_t set_bytes, scale_bytes;     /* of a set: each side */
    oct__plan_params plan;
    oct__dev_launch plan_launch;
    address pages[2], scales[2];
    uint64_t read_blocks;
    address sink;
} job;

static void attend(void *of, int i)
{
    job *j = of;
    oct_kv_layer layer = j->layer;
    oct_attn_args args = j->args;
    oct__attn_params params;
    oct__dev_launch attn, finish;
    layer.k = pointer(j->pages[0] + (address)i * j->set_bytes);
    layer.v = pointer(j->pages[1] + (address)i * j->set_bytes);
    layer.k_token_scale = j->scales[0] != 0 ? pointer(j->scales[0] + (address)i * j->scale_bytes) : NULL;
    layer.v_token_scale = j->scales[1] != 0 ? pointer(j->scales[1] + (address)i * j->scale_bytes) : NULL;
    args.layer = &layer;
    oct__dev_pack_attn(&j->spec, &j->batch, &args, &j->w, j->memory, OCT__DEV_DECODE, &params, &attn, &finish);
    run(&attn, &params, (int)attn.is_early);
    run(&finish, &params, (int)finish.is_early);
}

static void plan(void *of, int i)
{
    job *j = of;
    (void)i;
    run(&j->plan_launch, &j->plan, 0);
}

static void read_all(void *of, int i)
{
    job *j = of;
    address from = j->pages[0] + (address)i * j->set_bytes * 2;
    void *arguments[] = { &from, &j->read_blocks, &j->sink };
    launch(extra, "bench_read", (unsigned)n_units * 8, 1, 256, 0, arguments, 0);
}

/* ---- one shape ------------------------------------------------------------------------------------------------------------------- */

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

static address pool[2];
static const size_t pool_bytes = (size_t)1100 << 20;

static void measure(const shape *s, const oct__dev_chip *chips, int repeats)
{
    job j, f32;
    const uint32_t size = s->dtype >= OCT_DTYPE_E4M3FN ? 1 : 2;
    const int is_token = s->dtype == OCT_DTYPE_I8 || s->everything == EVERYTHING;
    int32_t *lens = calloc((size_t)s->n, sizeof *lens), *rows = calloc((size_t)s->n + 1, sizeof *rows);
    int64_t n_pages = 0, n_keys = 0;
    const int most = (s->keys + s->page - 1) / s->page;
    int32_t *table = calloc((size_t)s->n * most, sizeof *table);
    for (int i = 0; i < s->n; i++) {
        lens[i] = s->mixed && i > 0 ? s->mixed : s->keys;
        rows[i + 1] = i + 1;
        n_keys += lens[i];
        n_pages += (lens[i] + s->page - 1) / s->page;
    }
    int32_t *order = malloc((size_t)n_pages * sizeof *order);
    for (int64_t i = 0; i < n_pages; i++)
        order[i] = (int32_t)i;
    for (int64_t i = n_pages - 1; i > 0; i--) {
        const int64_t k = (int64_t)(((uint64_t)draw() * (uint64_t)(i + 1)) >> 32);
        const int32_t t = order[i];
        order[i] = order[k], order[k] = t;
    }
    int64_t used = 0;
    for (int i = 0; i < s->n; i++)
        for (int p = 0; p < (lens[i] + s->page - 1) / s->page; p++)
            table[(size_t)i * most + p] = order[used++];

    memset(&j, 0, sizeof j);
    const size_t row = (size_t)s->heads * s->dim;
    j.set_bytes = (size_t)n_pages * s->page * row * size;
    j.scale_bytes = is_token ? (size_t)n_pages * s->page * s->heads * 4 : 0;
    const int is_v4 = s->everything == V_IN_V4;
    const double bytes = (is_v4 ? 1.0 + 18.0 / 32.0 : 2.0) * (double)n_keys * (double)(row * size) + (is_v4 ? 1.0 : 2.0) * (double)n_keys * (is_token ? s->heads * 4.0 : 0.0);
    int sets = (int)ceil(500e6 / bytes);
    const int room = (int)(pool_bytes / j.set_bytes);
    sets = sets < 2 ? 2 : sets > 64 ? 64 : sets;
    sets = sets > room ? room : sets;
    j.pages[0] = pool[0];
    j.pages[1] = pool[1];

    /* Codes of N(0, 1) under scales of 1 / 20 (i8: 1 / 40). */
    uint8_t *codes = malloc(65536);
    for (int i = 0; i < 65536 / (int)size; i++) {
        const double x = normal();
        if (size == 2)
            ((uint16_t *)(void *)codes)[i] = s->dtype == OCT_DTYPE_BF16 ? oct__bf16_from_f32((float)x) : oct__f16_from_f32((float)x);
        else
            codes[i] = s->dtype == OCT_DTYPE_I8 ? (uint8_t)(int8_t)lrint(fmax(-127, fmin(127, x * 40))) : oct__e4m3fn_from_f32((float)(x * 20));
    }
    const address codes_at = upload(codes, 65536);
    for (int side = 0; side < 2; side++) {
        uint64_t n = pool_bytes / 4, seed = (uint64_t)side + 1;
        uint32_t code_bytes = size;
        address to = pool[side];
        const address from = codes_at;
        union { const address *from; void *to; } pun = { &from };
        void *arguments[] = { &to, &n, pun.to, &code_bytes, &seed };
        launch(extra, "bench_fill", (unsigned)n_units * 8, 1, 256, 0, arguments, 0);
    }
    if (is_v4)   /* any code, under a scale that is a number */
        MUST(cuMemsetD8Async(pool[1], 0x3C, pool_bytes, stream));
    if (is_token) {
        for (int side = 0; side < 2; side++) {
            j.scales[side] = alloc(j.scale_bytes * (size_t)sets);
            uint64_t n = j.scale_bytes / 4 * (size_t)sets;
            float low = s->dtype == OCT_DTYPE_I8 ? 0.02f : 0.04f, high = s->dtype == OCT_DTYPE_I8 ? 0.03f : 0.06f;
            void *arguments[] = { &j.scales[side], &n, &low, &high };
            launch(extra, "bench_fill_f32", (unsigned)n_units * 8, 1, 256, 0, arguments, 0);
        }
    }
    MUST(cuStreamSynchronize(stream));

    oct_kv_spec *kv = &j.spec.kv;
    j.spec.struct_size = sizeof j.spec;
    kv->struct_size = sizeof *kv;
    kv->heads = s->heads;
    kv->dim_k = kv->dim_v = s->dim;
    kv->page_size = (uint32_t)s->page;
    kv->layout = OCT_LAYOUT_NHD;
    kv->k.dtype = kv->v.dtype = s->dtype;
    kv->k.scale_mode = kv->v.scale_mode = is_token ? OCT_SCALE_TOKEN_HEAD : size == 1 ? OCT_SCALE_LAYER : OCT_SCALE_NONE;
    kv->k.scale_dtype = kv->v.scale_dtype = is_token ? OCT_DTYPE_F32 : 0;
    kv->k.rotated = s->dtype == OCT_DTYPE_I8;
    if (is_v4)
        kv->v = (oct_kv_format){ OCT_DTYPE_V4, OCT_SCALE_NONE, 0, 1 };
    j.spec.heads_q = s->heads_q;
    j.spec.q_dtype = OCT_DTYPE_BF16;
    j.spec.out_dtype = OCT_DTYPE_BF16;
    j.spec.sm_scale = 1.0f / sqrtf((float)s->dim);
    j.spec.causal = 1;
    const float scale = 0.05f;
    j.layer.struct_size = sizeof j.layer;
    j.layer.spec = *kv;
    j.layer.n_pages = n_pages;
    j.layer.k_page_stride = j.layer.v_page_stride = (int64_t)s->page * (int64_t)row;
    j.layer.k_token_stride = j.layer.v_token_stride = (int64_t)row;
    j.layer.k_head_stride = j.layer.v_head_stride = s->dim;
    j.layer.k_scale_page_stride = j.layer.v_scale_page_stride = (int64_t)s->page * s->heads;
    if (!is_token && size == 1)
        j.layer.k_scale = j.layer.v_scale = pointer(upload(&scale, sizeof scale));
    const size_t n_q = (size_t)s->n * s->heads_q * s->dim;
    uint16_t *q = malloc(n_q * 2), *out[2] = { malloc(n_q * 2), malloc(n_q * 2) };
    for (size_t i = 0; i < n_q; i++)
        q[i] = oct__bf16_from_f32((float)normal());
    j.args.struct_size = sizeof j.args;
    j.args.q = pointer(upload(q, n_q * 2));
    j.args.out = pointer(alloc(n_q * 2));
    j.args.q_head_stride = j.args.out_head_stride = s->dim;
    j.args.q_row_stride = j.args.out_row_stride = (int64_t)s->heads_q * s->dim;
    j.spec.deterministic = s->everything == DETERMINISTIC;
    if (s->everything == EVERYTHING) {
        float *sink = malloc(s->heads_q * sizeof *sink);
        for (uint32_t i = 0; i < s->heads_q; i++)
            sink[i] = (float)normal();
        j.spec.has_sink = 1;
        j.args.sink = pointer(upload(sink, s->heads_q * sizeof *sink));
        j.spec.softcap = 30.0f;
        j.spec.window_tokens = (uint32_t)s->keys - 8;
        j.args.lse = pointer(alloc((size_t)s->n * s->heads_q * 4));
        j.args.lse_row_stride = s->heads_q;
        j.args.lse_head_stride = 1;
        free(sink);
    }
    oct_attn_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.struct_size = sizeof batch;
    batch.n_sequences = (uint32_t)s->n;
    batch.n_pages = n_pages;
    batch.qo_indptr = pointer(upload(rows, ((size_t)s->n + 1) * 4));
    batch.seq_lens = pointer(upload(lens, (size_t)s->n * 4));
    batch.block_table = pointer(upload(table, (size_t)s->n * most * 4));
    batch.max_pages = most;
    oct__dev_pack_batch(&j.spec, &batch, &j.batch);
    const oct__dev_step_limits limits = { (uint32_t)s->n, s->n, s->keys };
    f32 = j;
    prepare(&j, &chips[0], &limits);
    prepare(&f32, &chips[1], &limits);
    attend(&f32, sets - 1);
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemcpyDtoH_v2(out[0], (address)(uintptr_t)j.args.out, n_q * 2));
    MUST(cuMemsetD8Async((address)(uintptr_t)j.args.out, 0xFF, n_q * 2, stream));
    attend(&j, sets - 1);
    MUST(cuStreamSynchronize(stream));
    MUST(cuMemcpyDtoH_v2(out[1], (address)(uintptr_t)j.args.out, n_q * 2));
    double square = 0.0, off = 0.0;
    for (size_t i = 0; i < n_q; i++) {
        const double a = (double)oct__bf16_to_f32(out[0][i]), d = (double)oct__bf16_to_f32(out[1][i]) - a;
        square += a * a;
        off += d * d;
    }
    const double error = sqrt(off / square);

    j.read_blocks = (uint64_t)(bytes / 16384);
    j.sink = alloc(4);
    double least, most_us;
    const int read_sets = 2 * j.set_bytes * (size_t)sets <= pool_bytes ? sets : (int)(pool_bytes / (2 * j.set_bytes));
    const double floor_us = read_sets > 0 ? timed(read_all, &j, read_sets, repeats, NULL, NULL) : 0.0;
    const double us = timed(attend, &j, sets, repeats, &least, &most_us);
    const double plan_us = timed(plan, &j, 8, repeats, NULL, NULL);
    printf("%-28s floor %6.1f  ours %6.1f (%.1f to %.1f)  x %.3f  must %.2f aim %.2f  %4.0f GB/s  off %.5f%s  plan %.1f  %s H%u P%u\n", s->name, floor_us, us, least,
           most_us, us / floor_us, s->must, s->aim, bytes / us * 1e-3, error, error < 0.004 ? "" : " WRONG", plan_us, j.w.shape[0].kernel + 12, j.w.heads_a_block[0],
           j.w.n_parts[0]);
    fflush(stdout);
    cu.cuMemFree_v2((address)(uintptr_t)j.memory);
    cu.cuMemFree_v2((address)(uintptr_t)f32.memory);
    for (int side = 0; side < 2; side++)
        if (j.scales[side] != 0)
            cu.cuMemFree_v2(j.scales[side]);
    free(lens), free(rows), free(table), free(order), free(codes), free(q), free(out[0]), free(out[1]);
}

int main(int argc, char **argv)
{
    const char *only = "", *way = "sm90a";
    int repeats = 9, device, limit;
    char name[128];
    void *context, *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (argc < 3 || library == NULL)
        return fprintf(stderr, "usage: decode CODE.cubin READ.cubin [-s SHAPE] [-r REPEATS] [-k sm90a|mma|f32]; needs libcuda\n"), 2;
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
        else if (argv[i][1] == 'k')
            way = argv[i + 1];
    }
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDeviceGetName(name, sizeof name, device));
    MUST(cuDeviceGetAttribute(&n_units, 16, device));
    MUST(cuDeviceGetAttribute(&limit, 97, device));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    MUST(cuModuleLoad(&code, argv[1]));
    MUST(cuModuleLoad(&extra, argv[2]));
    MUST(cuStreamCreate(&stream, 1));
    MUST(cuEventCreate(&begin_event, 0));
    MUST(cuEventCreate(&end_event, 0));
    flush_at = alloc((size_t)256 << 20);
    pool[0] = alloc(pool_bytes);
    pool[1] = alloc(pool_bytes);
    printf("%s, %d multiprocessors; microseconds, median of %d\n", name, n_units, repeats);
    const oct__dev_chip chips[2] = {
        { .warp = 32, .n_units = (uint32_t)n_units, .shared_limit_bytes = (uint32_t)limit, .has_mma = strcmp(way, "f32") != 0, .has_sm90a = strcmp(way, "sm90a") == 0 },
        { .warp = 32, .n_units = (uint32_t)n_units, .shared_limit_bytes = (uint32_t)limit },
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        if (strstr(shapes[i].name, only) != NULL)
            measure(&shapes[i], chips, repeats);
    return 0;
}
