/* test_deadline.c - rules 1 to 3 and 11: when a round ends, when a shard is closed, and what a deadline is made of. */
#include "core_pair.h"

enum { COUNT = 96 };
static const uint64_t EXACT = UINT64_MAX;

static void median__of_any_number(void **state) {
  (void)state;
  uint64_t a[] = {5}, b[] = {9, 1}, c[] = {9, 1, 4}, d[] = {UINT64_MAX, UINT64_MAX - 2}, e[] = {4, 4, 4, 100};
  assert_int_equal(tb_median(NULL, 0), 0);
  assert_int_equal(tb_median(a, 1), 5);
  assert_int_equal(tb_median(b, 2), 5);
  assert_int_equal(tb_median(c, 3), 4);
  assert_true(tb_median(d, 2) == UINT64_MAX - 1); /* no overflow */
  assert_int_equal(tb_median(e, 4), 4);
}

/* Rule 3: the largest over the live peers of median + k*MAD; a pooled median would drop the slow one for ever. */
static void auto__largest_over_live_peers(void **state) {
  (void)state;
  cp *net = cp_plain(4);
  tb_core *c = net->core[0];
  tb_key *k;
  assert_int_equal(tb_key_get(c, "k", 1, true, 0, &k), 0);
  tb_history *h = tb_history_get(c, k, 1);
  c->tune.deadline_floor = 2 * TB_MS;
  assert_non_null(h);
  assert_true(tb_auto_deadline(c, h) == c->tune.deadline_ceiling); /* nothing measured */
  for (int i = 0; i < 9; i++) {
    tb_offset_sample(h, 1, 10 * TB_MS);
    tb_offset_sample(h, 2, (uint64_t)(12 + i % 3) * TB_MS); /* median 13, MAD 1 */
    tb_offset_sample(h, 3, 30 * TB_MS);
  }
  assert_int_equal(tb_auto_deadline(c, h), 30 * TB_MS + c->tune.deadline_floor); /* steady arrivals: the least margin */
  c->peer[3].absent = true; /* an absent peer costs nothing */
  assert_int_equal(tb_auto_deadline(c, h), 13 * TB_MS + c->tune.auto_k * TB_MS);
  c->peer[3].absent = false;
  for (int i = 0; i < TB_HISTORY; i++) tb_offset_sample(h, 1, 40 * TB_MS); /* the largest, whoever it is */
  assert_int_equal(tb_auto_deadline(c, h), 40 * TB_MS + c->tune.deadline_floor);
  for (int i = 0; i < TB_HISTORY; i++) tb_offset_sample(h, 1, 10 * TB_MS);
  for (int i = 0; i < TB_HISTORY; i++) tb_offset_sample(h, 3, TB_SEC); /* old samples leave the history */
  assert_int_equal(tb_auto_deadline(c, h), 4 * 13 * TB_MS);            /* at most four times the median peer */
  for (int i = 0; i < TB_HISTORY; i++)
    for (uint16_t p = 1; p < 4; p++) tb_offset_sample(h, p, 1000);
  assert_int_equal(tb_auto_deadline(c, h), c->tune.deadline_floor + 1000);
  for (int i = 0; i < TB_HISTORY; i++)
    for (uint16_t p = 1; p < 4; p++) tb_offset_sample(h, p, 3600 * TB_SEC);
  assert_true(tb_auto_deadline(c, h) == c->tune.deadline_ceiling);
  cp_free(net);
}

/* A rank whose few samples happen to be short takes the median of what all ranks would take; no longer one is cut. */
static void auto__median_over_nodes(void **state) {
  (void)state;
  cp *net = cp_plain(4);
  tb_core *c = net->core[0];
  tb_key *k;
  assert_int_equal(tb_key_get(c, "k", 1, true, 0, &k), 0);
  tb_history *h = tb_history_get(c, k, 1);
  for (uint16_t p = 1; p < 4; p++) tb_offset_sample(h, p, TB_MS);
  uint64_t own = TB_MS + c->tune.deadline_floor;
  assert_int_equal(tb_auto_deadline(c, h), own);
  const uint32_t told[] = {0, 70000, 30000, 50000};
  for (uint16_t p = 1; p < 4; p++) tb_history_told(h, p, &(tb_open){.share = 65535, .want_us = told[p]});
  assert_int_equal(tb_auto_deadline(c, h), 40 * TB_MS); /* of 21, 30, 50 and 70 ms */
  c->peer[1].absent = true;
  assert_int_equal(tb_auto_deadline(c, h), 30 * TB_MS);
  for (int i = 0; i < TB_HISTORY; i++)
    for (uint16_t p = 1; p < 4; p++) tb_offset_sample(h, p, 100 * TB_MS);
  assert_int_equal(tb_auto_deadline(c, h), 100 * TB_MS + c->tune.deadline_floor);
  cp_free(net);
}

static int start(cp *net, uint16_t r, cp_work *w, const char *key, float *x, uint64_t deadline) {
  cp_fill(x, COUNT, (float)(1 + r), 1);
  tb_call call = cp_call(key, x, x, COUNT, deadline);
  call.min_received = 0.1;
  return cp_issue(net, r, w, &call);
}

static cp_work w[CP_RANKS];
static float x[CP_RANKS][COUNT];

static void round_of(cp *net, const char *key, uint64_t deadline) {
  for (uint16_t r = 0; r < net->n; r++) assert_int_equal(start(net, r, &w[r], key, x[r], deadline), 0);
  cp_wait_all(net, w, net->n);
}

/* Under auto the first eight rounds of a key are exact, one log line tells what was chosen, and later rounds are
 * bounded. */
static void auto__first_rounds_are_exact(void **state) {
  (void)state;
  cp *net = cp_plain(2);
  for (int i = 0; i < 12; i++) {
    assert_int_equal(start(net, 0, &w[0], "k", x[0], 0), 0);
    cp_until(net, net->now + 3 * TB_MS); /* rank 1 is always that much later */
    assert_int_equal(start(net, 1, &w[1], "k", x[1], 0), 0);
    cp_wait_all(net, w, 2);
    for (int r = 0; r < 2; r++) {
      assert_int_equal(w[r].o.result.deadline_ns == EXACT, i < 8);
      assert_true(w[r].o.result.received == 1.0);
    }
    assert_int_equal(cp_logged(net, "deadline=auto chose"), i >= 8);
    if (i >= 8) assert_in_range(w[0].o.result.deadline_ns, 3 * TB_MS, 30 * TB_MS);
    cp_work_free(w, 2);
  }
  assert_int_equal(net->lines, 2); /* one for each rank */
  cp_free(net);
}

static int lose_data_of_1(cp *net, cp_frame *f) { return !(f->h.type == TB_T_DATA && f->src == 1 && net->ctx); }

/* Rounds that were cut short are samples too: silence must lengthen the next deadline, never shorten it. */
static void auto__does_not_ratchet_down(void **state) {
  (void)state;
  cp *net = cp_plain(2);
  net->fate = lose_data_of_1;
  uint64_t first = 0;
  for (int i = 0; i < 60; i++) {
    net->ctx = i >= 10 && i % 2 ? net : NULL;
    round_of(net, "k", 0);
    if (i == 9) first = w[0].o.result.deadline_ns;
    if (i >= 10) assert_true(w[0].o.result.deadline_ns >= first);
    cp_work_free(w, 2);
    cp_until(net, net->now + 10 * TB_MS);
  }
  cp_free(net);
}

typedef struct { uint64_t closed_at[CP_RANKS]; uint16_t count[CP_RANKS][CP_RANKS]; bool own[CP_RANKS][CP_RANKS]; } notes;

/* Contributions of rank 2 to rank 0 are lost; stage 2 of rank 0 is noted. */
static int note(cp *net, cp_frame *f) {
  notes *k = net->ctx;
  if (f->h.type != TB_T_DATA) return 1;
  if (f->h.stage == 1) return !(f->src == 2 && f->dst == 0);
  if (!k->closed_at[f->src]) k->closed_at[f->src] = net->now;
  k->count[f->src][f->dst] = f->h.count;
  k->own[f->src][f->dst] = f->h.flags & TB_F_OWN;
  return 1;
}

/* Rule 2: an owner closes at min(own deadline, median of the announced ones) - stage 2 - one round trip, never later.
 * Rule 11: what came is scaled once, at the owner; everybody gets the same bytes. Rule 14: "yours is in it". */
static void split__owner_closes_in_time(void **state) {
  (void)state;
  const struct { uint64_t own, one, two, base; } t[] = {{5, 20, 20, 5}, {40, 4, 14, 9}, {40, 10, 14, 10},
                                                        {12, 40, 40, 12}, {8, 7, 40, 7}};
  for (size_t i = 0; i < sizeof t / sizeof *t; i++)
    for (int cost = 0; cost < 2; cost++) {
      notes k = {{0}, {{0}}, {{false}}};
      cp *net = cp_plain(3);
      round_of(net, "warm", EXACT);
      cp_work_free(w, 3);
      cp_until(net, net->now + TB_SEC);
      net->ctx = &k;
      net->fate = note;
      uint64_t rtt = tb_rtt_max(net->core[0]), began = net->now, stage2 = 0;
      assert_int_equal(rtt, 2 * net->opt.delay);
      if (cost) { /* a measured cost: stage 2 of this shard takes a millisecond */
        stage2 = TB_MS;
        net->core[0]->measured = true;
        net->core[0]->ns_per_byte = (double)TB_MS / (2 * COUNT / 3 * sizeof(float) * 2);
      }
      assert_int_equal(start(net, 0, &w[0], "k", x[0], t[i].own * TB_MS), 0);
      assert_int_equal(start(net, 1, &w[1], "k", x[1], t[i].one * TB_MS), 0);
      assert_int_equal(start(net, 2, &w[2], "k", x[2], t[i].two * TB_MS), 0);
      cp_wait_all(net, w, 3);
      uint64_t latest = t[i].base * TB_MS - rtt - stage2, at = k.closed_at[0] - began;
      if (at > latest || at < latest - latest / 8 - 2 * rtt)
        fail_msg("case %zu: closed at %.3f ms, not %.3f", i, (double)at * 1e-6, (double)latest * 1e-6);
      const uint64_t own[3] = {t[i].own, t[i].one, t[i].two};
      for (uint16_t r = 0; r < 3; r++) {
        assert_true(w[r].done_at - began <= own[r] * TB_MS); /* rule 1 */
        uint64_t first, len;
        tb_geo_shard(&w[r].o.geometry, 0, &first, &len);
        for (uint64_t e = first; e < first + len; e++) /* ranks 0 and 1: 1 + e and 2 + e */
          if (own[r] >= t[i].base && w[r].result[e] != (float)(3 + 2 * e) * 3 / 2)
            fail_msg("case %zu cost %d: rank %u element %d is %g", i, cost, r, (int)e, (double)w[r].result[e]);
      }
      assert_int_equal(k.count[0][2], 2);
      if (t[i].one >= t[i].base) assert_true(k.count[0][1] == 2 && k.own[0][1]);
      assert_false(k.own[0][2]);
      /* received: mean over elements of (count - own)/(N - 1). Shard 0 gave rank 1 one foreign part of two, rank 2
       * both. */
      double two_thirds = 2.0 / 3;
      if (t[i].one < t[i].base) two_thirds -= 1.0 / 6; /* it returned before: the majority is served */
      if (w[1].o.result.received < two_thirds + 1.0 / 6 - 1e-9 || w[1].o.result.received > two_thirds + 1.0 / 6 + 1e-9)
        fail_msg("rank 1 received %.6f", w[1].o.result.received);
      assert_true(w[2].o.result.received == 1.0);
      assert_true(w[0].o.per_peer[0][2] == 0.0 && w[0].o.per_peer[0][1] == 1.0);
      cp_work_free(w, 3);
      cp_free(net);
    }
}

static void avg__divides_by_what_came(void **state) { /* rule 11 for the mean: no scaling by N */
  (void)state;
  notes k = {{0}, {{0}}, {{false}}};
  cp *net = cp_plain(3);
  net->ctx = &k;
  net->fate = note;
  for (uint16_t r = 0; r < 3; r++) {
    cp_fill(x[r], COUNT, (float)(1 + r), 1);
    tb_call call = cp_call("k", x[r], x[r], COUNT, 20 * TB_MS);
    call.redop = TB_AVG;
    assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
  }
  cp_wait_all(net, w, 3);
  for (uint16_t r = 0; r < 3; r++)
    for (int e = 0; e < COUNT; e++)
      if (w[r].result[e] != (e < COUNT / 3 ? (float)(3 + 2 * e) / 2 : (float)(2 + e)))
        fail_msg("rank %u element %d is %g", r, e, (double)w[r].result[e]);
  cp_work_free(w, 3);
  cp_free(net);
}

/* An explicit deadline below the measured reserve is EINVAL, naming the least; no such check before a measurement. */
static void minimum__is_named(void **state) {
  (void)state;
  cp *net = cp_plain(2);
  tb_core *c = net->core[0];
  tb_call call = cp_call("k", x[0], x[0], COUNT, 1000);
  assert_int_equal(tb_core_min_deadline(c, &call), 0);
  assert_int_equal(cp_issue(net, 0, &w[0], &call), 0);
  cp_wait(net, &w[0]);
  assert_int_equal(w[0].done_at - TB_SEC, 1000);
  cp_work_free(w, 1);
  c->measured = true;
  c->ns_per_byte = 10000;
  uint64_t least = tb_core_min_deadline(c, &call);
  assert_in_range(least, COUNT / 2 * 4 * 10000, COUNT / 2 * 4 * 10000 + TB_MS);
  call.deadline_ns = least - 1;
  assert_int_equal(cp_issue(net, 0, &w[0], &call), -EINVAL);
  char want[40];
  snprintf(want, sizeof want, "%.6f s", (double)least * 1e-9);
  if (!strstr(w[0].o.error, want)) fail_msg("%s", w[0].o.error);
  call.deadline_ns = least;
  assert_int_equal(cp_issue(net, 0, &w[0], &call), 0);
  cp_wait(net, &w[0]);
  cp_work_free(w, 1);
  call = cp_call("e", x[0], x[0], COUNT, EXACT); /* exact calls have none */
  assert_int_equal(cp_issue(net, 0, &w[0], &call), 0);
  tb_core_cancel(c, &w[0].o, -ECANCELED, "end of test", net->now);
  cp_work_free(w, 1);
  cp_free(net);
}

static void longest__does_not_wrap(void **state) {
  (void)state;
  cp *net = cp_plain(2);
  assert_int_equal(start(net, 0, &w[0], "k", x[0], EXACT - 1), 0); /* nearly for ever is not at once */
  cp_until(net, net->now + TB_SEC);
  assert_false(w[0].done);
  assert_int_equal(start(net, 1, &w[1], "k", x[1], EXACT - 1), 0);
  cp_wait_all(net, w, 2);
  cp_expect(w[0].result, COUNT, 3, 2);
  cp_work_free(w, 2);
  tb_call call = cp_call("e", x[0], x[0], COUNT, EXACT);
  call.error_bound_ns = EXACT - 1;
  cp_fill(x[0], COUNT, 1, 1);
  assert_int_equal(cp_issue(net, 0, &w[0], &call), 0);
  cp_until(net, net->now + TB_SEC);
  assert_false(w[0].done);
  tb_core_cancel(net->core[0], &w[0].o, -ECANCELED, "end of test", net->now);
  cp_work_free(w, 1);
  cp_free(net);
}

/* A wire that takes five microseconds a data frame. */
static int slow(cp *net, cp_frame *f) {
  static uint64_t free_at[CP_RANKS];
  if (f->h.type != TB_T_DATA) return 1;
  if (free_at[f->src] < net->now || free_at[f->src] > net->now + 3600 * TB_SEC) free_at[f->src] = net->now;
  free_at[f->src] += 5000;
  f->at = free_at[f->src] + net->opt.delay;
  return 1;
}

static void cost__is_measured_and_never_stuck(void **state) {
  (void)state;
  enum { BIG = 300000 };
  cp *net = cp_new(&(cp_options){.n = 2, .chunk_bytes = 1024, .window = 64, .delay = 20000});
  static float big[2][BIG];
  net->fate = slow;
  for (int i = 0; i < 6; i++) {
    if (i == 3) net->core[0]->ns_per_byte = 0; /* as a first round would leave it that its round trips hid */
    for (uint16_t r = 0; r < 2; r++) {
      cp_fill(big[r], BIG, 0, 0);
      tb_call call = cp_call("k", big[r], big[r], BIG, EXACT);
      assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
    }
    cp_wait_all(net, w, 2);
    cp_work_free(w, 2);
    cp_until(net, net->now + 10 * TB_MS);
  }
  double want = 2500.0 / 1024; /* each rank sends half of what moves */
  for (int r = 0; r < 2; r++)
    if (net->core[r]->ns_per_byte < want / 2 || net->core[r]->ns_per_byte > want * 2)
      fail_msg("rank %d: %g ns a byte, not %g", r, net->core[r]->ns_per_byte, want);
  cp_free(net);
}

/* Exact rounds over a path that loses a third of all frames: what they wait for their repairs is no cost of a byte. */
static int two_of_three(cp *net, cp_frame *f) {
  (void)f;
  uint32_t *x = net->ctx;
  *x = *x * 1664525 + 1013904223;
  return *x >> 16 > 65536 / 3;
}

static void cost__is_not_what_exact_rounds_wait_for_repairs(void **state) {
  (void)state;
  enum { SOME = 20000, WARM = 20 };
  uint32_t seed = 1;
  cp *net = cp_new(&(cp_options){.n = 2, .chunk_bytes = 1024, .window = 64, .delay = 20000});
  static float some[2][SOME];
  double before[2] = {0};
  net->ctx = &seed;
  for (int i = 0; i < WARM + 20; i++) {
    net->fate = i < WARM ? slow : two_of_three;
    for (uint16_t r = 0; r < 2; r++) {
      cp_fill(some[r], SOME, 0, 0);
      tb_call call = cp_call("k", some[r], some[r], SOME, EXACT);
      assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
    }
    cp_wait_all(net, w, 2);
    cp_work_free(w, 2);
    cp_until(net, net->now + 10 * TB_MS);
    for (int r = 0; r < 2 && i == WARM - 1; r++) before[r] = net->core[r]->ns_per_byte;
  }
  for (int r = 0; r < 2; r++) {
    assert_true(before[r] > 0);
    if (net->core[r]->ns_per_byte > before[r])
      fail_msg("rank %d: %g ns a byte before any loss, %g after", r, before[r], net->core[r]->ns_per_byte);
  }
  cp_free(net);
}

/* LINKS rule 7: near the deadline payloads are copied, not referred to. */
static int no_late_refs(cp *net, cp_frame *f) {
  if (f->h.type == TB_T_DATA && f->h.remaining_us != TB_REMAINING_NONE &&
      f->h.remaining_us * 1000ull < net->opt.quiesce)
    assert_null(f->late);
  if (f->late) ++*(int *)net->ctx;
  return !(f->h.type == TB_T_DATA && f->h.chunk % 2);
}

static void quiesce__stops_refs_before_the_deadline(void **state) {
  (void)state;
  int refs = 0;
  cp *net = cp_new(&(cp_options){.n = 2, .chunk_bytes = 64, .window = 256, .delay = 100000, .async_refs = true,
                                 .ref_hold = 900000,
                                 .quiesce = TB_MS});
  net->fate = no_late_refs;
  net->ctx = &refs;
  for (int i = 0; i < 5; i++) {
    uint64_t began = net->now;
    for (uint16_t r = 0; r < 2; r++) assert_int_equal(start(net, r, &w[r], "k", x[r], 6 * TB_MS), 0);
    cp_wait_all(net, w, 2);
    for (uint16_t r = 0; r < 2; r++) assert_true(w[r].done_at <= began + 6 * TB_MS); /* all REFs were back by then */
    cp_work_free(w, 2);
  }
  assert_true(refs > 10);
  cp_free(net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(median__of_any_number),
    cmocka_unit_test(auto__largest_over_live_peers),
    cmocka_unit_test(auto__median_over_nodes),
    cmocka_unit_test(auto__first_rounds_are_exact),
    cmocka_unit_test(auto__does_not_ratchet_down),
    cmocka_unit_test(split__owner_closes_in_time),
    cmocka_unit_test(avg__divides_by_what_came),
    cmocka_unit_test(minimum__is_named),
    cmocka_unit_test(longest__does_not_wrap),
    cmocka_unit_test(cost__is_measured_and_never_stuck),
    cmocka_unit_test(cost__is_not_what_exact_rounds_wait_for_repairs),
    cmocka_unit_test(quiesce__stops_refs_before_the_deadline),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
