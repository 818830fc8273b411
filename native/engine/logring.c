/* logring.c - bounded log between many writers and one reader. */
#include "engine/logring.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
  int level;
  char text[TB_LOG_LINE];
} log_line;

struct tb_logring {
  pthread_mutex_t lock;
  uint32_t owners;
  uint32_t size, used, oldest;
  uint64_t dropped, announced;
  int echo_level;
  char who[64];
  log_line *lines;
};

int tb_logring_new(uint32_t lines, tb_logring **out) {
  if (lines == 0) return -EINVAL;
  tb_logring *ring = calloc(1, sizeof *ring);
  if (ring) ring->lines = calloc(lines, sizeof *ring->lines);
  if (!ring || !ring->lines) {
    free(ring);
    return -ENOMEM;
  }
  ring->size = lines;
  ring->owners = 1;
  ring->echo_level = TB_LOG_OFF;
  pthread_mutex_init(&ring->lock, NULL);
  *out = ring;
  return 0;
}

void tb_logring_hold(tb_logring *ring) {
  pthread_mutex_lock(&ring->lock);
  ring->owners++;
  pthread_mutex_unlock(&ring->lock);
}

void tb_logring_free(tb_logring *ring) {
  if (!ring) return;
  pthread_mutex_lock(&ring->lock);
  bool last = !--ring->owners;
  pthread_mutex_unlock(&ring->lock);
  if (!last) return;
  pthread_mutex_destroy(&ring->lock);
  free(ring->lines);
  free(ring);
}

void tb_logring_echo(tb_logring *ring, int level, const char *who) {
  pthread_mutex_lock(&ring->lock);
  ring->echo_level = level;
  snprintf(ring->who, sizeof ring->who, "%s", who);
  pthread_mutex_unlock(&ring->lock);
}

static const char *level_name(int level) {
  return level >= TB_LOG_ERROR     ? "ERROR"
         : level >= TB_LOG_WARNING ? "WARNING"
         : level >= TB_LOG_INFO    ? "INFO"
                                   : "DEBUG";
}

/* One write per line: lines of several processes that share a terminal do not mix. */
static void echo(const char *who, int level, const char *text) {
  char line[TB_LOG_LINE + 128];
  int n = snprintf(line, sizeof line, "tailbound[%s] %s: %s\n", who, level_name(level), text);
  if (n < 0) return;
  if ((size_t)n >= sizeof line) n = sizeof line - 1;
  ssize_t written = write(STDERR_FILENO, line, (size_t)n);
  (void)written; /* a closed stderr is not worth an error: the line is in the ring */
}

void tb_logring_put(tb_logring *ring, int level, const char *fmt, ...) {
  log_line line = {.level = level};
  va_list args;
  va_start(args, fmt);
  vsnprintf(line.text, sizeof line.text, fmt, args);
  va_end(args);
  for (char *c = line.text; *c; c++)
    if (*c == '\n' || *c == '\r') *c = ' ';

  char who[sizeof ring->who];
  pthread_mutex_lock(&ring->lock);
  if (ring->used == ring->size) {
    ring->oldest = (ring->oldest + 1) % ring->size;
    ring->used--;
    ring->dropped++;
  }
  ring->lines[(ring->oldest + ring->used) % ring->size] = line;
  ring->used++;
  bool loud = level >= ring->echo_level;
  memcpy(who, ring->who, sizeof who);
  pthread_mutex_unlock(&ring->lock);
  if (loud) echo(who, level, line.text); /* outside the lock: a slow terminal must not stop the progress thread */
}

int tb_logring_next(tb_logring *ring, char *out, uint32_t n, int *level) {
  int found = 0;
  pthread_mutex_lock(&ring->lock);
  if (ring->dropped != ring->announced) {
    snprintf(out, n, "%llu log lines were lost because nobody read the log in time",
             (unsigned long long)(ring->dropped - ring->announced));
    *level = TB_LOG_WARNING;
    ring->announced = ring->dropped;
    found = 1;
  } else if (ring->used) {
    const log_line *line = &ring->lines[ring->oldest];
    snprintf(out, n, "%s", line->text);
    *level = line->level;
    ring->oldest = (ring->oldest + 1) % ring->size;
    ring->used--;
    found = 1;
  }
  pthread_mutex_unlock(&ring->lock);
  return found;
}

uint64_t tb_logring_dropped(tb_logring *ring) {
  pthread_mutex_lock(&ring->lock);
  uint64_t dropped = ring->dropped;
  pthread_mutex_unlock(&ring->lock);
  return dropped;
}
