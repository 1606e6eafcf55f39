/* tiles.h: owns the question to the system whether this process may use AMX's tile registers. Any thread, any number of times. */
#ifndef OCT_HOST_TILES_H
#define OCT_HOST_TILES_H

#include <stdbool.h>

/* Asks for the tiles' state; false where the system has no such state or refuses it. A yes holds for all threads until the process ends.
 * The CPU must have tiles (CPUID) that the system saves (XCR0): others are not asked. */
bool oct__tiles_request(void);

#endif
