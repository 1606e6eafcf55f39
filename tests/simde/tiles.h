/* tiles.h: AMX's tiles for machines that lack them, as far as the kernels use them: full tiles of 16 rows x 64 bytes, by the pseudocode of Intel's
 * manual. test_tiles.c checks them bit for bit against the instructions, on a machine that has them.
 *
 * Threads: each thread has its own tiles, as on the machine. */
#ifndef TEST_SIMDE_TILES_H
#define TEST_SIMDE_TILES_H

/* Included by immintrin.h of this folder, behind its models of bf16. */

typedef union model_tile {
    uint8_t row[16][64];
    uint16_t w[16][32];
    float f[16][16];
} model_tile;

/* One set of tiles for all files of a program. */
extern _Thread_local model_tile model_tiles[8];
extern _Thread_local uint8_t model_tiles_are_configured;

/* Only the configuration that the kernels use: palette 1, eight full tiles. Another one, or an instruction without one, ends the program, as it
 * would on the machine. */
MODEL void model_tile_loadconfig(const void *config)
{
    const uint8_t *bytes = config;
    int right = bytes[0] == 1 && bytes[1] == 0;
    for (int t = 0; t < 8; t++) {
        right = right && bytes[16 + 2 * t] == 64 && bytes[17 + 2 * t] == 0 && bytes[48 + t] == 16;
    }
    for (int i = 2; i < 64; i++) {
        right = right && (bytes[i] == 0 || (i >= 16 && i < 32) || (i >= 48 && i < 56));
    }
    if (!right) {
        abort();
    }
    memset(model_tiles, 0, sizeof(model_tiles));
    model_tiles_are_configured = 1;
}

MODEL model_tile *model_tile_at(int t)
{
    if (!model_tiles_are_configured) {
        abort();
    }
    return &model_tiles[t];
}

MODEL void model_tile_release(void)
{
    model_tile_at(0);
    model_tiles_are_configured = 0;
}

MODEL void model_tile_zero(int t) { memset(model_tile_at(t), 0, sizeof(model_tile)); }

MODEL void model_tile_loadd(int t, const void *from, size_t stride)
{
    for (int i = 0; i < 16; i++) {
        memcpy(model_tile_at(t)->row[i], (const uint8_t *)from + i * stride, 64);
    }
}

MODEL void model_tile_stored(int t, void *to, size_t stride)
{
    for (int i = 0; i < 16; i++) {
        memcpy((uint8_t *)to + i * stride, model_tile_at(t)->row[i], 64);
    }
}

/* Where f32 holds the product whole, a product and a sum round as one multiply-add. */
MODEL int model_is_plain(float x, float y, float product, float sum)
{
    const float a = fabsf(product), b = fabsf(sum);
    return ((a > 0x1p-100f && a < 0x1p126f) || x == 0 || y == 0) && b > 0x1p-120f && b < 0x1p126f;
}

/* One after the other the even elements of 32 are multiplied and added from 0, and so are the odd ones; then both sums are added, then that to
 * the destination. Each step rounds to nearest even and takes and leaves subnormals as 0. */
MODEL void model_tile_dpbf16ps(int to, int left, int right)
{
    const model_tile *a = model_tile_at(left), *b = model_tile_at(right);
    model_tile *c = model_tile_at(to);
    float x[16][16][2];
    for (int k = 0; k < 16; k++) {
        for (int n = 0; n < 16; n++) {
            x[k][n][0] = model_bf16_to_f32(b->w[k][2 * n]);
            x[k][n][1] = model_bf16_to_f32(b->w[k][2 * n + 1]);
        }
    }
    for (int m = 0; m < 16; m++) {
        float sums[16][2] = { { 0 } };
        for (int k = 0; k < 16; k++) {
            for (int h = 0; h < 2; h++) {
                const float y = model_bf16_to_f32(a->w[m][2 * k + h]);
                for (int n = 0; n < 16; n++) {
                    const float product = y * x[k][n][h], sum = product + sums[n][h];
                    sums[n][h] = model_is_plain(x[k][n][h], y, product, sum) ? sum : model_flush(fmaf(y, x[k][n][h], sums[n][h]));
                }
            }
        }
        for (int n = 0; n < 16; n++) {
            c->f[m][n] = model_flush(model_flush(c->f[m][n]) + model_flush(sums[n][0] + sums[n][1]));
        }
    }
}

#define _tile_loadconfig model_tile_loadconfig
#define _tile_release model_tile_release
#define _tile_zero model_tile_zero
#define _tile_loadd model_tile_loadd
#define _tile_stored model_tile_stored
#define _tile_dpbf16ps model_tile_dpbf16ps

#endif
