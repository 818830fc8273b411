/* common_ar_perf.h - the parts of all_reduce_perf: options (common_ar_args.c), all ranks' figures (common_ar_ranks.c),
 * output (common_ar_report.c), data (common_ar_data.c) and measuring (all_reduce_perf.c). */
#ifndef BENCH_AR_PERF_H
#define BENCH_AR_PERF_H
#include "common_ar_data.h"
#include "common.h"

#define AR_MAX_SET 32 /* --set options */

typedef struct {
  uint64_t min_bytes, max_bytes, step_bytes;
  double factor;             /* 0 = step_bytes is used */
  uint32_t iters, warmup, cycles, checks;
  int average;               /* -a: 0 rank 0, 1 mean, 2 least, 3 most, over ranks */
  int per_iteration, blocking, ranks;
  uint32_t timeout_s;
  uint64_t deadline_ns;
  int deadline_given;
  const char *type, *op;     /* "all" or a name */
  const char *json, *link;
  const char *set[AR_MAX_SET];
  int sets;
} ar_options;

void ar_parse(int argc, char **argv, ar_options *o);
int ar_op_of(const char *name); /* -1 unknown */
extern const char *const ar_op_names[];

/* One half of a row: out-of-place or in-place, after the ranks' figures have been put together. */
typedef struct {
  double time_us, algbw, busbw; /* GB/s = 1e9 bytes/s */
  double wrong;                 /* received elements that differ, all ranks; < 0 = not checked */
  double received;              /* mean over the operations of the rank that received least */
  double miss;                  /* operations that hit the deadline at any rank */
  double skips, jumped;         /* verdict skip at any rank; rounds jumped over, all ranks */
  double nmse;                  /* < 0 = not checked */
  bench_stats per;              /* of one operation's time, ranks combined by -a */
  double p99_us;                /* of one operation's time at its slowest rank */
  double *times_us;             /* n of them, ranks combined by -a, in order of issue */
  uint32_t n;
} ar_half;

typedef struct {
  uint64_t bytes, count;
  const ar_type *type;
  tb_redop redop;
  ar_half half[2]; /* out of place, in place */
} ar_row;

typedef struct {
  double wrong, busbw_sum, received_sum;
  uint64_t halves;
} ar_totals;

/* Puts v[i] of all ranks together as -a says. An entry of 0 means "this rank has none" (it jumped over the round) and
 * counts neither for the mean nor for the least. */
void ar_over_ranks(tb_comm *comm, int how, double *v, size_t n);
bench_stats ar_summary(const double *us, uint32_t n); /* of the entries that are not 0 */

void ar_print_header(const ar_options *o, uint32_t warmup, tb_comm *comm, const char *lines, size_t width);
void ar_print_row(const ar_options *o, const ar_row *row);
void ar_print_footer(const ar_options *o, const ar_totals *t);

void ar_json_begin(FILE *f, const ar_options *o, int argc, char **argv, tb_comm *comm, uint32_t warmup);
void ar_json_row(FILE *f, const ar_row *row, int first);
void ar_json_end(FILE *f, const ar_options *o, const ar_totals *t);

#endif
