/* compute_bench.c - speed of the Hadamard transform and of the wire encodings beside memcpy.
 *
 * usage: compute_bench [bytes of the tensor, default 26214400] [milliseconds per figure, default 100]
 *
 * GB/s counts bytes of the tensor, read or written: transform and memcpy of b bytes both count 2b. Memcpy is measured
 * anew before each figure, as is all that a ratio compares. The best pass counts: what interferes makes it slower.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "compute/hadamard.h"
#include "compute/kernels.h"
#include "compute/seed.h"

static uint8_t *x, *y;
static size_t bytes;
static double seconds_per_figure;
static volatile uint8_t keep; /* results that nobody reads would be computed by nobody */

typedef struct job job;
struct job {
  void (*run)(const job *);
  tb_dtype t;
  tb_hadamard plan;
};

static double now(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static void copy(const job *j) { (void)j, memcpy(y, x, bytes), keep += y[bytes / 2]; }
static void forward(const job *j) { tb_hadamard_forward(&j->plan, j->t, y, x); }
static void inverse(const job *j) { tb_hadamard_inverse(&j->plan, j->t, y, x, NULL); }

static double seconds_of(const job *j) {
  double start = now();
  j->run(j);
  return now() - start;
}

/* The job and memcpy in turn; *ratio is memcpy's time over the job's. */
static double gb_per_s(const job *j, double *ratio) {
  const job plain = {.run = copy};
  double best = 1e9, best_copy = 1e9, end = now() + seconds_per_figure;
  do {
    double s = seconds_of(&plain);
    if (s < best_copy) best_copy = s;
    s = seconds_of(j);
    if (s < best) best = s;
  } while (now() < end);
  *ratio = best_copy / best;
  return 2e-9 * (double)bytes / best;
}

static void print_transform(void) {
  printf("\n%s\n%-9s %6s %9s %9s %9s %9s\n", tb_compute_isa(), "dtype", "block", "forward", "/memcpy", "inverse",
         "/memcpy");
  for (int t = TB_F32; t <= TB_F64; t++)
    for (unsigned log2 = TB_HADAMARD_LEAST_LOG2; log2 <= TB_HADAMARD_MOST_LOG2; log2++) {
      job j = {.run = forward, .t = (tb_dtype)t};
      double ratio, back_ratio;
      if (tb_hadamard_plan(&j.plan, bytes / tb_dtype_size(j.t), log2, tb_seed(1, 2))) abort();
      double rate = gb_per_s(&j, &ratio);
      j.run = inverse;
      double back = gb_per_s(&j, &back_ratio);
      printf("%-9s %6u %9.2f %9.2f %9.2f %9.2f\n", tb_dtype_name(j.t), 1u << log2, rate, ratio, back, back_ratio);
    }
}

int main(int argc, char **argv) {
  long long size = argc > 1 ? atoll(argv[1]) : 26214400, ms = argc > 2 ? atoll(argv[2]) : 100;
  if (argc > 3 || size < 8 || size > 1 << 30 || ms < 1 || ms > 10000) {
    fprintf(stderr, "usage: compute_bench [bytes of the tensor, 8 to 2^30] [ms per figure, 1 to 10000]\n");
    return 2;
  }
  bytes = (size_t)size / 8 * 8;
  seconds_per_figure = 1e-3 * (double)ms;
  x = aligned_alloc(64, (bytes + 63) / 64 * 64);
  y = aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (!x || !y) {
    fprintf(stderr, "compute_bench: no memory for a tensor of %zu bytes; ask for fewer\n", bytes);
    return 1;
  }
  for (size_t i = 0; i < bytes / 4; i++) { /* -1 .. 1 in float32, and something small in float64 */
    float f = (float)(int32_t)tb_random32(1, (uint32_t)i) * 0x1p-31f;
    memcpy(x + 4 * i, &f, 4);
  }
  memcpy(y, x, bytes);
  const job plain = {.run = copy};
  double ratio;
  printf("tensor of %zu bytes; GB/s of bytes read and written\n\nmemcpy %.1f\n", bytes, gb_per_s(&plain, &ratio));
  const tb_kernels *k;
  for (unsigned i = 0; (k = tb_kernels_at(i)); i++) {
    tb_kernels_use(k);
    print_transform();
  }
  free(x), free(y);
  return 0;
}
