/* address.c - see address.h. */
#include "ether/address.h"
#include <arpa/inet.h>
#include <errno.h>

const tb_ip tb_ip6_all_nodes = {{0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}};

bool tb_ip_within(const tb_ip *ip, const tb_ip *net, uint32_t bits) {
  uint32_t whole = bits / 8, rest = bits % 8;
  if (memcmp(ip->b, net->b, whole)) return false;
  return !rest || !((ip->b[whole] ^ net->b[whole]) >> (8 - rest));
}

bool tb_ip6_link_local(const tb_ip *ip) { return ip->b[0] == 0xfe && (ip->b[1] & 0xc0) == 0x80; }

/* Are all bits from number `bits` on like this? */
static bool rest_is(const tb_ip *ip, uint32_t bits, uint8_t like) {
  for (uint32_t i = bits; i < TB_IP_BITS; i++)
    if ((ip->b[i / 8] ^ like) >> (7 - i % 8) & 1) return false;
  return true;
}

bool tb_ip_of_net(const tb_ip *ip, uint32_t bits) {
  if (bits > TB_IP_BITS - 2) return false; /* RFC 3021, RFC 6164 */
  return rest_is(ip, bits, 0) || (tb_ip_is4(ip) && rest_is(ip, bits, 255));
}

/* Decimal digits and nothing else, 1 to most. */
static int parse_length(const char *text, uint32_t most, uint32_t *out) {
  const char *p = text;
  for (*out = 0; *p >= '0' && *p <= '9' && *out <= most; p++) *out = *out * 10 + (uint32_t)(*p - '0');
  return *p || p == text || *out < 1 || *out > most ? -EINVAL : 0;
}

int tb_ip_parse(const char *text, tb_ip *ip, uint32_t *bits) {
  char copy[TB_IP_TEXT];
  tb_ip got = TB_IP4(0);
  const char *slash = strchr(text, '/');
  size_t len = slash ? (size_t)(slash - text) : strlen(text);
  if (len >= sizeof copy) return -EINVAL;
  memcpy(copy, text, len);
  copy[len] = 0;
  bool four = inet_pton(AF_INET, copy, got.b + TB_IP4_AT) == 1;
  if (!four && (inet_pton(AF_INET6, copy, got.b) != 1 || tb_ip_is4(&got))) return -EINVAL;
  uint32_t before = four ? TB_IP4_BITS : 0, length = four ? 24 : 64;
  if (slash && parse_length(slash + 1, TB_IP_BITS - before, &length)) return -EINVAL;
  if (!tb_ip_of_host(&got) || tb_ip_of_net(&got, before + length)) return -EINVAL;
  *ip = got;
  *bits = before + length;
  return 0;
}

const char *tb_ip_text(const tb_ip *ip, char out[TB_IP_TEXT]) {
  bool four = tb_ip_is4(ip);
  return inet_ntop(four ? AF_INET : AF_INET6, four ? ip->b + TB_IP4_AT : ip->b, out, TB_IP_TEXT);
}

/* The first and the last 256 are reserved. */
tb_ip tb_ip_link_local(const tb_mac *mac) {
  uint32_t h = 2166136261u;
  for (int i = 0; i < 6; i++) h = (h ^ mac->b[i]) * 16777619u;
  h ^= h >> 16;
  tb_ip ip = TB_IP4(0xa9fe0000u | (1 + (h >> 8 & 0xff) % 254) << 8 | (h & 0xff));
  return ip;
}

tb_ip tb_ip6_solicited(const tb_ip *ip) {
  tb_ip group = {{0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, ip->b[13], ip->b[14], ip->b[15]}};
  return group;
}

tb_mac tb_mac_of_group(const tb_ip *group) {
  tb_mac mac = {{0x33, 0x33, group->b[12], group->b[13], group->b[14], group->b[15]}};
  return mac;
}

bool tb_mac_of_one(const tb_mac *mac) {
  static const tb_mac zero;
  return !(mac->b[0] & 1) && !tb_mac_equal(mac, &zero);
}
