/* compute_bench.c - speed of the Hadamard transform and of the wire encodings beside memcpy, on one core.
 *
 * usage: compute_bench [bytes of the tensor, default 26214400] [milliseconds per figure, default 100]
 *
 * GB/s counts every byte that is read or written: transform and memcpy of b bytes both count 2b. Memcpy of the tensor
 * and the job take turns, and the best pass of each counts: what interferes only ever makes it slower. Time is the
 * thread's own: work of others costs caches and memory bandwidth here, but not its turn on the processor.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "compute/hadamard.h"
#include "compute/kernels.h"
#include "compute/seed.h"
#include "compute/wire_type.h"

#define CHUNK 2048 /* elements that are encoded together */

static uint8_t *x, *y, *packed;
static size_t bytes;
static double seconds_per_figure;
static volatile uint8_t keep; /* results that nobody reads would be computed by nobody */

typedef struct job job;
struct job {
  void (*run)(const job *);
  size_t moved; /* bytes */
  tb_dtype t;   /* of elements, or on the wire */
  tb_hadamard plan;
};

static double now(void) {
  struct timespec ts;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
  return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static void copy(const job *j) { (void)j, memcpy(y, x, bytes), keep += y[bytes / 2]; }
static void forward(const job *j) { tb_hadamard_forward(&j->plan, j->t, y, x); }
static void inverse(const job *j) { tb_hadamard_inverse(&j->plan, j->t, y, x, NULL); }

/* The tensor as float32, chunk after chunk; y takes residuals and accumulators. */
#define EACH_CHUNK(i, m) \
  for (size_t i = 0, m; m = bytes / 4 - i < CHUNK ? bytes / 4 - i : CHUNK, i < bytes / 4; i += m)
static void encode(const job *j) {
  EACH_CHUNK(i, m) tb_wire_encode(j->t, TB_F32, packed + i * 4, x + i * 4, m, i, NULL);
}
static void encode_residual(const job *j) {
  EACH_CHUNK(i, m) tb_wire_encode(j->t, TB_F32, packed + i * 4, x + i * 4, m, i, y + i * 4);
}
static void first(const job *j) { EACH_CHUNK(i, m) tb_wire_first(j->t, (float *)(void *)y + i, packed + i * 4, m); }
static void next(const job *j) { EACH_CHUNK(i, m) tb_wire_next(j->t, (float *)(void *)y + i, packed + i * 4, m); }

static double seconds_of(const job *j) {
  double start = now();
  j->run(j);
  return now() - start;
}

/* The job and memcpy in turn; *ratio is the job's rate over memcpy's. */
static double gb_per_s(const job *j, double *ratio) {
  const job plain = {.run = copy};
  double copied = 2 * (double)bytes, best = 1e9, best_copy = 1e9, end = now() + seconds_per_figure;
  do {
    double s = seconds_of(&plain);
    if (s < best_copy) best_copy = s;
    s = seconds_of(j);
    if (s < best) best = s;
  } while (now() < end);
  *ratio = (double)j->moved / best / (copied / best_copy);
  return 1e-9 * (double)j->moved / best;
}

static void print_transform(void) {
  printf("\n%s\n%-9s %6s %9s %9s %9s %9s\n", tb_compute_isa(), "dtype", "block", "forward", "/memcpy", "inverse",
         "/memcpy");
  for (int t = TB_F32; t <= TB_F64; t++)
    for (unsigned log2 = TB_HADAMARD_LEAST_LOG2; log2 <= TB_HADAMARD_MOST_LOG2; log2++) {
      job j = {.run = forward, .moved = 2 * bytes, .t = (tb_dtype)t};
      double ratio, back_ratio;
      if (tb_hadamard_plan(&j.plan, bytes / tb_dtype_size(j.t), log2, tb_seed(1, 2))) abort();
      double rate = gb_per_s(&j, &ratio);
      j.run = inverse;
      double back = gb_per_s(&j, &back_ratio);
      printf("%-9s %6u %9.2f %9.2f %9.2f %9.2f\n", tb_dtype_name(j.t), 1u << log2, rate, ratio, back, back_ratio);
    }
}

static void print_wire(void) {
  static const struct {
    const char *name;
    void (*run)(const job *);
    size_t words; /* of four bytes that are read or written for each element, beside the encoded one */
  } ways[] = {{"encode", encode, 1}, {"residual", encode_residual, 2}, {"first", first, 1}, {"next", next, 2}};
  static const tb_dtype wires[] = {TB_BF16, TB_F16, TB_I8};
  printf("\n%s\n%-9s", tb_compute_isa(), "wire");
  for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) printf(" %9s %9s", ways[w].name, "/memcpy");
  printf("\n");
  for (size_t i = 0; i < sizeof wires / sizeof *wires; i++) {
    printf("%-9s", tb_dtype_name(wires[i]));
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
      double ratio;
      job j = {.run = ways[w].run, .t = wires[i], .moved = ways[w].words * bytes + bytes / 4 * tb_dtype_size(wires[i])};
      double rate = gb_per_s(&j, &ratio);
      printf(" %9.2f %9.2f", rate, ratio);
    }
    printf("\n");
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
  packed = aligned_alloc(64, (bytes + 127) / 64 * 64); /* a chunk's scale may be more than its last elements save */
  if (!x || !y || !packed) {
    fprintf(stderr, "compute_bench: no memory for a tensor of %zu bytes; ask for fewer\n", bytes);
    return 1;
  }
  for (size_t i = 0; i < bytes / 4; i++) { /* -1 .. 1 in float32, and something small in float64 */
    float f = (float)(int32_t)tb_random32(1, (uint32_t)i) * 0x1p-31f;
    memcpy(x + 4 * i, &f, 4);
  }
  memcpy(y, x, bytes);
  const job plain = {.run = copy, .moved = 2 * bytes};
  double ratio;
  printf("tensor of %zu bytes; GB/s of bytes read and written\n\nmemcpy %.1f\n", bytes, gb_per_s(&plain, &ratio));
  const tb_kernels *k;
  for (unsigned i = 0; (k = tb_kernels_at(i)); i++) {
    tb_kernels_use(k);
    print_transform();
    print_wire();
  }
  free(x), free(y), free(packed);
  return 0;
}
