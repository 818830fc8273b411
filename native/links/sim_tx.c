/* sim_tx.c - sending from a simulated endpoint. It is as strict as any real device could be: a REF outside its region,
 * an unknown peer or an oversize frame is refused, and payloads are read as late as possible. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "links/sim_internal.h"

static uint32_t be32(const uint8_t *p) {
  return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* Takes REF frames (all = every frame) out of the egress; what is left keeps its order and its place. */
uint64_t tb_sim_discard(tb_link *e, bool all) {
  tb_sim *net = e->net;
  tb_sim_fifo keep = {0};
  uint64_t dropped = 0;
  const tb_sim_frame *leaving = e->tx.head;
  for (tb_sim_frame *f; (f = tb_sim_fifo_get(&e->tx));) {
    if (!all && !f->is_ref) {
      tb_sim_fifo_put(&keep, f);
      continue;
    }
    e->tx_waiting--;
    dropped++;
    tb_sim_drop(net, f, 1);
  }
  e->tx = keep;
  if (leaving && leaving != e->tx.head) { /* compares addresses only: `leaving` may be free */
    tb_sim_cancel(net, TB_SIM_DEPART, e);
    if (e->tx.head) tb_sim_egress_start(e);
  }
  for (uint32_t i = 0; i < e->regions_n; i++) e->regions[i].outstanding = 0;
  if (e->done_n) tb_sim_cancel(net, TB_SIM_DONE, e);
  e->done_n = 0;
  e->refs_done = e->refs_told = e->refs;
  return dropped;
}

static int check(const tb_link *e, const tb_tx *t) {
  if (tb_sim_peer_state(e, t->peer)) return -ENOENT;
  if ((t->head_len && !t->head) || (t->pay_len && !t->pay) || !(t->head_len | t->pay_len)) return -EINVAL;
  if (t->head_len > e->mtu || t->pay_len > e->mtu - t->head_len) return -EMSGSIZE;
  if (!t->ref) return 0;
  if (e->caps.ref == TB_REF_NONE) return -EOPNOTSUPP;
  if (t->region >= e->regions_n || !e->regions[t->region].used) return -EINVAL;
  const tb_sim_region *r = &e->regions[t->region];
  uintptr_t at = (uintptr_t)t->pay, base = (uintptr_t)r->base;
  size_t offset = at - base; /* before the region it wraps round to more than any length */
  return offset > r->len || t->pay_len > r->len - offset ? -EINVAL : 0;
}

/* The one place where a link looks into a frame: the delivery log repeats the header's fields for people and tests. */
static void parse_for_log(tb_sim_log *line, const uint8_t *h, uint32_t len) {
  if (len < 64) return;
  line->type = h[3];
  line->key = be32(h + 12);
  line->round = be32(h + 16);
  line->chunk = be32(h + 20);
  line->stage = h[30] >> 4;
  line->step = be32(h + 56);
}

/* Room for the completion of every REF the egress or the completion ring can hold. */
static int done_reserve(tb_link *e) {
  uint64_t need = (uint64_t)e->done_n + e->tx_waiting + 1;
  if (need <= e->done_cap) return 0;
  uint32_t cap = e->done_cap ? e->done_cap : 64;
  while (cap < need) cap *= 2;
  tb_sim_done *done = malloc(cap * sizeof *done);
  if (!done) return -ENOMEM;
  for (uint32_t i = 0; i < e->done_n; i++) done[i] = e->done[(e->done_head + i) & (e->done_cap - 1)];
  free(e->done);
  e->done = done;
  e->done_cap = cap;
  e->done_head = 0;
  return 0;
}

static int accept_frame(tb_link *e, const tb_tx *t) {
  tb_sim *net = e->net;
  int rc = check(e, t);
  if (rc) return rc;
  bool delayed = net->reap_delay && net->reap_delay != TB_SIM_NEVER && t->ref;
  if (delayed && done_reserve(e)) return -ENOMEM;
  tb_sim_frame *f = tb_sim_frame_get(net, t->head_len + t->pay_len);
  if (!f) return -ENOMEM;
  bool late = t->ref && e->caps.ref == TB_REF_PROMPT;
  f->ref = late && t->pay_len ? t->pay : NULL;
  f->is_ref = late;
  f->region = t->region;
  f->head_len = t->head_len;
  f->len = t->head_len + t->pay_len;
  f->src = (uint16_t)e->id;
  f->dst = (uint16_t)e->peers[t->peer];
  f->damage = 0;
  if (t->head_len) memcpy(f->data, t->head, t->head_len);
  if (t->pay_len && !late) memcpy(f->data + t->head_len, t->pay, t->pay_len);
  if (net->log_on) {
    f->line = (tb_sim_log){.sent_ns = net->now};
    parse_for_log(&f->line, f->data, t->head_len);
  }
  if (t->ref) {
    e->refs++;
    if (late) e->regions[t->region].outstanding++;
    else e->refs_done = e->refs_told = e->refs;
  } else {
    e->stats.tx_copied += t->pay_len;
  }
  e->stats.tx_frames++;
  e->stats.tx_bytes += f->len;
  tb_sim_fifo_put(&e->tx, f);
  if (e->tx_waiting++ == 0) tb_sim_egress_start(e);
  return 0;
}

void tb_sim_heard(tb_link *e, int news) {
  e->tx_news &= (uint8_t)~news;
  e->tx_news_owner &= (uint8_t)~news;
}

/* The first frame that is at fault ends the burst; its own error comes when it is the first of a burst. */
int tb_sim_tx_burst(tb_link *e, uint32_t lane, const tb_tx *frames, int n) {
  if (lane || n < 0) return -EINVAL;
  int k = 0, rc = 0;
  tb_sim_heard(e, TB_SIM_ROOM);
  while (k < n && e->tx_waiting < e->net->tx_ring && !(rc = accept_frame(e, &frames[k]))) k++;
  e->refused = k < n && !rc;
  e->stats.tx_calls += k > 0;
  return k ? k : rc;
}

uint64_t tb_sim_tx_reap(tb_link *e, uint32_t lane) {
  (void)lane;
  tb_sim_heard(e, TB_SIM_COMPLETED);
  return e->refs_done;
}

int tb_sim_tx_quiesce(tb_link *e, uint32_t lane, uint64_t until_ns) {
  (void)until_ns; /* cannot be waited for from here */
  if (lane) return -EINVAL;
  return e->refs_done == e->refs ? 0 : -ETIMEDOUT;
}

int tb_sim_tx_abort(tb_link *e, uint32_t lane, uint64_t *took_ns) {
  if (lane) return -EINVAL;
  e->stats.tx_dropped += tb_sim_discard(e, true);
  if (took_ns) *took_ns = 0;
  return 0;
}
