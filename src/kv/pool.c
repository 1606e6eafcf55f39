/* pool.c: see pool.h. One region holds, layer after layer, K of all pages, V, and the dynamic scales of both, each part
 * starting on a cache line. Static scales lie in a region of their own, since kernels read them while pages come and go. */
#include "kv/pool.h"

#include <stdbool.h>
#include <string.h>

#include "host/error.h"
#include "host/numa.h"
#include "kv/spec.h"
#include "number/scale.h"

enum { PART_ALIGN_BYTES = 64 };

/* A pool's parts, in the order they lie in a layer. */
enum part { PART_K, PART_V, PART_K_TOKEN_SCALE, PART_V_TOKEN_SCALE, PART_COUNT };

/* K's or V's static scales. */
typedef struct static_scales {
    float *values;             /* [n_sets][stride], in the store */
    uint64_t n;                /* numbers in a set; 0: the mode has none */
    uint64_t stride;           /* n rounded up to a cache line */
    uint32_t n_sets;           /* layers, or 1 for TENSOR */
    unsigned char *is_set;     /* [n_sets] */
} static_scales;

struct oct_kv_pool {
    const oct__allocator *allocator;
    bool has_store;
    oct__kv_store store;                 /* with has_store */
    oct_kv_spec spec;
    uint32_t n_layers;
    int64_t n_pages;
    uint64_t page_bytes[PART_COUNT];     /* of one page of one layer; 0 for a part that the formats do not have */
    uint64_t part_offset[PART_COUNT];    /* in a layer */
    uint64_t layer_bytes;
    uint64_t region_bytes;
    unsigned char *region;
    static_scales scales[2];             /* K, V */
};

static uint64_t round_up(uint64_t n, uint64_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

/* Zero-filled. *status is set where there is none: on the host that means OUT_OF_MEMORY. */
static void *store_alloc(oct_kv_pool *pool, size_t bytes, oct_status *status)
{
    void *memory = NULL;
    if (pool->has_store) {
        *status = pool->store.alloc(pool->store.user, bytes, &memory);
        return *status == OCT_OK ? memory : NULL;
    }
    memory = oct__memory_reserve(pool->allocator, bytes);
    if (memory != NULL && pool->allocator->alloc == NULL) {
        /* Which pages a batch walks nobody knows yet, and who writes a page need not read it: on all nodes in turns, their bandwidths add up for every batch. Memory of
         * the caller's hooks lies where the caller wants it. */
        oct__numa numa;
        oct__numa_read(&numa, NULL, NULL);
        (void)oct__numa_interleave(&numa, memory, bytes);
    }
    *status = memory != NULL ? OCT_OK : OCT_OUT_OF_MEMORY;
    return memory;
}

static void store_free(oct_kv_pool *pool, void *memory, size_t bytes)
{
    if (!pool->has_store) {
        oct__memory_release(pool->allocator, memory, bytes);
    } else if (memory != NULL) {
        pool->store.free(pool->store.user, memory);
    }
}

static const char *which_name(uint32_t which)
{
    return which == 0 ? "K" : "V";
}

static oct_status options_check(const oct_kv_pool_options *options, const char *where, oct_error *error)
{
    if (options->n_layers == 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "options.n_layers is 0; must be at least 1");
    }
    const oct_status status = oct__kv_spec_check(&options->spec, "options.spec", where, error);
    if (status != OCT_OK) {
        return status;
    }
    return oct__kv_n_pages_check(options->n_pages, 1, &options->spec, "options.n_pages", where, error);
}

/* Sizes only. False when the sum of all layers leaves the address space. */
static bool geometry_init(oct_kv_pool *pool)
{
    const oct__kv_page_parts parts = oct__kv_page_parts_of(&pool->spec);
    pool->page_bytes[PART_K] = parts.k_bytes;
    pool->page_bytes[PART_V] = parts.v_bytes;
    pool->page_bytes[PART_K_TOKEN_SCALE] = parts.k_token_scale_bytes;
    pool->page_bytes[PART_V_TOKEN_SCALE] = parts.v_token_scale_bytes;
    for (int part = 0; part < PART_COUNT; part++) {
        pool->part_offset[part] = pool->layer_bytes;
        pool->layer_bytes += round_up((uint64_t)pool->n_pages * pool->page_bytes[part], PART_ALIGN_BYTES);
    }
    if (pool->layer_bytes > (uint64_t)PTRDIFF_MAX / pool->n_layers) {
        return false;
    }
    pool->region_bytes = pool->layer_bytes * pool->n_layers;
    return true;
}

static oct_status scales_init(oct_kv_pool *pool, uint32_t which)
{
    static_scales *scales = &pool->scales[which];
    scales->n = oct__kv_static_scales(&pool->spec, which);
    if (scales->n == 0) {
        return OCT_OK;
    }
    const uint32_t mode = which == 0 ? pool->spec.k.scale_mode : pool->spec.v.scale_mode;
    scales->stride = round_up(scales->n, PART_ALIGN_BYTES / sizeof(float));
    scales->n_sets = mode == OCT_SCALE_TENSOR ? 1 : pool->n_layers;
    if (scales->stride > SIZE_MAX / sizeof(float) / scales->n_sets) {
        return OCT_OUT_OF_MEMORY;
    }
    const size_t bytes = (size_t)(scales->n_sets * scales->stride * sizeof(float));
    scales->is_set = oct__memory_alloc_zeroed(pool->allocator, scales->n_sets, 1);
    if (scales->is_set == NULL) {
        return OCT_OUT_OF_MEMORY;
    }
    if (pool->has_store) {
        oct_status status;
        scales->values = store_alloc(pool, bytes, &status);
        return status;
    }
    scales->values = oct__memory_alloc(pool->allocator, bytes, PART_ALIGN_BYTES);
    return scales->values != NULL ? OCT_OK : OCT_OUT_OF_MEMORY;
}

OCT_API void oct_kv_pool_destroy(oct_kv_pool *pool)
{
    if (pool == NULL) {
        return;
    }
    for (uint32_t which = 0; which < 2; which++) {
        static_scales *scales = &pool->scales[which];
        const size_t bytes = (size_t)(scales->n_sets * scales->stride * sizeof(float));
        if (pool->has_store) {
            store_free(pool, scales->values, bytes);
        } else {
            oct__memory_free(pool->allocator, scales->values, bytes);
        }
        oct__memory_free(pool->allocator, scales->is_set, scales->n_sets);
    }
    store_free(pool, pool->region, (size_t)pool->region_bytes);
    oct__memory_free(pool->allocator, pool, sizeof(*pool));
}

oct_status oct__kv_pool_create(const oct__allocator *allocator, const oct__kv_store *store, const oct_kv_pool_options *options, oct_kv_pool **pool,
                               oct_error *error)
{
    static const char where[] = "oct_kv_pool_create";
    *pool = NULL;
    oct_status status = options_check(options, where, error);
    if (status != OCT_OK) {
        return status;
    }
    oct_kv_pool *made = oct__memory_alloc_zeroed(allocator, 1, sizeof(*made));
    if (made == NULL) {
        return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "no memory for the pool's bookkeeping");
    }
    made->allocator = allocator;
    made->has_store = store != NULL;
    if (store != NULL) {
        made->store = *store;
    }
    made->spec = options->spec;
    made->n_layers = options->n_layers;
    made->n_pages = options->n_pages;
    if (!geometry_init(made)) {
        oct_kv_pool_destroy(made);
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "options.n_layers is %u; layers of %lld pages must fit the address space",
                              options->n_layers, (long long)options->n_pages);
    }
    status = scales_init(made, 0);
    if (status == OCT_OK) {
        status = scales_init(made, 1);
    }
    if (status != OCT_OK) {
        oct_kv_pool_destroy(made);
        return oct__error_set(error, status, where, "no memory for the static scales of %u layers (%s)", options->n_layers, oct_status_message(status));
    }
    const uint64_t region_bytes = made->region_bytes;
    made->region = store_alloc(made, (size_t)region_bytes, &status);
    if (status != OCT_OK) {
        const bool on_device = made->has_store;
        oct_kv_pool_destroy(made);
        return oct__error_set(error, status, where, "no %smemory for %u layers of %lld pages: %llu bytes (%s)", on_device ? "device " : "", options->n_layers,
                              (long long)options->n_pages, (unsigned long long)region_bytes, oct_status_message(status));
    }
    *pool = made;
    return OCT_OK;
}

OCT_API oct_status oct_kv_pool_set_scale(oct_kv_pool *pool, uint32_t layer, uint32_t which, const float *scale, size_t n, oct_error *error)
{
    static const char where[] = "oct_kv_pool_set_scale";
    if (pool == NULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "pool is NULL");
    }
    if (which > 1) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "which is %u; must be 0 (K) or 1 (V)", which);
    }
    static_scales *scales = &pool->scales[which];
    const oct_kv_format *format = which == 0 ? &pool->spec.k : &pool->spec.v;
    const char *mode_name = oct__scale_mode_name(format->scale_mode);
    if (scales->n == 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "which is %u, but %s of this pool takes no static scale: its scale_mode is %s",
                              which, which_name(which), mode_name);
    }
    if (layer >= scales->n_sets) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "layer is %u; must be below %u for %s with scale_mode %s", layer,
                              scales->n_sets, which_name(which), mode_name);
    }
    if (scale == NULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "scale is NULL; must point to %llu numbers",
                              (unsigned long long)scales->n);
    }
    if (n != scales->n) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "n is %zu; must be %llu for %s with scale_mode %s", n,
                              (unsigned long long)scales->n, which_name(which), mode_name);
    }
    const uint64_t n_per_head = scales->n > 1 ? scales->n / pool->spec.heads : 1;
    for (size_t i = 0; i < n; i++) {
        if (!oct__scale_is_valid(scale[i])) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s scale of layer %u, head %llu is %g (number %zu); must be finite and > 0",
                                  which_name(which), layer, (unsigned long long)(i / n_per_head), (double)scale[i], i);
        }
    }
    float *values = scales->values + layer * scales->stride;
    if (pool->has_store) {
        oct_status status = pool->store.put(pool->store.user, values, scale, n * sizeof(*scale));
        if (status == OCT_OK) {
            status = pool->store.wait(pool->store.user);
        }
        if (status != OCT_OK) {
            return oct__error_set(error, status, where, "the scales of layer %u did not reach the device (%s)", layer, oct_status_message(status));
        }
    } else {
        memcpy(values, scale, n * sizeof(*scale));
    }
    scales->is_set[layer] = 1;
    return OCT_OK;
}

/* The static scales that serve a layer; NULL when the mode has none, *missing when it has and nobody set them. */
static const float *layer_scales(const static_scales *scales, uint32_t layer, bool *missing)
{
    const uint32_t set = scales->n_sets == 1 ? 0 : layer;
    *missing = scales->n != 0 && scales->is_set[set] == 0;
    return scales->n == 0 ? NULL : scales->values + set * scales->stride;
}

static void *layer_part(const oct_kv_pool *pool, uint32_t layer, enum part part)
{
    return pool->page_bytes[part] == 0 ? NULL : pool->region + layer * pool->layer_bytes + pool->part_offset[part];
}

OCT_API oct_status oct_kv_pool_layer(const oct_kv_pool *pool, uint32_t layer, oct_kv_layer *view, oct_error *error)
{
    static const char where[] = "oct_kv_pool_layer";
    const float *static_scale[2];
    if (pool == NULL || view == NULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s is NULL", pool == NULL ? "pool" : "view");
    }
    if (layer >= pool->n_layers) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "layer is %u; must be below %u", layer, pool->n_layers);
    }
    for (uint32_t which = 0; which < 2; which++) {
        bool missing;
        static_scale[which] = layer_scales(&pool->scales[which], layer, &missing);
        if (missing) {
            const oct_kv_format *format = which == 0 ? &pool->spec.k : &pool->spec.v;
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where,
                                  "layer is %u, whose %s scale (scale_mode %s) was never set; oct_kv_pool_set_scale must come first", layer,
                                  which_name(which), oct__scale_mode_name(format->scale_mode));
        }
    }
    oct__kv_layer_fill(view, &pool->spec, pool->n_pages);
    view->k = layer_part(pool, layer, PART_K);
    view->v = layer_part(pool, layer, PART_V);
    view->k_scale = static_scale[0];
    view->v_scale = static_scale[1];
    view->k_token_scale = layer_part(pool, layer, PART_K_TOKEN_SCALE);
    view->v_token_scale = layer_part(pool, layer, PART_V_TOKEN_SCALE);
    return OCT_OK;
}

OCT_API uint64_t oct_kv_pool_bytes(const oct_kv_pool *pool)
{
    if (pool == NULL) {
        return 0;
    }
    /* What pages and scales hold, without the few bytes that bring a part to its cache line. */
    uint64_t bytes = oct_kv_page_bytes(&pool->spec) * (uint64_t)pool->n_pages * pool->n_layers;
    for (uint32_t which = 0; which < 2; which++) {
        bytes += pool->scales[which].n * pool->scales[which].n_sets * sizeof(float);
    }
    return bytes;
}

/* One copy for each layer's part, within the device; one wait for all. */
static oct_status copy_page_in_store(oct_kv_pool *pool, int32_t from, int32_t to)
{
    const oct__kv_store *store = &pool->store;
    oct_status status = OCT_OK;
    for (uint32_t layer = 0; layer < pool->n_layers && status == OCT_OK; layer++) {
        for (int part = 0; part < PART_COUNT && status == OCT_OK; part++) {
            const uint64_t bytes = pool->page_bytes[part];
            if (bytes != 0) {
                unsigned char *pages = layer_part(pool, layer, part);
                status = store->copy(store->user, pages + (uint64_t)to * bytes, pages + (uint64_t)from * bytes, (size_t)bytes);
            }
        }
    }
    return status == OCT_OK ? store->wait(store->user) : status;
}

OCT_API oct_status oct_kv_pool_copy_page(oct_kv_pool *pool, int32_t from, int32_t to)
{
    if (pool == NULL || from < 0 || from >= pool->n_pages || to < 0 || to >= pool->n_pages) {
        return OCT_INVALID_ARGUMENT;
    }
    if (from == to) {
        return OCT_OK;
    }
    if (pool->has_store) {
        return copy_page_in_store(pool, from, to);
    }
    for (uint32_t layer = 0; layer < pool->n_layers; layer++) {
        for (int part = 0; part < PART_COUNT; part++) {
            const uint64_t bytes = pool->page_bytes[part];
            if (bytes != 0) {
                unsigned char *pages = layer_part(pool, layer, part);
                memcpy(pages + (uint64_t)to * bytes, pages + (uint64_t)from * bytes, (size_t)bytes);
            }
        }
    }
    return OCT_OK;
}
