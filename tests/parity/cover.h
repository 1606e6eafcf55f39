/* cover.h: owns covering arrays: few rows of feature values in which every pair of values of two features meets at least once.
 * Threads: pure. */
#ifndef PARITY_COVER_H
#define PARITY_COVER_H

#include <stdint.h>

enum { COVER_FEATURES = 32, COVER_VALUES = 32 };

/* Fills rows[n][COVER_FEATURES] and returns n, at most max_rows; -1 when they do not suffice or memory lacks. */
int cover_make(int n_features, const int *n_values, uint64_t seed, int max_rows, unsigned char (*rows)[COVER_FEATURES]);

#endif
