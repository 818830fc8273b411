/* test_nd.c - ether/nd.c behind ether/neighbour.c: two hosts find each other over IPv6, in a VLAN too; what is not
 * well formed is not believed. tests/dpdk/test_capture_ipv6.py judges the same frames by another reader. Times are
 * given. */
#include "ether/neighbour.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#define MS 1000000ull
#define SEC 1000000000ull
enum { MESSAGE = TB_ETHER_HEAD + TB_IP6_HEAD };

static tb_ip address(uint8_t net, uint8_t host) {
  tb_ip ip = {{0xfd, net, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, host}};
  return ip;
}

static tb_net_self self_of(uint8_t number, uint16_t vlan) {
  tb_net_self self = {.mac = {{2, 0, 0, 0, 0, number}}, .ip = address(0, number), .bits = 64, .vlan = vlan};
  return self;
}

typedef struct { tb_net_self self; tb_neighbours *n; } host;

static host new_host(uint8_t number, uint16_t vlan, const tb_ip *gateway) {
  host h = {.self = self_of(number, vlan)};
  assert_int_equal(tb_neighbours_new(&h.self, gateway, &h.n), 0);
  return h;
}

/* As the link does it: sums that are wrong do not reach it. */
static uint32_t hear(host *h, const uint8_t *f, uint32_t len, uint8_t *reply) {
  uint8_t *block = malloc(len ? len : 1); /* of its own size: a byte too far would be told */
  tb_net_in in;
  memcpy(block, f, len);
  bool ours = tb_net_parse(block, len, len, TB_NET_UNTAGGED, &h->self, &in) == TB_NET_ND &&
              tb_net_sum_right(&in, block + in.at);
  uint32_t r = ours ? tb_neighbours_hear(h->n, block, &in, reply) : 0;
  free(block);
  return r;
}

static void two_hosts_find_each_other(void **state) {
  (void)state;
  for (uint16_t vlan = 0; vlan < 8; vlan += 7) {
    host a = new_host(1, vlan, NULL), b = new_host(2, vlan, NULL), other = new_host(3, (uint16_t)(vlan + 1), NULL);
    uint8_t ask[TB_NEIGHBOUR_MOST], reply[TB_NEIGHBOUR_MOST], none[TB_NEIGHBOUR_MOST];
    int at = tb_neighbours_want(a.n, &b.self.ip, NULL);
    assert_int_equal(at, 0);
    assert_null(tb_neighbours_mac(a.n, at));
    uint32_t len = tb_neighbours_due(a.n, 5 * SEC, ask);
    assert_int_equal(len, MESSAGE + 32 + (vlan ? 4 : 0));
    assert_memory_equal(ask, ((uint8_t[]){0x33, 0x33, 0xff, 0, 9, 2}), 6);
    assert_int_equal(hear(&other, ask, len, reply), 0); /* of another VLAN */
    len = hear(&b, ask, len, reply);
    assert_int_equal(len, MESSAGE + 32 + (vlan ? 4 : 0));
    assert_memory_equal(reply, a.self.mac.b, 6); /* to it alone */
    assert_int_equal(hear(&a, reply, len, none), 0);
    assert_memory_equal(tb_neighbours_mac(a.n, at)->b, b.self.mac.b, 6);
    assert_int_equal(tb_neighbours_due(a.n, 6 * SEC, ask), 0);
    assert_int_not_equal(tb_neighbours_due(a.n, 66 * SEC, ask), 0);
    assert_memory_equal(ask, b.self.mac.b, 6); /* asked again, directly */
    assert_int_not_equal(tb_neighbours_due(a.n, 66 * SEC + 100 * MS, ask), 0);
    assert_int_equal(ask[0], 0x33); /* it did not answer: its MAC may be another */
    tb_neighbours_free(a.n);
    tb_neighbours_free(b.n);
    tb_neighbours_free(other.n);
  }
}

static void far_ones_are_reached_by_the_gateway(void **state) {
  (void)state;
  tb_ip way = {{0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}}, far = address(1, 1), near = way;
  near.b[15] = 7;
  host a = new_host(1, 0, &way), lost = new_host(1, 0, NULL), g = new_host(9, 0, NULL);
  uint8_t ask[TB_NEIGHBOUR_MOST], reply[TB_NEIGHBOUR_MOST];
  g.self.ip = way;
  tb_neighbours_free(g.n);
  assert_int_equal(tb_neighbours_new(&g.self, NULL, &g.n), 0);
  assert_int_equal(tb_neighbours_want(lost.n, &far, NULL), -ENETUNREACH);
  assert_int_equal(tb_neighbours_want(lost.n, &near, NULL), 0); /* link-local: direct, whatever our network is */
  assert_int_equal(tb_neighbours_want(a.n, &far, &g.self.mac), 0);
  assert_null(tb_neighbours_mac(a.n, 0)); /* its own MAC means nothing here */
  uint32_t len = hear(&g, ask, tb_neighbours_due(a.n, SEC, ask), reply);
  assert_int_equal(hear(&a, reply, len, ask), 0);
  assert_memory_equal(tb_neighbours_mac(a.n, 0)->b, g.self.mac.b, 6);
  tb_neighbours_free(a.n);
  tb_neighbours_free(lost.n);
  tb_neighbours_free(g.n);
}

/* An answer without "override" does not take the place of what is known; one without a MAC says that it still holds. */
static void an_answer_may_yield(void **state) {
  (void)state;
  host a = new_host(1, 0, NULL), b = new_host(2, 0, NULL), moved = new_host(2, 0, NULL);
  uint8_t ask[TB_NEIGHBOUR_MOST], reply[TB_NEIGHBOUR_MOST];
  moved.self.mac.b[5] = 7;
  tb_neighbours_free(moved.n);
  assert_int_equal(tb_neighbours_new(&moved.self, NULL, &moved.n), 0);
  assert_int_equal(tb_neighbours_want(a.n, &b.self.ip, NULL), 0);
  assert_int_equal(hear(&a, reply, tb_neighbours_announce(b.n, reply), ask), 0);
  uint32_t len = tb_neighbours_announce(moved.n, reply), before = tb_neighbours_changes(a.n);
  reply[MESSAGE + 4] &= (uint8_t)~0x20;
  tb_net_icmp_sum(reply, &moved.self, MESSAGE, 32);
  assert_int_equal(hear(&a, reply, len, ask), 0);
  assert_int_equal(tb_neighbours_changes(a.n), before);
  assert_memory_equal(tb_neighbours_mac(a.n, 0)->b, b.self.mac.b, 6);
  len = tb_neighbours_announce(moved.n, reply);
  assert_int_equal(hear(&a, reply, len, ask), 0);
  assert_memory_equal(tb_neighbours_mac(a.n, 0)->b, moved.self.mac.b, 6);
  assert_int_equal(tb_neighbours_due(a.n, 10 * SEC, ask), 0);
  tb_put16(reply + TB_ETHER_HEAD + 4, 24); /* the message ends before its option */
  tb_net_icmp_sum(reply, &moved.self, MESSAGE, 24);
  assert_int_equal(hear(&a, reply, MESSAGE + 24, ask), 0);
  assert_int_equal(tb_neighbours_due(a.n, 69 * SEC, ask), 0); /* heard of at some time before this */
  assert_int_equal(tb_neighbours_due(a.n, 100 * SEC, ask), 0);
  assert_int_not_equal(tb_neighbours_due(a.n, 130 * SEC, ask), 0);
  tb_neighbours_free(a.n);
  tb_neighbours_free(b.n);
  tb_neighbours_free(moved.n);
}

static void who_claims_our_address_is_told_once(void **state) {
  (void)state;
  host a = new_host(1, 0, NULL), t = new_host(1, 0, NULL);
  uint8_t f[TB_NEIGHBOUR_MOST], reply[TB_NEIGHBOUR_MOST];
  t.self.mac.b[5] = 66;
  tb_neighbours_free(t.n);
  assert_int_equal(tb_neighbours_new(&t.self, NULL, &t.n), 0);
  uint32_t len = tb_neighbours_announce(a.n, f);
  assert_int_equal(hear(&a, f, len, reply), 0); /* ours come back */
  assert_null(tb_neighbours_rival(a.n));
  len = tb_neighbours_announce(t.n, f);
  uint32_t back = hear(&a, f, len, reply);
  assert_int_not_equal(back, 0);
  assert_memory_equal(tb_neighbours_rival(a.n)->b, t.self.mac.b, 6);
  assert_int_not_equal(hear(&t, reply, back, f), 0); /* the same there: and that is all that they say about it */
  assert_memory_equal(tb_neighbours_rival(t.n)->b, a.self.mac.b, 6);
  assert_int_equal(hear(&a, f, len, reply), 0);
  tb_neighbours_free(a.n);
  tb_neighbours_free(t.n);
}

/* Of several that have one address each hears all the others, again and again: they must come to rest. */
static void many_who_claim_one_address_fall_silent(void **state) {
  (void)state;
  enum { HOSTS = 12, TOLD = 8, MOST = 256 };
  static uint8_t frame[MOST][TB_NEIGHBOUR_MOST];
  uint32_t len[MOST], from[MOST], said = 0;
  host h[HOSTS];
  for (uint8_t i = 0; i < HOSTS; i++) {
    h[i] = (host){.self = self_of(1, 0)};
    h[i].self.mac.b[5] = (uint8_t)(i + 1);
    assert_int_equal(tb_neighbours_new(&h[i].self, NULL, &h[i].n), 0);
    from[said] = i;
    len[said] = tb_neighbours_announce(h[i].n, frame[said]);
    said++;
  }
  for (uint32_t next = 0; next < said; next++)
    for (uint32_t i = 0; i < HOSTS; i++) {
      if (said == MOST) fail_msg("%u announcements, and no end", said);
      if (i == from[next]) continue;
      len[said] = hear(&h[i], frame[next], len[next], frame[said]);
      from[said] = i;
      said += len[said] > 0;
    }
  assert_int_equal(said, HOSTS + HOSTS * TOLD); /* each for itself, and once for each that it heard of, of some */
  for (uint32_t i = 0; i < HOSTS; i++) {
    assert_non_null(tb_neighbours_rival(h[i].n));
    tb_neighbours_free(h[i].n);
  }
}

static void random_bytes(void **state) {
  (void)state;
  tb_ip way = address(0, 254);
  host a = new_host(1, 0, &way), b = new_host(2, 0, NULL);
  uint8_t right[2][TB_NEIGHBOUR_MOST], f[TB_NEIGHBOUR_MOST], reply[TB_NEIGHBOUR_MOST];
  uint32_t x = 7, replies = 0;
  for (uint8_t i = 2; i < 20; i++) {
    tb_ip ip = address(0, i);
    assert_int_equal(tb_neighbours_want(a.n, &ip, NULL), i - 2);
  }
  assert_int_equal(tb_neighbours_want(b.n, &a.self.ip, NULL), 0);
  uint32_t len = tb_neighbours_due(b.n, SEC, right[0]);
  assert_int_equal(tb_neighbours_announce(b.n, right[1]), len);
  for (int turn = 0; turn < 200000; turn++) {
    memcpy(f, right[turn & 1], len);
    for (int i = turn & 2 ? 3 : 30; i; i--) {
      x = x * 1664525u + 1013904223u;
      f[(x >> 8) % len] = (uint8_t)(x >> 24);
    }
    uint32_t have = turn & 4 ? len : (x >> 4) % (len + 1), message = have > MESSAGE ? have - MESSAGE : 0;
    if (turn & 8) memcpy(f, right[turn & 1], MESSAGE), tb_put16(f + TB_ETHER_HEAD + 4, message);
    if (message >= 4) tb_net_icmp_sum(f, &b.self, MESSAGE, message);
    replies += hear(&a, f, have, reply) > 0;
  }
  assert_in_range(replies, 100, 150000);
  for (int i = 0; i < 18; i++) {
    const tb_mac *mac = tb_neighbours_mac(a.n, i);
    assert_true(!mac || tb_mac_of_one(mac));
  }
  tb_neighbours_free(a.n);
  tb_neighbours_free(b.n);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(two_hosts_find_each_other),
      cmocka_unit_test(far_ones_are_reached_by_the_gateway),
      cmocka_unit_test(an_answer_may_yield),
      cmocka_unit_test(who_claims_our_address_is_told_once),
      cmocka_unit_test(many_who_claim_one_address_fall_silent),
      cmocka_unit_test(random_bytes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
