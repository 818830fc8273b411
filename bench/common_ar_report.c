/* common_ar_report.c - the table and the JSON of all_reduce_perf. Columns 1 to 13 are nccl-tests'; ours follow. */
#include <math.h>
#include <string.h>
#include <time.h>
#include "common_ar_perf.h"

void ar_print_header(const ar_options *o, uint32_t warmup, tb_comm *comm, const char *lines, size_t width) {
  char deadline[32];
  bench_deadline_name(o->deadline_ns, deadline, sizeof deadline);
  printf("# nThread 1 nGpus 0 minBytes %llu maxBytes %llu step: %.10g(%s) warmup iters: %u iters: %u agg iters: 1 "
         "validation: %u graph: 0\n", (unsigned long long)o->min_bytes, (unsigned long long)o->max_bytes,
         o->factor > 0 ? o->factor : (double)o->step_bytes, o->factor > 0 ? "factor" : "bytes", warmup, o->iters,
         o->checks);
  printf("# tailbound %s ranks: %d deadline: %s link: %s time over ranks: %s blocking: %d\n#\n# Using ranks\n",
         tb_version(), tb_size(comm), deadline, tb_link_name(comm),
         (const char *[]){"rank 0", "mean", "least", "most"}[o->average], o->blocking);
  for (int r = 0; r < tb_size(comm); r++) printf("#  Rank %3d %s\n", r, lines + (size_t)r * width);
  const char *i1 = o->per_iteration ? "    i_min    i_max    i_p99  i_cv%" : "";
  const char *i2 = o->per_iteration ? "     (us)     (us)     (us)    (%)" : "";
  int ours = o->per_iteration ? 71 : 36;
  printf("#\n# %48s %33s %33s %*s %*s\n", "", "out-of-place", "in-place", ours, "out-of-place", ours - 1, "in-place");
  printf("# %12s %12s %8s %6s %6s", "size", "count", "type", "redop", "root");
  for (int h = 0; h < 2; h++) printf(" %10s %7s %7s %6s", "time", "algbw", "busbw", "#wrong");
  for (int h = 0; h < 2; h++) printf(" %10s %8s %5s %9s%s", "p99", "recv%", "miss", "nmse", i1);
  printf("\n# %12s %12s %8s %6s %6s", "(B)", "(elements)", "", "", "");
  for (int h = 0; h < 2; h++) printf(" %10s %7s %7s %6s", "(us)", "(GB/s)", "(GB/s)", "");
  for (int h = 0; h < 2; h++) printf(" %10s %8s %5s %9s%s", "(us)", "(%)", "(ops)", "", i2);
  printf("\n");
}

static void cell(double v, int width, const char *format) {
  char text[32];
  if (v < 0) snprintf(text, sizeof text, "N/A");
  else snprintf(text, sizeof text, format, v);
  printf(" %*s", width, text);
}

void ar_print_row(const ar_options *o, const ar_row *row) {
  printf("  %12llu %12llu %8s %6s %6d", (unsigned long long)row->bytes, (unsigned long long)row->count, row->type->name,
         ar_op_names[row->redop], -1);
  for (int i = 0; i < 2; i++) {
    const ar_half *h = &row->half[i];
    printf(h->time_us < 100 ? " %10.2f" : h->time_us < 10000 ? " %10.1f" : " %10.0f", h->time_us);
    printf(" %7.2f %7.2f", h->algbw, h->busbw);
    cell(h->wrong, 6, "%.0f");
  }
  for (int i = 0; i < 2; i++) {
    const ar_half *h = &row->half[i];
    char pct[16];
    printf(h->p99_us < 10000 ? " %10.1f %8s %5.0f" : " %10.0f %8s %5.0f", h->p99_us,
           bench_pct(h->received, pct, sizeof pct), h->miss);
    cell(h->nmse, 9, "%.2e");
    if (o->per_iteration) printf(" %8.1f %8.1f %8.1f %6.1f", h->per.min, h->per.max, h->per.p99, h->per.cv_pct);
  }
  printf("\n");
  for (int i = 0; i < 2; i++)
    if (row->half[i].skips > 0 || row->half[i].jumped > 0)
      printf("# %s: %.0f operations were not committed (verdict skip), %.0f rounds were jumped over by ranks behind\n",
             i ? "in-place" : "out-of-place", row->half[i].skips, row->half[i].jumped);
  fflush(stdout);
}

void ar_print_footer(const ar_options *o, const ar_totals *t) {
  char pct[16];
  if (o->checks) printf("# Out of bounds values : %.0f %s\n", t->wrong, t->wrong == 0 ? "OK" : "FAILED");
  else printf("# Out of bounds values : not checked (-c 0)\n");
  double n = t->halves ? (double)t->halves : 1;
  printf("# Avg bus bandwidth    : %g  (GB/s, at recv%% %s)\n#\n", t->busbw_sum / n,
         bench_pct(t->received_sum / n, pct, sizeof pct));
}

static void stamp(FILE *f, const char *name) {
  char text[64];
  time_t now = time(NULL);
  struct tm tm;
  strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
  fprintf(f, "\"%s\": ", name);
  bench_json_str(f, text);
}

void ar_json_begin(FILE *f, const ar_options *o, int argc, char **argv, tb_comm *comm, uint32_t warmup) {
  char deadline[32];
  bench_deadline_name(o->deadline_ns, deadline, sizeof deadline);
  fputs("{\"version\": 1, ", f);
  stamp(f, "start_time");
  fputs(", \"args\": [", f);
  for (int i = 0; i < argc; i++) {
    if (i) fputs(", ", f);
    bench_json_str(f, argv[i]);
  }
  fprintf(f, "], \"tailbound_version\": ");
  bench_json_str(f, tb_version());
  fprintf(f, ", \"config\": {\"ranks\": %d, \"deadline\": ", tb_size(comm));
  bench_json_str(f, deadline);
  fputs(", \"link\": ", f);
  bench_json_str(f, tb_describe(comm));
  fprintf(f, ", \"iters\": %u, \"warmup_iters\": %u, \"check\": %u, \"average\": %d, \"blocking\": %d},\n"
          "\"results\": [",
          o->iters, warmup, o->checks, o->average, o->blocking);
}

static void field(FILE *f, const char *name, double v) {
  fprintf(f, "\"%s\": ", name);
  bench_json_num(f, v < 0 ? NAN : v);
  fputs(", ", f);
}

static void json_half(FILE *f, const ar_half *h) {
  fputc('{', f);
  field(f, "time", h->time_us);
  field(f, "alg_bw", h->algbw);
  field(f, "bus_bw", h->busbw);
  field(f, "nwrong", h->wrong);
  field(f, "slowest_rank_p99_us", h->p99_us);
  field(f, "recv_pct", h->received * 100);
  field(f, "miss", h->miss);
  field(f, "nmse", h->nmse);
  field(f, "skips", h->skips);
  field(f, "jumped", h->jumped);
  field(f, "min_us", h->per.min);
  field(f, "max_us", h->per.max);
  field(f, "avg_us", h->per.avg);
  field(f, "p50_us", h->per.p50);
  field(f, "p95_us", h->per.p95);
  field(f, "p99_us", h->per.p99);
  field(f, "stdev_us", h->per.stdev);
  field(f, "cv_pct", h->per.cv_pct);
  fputs("\"times_us\": [", f);
  for (uint32_t i = 0; i < h->n; i++) {
    if (i) fputc(',', f);
    bench_json_num(f, h->times_us[i]);
  }
  fputs("]}", f);
}

void ar_json_row(FILE *f, const ar_row *row, int first) {
  fprintf(f, "%s{\"size\": %llu, \"count\": %llu, \"type\": \"%s\", \"redop\": \"%s\", "
          "\"root\": -1, \"out_of_place\": ",
          first ? "\n" : ",\n", (unsigned long long)row->bytes, (unsigned long long)row->count, row->type->name,
          ar_op_names[row->redop]);
  json_half(f, &row->half[0]);
  fputs(", \"in_place\": ", f);
  json_half(f, &row->half[1]);
  fputc('}', f);
}

void ar_json_end(FILE *f, const ar_options *o, const ar_totals *t) {
  double n = t->halves ? (double)t->halves : 1;
  fprintf(f, "],\n\"out_of_bounds\": {\"count\": %.0f, \"checked\": %s, \"okay\": %s},\n", t->wrong,
          o->checks ? "true" : "false", t->wrong == 0 ? "true" : "false");
  fputs("\"average_bus_bandwidth\": {\"bandwidth\": ", f);
  bench_json_num(f, t->busbw_sum / n);
  fputs(", \"recv_pct\": ", f);
  bench_json_num(f, 100 * t->received_sum / n);
  fprintf(f, "},\n\"errors\": %d, ", t->wrong != 0);
  stamp(f, "end_time");
  fputs("}\n", f);
}
