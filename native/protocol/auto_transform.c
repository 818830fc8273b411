/* auto_transform.c - hadamard="auto" (rule 16): whether the rounds of a key travel transformed, by what is lost.
 *
 * Each rank follows two averages over the rounds of the key: the loss, the share of decided values of live owners that
 * did not come after all repair (contributions that an owner lacks cost an element little, and are no reason); and
 * what the transform would gain or gains: the error of the worst piece of a block's length, the root of the share of
 * it that is missing, less the error that all blocks have with the transform, sqrt(p / (1 - p)), less the share of the
 * deadline that two transforms take. Both go out with every OPEN. BREAK-EVEN: a mean gain of 0, and a mean loss of
 * hadamard_loss (off again: a quarter of it).
 *
 * The lowest live rank decides. It announces a *switch*: its number, who says so, on or off, and the round from which
 * on it holds, hadamard_ahead rounds later. Every OPEN repeats the newest switch that its sender knows: the higher
 * number, of equal ones the lower rank's. The mode of a round is a function of the newest switch known when its
 * operation begins here, by a peer's OPEN (which was heard first) or by the own issue.
 *
 * INVARIANTS. 1. An operation has one mode at a rank, from its beginning. 2. The mode is not in the signature that
 * ranks must agree on, but it is in the hash that frames carry, so coefficients are never added to values. 3. Ranks
 * that missed every announcement run the round in the other mode: they and the others tell each other that nothing
 * will come (UNKNOWN), so nobody waits, what is missing is loss, and no error. The OPEN that they exchange all the
 * same brings the newest switch. 4. A switch is not followed by another before its round and the ones that its
 * averages need are over.
 */
#include <math.h>
#include <stdlib.h>
#include "protocol/core.h"

enum { MEASURED = 8 }; /* rounds before the averages count for anything */
#define SLACK 0.02     /* of the gain, before it is switched off */

static tb_auto *state(const tb_core *c, tb_key *k) {
  if (!k->transform) k->transform = calloc(1, sizeof *k->transform + c->cfg.n * sizeof *k->transform->peer);
  return k->transform;
}

bool tb_auto_on(const tb_key *k, const tb_signature *s, uint32_t round) {
  if (!(s->hadamard & TB_HADAMARD_AUTO)) return s->hadamard;
  const tb_switch *w = k->transform ? &k->transform->now : NULL;
  if (!w || !w->number) return false;
  return tb_before(round, w->from) ? !w->on : w->on;
}

uint32_t tb_auto_hash(const tb_signature *s, bool on) {
  tb_signature as = *s;
  if (s->hadamard & TB_HADAMARD_AUTO && !on) as.hadamard = TB_HADAMARD_AUTO;
  return tb_signature_hash(&as);
}

static bool newer(const tb_switch *a, const tb_switch *b) {
  if (a->number == b->number) return a->number && a->by < b->by;
  return a->number && (!b->number || (int16_t)(uint16_t)(a->number - b->number) > 0);
}

void tb_auto_told(const tb_core *c, tb_key *k, uint16_t p, uint32_t round, const tb_open *o) {
  if (!(o->sig.hadamard & TB_HADAMARD_AUTO)) return;
  tb_auto *a = state(c, k);
  if (!a) return;
  if (o->turn.by < c->cfg.n && newer(&o->turn, &a->now)) a->now = o->turn;
  a->peer[p].told = o->measured;
  a->peer[p].round = round;
  a->peer[p].loss = o->loss / 65535.0;
  a->peer[p].gain = o->gain / 32767.0;
}

void tb_auto_tell(const tb_key *k, tb_open *o) {
  const tb_auto *a = k->transform;
  if (!a || !(o->sig.hadamard & TB_HADAMARD_AUTO)) return;
  o->turn = a->now;
  o->measured = a->rounds >= MEASURED;
  o->loss = (uint16_t)lround(a->loss * 65535);
  o->gain = (int16_t)lround(fmax(-1, fmin(1, a->gain)) * 32767);
}

void tb_auto_decide(tb_core *c, tb_op *op) {
  tb_key *k = op->key;
  if (!(op->sig.hadamard & TB_HADAMARD_AUTO)) return;
  tb_auto *a = state(c, k);
  for (uint32_t p = 0; a && p < c->cfg.rank; p++)
    if (tb_op_takes_part(op, p) && tb_live(c, p)) return;
  if (!a || a->rounds < MEASURED) return;
  if (a->now.number && op->round - a->now.from > 1u << 30 && tb_before(a->now.from, op->round)) a->now.from = op->round;
  if (a->now.number && tb_before(op->round, a->now.from + MEASURED)) return;
  double loss = a->loss, gain = a->gain, n = 1;
  for (uint32_t p = 0; p < c->cfg.n; p++)
    if (p != c->cfg.rank && a->peer[p].told && tb_before(op->round, a->peer[p].round + MEASURED) &&
        tb_op_takes_part(op, p) && tb_live(c, p)) { /* who sleeps knows nothing new */
      loss += a->peer[p].loss;
      gain += a->peer[p].gain;
      n++;
    }
  double least = (double)c->tune.hadamard_loss / 1000;
  bool on = a->now.number && a->now.on, want = on;
  if (!on && loss / n >= least && gain / n > 0) want = true;
  if (on && (loss / n < least / 4 || gain / n < -SLACK)) want = false;
  if (want == on) return;
  uint16_t number = (uint16_t)(a->now.number + 1);
  a->now = (tb_switch){.number = number ? number : 1, .by = c->cfg.rank, .on = want,
                       .from = op->round + (uint32_t)c->tune.hadamard_ahead};
  tb_logf(c, 20, "key '%s': hadamard=auto goes %s from round %u on: %.2f %% lost, gain %.3f", k->name,
          want ? "on" : "off", a->now.from, 100 * loss / n, gain / n);
}

/* The largest missing share of a piece of a block's length, and of all. The missing chunks in the order of their
 * elements. */
static double worst_piece(const tb_core *c, const tb_op *op, uint32_t block_log2, double *all) {
  const tb_outcome *o = op->outcome;
  uint64_t owed = 0, lost = 0;
  uint64_t size = 1ull << block_log2, piece = 0, missing = 0, count = op->geo.count;
  double worst = 0;
  for (uint32_t s = 0; s < op->geo.n; s++) {
    uint32_t owner = tb_geo_owner(&op->geo, s), chunks = tb_geo_chunks(&op->geo, owner);
    const uint64_t *came = o->mask + o->mask_at[owner];
    uint64_t start, len, first;
    tb_geo_shard(&op->geo, owner, &start, &len);
    if (owner != c->cfg.rank && !tb_live(c, owner)) continue;
    owed += len;
    for (uint32_t i = tb_bit_next(came, 0, chunks, false); i < chunks; i = tb_bit_next(came, i + 1, chunks, false)) {
      uint64_t n = tb_geo_chunk(&op->geo, owner, i, &first), at = start + first;
      lost += n;
      for (uint64_t end = at + n, part; at < end; at += part) {
        if (at >> block_log2 != piece) piece = at >> block_log2, missing = 0;
        uint64_t stop = (piece + 1) * size;
        part = (end < stop ? end : stop) - at;
        missing += part;
        uint64_t whole = count - piece * size < size ? count - piece * size : size;
        worst = fmax(worst, (double)missing / (double)whole);
      }
    }
  }
  *all = owed ? (double)lost / (double)owed : 0;
  return worst;
}

void tb_auto_measure(tb_core *c, tb_op *op) {
  tb_auto *a = op->sig.hadamard & TB_HADAMARD_AUTO && op->lossy && !op->status ? state(c, op->key) : NULL;
  if (!a || !op->geo.count) return;
  double loss, worst = worst_piece(c, op, op->sig.hadamard & (uint8_t)~TB_HADAMARD_AUTO, &loss);
  double with = loss < 0.5 ? sqrt(loss / (1 - loss)) : 1;
  /* Nothing was transformed here yet: it takes some four copies. */
  double ns = c->commit_cost[1] > 0 ? c->commit_cost[1] : 4 * c->commit_cost[0];
  double time = 2 * ns * (double)(op->geo.count * op->geo.elem) / (double)(op->deadline + op->ahead - op->issued + 1);
  double gain = sqrt(worst) - with - time;
  double rate = ++a->rounds < 2 * MEASURED ? 1.0 / a->rounds : 0.5 / MEASURED;
  a->loss += (loss - a->loss) * rate;
  a->gain += (gain - a->gain) * rate;
  c->n.transformed += op->transformed;
}
