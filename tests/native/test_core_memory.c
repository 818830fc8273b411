/* test_core_memory.c - what the library may hold, for how long, and where repairs come from (rules 5, 22). */
#include "core_round.h"

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
  static cp_work w[3], peer;
  static float x[3][BIG], px[BIG];
  for (int i = 0; i < 3; i++) cp_fill(x[i], BIG, 1, 1);
  tb_call call = cp_call("a", x[0], x[0], BIG, EXACT);
  assert_int_equal(cp_issue(net, 0, &w[0], &call), 0);
  size_t held = net->core[0]->memory;
  assert_true(held > BIG * 4 && held < BIG * 8);
  net->core[0]->tune.memory_cap = 3 * held - 1000; /* the operation itself would fit, not what keeps the input safe */
  call = cp_call("b", x[1], x[1], BIG, EXACT);
  assert_int_equal(cp_issue(net, 0, &w[1], &call), 0);
  call = cp_call("c", x[2], x[2], BIG, EXACT);
  assert_int_equal(cp_issue(net, 0, &w[2], &call), -EAGAIN);
  assert_non_null(strstr(w[2].o.error, "memory_cap="));
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
  /* the refused call took none */
  assert_int_equal(net->core[0]->key_hash[tb_key_hash("c", 1) % TB_BUCKETS]->next_round, 1);
  for (int i = 1; i < 3; i++) tb_core_cancel(net->core[0], &w[i].o, -ECANCELED, "end of test", net->now);
  cp_work_free(w, 3);
  cp_work_free(&peer, 1);
  cp_free(net);
}

static size_t all_memory(const tb_core *c) { return c->memory + tb_pool_kept(c->pool); }

/* What the pool keeps and what arrival times take is under the cap too; the pool gives way to an operation. */
static void memory__pool_and_histories_count(void **state) {
  (void)state;
  enum { BIG = 60000, CAP = 1 << 20 };
  cp *net = cp_new(&(cp_options){.n = 2, .chunk_bytes = 1024, .window = 64, .delay = 100000});
  static float x[2][BIG];
  static cp_work w[2];
  tb_core *c = net->core[0];
  c->tune.memory_cap = CAP;
  for (int i = 0; i < 12; i++) { /* of growing size, so that no buffer of the one before fits */
    for (uint16_t r = 0; r < 2; r++) {
      char key[16];
      snprintf(key, sizeof key, "k%d", i);
      tb_call call = cp_call(key, x[r], x[r], 5000u * (uint64_t)(i + 1), 0);
      assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
      assert_in_range(all_memory(c), 1, CAP);
    }
    cp_wait_all(net, w, 2);
    cp_work_free(w, 2);
    cp_until(net, net->now + 6 * TB_SEC);
    assert_int_equal(c->live_ops, 0);
    /* of each key, for deadline=auto */
    assert_int_equal(c->memory, (i + 1) * (sizeof(tb_history) + 2 * sizeof(tb_history_peer)));
    assert_in_range(all_memory(c), 1, CAP);
  }
  assert_in_range(tb_pool_kept(c->pool), CAP / 2, CAP); /* and it does keep buffers while there is room */
  size_t before = c->memory;
  c->tune.memory_cap = before + sizeof(tb_history);
  tb_call call = cp_call("another", x[0], x[0], 10, 0); /* no room for its history, nor for the operation */
  assert_int_equal(cp_issue(net, 0, &w[0], &call), -EAGAIN);
  assert_int_equal(c->memory, before);
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

/* An issue that memory_cap refuses, at whatever step, leaves the account of others' rounds as it was. */
static void memory__refused_issue_does_not_count_as_early(void **state) {
  (void)state;
  enum { BIG = 5000 };
  static float x[BIG], y[COUNT];
  for (int hadamard = 0; hadamard < 2; hadamard++) {
    cp *net = cp_plain(2);
    tb_core *c = net->core[0];
    cp_work w;
    uint64_t refused = 0;
    for (size_t cap = 1000;; cap += 1000) {
      c->tune.memory_cap = cap;
      tb_call call = cp_call("k", x, x, BIG, 10 * TB_MS);
      call.hadamard = hadamard;
      if (!cp_issue(net, 0, &w, &call)) break;
      assert_int_equal(c->early_memory, 0);
      refused++;
    }
    assert_int_equal(c->n.memory_refused, refused);
    assert_in_range(refused, 5, 1000);
    assert_int_equal(c->early_memory, 0);
    cp_wait(net, &w);
    cp_work_free(&w, 1);
    c->tune.memory_cap = 1 << 20;
    assert_int_equal(start(net, 1, &w, "other", y, EXACT), 0);
    cp_until(net, net->now + TB_MS);
    assert_non_null(tb_op_find(c, tb_key_hash("other", 5), 0)); /* accepted */
    assert_int_equal(c->n.early_dropped, 0);
    tb_core_cancel(net->core[1], &w.o, -ECANCELED, "end of test", net->now);
    cp_work_free(&w, 1);
    cp_free(net);
  }
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
    net->core[0]->peer[1].silent_rounds = 0; /* not absent: its OPEN may still come */
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

/* Rule 9: an absent peer costs nothing, however many rounds go on without it: the last keep_rounds of a key are kept
 * for it, under carry the last carry_rounds, and of these only what it may still ask for. */
static void retirement__absent_peer_is_kept_few_rounds(void **state) {
  (void)state;
  enum { ROUNDS = 2000, SOME = 120 };
  static cp_work w[2];
  static float x[2][SOME];
  for (int carry = 0; carry < 2; carry++) {
    cp *net = cp_plain(3);
    const tb_core *c = net->core[0];
    uint64_t most = carry ? c->tune.carry_rounds : c->tune.keep_rounds;
    uint32_t seen = 0;
    net->stopped[2] = true;
    for (int round = 0; round < ROUNDS; round++) {
      for (uint16_t r = 0; r < 2; r++) {
        tb_call call = cp_call("k", x[r], x[r], SOME, 10 * TB_MS);
        call.missing = carry ? TB_CARRY : TB_RENORMALISE;
        assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
      }
      cp_wait_all(net, w, 2);
      cp_work_free(w, 2);
      cp_until(net, net->now + TB_MS);
      if (c->live_ops > seen) seen = c->live_ops;
    }
    assert_true(c->peer[2].absent);
    assert_in_range(seen, most, most + (carry ? c->tune.keep_rounds : 1)); /* and those whose fates it owes */
    uint32_t saved = 0;
    for (const tb_op *op = c->ops; op; op = op->next) saved += op->save != NULL;
    assert_in_range(saved, 0, c->tune.keep_rounds);
    cp_until(net, net->now + c->tune.carry_age + TB_SEC);
    assert_int_equal(c->live_ops, 0);
    cp_free(net);
  }
}

/* Rules 5 and 17: a broadcast or an agreed round waits for whoever lives, and comes so late that it was silent longer
 * than peer_timeout: only keep-alives were heard of it. */
static void retirement__bound_round_is_kept_for_a_quiet_laggard(void **state) {
  (void)state;
  static cp_work w[2];
  static float x[2][COUNT];
  const uint64_t late[] = {16 * TB_SEC, 60 * TB_SEC};
  for (int i = 0; i < 2; i++)
    for (int agreed = 0; agreed < 2; agreed++) {
      cp *net = cp_plain(2);
      for (uint16_t r = 0; r < 2; r++) {
        cp_fill(x[r], COUNT, (float)(1 + r), 1);
        tb_call call = cp_call("k", x[r], x[r], COUNT, agreed ? 10 * TB_MS : EXACT);
        if (!agreed) call.kind = TB_BROADCAST;
        call.consistency = agreed ? TB_AGREE : TB_LOCAL;
        call.min_received = 0;
        if (r) cp_until(net, net->now + late[i]);
        assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
        cp_wait(net, &w[r]);
        if (w[r].o.result.status) fail_msg("agreed %d, %d s late: %s", agreed, (int)(late[i] / TB_SEC), w[r].o.error);
      }
      assert_memory_equal(w[0].result, w[1].result, sizeof x[0]);
      cp_expect(w[1].result, COUNT, agreed ? 2 : 1, agreed ? 2 : 1); /* what rank 1 gave was too late: scaled */
      cp_work_free(w, 2);
      cp_until(net, net->now + TB_SEC);
      assert_int_equal(net->core[0]->live_ops, 0);
      cp_free(net);
    }
}

static int lose_0_to_1(cp *net, cp_frame *f) {
  (void)net;
  return f->dst != 1 || f->src != 0;
}

/* The receipt that says "returned here" is lost too: hearing it, an owner closes without waiting for repairs. */
static int lose_receipts_of_0_to_1(cp *net, cp_frame *f) {
  (void)net;
  return f->dst != 1 || f->src != 0 || f->h.type != TB_T_RECEIPT;
}

/* Rule 5: what later repairs need is a library copy: the caller's memory is overwritten the moment it returns. And what
 * was not copied, because the owner seemed to have closed, is never sent, whoever asks. */
static void retirement__repairs_come_from_a_copy_or_not_at_all(void **state) {
  (void)state;
  for (int closed = 0; closed < 2; closed++)
    for (int in_place = 0; in_place < 2; in_place++) {
      cp *net = cp_plain(3);
      static cp_work w[3];
      static float x[3][COUNT], y[COUNT];
      round_of(net, "warm", 0, 3, EXACT); /* leaves buffers full of plausible numbers */
      cp_until(net, net->now + TB_MS);
      net->fate = lose_0_to_1;
      cp_fill(x[0], COUNT, 1000, 1);
      tb_call call = cp_call("k", x[0], in_place ? x[0] : y, COUNT, 5 * TB_MS);
      assert_int_equal(cp_issue(net, 0, &w[0], &call), 0);
      for (uint16_t r = 1; r < 3; r++) assert_int_equal(start(net, r, &w[r], "k", x[r], 80 * TB_MS), 0);
      cp_until(net, net->now + 2 * TB_MS);
      /* an estimate may be early */
      if (closed) tb_op_find(net->core[0], tb_key_hash("k", 1), 0)->peer[1].announced = net->now;
      cp_wait(net, &w[0]);
      net->fate = lose_receipts_of_0_to_1;
      cp_wait(net, &w[1]);
      cp_wait(net, &w[2]);
      uint64_t first, len;
      tb_geo_shard(&w[1].o.geometry, 1, &first, &len);
      for (uint64_t i = first; i < first + len; i++) {
        float whole = (float)(1005 + 3 * i), without = (float)(5 + 2 * i) * 3 / 2, got = w[1].result[i];
        if (got != (closed ? without : whole)) fail_msg("closed %d: element %d is %g", closed, (int)i, (double)got);
      }
      cp_work_free(w, 3);
      cp_free(net);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(memory__cap_is_eagain),
    cmocka_unit_test(memory__pool_and_histories_count),
    cmocka_unit_test(memory__early_cap),
    cmocka_unit_test(memory__refused_issue_does_not_count_as_early),
    cmocka_unit_test(retirement__by_rounds_and_by_age),
    cmocka_unit_test(retirement__absent_peer_is_kept_few_rounds),
    cmocka_unit_test(retirement__bound_round_is_kept_for_a_quiet_laggard),
    cmocka_unit_test(retirement__repairs_come_from_a_copy_or_not_at_all),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
