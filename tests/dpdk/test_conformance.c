/* test_conformance.c - the conformance suite of every link (tests/native/conformance*.c) with the dpdk link: three
 * devices in a switch, over two drivers, in both poll modes, over IPv4 and IPv6, with a VLAN tag and without. */
#include "../native/conformance.h"
#include "links/plugin.h"
#include "leaks.h"
#include "switch.h"

const tb_link_plugin *tb_link_plugin_get(void);

static link_kind kinds[] = {
  {.name = "af_packet", .device = {"af_packet:tb0", "af_packet:tb1", "af_packet:tb2"}, .ref = TB_REF_SYNC,
   .truncation_known = true},
  {.name = "af_packet, busy", .device = {"af_packet:tb0", "af_packet:tb1", "af_packet:tb2"}, .ref = TB_REF_SYNC,
   .truncation_known = true, .busy = true},
  {.name = "af_xdp", .device = {"af_xdp:tb3", "af_xdp:tb4", "af_xdp:tb5"}, .ref = TB_REF_NONE,
   .truncation_known = true},
  {.name = "af_packet, VLAN", .device = {"af_packet:tb0", "af_packet:tb1", "af_packet:tb2"}, .ref = TB_REF_SYNC,
   .truncation_known = true, .vlan = 7},
  /* the sum is ours to make, over a copy */
  {.name = "af_packet, IPv6", .device = {"af_packet:tb0", "af_packet:tb1", "af_packet:tb2"}, .ref = TB_REF_NONE,
   .truncation_known = true, .ip = {"fd00::1/64", "fd00::2/64", "fd00::3/64"}},
  {.name = "af_xdp, IPv6, VLAN", .device = {"af_xdp:tb3", "af_xdp:tb4", "af_xdp:tb5"}, .ref = TB_REF_NONE,
   .truncation_known = true, .ip = {"fe80::1/64", "fe80::2/64", "fe80::3/64"}, .vlan = 4094},
};

int main(void) {
  const size_t count = sizeof kinds / sizeof kinds[0];
  make_switch(6);
  for (int i = 3; i < 6; i++) tags_in_frames(i);
  for (size_t i = 0; i < count; i++) kinds[i].ops = tb_link_plugin_get()->ops;
  return conformance_run("dpdk conformance", kinds, count);
}
