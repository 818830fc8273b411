/* clocks.h - many clocks and one alarm: the earliest of n times, and whose it is.
 *
 * A tree over the clocks in which every node holds the earlier of its two children: at[1] is the earliest of all, clock
 * i lies at at[leaves + i]. Setting a clock, and finding the next one that is due, look at log n places; with a
 * thousand peers nobody has to ask each of them.
 */
#ifndef TB_CLOCKS_H
#define TB_CLOCKS_H
#include <stdint.h>

typedef struct { uint32_t n, leaves; uint64_t *at; } tb_clocks;

uint32_t tb_clocks_words(uint32_t n);                            /* of memory */
void tb_clocks_init(tb_clocks *t, uint32_t n, uint64_t *memory); /* all stand at UINT64_MAX: never */
void tb_clocks_set(tb_clocks *t, uint32_t i, uint64_t at);
/* The first clock i >= from that is due at `now`, or n. */
uint32_t tb_clocks_due(const tb_clocks *t, uint32_t from, uint64_t now);

static inline uint64_t tb_clocks_get(const tb_clocks *t, uint32_t i) { return t->at[t->leaves + i]; }
static inline uint64_t tb_clocks_first(const tb_clocks *t) { return t->at[1]; }
static inline void tb_clocks_earlier(tb_clocks *t, uint32_t i, uint64_t at) {
  if (at < tb_clocks_get(t, i)) tb_clocks_set(t, i, at);
}

#endif
