/* Memory of what a context computes on, so that one program serves a GPU and the CPU without a vendor's headers: on a CPU context the device's memory
 * is the host's, copies are made at once, and streams are NULL. */
#ifndef OCTAVO_DEVICE_H
#define OCTAVO_DEVICE_H

#include "octavo/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Memory of the context's device, 256-byte aligned (CPU: 64), contents unspecified; not inside a graph capture. Errors: INVALID_ARGUMENT
 * (NULL; 0 bytes), OUT_OF_MEMORY, UNSUPPORTED (a capture; a recorded machine), DEVICE_FAULT. */
OCT_API oct_status oct_device_alloc(oct_context *context, size_t size_bytes, void **memory);

/* Waits for the device, so that nothing uses the memory any more. size_bytes as it was allocated; NULL memory is fine. */
OCT_API void oct_device_free(oct_context *context, void *memory, size_t size_bytes);

/* Enqueued on the stream. Host memory given to copy_in may change as soon as it returns; copy_out's is filled once the stream has got there
 * (oct_device_wait). Not inside a graph capture. Errors: INVALID_ARGUMENT (a NULL pointer; a stream on the CPU), UNSUPPORTED, DEVICE_FAULT. */
OCT_API oct_status oct_device_copy_in(oct_context *context, void *device, const void *host, size_t size_bytes, void *stream);
OCT_API oct_status oct_device_copy_out(oct_context *context, void *host, const void *device, size_t size_bytes, void *stream);

/* Waits until all that was enqueued on the stream has run; tells faults of its kernels. Errors: as above. */
OCT_API oct_status oct_device_wait(oct_context *context, void *stream);

/* What a GPU context's device is: lines of text, or one JSON object; "" and null on the CPU. As snprintf. Any thread. */
OCT_API size_t oct_device_describe(const oct_context *context, uint32_t format, char *text, size_t size);

/* Whether the last update that has run could plan its step, for whoever gives a GPU metadata that he is not sure of. Waits for the stream, which must
 * be the one of the last update. INVALID_ARGUMENT: the step was larger than the plan's limits; its runs write nothing. On the CPU, where update tells
 * at once, OK. Other errors as above. */
OCT_API oct_status oct_plan_status(oct_plan *plan, void *stream, oct_error *error);

#ifdef __cplusplus
}
#endif
#endif
