/* cover.c: greedy. Each row starts from a pair that has not met and takes, feature by feature, the value that brings most new pairs. */
#include "parity/cover.h"

#include <stdlib.h>

#include "parity/rng.h"

typedef struct met { unsigned char pair[COVER_FEATURES][COVER_VALUES][COVER_FEATURES][COVER_VALUES]; } met;

static int gain_of(const met *m, const unsigned char *row, const unsigned char *is_set, int n_features, int feature, int value)
{
    int gain = 0;
    for (int f = 0; f < n_features; f++)
        if (is_set[f] && f != feature)
            gain += !m->pair[feature][value][f][row[f]];
    return gain;
}

static int find_new_pair(const met *m, int n_features, const int *n_values, unsigned char *row, unsigned char *is_set)
{
    for (int f = 0; f < n_features; f++)
        for (int v = 0; v < n_values[f]; v++)
            for (int g = f + 1; g < n_features; g++)
                for (int w = 0; w < n_values[g]; w++)
                    if (!m->pair[f][v][g][w]) {
                        row[f] = (unsigned char)v;
                        row[g] = (unsigned char)w;
                        is_set[f] = is_set[g] = 1;
                        return 1;
                    }
    return 0;
}

int cover_make(int n_features, const int *n_values, uint64_t seed, int max_rows, unsigned char (*rows)[COVER_FEATURES])
{
    met *m = calloc(1, sizeof *m);
    rng r = rng_make(seed);
    int n = 0;
    if (m == NULL)
        return -1;
    for (;; n++) {
        unsigned char first[COVER_FEATURES] = { 0 }, is_set[COVER_FEATURES] = { 0 };
        if (!find_new_pair(m, n_features, n_values, first, is_set))
            break;
        if (n == max_rows) {
            n = -1;
            break;
        }
        unsigned char *row = rows[n];
        for (int f = 0; f < COVER_FEATURES; f++)
            row[f] = first[f];
        for (int f = 0; f < n_features; f++) {
            if (is_set[f])
                continue;
            int best = -1, best_gain = -1;
            const int start = (int)rng_below(&r, n_values[f]);   /* ties fall on any value */
            for (int i = 0; i < n_values[f]; i++) {
                const int value = (start + i) % n_values[f], gain = gain_of(m, row, is_set, n_features, f, value);
                if (gain > best_gain) {
                    best = value;
                    best_gain = gain;
                }
            }
            row[f] = (unsigned char)best;
            is_set[f] = 1;
        }
        for (int f = 0; f < n_features; f++)
            for (int g = 0; g < n_features; g++)
                m->pair[f][row[f]][g][row[g]] = 1;
    }
    free(m);
    return n;
}
