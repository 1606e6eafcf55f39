/* code.c: see code.h. The object files come in by .incbin: every compiler for Linux has it, and a megabyte as a C array would cost a minute.
 * OCT__CODE_<arch> is the path of each one that there is. */
#include "device/code.h"

#include <stddef.h>

#define EMBED(arch, path)                                                                                              \
    __asm__(".pushsection .rodata\n"                                                                                   \
            ".balign 4096\n"                                                                                           \
            ".globl oct__code_" #arch "\n.hidden oct__code_" #arch "\n"                                                \
            "oct__code_" #arch ":\n.incbin \"" path "\"\n"                                                             \
            ".byte 0\n"                                                                                                \
            ".popsection\n");                                                                                          \
    extern const unsigned char oct__code_##arch[] __attribute__((visibility("hidden")));

#ifdef OCT__CODE_SM_90A
EMBED(sm_90a, OCT__CODE_SM_90A)
#endif
#ifdef OCT__CODE_SM_80
EMBED(sm_80, OCT__CODE_SM_80)
#endif
#ifdef OCT__CODE_GFX942
EMBED(gfx942, OCT__CODE_GFX942)
#endif
#ifdef OCT__CODE_GFX950
EMBED(gfx950, OCT__CODE_GFX950)
#endif

const oct__dev_code *oct__dev_code_nth(uint32_t index)
{
#define ROW(name, kind, arch, capability) { name, kind, #arch, capability, oct__code_##arch }
    static const oct__dev_code codes[] = {
#ifdef OCT__CODE_SM_90A
        ROW("sm_90a cubin", OCT__DEV_CODE_CUBIN, sm_90a, 90),
#endif
#ifdef OCT__CODE_SM_80
        ROW("sm_80 ptx", OCT__DEV_CODE_PTX, sm_80, 80),
#endif
#ifdef OCT__CODE_GFX942
        ROW("gfx942", OCT__DEV_CODE_AMDGPU, gfx942, 0),
#endif
#ifdef OCT__CODE_GFX950
        ROW("gfx950", OCT__DEV_CODE_AMDGPU, gfx950, 0),
#endif
        { 0 },
    };
    const oct__dev_code *code = codes;
    while (index > 0 && code->name != NULL) {
        code++;
        index--;
    }
    return code->name != NULL ? code : NULL;
}
