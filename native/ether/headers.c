/* headers.c - see headers.h. Byte by byte and big-endian throughout, so that alignment and host order do not matter. */
#include "ether/headers.h"
#include <string.h>

enum { TYPE_IP4 = 0x0800, TYPE_ARP = 0x0806, TYPE_VLAN = 0x8100, TYPE_IP6 = 0x86dd, HOPS = 64 };
/* where things lie in an IPv4 header, in an IPv6 header, and in a UDP header */
enum { AT4_LEN = 2, AT4_FLAGS = 6, AT4_TTL = 8, AT4_PROTO = 9, AT4_SUM = 10, AT4_FROM = 12, AT4_TO = 16 };
enum { AT6_LEN = 4, AT6_PROTO = 6, AT6_HOPS = 7, AT6_FROM = 8, AT6_TO = 24 };
enum { UDP_LEN = 4, UDP_SUM = 6, ICMP_SUM = 2, ICMP_LEAST = 4, ND_FIRST = 135, ND_LAST = 136 };

static uint16_t fold(uint64_t sum) {
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return (uint16_t)sum;
}

/* The sum of words in this machine's order is, in that order, the sum: of whole payloads it is made so (RFC 1071, 2.B). */
static uint64_t sum_of_many(const uint8_t *p, uint32_t sixteens) {
  uint64_t low = 0, high = 0, w[2];
  uint8_t bytes[2];
  for (; sixteens; p += sizeof w, sixteens--) {
    memcpy(w, p, sizeof w);
    low += (uint64_t)(uint32_t)w[0] + (uint32_t)w[1];
    high += (w[0] >> 32) + (w[1] >> 32);
  }
  uint16_t sum = fold((low & 0xffffffff) + (low >> 32) + (high & 0xffffffff) + (high >> 32));
  memcpy(bytes, &sum, sizeof bytes);
  return tb_get16(bytes);
}

/* Of headers, which are whole fours of bytes. Not folded, as the others are not: the upper half is folded later. */
static inline uint64_t sum_of_head(const uint8_t *p, uint32_t len) {
  uint64_t sum = 0;
  for (; len; p += 4, len -= 4) sum += tb_get32(p);
  return sum;
}

/* Ones' complement sum of big-endian words. */
static uint64_t sum_of(const uint8_t *p, uint32_t len) {
  uint64_t sum = 0;
  if (len >= 64) sum = sum_of_many(p, len / 16), p += len & ~15u, len &= 15;
  sum += sum_of_head(p, len & ~3u), p += len & ~3u, len &= 3;
  if (len >= 2) sum += tb_get16(p), p += 2, len -= 2;
  if (len) sum += (uint32_t)p[0] << 8;
  return sum;
}

uint16_t tb_net_sum(const uint8_t *p, uint32_t len) { return fold(sum_of(p, len)); }

/* ---- written
 * ------------------------------------------------------------------------------------------------------------ */

static uint8_t *ether_head(uint8_t *out, const tb_net_self *self, const tb_mac *to, uint32_t type) {
  memcpy(out, to->b, 6);
  memcpy(out + 6, self->mac.b, 6);
  out += 12;
  if (self->vlan) {
    tb_put16(out, TYPE_VLAN);
    tb_put16(out + 2, self->vlan);
    out += TB_VLAN_TAG;
  }
  tb_put16(out, type);
  return out + 2;
}

/* Both without their lengths; IPv4's sum in its place, not complemented. The answer: where the addresses begin. */
static uint8_t *ip4_head(uint8_t *ip, const tb_net_self *self, const tb_ip *to, uint8_t proto, uint8_t hops) {
  memset(ip, 0, TB_IP4_HEAD);
  ip[0] = 4 << 4 | TB_IP4_HEAD / 4;
  tb_put16(ip + AT4_FLAGS, 0x4000); /* do not fragment: a receiver would drop the pieces */
  ip[AT4_TTL] = hops;
  ip[AT4_PROTO] = proto;
  memcpy(ip + AT4_FROM, self->ip.b + TB_IP4_AT, 4);
  memcpy(ip + AT4_TO, to->b + TB_IP4_AT, 4);
  tb_put16(ip + AT4_SUM, fold(sum_of_head(ip, TB_IP4_HEAD)));
  return ip + AT4_FROM;
}

static uint8_t *ip6_head(uint8_t *ip, const tb_net_self *self, const tb_ip *to, uint8_t proto, uint8_t hops) {
  memset(ip, 0, TB_IP6_HEAD);
  ip[0] = 6 << 4;
  ip[AT6_PROTO] = proto;
  ip[AT6_HOPS] = hops;
  memcpy(ip + AT6_FROM, self->ip.b, 16);
  memcpy(ip + AT6_TO, to->b, 16);
  return ip + AT6_FROM;
}

static void set_length(uint8_t *ip, bool four, uint32_t len) {
  if (four) {
    tb_put16(ip + AT4_LEN, len + TB_IP4_HEAD);
    tb_put16(ip + AT4_SUM, (uint16_t)~fold((uint64_t)tb_get16(ip + AT4_SUM) + len + TB_IP4_HEAD));
  } else {
    tb_put16(ip + AT6_LEN, len);
  }
}

static uint8_t *both_heads(uint8_t *out, const tb_net_self *self, const tb_mac *to, const tb_ip *ip, uint8_t proto,
                           uint8_t hops, uint8_t **addresses) {
  bool four = tb_ip_is4(&self->ip);
  uint8_t *at = ether_head(out, self, to, four ? TYPE_IP4 : TYPE_IP6);
  *addresses = four ? ip4_head(at, self, ip, proto, hops) : ip6_head(at, self, ip, proto, hops);
  return at;
}

uint32_t tb_net_ip_head(uint8_t *out, const tb_net_self *self, const tb_mac *to, const tb_ip *ip, uint8_t proto,
                        uint8_t hops, uint32_t len) {
  uint8_t *addresses, *at = both_heads(out, self, to, ip, proto, hops, &addresses);
  set_length(at, tb_ip_is4(&self->ip), len);
  return tb_net_ip_at(self) + tb_net_ip_len(self);
}

void tb_net_prepare(tb_net_template *out, const tb_net_self *self, const tb_mac *to, const tb_ip *ip) {
  uint8_t *addresses;
  memset(out, 0, sizeof *out);
  (void)both_heads(out->b, self, to, ip, TB_PROTO_UDP, HOPS, &addresses);
  out->ip = (uint8_t)tb_net_ip_at(self);
  out->udp = (uint8_t)(out->ip + tb_net_ip_len(self));
  out->len = (uint8_t)(out->udp + TB_UDP_HEAD);
  tb_put16(out->b + out->udp + UDP_SUM, fold(sum_of_head(addresses, tb_ip_is4(&self->ip) ? 8 : 32) + TB_PROTO_UDP));
}

void tb_net_head(uint8_t *out, const tb_net_template *t, uint16_t from, uint16_t to, uint32_t len, bool sum) {
  uint32_t udp_len = len + TB_UDP_HEAD;
  memcpy(out, t->b, TB_NET_HEAD);
  set_length(out + t->ip, t->udp - t->ip == TB_IP4_HEAD, udp_len);
  uint8_t *udp = out + t->udp;
  tb_put16(udp, from);
  tb_put16(udp + 2, to);
  tb_put16(udp + UDP_LEN, udp_len);
  tb_put16(udp + UDP_SUM, sum ? fold((uint64_t)tb_get16(udp + UDP_SUM) + udp_len) : 0);
}

void tb_net_finish(uint8_t *udp, uint32_t len) {
  uint16_t sum = (uint16_t)~fold(sum_of(udp, TB_UDP_HEAD + len));
  tb_put16(udp + UDP_SUM, sum ? sum : 0xffff); /* 0 would say that there is none */
}

void tb_net_icmp_sum(uint8_t *f, const tb_net_self *self, uint32_t at, uint32_t len) {
  bool four = tb_ip_is4(&self->ip);
  uint64_t pseudo = four ? 0 : sum_of(f + at - TB_IP6_HEAD + AT6_FROM, 32) + TB_PROTO_ICMP6 + len;
  tb_put16(f + at + ICMP_SUM, 0);
  tb_put16(f + at + ICMP_SUM, (uint16_t)~fold(pseudo + sum_of(f + at, len)));
}

/* ---- read
 * --------------------------------------------------------------------------------------------------------------- */

/* An IP packet, its header looked through. */
typedef struct {
  uint32_t at, end;       /* what it carries; by its own word, not yet compared with what came */
  uint8_t proto;
  bool to_us;             /* else to a group */
  uint64_t addresses;     /* their sum */
} packet;

static tb_net_kind parse_ip4(const uint8_t *f, uint32_t have, uint32_t at, const tb_net_self *self, packet *p,
                             tb_net_in *in) {
  const uint8_t *ip = f + at;
  if (have < at + TB_IP4_HEAD) return TB_NET_TRUNCATED;
  uint32_t head = (ip[0] & 15u) * 4;
  if (ip[0] >> 4 != 4 || head < TB_IP4_HEAD) return TB_NET_FOREIGN;
  if (memcmp(f, self->mac.b, 6) || memcmp(ip + AT4_TO, self->ip.b + TB_IP4_AT, 4)) return TB_NET_FOREIGN;
  if (ip[AT4_PROTO] != TB_PROTO_UDP && ip[AT4_PROTO] != TB_PROTO_ICMP) return TB_NET_FOREIGN;
  if (have < at + head) return TB_NET_TRUNCATED;
  if (fold(sum_of_head(ip, head)) != 0xffff) return TB_NET_BAD_SUM;
  if (tb_get16(ip + AT4_FLAGS) & 0x3fff) return TB_NET_FOREIGN; /* more fragments, or not the first one */
  tb_ip from = TB_IP4(0);
  memcpy(from.b + TB_IP4_AT, ip + AT4_FROM, 4);
  in->ip = from;
  *p = (packet){.at = at + head, .end = at + tb_get16(ip + AT4_LEN), .proto = ip[AT4_PROTO], .to_us = true,
                .addresses = sum_of_head(ip + AT4_FROM, 8)};
  return TB_NET_FRAME;
}

/* A group that we have to listen to: those who look for our address, and all. */
static bool group_of_ours(const uint8_t *f, const uint8_t *to, const tb_net_self *self) {
  tb_ip solicited = tb_ip6_solicited(&self->ip);
  return f[0] == 0x33 && f[1] == 0x33 && (!memcmp(to, solicited.b, 16) || !memcmp(to, tb_ip6_all_nodes.b, 16));
}

/* Extension headers are foreign: nobody of ours sends any, and what they lead to might be a fragment. */
static tb_net_kind parse_ip6(const uint8_t *f, uint32_t have, uint32_t at, const tb_net_self *self, packet *p,
                             tb_net_in *in) {
  const uint8_t *ip = f + at;
  if (have < at + TB_IP6_HEAD) return TB_NET_TRUNCATED;
  if (ip[0] >> 4 != 6) return TB_NET_FOREIGN;
  bool to_us = !memcmp(f, self->mac.b, 6) && !memcmp(ip + AT6_TO, self->ip.b, 16);
  if (!to_us && !group_of_ours(f, ip + AT6_TO, self)) return TB_NET_FOREIGN;
  if (ip[AT6_PROTO] != TB_PROTO_ICMP6 && !(to_us && ip[AT6_PROTO] == TB_PROTO_UDP)) return TB_NET_FOREIGN;
  memcpy(in->ip.b, ip + AT6_FROM, 16);
  if (tb_ip_is4(&in->ip)) return TB_NET_FOREIGN;
  *p = (packet){.at = at + TB_IP6_HEAD, .end = at + TB_IP6_HEAD + tb_get16(ip + AT6_LEN), .proto = ip[AT6_PROTO],
                .to_us = to_us, .addresses = sum_of_head(ip + AT6_FROM, 32)};
  return TB_NET_FRAME;
}

static tb_net_kind parse_udp(const uint8_t *f, uint32_t have, uint32_t len, const packet *p, const tb_net_self *self,
                             tb_net_in *in) {
  const uint8_t *udp = f + p->at;
  if (have < p->at + TB_UDP_HEAD) return TB_NET_TRUNCATED;
  uint32_t udp_len = tb_get16(udp + UDP_LEN), to = tb_get16(udp + 2), sum = tb_get16(udp + UDP_SUM);
  if (to < self->port || to - self->port >= self->ports) return TB_NET_FOREIGN;
  if (p->end > len || udp_len < TB_UDP_HEAD || p->end < p->at || udp_len > p->end - p->at) return TB_NET_TRUNCATED;
  in->port = tb_get16(udp);
  if (udp_len == TB_UDP_HEAD || !tb_ip_of_host(&in->ip)) return TB_NET_FOREIGN;
  in->at = p->at + TB_UDP_HEAD;
  in->len = udp_len - TB_UDP_HEAD;
  in->summed = sum != 0;
  in->said = (uint16_t)sum;
  in->pseudo = p->addresses + TB_PROTO_UDP + udp_len;
  in->heads = in->pseudo + tb_get16(udp) + to + udp_len + sum;
  return sum || tb_ip_is4(&self->ip) ? TB_NET_FRAME : TB_NET_BAD_SUM; /* IPv6's own header has none (RFC 8200, 8.1) */
}

/* A neighbour's word may come from one who has no address yet. */
static tb_net_kind parse_icmp(const uint8_t *f, uint32_t have, uint32_t len, const packet *p, tb_net_in *in) {
  bool four = p->proto == TB_PROTO_ICMP;
  if (p->end > len || p->end < p->at) return TB_NET_TRUNCATED;
  *in = (tb_net_in){.at = p->at, .len = p->end - p->at, .ip = in->ip, .summed = true};
  if (!four) {
    if (in->len < ICMP_LEAST || have <= p->at) return TB_NET_TRUNCATED;
    in->heads = p->addresses + TB_PROTO_ICMP6 + in->len;
    if (f[p->at] >= ND_FIRST && f[p->at] <= ND_LAST) return TB_NET_ND;
  }
  return p->to_us && tb_ip_of_host(&in->ip) ? TB_NET_ICMP : TB_NET_FOREIGN;
}

tb_net_kind tb_net_parse(const uint8_t *f, uint32_t have, uint32_t len, int32_t tag, const tb_net_self *self,
                         tb_net_in *in) {
  packet p;
  if (have > len) have = len;
  if (have < TB_ETHER_HEAD) return TB_NET_TRUNCATED;
  bool tagged = tag == TB_NET_UNTAGGED && tb_get16(f + 12) == TYPE_VLAN, four = tb_ip_is4(&self->ip);
  uint32_t at = TB_ETHER_HEAD + (tagged ? TB_VLAN_TAG : 0u);
  if (have < at) return TB_NET_TRUNCATED;
  if (tagged) tag = tb_get16(f + TB_ETHER_HEAD);
  bool ours = tag == TB_NET_UNTAGGED ? !self->vlan : self->vlan && (tag & 0xfff) == self->vlan;
  if (!ours) return TB_NET_FOREIGN;
  uint32_t type = tb_get16(f + at - 2);
  if (four && type == TYPE_ARP) {
    *in = (tb_net_in){.at = at, .len = len - at};
    return TB_NET_ARP;
  }
  if (type != (four ? TYPE_IP4 : TYPE_IP6)) return TB_NET_FOREIGN;
  tb_net_kind kind = four ? parse_ip4(f, have, at, self, &p, in) : parse_ip6(f, have, at, self, &p, in);
  if (kind != TB_NET_FRAME) return kind;
  return p.proto == TB_PROTO_UDP ? parse_udp(f, have, len, &p, self, in) : parse_icmp(f, have, len, &p, in);
}

bool tb_net_sum_right(const tb_net_in *in, const uint8_t *payload) {
  return !in->summed || fold(in->heads + sum_of(payload, in->len)) == 0xffff;
}

bool tb_net_unfinished(const tb_net_in *in) { return in->summed && in->said == fold(in->pseudo); }
