#include "protocol/bits.h"

uint32_t tb_bit_next(const uint64_t *b, uint32_t from, uint32_t n, bool value) {
  for (uint32_t w = from / 64; from < n; from = ++w * 64) {
    uint64_t x = (value ? b[w] : ~b[w]) >> (from % 64);
    if (x) {
      uint32_t i = from + (uint32_t)__builtin_ctzll(x);
      return i < n ? i : n;
    }
  }
  return n;
}

uint32_t tb_bit_fill(uint64_t *b, uint32_t from, uint32_t to) {
  uint32_t fresh = 0;
  while (from < to) {
    uint32_t w = from / 64, lo = from % 64, hi = to - w * 64 < 64 ? to - w * 64 : 64;
    uint64_t mask = (hi == 64 ? ~0ull : (1ull << hi) - 1) & ~((1ull << lo) - 1);
    fresh += (uint32_t)__builtin_popcountll(mask & ~b[w]);
    b[w] |= mask;
    from = w * 64 + hi;
  }
  return fresh;
}
