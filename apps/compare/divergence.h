/* divergence.h: owns how two rows of logits over one vocabulary are compared. Pure; any thread. */
#ifndef APP_COMPARE_DIVERGENCE_H
#define APP_COMPARE_DIVERGENCE_H

#include <stdbool.h>
#include <stdint.h>

/* A base's row, prepared once for many comparisons. */
typedef struct compare_base {
    const float *logits;    /* [n] */
    float *share;           /* [n] exp(logits - lse), the caller's memory */
    uint32_t n;
    double lse;             /* ln of the sum of exp(logits) */
    uint32_t top;           /* index of the largest */
} compare_base;

void compare_base_prepare(compare_base *base, const float *logits, float *share, uint32_t n);

typedef struct compare_verdict {
    double nll;             /* -ln p(target), nats */
    double kl;              /* KL(base || other), nats */
    double reverse_kl;      /* KL(other || base), nats */
    uint32_t top;           /* other's index of the largest */
    bool same_top;
} compare_verdict;

/* other may be the base's own row: then both divergences are exactly 0. A NaN among the logits gives NaN and never the same top. */
compare_verdict compare_judge(const compare_base *base, const float *other, uint32_t target);

/* -ln p(target) of one row alone, nats, and the index of the largest. */
double compare_nll(const float *logits, uint32_t n, uint32_t target, uint32_t *top);

#endif
