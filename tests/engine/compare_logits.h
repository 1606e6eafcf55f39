/* Two rows of logits against each other. Pure; any thread. */
#ifndef TEST_COMPARE_LOGITS_H
#define TEST_COMPARE_LOGITS_H

#include <stdbool.h>
#include <stdint.h>

/* 1 - cosine in double; 2 where a number is not finite or a row is zero, which no two rows that belong together give. */
double logits_distance(const float *a, const float *b, uint32_t n);
uint32_t logits_argmax(const float *x, uint32_t n);

/* The distance two rows may have and still be called equal. */
#define LOGITS_BOUND 1e-6

/* Sums up many pairs: the worst distance, how many argmaxes agree, and how many differ only by a tie: b's likeliest token leads a's by less
 * than two rows at LOGITS_BOUND differ in one logit, sqrt(2 * bound) * rms. libllama flips such ties against itself when it batches otherwise.
 * n_close counts what the definition could excuse at all: rows whose b itself leads its second by no more than that. It depends on b alone. */
typedef struct logits_match {
    double worst;
    uint32_t n, n_same_top, n_ties, n_close;
} logits_match;

void logits_match_add(logits_match *m, const float *a, const float *b, uint32_t n);

#endif
