/* share.c - what each peer contributes over many rounds. One that is left out again and again biases what is
 * averaged.
 *
 * DESIGN NOTES. Two ranks can see that a contribution did not count. The owner of the shard sees that it did not
 * come; it sees its own shard only, but owners rotate. And the contributor sees it, in the OWN bit of each decided
 * chunk, of all owners. So each rank measures its peers at its own shard, announces what was counted of itself, and
 * goes by the smaller of the two.
 *
 * The medians behind the automatic deadline do not see what is missing in less than half of the rounds: a peer that
 * is late every third time has the median, and the MAD, of one that never is. Below min_share the deadline is
 * therefore stretched: by a sixteenth with every round that lacks data of such a peer (20 ms grow to the ceiling
 * within about a hundred of them), and back by a thousandth with every round while no live peer is below. That keeps
 * a peer near min_share, at the price of waiting for it.
 */
#include "protocol/core.h"

enum { WATCHED = 100 };

static bool counts(const tb_core *c, const tb_op *op, uint32_t p) {
  return p != c->cfg.rank && tb_op_takes_part(op, p) && tb_live(c, p);
}

static double least_share(const tb_history_peer *q) { return q->share < q->told_share ? q->share : q->told_share; }

static void follow(const tb_core *c, double *share, double now) { *share += (now - *share) / (double)c->tune.share_window; }

static void warn_of_share(tb_core *c, const tb_op *op, uint32_t p, uint64_t now) {
  tb_history *h = op->history;
  if (h->warned_at && now - h->warned_at < 60 * TB_SEC) return;
  h->warned_at = now;
  tb_logf(c, 30, "key '%s': of rank %u only %.1f %% was counted over the last %llu rounds (min_share=%llu %%): results are biased "
          "against its data; deadline=auto now waits longer", op->key->name, p, 100 * least_share(&h->peer[p]),
          (unsigned long long)c->tune.share_window, (unsigned long long)c->tune.min_share);
}

/* Rule 3: the stretch follows the shares. */
static void stretch(tb_core *c, tb_op *op, uint64_t now) {
  tb_history *h = op->history;
  double least = (double)c->tune.min_share / 100, most = (double)c->tune.deadline_ceiling / (double)(c->tune.deadline_floor + 1);
  /* Who is left out itself waits as long as the others do now, or it would return before their results come. */
  bool below = h->peer[c->cfg.rank].share < least, lacking = below && (op->behind || op->own_elems < op->received_elems);
  for (uint32_t p = 0; p < c->cfg.n; p++) {
    if (!counts(c, op, p) || least_share(&h->peer[p]) >= least) continue;
    below = true;
    /* Here, or (its own share still falls) at another owner. */
    bool short_here = op->peer[p].rx[0].got < op->peer[p].rx[0].total;
    if (!short_here && h->peer[p].told_share >= h->peer[p].told_before) continue;
    lacking = true;
    warn_of_share(c, op, p, now);
  }
  if (lacking && h->stretch < most) h->stretch += h->stretch / 16;
  if (!below) h->stretch -= (h->stretch - 1) / 1024;
  for (uint32_t p = 0; p < c->cfg.n; p++) h->peer[p].told_before = h->peer[p].told_share;
}

/* Rule 18: who loses again and again is named, whatever the deadline. */
static void watch(tb_core *c, uint32_t p, bool missing, uint64_t now) {
  tb_peer *q = &c->peer[p];
  q->missed[1] = (q->missed[1] << 1 | q->missed[0] >> 63) & ((1ull << (WATCHED - 64)) - 1);
  q->missed[0] = q->missed[0] << 1 | missing;
  uint32_t of_last = tb_peer_missed(q);
  if (2 * of_last <= WATCHED || (q->missed_warned && now - q->missed_warned < 60 * TB_SEC)) return;
  q->missed_warned = now;
  tb_logf(c, 30, "rank %u: data of it was missing in %u of the last %u rounds", p, of_last, WATCHED);
}

uint32_t tb_peer_missed(const tb_peer *q) {
  return (uint32_t)(__builtin_popcountll(q->missed[0]) + __builtin_popcountll(q->missed[1]));
}

void tb_share_round(tb_core *c, tb_op *op, uint64_t now) {
  tb_history *h = op->history;
  if (!op->lossy || op->status) return;
  for (uint32_t p = 0; p < c->cfg.n; p++) {
    if (!counts(c, op, p)) continue;
    const tb_flow_rx *r = op->peer[p].rx;
    watch(c, p, !tb_gave_all(op, p), now);
    if (h && r[0].total) follow(c, &h->peer[p].share, (double)r[0].got / (double)r[0].total);
  }
  if (!h || !tb_geo_scatters(&op->geo)) return;
  double *own = &h->peer[c->cfg.rank].share;
  for (uint32_t skipped = op->behind < WATCHED ? op->behind : WATCHED; skipped; skipped--) follow(c, own, 0);
  if (op->received_elems) follow(c, own, (double)op->own_elems / (double)op->received_elems);
  if (op->automatic) stretch(c, op, now);
}
