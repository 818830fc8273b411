/* test_elements.c - sums of values set aside, for each float type, at any alignment. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "compute/compute.h"
#include "compute/half.h"

enum { MOST = 600 };

static void put(tb_dtype t, uint8_t *at, double x) {
  float f = (float)x;
  uint16_t h = t == TB_F16 ? tb_f16_narrow(f) : tb_bf16_narrow(f);
  if (t == TB_F32) memcpy(at, &f, 4);
  else if (t == TB_F64) memcpy(at, &x, 8);
  else memcpy(at, &h, 2);
}

static void add_and_subtract__exact_for_small_integers(void **state) {
  (void)state;
  static uint8_t a[8 * MOST + 1], b[8 * MOST + 1], want[8 * MOST + 1];
  for (int t = TB_F32; t <= TB_BF16; t++)
    for (size_t n = 0; n <= MOST; n += n < 8 ? 1 : 37)
      for (int off = 0; off < 2; off++) {
        size_t size = tb_dtype_size((tb_dtype)t);
        double mass = 0;
        for (size_t i = 0; i < n; i++) {
          double x = (double)(i % 40), y = -(double)(i % 7) * 3;
          put((tb_dtype)t, a + off + i * size, x);
          put((tb_dtype)t, b + off + i * size, y);
          put((tb_dtype)t, want + i * size, x + y);
          mass += fabs(y);
        }
        tb_add((tb_dtype)t, a + off, b + off, n);
        assert_memory_equal(a + off, want, n * size);
        assert_true(tb_mass((tb_dtype)t, b + off, n) == mass);
        tb_subtract((tb_dtype)t, a + off, b + off, n);
        for (size_t i = 0; i < n; i++) put((tb_dtype)t, want + i * size, (double)(i % 40));
        assert_memory_equal(a + off, want, n * size);
      }
}

static void mass__is_not_finite_where_an_element_is_not(void **state) {
  (void)state;
  for (int t = TB_F32; t <= TB_BF16; t++)
    for (int nan = 0; nan < 2; nan++) {
      uint8_t x[8 * 300] = {0};
      put((tb_dtype)t, x + 290 * tb_dtype_size((tb_dtype)t), nan ? NAN : -INFINITY);
      assert_false(isfinite(tb_mass((tb_dtype)t, x, 300)));
      assert_true(tb_mass((tb_dtype)t, x, 290) == 0);
    }
}

static void other_types__write_nothing(void **state) {
  (void)state;
  int32_t a = 5, b = 7;
  tb_add(TB_I32, &a, &b, 1);
  tb_subtract(TB_I32, &a, &b, 1);
  assert_int_equal(a, 5);
  assert_true(tb_mass(TB_I32, &a, 1) == 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(add_and_subtract__exact_for_small_integers),
    cmocka_unit_test(mass__is_not_finite_where_an_element_is_not),
    cmocka_unit_test(other_types__write_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
