/* rx.c - rx_burst: completions in batches, frames handed out where the device put them, buffers posted again in bulk. */
#include "plugins/verbs/verbs.h"
#include <errno.h>
#include <string.h>

/* A call returns after so many batches, whatever they held: a flood of foreign frames must not keep it. */
enum { BATCHES = 16, REFILL = 64, AHEAD = 4, V4_AT = 20 };

void verbs_rx_prepare(verbs_link *l) {
  for (uint32_t i = 0; i < l->rx.count; i++) {
    l->rsge[i] = (struct ibv_sge){.addr = (uintptr_t)verbs_slab_at(&l->rx, i) + VERBS_LEAD - VERBS_GRH,
                                  .length = VERBS_GRH + l->port_mtu, .lkey = l->rx.mr->lkey};
    l->rwr[i] = (struct ibv_recv_wr){.wr_id = i, .sg_list = &l->rsge[i], .num_sge = 1};
    l->free_slot[i] = l->rx.count - 1 - i;
  }
  l->free_count = l->rx.count;
}

int verbs_rx_post(verbs_link *l) {
  struct ibv_recv_wr *bad = NULL;
  uint32_t n = l->free_count, posted = n;
  if (!n) return 0;
  for (uint32_t i = 0; i < n; i++) l->rwr[l->free_slot[i]].next = i + 1 < n ? &l->rwr[l->free_slot[i + 1]] : NULL;
  int rc = ibv_post_srq_recv(l->srq, &l->rwr[l->free_slot[0]], &bad);
  verbs_add(&l->n.rx_refills, 1);
  if (rc)
    for (posted = 0; posted < n && bad != &l->rwr[l->free_slot[posted]]; posted++) continue;
  l->posted += posted;
  l->free_count -= posted;
  memmove(l->free_slot, l->free_slot + posted, l->free_count * sizeof *l->free_slot);
  return -rc;
}

static void refill(verbs_link *l) {
  if (l->free_count >= REFILL || l->posted < l->rx.count / 2) (void)verbs_rx_post(l); /* what is left: next time */
}

/* The sender's address, in front of the frame: an IPv4 header in the last half of those 40 bytes, or a GRH, which is an
 * IPv6 header's like. False = it is of the other kind, or there is none. */
static bool sender(const verbs_link *l, uint32_t slot, uint8_t gid[16]) {
  const uint8_t *h = verbs_slab_at(&l->rx, slot) + VERBS_LEAD - VERBS_GRH;
  if (!l->has_grh[slot]) return false;
  if (l->at.ethernet && verbs_gid_is_v4(l->gid)) {
    if (h[V4_AT] != 0x45) return false;
    memcpy(gid, l->gid, 12);
    memcpy(gid + 12, h + V4_AT + 12, 4);
    return true;
  }
  if (h[0] >> 4 != 6) return false;
  memcpy(gid, h + 8, 16);
  return true;
}

/* Ours, or counted. */
static bool sort(verbs_link *l, const struct ibv_wc *c, uint32_t slot) {
  uint8_t gid[16];
  if (c->status != IBV_WC_SUCCESS) {
    atomic_store(&l->broken, true);
    return false;
  }
  l->has_grh[slot] = (c->wc_flags & IBV_WC_GRH) != 0;
  l->slid[slot] = c->slid;
  if (c->byte_len > VERBS_GRH + l->caps.mtu) { /* nobody of ours sends it */
    verbs_add(&l->n.rx_truncated, 1);
    return false;
  }
  if (c->byte_len > VERBS_GRH && (!l->at.ethernet || sender(l, slot, gid))) return true;
  verbs_add(&l->n.rx_foreign, 1);
  return false;
}

bool verbs_rx_fill(verbs_link *l) {
  struct ibv_wc c[VERBS_POLL];
  int n = ibv_poll_cq(l->rx_cq, VERBS_POLL, c);
  l->stashed = l->stash_at = 0;
  if (n < 0) atomic_store(&l->broken, true);
  if (n <= 0) return false;
  verbs_add(&l->n.rx_calls, 1);
  l->posted -= (uint32_t)n;
  for (int i = 0; i < n; i++) {
    uint32_t slot = (uint32_t)c[i].wr_id;
    if (i + AHEAD < n && c[i + AHEAD].wr_id < l->rx.count)
      __builtin_prefetch(verbs_slab_at(&l->rx, (uint32_t)c[i + AHEAD].wr_id) + VERBS_LEAD);
    if (sort(l, &c[i], slot)) l->stash[l->stashed++] = (verbs_got){slot, c[i].byte_len - VERBS_GRH};
    else l->free_slot[l->free_count++] = slot;
  }
  if (l->stashed) l->idle_since = 0;
  refill(l);
  return true;
}

/* From the stash to the caller. */
static int hand_out(verbs_link *l, tb_rx *frames, int n) {
  uint64_t bytes = 0;
  int k = 0;
  while (k < n && l->stash_at < l->stashed) {
    verbs_got g = l->stash[l->stash_at++];
    l->lease[l->leases++] = g.slot;
    frames[k++] = (tb_rx){verbs_slab_at(&l->rx, g.slot) + VERBS_LEAD, g.len, g.slot};
    bytes += g.len;
  }
  verbs_add(&l->n.rx_frames, (uint64_t)k);
  verbs_add(&l->n.rx_bytes, bytes);
  return k;
}

int verbs_rx_burst(tb_link *link, uint32_t lane, tb_rx *frames, int n) {
  verbs_link *l = verbs_of(link);
  if (lane || n < 0) return -EINVAL;
  int k = hand_out(l, frames, n);
  for (int i = 0; i < BATCHES && k < n && verbs_rx_fill(l); i++) k += hand_out(l, frames + k, n - k);
  return k;
}

void verbs_rx_release(tb_link *link, uint32_t lane) {
  verbs_link *l = verbs_of(link);
  if (lane) return;
  memcpy(l->free_slot + l->free_count, l->lease, l->leases * sizeof *l->lease);
  l->free_count += l->leases;
  l->leases = 0;
  refill(l);
}

bool verbs_came_from(const tb_link *link, const tb_rx *frame, uint32_t peer) {
  const verbs_link *l = verbs_of_const(link);
  uint8_t gid[16];
  if (peer >= l->peers_cap || !l->peers[peer].route || frame->slot >= l->rx.count) return false;
  if (sender(l, frame->slot, gid)) return !memcmp(gid, l->peers[peer].gid, 16);
  return !l->at.ethernet && l->slid[frame->slot] == l->peers[peer].lid;
}
