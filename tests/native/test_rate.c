/* test_rate.c - what a receiver makes of what comes in (rate.c, rule 21), epoch by epoch: frames of one peer, forged,
 * one each microsecond on a path of 40 us that a queue makes longer by 100. */
#include "core_pair.h"

enum { BASE = 40000, TRIP = 140000, GAP = 1000, FULL = TRIP / GAP };

typedef struct { cp *net; tb_core *core; uint32_t step; } line;

static line begin(uint32_t n) {
  line l = {.net = cp_new(&(cp_options){.n = n, .chunk_bytes = 1024, .window = 512, .delay = BASE / 2})};
  l.core = l.net->core[0];
  cp_until(l.net, TB_MS);
  for (uint16_t p = 1; p < n; p++) tb_core_trip(l.core, p, BASE);
  return l;
}

static void frame(line *l, uint32_t step) {
  static const uint8_t body[12] = {TB_BODY_VERSION, TB_P_PING};
  uint8_t buf[200];
  uint64_t now = l->net->now;
  tb_head h = {.type = TB_T_DATA, .stage = 1, .remaining_us = TB_REMAINING_NONE, .step = step,
               .stamp_ns = (uint32_t)now, .echo_ns = (uint32_t)(now - TRIP)};
  (void)tb_core_rx(l->core, buf, cp_forge(l->net, 1, 0, &h, body, sizeof body, buf), TB_FROM_UNKNOWN, now);
}

/* An epoch: as many frames as asked for, spread over a round trip, and as many lost in its middle. */
static void epoch(line *l, uint32_t frames, uint32_t lost) {
  uint64_t start = l->net->now;
  for (uint32_t i = 0; i < frames; i++) {
    l->net->now = start + (uint64_t)TRIP * i / frames;
    if (i == frames / 2) l->step += lost;
    frame(l, l->step++);
  }
  l->net->now = start + TRIP;
}

static void epochs(line *l, int n, uint32_t frames, uint32_t lost) {
  while (n--) epoch(l, frames, lost);
}

static uint64_t cuts(const line *l) { return l->core->n.rate_cuts; }

static void limit__comes_where_ours_fill_the_line_and_overflow(void **state) {
  (void)state;
  line l = begin(2);
  epochs(&l, 10, FULL, 0);
  assert_int_equal(cuts(&l), 0);
  epochs(&l, 8, FULL, FULL * 3 / 2); /* three lines' worth on one */
  assert_true(cuts(&l) > 0);
  assert_true(l.core->rate.limit > 0);
  cp_free(l.net);
}

/* Nearly half is lost, as long as it lasts: as much as two senders can lose. */
static void limit__comes_where_two_lines_meet_in_one(void **state) {
  (void)state;
  line l = begin(2);
  epochs(&l, 10, FULL, FULL * 9 / 10);
  assert_true(cuts(&l) > 0);
  cp_free(l.net);
}

/* A burst of others takes the line; then what it cost is repaired, all at once, and overflows in turn. That is over
 * in a moment, and a limit would stay for a second. */
static void limit__does_not_come_after_a_burst_of_others(void **state) {
  (void)state;
  line l = begin(2);
  epochs(&l, 10, FULL, 0);
  epochs(&l, 2, FULL / 8, 300);
  epochs(&l, 6, FULL, FULL);
  assert_true(l.core->rate.lost > 0.45 * (l.core->rate.lost + l.core->rate.came));
  assert_int_equal(cuts(&l), 0);
  cp_free(l.net);
}

/* What a limit lets through is no reason to lower it. */
static void limit__does_not_fall_by_itself(void **state) {
  (void)state;
  line l = begin(2);
  epochs(&l, 10, FULL, FULL * 3 / 2);
  uint32_t limit = l.core->rate.limit;
  assert_true(limit > 0);
  epochs(&l, 64, FULL / 2, 0);
  assert_int_equal(cuts(&l), l.core->rate.cuts);
  assert_in_range(l.core->rate.limit, limit - 5, limit + 5);
  cp_free(l.net);
}

static void overtaken(line *l, uint32_t late, bool comes) {
  epoch(l, FULL - 1, 0);
  l->net->now -= GAP;
  uint32_t first = l->step;
  l->step += late;
  frame(l, l->step++);
  l->net->now += GAP;
  frame(l, l->step++); /* the next epoch begins */
  for (uint32_t i = 0; i < late && comes; i++) frame(l, first + i);
  epoch(l, FULL, 0);
}

/* Frames that are overtaken as an epoch ends lack in it, and come in the next: no reason for shorter turns. */
static void incast__is_for_what_is_lost_not_for_what_is_late(void **state) {
  (void)state;
  line l = begin(8);
  epochs(&l, 5, FULL, 0);
  for (int i = 0; i < 5; i++) overtaken(&l, 5, true);
  epochs(&l, 2, FULL, 0);
  assert_int_equal(l.core->rate.incast, 7);
  overtaken(&l, 5, false);
  epochs(&l, 2, FULL, 0);
  assert_int_equal(l.core->rate.incast, 3);
  cp_free(l.net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(limit__comes_where_ours_fill_the_line_and_overflow),
    cmocka_unit_test(limit__comes_where_two_lines_meet_in_one),
    cmocka_unit_test(limit__does_not_come_after_a_burst_of_others),
    cmocka_unit_test(limit__does_not_fall_by_itself),
    cmocka_unit_test(incast__is_for_what_is_lost_not_for_what_is_late),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
