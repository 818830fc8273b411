/* peer.c - addresses of peers and our own, and the headers that lead to them. Control path, but for dpdk_peer_head. */
#include "plugins/dpdk/dpdk.h"
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include "links/peer_table.h"

enum { VERSION = 1, HEAD = 3, IP_LEN = 4, HAS_MAC = 1, MAC_PART = 7, TIMERS_BURST = 8 };

/* Who reaches us by another address than ours is behind a router: our MAC would only mislead. */
int dpdk_local_addr(const tb_link *link, tb_addr *out) {
  const dpdk_link *l = dpdk_of_const(link);
  uint8_t *p = out->bytes;
  *p++ = VERSION;
  *p++ = 4;
  *p++ = (uint8_t)l->flows;
  tb_put32(p, l->advertise);
  p += IP_LEN;
  for (uint32_t i = 0; i < l->flows; i++, p += 2) tb_put16(p, l->self.port + i);
  if (l->advertise == l->self.ip) {
    *p++ = HAS_MAC;
    memcpy(p, l->self.mac.b, sizeof l->self.mac.b);
    p += sizeof l->self.mac.b;
  }
  out->len = (uint8_t)(p - out->bytes);
  return 0;
}

typedef struct { uint32_t ip, ports; const uint8_t *port; const uint8_t *mac; } address;

static int parse(const dpdk_link *l, const tb_addr *addr, address *out) {
  const uint8_t *p = addr->bytes;
  if (addr->len < HEAD || addr->len > TB_ADDR_MAX || p[0] != VERSION || (p[1] != 4 && p[1] != 6)) return -EINVAL;
  uint32_t ip_len = p[1] == 4 ? IP_LEN : 16, n = p[2], end = HEAD + ip_len + 2 * n;
  if (!n || n > DPDK_FLOWS_MAX) return -EINVAL;
  bool mac = addr->len == end + MAC_PART && p[end] == HAS_MAC;
  if (addr->len != end && !mac) return -EINVAL;
  if (p[1] == 6) return -EAFNOSUPPORT;
  *out = (address){.ip = tb_get32(p + HEAD), .ports = n, .port = p + HEAD + IP_LEN, .mac = mac ? p + end + 1 : NULL};
  for (uint32_t i = 0; i < n; i++)
    if (!tb_get16(out->port + 2 * i)) return -EINVAL;
  bool direct = ((out->ip ^ l->self.ip) & l->self.mask) == 0;
  bool everybody = direct && ~l->self.mask > 1 && (out->ip | l->self.mask) == UINT32_MAX;
  if (everybody || !tb_net_ip_of_host(out->ip)) return -EINVAL;
  return 0;
}

static void tell_unreachable(dpdk_link *l, uint32_t peer, uint32_t ip) {
  dpdk_event(l, 40, "dpdk: rank %u at %u.%u.%u.%u lies outside our network and there is no gateway: set "
             "TAILBOUND_GATEWAY, or give every rank an address of one network with TAILBOUND_IP", peer, ip >> 24,
             ip >> 16 & 255, ip >> 8 & 255, ip & 255);
}

/* A packet socket hears what comes from outside: the kernel's own frames to us would leave by the cable, and never come. */
static bool is_kernels(const dpdk_link *l, uint32_t ip) {
  struct ifreq own;
  if (!*l->port->device.iface || !dpdk_iface_ask(l->port->device.iface, SIOCGIFADDR, &own)) return false;
  return ((const struct sockaddr_in *)(const void *)&own.ifr_addr)->sin_addr.s_addr == htonl(ip);
}

static void tell_kernels(dpdk_link *l, uint32_t peer) {
  dpdk_event(l, 40, "dpdk: rank %u is on interface %s by the kernel, and this rank's device is on the same one: give one of "
             "them another (TAILBOUND_INTERFACE, TAILBOUND_DEVICE; a veth pair, an SR-IOV VF)", peer, l->port->device.iface);
}

/* Adds a peer or gives a known one a new address. */
int dpdk_peer_add(tb_link *link, uint32_t peer, const tb_addr *addr) {
  dpdk_link *l = dpdk_of(link);
  address a;
  tb_mac mac;
  int rc = parse(l, addr, &a);
  if (rc) return rc;
  dpdk_peer *table = tb_peer_room(l->peers, &l->peers_cap, sizeof *table, peer, DPDK_PEERS_MAX, &rc);
  if (!table) return rc;
  l->peers = table;
  if (a.mac) memcpy(mac.b, a.mac, sizeof mac.b);
  dpdk_guest_enter(l);
  int entry = tb_neighbours_want(l->neighbours, a.ip, a.mac ? &mac : NULL);
  dpdk_guest_leave(l);
  if (entry == -ENOMEM) return -ENOMEM;
  if (entry < 0) tell_unreachable(l, peer, a.ip);
  if (entry >= 0 && !a.mac && is_kernels(l, a.ip)) {
    tell_kernels(l, peer);
    entry = -EADDRNOTAVAIL;
  }
  uint32_t which = tb_peer_port(l->self_rank, peer, l->peers_most, a.ports);
  l->peers[peer] = (dpdk_peer){.used = true, .ip = a.ip, .port = tb_get16(a.port + 2 * which), .neighbour = entry};
  return 0;
}

int dpdk_peer_set(tb_link *link, uint32_t peer, const tb_addr *addr) {
  const dpdk_link *l = dpdk_of_const(link);
  if (peer >= l->peers_cap || !l->peers[peer].used) return -ENOENT;
  return dpdk_peer_add(link, peer, addr);
}

/* The neighbour stays: it may be a gateway that others need. */
int dpdk_peer_del(tb_link *link, uint32_t peer) {
  dpdk_link *l = dpdk_of(link);
  if (peer >= l->peers_cap || !l->peers[peer].used) return -ENOENT;
  l->peers[peer] = (dpdk_peer){0};
  return 0;
}

int dpdk_peer_state(const tb_link *link, uint32_t peer) {
  dpdk_link *l = (dpdk_link *)dpdk_of_const(link);
  if (peer >= l->peers_cap || !l->peers[peer].used) return -ENOENT;
  int entry = l->peers[peer].neighbour;
  if (entry < 0) return entry;
  dpdk_guest_enter(l);
  bool known = tb_neighbours_mac(l->neighbours, entry);
  dpdk_guest_leave(l);
  return known ? 0 : -EINPROGRESS;
}

const uint8_t *dpdk_peer_head(dpdk_link *l, dpdk_peer *p) {
  uint32_t now = tb_neighbours_changes(l->neighbours) + 1;
  if (p->made == now && now) return p->head;
  const tb_mac *mac = tb_neighbours_mac(l->neighbours, p->neighbour);
  if (!mac) return NULL;
  tb_net_template(p->head, &l->self, mac, p->ip);
  p->made = now;
  return p->head;
}

void dpdk_peers_timers(dpdk_link *l, uint64_t now) {
  uint8_t request[TB_ETHER_LEAST];
  if (now < tb_neighbours_next(l->neighbours)) return;
  for (int i = 0; i < TIMERS_BURST && tb_neighbours_due(l->neighbours, now, request); i++)
    dpdk_tx_raw(l, request, sizeof request);
}
