/* test_conformance.c - the conformance suite of every link (tests/native/conformance*.c) with the dpdk link: three
 * devices in a switch, over two drivers, in both poll modes, over IPv4 and IPv6, with a VLAN tag and without; and a memif, whose server is an end as its client is: the
 * driver handles both in EAL's own thread. */
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
  {.name = "memif's server", .ends = 2, .cuts_at_close = true, .ref = TB_REF_SYNC, .truncation_known = true},
  {.name = "memif's client, busy", .ends = 2, .last_first = true, .cuts_at_close = true, .ref = TB_REF_SYNC,
   .truncation_known = true, .busy = true},
  {.name = "af_packet, VLAN", .device = {"af_packet:tb0", "af_packet:tb1", "af_packet:tb2"}, .ref = TB_REF_SYNC,
   .truncation_known = true, .vlan = 7},
  /* the sum is ours to make, over a copy */
  {.name = "af_packet, IPv6", .device = {"af_packet:tb0", "af_packet:tb1", "af_packet:tb2"}, .ref = TB_REF_NONE,
   .truncation_known = true, .ip = {"fd00::1/64", "fd00::2/64", "fd00::3/64"}},
  {.name = "af_xdp, IPv6, VLAN", .device = {"af_xdp:tb3", "af_xdp:tb4", "af_xdp:tb5"}, .ref = TB_REF_NONE,
   .truncation_known = true, .ip = {"fe80::1/64", "fe80::2/64", "fe80::3/64"}, .vlan = 4094},
};
enum { SERVER = 3, CLIENT }; /* whose frames most tests look at: the end's that is numbered 0 */

int main(void) {
  const size_t count = sizeof kinds / sizeof kinds[0];
  char dir[] = "/tmp/tb_conformance_XXXXXX", server[64], client[64];
  make_switch(6);
  for (int i = 3; i < 6; i++) tags_in_frames(i);
  if (!mkdtemp(dir)) return 1;
  snprintf(server, sizeof server, "memif:%s/m,server", dir);
  snprintf(client, sizeof client, "memif:%s/m,client", dir);
  kinds[SERVER].device[0] = kinds[CLIENT].device[1] = server;
  kinds[SERVER].device[1] = kinds[CLIENT].device[0] = client;
  for (size_t i = 0; i < count; i++) kinds[i].ops = tb_link_plugin_get()->ops;
  int failed = conformance_run("dpdk conformance", kinds, count);
  run("rm -r %s", dir);
  return failed;
}
