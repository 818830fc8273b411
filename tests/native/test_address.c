/* test_address.c - ether/address.c: both families' addresses, read, compared, and told. */
#include "ether/address.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static void taken(const char *text, const char *ip_text, uint32_t bits) {
  tb_ip ip;
  uint32_t got = 0;
  char back[TB_IP_TEXT];
  if (tb_ip_parse(text, &ip, &got)) fail_msg("\"%s\" was refused", text);
  assert_string_equal(tb_ip_text(&ip, back), ip_text);
  assert_int_equal(got, bits);
}

static void parse__of_both_families(void **state) {
  (void)state;
  taken("10.0.0.5/8", "10.0.0.5", 96 + 8);
  taken("192.168.1.2", "192.168.1.2", 96 + 24);
  taken("10.1.2.3/32", "10.1.2.3", 128);
  taken("10.1.2.2/31", "10.1.2.2", 127);
  taken("fd00::5", "fd00::5", 64);
  taken("fe80::1/10", "fe80::1", 10);
  taken("2001:DB8:0:0:0:0:0:1/48", "2001:db8::1", 48);
  taken("fd00::/127", "fd00::", 127);
  taken("fd00::/128", "fd00::", 128);
}

static void parse__nothing_else(void **state) {
  (void)state;
  static const char *const bad[] = {
    "", "/", "/24", "10.0.0.5/", "10.0.0.5/0", "10.0.0.5/33", "10.0.0.5/8x", "10.0.0.5/+8", "10.0.0", "10.0.0.256",
    "10.0.0.5 ", "0.0.0.0/8", "127.0.0.1/8", "224.0.0.1", "255.255.255.255", "10.0.0.0/24", "10.0.0.255/24",
    "10.255.255.255/8", "10.0.0.5/99999999999", "10.0.0.5/-1", "1000.1000.1000.1000/24",
    "::", "::1", "::1/128", "::5/64", "ff02::1", "fd00::", "fd00::/64", "fd00::5/0", "fd00::5/129", "fd00::5/",
    "fe80::1%eth0", "[fd00::5]", "::ffff:10.0.0.5", "::ffff:10.0.0.5/120", "fd00:::5", "fd00::5::6",
    "1111:2222:3333:4444:5555:6666:7777:8888:9999", "fd00::5/64/64",
    "0000000000000000000000000000000000000000000000000000000000000000000000000000000000000fd00::5"};
  tb_ip ip;
  uint32_t bits;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    if (tb_ip_parse(bad[i], &ip, &bits) != -EINVAL) fail_msg("\"%s\" was taken", bad[i]);
}

static tb_ip of(const char *text) {
  tb_ip ip;
  uint32_t bits;
  if (tb_ip_parse(text, &ip, &bits)) fail_msg("\"%s\" was refused", text);
  return ip;
}

static void within__to_the_bit(void **state) {
  (void)state;
  tb_ip a = of("fd00::8:1"), b = of("fd00::f:1"), c = of("fd00::18:1"), four = of("10.0.0.5"), next = of("10.0.0.6");
  for (uint32_t bits = 0; bits <= 128; bits++) {
    assert_int_equal(tb_ip_within(&a, &b, bits), bits <= 109); /* 8 and f differ in the 110th bit */
    assert_int_equal(tb_ip_within(&a, &c, bits), bits <= 107);
    assert_int_equal(tb_ip_within(&four, &next, bits), bits <= 126);
    assert_true(tb_ip_within(&a, &a, bits));
  }
  assert_false(tb_ip_within(&four, &a, 1));
}

static void link_local__of_ipv6_is_fe80_10(void **state) {
  (void)state;
  static const struct { const char *text; bool is; } list[] = {
    {"fe80::1", true}, {"febf::1", true}, {"fec0::1", false}, {"fd00::1", false}, {"169.254.1.1", false}};
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    tb_ip ip = of(list[i].text);
    assert_int_equal(tb_ip6_link_local(&ip), list[i].is);
  }
}

static void group__of_an_address_and_its_mac(void **state) {
  (void)state;
  tb_ip ip = of("2001:db8::a1b2:c3d4");
  tb_ip group = tb_ip6_solicited(&ip);
  tb_mac mac = tb_mac_of_group(&group), all = tb_mac_of_group(&tb_ip6_all_nodes);
  char text[TB_IP_TEXT];
  assert_string_equal(tb_ip_text(&group, text), "ff02::1:ffb2:c3d4");
  assert_memory_equal(mac.b, ((uint8_t[]){0x33, 0x33, 0xff, 0xb2, 0xc3, 0xd4}), 6);
  assert_memory_equal(all.b, ((uint8_t[]){0x33, 0x33, 0, 0, 0, 1}), 6);
  assert_false(tb_mac_of_one(&mac) || tb_ip_of_host(&group) || tb_ip_is4(&group));
}

static uint32_t next_random(uint32_t *x) {
  *x ^= *x << 13;
  *x ^= *x >> 17;
  *x ^= *x << 5;
  return *x;
}

static uint32_t number(const tb_ip *ip) {
  const uint8_t *p = ip->b + TB_IP4_AT;
  return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void link_local__is_one_of_rfc_3927(void **state) {
  (void)state;
  uint32_t x = 1, first = 0, same = 0;
  for (int i = 0; i < 10000; i++) {
    uint32_t r = next_random(&x);
    tb_mac mac = {{2, 0, (uint8_t)(r >> 24), (uint8_t)(r >> 16), (uint8_t)(r >> 8), (uint8_t)r}};
    tb_ip ip = tb_ip_link_local(&mac), again = tb_ip_link_local(&mac);
    assert_true(tb_ip_is4(&ip) && tb_ip_equal(&ip, &again));
    assert_in_range(number(&ip), 0xa9fe0100, 0xa9fefeff);
    if (!i) first = number(&ip);
    else same += number(&ip) == first;
  }
  assert_true(same < 10); /* they spread: 10000 draws of 65024 */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(parse__of_both_families),
      cmocka_unit_test(parse__nothing_else),
      cmocka_unit_test(within__to_the_bit),
      cmocka_unit_test(link_local__of_ipv6_is_fe80_10),
      cmocka_unit_test(group__of_an_address_and_its_mac),
      cmocka_unit_test(link_local__is_one_of_rfc_3927),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
