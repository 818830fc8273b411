/* test_members.c - the view in the core (rule 9): a silent rank is voted out and its shard is taken over; what was in
 * flight ends as it should; whoever comes back is let in, in step. */
#include "core_round.h"

enum { N = 4, CHUNK = 16 };
static const uint64_t DEADLINE = 2 * TB_MS;
static cp *net;
static uint64_t mute_until; /* rank 3 is not heard, nor hears */

static int cut_off_rank3(cp *t, cp_frame *f) { return t->now >= mute_until || (f->src != 3 && f->dst != 3); }

static void soon(tb_tunables *t) {
  t->peer_timeout = 20 * TB_MS;
  t->probe_every = 2 * TB_MS;
  t->evict_after = 4;
}

static int begin(void **state) {
  (void)state;
  net = cp_new(&(cp_options){.n = N, .chunk_bytes = CHUNK, .window = 256, .delay = 100000, .tune = soon});
  net->fate = cut_off_rank3;
  mute_until = 0;
  return 0;
}

static int end(void **state) {
  (void)state;
  cp_free(net);
  return 0;
}

static uint32_t view_of(uint16_t r) { return tb_core_members(net->core[r], NULL); }

static bool member(uint16_t r, uint16_t who) {
  uint8_t m[N];
  tb_core_members(net->core[r], m);
  return m[who];
}

/* Lossy rounds of ranks 0 to 2, until they have another view. */
static void vote_out_rank3(const char *key) {
  mute_until = UINT64_MAX;
  for (int i = 0; view_of(0) == 1 || view_of(1) == 1 || view_of(2) == 1; i++) {
    assert_true(i < 100);
    round_of(net, key, 0, 3, DEADLINE);
  }
  for (uint16_t r = 0; r < 3; r++) {
    assert_int_equal(view_of(r), 2);
    assert_true(member(r, 0) && member(r, 1) && member(r, 2) && !member(r, 3));
  }
}

/* Ranks for which nothing has failed since the view changed are told by their next exact call, once. */
static void hear_of_it(uint32_t n) {
  static float x[COUNT];
  for (uint16_t r = 0; r < n; r++) {
    cp_work w = {.net = net, .rank = r};
    if (net->core[r]->untold) assert_int_equal(start(net, r, &w, "any", x, EXACT), -ENETRESET);
    assert_false(net->core[r]->untold);
  }
}

static void check_round(cp_work *w, uint32_t first, uint32_t n, float sum_first, float step, uint32_t view) {
  for (uint32_t r = first; r < first + n; r++) {
    assert_int_equal(w[r].o.result.status, 0);
    assert_int_equal(w[r].o.result.verdict, TB_VERDICT_OK);
    assert_true(w[r].o.result.received == 1);
    assert_int_equal(w[r].o.result.view, view);
    assert_int_equal(w[r].o.result.round, w[first].o.result.round);
    cp_expect(w[r].result, COUNT, sum_first, step);
  }
}

static void evict__its_shard_is_taken_over(void **state) {
  (void)state;
  static cp_work w[N];
  static float x[N][COUNT];
  round_of(net, "k", 0, N, DEADLINE);
  vote_out_rank3("k");
  assert_true(cp_logged(net, "view 2: rank 3 left; 3 of 4 ranks are members"));
  for (uint16_t r = 0; r < 3; r++) assert_int_equal(start(net, r, &w[r], "k", x[r], DEADLINE), 0);
  cp_wait_all(net, w, 3);
  check_round(w, 0, 3, 6, 3, 2); /* nothing is missing: neither values, nor of the three contributions */
  uint8_t mask[COUNT];
  tb_outcome_mask(&w[1].o, mask);
  for (int i = 0; i < COUNT; i++) assert_int_equal(mask[i], 1);
  assert_true(w[0].o.per_peer[0][3] == -1 && w[0].o.per_peer[0][2] == 1);
  assert_true(w[0].o.result.round >= net->core[0]->vote.base);
  assert_true(w[0].done_at - w[0].o.issued_ns < TB_MS); /* nobody is waited for */
  cp_work_free(w, 3);
}

/* The exact class cannot go on without the dead one: what waits fails, and the next call works. */
static void evict__exact_operations_fail_once(void **state) {
  (void)state;
  static cp_work w[N];
  static float x[N][COUNT];
  round_of(net, "k", 0, N, DEADLINE);
  mute_until = UINT64_MAX;
  for (int i = 0; i < 6; i++) round_of(net, "k", 0, 3, DEADLINE);
  for (uint16_t r = 0; r < 3; r++) assert_int_equal(start(net, r, &w[r], "e", x[r], EXACT), 0);
  for (int i = 0; view_of(0) == 1; i++) { /* waits go on while lossy rounds count its silence */
    assert_true(i < 100);
    round_of(net, "k", 0, 3, DEADLINE);
  }
  cp_wait_all(net, w, 3);
  for (uint16_t r = 0; r < 3; r++) {
    assert_int_equal(w[r].o.result.status, -ENETRESET); /* before peer_timeout has passed for it */
    cp_expect(w[r].result, COUNT, (float)(1 + r), 1); /* the input is back */
  }
  cp_work_free(w, 3);
  for (uint16_t r = 0; r < 3; r++) assert_int_equal(start(net, r, &w[r], "e", x[r], EXACT), 0);
  cp_wait_all(net, w, 3);
  check_round(w, 0, 3, 6, 3, 2);
  cp_work_free(w, 3);
}

/* Without a lossy round: an exact one fails after peer_timeout, perhaps some calls are refused at once, then the view
 * changes. */
static void evict__by_exact_operations_alone(void **state) {
  (void)state;
  static cp_work w[N];
  static float x[N][COUNT];
  mute_until = UINT64_MAX;
  int failed = 0;
  for (; view_of(0) == 1 && failed < 20; failed++) {
    int rc[3];
    for (uint16_t r = 0; r < 3; r++) rc[r] = start(net, r, &w[r], "e", x[r], EXACT);
    for (uint16_t r = 0; r < 3; r++) {
      if (!rc[r]) cp_wait(net, &w[r]);
      assert_int_equal(rc[r] ? rc[r] : w[r].o.result.status, -EHOSTDOWN);
    }
    cp_work_free(w, 3);
    cp_until(net, net->now + TB_MS);
  }
  assert_true(failed >= 1 && failed <= 6);
  hear_of_it(3);
  for (uint16_t r = 0; r < 3; r++) assert_int_equal(start(net, r, &w[r], "e", x[r], EXACT), 0);
  cp_wait_all(net, w, 3);
  check_round(w, 0, 3, 6, 3, 2);
  cp_work_free(w, 3);
}

static void evict__needs_a_majority(void **state) {
  (void)state;
  net->stopped[2] = net->stopped[3] = true; /* two of four: at most half is left */
  for (int i = 0; i < 50; i++) round_of(net, "k", 0, 2, DEADLINE);
  assert_int_equal(view_of(0), 1);
  net->stopped[2] = false; /* whoever answers the vote is not voted out by it */
  for (int i = 0; i < 20; i++) round_of(net, "k", 0, 3, DEADLINE);
  for (uint16_t r = 0; r < 3; r++) {
    assert_int_equal(view_of(r), 2);
    assert_true(member(r, 2) && !member(r, 3));
  }
}

static void evict__can_be_switched_off(void **state) {
  (void)state;
  mute_until = UINT64_MAX;
  for (uint16_t r = 0; r < N; r++) net->core[r]->tune.evict_after = 0;
  for (int i = 0; i < 100; i++) round_of(net, "k", 0, 3, DEADLINE);
  for (uint16_t r = 0; r < 3; r++) assert_int_equal(view_of(r), 1);
}

/* It was only cut off: it learns from the first frame that it is out, asks, and is in again, in step with the
 * others. */
static void rejoin__after_it_was_voted_out(void **state) {
  (void)state;
  static cp_work w[N], back;
  static float x[N][COUNT];
  round_of(net, "k", 0, N, DEADLINE);
  vote_out_rank3("k");
  assert_int_equal(start(net, 3, &w[3], "k", x[3], DEADLINE), 0); /* alone: it does not know yet */
  cp_wait(net, &w[3]);
  cp_work_free(&w[3], 1);
  mute_until = 0;
  assert_int_equal(start(net, 3, &w[3], "e", x[3], EXACT), 0);
  cp_wait(net, &w[3]);
  assert_int_equal(w[3].o.result.status, -ENETRESET);
  cp_expect(w[3].result, COUNT, 4, 1);
  cp_work_free(&w[3], 1);
  assert_int_equal(view_of(3), 2);
  assert_true(cp_logged(net, "view 2: this rank (3) was voted out; 3 of 4 ranks are members"));
  assert_int_equal(start(net, 3, &w[3], "k", x[3], DEADLINE), -ENETRESET);
  assert_non_null(strstr(w[3].o.error, "rejoin()"));
  cp_until(net, net->now + 100 * TB_MS);
  assert_int_equal(view_of(0), 2); /* it does not come back by itself */
  back = (cp_work){.net = net, .rank = 3};
  assert_int_equal(tb_core_rejoin(net->core[3], net->now, &back.o), 0);
  cp_wait(net, &back);
  assert_int_equal(back.o.result.status, 0);
  assert_int_equal(back.o.result.view, 3);
  assert_true(cp_logged(net, "view 3: this rank (3) is back; 4 of 4 ranks are members"));
  cp_until(net, net->now + TB_MS);
  for (int round = 0; round < 3; round++) {
    for (uint16_t r = 0; r < N; r++) assert_int_equal(start(net, r, &w[r], "k", x[r], DEADLINE), 0);
    cp_wait_all(net, w, N);
    check_round(w, 0, N, 10, 4, 3);
    cp_work_free(w, N);
  }
  assert_true(net->core[0]->untold && !net->core[3]->untold); /* who came back knows it */
  hear_of_it(N);
  for (uint16_t r = 0; r < N; r++) assert_int_equal(start(net, r, &w[r], "e", x[r], EXACT), 0);
  cp_wait_all(net, w, N);
  check_round(w, 0, N, 10, 4, 3);
  cp_work_free(w, N);
  cp_work_free(&back, 1);
}

static void rejoin__of_a_member_is_over_at_once_and_waiting_can_end(void **state) {
  (void)state;
  cp_work a = {.net = net, .rank = 0}, b = {.net = net, .rank = 0};
  assert_int_equal(tb_core_rejoin(net->core[0], net->now, &a.o), 0);
  assert_int_equal(a.done, 1);
  cp_work_free(&a, 1);
  vote_out_rank3("k");
  mute_until = net->now + 50 * TB_MS;
  cp_until(net, mute_until);
  round_of(net, "k", 0, 3, DEADLINE); /* its frames tell rank 3 */
  cp_until(net, net->now + 300 * TB_MS);
  static float x[COUNT];
  cp_work w = {.net = net, .rank = 3};
  if (!start(net, 3, &w, "k", x, DEADLINE)) cp_wait(net, &w);
  cp_work_free(&w, 1);
  cp_until(net, net->now + 10 * TB_MS);
  assert_int_equal(view_of(3), 2);
  mute_until = UINT64_MAX;
  b = (cp_work){.net = net, .rank = 3};
  assert_int_equal(tb_core_rejoin(net->core[3], net->now, &b.o), 0);
  cp_until(net, net->now + TB_SEC);
  assert_int_equal(b.done, 0);
  assert_int_equal(tb_core_rejoin(net->core[3], net->now, &a.o), -EBUSY);
  tb_core_cancel(net->core[3], &b.o, -ECANCELED, "no patience", net->now);
  assert_int_equal(b.done, 1);
  assert_int_equal(b.o.result.status, -ECANCELED);
  cp_work_free(&b, 1);
}

static int one_result_for_rank3(cp *t, cp_frame *f) {
  bool result = f->h.type == TB_T_DATA && f->h.stage == 2 && f->dst == 3;
  return cut_off_rank3(t, f) && !(result && (f->src || f->h.chunk) && f->h.round == 0);
}

/* A round of its that was sure to be committed ends well. That it was voted out is told by the next call, and not a second time
 * when it is back. */
/* A member that asks all the same was not brought to the others' point by it: its next exact call still tells. */
static void rejoin__of_a_member_does_not_hide_a_change(void **state) {
  (void)state;
  static float x[COUNT];
  round_of(net, "k", 0, N, DEADLINE);
  vote_out_rank3("k");
  cp_work a = {.net = net, .rank = 0}, b = {.net = net, .rank = 0};
  assert_int_equal(tb_core_rejoin(net->core[0], net->now, &a.o), 0);
  assert_int_equal(a.done, 1);
  assert_int_equal(start(net, 0, &b, "e", x, EXACT), -ENETRESET);
  cp_work_free(&a, 1);
  cp_work_free(&b, 1);
}

static void rejoin__leaves_no_error_behind(void **state) {
  (void)state;
  static cp_work w, back, asks;
  static float x[COUNT], y[COUNT];
  net->fate = one_result_for_rank3;
  for (uint16_t r = 0; r < N; r++) net->core[r]->tune.peer_timeout = 10 * TB_MS;
  cp_fill(x, COUNT, 4, 1);
  tb_call call = cp_call("k", x, x, COUNT, TB_SEC);
  call.min_received = 0;
  assert_int_equal(cp_issue(net, 3, &w, &call), 0);
  round_of(net, "k", 0, 3, DEADLINE);
  assert_true(net->core[3]->ops->settled && !w.done);
  vote_out_rank3("k");
  mute_until = 0;
  assert_false(w.done);
  assert_int_equal(start(net, 3, &asks, "e", y, EXACT), 0); /* the answer is the view */
  cp_wait(net, &w);
  cp_wait(net, &asks);
  cp_work_free(&asks, 1);
  assert_int_equal(view_of(3), 2);
  assert_int_equal(w.o.result.status, 0);
  cp_work_free(&w, 1);
  assert_int_equal(start(net, 3, &w, "k", x, DEADLINE), -ENETRESET);
  back = (cp_work){.net = net, .rank = 3};
  assert_int_equal(tb_core_rejoin(net->core[3], net->now, &back.o), 0);
  cp_wait(net, &back);
  cp_work_free(&back, 1);
  assert_int_equal(start(net, 3, &w, "k", x, DEADLINE), 0);
  cp_wait(net, &w);
  cp_work_free(&w, 1);
}

static bool deaf; /* rank 3 speaks and hears nothing */
static int rank3_is_deaf(cp *t, cp_frame *f) { return cut_off_rank3(t, f) && !(deaf && f->dst == 3); }

/* Let in after it has stopped waiting: it has fetched nothing yet, and must be told so until it asks again. */
static void rejoin__given_up_is_no_rejoin(void **state) {
  (void)state;
  static cp_work w[N], back;
  static float x[N][COUNT];
  net->fate = rank3_is_deaf;
  vote_out_rank3("k");
  mute_until = 0;
  while (view_of(3) == 1)
    if (!start(net, 3, &w[3], "k", x[3], DEADLINE)) cp_wait(net, &w[3]), cp_work_free(&w[3], 1);
  deaf = true;
  back = (cp_work){.net = net, .rank = 3};
  assert_int_equal(tb_core_rejoin(net->core[3], net->now, &back.o), 0);
  cp_until(net, net->now + 20 * TB_MS);
  tb_core_cancel(net->core[3], &back.o, -ETIMEDOUT, "no patience", net->now);
  cp_work_free(&back, 1);
  deaf = false;
  assert_int_equal(view_of(0), 3);
  for (int i = 0; i < 10; i++) round_of(net, "k", 0, 3, DEADLINE);
  assert_int_equal(view_of(3), 3);
  assert_int_equal(start(net, 3, &w[3], "k", x[3], DEADLINE), -ENETRESET);
  back = (cp_work){.net = net, .rank = 3};
  assert_int_equal(tb_core_rejoin(net->core[3], net->now, &back.o), 0);
  assert_int_equal(back.done, 1);
  assert_int_equal(back.o.result.status, 0);
  cp_work_free(&back, 1);
  hear_of_it(N);
  for (uint16_t r = 0; r < N; r++) assert_int_equal(start(net, r, &w[r], "new", x[r], EXACT), 0);
  cp_wait_all(net, w, N);
  check_round(w, 0, N, 10, 4, 3);
  cp_work_free(w, N);
}

/* A key that some ranks used, and others did not yet: all of them are told, or those who are would wait for the rest in
 * resync, and the rest for them in the round. */
static void agreed_keys__that_are_new_to_some_want_it_on_all(void **state) {
  (void)state;
  static cp_work w[N], back;
  static float x[N][COUNT];
  tb_call call = cp_call("a", x[0], x[0], COUNT, DEADLINE);
  call.consistency = TB_AGREE;
  vote_out_rank3("k");
  for (uint16_t r = 0; r < 3; r++) { /* in this view it is new to everybody */
    uint32_t next;
    tb_core_next_round(net->core[r], "a", 1, &next);
    assert_int_equal(next, net->core[0]->vote.base);
    call.in = call.out = x[r];
    assert_int_equal(cp_issue(net, r, &w[r], &call), -ESTALE);
    assert_int_equal(tb_core_resync(net->core[r], "a", 1, next, net->now), 0);
    cp_fill(x[r], COUNT, (float)(1 + r), 1);
    assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
  }
  cp_wait_all(net, w, 3);
  check_round(w, 0, 3, 6, 3, 2);
  cp_work_free(w, 3);
  mute_until = 0;
  while (view_of(3) == 1)
    if (!start(net, 3, &w[3], "k", x[3], DEADLINE)) cp_wait(net, &w[3]), cp_work_free(&w[3], 1);
  back = (cp_work){.net = net, .rank = 3};
  assert_int_equal(tb_core_rejoin(net->core[3], net->now, &back.o), 0);
  cp_wait(net, &back);
  cp_work_free(&back, 1);
  cp_until(net, net->now + TB_MS);
  for (uint16_t r = 0; r < N; r++) {
    call.in = call.out = x[r];
    assert_int_equal(cp_issue(net, r, &w[r], &call), -ESTALE);
    assert_int_equal(tb_core_resync(net->core[r], "a", 1, 5, net->now), -ENETRESET); /* agreed on before the change */
  }
}

/* Some may have returned an agreed round that others did not: nobody goes on before resync, and then all do. */
static void agreed_keys__want_a_resync(void **state) {
  (void)state;
  static cp_work w[N];
  static float x[N][COUNT];
  for (uint16_t r = 0; r < N; r++) {
    cp_fill(x[r], COUNT, (float)(1 + r), 1);
    tb_call call = cp_call("a", x[r], x[r], COUNT, DEADLINE);
    call.consistency = TB_AGREE;
    assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
  }
  cp_wait_all(net, w, N);
  cp_work_free(w, N);
  vote_out_rank3("k");
  uint32_t most = 0, next;
  for (uint16_t r = 0; r < 3; r++) {
    tb_call call = cp_call("a", x[r], x[r], COUNT, DEADLINE);
    call.consistency = TB_AGREE;
    assert_int_equal(cp_issue(net, r, &w[r], &call), -ESTALE);
    assert_int_equal(tb_core_next_round(net->core[r], "a", 1, &next), 0);
    if (next > most) most = next;
  }
  assert_int_equal(most, net->core[0]->vote.base);
  for (uint16_t r = 0; r < 3; r++) {
    assert_int_equal(tb_core_resync(net->core[r], "a", 1, most, net->now), 0);
    cp_fill(x[r], COUNT, (float)(1 + r), 1);
    tb_call call = cp_call("a", x[r], x[r], COUNT, DEADLINE);
    call.consistency = TB_AGREE;
    assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
  }
  cp_wait_all(net, w, 3);
  check_round(w, 0, 3, 6, 3, 2);
  cp_work_free(w, 3);
}

/* A member that missed the vote is one question behind. */
static void stranger__learns_what_it_missed(void **state) {
  (void)state;
  static cp_work w[N];
  static float x[N][COUNT];
  round_of(net, "k", 0, N, DEADLINE);
  mute_until = UINT64_MAX;
  net->core[2]->tune.evict_after = 0;
  for (int i = 0; view_of(0) == 1; i++) {
    assert_true(i < 100);
    net->stopped[2] = i >= 2; /* it votes, or not; then it sleeps */
    if (i < 2) round_of(net, "k", 0, 3, DEADLINE);
    else round_of(net, "k", 0, 2, DEADLINE);
    if (i == 60) net->stopped[2] = false;
    if (i > 60) break;
  }
  net->stopped[2] = false;
  for (int i = 0; i < 5 && view_of(2) == 1; i++) round_of(net, "k", 0, 3, DEADLINE);
  cp_until(net, net->now + 100 * TB_MS);
  assert_true(view_of(2) > 1 && view_of(2) == view_of(0) && view_of(1) == view_of(0));
  for (uint16_t r = 0; r < 3; r++) assert_int_equal(start(net, r, &w[r], "k", x[r], DEADLINE), 0);
  cp_wait_all(net, w, 3);
  check_round(w, 0, 3, 6, 3, view_of(0));
  cp_work_free(w, 3);
}

static bool behind_the_vote; /* what rank 2 says of its rounds is not heard in the vote */
static int rank2_is_not_counted(cp *t, cp_frame *f) {
  return cut_off_rank3(t, f) && !(behind_the_vote && f->src == 2 && f->h.type == TB_T_VIEW);
}

/* Who has issued more rounds than the vote knew of goes back to where all go on: else its order would be another for
 * ever. */
static void rounds__beyond_the_base_are_void(void **state) {
  (void)state;
  enum { AHEAD = 100, FIVE = 5 };
  static cp_work many[AHEAD], w[FIVE];
  static float x[AHEAD][COUNT], y[FIVE][COUNT];
  cp_free(net);
  net = cp_new(&(cp_options){.n = FIVE, .chunk_bytes = CHUNK, .window = 256, .delay = 100000, .tune = soon});
  net->fate = rank2_is_not_counted;
  round_of(net, "k", 0, FIVE, DEADLINE);
  for (int i = 0; i < AHEAD; i++) assert_int_equal(start(net, 2, &many[i], "", x[i], EXACT), 0);
  behind_the_vote = true;
  mute_until = UINT64_MAX;
  for (int i = 0; view_of(0) == 1 || view_of(2) == 1; i++) { /* rank 4 has nothing to do but to vote */
    assert_true(i < 100);
    round_of(net, "k", 0, 3, DEADLINE);
    behind_the_vote = view_of(0) == 1;
  }
  cp_wait_all(net, many, AHEAD);
  for (int i = 0; i < AHEAD; i++)
    assert_true(many[i].o.result.status == -ENETRESET || many[i].o.result.status == -EHOSTDOWN);
  cp_work_free(many, AHEAD);
  assert_true(net->core[0]->vote.base < AHEAD && view_of(4) == 2);
  hear_of_it(3);
  assert_int_equal(start(net, 4, &w[4], "", y[4], EXACT), -ENETRESET);
  for (int round = 0; round < 3; round++) {
    for (uint16_t r = 0; r < FIVE; r++)
      if (r != 3) assert_int_equal(start(net, r, &w[r], "", y[r], EXACT), 0);
    for (uint16_t r = 0; r < FIVE; r++)
      if (r != 3) cp_wait(net, &w[r]);
    for (uint16_t r = 0; r < FIVE; r++)
      if (r != 3) check_round(w, r, 1, 11, 4, 2);
    for (uint16_t r = 0; r < FIVE; r++)
      if (r != 3) cp_work_free(&w[r], 1);
  }
}

/* With deadline=auto a rank that was not there, or came to a key later than others, has as many exact rounds before it
 * as all. */
static void automatic__begins_alike_on_all_ranks(void **state) {
  (void)state;
  static cp_work w[N];
  static float x[N][COUNT];
  for (int i = 0; i < 4; i++) round_of(net, "t", 0, N, 0);
  vote_out_rank3("k");
  for (int i = 0; i < 12; i++) round_of(net, "t", 0, 3, 0);
  for (int i = 0; i < 12; i++) round_of(net, "", 0, 3, 0);
  for (int i = 0; i < 12; i++) round_of(net, "late", 0, 3, 0);
  mute_until = 0;
  cp_work told = {.net = net, .rank = 3}, back = {.net = net, .rank = 3};
  while (view_of(3) == 1)
    if (!start(net, 3, &told, "k", x[3], DEADLINE)) cp_wait(net, &told), cp_work_free(&told, 1);
  assert_int_equal(tb_core_rejoin(net->core[3], net->now, &back.o), 0);
  cp_wait(net, &back);
  cp_work_free(&back, 1);
  cp_until(net, net->now + TB_MS);
  const char *keys[] = {"t", "", "late"};
  for (int k = 0; k < 3; k++)
    for (int i = 0; i < 12; i++) {
      for (uint16_t r = 0; r < N; r++) assert_int_equal(start(net, r, &w[r], keys[k], x[r], 0), 0);
      cp_wait_all(net, w, N);
      for (uint16_t r = 0; r < N; r++)
        assert_int_equal(w[r].o.result.deadline_ns == UINT64_MAX, i < 8);
      check_round(w, 0, N, 10, 4, 3);
      cp_work_free(w, N);
    }
}

/* Messages of two ranks that stay go on as if nothing had happened; those with one that left fail. */
static void messages__between_members_go_on(void **state) {
  (void)state;
  static float out[COUNT], in[COUNT], lost[2][COUNT];
  cp_work s = {.net = net}, r = {.net = net}, d = {.net = net};
  round_of(net, "k", 0, N, DEADLINE);
  cp_fill(out, COUNT, 5, 1);
  tb_call call = {.struct_size = sizeof call, .kind = TB_SEND, .dtype = TB_F32, .count = COUNT, .in = out, .root = 1,
                  .deadline_ns = EXACT};
  assert_int_equal(cp_issue(net, 0, &s, &call), 0);
  tb_call dead = call;
  dead.root = 3;
  dead.in = lost[0];
  mute_until = UINT64_MAX;
  assert_int_equal(cp_issue(net, 0, &d, &dead), 0);
  vote_out_rank3("k");
  assert_int_equal(s.done, 0);
  assert_int_equal(d.done, 1);
  assert_true(d.o.result.status == -ENETRESET || d.o.result.status == -EHOSTDOWN);
  call = (tb_call){.struct_size = sizeof call, .kind = TB_RECV, .dtype = TB_F32, .count = COUNT, .out = in, .root = 0,
                   .deadline_ns = EXACT};
  assert_int_equal(cp_issue(net, 1, &r, &call), 0);
  cp_wait(net, &r);
  cp_wait(net, &s);
  assert_int_equal(r.o.result.status, 0);
  cp_expect(r.result, COUNT, 5, 1);
  call.root = 3;
  call.out = lost[1];
  cp_work refused = {.net = net};
  assert_int_equal(cp_issue(net, 1, &refused, &call), -EHOSTDOWN);
  assert_non_null(strstr(refused.o.error, "voted out"));
  cp_work_free(&s, 1);
  cp_work_free(&r, 1);
  cp_work_free(&d, 1);
  cp_work_free(&refused, 1);
}

enum { ROUNDS = 60 };
static double total[N][COUNT];

/* Rounds of the survivors under carry in which each gives ones, then flush, with the exact sum done by hand. What they
 * gave is in everybody's total, except what is told to be dropped. */
static uint64_t carried_rounds(uint32_t rounds) {
  static cp_work w[N];
  static float x[N][COUNT], rest[COUNT];
  for (uint32_t i = 0; i < rounds; i++) {
    for (uint16_t r = 0; r < 3; r++) {
      for (int k = 0; k < COUNT; k++) x[r][k] = 1;
      tb_call call = cp_call("c", x[r], x[r], COUNT, DEADLINE);
      call.missing = TB_CARRY;
      call.min_received = 0;
      assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
    }
    cp_wait_all(net, w, 3);
    for (uint16_t r = 0; r < 3; r++)
      for (int k = 0; k < COUNT; k++) total[r][k] += (double)w[r].result[k];
    cp_work_free(w, 3);
  }
  for (uint16_t r = 0; r < 3; r++) assert_int_equal(view_of(r), 2);
  uint64_t lost = 0;
  cp_work s[N] = {{.rank = 0}};
  for (uint16_t r = 0; r < 3; r++) {
    s[r] = (cp_work){.net = net, .rank = r};
    uint32_t next;
    assert_int_equal(tb_core_next_round(net->core[r], "c", 1, &next), 0);
    assert_int_equal(tb_core_flush_begin(net->core[r], "c", 1, next, net->now), 0);
    assert_int_equal(tb_core_settle(net->core[r], "c", 1, net->now, &s[r].o), 0);
  }
  cp_wait_all(net, s, 3);
  for (uint16_t r = 0; r < 3; r++) {
    assert_int_equal(tb_core_flush_take(net->core[r], "c", 1, rest, sizeof rest), 0);
    for (uint16_t q = 0; q < 3; q++)
      for (int k = 0; k < COUNT; k++) total[q][k] += (double)rest[k];
    memset(rest, 0, sizeof rest);
    assert_int_equal(tb_core_flush_end(net->core[r], "c", 1, rest, sizeof rest), 0);
    for (int k = 0; k < COUNT; k++) total[r][k] += (double)rest[k];
    lost += net->core[r]->n.dropped_values;
  }
  cp_work_free(s, 3);
  return lost;
}

/* Rule 15 across a change: what the silent owner did not take, and what it took and told nobody of, is in the sums that
 * follow. */
static void carry__goes_on_with_other_shards(void **state) {
  (void)state;
  memset(total, 0, sizeof total);
  mute_until = UINT64_MAX;
  assert_int_equal(carried_rounds(ROUNDS), 0);
  for (uint16_t r = 0; r < 3; r++)
    for (int k = 0; k < COUNT; k++) assert_true(total[r][k] == 3 * ROUNDS);
}

static int rank2_misses_opens(cp *t, cp_frame *f) { /* of every other round, while the old view holds */
  bool open = f->dst == 2 && (f->h.type == TB_T_OPEN || f->h.type == TB_T_DATA);
  return cut_off_rank3(t, f) && !(behind_the_vote && open && f->h.round % 2 && f->h.view == 1);
}

/* Rounds of the old view that a rank learns of only after the change are cut into the shards of that view, not of
 * this. */
static void carry__rounds_missed_before_the_change_have_their_shards(void **state) {
  (void)state;
  enum { BEHIND = 12 };
  static cp_work w[2];
  static float x[2][COUNT], y[COUNT];
  memset(total, 0, sizeof total);
  net->fate = rank2_misses_opens;
  cp_work first[3] = {{.rank = 0}};
  tb_call call = cp_call("c", y, y, COUNT, DEADLINE);
  call.missing = TB_CARRY;
  call.min_received = 0;
  static float z[3][COUNT];
  for (uint16_t r = 0; r < 3; r++) { /* it knows the key, and then is behind */
    for (int k = 0; k < COUNT; k++) z[r][k] = 1;
    call.in = call.out = z[r];
    assert_int_equal(cp_issue(net, r, &first[r], &call), 0);
  }
  cp_wait_all(net, first, 3);
  for (uint16_t r = 0; r < 3; r++)
    for (int k = 0; k < COUNT; k++) total[r][k] += (double)first[r].result[k];
  cp_work_free(first, 3);
  behind_the_vote = true;
  mute_until = UINT64_MAX;
  for (uint32_t i = 0; i < BEHIND; i++) {
    for (uint16_t r = 0; r < 2; r++) {
      for (int k = 0; k < COUNT; k++) x[r][k] = 1;
      call.in = call.out = x[r];
      assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
    }
    cp_wait_all(net, w, 2);
    for (uint16_t r = 0; r < 2; r++)
      for (int k = 0; k < COUNT; k++) total[r][k] += (double)w[r].result[k];
    cp_work_free(w, 2);
  }
  for (int i = 0; view_of(0) == 1 || view_of(1) == 1 || view_of(2) == 1; i++) {
    assert_true(i < 100);
    round_of(net, "k", 0, 3, DEADLINE);
  }
  behind_the_vote = false;
  uint64_t lost = carried_rounds(1) + net->core[2]->n.rounds_lost;
  assert_int_equal(lost, 0);
  for (uint16_t r = 0; r < 3; r++)
    for (int k = 0; k < COUNT; k++)
      if (total[r][k] != 3 + 2 * BEHIND + 3) fail_msg("rank %u, element %d: %g of %d", r, k, total[r][k], 6 + 2 * BEHIND);
}

/* rank 3 counts, and is heard by rank 0 alone, for 3 ms; then dies */
static int deaf_but_to_stage1(cp *t, cp_frame *f) {
  bool with3 = f->src == 3 || f->dst == 3;
  if (!with3) return 1;
  return t->now < mute_until && (f->dst == 3 || (f->dst == 0 && f->h.chunk == 0));
}

/* A chunk that reached one survivor may hold what the others gave: they cannot have it back, and are told. */
static void carry__what_a_dead_owner_told_somebody_is_dropped_and_counted(void **state) {
  (void)state;
  memset(total, 0, sizeof total);
  net->fate = deaf_but_to_stage1;
  mute_until = net->now + 3 * TB_MS;
  uint64_t lost = carried_rounds(ROUNDS), given = 0, gone = 0;
  assert_in_range(lost, 1, 6 * COUNT / 4); /* parts of that shard in the few rounds until it died */
  for (int k = 0; k < COUNT; k++) {
    given += 3 * ROUNDS;
    gone += (uint64_t)(3 * ROUNDS - total[1][k]);
    assert_true(total[1][k] == total[2][k] && total[1][k] <= 3 * ROUNDS);
    assert_true(total[0][k] >= total[1][k] && total[0][k] <= 3 * ROUNDS); /* it has what the others lack */
  }
  assert_true(gone >= lost && gone < given / 10);
}

static uint64_t dice;
static int lossy_wire(cp *t, cp_frame *f) {
  dice ^= dice << 13;
  dice ^= dice >> 7;
  dice ^= dice << 17;
  return cut_off_rank3(t, f) && dice % 100 >= 15;
}

/* Votes, answers, commits and questions get lost like everything else. */
static void vote__gets_through_loss(void **state) {
  (void)state;
  for (uint64_t seed = 1; seed <= 60; seed++) {
    cp_free(net);
    begin(NULL);
    dice = seed * 0x9e3779b97f4a7c15ull;
    net->fate = lossy_wire;
    round_of(net, "k", 0, N, DEADLINE);
    vote_out_rank3("k");
    mute_until = 0;
    cp_work w = {.net = net, .rank = 3};
    static float x[COUNT];
    for (int i = 0; view_of(3) == 1; i++) {
      assert_true(i < 50);
      if (!start(net, 3, &w, "k", x, DEADLINE)) cp_wait(net, &w);
      cp_work_free(&w, 1);
    }
    w = (cp_work){.net = net, .rank = 3};
    assert_int_equal(tb_core_rejoin(net->core[3], net->now, &w.o), 0);
    uint64_t since = net->now;
    for (uint16_t r = 0; r < N; r++)
      while (view_of(r) != 3) {
        assert_true(net->now - since < TB_SEC);
        round_of(net, "k", 0, 3, DEADLINE);
      }
    cp_wait(net, &w);
    cp_work_free(&w, 1);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(evict__its_shard_is_taken_over, begin, end),
    cmocka_unit_test_setup_teardown(evict__exact_operations_fail_once, begin, end),
    cmocka_unit_test_setup_teardown(evict__by_exact_operations_alone, begin, end),
    cmocka_unit_test_setup_teardown(evict__needs_a_majority, begin, end),
    cmocka_unit_test_setup_teardown(evict__can_be_switched_off, begin, end),
    cmocka_unit_test_setup_teardown(rejoin__after_it_was_voted_out, begin, end),
    cmocka_unit_test_setup_teardown(rejoin__of_a_member_is_over_at_once_and_waiting_can_end, begin, end),
    cmocka_unit_test_setup_teardown(rejoin__of_a_member_does_not_hide_a_change, begin, end),
    cmocka_unit_test_setup_teardown(rejoin__leaves_no_error_behind, begin, end),
    cmocka_unit_test_setup_teardown(rejoin__given_up_is_no_rejoin, begin, end),
    cmocka_unit_test_setup_teardown(agreed_keys__want_a_resync, begin, end),
    cmocka_unit_test_setup_teardown(agreed_keys__that_are_new_to_some_want_it_on_all, begin, end),
    cmocka_unit_test_setup_teardown(stranger__learns_what_it_missed, begin, end),
    cmocka_unit_test_setup_teardown(rounds__beyond_the_base_are_void, begin, end),
    cmocka_unit_test_setup_teardown(automatic__begins_alike_on_all_ranks, begin, end),
    cmocka_unit_test_setup_teardown(messages__between_members_go_on, begin, end),
    cmocka_unit_test_setup_teardown(vote__gets_through_loss, begin, end),
    cmocka_unit_test_setup_teardown(carry__goes_on_with_other_shards, begin, end),
    cmocka_unit_test_setup_teardown(carry__rounds_missed_before_the_change_have_their_shards, begin, end),
    cmocka_unit_test_setup_teardown(carry__what_a_dead_owner_told_somebody_is_dropped_and_counted, begin, end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
