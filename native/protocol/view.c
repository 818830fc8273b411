/* view.c - who is a member: agreed by a majority of those who were (rule 9).
 *
 * DESIGN NOTES. Which ranks form view v + 1 is decided once, by single-decree consensus among the members of view v
 * (Lamport, "Paxos made simple", 2001): a proposer gets promises from more than half of them for its ballot, takes over
 * what any of those had accepted already, else its own wish, and has it accepted by more than half. So at most one next
 * view exists, however many ranks propose, die or are cut off meanwhile; and a side that sees at most half of the
 * members can never shrink the view. Two ranks cannot vote each other out: a majority of two is two.
 *
 * Rounds: all keys go on from one `base` in the new view, above all rounds that promisers had issued, with SLACK for
 * what is issued while the vote runs (more than that is void: members.c). A base is part of what is agreed.
 *
 * INVARIANTS. 1. Two ranks with the same view number have the same members and base. 2. Numbers only grow. 3. A member
 * of view v + 1 other than a joiner was a member of view v. 4. Nothing here is waited for: whoever is silent is asked
 * again each `retry`, and a vote that cannot win stays open at no cost but a frame per member and `retry`.
 *
 * Whoever missed the commit learns it from the first frame exchanged with one who did not (tb_view_stranger).
 */
#include <errno.h>
#include <string.h>
#include "protocol/view.h"
#include "protocol/wire.h"

enum { SLACK = 64, PATIENCE = 2 }; /* rounds; questions without a new answer */

uint32_t tb_member_count(const tb_members *m) {
  uint32_t n = 0;
  for (int i = 0; i < TB_VIEW_WORDS; i++) n += (uint32_t)__builtin_popcountll(m->bits[i]);
  return n;
}

tb_members tb_members_all(uint32_t n) {
  tb_members m = {{0}};
  for (uint32_t r = 0; r < n; r++) tb_member_add(&m, r);
  return m;
}

static bool same(const tb_members *a, const tb_members *b) { return !memcmp(a, b, sizeof *a); }

uint32_t tb_view_encode(const tb_view_msg *m, uint8_t *b, uint32_t cap) {
  if (cap < TB_VIEW_BODY) return 0;
  memset(b, 0, TB_VIEW_BODY);
  b[0] = TB_BODY_VERSION;
  b[1] = m->kind;
  tb_put32(b + 4, m->view);
  tb_put32(b + 8, m->ballot);
  tb_put32(b + 12, m->accepted);
  tb_put32(b + 16, m->base);
  for (int i = 0; i < TB_VIEW_WORDS; i++) tb_put64(b + 20 + 8 * i, m->members.bits[i]);
  return TB_VIEW_BODY;
}

int tb_view_decode(const uint8_t *b, uint32_t len, tb_view_msg *m) {
  if (len != TB_VIEW_BODY || b[0] != TB_BODY_VERSION || b[1] < TB_V_PREPARE || b[1] > TB_V_JOIN) return -EBADMSG;
  m->kind = b[1];
  m->view = tb_get32(b + 4);
  m->ballot = tb_get32(b + 8);
  m->accepted = tb_get32(b + 12);
  m->base = tb_get32(b + 16);
  for (int i = 0; i < TB_VIEW_WORDS; i++) m->members.bits[i] = tb_get64(b + 20 + 8 * i);
  return 0;
}

void tb_view_init(tb_membership *v, uint16_t me, uint16_t n, uint32_t number) {
  *v = (tb_membership){.me = me, .n = n, .number = number, .members = tb_members_all(n), .due = UINT64_MAX, .retry = 1000000};
}

static void at(tb_membership *v, uint64_t t) {
  if (t < v->due) v->due = t;
}

static bool majority(const tb_membership *v, const tb_members *who) {
  uint32_t n = 0;
  for (uint32_t r = 0; r < v->n; r++) n += tb_member(who, r) && tb_member(&v->members, r);
  return 2 * n > tb_member_count(&v->members);
}

/* What this rank would have the next view be. */
static tb_members wish(const tb_membership *v) {
  tb_members m = v->members;
  for (uint32_t r = 0; r < v->n; r++) {
    if (tb_member(&v->suspects, r) && r != v->me) tb_member_drop(&m, r);
    if (tb_member(&v->wanting, r) && !tb_member(&v->suspects, r)) tb_member_add(&m, r);
  }
  return m;
}

static void adopt(tb_membership *v, const tb_view_msg *m) {
  bool was_in = tb_view_in(v);
  v->number = m->view;
  v->members = m->members;
  v->base = m->base;
  v->promised = v->accepted = v->attempt = 0;
  v->phase = TB_V_IDLE;
  v->start_at = v->next = 0;
  memset(&v->wanting, 0, sizeof v->wanting); /* who still wants it asks again, in this view */
  for (uint32_t r = 0; r < v->n; r++)
    /* what was before says nothing */
    if (!was_in || !tb_view_in(v) || !tb_member(&v->members, r)) tb_member_drop(&v->suspects, r);
  if (tb_view_in(v)) v->joining = false;
  v->changed(v->ctx);
}

static tb_view_msg commit_of(const tb_membership *v) {
  return (tb_view_msg){.kind = TB_V_COMMIT, .view = v->number, .base = v->base, .members = v->members};
}

/* To each of them but this rank. Of a thousand there is room for a few at a time: the next call goes on where this one
 * ended, or those who come first, and may be dead, would be all that is ever asked. True: all have been asked. */
static bool say_to(tb_membership *v, const tb_members *whom, const tb_view_msg *m) {
  for (; v->next < v->n; v->next++)
    if (v->next != v->me && tb_member(whom, v->next) && !v->send(v->ctx, (uint16_t)v->next, m)) return false;
  v->next = 0;
  return true;
}

/* To those whose answer is still out; the own voice counts at once, through tb_view_heard. */
static void ask_members(tb_membership *v, uint64_t now) {
  tb_view_msg m = {.kind = v->phase == TB_V_PREPARING ? TB_V_PREPARE : TB_V_ACCEPT, .view = v->number + 1, .ballot = v->ballot,
                   .base = v->value_base, .members = v->value};
  at(v, now + v->retry);
  tb_members whom = v->members;
  for (int i = 0; i < TB_VIEW_WORDS; i++) whom.bits[i] &= ~v->answered.bits[i];
  v->asked += say_to(v, &whom, &m);
  if (!tb_member(&v->answered, v->me)) tb_view_heard(v, v->me, &m, now);
}

static void propose(tb_membership *v, uint64_t now) {
  uint32_t above = v->promised > v->ballot ? v->promised : v->ballot;
  v->ballot = ((above >> 10) + 1) << 10 | v->me; /* unique: the low bits are the rank */
  v->phase = TB_V_PREPARING;
  v->asked = v->next = 0;
  v->value = wish(v);
  v->value_from = 0;
  v->value_base = 0;
  memset(&v->answered, 0, sizeof v->answered);
  v->attempt++;
  ask_members(v, now);
}

/* Is there a reason to propose, and whose turn is it? The first of those who would stay begins; the next ones wait so
 * long that they rarely meet it. */
static void consider(tb_membership *v, uint64_t now) {
  tb_members m = wish(v);
  if (!tb_view_in(v) || same(&m, &v->members)) {
    v->phase = TB_V_IDLE;
    v->start_at = 0;
    return;
  }
  if (v->phase != TB_V_IDLE || v->start_at) return;
  uint32_t before = 0;
  for (uint32_t r = 0; r < v->me; r++) before += tb_member(&m, r) && tb_member(&v->members, r);
  v->start_at = now + before * 8 * v->retry;
  v->start_at += !v->start_at;
  at(v, v->start_at);
}

void tb_view_suspect(tb_membership *v, const tb_members *suspects, uint64_t now) {
  if (same(&v->suspects, suspects)) return;
  v->suspects = *suspects;
  /* who answers the vote is not voted out by it */
  if (v->phase == TB_V_PREPARING && !v->value_from) v->value = wish(v);
  consider(v, now);
}

void tb_view_join(tb_membership *v, uint64_t now) {
  v->joining = !tb_view_in(v);
  v->next = 0;
  if (v->joining) v->due = now;
}

void tb_view_stranger(tb_membership *v, uint16_t from, uint32_t their_view) {
  tb_view_msg m = commit_of(v);
  if (tb_before(v->number, their_view)) m.kind = TB_V_ASK;
  v->send(v->ctx, from, &m);
}

static void reply(tb_membership *v, uint16_t to, const tb_view_msg *m, uint64_t now) {
  if (to == v->me) tb_view_heard(v, to, m, now);
  else v->send(v->ctx, to, m);
}

static void on_ballot(tb_membership *v, uint16_t from, const tb_view_msg *m, uint64_t now) {
  tb_view_msg r = {.view = m->view, .ballot = m->ballot};
  bool news = m->ballot > (m->kind == TB_V_PREPARE ? v->promised : v->accepted);
  if (m->ballot < v->promised) {
    r.kind = TB_V_REFUSE;
    r.ballot = v->promised;
  } else if (m->kind == TB_V_PREPARE) {
    v->promised = m->ballot;
    r.kind = TB_V_PROMISE;
    r.accepted = v->accepted;
    r.base = v->accepted ? v->accepted_base : v->rounds(v->ctx);
    r.members = v->accepted_members;
  } else {
    v->promised = v->accepted = m->ballot;
    v->accepted_members = m->members;
    v->accepted_base = m->base;
    r.kind = TB_V_ACCEPTED;
  }
  /* somebody else is at it: give it time, but only once */
  if (v->start_at && from != v->me && news && r.kind != TB_V_REFUSE) {
    v->start_at = now + 16 * v->retry;
    at(v, v->start_at);
  }
  reply(v, from, &r, now);
}

static void accept(tb_membership *v, uint64_t now) {
  v->phase = TB_V_ACCEPTING;
  v->next = 0;
  memset(&v->answered, 0, sizeof v->answered);
  ask_members(v, now);
}

/* More than half suffice, but the others are waited for a little, and asked again: who was cut off suspects everybody,
 * and the first few that answer would vote out those whose answers are still under way. */
static void on_promise(tb_membership *v, uint16_t from, const tb_view_msg *m, uint64_t now) {
  if (v->phase != TB_V_PREPARING || m->ballot != v->ballot || tb_member(&v->answered, from)) return;
  tb_member_add(&v->answered, from);
  v->asked = 0;
  if (m->accepted > v->value_from) { /* what may have been decided already must be what is decided */
    v->value_from = m->accepted;
    v->value = m->members;
    v->value_base = m->base;
  } else if (!v->value_from && tb_before(v->value_base, m->base + SLACK)) {
    v->value_base = m->base + SLACK;
  }
  if (tb_member_count(&v->answered) == tb_member_count(&v->members)) accept(v, now);
}

static void on_accepted(tb_membership *v, uint16_t from, const tb_view_msg *m, uint64_t now) {
  if (v->phase != TB_V_ACCEPTING || m->ballot != v->ballot) return;
  tb_member_add(&v->answered, from);
  if (!majority(v, &v->answered)) return;
  tb_members before = v->members;
  adopt(v, &(tb_view_msg){.view = v->number + 1, .base = v->value_base, .members = v->value});
  tb_view_msg c = commit_of(v);
  for (uint32_t r = 0; r < v->n; r++) /* those voted out as well: who is alive may join again */
    if (r != v->me && (tb_member(&v->members, r) || tb_member(&before, r))) v->send(v->ctx, (uint16_t)r, &c);
  consider(v, now); /* what was taken over may not have been what this rank wished */
}

static void on_refuse(tb_membership *v, const tb_view_msg *m, uint64_t now) {
  if (v->phase == TB_V_IDLE || m->ballot <= v->ballot) return;
  v->phase = TB_V_IDLE;
  if (m->ballot > v->promised) v->promised = m->ballot;
  /* duels end: each waits for its own time, longer and longer */
  v->start_at = now + (4 + v->me % 8) * v->retry * v->attempt;
  at(v, v->start_at);
}

void tb_view_heard(tb_membership *v, uint16_t from, const tb_view_msg *m, uint64_t now) {
  for (uint32_t r = v->n; r < TB_VIEW_MOST; r++)
    if (tb_member(&m->members, r)) return; /* ranks that do not exist */
  if ((m->kind == TB_V_COMMIT || m->kind == TB_V_ACCEPT) && !tb_member_count(&m->members)) return;
  switch (m->kind) {
  case TB_V_COMMIT:
    if (tb_before(v->number, m->view)) {
      adopt(v, m);
      consider(v, now);
    }
    return;
  case TB_V_ASK: tb_view_stranger(v, from, v->number); return;
  case TB_V_JOIN:
    if (!tb_view_in(v)) return;
    if (tb_member(&v->members, from)) { /* it is in: it has not heard */
      tb_view_stranger(v, from, v->number);
      return;
    }
    if (m->view != v->number) { /* it has to know this view, or it would jump over one that it was not in */
      tb_view_stranger(v, from, m->view);
      return;
    }
    tb_member_add(&v->wanting, from);
    consider(v, now);
    return;
  default: break;
  }
  if (m->view != v->number + 1) {
    tb_view_stranger(v, from, m->view - 1);
    return;
  }
  if (!tb_member(&v->members, from) || !tb_view_in(v)) return;
  switch (m->kind) {
  case TB_V_PREPARE:
  case TB_V_ACCEPT: on_ballot(v, from, m, now); break;
  case TB_V_PROMISE: on_promise(v, from, m, now); break;
  case TB_V_ACCEPTED: on_accepted(v, from, m, now); break;
  default: on_refuse(v, m, now); break;
  }
}

void tb_view_timer(tb_membership *v, uint64_t now) {
  if (v->due > now) return;
  v->due = UINT64_MAX;
  if (v->joining) {
    tb_view_msg m = {.kind = TB_V_JOIN, .view = v->number};
    tb_members all = tb_members_all(v->n); /* there may be a newer view, with others in it */
    say_to(v, &all, &m);
    at(v, now + 4 * v->retry);
    return;
  }
  if (v->phase == TB_V_PREPARING && v->asked >= PATIENCE && majority(v, &v->answered)) {
    accept(v, now);
  } else if (v->phase != TB_V_IDLE) {
    ask_members(v, now);
  } else if (v->start_at && v->start_at <= now) {
    v->start_at = 0;
    propose(v, now);
  } else if (v->start_at) {
    at(v, v->start_at);
  }
}
