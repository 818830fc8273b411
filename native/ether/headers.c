/* headers.c - see headers.h. Byte by byte and big-endian throughout, so that alignment and host order do not matter. */
#include "ether/headers.h"
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

enum { TYPE_IP4 = 0x0800, TYPE_ARP = 0x0806, PROTO_ICMP = 1, PROTO_UDP = 17 };
/* where things lie in a frame without IP options */
enum { IP = TB_ETHER_HEAD, AT_LEN = IP + 2, AT_FLAGS = IP + 6, AT_TTL = IP + 8, AT_PROTO = IP + 9, AT_SUM = IP + 10,
       AT_FROM = IP + 12, AT_TO = IP + 16, AT_UDP = IP + TB_IP4_HEAD };

/* Ones' complement sum of big-endian words, not folded. Four bytes a step: the upper half is folded later. */
static uint64_t sum_of(const uint8_t *p, uint32_t len) {
  uint64_t sum = 0;
  for (; len >= 4; p += 4, len -= 4) sum += tb_get32(p);
  if (len >= 2) sum += tb_get16(p), p += 2, len -= 2;
  if (len) sum += (uint32_t)p[0] << 8;
  return sum;
}

static uint16_t fold(uint64_t sum) {
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return (uint16_t)sum;
}

uint16_t tb_net_sum(const uint8_t *p, uint32_t len) { return fold(sum_of(p, len)); }

void tb_net_template(uint8_t out[TB_NET_HEAD], const tb_net_self *self, const tb_mac *to, uint32_t ip) {
  memset(out, 0, TB_NET_HEAD);
  memcpy(out, to->b, 6);
  memcpy(out + 6, self->mac.b, 6);
  tb_put16(out + 12, TYPE_IP4);
  out[IP] = 4 << 4 | TB_IP4_HEAD / 4;
  tb_put16(out + AT_FLAGS, 0x4000); /* do not fragment: a receiver would drop the pieces */
  out[AT_TTL] = 64;
  out[AT_PROTO] = PROTO_UDP;
  tb_put32(out + AT_FROM, self->ip);
  tb_put32(out + AT_TO, ip);
  tb_put16(out + AT_SUM, fold(sum_of(out + IP, TB_IP4_HEAD)));
}

void tb_net_head(uint8_t *out, const uint8_t tmpl[TB_NET_HEAD], uint16_t from, uint16_t to, uint32_t len, bool sum) {
  uint32_t udp_len = len + TB_UDP_HEAD, ip_len = udp_len + TB_IP4_HEAD;
  memcpy(out, tmpl, TB_NET_HEAD);
  tb_put16(out + AT_LEN, ip_len);
  tb_put16(out + AT_SUM, (uint16_t)~fold((uint64_t)tb_get16(tmpl + AT_SUM) + ip_len));
  tb_put16(out + AT_UDP, from);
  tb_put16(out + AT_UDP + 2, to);
  tb_put16(out + AT_UDP + 4, udp_len);
  if (sum) tb_put16(out + AT_UDP + 6, fold(sum_of(tmpl + AT_FROM, 8) + PROTO_UDP + udp_len));
}

/* The IP header is there, well formed, and to us; *head: its length. */
static tb_net_kind parse_ip(const uint8_t *f, uint32_t have, const tb_net_self *self, uint32_t *head) {
  if (have < IP + TB_IP4_HEAD) return TB_NET_TRUNCATED;
  *head = (f[IP] & 15u) * 4;
  if (f[IP] >> 4 != 4 || *head < TB_IP4_HEAD) return TB_NET_FOREIGN;
  if (tb_get32(f + AT_TO) != self->ip) return TB_NET_FOREIGN;
  if (f[AT_PROTO] != PROTO_UDP && f[AT_PROTO] != PROTO_ICMP) return TB_NET_FOREIGN;
  if (have < IP + *head) return TB_NET_TRUNCATED;
  if (fold(sum_of(f + IP, *head)) != 0xffff) return TB_NET_BAD_SUM;
  if (tb_get16(f + AT_FLAGS) & 0x3fff) return TB_NET_FOREIGN; /* more fragments, or not the first one */
  return TB_NET_FRAME;
}

static tb_net_kind parse_udp(const uint8_t *f, uint32_t have, uint32_t len, const tb_net_self *self, uint32_t head,
                             tb_net_in *in) {
  const uint8_t *udp = f + IP + head;
  if (have < IP + head + TB_UDP_HEAD) return TB_NET_TRUNCATED;
  uint32_t ip_len = tb_get16(f + AT_LEN), udp_len = tb_get16(udp + 4), to = tb_get16(udp + 2);
  if (to < self->port || to - self->port >= self->ports) return TB_NET_FOREIGN;
  if (ip_len > len - IP || udp_len < TB_UDP_HEAD || ip_len < head || udp_len > ip_len - head) return TB_NET_TRUNCATED;
  in->ip = tb_get32(f + AT_FROM);
  in->port = tb_get16(udp);
  if (udp_len == TB_UDP_HEAD || !tb_net_ip_of_host(in->ip)) return TB_NET_FOREIGN;
  in->at = IP + head + TB_UDP_HEAD;
  in->len = udp_len - TB_UDP_HEAD;
  in->summed = tb_get16(udp + 6) != 0;
  in->sum = fold(sum_of(f + AT_FROM, 8) + PROTO_UDP + udp_len + sum_of(udp, TB_UDP_HEAD));
  return TB_NET_FRAME;
}

static tb_net_kind parse_icmp(const uint8_t *f, uint32_t len, uint32_t head, tb_net_in *in) {
  uint32_t ip_len = tb_get16(f + AT_LEN);
  if (ip_len > len - IP || ip_len < head) return TB_NET_TRUNCATED;
  *in = (tb_net_in){.at = IP + head, .len = ip_len - head, .ip = tb_get32(f + AT_FROM)};
  return tb_net_ip_of_host(in->ip) ? TB_NET_ICMP : TB_NET_FOREIGN;
}

tb_net_kind tb_net_parse(const uint8_t *f, uint32_t have, uint32_t len, const tb_net_self *self, tb_net_in *in) {
  uint32_t head;
  if (have > len) have = len;
  if (have < TB_ETHER_HEAD) return TB_NET_TRUNCATED;
  if (tb_get16(f + 12) == TYPE_ARP) return TB_NET_ARP;
  if (tb_get16(f + 12) != TYPE_IP4 || memcmp(f, self->mac.b, 6)) return TB_NET_FOREIGN; /* a switch may flood others' */
  tb_net_kind kind = parse_ip(f, have, self, &head);
  if (kind != TB_NET_FRAME) return kind;
  return f[AT_PROTO] == PROTO_ICMP ? parse_icmp(f, len, head, in) : parse_udp(f, have, len, self, head, in);
}

bool tb_net_sum_right(const tb_net_in *in, const uint8_t *payload) {
  return !in->summed || fold(in->sum + sum_of(payload, in->len)) == 0xffff;
}

bool tb_mac_equal(const tb_mac *a, const tb_mac *b) { return !memcmp(a->b, b->b, 6); }

bool tb_mac_of_one(const tb_mac *mac) {
  static const tb_mac zero;
  return !(mac->b[0] & 1) && !tb_mac_equal(mac, &zero);
}

bool tb_net_ip_of_host(uint32_t ip) {
  uint32_t first = ip >> 24;
  return first != 0 && first != 127 && first < 224;
}

int tb_net_ip_parse(const char *text, uint32_t *ip, uint32_t *mask) {
  char copy[INET_ADDRSTRLEN];
  uint32_t bits = 24, net;
  const char *slash = strchr(text, '/');
  size_t len = slash ? (size_t)(slash - text) : strlen(text);
  if (len >= sizeof copy) return -EINVAL;
  memcpy(copy, text, len);
  copy[len] = 0;
  if (inet_pton(AF_INET, copy, &net) != 1) return -EINVAL;
  if (slash) {
    const char *p = slash + 1;
    for (bits = 0; *p >= '0' && *p <= '9' && bits <= 32; p++) bits = bits * 10 + (uint32_t)(*p - '0');
    if (*p || p == slash + 1 || bits < 1 || bits > 32) return -EINVAL;
  }
  uint32_t address = ntohl(net), m = UINT32_MAX << (32 - bits);
  if (!tb_net_ip_of_host(address)) return -EINVAL;
  if (bits < 31 && ((address & ~m) == 0 || (address | m) == UINT32_MAX)) return -EINVAL; /* the net; all of it */
  *ip = address;
  *mask = m;
  return 0;
}

/* The first and the last 256 are reserved. */
uint32_t tb_net_link_local(const tb_mac *mac) {
  uint32_t h = 2166136261u;
  for (int i = 0; i < 6; i++) h = (h ^ mac->b[i]) * 16777619u;
  h ^= h >> 16;
  return 0xa9fe0000u | (1 + (h >> 8 & 0xff) % 254) << 8 | (h & 0xff);
}
