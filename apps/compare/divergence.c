/* divergence.c: see divergence.h. */
#include "apps/compare/divergence.h"

#include <math.h>

/* The largest of n logits; the first of equals, so that a tie is decided the same way for everybody. */
static uint32_t top_of(const float *logits, uint32_t n)
{
    uint32_t top = 0;
    for (uint32_t i = 1; i < n; i++) {
        top = logits[i] > logits[top] ? i : top;
    }
    return top;
}

/* ln of the sum of exp, summed in f64. The few terms that carry the sum are taken in f64 too: in f32 the rounding of a logit of 20 alone
 * would be seen in a KL of 1e-7. Two strands, so that one sum does not wait for the other. *apart: the mean of logits - base under these logits' distribution;
 * an error of a weight cancels in it but for its share of a difference. */
static double log_sum_exp(const float *logits, const float *base, uint32_t n, float largest, double *apart)
{
    const float heavy = largest - 8;
    double sum[2] = { 0, 0 }, difference[2] = { 0, 0 };
    for (uint32_t i = 0; i < n; i++) {
        const double weight = logits[i] > heavy ? exp((double)logits[i] - (double)largest) : (double)expf(logits[i] - largest);
        sum[i & 1] += weight;
        difference[i & 1] += weight * ((double)logits[i] - (double)base[i]);
    }
    *apart = (difference[0] + difference[1]) / (sum[0] + sum[1]);
    return (double)largest + log(sum[0] + sum[1]);
}

void compare_base_prepare(compare_base *base, const float *logits, float *share, uint32_t n)
{
    const uint32_t top = top_of(logits, n);
    double apart;
    *base = (compare_base){ .logits = logits, .share = share, .n = n, .lse = log_sum_exp(logits, logits, n, logits[top], &apart), .top = top };
    for (uint32_t i = 0; i < n; i++) {
        share[i] = expf((float)((double)logits[i] - base->lse));
    }
}

compare_verdict compare_judge(const compare_base *base, const float *other, uint32_t target)
{
    const uint32_t top = top_of(other, base->n);
    double apart = 0;
    const double lse = other == base->logits ? base->lse : log_sum_exp(other, base->logits, base->n, other[top], &apart);
    const double shift = base->lse - lse;
    /* Differences first, then the weighted sum: KL of 1e-5 between logits of 20 would drown in the two sums taken apart. */
    double kl[4] = { 0, 0, 0, 0 };
    uint32_t i = 0;
    for (; i + 4 <= base->n; i += 4) {
        for (uint32_t j = 0; j < 4; j++) {
            kl[j] += (double)base->share[i + j] * ((double)base->logits[i + j] - (double)other[i + j] - shift);
        }
    }
    for (; i < base->n; i++) {
        kl[0] += (double)base->share[i] * ((double)base->logits[i] - (double)other[i] - shift);
    }
    const double sum = kl[0] + kl[1] + (kl[2] + kl[3]);
    return (compare_verdict){ .nll = lse - (double)other[target], .kl = sum, .reverse_kl = apart + shift, .top = top, .same_top = top == base->top && !isnan(sum) };
}

double compare_nll(const float *logits, uint32_t n, uint32_t target, uint32_t *top)
{
    double apart;
    *top = top_of(logits, n);
    return log_sum_exp(logits, logits, n, logits[*top], &apart) - (double)logits[target];
}
