/* double.c: see double.h. */
#define _GNU_SOURCE
#include "driver/double.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/executor.h"

enum { DEVICES_MAX = 4, CONTEXTS_MAX = 16, QUEUE_MAX = 1024, ENTRIES_MAX = 64, FUNCTIONS_MAX = 256 };

/* Of address space, for what the executor leaves unreadable between allocations. */
#define GAPS_BYTES ((size_t)1 << 30)

/* Both vendors' numbers. */
enum {
    INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_IMAGE = 200, NO_BINARY_FOR_GPU = 209, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700,
    MISALIGNED_ADDRESS = 716, LAUNCH_FAILED = 719, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_UNMATCHED = 903, CAPTURE_IMPLICIT = 906
};

/* ---- what is enqueued ---------------------------------------------------------------------------------------------------------------- */

typedef struct event { struct event *next; double seconds; int has_run; } event;

typedef struct work {
    const simt_kernel *kernel;      /* NULL: a copy from data or within the device, a fill, or */
    event *event;                   /* a note of the time */
    uint32_t grid_x, grid_y, shared_bytes;
    void *to, *data;                /* data: parameters, or bytes to copy */
    const void *from;               /* of a copy within the device */
    size_t bytes;
    uint8_t byte;
} work;

typedef struct list { work *all; size_t n, room; } list;

static int list_add(list *l, work w)
{
    if (l->n == l->room) {
        const size_t room = l->room * 2 + 16;
        work *grown = realloc(l->all, room * sizeof *grown);
        if (grown == NULL)
            return OUT_OF_MEMORY;
        l->all = grown;
        l->room = room;
    }
    l->all[l->n++] = w;
    return 0;
}

static void *copy_of(const void *data, size_t bytes)
{
    void *copy = malloc(bytes + (bytes == 0));
    if (copy != NULL && bytes > 0)
        memcpy(copy, data, bytes);
    return copy;
}

static int list_copy(list *to, const list *from)
{
    for (size_t i = 0; i < from->n; i++) {
        work w = from->all[i];
        if (w.data != NULL && (w.data = copy_of(w.data, w.kernel != NULL ? w.kernel->params_bytes : w.bytes)) == NULL)
            return OUT_OF_MEMORY;
        if (list_add(to, w) != 0) {
            free(w.data);
            return OUT_OF_MEMORY;
        }
    }
    return 0;
}

static void list_clear(list *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->all[i].data);
    free(l->all);
    *l = (list){ 0 };
}

/* ---- the device ------------------------------------------------------------------------------------------------------------------------ */

/* mode: what its capture forbids calls without a stream: 0 those of any thread, 1 of its own thread, 2 none. */
typedef struct stream { struct stream *next; int is_blocking, is_capturing, is_broken, mode; pthread_t thread; list captured; } stream;
typedef struct graph { struct graph *next; list work; } graph;
typedef struct allocation { struct allocation *next; void *at; size_t bytes; } allocation;
struct double_module {
    double_module *next;
    const char *image;
    size_t bytes;
    int device, is_packed, is_machine_code, n_functions;
    double_function functions[FUNCTIONS_MAX];
};

double_chip double_this;
static const driver_double *the_control;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static simt_device *memory;
static size_t used_bytes;
static allocation *allocations;
static double_module *modules;
static stream *streams;
static graph *graphs;
static event *events;
static list queue;
static double_context contexts[DEVICES_MAX];
static int lost;                    /* the error that every call gives */
static simt_report last_report;
static struct { char entry[48]; unsigned nth; int error; } plan;
static struct { const char *entry; unsigned n; } counts[ENTRIES_MAX];
static unsigned n_calls;

static _Thread_local struct { double_context *stack[CONTEXTS_MAX]; int n, device; } mine;

void double_define(const driver_double *control)
{
    the_control = control;
    double_reset(NULL);
}

void double_reset(const double_chip *chip)
{
    pthread_mutex_lock(&turn);
    for (stream *s = streams, *next; s != NULL; s = next) {
        next = s->next;
        list_clear(&s->captured);
        free(s);
    }
    for (allocation *a = allocations, *next; a != NULL; a = next) {
        next = a->next;
        free(a);
    }
    for (double_module *m = modules, *next; m != NULL; m = next) {
        next = m->next;
        free(m);
    }
    while (graphs != NULL)
        double_graph_drop(graphs);
    while (events != NULL)
        double_event_drop(events);
    list_clear(&queue);
    simt_close(memory);
    memory = NULL;
    streams = NULL;
    allocations = NULL;
    modules = NULL;
    used_bytes = 0;
    lost = 0;
    n_calls = 0;
    memset(contexts, 0, sizeof contexts);
    memset(&plan, 0, sizeof plan);
    memset(counts, 0, sizeof counts);
    memset(&last_report, 0, sizeof last_report);
    for (int i = 0; i < DEVICES_MAX; i++)
        contexts[i].device = i;
    mine.n = mine.device = 0;
    double_this = chip != NULL ? *chip : the_control->usual;
    pthread_mutex_unlock(&turn);
}

void double_fail(const char *entry, unsigned nth, int error)
{
    pthread_mutex_lock(&turn);
    snprintf(plan.entry, sizeof plan.entry, "%s", entry != NULL ? entry : "");
    plan.nth = nth;
    plan.error = error;
    pthread_mutex_unlock(&turn);
}

unsigned double_calls(const char *entry)
{
    unsigned n = entry == NULL ? n_calls : 0;
    for (int i = 0; entry != NULL && i < ENTRIES_MAX && counts[i].entry != NULL; i++)
        n += strcmp(counts[i].entry, entry) == 0 ? counts[i].n : 0;
    return n;
}

void double_lose(void)
{
    pthread_mutex_lock(&turn);
    lost = LAUNCH_FAILED;
    pthread_mutex_unlock(&turn);
}

double_live double_is_live(void)
{
    double_live live = { .current = mine.n + (mine.device != 0) };
    for (const allocation *a = allocations; a != NULL; a = a->next)
        live.allocations++;
    for (const double_module *m = modules; m != NULL; m = m->next)
        live.modules++;
    for (int i = 0; i < DEVICES_MAX; i++)
        live.contexts += contexts[i].n_retained;
    return live;
}

const char *double_report(void) { return last_report.text; }

/* Calls whose failure leaves a driver nothing that it could do; a plan for any call passes them over. */
static int gives_back(const char *entry)
{
    static const char *const words[] = { "Pop", "Release", "Unload", "Free", "Destroy", "GetLastError", "GetErrorName" };
    int n = 0;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        n += strstr(entry, words[i]) != NULL;
    return n > 0;
}

int double_enter(const char *entry)
{
    pthread_mutex_lock(&turn);
    n_calls += !gives_back(entry);
    for (int i = 0; i < ENTRIES_MAX; i++) {
        if (counts[i].entry == NULL)
            counts[i].entry = entry;
        if (strcmp(counts[i].entry, entry) == 0) {
            counts[i].n++;
            break;
        }
    }
    const int is_planned = plan.nth > 0 && (plan.entry[0] == '\0' ? !gives_back(entry) : strcmp(plan.entry, entry) == 0);
    return is_planned && --plan.nth == 0 ? plan.error : 0;
}

int double_leave(int error)
{
    pthread_mutex_unlock(&turn);
    return error;
}

/* ---- contexts -------------------------------------------------------------------------------------------------------------------------- */

double_context *double_context_of(int device) { return device >= 0 && device < double_this.n_devices ? &contexts[device] : NULL; }
double_context *double_current(void) { return mine.n > 0 ? mine.stack[mine.n - 1] : NULL; }
int *double_device(void) { return &mine.device; }

int double_push(double_context *context)
{
    if (mine.n == CONTEXTS_MAX)
        return INVALID_VALUE;
    mine.stack[mine.n++] = context;
    return 0;
}

double_context *double_pop(void) { return mine.n > 0 ? mine.stack[--mine.n] : NULL; }

/* ---- running --------------------------------------------------------------------------------------------------------------------------- */

static simt_device *the_memory(void)
{
    if (memory == NULL)
        memory = simt_open(double_this.memory_bytes + GAPS_BYTES, double_this.shared_limit_bytes);
    return memory;
}

static int run(const work *w)
{
    if (w->event != NULL) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        w->event->seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
        w->event->has_run = 1;
        return 0;
    }
    if (the_memory() == NULL)
        return LAUNCH_FAILED;
    if (w->kernel == NULL) {
        int bad = w->from == NULL && w->data == NULL && simt_fill(memory, w->to, w->byte, w->bytes) != 0;
        void *through = w->from != NULL ? malloc(w->bytes + 1) : NULL;
        if (w->from != NULL)
            bad = through == NULL || simt_copy_out(memory, through, w->from, w->bytes) != 0;
        if (!bad && (w->from != NULL || w->data != NULL))
            bad = simt_copy_in(memory, w->to, w->from != NULL ? through : w->data, w->bytes) != 0;
        free(through);
        return bad != 0 ? ILLEGAL_ADDRESS : 0;
    }
    switch (simt_launch(memory, w->kernel, w->grid_x, w->grid_y, w->shared_bytes, w->data, &last_report)) {
    case SIMT_OK: return 0;
    case SIMT_OUT_OF_BOUNDS:
    case SIMT_READ_ONLY:
    case SIMT_RAW_ACCESS: return ILLEGAL_ADDRESS;
    case SIMT_MISALIGNED: return MISALIGNED_ADDRESS;
    default: return LAUNCH_FAILED;
    }
}

/* All that is enqueued. What fails is gone for good. */
static int drain(void)
{
    for (size_t i = 0; i < queue.n && lost == 0; i++)
        lost = run(&queue.all[i]);
    list_clear(&queue);
    return lost;
}

static int is_stream(const void *candidate)
{
    const stream *s = streams;
    while (s != NULL && s != candidate)
        s = s->next;
    return candidate == NULL || s != NULL;
}

/* Calls that captures forbid; the captures end by it. On a stream; a capture of a stream that waits for the default one (as a blocking stream does)
 * forbids work there; and calls without a stream. */
static int forbid_on(stream *on)
{
    int broken = 0;
    for (stream *s = streams; s != NULL; s = s->next)
        if (s->is_capturing && (on == NULL ? s->is_blocking : s == on))
            broken = s->is_broken = 1;
    return !broken ? 0 : on == NULL ? CAPTURE_IMPLICIT : CAPTURE_UNSUPPORTED;
}

static int forbid_here(void)
{
    int broken = 0;
    for (stream *s = streams; s != NULL; s = s->next)
        if (s->is_capturing && (s->mode == 0 || (s->mode == 1 && pthread_equal(s->thread, pthread_self()))))
            broken = s->is_broken = 1;
    return broken ? CAPTURE_UNSUPPORTED : 0;
}

static int enqueue(stream *s, work w)
{
    int error = lost != 0 ? lost : s == NULL ? forbid_on(NULL) : s->is_broken ? CAPTURE_INVALIDATED : 0;
    if (error == 0)
        error = list_add(s != NULL && s->is_capturing ? &s->captured : &queue, w);
    if (error != 0) {
        free(w.data);
        return error;
    }
    return queue.n >= QUEUE_MAX ? drain() : 0;
}

/* ---- modules --------------------------------------------------------------------------------------------------------------------------- */

static uint64_t field(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes; i-- > 0;)
        value = value << 8 | at[i];
    return value;
}

/* An ELF file for this very chip, or PTX for it or an older one, as each vendor's loader wants it, or either packed in a fatbin of NVIDIA's. 0 when it fits. */
static int check_image(double_module *m, const unsigned char *image, size_t *bytes)
{
    enum { EM_CUDA = 190, EM_AMDGPU = 224, FATBIN_HEAD = 16, FATBIN_PTX = 1, FATBIN_ELF = 2 };
    const int is_nvidia = double_this.capability > 0;
    if (is_nvidia && memcmp(image, "\x50\xED\x55\xBA\1\0\x10", 7) == 0) {   /* a head, then one image with a head of its own */
        const unsigned kind = (unsigned)field(image + FATBIN_HEAD, 2), capability = (unsigned)field(image + FATBIN_HEAD + 28, 4);
        *bytes = FATBIN_HEAD + (size_t)field(image + 8, 8);
        m->is_packed = 1;
        m->is_machine_code = kind == FATBIN_ELF;
        if (kind != FATBIN_ELF && kind != FATBIN_PTX)
            return INVALID_IMAGE;
        const int fits = kind == FATBIN_ELF ? (int)capability == double_this.capability : (int)capability <= double_this.capability;
        return fits ? 0 : NO_BINARY_FOR_GPU;
    }
    if (memcmp(image, "\177ELF\2\1", 6) == 0) {
        const unsigned machine = (unsigned)field(image + 18, 2), flags = (unsigned)field(image + 48, 4);
        *bytes = (size_t)(field(image + 40, 8) + field(image + 58, 2) * field(image + 60, 2));
        if (machine != (is_nvidia ? EM_CUDA : EM_AMDGPU))
            return INVALID_IMAGE;
        if (is_nvidia)   /* nvcc 13's files keep the capability in the second byte */
            return (int)(image[8] >= 8 ? flags >> 8 & 255 : flags & 255) == double_this.capability ? 0 : NO_BINARY_FOR_GPU;
        const char *arch = (flags & 255) == 0x4C ? "gfx942" : (flags & 255) == 0x4F ? "gfx950" : "?";
        return strncmp(double_this.arch, arch, strlen(arch)) == 0 ? 0 : NO_BINARY_FOR_GPU;
    }
    const char *target = is_nvidia ? strstr((const char *)image, ".target sm_") : NULL;
    if (target == NULL)
        return INVALID_IMAGE;
    *bytes = strlen((const char *)image);
    return atoi(target + strlen(".target sm_")) <= double_this.capability ? 0 : NO_BINARY_FOR_GPU;
}

int double_load(double_module **module, const void *image, int device)
{
    size_t bytes = 0;
    int error = lost != 0 ? lost : forbid_here();
    double_module *m = error == 0 ? calloc(1, sizeof *m) : NULL;
    if (m == NULL)
        return error != 0 ? error : OUT_OF_MEMORY;
    error = check_image(m, image, &bytes);
    if (error != 0) {
        free(m);
        return error;
    }
    m->image = image;
    m->bytes = bytes;
    m->device = device;
    m->next = modules;
    modules = m;
    *module = m;
    return 0;
}

int double_unload(double_module *module)
{
    double_module **at = &modules;
    while (*at != NULL && *at != module)
        at = &(*at)->next;
    if (*at == NULL)
        return INVALID_HANDLE;
    const int error = drain();
    *at = module->next;
    free(module);
    return error;
}

/* Whether the image speaks of the symbol, as a whole word. What is packed is not looked into: the build has held it to the list of kernels (cmake/device_report.cmake), of
 * which Hopper's own are in machine code alone. */
static int speaks_of(const double_module *m, const char *symbol)
{
    const size_t n = strlen(symbol);
    if (m->is_packed)
        return m->is_machine_code || strstr(symbol, "_sm90a") == NULL;
    const char *at = m->image, *end = m->image + m->bytes;
    while ((at = memmem(at, (size_t)(end - at), symbol, n)) != NULL) {
        const char after = at + n < end ? at[n] : '\0';
        if ((at == m->image || at[-1] == '\0' || at[-1] == ' ' || at[-1] == '.') && (after == '\0' || after == '('))
            return 1;
        at += n;
    }
    return 0;
}

int double_find(double_function **function, double_module *module, const char *symbol, uint32_t dynamic_limit_bytes)
{
    static const char prefix[] = "oct__dev_";
    const simt_kernel *kernel = strncmp(symbol, prefix, strlen(prefix)) == 0 ? simt_find(double_this.warp, symbol + strlen(prefix)) : NULL;
    if (kernel == NULL || !speaks_of(module, symbol))
        return NOT_FOUND;
    if (module->n_functions == FUNCTIONS_MAX) {   /* "not found" would be taken for a code without Hopper's kernels, and its rows would quietly go */
        (void)fprintf(stderr, "the driver's double has room for %d functions\n", FUNCTIONS_MAX);
        abort();
    }
    /* About what the compilers say of the kernels that have arrays of a fixed size. */
    const uint32_t static_bytes = strcmp(kernel->name, "kv_write") == 0 ? 10240 : strcmp(kernel->name, "plan_step") == 0 ? 2048 : 0;
    double_function *f = &module->functions[module->n_functions++];
    *f = (double_function){ module, kernel, static_bytes, dynamic_limit_bytes };
    *function = f;
    return 0;
}

int double_function_device(const double_function *function) { return function->module->device; }

/* ---- memory ---------------------------------------------------------------------------------------------------------------------------- */

int double_alloc(void **at, size_t bytes)
{
    const int error = lost != 0 ? lost : forbid_here();
    if (error != 0 || bytes == 0)
        return error != 0 ? error : INVALID_VALUE;
    allocation *a = bytes > double_this.memory_bytes - used_bytes || the_memory() == NULL ? NULL : calloc(1, sizeof *a);
    if (a == NULL || (a->at = simt_alloc(memory, bytes, "device memory")) == NULL) {
        free(a);
        return OUT_OF_MEMORY;
    }
    a->bytes = bytes;
    a->next = allocations;
    allocations = a;
    used_bytes += bytes;
    *at = a->at;
    return 0;
}

int double_free(void *at)
{
    allocation **place = &allocations;
    int error = lost != 0 ? lost : forbid_here();
    while (*place != NULL && (*place)->at != at)
        place = &(*place)->next;
    if (error != 0 || *place == NULL)
        return error != 0 ? error : INVALID_VALUE;
    error = drain();
    allocation *a = *place;
    *place = a->next;
    used_bytes -= a->bytes;
    simt_free(memory, a->at);
    free(a);
    return error;
}

/* ---- streams and graphs ------------------------------------------------------------------------------------------------------------------ */

int double_stream_make(void **made, unsigned flags)
{
    stream *s = calloc(1, sizeof *s);
    if (s == NULL)
        return OUT_OF_MEMORY;
    s->is_blocking = (flags & 1) == 0;
    s->next = streams;
    streams = s;
    *made = s;
    return 0;
}

int double_stream_drop(void *dropped)
{
    stream **at = &streams;
    while (*at != NULL && *at != dropped)
        at = &(*at)->next;
    if (*at == NULL)
        return INVALID_HANDLE;
    stream *s = *at;
    *at = s->next;
    list_clear(&s->captured);
    free(s);
    return 0;
}

int double_capture_begin(void *on, int mode)
{
    stream *s = on;
    if (s == NULL)
        return CAPTURE_UNSUPPORTED;   /* the default stream cannot be captured */
    if (!is_stream(s) || s->is_capturing)
        return INVALID_HANDLE;
    s->is_capturing = 1;
    s->mode = mode;
    s->thread = pthread_self();
    return 0;
}

/* Graphs that a test keeps live until reset. */
static graph *graph_make(void)
{
    graph *made = calloc(1, sizeof *made);
    if (made != NULL) {
        made->next = graphs;
        graphs = made;
    }
    return made;
}

int double_capture_end(void *on, void **ended)
{
    stream *s = on;
    *ended = NULL;
    if (s == NULL || !is_stream(s) || !s->is_capturing)
        return CAPTURE_UNMATCHED;
    graph *made = s->is_broken ? NULL : graph_make();
    const int error = s->is_broken ? CAPTURE_INVALIDATED : made == NULL ? OUT_OF_MEMORY : 0;
    if (made != NULL)
        made->work = s->captured;
    else
        list_clear(&s->captured);
    s->captured = (list){ 0 };
    s->is_capturing = s->is_broken = 0;
    *ended = made;
    return error;
}

int double_capture_status(void *on, int *status)
{
    const stream *s = on;
    if (!is_stream(s))
        return INVALID_HANDLE;
    for (const stream *other = streams; s == NULL && other != NULL; other = other->next)
        if (other->is_capturing && other->is_blocking)
            return CAPTURE_IMPLICIT;   /* an answer that breaks nothing */
    *status = s == NULL || !s->is_capturing ? 0 : s->is_broken ? 2 : 1;
    return 0;
}

int double_graph_copy(void **copy, const void *of)
{
    graph *made = graph_make();
    if (made == NULL || list_copy(&made->work, &((const graph *)of)->work) != 0) {
        double_graph_drop(made);
        return OUT_OF_MEMORY;
    }
    *copy = made;
    return 0;
}

int double_graph_run(void *of, void *on)
{
    const stream *s = on;
    if (!is_stream(s) || (s != NULL && s->is_capturing))
        return INVALID_HANDLE;
    return lost != 0 ? lost : list_copy(&queue, &((const graph *)of)->work);
}

void double_graph_drop(void *dropped)
{
    graph **at = &graphs;
    while (*at != NULL && *at != dropped)
        at = &(*at)->next;
    if (dropped == NULL || *at == NULL)
        return;
    graph *g = *at;
    *at = g->next;
    list_clear(&g->work);
    free(g);
}

/* ---- enqueueing ------------------------------------------------------------------------------------------------------------------------ */

/* Pageable memory, so it is read before this returns. A copy inside a capture would be made at each replay from memory that may be gone. */
int double_copy_in(void *to, const void *from, size_t bytes, void *on)
{
    if (!is_stream(on))
        return INVALID_HANDLE;
    const int error = lost != 0 ? lost : forbid_on(on);
    void *data = error == 0 ? copy_of(from, bytes) : NULL;
    if (data == NULL)
        return error != 0 ? error : OUT_OF_MEMORY;
    return enqueue(on, (work){ .to = to, .data = data, .bytes = bytes });
}

/* To pageable memory: done when this returns. */
int double_copy_out(void *to, const void *from, size_t bytes, void *on)
{
    if (!is_stream(on))
        return INVALID_HANDLE;
    int error = lost != 0 ? lost : forbid_on(on);
    if (error == 0)
        error = drain();
    if (error == 0 && (memory == NULL || simt_copy_out(memory, to, from, bytes) != 0))
        error = INVALID_VALUE;
    return error;
}

int double_copy(void *to, const void *from, size_t bytes, void *on)
{
    return is_stream(on) ? enqueue(on, (work){ .to = to, .from = from, .bytes = bytes }) : INVALID_HANDLE;
}

int double_fill(void *to, uint8_t byte, size_t bytes, void *on)
{
    return is_stream(on) ? enqueue(on, (work){ .to = to, .byte = byte, .bytes = bytes }) : INVALID_HANDLE;
}

int double_launch(const double_function *function, const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes, const void *params, void *on)
{
    const simt_kernel *kernel = function->kernel;
    if (!is_stream(on))
        return INVALID_HANDLE;
    if (grid[0] == 0 || grid[1] == 0 || grid[2] != 1 || grid[0] > INT32_MAX || grid[1] > 65535 || block[0] != kernel->threads || block[1] != 1 ||
        block[2] != 1 || shared_bytes > function->dynamic_limit_bytes || shared_bytes + function->static_bytes > double_this.shared_limit_bytes ||
        the_memory() == NULL)
        return INVALID_VALUE;
    void *data = copy_of(params, kernel->params_bytes);
    return data == NULL ? OUT_OF_MEMORY
                        : enqueue(on, (work){ .kernel = kernel, .grid_x = grid[0], .grid_y = grid[1], .shared_bytes = shared_bytes, .data = data });
}

int double_wait(void *on)
{
    if (!is_stream(on))
        return INVALID_HANDLE;
    const int error = lost != 0 ? lost : forbid_on(on);
    return error != 0 ? error : drain();
}

/* ---- events ----------------------------------------------------------------------------------------------------------------------------- */

static int is_event(const void *candidate)
{
    const event *e = events;
    while (e != NULL && e != candidate)
        e = e->next;
    return e != NULL;
}

int double_event_make(void **made)
{
    event *e = calloc(1, sizeof *e);
    *made = e;
    if (e == NULL)
        return OUT_OF_MEMORY;
    e->next = events;
    events = e;
    return 0;
}

void double_event_drop(void *dropped)
{
    for (event **at = &events; *at != NULL; at = &(*at)->next)
        if (*at == dropped) {
            *at = ((event *)dropped)->next;
            free(dropped);
            return;
        }
}

int double_event_record(void *noted, void *stream_of_it)
{
    if (!is_event(noted) || !is_stream(stream_of_it))
        return INVALID_HANDLE;
    ((event *)noted)->has_run = 0;
    return enqueue(stream_of_it, (work){ .event = noted });
}

int double_event_elapsed(float *milliseconds, const void *from, const void *to)
{
    if (!is_event(from) || !is_event(to))
        return INVALID_HANDLE;
    const event *a = from, *b = to;
    *milliseconds = (float)((b->seconds - a->seconds) * 1e3);
    return a->has_run && b->has_run ? 0 : NOT_READY;
}
