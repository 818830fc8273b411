/* hello.c - see hello.h. */
#include "engine/hello.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "engine/error.h"
#include "links/peer_addr.h"
#include "protocol/wire.h"

enum { MTU_LEAST = TB_CONTROL_MAX }; /* what a RoCE port has over Ethernet of 1500 bytes */

/* Another's own words; a number that is none of an error is not passed on. */
static int told(const tb_hello *h, uint32_t p) {
  int rc = h->error < 0 && h->error > -4096 ? h->error : -EIO;
  char why[sizeof h->why];
  snprintf(why, sizeof why, "%.*s", (int)sizeof h->why - 1, h->why);
  for (char *c = why; *c; c++)
    if ((unsigned char)*c < ' ') *c = ' ';
  return tb_fail(rc, "rank %u could not begin: %s", p, why);
}

static int check_one(const tb_hello *h, const tb_hello *first, uint32_t p) {
  if (h->order != 1) return tb_fail(-EPROTO, "rank %u has another byte order than rank 0: not supported", p);
  if (strncmp(h->version, first->version, sizeof h->version))
    return tb_fail(-EPROTO, "rank %u runs tailbound %.15s but rank 0 runs %.15s: install one version everywhere", p,
                   h->version, first->version);
  if (h->job != first->job) return tb_fail(-EPROTO, "rank %u belongs to another job or restart than rank 0", p);
  if (h->groups != first->groups)
    return tb_fail(-EPROTO, "rank %u was given other groups than rank 0: set the option alike on every rank", p);
  if (h->rx_overhead > 1u << 20 || h->rx_buffer > 1ull << 40 || h->mtu > 65535)
    return tb_fail(-EPROTO, "rank %u gave impossible link limits", p);
  if (h->addr.len > TB_ADDR_MAX) return tb_fail(-EPROTO, "rank %u gave a malformed address", p);
  return 0;
}

static int check_addresses(const tb_hello *all, uint32_t n) {
  char why[400];
  for (uint32_t p = 0; p < n; p++)
    for (uint32_t q = p + 1; q < n; q++)
      if (!tb_address_agree(&all[p].addr, p, &all[q].addr, q, why, sizeof why)) return tb_fail(-EINVAL, "%s", why);
  return 0;
}

static int check_loopback(const tb_hello *all, uint32_t n) {
  for (uint32_t p = 0; p < n; p++)
    for (uint32_t q = 0; all[p].loopback && q < n; q++)
      if (strncmp(all[p].host, all[q].host, sizeof all[p].host))
        return tb_fail(-EADDRNOTAVAIL, "rank %u would be reached at a loopback address but rank %u is on another host: "
                       "set TAILBOUND_INTERFACE there (for example 'eth' or a CIDR)", p, q);
  return 0;
}

int tb_hellos_check(const tb_hello *all, uint32_t n, uint32_t *mtu) {
  int rc = 0;
  uint32_t least = 0;
  for (uint32_t p = 0; p < n; p++)
    if (all[p].order == 1 && all[p].error) return told(&all[p], p);
  for (uint32_t p = 0; p < n && !rc; p++) {
    rc = check_one(&all[p], &all[0], p);
    if (all[p].mtu < all[least].mtu) least = p;
  }
  if (!rc) rc = check_loopback(all, n);
  if (!rc) rc = check_addresses(all, n);
  if (rc) return rc;
  *mtu = all[least].mtu;
  if (*mtu >= MTU_LEAST) return 0;
  return tb_fail(-EMSGSIZE, "a frame of %u bytes, as rank %u has them, is too small: at least %d are needed: raise the MTU "
                 "of its interface, or its TAILBOUND_MTU", *mtu, least, MTU_LEAST);
}
