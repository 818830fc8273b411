/* common.c - parsing, statistics, JSON and the control plane of the perf programs. */
#include "common.h"
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *bench_program = "bench";

/* A table that a full disk swallowed must not end as if it were there. */
static void check_output(void) {
  if (!fflush(stdout) && !ferror(stdout)) return;
  fprintf(stderr, "%s: its output could not be written\n", bench_program);
  _exit(1);
}

__attribute__((constructor)) static void watch_output(void) { atexit(check_output); }

static void complain(const char *fmt, va_list ap) {
  fflush(stdout); /* keep the order of lines when both streams go to one place */
  fprintf(stderr, "%s: ", bench_program);
  vfprintf(stderr, fmt, ap);
  fputc('\n', stderr);
}

void bench_usage(const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  complain(fmt, ap);
  va_end(ap);
  fprintf(stderr, "%s: see --help\n", bench_program);
  exit(2);
}

void bench_die(const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  complain(fmt, ap);
  va_end(ap);
  exit(1);
}

/* Reads a decimal number and returns what follows it. strtod would take "inf", "nan" and hexadecimal as well. */
static const char *decimal(const char *text, double *out) {
  if (!isdigit((unsigned char)text[0]) && text[0] != '.') return NULL;
  if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) return NULL;
  char *end;
  *out = strtod(text, &end);
  return end == text ? NULL : end;
}

uint64_t bench_size(const char *flag, const char *text) {
  double v;
  const char *unit = decimal(text, &v);
  if (!unit) bench_usage("%s: \"%s\" is not a size (8, 64K, 25M, 1G; base 2)", flag, text);
  const char *letters = "KMGT", *at = *unit ? strchr(letters, toupper((unsigned char)*unit)) : NULL;
  if (*unit && (!at || (unit[1] && strcmp(unit + 1, "iB") != 0 && strcmp(unit + 1, "B") != 0)))
    bench_usage("%s: \"%s\" has an unknown unit (K, M, G, T; base 2)", flag, text);
  if (at) v *= (double)(1ull << (10 * (at - letters + 1)));
  if (v > 1e15) bench_usage("%s: \"%s\" is too large", flag, text);
  return (uint64_t)v;
}

uint64_t bench_number(const char *flag, const char *text, uint64_t lo, uint64_t hi) {
  char *end;
  errno = 0;
  unsigned long long v = isdigit((unsigned char)text[0]) ? strtoull(text, &end, 10) : (end = NULL, 0);
  if (!end || *end || errno || v < lo || v > hi)
    bench_usage("%s: \"%s\" is not a whole number from %llu to %llu", flag, text, (unsigned long long)lo,
                (unsigned long long)hi);
  return v;
}

uint64_t bench_time(const char *flag, const char *text) {
  static const struct {
    const char *name;
    double ns;
  } units[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"", 1e9}};
  double v;
  const char *unit = decimal(text, &v);
  for (size_t i = 0; unit && i < sizeof units / sizeof *units; i++) {
    if (strcmp(unit, units[i].name) != 0) continue;
    double ns = v * units[i].ns;
    if (ns < 1 || ns > 3.6e15) break;
    return (uint64_t)(ns + 0.5);
  }
  bench_usage("%s: \"%s\" is not a time above 0 (200us, 5ms, 0.5s; a bare number is seconds)", flag, text);
}

uint64_t bench_deadline(const char *flag, const char *text) {
  if (!strcmp(text, "auto")) return BENCH_AUTO;
  if (!strcmp(text, "inf") || !strcmp(text, "exact")) return BENCH_EXACT;
  return bench_time(flag, text);
}

void bench_deadline_name(uint64_t deadline_ns, char *out, size_t n) {
  if (deadline_ns == BENCH_AUTO) snprintf(out, n, "auto");
  else if (deadline_ns == BENCH_EXACT) snprintf(out, n, "inf");
  else snprintf(out, n, "%gus", (double)deadline_ns / 1e3);
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double quantile(const double *sorted, size_t n, double q) {
  size_t at = (size_t)ceil(q * (double)n - 1e-9);
  return sorted[at == 0 ? 0 : (at > n ? n : at) - 1];
}

bench_stats bench_summary(double *v, size_t n) {
  bench_stats s = {0};
  if (n == 0) return s;
  qsort(v, n, sizeof *v, ascending);
  for (size_t i = 0; i < n; i++) s.avg += v[i] / (double)n;
  for (size_t i = 0; i < n; i++) s.stdev += (v[i] - s.avg) * (v[i] - s.avg);
  s.stdev = n > 1 ? sqrt(s.stdev / (double)(n - 1)) : 0;
  s.cv_pct = s.avg > 0 ? 100 * s.stdev / s.avg : 0;
  s.min = v[0];
  s.max = v[n - 1];
  s.p50 = quantile(v, n, 0.50);
  s.p95 = quantile(v, n, 0.95);
  s.p99 = quantile(v, n, 0.99);
  s.p999 = quantile(v, n, 0.999);
  return s;
}

const char *bench_pct(double fraction, char *out, size_t n) {
  if (!(fraction >= 0)) snprintf(out, n, "-");
  else snprintf(out, n, "%.3f", fraction >= 1 ? 100.0 : fmin(floor(fraction * 1e5) / 1e3, 99.999));
  return out;
}

void bench_json_str(FILE *f, const char *s) {
  fputc('"', f);
  for (; *s; s++) {
    unsigned char c = (unsigned char)*s;
    if (c == '"' || c == '\\') fprintf(f, "\\%c", c);
    else if (c < 0x20) fprintf(f, "\\u%04x", c);
    else fputc(c, f);
  }
  fputc('"', f);
}

void bench_json_num(FILE *f, double v) {
  if (isfinite(v)) fprintf(f, "%.9g", v);
  else fputs("null", f);
}

void bench_set(tb_config *cfg, const char *name, const char *value) {
  if (tb_config_set(cfg, name, value) != 0) bench_die("option %s=%s: %s", name, value, tb_last_error());
}

void bench_set_pair(tb_config *cfg, const char *flag, const char *pair) {
  char name[64];
  const char *eq = strchr(pair, '=');
  if (!eq || eq == pair || (size_t)(eq - pair) >= sizeof name) bench_usage("%s: \"%s\" is not NAME=VALUE", flag, pair);
  memcpy(name, pair, (size_t)(eq - pair));
  name[eq - pair] = 0;
  bench_set(cfg, name, eq + 1);
}

tb_comm *bench_init(tb_config *cfg) {
  tb_comm *comm;
  int rc = tb_init(cfg, NULL, NULL, &comm);
  if (rc != 0) bench_die("init failed (%s): %s", strerror(-rc), tb_last_error());
  return comm;
}

tb_work *bench_issue(tb_comm *comm, const tb_call *call) {
  tb_work *work;
  int rc = tb_issue(comm, call, &work);
  if (rc != 0) bench_die("rank %d: the call was refused (%s): %s", tb_rank(comm), strerror(-rc), tb_last_error());
  return work;
}

tb_result bench_finish(tb_work *work, const char *what) {
  tb_result r;
  int rc = tb_wait(work, -1);
  if (rc != 0) bench_die("%s failed (%s): %s", what, strerror(-rc), tb_work_error(work));
  rc = tb_work_result(work, &r);
  if (rc != 0) bench_die("%s has no result (%s): %s", what, strerror(-rc), tb_last_error());
  tb_work_free(work);
  return r;
}

void bench_barrier(tb_comm *comm) {
  tb_call call = {.struct_size = sizeof call, .kind = TB_BARRIER, .dtype = TB_U8, .deadline_ns = BENCH_EXACT};
  bench_finish(bench_issue(comm, &call), "the barrier between measurements");
}

void bench_reduce(tb_comm *comm, tb_redop op, double *v, size_t n) {
  tb_call call = {.struct_size = sizeof call, .kind = TB_ALL_REDUCE, .dtype = TB_F64, .redop = op, .count = n, .in = v,
                  .out = v,
                  .deadline_ns = BENCH_EXACT};
  bench_finish(bench_issue(comm, &call), "the exchange of figures");
}

void bench_gather_lines(tb_comm *comm, const char *mine, char *all, size_t width) {
  /* One-hot sum: every byte has one rank that writes it and zeros from the others. */
  size_t total = width * (size_t)tb_size(comm);
  memset(all, 0, total);
  snprintf(all + width * (size_t)tb_rank(comm), width, "%s", mine);
  tb_call call = {.struct_size = sizeof call, .kind = TB_ALL_REDUCE, .dtype = TB_U8, .redop = TB_SUM, .count = total,
                  .in = all, .out = all,
                  .deadline_ns = BENCH_EXACT};
  bench_finish(bench_issue(comm, &call), "the exchange of names");
}
