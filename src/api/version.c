/* version.c: the version of the library that is loaded. */
#include "octavo/version.h"

uint32_t oct_version_number(void)
{
    return OCT_VERSION_MAJOR * 10000 + OCT_VERSION_MINOR * 100 + OCT_VERSION_PATCH;
}

const char *oct_version_string(void)
{
    return OCT_VERSION_STRING;
}
