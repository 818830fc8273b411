/* test_flow.c - flow.c: what a rule says, item by item; and that devices without rules lose nothing.
 *
 *   test_flow [tap]    tap: instead, a device that takes them, DPDK's tap, whose rules the kernel keeps (cls_flower,
 *                      act_skbedit, sch_multiq). tests/guest/test_guest_flow.py has a kernel with these. */
#include "mixed.h"
#include "leaks.h"
#include "switch.h"

static const void *item(const dpdk_flow_rule *r, int at, enum rte_flow_item_type type, const void **mask) {
  assert_int_equal(r->pattern[at].type, type);
  *mask = r->pattern[at].mask;
  assert_null(r->pattern[at].last);
  return r->pattern[at].spec;
}

/* UDP to this port, and the end, in the pattern from there on. */
static void check_rest(const dpdk_flow_rule *r, int at, uint16_t port, uint16_t queue) {
  const void *mask;
  const struct rte_flow_item_udp *udp = item(r, at++, RTE_FLOW_ITEM_TYPE_UDP, &mask), *udp_mask = mask;
  static const struct rte_flow_item_udp none;
  assert_int_equal(tb_get16((const uint8_t *)&udp->hdr.dst_port), port);
  assert_int_equal(udp_mask->hdr.dst_port, 0xffff);
  struct rte_flow_item_udp other = *udp_mask; /* its sender's port and the rest are free */
  other.hdr.dst_port = 0;
  assert_memory_equal(&other, &none, sizeof none);
  (void)item(r, at, RTE_FLOW_ITEM_TYPE_END, &mask);
  assert_true(r->attr.ingress && !r->attr.egress && !r->attr.transfer && !r->attr.group && !r->attr.priority);
  assert_int_equal(r->action[0].type, RTE_FLOW_ACTION_TYPE_QUEUE);
  assert_int_equal(((const struct rte_flow_action_queue *)r->action[0].conf)->index, queue);
  assert_int_equal(r->action[1].type, RTE_FLOW_ACTION_TYPE_END);
}

static void make__a_rule_of_ipv4(void **state) {
  (void)state;
  tb_net_self self = {.ip = TB_IP4(0x0a000005), .bits = 120, .port = 5000, .ports = 2};
  dpdk_flow_rule r;
  const void *mask;
  memset(&r, 0xee, sizeof r);
  dpdk_flow_make(&r, &self, 5001, 3);
  assert_null(item(&r, 0, RTE_FLOW_ITEM_TYPE_ETH, &mask));
  const struct rte_flow_item_ipv4 *ip = item(&r, 1, RTE_FLOW_ITEM_TYPE_IPV4, &mask), *ip_mask = mask;
  assert_int_equal(tb_get32((const uint8_t *)&ip->hdr.dst_addr), 0x0a000005);
  assert_int_equal(ip_mask->hdr.dst_addr, UINT32_MAX);
  assert_true(!ip_mask->hdr.src_addr && !ip_mask->hdr.next_proto_id && !ip_mask->hdr.fragment_offset);
  check_rest(&r, 2, 5001, 3);
}

static void make__a_rule_of_ipv6_in_a_vlan(void **state) {
  (void)state;
  tb_net_self self = {.ip = {{[0] = 0xfd, [15] = 5}}, .bits = 64, .vlan = 4000, .port = 5000, .ports = 2};
  static const uint8_t all[16] = {255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255};
  dpdk_flow_rule r;
  const void *mask;
  memset(&r, 0xee, sizeof r);
  dpdk_flow_make(&r, &self, 5000, 0);
  assert_null(item(&r, 0, RTE_FLOW_ITEM_TYPE_ETH, &mask));
  const struct rte_flow_item_vlan *vlan = item(&r, 1, RTE_FLOW_ITEM_TYPE_VLAN, &mask), *vlan_mask = mask;
  assert_int_equal(tb_get16((const uint8_t *)&vlan->hdr.vlan_tci), 4000);
  assert_int_equal(tb_get16((const uint8_t *)&vlan_mask->hdr.vlan_tci), 0xfff); /* whatever its priority */
  const struct rte_flow_item_ipv6 *ip = item(&r, 2, RTE_FLOW_ITEM_TYPE_IPV6, &mask), *ip_mask = mask;
  assert_memory_equal(&ip->hdr.dst_addr, self.ip.b, 16);
  assert_memory_equal(&ip_mask->hdr.dst_addr, all, 16);
  assert_true(!ip_mask->hdr.proto && !ip_mask->hdr.vtc_flow);
  check_rest(&r, 3, 5000, 0);
}

/* Refused, which is said where one asks and nowhere else; and all goes as before. */
static void add__refused_is_no_loss(void **state) {
  (void)state;
  static const char *const device[] = {"af_packet:tb0", "af_xdp:tb1", "ring"};
  for (int i = 0; i < 3; i++) {
    tb_link *link = open_at(device[i], NULL);
    tb_link_event e;
    char line[400];
    assert_int_equal(OPS->describe(link, line, sizeof line), 0);
    assert_non_null(strstr(line, ", rules 0, "));
    assert_int_equal(OPS->events(link, &e, 1), 0);
    introduce(link, 0, link, true);
    OPS->close(link);
  }
}

static uint32_t rules_of_kernel(void) {
  FILE *f = popen("tc filter show dev dtap0; tc filter show dev dtap0 ingress; tc filter show dev dtap0 egress", "r");
  char line[300];
  uint32_t found = 0;
  assert_non_null(f);
  while (fgets(line, sizeof line, f)) found += strstr(line, "dst_port ") != NULL;
  pclose(f);
  return found;
}

/* One for each of our ports, as long as the link is open; frames come by them. */
static void add__taken_and_taken_back(void **state) {
  (void)state;
  tb_link_cfg cfg = config("net_tap0", "10.9.0.5/24");
  mixed m = {.dpdk = open_link(&cfg)};
  uint8_t there[MANY] = {0}, back[MANY] = {0};
  char line[400];
  assert_int_equal(OPS->describe(m.dpdk, line, sizeof line), 0);
  print_message("%s\n", line);
  assert_non_null(strstr(line, ", rules 2, "));
  assert_int_equal(rules_of_kernel(), 2);
  run("ip link set dtap0 address 02:00:00:00:00:99"); /* the driver's choice is its own, and so ours, too */
  run("ip addr add 10.9.0.9/24 dev dtap0");
  cfg.interface = "10.9.0.9";
  cfg.mtu = 1400;
  if (tb_link_udp.open(&cfg, &m.kernel)) fail_msg("%s", error);
  introduce_udp(m.dpdk, m.kernel, true);
  await_neighbour(&m);
  send_many(&m, m.kernel, 1);
  assert_int_equal(exchange(&m, m.dpdk, MANY, there), MANY);
  send_many(&m, m.dpdk, 0);
  assert_int_equal(exchange(&m, m.kernel, MANY, back), MANY);
  close_mixed(&m);
  assert_int_equal(rules_of_kernel(), 0);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(make__a_rule_of_ipv4),
      cmocka_unit_test(make__a_rule_of_ipv6_in_a_vlan),
      cmocka_unit_test(add__refused_is_no_loss),
  };
  const struct CMUnitTest tap[] = {cmocka_unit_test(add__taken_and_taken_back)};
  make_switch(2);
  if (argc > 1 && !strcmp(argv[1], "tap")) return cmocka_run_group_tests_name("tap", tap, NULL, NULL);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
