/* peer.c - addresses of peers and our own, and the headers that lead to them. Control path, but for dpdk_peer_head. */
#include "plugins/dpdk/dpdk.h"
#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <string.h>
#include "links/peer_addr.h"
#include "links/peer_table.h"

enum { TIMERS_BURST = 8 };

/* Who reaches us by another address than ours is behind a router: our MAC would only mislead. */
int dpdk_local_addr(const tb_link *link, tb_addr *out) {
  const dpdk_link *l = dpdk_of_const(link);
  uint8_t port[2 * DPDK_FLOWS_MAX];
  bool four = tb_ip_is4(&l->advertise), reached = tb_ip_equal(&l->advertise, &l->self.ip);
  uint32_t before = four ? TB_IP4_AT : 0;
  for (uint32_t i = 0; i < l->flows; i++) tb_put16(port + 2 * i, l->self.port + i);
  tb_address a = {.four = four, .ip_len = (uint32_t)sizeof l->advertise.b - before, .ports = l->flows,
                  .ip = l->advertise.b + before, .port = port, .mac = reached ? l->self.mac.b : NULL};
  tb_address_join(out, &a);
  return 0;
}

static bool may_be_peers(const dpdk_link *l, const tb_ip *ip) {
  bool direct = tb_ip_within(ip, &l->self.ip, l->self.bits);
  return tb_ip_of_host(ip) && !(direct && tb_ip_of_net(ip, l->self.bits));
}

static int parse(const dpdk_link *l, const tb_addr *addr, tb_address *a, tb_ip *ip) {
  static const tb_ip none = TB_IP4(0);
  if (!tb_address_split(addr, a) || a->ports > DPDK_FLOWS_MAX) return -EINVAL;
  if (a->four != tb_ip_is4(&l->self.ip)) return -EAFNOSUPPORT;
  for (uint32_t i = 0; i < a->ports; i++)
    if (!tb_get16(a->port + 2 * i)) return -EINVAL;
  *ip = none;
  memcpy(ip->b + sizeof ip->b - a->ip_len, a->ip, a->ip_len);
  return a->four == tb_ip_is4(ip) && may_be_peers(l, ip) ? 0 : -EINVAL;
}

static void tell_unreachable(dpdk_link *l, uint32_t peer, const tb_ip *ip) {
  char text[TB_IP_TEXT];
  dpdk_event(l, 40, "dpdk: rank %u at %s lies outside our network and there is no gateway: set TAILBOUND_GATEWAY, or "
             "give every rank an address of one network with TAILBOUND_IP", peer, tb_ip_text(ip, text));
}

static bool holds(const struct ifaddrs *a, const char *iface, const tb_ip *ip) {
  const void *address = a->ifa_addr;
  if (!address || strcmp(a->ifa_name, iface)) return false;
  if (tb_ip_is4(ip)) /* its four bytes are in the wire's order, there as here */
    return a->ifa_addr->sa_family == AF_INET &&
           !memcmp(&((const struct sockaddr_in *)address)->sin_addr, ip->b + TB_IP4_AT, 4);
  return a->ifa_addr->sa_family == AF_INET6 && !memcmp(&((const struct sockaddr_in6 *)address)->sin6_addr, ip->b, 16);
}

/* A packet socket hears what comes from outside: the kernel's own frames to us would leave by the cable, and never come. */
static bool is_kernels(const dpdk_link *l, const tb_ip *ip) {
  struct ifaddrs *all;
  bool found = false;
  if (!*l->port->device.iface || getifaddrs(&all)) return false;
  for (const struct ifaddrs *a = all; a && !found; a = a->ifa_next) found = holds(a, l->port->device.iface, ip);
  freeifaddrs(all);
  return found;
}

static void tell_kernels(dpdk_link *l, uint32_t peer) {
  dpdk_event(l, 40, "dpdk: rank %u is on interface %s by the kernel, and this rank's device is on the same one: give one of "
             "them another (TAILBOUND_INTERFACE, TAILBOUND_DEVICE; a veth pair, an SR-IOV VF)", peer, l->port->device.iface);
}

/* Adds a peer or gives a known one a new address. */
int dpdk_peer_add(tb_link *link, uint32_t peer, const tb_addr *addr) {
  dpdk_link *l = dpdk_of(link);
  tb_address a;
  tb_ip ip;
  tb_mac mac;
  int rc = parse(l, addr, &a, &ip);
  if (rc) return rc;
  dpdk_peer *table = tb_peer_room(l->peers, &l->peers_cap, sizeof *table, peer, DPDK_PEERS_MAX, &rc);
  if (!table) return rc;
  l->peers = table;
  if (a.mac) memcpy(mac.b, a.mac, sizeof mac.b);
  dpdk_guest_enter(l);
  int entry = tb_neighbours_want(l->neighbours, &ip, a.mac ? &mac : NULL);
  dpdk_guest_leave(l);
  if (entry == -ENOMEM) return -ENOMEM;
  if (entry < 0) tell_unreachable(l, peer, &ip);
  if (entry >= 0 && !a.mac && is_kernels(l, &ip)) {
    tell_kernels(l, peer);
    entry = -EADDRNOTAVAIL;
  }
  uint32_t which = tb_peer_port(l->self_rank, peer, l->peers_most, a.ports);
  l->peers[peer] = (dpdk_peer){.used = true, .ip = ip, .port = tb_get16(a.port + 2 * which), .neighbour = entry};
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

const tb_net_template *dpdk_peer_head(dpdk_link *l, dpdk_peer *p) {
  uint32_t now = tb_neighbours_changes(l->neighbours) + 1;
  if (p->made == now && now) return &p->head;
  const tb_mac *mac = tb_neighbours_mac(l->neighbours, p->neighbour);
  if (!mac) return NULL;
  tb_net_prepare(&p->head, &l->self, mac, &p->ip);
  p->made = now;
  return &p->head;
}

static void tell_silent(dpdk_link *l) {
  const tb_ip *ip = tb_neighbours_silent(l->neighbours);
  char text[TB_IP_TEXT];
  if (!ip || l->told_silent) return;
  l->told_silent = true;
  bool gateway = l->has_gateway && tb_ip_equal(ip, &l->gateway);
  dpdk_event(l, 30, "dpdk: nobody on the network of %s answers for %s, %s: is it up, there, and on the same VLAN "
             "(TAILBOUND_VLAN)?", l->port->device.name, tb_ip_text(ip, text),
             gateway ? "our gateway (TAILBOUND_GATEWAY)" : "a rank's address");
}

void dpdk_peers_timers(dpdk_link *l, uint64_t now) {
  uint8_t request[TB_NEIGHBOUR_MOST];
  uint32_t len;
  if (now < tb_neighbours_next(l->neighbours)) return;
  for (int i = 0; i < TIMERS_BURST && (len = tb_neighbours_due(l->neighbours, now, request)); i++)
    dpdk_tx_raw(l, request, len);
  tell_silent(l);
}
