/* bits.h - bitmaps over chunks. */
#ifndef TB_BITS_H
#define TB_BITS_H
#include <stdbool.h>
#include <stdint.h>

static inline uint32_t tb_words(uint32_t bits) { return (bits + 63) / 64; }
static inline bool tb_bit(const uint64_t *b, uint32_t i) { return b[i / 64] >> (i % 64) & 1; }
static inline void tb_bit_set(uint64_t *b, uint32_t i) { b[i / 64] |= 1ull << (i % 64); }
static inline void tb_bit_clear(uint64_t *b, uint32_t i) { b[i / 64] &= ~(1ull << (i % 64)); }

/* First i >= from with bit i == value, or n. */
uint32_t tb_bit_next(const uint64_t *b, uint32_t from, uint32_t n, bool value);
/* Sets [from, to) and returns how many of them were clear. */
uint32_t tb_bit_fill(uint64_t *b, uint32_t from, uint32_t to);

#endif
