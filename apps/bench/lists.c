/* lists.c: see lists.h. */
#include "apps/bench/lists.h"

#include <stdio.h>
#include <string.h>

int bench_read_counts(const app_command *command, const char *flag, const char *text, uint32_t min, uint32_t max, bench_counts *list)
{
    bool fine = app_arguments_counts(text, max, list->item, BENCH_LIST_MAX, &list->n);
    for (uint32_t i = 0; fine && i < list->n; i++) {
        fine = list->item[i] >= min;
    }
    return fine ? APP_OK : app_arguments_complain(command, "%s wants at most %d whole numbers from %u to %u such as 1,16, not '%.60s'", flag, BENCH_LIST_MAX, min, max, text);
}

int bench_read_pairs(const app_command *command, const char *flag, const char *text, uint32_t min, uint32_t max, bench_pairs *list)
{
    const char *at = text;
    list->n = 0;
    for (;;) {
        char item[32];
        uint32_t both[2], n;
        const size_t length = strcspn(at, ",");
        if (list->n == BENCH_LIST_MAX || length >= sizeof(item)) {
            break;
        }
        memcpy(item, at, length);
        item[length] = '\0';
        char *const slash = strchr(item, '/');
        if (slash != NULL) {
            *slash = ',';
        }
        if (!app_arguments_counts(item, max, both, 2, &n) || (slash != NULL && n != 2) || both[0] < min || both[n - 1] < min) {
            break;
        }
        list->first[list->n] = both[0];
        list->second[list->n++] = both[n - 1];
        if (at[length] == '\0') {
            return APP_OK;
        }
        at += length + 1;
    }
    return app_arguments_complain(command, "%s wants at most %d numbers or pairs from %u to %u such as 32/8,8/1, not '%.60s'", flag, BENCH_LIST_MAX, min, max, text);
}

int bench_read_formats(const app_command *command, const char *flag, const char *text, bench_formats *list)
{
    list->n = 0;
    for (const char *at = text;; at++) {
        const size_t length = strcspn(at, ",");
        oct_error error = OCT_ERROR_INIT;
        if (list->n == BENCH_LIST_MAX || length == 0 || length >= sizeof(list->name[0])) {
            return app_arguments_complain(command, "%s wants at most %d formats such as e4m3,i8+rot, not '%.60s'", flag, BENCH_LIST_MAX, text);
        }
        char *const name = list->name[list->n];
        memcpy(name, at, length);
        name[length] = '\0';
        if (octe_kv_format_from_name(name, &list->item[list->n], &error) != OCT_OK) {
            return app_arguments_complain(command, "%s: %s", flag, error.text);
        }
        list->n++;
        at += length;
        if (*at == '\0') {
            return APP_OK;
        }
    }
}
