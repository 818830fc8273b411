/* Wire dtypes: a float32 sum or average that travels as bfloat16, float16 or int8. */
#include <math.h>
#include "core_pair.h"

enum { RANKS = 3, ELEMS = 1000 };
static const uint64_t SOON = 50 * TB_MS;
static const tb_dtype WIRES[] = {TB_BF16, TB_F16, TB_I8};
static const double STEP[] = {1.0 / 128, 1.0 / 1024, 1.0 / 127}; /* of one rounding, relative to the largest value */

static float value(uint32_t rank, uint32_t i) { return sinf((float)(i * 7 + rank * 131)) * (1 + (float)rank); }

static float sum(uint32_t ranks, uint32_t i) {
  float s = 0;
  for (uint32_t r = 0; r < ranks; r++) s += value(r, i);
  return s;
}

static tb_call call_of(const char *key, const float *in, float *out, tb_dtype wire, uint64_t deadline) {
  tb_call call = cp_call(key, in, out, ELEMS, deadline);
  call.wire_dtype = (int32_t)wire;
  return call;
}

static void issue_all(cp *net, cp_work *w, float x[][ELEMS], const char *key, tb_dtype wire, uint64_t deadline) {
  for (uint16_t r = 0; r < net->n; r++) {
    for (uint32_t i = 0; i < ELEMS; i++) x[r][i] = value(r, i);
    tb_call call = call_of(key, x[r], x[r], wire, deadline);
    assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
  }
}

static uint64_t bytes_sent(const cp *net) {
  uint64_t all = 0;
  for (uint16_t r = 0; r < net->n; r++)
    for (uint16_t p = 0; p < net->n; p++) all += tb_core_peer_counters(net->core[r], p)->bytes_sent;
  return all;
}

static void wire__all_ranks_get_the_same_and_it_is_near(void **state) {
  (void)state;
  for (int at = 0; at < 3; at++)
    for (int exact = 0; exact < 2; exact++) {
      static cp_work w[RANKS];
      static float x[RANKS][ELEMS];
      cp *net = cp_plain(RANKS);
      issue_all(net, w, x, "k", WIRES[at], exact ? UINT64_MAX : SOON);
      cp_wait_all(net, w, RANKS);
      for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(w[r].o.result.status, 0);
        assert_int_equal(w[r].o.result.verdict, TB_VERDICT_OK);
        assert_memory_equal(w[r].result, w[0].result, sizeof x[0]);
      }
      double worst = 0; /* largest values: 1 + 2 + 3; each is rounded once, and their sum once */
      for (uint32_t i = 0; i < ELEMS; i++) worst = fmax(worst, fabs((double)w[0].result[i] - (double)sum(RANKS, i)));
      assert_true(worst <= 2 * 6 * STEP[at]);
      assert_true(worst > 0);
      cp_work_free(w, RANKS);
      cp_free(net);
    }
}

static void wire__half_and_quarter_of_the_bytes(void **state) {
  (void)state;
  static const tb_dtype wires[] = {TB_F32, TB_BF16, TB_F16, TB_I8};
  static const double shares[] = {1, 0.5, 0.5, 0.25};
  double whole = 0;
  for (int at = 0; at < 4; at++) {
    static cp_work w[RANKS];
    static float x[RANKS][ELEMS];
    cp *net = cp_new(&(cp_options){.n = RANKS, .chunk_bytes = 1024, .window = 256, .delay = 100000});
    issue_all(net, w, x, "k", wires[at], SOON);
    cp_wait_all(net, w, RANKS);
    if (at == 0) whole = (double)bytes_sent(net);
    double share = (double)bytes_sent(net) / whole;
    assert_true(share >= shares[at] && share < shares[at] + 0.005); /* a scale per packet of int8 */
    cp_work_free(w, RANKS);
    cp_free(net);
  }
}

/* The first transmission of some chunks is lost; every payload of one chunk is the same, whenever it is sent. */
typedef struct { uint8_t pay[RANKS][RANKS][2][64][64]; bool seen[RANKS][RANKS][2][64]; int repeated; } payloads;

static int lose_first(cp *net, cp_frame *f) {
  payloads *s = net->ctx;
  if (f->h.type != TB_T_DATA) return 1;
  assert_true(f->h.chunk < 64);
  uint32_t len = f->len - TB_HEAD, to = f->h.stage == 2 ? 0 : f->dst; /* decided bytes are the same for all */
  uint8_t *pay = s->pay[f->src][to][f->h.stage - 1][f->h.chunk];
  bool *seen = &s->seen[f->src][to][f->h.stage - 1][f->h.chunk], first = !*seen;
  assert_true(len <= 64);
  if (*seen) assert_memory_equal(pay, f->data + TB_HEAD, len);
  s->repeated += *seen;
  memcpy(pay, f->data + TB_HEAD, len);
  *seen = true;
  return first && f->h.chunk % 3 == 1 ? 0 : 1;
}

static void wire__repairs_send_the_same_bytes(void **state) {
  (void)state;
  for (int at = 0; at < 3; at++) {
    static cp_work w[RANKS];
    static float x[RANKS][ELEMS];
    payloads *s = calloc(1, sizeof *s);
    cp *net = cp_plain(RANKS);
    net->fate = lose_first;
    net->ctx = s;
    issue_all(net, w, x, "k", WIRES[at], SOON);
    cp_wait_all(net, w, RANKS);
    for (uint32_t r = 0; r < RANKS; r++) assert_int_equal(w[r].o.result.verdict, TB_VERDICT_OK);
    assert_true(s->repeated > 5);
    cp_until(net, net->now + TB_SEC);
    cp_work_free(w, RANKS);
    cp_free(net);
    free(s);
  }
}

static void wire__int8_is_right_in_the_mean(void **state) {
  (void)state;
  enum { ROUNDS = 400 };
  double bias[ELEMS] = {0}, square = 0;
  cp *net = cp_plain(RANKS);
  for (int round = 0; round < ROUNDS; round++) {
    static cp_work w[RANKS];
    static float x[RANKS][ELEMS];
    issue_all(net, w, x, "k", TB_I8, SOON);
    cp_wait_all(net, w, RANKS);
    for (uint32_t i = 0; i < ELEMS; i++) {
      double error = (double)w[0].result[i] - (double)sum(RANKS, i);
      bias[i] += error / ROUNDS;
      square += error * error / ROUNDS / ELEMS;
    }
    cp_work_free(w, RANKS);
    cp_until(net, net->now + TB_MS);
  }
  double off = 0;
  for (uint32_t i = 0; i < ELEMS; i++) off += bias[i] * bias[i] / ELEMS;
  assert_true(square > 1e-5); /* it does round */
  /* The mean of R independent errors has 1/R of their square; a bias, or one seed used again and again, would show. */
  assert_in_range((uint64_t)(1000 * off * ROUNDS / square), 800, 1200);
  cp_free(net);
}

static void wire__values_that_are_not_finite(void **state) {
  (void)state;
  for (int at = 0; at < 3; at++) {
    static cp_work w[RANKS];
    static float x[RANKS][ELEMS];
    cp *net = cp_plain(RANKS);
    for (uint16_t r = 0; r < RANKS; r++) {
      for (uint32_t i = 0; i < ELEMS; i++) x[r][i] = r == 1 && i == 500 ? INFINITY : 1;
      tb_call call = call_of("k", x[r], x[r], WIRES[at], SOON);
      assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
    }
    cp_wait_all(net, w, RANKS);
    for (uint32_t r = 0; r < RANKS; r++) {
      assert_false(isfinite(w[r].result[500]));
      assert_true(isfinite(w[r].result[0]) && isfinite(w[r].result[ELEMS - 1]));
    }
    cp_work_free(w, RANKS);
    cp_free(net);
  }
}

static void wire__skip_restores_the_input(void **state) {
  (void)state;
  cp_work w;
  static float x[ELEMS];
  cp *net = cp_plain(RANKS);
  net->stopped[1] = net->stopped[2] = true;
  for (uint32_t i = 0; i < ELEMS; i++) x[i] = value(0, i);
  tb_call call = call_of("k", x, x, TB_I8, SOON);
  assert_int_equal(cp_issue(net, 0, &w, &call), 0);
  cp_wait(net, &w);
  assert_int_equal(w.o.result.verdict, TB_VERDICT_SKIP);
  for (uint32_t i = 0; i < ELEMS; i++) assert_true(w.result[i] == value(0, i));
  cp_work_free(&w, 1);
  cp_free(net);
}

static void wire__ranks_that_disagree_are_told(void **state) {
  (void)state;
  cp_work w[2];
  static float x[2][ELEMS];
  cp *net = cp_plain(2);
  for (uint16_t r = 0; r < 2; r++) {
    tb_call call = call_of("k", x[r], x[r], r ? TB_I8 : TB_F32, SOON);
    assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
  }
  cp_wait_all(net, w, 2);
  for (int r = 0; r < 2; r++) {
    assert_int_equal(w[r].o.result.status, -EPROTO);
    assert_non_null(strstr(w[r].o.error, "wire=int8"));
  }
  cp_work_free(w, 2);
  cp_free(net);
}

static void wire__only_for_float32_sums(void **state) {
  (void)state;
  static double x[8];
  cp *net = cp_plain(2);
  const tb_call wrong[] = {
    {.kind = TB_ALL_REDUCE, .dtype = TB_F64, .wire_dtype = TB_I8},
    {.kind = TB_ALL_REDUCE, .dtype = TB_F32, .redop = TB_MAX, .wire_dtype = TB_I8},
    {.kind = TB_REDUCE_SCATTER, .dtype = TB_F32, .wire_dtype = TB_BF16},
    {.kind = TB_ALL_REDUCE, .dtype = TB_F32, .wire_dtype = TB_I32},
    {.kind = TB_ALL_REDUCE, .dtype = TB_F32, .wire_dtype = 99},
    {.kind = TB_ALL_REDUCE, .dtype = TB_F32, .wire_dtype = -1},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    tb_call call = wrong[i];
    tb_outcome o = {0};
    call.count = 4;
    call.in = x;
    call.out = x + 4;
    call.deadline_ns = SOON;
    assert_int_equal(tb_core_issue(net->core[0], &call, net->now, net->now, &o), -EINVAL);
    assert_non_null(strstr(o.error, "wire dtype"));
  }
  cp_free(net);
}

static void wire__lengths_from_the_network_are_checked(void **state) {
  (void)state;
  cp_work w;
  static float x[ELEMS];
  uint8_t frame[TB_HEAD + 256], body[256] = {0};
  cp *net = cp_plain(2);
  net->stopped[1] = true;
  tb_call call = call_of("k", x, x, TB_I8, SOON);
  assert_int_equal(cp_issue(net, 0, &w, &call), 0);
  cp_settle(net);
  const tb_op *op = net->core[0]->ops;
  assert_int_equal(op->geo.chunk_elems, 60); /* 64 bytes, less a scale */
  tb_head h = {.type = TB_T_DATA, .stage = 1, .count = 1, .key = op->key->hash, .signature = op->sig_hash};
  const tb_comm_counters *n = tb_core_counters(net->core[0]);
  static const uint32_t wrong[] = {0, 4, 60, 63, 65, 240};
  for (uint64_t i = 0; i < 6; i++) {
    cp_give(net, 0, frame, cp_forge(net, 1, 0, &h, body, wrong[i], frame));
    assert_int_equal(n->bad_length, i + 1);
  }
  cp_give(net, 0, frame, cp_forge(net, 1, 0, &h, body, 64, frame));
  assert_int_equal(n->bad_length, 6);
  assert_int_equal(op->peer[1].rx[0].got, 1);
  tb_open o = {.sig = op->sig, .key_len = 1, .key = "q"};
  static const uint8_t none[] = {TB_F64, TB_U8, TB_DTYPES, 255};
  for (uint64_t i = 0; i < 4; i++) {
    o.sig.wire_dtype = none[i];
    h = (tb_head){.type = TB_T_OPEN, .key = tb_key_hash("q", 1), .signature = tb_signature_hash(&o.sig)};
    cp_give(net, 0, frame, cp_forge(net, 1, 0, &h, body, tb_open_encode(&o, body, sizeof body), frame));
    assert_int_equal(n->bad_body, i + 1);
  }
  cp_wait(net, &w);
  cp_work_free(&w, 1);
  cp_free(net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(wire__all_ranks_get_the_same_and_it_is_near),
    cmocka_unit_test(wire__half_and_quarter_of_the_bytes),
    cmocka_unit_test(wire__repairs_send_the_same_bytes),
    cmocka_unit_test(wire__int8_is_right_in_the_mean),
    cmocka_unit_test(wire__values_that_are_not_finite),
    cmocka_unit_test(wire__skip_restores_the_input),
    cmocka_unit_test(wire__ranks_that_disagree_are_told),
    cmocka_unit_test(wire__only_for_float32_sums),
    cmocka_unit_test(wire__lengths_from_the_network_are_checked),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
