/* common.h - what the perf programs share: parsing, statistics, JSON, local ranks, and a control plane.
 *
 * The control plane (barrier, exchange of figures) uses exact anonymous operations of the communicator under test, so
 * that a program needs one rendezvous and no second network. */
#ifndef BENCH_COMMON_H
#define BENCH_COMMON_H
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "tailbound.h"

#define BENCH_EXACT UINT64_MAX /* tb_call.deadline_ns of an exact call */
#define BENCH_AUTO 0

/* Writes "PROGRAM: ..." to stderr and exits with 2 (bad use) or 1 (a failed run). */
void bench_usage(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
void bench_die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
extern const char *bench_program; /* name in messages */

/* Parsing ends the program with a message that names the flag. Sizes are base 2 (64K = 65536). */
uint64_t bench_size(const char *flag, const char *text);
uint64_t bench_number(const char *flag, const char *text, uint64_t lo, uint64_t hi);
uint64_t bench_time(const char *flag, const char *text);     /* "5ms", "200us", "0.5s", "0.5" (seconds) -> ns */
uint64_t bench_deadline(const char *flag, const char *text); /* also auto and inf */
void bench_deadline_name(uint64_t deadline_ns, char *out, size_t n);

/* Statistics of n values; sorts them in place. Quantiles are the smallest value that q of all do not exceed. */
typedef struct {
  double min, max, avg, p50, p95, p99, p999, stdev, cv_pct;
} bench_stats;
bench_stats bench_summary(double *v, size_t n);
/* A received fraction as per cent, cut off rather than rounded: 100.000 means that nothing at all was missing. */
const char *bench_pct(double fraction, char *out, size_t n);

/* JSON: a quoted string, and a double (null when it is not finite). */
void bench_json_str(FILE *f, const char *s);
void bench_json_num(FILE *f, double v);

/* Forks and execs n copies of this program with its rank in the environment, before any tailbound call; returns in no
 * process but the children (as a fresh exec that finds bench_is_local_child() true). Exits with the worst status. */
void bench_spawn_local(int n, char **argv) __attribute__((noreturn));
int bench_is_local_child(void);

/* Communicators. set() ends the program when the option or its value is refused. */
void bench_set(tb_config *cfg, const char *name, const char *value);
void bench_set_pair(tb_config *cfg, const char *flag, const char *pair); /* "name=value" */
tb_comm *bench_init(tb_config *cfg);
tb_work *bench_issue(tb_comm *comm, const tb_call *call);
/* Waits, reads the result, frees; ends the program on failure. */
tb_result bench_finish(tb_work *work, const char *what);
void bench_barrier(tb_comm *comm);
void bench_reduce(tb_comm *comm, tb_redop op, double *v, size_t n); /* exact all-reduce, in place */
/* Rank i's line of at most width - 1 characters ends up at all + i * width on every rank. */
void bench_gather_lines(tb_comm *comm, const char *mine, char *all, size_t width);

#endif
