/* coding.c - wire dtypes: what travels of a float32 sum or average in fewer bits than its elements have (rule 7).
 *
 * A contribution is encoded when its frame is made, in a buffer that lives as long as the frame waits to be taken. The
 * owner adds decoded values to its float32 accumulator, its own part as it is. The result is encoded once, when it is
 * decided, and everybody, the owner included, decodes the same bytes.
 *
 * INVARIANTS. 1. A repair sends the same bytes: the seed of the rounding names the payload (job, key, round, stage,
 * source, shard, chunk), and an input that was overwritten belongs to a decided chunk, which is never sent again. 2. No
 * two payloads share a seed, or their rounding errors would add up instead of averaging out. 3. A frame never refers to
 * the caller's memory. Under carry what rounding takes goes into the next round (rounding.c).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "compute/seed.h"
#include "compute/wire_type.h"
#include "protocol/core.h"

bool tb_coding_valid(const tb_signature *s) {
  if (s->wire_dtype == s->dtype) return true;
  bool averages = s->kind == TB_ALL_REDUCE && s->redop <= TB_AVG && s->dtype == TB_F32;
  return averages && tb_wire_bytes((tb_dtype)s->wire_dtype, 1);
}

void tb_coding_geometry(const tb_signature *s, tb_geometry *g) {
  g->elem = g->wire_elem = (uint32_t)tb_dtype_size((tb_dtype)s->dtype);
  g->wire_head = 0;
  if (s->wire_dtype == s->dtype) return;
  uint32_t one = (uint32_t)tb_wire_bytes((tb_dtype)s->wire_dtype, 1);
  g->wire_elem = (uint32_t)tb_wire_bytes((tb_dtype)s->wire_dtype, 2) - one;
  g->wire_head = one - g->wire_elem;
}

uint32_t tb_coding_chunk(const tb_signature *s, uint32_t chunk_bytes) {
  tb_geometry g;
  tb_coding_geometry(s, &g);
  return (chunk_bytes - g.wire_head) / g.wire_elem;
}

static size_t stride(const tb_core *c) { return (c->cfg.chunk_bytes + 63) / 64 * 64; }

int tb_coding_room(tb_core *c) {
  /* The most elements of a chunk is the count of int8's bytes; they are decoded to float32. */
  size_t most = c->cfg.chunk_bytes * sizeof(float);
  if (!c->decoded) c->decoded = malloc(most);
  if (!c->rounding) c->rounding = malloc(most);
  if (!c->coded) c->coded = malloc((TB_DATA_MAX + 1) * stride(c)); /* one for payloads that nobody sends */
  return c->coded && c->decoded && c->rounding ? 0 : -ENOMEM;
}

/* Only owners send in stage 2, and they send themselves nothing in stage 1. */
static bool encode(const tb_core *c, const tb_op *op, uint32_t owner, uint32_t chunk, void *out, const void *x,
                   uint32_t n, float *lost) {
  uint64_t seed = tb_seed(tb_seed(tb_seed(c->cfg.job, op->round), op->key->hash), (uint64_t)c->cfg.rank << 32 | owner);
  return tb_wire_encode((tb_dtype)op->sig.wire_dtype, TB_F32, out, x, n, tb_seed(seed, chunk), lost);
}

const uint8_t *tb_encode_own(tb_core *c, const tb_op *op, uint32_t owner, uint32_t chunk, const uint8_t *x,
                             uint32_t n) {
  uint8_t *out = c->coded + c->out_n * stride(c); /* frames are made from an empty queue on, data to TB_DATA_MAX */
  encode(c, op, owner, chunk, out, x, n, NULL);
  return out;
}

bool tb_encode_decided(const tb_core *c, const tb_op *op, uint32_t chunk, const uint8_t *mean, uint32_t n,
                       float *lost) {
  return encode(c, op, c->cfg.rank, chunk, tb_decided_at(op, chunk), mean, n, lost);
}

bool tb_encode_lost(const tb_core *c, const tb_op *op, uint32_t owner, uint32_t chunk, const uint8_t *x, uint32_t n,
                    float *lost) {
  return encode(c, op, owner, chunk, c->coded + TB_DATA_MAX * stride(c), x, n, lost);
}

void tb_coded_first(const tb_op *op, uint8_t *acc, const uint8_t *pay, uint32_t n) {
  if (tb_coded(op)) tb_wire_first((tb_dtype)op->sig.wire_dtype, (float *)(void *)acc, pay, n);
  else tb_reduce_first((tb_dtype)op->sig.dtype, acc, pay, n);
}

void tb_coded_next(const tb_op *op, uint8_t *acc, const uint8_t *pay, uint32_t n) {
  if (tb_coded(op)) tb_wire_next((tb_dtype)op->sig.wire_dtype, (float *)(void *)acc, pay, n);
  else tb_reduce_next((tb_redop)op->sig.redop, (tb_dtype)op->sig.dtype, acc, pay, n);
}

void tb_decode(const tb_op *op, uint8_t *out, const uint8_t *pay, uint32_t n) {
  if (tb_coded(op)) tb_wire_decode((tb_dtype)op->sig.wire_dtype, TB_F32, out, pay, n);
  else memcpy(out, pay, (size_t)n * op->geo.elem);
}

const uint8_t *tb_decoded(tb_core *c, const tb_op *op, const uint8_t *pay, uint32_t n) {
  if (!tb_coded(op)) return pay;
  tb_decode(op, c->decoded, pay, n);
  return c->decoded;
}
