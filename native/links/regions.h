/* regions.h - memory that REFs may point into, as a table of numbers: for every link that has to check them. Made of
 * chunks that never move, so that one thread may register while the lane looks others up without a lock. */
#ifndef TB_REGIONS_H
#define TB_REGIONS_H
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { TB_REGION_CHUNK = 256, TB_REGION_CHUNKS = 1024 };

typedef struct { const char *base; size_t len; uint32_t tag; } tb_region; /* tag: the link's own */

typedef struct {
  pthread_mutex_t lock;    /* writers only */
  tb_region *_Atomic chunk[TB_REGION_CHUNKS];
  uint32_t *free_list, free_count, next;
} tb_regions;

void tb_regions_init(tb_regions *r); /* of zeroed memory */
void tb_regions_destroy(tb_regions *r);
int tb_regions_add(tb_regions *r, const void *base, size_t len, uint32_t *region); /* -EINVAL, -ENOMEM, -ENOSPC */
/* The same with a tag; tb_regions_add gives it 0. */
int tb_regions_add_tagged(tb_regions *r, const void *base, size_t len, uint32_t tag, uint32_t *region);
int tb_regions_remove(tb_regions *r, uint32_t region);                             /* -ENOENT */

/* 0: [at, at + len) lies in that region; -EINVAL: no such region; -EFAULT. */
static inline int tb_regions_check(const tb_regions *t, uint32_t region, const void *at, uint32_t len) {
  uint32_t chunk = region / TB_REGION_CHUNK;
  tb_region *table = chunk < TB_REGION_CHUNKS ? atomic_load_explicit(&t->chunk[chunk], memory_order_acquire) : NULL;
  if (!table) return -EINVAL;
  const tb_region *r = &table[region % TB_REGION_CHUNK];
  uintptr_t a = (uintptr_t)at, base = (uintptr_t)r->base;
  return r->base && a >= base && a - base <= r->len && len <= r->len - (a - base) ? 0 : -EFAULT;
}

static inline uint32_t tb_regions_tag(const tb_regions *t, uint32_t region) { /* 0 = none, or no such region */
  uint32_t chunk = region / TB_REGION_CHUNK;
  const tb_region *table =
      chunk < TB_REGION_CHUNKS ? atomic_load_explicit(&t->chunk[chunk], memory_order_acquire) : NULL;
  return table ? table[region % TB_REGION_CHUNK].tag : 0;
}

#endif
