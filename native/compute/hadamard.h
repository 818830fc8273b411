/* hadamard.h - randomised block-wise Walsh-Hadamard transform: what is lost on the way costs every element a little.
 *
 * A tensor of n elements is cut into blocks. Each block gets random signs (fresh for each seed), is transformed,
 * orthonormally, and its coefficients are dealt out over the whole tensor, so that one packet, a contiguous piece of
 * the transformed tensor, carries few coefficients of many blocks. The transform is linear: the mean of transformed
 * tensors is the transformed mean. Element order, coefficient order, signs and the places are the same on every
 * platform, and all instruction sets give the same bits.
 *
 * Places. A panel is a matrix of 2^r rows, and a block a strip of its columns: coefficients i * run .. i * run + run-1
 * of a block stand side by side in one row, and each block has the same share of every row. Lost rows cost all blocks
 * alike, a lost piece of c elements touches about c / run blocks and costs each of them run of its coefficients (of
 * 256 * run, when the tensor has a block of 4096 or more). The order of rows is scrambled: the coefficients that a
 * lost shard takes would otherwise be an aligned range, and such a range returns a lone large element not as noise
 * over the block but as a few copies of it, each as large as the share that was lost.
 *
 * Any length, no padding. Blocks are of 2^block_log2 elements, or of the largest power of two that the tensor holds.
 * What remains of the panel's width is strips of half the columns, a quarter, ...: smaller blocks, which share all
 * rows with the large ones. Fewer elements than rows (so less than a 16th of the tensor, and at most 255) remain; they
 * make a second panel of smaller blocks. The last elements, at most 31, stay as they are: they lie in one packet in
 * any case, and a transform among themselves would protect nothing. The second panel, too, is usually within one
 * or two packets: its elements are lost together and then zero, as without a transform.
 *
 * Error. With k = log2 of the block length, u = 2^-24 (float64: 2^-53), each way: the Euclidean norm of the error in a
 * block is at most (k + 2) u times the norm of the block (to first order in u), unless something overflows or
 * underflows: intermediate values reach 2^(k/2) times the norm of the block. A NaN or an infinity makes its whole block
 * NaN or infinite.
 *
 * Pure functions of their arguments; 256 KiB of stack. Any alignment. out and in may not overlap: coefficients go to
 * places all over the tensor.
 */
#ifndef TB_COMPUTE_HADAMARD_H
#define TB_COMPUTE_HADAMARD_H
#include "compute/compute.h"

enum { TB_HADAMARD_LEAST_LOG2 = 11, TB_HADAMARD_MOST_LOG2 = 15, TB_HADAMARD_RAW = 31 };

typedef struct {
  size_t first, width;     /* first element, in both orders; columns */
  size_t first_block;      /* number of its first block */
  unsigned rows_log2, run_log2;
} tb_hadamard_panel;

typedef struct {
  size_t n, blocks;
  uint64_t seed;           /* for the signs: tb_seed(tb_seed(job, round), key hash), equal on all ranks */
  unsigned panels;
  tb_hadamard_panel panel[2];
} tb_hadamard;

/* 0, or -EINVAL for a block length outside 2^11 .. 2^15. */
int tb_hadamard_plan(tb_hadamard *h, size_t n, unsigned block_log2, uint64_t seed);

/* t is TB_F32 or TB_F64, otherwise nothing is written. */
void tb_hadamard_forward(const tb_hadamard *h, tb_dtype t, void *out, const void *in);

/* The inverse. missing: NULL, or for each of h->blocks how many of its coefficients are missing; these must be zero in
 * `in`. The block is then scaled by length / received: unbiased if what is lost does not depend on values. Of a block
 * of which nothing came nothing is made: zeros. */
void tb_hadamard_inverse(const tb_hadamard *h, tb_dtype t, void *out, const void *in, const uint32_t *missing);

/* Counts a lost piece of the transformed tensor. Start with zeros; each element may be counted once. A piece is cut at
 * the tensor's end. */
void tb_hadamard_lost(const tb_hadamard *h, uint32_t *missing, size_t first, size_t len);

/* The block that holds an element: its number, first element and length. The last elements, which stay as they are, are
 * one more: number h->blocks. */
size_t tb_hadamard_block(const tb_hadamard *h, size_t element, size_t *first, size_t *len);

/* Where a coefficient goes (its index counts block after block, in the order of their elements), and which coefficient
 * stands at a place. Both below h->n. */
size_t tb_hadamard_place(const tb_hadamard *h, size_t coefficient);
size_t tb_hadamard_at(const tb_hadamard *h, size_t place);

#endif
