/* code.h: owns the kernels' compiled forms that are part of the library: which there are and for what chips. cmake/OctavoDevice.cmake says
 * when they are compiled; a library built without them has an empty list.
 *
 * Threads: constants; any thread. */
#ifndef OCT_DEVICE_CODE_H
#define OCT_DEVICE_CODE_H

#include <stdint.h>

typedef enum oct__dev_code_kind {
    OCT__DEV_CODE_CUBIN,            /* for exactly this compute capability */
    OCT__DEV_CODE_PTX,              /* text; the driver compiles it for this capability and every later one */
    OCT__DEV_CODE_AMDGPU            /* for exactly this architecture */
} oct__dev_code_kind;

typedef struct oct__dev_code {
    const char *name;               /* "sm_90a cubin" */
    oct__dev_code_kind kind;
    const char *arch;               /* "gfx942", "sm_90a" */
    uint32_t capability;            /* NVIDIA: 10 * major + minor, else 0 */
    const void *bytes;              /* an ELF file; PTX with a zero byte at its end; or a fatbin that holds one of these packed: each says where it ends */
} oct__dev_code;

/* By index from 0; NULL past the last. The only symbol of code.c: a program linked with the static library that defines it brings a list of
 * its own. */
const oct__dev_code *oct__dev_code_nth(uint32_t index);

#endif
