/* hadamard_reference.h - the transform by its definition, in doubles, for test_hadamard.c. Shares no code with what it
 * checks: blocks are listed, places are found by dealing rows out one after another. */
#ifndef TB_TEST_HADAMARD_REFERENCE_H
#define TB_TEST_HADAMARD_REFERENCE_H
#include <stdlib.h>
#include "compute/hadamard.h"
#include "reduce_reference.h"

typedef struct {
  size_t start, length, run, panel;
} ref_block;

typedef struct {
  size_t n, blocks, raw;             /* raw: where the untouched end starts */
  size_t panel_start[2], panel_rows[2];
  ref_block *block;
  size_t *at;                        /* at[place] = coefficient */
} ref_plan;

static size_t power_of_two_up_to(size_t n) {
  size_t p = 1;
  while (p * 2 <= n) p *= 2;
  return p;
}

static void ref_free(ref_plan *r) { free(r->block), free(r->at); }

static ref_plan ref_make(size_t n, size_t block_length) {
  ref_plan r = {.n = n, .block = malloc((n / 2048 + 64) * sizeof(ref_block)), .at = malloc((n + 1) * sizeof(size_t))};
  size_t start = 0, panels = 0;
  assert_non_null(r.block), assert_non_null(r.at);
  while (n - start >= 32) {
    size_t longest = power_of_two_up_to(n - start);
    if (longest > block_length) longest = block_length;
    size_t rows = longest / 16 < 256 ? longest / 16 : 256, first = r.blocks, place = start;
    r.panel_start[panels] = start, r.panel_rows[panels] = rows;
    for (size_t length = longest; length >= rows; length /= 2)
      for (; n - start >= length && (length == longest || n - start < 2 * length); start += length)
        r.block[r.blocks++] = (ref_block){start, length, length / rows, panels};
    for (size_t row = 0; row < rows; row++)
      for (size_t b = first; b < r.blocks; b++)
        for (size_t lane = 0; lane < r.block[b].run; lane++)
          r.at[place++] = r.block[b].start + (49 * row + 4 * row * row) % rows * r.block[b].run + lane;
    assert_int_equal(place, start);
    panels++;
  }
  r.raw = start;
  for (; start < n; start++) r.at[start] = start;
  return r;
}

/* The seed's random words, as the published generator gives them one after another. */
static int ref_sign(uint64_t seed, size_t block, size_t i) {
  uint64_t z = seed + (block * 512 + i / 64 + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return z >> (i % 64) & 1 ? -1 : 1;
}

/* By halves, largest distance first: not the order of the code under test. */
static void ref_wht(double *x, size_t n) {
  if (n == 1) return;
  for (size_t i = 0; i < n / 2; i++) {
    double a = x[i], b = x[i + n / 2];
    x[i] = a + b, x[i + n / 2] = a - b;
  }
  ref_wht(x, n / 2), ref_wht(x + n / 2, n / 2);
}

/* Coefficients in block order, not yet dealt out. */
static void ref_coefficients(const ref_plan *r, uint64_t seed, double *out, const double *x) {
  memcpy(out, x, r->n * sizeof *x);
  for (size_t b = 0; b < r->blocks; b++) {
    double *o = out + r->block[b].start;
    size_t length = r->block[b].length;
    for (size_t i = 0; i < length; i++) o[i] *= ref_sign(seed, b, i);
    ref_wht(o, length);
    for (size_t i = 0; i < length; i++) o[i] /= sqrt((double)length);
  }
}

#endif
