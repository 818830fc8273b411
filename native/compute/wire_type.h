/* wire_type.h - elements on the wire in fewer bits than in memory: bfloat16, float16, or int8 with a scale.
 *
 * An encoding is named by the dtype that travels: TB_BF16, TB_F16 or TB_I8. Elements in memory are of any float type;
 * one call encodes one chunk. Payloads are little-endian. All instruction sets give the same bytes.
 *
 * bfloat16, float16: rounded to nearest, ties to even; also from float64, which is not rounded twice. What is too large
 * for the type (float16: from 65520) becomes infinity, as everywhere else: an overflow is to be noticed, and a value
 * cut to 65504 would be a silent bias. NaN and infinity survive.
 *
 * int8: a float32 scale, then one byte per element; x is about scale * byte. scale = largest magnitude / 127, rounded
 * down; bytes are -127 .. 127. Rounding is stochastic: up with a probability equal to the fraction, from random bits
 * that depend on seed and index only. The mean over seeds is x, within 2^-22 |x| + 2^-24 scale; the error is below one
 * scale, its variance at most scale^2 / 4. Seeds must differ by rank, round, stage and chunk (tb_seed), or errors add
 * up instead of averaging out. A chunk with a NaN or an infinity, or a float64 beyond float32, has the scale NaN and
 * decodes to NaN everywhere, as it does with any other scale that no encoder writes (it may be from anybody). A chunk
 * whose magnitudes are all below 127 * 2^-126 is sent as zeros: its scale would be subnormal.
 *
 * Pure functions of their arguments. Any alignment. out, residual and x may not overlap. Unknown types write nothing.
 */
#ifndef TB_COMPUTE_WIRE_TYPE_H
#define TB_COMPUTE_WIRE_TYPE_H
#include "compute/compute.h"

/* Bytes of n elements. 0 for n = 0, for an unknown type, and where they are more than a size_t can tell. */
size_t tb_wire_bytes(tb_dtype wire, size_t n);

/* Encodes x, n elements of type t. seed: for int8, otherwise ignored.
 * residual: NULL, or x - decoded, in the accumulator's type (float64 for float64, else float32: a half could not hold
 * it). It is exact wherever that type can hold it, and that is always, unless int8 rounded a magnitude below scale / 2
 * away from zero (then it is within 2^-24 scale) or the thread flushes subnormals.
 * Returns whether all that will be decoded is finite; if not, the residual is of no use. */
bool tb_wire_encode(tb_dtype wire, tb_dtype t, void *out, const void *x, size_t n, uint64_t seed, void *residual);

void tb_wire_first(tb_dtype wire, float *acc, const void *in, size_t n); /* acc[i] = decoded */
void tb_wire_next(tb_dtype wire, float *acc, const void *in, size_t n);  /* acc[i] += decoded */
/* To elements; halves are rounded. */
void tb_wire_decode(tb_dtype wire, tb_dtype t, void *out, const void *in, size_t n);

#endif
