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

/* Rank 0 gives a round under carry that nobody answers: no fate is known. */
static tb_op *unknown_fates(uint64_t count) {
  static cp_work w;
  static float x[2 * COUNT];
  for (uint16_t r = 1; r < N; r++) net->stopped[r] = true;
  cp_fill(x, count, 1, 0);
  tb_call call = cp_call("c", x, x, count, DEADLINE);
  call.missing = TB_CARRY;
  call.min_received = 0;
  assert_int_equal(cp_issue(net, 0, &w, &call), 0);
  cp_wait(net, &w);
  cp_work_free(&w, 1);
  tb_op *op = tb_op_find(net->core[0], tb_key_hash("c", 1), 0);
  assert_non_null(op);
  for (uint16_t p = 1; p < N; p++) assert_true(tb_fate_unknown(op, p));
  return op;
}

/* p says which of the chunks of an owner that left it has. */
static void answer(uint16_t p, uint32_t owner, uint32_t chunks, uint64_t held) {
  uint8_t body[16];
  tb_put32(body, 0);
  tb_put32(body + 4, chunks);
  tb_put64(body + 8, held);
  tb_section s = {.key = tb_key_hash("c", 1), .round = 0, .stage = 2, .flags = TB_R_HELD, .ranges = 2, .got = owner};
  assert_true(tb_heirs_got(net->core[0], p, &s, body, net->now));
}

/* While the others are asked about one owner another leaves, and is asked about first: nobody has answered for that one. */
static void heirs__answers_for_one_owner_are_not_anothers(void **state) {
  (void)state;
  enum { LONG = 67 }; /* shards of 5, 5, 5 and 4 chunks */
  tb_core *c = net->core[0];
  tb_op *op = unknown_fates(LONG);
  decided(0, 1, 2, 7); /* rank 3 leaves */
  answer(1, 3, op->peer[3].tx[0].total, 0);
  decided(0, 1, 3, 3); /* and rank 2, before it has answered */
  cp_until(net, net->now + TB_MS);
  assert_false(op->peer[2].settled);
  answer(1, 2, op->peer[2].tx[0].total, 1);
  cp_until(net, net->now + TB_MS);
  assert_true(op->peer[2].settled);
  assert_int_equal(c->n.dropped_values, CHUNK / 4); /* rank 1 has a value with that chunk in it, perhaps */
  assert_false(op->peer[3].settled);
  answer(1, 3, op->peer[3].tx[0].total, 0);
  cp_until(net, net->now + TB_MS);
  assert_int_equal(c->n.dropped_values, CHUNK / 4);
}

/* More chunks than the next owner has, and a rank that knows nothing of the round: nothing is read or written beyond. */
static void heirs__a_shorter_shard_after_a_longer_one(void **state) {
  (void)state;
  tb_op *op = unknown_fates(COUNT);
  decided(0, 1, 2, 7);
  op->peer[1].heir_from = op->peer[3].tx[0].total + 1; /* as if it had answered for a longer one */
  tb_section s = {.key = tb_key_hash("c", 1), .round = 0, .stage = 2, .flags = TB_R_HELD | TB_R_UNKNOWN, .got = 3};
  assert_true(tb_heirs_got(net->core[0], 1, &s, NULL, net->now));
  assert_false(tb_bit(op->peer[3].fate.applied, 0));
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(early__data_of_the_old_view_is_void, begin, end),
    cmocka_unit_test_setup_teardown(heirs__answers_for_one_owner_are_not_anothers, begin, end),
    cmocka_unit_test_setup_teardown(heirs__a_shorter_shard_after_a_longer_one, begin, end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
