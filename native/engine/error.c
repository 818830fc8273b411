/* error.c - the per-thread sentence of the last failure. */
#include "engine/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char sentence[1024];

static void set(const char *fmt, va_list args) {
  char next[sizeof sentence]; /* not written in place: an argument may be the old sentence */
  vsnprintf(next, sizeof next, fmt, args);
  memcpy(sentence, next, strlen(next) + 1);
}

void tb_set_error(const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  set(fmt, args);
  va_end(args);
}

int tb_fail(int err, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  set(fmt, args);
  va_end(args);
  return err;
}

const char *tb_last_error(void) { return sentence; }
