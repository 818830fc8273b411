/* say.c - see say.h. */
#include "plugins/common/say.h"
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

uint64_t tb_plugin_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

int tb_plugin_refuse(char *error, size_t n, int rc, const char *format, ...) {
  if (!error || !n) return rc;
  va_list args;
  va_start(args, format);
  vsnprintf(error, n, format, args);
  va_end(args);
  return rc;
}

void tb_plugin_event(tb_events *e, int level, const char *format, ...) {
  va_list args;
  va_start(args, format);
  tb_events_add(e, level, format, args);
  va_end(args);
}

void tb_plugin_signals_hold(sigset_t *before) {
  sigset_t held;
  sigfillset(&held);
  sigdelset(&held, SIGBUS);
  sigdelset(&held, SIGSEGV);
  sigdelset(&held, SIGFPE);
  sigdelset(&held, SIGILL);
  sigdelset(&held, SIGTRAP);
  sigdelset(&held, SIGABRT);
  pthread_sigmask(SIG_SETMASK, &held, before);
}
