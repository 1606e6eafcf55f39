/* library.c: see library.h. */
#include "host/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

void *oct__library_open(const char *const *names, char *why, size_t size)
{
    for (size_t i = 0; names[i] != NULL; i++) {
        /* All names are bound now, so that a library that lacks something fails here and not in a later call. */
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (library != NULL) {
            return library;
        }
        const char *said = dlerror();
        if (i == 0 && size > 0 && why != NULL) {
            snprintf(why, size, "%s", said != NULL ? said : names[0]);
        }
    }
    return NULL;
}

void oct__library_close(void *library)
{
    if (library != NULL) {
        dlclose(library);
    }
}

oct__symbol oct__library_find(void *library, const char *name)
{
    /* ISO C has no conversion between object and function pointers; POSIX promises that they look alike. */
    void *found = dlsym(library, name);
    oct__symbol symbol;
    memcpy(&symbol, &found, sizeof symbol);
    return symbol;
}
