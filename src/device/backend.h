/* backend.h: owns what the doors do on a GPU: a plan's device memory, and which kernels a step, a run, a write and a merge enqueue. Arguments
 * have passed the doors' checks, and their pointers are device pointers.
 *
 * Threads: a plan's create, update and destroy by one thread at a time and not during a run; everything else any thread. Nothing but create and
 * destroy allocates; nothing waits but oct__backend_plan_status. */
#ifndef OCT_DEVICE_BACKEND_H
#define OCT_DEVICE_BACKEND_H

#include "device/driver.h"
#include "plan/variant.h"

typedef struct oct__backend_plan oct__backend_plan;

/* The driver's error in words: "the hip driver says hipErrorOutOfMemory: memory could not be allocated". */
oct_status oct__backend_error(oct__driver *driver, oct_status status, const char *doing, const char *where, oct_error *error);

/* The driver's alloc, which while any stream is captured would end that capture: UNSUPPORTED instead. */
oct_status oct__backend_alloc(oct__driver *driver, size_t bytes, void **memory);

/* spec with its limits; chosen: [OCT__DEV_OPS], the rows for decode and extend. The driver and the allocator outlive the plan. Errors:
 * UNSUPPORTED (a tile that the chip's shared memory does not hold, or a capture is going on), OUT_OF_MEMORY, DEVICE_FAULT. */
oct_status oct__backend_plan_create(oct__driver *driver, const oct__allocator *allocator, const oct_attn_spec *spec, const oct__variant *const *chosen,
                                    const char *where, oct__backend_plan **plan, oct_error *error);
void oct__backend_plan_destroy(oct__backend_plan *plan);   /* NULL is fine */

uint64_t oct__backend_plan_bytes(const oct__backend_plan *plan);

/* Enqueues the step's planning; the pointers of batch are kept for the runs. NULL: from here on the batch is empty. */
oct_status oct__backend_plan_update(oct__backend_plan *plan, const oct_attn_spec *spec, const oct_attn_batch *batch);

/* What the last update that has run found: waits for the stream. *found: OCT__DEV_PLAN_*. */
oct_status oct__backend_plan_status(oct__backend_plan *plan, void *stream, uint32_t *found);

/* The sequences of the last update, and the pages that its indices lie below. */
uint32_t oct__backend_plan_sequences(const oct__backend_plan *plan);
int64_t oct__backend_plan_pages(const oct__backend_plan *plan);

oct_status oct__backend_attn(oct__backend_plan *plan, const oct_attn_spec *spec, const oct_attn_args *args);

/* With args->checked, args->refused is zeroed and then set by the kernel that looks at the slots. */
oct_status oct__backend_write(oct__driver *driver, const oct__variant *variant, const oct_kv_write_args *args);
oct_status oct__backend_merge(oct__driver *driver, const oct__variant *variant, const oct_attn_merge_args *args);

/* Bytes a second of the device's memory, read and copied (read and written), by one block and by as many as the device holds: medians of rounds for about
 * `seconds`. Takes a sixteenth of the memory meanwhile, or what there is. Waits. Errors: OUT_OF_MEMORY, UNSUPPORTED (a capture), DEVICE_FAULT. */
oct_status oct__backend_measure(oct__driver *driver, double seconds, double read[2], double copy[2]);

#endif
