/* order.c - deterministic reductions (rule 17): contributions are added by rank, whatever the order in which they
 * arrive.
 *
 * A chunk's accumulator holds the contributions of the first `upto` members of the team, the own one at its place.
 * What comes before its turn waits in library memory, as it came; when the chunk closes, what waits is added by rank,
 * and who is missing is passed over. So the bytes depend on which contributions count, and on nothing else.
 *
 * Memory: a shard's payloads for each member, about the tensor's bytes once more, counted as the operation's. Sums of
 * integers need none of it, nor do their minima: they are the same in any order.
 */
#include <string.h>
#include "compute/compute.h"
#include "protocol/core.h"

bool tb_order_matters(const tb_core *c, const tb_signature *s) {
  return s->tag & TB_TAG_ORDERED && s->kind != TB_SEND && tb_dtype_is_float((tb_dtype)s->dtype) && c->cfg.n > 1;
}

static size_t stride(const tb_op *op) { return tb_geo_payload(&op->geo, op->geo.chunk_elems); }

size_t tb_order_bytes(const tb_op *op) { return (size_t)op->geo.n * op->chunks * stride(op); }

static uint8_t *slot(const tb_op *op, uint32_t place, uint32_t chunk) {
  return op->in_wait + ((size_t)place * op->chunks + chunk) * stride(op);
}

static uint8_t *acc_at(const tb_op *op, uint64_t first) {
  return op->acc + first * tb_acc_size((tb_dtype)op->sig.dtype);
}

static void add(tb_op *op, bool begun, uint64_t first, const uint8_t *pay, uint32_t n) {
  (begun ? tb_coded_next : tb_coded_first)(op, acc_at(op, first), pay, n);
}

static void add_own(const tb_core *c, tb_op *op, bool begun, uint32_t chunk, uint64_t first, uint32_t n) {
  bool user;
  const uint8_t *x = tb_contribution(op, c->cfg.rank, chunk, &user);
  tb_dtype t = (tb_dtype)op->sig.dtype;
  if (begun) tb_reduce_next((tb_redop)op->sig.redop, t, acc_at(op, first), x, n);
  else tb_reduce_first(t, acc_at(op, first), x, n);
  op->count[chunk]++;
  tb_bit_set(op->own_in, chunk);
}

/* From `upto` on, what is there; `all`: to the end, passing over who is missing. */
static void go_on(const tb_core *c, tb_op *op, uint32_t chunk, uint64_t first, uint32_t n, bool all) {
  bool begun = op->upto[chunk] > 0;
  for (uint32_t place = op->upto[chunk]; place < op->geo.n; place++) {
    uint32_t p = tb_team_rank(op->geo.team, place);
    bool own = p == c->cfg.rank;
    bool there = own ? op->state == TB_OP_ISSUED && op->in : tb_bit(op->peer[p].rx[0].bits, chunk);
    if (!there && !all) return;
    if (there && own) add_own(c, op, begun, chunk, first, n);
    else if (there) add(op, begun, first, slot(op, place, chunk), n);
    begun |= there;
    op->upto[chunk] = (uint16_t)(place + 1);
  }
}

void tb_order_came(const tb_core *c, tb_op *op, uint32_t p, uint32_t chunk, uint64_t first, uint32_t n,
                   const uint8_t *pay) {
  uint32_t place = tb_team_place(op->geo.team, p);
  op->count[chunk]++;
  go_on(c, op, chunk, first, n, false); /* the own one may have its turn */
  if (op->upto[chunk] != place) {
    memcpy(slot(op, place, chunk), pay, tb_geo_payload(&op->geo, n));
    tb_bit_set(op->peer[p].rx[0].bits, chunk);
    return;
  }
  add(op, place > 0, first, pay, n);
  tb_bit_set(op->peer[p].rx[0].bits, chunk);
  op->upto[chunk]++;
  go_on(c, op, chunk, first, n, false);
}

void tb_order_close(const tb_core *c, tb_op *op, uint32_t chunk, uint64_t first, uint32_t n) {
  go_on(c, op, chunk, first, n, true);
}
