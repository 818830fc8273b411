/* test_members_odd.c - changes of the view beside what is unusual: frames kept from the view before, two owners that
 * leave one after the other, a rank that is back while rounds from before are not settled. */
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

static tb_key *key(uint16_t rank, const char *name) { return tb_key_named(net->core[rank], name, (uint32_t)strlen(name)); }

/* A round that rank 1 opened beyond the base in the old view is void, and the same number is another round now: its
 * data that came before any OPEN, and was kept for one, is not that round's. */
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

/* While the others are asked about one owner another leaves, and is asked about first: nobody has answered for that
 * one. */
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

/* A member that does not answer, perhaps as it is stopped, is asked less and less often. */
static void heirs__who_is_silent_is_asked_less_and_less(void **state) {
  (void)state;
  unknown_fates(COUNT);
  decided(0, 1, 2, 7);
  cp_until(net, net->now + TB_SEC);
  uint64_t before = net->sent[TB_T_RECEIPT];
  cp_until(net, net->now + 2 * TB_SEC);
  assert_in_range(net->sent[TB_T_RECEIPT] - before, 1, 40); /* of ranks 1 and 2, at rto_max (200 ms) */
}

/* More chunks than the next owner has, and a rank that knows nothing of the round: nothing is read or written
 * beyond. */
static void heirs__a_shorter_shard_after_a_longer_one(void **state) {
  (void)state;
  tb_op *op = unknown_fates(COUNT);
  decided(0, 1, 2, 7);
  op->peer[1].heir_from = op->peer[3].tx[0].total + 1; /* as if it had answered for a longer one */
  tb_section s = {.key = tb_key_hash("c", 1), .round = 0, .stage = 2, .flags = TB_R_HELD | TB_R_UNKNOWN, .got = 3};
  assert_true(tb_heirs_got(net->core[0], 1, &s, NULL, net->now));
  assert_false(tb_bit(op->peer[3].fate.applied, 0));
}

/* Who was voted out has forgotten what it had counted of a round, and to whom it told it. Back again it knows nothing
 * of it: that is no answer. */
static void back__says_nothing_of_rounds_before(void **state) {
  (void)state;
  tb_core *c = net->core[0];
  tb_op *op = unknown_fates(COUNT);
  decided(0, 1, 2, 7);
  decided(0, 1, 3, 15);
  uint8_t body[TB_RECEIPT_HEAD + TB_SECTION];
  tb_section s = {.key = tb_key_hash("c", 1), .round = 0, .stage = 2,
                  .flags = TB_R_HEARD | TB_R_FINAL | TB_R_CLOSED | TB_R_UNKNOWN | TB_R_FATES};
  tb_receipt_begin(body, 0);
  tb_section_encode(&s, body + TB_RECEIPT_HEAD);
  tb_receipt_finish(body, 1);
  tb_receipt r;
  assert_int_equal(tb_receipt_decode(body, sizeof body, &r), 0);
  tb_on_receipt(c, 3, &r, net->now);
  assert_true(tb_fate_unknown(op, 3));
  assert_int_equal(op->peer[3].open_at, UINT64_MAX); /* nor is it asked */
  assert_null(key(0, "c")->residual.data);
}

/* Rounds from the base on that others opened before the change are void on them, too: nobody follows them there. */
static void rounds__opened_beyond_the_base_are_not_followed(void **state) {
  (void)state;
  static cp_work w;
  static float x[COUNT];
  for (uint16_t r = 1; r < N; r++) net->stopped[r] = true;
  round_of(net, "k", 0, 1, DEADLINE);
  for (uint16_t p = 1; p < 3; p++) tb_key_saw_open(key(0, "k"), p, BASE + 36);
  tb_key_saw_closed(key(0, "k"), 1, BASE + 35);
  decided(0, 1, 2, 7);
  assert_int_equal(start(net, 0, &w, "k", x, DEADLINE), 0);
  cp_wait(net, &w);
  assert_int_equal(w.o.result.round, BASE);
  assert_int_equal(w.o.result.behind, 0);
  cp_work_free(&w, 1);
}

/* Its parameters will be those of a rank that has the late values in them already. */
static void out__late_values_are_given_up(void **state) {
  (void)state;
  static float x[COUNT];
  tb_core *c = net->core[3];
  for (uint16_t r = 0; r < 3; r++) net->stopped[r] = true;
  round_of(net, "k", 3, N, DEADLINE);
  tb_op *op = tb_op_find(c, tb_key_hash("k", 1), 0);
  assert_non_null(op);
  cp_fill(x, COUNT, 1, 0);
  assert_true(tb_late_put(c, op, 0, 0, x, 1));
  uint64_t before = c->n.late_dropped;
  decided(3, 1, 2, 7);
  assert_null(key(3, "k")->late.data);
  assert_true(c->n.late_dropped > before);
}

/* Messages with a rank that left begin anew at round 0, while a link may still read the bytes of the old round 0. */
static void message__does_not_meet_one_that_a_link_still_reads(void **state) {
  (void)state;
  static cp_work w[2], again;
  static float out[COUNT], in[COUNT];
  cp_free(net);
  net = cp_new(&(cp_options){.n = N, .chunk_bytes = CHUNK, .window = 256, .delay = 100000, .async_refs = true,
                             .ref_hold = 50 * TB_MS});
  tb_call call = {.struct_size = sizeof call, .kind = TB_SEND, .dtype = TB_F32, .count = COUNT, .in = out, .root = 3,
                  .deadline_ns = DEADLINE};
  tb_call recv = {.struct_size = sizeof call, .kind = TB_RECV, .dtype = TB_F32, .count = COUNT, .out = in, .root = 0,
                  .deadline_ns = DEADLINE};
  assert_int_equal(cp_issue(net, 3, &w[1], &recv), 0);
  assert_int_equal(cp_issue(net, 0, &w[0], &call), 0);
  cp_until(net, net->now + 2 * DEADLINE);
  assert_int_equal(w[0].done, 0);
  assert_int_equal(net->core[0]->ops->state, TB_OP_FINISHING);
  decided(0, 1, 2, 7);
  assert_int_equal(cp_issue(net, 0, &again, &call), -EBUSY);
  cp_wait(net, &w[0]);
  assert_int_equal(cp_issue(net, 0, &again, &call), 0);
  cp_wait(net, &again);
  cp_wait(net, &w[1]);
  cp_work_free(w, 2);
  cp_work_free(&again, 1);
}

/* A round from before a rank left, and came back, does not wait for it, nor is it judged by it. */
static void back__is_not_waited_for_in_rounds_before(void **state) {
  (void)state;
  static cp_work w[3];
  static float x[3][COUNT];
  net->stopped[3] = true;
  for (uint16_t r = 0; r < 3; r++) {
    cp_fill(x[r], COUNT, 1, 1);
    tb_call call = cp_call("k", x[r], x[r], COUNT, 50 * TB_MS);
    call.min_received = 0.9;
    assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
  }
  for (uint16_t r = 0; r < 3; r++) decided(r, 3, 2, 7);
  for (uint16_t r = 0; r < 3; r++) decided(r, 3, 3, 15);
  uint64_t began = net->now;
  cp_wait_all(net, w, 3);
  for (uint16_t r = 0; r < 3; r++) {
    assert_int_equal(w[r].o.result.round, 0);
    assert_true(w[r].o.result.verdict == TB_VERDICT_PARTIAL);
    assert_in_range(w[r].done_at - began, 0, 10 * TB_MS);
  }
  cp_work_free(w, 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(early__data_of_the_old_view_is_void, begin, end),
    cmocka_unit_test_setup_teardown(heirs__answers_for_one_owner_are_not_anothers, begin, end),
    cmocka_unit_test_setup_teardown(heirs__who_is_silent_is_asked_less_and_less, begin, end),
    cmocka_unit_test_setup_teardown(heirs__a_shorter_shard_after_a_longer_one, begin, end),
    cmocka_unit_test_setup_teardown(back__says_nothing_of_rounds_before, begin, end),
    cmocka_unit_test_setup_teardown(back__is_not_waited_for_in_rounds_before, begin, end),
    cmocka_unit_test_setup_teardown(rounds__opened_beyond_the_base_are_not_followed, begin, end),
    cmocka_unit_test_setup_teardown(out__late_values_are_given_up, begin, end),
    cmocka_unit_test_setup_teardown(message__does_not_meet_one_that_a_link_still_reads, begin, end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
