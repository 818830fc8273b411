/* test_rendezvous_root.c - it does not come together: who is missing or does not fit is named on every rank. */
#include "rendezvous_fixture.h"

static void open__missing_ranks_are_named_on_every_rank(void **state) {
  (void)state;
  member m[5];
  char where[32];
  fill(m, 5, 1500);
  m[1].timeout_ms = 6000; /* hears rank 0's sentence */
  m[2].timeout_ms = 400;  /* gives up well before rank 0 and knows it from WAITING */
  m[2].late_ms = 200;     /* of its 400 none is to be spent on waiting for the others' threads */
  run_all(m, 3);
  snprintf(where, sizeof where, "rank 0 at 127.0.0.1:%u", m[0].port);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(m[i].open_err, -ETIMEDOUT);
    says(&m[i], where);
    assert_in_range(m[i].took_ms, i == 1 ? 0 : m[i].timeout_ms, 1500 + SLACK_MS);
  }
  ended_after(&m[1], m[0].began + 1500ull * MS);
  /* The seconds are what was left of the timeout when rank 0's thread began: 1.5, or 1.49. */
  says(&m[0], "ranks 2-4 of 5 did not connect within 1.");
  says(&m[0], " s; 2 connected and hung up again");
  says(&m[1], "rank 1: rank 0 at ");
  says(&m[1], "ranks 2-4 of 5 did not connect within 1.");
  says(&m[2], "ranks 3,4 of 5 did not connect within 0.");
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
  fill(m, 2, 2 * JOINED_MS);
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
  assert_in_range(m[0].took_ms, JOINED_MS, JOINED_MS + SLACK_MS);
  says(&m[0], "interrupted");
  assert_int_equal(m[1].open_err, -ECONNABORTED); /* told by rank 0 */
  says(&m[1], "rank 0 at 127.0.0.1");
  fill(m, 3, 20000);
  m[1].interrupt = true;
  run_all(m + 1, 1);
  assert_int_equal(m[1].open_err, -EINTR);
  assert_in_range(m[1].took_ms, JOINED_MS, JOINED_MS + SLACK_MS);
}

int main(void) {
  const struct CMUnitTest tests[] = {
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
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
