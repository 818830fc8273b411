/* common_ar_ranks.c - one figure out of every rank's figure. */
#include <stdlib.h>
#include "common_ar_perf.h"

void ar_over_ranks(tb_comm *comm, int how, double *v, size_t n) {
  double *have = calloc(n, sizeof *have);
  if (!have) bench_die("out of memory");
  for (size_t i = 0; i < n; i++) {
    have[i] = v[i] > 0;
    if (how == 0 && tb_rank(comm) != 0) v[i] = 0;
    if (how == 2 && v[i] <= 0) v[i] = 1e300;
  }
  bench_reduce(comm, how == 2 ? TB_MIN : how == 3 ? TB_MAX : TB_SUM, v, n);
  bench_reduce(comm, TB_SUM, have, n);
  for (size_t i = 0; i < n; i++) {
    if (have[i] == 0) v[i] = 0;
    else if (how == 1) v[i] /= have[i];
  }
  free(have);
}

bench_stats ar_summary(const double *us, uint32_t n) {
  double *v = malloc(n * sizeof *v);
  size_t k = 0;
  if (!v) bench_die("out of memory");
  for (uint32_t i = 0; i < n; i++)
    if (us[i] > 0) v[k++] = us[i];
  bench_stats s = bench_summary(v, k);
  free(v);
  return s;
}
