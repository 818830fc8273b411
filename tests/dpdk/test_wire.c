/* test_wire.c - the dpdk link as one host among others on a switch: with the kernel's own network stack at the other
 * end, and four ranks that share what cores there are. */
#include "mixed.h"
#include "leaks.h"
#include "switch.h"
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define OURS "10.9.0.5/24"
#define THEIRS "10.9.0.9"
enum { KERNEL_END = 4, XDP_END = 5, FLOOD = 8000, RANKS = 4, ROUNDS = 200 };

/* A kernel that leaves cutting to a device hands over trains in one piece: dropped, counted, told once. */
static void udp__trains_that_nobody_cut_are_told(void **state) {
  (void)state;
  mixed m = open_mixed(OURS, THEIRS, 0, 1400, false);
  uint8_t seen[MANY] = {0};
  tb_link_event e[4];
  await_neighbour(&m);
  send_many(&m, m.kernel, 1);
  assert_true(exchange(&m, m.dpdk, MANY, seen) < MANY);
  assert_true(stats_of(m.dpdk).rx_truncated > 0);
  int n = OPS->events(m.dpdk, e, 4), told = 0;
  for (int i = 0; i < n; i++) told += strstr(e[i].text, "ethtool -K IFACE tx off") != NULL;
  assert_int_equal(told, 1);
  close_mixed(&m);
}

/* As it comes, with the kernel's unfinished sums: who has no device that sums does not look at them, and the udp link sends
 * no trains to a peer that has a device of its own. */
static void udp__and_dpdk_understand_each_other(void **state) {
  (void)state;
  mixed m = open_mixed(OURS, THEIRS, 0, 1400, true);
  uint8_t there[MANY] = {0}, back[MANY] = {0};
  await_neighbour(&m);
  send_many(&m, m.kernel, 1);
  assert_int_equal(exchange(&m, m.dpdk, MANY, there), MANY);
  send_many(&m, m.dpdk, 0);
  assert_int_equal(exchange(&m, m.kernel, MANY, back), MANY);
  for (int i = 0; i < MANY; i++) assert_true(there[i] == 1 && back[i] == 1);
  assert_int_equal(stats_of(m.dpdk).rx_truncated, 0);
  assert_int_equal(stats_of(m.dpdk).tx_copied, 0);
  close_mixed(&m);
}

/* It answers the kernel's own ARP, so that ping's first step works: the entry in the kernel's table is ours. */
static void arp__the_kernel_finds_us(void **state) {
  (void)state;
  mixed m = open_mixed(OURS, THEIRS, 0, 1400, true);
  char line[200];
  const uint8_t *b = dpdk_of(m.dpdk)->self.mac.b;
  run("ip neigh flush dev tb4");
  send_many(&m, m.kernel, 1);
  for (int i = 0; i < 20; i++) OPS->wait(m.dpdk, 0, dpdk_now() + 10 * MS);
  snprintf(line, sizeof line, "ip neigh show 10.9.0.5 | grep -q %02x:%02x:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3],
           b[4], b[5]);
  run("%s", line);
  close_mixed(&m);
}

typedef struct { tb_link *link; uint32_t self, done; uint64_t cpu; } rank;

/* A token from the rank before, one to the rank behind. */
static void *take_turns(void *arg) {
  rank *r = arg;
  uint8_t data[1500];
  for (uint32_t round = 0; round < ROUNDS; round++) {
    tb_tx tx = frame_to((r->self + 1) % RANKS, &round, sizeof round, NULL, 0);
    for (int k = 0; k == 0;) k = OPS->tx_burst(r->link, 0, &tx, 1);
    uint32_t got = UINT32_MAX;
    if (receive_one(r->link, data) != sizeof got) break;
    memcpy(&got, data, sizeof got);
    if (got != round) break;
    r->done++;
  }
  OPS->wait(r->link, 0, dpdk_now() + 200 * MS); /* idle from here on */
  struct rusage before, after;
  getrusage(RUSAGE_THREAD, &before);
  OPS->wait(r->link, 0, dpdk_now() + 300 * MS);
  getrusage(RUSAGE_THREAD, &after);
  r->cpu = (uint64_t)(after.ru_utime.tv_sec - before.ru_utime.tv_sec + after.ru_stime.tv_sec - before.ru_stime.tv_sec) *
           1000000 + (uint64_t)(after.ru_utime.tv_usec - before.ru_utime.tv_usec + after.ru_stime.tv_usec -
                                before.ru_stime.tv_usec);
  return NULL;
}

static void adaptive__four_ranks_share_few_cores(void **state) {
  (void)state;
  rank r[RANKS];
  pthread_t thread[RANKS];
  for (uint32_t i = 0; i < RANKS; i++) {
    char device[40];
    snprintf(device, sizeof device, "af_packet:tb%u", i);
    r[i] = (rank){.link = open_at(device, NULL), .self = i};
  }
  for (uint32_t i = 0; i < RANKS; i++)
    for (uint32_t j = 0; j < RANKS; j++) introduce(r[i].link, j, r[j].link, true);
  uint64_t began = dpdk_now();
  for (int i = 0; i < RANKS; i++) assert_int_equal(pthread_create(&thread[i], NULL, take_turns, &r[i]), 0);
  for (int i = 0; i < RANKS; i++) pthread_join(thread[i], NULL);
  print_message("%d rounds of %d ranks in %.0f ms\n", ROUNDS, RANKS, (double)(dpdk_now() - began) * 1e-6 - 500);
  for (int i = 0; i < RANKS; i++) {
    assert_int_equal(r[i].done, ROUNDS);
    print_message("idle: %.1f %% of a core\n", (double)r[i].cpu / 3000);
    assert_in_range(r[i].cpu, 0, 200000); /* of 300 ms: it sleeps (a sanitizer's wakes are dear) */
    OPS->close(r[i].link);
  }
}

typedef struct { tb_link *link; tb_addr addr; atomic_bool stop; uint32_t added; } guest;

static void *add_peers(void *arg) {
  guest *g = arg;
  while (!atomic_load(&g->stop)) {
    if (OPS->peer_add(g->link, 1 + g->added % 7, &g->addr)) break;
    if (OPS->tx_abort(g->link, 0, NULL)) break;
    g->added++;
  }
  return NULL;
}

/* While the owner waits, even when it spins, others get their turn. */
static void busy__lets_others_in(void **state) {
  (void)state;
  tb_link_cfg cfg = config("af_packet:tb0", NULL);
  cfg.busy = true;
  guest g = {.link = open_link(&cfg)};
  pthread_t thread;
  assert_int_equal(OPS->local_addr(g.link, &g.addr), 0);
  assert_int_equal(pthread_create(&thread, NULL, add_peers, &g), 0);
  uint64_t until = dpdk_now() + 300 * MS;
  while (dpdk_now() < until) OPS->wait(g.link, 0, until);
  atomic_store(&g.stop, true);
  pthread_join(thread, NULL);
  assert_in_range(g.added, 100, UINT32_MAX);
  OPS->close(g.link);
}

/* Nobody reads: what the device drops is counted, by the driver or by the socket under it. */
static void overflow_is_counted(const char *device) {
  tb_link *from = open_at("af_packet:tb0", NULL), *to = open_at(device, NULL);
  uint32_t sent = 0, came = 0;
  uint8_t pay[100] = {0};
  tb_rx rx[64];
  introduce(from, 1, to, true);
  assert_int_equal(stats_of(to).rx_overflow, 0);
  tb_tx tx = frame_to(1, "flood", 5, pay, sizeof pay);
  while (sent < FLOOD) sent += (uint32_t)OPS->tx_burst(from, 0, &tx, 1);
  OPS->wait(from, 0, dpdk_now() + 50 * MS);
  for (int k; (k = OPS->rx_burst(to, 0, rx, 64)) > 0; OPS->rx_release(to, 0)) came += (uint32_t)k;
  uint64_t lost = stats_of(to).rx_overflow;
  assert_in_range(came, 1000, FLOOD - 1);
  assert_in_range(lost, 1, FLOOD + 100 - came); /* neighbours' own multicast is dropped like it */
  tb_link_stats s = stats_of(from);
  assert_true(s.rx_overflow == 0 && s.rx_nobuf == TB_NONE && s.tx_errors == 0);
  OPS->close(from);
  OPS->close(to);
}

static void stats__overflow_of_af_xdp_is_counted(void **state) {
  (void)state;
  overflow_is_counted("af_xdp:tb5");
}

static void stats__overflow_of_af_packet_is_counted(void **state) {
  (void)state;
  overflow_is_counted("af_packet:tb1");
}

/* A parked af_packet port goes on dropping: that is not the loss of the next link on it. */
static void stats__of_a_new_link_begin_at_zero(void **state) {
  (void)state;
  tb_link *from = open_at("af_packet:tb0", NULL), *to = open_at("af_packet:tb1", NULL);
  uint8_t pay[100] = {0};
  uint32_t sent = 0;
  introduce(from, 1, to, true);
  OPS->close(to);
  tb_tx tx = frame_to(1, "flood", 5, pay, sizeof pay);
  while (sent < FLOOD) sent += (uint32_t)OPS->tx_burst(from, 0, &tx, 1);
  OPS->wait(from, 0, dpdk_now() + 50 * MS);
  to = open_at("af_packet:tb1", NULL);
  assert_int_equal(stats_of(to).rx_overflow, 0);
  OPS->close(from);
  OPS->close(to);
}

/* The driver hands a burst to the kernel and counts it as sent even where the kernel stopped half way. What it left must
 * not wait for the next burst, which may never come: whoever waits tells the kernel once more, and again while that finds
 * something. Here another socket stands for the driver's, and shows what it is told. */
static void tx__the_kernel_is_told_once_more_while_we_wait(void **state) {
  (void)state;
  tb_link *from = open_at("af_packet:tb0", NULL), *to = open_at("af_packet:tb1", NULL);
  dpdk_port *port = dpdk_of(from)->port;
  int ends[2], real = port->kernel_fd;
  char got;
  introduce(from, 1, to, true);
  assert_true(real >= 0);
  assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  port->kernel_fd = ends[0];
  for (int i = 0; i < 3; i++) {
    assert_int_equal(send_text(from, 1, "left?"), 1);
    assert_int_equal(recv(ends[1], &got, 1, MSG_DONTWAIT), -1);
    OPS->wait(from, 0, dpdk_now() + 20 * MS);
    assert_int_equal(recv(ends[1], &got, 1, MSG_DONTWAIT), 0);
    assert_int_equal(recv(ends[1], &got, 1, MSG_DONTWAIT), -1); /* it found nothing: once is enough */
  }
  port->kernel_fd = real;
  close(ends[0]);
  close(ends[1]);
  OPS->close(from);
  OPS->close(to);
}

/* An interface that is down takes nothing: whoever waits does not ask it every 100 us until it is up, and asks once then. */
static void tx__what_is_left_waits_for_the_link(void **state) {
  (void)state;
  struct rusage before, after;
  tb_link *from = open_at("af_packet:tb0", NULL), *to = open_at("af_packet:tb1", NULL);
  introduce(from, 1, to, true);
  run("ip link set tb0 down");
  assert_int_equal(send_text(from, 1, "left"), 1);
  while (OPS->wait(from, 0, dpdk_now() + 600 * MS) != TB_WAIT_TIMEOUT) continue; /* that the link is gone */
  getrusage(RUSAGE_THREAD, &before);
  OPS->wait(from, 0, dpdk_now() + 200 * MS);
  getrusage(RUSAGE_THREAD, &after);
  assert_in_range(after.ru_nvcsw - before.ru_nvcsw, 0, 400);
  run("ip link set tb0 up");
  while (OPS->wait(from, 0, dpdk_now() + 600 * MS) != TB_WAIT_TIMEOUT) continue;
  expect_text(to, "left");
  OPS->close(from);
  OPS->close(to);
}

/* Room for a whole ring, where it may be asked for (as root), so that the kernel has no reason to stop. */
static void tx__there_is_room_for_the_ring(void **state) {
  (void)state;
  tb_link *link = open_at("af_packet:tb0", NULL);
  const dpdk_port *port = dpdk_of(link)->port;
  int bytes = 0;
  socklen_t len = sizeof bytes;
  assert_int_equal(getsockopt(port->kernel_fd, SOL_SOCKET, SO_SNDBUF, &bytes, &len), 0);
  assert_true((uint64_t)bytes >= (uint64_t)port->tx_desc * 4096);
  OPS->close(link);
}

/* The kernel says so itself: nobody looks every 100 us. */
static void adaptive__sleeps_until_a_frame_comes(void **state) {
  (void)state;
  tb_link *from = open_at("af_packet:tb0", NULL), *to[2] = {open_at("af_packet:tb1", NULL), open_at("af_xdp:tb5", NULL)};
  for (uint32_t i = 0; i < 2; i++) {
    struct rusage before, after;
    introduce(from, 1 + i, to[i], true);
    OPS->wait(to[i], 0, dpdk_now() + 20 * MS);
    getrusage(RUSAGE_THREAD, &before);
    OPS->wait(to[i], 0, dpdk_now() + 200 * MS);
    getrusage(RUSAGE_THREAD, &after);
    assert_in_range(after.ru_nvcsw - before.ru_nvcsw, 0, 400); /* 2000 with steps of 100 us */
    assert_int_equal(send_text(from, 1 + i, "awake"), 1);
    assert_true(OPS->wait(to[i], 0, dpdk_now() + 2000 * MS) & TB_WAIT_RX);
    expect_text(to[i], "awake");
    OPS->close(to[i]);
  }
  OPS->close(from);
}

static void link__comes_and_goes(void **state) {
  (void)state;
  tb_link *link = open_at("af_packet:tb0", NULL);
  tb_link_event e[4];
  run("ip link set sw0 down");
  assert_int_equal(OPS->wait(link, 0, dpdk_now() + 2000 * MS), TB_WAIT_EVENT);
  assert_int_equal(OPS->events(link, e, 4), 1);
  assert_non_null(strstr(e[0].text, "has no link"));
  assert_in_range(send_text(link, 1, "?") + 100, 0, 101); /* no such peer: and no hang */
  run("ip link set sw0 up");
  assert_int_equal(OPS->wait(link, 0, dpdk_now() + 2000 * MS), TB_WAIT_EVENT);
  assert_int_equal(OPS->events(link, e, 4), 1);
  assert_non_null(strstr(e[0].text, "has a link"));
  OPS->close(link);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(udp__trains_that_nobody_cut_are_told),
      cmocka_unit_test(udp__and_dpdk_understand_each_other),
      cmocka_unit_test(arp__the_kernel_finds_us),
      cmocka_unit_test(adaptive__four_ranks_share_few_cores),
      cmocka_unit_test(busy__lets_others_in),
      cmocka_unit_test(adaptive__sleeps_until_a_frame_comes),
      cmocka_unit_test(tx__the_kernel_is_told_once_more_while_we_wait),
      cmocka_unit_test(tx__there_is_room_for_the_ring),
      cmocka_unit_test(stats__overflow_of_af_xdp_is_counted),
      cmocka_unit_test(stats__overflow_of_af_packet_is_counted),
      cmocka_unit_test(stats__of_a_new_link_begin_at_zero),
      cmocka_unit_test(tx__what_is_left_waits_for_the_link),
      cmocka_unit_test(link__comes_and_goes),
  };
  make_switch(XDP_END + 1);
  run("ip addr add 10.9.0.9/24 dev tb%d", KERNEL_END);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
