/* reduce.c - the reduction calls of compute.h on top of the loops of the best instruction set.
 *
 * An unknown type or operation does nothing: callers have validated both, and writing nothing is the one harmless
 * answer where no error can be returned.
 */
#include <string.h>
#include "compute/kernels.h"

/* Halves are widened in blocks that stay in the first-level cache (2 KiB) beside the accumulator. */
#define BLOCK 512

static bool is_half(tb_dtype t) { return t == TB_F16 || t == TB_BF16; }

static size_t block_of(size_t left) { return left < BLOCK ? left : BLOCK; }

static void widen(const tb_kernels *k, tb_dtype t, float *out, const void *x, size_t n) {
  (t == TB_F16 ? k->widen_f16 : k->widen_bf16)(out, x, n);
}

static void narrow(const tb_kernels *k, tb_dtype t, void *out, const float *x, size_t n) {
  (t == TB_F16 ? k->narrow_f16 : k->narrow_bf16)(out, x, n);
}

/* NULL for what is unknown. */
static tb_combine_fn *loop_for(const tb_kernels *k, tb_redop op, tb_dtype t) {
  static const uint8_t loop[TB_REDOPS] = {
    [TB_SUM] = TB_LOOP_SUM, [TB_AVG] = TB_LOOP_SUM, [TB_MIN] = TB_LOOP_MIN,
    [TB_MAX] = TB_LOOP_MAX, [TB_PROD] = TB_LOOP_PROD,
  };
  if ((unsigned)op >= TB_REDOPS || (unsigned)t >= TB_DTYPES) return NULL;
  return k->combine[is_half(t) ? TB_F32 : t][loop[op]];
}

void tb_reduce_first(tb_dtype t, void *acc, const void *x, size_t n) {
  if (n == 0) return;
  if (is_half(t)) widen(tb_kernels_now(), t, acc, x, n);
  else memcpy(acc, x, n * tb_dtype_size(t));
}

void tb_reduce_pair(tb_redop op, tb_dtype t, void *acc, const void *x, const void *y, size_t n) {
  const tb_kernels *k = tb_kernels_now();
  tb_combine_fn *combine = loop_for(k, op, t);
  if (!combine) return;
  if (!is_half(t)) {
    combine(acc, x, y, n);
    return;
  }
  float *a = acc;
  const uint8_t *p = x, *q = y;
  _Alignas(64) float wide[BLOCK];
  for (size_t i = 0, m; i < n; i += m) {
    m = block_of(n - i);
    widen(k, t, a + i, p + 2 * i, m);
    widen(k, t, wide, q + 2 * i, m);
    combine(a + i, a + i, wide, m);
  }
}

void tb_reduce_next(tb_redop op, tb_dtype t, void *acc, const void *x, size_t n) {
  const tb_kernels *k = tb_kernels_now();
  tb_combine_fn *combine = loop_for(k, op, t);
  if (!combine) return;
  if (!is_half(t)) {
    combine(acc, acc, x, n);
    return;
  }
  float *a = acc;
  const uint8_t *p = x;
  _Alignas(64) float wide[BLOCK];
  for (size_t i = 0, m; i < n; i += m) {
    m = block_of(n - i);
    widen(k, t, wide, p + 2 * i, m);
    combine(a + i, a + i, wide, m);
  }
}

/* When out is acc, a block's halves land on accumulators that were read with this block or an earlier one. */
static void last_half(const tb_kernels *k, tb_dtype t, void *out, const float *acc, uint32_t mul, uint32_t div,
                      size_t n) {
  uint8_t *o = out;
  _Alignas(64) float scaled[BLOCK];
  for (size_t i = 0, m; i < n; i += m) {
    m = block_of(n - i);
    if (mul == div) memcpy(scaled, acc + i, m * sizeof *scaled);
    else k->scale_f32(scaled, acc + i, mul, div, m);
    narrow(k, t, o + 2 * i, scaled, m);
  }
}

void tb_reduce_last(tb_dtype t, void *out, const void *acc, uint32_t mul, uint32_t div, size_t n) {
  const tb_kernels *k = tb_kernels_now();
  if (n == 0) return;
  if (is_half(t)) {
    if (mul == div && out != acc) narrow(k, t, out, acc, n);
    else last_half(k, t, out, acc, mul, div, n);
  } else if (mul != div && t == TB_F32) {
    k->scale_f32(out, acc, mul, div, n);
  } else if (mul != div && t == TB_F64) {
    k->scale_f64(out, acc, mul, div, n);
  } else if (out != acc) {
    memcpy(out, acc, n * tb_dtype_size(t));
  }
}
