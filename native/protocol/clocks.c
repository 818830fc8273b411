#include "protocol/clocks.h"

static uint32_t leaves_for(uint32_t n) {
  uint32_t leaves = 1;
  while (leaves < n) leaves *= 2;
  return leaves;
}

uint32_t tb_clocks_words(uint32_t n) { return 2 * leaves_for(n); }

void tb_clocks_init(tb_clocks *t, uint32_t n, uint64_t *memory) {
  *t = (tb_clocks){.n = n, .leaves = leaves_for(n), .at = memory};
  for (uint32_t i = 0; i < 2 * t->leaves; i++) memory[i] = UINT64_MAX;
}

void tb_clocks_set(tb_clocks *t, uint32_t i, uint64_t at) {
  uint32_t node = t->leaves + i;
  t->at[node] = at;
  while (node /= 2) {
    uint64_t left = t->at[2 * node], right = t->at[2 * node + 1], least = left < right ? left : right;
    if (t->at[node] == least) return; /* and so are all above */
    t->at[node] = least;
  }
}

uint32_t tb_clocks_due(const tb_clocks *t, uint32_t from, uint64_t now) {
  if (from >= t->n) return t->n;
  uint32_t node = t->leaves + from;
  while (t->at[node] > now) { /* on to the subtree right of this one */
    while (node & 1) node /= 2;
    if (!node++) return t->n;
  }
  while (node < t->leaves) {
    node *= 2;
    node += t->at[node] > now;
  }
  return node - t->leaves < t->n ? node - t->leaves : t->n;
}
