/* kernels_avx2.c - the loops for AVX2 with F16C. */
#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
/* The vectoriser at -O2 takes no loop of unknown length; nobody reads the floating-point exception flags. */
#pragma GCC optimize("O3", "no-trapping-math")
#endif
#include <cpuid.h>
#include <immintrin.h>
#include "compute/half.h"
#include "compute/kernels.h"

#define TB_TARGET __attribute__((target("avx2,f16c")))
#define TB_KERNELS tb_kernels_avx2
#define TB_ISA "avx2"
#define TB_USABLE usable
#define TB_F16_WIDEN widen_f16_f16c
#define TB_F16_NARROW narrow_f16_f16c

/* "f16c" is not a name that every compiler's __builtin_cpu_supports knows; that the operating system keeps the wide
 * registers is what the test for avx2 covers. */
static bool usable(void) {
  unsigned a, b, c, d;
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static TB_TARGET void widen_f16_f16c(float *out, const void *x, size_t n) {
  const unsigned char *p = x;
  size_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i_u *)(const void *)(p + 2 * i))));
  for (; i < n; i++) {
    uint16_t h;
    memcpy(&h, p + 2 * i, sizeof h);
    float v = tb_f16_widen(h);
    memcpy(out + i, &v, sizeof v);
  }
}

static TB_TARGET void narrow_f16_f16c(void *out, const float *x, size_t n) {
  unsigned char *o = out;
  size_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128((__m128i_u *)(void *)(o + 2 * i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
  for (; i < n; i++) {
    float v;
    memcpy(&v, x + i, sizeof v);
    uint16_t h = tb_f16_narrow(v);
    memcpy(o + 2 * i, &h, sizeof h);
  }
}

/* x with some signs flipped + its partner: x + partner or partner - x. */
#define LEVEL(x, partner, ...) _mm256_add_ps(_mm256_xor_ps(x, _mm256_setr_ps(__VA_ARGS__)), partner)
static inline TB_TARGET __attribute__((always_inline)) __m256 lanes_f32(__m256 x) {
  x = LEVEL(x, _mm256_permute_ps(x, 0xb1), 0.f, -0.f, 0.f, -0.f, 0.f, -0.f, 0.f, -0.f);
  x = LEVEL(x, _mm256_permute_ps(x, 0x4e), 0.f, 0.f, -0.f, -0.f, 0.f, 0.f, -0.f, -0.f);
  return LEVEL(x, _mm256_permute2f128_ps(x, x, 1), 0.f, 0.f, 0.f, 0.f, -0.f, -0.f, -0.f, -0.f);
}
#undef LEVEL
#define LEVEL(x, partner, ...) _mm256_add_pd(_mm256_xor_pd(x, _mm256_setr_pd(__VA_ARGS__)), partner)
static inline TB_TARGET __attribute__((always_inline)) __m256d lanes_f64(__m256d x) {
  x = LEVEL(x, _mm256_permute_pd(x, 0x5), 0.0, -0.0, 0.0, -0.0);
  return LEVEL(x, _mm256_permute2f128_pd(x, x, 1), 0.0, 0.0, -0.0, -0.0);
}
#undef LEVEL
#define W_REGS_LOG2 3
#define TB_VECTOR_F32 __m256
#define TB_VECTOR_F64 __m256d
#define TB_LANES_F32 lanes_f32
#define TB_LANES_F64 lanes_f64

#include "compute/kernels_loops.h"
#else
typedef int tb_kernels_avx2_not_here; /* a translation unit may not be empty */
#endif
