/* icmp.c - see icmp.h. */
#include "ether/icmp.h"
#include <string.h>

enum { ICMP_HEAD = 8, ECHO_REPLY = 0, UNREACHABLE = 3, ECHO = 8, FRAGMENTATION_NEEDED = 4, PROTO_ICMP = 1,
       PROTO_UDP = 17 };
enum { AT_IP = TB_ETHER_HEAD, AT_ICMP = AT_IP + TB_IP4_HEAD };
static const uint64_t STEP_NS = 1000000000 / TB_ICMP_ECHO_RATE;

static bool may_answer(tb_icmp_pace *pace, uint64_t now) {
  if (pace->full_at < now) pace->full_at = now;
  if (pace->full_at - now > (TB_ICMP_ECHO_BURST - 1) * STEP_NS) return false;
  pace->full_at += STEP_NS;
  return true;
}

static bool sum_right(const uint8_t *icmp, uint32_t len) { return len >= ICMP_HEAD && tb_net_sum(icmp, len) == 0xffff; }

static void head(uint8_t *f, const tb_net_self *self, const uint8_t *to_mac, uint32_t to, uint32_t len) {
  memset(f, 0, AT_ICMP);
  memcpy(f, to_mac, 6);
  memcpy(f + 6, self->mac.b, 6);
  tb_put16(f + 12, 0x0800);
  f[AT_IP] = 4 << 4 | TB_IP4_HEAD / 4;
  tb_put16(f + AT_IP + 2, TB_IP4_HEAD + len);
  f[AT_IP + 8] = 64;
  f[AT_IP + 9] = PROTO_ICMP;
  tb_put32(f + AT_IP + 12, self->ip);
  tb_put32(f + AT_IP + 16, to);
  tb_put16(f + AT_IP + 10, (uint16_t)~tb_net_sum(f + AT_IP, TB_IP4_HEAD));
}

uint32_t tb_icmp_echo(tb_icmp_pace *pace, uint64_t now, const tb_net_self *self, const uint8_t *f, const tb_net_in *in,
                      uint8_t reply[TB_ICMP_MOST]) {
  tb_mac from;
  const uint8_t *icmp = f + in->at;
  memcpy(from.b, f + 6, sizeof from.b);
  if (in->len > TB_ICMP_MOST - AT_ICMP || !sum_right(icmp, in->len) || icmp[0] != ECHO || icmp[1]) return 0;
  if (!tb_mac_of_one(&from) || !may_answer(pace, now)) return 0;
  head(reply, self, from.b, in->ip, in->len);
  memcpy(reply + AT_ICMP, icmp, in->len);
  reply[AT_ICMP] = ECHO_REPLY;
  tb_put16(reply + AT_ICMP + 2, 0);
  tb_put16(reply + AT_ICMP + 2, (uint16_t)~tb_net_sum(reply + AT_ICMP, in->len));
  uint32_t len = AT_ICMP + in->len;
  if (len >= TB_ETHER_LEAST) return len;
  memset(reply + len, 0, TB_ETHER_LEAST - len);
  return TB_ETHER_LEAST;
}

bool tb_icmp_narrow(const tb_net_self *self, const uint8_t *f, const tb_net_in *in, uint32_t *to, uint32_t *ip_mtu) {
  const uint8_t *icmp = f + in->at, *ours = icmp + ICMP_HEAD; /* the frame it is about: IP header and 8 bytes */
  if (in->len < ICMP_HEAD + TB_IP4_HEAD + TB_UDP_HEAD || !sum_right(icmp, in->len)) return false;
  if (icmp[0] != UNREACHABLE || icmp[1] != FRAGMENTATION_NEEDED) return false;
  if (ours[0] != (4 << 4 | TB_IP4_HEAD / 4) || ours[9] != PROTO_UDP || tb_get32(ours + 12) != self->ip) return false;
  uint32_t port = tb_get16(ours + TB_IP4_HEAD);
  if (port < self->port || port - self->port >= self->ports) return false;
  *to = tb_get32(ours + 16);
  *ip_mtu = tb_get16(icmp + 6);
  return true;
}
