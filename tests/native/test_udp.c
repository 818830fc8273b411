/* Tests of links/udp*.c over loopback. Where the kernel must refuse something, the two system calls are replaced. */
#include "links/udp.h"
#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#define OPS (&tb_link_udp)
enum { HEAD = 64, LINKS = 4 };

typedef struct { tb_link *link[LINKS]; int n; } net;

static char error[1024];
static int (*real_sendmmsg)(int, struct mmsghdr *, unsigned, int);
static int (*real_recvmmsg)(int, struct mmsghdr *, unsigned, int, struct timespec *);

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static tb_link_cfg config(void) {
  error[0] = 0;
  return (tb_link_cfg){.interface = "127.0.0.1", .flows = 2, .peers = LINKS, .error = error, .error_len = sizeof error};
}

static tb_link *open_link(const tb_link_cfg *cfg) {
  tb_link *link = NULL;
  int rc = OPS->open(cfg, &link);
  if (rc) fail_msg("open: %d %s", rc, error);
  return link;
}

/* n links, each of them knowing all others by number. */
static net open_net(int n, const tb_link_cfg *cfg) {
  net w = {.n = n};
  for (int i = 0; i < n; i++) w.link[i] = open_link(cfg);
  for (int i = 0; i < n; i++) {
    tb_addr addr;
    assert_int_equal(OPS->local_addr(w.link[i], &addr), 0);
    for (int j = 0; j < n; j++) assert_int_equal(OPS->peer_add(w.link[j], (uint32_t)i, &addr), 0);
  }
  return w;
}

static void close_net(net *w) {
  for (int i = 0; i < w->n; i++) OPS->close(w->link[i]);
}

static tb_link_stats stats_of(tb_link *link) {
  tb_link_stats s;
  assert_int_equal(OPS->stats(link, &s), 0);
  return s;
}

static int events_of(tb_link *link, tb_link_event *e, int n) { return OPS->events(link, e, n); }

/* Byte j of frame `id`: different for neighbours in both directions. */
static uint8_t pattern(uint32_t id, uint32_t j) { return (uint8_t)(id * 131 + j * 7 + (j >> 8) + 1); }

typedef struct { uint8_t head[HEAD], *pay; uint32_t pay_len; } frame;

/* A frame says its number and length in its head, so that the receiver can check it alone. */
static frame make_frame(uint32_t id, uint32_t pay_len) {
  frame f = {.pay = malloc(pay_len ? pay_len : 1), .pay_len = pay_len};
  memcpy(f.head, &id, 4);
  memcpy(f.head + 4, &pay_len, 4);
  for (uint32_t j = 8; j < HEAD; j++) f.head[j] = pattern(id, j);
  for (uint32_t j = 0; j < pay_len; j++) f.pay[j] = pattern(id, HEAD + j);
  return f;
}

static uint32_t check_frame(const tb_rx *rx) {
  uint32_t id, pay_len;
  assert_true(rx->len >= HEAD);
  memcpy(&id, rx->data, 4);
  memcpy(&pay_len, rx->data + 4, 4);
  assert_int_equal(rx->len, HEAD + pay_len);
  for (uint32_t j = 8; j < rx->len; j++)
    if (rx->data[j] != pattern(id, j)) fail_msg("frame %u of %u bytes differs at %u", id, rx->len, j);
  return id;
}

/* Receives until `want` frames came or nothing more does; counts how often each number below `ids` arrived. */
static int receive(tb_link *link, int want, uint8_t *seen, uint32_t ids) {
  tb_rx rx[64];
  int got = 0;
  while (got < want) {
    int k = OPS->rx_burst(link, 0, rx, 64);
    assert_true(k >= 0);
    for (int i = 0; i < k; i++) {
      uint32_t id = check_frame(&rx[i]);
      assert_true(id < ids);
      seen[id]++;
    }
    OPS->rx_release(link, 0);
    got += k;
    if (!k && (OPS->wait(link, 0, now_ns() + 200000000) & TB_WAIT_TIMEOUT)) break;
  }
  return got;
}

static void assert_each_once(const uint8_t *seen, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    if (seen[i] != 1) fail_msg("frame %u arrived %u times", i, seen[i]);
}

/* Everything in, in as many bursts as it takes. */
static void send_all(tb_link *link, const tb_tx *tx, int n) {
  for (int done = 0, idle = 0; done < n;) {
    int k = OPS->tx_burst(link, 0, tx + done, n - done);
    if (k < 0) fail_msg("tx_burst: %d at frame %d", k, done);
    done += k;
    idle = k ? 0 : idle + 1;
    assert_true(idle < 100);
  }
}

static void exchange(const tb_link_cfg *cfg, int ref) {
  static const uint32_t sizes[] = {0,    1,    3,    4,    63,   64,   65,   255,  1000, 1000, 1000, 1000,
                                   999,  1408, 1408, 1408, 8,    0,    0,    0,    8896, 8896, 8896, 8896,
                                   8896, 8896, 8896, 8896, 8896, 17,   8896, 4000, 4000, 4001, 4000};
  enum { N = sizeof sizes / sizeof *sizes };
  net w = open_net(2, cfg);
  frame f[N];
  tb_tx tx[N];
  uint8_t seen[N] = {0};
  uint32_t mtu = OPS->caps(w.link[0])->mtu;
  for (uint32_t i = 0; i < N; i++) {
    f[i] = make_frame(i, sizes[i] + HEAD > mtu ? mtu - HEAD : sizes[i]);
    tx[i] = (tb_tx){.peer = 1, .head = f[i].head, .head_len = HEAD, .pay = f[i].pay, .pay_len = f[i].pay_len,
                    .ref = ref};
    if (ref) assert_int_equal(OPS->mem_reg(w.link[0], f[i].pay, f[i].pay_len + 1, &tx[i].region), 0);
  }
  send_all(w.link[0], tx, N);
  for (uint32_t i = 0; i < N; i++) { /* SYNC: nobody reads it again */
    memset(f[i].head, 0, HEAD);
    memset(f[i].pay, 0xee, f[i].pay_len);
  }
  assert_int_equal(receive(w.link[1], N, seen, N), N);
  assert_each_once(seen, N);
  assert_int_equal(OPS->tx_reap(w.link[0], 0), ref ? N : 0);
  assert_int_equal(OPS->tx_quiesce(w.link[0], 0, 0), 0);
  tb_link_stats s = stats_of(w.link[0]), r = stats_of(w.link[1]);
  assert_int_equal(s.tx_frames, N);
  assert_int_equal(r.rx_frames, N);
  assert_int_equal(s.tx_bytes, r.rx_bytes);
  assert_int_equal(s.tx_copied, 0);
  for (uint32_t i = 0; i < N; i++) free(f[i].pay);
  close_net(&w);
}

static void tx_burst__copied_payloads_arrive_intact(void **state) {
  (void)state;
  tb_link_cfg cfg = config();
  exchange(&cfg, 0);
}

static void tx_burst__referred_payloads_arrive_intact(void **state) {
  (void)state;
  tb_link_cfg cfg = config();
  exchange(&cfg, 1);
}

static void tx_burst__works_without_offloads(void **state) {
  (void)state;
  tb_link_cfg cfg = config();
  cfg.no_offload = true;
  exchange(&cfg, 1);
}

static void tx_burst__works_with_the_smallest_and_largest_frames(void **state) {
  (void)state;
  tb_link_cfg cfg = config();
  cfg.mtu = UDP_MTU_MIN;
  exchange(&cfg, 0);
  cfg.mtu = 1000000;
  exchange(&cfg, 0);
}

static void tx_burst__works_over_ipv6(void **state) {
  (void)state;
  tb_link_cfg cfg = config();
  cfg.interface = "::1";
  exchange(&cfg, 1);
}

/* --- replaced system calls --------------------------------------------------------------------------------------- */

static struct {
  int calls, messages, grouped, fail_from, fail_times, error;
  int grouped_only, only_port; /* which messages fail: GSO ones, those to one port */
  int taken;                   /* messages passed so far, for fail_from */
  int fds[UDP_FLOWS_MAX], fd_count;
} hook;

static int port_of(const struct mmsghdr *m) {
  return ntohs(((const struct sockaddr_in *)m->msg_hdr.msg_name)->sin_port);
}

static int fails(const struct mmsghdr *m) {
  if (!hook.error || !hook.fail_times || hook.taken < hook.fail_from) return 0;
  if (hook.grouped_only && !m->msg_hdr.msg_control) return 0;
  return !hook.only_port || hook.only_port == port_of(m);
}

/* Like the kernel: sends what comes before the failing message; the error shows only when that is the first one. */
static int send_hook(int fd, struct mmsghdr *msg, unsigned n, int flags) {
  unsigned good = 0;
  int seen = 0;
  for (int i = 0; i < hook.fd_count; i++) seen |= hook.fds[i] == fd;
  if (!seen && hook.fd_count < UDP_FLOWS_MAX) hook.fds[hook.fd_count++] = fd;
  hook.calls++;
  while (good < n && !fails(&msg[good])) {
    hook.messages++;
    hook.taken++;
    hook.grouped += msg[good++].msg_hdr.msg_control != NULL;
  }
  if (!good) {
    hook.fail_times--;
    errno = hook.error;
    return -1;
  }
  int r = real_sendmmsg(fd, msg, good, flags);
  assert_int_equal(r, good); /* loopback always has room; the receiver's side drops */
  return r;
}

static int set_hook(void **state) {
  (void)state;
  memset(&hook, 0, sizeof hook);
  tb_udp_sendmmsg = send_hook;
  return 0;
}

static int unset_hook(void **state) {
  (void)state;
  tb_udp_sendmmsg = real_sendmmsg;
  tb_udp_recvmmsg = real_recvmmsg;
  return 0;
}

/* n frames of one size, frame i to peer peers[i % peer_count]. */
static frame *make_burst(tb_tx *tx, int n, uint32_t pay_len, const uint32_t *peers, int peer_count) {
  frame *f = calloc((size_t)n, sizeof *f);
  for (int i = 0; i < n; i++) {
    f[i] = make_frame((uint32_t)i, pay_len);
    tx[i] = (tb_tx){.peer = peers[i % peer_count], .head = f[i].head, .head_len = HEAD, .pay = f[i].pay,
                    .pay_len = pay_len};
  }
  return f;
}

static void free_burst(frame *f, int n) {
  for (int i = 0; i < n; i++) free(f[i].pay);
  free(f);
}

static const uint32_t to_1[] = {1};

static void tx_burst__groups_frames_into_few_messages(void **state) {
  (void)state;
  tb_link_cfg cfg = config();
  net w = open_net(2, &cfg);
  tb_tx tx[130];
  uint8_t seen[130] = {0};
  frame *f = make_burst(tx, 130, 100, to_1, 1);
  assert_int_equal(OPS->tx_burst(w.link[0], 0, tx, 130), 130);
  assert_int_equal(hook.calls, 1);
  assert_int_equal(hook.messages, 3); /* 64 + 64 + 2 */
  assert_int_equal(receive(w.link[1], 130, seen, 130), 130);
  assert_each_once(seen, 130);
  free_burst(f, 130);
  memset(&hook, 0, sizeof hook);
  memset(seen, 0, sizeof seen);
  f = make_burst(tx, 14, 7680, to_1, 1);
  assert_int_equal(OPS->tx_burst(w.link[0], 0, tx, 14), 14);
  assert_int_equal(hook.messages, 2); /* 8 * 7744 fit into one datagram's length */
  assert_int_equal(receive(w.link[1], 14, seen, 14), 14);
  free_burst(f, 14);
  close_net(&w);
}

static void tx_burst__serves_several_peers_at_once(void **state) {
  (void)state;
  enum { N = 300 };
  static const uint32_t peers[] = {1, 2, 3, 3, 0};
  tb_link_cfg cfg = config();
  net w = open_net(4, &cfg);
  tb_tx tx[N];
  uint8_t seen[N] = {0};
  frame *f = make_burst(tx, N, 500, peers, 5);
  send_all(w.link[0], tx, N);
  assert_int_equal(receive(w.link[1], N / 5, seen, N), N / 5);
  assert_int_equal(receive(w.link[2], N / 5, seen, N), N / 5);
  assert_int_equal(receive(w.link[3], 2 * N / 5, seen, N), 2 * N / 5);
  assert_int_equal(receive(w.link[0], N / 5, seen, N), N / 5);
  assert_each_once(seen, N);
  free_burst(f, N);
  close_net(&w);
}

static void tx_burst__spreads_over_the_flows(void **state) {
  (void)state;
  tb_link_cfg cfg = config();
  cfg.flows = 4;
  net w = open_net(2, &cfg);
  tb_tx tx[32];
  frame *f = make_burst(tx, 32, 7000, to_1, 1);
  for (int i = 0; i < 64; i++) {
    uint8_t seen[32] = {0};
    send_all(w.link[0], tx, 32);
    assert_int_equal(receive(w.link[1], 32, seen, 32), 32);
    assert_each_once(seen, 32);
  }
  assert_int_equal(hook.fd_count, 4);
  free_burst(f, 32);
  close_net(&w);
}

static void tx_burst__full_socket_takes_a_prefix(void **state) {
  (void)state;
  enum { N = 40 };
  tb_link_cfg cfg = config();
  cfg.flows = 1;
  net w = open_net(2, &cfg);
  tb_tx tx[N];
  uint8_t seen[N] = {0};
  frame *f = make_burst(tx, N, 7680, to_1, 1);
  static const int errors[] = {EAGAIN, ENOBUFS};
  for (int e = 0; e < 2; e++) {
    memset(&hook, 0, sizeof hook);
    memset(seen, 0, sizeof seen);
    hook.error = errors[e];
    hook.fail_from = 2;
    hook.fail_times = 2;
    assert_int_equal(OPS->wait(w.link[0], 0, 0), TB_WAIT_TIMEOUT); /* nobody asked for room */
    assert_int_equal(OPS->tx_burst(w.link[0], 0, tx, N), 16);
    assert_int_equal(OPS->tx_burst(w.link[0], 0, tx + 16, N - 16), 0);
    assert_int_equal(OPS->wait(w.link[0], 0, now_ns() + 1000000000), TB_WAIT_TX);
    assert_int_equal(OPS->tx_burst(w.link[0], 0, tx + 16, N - 16), N - 16);
    assert_int_equal(OPS->wait(w.link[0], 0, 0), TB_WAIT_TIMEOUT);
    assert_int_equal(receive(w.link[1], N, seen, N), N);
    assert_each_once(seen, N);
  }
  assert_int_equal(stats_of(w.link[0]).tx_dropped, 0);
  free_burst(f, N);
  close_net(&w);
}

static void tx_burst__gso_failing_in_mid_run_is_survived(void **state) {
  (void)state;
  static const int errors[] = {EIO, EINVAL, EMSGSIZE, EOPNOTSUPP};
  enum { N = 100 };
  for (int e = 0; e < 4; e++) {
    tb_link_cfg cfg = config();
    net w = open_net(2, &cfg);
    tb_tx tx[N];
    uint8_t seen[N] = {0};
    tb_link_event event[4];
    frame *f = make_burst(tx, N, 7680, to_1, 1);
    assert_int_equal(events_of(w.link[0], event, 4), 0);
    memset(&hook, 0, sizeof hook);
    hook = (__typeof__(hook)){.error = errors[e], .fail_from = 3, .fail_times = 1000, .grouped_only = 1};
    assert_int_equal(OPS->tx_burst(w.link[0], 0, tx, N), N);
    assert_int_equal(hook.grouped, 3);
    assert_int_equal(hook.fail_times, 999); /* not tried again */
    assert_int_equal(receive(w.link[1], N, seen, N), N);
    assert_each_once(seen, N);
    assert_int_equal(OPS->tx_burst(w.link[0], 0, tx, 10), 10);
    assert_int_equal(hook.grouped, 3);
    assert_int_equal(OPS->wait(w.link[0], 0, now_ns() + 1000000000), TB_WAIT_EVENT);
    assert_int_equal(events_of(w.link[0], event, 4), 1);
    assert_int_equal(event[0].level, 30);
    assert_non_null(strstr(event[0].text, "segmentation offload"));
    assert_int_equal(OPS->wait(w.link[0], 0, 0), TB_WAIT_TIMEOUT);
    free_burst(f, N);
    close_net(&w);
  }
}

static int first_port(tb_link *link) { return ((udp_link *)link)->sock[0].port; }

static void tx_burst__one_bad_path_costs_nobody_else_their_gso(void **state) {
  (void)state;
  enum { N = 90 };
  static const uint32_t peers[] = {1, 1, 1, 2, 2, 2};
  tb_link_cfg cfg = config();
  cfg.flows = 1;
  net w = open_net(3, &cfg);
  tb_tx tx[N];
  uint8_t seen[N] = {0};
  tb_link_event event[4];
  frame *f = make_burst(tx, N, 1000, peers, 6);
  hook.error = EINVAL;
  hook.fail_times = 1000000;
  hook.only_port = first_port(w.link[1]);
  assert_int_equal(OPS->tx_burst(w.link[0], 0, tx, N), N);
  assert_int_equal(receive(w.link[2], N / 2, seen, N), N / 2);
  tb_link_stats s = stats_of(w.link[0]);
  assert_int_equal(s.tx_dropped, N / 2);
  assert_int_equal(s.tx_frames, N / 2);
  assert_int_equal(OPS->peer_state(w.link[0], 1), -EINVAL);
  assert_int_equal(OPS->peer_state(w.link[0], 2), 0);
  assert_int_equal(events_of(w.link[0], event, 4), 1);
  assert_non_null(strstr(event[0].text, "sending to 127.0.0.1 fails"));
  hook.error = 0;
  hook.grouped = 0;
  assert_int_equal(OPS->tx_burst(w.link[0], 0, tx + 3, 3), 3);
  assert_int_equal(hook.grouped, 1); /* peer 2 still has it */
  assert_int_equal(OPS->tx_burst(w.link[0], 0, tx, 3), 3);
  assert_int_equal(OPS->peer_state(w.link[0], 1), 0); /* it works again */
  free_burst(f, N);
  close_net(&w);
}

static void tx_burst__soft_error_loses_nothing(void **state) {
  (void)state;
  enum { N = 60 };
  static const int errors[] = {ECONNREFUSED, EHOSTUNREACH, EINTR};
  tb_link_cfg cfg = config();
  net w = open_net(2, &cfg);
  tb_tx tx[N];
  frame *f = make_burst(tx, N, 7000, to_1, 1);
  for (int e = 0; e < 3; e++) {
    uint8_t seen[N] = {0};
    memset(&hook, 0, sizeof hook);
    hook.error = errors[e];
    hook.fail_from = 4;
    hook.fail_times = 2;
    assert_int_equal(OPS->tx_burst(w.link[0], 0, tx, N), N);
    assert_int_equal(hook.fail_times, 0);
    assert_int_equal(receive(w.link[1], N, seen, N), N);
    assert_each_once(seen, N);
  }
  assert_int_equal(stats_of(w.link[0]).tx_dropped, 0);
  free_burst(f, N);
  close_net(&w);
}

static void tx_burst__too_large_for_the_path(void **state) {
  (void)state;
  tb_link_cfg cfg = config();
  net w = open_net(2, &cfg);
  tb_tx tx[4];
  uint8_t seen[4] = {0};
  tb_link_event event[4];
  frame *f = make_burst(tx, 4, 7000, to_1, 1);
  hook.error = EMSGSIZE;
  hook.fail_times = 1000;
  assert_int_equal(OPS->tx_burst(w.link[0], 0, tx, 1), 1); /* a probe: lost, and said so */
  assert_int_equal(OPS->peer_state(w.link[0], 1), -EMSGSIZE);
  assert_int_equal(stats_of(w.link[0]).tx_dropped, 1);
  assert_int_equal(events_of(w.link[0], event, 4), 0);
  assert_false(((udp_link *)w.link[0])->fragmenting);
  hook.fail_times = 2; /* GSO, then alone; then the kernel was told to fragment */
  assert_int_equal(OPS->set_mtu(w.link[0], OPS->caps(w.link[0])->mtu), 0);
  assert_int_equal(OPS->tx_burst(w.link[0], 0, tx, 4), 4);
  assert_true(((udp_link *)w.link[0])->fragmenting);
  assert_int_equal(receive(w.link[1], 4, seen, 4), 4);
  assert_each_once(seen, 4);
  assert_int_equal(events_of(w.link[0], event, 4), 1);
  assert_non_null(strstr(event[0].text, "TAILBOUND_MTU"));
  assert_true(((udp_link *)w.link[0])->gso);
  assert_int_equal(OPS->peer_state(w.link[0], 1), 0);
  free_burst(f, 4);
  close_net(&w);
}

static void tx_burst__bad_frames_are_refused(void **state) {
  (void)state;
  tb_link_cfg cfg = config();
  net w = open_net(2, &cfg);
  uint32_t region, mtu = OPS->caps(w.link[0])->mtu;
  uint8_t head[HEAD] = {0}, *pay = calloc(1, mtu);
  uint8_t seen[4] = {0};
  assert_int_equal(OPS->mem_reg(w.link[0], pay, 1000, &region), 0);
  const tb_tx bad[] = {
      {.peer = 2, .head = head, .head_len = HEAD},
      {.peer = UINT32_MAX, .head = head, .head_len = HEAD},
      {.peer = 1},
      {.peer = 1, .head = NULL, .head_len = HEAD},
      {.peer = 1, .head = head, .head_len = HEAD, .pay = NULL, .pay_len = 1},
      {.peer = 1, .head = head, .head_len = HEAD, .pay = pay, .pay_len = mtu - HEAD + 1},
      {.peer = 1, .head = head, .head_len = HEAD, .pay = pay, .pay_len = UINT32_MAX},
      {.peer = 1, .head = head, .head_len = HEAD, .pay = pay, .pay_len = 1001, .ref = true, .region = region},
      {.peer = 1, .head = head, .head_len = HEAD, .pay = pay + 999, .pay_len = 2, .ref = true, .region = region},
      {.peer = 1, .head = head, .head_len = HEAD, .pay = pay - 1, .pay_len = 2, .ref = true, .region = region},
      {.peer = 1, .head = head, .head_len = HEAD, .pay = pay, .pay_len = 1, .ref = true, .region = region + 1},
      {.peer = 1, .head = head, .head_len = HEAD, .pay = pay, .pay_len = 1, .ref = true, .region = UINT32_MAX},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    static const int want[] = {-ENOENT,   -ENOENT, -EINVAL, -EINVAL, -EINVAL, -EMSGSIZE,
                               -EMSGSIZE, -EFAULT, -EFAULT, -EFAULT, -EFAULT, -EINVAL};
    frame good = make_frame(0, 0);
    tb_tx fine = {.peer = 1, .head = good.head, .head_len = HEAD}, mixed[3] = {fine, bad[i], fine};
    assert_int_equal(OPS->tx_burst(w.link[0], 0, &bad[i], 1), want[i]);
    assert_int_equal(OPS->tx_burst(w.link[0], 0, mixed, 3), 1); /* the good one before it goes */
    assert_int_equal(OPS->tx_burst(w.link[0], 0, mixed + 1, 2), want[i]);
    free(good.pay);
  }
  assert_int_equal(receive(w.link[1], 100, seen, 1), sizeof bad / sizeof *bad);
  assert_int_equal(OPS->tx_burst(w.link[0], 1, bad, 1), -EINVAL);
  assert_int_equal(OPS->tx_burst(w.link[0], 0, bad, -1), -EINVAL);
  assert_int_equal(OPS->tx_burst(w.link[0], 0, bad, 0), 0);
  assert_int_equal(OPS->rx_burst(w.link[0], 1, NULL, 1), -EINVAL);
  assert_int_equal(OPS->wait(w.link[0], 1, 0), -EINVAL);
  free(pay);
  close_net(&w);
}

static void set_mtu__limits_frames(void **state) {
  (void)state;
  tb_link_cfg cfg = config();
  net w = open_net(2, &cfg);
  uint32_t mtu = OPS->caps(w.link[0])->mtu;
  tb_tx tx[1];
  frame *f = make_burst(tx, 1, 1000 - HEAD, to_1, 1);
  assert_int_equal(mtu, UDP_MTU_LOOPBACK);
  assert_int_equal(OPS->set_mtu(w.link[0], mtu + 1), -EINVAL);
  assert_int_equal(OPS->set_mtu(w.link[0], UDP_MTU_MIN - 1), -EINVAL);
  assert_int_equal(OPS->set_mtu(w.link[0], 999), 0);
  assert_int_equal(OPS->tx_burst(w.link[0], 0, tx, 1), -EMSGSIZE);
  assert_int_equal(OPS->set_mtu(w.link[0], 1000), 0);
  assert_int_equal(OPS->tx_burst(w.link[0], 0, tx, 1), 1);
  free_burst(f, 1);
  close_net(&w);
}

/* --- receiving --------------------------------------------------------------------------------------------------- */

static void rx_burst__keeps_what_the_caller_has_no_room_for(void **state) {
  (void)state;
  enum { N = 20 };
  tb_link_cfg cfg = config();
  net w = open_net(2, &cfg);
  tb_tx tx[N];
  tb_rx a[3], b[4], c[N];
  uint8_t seen[N] = {0};
  frame *f = make_burst(tx, N, 700, to_1, 1);
  assert_int_equal(OPS->tx_burst(w.link[0], 0, tx, N), N);
  assert_true(OPS->wait(w.link[1], 0, now_ns() + 1000000000) & TB_WAIT_RX);
  assert_int_equal(OPS->rx_burst(w.link[1], 0, a, 3), 3);
  assert_int_equal(OPS->wait(w.link[1], 0, UINT64_MAX), TB_WAIT_RX); /* the rest of the train */
  assert_int_equal(OPS->rx_burst(w.link[1], 0, b, 4), 4);
  for (int i = 0; i < 3; i++) seen[check_frame(&a[i])]++; /* still leased */
  for (int i = 0; i < 4; i++) seen[check_frame(&b[i])]++;
  OPS->rx_release(w.link[1], 0);
  assert_int_equal(OPS->rx_burst(w.link[1], 0, c, N), N - 7);
  for (int i = 0; i < N - 7; i++) seen[check_frame(&c[i])]++;
  assert_each_once(seen, N);
  OPS->rx_release(w.link[1], 0);
  assert_int_equal(OPS->rx_burst(w.link[1], 0, c, N), 0);
  free_burst(f, N);
  close_net(&w);
}

static void rx_burst__leases_survive_until_release(void **state) {
  (void)state;
  enum { N = 3 * UDP_SLABS };
  tb_link_cfg cfg = config();
  cfg.no_offload = true; /* one slab a frame */
  net w = open_net(2, &cfg);
  tb_tx tx[N];
  tb_rx rx[N];
  uint8_t seen[N] = {0};
  int got = 0, k;
  frame *f = make_burst(tx, N, 300, to_1, 1);
  send_all(w.link[0], tx, N);
  while (got < UDP_SLABS && (k = OPS->rx_burst(w.link[1], 0, rx + got, 5)) > 0) got += k;
  assert_int_equal(got, UDP_SLABS);
  assert_int_equal(OPS->rx_burst(w.link[1], 0, rx + got, 5), 0); /* all slabs are out */
  for (int i = 0; i < got; i++) seen[check_frame(&rx[i])]++;
  OPS->rx_release(w.link[1], 0);
  assert_int_equal(receive(w.link[1], N - got, seen, N), N - got);
  assert_each_once(seen, N);
  free_burst(f, N);
  close_net(&w);
}

/* Partial passes of every length walk the ring of slabs over its end. */
static void rx_burst__ring_wraps(void **state) {
  (void)state;
  enum { N = 1000 };
  tb_link_cfg cfg = config();
  cfg.no_offload = true;
  net w = open_net(2, &cfg);
  tb_tx tx[N];
  tb_rx rx[64];
  uint8_t seen[N] = {0};
  frame *f = make_burst(tx, N, 40, to_1, 1);
  int got = 0, sent = 0;
  unsigned seed = 12345;
  for (int idle = 0; got < N && idle < 100;) {
    seed = seed * 1103515245 + 12345;
    int batch = 1 + (int)(seed >> 16) % 40, room = 1 + (int)(seed >> 24) % 11;
    if (sent < N) sent += OPS->tx_burst(w.link[0], 0, tx + sent, batch < N - sent ? batch : N - sent);
    int held = 0;
    for (int call = 0; call < 3; call++) held += OPS->rx_burst(w.link[1], 0, rx + held, room);
    for (int i = 0; i < held; i++) seen[check_frame(&rx[i])]++;
    OPS->rx_release(w.link[1], 0);
    got += held;
    idle = held ? 0 : idle + 1;
  }
  assert_int_equal(got, N);
  assert_each_once(seen, N);
  free_burst(f, N);
  close_net(&w);
}

static int flag_truncated; /* messages still to be spoiled */

static int recv_hook(int fd, struct mmsghdr *msg, unsigned n, int flags, struct timespec *timeout) {
  int r = real_recvmmsg(fd, msg, n, flags, timeout);
  for (int i = 0; i < r; i++)
    if (flag_truncated && flag_truncated--) msg[i].msg_hdr.msg_flags |= MSG_TRUNC;
  return r;
}

static void rx_burst__truncated_message_is_dropped_and_counted(void **state) {
  (void)state;
  enum { N = 12 };
  tb_link_cfg cfg = config();
  cfg.no_offload = true;
  cfg.flows = 1;
  net w = open_net(2, &cfg);
  tb_tx tx[N];
  uint8_t seen[N] = {0};
  frame *f = make_burst(tx, N, 100, to_1, 1);
  tb_udp_recvmmsg = recv_hook;
  flag_truncated = 2;
  send_all(w.link[0], tx, N);
  assert_int_equal(receive(w.link[1], N, seen, N), N - 2);
  assert_int_equal(stats_of(w.link[1]).rx_truncated, 2);
  assert_int_equal(seen[0] + seen[1], 0);
  free_burst(f, N);
  close_net(&w);
}

static void send_raw_from(const char *source, tb_link *to, const void *data, size_t len) {
  struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)first_port(to))}, own = {.sin_family = AF_INET};
  int fd = socket(AF_INET, SOCK_DGRAM, 0);
  assert_int_equal(inet_pton(AF_INET, source, &own.sin_addr), 1);
  assert_int_equal(bind(fd, (struct sockaddr *)&own, sizeof own), 0);
  sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  assert_int_equal(sendto(fd, data, len, 0, (struct sockaddr *)&sa, sizeof sa), len);
  close(fd);
}

static void send_raw(tb_link *to, const void *data, size_t len) { send_raw_from("127.0.0.1", to, data, len); }

/* The address tells, not the port: translation may change that. */
static void came_from__another_address(void **state) {
  (void)state;
  tb_link_cfg cfg = config();
  net w = open_net(2, &cfg);
  tb_rx rx[2];
  send_raw_from("127.0.0.2", w.link[0], "a", 1);
  send_raw_from("127.0.0.1", w.link[0], "b", 1);
  assert_true(OPS->wait(w.link[0], 0, now_ns() + 1000000000) & TB_WAIT_RX);
  assert_int_equal(OPS->rx_burst(w.link[0], 0, rx, 2), 2);
  for (int i = 0; i < 2; i++) assert_int_equal(OPS->came_from(w.link[0], &rx[i], 1), rx[i].data[0] == 'b');
  OPS->rx_release(w.link[0], 0);
  close_net(&w);
}

static void rx_burst__empty_and_foreign_datagrams(void **state) {
  (void)state;
  tb_link_cfg cfg = config();
  net w = open_net(2, &cfg);
  tb_rx rx[8];
  char big[60000];
  memset(big, 'b', sizeof big);
  send_raw(w.link[0], big, 0);
  send_raw(w.link[0], "x", 1);
  send_raw(w.link[0], big, 0);
  send_raw(w.link[0], big, sizeof big);
  assert_true(OPS->wait(w.link[0], 0, now_ns() + 1000000000) & TB_WAIT_RX);
  assert_int_equal(OPS->rx_burst(w.link[0], 0, rx, 8), 2); /* judging them is the engine's business */
  assert_int_equal(rx[0].len, 1);
  assert_int_equal(rx[1].len, sizeof big);
  assert_memory_equal(rx[1].data, big, sizeof big);
  OPS->rx_release(w.link[0], 0);
  close_net(&w);
}

/* The promise credits rest on: rx_buffer / (length + rx_overhead) frames fit, however they were sent. */
static void caps__receive_buffer_holds_what_it_promises(void **state) {
  (void)state;
  static const uint32_t mtus[] = {200, 1472, 4096, 7744, 8960, 16384, 40000};
  for (size_t m = 0; m < sizeof mtus / sizeof *mtus; m++)
    for (int offload = 0; offload < 2; offload++) {
      tb_link_cfg cfg = config();
      cfg.mtu = mtus[m];
      cfg.flows = 1;
      cfg.buffer = 128 << 10; /* every system grants this much unasked */
      cfg.no_offload = !offload;
      net w = open_net(2, &cfg);
      const tb_link_caps *caps = OPS->caps(w.link[1]);
      int n = (int)(caps->rx_buffer / (caps->mtu + caps->rx_overhead)), k;
      tb_tx *tx = calloc((size_t)n * 8, sizeof *tx);
      uint8_t *seen = calloc((size_t)n * 8, 1);
      frame *f = make_burst(tx, n * 8, caps->mtu - HEAD, to_1, 1);
      assert_true(n > 1);
      send_all(w.link[0], tx, n);
      assert_int_equal(stats_of(w.link[1]).rx_overflow, 0);
      assert_int_equal(receive(w.link[1], n, seen, (uint32_t)n * 8), n);
      send_all(w.link[0], tx, n * 8);
      memset(seen, 0, (size_t)n * 8);
      k = receive(w.link[1], n * 8, seen, (uint32_t)n * 8);
      assert_true(k >= n);
      if (k < n * 8) assert_true(stats_of(w.link[1]).rx_overflow > 0); /* what did not fit is counted */
      print_message("    mtu %u, %s: %d frames promised, %d fit\n", caps->mtu, offload ? "GSO" : "single", n, k);
      free_burst(f, n * 8);
      free(tx);
      free(seen);
      close_net(&w);
    }
}

/* --- waiting ----------------------------------------------------------------------------------------------------- */

static void wait__keeps_the_deadline(void **state) {
  (void)state;
  tb_link_cfg cfg = config();
  tb_link *link = open_link(&cfg);
  uint64_t deadlines[] = {0, 1, now_ns(), now_ns() + 3000000, now_ns() + 20000000};
  for (size_t i = 0; i < sizeof deadlines / sizeof *deadlines; i++) {
    assert_int_equal(OPS->wait(link, 0, deadlines[i]), TB_WAIT_TIMEOUT);
    assert_true(now_ns() >= deadlines[i]);
  }
  OPS->close(link);
}

static void wait__reports_frames_even_after_the_deadline(void **state) {
  (void)state;
  tb_link_cfg cfg = config();
  tb_link *link = open_link(&cfg);
  send_raw(link, "x", 1);
  assert_int_equal(OPS->wait(link, 0, UINT64_MAX), TB_WAIT_RX);
  assert_int_equal(OPS->wait(link, 0, 0), TB_WAIT_RX);
  OPS->close(link);
}

static void *wake_later(void *link) {
  usleep(20000);
  OPS->wake(link, 0);
  return NULL;
}

static void wake__ends_a_sleep_from_another_thread(void **state) {
  (void)state;
  tb_link_cfg cfg = config();
  tb_link *link = open_link(&cfg);
  pthread_t thread;
  for (int i = 0; i < 3; i++) {
    assert_int_equal(pthread_create(&thread, NULL, wake_later, link), 0);
    assert_int_equal(OPS->wait(link, 0, UINT64_MAX), TB_WAIT_WAKE);
    pthread_join(thread, NULL);
  }
  OPS->wake(link, 0);
  OPS->wake(link, 0);
  assert_int_equal(OPS->wait(link, 0, UINT64_MAX), TB_WAIT_WAKE); /* remembered, and once */
  assert_int_equal(OPS->wait(link, 0, 0), TB_WAIT_TIMEOUT);
  OPS->close(link);
}

static struct { tb_link *link; atomic_uint posted, taken; } ping;

static void *wake_often(void *arg) {
  (void)arg;
  for (unsigned i = 1; i <= 2000; i++) {
    atomic_store(&ping.posted, i);
    OPS->wake(ping.link, 0);
    if (i % 8 == 0)
      while (atomic_load(&ping.taken) < i) sched_yield(); /* a lost wake-up would hang here */
  }
  return NULL;
}

static void wake__is_never_lost(void **state) {
  (void)state;
  tb_link_cfg cfg = config();
  pthread_t thread;
  ping.link = open_link(&cfg);
  atomic_store(&ping.posted, 0);
  atomic_store(&ping.taken, 0);
  assert_int_equal(pthread_create(&thread, NULL, wake_often, NULL), 0);
  while (atomic_load(&ping.taken) < 2000) {
    int bits = OPS->wait(ping.link, 0, now_ns() + 5000000000u);
    assert_true(bits & TB_WAIT_WAKE);
    atomic_store(&ping.taken, atomic_load(&ping.posted));
  }
  pthread_join(thread, NULL);
  OPS->close(ping.link);
}

/* --- opening, addresses, memory ---------------------------------------------------------------------------------- */

static void open__port_range(void **state) {
  (void)state;
  tb_link_cfg cfg = config();
  tb_link *probe = open_link(&cfg), *a = NULL, *b = NULL;
  uint16_t base = (uint16_t)first_port(probe);
  OPS->close(probe);
  if (base > 65000) base = 40000;
  cfg.port_lo = base;
  cfg.port_hi = (uint16_t)(base + 2);
  a = open_link(&cfg); /* two of the three ports */
  for (int i = 0; i < 2; i++) assert_in_range(((udp_link *)a)->sock[i].port, base, base + 2);
  assert_int_equal(OPS->open(&cfg, &b), -EADDRINUSE);
  char range[32];
  snprintf(range, sizeof range, "%u-%u", base, base + 2);
  assert_non_null(strstr(error, range));
  assert_non_null(strstr(error, "TAILBOUND_PORT_RANGE"));
  OPS->close(a);
  b = open_link(&cfg); /* a refused open has kept nothing */
  OPS->close(b);
}

static void refused(const tb_link_cfg *cfg, int err, const char *word) {
  tb_link *link = NULL;
  assert_int_equal(OPS->open(cfg, &link), err);
  assert_null(link);
  if (!strstr(error, word)) fail_msg("\"%s\" lacks \"%s\"", error, word);
}

static void open__bad_configurations_are_explained(void **state) {
  (void)state;
  tb_link_cfg cfg = config();
  cfg.interface = "nosuch";
  refused(&cfg, -ENODEV, "lo 127.0.0.1");
  cfg = config();
  cfg.port_lo = 5;
  cfg.port_hi = 4;
  refused(&cfg, -EINVAL, "5-4");
  cfg = config();
  cfg.flows = UDP_FLOWS_MAX + 1;
  refused(&cfg, -EINVAL, "33 flows");
  cfg = config();
  cfg.mtu = UDP_MTU_MIN - 1;
  refused(&cfg, -EINVAL, "127 bytes");
  cfg = config();
  cfg.advertise = "example";
  refused(&cfg, -EINVAL, "\"example\"");
  cfg.advertise = "::1";
  refused(&cfg, -EINVAL, "IPv4");
}

static void open__describes_itself(void **state) {
  (void)state;
  tb_link_cfg cfg = config();
  cfg.interface = NULL;
  cfg.route_to = "127.0.0.1";
  cfg.buffer = 64 << 10;
  tb_link *link = open_link(&cfg);
  char line[512], tiny[8];
  assert_int_equal(OPS->describe(link, line, sizeof line), 0);
  assert_int_equal(OPS->describe(link, tiny, sizeof tiny), 0);
  assert_true(strlen(tiny) < sizeof tiny);
  assert_ptr_equal(strstr(line, "udp 127.0.0.1 (lo) ports "), line);
  assert_non_null(strstr(line, "mtu 15936, 2 flows, rcvbuf 64 KiB each (asked 64 KiB), GSO on, GRO on"));
  const tb_link_caps *caps = OPS->caps(link);
  assert_int_equal(caps->rx_buffer, 2 * 2 * (64 << 10)); /* the kernel doubles, for two sockets */
  assert_int_equal(caps->lanes, 1);
  assert_int_equal(caps->ref, TB_REF_SYNC);
  OPS->close(link);
}

static void local_addr__advertised_address_is_told(void **state) {
  (void)state;
  tb_link_cfg cfg = config();
  cfg.advertise = "198.51.100.7";
  tb_link *link = open_link(&cfg);
  tb_addr addr;
  uint8_t want[] = {198, 51, 100, 7};
  assert_int_equal(OPS->local_addr(link, &addr), 0);
  assert_int_equal(addr.len, 3 + 4 + 2 * 2);
  assert_memory_equal(addr.bytes + 3, want, 4);
  OPS->close(link);
}

static void peer_add__malformed_addresses_are_refused(void **state) {
  (void)state;
  tb_link_cfg cfg = config();
  tb_link *link = open_link(&cfg);
  tb_addr good, bad;
  assert_int_equal(OPS->local_addr(link, &good), 0);
  for (int i = 0; i <= TB_ADDR_MAX; i++) {
    bad = good;
    bad.len = (uint8_t)i;
    if (i != good.len) assert_int_equal(OPS->peer_add(link, 1, &bad), -EINVAL);
  }
  bad = good;
  bad.len = 255;
  assert_int_equal(OPS->peer_add(link, 1, &bad), -EINVAL);
  static const struct { int at; uint8_t value; } spoil[] = {{0, 2}, {1, 5}, {2, 0}, {2, 1}, {2, 255}};
  for (size_t i = 0; i < sizeof spoil / sizeof *spoil; i++) {
    bad = good;
    bad.bytes[spoil[i].at] = spoil[i].value;
    assert_int_equal(OPS->peer_add(link, 1, &bad), -EINVAL);
  }
  bad = good;
  bad.bytes[7] = bad.bytes[8] = 0; /* port 0 */
  assert_int_equal(OPS->peer_add(link, 1, &bad), -EINVAL);
  bad = (tb_addr){.len = 3 + 16 + 2, .bytes = {1, 6, 1, 0xfe, 0x80}};
  bad.bytes[20] = 1;
  assert_int_equal(OPS->peer_add(link, 1, &bad), -EAFNOSUPPORT);
  assert_int_equal(OPS->peer_add(link, UDP_PEERS_MAX, &good), -EINVAL);
  assert_int_equal(OPS->peer_state(link, 1), -ENOENT);
  assert_int_equal(OPS->peer_set(link, 1, &good), -ENOENT);
  assert_int_equal(OPS->peer_add(link, UDP_PEERS_MAX - 1, &good), 0);
  assert_int_equal(OPS->peer_state(link, UDP_PEERS_MAX - 1), 0);
  assert_int_equal(OPS->peer_set(link, UDP_PEERS_MAX - 1, &good), 0);
  assert_int_equal(OPS->peer_del(link, UDP_PEERS_MAX - 1), 0);
  assert_int_equal(OPS->peer_del(link, UDP_PEERS_MAX - 1), -ENOENT);
  OPS->close(link);
}

static void peer_add__peers_may_have_other_numbers_of_flows(void **state) {
  (void)state;
  tb_link_cfg cfg = config();
  cfg.flows = 5;
  tb_link *five = open_link(&cfg);
  cfg.flows = 1;
  tb_link *one = open_link(&cfg);
  tb_addr addr;
  uint8_t seen[64] = {0};
  tb_tx tx[64];
  frame *f = make_burst(tx, 64, 7000, to_1, 1);
  assert_int_equal(OPS->local_addr(one, &addr), 0);
  assert_int_equal(OPS->peer_add(five, 1, &addr), 0);
  assert_int_equal(OPS->local_addr(five, &addr), 0);
  assert_int_equal(OPS->peer_add(one, 1, &addr), 0);
  send_all(five, tx, 64);
  assert_int_equal(receive(one, 64, seen, 64), 64);
  send_all(one, tx, 64);
  assert_int_equal(receive(five, 64, seen, 64), 64);
  free_burst(f, 64);
  OPS->close(five);
  OPS->close(one);
}

static void mem_reg__numbers_are_reused(void **state) {
  (void)state;
  enum { N = 3 * UDP_REGION_CHUNK };
  tb_link_cfg cfg = config();
  tb_link *link = open_link(&cfg);
  static char memory[N];
  uint32_t region[N], again;
  for (int i = 0; i < N; i++) {
    assert_int_equal(OPS->mem_reg(link, memory + i, 1, &region[i]), 0);
    assert_int_equal(region[i], i);
  }
  assert_int_equal(OPS->mem_unreg(link, region[300]), 0);
  assert_int_equal(OPS->mem_unreg(link, region[300]), -ENOENT);
  assert_int_equal(OPS->mem_unreg(link, N), -ENOENT);
  assert_int_equal(OPS->mem_reg(link, memory, N, &again), 0);
  assert_int_equal(again, 300);
  assert_int_equal(OPS->mem_reg(link, NULL, 1, &again), -EINVAL);
  assert_int_equal(OPS->mem_reg(link, memory, 0, &again), -EINVAL);
  assert_int_equal(OPS->mem_reg(link, memory, SIZE_MAX, &again), -EINVAL);
  for (int i = 0; i < N; i++) assert_int_equal(OPS->mem_unreg(link, region[i]), 0);
  OPS->close(link);
}

#define plain(name) cmocka_unit_test(name)
#define hooked(name) cmocka_unit_test_setup_teardown(name, set_hook, unset_hook)

int main(void) {
  real_sendmmsg = tb_udp_sendmmsg;
  real_recvmmsg = tb_udp_recvmmsg;
  const struct CMUnitTest tests[] = {
      plain(tx_burst__copied_payloads_arrive_intact),
      plain(tx_burst__referred_payloads_arrive_intact),
      plain(tx_burst__works_without_offloads),
      plain(tx_burst__works_with_the_smallest_and_largest_frames),
      plain(tx_burst__works_over_ipv6),
      hooked(tx_burst__groups_frames_into_few_messages),
      plain(tx_burst__serves_several_peers_at_once),
      hooked(tx_burst__spreads_over_the_flows),
      hooked(tx_burst__full_socket_takes_a_prefix),
      hooked(tx_burst__gso_failing_in_mid_run_is_survived),
      hooked(tx_burst__one_bad_path_costs_nobody_else_their_gso),
      hooked(tx_burst__soft_error_loses_nothing),
      hooked(tx_burst__too_large_for_the_path),
      plain(tx_burst__bad_frames_are_refused),
      plain(set_mtu__limits_frames),
      plain(rx_burst__keeps_what_the_caller_has_no_room_for),
      plain(rx_burst__leases_survive_until_release),
      plain(rx_burst__ring_wraps),
      hooked(rx_burst__truncated_message_is_dropped_and_counted),
      plain(came_from__another_address),
      plain(rx_burst__empty_and_foreign_datagrams),
      plain(caps__receive_buffer_holds_what_it_promises),
      plain(wait__keeps_the_deadline),
      plain(wait__reports_frames_even_after_the_deadline),
      plain(wake__ends_a_sleep_from_another_thread),
      plain(wake__is_never_lost),
      plain(open__port_range),
      plain(open__bad_configurations_are_explained),
      plain(open__describes_itself),
      plain(local_addr__advertised_address_is_told),
      plain(peer_add__malformed_addresses_are_refused),
      plain(peer_add__peers_may_have_other_numbers_of_flows),
      plain(mem_reg__numbers_are_reused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
