/* test_view_odd.c - votes beside what is unusual: a rank that speaks and hears nothing, questions that come long after
 * they were asked. */
#include "view_net.h"

/* Rank 0 hears nobody, so it asks and asks. That must not keep the others from a vote that they can win. */
static void deaf__rank_holds_up_no_vote(void **state) {
  (void)state;
  for (uint16_t deaf = 0; deaf < 4; deaf++) {
    net_t *t = network(5, 1);
    t->dead[4] = true;
    for (uint16_t p = 0; p < 5; p++) t->cut[p][deaf] = p != deaf;
    suspect(t);
    until(t, 300 * RETRY);
    for (uint16_t r = 0; r < 4; r++) {
      if (r == deaf) continue;
      if (t->v[r].number < 2) fail_msg("rank %u deaf: rank %u is in view %u", deaf, r, t->v[r].number);
      assert_false(tb_member(&t->v[r].members, 4));
    }
  }
}

static void vote_out(net_t *t, uint16_t rank) {
  cut_off(t, rank, true);
  suspect(t);
  until(t, t->now + 100 * RETRY);
}

static void let_in(net_t *t, uint16_t rank) {
  cut_off(t, rank, false);
  suspect(t);
  tb_view_stranger(&t->v[rank ? 0 : 1], rank, t->v[rank].number);
  until(t, t->now + 2 * DELAY);
  tb_view_join(&t->v[rank], t->now);
  until(t, t->now + 100 * RETRY);
}

/* Only who asks in the present view is let in: what it asked long ago says nothing of today, and it would jump over the
 * view that it was not in. */
static void join__of_an_earlier_view_is_not_believed(void **state) {
  (void)state;
  net_t *t = network(4, 1);
  vote_out(t, 3);
  tb_view_msg join = {.kind = TB_V_JOIN, .view = t->v[0].number};
  let_in(t, 3);
  assert_int_equal(t->v[3].number, 3);
  vote_out(t, 3);
  assert_int_equal(t->v[0].number, 4);
  for (uint16_t r = 0; r < 3; r++) tb_view_heard(&t->v[r], 3, &join, t->now);
  until(t, t->now + 100 * RETRY);
  for (uint16_t r = 0; r < 3; r++) assert_int_equal(t->v[r].number, 4);
}

/* A rank that was cut off while the others had no rounds suspects all of them, and they nobody. When it is back the
 * first few that answer its vote are a majority: nobody may be voted out for being the last to answer. */
static void outage__costs_nobody_its_place(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 200; seed++) {
    uint16_t n = (uint16_t)(3 + seed % 5), lone = (uint16_t)(seed / 5 % n);
    net_t *t = network(n, seed);
    t->jitter = 6 * DELAY;
    t->hears = true; /* and nothing but the vote's own frames tells who lives */
    cut_off(t, lone, true);
    tb_members all = tb_members_all(n);
    tb_member_drop(&all, lone);
    tb_view_suspect(&t->v[lone], &all, t->now);
    until(t, 100 * RETRY + seed * 17);
    memset(t->cut, 0, sizeof t->cut);
    until(t, t->now + 200 * RETRY);
    for (uint16_t r = 0; r < n; r++)
      if (tb_member_count(&t->v[r].members) != n)
        fail_msg("seed %llu: rank %u has %u of %u members in view %u", (unsigned long long)seed, r,
                 tb_member_count(&t->v[r].members), n, t->v[r].number);
  }
}

/* Who comes back has heard nobody for long, for it was cut off: that is no suspicion. */
static void join__brings_no_old_suspicions(void **state) {
  (void)state;
  net_t *t = network(5, 1);
  vote_out(t, 4); /* each side suspects the other */
  cut_off(t, 4, false);
  tb_view_stranger(&t->v[0], 4, 1);
  until(t, t->now + 2 * DELAY);
  tb_view_join(&t->v[4], t->now);
  until(t, t->now + 100 * RETRY);
  for (uint16_t r = 0; r < 5; r++) {
    assert_int_equal(t->v[r].number, 3);
    assert_int_equal(tb_member_count(&t->v[r].members), 5);
  }
}

/* A member that was cut off since somebody asked it has to be asked again. */
static void join__is_forgotten_with_its_view(void **state) {
  (void)state;
  net_t *t = network(5, 1);
  vote_out(t, 4);
  cut_off(t, 3, true);
  tb_view_msg join = {.kind = TB_V_JOIN, .view = 2};
  tb_view_heard(&t->v[3], 4, &join, t->now); /* it cannot do anything about it now */
  cut_off(t, 4, false);
  t->cut[4][3] = t->cut[3][4] = true;
  tb_membership *v = t->v;
  tb_members none = {{0}};
  for (uint16_t r = 0; r < 3; r++) tb_view_suspect(&v[r], &none, t->now);
  tb_view_stranger(&v[0], 4, 1);
  until(t, t->now + 2 * DELAY);
  tb_view_join(&v[4], t->now);
  until(t, t->now + 100 * RETRY);
  assert_int_equal(v[4].number, 3);
  cut_off(t, 4, true); /* in, and out again */
  tb_members four = {{0}};
  tb_member_add(&four, 4);
  for (uint16_t r = 0; r < 3; r++) tb_view_suspect(&v[r], &four, t->now);
  until(t, t->now + 100 * RETRY);
  assert_int_equal(v[0].number, 4);
  assert_int_equal(v[3].number, 2);
  cut_off(t, 3, false);
  cut_off(t, 4, true);
  tb_view_stranger(&v[0], 3, 2);
  until(t, t->now + 200 * RETRY);
  for (uint16_t r = 0; r < 4; r++) assert_int_equal(v[r].number, 4);
}

/* Whoever missed a commit learns it from the next frame of any other. */
static void frames_of_all(net_t *t) {
  for (uint16_t r = 0; r < t->n; r++)
    for (uint16_t p = 0; p < t->n; p++) {
      t->posted = 0;
      if (p != r && !t->dead[p] && !t->dead[r]) tb_view_stranger(&t->v[p], r, t->v[r].number);
    }
  until(t, t->now + RETRY);
}

static void all_have(net_t *t, uint16_t first, uint32_t members) {
  frames_of_all(t);
  for (uint16_t r = first; r < t->n; r++) assert_int_equal(tb_member_count(&t->v[r].members), members);
}

/* Of many ranks few can be asked at a time. That those who come first are dead, or out, keeps nobody from reaching the
 * others: neither a vote nor who wants to come back. */
static void room__for_a_few_letters_reaches_everybody(void **state) {
  (void)state;
  net_t *t = network(9, 1);
  t->room = 3;
  for (uint16_t r = 0; r < 4; r++) t->dead[r] = true;
  suspect(t);
  until(t, 200 * RETRY);
  all_have(t, 4, 5);
  memset(t->dead, 0, sizeof t->dead);
  suspect(t);
  frames_of_all(t);
  for (uint16_t r = 0; r < 4; r++) tb_view_join(&t->v[r], t->now);
  until(t, t->now + 500 * RETRY);
  all_have(t, 0, 9);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(deaf__rank_holds_up_no_vote),
    cmocka_unit_test(join__of_an_earlier_view_is_not_believed),
    cmocka_unit_test(join__brings_no_old_suspicions),
    cmocka_unit_test(join__is_forgotten_with_its_view),
    cmocka_unit_test(outage__costs_nobody_its_place),
    cmocka_unit_test(room__for_a_few_letters_reaches_everybody),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
