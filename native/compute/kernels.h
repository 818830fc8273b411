/* kernels.h - the table of loops that each instruction set fills. Private to compute/, its tests and its bench.
 *
 * Halves have no loops of their own: reduce.c widens a block of them, which stays in the first-level cache, and uses
 * the float32 loops. So an instruction set brings conversions and one loop per (operation, type), nothing else.
 */
#ifndef TB_COMPUTE_KERNELS_H
#define TB_COMPUTE_KERNELS_H
#include "compute/compute.h"

/* out[i] = x[i] op y[i]. out may be x or y; any other overlap is not allowed. Any alignment. */
typedef void tb_combine_fn(void *out, const void *x, const void *y, size_t n);

enum { TB_LOOP_SUM, TB_LOOP_MIN, TB_LOOP_MAX, TB_LOOP_PROD, TB_LOOPS };

typedef struct {
  const char *isa;
  bool (*usable)(void);                            /* this processor and this kernel can run it */
  tb_combine_fn *combine[TB_DTYPES][TB_LOOPS];     /* NULL for the halves */
  void (*widen_f16)(float *out, const void *x, size_t n);
  void (*widen_bf16)(float *out, const void *x, size_t n);
  void (*narrow_f16)(void *out, const float *x, size_t n);
  void (*narrow_bf16)(void *out, const float *x, size_t n);
  void (*scale_f32)(void *out, const void *x, uint32_t mul, uint32_t div, size_t n); /* out may be x */
  void (*scale_f64)(void *out, const void *x, uint32_t mul, uint32_t div, size_t n);
} tb_kernels;

extern const tb_kernels tb_kernels_scalar;
#if defined(__x86_64__)
extern const tb_kernels tb_kernels_avx2, tb_kernels_avx512;
#endif

const tb_kernels *tb_kernels_at(unsigned i);       /* i-th usable set, best first; NULL past the end */
void tb_kernels_use(const tb_kernels *k);          /* for tests and bench; NULL = the best again */

#endif
