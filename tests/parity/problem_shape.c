/* problem_shape.c: shapes of attention problems: the plain one, random ones, and their text. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parity/problem.h"

problem_shape problem_plain(int64_t seed)
{
    problem_shape s;
    memset(&s, 0, sizeof s);
    s.seed = seed;
    s.heads_q = 4;
    s.heads = 2;
    s.dim_k = s.dim_v = 64;
    s.page_size = 16;
    s.k_dtype = s.v_dtype = OCT_DTYPE_E4M3FN;
    s.k_scale_mode = s.v_scale_mode = OCT_SCALE_LAYER;
    s.q_dtype = OCT_DTYPE_BF16;
    s.out_dtype = OCT_DTYPE_F32;
    s.causal = 1;
    s.threads = 1;
    s.with_lse = 1;
    s.poison = POISON_FF;
    s.needle_key = -1;
    s.needle_gap = 25.0;
    s.score_deviation = 1.0;
    problem_lengths(&s, 1, (const int32_t[]){ 1 }, (const int32_t[]){ 40 });
    return s;
}

void problem_lengths(problem_shape *shape, int n, const int32_t *q_len, const int32_t *kv_len)
{
    shape->n_sequences = shape->n_lengths = n;
    for (int i = 0; i < n; i++) {
        shape->q_len[i] = q_len[i];
        shape->kv_len[i] = kv_len[i];
    }
}

/* ---- text -------------------------------------------------------------------------------------------------- */

static size_t append_lengths(char *text, size_t size, size_t at, const char *key, int n, const int32_t *length)
{
    for (int i = 0; i < n && at < size;) {
        int same = 1;
        while (i + same < n && length[i + same] == length[i])
            same++;
        at += (size_t)snprintf(text + at, size - at, "%s%d", i == 0 ? key : ":", length[i]);
        if (same > 1 && at < size)
            at += (size_t)snprintf(text + at, size - at, "x%d", same);
        i += same;
    }
    return at;
}

void problem_print(const problem_shape *shape, char *text, size_t size)
{
    const problem_shape plain = problem_plain(0);
    size_t at = (size_t)snprintf(text, size, "seed=%lld", (long long)shape->seed);
#define PRINT_INT(name) \
    if (shape->name != plain.name && strcmp(#name, "seed") != 0 && at < size) \
        at += (size_t)snprintf(text + at, size - at, ",%s=%lld", #name, (long long)shape->name);
#define PRINT_REAL(name) \
    if ((shape->name < plain.name || shape->name > plain.name) && at < size) \
        at += (size_t)snprintf(text + at, size - at, ",%s=%.17g", #name, shape->name);
    PROBLEM_INTS(PRINT_INT)
    PROBLEM_REALS(PRINT_REAL)
    at = append_lengths(text, size, at, ",q_len=", shape->n_lengths, shape->q_len);
    append_lengths(text, size, at, ",kv_len=", shape->n_lengths, shape->kv_len);
}

static int parse_lengths(const char *value, int32_t *length)
{
    int n = 0;
    char *end;
    do {
        const long x = strtol(value, &end, 10);
        long same = 1;
        if (end == value)
            return -1;
        if (*end == 'x')
            same = strtol(end + 1, &end, 10);
        for (; same > 0 && n < PROBLEM_LENGTHS; same--)
            length[n++] = (int32_t)x;
        value = end + 1;
    } while (*end == ':');
    return *end == 0 ? n : -1;
}

static int parse_field(problem_shape *s, const char *key, const char *value, int *n_q, int *n_kv)
{
    char *end = NULL;
#define PARSE_INT(name)                             \
    if (strcmp(key, #name) == 0) {                  \
        s->name = strtoll(value, &end, 10);         \
        return end != value && *end == 0 ? 0 : -1;  \
    }
#define PARSE_REAL(name)                            \
    if (strcmp(key, #name) == 0) {                  \
        s->name = strtod(value, &end);              \
        return end != value && *end == 0 ? 0 : -1;  \
    }
    PROBLEM_INTS(PARSE_INT)
    PROBLEM_REALS(PARSE_REAL)
    if (strcmp(key, "q_len") == 0)
        return (*n_q = parse_lengths(value, s->q_len)) < 0 ? -1 : 0;
    if (strcmp(key, "kv_len") == 0)
        return (*n_kv = parse_lengths(value, s->kv_len)) < 0 ? -1 : 0;
    return -1;
}

int problem_parse(problem_shape *shape, const char *text)
{
    char copy[PROBLEM_TEXT], *rest = NULL;
    int n_q = 1, n_kv = 1;
    if (strlen(text) >= sizeof copy)
        return -1;
    strcpy(copy, text);
    *shape = problem_plain(0);
    for (char *field = strtok_r(copy, ",", &rest); field != NULL; field = strtok_r(NULL, ",", &rest)) {
        char *value = strchr(field, '=');
        if (value == NULL)
            return -1;
        *value++ = 0;
        if (parse_field(shape, field, value, &n_q, &n_kv) != 0)
            return -1;
    }
    if (n_q != n_kv)
        return -1;
    shape->n_lengths = n_q;
    return 0;
}

/* ---- random ------------------------------------------------------------------------------------------------- */

static void random_format(rng *r, int64_t *dtype, int64_t *mode, int64_t *scale_dtype, int64_t *rotated)
{
    static const int64_t dtypes[] = { OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FN, OCT_DTYPE_E5M2, OCT_DTYPE_I8,
                                      OCT_DTYPE_I8, OCT_DTYPE_E4M3FNUZ, OCT_DTYPE_BF16, OCT_DTYPE_F16, OCT_DTYPE_F32 };
    static const int64_t modes[] = { OCT_SCALE_NONE, OCT_SCALE_TENSOR, OCT_SCALE_LAYER, OCT_SCALE_LAYER_HEAD, OCT_SCALE_TOKEN_HEAD,
                                     OCT_SCALE_TOKEN_HEAD, OCT_SCALE_CHANNEL };
    static const int64_t i8_modes[] = { OCT_SCALE_TOKEN_HEAD, OCT_SCALE_TOKEN_HEAD, OCT_SCALE_CHANNEL };
    *dtype = RNG_PICK(r, dtypes);
    *mode = *dtype == OCT_DTYPE_I8 ? RNG_PICK(r, i8_modes) : RNG_PICK(r, modes);
    if (!oracle_is_8bit((uint32_t)*dtype))
        *mode = OCT_SCALE_NONE;
    *scale_dtype = *mode != OCT_SCALE_TOKEN_HEAD ? 0 : rng_one_in(r, 2) ? OCT_DTYPE_F16 : OCT_DTYPE_F32;
    *rotated = rng_one_in(r, 4);
}

static int32_t random_kv_len(rng *r, int64_t page_size)
{
    switch (rng_below(r, 8)) {
    case 0: return (int32_t)rng_below(r, 4);
    case 1: case 2: {
        const int64_t edge = page_size * rng_between(r, 1, page_size > 64 ? 2 : 5) + rng_between(r, -1, 1);
        return (int32_t)(edge < 400 ? edge : 400);
    }
    case 3: case 4: return (int32_t)rng_between(r, 1, 40);
    case 5: return (int32_t)rng_between(r, 200, 600);
    default: return (int32_t)rng_between(r, 30, 200);
    }
}

static int32_t random_q_len(rng *r, int32_t kv_len)
{
    switch (rng_below(r, 12)) {
    case 0: return 0;
    case 1: return kv_len + (int32_t)rng_between(r, 1, 5);   /* the first rows see nothing when causal */
    case 2: return kv_len < 48 ? kv_len : 48;
    case 3: return (int32_t)rng_between(r, 17, 50);
    case 4: case 5: return (int32_t)rng_between(r, 2, 16);
    default: return 1;
    }
}

/* Multiply-adds of the whole problem. */
static double work_of(const problem_shape *s)
{
    double macs = 0.0;
    for (int i = 0; i < s->n_lengths; i++)
        macs += (double)s->q_len[i] * s->kv_len[i];
    return macs * (double)s->heads_q * (double)(s->dim_k + s->dim_v);
}

static void random_data(rng *r, problem_shape *s)
{
    static const int64_t k_data[] = { DATA_NORMAL, DATA_NORMAL, DATA_NORMAL, DATA_CODES, DATA_CODES, DATA_NEEDLE,
                                      DATA_EQUAL, DATA_HUGE, DATA_SATURATED, DATA_SUBNORMAL };
    static const int64_t v_data[] = { DATA_NORMAL, DATA_NORMAL, DATA_NORMAL, DATA_CODES, DATA_CODES, DATA_HALF,
                                      DATA_SATURATED, DATA_SUBNORMAL, DATA_ONE_HOT, DATA_HEAD };
    static const double deviations[] = { 0.01, 0.5, 1.0, 1.0, 2.0, 3.0 };
    s->k_data = RNG_PICK(r, k_data);
    s->v_data = RNG_PICK(r, v_data);
    if (s->k_data == DATA_HUGE && s->k_rotated)   /* huge scores must be exact in f32, and a rotated q is not */
        s->k_data = DATA_NORMAL;
    s->score_deviation = RNG_PICK(r, deviations);
    if (rng_one_in(r, 5)) {
        s->by_write = 1;
        s->k_data = s->v_data = DATA_NORMAL;
    }
    s->share = !s->by_write && rng_one_in(r, 4);
    s->poison = rng_below(r, 4);
}

static void random_features(rng *r, problem_shape *s)
{
    static const int64_t q_dtypes[] = { OCT_DTYPE_F32, OCT_DTYPE_BF16, OCT_DTYPE_BF16, OCT_DTYPE_F16, OCT_DTYPE_E4M3FN, OCT_DTYPE_E5M2,
                                        OCT_DTYPE_E4M3FNUZ };
    static const int64_t out_dtypes[] = { OCT_DTYPE_F32, OCT_DTYPE_F32, OCT_DTYPE_BF16, OCT_DTYPE_F16, OCT_DTYPE_E4M3FN, OCT_DTYPE_E5M2,
                                          OCT_DTYPE_E4M3FNUZ };
    static const int64_t windows[] = { 1, 2, 3, 15, 16, 17, 64, 127, 128, 300 };
    static const int64_t splits[] = { 1, 3, 7, 16, 33, 64, 100 };
    static const double caps[] = { 1.0, 5.0, 30.0, 50.0 };
    s->q_dtype = RNG_PICK(r, q_dtypes);
    s->out_dtype = RNG_PICK(r, out_dtypes);
    s->causal = !rng_one_in(r, 4);
    s->window = rng_one_in(r, 3) ? RNG_PICK(r, windows) : 0;
    s->softcap = rng_one_in(r, 4) ? RNG_PICK(r, caps) : 0.0;
    s->sink = rng_one_in(r, 3) ? rng_between(r, SINK_RANDOM, SINK_MIXED) : SINK_NONE;
    s->mask = rng_one_in(r, 6);
    s->deterministic = rng_one_in(r, 5);
    s->split_tokens = rng_one_in(r, 3) ? RNG_PICK(r, splits) : 0;
    s->threads = rng_one_in(r, 3) ? rng_between(r, 2, 4) : 1;
    s->with_lse = !rng_one_in(r, 4);
    s->compressed = rng_one_in(r, 2);
    s->page_none = rng_one_in(r, 2);
    s->strides = rng_one_in(r, 3) ? 0 : rng_below(r, 64);
    s->base_offset = rng_one_in(r, 4) ? rng_between(r, 1, 5) : 0;
    s->guard_start = rng_one_in(r, 3);
}

problem_shape problem_random(int64_t seed)
{
    static const int64_t ratios[] = { 1, 1, 2, 2, 3, 4, 4, 5, 6, 7, 8, 9, 12, 16 };
    static const int64_t dims[] = { 16, 24, 32, 40, 48, 64, 64, 64, 72, 80, 96, 100, 112, 128, 128, 192, 256 };
    static const int64_t pages[] = { 1, 2, 3, 4, 5, 8, 16, 16, 16, 32, 64, 128, 256 };
    static const int64_t v5d_pages[] = { 16, 16, 32, 48, 64, 128 };
    rng r = rng_make((uint64_t)seed);
    problem_shape s = problem_plain(seed);
    random_format(&r, &s.k_dtype, &s.k_scale_mode, &s.k_scale_dtype, &s.k_rotated);
    if (rng_one_in(&r, 2)) {
        s.v_dtype = s.k_dtype;
        s.v_scale_mode = s.k_scale_mode;
        s.v_scale_dtype = s.k_scale_dtype;
        s.v_rotated = rng_one_in(&r, 6);
    } else {
        random_format(&r, &s.v_dtype, &s.v_scale_mode, &s.v_scale_dtype, &s.v_rotated);
    }
    s.layout = rng_below(&r, 3);
    s.page_size = s.layout == OCT_LAYOUT_V5D ? RNG_PICK(&r, v5d_pages) : RNG_PICK(&r, pages);
    s.dim_k = RNG_PICK(&r, dims) / 8 * 8;
    s.dim_v = rng_one_in(&r, 4) ? RNG_PICK(&r, dims) / 8 * 8 : s.dim_k;
    if (rng_one_in(&r, 40))
        s.dim_k = s.dim_v = 512;
    if (s.layout == OCT_LAYOUT_V5D)
        s.dim_k = (s.dim_k + 15) / 16 * 16;
    s.heads = rng_between(&r, 1, 4);
    s.heads_q = s.heads * RNG_PICK(&r, ratios);
    if (rng_one_in(&r, 40)) {
        s.heads = 1;
        s.heads_q = rng_between(&r, 17, 64);
    }
    random_features(&r, &s);
    random_data(&r, &s);
    s.n_sequences = s.n_lengths = (int32_t)rng_between(&r, 1, rng_one_in(&r, 8) ? 20 : 5);
    for (int i = 0; i < s.n_lengths; i++) {
        s.kv_len[i] = random_kv_len(&r, s.page_size);
        s.q_len[i] = random_q_len(&r, s.kv_len[i]);
    }
    /* The float64 judge does about 10^9 multiply-adds a second; a problem must cost milliseconds. */
    for (int i = 0; work_of(&s) > 3e6; i++) {
        const int at = i % s.n_lengths;
        if (s.n_lengths > 1 && s.q_len[at] > 1 && s.kv_len[at] > 20)
            s.n_sequences = --s.n_lengths;
        else if (s.heads > 1 && i % 3 == 2)
            s.heads_q = s.heads_q / s.heads * (s.heads - 1), s.heads--;
        else if (s.q_len[at] > 1)
            s.q_len[at] = s.q_len[at] * 3 / 4;
        else
            s.kv_len[at] = s.kv_len[at] * 3 / 4;
    }
    /* Drawn from nothing, so that seeds keep their problems. */
    s.products = s.k_dtype == OCT_DTYPE_E4M3FN && s.v_dtype == OCT_DTYPE_E4M3FN ? seed % 3 : OCT_PRODUCTS_16BIT;
    return s;
}

problem_shape problem_random_v4(int64_t seed)
{
    problem_shape s = problem_random(seed);
    s.layout = s.layout == OCT_LAYOUT_V5D ? OCT_LAYOUT_HND : s.layout;
    s.dim_v = (s.dim_v + 31) / 32 * 32;
    s.v_dtype = OCT_DTYPE_V4, s.v_scale_mode = OCT_SCALE_NONE, s.v_scale_dtype = 0, s.v_rotated = seed % 3 != 0;
    if (seed % 2 == 0) {
        s.k_dtype = OCT_DTYPE_I8, s.k_scale_mode = OCT_SCALE_TOKEN_HEAD, s.k_scale_dtype = OCT_DTYPE_F16, s.k_rotated = 1;
        s.k_data = s.k_data == DATA_HUGE ? DATA_NORMAL : s.k_data;
    }
    return s;
}
