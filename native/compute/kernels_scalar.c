/* kernels_scalar.c - the loops for whatever the compiler's baseline is (SSE2 on x86-64, NEON on aarch64). */
#if defined(__GNUC__) && !defined(__clang__)
/* The vectoriser at -O2 takes no loop of unknown length; nobody reads the floating-point exception flags. */
#pragma GCC optimize("O3", "no-trapping-math")
#endif
#include "compute/kernels.h"

static bool always(void) { return true; }

#define TB_TARGET
#define TB_KERNELS tb_kernels_scalar
#define TB_ISA "scalar"
#define TB_USABLE always
#include "compute/kernels_loops.h"
