/* test_reduce.c - every instruction set this machine has against a plain reference. */
#include <pthread.h>
#include "reduce_reference.h"

#define MOST 1100 /* elements: more than two blocks of halves */
#define ROOM (MOST * 8 + 128) /* and an offset, and a canary */

/* ---- reference: one element of the accumulator type ---- */

static void put(tb_dtype t, void *to, const void *from, bool from_input) { /* widen a half, copy the rest */
  if (from_input && (t == TB_F16 || t == TB_BF16)) {
    uint16_t h;
    memcpy(&h, from, 2);
    float v = (float)half_value(t, h);
    memcpy(to, &v, 4);
  } else {
    memcpy(to, from, tb_acc_size(t));
  }
}

static double float_op(tb_redop op, double a, double b) {
  switch (op) {
  case TB_MIN: return isnan(a) ? a : isnan(b) ? b : a < b ? a : b;
  case TB_MAX: return isnan(a) ? a : isnan(b) ? b : a > b ? a : b;
  case TB_PROD: return a * b;
  default: return a + b;
  }
}

static void combine(tb_redop op, tb_dtype t, void *out, const void *x, const void *y) {
  size_t size = tb_acc_size(t);
  if (t == TB_F64) {
    double a, b;
    memcpy(&a, x, 8), memcpy(&b, y, 8);
    a = float_op(op, a, b);
    memcpy(out, &a, 8);
  } else if (tb_dtype_is_float(t)) { /* double has more than 2 * 24 + 2 bits: rounding twice is rounding once */
    float a, b;
    memcpy(&a, x, 4), memcpy(&b, y, 4);
    a = (float)float_op(op, a, b);
    memcpy(out, &a, 4);
  } else { /* little-endian or not: work on values */
    uint64_t a = 0, b = 0, r;
    uint8_t ab[8] = {0}, bb[8] = {0};
    bool is_signed = t == TB_I8 || t == TB_I16 || t == TB_I32 || t == TB_I64, less;
    memcpy(ab, x, size), memcpy(bb, y, size);
    for (size_t i = 0; i < size; i++) a |= (uint64_t)ab[i] << 8 * i, b |= (uint64_t)bb[i] << 8 * i;
    uint64_t flip = is_signed ? 1ull << (8 * size - 1) : 0;
    less = (a ^ flip) < (b ^ flip);
    r = op == TB_MIN ? (less ? a : b) : op == TB_MAX ? (less ? b : a) : op == TB_PROD ? a * b : a + b;
    for (size_t i = 0; i < size; i++) ((uint8_t *)out)[i] = (uint8_t)(r >> 8 * i);
  }
}

/* ---- inputs ---- */

/* Random bits; for floats also moderate numbers (whose sums round) and every kind of special value. */
static void fill(tb_dtype t, uint8_t *p, size_t n) {
  static const double special[] = {0.0, -0.0, INFINITY, -INFINITY, NAN, FLT_MIN, 1e-42, -1e-42, 6e-8, 65504, FLT_MAX,
                                   -FLT_MAX, 1, -1, 0x1p-14, 5e-324, DBL_MAX};
  size_t size = tb_dtype_size(t);
  for (size_t i = 0; i < n; i++) {
    uint64_t bits = rng(), kind = rng() % 4;
    double v = kind == 0 ? special[rng() % (sizeof special / sizeof *special)] : (double)(int64_t)rng() * 0x1p-60;
    float f = (float)v;
    uint16_t h = half_of(t, f);
    const void *from = &bits;
    if (kind != 3 && t == TB_F64) from = &v;
    else if (kind != 3 && t == TB_F32) from = &f;
    else if (kind != 3 && tb_dtype_is_float(t)) from = &h;
    memcpy(p + i * size, from, size);
  }
}

static const size_t extra_sizes[] = {255, 511, 512, 513, 1023, MOST};
static size_t size_at(size_t i) { return i <= 67 ? i : extra_sizes[i - 68]; }
#define SIZES (68 + sizeof extra_sizes / sizeof *extra_sizes)

static _Alignas(64) uint8_t xs[ROOM], ys[ROOM], acc[ROOM], before[ROOM], out[ROOM];

static void expect(bool ok, const char *what, tb_dtype t, tb_redop op, size_t n, size_t i) {
  if (!ok) fail_msg("%s %s %s on %s: element %zu of %zu is wrong", what, tb_dtype_name(t), tb_redop_name(op),
                    tb_compute_isa(), i, n);
}

/* Canaries: nothing past the n-th element was written. */
static void expect_canary(const uint8_t *buffer, size_t used, const char *what) {
  for (size_t i = used; i < used + 64; i++)
    if (buffer[i] != 0xa5) fail_msg("%s on %s wrote byte %zu past its end", what, tb_compute_isa(), i - used);
}

static void check_combining(void) {
  for (int ti = 0; ti < TB_DTYPES; ti++)
    for (int oi = 0; oi < TB_REDOPS; oi++)
      for (size_t s = 0; s < SIZES; s++) {
        tb_dtype t = (tb_dtype)ti;
        tb_redop op = (tb_redop)oi;
        size_t n = size_at(s), size = tb_dtype_size(t), wide = tb_acc_size(t);
        uint8_t *x = xs + rng() % 17, *y = ys + rng() % 17, a[8], b[8], want[8];
        fill(t, x, n), fill(t, y, n);

        memset(acc, 0xa5, ROOM);
        tb_reduce_pair(op, t, acc, x, y, n);
        for (size_t i = 0; i < n; i++) {
          put(t, a, x + i * size, true), put(t, b, y + i * size, true);
          combine(op, t, want, a, b);
          expect(same(t, acc + i * wide, want), "pair", t, op, n, i);
        }
        expect_canary(acc, n * wide, "pair");

        fill(t, y, n);
        memcpy(before, acc, ROOM);
        tb_reduce_next(op, t, acc, y, n);
        for (size_t i = 0; i < n; i++) {
          put(t, b, y + i * size, true);
          combine(op, t, want, before + i * wide, b);
          expect(same(t, acc + i * wide, want), "next", t, op, n, i);
        }
        expect_canary(acc, n * wide, "next");

        memset(acc, 0xa5, ROOM);
        tb_reduce_first(t, acc, x, n);
        for (size_t i = 0; i < n; i++) {
          put(t, want, x + i * size, true);
          expect(same(t, acc + i * wide, want), "first", t, op, n, i);
        }
        expect_canary(acc, n * wide, "first");
      }
}

static void reduce__first_pair_next_equal_reference(void **state) {
  (void)state;
  on_each_isa(check_combining);
}

static double unit_in_last_place(tb_dtype t, double v) {
  int digits = t == TB_F64 ? 53 : t == TB_F32 ? 24 : t == TB_F16 ? 11 : 8;
  int least = t == TB_F64 ? -1074 : t == TB_F32 ? -149 : t == TB_F16 ? -24 : -133, e;
  (void)frexp(v, &e);
  return ldexp(1, e - digits > least ? e - digits : least);
}

static double out_value(tb_dtype t, const uint8_t *p) {
  double d;
  float f;
  uint16_t h;
  if (t == TB_F64) return memcpy(&d, p, 8), d;
  if (t == TB_F32) return memcpy(&f, p, 4), f;
  return memcpy(&h, p, 2), half_value(t, h);
}

/* Accumulators that make finite, normal results in the type, at every scale of it but its edges. */
static void fill_acc(tb_dtype t, uint8_t *p, size_t n) {
  for (size_t i = 0; i < n; i++) {
    double v = (double)(int64_t)rng() * ldexp(1, (t == TB_F16 ? -62 : -80) + (int)(rng() % (t == TB_F16 ? 5 : 40)));
    float f = (float)v;
    if (t == TB_F64) memcpy(p + 8 * i, &v, 8);
    else memcpy(p + 4 * i, &f, 4);
  }
}

static void check_scaling(void) {
  static const uint32_t pairs[][2] = {{1, 2}, {2, 1}, {1, 3}, {3, 1}, {4, 3}, {7, 5}, {64, 63}, {1, 1000},
                                     {65535, 65534}};
  static const double slack[] = {[TB_F32] = 0x1p-28, [TB_F64] = 1, [TB_F16] = 0x1p-13, [TB_BF16] = 0x1p-16};
  for (int ti = TB_F32; ti <= TB_BF16; ti++)
    for (size_t p = 0; p < sizeof pairs / sizeof *pairs; p++)
      for (size_t s = 0; s < SIZES; s++) {
        tb_dtype t = (tb_dtype)ti;
        size_t n = size_at(s), size = tb_dtype_size(t), wide = tb_acc_size(t);
        uint32_t mul = pairs[p][0], div = pairs[p][1];
        uint8_t *o = out + rng() % 17;
        fill_acc(t, acc, n);
        memset(out, 0xa5, ROOM);
        tb_reduce_last(t, o, acc, mul, div, n);
        for (size_t i = 0; i < n; i++) {
          double a = wide == 8 ? out_value(TB_F64, acc + 8 * i) : out_value(TB_F32, acc + 4 * i);
          long double exact = (long double)a * mul / div;
          double got = out_value(t, o + i * size), ulp = unit_in_last_place(t, got);
          long double off = fabsl((long double)got - exact) / ulp;
          expect(off <= 0.5L + (long double)slack[t] + 0x1p-40L, "last", t, TB_AVG, n, i);
        }
        expect_canary(o, n * size, "last");
        memcpy(before, o, n * size);
        tb_reduce_last(t, acc, acc, mul, div, n); /* in place */
        assert_memory_equal(acc, before, n * size);
      }
}

static void reduce_last__within_stated_error(void **state) {
  (void)state;
  on_each_isa(check_scaling);
}

static void check_integers_stay_exact(void) {
  static const int limit[] = {[TB_F32] = 1 << 24, [TB_F64] = 1 << 30, [TB_F16] = 1 << 11, [TB_BF16] = 1 << 8};
  for (int ti = TB_F32; ti <= TB_BF16; ti++)
    for (uint32_t ranks = 1; ranks <= 70; ranks++)
      for (uint32_t count = 1; count <= ranks; count++) {
        tb_dtype t = (tb_dtype)ti;
        size_t n = 5, wide = tb_acc_size(t);
        double want[5];
        for (size_t i = 0; i < n; i++) {
          int64_t each = (int64_t)(rng() % (uint64_t)(limit[t] / (int)ranks)) * (i & 1 ? -1 : 1);
          double d = (double)(each * count);
          float f = (float)d;
          want[i] = (double)(each * ranks);
          memcpy(acc + i * wide, wide == 8 ? (void *)&d : (void *)&f, wide);
        }
        tb_reduce_last(t, out, acc, ranks, count, n);
        for (size_t i = 0; i < n; i++)
          expect(out_value(t, out + i * tb_dtype_size(t)) == want[i], "last (exact)", t, TB_SUM, n, i);
      }
}

static void reduce_last__integer_values_stay_exact(void **state) {
  (void)state;
  on_each_isa(check_integers_stay_exact);
}

static void check_as_it_is(void) {
  for (int ti = 0; ti < TB_DTYPES; ti++)
    for (size_t s = 0; s < SIZES; s++) {
      tb_dtype t = (tb_dtype)ti;
      size_t n = size_at(s), size = tb_dtype_size(t);
      bool half = t == TB_F16 || t == TB_BF16;
      uint8_t *o = out + rng() % 17;
      fill(half ? TB_F32 : t, acc, n);
      memset(out, 0xa5, ROOM);
      memcpy(before, acc, ROOM);
      tb_reduce_last(t, o, acc, 3, tb_dtype_is_float(t) ? 3 : 7, n); /* integers ignore the factors */
      for (size_t i = 0; i < n; i++) {
        if (half) {
          float f = (float)out_value(TB_F32, acc + 4 * i);
          uint16_t h;
          memcpy(&h, o + 2 * i, 2);
          expect(same_half(t, h, half_of(t, f)), "last (as it is)", t, TB_SUM, n, i);
        } else {
          expect(memcmp(o + i * size, before + i * size, size) == 0, "last (as it is)", t, TB_SUM, n, i);
        }
      }
      expect_canary(o, n * size, "last (as it is)");
      tb_reduce_last(t, acc, acc, 5, 5, n); /* in place */
      assert_memory_equal(acc, o, n * size);
    }
}

static void reduce_last__equal_factors_copy(void **state) {
  (void)state;
  on_each_isa(check_as_it_is);
}

static void check_special_scaling(void) {
  double d[] = {1e308, -1.5e308, INFINITY, -INFINITY, NAN, 0.0, -0.0}, got[7];
  tb_reduce_last(TB_F64, got, d, 4, 3, 7);
  assert_true(fabsl(got[0] / (4e308L / 3) - 1) < 1e-15L); /* though 4e308 is no double */
  assert_true(got[1] == -INFINITY && got[2] == INFINITY && got[3] == -INFINITY && isnan(got[4]));
  assert_true(got[5] == 0 && !signbit(got[5]) && got[6] == 0 && signbit(got[6]));
  float f[] = {3e38f, -3.3e38f, INFINITY, -INFINITY, NAN, 0.0f, -0.0f, 0x1p-148f}, fgot[8];
  tb_reduce_last(TB_F32, fgot, f, 1000, 1001, 8);
  assert_true(fgot[0] == (float)(3e38f * 1000.0 / 1001) && fgot[1] == (float)(-3.3e38f * 1000.0 / 1001));
  assert_true(fgot[2] == INFINITY && fgot[3] == -INFINITY && isnan(fgot[4]) && fgot[7] == 0x1p-148f);
  assert_true(!signbit(fgot[5]) && signbit(fgot[6]));
  tb_reduce_last(TB_F32, fgot, f, 2, 1, 2);
  assert_true(fgot[0] == INFINITY && fgot[1] == -INFINITY);
}

static void reduce_last__special_values(void **state) {
  (void)state;
  on_each_isa(check_special_scaling);
}

/* ---- choosing, refusing ---- */

static void compute_isa__is_the_best_usable(void **state) {
  (void)state;
  unsigned n = 0;
  while (tb_kernels_at(n)) n++;
  assert_true(n >= 1);
  assert_string_equal(tb_kernels_at(n - 1)->isa, "scalar");
  tb_kernels_use(NULL);
  assert_string_equal(tb_compute_isa(), tb_kernels_at(0)->isa);
}

static void reduce__unknown_type_or_op_writes_nothing(void **state) {
  (void)state;
  memset(acc, 0xa5, ROOM);
  memset(xs, 1, ROOM);
  static const int bad[] = {-1, TB_DTYPES, INT32_MAX};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    tb_reduce_first((tb_dtype)bad[i], acc, xs, 9);
    tb_reduce_pair(TB_SUM, (tb_dtype)bad[i], acc, xs, xs, 9);
    tb_reduce_next(TB_SUM, (tb_dtype)bad[i], acc, xs, 9);
    tb_reduce_last((tb_dtype)bad[i], acc, xs, 1, 2, 9);
    tb_reduce_pair((tb_redop)bad[i], TB_F16, acc, xs, xs, 9);
    tb_reduce_next((tb_redop)bad[i], TB_F32, acc, xs, 9);
  }
  expect_canary(acc, 0, "an unknown type or operation");
}

static void *first_use(void *arg) {
  int32_t sum[64], ones[64];
  for (int i = 0; i < 64; i++) sum[i] = i, ones[i] = 1;
  tb_reduce_next(TB_SUM, TB_I32, sum, ones, 64);
  *(int32_t *)arg = sum[63];
  return NULL;
}

static void reduce__first_use_from_two_threads(void **state) {
  (void)state;
  pthread_t threads[2];
  int32_t got[2] = {0, 0};
  tb_kernels_use(NULL);
  for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, first_use, &got[i]), 0);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  assert_int_equal(got[0], 64);
  assert_int_equal(got[1], 64);
}

int main(void) {
  print_message("seed %u\n", SEED);
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(compute_isa__is_the_best_usable),
    cmocka_unit_test(reduce__first_use_from_two_threads),
    cmocka_unit_test(reduce__unknown_type_or_op_writes_nothing),
    cmocka_unit_test(reduce__first_pair_next_equal_reference),
    cmocka_unit_test(reduce_last__equal_factors_copy),
    cmocka_unit_test(reduce_last__within_stated_error),
    cmocka_unit_test(reduce_last__integer_values_stay_exact),
    cmocka_unit_test(reduce_last__special_values),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
