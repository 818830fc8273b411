/* test_rendezvous.c - ranks as threads of this process, strangers as raw sockets. Threads only record; the main thread
 * asserts. Upper time limits are generous because the machine is shared; what matters is that there is one. */
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

typedef struct {
  const char *addr, *job, *tag;
  uint16_t port;
  int rank, size, late_ms, timeout_ms, exchanges;
  uint32_t stride;
  bool interrupt; /* the hook stops it after 150 ms */
  bool dies;      /* closes after open */
  bool dawdles;   /* stays away from the exchange for its time-out */
  tb_rendezvous *r;
  int open_err, exchange_err, wrong;
  uint64_t began, took_ms, strays;
  char error[1024];
  pthread_t thread;
} member;

static int stop_after(void *until) { return tb_rv_now() >= *(uint64_t *)until; }

static void pause_ms(int ms) { usleep((useconds_t)ms * 1000); }

/* What rank `from` gives in exchange k. */
static uint32_t blob(uint8_t *out, int from, int k, uint32_t stride) {
  uint32_t len = 1 + (uint32_t)(from * 7 + k) % stride;
  for (uint32_t i = 0; i < len; i++) out[i] = (uint8_t)(from * 31 + k * 17 + (int)i + 1);
  return len;
}

static int count_wrong(const uint8_t *all, int size, int k, uint32_t stride) {
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

static void *live(void *arg) {
  member *m = arg;
  pause_ms(m->late_ms);
  uint64_t start = tb_rv_now(), deadline = start + (uint64_t)m->timeout_ms * MS, stop = start + 150ull * MS;
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

/* Outside the range of ephemeral ports a port would be safer, but nobody says which one is free; a race for this one
 * is unlikely within the moment. */
static uint16_t free_port(void) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof a;
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
  close(fd);
  return ntohs(a.sin_port);
}

static void fill(member *m, int size, int timeout_ms) {
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

static void start(member *m) { assert_int_equal(pthread_create(&m->thread, NULL, live, m), 0); }
static void finish(member *m) { assert_int_equal(pthread_join(m->thread, NULL), 0); }

static void run_all(member *m, int n) {
  for (int i = 0; i < n; i++) start(&m[i]);
  for (int i = 0; i < n; i++) finish(&m[i]);
}

static void succeeded(const member *m, int n) {
  for (int i = 0; i < n; i++) {
    if (m[i].open_err || m[i].exchange_err)
      fail_msg("rank %d: %d %d %s", m[i].rank, m[i].open_err, m[i].exchange_err, m[i].error);
    assert_int_equal(m[i].wrong, 0);
  }
}

static void says(const member *m, const char *words) {
  if (!strstr(m->error, words)) fail_msg("rank %d: '%s' is not in: %s", m->rank, words, m->error);
}

static int raw_connect(uint16_t port) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  for (int i = 0; i < 500; i++) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0) return fd;
    close(fd);
    pause_ms(10);
  }
  return -1;
}

static void raw_hello(int fd, int version, int rank, int size, const char *job) {
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

/* ---- it comes together ----------------------------------------------------------------------------------------- */

static void open__one_rank_needs_no_socket(void **state) {
  (void)state;
  tb_rendezvous *r;
  char error[300] = "", all[8];
  assert_int_equal(tb_rendezvous_open(NULL, 0, 0, 1, "j", 0, &r, error, sizeof error), 0);
  memset(all, 'x', sizeof all);
  assert_int_equal(tb_rendezvous_exchange(r, "t", "abc", 3, all, sizeof all, 0, error, sizeof error), 0);
  assert_memory_equal(all, "abc\0\0\0\0\0", 8);
  assert_int_equal(tb_rendezvous_exchange(r, "t", "abc", 9, all, 8, 0, error, sizeof error), -EINVAL);
  tb_rendezvous_close(r);
}

static void open__impossible_ranks_are_refused(void **state) {
  (void)state;
  static const int bad[][2] = {{0, 0}, {1, 1}, {-1, 2}, {0, 1025}};
  tb_rendezvous *r;
  char error[300];
  for (unsigned i = 0; i < 4; i++)
    assert_int_equal(tb_rendezvous_open("127.0.0.1", 1, bad[i][0], bad[i][1], "j", 0, &r, error, sizeof error),
                     -EINVAL);
  assert_int_equal(tb_rendezvous_open("", 1, 0, 2, "j", 0, &r, error, sizeof error), -EINVAL);
  assert_non_null(strstr(error, "MASTER_ADDR"));
}

static void exchange__many_times_with_four_ranks(void **state) {
  (void)state;
  member m[4];
  fill(m, 4, 20000);
  for (int i = 0; i < 4; i++) m[i].exchanges = 40;
  run_all(m, 4);
  succeeded(m, 4);
}

static void exchange__large_blobs(void **state) {
  (void)state;
  member m[3];
  fill(m, 3, 20000);
  for (int i = 0; i < 3; i++) m[i].stride = TB_RENDEZVOUS_STRIDE, m[i].exchanges = 2;
  run_all(m, 3);
  succeeded(m, 3);
}

static void open__sixty_four_ranks(void **state) {
  (void)state;
  static member m[MOST];
  fill(m, MOST, 60000);
  for (int i = 0; i < MOST; i++) m[i].stride = 128, m[i].exchanges = 3;
  run_all(m, MOST);
  succeeded(m, MOST);
}

static void open__late_ranks_and_a_late_rank_0(void **state) {
  (void)state;
  for (int late = 0; late < 3; late++) {
    member m[3];
    fill(m, 3, 20000);
    m[late].late_ms = 300;
    run_all(m, 3);
    succeeded(m, 3);
  }
}

static void open__over_ipv6_and_by_name(void **state) {
  (void)state;
  static const char *const addrs[] = {"localhost", "::1", "[::1]"};
  struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  int fd = socket(AF_INET6, SOCK_STREAM, 0);
  bool has_ipv6 = fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0;
  if (fd >= 0) close(fd);
  for (int k = 0; k < (has_ipv6 ? 3 : 1); k++) {
    member m[3];
    fill(m, 3, 20000);
    for (int i = 0; i < 3; i++) m[i].addr = addrs[k];
    run_all(m, 3);
    succeeded(m, 3);
  }
}

/* Rank 0 listens everywhere when it is given a name: it need not resolve it, and may resolve it to loopback. */
static void open__rank_0_need_not_know_its_own_name(void **state) {
  (void)state;
  member m[2];
  fill(m, 2, 20000);
  m[0].addr = "rank-0.invalid";
  run_all(m, 2);
  succeeded(m, 2);
}

/* A translated address is not one of rank 0's own (192.0.2.1 is nobody's). */
static void open__rank_0_behind_a_translated_address(void **state) {
  (void)state;
  member m[2];
  fill(m, 2, 20000);
  m[0].addr = "192.0.2.1";
  run_all(m, 2);
  succeeded(m, 2);
}

static void open__a_rank_that_hung_up_may_come_again(void **state) {
  (void)state;
  member m[3];
  fill(m, 3, 20000);
  start(&m[0]);
  int fd = raw_connect(m[0].port);
  raw_hello(fd, RV_VERSION, 1, 3, "j");
  pause_ms(100);
  close(fd);
  start(&m[1]);
  start(&m[2]);
  for (int i = 0; i < 3; i++) finish(&m[i]);
  succeeded(m, 3);
}

/* ---- it does not come together --------------------------------------------------------------------------------- */

static void open__missing_ranks_are_named_on_every_rank(void **state) {
  (void)state;
  member m[5];
  char where[32];
  fill(m, 5, 1500);
  m[1].timeout_ms = 6000; /* hears rank 0's sentence */
  m[2].timeout_ms = 400;  /* gives up well before rank 0 and knows it from WAITING */
  run_all(m, 3);
  snprintf(where, sizeof where, "rank 0 at 127.0.0.1:%u", m[0].port);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(m[i].open_err, -ETIMEDOUT);
    says(&m[i], where);
    assert_in_range(m[i].took_ms, i == 1 ? 0 : m[i].timeout_ms, 1500 + SLACK_MS);
  }
  /* Rank 1 ends with rank 0's deadline, on rank 0's clock: its own began when its thread did. */
  assert_true(m[1].began + m[1].took_ms * MS + MS >= m[0].began + 1500ull * MS);
  says(&m[0], "ranks 2-4 of 5 did not connect within 1.5 s; 2 connected and hung up again");
  says(&m[1], "rank 1: rank 0 at ");
  says(&m[1], "ranks 2-4 of 5 did not connect within 1.5 s");
  says(&m[2], "ranks 3,4 of 5 did not connect within 0.4 s");
}

static void open__nobody_there_ends_by_the_deadline(void **state) {
  (void)state;
  member m[2];
  fill(m, 2, 300);
  run_all(m + 1, 1);
  assert_int_equal(m[1].open_err, -ETIMEDOUT);
  assert_in_range(m[1].took_ms, 300, 300 + SLACK_MS);
  says(&m[1], "was not reached within 0.3 s");
  says(&m[1], "Connection refused");
  says(&m[1], "loopback");
}

static void open__a_passed_deadline_does_not_wait(void **state) {
  (void)state;
  member m[2];
  fill(m, 2, 0);
  run_all(m, 2);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(m[i].open_err, -ETIMEDOUT);
    assert_in_range(m[i].took_ms, 0, SLACK_MS);
  }
}

static void open__a_name_that_does_not_resolve_ends_by_the_deadline(void **state) {
  (void)state;
  member m[2];
  fill(m, 2, 400);
  m[1].addr = "no-such-host.invalid";
  run_all(m + 1, 1);
  assert_int_equal(m[1].open_err, -ETIMEDOUT);
  assert_in_range(m[1].took_ms, 400, 400 + SLACK_MS);
  says(&m[1], "no-such-host.invalid");
  says(&m[1], "resolv");
}

static void open__world_size_mismatch_is_told_to_all(void **state) {
  (void)state;
  member m[4];
  fill(m, 4, 20000);
  m[2].size = 8;
  m[3].late_ms = 200; /* knocks after it is known */
  run_all(m, 4);
  for (int i = 0; i < 4; i++) {
    assert_int_equal(m[i].open_err, -EPROTO);
    says(&m[i], "rank 2");
    says(&m[i], "has 8 ranks, rank 0 says 4: WORLD_SIZE");
    assert_in_range(m[i].took_ms, 0, 5000);
  }
}

static void open__two_processes_of_one_rank(void **state) {
  (void)state;
  member m[4];
  fill(m, 4, 20000);
  m[2].rank = 1;
  m[3].late_ms = 200;
  run_all(m, 4);
  for (int i = 0; i < 4; i++) {
    assert_int_equal(m[i].open_err, -EPROTO);
    says(&m[i], "two processes say they are rank 1");
    says(&m[i], "check RANK");
  }
}

static void open__another_version_is_told_to_all(void **state) {
  (void)state;
  member m[3];
  fill(m, 3, 20000);
  start(&m[0]);
  start(&m[1]);
  int fd = raw_connect(m[0].port);
  raw_hello(fd, RV_VERSION + 8, 2, 3, "j");
  finish(&m[0]);
  finish(&m[1]);
  close(fd);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(m[i].open_err, -EPROTO);
    says(&m[i], "rank 2");
    says(&m[i], "version 9");
  }
}

static void open__another_job_is_turned_away_and_harms_nobody(void **state) {
  (void)state;
  member m[3], stranger;
  fill(m, 3, 20000);
  stranger = m[2];
  stranger.job = "other";
  start(&m[0]);
  start(&m[1]);
  start(&stranger);
  finish(&stranger);
  start(&m[2]);
  for (int i = 0; i < 3; i++) finish(&m[i]);
  succeeded(m, 3);
  assert_int_equal(stranger.open_err, -EPROTO);
  says(&stranger, "job 'j'");
  says(&stranger, "job 'other'");
  says(&stranger, "TAILBOUND_JOB");
}

static void open__only_another_job_came(void **state) {
  (void)state;
  member m[2];
  fill(m, 2, 400);
  m[1].job = "other";
  run_all(m, 2);
  assert_int_equal(m[0].open_err, -ETIMEDOUT);
  says(&m[0], "another job were turned away (last: rank 1 of job 'other'");
}

static void open__interrupt_ends_the_wait(void **state) {
  (void)state;
  member m[3];
  fill(m, 3, 20000);
  m[0].interrupt = true;
  run_all(m, 2); /* rank 2 never comes */
  assert_int_equal(m[0].open_err, -EINTR);
  assert_in_range(m[0].took_ms, 150, 150 + SLACK_MS);
  says(&m[0], "interrupted");
  assert_int_equal(m[1].open_err, -ECONNABORTED); /* told by rank 0 */
  says(&m[1], "rank 0 at 127.0.0.1");
  fill(m, 3, 20000);
  m[1].interrupt = true;
  run_all(m + 1, 1);
  assert_int_equal(m[1].open_err, -EINTR);
  assert_in_range(m[1].took_ms, 150, 150 + SLACK_MS);
}

/* ---- strangers ------------------------------------------------------------------------------------------------- */

static void open__garbage_cannot_stop_it(void **state) {
  (void)state;
  static const char *const lines[] = {"GET / HTTP/1.1\r\n\r\n", "TBRx", "\n", "SSH-2.0-x\r\n"};
  member m[3];
  int fds[220], n = 0;
  uint64_t random = 99;
  uint8_t bytes[300];
  print_message("seed %llu\n", (unsigned long long)random);
  fill(m, 3, 60000);
  start(&m[0]);
  for (int i = 0; i < 150; i++) fds[n++] = raw_connect(m[0].port); /* say nothing, more than there are seats */
  for (int i = 0; i < 40; i++) {
    for (unsigned k = 0; k < sizeof bytes; k++) {
      random = random * 6364136223846793005ull + 1442695040888963407ull;
      bytes[k] = (uint8_t)(random >> 56);
    }
    fds[n] = raw_connect(m[0].port);
    send(fds[n++], bytes, 1 + (size_t)(random >> 40) % sizeof bytes, MSG_NOSIGNAL);
  }
  for (int i = 0; i < 4; i++) {
    fds[n] = raw_connect(m[0].port);
    send(fds[n++], lines[i], strlen(lines[i]), MSG_NOSIGNAL);
  }
  fds[n] = raw_connect(m[0].port); /* a head that promises 4 GB */
  tb_rv_encode(&(rv_head){.version = RV_VERSION, .type = RV_HELLO, .rank = 1, .size = 3, .len = UINT32_MAX}, bytes);
  send(fds[n++], bytes, RV_HEAD, MSG_NOSIGNAL);
  fds[n] = raw_connect(m[0].port); /* half a head, then silence */
  send(fds[n++], bytes, RV_HEAD / 2, MSG_NOSIGNAL);
  fds[n] = raw_connect(m[0].port); /* an answer before the question */
  tb_rv_encode(&(rv_head){.version = RV_VERSION, .type = RV_BLOB, .rank = 1, .size = 3}, bytes);
  send(fds[n++], bytes, RV_HEAD, MSG_NOSIGNAL);
  close(fds[n] = raw_connect(m[0].port)); /* comes and goes */
  start(&m[1]);
  start(&m[2]);
  for (int i = 0; i < 3; i++) finish(&m[i]);
  for (int i = 0; i < n; i++) close(fds[i]);
  succeeded(m, 3);
  assert_in_range(m[0].strays, 40 + 4 + 2, 300);
  assert_in_range(m[0].took_ms, 0, 20000);
}

static void open__port_in_use_names_port_and_owner(void **state) {
  (void)state;
  int ends[2];
  char wanted[64];
  member m[2];
  fill(m, 2, 400);
  assert_int_equal(pipe(ends), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) { /* another program on the port */
    int listeners[RV_LISTENERS];
    char error[300];
    int err = tb_rv_listen("127.0.0.1", m[0].port, 0, listeners, error, sizeof error);
    if (write(ends[1], err ? "n" : "y", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char ready = 0;
  assert_int_equal(read(ends[0], &ready, 1), 1);
  assert_int_equal(ready, 'y');
  run_all(m, 1);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  close(ends[0]);
  close(ends[1]);
  assert_int_equal(m[0].open_err, -EADDRINUSE);
  snprintf(wanted, sizeof wanted, "port %u is in use by process %d (test_rendezvous", m[0].port, (int)child);
  says(&m[0], wanted);
  says(&m[0], "TAILBOUND_MASTER_PORT");
  assert_in_range(m[0].took_ms, 0, 400 + SLACK_MS);
}

static void open__port_in_use_by_this_process(void **state) {
  (void)state;
  int listeners[RV_LISTENERS];
  char error[300];
  member m[2];
  fill(m, 2, 200);
  assert_int_equal(tb_rv_listen("127.0.0.1", m[0].port, 0, listeners, error, sizeof error), 0);
  run_all(m, 1);
  close(listeners[0]);
  assert_int_equal(m[0].open_err, -EADDRINUSE);
  says(&m[0], "this very process");
}

static void open__a_port_let_go_in_time_is_taken(void **state) {
  (void)state;
  int listeners[RV_LISTENERS];
  char error[300];
  member m[2];
  fill(m, 2, 20000);
  assert_int_equal(tb_rv_listen("127.0.0.1", m[0].port, 0, listeners, error, sizeof error), 0);
  start(&m[0]);
  pause_ms(200);
  close(listeners[0]);
  start(&m[1]);
  for (int i = 0; i < 2; i++) finish(&m[i]);
  succeeded(m, 2);
}

static void open__another_program_answers(void **state) {
  (void)state;
  int listeners[RV_LISTENERS];
  char error[300], who[RV_WHO];
  member m[2];
  fill(m, 2, 20000);
  assert_int_equal(tb_rv_listen("127.0.0.1", m[1].port, 0, listeners, error, sizeof error), 0);
  start(&m[1]);
  struct pollfd p = {.fd = listeners[0], .events = POLLIN};
  assert_int_equal(poll(&p, 1, 10000), 1);
  int fd = tb_rv_accept(listeners[0], who);
  assert_true(fd >= 0);
  send(fd, "SSH-2.0-x\r\n", 11, MSG_NOSIGNAL);
  finish(&m[1]);
  close(fd);
  close(listeners[0]);
  assert_int_equal(m[1].open_err, -EPROTO);
  says(&m[1], "not rank 0 of a Tailbound job (it said 'SSH-2.0-x");
}

static void open__another_program_is_silent(void **state) {
  (void)state;
  int listeners[RV_LISTENERS];
  char error[300];
  member m[2];
  fill(m, 2, 400);
  assert_int_equal(tb_rv_listen("127.0.0.1", m[1].port, 0, listeners, error, sizeof error), 0);
  run_all(m + 1, 1);
  close(listeners[0]);
  assert_int_equal(m[1].open_err, -ETIMEDOUT);
  assert_in_range(m[1].took_ms, 400, 400 + SLACK_MS);
  says(&m[1], "does not answer as rank 0 would");
}

/* ---- exchange -------------------------------------------------------------------------------------------------- */

static void exchange__tag_mismatch_is_told_to_all(void **state) {
  (void)state;
  member m[3];
  fill(m, 3, 20000);
  m[2].tag = "mtu";
  run_all(m, 3);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(m[i].exchange_err, -EPROTO);
    says(&m[i], "the exchange 'addr' (64 bytes");
    says(&m[i], "rank 2 is at 'mtu' (64 bytes");
  }
}

static void exchange__stride_mismatch_is_told_to_all(void **state) {
  (void)state;
  member m[3];
  fill(m, 3, 20000);
  m[1].stride = 128;
  run_all(m, 3);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(m[i].exchange_err, -EPROTO);
    says(&m[i], "'addr' (64 bytes");
    says(&m[i], "rank 1 is at 'addr' (128 bytes");
  }
}

static void exchange__a_dead_peer_is_named(void **state) {
  (void)state;
  member m[4];
  fill(m, 4, 20000);
  m[2].dies = true;
  run_all(m, 4);
  for (int i = 0; i < 4; i++) {
    if (i == 2) continue;
    assert_int_equal(m[i].open_err, 0);
    assert_int_equal(m[i].exchange_err, -ECONNRESET);
    says(&m[i], "rank 2 (127.0.0.1");
    says(&m[i], "hung up during the exchange 'addr'");
  }
}

static void exchange__a_dead_rank_0_is_named(void **state) {
  (void)state;
  member m[3];
  fill(m, 3, 20000);
  m[0].dies = true;
  run_all(m, 3);
  for (int i = 1; i < 3; i++) {
    assert_int_equal(m[i].exchange_err, -ECONNRESET);
    says(&m[i], "rank 0 at 127.0.0.1");
  }
}

static void exchange__a_missing_rank_ends_it_by_the_deadline(void **state) {
  (void)state;
  member m[3];
  fill(m, 3, 600);
  m[1].timeout_ms = 5000;
  m[2].timeout_ms = 1500;
  m[2].dawdles = true;
  run_all(m, 3);
  assert_int_equal(m[0].exchange_err, -ETIMEDOUT);
  assert_in_range(m[0].took_ms, 590, 600 + SLACK_MS);
  says(&m[0], "ranks 2 of 3 did not answer in the exchange 'addr'");
  assert_int_equal(m[1].exchange_err, -ETIMEDOUT); /* told by rank 0, long before its own deadline */
  assert_in_range(m[1].took_ms, 590, 600 + SLACK_MS);
  says(&m[1], "ranks 2 of 3 did not answer");
}

static void exchange__interrupt_ends_the_wait(void **state) {
  (void)state;
  member m[3];
  fill(m, 3, 20000);
  m[0].interrupt = true;
  m[2].dawdles = true;
  m[2].timeout_ms = 800;
  run_all(m, 3);
  assert_int_equal(m[0].exchange_err, -EINTR);
  assert_in_range(m[0].took_ms, 100, 150 + SLACK_MS);
  assert_int_equal(m[1].exchange_err, -ECONNABORTED);
}

static void exchange__after_a_failure_repeats_the_reason(void **state) {
  (void)state;
  member m[2];
  char error[1024], all[16];
  fill(m, 2, 5000);
  m[1].dies = true;
  start(&m[1]);
  tb_rendezvous *r;
  assert_int_equal(
      tb_rendezvous_open("127.0.0.1", m[0].port, 0, 2, "j", tb_rv_now() + 5000ull * MS, &r, error, sizeof error), 0);
  finish(&m[1]);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(tb_rendezvous_exchange(r, "t", "a", 1, all, 8, tb_rv_now() + 1000ull * MS, error, sizeof error),
                     -ECONNRESET);
    assert_non_null(strstr(error, "rank 1"));
  }
  assert_non_null(strstr(error, "failed before"));
  tb_rendezvous_close(r);
}

static void ranks__text(void **state) {
  (void)state;
  uint8_t flag[1024] = {0};
  char text[200];
  tb_rv_ranks(flag, 1024, text, sizeof text);
  assert_string_equal(text, "");
  flag[2] = flag[3] = flag[7] = flag[8] = flag[9] = flag[1023] = 1;
  tb_rv_ranks(flag, 1024, text, sizeof text);
  assert_string_equal(text, "2,3,7-9,1023");
  for (int i = 0; i < 1024; i++) flag[i] = i % 2;
  tb_rv_ranks(flag, 1024, text, sizeof text);
  assert_non_null(strstr(text, "1,3,5,"));
  assert_non_null(strstr(text, " and "));
  assert_non_null(strstr(text, " more"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(open__port_in_use_names_port_and_owner), /* forks: before any thread */
      cmocka_unit_test(open__one_rank_needs_no_socket),
      cmocka_unit_test(open__impossible_ranks_are_refused),
      cmocka_unit_test(exchange__many_times_with_four_ranks),
      cmocka_unit_test(exchange__large_blobs),
      cmocka_unit_test(open__sixty_four_ranks),
      cmocka_unit_test(open__late_ranks_and_a_late_rank_0),
      cmocka_unit_test(open__over_ipv6_and_by_name),
      cmocka_unit_test(open__rank_0_need_not_know_its_own_name),
      cmocka_unit_test(open__rank_0_behind_a_translated_address),
      cmocka_unit_test(open__a_rank_that_hung_up_may_come_again),
      cmocka_unit_test(open__missing_ranks_are_named_on_every_rank),
      cmocka_unit_test(open__nobody_there_ends_by_the_deadline),
      cmocka_unit_test(open__a_passed_deadline_does_not_wait),
      cmocka_unit_test(open__a_name_that_does_not_resolve_ends_by_the_deadline),
      cmocka_unit_test(open__world_size_mismatch_is_told_to_all),
      cmocka_unit_test(open__two_processes_of_one_rank),
      cmocka_unit_test(open__another_version_is_told_to_all),
      cmocka_unit_test(open__another_job_is_turned_away_and_harms_nobody),
      cmocka_unit_test(open__only_another_job_came),
      cmocka_unit_test(open__interrupt_ends_the_wait),
      cmocka_unit_test(open__garbage_cannot_stop_it),
      cmocka_unit_test(open__port_in_use_by_this_process),
      cmocka_unit_test(open__a_port_let_go_in_time_is_taken),
      cmocka_unit_test(open__another_program_answers),
      cmocka_unit_test(open__another_program_is_silent),
      cmocka_unit_test(exchange__tag_mismatch_is_told_to_all),
      cmocka_unit_test(exchange__stride_mismatch_is_told_to_all),
      cmocka_unit_test(exchange__a_dead_peer_is_named),
      cmocka_unit_test(exchange__a_dead_rank_0_is_named),
      cmocka_unit_test(exchange__a_missing_rank_ends_it_by_the_deadline),
      cmocka_unit_test(exchange__interrupt_ends_the_wait),
      cmocka_unit_test(exchange__after_a_failure_repeats_the_reason),
      cmocka_unit_test(ranks__text),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
