/* machine_name.c: see machine_name.h. */
#include "apps/machine_name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "octavo/octavo.h"

void app_machine_name(char *name, size_t size)
{
    static const char key[] = "cpu ";
    oct_context *context = NULL;
    (void)snprintf(name, size, "unknown CPU");
    if (oct_context_create(NULL, &context, NULL) != OCT_OK) {
        return;
    }
    /* The library says its facts in words only. */
    const size_t length = oct_context_machine(context, OCT_TEXT_PLAIN, NULL, 0);
    char *const text = malloc(length + 1);
    if (text != NULL) {
        (void)oct_context_machine(context, OCT_TEXT_PLAIN, text, length + 1);
        for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
            line += *line == '\n';
            if (strncmp(line, key, sizeof(key) - 1) == 0) {
                const char *const from = line + strcspn(line, " ") + strspn(line + strcspn(line, " "), " ");
                (void)snprintf(name, size, "%.*s", (int)strcspn(from, "\n"), from);
                break;
            }
        }
    }
    free(text);
    oct_context_destroy(context);
}
