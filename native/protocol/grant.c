/* grant.c - what a peer may send this rank (rule 21): the window that each header grants, and what may be sent to a
 * peer before it has opened a round.
 *
 * THE POOL. The real receive buffer holds so many frames, and every peer's share of it is a (N - 1)th. (Of several
 * buffers, one for each socket, every peer uses a certain one; all of this is then so for each of them.) A share that
 * went unused for an RTO lies there for nothing while a peer that sends alone waits for credit. So where those that
 * send need more than their shares (an epoch in which they used them up, without a queue: rate.c), the idle ones are
 * told that they have half, and what they gave back is divided among the others.
 *
 * STATES of a share: WHOLE -> (unused for an RTO, and needed) -> HALF, told -> (an RTO later: what left before that has
 * come) RETURNED, others may have it -> (data comes) -> WHOLE as soon as the pool has room again.
 *
 * INVARIANT. What all peers were promised and has not come is never more than the buffer holds (or a minimum each):
 * `promised` is kept as a sum, and no grant is made beyond what it leaves. A share that is on its way back counts as
 * promised still.
 *
 * WHAT CAN FAIL. A frame that takes a grant back may be lost, and its peer send more than its half: at most one frame
 * in two of a buffer that is busy, for as long as it takes the next header to reach it. It costs a repair, not a value.
 */
#include "protocol/core.h"

enum { LEAST_UNSCHEDULED = 64 * 1024 }; /* bytes: a device's ring full, or the first peer heard would get all of it */

static uint32_t half(const tb_core *c, uint32_t share) {
  return share / 2 > c->tune.window_min ? share / 2 : (uint32_t)c->tune.window_min;
}

static uint32_t rank_of(const tb_core *c, const tb_peer *q) { return (uint32_t)(q - c->peer); }

static uint32_t buffer_of(const tb_core *c, uint32_t p) {
  return (p + c->cfg.n - c->cfg.rank - 1u) % c->cfg.n % c->cfg.buffers;
}

tb_grants *tb_grants_of(const tb_core *c, uint16_t p) { return &c->grants[buffer_of(c, p)]; }

/* Peers whose shares lie in p's buffer, itself included. */
static uint32_t sharers(const tb_core *c, uint32_t p) {
  return (tb_peers(c) - buffer_of(c, p) + c->cfg.buffers - 1) / c->cfg.buffers;
}

static bool unused(const tb_core *c, const tb_peer *q, uint64_t now) { return now - q->data_at > tb_rto(c, q); }

uint32_t tb_grant_window(const tb_core *c, const tb_peer *q, uint64_t now) {
  uint32_t p = rank_of(c, q), share = q->window, sharing = sharers(c, p);
  const tb_grants *g = &c->grants[buffer_of(c, p)];
  if (q->idle != TB_IDLE_NOT) share = half(c, share);
  else if (g->returned && share == tb_window_most(c, p)) {
    uint64_t back = g->returned * (uint64_t)(c->cfg.window - half(c, c->cfg.window));
    share += (uint32_t)(back / (sharing - g->returned));
  }
  uint64_t total = (uint64_t)c->cfg.window * sharing, others = g->promised - q->promised;
  uint64_t room = total > others ? total - others : 0;
  if (room < c->tune.window_min) room = c->tune.window_min;
  if (share > room) share = (uint32_t)room;
  return tb_rate_window(c, q, share, now);
}

uint32_t tb_grant(tb_core *c, tb_peer *q, uint64_t now) {
  uint32_t window = tb_grant_window(c, q, now);
  /* What goes back counts until it cannot be on its way any more. */
  if (q->idle != TB_IDLE_TOLD || window > q->promised) {
    c->grants[buffer_of(c, rank_of(c, q))].promised += window - (uint64_t)q->promised;
    q->promised = window;
  }
  return q->granted = q->seen + window;
}

/* Everybody hears what it may have now, less than it was promised perhaps. */
void tb_grant_tell_all(tb_core *c) {
  for (uint16_t p = 0; p < c->cfg.n; p++) {
    tb_peer *q = &c->peer[p];
    if (p == c->cfg.rank || !tb_live(c, p) || !q->last_heard) continue;
    q->want_grant = true;
    tb_say_to(c, p);
  }
}

void tb_grant_needed(tb_core *c, uint64_t now) {
  if (!c->tune.grant_pool || (c->tree && !c->team)) return; /* in groups the kin have what the others will not need */
  for (uint16_t p = 0; p < c->cfg.n; p++) {
    tb_peer *q = &c->peer[p];
    if (p == c->cfg.rank || q->idle != TB_IDLE_NOT || !unused(c, q, now)) continue;
    q->idle = TB_IDLE_TOLD;
    q->idle_at = now + tb_rto(c, q);
    tb_peer_due(c, p, q->idle_at);
    if (!tb_live(c, p)) continue;
    q->want_grant = true;
    tb_say_to(c, p);
  }
}

void tb_grant_timers(tb_core *c, uint16_t p, uint64_t now) {
  tb_peer *q = &c->peer[p];
  if (q->idle != TB_IDLE_TOLD) return;
  if (q->idle_at > now) {
    tb_peer_due(c, p, q->idle_at);
    return;
  }
  q->idle = TB_IDLE_RETURNED;
  tb_grants *g = tb_grants_of(c, p);
  g->returned++;
  uint32_t left = half(c, q->window);
  if (left < q->promised) {
    g->promised -= q->promised - left;
    q->promised = left;
  }
}

void tb_grant_used(tb_core *c, tb_peer *q) {
  if (q->idle == TB_IDLE_RETURNED) c->grants[buffer_of(c, rank_of(c, q))].returned--;
  q->idle = TB_IDLE_NOT;
}

/* Frames that may be under way to a peer that has not opened their round, beyond what it was seen to take in (owner
 * duty). */
static uint64_t unscheduled(const tb_core *c, const tb_peer *q) {
  uint64_t bytes = c->cfg.chunk_bytes + TB_HEAD, cap = c->tune.early_cap / tb_peers(c) / bytes;
  /* ns_per_byte is of bytes in and out: the line carries two of them in that time. Twice that much: credit comes back
   * in lumps. */
  uint64_t holds = c->measured && c->ns_per_byte > 0 ? (uint64_t)((double)q->rtt_min / c->ns_per_byte / (double)bytes) : cap;
  if (holds < LEAST_UNSCHEDULED / bytes) holds = LEAST_UNSCHEDULED / bytes;
  if (holds > cap) holds = cap;
  return holds > c->tune.window_min ? holds : c->tune.window_min;
}

bool tb_grant_covers(const tb_core *c, const tb_op *op, uint16_t p) {
  const tb_peer *q = &c->peer[p];
  return tb_before(q->step, q->credit) && (op->peer[p].opened || q->ahead < unscheduled(c, q));
}
