/* tx.c - which data frames leave now: earliest deadline first (rule 22), decided chunks before contributions, peers in
 * the transpose order (an order, never a synchronisation: rule 21), repairs before new data but at most a quarter of
 * the pace (rule 20), all under the peer's credit. First of all come repeated contributions: a shard waits for one at
 * its owner, and everybody for that shard, while all of our own decided chunks may take as long as a stage to send.
 *
 * INCAST. `incast` peers at a time are served side by side, `burst` frames each in turn; the next ones follow as soon
 * as these can take no more. With all of them side by side every receiver gets an even share of everybody's line at
 * every moment. One peer after the other (incast = 1) needs all ranks in step for that: each owner's decided chunks go
 * to all, and as soon as two ranks drift apart their whole flows meet in one receiver's queue.
 */
#include <string.h>
#include "protocol/core.h"

bool tb_tx_flow_wanted(const tb_core *c, const tb_op *op, uint32_t p, int s) {
  const tb_op_peer *q = &op->peer[p];
  const tb_flow_tx *f = &q->tx[s];
  if (f->acked == f->total || op->status || c->peer[p].gone || q->left) return false;
  if (c->peer[p].absent && op->lossy) return false; /* an absent peer costs nothing (rule 9) */
  if (op->geo.kind == TB_SEND) return q->opened && op->in; /* before recv there is no buffer for it */
  if (tb_across(op, p)) return true; /* relaying needs no issue, neither here nor there */
  return s == 0 ? op->in || op->mixed.data : q->opened;
}

/* Where chunk lies (for the next tb_out), and whether that is the caller's memory. */
static const uint8_t *payload(tb_core *c, const tb_op *op, uint32_t p, int s, uint32_t chunk, uint32_t *len,
                              bool *user) {
  uint64_t first;
  tb_piece at = tb_flow_piece(c, op, p, s, TB_SENT, chunk);
  uint32_t elems = tb_geo_chunk(&op->geo, at.owner, at.chunk, &first);
  *len = tb_geo_payload(&op->geo, elems);
  *user = false;
  if ((s == 1 && op->geo.kind != TB_SEND) || tb_across(op, p)) return tb_decided_at(op, tb_kept_index(op, at));
  const uint8_t *x = tb_contribution(op, at.owner, at.chunk, user);
  if (!tb_coded(op)) return x;
  *user = false;
  return tb_encode_own(c, op, at.owner, at.chunk, x, elems);
}

/* LINKS rule 7: so near the deadline that a device might still read the caller's memory after it. */
bool tb_refs_quiet(const tb_core *c, const tb_op *op, uint64_t now) {
  return op->deadline != UINT64_MAX && c->cfg.quiesce_ns && now + c->cfg.quiesce_ns >= op->deadline;
}

static bool emit(tb_core *c, tb_op *op, uint16_t p, int s, uint32_t chunk, bool fresh, uint64_t now) {
  tb_out *o = tb_out_slot(c);
  if (!o) return false;
  tb_peer *q = &c->peer[p];
  tb_op_peer *w = &op->peer[p];
  tb_head h;
  tb_fill_head(c, p, &h, op, now);
  h.type = TB_T_DATA;
  h.stage = (uint8_t)(s + 1);
  h.chunk = chunk;
  if (fresh) { /* in its order, not a repair: it tells how far the flow is */
    h.flags = w->tx[s].next == w->tx[s].total ? TB_F_LAST : 0;
    h.percentile = tb_last_percent(w->tx[s].next - 1, w->tx[s].total);
  }
  h.level = tb_level(op, p, s);
  h.count = 1;
  if ((s == 1 && tb_geo_scatters(&op->geo)) || tb_across(op, p))
    h.count = op->count[tb_kept_index(op, tb_flow_piece(c, op, p, s, TB_SENT, chunk))];
  if (s == 1 && tb_geo_scatters(&op->geo) && tb_own_in(c, op, p, chunk)) h.flags |= TB_F_OWN;
  uint8_t *head = c->head[c->out_n];
  uint32_t len;
  bool user;
  const uint8_t *pay = payload(c, op, p, s, chunk, &len, &user);
  tb_head_encode(&h, head);
  tb_head_seal(head, c->cfg.seal_payload ? pay : NULL, len);
  *o = (tb_out){.peer = p, .user = user, .ref = user && !tb_refs_quiet(c, op, now), .head_len = TB_HEAD, .pay_len = len,
                .head = head, .pay = pay, .op = op, .chunk = chunk, .stage = h.stage,
                .region = user && op->outcome ? op->outcome->region : 0};
  c->out_n++;
  w->tx[s].last_step[chunk] = ++q->step;
  if (!w->opened) q->ahead++;
  q->n.data_sent++;
  q->n.bytes_sent += len;
  if (!q->asking) {
    q->asking = true;
    q->asked_stamp = (uint32_t)now;
  }
  if (q->asked_stamp == (uint32_t)now) q->asked_from = q->step; /* the last of those that leave now */
  uint64_t gap = tb_pace_interval(q), back = gap * (q->peer_window / 4 + 1);
  /* where queues are short, bursts are */
  if (q->narrow && back > 16 * gap + c->lateness) back = 16 * gap + c->lateness;
  if (q->pace_at + back < now) q->pace_at = now - back;
  q->pace_at += gap;
  return true;
}

typedef enum { GO, NEXT_TURN, NO_CREDIT, NO_PACE, NO_ROOM } permit;

/* Who may not send to p before t looks again then. */
static void not_before(tb_core *c, uint16_t p, uint64_t t) {
  if (t < c->peer[p].resume_at) c->peer[p].resume_at = t;
  tb_peer_due(c, p, t);
}

static permit may_send(tb_core *c, const tb_op *op, uint16_t p, uint64_t now) {
  tb_peer *q = &c->peer[p];
  if (c->out_n >= TB_DATA_MAX) return NO_ROOM; /* the rest is for control */
  if (!tb_grant_covers(c, op, p)) {
    if (!q->stalled_at) {
      q->stalled_at = now ? now : 1;
      q->ask_grant_at = now + tb_rto(c, q);
      q->n.credit_stalls++;
      tb_peer_due(c, p, q->ask_grant_at);
    }
    return NO_CREDIT;
  }
  if (q->pace_at > now) {
    not_before(c, p, q->pace_at);
    return NO_PACE;
  }
  return GO;
}

/* Repairs: a second token clock at a quarter of the pace, with a burst of 16 frames. */
static bool may_repair(tb_core *c, uint16_t p, uint64_t now) {
  tb_peer *q = &c->peer[p];
  uint64_t gap = 4 * tb_pace_interval(q), back = 16 * gap;
  if (q->repair_at + back < now) q->repair_at = now - back;
  if (q->repair_at > now) {
    not_before(c, p, q->repair_at);
    return false;
  }
  q->repair_at += gap;
  return true;
}

static permit repairs(tb_core *c, tb_op *op, uint16_t p, int s, uint64_t now) {
  tb_peer *q = &c->peer[p];
  tb_flow_tx *f = &op->peer[p].tx[s];
  while (f->resend_n) {
    permit ok = may_send(c, op, p, now);
    if (ok == GO && !may_repair(c, p, now)) ok = NO_PACE;
    if (ok != GO) return ok;
    uint32_t i = f->resend_from = tb_bit_next(f->resend, f->resend_from, f->total, true);
    emit(c, op, p, s, i, false, now);
    if (tb_urgent(op, q, now) && may_send(c, op, p, now) == GO && may_repair(c, p, now)) emit(c, op, p, s, i, false, now);
    tb_bit_clear(f->resend, i);
    f->resend_n--;
    q->n.repaired++;
  }
  return GO;
}

/* Repairs, and at most `burst` new frames, of what may go to p now for one stage. Other than GO: why there is a
 * rest. */
static permit run(tb_core *c, tb_op *op, uint16_t p, int s, uint64_t now) {
  tb_peer *q = &c->peer[p];
  tb_flow_tx *f = &op->peer[p].tx[s];
  permit first = repairs(c, op, p, s, now);
  if (first != GO) return first;
  tb_ready ready = tb_flow_ready(c, op, p, s);
  for (uint32_t burst = tb_rate_burst(c, f->total); f->next < ready.n;) {
    uint32_t i = ready.order ? ready.order[f->next] : f->next;
    if (tb_bit(f->ack, i)) {
      f->next++;
      continue;
    }
    permit ok = may_send(c, op, p, now);
    if (ok != GO) return ok;
    if (!burst--) return NEXT_TURN;
    f->next++;
    emit(c, op, p, s, i, true, now);
    /* Decided so late that its loss could not be repaired any more. */
    if (s == 1 && op->lossy && f->next == ready.n && c->tune.repair &&
        op->deadline < now + 2 * q->rtt_min && may_send(c, op, p, now) == GO)
      emit(c, op, p, s, i, true, now);
  }
  bool none = !ready.n && !ready.more; /* it will not come: that has to be said, too */
  /* everything there is was sent: ask for a receipt in time */
  if ((f->next > 0 || none) && f->mark_at == UINT64_MAX && f->acked < f->total) {
    f->marks = 0;
    /* A receipt should have come within a round trip, and a little; after that, each RTO. In a hurry nobody waits for
     * the little, nor at the end of the flow for the first. */
    bool hurry = tb_urgent(op, q, now);
    uint64_t trip = q->srtt + (hurry ? 0 : q->srtt / 4 + q->rttvar);
    f->mark_at = now + (hurry && f->next == f->total ? 0 : q->srtt ? trip : tb_rto(c, q));
    tb_op_peer_due(c, op, p, f->mark_at);
  }
  return GO;
}

/* The peer at a place of this rank's sending order, and the place of a peer there. */
static uint16_t peer_at(const tb_core *c, const tb_op *op, uint32_t i) {
  if (op->tree) return (uint16_t)tb_kin_order(op->tree, op->round, i);
  const tb_team *t = op->geo.team;
  return (uint16_t)tb_team_rank(t, tb_geo_order(op->geo.n, tb_team_place(t, c->cfg.rank), op->round, i));
}

static uint32_t place_of(const tb_core *c, const tb_op *op, uint32_t p) {
  if (op->tree) return tb_kin_place(op->tree, op->round, p);
  const tb_team *t = op->geo.team;
  return tb_geo_place(op->geo.n, tb_team_place(t, c->cfg.rank), op->round, tb_team_place(t, p));
}

static bool has_place(const tb_op *op, uint32_t p) {
  return op->tree ? op->tree->kin[p] >= TB_KIN_NEAR : tb_team_has(op->geo.team, p);
}

/* Places first .. first + width - 1 of the transpose order, in turns until none can take more; from the one at which
 * there was no room the last time. False: no room again. */
static bool side_by_side(tb_core *c, tb_op *op, int s, uint32_t first, uint32_t width, uint64_t now) {
  uint64_t *ready = op->ready[s];
  uint32_t start = first + op->turn % width, end = first + width;
  for (bool again = true; again;) {
    again = false;
    for (int part = 0; part < 2; part++) {
      uint32_t from = part ? first : start, to = part ? start : end;
      for (uint32_t i = tb_bit_next(ready, from, to, true); i < to; i = tb_bit_next(ready, i + 1, to, true)) {
        uint16_t p = peer_at(c, op, i);
        permit ok = tb_tx_flow_wanted(c, op, p, s) ? run(c, op, p, s, now) : GO;
        if (ok == NO_ROOM) {
          op->turn = i - first;
          return false;
        }
        again |= ok == NEXT_TURN;
        if (ok == NEXT_TURN) continue;
        tb_bit_clear(ready, i);
        if (ok == GO) continue;
        tb_bit_set(op->parked[s], i);
        c->peer[p].parked = true;
      }
    }
  }
  return true;
}

/* Contributions that were asked for again. False: no room. */
static bool contributions_again(tb_core *c, tb_op *op, uint64_t now) {
  uint32_t peers = op->peers;
  bool rest = false;
  for (uint32_t i = tb_bit_next(op->ready[0], 0, peers, true); i < peers; i = tb_bit_next(op->ready[0], i + 1, peers, true)) {
    uint16_t p = peer_at(c, op, i);
    if (!op->peer[p].tx[0].resend_n || !tb_tx_flow_wanted(c, op, p, 0)) continue;
    permit ok = repairs(c, op, p, 0, now);
    if (ok == NO_ROOM) return false;
    rest |= ok != GO;
  }
  op->again = rest;
  return true;
}

/* `incast` at a time of the places first .. end - 1. */
static bool serve(tb_core *c, tb_op *op, int s, uint32_t first, uint32_t end, uint64_t now) {
  uint32_t all = end - first, incast = c->tune.incast && c->tune.incast < all ? (uint32_t)c->tune.incast : all;
  for (; first < end; first += incast)
    if (!side_by_side(c, op, s, first, first + incast < end ? incast : end - first, now)) return false;
  return true;
}

/* Decided chunks last here: whoever hands out first lets those wait whose way is still three hops long, and at the end
 * of a round some lines are idle (bench/NOTES.md). The little that goes across goes before everything. */
static bool serve_kin(tb_core *c, tb_op *op, uint64_t now) {
  uint32_t near = op->tree->size - 1;
  return serve(c, op, 1, near, op->peers, now) && serve(c, op, 0, near, op->peers, now) && serve(c, op, 0, 0, near, now) &&
         serve(c, op, 1, 0, near, now);
}

void tb_tx_data(tb_core *c, uint64_t now) {
  for (tb_op *op = c->ops; op; op = op->next) {
    if (!op->hot || op->state == TB_OP_FINISHING) continue;
    if (op->again && !contributions_again(c, op, now)) return;
    if (op->tree ? !serve_kin(c, op, now) : !(serve(c, op, 1, 0, op->peers, now) && serve(c, op, 0, 0, op->peers, now))) return;
    op->hot = false;
  }
}

void tb_tx_ready(tb_core *c, tb_op *op, uint32_t p, int s) {
  if (!has_place(op, p)) return;
  tb_bit_set(op->ready[s], place_of(c, op, p));
  op->hot = true;
}

void tb_tx_ready_all(tb_op *op, int s) {
  tb_bit_fill(op->ready[s], 0, op->peers);
  op->hot = true;
}

void tb_tx_resume(tb_core *c, uint16_t p) {
  tb_peer *q = &c->peer[p];
  q->resume_at = UINT64_MAX;
  if (!q->parked) return;
  q->parked = false;
  for (tb_op *op = c->ops; op; op = op->next) {
    if (!has_place(op, p)) continue;
    uint32_t i = place_of(c, op, p);
    for (int s = 0; s < 2; s++) {
      if (!tb_bit(op->parked[s], i)) continue;
      tb_bit_clear(op->parked[s], i);
      tb_bit_set(op->ready[s], i);
      op->hot = true;
    }
  }
}

void tb_tx_unstall(tb_core *c, uint16_t p) {
  if (!c->peer[p].stalled_at) return;
  c->peer[p].stalled_at = 0;
  tb_tx_resume(c, p);
}
