/* conformance_rx.c - what every link promises about receiving, waiting, peers and what it says of itself. */
#include "conformance.h"

static void rx__leases_stay_valid_until_release(void **state) {
  fixture *f = opened(state);
  tb_rx rx[4];
  int n = 0;
  uint64_t give_up = clock_ns() + 2000u * MS;
  for (uint32_t i = 0; i < 4; i++) { /* each in a burst of its own, all within one pass */
    uint8_t fill[300];
    memset(fill, (int)i + 1, sizeof fill);
    assert_int_equal(send_one(f, 0, frame_copy(1, fill, 100, fill, 200)), 1);
    for (int k = 0; !k && clock_ns() < give_up;) {
      pass_time(f, MS);
      if (!f->net) f->ops->wait(f->at[1], 0, clock_ns() + 20 * MS);
      k = f->ops->rx_burst(f->at[1], 0, rx + n, 1);
      n += k;
    }
  }
  assert_int_equal(n, 4);
  for (uint32_t i = 0; i < 4; i++) {
    assert_int_equal(rx[i].len, 300);
    for (uint32_t j = 0; j < 300; j++) assert_int_equal(rx[i].data[j], i + 1);
  }
  f->ops->rx_release(f->at[1], 0);
  f->ops->rx_release(f->at[1], 0); /* an empty pass */
}

static void rx__tells_whose_address_a_frame_came_from(void **state) {
  fixture *f = opened(state);
  tb_rx rx;
  int k = 0;
  assert_int_equal(send_one(f, 0, frame_copy(1, "head", 4, "payload", 7)), 1);
  for (uint64_t give_up = clock_ns() + 2000u * MS; !k && clock_ns() < give_up;) {
    pass_time(f, MS);
    if (!f->net) f->ops->wait(f->at[1], 0, clock_ns() + 20 * MS);
    k = f->ops->rx_burst(f->at[1], 0, &rx, 1);
  }
  assert_int_equal(k, 1);
  if (f->ops->came_from) { /* a link that cannot tell has none */
    assert_true(f->ops->came_from(f->at[1], &rx, 0));
    assert_false(f->ops->came_from(f->at[1], &rx, ENDS)); /* no such peer */
    assert_false(f->ops->came_from(f->at[1], &rx, UINT16_MAX));
  }
  f->ops->rx_release(f->at[1], 0);
}

static void peer__moves_and_goes(void **state) {
  fixture *f = opened(state);
  tb_addr bad = f->addr[1];
  bad.len = 2;
  assert_int_equal(f->ops->peer_state(f->at[0], 1), 0);
  assert_int_equal(f->ops->peer_set(f->at[0], 1, &f->addr[f->ends - 1]), 0);
  settle(f->ops, f->at[0], 1);
  assert_int_equal(send_one(f, 0, frame_copy(1, "moved", 5, NULL, 0)), 1);
  assert_int_equal(take(f, (int)f->ends - 1, 1), 1);
  if (f->ends > 2) nothing_comes(f, 1);
  assert_int_equal(f->ops->peer_set(f->at[0], 1, &bad), -EINVAL);
  assert_int_equal(f->ops->peer_state(f->at[0], 1), 0);
  assert_int_equal(f->ops->peer_del(f->at[0], 1), 0);
  assert_int_equal(f->ops->peer_state(f->at[0], 1), -ENOENT);
  assert_int_equal(f->ops->peer_del(f->at[0], 1), -ENOENT);
  assert_int_equal(f->ops->peer_set(f->at[0], 1, &f->addr[1]), -ENOENT);
  assert_int_equal(send_one(f, 0, frame_copy(1, "gone", 4, NULL, 0)), -ENOENT);
  assert_int_equal(f->ops->peer_add(f->at[0], 1, &bad), -EINVAL);
  assert_int_equal(f->ops->peer_state(f->at[0], 1), -ENOENT);
  assert_int_equal(f->ops->peer_add(f->at[0], 1, &f->addr[1]), 0);
  settle(f->ops, f->at[0], 1);
  assert_int_equal(send_one(f, 0, frame_copy(1, "back", 4, NULL, 0)), 1);
  assert_int_equal(take(f, 1, 1), 1);
  bad.len = 255;
  assert_int_equal(f->ops->peer_add(f->at[0], 1, &bad), -EINVAL);
  assert_int_equal(f->ops->peer_add(f->at[0], UINT32_MAX, &f->addr[1]), -EINVAL);
}

static void wait__ends_at_its_deadline(void **state) {
  fixture *f = opened(state);
  assert_int_equal(f->ops->wait(f->at[1], 0, 0), TB_WAIT_TIMEOUT);
  uint64_t start = clock_ns();
  assert_int_equal(f->ops->wait(f->at[1], 0, link_now(f) + 30 * MS), TB_WAIT_TIMEOUT);
  uint64_t took = clock_ns() - start;
  if (!f->net) assert_in_range(took, 30 * MS, 2000u * MS);
  else assert_in_range(took, 0, 20 * MS); /* nobody else moves the time: it must not sleep */
}

static void wait__tells_of_frames(void **state) {
  fixture *f = opened(state);
  assert_int_equal(send_one(f, 0, frame_copy(1, "here", 4, NULL, 0)), 1);
  pass_time(f, MS);
  assert_int_equal(f->ops->wait(f->at[1], 0, link_now(f) + 2000u * MS), TB_WAIT_RX);
  assert_int_equal(f->ops->wait(f->at[1], 0, 0), TB_WAIT_RX); /* still there */
  assert_int_equal(take(f, 1, 1), 1);
  assert_int_equal(f->ops->wait(f->at[1], 0, 0), TB_WAIT_TIMEOUT);
}

static void *wake_later(void *arg) {
  fixture *f = arg;
  nanosleep(&(struct timespec){0, 20 * MS}, NULL);
  f->ops->wake(f->at[1], 0);
  return NULL;
}

static void wait__is_ended_by_a_wake_from_any_thread(void **state) {
  fixture *f = opened(state);
  pthread_t thread;
  uint64_t start = clock_ns();
  assert_int_equal(pthread_create(&thread, NULL, wake_later, f), 0);
  if (f->net) pthread_join(thread, NULL); /* wait does not sleep there */
  assert_int_equal(f->ops->wait(f->at[1], 0, link_now(f) + 5000u * MS), TB_WAIT_WAKE);
  assert_in_range(clock_ns() - start, 15 * MS, 4000u * MS);
  if (!f->net) pthread_join(thread, NULL);
  f->ops->wake(f->at[1], 0); /* wakes before a wait are not lost, and two are one */
  f->ops->wake(f->at[1], 0);
  assert_int_equal(f->ops->wait(f->at[1], 0, link_now(f) + 2000u * MS), TB_WAIT_WAKE);
  assert_int_equal(f->ops->wait(f->at[1], 0, link_now(f) + MS), TB_WAIT_TIMEOUT);
}

static void lane__beyond_caps_is_refused(void **state) {
  fixture *f = opened(state);
  uint32_t lanes = f->ops->caps(f->at[0])->lanes;
  tb_tx tx = frame_copy(1, "head", 4, NULL, 0);
  tb_rx rx;
  assert_true(lanes >= 1);
  assert_int_equal(f->ops->tx_burst(f->at[0], lanes, &tx, 1), -EINVAL);
  assert_int_equal(f->ops->rx_burst(f->at[0], lanes, &rx, 1), -EINVAL);
  assert_int_equal(f->ops->wait(f->at[0], lanes, 0), -EINVAL);
  assert_int_equal(f->ops->tx_burst(f->at[0], 0, &tx, -1), -EINVAL);
  assert_int_equal(f->ops->rx_burst(f->at[0], 0, &rx, -1), -EINVAL);
}

static void stats__count_and_say_none_for_the_unknown(void **state) {
  fixture *f = opened(state);
  tb_link_stats tx, rx;
  tb_tx frames[3] = {frame_copy(1, "head", 4, f->memory, 100), frame_copy(1, "head", 4, f->memory, 100),
                     frame_copy(1, "head", 4, NULL, 0)};
  assert_int_equal(f->ops->tx_burst(f->at[0], 0, frames, 3), 3);
  assert_int_equal(take(f, 1, 3), 3);
  assert_int_equal(f->ops->stats(f->at[0], &tx), 0);
  assert_int_equal(f->ops->stats(f->at[1], &rx), 0);
  assert_int_equal(tx.tx_frames, 3);
  assert_int_equal(tx.tx_bytes, 212);
  assert_in_range(tx.tx_calls, 1, 3);
  assert_int_equal(tx.tx_dropped, 0);
  assert_int_equal(rx.rx_frames, 3);
  assert_int_equal(rx.rx_bytes, 212);
  assert_true(rx.rx_calls >= 1 && rx.rx_calls != TB_NONE);
  assert_true(rx.rx_overflow == 0 || rx.rx_overflow == TB_NONE);
  assert_true(tx.tx_copied == 0 || tx.tx_copied == 200);
  assert_true(rx.rx_truncated == (f->kind->truncation_known ? 0 : TB_NONE));
}

static void caps__are_as_declared_and_described(void **state) {
  fixture *f = opened(state);
  const tb_link_caps *c = f->ops->caps(f->at[0]);
  char line[400] = "";
  tb_addr again;
  assert_int_equal(c->ref, f->kind->ref);
  assert_true(c->rx_buffer >= 2 * MTU && c->burst >= 1);
  assert_int_equal(f->ops->describe(f->at[0], line, sizeof line), 0);
  assert_non_null(strstr(line, f->ops->name));
  assert_int_equal(f->ops->local_addr(f->at[0], &again), 0);
  assert_true(again.len == f->addr[0].len && again.len <= TB_ADDR_MAX && again.len == f->addr[1].len);
  assert_memory_equal(again.bytes, f->addr[0].bytes, again.len);
  assert_memory_not_equal(again.bytes, f->addr[1].bytes, again.len);
}

static void close__with_everything_under_way(void **state) {
  fixture *f = opened(state);
  tb_rx rx;
  for (int i = 0; i < 3; i++) assert_int_equal(send_one(f, 0, frame_copy(1, "bye!", 4, f->memory, 500)), 1);
  if (f->kind->ref != TB_REF_NONE) assert_int_equal(send_one(f, 0, frame_ref(f, 1, "refd", 0, 500)), 1);
  f->ops->close(f->at[0]);
  f->at[0] = NULL;
  memset(f->memory, 0xee, sizeof f->memory);
  if (!f->kind->cuts_at_close) assert_int_equal(take(f, 1, 3), 3); /* accepted copies still arrive */
  int sent = 0; /* a peer that is gone is no error here, if the device may take a while to see it */
  for (uint64_t give_up = clock_ns() + 2000u * MS; !sent && clock_ns() < give_up;)
    sent = send_one(f, 1, frame_copy(0, "gone", 4, NULL, 0));
  assert_int_equal(sent, 1);
  if (f->ends < 3) return;
  assert_int_equal(send_one(f, 1, frame_copy(2, "left", 4, NULL, 0)), 1);
  pass_time(f, MS);
  if (!f->net) f->ops->wait(f->at[2], 0, clock_ns() + 2000u * MS);
  assert_int_equal(f->ops->rx_burst(f->at[2], 0, &rx, 1), 1);
  f->ops->close(f->at[2]); /* a lease is open */
  f->at[2] = NULL;
}

const struct CMUnitTest conformance_rx[] = {
  CONFORMANCE(rx__leases_stay_valid_until_release),
  CONFORMANCE(rx__tells_whose_address_a_frame_came_from),
  CONFORMANCE(peer__moves_and_goes),
  CONFORMANCE(wait__ends_at_its_deadline),
  CONFORMANCE(wait__tells_of_frames),
  CONFORMANCE(wait__is_ended_by_a_wake_from_any_thread),
  CONFORMANCE(lane__beyond_caps_is_refused),
  CONFORMANCE(stats__count_and_say_none_for_the_unknown),
  CONFORMANCE(caps__are_as_declared_and_described),
  CONFORMANCE(close__with_everything_under_way),
};
const size_t conformance_rx_count = sizeof conformance_rx / sizeof conformance_rx[0];
