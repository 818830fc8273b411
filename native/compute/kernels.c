/* kernels.c - which instruction set is in force: the best that this processor has, chosen at the first use. */
#include "compute/kernels.h"
#include <stdatomic.h>

static _Atomic(const tb_kernels *) chosen;

const tb_kernels *tb_kernels_at(unsigned i) {
  static const tb_kernels *const all[] = {
#if defined(__x86_64__)
    &tb_kernels_avx512, &tb_kernels_avx2,
#endif
    &tb_kernels_scalar,
  };
  for (size_t k = 0; k < sizeof all / sizeof *all; k++)
    if (all[k]->usable() && i-- == 0) return all[k];
  return NULL;
}

void tb_kernels_use(const tb_kernels *k) { atomic_store_explicit(&chosen, k, memory_order_relaxed); }

/* Two threads may both choose: they choose the same constant table, so relaxed order is enough. */
const tb_kernels *tb_kernels_now(void) {
  const tb_kernels *k = atomic_load_explicit(&chosen, memory_order_relaxed);
  if (!k) {
    k = tb_kernels_at(0);
    tb_kernels_use(k);
  }
  return k;
}

const char *tb_compute_isa(void) { return tb_kernels_now()->isa; }
