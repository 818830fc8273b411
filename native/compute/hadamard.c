/* hadamard.c - the plan of a transform, and its way through memory. The arithmetic is in hadamard_loops.h.
 *
 * Blocks pass through a tile that stays in the caches: from the tensor into the tile with signs, transformed there, and
 * from there row by row to their places (and back). As many blocks as fit go together, so that what is written to one
 * row is a few hundred bytes and not one cache line: rows are far apart, often by a multiple of the page size.
 */
#include "compute/hadamard.h"
#include <errno.h>
#include <math.h>
#include <string.h>
#include "compute/kernels.h"

#define TILE_BYTES (128 * 1024)

/* Some neighbouring blocks of one length: a group that is transformed together. */
typedef struct {
  size_t element;          /* of the first of them; coefficients have the same indices */
  size_t column;           /* in its panel */
  size_t block;            /* number of the first */
  size_t blocks;
  unsigned run_log2;       /* columns of each */
} strips;

static unsigned log2_of(size_t n) { return 63 - (unsigned)__builtin_clzll(n); }

static size_t elements_of(const tb_hadamard_panel *p) { return p->width << p->rows_log2; }

int tb_hadamard_plan(tb_hadamard *h, size_t n, unsigned block_log2, uint64_t seed) {
  if (block_log2 < TB_HADAMARD_LEAST_LOG2 || block_log2 > TB_HADAMARD_MOST_LOG2) return -EINVAL;
  *h = (tb_hadamard){.n = n, .seed = seed};
  for (size_t first = 0; n - first > TB_HADAMARD_RAW;) {
    unsigned log2 = log2_of(n - first) < block_log2 ? log2_of(n - first) : block_log2;
    tb_hadamard_panel *p = &h->panel[h->panels++];
    p->first = first;
    p->first_block = h->blocks;
    p->rows_log2 = log2 - 4 < TB_ROWS_MOST_LOG2 ? log2 - 4 : TB_ROWS_MOST_LOG2;
    p->run_log2 = log2 - p->rows_log2;
    p->width = (n - first) >> p->rows_log2;
    h->blocks += (p->width >> p->run_log2) +
                 (unsigned)__builtin_popcountll(p->width & (((size_t)1 << p->run_log2) - 1));
    first += elements_of(p);
  }
  return 0;
}

/* The strip that holds a column. Strips of full width first, then the bits of what remains, highest first. */
static strips strip_at(const tb_hadamard_panel *p, size_t column) {
  strips s = {.column = column >> p->run_log2 << p->run_log2, .run_log2 = p->run_log2};
  s.block = p->first_block + (column >> p->run_log2);
  for (size_t left = p->width - s.column; left < (size_t)1 << s.run_log2;) {
    s.run_log2 = log2_of(left);
    if (column - s.column < (size_t)1 << s.run_log2) break;
    s.column += (size_t)1 << s.run_log2;
    left -= (size_t)1 << s.run_log2;
    s.block++;
  }
  s.element = p->first + (s.column << p->rows_log2);
  s.blocks = 1;
  return s;
}

static const tb_hadamard_panel *panel_of(const tb_hadamard *h, size_t element) {
  for (unsigned i = 0; i < h->panels; i++)
    if (element - h->panel[i].first < elements_of(&h->panel[i])) return &h->panel[i];
  return NULL;
}

size_t tb_hadamard_block(const tb_hadamard *h, size_t element, size_t *first, size_t *len) {
  const tb_hadamard_panel *p = panel_of(h, element);
  if (!p) {
    const tb_hadamard_panel *last = h->panels ? &h->panel[h->panels - 1] : NULL;
    *first = last ? last->first + elements_of(last) : 0;
    *len = h->n - *first;
    return h->blocks;
  }
  strips s = strip_at(p, (element - p->first) >> p->rows_log2);
  *first = s.element;
  *len = (size_t)1 << (p->rows_log2 + s.run_log2);
  return s.block;
}

size_t tb_hadamard_at(const tb_hadamard *h, size_t place) {
  const tb_hadamard_panel *p = panel_of(h, place);
  if (!p) return place;
  size_t row = (place - p->first) / p->width, column = (place - p->first) % p->width;
  strips s = strip_at(p, column);
  return s.element + ((size_t)tb_row_at((unsigned)row, p->rows_log2) << s.run_log2) + (column - s.column);
}

/* The row that tb_row_at sends to `wanted`: bit for bit, since the low bits of a polynomial depend on low bits only. */
static unsigned row_place(unsigned wanted, unsigned rows_log2) {
  unsigned row = 0;
  for (unsigned bit = 0; bit < rows_log2; bit++)
    row |= (tb_row_at(row, rows_log2) ^ wanted) & 1u << bit;
  return row;
}

size_t tb_hadamard_place(const tb_hadamard *h, size_t coefficient) {
  const tb_hadamard_panel *p = panel_of(h, coefficient);
  if (!p) return coefficient;
  strips s = strip_at(p, (coefficient - p->first) >> p->rows_log2);
  size_t i = coefficient - s.element, row = row_place((unsigned)(i >> s.run_log2), p->rows_log2);
  return p->first + row * p->width + s.column + (i & (((size_t)1 << s.run_log2) - 1));
}

void tb_hadamard_lost(const tb_hadamard *h, uint32_t *missing, size_t first, size_t len) {
  if (first >= h->n) return;
  if (len > h->n - first) len = h->n - first;
  for (unsigned i = 0; i < h->panels && len; i++) {
    const tb_hadamard_panel *p = &h->panel[i];
    size_t end = p->first + elements_of(p);
    if (first >= end) continue;
    size_t column = (first - p->first) % p->width;
    while (len && first < end) {
      strips s = strip_at(p, column);
      size_t m = s.column + ((size_t)1 << s.run_log2) - column;
      if (m > len) m = len;
      missing[s.block] += (uint32_t)m;
      first += m, len -= m, column += m;
      if (column == p->width) column = 0;
    }
  }
}

typedef struct {
  const tb_hadamard *h;
  const tb_wht_kernels *k;
  size_t size;             /* of an element */
  uint8_t *out, *tile;
  const uint8_t *in;
  const uint32_t *missing;
} job;

/* Words of 64 signs are numbered so that each block has a range of its own, whatever its length. */
static uint64_t first_sign_word(size_t block) { return (uint64_t)block << (TB_HADAMARD_MOST_LOG2 - 6); }

static tb_wht_rows rows_of(const tb_hadamard_panel *p, const strips *s) {
  return (tb_wht_rows){.width = p->width, .blocks = s->blocks, .rows_log2 = p->rows_log2, .run_log2 = s->run_log2};
}

static void forward(const job *j, const tb_hadamard_panel *p, const strips *s) {
  tb_wht_rows rows = rows_of(p, s);
  unsigned log2 = p->rows_log2 + s->run_log2;
  size_t length = (size_t)1 << log2;
  double factor[TB_TILE_BLOCKS];
  for (size_t b = 0; b < s->blocks; b++) {
    uint8_t *block = j->tile + b * length * j->size;
    j->k->signs(block, j->in + (s->element + b * length) * j->size, length, j->h->seed, first_sign_word(s->block + b));
    j->k->wht(block, log2);
    factor[b] = 1 / sqrt((double)length);
  }
  j->k->deal(j->out + (p->first + s->column) * j->size, j->tile, factor, &rows);
}

static void inverse(const job *j, const tb_hadamard_panel *p, const strips *s) {
  tb_wht_rows rows = rows_of(p, s);
  unsigned log2 = p->rows_log2 + s->run_log2;
  size_t length = (size_t)1 << log2;
  double factor[TB_TILE_BLOCKS];
  for (size_t b = 0; b < s->blocks; b++) {
    double received = (double)length - (j->missing ? j->missing[s->block + b] : 0);
    factor[b] = received > 0 ? sqrt((double)length) / received : 0;
  }
  j->k->collect(j->tile, j->in + (p->first + s->column) * j->size, factor, &rows);
  for (size_t b = 0; b < s->blocks; b++) {
    uint8_t *block = j->tile + b * length * j->size;
    j->k->wht(block, log2);
    j->k->signs(j->out + (s->element + b * length) * j->size, block, length, j->h->seed, first_sign_word(s->block + b));
  }
}

static void transform(const tb_hadamard *h, tb_dtype t, void *out, const void *in, const uint32_t *missing,
                      void (*group)(const job *, const tb_hadamard_panel *, const strips *)) {
  _Alignas(64) uint8_t tile[8 << TB_HADAMARD_MOST_LOG2];
  if ((t != TB_F32 && t != TB_F64) || h->n == 0) return;
  const tb_kernels *k = tb_kernels_now();
  job j = {.h = h, .k = t == TB_F32 ? &k->wht_f32 : &k->wht_f64, .size = tb_dtype_size(t), .out = out, .tile = tile,
           .in = in, .missing = missing};
  size_t raw = 0;
  for (unsigned i = 0; i < h->panels; i++) {
    const tb_hadamard_panel *p = &h->panel[i];
    size_t together = TILE_BYTES / (j.size << (p->rows_log2 + p->run_log2));
    if (together == 0) together = 1;
    if (together > TB_TILE_BLOCKS) together = TB_TILE_BLOCKS;
    for (size_t column = 0; column < p->width;) {
      strips s = strip_at(p, column);
      size_t alike = s.run_log2 == p->run_log2 ? (p->width - column) >> p->run_log2 : 1;
      s.blocks = alike < together ? alike : together;
      group(&j, p, &s);
      column += s.blocks << s.run_log2;
    }
    raw = p->first + elements_of(p);
  }
  if (raw < h->n) memcpy(j.out + raw * j.size, j.in + raw * j.size, (h->n - raw) * j.size);
}

void tb_hadamard_forward(const tb_hadamard *h, tb_dtype t, void *out, const void *in) {
  transform(h, t, out, in, NULL, forward);
}

void tb_hadamard_inverse(const tb_hadamard *h, tb_dtype t, void *out, const void *in, const uint32_t *missing) {
  transform(h, t, out, in, missing, inverse);
}
