/* test_core_rounds.c - which round an operation takes, who is waited for, and when it is given up (rules 6, 8, 9, 13,
 * 18). */
#include "core_round.h"

/* Rule 8 with N = 2: the peer alone is the quorum. */
static void jump__two_ranks(void **state) {
  (void)state;
  for (int open = 0; open < 2; open++) {
    cp *net = cp_plain(2);
    cp_work w[2];
    float x[2][COUNT];
    for (int i = 0; i < 4; i++) round_of(net, "k", 1, 2, 5 * TB_MS); /* rounds 0 to 3 without rank 0 */
    assert_int_equal(start(net, 1, &w[1], "k", x[1], 50 * TB_MS), 0); /* round 4 */
    cp_until(net, net->now + (open ? 2 : 60) * TB_MS);
    assert_int_equal(w[1].done, !open);
    assert_int_equal(start(net, 0, &w[0], "k", x[0], 50 * TB_MS), 0);
    cp_wait(net, &w[0]);
    int want = open ? 4 : 5; /* a closed round is over: the one after it */
    assert_int_equal(w[0].o.result.round, want);
    assert_int_equal(w[0].o.result.behind, want);
    if (open) {
      cp_wait(net, &w[1]);
      assert_true(w[0].o.result.received == 1.0 && w[1].o.result.received == 1.0);
      cp_expect(w[0].result, COUNT, 3, 2);
      assert_int_equal(w[1].o.result.behind, 0);
    }
    cp_until(net, net->now + 20 * TB_SEC); /* what was skipped is forgotten, too */
    assert_int_equal(net->core[0]->memory, 0);
    assert_int_equal(net->core[1]->memory, 0);
    cp_work_free(w, 2);
    cp_free(net);
  }
}

/* More than half of the live ranks, self included: of four, two ahead are not enough, three are. */
static void jump__needs_a_quorum(void **state) {
  (void)state;
  for (uint32_t n = 3; n <= 6; n++)
    for (uint32_t ahead = 1; ahead < n; ahead++) {
      cp *net = cp_plain(n);
      cp_work w;
      float x[COUNT];
      for (int i = 0; i < 3; i++) {
        round_of(net, "k", 1, 1 + ahead, 5 * TB_MS);
        for (uint32_t r = 1; r <= ahead; r++) net->core[r]->key_hash[tb_key_hash("k", 1) % TB_BUCKETS]->skips = 0;
      }
      cp_until(net, net->now + TB_MS);
      assert_int_equal(start(net, 0, &w, "k", x, 5 * TB_MS), 0);
      cp_wait(net, &w);
      uint32_t want = ahead > n / 2 ? 3 : 0;
      if (w.o.result.round != want || w.o.result.behind != want)
        fail_msg("%u of %u ahead: round %u", ahead, n, w.o.result.round);
      cp_work_free(&w, 1);
      cp_free(net);
    }
}

static void jump__exact_operations_never_skip(void **state) {
  (void)state;
  cp *net = cp_plain(2);
  static cp_work a[3], b[3];
  static float x[2][3][COUNT];
  for (int i = 0; i < 3; i++) assert_int_equal(start(net, 1, &b[i], "k", x[1][i], EXACT), 0);
  cp_until(net, net->now + 3 * TB_SEC);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(start(net, 0, &a[i], "k", x[0][i], EXACT), 0);
    cp_wait(net, &a[i]);
    assert_int_equal(a[i].o.result.round, i);
    cp_wait(net, &b[i]);
    cp_expect(b[i].result, COUNT, 3, 2);
  }
  cp_work_free(a, 3);
  cp_work_free(b, 3);
  cp_free(net);
}

/* Rule 8: an operation ends at once when every missing peer has passed its round, and that is no step to max_skips. */
static void passed__ends_at_once_and_does_not_count(void **state) {
  (void)state;
  cp *net = cp_plain(2);
  cp_work w;
  float x[COUNT];
  for (int i = 0; i < 6; i++) round_of(net, NULL, 1, 2, 5 * TB_MS); /* anonymous: matched by order, no jump */
  cp_until(net, net->now + 12 * TB_SEC);                            /* and forgotten there (rule 5: an age limit) */
  assert_int_equal(net->core[1]->memory, 0);
  for (int i = 0; i < 5; i++) {
    uint64_t began = net->now;
    assert_int_equal(start(net, 0, &w, NULL, x, 2 * TB_SEC), 0);
    cp_wait(net, &w);
    assert_int_equal(w.o.result.round, i);
    assert_int_equal(w.o.result.status, 0); /* max_skips is 3 */
    assert_false(w.o.result.deadline_hit);
    assert_true(w.done_at - began < 100 * TB_MS);
    assert_true(w.o.result.received < 1.0);
    cp_work_free(&w, 1);
  }
  cp_free(net);
}

/* Rule 18: after max_skips in a row the call raises; a better round in between starts the count again. */
static void skips__raise_after_three_in_a_row(void **state) {
  (void)state;
  cp *net = cp_plain(2);
  cp_work w;
  float x[COUNT];
  for (int i = 0; i < 2; i++) {
    round_of(net, "k", 0, 2, 50 * TB_MS);
    for (int k = 0; k < (i ? 3 : 2); k++) { /* the peer lives and does its owner's duty, but does not issue */
      assert_int_equal(start(net, 0, &w, "k", x, 5 * TB_MS), 0);
      cp_wait(net, &w);
      assert_int_equal(w.o.result.status, i && k == 2 ? -ENODATA : 0);
      if (w.o.result.status) assert_non_null(strstr(w.o.error, "3 rounds in a row") && strstr(w.o.error, "rank 1 has not issued this round"));
      assert_int_equal(w.o.result.verdict, TB_VERDICT_SKIP);
      cp_expect(w.result, COUNT, 1, 1); /* restored in place, each time */
      cp_work_free(&w, 1);
    }
    cp_until(net, net->now + TB_MS);
  }
  cp_free(net);
}

static int lose_data_of_1(cp *net, cp_frame *f) {
  (void)net;
  return !(f->h.type == TB_T_DATA && f->src == 1);
}

/* Skip keeps the input, whether in place or not, and below min_received only. */
static void skip__restores_the_input(void **state) {
  (void)state;
  for (int in_place = 0; in_place < 2; in_place++)
    for (int accept = 0; accept < 2; accept++) {
      cp *net = cp_plain(2);
      cp_work w[2];
      float x[2][COUNT], y[2][COUNT];
      net->fate = lose_data_of_1;
      for (uint16_t r = 0; r < 2; r++) {
        cp_fill(x[r], COUNT, (float)(1 + r), 1);
        tb_call call = cp_call("k", x[r], in_place ? x[r] : y[r], COUNT, 10 * TB_MS);
        call.min_received = accept ? 0 : 0.9;
        assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
      }
      cp_wait_all(net, w, 2);
      assert_int_equal(w[0].o.result.verdict, accept ? TB_VERDICT_PARTIAL : TB_VERDICT_SKIP);
      assert_true(w[0].o.result.received == 0.0);
      assert_true(w[0].o.per_peer[0][1] == 0.0 && w[0].o.per_peer[1][1] == 0.0);
      if (!accept) {
        cp_expect(w[0].result, COUNT, 1, 1);
      } else { /* own shard: own values scaled by N/count; the other's: zero, and the mask says so (rule 13) */
        uint8_t mask[COUNT];
        tb_outcome_mask(&w[0].o, mask);
        cp_expect(w[0].result, COUNT / 2, 2, 2);
        for (int i = COUNT / 2; i < COUNT; i++) assert_true(w[0].result[i] == 0 && !mask[i]);
        for (int i = 0; i < COUNT / 2; i++) assert_true(mask[i]);
      }
      /* Rank 1 got everything: its own shard from rank 0, and rank 0's, which lacks its part: (count - own)/(N-1) =
       * 1. */
      assert_true(w[1].o.result.received == 1.0);
      cp_work_free(w, 2);
      cp_free(net);
    }
}

/* Rules 9 and 18: absent after three closed rounds without a frame; then it costs nothing; any frame revives it. */
static void absence__after_three_rounds_and_revival(void **state) {
  (void)state;
  cp *net = cp_plain(3);
  static cp_work w[3];
  static float x[3][COUNT];
  round_of(net, "k", 0, 3, 50 * TB_MS);
  cp_until(net, net->now + TB_MS); /* its last receipts have come */
  net->stopped[2] = true;
  for (int i = 0; i < 6; i++) {
    uint64_t began = net->now, spent = net->data_sent[0][2] + net->data_sent[1][2];
    for (uint16_t r = 0; r < 2; r++) {
      cp_fill(x[r], COUNT, 1, 1);
      tb_call call = cp_call("k", x[r], x[r], COUNT, 20 * TB_MS);
      call.min_received = i < 3 ? 0.1 : 0.9; /* the verdict looks at live peers (rule 18) */
      assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
    }
    cp_wait_all(net, w, 2);
    for (uint16_t r = 0; r < 2; r++) {
      assert_int_equal(w[r].o.result.deadline_hit, i < 3);
      if (i < 3) assert_int_equal(w[r].done_at - began, 20 * TB_MS); /* rule 1: by its deadline, to the tick */
      else assert_true(w[r].done_at - began < 5 * TB_MS);
      assert_int_equal(w[r].o.result.verdict, TB_VERDICT_PARTIAL);
      assert_true(w[r].o.result.received > 0.3 && w[r].o.result.received < 0.5); /* of 2/3 of the elements, half */
      assert_int_equal(net->core[r]->peer[2].absent, i >= 2);
      assert_int_equal(net->core[r]->peer[2].n.absences, i >= 2);
    }
    if (i >= 3) assert_int_equal(net->data_sent[0][2] + net->data_sent[1][2], spent); /* rule 9: it costs nothing */
    cp_work_free(w, 2);
  }
  assert_true(cp_logged(net, "rank 2 is absent"));
  net->stopped[2] = false;
  cp_until(net, net->now + 3 * TB_SEC); /* the probe finds it */
  assert_true(cp_logged(net, "rank 2 is back"));
  for (uint16_t r = 0; r < 2; r++) assert_false(net->core[r]->peer[2].absent);
  for (int i = 0; i < 2; i++) {
    for (uint16_t r = 0; r < 3; r++) assert_int_equal(start(net, r, &w[r], "k", x[r], 100 * TB_MS), 0);
    cp_wait_all(net, w, 3);
    for (uint16_t r = 0; r < 3; r++) {
      assert_int_equal(w[r].o.result.round, 7 + i); /* the one after the last that the others have closed */
      assert_int_equal(w[r].o.result.behind, r == 2 && i == 0 ? 6 : 0);
      assert_true(w[r].o.result.received == 1.0);
    }
    cp_work_free(w, 3);
  }
  cp_free(net);
}

/* Many buckets in one hiccup are one silence, not many. */
static void absence__counts_rounds_not_buckets(void **state) {
  (void)state;
  cp *net = cp_plain(2);
  static cp_work w[10];
  static float x[10][COUNT];
  round_of(net, "k", 0, 2, 50 * TB_MS);
  cp_until(net, net->now + TB_MS);
  net->stopped[1] = true;
  for (int i = 0; i < 10; i++) {
    char key[16];
    snprintf(key, sizeof key, "b%d", i);
    assert_int_equal(start(net, 0, &w[i], key, x[i], (10 + (unsigned)i) * TB_MS), 0);
  }
  cp_wait_all(net, w, 10);
  assert_false(net->core[0]->peer[1].absent);
  cp_work_free(w, 10);
  cp_free(net);
}

/* Rule 6: the owner's duty starts at the first OPEN. A rank that issues only after its shard was closed gets the same
 * decided bytes as everybody (rule 11). */
static void owner__late_rank_costs_nobody_its_shard(void **state) {
  (void)state;
  cp *net = cp_plain(3);
  static cp_work w[3];
  static float x[3][COUNT];
  uint64_t began = net->now;
  round_of(net, "warm", 0, 3, EXACT);
  began = net->now;
  for (uint16_t r = 1; r < 3; r++) assert_int_equal(start(net, r, &w[r], "k", x[r], 20 * TB_MS), 0);
  cp_until(net, began + 20 * TB_MS - 1);
  assert_int_equal(start(net, 0, &w[0], "k", x[0], 100 * TB_MS), 0);
  cp_wait_all(net, w, 3);
  for (uint16_t r = 1; r < 3; r++) {
    assert_in_range(w[r].done_at - began, 19 * TB_MS, 20 * TB_MS);
    /* shard 0: without rank 0's */
    for (int i = 0; i < COUNT / 3; i++) assert_true(w[r].result[i] == (float)(5 + 2 * i) * 3 / 2);
    assert_true(w[r].o.per_peer[1][0] == 1.0);
  }
  assert_int_equal(w[0].o.result.round, 0);
  assert_true(w[0].o.result.received == 1.0); /* of the others; its own part came too late for the others' shards */
  assert_int_equal(w[0].o.result.verdict, TB_VERDICT_PARTIAL);
  for (uint16_t r = 1; r < 3; r++) assert_memory_equal(w[0].result, w[r].result, sizeof x[0]);
  cp_work_free(w, 3);
  cp_free(net);
}



int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(jump__two_ranks),
    cmocka_unit_test(jump__needs_a_quorum),
    cmocka_unit_test(jump__exact_operations_never_skip),
    cmocka_unit_test(passed__ends_at_once_and_does_not_count),
    cmocka_unit_test(skips__raise_after_three_in_a_row),
    cmocka_unit_test(skip__restores_the_input),
    cmocka_unit_test(absence__after_three_rounds_and_revival),
    cmocka_unit_test(absence__counts_rounds_not_buckets),
    cmocka_unit_test(owner__late_rank_costs_nobody_its_shard),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
