/* machine_name.c: see machine_name.h. */
#include "apps/machine_name.h"

#include <stdio.h>
#include <string.h>

void app_machine_name(char *name, size_t size)
{
    static const char key[] = "model name";
    char line[512];
    (void)snprintf(name, size, "unknown CPU");
    FILE *const file = fopen("/proc/cpuinfo", "r");
    if (file == NULL) {
        return;
    }
    while (fgets(line, sizeof(line), file) != NULL) {
        const char *const colon = strchr(line, ':');
        if (strncmp(line, key, sizeof(key) - 1) == 0 && colon != NULL) {
            const char *const from = colon + 1 + strspn(colon + 1, " \t");
            (void)snprintf(name, size, "%.*s", (int)strcspn(from, "\n"), from);
            break;
        }
    }
    fclose(file);
}
