/* test_engine.c - real communicators over udp on the loopback device, several in this process: threads that issue,
 * wait, cancel and read counters at once, and close in every state. Runs under the thread sanitizer too. */
#include <dirent.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include "engine_fixture.h"

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
  float x[4] = {0};
  tb_call call = all_reduce("other", x, x, 4, 0);
  while (!__atomic_load_n(&t->stop, __ATOMIC_RELAXED)) {
    t->wrong += tb_counters(t->comm, -1, v, 128) || tb_counters(t->comm, 1 - t->rank, v, 128);
    t->wrong += tb_min_deadline(t->comm, &call, &least) != 0;
    while (tb_log_next(t->comm, line, sizeof line, &level)) t->wrong += !*line;
    t->wrong += !tb_describe(t->comm) || strcmp(tb_link_name(t->comm), "udp") || tb_view(t->comm, NULL, 0) != 1;
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

static atomic_bool spinning;

static void *spins(void *arg) {
  while (atomic_load(&spinning)) {}
  return arg;
}

/* For all threads but this one; the progress threads' ids are the kernel's business. */
static void others_are_nice(int nice) {
  DIR *tasks = opendir("/proc/self/task");
  assert_non_null(tasks);
  for (struct dirent *e; (e = readdir(tasks));)
    if (atoi(e->d_name) > 0 && atoi(e->d_name) != getpid()) setpriority(PRIO_PROCESS, (id_t)atoi(e->d_name), nice);
  closedir(tasks);
}

/* Its thread has less right to a core than those that take all of them: it sends some milliseconds later. */
static void close__says_goodbye_on_a_busy_machine(void **state) {
  (void)state;
  enum { SPINNERS = 64 };
  pthread_t t[SPINNERS];
  cpu_set_t cores;
  assert_int_equal(sched_getaffinity(0, sizeof cores, &cores), 0);
  int n = CPU_COUNT(&cores) < SPINNERS / 2 ? 2 * CPU_COUNT(&cores) : SPINNERS;
  for (int turn = 0; turn < 8; turn++) {
    tb_comm *comm[2];
    up(2, comm);
    others_are_nice(10);
    atomic_store(&spinning, true);
    for (int i = 0; i < n; i++) assert_int_equal(pthread_create(&t[i], NULL, spins, NULL), 0);
    assert_int_equal(tb_close(comm[0]), 0);
    atomic_store(&spinning, false);
    for (int i = 0; i < n; i++) pthread_join(t[i], NULL);
    for (int i = 0; i < 2000 && !counter(comm[1], 0, "gone"); i++) nanosleep(&(struct timespec){0, 1000000}, NULL);
    assert_int_equal(counter(comm[1], 0, "gone"), 1);
    assert_int_equal(tb_close(comm[1]), 0);
  }
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
    cmocka_unit_test(issue__many_in_flight),
    cmocka_unit_test(threads__issue_wait_and_read_at_once),
    cmocka_unit_test(wait__times_out_and_goes_on),
    cmocka_unit_test(deadline__is_kept_when_the_peer_does_not_come),
    cmocka_unit_test(issue__another_size_of_the_call_is_refused),
    cmocka_unit_test(cancel__in_flight_and_done),
    cmocka_unit_test(close__in_every_state),
    cmocka_unit_test(close__says_goodbye_on_a_busy_machine),
    cmocka_unit_test(fork__is_refused_in_the_child),
    cmocka_unit_test(barrier__by_threads_of_each_rank),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
