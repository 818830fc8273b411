/* finish.c - the end of an operation: can more come? what was received? commit or restore; and, later, retirement.
 *
 * STATES. EARLY (a peer opened it, this rank did not yet) -> ISSUED -> FINISHING (decided to return; the caller's
 * memory still has REFs under way; only with async_refs) -> RETURNED (the caller has its result; repairs are answered
 * from library memory) -> freed. A function here that may free the operation is the last thing its caller does with it.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "protocol/core.h"

bool tb_nothing_more(const tb_op *op, uint32_t p) {
  const tb_flow_rx *r = &op->peer[p].rx[1];
  return r->peer_final && r->got >= r->sent_known;
}

/* Nothing more will come from p in stage 2 of this round. */
static bool exhausted(const tb_core *c, const tb_op *op, uint32_t p) {
  const tb_op_peer *q = &op->peer[p];
  if (q->rx[1].got == q->rx[1].total) return true;
  if (tb_agrees(op)) return tb_nothing_more(op, p);
  if (!op->lossy) return false;
  if (!tb_live(c, p) || q->nothing || q->left) return true;
  return q->passed && tb_nothing_more(op, p);
}

static bool sender_done(const tb_core *c, const tb_op *op) {
  uint32_t p = op->sig.root;
  const tb_flow_tx *f = &op->peer[p].tx[1];
  return f->acked == f->total || (op->lossy && !tb_live(c, p));
}

void tb_op_check(tb_core *c, tb_op *op, uint64_t now) {
  if (op->state != TB_OP_ISSUED) {
    if (op->state == TB_OP_RETURNED) tb_op_retire(c, op, now);
    return;
  }
  if (tb_geo_scatters(&op->geo) && !op->swept && op->chunks) return;
  if (op->geo.kind == TB_SEND && op->sig.peer == c->cfg.rank && !sender_done(c, op)) return;
  bool missing = false;
  uint32_t n = c->cfg.n, from = op->waits_for;
  for (uint32_t i = 0, p = from; i < n; i++, p = p + 1 < n ? p + 1 : 0) {
    if (p == c->cfg.rank) continue;
    if (!exhausted(c, op, p)) {
      op->waits_for = p;
      return;
    }
    missing |= op->peer[p].rx[1].got < op->peer[p].rx[1].total && op->peer[p].passed;
  }
  op->by_passing = missing;
  tb_op_finish(c, op, now);
}

/* Rule 5: chunks not known to be counted must outlive the call, in library memory. */
static void keep_uncounted(tb_core *c, tb_op *op, uint64_t now) {
  int s = op->geo.kind == TB_SEND ? 1 : 0;
  if (op->carries && op->in) tb_carry_return(c, op, now);
  else if (op->in) tb_rounding_return(c, op, now);
  if (!op->in || (!op->in_is_user && !op->work)) return;
  uint8_t *copy = op->save; /* also of a transformed input: it is not to stay where the result will be */
  for (uint32_t p = 0; p < c->cfg.n && !op->status; p++) {
    tb_flow_tx *f = &op->peer[p].tx[s];
    if (p == c->cfg.rank || f->acked == f->total || tb_across(op, p)) continue; /* partial sums are in library memory */
    bool closed = s == 0 && op->lossy && op->peer[p].announced && op->peer[p].announced <= now; /* there, by now */
    if (closed || !tb_peer_expected(op, c, p)) {
      tb_flow_ack_all(f); /* no copy is made, so nothing may be sent later: an absent peer may come back */
      continue;
    }
    if (!copy) {
      if (tb_op_add_save(c, op, op->geo.count * op->geo.elem)) break;
      copy = op->save;
    }
    if (copy == op->in) continue;
    for (uint32_t i = tb_bit_next(f->ack, 0, f->total, false); i < f->total; i = tb_bit_next(f->ack, i + 1, f->total, false)) {
      uint64_t start, len, first;
      tb_piece at = tb_flow_piece(c, op, p, s, TB_SENT, i);
      tb_geo_shard(&op->geo, at.owner, &start, &len);
      uint32_t n = tb_geo_chunk(&op->geo, at.owner, at.chunk, &first);
      size_t off = (start + first) * op->geo.elem;
      memcpy(copy + off, op->in + off, (size_t)n * op->geo.elem);
    }
  }
  op->in = copy;
  op->in_is_user = false;
  for (uint32_t p = 0; p < c->cfg.n && !copy; p++) /* nothing left to repair from */
    if (!tb_across(op, p)) tb_flow_ack_all(&op->peer[p].tx[s]);
}

typedef enum { EACH_SET, EACH_CLEAR } each;

/* Runs over the chunks of the output that did (not) get a decided value. */
static void put_back(tb_op *op, tb_core *c, each which, bool commit) {
  tb_outcome *o = op->outcome;
  for (uint32_t p = 0; p < c->cfg.n; p++) {
    if (op->geo.kind == TB_REDUCE_SCATTER && p != c->cfg.rank) continue;
    uint32_t chunks = tb_geo_chunks(&op->geo, p);
    uint64_t *bits = o->mask + o->mask_at[p], start, len, first;
    tb_geo_shard(&op->geo, p, &start, &len);
    if (op->geo.kind == TB_REDUCE_SCATTER) start = 0;
    for (uint32_t i = tb_bit_next(bits, 0, chunks, which == EACH_SET); i < chunks;
         i = tb_bit_next(bits, i + 1, chunks, which == EACH_SET)) {
      size_t bytes = (size_t)tb_geo_chunk(&op->geo, p, i, &first) * op->geo.elem, off = (start + first) * op->geo.elem;
      bool held = tb_bit(op->held, o->mask_at[p] * 64 + i), own = held && tb_keeper(op, p) == c->cfg.rank;
      /* rule 13: zero and reported, or the own input, which in place is there still */
      if (which == EACH_CLEAR) tb_fill_chunk(c, op, p, i, op->out + off, op->user_in ? op->user_in + off : NULL, bytes);
      else if (commit && own) tb_decode(op, op->out + off, tb_decided_at(op, tb_kept_index(op, (tb_piece){p, i})), (uint32_t)(bytes / op->geo.elem));
      else if (commit == held) memcpy(op->out + off, op->save + off, bytes);
    }
  }
}

/* Both shares; returns the number of live peers. */
static uint32_t measure(tb_core *c, tb_op *op, double *received, double *live) {
  uint32_t n = c->cfg.n, me = c->cfg.rank, live_peers = 0;
  uint64_t start, len, live_elems = 0;
  uint64_t whole = op->geo.kind == TB_ALL_GATHER ? op->geo.count * op->geo.n : tb_geo_out_elems(&op->geo);
  bool sums = tb_geo_scatters(&op->geo);
  for (uint32_t p = 0; p < n; p++) {
    /* With groups its shard comes by way of another, and its contribution goes another. */
    bool up = p == me || (tb_op_concerns(op, p) && !op->peer[p].left && tb_live(c, p) && tb_live(c, tb_giver(c, op, p)));
    tb_geo_shard(&op->geo, p, &start, &len);
    if (up && (op->geo.kind != TB_REDUCE_SCATTER || p == me)) live_elems += len;
    live_peers += up && p != me;
    for (int s = 0; s < 2; s++) {
      const tb_flow_rx *r = &op->peer[p].rx[s];
      bool stage = s == 0 ? sums : tb_geo_hands_out(&op->geo);
      /* NAN: owed nothing */
      op->outcome->per_peer[s][p] = r->total ? tb_share(r->got, r->total) : p == me && stage ? 1.0 : NAN;
      if (!tb_team_has(op->geo.team, p)) op->outcome->per_peer[s][p] = -1;
    }
  }
  if (op->geo.kind == TB_SEND && op->sig.peer == me) {
    const tb_flow_tx *f = &op->peer[op->sig.root].tx[1];
    /* An exact receiver ends only when it has all; of a lossy one counts what it has said it has. */
    *received = *live = tb_share(op->lossy ? f->confirmed : f->acked, f->total);
  } else if (sums) {
    *received = tb_share(op->received_sum, whole * (op->geo.n - 1));
    *live = tb_share(op->received_sum, live_elems * live_peers);
  } else {
    *received = *live = tb_share(op->received_elems, whole);
  }
  return live_peers;
}

static const char *cause(tb_core *c, const tb_op *op, uint32_t p) {
  if (c->peer[p].out) return "it was voted out";
  if (c->peer[p].gone) return "it has closed";
  if (c->peer[p].absent) return "it is absent";
  if (op->tree && tb_gave_all(op, p)) return "it relays for owners of other groups, and this is all that it got of them";
  if (!op->peer[p].opened || op->peer[p].opened_at > op->issued + (op->deadline - op->issued) / 2) return "peer late";
  if (c->overflow != c->overflow_warned) return "socket buffer overflow here (raise net.core.rmem_max)";
  if (c->lateness > 10 * TB_MS / 4) return "CPU throttled or oversubscribed here";
  return "path loss";
}

static void warn(tb_core *c, tb_op *op, double received, uint64_t now) {
  if (received >= 0.999 || op->status || (c->warned_at && now - c->warned_at < 60 * TB_SEC)) return;
  uint32_t worst = c->cfg.rank;
  int stage = 0;
  double least = 2;
  for (uint32_t p = 0; p < c->cfg.n; p++)
    for (int s = 0; s < 2; s++)
      if (p != c->cfg.rank && op->peer[p].rx[s].total && op->outcome->per_peer[s][p] < least) {
        least = op->outcome->per_peer[s][p];
        worst = p;
        stage = s + 1;
      }
  if (least >= 1) /* all that was owed to us came: the loss was at another owner */
    tb_logf(c, 30, "round %u of key '%s': received %.2f %%: other owners closed without some contributions", op->round,
            op->key->name, 100 * received);
  else
    tb_logf(c, 30, "round %u of key '%s': received %.2f %%: rank %u, stage %d gave %.2f %%: %s", op->round, op->key->name,
            100 * received, worst, stage, 100 * least, cause(c, op, worst));
  c->warned_at = now;
  c->overflow_warned = c->overflow;
}

static bool all_gone(const tb_core *c) {
  for (uint32_t p = 0; p < c->cfg.n; p++)
    if (p != c->cfg.rank && !c->peer[p].gone) return false;
  return c->cfg.n > 1;
}

/* A peer that answers, and has not issued this round. */
static bool has_not_issued(const tb_core *c, const tb_op *op, uint32_t p) {
  return p != c->cfg.rank && tb_op_takes_part(op, p) && !op->peer[p].opened && c->peer[p].last_heard >= op->issued;
}

static void judge(tb_core *c, tb_op *op, uint64_t now) {
  tb_outcome *o = op->outcome;
  double received = 0, live = 0;
  int status = op->status;
  snprintf(o->error, sizeof o->error, "%s", op->error);
  uint32_t peers = measure(c, op, &received, &live);
  tb_verdict v = received >= 1 && !op->own_missed ? TB_VERDICT_OK : TB_VERDICT_PARTIAL;
  /* With nobody left everybody counts: what is missing would be committed as zeros. */
  if (tb_agrees(op)) live = tb_agree_share(op);
  bool judged = op->lossy || tb_agrees(op), nobody = op->lossy && c->cfg.n > 1 && !peers;
  tb_auto_measure(c, op);
  tb_shortfall why;
  bool short_of = tb_too_little(c, op, nobody ? received : live, &why);
  if (judged && short_of) v = TB_VERDICT_SKIP;
  if (v != TB_VERDICT_SKIP) op->key->skips = 0;
  /* After everybody's goodbye the job is over, and a laggard may run to its end; after everybody's death it must be
   * told. */
  else if (!op->by_passing && !all_gone(c) && ++op->key->skips >= (op->halt ? 1 : c->tune.max_skips) && !status) {
    status = -ENODATA; /* the caller's error, not the operation's: peers may still need what was decided here */
    char who[40], hint[80] = "";
    for (uint32_t p = 0; p < c->cfg.n && !*hint; p++)
      if (has_not_issued(c, op, p))
        snprintf(hint, sizeof hint, "rank %u has not issued this round: is the key the same there? Else ", p);
    if (op->halt) snprintf(who, sizeof who, "on_skip=halt: round %u", op->round);
    else snprintf(who, sizeof who, "%u rounds in a row", op->key->skips);
    snprintf(o->error, sizeof o->error, "%s received less than %s=%.3g (last: %.3g); %scheck the log for the peer and cause, raise "
             "the deadline, or lower %s", who, why.name, why.least, why.share, hint, why.name);
    op->key->skips = 0;
  }
  warn(c, op, received, now);
  o->result = (tb_result){.status = status, .verdict = v, .deadline_hit = op->hit, .round = op->round,
                          .behind = op->behind, .view = op->view, .received = received, .carried = op->carried,
                              .elapsed_ns = now - op->issued,
                          .deadline_ns = UINT64_MAX};
  if (op->deadline != UINT64_MAX) o->result.deadline_ns = op->deadline + op->ahead - op->issued;
  c->n.operations++;
  if (status) c->n.failed++;
  else if (v == TB_VERDICT_OK) c->n.ok++;
  else if (v == TB_VERDICT_PARTIAL) c->n.partial++;
  else c->n.skipped++;
  c->n.deadline_hits += op->hit;
  c->n.rounds_behind += op->behind;
}

void tb_op_sample(tb_op *op, uint16_t p) {
  tb_op_peer *q = &op->peer[p];
  uint64_t at = q->rx[0].done_at > q->rx[1].done_at ? q->rx[0].done_at : q->rx[1].done_at;
  if (q->sampled || !at || op->state == TB_OP_EARLY || op->status) return;
  if ((q->rx[0].total && !q->rx[0].done_at) || (q->rx[1].total && !q->rx[1].done_at)) return;
  q->sampled = true;
  if (op->automatic) tb_offset_sample(op->history, p, at > op->issued ? at - op->issued : 0);
}

static void give_back(tb_core *c, tb_op *op, uint64_t now) {
  tb_peer_silent(c, op, now); /* before the verdict, which looks at live peers only */
  tb_share_round(c, op, now);
  tb_stage_samples(c, op, now);
  tb_calibrate(c, op, now);
  judge(c, op, now);
  bool commit = !op->status && op->outcome->result.verdict != TB_VERDICT_SKIP;
  if (op->out && op->work) {
    tb_transform_end(c, op, commit);
  } else if (op->out) {
    if (!op->status) tb_late_skip(c, op);
    if (op->user_in == op->out && op->save) put_back(op, c, EACH_SET, commit);
    else if (!commit && !op->status && op->user_in && op->geo.kind == TB_ALL_REDUCE)
      memcpy(op->out, op->user_in, op->geo.count * op->geo.elem); /* skip leaves the input in the output, either way */
    if (commit) put_back(op, c, EACH_CLEAR, true);
    if (commit) op->outcome->result.late = tb_late_commit(c, op);
  }
  tb_outcome *o = op->outcome;
  op->out = op->user_out = NULL;
  op->user_in = NULL;
  op->outcome = NULL;
  op->state = TB_OP_RETURNED;
  c->finishing--;
  op->returned = now;
  tb_op_reorder(c, op);
  /* Where something is missing a time-out ended the round, or a stage of it, and not the wire. */
  if (!op->status && o->result.received >= 1) tb_cost_sample(c, op, now);
  for (uint32_t p = 0; p < c->cfg.n; p++) tb_op_sample(op, (uint16_t)p);
  for (uint32_t p = 0; p < c->cfg.n; p++) {
    if (p == c->cfg.rank || !tb_op_takes_part(op, p) || c->peer[p].gone) continue;
    bool s2 = op->peer[p].rx[1].total > 0;
    /* Who is about to be told an error must not take this round for closed and return before it hears it. */
    uint8_t closed = op->peer[p].error_at == UINT64_MAX ? TB_R_CLOSED : 0;
    uint8_t final = tb_after_wanted(c, op, p) ? 0 : TB_R_FINAL;
    tb_section_add(c, (uint16_t)p, op, s2 ? 2 : 1, closed | final);
    c->peer[p].n.rounds_missed += op->lossy && !tb_gave_all(op, p);
  }
  tb_due(c, op, now);
  c->cfg.done(c->cfg.ctx, o);
  tb_op_retire(c, op, now);
}

void tb_op_finish(tb_core *c, tb_op *op, uint64_t now) {
  if (op->state == TB_OP_ISSUED) {
    tb_stage1_sweep(c, op, now, TB_CLOSE_ALL);
    keep_uncounted(c, op, now);
    op->state = TB_OP_FINISHING;
    c->finishing++;
    c->issued_bytes -= op->geo.count * op->geo.wire_elem;
    op->returned = now;
    for (uint32_t i = c->out_at; i < c->out_n; i++) /* not yet taken by the link: never will be */
      if (c->out[i].op == op && c->out[i].user) c->out[i] = c->out[--c->out_n], i--;
  }
  if (op->state != TB_OP_FINISHING) return;
  if (op->last_ref > c->reaped) {
    tb_due(c, op, now);
    return; /* tb_core_reaped comes back here */
  }
  give_back(c, op, now);
}

/* Too late for this call: the next one with this key will be told. */
static void fail_next(tb_key *k, int status, const char *text) {
  k->failed = status;
  snprintf(k->failed_text, sizeof k->failed_text, "%s", text);
}

void tb_op_fail(tb_core *c, tb_op *op, int status, const char *text, uint64_t now, bool tell) {
  if (op->status) return;
  if (op->settled && op->state != TB_OP_RETURNED) { /* the input is gone: the result is what came so far */
    fail_next(op->key, status, text);
    tb_op_finish(c, op, now);
    return;
  }
  if (tell)
    for (uint32_t p = 0; p < c->cfg.n; p++)
      if (p != c->cfg.rank && tb_op_takes_part(op, p) && !c->peer[p].gone) {
        op->peer[p].error_at = now;
        tb_op_peer_due(c, op, (uint16_t)p, now);
      }
  if (text != op->error) snprintf(op->error, sizeof op->error, "%s", text);
  op->status = status;
  if (op->state == TB_OP_EARLY) op->returned = now; /* should no call come: its ERROR is repeated from here */
  op->key->unsure |= tb_agrees(op) && op->issued;
  tb_due(c, op, now);
  for (uint32_t p = 0; p < c->cfg.n; p++) { /* it is over: nobody gets more of it */
    tb_flow_ack_all(&op->peer[p].tx[0]);
    tb_flow_ack_all(&op->peer[p].tx[1]);
    if (!tell) op->peer[p].open_at = UINT64_MAX; /* an ERROR finds its operation only where the OPEN was heard */
  }
  if (op->state == TB_OP_ISSUED) {
    tb_op_finish(c, op, now);
    return;
  }
  /* EARLY: the call that takes this round will be told; FINISHING: its result will */
  if (op->state != TB_OP_RETURNED) return;
  fail_next(op->key, status, text);
}

void tb_op_mismatch(tb_core *c, tb_op *op, uint16_t a, const tb_signature *sa, uint16_t b, const tb_signature *sb, uint64_t now) {
  char ta[TB_SIGNATURE_TEXT], tb[TB_SIGNATURE_TEXT], text[TB_TEXT_MAX + 1];
  static const char *form = "mismatch in key '%.24s', round %u: rank %u %s, rank %u %s: call it alike on every rank%s";
  const char *remedy = op->key->len && sa->kind != TB_SEND ? "; forget(key) on every rank frees the key" : "";
  int rest = snprintf(text, sizeof text, form, op->key->name, op->round, a, "", b, "", remedy);
  tb_signatures_text(sa, sb, ta, tb, TB_TEXT_MAX - (size_t)rest);
  if (snprintf(text, sizeof text, form, op->key->name, op->round, a, ta, b, tb, remedy) < 0) text[0] = 0;
  tb_op_fail(c, op, -EPROTO, text, now, true);
}

/* Whoever needs it gets it, however late. */
static bool bound(const tb_op *op) { return !op->lossy || tb_agrees(op); }

uint64_t tb_rounds_kept(const tb_core *c, const tb_op *op) {
  return op->carries ? c->tune.carry_rounds : c->tune.keep_rounds;
}

/* Must a round that was over at `since` be kept for p? */
static bool needs(const tb_core *c, const tb_op *op, uint32_t p, uint64_t since, uint64_t now) {
  bool fresh = now - since <= c->tune.keep_age, late = tb_late_kind(c, op);
  bool recent = op->key->next_round - op->round <= tb_rounds_kept(c, op);
  bool within = op->carries ? now - since <= c->tune.carry_age : fresh && recent;
  const tb_op_peer *q = &op->peer[p];
  if (p == c->cfg.rank || !tb_op_takes_part(op, p)) return false;
  if (q->left && op->carries) /* others ask what came of it here, or answer that */
    return within && !op->status && (tb_heirs_open(op, p) || now - c->changed_at <= c->tune.keep_age);
  if (c->peer[p].gone || q->left) return false;
  if (q->error_at != UINT64_MAX && fresh) return true;
  if (op->status) return false;
  if (within && tb_fate_unknown(op, p) && !q->nothing) return true; /* keep_rounds of them at most */
  if (c->peer[p].absent && !bound(op) && !recent) return false; /* it may never come back */
  if (within && tb_after_wanted(c, op, p)) return true;
  if (q->nothing || (q->passed && !late && !op->carries && !tb_across(op, p))) return false;
  /* Carry waits for those too, but not long: who has passed without opening it opens it at once as a ghost, or
   * never. */
  bool unlikely = c->peer[p].absent || (op->carries && q->passed && !q->opened);
  if (unlikely && !bound(op) && !(op->carries && fresh)) return false;
  bool wants = q->tx[0].acked < q->tx[0].total || q->tx[1].acked < q->tx[1].total || (!q->opened && !q->passed) ||
               (op->carries && q->rx[0].got && !q->knows);
  /* An exact or agreed round is kept as long as a peer that needs it lives; a lossy one within its limits. Who has
   * nothing to say, as it has not come so far yet, is heard at the pace of its keep-alive. */
  uint64_t silence = 3 * c->tune.keepalive;
  if (silence < c->tune.peer_timeout) silence = c->tune.peer_timeout;
  if (bound(op)) return wants && (fresh || now - c->peer[p].last_heard <= silence);
  return wants && within;
}

/* The copy of the input goes as soon as nobody can be sent a part of it, and nothing of it may still be carried. */
static void drop_unused_save(tb_core *c, tb_op *op) {
  if (!op->save || op->state != TB_OP_RETURNED) return;
  int s = op->geo.kind == TB_SEND ? 1 : 0;
  for (uint32_t n = c->cfg.n, i = 0, p = op->waits_for; i < n; i++, p = p + 1 < n ? p + 1 : 0)
    if ((op->peer[p].tx[s].acked < op->peer[p].tx[s].total && !tb_across(op, p)) || tb_fate_unknown(op, p) ||
        tb_counted_unseen(op, p))
      return;
  op->in = NULL;
  tb_op_drop_save(c, op);
}

void tb_op_retire(tb_core *c, tb_op *op, uint64_t now) {
  bool early = op->state == TB_OP_EARLY, past = early && tb_op_past(op->key, op->round);
  /* Owner duty without an issue ends when its chunks are out (the round was skipped here), or with age. An exact round
   * is never forgotten: its receipts have promised that the data is in. */
  uint64_t keep = op->carries ? c->tune.carry_age : c->tune.keep_age;
  bool stale = early && !bound(op) && op->swept && now - op->swept_at > keep;
  if (op->state != TB_OP_RETURNED && !(past && (op->swept || op->status)) && !stale) {
    if (early && !bound(op) && op->swept) tb_due(c, op, op->swept_at + keep + 1);
    return;
  }
  uint64_t since = op->returned ? op->returned : op->swept_at;
  uint64_t next = since + (now - since <= c->tune.keep_age ? c->tune.keep_age : keep) + 1;
  for (uint32_t n = c->cfg.n, i = 0, p = op->waits_for; i < n; i++, p = p + 1 < n ? p + 1 : 0)
    if (needs(c, op, p, since, now)) {
      op->waits_for = p;
      drop_unused_save(c, op);
      tb_due(c, op, next > now ? next : now + c->tune.keep_age);
      return;
    }
  if (op->cut_short && now - since <= tb_grace(c)) { /* what comes so soon was no loss */
    tb_due(c, op, since + tb_grace(c) + 1);
    return;
  }
  if (op->early && op->lossy && !op->status) op->history->x = tb_x_after(op->history->x, tb_loss_after_draining(c, op));
  for (uint32_t p = 0; p < c->cfg.n && op->lossy && !op->status && op->automatic; p++) { /* silence is a sample, too */
    const tb_op_peer *q = &op->peer[p];
    uint32_t total = q->rx[0].total + q->rx[1].total, got = q->rx[0].got + q->rx[1].got;
    if (p != c->cfg.rank && !q->sampled && got < total && tb_live(c, p) && op->deadline != UINT64_MAX)
      tb_offset_sample(op->history, (uint16_t)p, 2 * (op->deadline - op->issued));
  }
  tb_op_free(c, op, now);
}
