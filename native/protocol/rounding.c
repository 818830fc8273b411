/* rounding.c - under carry, what a wire dtype's rounding takes away goes into the next round (rule 15).
 *
 * Two encodings round: a contribution on its way to its owner, and the decided value on its way to everybody. Who
 * rounds keeps the difference in its residual, in units of a contribution: x - Q(x) once x is known to be counted
 * (what was not counted is carried whole), and what the decided value lost, times N for a mean, once it is decided.
 *
 * So after R rounds the sum of outputs lacks what rounding took of the last round, and not of all R: the mean error
 * falls as 1/R. INVARIANTS. The difference is that of the bytes that were sent: the encoding is done again, by the
 * same seed. It is kept once: a fate becomes known once, a chunk is decided once. A chunk with values that are not
 * finite keeps none.
 */
#include <string.h>
#include "protocol/core.h"

/* An operation opened by a peer may be of another kind than the key is bound to here. */
static bool kept(const tb_core *c, const tb_op *op) {
  const tb_key *k = op->key;
  return c->tune.carry_rounding && op->sig.missing == TB_CARRY && tb_coded(op) && !op->status &&
         !(k->bound && memcmp(&k->sig, &op->sig, sizeof op->sig));
}

void tb_rounding_sent(tb_core *c, tb_op *op, uint32_t owner, uint32_t chunk, const uint8_t *y, int sign, uint64_t now) {
  if (!kept(c, op)) return;
  uint64_t first;
  uint32_t n = tb_geo_chunk(&op->geo, owner, chunk, &first);
  if (!tb_encode_lost(c, op, owner, chunk, y, n, c->rounding)) return;
  for (uint32_t i = 0; sign < 0 && i < n; i++) c->rounding[i] = -c->rounding[i];
  tb_carry_over(c, op, owner, chunk, (const uint8_t *)c->rounding, NULL, now);
}

void tb_rounding_decide(tb_core *c, tb_op *op, uint32_t chunk, const uint8_t *mean, uint32_t n, uint64_t now) {
  float *lost = kept(c, op) ? c->rounding : NULL;
  if (!tb_encode_decided(c, op, chunk, mean, n, lost) || !lost) return;
  for (uint32_t i = 0; op->sig.redop == TB_AVG && i < n; i++) lost[i] *= (float)op->geo.n;
  tb_carry_over(c, op, c->cfg.rank, chunk, (const uint8_t *)lost, NULL, now);
}

void tb_rounding_return(tb_core *c, tb_op *op, uint64_t now) {
  for (uint32_t p = 0; kept(c, op) && p < c->cfg.n; p++)
    for (uint32_t i = 0, n = tb_geo_chunks(&op->geo, p); p != c->cfg.rank && i < n; i++)
      tb_rounding_sent(c, op, p, i, tb_input(c, op, p, i), 1, now);
}
