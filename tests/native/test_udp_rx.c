/* test_udp_rx.c - frames in: slabs, leases, damage, whose address they came from, and the promised room. */
#include "udp_fixture.h"

static int (*real_recvmmsg)(int, struct mmsghdr *, unsigned, int, struct timespec *);

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

static int put_back(void **state) {
  (void)state;
  tb_udp_recvmmsg = real_recvmmsg;
  return 0;
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

int main(void) {
  real_recvmmsg = tb_udp_recvmmsg;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rx_burst__keeps_what_the_caller_has_no_room_for),
      cmocka_unit_test(rx_burst__leases_survive_until_release),
      cmocka_unit_test(rx_burst__ring_wraps),
      cmocka_unit_test_teardown(rx_burst__truncated_message_is_dropped_and_counted, put_back),
      cmocka_unit_test(came_from__another_address),
      cmocka_unit_test(rx_burst__empty_and_foreign_datagrams),
      cmocka_unit_test(caps__receive_buffer_holds_what_it_promises),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
