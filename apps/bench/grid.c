/* grid.c: see grid.h. */
#include "apps/bench/grid.h"

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static const uint32_t batches[] = { 1, 2, 4, 8, 16, 32, 64 };
static const uint32_t rows[] = { 1, 1, 1, 2, 4, 8, 16, 17, 32, 64, 128, 256, 512, 1024, 2048, 4096 };
static const uint32_t groups[] = { 1, 2, 3, 4, 5, 6, 7, 8, 12, 16 };
static const uint32_t heads[] = { 1, 2, 4, 8 };
static const uint32_t keys[] = { 1, 7, 16, 33, 64, 128, 200, 256, 512, 777, 1024, 2048, 3000, 4096, 8192, 16384, 32768, 65536 };
static const uint32_t windows[] = { 0, 0, 0, 0, 128, 512, 1024, 4096 };
static const uint32_t pages[] = { 16, 16, 16, 64, 1, 256 };
static const uint32_t operands[] = { OCT_DTYPE_BF16, OCT_DTYPE_F32, OCT_DTYPE_F16 };
static const uint32_t dims[][2] = { { 64, 64 }, { 96, 96 }, { 128, 128 }, { 192, 192 }, { 256, 256 }, { 128, 128 }, { 192, 128 } };

#define F32 { OCT_DTYPE_F32, OCT_SCALE_NONE, 0, 0 }
#define F16 { OCT_DTYPE_F16, OCT_SCALE_NONE, 0, 0 }
#define BF16 { OCT_DTYPE_BF16, OCT_SCALE_NONE, 0, 0 }
#define E4M3 { OCT_DTYPE_E4M3FN, OCT_SCALE_NONE, 0, 0 }
#define E4M3_LAYER { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, 0, 0 }
#define E4M3_TOKEN { OCT_DTYPE_E4M3FN, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16, 0 }
#define E4M3_CHANNEL { OCT_DTYPE_E4M3FN, OCT_SCALE_CHANNEL, 0, 0 }
#define FNUZ { OCT_DTYPE_E4M3FNUZ, OCT_SCALE_NONE, 0, 0 }
#define E5M2 { OCT_DTYPE_E5M2, OCT_SCALE_NONE, 0, 0 }
#define I8 { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16, 0 }
#define I8_ROTATED { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16, 1 }
static const oct_kv_format formats[][2] = {
    { E4M3, E4M3 }, { I8_ROTATED, I8 }, { BF16, BF16 }, { E4M3_LAYER, E4M3_LAYER }, { F16, F16 }, { I8, I8 }, { E5M2, E5M2 }, { I8_ROTATED, E4M3 },
    { E4M3_TOKEN, E4M3_TOKEN }, { FNUZ, FNUZ }, { F32, F32 }, { F16, E4M3 }, { E4M3_CHANNEL, E4M3_CHANNEL },
};

/* A well mixed number from two. */
static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t z = a * 0x9E3779B97F4A7C15u + b * 0xD1B54A32D192ED03u + 0x2545F4914F6CDD1Du;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Each axis walks its n values in blocks of n, every block in an order of its own: any n problems in a row hold all values. */
static uint32_t pick(uint32_t i, uint32_t axis, uint32_t n)
{
    uint32_t order[32];
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t at = (uint32_t)(mix(axis * 1000003u + i / n, k) % (k + 1));
        order[k] = order[at];
        order[at] = k;
    }
    return order[i % n];
}

static double bytes_of(const bench_problem *p)
{
    const double k = (double)oct_dtype_bytes(p->k.dtype, p->dim_k), v = (double)oct_dtype_bytes(p->v.dtype, p->dim_v);
    return (double)p->batch * p->heads_kv * p->kv_len * (k + v);
}

static void set_heads(bench_problem *p, uint32_t heads_kv)
{
    p->heads_q = p->heads_q / p->heads_kv * heads_kv;
    p->heads_kv = heads_kv;
}

bench_problem bench_grid_problem(uint32_t i, const bench_grid_limits *limits, uint32_t threads)
{
    const uint32_t d = pick(i, 4, COUNT(dims)), f = pick(i, 5, COUNT(formats)), heads_kv = heads[pick(i, 3, COUNT(heads))];
    bench_problem p = {
        .heads_kv = heads_kv, .heads_q = heads_kv * groups[pick(i, 2, COUNT(groups))], .dim_k = dims[d][0], .dim_v = dims[d][1], .batch = batches[pick(i, 0, COUNT(batches))],
        .q_len = rows[pick(i, 1, COUNT(rows))], .kv_len = keys[pick(i, 6, COUNT(keys))], .page = pages[pick(i, 7, COUNT(pages))], .window = windows[pick(i, 8, COUNT(windows))],
        .k = formats[f][0], .v = formats[f][1], .operand = operands[pick(i, 9, COUNT(operands))], .threads = threads,
    };
    p.kv_len = p.kv_len < p.q_len ? p.q_len : p.kv_len;
    for (;;) {
        p.op = p.q_len <= 16 ? BENCH_DECODE : BENCH_EXTEND;
        if (bytes_of(&p) <= limits->bytes && bench_amount_of(&p).flops <= limits->flops) {
            return p;
        }
        if (p.heads_kv > 1) {
            set_heads(&p, p.heads_kv / 2);
        } else if (p.batch > 1) {
            p.batch /= 2;
        } else if (p.kv_len > p.q_len) {
            p.kv_len = p.kv_len / 2 > p.q_len ? p.kv_len / 2 : p.q_len;
        } else if (p.q_len > 1) {
            p.kv_len = p.q_len = p.q_len / 2;
        } else {
            return p;
        }
    }
}

bench_problem bench_grid_small(const bench_problem *problem)
{
    enum { BATCH = 2, KEYS = 1024, ROWS = 64 };
    bench_problem p = *problem;
    set_heads(&p, 1);
    p.batch = p.batch < BATCH ? p.batch : BATCH;
    p.q_len = p.q_len < ROWS ? p.q_len : ROWS;
    p.kv_len = p.kv_len < KEYS ? p.kv_len : KEYS;
    return p;
}
