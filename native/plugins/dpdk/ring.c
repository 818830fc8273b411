/* ring.c - two ends of a wire inside one process: DPDK's ring driver over two rings, one each way.
 *
 * Devargs cannot make such a pair (a ring port that is probed hears itself), a function of the driver can: loaded.c finds
 * it in the driver that EAL loaded. */
#include "plugins/dpdk/dpdk.h"
#include <errno.h>
#include <rte_errno.h>
#include <rte_ring.h>
#include <stdio.h>
#include <string.h>

typedef int (*from_rings_fn)(const char *name, struct rte_ring *const rx[], unsigned rx_count, struct rte_ring *const tx[],
                             unsigned tx_count, unsigned node);

static from_rings_fn find_driver(void) {
  from_rings_fn found = NULL;
  void *symbol = dpdk_loaded_symbol("librte_net_ring.so", "rte_eth_from_rings");
  memcpy(&found, &symbol, sizeof found);
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
