/* flow.c - rules for a device that spreads what arrives over queues, or shares it with others: UDP to our address and
 * ports goes to our queue. A link has one queue and asks for no spreading (mq_mode none), so that a device of its own
 * needs no rule. Where rules are offered they are made all the same: they hold where somebody else's spreading does
 * not end, as with a switch inside the NIC. Most drivers refuse them, which changes nothing; how many there are says
 * describe. */
#include "plugins/dpdk/dpdk.h"
#include <string.h>

enum { QUEUE = 0 };

static void match(dpdk_flow_rule *r, uint32_t at, enum rte_flow_item_type type, const void *spec, const void *mask) {
  r->pattern[at] = (struct rte_flow_item){.type = type, .spec = spec, .mask = mask};
}

static uint32_t match_ip(dpdk_flow_rule *r, uint32_t at, const tb_ip *ip) {
  if (tb_ip_is4(ip)) {
    memcpy(&r->ip4.hdr.dst_addr, ip->b + TB_IP4_AT, 4);
    memset(&r->ip4_mask.hdr.dst_addr, 0xff, 4);
    match(r, at, RTE_FLOW_ITEM_TYPE_IPV4, &r->ip4, &r->ip4_mask);
  } else {
    memcpy(&r->ip6.hdr.dst_addr, ip->b, 16);
    memset(&r->ip6_mask.hdr.dst_addr, 0xff, 16);
    match(r, at, RTE_FLOW_ITEM_TYPE_IPV6, &r->ip6, &r->ip6_mask);
  }
  return at + 1;
}

void dpdk_flow_make(dpdk_flow_rule *r, const tb_net_self *self, uint16_t port, uint16_t queue) {
  uint32_t at = 0;
  memset(r, 0, sizeof *r);
  r->attr.ingress = 1;
  match(r, at++, RTE_FLOW_ITEM_TYPE_ETH, NULL, NULL);
  if (self->vlan) {
    tb_put16((uint8_t *)&r->vlan.hdr.vlan_tci, self->vlan);
    tb_put16((uint8_t *)&r->vlan_mask.hdr.vlan_tci, 0xfff);
    match(r, at++, RTE_FLOW_ITEM_TYPE_VLAN, &r->vlan, &r->vlan_mask);
  }
  at = match_ip(r, at, &self->ip);
  tb_put16((uint8_t *)&r->udp.hdr.dst_port, port);
  tb_put16((uint8_t *)&r->udp_mask.hdr.dst_port, 0xffff);
  match(r, at++, RTE_FLOW_ITEM_TYPE_UDP, &r->udp, &r->udp_mask);
  match(r, at, RTE_FLOW_ITEM_TYPE_END, NULL, NULL);
  r->queue.index = queue;
  r->action[0] = (struct rte_flow_action){.type = RTE_FLOW_ACTION_TYPE_QUEUE, .conf = &r->queue};
  r->action[1] = (struct rte_flow_action){.type = RTE_FLOW_ACTION_TYPE_END};
}

static struct rte_flow *add(const dpdk_link *l, uint16_t port) {
  struct rte_flow_error why;
  dpdk_flow_rule r;
  dpdk_flow_make(&r, &l->self, port, QUEUE);
  if (rte_flow_validate(l->port->id, &r.attr, r.pattern, r.action, &why)) return NULL;
  return rte_flow_create(l->port->id, &r.attr, r.pattern, r.action, &why);
}

void dpdk_flow_add(dpdk_link *l) {
  for (uint32_t i = 0; i < l->flows; i++) {
    struct rte_flow *rule = add(l, (uint16_t)(l->self.port + i));
    if (!rule) {
      dpdk_flow_remove(l);
      return;
    }
    l->rule[l->rules++] = rule;
  }
}

void dpdk_flow_remove(dpdk_link *l) {
  struct rte_flow_error why;
  while (l->rules) (void)rte_flow_destroy(l->port->id, l->rule[--l->rules], &why);
}
