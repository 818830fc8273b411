/* udp_bench.c - raw throughput of the udp link between two processes over one host's addresses.
 *
 *   udp_bench [-i interface] [-s seconds] [-f flows] [-w window_MiB] [-n] [-r] [-p] [frame ...]
 *   -n: no offloads (one datagram a call); -r: the receiver also reads every byte (adds the floats up);
 *   -p: sender on CPU 0, receiver on CPU 1
 *
 * The receiver grants by cumulative count, so that nothing overflows and Gb/s is goodput (payload, 1e9 bits); what is
 * lost all the same stands beside it. Frames are a 64 byte header and a payload referred to in a 25 MB buffer. */
#include "links/link.h"
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BURST = 256, HEAD = 64 };

typedef struct {
  double seconds, window_mib;
  uint32_t frame, flows;
  const char *interface;
  int no_offload, reduce, pin;
} options;
typedef struct { double seconds, cpu; uint64_t frames, calls, overflow; } outcome;

static const tb_link_ops *ops = &tb_link_udp;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double cpu(void) {
  struct rusage r;
  getrusage(RUSAGE_SELF, &r);
  return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) + 1e-6 * (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

static void die(const char *what, int err) {
  fprintf(stderr, "udp_bench: %s: %s\n", what, strerror(err < 0 ? -err : err));
  exit(1);
}

static tb_link *start(const options *o, int say) {
  char error[512] = "", line[512];
  tb_link_cfg cfg = {.interface = o->interface, .mtu = o->frame, .flows = o->flows, .buffer = 4 << 20, .peers = 2,
                     .no_offload = o->no_offload, .error = error, .error_len = sizeof error};
  tb_link *link;
  int rc = ops->open(&cfg, &link);
  if (rc) die(error, rc);
  ops->describe(link, line, sizeof line);
  if (say) printf("# %s\n", line);
  fflush(stdout);
  return link;
}

static void pin(const options *o, int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (o->pin && sched_setaffinity(0, sizeof set, &set)) die("pinning", errno);
}

static void meet(tb_link *link, int fd) {
  tb_addr mine, theirs;
  ops->local_addr(link, &mine);
  if (write(fd, &mine, sizeof mine) != sizeof mine) die("meet", EIO);
  if (read(fd, &theirs, sizeof theirs) != sizeof theirs) die("meet", EIO);
  int rc = ops->peer_add(link, 0, &theirs);
  if (rc) die("peer_add", rc);
}

static uint64_t clock_ns(void) { return (uint64_t)(now() * 1e9); }

static volatile float sink;

static void receiver(const options *o, int fd) {
  pin(o, 1);
  tb_link *link = start(o, 0);
  tb_rx rx[BURST];
  uint64_t frames = 0, granted = 0, every = (uint64_t)(o->window_mib * (1 << 20)) / o->frame / 8 + 1;
  char grant[HEAD] = {0};
  int done = 0;
  double cpu0;
  meet(link, fd);
  cpu0 = cpu();
  while (!done) {
    int k = ops->rx_burst(link, 0, rx, BURST);
    for (int i = 0; i < k; i++) {
      done |= rx[i].len == HEAD;
      frames += rx[i].len == o->frame;
      if (o->reduce) {
        const float *f = (const float *)(const void *)(rx[i].data + HEAD);
        float sum = 0;
        for (uint32_t j = 0; j < (rx[i].len - HEAD) / 4; j++) sum += f[j];
        sink = sum;
      }
    }
    if (k > 0) ops->rx_release(link, 0);
    if (frames - granted >= every) {
      memcpy(grant, &frames, sizeof frames);
      tb_tx tx = {.peer = 0, .head = grant, .head_len = HEAD};
      if (ops->tx_burst(link, 0, &tx, 1) == 1) granted = frames;
    }
    if (!k) ops->wait(link, 0, clock_ns() + 100000000);
  }
  tb_link_stats s;
  ops->stats(link, &s);
  outcome out = {.cpu = cpu() - cpu0, .frames = frames, .calls = s.rx_calls, .overflow = s.rx_overflow};
  if (write(fd, &out, sizeof out) != sizeof out) die("report", EIO);
  ops->close(link);
  exit(0);
}

/* Takes the grants that wait; returns the highest. */
static uint64_t grants(tb_link *link, uint64_t acked) {
  tb_rx rx[16];
  int k;
  while ((k = ops->rx_burst(link, 0, rx, 16)) > 0) {
    for (int i = 0; i < k; i++) {
      uint64_t n;
      memcpy(&n, rx[i].data, sizeof n);
      if (n > acked) acked = n;
    }
    ops->rx_release(link, 0);
  }
  return acked;
}

static void sender(const options *o, int fd) {
  pin(o, 0);
  tb_link *link = start(o, 1);
  size_t bytes = 25 << 20;
  uint32_t payload = o->frame - HEAD, region;
  uint64_t sent = 0, acked = 0, lost = 0, window = (uint64_t)(o->window_mib * (1 << 20)) / o->frame + 1;
  char *data = malloc(bytes), (*heads)[HEAD] = calloc(BURST, HEAD);
  size_t at = 0;
  tb_tx tx[BURST];
  memset(data, 1, bytes);
  meet(link, fd);
  ops->mem_reg(link, data, bytes, &region);
  double begin = now(), end = begin + o->seconds, cpu0 = cpu(), last = begin;
  while (now() < end) {
    uint64_t seen = grants(link, acked), open = window - (sent - lost - seen);
    if (seen != acked) last = now(), acked = seen;
    if (open > window) open = window;
    if (open < (window < BURST ? window : BURST) / 2) {
      ops->wait(link, 0, clock_ns() + 5000000);
      if (now() - last > 0.02) lost = sent - acked, last = now();
      continue;
    }
    int n = open < BURST ? (int)open : BURST;
    for (int i = 0; i < n; i++) {
      if (at + payload > bytes) at = 0;
      tx[i] = (tb_tx){.head = heads[i], .head_len = HEAD, .pay = data + at, .pay_len = payload, .ref = true,
                      .region = region};
      at += payload;
    }
    int k = ops->tx_burst(link, 0, tx, n);
    if (k < 0) die("tx_burst", k);
    if (k < n) ops->wait(link, 0, clock_ns() + 1000000);
    sent += (uint64_t)k;
  }
  double took = now() - begin, used = cpu() - cpu0;
  outcome out;
  for (int i = 0; i < 3; i++) {
    tb_tx bye = {.head = heads[0], .head_len = HEAD};
    usleep(20000);
    ops->tx_burst(link, 0, &bye, 1);
  }
  if (read(fd, &out, sizeof out) != sizeof out) die("report", EIO);
  tb_link_stats s;
  ops->stats(link, &s);
  printf("%9u %9.2f %9.2f %8.3f %9.1f %9.1f %9.2f %9.2f\n", o->frame, (double)out.frames * payload * 8e-9 / took,
         (double)out.frames * payload * 1e-9 / took, sent ? 100.0 * (1 - (double)out.frames / (double)sent) : 0.0,
         (double)sent / (double)s.tx_calls, (double)out.frames / (double)out.calls, used / took, out.cpu / took);
  free(data);
  free(heads);
  ops->close(link);
}

static void measure(const options *o) {
  int fd[2], status;
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fd)) die("socketpair", errno);
  fflush(stdout);
  pid_t child = fork();
  if (child < 0) die("fork", errno);
  if (!child) receiver(o, fd[1]);
  sender(o, fd[0]);
  waitpid(child, &status, 0);
  close(fd[0]);
  close(fd[1]);
}

int main(int argc, char **argv) {
  options o = {.seconds = 2, .window_mib = 1, .interface = "127.0.0.1"};
  uint32_t defaults[] = {1472, 4096, 7744, 8960};
  int c;
  while ((c = getopt(argc, argv, "i:s:f:w:nrp")) != -1) {
    if (c == 'i') o.interface = optarg;
    else if (c == 's') o.seconds = atof(optarg);
    else if (c == 'f') o.flows = (uint32_t)atoi(optarg);
    else if (c == 'w') o.window_mib = atof(optarg);
    else if (c == 'n') o.no_offload = 1;
    else if (c == 'r') o.reduce = 1;
    else if (c == 'p') o.pin = 1;
    else {
      fprintf(stderr, "usage: udp_bench [-i interface] [-s seconds] [-f flows] [-w window_MiB] [-nrp] [frame ...]\n");
      return 2;
    }
  }
  printf("# %d frame sizes, %.1f s each; payload bits; frames per system call; cores used\n",
         optind < argc ? argc - optind : 4, o.seconds);
  printf("# frame(B)    Gb/s      GB/s    lost(%%)  tx/call   rx/call   tx_cores  rx_cores\n");
  if (optind == argc)
    for (int i = 0; i < 4; i++) o.frame = defaults[i], measure(&o);
  for (; optind < argc; optind++) {
    o.frame = (uint32_t)atoi(argv[optind]);
    if (o.frame <= HEAD) die("frames are larger than their 64 byte header", EINVAL);
    measure(&o);
  }
  return 0;
}
