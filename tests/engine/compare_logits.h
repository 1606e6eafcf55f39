/* Two rows of logits against each other. Pure; any thread. */
#ifndef TEST_COMPARE_LOGITS_H
#define TEST_COMPARE_LOGITS_H

#include <stdbool.h>
#include <stdint.h>

/* 1 - cosine in double; 2 where a number is not finite or a row is zero, which no two rows that belong together give. */
double logits_distance(const float *a, const float *b, uint32_t n);
uint32_t logits_argmax(const float *x, uint32_t n);

/* Sums up many pairs: the worst distance and how many argmaxes agree. */
typedef struct logits_match {
    double worst;
    uint32_t n, n_same_top;
} logits_match;

void logits_match_add(logits_match *m, const float *a, const float *b, uint32_t n);

#endif
