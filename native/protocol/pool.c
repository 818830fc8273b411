#include "protocol/pool.h"
#include <stdint.h>
#include <stdlib.h>

/* The header in front of each buffer; 64 bytes keep the buffer aligned. */
typedef struct block { struct block *next; size_t bytes; char pad[48]; } block;
struct tb_pool { block *free; size_t kept, keep; };

tb_pool *tb_pool_new(void) { return calloc(1, sizeof(tb_pool)); }

void tb_pool_keep(tb_pool *p, size_t most) {
  p->keep = most;
  for (block *b; p->kept > most; free(b)) {
    b = p->free;
    p->free = b->next;
    p->kept -= b->bytes;
  }
}

size_t tb_pool_kept(const tb_pool *p) { return p->kept; }

void tb_pool_free(tb_pool *p) {
  if (!p) return;
  for (block *b = p->free, *next; b; b = next) {
    next = b->next;
    free(b);
  }
  free(p);
}

void *tb_pool_get(tb_pool *p, size_t bytes) {
  if (bytes > SIZE_MAX - 2 * sizeof(block)) return NULL;
  size_t want = (bytes + 63) / 64 * 64;
  block **best = NULL; /* the smallest that fits and wastes at most an eighth and a page */
  for (block **b = &p->free; *b; b = &(*b)->next)
    if ((*b)->bytes >= want && (*b)->bytes <= want + want / 8 + 4096 && (!best || (*b)->bytes < (*best)->bytes))
      best = b;
  if (best) {
    block *b = *best;
    *best = b->next;
    p->kept -= b->bytes;
    return b + 1;
  }
  block *b = aligned_alloc(64, sizeof(block) + want);
  if (!b) return NULL;
  b->bytes = want;
  return b + 1;
}

void tb_pool_put(tb_pool *p, void *buf) {
  if (!buf) return;
  block *b = (block *)buf - 1;
  if (p->kept + b->bytes > p->keep) {
    free(b);
    return;
  }
  b->next = p->free;
  p->free = b;
  p->kept += b->bytes;
}
