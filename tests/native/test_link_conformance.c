/* test_link_conformance.c - what links/link.h promises, asked of every link with the same code: the tests are in
 * conformance_tx.c and conformance_rx.c, the links here. */
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

static struct CMUnitTest *named(struct CMUnitTest *out, const struct CMUnitTest *test, link_kind *kind) {
  static char names[200][100];
  static size_t used;
  if (used == sizeof names / sizeof names[0]) abort();
  snprintf(names[used], sizeof names[0], "%s: %s", kind->name, test->name);
  *out = *test;
  out->name = names[used++];
  out->initial_state = kind;
  return out + 1;
}

int main(void) {
  const size_t kinds_count = sizeof kinds / sizeof kinds[0];
  struct CMUnitTest *all = calloc(kinds_count * (conformance_tx_count + conformance_rx_count), sizeof *all), *end = all;
  if (!all) return 1;
  for (size_t k = 0; k < kinds_count; k++) {
    for (size_t t = 0; t < conformance_tx_count; t++) end = named(end, &conformance_tx[t], &kinds[k]);
    for (size_t t = 0; t < conformance_rx_count; t++) end = named(end, &conformance_rx[t], &kinds[k]);
  }
  int failed = _cmocka_run_group_tests("link conformance", all, (size_t)(end - all), NULL, NULL);
  free(all);
  return failed;
}
