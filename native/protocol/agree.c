/* agree.c - consistency="agree" (rule 17): after the deadline the missing decided chunks come through the exact class,
 * so that all ranks return the same bytes.
 *
 * DESIGN NOTES. Stage 1 stays bounded: owners close by the deadline, and a decided chunk never changes. So the same
 * bytes on all ranks need no vote: each rank goes on asking until it has every chunk that its owner has decided, and
 * knows of the others that nobody contributed to them (the owner's mark is final). What costs nothing while nothing is
 * lost costs one repair round trip after the deadline otherwise. It is in a hurry all that time (tb_urgent): what ends
 * a round late on one rank makes that rank late for the next one, and its data with it. For the same reason OPENs and
 * marks are repeated at intervals that grow much slower than those of others (timers.c): with doubled ones a rank that
 * a burst of loss had kept waiting waited as long again after it, and missed rounds that were whole elsewhere.
 *
 * INVARIANTS. 1. A rank returns all decided chunks, or fails with its input restored. 2. An owner keeps its decided
 * chunks like those of an exact operation: while a peer that may need them lives. 3. The verdict comes from counts that
 * all ranks have, never from who seems alive here. 4. After a failure other ranks may have returned the round that this
 * one did not: the key is not used for agreed rounds again until tb_core_resync. 5. Agreed rounds are never skipped
 * (rule 8 is for rounds whose loss is accepted): a rank that is late finds its rounds kept, and goes through them one
 * by one.
 */
#include <errno.h>
#include "protocol/core.h"

/* The deadline has come: what this rank owns is closed, and from here on the operation is an exact one. */
void tb_agree_after_deadline(tb_core *c, tb_op *op, uint64_t now) {
  tb_stage1_sweep(c, op, now, TB_CLOSE_ALL);
  op->lossy = false;
  for (int s = 0; s < 2; s++) tb_tx_ready_all(op, s); /* to absent peers as well, from now on */
}

double tb_agree_share(const tb_op *op) {
  return tb_share(op->others_sum, tb_geo_out_elems(&op->geo) * (op->geo.n - 1));
}

int tb_core_next_round(tb_core *c, const char *key, uint32_t len, uint32_t *round) {
  const tb_key *k = tb_key_named(c, key, len);
  *round = k ? k->next_round : c->vote.base;
  if (!k) return -ENOENT;
  return 0;
}

int tb_core_resync(tb_core *c, const char *key, uint32_t len, uint32_t round, uint64_t now) {
  tb_key *k;
  int rc = tb_key_get(c, key, len, true, now, &k);
  if (rc) return rc;
  for (const tb_op *op = k->ops; op; op = op->key_next)
    if (op->state == TB_OP_ISSUED || op->state == TB_OP_FINISHING) return -EBUSY;
  if (tb_before(round, k->next_round)) return tb_members_passed(c, round); /* rounds are never used twice */
  k->next_round = round;
  k->unsure = false;
  k->sure_in = c->vote.number;
  k->failed = 0;
  k->skips = 0;
  tb_late_forget(c, k); /* it belongs to rounds whose results are brought into step otherwise */
  for (tb_op *op = k->ops; op; op = op->key_next) /* rounds that are passed now wait for nobody */
    if (op->state == TB_OP_EARLY) tb_due(c, op, now);
  return 0;
}
