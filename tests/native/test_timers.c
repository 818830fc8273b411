/* test_timers.c - what is said again because time passed, and how often, to the microsecond of virtual time. */
#include <errno.h>
#include "core_round.h"

/* What rank 0 said to rank 1: control frames, and when it pinged. */
typedef struct { uint64_t at[64]; uint32_t control, pings; } spoken;

static int listen(cp *net, cp_frame *f) {
  spoken *s = net->ctx;
  tb_probe probe;
  bool ping = f->h.type == TB_T_PROBE && !tb_probe_decode(f->data + TB_HEAD, f->len - TB_HEAD, &probe) &&
      probe.kind == TB_P_PING;
  if (f->src != 0 || f->dst != 1) return 1;
  s->control += f->h.type != TB_T_DATA;
  if (ping && s->pings < 64) s->at[s->pings++] = net->now;
  return 1;
}

static int lose_all(cp *net, cp_frame *f) {
  (void)net;
  return f->h.type != TB_T_DATA;
}

/* A peer that is silent while it owes data is probed each probe_every since it was last heard, not a little later; also
 * where nothing else has a clock, because it had taken all that it was sent before it fell silent. */
static void probes_each_second(uint64_t stops_after) {
  spoken s = {0};
  cp *net = cp_plain(2);
  round_of(net, "k", 0, 2, EXACT);
  cp_until(net, net->now + 300 * TB_MS + 1);
  net->fate = listen;
  net->ctx = &s;
  cp_work w;
  float x[COUNT];
  uint64_t issued = net->now;
  net->stopped[1] = stops_after == 0;
  assert_int_equal(start(net, 0, &w, "k", x, EXACT), 0);
  cp_until(net, issued + stops_after);
  net->stopped[1] = true;
  uint64_t heard = net->core[0]->peer[1].last_heard, since = heard > issued ? heard : issued;
  cp_wait(net, &w);
  assert_int_equal(w.o.result.status, -EHOSTDOWN);
  assert_int_equal(net->now - since, 10 * TB_SEC); /* peer_timeout */
  assert_int_equal(s.pings, 9);
  for (uint32_t i = 0; i < s.pings; i++) assert_int_equal(s.at[i] - since, (i + 1) * TB_SEC);
  cp_work_free(&w, 1);
  cp_free(net);
}

static void probe__each_second_of_silence(void **state) {
  (void)state;
  probes_each_second(0);
  probes_each_second(50 * TB_MS);
}

/* A clock that was measured to run late is asked to ring earlier by as much, at most by an eighth of the time there
 * is. */
static void deadline__is_kept_by_a_late_clock(void **state) {
  (void)state;
  static const uint64_t late[][2] = {{0, 0}, {TB_MS, TB_MS}, {5 * TB_MS, 20 * TB_MS / 8}};
  for (int i = 0; i < 3; i++) {
    cp *net = cp_plain(2);
    cp_work w;
    float x[COUNT];
    net->stopped[1] = true;
    net->core[0]->lateness = late[i][0];
    assert_int_equal(start(net, 0, &w, "k", x, 20 * TB_MS), 0);
    cp_wait(net, &w);
    assert_true(w.o.result.deadline_hit);
    assert_int_equal(w.o.result.elapsed_ns, 20 * TB_MS - late[i][1]);
    cp_work_free(&w, 1);
    cp_free(net);
  }
}

/* Control frames are under no credit: what a stopped peer gets of them, whatever waits for it, is a trickle. */
static void repeats__to_a_stopped_peer_are_a_trickle(void **state) {
  (void)state;
  for (uint32_t window = 4; window <= 1024; window *= 256) { /* out of credit; or all sent, and no receipt */
    spoken s = {0};
    cp *net = cp_new(&(cp_options){.n = 2, .chunk_bytes = 64, .window = window, .delay = 100000});
    round_of(net, "k", 0, 2, EXACT);
    static float x[2][4000];
    cp_work w[2];
    tb_call call[2];
    for (uint16_t r = 0; r < 2; r++) {
      cp_fill(x[r], 4000, 1, 1);
      call[r] = cp_call("big", x[r], x[r], 4000, EXACT);
    }
    net->fate = listen;
    net->ctx = &s;
    net->stopped[1] = true;
    assert_int_equal(cp_issue(net, 0, &w[0], &call[0]), 0);
    cp_until(net, net->now + 9 * TB_SEC);
    assert_in_range(s.control, 9, 150); /* each RTO would be 9,000 */
    net->stopped[1] = false; /* and when it wakes it is not kept waiting */
    uint64_t woke = net->now;
    assert_int_equal(cp_issue(net, 1, &w[1], &call[1]), 0);
    cp_wait_all(net, w, 2);
    assert_int_equal(w[0].o.result.status, 0);
    assert_in_range(net->now - woke, 0, 250 * TB_MS);
    cp_work_free(w, 2);
    cp_free(net);
  }
}

/* A call's clock begins before its transform, which may take long: no sign that this rank's timers run late. */
static void lateness__is_not_what_a_transform_takes(void **state) {
  (void)state;
  cp *net = cp_plain(2);
  static cp_work w[2];
  static float x[2][COUNT];
  cp_until(net, net->now + 100 * TB_MS);
  uint64_t began = net->now - 30 * TB_MS, before = net->core[0]->lateness;
  for (uint16_t r = 0; r < 2; r++) {
    tb_call call = cp_call("k", x[r], x[r], COUNT, 100 * TB_MS);
    w[r] = (cp_work){.net = net, .rank = r, .out = x[r], .in_bytes = 0, .out_bytes = sizeof x[r]};
    assert_int_equal(tb_core_issue(net->core[r], &call, r ? net->now : began, net->now, &w[r].o), 0);
  }
  assert_true(tb_core_next(net->core[0]) >= net->now); /* tb_pump_overdue looks at this */
  tb_core_timers(net->core[0], net->now);
  assert_int_equal(net->core[0]->lateness, before);
  net->fate = lose_all;
  cp_wait_all(net, w, 2);
  assert_int_equal(w[0].o.result.deadline_ns, 100 * TB_MS);
  assert_in_range(w[0].done_at - began, 99 * TB_MS, 100 * TB_MS); /* the deadline counts from the call */
  assert_in_range(w[0].o.result.elapsed_ns, 99 * TB_MS, 100 * TB_MS);
  cp_work_free(w, 2);
  cp_free(net);
}

/* Once per operation after 5 s, then each minute: not a silent wait without end. */
static void wait__for_an_issue_is_told(void **state) {
  (void)state;
  cp *net = cp_plain(3);
  static cp_work w[3];
  static float x[3][COUNT];
  uint64_t began = net->now;
  for (uint16_t r = 0; r < 3; r++) assert_int_equal(start(net, r, &w[r], r == 1 ? "K" : "k", x[r], EXACT), 0);
  cp_until(net, began + 5 * TB_SEC - 1);
  assert_int_equal(net->lines, 0);
  cp_until(net, began + 5 * TB_SEC + TB_MS);
  assert_true(cp_logged(net, "rank 0 waits in all_reduce of key 'k', round 0: rank 1 is alive but has not issued it"));
  assert_true(cp_logged(net, "rank 1 waits in all_reduce of key 'K', round 0: rank 0 is alive but has not issued it"));
  assert_int_equal(net->lines, 3);
  cp_until(net, began + 64 * TB_SEC);
  assert_int_equal(net->lines, 3);
  cp_until(net, began + 67 * TB_SEC);
  assert_int_equal(net->lines, 6);
  for (uint16_t r = 0; r < 3; r++) {
    if (!w[r].done) tb_core_cancel(net->core[r], &w[r].o, -ECANCELED, "", net->now);
    cp_wait(net, &w[r]);
  }
  cp_work_free(w, 3);
  cp_free(net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(probe__each_second_of_silence),
    cmocka_unit_test(deadline__is_kept_by_a_late_clock),
    cmocka_unit_test(lateness__is_not_what_a_transform_takes),
    cmocka_unit_test(wait__for_an_issue_is_told),
    cmocka_unit_test(repeats__to_a_stopped_peer_are_a_trickle),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
