/* gather.c - stage 2 at the receiver: decided chunks enter the caller's output, each once and whole.
 *
 * In place, the bytes that a decided chunk overwrites are this rank's own contribution to it. They are saved first: the
 * verdict may still be skip, or the call fail, and then the input is put back. What must not or need not be written yet
 * waits for the commit in library memory (`held`): chunks whose old bytes a link still refers to (LINKS rule 6) in the
 * save area, where they change places with them at the end; the own shard's where it was decided.
 *
 * INVARIANT. A lossy operation is `settled` when the verdict can no longer be skip, however the rest goes, and no peer
 * can say any more that it meant something else. From then on its input is given up: nothing is saved, and it is
 * committed whatever comes. It ends at once with what has come if it is cancelled or an error is heard, and the error
 * is raised at the key's next call: as if it had returned before. It never fails and is never restored. Agreed rounds
 * do not settle: they may still fail after their deadline; nor do carried ones: what is not counted is carried from the
 * saved input.
 */
#include <string.h>
#include "protocol/core.h"

/* The verdict goes by the share of live peers and owners: never less than the share of everybody, which only grows. All
 * peers have opened the round, so all have said the same of it. */
static void settle(tb_op *op) {
  uint32_t peers = op->geo.n - 1; /* who contribute; those that are heard of it are fewer with groups */
  if (op->settled || !op->save || !op->lossy || tb_agrees(op) || op->carries || op->status ||
      op->opened_n < op->peers) return;
  if (op->min_stage[0] > 0 || op->min_stage[1] > 0) return; /* these look at each peer's part, at the end */
  op->settled = tb_share(op->received_sum, tb_geo_out_elems(&op->geo) * peers) >= op->min_received;
}

void tb_output_chunk(tb_core *c, tb_op *op, uint32_t owner, uint32_t chunk, const uint8_t *pay, uint32_t foreign,
                     bool own) {
  if (!op->out) return; /* it failed before it began: its geometry is a peer's, not the caller's */
  uint64_t start, len, first;
  tb_geo_shard(&op->geo, owner, &start, &len);
  uint32_t n = tb_geo_chunk(&op->geo, owner, chunk, &first);
  uint64_t at = op->geo.kind == TB_REDUCE_SCATTER ? first : start + first;
  size_t bytes = (size_t)n * op->geo.elem, off = at * op->geo.elem;
  uint32_t bit = op->outcome->mask_at[owner] * 64 + chunk;
  tb_bit_set(op->outcome->mask, bit);
  op->own_missed |= !own;
  op->own_elems += own ? n : 0;
  op->received_sum += (uint64_t)n * foreign;
  op->others_sum += (uint64_t)n * (foreign + own - 1);
  op->received_elems += n;
  settle(op);
  uint32_t keeper = tb_keeper(op, owner);
  const tb_flow_tx *mine = &op->peer[keeper].tx[0];
  bool own_shard = keeper == c->cfg.rank;
  /* Only what reduces in place has something saved, and a stage 1 whose chunks have REFs to look up. */
  if (op->save && ((mine->ref && mine->ref[tb_flow_index(op, keeper, (tb_piece){owner, chunk})] > c->reaped) || (own_shard && !op->settled))) {
    if (!own_shard) tb_decode(op, op->save + off, pay, n);
    tb_bit_set(op->held, bit);
  } else {
    if (op->save && !op->settled) memcpy(op->save + off, op->out + off, bytes);
    tb_decode(op, op->out + off, pay, n);
  }
}

void tb_stage2_data(tb_core *c, tb_op *op, const tb_data *d, uint64_t now) {
  const tb_head *h = d->h;
  uint16_t p = h->source;
  tb_op_peer *q = &op->peer[p];
  tb_flow_rx *r = &q->rx[1];
  uint32_t own = h->flags & TB_F_OWN ? 1 : 0;
  if (op->carries) tb_fate(c, op, p, h->chunk, h->chunk + 1, own, now);
  bool relayed = tb_across(op, p) && !tb_bit(r->bits, h->chunk) && (op->state == TB_OP_ISSUED || tb_after_wanted(c, op, p));
  if (relayed) {
    tb_relay_decided(c, op, d, now);
    /* the partial sum is not wanted, and its bytes are the decided ones now */
    tb_flow_ack(&q->tx[0], h->chunk, h->chunk + 1);
  }
  if (op->state == TB_OP_RETURNED || op->state == TB_OP_FINISHING) {
    if (tb_bit(r->bits, h->chunk)) {
      c->peer[p].n.duplicate++;
    } else if (tb_late_wanted(c, op, p)) {
      tb_late_chunk(c, op, d, now);
      return;
    } else if (relayed) {
      tb_bit_set(r->bits, h->chunk);
      r->got++;
    } else { /* remembered as an arrival time only: the caller's memory is the caller's again */
      tb_came_after(c, op, p, 1, now);
    }
    bool more = tb_after_wanted(c, op, p) || (op->state == TB_OP_FINISHING && tb_late_kind(c, op));
    if (!more) tb_section_add(c, p, op, 2, TB_R_FINAL | TB_R_CLOSED);
    return;
  }
  if (op->ghost && tb_late_wanted(c, op, p) && !tb_bit(r->bits, h->chunk)) {
    tb_late_chunk(c, op, d, now);
    return;
  }
  if (op->state == TB_OP_EARLY && !tb_across(op, p)) {
    c->peer[p].n.early++;
    return;
  }
  if (tb_bit(r->bits, h->chunk)) {
    c->peer[p].n.duplicate++;
    return;
  }
  tb_bit_set(r->bits, h->chunk);
  op->moved[1] = now;
  if (relayed) own &= tb_bit(op->own_in, tb_kept_index(op, d->piece)); /* so far it was this group's part */
  if (op->state == TB_OP_ISSUED)
    tb_output_chunk(c, op, d->piece.owner, d->piece.chunk, d->pay, h->count - own, own || !tb_geo_scatters(&op->geo));
  tb_flow_ack(&q->tx[0], h->chunk, h->chunk + 1); /* decided, hence closed: our contribution is no longer wanted */
  if (++r->got == r->total) {
    r->done_at = now;
    tb_section_add(c, p, op, 2, TB_R_FINAL);
    tb_op_check(c, op, now);
  }
}
