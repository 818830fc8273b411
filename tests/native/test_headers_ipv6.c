/* test_headers_ipv6.c - ether/headers.c over IPv6 and with a VLAN tag: as test_headers.c. */
#include "ether/headers.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

enum { PAY = 100, MOST = TB_NET_HEAD + PAY };

static tb_net_self host(uint8_t number, bool four, uint16_t vlan) {
  tb_net_self four_self = {.mac = {{2, 0, 0, 0, 0, number}}, .ip = TB_IP4(0x0a000000u + number), .bits = 96 + 24};
  tb_net_self self = {.mac = four_self.mac, .ip = {{[0] = 0xfd, [14] = 1, [15] = number}}, .bits = 64};
  if (four) self = four_self;
  self.vlan = vlan;
  self.port = 5000;
  self.ports = 3;
  return self;
}

/* From host 2 to host 1; its length. */
static uint32_t make(uint8_t *f, const tb_net_self *me, uint32_t pay, bool finished) {
  tb_net_self you = host(2, tb_ip_is4(&me->ip), me->vlan);
  tb_net_template t;
  tb_net_prepare(&t, &you, &me->mac, &me->ip);
  tb_net_head(f, &t, 6000, 5001, pay, true);
  for (uint32_t i = 0; i < pay; i++) f[t.len + i] = (uint8_t)(i * 7 + 1);
  if (finished) tb_net_finish(f + t.udp, pay);
  return t.len + pay;
}

static tb_net_kind parse(const uint8_t *f, uint32_t have, uint32_t len, int32_t tag, const tb_net_self *me,
                         tb_net_in *in) {
  uint8_t *block = malloc(have ? have : 1);
  memcpy(block, f, have);
  tb_net_kind kind = tb_net_parse(block, have, len, tag, me, in);
  free(block);
  return kind;
}

static void head__is_as_the_standards_say(void **state) {
  (void)state;
  static const uint8_t want[] = {
    2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0xf, 0xfe, 0x86, 0xdd,                               /* to VLAN 4094 */
    0x60, 0, 0, 0, 0, 8 + PAY, 17, 64, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2,
    0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 6000 >> 8, 6000 & 255, 5001 >> 8, 5001 & 255, 0, 8 + PAY};
  tb_net_self me = host(1, false, 4094);
  uint8_t f[MOST];
  assert_int_equal(make(f, &me, PAY, true), sizeof want + 2 + PAY);
  assert_memory_equal(f, want, sizeof want);
}

/* The sum of RFC 8200, 8.1, word by word; also of payloads whose sum comes to 0, which would say "none". */
static void sum__is_that_of_the_standard_and_never_0(void **state) {
  (void)state;
  tb_net_self me = host(1, false, 0);
  uint32_t ones = 0;
  for (uint32_t turn = 0; turn < 70000; turn++) {
    uint8_t f[MOST];
    uint32_t pay = 1 + turn % 40, len = make(f, &me, pay, false);
    if (pay >= 2) tb_put16(f + 62, turn);
    tb_net_finish(f + 54, pay);
    uint32_t sum = 17 + 8 + pay;
    for (uint32_t i = 22; i < len; i += 2) sum += (uint32_t)f[i] << 8 | (i + 1 < len ? f[i + 1] : 0u);
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    assert_int_equal(sum, 0xffff);
    assert_int_not_equal(tb_get16(f + 60), 0);
    ones += tb_get16(f + 60) == 0xffff;
  }
  assert_true(ones > 0); /* it was met */
}

static void parse__reads_what_was_written(void **state) {
  (void)state;
  for (int way = 0; way < 4; way++) {
    tb_net_self me = host(1, way & 1, way & 2 ? 7 : 0), you = host(2, way & 1, 0);
    uint8_t f[MOST];
    tb_net_in in;
    uint32_t len = make(f, &me, PAY, false);
    assert_int_equal(parse(f, len, len, TB_NET_UNTAGGED, &me, &in), TB_NET_FRAME);
    assert_true(in.summed && tb_net_unfinished(&in) && in.len == PAY && in.at == len - PAY && in.port == 6000);
    assert_true(tb_ip_equal(&in.ip, &you.ip));
    make(f, &me, PAY, true);
    assert_int_equal(parse(f, len - PAY, len, TB_NET_UNTAGGED, &me, &in), TB_NET_FRAME); /* the payload elsewhere */
    assert_true(in.summed && !tb_net_unfinished(&in) && tb_net_sum_right(&in, f + in.at));
    for (uint32_t i = len - PAY; i < len; i++) { /* each byte is under the sum */
      f[i] ^= 0x40;
      assert_false(tb_net_sum_right(&in, f + in.at));
      f[i] ^= 0x40;
    }
    for (uint32_t cut = 0; cut < len; cut++)
      assert_int_equal(parse(f, cut, cut, TB_NET_UNTAGGED, &me, &in), TB_NET_TRUNCATED);
  }
}

static void parse__no_sum_over_ipv6_is_damage(void **state) {
  (void)state;
  tb_net_self me = host(1, false, 0);
  uint8_t f[MOST];
  tb_net_in in;
  uint32_t len = make(f, &me, PAY, true);
  tb_put16(f + 60, 0);
  assert_int_equal(parse(f, len, len, TB_NET_UNTAGGED, &me, &in), TB_NET_BAD_SUM);
}

/* A tag that the device took out counts like one that is there; one beside another does not. */
static void parse__the_tag_decides(void **state) {
  (void)state;
  static const struct { uint16_t ours, theirs; int32_t taken; tb_net_kind kind; } cases[] = {
    {0, 0, TB_NET_UNTAGGED, TB_NET_FRAME}, {7, 7, TB_NET_UNTAGGED, TB_NET_FRAME}, {7, 0, 7, TB_NET_FRAME},
    {7, 0, 0xe007, TB_NET_FRAME},          {7, 8, TB_NET_UNTAGGED, TB_NET_FOREIGN}, {7, 0, 8, TB_NET_FOREIGN},
    {7, 0, TB_NET_UNTAGGED, TB_NET_FOREIGN}, {0, 7, TB_NET_UNTAGGED, TB_NET_FOREIGN}, {0, 0, 7, TB_NET_FOREIGN},
    {0, 0, 0, TB_NET_FOREIGN},             {7, 7, 7, TB_NET_FOREIGN}, {7, 0, 0x1008, TB_NET_FOREIGN},
    {4094, 0, 0xfffe, TB_NET_FRAME},       {7, 0, 0, TB_NET_FOREIGN}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    for (int four = 0; four < 2; four++) {
      tb_net_self sender = host(1, four, cases[i].theirs), me = host(1, four, cases[i].ours);
      uint8_t f[MOST];
      tb_net_in in;
      uint32_t len = make(f, &sender, PAY, true);
      if (parse(f, len, len, cases[i].taken, &me, &in) != cases[i].kind) fail_msg("case %zu", i);
    }
}

static void parse__of_others_is_foreign(void **state) {
  (void)state;
  static const struct { uint8_t at, value; } spoil[] = {
    {0, 4}, {5, 9}, {12, 0x08}, {14, 0x45}, {20, 0}, {20, 44}, {20, 6}, {38, 0xfe}, {53, 9}, {22, 0xff}, {56, 0},
    {57, 0x87}, {57, 0x8b}};
  tb_net_self me = host(1, false, 0);
  uint8_t f[MOST];
  tb_net_in in;
  for (size_t i = 0; i < sizeof spoil / sizeof *spoil; i++) {
    uint32_t len = make(f, &me, PAY, true);
    f[spoil[i].at] = spoil[i].value;
    bool foreign = parse(f, len, len, TB_NET_UNTAGGED, &me, &in) == TB_NET_FOREIGN;
    if (!foreign) fail_msg("byte %u = %u", spoil[i].at, spoil[i].value);
  }
  uint32_t len = make(f, &me, PAY, true);
  static const tb_ip mapped = TB_IP4(0x0a000002);
  memcpy(f + 22, mapped.b, 16); /* an IPv4 address as the source of an IPv6 packet is nobody's */
  assert_int_equal(parse(f, len, len, TB_NET_UNTAGGED, &me, &in), TB_NET_FOREIGN);
  len = make(f, &me, 0, true);
  assert_int_equal(parse(f, len, len, TB_NET_UNTAGGED, &me, &in), TB_NET_FOREIGN);
}

static uint32_t next_random(uint32_t *x) {
  *x ^= *x << 13;
  *x ^= *x >> 17;
  *x ^= *x << 5;
  return *x;
}

/* Random bytes, and right frames with some bytes changed: whatever is accepted lies inside. */
static void parse__random_bytes(void **state) {
  (void)state;
  uint32_t x = 4711, kinds[TB_NET_BAD_SUM + 1] = {0};
  for (int turn = 0; turn < 300000; turn++) {
    uint32_t draw = next_random(&x);
    tb_net_self me = host(1, draw & 1, draw & 2 ? 7 : 0);
    uint8_t f[MOST];
    tb_net_in in;
    uint32_t len = make(f, &me, PAY, true), head = len - PAY;
    if (!(draw & 0x70)) { /* an ICMP message, or what says so */
      f[tb_net_ip_at(&me) + (draw & 1 ? 9 : 6)] = draw & 1 ? 1 : 58;
      f[head - 8] = (uint8_t)(128 + next_random(&x) % 10);
    }
    for (uint32_t n = next_random(&x) % 4; n; n--) f[next_random(&x) % head] = (uint8_t)next_random(&x);
    if (draw & 4) len = next_random(&x) % (len + 1);
    uint32_t have = draw & 8 ? len : next_random(&x) % (len + 1);
    int32_t tag = draw & 0x180 ? TB_NET_UNTAGGED : (int32_t)(next_random(&x) & 0xffff);
    tb_net_kind kind = parse(f, have, len, tag, &me, &in);
    assert_in_range(kind, TB_NET_FRAME, TB_NET_BAD_SUM);
    kinds[kind]++;
    if (kind == TB_NET_FRAME || kind == TB_NET_ICMP || kind == TB_NET_ND)
      assert_true(in.at >= head - 8 && in.at <= len && in.len <= len - in.at);
    if (kind == TB_NET_FRAME) assert_true(in.len && in.at >= head);
  }
  assert_true(kinds[TB_NET_FRAME] > 5000 && kinds[TB_NET_TRUNCATED] > 5000);
  assert_true(kinds[TB_NET_ND] > 100 && kinds[TB_NET_ICMP] > 100);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(head__is_as_the_standards_say),
      cmocka_unit_test(sum__is_that_of_the_standard_and_never_0),
      cmocka_unit_test(parse__reads_what_was_written),
      cmocka_unit_test(parse__no_sum_over_ipv6_is_damage),
      cmocka_unit_test(parse__the_tag_decides),
      cmocka_unit_test(parse__of_others_is_foreign),
      cmocka_unit_test(parse__random_bytes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
