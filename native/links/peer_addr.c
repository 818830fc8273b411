/* peer_addr.c - see peer_addr.h. */
#include "links/peer_addr.h"
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

typedef struct {
  int family;
  uint32_t ip_len;
  const uint8_t *ip, *mac; /* mac NULL: the kernel's device */
} parts;

static bool split(const tb_addr *addr, parts *out) {
  const uint8_t *p = addr->bytes;
  if (addr->len < TB_ADDRESS_HEAD || addr->len > TB_ADDR_MAX) return false;
  if (p[0] != TB_ADDRESS_VERSION || (p[1] != 4 && p[1] != 6)) return false;
  uint32_t ip_len = p[1] == 4 ? 4 : 16, end = TB_ADDRESS_HEAD + ip_len + 2u * p[2];
  bool mac = addr->len == end + TB_ADDRESS_MAC && p[end] == TB_ADDRESS_HAS_MAC;
  if (addr->len != end && !mac) return false;
  *out = (parts){p[1] == 4 ? AF_INET : AF_INET6, ip_len, p + TB_ADDRESS_HEAD, mac ? p + end + 1 : NULL};
  return true;
}

/* Made from the MAC of a rank's own device, for want of an address. */
static bool is_made_up(const parts *a) { return a->mac && a->family == AF_INET && a->ip[0] == 169 && a->ip[1] == 254; }

static bool is_link_local(const parts *a) { return a->family == AF_INET && a->ip[0] == 169 && a->ip[1] == 254; }

/* Several ranks of one kernel share an address; a device has its own. */
static bool collide(const parts *a, const parts *b) {
  if (a->family != b->family || memcmp(a->ip, b->ip, a->ip_len)) return false;
  return a->mac || b->mac;
}

static bool strangers(const parts *a, const parts *b) {
  return (is_made_up(a) && !is_link_local(b)) || (is_made_up(b) && !is_link_local(a));
}

static bool of_verbs(const tb_addr *a) { return a->len && a->bytes[0] == TB_ADDRESS_VERBS; }

bool tb_address_agree(const tb_addr *a, uint32_t rank_a, const tb_addr *b, uint32_t rank_b, char *why, size_t n) {
  parts x, y;
  char ip[2][INET6_ADDRSTRLEN] = {"", ""};
  bool first = split(a, &x), second = split(b, &y);
  if ((first && of_verbs(b)) || (second && of_verbs(a))) {
    snprintf(why, n, "rank %u came with link verbs and rank %u with another: no frame passes between them: set TAILBOUND_LINK "
             "alike on every rank (only udp and dpdk go together)", first ? rank_b : rank_a, first ? rank_a : rank_b);
    return false;
  }
  if (!first || !second) return true;
  inet_ntop(x.family, x.ip, ip[0], sizeof ip[0]);
  inet_ntop(y.family, y.ip, ip[1], sizeof ip[1]);
  if (collide(&x, &y)) {
    bool same = x.mac && y.mac && !memcmp(x.mac, y.mac, 6);
    snprintf(why, n, "rank %u and rank %u both have the address %s%s%s: give every rank one of its own with TAILBOUND_IP, "
             "and the interface under a device none", rank_a, rank_b, ip[0], same ? " and one MAC" : "",
             x.mac && y.mac ? "" : ", one of them as its kernel's");
    return false;
  }
  if (!strangers(&x, &y)) return true;
  uint32_t without = is_made_up(&x) ? rank_a : rank_b;
  snprintf(why, n, "rank %u has %s and rank %u %s, and nothing leads from one to the other: rank %u was given no address and "
           "made a link-local one: set TAILBOUND_IP there", rank_a, ip[0], rank_b, ip[1], without);
  return false;
}
