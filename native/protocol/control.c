/* control.c - what peers say about operations: OPEN, receipts, probes, errors, goodbyes. Bodies decode (rx.c), but what
 * they say is not trusted. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "protocol/core.h"

void tb_opened_by(tb_core *c, tb_op *op, uint16_t p, const tb_head *h, uint64_t now) {
  tb_op_peer *q = &op->peer[p];
  if (!q->opened) {
    tb_flow_tx *f = &q->tx[1];
    q->opened = true;
    /* it was taken for one who had skipped the round: nothing was sent */
    if (q->passed && tb_late_kind(c, op) && !q->nothing) {
      memset(f->ack, 0, tb_words(f->total) * sizeof *f->ack);
      f->acked = 0;
    }
    q->opened_at = now;
    op->opened_n++;
    tb_tx_ready(c, op, p, 1); /* stage 2 may flow to it */
    tb_tx_unstall(c, p);      /* and all that its credit covers of stage 1 */
    tb_key_saw_open(op->key, p, op->round);
  }
  if (op->lossy && h->remaining_us != TB_REMAINING_NONE) {
    /* The frame with the least delay gives the truest (earliest) value; half a round trip is the part in flight. */
    uint64_t at = now + h->remaining_us * 1000ull, trip = c->peer[p].rtt_min / 2;
    at = at > trip ? at - trip : 1;
    if (!q->announced || at < q->announced) {
      tb_stage1_announced(c, op, p, at);
      if (!op->swept) tb_due(c, op, now);
    }
  }
}

static void mark_passed(tb_core *c, tb_op *op, uint16_t p, uint64_t now) {
  tb_op_peer *q = &op->peer[p];
  if (q->passed) return;
  q->passed = op->recheck = true;
  op->passed_n++;
  op->told_stale |= !q->announced;
  tb_due(c, op, now);
  if (tb_across(op, p)) return; /* it may still relay: it says so for each flow */
  /* else it still has its shard for us: it must hear our OPEN */
  if (op->lossy && q->nothing && !q->apart) q->open_at = UINT64_MAX;
  tb_flow_ack_all(&q->tx[0]);
  /* Who took part may still want what it lacks (rule 13), and under carry also who skipped the round (rule 15). */
  if (!tb_late_kind(c, op) || (!q->opened && !op->carries)) tb_flow_ack_all(&q->tx[1]);
}

void tb_apart(tb_core *c, tb_op *op, uint16_t p, uint8_t stage, uint64_t now) {
  tb_op_peer *q = &op->peer[p];
  bool known = q->apart;
  tb_section_add(c, p, op, stage == 1 ? 1 : 2, TB_R_FINAL | TB_R_UNKNOWN);
  if (known) return;
  q->apart = q->nothing = op->recheck = true;
  c->n.apart++;
  for (int s = 0; s < 2; s++) tb_flow_ack_all(&q->tx[s]);
  mark_passed(c, op, p, now);
}

void tb_on_open(tb_core *c, uint16_t p, const tb_head *h, const tb_open *o, uint64_t now) {
  tb_key *k;
  if (tb_key_hash(o->key, o->key_len) != h->key || (tb_auto_hash(&o->sig, false) != h->signature && tb_auto_hash(&o->sig, true) != h->signature) ||
      o->sig.root >= c->cfg.n || o->sig.peer >= c->cfg.n || o->sig.kind == TB_RECV ||
      !tb_transform_valid(&o->sig) || !tb_coding_valid(&o->sig) || !tb_groups_valid(&o->sig) ||
      o->sig.chunk_elems != tb_coding_chunk(&o->sig, c->cfg.chunk_bytes) ||
      o->sig.count / o->sig.chunk_elems >= 1u << 30 ||
      (o->sig.kind == TB_SEND && !(o->sig.root == p && o->sig.peer == c->cfg.rank) &&
       !(o->sig.peer == p && o->sig.root == c->cfg.rank))) {
    tb_reject(c, p, bad_body);
    return;
  }
  int rc = tb_key_get(c, o->key, o->key_len, false, now, &k);
  if (rc == -EEXIST) {
    char text[TB_TEXT_MAX + 1];
    tb_op *mine = tb_op_find(c, h->key, h->round);
    snprintf(text, sizeof text, "keys '%.80s' and '%.80s' have the same 32-bit hash: rename one", k->name, o->key);
    if (mine && mine->state != TB_OP_EARLY) {
      tb_op_fail(c, mine, -EEXIST, text, now, false); /* p finds out by itself, from our OPEN */
    } else if (!k->failed) {
      k->failed = -EEXIST;
      memcpy(k->failed_text, text, sizeof text);
    }
    return;
  }
  if (rc) {
    c->n.early_dropped++;
    return;
  }
  tb_auto_told(c, k, p, h->round, o);
  tb_key_saw_open(k, p, h->round);
  if (o->has_closed) {
    tb_key_saw_closed(k, p, o->closed_through);
    for (tb_op *op = k->ops; op && !tb_before(o->closed_through, op->round); op = op->key_next) mark_passed(c, op, p, now);
  }
  tb_op *op = tb_op_find(c, h->key, h->round);
  if (!op) {
    if (tb_op_past(k, h->round)) {
      tb_section_add_raw(c, p, h->key, h->round, 2, TB_R_HEARD | TB_R_FINAL | TB_R_CLOSED | TB_R_UNKNOWN | tb_fates_of_past(k, h->round));
      return;
    }
    if (tb_op_new(c, k, h->round, &o->sig, TB_OPENED_ELSEWHERE, now, &op)) {
      c->n.early_dropped++; /* counts as loss; the peer repeats its OPEN each RTO */
      return;
    }
    op->opener = p;
  }
  if (memcmp(&op->sig, &o->sig, sizeof o->sig)) { /* all of it: a hash that agrees proves nothing about bounds */
    tb_section_add(c, p, op, 2, TB_R_HEARD);
    tb_op_mismatch(c, op, op->state == TB_OP_EARLY ? op->opener : c->cfg.rank, &op->sig, p, &o->sig, now);
    return;
  }
  if (!tb_op_takes_part(op, p)) { /* nothing is to be exchanged with it, but that it was heard */
    tb_section_add(c, p, op, 2, TB_R_HEARD);
    tb_due(c, op, now);
    return;
  }
  tb_opened_by(c, op, p, h, now);
  if (h->signature != op->sig_hash) tb_apart(c, op, p, h->stage, now);
  tb_history_told(tb_history_find(k, op->sig_hash), p, o);
  if (op->status && op->state == TB_OP_RETURNED) { /* it failed here, and p cannot have known when it was told */
    op->peer[p].error_at = now;
    tb_op_peer_due(c, op, p, now);
  }
  uint64_t *open_at = &op->peer[p].open_at, soon = now + tb_rto(c, &c->peer[p]);
  if (o->heard) *open_at = UINT64_MAX;
  /* p was silent, and is awake */
  else if (*open_at != UINT64_MAX && *open_at > soon) tb_op_peer_due(c, op, p, *open_at = soon);
  if (op->peer[p].heard_due == UINT64_MAX) { /* a receipt is due soon anyway; wait for it a little */
    op->peer[p].heard_due = now + tb_rto(c, &c->peer[p]) / 4;
    tb_op_peer_due(c, op, p, op->peer[p].heard_due);
  }
}

void tb_flow_ack_all(tb_flow_tx *f) {
  if (f->acked == f->total) return;
  tb_bit_fill(f->ack, 0, f->total);
  f->acked = f->total;
  memset(f->resend, 0, tb_words(f->total) * sizeof *f->resend);
  f->resend_n = 0;
  f->mark_at = UINT64_MAX;
}

void tb_flow_ack(tb_flow_tx *f, uint32_t from, uint32_t to) {
  if (to > f->total) to = f->total;
  if (from >= to) return;
  f->acked += tb_bit_fill(f->ack, from, to);
  for (uint32_t i = tb_bit_next(f->resend, from, to, true); i < to; i = tb_bit_next(f->resend, i + 1, to, true)) {
    tb_bit_clear(f->resend, i);
    f->resend_n--;
  }
}

static void want_again(tb_core *c, tb_op *op, uint16_t p, int s, uint32_t from, uint32_t to, uint32_t seen) {
  tb_flow_tx *f = &op->peer[p].tx[s];
  bool any = false;
  if (to > f->total) to = f->total;
  for (uint32_t i = from; i < to; i++) {
    /* last_step holds step + 1 of the newest transmission, 0 = never sent. Later than what the peer had seen when it
     * asked: it is still under way. */
    if (tb_bit(f->ack, i) || tb_bit(f->resend, i) || !f->last_step[i] || !tb_before(f->last_step[i] - 1, seen))
      continue;
    tb_bit_set(f->resend, i);
    if (!f->resend_n++ || i < f->resend_from) f->resend_from = i;
    any = true;
  }
  op->repaired |= any;
  op->again |= any && s == 0;
  if (any) tb_tx_ready(c, op, p, s);
}

static void on_section(tb_core *c, uint16_t p, const tb_section *s, const uint8_t *ranges, uint32_t seen,
                       uint64_t now) {
  if (s->flags & TB_R_HELD) {
    if (!tb_heirs_got(c, p, s, ranges, now)) tb_reject(c, p, bad_body);
    return;
  }
  tb_op *op = tb_op_find(c, s->key, s->round);
  tb_key *k = tb_key_find(c, s->key);
  if (k && s->flags & TB_R_CLOSED) tb_key_saw_closed(k, p, s->round);
  if (!op && k && s->flags & TB_R_FATES && !(s->flags & TB_R_UNKNOWN) && tb_op_past(k, s->round))
    tb_section_add_raw(c, p, s->key, s->round, 2, TB_R_KNOWN); /* all of it was known when it was forgotten */
  if (!op || !tb_op_takes_part(op, p)) return;
  tb_op_peer *q = &op->peer[p];
  tb_flow_tx *f = &q->tx[s->stage - 1];
  if (q->left) return; /* it is back, and has forgotten what it counted of this round: others settle that (heirs.c) */
  if (s->flags & TB_R_HEARD) q->open_at = UINT64_MAX;
  if (s->flags & TB_R_UNKNOWN) {
    if (tb_late_wanted(c, op, p)) c->n.late_dropped += q->rx[1].total - q->rx[1].got;
    q->nothing = op->recheck = true;
    op->silence_at = 0; /* an exact operation cannot be completed now */
  }
  if (s->flags & (TB_R_CLOSED | TB_R_UNKNOWN)) mark_passed(c, op, p, now);
  if (s->flags & TB_R_KNOWN) q->knows = true;
  if (s->flags & TB_R_FATES && !tb_fates_got(c, op, p, s, ranges, now)) {
    tb_reject(c, p, bad_body);
    return;
  }
  bool scattered = s->stage == 1 && op->carries;
  if (scattered && s->flags & TB_R_FINAL && s->got >= f->total) tb_fate(c, op, p, 0, f->total, true, now);
  if (s->flags & TB_R_FINAL) {
    tb_flow_ack_all(f);
  } else {
    uint32_t at = 0;
    if (s->flags & TB_R_REQUEST) c->peer[p].n.requests_received++;
    for (uint32_t i = 0; i < s->ranges; i++) {
      uint32_t start = tb_get32(ranges + 8 * i), n = tb_get32(ranges + 8 * i + 4);
      if (start < at || start > f->total || n > f->total - start) { /* not ascending, or out of bounds */
        tb_reject(c, p, bad_body);
        return;
      }
      tb_flow_ack(f, at, start);
      if (scattered) tb_fate(c, op, p, at, start, true, now);
      if (s->flags & TB_R_REQUEST) want_again(c, op, p, s->stage - 1, start, start + n, seen);
      at = start + n;
    }
    tb_flow_ack(f, at, s->upto);
    if (scattered) tb_fate(c, op, p, at, s->upto, true, now);
  }
  bool more = s->got <= f->total && s->got > f->confirmed;
  if (more) f->confirmed = s->got;
  /* it is awake: no reason to be patient */
  if (more && op->state != TB_OP_RETURNED && !tb_urgent(op, &c->peer[p], now)) {
    f->marks = 0;
    uint64_t soon = now + tb_rto(c, &c->peer[p]);
    if (f->mark_at != UINT64_MAX && f->mark_at > soon) tb_op_peer_due(c, op, p, f->mark_at = soon);
  }
  if (f->acked == f->total) f->mark_at = UINT64_MAX;
  tb_due(c, op, now); /* the timers look whether it is over now: here it must not be freed */
}

void tb_on_receipt(tb_core *c, uint16_t p, const tb_receipt *r, uint64_t now) {
  const uint8_t *at = r->at;
  for (uint8_t i = 0; i < r->sections; i++) {
    tb_section s;
    tb_section_decode(at, &s);
    on_section(c, p, &s, at + TB_SECTION, r->seen, now);
    at += TB_SECTION + 8u * s.ranges;
  }
}

static void on_mark(tb_core *c, uint16_t p, const tb_head *h, const tb_probe *m, uint64_t now) {
  if (h->stage < 1 || h->stage > 2) {
    tb_reject(c, p, bad_body);
    return;
  }
  tb_op *op = tb_op_find(c, h->key, h->round);
  if (!op) {
    tb_key *k = tb_key_find(c, h->key);
    if (k && tb_op_past(k, h->round))
      tb_section_add_raw(c, p, h->key, h->round, h->stage, TB_R_FINAL | TB_R_CLOSED | TB_R_UNKNOWN | tb_fates_of_past(k, h->round));
    return;
  }
  if (!tb_op_takes_part(op, p)) return;
  if (tb_is_other_mode(op, h->signature)) tb_apart(c, op, p, h->stage, now);
  if (h->signature != op->sig_hash) return;
  tb_flow_rx *r = &op->peer[p].rx[h->stage - 1];
  bool duty = tb_across(op, p), late = h->stage == 2 && tb_after_wanted(c, op, p);
  if (h->stage == 1 && !duty) tb_opened_by(c, op, p, h, now);
  bool returned = op->state == TB_OP_RETURNED || op->state == TB_OP_FINISHING;
  /* it will be wanted, or not, at once after it */
  if (op->state == TB_OP_FINISHING && h->stage == 2 && tb_late_kind(c, op)) return;
  if (returned && h->stage == 2 && !late)
    tb_section_add(c, p, op, 2, op->peer[p].error_at == UINT64_MAX ? TB_R_FINAL | TB_R_CLOSED : TB_R_FINAL);
  else if (r->got >= r->total || (h->stage == 1 && op->swept)) tb_section_add(c, p, op, h->stage, TB_R_FINAL);
  else if (op->state != TB_OP_EARLY || h->stage == 1 || late || duty) {
    if (m->sent > r->total) {
      tb_reject(c, p, bad_body);
      return;
    }
    r->marked = true;
    r->peer_final = m->final;
    if (m->sent > r->sent_known) r->sent_known = m->sent;
    if (c->peer[p].suspect_at) tb_peer_due(c, p, now);
    if (late && !tb_after_wanted(c, op, p)) tb_section_add(c, p, op, 2, returned ? TB_R_FINAL | TB_R_CLOSED : TB_R_FINAL);
    if (r->got < r->sent_known) tb_suspect(c, p, h->step, TB_SURE, now);
    tb_due(c, op, now);
  }
}

void tb_on_probe(tb_core *c, uint16_t p, const tb_head *h, const tb_probe *m, uint64_t now) {
  tb_peer *q = &c->peer[p];
  if (m->kind == TB_P_MARK) {
    on_mark(c, p, h, m, now);
  } else if (m->kind == TB_P_PING) {
    q->want_pong = true;
    tb_say_to(c, p);
    q->pong_id = m->id;
  } else if (m->id > q->ponged) {
    q->ponged = m->id; /* the id of a ping is its frame's length: what came through */
  }
}

void tb_on_error(tb_core *c, uint16_t p, const tb_head *h, const tb_error_body *e, uint64_t now) {
  tb_op *op = tb_op_find(c, h->key, h->round);
  if (e->ack) {
    if (op && tb_op_takes_part(op, p)) op->peer[p].error_at = UINT64_MAX;
    return;
  }
  tb_key *k = tb_key_find(c, h->key);
  /* its OPEN comes first: it is repeated, like this */
  if (op ? !tb_op_concerns(op, p) : !k || !tb_op_past(k, h->round)) return;
  tb_error_body ack = {.ack = 1, .status = e->status, .rank_a = e->rank_a, .rank_b = e->rank_b};
  uint8_t *out = tb_say_begin(c, p, TB_T_ERROR, NULL, now);
  if (out) {
    tb_head_about(out - TB_HEAD, h->key, h->round);
    tb_say_end(c, tb_error_encode(&ack, out, TB_CONTROL_MAX - TB_HEAD), 0);
  }
  if (op && !op->status) {
    /* Whoever notices a dead peer first ends the operation for all: the others draw the same conclusion for the
     * next. */
    for (uint32_t r = 0; e->status == -EHOSTDOWN && r < c->cfg.n; r++)
      if (r != c->cfg.rank && !c->peer[r].gone && now - c->peer[r].last_heard >= c->tune.peer_timeout / 4 * 3)
        c->peer[r].down = true;
    tb_op_fail(c, op, e->status, e->text, now, op->tree); /* with groups not everybody hears of it from p */
  }
}

void tb_on_goodbye(tb_core *c, uint16_t p, uint64_t now) {
  tb_peer *q = &c->peer[p];
  if (q->gone) return;
  q->gone = true;
  tb_peer_presence(c, p);
  c->due = now;
  tb_logf(c, 20, "rank %u has closed its communicator", p);
}
