/* test_core_repair.c - what is lost is asked for and sent again, in good order (rule 20), and nobody sends more than
 * the receiver has granted (rule 21). */
#include "core_pair.h"

enum { COUNT = 4096 };
static const uint64_t EXACT = UINT64_MAX;

typedef struct {
  int every;                         /* of the data frames, one in so many is lost */
  uint32_t seen;
  uint64_t asked_at[CP_RANKS][CP_RANKS], asked, marks;
  uint64_t last_request;             /* by anyone */
  uint32_t told[CP_RANKS][CP_RANKS]; /* highest credit that has arrived: [granter][sender] */
  bool granted[CP_RANKS][CP_RANKS];
  uint32_t under_way, most;
  uint64_t mute_until;               /* nothing with a grant passes from 1 to 0 */
} book;

/* Receipts that arrive are noted: which of them ask? */
static bool asks(const cp_frame *f) {
  tb_receipt r;
  if (f->h.type != TB_T_RECEIPT || tb_receipt_decode(f->data + TB_HEAD, f->len - TB_HEAD, &r)) return false;
  const uint8_t *at = r.at;
  for (uint32_t i = 0; i < r.sections; i++) {
    tb_section s;
    tb_section_decode(at, &s);
    if (s.flags & TB_R_REQUEST) return true;
    at += TB_SECTION + 8u * s.ranges;
  }
  return false;
}

static int watch(cp *net, cp_frame *f) {
  book *k = net->ctx;
  if (asks(f)) {
    uint64_t *last = &k->asked_at[f->src][f->dst], rto = tb_rto(net->core[f->src], &net->core[f->src]->peer[f->dst]);
    /* One outstanding request per peer: no new one within a retransmission time-out, but in a hurry. */
    const tb_op *op = net->core[f->src]->ops;
    bool hurry = op && tb_urgent(op, &net->core[f->src]->peer[f->dst], net->now);
    if (*last && net->now - *last < rto && !hurry)
      fail_msg("rank %u asks rank %u again after %.3f ms; rto %.3f ms", f->src, f->dst,
               (double)(net->now - *last) * 1e-6, (double)rto * 1e-6);
    *last = k->last_request = net->now;
    k->asked++;
  }
  if (f->h.type == TB_T_PROBE && f->data[TB_HEAD + 1] == TB_P_MARK) k->marks++;
  /* Credit: what this frame grants counts from its arrival; what is sent must be below what has arrived. */
  if (f->h.type == TB_T_DATA) {
    uint32_t limit = net->opt.window, flying = 1;
    if (k->granted[f->dst][f->src]) limit = k->told[f->dst][f->src];
    if (!tb_before(f->h.step, limit))
      fail_msg("rank %u sends its data frame %u to rank %u, granted %u", f->src, f->h.step, f->dst, limit);
    for (cp_frame *g = net->wire; g; g = g->next)
      flying += g->h.type == TB_T_DATA && g->src == f->src && g->dst == f->dst;
    if (flying > k->most) k->most = flying;
  }
  if (k->every && f->h.type == TB_T_DATA && ++k->seen % (uint32_t)k->every == 0) return 0;
  if (net->now < k->mute_until && f->src == 1 && f->dst == 0) return 0;
  return 1;
}

/* A wire that tells the book what credit has arrived: frames are looked at again when they leave the wire. */
static void note_credit(cp *net) {
  book *k = net->ctx;
  for (cp_frame *f = net->wire; f && f->at <= net->now; f = f->next)
    if (!k->granted[f->src][f->dst] || tb_before(k->told[f->src][f->dst], f->h.credit)) {
      k->told[f->src][f->dst] = f->h.credit;
      k->granted[f->src][f->dst] = true;
    }
}

static void run(cp *net, cp_work *w, uint32_t n) {
  net->arrive = note_credit;
  cp_wait_all(net, w, n);
}

static cp *wire(uint32_t n, uint32_t window, book *k) {
  cp *net = cp_new(&(cp_options){.n = n, .chunk_bytes = 64, .window = window, .delay = 500000});
  net->ctx = k;
  net->fate = watch;
  net->arrive = note_credit;
  return net;
}

static void start(cp *net, uint16_t r, cp_work *w, float *x, uint64_t deadline) {
  cp_fill(x, COUNT, (float)(1 + r), 1);
  tb_call call = cp_call(deadline == EXACT ? "e" : "l", x, x, COUNT, deadline);
  assert_int_equal(cp_issue(net, r, w, &call), 0);
}

static cp_work w[CP_RANKS];
static float x[CP_RANKS][COUNT];

static void loss__is_repaired(void **state) {
  (void)state;
  for (uint32_t n = 2; n <= 4; n++)
    for (int every = 2; every <= 50; every = every * 2 + 1)
      for (int exact = 0; exact < 2; exact++) {
        book k = {.every = every};
        cp *net = wire(n, 64, &k);
        for (int round = 0; round < 2; round++) {
          for (uint16_t r = 0; r < n; r++) start(net, r, &w[r], x[r], exact ? EXACT : 2 * TB_SEC);
          run(net, w, n);
          for (uint16_t r = 0; r < n; r++) {
            assert_true(w[r].o.result.received == 1.0);
            cp_expect(w[r].result, COUNT, (float)(n * (n + 1) / 2), (float)n);
          }
          cp_work_free(w, n);
        }
        assert_true(k.asked > 0);
        cp_until(net, net->now + 20 * TB_SEC);
        for (uint16_t r = 0; r < n; r++) assert_int_equal(net->core[r]->memory, 0);
        cp_free(net);
      }
}

static void no_repair(tb_tunables *t) { t->repair = 0; }

/* Switched off, a lossy operation is best effort: what was lost stays lost, and nothing is sent twice. Exact ones go
 * on. */
static void repair__can_be_switched_off(void **state) {
  (void)state;
  book k = {.every = 10};
  cp *net = cp_new(&(cp_options){.n = 2, .chunk_bytes = 64, .window = 1024, .delay = 500000, .tune = no_repair});
  net->ctx = &k;
  net->fate = watch;
  for (uint16_t r = 0; r < 2; r++) start(net, r, &w[r], x[r], TB_SEC);
  run(net, w, 2);
  assert_int_equal(k.asked, 0);
  for (uint16_t r = 0; r < 2; r++) {
    assert_int_equal(net->core[r]->peer[1 - r].n.repaired, 0);
    assert_int_equal(net->data_sent[r][1 - r], COUNT * sizeof(float) / 64);
    double received = w[r].o.result.received;
    if (received < 0.8 || received > 0.96) fail_msg("received %.3f of what one loss in ten leaves in two stages", received);
  }
  cp_work_free(w, 2);
  for (uint16_t r = 0; r < 2; r++) start(net, r, &w[r], x[r], EXACT);
  run(net, w, 2);
  for (uint16_t r = 0; r < 2; r++) cp_expect(w[r].result, COUNT, 3, 2);
  cp_work_free(w, 2);
  cp_free(net);
}

/* No request when less than a round trip remains: the answer could not come in time. */
static void request__not_within_the_last_round_trip(void **state) {
  (void)state;
  book k = {.every = 2};
  cp *net = wire(2, 256, &k);
  for (uint16_t r = 0; r < 2; r++) start(net, r, &w[r], x[r], EXACT); /* so that the round trip is known */
  run(net, w, 2);
  cp_work_free(w, 2);
  cp_until(net, net->now + TB_SEC);
  for (uint64_t ms = 2; ms < 30; ms++) {
    uint64_t began = net->now, deadline = ms * TB_MS, trip = net->core[0]->peer[1].srtt;
    k.last_request = 0;
    for (uint16_t r = 0; r < 2; r++) start(net, r, &w[r], x[r], deadline);
    run(net, w, 2);
    assert_true(trip >= TB_MS);
    if (k.last_request && k.last_request > began + deadline - trip + 1)
      fail_msg("asked %.3f ms before the end", (double)(began + deadline - k.last_request) * 1e-6);
    for (uint16_t r = 0; r < 2; r++) assert_true(w[r].done_at <= began + deadline);
    cp_work_free(w, 2);
    cp_until(net, net->now + 100 * TB_MS);
  }
  cp_free(net);
}

static int mute_receipts(cp *net, cp_frame *f) {
  watch(net, f);
  return !(f->src == 1 && net->now < ((book *)net->ctx)->mute_until && f->h.type != TB_T_OPEN);
}

/* The last-chunk mark is repeated each RTO, backing off, until receipted; then no more. */
static void mark__repeats_until_receipted(void **state) {
  (void)state;
  book k = {0};
  cp *net = wire(2, 1024, &k);
  for (uint16_t r = 0; r < 2; r++) start(net, r, &w[r], x[r], EXACT);
  run(net, w, 2);
  cp_work_free(w, 2);
  cp_until(net, net->now + TB_SEC);
  k.marks = 0;
  k.mute_until = net->now + TB_SEC;
  net->fate = mute_receipts;
  for (uint16_t r = 0; r < 2; r++) start(net, r, &w[r], x[r], EXACT);
  cp_until(net, k.mute_until);
  uint64_t during = k.marks;
  assert_in_range(during, 6, 60); /* doubling from a few ms up to rto_max = 200 ms */
  cp_until(net, net->now + 400 * TB_MS); /* each side's mark comes once more at most */
  run(net, w, 2);
  uint64_t after = k.marks;
  cp_until(net, net->now + 5 * TB_SEC);
  assert_int_equal(k.marks, after);
  assert_true(after <= during + 8);
  cp_work_free(w, 2);
  cp_free(net);
}

/* "All lost" is told from "not sent": every first transmission is lost, the mark tells. */
static int lose_the_first_second(cp *net, cp_frame *f) {
  book *k = net->ctx;
  watch(net, f);
  return !(f->h.type == TB_T_DATA && net->now < k->mute_until);
}

static void mark__tells_that_all_was_lost(void **state) {
  (void)state;
  book k = {.mute_until = TB_SEC + 20 * TB_MS};
  cp *net = wire(2, 1024, &k);
  net->fate = lose_the_first_second;
  for (uint16_t r = 0; r < 2; r++) start(net, r, &w[r], x[r], 2 * TB_SEC);
  run(net, w, 2);
  for (uint16_t r = 0; r < 2; r++) {
    assert_true(w[r].o.result.received == 1.0);
    assert_true(w[r].done_at < TB_SEC + 500 * TB_MS);
  }
  cp_work_free(w, 2);
  cp_free(net);
}

static void credit__is_never_exceeded(void **state) {
  (void)state;
  for (uint32_t window = 1; window <= 64; window *= 4) {
    book k = {.every = 7};
    cp *net = wire(3, window, &k);
    net->core[0]->tune.window_min = net->core[1]->tune.window_min = net->core[2]->tune.window_min = 1;
    for (uint32_t r = 0; r < 3; r++) tb_core_set_chunk(net->core[r], 64, window);
    for (uint16_t r = 0; r < 3; r++) start(net, r, &w[r], x[r], EXACT);
    run(net, w, 3);
    for (uint16_t r = 0; r < 3; r++) cp_expect(w[r].result, COUNT, 6, 3);
    assert_in_range(k.most, 1, window);
    assert_true(net->core[0]->peer[1].n.credit_stalls > 0);
    cp_work_free(w, 3);
    cp_free(net);
  }
}

/* Grants that were lost come again: the stalled sender asks each RTO. */
static void credit__survives_lost_grants(void **state) {
  (void)state;
  book k = {.mute_until = 0};
  cp *net = wire(2, 16, &k);
  for (uint16_t r = 0; r < 2; r++) start(net, r, &w[r], x[r], EXACT);
  cp_until(net, net->now + 3 * TB_MS);
  k.mute_until = net->now + 300 * TB_MS;
  uint64_t before = 0;
  cp_until(net, k.mute_until - 1);
  before = net->data_sent[0][1];
  assert_false(w[0].done);
  assert_true(before <= 16u + k.told[1][0]); /* stalled, not sending into the dark */
  run(net, w, 2);
  for (uint16_t r = 0; r < 2; r++) cp_expect(w[r].result, COUNT, 3, 2);
  assert_true(w[0].done_at < k.mute_until + TB_SEC);
  cp_work_free(w, 2);
  cp_free(net);
}

/* Rule 20: repairs take at most a quarter of the paced rate (with a burst of 16). */
static void repair__takes_at_most_a_quarter(void **state) {
  (void)state;
  enum { WINDOW = 128 };
  book k = {.mute_until = TB_SEC + 20 * TB_MS};
  cp *net = wire(2, WINDOW, &k);
  net->fate = lose_the_first_second; /* all that was sent so far is asked for at once */
  for (uint16_t r = 0; r < 2; r++) start(net, r, &w[r], x[r], EXACT);
  uint64_t last = 0, most = 0, quarter = WINDOW / 4 + 16 + 1;
  for (int t = 0; !(w[0].done && w[1].done) && t < 10000; t++) {
    cp_until(net, net->now + net->opt.delay * 2); /* one round trip */
    uint64_t repaired = net->core[0]->peer[1].n.repaired;
    assert_true(net->core[0]->peer[1].peer_window <= WINDOW);
    if (repaired - last > most) most = repaired - last;
    last = repaired;
  }
  assert_true(w[0].done && w[1].done);
  assert_in_range(last, 100, 2000);
  assert_in_range(most, 1, quarter);
  cp_work_free(w, 2);
  cp_free(net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(loss__is_repaired),
    cmocka_unit_test(repair__can_be_switched_off),
    cmocka_unit_test(request__not_within_the_last_round_trip),
    cmocka_unit_test(mark__repeats_until_receipted),
    cmocka_unit_test(mark__tells_that_all_was_lost),
    cmocka_unit_test(credit__is_never_exceeded),
    cmocka_unit_test(credit__survives_lost_grants),
    cmocka_unit_test(repair__takes_at_most_a_quarter),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
