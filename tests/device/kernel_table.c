/* kernel_table.c: the kernels of src/device/kernels.def at both warp widths. kernels.c is compiled once for each. */
#include <string.h>

#include "device/executor.h"
#include "device/write_sm90a.h"

#define X(name, threads, type)                           \
    void oct__simt32_##name(const void *params);         \
    void oct__simt64_##name(const void *params);
#include "device/kernels.def"
#undef X
#define X(name, threads, type) void oct__simt32_##name(const void *params);
#include "cuda/kernels_sm90a.def"
#undef X

static const simt_kernel kernels[] = {
#define X(name, threads, type) { #name, oct__simt32_##name, 32, threads, sizeof(type) }, { #name, oct__simt64_##name, 64, threads, sizeof(type) },
#include "device/kernels.def"
#undef X
};

/* Of warps of 32 alone. */
static const simt_kernel kernels_sm90a[] = {
#define X(name, threads, type) { #name, oct__simt32_##name, 32, threads, sizeof(type) },
#include "cuda/kernels_sm90a.def"
#undef X
};

const simt_kernel *simt_nth(uint32_t warp, uint32_t index)
{
    const size_t at = 2 * (size_t)index + (warp == 64), n = sizeof kernels / sizeof kernels[0];
    if (warp == 32 && at >= n)
        return index - n / 2 < sizeof kernels_sm90a / sizeof kernels_sm90a[0] ? &kernels_sm90a[index - n / 2] : NULL;
    return at < n && (warp == 32 || warp == 64) ? &kernels[at] : NULL;
}

/* TILE_FP8 of simt_host.h, at either width. */
simt_fp8_use simt_fp8(uint32_t warp, uint32_t dtype)
{
    return dtype == OCT_DTYPE_E4M3FN ? (warp == 64 ? SIMT_FP8_WIDE : SIMT_FP8_USED) : dtype == OCT_DTYPE_E4M3FNUZ && warp == 64 ? SIMT_FP8_USED : SIMT_FP8_NONE;
}

const simt_kernel *simt_find(uint32_t warp, const char *name)
{
    const simt_kernel *kernel;
    for (uint32_t i = 0; (kernel = simt_nth(warp, i)) != NULL; i++)
        if (strcmp(kernel->name, name) == 0)
            return kernel;
    return NULL;
}
