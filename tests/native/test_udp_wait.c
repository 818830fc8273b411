/* test_udp_wait.c - waits keep their time, and a wake is never lost. */
#include "udp_fixture.h"

static void wait__keeps_the_deadline(void **state) {
  (void)state;
  tb_link_cfg cfg = config();
  tb_link *link = open_link(&cfg);
  uint64_t deadlines[] = {0, 1, now_ns(), now_ns() + 3000000, now_ns() + 20000000};
  for (size_t i = 0; i < sizeof deadlines / sizeof *deadlines; i++) {
    assert_int_equal(OPS->wait(link, 0, deadlines[i]), TB_WAIT_TIMEOUT);
    assert_true(now_ns() >= deadlines[i]);
  }
  OPS->close(link);
}

static void wait__reports_frames_even_after_the_deadline(void **state) {
  (void)state;
  tb_link_cfg cfg = config();
  tb_link *link = open_link(&cfg);
  send_raw(link, "x", 1);
  assert_int_equal(OPS->wait(link, 0, UINT64_MAX), TB_WAIT_RX);
  assert_int_equal(OPS->wait(link, 0, 0), TB_WAIT_RX);
  OPS->close(link);
}

static void *wake_later(void *link) {
  usleep(20000);
  OPS->wake(link, 0);
  return NULL;
}

static void wake__ends_a_sleep_from_another_thread(void **state) {
  (void)state;
  tb_link_cfg cfg = config();
  tb_link *link = open_link(&cfg);
  pthread_t thread;
  for (int i = 0; i < 3; i++) {
    assert_int_equal(pthread_create(&thread, NULL, wake_later, link), 0);
    assert_int_equal(OPS->wait(link, 0, UINT64_MAX), TB_WAIT_WAKE);
    pthread_join(thread, NULL);
  }
  OPS->wake(link, 0);
  OPS->wake(link, 0);
  assert_int_equal(OPS->wait(link, 0, UINT64_MAX), TB_WAIT_WAKE); /* remembered, and once */
  assert_int_equal(OPS->wait(link, 0, 0), TB_WAIT_TIMEOUT);
  OPS->close(link);
}

static struct { tb_link *link; atomic_uint posted, taken; } ping;

static void *wake_often(void *arg) {
  (void)arg;
  for (unsigned i = 1; i <= 2000; i++) {
    atomic_store(&ping.posted, i);
    OPS->wake(ping.link, 0);
    if (i % 8 == 0)
      while (atomic_load(&ping.taken) < i) sched_yield(); /* a lost wake-up would hang here */
  }
  return NULL;
}

static void wake__is_never_lost(void **state) {
  (void)state;
  tb_link_cfg cfg = config();
  pthread_t thread;
  ping.link = open_link(&cfg);
  atomic_store(&ping.posted, 0);
  atomic_store(&ping.taken, 0);
  assert_int_equal(pthread_create(&thread, NULL, wake_often, NULL), 0);
  while (atomic_load(&ping.taken) < 2000) {
    int bits = OPS->wait(ping.link, 0, now_ns() + 5000000000u);
    assert_true(bits & TB_WAIT_WAKE);
    atomic_store(&ping.taken, atomic_load(&ping.posted));
  }
  pthread_join(thread, NULL);
  OPS->close(ping.link);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(wait__keeps_the_deadline),
      cmocka_unit_test(wait__reports_frames_even_after_the_deadline),
      cmocka_unit_test(wake__ends_a_sleep_from_another_thread),
      cmocka_unit_test(wake__is_never_lost),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
