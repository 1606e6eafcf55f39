/* statistics.c: see statistics.h. */
#include "apps/eval/statistics.h"

#include <math.h>
#include <stdlib.h>

static const eval_interval no_interval = { NAN, NAN };

static const double z = 1.959963984540054;   /* the normal distribution's 97.5th percentile */

static int compare_values(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    if (isnan(x) || isnan(y)) {
        return isnan(x) - isnan(y);
    }
    return (x > y) - (x < y);
}

void eval_sort(double *values, uint64_t n)
{
    if (n > 1) {
        qsort(values, n, sizeof(*values), compare_values);
    }
}

double eval_quantile(const double *ascending, uint64_t n, double q)
{
    if (n == 0) {
        return NAN;
    }
    const double at = q * (double)(n - 1);
    const uint64_t below = (uint64_t)at;
    return below + 1 >= n ? ascending[n - 1] : ascending[below] + (at - (double)below) * (ascending[below + 1] - ascending[below]);
}

eval_interval eval_wilson(uint64_t k, uint64_t n)
{
    if (n == 0) {
        return no_interval;
    }
    const double size = (double)n, share = (double)k / size, weight = 1 + z * z / size;
    const double middle = (share + z * z / (2 * size)) / weight;
    const double half = z / weight * sqrt(share * (1 - share) / size + z * z / (4 * size * size));
    /* Where nothing or all was counted the end is exact; rounding must not move it past. */
    return (eval_interval){ k == 0 ? 0 : middle - half, k == n ? 1 : middle + half };
}

double eval_mcnemar(uint32_t lost, uint32_t won)
{
    const uint32_t n = lost + won, fewer = lost < won ? lost : won;
    if (lost == won) {
        return 1;
    }
    /* Twice the tail of a fair coin, in logarithms: 2^-n is nothing from 1075 on. */
    const double log_all = -(double)n * log(2);
    double tail = 0;
    for (uint32_t i = 0; i <= fewer; i++) {
        tail += exp(lgamma((double)n + 1) - lgamma((double)i + 1) - lgamma((double)(n - i) + 1) + log_all);
    }
    return fmin(1, 2 * tail);
}

eval_interval eval_matched_interval(uint32_t lost, uint32_t won, uint32_t n)
{
    if (n == 0) {
        return no_interval;
    }
    const double size = (double)n + 2, a = won + 0.5, b = lost + 0.5, difference = (a - b) / size;
    const double half = z * sqrt(a + b - (a - b) * (a - b) / size) / size;
    return (eval_interval){ fmax(-1, difference - half), fmin(1, difference + half) };
}

bool eval_holm(double *p, uint32_t n)
{
    double *const sorted = malloc(((size_t)n + 1) * sizeof(*sorted));
    if (sorted == NULL) {
        return false;
    }
    uint32_t n_tests = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!isnan(p[i])) {
            sorted[n_tests++] = p[i];
        }
    }
    eval_sort(sorted, n_tests);
    for (uint32_t i = 0; i < n; i++) {
        double largest = 0;
        for (uint32_t rank = 0; rank < n_tests && sorted[rank] <= p[i]; rank++) {
            largest = fmax(largest, (n_tests - rank) * sorted[rank]);
        }
        p[i] = isnan(p[i]) ? p[i] : fmin(1, largest);
    }
    free(sorted);
    return true;
}

static eval_cluster total(const eval_cluster *clusters, uint64_t n)
{
    eval_cluster all = { 0, 0 };
    for (uint64_t i = 0; i < n; i++) {
        all.sum += clusters[i].sum;
        all.n += clusters[i].n;
    }
    return all;
}

double eval_clusters_mean(const eval_cluster *clusters, uint64_t n)
{
    const eval_cluster all = total(clusters, n);
    return all.n > 0 ? all.sum / (double)all.n : NAN;
}

double eval_clusters_stderr(const eval_cluster *clusters, uint64_t n)
{
    const eval_cluster all = total(clusters, n);
    const double mean = all.sum / (double)all.n;
    double squares = 0;
    uint64_t n_used = 0;
    for (uint64_t i = 0; i < n; i++) {
        const double off = clusters[i].sum - mean * (double)clusters[i].n;
        squares += clusters[i].n > 0 ? off * off : 0;
        n_used += clusters[i].n > 0;
    }
    return n_used < 2 ? NAN : sqrt(squares * (double)n_used / (double)(n_used - 1)) / (double)all.n;
}

/* splitmix64; the rest of a division instead of a rejection: with limits far under 2^32 the bias is under 2^-32. */
uint64_t eval_random(uint64_t *state, uint64_t limit)
{
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return (x ^ x >> 31) % limit;
}

eval_interval eval_bootstrap(const eval_cluster *clusters, uint64_t n, uint64_t seed)
{
    double *const means = n >= 2 ? malloc(EVAL_RESAMPLES * sizeof(*means)) : NULL;
    if (means == NULL) {
        return no_interval;
    }
    for (uint32_t r = 0; r < EVAL_RESAMPLES; r++) {
        eval_cluster drawn = { 0, 0 };
        for (uint64_t i = 0; i < n; i++) {
            const eval_cluster *const one = &clusters[eval_random(&seed, n)];
            drawn.sum += one->sum;
            drawn.n += one->n;
        }
        means[r] = drawn.n > 0 ? drawn.sum / (double)drawn.n : NAN;
    }
    eval_sort(means, EVAL_RESAMPLES);
    const eval_interval interval = { eval_quantile(means, EVAL_RESAMPLES, 0.025), eval_quantile(means, EVAL_RESAMPLES, 0.975) };
    free(means);
    return interval;
}
