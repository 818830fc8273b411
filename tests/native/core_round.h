/* core_round.h - rounds of a small named sum, in place, rank r giving 1 + r, 2 + r, ...: what tests of rounds begin
 * with. */
#ifndef CORE_ROUND_H
#define CORE_ROUND_H
#include "core_pair.h"

static const uint64_t EXACT = UINT64_MAX;
enum { COUNT = 60 };

static inline int start(cp *net, uint16_t r, cp_work *w, const char *key, float *x, uint64_t deadline) {
  cp_fill(x, COUNT, (float)(1 + r), 1);
  tb_call call = cp_call(key, x, x, COUNT, deadline);
  return cp_issue(net, r, w, &call);
}

/* One round of some ranks, to the end. */
static inline void round_of(cp *net, const char *key, uint32_t first, uint32_t end, uint64_t deadline) {
  static cp_work w[CP_RANKS];
  static float x[CP_RANKS][COUNT];
  for (uint32_t r = first; r < end; r++) assert_int_equal(start(net, (uint16_t)r, &w[r], key, x[r], deadline), 0);
  for (uint32_t r = first; r < end; r++) cp_wait(net, &w[r]);
  cp_work_free(w + first, end - first);
}

#endif
