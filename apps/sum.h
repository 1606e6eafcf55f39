/* sum.h: owns a short number for bytes, for names and against damage; nothing that an adversary must not forge. Pure; any thread. */
#ifndef APP_SUM_H
#define APP_SUM_H

#include <stddef.h>
#include <stdint.h>

#define APP_SUM_INIT UINT64_C(0xcbf29ce484222325)

/* FNV-1a of n more bytes; begin with APP_SUM_INIT. */
static inline uint64_t app_sum(uint64_t sum, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        sum = (sum ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    }
    return sum;
}

#endif
