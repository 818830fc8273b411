/* flush.c - rule 15: the last correction of a key, after which the outputs of all its rounds add up to all
 * contributions.
 *
 * On every rank: (1) all take the largest next round (an exact max, by the caller) and `begin`; rounds that a rank
 * has not executed become *ghosts*. (2) `settle`: nothing of the key is under way, no fate is unknown, no decided
 * chunk missing. (3) An exact sum of the residuals (`take`). (4) `end`: the own late values are added, and both are
 * empty.
 *
 * GHOSTS. Under carry the aggregates of a skipped round belong to this rank's outputs like any other: it opens the
 * round without a contribution, does its duty as an owner, and receives the decided chunks as late ones. At most
 * carry_rounds of them; older ones are counted (rounds_lost).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "compute/compute.h"
#include "protocol/core.h"

/* The own decided chunk is a part of the round's output, too. */
static void keep_own(tb_core *c, tb_op *op, uint32_t chunk) {
  uint64_t first;
  uint32_t n = tb_geo_chunk(&op->geo, c->cfg.rank, chunk, &first);
  const uint8_t *decided = tb_decoded(c, op, tb_decided_at(op, chunk), n);
  tb_late_put(c, op, c->cfg.rank, chunk, decided, 1);
}

void tb_ghost_decided(tb_core *c, tb_op *op, uint32_t chunk) {
  if (op->ghost) keep_own(c, op, chunk);
}

static bool make_ghost(tb_core *c, tb_key *k, uint32_t round, uint64_t now) {
  tb_op *op = tb_op_find(c, k->hash, round);
  if (!op && tb_op_new(c, k, round, &k->sig, TB_OPENED_ELSEWHERE, now, &op)) return false;
  if (op->status || op->state != TB_OP_EARLY || memcmp(&op->sig, &k->sig, sizeof k->sig)) return false;
  if (op->ghost) return true;
  op->ghost = true;
  tb_closed_through(op, round + 1);
  for (uint32_t p = 0; p < c->cfg.n; p++) tb_flow_ack_all(&op->peer[p].tx[0]); /* it has nothing to give */
  for (uint32_t i = 0; i < op->decided_n; i++) keep_own(c, op, op->decided_order[i]);
  tb_announce(c, op, now);
  return true;
}

static void let_go(tb_core *c, tb_op *op) {
  for (uint32_t p = 0; p < c->cfg.n; p++)
    if (p != c->cfg.rank && tb_op_takes_part(op, p)) tb_section_add(c, (uint16_t)p, op, 2, TB_R_FINAL | TB_R_CLOSED | TB_R_KNOWN);
}

void tb_ghosts(tb_core *c, tb_key *k, uint32_t from, uint32_t to, uint64_t now) {
  if (k->sig.missing != TB_CARRY || !k->bound || !c->tune.late_delivery) return;
  uint32_t skipped = to - from, few = skipped < c->tune.carry_rounds ? skipped : (uint32_t)c->tune.carry_rounds;
  c->n.rounds_lost += skipped - few;
  for (tb_op *op = k->ops; op; op = op->key_next) /* peers need not keep for us what we will not take */
    if (op->state == TB_OP_EARLY && !op->ghost && tb_before(op->round, to - few)) let_go(c, op);
  for (uint32_t round = to - few; round != to; round++)
    if (!make_ghost(c, k, round, now)) c->n.rounds_lost++;
}

/* ---- settling */

static bool owes(const tb_core *c, const tb_op *op, uint32_t p) {
  if (p == c->cfg.rank || c->peer[p].gone || op->peer[p].nothing || op->peer[p].left) return false;
  return tb_fate_unknown(op, p) || tb_late_wanted(c, op, p);
}

/* Some operation of the key is not over; *who: the peer that was silent longest among those that it waits for, or n. */
static bool open_business(tb_core *c, const tb_settling *s, uint32_t *who, bool ask, uint64_t now) {
  bool found = false;
  *who = c->cfg.n;
  for (tb_op *op = s->key->ops; op; op = op->key_next) {
    if (op->state == TB_OP_EARLY && !op->ghost) continue;
    found |= op->state == TB_OP_ISSUED || op->state == TB_OP_FINISHING || (op->ghost && !op->swept);
    for (uint32_t p = 0; p < c->cfg.n; p++) {
      found |= tb_heirs_open(op, p); /* the others are asked (heirs.c) */
      if (!owes(c, op, p)) continue;
      found = true;
      if (*who == c->cfg.n || c->peer[p].last_heard < c->peer[*who].last_heard) *who = p;
      if (!ask) continue;
      op->peer[p].open_at = now; /* it answers, if only that it knows nothing of this round any more */
      tb_op_peer_due(c, op, (uint16_t)p, now);
    }
  }
  return found;
}

static void end_settling(tb_core *c, tb_settling *s, int status, const char *text, uint64_t now) {
  tb_settling **at = &c->settling;
  while (*at != s) at = &(*at)->next;
  *at = s->next;
  tb_outcome *o = s->outcome;
  o->result = (tb_result){.status = status, .received = 1, .elapsed_ns = now - s->since, .deadline_ns = UINT64_MAX};
  snprintf(o->error, sizeof o->error, "%s", text);
  free(s);
  c->cfg.done(c->cfg.ctx, o);
}

static void look(tb_core *c, tb_settling *s, uint64_t now) {
  uint32_t who;
  bool ask = s->ask_at <= now;
  if (ask) s->ask_at = now + c->tune.probe_every;
  if (!open_business(c, s, &who, ask, now)) {
    end_settling(c, s, 0, "", now);
    return;
  }
  uint64_t since = who == c->cfg.n ? now : c->peer[who].last_heard > s->since ? c->peer[who].last_heard : s->since;
  if (now - since >= c->tune.peer_timeout) {
    char text[TB_TEXT_MAX + 1];
    snprintf(text, sizeof text, "rank %u was silent for %.1f s (peer_timeout) in flush of key '%.60s' at rank %u: what it counted, or "
             "decided, is not known", who, (double)(now - since) * 1e-9, s->key->name, c->cfg.rank);
    end_settling(c, s, -EHOSTDOWN, text, now);
    return;
  }
  uint64_t next = who == c->cfg.n || since + c->tune.peer_timeout > s->ask_at ? s->ask_at :
      since + c->tune.peer_timeout;
  if (next < c->due) c->due = next;
}

void tb_settle_timers(tb_core *c, uint64_t now) {
  for (tb_settling *s = c->settling, *next; s; s = next) {
    next = s->next;
    look(c, s, now);
  }
}

static tb_key *known(tb_core *c, const char *key, uint32_t len) {
  tb_key *k = tb_key_named(c, key, len);
  return k && k->bound ? k : NULL;
}

int tb_core_settle(tb_core *c, const char *key, uint32_t len, uint64_t now, tb_outcome *o) {
  tb_key *k = known(c, key, len);
  if (!k) return -ENOENT;
  tb_geometry none = {.kind = TB_ALL_REDUCE, .n = c->cfg.n, .elem = 1, .chunk_elems = 1};
  tb_settling *s = calloc(1, sizeof *s);
  if (!s || tb_outcome_init(o, &none, c->cfg.rank)) {
    free(s);
    return -ENOMEM;
  }
  *s = (tb_settling){.next = c->settling, .outcome = o, .key = k, .since = now, .ask_at = now + c->tune.probe_every};
  c->settling = s;
  o->issued_ns = now;
  look(c, s, now);
  return 0;
}

bool tb_settle_cancel(tb_core *c, tb_outcome *o, int status, const char *why, uint64_t now) {
  for (tb_settling *s = c->settling; s; s = s->next)
    if (s->outcome == o) {
      end_settling(c, s, status, why, now);
      return true;
    }
  return false;
}

void tb_settle_free_all(tb_core *c) {
  for (tb_settling *s = c->settling, *next; s; s = next) {
    next = s->next;
    free(s);
  }
}

/* ---- the correction */

int tb_core_flush_like(tb_core *c, const char *key, uint32_t len, tb_signature *sig) {
  const tb_key *k = known(c, key, len);
  if (!k) return -ENOENT;
  *sig = k->sig;
  return 0;
}

int tb_core_flush_begin(tb_core *c, const char *key, uint32_t len, uint32_t round, uint64_t now) {
  tb_key *k = known(c, key, len);
  if (!k) return -ENOENT;
  if (tb_before(round, k->next_round)) return tb_members_passed(c, round);
  uint32_t from = k->next_round;
  k->next_round = round;
  tb_ghosts(c, k, from, round, now);
  for (tb_op *op = k->ops; op; op = op->key_next)
    if (op->state == TB_OP_EARLY) tb_due(c, op, now);
  return 0;
}

static void add_all(const tb_store *s, uint8_t *out) {
  for (tb_stored e = {0}; tb_store_each(s, &e); e.at++)
    tb_add((tb_dtype)s->sig.dtype, out + e.first * s->geo.elem, tb_store_at(s, &e), e.n);
}

static uint64_t size_of(const tb_key *k) { return k->sig.count * tb_dtype_size((tb_dtype)k->sig.dtype); }

int tb_core_flush_take(tb_core *c, const char *key, uint32_t len, void *out, uint64_t bytes) {
  tb_key *k = known(c, key, len);
  if (!k) return -ENOENT;
  if (bytes != size_of(k)) return -EINVAL;
  /* what has not come by now was never decided */
  for (tb_op *op = k->ops; op; op = op->key_next) tb_fill_settle(c, op, false);
  memset(out, 0, bytes);
  add_all(&k->residual, out);
  return 0;
}

int tb_core_flush_end(tb_core *c, const char *key, uint32_t len, void *out, uint64_t bytes) {
  tb_key *k = known(c, key, len);
  if (!k) return -ENOENT;
  if (bytes != size_of(k)) return -EINVAL;
  add_all(&k->late, out);
  tb_store_empty(c, &k->late);
  tb_store_empty(c, &k->residual);
  return 0;
}
