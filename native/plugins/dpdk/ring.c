/* ring.c - two ends of a wire inside one process: DPDK's ring driver over two rings, one each way.
 *
 * Devargs cannot make such a pair (a ring port that is probed hears itself), a function of the driver can. The driver is
 * among those that EAL loaded, with local symbols, so the function is looked up in it: the plugin then needs no driver
 * in order to be loaded. */
#include "plugins/dpdk/dpdk.h"
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <rte_errno.h>
#include <rte_ring.h>
#include <stdio.h>
#include <string.h>

typedef int (*from_rings_fn)(const char *name, struct rte_ring *const rx[], unsigned rx_count, struct rte_ring *const tx[],
                             unsigned tx_count, unsigned node);

static int note_driver(struct dl_phdr_info *info, size_t size, void *path) {
  (void)size;
  if (!info->dlpi_name || !strstr(info->dlpi_name, "librte_net_ring.so")) return 0;
  snprintf(path, PATH_MAX, "%s", info->dlpi_name);
  return 1;
}

static from_rings_fn find_driver(void) {
  char path[PATH_MAX];
  from_rings_fn found = NULL;
  if (!dl_iterate_phdr(note_driver, path)) return NULL;
  void *driver = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  void *symbol = driver ? dlsym(driver, "rte_eth_from_rings") : NULL;
  memcpy(&found, &symbol, sizeof found);
  if (driver) dlclose(driver); /* EAL keeps it */
  return found;
}

static struct rte_ring *ring_of(const char *name, char way, uint32_t frames) {
  char full[RTE_RING_NAMESIZE];
  snprintf(full, sizeof full, "tb_%.16s_%c", name, way);
  struct rte_ring *r = rte_ring_lookup(full);
  return r ? r : rte_ring_create(full, frames, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ | RING_F_EXACT_SZ);
}

/* `end`: net_ring_NAME_a or net_ring_NAME_b. */
int dpdk_ring_ends(const char *end, uint32_t frames, uint16_t *id, char *error, size_t n) {
  const char *name = end + strlen("net_ring_");
  char base[32];
  snprintf(base, sizeof base, "%.*s", (int)strlen(name) - 2, name);
  from_rings_fn from_rings = find_driver();
  if (!from_rings)
    return dpdk_refuse(error, n, -ENOENT, "dpdk: DPDK's ring driver is not installed: apt-get install librte-net-ring*");
  struct rte_ring *forth = ring_of(base, 'f', frames), *back = ring_of(base, 'b', frames);
  if (!forth || !back)
    return dpdk_refuse(error, n, -ENOMEM, "dpdk: no memory for the rings of %s: %s", end, rte_strerror(rte_errno));
  bool first = name[strlen(name) - 1] == 'a';
  int port = from_rings(name, first ? &back : &forth, 1, first ? &forth : &back, 1, 0);
  if (port < 0) return dpdk_refuse(error, n, -EIO, "dpdk: %s cannot be made: %s", end, rte_strerror(rte_errno));
  *id = (uint16_t)port;
  return 0;
}
