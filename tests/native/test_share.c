/* test_share.c - rule 3's min_share and rule 18's repeated losers: who is left out again and again, and what is
 * done. */
#include "core_pair.h"

enum { COUNT = 96, BEAT = 60 };
static cp_work w[CP_RANKS];
static float x[CP_RANKS][COUNT];

static void issue(cp *net, uint16_t r, uint64_t deadline) {
  cp_fill(x[r], COUNT, 1, 1);
  tb_call call = cp_call("k", x[r], x[r], COUNT, deadline);
  call.min_received = 0;
  assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
}

static void impatient(tb_tunables *t) {
  t->deadline_floor = 2 * TB_MS;
  t->share_window = 20;
}

static void indifferent(tb_tunables *t) {
  impatient(t);
  t->min_share = 0;
}

/* Rank 2 of 3 comes 12 ms late in four rounds of ten: the median, and the MAD, of one that never is. Gives what rank 0
 * got of it in stage 1, over the last 100 of 300 rounds. */
static double share_of_a_peer_late_now_and_then(cp *net, uint64_t *deadline) {
  uint32_t next[3] = {0, 0, 0};
  double got = 0;
  for (uint32_t turn = 0; turn < 300; turn++) {
    uint64_t began = net->now;
    bool in[3];
    for (uint16_t r = 0; r < 3; r++) in[r] = next[r] <= turn; /* a rank that jumped ahead lets the others catch up */
    for (uint16_t r = 0; r < 2; r++) if (in[r]) issue(net, r, 0);
    if (turn * 4 % 10 < 4) cp_until(net, began + 12 * TB_MS);
    if (in[2]) issue(net, 2, 0);
    for (uint16_t r = 0; r < 3; r++) {
      if (!in[r]) continue;
      cp_wait(net, &w[r]);
      next[r] = w[r].o.result.round + 1;
      if (r == 0 && turn >= 200) got += w[0].o.per_peer[0][2];
      if (r == 0) *deadline = w[0].o.result.deadline_ns;
      cp_work_free(&w[r], 1);
    }
    cp_until(net, began + BEAT * TB_MS);
  }
  return got / 100;
}

static void stretch__brings_a_late_peer_back(void **state) {
  (void)state;
  uint64_t deadline;
  cp *net = cp_new(&(cp_options){.n = 3, .chunk_bytes = 64, .window = 256, .delay = 100000, .tune = indifferent});
  double without = share_of_a_peer_late_now_and_then(net, &deadline);
  assert_true(deadline < 6 * TB_MS);
  assert_false(cp_logged(net, "min_share"));
  cp_free(net);
  net = cp_new(&(cp_options){.n = 3, .chunk_bytes = 64, .window = 256, .delay = 100000, .tune = impatient});
  double with = share_of_a_peer_late_now_and_then(net, &deadline);
  assert_true(cp_logged(net, "of rank 2 only"));
  assert_true(deadline > 12 * TB_MS && deadline < 60 * TB_MS); /* as far as needed, not to the ceiling */
  cp_free(net);
  if (without > 0.75 || with < 0.88) fail_msg("share of rank 2: %.3f without, %.3f with", without, with);
}

static int lose_2_to_0(cp *net, cp_frame *f) {
  (void)net;
  return !(f->h.type == TB_T_DATA && f->h.stage == 1 && f->src == 2 && f->dst == 0);
}

/* Rank 1 gets all of rank 2; only the owner that loses it, and rank 2 by the OWN bit, can know. All are told. */
static void share__is_announced_by_whom_it_concerns(void **state) {
  (void)state;
  cp *net = cp_new(&(cp_options){.n = 3, .chunk_bytes = 64, .window = 256, .delay = 100000, .tune = impatient});
  for (int i = 0; i < 40; i++) {
    if (i == 10) net->fate = lose_2_to_0;
    for (uint16_t r = 0; r < 3; r++) issue(net, r, 0);
    cp_wait_all(net, w, 3);
    cp_work_free(w, 3);
    cp_until(net, net->now + BEAT * TB_MS);
  }
  tb_history *h[3];
  for (int r = 0; r < 3; r++) {
    tb_key *k = tb_key_find(net->core[r], tb_key_hash("k", 1));
    assert_non_null(h[r] = tb_history_find(k, 0));
  }
  assert_true(h[0]->peer[2].share < 0.3 && h[1]->peer[2].share == 1.0); /* at their own shards */
  assert_true(h[2]->peer[2].share > 0.6 && h[2]->peer[2].share < 0.8);  /* a third of its data, towards one */
  for (int r = 0; r < 2; r++) assert_true(h[r]->peer[2].told_share > 0.6 && h[r]->peer[2].told_share < 0.8);
  for (int r = 0; r < 3; r++) assert_true(h[r]->peer[1].share == 1.0 && h[r]->peer[1].told_share == 1.0);
  assert_true(h[1]->stretch > 1); /* rank 1 waits longer for what is lost at rank 0 */
  cp_free(net);
}

static void watch__names_who_loses_again_and_again(void **state) {
  (void)state;
  cp *net = cp_plain(3);
  net->fate = lose_2_to_0;
  tb_peer_view v;
  for (int i = 0; i < 130; i++) {
    if (i == 60) {
      assert_false(cp_logged(net, "of the last 100 rounds")); /* not yet: 60 would be too many */
      net->fate = NULL;
    }
    if (i == 40) net->fate = NULL;
    if (i == 70) net->fate = lose_2_to_0;
    for (uint16_t r = 0; r < 3; r++) issue(net, r, 5 * TB_MS);
    cp_wait_all(net, w, 3);
    cp_work_free(w, 3);
    if (i == 39 || i == 69) {
      tb_core_peer_view(net->core[0], 2, &v);
      assert_int_equal(v.missed_of_100, 40);
    }
  }
  tb_core_peer_view(net->core[0], 2, &v);
  assert_int_equal(v.missed_of_100, 70); /* rounds 30 to 39, and 70 to 129 */
  assert_true(cp_logged(net, "rank 2: data of it was missing in 51 of the last 100 rounds"));
  assert_false(cp_logged(net, "missing in 52")); /* once a minute */
  tb_core_peer_view(net->core[0], 1, &v);
  assert_int_equal(v.missed_of_100, 0);
  cp_free(net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(stretch__brings_a_late_peer_back),
    cmocka_unit_test(share__is_announced_by_whom_it_concerns),
    cmocka_unit_test(watch__names_who_loses_again_and_again),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
