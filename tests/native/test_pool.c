/* test_pool.c - buffers are aligned, never shared, used again when they fit, and given up beyond the limit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "protocol/pool.h"

static tb_pool *pool(size_t keep) {
  tb_pool *p = tb_pool_new();
  assert_non_null(p);
  tb_pool_keep(p, keep);
  return p;
}

static void get__aligned_and_apart(void **state) {
  (void)state;
  tb_pool *p = pool(1 << 20);
  uint8_t *b[40];
  for (size_t i = 0; i < 40; i++) {
    b[i] = tb_pool_get(p, i * 37);
    assert_non_null(b[i]);
    assert_int_equal((uintptr_t)b[i] % 64, 0);
    memset(b[i], (int)i, i * 37);
  }
  for (size_t i = 0; i < 40; i++) {
    for (size_t k = 0; k < i * 37; k++) assert_int_equal(b[i][k], i);
    tb_pool_put(p, b[i]);
  }
  tb_pool_put(p, NULL);
  tb_pool_free(p);
}

static void get__takes_the_smallest_that_fits(void **state) {
  (void)state;
  tb_pool *p = pool(1 << 24);
  void *big = tb_pool_get(p, 30000), *fit = tb_pool_get(p, 20000), *small = tb_pool_get(p, 10000);
  tb_pool_put(p, big);
  tb_pool_put(p, fit);
  tb_pool_put(p, small);
  assert_ptr_equal(tb_pool_get(p, 19000), fit);
  assert_ptr_equal(tb_pool_get(p, 10000), small);
  void *tiny = tb_pool_get(p, 64); /* 30000 bytes would be wasted on it */
  assert_ptr_not_equal(tiny, big);
  tb_pool_put(p, tiny);
  tb_pool_put(p, fit);
  tb_pool_put(p, small);
  tb_pool_free(p);
}

static void put__keeps_no_more_than_the_limit(void **state) {
  (void)state;
  tb_pool *p = pool(100000);
  void *a = tb_pool_get(p, 60000), *b = tb_pool_get(p, 60000);
  tb_pool_put(p, a);
  tb_pool_put(p, b); /* the sanitizer's quarantine keeps b's address from coming back */
  assert_ptr_equal(tb_pool_get(p, 60000), a);
  void *c = tb_pool_get(p, 60000);
  assert_ptr_not_equal(c, b);
  tb_pool_put(p, a);
  tb_pool_put(p, c);
  tb_pool_free(p);
  tb_pool_free(NULL);
}

/* The limit may fall: what is too much then is given up at once. */
static void keep__may_fall_and_rise(void **state) {
  (void)state;
  tb_pool *p = tb_pool_new();
  void *b[4];
  for (int i = 0; i < 4; i++) b[i] = tb_pool_get(p, 64000);
  tb_pool_put(p, b[3]); /* at first nothing is kept */
  assert_int_equal(tb_pool_kept(p), 0);
  tb_pool_keep(p, 64000 * 3);
  for (int i = 0; i < 3; i++) tb_pool_put(p, b[i]);
  assert_int_equal(tb_pool_kept(p), 64000 * 3);
  tb_pool_keep(p, 64000 * 2 - 1);
  assert_int_equal(tb_pool_kept(p), 64000);
  void *again = tb_pool_get(p, 64000);
  assert_ptr_equal(again, b[0]);
  assert_int_equal(tb_pool_kept(p), 0);
  tb_pool_put(p, again);
  tb_pool_free(p);
}

static void get__more_than_there_is(void **state) {
  (void)state;
  tb_pool *p = pool(0);
  assert_null(tb_pool_get(p, SIZE_MAX - 100));
  assert_null(tb_pool_get(p, SIZE_MAX));
  tb_pool_free(p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(get__aligned_and_apart),
    cmocka_unit_test(get__takes_the_smallest_that_fits),
    cmocka_unit_test(put__keeps_no_more_than_the_limit),
    cmocka_unit_test(keep__may_fall_and_rise),
    cmocka_unit_test(get__more_than_there_is),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
