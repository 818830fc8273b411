/* regions.c - see regions.h. */
#include "links/regions.h"
#include <stdlib.h>

void tb_regions_init(tb_regions *r) { pthread_mutex_init(&r->lock, NULL); }

void tb_regions_destroy(tb_regions *r) {
  for (uint32_t i = 0; i < TB_REGION_CHUNKS; i++) free(atomic_load(&r->chunk[i]));
  free(r->free_list);
  pthread_mutex_destroy(&r->lock);
}

/* The table for number `n`, made if need be. The free list grows along: unregistering must not fail. */
static int chunk_of(tb_regions *r, uint32_t n, tb_region **out) {
  uint32_t chunk = n / TB_REGION_CHUNK;
  if (chunk >= TB_REGION_CHUNKS) return -ENOSPC;
  *out = atomic_load(&r->chunk[chunk]);
  if (*out) return 0;
  uint32_t *list = realloc(r->free_list, (chunk + 1) * TB_REGION_CHUNK * sizeof *list);
  if (list) r->free_list = list;
  *out = list ? calloc(TB_REGION_CHUNK, sizeof **out) : NULL;
  if (!*out) return -ENOMEM;
  atomic_store(&r->chunk[chunk], *out);
  return 0;
}

int tb_regions_add_tagged(tb_regions *r, const void *base, size_t len, uint32_t tag, uint32_t *region) {
  tb_region *table;
  if (!base || !len || (uintptr_t)base > UINTPTR_MAX - len) return -EINVAL;
  pthread_mutex_lock(&r->lock);
  uint32_t n = r->free_count ? r->free_list[r->free_count - 1] : r->next;
  int rc = chunk_of(r, n, &table);
  if (!rc) {
    if (r->free_count)
      r->free_count--;
    else
      r->next++;
    table[n % TB_REGION_CHUNK] = (tb_region){base, len, tag};
    *region = n;
  }
  pthread_mutex_unlock(&r->lock);
  return rc;
}

int tb_regions_add(tb_regions *r, const void *base, size_t len, uint32_t *region) {
  return tb_regions_add_tagged(r, base, len, 0, region);
}

int tb_regions_remove(tb_regions *r, uint32_t region) {
  int rc = -ENOENT;
  pthread_mutex_lock(&r->lock);
  if (region < r->next) {
    tb_region *e = &atomic_load(&r->chunk[region / TB_REGION_CHUNK])[region % TB_REGION_CHUNK];
    if (e->base) {
      *e = (tb_region){0};
      r->free_list[r->free_count++] = region;
      rc = 0;
    }
  }
  pthread_mutex_unlock(&r->lock);
  return rc;
}
