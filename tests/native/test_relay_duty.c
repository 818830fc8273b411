/* test_relay_duty.c - relaying for others (relay.c): by ranks that are late, never come, are dead, or return early; and
 * how the deadline is shared out over the hops. */
#include "relay_round.h"

/* ---- ranks that are late, or away */

/* Rank `who` issues when all shards are closed, or (when = 1) when it has closed what it relays, or never: the others
 * have all by their deadline, but for its own contribution. */
static void duty__a_late_rank_costs_its_own_part_only(void **state) {
  (void)state;
  static cp_work w[CP_RANKS];
  static double x[CP_RANKS][RR_COUNT];
  static uint32_t in[CP_RANKS * RR_COUNT];
  for (int s = 0; s < SHAPES; s++)
    for (int when = 0; when < 3; when++)
      for (uint16_t who = 0; who < shapes[s].n; who += 3) {
        cp *net = grouped(shapes[s].n, shapes[s].size, false);
        uint32_t n = net->n, all = (1u << n) - 1;
        bool never = when == 2;
        for (uint16_t r = 0; r < n; r++) assert_int_equal(give(net, r, &w[r], "warm", x[r], EXACT), 0);
        cp_wait_all(net, w, n);
        cp_work_free(w, n);
        uint64_t began = net->now;
        for (uint16_t r = 0; r < n; r++)
          if (r != who) assert_int_equal(give(net, r, &w[r], "k", x[r], 20 * TB_MS), 0);
        const tb_op *mine = NULL;
        while (!mine || !(when == 1 ? !mine->relays_open : mine->swept)) { /* and before anybody returns */
          cp_until(net, net->now + 10000);
          mine = tb_op_find(net->core[who], tb_key_hash("k", 1), 0);
        }
        w[who].done = 0;
        if (!never) assert_int_equal(give(net, who, &w[who], "k", x[who], 100 * TB_MS), 0);
        for (uint16_t r = 0; r < n; r++)
          if (r != who || !never) cp_wait(net, &w[r]);
        check_results(net, w, n, in);
        for (uint16_t r = 0; r < n; r++) {
          if (r == who && never) continue;
          if (r != who) assert_in_range(w[r].done_at - began, 0, 20 * TB_MS);
          for (int i = 0; i < RR_COUNT; i++)
          {
            uint32_t has = in[r * RR_COUNT + (uint32_t)i] & ~(when == 1 ? 1u << who : 0);
            if (has != (all & ~(1u << who)))
              fail_msg("shape %d, rank %u late: rank %u has %02x at %d", s, who, r, has, i);
          }
        }
        if (!never) assert_int_equal(w[who].o.result.round, 0);
        if (never) cp_work_free(w, who), cp_work_free(w + who + 1, n - who - 1u);
        else cp_work_free(w, n);
        cp_until(net, net->now + 30 * TB_SEC);
        for (uint16_t r = 0; r < n; r++)
          if (!never || r != who) assert_int_equal(net->core[r]->memory, 0);
        cp_free(net);
      }
}

/* A dead rank D: its own group lacks the column that it relays; the other groups lack its group there, and D elsewhere.
 * */
static void dead__costs_what_it_relays(void **state) {
  (void)state;
  static cp_work w[CP_RANKS];
  static double x[CP_RANKS][RR_COUNT];
  static uint32_t in[CP_RANKS * RR_COUNT];
  for (int s = 0; s < SHAPES; s++) {
    cp *net = grouped(shapes[s].n, shapes[s].size, false);
    uint32_t n = net->n, all = (1u << n) - 1, dead = n - 2;
    for (uint16_t r = 0; r < n; r++) assert_int_equal(give(net, r, &w[r], "warm", x[r], EXACT), 0);
    cp_wait_all(net, w, n);
    cp_work_free(w, n);
    net->stopped[dead] = true;
    const tb_hierarchy *t = net->core[0]->tree;
    uint32_t its_group = 0;
    for (uint32_t r = 0; r < n; r++) its_group |= t->group[r] == t->group[dead] ? 1u << r : 0;
    for (uint32_t round = 0; round < 5; round++) {
      uint64_t began = net->now;
      for (uint16_t r = 0; r < n; r++)
        if (r != dead) assert_int_equal(give(net, r, &w[r], "k", x[r], 20 * TB_MS), 0);
      w[dead].done = 0;
      for (uint16_t r = 0; r < n; r++)
        if (r != dead) cp_wait(net, &w[r]);
      check_results(net, w, n, in);
      for (uint16_t r = 0; r < n; r++) {
        if (r == dead) continue;
        assert_in_range(w[r].done_at - began, 0, 20 * TB_MS);
        const tb_geometry *g = &w[r].o.geometry;
        for (uint32_t owner = 0; owner < n; owner++) {
          uint64_t first, len;
          tb_geo_shard(g, owner, &first, &len);
          bool column = t->place[owner] == t->place[dead], mate = t->group[r] == t->group[dead];
          uint32_t want = owner == dead || (column && mate) ? 0 : column ? all & ~its_group : all & ~(1u << dead);
          for (uint64_t i = first; i < first + len; i++)
            if (in[r * RR_COUNT + i] != want)
              fail_msg("shape %d, round %u, rank %u, owner %u: %02x, not %02x", s, round, r, owner,
                       in[r * RR_COUNT + i], want);
        }
      }
      cp_work_free(w, dead);
      cp_work_free(w + dead + 1, n - dead - 1);
      cp_until(net, net->now + TB_MS);
    }
    cp_free(net);
  }
}

/* A rank whose deadline is much earlier returns long before the decided chunks come; it relays them all the same. */
static void duty__goes_on_after_an_early_return(void **state) {
  (void)state;
  static cp_work w[8];
  static double x[8][RR_COUNT];
  static uint32_t in[8 * RR_COUNT];
  for (int named = 0; named < 2; named++) {
    cp *net = grouped(8, 4, false);
    uint16_t early = 1, late = 6; /* of the other group: it issues when `early` has returned */
    const char *key = named ? "k" : NULL;
    for (uint16_t r = 0; r < 8; r++)
      if (r != late) assert_int_equal(give(net, r, &w[r], key, x[r], r == early ? 5 * TB_MS : 50 * TB_MS), 0);
    cp_wait(net, &w[early]);
    cp_until(net, net->now + 5 * TB_MS);
    assert_int_equal(give(net, late, &w[late], named ? "k" : NULL, x[late], 40 * TB_MS), 0);
    cp_wait_all(net, w, 8);
    check_results(net, w, 8, in);
    assert_true(w[early].o.result.received < 0.9); /* what `late` owns came too late for it */
    for (uint16_t r = 0; r < 8; r++)
      for (int i = 0; i < RR_COUNT && r != early; i++)
        if (!in[r * RR_COUNT + i]) fail_msg("rank %u lacks element %d", r, i);
    cp_work_free(w, 8);
    cp_until(net, net->now + 30 * TB_SEC);
    for (uint16_t r = 0; r < 8; r++) assert_null(net->core[r]->ops);
    cp_free(net);
  }
}

/* ---- the deadline is shared out over four hops */

typedef struct { uint16_t from; uint32_t level; uint64_t sent; } first_partial;

static int watch_partials(cp *net, cp_frame *f) {
  first_partial *w = net->ctx;
  if (f->h.type == TB_T_DATA && f->h.stage == 1 && f->h.level == 1 && f->src == w->from && !w->sent) w->sent = net->now;
  return 1;
}

/* Rank 3 never comes. Its group's relays close in time for their partial sums to be repaired once and handed out twice.
 * */
static void split__relays_close_before_owners(void **state) {
  (void)state;
  cp *net = grouped(8, 4, false);
  static cp_work w[8];
  static double x[8][RR_COUNT];
  for (uint16_t r = 0; r < 8; r++) assert_int_equal(give(net, r, &w[r], "warm", x[r], EXACT), 0);
  cp_wait_all(net, w, 8);
  cp_work_free(w, 8);
  first_partial seen = {.from = 0};
  net->fate = watch_partials;
  net->ctx = &seen;
  uint64_t began = net->now, trip = 200000;
  for (uint16_t r = 0; r < 8; r++)
    if (r != 3) assert_int_equal(give(net, r, &w[r], "k", x[r], 5 * TB_MS), 0);
  cp_wait_all(net, w, 3);
  assert_in_range(seen.sent - began, 5 * TB_MS / 4, 5 * TB_MS - 3 * trip);
  for (uint16_t r = 0; r < 8; r++)
    if (r != 3) cp_wait(net, &w[r]);
  for (uint16_t r = 0; r < 3; r++) assert_true(w[r].o.per_peer[1][4] == 1.0 || isnan(w[r].o.per_peer[1][4]));
  check_results(net, w, 3, NULL);
  cp_work_free(w, 3);
  cp_work_free(w + 4, 4);
  cp_free(net);
}

/* ---- what goes on between a relay and an owner that have both returned */

typedef struct { uint16_t src, dst; uint8_t stage; uint64_t until; } cut;

static int cut_across(cp *net, cp_frame *f) {
  const cut *k = net->ctx;
  bool handed = f->h.type == TB_T_DATA && f->h.level == 1 && f->h.stage == k->stage;
  return !(handed && f->src == k->src && f->dst == k->dst && net->now < k->until);
}

/* `early` returns before its partial sum for the owner got through, or before the owner's decided chunks did. Both have
 * returned and told so by then; somebody in `early`'s group, or in the owner's, has time left and gets it all. */
static void duty__outlives_both_returns(void **state) {
  (void)state;
  static cp_work w[8];
  static double x[8][RR_COUNT], y[8][RR_COUNT];
  static uint32_t in[8 * RR_COUNT];
  for (int stage = 1; stage <= 2; stage++)
    for (int named = 0; named < 2; named++) {
      cp *net = grouped(8, 4, false);
      uint16_t early = 1, owner = 5;
      cut k = {.src = stage == 1 ? early : owner, .dst = stage == 1 ? owner : early, .stage = (uint8_t)stage,
               .until = net->now + 12 * TB_MS};
      net->fate = cut_across;
      net->ctx = &k;
      for (uint16_t r = 0; r < 8; r++) {
        bool patient = stage == 1 ? r != early : r == 2;
        for (int i = 0; i < RR_COUNT; i++) x[r][i] = weight[r];
        tb_call call = cp_call(named ? "k" : NULL, NULL, NULL, RR_COUNT, patient ? 60 * TB_MS : 6 * TB_MS);
        call.dtype = TB_F64;
        call.in = x[r];
        call.out = y[r]; /* apart: there is no copy of the input to repair from */
        call.groups = 1;
        call.min_received = 0;
        assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
      }
      cp_until(net, k.until);
      assert_true(w[early].done && (stage == 1 || w[owner].done));
      cp_wait_all(net, w, 8);
      check_results(net, w, 8, in);
      for (int i = 0; i < RR_COUNT; i++) {
        if (in[2 * RR_COUNT + i] != 0xff) fail_msg("stage %d: rank 2 has %02x at %d", stage, in[2 * RR_COUNT + i], i);
        if (stage == 1 && in[6 * RR_COUNT + i] != 0xff) fail_msg("rank 6 has %02x at %d", in[6 * RR_COUNT + i], i);
      }
      cp_work_free(w, 8);
      cp_until(net, net->now + 30 * TB_SEC);
      for (uint16_t r = 0; r < 8; r++) assert_null(net->core[r]->ops);
      cp_free(net);
    }
}

/* Between the two closing times some chunks of a flow are closed and others open: what comes for a closed one does not
 * end the flow, and only open ones are asked for. */
static int nothing_from_1(cp *net, cp_frame *f) {
  return !(f->h.type == TB_T_DATA && f->src == 1 && f->dst == 0 && *(bool *)net->ctx);
}

static void closed__relays_while_the_own_shard_is_open(void **state) {
  (void)state;
  static cp_work w[4];
  static double x[4][RR_COUNT];
  cp *net = grouped(4, 2, false);
  bool dark = true;
  net->fate = nothing_from_1;
  net->ctx = &dark;
  for (uint16_t r = 0; r < 4; r++) assert_int_equal(give(net, r, &w[r], "k", x[r], TB_SEC), 0);
  cp_until(net, net->now + 5 * TB_MS);
  tb_core *c = net->core[0], *from = net->core[1];
  tb_op *op = tb_op_find(c, tb_key_hash("k", 1), 0), *theirs = tb_op_find(from, tb_key_hash("k", 1), 0);
  tb_stage1_sweep(c, op, net->now, TB_CLOSE_RELAYS);
  assert_true(!op->relays_open && !op->swept);
  uint32_t closed = op->closed_n, relayed = 0;
  for (uint32_t i = 0; i < op->chunks; i++) relayed += tb_relays(c, op, i);
  assert_int_equal(closed, relayed); /* nothing came from rank 1: all of the own shard is open */
  tb_section_add(c, 1, op, 1, TB_R_REQUEST);
  cp_until(net, net->now + 150000); /* heard, and not answered yet */
  assert_int_equal(theirs->peer[0].tx[0].acked, closed);
  while (!tb_relays(c, op, --relayed)) {
  }
  uint8_t frame[TB_HEAD + 64], pay[64] = {0};
  tb_head h = {.type = TB_T_DATA, .key = op->key->hash, .signature = op->sig_hash, .stage = 1, .count = 1,
               .chunk = relayed, .remaining_us = 1000, .hold_us = TB_HOLD_NONE, .credit = 256};
  uint64_t first;
  tb_piece at = tb_flow_piece(c, op, 1, 0, TB_RECEIVED, relayed);
  cp_give(net, 0, frame, cp_forge(net, 1, 0, &h, pay, tb_geo_chunk(&op->geo, at.owner, at.chunk, &first) * 8, frame));
  assert_int_equal(c->peer[1].n.late, 1);
  for (uint32_t i = 0; i < c->peer[1].sections; i++) assert_false(c->peer[1].section[i].flags & TB_R_FINAL);
  dark = false;
  cp_wait_all(net, w, 4);
  uint32_t in[4 * RR_COUNT];
  check_results(net, w, 4, in);
  uint64_t len;
  tb_geo_shard(&w[0].o.geometry, 0, &first, &len); /* the own shard has all after all */
  for (uint64_t i = first; i < first + len; i++) assert_int_equal(in[2 * RR_COUNT + i], 15);
  tb_geo_shard(&w[0].o.geometry, 2, &first, &len); /* and what was relayed for rank 2 all but rank 1's */
  for (uint64_t i = first; i < first + len; i++) assert_int_equal(in[2 * RR_COUNT + i], 13);
  cp_work_free(w, 4);
  cp_free(net);
}

/* A chunk that its owner has decided wants no partial sum any more, also where it came after the return: the partial
 * sum's bytes are not there any more. */
static void decided__takes_the_place_of_the_partial_sum(void **state) {
  (void)state;
  for (int named = 0; named < 2; named++) {
    static cp_work w;
    static double x[RR_COUNT], pay[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    cp *net = grouped(4, 2, false);
    for (uint16_t r = 1; r < 4; r++) net->stopped[r] = true;
    assert_int_equal(give(net, 0, &w, named ? "k" : "", x, 2 * TB_MS), 0);
    cp_wait(net, &w);
    tb_core *c = net->core[0];
    tb_op *op = tb_op_find(c, tb_key_hash(named ? "k" : "", named), 0);
    assert_non_null(op);
    assert_int_equal(op->state, TB_OP_RETURNED);
    const tb_flow_tx *f = &op->peer[2].tx[0];
    assert_true(tb_across(op, 2) && op->peer[2].rx[1].total && !tb_bit(f->ack, 0));
    tb_head h = {.type = TB_T_DATA, .key = op->key->hash, .stage = 2, .level = 1, .count = 1, .signature = op->sig_hash,
                 .remaining_us = TB_REMAINING_NONE, .hold_us = TB_HOLD_NONE};
    uint8_t frame[256];
    cp_give(net, 0, frame, cp_forge(net, 2, 0, &h, pay, sizeof pay, frame));
    assert_true(tb_bit(op->peer[2].rx[1].bits, 0));
    assert_true(tb_bit(f->ack, 0));
    cp_work_free(&w, 1);
    cp_free(net);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(duty__a_late_rank_costs_its_own_part_only),
    cmocka_unit_test(dead__costs_what_it_relays),
    cmocka_unit_test(duty__goes_on_after_an_early_return),
    cmocka_unit_test(duty__outlives_both_returns),
    cmocka_unit_test(closed__relays_while_the_own_shard_is_open),
    cmocka_unit_test(split__relays_close_before_owners),
    cmocka_unit_test(decided__takes_the_place_of_the_partial_sum),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
