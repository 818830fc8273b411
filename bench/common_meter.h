/* common_meter.h - what a stretch of one thread cost: time, processor time, time stamps, instructions.
 *
 * Ticks are those of the time stamp counter (x86) or its like. It counts at a fixed rate, whatever the core's frequency
 * is at the moment: ticks are a finer clock, not the core's cycles. */
#ifndef BENCH_METER_H
#define BENCH_METER_H
#include <stdint.h>
#include <sys/types.h>

typedef struct {
  uint64_t ns, cpu_ns, ticks, instructions;
} bench_reading;

typedef struct {
  int fd;       /* of the counter of instructions, kernel included; -1 = none */
  int why_not;  /* errno of perf_event_open then */
} bench_meter;

void bench_meter_open(bench_meter *m); /* of the calling thread */
void bench_meter_close(bench_meter *m);
bench_reading bench_meter_read(const bench_meter *m);
bench_reading bench_meter_since(const bench_meter *m, const bench_reading *before);

static inline uint64_t bench_ticks(void) {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
  uint64_t t;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(t));
  return t;
#else
#error "this machine's time stamp counter is not known here"
#endif
}

/* Instructions in user space, exactly, where no hardware counts them: another process steps through a thread of a
 * child. The child marks stretches; the numbers of steps in between come out in that order. Kernel code is not seen. */
void bench_steps_mark(void);  /* by the child, before and after each stretch; kills one that nobody traces */
int bench_steps_seize(pid_t child); /* by the parent; -errno */
/* Until the child writes to fd or ends: fills in at most `most` counts, the marks' own steps included. */
int bench_steps_follow(pid_t child, int fd, uint64_t *counts, int most);

#endif
