/* members.c - the view in the core (rule 9): who is suspected, and what a change of membership does to operations and
 * keys.
 *
 * DESIGN NOTES. view.c decides, beside the data path, who is a member; this file feeds it and acts on what it decides.
 * A peer is suspected when nothing was heard from it in `evict_after` rounds that ended, or failed, without it, nor for
 * peer_timeout; and when an exact operation failed for it. One frame of it ends the suspicion.
 *
 * A view says from which round on it holds: `base`, above every round that those who voted had issued. So a round
 * belongs to one view, and the team of an operation is the one that its ranks had when it was made. Every frame carries
 * the sender's view; one of another view is dropped, counted, and answered with what is known here, so that whoever
 * missed the vote is one round trip behind. Rounds before `base` go on among the survivors as they were: for them a
 * rank that was voted out has gone, like one that said goodbye.
 *
 * AT A CHANGE, on every rank, in whatever order they learn of it:
 * 1. Who is no member any more counts as gone; who is one again, as live, and its rounds as not known.
 * 2. Lossy operations in flight end as they would have. Exact and agreed ones that wait for somebody who left, or for a
 *    rank that had not issued them (it goes on from `base`), fail with ENETRESET, their input restored.
 * 3. What was made for rounds from `base` on, by ranks whose vote was not counted, is void.
 * 4. Every key goes on from `base`, and deadline=auto begins anew with its exact rounds, as by then some have a history
 *    and others have not. Agreed keys want a resync first: some ranks may have returned a round that others did not.
 *    Messages between two ranks have nothing to do with it, unless one of the two left or came.
 * 5. Of an exact operation that was under way some ranks may have the result, and others an error. So that nobody goes
 *    on as if nothing had happened, each rank is told once: what fails here, or else its next exact call, does so with
 *    ENETRESET.
 * 6. Who was voted out fails everything, forgets all rounds (others settle without it what it may have counted:
 *    heirs.c), and refuses everything but tb_core_rejoin: also when it was let in after it had stopped waiting for
 *    that, as nobody has fetched yet what it missed.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/core.h"

static bool send(void *ctx, uint16_t to, const tb_view_msg *m) {
  tb_core *c = ctx;
  uint8_t *b = tb_say_begin(c, to, TB_T_VIEW, NULL, c->now);
  if (b) tb_say_end(c, tb_view_encode(m, b, TB_CONTROL_MAX - TB_HEAD), 0);
  return b; /* no room: it is said again */
}

/* "p2p:sender:receiver:tag" */
static bool between_two(const tb_key *k, unsigned *a, unsigned *b) {
  return tb_key_of_messages(k->name, k->len) && sscanf(k->name + 4, "%u:%u", a, b) == 2;
}

/* The first round that none of this rank's keys has issued. */
static uint32_t rounds(void *ctx) {
  tb_core *c = ctx;
  uint32_t most = c->vote.base, a, b;
  for (int i = 0; i < TB_BUCKETS; i++)
    for (const tb_key *k = c->key_hash[i]; k; k = k->hash_next)
      if (!between_two(k, &a, &b) && tb_before(most, k->next_round)) most = k->next_round;
  return most;
}

static bool out_of_it(const tb_core *c) { return c->vote.n && (!tb_view_in(&c->vote) || c->no_team); }

int tb_members_refuse(const tb_core *c, char *why, size_t room) {
  if (!out_of_it(c) && !c->evicted) return 0;
  if (c->no_team) snprintf(why, room, "there was no memory to follow view %u: close this communicator", c->vote.number);
  else snprintf(why, room, "rank %u was voted out in view %u, after others had not heard from it for too long (evict_after): call "
                "rejoin(), then bring its parameters up to date", c->cfg.rank, c->vote.number);
  return c->no_team ? -ENOMEM : -ENETRESET;
}

/* Who left or came, for this rank: nobody is with it while it is out. */
static void peers_change(tb_core *c, char *names, size_t room) {
  size_t at = 0;
  bool was_out = true;
  for (uint32_t p = 0; p < c->cfg.n; p++) {
    tb_peer *q = &c->peer[p];
    was_out &= p == c->cfg.rank || q->out;
    bool out = out_of_it(c) || !tb_member(&c->vote.members, p);
    if (p == c->cfg.rank || out == q->out) continue;
    if (at < room - 24) at += (size_t)snprintf(names + at, room - at, "%srank %u %s", at ? ", " : "", p, out ? "left" : "is back");
    q->out = q->gone = out;
    q->absent = q->down = false;
    q->silent_rounds = 0;
    tb_peer_presence(c, (uint16_t)p);
  }
  if (out_of_it(c)) snprintf(names, room, "this rank (%u) %s", c->cfg.rank, was_out ? "is not a member" : "was voted out");
  else if (was_out) snprintf(names, room, "this rank (%u) is back", c->cfg.rank);
}

static void end_operations(tb_core *c) {
  char text[TB_TEXT_MAX + 1];
  bool out = out_of_it(c);
  if (out) tb_members_refuse(c, text, sizeof text);
  else snprintf(text, sizeof text, "the membership changed (view %u, %u of %u ranks) while rank %u waited",
                     c->vote.number, tb_team_n(c), c->cfg.n, c->cfg.rank);
  for (tb_op *op = c->ops, *next; op; op = next) {
    next = op->next; /* only op itself may be freed */
    bool message = op->geo.kind == TB_SEND, lost = out;
    for (uint32_t p = 0; p < c->cfg.n && !lost; p++)
      lost = p != c->cfg.rank && ((tb_op_concerns(op, p) && c->peer[p].out) || /* in groups also who is no kin */
                                  (tb_op_takes_part(op, p) && !message && !op->peer[p].opened));
    for (uint32_t p = 0; p < c->cfg.n; p++) {
      if (!c->peer[p].out || op->peer[p].left || !tb_op_takes_part(op, p)) continue;
      op->passed_n += !op->peer[p].passed;
      op->peer[p].left = op->peer[p].passed = true; /* also should it come back: it has forgotten this round */
      op->peer[p].open_at = UINT64_MAX;
      tb_heirs_anew(c, op);
      if (op->carries && !out) tb_carry_left(c, op, p, c->now);
    }
    bool exact = !op->lossy || tb_agrees(op), beyond = !message && !tb_before(op->round, c->vote.base);
    if (op->state == TB_OP_ISSUED && (beyond || (lost && (exact || out || message)))) {
      if (exact && !message) c->untold = false;
      tb_key *k = op->key;
      tb_op_fail(c, op, -ENETRESET, text, c->now, false);
      /* A settled one ends well, and its error is left for the key's next call: this rank is told otherwise. */
      if (k->failed == -ENETRESET) k->failed = 0;
    } else if ((beyond || out) && op->state != TB_OP_ISSUED && op->state != TB_OP_FINISHING) tb_op_free(c, op, c->now);
    else tb_due(c, op, c->now);
  }
}

/* Some rounds before base were opened by others and skipped here: under carry their results are received all the
 * same. */
static void skip_to_base(tb_core *c, tb_key *k) {
  uint32_t from = k->next_round, opened = from, base = c->vote.base;
  if (!tb_before(from, base)) return;
  for (uint32_t p = 0; p < c->cfg.n; p++)
    if (k->peer[p].has_open && tb_before(opened, k->peer[p].open + 1)) opened = k->peer[p].open + 1;
  if (tb_before(base, opened)) opened = base;
  k->next_round = base;
  if (opened != from) tb_ghosts(c, k, from, opened, c->now);
}

/* Still with the team of the old view: rounds that are made here are that team's. */
static void keys_skip(tb_core *c, const bool *moved) {
  for (int i = 0; i < TB_BUCKETS; i++)
    for (tb_key *k = c->key_hash[i]; k; k = k->hash_next) {
      unsigned a, b;
      if (between_two(k, &a, &b)) continue;
      for (uint32_t p = 0; p < c->cfg.n; p++)
        if (moved[p]) memset(&k->peer[p], 0, sizeof k->peer[p]);
      skip_to_base(c, k);
    }
}

/* All ranks take the same round for the first of the view, with or without rounds of the key so far, and also who has
 * issued more than the vote knew of: order, and the exact first rounds of deadline=auto, go by it. */
static void begin_at_base(tb_core *c, tb_key *k) {
  uint32_t base = c->vote.base, next = base;
  for (tb_op *op = k->ops, *after; op; op = after) {
    after = op->key_next;
    if (tb_before(op->round, base)) continue;
    if (op->state == TB_OP_RETURNED) tb_op_free(c, op, c->now);
    else next = op->round + 1; /* the link still reads it */
  }
  k->next_round = k->first_round = next;
  /* what peers were heard to have opened or closed from base on is void as well */
  for (uint32_t p = 0; p < c->cfg.n; p++) {
    k->peer[p].has_open &= tb_before(k->peer[p].open, base);
    k->peer[p].has_closed &= tb_before(k->peer[p].closed, base);
  }
  for (tb_history *h = k->history; h; h = h->next) h->rounds = 0;
}

static void keys_change(tb_core *c, const bool *moved) {
  for (int i = 0; i < TB_BUCKETS; i++)
    for (tb_key *k = c->key_hash[i]; k; k = k->hash_next) {
      unsigned a, b;
      if (between_two(k, &a, &b)) {
        uint32_t other = a == c->cfg.rank ? b : a;
        if (other < c->cfg.n && moved[other]) tb_key_restart(c, k, c->now);
        continue;
      }
      begin_at_base(c, k);
      if (out_of_it(c)) tb_late_forget(c, k); /* it is in the parameters that this rank has to fetch */
    }
}

static void changed(void *ctx) {
  tb_core *c = ctx;
  const tb_membership *v = &c->vote;
  char names[160] = "nobody left or came";
  bool moved[TB_VIEW_MOST];
  for (uint32_t p = 0; p < c->cfg.n; p++) moved[p] = c->peer[p].out;
  bool all = tb_member_count(&v->members) == c->cfg.n;
  const tb_team *team = all ? NULL : tb_team_get(&c->teams, v->members.bits, c->cfg.n);
  c->no_team = !all && !team;
  c->evicted |= !tb_view_in(v);
  c->n.view_changes++;
  c->changed_at = c->now;
  peers_change(c, names, sizeof names);
  for (uint32_t p = 0; p < c->cfg.n; p++) moved[p] ^= c->peer[p].out;
  tb_logf(c, 30, "view %u: %s; %u of %u ranks are members, rounds go on from %u", v->number, names,
          tb_member_count(&v->members), c->cfg.n, v->base);
  keys_skip(c, moved);
  c->team = team;
  c->untold = !out_of_it(c);
  if (c->tree) { /* shares of the buffer go by whether everybody is a member, as groups do */
    tb_window_shares(c);
    tb_grant_tell_all(c);
  }
  end_operations(c);
  keys_change(c, moved);
  c->liveness_changed = true;
  tb_rejoined(c);
}

int tb_members_tell(tb_core *c, char *why, size_t room) {
  if (!c->untold) return 0;
  c->untold = false;
  snprintf(why, room, "the membership changed (view %u, %u of %u ranks): other ranks may have ended an earlier exact operation otherwise. "
           "This is said once, on every rank: make sure that all are at the same point, and go on", c->vote.number, tb_team_n(c),
           c->cfg.n);
  return -ENETRESET;
}

void tb_members_init(tb_core *c) {
  tb_view_init(&c->vote, c->cfg.rank, c->cfg.n, c->cfg.view);
  c->vote.ctx = c;
  c->vote.send = send;
  c->vote.rounds = rounds;
  c->vote.changed = changed;
}

static void enter(tb_core *c, uint64_t now) {
  c->now = now;
  uint64_t trip = 2 * tb_rtt_max(c), least = c->tune.rto_min, most = c->tune.rto_max;
  c->vote.retry = trip < least ? least : trip > most ? most : trip;
}

static void leave(tb_core *c) {
  if (c->vote.due < c->due) c->due = c->vote.due;
}

/* A round has ended, or failed, without p. */
void tb_members_silent(tb_core *c, uint16_t p, uint64_t now) {
  const tb_peer *q = &c->peer[p];
  if (!c->tune.evict_after || q->out || q->silent_rounds < c->tune.evict_after) return;
  if (now - q->last_heard < c->tune.peer_timeout || tb_member(&c->vote.suspects, p)) return;
  tb_members who = c->vote.suspects;
  tb_member_add(&who, p);
  enter(c, now);
  tb_view_suspect(&c->vote, &who, now);
  leave(c);
}

void tb_members_alive(tb_core *c, uint16_t p, uint64_t now) {
  if (!tb_member(&c->vote.suspects, p)) return;
  tb_members who = c->vote.suspects;
  tb_member_drop(&who, p);
  enter(c, now);
  tb_view_suspect(&c->vote, &who, now);
  leave(c);
}

void tb_members_heard(tb_core *c, uint16_t p, const tb_view_msg *m, uint64_t now) {
  enter(c, now);
  tb_view_heard(&c->vote, p, m, now);
  leave(c);
}

void tb_members_stranger(tb_core *c, uint16_t p, uint32_t their_view, uint64_t now) {
  tb_peer *q = &c->peer[p];
  if (q->answered_at && now - q->answered_at < c->tune.rto_min) return; /* a burst of frames is one question */
  q->answered_at = now ? now : 1;
  enter(c, now);
  tb_view_stranger(&c->vote, p, their_view);
  leave(c);
}

void tb_members_timers(tb_core *c, uint64_t now) {
  if (c->vote.due <= now) {
    enter(c, now);
    tb_view_timer(&c->vote, now);
  }
  leave(c);
}

/* ---- coming back */

void tb_rejoined(tb_core *c) {
  tb_outcome *o = c->rejoin;
  if (!o || out_of_it(c)) return;
  c->rejoin = NULL;
  if (c->evicted) c->untold = false; /* who was in it all the time has fetched nothing: it is told yet */
  c->evicted = false;
  o->result = (tb_result){.received = 1, .round = c->vote.base, .view = c->vote.number, .elapsed_ns = c->now - o->issued_ns,
                          .deadline_ns = UINT64_MAX};
  c->cfg.done(c->cfg.ctx, o);
}

int tb_core_rejoin(tb_core *c, uint64_t now, tb_outcome *o) {
  tb_geometry none = {.kind = TB_ALL_REDUCE, .n = c->cfg.n, .elem = 1, .chunk_elems = 1};
  if (c->rejoin) return -EBUSY;
  int rc = tb_outcome_init(o, &none, c->cfg.rank);
  if (rc) return rc;
  o->issued_ns = now;
  c->rejoin = o;
  enter(c, now);
  tb_view_join(&c->vote, now);
  tb_rejoined(c); /* it was in all the time */
  leave(c);
  return 0;
}

bool tb_rejoin_cancel(tb_core *c, tb_outcome *o, int status, const char *why, uint64_t now) {
  if (!o || c->rejoin != o) return false;
  c->rejoin = NULL;
  o->result = (tb_result){.status = status, .elapsed_ns = now - o->issued_ns, .deadline_ns = UINT64_MAX};
  snprintf(o->error, sizeof o->error, "%s", why);
  c->vote.joining = false;
  c->cfg.done(c->cfg.ctx, o);
  return true;
}

/* Of a round that all had agreed to take next, and that is past here. */
int tb_members_passed(const tb_core *c, uint32_t round) { return tb_before(round, c->vote.base) ? -ENETRESET : -EINVAL; }

uint32_t tb_core_members(const tb_core *c, uint8_t *member) {
  for (uint32_t p = 0; member && p < c->cfg.n; p++) member[p] = tb_member(&c->vote.members, p);
  return c->vote.number;
}
