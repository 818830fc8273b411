/* rx.c - rx_burst: mbufs from the device, looked through, handed out in place and freed in bulk.
 *
 * Every frame is either ours and goes to the stash, or is counted and freed at once (neighbours' questions and ping
 * after they were answered). wait fills the stash too, so that it can tell our frames from noise. From the stash frames
 * become leases. */
#include "plugins/dpdk/dpdk.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A call returns after so many bursts of the device, whatever they held: a flood of foreign frames must not keep it. */
enum { BURSTS = 16, AHEAD = 4, VLAN_TYPE = 0x8100, VLAN_NUMBER = 0xfff };

static void tell_rival(dpdk_link *l) {
  const tb_mac *m = tb_neighbours_rival(l->neighbours);
  char ip[TB_IP_TEXT];
  if (!m || l->told_rival) return;
  l->told_rival = true;
  dpdk_event(l, 40, "dpdk: our address %s is also that of %02x:%02x:%02x:%02x:%02x:%02x: give every rank one of its "
             "own with TAILBOUND_IP, and the interface under a device none", tb_ip_text(&l->self.ip, ip), m->b[0],
             m->b[1], m->b[2], m->b[3], m->b[4], m->b[5]);
}

/* All of a short frame in one piece: the ARP, ND or ICMP message and what precedes it. */
static const uint8_t *whole(struct rte_mbuf *m, const tb_net_in *in, uint8_t copy[TB_ICMP_MOST]) {
  uint32_t len = in->at + in->len;
  return len <= TB_ICMP_MOST ? rte_pktmbuf_read(m, 0, len, copy) : NULL;
}

static void hear_neighbour(dpdk_link *l, struct rte_mbuf *m, const tb_net_in *in) {
  uint8_t copy[TB_ICMP_MOST], reply[TB_NEIGHBOUR_MOST];
  const uint8_t *f = whole(m, in, copy);
  dpdk_add(&l->n.neighbours_in, 1);
  if (!f) return;
  if (!tb_net_sum_right(in, f + in->at)) { /* ARP has none */
    dpdk_add(&l->n.rx_bad_sum, 1);
    return;
  }
  uint32_t len = tb_neighbours_hear(l->neighbours, f, in, reply);
  if (len) dpdk_tx_raw(l, reply, len);
  tell_rival(l);
}

static void tell_narrow(dpdk_link *l, const tb_ip *to, uint32_t ip_mtu, const tb_ip *by) {
  if (l->told_narrow) return;
  l->told_narrow = true;
  char carries[40] = "less than ours", remedy[40] = "a smaller frame", by_text[TB_IP_TEXT], to_text[TB_IP_TEXT];
  uint32_t heads = tb_net_ip_len(&l->self) + TB_UDP_HEAD;
  if (ip_mtu > heads) {
    snprintf(carries, sizeof carries, "at most %u bytes", ip_mtu);
    snprintf(remedy, sizeof remedy, "%u", ip_mtu - heads);
  }
  dpdk_event(l, 40, "dpdk: %s says that the way to %s carries IP packets of %s, and drops our frames: set "
             "TAILBOUND_MTU to %s at every rank", tb_ip_text(by, by_text), tb_ip_text(to, to_text), carries, remedy);
}

/* ICMP to us counts as foreign, what is answered too. */
static void hear_icmp(dpdk_link *l, struct rte_mbuf *m, const tb_net_in *in) {
  uint8_t copy[TB_ICMP_MOST], reply[TB_ICMP_MOST];
  uint32_t ip_mtu;
  tb_ip to;
  const uint8_t *f = whole(m, in, copy);
  if (!f) return;
  uint32_t answer_len = tb_icmp_echo(&l->pace, dpdk_now(), &l->self, f, in, reply);
  if (answer_len)
    dpdk_tx_raw(l, reply, answer_len);
  else if (tb_icmp_narrow(&l->self, f, in, &to, &ip_mtu))
    tell_narrow(l, &to, ip_mtu, &in->ip);
}

static void tell_damaged(dpdk_link *l, bool truncated) {
  const char *what = truncated ? "are shorter than they say, or several made one" : "have a wrong sum";
  if (l->told_damaged) return;
  l->told_damaged = true;
  dpdk_event(l, 30, "dpdk: frames to %s %s, and are dropped: a kernel at the other end of a veth leaves cutting and "
             "summing to a device that never comes; run there: ethtool -K IFACE tx off", l->port->device.name, what);
}

/* The payload of a frame that came in pieces. */
static const uint8_t *flatten(dpdk_link *l, const struct rte_mbuf *m, const tb_net_in *in) {
  uint8_t *out = l->flat + (size_t)(l->flat_next++ % (DPDK_LEASES + DPDK_RX_BURST)) * l->caps.mtu;
  dpdk_add(&l->n.rx_linearised, 1);
  const uint8_t *p = rte_pktmbuf_read(m, in->at, in->len, out);
  return p;
}

static bool sum_wrong(const dpdk_link *l, const struct rte_mbuf *m) {
  return l->port->rx_sum && ((m->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK) == RTE_MBUF_F_RX_L4_CKSUM_BAD ||
                             (m->ol_flags & RTE_MBUF_F_RX_IP_CKSUM_MASK) == RTE_MBUF_F_RX_IP_CKSUM_BAD);
}

/* Is the sum ours to check? Over IPv4 without offload it is not looked at: every sender seals its payload then. Nor are
 * those looked at, for the same reason, that a kernel left to a device which never came. */
static bool sum_untold(const dpdk_link *l, const struct rte_mbuf *m, const tb_net_in *in) {
  if ((m->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK) != RTE_MBUF_F_RX_L4_CKSUM_UNKNOWN) return false;
  return l->caps.csum || (!tb_ip_is4(&l->self.ip) && !tb_net_unfinished(in));
}

static bool damaged(dpdk_link *l, bool truncated) {
  dpdk_add(truncated ? &l->n.rx_truncated : &l->n.rx_bad_sum, 1);
  tell_damaged(l, truncated);
  return false;
}

static bool take_frame(dpdk_link *l, struct rte_mbuf *m, const tb_net_in *in, dpdk_frame *out) {
  if (in->len > l->caps.mtu) return damaged(l, true); /* nobody of ours sends it: several that were not cut */
  if (sum_wrong(l, m)) return damaged(l, false);
  bool in_place = in->at + in->len <= m->data_len;
  uint32_t flat = l->flat_next;
  const uint8_t *data = in_place ? rte_pktmbuf_mtod_offset(m, const uint8_t *, in->at) : flatten(l, m, in);
  if (!data || (sum_untold(l, m, in) && !tb_net_sum_right(in, data))) {
    l->flat_next = flat; /* a flood of damaged ones must not reach round to what is leased */
    return damaged(l, !data);
  }
  *out = (dpdk_frame){m, data, in->len, in->ip};
  return true;
}

/* The VLAN tag that the device took out. */
static int32_t tag_of(const struct rte_mbuf *m) {
  return m->ol_flags & RTE_MBUF_F_RX_VLAN_STRIPPED ? m->vlan_tci : TB_NET_UNTAGGED;
}

static void tell_tag(dpdk_link *l, uint16_t vlan) {
  const char *name = l->port->device.name;
  char ours[40] = "no VLAN";
  if (!vlan) {
    dpdk_event(l, 30, "dpdk: frames to us come to %s without the tag of VLAN %u: their sender has another "
               "TAILBOUND_VLAN, or a device takes tags out: run ethtool -K IFACE rxvlan off here and, on a veth, txvlan "
               "off at the other end", name, l->self.vlan);
    return;
  }
  if (l->self.vlan) snprintf(ours, sizeof ours, "VLAN %u", l->self.vlan);
  dpdk_event(l, 30, "dpdk: frames to us come to %s with the tag of VLAN %u, and are dropped: this rank has %s: set "
             "TAILBOUND_VLAN here and at their sender to what their networks have", name, vlan, ours);
}

/* Would it be ours if it had our tag? Ranks that disagree about it hear nothing of each other, and some devices take
 * tags out and say so to nobody. */
static void look_for_tag(dpdk_link *l, const uint8_t *f, uint32_t have, uint32_t len, int32_t tag) {
  tb_net_self other = l->self;
  tb_net_in in;
  if (l->told_tag) return;
  if (tag != TB_NET_UNTAGGED)
    other.vlan = (uint16_t)tag & VLAN_NUMBER;
  else
    other.vlan = have >= TB_ETHER_HEAD + 2 && tb_get16(f + 12) == VLAN_TYPE ? tb_get16(f + 14) & VLAN_NUMBER : 0;
  if (other.vlan == l->self.vlan || tb_net_parse(f, have, len, tag, &other, &in) != TB_NET_FRAME) return;
  l->told_tag = true;
  tell_tag(l, other.vlan);
}

/* Ours, or counted. */
static bool sort(dpdk_link *l, struct rte_mbuf *m, dpdk_frame *out) {
  uint8_t copy[TB_NET_HEAD_MAX];
  tb_net_in in;
  const uint8_t *f = rte_pktmbuf_mtod(m, const uint8_t *);
  uint32_t have = m->data_len;
  if (m->nb_segs > 1 && have < sizeof copy) { /* headers in one piece */
    have = m->pkt_len < sizeof copy ? m->pkt_len : sizeof copy;
    f = rte_pktmbuf_read(m, 0, have, copy);
    if (!f) return damaged(l, true);
  }
  switch (tb_net_parse(f, have, m->pkt_len, tag_of(m), &l->self, &in)) {
  case TB_NET_FRAME: return take_frame(l, m, &in, out);
  case TB_NET_ARP:
  case TB_NET_ND: hear_neighbour(l, m, &in); return false;
  case TB_NET_TRUNCATED: return damaged(l, true);
  case TB_NET_BAD_SUM: dpdk_add(&l->n.rx_bad_sum, 1); return false;
  case TB_NET_ICMP: hear_icmp(l, m, &in); break;
  case TB_NET_FOREIGN: look_for_tag(l, f, have, m->pkt_len, tag_of(m)); break;
  }
  dpdk_add(&l->n.rx_foreign, 1);
  return false;
}

uint32_t dpdk_rx_fill(dpdk_link *l) {
  struct rte_mbuf *m[DPDK_RX_BURST], *not_ours[DPDK_RX_BURST];
  uint32_t others = 0, n = rte_eth_rx_burst(l->port->id, 0, m, DPDK_RX_BURST);
  l->stashed = l->stash_at = 0;
  if (!n) return 0;
  dpdk_add(&l->n.rx_calls, 1);
  for (uint32_t i = 0; i < AHEAD && i < n; i++) rte_prefetch0(rte_pktmbuf_mtod(m[i], void *));
  for (uint32_t i = 0; i < n; i++) {
    if (i + AHEAD < n) rte_prefetch0(rte_pktmbuf_mtod(m[i + AHEAD], void *));
    if (sort(l, m[i], &l->stash[l->stashed]))
      l->stashed++;
    else
      not_ours[others++] = m[i];
  }
  if (others) rte_pktmbuf_free_bulk(not_ours, others);
  if (l->stashed) l->idle_since = 0;
  return n;
}

/* From the stash to the caller. */
static int hand_out(dpdk_link *l, tb_rx *frames, int n) {
  uint64_t bytes = 0;
  int k = 0;
  while (k < n && l->stash_at < l->stashed && l->leases < DPDK_LEASES) {
    const dpdk_frame *f = &l->stash[l->stash_at++];
    l->lease[l->leases] = f->m;
    l->from[l->leases] = f->ip;
    frames[k++] = (tb_rx){f->data, f->len, l->leases++};
    bytes += f->len;
  }
  dpdk_add(&l->n.rx_frames, (uint64_t)k);
  dpdk_add(&l->n.rx_bytes, bytes);
  return k;
}

int dpdk_rx_burst(tb_link *link, uint32_t lane, tb_rx *frames, int n) {
  dpdk_link *l = dpdk_of(link);
  if (lane || n < 0) return -EINVAL;
  int rc = dpdk_thread_enter();
  if (rc) return rc;
  if (tb_neighbours_next(l->neighbours) != UINT64_MAX) dpdk_peers_timers(l, dpdk_now());
  int k = hand_out(l, frames, n);
  for (int i = 0; i < BURSTS && k < n && l->leases < DPDK_LEASES && dpdk_rx_fill(l); i++)
    k += hand_out(l, frames + k, n - k);
  return k;
}

void dpdk_rx_release(tb_link *link, uint32_t lane) {
  dpdk_link *l = dpdk_of(link);
  if (lane || !l->leases) return;
  rte_pktmbuf_free_bulk(l->lease, l->leases);
  l->leases = 0;
}

bool dpdk_came_from(const tb_link *link, const tb_rx *frame, uint32_t peer) {
  const dpdk_link *l = dpdk_of_const(link);
  if (peer >= l->peers_cap || !l->peers[peer].used || frame->slot >= DPDK_LEASES) return false;
  return tb_ip_equal(&l->from[frame->slot], &l->peers[peer].ip);
}

void dpdk_rx_drop_all(dpdk_link *l) {
  dpdk_rx_release((tb_link *)l, 0);
  while (l->stash_at < l->stashed) rte_pktmbuf_free(l->stash[l->stash_at++].m);
}
