/* test_view_forged.c - VIEW frames that no rank made: whatever they say, nothing is read or written out of bounds,
 * nothing hangs, and who leaves it at nonsense changes nothing. (Whoever knows the job's number can forge a whole vote:
 * frames carry no signature yet.) */
#include "core_round.h"

enum { N = 4 };
static const uint64_t DEADLINE = 2 * TB_MS;
static uint64_t dice;

static uint64_t roll(void) {
  dice ^= dice << 13;
  dice ^= dice >> 7;
  dice ^= dice << 17;
  return dice;
}

static uint32_t some_number(uint32_t near) {
  static const uint32_t odd[] = {0, 1, 0x7fffffff, 0x80000000, 0x80000001, 0xfffffffe, 0xffffffff};
  uint64_t r = roll();
  return r % 3 ? near + (uint32_t)(r / 3 % 5) - 2 : odd[r / 3 % 7];
}

static cp *ranks(void) {
  return cp_new(&(cp_options){.n = N, .chunk_bytes = 16, .window = 256, .delay = 100000});
}

static void give(cp *net, uint16_t src, uint16_t dst, const tb_view_msg *m, uint32_t len) {
  uint8_t body[TB_VIEW_BODY + 8] = {0}, frame[TB_CONTROL_MAX];
  tb_view_encode(m, body, TB_VIEW_BODY);
  tb_head h = {.type = TB_T_VIEW};
  cp_give(net, dst, frame, cp_forge(net, src, dst, &h, body, len, frame));
}

static void forged__whole_but_absurd(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 60; seed++) {
    dice = seed * 0x9e3779b97f4a7c15ull;
    cp *net = ranks();
    static cp_work w[N];
    static float x[N][COUNT];
    round_of(net, "k", 0, N, DEADLINE);
    for (int i = 0; i < 60; i++) {
      uint16_t src = (uint16_t)(roll() % N), dst = (uint16_t)((src + 1 + roll() % (N - 1)) % N);
      tb_view_msg m = {.kind = (uint8_t)(1 + roll() % 8), .ballot = some_number(1024), .accepted = some_number(0)};
      m.view = some_number(tb_core_members(net->core[dst], NULL));
      m.base = some_number(net->core[dst]->vote.base);
      m.members.bits[0] = roll() % 4 ? roll() % (1u << N) : roll();
      if (roll() % 8 == 0) m.members.bits[TB_VIEW_WORDS - 1] = roll();
      bool began[N];
      for (uint16_t r = 0; r < N; r++) began[r] = roll() % 2 && !start(net, r, &w[r], roll() % 2 ? "k" : "", x[r], DEADLINE);
      give(net, src, dst, &m, roll() % 8 ? TB_VIEW_BODY : (uint32_t)(roll() % (TB_VIEW_BODY + 8)));
      for (uint16_t r = 0; r < N; r++) {
        if (!began[r]) continue;
        cp_wait(net, &w[r]);
        cp_work_free(&w[r], 1);
      }
      cp_until(net, net->now + TB_MS);
    }
    cp_free(net);
  }
}

static void forged__nonsense_changes_nothing(void **state) {
  (void)state;
  cp *net = ranks();
  round_of(net, "k", 0, N, DEADLINE);
  tb_view_msg beyond = {.kind = TB_V_COMMIT, .view = 2, .base = 100, .members = {{0xf}}}, none = beyond;
  beyond.members.bits[0] |= 1u << N;
  none.members.bits[0] = 0;
  give(net, 1, 0, &beyond, TB_VIEW_BODY);
  give(net, 1, 0, &none, TB_VIEW_BODY);
  for (uint32_t len = 0; len < TB_VIEW_BODY + 8; len++) {
    tb_view_msg good = {.kind = TB_V_COMMIT, .view = 2, .base = 100, .members = {{0x7}}};
    if (len != TB_VIEW_BODY) give(net, 1, 0, &good, len);
  }
  tb_view_msg old = {.kind = TB_V_COMMIT, .view = 0x80000002u, .base = 100, .members = {{0x7}}};
  give(net, 1, 0, &old, TB_VIEW_BODY); /* serial arithmetic: long ago */
  assert_int_equal(tb_core_members(net->core[0], NULL), 1);
  assert_true(tb_core_peer_counters(net->core[0], 1)->bad_body >= TB_VIEW_BODY);
  cp_free(net);
}

/* One commit after the other, each with other members: memory stays what it is. */
static void forged__flood_of_commits(void **state) {
  (void)state;
  cp *net = ranks();
  round_of(net, "k", 0, N, DEADLINE);
  for (uint32_t v = 2; v < 5000; v++) {
    tb_view_msg m = {.kind = TB_V_COMMIT, .view = v, .base = v * 70, .members = {{v % 2 ? 0xf : 1 | v / 2 % 16}}};
    give(net, 1, 0, &m, TB_VIEW_BODY);
  }
  assert_int_equal(tb_core_members(net->core[0], NULL), 4999);
  cp_free(net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(forged__whole_but_absurd),
    cmocka_unit_test(forged__nonsense_changes_nothing),
    cmocka_unit_test(forged__flood_of_commits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
