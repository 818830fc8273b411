/* deadline.c - the automatic deadline (rule 3), the cost of a byte, and what stage 2 needs (rule 2).
 *
 * DESIGN NOTES. The automatic deadline takes, for each live peer on its own, the median + k*MAD of how long after
 * *our* issue its data was complete, and then the *largest* over the peers. A pooled median would drop every peer
 * slower than the median for ever, and each dropped round would shorten the next deadline. For the same reason late
 * arrivals are samples, and a peer whose data never came leaves a sample beyond the deadline: silence must lengthen,
 * never shorten. The margin over the median is deadline_floor at least: where arrivals hardly vary the MAD is next
 * to nothing, and the first time the system runs another program for a moment would cost data.
 */
#include <stdlib.h>
#include <string.h>
#include "protocol/core.h"

static int cmp64(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

void tb_sort(uint64_t *v, uint32_t n) {
  if (n > TB_HISTORY) {
    qsort(v, n, sizeof *v, cmp64);
    return;
  }
  for (uint32_t i = 1; i < n; i++) { /* a peer's samples: two such sorts for each peer of each issue */
    uint64_t x = v[i];
    uint32_t at = i;
    for (; at && v[at - 1] > x; at--) v[at] = v[at - 1];
    v[at] = x;
  }
}

uint64_t tb_median(uint64_t *v, uint32_t n) {
  if (!n) return 0;
  tb_sort(v, n);
  return n & 1 ? v[n / 2] : v[n / 2 - 1] + (v[n / 2] - v[n / 2 - 1]) / 2;
}

/* What this rank's own samples suggest; 0 = there are none. */
static uint64_t suggested(tb_core *c, const tb_history *h) {
  uint64_t v[TB_HISTORY], worst = 0, least = c->tune.deadline_floor, *medians = c->scratch64;
  uint32_t peers = 0;
  for (uint32_t p = 0; p < c->cfg.n; p++) {
    const tb_history_peer *q = &h->peer[p];
    uint32_t n = q->offsets_n < TB_HISTORY ? q->offsets_n : TB_HISTORY;
    if (p == c->cfg.rank || !n || !tb_live(c, p)) continue;
    memcpy(v, q->offsets, n * sizeof *v);
    uint64_t mid = tb_median(v, n);
    for (uint32_t i = 0; i < n; i++) v[i] = v[i] > mid ? v[i] - mid : mid - v[i];
    uint64_t margin = c->tune.auto_k * tb_median(v, n), want = mid + (margin > least ? margin : least);
    if (want > worst) worst = want;
    medians[peers++] = mid;
  }
  if (!peers) return 0;
  uint64_t mid = tb_median(medians, peers), cap = 4 * mid > mid + least ? 4 * mid : mid + least;
  return worst < cap ? worst : cap;
}

uint64_t tb_auto_deadline(tb_core *c, tb_history *h) {
  uint64_t own = h ? suggested(c, h) : 0;
  if (!own) return c->tune.deadline_ceiling;
  h->peer[c->cfg.rank].told[TB_WANT] = own;
  /* A rank that happened to issue last in most of its few samples thinks that all data comes at once. */
  uint64_t common = tb_over_nodes(c, h, TB_WANT), d = common > own ? common : own;
  /* Bytes of other operations already under way go first or share the wire: they cost what a byte was measured to cost.
   * Each goes to its owner and comes back decided, and as much of the others' passes the other way. */
  uint64_t flight = c->issued_bytes;
  /* Owners close a round trip before the deadline (rule 2), which the offsets do not show; clocks run late, here and at
   * the peers. */
  d += (uint64_t)((double)flight * 4 * (tb_team_n(c) - 1) / tb_team_n(c) * c->ns_per_byte) + tb_rtt_max(c) + 2 * c->lateness;
  double stretched = (double)d * h->stretch;
  return stretched < (double)c->tune.deadline_ceiling ? (uint64_t)stretched : c->tune.deadline_ceiling;
}

uint64_t tb_stage2_time(const tb_core *c, const tb_op *op, uint64_t bytes) {
  /* the column to the group, a k-th across */
  uint64_t peers = op->geo.kind == TB_SEND ? 1 : op->tree ? op->tree->size : op->geo.n - 1;
  return (uint64_t)((double)(2 * bytes * peers) * c->ns_per_byte); /* out, and as much of the others' comes in */
}

/* Falls fast and rises slowly: a round that waited for a straggler says nothing about the wire. */
void tb_cost_sample(tb_core *c, const tb_op *op, uint64_t now) {
  uint64_t n = op->geo.n, bytes = op->geo.count * op->geo.wire_elem, moved = 4 * (n - 1) * bytes / n;
  /* one a stage; in the present one this operation's own queue is the wire's cost */
  uint64_t start = op->issued, trips = 2 * tb_repair_trip(c);
  for (uint32_t p = 0; p < c->cfg.n; p++) /* a peer that issued late made everybody wait: that is no cost of a byte */
    if (op->peer[p].opened_at > start) start = op->peer[p].opened_at;
  uint64_t took = now > start ? now - start : 0;
  if (op->hit || moved < 65536 || !tb_geo_scatters(&op->geo)) return;
  if (trips > took / 4) trips = took / 4; /* where each round trip ever seen lay in a queue, it hides all of the cost */
  double s = (double)(took - trips) / (double)moved;
  /* An exact round waits for its repairs as long as it takes, which is no cost of a byte: with one after the other over
   * a lossy path, what is asked of a deadline at least would grow and grow. */
  if (!op->lossy && op->repaired && c->ns_per_byte > 0 && s > c->ns_per_byte) return;
  if (!c->measured || c->ns_per_byte == 0) c->ns_per_byte = s;
  /* a stall, until it happens again and again */
  else if (s > 2 * c->ns_per_byte) c->ns_per_byte += c->ns_per_byte / 32;
  else c->ns_per_byte += (s - c->ns_per_byte) / (s < c->ns_per_byte ? 2 : 32);
  c->measured = true;
}
