/* chronicle.h: owns a text that nobody has read: the ledger of a valley that never was, made from a seed. Models can't know it by heart,
 * and its running totals, names and inventories make them look back, which is what a cache is for. Pure; any thread. */
#ifndef APP_CHRONICLE_H
#define APP_CHRONICLE_H

#include <stdint.h>

#include "apps/text.h"

/* Seeds of the text that formats are judged on and of the one that scales are calibrated on. */
enum { APP_CHRONICLE_JUDGED = 1, APP_CHRONICLE_CALIBRATION = 2 };

/* Adds whole paragraphs until at least min_bytes are added. The same on every machine for a seed: integers only. */
void app_chronicle_add(app_text *text, uint64_t seed, size_t min_bytes);

#endif
