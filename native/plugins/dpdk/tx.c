/* tx.c - tx_burst: the headers of a frame are copied into an mbuf, and the payload too, or it follows in a second one
 * from where it lies (ref.c); up to 64 frames go to the device at once.
 *
 * Nothing of a burst stays here: what the device does not take after a few tries is freed, and its frames remain the
 * caller's, so that pacing sees that the device is full. A frame to somebody whose MAC is not known yet is lost, as a
 * kernel loses it, while he is asked for. The other end of a memif may stop and take nothing for ever while the link is
 * said to be up: then frames are lost too, or they would keep everything behind them. */
#include "plugins/dpdk/dpdk.h"
#include <errno.h>
#include <string.h>

enum { TRIES = 3, FLOW_BYTES = 128 << 10, FLOW_NS = 200000, SHUT_NS = 50000000 };

typedef struct {
  struct rte_mbuf *m[DPDK_TX_BURST], *tail[DPDK_TX_BURST];
  const tb_net_template *head[DPDK_TX_BURST];
  uint32_t at[DPDK_TX_BURST]; /* of which frame each is */
  uint32_t count, frames;     /* mbufs; frames, those that are lost here included */
  uint32_t tails;             /* 0 = all are copied */
} batch;

static int check(const dpdk_link *l, const tb_tx *f) {
  if (f->peer >= l->peers_cap || !l->peers[f->peer].used) return -ENOENT;
  if ((f->head_len && !f->head) || (f->pay_len && !f->pay)) return -EINVAL;
  uint64_t total = (uint64_t)f->head_len + f->pay_len;
  if (!total) return -EINVAL;
  if (total > l->mtu) return -EMSGSIZE;
  return f->ref ? dpdk_ref_check(l, f) : 0;
}

/* The first frames that may go. None: *error says why not the first one. */
static void choose(dpdk_link *l, const tb_tx *frames, uint32_t n, batch *b, int *error) {
  b->count = b->frames = 0;
  for (; b->frames < n && b->frames < DPDK_TX_BURST; b->frames++) {
    if ((*error = check(l, &frames[b->frames]))) return;
    const tb_net_template *head = dpdk_peer_head(l, &l->peers[frames[b->frames].peer]);
    if (!head) continue;
    b->head[b->count] = head;
    b->at[b->count++] = b->frames;
  }
}

/* Ends the batch before its mbuf number `count`. */
static void cut(batch *b, uint32_t count) {
  if (count < b->count) b->frames = b->at[count];
  b->count = count;
}

static void allocate(dpdk_link *l, const tb_tx *frames, batch *b) {
  uint32_t want = b->count, tails = 0;
  while (want && rte_pktmbuf_alloc_bulk(l->port->tx_pool, b->m, want)) want /= 2;
  cut(b, want);
  for (uint32_t i = 0; i < b->count; i++) tails += dpdk_ref_gathers(l, &frames[b->at[i]]);
  b->tails = dpdk_ref_tails(l, b->tail, tails);
}

static uint16_t source_port(dpdk_link *l, dpdk_peer *p, uint32_t bytes, uint64_t now) {
  if (l->flows < 2) return l->self.port;
  p->flow_bytes += bytes;
  if (p->flow_bytes >= FLOW_BYTES || now - p->flow_at >= FLOW_NS) {
    p->flow_bytes = 0;
    p->flow_at = now;
    l->random ^= l->random << 13;
    l->random ^= l->random >> 7;
    l->random ^= l->random << 17;
    p->flow = (uint32_t)(l->random >> 32) % l->flows;
  }
  return (uint16_t)(l->self.port + p->flow);
}

/* What the device has to know to put the sum there. */
static void ask_for_sum(struct rte_mbuf *m, const tb_net_template *head) {
  m->l2_len = head->ip;
  m->l3_len = (uint64_t)(head->udp - head->ip);
  m->ol_flags |= (m->l3_len == TB_IP4_HEAD ? RTE_MBUF_F_TX_IPV4 : RTE_MBUF_F_TX_IPV6) | RTE_MBUF_F_TX_UDP_CKSUM;
}

/* tail: takes the payload; NULL = it is copied. Only with a copy the sum is ours to make (open.c). */
static void fill(dpdk_link *l, struct rte_mbuf *m, struct rte_mbuf *tail, const tb_net_template *head, const tb_tx *f,
                 uint64_t now) {
  dpdk_peer *p = &l->peers[f->peer];
  uint32_t len = f->head_len + f->pay_len, here = head->len + (tail ? f->head_len : len);
  uint8_t *out = rte_pktmbuf_mtod(m, uint8_t *);
  tb_net_head(out, head, source_port(l, p, l->head + len, now), p->port, len, l->sum != DPDK_SUM_NONE);
  if (f->head_len) memcpy(out + head->len, f->head, f->head_len);
  if (!tail && f->pay_len) memcpy(out + head->len + f->head_len, f->pay, f->pay_len);
  if (l->sum == DPDK_SUM_US) tb_net_finish(out + head->udp, len);
  if (!tail && here < TB_ETHER_LEAST) {
    memset(out + here, 0, TB_ETHER_LEAST - here);
    here = TB_ETHER_LEAST;
  }
  m->data_len = (uint16_t)here;
  m->pkt_len = here;
  if (tail) dpdk_ref_attach(l, m, tail, f);
  if (l->sum == DPDK_SUM_DEVICE) ask_for_sum(m, head);
}

static void fill_all(dpdk_link *l, const tb_tx *frames, batch *b) {
  uint64_t now = l->flows > 1 ? dpdk_now() : 0;
  uint32_t t = 0;
  for (uint32_t i = 0; i < b->count; i++) {
    const tb_tx *f = &frames[b->at[i]];
    struct rte_mbuf *tail = b->tails && dpdk_ref_gathers(l, f) ? b->tail[t++] : NULL;
    fill(l, b->m[i], tail, b->head[i], f, now);
  }
}

/* Some drivers have to finish what the device shall sum, and refuse what it cannot: that one is lost. */
static void prepare(dpdk_link *l, batch *b) {
  uint32_t ready = rte_eth_tx_prepare(l->port->id, 0, b->m, (uint16_t)b->count);
  if (ready == b->count) return;
  rte_pktmbuf_free_bulk(b->m + ready, b->count - ready);
  if (ready) {
    cut(b, ready);
  } else {
    b->frames = b->at[0] + 1;
    b->count = 0;
  }
}

/* How many of the mbufs the device took. */
static uint32_t hand_over(dpdk_link *l, batch *b) {
  uint32_t sent = 0;
  for (int tries = 0; tries < TRIES && sent < b->count; tries++) {
    uint32_t k = rte_eth_tx_burst(l->port->id, 0, b->m + sent, (uint16_t)(b->count - sent));
    dpdk_add(&l->n.tx_calls, 1);
    if (k) tries = -1;
    sent += k;
  }
  if (sent < b->count) rte_pktmbuf_free_bulk(b->m + sent, b->count - sent);
  l->kick_due |= sent && l->port->kernel_fd >= 0 && l->port->device.kind == DPDK_AF_PACKET;
  return sent;
}

static bool other_end_is_gone(dpdk_link *l, bool took_any) {
  if (took_any) l->shut_since = 0;
  if (took_any || !l->port->device.may_shut) return false;
  uint64_t now = dpdk_now();
  if (!l->shut_since) l->shut_since = now;
  return now - l->shut_since >= SHUT_NS;
}

/* Frames that are the link's now: those sent, and those lost among them. */
static uint32_t account(dpdk_link *l, const tb_tx *frames, const batch *b, uint32_t sent) {
  uint32_t taken = sent < b->count ? b->at[sent] : b->frames;
  uint64_t bytes = 0, copied = 0;
  for (uint32_t i = 0; i < sent; i++) {
    const tb_tx *f = &frames[b->at[i]];
    bytes += f->head_len + f->pay_len;
    if (!b->tails || !dpdk_ref_gathers(l, f)) copied += f->pay_len;
  }
  if (b->count && other_end_is_gone(l, sent)) taken = b->frames;
  for (uint32_t i = 0; i < taken; i++) l->refs += frames[i].ref;
  l->blocked = taken < b->frames;
  if (l->blocked) dpdk_add(&l->n.tx_full, 1);
  dpdk_add(&l->n.tx_frames, sent);
  dpdk_add(&l->n.tx_bytes, bytes);
  dpdk_add(&l->n.tx_copied, copied);
  dpdk_add(&l->n.tx_dropped, taken - sent);
  return taken;
}

int dpdk_tx_burst(tb_link *link, uint32_t lane, const tb_tx *frames, int n) {
  dpdk_link *l = dpdk_of(link);
  batch b;
  int done = 0, error = 0, first = 0; /* first: of the frame that comes next */
  if (lane || n < 0) return -EINVAL;
  if ((error = dpdk_thread_enter())) return error;
  l->blocked = false;
  while (done < n && !l->blocked) {
    choose(l, frames + done, (uint32_t)(n - done), &b, &error);
    if (!b.frames) first = error;
    if (!b.frames) break;
    uint32_t wanted = b.frames;
    allocate(l, frames + done, &b);
    fill_all(l, frames + done, &b);
    if (l->sum == DPDK_SUM_DEVICE && b.count) prepare(l, &b);
    uint32_t taken = account(l, frames + done, &b, hand_over(l, &b));
    if (b.tails) dpdk_ref_look(l);
    l->blocked |= taken < wanted;
    done += (int)taken;
    if (error) break; /* the frame behind these is at fault: told when it comes first */
  }
  if (done) l->idle_since = 0; /* an answer may come soon */
  return done ? done : first;
}

void dpdk_tx_raw(dpdk_link *l, const uint8_t *frame, uint32_t len) {
  struct rte_mbuf *m = rte_pktmbuf_alloc(l->port->tx_pool);
  if (!m) return;
  bool fits = len <= rte_pktmbuf_tailroom(m) && len <= l->port->ip_mtu + tb_net_ip_at(&l->self);
  if (fits) memcpy(rte_pktmbuf_mtod(m, void *), frame, len);
  m->data_len = (uint16_t)len;
  m->pkt_len = len;
  if (fits && rte_eth_tx_burst(l->port->id, 0, &m, 1) == 1)
    dpdk_add(&l->n.raw_out, 1);
  else
    rte_pktmbuf_free(m);
}
