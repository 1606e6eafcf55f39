/* status.c: the texts of the outcomes, from the one map. */
#include "octavo/status.h"

const char *oct_status_name(oct_status status)
{
    switch (status) {
#define TEXT(id, value, name, message) case id: return name;
        OCT_STATUS_MAP(TEXT)
#undef TEXT
    }
    return "unknown";
}

const char *oct_status_message(oct_status status)
{
    switch (status) {
#define TEXT(id, value, name, message) case id: return message;
        OCT_STATUS_MAP(TEXT)
#undef TEXT
    }
    return "unknown";
}
