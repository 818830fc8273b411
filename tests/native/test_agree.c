/* test_agree.c - consistency="agree" (rule 17): the same bytes on all ranks, or an error. */
#include "core_pair.h"

enum { COUNT = 64, N = 3 };
static const uint64_t DEADLINE = 2 * TB_MS, START = TB_SEC;
static float x[N][COUNT];

static uint64_t heal_at; /* until then `lost` frames are lost */

static int no_stage2_to_rank1(cp *net, cp_frame *f) {
  return net->now >= heal_at || f->h.type != TB_T_DATA || f->h.stage != 2 || f->dst != 1;
}

static int nothing_from_rank0(cp *net, cp_frame *f) {
  return net->now >= heal_at || f->src != 0 || f->h.type == TB_T_OPEN;
}

static int mute_rank2(cp *net, cp_frame *f) {
  (void)net;
  return f->src != 2;
}

static void soon(tb_tunables *t) { t->peer_timeout = 50 * TB_MS; }

static void issue_within(cp *net, cp_work *w, uint16_t rank, double min_received, uint64_t deadline) {
  cp_fill(x[rank], COUNT, (float)(rank + 1), 1);
  tb_call call = cp_call("k", x[rank], x[rank], COUNT, deadline);
  call.consistency = TB_AGREE;
  call.min_received = min_received;
  w[rank].rank = rank;
  assert_int_equal(cp_issue(net, rank, &w[rank], &call), 0);
}

static void issue(cp *net, cp_work *w, uint16_t rank, double min_received) {
  issue_within(net, w, rank, min_received, DEADLINE);
}

static cp *joined(uint32_t n, int (*fate)(cp *net, cp_frame *f)) {
  cp *net = cp_new(&(cp_options){.n = n, .chunk_bytes = 16, .window = 256, .delay = 100000, .tune = soon});
  net->fate = fate;
  return net;
}

/* Without faults it costs nothing: it is over long before the deadline. */
static void agree__costs_nothing_when_all_arrives(void **state) {
  (void)state;
  cp *net = joined(N, NULL);
  cp_work w[N] = {{.rank = 0}};
  for (uint16_t r = 0; r < N; r++) issue(net, w, r, 0.5);
  cp_wait_all(net, w, N);
  for (int r = 0; r < N; r++) {
    assert_int_equal(w[r].o.result.verdict, TB_VERDICT_OK);
    assert_false(w[r].o.result.deadline_hit);
    cp_expect(w[r].result, COUNT, 6, 3);
  }
  cp_work_free(w, N);
  cp_free(net);
}

/* What a rank lacks at the deadline is repaired after it; the others have returned long before. */
static void agree__repairs_after_the_deadline(void **state) {
  (void)state;
  cp *net = joined(N, no_stage2_to_rank1);
  cp_work w[N] = {{.rank = 0}};
  heal_at = START + 2 * DEADLINE;
  for (uint16_t r = 0; r < N; r++) issue(net, w, r, 0.5);
  cp_wait(net, &w[0]);
  cp_wait(net, &w[2]);
  assert_true(w[0].done_at < START + DEADLINE && !w[1].done);
  cp_until(net, START + DEADLINE + TB_MS);
  assert_false(w[1].done);
  cp_wait(net, &w[1]);
  assert_true(w[1].done_at >= heal_at);
  assert_int_equal(w[1].o.result.status, 0);
  assert_true(w[1].o.result.deadline_hit);
  assert_memory_equal(w[0].result, w[1].result, sizeof x[0]);
  assert_memory_equal(w[0].result, w[2].result, sizeof x[0]);
  cp_work_free(w, N);
  cp_free(net);
}

static uint16_t deaf = N, mute = N; /* until heal_at: hears nothing of a round but that it began; is not heard */

static int one_is_cut_off(cp *net, cp_frame *f) {
  if (net->now >= heal_at) return 1;
  return f->src != mute && (f->dst != deaf || f->h.type == TB_T_OPEN);
}

static cp *with_known_trips(cp_work *w) {
  cp *net = cp_new(&(cp_options){.n = N, .chunk_bytes = 16, .window = 256, .delay = 100000});
  heal_at = 0;
  net->fate = one_is_cut_off;
  for (uint16_t r = 0; r < N; r++) issue(net, w, r, 0);
  cp_wait_all(net, w, N);
  cp_work_free(w, N);
  return net;
}

/* Rank 1 is deaf from the start of a round on; for how long after that it waits. `late`: so is rank 2's issue. */
static uint64_t deaf_waits(uint64_t outage, bool late) {
  cp_work w[N] = {{.rank = 0}};
  cp *net = with_known_trips(w);
  deaf = 1;
  heal_at = net->now + outage;
  for (uint16_t r = 0; r < N - late; r++) issue(net, w, r, 0);
  cp_wait(net, &w[1]);
  uint64_t waited = w[1].done_at - heal_at;
  assert_true(w[1].done_at >= heal_at);
  if (late) issue(net, w, N - 1, 0);
  cp_wait_all(net, w, N);
  for (int r = 1; r < N; r++) assert_memory_equal(w[0].result, w[r].result, sizeof x[0]);
  cp_work_free(w, N);
  cp_free(net);
  deaf = N;
  return waited;
}

/* Rank 1 comes to a round that is over at the others, and is not heard. */
static uint64_t mute_waits(uint64_t outage) {
  cp_work w[N] = {{.rank = 0}};
  cp *net = with_known_trips(w);
  issue(net, w, 0, 0);
  issue(net, w, 2, 0);
  cp_until(net, net->now + 5 * DEADLINE);
  mute = 1;
  heal_at = net->now + outage;
  issue_within(net, w, 1, 0, TB_SEC);
  cp_wait_all(net, w, N);
  uint64_t waited = w[1].done_at - heal_at;
  assert_true(w[1].done_at >= heal_at);
  for (int r = 1; r < N; r++) assert_memory_equal(w[0].result, w[r].result, sizeof x[0]);
  cp_work_free(w, N);
  cp_free(net);
  mute = N;
  return waited;
}

/* A rank waits for the next try after an outage, and the others for it in the next round: a part of the outage, not as
 * long again. */
static void agree__waits_little_longer_than_an_outage(void **state) {
  (void)state;
  for (uint64_t outage = 10 * TB_MS; outage < 400 * TB_MS; outage += outage / 8) {
    uint64_t most = outage / 4 + 3 * TB_MS;
    assert_in_range(deaf_waits(outage, false), 0, most);
    assert_in_range(deaf_waits(outage, true), 0, most); /* an owner's duty begins before its own call */
    assert_in_range(mute_waits(outage), 0, most);
  }
}

/* A chunk that nobody's data reached in time is never decided: every rank learns that, and has zero there. */
static void agree__what_was_never_decided_is_zero_everywhere(void **state) {
  (void)state;
  cp *net = joined(2, nothing_from_rank0);
  cp_work w[2] = {{.rank = 0}};
  heal_at = START + DEADLINE + TB_MS;
  issue(net, w, 0, 0);
  cp_until(net, START + DEADLINE + 2 * TB_MS); /* rank 1's owner duty has closed its shard: empty */
  issue(net, w, 1, 0);
  cp_wait_all(net, w, 2);
  assert_memory_equal(w[0].result, w[1].result, sizeof x[0]);
  uint64_t first, len;
  tb_geo_shard(&w[0].o.geometry, 1, &first, &len);
  for (uint64_t i = first; i < first + len; i++) assert_true(w[0].result[i] == 0);
  uint8_t mask[COUNT];
  tb_outcome_mask(&w[1].o, mask);
  for (uint64_t i = first; i < first + len; i++) assert_int_equal(mask[i], 0);
  cp_work_free(w, 2);
  cp_free(net);
}

/* One threshold, one verdict: with rank 2 unheard all say skip, though each has the whole of its own shard. */
static void agree__verdict_is_the_same_on_all_ranks(void **state) {
  (void)state;
  cp *net = joined(N, no_stage2_to_rank1);
  cp_work w[N] = {{.rank = 0}};
  heal_at = 0;
  issue(net, w, 0, 0.9);
  issue(net, w, 1, 0.9);
  cp_until(net, START + DEADLINE + 10 * TB_MS); /* rank 2 has closed its shard without its own part */
  issue(net, w, 2, 0.9);
  cp_wait_all(net, w, N);
  for (uint16_t r = 0; r < N; r++) {
    assert_int_equal(w[r].o.result.verdict, TB_VERDICT_SKIP);
    cp_expect(w[r].result, COUNT, (float)(r + 1), 1);
  }
  cp_work_free(w, N);
  cp_free(net);
}

/* A dead owner: an error with the input restored, never other bytes; then the key waits for resync. */
static void agree__dead_owner_is_an_error_until_resync(void **state) {
  (void)state;
  cp *net = joined(N, mute_rank2);
  cp_work w[N] = {{.rank = 0}}, again[N] = {{.rank = 0}};
  for (uint16_t r = 0; r < N; r++) issue(net, w, r, 0);
  cp_wait(net, &w[0]);
  cp_wait(net, &w[1]);
  for (uint16_t r = 0; r < 2; r++) {
    assert_int_equal(w[r].o.result.status, -EHOSTDOWN);
    cp_expect(w[r].result, COUNT, (float)(r + 1), 1);
    tb_call call = cp_call("k", x[r], x[r], COUNT, DEADLINE);
    call.consistency = TB_AGREE;
    again[r].rank = r;
    assert_int_equal(cp_issue(net, r, &again[r], &call), -ESTALE);
    uint32_t next;
    assert_int_equal(tb_core_next_round(net->core[r], "k", 1, &next), 0);
    assert_int_equal(next, 1);
    assert_int_equal(tb_core_resync(net->core[r], "k", 1, 0, net->now), -EINVAL);
    assert_int_equal(tb_core_resync(net->core[r], "k", 1, 7, net->now), 0);
  }
  net->fate = NULL;
  assert_int_equal(tb_core_resync(net->core[2], "k", 1, 7, net->now), w[2].done ? 0 : -EBUSY);
  cp_wait(net, &w[2]);
  assert_int_equal(tb_core_resync(net->core[2], "k", 1, 7, net->now), 0);
  for (uint16_t r = 0; r < N; r++) issue(net, again, r, 0);
  cp_wait_all(net, again, N);
  for (uint16_t r = 0; r < N; r++) {
    assert_int_equal(again[r].o.result.round, 7);
    cp_expect(again[r].result, COUNT, 6, 3);
  }
  cp_work_free(w, N);
  cp_work_free(again, N);
  cp_free(net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(agree__costs_nothing_when_all_arrives),
    cmocka_unit_test(agree__repairs_after_the_deadline),
    cmocka_unit_test(agree__waits_little_longer_than_an_outage),
    cmocka_unit_test(agree__what_was_never_decided_is_zero_everywhere),
    cmocka_unit_test(agree__verdict_is_the_same_on_all_ranks),
    cmocka_unit_test(agree__dead_owner_is_an_error_until_resync),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
