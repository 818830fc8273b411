/* test_hierarchy.c - who is whose kin, in which order, and which chunk of which shard each chunk of a column is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include "protocol/hierarchy.h"

enum { MOST = 24 };

/* Groups of `size`, in a row or spread. */
static tb_hierarchy *made(uint32_t n, uint32_t size, bool spread, uint32_t me) {
  uint16_t group_of[MOST];
  tb_hierarchy *t;
  for (uint32_t r = 0; r < n; r++) group_of[r] = (uint16_t)(spread ? n / size - 1 - r % (n / size) : r / size);
  assert_int_equal(tb_hierarchy_new(group_of, n, me, &t), 0);
  assert_non_null(t);
  return t;
}

typedef void (*check)(uint32_t n, uint32_t size, bool spread);

static void for_all(check fn) {
  for (uint32_t n = 4; n <= MOST; n++)
    for (uint32_t size = 2; size <= n / 2; size++)
      for (int spread = 0; n % size == 0 && spread < 2; spread++) fn(n, size, spread);
}

static void check_kin(uint32_t n, uint32_t size, bool spread) {
  for (uint32_t me = 0; me < n; me++) {
    tb_hierarchy *t = made(n, size, spread, me);
    uint32_t count[4] = {0};
    for (uint32_t r = 0; r < n; r++) {
      count[t->kin[r]]++;
      assert_int_equal(tb_rank_at(t, t->group[r], t->place[r]), r);
      uint32_t s = tb_stand_in(t, r); /* of my group, at its place */
      assert_int_equal(t->group[s], t->group[me]);
      assert_int_equal(t->place[s], t->place[r]);
    }
    assert_int_equal(count[TB_KIN_SELF], 1);
    assert_int_equal(t->kin[me], TB_KIN_SELF);
    assert_int_equal(count[TB_KIN_NEAR], size - 1);
    assert_int_equal(count[TB_KIN_ACROSS], n / size - 1);
    assert_int_equal(t->kin_n, size - 1 + n / size - 1);
    for (uint32_t round = 0; round < 5; round++) {
      bool seen[MOST] = {false};
      for (uint32_t i = 0; i < t->kin_n; i++) {
        uint32_t p = tb_kin_order(t, round, i);
        assert_true(t->kin[p] == (i < size - 1 ? TB_KIN_NEAR : TB_KIN_ACROSS) && !seen[p]);
        seen[p] = true;
        assert_int_equal(tb_kin_place(t, round, p), i);
      }
    }
    tb_hierarchy_free(t);
  }
}

static void kin__everybody_once_and_in_its_place(void **state) {
  (void)state;
  for_all(check_kin);
}

/* In step, each position of the order is a perfect matching: everybody sends to one and hears from one. */
static void check_matching(uint32_t n, uint32_t size, bool spread) {
  tb_hierarchy *t[MOST];
  for (uint32_t r = 0; r < n; r++) t[r] = made(n, size, spread, r);
  for (uint32_t round = 0; round < 4; round++)
    for (uint32_t i = 0; i < t[0]->kin_n; i++) {
      bool heard[MOST] = {false};
      for (uint32_t r = 0; r < n; r++) {
        uint32_t p = tb_kin_order(t[r], round, i);
        assert_false(heard[p]);
        heard[p] = true;
      }
    }
  for (uint32_t r = 0; r < n; r++) assert_int_equal(t[r]->id, t[0]->id); /* the same groups, whoever looks */
  for (uint32_t r = 0; r < n; r++) tb_hierarchy_free(t[r]);
}

static void order__is_a_perfect_matching(void **state) {
  (void)state;
  for_all(check_matching);
}

/* A column holds each chunk of its shards once, in whole stripes, and all ranks of a group count alike. */
static void check_columns(uint32_t n, uint32_t size, bool spread) {
  for (uint32_t me = 0; me < n; me += n > 8 ? 3 : 1) {
    tb_hierarchy *t = made(n, size, spread, me);
    uint32_t groups = n / size;
    for (uint64_t count = 0; count < 9 * n; count += count < 3 * n ? 1 : 7)
      for (uint32_t rotation = 0; rotation < n; rotation += 1 + n / 6) {
        tb_geometry g = {.kind = TB_ALL_REDUCE, .n = n, .rotation = rotation, .elem = 4, .chunk_elems = 3,
                         .count = count};
        uint32_t longest = 0, all = 0;
        for (uint32_t r = 0; r < n; r++) {
          uint32_t chunks = tb_geo_chunks(&g, r);
          longest = chunks > longest ? chunks : longest;
          all += chunks;
          for (uint32_t c = 0; c < chunks; c++) {
            uint32_t i = tb_column_index(t, &g, (tb_piece){r, c});
            assert_true(i < tb_column_chunks(t, &g, t->place[r]));
            tb_piece back = tb_column_piece(t, &g, t->place[r], i);
            assert_int_equal(back.owner, r);
            assert_int_equal(back.chunk, c);
            assert_true(c < longest);
            assert_true(i / groups >= c || longest == c + 1); /* stripe by stripe */
          }
        }
        assert_int_equal(longest, tb_longest_shard(&g));
        for (uint32_t a = 0; a < size; a++) all -= tb_column_chunks(t, &g, a);
        assert_int_equal(all, 0);
      }
    tb_hierarchy_free(t);
  }
}

static void column__holds_each_chunk_once(void **state) {
  (void)state;
  for_all(check_columns);
}

/* The first owner that a group serves is of the next group: no two groups begin with the same. */
static void stripe__begins_with_the_group_after(void **state) {
  (void)state;
  tb_geometry g = {.kind = TB_ALL_REDUCE, .n = 12, .elem = 4, .chunk_elems = 1, .count = 120};
  for (uint32_t j = 0; j < 4; j++) {
    bool served[4] = {false};
    for (uint32_t group = 0; group < 4; group++) {
      tb_hierarchy *t = made(12, 3, false, group * 3);
      uint32_t owner = tb_column_piece(t, &g, 1, j).owner;
      assert_int_equal(t->group[owner], (group + 1 + j) % 4);
      assert_false(served[t->group[owner]]);
      served[t->group[owner]] = true;
      tb_hierarchy_free(t);
    }
  }
}

static void groups__of_one_size_or_none(void **state) {
  (void)state;
  tb_hierarchy *t;
  assert_int_equal(tb_hierarchy_new((uint16_t[]){0, 0, 1, 1, 1}, 5, 0, &t), -EINVAL);
  assert_int_equal(tb_hierarchy_new((uint16_t[]){0, 0, 0, 1}, 4, 0, &t), -EINVAL);
  assert_int_equal(tb_hierarchy_new((uint16_t[]){0, 0, 4, 4}, 4, 0, &t), -EINVAL); /* no such number */
  assert_int_equal(tb_hierarchy_new((uint16_t[]){2, 2, 2, 2}, 4, 0, &t), 0);
  assert_null(t); /* one group */
  assert_int_equal(tb_hierarchy_new((uint16_t[]){0, 1, 2, 3}, 4, 0, &t), 0);
  assert_null(t); /* nobody in company */
  tb_hierarchy *a, *b;
  assert_int_equal(tb_hierarchy_new((uint16_t[]){3, 3, 0, 0}, 4, 1, &a), 0);
  assert_int_equal(tb_hierarchy_new((uint16_t[]){0, 0, 1, 1}, 4, 2, &b), 0);
  assert_int_equal(a->id, b->id); /* named otherwise, and the same */
  tb_hierarchy_free(b);
  assert_int_equal(tb_hierarchy_new((uint16_t[]){0, 1, 0, 1}, 4, 2, &b), 0);
  assert_true(a->id != b->id);
  tb_hierarchy_free(a);
  tb_hierarchy_free(b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(kin__everybody_once_and_in_its_place),
    cmocka_unit_test(order__is_a_perfect_matching),
    cmocka_unit_test(column__holds_each_chunk_once),
    cmocka_unit_test(stripe__begins_with_the_group_after),
    cmocka_unit_test(groups__of_one_size_or_none),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
