/* open.c - the link's open and close, what it says of itself, its table of operations, and the plugin's one symbol. */
#include "plugins/dpdk/dpdk.h"
#include "links/plugin.h"
#include <errno.h>
#include <rte_version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
  FLOWS_DEFAULT = 2,
  PAYLOAD_MAX = 65507,
  PORTS_DYNAMIC = 49152, PORTS_END = 65536, /* RFC 6335 */
  SLOT = 65536,          /* a descriptor takes a frame of any length: told as if each frame cost so much beyond it */
  FLUSH_NS = 2000000,
};

#define REFUSE(cfg, rc, ...) dpdk_refuse((cfg)->error, (cfg)->error_len, rc, __VA_ARGS__)

static bool given(const char *text) { return text && *text; }

/* IP's and UDP's. */
static uint32_t headers(const dpdk_link *l) { return tb_net_ip_len(&l->self) + TB_UDP_HEAD; }

static int check_config(const tb_link_cfg *cfg) {
  uint32_t flows = cfg->flows ? cfg->flows : FLOWS_DEFAULT;
  if (flows > DPDK_FLOWS_MAX)
    return REFUSE(cfg, -EINVAL, "dpdk: %u flows are too many: at most %d", flows, DPDK_FLOWS_MAX);
  if (cfg->port_lo > cfg->port_hi || (!cfg->port_lo && cfg->port_hi))
    return REFUSE(cfg, -EINVAL, "dpdk: port range %u-%u is not a range: write lowest-highest, or 0 for any port",
                  cfg->port_lo, cfg->port_hi);
  if (cfg->port_lo && cfg->port_hi - cfg->port_lo + 1u < flows)
    return REFUSE(cfg, -EADDRINUSE, "dpdk: %u flows need as many UDP ports, and %u-%u are fewer: widen "
                  "TAILBOUND_PORT_RANGE or set it to 0 for any port", flows, cfg->port_lo, cfg->port_hi);
  if (cfg->peers > DPDK_PEERS_MAX)
    return REFUSE(cfg, -EINVAL, "dpdk: %u peers are too many: at most %d", cfg->peers, DPDK_PEERS_MAX);
  if (cfg->mtu && cfg->mtu < DPDK_MTU_MIN)
    return REFUSE(cfg, -EINVAL, "dpdk: frames of %u bytes are too small: at least %d are needed: raise TAILBOUND_MTU or "
                  "leave it out", cfg->mtu, DPDK_MTU_MIN);
  if (cfg->vlan > TB_VLAN_MAX)
    return REFUSE(cfg, -EINVAL, "dpdk: VLAN %u does not exist: set TAILBOUND_VLAN to 1-%d, or to 0 for frames without "
                  "a tag", cfg->vlan, TB_VLAN_MAX);
  return 0;
}

static uint64_t mix(uint64_t x) {
  x = (x ^ x >> 31) * 0x7fb5d329728ea185u;
  x = (x ^ x >> 27) * 0x81dadef4bc2dd44du;
  return x ^ x >> 33;
}

/* Nobody else has ports on our address. Elsewhere in the range each time, so that frames of an earlier run that are
 * still under way find nobody. */
static void choose_ports(dpdk_link *l, const tb_link_cfg *cfg) {
  uint32_t room = PORTS_END - PORTS_DYNAMIC - l->flows + 1;
  l->random = mix(dpdk_now() ^ (uint64_t)tb_get32(l->self.ip.b + 12) << 32) | 1;
  l->self.ports = (uint16_t)l->flows;
  l->self.port = cfg->port_lo ? cfg->port_lo : (uint16_t)(PORTS_DYNAMIC + (l->random >> 20) % room);
}

/* A NIC's largest frame is its MTU and what it reckons around that. Not each reckons with a tag. */
static uint32_t tag_beyond(const dpdk_link *l) {
  const uint32_t all = TB_ETHER_HEAD + TB_VLAN_TAG + RTE_ETHER_CRC_LEN;
  struct rte_eth_dev_info info;
  if (!l->self.vlan || l->port->device.kind != DPDK_PCI) return 0;
  bool told = !rte_eth_dev_info_get(l->port->id, &info) && info.max_mtu != UINT16_MAX;
  return told && info.max_rx_pktlen >= info.max_mtu + all ? 0 : TB_VLAN_TAG;
}

static int choose_mtu(dpdk_link *l, const tb_link_cfg *cfg) {
  uint32_t room = rte_pktmbuf_data_room_size(l->port->tx_pool) - RTE_PKTMBUF_HEADROOM;
  uint32_t around = headers(l) + tag_beyond(l), fits = l->port->ip_mtu > around ? l->port->ip_mtu - around : 0;
  if (fits > PAYLOAD_MAX) fits = PAYLOAD_MAX;
  if (fits > room - l->head) fits = room - l->head;
  l->mtu = cfg->mtu && cfg->mtu < fits ? cfg->mtu : fits;
  if (l->mtu < DPDK_MTU_MIN)
    return REFUSE(cfg, -EINVAL, "dpdk: %s carries IP packets of %u bytes: at least %d are needed: raise its MTU",
                  l->port->device.name, l->port->ip_mtu, DPDK_MTU_MIN + headers(l));
  return 0;
}

/* What we sum ourselves we copy as well: it is near then, and only the copy is sure to stay as it was summed. */
static void set_caps(dpdk_link *l) {
  l->sum = l->port->tx_sum ? DPDK_SUM_DEVICE : tb_ip_is4(&l->self.ip) ? DPDK_SUM_NONE : DPDK_SUM_US;
  /* Frames wait in descriptors, whatever their length: the overhead dwarfs the length, and small ones fill them too. */
  l->caps = (tb_link_caps){.mtu = l->mtu, .lanes = 1,
                           .ref = l->sum == DPDK_SUM_US ? TB_REF_NONE : l->port->device.ref,
                           .csum = l->port->tx_sum && l->port->rx_sum,
                           .rx_buffer = (uint64_t)l->port->rx_frames * (DPDK_MTU_MIN + SLOT), .rx_parts = 1,
                           .rx_overhead = SLOT, .timer_ns = dpdk_wait_timer_ns(l), .burst = DPDK_TX_BURST, .train = 1};
}

/* What was accepted still leaves: the device gets a moment to send it, or to be read by the other end. */
static void flush(const dpdk_link *l) {
  uint64_t until = dpdk_now() + FLUSH_NS;
  uint16_t last = l->port->tx_desc ? (uint16_t)(l->port->tx_desc - 1) : 0; /* from the next free one on: the newest */
  const dpdk_kind kind = l->port->device.kind;
  if (kind == DPDK_AF_PACKET || kind == DPDK_PCAP) return; /* gone when tx_burst returns */
  do {
    if (rte_eth_tx_descriptor_status(l->port->id, 0, last) == RTE_ETH_TX_DESC_DONE) return;
    nanosleep(&(struct timespec){0, 100000}, NULL);
  } while (dpdk_now() < until);
}

static void dpdk_close(tb_link *link) {
  dpdk_link *l = dpdk_of(link);
  if (!l) return;
  if (l->port && !dpdk_eal_forked()) { /* the frames of a child are the parent's: their memory may be shared */
    (void)dpdk_thread_enter(); /* without, buffers are given back one way slower, but given back */
    dpdk_rx_drop_all(l);
    if (atomic_load(&l->n.tx_frames)) flush(l);
    dpdk_flow_remove(l);
    dpdk_listen_no_more(l);
    dpdk_port_park(l->port);
  }
  tb_waker_close(&l->waker);
  tb_neighbours_free(l->neighbours);
  tb_regions_destroy(&l->regions);
  tb_events_destroy(&l->events);
  tb_guard_destroy(&l->guard);
  free(l->peers);
  free(l->flat);
  free(l);
}

static int open_port(dpdk_link *l, const tb_link_cfg *cfg) {
  dpdk_device device;
  dpdk_eal_args args;
  int rc = dpdk_device_parse(given(cfg->device) ? cfg->device : "", cfg->self, &device, cfg->error, cfg->error_len);
  if (!rc) rc = dpdk_preflight(&device, cfg, &args, cfg->error, cfg->error_len);
  if (!rc) rc = dpdk_eal_start(&args, cfg->error, cfg->error_len);
  if (!rc) {
    dpdk_wish wish = {.ip_mtu = cfg->mtu ? cfg->mtu + headers(l) : 0, .busy = cfg->busy, .wait_ns = cfg->wait_ns,
                      .cancelled = cfg->cancelled, .cancel_of = cfg->cancel_of};
    rc = dpdk_port_open(&device, &wish, &l->port, cfg->error, cfg->error_len);
  }
  if (rc) return rc;
  l->self.mac = l->port->mac;
  dpdk_address_from_mac(l, cfg);
  l->counted = dpdk_stats_counted(l->port);
  return 0;
}

static void begin(dpdk_link *l) {
  uint8_t frame[TB_NEIGHBOUR_MOST];
  l->rx_fd = l->port->rx_interrupts ? rte_eth_dev_rx_intr_ctl_q_get_fd(l->port->id, 0) : -1;
  l->link_up = dpdk_link_state(l->port);
  if (!l->link_up)
    dpdk_event(l, 20, "dpdk: %s has no link yet: frames are lost until it comes up", l->port->device.name);
  dpdk_listen(l);
  dpdk_flow_add(l);
  (void)dpdk_thread_enter();
  dpdk_tx_raw(l, frame, tb_neighbours_announce(l->neighbours, frame));
}

static int start(dpdk_link *l, const tb_link_cfg *cfg) {
  l->self.vlan = (uint16_t)cfg->vlan;
  int rc = dpdk_address_choose(l, cfg);
  if (rc) return rc;
  l->head = tb_net_ip_at(&l->self) + headers(l);
  if ((rc = open_port(l, cfg)) || (rc = choose_mtu(l, cfg))) return rc;
  choose_ports(l, cfg);
  set_caps(l);
  l->flat = malloc((size_t)(DPDK_LEASES + DPDK_RX_BURST) * l->caps.mtu); /* pages are real once needed */
  if (!l->flat || tb_neighbours_new(&l->self, l->has_gateway ? &l->gateway : NULL, &l->neighbours))
    return REFUSE(cfg, -ENOMEM, "dpdk: no memory for the link's tables");
  rc = tb_waker_open(&l->waker);
  if (rc) return REFUSE(cfg, rc, "dpdk: eventfd failed: %s", strerror(-rc));
  begin(l);
  return 0;
}

static int dpdk_open(const tb_link_cfg *cfg, tb_link **out) {
  int rc = check_config(cfg);
  if (rc) return rc;
  dpdk_link *l = calloc(1, sizeof *l);
  if (!l) return REFUSE(cfg, -ENOMEM, "dpdk: no memory for the link");
  tb_guard_init(&l->guard);
  tb_regions_init(&l->regions);
  tb_events_init(&l->events);
  l->waker.fd = l->rx_fd = l->group_fd = -1;
  l->flows = cfg->flows ? cfg->flows : FLOWS_DEFAULT;
  l->busy = cfg->busy;
  l->peers_most = cfg->peers;
  l->self_rank = cfg->self;
  rc = start(l, cfg);
  if (rc) {
    dpdk_close((tb_link *)l);
    return rc;
  }
  *out = (tb_link *)l;
  return 0;
}

static const tb_link_caps *dpdk_caps(const tb_link *link) { return &dpdk_of_const(link)->caps; }

static int dpdk_describe(const tb_link *link, char *out, size_t n) {
  const dpdk_link *l = dpdk_of_const(link);
  const dpdk_port *p = l->port;
  const uint8_t *m = l->self.mac.b;
  char ip[TB_IP_TEXT], vlan[30] = "";
  struct rte_eth_dev_info info;
  bool told = !rte_eth_dev_info_get(p->id, &info) && info.driver_name;
  if (l->self.vlan) snprintf(vlan, sizeof vlan, " vlan %u%s", l->self.vlan, l->filters_vlan ? " (filtered)" : "");
  snprintf(out, n, "dpdk %s (%s) %02x:%02x:%02x:%02x:%02x:%02x, %s/%u%s port%s %u-%u, mtu %u, rings %u rx %u tx, "
           "rules %u, checksums by %s, huge pages %s, %s%s",
           p->device.name, told ? info.driver_name : "?", m[0], m[1], m[2], m[3], m[4], m[5],
           tb_ip_text(&l->self.ip, ip), l->self.bits - (tb_ip_is4(&l->self.ip) ? TB_IP4_BITS : 0), vlan,
           l->flows > 1 ? "s" : "", l->self.port, l->self.port + l->flows - 1, l->mtu, p->rx_desc, p->tx_desc,
           l->rules, l->caps.csum ? "the device" : "us", dpdk_eal_huge() ? "on" : "off", l->busy ? "busy" : "adaptive",
           l->rx_fd >= 0 ? " with interrupts" : "");
  return 0;
}

static int dpdk_set_mtu(tb_link *link, uint32_t mtu) {
  dpdk_link *l = dpdk_of(link);
  if (mtu < DPDK_MTU_MIN || mtu > l->caps.mtu) return -EINVAL;
  l->mtu = mtu;
  return 0;
}

static int dpdk_tx_abort(tb_link *link, uint32_t lane, uint64_t *took_ns) {
  dpdk_link *l = dpdk_of(link);
  uint64_t took = 0;
  int rc = 0;
  if (lane) return -EINVAL;
  if (l->caps.ref != TB_REF_NONE) { /* else nothing of the caller's is read, and a restart would only lose frames */
    dpdk_guest_enter(l);
    rc = dpdk_port_restart(l->port, &took);
    dpdk_guest_leave(l);
  }
  if (took_ns) *took_ns = took;
  return rc;
}

static const tb_link_ops ops = {
    .name = "dpdk",
    .open = dpdk_open,
    .close = dpdk_close,
    .caps = dpdk_caps,
    .local_addr = dpdk_local_addr,
    .describe = dpdk_describe,
    .mem_reg = dpdk_mem_reg,
    .mem_unreg = dpdk_mem_unreg,
    .peer_add = dpdk_peer_add,
    .peer_set = dpdk_peer_set,
    .peer_del = dpdk_peer_del,
    .peer_state = dpdk_peer_state,
    .set_mtu = dpdk_set_mtu,
    .tx_burst = dpdk_tx_burst,
    .tx_reap = dpdk_tx_reap,
    .tx_quiesce = dpdk_tx_quiesce,
    .tx_abort = dpdk_tx_abort,
    .rx_burst = dpdk_rx_burst,
    .rx_release = dpdk_rx_release,
    .came_from = dpdk_came_from,
    .wait = dpdk_wait,
    .wake = dpdk_wake,
    .stats = dpdk_stats,
    .events = dpdk_events,
};

__attribute__((visibility("default"))) const tb_link_plugin *tb_link_plugin_get(void) {
  static tb_link_plugin plugin = {.abi = TB_PLUGIN_ABI, .sizes = TB_PLUGIN_SIZES, .name = "dpdk", .ops = &ops};
  plugin.library = rte_version();
  return &plugin;
}
