/* headers.h - Ethernet, IPv4 and UDP around a frame, as bytes. For links that own a network device and so are a host of
 * their own on the wire. No device, no library, no allocation: every length is checked against what was received.
 *
 * Sources: IEEE 802.3, RFC 791, RFC 768, RFC 1071 (the sum), RFC 826 (ARP, in neighbour.h). */
#ifndef TB_ETHER_HEADERS_H
#define TB_ETHER_HEADERS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "ether/bytes.h"

enum { TB_ETHER_HEAD = 14, TB_IP4_HEAD = 20, TB_UDP_HEAD = 8, TB_NET_HEAD = 42, TB_ETHER_LEAST = 60 };
enum { TB_NET_HEAD_MAX = TB_ETHER_HEAD + 60 + TB_UDP_HEAD }; /* with all IP options: tb_net_parse reads no further */

typedef struct { uint8_t b[6]; } tb_mac;

/* Who we are on the wire. Addresses and ports in host order. */
typedef struct {
  tb_mac mac;
  uint32_t ip, mask;      /* mask: the network that is reached directly */
  uint16_t port, ports;   /* UDP ports [port, port + ports) are ours */
} tb_net_self;

/* What a frame is, seen from here. */
typedef enum {
  TB_NET_FRAME,           /* UDP to one of our ports: `in` is filled */
  TB_NET_ARP,             /* for neighbour.h */
  TB_NET_ICMP,            /* to our address, for icmp.h: at, len and ip of `in` are filled */
  TB_NET_FOREIGN,         /* another protocol, address or port; an IP fragment; a datagram without any payload */
  TB_NET_TRUNCATED,       /* shorter than its own headers say */
  TB_NET_BAD_SUM,         /* a wrong IP header sum */
} tb_net_kind;

typedef struct {
  uint32_t at, len;       /* the UDP payload, or the ICMP message, within the Ethernet frame */
  uint32_t ip;            /* of the sender */
  uint16_t port;
  bool summed;            /* the sender made a UDP sum ... */
  uint32_t sum;           /* ... whose part that is not the payload this is */
} tb_net_in;

/* All that does not change from frame to frame: 42 bytes of headers without lengths and ports. In the place of the IP
 * sum is the sum of the rest, so that only the length has to be added. */
void tb_net_template(uint8_t out[TB_NET_HEAD], const tb_net_self *self, const tb_mac *to, uint32_t ip);
/* The headers of a frame whose UDP payload has `len` bytes. The IP sum is made here; the UDP sum is 0 = none (RFC 768),
 * or, with `sum`, that of the pseudo-header, which a device that sums the rest expects there. */
void tb_net_head(uint8_t *out, const uint8_t tmpl[TB_NET_HEAD], uint16_t from, uint16_t to, uint32_t len, bool sum);
/* A frame of `len` bytes, of which f shows the first `have`: all of them, or the first piece, which must hold all
 * headers (TB_NET_HEAD_MAX bytes do). */
tb_net_kind tb_net_parse(const uint8_t *f, uint32_t have, uint32_t len, const tb_net_self *self, tb_net_in *in);
/* Is the UDP sum right? Of frames without one: true. */
bool tb_net_sum_right(const tb_net_in *in, const uint8_t *payload);

/* Ones' complement sum of big-endian words: 0xffff over what holds a right sum; else its complement goes there. */
uint16_t tb_net_sum(const uint8_t *p, uint32_t len);

bool tb_mac_equal(const tb_mac *a, const tb_mac *b);
bool tb_mac_of_one(const tb_mac *mac); /* neither a group's nor zero */

/* "10.0.0.5/24" (without a length: /24), an address that a host may have; 0 or -EINVAL. */
int tb_net_ip_parse(const char *text, uint32_t *ip, uint32_t *mask);
/* May a host have it? Neither this network, loopback, multicast nor beyond. */
bool tb_net_ip_of_host(uint32_t ip);
/* 169.254.x.y/16 (RFC 3927) from the MAC, for networks where nobody gave us an address. */
uint32_t tb_net_link_local(const tb_mac *mac);

#endif
