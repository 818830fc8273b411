/* test_link_conformance.c - what links/link.h promises, asked of every link with the same code: the tests are in
 * conformance_tx.c and conformance_rx.c, the links here; those of plugins in tests/dpdk/test_conformance.c. */
#include "conformance.h"

#define SIM "rate=10G delay=20us tx_ring=16 poison=1 "
static link_kind kinds[] = {
  {.name = "sim prompt", .ops = &tb_link_sim, .sim = SIM "ref=prompt reap_delay=5us",
   .ref = TB_REF_PROMPT, .capacity = 16},
  {.name = "sim sync", .ops = &tb_link_sim, .sim = SIM "ref=sync csum=1", .ref = TB_REF_SYNC, .capacity = 16,
   .truncation_known = true},
  {.name = "sim none", .ops = &tb_link_sim, .sim = SIM "ref=none", .ref = TB_REF_NONE, .capacity = 16},
  {.name = "udp", .ops = &tb_link_udp, .interface = "127.0.0.1", .ref = TB_REF_SYNC, .truncation_known = true},
  {.name = "udp over IPv6", .ops = &tb_link_udp, .interface = "::1", .ref = TB_REF_SYNC, .truncation_known = true,
   .may_be_absent = true},
};

int main(void) { return conformance_run("link conformance", kinds, sizeof kinds / sizeof kinds[0]); }
