/* hadamard: an operation in the transformed domain, in and out of it without a trace, and what loss costs then. */
#include <math.h>
#include "core_pair.h"

enum { RANKS = 3, MOST = 9000 };
static const uint64_t SOON = 50 * TB_MS;

static float value(uint32_t rank, uint32_t i) { return sinf((float)(i * 7 + rank * 131)) * (1 + (float)rank); }

static double sum_of(uint32_t i) {
  double s = 0;
  for (uint32_t r = 0; r < RANKS; r++) s += (double)value(r, i);
  return s;
}

static tb_call call_of(const float *in, float *out, uint64_t count) {
  tb_call call = cp_call("k", in, out, count, SOON);
  call.hadamard = 1;
  return call;
}

static cp *net_of(void) {
  return cp_new(&(cp_options){.n = RANKS, .chunk_bytes = 256, .window = 4096, .delay = 100000});
}

static float in[RANKS][MOST], out[RANKS][MOST];

static void issue_all(cp *net, cp_work *w, uint64_t count, bool in_place, int wire) {
  for (uint16_t r = 0; r < RANKS; r++) {
    for (uint32_t i = 0; i < count; i++) in[r][i] = value(r, i);
    tb_call call = call_of(in[r], in_place ? in[r] : out[r], count);
    call.wire_dtype = wire;
    assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
  }
}

static double worst_of(const cp_work *w, uint64_t count) {
  double worst = 0;
  for (uint32_t i = 0; i < count; i++) worst = fmax(worst, fabs((double)w->result[i] - sum_of(i)));
  return worst;
}

static void hadamard__lossless_it_is_the_plain_sum(void **state) {
  (void)state;
  static const uint64_t counts[] = {0, 1, 2, 3, 31, 32, 100, 1000, 4095, 4096, 8999};
  for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
    for (int in_place = 0; in_place < 2; in_place++) {
      static cp_work w[RANKS];
      cp *net = net_of();
      issue_all(net, w, counts[k], in_place, 0);
      cp_wait_all(net, w, RANKS);
      for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(w[r].o.result.verdict, TB_VERDICT_OK);
        if (counts[k]) assert_memory_equal(w[r].result, w[0].result, counts[k] * sizeof(float));
      }
      if (counts[k]) assert_true(worst_of(&w[0], counts[k]) < 2e-5);
      cp_until(net, net->now + 10 * TB_SEC);
      for (uint32_t r = 0; r < RANKS; r++) assert_int_equal(net->core[r]->memory, 0);
      cp_work_free(w, RANKS);
      cp_free(net);
    }
}

/* What travels is the transform: of a lone large element, chunks of many small ones. */
static int look(cp *net, cp_frame *f) {
  float *most = net->ctx, x;
  for (uint32_t i = 0; f->h.type == TB_T_DATA && i < (f->len - TB_HEAD) / sizeof x; i++) {
    memcpy(&x, f->data + TB_HEAD + i * sizeof x, sizeof x);
    *most = fmaxf(*most, fabsf(x));
  }
  return 1;
}

static void hadamard__spreads_what_travels_with_signs_of_the_round(void **state) {
  (void)state;
  static float first[MOST];
  for (int round = 0; round < 2; round++) {
    static cp_work w[RANKS];
    float most = 0;
    cp *net = net_of();
    net->fate = look;
    net->ctx = &most;
    for (int turn = 0; turn <= round; turn++) {
      for (uint16_t r = 0; r < RANKS; r++) {
        memset(in[r], 0, sizeof in[r]);
        in[r][77] = 64;
        in[r][78] = 1;
        tb_call call = call_of(in[r], in[r], 4096);
        assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
      }
      if (turn == round && !round) memcpy(first, net->core[0]->ops->work, sizeof(float) * 4096);
      if (turn == round && round) assert_memory_not_equal(first, net->core[0]->ops->work, sizeof(float) * 4096);
      cp_wait_all(net, w, RANKS);
      assert_true(fabsf(w[0].result[77] - 192) < 1e-3f);
      cp_work_free(w, RANKS);
    }
    assert_true(most > 0.9f && most < 4);
    cp_free(net);
  }
}

/* All transmissions of some decided chunks of rank 1's shard are lost on the way to rank 0. */
static int lose_decided(cp *net, cp_frame *f) {
  (void)net;
  bool decided = f->h.type == TB_T_DATA && f->h.stage == 2;
  return decided && f->src == 1 && f->dst == 0 && f->h.chunk < 6 ? 0 : 1;
}

static void hadamard__loss_costs_all_a_little_instead_of_a_few_all(void **state) {
  (void)state;
  enum { COUNT = 8192, FIRST = 2731, LOST = 6 * 64 }; /* lost: the first of shard 1, and the largest */
  double worst[2] = {0}, bias = 0;
  for (int on = 0; on < 2; on++) {
    static cp_work w[RANKS];
    cp *net = net_of();
    net->fate = lose_decided;
    for (uint16_t r = 0; r < RANKS; r++) {
      for (uint32_t i = 0; i < COUNT; i++) in[r][i] = value(r, i) * (i - FIRST < LOST ? 10 : 1);
      tb_call call = call_of(in[r], in[r], COUNT);
      call.hadamard = on;
      assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
    }
    cp_wait_all(net, w, RANKS);
    assert_int_equal(w[0].o.result.verdict, TB_VERDICT_PARTIAL);
    assert_int_equal(w[1].o.result.verdict, TB_VERDICT_OK);
    uint8_t mask[COUNT];
    uint32_t there = 0;
    tb_outcome_mask(&w[0].o, mask);
    for (uint32_t i = 0; i < COUNT; i++) there += mask[i];
    assert_int_equal(there, on ? COUNT : COUNT - LOST); /* each block has some coefficient */
    double dot = 0, square = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
      double right = sum_of(i) * (i - FIRST < LOST ? 10 : 1);
      worst[on] = fmax(worst[on], fabs((double)w[0].result[i] - right));
      dot += (double)w[0].result[i] * right;
      square += right * right;
    }
    if (on) bias = dot / square;
    cp_work_free(w, RANKS);
    cp_free(net);
  }
  assert_true(worst[0] > 25); /* the missing elements themselves */
  assert_true(worst[1] < worst[0] / 4);
  assert_true(fabs(bias - 1) < 0.03); /* blocks are scaled up by what is missing: 4.7 % */
}

/* Where nothing came stands a zero, and not the own contribution that lay there. */
static void hadamard__what_is_missing_is_zero(void **state) {
  (void)state;
  static cp_work w[RANKS];
  cp *net = net_of();
  net->fate = lose_decided;
  for (uint16_t r = 0; r < RANKS; r++) {
    for (uint32_t i = 0; i < 8192; i++) in[r][i] = r == 2 ? 0 : r ? -value(0, i) : value(0, i);
    tb_call call = call_of(in[r], out[r], 8192);
    assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
  }
  cp_wait_all(net, w, RANKS);
  assert_int_equal(w[0].o.result.verdict, TB_VERDICT_PARTIAL);
  for (uint32_t i = 0; i < 8192; i++) assert_true(fabsf(w[0].result[i]) < 1e-6f);
  cp_work_free(w, RANKS);
  cp_free(net);
}

static void hadamard__skip_leaves_the_input(void **state) {
  (void)state;
  for (int in_place = 0; in_place < 2; in_place++) {
    cp_work w;
    cp *net = net_of();
    net->stopped[1] = net->stopped[2] = true;
    for (uint32_t i = 0; i < 5000; i++) in[0][i] = value(0, i);
    tb_call call = call_of(in[0], in_place ? in[0] : out[0], 5000);
    assert_int_equal(cp_issue(net, 0, &w, &call), 0);
    cp_wait(net, &w);
    assert_int_equal(w.o.result.verdict, TB_VERDICT_SKIP);
    for (uint32_t i = 0; i < 5000; i++) assert_true(w.result[i] == value(0, i));
    cp_work_free(&w, 1);
    cp_free(net);
  }
}

static void hadamard__cancel_touches_nothing(void **state) {
  (void)state;
  static cp_work w[RANKS];
  cp *net = net_of();
  issue_all(net, w, 5000, true, 0);
  cp_until(net, net->now + 150000); /* contributions have come */
  assert_int_equal(w[0].done, 0);
  tb_core_cancel(net->core[0], &w[0].o, -ECANCELED, "test", net->now);
  cp_wait(net, &w[0]);
  assert_int_equal(w[0].o.result.status, -ECANCELED);
  for (uint32_t i = 0; i < 5000; i++) assert_true(w[0].result[i] == value(0, i));
  cp_wait_all(net, w + 1, RANKS - 1);
  cp_work_free(w, RANKS);
  cp_free(net);
}

/* Rank 0 returns before rank 2 has any of its contribution and without rank 2's shard; what it then repairs is what it
 * had sent, although zeros had to be there for the inverse. */
typedef struct { uint64_t until; uint8_t first[256][256]; bool seen[256]; int repaired; } late;

static int hold_back(cp *net, cp_frame *f) {
  late *l = net->ctx;
  bool out_of_0 = f->src == 0 && f->dst == 2, into_0 = f->src == 2 && f->dst == 0;
  if (out_of_0 && f->h.type == TB_T_RECEIPT) return 0; /* "returned here": rank 2 would close without the rest */
  if (!out_of_0 || f->h.type != TB_T_DATA || f->h.stage != 1) return into_0 && net->now < l->until ? 0 : 1;
  if (l->seen[f->h.chunk]) assert_memory_equal(l->first[f->h.chunk], f->data + TB_HEAD, f->len - TB_HEAD);
  memcpy(l->first[f->h.chunk], f->data + TB_HEAD, f->len - TB_HEAD);
  l->seen[f->h.chunk] = true;
  if (net->now < l->until) return 0;
  l->repaired++;
  return 1;
}

static void hadamard__repairs_after_the_return_send_what_was_sent(void **state) {
  (void)state;
  static cp_work w[RANKS];
  cp *net = net_of();
  late *l = calloc(1, sizeof *l);
  net->fate = hold_back;
  net->ctx = l;
  for (uint16_t r = 0; r < RANKS; r++) {
    for (uint32_t i = 0; i < 5000; i++) in[r][i] = value(r, i);
    tb_call call = call_of(in[r], in[r], 5000);
    call.min_received = 0;
    if (r == 2) call.deadline_ns = 10 * SOON; /* it waits for more */
    if (r == 1) call.deadline_ns = 10 * SOON;
    l->until = net->now + SOON + TB_MS;
    assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
  }
  cp_wait_all(net, w, RANKS);
  assert_int_equal(w[0].o.result.verdict, TB_VERDICT_PARTIAL);
  assert_true(l->repaired > 10);
  assert_true(w[2].o.per_peer[0][0] == 1);
  cp_work_free(w, RANKS);
  cp_free(net);
  free(l);
}

/* Rank 0's contributions wait for a slow device when the others, who are in a hurry, hand out what they decided without
 * them: it takes their place in memory, and they must not leave any more. (The wire checks what leaves.) */
static void hadamard__what_was_overwritten_is_not_sent(void **state) {
  (void)state;
  static cp_work w[RANKS];
  cp *net = cp_new(&(cp_options){.n = RANKS, .chunk_bytes = 256, .window = 4096, .delay = 10000, .ring = 2});
  for (uint16_t r = 0; r < RANKS; r++) {
    for (uint32_t i = 0; i < MOST; i++) in[r][i] = value(r, i);
    tb_call call = call_of(in[r], in[r], MOST);
    if (r) call.deadline_ns = 300000;
    if (r) net->room[r] = 1 << 20, net->refill[r] = UINT64_MAX;
    assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
  }
  cp_wait_all(net, w, RANKS);
  assert_true(w[1].o.per_peer[0][0] < 0.9);
  assert_true(w[1].o.per_peer[0][2] == 1);
  assert_true(w[0].o.per_peer[1][1] == 1);
  cp_work_free(w, RANKS);
  cp_free(net);
}

static void hadamard__with_a_wire_dtype(void **state) {
  (void)state;
  static const tb_dtype wires[] = {TB_BF16, TB_F16, TB_I8};
  for (int at = 0; at < 3; at++) {
    static cp_work w[RANKS];
    cp *net = net_of();
    issue_all(net, w, 5000, true, wires[at]);
    cp_wait_all(net, w, RANKS);
    for (uint32_t r = 0; r < RANKS; r++) assert_memory_equal(w[r].result, w[0].result, 5000 * sizeof(float));
    double worst = worst_of(&w[0], 5000);
    assert_true(worst > 0 && worst < 0.4);
    cp_work_free(w, RANKS);
    cp_free(net);
  }
}

static void hadamard__exact_calls_ignore_it(void **state) {
  (void)state;
  static cp_work w[RANKS];
  cp *net = net_of();
  for (uint16_t r = 0; r < RANKS; r++) {
    cp_fill(in[r], 1000, (float)r, 1);
    tb_call call = call_of(in[r], in[r], 1000);
    call.deadline_ns = UINT64_MAX;
    assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
    assert_null(net->core[r]->ops->work);
  }
  cp_wait_all(net, w, RANKS);
  cp_expect(w[1].result, 1000, 3, 3);
  cp_work_free(w, RANKS);
  cp_free(net);
}

static void hadamard__ranks_that_disagree_are_told(void **state) {
  (void)state;
  static cp_work w[RANKS];
  cp *net = net_of();
  for (uint16_t r = 0; r < RANKS; r++) {
    for (uint32_t i = 0; i < 100; i++) in[r][i] = value(r, i);
    tb_call call = call_of(in[r], in[r], 100);
    call.hadamard = r != 1;
    assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
  }
  cp_wait_all(net, w, RANKS);
  for (uint32_t r = 0; r < RANKS; r++) {
    assert_int_equal(w[r].o.result.status, -EPROTO);
    assert_non_null(strstr(w[r].o.error, "hadamard=2^12"));
    for (uint32_t i = 0; i < 100; i++) assert_true(w[r].result[i] == value(r, i));
  }
  cp_work_free(w, RANKS);
  cp_free(net);
}

static void hadamard__prepared_for_this_round_or_another(void **state) {
  (void)state;
  cp *net = net_of();
  for (int round = 0; round < 3; round++) {
    static cp_work w[RANKS];
    for (uint16_t r = 0; r < RANKS; r++) {
      tb_call call = call_of(in[r], in[r], 5000), other = cp_call("k", in[r], in[r], 5000, SOON);
      for (uint32_t i = 0; i < 5000; i++) in[r][i] = value(r, i);
      tb_outcome o = {0};
      other.hadamard = 1;
      assert_int_equal(tb_core_prepare(net->core[r], &other, &o), 1);
      assert_int_equal(net->core[r]->memory >= 20000, 1);
      tb_core_transform(&other, &o);
      if (round == 1) o.transform->round++, o.transform->plan.seed++; /* it was guessed wrong */
      w[r] = (cp_work){.net = net, .rank = r, .in = in[r], .out = in[r], .in_bytes = 20000, .out_bytes = 20000, .o = o};
      assert_int_equal(tb_core_issue(net->core[r], &call, net->now, net->now, &w[r].o), 0);
      assert_null(w[r].o.prepared);
    }
    cp_wait_all(net, w, RANKS);
    assert_true(worst_of(&w[0], 5000) < 2e-5);
    cp_work_free(w, RANKS);
  }
  tb_call call = call_of(in[0], in[0], 5000);
  cp_until(net, net->now + 10 * TB_SEC);
  tb_outcome o = {0};
  assert_int_equal(tb_core_prepare(net->core[0], &call, &o), 1);
  tb_core_unprepare(net->core[0], &o);
  assert_int_equal(net->core[0]->memory, 0);
  tb_outcome_free(&o);
  assert_int_equal(tb_core_prepare(net->core[0], &call, &o), 1);
  call.redop = TB_MAX; /* refused */
  assert_int_equal(tb_core_issue(net->core[0], &call, net->now, net->now, &o), -EINVAL);
  assert_int_equal(net->core[0]->memory, 0);
  assert_null(o.transform);
  cp_free(net);
}

static void hadamard__deadline_is_earlier_by_what_the_inverse_takes(void **state) {
  (void)state;
  enum { COUNT = 20000 };
  static float x[COUNT];
  cp_work w;
  cp *net = net_of();
  net->stopped[1] = net->stopped[2] = true;
  tb_core_note_commit(net->core[0], COUNT * sizeof *x, true, 8 * TB_MS);
  tb_call call = call_of(x, x, COUNT);
  uint64_t issued = net->now;
  assert_int_equal(cp_issue(net, 0, &w, &call), 0);
  cp_wait(net, &w);
  assert_in_range(w.done_at, issued + SOON - 8 * TB_MS, issued + SOON - 8 * TB_MS + 1000);
  assert_int_equal(w.o.result.deadline_ns, SOON);
  cp_work_free(&w, 1);
  cp_free(net);
}

static void hadamard__memory_is_counted(void **state) {
  (void)state;
  cp_work w;
  cp *net = net_of();
  tb_call call = call_of(in[0], out[0], 5000);
  net->core[0]->tune.memory_cap = 20000;
  assert_int_equal(cp_issue(net, 0, &w, &call), -EAGAIN);
  net->core[0]->tune.memory_cap = 1 << 20;
  assert_int_equal(cp_issue(net, 0, &w, &call), 0);
  assert_true(net->core[0]->memory > 20000 + 20000 / RANKS);
  tb_core_cancel(net->core[0], &w.o, -ECANCELED, "test", net->now);
  cp_wait(net, &w);
  cp_work_free(&w, 1);
  cp_free(net);
}

static void hadamard__only_for_sums_of_wide_floats(void **state) {
  (void)state;
  cp *net = net_of();
  const tb_call wrong[] = {
    {.kind = TB_ALL_REDUCE, .dtype = TB_F16, .hadamard = 1},
    {.kind = TB_ALL_REDUCE, .dtype = TB_I32, .hadamard = 1},
    {.kind = TB_ALL_REDUCE, .dtype = TB_F32, .redop = TB_MAX, .hadamard = 1},
    {.kind = TB_BROADCAST, .dtype = TB_F32, .hadamard = 1},
    {.kind = TB_ALL_REDUCE, .dtype = TB_F32, .hadamard = 2},
    {.kind = TB_ALL_REDUCE, .dtype = TB_F32, .hadamard = -1},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    tb_call call = wrong[i];
    tb_outcome o = {0};
    call.count = 4;
    call.in = in[0];
    call.out = out[0];
    call.deadline_ns = SOON;
    assert_int_equal(tb_core_issue(net->core[0], &call, net->now, net->now, &o), -EINVAL);
    assert_non_null(strstr(o.error, "Hadamard"));
  }
  uint8_t frame[TB_HEAD + 256], body[256];
  tb_open o = {.key_len = 1, .key = "q"};
  o.sig = (tb_signature){.kind = TB_ALL_REDUCE, .chunk_elems = 64, .count = 100};
  static const uint8_t none[] = {1, 10, 16, 255};
  for (uint64_t i = 0; i < 5; i++) {
    o.sig.hadamard = i < 4 ? none[i] : 12;
    o.sig.exact = i == 4;
    tb_head h = {.type = TB_T_OPEN, .key = tb_key_hash("q", 1), .signature = tb_signature_hash(&o.sig)};
    cp_give(net, 0, frame, cp_forge(net, 1, 0, &h, body, tb_open_encode(&o, body, sizeof body), frame));
    assert_int_equal(tb_core_counters(net->core[0])->bad_body, i + 1);
  }
  cp_free(net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(hadamard__lossless_it_is_the_plain_sum),
    cmocka_unit_test(hadamard__spreads_what_travels_with_signs_of_the_round),
    cmocka_unit_test(hadamard__loss_costs_all_a_little_instead_of_a_few_all),
    cmocka_unit_test(hadamard__what_is_missing_is_zero),
    cmocka_unit_test(hadamard__skip_leaves_the_input),
    cmocka_unit_test(hadamard__cancel_touches_nothing),
    cmocka_unit_test(hadamard__repairs_after_the_return_send_what_was_sent),
    cmocka_unit_test(hadamard__what_was_overwritten_is_not_sent),
    cmocka_unit_test(hadamard__with_a_wire_dtype),
    cmocka_unit_test(hadamard__exact_calls_ignore_it),
    cmocka_unit_test(hadamard__ranks_that_disagree_are_told),
    cmocka_unit_test(hadamard__prepared_for_this_round_or_another),
    cmocka_unit_test(hadamard__deadline_is_earlier_by_what_the_inverse_takes),
    cmocka_unit_test(hadamard__memory_is_counted),
    cmocka_unit_test(hadamard__only_for_sums_of_wide_floats),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
