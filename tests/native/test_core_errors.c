/* test_core_errors.c - silence, mismatches and closed ranks: who is told what, and that all stay in step (rules 17,
 * 19). */
#include "core_round.h"

/* Rule 17: silence for peer_timeout ends an exact operation with an error that names the peer; then calls fail at once
 * until it is heard. */
static void exact__silence_is_an_error_that_names_the_peer(void **state) {
  (void)state;
  cp *net = cp_plain(3);
  static cp_work w[3];
  static float x[3][COUNT];
  round_of(net, "k", 0, 3, EXACT);
  net->stopped[2] = true;
  uint64_t began = net->now;
  for (uint16_t r = 0; r < 2; r++) assert_int_equal(start(net, r, &w[r], "k", x[r], EXACT), 0);
  cp_wait_all(net, w, 2);
  for (uint16_t r = 0; r < 2; r++) {
    assert_int_equal(w[r].o.result.status, -EHOSTDOWN);
    assert_non_null(strstr(w[r].o.error, "rank 2"));
    assert_in_range(w[r].done_at - began, 9 * TB_SEC, 11 * TB_SEC);
    cp_expect(w[r].result, COUNT, (float)(1 + r), 1); /* restored */
  }
  cp_work_free(w, 2);
  bool someone = false; /* the one whose clock ran out knows that the peer is down */
  for (uint16_t r = 0; r < 2; r++) {
    int rc = start(net, r, &w[r], "other", x[r], EXACT);
    if (rc == 0) {
      tb_core_cancel(net->core[r], &w[r].o, -ECANCELED, "end of test", net->now);
      cp_work_free(&w[r], 1);
    } else {
      assert_int_equal(rc, -EHOSTDOWN);
      assert_non_null(strstr(w[r].o.error, "rank 2"));
      someone = true;
    }
  }
  assert_true(someone);
  net->stopped[2] = false;
  cp_until(net, net->now + 20 * TB_SEC); /* keep-alives */
  round_of(net, "third", 0, 3, EXACT);
  cp_free(net);
}

static void exact__lateness_alone_is_no_error(void **state) {
  (void)state;
  cp *net = cp_plain(2);
  cp_work w[2];
  float x[2][COUNT];
  assert_int_equal(start(net, 0, &w[0], "k", x[0], EXACT), 0);
  cp_until(net, net->now + 120 * TB_SEC);
  assert_false(w[0].done);
  assert_int_equal(start(net, 1, &w[1], "k", x[1], EXACT), 0);
  cp_wait_all(net, w, 2);
  for (int r = 0; r < 2; r++) cp_expect(w[r].result, COUNT, 3, 2);
  cp_work_free(w, 2);
  cp_free(net);
}

static void exact__error_bound(void **state) { /* rule 17: TimedOut, input restored */
  (void)state;
  cp *net = cp_plain(2);
  cp_work w;
  float x[COUNT];
  cp_fill(x, COUNT, 4, 1);
  tb_call call = cp_call("k", x, x, COUNT, EXACT);
  call.error_bound_ns = 300 * TB_MS;
  uint64_t began = net->now;
  assert_int_equal(cp_issue(net, 0, &w, &call), 0);
  cp_wait(net, &w);
  assert_int_equal(w.o.result.status, -ETIMEDOUT);
  assert_int_equal(w.done_at - began, 300 * TB_MS);
  assert_non_null(strstr(w.o.error, "rank 1 has not issued"));
  cp_expect(w.result, COUNT, 4, 1);
  cp_work_free(&w, 1);
  cp_free(net);
}

/* Rule 19: the error names ranks and values on *every* rank, inputs are restored, and all stay in step. */
static void mismatch__is_told_to_everybody(void **state) {
  (void)state;
  for (int order = 0; order < 6; order++)     /* who issues first, second, third */
    for (int gap = 0; gap < 2; gap++)         /* at once, or each after the other's OPEN has come */
      for (int exact = 0; exact < 2; exact++)
        for (int key = 0; key < 2; key++) {
          static const uint16_t orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
          cp *net = cp_plain(3);
          static cp_work w[3];
          static float x[3][COUNT + 1];
          for (int i = 0; i < 3; i++) {
            uint16_t r = orders[order][i];
            cp_fill(x[r], COUNT + 1, (float)r, 1);
            tb_call call = cp_call(key ? "k" : NULL, x[r], x[r], r == 2 ? COUNT + 1 : COUNT, exact ? EXACT : TB_SEC);
            assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
            if (gap) cp_until(net, net->now + 2 * TB_MS);
          }
          cp_wait_all(net, w, 3);
          for (uint16_t r = 0; r < 3; r++) {
            if (w[r].o.result.status != -EPROTO)
              fail_msg("order %d gap %d exact %d key %d: rank %u gives %d: %s", order, gap, exact, key, r,
                       w[r].o.result.status, w[r].o.error);
            if (!strstr(w[r].o.error, "count=60") || !strstr(w[r].o.error, "count=61") ||
                !strstr(w[r].o.error, "rank 2"))
              fail_msg("rank %u: %s", r, w[r].o.error);
            cp_expect(w[r].result, r == 2 ? COUNT + 1 : COUNT, (float)r, 1);
          }
          cp_work_free(w, 3);
          cp_until(net, net->now + 20 * TB_SEC);
          for (uint16_t r = 0; r < 3; r++) assert_int_equal(net->core[r]->memory, 0);
          for (uint16_t r = 0; r < 3; r++)
            if (key) assert_int_equal(tb_core_forget(net->core[r], "k", 1), 0);
          round_of(net, key ? "k" : NULL, 0, 3, exact ? EXACT : TB_SEC);
          cp_free(net);
        }
}

static int lose_opens_of_2_to_1(cp *net, cp_frame *f) {
  (void)net;
  return f->src != 2 || f->dst != 1;
}

/* Rank 0 knows the round from rank 2, which calls it otherwise: its own OPEN still says how it was called here, or
 * rank 1, which hears nothing of rank 2, would be told that rank 0 is the odd one. */
static void mismatch__is_of_the_rank_that_calls_it_otherwise(void **state) {
  (void)state;
  for (int exact = 0; exact < 2; exact++) {
    cp *net = cp_plain(3);
    static cp_work w[3];
    static float x[3][COUNT + 1];
    static const uint16_t order[3] = {2, 0, 1};
    net->fate = lose_opens_of_2_to_1;
    for (int i = 0; i < 3; i++) {
      uint16_t r = order[i];
      tb_call call = cp_call("k", x[r], x[r], r == 2 ? COUNT + 1 : COUNT, exact ? EXACT : TB_SEC);
      assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
      cp_until(net, net->now + 2 * TB_MS);
    }
    for (uint16_t r = 0; r < 3; r++) {
      cp_wait(net, &w[r]);
      assert_int_equal(w[r].o.result.status, -EPROTO);
      if (!strstr(w[r].o.error, "rank 2 all_reduce(count=61") || strstr(w[r].o.error, "rank 0 all_reduce(count=61"))
        fail_msg("rank %u: %s", r, w[r].o.error);
    }
    cp_work_free(w, 3);
    cp_free(net);
  }
}

/* A rank that comes later still hears of the round that failed, though a quorum is ahead of it (rules 8 and 19). */
static void mismatch__is_not_jumped_over(void **state) {
  (void)state;
  cp *net = cp_plain(3);
  static cp_work w[3];
  static float x[3][COUNT];
  for (uint16_t r = 0; r < 3; r += 2) {
    tb_call call = cp_call("k", x[r], x[r], COUNT - r, TB_SEC);
    assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
  }
  for (uint16_t r = 0; r < 3; r += 2) {
    cp_wait(net, &w[r]);
    assert_int_equal(w[r].o.result.status, -EPROTO);
    cp_work_free(&w[r], 1);
    assert_int_equal(tb_core_forget(net->core[r], "k", 1), 0);
    assert_int_equal(start(net, r, &w[r], "k", x[r], TB_SEC), 0);
  }
  cp_until(net, net->now + 5 * TB_MS);
  assert_int_equal(start(net, 1, &w[1], "k", x[1], TB_SEC), 0);
  cp_wait(net, &w[1]);
  assert_int_equal(w[1].o.result.status, -EPROTO);
  assert_int_equal(w[1].o.result.round, 0);
  cp_work_free(&w[1], 1);
  assert_int_equal(start(net, 1, &w[1], "k", x[1], TB_SEC), 0);
  cp_wait_all(net, w, 3);
  for (uint16_t r = 0; r < 3; r++) {
    assert_int_equal(w[r].o.result.round, 1);
    assert_true(w[r].o.result.received == 1.0);
  }
  cp_work_free(w, 3);
  cp_free(net);
}

static int lose_errors_of_0(cp *net, cp_frame *f) { /* and the other two do not hear each other */
  bool heals = *(bool *)net->ctx;
  return f->src && f->dst ? 0 : heals || f->src || f->h.type != TB_T_ERROR;
}

/* Rule 19: a rank that found the mismatch of two others, and is taken past that round without a call of its own,
 * repeats the error until they have it, or for keep_age. */
static void mismatch__is_repeated_after_resync(void **state) {
  (void)state;
  for (int heal = 0; heal < 2; heal++) {
    cp *net = cp_plain(3);
    bool heals = false;
    static cp_work w[3];
    static float x[3][COUNT];
    net->fate = lose_errors_of_0;
    net->ctx = &heals;
    cp_until(net, 2 * net->core[0]->tune.keep_age); /* nothing is young only because the clock is */
    for (uint16_t r = 1; r < 3; r++) {
      tb_call call = cp_call("k", x[r], x[r], COUNT - r, EXACT);
      assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
    }
    cp_until(net, net->now + 10 * TB_MS);
    assert_int_equal(tb_core_resync(net->core[0], "k", 1, 1, net->now), 0);
    cp_until(net, net->now + TB_SEC);
    assert_false(w[1].done || w[2].done);
    assert_int_equal(net->core[0]->live_ops, 1);
    heals = heal;
    cp_until(net, net->now + (heal ? TB_SEC : net->core[0]->tune.keep_age));
    assert_int_equal(net->core[0]->live_ops, 0);
    for (uint16_t r = 1; r < 3 && heal; r++) {
      assert_true(w[r].done);
      assert_int_equal(w[r].o.result.status, -EPROTO);
    }
    for (uint16_t r = 1; r < 3; r++) cp_wait(net, &w[r]);
    cp_work_free(w + 1, 2);
    cp_free(net);
  }
}

static int lose_all_of_1(cp *net, cp_frame *f) {
  (void)net;
  return f->src != 1;
}

/* One that learns only after returning raises at its next call on that key. */
static void mismatch__learnt_after_the_return(void **state) {
  (void)state;
  cp *net = cp_plain(2);
  cp_work w[2];
  float x[2][COUNT];
  net->fate = lose_all_of_1;
  assert_int_equal(start(net, 0, &w[0], "k", x[0], 5 * TB_MS), 0);
  cp_fill(x[1], COUNT, 7, 1);
  tb_call call = cp_call("k", x[1], x[1], COUNT - 1, 500 * TB_MS);
  assert_int_equal(cp_issue(net, 1, &w[1], &call), 0);
  cp_wait(net, &w[0]);
  assert_int_equal(w[0].o.result.status, 0);
  cp_wait(net, &w[1]);
  assert_int_equal(w[1].o.result.status, -EPROTO);
  cp_work_free(w, 2);
  net->fate = NULL;
  cp_until(net, net->now + TB_SEC);
  assert_int_equal(start(net, 0, &w[0], "k", x[0], 5 * TB_MS), -EPROTO);
  assert_non_null(strstr(w[0].o.error, "count=59"));
  assert_int_equal(start(net, 0, &w[0], "k", x[0], 5 * TB_MS), 0); /* once */
  cp_wait(net, &w[0]);
  cp_work_free(w, 1);
  cp_free(net);
}

static void goodbye__ends_what_waits_for_it(void **state) {
  (void)state;
  for (int exact = 0; exact < 2; exact++) {
    cp *net = cp_plain(2);
    cp_work w;
    float x[COUNT];
    round_of(net, "k", 0, 2, EXACT);
    assert_int_equal(start(net, 0, &w, exact ? "e" : "l", x, exact ? EXACT : 10 * TB_SEC), 0);
    cp_until(net, net->now + 5 * TB_MS);
    uint64_t began = net->now;
    tb_core_goodbye(net->core[1]);
    cp_wait(net, &w);
    assert_true(net->now - began < 5 * TB_MS);
    assert_int_equal(w.o.result.status, exact ? -EHOSTDOWN : 0);
    if (exact) assert_non_null(strstr(w.o.error, "rank 1 has closed"));
    cp_work_free(&w, 1);
    assert_int_equal(start(net, 0, &w, "f", x, EXACT), -EHOSTDOWN);
    assert_non_null(strstr(w.o.error, "rank 1 has closed"));
    cp_until(net, net->now + 20 * TB_SEC);
    assert_int_equal(net->core[0]->memory, 0);
    cp_free(net);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(exact__silence_is_an_error_that_names_the_peer),
    cmocka_unit_test(exact__lateness_alone_is_no_error),
    cmocka_unit_test(exact__error_bound),
    cmocka_unit_test(mismatch__is_told_to_everybody),
    cmocka_unit_test(mismatch__is_of_the_rank_that_calls_it_otherwise),
    cmocka_unit_test(mismatch__is_not_jumped_over),
    cmocka_unit_test(mismatch__is_repeated_after_resync),
    cmocka_unit_test(mismatch__learnt_after_the_return),
    cmocka_unit_test(goodbye__ends_what_waits_for_it),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
