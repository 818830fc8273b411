/* sim_dice.h - the simulator's random numbers. They are drawn by position, not in sequence: number (frame, purpose) of
 * a direction is a hash of seed, source, destination, the frame's number in that direction and the purpose. So a
 * changed parameter, or another direction's traffic, leaves every other decision as it was, and two runs can be
 * compared frame by frame. Background traffic has a stream per port, with the number of the burst in the frame's
 * place. */
#ifndef TB_SIM_DICE_H
#define TB_SIM_DICE_H
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

enum {
  DRAW_GE_MOVE, DRAW_GE_LOSS, DRAW_LOSS, DRAW_DUP, DRAW_CORRUPT, DRAW_CORRUPT_WHERE, DRAW_TRUNCATE, DRAW_TRUNCATE_AT,
  DRAW_TRIP,               /* four draws of the original's way, then four of its duplicate's */
  DRAW_TRIP_COPY = DRAW_TRIP + 4,
  DRAWS = 16
};
_Static_assert(DRAW_TRIP_COPY + 4 <= DRAWS, "draws of one frame overlap the next one's");
enum { DRAW_OFF, DRAW_ON, DRAW_SPACING }; /* of a burst of background */

/* SplitMix64 by position: state + n * increment, then its finaliser. */
static inline uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

typedef struct { uint64_t base; } dice;

static inline dice dice_of(uint64_t seed, uint32_t src, uint32_t dst, uint64_t frame) {
  uint64_t stream = mix(mix(seed + 0x9e3779b97f4a7c15u) ^ ((uint64_t)src << 32 | dst));
  return (dice){stream + frame * DRAWS * 0x9e3779b97f4a7c15u};
}

static inline uint64_t roll(dice d, int purpose) { return mix(d.base + ((uint64_t)purpose + 1) * 0x9e3779b97f4a7c15u); }
static inline double unit(dice d, int purpose) { return (double)(roll(d, purpose) >> 11) * 0x1p-53; }
static inline bool chance(dice d, int purpose, double p) { return p > 0 && unit(d, purpose) < p; }
static inline uint64_t exponential(dice d, int purpose, uint64_t mean) {
  return (uint64_t)(-log(1.0 - unit(d, purpose)) * (double)mean); /* at most 37 means */
}

#endif
