/* test_bits.c - bitmaps against an array of bools. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/bits.h"

enum { N = 200 };

static void bit_next__like_a_linear_search(void **state) {
  (void)state;
  uint32_t seed = 1;
  for (uint32_t n = 0; n <= N; n = n < 140 ? n + 1 : n + 30) {
    uint64_t *b = calloc(tb_words(n) + 1, 8); /* calloc of nothing may be NULL */
    for (uint32_t i = 0; i < n; i++)
      if ((seed = seed * 1664525 + 1013904223) >> 30 == 0) tb_bit_set(b, i);
    if (n % 64) b[n / 64] |= ~0ull << (n % 64); /* what lies beyond the last bit must not matter */
    for (int v = 0; v < 2; v++)
      for (uint32_t from = 0; from <= n; from++) {
        uint32_t want = from;
        while (want < n && tb_bit(b, want) != (v == 1)) want++;
        assert_int_equal(tb_bit_next(b, from, n, v), want);
      }
    free(b);
  }
}

static void bit_fill__sets_the_range_and_counts_the_fresh(void **state) {
  (void)state;
  for (uint32_t from = 0; from <= N; from += 7)
    for (uint32_t to = 0; to <= N; to += 3) { /* also from > to: nothing */
      uint64_t *b = calloc(tb_words(N), 8);
      uint32_t had = 0, fresh = to > from ? to - from : 0;
      for (uint32_t i = 0; i < N; i += 5) {
        tb_bit_set(b, i);
        had += i >= from && i < to;
      }
      assert_int_equal(tb_bit_fill(b, from, to), fresh - had);
      for (uint32_t i = 0; i < N; i++) assert_int_equal(tb_bit(b, i), i % 5 == 0 || (i >= from && i < to));
      assert_int_equal(tb_bit_fill(b, from, to), 0);
      free(b);
    }
}

static void bit__set_and_clear_touch_one(void **state) {
  (void)state;
  uint64_t b[3] = {0};
  for (uint32_t i = 0; i < 192; i++) {
    tb_bit_set(b, i);
    for (uint32_t k = 0; k < 192; k++) assert_int_equal(tb_bit(b, k), k == i);
    tb_bit_clear(b, i);
    assert_int_equal(b[i / 64], 0);
  }
  assert_int_equal(tb_words(0), 0);
  assert_int_equal(tb_words(1), 1);
  assert_int_equal(tb_words(64), 1);
  assert_int_equal(tb_words(65), 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(bit_next__like_a_linear_search),
    cmocka_unit_test(bit_fill__sets_the_range_and_counts_the_fresh),
    cmocka_unit_test(bit__set_and_clear_touch_one),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
