/* wire_type.c - encodings on top of the loops of the best instruction set.
 *
 * Everything passes through float32 in blocks that stay in the first-level cache, so an encoding and an element type
 * each bring their conversion to and from float32, not one for every pair.
 */
#include "compute/wire_type.h"
#include <float.h>
#include <math.h>
#include <string.h>
#include "compute/kernels.h"
#include "compute/seed.h"

#define BLOCK 512
#define SCALE_BYTES 4
#define BIG_ENDIAN_HOST (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__)

/* Float32 magnitudes, as bits, from which an encoding gives no finite value. */
#define BF16_OVERFLOW 0x7f7f8000u
#define F16_OVERFLOW 0x477ff000u
#define F32_INFINITY 0x7f800000u

typedef struct {
  _Alignas(64) float wide[BLOCK], decoded[BLOCK];
  uint16_t swapped[BLOCK];
} blocks;

static bool is_wire(tb_dtype wire) { return wire == TB_BF16 || wire == TB_F16 || wire == TB_I8; }

static size_t block_of(size_t left) { return left < BLOCK ? left : BLOCK; }

size_t tb_wire_bytes(tb_dtype wire, size_t n) {
  if (n == 0 || !is_wire(wire)) return 0;
  if (wire == TB_I8) return n <= SIZE_MAX - SCALE_BYTES ? n + SCALE_BYTES : 0;
  return n <= SIZE_MAX / 2 ? 2 * n : 0;
}

static void put_scale(uint8_t *p, float scale) {
  uint32_t u = tb_bits_of(scale);
  for (int i = 0; i < SCALE_BYTES; i++) p[i] = (uint8_t)(u >> 8 * i);
}

static float get_scale(const uint8_t *p) {
  uint32_t u = 0;
  for (int i = 0; i < SCALE_BYTES; i++) u |= (uint32_t)p[i] << 8 * i;
  bool written_by_encode = u == 0 || (u >= tb_bits_of(FLT_MIN) && u <= tb_bits_of(FLT_MAX / 127));
  return written_by_encode ? tb_float_of(u) : NAN;
}

/* Halves as the host has them. */
static const void *from_little_endian(uint16_t *room, const void *in, size_t n) {
  if (!BIG_ENDIAN_HOST) return in;
  memcpy(room, in, 2 * n);
  for (size_t i = 0; i < n; i++) room[i] = __builtin_bswap16(room[i]);
  return room;
}

/* Elements of any float type as float32: in place where they are that already. */
static const float *widened(const tb_kernels *k, tb_dtype t, float *room, const void *x, size_t n) {
  switch (t) {
  case TB_F16: k->widen_f16(room, x, n); return room;
  case TB_BF16: k->widen_bf16(room, x, n); return room;
  case TB_F64: k->narrow_f64(room, x, n); return room;
  default: return x;
  }
}

/* Elements `from` .. `from` + n - 1 of a payload. */
static void decode_block(const tb_kernels *k, tb_dtype wire, blocks *b, float *out, const uint8_t *in, size_t from,
                         size_t n) {
  if (wire == TB_I8) k->restore(out, in + SCALE_BYTES + from, get_scale(in), n);
  else if (wire == TB_F16) k->widen_f16(out, from_little_endian(b->swapped, in + 2 * from, n), n);
  else k->widen_bf16(out, from_little_endian(b->swapped, in + 2 * from, n), n);
}

static void encode_block(const tb_kernels *k, tb_dtype wire, uint8_t *out, const float *x, size_t from, size_t n,
                         float scale, uint64_t seed) {
  if (wire == TB_I8) {
    if (scale > 0) k->quantise(out + SCALE_BYTES + from, x, scale, tb_seed(seed, from >> 32), (uint32_t)from, n);
    else memset(out + SCALE_BYTES + from, 0, n);
    return;
  }
  uint8_t *o = out + 2 * from;
  (wire == TB_F16 ? k->narrow_f16 : k->narrow_bf16)(o, x, n);
  for (size_t i = 0; BIG_ENDIAN_HOST && i < n; i++) {
    uint8_t low = o[2 * i + 1];
    o[2 * i + 1] = o[2 * i], o[2 * i] = low;
  }
}

/* Rounded down: 127 of it are never more than the largest magnitude, which may be close to overflow. */
static float scale_for(uint32_t most) {
  if (most >= F32_INFINITY) return NAN;
  float magnitude = tb_float_of(most), scale = magnitude / 127;
  if (most < tb_bits_of(127 * FLT_MIN)) return 0;
  return (double)scale * 127 > magnitude ? tb_float_of(tb_bits_of(scale) - 1) : scale;
}

bool tb_wire_encode(tb_dtype wire, tb_dtype t, void *out, const void *x, size_t n, uint64_t seed, void *residual) {
  if (n == 0 || !is_wire(wire) || !tb_dtype_is_float(t)) return true;
  const tb_kernels *k = tb_kernels_now();
  const uint8_t *p = x;
  uint8_t *o = out, *rest = residual;
  size_t size = tb_dtype_size(t), acc_size = tb_acc_size(t);
  uint32_t most = 0;
  float scale = 0;
  blocks b;
  for (size_t i = 0, m; i < n; i += m) {
    m = block_of(n - i);
    uint32_t here = k->most_f32(widened(k, t, b.wide, p + i * size, m), m);
    if (here > most) most = here;
  }
  if (wire == TB_I8) put_scale(o, scale = scale_for(most));
  for (size_t i = 0, m; i < n; i += m) {
    m = block_of(n - i);
    const float *wide = widened(k, t, b.wide, p + i * size, m);
    encode_block(k, wire, o, wide, i, m, scale, seed);
    if (!residual) continue;
    decode_block(k, wire, &b, b.decoded, o, i, m);
    if (t == TB_F64) k->minus_f64(rest + i * acc_size, p + i * size, b.decoded, m);
    else k->minus_f32(rest + i * acc_size, wide, b.decoded, m);
  }
  return most < (wire == TB_I8 ? F32_INFINITY : wire == TB_F16 ? F16_OVERFLOW : BF16_OVERFLOW);
}

void tb_wire_first(tb_dtype wire, float *acc, const void *in, size_t n) {
  if (!is_wire(wire)) return;
  const tb_kernels *k = tb_kernels_now();
  blocks b;
  for (size_t i = 0, m; i < n; i += m) decode_block(k, wire, &b, acc + i, in, i, m = block_of(n - i));
}

void tb_wire_next(tb_dtype wire, float *acc, const void *in, size_t n) {
  if (!is_wire(wire)) return;
  const tb_kernels *k = tb_kernels_now();
  blocks b;
  for (size_t i = 0, m; i < n; i += m) {
    decode_block(k, wire, &b, b.decoded, in, i, m = block_of(n - i));
    k->combine[TB_F32][TB_LOOP_SUM](acc + i, acc + i, b.decoded, m);
  }
}

void tb_wire_decode(tb_dtype wire, tb_dtype t, void *out, const void *in, size_t n) {
  if (!is_wire(wire) || !tb_dtype_is_float(t)) return;
  const tb_kernels *k = tb_kernels_now();
  uint8_t *o = out;
  blocks b;
  for (size_t i = 0, m; i < n; i += m) {
    m = block_of(n - i);
    void *to = o + i * tb_dtype_size(t);
    decode_block(k, wire, &b, t == TB_F32 ? to : b.decoded, in, i, m);
    if (t == TB_F64) k->widen_f64(to, b.decoded, m);
    else if (t == TB_F16) k->narrow_f16(to, b.decoded, m);
    else if (t == TB_BF16) k->narrow_bf16(to, b.decoded, m);
  }
}
