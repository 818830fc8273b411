/* test_udp.c - a link opens, says what it is, and keeps addresses and memory regions. */
#include "udp_fixture.h"

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
  /* The kernel doubles, and keeps a quarter; of two sockets one has two of the three peers' shares. */
  assert_int_equal(caps->rx_buffer, 2 * (64 << 10) * 3 / 4 / 2 * 3);
  assert_int_equal(caps->rx_parts, 2);
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
  bad = good; /* a MAC may follow, but nothing else, and whole */
  bad.bytes[good.len] = 1;
  bad.len = (uint8_t)(good.len + 7);
  assert_int_equal(OPS->peer_add(link, 2, &bad), 0);
  assert_int_equal(OPS->peer_del(link, 2), 0);
  for (int i = 1; i < 20; i++) {
    bad.len = (uint8_t)(good.len + i);
    if (i != 7) assert_int_equal(OPS->peer_add(link, 1, &bad), -EINVAL);
  }
  bad.bytes[good.len] = 2;
  bad.len = (uint8_t)(good.len + 7);
  assert_int_equal(OPS->peer_add(link, 1, &bad), -EINVAL);
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
  enum { N = 3 * TB_REGION_CHUNK };
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(open__port_range),
      cmocka_unit_test(open__bad_configurations_are_explained),
      cmocka_unit_test(open__describes_itself),
      cmocka_unit_test(local_addr__advertised_address_is_told),
      cmocka_unit_test(peer_add__malformed_addresses_are_refused),
      cmocka_unit_test(peer_add__peers_may_have_other_numbers_of_flows),
      cmocka_unit_test(mem_reg__numbers_are_reused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
