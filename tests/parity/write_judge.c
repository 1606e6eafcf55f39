/* write_judge.c: judges what a write left: stored vectors by the oracle, all other bytes by their copies, and the counts; and runs
 * every variant over a case. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parity/isolate.h"
#include "parity/problem.h"
#include "parity/roster.h"
#include "parity/write_case.h"

typedef struct owned { unsigned char *map[4]; } owned;   /* bytes that the write had to store */

static void own(const write_pool *pool, owned *o, oracle_which which, int64_t page, uint32_t token, uint32_t head)
{
    const oct_kv_layer *l = &pool->layer;
    const oct_kv_format *format = oracle_format(l, which);
    const int64_t unit = format->dtype == OCT_DTYPE_V4 ? 32 : 1, unit_bytes = (int64_t)oracle_bytes(format->dtype, unit);
    const int64_t base = (const unsigned char *)(which == ORACLE_K ? l->k : l->v) - (const unsigned char *)pool->memory[which].at;
    for (uint32_t d = 0; d < oracle_dim(l, which); d += (uint32_t)unit)
        memset(o->map[which] + base + oracle_address(l, which, page, token, head, d) / unit * unit_bytes, 1, (size_t)unit_bytes);
    if (format->scale_mode == OCT_SCALE_TOKEN_HEAD) {
        const int64_t scale_bytes = oracle_size_bytes(format->scale_dtype);
        memset(o->map[2 + which] + oracle_scale_address(l, which, page, token, head) * scale_bytes, 1, (size_t)scale_bytes);
    }
}

static int judge_vector(const write_case *c, const write_pool *pool, owned *o, oracle_which which, int64_t t, uint32_t head, oct_kv_counts *counts,
                        char *text, size_t size)
{
    float source[512];
    oracle_written w;
    const oct_kv_write_args *a = &c->args;
    const int64_t slot = pool->slots[t], page = slot / pool->layer.spec.page_size;
    const uint32_t token = (uint32_t)(slot % pool->layer.spec.page_size);
    for (uint32_t d = 0; d < oracle_dim(&pool->layer, which); d++)
        source[d] = (float)(which == ORACLE_K ? oracle_decode(a->src_dtype, a->k, t * a->k_token_stride + head * a->k_head_stride + d)
                                              : oracle_decode(a->src_dtype, a->v, t * a->v_token_stride + head * a->v_head_stride + d));
    oracle_write_vector(&pool->layer, which, source, which == ORACLE_K ? a->rope : NULL, a->positions != NULL ? a->positions[t] : 0, &w);
    const int64_t wrong = oracle_check_written(&pool->layer, which, page, token, head, &w, counts);
    own(pool, o, which, page, token, head);
    if (wrong == -1)
        return 0;
    const oct_kv_format *format = oracle_format(&pool->layer, which);
    if (wrong == -2)
        snprintf(text, size, "%s%s of token %lld (slot %lld) head %u: dynamic scale %.9g, must be %.9g", pool == &c->pool[1] ? "window " : "",
                 which == ORACLE_K ? "K" : "V", (long long)t, (long long)slot, head, oracle_scale(&pool->layer, which, page, token, head, 0), w.scale_high);
    else
        snprintf(text, size, "%s%s of token %lld (slot %lld) head %u dim %lld: code 0x%x under scale %.9g for %.9g (slack %.3g), nearest is 0x%x",
                 pool == &c->pool[1] ? "window " : "", which == ORACLE_K ? "K" : "V", (long long)t, (long long)slot, head, (long long)wrong,
                 oracle_code_at(format->dtype, which == ORACLE_K ? pool->layer.k : pool->layer.v,
                                oracle_address(&pool->layer, which, page, token, head, (uint32_t)wrong)),
                 oracle_scale(&pool->layer, which, page, token, head, (uint32_t)wrong), (double)w.x[wrong], w.slack[wrong],
                 oracle_encode(format->dtype, oracle_divide((double)w.x[wrong], oracle_scale(&pool->layer, which, page, token, head, (uint32_t)wrong))));
    return 1;
}

static int judge_pool(const write_case *c, const write_pool *pool, oct_kv_counts counts[2], char *text, size_t size)
{
    owned o;
    const int64_t capacity = pool->layer.n_pages * pool->layer.spec.page_size;
    int bad = 0;
    for (int i = 0; i < 4; i++)
        if ((o.map[i] = calloc(pool->memory[i].size_bytes + 1, 1)) == NULL)
            abort();
    for (int64_t t = 0; t < c->shape.n_tokens && !bad; t++)
        if (pool->slots[t] >= 0 && pool->slots[t] < capacity)
            for (uint32_t h = 0; h < pool->layer.spec.heads && !bad; h++)
                for (int which = 0; which < 2 && !bad; which++)
                    bad = judge_vector(c, pool, &o, (oracle_which)which, t, h, counts != NULL ? &counts[which] : NULL, text, size);
    for (int i = 0; i < 4; i++) {
        const unsigned char *now = pool->memory[i].at, *before = pool->before[i];
        for (size_t j = 0; j < pool->memory[i].size_bytes && !bad; j++)
            if (!o.map[i][j] && now[j] != before[j]) {
                snprintf(text, size, "byte %zu of %s%s changed and belongs to no written token", j, pool == &c->pool[1] ? "window " : "",
                         i == 0 ? "K" : i == 1 ? "V" : i == 2 ? "K's scales" : "V's scales");
                bad = 1;
            }
        if (!bad && !guard_intact(&pool->memory[i])) {
            snprintf(text, size, "memory around the pool was written");
            bad = 1;
        }
        free(o.map[i]);
    }
    return bad;
}

static int judge_counts(const oct_kv_counts *entries, const oct_kv_counts *expected, int with_rope, double amax_slack, char which, char *text, size_t size)
{
    oct_kv_counts sum = { 0, 0, 0, 0.0f, 0 };
    for (int i = 0; i < 8; i++) {
        sum.n_values += entries[i].n_values;
        sum.n_saturated += entries[i].n_saturated;
        sum.n_nan += entries[i].n_nan;
        sum.amax = fmaxf(sum.amax, entries[i].amax);
    }
    /* RoPE's last bit may move a value across the edge of saturation; how many values there are and which are NaN it cannot change. */
    const int right = sum.n_values == expected->n_values && sum.n_nan == expected->n_nan && (with_rope || sum.n_saturated == expected->n_saturated) &&
                      fabs((double)sum.amax - (double)expected->amax) <= amax_slack;
    if (!right)
        snprintf(text, size, "%c counts: %llu values, %llu saturated, %llu NaN, amax %.9g; must be %llu, %llu, %llu, %.9g", which,
                 (unsigned long long)sum.n_values, (unsigned long long)sum.n_saturated, (unsigned long long)sum.n_nan, (double)sum.amax,
                 (unsigned long long)expected->n_values, (unsigned long long)expected->n_saturated, (unsigned long long)expected->n_nan,
                 (double)expected->amax);
    return !right;
}

int write_judge(write_case *c, char *text, size_t size)
{
    oct_kv_counts expected[2];
    memset(expected, 0, sizeof expected);
    /* Counts speak of the first destination only. */
    if (judge_pool(c, &c->pool[0], expected, text, size) || (c->n_pools == 2 && judge_pool(c, &c->pool[1], NULL, text, size)))
        return 1;
    const double k_slack = c->shape.rope != 0 ? 1e-5 * (double)expected[0].amax + 1e-40 : 0.0;
    const double flushed = c->shape.flush ? 0x1p-126 : 0.0;   /* where subnormals are flushed, an amax among them may be */
    if (c->shape.counts && (judge_counts(c->k_counts, &expected[0], c->shape.rope != 0, k_slack + flushed, 'K', text, size) ||
                            judge_counts(c->v_counts, &expected[1], 0, flushed, 'V', text, size)))
        return 1;
    /* The write is exact: variants leave the same bytes, RoPE's included. */
    for (int i = 0; i < c->n_pools; i++)
        for (int j = 0; j < 4; j++) {
            write_pool *pool = &c->pool[i];
            const size_t n = pool->memory[j].size_bytes;
            if (n > 0 && c->n_judged == 0)
                memcpy(pool->first[j], pool->memory[j].at, n);
            if (n > 0 && memcmp(pool->first[j], pool->memory[j].at, n) != 0) {
                snprintf(text, size, "the stored bytes differ from those of the first variant");
                return 1;
            }
        }
    c->n_judged++;
    return 0;
}

/* ---- every variant ---------------------------------------------------------------------------------------------- */

/* The thread's floating-point mode, where there is one to change. */
#if defined(__x86_64__)
#include <xmmintrin.h>
static uint32_t set_mode(int flush)
{
    const uint32_t before = _mm_getcsr();
    if (flush)
        _mm_setcsr(before | 0x8040u);   /* flush to zero, and denormals are zero */
    return before;
}
static void restore_mode(uint32_t before) { _mm_setcsr(before); }
#else
static uint32_t set_mode(int flush) { return (uint32_t)flush * 0; }
static void restore_mode(uint32_t before) { (void)before; }
#endif

/* The tokens in uneven shares, as threads would take them, each with a count entry of its own. */
static void run_directly(write_case *c, const oct__variant *variant)
{
    const uint32_t mode = set_mode((int)c->shape.flush);
    rng r = rng_make((uint64_t)c->shape.seed + 5);
    int64_t token = 0;
    for (int i = 0; token < c->shape.n_tokens || i == 0; i++) {
        const int64_t left = c->shape.n_tokens - token;
        const int64_t n = i == 7 || rng_one_in(&r, 3) ? left : rng_below(&r, left + 1);
        variant->write(&c->args, token, token + n, c->shape.counts ? &c->k_counts[i] : NULL, c->shape.counts ? &c->v_counts[i] : NULL);
        token += n;
        if (token == c->shape.n_tokens)
            break;
    }
    restore_mode(mode);
}

static int64_t run_door(write_case *c, int way)
{
    oct_status status = OCT_OK;
    char text[512];
    isolate_doing(way == 0 ? "oct_kv_write" : "oct_kv_write_part");
    write_reset(c);
    if (way == 0)
        status = oct_kv_write(problem_context(2), &c->args);
    for (uint32_t i = 0; way == 1 && i < 3; i++) {
        const oct_status part = oct_kv_write_part(problem_context(1), &c->args, 2 - i, 3);
        status = part != OCT_OK ? part : status;
    }
    if (status != OCT_OK) {
        isolate_fail("%s", oct_status_name(status));
        return 1;
    }
    if (write_judge(c, text, sizeof text) == 0)
        return 0;
    isolate_fail("%s", text);
    return 1;
}

/* In checked mode a slot beyond the capacity is an error and nothing is written. */
static int64_t run_refused(write_case *c)
{
    int beyond = 0;
    for (int i = 0; i < c->n_pools; i++)
        for (int64_t t = 0; t < c->shape.n_tokens; t++)
            beyond |= c->pool[i].slots[t] >= c->pool[i].layer.n_pages * c->pool[i].layer.spec.page_size;
    isolate_doing("oct_kv_write, checked");
    write_reset(c);
    c->args.checked = 1;
    const oct_status status = oct_kv_write(problem_context(2), &c->args);
    c->args.checked = 0;
    if (!beyond) {
        if (status == OCT_OK)
            return 0;
        isolate_fail("%s though every slot is inside or negative", oct_status_name(status));
        return 1;
    }
    if (status != OCT_INVALID_ARGUMENT) {
        isolate_fail("%s for a slot beyond the capacity", oct_status_name(status));
        return 1;
    }
    for (int i = 0; i < c->n_pools; i++)
        for (int j = 0; j < 4; j++)
            if (c->pool[i].memory[j].size_bytes > 0 && memcmp(c->pool[i].before[j], c->pool[i].memory[j].at, c->pool[i].memory[j].size_bytes) != 0) {
                isolate_fail("the refused write changed the pool");
                return 1;
            }
    return 0;
}

int64_t write_check(const write_shape *shape)
{
    write_case c;
    char text[1024];
    int64_t failures = 0;
    write_print(shape, text, sizeof text);
    isolate_doing("making the case");
    isolate_repeat("parity_one write '%s'", text);
    const int made = write_make(&c, shape);
    if (made != 0) {
        isolate_fail(made > 0 ? "oct_kv_spec_check refuses the spec" : "the case could not be made");
        return 1;
    }
    uint32_t n;
    const oct__variant *all = oct__variants(&n);
    for (uint32_t i = 0; i < n; i++) {
        if (all[i].op != OCT__OP_kv_write)
            continue;
        isolate_doing("%s", all[i].full_name);
        if (!roster_write_is_eligible(&all[i], &c.args)) {
            isolate_skipped();
            continue;
        }
        write_reset(&c);
        run_directly(&c, &all[i]);
        isolate_ran(all[i].full_name, 0.0);
        if (write_judge(&c, text, sizeof text) != 0) {
            isolate_fail("%s", text);
            failures++;
        }
    }
    failures += run_door(&c, 0) + run_door(&c, 1) + run_refused(&c);
    write_drop(&c);
    return failures;
}
