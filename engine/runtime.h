/* ggml and libllama as one process-wide runtime: started once, made silent, asked for its last complaint. Any thread. */
#ifndef OCTE_RUNTIME_H
#define OCTE_RUNTIME_H

#include <ggml-backend.h>
#include <stdint.h>

/* Starts both libraries on the first call and routes their log away from the terminal: an engine never prints. */
void octe__runtime_start(void);

/* What ggml or libllama logged last as an error on this thread since the last clear; "" for nothing. Valid until this thread's next call into them. */
const char *octe__runtime_complaint(void);
void octe__runtime_clear(void);

/* The CPU device; NULL where ggml has none. */
ggml_backend_dev_t octe__runtime_cpu(void);

/* Threads for graphs, the caller's included; NULL when they can't be started. Freed by ggml_threadpool_free. */
struct ggml_threadpool *octe__runtime_threads(uint32_t n_threads);

#endif
