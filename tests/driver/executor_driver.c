/* executor_driver.c: see executor_driver.h. */
#include "driver/executor_driver.h"

#include <stdio.h>
#include <string.h>

#include "device/write_sm90a.h"

struct simt_device { oct__driver *driver; void *stream; };

static simt_device the_device;

device_rig driver_rig(oct__driver *driver, void *stream)
{
    the_device = (simt_device){ driver, stream };
    return (device_rig){ .device = &the_device, .chip = driver->chip };
}

simt_device *simt_open(size_t memory_bytes, uint32_t shared_limit_bytes)
{
    (void)memory_bytes;
    (void)shared_limit_bytes;
    return the_device.driver != NULL ? &the_device : NULL;
}

void simt_close(simt_device *device) { (void)device; }
const char *simt_fault_name(simt_fault fault) { return fault == SIMT_OK ? "ok" : "the driver's status"; }
uint32_t simt_units(const simt_device *device) { return device->driver->chip.n_units; }

void *simt_alloc(simt_device *device, size_t size_bytes, const char *name)
{
    void *at = NULL;
    (void)name;
    return device->driver->table->alloc(device->driver, size_bytes + (size_bytes == 0), &at) == OCT_OK ? at : NULL;
}

void simt_free(simt_device *device, void *at) { device->driver->table->free(device->driver, at); }

static int wait(simt_device *device, oct_status status)
{
    return status == OCT_OK && device->driver->table->wait(device->driver, device->stream) == OCT_OK ? 0 : -1;
}

int simt_copy_in(simt_device *device, void *to, const void *from, size_t size_bytes)
{
    return wait(device, device->driver->table->copy_in(device->driver, to, from, size_bytes, device->stream));
}

int simt_copy_out(simt_device *device, void *to, const void *from, size_t size_bytes)
{
    return wait(device, device->driver->table->copy_out(device->driver, to, from, size_bytes, device->stream));
}

int simt_fill(simt_device *device, void *to, int byte, size_t size_bytes)
{
    return wait(device, device->driver->table->fill(device->driver, to, (uint8_t)byte, size_bytes, device->stream));
}

int simt_protect(simt_device *device, void *at, int on)
{
    (void)device;
    (void)at;
    (void)on;
    return 0;
}

/* NVIDIA's GPUs may have Hopper's kernels besides; the driver says when they have not. */
const simt_kernel *simt_nth(uint32_t warp, uint32_t index)
{
    static const simt_kernel kernels[] = {
#define X(name, threads, type) { #name, NULL, 32, threads, sizeof(type) },
#include "device/kernels.def"
#include "cuda/kernels_sm90a.def"
#undef X
    };
    (void)warp;
    return index < sizeof kernels / sizeof kernels[0] ? &kernels[index] : NULL;
}

simt_fp8_use simt_fp8(uint32_t warp, uint32_t dtype)
{
    (void)warp;
    (void)dtype;
    return SIMT_FP8_NONE;
}

const simt_kernel *simt_find(uint32_t warp, const char *name)
{
    const simt_kernel *kernel;
    for (uint32_t i = 0; (kernel = simt_nth(warp, i)) != NULL; i++)
        if (strcmp(kernel->name, name) == 0)
            return kernel;
    return NULL;
}

simt_fault simt_launch(simt_device *device, const simt_kernel *kernel, uint32_t grid_x, uint32_t grid_y, uint32_t dynamic_shared_bytes,
                       const void *params, simt_report *report)
{
    oct__driver *d = device->driver;
    const oct__dev_launch launch = { kernel->name, grid_x, grid_y, kernel->threads, dynamic_shared_bytes, 0 };
    memset(report, 0, sizeof *report);
    oct_status status = d->table->launch(d, &launch, params, kernel->params_bytes, device->stream);
    if (status == OCT_OK)
        status = d->table->wait(d, device->stream);
    if (status != OCT_OK) {
        report->fault = SIMT_BAD_LAUNCH;
        snprintf(report->text, sizeof report->text, "%s, %u x %u blocks: %s (%s)", kernel->name, grid_x, grid_y, oct_status_name(status), d->table->fault(d));
    }
    return report->fault;
}
