/* page.c: the door of octavo/page.h: what needs a context is checked here, what needs only a table or a twin is in src/kv.
 *
 * Threads: as octavo/page.h says. */
#include "host/context.h"
#include "host/error.h"
#include "kv/table.h"
#include "kv/twin.h"

static oct_status no_context(const char *where, oct_error *error)
{
    return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "context is NULL; must come from oct_context_create");
}

OCT_API oct_status oct_kv_table_create(oct_context *context, const oct_kv_table_options *options, oct_kv_table **table, oct_error *error)
{
    if (context == NULL) {
        return no_context("oct_kv_table_create", error);
    }
    return oct__kv_table_create(oct__context_allocator(context), options, table, error);
}

OCT_API oct_status oct_kv_twin_create(oct_context *context, const oct_kv_twin_options *options, oct_kv_twin **twin, oct_error *error)
{
    if (context == NULL) {
        return no_context("oct_kv_twin_create", error);
    }
    return oct__kv_twin_create(oct__context_allocator(context), options, twin, error);
}
