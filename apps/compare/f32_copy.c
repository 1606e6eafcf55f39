/* f32_copy.c: see f32_copy.h. */
#define _XOPEN_SOURCE 700   /* realpath */
#include "apps/compare/f32_copy.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "apps/sum.h"
#include "engine/reference.h"
#include "host/error.h"

static const char where[] = "octavo compare";

oct_status compare_f32_copy(const char *model, const char *folder, unsigned n_threads, char *path, size_t size, oct_error *error)
{
    struct stat about;
    char *const real = realpath(model, NULL);
    if (real == NULL || stat(real, &about) != 0) {
        const int reason = errno;
        free(real);
        return oct__error_set(error, OCT_IO_ERROR, where, "%s: %s", model, strerror(reason));
    }
    const int64_t facts[] = { (int64_t)about.st_size, (int64_t)about.st_mtim.tv_sec, (int64_t)about.st_mtim.tv_nsec };
    const uint64_t sum = app_sum(app_sum(APP_SUM_INIT, real, strlen(real)), facts, sizeof(facts));
    const char *const slash = strrchr(real, '/'), *const base = slash != NULL ? slash + 1 : real;
    const size_t n = strlen(base), stem = n > 5 && strcmp(base + n - 5, ".gguf") == 0 ? n - 5 : n;
    const int own = slash != NULL ? (int)(slash - real) : 0;
    const int length = snprintf(path, size, "%.*s/%.*s.f32-%08x.gguf", folder != NULL ? (int)strlen(folder) : own, folder != NULL ? folder : real, (int)stem,
                                base, (unsigned)(sum ^ sum >> 32));
    free(real);
    if (length < 0 || (size_t)length >= size) {
        return oct__error_set(error, OCT_IO_ERROR, where, "%s: the path of its F32 copy is too long", model);
    }
    /* Copies appear whole, so one that is there is good. */
    return stat(path, &about) == 0 ? OCT_OK : octe_f32_copy(model, path, n_threads, error);
}
