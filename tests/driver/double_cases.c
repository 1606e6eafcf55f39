/* double_cases.c: see driver_cases.h: what only a double can be told to do. Each test begins with a double as new and leaves one. */
#include <stdlib.h>
#include <string.h>

#include "driver/driver_cases.h"

#include "driver/step.h"

static void assert_nothing_is_live(void)
{
    const double_live live = driver_cases_double->live();
    assert_int_equal(live.allocations, 0);
    assert_int_equal(live.modules, 0);
    assert_int_equal(live.contexts, 0);
    assert_int_equal(live.current, 0);
}

/* Opening fails with the status and a text that holds `part`, and leaves nothing behind; with no oct_error too. */
static void assert_does_not_open(const oct__driver_options *options, oct_status status, const char *part)
{
    oct_error error = OCT_ERROR_INIT;
    oct__driver *driver = (oct__driver *)&error;
    assert_int_equal(driver_cases_vendor->open(options, &driver, &error), status);
    assert_null(driver);
    assert_int_equal(error.status, status);
    if (strstr(error.text, part) == NULL)
        print_error("'%s' is not in '%s'\n", part, error.text);
    assert_non_null(strstr(error.text, part));
    assert_int_equal(driver_cases_vendor->open(options, &driver, NULL), status);
}

void driver_gives_everything_back(void **state)
{
    (void)state;
    const driver_double *control = driver_cases_double;
    control->reset(NULL);
    oct__driver *d = driver_cases_open();
    void *memory = NULL;
    double_live live = control->live();
    assert_int_equal(live.modules, 1);
    assert_int_equal(live.current, 0);
    assert_int_equal(d->table->alloc(d, 10, &memory), OCT_OK);
    assert_int_equal(control->live().allocations, 1);
    d->table->free(d, memory);
    d->table->close(d);
    assert_nothing_is_live();
}

void driver_stays_lost(void **state)
{
    (void)state;
    const driver_double *control = driver_cases_double;
    problem p;
    step s;
    const problem_shape shape = problem_plain(3);
    control->reset(NULL);
    assert_int_equal(problem_make(&p, &shape), 0);
    assert_int_equal(problem_expect(&p), 0);
    oct__driver *d = driver_cases_open();
    step_make(&s, d, NULL, &p);
    assert_int_equal(step_enqueue(&s), OCT_OK);
    control->lose();
    assert_int_equal(step_fetch(&s), OCT_DEVICE_FAULT);
    assert_int_equal(step_enqueue(&s), OCT_DEVICE_FAULT);
    const unsigned calls = control->calls(NULL);
    assert_int_equal(step_enqueue(&s), OCT_DEVICE_FAULT);
    assert_int_equal(control->calls(NULL), calls);   /* the vendor is not asked again */
    assert_non_null(strstr(d->table->fault(d), driver_cases_vendor->error_prefix));
    step_drop(&s);
    d->table->close(d);
    problem_drop(&p);
    const double_live live = control->live();
    assert_int_equal(live.modules + live.contexts + live.current, 0);
    control->reset(NULL);
    d = driver_cases_open();
    d->table->close(d);
}

void driver_says_what_is_missing(void **state)
{
    (void)state;
    const driver_vendor *v = driver_cases_vendor;
    const driver_double *control = driver_cases_double;
    oct__driver_options options = { .library = "/nowhere/libnone.so" };
    double_chip chip;
    control->reset(NULL);
    assert_does_not_open(&options, OCT_UNSUPPORTED, v->no_library);
    assert_does_not_open(&options, OCT_UNSUPPORTED, "/nowhere/libnone.so");
    options.library = driver_cases_lacking;
    assert_does_not_open(&options, OCT_UNSUPPORTED, v->lacks);
    options.library = driver_cases_path;
    options.ordinal = 7;
    assert_does_not_open(&options, OCT_UNSUPPORTED, "device 7: there are");
    options.ordinal = 0;

    chip = control->usual;
    chip.n_devices = 0;
    control->reset(&chip);
    assert_does_not_open(&options, OCT_UNSUPPORTED, v->no_device);
    assert_nothing_is_live();

    chip = control->usual;
    v->make_old(&chip);
    control->reset(&chip);
    assert_does_not_open(&options, OCT_UNSUPPORTED, v->no_code);
    assert_nothing_is_live();

    control->reset(NULL);
    for (int i = 0; i < 2; i++) {   /* the helper opens twice */
        control->plan_failure(v->init_entry, 1, v->mismatch);
        oct_error error = OCT_ERROR_INIT;
        oct__driver *driver = NULL;
        assert_int_equal(v->open(&options, &driver, &error), OCT_UNSUPPORTED);
        assert_non_null(strstr(error.text, v->error_prefix));
        control->plan_failure(v->init_entry, 1, 999);
        assert_int_equal(v->open(&options, &driver, &error), OCT_DEVICE_FAULT);
    }
    assert_nothing_is_live();
}

/* Every call that opening makes fails in turn, for want of memory and for a device that is gone. */
void driver_survives_each_failure_at_open(void **state)
{
    (void)state;
    static const struct { int error; oct_status status; } kinds[] = { { 2, OCT_OUT_OF_MEMORY }, { 719, OCT_DEVICE_FAULT } };
    const driver_double *control = driver_cases_double;
    const oct__driver_options options = { .library = driver_cases_path };
    control->reset(NULL);
    oct__driver *d = driver_cases_open();
    const unsigned n = control->calls(NULL);
    d->table->close(d);
    assert_true(n > 20);
    for (size_t kind = 0; kind < sizeof kinds / sizeof kinds[0]; kind++) {
        unsigned n_failed = 0, n_as_meant = 0;
        for (unsigned i = 1; i <= n; i++) {
            control->reset(NULL);
            control->plan_failure(NULL, i, kinds[kind].error);
            oct_error error = OCT_ERROR_INIT;
            const oct_status status = driver_cases_vendor->open(&options, &d, &error);
            n_failed += status != OCT_OK;
            n_as_meant += status == kinds[kind].status;
            if (status == OCT_OK) {   /* a figure that is not told, as the memory's clock */
                d->table->close(d);
            } else {
                assert_null(d);
                assert_true(error.text[0] != '\0');
                assert_int_equal(error.status, status);
            }
            const double_live live = control->live();
            assert_int_equal(live.allocations + live.modules + live.contexts, 0);
        }
        assert_true(n_failed + 3 >= n);
        assert_true(n_as_meant >= (kinds[kind].error == 2 ? n / 2 : 3));
    }
    control->reset(NULL);
}

void driver_survives_failing_allocations(void **state)
{
    (void)state;
    const driver_double *control = driver_cases_double;
    double_chip chip = control->usual;
    chip.memory_bytes = 1 << 20;
    control->reset(&chip);
    oct__driver *d = driver_cases_open();
    const oct__driver_table *t = d->table;
    void *all[64];
    int n = 0;
    while (n < 64 && t->alloc(d, 100 * 1024, &all[n]) == OCT_OK)
        n++;
    assert_int_equal(n, 10);
    assert_int_equal(t->alloc(d, 100 * 1024, &all[n]), OCT_OUT_OF_MEMORY);
    while (n > 0)
        t->free(d, all[--n]);
    for (unsigned nth = 1; nth <= 3; nth++) {
        control->plan_failure(driver_cases_vendor->alloc_entry, nth, 2);
        for (unsigned i = 1; i <= 4; i++) {
            const oct_status status = t->alloc(d, 100, &all[i]);
            assert_int_equal(status, i == nth ? OCT_OUT_OF_MEMORY : OCT_OK);
        }
        for (unsigned i = 1; i <= 4; i++)
            t->free(d, all[i]);
    }
    t->close(d);
    assert_nothing_is_live();
    control->reset(NULL);
}

/* ---- the caller's allocator --------------------------------------------------------------------------------------------------------------- */

typedef struct hooks { int n_live, is_empty; size_t bytes; } hooks;

static void *hook_alloc(void *user, size_t size_bytes, size_t align)
{
    hooks *h = user;
    void *memory = h->is_empty || align > 64 ? NULL : aligned_alloc(64, (size_bytes + 63) / 64 * 64);
    h->n_live += memory != NULL;
    h->bytes += memory != NULL ? size_bytes : 0;
    return memory;
}

static void hook_free(void *user, void *memory, size_t size_bytes)
{
    hooks *h = user;
    h->n_live--;
    h->bytes -= size_bytes;
    free(memory);
}

void driver_uses_the_callers_allocator(void **state)
{
    (void)state;
    hooks h = { 0, 1, 0 };
    const oct__allocator allocator = { hook_alloc, hook_free, &h };
    const oct__driver_options options = { .allocator = &allocator, .library = driver_cases_path };
    driver_cases_double->reset(NULL);
    assert_does_not_open(&options, OCT_OUT_OF_MEMORY, "no memory");
    h.is_empty = 0;
    oct__driver *d = NULL;
    assert_int_equal(driver_cases_vendor->open(&options, &d, NULL), OCT_OK);
    assert_true(h.n_live > 0);
    d->table->close(d);
    assert_int_equal(h.n_live, 0);
    assert_int_equal(h.bytes, 0);
}

/* ---- other chips --------------------------------------------------------------------------------------------------------------------------- */

void driver_adapts_to_small_chips(void **state)
{
    double_chip chip = driver_cases_double->usual;
    driver_cases_vendor->make_small(&chip);
    chip.n_units = 1;
    chip.bus_bits = chip.memory_clock_khz = 0;
    driver_cases_double->reset(&chip);
    oct__driver *d = driver_cases_open();
    assert_int_equal(d->chip.n_units, 1);
    assert_int_equal(d->chip.shared_limit_bytes, chip.shared_limit_bytes);
    assert_true(d->read_bytes_per_s < 1.0);   /* not told */
    d->table->close(d);
    driver_runs_attention(state);
    driver_cases_double->reset(NULL);
}

void driver_refuses_what_is_no_stream(void **state)
{
    (void)state;
    driver_cases_double->reset(NULL);
    oct__driver *d = driver_cases_open();
    const oct__driver_table *t = d->table;
    char byte = 0;
    void *memory = NULL;
    assert_int_equal(t->alloc(d, 10, &memory), OCT_OK);
    assert_int_equal(t->fill(d, memory, 1, 10, &byte), OCT_INVALID_ARGUMENT);
    assert_int_equal(t->copy_in(d, memory, &byte, 1, &byte), OCT_INVALID_ARGUMENT);
    assert_int_equal(t->copy_out(d, &byte, memory, 1, &byte), OCT_INVALID_ARGUMENT);
    assert_int_equal(t->copy(d, memory, memory, 1, &byte), OCT_INVALID_ARGUMENT);
    assert_int_equal(t->wait(d, &byte), OCT_INVALID_ARGUMENT);
    assert_false(t->is_capturing(d, &byte));
    assert_int_equal(t->fill(d, memory, 1, 10, NULL), OCT_OK);
    assert_int_equal(t->wait(d, NULL), OCT_OK);
    t->free(d, memory);
    t->close(d);
}
