/* thread_note.c: see thread_note.h. ggml's threads wait for each other by spinning: with more of them than cores, each step waits for the
 * scheduler, and a run can take ten times as long without a word about why. */
#include "apps/thread_note.h"

#include "apps/output.h"
#include "host/threads.h"

void app_thread_note(uint32_t n_threads)
{
    const uint32_t usable = oct__threads_usable_cpus();
    if (n_threads > usable) {
        (void)app_output_fail("%u threads on %u usable CPUs: they wait for each other by spinning, so this will be slow", n_threads, usable);
    }
}
