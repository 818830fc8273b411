/* stats.c - counters, ours and the device's, and events.
 *
 * ethdev fills a counter with 0 when a driver does not keep it. Which driver keeps which was read and tried: what af_packet
 * drops only its socket knows; memif and ring say nothing, where nothing is dropped but by the sender. Of a driver
 * not listed here a counter is believed once it is above 0. */
#include "plugins/dpdk/dpdk.h"
#include <string.h>
#include <sys/ioctl.h>

enum { MISSED = 1, NOBUF = 2, ERRORS = 4, ALL = 7, KNOWN = 8 };
enum { LINK_LOOK_NS = 500000000, OTHER_END_LOOK_NS = 10000000 };

unsigned dpdk_stats_counted(const dpdk_port *p) {
  static const struct { const char *driver; unsigned counted; } table[] = {
    {"net_af_packet", ERRORS}, {"net_af_xdp", MISSED | ERRORS}, {"net_memif", ERRORS}, {"net_ring", 0},
    {"net_pcap", NOBUF | ERRORS}, {"net_virtio", NOBUF}, {"net_e1000", ALL}, {"net_ixgbe", ALL}, {"net_i40e", ALL},
    {"net_ice", ALL}, {"net_ena", ALL}, {"mlx5", ALL}, {"net_vmxnet3", MISSED | NOBUF}};
  struct rte_eth_dev_info info;
  if (rte_eth_dev_info_get(p->id, &info) || !info.driver_name) return 0;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++)
    if (!strncmp(info.driver_name, table[i].driver, strlen(table[i].driver))) return table[i].counted | KNOWN;
  return 0;
}

static uint64_t get(const atomic_uint_least64_t *c) { return atomic_load_explicit(c, memory_order_relaxed); }

static uint64_t since(const dpdk_link *l, unsigned which, uint64_t now, uint64_t then) {
  uint64_t n = now - then;
  return l->counted & which || (!(l->counted & KNOWN) && n) ? n : TB_NONE;
}

static uint64_t sum(uint64_t a, uint64_t b) { return a == TB_NONE ? TB_NONE : b == TB_NONE ? a : a + b; }

/* The driver's number, or what the socket under it says. */
static uint64_t missed(const dpdk_link *l, const struct rte_eth_stats *now) {
  uint64_t drops = dpdk_socket_drops(l->port);
  if (drops != TB_NONE && l->port->drops_before != TB_NONE) return drops - l->port->drops_before;
  return since(l, MISSED, now->imissed, l->port->since.imissed);
}

int dpdk_stats(const tb_link *link, tb_link_stats *out) {
  const dpdk_link *l = dpdk_of_const(link);
  const dpdk_counters *c = &l->n;
  const struct rte_eth_stats *then = &l->port->since;
  struct rte_eth_stats now;
  int rc = rte_eth_stats_get(l->port->id, &now);
  if (rc) return rc;
  uint64_t nobuf = since(l, NOBUF, now.rx_nombuf, then->rx_nombuf);
  *out = (tb_link_stats){
      .tx_frames = get(&c->tx_frames), .tx_bytes = get(&c->tx_bytes), .rx_frames = get(&c->rx_frames),
      .rx_bytes = get(&c->rx_bytes), .tx_calls = get(&c->tx_calls), .rx_calls = get(&c->rx_calls),
      .tx_copied = get(&c->tx_copied), .tx_dropped = get(&c->tx_dropped), .rx_foreign = get(&c->rx_foreign),
      .rx_truncated = get(&c->rx_truncated) + get(&c->rx_bad_sum), /* damaged, one way or the other */
      .rx_overflow = sum(missed(l, &now), nobuf),
      .rx_nobuf = nobuf,
      .tx_errors = since(l, ERRORS, now.oerrors, then->oerrors),
  };
  return 0;
}

int dpdk_events(tb_link *link, tb_link_event *out, int n) { return tb_events_take(&dpdk_of(link)->events, out, n); }

/* 22.11's drivers over a kernel interface say "up" whatever that one is. */
static bool interface_runs(const char *iface) {
  struct ifreq req;
  return dpdk_iface_ask(iface, SIOCGIFFLAGS, &req) && req.ifr_flags & IFF_UP && req.ifr_flags & IFF_RUNNING;
}

bool dpdk_link_state(const dpdk_port *p) {
  struct rte_eth_link state = {0};
  if (*p->device.iface) return interface_runs(p->device.iface);
  return !rte_eth_link_get_nowait(p->id, &state) && state.link_status == RTE_ETH_LINK_UP;
}

void dpdk_link_look(dpdk_link *l, uint64_t now) {
  if (now < l->link_look_at) return;
  bool memif = l->port->device.kind == DPDK_MEMIF;
  l->link_look_at = now + (memif ? OTHER_END_LOOK_NS : LINK_LOOK_NS);
  bool up = dpdk_link_state(l->port);
  if (!up && memif) dpdk_port_reconnect(l->port);
  if (l->link_up == up) return;
  l->link_up = up;
  l->kick_due |= up && l->port->kernel_fd >= 0 && l->port->device.kind == DPDK_AF_PACKET;
  const char *name = l->port->device.name;
  if (l->link_up)
    dpdk_event(l, 20, "dpdk: %s has a link", name);
  else
    dpdk_event(l, 30, "dpdk: %s has no link: the cable, the other end, or for af_packet and af_xdp: ip link set %s up",
               name, *l->port->device.iface ? l->port->device.iface : "IFACE");
}
