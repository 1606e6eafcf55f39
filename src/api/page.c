/* page.c: the doors of octavo/page.h that need a context, or meet a struct of a caller's age; the others stand in src/kv. */
#include "octavo/page.h"

#include "api/context.h"
#include "api/struct.h"
#include "host/error.h"
#include "kv/table.h"
#include "kv/twin.h"

oct_status oct_kv_table_create(oct_context *context, const oct_kv_table_options *given, oct_kv_table **table, oct_error *error)
{
    static const char where[] = "oct_kv_table_create";
    oct_kv_table_options options;
    if (context == NULL || table == NULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s is NULL", context == NULL ? "context" : "table");
    }
    *table = NULL;
    const oct_status status = oct__struct_read(&options, sizeof(options), sizeof(options), given, "options", where, error);
    return status == OCT_OK ? oct__kv_table_create(&context->allocator, &options, table, error) : status;
}

oct_status oct_kv_table_stats_get(const oct_kv_table *table, oct_kv_table_stats *stats)
{
    if (table == NULL) {
        return OCT_INVALID_ARGUMENT;
    }
    const oct_kv_table_stats known = oct__kv_table_stats(table);
    return oct__struct_write(stats, &known, sizeof(known), sizeof(known));
}

oct_status oct_kv_twin_create(oct_context *context, const oct_kv_twin_options *given, oct_kv_twin **twin, oct_error *error)
{
    static const char where[] = "oct_kv_twin_create";
    oct_kv_twin_options options;
    if (context == NULL || twin == NULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s is NULL", context == NULL ? "context" : "twin");
    }
    *twin = NULL;
    const oct_status status = oct__struct_read(&options, sizeof(options), sizeof(options), given, "options", where, error);
    return status == OCT_OK ? oct__kv_twin_create(&context->allocator, &options, twin, error) : status;
}
