#include "protocol/pool.h"
#include <stdint.h>
#include <stdlib.h>

/* The header in front of each buffer; 64 bytes keep the buffer aligned. */
typedef struct block { struct block *next; size_t bytes; char pad[48]; } block;
struct tb_pool { block *free; size_t kept, keep; };

tb_pool *tb_pool_new(size_t keep) {
  tb_pool *p = calloc(1, sizeof *p);
  if (p) p->keep = keep;
  return p;
}

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
  block **best = NULL; /* the smallest that fits and wastes less than half */
  for (block **b = &p->free; *b; b = &(*b)->next)
    if ((*b)->bytes >= want && (*b)->bytes <= 2 * want + 4096 && (!best || (*b)->bytes < (*best)->bytes)) best = b;
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
