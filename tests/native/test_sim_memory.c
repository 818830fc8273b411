/* test_sim_memory.c - when the simulated link reads memory, completes and lets go of it. */
#include "sim_fixture.h"

static int send_ref(sim_fixture *s, uint32_t region, const void *pay, uint32_t len) {
  tb_tx tx = {.peer = 1, .head = "head", .head_len = 4, .ref = true, .region = region, .pay = pay, .pay_len = len};
  return L.tx_burst(s->at[0], 0, &tx, 1);
}

static uint8_t payload_got(sim_fixture *s) {
  tb_rx rx;
  assert_int_equal(L.rx_burst(s->at[1], 0, &rx, 1), 1);
  assert_int_equal(rx.len, 1000);
  uint8_t got = rx.data[4];
  for (uint32_t i = 4; i < rx.len; i++) assert_int_equal(rx.data[i], got);
  L.rx_release(s->at[1], 0);
  return got;
}

static void ref__is_read_at_departure(void **state) {
  (void)state;
  sim_fixture s = sim_up(2, "rate=8G delay=1ms reap_delay=10us"); /* leaves after 1 us */
  uint8_t memory[996];
  uint32_t region;
  assert_int_equal(L.mem_reg(s.at[0], memory, sizeof memory, &region), 0);
  memset(memory, 1, sizeof memory);
  assert_int_equal(send_ref(&s, region, memory, sizeof memory), 1);
  memset(memory, 2, sizeof memory); /* too early: a bug that must show */
  tb_sim_run_until(s.net, 1000);
  memset(memory, 3, sizeof memory);
  assert_int_equal(L.tx_reap(s.at[0], 0), 0);
  assert_int_equal(tb_sim_next(s.net), 11000);
  assert_int_equal(L.mem_unreg(s.at[0], region), -EBUSY);
  tb_sim_run_until(s.net, 10999);
  assert_int_equal(L.tx_quiesce(s.at[0], 0, FAR), -ETIMEDOUT);
  assert_false(tb_sim_readable(s.net, 0));
  tb_sim_run_until(s.net, 11000);
  assert_true(tb_sim_readable(s.net, 0));
  assert_int_equal(L.tx_reap(s.at[0], 0), 1);
  assert_int_equal(L.tx_quiesce(s.at[0], 0, 0), 0);
  assert_int_equal(L.mem_unreg(s.at[0], region), 0);
  tb_sim_run_until(s.net, FAR);
  assert_int_equal(payload_got(&s), 2);
  sim_down(&s);
}

static void ref__sync_is_read_in_tx_burst_and_none_is_refused(void **state) {
  (void)state;
  uint8_t memory[996];
  uint32_t region;
  sim_fixture s = sim_up(2, "ref=sync");
  assert_int_equal(L.caps(s.at[0])->ref, TB_REF_SYNC);
  assert_int_equal(L.mem_reg(s.at[0], memory, sizeof memory, &region), 0);
  memset(memory, 1, sizeof memory);
  assert_int_equal(send_ref(&s, region, memory, sizeof memory), 1);
  assert_int_equal(L.tx_reap(s.at[0], 0), 1);
  memset(memory, 2, sizeof memory);
  tb_sim_run_until(s.net, FAR);
  assert_int_equal(payload_got(&s), 1);
  sim_down(&s);
  s = sim_up(2, "ref=none");
  assert_int_equal(L.mem_reg(s.at[0], memory, sizeof memory, &region), 0);
  assert_int_equal(send_ref(&s, region, memory, sizeof memory), -EOPNOTSUPP);
  sim_down(&s);
}

static void reap_delay__keeps_order_through_a_full_ring(void **state) {
  (void)state;
  sim_fixture s = sim_up(2, "rate=8G delay=0 reap_delay=300us tx_ring=200");
  uint8_t memory[996];
  uint32_t region;
  assert_int_equal(L.mem_reg(s.at[0], memory, sizeof memory, &region), 0);
  uint64_t sent = 0, last = 0;
  for (int i = 0; i < 1000; i++) {
    if (send_ref(&s, region, memory, sizeof memory) == 1) sent++;
    tb_sim_run_until(s.net, tb_sim_now(s.net) + 700);
    uint64_t now = tb_sim_now(s.net), done = L.tx_reap(s.at[0], 0);
    assert_int_equal(done, now < 301000 ? 0 : (now - 301000) / 1000 + 1); /* frame k leaves at (k + 1) us */
    assert_true(done >= last && done <= sent);
    last = done;
  }
  tb_sim_run_until(s.net, FAR);
  assert_int_equal(L.tx_reap(s.at[0], 0), sent);
  sim_down(&s);
}

static void reap_delay__survives_growth_and_abort(void **state) {
  (void)state;
  sim_fixture s = sim_up(2, "rate=8G delay=0 reap_delay=20500 tx_ring=1024");
  uint8_t memory[996];
  uint32_t region;
  assert_int_equal(L.mem_reg(s.at[0], memory, sizeof memory, &region), 0);
  for (int i = 0; i < 40; i++) assert_int_equal(send_ref(&s, region, memory, sizeof memory), 1);
  tb_sim_run_until(s.net, 30000); /* 9 complete, 21 under way, 10 not departed: now the ring of completions grows */
  for (int i = 0; i < 100; i++) assert_int_equal(send_ref(&s, region, memory, sizeof memory), 1);
  for (uint64_t t = 30000; t <= 100000; t += 1000) {
    tb_sim_run_until(s.net, t);
    assert_int_equal(L.tx_reap(s.at[0], 0), (t - 20500) / 1000);
  }
  assert_int_equal(L.tx_abort(s.at[0], 0, NULL), 0);
  assert_int_equal(tb_sim_next(s.net), 101000); /* only the frame in the port is left, no completion */
  assert_int_equal(L.tx_reap(s.at[0], 0), 140);
  tb_sim_run_until(s.net, 101000);
  assert_int_equal(tb_sim_next(s.net), UINT64_MAX);
  assert_int_equal(send_ref(&s, region, memory, sizeof memory), 1);
  tb_sim_run_until(s.net, 122499);
  assert_int_equal(L.tx_reap(s.at[0], 0), 140);
  tb_sim_run_until(s.net, 122500);
  assert_int_equal(L.tx_reap(s.at[0], 0), 141);
  sim_down(&s);
}

static void abort__ends_withheld_completions_and_discards(void **state) {
  (void)state;
  sim_fixture s = sim_up(2, "rate=8G delay=5us reap_delay=never log=1");
  uint8_t memory[996];
  uint32_t region;
  uint64_t took = 1;
  assert_int_equal(L.mem_reg(s.at[0], memory, sizeof memory, &region), 0);
  memset(memory, 1, sizeof memory);
  for (int i = 0; i < 3; i++) assert_int_equal(send_ref(&s, region, memory, sizeof memory), 1);
  tb_sim_run_until(s.net, 1500); /* one has left, two have not */
  assert_int_equal(L.tx_reap(s.at[0], 0), 0);
  assert_int_equal(L.tx_quiesce(s.at[0], 0, FAR), -ETIMEDOUT);
  assert_int_equal(L.tx_abort(s.at[0], 0, &took), 0);
  assert_int_equal(took, 0);
  assert_int_equal(L.tx_reap(s.at[0], 0), 3);
  assert_int_equal(L.mem_unreg(s.at[0], region), 0);
  memset(memory, 9, sizeof memory);
  assert_int_equal(sim_send(&s, 0, 1, 0x04040404, 1000), 1); /* the lane works on, and at its own pace */
  tb_sim_run_until(s.net, 2500 + 5000 + 999);
  assert_int_equal(payload_got(&s), 1);
  assert_int_equal(sim_take(&s, 1, NULL), -1);
  tb_sim_run_until(s.net, 2500 + 5000 + 1000);
  assert_int_equal(payload_got(&s), 4);
  tb_link_stats stats;
  assert_int_equal(L.stats(s.at[0], &stats), 0);
  assert_int_equal(stats.tx_dropped, 2);
  sim_down(&s);
}

static void close__lets_copies_leave_and_drops_referred(void **state) {
  (void)state;
  sim_fixture s = sim_up(2, "rate=8G delay=0 reap_delay=1us");
  uint8_t *memory = malloc(996);
  uint32_t region;
  assert_int_equal(L.mem_reg(s.at[0], memory, 996, &region), 0);
  assert_int_equal(send_ref(&s, region, memory, 996), 1);
  assert_int_equal(sim_send(&s, 0, 1, 8, 1000), 1);
  assert_int_equal(send_ref(&s, region, memory, 996), 1);
  L.close(s.at[0]);
  free(memory); /* a sanitizer sees a late read */
  tb_sim_run_until(s.net, FAR);
  assert_int_equal(sim_take(&s, 1, NULL), 8);
  assert_int_equal(sim_take(&s, 1, NULL), -1);
  tb_sim_port port = {s.net, 0};
  tb_link_cfg cfg = {.context = &port, .peers = 2};
  assert_int_equal(L.open(&cfg, &s.at[0]), 0);
  assert_int_equal(L.open(&cfg, &s.at[0]), -EBUSY);
  sim_down(&s);
}

static void poison__overwrites_released_leases(void **state) {
  (void)state;
  sim_fixture s = sim_up(2, "poison=1");
  assert_int_equal(sim_send(&s, 0, 1, 0x01010101, 100), 1);
  tb_sim_run_until(s.net, FAR);
  tb_rx rx;
  assert_int_equal(L.rx_burst(s.at[1], 0, &rx, 1), 1);
  for (int i = 0; i < 100; i++) assert_int_equal(rx.data[i], 1);
  L.rx_release(s.at[1], 0);
  for (int i = 0; i < 100; i++) assert_int_equal(rx.data[i], 0xDB);
  sim_down(&s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(ref__is_read_at_departure),
    cmocka_unit_test(ref__sync_is_read_in_tx_burst_and_none_is_refused),
    cmocka_unit_test(reap_delay__keeps_order_through_a_full_ring),
    cmocka_unit_test(reap_delay__survives_growth_and_abort),
    cmocka_unit_test(abort__ends_withheld_completions_and_discards),
    cmocka_unit_test(close__lets_copies_leave_and_drops_referred),
    cmocka_unit_test(poison__overwrites_released_leases),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
