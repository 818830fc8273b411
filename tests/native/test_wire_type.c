/* test_wire_type.c - the wire encodings on every instruction set of this machine, beside plain references. */
#include "compute/wire_type.h"
#include "compute/seed.h"
#include "reduce_reference.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define MOST 1600 /* elements: more than three blocks */

static _Alignas(64) float acc[MOST + 16], acc_before[MOST + 16];
static uint8_t xs[MOST * 8 + 64], payload[MOST * 2 + 64], saved[MOST * 2 + 64], rest[MOST * 8 + 64], out[MOST * 8 + 64];

static const tb_dtype wires[] = {TB_BF16, TB_F16, TB_I8};
static const tb_dtype elements[] = {TB_F32, TB_F64, TB_F16, TB_BF16};
static const size_t lengths[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 511, 512, 513, 1024, 1025, MOST};
#define COUNT(a) (sizeof(a) / sizeof *(a))
#define EACH(type, name, list) for (size_t name##_i = 0; name##_i < COUNT(list); name##_i++) \
    for (type name = (list)[name##_i], *name##_once = &name; name##_once; name##_once = NULL)

static double value(tb_dtype t, const uint8_t *p, size_t i) {
  float f;
  double d;
  uint16_t h;
  if (t == TB_F32) return memcpy(&f, p + 4 * i, 4), f;
  if (t == TB_F64) return memcpy(&d, p + 8 * i, 8), d;
  return memcpy(&h, p + 2 * i, 2), half_value(t, h);
}

static void put(tb_dtype t, uint8_t *p, size_t i, double v) {
  float f = (float)v;
  uint16_t h = t == TB_F16 || t == TB_BF16 ? half_of(t, f) : 0;
  if (t == TB_F32) memcpy(p + 4 * i, &f, 4);
  else if (t == TB_F64) memcpy(p + 8 * i, &v, 8);
  else memcpy(p + 2 * i, &h, 2);
}

static double any_number(unsigned spread) { return (double)(int64_t)rng() * ldexp(1, -62 - (int)(rng() % spread)); }

static tb_dtype acc_type(tb_dtype t) { return t == TB_F64 ? TB_F64 : TB_F32; }

/* A half of a double, by the definition: the one of two neighbours that is nearer, or even. half_of takes a float: one
 * that was cut and marked odd (what Kahan calls sticky) rounds as the double does. */
static uint16_t half_of_double(tb_dtype t, double v) {
  float f = (float)v;
  if (isfinite(f) && fabs((double)f) > fabs(v)) f = nextafterf(f, 0);
  if (isfinite(f) && (double)f != v) {
    uint32_t u;
    memcpy(&u, &f, 4);
    u |= 1;
    memcpy(&f, &u, 4);
  }
  return half_of(t, f);
}

static uint16_t le16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

static float scale_of(const uint8_t *p) {
  uint32_t u = p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24;
  float scale;
  memcpy(&scale, &u, 4);
  return scale;
}

static double decoded(tb_dtype wire, const uint8_t *in, size_t i) {
  if (wire == TB_I8) return (double)(float)((double)(int8_t)in[4 + i] * scale_of(in));
  return half_value(wire, le16(in + 2 * i));
}

static void expect_canary(const uint8_t *p, size_t used, const char *what) {
  for (size_t i = used; i < used + 16; i++)
    if (p[i] != 0xa5) fail_msg("%s on %s wrote byte %zu past its end", what, tb_compute_isa(), i - used);
}

/* ---- halves ---- */

static void check_halves(void) {
  EACH(tb_dtype, wire, wires) EACH(tb_dtype, t, elements) EACH(size_t, n, lengths) {
    if (wire == TB_I8) continue;
    uint8_t *x = xs + rng() % 9, *o = payload + rng() % 9;
    static const double special[] = {0.0, -0.0, INFINITY, -INFINITY, NAN, 65519.99, 65520, 65504, -70000, 1e39, -1e300,
                                     0x1.ffp127, 3.4e38, 0x1p-25, 0x1.00000001p-25, -0x1p-24, 1e-42, 1e-300,
                                     1 + 0x1p-11, 1 + 0x1p-11 + 0x1p-40, 1 + 0x3p-11 - 0x1p-45, 1 + 0x1p-8 + 0x1p-50};
    memset(payload, 0xa5, sizeof payload);
    bool all_finite = true;
    for (size_t i = 0; i < n; i++) put(t, x, i, rng() % 4 ? any_number(40) : special[rng() % COUNT(special)]);
    bool finite = tb_wire_encode(wire, t, o, x, n, 0, NULL);
    for (size_t i = 0; i < n; i++) {
      uint16_t want = half_of_double(wire, value(t, x, i)), got = le16(o + 2 * i);
      if (!same_half(wire, got, want))
        fail_msg("%s as %s on %s: %a became 0x%04x, not 0x%04x", tb_dtype_name(t), tb_dtype_name(wire),
                 tb_compute_isa(), value(t, x, i), got, want);
      all_finite &= isfinite(half_value(wire, got)) != 0;
    }
    assert_int_equal(finite, all_finite);
    assert_int_equal(tb_wire_bytes(wire, n), 2 * n);
    expect_canary(o, 2 * n, "encode");
  }
}

static void halves__are_rounded_once_to_nearest_even(void **state) {
  (void)state;
  on_each_isa(check_halves);
}

/* ---- int8 ---- */

static uint32_t ref_random32(uint64_t seed, uint64_t index) { /* the steps one after another, on an index below 2^32 */
  uint64_t mixed = tb_seed(seed, 0);
  uint32_t z = (uint32_t)((index * 2654435761u) & 0xffffffffu) ^ (uint32_t)(mixed & 0xffffffffu);
  z ^= z >> 16;
  z = (uint32_t)((uint64_t)z * 2146121005u);
  uint32_t sum = z + (uint32_t)(mixed >> 32);
  z = sum ^ (z >> 15);
  z = (uint32_t)((uint64_t)z * 2221713035u);
  return z ^ z >> 16;
}

/* With a power of two for a scale, so that x / scale is exact: rounded up if the fraction exceeds the random number. */
static void check_int8(void) {
  EACH(tb_dtype, t, elements) EACH(size_t, n, lengths) {
    uint8_t *x = xs + rng() % 9, *o = payload + rng() % 9;
    double scale = ldexp(1, (int)(rng() % 9) - 4);
    uint64_t seed = rng();
    for (size_t i = 0; i < n; i++) put(t, x, i, (double)((int64_t)(rng() % 4065) - 2032) / 16 * scale);
    put(t, x, rng() % n, (rng() & 1 ? 127 : -127) * scale);
    if (t == TB_BF16)
      for (size_t i = 0; i < n; i++) /* 8 bits: nearer to it, the others may have become more than 127 */
        if (fabs(value(t, x, i)) > 127 * scale) put(t, x, i, 127 * scale);
    memset(payload, 0xa5, sizeof payload);
    assert_true(tb_wire_encode(TB_I8, t, o, x, n, seed, NULL));
    assert_true(scale_of(o) == scale);
    for (size_t i = 0; i < n; i++) {
      double y = value(t, x, i) / scale, fraction = y - floor(y);
      int want = (int)floor(y) + ((ref_random32(seed, i) >> 8) * 0x1p-24 < fraction), got = (int8_t)o[4 + i];
      if (got != want) fail_msg("%s on %s: %g became %d, not %d", tb_dtype_name(t), tb_compute_isa(), y, got, want);
    }
    assert_int_equal(tb_wire_bytes(TB_I8, n), n + 4);
    expect_canary(o, n + 4, "encode");
  }
}

static void int8__rounds_by_the_random_number(void **state) {
  (void)state;
  on_each_isa(check_int8);
}

static void int8__is_unbiased(void **state) {
  (void)state;
  enum { N = 700, ROUNDS = 6000 };
  static float x[N];
  static double sum[N];
  memset(sum, 0, sizeof sum);
  double chi = 0, neighbours = 0, largest = 0;
  for (size_t i = 0; i < N; i++) x[i] = (float)any_number(12), largest = fmax(largest, fabs(x[i]));
  x[3] = (float)(largest / 127 * 1e-3); /* far below a scale */
  double scale = largest / 127, variances = 0;
  for (uint64_t round = 0; round < ROUNDS; round++) {
    double before = 0;
    tb_wire_encode(TB_I8, TB_F32, payload, x, N, tb_seed(4, round), NULL);
    tb_wire_first(TB_I8, acc, payload, N);
    for (size_t i = 0; i < N; i++) {
      double off = acc[i] - x[i];
      assert_true(fabs(off) < scale * (1 + 1e-5));
      sum[i] += off, neighbours += before * off;
      before = off;
    }
  }
  for (size_t i = 0; i < N; i++) {
    double y = fabs(x[i]) / scale, fraction = y - floor(y);
    double stated = 0x1p-22 * fabs(x[i]) + 0x1p-24 * scale;
    double off = fmax(0, fabs(sum[i] / ROUNDS) - stated) / scale / sqrt(fraction * (1 - fraction) / ROUNDS + 1e-20);
    if (fabs(off) > 5) fail_msg("element %zu: %g scales, off by %g deviations", i, y, off);
    chi += off * off;
    variances += pow(scale, 4) * pow(fraction * (1 - fraction), 2); /* the square of this element's */
  }
  assert_true(chi / N > 0.8 && chi / N < 1.2);
  /* Errors of neighbours are independent; by Cauchy and Schwarz, the variance of the products' sum is at most this. */
  assert_true(fabs(neighbours) < 5 * sqrt(variances * ROUNDS));
}

static void int8__seeds_and_indices_give_other_bits(void **state) {
  (void)state;
  enum { N = 1000 };
  static float x[N];
  for (size_t i = 0; i < N; i++) x[i] = i ? 0.5f : 127;
  size_t ups[2] = {0, 0}, same_as_before = 0;
  for (int k = 0; k < 2; k++) {
    tb_wire_encode(TB_I8, TB_F32, payload, x, N, tb_seed(1, (uint64_t)k), NULL);
    for (size_t i = 1; i < N; i++) ups[k] += payload[4 + i], same_as_before += k && payload[4 + i] == saved[4 + i];
    memcpy(saved, payload, sizeof saved);
  }
  for (int k = 0; k < 2; k++) assert_true(ups[k] > N / 2 - 80 && ups[k] < N / 2 + 80);
  assert_true(same_as_before > N / 2 - 80 && same_as_before < N / 2 + 80);
}

static void check_int8_special(void) {
  static const double bad[] = {NAN, INFINITY, -INFINITY};
  EACH(tb_dtype, t, elements) EACH(size_t, n, lengths) EACH(double, v, bad) {
    for (size_t i = 0; i < n; i++) put(t, xs, i, any_number(20));
    put(t, xs, rng() % n, v);
    assert_false(tb_wire_encode(TB_I8, t, payload, xs, n, 1, rest));
    assert_true(isnan(scale_of(payload)));
    for (size_t i = 0; i < n; i++) acc[i] = 1;
    tb_wire_next(TB_I8, acc, payload, n);
    tb_wire_decode(TB_I8, t, out, payload, n);
    for (size_t i = 0; i < n; i++) {
      assert_true(isnan(acc[i]) && isnan(value(t, out, i)));
      assert_true(isnan(value(acc_type(t), rest, i)));
    }
  }
  double too_large = 1e39;
  assert_false(tb_wire_encode(TB_I8, TB_F64, payload, &too_large, 1, 1, NULL));
  static const uint32_t scales[] = {0xffc00000, 0xff800000, 0xbf800000, 0x80000000, 1, 0x7f7fffff, 0x7fffffff};
  EACH(uint32_t, u, scales) {
    for (int i = 0; i < 4; i++) payload[i] = (uint8_t)(u >> 8 * i);
    payload[4] = 0, payload[5] = 1;
    tb_wire_first(TB_I8, acc, payload, 2);
    assert_true(isnan(acc[0]) && isnan(acc[1]));
  }
}

static void int8__not_finite_is_nan_everywhere(void **state) {
  (void)state;
  on_each_isa(check_int8_special);
}

static void check_int8_extremes(void) {
  float x[] = {FLT_MAX, -FLT_MAX, FLT_MAX / 2, 0.0f, -0.0f}, back[5], left[5];
  assert_true(tb_wire_encode(TB_I8, TB_F32, payload, x, 5, 1, left));
  tb_wire_decode(TB_I8, TB_F32, back, payload, 5);
  for (int i = 0; i < 5; i++) assert_true(isfinite(back[i]) && isfinite(left[i]) && fabsf(left[i]) <= FLT_MAX / 127);
  assert_true((int8_t)payload[4] == 127 && (int8_t)payload[5] == -127 && payload[7] == 0 && payload[8] == 0);

  float least = 127 * FLT_MIN, tiny[] = {nextafterf(least, 0), -1e-40f, 0};
  assert_true(tb_wire_encode(TB_I8, TB_F32, payload, &least, 1, 1, left));
  assert_true(scale_of(payload) == FLT_MIN && payload[4] == 127 && left[0] == 0);
  assert_true(tb_wire_encode(TB_I8, TB_F32, payload, tiny, 3, 1, left));
  assert_true(scale_of(payload) == 0 && payload[4] == 0 && payload[5] == 0 && payload[6] == 0);
  assert_memory_equal(left, tiny, sizeof tiny);
#if defined(__x86_64__)
  unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | 0x8040); /* subnormals to zero, as training frameworks set it */
  bool finite = tb_wire_encode(TB_I8, TB_F32, payload, tiny, 3, 1, NULL);
  tb_wire_first(TB_I8, acc, payload, 3);
  _mm_setcsr(mode);
  assert_true(finite && acc[0] == 0 && acc[1] == 0 && acc[2] == 0);
#endif
}

static void int8__largest_and_smallest(void **state) {
  (void)state;
  on_each_isa(check_int8_extremes);
}

/* ---- residual, decoding: every encoding of every type ---- */

static void check_residual(void) {
  EACH(tb_dtype, wire, wires) EACH(tb_dtype, t, elements) EACH(size_t, n, lengths) {
    uint8_t *x = xs + rng() % 9, *r = rest + rng() % 9, *o = payload + rng() % 9;
    for (size_t i = 0; i < n; i++) put(t, x, i, any_number(30));
    memset(rest, 0xa5, sizeof rest);
    assert_true(tb_wire_encode(wire, t, o, x, n, rng(), r));
    memcpy(saved, o, tb_wire_bytes(wire, n));
    for (size_t i = 0; i < n; i++) {
      double v = value(t, x, i), q = decoded(wire, o, i), left = value(acc_type(t), r, i);
      bool away = wire == TB_I8 && fabs(v) < scale_of(o) / 2 && q != 0;
      long double off = fabsl((long double)v - q - left);
      if (off > (away ? 0x1p-24L * scale_of(o) : 0))
        fail_msg("%s as %s on %s: %a = %a + %a is off by %Lg", tb_dtype_name(t), tb_dtype_name(wire),
                 tb_compute_isa(), v, q, left, off);
    }
    expect_canary(r, n * tb_acc_size(t), "residual");
    tb_wire_encode(wire, t, payload, x, n, 1, NULL);
    if (wire != TB_I8) assert_memory_equal(payload, saved, 2 * n);
  }
}

static void residual__is_exactly_what_was_not_sent(void **state) {
  (void)state;
  on_each_isa(check_residual);
}

static void check_decoding(void) {
  EACH(tb_dtype, wire, wires) EACH(size_t, n, lengths) {
    uint8_t *o = payload + rng() % 9;
    for (size_t i = 0; i < n; i++) put(TB_F32, xs, i, any_number(30));
    tb_wire_encode(wire, TB_F32, o, xs, n, rng(), NULL);
    memset(acc, 0xa5, sizeof acc);
    tb_wire_first(wire, acc, o, n);
    for (size_t i = 0; i < n; i++) assert_true(acc[i] == decoded(wire, o, i));
    expect_canary((uint8_t *)acc, 4 * n, "first");
    for (size_t i = 0; i < n; i++) acc[i] = acc_before[i] = (float)any_number(30);
    tb_wire_next(wire, acc, o, n);
    for (size_t i = 0; i < n; i++) assert_true(acc[i] == (float)(acc_before[i] + decoded(wire, o, i)));
    expect_canary((uint8_t *)acc, 4 * n, "next");
    EACH(tb_dtype, t, elements) {
      uint8_t *to = out + rng() % 9;
      memset(out, 0xa5, sizeof out);
      tb_wire_decode(wire, t, to, o, n);
      for (size_t i = 0; i < n; i++) {
        double want = decoded(wire, o, i);
        if (t == TB_F16 || t == TB_BF16) want = half_value(t, half_of(t, (float)want));
        assert_true(value(t, to, i) == want);
      }
      expect_canary(to, n * tb_dtype_size(t), "decode");
    }
  }
}

static void decoding__first_next_and_elements(void **state) {
  (void)state;
  on_each_isa(check_decoding);
}

static void encoding__isas_agree_to_the_bit(void **state) {
  (void)state;
  EACH(tb_dtype, wire, wires) EACH(tb_dtype, t, elements) {
    size_t bytes = tb_wire_bytes(wire, MOST), left = MOST * tb_acc_size(t);
    static uint8_t first_rest[sizeof rest];
    const tb_kernels *k;
    for (size_t i = 0; i < MOST; i++) put(t, xs, i, any_number(40));
    for (unsigned i = 0; (k = tb_kernels_at(i)); i++) {
      tb_kernels_use(k);
      tb_wire_encode(wire, t, payload, xs, MOST, 42, rest);
      if (i == 0) memcpy(saved, payload, bytes), memcpy(first_rest, rest, left);
      assert_memory_equal(saved, payload, bytes);
      assert_memory_equal(first_rest, rest, left);
    }
  }
  tb_kernels_use(NULL);
}

/* A mean of encoded contributions, as an owner makes it: what the seeds of ranks are for. */
static void encoding__errors_average_out_over_ranks(void **state) {
  (void)state;
  enum { N = 1024, RANKS = 64 };
  static float x[N];
  double one = 0, mean = 0, largest = 0;
  for (size_t i = 0; i < N; i++) x[i] = (float)any_number(8), largest = fmax(largest, fabs(x[i]));
  for (uint64_t rank = 0; rank < RANKS; rank++) {
    tb_wire_encode(TB_I8, TB_F32, payload, x, N, tb_seed(tb_seed(5, 1), rank), NULL);
    if (rank == 0) tb_wire_first(TB_I8, acc, payload, N);
    else tb_wire_next(TB_I8, acc, payload, N);
    for (size_t i = 0; i < N && rank == 0; i++) one += pow((double)acc[i] - x[i], 2);
  }
  for (size_t i = 0; i < N; i++) mean += pow((double)acc[i] / RANKS - x[i], 2);
  assert_true(mean / one > 0.6 / RANKS && mean / one < 1.6 / RANKS);
}

/* ---- refusing ---- */

static void bytes__of_nothing_too_much_and_unknown(void **state) {
  (void)state;
  EACH(tb_dtype, wire, wires) assert_int_equal(tb_wire_bytes(wire, 0), 0);
  assert_true(tb_wire_bytes(TB_I8, SIZE_MAX - 4) == SIZE_MAX && tb_wire_bytes(TB_I8, SIZE_MAX - 3) == 0);
  assert_true(tb_wire_bytes(TB_F16, SIZE_MAX / 2) == SIZE_MAX - 1 && tb_wire_bytes(TB_BF16, SIZE_MAX / 2 + 1) == 0);
  static const int bad[] = {-1, TB_F32, TB_F64, TB_U8, TB_I64, TB_DTYPES, INT32_MAX};
  memset(payload, 0xa5, sizeof payload), memset(acc, 0xa5, sizeof acc), memset(out, 0xa5, sizeof out);
  EACH(int, b, bad) {
    assert_int_equal(tb_wire_bytes((tb_dtype)b, 5), 0);
    tb_wire_encode((tb_dtype)b, TB_F32, payload, xs, 9, 1, out);
    tb_wire_first((tb_dtype)b, acc, xs, 9);
    tb_wire_next((tb_dtype)b, acc, xs, 9);
    tb_wire_decode((tb_dtype)b, TB_F32, out, xs, 9);
    if (b == TB_F32 || b == TB_F64) continue;
    tb_wire_encode(TB_I8, (tb_dtype)b, payload, xs, 9, 1, out);
    tb_wire_decode(TB_I8, (tb_dtype)b, out, xs, 9);
  }
  tb_wire_encode(TB_I8, TB_F32, payload, xs, 0, 1, out);
  tb_wire_first(TB_I8, acc, payload, 0);
  expect_canary(payload, 0, "encode"), expect_canary((uint8_t *)acc, 0, "first"), expect_canary(out, 0, "decode");
}

int main(void) {
  print_message("seed %u\n", SEED);
  rng_state = SEED;
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(halves__are_rounded_once_to_nearest_even),
    cmocka_unit_test(int8__rounds_by_the_random_number),
    cmocka_unit_test(int8__is_unbiased),
    cmocka_unit_test(int8__seeds_and_indices_give_other_bits),
    cmocka_unit_test(int8__not_finite_is_nan_everywhere),
    cmocka_unit_test(int8__largest_and_smallest),
    cmocka_unit_test(residual__is_exactly_what_was_not_sent),
    cmocka_unit_test(decoding__first_next_and_elements),
    cmocka_unit_test(encoding__isas_agree_to_the_bit),
    cmocka_unit_test(encoding__errors_average_out_over_ranks),
    cmocka_unit_test(bytes__of_nothing_too_much_and_unknown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
