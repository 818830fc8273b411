/* test_headers.c - ether/headers.c: what is written can be read, whatever is damaged is refused, and nothing outside
 * the bytes that came is looked at (each frame lies in a block of its own size, so that the sanitizer would tell). */
#include "ether/headers.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const tb_net_self me = {
  .mac = {{2, 0, 0, 0, 0, 1}}, .ip = TB_IP4(0x0a000001), .bits = TB_IP4_BITS + 24, .port = 5000, .ports = 3};
static const tb_net_self you = {
  .mac = {{2, 0, 0, 0, 0, 2}}, .ip = TB_IP4(0x0a000002), .bits = TB_IP4_BITS + 24, .port = 6000, .ports = 1};
enum { HEAD = TB_ETHER_HEAD + TB_IP4_HEAD + TB_UDP_HEAD, PAY = 100, LEN = HEAD + PAY };

/* Headers are written with TB_NET_HEAD bytes of room: what lies behind them is the payload's, and follows. */
static void head(uint8_t *f, uint32_t len, bool sum) {
  uint8_t block[TB_NET_HEAD];
  tb_net_template t;
  tb_net_prepare(&t, &you, &me.mac, &me.ip);
  assert_int_equal(t.len, HEAD);
  tb_net_head(block, &t, 6000, 5001, len, sum);
  memcpy(f, block, HEAD);
}

static void make(uint8_t *f, uint32_t pay, bool sum) {
  head(f, pay, sum);
  for (uint32_t i = 0; i < pay; i++) f[HEAD + i] = (uint8_t)(i * 7 + 1);
}

static tb_net_kind parse_in_its_block(const uint8_t *f, uint32_t have, uint32_t len, tb_net_in *in) {
  uint8_t *block = malloc(have ? have : 1);
  memcpy(block, f, have);
  tb_net_kind kind = tb_net_parse(block, have, len, TB_NET_UNTAGGED, &me, in);
  free(block);
  return kind;
}

static uint16_t plain_sum(const uint8_t *p, uint32_t len, uint32_t sum) {
  for (uint32_t i = 0; i + 1 < len; i += 2) sum += (uint32_t)(p[i] << 8 | p[i + 1]);
  if (len & 1) sum += (uint32_t)p[len - 1] << 8;
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return (uint16_t)sum;
}

static uint32_t next_random(uint32_t *x) {
  *x ^= *x << 13;
  *x ^= *x >> 17;
  *x ^= *x << 5;
  return *x;
}

static void repair_ip_sum(uint8_t *f) {
  uint32_t head = (f[14] & 15u) * 4;
  tb_put16(f + 24, 0);
  tb_put16(f + 24, (uint16_t)~plain_sum(f + 14, head, 0));
}

static void head__is_as_the_standards_say(void **state) {
  (void)state;
  uint8_t f[LEN];
  static const uint8_t want[] = {2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 128, 0, 0, 0x40, 0, 64, 17};
  make(f, PAY, false);
  assert_memory_equal(f, want, sizeof want);
  assert_int_equal(plain_sum(f + 14, 20, 0), 0xffff);
  assert_int_equal(tb_get32(f + 26), 0x0a000002);
  assert_int_equal(tb_get32(f + 30), 0x0a000001);
  assert_int_equal(tb_get16(f + 34), 6000);
  assert_int_equal(tb_get16(f + 36), 5001);
  assert_int_equal(tb_get16(f + 38), PAY + 8);
  assert_int_equal(tb_get16(f + 40), 0);
  for (uint32_t len = 1; len < 65000; len += 997) { /* every length's sum */
    head(f, len, false);
    assert_int_equal(plain_sum(f + 14, 20, 0), 0xffff);
  }
}

/* What a device does with the pseudo-header's sum gives a right one; a wrong byte anywhere is noticed. */
static void sum__of_a_device_is_right_and_of_damage_is_not(void **state) {
  (void)state;
  for (uint32_t pay = 1; pay < 40; pay++) {
    uint8_t f[LEN];
    tb_net_in in;
    make(f, pay, true);
    tb_put16(f + 40, (uint16_t)~plain_sum(f + 34, 8 + pay, 0));
    assert_int_equal(parse_in_its_block(f, HEAD + pay, HEAD + pay, &in), TB_NET_FRAME);
    assert_true(in.summed && tb_net_sum_right(&in, f + in.at));
    f[HEAD + pay / 2] ^= 0x10;
    assert_false(tb_net_sum_right(&in, f + in.at));
    f[HEAD + pay / 2] ^= 0x10;
    uint16_t sum = tb_get16(f + 40);
    make(f, pay, true); /* ... and so does what stands for such a device */
    assert_int_equal(parse_in_its_block(f, HEAD + pay, HEAD + pay, &in), TB_NET_FRAME);
    assert_true(tb_net_unfinished(&in)); /* as a kernel leaves it */
    tb_net_finish(f + 34, pay);
    assert_int_equal(tb_get16(f + 40), sum);
    assert_int_equal(parse_in_its_block(f, HEAD + pay, HEAD + pay, &in), TB_NET_FRAME);
    assert_false(tb_net_unfinished(&in));
  }
  uint8_t f[LEN];
  tb_net_in in;
  make(f, PAY, false);
  assert_int_equal(tb_net_parse(f, LEN, LEN, TB_NET_UNTAGGED, &me, &in), TB_NET_FRAME);
  f[60] ^= 1;
  assert_true(!in.summed && tb_net_sum_right(&in, f + in.at)); /* nobody summed it */
}

/* Long ones are summed another way; at each length and place, and where every carry is made. */
static void sum__of_any_length(void **state) {
  (void)state;
  static uint8_t bytes[3000];
  uint32_t x = 5;
  for (int turn = 0; turn < 2; turn++) {
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = turn ? 255 : (uint8_t)next_random(&x);
    for (uint32_t len = 0; len < 2900; len += len < 200 ? 1 : 37)
      for (uint32_t at = 0; at < 9; at++) {
        uint8_t *block = malloc(len + at + 1);
        memcpy(block + at, bytes + at, len);
        assert_int_equal(tb_net_sum(block + at, len), plain_sum(block + at, len, 0));
        free(block);
      }
  }
}

static void parse__reads_what_was_written(void **state) {
  (void)state;
  uint8_t f[200] = {0};
  tb_net_in in;
  make(f, PAY, false);
  assert_int_equal(parse_in_its_block(f, LEN, LEN, &in), TB_NET_FRAME);
  assert_true(in.at == HEAD && in.len == PAY && tb_ip_equal(&in.ip, &you.ip) && in.port == 6000);
  assert_int_equal(parse_in_its_block(f, HEAD, LEN, &in), TB_NET_FRAME); /* the payload in another piece */
  make(f, 3, false);
  assert_int_equal(parse_in_its_block(f, TB_ETHER_LEAST, TB_ETHER_LEAST, &in), TB_NET_FRAME);
  assert_int_equal(in.len, 3); /* what pads it is not of it */
}

static void parse__steps_over_ip_options(void **state) {
  (void)state;
  uint8_t plain[LEN], f[LEN + 40];
  tb_net_in in;
  make(plain, PAY, false);
  for (uint32_t options = 4; options <= 40; options += 4) {
    memcpy(f, plain, 34);
    memset(f + 34, 1, options);
    memcpy(f + 34 + options, plain + 34, LEN - 34);
    f[14] = (uint8_t)(0x40 | (20 + options) / 4);
    tb_put16(f + 16, 20 + options + 8 + PAY);
    repair_ip_sum(f);
    assert_int_equal(parse_in_its_block(f, LEN + options, LEN + options, &in), TB_NET_FRAME);
    assert_true(in.at == HEAD + options && in.len == PAY);
    assert_int_equal(parse_in_its_block(f, 34 + options - 1, LEN + options, &in), TB_NET_TRUNCATED);
  }
}

static void parse__shorter_than_it_says_is_truncated(void **state) {
  (void)state;
  uint8_t f[LEN];
  tb_net_in in;
  make(f, PAY, false);
  for (uint32_t len = 0; len < LEN; len++) assert_int_equal(parse_in_its_block(f, len, len, &in), TB_NET_TRUNCATED);
  tb_put16(f + 38, PAY + 9); /* UDP longer than its IP packet */
  assert_int_equal(tb_net_parse(f, LEN, LEN, TB_NET_UNTAGGED, &me, &in), TB_NET_TRUNCATED);
  tb_put16(f + 38, 7);
  assert_int_equal(tb_net_parse(f, LEN, LEN, TB_NET_UNTAGGED, &me, &in), TB_NET_TRUNCATED);
  make(f, PAY, false);
  for (uint32_t total = 0; total < 28; total++) { /* an IP packet shorter than its headers */
    tb_put16(f + 16, total);
    repair_ip_sum(f);
    assert_int_equal(tb_net_parse(f, LEN, LEN, TB_NET_UNTAGGED, &me, &in), TB_NET_TRUNCATED);
  }
}

static void parse__of_others_is_foreign(void **state) {
  (void)state;
  static const struct { uint8_t at, value; } spoil[] = {
    {0, 4}, {5, 9}, {12, 0x86}, {14, 0x65}, {14, 0x44}, {20, 0x20}, {21, 1}, {23, 6}, {30, 11}, {33, 9},
    {26, 0}, {26, 127}, {26, 224}, {26, 255}, {36, 0}, {37, 0x87}, {37, 0x8b}};
  uint8_t f[LEN];
  tb_net_in in;
  for (size_t i = 0; i < sizeof spoil / sizeof *spoil; i++) {
    make(f, PAY, false);
    f[spoil[i].at] = spoil[i].value;
    repair_ip_sum(f);
    bool foreign = tb_net_parse(f, LEN, LEN, TB_NET_UNTAGGED, &me, &in) == TB_NET_FOREIGN;
    if (!foreign) fail_msg("byte %u = %u", spoil[i].at, spoil[i].value);
  }
  make(f, 0, false);
  assert_int_equal(tb_net_parse(f, HEAD, HEAD, TB_NET_UNTAGGED, &me, &in), TB_NET_FOREIGN);
  make(f, PAY, false);
  memset(f, 255, 6); /* to everybody, though our address is named */
  assert_int_equal(tb_net_parse(f, LEN, LEN, TB_NET_UNTAGGED, &me, &in), TB_NET_FOREIGN);
  make(f, PAY, false);
  tb_put16(f + 12, 0x0806);
  assert_int_equal(tb_net_parse(f, LEN, LEN, TB_NET_UNTAGGED, &me, &in), TB_NET_ARP);
}

static void parse__a_damaged_ip_header_is_told(void **state) {
  (void)state;
  uint8_t f[LEN];
  tb_net_in in;
  static const uint8_t at[] = {15, 16, 17, 18, 20, 22, 24, 25, 26, 29};
  for (size_t i = 0; i < sizeof at; i++) {
    make(f, PAY, false);
    f[at[i]] ^= 0x10;
    assert_int_equal(tb_net_parse(f, LEN, LEN, TB_NET_UNTAGGED, &me, &in), TB_NET_BAD_SUM);
  }
}

/* Random bytes, and right frames with some bytes changed: whatever is accepted lies inside. */
static void parse__random_bytes(void **state) {
  (void)state;
  uint32_t x = 12345, accepted = 0;
  for (int turn = 0; turn < 200000; turn++) {
    uint8_t f[LEN];
    tb_net_in in;
    uint32_t len = next_random(&x) % (LEN + 1), have = turn & 1 ? len : next_random(&x) % (len + 1);
    if (turn % 4) {
      make(f, PAY, false);
      for (uint32_t n = next_random(&x) % 4; n; n--) f[next_random(&x) % HEAD] = (uint8_t)next_random(&x);
      if (turn & 8) repair_ip_sum(f); /* an IHL of less than 20 bytes sums less: refused before */
      if (turn & 16) have = len = LEN;
    } else {
      for (uint32_t i = 0; i < LEN; i++) f[i] = (uint8_t)next_random(&x);
    }
    tb_net_kind kind = parse_in_its_block(f, have, len, &in);
    assert_in_range(kind, TB_NET_FRAME, TB_NET_BAD_SUM);
    if (kind == TB_NET_ICMP) assert_true(in.at >= 34 && in.at <= len && in.len <= len - in.at);
    if (kind != TB_NET_FRAME) continue;
    accepted++;
    assert_true(in.len && in.at >= HEAD && in.at <= len && in.len <= len - in.at);
  }
  assert_in_range(accepted, 1000, 150000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(head__is_as_the_standards_say),
      cmocka_unit_test(sum__of_a_device_is_right_and_of_damage_is_not),
      cmocka_unit_test(sum__of_any_length),
      cmocka_unit_test(parse__reads_what_was_written),
      cmocka_unit_test(parse__steps_over_ip_options),
      cmocka_unit_test(parse__shorter_than_it_says_is_truncated),
      cmocka_unit_test(parse__of_others_is_foreign),
      cmocka_unit_test(parse__a_damaged_ip_header_is_told),
      cmocka_unit_test(parse__random_bytes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
