/* test_view.c - agreed membership: however frames are lost, repeated and delayed and whoever dies or is cut off, no two
 * ranks have different members under one view number, and a majority that can talk gets on. */
#include "view_net.h"

static void body__travels_whole(void **state) {
  (void)state;
  tb_view_msg m = {.kind = TB_V_PROMISE, .view = 7, .ballot = 0xabc, .accepted = 9, .base = 77,
                   .members = tb_members_all(1024)}, back;
  uint8_t b[TB_VIEW_BODY];
  tb_member_drop(&m.members, 63);
  assert_int_equal(tb_view_encode(&m, b, sizeof b), sizeof b);
  assert_int_equal(tb_view_decode(b, sizeof b, &back), 0);
  assert_memory_equal(&m.members, &back.members, sizeof m.members);
  assert_true(back.kind == m.kind && back.view == 7 && back.ballot == 0xabc && back.accepted == 9 && back.base == 77);
  assert_int_equal(tb_member_count(&back.members), 1023);
  assert_int_equal(tb_view_encode(&m, b, sizeof b - 1), 0);
  assert_int_equal(tb_view_decode(b, sizeof b - 1, &back), -74);
  b[1] = 0;
  assert_int_equal(tb_view_decode(b, sizeof b, &back), -74);
}

static void evict__a_dead_rank_leaves_the_view(void **state) {
  (void)state;
  net_t *t = network(3, 1);
  t->dead[1] = true;
  suspect(t);
  until(t, 50 * RETRY);
  for (uint16_t r = 0; r < 3; r += 2) {
    assert_int_equal(t->v[r].number, 2);
    assert_false(tb_member(&t->v[r].members, 1));
    assert_int_equal(tb_member_count(&t->v[r].members), 2);
    assert_true(t->v[r].base > 120); /* above what either has issued */
    assert_int_equal(t->changes[r], 1);
  }
}

static void evict__even_the_first_proposer_may_die(void **state) {
  (void)state;
  for (uint32_t at = 0; at < 12; at++) { /* rank 4 is dead; rank 0 dies after so many of its letters */
    net_t *t = network(5, 1);
    t->dead[4] = true;
    suspect(t);
    while (t->made < at && t->now < 10 * RETRY) until(t, t->now + 10);
    t->dead[0] = true;
    suspect(t);
    until(t, 1000 * RETRY);
    for (uint16_t r = 1; r < 4; r++) {
      assert_int_equal(tb_member_count(&t->v[r].members), 3);
      assert_memory_equal(&t->v[r].members, &t->v[1].members, sizeof t->v[1].members);
    }
  }
}

static void minority__never_shrinks(void **state) {
  (void)state;
  net_t *t = network(5, 1);
  for (uint16_t a = 0; a < 5; a++)
    for (uint16_t b = 0; b < 5; b++) t->cut[a][b] = (a < 2) != (b < 2);
  suspect(t);
  until(t, 500 * RETRY);
  for (uint16_t r = 0; r < 2; r++) assert_int_equal(t->v[r].number, 1);
  for (uint16_t r = 2; r < 5; r++) assert_int_equal(tb_member_count(&t->v[r].members), 3);
  /* The halves meet again: the smaller one learns that it was voted out, and joins. */
  memset(t->cut, 0, sizeof t->cut);
  suspect(t);
  for (uint16_t r = 0; r < 2; r++) tb_view_stranger(&t->v[2], r, 1);
  until(t, t->now + 20 * RETRY);
  for (uint16_t r = 0; r < 2; r++) {
    assert_false(tb_view_in(&t->v[r]));
    tb_view_join(&t->v[r], t->now);
  }
  until(t, t->now + 200 * RETRY);
  for (uint16_t r = 0; r < 5; r++) assert_int_equal(tb_member_count(&t->v[r].members), 5);
}

static void two_ranks__cannot_vote_each_other_out(void **state) {
  (void)state;
  net_t *t = network(2, 1);
  t->dead[1] = true;
  suspect(t);
  until(t, 500 * RETRY);
  assert_int_equal(t->v[0].number, 1);
}

/* A suspicion that was wrong is withdrawn before the vote: nothing changes. */
static void suspicion__may_be_withdrawn(void **state) {
  (void)state;
  net_t *t = network(3, 1);
  tb_members s = {{0}}, none = {{0}};
  tb_member_add(&s, 0);
  tb_view_suspect(&t->v[2], &s, t->now); /* rank 2 waits for its turn: rank 1 comes first, but suspects nobody */
  until(t, RETRY);
  tb_view_suspect(&t->v[2], &none, t->now);
  until(t, 500 * RETRY);
  for (uint16_t r = 0; r < 3; r++) assert_int_equal(t->v[r].number, 1);
}

/* Every subset of twelve letters in a row lost, the vote going on under a proposer's death. */
static void loss__every_subset(void **state) {
  (void)state;
  uint32_t runs = 0;
  for (uint32_t begin = 0; begin < 30; begin += 6)
    for (uint32_t mask = 0; mask < 1u << 12; mask++, runs++) {
      net_t *t = network(4, 3);
      t->begin = begin;
      t->mask = mask;
      t->dead[3] = true;
      suspect(t);
      until(t, 60 * RETRY);
      for (uint16_t r = 0; r < 3; r++) assert_int_equal(tb_member_count(&t->v[r].members), 3);
    }
  print_message("  %u runs\n", runs);
}

/* Random storms: deaths, cuts that come and go, loss, duplicates, reordering. Afterwards whoever can talk agrees. */
static void storm__one_view_per_number(void **state) {
  (void)state;
  uint32_t most = 0, changes = 0, stuck = 0;
  for (uint64_t seed = 1; seed <= 1500; seed++) {
    uint16_t n = (uint16_t)(3 + seed % 5);
    net_t *t = network(n, seed);
    t->loss = 0.3 * chance(t);
    t->twice = 0.3 * chance(t);
    t->jitter = (uint32_t)(chance(t) * 3 * RETRY);
    uint32_t dead = 0;
    for (int act = 0; act < 12; act++) {
      uint16_t r = (uint16_t)(chance(t) * n);
      double what = chance(t);
      if (what < 0.15 && 2 * (dead + 1) < n && !t->dead[r]) {
        t->dead[r] = true;
        dead++;
      } else if (what < 0.5) {
        cut_off(t, r, true);
      } else if (what < 0.85) {
        cut_off(t, r, false);
      } else {
        tb_view_join(&t->v[r], t->now);
      }
      suspect(t);
      until(t, t->now + (uint64_t)(chance(t) * 30 * RETRY));
    }
    t->loss = t->twice = 0;
    memset(t->cut, 0, sizeof t->cut);
    uint32_t number = 0;
    for (int again = 0; again < 40; again++) { /* the living find together: those out join, laggards are told */
      suspect(t);
      for (uint16_t r = 0; r < n; r++) {
        if (t->dead[r]) continue;
        if (!tb_view_in(&t->v[r])) tb_view_join(&t->v[r], t->now);
        for (uint16_t p = 0; p < n; p++)
          if (!t->dead[p] && t->v[p].number != t->v[r].number) tb_view_stranger(&t->v[p], r, t->v[r].number);
        if (t->v[r].number > number) number = t->v[r].number;
      }
      until(t, t->now + 100 * RETRY);
    }
    const tb_members *last = &t->decided[number].members;
    uint32_t alive = 0, of = number > 1 ? tb_member_count(last) : n;
    for (uint16_t r = 0; r < n; r++) alive += !t->dead[r] && (number == 1 || tb_member(last, r));
    if (2 * alive <= of) { /* at most half of the last view lives: it can never change again */
      stuck++;
      continue;
    }
    for (uint16_t r = 0; r < n; r++) {
      if (t->dead[r]) continue;
      if (tb_member_count(&t->v[r].members) != n - dead)
        fail_msg("seed %llu: rank %u of %u has %u members, %u live", (unsigned long long)seed, r, n,
                 tb_member_count(&t->v[r].members), n - dead);
      changes += t->changes[r];
    }
    if (number > most) most = number;
  }
  print_message("  seeds 1..1500: %u changes seen, up to view %u; %u ended with half of the last view dead\n", changes,
                most, stuck);
  assert_true(changes > 3000 && stuck < 300);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(body__travels_whole),
    cmocka_unit_test(evict__a_dead_rank_leaves_the_view),
    cmocka_unit_test(evict__even_the_first_proposer_may_die),
    cmocka_unit_test(minority__never_shrinks),
    cmocka_unit_test(two_ranks__cannot_vote_each_other_out),
    cmocka_unit_test(suspicion__may_be_withdrawn),
    cmocka_unit_test(loss__every_subset),
    cmocka_unit_test(storm__one_view_per_number),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
