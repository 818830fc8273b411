/* test_rendezvous_gather.c - the exchange. */
#include "rendezvous_fixture.h"

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
  fill(m, 3, 2 * JOINED_MS);
  m[1].timeout_ms = 5000;
  m[2].timeout_ms = 3 * JOINED_MS;
  m[2].dawdles = true;
  run_all(m, 3);
  assert_int_equal(m[0].exchange_err, -ETIMEDOUT);
  assert_in_range(m[0].took_ms, 2 * JOINED_MS, 2 * JOINED_MS + SLACK_MS);
  says(&m[0], "ranks 2 of 3 did not answer in the exchange 'addr'");
  assert_int_equal(m[1].exchange_err, -ETIMEDOUT); /* told by rank 0, long before its own deadline */
  assert_in_range(m[1].took_ms, 0, 2 * JOINED_MS + SLACK_MS);
  ended_after(&m[1], m[0].began + 2ull * JOINED_MS * MS);
  says(&m[1], "ranks 2 of 3 did not answer");
}

static void exchange__interrupt_ends_the_wait(void **state) {
  (void)state;
  member m[3];
  fill(m, 3, 20000);
  m[0].interrupt = true;
  m[2].dawdles = true;
  m[2].timeout_ms = 2 * JOINED_MS;
  run_all(m, 3);
  assert_int_equal(m[0].exchange_err, -EINTR);
  assert_in_range(m[0].took_ms, JOINED_MS, JOINED_MS + SLACK_MS);
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(exchange__many_times_with_four_ranks),
      cmocka_unit_test(exchange__large_blobs),
      cmocka_unit_test(exchange__tag_mismatch_is_told_to_all),
      cmocka_unit_test(exchange__stride_mismatch_is_told_to_all),
      cmocka_unit_test(exchange__a_dead_peer_is_named),
      cmocka_unit_test(exchange__a_dead_rank_0_is_named),
      cmocka_unit_test(exchange__a_missing_rank_ends_it_by_the_deadline),
      cmocka_unit_test(exchange__interrupt_ends_the_wait),
      cmocka_unit_test(exchange__after_a_failure_repeats_the_reason),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
