/* test_tx.c - chains of work requests, what completes when, and a device that refuses, over a fake device. */
#include "fake.h"

static uint8_t data[FAKE_MTU + 8];

static tb_tx to(uint32_t peer, uint32_t head, uint32_t pay) {
  return (tb_tx){.peer = peer, .head = data, .head_len = head, .pay = data + head, .pay_len = pay};
}

static int burst(fake *f, const tb_tx *t, int n) { return verbs_tx_burst((tb_link *)f->l, 0, t, n); }

static void many(tb_tx *t, int n, uint32_t pay) {
  for (int i = 0; i < n; i++) t[i] = to((uint32_t)i % 4, 8, pay);
}

static void tx__a_burst_is_chains_of_64_with_one_completion_each(void **state) {
  fake *f = *state;
  tb_tx t[130];
  many(t, 130, 600);
  assert_int_equal(burst(f, t, 130), 130);
  assert_int_equal(f->doorbells, 3);
  for (uint32_t i = 0; i < 130; i++) {
    assert_int_equal(f->sent[i].wr_id, i + 1);
    assert_int_equal(f->sent[i].qpn, 100 + i % 4);
    assert_int_equal(f->sent[i].bytes, 608);
    assert_int_equal(f->sent[i].flags, i == 63 || i == 127 || i == 129 ? IBV_SEND_SIGNALED : 0);
  }
  assert_true(verbs_tx_poll(f->l));
  assert_int_equal(f->l->tail, 130);
  assert_int_equal(atomic_load(&f->l->n.tx_frames), 130);
  assert_int_equal(atomic_load(&f->l->n.tx_calls), 3);
  assert_int_equal(atomic_load(&f->l->n.tx_copied), 130 * 600);
}

static void tx__small_frames_travel_in_the_request(void **state) {
  fake *f = *state;
  tb_tx t[2] = {to(1, 64, VERBS_INLINE - 64), to(1, 64, VERBS_INLINE - 63)};
  for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 7);
  assert_int_equal(burst(f, t, 2), 2);
  assert_int_equal(f->sent[0].flags, IBV_SEND_INLINE);
  assert_int_equal(f->sent[0].pieces, 2);
  assert_int_equal(f->sent[1].flags, IBV_SEND_SIGNALED);
  assert_int_equal(f->sent[1].pieces, 1);
  for (int i = 0; i < 2; i++) assert_memory_equal(f->sent[i].head, data, 64);
  assert_int_equal(atomic_load(&f->l->n.tx_copied), VERBS_INLINE - 63);
}

/* A device may complete what is too long as if it had been sent: the link itself has to look. */
static void tx__too_long_frames_never_reach_the_device(void **state) {
  fake *f = *state;
  tb_tx t[3] = {to(0, 64, FAKE_MTU - 64), to(0, 64, FAKE_MTU - 63), to(0, 64, 8)};
  assert_int_equal(burst(f, t, 3), 1);
  assert_int_equal(burst(f, t + 1, 2), -EMSGSIZE);
  t[1] = to(0, UINT32_MAX, UINT32_MAX);
  assert_int_equal(burst(f, t + 1, 1), -EMSGSIZE);
  f->l->mtu = 500;
  t[1] = to(0, 64, 437);
  assert_int_equal(burst(f, t + 1, 1), -EMSGSIZE);
  assert_int_equal(f->sents, 1);
  assert_int_equal(f->sent[0].bytes, FAKE_MTU);
}

static void tx__a_full_queue_leaves_frames_until_some_complete(void **state) {
  fake *f = *state;
  static tb_tx t[VERBS_TX_SLOTS + 10];
  many(t, VERBS_TX_SLOTS + 10, 600);
  f->hold = 0;
  assert_int_equal(burst(f, t, VERBS_TX_SLOTS + 10), VERBS_TX_SLOTS);
  assert_true(f->l->blocked);
  assert_int_equal(burst(f, t + VERBS_TX_SLOTS, 10), 0);
  f->hold = 64;
  assert_int_equal(burst(f, t + VERBS_TX_SLOTS, 10), 10);
  assert_false(f->l->blocked);
  assert_int_equal(f->l->head - f->l->tail, VERBS_TX_SLOTS + 10 - 64);
}

/* A buffer must not be written while an earlier request is still read from it. */
static void tx__a_buffer_is_used_again_only_after_its_request_is_done(void **state) {
  fake *f = *state;
  static tb_tx t[VERBS_TX_SLOTS];
  many(t, VERBS_TX_SLOTS, 600);
  f->hold = 0;
  memset(data, 1, sizeof data);
  assert_int_equal(burst(f, t, VERBS_TX_SLOTS), VERBS_TX_SLOTS);
  memset(data, 2, sizeof data);
  f->hold = 100; /* the completion of 64 */
  assert_int_equal(burst(f, t, 200), 64);
  for (uint32_t i = 0; i < VERBS_TX_SLOTS; i++) assert_int_equal(*verbs_slab_at(&f->l->tx, i), i < 64 ? 2 : 1);
}

static void tx__frames_to_the_unresolved_are_lost_and_counted(void **state) {
  fake *f = *state;
  verbs_route pending = {.state = -EINPROGRESS};
  tb_tx t[3];
  many(t, 3, 100);
  f->l->peers[1].route = &pending;
  assert_int_equal(verbs_peer_state((tb_link *)f->l, 1), -EINPROGRESS);
  assert_int_equal(verbs_peer_state((tb_link *)f->l, 2), 0);
  assert_int_equal(burst(f, t, 3), 3);
  assert_int_equal(f->sents, 2);
  assert_int_equal(f->sent[1].qpn, 102);
  assert_int_equal(atomic_load(&f->l->n.tx_dropped), 1);
  assert_int_equal(burst(f, t + 1, 1), 1);
  assert_int_equal(f->doorbells, 1);
}

static void tx__a_new_handle_replaces_the_old_once_that_is_unused(void **state) {
  fake *f = *state;
  int old, fresh;
  verbs_route r = {.ah = (struct ibv_ah *)&old};
  atomic_store(&r.fresh, (struct ibv_ah *)&fresh);
  f->l->head = f->l->tail = 10;
  assert_ptr_equal(verbs_route_take(f->l, &r), &fresh);
  assert_ptr_equal(verbs_route_take(f->l, &r), &fresh);
  assert_int_equal(f->l->olds, 1);
  assert_ptr_equal(f->l->old[0].ah, &old);
  assert_true(f->l->old[0].at > f->l->head);
  verbs_routes_reap(f->l); /* would destroy it */
  assert_int_equal(f->l->olds, 1);
}

static void tx__what_the_device_refuses_for_want_of_room_stays_the_callers(void **state) {
  fake *f = *state;
  tb_tx t[10];
  many(t, 10, 600);
  f->refuse = ENOMEM;
  assert_int_equal(burst(f, t, 10), 0);
  assert_true(f->l->blocked);
  assert_false(atomic_load(&f->l->broken));
  assert_int_equal(burst(f, t, 10), 10);
}

static void tx__a_chain_taken_in_part_breaks_the_queue_pair(void **state) {
  fake *f = *state;
  tb_tx t[10];
  many(t, 10, 600);
  f->refuse = ENOMEM;
  f->refuse_after = 4;
  assert_int_equal(burst(f, t, 10), 4);
  assert_int_equal(f->l->head, 4);
  assert_true(atomic_load(&f->l->broken)); /* nobody will ever say that these four are done */
}

static void tx__what_the_device_refuses_for_good_is_lost(void **state) {
  fake *f = *state;
  tb_tx t[10];
  many(t, 10, 600);
  f->refuse = EINVAL;
  f->refuse_after = 4;
  assert_int_equal(burst(f, t, 10), 10);
  assert_true(atomic_load(&f->l->broken));
  assert_int_equal(atomic_load(&f->l->n.tx_frames), 4);
  assert_int_equal(atomic_load(&f->l->n.tx_dropped), 6);
  assert_int_equal(atomic_load(&f->l->n.tx_errors), 1);
}

static void tx__an_error_completes_all_before_it_and_breaks_the_queue_pair(void **state) {
  fake *f = *state;
  tb_tx t[20];
  many(t, 20, 600);
  f->fail_at = 7;
  assert_int_equal(burst(f, t, 20), 20);
  assert_true(verbs_tx_poll(f->l));
  assert_int_equal(f->l->tail, 20);
  assert_int_equal(atomic_load(&f->l->n.tx_errors), 1);
  assert_int_equal(atomic_load(&f->l->n.tx_dropped), 13);
  assert_true(atomic_load(&f->l->broken));
}

/* A dead device must not keep the protocol from its deadlines. */
static void tx__while_down_frames_are_taken_and_lost(void **state) {
  fake *f = *state;
  tb_tx t[20];
  many(t, 20, 600);
  atomic_store(&f->l->broken, true);
  f->l->down_until = UINT64_MAX;
  assert_int_equal(burst(f, t, 20), 20);
  assert_int_equal(f->sents, 0);
  assert_int_equal(atomic_load(&f->l->n.tx_dropped), 20);
  t[0].peer = 9;
  assert_int_equal(burst(f, t, 20), -ENOENT);
}

/* A registered region, and one that is copied. */
static void regions(fake *f, uint32_t *registered, uint32_t *copied) {
  f->l->caps.ref = TB_REF_PROMPT;
  f->mr.lkey = 0x1234;
  f->l->mrs[0] = (verbs_mr){.mr = &f->mr, .uses = 1};
  assert_int_equal(tb_regions_add_tagged(&f->l->regions, data, sizeof data, 1, registered), 0);
  assert_int_equal(tb_regions_add(&f->l->regions, data, sizeof data, copied), 0);
}

static tb_tx ref(uint32_t peer, uint32_t region, uint32_t pay) {
  tb_tx t = to(peer, 64, pay);
  t.ref = true;
  t.region = region;
  return t;
}

static void ref__of_registered_memory_is_two_pieces_and_not_copied(void **state) {
  fake *f = *state;
  uint32_t registered, copied;
  regions(f, &registered, &copied);
  tb_tx t[4] = {ref(0, registered, 500), ref(1, copied, 500), ref(2, registered, 50), to(3, 64, 500)};
  for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 11);
  assert_int_equal(burst(f, t, 4), 4);
  assert_int_equal(f->sent[0].pieces, 2);
  assert_ptr_equal(f->l->chain.sge[1].addr, data + 64);
  assert_int_equal(f->l->chain.sge[1].lkey, 0x1234);
  assert_int_equal(f->sent[1].pieces, 1);
  assert_int_equal(f->sent[2].flags, IBV_SEND_INLINE);
  assert_int_equal(f->sent[3].pieces, 1);
  assert_int_equal(atomic_load(&f->l->n.tx_copied), 1000);
  assert_int_equal(f->l->refs, 3);
}

static void ref__is_reaped_when_its_chain_is_done_and_not_before(void **state) {
  fake *f = *state;
  uint32_t registered, copied;
  static tb_tx t[100];
  regions(f, &registered, &copied);
  for (int i = 0; i < 100; i++) t[i] = i % 2 ? ref(1, registered, 500) : to(1, 64, 500);
  f->hold = 63; /* of the first chain all but the last, which tells */
  assert_int_equal(burst(f, t, 100), 100);
  assert_int_equal(verbs_tx_reap((tb_link *)f->l, 0), 0);
  assert_int_equal(verbs_tx_quiesce((tb_link *)f->l, 0, 0), -ETIMEDOUT);
  f->hold = 64;
  assert_int_equal(verbs_tx_reap((tb_link *)f->l, 0), 32);
  f->hold = 100;
  assert_int_equal(verbs_tx_reap((tb_link *)f->l, 0), 50);
  assert_int_equal(verbs_tx_quiesce((tb_link *)f->l, 0, 0), 0);
}

static void ref__failed_and_flushed_ones_are_done_too(void **state) {
  fake *f = *state;
  uint32_t registered, copied;
  tb_tx t[10];
  regions(f, &registered, &copied);
  for (int i = 0; i < 10; i++) t[i] = ref(1, registered, 500);
  f->fail_at = 4;
  f->hold = 4;
  assert_int_equal(burst(f, t, 10), 10);
  assert_int_equal(verbs_tx_reap((tb_link *)f->l, 0), 4);
  f->hold = 10;
  assert_int_equal(verbs_tx_reap((tb_link *)f->l, 0), 10);
}

/* Lost before the device had them: done with the one before, or at once. */
static void ref__to_the_unresolved_is_done(void **state) {
  fake *f = *state;
  uint32_t registered, copied;
  verbs_route pending = {.state = -EINPROGRESS};
  regions(f, &registered, &copied);
  f->l->peers[1].route = &pending;
  tb_tx t[4] = {ref(1, registered, 500), ref(0, registered, 500), ref(1, registered, 500), ref(1, registered, 500)};
  f->hold = 0;
  assert_int_equal(burst(f, t, 1), 1);
  assert_int_equal(verbs_tx_reap((tb_link *)f->l, 0), 1);
  assert_int_equal(burst(f, t, 4), 4);
  assert_int_equal(verbs_tx_reap((tb_link *)f->l, 0), 1);
  f->hold = 10;
  assert_int_equal(verbs_tx_reap((tb_link *)f->l, 0), 5);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fake_setup, fake_teardown)
int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(tx__a_burst_is_chains_of_64_with_one_completion_each),
      TEST(tx__small_frames_travel_in_the_request),
      TEST(tx__too_long_frames_never_reach_the_device),
      TEST(tx__a_full_queue_leaves_frames_until_some_complete),
      TEST(tx__a_buffer_is_used_again_only_after_its_request_is_done),
      TEST(tx__frames_to_the_unresolved_are_lost_and_counted),
      TEST(tx__a_new_handle_replaces_the_old_once_that_is_unused),
      TEST(tx__what_the_device_refuses_for_want_of_room_stays_the_callers),
      TEST(tx__a_chain_taken_in_part_breaks_the_queue_pair),
      TEST(tx__what_the_device_refuses_for_good_is_lost),
      TEST(tx__an_error_completes_all_before_it_and_breaks_the_queue_pair),
      TEST(ref__of_registered_memory_is_two_pieces_and_not_copied),
      TEST(ref__is_reaped_when_its_chain_is_done_and_not_before),
      TEST(ref__failed_and_flushed_ones_are_done_too),
      TEST(ref__to_the_unresolved_is_done),
      TEST(tx__while_down_frames_are_taken_and_lost),
  };
  return cmocka_run_group_tests_name("verbs tx", tests, NULL, NULL);
}
