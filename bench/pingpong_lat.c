/* pingpong_lat.c - latency of a message, half of a round trip, in perftest's form (ib_send_lat).
 *
 * The client's deadline bounds each of its waits. The server answers whatever came of a ping, and waits for the next
 * one with a deadline far above the client's: it must not give up a ping that has not been sent yet. */
#include <stdlib.h>
#include <string.h>
#include "common_perftest.h"

#define PINGS_APART_NS 10000000000ull /* a lossy server's patience; a ping that was given up ends it at once */
#define SLICE_NS 5000000              /* how late the server notices the stop message */

typedef struct {
  const pt_options *o;
  tb_comm *comm;
  uint64_t bytes;
  void *ping, *pong;
} run;

typedef struct {
  double *us, received;
  size_t n, room;
} samples;

static void add(samples *s, double us, double received) {
  if (s->n == s->room) {
    s->room = s->room ? 2 * s->room : 4096;
    s->us = realloc(s->us, s->room * sizeof *s->us);
    if (!s->us) bench_die("out of memory for %zu samples", s->room);
  }
  s->us[s->n++] = us;
  s->received += received;
}

static void client(run *r, samples *s) {
  tb_call ping = pt_message(r->o, TB_SEND, 0, r->bytes, PT_FORTH, r->ping);
  tb_call pong = pt_message(r->o, TB_RECV, 0, r->bytes, PT_BACK, r->pong);
  uint64_t begin = tb_now();
  while (r->o->duration_ns ? tb_now() - begin < r->o->duration_ns : s->n < r->o->iters) {
    uint64_t t0 = tb_now();
    tb_work *back = bench_issue(r->comm, &pong), *forth = bench_issue(r->comm, &ping);
    tb_wait(back, -1);
    double us = (double)(tb_now() - t0) / 2e3;
    tb_result result = bench_finish(back, "the receive of a pong");
    bench_finish(forth, "the send of a ping");
    add(s, us, result.received);
  }
  if (!r->o->duration_ns) return;
  pt_stop stop = {0};
  pt_stop_tell(&stop, r->comm, 0, r->bytes, PT_FORTH, s->n);
  pt_stop_end(&stop);
}

static void server(run *r) {
  tb_call ping = pt_message(r->o, TB_RECV, 1, r->bytes, PT_FORTH, r->ping);
  tb_call pong = pt_message(r->o, TB_SEND, 1, r->bytes, PT_BACK, r->pong);
  if (ping.deadline_ns != BENCH_EXACT) ping.deadline_ns = PINGS_APART_NS;
  pt_stop stop = {0};
  if (r->o->duration_ns) pt_stop_post(&stop, r->comm, 1, r->bytes, PT_FORTH);
  tb_work *sent = NULL, *next = bench_issue(r->comm, &ping);
  for (uint64_t i = 0;; i++) {
    int last = !r->o->duration_ns && i + 1 == r->o->iters;
    while (!tb_done(next) && !(r->o->duration_ns && pt_stop_heard(&stop) && i >= stop.total)) tb_wait(next, SLICE_NS);
    if (!tb_done(next)) {
      tb_work_free(next); /* for a ping that will not come */
      break;
    }
    bench_finish(next, "the receive of a ping");
    tb_work *answer = bench_issue(r->comm, &pong);
    if (!last) next = bench_issue(r->comm, &ping); /* after the answer: it is what is being timed */
    if (sent) bench_finish(sent, "the send of a pong");
    sent = answer;
    if (last) break;
  }
  if (sent) bench_finish(sent, "the send of a pong");
  pt_stop_end(&stop);
}

static void run_size(const pt_options *o, tb_comm *comm, uint64_t bytes, FILE *json, int first) {
  run r = {.o = o, .comm = comm, .bytes = bytes, .ping = calloc(1, bytes), .pong = calloc(1, bytes)};
  if (!r.ping || !r.pong) bench_die("out of memory for two messages of %llu bytes", (unsigned long long)bytes);
  samples s = {0};
  bench_barrier(comm);
  if (!o->host) server(&r);
  else client(&r, &s);
  bench_barrier(comm);
  if (o->host) {
    char pct[16];
    double share = s.received / (double)s.n;
    bench_stats t = bench_summary(s.us, s.n);
    printf(" %-10llu %-14zu %-12.2f %-12.2f %-16.2f %-12.2f %-13.2f %-20.2f %-22.2f %s\n", (unsigned long long)bytes,
           s.n, t.min, t.max, t.p50, t.avg, t.stdev, t.p99, t.p999, bench_pct(share, pct, sizeof pct));
    fflush(stdout);
    pt_json_row(json, first,
                (const char *const[]){"MsgSize", "n_iterations", "t_min_us", "t_max_us", "t_typical_us", "t_avg_us",
                                      "t_stdev_us", "percentile_99_us", "percentile_99_9_us", "recv_pct"},
                (double[]){(double)bytes, (double)s.n, t.min, t.max, t.p50, t.avg, t.stdev, t.p99, t.p999,
                           share * 100}, 10);
  }
  free(s.us);
  free(r.ping);
  free(r.pong);
}

int main(int argc, char **argv) {
  bench_program = "pingpong_lat";
  pt_options o = {.port = 18515, .iters = 1000, .bytes = 2, .depth = 1, .deadline_ns = BENCH_EXACT};
  pt_parse(argc, argv, &o, "pingpong_lat: latency of a message, half of a round trip", 1);
  tb_comm *comm = pt_connect(&o);
  pt_banner(&o, comm);
  FILE *json = pt_json_open(&o, comm, "pingpong_lat");
  if (o.host)
    printf(" #bytes     #iterations    t_min[usec]  t_max[usec]  t_typical[usec]  t_avg[usec]  t_stdev[usec] "
           "99%% percentile[usec] 99.9%% percentile[usec] recv[%%]\n");
  else
    printf(" the client prints the figures\n");
  fflush(stdout);
  if (!o.all) run_size(&o, comm, o.bytes, json, 1);
  for (uint64_t bytes = 2; o.all && bytes <= PT_MAX_BYTES; bytes *= 2) run_size(&o, comm, bytes, json, bytes == 2);
  pt_json_close(&o, json);
  tb_close(comm);
  return 0;
}
