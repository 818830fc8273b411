/* compute.h - arithmetic on arrays of elements: reduction kernels and their dtypes.
 *
 * Integers wrap. min and max of floats: a NaN on either side wins; which of +0 and -0 is taken is not stated.
 * An unknown type or operation writes nothing. x and y may not overlap acc except where it says so.
 * Halves accumulate in float32, everything else in its own type. Sources may have any alignment (they lie behind a
 * 64-byte header in a receive buffer); accumulators are 64-byte aligned. SIMD is chosen once, at run time.
 */
#ifndef TB_COMPUTE_H
#define TB_COMPUTE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "tailbound.h"

size_t tb_dtype_size(tb_dtype t);       /* bytes of an element; 0 for an unknown type */
size_t tb_acc_size(tb_dtype t);         /* bytes of an accumulator element */
const char *tb_dtype_name(tb_dtype t);  /* "float32", ... */
const char *tb_redop_name(tb_redop op); /* "sum", ... */
bool tb_dtype_is_float(tb_dtype t);

/* acc[i] = x[i] */
void tb_reduce_first(tb_dtype t, void *acc, const void *x, size_t n);
/* acc[i] = x[i] op y[i] */
void tb_reduce_pair(tb_redop op, tb_dtype t, void *acc, const void *x, const void *y, size_t n);
/* acc[i] = acc[i] op x[i] */
void tb_reduce_next(tb_redop op, tb_dtype t, void *acc, const void *x, size_t n);
/* out[i] = (dtype) (acc[i] * mul / div), halves rounded to nearest even; mul == div means "as it is".
 * mul and div apply to float types with sum and avg only (integers ignore them). out may be acc.
 * A result that the type can represent is exact as long as acc * mul is (float64: 53 bits; the others: always).
 * Otherwise the error in ulp is at most: float32 0.5 + 2^-28, bfloat16 0.5 + 2^-16, float16 0.5 + 2^-13,
 * float64 1.5. */
void tb_reduce_last(tb_dtype t, void *out, const void *acc, uint32_t mul, uint32_t div, size_t n);

/* For values set aside between rounds; float types only, any alignment, others write nothing.
 * out[i] += x[i] and out[i] -= x[i], rounded once; the sum of |x[i]|, which is not finite where an element is not. */
void tb_add(tb_dtype t, void *out, const void *x, size_t n);
void tb_subtract(tb_dtype t, void *out, const void *x, size_t n);
double tb_mass(tb_dtype t, const void *x, size_t n);

const char *tb_compute_isa(void);       /* "avx512f", "avx2", "scalar": what was chosen */
/* RFC 3720 polynomial; hardware when there. seed: 0, or the result for the bytes before these. */
uint32_t tb_crc32c(uint32_t seed, const void *data, size_t n);

#endif
