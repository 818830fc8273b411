/* Tests of links/peer_addr.c: addresses of two ranks that cannot both be right. */
#include "links/peer_addr.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

static char why[400];

/* One port, 5000 + port. */
static tb_addr address(const uint8_t ip[4], uint8_t port, uint8_t mac) {
  tb_addr a = {.len = 9, .bytes = {1, 4, 1, ip[0], ip[1], ip[2], ip[3], 20, port}};
  if (!mac) return a;
  memcpy(a.bytes + 9, (uint8_t[]){1, 2, 0, 0, 0, 0, mac}, 7);
  a.len = 16;
  return a;
}

#define IP(a, b, c, d) ((const uint8_t[4]){a, b, c, d})

static bool agree(tb_addr a, tb_addr b) {
  bool yes = tb_address_agree(&a, 3, &b, 7, why, sizeof why);
  assert_int_equal(tb_address_agree(&b, 7, &a, 3, why, sizeof why), yes); /* whichever is first */
  return yes;
}

static void expect(const char *word) {
  if (!strstr(why, word)) fail_msg("\"%s\" lacks \"%s\"", why, word);
}

static void address__of_a_device_is_nobody_elses(void **state) {
  (void)state;
  assert_true(agree(address(IP(10, 0, 0, 1), 1, 1), address(IP(10, 0, 0, 2), 1, 2)));
  assert_false(agree(address(IP(10, 0, 0, 1), 1, 1), address(IP(10, 0, 0, 1), 2, 2)));
  expect("rank 7 and rank 3 both have the address 10.0.0.1: give every rank");
  assert_false(agree(address(IP(10, 0, 0, 1), 1, 1), address(IP(10, 0, 0, 1), 1, 1)));
  expect("10.0.0.1 and one MAC");
  assert_false(agree(address(IP(10, 0, 0, 1), 1, 0), address(IP(10, 0, 0, 1), 1, 2)));
  expect("one of them as its kernel's");
}

static void address__of_a_kernel_serves_several_ranks(void **state) {
  (void)state;
  assert_true(agree(address(IP(10, 0, 0, 1), 1, 0), address(IP(10, 0, 0, 1), 2, 0)));
}

static void address__made_up_beside_given_ones(void **state) {
  (void)state;
  assert_true(agree(address(IP(169, 254, 1, 1), 1, 1), address(IP(169, 254, 1, 2), 1, 2)));
  assert_true(agree(address(IP(169, 254, 1, 1), 1, 1), address(IP(169, 254, 1, 2), 1, 0)));
  assert_true(agree(address(IP(169, 254, 1, 1), 1, 0), address(IP(10, 0, 0, 2), 1, 2))); /* a kernel's: it may route */
  assert_false(agree(address(IP(169, 254, 1, 1), 1, 1), address(IP(10, 0, 0, 2), 1, 2)));
  expect("rank 3 was given no address");
  expect("set TAILBOUND_IP there");
}

static void address__of_another_kind_is_not_judged(void **state) {
  (void)state;
  tb_addr six = {.len = 21, .bytes = {1, 6, 1, 0xfe, 0x80}}, odd = {.len = 4, .bytes = {9, 9, 9, 9}}, none = {0};
  tb_addr device = address(IP(10, 0, 0, 1), 1, 1);
  assert_true(agree(six, device) && agree(odd, device) && agree(none, device) && agree(odd, odd));
  tb_addr cut = device;
  cut.bytes[2] = 255; /* as many ports do not fit */
  assert_true(agree(cut, device));
  tb_addr six_too = six;
  memcpy(six.bytes + 21, (uint8_t[]){1, 2, 0, 0, 0, 0, 5}, 7);
  six.len += 7;
  assert_false(agree(six, six_too));
  expect("fe80::");
}

static void address__of_verbs_goes_with_its_like_only(void **state) {
  (void)state;
  tb_addr verbs = {.len = 32, .bytes = {TB_ADDRESS_VERBS, 1}};
  assert_true(agree(verbs, verbs));
  assert_false(agree(address(IP(10, 0, 0, 1), 1, 0), verbs));
  expect("rank 7 came with link verbs and rank 3 with another");
  expect("set TAILBOUND_LINK alike");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(address__of_a_device_is_nobody_elses),
      cmocka_unit_test(address__of_a_kernel_serves_several_ranks),
      cmocka_unit_test(address__made_up_beside_given_ones),
      cmocka_unit_test(address__of_verbs_goes_with_its_like_only),
      cmocka_unit_test(address__of_another_kind_is_not_judged),
  };
  return cmocka_run_group_tests_name("peer address", tests, NULL, NULL);
}
