/* test_half.c - float16 and bfloat16 conversions, exhaustively, on every instruction set this machine has. */
#include "reduce_reference.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static uint16_t all_halves[1 << 16];
static float widened[1 << 16], probes[5 << 16];
static uint16_t narrowed[5 << 16], want_narrowed[5 << 16];
static float want_widened[1 << 16];

static bool same_float(float a, float b) { return same(TB_F32, &a, &b); }

static void check_half(tb_dtype t) {
  size_t n = 1 << 16, m = 0;
  for (size_t i = 0; i < n; i++) all_halves[i] = (uint16_t)i, want_widened[i] = (float)half_value(t, (uint16_t)i);
  for (size_t i = 0; i < n; i++) { /* itself, the middle to its upper neighbour, and the floats next to the middle */
    float v = want_widened[i], w = want_widened[(i + 1) & 0xffff];
    float middle = (float)(((double)v + w) / 2);
    if ((i & 0x7fff) == (t == TB_F16 ? 0x7bff : 0x7f7f)) /* the upper neighbour is infinity */
      middle = (float)(t == TB_F16 ? 65520 : 0x1.ffp127) * (i >> 15 ? -1 : 1);
    probes[m++] = v;
    probes[m++] = middle;
    probes[m++] = nextafterf(middle, INFINITY);
    probes[m++] = nextafterf(middle, -INFINITY);
    uint32_t bits = (uint32_t)rng();
    if (i % 16 == 0) bits |= 0x7f800000u; /* NaNs, also such as keep none of their bits in a half */
    if (i % 256 == 0) bits = 0x7f800001u;
    memcpy(&probes[m++], &bits, 4);
  }
  for (size_t i = 0; i < m; i++) want_narrowed[i] = half_of(t, probes[i]);
  for (int flush = 0; flush < 2; flush++) {
#if defined(__x86_64__)
    unsigned mode = _mm_getcsr();
    if (flush) _mm_setcsr(mode | 0x8040); /* subnormals to zero, as training frameworks set it */
#endif
    tb_reduce_first(t, widened, all_halves, n);
    tb_reduce_last(t, narrowed, probes, 1, 1, m);
#if defined(__x86_64__)
    _mm_setcsr(mode);
#endif
    for (size_t i = 0; i < n; i++)
      if (!same_float(widened[i], want_widened[i]))
        fail_msg("%s %s: 0x%04zx widened to %a, not %a", tb_compute_isa(), tb_dtype_name(t), i, widened[i],
                 want_widened[i]);
    for (size_t i = 0; i < m; i++)
      if (!same_half(t, narrowed[i], want_narrowed[i]))
        fail_msg("%s %s: %a narrowed to 0x%04x, not 0x%04x", tb_compute_isa(), tb_dtype_name(t), probes[i], narrowed[i],
                 want_narrowed[i]);
  }
}

static void check_halves(void) {
  check_half(TB_F16);
  check_half(TB_BF16);
}

static void halves__all_65536_and_their_midpoints(void **state) {
  (void)state;
  on_each_isa(check_halves);
}

static void halves__isas_agree_on_nan_bits(void **state) {
  (void)state;
  for (int ti = TB_F16; ti <= TB_BF16; ti++) {
    static uint16_t got[1 << 16], first[1 << 16];
    for (size_t i = 0; i < 1 << 16; i++) all_halves[i] = (uint16_t)i;
    const tb_kernels *k;
    for (unsigned j = 0; (k = tb_kernels_at(j)); j++) {
      tb_kernels_use(k);
      tb_reduce_first((tb_dtype)ti, widened, all_halves, 1 << 16);
      tb_reduce_last((tb_dtype)ti, got, widened, 1, 1, 1 << 16);
      if (j == 0) memcpy(first, got, sizeof got);
      assert_memory_equal(got, first, sizeof got);
    }
    tb_kernels_use(NULL);
  }
}

int main(void) {
  print_message("seed %u\n", SEED);
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(halves__all_65536_and_their_midpoints),
    cmocka_unit_test(halves__isas_agree_on_nan_bits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
