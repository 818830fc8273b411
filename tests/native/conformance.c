/* conformance.c - every conformance test with every link that a program names. */
#include "conformance.h"

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

int conformance_run(const char *name, link_kind *kinds, size_t count) {
  struct CMUnitTest *all = calloc(count * (conformance_tx_count + conformance_rx_count), sizeof *all), *end = all;
  if (!all) return 1;
  for (size_t k = 0; k < count; k++) {
    for (size_t t = 0; t < conformance_tx_count; t++) end = named(end, &conformance_tx[t], &kinds[k]);
    for (size_t t = 0; t < conformance_rx_count; t++) end = named(end, &conformance_rx[t], &kinds[k]);
  }
  int failed = _cmocka_run_group_tests(name, all, (size_t)(end - all), NULL, NULL);
  free(all);
  return failed;
}
