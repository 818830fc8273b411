/* port_configure.c - queues, offloads, interrupts and MTU of a port. */
#include "plugins/dpdk/port.h"

/* Interrupts are asked for where somebody sleeps; drivers without them refuse here, or at the queue. */
static int configure_queues(dpdk_port *p, const struct rte_eth_dev_info *info, uint32_t mtu, bool interrupts) {
  struct rte_eth_conf conf = {.rxmode.mq_mode = RTE_ETH_MQ_RX_NONE}; /* one queue: nothing to spread over */
  conf.rxmode.mtu = p->device.set_mtu ? mtu : 0; /* af_packet refuses any that it is told */
  conf.rxmode.offloads = info->rx_offload_capa & (RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM);
  conf.txmode.offloads = info->tx_offload_capa & (RTE_ETH_TX_OFFLOAD_UDP_CKSUM | RTE_ETH_TX_OFFLOAD_MULTI_SEGS);
  conf.intr_conf.rxq = interrupts;
  uint16_t rx = (uint16_t)p->pools.rx_desc, tx = (uint16_t)p->pools.tx_desc;
  if (!rx) rx = 512;
  if (!tx) tx = 512;
  int rc = rte_eth_dev_configure(p->id, 1, 1, &conf);
  if (!rc) rc = rte_eth_dev_adjust_nb_rx_tx_desc(p->id, &rx, &tx);
  if (!rc) rc = rte_eth_rx_queue_setup(p->id, 0, rx, (unsigned)p->socket, NULL, p->rx_pool);
  if (!rc) rc = rte_eth_tx_queue_setup(p->id, 0, tx, (unsigned)p->socket, NULL);
  if (rc) return rc;
  p->rx_desc = rx;
  p->tx_desc = tx;
  p->rx_sum = (conf.rxmode.offloads & RTE_ETH_RX_OFFLOAD_UDP_CKSUM) != 0;
  p->tx_sum = (conf.txmode.offloads & RTE_ETH_TX_OFFLOAD_UDP_CKSUM) != 0;
  p->rx_interrupts = interrupts;
  return 0;
}

/* The largest IP packet: what is wanted, the driver's limit, the device's. */
static uint32_t choose_mtu(const dpdk_port *p, const struct rte_eth_dev_info *info, uint32_t wanted) {
  const dpdk_device *d = &p->device;
  uint16_t now = 0;
  uint32_t mtu = d->ip_mtu;
  if (!mtu) mtu = d->set_mtu && wanted ? wanted : rte_eth_dev_get_mtu(p->id, &now) || !now ? 1500 : now;
  if (wanted && wanted < mtu) mtu = wanted;
  if (d->set_mtu && info->max_mtu && mtu > info->max_mtu) mtu = info->max_mtu;
  return mtu < DPDK_IP_MTU_MAX ? mtu : DPDK_IP_MTU_MAX;
}

int dpdk_port_configure(dpdk_port *p, uint32_t wanted, bool interrupts, dpdk_answer a) {
  struct rte_eth_dev_info info;
  dpdk_pools need;
  int rc = rte_eth_dev_info_get(p->id, &info);
  if (rc) return dpdk_refuse_call(a, &p->device, rc, "asking for the limits");
  uint32_t mtu = choose_mtu(p, &info, wanted);
  dpdk_device_pools(&p->device, mtu, &need);
  if (p->rx_pool && need.room > p->pools.room) dpdk_pools_free(p);
  if (!p->rx_pool) {
    p->pools = need;
    if ((rc = dpdk_pools_make(p, a))) return rc;
  }
  dpdk_eal_log_clear();
  bool possible = interrupts && p->device.kind == DPDK_PCI; /* no virtual device has any */
  rc = configure_queues(p, &info, mtu, possible);
  if (rc && possible) rc = configure_queues(p, &info, mtu, false);
  if (rc) return dpdk_refuse_call(a, &p->device, rc, "configuring the queues");
  p->ip_mtu = mtu;
  p->asked_interrupts = interrupts;
  p->rx_frames = p->device.rx_ring ? p->device.rx_ring : p->rx_desc;
  return 0;
}
