/* test_engine.c - real communicators over udp on the loopback device, several in this process: threads that issue, wait,
 * cancel and read counters at once, and close in every state. Runs under the thread sanitizer too. */
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
#include <arpa/inet.h>
#include "comm_call.h"
#include "compute/compute.h"
#include "engine/config.h"
#include "protocol/wire.h"

enum { RANKS = 4, COUNT = 3000, FIRST_PORT = 29810 };
static const uint64_t MS = 1000000, EXACT = UINT64_MAX;

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

static int exchange(void *ctx, const char *tag, const void *mine, uint32_t len, void *all, uint32_t stride) {
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

static void *begin(void *arg) {
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

static void hall_new(hall *h, int n) {
  *h = (hall){.n = n, .fail_rank = -1};
  pthread_mutex_init(&h->lock, NULL);
  pthread_cond_init(&h->all, NULL);
  for (int i = 0; i < 2; i++) h->blobs[i] = calloc(1, 65536);
}

static void hall_free(hall *h) {
  free(h->blobs[0]);
  free(h->blobs[1]);
  pthread_mutex_destroy(&h->lock);
  pthread_cond_destroy(&h->all);
}

static void up_with(int n, tb_comm **comm, const char *name, const char *value) {
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

static void up(int n, tb_comm **comm) { up_with(n, comm, NULL, NULL); }

static void *close_one(void *comm) {
  if (tb_close(comm)) abort();
  return NULL;
}

static void down(int n, tb_comm **comm) { /* at once, as real ranks do: each lingers for the others */
  pthread_t t[RANKS];
  for (int r = 0; r < n; r++) assert_int_equal(pthread_create(&t[r], NULL, close_one, comm[r]), 0);
  for (int r = 0; r < n; r++) pthread_join(t[r], NULL);
}

static void fill(float *x, int count, float first) {
  for (int i = 0; i < count; i++) x[i] = first + (float)i;
}

static void init__sums_and_counts(void **state) {
  (void)state;
  tb_comm *comm[RANKS];
  static float x[RANKS][COUNT];
  tb_work *w[RANKS];
  up(RANKS, comm);
  for (int round = 0; round < 5; round++) {
    for (int r = 0; r < RANKS; r++) {
      assert_int_equal(tb_rank(comm[r]), r);
      assert_int_equal(tb_size(comm[r]), RANKS);
      fill(x[r], COUNT, (float)r);
      tb_call call = all_reduce("k", x[r], x[r], COUNT, EXACT);
      assert_int_equal(tb_issue(comm[r], &call, &w[r]), 0);
    }
    for (int r = 0; r < RANKS; r++) {
      tb_result res;
      double share[RANKS];
      uint8_t mask[COUNT];
      assert_int_equal(tb_wait(w[r], -1), 0);
      assert_int_equal(tb_done(w[r]), 1);
      assert_int_equal(tb_work_result(w[r], &res), 0);
      assert_true(res.received == 1.0 && res.round == (uint32_t)round);
      for (int i = 0; i < COUNT; i++) assert_true(x[r][i] == (float)(6 + 4 * i));
      assert_int_equal(tb_work_per_peer(w[r], 1, share, RANKS), 0);
      assert_int_equal(tb_work_per_peer(w[r], 3, share, RANKS), -EINVAL);
      assert_int_equal(tb_work_mask(w[r], mask, COUNT), 0);
      assert_int_equal(tb_work_mask(w[r], mask, COUNT - 1), -EINVAL);
      for (int i = 0; i < COUNT; i++) assert_int_equal(mask[i], 1);
      tb_work_free(w[r]);
    }
  }
  for (int r = 0; r < RANKS; r++) {
    assert_int_equal(counter(comm[r], -1, "operations"), 5);
    assert_int_equal(counter(comm[r], -1, "ok"), 5);
    assert_int_equal(counter(comm[r], -1, "bad_check"), 0);
    assert_true(counter(comm[r], (r + 1) % RANKS, "data_received") > 0);
  }
  uint64_t v;
  assert_int_equal(tb_counters(comm[0], RANKS, &v, 1), -EINVAL);
  assert_int_equal(tb_counters(comm[0], -2, &v, 1), -EINVAL);
  down(RANKS, comm);
}

/* Many buckets of one rank in flight, each its own registered memory. */
static void issue__many_in_flight(void **state) {
  (void)state;
  enum { BUCKETS = 40 };
  tb_comm *comm[2];
  static float x[2][BUCKETS][COUNT];
  static tb_work *w[2][BUCKETS];
  up(2, comm);
  for (int k = 0; k < BUCKETS; k++)
    for (int r = 0; r < 2; r++) {
      int b = r ? BUCKETS - 1 - k : k; /* in opposite orders */
      char key[16];
      snprintf(key, sizeof key, "bucket%d", b);
      fill(x[r][b], COUNT, (float)(r + 1000 * b));
      tb_call call = all_reduce(key, x[r][b], x[r][b], COUNT, EXACT);
      assert_int_equal(tb_issue(comm[r], &call, &w[r][b]), 0);
    }
  for (int r = 0; r < 2; r++)
    for (int b = 0; b < BUCKETS; b++) {
      assert_int_equal(tb_wait(w[r][b], -1), 0);
      for (int i = 0; i < COUNT; i++) assert_true(x[r][b][i] == (float)(1 + 2000 * b + 2 * i));
      tb_work_free(w[r][b]);
    }
  down(2, comm);
}

typedef struct { tb_comm *comm; int rank, id, wrong; bool stop; } worker;

/* Rule 22: issuing is thread-safe; each thread has keys of its own. */
static void *issues(void *arg) {
  worker *t = arg;
  float *x = malloc(COUNT * sizeof *x);
  char key[16];
  snprintf(key, sizeof key, "thread%d", t->id);
  for (int round = 0; round < 15; round++) {
    tb_work *w;
    fill(x, COUNT, (float)(t->rank + t->id));
    tb_call call = all_reduce(key, x, x, COUNT, EXACT);
    call.thread = (uint64_t)t->id + 1;
    if (tb_issue(t->comm, &call, &w)) {
      t->wrong++;
      break;
    }
    if (round % 3 == 0)
      while (!tb_done(w)) tb_wait(w, (int64_t)MS / 10);
    if (tb_wait(w, -1)) t->wrong++;
    for (int i = 0; i < COUNT; i++) t->wrong += x[i] != (float)(1 + 2 * t->id + 2 * i);
    tb_work_free(w);
  }
  free(x);
  return NULL;
}

static void *reads(void *arg) {
  worker *t = arg;
  char line[300];
  int level;
  uint64_t v[128], least;
  float x[4];
  tb_call call = all_reduce("other", x, x, 4, 0);
  while (!__atomic_load_n(&t->stop, __ATOMIC_RELAXED)) {
    t->wrong += tb_counters(t->comm, -1, v, 128) || tb_counters(t->comm, 1 - t->rank, v, 128);
    t->wrong += tb_min_deadline(t->comm, &call, &least) != 0;
    while (tb_log_next(t->comm, line, sizeof line, &level)) t->wrong += !*line;
    t->wrong += !tb_describe(t->comm) || strcmp(tb_link_name(t->comm), "udp") || tb_view(t->comm) != 1;
    nanosleep(&(struct timespec){0, 200000}, NULL);
  }
  return NULL;
}

static void threads__issue_wait_and_read_at_once(void **state) {
  (void)state;
  enum { THREADS = 3 };
  tb_comm *comm[2];
  worker w[2][THREADS + 1];
  pthread_t t[2][THREADS + 1];
  up(2, comm);
  for (int r = 0; r < 2; r++)
    for (int i = 0; i <= THREADS; i++) {
      w[r][i] = (worker){.comm = comm[r], .rank = r, .id = i};
      assert_int_equal(pthread_create(&t[r][i], NULL, i < THREADS ? issues : reads, &w[r][i]), 0);
    }
  for (int i = 0; i <= THREADS; i++)
    for (int r = 0; r < 2; r++) {
      if (i == THREADS) __atomic_store_n(&w[r][i].stop, true, __ATOMIC_RELAXED);
      pthread_join(t[r][i], NULL);
      assert_int_equal(w[r][i].wrong, 0);
    }
  down(2, comm);
}

static void wait__times_out_and_goes_on(void **state) {
  (void)state;
  tb_comm *comm[2];
  static float x[2][COUNT];
  tb_work *w[2];
  tb_result res;
  up(2, comm);
  fill(x[0], COUNT, 0);
  tb_call call = all_reduce("k", x[0], x[0], COUNT, EXACT);
  assert_int_equal(tb_issue(comm[0], &call, &w[0]), 0);
  assert_int_equal(tb_wait(w[0], 0), -EAGAIN);
  uint64_t began = tb_now();
  assert_int_equal(tb_wait(w[0], 30 * (int64_t)MS), -EAGAIN);
  assert_in_range(tb_now() - began, 30 * MS, 2000 * MS);
  assert_int_equal(tb_done(w[0]), 0);
  assert_int_equal(tb_work_result(w[0], &res), -EAGAIN);
  assert_non_null(strstr(tb_last_error(), "not done"));
  assert_string_equal(tb_work_error(w[0]), "");
  fill(x[1], COUNT, 1);
  call = all_reduce("k", x[1], x[1], COUNT, EXACT);
  assert_int_equal(tb_issue(comm[1], &call, &w[1]), 0);
  for (int r = 0; r < 2; r++) {
    assert_int_equal(tb_wait(w[r], 10000 * (int64_t)MS), 0);
    assert_true(x[r][1] == 3);
    tb_work_free(w[r]);
  }
  down(2, comm);
}

/* Rule 1: by the deadline, though the peer never comes. The machine may be busy: the slack here is generous. */
static void deadline__is_kept_when_the_peer_does_not_come(void **state) {
  (void)state;
  tb_comm *comm[2];
  static float x[COUNT];
  tb_work *w;
  tb_result res;
  up(2, comm);
  fill(x, COUNT, 5);
  tb_call call = all_reduce("k", x, x, COUNT, 50 * MS);
  call.min_received = 0.5;
  assert_int_equal(tb_issue(comm[0], &call, &w), 0);
  assert_int_equal(tb_wait(w, -1), 0);
  assert_int_equal(tb_work_result(w, &res), 0);
  assert_int_equal(res.verdict, TB_VERDICT_SKIP);
  assert_int_equal(res.deadline_ns, 50 * MS);
  assert_in_range(res.elapsed_ns, 1, 1000 * MS);
  for (int i = 0; i < COUNT; i++) assert_true(x[i] == (float)(5 + i));
  tb_work_free(w);
  down(2, comm);
}

/* A program that was made with another header must not have its fields taken for others. */
static void issue__another_size_of_the_call_is_refused(void **state) {
  (void)state;
  tb_comm *comm[2];
  static float x[8];
  tb_work *w = NULL;
  uint64_t least;
  up(2, comm);
  const uint32_t sizes[] = {0, sizeof(tb_call) - 8, sizeof(tb_call) + 8, UINT32_MAX};
  for (int i = 0; i < 4; i++) {
    tb_call call = all_reduce("k", x, x, 8, EXACT);
    call.struct_size = sizes[i];
    assert_int_equal(tb_issue(comm[0], &call, &w), -EINVAL);
    assert_non_null(strstr(tb_last_error(), "sizeof(tb_call)"));
    assert_int_equal(tb_min_deadline(comm[0], &call, &least), -EINVAL);
  }
  assert_null(w);
  down(2, comm);
}

static void cancel__in_flight_and_done(void **state) {
  (void)state;
  tb_comm *comm[2];
  static float x[COUNT];
  tb_work *w;
  up(2, comm);
  for (int how = 0; how < 2; how++) {
    char key[8];
    snprintf(key, sizeof key, "k%d", how & 7);
    fill(x, COUNT, 5);
    tb_call call = all_reduce(key, x, x, COUNT, how ? 60000 * MS : EXACT);
    assert_int_equal(tb_issue(comm[0], &call, &w), 0);
    nanosleep(&(struct timespec){0, 5000000}, NULL);
    assert_int_equal(tb_cancel(w), 0);
    assert_int_equal(tb_done(w), 1);
    assert_int_equal(tb_wait(w, -1), -ECANCELED);
    assert_non_null(strstr(tb_last_error(), "cancelled by its caller"));
    for (int i = 0; i < COUNT; i++) assert_true(x[i] == (float)(5 + i));
    assert_int_equal(tb_cancel(w), 0);
    assert_int_equal(tb_wait(w, -1), -ECANCELED);
    tb_work_free(w);
  }
  fill(x, COUNT, 5); /* free cancels, too */
  tb_call call = all_reduce("free", x, x, COUNT, EXACT);
  assert_int_equal(tb_issue(comm[0], &call, &w), 0);
  tb_work_free(w);
  tb_work_free(NULL);
  down(2, comm);
}

static void *waits(void *arg) {
  int *rc = malloc(sizeof *rc);
  *rc = tb_wait(arg, -1);
  return rc;
}

/* Close with operations in flight, with a thread that waits, twice as fast as linger; works stay readable after it. */
static void close__in_every_state(void **state) {
  (void)state;
  for (int how = 0; how < 5; how++) {
    tb_comm *comm[2];
    static float x[2][COUNT];
    tb_work *w[2] = {NULL, NULL};
    pthread_t waiter = 0;
    up(2, comm);
    fill(x[0], COUNT, 5);
    tb_call call = all_reduce("k", x[0], x[0], COUNT, how == 1 ? 30000 * MS : EXACT);
    if (how) assert_int_equal(tb_issue(comm[0], &call, &w[0]), 0);
    if (how == 3) {
      fill(x[1], COUNT, 5);
      call = all_reduce("k", x[1], x[1], COUNT, EXACT);
      assert_int_equal(tb_issue(comm[1], &call, &w[1]), 0);
      for (int r = 0; r < 2; r++) assert_int_equal(tb_wait(w[r], -1), 0);
    }
    if (how == 4) {
      assert_int_equal(pthread_create(&waiter, NULL, waits, w[0]), 0);
      nanosleep(&(struct timespec){0, 20000000}, NULL);
    }
    uint64_t began = tb_now();
    assert_int_equal(tb_close(comm[0]), 0);
    assert_in_range(tb_now() - began, 0, 4000 * MS);
    if (waiter) {
      int *rc;
      pthread_join(waiter, (void **)&rc);
      assert_int_equal(*rc, -ECANCELED);
      free(rc);
    }
    if (how && how != 3) {
      tb_result res;
      assert_int_equal(tb_done(w[0]), 1);
      assert_int_equal(tb_wait(w[0], -1), -ECANCELED);
      assert_int_equal(tb_cancel(w[0]), 0);
      assert_int_equal(tb_work_result(w[0], &res), 0);
      assert_int_equal(res.status, -ECANCELED);
      assert_non_null(strstr(tb_work_error(w[0]), "closed"));
      for (int i = 0; i < COUNT; i++) assert_true(x[0][i] == (float)(5 + i));
    }
    /* The other hears the goodbye: an exact call fails at once and says so. */
    for (int i = 0; i < 400 && !counter(comm[1], 0, "gone"); i++) nanosleep(&(struct timespec){0, 5000000}, NULL);
    assert_int_equal(counter(comm[1], 0, "gone"), 1);
    tb_work *late;
    fill(x[1], COUNT, 5);
    call = all_reduce("late", x[1], x[1], COUNT, EXACT);
    assert_int_equal(tb_issue(comm[1], &call, &late), -EHOSTDOWN);
    assert_non_null(strstr(tb_last_error(), "rank 0 has closed"));
    for (int r = 0; r < 2; r++) tb_work_free(w[r]);
    assert_int_equal(tb_close(comm[1]), 0);
  }
  assert_int_equal(tb_close(NULL), 0);
}

static void fork__is_refused_in_the_child(void **state) {
  (void)state;
  tb_comm *comm[2];
  float x[4] = {0};
  up(2, comm);
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (pid == 0) {
    tb_work *w;
    tb_call call = all_reduce("k", x, x, 4, EXACT);
    int rc = tb_issue(comm[0], &call, &w);
    _exit(rc == -EXDEV && strstr(tb_last_error(), "spawn") && tb_close(comm[0]) == -EXDEV ? 0 : 1);
  }
  int status;
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  down(2, comm);
}

static void alone__is_complete_at_once(void **state) { /* N = 1: no link, no thread */
  (void)state;
  tb_comm *comm[1];
  float x[8], y[8];
  tb_work *w;
  tb_result res;
  up(1, comm);
  assert_string_equal(tb_link_name(comm[0]), "self");
  for (int kind = TB_ALL_REDUCE; kind <= TB_BARRIER; kind++) {
    fill(x, 8, 3);
    memset(y, 0, sizeof y);
    tb_call call = all_reduce("", x, x, 8, EXACT);
    call.kind = kind;
    call.out = y;
    assert_int_equal(tb_issue(comm[0], &call, &w), 0);
    assert_int_equal(tb_done(w), 1);
    assert_int_equal(tb_wait(w, 0), 0);
    assert_int_equal(tb_work_result(w, &res), 0);
    assert_true(res.received == 1.0);
    if (kind != TB_BARRIER) assert_memory_equal(x, y, sizeof x);
    tb_work_free(w);
  }
  assert_int_equal(tb_close(comm[0]), 0);
}

/* A fault in the exchange of one rank ends init on all of them, within the time-out, and nothing leaks. */
static uint32_t job_hash(void) {
  tb_config *cfg;
  char job[320];
  assert_int_equal(tb_config_new(&cfg), 0);
  tb_config_job(cfg, job, sizeof job);
  tb_config_free(cfg);
  return tb_crc32c(0, job, strlen(job));
}

/* From all ports of an address to all of rank 0's: a goodbye in rank 1's name. */
static void forge_goodbye(const char *source) {
  uint8_t f[TB_HEAD + 1] = {0};
  tb_head h = {.type = TB_T_GOODBYE, .source = 1, .job = job_hash(), .view = 1, .hold_us = TB_HOLD_NONE,
               .remaining_us = TB_REMAINING_NONE};
  tb_head_encode(&h, f);
  f[TB_HEAD] = TB_BODY_VERSION;
  tb_head_seal(f, f + TB_HEAD, 1);
  struct sockaddr_in own = {.sin_family = AF_INET}, to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int fd = socket(AF_INET, SOCK_DGRAM, 0);
  assert_int_equal(inet_pton(AF_INET, source, &own.sin_addr), 1);
  assert_int_equal(bind(fd, (struct sockaddr *)&own, sizeof own), 0);
  for (int port = FIRST_PORT; port < FIRST_PORT + 8; port++) {
    to.sin_port = htons((uint16_t)port);
    sendto(fd, f, sizeof f, 0, (struct sockaddr *)&to, sizeof to);
  }
  close(fd);
}

static uint64_t counter_within(tb_comm *c, const char *name, uint64_t least) {
  for (uint64_t end = tb_now() + 2000 * MS; counter(c, 1, name) < least && tb_now() < end;)
    nanosleep(&(struct timespec){0, 1000000}, NULL);
  return counter(c, 1, name);
}

static void goodbye__forged_from_another_address_is_not_believed(void **state) {
  (void)state;
  tb_comm *comm[2];
  char range[32];
  snprintf(range, sizeof range, "%d-%d", FIRST_PORT, FIRST_PORT + 7);
  up_with(2, comm, "port_range", range);
  forge_goodbye("127.0.0.2");
  assert_true(counter_within(comm[0], "bad_source", 1) > 0);
  assert_int_equal(counter(comm[0], 1, "gone"), 0);
  forge_goodbye("127.0.0.1"); /* the limit of it: whoever can send from that address is that rank */
  assert_int_equal(counter_within(comm[0], "gone", 1), 1);
  down(2, comm);
}

static void init__fails_cleanly(void **state) {
  (void)state;
  hall h;
  starter s = {.rank = 0, .n = 2, .h = &h};
  hall_new(&h, 2);
  h.fail_rank = 0;
  begin(&s);
  assert_int_equal(s.rc, -EIO);
  assert_non_null(strstr(s.error, "step 'addr'"));
  starter bad = {.rank = 2, .n = 2, .h = &h};
  begin(&bad);
  assert_int_equal(bad.rc, -EINVAL);
  assert_non_null(strstr(bad.error, "rank 2 is out of range"));
  hall_free(&h);
}

static void *begins_in_vain(void *cfg) {
  tb_comm *comm = NULL;
  int rc = tb_init(cfg, NULL, NULL, &comm);
  assert_null(comm);
  return (void *)(intptr_t)rc;
}

static void init__cancel_ends_the_wait(void **state) {
  (void)state;
  for (int rank = 0; rank < 2; rank++) { /* rank 0 waits for the other to come, rank 1 for rank 0 to be there */
    tb_config *cfg;
    pthread_t thread;
    void *rc;
    assert_int_equal(tb_config_new(&cfg), 0);
    assert_int_equal(tb_config_set(cfg, "rank", rank ? "1" : "0"), 0);
    assert_int_equal(tb_config_set(cfg, "size", "2"), 0);
    assert_int_equal(tb_config_set(cfg, "interface", "=lo"), 0);
    assert_int_equal(tb_config_set(cfg, "master_addr", "127.0.0.1"), 0);
    assert_int_equal(tb_config_set(cfg, "master_port", "29777"), 0);
    assert_int_equal(pthread_create(&thread, NULL, begins_in_vain, cfg), 0);
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    uint64_t start = tb_now();
    tb_init_cancel(cfg);
    pthread_join(thread, &rc);
    assert_int_equal((intptr_t)rc, -EINTR);
    assert_in_range(tb_now() - start, 0, 2000 * MS); /* not init_timeout */
    tb_config_free(cfg);
  }
}

static void *barrier(void *arg) {
  worker *t = arg;
  tb_work *w;
  tb_call call = {.struct_size = sizeof call, .kind = TB_BARRIER, .error_bound_ns = 20000 * MS};
  for (int i = 0; i < 10 && !t->wrong; i++) {
    if (tb_issue(t->comm, &call, &w)) {
      t->wrong++;
      break;
    }
    t->wrong += tb_wait(w, -1) != 0;
    tb_work_free(w);
  }
  return NULL;
}

static void barrier__by_threads_of_each_rank(void **state) {
  (void)state;
  tb_comm *comm[3];
  worker w[3];
  pthread_t t[3];
  up_with(3, comm, "fault", "drop=0.05,seed=3");
  for (int r = 0; r < 3; r++) {
    w[r] = (worker){.comm = comm[r], .rank = r};
    assert_int_equal(pthread_create(&t[r], NULL, barrier, &w[r]), 0);
  }
  for (int r = 0; r < 3; r++) {
    pthread_join(t[r], NULL);
    assert_int_equal(w[r].wrong, 0);
  }
  down(3, comm);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(init__sums_and_counts),
    cmocka_unit_test(issue__many_in_flight),
    cmocka_unit_test(threads__issue_wait_and_read_at_once),
    cmocka_unit_test(wait__times_out_and_goes_on),
    cmocka_unit_test(deadline__is_kept_when_the_peer_does_not_come),
    cmocka_unit_test(issue__another_size_of_the_call_is_refused),
    cmocka_unit_test(cancel__in_flight_and_done),
    cmocka_unit_test(close__in_every_state),
    cmocka_unit_test(fork__is_refused_in_the_child),
    cmocka_unit_test(alone__is_complete_at_once),
    cmocka_unit_test(goodbye__forged_from_another_address_is_not_believed),
    cmocka_unit_test(init__fails_cleanly),
    cmocka_unit_test(init__cancel_ends_the_wait),
    cmocka_unit_test(barrier__by_threads_of_each_rank),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
