/* reduce.c - stage 1 at the owner: contributions are reduced on arrival, chunks are closed, decided and handed out.
 *
 * INVARIANTS. A contribution is added to a chunk at most once (rx bit), never after the chunk is closed, and only
 * whole. A closed chunk never changes: repairs send the same bytes to everybody. The own contribution joins at the
 * first arrival when it is there already (one pass over memory instead of two), else when the chunk closes; in the
 * order of ranks, where that is asked for, at its turn (order.c).
 */
#include <string.h>
#include "compute/compute.h"
#include "protocol/core.h"

static uint8_t *acc_at(const tb_op *op, uint32_t chunk) {
  return op->acc + (size_t)chunk * op->geo.chunk_elems * tb_acc_size((tb_dtype)op->sig.dtype);
}

static const uint8_t *own_at(const tb_op *op, tb_piece x) {
  bool user;
  return tb_contribution(op, x.owner, x.chunk, &user);
}

/* Something of `ranks` ranks was added. */
static void counted(tb_op *op, uint32_t chunk, uint32_t ranks) {
  op->count[chunk] = (uint16_t)(op->count[chunk] + ranks);
  if (op->tree) op->arrived[chunk]++;
}

static void join_own(tb_op *op, uint32_t chunk, tb_piece at, uint32_t n) {
  tb_dtype t = (tb_dtype)op->sig.dtype;
  const uint8_t *x = own_at(op, at);
  if (op->count[chunk] == 0) tb_reduce_first(t, acc_at(op, chunk), x, n);
  else tb_reduce_next((tb_redop)op->sig.redop, t, acc_at(op, chunk), x, n);
  counted(op, chunk, 1);
  tb_bit_set(op->own_in, chunk);
}

static void join(tb_op *op, uint32_t chunk, uint32_t n, const uint8_t *pay, uint32_t ranks) {
  if (op->count[chunk] == 0) tb_coded_first(op, acc_at(op, chunk), pay, n);
  else tb_coded_next(op, acc_at(op, chunk), pay, n);
  counted(op, chunk, ranks);
}

static void decide(tb_core *c, tb_op *op, uint32_t chunk, uint64_t now) {
  uint64_t first;
  tb_piece x = tb_flow_piece(c, op, c->cfg.rank, 1, TB_SENT, chunk);
  uint32_t n = tb_geo_chunk(&op->geo, x.owner, x.chunk, &first);
  if (op->in_wait) tb_order_close(c, op, chunk, first, n);
  else if (op->in && op->state == TB_OP_ISSUED && !tb_bit(op->own_in, chunk)) join_own(op, chunk, x, n);
  tb_bit_set(op->closed, chunk);
  op->closed_n++;
  if (x.owner != c->cfg.rank) {
    tb_partial_close(c, op, chunk, x);
    return;
  }
  if (!op->count[chunk]) return; /* nobody's data, not even our own: there is nothing to decide */
  tb_dtype t = (tb_dtype)op->sig.dtype;
  uint32_t count = op->count[chunk], mul = 1, div = 1;
  bool carried = op->sig.missing == TB_CARRY; /* rule 12: what is missing comes later, it is not estimated */
  if (tb_dtype_is_float(t) && op->sig.redop == TB_AVG) div = carried ? op->geo.n : count;
  if (tb_dtype_is_float(t) && op->sig.redop == TB_SUM && count < op->geo.n && !carried) {
    mul = op->geo.n; /* rule 11: unbiased as long as loss does not depend on values */
    div = count;
  }
  uint8_t *d = tb_decided_at(op, chunk), *acc = acc_at(op, chunk);
  tb_reduce_last(t, tb_coded(op) ? acc : d, acc, mul, div, n);
  if (tb_coded(op)) tb_rounding_decide(c, op, chunk, acc, n, now);
  tb_decided_chunk(c, op, chunk);
  tb_ghost_decided(c, op, chunk);
  if (op->state == TB_OP_ISSUED) {
    bool own = tb_bit(op->own_in, chunk);
    tb_output_chunk(c, op, x.owner, x.chunk, d, count - own, own);
  }
}

static bool complete(const tb_core *c, const tb_op *op, uint32_t chunk) {
  uint32_t n = tb_contributors(c, op, chunk), have = op->tree ? op->arrived[chunk] : op->count[chunk];
  bool own_pending = op->state == TB_OP_ISSUED && !tb_bit(op->own_in, chunk);
  if (have + own_pending == n) return true;
  if (!op->lossy) return false;
  if (op->state == TB_OP_EARLY) return false; /* our own is still to come, or the deadline */
  /* Only who is away or has passed may owe nothing. Who they are matters when no more than so many are missing. */
  if (have + own_pending + c->away + op->passed_n < n) return false;
  for (uint32_t p = 0; p < c->cfg.n; p++)
    if (p != c->cfg.rank && tb_owes_chunk(c, op, p, chunk)) return false;
  return true;
}

/* A flow whose missing chunks are closed wants nothing more: the sender is told, and stops. */
static void close_flows(tb_core *c, tb_op *op) {
  for (uint32_t p = 0; p < c->cfg.n; p++) {
    tb_flow_rx *r = &op->peer[p].rx[0];
    if (p != c->cfg.rank && r->total && r->got < r->total) tb_section_add(c, (uint16_t)p, op, 1, TB_R_FINAL);
  }
}

void tb_stage1_sweep(tb_core *c, tb_op *op, uint64_t now, tb_close_what what) {
  if (!tb_geo_scatters(&op->geo) || op->swept) return;
  uint32_t open = 0;
  for (uint32_t i = tb_bit_next(op->closed, 0, op->chunks, false); i < op->chunks;
       i = tb_bit_next(op->closed, i + 1, op->chunks, false)) {
    bool time = what == TB_CLOSE_ALL || (what == TB_CLOSE_RELAYS && tb_relays(c, op, i));
    if (time || complete(c, op, i)) decide(c, op, i, now);
    else open++;
  }
  if (open) return;
  op->swept = true;
  tb_tx_ready_all(op, 1); /* where nothing at all was decided the mark has to say so */
  op->swept_at = now;
  for (uint32_t p = 0; op->carries && p < c->cfg.n; p++) tb_op_peer_due(c, op, (uint16_t)p, now); /* final receipts */
  close_flows(c, op);
}

void tb_stage1_data(tb_core *c, tb_op *op, const tb_data *d, uint64_t now) {
  uint16_t p = d->h->source;
  uint32_t chunk = tb_kept_index(op, d->piece), n = d->elems, ranks = d->h->count;
  tb_flow_rx *r = &op->peer[p].rx[0];
  if (tb_bit(r->bits, d->h->chunk)) {
    c->peer[p].n.duplicate++;
    return;
  }
  if (tb_bit(op->closed, chunk)) {
    tb_came_after(c, op, p, 0, now);
    if (!op->tree || op->swept) tb_section_add(c, p, op, 1, TB_R_FINAL); /* relays close before the own shard does */
    return;
  }
  op->moved[0] = now;
  bool with_own = op->count[chunk] == 0 && op->state == TB_OP_ISSUED && op->in;
  if (op->in_wait) {
    tb_order_came(c, op, p, chunk, (uint64_t)chunk * op->geo.chunk_elems, n, d->pay);
  } else if (with_own && tb_coded(op)) {
    join_own(op, chunk, d->piece, n);
    join(op, chunk, n, d->pay, ranks);
  } else if (with_own) {
    tb_reduce_pair((tb_redop)op->sig.redop, (tb_dtype)op->sig.dtype, acc_at(op, chunk), own_at(op, d->piece), d->pay, n);
    tb_bit_set(op->own_in, chunk);
    counted(op, chunk, 1);
    counted(op, chunk, ranks);
  } else {
    join(op, chunk, n, d->pay, ranks);
  }
  tb_bit_set(r->bits, d->h->chunk);
  if (++r->got == r->total) {
    r->done_at = now;
    tb_section_add(c, p, op, 1, TB_R_FINAL);
  }
  if (complete(c, op, chunk)) {
    decide(c, op, chunk, now);
    if (op->closed_n == op->chunks) {
      tb_stage1_sweep(c, op, now, TB_CLOSE_COMPLETE);
      tb_op_check(c, op, now);
    }
  }
}
