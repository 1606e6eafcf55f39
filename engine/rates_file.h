/* The JSON file that carries a machine's measured rates (oct_rates) from `octavo tune` to later runs. Plain data, any thread. */
#ifndef OCTE_RATES_FILE_H
#define OCTE_RATES_FILE_H

#include "octavo/rates.h"

enum { OCTE_RATES_MAX_FILE_BYTES = 64 << 10 };

/* Strict: an object {"octavo_rates": 1, "cpu": text, "source": text, "threads": n, "clock_hz": x, name: [x, x], ...} with every pair of oct_rates under
 * its own name and no other key. Whether the numbers are rates is the context's to say. Errors: IO_ERROR, BAD_DATA (names file and key). */
oct_status octe_rates_read(const char *path, oct_rates *rates, oct_error *error);

/* The same from memory; name is for messages. */
oct_status octe_rates_parse(const char *json, size_t size, const char *name, oct_rates *rates, oct_error *error);

/* Whole or not at all. IO_ERROR, OUT_OF_MEMORY. */
oct_status octe_rates_write(const oct_rates *rates, const char *path, oct_error *error);

#endif
