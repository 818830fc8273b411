/* late.c - rule 13: a decided chunk that missed its deadline still comes, and is added to the next output of its key.
 *
 * After the return of a named lossy all_reduce each incomplete stage-2 flow stays wanted: the owner's marks go on,
 * the request answers them, and what comes is put aside in the key's `late` store. INVARIANTS. A chunk is added once
 * (its rx bit). Nobody waits for it: old rounds stand behind every present one. The wait ends with the last chunk,
 * when the owner has no more or is gone, and at the limits of every returned round (keep_rounds, keep_age).
 *
 * FILL. Where the own input was put in its place (fill="own") a copy of that is kept, and the late chunk brings only
 * the difference. Under carry it is taken off even when nothing comes: what was not counted is carried in full.
 */
#include <math.h>
#include <string.h>
#include "compute/compute.h"
#include "protocol/core.h"

bool tb_late_kind(const tb_core *c, const tb_op *op) {
  return c->tune.late_delivery && op->lossy && op->key->len && !op->orphan && op->geo.kind == TB_ALL_REDUCE && !op->status &&
         !tb_agrees(op) && !op->transformed; /* coefficients of another round's signs cannot be added */
}

bool tb_late_wanted(const tb_core *c, const tb_op *op, uint32_t p) {
  const tb_op_peer *q = &op->peer[p];
  const tb_flow_rx *r = &q->rx[1];
  if ((op->state != TB_OP_RETURNED && !op->ghost) || r->got == r->total || !tb_late_kind(c, op)) return false;
  if (q->nothing || q->left || c->peer[p].gone || c->closing) return false;
  return !tb_nothing_more(op, p); /* else the rest was never decided */
}

bool tb_after_wanted(const tb_core *c, const tb_op *op, uint32_t p) {
  return tb_late_wanted(c, op, p) || tb_relay_wanted(c, op, p);
}

/* One infinity would spoil the next round as well: it has done its harm, and was told, in its own. */
bool tb_late_put(tb_core *c, tb_op *op, uint32_t owner, uint32_t chunk, const void *x, int sign) {
  uint64_t first;
  uint32_t n = tb_geo_chunk(&op->geo, owner, chunk, &first);
  bool ok = !op->orphan && isfinite(tb_mass((tb_dtype)op->sig.dtype, x, n)) &&
            !tb_store_put(c, &op->key->late, op, owner, chunk, x, sign, op->round);
  c->n.late_dropped += !ok;
  return ok;
}

void tb_late_chunk(tb_core *c, tb_op *op, const tb_data *d, uint64_t now) {
  uint16_t p = d->h->source;
  uint32_t owner = d->piece.owner, chunk = d->piece.chunk;
  tb_flow_rx *r = &op->peer[p].rx[1];
  const uint8_t *decided = tb_decoded(c, op, d->pay, d->elems);
  tb_bit_set(r->bits, d->h->chunk);
  c->peer[p].n.late++;
  if (tb_late_put(c, op, owner, chunk, decided, 1)) c->n.late_delivered++;
  const void *x = tb_store_get(&op->filled, op, owner, chunk, NULL);
  if (x) tb_late_put(c, op, owner, chunk, x, -1);
  tb_came_late(c, op, p, now);
  if (++r->got == r->total) r->done_at = now;
  if (!tb_after_wanted(c, op, p)) tb_section_add(c, p, op, 2, TB_R_FINAL | TB_R_CLOSED);
  tb_op_sample(op, p);
  tb_due(c, op, now); /* the timers look whether anybody still needs it: here it must not be freed */
}

void tb_fill_chunk(tb_core *c, tb_op *op, uint32_t owner, uint32_t chunk, uint8_t *out, const uint8_t *x,
    size_t bytes) {
  bool later = tb_late_kind(c, op), fill = op->fill && x;
  if (fill && later) fill = isfinite(tb_mass((tb_dtype)op->sig.dtype, x, bytes / op->geo.elem)) &&
                            !tb_store_put(c, &op->filled, op, owner, chunk, x, 1, op->round);
  if (!fill) memset(out, 0, bytes);
  else if (out != x) memcpy(out, x, bytes);
}

void tb_fill_settle(tb_core *c, tb_op *op, bool for_good) {
  for (tb_stored e = {0}; tb_store_each(&op->filled, &e); e.at++) {
    uint32_t shard = e.at / op->filled.stride, chunk = e.at % op->filled.stride;
    uint32_t owner = tb_geo_owner(&op->geo, shard), p = tb_giver(c, op, owner);
    if (!for_good && p != c->cfg.rank && tb_late_wanted(c, op, p)) continue;
    bool came = p != c->cfg.rank && tb_bit(op->peer[p].rx[1].bits, tb_flow_index(op, p, (tb_piece){owner, chunk}));
    if (!came && op->carries) tb_late_put(c, op, owner, chunk, tb_store_at(&op->filled, &e), -1);
    tb_store_remove(c, &op->filled, &e);
    if (!op->filled.data) break;
  }
}

void tb_late_give_up(tb_core *c, tb_op *op) {
  for (uint32_t p = 0; p < c->cfg.n; p++) {
    const tb_flow_rx *r = &op->peer[p].rx[1];
    if (p != c->cfg.rank && tb_late_wanted(c, op, p))
      c->n.late_dropped += (r->peer_final ? r->sent_known : r->total) - r->got;
  }
  tb_fill_settle(c, op, true);
}

void tb_late_skip(tb_core *c, tb_op *op) {
  const tb_outcome *o = op->outcome;
  if (!op->carries || o->result.verdict != TB_VERDICT_SKIP) return;
  for (uint32_t p = 0; p < c->cfg.n; p++) {
    uint64_t start, len, first;
    tb_geo_shard(&op->geo, p, &start, &len);
    for (uint32_t i = 0, n = tb_geo_chunks(&op->geo, p); i < n; i++) {
      uint32_t bit = o->mask_at[p] * 64 + i;
      uint32_t elems = tb_geo_chunk(&op->geo, p, i, &first);
      if (!tb_bit(o->mask, bit)) continue;
      const uint8_t *at = tb_bit(op->held, bit) ? op->save : op->out;
      at += (start + first) * op->geo.elem;
      if (p == c->cfg.rank) at = tb_decoded(c, op, tb_decided_at(op, i), elems);
      tb_late_put(c, op, p, i, at, 1);
    }
  }
}

void tb_late_forget(tb_core *c, tb_key *k) {
  c->n.late_dropped += k->late.used;
  tb_store_empty(c, &k->late);
}

double tb_late_commit(tb_core *c, tb_op *op) {
  tb_store *s = &op->key->late;
  uint64_t elems = 0;
  if (!s->data || !tb_store_fits(s, op) || !op->out) return 0;
  for (tb_stored e = {0}; tb_store_each(s, &e); e.at++) {
    tb_add((tb_dtype)s->sig.dtype, op->out + e.first * s->geo.elem, tb_store_at(s, &e), e.n);
    elems += e.n;
  }
  tb_store_empty(c, s);
  return (double)elems / (double)op->geo.count;
}

void tb_core_closing(tb_core *c, uint64_t now) {
  c->closing = true;
  for (tb_op *op = c->ops; op; op = op->next) {
    if (op->state != TB_OP_RETURNED || !tb_late_kind(c, op)) continue;
    for (uint32_t p = 0; p < c->cfg.n; p++)
      if (op->peer[p].rx[1].got < op->peer[p].rx[1].total && !tb_relay_wanted(c, op, p))
        tb_section_add(c, (uint16_t)p, op, 2, TB_R_FINAL | TB_R_CLOSED);
    tb_due(c, op, now);
  }
}
