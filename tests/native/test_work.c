/* test_work.c - the output of a transformed operation is made by whoever asks for it, once, and never by the progress
 * thread (work.c). Runs under the thread sanitizer too. */
#include "engine_fixture.h"

enum { MANY = 40000, WAITERS = 3 };
static const uint64_t SOON = 30000 * MS; /* nothing is lost, however busy the machine is */

static float x[2][MANY], out[2][MANY];

static void issue_both(tb_comm **comm, tb_work **w, const char *key) {
  for (int r = 0; r < 2; r++) {
    for (int i = 0; i < MANY; i++) x[r][i] = (float)(r + i % 100), out[r][i] = -7;
    tb_call call = all_reduce(key, x[r], out[r], MANY, SOON);
    call.hadamard = 1;
    assert_int_equal(tb_issue(comm[r], &call, &w[r]), 0);
  }
}

static bool right(int r) {
  for (int i = 0; i < MANY; i++)
    if (out[r][i] < (float)(1 + 2 * (i % 100)) - 0.01f || out[r][i] > (float)(1 + 2 * (i % 100)) + 0.01f) return false;
  return true;
}

static bool untouched(int r) {
  for (int i = 0; i < MANY; i++)
    if (out[r][i] > -7 || out[r][i] < -7) return false;
  return true;
}

/* The core has ended it: it is counted, and nobody has looked. */
static void wait_for_the_core(tb_comm *c, uint64_t operations) {
  for (int i = 0; i < 5000 && counter(c, -1, "operations") < operations; i++)
    nanosleep(&(struct timespec){0, 1000000}, NULL);
  assert_int_equal(counter(c, -1, "operations"), operations);
}

static void output__is_made_when_it_is_asked_for(void **state) {
  (void)state;
  tb_comm *comm[2];
  tb_work *w[2];
  tb_result result;
  up(2, comm);
  for (int way = 0; way < 4; way++) {
    issue_both(comm, w, "k");
    for (int r = 0; r < 2; r++) {
      wait_for_the_core(comm[r], (uint64_t)way + 1);
      assert_true(untouched(r));
      assert_int_equal(tb_work_result(w[r], &result), -EAGAIN);
    }
    for (int r = 0; r < 2; r++) {
      if (way == 0) assert_int_equal(tb_wait(w[r], 0), 0); /* no time at all is enough: it is over */
      if (way == 1) assert_int_equal(tb_done(w[r]), 1);
      if (way == 2) assert_int_equal(tb_cancel(w[r]), 0);
      if (way != 3) assert_true(right(r));
      if (way != 3) assert_int_equal(tb_work_result(w[r], &result), 0);
      if (way != 3) assert_true(result.received >= 1 && result.elapsed_ns < SOON);
      tb_work_free(w[r]); /* 3: nobody asked, but it was promised */
      assert_true(right(r));
    }
  }
  down(2, comm);
}

static void *waits(void *arg) { return (void *)(intptr_t)tb_wait(arg, -1); }

static void output__is_made_once_for_all_who_wait(void **state) {
  (void)state;
  tb_comm *comm[2];
  tb_work *w[2];
  up(2, comm);
  for (int turn = 0; turn < 8; turn++) {
    pthread_t thread[2][WAITERS];
    issue_both(comm, w, "k");
    if (turn & 1) wait_for_the_core(comm[0], (uint64_t)turn + 1);
    for (int r = 0; r < 2; r++)
      for (int i = 0; i < WAITERS; i++) assert_int_equal(pthread_create(&thread[r][i], NULL, waits, w[r]), 0);
    for (int r = 0; r < 2; r++) {
      for (int i = 0; i < WAITERS; i++) {
        void *status;
        pthread_join(thread[r][i], &status);
        assert_null(status);
      }
      assert_true(right(r));
      tb_work_free(w[r]);
    }
  }
  down(2, comm);
}

static void output__is_made_by_close_if_nobody_asks(void **state) {
  (void)state;
  tb_comm *comm[2];
  tb_work *w[2];
  up(2, comm);
  for (int turn = 0; turn < 2; turn++) {
    issue_both(comm, w, "k");
    wait_for_the_core(comm[0], (uint64_t)turn + 1);
    wait_for_the_core(comm[1], (uint64_t)turn + 1);
    if (turn == 0)
      for (int r = 0; r < 2; r++) tb_work_free(w[r]);
  }
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, waits, w[1]), 0); /* it may be at it while the other closes */
  down(2, comm);
  for (int r = 0; r < 2; r++) assert_true(right(r));
  assert_int_equal(tb_wait(w[0], 0), 0);
  pthread_join(thread, NULL);
  for (int r = 0; r < 2; r++) tb_work_free(w[r]);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(output__is_made_when_it_is_asked_for),
      cmocka_unit_test(output__is_made_once_for_all_who_wait),
      cmocka_unit_test(output__is_made_by_close_if_nobody_asks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
