/* seed.h - random bits from a counter: the same (seed, counter) gives the same bits on every rank, platform and
 * instruction set, in any order. No cryptography: whoever knows the seed knows the bits. */
#ifndef TB_COMPUTE_SEED_H
#define TB_COMPUTE_SEED_H
#include <stdint.h>
#include "compute/half.h"

/* The finaliser of SplitMix64 at a counter. */
TB_INLINE uint64_t tb_random64(uint64_t seed, uint64_t counter) {
  uint64_t z = seed + (counter + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

/* A seed for each value of one more field: tb_seed(tb_seed(tb_seed(job, round), key hash), rank). The rotation keeps
 * (seed, value) from being one number, as it would be for a sum: neighbouring values must not give the same sequence
 * shifted by one. */
TB_INLINE uint64_t tb_seed(uint64_t seed, uint64_t value) {
  uint64_t mixed = tb_random64(seed, 0);
  return tb_random64(mixed << 32 | mixed >> 32, value);
}

/* One 32-bit word per counter, in 32-bit arithmetic only, which vector units have. */
TB_INLINE uint32_t tb_random32(uint64_t seed, uint32_t counter) {
  uint32_t z = counter * 0x9e3779b1u ^ (uint32_t)seed;
  z = (z ^ z >> 16) * 0x7feb352du;
  z = (z + (uint32_t)(seed >> 32)) ^ z >> 15;
  z *= 0x846ca68bu;
  return z ^ z >> 16;
}

#endif
