/* write_shape.c: shapes of kv_write cases: the plain one, random ones, and their text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parity/write_case.h"

write_shape write_plain(int64_t seed)
{
    write_shape s;
    memset(&s, 0, sizeof s);
    s.seed = seed;
    s.heads = 2;
    s.dim_k = s.dim_v = 64;
    s.page_size = 16;
    s.n_pages = 4;
    s.n_tokens = 24;
    s.src_dtype = OCT_DTYPE_F32;
    s.k_dtype = s.v_dtype = OCT_DTYPE_E4M3FN;
    s.k_scale_mode = s.v_scale_mode = OCT_SCALE_LAYER;
    s.rope_dims = 64;
    s.position_max = 4000;
    s.counts = 1;
    s.poison = 0xFF;
    return s;
}

void write_print(const write_shape *shape, char *text, size_t size)
{
    const write_shape plain = write_plain(0);
    size_t at = (size_t)snprintf(text, size, "seed=%lld", (long long)shape->seed);
#define PRINT_FIELD(name) \
    if (shape->name != plain.name && strcmp(#name, "seed") != 0 && at < size) \
        at += (size_t)snprintf(text + at, size - at, ",%s=%lld", #name, (long long)shape->name);
    WRITE_FIELDS(PRINT_FIELD)
}

static int parse_field(write_shape *s, const char *key, const char *value)
{
    char *end = NULL;
#define PARSE_FIELD(name)                           \
    if (strcmp(key, #name) == 0) {                  \
        s->name = strtoll(value, &end, 10);         \
        return end != value && *end == 0 ? 0 : -1;  \
    }
    WRITE_FIELDS(PARSE_FIELD)
    return -1;
}

int write_parse(write_shape *shape, const char *text)
{
    char copy[1024], *rest = NULL;
    if (strlen(text) >= sizeof copy)
        return -1;
    strcpy(copy, text);
    *shape = write_plain(0);
    for (char *field = strtok_r(copy, ",", &rest); field != NULL; field = strtok_r(NULL, ",", &rest)) {
        char *value = strchr(field, '=');
        if (value == NULL)
            return -1;
        *value++ = 0;
        if (parse_field(shape, field, value) != 0)
            return -1;
    }
    return 0;
}

static void random_format(rng *r, int64_t *dtype, int64_t *mode, int64_t *scale_dtype, int64_t *rotated)
{
    static const int64_t dtypes[] = { OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FN, OCT_DTYPE_E5M2, OCT_DTYPE_I8, OCT_DTYPE_E4M3FNUZ,
                                      OCT_DTYPE_BF16, OCT_DTYPE_F16, OCT_DTYPE_F32 };
    static const int64_t modes[] = { OCT_SCALE_NONE, OCT_SCALE_TENSOR, OCT_SCALE_LAYER, OCT_SCALE_LAYER_HEAD, OCT_SCALE_TOKEN_HEAD,
                                     OCT_SCALE_TOKEN_HEAD, OCT_SCALE_CHANNEL };
    *dtype = RNG_PICK(r, dtypes);
    *mode = RNG_PICK(r, modes);
    if (!oracle_is_8bit((uint32_t)*dtype))
        *mode = OCT_SCALE_NONE;
    else if (*dtype == OCT_DTYPE_I8 && *mode != OCT_SCALE_CHANNEL)
        *mode = OCT_SCALE_TOKEN_HEAD;
    *scale_dtype = *mode != OCT_SCALE_TOKEN_HEAD ? 0 : rng_one_in(r, 2) ? OCT_DTYPE_F16 : OCT_DTYPE_F32;
    *rotated = rng_one_in(r, 3);
}

write_shape write_random(int64_t seed)
{
    static const int64_t dims[] = { 16, 24, 32, 40, 48, 64, 64, 72, 80, 88, 96, 104, 112, 120, 128, 128, 192, 256, 512 };
    static const int64_t pages[] = { 1, 2, 3, 5, 8, 16, 16, 32, 64, 100 };
    static const int64_t v5d_pages[] = { 16, 16, 32, 48, 64 };
    static const int64_t sources[] = { OCT_DTYPE_F32, OCT_DTYPE_F16, OCT_DTYPE_BF16 };
    rng r = rng_make((uint64_t)seed + 77);
    write_shape s = write_plain(seed);
    s.heads = rng_between(&r, 1, 5);
    s.layout = rng_below(&r, 3);
    s.page_size = s.layout == OCT_LAYOUT_V5D ? RNG_PICK(&r, v5d_pages) : RNG_PICK(&r, pages);
    s.dim_k = RNG_PICK(&r, dims);
    s.dim_v = rng_one_in(&r, 3) ? RNG_PICK(&r, dims) : s.dim_k;
    if (s.layout == OCT_LAYOUT_V5D)
        s.dim_k = (s.dim_k + 15) / 16 * 16;
    s.n_pages = rng_between(&r, 1, 6) + 20 / s.page_size;
    s.n_tokens = rng_between(&r, 0, 40);
    s.src_dtype = RNG_PICK(&r, sources);
    random_format(&r, &s.k_dtype, &s.k_scale_mode, &s.k_scale_dtype, &s.k_rotated);
    random_format(&r, &s.v_dtype, &s.v_scale_mode, &s.v_scale_dtype, &s.v_rotated);
    s.window = rng_one_in(&r, 4);
    s.rope = rng_one_in(&r, 3) ? rng_between(&r, 1, 2) : 0;
    s.rope_dims = rng_one_in(&r, 2) ? s.dim_k : 2 * rng_between(&r, 1, s.dim_k / 2);
    s.rope_factors = rng_one_in(&r, 3);
    s.position_max = rng_one_in(&r, 3) ? 200000 : 4000;
    s.slots = rng_below(&r, 3);
    s.strides = rng_one_in(&r, 3) ? 0 : rng_below(&r, 16);
    s.base_offset = rng_one_in(&r, 3) ? rng_between(&r, 1, 7) : 0;
    s.source_offset = rng_one_in(&r, 3) ? rng_between(&r, 1, 7) : 0;
    s.data = rng_one_in(&r, 2) ? WRITE_NORMAL : rng_between(&r, WRITE_SPECIAL, WRITE_LARGE);
    s.flush = rng_one_in(&r, 2) && !s.rope && !s.k_rotated && !s.v_rotated;   /* sums in f32 are the thread's own business */
    s.counts = !rng_one_in(&r, 3);
    s.guard_start = rng_one_in(&r, 3);
    s.poison = rng_one_in(&r, 2) ? 0xFF : 0;
    return s;
}

write_shape write_random_v4(int64_t seed)
{
    write_shape s = write_random(seed);
    s.layout = s.layout == OCT_LAYOUT_V5D ? OCT_LAYOUT_HND : s.layout;
    s.dim_v = (s.dim_v + 31) / 32 * 32;
    s.v_dtype = OCT_DTYPE_V4, s.v_scale_mode = OCT_SCALE_NONE, s.v_scale_dtype = 0, s.v_rotated = seed % 3 != 0;
    s.flush = s.flush && !s.v_rotated;
    s.window = s.window ? 1 + seed / 3 % 3 : 0;
    return s;
}
