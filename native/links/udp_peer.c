/* udp_peer.c - what the control path of the udp link keeps: its own address, the peers' addresses, memory regions.
 *
 * Addresses are those of peer_addr.h. A link-local IPv6 address carries no scope: an interface's number means nothing on
 * another host, so it is reached through the interface this link stands on. */
#include "links/udp.h"
#include "ether/bytes.h"
#include "links/peer_addr.h"
#include "links/peer_table.h"
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int tb_udp_local_addr(const tb_link *link, tb_addr *out) {
  const udp_link *u = udp_of_const(link);
  uint8_t port[2 * UDP_FLOWS_MAX];
  for (uint32_t i = 0; i < u->flows; i++) tb_put16(port + 2 * i, u->sock[i].port);
  bool four = u->family == AF_INET;
  tb_address a = {.four = four, .ip_len = four ? 4 : 16, .ports = u->flows, .ip = u->advertise, .port = port};
  tb_address_join(out, &a);
  return 0;
}

static void write_to(const udp_link *u, const tb_address *a, const uint8_t *port, udp_addr *out) {
  if (a->four) {
    out->v4.sin_family = AF_INET;
    memcpy(&out->v4.sin_port, port, 2);
    memcpy(&out->v4.sin_addr, a->ip, 4);
    return;
  }
  out->v6.sin6_family = AF_INET6;
  memcpy(&out->v6.sin6_port, port, 2);
  memcpy(&out->v6.sin6_addr, a->ip, 16);
  if (IN6_IS_ADDR_LINKLOCAL(&out->v6.sin6_addr)) out->v6.sin6_scope_id = if_nametoindex(u->netif.name);
}

static int parse(const udp_link *u, const tb_addr *addr, tb_address *a, udp_addr **to) {
  if (!tb_address_split(addr, a) || a->ports > UDP_FLOWS_MAX) return -EINVAL;
  if (a->four != (u->family == AF_INET)) return -EAFNOSUPPORT;
  for (uint32_t i = 0; i < a->ports; i++)
    if (!tb_get16(a->port + 2 * i)) return -EINVAL;
  udp_addr *list = calloc(a->ports, sizeof *list);
  if (!list) return -ENOMEM;
  for (uint32_t i = 0; i < a->ports; i++) write_to(u, a, a->port + 2 * i, &list[i]);
  *to = list;
  return 0;
}

/* Adds a peer or gives a known one a new address. */
int tb_udp_peer_add(tb_link *link, uint32_t peer, const tb_addr *addr) {
  udp_link *u = udp_of(link);
  udp_addr *to;
  tb_address a;
  int rc = parse(u, addr, &a, &to);
  if (rc) return rc;
  udp_peer *table = tb_peer_room(u->peers, &u->peers_cap, sizeof *table, peer, UDP_PEERS_MAX, &rc);
  if (!table) {
    free(to);
    return rc;
  }
  u->peers = table;
  free(u->peers[peer].to);
  uint32_t port = tb_peer_port(u->self, peer, u->peers_most, a.ports);
  u->peers[peer] = (udp_peer){.to = to, .port = port, .own_device = a.mac};
  return 0;
}

int tb_udp_peer_del(tb_link *link, uint32_t peer) {
  udp_link *u = udp_of(link);
  if (peer >= u->peers_cap || !u->peers[peer].to) return -ENOENT;
  free(u->peers[peer].to);
  u->peers[peer] = (udp_peer){0};
  return 0;
}

int tb_udp_peer_state(const tb_link *link, uint32_t peer) {
  const udp_link *u = udp_of_const(link);
  if (peer >= u->peers_cap || !u->peers[peer].to) return -ENOENT;
  return -u->peers[peer].error;
}

/* Regions are only remembered: the kernel copies. */
int tb_udp_mem_reg(tb_link *link, const void *base, size_t len, uint32_t *region) {
  return tb_regions_add(&udp_of(link)->regions, base, len, region);
}

int tb_udp_mem_unreg(tb_link *link, uint32_t region) { return tb_regions_remove(&udp_of(link)->regions, region); }

void tb_udp_tables_free(udp_link *u) {
  for (uint32_t i = 0; i < u->peers_cap; i++) free(u->peers[i].to);
  free(u->peers);
  tb_regions_destroy(&u->regions);
}
