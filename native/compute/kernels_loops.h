/* kernels_loops.h - the loops themselves, written once and compiled once per instruction set.
 *
 * A file kernels_<isa>.c defines
 *   TB_TARGET          function attribute that selects the instruction set (may be empty)
 *   TB_KERNELS         name of the table to define
 *   TB_ISA, TB_USABLE  its first two members
 *   TB_F16_WIDEN, TB_F16_NARROW   optional: conversion loops of its own for float16
 *   TB_VECTOR_F32, TB_LANES_F32, ..._F64, W_REGS_LOG2   optional: what hadamard_loops.h asks for
 * and includes this file once. Everything relies on the compiler's vectoriser: plain loops, no branches, no promise of
 * alignment. "No dependence between iterations" is promised instead of "no alias", since out may be one of the inputs.
 */
#include <float.h>
#include <math.h>
#include "compute/half.h"
#include "compute/kernels.h"
#include "compute/seed.h"

#if defined(__clang__)
#define TB_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define TB_INDEPENDENT _Pragma("GCC ivdep")
#endif

/* Element types as they lie in a buffer: any alignment, any effective type. */
#define TB_BUFFER(type, name) typedef type name __attribute__((aligned(1), may_alias))
TB_BUFFER(float, f32);
TB_BUFFER(double, f64);
TB_BUFFER(int8_t, i8);
TB_BUFFER(uint8_t, u8);
TB_BUFFER(int16_t, i16);
TB_BUFFER(uint16_t, u16);
TB_BUFFER(int32_t, i32);
TB_BUFFER(uint32_t, u32);
TB_BUFFER(int64_t, i64);
TB_BUFFER(uint64_t, u64);

#define TB_LOOP(name, type, expression)                                               \
  static TB_TARGET void name(void *out, const void *x, const void *y, size_t n) {     \
    type *o = out;                                                                    \
    const type *p = x, *q = y;                                                        \
    TB_INDEPENDENT                                                                    \
    for (size_t i = 0; i < n; i++) {                                                  \
      type a = p[i], b = q[i];                                                        \
      o[i] = (type)(expression);                                                      \
    }                                                                                 \
  }

/* 1u: 16-bit factors would otherwise become signed ints, whose product can overflow. Sum and product of signed types
 * are the unsigned loops: two's complement makes them the same bits, and wrapping is defined there. */
#define TB_WRAPPING(type) TB_LOOP(sum_##type, type, 1u * a + b) TB_LOOP(prod_##type, type, 1u * a * b)
#define TB_ORDERED(type) TB_LOOP(min_##type, type, a < b ? a : b) TB_LOOP(max_##type, type, a > b ? a : b)
/* A NaN wins from either side: a, if it is one, by the first test; b because no comparison with it holds.
 * Of two zeros b is taken, whatever their signs. */
#define TB_FLOATING(type)                                          \
  TB_LOOP(sum_##type, type, a + b) TB_LOOP(prod_##type, type, a * b) \
  TB_LOOP(min_##type, type, ((a != a) | (a < b)) ? a : b)          \
  TB_LOOP(max_##type, type, ((a != a) | (a > b)) ? a : b)

TB_WRAPPING(u8) TB_ORDERED(u8) TB_ORDERED(i8)
TB_WRAPPING(u16) TB_ORDERED(u16) TB_ORDERED(i16)
TB_WRAPPING(u32) TB_ORDERED(u32) TB_ORDERED(i32)
TB_WRAPPING(u64) TB_ORDERED(u64) TB_ORDERED(i64)
TB_FLOATING(f32)
TB_FLOATING(f64)

/* One multiplication in double instead of a division per element. factor and product each err by at most 2^-53
 * relative, so a result that float32 can represent comes out exact, anything else within 0.5 + 2^-28 ulp; and
 * nothing overflows before the final rounding. */
static TB_TARGET void scale_f32(void *out, const void *x, uint32_t mul, uint32_t div, size_t n) {
  f32 *o = out;
  const f32 *p = x;
  double factor = (double)mul / (double)div;
  TB_INDEPENDENT
  for (size_t i = 0; i < n; i++) o[i] = (f32)((double)p[i] * factor);
}

/* float64 has no wider type to go to: multiply, then divide, so that an exact product divided exactly stays exact
 * (otherwise within 1.5 ulp, above the subnormals). Where the product overflows the division goes first. */
static TB_TARGET void scale_f64(void *out, const void *x, uint32_t mul, uint32_t div, size_t n) {
  f64 *o = out;
  const f64 *p = x;
  double m = mul, d = div;
  TB_INDEPENDENT
  for (size_t i = 0; i < n; i++) {
    double a = p[i], product = a * m;
    int fits = fabs(product) <= DBL_MAX;
    double quotient = (fits ? product : a) / d;
    o[i] = quotient * (fits ? 1.0 : m);
  }
}

#ifndef TB_F16_WIDEN
#define TB_F16_WIDEN widen_f16
#define TB_F16_NARROW narrow_f16
static TB_TARGET void widen_f16(float *out, const void *x, size_t n) {
  f32 *o = out;
  const u16 *p = x;
  TB_INDEPENDENT
  for (size_t i = 0; i < n; i++) o[i] = tb_f16_widen(p[i]);
}

static TB_TARGET void narrow_f16(void *out, const float *x, size_t n) {
  u16 *o = out;
  const f32 *p = x;
  TB_INDEPENDENT
  for (size_t i = 0; i < n; i++) o[i] = tb_f16_narrow(p[i]);
}
#endif

static TB_TARGET void widen_bf16(float *out, const void *x, size_t n) {
  f32 *o = out;
  const u16 *p = x;
  TB_INDEPENDENT
  for (size_t i = 0; i < n; i++) o[i] = tb_bf16_widen(p[i]);
}

static TB_TARGET void narrow_bf16(void *out, const float *x, size_t n) {
  u16 *o = out;
  const f32 *p = x;
  TB_INDEPENDENT
  for (size_t i = 0; i < n; i++) o[i] = tb_bf16_narrow(p[i]);
}

#include "compute/wire_loops.h"

#ifdef TB_VECTOR_F32
#define W_INDEPENDENT
#else
#define W_INDEPENDENT TB_INDEPENDENT
#define W_REGS_LOG2 3
#define TB_VECTOR_F32 f32
#define TB_VECTOR_F64 f64
#define TB_LANES_F32(v) (v)
#define TB_LANES_F64(v) (v)
#endif
#define W_ELEM f32
#define W_BITS u32
#define W_VECTOR TB_VECTOR_F32
#define W_LANES TB_LANES_F32
#define W_NAME(name) name##_w32
#include "compute/hadamard_loops.h"
#define W_ELEM f64
#define W_BITS u64
#define W_VECTOR TB_VECTOR_F64
#define W_LANES TB_LANES_F64
#define W_NAME(name) name##_w64
#include "compute/hadamard_loops.h"

#define TB_ROW(type, wrapping)                                                                              \
  {[TB_LOOP_SUM] = sum_##wrapping, [TB_LOOP_MIN] = min_##type, [TB_LOOP_MAX] = max_##type,                  \
   [TB_LOOP_PROD] = prod_##wrapping}

const tb_kernels TB_KERNELS = {
  .isa = TB_ISA,
  .usable = TB_USABLE,
  .combine = {
    [TB_F32] = TB_ROW(f32, f32), [TB_F64] = TB_ROW(f64, f64),
    [TB_I8] = TB_ROW(i8, u8),    [TB_U8] = TB_ROW(u8, u8),
    [TB_I16] = TB_ROW(i16, u16), [TB_U16] = TB_ROW(u16, u16),
    [TB_I32] = TB_ROW(i32, u32), [TB_U32] = TB_ROW(u32, u32),
    [TB_I64] = TB_ROW(i64, u64), [TB_U64] = TB_ROW(u64, u64),
  },
  .widen_f16 = TB_F16_WIDEN,
  .widen_bf16 = widen_bf16,
  .narrow_f16 = TB_F16_NARROW,
  .narrow_bf16 = narrow_bf16,
  .scale_f32 = scale_f32,
  .scale_f64 = scale_f64,
  .most_f32 = most_f32,
  .quantise = quantise,
  .restore = restore,
  .narrow_f64 = narrow_f64,
  .widen_f64 = widen_f64,
  .minus_f32 = minus_f32,
  .minus_f64 = minus_f64,
  .wht_f32 = {signs_w32, wht_w32, deal_w32, collect_w32},
  .wht_f64 = {signs_w64, wht_w64, deal_w64, collect_w64},
};
