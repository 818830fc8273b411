/* listen.c - what a device is told so that it hands us all that is ours. Many take only frames to their own MAC and
 * to everybody: with IPv6 those who look for us call a group instead. And a NIC's virtual functions take tagged
 * frames only of VLANs they were told.
 *
 * An interface of the kernel's under the device (af_packet, af_xdp) hears a group as long as a packet socket holds
 * it: it is forgotten with our process, however that ends. Where nothing of the kind is offered, what is needed may
 * come all the same (veth, memif, ring): it is told only where that is not known. */
#include "plugins/dpdk/dpdk.h"
#include <linux/if_packet.h>
#include <sys/socket.h>
#include <unistd.h>

enum { GROUPS = 2 };

static bool join_at_interface(dpdk_link *l, const tb_mac *group) {
  const dpdk_port *p = l->port;
  if (l->group_fd < 0) l->group_fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0); /* protocol 0: it gets no frames */
  for (int i = 0; l->group_fd >= 0 && i < GROUPS; i++) {
    struct packet_mreq want = {.mr_ifindex = (int)p->ifindex, .mr_type = PACKET_MR_MULTICAST, .mr_alen = 6};
    memcpy(want.mr_address, group[i].b, 6);
    if (setsockopt(l->group_fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &want, sizeof want)) return false;
  }
  return l->group_fd >= 0;
}

static bool join_at_device(const dpdk_link *l, const tb_mac *group) {
  struct rte_ether_addr list[GROUPS];
  for (int i = 0; i < GROUPS; i++) memcpy(list[i].addr_bytes, group[i].b, 6);
  return !rte_eth_dev_set_mc_addr_list(l->port->id, list, GROUPS) || !rte_eth_allmulticast_enable(l->port->id);
}

static void join_groups(dpdk_link *l) {
  const dpdk_device *d = &l->port->device;
  tb_ip solicited = tb_ip6_solicited(&l->self.ip);
  tb_mac group[GROUPS] = {tb_mac_of_group(&solicited), tb_mac_of_group(&tb_ip6_all_nodes)};
  if (*d->iface ? join_at_interface(l, group) : join_at_device(l, group)) return;
  if (!d->point_to_point)
    dpdk_event(l, 30, "dpdk: %s cannot be told to listen to multicast: who does not know our MAC may not find us; ranks "
               "on the dpdk link know it", d->name);
}

/* Without the filter a physical function takes all VLANs: a refusal costs nothing there. */
static void join_vlan(dpdk_link *l) {
  uint16_t id = l->port->id;
  int rc = rte_eth_dev_set_vlan_offload(id, RTE_ETH_VLAN_FILTER_OFFLOAD);
  if (!rc) rc = rte_eth_dev_vlan_filter(id, l->self.vlan, 1);
  l->filters_vlan = !rc;
  if (rc) (void)rte_eth_dev_set_vlan_offload(id, 0);
}

void dpdk_listen(dpdk_link *l) {
  if (!tb_ip_is4(&l->self.ip)) join_groups(l);
  if (l->self.vlan) join_vlan(l);
}

void dpdk_listen_no_more(dpdk_link *l) {
  uint16_t id = l->port->id;
  if (l->group_fd >= 0) close(l->group_fd);
  l->group_fd = -1;
  if (!tb_ip_is4(&l->self.ip) && !*l->port->device.iface && rte_eth_dev_set_mc_addr_list(id, NULL, 0))
    (void)rte_eth_allmulticast_disable(id);
  if (!l->filters_vlan) return;
  (void)rte_eth_dev_vlan_filter(id, l->self.vlan, 0);
  (void)rte_eth_dev_set_vlan_offload(id, 0);
  l->filters_vlan = false;
}
