/* rendezvous_fixture.h - ranks as threads of this process, strangers as raw sockets. Threads only record; the main
 * thread asserts. Upper time limits are generous because the machine is shared; what matters is that there is one. */
#ifndef RENDEZVOUS_FIXTURE_H
#define RENDEZVOUS_FIXTURE_H
#include "engine/rendezvous.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/rendezvous_internal.h"

enum { MS = 1000000, SLACK_MS = 1500, MOST = 64 };
enum { JOINED_MS = 500 }; /* by then threads that began together have met, on a busy machine as well */

typedef struct {
  const char *addr, *job, *tag;
  uint16_t port;
  int rank, size, late_ms, timeout_ms, exchanges;
  uint32_t stride;
  bool interrupt; /* the hook stops it after JOINED_MS */
  bool dies;      /* closes after open */
  bool dawdles;   /* stays away from the exchange for its time-out */
  tb_rendezvous *r;
  int open_err, exchange_err, wrong;
  uint64_t began, took_ms, strays;
  char error[1024];
  pthread_t thread;
} member;

static inline int stop_after(void *until) { return tb_rv_now() >= *(uint64_t *)until; }

static inline void pause_ms(int ms) { usleep((useconds_t)ms * 1000); }

/* What rank `from` gives in exchange k. */
static inline uint32_t blob(uint8_t *out, int from, int k, uint32_t stride) {
  uint32_t len = 1 + (uint32_t)(from * 7 + k) % stride;
  for (uint32_t i = 0; i < len; i++) out[i] = (uint8_t)(from * 31 + k * 17 + (int)i + 1);
  return len;
}

static inline int count_wrong(const uint8_t *all, int size, int k, uint32_t stride) {
  uint8_t *wanted = malloc(stride);
  int wrong = 0;
  for (int from = 0; from < size; from++) {
    memset(wanted, 0, stride);
    blob(wanted, from, k, stride);
    wrong += memcmp(all + (size_t)from * stride, wanted, stride) != 0;
  }
  free(wanted);
  return wrong;
}

static inline void *live(void *arg) {
  member *m = arg;
  pause_ms(m->late_ms);
  uint64_t start = tb_rv_now(), deadline = start + (uint64_t)m->timeout_ms * MS, stop = start + (uint64_t)JOINED_MS * MS;
  if (m->interrupt) tb_rendezvous_set_interrupt(stop_after, &stop);
  m->open_err =
      tb_rendezvous_open(m->addr, m->port, m->rank, m->size, m->job, deadline, &m->r, m->error, sizeof m->error);
  if (!m->open_err && !m->dies) {
    uint8_t *mine = calloc(1, m->stride), *all = malloc((size_t)m->size * m->stride);
    if (m->dawdles) pause_ms(m->timeout_ms);
    for (int k = 0; k < m->exchanges && !m->exchange_err; k++) {
      uint32_t len = blob(mine, m->rank, k, m->stride);
      m->exchange_err = tb_rendezvous_exchange(m->r, m->tag, mine, len, all, m->stride,
                                               start + (uint64_t)m->timeout_ms * MS, m->error, sizeof m->error);
      if (!m->exchange_err) m->wrong += count_wrong(all, m->size, k, m->stride);
    }
    free(mine);
    free(all);
  }
  m->began = start;
  m->took_ms = (tb_rv_now() - start) / MS;
  if (!m->open_err) {
    m->strays = tb_rendezvous_strays(m->r);
    tb_rendezvous_close(m->r);
  }
  tb_rendezvous_set_interrupt(NULL, NULL);
  return NULL;
}

/* Below the range of ephemeral ports: no connection's own end takes this one within the moment, and a connect to it
 * while nobody listens does not meet itself. */
static inline uint16_t free_port(void) {
  static unsigned next;
  if (!next) next = (unsigned)getpid() * 37;
  for (int tries = 0; tries < 1000; tries++) {
    uint16_t port = (uint16_t)(20000 + next++ % 12000);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), rc = bind(fd, (struct sockaddr *)&a, sizeof a);
    close(fd);
    if (!rc) return port;
  }
  fail_msg("no free port between 20000 and 32000");
  return 0;
}

static inline void fill(member *m, int size, int timeout_ms) {
  uint16_t port = free_port();
  for (int i = 0; i < size; i++)
    m[i] = (member){.addr = "127.0.0.1",
                    .job = "j",
                    .tag = "addr",
                    .port = port,
                    .rank = i,
                    .size = size,
                    .timeout_ms = timeout_ms,
                    .exchanges = 1,
                    .stride = 64};
}

static inline void start(member *m) { assert_int_equal(pthread_create(&m->thread, NULL, live, m), 0); }
static inline void finish(member *m) { assert_int_equal(pthread_join(m->thread, NULL), 0); }

static inline void run_all(member *m, int n) {
  for (int i = 0; i < n; i++) start(&m[i]);
  for (int i = 0; i < n; i++) finish(&m[i]);
}

static inline void succeeded(const member *m, int n) {
  for (int i = 0; i < n; i++) {
    if (m[i].open_err || m[i].exchange_err)
      fail_msg("rank %d: %d %d %s", m[i].rank, m[i].open_err, m[i].exchange_err, m[i].error);
    assert_int_equal(m[i].wrong, 0);
  }
}

/* It ended no sooner than this, on the clock that all ranks share: their own began when their threads did. */
static inline void ended_after(const member *m, uint64_t when) {
  uint64_t end = m->began + (m->took_ms + 1) * MS;
  if (end < when) fail_msg("rank %d ended %llu us too soon", m->rank, (unsigned long long)(when - end) / 1000);
}

static inline void says(const member *m, const char *words) {
  if (!strstr(m->error, words)) fail_msg("rank %d: '%s' is not in: %s", m->rank, words, m->error);
}

static inline int raw_connect(uint16_t port) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  for (int i = 0; i < 500; i++) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0) return fd;
    close(fd);
    pause_ms(10);
  }
  return -1;
}

static inline void raw_hello(int fd, int version, int rank, int size, const char *job) {
  uint8_t message[RV_HEAD + RV_JOB];
  size_t len = strlen(job);
  tb_rv_encode(&(rv_head){.version = (uint16_t)version,
                          .type = RV_HELLO,
                          .rank = (uint32_t)rank,
                          .size = (uint32_t)size,
                          .len = (uint32_t)len,
                          .nonce = 1},
               message);
  memcpy(message + RV_HEAD, job, len);
  assert_int_equal(send(fd, message, RV_HEAD + len, MSG_NOSIGNAL), (ssize_t)(RV_HEAD + len));
}

#endif
