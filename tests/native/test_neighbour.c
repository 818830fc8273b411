/* test_neighbour.c - ether/neighbour.c: two hosts find each other, and nobody else gets in between. Times are given. */
#include "ether/neighbour.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MS 1000000ull
#define SEC 1000000000ull
static const tb_net_self a_self = {.mac = {{2, 0, 0, 0, 0, 1}}, .ip = TB_IP4(0x0a000001), .bits = TB_IP4_BITS + 24};
static const tb_net_self b_self = {.mac = {{2, 0, 0, 0, 0, 2}}, .ip = TB_IP4(0x0a000002), .bits = TB_IP4_BITS + 24};
enum { GATEWAY = 0x0a0000fe, FAR = 0xc0a80001 };

static tb_neighbours *host(const tb_net_self *self, uint32_t gateway) {
  tb_neighbours *n = NULL;
  tb_ip way = TB_IP4(gateway);
  assert_int_equal(tb_neighbours_new(self, gateway ? &way : NULL, &n), 0);
  return n;
}

static bool hear(tb_neighbours *n, const uint8_t *f, uint32_t len, uint8_t *reply) {
  uint8_t *block = malloc(len ? len : 1); /* of its own size: a byte too far would be told */
  memcpy(block, f, len);
  tb_net_in in;
  bool r = tb_net_parse(block, len, len, TB_NET_UNTAGGED, &a_self, &in) == TB_NET_ARP &&
           tb_neighbours_hear(n, block, &in, reply);
  free(block);
  return r;
}

static int want4(tb_neighbours *n, uint32_t ip, const tb_mac *mac) {
  tb_ip a = TB_IP4(ip);
  return tb_neighbours_want(n, &a, mac);
}

static void two_hosts_find_each_other(void **state) {
  (void)state;
  tb_neighbours *a = host(&a_self, 0), *b = host(&b_self, 0);
  uint8_t ask[TB_NEIGHBOUR_MOST], reply[TB_NEIGHBOUR_MOST], none[TB_NEIGHBOUR_MOST];
  int at = tb_neighbours_want(a, &b_self.ip, NULL);
  assert_int_equal(at, 0);
  assert_int_equal(tb_neighbours_want(a, &b_self.ip, NULL), 0);
  assert_null(tb_neighbours_mac(a, at));
  assert_true(tb_neighbours_due(a, 5 * SEC, ask));
  assert_true(hear(b, ask, TB_ETHER_LEAST, reply));
  assert_memory_equal(reply, a_self.mac.b, 6); /* to it alone */
  uint32_t before = tb_neighbours_changes(a);
  assert_false(hear(a, reply, TB_ETHER_LEAST, none));
  assert_true(tb_neighbours_changes(a) != before);
  assert_memory_equal(tb_neighbours_mac(a, at)->b, b_self.mac.b, 6);
  assert_int_equal(tb_neighbours_want(b, &a_self.ip, NULL), 0); /* b kept nothing of a, whom it did not want */
  assert_null(tb_neighbours_mac(b, 0));
  tb_neighbours_free(a);
  tb_neighbours_free(b);
}

static void requests_come_at_growing_intervals(void **state) {
  (void)state;
  static const uint64_t at_ms[] = {0, 100, 300, 700, 1500, 2500, 3500};
  tb_neighbours *a = host(&a_self, 0);
  uint8_t ask[TB_NEIGHBOUR_MOST];
  assert_int_equal(tb_neighbours_next(a), UINT64_MAX);
  assert_false(tb_neighbours_due(a, 0, ask));
  assert_int_equal(tb_neighbours_want(a, &b_self.ip, NULL), 0);
  uint32_t asked = 0;
  for (uint64_t ms = 0; ms < 4000; ms += 10)
    while (tb_neighbours_due(a, SEC + ms * MS, ask)) {
      assert_true(asked < 7 && ms == at_ms[asked]);
      assert_int_equal(ask[0], 255);
      asked++;
    }
  assert_int_equal(asked, 7);
  assert_true(tb_neighbours_next(a) == SEC + 4500 * MS);
  tb_neighbours_free(a);
}

static void who_does_not_answer_is_told(void **state) {
  (void)state;
  tb_neighbours *a = host(&a_self, GATEWAY);
  uint8_t ask[TB_NEIGHBOUR_MOST];
  tb_ip way = TB_IP4(GATEWAY);
  assert_int_equal(want4(a, 0x0a000002, &b_self.mac), 0); /* known: its silence is no news */
  assert_int_equal(want4(a, FAR, NULL), 1);
  for (uint64_t ms = 0; ms < 1500; ms += 10) {
    while (tb_neighbours_due(a, SEC + ms * MS, ask)) continue;
    assert_null(tb_neighbours_silent(a));
  }
  while (tb_neighbours_due(a, SEC + 1500 * MS, ask)) continue;
  assert_true(tb_ip_equal(tb_neighbours_silent(a), &way));
  tb_neighbours_free(a);
  a = host(&a_self, 0);
  assert_int_equal(want4(a, 0x0a000002, &b_self.mac), 0);
  for (uint64_t s = 1; s < 100; s++)
    while (tb_neighbours_due(a, s * SEC, ask)) continue;
  assert_null(tb_neighbours_silent(a));
  tb_neighbours_free(a);
}

static void known_ones_are_asked_again_and_used_meanwhile(void **state) {
  (void)state;
  tb_neighbours *a = host(&a_self, 0), *b = host(&b_self, 0);
  uint8_t ask[TB_NEIGHBOUR_MOST], reply[TB_NEIGHBOUR_MOST];
  assert_int_equal(tb_neighbours_want(a, &b_self.ip, &b_self.mac), 0);
  assert_non_null(tb_neighbours_mac(a, 0));
  assert_false(tb_neighbours_due(a, SEC, ask));
  assert_false(tb_neighbours_due(a, 60 * SEC, ask));
  assert_true(tb_neighbours_due(a, 61 * SEC, ask));
  assert_memory_equal(ask, b_self.mac.b, 6); /* directly */
  assert_false(tb_neighbours_due(a, 61 * SEC, ask));
  assert_true(tb_neighbours_due(a, 61 * SEC + 100 * MS, ask));
  assert_int_equal(ask[0], 255); /* it did not answer: its MAC may be another */
  assert_non_null(tb_neighbours_mac(a, 0));
  assert_true(hear(b, ask, TB_ETHER_LEAST, reply));
  uint32_t before = tb_neighbours_changes(a);
  assert_false(hear(a, reply, TB_ETHER_LEAST, ask));
  assert_int_equal(tb_neighbours_changes(a), before);
  assert_false(tb_neighbours_due(a, 62 * SEC, ask));
  assert_false(tb_neighbours_due(a, 121 * SEC, ask));
  assert_true(tb_neighbours_due(a, 122 * SEC, ask));
  tb_neighbours_free(a);
  tb_neighbours_free(b);
}

static void far_ones_are_reached_by_the_gateway(void **state) {
  (void)state;
  tb_neighbours *a = host(&a_self, GATEWAY), *lost = host(&a_self, 0);
  tb_net_self gateway = {.mac = {{2, 0, 0, 0, 0, 9}}, .ip = TB_IP4(GATEWAY), .bits = TB_IP4_BITS + 24};
  tb_neighbours *g = host(&gateway, 0);
  uint8_t ask[TB_NEIGHBOUR_MOST], reply[TB_NEIGHBOUR_MOST];
  assert_int_equal(want4(lost, FAR, &b_self.mac), -ENETUNREACH);
  assert_int_equal(want4(a, FAR, &b_self.mac), 0);
  assert_int_equal(want4(a, FAR + 1, NULL), 0);
  assert_null(tb_neighbours_mac(a, 0)); /* its own MAC means nothing here */
  assert_true(tb_neighbours_due(a, SEC, ask));
  assert_true(hear(g, ask, TB_ETHER_LEAST, reply));
  assert_false(hear(a, reply, TB_ETHER_LEAST, ask));
  assert_memory_equal(tb_neighbours_mac(a, 0)->b, gateway.mac.b, 6);
  tb_neighbours_free(a);
  tb_neighbours_free(lost);
  tb_neighbours_free(g);
}

static void we_need_not_ask_for_ourselves(void **state) {
  (void)state;
  tb_neighbours *a = host(&a_self, 0);
  uint8_t ask[TB_NEIGHBOUR_MOST], reply[TB_NEIGHBOUR_MOST];
  assert_int_equal(tb_neighbours_want(a, &a_self.ip, NULL), 0);
  assert_memory_equal(tb_neighbours_mac(a, 0)->b, a_self.mac.b, 6);
  assert_false(tb_neighbours_due(a, SEC, ask));
  assert_false(tb_neighbours_due(a, 1000 * SEC, ask));
  tb_neighbours_announce(a, ask);
  assert_false(hear(a, ask, TB_ETHER_LEAST, reply)); /* ours come back from a loop */
  tb_neighbours_free(a);
}

static void an_announcement_changes_who_is_wanted(void **state) {
  (void)state;
  tb_neighbours *a = host(&a_self, 0), *b = host(&b_self, 0);
  tb_net_self moved = b_self;
  moved.mac.b[5] = 7;
  tb_neighbours *c = host(&moved, 0);
  uint8_t f[TB_NEIGHBOUR_MOST], reply[TB_NEIGHBOUR_MOST];
  assert_int_equal(tb_neighbours_want(a, &b_self.ip, NULL), 0);
  tb_neighbours_announce(b, f);
  assert_false(hear(a, f, TB_ETHER_LEAST, reply));
  uint32_t before = tb_neighbours_changes(a);
  tb_neighbours_announce(b, f);
  assert_false(hear(a, f, TB_ETHER_LEAST, reply));
  assert_int_equal(tb_neighbours_changes(a), before);
  tb_neighbours_announce(c, f);
  assert_false(hear(a, f, TB_ETHER_LEAST, reply));
  assert_int_not_equal(tb_neighbours_changes(a), before);
  assert_memory_equal(tb_neighbours_mac(a, 0)->b, moved.mac.b, 6);
  tb_neighbours_free(a);
  tb_neighbours_free(b);
  tb_neighbours_free(c);
}

/* Claims come all the time; how often was the given one asked until it was given up, or so many seconds? */
static int doubted(tb_neighbours *a, const uint8_t *claim, tb_neighbours *owner, uint64_t seconds) {
  uint8_t ask[TB_NEIGHBOUR_MOST], reply[TB_NEIGHBOUR_MOST], none[TB_NEIGHBOUR_MOST];
  int asked = 0;
  for (uint64_t ms = 0; ms < seconds * 1000 && tb_mac_equal(tb_neighbours_mac(a, 0), &b_self.mac); ms += 10) {
    assert_false(hear(a, claim, TB_ETHER_LEAST, none));
    while (tb_neighbours_due(a, SEC + ms * MS, ask)) {
      asked++;
      if (owner && hear(owner, ask, TB_ETHER_LEAST, reply)) hear(a, reply, TB_ETHER_LEAST, none);
    }
  }
  return asked;
}

static void a_claim_to_a_given_address_is_asked_about(void **state) {
  (void)state;
  tb_neighbours *a = host(&a_self, 0), *b = host(&b_self, 0);
  tb_net_self moved = b_self;
  moved.mac.b[5] = 7;
  tb_neighbours *c = host(&moved, 0);
  uint8_t f[TB_NEIGHBOUR_MOST], ask[TB_NEIGHBOUR_MOST];
  assert_int_equal(tb_neighbours_want(a, &b_self.ip, &b_self.mac), 0);
  assert_false(tb_neighbours_due(a, SEC, ask));
  tb_neighbours_announce(c, f);
  assert_in_range(doubted(a, f, b, 20), 100, 201); /* its owner answers each time: a question each 100 ms, and no more */
  assert_memory_equal(tb_neighbours_mac(a, 0)->b, b_self.mac.b, 6);
  assert_int_equal(doubted(a, f, NULL, 60), 5); /* nobody is there any more */
  assert_memory_equal(tb_neighbours_mac(a, 0)->b, moved.mac.b, 6);
  tb_neighbours_free(a);
  tb_neighbours_free(b);
  tb_neighbours_free(c);
}

/* A right reply of b to a, one byte changed. */
static void spoilt(int at, uint8_t value) {
  tb_neighbours *a = host(&a_self, 0), *b = host(&b_self, 0);
  uint8_t ask[TB_NEIGHBOUR_MOST], reply[TB_NEIGHBOUR_MOST];
  assert_int_equal(tb_neighbours_want(a, &b_self.ip, NULL), 0);
  assert_true(tb_neighbours_due(a, SEC, ask));
  assert_true(hear(b, ask, TB_ETHER_LEAST, reply));
  reply[at] = value;
  assert_false(hear(a, reply, TB_ETHER_LEAST, ask));
  if (tb_neighbours_mac(a, 0)) fail_msg("a reply with byte %d = %u was believed", at, value);
  tb_neighbours_free(a);
  tb_neighbours_free(b);
}

static void malformed_replies_change_nothing(void **state) {
  (void)state;
  static const struct { uint8_t at, value; } spoil[] = {
    {0, 6}, {5, 3}, {13, 0}, {15, 2}, {16, 9}, {17, 1}, {18, 8}, {19, 16}, {20, 1}, {21, 3}, {21, 0},
    {22, 255}, {22, 1}, {31, 9}};
  for (size_t i = 0; i < sizeof spoil / sizeof *spoil; i++) spoilt(spoil[i].at, spoil[i].value);
  tb_neighbours *a = host(&a_self, 0), *b = host(&b_self, 0);
  uint8_t ask[TB_NEIGHBOUR_MOST], reply[TB_NEIGHBOUR_MOST];
  assert_int_equal(tb_neighbours_want(a, &b_self.ip, NULL), 0);
  assert_true(tb_neighbours_due(a, SEC, ask));
  for (uint32_t len = 0; len < 42; len++) assert_false(hear(b, ask, len, reply));
  assert_true(hear(b, ask, 42, reply));
  memset(reply + 22, 0, 6); /* nobody's MAC */
  assert_false(hear(a, reply, 42, ask));
  assert_null(tb_neighbours_mac(a, 0));
  tb_neighbours_free(a);
  tb_neighbours_free(b);
}

static void who_claims_our_address_changes_nothing(void **state) {
  (void)state;
  tb_net_self thief = a_self;
  thief.mac.b[5] = 66;
  tb_neighbours *a = host(&a_self, 0), *t = host(&thief, 0);
  uint8_t f[TB_NEIGHBOUR_MOST], reply[TB_NEIGHBOUR_MOST];
  assert_int_equal(tb_neighbours_want(a, &a_self.ip, NULL), 0);
  tb_neighbours_announce(a, f);
  assert_false(hear(a, f, TB_ETHER_LEAST, reply));
  assert_null(tb_neighbours_rival(a));
  tb_neighbours_announce(t, f);
  assert_true(hear(a, f, TB_ETHER_LEAST, reply)); /* it is told that the address is taken */
  assert_memory_equal(tb_neighbours_rival(a)->b, thief.mac.b, 6);
  assert_false(hear(t, reply, TB_ETHER_LEAST, f));
  assert_memory_equal(tb_neighbours_rival(t)->b, a_self.mac.b, 6);
  assert_memory_equal(tb_neighbours_mac(a, 0)->b, a_self.mac.b, 6);
  tb_neighbours_free(a);
  tb_neighbours_free(t);
}

static void many_are_found_again(void **state) {
  (void)state;
  enum { MANY = 5000 };
  tb_net_self wide = a_self;
  wide.bits = TB_IP4_BITS + 8;
  tb_neighbours *a = host(&wide, 0);
  uint8_t ask[TB_NEIGHBOUR_MOST];
  for (uint32_t i = 0; i < MANY; i++) {
    tb_mac mac = {{2, 1, 0, 0, (uint8_t)(i >> 8), (uint8_t)i}};
    assert_int_equal(want4(a, 0x0a010000 + i, i & 1 ? &mac : NULL), i);
  }
  for (uint32_t i = 0; i < MANY; i++) {
    assert_int_equal(want4(a, 0x0a010000 + i, NULL), i);
    const tb_mac *mac = tb_neighbours_mac(a, (int)i);
    assert_true(!!mac == (i & 1));
    if (mac) assert_int_equal(mac->b[4] << 8 | mac->b[5], i);
  }
  int asked = 0;
  while (tb_neighbours_due(a, SEC, ask)) asked++;
  assert_int_equal(asked, MANY / 2);
  assert_null(tb_neighbours_mac(a, MANY));
  assert_null(tb_neighbours_mac(a, -1));
  tb_neighbours_free(a);
}

static void random_bytes(void **state) {
  (void)state;
  tb_neighbours *a = host(&a_self, GATEWAY), *b = host(&b_self, 0);
  uint8_t ask[TB_NEIGHBOUR_MOST], f[TB_NEIGHBOUR_MOST], reply[TB_NEIGHBOUR_MOST];
  uint32_t x = 7, replies = 0;
  for (uint32_t i = 2; i < 20; i++) want4(a, 0x0a000000 + i, NULL);
  assert_int_equal(tb_neighbours_want(b, &a_self.ip, NULL), 0);
  assert_true(tb_neighbours_due(b, SEC, ask));
  for (int turn = 0; turn < 100000; turn++) {
    memcpy(f, ask, TB_ETHER_LEAST);
    for (int i = turn & 1 ? 6 : TB_ETHER_LEAST; i; i--) {
      x = x * 1664525u + 1013904223u;
      f[(x >> 8) % TB_NEIGHBOUR_MOST] = (uint8_t)(x >> 24);
    }
    replies += hear(a, f, turn & 2 ? TB_ETHER_LEAST : x >> 16 & 63 ? 42 : x >> 8 & 31, reply);
  }
  assert_in_range(replies, 100, 50000);
  for (int i = 0; i < 18; i++) {
    const tb_mac *mac = tb_neighbours_mac(a, i);
    assert_true(!mac || tb_mac_of_one(mac));
  }
  tb_neighbours_free(a);
  tb_neighbours_free(b);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(two_hosts_find_each_other),
      cmocka_unit_test(requests_come_at_growing_intervals),
      cmocka_unit_test(who_does_not_answer_is_told),
      cmocka_unit_test(known_ones_are_asked_again_and_used_meanwhile),
      cmocka_unit_test(far_ones_are_reached_by_the_gateway),
      cmocka_unit_test(we_need_not_ask_for_ourselves),
      cmocka_unit_test(an_announcement_changes_who_is_wanted),
      cmocka_unit_test(a_claim_to_a_given_address_is_asked_about),
      cmocka_unit_test(malformed_replies_change_nothing),
      cmocka_unit_test(who_claims_our_address_changes_nothing),
      cmocka_unit_test(many_are_found_again),
      cmocka_unit_test(random_bytes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
