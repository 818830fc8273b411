/* headers.h - Ethernet, IPv4 and UDP around a frame, as bytes. For links that own a network device and so are a host of
 * their own on the wire. No device, no library, no allocation: every length is checked against what was received.
 *
 * Sources: IEEE 802.3, RFC 791, RFC 768, RFC 1071 (the sum), RFC 826 (ARP, in neighbour.h). */
#ifndef TB_ETHER_HEADERS_H
#define TB_ETHER_HEADERS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TB_ETHER_HEAD = 14, TB_IP4_HEAD = 20, TB_UDP_HEAD = 8, TB_NET_HEAD = 42, TB_ETHER_LEAST = 60 };

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
  TB_NET_FOREIGN,         /* another protocol, address or port; an IP fragment */
  TB_NET_TRUNCATED,       /* shorter than its own headers say */
  TB_NET_BAD_SUM,         /* a wrong IP header sum */
} tb_net_kind;

typedef struct {
  uint32_t at, len;       /* the UDP payload within the Ethernet frame */
  uint32_t ip;            /* of the sender */
  uint16_t port;
} tb_net_in;

/* All that does not change from frame to frame: 42 bytes of headers without lengths, sums and ports. */
void tb_net_template(uint8_t out[TB_NET_HEAD], const tb_net_self *self, const tb_mac *to, uint32_t ip);
/* The headers of a frame whose UDP payload has `len` bytes. The IP sum is made here; the UDP sum is 0 = none (RFC 768),
 * or, with `sum`, that of the pseudo-header, which a device that sums the rest expects there. */
void tb_net_head(uint8_t *out, const uint8_t tmpl[TB_NET_HEAD], uint16_t from, uint16_t to, uint32_t len, bool sum);
tb_net_kind tb_net_parse(const uint8_t *f, uint32_t len, const tb_net_self *self, tb_net_in *in);

/* "10.0.0.5/24" (without a length: /24); 0 or -EINVAL. */
int tb_net_ip_parse(const char *text, uint32_t *ip, uint32_t *mask);
/* 169.254.x.y/16 (RFC 3927) from the MAC, for networks where nobody gave us an address. */
uint32_t tb_net_link_local(const tb_mac *mac);

#endif
