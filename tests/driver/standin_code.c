/* standin_code.c: a list of code for a library that was built without: files with the right heads and the kernels' names, which is all that a double
 * looks at, since it runs the kernels on the host. A program that defines this symbol does not take the library's. With STANDIN_EMPTY it is the
 * list of a library that was built without the GPUs' compilers.
 *
 * Threads: constants; any thread. */
#include <stddef.h>

#include "device/code.h"

#ifndef STANDIN_EMPTY
#define X(name, threads, type) "\0oct__dev_" #name
enum {
    NAMES_BYTES = sizeof(
#include "device/kernels.def"
#include "cuda/kernels_sm90a.def"
    )
};

/* Elf64_Ehdr, then what would be the file. */
typedef struct elf {
    unsigned char ident[16];
    uint16_t type, machine;
    uint32_t version;
    uint64_t entry, phoff, shoff;
    uint32_t flags;
    uint16_t ehsize, phentsize, phnum, shentsize, shnum, shstrndx;
    char names[NAMES_BYTES];
} elf;

#define FILE_OF(os, abi, of_machine, of_flags)                                                                                              \
    .ident = { 0x7F, 'E', 'L', 'F', 2, 1, 1, os, abi }, .type = 2, .machine = of_machine, .version = 1, .shoff = sizeof(elf), .flags = of_flags, \
    .ehsize = 64, .shentsize = 64

static const elf sm_90a = { FILE_OF(0x41, 8, 190, 90 << 8), .names =
#include "device/kernels.def"
#include "cuda/kernels_sm90a.def"
};
static const elf gfx942 = { FILE_OF(0x40, 3, 224, 0x54C), .names =
#include "device/kernels.def"
};
static const elf gfx950 = { FILE_OF(0x40, 3, 224, 0x54F), .names =
#include "device/kernels.def"
};
#undef X

#define X(name, threads, type) ".entry oct__dev_" #name "(\n"
static const char sm_80[] = ".version 9.0\n.target sm_80\n"
#include "device/kernels.def"
    ;
#undef X
#endif

const oct__dev_code *oct__dev_code_nth(uint32_t index)
{
#ifdef STANDIN_EMPTY
    (void)index;
    return NULL;
#else
    static const oct__dev_code codes[] = {
        { "sm_90a cubin", OCT__DEV_CODE_CUBIN, "sm_90a", 90, &sm_90a },
        { "sm_80 ptx", OCT__DEV_CODE_PTX, "sm_80", 80, sm_80 },
        { "gfx942", OCT__DEV_CODE_AMDGPU, "gfx942", 0, &gfx942 },
        { "gfx950", OCT__DEV_CODE_AMDGPU, "gfx950", 0, &gfx950 },
    };
    return index < sizeof codes / sizeof codes[0] ? &codes[index] : NULL;
#endif
}
