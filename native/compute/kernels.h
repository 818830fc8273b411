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

/* The Hadamard transform of one element type (hadamard.c). Any alignment. */
enum { TB_ROWS_MOST_LOG2 = 8, TB_TILE_BLOCKS = 16 };

/* Which row of a block's coefficients lies in row `row` of the panel. A quadratic permutation: neighbouring rows, which
 * are lost together, share no pattern of bits; a multiplication alone would keep their low bits in step. Of those
 * tried these factors leave least of a lone large element in its worst place (of a lost eighth of 256 rows: 0.44 of
 * what rows in order leave; a random order 0.56). */
static inline unsigned tb_row_at(unsigned row, unsigned rows_log2) {
  return row * (49 + 4 * row) & ((1u << rows_log2) - 1);
}

typedef struct {
  size_t width, blocks;    /* elements from row to row of the panel; blocks in the tile */
  unsigned rows_log2, run_log2;
} tb_wht_rows;

typedef struct {
  /* out[i] = in[i] or -in[i] as bit i % 64 of random word first_word + i / 64 says. out may be in. */
  void (*signs)(void *out, const void *in, size_t n, uint64_t seed, uint64_t first_word);
  /* Unscaled transform of 2^log2 elements in place, in natural order. Adds and subtracts in one fixed order. */
  void (*wht)(void *x, unsigned log2);
  /* From blocks side by side to their places in the panel's rows, and back; block b times factor[b]. */
  void (*deal)(void *panel, const void *tile, const double *factor, const tb_wht_rows *r);
  void (*collect)(void *tile, const void *panel, const double *factor, const tb_wht_rows *r);
} tb_wht_kernels;

typedef struct {
  const char *isa;
  bool (*usable)(void);                            /* this processor and this kernel can run it */
  tb_combine_fn *combine[TB_DTYPES][TB_LOOPS];     /* NULL for the halves */
  /* Any alignment, of the floats too. */
  void (*widen_f16)(float *out, const void *x, size_t n);
  void (*widen_bf16)(float *out, const void *x, size_t n);
  void (*narrow_f16)(void *out, const float *x, size_t n);
  void (*narrow_bf16)(void *out, const float *x, size_t n);
  void (*scale_f32)(void *out, const void *x, uint32_t mul, uint32_t div, size_t n); /* out may be x */
  void (*scale_f64)(void *out, const void *x, uint32_t mul, uint32_t div, size_t n);
  /* For the encodings of wire_type.c. */
  uint32_t (*most_f32)(const float *x, size_t n);  /* the largest magnitude, as bits; above infinity with a NaN */
  void (*quantise)(void *out, const float *x, float scale, uint64_t seed, uint32_t first, size_t n);
  void (*restore)(float *out, const void *q, float scale, size_t n);
  void (*narrow_f64)(float *out, const void *x, size_t n); /* rounded to odd, to be narrowed once more */
  void (*widen_f64)(void *out, const float *x, size_t n);
  void (*minus_f32)(void *out, const void *x, const float *y, size_t n);
  void (*minus_f64)(void *out, const void *x, const float *y, size_t n);
  tb_wht_kernels wht_f32, wht_f64;
} tb_kernels;

extern const tb_kernels tb_kernels_scalar;
#if defined(__x86_64__)
extern const tb_kernels tb_kernels_avx2, tb_kernels_avx512;
#endif

const tb_kernels *tb_kernels_now(void);            /* the set in force */
const tb_kernels *tb_kernels_at(unsigned i);       /* i-th usable set, best first; NULL past the end */
void tb_kernels_use(const tb_kernels *k);          /* for tests and bench; NULL = the best again */

#endif
