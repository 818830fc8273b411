/* close.c - when stage 1 closes: by the own deadline and by those that the peers have announced (rule 2).
 *
 * With every announcement the close time may change, and it is looked at. So the announced deadlines are kept in order:
 * one that comes is put in its place, and nothing is sorted again unless somebody left or came back.
 */
#include <string.h>
#include "protocol/core.h"

static void collect(const tb_core *c, tb_op *op) {
  op->told_n = op->untold = 0;
  op->told_stale = false;
  for (uint32_t p = 0; p < c->cfg.n; p++) {
    const tb_op_peer *q = &op->peer[p];
    if (p == c->cfg.rank || !tb_op_takes_part(op, p) || !tb_live(c, p)) continue;
    if (q->announced) op->told[op->told_n++] = q->announced;
    else op->untold += !q->passed && !q->nothing;
  }
  tb_sort(op->told, op->told_n);
}

/* How many of those that were told come before t. */
static uint32_t place(const tb_op *op, uint64_t t) {
  uint32_t lo = 0, hi = op->told_n;
  while (lo < hi) {
    uint32_t mid = (lo + hi) / 2;
    if (op->told[mid] < t) lo = mid + 1;
    else hi = mid;
  }
  return lo;
}

void tb_stage1_announced(tb_core *c, tb_op *op, uint16_t p, uint64_t at) {
  tb_op_peer *q = &op->peer[p];
  uint64_t before = q->announced;
  q->announced = at;
  if (op->told_stale || !tb_live(c, p)) return; /* who is away is not in the list */
  uint32_t to = place(op, at), from = before ? place(op, before) : op->told_n++;
  if (!before) op->untold -= !q->passed && !q->nothing;
  memmove(op->told + to + 1, op->told + to, (from - to) * sizeof *op->told);
  op->told[to] = at;
}

/* Of all that are waited for; who has not told counts as later than everybody. */
static uint64_t median(const tb_op *op, uint32_t untold) {
  uint32_t n = op->told_n + untold, hi = n / 2, lo = n & 1 ? hi : hi - 1;
  if (!n) return UINT64_MAX;
  uint64_t a = lo < op->told_n ? op->told[lo] : UINT64_MAX, b = hi < op->told_n ? op->told[hi] : UINT64_MAX;
  return a + (b - a) / 2;
}

/* The deadline that this rank serves; UINT64_MAX: it knows of none. */
static uint64_t served(const tb_core *c, tb_op *op, uint64_t start) {
  if (op->told_stale) collect(c, op);
  /* A live peer that has not announced yet will be later than those that have: without it in the median one rank that
   * runs ahead closes the round of all others under their feet, round after round. A round that this rank has skipped
   * waits for nobody. */
  bool past = op->state == TB_OP_EARLY && tb_op_past(op->key, op->round);
  uint64_t base = op->state == TB_OP_EARLY ? UINT64_MAX : op->deadline, mid = median(op, past ? 0 : op->untold);
  if (mid < base) base = mid;
  if (base == UINT64_MAX) return base;
  /* Ranks that are nearly in step should all be served, not only the later half: the earliest within a quarter
   * counts. */
  uint32_t near = place(op, base > start ? base - (base - start) / 4 : base);
  return near < op->told_n && op->told[near] < base ? op->told[near] : base;
}

/* Across groups a rank tells not its own deadline but the one that its close goes by, which may be that of a rank near
 * it. Else relays, which do not hear of that rank, close too late for the owner, and all of their group is left out. */
uint64_t tb_deadline_told(const tb_core *c, tb_op *op, uint32_t p) {
  if (!tb_across(op, p) || !op->lossy || op->state != TB_OP_ISSUED) return op->deadline;
  uint64_t base = served(c, op, op->issued);
  return base < op->deadline ? base : op->deadline;
}

uint64_t tb_stage1_close_at(tb_core *c, tb_op *op) {
  uint64_t start = op->issued ? op->issued : op->born, base = served(c, op, start);
  if (base == UINT64_MAX) return op->ghost ? op->born + c->tune.keep_age : UINT64_MAX; /* nobody else may know of it */
  uint64_t bytes = (uint64_t)(op->chunks - op->decided_n) * tb_geo_payload(&op->geo, op->geo.chunk_elems);
  uint64_t stage2 = op->bound[1] ? op->bound[1] : tb_stage2_time(c, op, bytes);
  uint64_t trips = op->tree ? 2 : 1; /* with groups it is relayed once more */
  /* here, and where it returns (must_end) */
  uint64_t keep = stage2 + trips * tb_repair_trip(c) + 2 * c->lateness + c->cfg.timer_ns;
  /* An estimate may not eat the whole budget: stage 1 keeps at least half of it. */
  uint64_t half = base > start ? (base - start) / 2 : 0;
  uint64_t at = base - (keep < half ? keep : half);
  return op->bound[0] && at > op->issued + op->bound[0] ? op->issued + op->bound[0] : at;
}
