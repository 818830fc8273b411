/* test_close.c - the close time kept with every announcement is the one that collecting all of them anew gives. */
#include "core_pair.h"

enum { N = 8, COUNT = 90 };
static cp_work w;
static float x[COUNT];

static uint64_t anew(tb_core *c, tb_op *op) {
  op->told_stale = true;
  return tb_stage1_close_at(c, op);
}

static void announce(tb_core *c, tb_op *op, uint16_t p, uint64_t at) {
  if (op->peer[p].announced && op->peer[p].announced <= at) return;
  tb_stage1_announced(c, op, p, at);
}

static void announced__kept_in_order_whatever_comes(void **state) {
  (void)state;
  cp *net = cp_plain(N);
  tb_core *c = net->core[0];
  cp_fill(x, COUNT, 1, 1);
  tb_call call = cp_call("k", x, x, COUNT, 100 * TB_MS);
  assert_int_equal(cp_issue(net, 0, &w, &call), 0);
  tb_op *op = c->ops;
  assert_non_null(op);
  uint32_t seed = 7, moved = 0;
  uint64_t last = tb_stage1_close_at(c, op);
  for (int turn = 0; turn < 4000; turn++) {
    seed = seed * 1664525u + 1013904223u;
    uint16_t p = (uint16_t)(1 + (seed >> 8) % (N - 1));
    uint64_t at = op->issued + (20 + (seed >> 12) % 100) * TB_MS;
    if (turn % 97 == 0) { /* somebody leaves or comes back */
      c->peer[p].absent = !c->peer[p].absent;
      tb_peer_presence(c, p);
    } else if (turn % 401 == 0) { /* passed without ever having announced: not waited for */
      op->peer[p].passed = true;
      op->told_stale = true;
    } else {
      for (int i = 1; i < N && turn % 50 == 0; i++) { /* as in a new round */
        op->peer[i].announced = 0;
        op->told_stale = true;
      }
      announce(c, op, p, at);
    }
    (void)tb_stage1_close_at(c, op);
    announce(c, op, p, at - TB_MS); /* in place, since the list is fresh now */
    uint64_t kept = tb_stage1_close_at(c, op);
    assert_false(op->told_stale);
    for (uint32_t i = 1; i < op->told_n; i++) assert_true(op->told[i - 1] <= op->told[i]);
    assert_true(kept == anew(c, op));
    moved += kept != last;
    last = kept;
  }
  assert_true(moved > 100);
  cp_free(net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(announced__kept_in_order_whatever_comes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
