/* elements.c - whole-array arithmetic on values that are set aside between rounds: rarely much, never on a frame's way,
 * so one portable loop per type. Blocks keep the widened values of halves in the first-level cache. */
#include <math.h>
#include <string.h>
#include "compute/compute.h"
#include "compute/half.h"

enum { BLOCK = 256 };

/* Values as doubles: all four float types fit. */
static void load(tb_dtype t, double *out, const void *x, size_t n) {
  const uint8_t *p = x;
  for (size_t i = 0; i < n; i++) {
    uint16_t h;
    float f;
    switch (t) {
    case TB_F32: memcpy(&f, p + 4 * i, sizeof f); out[i] = f; break;
    case TB_F64: memcpy(&out[i], p + 8 * i, sizeof out[i]); break;
    case TB_F16: memcpy(&h, p + 2 * i, sizeof h); out[i] = tb_f16_widen(h); break;
    default: memcpy(&h, p + 2 * i, sizeof h); out[i] = tb_bf16_widen(h); break;
    }
  }
}

/* Sums of two floats are exact enough in double to be rounded once: 53 >= 2 * 24 + 2 bits. Halves go through float32,
 * as everywhere: 24 >= 2 * 11 + 2 bits. */
static void store(tb_dtype t, void *out, const double *x, size_t n) {
  uint8_t *p = out;
  for (size_t i = 0; i < n; i++) {
    uint16_t h;
    float f = (float)x[i];
    switch (t) {
    case TB_F32: memcpy(p + 4 * i, &f, sizeof f); break;
    case TB_F64: memcpy(p + 8 * i, &x[i], sizeof x[i]); break;
    case TB_F16: h = tb_f16_narrow(f); memcpy(p + 2 * i, &h, sizeof h); break;
    default: h = tb_bf16_narrow(f); memcpy(p + 2 * i, &h, sizeof h); break;
    }
  }
}

static size_t block_of(size_t left) { return left < BLOCK ? left : BLOCK; }

static void combine(tb_dtype t, void *out, const void *x, double sign, size_t n) {
  double a[BLOCK], b[BLOCK];
  size_t size = tb_dtype_size(t);
  if (!tb_dtype_is_float(t)) return;
  for (size_t i = 0, m; i < n; i += m) {
    m = block_of(n - i);
    load(t, a, (uint8_t *)out + i * size, m);
    load(t, b, (const uint8_t *)x + i * size, m);
    for (size_t k = 0; k < m; k++) a[k] += sign * b[k];
    store(t, (uint8_t *)out + i * size, a, m);
  }
}

void tb_add(tb_dtype t, void *out, const void *x, size_t n) { combine(t, out, x, 1, n); }
void tb_subtract(tb_dtype t, void *out, const void *x, size_t n) { combine(t, out, x, -1, n); }

double tb_mass(tb_dtype t, const void *x, size_t n) {
  double a[BLOCK], mass = 0;
  if (!tb_dtype_is_float(t)) return 0;
  for (size_t i = 0, m; i < n; i += m) {
    m = block_of(n - i);
    load(t, a, (const uint8_t *)x + i * tb_dtype_size(t), m);
    for (size_t k = 0; k < m; k++) mass += fabs(a[k]);
  }
  return mass;
}
