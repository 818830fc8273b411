/* test_key.c - rule 7: keys are bound to a signature, forgotten on request, and told apart even where hashes are
 * not. */
#include "core_pair.h"

static const uint64_t EXACT = UINT64_MAX;
enum { COUNT = 12, KEYS = 400000, KEY_LEN = 16 };

static void hash__zero_is_taken_by_no_key(void **state) {
  (void)state;
  assert_int_not_equal(tb_key_hash("", 0), 0);
  assert_int_equal(tb_key_hash("layer.0", 7), 0x444862cf); /* on the wire: frozen */
  assert_int_not_equal(tb_key_hash("a", 1), tb_key_hash("a\0", 2));
}

typedef struct { uint32_t hash; char name[KEY_LEN + 1]; } named;

static int by_hash(const void *a, const void *b) {
  uint32_t x = ((const named *)a)->hash, y = ((const named *)b)->hash;
  return x < y ? -1 : x > y;
}

/* Two names with one hash, found by looking at many. */
static void collide(char a[KEY_LEN + 1], char b[KEY_LEN + 1]) {
  named *all = malloc(KEYS * sizeof *all);
  uint64_t seed = 88172645463325252ull;
  assert_non_null(all);
  for (int i = 0; i < KEYS; i++) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    snprintf(all[i].name, sizeof all[i].name, "%016llx", (unsigned long long)seed);
    all[i].hash = tb_key_hash(all[i].name, KEY_LEN);
  }
  qsort(all, KEYS, sizeof *all, by_hash);
  int at = 1;
  while (at < KEYS && all[at].hash != all[at - 1].hash) at++;
  assert_true(at < KEYS);
  memcpy(a, all[at - 1].name, KEY_LEN + 1);
  memcpy(b, all[at].name, KEY_LEN + 1);
  free(all);
}

static int start(cp *net, uint16_t r, cp_work *w, const char *key, float *x, uint64_t deadline) {
  cp_fill(x, COUNT, (float)r, 1);
  tb_call call = cp_call(key, x, x, COUNT, deadline);
  return cp_issue(net, r, w, &call);
}

static void collision__on_one_rank_names_both(void **state) {
  (void)state;
  char a[KEY_LEN + 1], b[KEY_LEN + 1];
  collide(a, b);
  assert_string_not_equal(a, b);
  assert_int_equal(tb_key_hash(a, KEY_LEN), tb_key_hash(b, KEY_LEN));
  cp *net = cp_plain(1);
  cp_work w;
  float x[COUNT];
  assert_int_equal(start(net, 0, &w, a, x, EXACT), 0);
  cp_work_free(&w, 1);
  assert_int_equal(start(net, 0, &w, b, x, EXACT), -EEXIST);
  assert_non_null(strstr(w.o.error, a));
  assert_non_null(strstr(w.o.error, b));
  cp_free(net);
}

/* Two ranks use them: neither adds the other's data, both are told. */
static void collision__across_ranks_is_told_on_both(void **state) {
  (void)state;
  for (int exact = 0; exact < 2; exact++)
    for (int gap = 0; gap < 2; gap++) {
      char name[2][KEY_LEN + 1];
      collide(name[0], name[1]);
      cp *net = cp_plain(2);
      cp_work w[2];
      float x[2][COUNT];
      for (uint16_t r = 0; r < 2; r++) {
        int rc = start(net, r, &w[r], name[r], x[r], exact ? EXACT : 50 * TB_MS);
        if (rc) assert_int_equal(rc, -EEXIST);
        if (rc) w[r].done = -1;
        if (gap) cp_until(net, net->now + 5 * TB_MS);
      }
      cp_until(net, net->now + 20 * TB_SEC);
      for (uint16_t r = 0; r < 2; r++) {
        if (w[r].done == 0) fail_msg("rank %u of a collision waits for ever (exact %d, gap %d)", r, exact, gap);
        if (w[r].done == 1) {
          assert_int_equal(w[r].o.result.status, -EEXIST);
          cp_expect(w[r].result, COUNT, (float)r, 1);
        }
        assert_non_null(strstr(w[r].o.error, name[0]));
        assert_non_null(strstr(w[r].o.error, name[1]));
        if (w[r].done == 1) cp_work_free(&w[r], 1);
      }
      cp_free(net);
    }
}

/* Another signature on the same named key raises until forget(). */
static void bound__until_forgotten(void **state) {
  (void)state;
  cp *net = cp_plain(1);
  cp_work w;
  double big[COUNT * 2] = {0};
  const tb_call good = {.kind = TB_ALL_REDUCE, .dtype = TB_F32, .redop = TB_SUM, .count = COUNT, .in = big, .out = big,
                        .key = "k",
                        .key_len = 1, .deadline_ns = 50 * TB_MS};
#define CALL(want, ...)                                    \
  do {                                                     \
    tb_call call = good;                                   \
    __VA_ARGS__;                                           \
    assert_int_equal(cp_issue(net, 0, &w, &call), (want)); \
    if (!(want)) cp_work_free(&w, 1);                      \
  } while (0)
  CALL(0, (void)0);
  CALL(0, call.deadline_ns = 70 * TB_MS); /* not a part of it */
  CALL(-EEXIST, call.count = COUNT - 1);
  assert_non_null(strstr(w.o.error, "count=12"));
  assert_non_null(strstr(w.o.error, "count=11"));
  assert_non_null(strstr(w.o.error, "forget(key)"));
  CALL(-EEXIST, call.dtype = TB_F64);
  CALL(-EEXIST, call.redop = TB_AVG);
  CALL(-EEXIST, call.deadline_ns = EXACT); /* the class */
  CALL(-EEXIST, call.kind = TB_BROADCAST);
  CALL(0, (void)0); /* the key was not spoilt by that */
  CALL(0, call.key = "kk"; call.key_len = 2; call.count = 5);
  CALL(0, call.key_len = 0; call.count = 5); /* anonymous ones carry their signature per round */
  CALL(0, call.key_len = 0; call.dtype = TB_F64);
  assert_int_equal(tb_core_forget(net->core[0], "unknown", 7), -ENOENT);
  assert_int_equal(tb_core_forget(net->core[0], "k", 1), 0);
  CALL(0, call.count = COUNT - 1);
  CALL(-EEXIST, (void)0);
  cp_free(net);
}

static void cap__on_keys(void **state) {
  (void)state;
  cp *net = cp_plain(1);
  cp_work w;
  float x[COUNT];
  net->core[0]->tune.key_cap = 3;
  for (int i = 0; i < 4; i++) {
    char key[16];
    snprintf(key, sizeof key, "%d", i);
    assert_int_equal(start(net, 0, &w, key, x, EXACT), i < 3 ? 0 : -ENOBUFS);
    if (i < 3) cp_work_free(&w, 1);
  }
  assert_non_null(strstr(w.o.error, "key_cap"));
  cp_free(net);
}

static void saw__rounds_move_forward_only_and_wrap(void **state) {
  (void)state;
  cp *net = cp_plain(2);
  tb_core *c = net->core[0];
  tb_key *k;
  assert_int_equal(tb_key_get(c, "k", 1, true, 0, &k), 0);
  assert_int_equal(tb_key_jump(c, k), 0);
  tb_key_saw_open(k, 1, 5);
  assert_int_equal(tb_key_jump(c, k), 5);
  tb_key_saw_open(k, 1, 3);
  assert_int_equal(tb_key_jump(c, k), 5);
  tb_key_saw_closed(k, 1, 6); /* that one is over: the next */
  assert_int_equal(tb_key_jump(c, k), 7);
  tb_key_saw_closed(k, 1, 2);
  assert_int_equal(tb_key_jump(c, k), 7);
  k->next_round = 100; /* never back */
  assert_int_equal(tb_key_jump(c, k), 100);
  k->next_round = k->peer[1].open = 0xfffffff0; /* serial arithmetic */
  k->peer[1].has_closed = false;
  tb_key_saw_open(k, 1, 2);
  assert_int_equal(tb_key_jump(c, k), 2);
  cp_free(net);
}

/* One key, two threads at once: told, not mixed up. */
static void thread__shares_no_key_in_flight(void **state) {
  (void)state;
  cp *net = cp_plain(2);
  cp_work w[3];
  float x[3][COUNT];
  for (int anonymous = 0; anonymous < 2; anonymous++) {
    for (int i = 0; i < 3; i++) {
      tb_call call = cp_call(anonymous ? NULL : "k", x[i], x[i], COUNT, EXACT);
      call.thread = i == 1 ? 22 : 11;
      int rc = cp_issue(net, 0, &w[i], &call);
      assert_int_equal(rc, i == 1 ? -EBUSY : 0);
    }
    for (int i = 0; i < 3; i += 2) tb_core_cancel(net->core[0], &w[i].o, -ECANCELED, "end of test", net->now);
    for (int i = 0; i < 3; i += 2) cp_work_free(&w[i], 1);
  }
  cp_free(net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(hash__zero_is_taken_by_no_key),
    cmocka_unit_test(collision__on_one_rank_names_both),
    cmocka_unit_test(collision__across_ranks_is_told_on_both),
    cmocka_unit_test(bound__until_forgotten),
    cmocka_unit_test(cap__on_keys),
    cmocka_unit_test(saw__rounds_move_forward_only_and_wrap),
    cmocka_unit_test(thread__shares_no_key_in_flight),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
