/* rates.h: owns where the program keeps this machine's measured rates between runs, and which it uses. Single-threaded. */
#ifndef APP_RATES_H
#define APP_RATES_H

#include "apps/command.h"
#include "octavo/octavo.h"

/* The row of a command's table for a field `const char *rates`. */
#define APP_RATES_FLAG(offset)                                                                                                                  \
    { "--rates", "FILE", APP_TEXT, (offset), 0, 0, false,                                                                                       \
      "this machine's rates, as octavo tune writes them; none: the CPU family's (what octavo tune wrote last for this user, if it is of this CPU)" }

/* What a command computes with. `pointer` is NULL for defaults, else it points to the rest. */
typedef struct app_rates {
    const oct_rates *pointer;
    oct_rates rates;
} app_rates;

/* given: the flag's value or NULL. Returns 0, or the exit code after a message: a file that was named must be there and fit. One that was not
 * named is silently absent; when it is broken or of another CPU, a line on standard error says that it isn't used. */
int app_rates_load(const char *given, app_rates *rates);

/* Where octavo tune writes when nobody says: $XDG_CACHE_HOME/octavo/rates.json, or below $HOME/.cache. False: neither is set, or too long. */
bool app_rates_path(char *path, size_t size);

/* The folders above that file. False: they cannot be made. */
bool app_rates_make_folder(const char *path);

#endif
