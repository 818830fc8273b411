/* half.h - float16 and bfloat16 to float32 and back, one element, in portable C.
 *
 * Private to compute/. Written without branches and without table look-ups so that a compiler turns loops over them
 * into vector code. They give bit for bit what the F16C instructions give (signalling NaNs become quiet), so all
 * instruction sets agree. No intermediate float is subnormal: a thread that flushes subnormals to zero, as training
 * frameworks like to set up, still converts correctly. They rely on the rounding mode being "nearest even".
 */
#ifndef TB_COMPUTE_HALF_H
#define TB_COMPUTE_HALF_H
#include <stdint.h>
#include <string.h>

#define TB_INLINE static inline __attribute__((always_inline))

TB_INLINE uint32_t tb_bits_of(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}

TB_INLINE float tb_float_of(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}

TB_INLINE float tb_f16_widen(uint16_t h) {
  uint32_t magnitude = h & 0x7fffu;
  uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
  uint32_t normal = (magnitude << 13) + (112u << 23); /* 112 = 127 - 15, the difference of the exponent biases */
  uint32_t special = (magnitude << 13) | 0x7f800000u | (magnitude > 0x7c00u ? 0x00400000u : 0u);
  /* A subnormal is its mantissa times 2^-24, which is a normal float. (int32_t): SIMD sets convert signed only. */
  uint32_t subnormal = tb_bits_of((float)(int32_t)magnitude * 0x1p-24f);
  uint32_t u = magnitude >= 0x7c00u ? special : normal;
  return tb_float_of((magnitude < 0x0400u ? subnormal : u) | sign);
}

TB_INLINE uint16_t tb_f16_narrow(float x) {
  uint32_t u = tb_bits_of(x);
  uint32_t sign = (u >> 16) & 0x8000u;
  uint32_t magnitude = u & 0x7fffffffu;
  /* Half a unit of the last kept place, less one where that place is even: ties go to even. A carry out of the
   * mantissa runs into the exponent, which is what rounding up means. */
  uint32_t normal = (magnitude - (112u << 23) + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
  /* The unit of floats in [0.5, 1) is 2^-24, the unit of float16 subnormals: the addition does the rounding. */
  uint32_t subnormal = tb_bits_of(tb_float_of(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x03ffu);
  uint32_t h = magnitude < 0x38800000u ? subnormal : normal; /* 2^-14 */
  h = magnitude >= 0x477ff000u ? 0x7c00u : h;                /* 65520 and above round to infinity */
  h = magnitude > 0x7f800000u ? nan : h;
  return (uint16_t)(h | sign);
}

TB_INLINE float tb_bf16_widen(uint16_t h) { return tb_float_of((uint32_t)h << 16); }

TB_INLINE uint16_t tb_bf16_narrow(float x) {
  uint32_t u = tb_bits_of(x);
  uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  uint32_t nan = (u >> 16) | 0x0040u; /* rounding could carry a NaN over into zero */
  return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

#endif
