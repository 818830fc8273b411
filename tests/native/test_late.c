/* test_late.c - rule 13: decided chunks that missed their deadline come into the next output, once. */
#include <math.h>
#include "core_round.h"

typedef struct { uint64_t until; int copies; uint32_t round; } plan;

/* Rank 1's decided chunks of the round do not reach rank 0 before `until`; after that they come in so many copies. */
static int lose(cp *net, cp_frame *f) {
  plan *p = net->ctx;
  if (f->h.type != TB_T_DATA || f->h.round != p->round || f->src != 1 || f->dst != 0 || f->h.stage != 2) return 1;
  return net->now < p->until ? 0 : p->copies;
}

static cp *net_with(plan *p, uint32_t n, void (*tune)(tb_tunables *)) {
  cp *net = cp_new(&(cp_options){.n = n, .chunk_bytes = 64, .window = 256, .delay = 100000, .tune = tune});
  net->fate = lose;
  net->ctx = p;
  return net;
}

static tb_key *key_of(cp *net, uint16_t r) { return tb_key_find(net->core[r], tb_key_hash("k", 1)); }

/* All ranks issue; the results stay to be looked at. */
static void issue_all(cp *net, cp_work *w, float x[][COUNT], uint64_t deadline) {
  for (uint16_t r = 0; r < net->n; r++) assert_int_equal(start(net, r, &w[r], "k", x[r], deadline), 0);
  cp_wait_all(net, w, net->n);
}

/* Where rank 1's shard of a round lies. */
static void shard_of_1(uint32_t n, uint32_t round, uint64_t *first, uint64_t *len) {
  tb_geometry g = {.kind = TB_ALL_REDUCE, .n = n, .rotation = round % n, .elem = 4, .chunk_elems = 16, .count = COUNT};
  tb_geo_shard(&g, 1, first, len);
}

static void expect_late(const float *got, const float *base, uint32_t n, uint64_t first, uint64_t len) {
  for (uint64_t i = 0; i < COUNT; i++) {
    float value = base[i] * (float)n + (float)(n * (n - 1) / 2); /* base holds rank 0's input */
    float want = i >= first && i < first + len ? value : 0;
    if (got[i] != want) fail_msg("element %llu is %g, not %g", (unsigned long long)i, (double)got[i], (double)want);
  }
}

static void late__comes_into_the_next_output(void **state) {
  (void)state;
  for (uint32_t n = 2; n <= 4; n++) {
    plan p = {.until = UINT64_MAX, .copies = 3};
    cp *net = net_with(&p, n, NULL);
    static cp_work w[CP_RANKS];
    static float x[CP_RANKS][COUNT], base[COUNT], diff[COUNT];
    uint64_t first, len;
    shard_of_1(n, 0, &first, &len);
    issue_all(net, w, x, 20 * TB_MS);
    assert_true(w[0].o.result.deadline_hit);
    for (uint64_t i = first; i < first + len; i++) assert_true(w[0].result[i] == 0); /* missing: zero, and reported */
    cp_work_free(w, n);
    assert_int_equal(key_of(net, 0)->late.used, 0);
    p.until = net->now;
    cp_until(net, net->now + 500 * TB_MS); /* nobody issues: the owner's marks bring it */
    assert_int_equal(key_of(net, 0)->late.used, (len + 15) / 16);
    assert_int_equal(net->core[0]->n.late_delivered, (len + 15) / 16);
    assert_null(net->core[0]->ops);
    assert_null(net->core[1]->ops); /* receipted: nobody keeps anything */
    cp_fill(base, COUNT, 1, 1);
    for (int round = 1; round < 3; round++) {
      issue_all(net, w, x, 20 * TB_MS);
      for (uint64_t i = 0; i < COUNT; i++) diff[i] = w[0].result[i] - (base[i] * (float)n + (float)(n * (n - 1) / 2));
      expect_late(diff, base, n, first, round == 1 ? len : 0);
      assert_true(fabs(w[0].o.result.late - (round == 1 ? (double)len / COUNT : 0)) < 1e-12);
      assert_true(w[0].o.result.received == 1.0 && w[0].o.result.verdict == TB_VERDICT_OK);
      for (uint16_t r = 1; r < n; r++) assert_true(w[r].o.result.late == 0);
      cp_work_free(w, n);
    }
    cp_until(net, net->now + 100 * TB_MS);
    for (uint16_t r = 0; r < n; r++) assert_int_equal(net->core[r]->memory, 0);
    cp_free(net);
  }
}

static void off(tb_tunables *t) { t->late_delivery = 0; }

/* The switch; and operations without a name have no next round. */
static void late__named_keys_only_and_not_when_off(void **state) {
  (void)state;
  for (int named = 0; named < 2; named++) {
    plan p = {.until = UINT64_MAX, .copies = 1};
    cp *net = net_with(&p, 2, named ? off : NULL);
    static cp_work w[2];
    static float x[2][COUNT];
    for (uint16_t r = 0; r < 2; r++) assert_int_equal(start(net, r, &w[r], named ? "k" : NULL, x[r], 20 * TB_MS), 0);
    cp_wait_all(net, w, 2);
    cp_work_free(w, 2);
    p.until = net->now;
    cp_until(net, net->now + TB_SEC);
    assert_int_equal(net->core[0]->n.late_delivered, 0);
    assert_null(net->core[0]->ops);
    cp_free(net);
  }
}

/* fill="own": the own input stands there, and what comes late brings the difference. */
static void fill__own_input_until_the_late_chunk_comes(void **state) {
  (void)state;
  for (int in_place = 0; in_place < 2; in_place++) {
    plan p = {.until = UINT64_MAX, .copies = 2};
    cp *net = net_with(&p, 2, NULL);
    static cp_work w[2];
    static float x[2][COUNT], y[2][COUNT];
    uint64_t first, len;
    shard_of_1(2, 0, &first, &len);
    for (int round = 0; round < 2; round++) {
      for (uint16_t r = 0; r < 2; r++) {
        cp_fill(x[r], COUNT, (float)(1 + r), 1);
        tb_call call = cp_call("k", x[r], in_place ? x[r] : y[r], COUNT, 20 * TB_MS);
        call.fill = TB_FILL_OWN;
        assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
      }
      cp_wait_all(net, w, 2);
      for (uint64_t i = 0; i < COUNT; i++) {
        float own = 1 + (float)i, all = 2 * own + 1;
        bool missed = i >= first && i < first + len;
        float want = round == 0 ? missed ? own : all : missed ? all + (all - own) : all;
        if (w[0].result[i] != want) fail_msg("round %d, element %d is %g, not %g", round, (int)i,
            (double)w[0].result[i], (double)want);
      }
      cp_work_free(w, 2);
      p.until = net->now;
      cp_until(net, net->now + 500 * TB_MS);
    }
    for (uint16_t r = 0; r < 2; r++) assert_int_equal(net->core[r]->memory, 0);
    cp_free(net);
  }
}

static void short_lives(tb_tunables *t) {
  t->carry_age = 300 * TB_MS;
  t->keep_age = 200 * TB_MS;
}

/* Carry, and the limit comes first: the own input is taken off, what was missing is counted. */
static void fill__is_taken_off_at_the_limit(void **state) {
  (void)state;
  plan p = {.until = UINT64_MAX, .copies = 1};
  cp *net = net_with(&p, 2, short_lives);
  static cp_work w[2];
  static float x[2][COUNT];
  for (uint16_t r = 0; r < 2; r++) {
    cp_fill(x[r], COUNT, 1, 1);
    tb_call call = cp_call("k", x[r], x[r], COUNT, 20 * TB_MS);
    call.missing = TB_CARRY;
    call.min_received = 0;
    call.fill = TB_FILL_OWN;
    assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
  }
  cp_wait_all(net, w, 2);
  cp_work_free(w, 2);
  cp_until(net, net->now + 2 * TB_SEC);
  assert_null(net->core[0]->ops);
  const tb_store *late = &key_of(net, 0)->late;
  assert_int_equal(late->used, 2);
  for (tb_stored e = {0}; tb_store_each(late, &e); e.at++)
    for (uint32_t i = 0; i < e.n; i++)
      assert_true(((const float *)(const void *)tb_store_at(late, &e))[i] == -(1 + (float)(e.first + i)));
  assert_int_equal(net->core[0]->n.late_dropped, 2);
  cp_free(net);
}

static void fill__is_checked(void **state) {
  (void)state;
  cp *net = cp_plain(2);
  cp_work w;
  float x[COUNT];
  tb_call good = cp_call("k", x, x, COUNT, TB_MS), bad[4] = {good, good, good, good};
  for (int i = 0; i < 4; i++) bad[i].fill = TB_FILL_OWN;
  bad[0].fill = 2;
  bad[1].redop = TB_MAX;
  bad[2].consistency = TB_AGREE;
  bad[3].kind = TB_BROADCAST;
  for (int i = 0; i < 4; i++) {
    assert_int_equal(cp_issue(net, 0, &w, &bad[i]), -EINVAL);
    assert_non_null(strstr(w.o.error, "fill"));
  }
  cp_free(net);
}

/* A skipped round commits nothing, so what came late waits for the next one. */
static void late__waits_for_a_commit(void **state) {
  (void)state;
  plan p = {.until = UINT64_MAX, .copies = 1};
  cp *net = net_with(&p, 2, NULL);
  static cp_work w[2];
  static float x[2][COUNT], base[COUNT], diff[COUNT];
  uint64_t first, len;
  shard_of_1(2, 0, &first, &len);
  issue_all(net, w, x, 20 * TB_MS);
  cp_work_free(w, 2);
  p.until = net->now;
  cp_until(net, net->now + 500 * TB_MS);
  net->stopped[1] = true;
  assert_int_equal(start(net, 0, &w[0], "k", x[0], 10 * TB_MS), 0);
  cp_wait(net, &w[0]);
  assert_int_equal(w[0].o.result.verdict, TB_VERDICT_SKIP);
  assert_true(w[0].o.result.late == 0);
  cp_expect(w[0].result, COUNT, 1, 1);
  cp_work_free(w, 1);
  net->stopped[1] = false;
  cp_until(net, net->now + TB_SEC);
  issue_all(net, w, x, 20 * TB_MS);
  cp_fill(base, COUNT, 1, 1);
  for (uint64_t i = 0; i < COUNT; i++) diff[i] = w[0].result[i] - (base[i] * 2 + 1);
  expect_late(diff, base, 2, first, len);
  cp_work_free(w, 2);
  cp_free(net);
}

/* The wait ends by itself: at the limits of a returned round, or when the owner is gone. */
static void late__ends(void **state) {
  (void)state;
  for (int how = 0; how < 3; how++) {
    plan p = {.until = UINT64_MAX, .copies = 1};
    cp *net = net_with(&p, 2, NULL);
    static cp_work w[2];
    static float x[2][COUNT];
    issue_all(net, w, x, 20 * TB_MS);
    cp_work_free(w, 2);
    cp_until(net, net->now + 100 * TB_MS);
    assert_non_null(net->core[0]->ops);
    if (how == 0) cp_until(net, net->now + 6 * TB_SEC); /* keep_age */
    if (how == 1) tb_core_goodbye(net->core[1]);
    if (how == 2) { /* this rank itself ends: then the owner need not keep anything */
      tb_core_closing(net->core[0], net->now);
      cp_until(net, net->now + 50 * TB_MS);
      assert_null(net->core[1]->ops);
    }
    cp_until(net, net->now + 50 * TB_MS);
    assert_null(net->core[0]->ops);
    assert_int_equal(net->core[0]->memory, 0);
    assert_int_equal(net->core[0]->n.late_dropped, how == 0 ? 2 : 0); /* what a limit costs is counted */
    cp_free(net);
  }
}

/* A rank that has skipped a round will not want it: nothing is kept for it, and nobody lingers for it at the end. */
static void late__nothing_is_kept_for_who_skipped_the_round(void **state) {
  (void)state;
  plan p = {.until = 0, .copies = 1};
  cp *net = net_with(&p, 3, NULL);
  static cp_work w[3];
  static float x[3][COUNT];
  for (int round = 0; round < 2; round++) { /* rank 2 hears of it and does not issue */
    for (uint16_t r = 0; r < 2; r++) assert_int_equal(start(net, r, &w[r], "k", x[r], 5 * TB_MS), 0);
    for (uint32_t r = 0; r < 2; r++) cp_wait(net, &w[r]);
    cp_work_free(w, 2);
  }
  cp_until(net, net->now + 10 * TB_MS);
  assert_false(tb_core_idle(net->core[0])); /* rank 2 may still come */
  assert_int_equal(start(net, 2, &w[2], "k", x[2], 5 * TB_MS), 0);
  cp_wait(net, &w[2]);
  assert_int_equal(w[2].o.result.behind, 2);
  cp_work_free(w + 2, 1);
  cp_until(net, net->now + 10 * TB_MS);
  for (uint32_t r = 0; r < 2; r++) assert_true(tb_core_idle(net->core[r]));
  cp_free(net);
}

/* Between ranks 0 and 2 nothing came through, not even an OPEN. Rank 2 has returned the round, and says so: it is not
 * taken for one that skipped it. Where rank 0 has forgotten the round by then, what rank 2 lacks is counted. */
static int dark_path(cp *net, cp_frame *f) {
  plan *p = net->ctx;
  return net->now < p->until && f->src + f->dst == 2 && f->src != 1 ? 0 : 1;
}

static void late__comes_to_who_was_never_heard_in_the_round(void **state) {
  (void)state;
  for (int forgets = 0; forgets < 2; forgets++) {
    plan p = {.until = UINT64_MAX};
    cp *net = net_with(&p, 3, NULL);
    static cp_work w[3];
    static float x[3][COUNT];
    net->fate = dark_path;
    if (forgets) net->core[0]->tune.keep_age = TB_MS;
    for (int round = 0; round < 2; round++) {
      for (uint16_t r = 0; r < 3; r++) {
        cp_fill(x[r], COUNT, 1, 1);
        tb_call call = cp_call("k", x[r], x[r], COUNT, 5 * TB_MS);
        call.min_received = 0;
        assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
        /* by then receipts are under way */
        if (round == 0 && r == 0) p.until = net->now + (forgets ? 10 : 5) * TB_MS - 100000;
      }
      if (forgets && round == 1) p.until = net->now;
      cp_wait_all(net, w, 3);
      if (round == 0) assert_true(w[2].o.per_peer[1][0] == 0);
      if (round == 0) cp_work_free(w, 3);
      cp_until(net, net->now + (forgets ? 0 : 20) * TB_MS);
    }
    cp_until(net, net->now + TB_SEC);
    uint64_t first, len;
    tb_geometry g = {.kind = TB_ALL_REDUCE, .n = 3, .elem = 4, .chunk_elems = 16, .count = COUNT};
    tb_geo_shard(&g, 0, &first, &len);
    if (forgets) assert_int_equal(net->core[2]->n.late_dropped, (len + 15) / 16);
    else assert_true(fabs(w[2].o.result.late - (double)len / COUNT) < 1e-9);
    assert_int_equal(net->core[2]->n.late_delivered, forgets ? 0 : (len + 15) / 16);
    cp_work_free(w, 3);
    cp_free(net);
  }
}

static void late__forget_and_resync_drop_it(void **state) {
  (void)state;
  for (int resync = 0; resync < 2; resync++) {
    plan p = {.until = UINT64_MAX, .copies = 1};
    cp *net = net_with(&p, 2, NULL);
    static cp_work w[2];
    static float x[2][COUNT];
    issue_all(net, w, x, 20 * TB_MS);
    cp_work_free(w, 2);
    p.until = net->now;
    cp_until(net, net->now + 500 * TB_MS);
    uint32_t used = key_of(net, 0)->late.used;
    assert_true(used > 0);
    if (resync) assert_int_equal(tb_core_resync(net->core[0], "k", 1, 1, net->now), 0);
    else assert_int_equal(tb_core_forget(net->core[0], "k", 1), 0);
    assert_int_equal(net->core[0]->memory, 0);
    assert_int_equal(net->core[0]->n.late_dropped, used);
    cp_free(net);
  }
}

/* A round that is still being delivered belongs to the key's old life: it brings nothing into the new one. */
static void late__of_a_forgotten_key_does_not_spoil_it(void **state) {
  (void)state;
  plan p = {.until = UINT64_MAX, .copies = 1};
  cp *net = net_with(&p, 2, NULL);
  static cp_work w[2];
  static float x[2][2 * COUNT];
  uint64_t first, len;
  shard_of_1(2, 0, &first, &len);
  for (uint16_t r = 0; r < 2; r++) assert_int_equal(start(net, r, &w[r], "k", x[r], 20 * TB_MS), 0);
  cp_wait_all(net, w, 2);
  cp_work_free(w, 2);
  for (uint16_t r = 0; r < 2; r++) assert_int_equal(tb_core_forget(net->core[r], "k", 1), 0);
  assert_int_equal(net->core[0]->n.late_dropped, (len + 15) / 16); /* given up */
  p.until = net->now;
  cp_until(net, net->now + 500 * TB_MS);
  assert_int_equal(net->core[0]->n.late_delivered, 0);
  assert_null(key_of(net, 0)->late.data);
  for (p.round = 1; p.round < 3; p.round++) { /* with another signature */
    p.until = UINT64_MAX;
    for (uint16_t r = 0; r < 2; r++) {
      cp_fill(x[r], 2 * COUNT, 1, 1);
      tb_call call = cp_call("k", x[r], x[r], 2 * COUNT, 20 * TB_MS);
      assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
    }
    cp_wait_all(net, w, 2);
    assert_true(w[0].o.result.late == (p.round == 2 ? 0.5 : 0));
    cp_work_free(w, 2);
    p.until = net->now;
    cp_until(net, net->now + 500 * TB_MS);
    assert_int_equal(net->core[0]->n.late_delivered, 4 * p.round);
  }
  cp_free(net);
}

/* It costs the present round nothing: the returned one stands behind it. */
static void late__stands_behind_the_present_round(void **state) {
  (void)state;
  plan p = {.until = UINT64_MAX, .copies = 1};
  cp *net = net_with(&p, 2, NULL);
  static cp_work w[2];
  static float x[2][COUNT];
  issue_all(net, w, x, 20 * TB_MS);
  cp_work_free(w, 2);
  for (uint16_t r = 0; r < 2; r++) assert_int_equal(start(net, r, &w[r], "k", x[r], TB_SEC), 0);
  for (uint16_t r = 0; r < 2; r++) assert_int_equal(net->core[r]->ops->round, 1);
  cp_wait_all(net, w, 2);
  assert_true(w[0].o.result.elapsed_ns < 2 * TB_MS && w[1].o.result.elapsed_ns < 2 * TB_MS);
  cp_work_free(w, 2);
  cp_free(net);
}

/* An exact operation has no deadline, but somebody waits for it. */
static void late__stands_behind_exact_operations(void **state) {
  (void)state;
  plan p = {.until = UINT64_MAX, .copies = 1};
  cp *net = net_with(&p, 2, NULL);
  static cp_work w[2];
  static float x[2][COUNT];
  issue_all(net, w, x, 20 * TB_MS);
  cp_work_free(w, 2);
  p.until = 0;
  for (uint16_t r = 0; r < 2; r++) assert_int_equal(start(net, r, &w[r], "exact", x[r], EXACT), 0);
  for (uint16_t r = 0; r < 2; r++) {
    assert_int_equal(net->core[r]->ops->state, TB_OP_ISSUED);
    assert_int_equal(net->core[r]->ops_last->state, TB_OP_RETURNED);
  }
  cp_wait_all(net, w, 2);
  cp_work_free(w, 2);
  cp_free(net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(late__comes_into_the_next_output),
    cmocka_unit_test(late__named_keys_only_and_not_when_off),
    cmocka_unit_test(late__waits_for_a_commit),
    cmocka_unit_test(fill__own_input_until_the_late_chunk_comes),
    cmocka_unit_test(fill__is_taken_off_at_the_limit),
    cmocka_unit_test(fill__is_checked),
    cmocka_unit_test(late__ends),
    cmocka_unit_test(late__nothing_is_kept_for_who_skipped_the_round),
    cmocka_unit_test(late__comes_to_who_was_never_heard_in_the_round),
    cmocka_unit_test(late__forget_and_resync_drop_it),
    cmocka_unit_test(late__of_a_forgotten_key_does_not_spoil_it),
    cmocka_unit_test(late__stands_behind_the_present_round),
    cmocka_unit_test(late__stands_behind_exact_operations),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
