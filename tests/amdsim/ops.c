/* ops.c: owns the table of all instructions, sorted by name at its first use. Threads: one. */
#include <stdlib.h>
#include <string.h>

#include "amdsim/scalar.h"

#define X(name, signature, ...) void lanes32_##name(lanes32 *io);
#include "amdsim/lanes32.def"
#undef X
#define X(name, signature, ...) void lanes64_##name(lanes64 *io);
#include "amdsim/lanes64.def"
#undef X
#define X(name, signature, ...) void scalar_##name(scalar_io *io);
#include "amdsim/scalar.def"
#undef X

const op op_table[] = {
#define X(name, signature, ...) { #name, signature, run_lanes32, lanes32_##name, NULL, NULL, 0, 0 },
#include "amdsim/lanes32.def"
#undef X
#define X(name, signature, ...) { #name, signature, run_lanes64, NULL, lanes64_##name, NULL, 0, 0 },
#include "amdsim/lanes64.def"
#undef X
#define X(name, signature, ...) { #name, signature, run_scalar, NULL, NULL, scalar_##name, 0, 0 },
#include "amdsim/scalar.def"
#undef X
#define X(name, signature, run, first, second) { #name, signature, run, NULL, NULL, NULL, first, second },
#include "amdsim/other.def"
#undef X
};
const size_t op_count = sizeof op_table / sizeof op_table[0];

static const op *sorted[sizeof op_table / sizeof op_table[0]];

static int by_name(const void *a, const void *b) { return strcmp((*(const op *const *)a)->name, (*(const op *const *)b)->name); }

const op *op_find(const char *name, size_t length)
{
    char key[48];
    const op wanted = { .name = key };
    const op *at = &wanted;
    if (sorted[0] == NULL) {
        for (size_t i = 0; i < op_count; i++)
            sorted[i] = &op_table[i];
        qsort(sorted, op_count, sizeof sorted[0], by_name);
    }
    if (length >= sizeof key)
        return NULL;
    memcpy(key, name, length);
    key[length] = 0;
    const op *const *found = bsearch(&at, sorted, op_count, sizeof sorted[0], by_name);
    return found == NULL ? NULL : *found;
}
