/* test_regions.c - links/regions.c: what lies inside, what does not, and what numbers run out. */
#include "links/regions.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static void check__knows_inside_from_outside(void **state) {
  (void)state;
  static tb_regions r;
  static char memory[100];
  uint32_t n;
  tb_regions_init(&r);
  assert_int_equal(tb_regions_check(&r, 0, memory, 1), -EINVAL);
  assert_int_equal(tb_regions_add(&r, memory, sizeof memory, &n), 0);
  assert_int_equal(tb_regions_check(&r, n, memory, 100), 0);
  assert_int_equal(tb_regions_check(&r, n, memory + 100, 0), 0);
  assert_int_equal(tb_regions_check(&r, n, memory + 1, 100), -EFAULT);
  assert_int_equal(tb_regions_check(&r, n, memory - 1, 1), -EFAULT);
  assert_int_equal(tb_regions_check(&r, n, memory + 50, UINT32_MAX), -EFAULT);
  assert_int_equal(tb_regions_check(&r, n + 1, memory, 1), -EFAULT);
  assert_int_equal(tb_regions_check(&r, UINT32_MAX, memory, 1), -EINVAL);
  assert_int_equal(tb_regions_remove(&r, n), 0);
  assert_int_equal(tb_regions_check(&r, n, memory, 1), -EFAULT);
  tb_regions_destroy(&r);
}

static void tag__is_the_links_own(void **state) {
  (void)state;
  static tb_regions r;
  static char memory[100];
  uint32_t n, other;
  tb_regions_init(&r);
  assert_int_equal(tb_regions_tag(&r, 0), 0);
  assert_int_equal(tb_regions_add_tagged(&r, memory, 50, 7, &n), 0);
  assert_int_equal(tb_regions_add(&r, memory, 50, &other), 0);
  assert_int_equal(tb_regions_tag(&r, n), 7);
  assert_int_equal(tb_regions_tag(&r, other), 0);
  assert_int_equal(tb_regions_tag(&r, UINT32_MAX), 0);
  assert_int_equal(tb_regions_remove(&r, n), 0);
  assert_int_equal(tb_regions_tag(&r, n), 0);
  tb_regions_destroy(&r);
}

static void add__ends_with_the_table(void **state) {
  (void)state;
  enum { ALL = TB_REGION_CHUNK * TB_REGION_CHUNKS };
  tb_regions *r = calloc(1, sizeof *r);
  static char memory[1];
  uint32_t n;
  tb_regions_init(r);
  for (uint32_t i = 0; i < ALL; i++) {
    assert_int_equal(tb_regions_add(r, memory, 1, &n), 0);
    assert_int_equal(n, i);
  }
  assert_int_equal(tb_regions_add(r, memory, 1, &n), -ENOSPC);
  assert_int_equal(tb_regions_remove(r, ALL), -ENOENT);
  assert_int_equal(tb_regions_remove(r, 70000), 0);
  assert_int_equal(tb_regions_add(r, memory, 1, &n), 0);
  assert_int_equal(n, 70000);
  tb_regions_destroy(r);
  free(r);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(check__knows_inside_from_outside),
      cmocka_unit_test(tag__is_the_links_own),
      cmocka_unit_test(add__ends_with_the_table),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
