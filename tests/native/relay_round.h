/* relay_round.h - rounds of ranks in groups, and what any result must be: what tests of relay.c share.
 *
 * Rank r contributes weight[r] to each element, and all subsets of the ranks have different means: so the value of an
 * element tells exactly whose contributions are in it, and `received` must say the same. */
#ifndef RELAY_ROUND_H
#define RELAY_ROUND_H
#include <math.h>
#include "core_pair.h"

enum { RR_COUNT = 203, SHAPES = 5 };
static const uint64_t EXACT = UINT64_MAX;
static const struct { uint32_t n, size; } shapes[SHAPES] = {{8, 4}, {8, 2}, {6, 3}, {6, 2}, {4, 2}};

static const double weight[CP_RANKS] = {1009, 2503, 4001, 7919, 16033, 30011, 64007, 120011};

static inline void group(cp *net, uint32_t size, bool spread) {
  uint16_t group_of[CP_RANKS];
  for (uint32_t r = 0; r < net->n; r++) group_of[r] = (uint16_t)(spread ? r % (net->n / size) : r / size);
  for (uint32_t r = 0; r < net->n; r++) assert_int_equal(tb_core_set_groups(net->core[r], group_of), 0);
}

static inline cp *grouped(uint32_t n, uint32_t size, bool spread) {
  cp *net = cp_plain(n);
  group(net, size, spread);
  return net;
}

/* In place, of doubles: sums of weights and their means are told apart. */
static inline int give(cp *net, uint16_t r, cp_work *w, const char *key, double *x, uint64_t deadline) {
  for (int i = 0; i < RR_COUNT; i++) x[i] = weight[r];
  tb_call call = cp_call(key, NULL, NULL, RR_COUNT, deadline);
  call.dtype = TB_F64;
  call.in = call.out = x;
  call.groups = 1;
  call.min_received = 0;
  return cp_issue(net, r, w, &call);
}

/* Whose contributions make v, as a sum scaled to n ranks: bits; 0 = nobody's combination does. */
static inline uint32_t whose(uint32_t n, double v) {
  uint32_t found = 0;
  for (uint32_t s = 1; s < 1u << n; s++) {
    double sum = 0;
    for (uint32_t r = 0; r < n; r++) sum += s >> r & 1 ? weight[r] : 0;
    if (fabs(v - sum * n / __builtin_popcount(s)) > 1e-6) continue;
    assert_int_equal(found, 0);
    found = s;
  }
  return found;
}

/* Every element that came is a combination of whole contributions, its count is right in `received`, and it is the same
 * on all ranks that have it; the rest is zero. in[r * RR_COUNT + i] (may be NULL): whose are in it. */
static inline void check_results(const cp *net, const cp_work *w, uint32_t n, uint32_t *in) {
  double common[RR_COUNT] = {0};
  for (uint32_t r = 0; r < n; r++) {
    if (!w[r].done || w[r].o.result.status) continue;
    uint8_t mask[RR_COUNT];
    const double *y = (const double *)(void *)w[r].result;
    uint64_t foreign = 0;
    tb_outcome_mask(&w[r].o, mask);
    for (int i = 0; i < RR_COUNT; i++) {
      uint32_t s = mask[i] ? whose(net->n, y[i]) : 0;
      if (mask[i] ? !s || (common[i] != 0 && common[i] != y[i]) : y[i] != 0)
        fail_msg("rank %u, element %d: %.17g, elsewhere %.17g", r, i, y[i], common[i]);
      if (mask[i]) common[i] = y[i];
      foreign += (uint32_t)__builtin_popcount(s & ~(1u << r));
      if (in) in[r * RR_COUNT + i] = s;
    }
    double received = (double)foreign / (RR_COUNT * (net->n - 1));
    if (fabs(w[r].o.result.received - received) > 1e-12)
      fail_msg("rank %u says it received %.9f; it has %.9f", r, w[r].o.result.received, received);
  }
}

#endif
