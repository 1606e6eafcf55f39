/* simt_host.h: the shim of simt.h for the host executor of tests/device. Each lane is a fiber; every access and every meeting of lanes
 * goes through the functions below, which the executor defines and the library never links. Device addresses are not host addresses:
 * a text that dereferences one crashes, and the executor names kernel, block and lane. */
#ifndef OCT_DEVICE_SIMT_HOST_H
#define OCT_DEVICE_SIMT_HOST_H

#include <math.h>
#include <stddef.h>

#ifndef OCT__WARP
#error "the host build of a kernel text needs -DOCT__WARP=32 or 64"
#endif
#define WARP OCT__WARP
#define DEV static inline __attribute__((unused))
#define UNROLL
#define NO_UNROLL

#define OCT__TEXT(x) #x
#define OCT__LINE(x) OCT__TEXT(x)
#define OCT__SITE (__FILE__ ":" OCT__LINE(__LINE__))

#if OCT__WARP == 32
#define OCT__KERNEL_SYMBOL(name) oct__simt32_##name
#else
#define OCT__KERNEL_SYMBOL(name) oct__simt64_##name
#endif

#define KERNEL(name, threads, blocks, type)               \
    static void name##_body(const type *p);               \
    void OCT__KERNEL_SYMBOL(name)(const void *params);    \
    void OCT__KERNEL_SYMBOL(name)(const void *params)     \
    {                                                     \
        name##_body((const type *)params);                \
    }                                                     \
    static void name##_body(const type *p)

/* ---- the executor ------------------------------------------------------------------------------------------------------ */

typedef enum oct__simt_op {
    OCT__SIMT_MMA_FP8, OCT__SIMT_MMA_FP8_WIDE, OCT__SIMT_MMA_I8,
    OCT__SIMT_WARP_SYNC, OCT__SIMT_XOR, OCT__SIMT_SUM_F32, OCT__SIMT_MAX_F32, OCT__SIMT_SUM_U32, OCT__SIMT_ANY, OCT__SIMT_GROUP8_SUM,
    OCT__SIMT_TRANSPOSE, OCT__SIMT_MMA_F16, OCT__SIMT_MMA_BF16,
    OCT__SIMT_WG_BEGIN, OCT__SIMT_WG_MMA, OCT__SIMT_WG_END, OCT__SIMT_WG_WAIT
} oct__simt_op;

typedef enum oct__simt_atomic {
    OCT__SIMT_ADD_U32, OCT__SIMT_ADD_U64, OCT__SIMT_MAX_U32, OCT__SIMT_ADD_ACQ_REL_U32, OCT__SIMT_OR_U32_SHARED
} oct__simt_atomic;

/* A lane's fragments of D += A B, in the layout of the warp's width (tile.h). */
typedef struct oct__simt_mma {
    float d[4];
    int32_t n[4];                  /* d of I8 */
    uint32_t a[8], b[8];
} oct__simt_mma;

/* argument of MMA_FP8: A and B are e4m3fn, or e4m3fnuz; B may be of the same family's e5m2. WIDE: e4m3fn. */
enum { OCT__SIMT_IS_FNUZ = 1, OCT__SIMT_B_IS_E5M2 = 2 };

/* Lane, block and number of blocks of the running lane. */
uint32_t oct__simt_tid(void);
uint64_t oct__simt_block(void);
uint64_t oct__simt_blocks(void);

/* Checked translations of a device address to where its bytes are. The access is size_bytes long and happens at once. */
void *oct__simt_read(const volatile void *at, size_t size_bytes, const char *site);
void *oct__simt_write(const volatile void *at, size_t size_bytes, const char *site);
void *oct__simt_shared_read(const volatile void *at, size_t size_bytes, const char *site);
void *oct__simt_shared_write(const volatile void *at, size_t size_bytes, const char *site);
uint64_t oct__simt_atomic_run(oct__simt_atomic op, volatile void *at, uint64_t value, const char *site);

/* Device address of the next static shared array of this lane; of the dynamic bytes. */
void *oct__simt_shared(size_t size_bytes, const char *site);
void *oct__simt_shared_dynamic(void);

/* Copies of 16 bytes to an offset of dynamic shared memory, `bytes` of them from global memory and the rest zeros, which land when their lane waits
 * for their group: until at most n groups of the lane are on their way. */
void oct__simt_async_load(uint32_t at, const void *from, uint32_t bytes, const char *site);
void oct__simt_async_commit(void);
void oct__simt_async_wait(uint32_t n, const char *site);

void oct__simt_block_sync(const char *site);
/* v[n]: read from each lane of the warp, then written in each. argument: the mask of XOR. MMA: v is an oct__simt_mma. */
void oct__simt_meet(oct__simt_op op, void *v, uint32_t n, uint32_t argument, const char *site);

/* ---- words of the shim -------------------------------------------------------------------------------------------------- */

#define GET(x) (*(__typeof__(x) *)oct__simt_read(&(x), sizeof(x), OCT__SITE))
#define PUT(x, value) ((void)(*(__typeof__(x) *)oct__simt_write(&(x), sizeof(x), OCT__SITE) = (value)))
#define SGET(x) (*(__typeof__(x) *)oct__simt_shared_read(&(x), sizeof(x), OCT__SITE))
#define SPUT(x, value) ((void)(*(__typeof__(x) *)oct__simt_shared_write(&(x), sizeof(x), OCT__SITE) = (value)))

#define SHARED(T, name, n) T *const name = (T *)oct__simt_shared(sizeof(T) * (n), OCT__SITE)
#define SHARED_DYNAMIC(T, name) T *const name = (T *)oct__simt_shared_dynamic()

#define tid() oct__simt_tid()
#define block_id() oct__simt_block()
#define block_count() oct__simt_blocks()
#define block_sync() oct__simt_block_sync(OCT__SITE)
#define warp_sync() oct__simt_meet(OCT__SIMT_WARP_SYNC, NULL, 0, 0, OCT__SITE)
#define shfl_xor_f32(v, mask) oct__simt_xor_f32(v, mask, OCT__SITE)
#define shfl_xor_u32(v, mask) oct__simt_xor_u32(v, mask, OCT__SITE)
#define warp_sum_f32(v) oct__simt_meet_f32(OCT__SIMT_SUM_F32, v, OCT__SITE)
#define warp_max_f32(v) oct__simt_meet_f32(OCT__SIMT_MAX_F32, v, OCT__SITE)
#define warp_sum_u32(v) oct__simt_meet_u32(OCT__SIMT_SUM_U32, v, OCT__SITE)
#define warp_any(v) oct__simt_meet_u32(OCT__SIMT_ANY, (v) != 0, OCT__SITE)
#define group8_sum(v, n) oct__simt_meet(OCT__SIMT_GROUP8_SUM, v, n, 0, OCT__SITE)

#define atomic_add_u32(at, v) ((uint32_t)oct__simt_atomic_run(OCT__SIMT_ADD_U32, at, v, OCT__SITE))
#define atomic_add_u64(at, v) oct__simt_atomic_run(OCT__SIMT_ADD_U64, at, v, OCT__SITE)
#define atomic_max_u32(at, v) ((uint32_t)oct__simt_atomic_run(OCT__SIMT_MAX_U32, at, v, OCT__SITE))
#define atomic_add_acq_rel_u32(at, v) ((uint32_t)oct__simt_atomic_run(OCT__SIMT_ADD_ACQ_REL_U32, at, v, OCT__SITE))
#define shared_or_u32(at, v) ((uint32_t)oct__simt_atomic_run(OCT__SIMT_OR_U32_SHARED, at, v, OCT__SITE))

#define global_load_16(at) (*(const u32x4 *)oct__simt_read(at, 16, OCT__SITE))
#define global_load_8(at) (*(const u32x2 *)oct__simt_read(at, 8, OCT__SITE))
#define global_load_u32(at) (*(const uint32_t *)oct__simt_read(at, 4, OCT__SITE))
#define global_store_16(at, v) ((void)(*(u32x4 *)oct__simt_write(at, 16, OCT__SITE) = (v)))
#define global_store_8(at, v) ((void)(*(u32x2 *)oct__simt_write(at, 8, OCT__SITE) = (v)))
#define shared_load_f32x4(at) (*(const f32x4 *)oct__simt_shared_read(at, 16, OCT__SITE))
#define shared_store_f32x4(at, v) ((void)(*(f32x4 *)oct__simt_shared_write(at, 16, OCT__SITE) = (v)))

#define shared_load_16(at) (*(const u32x4 *)oct__simt_shared_read(at, 16, OCT__SITE))
#define shared_load_8(at) (*(const u32x2 *)oct__simt_shared_read(at, 8, OCT__SITE))
#define shared_store_8(at, v) ((void)(*(u32x2 *)oct__simt_shared_write(at, 8, OCT__SITE) = (v)))
#define shared_store_16(at, v) ((void)(*(u32x4 *)oct__simt_shared_write(at, 16, OCT__SITE) = (v)))

#if OCT__WARP == 32
#define OCT__FETCH_IS_ASYNC 1
#define fetch_16(held, to, from, is_there) \
    ((void)(held), oct__simt_async_load((uint32_t)((uintptr_t)(to) - (uintptr_t)oct__simt_shared_dynamic()), from, (is_there) ? 16 : 0, OCT__SITE))
#define fetch_16_there(held, to, from) fetch_16(held, to, from, 1)
#define fetch_commit() oct__simt_async_commit()
#define fetch_wait(n) oct__simt_async_wait(n, OCT__SITE)
#else
#define OCT__FETCH_IS_ASYNC 0
#define fetch_16(held, to, from, is_there) ((void)(to), *(held) = (is_there) ? global_load_16(from) : (u32x4){ 0, 0, 0, 0 })
#define fetch_16_there(held, to, from) fetch_16(held, to, from, 1)
#define fetch_commit() ((void)0)
#define fetch_wait(n) ((void)(n))
#endif

#define tile_transpose(v) oct__simt_transpose(v, OCT__SITE)
#define tile_mma(d, a, b, is_bf16) oct__simt_tile_mma(d, a, b, is_bf16, OCT__SITE)
#define tile_mma_fp8(d, a, b, dtype, b_is_e5m2) \
    oct__simt_tile_mma_fp8(d, a, b, ((dtype) == OCT_DTYPE_E4M3FNUZ ? OCT__SIMT_IS_FNUZ : 0) | ((b_is_e5m2) ? OCT__SIMT_B_IS_E5M2 : 0), OCT__SITE)
#define tile_mma_fp8_wide(d, a, b) oct__simt_tile_mma_wide(d, a, b, OCT__SITE)
#define tile_mma_i8(d, a, b) oct__simt_tile_mma_i8(d, a, b, OCT__SITE)
/* Warps of 32 stand for a GPU of sm_89 or sm_120; of 64 for gfx942 over e4m3fnuz and for gfx950 over e4m3fn. */
#define TILE_FP8(dtype) ((dtype) == OCT_DTYPE_E4M3FN || (WARP == 64 && (dtype) == OCT_DTYPE_E4M3FNUZ))
#define TILE_FP8_WIDE(dtype) (WARP == 64 && (dtype) == OCT_DTYPE_E4M3FN)

DEV float oct__simt_xor_f32(float v, uint32_t mask, const char *site)
{
    oct__simt_meet(OCT__SIMT_XOR, &v, 1, mask, site);
    return v;
}

DEV uint32_t oct__simt_xor_u32(uint32_t v, uint32_t mask, const char *site)
{
    oct__simt_meet(OCT__SIMT_XOR, &v, 1, mask, site);
    return v;
}

DEV float oct__simt_meet_f32(oct__simt_op op, float v, const char *site)
{
    oct__simt_meet(op, &v, 1, 0, site);
    return v;
}

DEV uint32_t oct__simt_meet_u32(oct__simt_op op, uint32_t v, const char *site)
{
    oct__simt_meet(op, &v, 1, 0, site);
    return v;
}

DEV uint32_t oct__simt_transpose(uint32_t v, const char *site)
{
    oct__simt_meet(OCT__SIMT_TRANSPOSE, &v, 1, 0, site);
    return v;
}

DEV void oct__simt_tile_mma(float *d, const uint32_t *a, const uint32_t *b, int is_bf16, const char *site)
{
    oct__simt_mma m;
    for (uint32_t i = 0; i < 4; i++) {
        m.d[i] = d[i];
        m.a[i] = i < 128 / WARP ? a[i] : 0;
    }
    m.b[0] = b[0];
    m.b[1] = b[1];
    oct__simt_meet(is_bf16 ? OCT__SIMT_MMA_BF16 : OCT__SIMT_MMA_F16, &m, 1, 0, site);
    for (uint32_t i = 0; i < 4; i++) {
        d[i] = m.d[i];
    }
}

DEV void oct__simt_tile_mma_fp8(float *d, const uint32_t *a, const uint32_t *b, uint32_t kind, const char *site)
{
    oct__simt_mma m = { .d = { d[0], d[1], d[2], d[3] }, .b = { b[0], b[1] } };
    for (uint32_t i = 0; i < 128 / WARP; i++) {
        m.a[i] = a[i];
    }
    oct__simt_meet(OCT__SIMT_MMA_FP8, &m, 1, kind, site);
    for (uint32_t i = 0; i < 4; i++) {
        d[i] = m.d[i];
    }
}

DEV void oct__simt_tile_mma_wide(float *d, const uint32_t *a, const uint32_t *b, const char *site)
{
    oct__simt_mma m = { .d = { d[0], d[1], d[2], d[3] } };
    for (uint32_t i = 0; i < 8; i++) {
        m.a[i] = a[i];
        m.b[i] = b[i];
    }
    oct__simt_meet(OCT__SIMT_MMA_FP8_WIDE, &m, 1, 0, site);
    for (uint32_t i = 0; i < 4; i++) {
        d[i] = m.d[i];
    }
}

DEV void oct__simt_tile_mma_i8(int32_t *d, const uint32_t *a, const uint32_t *b, const char *site)
{
    oct__simt_mma m = { .n = { d[0], d[1], d[2], d[3] }, .b = { b[0], b[1] } };
    for (uint32_t i = 0; i < 128 / WARP; i++) {
        m.a[i] = a[i];
    }
    oct__simt_meet(OCT__SIMT_MMA_I8, &m, 1, 0, site);
    for (uint32_t i = 0; i < 4; i++) {
        d[i] = m.n[i];
    }
}

/* e5m2 of the family. e5m2fnuz is e5m2 of half the value; it has no infinity, which weights do not reach, and NaN in the negative zero's place. */
DEV uint32_t encode_fp8_4(const float *x, const uint32_t dtype, const int is_e5m2)
{
    const int is_fnuz = dtype == OCT_DTYPE_E4M3FNUZ;
    uint32_t word = 0;
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t code = is_fnuz ? oct__e4m3fnuz_from_f32(x[i]) : oct__e4m3fn_from_f32(x[i]);
        if (is_e5m2) {
            code = oct__e5m2_from_f32(is_fnuz ? 2.0f * x[i] : x[i]);
            if (is_fnuz) {
                code = oct__f32_bits_are_nan(oct__f32_to_bits(x[i])) ? 0x80u : code == 0x80u ? 0u : code;
            }
        }
        word |= code << (8 * i);
    }
    return word;
}

DEV void decode_e5m2_4(uint32_t word, const uint32_t dtype, float *x)
{
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t code = word >> (8 * i) & 0xFFu;
        if (dtype != OCT_DTYPE_E4M3FNUZ) {
            x[i] = oct__f16_to_f32((uint16_t)(code << 8));
        } else {
            x[i] = code == 0x80u ? oct__f32_of_bits(OCT__F32_QNAN_BITS) : 0.5f * oct__f16_to_f32((uint16_t)(code << 8));
        }
    }
}

/* Twice rounded: plain x86-64 has no fused multiply-add, and a library call for each would be most of a test's time. */
DEV float fma_f32(float a, float b, float c)
{
    return a * b + c;
}

DEV float exp2_f32(float x)
{
    return exp2f(x);
}

DEV float log_f32(float x)
{
    return logf(x);
}

DEV float max_f32(float a, float b)
{
    return a > b || b != b ? a : b;
}

DEV float decode_f16(uint32_t code)
{
    return oct__f16_to_f32((uint16_t)code);
}

DEV uint32_t byte_perm(uint32_t a, uint32_t b, uint32_t selector)
{
    const uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t out = 0;
    for (uint32_t i = 0; i < 4; i++) {
        out |= (uint32_t)(bytes >> (8 * (selector >> (4 * i) & 7)) & 0xFF) << (8 * i);
    }
    return out;
}

DEV void decode_v4_4(uint32_t word, float *out)
{
    for (uint32_t i = 0; i < 8; i++) {
        out[i] = (float)oct__v4_number(word >> (8 * (i % 4) + 4 * (i / 4)) & 15);
    }
}

DEV uint32_t pack_f16(float low, float high)
{
    return oct__f16_from_f32(low) | (uint32_t)oct__f16_from_f32(high) << 16;
}

DEV uint32_t sub_f16x2(uint32_t a, uint32_t b)
{
    return pack_f16(decode_f16(a & 0xFFFF) - decode_f16(b & 0xFFFF), decode_f16(a >> 16) - decode_f16(b >> 16));
}

DEV void e4m3_to_f16(uint32_t word, int is_fnuz, uint32_t *out)
{
    for (uint32_t i = 0; i < 2; i++, word >>= 16) {
        const uint8_t low = (uint8_t)word, high = (uint8_t)(word >> 8);
        out[i] = is_fnuz ? pack_f16(oct__e4m3fnuz_to_f32(low), oct__e4m3fnuz_to_f32(high)) : pack_f16(oct__e4m3fn_to_f32(low), oct__e4m3fn_to_f32(high));
    }
}

DEV float decode_e4m3fn(uint32_t byte);
DEV float decode_e4m3fnuz(uint32_t byte);

DEV void decode_e4m3fn_4(uint32_t word, float *out)
{
    for (uint32_t i = 0; i < 4; i++) {
        out[i] = decode_e4m3fn(word >> (8 * i));
    }
}

DEV void decode_e4m3fnuz_4(uint32_t word, float *out)
{
    for (uint32_t i = 0; i < 4; i++) {
        out[i] = decode_e4m3fnuz(word >> (8 * i));
    }
}

#endif
