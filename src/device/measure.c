/* measure.c: oct__backend_measure. Work for one window is enqueued and waited for; of two windows, one with more of it, the difference counts, so that what an
 * enqueueing and a wait cost does not. */
#include <string.h>

#include "device/backend.h"
#include "host/clock.h"

enum { ROUNDS_MAX = 25, ROUNDS_MIN = 3, LAUNCHES_FEW = 2, LAUNCHES_MANY = 10, STEPS_FIRST = 16 };

#define ARRAY_BYTES_MAX (UINT64_C(4) << 30)   /* dozens of times the largest second-level cache */
static const double launch_seconds = 800e-6;  /* long beside the beginning and the end of a launch */

typedef struct bench {
    oct__driver *driver;
    unsigned char *array;             /* 2 * steps_max of it */
    uint32_t *left;
    uint64_t steps_max;
} bench;

typedef enum kind { READ_ALL, COPY_ALL, READ_ONE, COPY_ONE, KINDS } kind;

/* Seconds of n launches. */
static oct_status run(const bench *b, kind k, uint64_t steps, int n, double *seconds)
{
    oct__driver *driver = b->driver;
    oct__measure_params params;
    oct__dev_launch launch;
    const bool copies = k == COPY_ALL || k == COPY_ONE;
    oct__dev_pack_measure(&driver->chip, b->array, copies ? b->array + b->steps_max * OCT__MEASURE_STEP : NULL, b->left, steps, k == READ_ONE || k == COPY_ONE, &params, &launch);
    oct_status status = driver->table->wait(driver, NULL);
    const double begin = oct__clock_seconds();
    for (int i = 0; i < n && status == OCT_OK; i++) {
        status = driver->table->launch(driver, &launch, &params, sizeof(params), NULL);
    }
    if (status == OCT_OK) {
        status = driver->table->wait(driver, NULL);
    }
    *seconds = oct__clock_seconds() - begin;
    return status;
}

/* Steps that take a launch long enough, or all there are. */
static oct_status find_steps(const bench *b, kind k, uint64_t *steps)
{
    double once;
    *steps = STEPS_FIRST < b->steps_max ? STEPS_FIRST : b->steps_max;
    oct_status status = OCT_OK;
    for (; status == OCT_OK; *steps = *steps * 4 < b->steps_max ? *steps * 4 : b->steps_max) {
        status = b->driver->table->fill(b->driver, b->array, 0x5A, (size_t)(*steps * OCT__MEASURE_STEP), NULL);
        for (int i = 0; i < 2 && status == OCT_OK; i++) {   /* the first launch of a kernel takes longer */
            status = run(b, k, *steps, 1, &once);
        }
        if (status != OCT_OK || once >= launch_seconds || *steps == b->steps_max) {
            break;
        }
    }
    return status;
}

static oct_status sample(const bench *b, kind k, uint64_t steps, double *bytes_per_s)
{
    double few = 0, many = 0;
    oct_status status = run(b, k, steps, LAUNCHES_FEW, &few);
    if (status == OCT_OK) {
        status = run(b, k, steps, LAUNCHES_MANY, &many);
    }
    const double bytes = (double)steps * OCT__MEASURE_STEP * (k == COPY_ALL || k == COPY_ONE ? 2 : 1);
    *bytes_per_s = many > few ? bytes * (LAUNCHES_MANY - LAUNCHES_FEW) / (many - few) : bytes * LAUNCHES_MANY / (many > 0 ? many : 1e-9);
    return status;
}

static double median(double *values, int n)
{
    for (int i = 1; i < n; i++) {
        const double value = values[i];
        int at = i;
        for (; at > 0 && values[at - 1] > value; at--) {
            values[at] = values[at - 1];
        }
        values[at] = value;
    }
    return values[n / 2];
}

static oct_status measure(const bench *b, double seconds, double rates[KINDS])
{
    uint64_t steps[KINDS];
    double samples[KINDS][ROUNDS_MAX];
    int n = 0;
    const double begin = oct__clock_seconds();
    oct_status status = OCT_OK;
    for (int k = 0; k < KINDS && status == OCT_OK; k++) {
        status = find_steps(b, (kind)k, &steps[k]);
    }
    for (; n < ROUNDS_MAX && status == OCT_OK && (n < ROUNDS_MIN || oct__clock_seconds() - begin < seconds); n++) {
        for (int k = 0; k < KINDS && status == OCT_OK; k++) {
            status = sample(b, (kind)k, steps[k], &samples[k][n]);
        }
    }
    for (int k = 0; k < KINDS && status == OCT_OK; k++) {
        rates[k] = median(samples[k], n);
    }
    return status;
}

oct_status oct__backend_measure(oct__driver *driver, double seconds, double read[2], double copy[2])
{
    bench b = { .driver = driver };
    double rates[KINDS] = { 0 };
    void *array = NULL, *left = NULL;
    uint64_t bytes = driver->memory_bytes / 32 < ARRAY_BYTES_MAX ? driver->memory_bytes / 32 : ARRAY_BYTES_MAX;
    bytes = bytes / OCT__MEASURE_STEP * OCT__MEASURE_STEP;
    oct_status status = oct__backend_alloc(driver, (size_t)oct__dev_measure_words(&driver->chip) * sizeof(*b.left), &left);
    /* Others may have most of the memory. */
    for (; status == OCT_OK && bytes >= OCT__MEASURE_STEP; bytes = bytes / 2 / OCT__MEASURE_STEP * OCT__MEASURE_STEP) {
        status = oct__backend_alloc(driver, (size_t)(2 * bytes), &array);
        if (status != OCT_OUT_OF_MEMORY) {
            break;
        }
        status = bytes / 2 >= OCT__MEASURE_STEP ? OCT_OK : OCT_OUT_OF_MEMORY;
    }
    b.array = array;
    b.left = left;
    b.steps_max = bytes / OCT__MEASURE_STEP;
    if (status == OCT_OK) {
        status = array != NULL ? measure(&b, seconds, rates) : OCT_OUT_OF_MEMORY;
    }
    driver->table->free(driver, array);
    driver->table->free(driver, left);
    read[0] = rates[READ_ONE], read[1] = rates[READ_ALL];
    copy[0] = rates[COPY_ONE], copy[1] = rates[COPY_ALL];
    return status;
}
