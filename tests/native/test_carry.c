/* test_carry.c - rules 12, 14, 15: what an owner did not count is in the next round, once, whatever receipts are
 * lost. */
#include <math.h>
#include "core_round.h"

enum { ELEMS = 120 };

typedef struct { int (*rule)(cp *net, cp_frame *f); uint64_t until; } plan;

static cp_work w[CP_RANKS];
static float x[CP_RANKS][ELEMS], y[CP_RANKS][ELEMS];
static double given[ELEMS], got[CP_RANKS][ELEMS]; /* sums over all rounds */

static int by_plan(cp *net, cp_frame *f) {
  plan *p = net->ctx;
  return net->now < p->until && p->rule ? p->rule(net, f) : 1;
}

static int lose_data_1_to_0(cp *net, cp_frame *f) {
  (void)net;
  return !(f->src == 1 && f->dst == 0 && f->h.type == TB_T_DATA && f->h.stage == 1);
}

static int lose_answers_0_to_1(cp *net, cp_frame *f) {
  (void)net;
  return !(f->src == 0 && f->dst == 1 && (f->h.type == TB_T_RECEIPT || f->h.type == TB_T_DATA));
}


static int lose_all_1_to_0(cp *net, cp_frame *f) {
  (void)net;
  return !(f->src == 1 && f->dst == 0);
}

static cp *net_of(plan *p, uint32_t n, bool async, void (*tune)(tb_tunables *)) {
  cp *net = cp_new(&(cp_options){.n = n, .chunk_bytes = 64, .window = 256, .delay = 100000, .async_refs = async,
                                 .ref_hold = async ? 50000 : 0, .tune = tune});
  net->fate = by_plan;
  net->ctx = p;
  memset(given, 0, sizeof given);
  memset(got, 0, sizeof got);
  return net;
}

static tb_key *key_of(cp *net, uint16_t r) { return tb_key_find(net->core[r], tb_key_hash("k", 1)); }

static int begin(cp *net, uint16_t r, float first, tb_redop op, bool in_place, uint64_t deadline) {
  cp_fill(x[r], ELEMS, first, 2);
  tb_call call = cp_call("k", x[r], in_place ? x[r] : y[r], ELEMS, deadline);
  call.redop = (int32_t)op;
  call.missing = TB_CARRY;
  call.min_received = 0;
  return cp_issue(net, r, &w[r], &call);
}

static void collect(cp *net) {
  for (uint16_t r = 0; r < net->n; r++) {
    cp_wait(net, &w[r]);
    assert_int_equal(w[r].o.result.status, 0);
    for (int i = 0; i < ELEMS; i++) got[r][i] += (double)w[r].result[i];
  }
  cp_work_free(w, net->n);
}

/* A round of everybody; value 0 = everybody gives zeros. */
static void carried_round(cp *net, float value, tb_redop op, bool in_place) {
  for (uint16_t r = 0; r < net->n; r++) {
    assert_int_equal(begin(net, r, value * (float)(1 + r), op, in_place, 10 * TB_MS), 0);
    for (int i = 0; i < ELEMS; i++) given[i] += (double)x[r][i];
  }
  collect(net);
}

static bool conserved(const cp *net, double div) {
  for (uint32_t r = 0; r < net->n; r++)
    for (int i = 0; i < ELEMS; i++)
      if (got[r][i] * div != given[i]) return false;
  return true;
}

static void quiet(cp *net) { cp_until(net, net->now + 500 * TB_MS); }

static void carry__comes_into_the_next_round_in_full(void **state) {
  (void)state;
  for (int k = 0; k < 8; k++) {
    bool in_place = k & 1, async = k & 2, mean = k & 4;
    plan p = {.rule = lose_data_1_to_0, .until = UINT64_MAX};
    cp *net = net_of(&p, 2, async, NULL);
    tb_redop op = mean ? TB_AVG : TB_SUM;
    carried_round(net, 4, op, in_place);
    uint64_t first, len;
    tb_geo_shard(&(tb_geometry){.kind = TB_ALL_REDUCE, .n = 2, .count = ELEMS, .elem = 4, .chunk_elems = 16}, 0,
        &first, &len);
    for (uint64_t i = first; i < first + len; i++) /* not estimated: rank 0's own part, and a mean is over all ranks */
      for (int r = 0; r < 2; r++) assert_true(got[r][i] == (4 + 2 * (double)i) / (mean ? 2 : 1));
    assert_false(conserved(net, mean ? 2 : 1));
    assert_int_equal(key_of(net, 1)->residual.used, (len + 15) / 16);
    assert_int_equal(key_of(net, 0)->residual.used, 0);
    p.until = net->now;
    carried_round(net, 3, op, in_place);
    assert_true(conserved(net, mean ? 2 : 1));
    assert_int_equal(net->core[1]->n.carry_deferred, (len + 15) / 16);
    assert_int_equal(net->core[1]->n.carry_applied, (len + 15) / 16);
    assert_int_equal(net->core[1]->n.carry_rounds, (len + 15) / 16); /* one round old */
    quiet(net);
    for (int r = 0; r < 2; r++) {
      assert_null(net->core[r]->ops);
      assert_int_equal(net->core[r]->memory, 0);
    }
    cp_free(net);
  }
}

/* Its result tells what it carried; without carry nothing comes. */
static void carry__is_told_and_can_be_left_off(void **state) {
  (void)state;
  for (int on = 0; on < 2; on++) {
    plan p = {.rule = lose_data_1_to_0, .until = UINT64_MAX};
    cp *net = net_of(&p, 2, false, NULL);
    for (int round = 0; round < 2; round++) {
      for (uint16_t r = 0; r < 2; r++) {
        cp_fill(x[r], ELEMS, 1, 1);
        tb_call call = cp_call("k", x[r], x[r], ELEMS, 10 * TB_MS);
        call.missing = on ? TB_CARRY : TB_RENORMALISE;
        call.min_received = 0;
        assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
      }
      cp_wait_all(net, w, 2);
      assert_true(w[1].o.result.carried == (on && round == 1 ? 0.5 : 0.0));
      assert_true(w[0].o.result.carried == 0);
      cp_work_free(w, 2);
      p.until = 0;
    }
    assert_int_equal(net->core[1]->n.carry_deferred > 0, on);
    cp_free(net);
  }
}

/* Counted, but neither the decided chunk nor a receipt says so: it is held, not guessed, and never added twice. */
static void fate__unknown_is_held_until_it_is_told(void **state) {
  (void)state;
  plan p = {.rule = lose_answers_0_to_1, .until = UINT64_MAX};
  cp *net = net_of(&p, 2, false, NULL);
  carried_round(net, 4, TB_SUM, true);
  assert_true(tb_fate_unknown(net->core[1]->ops, 0));
  cp_until(net, net->now + 300 * TB_MS);
  assert_int_equal(key_of(net, 1)->residual.used, 0);
  assert_non_null(net->core[0]->ops); /* the owner keeps the final receipt */
  carried_round(net, 5, TB_SUM, false);
  p.until = net->now;
  quiet(net);
  assert_int_equal(key_of(net, 1)->residual.used, 0); /* all had been counted */
  for (int r = 0; r < 2; r++) assert_null(net->core[r]->ops);
  carried_round(net, 0, TB_SUM, true); /* takes along what came late in stage 2 */
  assert_true(conserved(net, 1));
  assert_int_equal(net->core[1]->n.dropped_values, 0);
  cp_free(net);
}

/* Not counted, and nobody says so: as soon as the final receipt comes through it goes into the next round. */
static void fate__not_counted_is_learnt_from_the_final_receipt(void **state) {
  (void)state;
  plan p = {.rule = NULL, .until = UINT64_MAX};
  cp *net = net_of(&p, 3, false, NULL);
  p.rule = lose_data_1_to_0;
  for (uint16_t r = 0; r < 3; r++) {
    assert_int_equal(begin(net, r, 8, TB_SUM, true, 10 * TB_MS), 0);
    for (int i = 0; i < ELEMS; i++) given[i] += (double)x[r][i];
  }
  cp_until(net, net->now + 5 * TB_MS);
  p.rule = lose_answers_0_to_1; /* by now the owner must do without it */
  collect(net);
  assert_true(tb_fate_unknown(net->core[1]->ops, 0) || net->core[1]->n.carry_deferred == 0);
  p.until = net->now;
  quiet(net);
  assert_int_equal(key_of(net, 1)->residual.used, 3);
  carried_round(net, 0, TB_SUM, false);
  assert_true(conserved(net, 1));
  cp_free(net);
}

/* Rule 14: after W rounds without an answer nothing new is sent there; all of it comes when the peer answers again. */
static void fate__after_w_silent_rounds_nothing_new_is_sent(void **state) {
  (void)state;
  plan p = {.rule = lose_answers_0_to_1, .until = UINT64_MAX};
  cp *net = net_of(&p, 2, false, NULL);
  uint64_t before = 0;
  for (int i = 0; i < 7; i++) {
    before = net->data_sent[1][0];
    carried_round(net, 4, TB_SUM, true);
  }
  uint32_t open = 0;
  for (tb_op *op = net->core[1]->ops; op; op = op->next) open += tb_fate_unknown(op, 0);
  assert_int_equal(open, 4);
  assert_int_equal(tb_op_find(net->core[0], tb_key_hash("k", 1), 6)->peer[1].rx[0].got, 0);
  assert_true(net->data_sent[1][0] - before <= 2 * 4); /* stage 2 and its repeats */
  p.until = net->now;
  quiet(net);
  carried_round(net, 0, TB_SUM, true);
  carried_round(net, 0, TB_SUM, true);
  assert_true(conserved(net, 1));
  cp_free(net);
}

static void short_age(tb_tunables *t) { t->carry_age = 300 * TB_MS; }

/* A limit acts: counted and said, never silently. */
static void limits__are_counted_and_said(void **state) {
  (void)state;
  plan p = {.rule = lose_answers_0_to_1, .until = UINT64_MAX};
  cp *net = net_of(&p, 2, false, short_age);
  carried_round(net, 4, TB_SUM, true);
  cp_until(net, net->now + 250 * TB_MS);
  assert_non_null(net->core[1]->ops);
  cp_until(net, net->now + 200 * TB_MS);
  assert_null(net->core[1]->ops);
  assert_int_equal(net->core[1]->n.dropped_values, ELEMS / 2);
  assert_true(net->core[1]->n.dropped_mass == (8 + 8 + 2 * 59.) / 2 * 60);
  assert_true(cp_logged(net, "carry_age"));
  assert_int_equal(net->core[1]->memory, 0);
  /* lost the other way */
  assert_int_equal(net->core[0]->memory, key_of(net, 0)->residual.bytes + key_of(net, 0)->late.bytes);
  cp_free(net);
}

/* Round 0: one chunk is lost, so that `mixed` holds something in round 1. Round 1: rank 1's contribution does not
 * arrive at rank 0. */
static int lose_for_the_cap(cp *net, cp_frame *f) {
  (void)net;
  if (f->h.type != TB_T_DATA || f->h.stage != 1 || f->src != 1 || f->dst != 0) return 1;
  return f->h.round == 0 ? f->h.chunk != 0 : 0;
}

/* Without memory for what is not known yet it is counted as lost; the owner may ask for it, and gets nothing. */
static void limits__memory_cap_at_the_return(void **state) {
  (void)state;
  for (int in_place = 0; in_place < 2; in_place++) {
    plan p = {.rule = lose_for_the_cap, .until = UINT64_MAX};
    cp *net = net_of(&p, 3, false, NULL);
    tb_core *c = net->core[1];
    carried_round(net, 4, TB_SUM, in_place);
    cp_until(net, net->now + 100 * TB_MS);
    for (uint16_t r = 0; r < 3; r++)
      assert_int_equal(begin(net, r, 1, TB_SUM, in_place, (r == 1 ? 13 : 50) * TB_MS), 0);
    cp_until(net, net->now + 9 * TB_MS);
    c->tune.memory_cap = c->memory;
    cp_wait(net, &w[1]);
    tb_op *op = tb_op_find(c, tb_key_hash("k", 1), 1);
    assert_true(op->mixed.used == 1 && !op->save == !in_place);
    assert_int_equal(c->n.dropped_chunks, in_place ? 0 : 3);
    /* a request that was under way at the return */
    uint8_t body[64], frame[200];
    tb_section sec = {.key = op->key->hash, .round = 1, .stage = 1, .flags = TB_R_REQUEST, .ranges = 1, .upto = 3};
    tb_receipt_begin(body, c->peer[0].step + 1);
    tb_section_encode(&sec, body + TB_RECEIPT_HEAD);
    tb_put32(body + TB_RECEIPT_HEAD + TB_SECTION, 0);
    tb_put32(body + TB_RECEIPT_HEAD + TB_SECTION + 4, 3);
    tb_receipt_finish(body, 1);
    tb_head h = {.type = TB_T_RECEIPT};
    uint64_t repaired = c->peer[0].n.repaired;
    cp_give(net, 1, frame, cp_forge(net, 0, 1, &h, body, TB_RECEIPT_HEAD + TB_SECTION + 8, frame));
    cp_until(net, net->now + 100000);
    assert_int_equal(c->peer[0].n.repaired - repaired, in_place ? 3 : 0); /* what there is */
    collect(net);
    cp_free(net);
  }
}

static void limits__not_finite_is_not_carried(void **state) {
  (void)state;
  plan p = {.rule = lose_data_1_to_0, .until = UINT64_MAX};
  cp *net = net_of(&p, 2, false, NULL);
  for (uint16_t r = 0; r < 2; r++) assert_int_equal(begin(net, r, 1, TB_SUM, false, 10 * TB_MS), 0);
  x[1][3] = INFINITY; /* in the first chunk of rank 0's shard */
  collect(net);
  assert_int_equal(net->core[1]->n.dropped_chunks, 1);
  assert_int_equal(net->core[1]->n.dropped_values, 16);
  assert_int_equal(key_of(net, 1)->residual.used, 3);
  cp_free(net);
}

static void forget__drops_and_counts(void **state) {
  (void)state;
  plan p = {.rule = lose_data_1_to_0, .until = UINT64_MAX};
  cp *net = net_of(&p, 2, false, NULL);
  carried_round(net, 4, TB_SUM, true);
  quiet(net);
  assert_int_equal(tb_core_forget(net->core[1], "k", 1), 0);
  assert_int_equal(net->core[1]->n.dropped_values, ELEMS / 2);
  assert_null(key_of(net, 1)->residual.data);
  cp_free(net);
}

/* An infinity in a round that is skipped is not among what it adds to the next output. */
static void skip__keeps_nothing_that_is_not_finite(void **state) {
  (void)state;
  plan p = {.rule = lose_data_1_to_0, .until = UINT64_MAX};
  cp *net = net_of(&p, 2, false, NULL);
  for (int round = 0; round < 2; round++) {
    for (uint16_t r = 0; r < 2; r++) {
      cp_fill(x[r], ELEMS, 1, 1);
      if (!round && r) x[r][ELEMS - 1] = INFINITY; /* in the shard of rank 1, where all is counted */
      tb_call call = cp_call("k", x[r], x[r], ELEMS, 10 * TB_MS);
      call.missing = TB_CARRY;
      call.min_received = round || r ? 0 : 0.9;
      assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
    }
    cp_wait_all(net, w, 2);
    if (!round) assert_int_equal(w[0].o.result.verdict, TB_VERDICT_SKIP);
    for (int i = 0; round && i < ELEMS; i++) assert_true(isfinite(w[0].result[i]));
    assert_int_equal(w[0].o.result.late > 0, round);
    cp_work_free(w, 2);
    p.until = net->now;
    quiet(net);
  }
  assert_int_equal(net->core[0]->n.late_dropped, 1);
  cp_free(net);
}

/* A cancelled round gives back what it had taken over, less its own part. */
static void failed__gives_back_what_it_took(void **state) {
  (void)state;
  plan p = {.rule = lose_data_1_to_0, .until = UINT64_MAX};
  cp *net = net_of(&p, 2, false, NULL);
  carried_round(net, 4, TB_SUM, true);
  float want[ELEMS];
  cp_fill(want, ELEMS, 8, 2);
  p.rule = lose_all_1_to_0; /* so nothing of it is counted */
  assert_int_equal(begin(net, 1, 100, TB_SUM, true, 10 * TB_MS), 0);
  assert_int_equal(key_of(net, 1)->residual.used, 0);
  tb_core_cancel(net->core[1], &w[1].o, -ECANCELED, "test", net->now); /* before anything was sent */
  assert_int_equal(w[1].o.result.status, -ECANCELED);
  cp_expect(w[1].result, ELEMS, 100, 2);
  cp_work_free(w + 1, 1);
  const tb_store *s = &key_of(net, 1)->residual;
  assert_int_equal(s->used, 4);
  for (tb_stored e = {0}; tb_store_each(s, &e); e.at++) assert_memory_equal(tb_store_at(s, &e), want + e.first,
      e.n * sizeof *want);
  cp_free(net);
}

/* Where there is no memory for what it gives back, that is counted as lost. */
static void failed__without_memory_is_counted(void **state) {
  (void)state;
  plan p = {.rule = lose_data_1_to_0, .until = UINT64_MAX};
  cp *net = net_of(&p, 2, false, NULL);
  tb_core *c = net->core[1];
  carried_round(net, 4, TB_SUM, true);
  assert_int_equal(begin(net, 1, 100, TB_SUM, true, 10 * TB_MS), 0);
  c->tune.memory_cap = c->memory;
  tb_core_cancel(c, &w[1].o, -ECANCELED, "test", net->now);
  cp_work_free(w + 1, 1);
  assert_null(key_of(net, 1)->residual.data);
  assert_int_equal(c->n.dropped_values, ELEMS / 2);
  cp_free(net);
}

/* A round under way at forget() gives the key's new life nothing. */
static void forget__of_a_round_under_way(void **state) {
  (void)state;
  plan p = {.rule = lose_data_1_to_0, .until = UINT64_MAX};
  cp *net = net_of(&p, 2, false, NULL);
  for (uint16_t r = 0; r < 2; r++) assert_int_equal(begin(net, r, 1, TB_SUM, true, 10 * TB_MS), 0);
  assert_int_equal(tb_core_forget(net->core[1], "k", 1), 0);
  collect(net);
  quiet(net);
  assert_null(key_of(net, 1)->residual.data);
  assert_int_equal(net->core[1]->n.dropped_values, ELEMS / 2);
  cp_free(net);
}

/* A skipped round commits nothing here, but counts elsewhere: what it received is kept for the next output. */
static void skip__keeps_what_was_received(void **state) {
  (void)state;
  plan p = {.rule = lose_data_1_to_0, .until = UINT64_MAX};
  cp *net = net_of(&p, 2, false, NULL);
  for (uint16_t r = 0; r < 2; r++) {
    cp_fill(x[r], ELEMS, 4, 2);
    for (int i = 0; i < ELEMS; i++) given[i] += (double)x[r][i];
    tb_call call = cp_call("k", x[r], x[r], ELEMS, 10 * TB_MS);
    call.missing = TB_CARRY;
    call.min_received = r ? 0 : 0.9;
    assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
  }
  cp_wait_all(net, w, 2);
  assert_int_equal(w[0].o.result.verdict, TB_VERDICT_SKIP);
  cp_expect(w[0].result, ELEMS, 4, 2);
  for (int i = 0; i < ELEMS; i++) got[1][i] += (double)w[1].result[i];
  cp_work_free(w, 2);
  p.until = net->now;
  carried_round(net, 3, TB_SUM, false);
  assert_true(conserved(net, 1));
  cp_free(net);
}

static void call__needs_a_key_a_sum_and_floats(void **state) {
  (void)state;
  plan p = {0};
  cp *net = net_of(&p, 2, false, NULL);
  tb_call good = cp_call("k", x[0], x[0], ELEMS, 10 * TB_MS);
  good.missing = TB_CARRY;
  struct { const char *what; int rc; tb_call call; } t[7];
  for (int i = 0; i < 7; i++) t[i].call = good;
  t[0].call.key_len = 0;
  t[1].call.redop = TB_MAX;
  t[2].call.dtype = TB_I32;
  t[3].call.kind = TB_BARRIER;
  t[4].call.missing = 2;
  t[5].call.missing = -1;
  t[6].call.consistency = TB_AGREE;
  for (int i = 0; i < 7; i++) {
    assert_int_equal(cp_issue(net, 0, &w[0], &t[i].call), -EINVAL);
    assert_non_null(strstr(w[0].o.error, "missing"));
  }
  good.deadline_ns = EXACT; /* exact: nothing can be missing */
  good.key_len = 0;
  assert_int_equal(cp_issue(net, 0, &w[0], &good), 0);
  tb_core_cancel(net->core[0], &w[0].o, -ECANCELED, "test", net->now);
  cp_work_free(w, 1);
  cp_free(net);
}

/* A shard of more chunks than one frame tells of: the pages put together are the whole, in any order, and twice. */
static void receipt__pages(void **state) {
  (void)state;
  enum { CHUNKS = 20000 };
  cp *net = cp_plain(2);
  tb_core *c = net->core[0];
  tb_key *k;
  tb_op *op;
  tb_signature sig = {.kind = TB_ALL_REDUCE, .dtype = TB_F32, .wire_dtype = TB_F32, .missing = TB_CARRY,
      .chunk_elems = 16,
                      .count = 2 * 16 * CHUNKS};
  assert_int_equal(tb_key_get(c, "k", 1, true, 1, &k), 0);
  assert_int_equal(tb_op_new(c, k, 0, &sig, TB_OPENED_HERE, 1, &op), 0);
  for (uint32_t i = 0; i < CHUNKS; i += 1 + i % 3) tb_bit_set(op->peer[1].rx[0].bits, i);
  op->state = TB_OP_ISSUED;
  static uint8_t page[8][1024];
  tb_section s[8];
  bool more = true;
  int pages = 0;
  for (; more; pages++) {
    s[pages] = (tb_section){.stage = 1, .flags = TB_R_FINAL | TB_R_FATES};
    uint32_t used = tb_fates_put(op, 1, page[pages], 900, &s[pages], &more);
    assert_int_equal(used, 8u * s[pages].ranges);
    assert_in_range(used, 16, 900);
  }
  assert_true(pages > 1);
  for (int i = pages; i-- > 0;)
    for (int twice = 0; twice < 2; twice++) {
      assert_true(tb_fate_unknown(op, 1) || (!i && twice));
      assert_true(tb_fates_got(c, op, 1, &s[i], page[i], 1));
    }
  assert_false(tb_fate_unknown(op, 1));
  assert_memory_equal(op->peer[1].fate.applied, op->peer[1].rx[0].bits, CHUNKS / 8);
  s[0].ranges--; /* lengths and places that cannot be */
  assert_false(tb_fates_got(c, op, 1, &s[0], page[0], 1));
  s[0].ranges++;
  tb_put32(page[0], CHUNKS + 1);
  assert_false(tb_fates_got(c, op, 1, &s[0], page[0], 1));
  tb_put32(page[0], CHUNKS);
  assert_false(tb_fates_got(c, op, 1, &s[0], page[0], 1));
  op->state = TB_OP_EARLY;
  tb_op_free(c, op, 1);
  cp_free(net);
}

/* Where a peer opened the round without carry its arrays have no place for fates, and the own call fails: nothing said
 * about fates is written there. */
static void mismatch__with_a_round_opened_without_carry(void **state) {
  (void)state;
  cp *net = cp_plain(2);
  static cp_work w[2];
  static float x[2][COUNT];
  assert_int_equal(start(net, 1, &w[1], "k", x[1], 20 * TB_MS), 0);
  cp_until(net, net->now + TB_MS);
  cp_fill(x[0], COUNT, 1, 1);
  tb_call call = cp_call("k", x[0], x[0], COUNT, 20 * TB_MS);
  call.missing = TB_CARRY;
  assert_int_equal(cp_issue(net, 0, &w[0], &call), 0);
  const tb_op *op = tb_op_find(net->core[0], tb_key_hash("k", 1), 0);
  assert_int_equal(op->status, -EPROTO);
  assert_false(tb_fate_unknown(op, 1));
  uint8_t body[TB_RECEIPT_HEAD + TB_SECTION], frame[200];
  tb_receipt_begin(body, 0);
  tb_section s = {.key = op->key->hash, .stage = 1, .flags = TB_R_FATES | TB_R_UNKNOWN};
  tb_section_encode(&s, body + TB_RECEIPT_HEAD);
  tb_receipt_finish(body, 1);
  cp_give(net, 0, frame, cp_forge(net, 1, 0, &(tb_head){.type = TB_T_RECEIPT}, body, sizeof body, frame));
  assert_int_equal(op->peer[1].fate.n, 0);
  cp_wait_all(net, w, 2);
  for (int r = 0; r < 2; r++) assert_int_equal(w[r].o.result.status, -EPROTO);
  cp_work_free(w, 2);
  cp_free(net);
}

static uint32_t dice;
static uint32_t roll(uint32_t sides) { return (dice = dice * 1664525u + 1013904223u) / 65536u % sides; }

static int bursts(cp *net, cp_frame *f) {
  static bool bad[CP_RANKS][CP_RANKS];
  bool *b = &bad[f->src][f->dst];
  *b = *b ? roll(100) >= 20 : roll(100) < 8;
  if (roll(100) < 5) f->at += 2 * net->opt.delay; /* overtaken */
  return *b && roll(100) < 85 ? 0 : roll(100) < 5 ? 2 : 1;
}

/* Rule 15: hundreds of rounds over frames of every type lost in bursts, doubled, overtaken; late ranks. Then quiet
 * rounds. */
static void conserved__over_hundreds_of_faulty_rounds(void **state) {
  (void)state;
  for (uint32_t seed = 1; seed <= 6; seed++) {
    uint32_t n = 2 + seed % 4;
    plan p = {.rule = bursts, .until = UINT64_MAX};
    cp *net = net_of(&p, n, seed & 1, NULL);
    dice = seed;
    double received = 0;
    int asked = 0;
    for (int round = 0; round < 150; round++) {
      for (uint16_t r = 0; r < n; r++) {
        if (r == n - 1 && round % 3 == 0) cp_until(net, net->now + 2 * TB_MS);
        assert_int_equal(begin(net, r, (float)roll(50), TB_SUM, roll(2), 4 * TB_MS), 0);
        for (int i = 0; i < ELEMS; i++) given[i] += (double)x[r][i];
      }
      for (uint16_t r = 0; r < n; r++) {
        cp_wait(net, &w[r]);
        received += w[r].o.result.received;
        asked++;
        assert_int_equal(w[r].o.result.behind, 0);
      }
      collect(net);
      cp_until(net, net->now + TB_MS);
    }
    p.until = net->now;
    for (int i = 0; i < 3; i++) {
      quiet(net);
      carried_round(net, 0, TB_SUM, true);
    }
    if (!conserved(net, 1)) fail_msg("seed %u: totals differ", seed);
    uint64_t deferred = 0, late = 0;
    for (uint32_t r = 0; r < n; r++) {
      deferred += net->core[r]->n.carry_deferred;
      late += net->core[r]->n.late_delivered;
      assert_int_equal(net->core[r]->n.dropped_values, 0);
    }
    assert_true(deferred > 20 && late > 20); /* both had work to do */
    assert_true(received / asked > 0.5 && received / asked < 0.999);
    cp_free(net);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(carry__comes_into_the_next_round_in_full),
    cmocka_unit_test(carry__is_told_and_can_be_left_off),
    cmocka_unit_test(fate__unknown_is_held_until_it_is_told),
    cmocka_unit_test(fate__not_counted_is_learnt_from_the_final_receipt),
    cmocka_unit_test(fate__after_w_silent_rounds_nothing_new_is_sent),
    cmocka_unit_test(limits__are_counted_and_said),
    cmocka_unit_test(limits__memory_cap_at_the_return),
    cmocka_unit_test(limits__not_finite_is_not_carried),
    cmocka_unit_test(forget__drops_and_counts),
    cmocka_unit_test(failed__gives_back_what_it_took),
    cmocka_unit_test(failed__without_memory_is_counted),
    cmocka_unit_test(forget__of_a_round_under_way),
    cmocka_unit_test(skip__keeps_nothing_that_is_not_finite),
    cmocka_unit_test(skip__keeps_what_was_received),
    cmocka_unit_test(call__needs_a_key_a_sum_and_floats),
    cmocka_unit_test(receipt__pages),
    cmocka_unit_test(mismatch__with_a_round_opened_without_carry),
    cmocka_unit_test(conserved__over_hundreds_of_faulty_rounds),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
