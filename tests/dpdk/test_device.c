/* Tests of plugins/dpdk/device.c: words for `device`, and the devargs and figures that come of them. */
#include "plugins/dpdk/dpdk.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static char error[DPDK_ERROR];
static dpdk_device d;

static void parse_as(const char *spec, uint32_t self) {
  int rc = dpdk_device_parse(spec, self, &d, error, sizeof error);
  if (rc) fail_msg("\"%s\": %d %s", spec, rc, error);
}

static void parse(const char *spec) { parse_as(spec, 0); }

static void refuse(const char *spec, const char *word) {
  assert_int_equal(dpdk_device_parse(spec, 0, &d, error, sizeof error), -EINVAL);
  if (!strstr(error, word)) fail_msg("\"%s\": \"%s\" lacks \"%s\"", spec, error, word);
}

static void contains(const char *word) {
  if (!strstr(d.devargs, word)) fail_msg("\"%s\" lacks \"%s\"", d.devargs, word);
}

static void parse__af_packet_frames_hold_the_interfaces_mtu(void **state) {
  (void)state;
  parse("af_packet:nosuch0"); /* not there: 1500, and preflight refuses it */
  assert_int_equal(d.kind, DPDK_AF_PACKET);
  assert_string_equal(d.name, "net_af_packet_nosuch0");
  assert_string_equal(d.iface, "nosuch0");
  assert_string_equal(d.devargs,
                      "net_af_packet_nosuch0,iface=nosuch0,framesz=2048,blocksz=16384,framecnt=4096,qpairs=1");
  assert_int_equal(d.ip_mtu, 1500);
  assert_int_equal(d.rx_ring, 4096);
  assert_false(d.set_mtu);
  parse("af_packet:lo"); /* 65536 */
  contains("framesz=16384,blocksz=16384,framecnt=2048");
  assert_int_equal(d.ip_mtu, 15936);
}

static void parse__af_xdp_frames_fit_a_page_with_all_heads(void **state) {
  (void)state;
  dpdk_pools pools;
  parse("af_xdp:nosuch0");
  assert_int_equal(d.kind, DPDK_AF_XDP);
  assert_string_equal(d.devargs, "net_af_xdp_nosuch0,iface=nosuch0,start_queue=0,queue_count=1");
  parse("af_xdp:lo");
  assert_int_equal(d.ip_mtu, 3400);
  dpdk_device_pools(&d, 0, &pools);
  assert_true(pools.room + sizeof(struct rte_mbuf) + 64 <= 4096);
  assert_true(pools.room >= RTE_PKTMBUF_HEADROOM + 256 + 14 + 3400);
  assert_true(pools.rx > 2048 + 4096);
  assert_int_equal(pools.tx, 0);
}

static void parse__memif_lower_rank_serves(void **state) {
  (void)state;
  parse_as("memif:/run/m.sock", 0);
  contains("role=server,id=0,bsize=9216,socket=/run/m.sock,socket-abstract=no");
  assert_true(d.point_to_point && d.may_shut);
  assert_null(strstr(d.devargs, "zero-copy"));
  parse_as("memif:/run/m.sock", 1);
  contains("role=client");
  parse_as("memif:/run/m.sock,server", 1);
  contains("role=server");
  parse_as("memif:/run/m.sock,client", 0);
  contains("role=client");
  refuse("memif:/run/m.sock,master", "server or client");
  refuse("memif:/run/a b", "without spaces");
  refuse("memif:", "path");
}

static void parse__names_differ_where_devices_do(void **state) {
  (void)state;
  char first[64];
  parse("memif:/run/a,server");
  memcpy(first, d.name, sizeof first);
  parse("memif:/run/b,server");
  assert_string_not_equal(first, d.name);
  parse("memif:/run/a,client");
  assert_string_not_equal(first, d.name);
  parse("memif:/run/a,server");
  assert_string_equal(first, d.name);
}

static void parse__ring_and_pcap(void **state) {
  (void)state;
  parse("ring");
  assert_string_equal(d.name, "net_ring_0");
  assert_int_equal(d.kind, DPDK_RING);
  parse("ring:left");
  assert_string_equal(d.name, "net_ring_left");
  refuse("ring:", "name");
  refuse("ring:elevenchars", "at most 10");
  parse("pcap:/tmp/in.pcap,/tmp/out.pcap");
  assert_int_equal(d.kind, DPDK_PCAP);
  contains(",rx_pcap=/tmp/in.pcap,tx_pcap=/tmp/out.pcap");
  refuse("pcap:/tmp/in.pcap", "two files");
  refuse("pcap:/tmp/in.pcap,", "paths");
  refuse("pcap:/tmp/in.pcap,/tmp/a,b", "paths");
}

static void parse__pci_addresses(void **state) {
  (void)state;
  parse("0000:03:00.0");
  assert_int_equal(d.kind, DPDK_PCI);
  assert_string_equal(d.name, "0000:03:00.0");
  assert_true(d.set_mtu);
  parse("03:1f.7");
  assert_string_equal(d.devargs, "0000:03:1f.7");
  parse("ABCD:E3:00.1,representor=0");
  assert_string_equal(d.name, "abcd:e3:00.1");
  assert_string_equal(d.devargs, "abcd:e3:00.1,representor=0");
  refuse("03:20.0", "is none");
  refuse("03:00.8", "is none");
  refuse("03:00.0x", "is none");
  refuse("03:00", "is none");
}

static void parse__eals_own_words_keep_what_is_known(void **state) {
  (void)state;
  parse("net_null0,size=64");
  assert_int_equal(d.kind, DPDK_OTHER);
  assert_string_equal(d.devargs, "net_null0,size=64");
  assert_string_equal(d.name, "net_null0");
  parse("net_af_packet7,iface=lo,framesz=4096,framecnt=1024");
  assert_int_equal(d.kind, DPDK_AF_PACKET);
  assert_string_equal(d.iface, "lo");
  assert_int_equal(d.ip_mtu, 4096 - 80 - 18);
  assert_int_equal(d.rx_ring, 1024);
  parse("net_memif0,bsize=4096");
  assert_int_equal(d.ip_mtu, 4096 - 18);
  assert_true(d.may_shut);
  refuse("net_memif0,zero-copy=yes", "crashes");
  refuse("net_memif0,bsize=1", "between");
  refuse("net_null0, size=64", "no spaces");
  refuse("net_", "is none");
}

static void parse__wrong_words_get_grammar_and_devices(void **state) {
  (void)state;
  refuse("", "name a device");
  refuse(NULL, "name a device");
  refuse("eth0", "af_packet:IFACE");
  refuse("eth0", "lo (virtual)");
  refuse("af_packet:", "name of an interface");
  refuse("af_packet:a,b", "name of an interface");
  refuse("af_packet:sixteen_or_more_", "name of an interface");
}

static void pools__hold_whole_frames_and_all_that_is_under_way(void **state) {
  (void)state;
  dpdk_pools p;
  parse("03:00.0");
  dpdk_device_pools(&d, 0, &p);
  assert_true(p.rx >= p.rx_desc + DPDK_LEASES + 2 * DPDK_RX_BURST);
  assert_true(p.tx >= p.tx_desc + 2 * DPDK_TX_BURST);
  assert_true(p.room >= RTE_PKTMBUF_HEADROOM + 1500 + 22);
  dpdk_device_pools(&d, 9000, &p);
  assert_true(p.room >= RTE_PKTMBUF_HEADROOM + 9000 + 22);
  assert_true(p.bytes > (uint64_t)(p.rx + p.tx) * p.room);
  dpdk_device_pools(&d, 65535 + 28, &p);
  assert_in_range(p.room, RTE_PKTMBUF_HEADROOM + DPDK_IP_MTU_MAX + 22, UINT16_MAX); /* what an mbuf can be told */
  parse("af_packet:nosuch0");
  dpdk_device_pools(&d, 0, &p);
  assert_true(p.room - RTE_PKTMBUF_HEADROOM >= 2048 - 32); /* what its driver asks for */
  parse("memif:/run/a");
  dpdk_device_pools(&d, 0, &p);
  assert_true(p.room - RTE_PKTMBUF_HEADROOM >= 9216);
}

static void ref__only_drivers_that_copy_in_tx_burst_read_callers_memory(void **state) {
  (void)state;
  static const struct { const char *spec; tb_ref_kind ref; } all[] = {
      {"af_packet:nosuch0", TB_REF_SYNC}, {"net_af_packet0,iface=nosuch0", TB_REF_SYNC}, {"memif:/run/a", TB_REF_SYNC},
      {"net_memif0", TB_REF_SYNC}, {"pcap:/tmp/a,/tmp/b", TB_REF_SYNC}, {"af_xdp:nosuch0", TB_REF_NONE},
      {"ring", TB_REF_NONE}, {"03:00.0", TB_REF_NONE}, {"net_null0", TB_REF_NONE}, {"net_tap0", TB_REF_NONE}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    dpdk_pools with;
    parse(all[i].spec);
    if (d.ref != all[i].ref) fail_msg("%s: %d", all[i].spec, (int)d.ref);
    dpdk_device_pools(&d, 0, &with);
    assert_int_equal(with.tails >= 2 * DPDK_TX_BURST, all[i].ref != TB_REF_NONE);
    d.ref = TB_REF_NONE;
    dpdk_pools without;
    dpdk_device_pools(&d, 0, &without);
    assert_int_equal(without.tails, 0);
    assert_true(with.bytes - without.bytes <= 512u << 10); /* tails have no room */
    assert_int_equal(with.bytes > without.bytes, with.tails > 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(parse__af_packet_frames_hold_the_interfaces_mtu),
      cmocka_unit_test(parse__af_xdp_frames_fit_a_page_with_all_heads),
      cmocka_unit_test(parse__memif_lower_rank_serves),
      cmocka_unit_test(parse__names_differ_where_devices_do),
      cmocka_unit_test(parse__ring_and_pcap),
      cmocka_unit_test(parse__pci_addresses),
      cmocka_unit_test(parse__eals_own_words_keep_what_is_known),
      cmocka_unit_test(parse__wrong_words_get_grammar_and_devices),
      cmocka_unit_test(pools__hold_whole_frames_and_all_that_is_under_way),
      cmocka_unit_test(ref__only_drivers_that_copy_in_tx_burst_read_callers_memory),
  };
  return cmocka_run_group_tests_name("device", tests, NULL, NULL);
}
