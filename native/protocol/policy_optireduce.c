/* policy_optireduce.c - the published way to choose deadlines, to compare with (deadline_policy=optireduce).
 *
 * The first rounds of a key are exact; the 95th percentile of the times that each stage took in them bounds that
 * stage from then on (t_B), and nothing moves it later. The early timeout (t_C, x) is early_timeout.c's; here it is
 * capped by t_B.
 */
#include <string.h>
#include "protocol/core.h"

uint64_t tb_percentile95(uint64_t *v, uint32_t n) {
  if (!n) return 0;
  tb_median(v, n); /* sorts */
  return v[(95 * n + 99) / 100 - 1];
}

uint32_t tb_exact_rounds(const tb_core *c) {
  bool calibrated = c->tune.deadline_policy == TB_POLICY_OPTIREDUCE;
  return (uint32_t)(calibrated ? c->tune.calibrate_rounds : c->tune.auto_exact_rounds);
}

void tb_calibrate(tb_core *c, tb_op *op, uint64_t now) {
  tb_history *h = op->history;
  if (!h || op->lossy || op->status || c->tune.deadline_policy != TB_POLICY_OPTIREDUCE) return;
  if (h->calibrated >= c->tune.calibrate_rounds) return;
  uint64_t first = op->swept_at > op->issued ? op->swept_at : op->issued;
  h->took[0][h->calibrated] = first - op->issued;
  h->took[1][h->calibrated++] = now - first;
  for (int s = 0; s < 2; s++) {
    uint64_t v[TB_CALIBRATE];
    memcpy(v, h->took[s], h->calibrated * sizeof *v);
    h->bound[s] = tb_percentile95(v, h->calibrated);
  }
}

/* Rule 2 takes a round trip off for the last repair, and what clocks run late: it comes on top, or each stage would be
 * cut short of what it took even when nothing went wrong. */
uint64_t tb_calibrated_deadline(const tb_core *c, tb_op *op) {
  const tb_history *h = op->history;
  if (!h || !h->calibrated) return c->tune.deadline_ceiling;
  for (int s = 0; s < 2; s++) op->bound[s] = h->bound[s];
  uint64_t d = h->bound[0] + h->bound[1] + tb_grace(c);
  return d < c->tune.deadline_ceiling ? d : c->tune.deadline_ceiling;
}
