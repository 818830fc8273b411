/* test_early_timeout.c - rule 4: a stage ends early when all senders are through and nothing moves, and no sooner. */
#include "core_pair.h"

enum { RANKS = 3, COUNT = 3 * 16 * 20 }; /* 20 chunks a shard */
static cp_work w[CP_RANKS];
static float x[CP_RANKS][COUNT];

typedef struct {
  int stage;           /* of the frames from rank 1 to rank 0 that are meddled with */
  bool armed, seen;    /* a chunk is lost the first time */
  bool cut;            /* after the last chunk no repair comes, and no mark */
  uint64_t repair;     /* the repair takes that much longer */
  uint64_t tail_at;
} plan;

static int meddle(cp *net, cp_frame *f) {
  plan *t = net->ctx;
  if (!t->armed || f->src != 1 || f->dst != 0) return 1;
  if (t->cut && t->tail_at && (f->h.type == TB_T_PROBE || (f->h.type == TB_T_DATA && f->h.stage == t->stage))) return 0;
  if (f->h.type != TB_T_DATA || f->h.stage != t->stage) return 1;
  if (f->h.percentile) t->tail_at = net->now;
  if (f->h.chunk != 5) return 1;
  if (!t->seen) {
    t->seen = true;
    return 0;
  }
  f->at += t->repair;
  return 1;
}

static void round_of(cp *net) {
  for (uint16_t r = 0; r < RANKS; r++) {
    cp_fill(x[r], COUNT, 1, 1);
    tb_call call = cp_call("k", x[r], x[r], COUNT, 20 * TB_MS);
    call.min_received = 0;
    assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
  }
  cp_wait_all(net, w, RANKS);
}

static void off(tb_tunables *t) {
  t->deadline_floor = TB_MS / 10;
  t->early_timeout = TB_EARLY_OFF;
}

static void on(tb_tunables *t) {
  off(t);
  t->early_timeout = TB_EARLY_ALWAYS;
}

/* Time of rank 0 and what it received in a round with that plan. */
static double elapsed_ms(plan *t, void (*tune)(tb_tunables *), double *received) {
  cp *net = cp_new(&(cp_options){.n = RANKS, .chunk_bytes = 64, .window = 256, .delay = 100000, .tune = tune});
  net->fate = meddle;
  net->ctx = t;
  for (int i = 0; i < 12; i++) {
    t->armed = i == 11;
    round_of(net);
    if (i < 11) cp_work_free(w, RANKS);
    cp_until(net, net->now + 10 * TB_MS);
  }
  assert_true(t->seen && t->tail_at);
  double ms = (double)w[0].o.result.elapsed_ns * 1e-6;
  *received = w[0].o.result.received;
  assert_int_equal(net->core[0]->n.early_timeouts > 0, tune == on && *received < 1);
  cp_work_free(w, RANKS);
  cp_free(net);
  return ms;
}

static void early__fires_when_repair_has_died(void **state) {
  (void)state;
  for (int stage = 1; stage <= 2; stage++) {
    double got, all;
    plan a = {.stage = stage, .cut = true}, b = a;
    double with = elapsed_ms(&a, on, &got), without = elapsed_ms(&b, off, &all);
    if (with > without / 4) fail_msg("stage %d: %.3f ms with, %.3f ms without", stage, with, without);
    if (got != all) fail_msg("stage %d: received %.6f with, %.6f without", stage, got, all);
  }
}

/* A repair asked for may take its retransmission time-out (1 ms at least), however long nothing moves. */
static void early__is_for_automatic_deadlines_unless_asked_for(void **state) {
  (void)state;
  cp *net = cp_plain(2);
  tb_core *c = net->core[0];
  assert_true(tb_early_wanted(c, true)); /* the default */
  assert_false(tb_early_wanted(c, false));
  c->tune.early_timeout = TB_EARLY_ALWAYS;
  assert_true(tb_early_wanted(c, false));
  c->tune.early_timeout = TB_EARLY_OFF;
  assert_false(tb_early_wanted(c, true));
  cp_free(net);
}

static void early__waits_for_a_repair_under_way(void **state) {
  (void)state;
  for (int stage = 1; stage <= 2; stage++) {
    double got;
    plan t = {.stage = stage, .repair = 7 * TB_MS / 10};
    double ms = elapsed_ms(&t, on, &got);
    if (got != 1.0) fail_msg("stage %d: received %.6f", stage, got);
    if (ms < 1) fail_msg("stage %d: %.3f ms: the repair was not late", stage, ms);
  }
}

/* In the release of OptiReduce the mark is never set: offset / end_offset > 0.99 in whole numbers. */
static int check_mark(cp *net, cp_frame *f) {
  int *marked = net->ctx;
  if (f->h.type == TB_T_DATA && f->h.percentile) marked[f->h.stage - 1]++;
  return 1;
}

static void mark__is_set_on_the_last_percent(void **state) {
  (void)state;
  const struct { uint32_t total, marked; } t[] = {{1, 1}, {2, 1}, {99, 1}, {100, 1}, {101, 2}, {1000, 10}, {100000, 1000}, {UINT32_MAX, 42949673}};
  for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
    uint32_t n = t[i].total, first = n - t[i].marked;
    assert_true(tb_last_percent(n - 1, n) && tb_last_percent(first, n));
    if (first) assert_false(tb_last_percent(first - 1, n));
  }
  int marked[2] = {0, 0};
  cp *net = cp_plain(RANKS);
  net->fate = check_mark;
  net->ctx = marked;
  round_of(net);
  cp_work_free(w, RANKS);
  assert_int_equal(marked[0], RANKS * (RANKS - 1)); /* one chunk of each flow of 20 */
  assert_int_equal(marked[1], RANKS * (RANKS - 1));
  cp_free(net);
}

static void x__keeps_loss_between_its_bounds(void **state) {
  (void)state;
  assert_true(tb_x_after(0.10, 0.002) == 0.20);
  assert_true(tb_x_after(0.40, 0.002) == 0.50); /* at most a half */
  assert_true(tb_x_after(0.20, 0.0005) == 0.20);
  assert_true(tb_x_after(0.20, 0) > 0.1899 && tb_x_after(0.20, 0) < 0.1901);
  assert_true(tb_x_after(0.01, 0) == 0.01);
}

static void loss__is_counted_after_draining(void **state) {
  (void)state;
  tb_flow_rx none = {0};
  tb_op_peer peers[3] = {{.rx = {none, none}}, {.rx = {{.total = 50, .got = 50}, {.total = 50, .got = 40}}}, {.rx = {none, none}}};
  cp *net = cp_plain(3);
  tb_op op = {.peer = peers, .returned = TB_SEC, .swept_at = TB_SEC};
  tb_core *c = net->core[0];
  tb_clocks_set(&c->trips, 1, ~200000ull); /* the longest of the shortest trips */
  assert_true(tb_loss_after_draining(c, &op) > 0.0999 && tb_loss_after_draining(c, &op) < 0.1001);
  for (int i = 0; i < 4; i++) tb_came_after(c, &op, 1, 1, TB_SEC + 150000); /* was under way */
  assert_true(tb_loss_after_draining(c, &op) > 0.0599 && tb_loss_after_draining(c, &op) < 0.0601);
  for (int i = 0; i < 4; i++) tb_came_after(c, &op, 1, 1, TB_SEC + 250000); /* a longer wait would have got it */
  assert_true(tb_loss_after_draining(c, &op) > 0.0599);
  for (int i = 0; i < 40; i++) tb_came_after(c, &op, 1, 1, TB_SEC + 150000); /* repeats: never more than all */
  assert_true(tb_loss_after_draining(c, &op) == 0);
  c->peer[1].absent = true;
  assert_true(tb_loss_after_draining(c, &op) == 0); /* nobody owes anything: no division by nothing */
  cp_free(net);
}

static int lose_stage_2_1_to_0(cp *net, cp_frame *f) {
  uint64_t *until = net->ctx;
  return !(f->h.type == TB_T_DATA && f->h.stage == 2 && f->src == 1 && f->dst == 0 && net->now < *until);
}

/* What late delivery brings after the round was lost for it: x grows as it does without (anonymous operations). */
static void loss__delivered_late_is_loss(void **state) {
  (void)state;
  double x_of[2];
  for (int named = 0; named < 2; named++) {
    cp *net = cp_new(&(cp_options){.n = RANKS, .chunk_bytes = 64, .window = 256, .delay = 100000, .tune = on});
    uint64_t until = UINT64_MAX;
    net->fate = lose_stage_2_1_to_0;
    net->ctx = &until;
    for (int round = 0; round < 3; round++) {
      until = UINT64_MAX;
      for (uint16_t r = 0; r < RANKS; r++) {
        cp_fill(x[r], COUNT, 1, 1);
        tb_call call = cp_call(named ? "k" : NULL, x[r], x[r], COUNT, 20 * TB_MS);
        call.min_received = 0;
        assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
      }
      tb_history *h = net->core[0]->ops->history;
      cp_wait_all(net, w, RANKS);
      cp_work_free(w, RANKS);
      cp_until(net, net->now + 20 * TB_MS);
      until = net->now;
      cp_until(net, net->now + 6 * TB_SEC);
      x_of[named] = h->x;
    }
    assert_int_equal(net->core[0]->n.late_delivered, named ? 3 * 20 : 0);
    cp_free(net);
  }
  assert_true(x_of[0] == 0.5);
  assert_true(x_of[1] == 0.5);
}

/* A stage that stayed incomplete counts as elapsed / fraction, which whole numbers would make 0 or 1. */
static void sample__is_extrapolated(void **state) {
  (void)state;
  cp *net = cp_plain(2);
  tb_core *c = net->core[0];
  tb_key *k;
  assert_int_equal(tb_key_get(c, "k", 1, true, 0, &k), 0);
  tb_history *h = tb_history_get(c, k, 0);
  tb_op_peer peers[2] = {{.opened = false}, {.rx = {{.total = 100, .got = 50}, {.total = 100, .got = 0}}}};
  tb_op op = {.peer = peers, .issued = TB_SEC, .swept_at = TB_SEC + TB_MS, .history = h, .geo = {.kind = TB_ALL_REDUCE, .n = 2}};
  tb_stage_samples(c, &op, TB_SEC + 3 * TB_MS);
  assert_int_equal(h->peer[0].told[TB_STAGE1], 2 * TB_MS);
  assert_int_equal(h->peer[0].told[TB_STAGE2], 0); /* nothing came: nothing to extrapolate from */
  peers[1].rx[0].got = 100;
  tb_stage_samples(c, &op, TB_SEC + 3 * TB_MS);
  assert_in_range(h->peer[0].told[TB_STAGE1], 1950000 - 1, 1950000 + 1); /* 0.95 * 2 ms + 0.05 * 1 ms */
  cp_free(net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(early__fires_when_repair_has_died),
    cmocka_unit_test(early__is_for_automatic_deadlines_unless_asked_for),
    cmocka_unit_test(early__waits_for_a_repair_under_way),
    cmocka_unit_test(mark__is_set_on_the_last_percent),
    cmocka_unit_test(x__keeps_loss_between_its_bounds),
    cmocka_unit_test(loss__is_counted_after_draining),
    cmocka_unit_test(loss__delivered_late_is_loss),
    cmocka_unit_test(sample__is_extrapolated),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
