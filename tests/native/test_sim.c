/* test_sim.c - options, time, queues, back pressure, pauses and the log of the simulated network. */
#include "sim_fixture.h"

static void sim_new__refuses_bad_options_by_name(void **state) {
  (void)state;
  static const struct { const char *text, *says; } bad[] = {
    {"colour=red", "'colour' is unknown"}, {"rate=fast", "rate=fast"}, {"rate=-1", "rate=-1"}, {"loss=1.1", "loss=1.1"},
    {"loss=nan", "loss=nan"}, {"loss=0x1", "loss=0x1"}, {"mtu=63", "from 64 to 65535"}, {"mtu=70k", "mtu=70k"},
    {"delay=3 parsecs", "'parsecs'"}, {"delay=3parsecs", "delay=3parsecs"}, {"ref=maybe", "ref=maybe"},
    {"log=2", "log=2"},
    {"seed", "no value"}, {"seed=", "seed="}, {"tx_ring=0", "tx_ring=0"}, {"delay=never", "delay=never"},
    {"pause=5ms", "belongs to one endpoint"}, {"seed=18446744073709551616", "seed="},
  };
  char error[512];
  tb_sim *net;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    error[0] = 0;
    assert_int_equal(tb_sim_new(2, bad[i].text, &net, error, sizeof error), -EINVAL);
    if (!strstr(error, bad[i].says)) fail_msg("\"%s\" said \"%s\"", bad[i].text, error);
  }
  assert_int_equal(tb_sim_new(0, "", &net, error, sizeof error), -EINVAL);
  assert_int_equal(tb_sim_new(1025, "", &net, error, sizeof error), -EINVAL);
  assert_int_equal(tb_sim_new(2, "colour=red", &net, NULL, 0), -EINVAL);
}

static void sim_set__changes_nothing_on_error(void **state) {
  (void)state;
  sim_fixture s = sim_up(2, "rate=0 delay=5");
  char error[256];
  assert_int_equal(tb_sim_set(s.net, 0, 1, "delay=7, seed=3", error, sizeof error), -EINVAL);
  assert_non_null(strstr(error, "seed"));
  assert_int_equal(tb_sim_set(s.net, 0, 1, "delay=7, pause=3", error, sizeof error), -EINVAL);
  assert_int_equal(tb_sim_set(s.net, 2, 1, "delay=7", error, sizeof error), -EINVAL);
  assert_int_equal(tb_sim_set(s.net, 0, -2, "delay=7", error, sizeof error), -EINVAL);
  assert_int_equal(sim_send(&s, 0, 1, 1, 100), 1);
  tb_sim_run_until(s.net, 5);
  assert_int_equal(sim_take(&s, 1, NULL), 1);
  sim_down(&s);
}

static void run_until__serialises_crosses_and_serialises_again(void **state) {
  (void)state;
  sim_fixture s = sim_up(2, "rate=1G delay=20us log=1"); /* 1000 B = 8 us at either end */
  for (uint32_t i = 0; i < 3; i++) assert_int_equal(sim_send(&s, 0, 1, i, 1000), 1);
  assert_int_equal(tb_sim_next(s.net), 8000);
  tb_sim_run_until(s.net, 35999);
  assert_false(tb_sim_readable(s.net, 1));
  tb_sim_run_until(s.net, 36000);
  assert_true(tb_sim_readable(s.net, 1));
  tb_sim_run_until(s.net, FAR);
  assert_int_equal(tb_sim_now(s.net), FAR);
  assert_int_equal(tb_sim_next(s.net), UINT64_MAX);
  tb_sim_log log[4];
  assert_int_equal(sim_log(&s, log, 4), 3);
  for (uint32_t i = 0; i < 3; i++) {
    assert_int_equal(log[i].arrived_ns, 36000 + 8000 * i); /* a pipeline, not 36 us each */
    assert_int_equal(log[i].sent_ns, 0);
    assert_int_equal(sim_take(&s, 1, NULL), i);
  }
  assert_int_equal(sim_take(&s, 1, NULL), -1);
  assert_false(tb_sim_readable(s.net, 1));
  sim_down(&s);
}

static void set__a_direction_has_its_own_rate_and_delay(void **state) {
  (void)state;
  sim_fixture s = sim_up(3, "rate=0 delay=1us log=1");
  sim_set(&s, 0, 1, "rate=8M"); /* 1 us per byte */
  sim_set(&s, -1, -1, "delay=2us");
  sim_set(&s, 2, -1, "delay=.5us");
  assert_int_equal(sim_send(&s, 2, 1, 0, 100), 1);
  assert_int_equal(sim_send(&s, 2, 0, 0, 100), 1);
  assert_int_equal(sim_send(&s, 0, 2, 0, 100), 1);
  assert_int_equal(sim_send(&s, 0, 1, 0, 100), 1);
  tb_sim_run_until(s.net, FAR);
  tb_sim_log log[4];
  static const uint64_t want[] = {500, 500, 2000, 202000};
  assert_int_equal(sim_log(&s, log, 4), 4);
  for (int i = 0; i < 4; i++) assert_int_equal(log[i].arrived_ns, want[i]);
  sim_down(&s);
}

static void run_until__infinite_rate_leaves_now(void **state) {
  (void)state;
  sim_fixture s = sim_up(2, "rate=0 delay=0");
  tb_sim_run_until(s.net, 77);
  assert_int_equal(sim_send(&s, 0, 1, 5, 64), 1);
  assert_int_equal(tb_sim_next(s.net), 77);
  assert_false(tb_sim_readable(s.net, 1)); /* tx_burst moves nothing */
  tb_sim_run_until(s.net, 77);
  assert_int_equal(sim_take(&s, 1, NULL), 5);
  sim_down(&s);
}

static void tx_burst__takes_a_ring_full_and_tells_of_room(void **state) {
  (void)state;
  sim_fixture s = sim_up(2, "rate=8M delay=0 tx_ring=8"); /* 1 us per byte */
  tb_tx tx[20];
  for (int i = 0; i < 20; i++) tx[i] = (tb_tx){.peer = 1, .head = "abcd", .head_len = 4};
  assert_int_equal(L.tx_burst(s.at[0], 0, tx, 20), 8);
  assert_int_equal(L.tx_burst(s.at[0], 0, tx, 20), 0);
  tb_sim_run_until(s.net, 15999);
  assert_false(tb_sim_readable(s.net, 0));
  tb_sim_run_until(s.net, 16000); /* half the ring has left */
  assert_true(tb_sim_readable(s.net, 0));
  assert_int_equal(L.wait(s.at[0], 0, FAR), TB_WAIT_TX);
  assert_false(tb_sim_readable(s.net, 0));
  assert_int_equal(L.tx_burst(s.at[0], 0, tx, 20), 4);
  sim_down(&s);
}

static void port__drops_the_tail_of_an_incast(void **state) {
  (void)state;
  /* Two senders at the port's own rate: half is too much; the queue holds 10, the one in service included. */
  sim_fixture s = sim_up(3, "rate=1G delay=0 queue=10000 log=1");
  for (uint32_t i = 0; i < 50; i++)
    for (uint32_t src = 0; src < 2; src++) assert_int_equal(sim_send(&s, src, 2, i, 1000), 1);
  tb_sim_run_until(s.net, FAR);
  tb_sim_log log[100];
  unsigned fate[7] = {0};
  assert_int_equal(sim_log(&s, log, 100), 100);
  for (int i = 0; i < 100; i++) fate[log[i].fate]++;
  assert_int_equal(fate[0] + fate[2], 100);
  assert_int_equal(fate[0], 59); /* 49 have left when the last two come; 10 are in the queue then */
  sim_down(&s);
}

static void port__without_queue_still_takes_a_frame_when_idle(void **state) {
  (void)state;
  sim_fixture s = sim_up(2, "rate=1G delay=0 queue=0");
  for (uint32_t i = 0; i < 3; i++) {
    assert_int_equal(sim_send(&s, 0, 1, i, 1000), 1);
    tb_sim_run_until(s.net, tb_sim_now(s.net) + 20000);
    assert_int_equal(sim_take(&s, 1, NULL), i);
  }
  sim_down(&s);
}

static void pause__stops_the_endpoint_fills_its_ring_and_ends(void **state) {
  (void)state;
  sim_fixture s = sim_up(2, "rate=8G delay=0 rx_buffer=5000 log=1");
  assert_int_equal(sim_send(&s, 1, 0, 9, 1000), 1);
  sim_set(&s, 1, -1, "pause=1ms");
  assert_true(tb_sim_paused(s.net, 1));
  assert_false(tb_sim_paused(s.net, 0));
  for (uint32_t i = 0; i < 8; i++) assert_int_equal(sim_send(&s, 0, 1, i, 1000), 1);
  tb_sim_run_until(s.net, 500000);
  assert_false(tb_sim_readable(s.net, 1));
  assert_int_equal(sim_take(&s, 0, NULL), 9); /* its egress went on */
  assert_int_equal(tb_sim_next(s.net), 1000000);
  tb_sim_run_until(s.net, 1000000);
  assert_false(tb_sim_paused(s.net, 1));
  assert_true(tb_sim_readable(s.net, 1));
  for (uint32_t i = 0; i < 5; i++) assert_int_equal(sim_take(&s, 1, NULL), i);
  assert_int_equal(sim_take(&s, 1, NULL), -1);
  tb_link_stats stats;
  assert_int_equal(L.stats(s.at[1], &stats), 0);
  assert_int_equal(stats.rx_overflow, 3);
  tb_sim_log log[16];
  assert_int_equal(sim_log(&s, log, 16), 9);
  for (int i = 6; i < 9; i++) assert_int_equal(log[i].fate, 6);
  for (uint32_t i = 0; i < 5; i++) assert_int_equal(sim_send(&s, 0, 1, i, 1000), 1); /* there is room again */
  tb_sim_run_until(s.net, 1100000);
  for (uint32_t i = 0; i < 5; i++) assert_int_equal(sim_take(&s, 1, NULL), i);
  sim_set(&s, 1, -1, "pause=never");
  assert_true(tb_sim_paused(s.net, 1));
  assert_int_equal(tb_sim_next(s.net), UINT64_MAX);
  sim_set(&s, 1, -1, "pause=2s");
  sim_set(&s, 1, -1, "pause=0");
  assert_false(tb_sim_paused(s.net, 1));
  assert_int_equal(tb_sim_next(s.net), UINT64_MAX);
  sim_down(&s);
}

static void log__repeats_the_header_and_pages(void **state) {
  (void)state;
  sim_fixture s = sim_up(2, "rate=0 delay=3us log=1");
  uint8_t h[64] = {0};
  h[3] = 7, h[12] = 0xa1, h[15] = 0xa4, h[19] = 9, h[21] = 1, h[30] = 0x2f, h[59] = 5;
  tb_tx tx = {.peer = 0, .head = h, .head_len = sizeof h};
  tb_sim_run_until(s.net, 10);
  assert_int_equal(L.tx_burst(s.at[1], 0, &tx, 1), 1);
  assert_int_equal(sim_send(&s, 1, 0, 1, 63), 1); /* too short for a header */
  tb_sim_run_until(s.net, FAR);
  tb_sim_log log[2];
  assert_int_equal(tb_sim_log_read(s.net, 0, log, 1), 1);
  const tb_sim_log want = {.sent_ns = 10, .arrived_ns = 3010, .key = 0xa10000a4, .round = 9, .chunk = 0x10000,
                           .step = 5, .src = 1, .dst = 0, .type = 7, .stage = 2};
  assert_memory_equal(log, &want, sizeof want);
  assert_int_equal(tb_sim_log_read(s.net, 1, log, 2), 1);
  assert_int_equal(log[0].type, 0);
  assert_int_equal(tb_sim_log_read(s.net, 2, log, 2), 0);
  assert_int_equal(tb_sim_log_read(s.net, 99, log, 2), 0);
  sim_down(&s);
}

static void sim_new__holds_1024_endpoints(void **state) {
  (void)state;
  tb_sim *net;
  tb_link *a, *b;
  tb_addr addr;
  assert_int_equal(tb_sim_new(1024, "loss=0 dup=.5", &net, NULL, 0), 0);
  assert_int_equal(tb_sim_set(net, 3, -1, "dup=1", NULL, 0), 0);
  tb_link_cfg cfg = {.context = &(tb_sim_port){net, 3}};
  assert_int_equal(L.open(&cfg, &a), 0);
  cfg.context = &(tb_sim_port){net, 1023};
  assert_int_equal(L.open(&cfg, &b), 0);
  assert_int_equal(L.local_addr(b, &addr), 0);
  assert_int_equal(L.peer_add(a, 1023, &addr), 0);
  tb_tx tx = {.peer = 1023, .head = "x", .head_len = 1};
  tb_rx rx[3];
  assert_int_equal(L.tx_burst(a, 0, &tx, 1), 1);
  tb_sim_run_until(net, FAR);
  assert_int_equal(L.rx_burst(b, 0, rx, 3), 2);
  L.close(a);
  L.close(b);
  tb_sim_free(net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(sim_new__refuses_bad_options_by_name),
    cmocka_unit_test(sim_set__changes_nothing_on_error),
    cmocka_unit_test(run_until__serialises_crosses_and_serialises_again),
    cmocka_unit_test(set__a_direction_has_its_own_rate_and_delay),
    cmocka_unit_test(run_until__infinite_rate_leaves_now),
    cmocka_unit_test(tx_burst__takes_a_ring_full_and_tells_of_room),
    cmocka_unit_test(port__drops_the_tail_of_an_incast),
    cmocka_unit_test(port__without_queue_still_takes_a_frame_when_idle),
    cmocka_unit_test(pause__stops_the_endpoint_fills_its_ring_and_ends),
    cmocka_unit_test(log__repeats_the_header_and_pages),
    cmocka_unit_test(sim_new__holds_1024_endpoints),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
