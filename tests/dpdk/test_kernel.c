/* test_kernel.c - the dpdk link beside the kernel's own network stack, over IPv6 and in a VLAN: they exchange frames,
 * find each other's MACs, and ping hears from us. Over IPv4 without a tag: test_wire.c.
 *
 *   test_kernel [vlan]    vlan: also where the kernel is in a VLAN, by an interface as `ip link add type vlan` makes it.
 *                         Not every kernel can: tests/guest/test_guest_vlan.py runs it in one that does. */
#include "mixed.h"
#include "leaks.h"
#include "switch.h"
#include <netinet/in.h>

enum { KERNEL_END = 1, VLAN = 100 };

static const struct { const char *name, *ours, *theirs; uint32_t vlan, mtu; } ways[] = {
  {"IPv6", "fd00:9::5/64", "fd00:9::9", 0, 1452},
  {"IPv6, link-local", "fe80::5/64", "fe80::9", 0, 1400},
  {"VLAN", "10.8.0.5/24", "10.8.0.9", VLAN, 1472},
  {"IPv6, VLAN", "fd00:8::5/64", "fd00:8::9", VLAN, 1452},
};
enum { UNTAGGED = 2 };
static size_t count = UNTAGGED;

static mixed open_way(size_t i) {
  print_message("%s\n", ways[i].name);
  return open_mixed(ways[i].ours, ways[i].theirs, ways[i].vlan, ways[i].mtu, true);
}

/* The kernel leaves its sums to a device that never comes, and takes only ours that are right. Frames of the agreed
 * size use all of the 1500 bytes there are, whatever stands in front of them. */
static void udp__and_dpdk_understand_each_other(void **state) {
  (void)state;
  for (size_t i = 0; i < count; i++) {
    mixed m = open_way(i);
    uint8_t there[MANY] = {0}, back[MANY] = {0};
    bool six = strchr(ways[i].ours, ':');
    assert_int_equal(OPS->caps(m.dpdk)->mtu, ways[i].mtu);
    assert_int_equal(OPS->caps(m.dpdk)->ref, six ? TB_REF_NONE : TB_REF_SYNC);
    await_neighbour(&m);
    send_many(&m, m.kernel, 1);
    assert_int_equal(exchange(&m, m.dpdk, MANY, there), MANY);
    send_many(&m, m.dpdk, 0);
    assert_int_equal(exchange(&m, m.kernel, MANY, back), MANY);
    for (int k = 0; k < MANY; k++) assert_true(there[k] == 1 && back[k] == 1);
    assert_int_equal(stats_of(m.dpdk).rx_truncated, 0);
    assert_int_equal(stats_of(m.dpdk).tx_copied, six ? MANY * PAY : 0);
    close_mixed(&m);
  }
}

/* The largest frame, both ways; as all do, it has its own buffers behind the headers. */
static void udp__and_dpdk_exchange_the_largest_frame(void **state) {
  (void)state;
  static uint8_t pay[1472], got[9100];
  for (size_t i = 0; i < sizeof pay; i++) pay[i] = (uint8_t)(i * 3);
  for (size_t i = 0; i < count; i++) {
    mixed m = open_way(i);
    await_neighbour(&m);
    tb_tx tx = frame_to(0, pay, 64, pay + 64, ways[i].mtu - 64);
    tb_rx rx;
    assert_int_equal(OPS->tx_burst(m.dpdk, 0, &tx, 1), 1);
    assert_true(tb_link_udp.wait(m.kernel, 0, dpdk_now() + 2000 * MS) & TB_WAIT_RX);
    assert_int_equal(tb_link_udp.rx_burst(m.kernel, 0, &rx, 1), 1);
    assert_int_equal(rx.len, ways[i].mtu);
    assert_memory_equal(rx.data, pay, rx.len);
    tb_link_udp.rx_release(m.kernel, 0);
    tx.peer = 1;
    assert_int_equal(tb_link_udp.tx_burst(m.kernel, 0, &tx, 1), 1);
    assert_int_equal(receive_one(m.dpdk, got), ways[i].mtu);
    assert_memory_equal(got, pay, ways[i].mtu);
    close_mixed(&m);
  }
}

/* Its table of neighbours knows us by what we answered. */
static void neighbours__the_kernel_finds_us(void **state) {
  (void)state;
  for (size_t i = 0; i < count; i++) {
    mixed m = open_way(i);
    const uint8_t *b = dpdk_of(m.dpdk)->self.mac.b;
    char ip[TB_IP_TEXT];
    run("ip neigh flush all");
    send_many(&m, m.kernel, 1);
    for (int k = 0; k < 20; k++) OPS->wait(m.dpdk, 0, dpdk_now() + 10 * MS);
    run("ip neigh show %s | grep -q %02x:%02x:%02x:%02x:%02x:%02x", tb_ip_text(&dpdk_of(m.dpdk)->self.ip, ip), b[0],
        b[1], b[2], b[3], b[4], b[5]);
    close_mixed(&m);
  }
}

/* The kernel's own packets around our question. Over IPv6 it sums them and strips their headers, too. */
static int ping_socket(bool six) {
  int fd = socket(six ? AF_INET6 : AF_INET, SOCK_RAW | SOCK_CLOEXEC, six ? IPPROTO_ICMPV6 : IPPROTO_ICMP);
  assert_true(fd >= 0);
  return fd;
}

static void ask(int fd, const tb_net_self *self, const char *device, const uint8_t *question, size_t len) {
  struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_scope_id = if_nametoindex(device)};
  struct sockaddr_in four = {.sin_family = AF_INET};
  memcpy(&six.sin6_addr, self->ip.b, 16);
  memcpy(&four.sin_addr, self->ip.b + TB_IP4_AT, 4);
  bool is4 = tb_ip_is4(&self->ip);
  const struct sockaddr *to = is4 ? (const struct sockaddr *)&four : (const struct sockaddr *)&six;
  assert_int_equal(sendto(fd, question, len, 0, to, is4 ? sizeof four : sizeof six), len);
}

static bool answered(int fd, bool four, const uint8_t *question, size_t len) {
  static uint8_t got[2000];
  for (ssize_t k; (k = recv(fd, got, sizeof got, MSG_DONTWAIT)) > 0;) {
    size_t at = four ? 20 : 0;
    bool reply = (size_t)k == at + len && got[at] == (four ? 0 : 129);
    if (reply && !memcmp(got + at + 4, question + 4, len - 4)) return true;
  }
  return false;
}

/* As any host expects: also in the largest frame. */
static void ping__is_answered(void **state) {
  (void)state;
  static uint8_t question[1500];
  for (size_t i = 0; i < count; i++) {
    mixed m = open_way(i);
    const tb_net_self *self = &dpdk_of(m.dpdk)->self;
    bool four = tb_ip_is4(&self->ip), heard = false;
    size_t len = ways[i].mtu + 8; /* its header is as long as that of UDP */
    memset(question, 0, sizeof question);
    question[0] = four ? 8 : 128;
    tb_put16(question + 4, 0x1234 + (uint32_t)i);
    for (size_t k = 8; k < len; k++) question[k] = (uint8_t)(k * 5);
    if (four) tb_put16(question + 2, (uint16_t)~tb_net_sum(question, (uint32_t)len));
    int fd = ping_socket(!four);
    ask(fd, self, ways[i].vlan ? "tb1.100" : "tb1", question, len);
    for (int k = 0; k < 100 && !heard; k++) {
      OPS->wait(m.dpdk, 0, dpdk_now() + 20 * MS);
      heard = answered(fd, four, question, len);
    }
    assert_true(heard);
    close(fd);
    close_mixed(&m);
  }
}

/* One of another VLAN, or of none, is not heard. */
static void vlan__of_others_is_foreign(void **state) {
  (void)state;
  static const uint32_t vlan[] = {VLAN, 0, 7};
  tb_link *to[3];
  tb_link_cfg cfg = config("af_packet:tb0", "10.8.0.5/24");
  cfg.vlan = VLAN;
  tb_link *link = open_link(&cfg);
  for (int i = 0; i < 3; i++) {
    char device[40];
    snprintf(device, sizeof device, "af_packet:tb%d", i + 3);
    tb_link_cfg other = config(device, "10.8.0.6/24");
    other.vlan = vlan[i];
    to[i] = open_link(&other);
    introduce(to[i], 0, link, true);
    introduce(link, 1, to[i], true);
    OPS->wait(link, 0, dpdk_now() + 20 * MS);
    uint64_t before = stats_of(link).rx_foreign;
    for (int k = 0; k < 5; k++) assert_int_equal(send_text(to[i], 0, "hello"), 1);
    if (vlan[i] == VLAN) {
      for (int k = 0; k < 5; k++) expect_text(link, "hello");
    } else {
      for (int k = 0; k < 10; k++) OPS->wait(link, 0, dpdk_now() + 10 * MS);
      assert_in_range(stats_of(link).rx_foreign - before, 5, 50); /* beside what kernels say of themselves */
    }
    OPS->close(to[i]);
  }
  assert_int_equal(stats_of(link).rx_frames, 5);
  tb_link_event e[4];
  int n = OPS->events(link, e, 4), told = 0;
  for (int i = 0; i < n; i++) told += strstr(e[i].text, "without the tag of VLAN 100") != NULL;
  assert_int_equal(told, 1);
  OPS->close(link);
}

/* The interface under a device hears our groups as long as the link is open: a NIC would not hand them up otherwise. */
static void groups__are_joined_and_left(void **state) {
  (void)state;
  static const char *const device[] = {"tb0", "tb2"};
  static const char *const driver[] = {"af_packet", "af_xdp"};
  for (int i = 0; i < 2; i++) {
    char word[40];
    snprintf(word, sizeof word, "%s:%s", driver[i], device[i]);
    tb_link *link = open_at(word, "fd00:9::12:3456/64");
    run("ip maddr show dev %s | grep -qi 'link *33:33:ff:12:34:56'", device[i]);
    OPS->close(link);
    run("! ip maddr show dev %s | grep -qi 33:33:ff:12:34:56", device[i]);
  }
}

/* No device here takes rules: they are refused, and all goes as before. */
static void flow__no_rules_are_no_loss(void **state) {
  (void)state;
  tb_link *link = open_at("af_packet:tb0", NULL);
  char line[400];
  assert_int_equal(OPS->describe(link, line, sizeof line), 0);
  assert_non_null(strstr(line, ", rules 0, "));
  assert_int_equal(dpdk_of(link)->rules, 0);
  assert_int_equal(OPS->wait(link, 0, dpdk_now() + 50 * MS), TB_WAIT_TIMEOUT); /* and nothing is said */
  OPS->close(link);
}

static void make_vlan(void) {
  run("ip link add link tb%d name tb%d.%d type vlan id %d", KERNEL_END, KERNEL_END, VLAN, VLAN);
  run("ip link set tb%d.%d up", KERNEL_END, VLAN);
  run("ip addr add 10.8.0.9/24 dev tb%d.%d", KERNEL_END, VLAN);
  run("ip addr add fd00:8::9/64 dev tb%d.%d nodad", KERNEL_END, VLAN);
  count = sizeof ways / sizeof *ways;
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(udp__and_dpdk_understand_each_other),
      cmocka_unit_test(udp__and_dpdk_exchange_the_largest_frame),
      cmocka_unit_test(neighbours__the_kernel_finds_us),
      cmocka_unit_test(ping__is_answered),
      cmocka_unit_test(vlan__of_others_is_foreign),
      cmocka_unit_test(groups__are_joined_and_left),
      cmocka_unit_test(flow__no_rules_are_no_loss),
  };
  make_switch(6);
  run("ip addr add fd00:9::9/64 dev tb%d nodad", KERNEL_END);
  run("ip addr add fe80::9/64 dev tb%d nodad", KERNEL_END);
  if (argc > 1 && !strcmp(argv[1], "vlan")) make_vlan();
  return cmocka_run_group_tests(tests, NULL, NULL);
}
