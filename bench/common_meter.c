/* common_meter.c - see common_meter.h. */
#include "common_meter.h"
#include <errno.h>
#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void bench_meter_open(bench_meter *m) {
  struct perf_event_attr a = {.type = PERF_TYPE_HARDWARE, .size = sizeof a, .config = PERF_COUNT_HW_INSTRUCTIONS,
                              .exclude_hv = 1};
  m->fd = (int)syscall(SYS_perf_event_open, &a, 0, -1, -1, 0);
  m->why_not = m->fd < 0 ? errno : 0;
}

void bench_meter_close(bench_meter *m) {
  if (m->fd >= 0) close(m->fd);
  m->fd = -1;
}

static uint64_t clock_of(clockid_t id) {
  struct timespec t;
  clock_gettime(id, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

bench_reading bench_meter_read(const bench_meter *m) {
  bench_reading r = {.cpu_ns = clock_of(CLOCK_THREAD_CPUTIME_ID), .ns = clock_of(CLOCK_MONOTONIC)};
  r.ticks = bench_ticks();
  if (m->fd >= 0 && read(m->fd, &r.instructions, sizeof r.instructions) != sizeof r.instructions) r.instructions = 0;
  return r;
}

bench_reading bench_meter_since(const bench_meter *m, const bench_reading *before) {
  bench_reading r = bench_meter_read(m);
  r.ns -= before->ns;
  r.cpu_ns -= before->cpu_ns;
  r.ticks -= before->ticks;
  r.instructions -= before->instructions;
  return r;
}
