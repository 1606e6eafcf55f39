/* statistics.h: owns the arithmetic of small samples: intervals, exact tests, the bootstrap. Pure, and the same for a seed on every machine; any thread.
 * Intervals are 95 %. */
#ifndef APP_EVAL_STATISTICS_H
#define APP_EVAL_STATISTICS_H

#include "apps/eval/result.h"

/* The q-th quantile (0 .. 1) of n ascending values, linear between neighbours as numpy.percentile; NAN when n is 0. */
double eval_quantile(const double *ascending, uint64_t n, double q);

/* Sorts ascending; NANs last. */
void eval_sort(double *values, uint64_t n);

/* Wilson's score interval of a share k / n. */
eval_interval eval_wilson(uint64_t k, uint64_t n);

/* McNemar's exact test, two-sided: the probability of a split at least as uneven as lost : won when both are equally likely. 1 when both are 0. */
double eval_mcnemar(uint32_t lost, uint32_t won);

/* Agresti and Min's interval of a difference of matched shares, (won - lost) / n: Wald's with half an item added to each of the four cells, so that it
 * does not shrink to nothing where no item differs. */
eval_interval eval_matched_interval(uint32_t lost, uint32_t won, uint32_t n);

/* Holm's correction of n p-values in place; NANs stay and don't count. False: out of memory. */
bool eval_holm(double *p, uint32_t n);

/* Observations that come in clusters: the sum and the number of each. Any number of ones with count 0. */
typedef struct eval_cluster { double sum; uint64_t n; } eval_cluster;

/* sum of sums / sum of numbers; NAN when empty. */
double eval_clusters_mean(const eval_cluster *clusters, uint64_t n);

/* Standard error of that mean (a ratio), from the differences between clusters; NAN with fewer than two. */
double eval_clusters_stderr(const eval_cluster *clusters, uint64_t n);

/* Percentile bootstrap of that mean, whole clusters drawn, EVAL_RESAMPLES times. NANs with fewer than two clusters or without memory. */
enum { EVAL_RESAMPLES = 5000 };
eval_interval eval_bootstrap(const eval_cluster *clusters, uint64_t n, uint64_t seed);

/* The next of a seed's random numbers, uniform in 0 .. limit - 1. */
uint64_t eval_random(uint64_t *state, uint64_t limit);

#endif
