/* runtime.c: see runtime.h. */
#include "engine/runtime.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <ggml.h>
#include <llama.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local char complaint[192];

/* libllama says why a load failed only in its log; the last line is the most specific one. */
static void hear(enum ggml_log_level level, const char *text, void *user)
{
    (void)user;
    if (level != GGML_LOG_LEVEL_ERROR || text == NULL) {
        return;
    }
    size_t n = strcspn(text, "\n");
    while (n > 0 && text[n - 1] == ' ') {
        n--;
    }
    if (n > 0) {
        /* A later, vaguer line ("failed to load model") must not replace the reason. */
        if (complaint[0] != '\0' && strstr(text, "failed to load") != NULL) {
            return;
        }
        snprintf(complaint, sizeof(complaint), "%.*s", n > sizeof(complaint) ? (int)sizeof(complaint) : (int)n, text);
    }
}

static void start(void)
{
    llama_log_set(hear, NULL);
    ggml_log_set(hear, NULL);
    llama_backend_init();
    if (ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) == NULL) {
        ggml_backend_load_all();   /* a ggml built with its backends as plug-ins */
    }
}

void octe__runtime_start(void) { pthread_once(&once, start); }

const char *octe__runtime_complaint(void) { return complaint; }
void octe__runtime_clear(void) { complaint[0] = '\0'; }

ggml_backend_dev_t octe__runtime_cpu(void)
{
    octe__runtime_start();
    return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
}

/* ggml's threads spin for a while when a graph is done, so that the next one finds them awake. Its default of 50 is 0.14 s of a core on a Zen 4:
 * between two tokens there is a tenth of that at most, and whoever has work meanwhile (another engine of this process, the caller's own
 * threads) loses the rest: a step of 128 rows that takes 0.39 s took 0.53 s. */
enum { POLL = 5 };

struct ggml_threadpool *octe__runtime_threads(uint32_t n_threads)
{
    struct ggml_threadpool_params params;
    ggml_threadpool_params_init(&params, (int)n_threads);
    params.poll = POLL;
    return ggml_threadpool_new(&params);
}
