/* neighbour.h - which MAC to send to: ARP (RFC 826) both ways, for a link that owns its device. Bytes in, bytes out.
 *
 * STATES of a neighbour   UNKNOWN -> (wanted) ASKING, a request each 100 ms doubling to 1 s -> (reply) KNOWN
 *                         KNOWN -> (60 s without a word from it) STALE: asked again, still used -> (reply) KNOWN
 *                         Given by the rendezvous: KNOWN at once.
 * INVARIANTS  Only addresses that were wanted have an entry: strangers' ARP costs no memory. An entry changes only by an
 *             ARP frame that names its IP as sender; broadcasts and zero are no MACs of anybody. A peer outside our
 *             network is reached at the gateway's MAC. */
#ifndef TB_NEIGHBOUR_H
#define TB_NEIGHBOUR_H
#include "ether/headers.h"

typedef struct tb_neighbours tb_neighbours;

int tb_neighbours_new(const tb_net_self *self, uint32_t gateway, tb_neighbours **out); /* gateway 0 = none */
void tb_neighbours_free(tb_neighbours *n);

/* The entry through which `ip` is reached (its own, or the gateway's), made if need be; mac: known already, or NULL.
 * -ENETUNREACH: outside our network, and there is no gateway. */
int tb_neighbours_want(tb_neighbours *n, uint32_t ip, const tb_mac *mac);
const tb_mac *tb_neighbours_mac(const tb_neighbours *n, int entry); /* NULL = not known yet */
uint32_t tb_neighbours_changes(const tb_neighbours *n);             /* grows when any MAC changes: templates are old */

/* An ARP frame came. True: `reply` (TB_ETHER_LEAST bytes) is to be sent. */
bool tb_neighbours_arp(tb_neighbours *n, const uint8_t *f, uint32_t len, uint8_t *reply);
/* One request that is due, as a frame of TB_ETHER_LEAST bytes; false = none. */
bool tb_neighbours_due(tb_neighbours *n, uint64_t now, uint8_t *request);
uint64_t tb_neighbours_next(const tb_neighbours *n); /* when to look again; UINT64_MAX = never */
/* Who said that our address is his; NULL = nobody. */
const tb_mac *tb_neighbours_rival(const tb_neighbours *n);
/* A gratuitous announcement of ourselves, for switches and for caches that know our address's last owner. */
void tb_neighbours_announce(const tb_neighbours *n, uint8_t *frame);

#endif
