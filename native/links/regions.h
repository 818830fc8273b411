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

typedef struct { const char *base; size_t len; } tb_region;

typedef struct {
  pthread_mutex_t lock;    /* writers only */
  tb_region *_Atomic chunk[TB_REGION_CHUNKS];
  uint32_t *free_list, free_count, next;
} tb_regions;

void tb_regions_init(tb_regions *r); /* of zeroed memory */
void tb_regions_destroy(tb_regions *r);
int tb_regions_add(tb_regions *r, const void *base, size_t len, uint32_t *region); /* -EINVAL, -ENOMEM, -ENOSPC */
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

#endif
