/* all_reduce_perf.c - all-reduce in nccl-tests' dialect; what differs is in bench/README.md.
 *
 * A measured buffer has a name (a key), as a gradient bucket has. A rank that fell behind jumps to the round that the
 * others are in, so loops here follow the round of the result, not the number of calls: with a fixed number of calls a
 * rank that jumped would end with rounds that nobody else takes part in. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common_ar_perf.h"

typedef struct {
  ar_options o;
  tb_comm *comm;
  double min_received;
  tb_consistency consistency;
  int deterministic;
  uint32_t warmup;
} bench;

/* One key and where this rank stands in it. */
typedef struct {
  char key[64];
  tb_call call;
  const char *what;
  int known;
  uint32_t base; /* the key's first round */
  uint32_t done; /* rounds behind this rank */
} stream;

/* What this rank saw in a timed loop. Entry i is round i; time 0 = jumped over. */
typedef struct {
  double *us, *hit, *skip;
  double received, calls, wall_us, jumped;
} samples;

static double us_since(uint64_t t0) { return (double)(tb_now() - t0) / 1e3; }

/* Does one operation; returns its index among the rounds of the key. */
static uint32_t step(bench *b, stream *s, tb_result *r, double *us, tb_work **keep) {
  uint64_t t0 = tb_now();
  tb_work *work = bench_issue(b->comm, &s->call);
  int rc = tb_wait(work, -1);
  *us = us_since(t0);
  if (rc != 0) bench_die("rank %d: %s failed (%s): %s", tb_rank(b->comm), s->what, strerror(-rc), tb_work_error(work));
  rc = tb_work_result(work, r);
  if (rc != 0) bench_die("%s has no result (%s): %s", s->what, strerror(-rc), tb_last_error());
  if (keep) *keep = work;
  else tb_work_free(work);
  if (!s->known) s->base = r->round - r->behind;
  s->known = 1;
  uint32_t index = r->round - s->base;
  if (index < s->done) index = s->done; /* never go back, whatever numbers a link's rounds have */
  s->done = index + 1;
  return index;
}

static void warm_up(bench *b, stream *s, uint32_t rounds) {
  tb_result r;
  double us;
  for (uint32_t end = s->done + rounds; s->done < end;) step(b, s, &r, &us, NULL);
}

/* Brings all ranks to the same round. A rank that jumped in its last round of a loop is ahead of the others. Laggards
 * catch up alone; but one that finds a quorum ahead joins the round after their last and would so be ahead itself, two
 * ranks in turn for ever. So every other time all take a step together, and it joins the round the others are in. */
static void align(bench *b, stream *s) {
  for (int turn = 0;; turn++) {
    double ends[2] = {s->done, -(double)s->done};
    bench_reduce(b->comm, TB_MAX, ends, 2);
    if (ends[0] == -ends[1]) return;
    if (turn % 2) warm_up(b, s, 1);
    else if (s->done < (uint32_t)ends[0]) warm_up(b, s, (uint32_t)ends[0] - s->done);
  }
}

static void time_rounds(bench *b, stream *s, uint32_t rounds, samples *out) {
  uint32_t first = s->done, end = first + rounds;
  uint64_t t0 = tb_now();
  double between = 0;
  while (s->done < end) {
    tb_result r;
    double us;
    uint32_t before = s->done, i = step(b, s, &r, &us, NULL);
    out->jumped += (i < end ? i : end) - before;
    if (i >= end) { /* jumped past the last round: nobody is there, and nothing is to be learnt from it */
      between += us;
    } else {
      out->received += r.received;
      out->calls += 1;
      out->us[i - first] = us;
      out->hit[i - first] = r.deadline_hit != 0;
      out->skip[i - first] = r.verdict == TB_VERDICT_SKIP;
    }
    if (b->o.blocking) {
      uint64_t t1 = tb_now();
      bench_barrier(b->comm);
      between += us_since(t1);
    }
  }
  out->wall_us = us_since(t0) - between;
}

static void combine(bench *b, samples *mine, uint32_t n, uint64_t bytes, ar_half *h) {
  double least = mine->calls > 0 ? mine->received / mine->calls : 1, *slowest = malloc(n * sizeof *slowest);
  if (!slowest) bench_die("out of memory");
  memcpy(slowest, mine->us, n * sizeof *slowest);
  ar_over_ranks(b->comm, 3, slowest, n);
  h->p99_us = ar_summary(slowest, n).p99;
  free(slowest);
  ar_over_ranks(b->comm, b->o.average, mine->us, n);
  h->per = ar_summary(mine->us, n);
  h->times_us = mine->us;
  h->n = n;
  bench_reduce(b->comm, TB_MAX, mine->hit, n);
  bench_reduce(b->comm, TB_MAX, mine->skip, n);
  for (uint32_t i = 0; i < n; i++) h->miss += mine->hit[i], h->skips += mine->skip[i];
  h->time_us = mine->wall_us / n;
  ar_over_ranks(b->comm, b->o.average, &h->time_us, 1);
  bench_reduce(b->comm, TB_MIN, &least, 1);
  bench_reduce(b->comm, TB_SUM, &mine->jumped, 1);
  h->received = least;
  h->jumped = mine->jumped;
  int ranks = tb_size(b->comm);
  h->algbw = (double)bytes / h->time_us / 1e3;
  h->busbw = h->algbw * 2 * (ranks - 1) / ranks;
}

/* Ranks start a check together: nobody is behind, so nobody jumps to a round whose data were other ones. The buffers
 * are filled after align, which may reduce them, in place as well. */
static void check_once(bench *b, stream *s, const ar_type *type, void *in, void *out, int iteration, int kind,
                       double *sums) {
  ar_set set;
  uint64_t count = s->call.count;
  uint8_t *mask = malloc(count ? count : 1);
  if (!mask) bench_die("out of memory for a mask of %llu elements", (unsigned long long)count);
  ar_set_init(&set, type, (tb_redop)s->call.redop, tb_size(b->comm), iteration, kind);
  align(b, s);
  ar_fill(&set, tb_rank(b->comm), in, count);
  if (out != in) memset(out, 0, count * type->bytes);
  bench_barrier(b->comm);
  tb_result r;
  tb_work *work;
  double us;
  uint32_t before = s->done;
  int together = step(b, s, &r, &us, &work) == before;
  /* else decided values of an earlier check, which came too late for that, are in this output */
  int plain = !(r.late > 0);
  int rc = tb_work_mask(work, mask, count), committed = together && r.verdict != TB_VERDICT_SKIP;
  /* Not r.received >= 1: that is the share of the others, and an owner may lack this rank's own part alone. */
  int complete = together && r.verdict == TB_VERDICT_OK;
  if (rc < 0) bench_die("no mask (%s): %s", strerror(-rc), tb_last_error());
  tb_work_free(work);
  if (plain && (kind == AR_EQUAL ? committed : complete)) sums[0] += (double)ar_wrong(&set, out, mask, count);
  if (plain && kind == AR_DISTINCT) {
    double error, power;
    ar_error(&set, out, committed, count, &error, &power);
    sums[1] += error;
    sums[2] += power;
  }
  free(mask);
}

static void check_half(bench *b, stream *s, const ar_type *type, void *in, void *out, ar_half *h) {
  double sums[3] = {0};
  h->wrong = h->nmse = -1;
  if (!b->o.checks) return;
  for (uint32_t i = 0; i < b->o.checks; i++)
    for (int kind = AR_EQUAL; kind <= AR_DISTINCT; kind++) check_once(b, s, type, in, out, (int)i, kind, sums);
  bench_reduce(b->comm, TB_SUM, sums, 3);
  h->wrong = sums[0];
  h->nmse = sums[2] > 0 ? sums[1] / sums[2] : 0;
}

static void run_half(bench *b, const ar_row *row, int in_place, void *in, void *out, ar_half *h) {
  int lossy = row->type->is_float && (row->redop == TB_SUM || row->redop == TB_AVG) && b->o.deadline_ns != BENCH_EXACT;
  void *to = in_place ? in : out;
  stream s = {.what = "all-reduce"};
  int len = snprintf(s.key, sizeof s.key, "perf/%s/%s/%llu/%s", row->type->name, ar_op_names[row->redop],
                     (unsigned long long)row->count, in_place ? "in" : "out");
  s.call = (tb_call){.struct_size = sizeof(tb_call), .kind = TB_ALL_REDUCE, .dtype = row->type->dtype,
                     .redop = row->redop, .count = row->count,
                     .in = in, .out = to, .key = s.key, .key_len = (uint32_t)len,
                     .deadline_ns = lossy ? b->o.deadline_ns : BENCH_EXACT, .min_received = b->min_received,
                     .consistency = b->consistency, .deterministic = b->deterministic};
  uint32_t n = b->o.iters;
  samples mine = {.us = calloc(n, sizeof(double)), .hit = calloc(n, sizeof(double)), .skip = calloc(n, sizeof(double))};
  if (!mine.us || !mine.hit || !mine.skip) bench_die("out of memory for %u iterations", n);
  /* All zeros: in place the same buffer is reduced again and again, and must not run off to infinity. */
  memset(in, 0, row->bytes);
  memset(to, 0, row->bytes);
  warm_up(b, &s, b->warmup);
  align(b, &s);
  time_rounds(b, &s, n, &mine);
  combine(b, &mine, n, row->bytes, h);
  check_half(b, &s, row->type, in, to, h);
  free(mine.hit);
  free(mine.skip);
  align(b, &s);
  int rc = tb_forget(b->comm, s.key, s.call.key_len); /* -N comes back to this name: let it start afresh */
  if (rc != 0) bench_die("forget of %s: %s", s.key, tb_last_error());
  bench_barrier(b->comm);
}

static void run_size(bench *b, uint64_t bytes, const ar_type *type, tb_redop op, ar_totals *t, FILE *json) {
  ar_row row = {.count = bytes / type->bytes, .type = type, .redop = op};
  row.bytes = row.count * type->bytes;
  size_t room = row.bytes ? row.bytes : 1;
  void *in = malloc(room), *out = malloc(room);
  if (!in || !out) bench_die("out of memory for two buffers of %zu bytes", room);
  alarm(b->o.timeout_s);
  for (int i = 0; i < 2; i++) {
    run_half(b, &row, i, in, out, &row.half[i]);
    if (row.half[i].wrong > 0) t->wrong += row.half[i].wrong;
    t->busbw_sum += row.half[i].busbw;
    t->received_sum += row.half[i].received;
    t->halves++;
  }
  alarm(0);
  if (tb_rank(b->comm) == 0) ar_print_row(&b->o, &row);
  if (json) ar_json_row(json, &row, t->halves == 2);
  free(row.half[0].times_us);
  free(row.half[1].times_us);
  free(in);
  free(out);
}

static void sweep(bench *b, ar_totals *t, FILE *json) {
  for (const ar_type *type = ar_types; type->name; type++) {
    if (strcmp(b->o.type, "all") && strcmp(b->o.type, type->name)) continue;
    for (int op = 0; op < TB_REDOPS; op++) {
      if (strcmp(b->o.op, "all") && ar_op_of(b->o.op) != op) continue;
      if (op == TB_AVG && !type->is_float) continue;
      for (double size = (double)b->o.min_bytes; size <= (double)b->o.max_bytes;) {
        run_size(b, (uint64_t)size, type, (tb_redop)op, t, json);
        double next = b->o.factor > 0 ? size * b->o.factor : size + (double)b->o.step_bytes;
        if ((uint64_t)next <= (uint64_t)size) break;
        size = next;
      }
    }
  }
}

static void timed_out(int sig) {
  (void)sig;
  static const char text[] = "all_reduce_perf: a size took longer than -T allows; giving up\n";
  if (write(2, text, sizeof text - 1) < 0) _exit(4);
  _exit(3);
}

/* Options that are defaults of Python's calls. Rounding, and what is carried, would be wrong values to the checks. */
static const char *const unused[] = {"missing", "wire_dtype", "hadamard", "on_skip", "min_received_stage1", "min_received_stage2"};

/* An option that is asked for and does nothing would pass for measured: --set of one is refused, a variable is told. */
static void refuse_unused(const char *pair) {
  for (size_t i = 0; i < sizeof unused / sizeof *unused; i++) {
    size_t n = strlen(unused[i]);
    if (!strncmp(pair, unused[i], n) && pair[n] == '=')
      bench_usage("--set %s: this program's calls do not use it", pair);
  }
}

static void tell_unused(const tb_config *cfg, const tb_comm *comm) {
  const char *name, *value, *source;
  for (uint32_t row = 0; tb_rank(comm) == 0 && !tb_config_row(cfg, row, &name, NULL, &value, &source, NULL, NULL); row++)
    for (size_t i = 0; i < sizeof unused / sizeof *unused; i++)
      if (!strcmp(name, unused[i]) && strcmp(source, "default"))
        printf("# %s=%s (%s): this program's calls do not use it\n", name, value, source);
}

static void take_options(bench *b, const tb_config *cfg) {
  const char *floor = tb_config_get(cfg, "min_received"), *exact = tb_config_get(cfg, "auto_exact_rounds");
  if (floor) b->min_received = strtod(floor, NULL);
  if (!b->o.deadline_given) b->o.deadline_ns = bench_deadline("option deadline", tb_config_get(cfg, "deadline"));
  b->consistency = strcmp(tb_config_get(cfg, "consistency"), "agree") ? TB_LOCAL : TB_AGREE;
  b->deterministic = !strcmp(tb_config_get(cfg, "deterministic"), "on");
  /* Under auto the first rounds of a key are exact: they are not what is to be measured. */
  b->warmup = b->o.warmup + (b->o.deadline_ns == BENCH_AUTO && exact ? (uint32_t)strtoul(exact, NULL, 10) : 0);
}

static void print_ranks(bench *b) {
  enum { WIDTH = 256 };
  char host[64] = "?", mine[WIDTH], *all = malloc((size_t)tb_size(b->comm) * WIDTH);
  if (!all) bench_die("out of memory");
  gethostname(host, sizeof host - 1);
  snprintf(mine, sizeof mine, "Pid %6d on %s: %s", (int)getpid(), host, tb_describe(b->comm));
  bench_gather_lines(b->comm, mine, all, WIDTH);
  if (tb_rank(b->comm) == 0) ar_print_header(&b->o, b->warmup, b->comm, all, WIDTH);
  free(all);
}

int main(int argc, char **argv) {
  bench_program = "all_reduce_perf";
  bench b = {.min_received = 0.5};
  ar_parse(argc, argv, &b.o);
  for (int i = 0; i < b.o.sets; i++) refuse_unused(b.o.set[i]);
  if (b.o.ranks && !bench_is_local_child()) bench_spawn_local(b.o.ranks, argv);
  setvbuf(stdout, NULL, _IOLBF, 0);
  signal(SIGALRM, timed_out);

  tb_config *cfg;
  int rc = tb_config_new(&cfg);
  if (rc != 0) bench_die("configuration: %s", tb_last_error());
  if (b.o.link) bench_set(cfg, "link", b.o.link);
  for (int i = 0; i < b.o.sets; i++) bench_set_pair(cfg, "--set", b.o.set[i]);
  take_options(&b, cfg);
  b.comm = bench_init(cfg);
  tell_unused(cfg, b.comm);
  tb_config_free(cfg);
  print_ranks(&b);

  FILE *json = NULL;
  if (b.o.json && tb_rank(b.comm) == 0) {
    json = fopen(b.o.json, "w");
    if (!json) bench_die("-J %s: %s", b.o.json, strerror(errno));
    ar_json_begin(json, &b.o, argc, argv, b.comm, b.warmup);
  }
  ar_totals t = {0};
  for (uint32_t cycle = 0; b.o.cycles == 0 || cycle < b.o.cycles; cycle++) sweep(&b, &t, json);
  if (tb_rank(b.comm) == 0) ar_print_footer(&b.o, &t);
  if (json) {
    ar_json_end(json, &b.o, &t);
    if (fclose(json) != 0) bench_die("-J %s: %s", b.o.json, strerror(errno));
  }
  tb_close(b.comm);
  return t.wrong == 0 ? 0 : 1;
}
