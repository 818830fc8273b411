/* nd.c - see neighbour_frames.h. Neighbour solicitations and advertisements; of routers nothing is heard: the gateway
 * is given. A hop limit of 255 says that no router passed it on, so that only who is on our network can speak. */
#include "ether/neighbour_frames.h"
#include <string.h>

enum { SOLICIT = 135, ADVERTISE = 136, FLAGS = 4, TARGET = 8, OPTIONS = 24, WHOLE = 32, HOPS = 255 };
enum { SOLICITED = 0x40, OVERRIDE = 0x20, SOURCE_MAC = 1, TARGET_MAC = 2 };
static const tb_ip nobody;

/* The MAC that an option of this type tells. False: an option is not well formed. */
static bool options(const uint8_t *p, uint32_t len, uint8_t type, tb_mac *mac, bool *told) {
  while (len) {
    uint32_t size = len < 2 ? 0 : p[1] * 8u;
    if (!size || size > len) return false;
    if (p[0] == type && !*told) {
      memcpy(mac->b, p + 2, 6);
      *told = true;
    }
    p += size;
    len -= size;
  }
  return !*told || tb_mac_of_one(mac);
}

static bool read_solicit(const uint8_t *nd, const tb_net_in *in, const tb_ip *to, tb_neighbour_word *out) {
  tb_ip group = tb_ip6_solicited(&out->target);
  bool has_address = !tb_ip_equal(&in->ip, &nobody);
  out->asks = true;
  out->about = in->ip;
  if (!options(nd + OPTIONS, in->len - OPTIONS, SOURCE_MAC, &out->mac, &out->told)) return false;
  if (out->told) out->back = out->mac;
  if (has_address) return tb_ip_of_host(&in->ip);
  return !out->told && tb_ip_equal(to, &group); /* asks whether the address is free */
}

static bool read_advertise(const uint8_t *nd, const tb_net_in *in, const tb_ip *to, tb_neighbour_word *out) {
  out->about = out->target;
  out->yields = !(nd[FLAGS] & OVERRIDE);
  if (!options(nd + OPTIONS, in->len - OPTIONS, TARGET_MAC, &out->mac, &out->told)) return false;
  return tb_ip_of_host(&in->ip) && (to->b[0] != 0xff || !(nd[FLAGS] & SOLICITED));
}

bool tb_nd_read(const uint8_t *f, const tb_net_in *in, tb_neighbour_word *out) {
  const uint8_t *nd = f + in->at, *ip = nd - TB_IP6_HEAD; /* tb_net_parse takes no other headers between them */
  tb_ip to;
  if (in->len < OPTIONS || ip[7] != HOPS || nd[1]) return false;
  memset(out, 0, sizeof *out);
  memcpy(to.b, ip + 24, sizeof to.b);
  memcpy(out->target.b, nd + TARGET, sizeof out->target.b);
  memcpy(out->back.b, f + 6, sizeof out->back.b);
  if (!tb_ip_of_host(&out->target) || tb_ip_is4(&out->target) || !tb_mac_of_one(&out->back)) return false;
  return nd[0] == SOLICIT ? read_solicit(nd, in, &to, out) : read_advertise(nd, in, &to, out);
}

static uint32_t make(uint8_t *f, const tb_net_self *self, const tb_mac *mac, const tb_ip *to, uint8_t type,
                     uint8_t flags, const tb_ip *target) {
  uint32_t at = tb_net_ip_head(f, self, mac, to, TB_PROTO_ICMP6, HOPS, WHOLE);
  uint8_t *nd = f + at;
  memset(nd, 0, WHOLE);
  nd[0] = type;
  nd[FLAGS] = flags;
  memcpy(nd + TARGET, target->b, sizeof target->b);
  nd[OPTIONS] = type == SOLICIT ? SOURCE_MAC : TARGET_MAC;
  nd[OPTIONS + 1] = 1; /* times 8 bytes */
  memcpy(nd + OPTIONS + 2, self->mac.b, 6);
  tb_net_icmp_sum(f, self, at, WHOLE);
  return at + WHOLE;
}

uint32_t tb_nd_ask(uint8_t *f, const tb_net_self *self, const tb_mac *to, const tb_ip *ip) {
  tb_ip group = tb_ip6_solicited(ip);
  tb_mac mac = tb_mac_of_group(&group);
  return make(f, self, to ? to : &mac, to ? ip : &group, SOLICIT, 0, ip);
}

/* Who has no address yet hears it with all others. */
uint32_t tb_nd_answer(uint8_t *f, const tb_net_self *self, const tb_neighbour_word *asked) {
  if (tb_ip_equal(&asked->about, &nobody)) return tb_nd_announce(f, self);
  return make(f, self, &asked->back, &asked->about, ADVERTISE, SOLICITED | OVERRIDE, &self->ip);
}

uint32_t tb_nd_announce(uint8_t *f, const tb_net_self *self) {
  tb_mac mac = tb_mac_of_group(&tb_ip6_all_nodes);
  return make(f, self, &mac, &tb_ip6_all_nodes, ADVERTISE, OVERRIDE, &self->ip);
}
