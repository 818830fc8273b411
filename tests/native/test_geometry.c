/* test_geometry.c - shards and chunks tile the elements exactly; the sending order is a perfect matching. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>
#include "protocol/geometry.h"

/* Shards in element order touch each element once, chunks tile their shard, and all but the last are full. */
static void check_tiling(const tb_geometry *g) {
  uint64_t covered = 0, first, len, at;
  for (uint32_t s = 0; s < g->n; s++) {
    uint32_t owner = (s + g->n - g->rotation) % g->n; /* shard s belongs to it */
    tb_geo_shard(g, owner, &first, &len);
    if (len) assert_int_equal(first, covered);
    uint64_t in = 0;
    uint32_t chunks = tb_geo_chunks(g, owner);
    for (uint32_t c = 0; c < chunks; c += chunks > 5000 && c + 2 < chunks ? chunks - 2 : 1) {
      uint32_t n = tb_geo_chunk(g, owner, c, &at);
      if (c == 0) assert_int_equal(at, 0);
      assert_int_equal(at, (uint64_t)c * g->chunk_elems);
      assert_true(n >= 1 && n <= g->chunk_elems);
      if (c + 1 < chunks) assert_int_equal(n, g->chunk_elems);
      in = at + n;
    }
    assert_int_equal(in, len);
    covered += len;
  }
  assert_int_equal(covered, g->kind == TB_ALL_GATHER ? g->count * g->n : g->count);
}

static void shard__tiles_for_every_count_and_rank(void **state) {
  (void)state;
  for (uint32_t n = 1; n <= 9; n++)
    for (uint64_t count = 0; count < 40; count++)
      for (uint32_t rotation = 0; rotation < n; rotation++) {
        tb_geometry g = {.kind = TB_ALL_REDUCE, .n = n, .rotation = rotation, .elem = 4, .chunk_elems = 3,
                         .count = count};
        check_tiling(&g);
        for (uint32_t p = 0; p < n; p++) { /* balanced: no shard is longer than another by more than one */
          uint64_t first, len;
          tb_geo_shard(&g, p, &first, &len);
          assert_true(len == count / n || len == count / n + 1);
        }
      }
}

static void shard__large_counts(void **state) { /* by arithmetic alone: 2^30 chunks a shard, 1024 ranks */
  (void)state;
  const uint64_t counts[] = {(1ull << 32) - 1, 1ull << 32, (1ull << 32) + 7, (1ull << 40) - 3};
  for (uint32_t n = 1; n <= 1024; n = n * 3 + 1)
    for (int i = 0; i < 4; i++)
      for (int kind = TB_ALL_REDUCE; kind <= TB_BARRIER; kind++) {
        if (kind == TB_BROADCAST || (kind == TB_ALL_GATHER && i == 3)) continue;
        tb_geometry g = {.kind = kind, .n = n, .rotation = kind ? 0 : n / 2, .elem = 8, .chunk_elems = 1024,
                         .count = counts[i]};
        check_tiling(&g);
      }
}

static void shard__one_source(void **state) {
  (void)state;
  for (int kind = TB_BROADCAST; kind <= TB_SEND; kind++) {
    if (kind == TB_BARRIER) continue;
    tb_geometry g = {.kind = kind, .n = 5, .root = 3, .elem = 4, .chunk_elems = 10, .count = 25};
    for (uint32_t p = 0; p < 5; p++) assert_int_equal(tb_geo_chunks(&g, p), p == 3 ? 3 : 0);
    assert_int_equal(tb_geo_out_elems(&g), 25);
  }
}

static void kinds__stages_and_outputs(void **state) {
  (void)state;
  const struct { int kind; bool one, two; uint64_t out; } want[] = {
    {TB_ALL_REDUCE, true, true, 12}, {TB_REDUCE_SCATTER, true, false, 3}, {TB_ALL_GATHER, false, true, 48},
    {TB_BROADCAST, false, true, 12}, {TB_BARRIER, true, true, 12}, {TB_SEND, false, true, 12}};
  for (int i = 0; i < 6; i++) {
    tb_geometry g = {.kind = want[i].kind, .n = 4, .elem = 4, .chunk_elems = 2, .count = 12};
    assert_int_equal(tb_geo_scatters(&g), want[i].one);
    assert_int_equal(tb_geo_hands_out(&g), want[i].two);
    assert_int_equal(tb_geo_out_elems(&g), want[i].out);
  }
}

/* Rule 21, OptiReduce section 3: at each position everybody sends to somebody else, nobody is sent to twice; over all
 * positions each rank meets each other once; and the first one rotates with the round. */
static void order__is_a_perfect_matching_that_rotates(void **state) {
  (void)state;
  for (uint32_t n = 2; n <= 17; n++)
    for (uint32_t round = 0; round < 2 * n; round++) {
      bool met[17][17] = {{false}};
      for (uint32_t i = 0; i + 1 < n; i++) {
        bool taken[17] = {false};
        for (uint32_t r = 0; r < n; r++) {
          uint32_t p = tb_geo_order(n, r, round, i);
          assert_true(p < n && p != r && !taken[p] && !met[r][p]);
          assert_int_equal(tb_geo_place(n, r, round, p), i);
          taken[p] = met[r][p] = true;
        }
      }
      if (n > 2) assert_int_not_equal(tb_geo_order(n, 0, round, 0), tb_geo_order(n, 0, round + 1, 0));
    }
  assert_true(tb_geo_order(1024, 1023, UINT32_MAX, 1022) < 1024);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(shard__tiles_for_every_count_and_rank),
    cmocka_unit_test(shard__large_counts),
    cmocka_unit_test(shard__one_source),
    cmocka_unit_test(kinds__stages_and_outputs),
    cmocka_unit_test(order__is_a_perfect_matching_that_rotates),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
