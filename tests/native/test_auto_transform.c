/* hadamard=auto: all ranks switch in the same round, whatever is lost of what announces it; and when they do at all. */
#include <math.h>
#include "core_pair.h"

enum { RANKS = 3, ELEMS = 64, AHEAD = 3 };
static const uint64_t SOON = 5 * TB_MS;

static cp_work w[RANKS];
static float in[RANKS][ELEMS], out[RANKS][ELEMS];
static bool mode[RANKS]; /* of the newest round */

static void tune(tb_tunables *t) {
  t->hadamard_ahead = AHEAD;
  t->late_delivery = 0;
}

static void with_late_delivery(tb_tunables *t) { t->hadamard_ahead = AHEAD; }

static cp *net_of(void (*how)(tb_tunables *)) {
  return cp_new(&(cp_options){.n = RANKS, .chunk_bytes = 64, .window = 256, .delay = 100000, .tune = how});
}

static tb_key *key_of(const cp *net, uint16_t r) { return tb_key_find(net->core[r], tb_key_hash("k", 1)); }

static void issue(cp *net, uint16_t r) {
  memset(in[r], 0, sizeof in[r]);
  in[r][0] = 64; /* 8 or -8 each, transformed */
  tb_call call = cp_call("k", in[r], out[r], ELEMS, SOON);
  call.redop = TB_AVG;
  call.hadamard = TB_BY_LOSS;
  call.min_received = 0;
  assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
}

/* A value is right, or it is told that it did not come: never a coefficient. */
static void check(const cp *net, uint16_t r) {
  uint8_t mask[ELEMS];
  assert_int_equal(w[r].o.result.status, 0);
  tb_outcome_mask(&w[r].o, mask);
  bool whole = !tb_bit(w[r].o.mask, 0) ? false : true;
  for (uint32_t p = 0; p < RANKS; p++) {
    uint32_t chunks = tb_geo_chunks(&w[r].o.geometry, p);
    for (uint32_t i = 0; i < chunks; i++) whole &= tb_bit(w[r].o.mask, w[r].o.mask_at[p] * 64 + i);
  }
  for (int i = 0; i < ELEMS; i++) {
    float right = i ? 0 : 64;
    if (mode[r] ? whole : mask[i]) assert_true(fabsf(w[r].result[i] - right) < 1e-3f);
    else if (!mode[r]) assert_true(w[r].result[i] == 0);
    else assert_true(fabsf(w[r].result[i]) < 128);
  }
  for (uint16_t p = 0; p < RANKS; p++) {
    const tb_peer_counters *n = tb_core_peer_counters(net->core[r], p);
    assert_int_equal(n->bad_signature + n->bad_body + n->bad_index + n->bad_length, 0);
  }
}

static void round_of(cp *net) {
  for (uint16_t r = 0; r < RANKS; r++) {
    issue(net, r);
    for (const tb_op *op = net->core[r]->ops; op; op = op->next)
      if (op->outcome == &w[r].o) mode[r] = op->transformed;
  }
  for (uint16_t r = 0; r < RANKS; r++) {
    cp_wait(net, &w[r]);
    check(net, r);
  }
  cp_work_free(w, RANKS);
}

static bool all_in(bool on) {
  for (int r = 0; r < RANKS; r++)
    if (mode[r] != on) return false;
  return true;
}

/* As if so much had been lost and gained, at all ranks. */
static void measured(cp *net, double loss, double gain) {
  for (uint16_t r = 0; r < RANKS; r++) {
    tb_auto *a = key_of(net, r)->transform;
    a->rounds = 100;
    a->loss = loss;
    a->gain = gain;
    for (int p = 0; p < RANKS; p++) {
      a->peer[p].loss = loss;
      a->peer[p].gain = gain;
      a->peer[p].told = true;
      a->peer[p].round = key_of(net, r)->next_round;
    }
  }
}

static void switch__in_the_same_round_on_all_ranks(void **state) {
  (void)state;
  cp *net = net_of(tune);
  round_of(net);
  assert_true(all_in(false));
  measured(net, 0.1, 0.2);
  for (int i = 0; i < AHEAD; i++) {
    round_of(net);
    assert_true(all_in(false));
  }
  round_of(net);
  assert_true(all_in(true));
  for (int i = 0; i < 10; i++) {
    measured(net, 0, -0.1); /* at once it would go off again, but not before the averages may tell */
    round_of(net);
    if (i < 7 + AHEAD) assert_true(all_in(true));
  }
  round_of(net);
  round_of(net);
  assert_true(all_in(false));
  assert_true(cp_logged(net, "goes on from round 4"));
  for (uint16_t r = 0; r < RANKS; r++) assert_int_equal(net->core[r]->n.apart, 0);
  cp_free(net);
}

/* No OPEN reaches rank 2 from the announcement to its round: it runs that one in the other mode. */
static int no_open_to_2(cp *net, cp_frame *f) {
  uint64_t *until = net->ctx;
  return f->dst == 2 && f->h.type == TB_T_OPEN && net->now < *until ? 0 : 1;
}

/* The switch is announced and its round comes, and rank 2 has not heard of it: nor will it before *until. */
static cp *missed_by_2(uint64_t *until) {
  cp *net = net_of(tune);
  round_of(net);
  net->fate = no_open_to_2;
  net->ctx = until;
  measured(net, 0.1, 0.2);
  for (int i = 0; i < AHEAD; i++) round_of(net);
  return net;
}

static void switch__missed_costs_a_round_and_no_error(void **state) {
  (void)state;
  uint64_t until = UINT64_MAX;
  cp *net = missed_by_2(&until);
  uint64_t began = net->now;
  round_of(net);
  assert_true(mode[0] && mode[1] && !mode[2]);
  assert_true(net->now - began < SOON / 2); /* and nobody waits for what will not come */
  for (uint16_t r = 0; r < RANKS; r++) assert_true(net->core[r]->n.apart > 0);
  until = net->now;
  round_of(net);
  round_of(net);
  assert_true(all_in(true));
  cp_free(net);
}

/* Whatever few frames in a row, or OPENs in a row, are lost between the announcement and the switch. */
typedef struct { uint32_t at, seen, lost; bool opens; } window;

static int lose_window(cp *net, cp_frame *f) {
  window *l = net->ctx;
  if (l->opens && f->h.type != TB_T_OPEN) return 1;
  uint32_t i = l->seen++ - l->at;
  return i < 32 && l->lost >> i & 1 ? 0 : 1;
}

static void explore(bool opens, const uint32_t *losses, uint32_t n, uint32_t *runs, uint32_t *apart) {
  bool over = false;
  for (uint32_t at = 0; !over; at += opens ? 1 : 3)
    for (uint32_t k = 0; k < n; k++) {
      window l = {.at = at, .lost = losses[k], .opens = opens};
      cp *net = net_of(tune);
      round_of(net);
      measured(net, 0.1, 0.2);
      net->fate = lose_window;
      net->ctx = &l;
      for (int i = 0; i < AHEAD + 2; i++) round_of(net);
      over = l.seen < at;
      net->fate = NULL;
      round_of(net);
      round_of(net);
      assert_true(all_in(true));
      for (uint16_t r = 0; r < RANKS; r++) *apart += net->core[r]->n.apart > 0;
      ++*runs;
      cp_free(net);
    }
}

static void switch__explored(void **state) {
  (void)state;
  static const uint32_t few[] = {1, 2, 3, 5, 6, 7, 9, 15, 0xff, 0xffff, 0x5555, 0xf0f0};
  static const uint32_t many[] = {0xf, 0xff, 0xffff, 0xffffffff, 0x5a5a5a5a, 0xdb6db6db, 0x6db6db6d, 0xb6db6db6};
  uint32_t runs = 0, apart = 0;
  explore(false, few, sizeof few / sizeof *few, &runs, &apart);
  explore(true, many, sizeof many / sizeof *many, &runs, &apart);
  assert_in_range(runs, 700, 20000);
  assert_true(apart > 10);
}

/* Rank 2 missed it, and is always the first to issue: it does not wait for those who have another mode, and they tell
 * it of the switch all the same. */
static void switch__a_stale_rank_that_runs_ahead_learns(void **state) {
  (void)state;
  uint64_t until = UINT64_MAX;
  cp *net = missed_by_2(&until);
  until = net->now;
  for (int i = 0; i < 3; i++) {
    issue(net, 2);
    bool stale = !net->core[2]->ops->transformed;
    assert_int_equal(stale, i == 0);
    cp_until(net, net->now + TB_MS);
    assert_int_equal(w[2].done, stale);
    for (uint16_t r = 0; r < 2; r++) issue(net, r);
    cp_wait_all(net, w, RANKS);
    for (uint16_t r = 0; r < RANKS; r++) {
      mode[r] = r < 2 || !stale;
      check(net, r);
    }
    cp_work_free(w, RANKS);
    cp_until(net, net->now + TB_MS);
  }
  cp_free(net);
}

/* Rank 2 is stopped through the announcement and the switch, and finds the others transforming. */
static void switch__a_rank_that_jumps_follows(void **state) {
  (void)state;
  cp *net = net_of(tune);
  round_of(net);
  measured(net, 0.1, 0.2);
  for (int i = 0; i < AHEAD + 4; i++) {
    for (uint16_t r = 0; r < 2; r++) issue(net, r);
    for (uint16_t r = 0; r < 2; r++) cp_wait(net, &w[r]);
    cp_work_free(w, 2);
  }
  round_of(net);
  assert_true(all_in(true));
  assert_int_equal(net->core[2]->n.apart, 0);
  assert_true(net->core[2]->n.rounds_behind > AHEAD);
  cp_free(net);
}

static void decide__by_loss_and_gain(void **state) {
  (void)state;
  static const struct { double loss, gain; bool on, stays; } at[] = {
      {0, 0, false, false}, {0.019, 0.5, false, true}, {0.021, 0.5, true, true}, {0.4, -0.001, false, true},
      {0.4, -0.03, false, false}, {0.004, 0.5, false, false}, {0.006, 0.5, false, true}};
  for (size_t k = 0; k < 2 * sizeof at / sizeof *at; k++) {
    bool was = k & 1;
    cp *net = net_of(tune);
    round_of(net);
    for (uint16_t r = 0; r < RANKS; r++) /* long ago */
      key_of(net, r)->transform->now = (tb_switch){.number = 7, .on = was, .from = key_of(net, r)->next_round - 1000};
    measured(net, at[k / 2].loss, at[k / 2].gain);
    for (int i = 0; i <= AHEAD; i++) round_of(net);
    assert_true(all_in(was ? at[k / 2].stays : at[k / 2].on));
    cp_free(net);
  }
}

static void newest__by_number_then_rank(void **state) {
  (void)state;
  cp *net = net_of(tune);
  round_of(net);
  tb_key *k = key_of(net, 1);
  tb_open o = {.sig = {.hadamard = TB_HADAMARD_AUTO | 12}};
  static const struct { uint16_t number, by; bool taken; } say[] = {
      {0, 0, false}, {65535, 2, true}, {65535, 2, false}, {65535, 1, true}, {65535, 2, false}, {65534, 0, false},
      {2, 2, true}, {65535, 0, false}, {3, RANKS, false}, {0, 0, false}};
  for (uint32_t i = 0; i < sizeof say / sizeof *say; i++) {
    o.turn = (tb_switch){.number = say[i].number, .by = say[i].by, .from = 1000 + i, .on = true};
    tb_auto_told(net->core[1], k, 2, 1, &o);
    assert_int_equal(k->transform->now.from == 1000 + i, say[i].taken);
  }
  cp_free(net);
}

/* All of rank 1's decided chunks are lost on the way to rank 0 but for one round. */
static int lose_decided(cp *net, cp_frame *f) {
  uint64_t *until = net->ctx;
  return f->src == 1 && f->dst == 0 && f->h.type == TB_T_DATA && f->h.stage == 2 && net->now < *until ? 0 : 1;
}

/* What came late of a plain round goes into the output of a transformed one, as values. */
static void late__comes_into_a_transformed_output(void **state) {
  (void)state;
  uint64_t until = UINT64_MAX;
  cp *net = net_of(with_late_delivery);
  for (uint16_t r = 0; r < RANKS; r++) issue(net, r);
  cp_wait_all(net, w, RANKS);
  cp_work_free(w, RANKS);
  measured(net, 0.1, 0.2);
  for (int i = 0; i < AHEAD; i++) {
    if (i == AHEAD - 1) net->fate = lose_decided, net->ctx = &until;
    for (uint16_t r = 0; r < RANKS; r++) issue(net, r);
    cp_wait_all(net, w, RANKS);
    cp_work_free(w, RANKS);
  }
  until = net->now;
  cp_until(net, net->now + TB_SEC);
  assert_non_null(key_of(net, 0)->late.data);
  bool first_missed = tb_bit(key_of(net, 0)->late.bits, 0);
  for (uint16_t r = 0; r < RANKS; r++) issue(net, r);
  assert_true(net->core[0]->ops->transformed);
  cp_wait_all(net, w, RANKS);
  assert_true(w[0].o.result.late > 0.2);
  assert_true(fabsf(w[0].result[0] - (first_missed ? 128 : 64)) < 1e-3f);
  for (int i = 1; i < ELEMS; i++) assert_true(fabsf(w[0].result[i]) < 1e-3f);
  assert_null(key_of(net, 0)->late.data);
  cp_work_free(w, RANKS);
  cp_until(net, net->now + 10 * TB_SEC);
  for (uint16_t r = 0; r < RANKS; r++) assert_int_equal(net->core[r]->memory, 0);
  cp_free(net);
}

static void call__needs_a_key_and_local_results(void **state) {
  (void)state;
  cp *net = net_of(tune);
  for (int k = 0; k < 2; k++) {
    tb_call call = cp_call(k ? "k" : NULL, in[0], out[0], ELEMS, SOON);
    tb_outcome o = {0};
    call.hadamard = TB_BY_LOSS;
    call.consistency = k ? TB_AGREE : TB_LOCAL;
    assert_int_equal(tb_core_issue(net->core[0], &call, net->now, net->now, &o), -EINVAL);
    assert_non_null(strstr(o.error, "auto"));
  }
  cp_free(net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(switch__in_the_same_round_on_all_ranks),
      cmocka_unit_test(switch__missed_costs_a_round_and_no_error),
      cmocka_unit_test(switch__explored),
      cmocka_unit_test(switch__a_stale_rank_that_runs_ahead_learns),
      cmocka_unit_test(switch__a_rank_that_jumps_follows),
      cmocka_unit_test(decide__by_loss_and_gain),
      cmocka_unit_test(newest__by_number_then_rank),
      cmocka_unit_test(late__comes_into_a_transformed_output),
      cmocka_unit_test(call__needs_a_key_and_local_results),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
