/* timers.c - what happens because time passed. Every wait of the protocol has its clock here; none is without bound. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "protocol/core.h"

static void earlier(uint64_t *at, uint64_t t) {
  if (t < *at) *at = t;
}

/* Where ranks agree, all of them wait for what one lacks: after an outage the next try may come late by a part of it
 * only, not by as much again. Intervals grow so much slower there. */
enum { AGREED_TRIES = 4 };

/* When something that p has not acknowledged is said again: after an RTO, and while p is silent at ever longer
 * intervals, up to rto_max. It may be stopped, and control frames fill its buffer under no credit. `since`: when it was
 * first said; `tries`: in the time that p has been silent. */
static uint64_t said_again(const tb_core *c, const tb_peer *q, uint64_t since, uint32_t tries, uint64_t now) {
  uint64_t heard = q->last_heard > since ? q->last_heard : since, silent = (now - heard) / tries, wait = tb_rto(c, q);
  if (silent > wait) wait = silent;
  return now + (wait < c->tune.rto_max ? wait : c->tune.rto_max);
}

/* The same for the next mark, of which so many were said. */
static uint64_t mark_again(const tb_core *c, const tb_op *op, const tb_peer *q, uint32_t said, uint64_t now) {
  return now + tb_rto_doubled(c, q, tb_agrees(op) && tb_urgent(op, q, now) ? said / AGREED_TRIES : said);
}

static bool say_open(tb_core *c, tb_op *op, uint16_t p, uint64_t now) {
  uint8_t *b = tb_say_begin(c, p, TB_T_OPEN, op, now);
  if (!b) return false;
  tb_open o = {.sig = op->called, .heard = op->peer[p].opened, .has_closed = op->has_closed,
               .closed_through = op->closed_through, .key_len = op->key->len};
  tb_history_tell(c, op->history, &o);
  tb_auto_tell(op->key, &o);
  memcpy(o.key, op->key->name, op->key->len);
  op->peer[p].heard_due = UINT64_MAX;
  tb_say_end(c, tb_open_encode(&o, b, TB_CONTROL_MAX - TB_HEAD), 0);
  return true;
}

static bool say_mark(tb_core *c, tb_op *op, uint16_t p, int s, uint64_t now) {
  uint8_t *b = tb_say_begin(c, p, TB_T_PROBE, op, now);
  if (!b) return false;
  const tb_flow_tx *f = &op->peer[p].tx[s];
  /* Final is what has left, not what is decided: what still waits for credit or pace would else be given up at the
   * peer. */
  tb_ready ready = tb_flow_ready(c, op, p, s);
  bool final = op->geo.kind == TB_SEND || (!ready.more && f->next >= ready.n);
  tb_probe m = {.kind = TB_P_MARK, .final = final, .sent = f->next};
  tb_head_stage(b - TB_HEAD, (uint8_t)(s + 1));
  tb_say_end(c, tb_probe_encode(&m, b, TB_CONTROL_MAX - TB_HEAD), 0);
  return true;
}

static bool say_error(tb_core *c, tb_op *op, uint16_t p, uint64_t now) {
  uint8_t *b = tb_say_begin(c, p, TB_T_ERROR, op, now);
  if (!b) return false;
  tb_error_body e = {.status = op->status, .rank_a = c->cfg.rank, .rank_b = p, .text_len = (uint8_t)strnlen(op->error, TB_TEXT_MAX)};
  memcpy(e.text, op->error, e.text_len);
  tb_say_end(c, tb_error_encode(&e, b, TB_CONTROL_MAX - TB_HEAD), 0);
  return true;
}

/* The clocks an operation keeps towards one peer. When the first is due again: not later than now if it found no
 * room. */
static uint64_t op_peer(tb_core *c, tb_op *op, uint16_t p, uint64_t now) {
  tb_op_peer *q = &op->peer[p];
  uint64_t rto = tb_rto(c, &c->peer[p]), next = UINT64_MAX;
  uint32_t tries = tb_agrees(op) ? AGREED_TRIES : 1;
  uint64_t again = said_again(c, &c->peer[p], op->issued ? op->issued : op->born, tries, now);
  bool asleep = c->peer[p].absent && op->lossy;
  if (q->error_at <= now && say_error(c, op, p, now)) q->error_at = again;
  earlier(&next, q->error_at);
  if (q->open_at <= now) {
    /* An absent peer gets each round's OPEN once: when it wakes it must learn where the others are. */
    if (say_open(c, op, p, now)) q->open_at = asleep ? UINT64_MAX : again;
  }
  earlier(&next, q->open_at);
  if (q->heard_due <= now) {
    tb_section_add(c, p, op, tb_geo_scatters(&op->geo) ? 1 : 2, TB_R_HEARD);
    q->heard_due = now + rto; /* should there be no room for it; said, it is over */
  }
  earlier(&next, q->heard_due);
  earlier(&next, tb_fates_tell(c, op, p, now));
  for (int s = 0; s < 2; s++) {
    tb_flow_tx *f = &q->tx[s];
    if (f->mark_at == UINT64_MAX) continue;
    if (!tb_tx_flow_wanted(c, op, p, s)) {
      f->mark_at = UINT64_MAX;
      continue;
    }
    if (f->mark_at <= now && say_mark(c, op, p, s, now)) f->mark_at = mark_again(c, op, &c->peer[p], f->marks++, now);
    earlier(&next, f->mark_at);
  }
  return next;
}

/* A key that one rank forgot or mistyped would else be a silent wait without end. */
static void tell_who_is_missing(tb_core *c, tb_op *op, int missing, uint64_t now) {
  if (missing < 0 || now < op->waits_told_at) return;
  op->waits_told_at = now + 60 * TB_SEC;
  tb_logf(c, 30, "rank %u waits in %s of key '%.60s', round %u: rank %d is alive but has not issued it", c->cfg.rank,
          tb_kind_name(&op->sig), op->key->name, op->round, missing);
}

static bool exact_overdue(tb_core *c, tb_op *op, uint64_t now) {
  if (op->error_bound <= now) {
    char text[TB_TEXT_MAX + 1];
    int missing = -1;
    for (uint32_t p = 0; p < c->cfg.n && missing < 0; p++)
      if (p != c->cfg.rank && tb_op_takes_part(op, p) && !op->peer[p].opened) missing = (int)p;
    if (missing >= 0)
      snprintf(text, sizeof text, "rank %u gave up after %.3f s: rank %d has not issued this operation", c->cfg.rank,
               (double)(op->error_bound - op->issued) * 1e-9, missing);
    else
      snprintf(text, sizeof text, "rank %u gave up after %.3f s: its deadline for an exact operation passed", c->cfg.rank,
               (double)(op->error_bound - op->issued) * 1e-9);
    tb_op_fail(c, op, -ETIMEDOUT, text, now, true);
    return true;
  }
  if (now < op->silence_at) return false;
  /* A short peer_timeout must leave room for several probes: one lost, or a busy peer, is not silence. */
  uint64_t every = c->tune.probe_every < c->tune.peer_timeout / 8 ? c->tune.probe_every : c->tune.peer_timeout / 8;
  op->silence_at = now + every;
  if (!op->waits_told_at) op->waits_told_at = op->issued + 5 * TB_SEC;
  earlier(&op->silence_at, op->waits_told_at > now ? op->waits_told_at : UINT64_MAX);
  int unissued = -1;
  for (uint32_t p = 0; p < c->cfg.n; p++) {
    tb_peer *q = &c->peer[p];
    if (p == c->cfg.rank || !tb_op_takes_part(op, p)) continue;
    tb_op_peer *w = &op->peer[p];
    bool rest = w->rx[1].got < w->rx[1].total && !(tb_agrees(op) && tb_nothing_more(op, p));
    bool owes = rest || (!op->swept && w->rx[0].got < w->rx[0].total) || w->tx[1].acked < w->tx[1].total;
    uint64_t since = q->last_heard > op->issued ? q->last_heard : op->issued;
    /* it told us that it does not know this round (any more): it failed or was cancelled there */
    if (owes && w->nothing) {
      char text[TB_TEXT_MAX + 1];
      bool view = op->view != c->vote.number; /* for some it could be completed, for others not (members.c) */
      snprintf(text, sizeof text, "rank %u ended round %u without completing it (%s): its data will not come to rank %u", p, op->round,
               view ? "the membership changed" : "an error or a cancellation there", c->cfg.rank);
      tb_op_fail(c, op, view ? -ENETRESET : -ECANCELED, text, now, true);
      return true;
    }
    if (owes && (q->gone || now - since >= c->tune.peer_timeout)) {
      char text[TB_TEXT_MAX + 1];
      if (q->gone)
        snprintf(text, sizeof text, "rank %u has closed its communicator before this exact operation was complete", p);
      else
        snprintf(text, sizeof text, "rank %u was silent for %.1f s (peer_timeout) in an exact operation of rank %u: it is dead, "
                 "stopped or unreachable", p, (double)(now - since) * 1e-9, c->cfg.rank);
      q->down = !q->gone;
      /* one is enough: nothing goes on */
      if (q->silent_rounds < c->tune.evict_after) q->silent_rounds = (uint32_t)c->tune.evict_after;
      tb_members_silent(c, (uint16_t)p, now);
      tb_op_fail(c, op, -EHOSTDOWN, text, now, true);
      return true;
    }
    if (!owes) continue; /* it may be silent longer than that */
    if (unissued < 0 && !w->opened && now - q->last_heard < 3 * every) unissued = (int)p;
    uint64_t probe = (q->probed_at > since ? q->probed_at : since) + every;
    if (probe <= now) {
      q->probed_at = now;
      q->want_ping = true;
      q->ping_len = 0;
      tb_say_to(c, (uint16_t)p);
      probe = now + every;
    }
    earlier(&op->silence_at, probe);
    earlier(&op->silence_at, since + c->tune.peer_timeout);
  }
  tell_who_is_missing(c, op, unissued, now);
  return false;
}

/* The deadline, less what returning by it takes: the clock that ends the operation runs late, as measured, and so will
 * the one that wakes its caller. */
static uint64_t must_end(const tb_core *c, const tb_op *op) {
  if (op->work) return op->deadline; /* its own is the earlier one already */
  uint64_t most = (op->deadline - op->issued) / 8;
  uint64_t cost = (uint64_t)((double)(op->geo.count * op->geo.elem) * c->commit_cost[0]) + c->lateness;
  return op->deadline - (cost < most ? cost : most);
}

/* Rule 4. True: the operation has returned. */
static bool end_early(tb_core *c, tb_op *op, uint64_t now, uint64_t *next) {
  if (!op->early || op->state != TB_OP_ISSUED) return false;
  bool first = tb_geo_scatters(&op->geo) && !op->swept && op->chunks;
  if (!first && tb_agrees(op)) return false; /* its stage 2 goes on past the deadline until it is complete */
  uint64_t at = tb_early_end(c, op, first ? 0 : 1);
  if (at > now) {
    earlier(next, at);
    return false;
  }
  op->cut_short = true;
  c->n.early_timeouts++;
  if (first) tb_stage1_sweep(c, op, now, TB_CLOSE_ALL); /* stage 2 has its own end: timers come back for it */
  else tb_op_finish(c, op, now);
  return !first;
}

static bool room(tb_core *c) { return tb_out_slot(c) && c->ctl_n < TB_CTL_MAX; }

static void op_timers(tb_core *c, tb_op *op, uint64_t now) {
  op->due = UINT64_MAX;
  uint64_t next = UINT64_MAX;
  if (op->state == TB_OP_ISSUED && op->lossy && must_end(c, op) <= now) {
    op->hit = true;
    if (!tb_agrees(op)) {
      tb_op_finish(c, op, now);
      return;
    }
    tb_agree_after_deadline(c, op, now);
  }
  if (op->state == TB_OP_ISSUED && !op->lossy) {
    if (exact_overdue(c, op, now)) return;
    earlier(&next, op->error_bound);
    earlier(&next, op->silence_at);
  }
  if (op->state == TB_OP_ISSUED && op->lossy) earlier(&next, must_end(c, op));
  if (!op->swept && op->lossy && tb_geo_scatters(&op->geo) && op->state <= TB_OP_ISSUED) {
    uint64_t close = tb_stage1_close_at(c, op);
    uint64_t relays = op->relays_open ? tb_relays_close_at(c, op, close) : UINT64_MAX;
    tb_close_what what = close <= now ? TB_CLOSE_ALL : relays <= now ? TB_CLOSE_RELAYS : TB_CLOSE_COMPLETE;
    if (what != TB_CLOSE_COMPLETE || op->recheck) tb_stage1_sweep(c, op, now, what);
    op->recheck = false;
    if (!op->swept) earlier(&next, op->relays_open ? relays : close);
  }
  if (end_early(c, op, now, &next)) return;
  uint32_t n = c->cfg.n, me = c->cfg.rank; /* from the next rank on: else all announce themselves to rank 0 first */
  for (uint32_t p = tb_clocks_due(&op->clock, me + 1u, now); p < n && room(c); p = tb_clocks_due(&op->clock, p + 1, now))
    tb_clocks_set(&op->clock, p, op_peer(c, op, (uint16_t)p, now));
  for (uint32_t p = tb_clocks_due(&op->clock, 0, now); p <= me && room(c); p = tb_clocks_due(&op->clock, p + 1, now))
    tb_clocks_set(&op->clock, p, op_peer(c, op, (uint16_t)p, now));
  /* A clock that is due but found no room in the queue is not waited for: tb_core_sent calls when there is room
   * again. */
  if (tb_clocks_first(&op->clock) > now) earlier(&next, tb_clocks_first(&op->clock));
  else c->starved = true;
  earlier(&next, tb_heirs_ask(c, op, now));
  tb_due(c, op, next > now ? next : now + 1);
  if (op->state == TB_OP_EARLY) tb_op_retire(c, op, now);
  else tb_op_check(c, op, now);
}

/* Does p owe chunks of this flow that may still be asked for? */
static bool incomplete(const tb_core *c, const tb_op *op, uint16_t p, int s, uint64_t now) {
  const tb_flow_rx *r = &op->peer[p].rx[s];
  if (op->lossy && op->state <= TB_OP_ISSUED && !c->tune.repair) return false; /* late delivery and carry go on */
  if (op->status || !tb_op_takes_part(op, p) || r->got >= r->total) return false;
  /* An owner that has not issued the round (and may never) hands it out all the same. */
  if (!op->peer[p].opened && !((s == 1 || tb_across(op, p)) && (r->got || r->marked))) return false;
  bool late = op->lossy && op->state == TB_OP_ISSUED && op->deadline < now + c->peer[p].rtt_min;
  if (late && !(s == 1 && tb_agrees(op))) return false; /* it would come too late; an agreed result is waited for */
  if (s == 0) return !op->swept && op->state <= TB_OP_ISSUED;
  return op->state == TB_OP_ISSUED || tb_after_wanted(c, op, p);
}

/* From when on what p owes is urgent. */
static uint64_t hurry_from(const tb_core *c, uint16_t p, uint64_t now) {
  for (const tb_op *op = c->ops; op; op = op->next) /* by deadline: the first is the most urgent */
    if ((op->lossy || tb_agrees(op)) && op->state != TB_OP_RETURNED &&
        (incomplete(c, op, p, 0, now) || incomplete(c, op, p, 1, now))) {
      uint64_t before = 8 * c->peer[p].srtt;
      return tb_urgent(op, &c->peer[p], now) ? now : op->deadline - before + 1;
    }
  return UINT64_MAX;
}

/* All that p has begun to send was sent to its end. */
static bool ended(const tb_core *c, uint16_t p, uint64_t now) {
  for (const tb_op *op = c->ops; op; op = op->next)
    for (int s = 0; s < 2; s++)
      if (incomplete(c, op, p, s, now) && op->peer[p].rx[s].got && !op->peer[p].rx[s].marked) return false;
  return true;
}

/* A suspicion that has aged longer than reordering lasts becomes one request for all flows of that peer. */
static void request(tb_core *c, uint16_t p, uint64_t now) {
  tb_peer *q = &c->peer[p];
  /* In a hurry each new sign of loss is worth a request: what was asked for and is under way is not sent again
   * (`seen`). */
  uint64_t hurry_at = hurry_from(c, p, now);
  bool hurry = hurry_at <= now;
  uint64_t wait = hurry ? tb_reorder_wait(q) : tb_rto(c, q);
  uint64_t ripe = q->suspect_at + tb_reorder_wait(q), free_at = q->asked_at ? q->asked_at + wait : 0;
  if (ripe > now || free_at > now) {
    uint64_t at = ripe > free_at ? ripe : free_at;
    tb_peer_due(c, p, hurry_at > now && hurry_at < at ? hurry_at : at);
    return;
  }
  uint64_t patience = q->suspect_at + q->srtt / 2;
  /* more may be missing by the end of the flow, and a request is dear */
  if (!hurry && now < patience && !ended(c, p, now)) {
    tb_peer_due(c, p, hurry_at < patience ? hurry_at : patience);
    return;
  }
  bool asked = false;
  for (tb_op *op = c->ops; op; op = op->next)
    for (int s = 0; s < 2; s++)
      if (incomplete(c, op, p, s, now)) {
        tb_section_add(c, p, op, (uint8_t)(s + 1), TB_R_REQUEST);
        asked = op->repaired = true;
      }
  if (q->again && q->again_at + tb_reorder_wait(q) <= now) { /* by now this is ripe as well */
    q->suspect_step = q->again_step;
    q->again = false;
  }
  q->ask_step = q->suspect_step;
  if (asked) q->asked_at = now;
  q->suspect_at = 0;
  q->missing = 0;
  if (q->again) {
    q->again = false;
    tb_suspect(c, p, q->again_step, TB_SURE, now);
  }
}

static void peer_timers(tb_core *c, uint16_t p, uint64_t now) {
  tb_peer *q = &c->peer[p];
  tb_clocks_set(&c->clock, p, UINT64_MAX);
  tb_grant_timers(c, p, now); /* of who is gone as well: others may have what it will not use */
  if (q->gone) return;
  if (q->resume_at <= now) tb_tx_resume(c, p);
  else if (q->resume_at != UINT64_MAX) tb_peer_due(c, p, q->resume_at);
  if (q->suspect_at) request(c, p, now);
  uint64_t promised = tb_rate_promised(c, p, now);
  if (promised != UINT64_MAX) tb_peer_due(c, p, promised);
  bool ping = false;
  if (q->stalled_at) { /* the grant may have been lost: ask */
    if (q->ask_grant_at <= now) {
      ping = true;
      q->ask_grant_at = said_again(c, q, q->stalled_at, 1, now);
    }
    tb_peer_due(c, p, q->ask_grant_at);
  }
  if (q->absent) {
    if (q->probed_at + c->tune.probe_every <= now) {
      ping = true;
      q->probed_at = now;
    }
    tb_peer_due(c, p, q->probed_at + c->tune.probe_every);
  }
  bool idle = now - q->last_sent >= c->tune.keepalive;
  ping |= idle;
  tb_peer_due(c, p, (idle ? now : q->last_sent) + c->tune.keepalive);
  if (ping && !q->want_ping) {
    q->want_ping = true;
    q->ping_len = 0;
    tb_say_to(c, p);
  }
}

void tb_core_timers(tb_core *c, uint64_t now) {
  if (c->due > now && !c->liveness_changed) return;
  if (c->due && c->due < now) { /* how late this rank's clock runs: a part of every reserve */
    uint64_t late = now - c->due;
    if (late > 5 * TB_MS) late = 5 * TB_MS;
    c->lateness = late > c->lateness ? late : c->lateness - c->lateness / 64;
  }
  bool all = c->liveness_changed;
  c->liveness_changed = false;
  c->due = UINT64_MAX;
  uint32_t n = c->cfg.n;
  for (uint32_t p = tb_clocks_due(&c->clock, 0, now); p < n; p = tb_clocks_due(&c->clock, p + 1, now)) peer_timers(c, (uint16_t)p, now);
  c->due = tb_clocks_first(&c->clock);
  tb_members_timers(c, now); /* a new view ends operations: not while the list is walked */
  for (tb_op *op = c->ops, *next; op; op = next) {
    next = op->next; /* only op itself may be freed */
    if (all) {
      op->recheck = true;
      op->silence_at = 0;
    }
    if (all || op->due <= now) op_timers(c, op, now);
    else earlier(&c->due, op->due);
  }
  tb_settle_timers(c, now);
}
