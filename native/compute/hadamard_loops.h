/* hadamard_loops.h - the Walsh-Hadamard transform of a block, written once; kernels_loops.h includes it once for each
 * element type, after
 *   W_ELEM, W_BITS   the element type as it lies in a buffer, and the unsigned type of its size
 *   W_VECTOR         a vector of them that + - and * work on; W_ELEM itself where there is none
 *   W_LANES(v)       the transform within one vector; v itself where there is none
 *   W_INDEPENDENT    TB_INDEPENDENT where the compiler is to make the vectors, otherwise nothing
 *   W_REGS_LOG2      the transform works on 2^this vectors in registers: 3 with 16 registers, 4 with 32
 *   W_NAME(name)     the name with the element type's suffix
 *
 * Levels are done in rising order of their distance whatever the instruction set: so the same numbers are added in the
 * same order, and results agree to the last bit. Every pass over memory does as many levels as registers allow, and
 * passes run over pieces that stay in the first-level cache as long as levels do not reach beyond.
 */
#define W_INLINE static inline TB_TARGET __attribute__((always_inline))
#define W_LANES_N (sizeof(W_VECTOR) / sizeof(W_ELEM))
#define W_EACH4(op) op(0) op(1) op(2) op(3)
#define W_EACH8(op) W_EACH4(op) op(4) op(5) op(6) op(7)
#define W_EACH16(op) W_EACH8(op) op(8) op(9) op(10) op(11) op(12) op(13) op(14) op(15)

typedef W_VECTOR W_NAME(unaligned) __attribute__((aligned(1), may_alias));

W_INLINE W_VECTOR W_NAME(load)(const W_ELEM *p) { return *(const W_NAME(unaligned) *)(const void *)p; }
W_INLINE void W_NAME(store)(W_ELEM *p, W_VECTOR v) { *(W_NAME(unaligned) *)(void *)p = v; }

W_INLINE void W_NAME(step)(W_VECTOR *a, W_VECTOR *b) {
  W_VECTOR sum = *a + *b, difference = *a - *b;
  *a = sum, *b = difference;
}

W_INLINE void W_NAME(wht2)(W_VECTOR *v) { W_NAME(step)(v, v + 1); }

W_INLINE void W_NAME(wht4)(W_VECTOR *v) {
  W_NAME(wht2)(v), W_NAME(wht2)(v + 2);
  W_NAME(step)(v, v + 2), W_NAME(step)(v + 1, v + 3);
}

W_INLINE void W_NAME(wht8)(W_VECTOR *v) {
  W_NAME(wht4)(v), W_NAME(wht4)(v + 4);
#define W_STEP(i) W_NAME(step)(v + i, v + i + 4);
  W_EACH4(W_STEP)
#undef W_STEP
}

#if W_REGS_LOG2 == 4
W_INLINE void W_NAME(wht16)(W_VECTOR *v) {
  W_NAME(wht8)(v), W_NAME(wht8)(v + 8);
#define W_STEP(i) W_NAME(step)(v + i, v + i + 8);
  W_EACH8(W_STEP)
#undef W_STEP
}
#endif

/* The lowest levels: those within a vector and those between neighbouring vectors. */
static TB_TARGET void W_NAME(low)(W_ELEM *x, size_t n) {
  const size_t lanes = W_LANES_N;
  for (W_ELEM *end = x + n; x < end; x += lanes << W_REGS_LOG2) {
    W_VECTOR v[1 << W_REGS_LOG2];
#define W_IN(i) v[i] = W_LANES(W_NAME(load)(x + i * lanes));
#define W_OUT(i) W_NAME(store)(x + i * lanes, v[i]);
#if W_REGS_LOG2 == 4
    W_EACH16(W_IN) W_NAME(wht16)(v);
    W_EACH16(W_OUT)
#else
    W_EACH8(W_IN) W_NAME(wht8)(v);
    W_EACH8(W_OUT)
#endif
#undef W_IN
#undef W_OUT
  }
}

/* Levels between elements `apart`, 2 * apart, ...: as many as the name says. */
#define W_IN(i) v[i] = W_NAME(load)(p + i * apart);
#define W_OUT(i) W_NAME(store)(p + i * apart, v[i]);
#define W_PASS(radix, each)                                             \
  static TB_TARGET void W_NAME(pass##radix)(W_ELEM *x, size_t n, size_t apart) { \
    for (size_t base = 0; base < n; base += radix * apart)              \
      W_INDEPENDENT                                                     \
      for (size_t j = 0; j < apart; j += W_LANES_N) {                   \
        W_ELEM *p = x + base + j;                                       \
        W_VECTOR v[radix];                                              \
        each(W_IN) W_NAME(wht##radix)(v);                               \
        each(W_OUT)                                                     \
      }                                                                 \
  }
#define W_EACH2(op) op(0) op(1)
W_PASS(2, W_EACH2)
W_PASS(4, W_EACH4)
W_PASS(8, W_EACH8)
#if W_REGS_LOG2 == 4
W_PASS(16, W_EACH16)
#endif
#undef W_PASS
#undef W_IN
#undef W_OUT

/* Levels from .. to-1, of 2^to elements. */
static TB_TARGET void W_NAME(high)(W_ELEM *x, unsigned from, unsigned to) {
  size_t n = (size_t)1 << to;
  while (from < to) {
    size_t apart = (size_t)1 << from;
    unsigned levels = to - from;
#if W_REGS_LOG2 == 4
    if (levels >= 4) levels = 4, W_NAME(pass16)(x, n, apart);
    else
#endif
    if (levels >= 3) levels = 3, W_NAME(pass8)(x, n, apart);
    else if (levels == 2) W_NAME(pass4)(x, n, apart);
    else W_NAME(pass2)(x, n, apart);
    from += levels;
  }
}

static TB_TARGET void W_NAME(wht)(void *block, unsigned log2) {
  enum { CACHED_BYTES_LOG2 = 14 };
  W_ELEM *x = block;
  unsigned low = W_REGS_LOG2, cached = CACHED_BYTES_LOG2 - (sizeof *x == 4 ? 2 : 3);
  for (size_t lanes = W_LANES_N; lanes > 1; lanes /= 2) low++;
  if (log2 < low) { /* a small piece at a tensor's end */
    for (size_t apart = 1; apart < (size_t)1 << log2; apart *= 2)
      for (size_t i = 0; i < (size_t)1 << log2; i++)
        if (!(i & apart)) {
          W_ELEM a = x[i], b = x[i + apart];
          x[i] = a + b, x[i + apart] = a - b;
        }
    return;
  }
  if (cached > log2) cached = log2;
  for (size_t piece = 0; piece < (size_t)1 << log2; piece += (size_t)1 << cached) {
    W_NAME(low)(x + piece, (size_t)1 << cached);
    W_NAME(high)(x + piece, low, cached);
  }
  W_NAME(high)(x, cached, log2);
}

/* 32 signs, or fewer. With SIMD every lane shifts its own bit to the top; before AVX2 no such shift exists. */
W_INLINE void W_NAME(sign32)(W_BITS *o, const W_BITS *p, uint32_t word, const W_BITS *bit, size_t n) {
  const unsigned top = 8 * sizeof *o - 1;
  TB_INDEPENDENT
  for (size_t k = 0; k < n; k++)
    if (W_LANES_N > 1) o[k] = p[k] ^ ((W_BITS)word << (top - k) & (W_BITS)1 << top);
    else o[k] = p[k] ^ (word & bit[k] ? (W_BITS)1 << top : 0);
}

static TB_TARGET void W_NAME(signs)(void *out, const void *in, size_t n, uint64_t seed, uint64_t first_word) {
  W_BITS bit[32], *o = out;
  const W_BITS *p = in;
  for (size_t k = 0; k < 32; k++) bit[k] = (W_BITS)1 << k;
  size_t i = 0;
  for (; i + 64 <= n; i += 64) {
    uint64_t word = tb_random64(seed, first_word + i / 64);
    W_NAME(sign32)(o + i, p + i, (uint32_t)word, bit, 32);
    W_NAME(sign32)(o + i + 32, p + i + 32, (uint32_t)(word >> 32), bit, 32);
  }
  if (i == n) return;
  uint64_t word = tb_random64(seed, first_word + i / 64);
  for (; i < n; i += 32, word >>= 32) W_NAME(sign32)(o + i, p + i, (uint32_t)word, bit, n - i < 32 ? n - i : 32);
}

W_INLINE void W_NAME(scaled)(W_ELEM *out, const W_ELEM *in, W_ELEM factor, size_t n) {
  size_t i = 0;
  for (; i + W_LANES_N <= n; i += W_LANES_N) W_NAME(store)(out + i, W_NAME(load)(in + i) * factor);
  for (; i < n; i++) out[i] = in[i] * factor;
}

/* Inlined with a constant run in the most common case. */
W_INLINE void W_NAME(deal_runs)(W_ELEM *panel, const W_ELEM *tile, const W_ELEM *f, const tb_wht_rows *r, size_t run) {
  for (unsigned row = 0; row < 1u << r->rows_log2; row++) {
    const W_ELEM *p = tile + tb_row_at(row, r->rows_log2) * run;
    W_ELEM *o = panel + row * r->width;
    for (size_t b = 0; b < r->blocks; b++) W_NAME(scaled)(o + b * run, p + (b * run << r->rows_log2), f[b], run);
  }
}

W_INLINE void W_NAME(collect_runs)(W_ELEM *tile, const W_ELEM *panel, const W_ELEM *f, const tb_wht_rows *r,
                                   size_t run) {
  for (unsigned row = 0; row < 1u << r->rows_log2; row++) {
    const W_ELEM *p = panel + row * r->width;
    W_ELEM *o = tile + tb_row_at(row, r->rows_log2) * run;
    for (size_t b = 0; b < r->blocks; b++) W_NAME(scaled)(o + (b * run << r->rows_log2), p + b * run, f[b], run);
  }
}

#define W_MOVE(name)                                                                                                \
  static TB_TARGET void W_NAME(name)(void *to, const void *from, const double *factor, const tb_wht_rows *r) {      \
    W_ELEM f[TB_TILE_BLOCKS];                                                                                       \
    for (size_t b = 0; b < r->blocks; b++) f[b] = (W_ELEM)factor[b];                                                \
    if (r->run_log2 == 4) W_NAME(name##_runs)(to, from, f, r, 16);                                                  \
    else W_NAME(name##_runs)(to, from, f, r, (size_t)1 << r->run_log2);                                             \
  }
W_MOVE(deal)
W_MOVE(collect)
#undef W_MOVE

#undef W_INLINE
#undef W_LANES_N
#undef W_EACH2
#undef W_EACH4
#undef W_EACH8
#undef W_EACH16
#undef W_ELEM
#undef W_BITS
#undef W_VECTOR
#undef W_LANES
#undef W_NAME
