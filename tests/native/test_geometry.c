/* test_geometry.c - shards and chunks tile the elements exactly; the sending order is a perfect matching. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/geometry.h"

/* Shards in element order touch each element once, chunks tile their shard, and all but the last are full. */
static void check_tiling(const tb_geometry *g) {
  uint64_t covered = 0, first, len, at;
  for (uint32_t s = 0; s < g->n; s++) {
    uint32_t owner = tb_geo_owner(g, s);
    assert_int_equal(tb_geo_shard_of(g, owner), s);
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

/* Any team of up to 8 ranks: the members' shards tile everything, nobody else has one. */
static void shard__only_members_have_one(void **state) {
  (void)state;
  tb_team *list = NULL;
  for (uint64_t in = 1; in < 256; in++) {
    const tb_team *t = tb_team_get(&list, &in, 8);
    assert_non_null(t);
    assert_ptr_equal(tb_team_get(&list, &in, 8), t); /* one for each set */
    tb_team *copy = tb_team_copy(t);
    for (uint32_t rotation = 0; rotation < t->n; rotation++) {
      tb_geometry g = {.kind = TB_ALL_REDUCE, .team = rotation & 1 ? copy : t, .n = t->n, .rotation = rotation, .elem = 4,
                       .chunk_elems = 3, .count = 8 * in};
      check_tiling(&g);
      for (uint32_t p = 0; p < 8; p++) {
        assert_int_equal(tb_team_has(g.team, p), in >> p & 1);
        if (!tb_team_has(g.team, p)) assert_int_equal(tb_geo_chunks(&g, p), 0);
        else assert_int_equal(tb_team_rank(g.team, tb_team_place(g.team, p)), p);
      }
      assert_int_equal(tb_geo_out_elems(&g), g.count);
      for (int kind = TB_REDUCE_SCATTER; kind <= TB_ALL_GATHER; kind++) { /* rows stay where they are */
        g.kind = kind;
        g.rotation = 0;
        for (uint32_t p = 0; p < 8; p++) {
          uint64_t first, len, row = kind == TB_ALL_GATHER ? g.count : g.count / 8;
          tb_geo_shard(&g, p, &first, &len);
          assert_int_equal(len, in >> p & 1 ? row : 0);
          if (len) assert_int_equal(first, p * row);
        }
        assert_int_equal(tb_geo_out_elems(&g), kind == TB_ALL_GATHER ? 8 * g.count : g.count / 8);
      }
    }
    free(copy);
  }
  const uint64_t none = 0;
  assert_null(tb_team_get(&list, &none, 8));
  tb_teams_free(&list);
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
    cmocka_unit_test(shard__only_members_have_one),
    cmocka_unit_test(shard__large_counts),
    cmocka_unit_test(shard__one_source),
    cmocka_unit_test(kinds__stages_and_outputs),
    cmocka_unit_test(order__is_a_perfect_matching_that_rotates),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
