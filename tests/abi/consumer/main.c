/* The smallest user: the header and the library in use are of one version, and a context can be made. */
#include <octavo/octavo.h>
#include <stdio.h>

int main(void)
{
    oct_context *context = NULL;
    oct_error error = OCT_ERROR_INIT;
    if (oct_version_number() != OCT_VERSION_MAJOR * 10000 + OCT_VERSION_MINOR * 100 + OCT_VERSION_PATCH)
        return 1;
    if (oct_context_create(NULL, &context, &error) != OCT_OK) {
        fprintf(stderr, "%s: %s\n", error.where, error.text);
        return 1;
    }
    oct_context_destroy(context);
    printf("octavo %s\n", oct_version_string());
    return 0;
}
