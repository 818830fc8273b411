/* peer_addr.h - what the addresses of links that reach each other (udp, dpdk) have in common, for those who compare them.
 *
 * Bytes: version 1, family 4 or 6, number of ports, the IP, the ports (big-endian); then, from a rank that has a device of
 * its own, 1 and the six bytes of its MAC. */
#ifndef TB_PEER_ADDR_H
#define TB_PEER_ADDR_H
#include "links/link.h"

/* The first byte of a verbs rank's, which is otherwise that link's own. */
enum { TB_ADDRESS_VERBS = 'R' };
enum { TB_ADDRESS_VERSION = 1, TB_ADDRESS_HEAD = 3, TB_ADDRESS_HAS_MAC = 1, TB_ADDRESS_MAC = 7 };

/* Two ranks' addresses that cannot both be right: false, and why, with the remedy. What is no such address is right. */
bool tb_address_agree(const tb_addr *a, uint32_t rank_a, const tb_addr *b, uint32_t rank_b, char *why, size_t n);
#endif
