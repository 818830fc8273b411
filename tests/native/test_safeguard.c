/* test_safeguard.c - rule 18's thresholds, and what is done below them. */
#include "core_pair.h"

enum { RANKS = 3, COUNT = 3 * 16 * 10 }; /* ten chunks a shard */
static cp_work w[RANKS];
static float x[RANKS][COUNT];
static int lost_stage, lost_chunks;

/* Of rank 1 towards rank 0: so many chunks of one stage. */
static int lose(cp *net, cp_frame *f) {
  (void)net;
  return !(f->h.type == TB_T_DATA && f->src == 1 && f->dst == 0 && f->h.stage == lost_stage && (int)f->h.chunk < lost_chunks);
}

static int verdict(cp *net, const tb_call *like, bool *restored) {
  for (uint16_t r = 0; r < RANKS; r++) {
    cp_fill(x[r], COUNT, 1, 1);
    tb_call call = *like;
    call.in = call.out = x[r];
    assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
  }
  cp_wait_all(net, w, RANKS);
  int v = w[0].o.result.verdict;
  *restored = w[0].result[COUNT - 1] == (float)COUNT;
  cp_work_free(w, RANKS);
  cp_until(net, net->now + 20 * TB_MS);
  return v;
}

static void thresholds__of_each_stage_and_the_total(void **state) {
  (void)state;
  /* Ten chunks of 20 missing in the stage: its share is 0.5; the total is 1 - 10/60 or 1 - 20/60. */
  const struct { int stage; double total, first, second; int want; } t[] = {
    {1, 0.5, 0, 0, TB_VERDICT_PARTIAL},    {1, 0.5, 0.51, 0, TB_VERDICT_SKIP}, {1, 0.5, 0.49, 0.9, TB_VERDICT_PARTIAL},
    {1, 0.84, 0, 0, TB_VERDICT_SKIP},      {2, 0.5, 0.9, 0.49, TB_VERDICT_PARTIAL}, {2, 0.5, 0, 0.51, TB_VERDICT_SKIP},
    {2, 0.6, 0, 0, TB_VERDICT_PARTIAL},    {2, 0.7, 0, 0, TB_VERDICT_SKIP},
  };
  lost_chunks = 10;
  for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
    bool restored;
    cp *net = cp_plain(RANKS);
    net->fate = lose;
    lost_stage = t[i].stage;
    tb_call call = cp_call("k", NULL, NULL, COUNT, 10 * TB_MS);
    call.min_received = t[i].total;
    call.min_stage[0] = t[i].first;
    call.min_stage[1] = t[i].second;
    int v = verdict(net, &call, &restored);
    if (v != t[i].want || restored != (v == TB_VERDICT_SKIP)) fail_msg("case %zu: verdict %d", i, v);
    cp_free(net);
  }
}

static void halt__raises_at_once_and_restores(void **state) {
  (void)state;
  bool restored;
  cp *net = cp_plain(RANKS);
  net->fate = lose;
  lost_stage = 2;
  lost_chunks = 10;
  tb_call call = cp_call("k", NULL, NULL, COUNT, 10 * TB_MS);
  call.min_received = 0.9;
  assert_int_equal(verdict(net, &call, &restored), TB_VERDICT_SKIP);
  assert_int_equal(w[0].o.result.status, 0); /* one skip is no error by itself */
  call.halt = 1;
  assert_int_equal(verdict(net, &call, &restored), TB_VERDICT_SKIP);
  assert_int_equal(w[0].o.result.status, -ENODATA);
  assert_non_null(strstr(w[0].o.error, "on_skip=halt: round 1 received less than min_received=0.9"));
  assert_true(restored);
  call.min_received = 0.1;
  assert_int_equal(verdict(net, &call, &restored), TB_VERDICT_PARTIAL);
  assert_int_equal(w[0].o.result.status, 0);
  cp_free(net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(thresholds__of_each_stage_and_the_total),
    cmocka_unit_test(halt__raises_at_once_and_restores),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
