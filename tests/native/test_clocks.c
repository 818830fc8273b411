/* test_clocks.c - the tree of clocks against a plain array of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include "protocol/clocks.h"

static uint32_t due_in(const uint64_t *plain, uint32_t n, uint32_t from, uint64_t now) {
  while (from < n && plain[from] > now) from++;
  return from < n ? from : n;
}

static void clocks__agree_with_a_plain_array(void **state) {
  (void)state;
  uint32_t sizes[] = {1, 2, 3, 7, 8, 9, 64, 65, 1000, 1024}, seed = 1;
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    uint32_t n = sizes[s];
    uint64_t *memory = malloc(tb_clocks_words(n) * sizeof *memory), plain[1024];
    tb_clocks t;
    tb_clocks_init(&t, n, memory);
    for (uint32_t i = 0; i < n; i++) plain[i] = UINT64_MAX;
    assert_true(tb_clocks_first(&t) == UINT64_MAX);
    assert_int_equal(tb_clocks_due(&t, 0, UINT64_MAX - 1), n);
    for (int turn = 0; turn < 3000; turn++) {
      seed = seed * 1664525u + 1013904223u;
      uint32_t i = (seed >> 8) % n, from = (seed >> 12) % (n + 2);
      uint64_t at = seed >> 30 ? (seed >> 20) % 50 : UINT64_MAX, now = (seed >> 16) % 50, first = UINT64_MAX;
      if (turn % 3) {
        tb_clocks_set(&t, i, at);
        plain[i] = at;
      } else {
        tb_clocks_earlier(&t, i, at);
        if (at < plain[i]) plain[i] = at;
      }
      for (uint32_t k = 0; k < n; k++) first = plain[k] < first ? plain[k] : first;
      assert_true(tb_clocks_get(&t, i) == plain[i]);
      assert_true(tb_clocks_first(&t) == first);
      assert_int_equal(tb_clocks_due(&t, from, now), due_in(plain, n, from, now));
    }
    free(memory);
  }
}

/* One look at each that is due, in order: what timers do. */
static void clocks__each_due_once_in_order(void **state) {
  (void)state;
  enum { N = 100 };
  uint64_t memory[256];
  tb_clocks t;
  assert_int_equal(tb_clocks_words(N), 256);
  tb_clocks_init(&t, N, memory);
  for (uint32_t i = 0; i < N; i += 7) tb_clocks_set(&t, i, 10 + i);
  uint32_t seen = 0;
  for (uint32_t i = tb_clocks_due(&t, 0, 59); i < N; i = tb_clocks_due(&t, i + 1, 59)) {
    assert_int_equal(i, 7 * seen++);
    tb_clocks_set(&t, i, UINT64_MAX);
  }
  assert_int_equal(seen, 8); /* 0, 7, ..., 49 */
  assert_true(tb_clocks_first(&t) == 10 + 56);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(clocks__agree_with_a_plain_array),
      cmocka_unit_test(clocks__each_due_once_in_order),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
