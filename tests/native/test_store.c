/* test_store.c - values that wait for a later round: where they lie, how they add up, what they cost. */
#include "core_round.h"
#include "protocol/store.h"

enum { ELEMS = 150, N = 4 }; /* shards of 38, 38, 37, 37: chunks of 16, 16 and a rest */

static cp *net;

static tb_op *op_of(uint32_t round, uint8_t dtype) {
  static tb_key *k;
  tb_op *op;
  tb_signature sig = {.kind = TB_ALL_REDUCE, .dtype = dtype, .wire_dtype = dtype, .count = ELEMS, .chunk_elems = 16};
  assert_int_equal(tb_key_get(net->core[0], "k", 1, true, 1, &k), 0);
  assert_int_equal(tb_op_new(net->core[0], k, round, &sig, TB_OPENED_HERE, 1, &op), 0);
  return op;
}

static int begin(void **state) {
  (void)state;
  net = cp_plain(N);
  return 0;
}

static int end(void **state) {
  (void)state;
  cp_free(net);
  return 0;
}

/* Every chunk of every shard, under different rotations, lands on its own elements and nowhere else. */
static void put__keeps_its_place_in_the_tensor(void **state) {
  (void)state;
  tb_store s = {0};
  uint32_t chunks = 0;
  uint64_t elems = 0;
  for (uint32_t round = 0; round < N; round++) {
    tb_op *op = op_of(round, TB_F32);
    float x[ELEMS], zero[ELEMS] = {0};
    cp_fill(x, ELEMS, 1, 1);
    for (uint32_t owner = 0; owner < N; owner++) {
      if ((owner + round) % N != round % N) continue; /* each round one shard: each shard once */
      for (uint32_t i = 0; i < tb_geo_chunks(&op->geo, owner); i++) {
        uint64_t start, len, first;
        tb_geo_shard(&op->geo, owner, &start, &len);
        tb_geo_chunk(&op->geo, owner, i, &first);
        assert_null(tb_store_get(&s, op, owner, i, NULL));
        assert_int_equal(tb_store_put(net->core[0], &s, op, owner, i, x + start + first, 1, round), 0);
        assert_memory_equal(tb_store_get(&s, op, owner, i, NULL), x + start + first, 4);
        assert_int_equal(tb_store_put(net->core[0], &s, op, owner, i, zero, 1, round), 0);
        chunks++;
      }
    }
    tb_op_free(net->core[0], op, 1);
  }
  assert_int_equal(s.used, chunks);
  for (tb_stored e = {0}; tb_store_each(&s, &e); e.at++, elems += e.n)
    for (uint32_t i = 0; i < e.n; i++) assert_true(((float *)(void *)tb_store_at(&s,
        &e))[i] == (float)(e.first + i + 1));
  assert_int_equal(elems, ELEMS);
  while (s.used) {
    tb_stored e = {0};
    assert_true(tb_store_each(&s, &e));
    tb_store_remove(net->core[0], &s, &e);
  }
  assert_null(s.data);
  assert_int_equal(net->core[0]->memory, 0);
}

static void put__adds_subtracts_and_remembers_the_oldest_round(void **state) {
  (void)state;
  tb_store s = {0}, t = {0};
  tb_op *op = op_of(0, TB_F32);
  float x[16];
  uint32_t since;
  cp_fill(x, 16, 3, 1);
  assert_int_equal(tb_store_put(net->core[0], &s, op, 1, 1, x, -1, 0xffffffffu), 0);
  assert_int_equal(tb_store_put(net->core[0], &s, op, 1, 1, x, 1, 2), 0);
  assert_int_equal(tb_store_put(net->core[0], &s, op, 1, 1, x, 1, 1), 0);
  tb_store_move(&t, &s);
  assert_null(tb_store_get(&s, op, 1, 1, NULL));
  cp_expect(tb_store_get(&t, op, 1, 1, &since), 16, 3, 1);
  assert_int_equal(since, 0xffffffffu); /* serial arithmetic: before 1 */
  tb_store_empty(net->core[0], &t);
  tb_op_free(net->core[0], op, 1);
  assert_int_equal(net->core[0]->memory, 0);
}

static void put__is_bounded_by_memory_cap_and_its_signature(void **state) {
  (void)state;
  tb_store s = {0};
  tb_op *op = op_of(0, TB_F32), *other = op_of(1, TB_F64);
  double x[16] = {0};
  uint64_t cap = net->core[0]->tune.memory_cap;
  net->core[0]->tune.memory_cap = net->core[0]->memory + ELEMS * 4;
  assert_int_equal(tb_store_put(net->core[0], &s, op, 1, 0, x, 1, 0), -ENOSPC);
  assert_null(s.data);
  net->core[0]->tune.memory_cap = cap;
  assert_int_equal(tb_store_put(net->core[0], &s, op, 1, 0, x, 1, 0), 0);
  assert_int_equal(tb_store_put(net->core[0], &s, other, 1, 0, x, 1, 0), -ESTALE);
  tb_store_empty(net->core[0], &s);
  tb_op_free(net->core[0], op, 1);
  tb_op_free(net->core[0], other, 1);
}

/* After a view change there are other shards: what was put aside before and what comes after lie in one tensor. */
static void regroup__moves_values_to_the_shards_there_are_now(void **state) {
  (void)state;
  tb_core *c = net->core[0];
  const uint64_t three = 0xb; /* rank 2 has left */
  float x[ELEMS];
  cp_fill(x, ELEMS, 1, 1);
  tb_store s = {0};
  tb_op *before = op_of(1, TB_F32);
  for (uint32_t owner = 0; owner < N; owner++)
    for (uint32_t i = owner == 3; i < tb_geo_chunks(&before->geo, owner); i++) { /* all but one chunk */
      uint64_t start, len, first;
      tb_geo_shard(&before->geo, owner, &start, &len);
      tb_geo_chunk(&before->geo, owner, i, &first);
      assert_int_equal(tb_store_put(c, &s, before, owner, i, x + start + first, 1, 5), 0);
    }
  uint64_t gap, len;
  tb_geo_shard(&before->geo, 3, &gap, &len);
  c->team = tb_team_get(&c->teams, &three, N);
  tb_op *after = op_of(2, TB_F32);
  assert_int_equal(after->geo.n, 3);
  assert_int_equal(tb_store_regroup(c, &s, after), 0);
  tb_geo_shard(&after->geo, 3, &gap, &len); /* shard (2 + 2) % 3 of 50 elements each */
  assert_int_equal(gap, 50);
  float y[16] = {1};
  /* an old round ends: added across what is a chunk now */
  assert_int_equal(tb_store_put(c, &s, before, 1, 2, y, 1, 4), 0);
  uint64_t at, first;
  tb_geo_shard(&before->geo, 1, &at, &len);
  tb_geo_chunk(&before->geo, 1, 2, &first);
  at += first;
  double sum = 0;
  uint64_t hole;
  tb_geo_shard(&before->geo, 3, &hole, &len);
  for (tb_stored e = {0}; tb_store_each(&s, &e); e.at++)
    for (uint64_t i = 0; i < e.n; i++) {
      uint64_t k = e.first + i;
      bool empty = k >= hole && k < hole + 16;
      float want = (empty ? 0 : x[k]) + (k == at);
      assert_true(((float *)(void *)tb_store_at(&s, &e))[i] == want);
      sum += want;
      if (k == at) assert_int_equal(e.since, 4);
    }
  double all = 1;
  for (uint64_t k = 0; k < ELEMS; k++) all += k >= hole && k < hole + 16 ? 0 : x[k];
  assert_true(sum == all);
  tb_store_empty(c, &s);
  tb_op_free(c, before, 1);
  tb_op_free(c, after, 1);
  assert_int_equal(c->memory, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(put__keeps_its_place_in_the_tensor, begin, end),
    cmocka_unit_test_setup_teardown(put__adds_subtracts_and_remembers_the_oldest_round, begin, end),
    cmocka_unit_test_setup_teardown(put__is_bounded_by_memory_cap_and_its_signature, begin, end),
    cmocka_unit_test_setup_teardown(regroup__moves_values_to_the_shards_there_are_now, begin, end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
