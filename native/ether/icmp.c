/* icmp.c - see icmp.h. */
#include "ether/icmp.h"
#include <string.h>

enum { ICMP_HEAD = 8, IP_MOST = 1500, HOPS = 64 };
static const uint64_t STEP_NS = 1000000000 / TB_ICMP_ECHO_RATE;

/* The same words in both families. */
typedef struct {
  uint8_t proto, echo, reply, narrow, narrow_code;
  uint8_t first, proto_at, from_at, to_at, head; /* of the header of a packet that a router sends back */
} family;
static const family four = {TB_PROTO_ICMP, 8, 0, 3, 4, 4 << 4 | TB_IP4_HEAD / 4, 9, 12, 16, TB_IP4_HEAD};
static const family six = {TB_PROTO_ICMP6, 128, 129, 2, 0, 6 << 4, 6, 8, 24, TB_IP6_HEAD};

static const family *family_of(const tb_net_self *self) { return tb_ip_is4(&self->ip) ? &four : &six; }

static bool may_answer(tb_icmp_pace *pace, uint64_t now) {
  if (pace->full_at < now) pace->full_at = now;
  if (pace->full_at - now > (TB_ICMP_ECHO_BURST - 1) * STEP_NS) return false;
  pace->full_at += STEP_NS;
  return true;
}

static bool sum_right(const tb_net_in *in, const uint8_t *icmp) {
  return in->len >= ICMP_HEAD && tb_net_sum_right(in, icmp);
}

uint32_t tb_icmp_echo(tb_icmp_pace *pace, uint64_t now, const tb_net_self *self, const uint8_t *f, const tb_net_in *in,
                      uint8_t reply[TB_ICMP_MOST]) {
  tb_mac from;
  const family *ip = family_of(self);
  const uint8_t *icmp = f + in->at;
  memcpy(from.b, f + 6, sizeof from.b);
  if (in->len > IP_MOST - tb_net_ip_len(self) || !sum_right(in, icmp) || icmp[0] != ip->echo || icmp[1]) return 0;
  if (!tb_mac_of_one(&from) || !may_answer(pace, now)) return 0;
  uint32_t at = tb_net_ip_head(reply, self, &from, &in->ip, ip->proto, HOPS, in->len), len = at + in->len;
  memcpy(reply + at, icmp, in->len);
  reply[at] = ip->reply;
  tb_net_icmp_sum(reply, self, at, in->len);
  if (len >= TB_ETHER_LEAST) return len;
  memset(reply + len, 0, TB_ETHER_LEAST - len);
  return TB_ETHER_LEAST;
}

/* The address in a header that came back. */
static tb_ip address(const family *ip, const uint8_t *p) {
  tb_ip out = TB_IP4(0);
  memcpy(ip == &four ? out.b + TB_IP4_AT : out.b, p, ip == &four ? 4 : 16);
  return out;
}

bool tb_icmp_narrow(const tb_net_self *self, const uint8_t *f, const tb_net_in *in, tb_ip *to, uint32_t *ip_mtu) {
  const family *ip = family_of(self);
  const uint8_t *icmp = f + in->at, *ours = icmp + ICMP_HEAD; /* the frame it is about: IP header and 8 bytes */
  if (in->len < (uint32_t)ICMP_HEAD + ip->head + TB_UDP_HEAD || !sum_right(in, icmp)) return false;
  if (icmp[0] != ip->narrow || icmp[1] != ip->narrow_code) return false;
  tb_ip from = address(ip, ours + ip->from_at);
  bool version = ip == &four ? ours[0] == ip->first : (ours[0] & 0xf0) == ip->first;
  if (!version || ours[ip->proto_at] != TB_PROTO_UDP || !tb_ip_equal(&from, &self->ip)) return false;
  uint32_t port = tb_get16(ours + ip->head);
  if (port < self->port || port - self->port >= self->ports) return false;
  *to = address(ip, ours + ip->to_at);
  *ip_mtu = ip == &four ? tb_get16(icmp + 6) : tb_get32(icmp + 4);
  return true;
}
