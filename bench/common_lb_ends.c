/* common_lb_ends.c - the two ends of link_bench (common_lb.h).
 *
 * The receiver grants by cumulative count, so that nothing overflows, unless there is no window. Frames are a 64 byte
 * header and a payload out of a 25 MB buffer, referred to where the link can. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "common.h"
#include "common_lb.h"

enum { BYTES = 25 << 20, SLICE = 4096, SLICES = 1 << 16, LOST_NS = 20000000, STRETCH = 64 };

typedef struct {
  const lb_options *o;
  const tb_link_ops *ops;
  tb_link *link;
  int fd, who;
  bench_meter meter;
  lb_outcome out;
  tb_rx rx[LB_BURST_MAX];
  uint64_t slice_ticks, slice_frames;
  double *slices;
  size_t slices_count;
} end;

void lb_say(int fd, const lb_message *m) {
  if (send(fd, m, sizeof *m, MSG_NOSIGNAL) != sizeof *m) bench_die("the other process of this run is gone");
}

void lb_hear(int fd, char kind, lb_message *m) {
  if (recv(fd, m, sizeof *m, 0) != sizeof *m || m->kind != kind) bench_die("the other process of this run is gone");
}

static bool heard(int fd) {
  struct pollfd p = {.fd = fd, .events = POLLIN};
  return poll(&p, 1, 0) > 0;
}

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void go_to(const lb_options *o, int who) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (o->cpu[who] >= 0) {
    CPU_SET((size_t)o->cpu[who], &set);
    if (sched_setaffinity(0, sizeof set, &set)) bench_die("pinning to CPU %d: %s", o->cpu[who], strerror(errno));
  }
  if (!o->netns[who]) return;
  char path[128];
  snprintf(path, sizeof path, "/run/netns/%s", o->netns[who]);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || setns(fd, 0)) bench_die("entering the network namespace %s: %s", path, strerror(errno));
  close(fd);
}

static void open_end(end *e, const lb_options *o, int fd, int who) {
  char error[1024] = "", line[512];
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  go_to(o, who);
  *e = (end){.o = o, .ops = o->ops, .fd = fd, .who = who, .slices = malloc(SLICES * sizeof *e->slices)};
  /* Of memif's two ends the receiver, which opens first, has to be the server: rank 0. */
  tb_link_cfg cfg = {.interface = o->interface, .device = o->device[who], .ip = o->ip[who], .mtu = o->frame,
                     .flows = o->flows, .buffer = 4 << 20, .peers = 2, .self = who == LB_SENDER, .busy = o->busy,
                     .hugepages = o->hugepages, .no_offload = o->no_offload, .error = error, .error_len = sizeof error};
  int rc = e->ops->open(&cfg, &e->link);
  if (rc) bench_die("%s", *error ? error : strerror(-rc));
  if (e->ops->caps(e->link)->mtu < o->frame)
    bench_die("frames of %u bytes are more than this link carries: %u", o->frame, e->ops->caps(e->link)->mtu);
  e->ops->describe(e->link, line, sizeof line);
  if (!o->said) fprintf(stderr, "# %s: %s\n", who == LB_SENDER ? "sender" : "receiver", line);
  bench_meter_open(&e->meter);
}

static void meet(end *e) {
  lb_message m = {.kind = LB_ADDRESS};
  e->ops->local_addr(e->link, &m.address);
  lb_say(e->fd, &m);
  lb_hear(e->fd, LB_ADDRESS, &m);
  int rc = e->ops->peer_add(e->link, 0, &m.address);
  if (rc) bench_die("peer_add: %s", strerror(-rc));
}

/* One call's worth: frames and what it took. */
static void note(end *e, uint64_t frames, uint64_t ticks) {
  e->out.frames += frames;
  e->out.calls++;
  e->slice_frames += frames;
  e->slice_ticks += ticks;
  if (e->slice_frames < SLICE) return;
  if (e->slices_count < SLICES) e->slices[e->slices_count++] = (double)e->slice_ticks / (double)e->slice_frames;
  e->slice_frames = e->slice_ticks = 0;
}

static void report(end *e, const bench_reading *begin, uint64_t payload) {
  tb_link_stats s;
  lb_message m = {.kind = LB_OUTCOME};
  e->out.loop = bench_meter_since(&e->meter, begin);
  e->out.no_counter = e->meter.fd < 0 ? e->meter.why_not : 0;
  if (!e->slices_count && e->slice_frames)
    e->slices[e->slices_count++] = (double)e->slice_ticks / (double)e->slice_frames;
  e->out.call_ticks = e->slices_count ? bench_summary(e->slices, e->slices_count).p50 : 0;
  e->ops->stats(e->link, &s);
  e->out.payload = payload;
  e->out.copied = s.tx_copied;
  e->out.link_calls = e->who == LB_SENDER ? s.tx_calls : s.rx_calls;
  e->out.overflow = s.rx_overflow;
  m.outcome = e->out;
  lb_say(e->fd, &m);
}

__attribute__((noreturn)) static void close_end(end *e) {
  lb_message m;
  lb_hear(e->fd, LB_OVER, &m);
  bench_meter_close(&e->meter);
  e->ops->close(e->link);
  free(e->slices);
  exit(0);
}

/* ---- the receiver ---- */

static volatile float sink;

static uint64_t look_at(const end *e, int k) {
  uint64_t ours = 0;
  for (int i = 0; i < k; i++) {
    ours += e->rx[i].len == e->o->frame;
    if (!e->o->reduce) continue;
    const float *f = (const float *)(const void *)(e->rx[i].data + LB_HEAD);
    float sum = 0;
    for (uint32_t j = 0; j < (e->rx[i].len - LB_HEAD) / 4; j++) sum += f[j];
    sink = sum;
  }
  return ours;
}

static void await_hello(end *e) {
  lb_message m = {.kind = LB_HEARD};
  while (e->ops->rx_burst(e->link, 0, e->rx, LB_BURST_MAX) <= 0) e->ops->wait(e->link, 0, now() + 1000000);
  e->ops->rx_release(e->link, 0);
  lb_say(e->fd, &m);
}

static void grant(end *e, uint64_t *granted) {
  static char head[LB_HEAD];
  tb_tx tx = {.head = head, .head_len = LB_HEAD};
  memcpy(head, &e->out.frames, sizeof e->out.frames);
  if (e->ops->tx_burst(e->link, 0, &tx, 1) == 1) *granted = e->out.frames;
}

static void receive(end *e) {
  const lb_options *o = e->o;
  uint64_t granted = 0, every = UINT64_MAX;
  if (o->window_mib > 0) every = (uint64_t)(o->window_mib * (1 << 20)) / o->frame / 8 + 1;
  uint64_t first = 0, last = 0;
  bench_reading begin = {0};
  for (uint32_t idle = 0;;) {
    uint64_t t = bench_ticks();
    int k = e->ops->rx_burst(e->link, 0, e->rx, (int)o->burst);
    if (k > 0) {
      t = bench_ticks() - t;
      if (!first) begin = bench_meter_read(&e->meter), first = begin.ns;
      uint64_t ours = look_at(e, k), r = bench_ticks();
      e->ops->rx_release(e->link, 0);
      if (ours) note(e, ours, t + bench_ticks() - r);
      idle = 0;
      if (e->out.frames - granted >= every) grant(e, &granted);
      continue;
    }
    if (!idle++) last = now();
    if (!o->busy) e->ops->wait(e->link, 0, now() + 5000000);
    if (idle % (o->busy ? 4096 : 8) == 0 && heard(e->fd)) break;
  }
  e->out.active_ns = last > first && first ? last - first : 0;
  if (first) report(e, &begin, 0);
  else bench_die("nothing arrived");
}

/* A stretch of whole frames in calls of `burst`, between two marks. */
static uint32_t stepped_rx(end *e, uint32_t frames) {
  uint32_t got = 0;
  bench_steps_mark();
  while (got < frames) {
    int k = e->ops->rx_burst(e->link, 0, e->rx, (int)e->o->burst);
    e->ops->rx_release(e->link, 0);
    if (k <= 0) break;
    got += (uint32_t)k;
  }
  bench_steps_mark();
  return got;
}

void lb_receiver(const lb_options *o, int fd) {
  end e;
  lb_message m;
  open_end(&e, o, fd, LB_RECEIVER);
  meet(&e);
  await_hello(&e);
  receive(&e);
  lb_hear(fd, LB_OVER, &m);
  if (o->steps) {
    lb_hear(fd, LB_STEP, &m);
    m = (lb_message){.kind = LB_STEPPED};
    for (int i = 0; i <= LB_STEP_TURNS; i++)
      m.frames[i] = stepped_rx(&e, i ? (o->burst > STRETCH ? o->burst : STRETCH) : 0);
    lb_say(fd, &m);
  }
  close_end(&e);
}

/* ---- the sender ---- */

typedef struct {
  char *data;
  size_t at;
  uint32_t region, payload;
  bool ref;
  tb_tx tx[LB_BURST_MAX];
  char head[LB_BURST_MAX][LB_HEAD];
} load;

static load *make_load(end *e) {
  load *l = calloc(1, sizeof *l);
  if (!l || !(l->data = malloc(BYTES))) bench_die("out of memory");
  memset(l->data, 1, BYTES);
  l->payload = e->o->frame - LB_HEAD;
  l->ref = e->ops->caps(e->link)->ref != TB_REF_NONE;
  int rc = e->ops->mem_reg(e->link, l->data, BYTES, &l->region);
  if (rc) bench_die("mem_reg: %s", strerror(-rc));
  return l;
}

static void make_frames(load *l, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    if (l->at + l->payload > BYTES) l->at = 0;
    l->tx[i] = (tb_tx){.head = l->head[i], .head_len = LB_HEAD, .pay = l->data + l->at, .pay_len = l->payload,
                       .ref = l->ref, .region = l->region};
    l->at += l->payload;
  }
}

/* Until the receiver says that it heard: addresses are resolved then, and links are up. */
static void say_hello(end *e) {
  lb_message m;
  char head[LB_HEAD] = {0};
  for (int i = 0; !heard(e->fd); i++) {
    tb_tx tx = {.head = head, .head_len = LB_HEAD};
    if (i > 10000) bench_die("nothing arrives at the receiver");
    e->ops->tx_burst(e->link, 0, &tx, 1);
    e->ops->wait(e->link, 0, now() + 1000000);
    while (e->ops->rx_burst(e->link, 0, e->rx, LB_BURST_MAX) > 0) e->ops->rx_release(e->link, 0);
  }
  lb_hear(e->fd, LB_HEARD, &m);
}

/* Takes the grants that wait; returns the highest. */
static uint64_t grants(end *e, uint64_t acked) {
  for (int k; (k = e->ops->rx_burst(e->link, 0, e->rx, 16)) > 0; e->ops->rx_release(e->link, 0))
    for (int i = 0; i < k; i++) {
      uint64_t n;
      memcpy(&n, e->rx[i].data, sizeof n);
      if (n > acked) acked = n;
    }
  return acked;
}

/* How many frames the window has room for; what no grant came for in a while counts as lost. */
static uint32_t room(end *e, uint64_t window, uint64_t *acked, uint64_t *lost, uint64_t *last) {
  uint64_t seen = grants(e, *acked), least = window < e->o->burst ? window : e->o->burst;
  if (seen != *acked) *last = now(), *acked = seen;
  uint64_t open = window - (e->out.frames - *lost - seen);
  if (open > window) open = window;
  if (open >= (least + 1) / 2) return (uint32_t)(open < e->o->burst ? open : e->o->burst);
  if (!e->o->busy) e->ops->wait(e->link, 0, now() + 5000000);
  uint64_t t = now();
  if (t - *last > LOST_NS) *lost = e->out.frames - *acked, *last = t;
  return 0;
}

static void transmit(end *e, load *l) {
  const lb_options *o = e->o;
  uint64_t window = o->window_mib > 0 ? (uint64_t)(o->window_mib * (1 << 20)) / o->frame + 1 : 0;
  uint64_t acked = 0, lost = 0, last = now(), until = last + (uint64_t)(o->seconds * 1e9);
  bench_reading begin = bench_meter_read(&e->meter);
  while (now() < until) {
    uint32_t n = window ? room(e, window, &acked, &lost, &last) : o->burst;
    if (!n) continue;
    make_frames(l, n);
    uint64_t t = bench_ticks();
    int k = e->ops->tx_burst(e->link, 0, l->tx, (int)n);
    if (k < 0) bench_die("tx_burst: %s", strerror(-k));
    if (k > 0) note(e, (uint64_t)k, bench_ticks() - t);
    if (k < (int)n && !o->busy) e->ops->wait(e->link, 0, now() + 1000000);
  }
  report(e, &begin, e->out.frames * l->payload);
}

static uint32_t stepped_tx(end *e, load *l, uint32_t frames) {
  uint32_t sent = 0;
  make_frames(l, e->o->burst);
  bench_steps_mark();
  while (sent < frames) {
    int k = e->ops->tx_burst(e->link, 0, l->tx, (int)e->o->burst);
    if (k <= 0) break;
    sent += (uint32_t)k;
  }
  bench_steps_mark();
  return sent;
}

void lb_sender(const lb_options *o, int fd) {
  end e;
  lb_message m;
  open_end(&e, o, fd, LB_SENDER);
  load *l = make_load(&e);
  meet(&e);
  say_hello(&e);
  transmit(&e, l);
  if (o->steps) {
    lb_hear(fd, LB_STEP, &m);
    m = (lb_message){.kind = LB_STEPPED};
    for (int i = 0; i <= LB_STEP_TURNS; i++)
      m.frames[i] = stepped_tx(&e, l, i ? (o->burst > STRETCH ? o->burst : STRETCH) : 0);
    lb_say(fd, &m);
  }
  close_end(&e);
}
