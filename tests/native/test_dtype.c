/* test_dtype.c - the tables of element types and operations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "compute/compute.h"

static void dtype_size__is_that_of_the_c_type(void **state) {
  (void)state;
  static const struct { tb_dtype t; size_t size, acc; } want[] = {
    {TB_F32, sizeof(float), sizeof(float)}, {TB_F64, sizeof(double), sizeof(double)},
    {TB_F16, 2, sizeof(float)}, {TB_BF16, 2, sizeof(float)},
    {TB_I8, 1, 1}, {TB_U8, 1, 1}, {TB_I16, 2, 2}, {TB_U16, 2, 2},
    {TB_I32, 4, 4}, {TB_U32, 4, 4}, {TB_I64, 8, 8}, {TB_U64, 8, 8},
  };
  assert_int_equal(sizeof want / sizeof *want, TB_DTYPES);
  for (size_t i = 0; i < TB_DTYPES; i++) {
    assert_int_equal(tb_dtype_size(want[i].t), want[i].size);
    assert_int_equal(tb_acc_size(want[i].t), want[i].acc);
  }
}

static void dtype_name__says_bits(void **state) {
  (void)state;
  static const char *const want[TB_DTYPES] = {"float32", "float64", "float16", "bfloat16", "int8", "uint8",
                                              "int16", "uint16", "int32", "uint32", "int64", "uint64"};
  for (int t = 0; t < TB_DTYPES; t++) assert_string_equal(tb_dtype_name((tb_dtype)t), want[t]);
}

static void dtype_is_float__first_four_only(void **state) {
  (void)state;
  for (int t = 0; t < TB_DTYPES; t++) assert_int_equal(tb_dtype_is_float((tb_dtype)t), t <= TB_BF16);
}

static void dtype__unknown_number(void **state) {
  (void)state;
  static const int bad[] = {-1, TB_DTYPES, 255, INT32_MAX, INT32_MIN};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    assert_int_equal(tb_dtype_size((tb_dtype)bad[i]), 0);
    assert_int_equal(tb_acc_size((tb_dtype)bad[i]), 0);
    assert_string_equal(tb_dtype_name((tb_dtype)bad[i]), "unknown");
    assert_false(tb_dtype_is_float((tb_dtype)bad[i]));
    assert_string_equal(tb_redop_name((tb_redop)bad[i]), "unknown");
  }
}

static void redop_name__of_each(void **state) {
  (void)state;
  static const char *const want[TB_REDOPS] = {"sum", "avg", "min", "max", "prod"};
  for (int op = 0; op < TB_REDOPS; op++) assert_string_equal(tb_redop_name((tb_redop)op), want[op]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(dtype_size__is_that_of_the_c_type), cmocka_unit_test(dtype_name__says_bits),
    cmocka_unit_test(dtype_is_float__first_four_only),   cmocka_unit_test(dtype__unknown_number),
    cmocka_unit_test(redop_name__of_each),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
