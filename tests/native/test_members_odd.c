/* test_members_odd.c - changes of the view beside what is unusual: frames kept from the view before, two owners that leave one
 * after the other, a rank that is back while rounds from before are not settled. */
#include "core_round.h"

enum { N = 4, CHUNK = 16, BASE = 64 };
static const uint64_t DEADLINE = 2 * TB_MS;
static cp *net;

static int begin(void **state) {
  (void)state;
  net = cp_new(&(cp_options){.n = N, .chunk_bytes = CHUNK, .window = 256, .delay = 100000});
  return 0;
}

static int end(void **state) {
  (void)state;
  cp_free(net);
  return 0;
}

/* A rank hears that a view was decided. members: a bit for each. */
static void decided(uint16_t rank, uint16_t from, uint32_t view, uint64_t members) {
  tb_view_msg m = {.kind = TB_V_COMMIT, .view = view, .base = (view - 1) * BASE, .members = {{members}}};
  uint8_t body[TB_VIEW_BODY], frame[TB_CONTROL_MAX];
  tb_view_encode(&m, body, sizeof body);
  tb_head h = {.type = TB_T_VIEW};
  cp_give(net, rank, frame, cp_forge(net, from, rank, &h, body, sizeof body, frame));
  assert_int_equal(tb_core_members(net->core[rank], NULL), view);
}

/* A round that rank 1 opened beyond the base in the old view is void, and the same number is another round now: its data that
 * came before any OPEN, and was kept for one, is not that round's. */
static void early__data_of_the_old_view_is_void(void **state) {
  (void)state;
  static cp_work w;
  static float x[COUNT], junk[CHUNK / 4] = {1e6f, 1e6f, 1e6f, 1e6f};
  uint8_t frame[256];
  for (uint16_t r = 1; r < N; r++) net->stopped[r] = true;
  tb_core *c = net->core[0];
  round_of(net, "k", 0, 1, DEADLINE);
  uint32_t sig = c->ops->sig_hash;
  tb_head h = {.type = TB_T_DATA, .key = tb_key_hash("k", 1), .round = BASE, .stage = 1, .count = 1, .signature = sig,
               .remaining_us = TB_REMAINING_NONE, .hold_us = TB_HOLD_NONE};
  uint32_t len = cp_forge(net, 1, 0, &h, junk, sizeof junk, frame);
  assert_false(tb_core_rx(c, frame, len, TB_FROM_UNKNOWN, net->now)); /* it is kept */
  decided(0, 1, 2, 7);
  assert_int_equal(start(net, 0, &w, "k", x, DEADLINE), 0);
  tb_op *op = tb_op_find(c, h.key, BASE);
  assert_non_null(op);
  uint64_t before = c->n.bad_view;
  assert_true(tb_core_rx_again(c, frame, len, net->now));
  assert_int_equal(op->peer[1].rx[0].got, 0);
  assert_int_equal(c->n.bad_view, before + 1);
  cp_wait(net, &w);
  cp_work_free(&w, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(early__data_of_the_old_view_is_void, begin, end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
