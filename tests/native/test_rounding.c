/* What a wire dtype's rounding takes is carried (rule 15): the sum of outputs does not drift from what was given. */
#include <math.h>
#include "core_pair.h"

enum { RANKS = 3, ELEMS = 150 };
static const tb_dtype WIRES[] = {TB_BF16, TB_F16, TB_I8};
static const double STEP[] = {1.0 / 256, 1.0 / 2048, 1.0 / 127}; /* of one rounding, relative to the largest value */

static cp_work w[RANKS];
static float x[RANKS][ELEMS], y[RANKS][ELEMS];
static double given[ELEMS], got[RANKS][ELEMS];

typedef struct { tb_dtype wire; tb_redop op; bool in_place, automatic; uint32_t rounds; } job;

static float value(uint32_t rank, uint32_t i) { return 1 + sinf((float)(i * 7 + rank * 131)); }

static void without(tb_tunables *t) { t->carry_rounding = 0; }

/* As long as *ctx says: a third of all frames, and of the chunks of a round a third whenever they are sent in time. */
static int lose_some(cp *net, cp_frame *f) {
  uint64_t *until = net->ctx;
  uint32_t h = (f->h.round * 2654435761u) ^ (f->h.chunk * 40503u) ^ (f->h.type * 977u);
  h ^= (uint32_t)(f->src * 31 + f->dst);
  if (f->h.type != TB_T_DATA) h ^= (uint32_t)(f->sent >> 12);
  h *= 2246822519u;
  return net->now >= *until || h >> 28 > 4 ? 1 : 0;
}

static cp *net_of(uint64_t *lossy_until, void (*tune)(tb_tunables *)) {
  cp *net = cp_new(&(cp_options){.n = RANKS, .chunk_bytes = 64, .window = 256, .delay = 100000, .tune = tune});
  net->fate = lose_some;
  net->ctx = lossy_until;
  memset(given, 0, sizeof given);
  memset(got, 0, sizeof got);
  return net;
}

static void run(cp *net, const job *j) {
  for (uint32_t round = 0; round < j->rounds; round++) {
    for (uint16_t r = 0; r < RANKS; r++) {
      for (uint32_t i = 0; i < ELEMS; i++) x[r][i] = value(r, i);
      tb_call call = cp_call("k", x[r], j->in_place ? x[r] : y[r], ELEMS, j->automatic ? 0 : 4 * TB_MS);
      call.redop = (int32_t)j->op;
      call.missing = TB_CARRY;
      call.wire_dtype = (int32_t)j->wire;
      call.min_received = 0;
      for (uint32_t i = 0; i < ELEMS; i++) given[i] += (double)x[r][i] / (j->op == TB_AVG ? RANKS : 1);
      assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
    }
    for (uint16_t r = 0; r < RANKS; r++) {
      cp_wait(net, &w[r]);
      assert_int_equal(w[r].o.result.status, 0);
      for (uint32_t i = 0; i < ELEMS; i++) got[r][i] += (double)w[r].result[i];
    }
    cp_work_free(w, RANKS);
  }
}

static void add(const tb_store *s, double *sum, double factor) {
  for (tb_stored e = {0}; tb_store_each(s, &e); e.at++)
    for (uint32_t i = 0; i < e.n; i++) sum[e.first + i] += factor * (double)((float *)(void *)tb_store_at(s, &e))[i];
}

/* Largest difference between what was given and what rank 0 got, by itself or with what is still held anywhere. */
static double off(const cp *net, bool with_held, tb_redop op) {
  static double sum[ELEMS];
  double worst = 0;
  memcpy(sum, got[0], sizeof sum);
  for (uint16_t r = 0; r < RANKS && with_held; r++) {
    tb_key *k = tb_key_find(net->core[r], tb_key_hash("k", 1));
    add(&k->residual, sum, op == TB_AVG ? 1.0 / RANKS : 1);
    if (r == 0) add(&k->late, sum, 1);
  }
  for (uint32_t i = 0; i < ELEMS; i++) worst = fmax(worst, fabs(sum[i] - given[i]));
  return worst;
}

static void rounding__error_of_the_mean_falls_with_the_rounds(void **state) {
  (void)state;
  for (int k = 0; k < 24; k++) {
    bool on = k & 1, in_place = k & 2;
    tb_redop op = k & 4 ? TB_AVG : TB_SUM;
    int at = k / 8;
    uint64_t never = 0;
    double error[2], step = STEP[at] * (op == TB_AVG ? 2.0 : 2.0 * RANKS);
    for (int longer = 0; longer < 2; longer++) {
      cp *net = net_of(&never, on ? NULL : without);
      run(net, &(job){WIRES[at], op, in_place, false, longer ? 128 : 8});
      error[longer] = off(net, false, op);
      assert_true(off(net, true, op) < (on ? 2e-3 : 1e9));
      cp_free(net);
    }
    if (on) assert_true(error[0] < 3 * step && error[1] < 3 * step); /* of one round, however many there were */
    else assert_true(error[1] > 2.5 * error[0] && error[1] > 3 * step);
  }
}

/* A contribution's error is carried if it was counted; else it goes whole, and nothing is kept twice. */
static void rounding__the_account_closes_over_losses(void **state) {
  (void)state;
  for (int k = 0; k < 12; k++) {
    tb_redop op = k & 1 ? TB_AVG : TB_SUM;
    uint64_t until = 3600 * TB_SEC;
    cp *net = net_of(&until, NULL);
    run(net, &(job){WIRES[k / 4], op, k & 2, false, 60});
    assert_true(net->core[0]->n.carry_deferred + net->core[1]->n.carry_deferred > 20);
    until = net->now;
    cp_until(net, net->now + 2 * TB_SEC); /* fates and late chunks */
    for (uint16_t r = 0; r < RANKS; r++) assert_int_equal(net->core[r]->n.dropped_chunks, 0);
    assert_true(off(net, true, op) < 5e-3);
    assert_true(off(net, false, op) > 5e-2); /* so much is held */
    cp_free(net);
  }
}

/* The first rounds of an automatic deadline are exact: all of it is counted, and rounded all the same. */
static void rounding__exact_first_rounds_count(void **state) {
  (void)state;
  for (int k = 0; k < 4; k++) {
    uint64_t never = 0;
    cp *net = net_of(&never, k & 1 ? without : NULL);
    run(net, &(job){TB_BF16, TB_SUM, k & 2, true, 8});
    for (uint16_t r = 0; r < RANKS; r++) {
      tb_key *key = tb_key_find(net->core[r], tb_key_hash("k", 1));
      assert_int_equal(key->residual.data != NULL, !(k & 1));
    }
    if (!(k & 1)) assert_true(off(net, true, TB_SUM) < 1e-4);
    else assert_true(off(net, true, TB_SUM) > 1e-2);
    cp_free(net);
  }
}

/* It is no deferred contribution: `carried` and the counters speak of those. */
static void rounding__is_not_told_as_carried(void **state) {
  (void)state;
  uint64_t never = 0;
  cp *net = net_of(&never, NULL);
  job j = {TB_I8, TB_SUM, false, false, 5};
  run(net, &j);
  for (uint32_t i = 0; i < ELEMS; i++) x[0][i] = value(0, i);
  tb_call call = cp_call("k", x[0], y[0], ELEMS, 4 * TB_MS);
  call.missing = TB_CARRY;
  call.wire_dtype = TB_I8;
  call.min_received = 0;
  assert_int_equal(cp_issue(net, 0, &w[0], &call), 0);
  assert_non_null(net->core[0]->ops->mixed.data);
  cp_wait(net, &w[0]);
  assert_true(w[0].o.result.carried == 0); /* NOLINT: exactly */
  for (uint16_t r = 0; r < RANKS; r++) assert_int_equal(net->core[r]->n.carry_applied, 0);
  cp_work_free(w, 1);
  cp_free(net);
}

static void rounding__values_that_are_not_finite_keep_nothing(void **state) {
  (void)state;
  uint64_t never = 0;
  cp *net = net_of(&never, NULL);
  for (uint16_t r = 0; r < RANKS; r++) {
    for (uint32_t i = 0; i < ELEMS; i++) x[r][i] = i == 70 ? INFINITY : i == 140 ? 1e5f : value(r, i);
    tb_call call = cp_call("k", x[r], y[r], ELEMS, 4 * TB_MS);
    call.missing = TB_CARRY;
    call.wire_dtype = TB_F16; /* in which 1e5 is infinite */
    assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
  }
  for (uint16_t r = 0; r < RANKS; r++) cp_wait(net, &w[r]);
  for (uint16_t r = 0; r < RANKS; r++) {
    tb_key *k = tb_key_find(net->core[r], tb_key_hash("k", 1));
    assert_int_equal(net->core[r]->n.dropped_chunks, 0);
    for (tb_stored e = {0}; tb_store_each(&k->residual, &e); e.at++)
      for (uint32_t i = 0; i < e.n; i++)
        assert_true(fabsf(((float *)(void *)tb_store_at(&k->residual, &e))[i]) < 0.01f);
  }
  cp_work_free(w, RANKS);
  cp_free(net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rounding__error_of_the_mean_falls_with_the_rounds),
      cmocka_unit_test(rounding__the_account_closes_over_losses),
      cmocka_unit_test(rounding__exact_first_rounds_count),
      cmocka_unit_test(rounding__is_not_told_as_carried),
      cmocka_unit_test(rounding__values_that_are_not_finite_keep_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
