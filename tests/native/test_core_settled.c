/* In place, up to the point of no return what is overwritten can be put back; from there on it is committed
 * (gather.c). */
#include "core_round.h"

enum { CHUNK = 16, SHARD = 8 * CHUNK, ALL = 2 * SHARD }; /* two ranks with eight chunks each */

/* Rank 0 gets so many chunks of rank 1's decided shard, repairs included; rank 0's own shard is always complete. */
static int few_decided_of_1(cp *net, cp_frame *f) {
  uint32_t arrive = *(const uint32_t *)net->ctx;
  return !(f->src == 1 && f->h.type == TB_T_DATA && f->h.stage == 2 && f->h.chunk >= arrive);
}

static int late_and_few_decided_of_1(cp *net, cp_frame *f) {
  if (f->src == 1 && f->h.type == TB_T_DATA && f->h.stage == 2) f->at += f->h.chunk * TB_MS / 10;
  return few_decided_of_1(net, f);
}

typedef struct {
  cp *net;
  cp_work w[2];
  float x[2][ALL];
  uint32_t arrive;
} pair;

static void begin_as(pair *p, uint32_t arrive, double least, int consistency) {
  p->net = cp_plain(2);
  p->arrive = arrive;
  p->net->ctx = &p->arrive;
  p->net->fate = few_decided_of_1;
  for (uint16_t r = 0; r < 2; r++) {
    cp_fill(p->x[r], ALL, (float)(1 + r), 1);
    tb_call call = cp_call("k", p->x[r], p->x[r], ALL, 50 * TB_MS);
    call.min_received = least;
    call.consistency = consistency;
    assert_int_equal(cp_issue(p->net, r, &p->w[r], &call), 0);
  }
}

static void begin(pair *p, uint32_t arrive, double least) { begin_as(p, arrive, least, TB_LOCAL); }

static void end(pair *p) {
  cp_wait_all(p->net, p->w, 2);
  cp_work_free(p->w, 2);
  cp_free(p->net);
}

static void expect_sum(const pair *p) {
  assert_int_equal(p->w[0].o.result.status, 0);
  assert_int_equal(p->w[0].o.result.verdict, p->arrive == 8 ? TB_VERDICT_OK : TB_VERDICT_PARTIAL);
  for (uint32_t i = 0; i < ALL; i++) {
    bool came = i < SHARD + p->arrive * CHUNK; /* round 0: shard 0 is rank 0's */
    assert_true(p->w[0].result[i] == (came ? (float)(3 + 2 * i) : 0));
  }
}

static void skip__restores_whatever_was_received(void **state) {
  (void)state;
  for (uint32_t arrive = 0; arrive <= 8; arrive++)
    for (int least = 0; least <= 16; least++) {
      pair p;
      begin(&p, arrive, least / 16.0);
      cp_wait_all(p.net, p.w, 2);
      assert_true(p.w[0].o.result.received == (8 + arrive) / 16.0);
      if (8 + (int)arrive >= least) {
        expect_sum(&p);
      } else {
        assert_int_equal(p.w[0].o.result.verdict, TB_VERDICT_SKIP);
        cp_expect(p.w[0].result, ALL, 1, 1);
      }
      end(&p);
    }
}

static void settled__nothing_is_saved_any_more(void **state) {
  (void)state;
  pair p;
  begin(&p, 7, 11 / 16.0);
  p.net->fate = late_and_few_decided_of_1; /* one each 100 us */
  tb_op *op = p.net->core[0]->ops;
  for (uint64_t stop = p.net->now + 40 * TB_MS; !op->settled && p.net->now < stop;) cp_until(p.net, p.net->now + 10000);
  assert_true(op->settled && op->peer[1].rx[1].got == 3);
  memset(op->save, 0xee, ALL * sizeof(float));
  uint8_t before[ALL * sizeof(float)];
  memcpy(before, op->save, sizeof before);
  cp_until(p.net, p.net->now + 2 * TB_MS);
  assert_int_equal(op->peer[1].rx[1].got, 7);
  assert_memory_equal(op->save, before, sizeof before);
  cp_wait_all(p.net, p.w, 2);
  expect_sum(&p);
  end(&p);
}

static void not_settled__while_a_peer_may_mismatch(void **state) {
  (void)state;
  cp *net = cp_plain(3);
  cp_work w[2];
  float x[2][COUNT];
  for (uint16_t r = 0; r < 2; r++) {
    cp_fill(x[r], COUNT, (float)(1 + r), 1);
    tb_call call = cp_call("k", x[r], x[r], COUNT, r ? 10 * TB_MS : 40 * TB_MS);
    call.min_received = 0;
    assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
  }
  cp_until(net, net->now + 15 * TB_MS); /* rank 1 has closed its shard, and is done */
  assert_true(w[1].done && !w[0].done && net->core[0]->ops->received_sum > 0);
  assert_false(net->core[0]->ops->settled); /* rank 2 has not said what it takes this round for */
  float other[COUNT + 1];
  cp_work third;
  tb_call call = cp_call("k", other, other, COUNT + 1, EXACT);
  cp_fill(other, COUNT + 1, 3, 1);
  assert_int_equal(cp_issue(net, 2, &third, &call), 0);
  cp_wait(net, &w[0]);
  assert_int_equal(w[0].o.result.status, -EPROTO);
  cp_expect(w[0].result, COUNT, 1, 1);
  cp_wait(net, &third);
  assert_int_equal(third.o.result.status, -EPROTO);
  cp_work_free(w, 2);
  cp_work_free(&third, 1);
  cp_free(net);
}

static void error_from_1(cp *net, const tb_op *op) {
  uint8_t body[TB_CONTROL_MAX], frame[TB_HEAD + TB_CONTROL_MAX];
  tb_error_body e = {.status = -EHOSTDOWN, .rank_a = 1, .rank_b = 0, .text_len = 4, .text = "dead"};
  tb_head h = {.type = TB_T_ERROR, .key = op->key->hash, .round = op->round, .signature = op->sig_hash,
               .hold_us = TB_HOLD_NONE,
               .remaining_us = TB_REMAINING_NONE, .credit = 256};
  cp_give(net, 0, frame, cp_forge(net, 1, 0, &h, body, tb_error_encode(&e, body, sizeof body), frame));
}

/* Before: the error, and the input. After: what came so far, and the error at the next call. Never some of each. */
static void error__before_and_after(void **state) {
  (void)state;
  for (int after = 0; after < 2; after++) {
    pair p;
    begin(&p, 3, after ? 0.5 : 0.9);
    cp_until(p.net, p.net->now + 10 * TB_MS);
    tb_op *op = p.net->core[0]->ops;
    assert_int_equal(op->settled, after);
    error_from_1(p.net, op);
    assert_true(p.w[0].done);
    if (after) {
      assert_false(p.w[0].o.result.deadline_hit);
      expect_sum(&p);
    } else {
      assert_int_equal(p.w[0].o.result.status, -EHOSTDOWN);
      cp_expect(p.w[0].result, ALL, 1, 1);
    }
    cp_wait(p.net, &p.w[1]);
    cp_work next;
    float x[ALL] = {0};
    tb_call call = cp_call("k", x, x, ALL, 10 * TB_MS);
    int rc = cp_issue(p.net, 0, &next, &call);
    assert_int_equal(rc, after ? -EHOSTDOWN : 0);
    if (rc) assert_string_equal(next.o.error, "dead");
    else cp_wait(p.net, &next);
    cp_work_free(&next, 1);
    end(&p);
  }
}

static void cancel__before_and_after(void **state) {
  (void)state;
  for (int after = 0; after < 2; after++) {
    pair p;
    begin(&p, 3, after ? 0.5 : 0.9);
    cp_until(p.net, p.net->now + 10 * TB_MS);
    tb_core_cancel(p.net->core[0], &p.w[0].o, -ECANCELED, "the caller said so", p.net->now);
    assert_true(p.w[0].done);
    if (after) {
      expect_sum(&p);
    } else {
      assert_int_equal(p.w[0].o.result.status, -ECANCELED);
      cp_expect(p.w[0].result, ALL, 1, 1);
    }
    cp_wait(p.net, &p.w[1]);
    cp_work next; /* it was this rank's own wish: the next call is not told */
    float x[ALL] = {0};
    tb_call call = cp_call("k", x, x, ALL, 10 * TB_MS);
    assert_int_equal(cp_issue(p.net, 0, &next, &call), 0);
    cp_wait(p.net, &next);
    cp_work_free(&next, 1);
    end(&p);
  }
}

/* It may still fail after its deadline, for want of an owner, and must then restore. */
static void agreed__is_never_settled(void **state) {
  (void)state;
  pair p;
  begin_as(&p, 3, 0.5, TB_AGREE);
  cp_until(p.net, p.net->now + 60 * TB_MS); /* past the deadline: the rest is repaired, in vain */
  assert_int_equal(p.net->core[0]->ops->peer[1].rx[1].got, 3);
  tb_core_cancel(p.net->core[0], &p.w[0].o, -ECANCELED, "the caller said so", p.net->now);
  assert_int_equal(p.w[0].o.result.status, -ECANCELED);
  cp_expect(p.w[0].result, ALL, 1, 1);
  end(&p);
}

/* Chunks that a link still refers to wait in the save area even then, and neither an error nor a cancellation that
 * comes while the call waits for them tears the result. */
static void refs__wait_after_it_too(void **state) {
  (void)state;
  for (int how = 0; how < 3; how++) {
    cp *net = cp_new(&(cp_options){.n = 2, .chunk_bytes = 64, .window = 256, .delay = 20000, .async_refs = true,
                                   .ref_hold = 8 * TB_MS});
    cp_work w[2];
    float x[2][COUNT];
    for (uint16_t r = 0; r < 2; r++) {
      cp_fill(x[r], COUNT, (float)(1 + r), 1);
      tb_call call = cp_call("k", x[r], x[r], COUNT, 5 * TB_MS);
      call.min_received = 0;
      assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
    }
    cp_until(net, net->now + 6 * TB_MS);
    tb_op *op = net->core[0]->ops;
    assert_true(op->settled && op->state == TB_OP_FINISHING && !w[0].done);
    cp_expect(x[0] + COUNT / 2, COUNT / 2, 1 + COUNT / 2, 1); /* what the link still reads */
    if (how == 1) error_from_1(net, op);
    if (how == 2) tb_core_cancel(net->core[0], &w[0].o, -ECANCELED, "the caller said so", net->now);
    cp_wait_all(net, w, 2);
    assert_int_equal(w[0].o.result.status, 0);
    assert_int_equal(w[0].o.result.verdict, TB_VERDICT_PARTIAL);
    for (int i = 0; i < COUNT; i++) assert_true(w[0].result[i] == (float)(2 * (i < COUNT / 2 ? 1 + i : 2 + i)));
    cp_work_free(w, 2);
    cp_free(net);
  }
}

/* Everybody left, but what had come would do if they were all still there. */
static void goodbyes__leave_what_suffices(void **state) {
  (void)state;
  for (int enough = 0; enough < 2; enough++) {
    pair p;
    begin(&p, 3, enough ? 11 / 16.0 : 12 / 16.0);
    cp_until(p.net, p.net->now + 10 * TB_MS);
    assert_int_equal(p.net->core[0]->ops->settled, enough);
    tb_core_goodbye(p.net->core[1]);
    cp_wait(p.net, &p.w[0]);
    assert_true(p.net->core[0]->peer[1].gone);
    if (enough) {
      expect_sum(&p);
    } else {
      assert_int_equal(p.w[0].o.result.verdict, TB_VERDICT_SKIP);
      cp_expect(p.w[0].result, ALL, 1, 1);
    }
    end(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(skip__restores_whatever_was_received),
    cmocka_unit_test(settled__nothing_is_saved_any_more),
    cmocka_unit_test(not_settled__while_a_peer_may_mismatch),
    cmocka_unit_test(error__before_and_after),
    cmocka_unit_test(cancel__before_and_after),
    cmocka_unit_test(agreed__is_never_settled),
    cmocka_unit_test(refs__wait_after_it_too),
    cmocka_unit_test(goodbyes__leave_what_suffices),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
