/* engine_fixture.h - ranks that are threads of this process, over udp on the loopback device. */
#ifndef ENGINE_FIXTURE_H
#define ENGINE_FIXTURE_H
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "comm_call.h"

enum { RANKS = 4, COUNT = 3000 };
static const __attribute__((unused)) uint64_t MS = 1000000, EXACT = UINT64_MAX;

/* An exchange for ranks that are threads: everybody puts its blob down, the last one lets all of them go. */
typedef struct {
  pthread_mutex_t lock;
  pthread_cond_t all;
  int n, here;
  unsigned turn;
  uint8_t *blobs[2];
  int fail_rank; /* this one's exchange fails; -1 = none */
} hall;
typedef struct { hall *h; int rank; } seat;

static inline int exchange(void *ctx, const char *tag, const void *mine, uint32_t len, void *all, uint32_t stride) {
  seat *s = ctx;
  hall *h = s->h;
  if (!tag || stride > 65536 / RANKS || len > stride) abort();
  if (h->fail_rank == s->rank) return -EIO;
  pthread_mutex_lock(&h->lock);
  unsigned turn = h->turn;
  uint8_t *table = h->blobs[turn & 1];
  memset(table + (size_t)s->rank * stride, 0, stride);
  memcpy(table + (size_t)s->rank * stride, mine, len);
  if (++h->here == h->n) {
    h->here = 0;
    h->turn++;
    pthread_cond_broadcast(&h->all);
  }
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += 20;
  int rc = 0;
  while (h->turn == turn && rc == 0) rc = pthread_cond_timedwait(&h->all, &h->lock, &until);
  if (rc == 0) memcpy(all, table, (size_t)stride * (size_t)h->n);
  pthread_mutex_unlock(&h->lock);
  return -rc;
}

typedef struct { int rank, n, rc; hall *h; tb_comm *comm; const char *option[4]; char error[300]; } starter;

static inline void *begin(void *arg) {
  starter *s = arg;
  seat at = {s->h, s->rank};
  tb_config *cfg;
  char text[16];
  if ((s->rc = tb_config_new(&cfg))) return NULL;
  snprintf(text, sizeof text, "%d", s->rank);
  tb_config_set(cfg, "rank", text);
  snprintf(text, sizeof text, "%d", s->n);
  tb_config_set(cfg, "size", text);
  tb_config_set(cfg, "interface", "=lo");
  tb_config_set(cfg, "log", "off");
  tb_config_set(cfg, "buffer", "1M");
  for (int i = 0; i < 4 && s->option[i]; i += 2)
    if (!s->rc) s->rc = tb_config_set(cfg, s->option[i], s->option[i + 1]);
  if (!s->rc) s->rc = tb_init(cfg, exchange, &at, &s->comm);
  if (s->rc) snprintf(s->error, sizeof s->error, "%s", tb_last_error());
  tb_config_free(cfg);
  return NULL;
}

static inline void hall_new(hall *h, int n) {
  *h = (hall){.n = n, .fail_rank = -1};
  pthread_mutex_init(&h->lock, NULL);
  pthread_cond_init(&h->all, NULL);
  for (int i = 0; i < 2; i++) h->blobs[i] = calloc(1, 65536);
}

static inline void hall_free(hall *h) {
  free(h->blobs[0]);
  free(h->blobs[1]);
  pthread_mutex_destroy(&h->lock);
  pthread_cond_destroy(&h->all);
}

static inline void up_with(int n, tb_comm **comm, const char *name, const char *value) {
  hall h;
  starter s[RANKS];
  pthread_t t[RANKS];
  hall_new(&h, n);
  for (int r = 0; r < n; r++) {
    s[r] = (starter){.rank = r, .n = n, .h = &h, .option = {name, value}};
    assert_int_equal(pthread_create(&t[r], NULL, begin, &s[r]), 0);
  }
  for (int r = 0; r < n; r++) pthread_join(t[r], NULL);
  for (int r = 0; r < n; r++) {
    if (s[r].rc) fail_msg("rank %d: %s", r, s[r].error);
    comm[r] = s[r].comm;
  }
  hall_free(&h);
}

static inline void up(int n, tb_comm **comm) { up_with(n, comm, NULL, NULL); }

static inline void *close_one(void *comm) {
  if (tb_close(comm)) abort();
  return NULL;
}

static inline void down(int n, tb_comm **comm) { /* at once, as real ranks do: each lingers for the others */
  pthread_t t[RANKS];
  for (int r = 0; r < n; r++) assert_int_equal(pthread_create(&t[r], NULL, close_one, comm[r]), 0);
  for (int r = 0; r < n; r++) pthread_join(t[r], NULL);
}

static inline void fill(float *x, int count, float first) {
  for (int i = 0; i < count; i++) x[i] = first + (float)i;
}

#endif
