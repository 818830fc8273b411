/* stream_bw.c - bandwidth of a stream of messages between two ranks, in perftest's form (ib_send_bw).
 *
 * Each way is a lane: up to -t operations of one tag under way, matched by order of issue. With -D the receiver has
 * receives posted that no message will come for; the sender's exact stop message says how many did come. */
#include <stdlib.h>
#include <string.h>
#include "common_perftest.h"

#define HOLD_BYTES (256ull << 20) /* of messages under way */
#define PEAK_SAMPLES (1u << 20)
#define PEAK_WINDOW_US 10000.0

typedef struct {
  const pt_options *o;
  tb_comm *comm;
  uint64_t bytes, t0;
  uint32_t depth;
} run;

typedef struct {
  int kind, way, peer;
  int told;            /* sender, -D: the stop message is on its way */
  uint8_t *memory;     /* a slot per message under way when receiving; one for all when sending */
  tb_work **work;      /* ring of depth */
  uint64_t posted, done;
  double received;
  uint64_t done_at;    /* of the last one, ns from t0 */
  double *done_us;     /* of the first PEAK_SAMPLES */
  pt_stop stop;
} lane;

static void open_lane(run *r, lane *l, int kind, int way) {
  *l = (lane){.kind = kind, .way = way, .peer = 1 - tb_rank(r->comm)};
  size_t slots = kind == TB_RECV ? r->depth : 1;
  l->memory = malloc(slots * r->bytes);
  l->work = calloc(r->depth, sizeof *l->work);
  l->done_us = malloc(PEAK_SAMPLES * sizeof *l->done_us);
  if (!l->memory || !l->work || !l->done_us)
    bench_die("out of memory for %zu messages of %llu bytes", slots, (unsigned long long)r->bytes);
  memset(l->memory, 0, slots * r->bytes);
  if (kind == TB_RECV && r->o->duration_ns) pt_stop_post(&l->stop, r->comm, l->peer, r->bytes, way);
}

static int may_post(run *r, lane *l) {
  if (l->posted - l->done >= r->depth) return 0;
  if (!r->o->duration_ns) return l->posted < r->o->iters;
  if (l->kind == TB_SEND) return tb_now() - r->t0 < r->o->duration_ns;
  return !pt_stop_heard(&l->stop) || l->posted < l->stop.total;
}

static int finished(run *r, lane *l) {
  if (!r->o->duration_ns) return l->done == r->o->iters;
  if (l->kind == TB_SEND) return l->told && l->done == l->posted;
  return pt_stop_heard(&l->stop) && l->done >= l->stop.total;
}

static void refill(run *r, lane *l) {
  while (may_post(r, l)) {
    uint64_t slot = l->posted % r->depth;
    uint8_t *buffer = l->memory + (l->kind == TB_RECV ? slot * r->bytes : 0);
    tb_call call = pt_message(r->o, l->kind, l->peer, r->bytes, l->way, buffer);
    l->work[slot] = bench_issue(r->comm, &call);
    l->posted++;
  }
  if (l->kind == TB_SEND && r->o->duration_ns && !l->told && tb_now() - r->t0 >= r->o->duration_ns) {
    pt_stop_tell(&l->stop, r->comm, l->peer, r->bytes, l->way, l->posted);
    l->told = 1;
  }
}

static tb_work *oldest(run *r, lane *l) {
  return l->posted > l->done && !finished(r, l) ? l->work[l->done % r->depth] : NULL;
}

static int collect(run *r, lane *l) {
  int n = 0;
  for (tb_work *w; (w = oldest(r, l)) && tb_done(w); n++) {
    l->received += bench_finish(w, l->kind == TB_SEND ? "a send" : "a receive").received;
    l->done_at = tb_now() - r->t0;
    if (l->done < PEAK_SAMPLES) l->done_us[l->done] = (double)l->done_at / 1e3;
    l->work[l->done++ % r->depth] = NULL;
  }
  return n;
}

/* Returns as soon as the oldest operation of the lane is done; the slice only bounds how late another lane, or a stop
 * message, is noticed. */
static void wait_a_little(run *r, lane *l, int lanes) {
  tb_work *w = oldest(r, l);
  if (w) tb_wait(w, lanes > 1 ? 200000 : 2000000);
}

static void close_lane(run *r, lane *l) {
  /* What is left was posted for messages that never were. */
  for (uint64_t i = l->done; i < l->posted; i++) tb_work_free(l->work[i % r->depth]);
  pt_stop_end(&l->stop);
  free(l->memory);
  free(l->work);
  free(l->done_us);
}

/* Bytes per second over the best window of completions that lasts 10 ms or more; of a shorter run, over all of it.
 * Messages complete in bursts, after a repair or a late wake-up: a window of a few messages would measure a burst. */
static double peak(const run *r, const lane *l) {
  uint64_t n = l->done < PEAK_SAMPLES ? l->done : PEAK_SAMPLES, from = 0; /* `from` messages lie before the window */
  double best = l->done_at ? (double)(l->done * r->bytes) / ((double)l->done_at / 1e3) : 0;
  for (uint64_t i = 0; i < n; i++) {
    while (from < i && l->done_us[i] - l->done_us[from] >= PEAK_WINDOW_US) from++;
    double us = l->done_us[i] - (from ? l->done_us[from - 1] : 0), bw = (double)((i + 1 - from) * r->bytes) / us;
    if (us >= PEAK_WINDOW_US && bw > best) best = bw;
  }
  return best * 1e6;
}

static void report(run *r, lane *lanes, int n, FILE *json, int first) {
  /* Receivers know what arrived; the time is the longer one of the two sides. */
  double sums[4] = {0}, longest = 0;
  for (int i = 0; i < n; i++) {
    lane *l = &lanes[i];
    if ((double)l->done_at > longest) longest = (double)l->done_at;
    if (l->kind == TB_RECV) sums[0] += (double)l->done, sums[1] += l->received, sums[2] += peak(r, l);
  }
  bench_reduce(r->comm, TB_SUM, sums, 3);
  bench_reduce(r->comm, TB_MAX, &longest, 1);
  double seconds = longest / 1e9, unit = r->o->gbits ? 1e9 / 8 : 1 << 20;
  double average = sums[0] * (double)r->bytes / seconds / unit, top = sums[2] / unit, share = sums[1] / sums[0];
  char pct[16];
  printf(" %-10llu %-14.0f %-18.2f %-21.2f %-15.6f %s\n", (unsigned long long)r->bytes, sums[0], top, average,
         sums[0] / seconds / 1e6, bench_pct(share, pct, sizeof pct));
  fflush(stdout);
  int g = r->o->gbits;
  pt_json_row(json, first,
              (const char *const[]){"MsgSize", "n_iterations", g ? "BW_peak_Gbps" : "BW_peak_MiBps",
                                    g ? "BW_average_Gbps" : "BW_average_MiBps", "MsgRate_Mpps", "recv_pct"},
              (double[]){(double)r->bytes, sums[0], top, average, sums[0] / seconds / 1e6, share * 100}, 6);
}

static void run_size(const pt_options *o, tb_comm *comm, uint64_t bytes, FILE *json, int first) {
  run r = {.o = o, .comm = comm, .bytes = bytes, .depth = o->depth};
  if (r.depth > HOLD_BYTES / bytes) r.depth = HOLD_BYTES / bytes > 2 ? (uint32_t)(HOLD_BYTES / bytes) : 2;
  lane lanes[2];
  int n = 1 + o->both;
  open_lane(&r, &lanes[0], o->host ? TB_SEND : TB_RECV, PT_FORTH);
  if (o->both) open_lane(&r, &lanes[1], o->host ? TB_RECV : TB_SEND, PT_BACK);
  bench_barrier(comm);
  r.t0 = tb_now();
  for (int turn = 0;; turn++) {
    int open = 0, moved = 0;
    for (int i = 0; i < n; i++) refill(&r, &lanes[i]);
    for (int i = 0; i < n; i++) moved += collect(&r, &lanes[i]);
    for (int i = 0; i < n; i++) open += !finished(&r, &lanes[i]);
    if (!open) break;
    if (!moved) wait_a_little(&r, &lanes[turn % n], open);
  }
  report(&r, lanes, n, json, first);
  for (int i = 0; i < n; i++) close_lane(&r, &lanes[i]);
  bench_barrier(comm);
}

int main(int argc, char **argv) {
  bench_program = "stream_bw";
  pt_options o = {.port = 18515, .iters = 1000, .bytes = 65536, .depth = 128, .deadline_ns = BENCH_EXACT};
  pt_parse(argc, argv, &o, "stream_bw: bandwidth of messages from the client to the server", 0);
  tb_comm *comm = pt_connect(&o);
  pt_banner(&o, comm);
  printf(o.gbits ? " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]    MsgRate[Mpps]   recv[%%]\n"
                 : " #bytes     #iterations    BW peak[MiB/sec]   BW average[MiB/sec]   MsgRate[Mpps]   recv[%%]\n");
  FILE *json = pt_json_open(&o, comm, "stream_bw");
  if (!o.all) run_size(&o, comm, o.bytes, json, 1);
  for (uint64_t bytes = 2; o.all && bytes <= PT_MAX_BYTES; bytes *= 2) run_size(&o, comm, bytes, json, bytes == 2);
  pt_json_close(&o, json);
  tb_close(comm);
  return 0;
}
