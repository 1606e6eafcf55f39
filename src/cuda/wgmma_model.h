/* wgmma_model.h: the words of simt_group_sm90a.h and wgmma_sm90a.h for the host executor (tests/device/executor_group.c and executor_wgmma.c), which hold a
 * text to what it must keep to: results are no numbers until they are waited for, operands are read once at issue and once when they are waited for, and
 * what ordinary stores wrote is there for the matrix units only past a proxy_fence. */
#ifndef OCT_CUDA_WGMMA_MODEL_H
#define OCT_CUDA_WGMMA_MODEL_H

void oct__simt_bar_init(shared_at at, uint32_t n, const char *site);
void oct__simt_bar_arrive(shared_at at, uint32_t is_loaded, const char *site);
void oct__simt_bar_wait(shared_at at, uint32_t parity, const char *site);
void oct__simt_bar_expect(shared_at at, uint32_t bytes, const char *site);
void oct__simt_bulk_load(shared_at at, const void *from, uint32_t bytes, shared_at bar, const char *site);
void oct__simt_proxy_fence(void);
void oct__simt_named_sync(uint32_t id, uint32_t n, const char *site);
void oct__simt_registers(uint32_t n, const char *site);

/* A warp's share of a product: 16 rows. a: registers, or NULL for shared memory. */
typedef struct oct__simt_wg {
    float *d;
    const uint32_t *a;
    uint64_t a_at, b_at;
    uint32_t n, is_first, is_k_major, is_bf16, is_e4m3;
} oct__simt_wg;

#define shared_write_16(at, v) ((void)(*(u32x4 *)oct__simt_shared_write(oct__shared_place(at), 16, OCT__SITE) = (v)))
#define shared_write_4(at, v) ((void)(*(uint32_t *)oct__simt_shared_write(oct__shared_place(at), 4, OCT__SITE) = (v)))
#define shared_read_4(at) (*(const uint32_t *)oct__simt_shared_read(oct__shared_place(at), 4, OCT__SITE))
#define bar_init(at, n) oct__simt_bar_init(at, n, OCT__SITE)
#define bar_arrive(at) oct__simt_bar_arrive(at, 0, OCT__SITE)
#define bar_arrive_loaded(at) oct__simt_bar_arrive(at, 1, OCT__SITE)
#define bar_arrive_expecting(at, bytes) oct__simt_bar_expect(at, bytes, OCT__SITE)
#define bulk_load(at, from, bytes, bar) oct__simt_bulk_load(at, from, bytes, bar, OCT__SITE)
#define byte_pick(a, b, selector) byte_perm(a, b, selector)
#define bar_wait(at, parity) oct__simt_bar_wait(at, parity, OCT__SITE)
#define proxy_fence() oct__simt_proxy_fence()
#define named_sync(id, n) oct__simt_named_sync(id, n, OCT__SITE)
#define warp_uniform(v) (v)
#define warp_shuffle_u64(v, lane) oct__simt_shuffle_u64(v, lane, OCT__SITE)
#define registers_fewer(n) oct__simt_registers(n, OCT__SITE)
#define registers_more(n) oct__simt_registers(n, OCT__SITE)
#define wg_begin() oct__simt_meet(OCT__SIMT_WG_BEGIN, NULL, 0, 0, OCT__SITE)
#define wg_end() oct__simt_meet(OCT__SIMT_WG_END, NULL, 0, 0, OCT__SITE)
#define wg_wait(n) oct__simt_meet(OCT__SIMT_WG_WAIT, NULL, 0, n, OCT__SITE)
#define wg_hold_f32(x, n) ((void)(x))
#define wg_hold_u32(x, n) ((void)(x))

DEV uint64_t oct__simt_shuffle_u64(uint64_t v, uint32_t lane, const char *site)
{
    const uint32_t mask = lane ^ (tid() % 32);   /* each lane's own */
    return oct__simt_xor_u32((uint32_t)v, mask, site) | (uint64_t)oct__simt_xor_u32((uint32_t)(v >> 32), mask, site) << 32;
}

/* The fields of the instructions' descriptors. */
DEV uint64_t wg_rows(shared_at at)
{
    return (uint64_t)((at & 0x3FFFF) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

DEV uint64_t wg_blocks(shared_at at, uint32_t along, uint32_t down)
{
    return (uint64_t)((at & 0x3FFFF) >> 4) | (uint64_t)(along >> 4) << 16 | (uint64_t)(down >> 4) << 32;
}

DEV uint64_t wg_columns(shared_at at, uint32_t stride)
{
    return (uint64_t)((at & 0x3FFFF) >> 4) | (uint64_t)(stride >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

DEV void oct__simt_wg_mma(float *d, const uint32_t *a, uint64_t a_at, uint64_t b_at, uint32_t n, uint32_t is_first, uint32_t is_k_major, uint32_t is_bf16,
                          const char *site)
{
    oct__simt_wg product = { d, a, a_at, b_at, n, is_first, is_k_major, is_bf16, 0 };
    oct__simt_meet(OCT__SIMT_WG_MMA, &product, 1, 0, site);
}

DEV void oct__simt_wg_mma8(float *d, const uint32_t *a, uint64_t a_at, uint64_t b_at, uint32_t n, uint32_t is_first, const char *site)
{
    oct__simt_wg product = { d, a, a_at, b_at, n, is_first, 1, 0, 1 };
    oct__simt_meet(OCT__SIMT_WG_MMA, &product, 1, 0, site);
}

DEV void wg_mma8_shared_64(float *d, uint64_t a, uint64_t b, uint32_t is_first) { oct__simt_wg_mma8(d, 0, a, b, 64, is_first, OCT__SITE); }
DEV void wg_mma8_shared_32(float *d, uint64_t a, uint64_t b, uint32_t is_first) { oct__simt_wg_mma8(d, 0, a, b, 32, is_first, OCT__SITE); }
DEV void wg_mma8_128(float *d, const uint32_t *a, uint64_t b) { oct__simt_wg_mma8(d, a, 0, b, 128, 0, OCT__SITE); }
DEV void wg_mma8_136(float *d, const uint32_t *a, uint64_t b) { oct__simt_wg_mma8(d, a, 0, b, 136, 0, OCT__SITE); }

#define OCT__WG_MODEL(n)                                                                                                     \
    DEV void wg_mma_shared_##n(float *d, uint64_t a, uint64_t b, uint32_t is_first, uint32_t is_bf16)                         \
    {                                                                                                                          \
        oct__simt_wg_mma(d, 0, a, b, n, is_first, 1, is_bf16, OCT__SITE);                                                      \
    }                                                                                                                          \
    DEV void wg_mma_##n(float *d, const uint32_t *a, uint64_t b, uint32_t is_k_major, uint32_t is_bf16)                       \
    {                                                                                                                          \
        oct__simt_wg_mma(d, a, 0, b, n, 0, is_k_major, is_bf16, OCT__SITE);                                                    \
    }                                                                                                                          \
    DEV void wg_mma_scores_##n(float *d, const uint32_t *a, uint64_t b, uint32_t is_first, uint32_t is_bf16)                  \
    {                                                                                                                          \
        oct__simt_wg_mma(d, a, 0, b, n, is_first, 1, is_bf16, OCT__SITE);                                                      \
    }
OCT__WG_MODEL(64)
OCT__WG_MODEL(128)
OCT__WG_MODEL(256)

#endif
