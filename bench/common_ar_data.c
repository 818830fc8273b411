/* common_ar_data.c - see common_ar_data.h. Everything is computed in double, in which all values used here are exact,
 * and brought to the element type once, with rounding to nearest even as the library does. */
#include "common_ar_data.h"
#include <math.h>
#include <string.h>

const ar_type ar_types[] = {
    {"float", TB_F32, 4, 1},  {"double", TB_F64, 8, 1}, {"half", TB_F16, 2, 1},   {"bfloat16", TB_BF16, 2, 1},
    {"int8", TB_I8, 1, 0},    {"uint8", TB_U8, 1, 0},   {"int32", TB_I32, 4, 0},  {"uint32", TB_U32, 4, 0},
    {"int64", TB_I64, 8, 0},  {"uint64", TB_U64, 8, 0}, {"int16", TB_I16, 2, 0},  {"uint16", TB_U16, 2, 0},
    {NULL, TB_DTYPES, 0, 0},
};

static uint16_t half_of(double v) {
  /* Values here are zero or in the normal range of a half. */
  if (v == 0) return 0;
  int e;
  double m = frexp(fabs(v), &e); /* v = m * 2^e, m in [0.5, 1) */
  long bits = lrint(m * 2048);   /* 11 significant bits, nearest even */
  if (bits == 2048) { bits = 1024; e++; }
  if (e > 16) return (uint16_t)((v < 0 ? 0x8000 : 0) | 0x7c00);
  return (uint16_t)((v < 0 ? 0x8000 : 0) | ((e + 14) << 10) | (bits & 1023));
}

static double of_half(uint16_t h) {
  int e = (h >> 10) & 31, m = h & 1023;
  double v = e == 0 ? ldexp(m, -24) : e == 31 ? (m ? NAN : INFINITY) : ldexp(m + 1024, e - 25);
  return h & 0x8000 ? -v : v;
}

static uint16_t bfloat_of(double v) {
  float f = (float)v;
  uint32_t u;
  memcpy(&u, &f, 4);
  return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

static double of_bfloat(uint16_t b) {
  uint32_t u = (uint32_t)b << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}

static inline void store(tb_dtype t, void *p, uint64_t i, double v) {
  switch (t) {
    case TB_F32: ((float *)p)[i] = (float)v; break;
    case TB_F64: ((double *)p)[i] = v; break;
    case TB_F16: ((uint16_t *)p)[i] = half_of(v); break;
    case TB_BF16: ((uint16_t *)p)[i] = bfloat_of(v); break;
    case TB_I8: case TB_U8: ((uint8_t *)p)[i] = (uint8_t)(int64_t)v; break; /* integer sums wrap */
    case TB_I16: case TB_U16: ((uint16_t *)p)[i] = (uint16_t)(int64_t)v; break;
    case TB_I32: case TB_U32: ((uint32_t *)p)[i] = (uint32_t)(int64_t)v; break;
    default: ((uint64_t *)p)[i] = (uint64_t)(int64_t)v; break;
  }
}

static inline double load(tb_dtype t, const void *p, uint64_t i) {
  switch (t) {
    case TB_F32: return ((const float *)p)[i];
    case TB_F64: return ((const double *)p)[i];
    case TB_F16: return of_half(((const uint16_t *)p)[i]);
    case TB_BF16: return of_bfloat(((const uint16_t *)p)[i]);
    case TB_I8: return ((const int8_t *)p)[i];
    case TB_U8: return ((const uint8_t *)p)[i];
    case TB_I16: return ((const int16_t *)p)[i];
    case TB_U16: return ((const uint16_t *)p)[i];
    case TB_I32: return ((const int32_t *)p)[i];
    case TB_U32: return ((const uint32_t *)p)[i];
    case TB_I64: return (double)((const int64_t *)p)[i];
    default: return (double)((const uint64_t *)p)[i];
  }
}

/* A cheap hash of the element's index: neighbours and elements a chunk apart get unrelated values, so data that land in
 * the wrong place are seen. */
static inline uint32_t scatter(uint64_t i) { return (uint32_t)((i * 0x9e3779b97f4a7c15ull) >> 40); }

static inline uint32_t value_of(const ar_set *s, uint64_t i) {
  return (scatter(i) + (uint32_t)s->iteration * 13) % s->values;
}

static double contribution(const ar_set *s, uint32_t value, uint32_t element, int rank) {
  if (s->redop == TB_PROD) return element % (uint32_t)s->size == (uint32_t)rank ? 1 + value : 1; /* no overflow */
  if (s->kind == AR_EQUAL) return 1 + value;
  return 1 + (value + 5u * (uint32_t)rank) % s->values;
}

static uint32_t values_that_fit(const ar_type *type, int size) {
  double n = size, fit = AR_PERIOD;
  if (type->is_float) fit = fmin(fit, 16777216 / (n * n));        /* exact in a float32 accumulator, scaled by N */
  if (type->dtype == TB_F16) fit = fmin(fit, 32768 / n);
  if (type->dtype == TB_I8) fit = fmin(fit, 127 / n);
  if (type->dtype == TB_U8) fit = fmin(fit, 255 / n);
  if (type->dtype == TB_I16) fit = fmin(fit, 32767 / n);
  if (type->dtype == TB_U16) fit = fmin(fit, 65535 / n);
  return fit < 1 ? 1 : (uint32_t)fit;
}

void ar_set_init(ar_set *s, const ar_type *type, tb_redop redop, int size, int iteration, int kind) {
  *s = (ar_set){.type = type, .redop = redop, .size = size, .iteration = iteration, .kind = kind};
  s->values = values_that_fit(type, size);
  if (redop == TB_PROD && s->values > 100) s->values = 100;
  for (uint32_t v = 0; v < s->values; v++) {
    double all = contribution(s, v, 0, 0);
    for (int r = 1; r < size; r++) {
      double x = contribution(s, v, 0, r);
      if (redop == TB_SUM || redop == TB_AVG) all += x;
      else if (redop == TB_MIN) all = fmin(all, x);
      else if (redop == TB_MAX) all = fmax(all, x);
      else all *= x;
    }
    if (redop == TB_AVG) all = type->dtype == TB_F64 ? all / size : (double)((float)all / (float)size);
    uint64_t cell;
    store(type->dtype, &cell, 0, all);
    s->expect[v] = load(type->dtype, &cell, 0);
  }
}

void ar_fill(const ar_set *s, int rank, void *x, uint64_t count) {
  for (uint64_t i = 0; i < count; i++)
    store(s->type->dtype, x, i, contribution(s, value_of(s, i), scatter(i), rank));
}

uint64_t ar_wrong(const ar_set *s, const void *out, const uint8_t *mask, uint64_t count) {
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < count; i++)
    if ((!mask || mask[i]) && !(load(s->type->dtype, out, i) == s->expect[value_of(s, i)])) wrong++;
  return wrong;
}

void ar_error(const ar_set *s, const void *out, int committed, uint64_t count, double *error, double *power) {
  double e = 0, p = 0;
  for (uint64_t i = 0; i < count; i++) {
    double full = s->expect[value_of(s, i)], d = (committed ? load(s->type->dtype, out, i) : 0) - full;
    e += d * d;
    p += full * full;
  }
  *error = e;
  *power = p;
}
