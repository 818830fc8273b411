/* test_timers.c - what is said again because time passed, and how often, to the microsecond of virtual time. */
#include "core_round.h"

/* When rank 0 spoke to rank 1, by kind of frame. */
typedef struct { uint64_t at[64]; uint32_t n, pings; } spoken;

static int listen(cp *net, cp_frame *f) {
  spoken *s = net->ctx;
  tb_probe probe;
  bool ping = f->h.type == TB_T_PROBE && !tb_probe_decode(f->data + TB_HEAD, f->len - TB_HEAD, &probe) && probe.kind == TB_P_PING;
  if (f->src == 0 && f->dst == 1 && ping && s->pings < 64) s->at[s->pings++] = net->now;
  return 1;
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

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(probe__each_second_of_silence),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
