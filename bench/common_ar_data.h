/* common_ar_data.h - the test data of all_reduce_perf and what the answer must be.
 *
 * A lossy sum is an estimate: the owner scales what arrived by N/count, so with data that differ between ranks an
 * element that lacks one contribution is rightly not the full sum. Hence two kinds of data:
 *   AR_EQUAL     every rank contributes the same small integer v (it depends on element and iteration only). The
 *                scaled sum of any count of them is exactly N*v: every *received* element is checkable to the bit.
 *   AR_DISTINCT  the integer depends on the rank too. The difference from the full answer is what loss cost (nmse);
 *                where nothing was missing it is checkable to the bit as well, and finds a contribution that was
 *                dropped or added twice.
 * Integers are small enough for N * N * v to be exact in the accumulator of the type. */
#ifndef BENCH_AR_DATA_H
#define BENCH_AR_DATA_H
#include <stddef.h>
#include <stdint.h>
#include "tailbound.h"

enum { AR_EQUAL = 0, AR_DISTINCT = 1 };
#define AR_PERIOD 251 /* most values that one data set uses */

typedef struct {
  const char *name; /* as nccl-tests spells it */
  tb_dtype dtype;
  size_t bytes;
  int is_float;
} ar_type;
extern const ar_type ar_types[]; /* ends with name NULL */

typedef struct {
  const ar_type *type;
  tb_redop redop;
  int size, iteration, kind;
  uint32_t values;            /* how many different values there are */
  double expect[AR_PERIOD];   /* the answer, as the type can hold it, for each */
} ar_set;

void ar_set_init(ar_set *s, const ar_type *type, tb_redop redop, int size, int iteration, int kind);
void ar_fill(const ar_set *s, int rank, void *x, uint64_t count);
/* Elements of out that differ from the answer, among those that mask (NULL = all) calls received. */
uint64_t ar_wrong(const ar_set *s, const void *out, const uint8_t *mask, uint64_t count);
/* Sums of (out - answer)^2 and answer^2 over all elements; committed = 0 counts every element as zero. */
void ar_error(const ar_set *s, const void *out, int committed, uint64_t count, double *error, double *power);

#endif
