/* executor_wgmma.c: products of warpgroups. Each warp's share, 16 rows, is one queue: a product waits there from its issue until a wg_wait that covers its
 * batch; until then its sums are NaN in the lanes' registers. Layouts are written from the instructions' documents. */
#include "device/executor_group.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/simt_group_sm90a.h"

enum { WARPS = 16, PRODUCTS_MAX = 128, N_MAX = 256 };

typedef struct product {
    float *d[32], *before;                  /* before: [32][n / 2] sums from before the first product of a chain; NULL for the next ones */
    const uint32_t *a[32];
    uint32_t a_copy[32][4];
    oct__simt_wg what;
    uint32_t batch;
    const char *site;
} product;

static struct queue { product products[PRODUCTS_MAX]; uint32_t n, batch; int may_issue; } queues[WARPS];

void wgmma_begin_block(void)
{
    for (uint32_t w = 0; w < WARPS; w++) {
        for (uint32_t i = 0; i < queues[w].n; i++)
            free(queues[w].products[i].before);
        queues[w].n = queues[w].batch = 0;
        queues[w].may_issue = 0;
    }
}

enum { DEEP = 32 /* elements along K of one instruction: 16 of 16 bits, 32 of 8 */, BITS_OF_8BIT_SUMS = 14 };

static float half_of(uint16_t code, uint32_t is_bf16) { return is_bf16 ? oct__bf16_to_f32(code) : oct__f16_to_f32(code); }

/* 16 bytes of an operand, checked. */
static const uint16_t *chunk_at(simt_device *d, uint32_t at, int is_swizzled, const char *site)
{
    const uint8_t *place = oct__shared_place(is_swizzled ? at ^ (at >> 3 & 0x70) : at);
    const uint16_t *bytes = oct__simt_shared_read(place, 16, site);
    const size_t offset = (size_t)(place - d->view);
    const uint32_t stamp = d->wrote[offset];
    if (stamp_time(stamp) >= d->block_time && stamp_who(stamp) < LANES_MAX && !group_is_of_engine(offset, stamp) && !group_is_fenced(d, d->me, stamp_who(stamp), stamp_time(stamp)))
        simt_raise(SIMT_RACE, site, "the matrix units read byte %u of dynamic shared memory, which lane %u wrote, without a proxy_fence between", at, stamp_who(stamp));
    return bytes;
}

static uint32_t base_of(uint64_t descriptor) { return (uint32_t)(descriptor & 0x3FFF) << 4; }

/* rows x 32 bytes along K, into [row][element]. Rows of 128 bytes, swizzled, or of 16 in blocks of eight rows: the descriptor says which. */
static void read_rows(simt_device *d, uint64_t descriptor, uint32_t first, uint32_t rows, const oct__simt_wg *what, float (*to)[DEEP], const char *site)
{
    const uint32_t base = base_of(descriptor), eight = (uint32_t)(descriptor >> 32 & 0x3FFF) << 4, along = (uint32_t)(descriptor >> 16 & 0x3FFF) << 4;
    const int is_swizzled = descriptor >> 62 == 1;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < 2; c++) {
            const uint32_t in_eight = (first + r) % 8;
            const uint16_t *x = chunk_at(d, base + (first + r) / 8 * eight + (is_swizzled ? in_eight * 128 + c * 16 : in_eight * 16 + c * along), is_swizzled, site);
            for (uint32_t i = 0; i < 8; i++)
                if (what->is_e4m3) {
                    to[r][c * 16 + 2 * i] = oct__e4m3fn_to_f32((uint8_t)(x[i] & 0xFF));
                    to[r][c * 16 + 2 * i + 1] = oct__e4m3fn_to_f32((uint8_t)(x[i] >> 8));
                } else {
                    to[r][c * 8 + i] = half_of(x[i], what->is_bf16);
                }
        }
}

/* 16 along K x columns, into [column][16]. */
static void read_columns(simt_device *d, uint64_t descriptor, uint32_t n, uint32_t is_bf16, float (*to)[DEEP], const char *site)
{
    const uint32_t base = base_of(descriptor), block = (uint32_t)(descriptor >> 16 & 0x3FFF) << 4, eight = (uint32_t)(descriptor >> 32 & 0x3FFF) << 4;
    for (uint32_t k = 0; k < 16; k++)
        for (uint32_t c = 0; c < n / 8; c++) {
            const uint16_t *x = chunk_at(d, base + c / 8 * block + k / 8 * eight + k % 8 * 128 + c % 8 * 16, 1, site);
            for (uint32_t i = 0; i < 8; i++)
                to[c * 8 + i][k] = half_of(x[i], is_bf16);
        }
}

static float a_rows[16][DEEP], b_rows[N_MAX][DEEP];

static void read_operands(simt_device *d, const product *p)
{
    if (p->what.a == NULL)
        read_rows(d, p->what.a_at, d->my_warp % 4 * 16, 16, &p->what, a_rows, p->site);
    if (p->what.is_k_major)
        read_rows(d, p->what.b_at, 0, p->what.n, &p->what, b_rows, p->site);
    else
        read_columns(d, p->what.b_at, p->what.n, p->what.is_bf16, b_rows, p->site);
}

/* The lanes have met; called as the warp's first lane. */
static void issue(simt_device *d, lane *lanes)
{
    struct queue *q = &queues[d->my_warp];
    const char *site = lanes[0].site;
    if (q->n == PRODUCTS_MAX)
        simt_raise(SIMT_BAD_LAUNCH, site, "more than %d products on their way", PRODUCTS_MAX);
    if (!q->may_issue)
        simt_raise(SIMT_RACE, site, "a product without wg_begin before its batch");
    product *p = &q->products[q->n];
    int is_chained = 0;
    p->what = *(const oct__simt_wg *)lanes[0].v;
    p->batch = q->batch;
    p->site = site;
    for (uint32_t i = 0; i < q->n; i++)
        is_chained |= q->products[i].d[0] == p->what.d;
    p->before = is_chained ? NULL : malloc(32 * (p->what.n / 2) * sizeof *p->before);
    for (uint32_t l = 0; l < 32; l++) {
        const oct__simt_wg *w = lanes[l].v;
        p->d[l] = w->d;
        p->a[l] = w->a;
        if (w->a_at != p->what.a_at || w->b_at != p->what.b_at || w->n != p->what.n || w->is_first != p->what.is_first)
            simt_raise(SIMT_DIVERGENT_WARP, site, "lanes of a warp ask for different products");
        if (w->a != NULL)
            memcpy(p->a_copy[l], w->a, sizeof p->a_copy[l]);
        if (!is_chained)
            memcpy(p->before + l * (p->what.n / 2), w->d, p->what.n / 2 * sizeof(float));
        for (uint32_t i = 0; i < p->what.n / 2; i++)
            w->d[i] = NAN;
    }
    q->n++;
    read_operands(d, p);
}

/* What the units do with products of 8 bits, as measured: the 32 products and the sum so far are cut off, towards zero, at the 14th bit of the largest of
 * them, and added; so is the result. */
static float sum_of_8bit(float sum, const float *a, const float *b)
{
    float product[DEEP];
    int most = -200, exponent;
    float plain = sum;
    for (int k = 0; k < DEEP; k++) {
        product[k] = a[k] * b[k];   /* exact */
        plain += product[k];
        if (product[k] != 0.0f && isfinite(product[k])) {
            (void)frexpf(product[k], &exponent);
            most = exponent > most ? exponent : most;
        }
    }
    if (!isfinite(plain))
        return plain;
    if (sum != 0.0f) {
        (void)frexpf(sum, &exponent);
        most = exponent > most ? exponent : most;
    }
    if (most == -200)
        return 0.0f;
    const float unit = ldexpf(1.0f, most - BITS_OF_8BIT_SUMS);
    float total = truncf(sum / unit);
    for (int k = 0; k < DEEP; k++)
        total += truncf(product[k] / unit);   /* whole numbers below 2^20: exact */
    if (total == 0.0f)
        return 0.0f;
    (void)frexpf(total, &exponent);
    const float cut = exponent > BITS_OF_8BIT_SUMS ? ldexpf(1.0f, exponent - BITS_OF_8BIT_SUMS) : 1.0f;
    return truncf(total / cut) * cut * unit;
}

static void land(simt_device *d, product *p)
{
    const uint32_t half = p->what.n / 2;
    read_operands(d, p);
    for (uint32_t l = 0; l < 32; l++) {
        if (p->before != NULL)
            memcpy(p->d[l], p->before + l * half, half * sizeof(float));
        if (p->a[l] != NULL && memcmp(p->a[l], p->a_copy[l], sizeof p->a_copy[l]) != 0)
            simt_raise(SIMT_RACE, p->site, "lane %u changes the registers of a product that is on its way", l);
        for (uint32_t e = 0; p->a[l] != NULL && p->what.is_e4m3 && e < 16; e++)
            a_rows[l / 4 + e / 4 % 2 * 8][l % 4 * 4 + e % 4 + e / 8 * 16] = oct__e4m3fn_to_f32((uint8_t)(p->a_copy[l][e / 4] >> (8 * (e % 4))));
        for (uint32_t e = 0; p->a[l] != NULL && !p->what.is_e4m3 && e < 8; e++) {
            const uint16_t code = (uint16_t)(p->a_copy[l][e / 2] >> (16 * (e % 2)));
            a_rows[l / 4 + (e % 4 >= 2 ? 8 : 0)][l % 4 * 2 + e % 2 + (e >= 4 ? 8 : 0)] = half_of(code, p->what.is_bf16);
        }
    }
    for (uint32_t l = 0; l < 32; l++)
        for (uint32_t e = 0; e < half; e++) {
            const float *a = a_rows[l / 4 + e % 4 / 2 * 8], *b = b_rows[e / 4 * 8 + l % 4 * 2 + e % 2];
            float sum = p->what.is_first ? 0.0f : p->d[l][e];
            if (p->what.is_e4m3) {
                p->d[l][e] = sum_of_8bit(sum, a, b);
                continue;
            }
            for (uint32_t k = 0; k < 16; k++)
                sum += a[k] * b[k];
            p->d[l][e] = sum;
        }
    free(p->before);
    p->before = NULL;
}

void wgmma_settle(simt_device *device, oct__simt_op op, uint32_t argument, const char *site)
{
    struct queue *q = &queues[device->my_warp];
    (void)site;
    if (op == OCT__SIMT_WG_BEGIN) {
        q->may_issue = 1;
    } else if (op == OCT__SIMT_WG_END) {
        q->batch++;
        q->may_issue = 0;
    } else if (op == OCT__SIMT_WG_MMA) {
        issue(device, device->lanes + device->warp * 32);
    } else {
        uint32_t done = 0;
        for (; done < q->n && q->products[done].batch + argument < q->batch; done++)
            land(device, &q->products[done]);
        memmove(q->products, q->products + done, (q->n - done) * sizeof *q->products);
        q->n -= done;
    }
}
