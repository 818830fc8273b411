/* test_udp_tx.c - frames out: grouping, errors and degradation. Where the kernel must refuse something, the system call
 * is replaced. */
#include "udp_fixture.h"

static int (*real_sendmmsg)(int, struct mmsghdr *, unsigned, int);

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
  return 0;
}


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

int main(void) {
  real_sendmmsg = tb_udp_sendmmsg;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(tx_burst__copied_payloads_arrive_intact),
      cmocka_unit_test(tx_burst__referred_payloads_arrive_intact),
      cmocka_unit_test(tx_burst__works_without_offloads),
      cmocka_unit_test(tx_burst__works_with_the_smallest_and_largest_frames),
      cmocka_unit_test(tx_burst__works_over_ipv6),
      cmocka_unit_test_setup_teardown(tx_burst__groups_frames_into_few_messages, set_hook, unset_hook),
      cmocka_unit_test(tx_burst__serves_several_peers_at_once),
      cmocka_unit_test_setup_teardown(tx_burst__spreads_over_the_flows, set_hook, unset_hook),
      cmocka_unit_test_setup_teardown(tx_burst__full_socket_takes_a_prefix, set_hook, unset_hook),
      cmocka_unit_test_setup_teardown(tx_burst__gso_failing_in_mid_run_is_survived, set_hook, unset_hook),
      cmocka_unit_test_setup_teardown(tx_burst__one_bad_path_costs_nobody_else_their_gso, set_hook, unset_hook),
      cmocka_unit_test_setup_teardown(tx_burst__soft_error_loses_nothing, set_hook, unset_hook),
      cmocka_unit_test_setup_teardown(tx_burst__too_large_for_the_path, set_hook, unset_hook),
      cmocka_unit_test(tx_burst__bad_frames_are_refused),
      cmocka_unit_test(set_mtu__limits_frames),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
