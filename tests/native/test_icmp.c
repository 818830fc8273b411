/* test_icmp.c - ether/icmp.c: who asks is answered, byte by byte as the standards say, at a bounded rate; routers are
 * heard about our own frames only. Frames lie in blocks of their own size, so that the sanitizer tells of any other
 * byte. */
#include "ether/icmp.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MY_IP = 0x0a000001, YOUR_IP = 0x0a000002 };
static const tb_net_self me = {
  .mac = {{2, 0, 0, 0, 0, 1}}, .ip = TB_IP4(MY_IP), .bits = TB_IP4_BITS + 24, .port = 5000, .ports = 3};
static const uint8_t your_mac[] = {2, 0, 0, 0, 0, 2};
enum { SECOND = 1000000000 };

static uint16_t plain_sum(const uint8_t *p, uint32_t len) {
  uint32_t sum = 0;
  for (uint32_t i = 0; i < len; i++) sum += i & 1 ? p[i] : (uint32_t)p[i] << 8;
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return (uint16_t)sum;
}

static void finish(uint8_t *f, uint32_t icmp_len) {
  tb_put16(f + 24, 0);
  tb_put16(f + 24, (uint16_t)~plain_sum(f + 14, 20));
  tb_put16(f + 36, 0);
  tb_put16(f + 36, (uint16_t)~plain_sum(f + 34, icmp_len));
}

/* A ping with `data` bytes; its length. */
static uint32_t ping(uint8_t *f, uint32_t data) {
  memset(f, 0, 42);
  memcpy(f, me.mac.b, 6);
  memcpy(f + 6, your_mac, 6);
  tb_put16(f + 12, 0x0800);
  f[14] = 0x45;
  tb_put16(f + 16, 28 + data);
  f[22] = 7;
  f[23] = 1;
  tb_put32(f + 26, YOUR_IP);
  tb_put32(f + 30, MY_IP);
  f[34] = 8;
  tb_put16(f + 38, 0x1234);
  tb_put16(f + 40, 0x5678);
  for (uint32_t i = 0; i < data; i++) f[42 + i] = (uint8_t)(i * 3 + 1);
  finish(f, 8 + data);
  return 42 + data;
}

static uint8_t *block_of(const uint8_t *f, uint32_t len) {
  uint8_t *block = malloc(len);
  memcpy(block, f, len);
  return block;
}

static uint32_t echo_at(tb_icmp_pace *pace, uint64_t now, const uint8_t *f, uint32_t len, uint8_t *reply) {
  tb_net_in in;
  if (tb_net_parse(f, len, len, TB_NET_UNTAGGED, &me, &in) != TB_NET_ICMP) return UINT32_MAX;
  uint8_t *block = block_of(f, in.at + in.len), *out = malloc(TB_ICMP_MOST);
  uint32_t n = tb_icmp_echo(pace, now, &me, block, &in, out);
  if (n <= TB_ICMP_MOST) memcpy(reply, out, n);
  free(block);
  free(out);
  return n;
}

static uint32_t echo(const uint8_t *f, uint32_t len, uint8_t *reply) {
  tb_icmp_pace pace = {0};
  return echo_at(&pace, SECOND, f, len, reply);
}

static void echo__is_the_question_turned_round(void **state) {
  (void)state;
  static uint8_t f[2000], reply[TB_ICMP_MOST];
  for (uint32_t data = 0; data <= 1472; data += data < 100 ? 1 : 49) {
    uint32_t len = ping(f, data);
    memset(reply, 0xee, sizeof reply);
    assert_int_equal(echo(f, len, reply), len < 60 ? 60 : len);
    assert_memory_equal(reply, your_mac, 6);
    assert_memory_equal(reply + 6, me.mac.b, 6);
    assert_int_equal(tb_get16(reply + 12), 0x0800);
    assert_int_equal(reply[14], 0x45);
    assert_int_equal(tb_get16(reply + 16), 28 + data);
    assert_int_equal(plain_sum(reply + 14, 20), 0xffff);
    assert_true(reply[22] == 64 && reply[23] == 1);
    assert_int_equal(tb_get32(reply + 26), MY_IP);
    assert_int_equal(tb_get32(reply + 30), YOUR_IP);
    assert_true(reply[34] == 0 && reply[35] == 0);
    assert_int_equal(plain_sum(reply + 34, 8 + data), 0xffff);
    assert_memory_equal(reply + 38, f + 38, 4 + data);
    for (uint32_t i = len; i < 60; i++) assert_int_equal(reply[i], 0);
  }
}

static void echo__only_what_is_right_is_answered(void **state) {
  (void)state;
  static uint8_t f[2000], reply[TB_ICMP_MOST];
  static const struct { uint8_t at, value; } wrong[] = {{34, 0}, {34, 13}, {35, 1}, {6, 3}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    uint32_t len = ping(f, 56);
    f[wrong[i].at] = wrong[i].value;
    finish(f, 64);
    assert_int_equal(echo(f, len, reply), 0);
  }
  uint32_t len = ping(f, 56);
  f[50] ^= 1; /* damaged */
  assert_int_equal(echo(f, len, reply), 0);
  len = ping(f, 1473);
  assert_int_equal(echo(f, len, reply), 0);
  for (uint32_t icmp = 0; icmp < 8; icmp++) { /* shorter than its own header */
    ping(f, 20);
    tb_put16(f + 16, 20 + icmp);
    finish(f, icmp);
    assert_int_equal(echo(f, 60, reply), 0);
  }
  ping(f, 20);
  tb_put16(f + 16, 60);
  finish(f, 28);
  assert_int_equal(echo(f, 62, reply), UINT32_MAX); /* cut */
  ping(f, 20);
  tb_put32(f + 30, MY_IP + 1); /* another's */
  finish(f, 28);
  assert_int_equal(echo(f, 62, reply), UINT32_MAX);
  ping(f, 20);
  tb_put32(f + 26, 0xe0000001); /* from a group */
  finish(f, 28);
  assert_int_equal(echo(f, 62, reply), UINT32_MAX);
}

static void echo__steps_over_ip_options(void **state) {
  (void)state;
  uint8_t f[200], g[200], reply[TB_ICMP_MOST];
  uint32_t len = ping(f, 30);
  memcpy(g, f, 34);
  memset(g + 34, 1, 8);
  memcpy(g + 42, f + 34, len - 34);
  g[14] = 0x47;
  tb_put16(g + 16, 28 + 30 + 8);
  tb_put16(g + 24, 0);
  tb_put16(g + 24, (uint16_t)~plain_sum(g + 14, 28));
  assert_int_equal(echo(g, len + 8, reply), len);
  assert_int_equal(reply[14], 0x45);
  assert_memory_equal(reply + 38, f + 38, len - 38);
}

static void echo__answers_are_bounded_in_rate(void **state) {
  (void)state;
  tb_icmp_pace pace = {0};
  uint8_t f[100], reply[TB_ICMP_MOST];
  uint32_t len = ping(f, 20), answered = 0;
  for (int i = 0; i < 1000; i++) answered += echo_at(&pace, SECOND, f, len, reply) > 0;
  assert_int_equal(answered, TB_ICMP_ECHO_BURST);
  for (uint64_t t = SECOND; t < 11ull * SECOND; t += SECOND / 1000) answered += echo_at(&pace, t, f, len, reply) > 0;
  assert_in_range(answered, 10 * TB_ICMP_ECHO_RATE, 10 * TB_ICMP_ECHO_RATE + TB_ICMP_ECHO_BURST);
  answered = 0;
  for (int i = 0; i < 1000; i++) answered += echo_at(&pace, 100ull * SECOND, f, len, reply) > 0;
  assert_int_equal(answered, TB_ICMP_ECHO_BURST); /* and a pause does not save up more */
}

/* A router's "fragmentation needed" about a frame of ours to 10.0.9.9. */
static uint32_t narrow(uint8_t *f, uint32_t ip_mtu) {
  ping(f, 28);
  f[34] = 3;
  f[35] = 4;
  tb_put32(f + 38, ip_mtu);
  memset(f + 42, 0, 28);
  f[42] = 0x45;
  f[42 + 9] = 17;
  tb_put32(f + 42 + 12, MY_IP);
  tb_put32(f + 42 + 16, 0x0a000909);
  tb_put16(f + 42 + 20, 5002);
  finish(f, 36);
  return 70;
}

static bool heard(const uint8_t *f, uint32_t len, uint32_t *to, uint32_t *ip_mtu) {
  tb_net_in in;
  assert_int_equal(tb_net_parse(f, len, len, TB_NET_UNTAGGED, &me, &in), TB_NET_ICMP);
  uint8_t *block = block_of(f, in.at + in.len);
  tb_ip whom = TB_IP4(0);
  bool told = tb_icmp_narrow(&me, block, &in, &whom, ip_mtu);
  if (told) *to = tb_get32(whom.b + TB_IP4_AT);
  free(block);
  return told;
}

static void narrow__is_heard_about_our_frames_only(void **state) {
  (void)state;
  static const struct { uint8_t at, value; } wrong[] = {{34, 11}, {35, 3}, {42, 0x46}, {51, 6}, {57, 9}, {63, 0x87},
                                                        {63, 0x8b}};
  uint8_t f[100];
  uint32_t to = 0, ip_mtu = 0, len = narrow(f, 1400);
  assert_true(heard(f, len, &to, &ip_mtu));
  assert_int_equal(to, 0x0a000909);
  assert_int_equal(ip_mtu, 1400);
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    narrow(f, 1400);
    f[wrong[i].at] = wrong[i].value;
    finish(f, 36);
    if (heard(f, len, &to, &ip_mtu)) fail_msg("byte %u = %u", wrong[i].at, wrong[i].value);
  }
  narrow(f, 1400);
  f[45] ^= 1;
  assert_false(heard(f, len, &to, &ip_mtu)); /* damaged */
  narrow(f, 1400);
  tb_put16(f + 16, 20 + 35);
  finish(f, 35);
  assert_false(heard(f, len, &to, &ip_mtu)); /* a byte short */
  narrow(f, 0);
  assert_true(heard(f, len, &to, &ip_mtu) && ip_mtu == 0); /* an old router */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(echo__is_the_question_turned_round),
      cmocka_unit_test(echo__only_what_is_right_is_answered),
      cmocka_unit_test(echo__steps_over_ip_options),
      cmocka_unit_test(echo__answers_are_bounded_in_rate),
      cmocka_unit_test(narrow__is_heard_about_our_frames_only),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
