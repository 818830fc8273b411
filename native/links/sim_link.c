/* sim_link.c - the link interface of a simulated endpoint, but for sending (sim_tx.c). Leases can be overwritten on
 * release; wait() never sleeps, because only the network's owner moves the time. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "links/sim_internal.h"

#define BURST 32
#define POISON 0xDB
#define NO_ENDPOINT UINT32_MAX

static int refuse(const tb_link_cfg *cfg, int rc, const char *what, uint32_t id) {
  if (cfg->error && cfg->error_len) snprintf(cfg->error, cfg->error_len, what, id);
  return rc;
}

static int sim_open(const tb_link_cfg *cfg, tb_link **out) {
  const tb_sim_port *at = cfg->context;
  if (!at || !at->net) return refuse(cfg, -EINVAL, "the sim link needs a simulated network (context %u)", 0);
  tb_sim *net = at->net;
  if (at->endpoint >= net->n) return refuse(cfg, -EINVAL, "the simulated network has no endpoint %u", at->endpoint);
  tb_link *e = &net->ends[at->endpoint];
  if (e->open) return refuse(cfg, -EBUSY, "simulated endpoint %u is open already; close it first", e->id);
  uint32_t peers_n = cfg->peers ? cfg->peers : net->n;
  uint32_t *peers = malloc(peers_n * sizeof *peers);
  if (!peers) return -ENOMEM;
  memset(peers, 0xff, peers_n * sizeof *peers);
  e->peers = peers;
  e->peers_n = peers_n;
  e->mtu = (uint32_t)(cfg->mtu && cfg->mtu < net->mtu ? cfg->mtu : net->mtu);
  e->caps = (tb_link_caps){.mtu = e->mtu, .lanes = 1, .ref = (tb_ref_kind)net->ref, .csum = net->csum != 0,
                           .rx_buffer = net->rx_buffer, .rx_parts = 1, .burst = BURST, .train = 1};
  if (net->ref == TB_REF_PROMPT) { /* a full ring at the default rate, then the completion */
    e->caps.quiesce_ns = net->tx_ring * tb_sim_serialise_ns(net->defaults.rate, e->mtu);
    if (net->reap_delay != TB_SIM_NEVER) e->caps.quiesce_ns += net->reap_delay;
  }
  /* without a checksum it cannot notice that a frame was cut */
  e->stats = (tb_link_stats){.rx_truncated = net->csum ? 0 : TB_NONE, .rx_foreign = TB_NONE, .rx_nobuf = TB_NONE,
                             .tx_errors = TB_NONE};
  e->refs = e->refs_done = e->refs_told = 0;
  e->tx_news = e->tx_news_owner = 0;
  e->refused = false;
  atomic_store(&e->woken, false);
  e->open = true;
  *out = e;
  return 0;
}

/* As with a socket, accepted copies still leave; referred payloads must not be read, their memory is about to go. */
static void sim_close(tb_link *e) {
  if (!e) return;
  tb_sim_discard(e, false);
  tb_sim_fifo_free(e->net, &e->ring);
  tb_sim_fifo_free(e->net, &e->leased);
  e->ring_bytes = 0;
  free(e->peers);
  free(e->regions);
  free(e->done);
  e->peers = NULL;
  e->regions = NULL;
  e->done = NULL;
  e->peers_n = e->regions_n = e->done_head = e->done_n = e->done_cap = 0;
  e->open = false;
}

static const tb_link_caps *sim_caps(const tb_link *e) { return &e->caps; }

static int sim_local_addr(const tb_link *e, tb_addr *out) {
  memset(out, 0, sizeof *out);
  out->len = 7;
  memcpy(out->bytes, "sim", 3);
  for (int i = 0; i < 4; i++) out->bytes[3 + i] = (uint8_t)(e->id >> (24 - 8 * i));
  return 0;
}

static int endpoint_of(const tb_link *e, const tb_addr *addr, uint32_t *out) {
  if (addr->len != 7 || memcmp(addr->bytes, "sim", 3)) return -EINVAL;
  const uint8_t *b = addr->bytes + 3;
  uint32_t id = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
  if (id >= e->net->n) return -EINVAL;
  *out = id;
  return 0;
}

static int sim_describe(const tb_link *e, char *out, size_t n) {
  const tb_sim_params *p = &e->net->defaults;
  char rate[40] = "infinite rate";
  if (p->rate) snprintf(rate, sizeof rate, "%.3g Gb/s", (double)p->rate * 1e-9);
  snprintf(out, n, "sim: endpoint %u of %u, %s, delay %.3g us, frames of %u B, receive ring %llu B", e->id, e->net->n,
           rate, (double)p->delay * 1e-3, e->mtu, (unsigned long long)e->caps.rx_buffer);
  return 0;
}

static int sim_mem_reg(tb_link *e, const void *base, size_t len, uint32_t *region) {
  if (!base || !len || len > UINTPTR_MAX - (uintptr_t)base) return -EINVAL;
  uint32_t i = 0;
  while (i < e->regions_n && e->regions[i].used) i++;
  if (i == e->regions_n) {
    uint32_t n = e->regions_n ? e->regions_n * 2 : 8;
    tb_sim_region *regions = realloc(e->regions, n * sizeof *regions);
    if (!regions) return -ENOMEM;
    memset(regions + e->regions_n, 0, (n - e->regions_n) * sizeof *regions);
    e->regions = regions;
    e->regions_n = n;
  }
  e->regions[i] = (tb_sim_region){.base = base, .len = len, .used = true};
  *region = i;
  return 0;
}

static int sim_mem_unreg(tb_link *e, uint32_t region) {
  if (region >= e->regions_n || !e->regions[region].used) return -ENOENT;
  if (e->regions[region].outstanding) return -EBUSY;
  e->regions[region].used = false;
  return 0;
}

static int sim_peer_add(tb_link *e, uint32_t peer, const tb_addr *addr) {
  if (peer >= e->peers_n) return -EINVAL;
  return endpoint_of(e, addr, &e->peers[peer]);
}

int tb_sim_peer_state(const tb_link *e, uint32_t peer) {
  return peer < e->peers_n && e->peers[peer] != NO_ENDPOINT ? 0 : -ENOENT;
}

static int sim_peer_set(tb_link *e, uint32_t peer, const tb_addr *addr) {
  int rc = tb_sim_peer_state(e, peer);
  return rc ? rc : sim_peer_add(e, peer, addr);
}

static int sim_peer_del(tb_link *e, uint32_t peer) {
  int rc = tb_sim_peer_state(e, peer);
  if (!rc) e->peers[peer] = NO_ENDPOINT;
  return rc;
}

static int sim_set_mtu(tb_link *e, uint32_t mtu) {
  if (!mtu || mtu > e->caps.mtu) return -EINVAL;
  e->mtu = mtu;
  return 0;
}

static int sim_rx_burst(tb_link *e, uint32_t lane, tb_rx *frames, int n) {
  if (lane || n < 0) return -EINVAL;
  int k = 0;
  for (tb_sim_frame *f; k < n && (f = tb_sim_fifo_get(&e->ring)); k++) {
    e->ring_bytes -= f->len;
    e->stats.rx_bytes += f->len;
    frames[k] = (tb_rx){f->data, f->len, f->src};
    tb_sim_fifo_put(&e->leased, f);
  }
  e->stats.rx_frames += (uint64_t)k;
  e->stats.rx_calls += k > 0;
  return k;
}

static bool sim_came_from(const tb_link *e, const tb_rx *frame, uint32_t peer) {
  return peer < e->peers_n && e->peers[peer] == frame->slot;
}

static void sim_rx_release(tb_link *e, uint32_t lane) {
  (void)lane;
  e->tx_news_owner = 0;
  for (tb_sim_frame *f; (f = tb_sim_fifo_get(&e->leased));) {
    if (e->net->poison) memset(f->data, POISON, f->len);
    tb_sim_frame_put(e->net, f);
  }
}

static int sim_wait(tb_link *e, uint32_t lane, uint64_t deadline_ns) {
  (void)deadline_ns;
  if (lane) return -EINVAL;
  int bits = 0;
  if (e->ring.head) bits |= TB_WAIT_RX;
  if (e->tx_news) bits |= TB_WAIT_TX;
  if (atomic_exchange(&e->woken, false)) bits |= TB_WAIT_WAKE;
  tb_sim_heard(e, TB_SIM_ROOM | TB_SIM_COMPLETED);
  return bits ? bits : TB_WAIT_TIMEOUT;
}

static void sim_wake(tb_link *e, uint32_t lane) {
  (void)lane;
  atomic_store(&e->woken, true);
}

static int sim_stats(const tb_link *e, tb_link_stats *out) {
  *out = e->stats;
  return 0;
}

static int sim_events(tb_link *e, tb_link_event *out, int n) {
  (void)e, (void)out, (void)n;
  return 0; /* a simulated link never degrades */
}

const tb_link_ops tb_link_sim = {
  .name = "sim", .open = sim_open, .close = sim_close, .caps = sim_caps, .local_addr = sim_local_addr,
  .describe = sim_describe, .mem_reg = sim_mem_reg, .mem_unreg = sim_mem_unreg, .peer_add = sim_peer_add,
  .peer_set = sim_peer_set, .peer_del = sim_peer_del, .peer_state = tb_sim_peer_state, .set_mtu = sim_set_mtu,
  .tx_burst = tb_sim_tx_burst, .tx_reap = tb_sim_tx_reap, .tx_quiesce = tb_sim_tx_quiesce, .tx_abort = tb_sim_tx_abort,
  .rx_burst = sim_rx_burst, .rx_release = sim_rx_release, .came_from = sim_came_from, .wait = sim_wait,
  .wake = sim_wake, .stats = sim_stats,
  .events = sim_events,
};
