/* executor_driver.h: owns the doors of device/executor.h with a driver of src/cuda or src/hip behind them, so that the problems and judges of
 * tests/device run over whatever library that driver has opened: a vendor's own or a double.
 *
 * Threads: one. */
#ifndef DRIVER_EXECUTOR_DRIVER_H
#define DRIVER_EXECUTOR_DRIVER_H

#include "device/device_run.h"
#include "device/driver.h"

/* From here on simt_open gives the driver's device; it must outlive what is opened. stream: where all work goes. */
device_rig driver_rig(oct__driver *driver, void *stream);

#endif
