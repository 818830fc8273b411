/* transform.c - the Hadamard transform around an operation (rule 16): what a lost packet takes away is spread over all
 * elements of many blocks, instead of all of a few elements.
 *
 * The input is transformed into library memory (`work`), where the whole operation then runs, in place: contributions
 * leave from there and decided coefficients take their places. At the end the inverse goes straight into the caller's
 * output. So the caller's memory is only read at the issue and only written at the end: nothing is saved or restored.
 *
 * INVARIANTS. 1. The signs come from (job, round, key), so all ranks have the same; each round has others. 2. A missing
 * coefficient is zero for the inverse, and its block is scaled by length / received, never filled otherwise. 3. What a
 * peer may still ask for, own contributions that nobody is known to have counted, is copied before the end, as it is
 * from a caller's memory: `work` is the outcome's from then on, and no frame points into it.
 *
 * The transform takes as long as several copies of the tensor. tb_core_prepare lets the caller's thread do it without
 * the lock, for the round that comes next by all that is known; if the issue finds another round it is done again. The
 * inverse, too, is the caller's: done() gives it an outcome that is not finished (tb_core_unfinished), and
 * tb_core_invert touches nothing of the core. The operation's own deadline is earlier by what that is measured to take.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "compute/seed.h"
#include "protocol/core.h"
#include "protocol/transform.h"

bool tb_transform_valid(const tb_signature *s) {
  if (!s->hadamard) return true;
  bool averages = s->kind == TB_ALL_REDUCE && s->redop <= TB_AVG && (s->dtype == TB_F32 || s->dtype == TB_F64);
  unsigned log2 = s->hadamard & (uint8_t)~TB_HADAMARD_AUTO;
  if (s->hadamard & TB_HADAMARD_AUTO && (s->consistency || s->missing)) return false;
  return averages && !s->exact && log2 >= TB_HADAMARD_LEAST_LOG2 && log2 <= TB_HADAMARD_MOST_LOG2;
}

static int plan_for(const tb_core *c, tb_outcome *o, const tb_signature *s, uint32_t key, uint32_t round) {
  tb_hadamard plan;
  if (o->transform && o->transform->round == round) return 0;
  uint64_t seed = tb_seed(tb_seed(c->cfg.job, round), key);
  int rc = tb_hadamard_plan(&plan, s->count, s->hadamard & (uint8_t)~TB_HADAMARD_AUTO, seed);
  if (rc) return rc;
  free(o->transform);
  o->transform = calloc(1, sizeof *o->transform + plan.blocks * sizeof *o->transform->missing);
  if (!o->transform) return -ENOMEM;
  o->transform->plan = plan;
  o->transform->round = round;
  return 0;
}

/* The next round by all that is known; signature as the issue will have it. */
int tb_core_prepare(tb_core *c, const tb_call *call, tb_outcome *o) {
  tb_signature s;
  uint32_t key, round;
  bool on;
  if (tb_issue_preview(c, call, &s, &key, &round, &on) || !on) return 0; /* the issue will say what is wrong */
  size_t bytes = s.count * tb_dtype_size((tb_dtype)s.dtype);
  if (!bytes || plan_for(c, o, &s, key, round) || !tb_memory_take(c, bytes)) return 0;
  o->prepared = tb_pool_get(c->pool, bytes);
  o->prepared_bytes = bytes;
  if (o->prepared) return 1;
  tb_memory_give(c, bytes);
  return 0;
}

void tb_core_transform(const tb_call *call, tb_outcome *o) {
  tb_hadamard_forward(&o->transform->plan, (tb_dtype)call->dtype, o->prepared, call->in);
  o->transform->done = true;
}

void tb_core_unprepare(tb_core *c, tb_outcome *o) {
  if (!o->prepared) return;
  tb_pool_put(c->pool, o->prepared);
  tb_memory_give(c, o->prepared_bytes);
  o->prepared = NULL;
}

void tb_transform_none(tb_outcome *o) {
  free(o->transform);
  o->transform = NULL;
}

int tb_transform_take(tb_core *c, tb_op *op, tb_outcome *o, const tb_signature *s) {
  int rc = plan_for(c, o, s, op->key->hash, op->round);
  size_t bytes = s->count * tb_dtype_size((tb_dtype)s->dtype);
  if (rc || !bytes) return rc;
  if (o->prepared) {
    op->work = o->prepared;
    tb_op_grown(c, op, bytes);
    o->prepared = NULL;
    return 0;
  }
  rc = tb_op_add_save(c, op, bytes);
  op->work = op->save;
  op->save = NULL;
  return rc;
}

void tb_transform_begin(tb_core *c, tb_op *op) {
  tb_transform *t = op->outcome->transform;
  if (!t->done) tb_hadamard_forward(&t->plan, (tb_dtype)op->sig.dtype, op->work, op->in);
  t->done = true;
  op->in_is_user = false;
  op->user_out = op->out;
  op->in = op->out = op->work;
  if (!op->lossy) return;
  double bytes = (double)(op->geo.count * op->geo.elem);
  uint64_t budget = op->deadline - op->issued, cost = (uint64_t)(bytes * c->commit_cost[1]);
  op->ahead = cost < budget / 2 ? cost : budget / 2;
  op->deadline -= op->ahead;
  tb_op_reorder(c, op);
}

/* Zeros where no decided coefficients came. */
static void without_missing(const tb_core *c, tb_op *op) {
  tb_transform *t = op->outcome->transform;
  for (uint32_t p = 0; p < c->cfg.n; p++) {
    const uint64_t *came = op->outcome->mask + op->outcome->mask_at[p];
    uint64_t start, len, first;
    tb_geo_shard(&op->geo, p, &start, &len);
    uint32_t chunks = tb_geo_chunks(&op->geo, p);
    for (uint32_t i = tb_bit_next(came, 0, chunks, false); i < chunks; i = tb_bit_next(came, i + 1, chunks, false)) {
      uint32_t n = tb_geo_chunk(&op->geo, p, i, &first);
      tb_hadamard_lost(&t->plan, t->missing, start + first, n);
      memset(op->work + (start + first) * op->geo.elem, 0, (size_t)n * op->geo.elem);
    }
  }
}

void tb_transform_end(tb_core *c, tb_op *op, bool commit) {
  tb_transform *t = op->outcome->transform;
  size_t whole = op->geo.count * op->geo.elem;
  without_missing(c, op);
  t->ended = true;
  /* Skip leaves the input in the output, in place or not. */
  if (!commit && !op->status && op->user_in != op->user_out) memcpy(op->user_out, op->user_in, whole);
  uint8_t *work = tb_op_part_with_work(c, op);
  if (!commit) {
    tb_pool_put(c->pool, work);
    tb_memory_give(c, whole);
    return;
  }
  t->coefficients = work;
  t->bytes = whole;
  t->dtype = (tb_dtype)op->sig.dtype;
  t->out = op->user_out;
  tb_store *s = &op->key->late;
  if (!s->data || memcmp(&s->sig, &op->sig, sizeof s->sig)) return;
  tb_store_move(&t->late, s);
  uint64_t elems = 0;
  for (tb_stored e = {0}; tb_store_each(&t->late, &e); e.at++) elems += e.n;
  op->outcome->result.late = (double)elems / (double)op->geo.count;
}

bool tb_core_unfinished(const tb_outcome *o) { return o->transform && o->transform->coefficients; }

void tb_core_invert(tb_outcome *o) {
  tb_transform *t = o->transform;
  tb_hadamard_inverse(&t->plan, t->dtype, t->out, t->coefficients, t->missing);
  for (tb_stored e = {0}; tb_store_each(&t->late, &e); e.at++)
    tb_add(t->dtype, (uint8_t *)t->out + e.first * t->late.geo.elem, tb_store_at(&t->late, &e), e.n);
}

void tb_core_inverted(tb_core *c, tb_outcome *o) {
  tb_transform *t = o->transform;
  tb_pool_put(c->pool, t->coefficients);
  tb_memory_give(c, t->bytes);
  tb_store_empty(c, &t->late);
  t->coefficients = NULL;
  t->out = NULL;
}

void tb_transform_mask(const tb_transform *t, uint8_t *mask) {
  size_t first, len;
  for (size_t i = 0; t->ended && i < t->plan.n; i = first + len) {
    size_t block = tb_hadamard_block(&t->plan, i, &first, &len);
    if (block < t->plan.blocks) memset(mask + first, t->missing[block] < len, len);
  }
}
