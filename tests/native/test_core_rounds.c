/* test_core_rounds.c - which round an operation takes, who is waited for, and what ranks that disagree are told
 * (rules 6 to 9, 17 to 19). */
#include "core_pair.h"

static const uint64_t EXACT = UINT64_MAX;
enum { COUNT = 60 };

static int start(cp *net, uint16_t r, cp_work *w, const char *key, float *x, uint64_t deadline) {
  cp_fill(x, COUNT, (float)(1 + r), 1);
  tb_call call = cp_call(key, x, x, COUNT, deadline);
  return cp_issue(net, r, w, &call);
}

/* One round of some ranks, to the end. */
static void round_of(cp *net, const char *key, uint32_t first, uint32_t end, uint64_t deadline) {
  static cp_work w[CP_RANKS];
  static float x[CP_RANKS][COUNT];
  for (uint32_t r = first; r < end; r++) assert_int_equal(start(net, (uint16_t)r, &w[r], key, x[r], deadline), 0);
  for (uint32_t r = first; r < end; r++) cp_wait(net, &w[r]);
  cp_work_free(w + first, end - first);
}

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
    uint32_t want = open ? 4 : 5; /* the round that is open, or the one the peer will open next */
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

/* More than half of the live ranks, self included: two ahead of five are not enough, three are. */
static void jump__needs_a_quorum(void **state) {
  (void)state;
  for (uint32_t ahead = 2; ahead <= 3; ahead++) {
    cp *net = cp_plain(5);
    cp_work w;
    float x[COUNT];
    for (int i = 0; i < 3; i++) round_of(net, "k", 1, 1 + ahead, 5 * TB_MS);
    cp_until(net, net->now + TB_MS);
    assert_int_equal(start(net, 0, &w, "k", x, 5 * TB_MS), 0);
    cp_wait(net, &w);
    assert_int_equal(w.o.result.round, ahead == 3 ? 3 : 0);
    assert_int_equal(w.o.result.behind, ahead == 3 ? 3 : 0);
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
      if (w.o.result.status) assert_non_null(strstr(w.o.error, "3 rounds in a row"));
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
      /* Rank 1 got everything: its own shard from rank 0, and rank 0's, which lacks its part: (count - own)/(N-1) = 1. */
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
    uint64_t began = net->now;
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
      assert_int_equal(w[r].o.result.round, 7 + i);
      assert_true(w[r].o.result.received == 1.0);
    }
    assert_int_equal(w[2].o.result.behind, i ? 0 : 6);
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
              fail_msg("order %d gap %d exact %d key %d: rank %u gives %d: %s", order, gap, exact, key, r, w[r].o.result.status, w[r].o.error);
            if (!strstr(w[r].o.error, "count=60") || !strstr(w[r].o.error, "count=61") || !strstr(w[r].o.error, "rank 2"))
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
    for (int i = 0; i < COUNT / 3; i++) assert_true(w[r].result[i] == (float)(5 + 2 * i) * 3 / 2); /* shard 0: without rank 0's */
    assert_true(w[r].o.per_peer[1][0] == 1.0);
  }
  assert_int_equal(w[0].o.result.round, 0);
  assert_int_equal(w[0].o.result.verdict, TB_VERDICT_OK);
  for (uint16_t r = 1; r < 3; r++) assert_memory_equal(w[0].result, w[r].result, sizeof x[0]);
  cp_work_free(w, 3);
  cp_free(net);
}

static int lose_everything(cp *net, cp_frame *f) {
  (void)net;
  (void)f;
  return 0;
}

/* Rule 22: what would exceed memory_cap is EAGAIN, changes nothing, and passes when there is room again. */
static void memory__cap_is_eagain(void **state) {
  (void)state;
  enum { BIG = 80000 };
  cp *net = cp_new(&(cp_options){.n = 2, .chunk_bytes = 1024, .window = 64, .delay = 100000});
  net->core[0]->tune.memory_cap = 1 << 20;
  static cp_work w[3], peer;
  static float x[3][BIG], px[BIG];
  for (int i = 0; i < 3; i++) cp_fill(x[i], BIG, 1, 1);
  tb_call call = cp_call("a", x[0], x[0], BIG, EXACT);
  assert_int_equal(cp_issue(net, 0, &w[0], &call), 0);
  size_t held = net->core[0]->memory;
  assert_true(held > BIG * 4 && held <= 1 << 20);
  call = cp_call("b", x[1], x[1], BIG, EXACT);
  assert_int_equal(cp_issue(net, 0, &w[1], &call), 0);
  call = cp_call("c", x[2], x[2], BIG, EXACT);
  assert_int_equal(cp_issue(net, 0, &w[2], &call), -EAGAIN);
  assert_non_null(strstr(w[2].o.error, "memory_cap=1048576"));
  assert_int_equal(net->core[0]->memory, 2 * held);
  assert_int_equal(net->core[0]->live_ops, 2);
  assert_int_equal(net->core[0]->n.memory_refused, 1);
  cp_fill(px, BIG, 2, 1);
  call = cp_call("a", px, px, BIG, EXACT);
  assert_int_equal(cp_issue(net, 1, &peer, &call), 0);
  cp_wait(net, &w[0]);
  cp_wait(net, &peer);
  cp_until(net, net->now + TB_SEC);
  call = cp_call("c", x[2], x[2], BIG, EXACT);
  assert_int_equal(cp_issue(net, 0, &w[2], &call), 0);
  assert_int_equal(net->core[0]->key_hash[tb_key_hash("c", 1) % TB_BUCKETS]->next_round, 1); /* the refused call took none */
  for (int i = 1; i < 3; i++) tb_core_cancel(net->core[0], &w[i].o, -ECANCELED, "end of test", net->now);
  cp_work_free(w, 3);
  cp_work_free(&peer, 1);
  cp_free(net);
}

/* Memory for rounds opened by others only is capped; beyond it they count as loss, and come when there is room. */
static void memory__early_cap(void **state) {
  (void)state;
  cp *net = cp_plain(2);
  static cp_work w[30], v;
  static float x[30][COUNT], y[COUNT];
  net->core[0]->tune.early_cap = 20000;
  for (int i = 0; i < 30; i++) {
    char key[16];
    snprintf(key, sizeof key, "k%d", i);
    assert_int_equal(start(net, 1, &w[i], key, x[i], EXACT), 0);
  }
  cp_until(net, net->now + 100 * TB_MS);
  assert_true(net->core[0]->early_memory <= 20000 && net->core[0]->early_memory > 5000);
  assert_true(net->core[0]->n.early_dropped > 0);
  for (int i = 29; i >= 0; i--) {
    char key[16];
    snprintf(key, sizeof key, "k%d", i);
    assert_int_equal(start(net, 0, &v, key, y, EXACT), 0);
    cp_wait(net, &v);
    cp_wait(net, &w[i]);
    cp_expect(v.result, COUNT, 3, 2);
    cp_expect(w[i].result, COUNT, 3, 2);
    cp_work_free(&v, 1);
  }
  cp_work_free(w, 30);
  cp_until(net, net->now + 20 * TB_SEC);
  assert_int_equal(net->core[0]->early_memory, 0);
  assert_int_equal(net->core[0]->memory, 0);
  cp_free(net);
}

static int lose_to_1(cp *net, cp_frame *f) {
  (void)net;
  return f->dst != 1;
}

/* Rule 5: kept until receipted, or four rounds old, or an age limit. */
static void retirement__by_rounds_and_by_age(void **state) {
  (void)state;
  cp *net = cp_plain(2);
  cp_work w;
  float x[COUNT];
  net->fate = lose_everything;
  for (int i = 0; i < 12; i++) {
    assert_int_equal(start(net, 0, &w, "k", x, 5 * TB_MS), 0);
    net->core[0]->peer[1].silent_rounds = 0; /* not absent: that would retire them at once */
    cp_wait(net, &w);
    cp_work_free(&w, 1);
    cp_until(net, net->now + 10 * TB_MS);
    if (net->core[0]->live_ops > 5) fail_msg("%u rounds are kept after round %d", net->core[0]->live_ops, i);
    if (i >= 1) assert_true(net->core[0]->live_ops >= 2); /* and they are kept */
  }
  cp_until(net, net->now + 6 * TB_SEC);
  assert_int_equal(net->core[0]->live_ops, 0);
  assert_int_equal(net->core[0]->memory, 0);
  cp_free(net);
}

/* Contributions that were not copied at the return are never sent afterwards, whoever asks. */
static void retirement__nothing_unsaved_is_sent(void **state) {
  (void)state;
  cp *net = cp_plain(2);
  static cp_work w[2];
  static float x[2][COUNT];
  round_of(net, "warm", 0, 2, EXACT);
  net->fate = lose_to_1;
  assert_int_equal(start(net, 0, &w[0], "k", x[0], 5 * TB_MS), 0);
  assert_int_equal(start(net, 1, &w[1], "k", x[1], 80 * TB_MS), 0);
  cp_until(net, net->now + 2 * TB_MS);
  /* An estimate may be early: rank 0 takes rank 1's shard for closed when it returns itself. */
  tb_op_find(net->core[0], tb_key_hash("k", 1), 0)->peer[1].announced = net->now;
  cp_wait(net, &w[0]);
  net->fate = NULL;
  cp_wait(net, &w[1]);
  for (int i = 0; i < COUNT; i++) {
    float whole = (float)(3 + 2 * i), alone = (float)(2 + i) * 2, got = w[1].result[i];
    if (got != whole && got != alone && got != (float)(1 + i) * 2 && got != 0) fail_msg("element %d is %g", i, (double)got);
  }
  cp_work_free(w, 2);
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
    tb_core_goodbye(net->core[1], net->now);
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
    cmocka_unit_test(jump__two_ranks),
    cmocka_unit_test(jump__needs_a_quorum),
    cmocka_unit_test(jump__exact_operations_never_skip),
    cmocka_unit_test(passed__ends_at_once_and_does_not_count),
    cmocka_unit_test(skips__raise_after_three_in_a_row),
    cmocka_unit_test(skip__restores_the_input),
    cmocka_unit_test(absence__after_three_rounds_and_revival),
    cmocka_unit_test(absence__counts_rounds_not_buckets),
    cmocka_unit_test(exact__silence_is_an_error_that_names_the_peer),
    cmocka_unit_test(exact__lateness_alone_is_no_error),
    cmocka_unit_test(exact__error_bound),
    cmocka_unit_test(mismatch__is_told_to_everybody),
    cmocka_unit_test(mismatch__learnt_after_the_return),
    cmocka_unit_test(owner__late_rank_costs_nobody_its_shard),
    cmocka_unit_test(memory__cap_is_eagain),
    cmocka_unit_test(memory__early_cap),
    cmocka_unit_test(retirement__by_rounds_and_by_age),
    cmocka_unit_test(retirement__nothing_unsaved_is_sent),
    cmocka_unit_test(goodbye__ends_what_waits_for_it),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
