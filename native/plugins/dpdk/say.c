/* say.c - sentences of refusal, and the clock. */
#include "plugins/dpdk/dpdk.h"
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

uint64_t dpdk_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

int dpdk_refuse(char *error, size_t n, int rc, const char *format, ...) {
  if (!error || !n) return rc;
  va_list args;
  va_start(args, format);
  vsnprintf(error, n, format, args);
  va_end(args);
  return rc;
}
