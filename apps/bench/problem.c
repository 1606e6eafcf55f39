/* problem.c: see problem.h. */
#include "apps/bench/problem.h"

#include <string.h>

static const char *const names[BENCH_OPS] = { "kv_write", "attn_decode", "attn_extend", "attn_merge" };

/* The library's border between its two attention operations (doc/PLAN.md). */
enum { DECODE_ROWS_MAX = 16 };

const char *bench_op_name(bench_op op)
{
    return (unsigned)op < BENCH_OPS ? names[op] : "?";
}

bench_op bench_op_from_name(const char *name, size_t n)
{
    for (int op = 0; op < BENCH_OPS; op++) {
        if (strlen(names[op]) == n && memcmp(names[op], name, n) == 0) {
            return (bench_op)op;
        }
    }
    return BENCH_OPS;
}

static double token_bytes(const oct_kv_format *format, uint32_t dim)
{
    const uint32_t scale = format->scale_mode == OCT_SCALE_TOKEN_HEAD ? oct_dtype_size_bytes(format->scale_dtype) : 0;
    return (double)oct_dtype_bytes(format->dtype, dim) + scale;
}

bench_amount bench_amount_of(const bench_problem *p)
{
    const double batch = p->batch, stored = token_bytes(&p->k, p->dim_k) + token_bytes(&p->v, p->dim_v), dims = (double)p->dim_k + p->dim_v;
    if (p->op == BENCH_WRITE) {
        const double vectors = batch * p->q_len * p->heads_kv;
        return (bench_amount){ vectors * (dims * oct_dtype_size_bytes(p->operand) + stored), 0 };
    }
    if (p->op == BENCH_MERGE) {
        const double vectors = batch * p->q_len * p->heads_q;
        return (bench_amount){ vectors * 4 * (p->dim_v + 1.0) * (p->parts + 1.0), vectors * p->parts * p->dim_v * 2 };
    }
    double pairs = 0;
    for (uint32_t row = 0; row < p->q_len; row++) {
        const uint32_t seen = p->kv_len - p->q_len + row + 1;
        pairs += p->window > 0 && seen > p->window ? p->window : seen;
    }
    const uint32_t first = p->kv_len - p->q_len + 1;   /* keys that the first row sees without a window */
    const uint32_t hidden = p->window > 0 && first > p->window ? first - p->window : 0;
    return (bench_amount){ batch * p->heads_kv * (p->kv_len - hidden) * stored, batch * p->heads_q * pairs * dims * 2 };
}

double bench_rate_of_threads(const double pair[2], uint32_t all, uint32_t t)
{
    if (t <= 1 || all <= 1) {
        return pair[0];
    }
    const double together = pair[1] > pair[0] ? pair[1] : pair[0], apart = t * pair[0];
    return t >= all || apart > together ? together : apart;
}

double bench_limit_seconds(const bench_problem *p, const oct_rates *r)
{
    const bench_amount amount = bench_amount_of(p);
    const bool copies = p->op == BENCH_WRITE || p->op == BENCH_MERGE;
    const double memory = amount.bytes / bench_rate_of_threads(copies ? r->copy_memory_bytes : r->read_memory_bytes, r->threads, p->threads);
    const double *const rates[] = { r->fma_avx2_flops, r->fma_avx512_flops, r->dot_bf16_flops, r->dot_amx_bf16_flops };
    double peak = 0;
    for (int i = 0; i < 4; i++) {
        /* Arithmetic scales with the cores: measured pairs do too, up to what else ran. */
        const double rate = bench_rate_of_threads(rates[i], r->threads, p->threads);
        peak = rate > peak ? rate : peak;
    }
    const double arithmetic = copies || peak == 0 ? 0 : amount.flops / peak;
    return memory > arithmetic ? memory : arithmetic;
}

const char *bench_problem_complaint(const bench_problem *p)
{
    const bool attention = p->op == BENCH_DECODE || p->op == BENCH_EXTEND;
    if (p->op != BENCH_MERGE && p->q_len > p->kv_len) {
        return "more rows than keys";
    }
    if (attention && (p->q_len <= DECODE_ROWS_MAX) != (p->op == BENCH_DECODE)) {
        return p->op == BENCH_DECODE ? "attn_decode takes at most 16 rows" : "attn_extend takes more than 16 rows";
    }
    if (p->op != BENCH_WRITE && p->heads_q % p->heads_kv != 0) {
        return "query heads must be a multiple of KV heads";
    }
    return NULL;
}
