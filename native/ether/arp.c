/* arp.c - see neighbour_frames.h. ARP for IPv4 on Ethernet. */
#include "ether/neighbour_frames.h"
#include <string.h>

enum { TYPE = 0x0806, ARP_LEN = 28, OP = 6, FROM_MAC = 8, FROM_IP = 14, TO_MAC = 18, TO_IP = 24 };
enum { REQUEST = 1, REPLY = 2 };
static const uint8_t kind[] = {0, 1, 0x08, 0, 6, 4}; /* Ethernet, IPv4, lengths of their addresses */
static const tb_mac everybody = {{255, 255, 255, 255, 255, 255}};

bool tb_arp_read(const tb_net_self *self, const uint8_t *f, const tb_net_in *in, tb_neighbour_word *out) {
  const uint8_t *arp = f + in->at;
  tb_ip none = TB_IP4(0);
  if (in->len < ARP_LEN || memcmp(arp, kind, sizeof kind)) return false;
  if (memcmp(f, everybody.b, 6) && memcmp(f, self->mac.b, 6)) return false;
  uint32_t op = tb_get16(arp + OP);
  if (op != REQUEST && op != REPLY) return false;
  *out = (tb_neighbour_word){.about = none, .target = none, .told = true, .asks = op == REQUEST};
  memcpy(out->about.b + TB_IP4_AT, arp + FROM_IP, 4);
  memcpy(out->target.b + TB_IP4_AT, arp + TO_IP, 4);
  memcpy(out->mac.b, arp + FROM_MAC, 6);
  out->back = out->mac;
  return tb_mac_of_one(&out->mac);
}

static uint32_t make(uint8_t *f, const tb_net_self *self, uint16_t op, const tb_mac *to, const tb_mac *target,
                     const tb_ip *ip) {
  memset(f, 0, TB_ETHER_LEAST);
  memcpy(f, to->b, 6);
  memcpy(f + 6, self->mac.b, 6);
  uint8_t *arp = f + tb_net_ip_at(self);
  if (self->vlan) {
    tb_put16(f + 12, 0x8100);
    tb_put16(f + TB_ETHER_HEAD, self->vlan);
  }
  tb_put16(arp - 2, TYPE);
  memcpy(arp, kind, sizeof kind);
  tb_put16(arp + OP, op);
  memcpy(arp + FROM_MAC, self->mac.b, 6);
  memcpy(arp + FROM_IP, self->ip.b + TB_IP4_AT, 4);
  if (target) memcpy(arp + TO_MAC, target->b, 6);
  memcpy(arp + TO_IP, ip->b + TB_IP4_AT, 4);
  return TB_ETHER_LEAST;
}

uint32_t tb_arp_ask(uint8_t *f, const tb_net_self *self, const tb_mac *to, const tb_ip *ip) {
  return make(f, self, REQUEST, to ? to : &everybody, to, ip);
}

/* Also to one without an address yet, who asks whether ours is free. */
uint32_t tb_arp_answer(uint8_t *f, const tb_net_self *self, const tb_neighbour_word *asked) {
  return make(f, self, REPLY, &asked->back, &asked->back, &asked->about);
}

uint32_t tb_arp_announce(uint8_t *f, const tb_net_self *self) {
  return make(f, self, REQUEST, &everybody, NULL, &self->ip);
}
