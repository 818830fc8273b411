/* address.h - addresses of hosts on a network. Both families are one type of 16 bytes, IPv4 as ::ffff:a.b.c.d (RFC
 * 4291, 2.5.5.2), so that tables and comparisons know nothing of families. No address on a wire is one of that kind. */
#ifndef TB_ETHER_ADDRESS_H
#define TB_ETHER_ADDRESS_H
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef struct { uint8_t b[6]; } tb_mac;
typedef struct { uint8_t b[16]; } tb_ip;

enum { TB_IP4_AT = 12, TB_IP4_BITS = 96, TB_IP_BITS = 128, TB_IP_TEXT = 46 };

/* An initialiser, from host order. */
#define TB_IP4(x)                                                                                                 \
  {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, (uint8_t)((x) >> 24 & 255), (uint8_t)((x) >> 16 & 255),               \
    (uint8_t)((x) >> 8 & 255), (uint8_t)((x) & 255)}}

static inline bool tb_ip_equal(const tb_ip *a, const tb_ip *b) { return !memcmp(a->b, b->b, sizeof a->b); }
static inline bool tb_ip_is4(const tb_ip *ip) {
  static const uint8_t mapped[TB_IP4_AT] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255};
  return !memcmp(ip->b, mapped, sizeof mapped);
}
/* Do they agree in their first `bits` bits? Those of an IPv4 network are TB_IP4_BITS more than its /length. */
bool tb_ip_within(const tb_ip *ip, const tb_ip *net, uint32_t bits);
/* fe80::/10: reached directly whatever our network is. */
bool tb_ip6_link_local(const tb_ip *ip);
/* May a host have it? Neither this network, loopback, multicast nor beyond. */
static inline bool tb_ip_of_host(const tb_ip *ip) {
  static const uint8_t none[8];
  uint8_t first = ip->b[TB_IP4_AT];
  if (tb_ip_is4(ip)) return first != 0 && first != 127 && first < 224;
  return ip->b[0] != 0xff && memcmp(ip->b, none, sizeof none); /* ::/64 holds nobody, loopback, IPv4 in disguise */
}
/* Does it mean all hosts of that network (IPv4), or none of them (the network's own)? */
bool tb_ip_of_net(const tb_ip *ip, uint32_t bits);

/* "10.0.0.5/24", "fd00::5/64" (without a length: /24, /64), an address that a host may have; 0 or -EINVAL. */
int tb_ip_parse(const char *text, tb_ip *ip, uint32_t *bits);
const char *tb_ip_text(const tb_ip *ip, char out[TB_IP_TEXT]);
/* 169.254.x.y (RFC 3927) from the MAC, for networks where nobody gave us an address. */
tb_ip tb_ip_link_local(const tb_mac *mac);

/* ff02::1:ffXX:XXXX (RFC 4291): where those who look for this address call. And the MAC that leads to a group. */
tb_ip tb_ip6_solicited(const tb_ip *ip);
tb_mac tb_mac_of_group(const tb_ip *group);
extern const tb_ip tb_ip6_all_nodes; /* ff02::1 */

static inline bool tb_mac_equal(const tb_mac *a, const tb_mac *b) { return !memcmp(a->b, b->b, sizeof a->b); }
bool tb_mac_of_one(const tb_mac *mac); /* neither a group's nor zero */

#endif
