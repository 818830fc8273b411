/* neighbour_frames.h - the frames by which hosts of one network tell each other their MACs: ARP (RFC 826, arp.c) and,
 * for IPv6, neighbour discovery (RFC 4861, nd.c), read into one form and written from it. Private to neighbour.c. */
#ifndef TB_NEIGHBOUR_FRAMES_H
#define TB_NEIGHBOUR_FRAMES_H
#include "ether/neighbour.h"

typedef struct {
  tb_ip about;            /* whose MAC it tells; "nobody" (0.0.0.0, ::) where the sender has no address yet */
  tb_mac mac;
  bool told;              /* there is a MAC in it */
  bool yields;            /* a MAC that is known already counts more (IPv6, "override" not set) */
  bool asks;              /* who has `target`? */
  tb_ip target;
  tb_mac back;            /* where an answer goes */
} tb_neighbour_word;

/* What tb_net_parse called TB_NET_ARP or TB_NET_ND. False: not well formed; nothing of `out` counts. */
bool tb_arp_read(const tb_net_self *self, const uint8_t *f, const tb_net_in *in, tb_neighbour_word *out);
bool tb_nd_read(const uint8_t *f, const tb_net_in *in, tb_neighbour_word *out);

/* Frames of at most TB_NEIGHBOUR_MOST bytes; their lengths. to: NULL = whoever has the address. */
uint32_t tb_arp_ask(uint8_t *f, const tb_net_self *self, const tb_mac *to, const tb_ip *ip);
uint32_t tb_nd_ask(uint8_t *f, const tb_net_self *self, const tb_mac *to, const tb_ip *ip);
uint32_t tb_arp_answer(uint8_t *f, const tb_net_self *self, const tb_neighbour_word *asked);
uint32_t tb_nd_answer(uint8_t *f, const tb_net_self *self, const tb_neighbour_word *asked);
uint32_t tb_arp_announce(uint8_t *f, const tb_net_self *self);
uint32_t tb_nd_announce(uint8_t *f, const tb_net_self *self);

#endif
