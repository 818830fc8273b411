/* neighbour.h - which MAC to send to: ARP (RFC 826), or for IPv6 neighbour discovery (RFC 4861), both ways, for a
 * link that owns its device. Bytes in, bytes out. No look first whether our address is free (RFC 5227, RFC 4862): who
 * has it too is told of when it speaks.
 *
 * STATES of a neighbour   UNKNOWN -> (wanted) ASKING, a request each 100 ms doubling to 1 s -> (reply) KNOWN
 *                         KNOWN -> (60 s without a word from it) STALE: asked again, still used -> (reply) KNOWN
 *                         Given by the rendezvous: KNOWN at once.
 *                         Its MAC changes by a word from another; where the rendezvous gave it, the given one is asked
 *                         first, and changes only if it does not answer: one forged frame cuts nobody off.
 * INVARIANTS  Only addresses that were wanted have an entry: strangers' frames cost no memory. An entry changes only by
 *             a frame that tells the MAC of its IP; broadcasts and zero are no MACs of anybody. A peer outside our
 *             network is reached at the gateway's MAC. */
#ifndef TB_NEIGHBOUR_H
#define TB_NEIGHBOUR_H
#include "ether/headers.h"

typedef struct tb_neighbours tb_neighbours;

enum { TB_NEIGHBOUR_MOST = TB_ETHER_HEAD + TB_VLAN_TAG + TB_IP6_HEAD + 32 }; /* bytes of a frame that is written here */

int tb_neighbours_new(const tb_net_self *self, const tb_ip *gateway, tb_neighbours **out); /* NULL = there is none */
void tb_neighbours_free(tb_neighbours *n);

/* The entry through which `ip`, of our family, is reached (its own, or the gateway's), made if need be; mac: known
 * already, or NULL. -ENETUNREACH: outside our network, and there is no gateway. */
int tb_neighbours_want(tb_neighbours *n, const tb_ip *ip, const tb_mac *mac);
const tb_mac *tb_neighbours_mac(const tb_neighbours *n, int entry); /* NULL = not known yet */
uint32_t tb_neighbours_changes(const tb_neighbours *n);             /* grows when any MAC changes: templates are old */

/* A whole frame that tb_net_parse called TB_NET_ARP or TB_NET_ND, its sum right. The length of the reply that is to be
 * sent; 0 = none. */
uint32_t tb_neighbours_hear(tb_neighbours *n, const uint8_t *f, const tb_net_in *in, uint8_t reply[TB_NEIGHBOUR_MOST]);
/* One request that is due; its length, 0 = none. */
uint32_t tb_neighbours_due(tb_neighbours *n, uint64_t now, uint8_t request[TB_NEIGHBOUR_MOST]);
uint64_t tb_neighbours_next(const tb_neighbours *n); /* when to look again; UINT64_MAX = never */
/* The first address that nobody answered for, however often it was asked for (1.5 s); NULL = none. */
const tb_ip *tb_neighbours_silent(const tb_neighbours *n);
/* Who said first that our address is his; NULL = nobody. */
const tb_mac *tb_neighbours_rival(const tb_neighbours *n);
/* An announcement of ourselves that nobody asked for, for switches and for caches that know our address's last owner;
 * its length. */
uint32_t tb_neighbours_announce(const tb_neighbours *n, uint8_t frame[TB_NEIGHBOUR_MOST]);

#endif
