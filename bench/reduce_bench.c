/* reduce_bench.c - speed of the reduction kernels and of the check sum beside memcpy.
 *
 * usage: reduce_bench [bytes of one source, default 8192] [milliseconds per figure, default 30]
 *
 * GB/s counts every byte a kernel reads or writes, so memcpy of b bytes counts 2b, "next" on float32 3b (source and
 * accumulator read, accumulator written). Small sizes show the loops, sizes beyond the caches show the memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "compute/crc32c.h"
#include "compute/kernels.h"

static uint8_t *acc, *x, *y;
static size_t bytes;
static double seconds_per_figure;
static volatile uint32_t keep; /* results that nobody reads would be computed by nobody */

typedef struct {
  enum { FIRST, PAIR, NEXT, LAST_COPY, LAST_SCALE, COPY, CRC } what;
  tb_dtype t;
  tb_redop op;
  tb_crc32c_fn *crc;
} job;

static double now(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* Runs it once; returns the bytes it moved. */
static size_t run(const job *j) {
  size_t n = bytes / (j->what >= COPY ? 1 : tb_dtype_size(j->t)), in = bytes, wide = n * tb_acc_size(j->t);
  switch (j->what) {
  case FIRST: tb_reduce_first(j->t, acc, x, n); return in + wide;
  case PAIR: tb_reduce_pair(j->op, j->t, acc, x, y, n); return 2 * in + wide;
  case NEXT: tb_reduce_next(j->op, j->t, acc, x, n); return in + 2 * wide;
  case LAST_COPY: tb_reduce_last(j->t, x, acc, 4, 4, n); return in + wide;
  case LAST_SCALE: tb_reduce_last(j->t, x, acc, 4, 3, n); return in + wide;
  case COPY: memcpy(acc, x, n); keep += acc[n / 2]; return 2 * in;
  default: keep += j->crc(keep, x, n); return in;
  }
}

/* The best of the passes: what interferes only ever makes it slower. Sources and accumulator are zero: random bits
 * would soon make infinities and subnormals, which some processors treat slowly. */
static double gb_per_s(const job *j) {
  double best = 0, end = now() + seconds_per_figure;
  memset(x, 0, bytes), memset(y, 0, bytes), memset(acc, 0, 4 * bytes);
  run(j);
  do {
    size_t moved = 0, repeats = 1 + (1 << 17) / bytes;
    double start = now();
    for (size_t i = 0; i < repeats; i++) moved += run(j);
    double rate = (double)moved / (now() - start) * 1e-9;
    if (rate > best) best = rate;
  } while (now() < end);
  return best;
}

static void print_isa(double copy) {
  static const tb_redop ops[] = {TB_SUM, TB_MIN, TB_PROD};
  printf("\n%s\n%-9s %-5s %9s %9s %9s %9s %9s %12s\n", tb_compute_isa(), "dtype", "op", "first", "pair", "next",
         "last", "last*4/3", "next/memcpy");
  for (int t = 0; t < TB_DTYPES; t++)
    for (size_t o = 0; o < sizeof ops / sizeof *ops; o++) {
      double rate[5];
      for (int what = FIRST; what <= LAST_SCALE; what++) {
        job j = {.what = what, .t = (tb_dtype)t, .op = ops[o]};
        bool once = what == FIRST || what >= LAST_COPY; /* the same for every operation */
        rate[what] = once && o > 0 ? 0 : gb_per_s(&j);
      }
      printf("%-9s %-5s", tb_dtype_name((tb_dtype)t), tb_redop_name(ops[o]));
      for (int what = FIRST; what <= LAST_SCALE; what++)
        if (rate[what] > 0) printf(" %9.1f", rate[what]);
        else printf(" %9s", "\"");
      printf(" %12.2f\n", rate[NEXT] / copy);
    }
}

int main(int argc, char **argv) {
  long long size = argc > 1 ? atoll(argv[1]) : 8192, ms = argc > 2 ? atoll(argv[2]) : 30;
  if (argc > 3 || size < 8 || size > 1 << 30 || ms < 1 || ms > 10000) {
    fprintf(stderr, "usage: reduce_bench [bytes of one source, 8 to 2^30] [ms per figure, 1 to 10000]\n");
    return 2;
  }
  bytes = (size_t)size / 8 * 8;
  seconds_per_figure = 1e-3 * (double)ms;
  acc = aligned_alloc(64, (4 * bytes + 63) / 64 * 64);
  x = aligned_alloc(64, (bytes + 63) / 64 * 64);
  y = aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (!acc || !x || !y) {
    fprintf(stderr, "reduce_bench: no memory for sources of %zu bytes; ask for fewer\n", bytes);
    return 1;
  }
  job copy = {.what = COPY}, table = {.what = CRC, .crc = tb_crc32c_by_table()},
      hardware = {.what = CRC, .crc = tb_crc32c_by_hardware()};
  double copy_rate = gb_per_s(&copy);
  printf("sources of %zu bytes; GB/s of bytes read and written\n\nmemcpy %.1f\ncrc32c table %.1f\n", bytes, copy_rate,
         gb_per_s(&table));
  if (hardware.crc) printf("crc32c hardware %.1f\n", gb_per_s(&hardware));
  const tb_kernels *k;
  for (unsigned i = 0; (k = tb_kernels_at(i)); i++) {
    tb_kernels_use(k);
    print_isa(copy_rate);
  }
  free(acc), free(x), free(y);
  return 0;
}
