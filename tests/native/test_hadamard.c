/* test_hadamard.c - the transform on every instruction set of this machine, beside its definition. */
#include <errno.h>
#include "compute/seed.h"
#include "hadamard_reference.h"

#define MOST 140000 /* elements */

static _Alignas(64) uint8_t xs[MOST * 8 + 64], ys[MOST * 8 + 64], back[MOST * 8 + 64], saved[MOST * 8 + 64];
static double wide[MOST], want[MOST];
static uint32_t missing[MOST / 2048 + 64];

static const size_t lengths[] = {0, 1, 2, 31, 32, 33, 47, 63, 64, 65, 100, 255, 256, 511, 777, 1000, 2047, 2048, 2049,
                                 3001, 4095, 4096, 4099, 6143, 8191, 10000, 16383, 20000, 32767, 32768, 65537, 100003,
                                 MOST};
#define LENGTHS (sizeof lengths / sizeof *lengths)
#define EACH_LENGTH(n) for (size_t at_ = 0, n; at_ < LENGTHS && (n = lengths[at_], true); at_++)
#define EACH_BLOCK(log2) for (unsigned log2 = TB_HADAMARD_LEAST_LOG2; log2 <= TB_HADAMARD_MOST_LOG2; log2++)

static tb_hadamard planned(size_t n, unsigned log2, uint64_t seed) {
  tb_hadamard h;
  assert_int_equal(tb_hadamard_plan(&h, n, log2, seed), 0);
  assert_true(h.panels <= 2);
  return h;
}

static double get(tb_dtype t, const uint8_t *p, size_t i) {
  float f;
  double d;
  if (t == TB_F32) return memcpy(&f, p + 4 * i, 4), f;
  return memcpy(&d, p + 8 * i, 8), d;
}

static void put(tb_dtype t, uint8_t *p, size_t i, double v) {
  float f = (float)v;
  if (t == TB_F32) memcpy(p + 4 * i, &f, 4);
  else memcpy(p + 8 * i, &v, 8);
}

/* Numbers of very different size, as gradients have. */
static void fill(tb_dtype t, uint8_t *p, size_t n) {
  for (size_t i = 0; i < n; i++) put(t, p, i, ldexp((double)(int64_t)rng(), -63 - (int)(rng() % 20)));
}

static double unit(tb_dtype t) { return t == TB_F32 ? 0x1p-24 : 0x1p-53; }

/* The error of every block is within `times` the stated bound. Both are in block order. 1.01: terms of second order,
 * and for float64 the reference's own error. */
static void expect_close(const ref_plan *r, tb_dtype t, const double *got, const double *expected, double times,
                         const char *what) {
  for (size_t b = 0; b < r->blocks; b++) {
    double error = 0, norm = 0;
    for (size_t i = r->block[b].start; i < r->block[b].start + r->block[b].length; i++) {
      error += (got[i] - expected[i]) * (got[i] - expected[i]);
      norm += expected[i] * expected[i];
    }
    double bound = (log2((double)r->block[b].length) + 2) * unit(t) * times * (t == TB_F64 ? 2 : 1.01);
    if (!(sqrt(error) <= bound * sqrt(norm)))
      fail_msg("%s %s %s: block %zu of %zu elements is off by %g of its norm, not %g", what, tb_dtype_name(t),
               tb_compute_isa(), b, r->n, sqrt(error / norm), bound);
  }
  for (size_t i = r->raw; i < r->n; i++)
    if (got[i] != expected[i]) fail_msg("%s: untouched element %zu was changed", what, i);
}

/* ---- places ---- */

static void check_bijection(size_t n, unsigned log2) {
  static uint8_t seen[MOST];
  tb_hadamard h = planned(n, log2, 0);
  memset(seen, 0, n);
  for (size_t p = 0; p < n; p++) {
    size_t c = tb_hadamard_at(&h, p);
    if (c >= n || seen[c]++ || tb_hadamard_place(&h, c) != p) fail_msg("n %zu, block 2^%u, place %zu", n, log2, p);
  }
}

static void places__are_a_bijection_for_all_lengths(void **state) {
  (void)state;
  for (size_t n = 0; n <= 5000; n++) check_bijection(n, TB_HADAMARD_LEAST_LOG2 + n % 2);
  EACH_LENGTH(n) EACH_BLOCK(log2) check_bijection(n, log2);
}

static void places__of_huge_tensors(void **state) {
  (void)state;
  static const size_t huge[] = {(size_t)1 << 33, ((size_t)1 << 40) + 12345, SIZE_MAX / 8, SIZE_MAX};
  for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) EACH_BLOCK(log2) {
    tb_hadamard h = planned(huge[i], log2, 0);
    for (size_t k = 0; k < 2000; k++) {
      size_t c = k < 500 ? k : k < 1000 ? huge[i] - k + 499 : (size_t)rng() % huge[i];
      size_t p = tb_hadamard_place(&h, c);
      assert_true(p < huge[i]);
      assert_true(tb_hadamard_at(&h, p) == c);
    }
  }
}

static void places__equal_the_definition(void **state) {
  (void)state;
  EACH_LENGTH(n) EACH_BLOCK(log2) {
    ref_plan r = ref_make(n, (size_t)1 << log2);
    tb_hadamard h = planned(n, log2, 0);
    assert_int_equal(h.blocks, r.blocks);
    assert_true(n - r.raw <= TB_HADAMARD_RAW);
    for (size_t p = 0; p < n; p++)
      if (tb_hadamard_at(&h, p) != r.at[p]) fail_msg("n %zu, block 2^%u, place %zu", n, log2, p);
    ref_free(&r);
  }
}

static void plan__refuses_other_block_lengths(void **state) {
  (void)state;
  tb_hadamard h;
  assert_int_equal(tb_hadamard_plan(&h, 100, TB_HADAMARD_LEAST_LOG2 - 1, 0), -EINVAL);
  assert_int_equal(tb_hadamard_plan(&h, 100, TB_HADAMARD_MOST_LOG2 + 1, 0), -EINVAL);
}

/* ---- values ---- */

static void reference__equals_the_matrix(void **state) {
  (void)state;
  enum { N = 256 };
  double x[N], got[N];
  for (size_t i = 0; i < N; i++) x[i] = got[i] = (double)(int64_t)rng() * 0x1p-63;
  ref_wht(got, N);
  for (size_t i = 0; i < N; i++) {
    double sum = 0;
    for (size_t j = 0; j < N; j++) sum += __builtin_popcountll(i & j) & 1 ? -x[j] : x[j];
    assert_true(fabs(sum - got[i]) < 1e-12);
  }
}

static void check_values(void) {
  for (int t = TB_F32; t <= TB_F64; t++)
    EACH_LENGTH(n) EACH_BLOCK(log2) {
      if (n < ((size_t)1 << (log2 - 1)) && log2 != TB_HADAMARD_LEAST_LOG2) continue; /* as with shorter blocks */
      tb_dtype type = (tb_dtype)t;
      size_t size = tb_dtype_size(type);
      uint64_t seed = rng();
      uint8_t *x = xs + rng() % 17, *y = ys + rng() % 17, *b = back + rng() % 17;
      ref_plan r = ref_make(n, (size_t)1 << log2);
      tb_hadamard h = planned(n, log2, seed);
      fill(type, x, n);
      memset(ys, 0xa5, sizeof ys), memset(back, 0xa5, sizeof back);
      tb_hadamard_forward(&h, type, y, x);
      for (size_t i = 0; i < n; i++) wide[i] = get(type, x, i);
      ref_coefficients(&r, seed, want, wide);
      for (size_t p = 0; p < n; p++) wide[r.at[p]] = get(type, y, p);
      expect_close(&r, type, wide, want, 1, "forward");
      tb_hadamard_inverse(&h, type, b, y, NULL);
      for (size_t i = 0; i < n; i++) wide[i] = get(type, b, i), want[i] = get(type, x, i);
      expect_close(&r, type, wide, want, 2, "there and back");
      for (size_t i = n * size; i < n * size + 32; i++)
        if (y[i] != 0xa5 || b[i] != 0xa5) fail_msg("wrote %zu bytes past the end of %zu elements", i - n * size, n);
      ref_free(&r);
    }
}

static void transform__equals_the_definition_and_is_undone(void **state) {
  (void)state;
  on_each_isa(check_values);
}

static void transform__isas_agree_to_the_bit(void **state) {
  (void)state;
  for (int t = TB_F32; t <= TB_F64; t++)
    EACH_LENGTH(n) {
      tb_hadamard h = planned(n, TB_HADAMARD_LEAST_LOG2 + (unsigned)(at_ % 5), rng());
      size_t bytes = n * tb_dtype_size((tb_dtype)t);
      const tb_kernels *k;
      fill((tb_dtype)t, xs, n);
      for (size_t b = 0; b < h.blocks; b++) missing[b] = (uint32_t)(rng() % 2);
      for (unsigned i = 0; (k = tb_kernels_at(i)); i++) {
        tb_kernels_use(k);
        tb_hadamard_forward(&h, (tb_dtype)t, ys, xs);
        tb_hadamard_inverse(&h, (tb_dtype)t, back, ys, missing);
        if (i == 0) memcpy(saved, ys, bytes), memcpy(wide, back, bytes);
        assert_memory_equal(saved, ys, bytes);
        assert_memory_equal(wide, back, bytes);
      }
    }
  tb_kernels_use(NULL);
}

static void transform__keeps_the_norm_and_is_linear(void **state) {
  (void)state;
  size_t n = 30001;
  tb_hadamard h = planned(n, 12, 77);
  static float a[30001], b[30001], ta[30001], tb[30001], sum[30001], tsum[30001];
  fill(TB_F32, (uint8_t *)a, n), fill(TB_F32, (uint8_t *)b, n);
  for (size_t i = 0; i < n; i++) sum[i] = a[i] + b[i];
  tb_hadamard_forward(&h, TB_F32, ta, a);
  tb_hadamard_forward(&h, TB_F32, tb, b);
  tb_hadamard_forward(&h, TB_F32, tsum, sum);
  double before = 0, after = 0, error = 0;
  for (size_t i = 0; i < n; i++) {
    before += (double)a[i] * a[i], after += (double)ta[i] * ta[i];
    error += pow((double)tsum[i] - ta[i] - tb[i], 2);
  }
  assert_true(fabs(sqrt(after / before) - 1) <= 14 * 0x1p-24);
  assert_true(sqrt(error) <= 3 * 15 * 0x1p-24 * sqrt(2 * before));
}

static void transform__of_integers_in_even_blocks_is_exact(void **state) {
  (void)state;
  tb_hadamard h = planned(4096, 12, 5);
  static float x[4096], y[4096], z[4096];
  for (size_t i = 0; i < 4096; i++) x[i] = (float)(rng() % 3) - 1; /* sums of 2^24 units of 2^-6 at most */
  tb_hadamard_forward(&h, TB_F32, y, x);
  tb_hadamard_inverse(&h, TB_F32, z, y, NULL);
  for (size_t i = 0; i < 4096; i++) assert_true(x[i] == z[i]);
}

static void transform__nan_stays_in_its_block(void **state) {
  (void)state;
  tb_hadamard h = planned(8192, 12, 5);
  static float x[8192], y[8192], z[8192];
  x[5000] = NAN;
  tb_hadamard_forward(&h, TB_F32, y, x);
  tb_hadamard_inverse(&h, TB_F32, z, y, NULL);
  for (size_t i = 0; i < 8192; i++) assert_true(i < 4096 ? z[i] == 0 : isnan(z[i]));
}

static void transform__other_types_write_nothing(void **state) {
  (void)state;
  static const int bad[] = {-1, TB_F16, TB_BF16, TB_I32, TB_DTYPES};
  tb_hadamard h = planned(5000, 12, 5);
  memset(ys, 0xa5, sizeof ys);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    tb_hadamard_forward(&h, (tb_dtype)bad[i], ys, xs);
    tb_hadamard_inverse(&h, (tb_dtype)bad[i], ys, xs, NULL);
  }
  for (size_t i = 0; i < sizeof ys; i++) assert_int_equal(ys[i], 0xa5);
}

/* ---- signs ---- */

static void signs_of(uint64_t seed, float *s, size_t n, uint64_t first_word) {
  for (size_t i = 0; i < n; i++) s[i] = 1;
  tb_kernels_now()->wht_f32.signs(s, s, n, seed, first_word);
}

static void check_signs(void) {
  enum { N = 1 << 16, SEEDS = 16 };
  static float s[SEEDS][N];
  double bound = 5 * sqrt(N); /* five standard deviations of a sum of N signs */
  for (uint64_t k = 0; k < SEEDS; k++) signs_of(tb_seed(tb_seed(1, k), 2), s[k], N, 0);
  for (int k = 0; k < SEEDS; k++) {
    double sum = 0;
    for (size_t i = 0; i < N; i++) sum += s[k][i];
    assert_true(fabs(sum) < bound);
    for (size_t lag = 1; lag <= 4096; lag = lag < 70 ? lag + 1 : lag * 2) { /* with itself shifted */
      double product = 0;
      for (size_t i = 0; i + lag < N; i++) product += s[k][i] * s[k][i + lag];
      if (fabs(product) >= bound) fail_msg("seed %d, lag %zu: %g", k, lag, product);
    }
    for (int other = 0; other < k; other++) { /* with those of other rounds */
      double product = 0;
      for (size_t i = 0; i < N; i++) product += s[k][i] * s[other][i];
      assert_true(fabs(product) < bound);
    }
    for (size_t bit = 0; bit < 64; bit++) { /* each bit of the words */
      double column = 0;
      for (size_t i = bit; i < N; i += 64) column += s[k][i];
      assert_true(fabs(column) < 5 * sqrt(N / 64.0));
    }
  }
}

static void signs__are_balanced_and_independent(void **state) {
  (void)state;
  on_each_isa(check_signs);
}

static void seeds__are_fixed_and_differ_by_every_field(void **state) {
  (void)state;
  assert_true(tb_random64(0, 0) == 0xe220a8397b1dcdafu && tb_random64(0, 1) == 0x6e789e6aa1b965f4u); /* as published */
  uint64_t s = tb_seed(tb_seed(7, 8), 9);
  assert_true(s != tb_seed(tb_seed(8, 7), 9) && s != tb_seed(tb_seed(7, 9), 8) && s != tb_seed(tb_seed(7, 8), 10));
  for (uint64_t k = 0; k < 100; k++)
    for (uint64_t d = 1; d < 100; d++) assert_true(tb_random64(tb_seed(s, k), d) != tb_random64(tb_seed(s, k + d), 0));
}

/* ---- loss ---- */

static void lost__counts_equal_counting_one_by_one(void **state) {
  (void)state;
  EACH_LENGTH(n) {
    unsigned log2 = TB_HADAMARD_LEAST_LOG2 + (unsigned)(at_ % 5);
    tb_hadamard h = planned(n, log2, 0);
    ref_plan r = ref_make(n, (size_t)1 << log2);
    size_t *block_of = malloc((n + 1) * sizeof *block_of);
    assert_non_null(block_of);
    for (size_t i = r.raw; i < n; i++) block_of[i] = SIZE_MAX;
    for (size_t b = 0; b < r.blocks; b++)
      for (size_t i = 0; i < r.block[b].length; i++) block_of[r.block[b].start + i] = b;
    for (int round = 0; round < 20; round++) {
      uint32_t counted[MOST / 2048 + 64] = {0};
      memset(missing, 0, sizeof missing);
      for (size_t p = rng() % 100; p < n;) {
        size_t len = rng() % (1 + rng() % (n + 1)), end = len > n - p ? n : p + len;
        tb_hadamard_lost(&h, missing, p, end == n ? SIZE_MAX : len); /* a piece may reach past the end */
        for (; p < end; p++)
          if (block_of[r.at[p]] != SIZE_MAX) counted[block_of[r.at[p]]]++;
        p += rng() % (1 + n / 4);
      }
      assert_memory_equal(missing, counted, sizeof missing);
    }
    tb_hadamard_lost(&h, NULL, n, 5); /* outside, and nothing: no counter is touched */
    tb_hadamard_lost(&h, NULL, 0, 0);
    free(block_of), ref_free(&r);
  }
}

static void lost__a_packet_costs_every_block_little(void **state) {
  (void)state;
  static const size_t packets[] = {350, 1024, 2000};
  size_t n = 131072 + 777;
  EACH_BLOCK(log2) {
    tb_hadamard h = planned(n, log2, 0);
    ref_plan r = ref_make(n, (size_t)1 << log2);
    for (size_t k = 0; k < sizeof packets / sizeof *packets; k++)
      for (size_t first = 0; first < r.panel_start[1]; first += packets[k]) {
        memset(missing, 0, sizeof missing);
        tb_hadamard_lost(&h, missing, first, packets[k]);
        for (size_t b = 0; b < r.blocks && r.block[b].panel == 0; b++) {
          double rows = (double)packets[k] * (double)r.panel_rows[0] / (double)n;
          assert_true(missing[b] <= (ceil(rows) + 1) * (double)r.block[b].run);
        }
      }
    ref_free(&r);
  }
}

/* Zeroes some chunks of y as a lossy stage 2 leaves them, and counts them. */
static void lose_chunks(const tb_hadamard *h, float *y, size_t chunk, double share) {
  memset(missing, 0, sizeof missing);
  for (size_t p = 0; p < h->n; p += chunk) {
    if ((double)(rng() >> 11) * 0x1p-53 >= share) continue;
    size_t len = h->n - p < chunk ? h->n - p : chunk;
    memset(y + p, 0, len * sizeof *y);
    tb_hadamard_lost(h, missing, p, len);
  }
}

static void lost__rescaled_estimate_is_unbiased(void **state) {
  (void)state;
  enum { N = 9000, ROUNDS = 4000 };
  static float x[N], y[N], z[N];
  static double sum[N], squares[N];
  fill(TB_F32, (uint8_t *)x, N);
  rng_state = SEED;
  memset(sum, 0, sizeof sum), memset(squares, 0, sizeof squares);
  for (uint64_t round = 0; round < ROUNDS; round++) {
    tb_hadamard h = planned(N, 11, tb_seed(3, round));
    tb_hadamard_forward(&h, TB_F32, y, x);
    lose_chunks(&h, y, 350, 0.1);
    tb_hadamard_inverse(&h, TB_F32, z, y, missing);
    for (size_t i = 0; i < N; i++) sum[i] += z[i], squares[i] += (double)z[i] * z[i];
  }
  double chi = 0;
  size_t counted = 0;
  for (size_t i = 0; i < N - 808; i++) { /* the blocks of the first panel's first four strips */
    double mean = sum[i] / ROUNDS, variance = squares[i] / ROUNDS - mean * mean;
    double off = (mean - x[i]) / sqrt(variance / ROUNDS);
    if (fabs(off) > 6) fail_msg("element %zu: mean %g of %g, %g deviations", i, mean, x[i], off);
    chi += off * off, counted++;
  }
  assert_true(chi / (double)counted > 0.8 && chi / (double)counted < 1.2);
}

static void check_rescaling(void) {
  enum { N = 70000 };
  static float x[N], y[N], z[N];
  for (int round = 0; round < 6; round++) {
    uint64_t seed = rng();
    tb_hadamard h = planned(N, 11 + (unsigned)round % 5, seed);
    ref_plan r = ref_make(N, (size_t)1 << (11 + round % 5));
    fill(TB_F32, (uint8_t *)x, N);
    tb_hadamard_forward(&h, TB_F32, y, x);
    lose_chunks(&h, y, round == 5 ? N : 1000, round == 5 ? 1 : 0.3);
    tb_hadamard_inverse(&h, TB_F32, z, y, missing);
    for (size_t p = 0; p < N; p++) wide[r.at[p]] = y[p];
    for (size_t b = 0; b < r.blocks; b++) {
      double *c = wide + r.block[b].start, length = (double)r.block[b].length;
      ref_wht(c, r.block[b].length);
      for (size_t i = 0; i < r.block[b].length; i++) {
        c[i] *= ref_sign(seed, b, i) / sqrt(length);
        if (missing[b] < length) c[i] *= length / (length - missing[b]);
      }
    }
    for (size_t i = 0; i < N; i++) want[i] = wide[i], wide[i] = z[i];
    expect_close(&r, TB_F32, wide, want, 1, "rescaled");
    ref_free(&r);
  }
  for (size_t i = 0; i < N; i++) assert_true(z[i] == 0); /* the last round lost everything */
}

static void lost__block_is_scaled_by_length_over_received(void **state) {
  (void)state;
  on_each_isa(check_rescaling);
}

/* What a lost shard takes of a lone large element does not come back as a few copies of it. */
static void lost__a_shard_leaves_noise_and_no_copies(void **state) {
  (void)state;
  enum { N = 1 << 16, SHARDS = 8 };
  static float x[N], y[N], z[N];
  tb_hadamard h = planned(N, 12, 9);
  memset(x, 0, sizeof x);
  x[12345] = 1;
  for (size_t shard = 0; shard < SHARDS; shard++) {
    tb_hadamard_forward(&h, TB_F32, y, x);
    memset(missing, 0, sizeof missing);
    tb_hadamard_lost(&h, missing, shard * N / SHARDS, N / SHARDS);
    memset(y + shard * N / SHARDS, 0, N / SHARDS * sizeof *y);
    tb_hadamard_inverse(&h, TB_F32, z, y, missing);
    for (size_t b = 0; b < h.blocks; b++) assert_int_equal(missing[b], 4096 / SHARDS);
    for (size_t i = 0; i < N; i++)
      assert_true(i == 12345 ? fabsf(z[i] - 1) < 1e-5f : fabsf(z[i]) < 0.5f / (SHARDS - 1));
  }
}

int main(void) {
  print_message("seed %u\n", SEED);
  rng_state = SEED;
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(plan__refuses_other_block_lengths),
    cmocka_unit_test(places__are_a_bijection_for_all_lengths),
    cmocka_unit_test(places__of_huge_tensors),
    cmocka_unit_test(places__equal_the_definition),
    cmocka_unit_test(reference__equals_the_matrix),
    cmocka_unit_test(transform__equals_the_definition_and_is_undone),
    cmocka_unit_test(transform__isas_agree_to_the_bit),
    cmocka_unit_test(transform__keeps_the_norm_and_is_linear),
    cmocka_unit_test(transform__of_integers_in_even_blocks_is_exact),
    cmocka_unit_test(transform__nan_stays_in_its_block),
    cmocka_unit_test(transform__other_types_write_nothing),
    cmocka_unit_test(signs__are_balanced_and_independent),
    cmocka_unit_test(seeds__are_fixed_and_differ_by_every_field),
    cmocka_unit_test(lost__counts_equal_counting_one_by_one),
    cmocka_unit_test(lost__a_packet_costs_every_block_little),
    cmocka_unit_test(lost__rescaled_estimate_is_unbiased),
    cmocka_unit_test(lost__block_is_scaled_by_length_over_received),
    cmocka_unit_test(lost__a_shard_leaves_noise_and_no_copies),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
