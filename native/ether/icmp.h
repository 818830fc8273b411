/* icmp.h - what a host owes others beside its address (RFC 792, RFC 1122, RFC 4443): an answer to ping, and an ear for
 * routers that cannot forward its frames. For a link that owns its device. Bytes in, bytes out.
 *
 * Anybody can send these. So: no more than ECHO_RATE answers a second, whoever asks; an answer is no longer than its
 * question, and goes to whoever sent it. A router's word is believed only about a frame that can be ours, and is only
 * told: nothing changes by it. */
#ifndef TB_ETHER_ICMP_H
#define TB_ETHER_ICMP_H
#include "ether/headers.h"

enum { TB_ICMP_MOST = TB_ETHER_HEAD + TB_VLAN_TAG + 1500, TB_ICMP_ECHO_RATE = 100, TB_ICMP_ECHO_BURST = 20 };

typedef struct { uint64_t full_at; } tb_icmp_pace; /* when the whole burst may be answered again; zero at first */

/* f: a whole frame that tb_net_parse called TB_NET_ICMP. The length of the reply; 0 = none is due. */
uint32_t tb_icmp_echo(tb_icmp_pace *pace, uint64_t now, const tb_net_self *self, const uint8_t *f, const tb_net_in *in,
                      uint8_t reply[TB_ICMP_MOST]);

/* "Fragmentation needed" (RFC 1191) or "packet too big" (RFC 4443) about a frame of ours: which peer it was for, and
 * the largest IP packet that passes on the way to it; 0 = an old router that does not say. */
bool tb_icmp_narrow(const tb_net_self *self, const uint8_t *f, const tb_net_in *in, tb_ip *to, uint32_t *ip_mtu);

#endif
