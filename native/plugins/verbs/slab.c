/* slab.c - memory of the link's own, registered once: buffers of one size, touched at open so that no page fault comes
 * later. A forked child does not have it: the kernel would otherwise give one of the two a copy, perhaps not the one
 * whose pages the device knows. */
#include "plugins/verbs/verbs.h"
#include <errno.h>
#include <sys/mman.h>

int verbs_slab_map(verbs_slab *s, uint32_t stride, uint32_t count) {
  const size_t huge = 2 << 20;
  size_t bytes = (size_t)stride * count;
  bytes = (bytes + huge - 1) / huge * huge;
  uint8_t *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return -errno;
  *s = (verbs_slab){.base = base, .bytes = bytes, .stride = stride, .count = count};
  (void)madvise(base, bytes, MADV_HUGEPAGE);
  if (!madvise(base, bytes, MADV_DONTFORK)) return 0;
  int rc = -errno;
  verbs_slab_free(s, true);
  return rc;
}

int verbs_slab_register(verbs_slab *s, struct ibv_pd *pd) {
  s->mr = ibv_reg_mr(pd, s->base, s->bytes, IBV_ACCESS_LOCAL_WRITE);
  return s->mr ? 0 : -errno;
}

/* What cannot be unregistered stays mapped: the device may still write there. */
void verbs_slab_free(verbs_slab *s, bool ours) {
  if (!ours) return; /* the child has no such memory */
  if (s->mr && ibv_dereg_mr(s->mr)) return;
  if (s->base) munmap(s->base, s->bytes);
  *s = (verbs_slab){0};
}
