/* conformance_tx.c - what every link promises about sending: bursts, ownership of memory, regions, sizes. */
#include "conformance.h"

#define N 64

static void tx_burst__keeps_order_and_counts(void **state) {
  fixture *f = opened(state);
  uint32_t numbers[8];
  tb_tx tx[8];
  for (uint32_t i = 0; i < 8; i++) {
    numbers[i] = i;
    tx[i] = frame_copy(1, &numbers[i], 4, f->memory, 100 + i);
  }
  assert_int_equal(f->ops->tx_burst(f->at[0], 0, tx, 0), 0);
  assert_int_equal(f->ops->tx_burst(f->at[0], 0, tx, 8), 8);
  assert_int_equal(take(f, 1, 8), 8);
  for (uint32_t i = 0; i < 8; i++) {
    assert_int_equal(got[i].len, 104 + i);
    assert_memory_equal(got[i].data, &i, 4);
  }
  nothing_comes(f, 1);
  nothing_comes(f, 0);
}

/* Frames a burst did not take stay the caller's: offered again, all come, once and in order. */
static void tx_burst__beyond_capacity_leaves_the_rest(void **state) {
  fixture *f = opened(state);
  uint32_t numbers[N], sent = 0, came = 0;
  tb_tx tx[N];
  uint64_t give_up = clock_ns() + 5000u * MS;
  for (uint32_t i = 0; i < N; i++) {
    numbers[i] = i;
    tx[i] = frame_copy(1, &numbers[i], 4, f->memory, 200);
  }
  while (came < N) {
    int k = f->ops->tx_burst(f->at[0], 0, tx + sent, (int)(N - sent));
    assert_true(k >= 0 && k <= (int)(N - sent));
    if (f->kind->capacity && !sent) {
      assert_int_equal(k, f->kind->capacity);
      assert_int_equal(f->ops->tx_burst(f->at[0], 0, tx + k, (int)N - k), 0);
    }
    sent += (uint32_t)k;
    int n = take(f, 1, (int)(sent - came));
    for (int i = 0; i < n; i++, came++) assert_memory_equal(got[i].data, &came, 4);
    assert_true(clock_ns() < give_up);
  }
  nothing_comes(f, 1);
}

static void tx_burst__header_and_copy_memory_are_free_on_return(void **state) {
  fixture *f = opened(state);
  uint8_t head[64], pay[1000];
  memset(head, 1, sizeof head);
  memset(pay, 2, sizeof pay);
  assert_int_equal(send_one(f, 0, frame_copy(1, head, sizeof head, pay, sizeof pay)), 1);
  memset(head, 0xee, sizeof head);
  memset(pay, 0xee, sizeof pay);
  assert_int_equal(take(f, 1, 1), 1);
  assert_int_equal(got[0].len, sizeof head + sizeof pay);
  for (uint32_t i = 0; i < got[0].len; i++) assert_int_equal(got[0].data[i], i < sizeof head ? 1 : 2);
}

static void ref__header_is_free_on_return_and_memory_after_reap(void **state) {
  fixture *f = opened(state);
  uint8_t head[4] = {7, 7, 7, 7};
  memset(f->memory, 5, 1000);
  if (f->kind->ref == TB_REF_NONE) {
    assert_int_equal(send_one(f, 0, frame_ref(f, 1, head, 0, 1000)), -EOPNOTSUPP);
    return;
  }
  assert_int_equal(send_one(f, 0, frame_ref(f, 1, head, 0, 1000)), 1);
  memset(head, 0xee, sizeof head);
  assert_int_equal(reap(f, 1), 1);
  memset(f->memory, 0xee, 1000);
  assert_int_equal(take(f, 1, 1), 1);
  assert_int_equal(got[0].len, 1004);
  for (uint32_t i = 0; i < 1004; i++) assert_int_equal(got[0].data[i], i < 4 ? 7 : 5);
}

static void ref__reaped_count_grows_to_the_accepted_refs(void **state) {
  fixture *f = opened(state);
  if (f->kind->ref == TB_REF_NONE) {
    assert_int_equal(f->ops->tx_reap(f->at[0], 0), 0);
    return;
  }
  tb_tx tx[6];
  assert_int_equal(f->ops->tx_reap(f->at[0], 0), 0);
  for (uint32_t i = 0; i < 6; i++)
    tx[i] = i % 2 ? frame_copy(1, "copy", 4, f->memory, 50) : frame_ref(f, 1, "refd", 0, 50);
  assert_int_equal(f->ops->tx_burst(f->at[0], 0, tx, 6), 6);
  assert_int_equal(reap(f, 3), 3); /* copies do not count */
  assert_int_equal(f->ops->tx_burst(f->at[0], 0, tx, 6), 6);
  assert_int_equal(reap(f, 6), 6);
  assert_int_equal(take(f, 1, 12), 12);
}

static void ref__gathers_from_anywhere_in_its_region(void **state) {
  fixture *f = opened(state);
  if (f->kind->ref == TB_REF_NONE) return;
  for (uint32_t i = 0; i < MEMORY; i++) f->memory[i] = (uint8_t)(i * 7 >> 3);
  static const size_t at[] = {0, 1, 4095, 33333, MEMORY - 1000};
  for (int i = 0; i < 5; i++) assert_int_equal(send_one(f, 0, frame_ref(f, 1, "refd", at[i], 1000)), 1);
  assert_int_equal(take(f, 1, 5), 5);
  for (int i = 0; i < 5; i++) assert_memory_equal(got[i].data + 4, f->memory + at[i], 1000);
}

static void refused_ref(fixture *f, tb_tx tx) {
  int rc = send_one(f, 0, tx);
  if (f->kind->ref == TB_REF_NONE) assert_int_equal(rc, -EOPNOTSUPP);
  else if (rc != -EINVAL && rc != -EFAULT) fail_msg("a REF outside its region gave %d", rc);
}

static void ref__outside_its_region_is_refused(void **state) {
  fixture *f = opened(state);
  uint8_t *other = malloc(4096);
  uint32_t region;
  tb_tx tx = frame_ref(f, 1, "refd", MEMORY - 100, 101);
  refused_ref(f, tx);
  tx.pay = f->memory - 1;
  refused_ref(f, tx);
  tx = frame_ref(f, 1, "refd", 0, 100);
  tx.region = 12345;
  refused_ref(f, tx);
  tx.region = UINT32_MAX;
  refused_ref(f, tx);
  assert_int_equal(f->ops->mem_reg(f->at[0], other, 4096, &region), 0);
  tx.region = region; /* memory of one region through another */
  refused_ref(f, tx);
  tx.pay = other;
  assert_int_equal(f->ops->mem_unreg(f->at[0], region), 0);
  refused_ref(f, tx);
  free(other);
  nothing_comes(f, 1);
}

static void mem__bad_arguments_are_refused(void **state) {
  fixture *f = opened(state);
  uint32_t region;
  assert_int_equal(f->ops->mem_reg(f->at[0], NULL, 100, &region), -EINVAL);
  assert_int_equal(f->ops->mem_reg(f->at[0], f->memory, 0, &region), -EINVAL);
  assert_int_equal(f->ops->mem_reg(f->at[0], f->memory, SIZE_MAX, &region), -EINVAL);
  assert_int_equal(f->ops->mem_unreg(f->at[0], 999), -ENOENT);
  assert_int_equal(f->ops->mem_unreg(f->at[0], f->region), 0);
  assert_int_equal(f->ops->mem_unreg(f->at[0], f->region), -ENOENT);
}

static void mem_unreg__is_busy_while_a_ref_is_outstanding(void **state) {
  fixture *f = opened(state);
  if (f->kind->ref == TB_REF_NONE) return;
  assert_int_equal(send_one(f, 0, frame_ref(f, 1, "refd", 0, 100)), 1);
  bool outstanding = f->ops->tx_reap(f->at[0], 0) < 1;
  if (f->kind->ref == TB_REF_SYNC) assert_false(outstanding);
  if (f->net && f->kind->ref == TB_REF_PROMPT) assert_true(outstanding); /* time has not moved */
  if (outstanding) assert_int_equal(f->ops->mem_unreg(f->at[0], f->region), -EBUSY);
  assert_int_equal(reap(f, 1), 1);
  assert_int_equal(f->ops->mem_unreg(f->at[0], f->region), 0);
}

static void tx_quiesce__is_bounded_and_true(void **state) {
  fixture *f = opened(state);
  assert_int_equal(f->ops->tx_quiesce(f->at[0], 0, 0), 0);
  if (f->kind->ref == TB_REF_NONE) return;
  assert_int_equal(send_one(f, 0, frame_ref(f, 1, "refd", 0, 100)), 1);
  uint64_t start = clock_ns();
  int rc = f->ops->tx_quiesce(f->at[0], 0, link_now(f) + 50 * MS);
  assert_true(clock_ns() - start < 1000u * MS);
  if (rc) assert_int_equal(rc, -ETIMEDOUT);
  assert_int_equal(rc == 0, f->ops->tx_reap(f->at[0], 0) == 1);
  assert_int_equal(reap(f, 1), 1);
  assert_int_equal(f->ops->tx_quiesce(f->at[0], 0, 0), 0);
}

static void tx_abort__ends_every_read_and_the_lane_works_on(void **state) {
  fixture *f = opened(state);
  uint64_t took = TB_NONE;
  bool refs = f->kind->ref != TB_REF_NONE;
  for (int i = 0; i < 3; i++)
    if (refs) assert_int_equal(send_one(f, 0, frame_ref(f, 1, "refd", 0, 100)), 1);
  assert_int_equal(f->ops->tx_abort(f->at[0], 0, &took), 0);
  assert_true(took != TB_NONE);
  assert_int_equal(f->ops->tx_reap(f->at[0], 0), refs ? 3 : 0);
  assert_int_equal(f->ops->mem_unreg(f->at[0], f->region), 0);
  assert_int_equal(f->ops->tx_abort(f->at[0], 0, NULL), 0);
  assert_int_equal(send_one(f, 0, frame_copy(f->ends - 1, "next", 4, NULL, 0)), 1);
  int last = 0; /* what was sent before the abort may have arrived */
  for (int left = 4; left && (last = take(f, (int)f->ends - 1, 1)) && memcmp(got[0].data, "next", 4); left--) continue;
  assert_int_equal(last, 1);
  assert_memory_equal(got[0].data, "next", 4);
}

static void frame__without_payload_or_header(void **state) {
  fixture *f = opened(state);
  assert_int_equal(send_one(f, 0, frame_copy(1, "head", 4, NULL, 0)), 1);
  assert_int_equal(send_one(f, 0, frame_copy(1, NULL, 0, "payload", 7)), 1);
  assert_int_equal(send_one(f, 0, frame_copy(1, NULL, 0, NULL, 0)), -EINVAL);
  assert_int_equal(take(f, 1, 2), 2);
  assert_int_equal(got[0].len, 4);
  assert_int_equal(got[1].len, 7);
  assert_memory_equal(got[1].data, "payload", 7);
}

static void frame__largest_passes_and_larger_is_refused(void **state) {
  fixture *f = opened(state);
  uint32_t mtu = f->ops->caps(f->at[0])->mtu;
  assert_true(mtu >= 128 && mtu <= MTU);
  for (uint32_t i = 0; i < mtu; i++) f->memory[i] = (uint8_t)(i * 31 >> 2);
  assert_int_equal(send_one(f, 0, frame_copy(1, f->memory, 64, f->memory + 64, mtu - 64)), 1);
  assert_int_equal(send_one(f, 0, frame_copy(1, f->memory, 64, f->memory + 64, mtu - 63)), -EMSGSIZE);
  assert_int_equal(send_one(f, 0, frame_copy(1, f->memory, 64, f->memory + 64, UINT32_MAX - 10)), -EMSGSIZE);
  assert_int_equal(send_one(f, 0, frame_copy(1, f->memory, mtu + 1, NULL, 0)), -EMSGSIZE);
  assert_int_equal(take(f, 1, 1), 1);
  assert_int_equal(got[0].len, mtu);
  assert_memory_equal(got[0].data, f->memory, mtu);
  nothing_comes(f, 1);
}

static void set_mtu__lowers_the_limit_of_a_frame(void **state) {
  fixture *f = opened(state);
  assert_int_equal(f->ops->set_mtu(f->at[0], f->ops->caps(f->at[0])->mtu + 1), -EINVAL);
  assert_int_equal(f->ops->set_mtu(f->at[0], 0), -EINVAL);
  assert_int_equal(f->ops->set_mtu(f->at[0], 500), 0);
  assert_int_equal(send_one(f, 0, frame_copy(1, f->memory, 64, f->memory, 437)), -EMSGSIZE);
  assert_int_equal(send_one(f, 0, frame_copy(1, f->memory, 64, f->memory, 436)), 1);
  assert_int_equal(take(f, 1, 1), 1);
  assert_int_equal(got[0].len, 500);
}

static void frame__at_fault_ends_the_burst_before_it(void **state) {
  fixture *f = opened(state);
  tb_tx tx[4];
  for (uint32_t i = 0; i < 4; i++) tx[i] = frame_copy(1, &"abcd"[i], 1, "1", 1);
  tx[2].peer = 9;
  assert_int_equal(f->ops->tx_burst(f->at[0], 0, tx, 4), 2);
  assert_int_equal(f->ops->tx_burst(f->at[0], 0, tx + 2, 2), -ENOENT);
  assert_int_equal(f->ops->tx_burst(f->at[0], 0, tx + 3, 1), 1);
  assert_int_equal(take(f, 1, 3), 3);
  for (int i = 0; i < 3; i++) assert_int_equal(got[i].data[0], "abd"[i]);
}

const struct CMUnitTest conformance_tx[] = {
  CONFORMANCE(tx_burst__keeps_order_and_counts),
  CONFORMANCE(tx_burst__beyond_capacity_leaves_the_rest),
  CONFORMANCE(tx_burst__header_and_copy_memory_are_free_on_return),
  CONFORMANCE(ref__header_is_free_on_return_and_memory_after_reap),
  CONFORMANCE(ref__reaped_count_grows_to_the_accepted_refs),
  CONFORMANCE(ref__gathers_from_anywhere_in_its_region),
  CONFORMANCE(ref__outside_its_region_is_refused),
  CONFORMANCE(mem__bad_arguments_are_refused),
  CONFORMANCE(mem_unreg__is_busy_while_a_ref_is_outstanding),
  CONFORMANCE(tx_quiesce__is_bounded_and_true),
  CONFORMANCE(tx_abort__ends_every_read_and_the_lane_works_on),
  CONFORMANCE(frame__without_payload_or_header),
  CONFORMANCE(frame__largest_passes_and_larger_is_refused),
  CONFORMANCE(set_mtu__lowers_the_limit_of_a_frame),
  CONFORMANCE(frame__at_fault_ends_the_burst_before_it),
};
const size_t conformance_tx_count = sizeof conformance_tx / sizeof conformance_tx[0];
