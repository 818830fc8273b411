/* reduce_reference.h - what the tests of reductions share: halves by their definition, comparison, every
 * instruction set in turn. Shares no code with what it checks. */
#ifndef TB_TEST_REDUCE_REFERENCE_H
#define TB_TEST_REDUCE_REFERENCE_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "compute/kernels.h"

#define SEED 987654321u

static uint64_t rng_state;
static uint64_t rng(void) {
  uint64_t z = rng_state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

/* ---- reference: halves by their definition ---- */

static double half_value(tb_dtype t, uint16_t h) {
  int mant_bits = t == TB_F16 ? 10 : 7, bias = t == TB_F16 ? 15 : 127, top = t == TB_F16 ? 31 : 255;
  int e = (h & 0x7fff) >> mant_bits, m = h & ((1 << mant_bits) - 1);
  double v = e == top ? (m ? NAN : INFINITY)
                      : ldexp(m + (e ? 1 << mant_bits : 0), (e ? e : 1) - bias - mant_bits);
  return h & 0x8000 ? -v : v;
}

static inline uint16_t half_of(tb_dtype t, float x) {
  int mant_bits = t == TB_F16 ? 10 : 7, bias = t == TB_F16 ? 15 : 127, top = t == TB_F16 ? 31 : 255, e;
  uint16_t sign = signbit(x) ? 0x8000 : 0, infinity = (uint16_t)(top << mant_bits);
  if (isnan(x)) return sign | infinity | (uint16_t)(1 << (mant_bits - 1));
  if (isinf(x)) return sign | infinity;
  if (x == 0) return sign;
  double v = fabs((double)x);
  (void)frexp(v, &e);
  int unit = e - 1 - mant_bits; /* exponent of the last place */
  if (unit < 1 - bias - mant_bits) unit = 1 - bias - mant_bits;
  double places = nearbyint(ldexp(v, -unit)); /* nearest even */
  /* Places count on through the exponents: 2 * 2^mant_bits of one unit are 2^mant_bits of the next. */
  uint32_t h = (uint32_t)places + ((uint32_t)(unit + bias + mant_bits - 1) << mant_bits);
  return sign | (uint16_t)(h > infinity ? infinity : h);
}

/* accumulators: bits, except that any NaN is NaN */
static inline bool same(tb_dtype t, const void *got, const void *want) {
  if (t == TB_F64) {
    double a, b;
    memcpy(&a, got, 8), memcpy(&b, want, 8);
    if (isnan(a) && isnan(b)) return true;
  } else if (tb_dtype_is_float(t)) {
    float a, b;
    memcpy(&a, got, 4), memcpy(&b, want, 4);
    if (isnan(a) && isnan(b)) return true;
  }
  return memcmp(got, want, tb_acc_size(t)) == 0;
}

static inline bool same_half(tb_dtype t, uint16_t got, uint16_t want) {
  return got == want || (isnan(half_value(t, got)) && isnan(half_value(t, want)));
}

/* Calls check with each instruction set in force. */
static void on_each_isa(void (*check)(void)) {
  const tb_kernels *k;
  for (unsigned i = 0; (k = tb_kernels_at(i)); i++) {
    tb_kernels_use(k);
    print_message("  %s\n", k->isa);
    rng_state = SEED;
    check();
  }
  tb_kernels_use(NULL);
}

#endif
