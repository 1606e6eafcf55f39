/* device_run.h: owns the running of the parity tests' problems on the host executor: copies a problem's memory to the device, packs and launches
 * what a driver would, and copies the results back. Threads: one. */
#ifndef DEVICE_RUN_H
#define DEVICE_RUN_H

#include "device/executor.h"
#include "device/launch_write_sm90a.h"
#include "parity/problem.h"
#include "parity/write_case.h"

typedef struct device_rig {
    simt_device *device;
    oct__dev_chip chip;
    const char *written_by;         /* the kernel of the last device_run_write */
    const char *attended_by[OCT__DEV_OPS], *finished_by[OCT__DEV_OPS];   /* and those of the last device_run_attn */
} device_rig;

/* A chip of warps of 32 (with 227 KiB of shared memory) or of 64 (with 64 KiB). 0 on success. */
int device_rig_make(device_rig *rig, uint32_t warp);
void device_rig_drop(device_rig *rig);

/* Packs and launches by name. */
simt_fault device_launch(device_rig *rig, const oct__dev_launch *launch, const void *params, simt_report *report);

/* Plans and runs the problem's batch; out and lse are first blanked and afterwards hold what the device's memory held. Writes a fault's report or
 * what else went wrong into text. 0 on success. owner: the problem that p was selected from, whose pages it reads; NULL: p's own. plan: what
 * plan_step left, or NULL. */
int device_run_attn(device_rig *rig, problem *p, const problem *owner, oct__dev_plan *plan, char *text, size_t size);

/* Whether a chip with has_sm90a writes it by kv_write_sm90a. */
int device_write_fits_sm90a(const oct_kv_spec *spec);

/* Runs the case's write; pools and counts then hold what the device's memory held. */
int device_run_write(device_rig *rig, write_case *c, char *text, size_t size);

/* Merges: args' pointers are host memory of these many elements. */
typedef struct device_merge { oct_attn_merge_args args; size_t out_elements, lse_elements, merged_elements, lse_merged_elements; } device_merge;
int device_run_merge(device_rig *rig, const device_merge *m, char *text, size_t size);

#endif
