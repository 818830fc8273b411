/* deadline.c - measured times: arrival offsets and the automatic deadline (rule 3), the cost of a byte, and what stage
 * 2 needs (rule 2).
 *
 * DESIGN NOTES. The automatic deadline takes, for each live peer on its own, the median + k*MAD of how long after *our*
 * issue its data was complete, and then the *largest* over the peers. A pooled median would drop every peer slower than
 * the median for ever, and each dropped round would shorten the next deadline. For the same reason late arrivals are
 * samples, and a peer whose data never came leaves a sample beyond the deadline: silence must lengthen, never shorten.
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

static size_t history_bytes(const tb_core *c) {
  const tb_history *h = NULL;
  return sizeof *h + c->cfg.n * (TB_HISTORY * sizeof *h->offsets + sizeof *h->offsets_n);
}

void tb_history_free_all(tb_core *c, tb_key *k) {
  for (tb_history *h = k->history, *next; h; h = next) {
    next = h->next;
    free(h);
    tb_memory_give(c, history_bytes(c));
  }
  k->history = NULL;
}

tb_history *tb_history_get(tb_core *c, tb_key *k, uint32_t sig_hash) {
  uint32_t n = 0;
  for (tb_history *h = k->history; h; h = h->next, n++)
    if (h->sig_hash == sig_hash) return h;
  if (n >= TB_HISTORIES || !tb_memory_take(c, history_bytes(c))) return NULL;
  tb_history *h = calloc(1, history_bytes(c));
  if (!h) {
    tb_memory_give(c, history_bytes(c));
    return NULL;
  }
  h->offsets_n = (uint32_t *)(h->offsets + (size_t)c->cfg.n * TB_HISTORY);
  h->sig_hash = sig_hash;
  h->next = k->history;
  k->history = h;
  return h;
}

void tb_offset_sample(tb_history *h, uint16_t p, uint64_t offset) {
  if (h) h->offsets[(size_t)p * TB_HISTORY + h->offsets_n[p]++ % TB_HISTORY] = offset;
}

uint64_t tb_auto_deadline(tb_core *c, const tb_history *k) {
  uint64_t v[TB_HISTORY], worst = 0, *medians = c->scratch64;
  uint32_t peers = 0;
  for (uint32_t p = 0; k && p < c->cfg.n; p++) {
    uint32_t n = k->offsets_n[p] < TB_HISTORY ? k->offsets_n[p] : TB_HISTORY;
    if (p == c->cfg.rank || !n || c->peer[p].absent || c->peer[p].gone) continue;
    memcpy(v, k->offsets + (size_t)p * TB_HISTORY, n * sizeof *v);
    uint64_t mid = tb_median(v, n);
    for (uint32_t i = 0; i < n; i++) v[i] = v[i] > mid ? v[i] - mid : mid - v[i];
    uint64_t want = mid + c->tune.auto_k * tb_median(v, n);
    if (want > worst) worst = want;
    medians[peers++] = mid;
  }
  if (!peers) return c->tune.deadline_ceiling;
  /* Bytes of other operations already under way go first or share the wire: they cost what a byte was measured to cost.
   * Each goes to its owner and comes back decided, and as much of the others' passes the other way. */
  uint64_t flight = c->issued_bytes;
  uint64_t cap = 4 * tb_median(medians, peers), d = worst > cap ? cap : worst;
  /* Owners close a round trip before the deadline (rule 2), which the offsets do not show; clocks run late, here and at
   * the peers. */
  d += (uint64_t)((double)flight * 4 * (c->cfg.n - 1) / c->cfg.n * c->ns_per_byte) + tb_rtt_max(c) + 2 * c->lateness;
  if (d < c->tune.deadline_floor) d = c->tune.deadline_floor;
  return d > c->tune.deadline_ceiling ? c->tune.deadline_ceiling : d;
}

uint64_t tb_stage2_time(const tb_core *c, const tb_op *op, uint64_t bytes) {
  uint64_t peers = op->geo.kind == TB_SEND ? 1 : c->cfg.n - 1u;
  return (uint64_t)((double)(bytes * peers) * c->ns_per_byte);
}

/* Falls fast and rises slowly: a round that waited for a straggler says nothing about the wire. */
void tb_cost_sample(tb_core *c, const tb_op *op, uint64_t now) {
  uint64_t n = c->cfg.n, bytes = op->geo.count * op->geo.wire_elem, moved = 4 * (n - 1) * bytes / n;
  uint64_t start = op->issued, trips = 4 * tb_repair_trip(c); /* in the present one this operation's own queue is the wire's cost */
  for (uint32_t p = 0; p < c->cfg.n; p++) /* a peer that issued late made everybody wait: that is no cost of a byte */
    if (op->peer[p].opened_at > start) start = op->peer[p].opened_at;
  uint64_t took = now > start ? now - start : 0;
  if (op->hit || moved < 65536 || !tb_geo_scatters(&op->geo)) return;
  double s = (double)(took > trips ? took - trips : 0) / (double)moved;
  /* 0: the round trips hid it; it cannot grow from there */
  if (!c->measured || c->ns_per_byte == 0) c->ns_per_byte = s;
  else if (s > 2 * c->ns_per_byte) c->ns_per_byte += c->ns_per_byte / 32; /* a stall, until it happens again and again */
  else c->ns_per_byte += (s - c->ns_per_byte) / (s < c->ns_per_byte ? 2 : 32);
  c->measured = true;
}
