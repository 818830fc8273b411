/* peer_addr.c - see peer_addr.h. */
#include "links/peer_addr.h"
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

/* Made from the MAC of a rank's own device, for want of an address. */
static bool is_made_up(const tb_address *a) { return a->mac && a->four && a->ip[0] == 169 && a->ip[1] == 254; }

static bool is_link_local(const tb_address *a) { return a->four && a->ip[0] == 169 && a->ip[1] == 254; }

/* Several ranks of one kernel share an address; a device has its own. */
static bool collide(const tb_address *a, const tb_address *b) {
  if (a->four != b->four || memcmp(a->ip, b->ip, a->ip_len)) return false;
  return a->mac || b->mac;
}

static bool strangers(const tb_address *a, const tb_address *b) {
  return (is_made_up(a) && !is_link_local(b)) || (is_made_up(b) && !is_link_local(a));
}

static bool of_verbs(const tb_addr *a) { return a->len && a->bytes[0] == TB_ADDRESS_VERBS; }

static void text(const tb_address *a, char out[INET6_ADDRSTRLEN]) {
  (void)inet_ntop(a->four ? AF_INET : AF_INET6, a->ip, out, INET6_ADDRSTRLEN);
}

bool tb_address_agree(const tb_addr *a, uint32_t rank_a, const tb_addr *b, uint32_t rank_b, char *why, size_t n) {
  tb_address x = {0}, y = {0};
  char ip[2][INET6_ADDRSTRLEN];
  bool first = tb_address_split(a, &x), second = tb_address_split(b, &y);
  if ((first && of_verbs(b)) || (second && of_verbs(a))) {
    snprintf(why, n, "rank %u came with link verbs and rank %u with another: no frame passes between them: set TAILBOUND_LINK "
             "alike on every rank (only udp and dpdk go together)", first ? rank_b : rank_a, first ? rank_a : rank_b);
    return false;
  }
  if (!first || !second) return true;
  bool same_ip = collide(&x, &y);
  if (!same_ip && !strangers(&x, &y)) return true;
  text(&x, ip[0]); /* only now: of a large job's ranks there are half a million pairs */
  text(&y, ip[1]);
  if (same_ip) {
    bool same = x.mac && y.mac && !memcmp(x.mac, y.mac, 6);
    snprintf(why, n, "rank %u and rank %u both have the address %s%s%s: give every rank one of its own with TAILBOUND_IP, "
             "and the interface under a device none", rank_a, rank_b, ip[0], same ? " and one MAC" : "",
             x.mac && y.mac ? "" : ", one of them as its kernel's");
    return false;
  }
  uint32_t without = is_made_up(&x) ? rank_a : rank_b;
  snprintf(why, n, "rank %u has %s and rank %u %s, and nothing leads from one to the other: the address of rank %u "
           "is link-local, as one is that was not given: set TAILBOUND_IP there", rank_a, ip[0], rank_b, ip[1], without);
  return false;
}
