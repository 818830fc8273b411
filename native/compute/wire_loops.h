/* wire_loops.h - the loops of the wire encodings (wire_type.c); kernels_loops.h includes it for each set. */

/* Bits of floats are ordered as their magnitudes are, NaN above infinity. Signed: SIMD sets compare signed first. */
static TB_TARGET uint32_t most_f32(const float *x, size_t n) {
  const i32 *p = (const i32 *)(const void *)x;
  int32_t most = 0;
  for (size_t i = 0; i < n; i++) {
    int32_t magnitude = p[i] & 0x7fffffff;
    most = magnitude > most ? magnitude : most;
  }
  return (uint32_t)most;
}

/* The fraction above floor(y) is exact for |y| >= 1, and otherwise within 2^-25. Adding a random number to y and
 * cutting off would lose those of its bits that y has no room for. */
static TB_TARGET void quantise(void *out, const float *x, float scale, uint64_t seed, uint32_t first, size_t n) {
  i8 *o = out;
  const f32 *p = x;
  TB_INDEPENDENT
  for (size_t i = 0; i < n; i++) {
    float y = p[i] / scale;
    int32_t q = (int32_t)y;
    q -= (float)q > y;
    float random = (float)(int32_t)(tb_random32(seed, first + (uint32_t)i) >> 8) * 0x1p-24f;
    q += random < y - (float)q;
    q = q > 127 ? 127 : q;
    o[i] = (i8)(q < -127 ? -127 : q);
  }
}

static TB_TARGET void restore(float *out, const void *q, float scale, size_t n) {
  f32 *o = out;
  const i8 *p = q;
  TB_INDEPENDENT
  for (size_t i = 0; i < n; i++) o[i] = (float)p[i] * scale;
}

/* Rounded to odd: what is inexact gets an odd last place, so that rounding it once more to a half goes the way that
 * rounding the double would have gone. Infinity stays, and is also what lies beyond float32. */
static TB_TARGET void narrow_f64(float *out, const void *x, size_t n) {
  f32 *o = out;
  const f64 *p = x;
  TB_INDEPENDENT
  for (size_t i = 0; i < n; i++) {
    double exact = p[i];
    float nearest = (float)exact;
    uint32_t u = tb_bits_of(nearest);
    double above = fabs((double)nearest) - fabs(exact);
    uint32_t odd = above > 0 ? u - 1 : u + 1;
    int inexact = (above != 0) & (fabs(exact) <= DBL_MAX) & (fabsf(nearest) <= FLT_MAX);
    o[i] = tb_float_of(inexact & ~u & 1 ? odd : u);
  }
}

static TB_TARGET void widen_f64(void *out, const float *x, size_t n) {
  f64 *o = out;
  const f32 *p = x;
  TB_INDEPENDENT
  for (size_t i = 0; i < n; i++) o[i] = (double)p[i];
}

static TB_TARGET void minus_f32(void *out, const void *x, const float *y, size_t n) {
  f32 *o = out;
  const f32 *p = x, *q = y;
  TB_INDEPENDENT
  for (size_t i = 0; i < n; i++) o[i] = p[i] - q[i];
}

static TB_TARGET void minus_f64(void *out, const void *x, const float *y, size_t n) {
  f64 *o = out;
  const f64 *p = x;
  const f32 *q = y;
  TB_INDEPENDENT
  for (size_t i = 0; i < n; i++) o[i] = p[i] - (double)q[i];
}
