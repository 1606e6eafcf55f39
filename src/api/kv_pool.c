/* kv_pool.c: the door of octavo/kv.h to pools: what needs a context is checked here, what needs only a pool or a spec is in src/kv.
 *
 * Threads: as octavo/kv.h says. */
#include "host/context.h"
#include "host/error.h"
#include "kv/pool.h"

OCT_API oct_status oct_kv_pool_create(oct_context *context, const oct_kv_pool_options *options, oct_kv_pool **pool, oct_error *error)
{
    if (context == NULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, "oct_kv_pool_create", "context is NULL; must come from oct_context_create");
    }
    return oct__kv_pool_create(oct__context_allocator(context), options, pool, error);
}
