/* compare_logits.c: see compare_logits.h. */
#include "engine/compare_logits.h"

#include <math.h>

double logits_distance(const float *a, const float *b, uint32_t n)
{
    double aa = 0, bb = 0, dd = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i])) {
            return 2.0;
        }
        aa += (double)a[i] * a[i];
        bb += (double)b[i] * b[i];
    }
    if (aa == 0 || bb == 0) {
        return 2.0;
    }
    /* Half the squared distance of the unit vectors: 1 - cos without its cancellation. */
    const double la = sqrt(aa), lb = sqrt(bb);
    for (uint32_t i = 0; i < n; i++) {
        const double d = a[i] / la - b[i] / lb;
        dd += d * d;
    }
    return dd / 2;
}

uint32_t logits_argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++) {
        best = x[i] > x[best] ? i : best;
    }
    return best;
}

void logits_match_add(logits_match *m, const float *a, const float *b, uint32_t n)
{
    m->worst = fmax(m->worst, logits_distance(a, b, n));
    const uint32_t top_a = logits_argmax(a, n), top_b = logits_argmax(b, n);
    double square = 0, second = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        square += (double)b[i] * b[i];
        second = i != top_b ? fmax(second, b[i]) : second;
    }
    const double tie = sqrt(2 * LOGITS_BOUND * square / n);
    m->n_same_top += top_a == top_b;
    m->n_ties += top_a != top_b && (double)b[top_b] - b[top_a] <= tie;
    m->n_close += (double)b[top_b] - second <= tie;
    m->n++;
}
