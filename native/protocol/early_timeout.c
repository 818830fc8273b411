/* early_timeout.c - a stage may end before its time (rule 4): OptiReduce's t_C, under this protocol's rules.
 *
 * DESIGN NOTES. A stage is over, though something is missing, when every live sender's last percent was seen (or its
 * mark that says that all has left) and no chunk has come for x of the time that the stage usually takes. A repair
 * may still be on its way: as long as one asked of a live peer is younger than its retransmission time-out, or a gap
 * was noticed and is not yet asked for, nothing ends. So the early timeout does not compete with repair: it acts
 * where repair has stopped working, because the peer or the path has died since, and spares the rest of the
 * deadline. A peer that has said nothing at all since it was asked may only be waiting for a processor: it gets
 * twice the time, and no pause below deadline_floor means anything.
 *
 * The usual time is the median over the nodes of what each tells in its OPENs: a moving average of its own samples,
 * where a stage that stayed incomplete counts as elapsed / fraction received (in floating point: whole numbers would
 * make the fraction 0 or 1). x is steered by the loss that stays after draining: what comes within a round trip and
 * this rank's own lateness after the end was under way or lay in a queue, and a longer wait is not what would have
 * saved it. Above 0.1 % x doubles, up to a half; below 0.01 % it falls by a point.
 */
#include "protocol/core.h"

static const double X_MOST = 0.5, X_POINT = 0.01, LOSS_HIGH = 1e-3, LOSS_LOW = 1e-4, SMOOTHING = 0.95;

bool tb_early_wanted(const tb_core *c, bool automatic) {
  return c->tune.early_timeout == TB_EARLY_ALWAYS || (c->tune.early_timeout == TB_EARLY_AUTO && automatic);
}

bool tb_last_percent(uint32_t place, uint32_t total) { return (uint64_t)(place + 1) * 100 > (uint64_t)total * 99; }

uint64_t tb_stage_time(tb_core *c, const tb_history *h, int s) {
  uint64_t usual = tb_over_nodes(c, h, TB_STAGE1 + s);
  if (c->tune.deadline_policy == TB_POLICY_OPTIREDUCE && h->bound[s] && usual > h->bound[s]) usual = h->bound[s];
  return usual;
}

static bool owes(const tb_core *c, const tb_op *op, uint32_t p, int s) {
  const tb_op_peer *q = &op->peer[p];
  if (p == c->cfg.rank || !tb_op_takes_part(op, p) || q->rx[s].got >= q->rx[s].total) return false;
  return s == 0 ? tb_peer_expected(op, c, p) : tb_live(c, p) && !q->nothing;
}

static uint64_t began(const tb_op *op, int s) { return s && op->swept_at > op->issued ? op->swept_at : op->issued; }

/* It owes chunks, and may not even have sent its last percent. */
static bool not_through(const tb_core *c, const tb_op *op, uint32_t p, int s) {
  const tb_flow_rx *r = &op->peer[p].rx[s];
  return !r->tail && !(r->marked && r->peer_final) && owes(c, op, p, s);
}

uint64_t tb_early_end(tb_core *c, tb_op *op, int s) {
  if (!op->early || !op->lossy || op->state != TB_OP_ISSUED || !op->usual[s]) return UINT64_MAX;
  if (not_through(c, op, op->tail_of, s)) return UINT64_MAX; /* most looks end here, however many ranks there are */
  uint64_t moved = op->moved[s], young = 0;
  if (moved < began(op, s)) moved = began(op, s);
  for (uint32_t p = 0; p < c->cfg.n; p++) {
    const tb_peer *q = &c->peer[p];
    if (!owes(c, op, p, s)) continue;
    if (not_through(c, op, p, s)) {
      op->tail_of = (uint16_t)p;
      return UINT64_MAX;
    }
    uint64_t asks = q->suspect_at ? q->suspect_at + tb_reorder_wait(q) : 0;
    if (asks < q->asked_at) asks = q->asked_at;
    uint64_t rto = tb_rto(c, q) * (q->last_heard > asks ? 1 : 2);
    if (asks && asks + rto > young) young = asks + rto;
  }
  uint64_t wait = (uint64_t)(op->history->x * (double)op->usual[s]);
  moved += wait > c->tune.deadline_floor ? wait : c->tune.deadline_floor;
  return moved > young ? moved : young;
}

static void note_sample(tb_core *c, tb_op *op, int s, uint64_t end) {
  uint64_t got = 0, total = 0, start = began(op, s), *own = &op->history->peer[c->cfg.rank].told[TB_STAGE1 + s];
  for (uint32_t p = 0; p < c->cfg.n; p++) {
    if (!tb_live(c, p)) continue;
    got += op->peer[p].rx[s].got;
    total += op->peer[p].rx[s].total;
  }
  if (!got || end <= start) return; /* nothing to extrapolate from */
  double sample = (double)(end - start) / ((double)got / (double)total);
  *own = *own ? (uint64_t)(SMOOTHING * (double)*own + (1 - SMOOTHING) * sample) : (uint64_t)sample;
}

void tb_stage_samples(tb_core *c, tb_op *op, uint64_t now) {
  if (!op->history || op->status || !tb_geo_scatters(&op->geo)) return;
  note_sample(c, op, 0, op->swept_at);
  note_sample(c, op, 1, now);
}

uint64_t tb_grace(const tb_core *c) { return tb_repair_trip(c) + c->lateness + c->cfg.timer_ns; }

/* Late delivery may bring it seconds later, but it was lost for its round. */
void tb_came_late(const tb_core *c, tb_op *op, uint16_t p, uint64_t now) {
  op->peer[p].rx[1].delayed += now - op->returned > tb_grace(c);
}

void tb_came_after(tb_core *c, tb_op *op, uint16_t p, int s, uint64_t now) {
  tb_flow_rx *r = &op->peer[p].rx[s];
  c->peer[p].n.late++;
  r->drained += now - (s ? op->returned : op->swept_at) <= tb_grace(c);
  if (++r->late + r->got >= r->total && !r->done_at) r->done_at = now;
  if (op->state == TB_OP_RETURNED) tb_op_sample(op, p);
}

double tb_loss_after_draining(const tb_core *c, const tb_op *op) {
  uint64_t came = 0, total = 0;
  for (uint32_t p = 0; p < c->cfg.n; p++) {
    if (p == c->cfg.rank || !tb_live(c, p)) continue;
    for (int s = 0; s < 2; s++) {
      const tb_flow_rx *r = &op->peer[p].rx[s];
      uint64_t all = (uint64_t)r->got - r->delayed + r->drained;
      came += all < r->total ? all : r->total; /* a late chunk that came twice counts once */
      total += r->total;
    }
  }
  return total ? 1 - (double)came / (double)total : 0;
}

double tb_x_after(double x, double loss) {
  if (loss > LOSS_HIGH) x *= 2;
  else if (loss < LOSS_LOW) x -= X_POINT;
  return x > X_MOST ? X_MOST : x < X_POINT ? X_POINT : x;
}
