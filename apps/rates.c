/* rates.c: see rates.h. */
#include "apps/rates.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apps/output.h"
#include "engine/rates_file.h"

bool app_rates_path(char *path, size_t size)
{
    const char *const cache = getenv("XDG_CACHE_HOME"), *const home = getenv("HOME");
    int length;
    /* The XDG rule: a relative path counts as unset. */
    if (cache != NULL && cache[0] == '/') {
        length = snprintf(path, size, "%s/octavo/rates.json", cache);
    } else if (home != NULL && home[0] == '/') {
        length = snprintf(path, size, "%s/.cache/octavo/rates.json", home);
    } else {
        return false;
    }
    return length > 0 && (size_t)length < size;
}

bool app_rates_make_folder(const char *path)
{
    char folder[4096];
    const size_t n = strlen(path);
    if (n >= sizeof(folder)) {
        return false;
    }
    for (size_t i = 1; i < n; i++) {
        if (path[i] == '/') {
            memcpy(folder, path, i);
            folder[i] = '\0';
            if (mkdir(folder, 0700) != 0 && errno != EEXIST) {
                return false;
            }
        }
    }
    return true;
}

/* Whether a context on this machine takes them. */
static oct_status try_rates(const oct_rates *rates, oct_error *error)
{
    const oct_context_options options = { .struct_size = sizeof(options), .rates = rates };
    oct_context *context;
    const oct_status status = oct_context_create(&options, &context, error);
    if (status == OCT_OK) {
        oct_context_destroy(context);
    }
    return status;
}

int app_rates_load(const char *given, app_rates *rates)
{
    char path[4096];
    oct_error error = OCT_ERROR_INIT;
    *rates = (app_rates){ .pointer = NULL };
    if (given != NULL && strcmp(given, "none") == 0) {
        return APP_OK;
    }
    if (given == NULL && (!app_rates_path(path, sizeof(path)) || access(path, F_OK) != 0)) {
        return APP_OK;
    }
    const char *const file = given != NULL ? given : path;
    oct_status status = octe_rates_read(file, &rates->rates, &error);
    if (status == OCT_OK) {
        status = try_rates(&rates->rates, &error);
        if (status != OCT_OK && given != NULL) {
            return app_output_fail("%s: %s", file, error.text);
        }
    }
    if (status == OCT_OK) {
        rates->pointer = &rates->rates;
        return APP_OK;
    }
    if (given != NULL) {
        return app_output_error(&error);
    }
    (void)app_output_fail("the rates in %s are not used: %s ('octavo tune' makes them anew)", file, error.text);
    return APP_OK;
}
