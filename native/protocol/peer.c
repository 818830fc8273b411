/* peer.c - what this rank knows of a peer, whatever the operation: round trip, credit, pace, presence. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "protocol/core.h"

void tb_logf(tb_core *c, int level, const char *fmt, ...) {
  char text[TB_TEXT_MAX * 2];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  if (c->cfg.log) c->cfg.log(c->cfg.ctx, level, text);
}

uint64_t tb_rto(const tb_core *c, const tb_peer *q) {
  uint64_t rto = q->srtt ? q->srtt + 4 * q->rttvar : 10 * c->tune.rto_min;
  if (rto < c->tune.rto_min) rto = c->tune.rto_min;
  return rto > c->tune.rto_max ? c->tune.rto_max : rto;
}

uint64_t tb_rto_doubled(const tb_core *c, const tb_peer *q, uint32_t times) {
  uint64_t wait = tb_rto(c, q) << (times < 8 ? times : 8);
  return wait < c->tune.rto_max ? wait : c->tune.rto_max;
}

uint64_t tb_rtt_max(const tb_core *c) {
  uint64_t m = 0;
  for (uint32_t p = 0; p < c->cfg.n; p++)
    if (tb_live(c, p) && c->peer[p].srtt > m) m = c->peer[p].srtt;
  return m;
}

uint64_t tb_repair_trip(const tb_core *c) {
  return ~tb_clocks_first(&c->trips);
}

static void rtt_sample(tb_core *c, uint16_t p, uint64_t r) {
  tb_peer *q = &c->peer[p];
  if (!q->srtt) {
    q->srtt = r;
    q->rttvar = r / 2;
  } else {
    uint64_t d = q->srtt > r ? q->srtt - r : r - q->srtt;
    q->rttvar += d / 4;
    q->rttvar -= q->rttvar / 4;
    q->srtt = q->srtt - q->srtt / 8 + r / 8;
  }
  if (q->rtt_min && r >= q->rtt_min) return;
  q->rtt_min = r;
  if (tb_live(c, p)) tb_clocks_set(&c->trips, p, ~r);
}

void tb_core_trip(tb_core *c, uint16_t p, uint64_t ns) { rtt_sample(c, p, ns ? ns : 1); }

/* Several flows reorder. How far is measured: frames that fill a gap tell how late they were (compare RACK, RFC
 * 8985). */
uint64_t tb_reorder_wait(const tb_peer *q) { return q->reorder > q->rtt_min / 8 ? q->reorder : q->rtt_min / 8; }

static void filled_gap(tb_peer *q, uint64_t now) {
  if (!q->gap_at) return;
  uint64_t late = (now - q->gap_at) * 5 / 4, most = q->srtt > TB_MS ? q->srtt : TB_MS;
  if (late > q->reorder) q->reorder = late < most ? late : most;
  if (q->missing && --q->missing == 0) {
    q->suspect_at = 0;
    q->again = false;
  }
}

void tb_suspect(tb_core *c, uint16_t p, uint32_t step, uint32_t missing, uint64_t now) {
  tb_peer *q = &c->peer[p];
  q->missing = missing > TB_SURE - q->missing ? TB_SURE : q->missing + missing;
  if (q->suspect_at) { /* the pending request must not claim frames that may still be under way */
    q->again_at = now;
    q->again = true;
    q->again_step = step;
    return;
  }
  q->gap_at = q->suspect_at = now ? now : 1;
  q->suspect_step = step;
  q->reorder -= q->reorder / 64;
  tb_peer_due(c, p, now + tb_reorder_wait(q));
}

uint32_t tb_window_start(const tb_core *c, uint32_t share) {
  uint64_t w = c->tune.window_start / (c->cfg.chunk_bytes + TB_HEAD);
  if (w < c->tune.window_min) w = c->tune.window_min;
  return w < share ? (uint32_t)w : share;
}

/* With groups three quarters of the buffer are for kin: they are few, and send nearly everything. */
uint32_t tb_window_most(const tb_core *c, uint32_t p) {
  if (!c->tree || c->team) return c->cfg.window;
  uint64_t kin = (uint64_t)c->cfg.window * (c->cfg.n - 1) * 3 / 4 / c->tree->kin_n, most = kin;
  if (c->tree->kin[p] == TB_KIN_NONE) most = c->cfg.window / 4;
  if (most < c->tune.window_min) most = c->tune.window_min;
  return (uint32_t)(most < c->tune.window_max ? most : c->tune.window_max);
}

/* What a peer may begin with is known to it already; from its next grant on it is held to its share. */
void tb_window_shares(tb_core *c) {
  for (uint32_t p = 0; p < c->cfg.n && c->tree; p++)
    if (c->peer[p].window > tb_window_most(c, p)) c->peer[p].window = tb_window_most(c, p);
}

/* A window that a round trip fills without a queue building up is too small for the path; one that queues is not made
 * larger, whatever the buffer would hold. */
static void tune_window(tb_core *c, uint16_t p, uint64_t now) {
  tb_peer *q = &c->peer[p];
  uint32_t most = tb_window_most(c, p);
  if (q->window >= most || now - q->epoch_at < q->srtt) return;
  if (q->seen - q->epoch_seen >= q->window / 2 && q->srtt && q->srtt < 2 * q->rtt_min) {
    q->window = q->window > most / 2 ? most : 2 * q->window;
  }
  q->epoch_seen = q->seen;
  q->epoch_at = now;
}

/* Frames with a step above `seen` tell that those between are late or lost. They are only suspected: several flows
 * reorder. The request waits a little (timers.c). */
static void step_seen(tb_core *c, uint16_t p, const tb_head *h, uint64_t now) {
  tb_peer *q = &c->peer[p];
  bool data = h->type == TB_T_DATA;
  if (data) tb_rate_data(c, p, h->step, now);
  if (tb_before(q->seen, h->step)) tb_suspect(c, p, h->step, h->step - q->seen, now);
  uint32_t next = h->step + (data ? 1 : 0);
  if (tb_before(q->seen, next)) q->seen = next;
  else if (data && tb_before(next, q->seen)) filled_gap(q, now);
  tune_window(c, p, now);
  uint32_t window = tb_grant_window(c, q, now), lump = window / 4 + 1;
  /* somebody sends ahead of this rank, and may go on only as it hears what came */
  if (c->early_memory && lump > 8) lump = 8;
  if ((int32_t)(q->seen + window - q->granted) < (int32_t)lump) return;
  q->want_grant = true;
  tb_say_to(c, p);
}

/* Grants are absolute, and the newest counts: a peer to which too many send takes back what it had promised. Which is
 * newer its stamp tells, and after a second without one whichever comes. */
static void credit_heard(tb_core *c, uint16_t p, const tb_head *h, uint64_t now) {
  tb_peer *q = &c->peer[p];
  if (q->credit_at && now - q->credit_at < TB_SEC && tb_before(h->stamp_ns, q->credit_stamp)) return;
  bool more = tb_before(q->credit, h->credit);
  uint32_t taken = more ? h->credit - q->credit : 0;
  q->ahead -= taken < q->ahead ? taken : q->ahead;
  q->credit = h->credit;
  q->credit_stamp = h->stamp_ns;
  q->credit_at = now ? now : 1;
  if (tb_before(q->step, q->credit) && q->credit - q->step > q->widest) q->peer_window = q->widest = q->credit - q->step;
  /* It has seen the frame of asked_from, or a later one: its window is at most what lies between that and its grant. */
  if (q->asking && h->hold_us != TB_HOLD_NONE && !tb_before(h->echo_ns, q->asked_stamp)) {
    uint32_t window = q->credit - q->asked_from;
    q->asking = false;
    q->peer_window = tb_before(q->asked_from, q->credit) ? window < q->widest ? window : q->widest : 1;
    q->narrow = q->peer_window < q->widest / 2;
  }
  if (!more) return;
  if (tb_before(q->step, q->credit)) tb_tx_unstall(c, p);
}

void tb_peer_heard(tb_core *c, uint16_t p, const tb_head *h, uint64_t now) {
  tb_peer *q = &c->peer[p];
  q->last_heard = now ? now : 1;
  q->silent_rounds = 0;
  tb_members_alive(c, p, now);
  if (q->absent) {
    q->absent = false;
    tb_logf(c, 30, "rank %u is back", p);
    tb_peer_presence(c, p);
    for (tb_op *op = c->ops; op; op = op->next)
      for (int s = 0; s < 2; s++) tb_tx_ready(c, op, p, s);
  }
  q->down = false;
  /* This rank was stopped, or starved of CPU: the frame lay in a buffer, and its age tells nothing about the path. */
  bool stalled = c->due && now > c->due && now - c->due > 20 * TB_MS;
  if (h->hold_us != TB_HOLD_NONE && !stalled) {
    uint32_t r = (uint32_t)now - h->echo_ns, hold = h->hold_us * 1000u;
    if (r > hold && r - hold < 2000000000u) {
      rtt_sample(c, p, r - hold);
      if (h->type == TB_T_DATA) tb_rate_trip(c, p, r - hold);
    }
  }
  q->echo_stamp = h->stamp_ns;
  q->echo_at = stalled ? 0 : now ? now : 1;
  credit_heard(c, p, h, now);
  tb_rate_incast_told(c, p, h->incast);
  step_seen(c, p, h, now);
}

void tb_peer_presence(tb_core *c, uint16_t p) {
  const tb_peer *q = &c->peer[p];
  bool up = tb_live(c, p);
  c->away = 0;
  for (uint32_t i = 0; i < c->cfg.n; i++) c->away += !tb_live(c, i);
  tb_clocks_set(&c->trips, p, up && q->rtt_min ? ~q->rtt_min : UINT64_MAX);
  for (tb_op *op = c->ops; op; op = op->next) op->told_stale = true;
  tb_rate_least_told(c);
  tb_peer_due(c, p, 0);
  c->liveness_changed = true;
}

/* Called when a round closes. Only rounds that began after the last one counted do: a hundred buckets in flight during
 * one hiccup are one silence, not a hundred. */
void tb_peer_silent(tb_core *c, tb_op *op, uint64_t now) {
  if (!op->lossy) return; /* the root of a broadcast closes round after round without hearing from anybody */
  for (uint32_t p = 0; p < c->cfg.n; p++) {
    tb_peer *q = &c->peer[p];
    if (p == c->cfg.rank || !tb_op_takes_part(op, p)) continue;
    const tb_flow_rx *r = op->peer[p].rx;
    if (r[0].got == r[0].total && r[1].got == r[1].total) continue; /* it owed nothing: no round waited for it */
    if (q->last_heard >= op->issued || op->issued < q->silent_mark) continue;
    q->silent_mark = now;
    q->silent_rounds++;
    tb_members_silent(c, (uint16_t)p, now);
    if (!tb_live(c, p) || q->silent_rounds < c->tune.absent_after) continue;
    q->absent = true;
    q->n.absences++;
    q->probed_at = now;
    tb_peer_presence(c, (uint16_t)p);
    tb_logf(c, 30, "rank %u is absent: no frame in %u rounds; rounds no longer wait for it (it is probed and counts again "
            "as soon as it answers)", p, q->silent_rounds);
  }
}

bool tb_peer_expected(const tb_op *op, const tb_core *c, uint32_t p) {
  if (!tb_op_takes_part(op, p) || op->peer[p].left) return false;
  if (!op->lossy) return true;
  return tb_live(c, p) && !op->peer[p].passed && !op->peer[p].nothing;
}

bool tb_urgent(const tb_op *op, const tb_peer *q, uint64_t now) {
  /* An owner that has not issued an agreed round closes it by the others' deadlines. */
  if (op->state == TB_OP_EARLY && tb_agrees(op)) return op->swept;
  /* An agreed round's chunks are waited for beyond its deadline, by whoever lacks them: the others begin the next one,
   * and by as much as one comes late to it, it has less time for its data. */
  bool waited_for = tb_agrees(op) || (op->lossy && op->state != TB_OP_RETURNED);
  return waited_for && op->deadline < now + 8 * q->srtt;
}

static void section_add(tb_core *c, uint16_t p, tb_pending_section add) {
  tb_peer *q = &c->peer[p];
  tb_say_to(c, p);
  for (uint32_t i = 0; i < q->sections; i++) {
    tb_pending_section *s = &q->section[i];
    if (s->key == add.key && s->round == add.round && s->stage == add.stage) {
      s->flags |= add.flags;
      if (add.got > s->got) s->got = add.got;
      return;
    }
  }
  /* else: whoever waits for it asks again within an RTO */
  if (q->sections < TB_SECTIONS) q->section[q->sections++] = add;
}

void tb_section_add_raw(tb_core *c, uint16_t p, uint32_t key, uint32_t round, uint8_t stage, uint8_t flags) {
  section_add(c, p, (tb_pending_section){.key = key, .round = round, .stage = stage, .flags = flags});
}

void tb_section_add(tb_core *c, uint16_t p, const tb_op *op, uint8_t stage, uint8_t flags) {
  section_add(c, p, (tb_pending_section){.key = op->key->hash, .round = op->round, .stage = stage, .flags = flags,
                                         .got = op->peer[p].rx[stage - 1].got});
}

uint64_t tb_pace_interval(const tb_peer *q) { return q->rtt_min / (q->peer_window ? q->peer_window : 1); }
