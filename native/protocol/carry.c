/* carry.c - missing="carry" (rules 12, 14, 15): what an owner did not count in time is added in full to the next round.
 *
 * INVARIANTS
 * I1  A contribution is in a decided value, or in the residual, or its fate is being asked for: never in two of these.
 * I2  No fate is guessed. A chunk was counted if its owner says so: by the own bit of the decided chunk, by a receipt
 *     before the close, or by the final receipt (TB_R_FATES) after it. What was never sent, and never will be, was not.
 * I3  What was sent never changes: the residual is taken over at the issue, and `mixed` holds the sum until the end.
 * I4  The owner keeps the final receipt until the sender says that it knows (TB_R_KNOWN), or is gone, or a limit acts.
 * I5  No round waits for any of this. After the return only what has no fate yet is sent: of the rest there is no copy.
 * I6  Memory is bounded (memory_cap, carry_age), and what a limit costs is counted (dropped_*).
 *
 * Until the return fates are only noted: the contribution lies in the caller's memory, or in `save` where it was
 * overwritten. The return settles what is known and keeps the rest in library memory.
 */
#include <math.h>
#include <string.h>
#include "compute/compute.h"
#include "protocol/core.h"

static tb_dtype type_of(const tb_op *op) { return (tb_dtype)op->sig.dtype; }

/* Bytes of the tensor before this chunk, and its elements. */
static size_t place(const tb_op *op, uint32_t owner, uint32_t chunk, uint32_t *n) {
  uint64_t start, len, first;
  tb_geo_shard(&op->geo, owner, &start, &len);
  *n = tb_geo_chunk(&op->geo, owner, chunk, &first);
  return (size_t)(start + first) * op->geo.elem;
}

const uint8_t *tb_contribution(const tb_op *op, uint32_t owner, uint32_t chunk, bool *user) {
  uint32_t n;
  const uint8_t *y = tb_store_get(&op->mixed, op, owner, chunk, NULL);
  *user = !y && op->in_is_user;
  return y ? y : op->in + place(op, owner, chunk, &n);
}

/* The caller's own x, before and at the return: in place, a decided chunk may have taken its place. */
const uint8_t *tb_input(const tb_core *c, const tb_op *op, uint32_t owner, uint32_t chunk) {
  uint32_t n, bit = op->outcome->mask_at[owner] * 64 + chunk;
  bool moved = op->in == op->out && owner != c->cfg.rank && tb_bit(op->outcome->mask, bit) && !tb_bit(op->held, bit);
  return (moved ? op->save : op->in) + place(op, owner, chunk, &n);
}

static void drop(tb_core *c, const void *x, tb_dtype t, uint32_t n, const char *why, uint64_t now) {
  double mass = tb_mass(t, x, n);
  if (isfinite(mass)) c->n.dropped_mass += mass;
  if (!why) return; /* what rounding took: nothing whole */
  c->n.dropped_chunks++;
  c->n.dropped_values += n;
  if (c->closing || (c->drop_told_at && now - c->drop_told_at < 60 * TB_SEC)) return;
  c->drop_told_at = now;
  tb_logf(c, 30, "%s: %u values of this rank's contribution are lost for good (stats: dropped_values, dropped_mass)",
      why, n);
}

/* Into the next round, or it is counted as lost. since: the oldest round in it; NULL: it is what rounding took. */
bool tb_carry_over(tb_core *c, tb_op *op, uint32_t owner, uint32_t chunk, const uint8_t *y, const uint32_t *since,
    uint64_t now) {
  uint32_t n;
  tb_store *s = &op->key->residual;
  place(op, owner, chunk, &n);
  if (!isfinite(tb_mass(type_of(op), y, n)))
    drop(c, y, type_of(op), n, since ? "values that are not finite are not carried" : NULL, now);
  else if (op->orphan || (since ? tb_store_put(c, s, op, owner, chunk, y, 1, *since)
                                : tb_store_put_rounding(c, s, op, owner, chunk, y, 1)))
    drop(c, y, type_of(op), n, since ? "memory_cap, or forget() since, leaves no room for what was not counted" : NULL, now);
  else return true;
  return false;
}

/* Not counted. */
static void put_back(tb_core *c, tb_op *op, uint32_t owner, uint32_t chunk, const uint8_t *y, uint64_t now) {
  uint32_t since = op->round;
  tb_store_get(&op->mixed, op, owner, chunk, &since);
  if (tb_carry_over(c, op, owner, chunk, y, &since, now)) c->n.carry_deferred++;
}

/* The contribution y, or what a wire dtype left of it, is in the decided value. */
static void counted(tb_core *c, tb_op *op, uint32_t owner, uint32_t chunk, const uint8_t *y, uint64_t now) {
  uint32_t since = op->round;
  if (owner != c->cfg.rank) tb_rounding_sent(c, op, owner, chunk, y, 1, now);
  if (!tb_store_get(&op->mixed, op, owner, chunk, &since) || since == op->round) return;
  c->n.carry_applied++;
  c->n.carry_rounds += op->round - since;
}

bool tb_fate_unknown(const tb_op *op, uint32_t p) {
  return op->carries && op->state != TB_OP_EARLY && op->peer[p].fate.n < op->peer[p].tx[0].total;
}

/* All fates towards p are known: p may forget what it keeps for us. */
static void told_all(tb_core *c, tb_op *op, uint32_t p) {
  if (!tb_fate_unknown(op, p) && !c->peer[p].gone) tb_section_add(c, (uint16_t)p, op, 2, TB_R_KNOWN);
}

void tb_fate(tb_core *c, tb_op *op, uint32_t p, uint32_t from, uint32_t to, bool applied, uint64_t now) {
  tb_fate_map *f = &op->peer[p].fate;
  if (!tb_fate_unknown(op, p)) return;
  if (to > op->peer[p].tx[0].total) to = op->peer[p].tx[0].total;
  for (uint32_t i = tb_bit_next(f->known, from, to, false); i < to; i = tb_bit_next(f->known, i + 1, to, false)) {
    bool user;
    tb_bit_set(f->known, i);
    f->n++;
    /* nobody needs it any more, and after the return its bytes may be gone */
    tb_flow_ack(&op->peer[p].tx[0], i, i + 1);
    if (applied) tb_bit_set(f->applied, i);
    if (op->state == TB_OP_ISSUED) continue;
    const uint8_t *y = tb_contribution(op, p, i, &user);
    if (applied) counted(c, op, p, i, y, now);
    else if (!op->status) put_back(c, op, p, i, y, now);
  }
  if (tb_fate_unknown(op, p)) return;
  told_all(c, op, p);
  tb_due(c, op, now); /* the timers look whether it is still needed */
}

void tb_fate_lost(tb_core *c, tb_op *op, uint32_t owner, uint32_t chunk, uint64_t now) {
  uint32_t n;
  bool user;
  place(op, owner, chunk, &n);
  drop(c, tb_contribution(op, owner, chunk, &user), type_of(op), n, "an owner that was voted out may have counted it", now);
  tb_fate(c, op, owner, chunk, chunk + 1, true, now);
}

void tb_carry_issue(tb_core *c, tb_op *op) {
  tb_key *k = op->key;
  if (!op->carries) return;
  uint64_t *open = c->scratch64;
  memset(open, 0, c->cfg.n * sizeof *open);
  for (const tb_op *o = k->ops; o; o = o->key_next)
    for (uint32_t p = 0; o != op && p < c->cfg.n; p++) open[p] += tb_fate_unknown(o, p);
  for (uint32_t p = 0; p < c->cfg.n; p++) /* W: whose answers have not come for so many rounds gets nothing new */
    if (p != c->cfg.rank && open[p] >= c->tune.keep_rounds) tb_flow_ack_all(&op->peer[p].tx[0]);
  /* Others had opened rounds of another kind before the first call here. */
  if (k->residual.data && !tb_store_fits(&k->residual, op)) tb_carry_forget(c, k);
  if (!k->residual.data) return;
  if (tb_store_regroup(c, &k->residual, op)) return; /* it waits for a round with more room */
  tb_store_move(&op->mixed, &k->residual);
  uint64_t elems = 0;
  for (tb_stored e = {0}; tb_store_each(&op->mixed, &e); e.at++, elems += e.whole ? e.n : 0)
    tb_add(type_of(op), tb_store_at(&op->mixed, &e), op->in + e.first * op->geo.elem, e.n);
  op->carried = (double)elems / (double)op->geo.count;
}

bool tb_value_due(const tb_op *op, uint32_t p, uint32_t chunk) { return op->carries && !tb_bit(op->peer[p].rx[1].bits, chunk); }

bool tb_counted_unseen(const tb_op *op, uint32_t p) {
  const tb_op_peer *q = &op->peer[p];
  for (uint32_t w = 0; op->carries && w < tb_words(q->tx[0].total); w++)
    if (q->fate.known[w] & q->fate.applied[w] & ~q->rx[1].bits[w]) return true;
  return false;
}

void tb_carry_left(tb_core *c, tb_op *op, uint32_t p, uint64_t now) {
  tb_op_peer *q = &op->peer[p];
  for (uint32_t i = 0; i < q->tx[0].total; i++) {
    bool user;
    if (!tb_bit(q->fate.known, i) || !tb_bit(q->fate.applied, i) || !tb_value_due(op, p, i)) continue;
    if (!op->in && !tb_store_get(&op->mixed, op, p, i, NULL)) continue; /* no memory was left to keep it */
    /* counted, so far */
    if (op->state != TB_OP_ISSUED) tb_rounding_sent(c, op, p, i, tb_contribution(op, p, i, &user), -1, now);
    tb_bit_clear(q->fate.known, i);
    tb_bit_clear(q->fate.applied, i);
    q->fate.n--;
  }
}

/* It failed: what it had taken over goes back, unless it was counted or may have been. */
static void give_back(tb_core *c, tb_op *op, uint32_t owner, uint32_t chunk, bool known, uint64_t now) {
  uint32_t n, since = op->round;
  const uint8_t *y = tb_store_get(&op->mixed, op, owner, chunk, &since), *x = tb_input(c, op, owner, chunk);
  bool whole = since != op->round; /* else it is what rounding took of earlier rounds */
  place(op, owner, chunk, &n);
  if (!y) return;
  if (!known) drop(c, y, type_of(op), n, "a failed round may have been counted", now);
  else if (!tb_carry_over(c, op, owner, chunk, y, whole ? &since : NULL, now)) return;
  else if (whole) tb_store_put(c, &op->key->residual, op, owner, chunk, x, -1, since);
  else tb_store_put_rounding(c, &op->key->residual, op, owner, chunk, x, -1);
}

/* Unknown at the return: it must outlive the call. */
static void keep(tb_core *c, tb_op *op, uint32_t owner, uint32_t chunk, const uint8_t *x, uint64_t now) {
  uint32_t n;
  size_t at = place(op, owner, chunk, &n), bytes = (size_t)n * op->geo.elem, all = op->geo.count * op->geo.elem;
  if (!op->save) (void)tb_op_add_save(c, op, all);
  if (op->save && x != op->save + at) memcpy(op->save + at, x, bytes);
  if (op->save) return;
  drop(c, x, type_of(op), n, "memory_cap leaves no room for what may not have been counted", now);
  tb_fate(c, op, owner, chunk, chunk + 1, true, now); /* gone, one way or the other: it is not sent again */
}

/* Some decided chunk with it may have left this rank. */
static bool handed_out(const tb_core *c, const tb_op *op, uint32_t chunk) {
  for (uint32_t p = 0; p < c->cfg.n; p++)
    if (chunk < op->peer[p].tx[1].total && op->peer[p].tx[1].last_step[chunk]) return true;
  return false;
}

void tb_carry_return(tb_core *c, tb_op *op, uint64_t now) {
  for (uint32_t p = 0; p < c->cfg.n; p++) {
    tb_op_peer *q = &op->peer[p];
    bool own = p == c->cfg.rank, over = q->announced && q->announced <= now; /* stage 1 has ended there, by now */
    if (!own && (over || !tb_peer_expected(op, c, p))) tb_flow_ack_all(&q->tx[0]); /* nothing is sent later than this */
    for (uint32_t i = 0, n = tb_geo_chunks(&op->geo, p); i < n; i++) {
      bool never_sent = !own && tb_bit(q->tx[0].ack, i) && !q->tx[0].last_step[i];
      if (never_sent) tb_fate(c, op, p, i, i + 1, false, now);
      bool known = own || tb_bit(q->fate.known, i);
      bool applied = own ? tb_bit(op->own_in, i) : known && tb_bit(q->fate.applied, i);
      const uint8_t *y = tb_store_get(&op->mixed, op, p, i, NULL), *x = tb_input(c, op, p, i);
      if (own && op->status) {
        known = !handed_out(c, op, i);
        applied = false;
      }
      if (known && applied) {
        counted(c, op, p, i, y ? y : x, now);
        /* should p leave before it tells anybody */
        if (!own && !y && !op->status && tb_value_due(op, p, i)) keep(c, op, p, i, x, now);
      } else if (op->status) give_back(c, op, p, i, known, now);
      else if (known) put_back(c, op, p, i, y ? y : x, now);
      else if (!y) keep(c, op, p, i, x, now);
    }
  }
  op->in = op->save;
  op->in_is_user = false;
}

void tb_carry_free(tb_core *c, tb_op *op, uint64_t now) {
  for (uint32_t p = 0; op->carries && p < c->cfg.n; p++) {
    const tb_op_peer *q = &op->peer[p];
    if (q->rx[0].got && !q->knows && !q->nothing) { /* whoever asks for this round later cannot be told any more */
      if (!op->key->fates_lost || tb_before(op->key->lost_round, op->round)) op->key->lost_round = op->round;
      op->key->fates_lost = true;
    }
    if (!tb_fate_unknown(op, p) || op->status || op->state == TB_OP_ISSUED) continue;
    uint32_t total = q->tx[0].total;
    const uint64_t *known = q->fate.known;
    for (uint32_t i = tb_bit_next(known, 0, total, false); i < total; i = tb_bit_next(known, i + 1, total, false)) {
      bool user;
      uint32_t n;
      place(op, p, i, &n);
      const uint8_t *y = tb_contribution(op, p, i, &user);
      drop(c, y, type_of(op), n, "a peer never told whether it had counted a round (carry_age)", now);
    }
  }
  tb_store_empty(c, &op->mixed);
}

void tb_carry_forget(tb_core *c, tb_key *k) {
  for (tb_stored e = {0}; tb_store_each(&k->residual, &e); e.at++) {
    c->n.dropped_chunks += e.whole;
    c->n.dropped_values += e.whole ? e.n : 0;
    c->n.dropped_mass += tb_mass((tb_dtype)k->residual.sig.dtype, tb_store_at(&k->residual, &e), e.n);
  }
  tb_store_empty(c, &k->residual);
}

/* ---- what is said about it */

uint8_t tb_fates_of_past(const tb_key *k, uint32_t round) {
  return k->fates_lost && !tb_before(k->lost_round, round) ? 0 : TB_R_FATES;
}

/* The owner's clock: repeats the final receipt until its sender knows all of it. */
uint64_t tb_fates_tell(tb_core *c, tb_op *op, uint16_t p, uint64_t now) {
  tb_op_peer *q = &op->peer[p];
  if (!op->carries || !op->swept || q->knows || q->nothing || op->status || !q->rx[0].total) return UINT64_MAX;
  if (c->peer[p].gone) return UINT64_MAX;
  if (c->peer[p].absent) return now + c->tune.probe_every;
  if (!q->tell_at) q->tell_at = q->rx[0].got < q->rx[0].total ? now : now + tb_rto(c, &c->peer[p]);
  if (q->tell_at > now) return q->tell_at;
  tb_section_add(c, p, op, 1, TB_R_FINAL | TB_R_FATES);
  return q->tell_at = now + tb_rto_doubled(c, &c->peer[p], q->tells++);
}

/* A first entry (from, bits), then the bits: 1 = counted. `more`: the rest goes into the next frame. */
uint32_t tb_fates_put(tb_op *op, uint16_t p, uint8_t *out, uint32_t room, tb_section *s, bool *more) {
  tb_op_peer *q = &op->peer[p];
  const tb_flow_rx *r = &q->rx[0];
  uint32_t word = q->tell_from / 64, left = tb_words(r->total) - word, n = room / 8 - 1;
  if (n > left) n = left;
  uint32_t from = word * 64, end = (word + n) * 64 < r->total ? (word + n) * 64 : r->total;
  tb_put32(out, from);
  tb_put32(out + 4, end - from);
  for (uint32_t i = 0; i < n; i++) tb_put64(out + 8 + 8 * i, r->bits[word + i]);
  s->ranges = (uint16_t)(n + 1);
  s->upto = end;
  *more = end < r->total;
  q->tell_from = *more ? end : 0;
  return 8 * (n + 1);
}

bool tb_fates_got(tb_core *c, tb_op *op, uint16_t p, const tb_section *s, const uint8_t *body, uint64_t now) {
  uint32_t total = op->peer[p].tx[0].total;
  if (!op->carries) return true;
  if (s->flags & TB_R_UNKNOWN) {
    tb_fate(c, op, p, 0, total, false, now); /* it never took part in this round */
  } else if (s->ranges) {
    uint32_t from = tb_get32(body), bits = tb_get32(body + 4);
    if (from > total || bits > total - from || tb_words(bits) != s->ranges - 1u) return false;
    for (uint32_t i = 0; i < bits; i++) {
      bool applied = tb_get64(body + 8 + i / 64 * 8) >> i % 64 & 1;
      tb_fate(c, op, p, from + i, from + i + 1, applied, now);
    }
  }
  told_all(c, op, p);
  return true;
}
