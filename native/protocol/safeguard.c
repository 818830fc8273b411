/* safeguard.c - rule 18's thresholds: below which share a round is not committed. */
#include "protocol/core.h"

/* Mean, over the live peers that owed this rank something in this stage, of what came. */
static double stage_share(const tb_core *c, const tb_op *op, int s) {
  double sum = 0;
  uint32_t peers = 0;
  for (uint32_t p = 0; p < c->cfg.n; p++) {
    const tb_flow_rx *r = &op->peer[p].rx[s];
    if (p == c->cfg.rank || !r->total || !tb_live(c, p)) continue;
    sum += (double)r->got / (double)r->total;
    peers++;
  }
  return peers ? sum / peers : 1.0;
}

bool tb_too_little(const tb_core *c, const tb_op *op, double received, tb_shortfall *why) {
  static const char *const names[] = {"min_received", "min_received_stage1", "min_received_stage2"};
  for (int i = 0; i < 3; i++) {
    *why = (tb_shortfall){names[i], i ? op->min_stage[i - 1] : op->min_received, i ? stage_share(c, op, i - 1) : received};
    if (why->share < why->least) return true;
  }
  *why = (tb_shortfall){names[0], op->min_received, received};
  return false;
}
