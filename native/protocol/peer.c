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

uint64_t tb_rtt_max(const tb_core *c) {
  uint64_t m = 0;
  for (uint32_t p = 0; p < c->cfg.n; p++)
    if (!c->peer[p].absent && !c->peer[p].gone && c->peer[p].srtt > m) m = c->peer[p].srtt;
  return m;
}

static void rtt_sample(tb_peer *q, uint64_t r) {
  if (!q->srtt) {
    q->srtt = r;
    q->rttvar = r / 2;
  } else {
    uint64_t d = q->srtt > r ? q->srtt - r : r - q->srtt;
    q->rttvar += d / 4;
    q->rttvar -= q->rttvar / 4;
    q->srtt = q->srtt - q->srtt / 8 + r / 8;
  }
  if (!q->rtt_min || r < q->rtt_min) q->rtt_min = r;
}

void tb_suspect(tb_core *c, tb_peer *q, uint32_t step, uint64_t now) {
  if (q->suspect_at) { /* the pending request must not claim frames that may still be under way */
    q->again = true;
    q->again_step = step;
    return;
  }
  q->suspect_at = now ? now : 1;
  q->suspect_step = step;
  uint64_t t = now + q->srtt / 4;
  if (t < c->due) c->due = t;
}

/* Frames with a step above `seen` tell that those between are late or lost. They are only suspected: several flows
 * reorder. The request waits a quarter of a round trip (timers.c). */
static void step_seen(tb_core *c, tb_peer *q, const tb_head *h, uint64_t now) {
  bool data = h->type == TB_T_DATA;
  if (tb_before(q->seen, h->step)) tb_suspect(c, q, h->step, now);
  uint32_t next = h->step + (data ? 1 : 0);
  if (tb_before(q->seen, next)) q->seen = next;
  if ((int32_t)(q->seen + c->cfg.window - q->granted) >= (int32_t)(c->cfg.window / 4 + 1)) q->want_grant = c->control_due = true;
}

void tb_peer_heard(tb_core *c, uint16_t p, const tb_head *h, uint64_t now) {
  tb_peer *q = &c->peer[p];
  q->last_heard = now ? now : 1;
  q->silent_rounds = 0;
  if (q->absent) {
    q->absent = false;
    tb_logf(c, 30, "rank %u is back", p);
    c->liveness_changed = true;
    c->due = 0;
  }
  q->down = false;
  if (h->hold_us != TB_HOLD_NONE) {
    uint32_t r = (uint32_t)now - h->echo_ns, hold = h->hold_us * 1000u;
    if (r > hold && r - hold < 2000000000u) rtt_sample(q, r - hold);
  }
  q->echo_stamp = h->stamp_ns;
  q->echo_at = now ? now : 1;
  if (tb_before(q->credit, h->credit)) {
    q->credit = h->credit;
    if (q->stalled_at) {
      q->stalled_at = 0;
      for (tb_op *op = c->ops; op; op = op->next) op->hot = true;
    }
  }
  step_seen(c, q, h, now);
}

/* Called when a round closes. Only rounds that began after the last one counted do: a hundred buckets in flight during
 * one hiccup are one silence, not a hundred. */
void tb_peer_silent(tb_core *c, tb_op *op, uint64_t now) {
  bool changed = false;
  for (uint32_t p = 0; p < c->cfg.n; p++) {
    tb_peer *q = &c->peer[p];
    if (p == c->cfg.rank || !tb_op_takes_part(op, p) || q->absent || q->gone) continue;
    if (q->last_heard >= op->issued || op->issued < q->silent_mark) continue;
    q->silent_mark = now;
    if (++q->silent_rounds < c->tune.absent_after) continue;
    q->absent = changed = true;
    q->n.absences++;
    q->probe_at = now + c->tune.probe_every;
    tb_logf(c, 30, "rank %u is absent: no frame in %u rounds; rounds no longer wait for it (it is probed and counts again "
            "as soon as it answers)", p, q->silent_rounds);
  }
  if (changed) {
    c->liveness_changed = true;
    c->due = 0;
  }
}

bool tb_peer_expected(const tb_op *op, const tb_core *c, uint32_t p) {
  const tb_peer *q = &c->peer[p];
  if (!tb_op_takes_part(op, p)) return false;
  if (!op->lossy) return true;
  return !q->absent && !q->gone && !op->peer[p].passed && !op->peer[p].nothing;
}

void tb_section_add_raw(tb_core *c, uint16_t p, uint32_t key, uint32_t round, uint8_t stage, uint8_t flags) {
  tb_peer *q = &c->peer[p];
  c->control_due = true;
  for (uint32_t i = 0; i < q->sections; i++) {
    tb_pending_section *s = &q->section[i];
    if (s->key == key && s->round == round && s->stage == stage) {
      s->flags |= flags;
      return;
    }
  }
  if (q->sections == TB_SECTIONS) return; /* whoever waits for it asks again within an RTO */
  q->section[q->sections++] = (tb_pending_section){key, round, stage, flags};
}

void tb_section_add(tb_core *c, uint16_t p, const tb_op *op, uint8_t stage, uint8_t flags) {
  tb_section_add_raw(c, p, op->key->hash, op->round, stage, flags);
}

uint64_t tb_pace_interval(const tb_core *c, const tb_peer *q) {
  uint64_t rtt = q->rtt_min ? q->rtt_min : 0;
  return rtt / (c->cfg.window ? c->cfg.window : 1);
}
