/* test_history.c - what ranks tell each other about earlier rounds, and medians over nodes. */
#include "core_pair.h"

static tb_history *fresh(cp *net, uint16_t r, tb_key **k) {
  assert_int_equal(tb_key_get(net->core[r], "k", 1, true, 0, k), 0);
  tb_history *h = tb_history_get(net->core[r], *k, 0);
  assert_non_null(h);
  return h;
}

/* OptiReduce's release sorts the per-rank array in place: later readings belong to the wrong rank. */
static void over_nodes__keeps_each_reading_at_its_rank(void **state) {
  (void)state;
  cp *net = cp_plain(4);
  tb_key *k;
  tb_history *h = fresh(net, 0, &k);
  const uint32_t us[] = {0, 900, 100, 500};
  for (uint16_t p = 1; p < 4; p++) tb_history_told(h, p, &(tb_open){.stage_us = {us[p], 2 * us[p]}});
  for (int again = 0; again < 3; again++) {
    assert_int_equal(tb_over_nodes(net->core[0], h, TB_STAGE1), 500000); /* who told nothing does not count */
    assert_int_equal(tb_over_nodes(net->core[0], h, TB_STAGE2), 1000000);
    for (uint16_t p = 1; p < 4; p++) assert_int_equal(h->peer[p].told[TB_STAGE1], us[p] * 1000);
  }
  net->core[0]->peer[1].absent = true;
  assert_int_equal(tb_over_nodes(net->core[0], h, TB_STAGE1), 300000);
  cp_free(net);
}

static void tell__comes_back_as_told(void **state) {
  (void)state;
  cp *net = cp_plain(2);
  tb_key *k;
  tb_history *a = fresh(net, 0, &k), *b = fresh(net, 1, &k);
  a->peer[0].share = 0.75;
  a->peer[0].told[TB_WANT] = 1500 * 1000;
  a->peer[0].told[TB_STAGE1] = 1; /* less than the unit is not nothing */
  a->peer[0].told[TB_STAGE2] = UINT64_MAX / 2;
  tb_open o = {0};
  tb_history_tell(net->core[0], a, &o);
  tb_history_told(b, 0, &o);
  assert_true(b->peer[0].told_share > 0.7499 && b->peer[0].told_share < 0.7501);
  assert_int_equal(b->peer[0].told[TB_WANT], 1500 * 1000);
  assert_int_equal(b->peer[0].told[TB_STAGE1], 1000);
  assert_int_equal(b->peer[0].told[TB_STAGE2], UINT32_MAX * 1000ull);
  tb_history_tell(net->core[0], NULL, &o); /* none kept: nothing told, and nothing taken in */
  tb_history_told(NULL, 0, &o);
  cp_free(net);
}

static void find__makes_none(void **state) {
  (void)state;
  cp *net = cp_plain(2);
  tb_key *named, *anonymous;
  tb_core *c = net->core[0];
  assert_int_equal(tb_key_get(c, "k", 1, true, 0, &named), 0);
  assert_int_equal(tb_key_get(c, "", 0, true, 0, &anonymous), 0);
  assert_null(tb_history_find(named, 7));
  tb_history *h = tb_history_get(c, named, 0), *x = tb_history_get(c, anonymous, 7), *y = tb_history_get(c, anonymous, 8);
  assert_ptr_equal(tb_history_find(named, 7), h); /* a named key has one kind of operation */
  assert_ptr_equal(tb_history_find(anonymous, 7), x);
  assert_ptr_equal(tb_history_find(anonymous, 8), y);
  assert_null(tb_history_find(anonymous, 9));
  cp_free(net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(over_nodes__keeps_each_reading_at_its_rank),
    cmocka_unit_test(tell__comes_back_as_told),
    cmocka_unit_test(find__makes_none),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
