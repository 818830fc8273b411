/* plugin.h - a link that needs a library which the core must not depend on lives in a shared object of its own,
 * libtailbound_NAME-ABI.so: ABI is the version of that library, so that builds for several stand side by side. It
 * exports one function and uses no symbol of the core. registry.c finds and loads it. */
#ifndef TB_PLUGIN_H
#define TB_PLUGIN_H
#include "links/link.h"

/* Changes with every declaration of link.h and of this file: a hash of them, which tests/transport/test_plugin_abi.py
 * computes and compares. The sizes below also catch a build from a tree in which that was not done. */
#define TB_PLUGIN_ABI 0xb9d905c9u
#define TB_PLUGIN_SYMBOL "tb_link_plugin_get"

typedef struct {
  uint32_t abi;           /* TB_PLUGIN_ABI */
  uint32_t sizes;         /* TB_PLUGIN_SIZES */
  const char *name;       /* "dpdk" */
  const char *library;    /* with version, as found at run time: "DPDK 22.11.11" */
  const tb_link_ops *ops;
} tb_link_plugin;

#define TB_PLUGIN_SIZES \
  ((uint32_t)(sizeof(tb_link_ops) + 3 * sizeof(tb_link_cfg) + 5 * sizeof(tb_link_caps) + 7 * sizeof(tb_tx) + \
              11 * sizeof(tb_rx) + 13 * sizeof(tb_link_stats) + 17 * sizeof(tb_link_event)))

typedef const tb_link_plugin *(*tb_link_plugin_fn)(void);
#endif
