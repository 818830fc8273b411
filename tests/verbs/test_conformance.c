/* test_conformance.c - the conformance suite of every link (tests/native/conformance*.c) with the verbs link. It needs
 * RDMA devices: tests/guest runs it on soft-RoCE ones, named on the command line; without a name it fails. Three ends on
 * one device, polling; and each on its own, sleeping, if there are three names. */
#include "../native/conformance.h"
#include "links/plugin.h"

const tb_link_plugin *tb_link_plugin_get(void);

/* Small buffers: an emulated machine takes long to lock memory. */
#define KIND .ref = TB_REF_PROMPT, .truncation_known = true, .buffer = 1 << 20
static link_kind kinds[] = {{.name = "one device, busy", .busy = true, KIND},
                            {.name = "three devices, registered memory", .ref_from = 4096, KIND}};

int main(int argc, char **argv) {
  if (argc != 2 && argc != 1 + ENDS) {
    fprintf(stderr, "usage: %s DEVICE [DEVICE DEVICE]\n", argv[0]);
    return 1;
  }
  for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
    kinds[i].ops = tb_link_plugin_get()->ops;
    for (int e = 0; e < ENDS; e++) kinds[i].device[e] = argv[i == 1 ? 1 + e : 1];
  }
  return conformance_run("verbs conformance", kinds, argc == 2 ? 1 : 2);
}
