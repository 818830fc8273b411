/* peer_addr.h - the addresses of links that reach each other (udp, dpdk), written and read; and compared.
 *
 * Bytes: version 1, family 4 or 6, number of ports, the IP, the ports (big-endian); then, from a rank that has a device of
 * its own, 1 and the six bytes of its MAC. */
#ifndef TB_PEER_ADDR_H
#define TB_PEER_ADDR_H
#include <string.h>
#include "links/link.h"

/* The first byte of a verbs rank's, which is otherwise that link's own. */
enum { TB_ADDRESS_VERBS = 'R' };
enum { TB_ADDRESS_VERSION = 1, TB_ADDRESS_HEAD = 3, TB_ADDRESS_HAS_MAC = 1, TB_ADDRESS_MAC = 7 };

/* Into the bytes of an address. mac: NULL = the kernel's device. */
typedef struct {
  bool four;
  uint32_t ip_len, ports;
  const uint8_t *ip, *port, *mac;
} tb_address;

/* False: it is none; nothing of `out` counts. Whether its IP and ports can be somebody's is not looked at. */
static inline bool tb_address_split(const tb_addr *addr, tb_address *out) {
  const uint8_t *p = addr->bytes;
  if (addr->len < TB_ADDRESS_HEAD || addr->len > TB_ADDR_MAX) return false;
  if (p[0] != TB_ADDRESS_VERSION || (p[1] != 4 && p[1] != 6) || !p[2]) return false;
  uint32_t ip_len = p[1] == 4 ? 4 : 16, at = TB_ADDRESS_HEAD + ip_len, end = at + 2u * p[2];
  bool mac = addr->len == end + TB_ADDRESS_MAC && p[end] == TB_ADDRESS_HAS_MAC;
  if (addr->len != end && !mac) return false;
  *out = (tb_address){p[1] == 4, ip_len, p[2], p + TB_ADDRESS_HEAD, p + at, mac ? p + end + 1 : NULL};
  return true;
}

/* Puts such parts down. */
static inline void tb_address_join(tb_addr *out, const tb_address *a) {
  uint8_t *p = out->bytes;
  *p++ = TB_ADDRESS_VERSION;
  *p++ = a->four ? 4 : 6;
  *p++ = (uint8_t)a->ports;
  memcpy(p, a->ip, a->ip_len);
  memcpy(p += a->ip_len, a->port, 2 * a->ports);
  p += 2 * a->ports;
  if (a->mac) {
    *p++ = TB_ADDRESS_HAS_MAC;
    memcpy(p, a->mac, TB_ADDRESS_MAC - 1);
    p += TB_ADDRESS_MAC - 1;
  }
  out->len = (uint8_t)(p - out->bytes);
}

/* Two ranks' addresses that cannot both be right: false, and why, with the remedy. What is no such address is right. */
bool tb_address_agree(const tb_addr *a, uint32_t rank_a, const tb_addr *b, uint32_t rank_b, char *why, size_t n);
#endif
