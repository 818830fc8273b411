/* test_rx.c - receive buffers: handed out in place, posted again in bulk, always accounted for; over a fake device. */
#include "fake.h"

static uint8_t data[FAKE_MTU + 8];

static int receive(fake *f, tb_rx *rx, int n) { return verbs_rx_burst((tb_link *)f->l, 0, rx, n); }
static void release(fake *f) { verbs_rx_release((tb_link *)f->l, 0); }

static void balanced(const fake *f) {
  const verbs_link *l = f->l;
  assert_int_equal(l->posted + (l->stashed - l->stash_at) + l->leases + l->free_count, FAKE_RX);
  assert_int_equal(l->posted, f->posts - f->taken);
}

static void rx__frames_lie_where_they_came_and_begin_on_a_cache_line(void **state) {
  fake *f = *state;
  tb_rx rx[8];
  for (uint32_t i = 0; i < 3; i++) {
    memset(data, (int)i + 1, sizeof data);
    fake_arrive(f, 2, data, 100 + i);
  }
  assert_int_equal(receive(f, rx, 2), 2);
  assert_int_equal(receive(f, rx + 2, 6), 1);
  for (uint32_t i = 0; i < 3; i++) {
    assert_int_equal(rx[i].len, 100 + i);
    assert_int_equal((uintptr_t)rx[i].data % 64, 0);
    for (uint32_t k = 0; k < rx[i].len; k++) assert_int_equal(rx[i].data[k], i + 1);
  }
  balanced(f);
  assert_int_equal(f->l->leases, 3);
  release(f);
  assert_int_equal(f->l->leases, 0);
  balanced(f);
  assert_int_equal(atomic_load(&f->l->n.rx_calls), 1);
}

static void rx__buffers_are_posted_in_bulk_and_all_come_back(void **state) {
  fake *f = *state;
  tb_rx rx[32];
  uint32_t calls = f->srq_calls, frames = 0;
  for (int pass = 0; pass < 200; pass++) {
    for (int i = 0; i < 20; i++) fake_arrive(f, 2, data, 500);
    int n;
    while ((n = receive(f, rx, 32)) > 0) frames += (uint32_t)n;
    release(f);
    balanced(f);
  }
  assert_int_equal(frames, 4000);
  assert_true(f->srq_calls - calls <= 4000 / 64);
  assert_true(f->l->posted >= FAKE_RX - 64);
}

static void rx__damaged_and_foreign_ones_are_counted_and_their_buffers_kept(void **state) {
  fake *f = *state;
  tb_rx rx[8];
  fake_arrive(f, 2, data, FAKE_MTU + 1); /* longer than anybody sends */
  fake_arrive(f, 2, data, 0);
  fake_arrive(f, 2, data, 100);
  f->done[2].wc_flags = 0; /* no sender told */
  fake_arrive(f, 2, data, 100);
  verbs_slab_at(&f->l->rx, (uint32_t)f->done[3].wr_id)[VERBS_LEAD - 20] = 0x60; /* not IPv4 */
  fake_arrive(f, 2, data, 100);
  f->done[4].byte_len = 12; /* shorter than what the device puts in front */
  fake_arrive(f, 2, "good", 4);
  assert_int_equal(receive(f, rx, 8), 1);
  assert_memory_equal(rx[0].data, "good", 4);
  assert_int_equal(atomic_load(&f->l->n.rx_truncated), 1);
  assert_int_equal(atomic_load(&f->l->n.rx_foreign), 4);
  assert_false(atomic_load(&f->l->broken));
  release(f);
  balanced(f);
}

static void rx__an_error_gives_its_buffer_back_and_breaks_the_queue_pair(void **state) {
  fake *f = *state;
  tb_rx rx[8];
  fake_arrive(f, 2, data, 100);
  f->done[0].status = IBV_WC_LOC_LEN_ERR;
  f->done[0].byte_len = 0;
  assert_int_equal(receive(f, rx, 8), 0);
  assert_true(atomic_load(&f->l->broken));
  balanced(f);
}

static void rx__a_refused_refill_is_made_up_for_later(void **state) {
  fake *f = *state;
  tb_rx rx[FAKE_RX];
  for (int i = 0; i < 200; i++) fake_arrive(f, 2, data, 100);
  int n = 0;
  while (n < 200) n += receive(f, rx + n, 200 - n);
  f->srq_room = 100;
  release(f);
  balanced(f);
  assert_int_equal(f->l->posted, 100);
  f->srq_room = FAKE_RX;
  fake_arrive(f, 2, data, 100);
  assert_int_equal(receive(f, rx, 1), 1);
  release(f);
  balanced(f);
  assert_true(f->l->posted > FAKE_RX - 64);
}

static void came_from__compares_addresses(void **state) {
  fake *f = *state;
  tb_rx rx[2];
  const tb_link *link = (tb_link *)f->l;
  fake_arrive(f, 3, data, 100);
  assert_int_equal(receive(f, rx, 2), 1);
  for (uint32_t p = 0; p < 6; p++) assert_int_equal(verbs_came_from(link, rx, p), p == 2);
  rx[0].slot = FAKE_RX;
  assert_false(verbs_came_from(link, rx, 2));
  release(f);
}

/* RoCE over IPv6 has a GRH, whose source is its second half; and InfiniBand may have none, but tells the LID. */
static void came_from__over_ipv6_and_infiniband(void **state) {
  fake *f = *state;
  verbs_link *l = f->l;
  tb_rx rx[4];
  uint8_t gid[16];
  assert_int_equal(verbs_gid_of("fd00::1", l->gid), 0);
  assert_int_equal(verbs_gid_of("fd00::7", gid), 0);
  memcpy(l->peers[2].gid, gid, 16);
  fake_arrive(f, 3, data, 100);
  uint8_t *grh = verbs_slab_at(&l->rx, (uint32_t)f->done[0].wr_id) + VERBS_LEAD - VERBS_GRH;
  grh[0] = 0x60;
  memcpy(grh + 8, gid, 16);
  assert_int_equal(receive(f, rx, 1), 1);
  assert_true(verbs_came_from((tb_link *)l, rx, 2));
  assert_false(verbs_came_from((tb_link *)l, rx, 3));
  l->at.ethernet = false;
  l->peers[1].lid = 55;
  fake_arrive(f, 3, data, 100);
  f->done[1].wc_flags = 0;
  f->done[1].slid = 55;
  assert_int_equal(receive(f, rx + 1, 1), 1);
  assert_true(verbs_came_from((tb_link *)l, rx + 1, 1));
  assert_false(verbs_came_from((tb_link *)l, rx + 1, 2));
  release(f);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fake_setup, fake_teardown)
int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(rx__frames_lie_where_they_came_and_begin_on_a_cache_line),
      TEST(rx__buffers_are_posted_in_bulk_and_all_come_back),
      TEST(rx__damaged_and_foreign_ones_are_counted_and_their_buffers_kept),
      TEST(rx__an_error_gives_its_buffer_back_and_breaks_the_queue_pair),
      TEST(rx__a_refused_refill_is_made_up_for_later),
      TEST(came_from__compares_addresses),
      TEST(came_from__over_ipv6_and_infiniband),
  };
  return cmocka_run_group_tests_name("verbs rx", tests, NULL, NULL);
}
