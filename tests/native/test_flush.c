/* test_flush.c - rule 15: settling, ghosts of skipped rounds, and the correction. */
#include "core_round.h"

typedef struct { bool cut; } plan;

static int lose(cp *net, cp_frame *f) { /* rank 1 and the others do not hear each other */
  return !((plan *)net->ctx)->cut || (f->src != 1 && f->dst != 1);
}

static void quick(tb_tunables *t) { t->peer_timeout = 2 * TB_SEC; }
static void few_ghosts(tb_tunables *t) { t->carry_rounds = 1; }

static cp *net_of(plan *p, uint32_t n, void (*tune)(tb_tunables *)) {
  cp *net = cp_new(&(cp_options){.n = n, .chunk_bytes = 64, .window = 256, .delay = 100000, .tune = tune});
  net->fate = lose;
  net->ctx = p;
  return net;
}

static int begin(cp *net, uint16_t r, cp_work *w, float *x, uint64_t deadline) {
  cp_fill(x, COUNT, (float)(1 + r), 1);
  tb_call call = cp_call("k", x, x, COUNT, deadline);
  call.missing = TB_CARRY;
  call.min_received = 0;
  return cp_issue(net, r, w, &call);
}

static tb_key *key_of(cp *net, uint16_t r) { return tb_key_find(net->core[r], tb_key_hash("k", 1)); }

static int settle(cp *net, uint16_t r, cp_work *w) {
  *w = (cp_work){.net = net, .rank = r};
  return tb_core_settle(net->core[r], "k", 1, net->now, &w->o);
}

/* A rank that slept through rounds gets their aggregates all the same: with its own next output, the last
 * `carry_rounds`. */
static void ghost__skipped_rounds_come_into_the_next_output(void **state) {
  (void)state;
  for (int few = 0; few < 2; few++) {
    plan p = {0};
    cp *net = net_of(&p, 3, few ? few_ghosts : NULL);
    static cp_work w[3];
    static float x[3][COUNT];
    for (int round = 0; round < 4; round++) { /* rank 1 does its duty as an owner, and does not issue */
      for (uint16_t r = 0; r < 3; r += 2) assert_int_equal(begin(net, r, &w[r], x[r], 5 * TB_MS), 0);
      for (uint16_t r = 0; r < 3; r += 2) cp_wait(net, &w[r]);
      for (uint16_t r = 0; r < 3; r += 2) cp_expect(w[r].result, COUNT, 4, 2); /* 1 + 3, not scaled */
      cp_work_free(w, 1);
      cp_work_free(w + 2, 1);
    }
    cp_until(net, net->now + TB_MS);
    p.cut = true; /* so that it runs its next round alone */
    assert_int_equal(begin(net, 1, &w[1], x[1], 5 * TB_MS), 0);
    assert_int_equal(w[1].o.result.behind, 0);
    cp_wait(net, &w[1]);
    assert_int_equal(w[1].o.result.behind, 4);
    assert_int_equal(net->core[1]->n.rounds_lost, few ? 3 : 0);
    double got[COUNT] = {0};
    for (int i = 0; i < COUNT; i++) got[i] += (double)w[1].result[i];
    cp_work_free(w + 1, 1);
    p.cut = false;
    cp_until(net, net->now + TB_SEC);
    float out[COUNT] = {0};
    assert_int_equal(tb_core_flush_end(net->core[1], "k", 1, out, sizeof out), 0);
    for (int i = 0; i < COUNT; i++) got[i] += (double)out[i];
    uint32_t rounds = few ? 1 : 4, own = 0; /* and of its own round the shard that it owns itself */
    for (int i = 0; i < COUNT; i++) {
      double ghosts = rounds * (4.0 + 2 * i);
      assert_true(got[i] == ghosts || got[i] == ghosts + 2 + i);
      own += got[i] != ghosts;
    }
    assert_int_equal(own, COUNT / 3);
    cp_until(net, net->now + 6 * TB_SEC);
    for (uint16_t r = 0; r < 3; r++)
      /* which the others have not issued */
      for (tb_op *op = net->core[r]->ops; op; op = op->next) assert_true(op->round == 4);
    cp_free(net);
  }
}

static void settle__waits_for_fates_and_late_chunks(void **state) {
  (void)state;
  plan p = {0};
  cp *net = net_of(&p, 2, NULL);
  cp_work w[2], s;
  float x[2][COUNT];
  for (uint16_t r = 0; r < 2; r++) assert_int_equal(begin(net, r, &w[r], x[r], 10 * TB_MS), 0);
  assert_int_equal(settle(net, 0, &s), 0);
  assert_int_equal(s.o.issued_ns, net->now); /* what a result counts its time from */
  assert_false(s.done); /* an operation is under way */
  cp_until(net, net->now + 50000);
  p.cut = true;
  cp_wait_all(net, w, 2);
  cp_work_free(w, 2);
  cp_until(net, net->now + 300 * TB_MS);
  assert_false(s.done);
  p.cut = false;
  cp_wait(net, &s);
  assert_int_equal(s.o.result.status, 0);
  assert_false(tb_fate_unknown(net->core[0]->ops ? net->core[0]->ops : &(tb_op){0}, 1));
  cp_work_free(&s, 1);
  assert_int_equal(settle(net, 0, &s), 0);
  assert_true(s.done); /* nothing is open: at once */
  cp_work_free(&s, 1);
  cp_free(net);
}

static void settle__names_the_silent_peer(void **state) {
  (void)state;
  plan p = {0};
  cp *net = net_of(&p, 3, quick);
  cp_work w[3], s;
  float x[3][COUNT];
  for (uint16_t r = 0; r < 3; r++) assert_int_equal(begin(net, r, &w[r], x[r], 10 * TB_MS), 0);
  cp_until(net, net->now + 50000);
  p.cut = true;
  cp_wait_all(net, w, 3);
  cp_work_free(w, 3);
  uint64_t began = net->now;
  assert_int_equal(settle(net, 0, &s), 0);
  cp_wait(net, &s);
  assert_int_equal(s.o.result.status, -EHOSTDOWN);
  assert_non_null(strstr(s.o.error, "rank 1"));
  assert_in_range(s.done_at - began, 2 * TB_SEC - 100 * TB_MS, 2 * TB_SEC + 100 * TB_MS);
  cp_work_free(&s, 1);
  assert_int_equal(settle(net, 0, &s), 0); /* and it can be given up */
  tb_core_cancel(net->core[0], &s.o, -ECANCELED, "test", net->now);
  assert_int_equal(s.o.result.status, -ECANCELED);
  cp_work_free(&s, 1);
  assert_int_equal(settle(net, 0, &s), 0); /* or end with the core */
  cp_free(net);
  tb_outcome_free(&s.o);
}

/* Whoever will never answer is not waited for: gone, or it says that it knows nothing (any more). */
static void settle__does_not_wait_for_who_is_gone(void **state) {
  (void)state;
  for (int goodbye = 0; goodbye < 2; goodbye++) {
    plan p = {0};
    cp *net = net_of(&p, 2, NULL);
    cp_work w[2], s;
    float x[2][COUNT];
    for (uint16_t r = 0; r < 2; r++) assert_int_equal(begin(net, r, &w[r], x[r], 10 * TB_MS), 0);
    cp_until(net, net->now + 50000);
    p.cut = true;
    cp_wait_all(net, w, 2);
    cp_work_free(w, 2);
    assert_int_equal(settle(net, 0, &s), 0);
    if (goodbye) tb_core_goodbye(net->core[1]);
    else while (net->core[1]->ops) tb_op_free(net->core[1], net->core[1]->ops, net->now); /* as carry_age would */
    p.cut = false;
    cp_wait(net, &s);
    assert_int_equal(s.o.result.status, 0);
    assert_true(net->core[0]->n.dropped_values > 0); /* told, not silent */
    cp_work_free(&s, 1);
    cp_free(net);
  }
}

static void begin__checks_its_arguments(void **state) {
  (void)state;
  plan p = {0};
  cp *net = net_of(&p, 2, NULL);
  tb_signature sig;
  float out[COUNT];
  cp_work s = {.net = net};
  assert_int_equal(tb_core_flush_like(net->core[0], "k", 1, &sig), -ENOENT);
  assert_int_equal(tb_core_flush_begin(net->core[0], "k", 1, 0, net->now), -ENOENT);
  assert_int_equal(tb_core_flush_take(net->core[0], "k", 1, out, sizeof out), -ENOENT);
  assert_int_equal(tb_core_flush_end(net->core[0], "k", 1, out, sizeof out), -ENOENT);
  assert_int_equal(tb_core_settle(net->core[0], "k", 1, net->now, &s.o), -ENOENT);
  cp_work w[2];
  float x[2][COUNT];
  for (uint16_t r = 0; r < 2; r++) assert_int_equal(begin(net, r, &w[r], x[r], 10 * TB_MS), 0);
  cp_wait_all(net, w, 2);
  cp_work_free(w, 2);
  assert_int_equal(tb_core_flush_begin(net->core[0], "k", 1, 0, net->now), -EINVAL); /* rounds never go back */
  assert_int_equal(tb_core_flush_begin(net->core[0], "k", 1, 1, net->now), 0);
  assert_int_equal(tb_core_flush_like(net->core[0], "k", 1, &sig), 0);
  assert_int_equal(sig.count, COUNT);
  assert_int_equal(sig.missing, TB_CARRY);
  assert_int_equal(tb_core_flush_take(net->core[0], "k", 1, out, sizeof out - 4), -EINVAL);
  assert_int_equal(tb_core_flush_end(net->core[0], "k", 1, out, sizeof out + 4), -EINVAL);
  assert_int_equal(tb_core_flush_take(net->core[0], "k", 1, out, sizeof out), 0);
  for (int i = 0; i < COUNT; i++) assert_true(out[i] == 0);
  assert_int_equal(key_of(net, 0)->next_round, 1);
  cp_free(net);
}

/* Rule 6: what skipped rounds take is held to early_cap, and what finds no room is counted. */
static void ghost__stays_below_early_cap(void **state) {
  (void)state;
  enum { SKIPPED = 20, CAP = 20000 };
  plan p = {0};
  cp *net = net_of(&p, 2, NULL);
  tb_core *c = net->core[1];
  static cp_work w[2];
  static float x[2][COUNT];
  for (uint16_t r = 0; r < 2; r++) assert_int_equal(begin(net, r, &w[r], x[r], 5 * TB_MS), 0);
  cp_wait_all(net, w, 2);
  cp_work_free(w, 2);
  c->tune.early_cap = CAP;
  assert_int_equal(tb_core_flush_begin(c, "k", 1, 1 + SKIPPED, net->now), 0);
  assert_in_range(c->early_memory, CAP / 2, CAP);
  assert_in_range(c->n.rounds_lost, 1, SKIPPED - 1);
  uint32_t ghosts = 0;
  for (const tb_op *op = c->ops; op; op = op->next) ghosts += op->ghost;
  assert_int_equal(ghosts + c->n.rounds_lost, SKIPPED);
  cp_free(net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(ghost__skipped_rounds_come_into_the_next_output),
    cmocka_unit_test(ghost__stays_below_early_cap),
    cmocka_unit_test(settle__waits_for_fates_and_late_chunks),
    cmocka_unit_test(settle__names_the_silent_peer),
    cmocka_unit_test(settle__does_not_wait_for_who_is_gone),
    cmocka_unit_test(begin__checks_its_arguments),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
