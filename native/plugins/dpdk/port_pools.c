/* port_pools.c - the buffers of a port. They live as long as it does: frames of a ring may lie at its other end. */
#include "plugins/dpdk/port.h"
#include <errno.h>
#include <rte_errno.h>
#include <rte_mbuf_pool_ops.h>
#include <stdio.h>

enum { CACHE = 256 };

static unsigned pools_made;

/* A pool some of whose mbufs lie elsewhere is never freed: whoever has them would write into foreign memory. */
static void free_pool(struct rte_mempool *pool) {
  if (pool && rte_mempool_full(pool)) rte_mempool_free(pool);
}

void dpdk_pools_free(dpdk_port *p) {
  if (p->tx_pool != p->rx_pool) free_pool(p->tx_pool);
  free_pool(p->rx_pool);
  free_pool(p->tail_pool);
  p->rx_pool = p->tx_pool = p->tail_pool = NULL;
}

/* rte_pktmbuf_pool_create, but with objects as close as they can be: in ordinary pages each begins a page of its own, and
 * af_xdp takes a pool for objects end to end; what lay beyond it would be refused frame by frame. */
static struct rte_mempool *dense_pool(const char *name, uint32_t mbufs, uint32_t room, int socket) {
  struct rte_pktmbuf_pool_private private = {.mbuf_data_room_size = (uint16_t)room};
  uint32_t elt = (uint32_t)sizeof(struct rte_mbuf) + room;
  struct rte_mempool *pool =
      rte_mempool_create_empty(name, mbufs, elt, CACHE, sizeof private, socket, RTE_MEMPOOL_F_NO_SPREAD);
  if (!pool) return NULL;
  rte_pktmbuf_pool_init(pool, &private);
  bool exact = pool->header_size + pool->elt_size + pool->trailer_size == DPDK_DENSE;
  if (!exact || rte_mempool_set_ops_byname(pool, rte_mbuf_best_mempool_ops(), NULL) ||
      rte_mempool_populate_default(pool) < 0) {
    if (!exact) rte_errno = EINVAL;
    rte_mempool_free(pool);
    return NULL;
  }
  rte_mempool_obj_iter(pool, rte_pktmbuf_init, NULL);
  return pool;
}

static struct rte_mempool *try_pool(const dpdk_port *p, uint32_t mbufs, uint32_t room, int socket) {
  char name[RTE_MEMZONE_NAMESIZE];
  snprintf(name, sizeof name, "tb_pool_%u", pools_made++);
  if (p->device.one_pool) return dense_pool(name, mbufs, room, socket);
  return rte_pktmbuf_pool_create(name, mbufs, CACHE, 0, (uint16_t)room, socket);
}

static struct rte_mempool *make_pool(const dpdk_port *p, uint32_t mbufs, uint32_t room) {
  struct rte_mempool *pool = try_pool(p, mbufs, room, p->socket);
  if (pool || p->socket == SOCKET_ID_ANY) return pool;
  return try_pool(p, mbufs, room, SOCKET_ID_ANY); /* far memory beats none */
}

int dpdk_pools_make(dpdk_port *p, dpdk_answer a) {
  const dpdk_pools *want = &p->pools;
  p->rx_pool = make_pool(p, want->rx, want->room);
  p->tx_pool = !p->rx_pool ? NULL : want->tx ? make_pool(p, want->tx, want->room) : p->rx_pool;
  if (p->tx_pool && want->tails) p->tail_pool = make_pool(p, want->tails, 0);
  if (p->tx_pool && (p->tail_pool || !want->tails)) return 0;
  dpdk_pools_free(p);
  return dpdk_refuse(a.error, a.n, -ENOMEM, "dpdk: no memory for the buffers of %s, %llu MB: %s", p->device.name,
                     (unsigned long long)(want->bytes >> 20),
                     dpdk_eal_huge() ? "set aside more huge pages (/proc/sys/vm/nr_hugepages)"
                                     : "restart the process with more, TAILBOUND_EAL_ARGS=\"-m 2048\"");
}
