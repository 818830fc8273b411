/* test_policy_optireduce.c - deadline_policy=optireduce: bounds that the first rounds fix. */
#include "core_pair.h"

enum { COUNT = 960 };
static cp_work w[CP_RANKS];
static float x[CP_RANKS][COUNT];

static void published(tb_tunables *t) { t->deadline_policy = TB_POLICY_OPTIREDUCE; }

static void percentile__nearest_rank(void **state) {
  (void)state;
  uint64_t v[20], one[] = {7};
  for (int i = 0; i < 20; i++) v[i] = (uint64_t)(20 - i);
  assert_int_equal(tb_percentile95(v, 20), 19);
  assert_int_equal(tb_percentile95(one, 1), 7);
  assert_int_equal(tb_percentile95(one, 0), 0);
}

static void round_of(cp *net, uint64_t late) {
  for (uint16_t r = 0; r < net->n; r++) {
    if (r == 2) cp_until(net, net->now + late);
    cp_fill(x[r], COUNT, 1, 1);
    tb_call call = cp_call("k", x[r], x[r], COUNT, 0);
    call.min_received = 0;
    assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
  }
  cp_wait_all(net, w, net->n);
}

/* 20 exact rounds, then the bounds stand, whatever comes; and a stage is never longer than its bound. */
static void calibration__fixes_the_bounds_for_good(void **state) {
  (void)state;
  cp *net = cp_new(&(cp_options){.n = 3, .chunk_bytes = 64, .window = 256, .delay = 100000, .tune = published});
  uint64_t first = 0;
  for (int i = 0; i < 26; i++) {
    /* one in twenty is beyond the 95th percentile */
    round_of(net, i == 3 ? 9 * TB_MS : i < 20 ? 2 * TB_MS : 30 * TB_MS);
    uint64_t d = w[0].o.result.deadline_ns;
    assert_int_equal(d == UINT64_MAX, i < 20);
    if (i == 20) first = d;
    if (i >= 20) {
      assert_int_equal(d, first);
      assert_in_range(d, 2 * TB_MS, 4 * TB_MS);
      assert_true(w[0].o.result.elapsed_ns <= d && w[0].o.result.received < 1); /* rank 2 is out for good */
    }
    cp_work_free(w, 3);
    cp_until(net, net->now + 50 * TB_MS);
  }
  cp_free(net);
}

static void calibration__a_quiet_network_loses_nothing(void **state) {
  (void)state;
  cp *net = cp_new(&(cp_options){.n = 3, .chunk_bytes = 64, .window = 256, .delay = 100000, .tune = published});
  for (int i = 0; i < 30; i++) {
    round_of(net, 0);
    for (int r = 0; r < 3; r++) assert_true(w[r].o.result.received == 1.0);
    cp_work_free(w, 3);
    cp_until(net, net->now + 10 * TB_MS);
  }
  cp_free(net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(percentile__nearest_rank),
    cmocka_unit_test(calibration__fixes_the_bounds_for_good),
    cmocka_unit_test(calibration__a_quiet_network_loses_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
