/* mr.c - the callers' memory. Registered by the first region that needs it, shared by regions that lie within and come
 * while that one is there, given back by the last. Control path, but for verbs_mr_of. */
#include "plugins/verbs/verbs.h"
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

/* Kernels since 5.12 copy pages that a device knows when a process forks, for the child; older ones might move the
 * parent's. The library knows, if it is new enough to be asked. */
bool verbs_fork_is_safe(void) {
  enum { UNNEEDED = 2 };
  int (*ask)(void) = NULL;
  void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (!library) return false;
  void *symbol = dlvsym(library, "ibv_is_fork_initialized", "IBVERBS_1.13");
  memcpy(&ask, &symbol, sizeof ask); /* ISO C has no conversion from an object's pointer to a function's */
  bool safe = ask && ask() == UNNEEDED;
  dlclose(library);
  return safe;
}

static void tell(verbs_link *l, int rc) {
  if (l->told_unregistered) return;
  l->told_unregistered = true;
  verbs_event(l, 30, "verbs: memory could not be registered with %s (%s), so its payloads are copied: is locked memory "
              "limited (ulimit -l unlimited)?", l->at.device, strerror(rc));
}

/* The number of a registration that holds all of [from, to) in whole pages, counted from 1; 0 = there can be none. */
static uint32_t find_or_make(verbs_link *l, uintptr_t from, uintptr_t to) {
  const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
  uint32_t unused = VERBS_MRS_MAX;
  from = from / page * page;
  to = (to + page - 1) / page * page;
  for (uint32_t i = 0; i < VERBS_MRS_MAX; i++) {
    const verbs_mr *m = &l->mrs[i];
    if (m->open && m->from <= from && to <= m->to) return i + 1;
    if (!m->uses && !m->mr) unused = i;
  }
  if (unused == VERBS_MRS_MAX || to <= from) return 0;
  struct ibv_mr *mr = ibv_reg_mr(l->pd, (void *)from, to - from, 0); /* only to be read */
  if (!mr) tell(l, errno);
  if (!mr) return 0;
  verbs_add(&l->n.regs, 1);
  l->mrs[unused] = (verbs_mr){.from = from, .to = to, .mr = mr};
  return unused + 1;
}

/* What cannot be unregistered keeps its place: the number is not used again. */
static void let_go(verbs_mr *m) {
  if (--m->uses) return;
  if (!ibv_dereg_mr(m->mr)) *m = (verbs_mr){0};
}

int verbs_mem_reg(tb_link *link, const void *base, size_t len, uint32_t *region) {
  verbs_link *l = verbs_of(link);
  uintptr_t from = (uintptr_t)base;
  uint32_t tag = 0;
  if (!base || !len || from > UINTPTR_MAX - len) return -EINVAL;
  if (l->caps.ref != TB_REF_NONE && len >= l->ref_from) tag = find_or_make(l, from, from + len);
  verbs_mr *m = tag ? &l->mrs[tag - 1] : NULL;
  bool first = m && !m->uses;
  if (m) m->uses++;
  int rc = tb_regions_add_tagged(&l->regions, base, len, tag, region);
  if (rc && m) let_go(m);
  if (!rc && first) m->founder = *region, m->open = true;
  return rc;
}

int verbs_mem_unreg(tb_link *link, uint32_t region) {
  verbs_link *l = verbs_of(link);
  if (verbs_tx_reap(link, 0) != l->refs) return -EBUSY;
  uint32_t tag = tb_regions_tag(&l->regions, region);
  int rc = tb_regions_remove(&l->regions, region);
  if (rc || !tag) return rc;
  verbs_mr *m = &l->mrs[tag - 1];
  if (m->founder == region) m->open = false;
  let_go(m);
  return 0;
}

struct ibv_mr *verbs_mr_of(const verbs_link *l, uint32_t region) {
  uint32_t tag = tb_regions_tag(&l->regions, region);
  return tag ? l->mrs[tag - 1].mr : NULL;
}

void verbs_mrs_close(verbs_link *l) {
  for (uint32_t i = 0; i < VERBS_MRS_MAX; i++)
    if (l->mrs[i].mr) ibv_dereg_mr(l->mrs[i].mr);
}
