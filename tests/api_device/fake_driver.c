/* fake_driver.c: see fake_driver.h. */
#include "api_device/fake_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/executor.h"
#include "device/params.h"

#define MEMORY_BYTES ((size_t)4 << 30)   /* of address space */

typedef enum work_kind { WORK_COPY_IN, WORK_COPY_OUT, WORK_COPY, WORK_FILL, WORK_LAUNCH } work_kind;

typedef struct work {
    struct work *next;
    work_kind kind;
    void *to;
    const void *from;             /* COPY_OUT, COPY: the device's; else `bytes` */
    size_t size_bytes;
    int byte;
    oct__dev_launch launch;
    unsigned char bytes[];        /* COPY_IN: what is copied; LAUNCH: the parameters */
} work;

typedef struct work_list { work *first, **end; } work_list;

struct fake_graph { fake_graph *next; work_list works; };

struct fake_stream {
    fake_stream *next;
    fake_driver *driver;
    work_list works;
    fake_graph *capture;          /* being recorded, or NULL */
};

struct fake_driver {
    oct__driver base;
    simt_device *device;
    fake_counts *counts;
    fake_stream default_stream;   /* for NULL; meets all others */
    fake_stream *streams;
    fake_graph *graphs;
    char report[600];
};

/* ---- lists of work ------------------------------------------------------------------------------------------------------------- */

static void list_init(work_list *list)
{
    list->first = NULL;
    list->end = &list->first;
}

static void list_add(work_list *list, work *w)
{
    w->next = NULL;
    *list->end = w;
    list->end = &w->next;
}

static void list_drop(work_list *list)
{
    for (work *w = list->first, *next; w != NULL; w = next) {
        next = w->next;
        free(w);
    }
    list_init(list);
}

static work *work_make(work_kind kind, const void *bytes, size_t n)
{
    work *w = calloc(1, sizeof *w + n);
    if (w == NULL)
        abort();
    w->kind = kind;
    if (n > 0)
        memcpy(w->bytes, bytes, n);
    return w;
}

static oct_status lose(fake_driver *f, const char *form, const char *name, const char *text)
{
    snprintf(f->report, sizeof f->report, form, name, text);
    f->counts->is_lost = true;
    return OCT_DEVICE_FAULT;
}

static oct_status run_one(fake_driver *f, const work *w)
{
    simt_report report;
    switch (w->kind) {
    case WORK_COPY_IN:
        return simt_copy_in(f->device, w->to, w->bytes, w->size_bytes) == 0 ? OCT_OK : lose(f, "%s%s", "copy_in", ": not within one allocation");
    case WORK_COPY_OUT:
        return simt_copy_out(f->device, w->to, w->from, w->size_bytes) == 0 ? OCT_OK : lose(f, "%s%s", "copy_out", ": not within one allocation");
    case WORK_COPY: {
        void *through = malloc(w->size_bytes + 1);
        const int bad = through == NULL || simt_copy_out(f->device, through, w->from, w->size_bytes) != 0 || simt_copy_in(f->device, w->to, through, w->size_bytes) != 0;
        free(through);
        return !bad ? OCT_OK : lose(f, "%s%s", "copy", ": not within one allocation");
    }
    case WORK_FILL:
        return simt_fill(f->device, w->to, w->byte, w->size_bytes) == 0 ? OCT_OK : lose(f, "%s%s", "fill", ": not within one allocation");
    default: {
        const simt_kernel *kernel = simt_find(f->base.chip.warp, w->launch.kernel);
        const simt_fault fault = simt_launch(f->device, kernel, w->launch.grid_x, w->launch.grid_y, w->launch.shared_bytes, w->bytes, &report);
        return fault == SIMT_OK ? OCT_OK : lose(f, "%s: %s", w->launch.kernel, report.text);
    }
    }
}

static oct_status drain(fake_driver *f, fake_stream *stream)
{
    oct_status status = f->counts->is_lost ? OCT_DEVICE_FAULT : OCT_OK;
    for (const work *w = stream->works.first; w != NULL && status == OCT_OK; w = w->next)
        status = run_one(f, w);
    list_drop(&stream->works);
    return status;
}

static oct_status drain_all(fake_driver *f)
{
    oct_status status = drain(f, &f->default_stream);
    for (fake_stream *s = f->streams; s != NULL; s = s->next) {
        const oct_status one = drain(f, s);
        status = status == OCT_OK ? one : status;
    }
    return status;
}

/* ---- the table ------------------------------------------------------------------------------------------------------------------- */

static fake_driver *fake_of(oct__driver *driver) { return (fake_driver *)(void *)driver; }

/* The stream behind the pointer; NULL when there is none such. */
static fake_stream *stream_of(fake_driver *f, void *stream)
{
    if (stream == NULL)
        return &f->default_stream;
    for (fake_stream *s = f->streams; s != NULL; s = s->next)
        if (s == stream)
            return s;
    return NULL;
}

static bool is_capturing(oct__driver *driver, void *stream)
{
    fake_driver *f = fake_of(driver);
    for (fake_stream *s = f->streams; s != NULL; s = s->next)
        if (s->capture != NULL && (stream == NULL || s == stream))
            return true;
    return false;
}

/* What every call says first. */
static oct_status ready(fake_driver *f, void *stream, bool legal_in_capture)
{
    if (f->counts->is_lost)
        return OCT_DEVICE_FAULT;
    if (stream_of(f, stream) == NULL)
        return OCT_INVALID_ARGUMENT;
    if (is_capturing(&f->base, stream) && (!legal_in_capture || stream == NULL))
        return OCT_UNSUPPORTED;
    return OCT_OK;
}

static oct_status enqueue(fake_driver *f, void *stream, work *w)
{
    fake_stream *s = stream_of(f, stream);
    f->counts->n_enqueued++;
    if (s->capture != NULL)
        list_add(&s->capture->works, w);
    else
        list_add(&s->works, w);
    return OCT_OK;
}

static void driver_close(oct__driver *driver)
{
    fake_driver *f = fake_of(driver);
    f->counts->is_closed = true;
    list_drop(&f->default_stream.works);
    for (fake_stream *s = f->streams, *next; s != NULL; s = next) {
        next = s->next;
        list_drop(&s->works);
        free(s);
    }
    for (fake_graph *g = f->graphs, *next; g != NULL; g = next) {
        next = g->next;
        list_drop(&g->works);
        free(g);
    }
    simt_close(f->device);
    free(f);
}

static oct_status driver_alloc(oct__driver *driver, size_t bytes, void **memory)
{
    fake_driver *f = fake_of(driver);
    *memory = NULL;
    const oct_status status = ready(f, NULL, false);
    if (status != OCT_OK || bytes == 0)
        return status;
    if (++f->counts->n_made == f->counts->fail_at)
        return OCT_OUT_OF_MEMORY;
    *memory = simt_alloc(f->device, bytes, "device memory");
    f->counts->n_live += *memory != NULL;
    return *memory != NULL ? OCT_OK : OCT_OUT_OF_MEMORY;
}

static void driver_free(oct__driver *driver, void *memory)
{
    fake_driver *f = fake_of(driver);
    if (memory == NULL)
        return;
    (void)drain_all(f);
    simt_free(f->device, memory);
    f->counts->n_live--;
}

static oct_status driver_copy_in(oct__driver *driver, void *device, const void *host, size_t bytes, void *stream)
{
    fake_driver *f = fake_of(driver);
    const oct_status status = ready(f, stream, false);
    if (status != OCT_OK)
        return status;
    work *w = work_make(WORK_COPY_IN, host, bytes);
    w->to = device;
    w->size_bytes = bytes;
    return enqueue(f, stream, w);
}

/* The bytes are read when the work is done, not now. */
static oct_status copy_later(oct__driver *driver, work_kind kind, void *to, const void *from, size_t bytes, void *stream)
{
    fake_driver *f = fake_of(driver);
    const oct_status status = ready(f, stream, false);
    if (status != OCT_OK)
        return status;
    work *w = work_make(kind, NULL, 0);
    w->to = to;
    w->from = from;
    w->size_bytes = bytes;
    return enqueue(f, stream, w);
}

static oct_status driver_copy_out(oct__driver *driver, void *host, const void *device, size_t bytes, void *stream)
{
    return copy_later(driver, WORK_COPY_OUT, host, device, bytes, stream);
}

static oct_status driver_copy(oct__driver *driver, void *to, const void *from, size_t bytes, void *stream)
{
    return copy_later(driver, WORK_COPY, to, from, bytes, stream);
}

static oct_status driver_fill(oct__driver *driver, void *device, uint8_t byte, size_t bytes, void *stream)
{
    fake_driver *f = fake_of(driver);
    const oct_status status = ready(f, stream, true);
    if (status != OCT_OK)
        return status;
    work *w = work_make(WORK_FILL, NULL, 0);
    w->to = device;
    w->byte = byte;
    w->size_bytes = bytes;
    return enqueue(f, stream, w);
}

static oct_status driver_launch(oct__driver *driver, const oct__dev_launch *launch, const void *params, size_t params_bytes, void *stream)
{
    fake_driver *f = fake_of(driver);
    const oct_status status = ready(f, stream, true);
    const simt_kernel *kernel = simt_find(f->base.chip.warp, launch->kernel);
    if (status != OCT_OK)
        return status;
    if (kernel == NULL || kernel->threads != launch->threads || kernel->params_bytes != params_bytes || launch->grid_x == 0 || launch->grid_y == 0 ||
        launch->grid_y > 65535 || launch->shared_bytes > f->base.chip.shared_limit_bytes)
        return lose(f, "%s%s", launch->kernel, ": no such kernel, or lanes, parameters, grid or shared memory that do not fit it");
    work *w = work_make(WORK_LAUNCH, params, params_bytes);
    w->launch = *launch;
    w->launch.kernel = kernel->name;
    return enqueue(f, stream, w);
}

static oct_status driver_wait(oct__driver *driver, void *stream)
{
    fake_driver *f = fake_of(driver);
    const oct_status status = ready(f, stream, false);
    if (status != OCT_OK)
        return status;
    f->counts->n_waits++;
    return stream == NULL ? drain_all(f) : drain(f, stream_of(f, stream));
}

static const char *driver_fault(oct__driver *driver)
{
    fake_driver *f = fake_of(driver);
    return f->counts->is_lost ? "FAKE_ERROR_DEVICE_LOST" : "";
}

/* ---- life -------------------------------------------------------------------------------------------------------------------------- */

fake_driver *fake_open(const char *kind, uint32_t has_mma, fake_counts *counts)
{
    static const oct__driver_table tables[2] = {
#define TABLE(kind)                                                                                                                                              \
    {                                                                                                                                                            \
        kind, driver_close, driver_alloc, driver_free, driver_copy_in, driver_copy_out, driver_copy, driver_fill, driver_launch, driver_wait, is_capturing,     \
            driver_fault                                                                                                                                         \
    }
        TABLE("cuda"),
        TABLE("hip"),
#undef TABLE
    };
    const bool is_hip = strcmp(kind, "hip") == 0;
    fake_driver *f = calloc(1, sizeof *f);
    if (f == NULL)
        return NULL;
    f->base.table = &tables[is_hip];
    f->base.chip = (oct__dev_chip){ .warp = is_hip ? 64 : 32, .shared_limit_bytes = (is_hip ? 64 : 227) * 1024, .has_mma = has_mma, .has_sm90a = !is_hip && has_mma };
    snprintf(f->base.device, sizeof f->base.device, "host executor");
    snprintf(f->base.arch, sizeof f->base.arch, is_hip ? "gfx942" : "sm_90");
    snprintf(f->base.code, sizeof f->base.code, "kernels of warp %u", f->base.chip.warp);
    f->base.memory_bytes = MEMORY_BYTES;
    f->base.read_bytes_per_s = 1e12;
    f->device = simt_open(MEMORY_BYTES, f->base.chip.shared_limit_bytes);
    if (f->device == NULL) {
        free(f);
        return NULL;
    }
    f->base.chip.n_units = simt_units(f->device);
    f->counts = counts;
    f->default_stream.driver = f;
    list_init(&f->default_stream.works);
    return f;
}

oct__driver *fake_base(fake_driver *driver) { return &driver->base; }

const char *fake_report(const fake_driver *driver) { return driver->report; }

fake_stream *fake_stream_make(fake_driver *driver)
{
    fake_stream *s = calloc(1, sizeof *s);
    if (s == NULL)
        abort();
    s->driver = driver;
    list_init(&s->works);
    s->next = driver->streams;
    driver->streams = s;
    return s;
}

void fake_capture_begin(fake_stream *stream)
{
    fake_graph *g = calloc(1, sizeof *g);
    if (g == NULL)
        abort();
    list_init(&g->works);
    g->next = stream->driver->graphs;
    stream->driver->graphs = g;
    stream->capture = g;
}

fake_graph *fake_capture_end(fake_stream *stream)
{
    fake_graph *g = stream->capture;
    stream->capture = NULL;
    return g;
}

void fake_graph_launch(fake_graph *graph, fake_stream *stream)
{
    for (const work *w = graph->works.first; w != NULL; w = w->next) {
        work *copy = work_make(w->kind, w->bytes, w->kind == WORK_LAUNCH ? simt_find(stream->driver->base.chip.warp, w->launch.kernel)->params_bytes : 0);
        copy->to = w->to;
        copy->from = w->from;
        copy->size_bytes = w->size_bytes;
        copy->byte = w->byte;
        copy->launch = w->launch;
        list_add(&stream->works, copy);
    }
}
