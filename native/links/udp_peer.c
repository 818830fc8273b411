/* udp_peer.c - what the control path of the udp link keeps: its own address, the peers' addresses, memory regions.
 *
 * An address is: version 1, family 4 or 6, number of ports, the IP (4 or 16 bytes), the ports (big-endian), and from a
 * rank that drives a device of its own (dpdk) 1 and the six bytes of its MAC. A link-local IPv6 address carries no
 * scope: an interface's number means nothing on another host, so it is reached through the interface this link stands
 * on. */
#include "links/udp.h"
#include "links/peer_table.h"
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { ADDR_VERSION = 1, ADDR_HEAD = 3, ADDR_HAS_MAC = 1, ADDR_MAC = 7 };

int tb_udp_local_addr(const tb_link *link, tb_addr *out) {
  const udp_link *u = udp_of_const(link);
  uint8_t ip_len = u->family == AF_INET ? 4 : 16, *p = out->bytes;
  *p++ = ADDR_VERSION;
  *p++ = u->family == AF_INET ? 4 : 6;
  *p++ = (uint8_t)u->flows;
  memcpy(p, u->advertise, ip_len);
  p += ip_len;
  for (uint32_t i = 0; i < u->flows; i++) {
    *p++ = (uint8_t)(u->sock[i].port >> 8);
    *p++ = (uint8_t)u->sock[i].port;
  }
  out->len = (uint8_t)(p - out->bytes);
  return 0;
}

/* Nothing follows, or the MAC of one that has a device of its own, which the kernel finds by itself. */
static bool well_ended(const tb_addr *addr, uint32_t at) {
  return addr->len == at || (addr->len == at + ADDR_MAC && addr->bytes[at] == ADDR_HAS_MAC);
}

static int parse(const udp_link *u, const tb_addr *addr, udp_addr **to, uint32_t *ports) {
  const uint8_t *p = addr->bytes;
  if (addr->len < ADDR_HEAD || addr->len > TB_ADDR_MAX) return -EINVAL;
  if (p[0] != ADDR_VERSION || (p[1] != 4 && p[1] != 6)) return -EINVAL;
  uint32_t ip_len = p[1] == 4 ? 4 : 16, n = p[2];
  if (!n || n > UDP_FLOWS_MAX || !well_ended(addr, ADDR_HEAD + ip_len + 2 * n)) return -EINVAL;
  if ((p[1] == 4) != (u->family == AF_INET)) return -EAFNOSUPPORT;
  udp_addr *list = calloc(n, sizeof *list);
  if (!list) return -ENOMEM;
  for (uint32_t i = 0; i < n; i++) {
    const uint8_t *port = p + ADDR_HEAD + ip_len + 2 * i;
    if (!port[0] && !port[1]) {
      free(list);
      return -EINVAL;
    }
    if (u->family == AF_INET) {
      list[i].v4.sin_family = AF_INET;
      memcpy(&list[i].v4.sin_port, port, 2);
      memcpy(&list[i].v4.sin_addr, p + ADDR_HEAD, 4);
    } else {
      list[i].v6.sin6_family = AF_INET6;
      memcpy(&list[i].v6.sin6_port, port, 2);
      memcpy(&list[i].v6.sin6_addr, p + ADDR_HEAD, 16);
      if (IN6_IS_ADDR_LINKLOCAL(&list[i].v6.sin6_addr)) list[i].v6.sin6_scope_id = if_nametoindex(u->netif.name);
    }
  }
  *to = list;
  *ports = n;
  return 0;
}

/* Adds a peer or gives a known one a new address. */
int tb_udp_peer_add(tb_link *link, uint32_t peer, const tb_addr *addr) {
  udp_link *u = udp_of(link);
  udp_addr *to;
  uint32_t ports;
  int rc = parse(u, addr, &to, &ports);
  if (rc) return rc;
  udp_peer *table = tb_peer_room(u->peers, &u->peers_cap, sizeof *table, peer, UDP_PEERS_MAX, &rc);
  if (!table) {
    free(to);
    return rc;
  }
  u->peers = table;
  free(u->peers[peer].to);
  bool own_device = addr->len > ADDR_HEAD + (addr->bytes[1] == 4 ? 4u : 16u) + 2 * ports; /* its MAC follows */
  u->peers[peer] =
      (udp_peer){.to = to, .port = tb_peer_port(u->self, peer, u->peers_most, ports), .own_device = own_device};
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
