/* kernels_avx512.c - the loops for AVX-512 F, BW, DQ and VL. */
#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
/* The vectoriser at -O2 takes no loop of unknown length; nobody reads the floating-point exception flags. */
#pragma GCC optimize("O3", "no-trapping-math")
#endif
#include <immintrin.h>
#include "compute/half.h"
#include "compute/kernels.h"

#define TB_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define TB_KERNELS tb_kernels_avx512
#define TB_ISA "avx512f"
#define TB_USABLE usable
#define TB_F16_WIDEN widen_f16_avx512
#define TB_F16_NARROW narrow_f16_avx512

static bool usable(void) {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static TB_TARGET void widen_f16_avx512(float *out, const void *x, size_t n) {
  const unsigned char *p = x;
  size_t i = 0;
  for (; i + 16 <= n; i += 16)
    _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i_u *)(const void *)(p + 2 * i))));
  if (i < n) {
    __mmask16 tail = (__mmask16)((1u << (n - i)) - 1);
    _mm512_mask_storeu_ps(out + i, tail, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(tail, p + 2 * i)));
  }
}

static TB_TARGET void narrow_f16_avx512(void *out, const float *x, size_t n) {
  unsigned char *o = out;
  size_t i = 0;
  for (; i + 16 <= n; i += 16)
    _mm256_storeu_si256((__m256i_u *)(void *)(o + 2 * i),
                        _mm512_cvtps_ph(_mm512_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
  if (i < n) {
    __mmask16 tail = (__mmask16)((1u << (n - i)) - 1);
    _mm256_mask_storeu_epi16(o + 2 * i, tail,
                             _mm512_cvtps_ph(_mm512_maskz_loadu_ps(tail, x + i), _MM_FROUND_TO_NEAREST_INT));
  }
}

/* x * sign + its partner: the product is exact, so this is one rounding, that of x + partner or partner - x. */
#define LEVEL(x, partner, ...) _mm512_fmadd_ps(x, _mm512_setr_ps(__VA_ARGS__), partner)
static inline TB_TARGET __attribute__((always_inline)) __m512 lanes_f32(__m512 x) {
  x = LEVEL(x, _mm512_permute_ps(x, 0xb1), 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1);
  x = LEVEL(x, _mm512_permute_ps(x, 0x4e), 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1);
  x = LEVEL(x, _mm512_shuffle_f32x4(x, x, 0xb1), 1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1);
  return LEVEL(x, _mm512_shuffle_f32x4(x, x, 0x4e), 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1);
}
#undef LEVEL
#define LEVEL(x, partner, ...) _mm512_fmadd_pd(x, _mm512_setr_pd(__VA_ARGS__), partner)
static inline TB_TARGET __attribute__((always_inline)) __m512d lanes_f64(__m512d x) {
  x = LEVEL(x, _mm512_permute_pd(x, 0x55), 1, -1, 1, -1, 1, -1, 1, -1);
  x = LEVEL(x, _mm512_permutex_pd(x, 0x4e), 1, 1, -1, -1, 1, 1, -1, -1);
  return LEVEL(x, _mm512_shuffle_f64x2(x, x, 0x4e), 1, 1, 1, 1, -1, -1, -1, -1);
}
#undef LEVEL
#define W_REGS_LOG2 4
#define TB_VECTOR_F32 __m512
#define TB_VECTOR_F64 __m512d
#define TB_LANES_F32 lanes_f32
#define TB_LANES_F64 lanes_f64

#include "compute/kernels_loops.h"
#else
typedef int tb_kernels_avx512_not_here; /* a translation unit may not be empty */
#endif
