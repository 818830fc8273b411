/* headers.h - Ethernet, its VLAN tag, IPv4 or IPv6, and UDP around a frame, as bytes. For links that own a network
 * device and so are a host of their own on the wire. No device, no library, no allocation: every length is checked
 * against what was received.
 *
 * Sources: IEEE 802.3, IEEE 802.1Q (the tag), RFC 791, RFC 8200 (IPv6), RFC 768, RFC 1071 (the sum), RFC 4443
 * (ICMPv6). */
#ifndef TB_ETHER_HEADERS_H
#define TB_ETHER_HEADERS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "ether/address.h"
#include "ether/bytes.h"

enum { TB_ETHER_HEAD = 14, TB_VLAN_TAG = 4, TB_IP4_HEAD = 20, TB_IP6_HEAD = 40, TB_UDP_HEAD = 8, TB_ETHER_LEAST = 60 };
enum { TB_PROTO_ICMP = 1, TB_PROTO_UDP = 17, TB_PROTO_ICMP6 = 58 };
enum { TB_VLAN_MAX = 4094, TB_NET_UNTAGGED = -1 };
enum { TB_NET_HEAD = TB_ETHER_HEAD + TB_VLAN_TAG + TB_IP6_HEAD + TB_UDP_HEAD }; /* that we send, at most */
/* With all IP options: tb_net_parse reads no further. */
enum { TB_NET_HEAD_MAX = TB_ETHER_HEAD + TB_VLAN_TAG + 60 + TB_UDP_HEAD };

/* Who we are on the wire. Ports in host order. */
typedef struct {
  tb_mac mac;
  tb_ip ip;
  uint32_t bits;          /* of the network that is reached directly */
  uint16_t vlan;          /* 1 to TB_VLAN_MAX: all that we send has this tag, only what has it is ours; 0 = none has */
  uint16_t port, ports;   /* UDP ports [port, port + ports) are ours */
} tb_net_self;

/* What a frame is, seen from here. */
typedef enum {
  TB_NET_FRAME,           /* UDP to one of our ports: `in` is filled */
  TB_NET_ARP,             /* for neighbour.h: at and len of `in` are filled */
  TB_NET_ND,              /* IPv6's way of the same, to us or to a group that we listen to: at, len, ip and sum, too */
  TB_NET_ICMP,            /* to our address, for icmp.h: at, len, ip and sum of `in` are filled */
  TB_NET_FOREIGN,         /* another VLAN, protocol, address or port; an IP fragment; a datagram without any payload */
  TB_NET_TRUNCATED,       /* shorter than its own headers say */
  TB_NET_BAD_SUM,         /* a wrong IP header sum, or no UDP sum over IPv6 */
} tb_net_kind;

typedef struct {
  uint32_t at, len;       /* the UDP payload, or the ICMP message, within the Ethernet frame */
  tb_ip ip;               /* of the sender */
  uint16_t port;
  bool summed;            /* the sender made a sum over the payload ... */
  uint16_t said;          /* ... of UDP: this one */
  uint64_t pseudo, heads; /* what goes into it of IP's addresses and lengths; of all that precedes the payload */
} tb_net_in;

/* Where the headers of what we send begin. */
static inline uint32_t tb_net_ip_at(const tb_net_self *self) { return TB_ETHER_HEAD + (self->vlan ? TB_VLAN_TAG : 0u); }
static inline uint32_t tb_net_ip_len(const tb_net_self *self) {
  return tb_ip_is4(&self->ip) ? TB_IP4_HEAD : TB_IP6_HEAD;
}

/* All that does not change from frame to frame: the headers without lengths and ports. In the place of each sum is
 * the sum of the rest, so that only the length has to be added. */
typedef struct {
  uint8_t b[TB_NET_HEAD];
  uint8_t ip, udp, len;   /* where these begin; the length of all */
} tb_net_template;
void tb_net_prepare(tb_net_template *out, const tb_net_self *self, const tb_mac *to, const tb_ip *ip);
/* The headers of a frame whose UDP payload has `len` bytes; `out` has TB_NET_HEAD bytes, of which the first t->len
 * mean something. The IP sum is made here; the UDP sum is 0 = none (RFC 768), or, with `sum`, that of the
 * pseudo-header, which a device that sums the rest expects there, and tb_net_finish. */
void tb_net_head(uint8_t *out, const tb_net_template *t, uint16_t from, uint16_t to, uint32_t len, bool sum);
/* Does what such a device does: the UDP header begins here, and its payload of `len` bytes follows. */
void tb_net_finish(uint8_t *udp, uint32_t len);
/* Ethernet's and IP's headers alone, sum included, in front of `len` bytes; where those begin. */
uint32_t tb_net_ip_head(uint8_t *out, const tb_net_self *self, const tb_mac *to, const tb_ip *ip, uint8_t proto,
                        uint8_t hops, uint32_t len);
/* The sum of an ICMP message of ours of `len` bytes behind such headers, from `at` on, put in its place. */
void tb_net_icmp_sum(uint8_t *f, const tb_net_self *self, uint32_t at, uint32_t len);

/* A frame of `len` bytes, of which f shows the first `have`: all of them, or the first piece, which must hold all
 * headers (TB_NET_HEAD_MAX bytes do). tag: TB_NET_UNTAGGED, or that which the device took out of it (all 16 bits). */
tb_net_kind tb_net_parse(const uint8_t *f, uint32_t have, uint32_t len, int32_t tag, const tb_net_self *self,
                         tb_net_in *in);
/* Is the sum right? Of frames without one: true. */
bool tb_net_sum_right(const tb_net_in *in, const uint8_t *payload);
/* Was it begun, and the rest left to a device, which never came? What kernels do on veth pairs. */
bool tb_net_unfinished(const tb_net_in *in);

/* Ones' complement sum of big-endian words: 0xffff over what holds a right sum; else its complement goes there. */
uint16_t tb_net_sum(const uint8_t *p, uint32_t len);


#endif
