/* open.c - the link's open and close, what it says of itself, its table of operations, and the plugin's one symbol. */
#include "plugins/verbs/verbs.h"
#include "links/plugin.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A receive buffer takes a frame of any length: told as if each frame cost this much whatever its length. */
enum { SLOT = 65536 };

static void set_caps(verbs_link *l) {
  bool ref = verbs_fork_is_safe();
  l->caps = (tb_link_caps){.mtu = l->mtu, .lanes = 1, .ref = ref ? TB_REF_PROMPT : TB_REF_NONE,
                           .csum = true, /* RoCE and InfiniBand: ICRC */
                           .quiesce_ns = ref ? l->drain_ns : 0,
                           .rx_buffer = (uint64_t)l->rx.count * (VERBS_MTU_MIN + SLOT), .rx_parts = 1,
                           .rx_overhead = SLOT, .timer_ns = l->busy ? 5000 : 60000, .burst = VERBS_CHAIN, .train = 1};
}

static void verbs_close(tb_link *link) {
  verbs_link *l = verbs_of(link);
  if (!l) return;
  bool ours = l->pid == getpid();
  if (ours) verbs_router_stop(l);
  verbs_queues_close(l, ours);
  tb_waker_close(&l->waker);
  pthread_mutex_destroy(&l->router.lock);
  tb_guard_destroy(&l->guard);
  tb_regions_destroy(&l->regions);
  tb_events_destroy(&l->events);
  free(l->peers);
  free(l);
}

static int start(verbs_link *l, const tb_link_cfg *cfg) {
  int rc = verbs_device_choose("", cfg, &l->at);
  if (!rc) rc = verbs_queues_open(l, cfg);
  if (rc) return rc;
  set_caps(l);
  rc = tb_waker_open(&l->waker);
  if (!rc) rc = verbs_router_start(l);
  if (rc) return VERBS_REFUSE(cfg, rc, "verbs: no thread or eventfd for the link: %s", strerror(-rc));
  return 0;
}

static int verbs_open(const tb_link_cfg *cfg, tb_link **out) {
  if (cfg->peers > VERBS_PEERS_MAX)
    return VERBS_REFUSE(cfg, -EINVAL, "verbs: %u peers are too many: at most %d", cfg->peers, VERBS_PEERS_MAX);
  verbs_link *l = calloc(1, sizeof *l);
  if (!l) return VERBS_REFUSE(cfg, -ENOMEM, "verbs: no memory for the link");
  pthread_mutex_init(&l->router.lock, NULL);
  tb_guard_init(&l->guard);
  tb_regions_init(&l->regions);
  tb_events_init(&l->events);
  l->waker.fd = l->router.fd = -1;
  l->busy = cfg->busy;
  l->ref_from = cfg->ref_from ? cfg->ref_from : VERBS_REF_FROM;
  l->pid = getpid();
  int rc = start(l, cfg);
  if (rc) {
    verbs_close((tb_link *)l);
    return rc;
  }
  *out = (tb_link *)l;
  return 0;
}

static const tb_link_caps *verbs_caps(const tb_link *link) { return &verbs_of_const(link)->caps; }

static int verbs_describe(const tb_link *link, char *out, size_t n) {
  const verbs_link *l = verbs_of_const(link);
  char gid[64] = "?";
  verbs_gid_text(l->gid, gid, sizeof gid);
  snprintf(out, n, "verbs %s port %u (%s%s%s), GID %u %s, UD queue pair %u, path MTU %u, %u receive and %u send buffers "
           "(%zu KiB locked), inline %u, %s%s", l->at.device, l->at.port, l->at.ethernet ? "RoCE v2" : "InfiniBand",
           *l->at.gid.netdev ? " on " : "", l->at.gid.netdev, l->at.gid.index, gid, l->qp->qp_num, l->port_mtu,
           l->rx.count, l->tx.count, (l->rx.bytes + l->tx.bytes) >> 10, l->inline_most, l->busy ? "busy" : "adaptive",
           l->caps.ref == TB_REF_NONE ? "; all payloads are copied, as a fork could move their pages" : "");
  return 0;
}

static int verbs_set_mtu(tb_link *link, uint32_t mtu) {
  verbs_link *l = verbs_of(link);
  if (mtu < VERBS_MTU_MIN || mtu > l->caps.mtu) return -EINVAL;
  l->mtu = mtu;
  return 0;
}

static uint64_t get(const atomic_uint_least64_t *c) { return atomic_load_explicit(c, memory_order_relaxed); }

static int verbs_stats(const tb_link *link, tb_link_stats *out) {
  const verbs_counters *c = &verbs_of_const(link)->n;
  *out = (tb_link_stats){
      .tx_frames = get(&c->tx_frames), .tx_bytes = get(&c->tx_bytes), .rx_frames = get(&c->rx_frames),
      .rx_bytes = get(&c->rx_bytes), .tx_calls = get(&c->tx_calls), .rx_calls = get(&c->rx_calls),
      .tx_copied = get(&c->tx_copied), .tx_dropped = get(&c->tx_dropped), .tx_errors = get(&c->tx_errors),
      .rx_truncated = get(&c->rx_truncated), .rx_foreign = get(&c->rx_foreign),
      .rx_overflow = TB_NONE, .rx_nobuf = TB_NONE}; /* a datagram without a receive buffer is dropped unseen */
  return 0;
}

static int verbs_events(tb_link *link, tb_link_event *out, int n) {
  return tb_events_take(&verbs_of(link)->events, out, n);
}

static const tb_link_ops ops = {
    .name = "verbs",
    .open = verbs_open,
    .close = verbs_close,
    .caps = verbs_caps,
    .local_addr = verbs_local_addr,
    .describe = verbs_describe,
    .mem_reg = verbs_mem_reg,
    .mem_unreg = verbs_mem_unreg,
    .peer_add = verbs_peer_add,
    .peer_set = verbs_peer_set,
    .peer_del = verbs_peer_del,
    .peer_state = verbs_peer_state,
    .set_mtu = verbs_set_mtu,
    .tx_burst = verbs_tx_burst,
    .tx_reap = verbs_tx_reap,
    .tx_quiesce = verbs_tx_quiesce,
    .tx_abort = verbs_tx_abort,
    .rx_burst = verbs_rx_burst,
    .rx_release = verbs_rx_release,
    .came_from = verbs_came_from,
    .wait = verbs_wait,
    .wake = verbs_wake,
    .stats = verbs_stats,
    .events = verbs_events,
};

__attribute__((visibility("default"))) const tb_link_plugin *tb_link_plugin_get(void) {
  static const tb_link_plugin plugin = {.abi = TB_PLUGIN_ABI, .sizes = TB_PLUGIN_SIZES, .name = "verbs",
                                        .library = "libibverbs.so.1", .ops = &ops};
  return &plugin;
}
