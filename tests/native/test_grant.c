/* test_grant.c - what a peer may send (grant.c) and what comes of it (rule 21): frames for a round that its receiver
 * has not opened, grants that are taken back, shares that go unused, and the turns that receivers ask for. */
#include "core_pair.h"

enum { COUNT = 65536 };

static float x[CP_RANKS][COUNT];
static cp_work w[CP_RANKS];

static void begin(cp *net, uint16_t r, uint64_t deadline) {
  cp_fill(x[r], COUNT, 1, 0);
  tb_call call = cp_call("k", x[r], x[r], COUNT, deadline);
  assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
}

static void finish(cp *net, uint32_t n) {
  cp_wait_all(net, w, n);
  for (uint32_t r = 0; r < n; r++) cp_expect(w[r].result, COUNT, (float)n, 0);
  cp_work_free(w, n);
  cp_free(net);
}

/* Frames for rank 1, which is stopped before it has opened the round; then it goes on and all is well. */
static uint64_t sent_ahead(void (*tune)(tb_tunables *t), double ns_per_byte) {
  cp *net = cp_new(&(cp_options){.n = 2, .chunk_bytes = 1024, .window = 128, .delay = 20000, .tune = tune});
  cp_until(net, TB_MS);
  tb_core_trip(net->core[0], 1, 40000);
  net->core[0]->measured = ns_per_byte > 0;
  net->core[0]->ns_per_byte = ns_per_byte;
  net->stopped[1] = true;
  begin(net, 0, UINT64_MAX);
  cp_until(net, net->now + 50 * TB_MS);
  uint64_t sent = net->data_sent[0][1];
  net->stopped[1] = false;
  begin(net, 1, UINT64_MAX);
  finish(net, 2);
  return sent;
}

static void little_early_cap(tb_tunables *t) { t->early_cap = 20 * (1024 + TB_HEAD); }

static void unscheduled__is_bounded_until_the_peer_opens(void **state) {
  (void)state;
  /* A path of 40 us that carries a byte in 0.5 ns each way holds 73 frames of 1088 bytes, both ways. */
  assert_int_equal(sent_ahead(NULL, 0.5), 73);
  /* A short one: a device's ring full, 64 KiB. */
  assert_int_equal(sent_ahead(NULL, 100), 64 * 1024 / (1024 + TB_HEAD));
  /* However much the path holds, no more than the memory for early rounds. */
  assert_int_equal(sent_ahead(little_early_cap, 0), 20);
  /* Where nothing is measured, the share of the buffer. */
  assert_int_equal(sent_ahead(NULL, 0), 128);
}

/* What owner duty takes in is no limit: a rank that only runs, and issues late, has got all of it by then. */
static void unscheduled__grows_by_what_owner_duty_takes_in(void **state) {
  (void)state;
  cp *net = cp_new(&(cp_options){.n = 2, .chunk_bytes = 1024, .window = 128, .delay = 20000, .tune = little_early_cap});
  cp_until(net, TB_MS);
  net->core[1]->tune.early_cap = 1 << 30; /* only the sender is held to little */
  begin(net, 0, UINT64_MAX);
  cp_until(net, net->now + 5 * TB_MS);
  assert_int_equal(net->data_sent[0][1], COUNT / 2 * sizeof(float) / 1024);
  begin(net, 1, UINT64_MAX);
  finish(net, 2);
}

static void grant(cp *net, uint32_t credit, uint64_t stamp) {
  static const uint8_t body[1] = {TB_BODY_VERSION};
  uint8_t frame[200];
  tb_head h = {.type = TB_T_GRANT, .hold_us = TB_HOLD_NONE, .remaining_us = TB_REMAINING_NONE, .credit = credit,
               .stamp_ns = (uint32_t)stamp};
  cp_give(net, 0, frame, cp_forge(net, 1, 0, &h, body, 1, frame));
}

static void grant__newest_counts_and_may_be_less(void **state) {
  (void)state;
  cp *net = cp_plain(2);
  const tb_peer *q = &net->core[0]->peer[1];
  cp_until(net, TB_SEC);
  grant(net, 100, 1000);
  assert_int_equal(q->credit, 100);
  grant(net, 40, 2000);
  assert_int_equal(q->credit, 40);
  grant(net, 100, 1500); /* overtaken on its way */
  assert_int_equal(q->credit, 40);
  grant(net, 60, 3000);
  assert_int_equal(q->credit, 60);
  cp_until(net, net->now + 2 * TB_SEC);
  grant(net, 70, 2500); /* stamps repeat every four seconds: after a silence whichever comes is the newest */
  assert_int_equal(q->credit, 70);
  cp_free(net);
}

/* Whatever is promised and has not come fits into the buffer, also while shares are lent and come back. */
typedef struct { uint64_t most; bool slow; } account;

static int within_the_buffer(cp *net, cp_frame *f) {
  account *k = net->ctx;
  if (f->src == 1 && k->slow) f->at += 150000; /* what it was lent is still outstanding when the others begin */
  const tb_core *c = net->core[0];
  uint64_t sum = 0, counted = 0;
  for (uint32_t p = 1; p < net->n; p++) {
    sum += c->peer[p].granted - c->peer[p].seen;
    counted += c->peer[p].promised;
  }
  assert_int_equal(counted, c->grants[0].promised);
  if (sum > net->opt.window * (net->n - 1u)) fail_msg("promised %lu frames of %u", sum, net->opt.window * (net->n - 1u));
  if (c->peer[1].granted - c->peer[1].seen > k->most) k->most = c->peer[1].granted - c->peer[1].seen;
  return 1;
}

static void send_to_0(cp *net, uint16_t from, float *in, float *out, cp_work *a, cp_work *b) {
  cp_fill(in, COUNT, 2, 0);
  tb_call call = cp_call(NULL, in, in, COUNT, UINT64_MAX);
  call.kind = TB_SEND;
  call.root = 0;
  assert_int_equal(cp_issue(net, from, a, &call), 0);
  call = cp_call(NULL, out, out, COUNT, UINT64_MAX);
  call.kind = TB_RECV;
  call.root = from;
  assert_int_equal(cp_issue(net, 0, b, &call), 0);
}

static void no_pool(tb_tunables *t) { t->grant_pool = 0; }

static uint64_t most_of_one(void (*tune)(tb_tunables *t)) {
  static float out[CP_RANKS][COUNT];
  static cp_work b[CP_RANKS];
  account k = {0};
  cp *net = cp_new(&(cp_options){.n = 4, .chunk_bytes = 1024, .window = 16, .delay = 100000, .tune = tune});
  net->ctx = &k;
  for (uint16_t r = 0; r < 4; r++)
    for (uint16_t p = 0; p < 4; p++)
      if (p != r) tb_core_trip(net->core[r], p, 200000);
  cp_until(net, 10 * TB_MS);
  net->fate = within_the_buffer;
  for (int round = 0; round < 2; round++) { /* one alone, then all */
    uint16_t last = round ? 3 : 1;
    k.slow = round;
    for (uint16_t p = 1; p <= last; p++) send_to_0(net, p, x[p], out[p], &w[p], &b[p]);
    for (uint16_t p = 1; p <= last; p++) {
      cp_wait(net, &w[p]);
      cp_wait(net, &b[p]);
      cp_expect(b[p].result, COUNT, 2, 0);
      cp_work_free(&w[p], 1);
      cp_work_free(&b[p], 1);
    }
  }
  assert_int_equal(net->core[0]->grants[0].returned, 0); /* all have sent, and have their shares back */
  cp_free(net);
  return k.most;
}

static void pool__lends_what_is_unused_and_never_more(void **state) {
  (void)state;
  assert_int_equal(most_of_one(NULL), 16 + 2 * 8); /* its own share, and half of two others' */
  assert_int_equal(most_of_one(no_pool), 16);
}

static void from_1(cp *net, uint8_t type, uint32_t step) {
  static const uint8_t ping[12] = {TB_BODY_VERSION, TB_P_PING};
  uint8_t frame[200];
  tb_head h = {.type = type, .stage = type == TB_T_DATA, .hold_us = TB_HOLD_NONE, .remaining_us = TB_REMAINING_NONE, .step = step};
  (void)tb_core_rx(net->core[0], frame, cp_forge(net, 1, 0, &h, ping, sizeof ping, frame), TB_FROM_UNKNOWN, net->now);
}

/* What lacks of the data is the same, whether a control frame tells of it first or the next data frame. */
static void missing__is_of_data_frames(void **state) {
  (void)state;
  cp *net = cp_plain(2);
  tb_core_trip(net->core[0], 1, 200000);
  const tb_rate *r = &net->core[0]->rate;
  for (uint32_t i = 0; i < 10; i++) from_1(net, TB_T_DATA, i);
  from_1(net, TB_T_PROBE, 20);
  from_1(net, TB_T_DATA, 20);
  assert_int_equal(r->missing, 10);
  from_1(net, TB_T_PROBE, 24); /* these are only overtaken */
  for (uint32_t i = 21; i < 24; i++) from_1(net, TB_T_DATA, i);
  assert_int_equal(r->missing, 10);
  for (uint32_t i = 10; i < 16; i++) from_1(net, TB_T_DATA, i);
  assert_int_equal(r->missing, 4);
  cp_free(net);
}

/* Nobody waits for who has left, and it will not come to use its share. */
static void pool__lends_what_a_rank_that_left_will_not_need(void **state) {
  (void)state;
  static float out[COUNT];
  cp_work a, b;
  uint32_t most = 0;
  cp *net = cp_new(&(cp_options){.n = 4, .chunk_bytes = 1024, .window = 16, .delay = 100000});
  for (uint16_t p = 1; p < 4; p++) {
    tb_core_trip(net->core[0], p, 200000);
    tb_core_trip(net->core[p], 0, 200000);
  }
  tb_core_goodbye(net->core[3]);
  cp_until(net, 10 * TB_MS);
  net->stopped[3] = true;
  send_to_0(net, 1, x[1], out, &a, &b);
  const tb_peer *q = &net->core[0]->peer[1];
  for (; !b.done; cp_until(net, net->now + 50000))
    if (q->granted - q->seen > most) most = q->granted - q->seen;
  assert_int_equal(most, 16 + 2 * 8);
  cp_wait(net, &a);
  cp_work_free(&a, 1);
  cp_work_free(&b, 1);
  cp_free(net);
}

static void incast__shortens_turns_to_what_the_most_modest_asks_for(void **state) {
  (void)state;
  cp *net = cp_plain(8);
  tb_core *c = net->core[0];
  assert_int_equal(tb_rate_burst(c, 1000), 16);
  assert_int_equal(tb_rate_burst(c, 5), 16);
  tb_rate_incast_told(c, 3, UINT8_MAX); /* all of them */
  assert_int_equal(tb_rate_burst(c, 1000), 16);
  tb_rate_incast_told(c, 1, 4);
  assert_int_equal(tb_rate_burst(c, 1000), 1 + 15 * 3 / 6);
  tb_rate_incast_told(c, 2, 1);
  assert_int_equal(tb_rate_burst(c, 1000), 1);
  tb_rate_incast_told(c, 2, 200);
  assert_int_equal(tb_rate_burst(c, 1000), 1 + 15 * 3 / 6);
  c->peer[1].absent = true;
  tb_peer_presence(c, 1); /* whoever is away asks for nothing */
  assert_int_equal(tb_rate_burst(c, 1000), 16);
  c->peer[1].absent = false;
  tb_peer_presence(c, 1);
  assert_int_equal(tb_rate_burst(c, 1000), 1 + 15 * 3 / 6);
  tb_rate_incast_told(c, 1, 0);
  assert_int_equal(tb_rate_burst(c, 1000), 16);
  tb_rate_incast_told(c, 1, 1);
  c->tune.incast_policy = TB_INCAST_FIXED;
  assert_int_equal(tb_rate_burst(c, 1000), 16);
  assert_int_equal(tb_rate_incast(c), 0);
  c->tune.incast_policy = TB_INCAST_DYNAMIC;
  assert_int_equal(tb_rate_incast(c), UINT8_MAX);
  c->rate.incast = 2;
  assert_int_equal(tb_rate_incast(c), 2);
  cp_free(net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(unscheduled__is_bounded_until_the_peer_opens),
    cmocka_unit_test(unscheduled__grows_by_what_owner_duty_takes_in),
    cmocka_unit_test(grant__newest_counts_and_may_be_less),
    cmocka_unit_test(pool__lends_what_is_unused_and_never_more),
    cmocka_unit_test(pool__lends_what_a_rank_that_left_will_not_need),
    cmocka_unit_test(missing__is_of_data_frames),
    cmocka_unit_test(incast__shortens_turns_to_what_the_most_modest_asks_for),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
