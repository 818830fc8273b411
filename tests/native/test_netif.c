/* Tests of links/netif.c against the interfaces this host has; only loopback with 127.0.0.1 is taken for granted. */
#include "links/netif.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static char error[1024];

static const char *ip_text(const tb_netif *n) {
  static char text[INET6_ADDRSTRLEN];
  const void *ip = n->addr.ss_family == AF_INET ? (const void *)&((const struct sockaddr_in *)&n->addr)->sin_addr
                                                : (const void *)&((const struct sockaddr_in6 *)&n->addr)->sin6_addr;
  return inet_ntop(n->addr.ss_family, ip, text, sizeof text);
}

static int choose(const char *spec, const char *route_to, tb_netif *out) {
  memset(out, 0, sizeof *out);
  return tb_netif_choose(spec, route_to, out, error, sizeof error);
}

static void expect(const char *spec, const char *route_to, const char *name, const char *ip) {
  tb_netif n;
  int rc = choose(spec, route_to, &n);
  if (rc) fail_msg("\"%s\": %d %s", spec ? spec : "(null)", rc, error);
  assert_string_equal(n.name, name);
  assert_string_equal(ip_text(&n), ip);
}

static void expect_error(const char *spec, int err, const char *word) {
  tb_netif n;
  assert_int_equal(choose(spec, NULL, &n), err);
  if (!strstr(error, word)) fail_msg("\"%s\": \"%s\" lacks \"%s\"", spec, error, word);
  if (!strstr(error, "lo 127.0.0.1")) fail_msg("\"%s\": \"%s\" does not list the interfaces", spec, error);
}

static void choose__takes_names_and_prefixes(void **state) {
  (void)state;
  expect("lo", NULL, "lo", "127.0.0.1");
  expect("=lo", NULL, "lo", "127.0.0.1");
  expect("l", NULL, "lo", "127.0.0.1");
  expect("nosuch,lo", NULL, "lo", "127.0.0.1");
  expect("=nosuch,lo", NULL, "lo", "127.0.0.1");
}

static void choose__takes_addresses_and_networks(void **state) {
  (void)state;
  expect("127.0.0.1", NULL, "lo", "127.0.0.1");
  expect("127.0.0.0/8", NULL, "lo", "127.0.0.1");
  expect("127.0.0.1/32", NULL, "lo", "127.0.0.1");
  expect("126.0.0.0/7", NULL, "lo", "127.0.0.1");
}

static void choose__every_listed_address_can_be_named(void **state) {
  (void)state;
  tb_netif all[64], got;
  int n = tb_netif_list(all, 64);
  assert_true(n >= 1);
  for (int i = 0; i < n && i < 64; i++) {
    char spec[INET6_ADDRSTRLEN + IF_NAMESIZE + 4];
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&all[i].addr;
    int scoped = all[i].addr.ss_family == AF_INET6 && v6->sin6_scope_id;
    snprintf(spec, sizeof spec, "%s%s%s", ip_text(&all[i]), scoped ? "%" : "", scoped ? all[i].name : "");
    assert_int_equal(choose(spec, NULL, &got), 0);
    assert_string_equal(got.name, all[i].name);
    assert_int_equal(got.mtu, all[i].mtu);
    if (scoped) assert_int_equal(((struct sockaddr_in6 *)&got.addr)->sin6_scope_id, v6->sin6_scope_id);
  }
}

static void choose__brackets_around_an_ipv6_address(void **state) {
  (void)state;
  tb_netif all[64];
  int n = tb_netif_list(all, 64), seen = 0;
  for (int i = 0; i < n && i < 64; i++) seen |= !strcmp(ip_text(&all[i]), "::1");
  if (seen) {
    expect("::1", NULL, "lo", "::1");
    expect("[::1]", NULL, "lo", "::1");
    expect("::/120", NULL, "lo", "::1");
    expect("lo", "::1", "lo", "::1"); /* the family of the route decides between an interface's addresses */
    expect("lo", "[::1]:29500", "lo", "::1");
    expect(NULL, "[::1]:29500", "lo", "::1");
  } else {
    expect_error("[::1]", -ENODEV, "[::1]");
  }
}

static void choose__exclusion_leaves_the_others(void **state) {
  (void)state;
  tb_netif all[64], got;
  int n = tb_netif_list(all, 64), others = 0;
  for (int i = 0; i < n && i < 64; i++) others |= !all[i].loopback;
  const char *specs[] = {"^lo,docker", "^=lo", "^l"};
  for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
    int rc = choose(specs[i], NULL, &got);
    assert_int_equal(rc, others ? 0 : -ENODEV);
    if (!rc) assert_false(got.loopback);
  }
  assert_int_equal(choose("^=l", NULL, &got), 0); /* exact: does not exclude lo, which still comes last */
  assert_int_equal(got.loopback, !others);
}

static void choose__follows_the_route_to_the_rendezvous(void **state) {
  (void)state;
  expect(NULL, "127.0.0.1", "lo", "127.0.0.1");
  expect("", "127.0.0.1:29500", "lo", "127.0.0.1");
  tb_netif n;
  assert_int_equal(choose(NULL, "localhost:29500", &n), 0);
  assert_true(n.loopback); /* which of its addresses is the resolver's choice */
}

static void choose__unknown_interface_lists_the_known(void **state) {
  (void)state;
  expect_error("nosuch", -ENODEV, "\"nosuch\"");
  expect_error("=l", -ENODEV, "=eth0");
  expect_error("203.0.113.77", -ENODEV, "203.0.113.77");
  expect_error("203.0.113.0/24", -ENODEV, "203.0.113.0/24");
  expect_error("fe80::1234%nosuch", -EINVAL, "fe80::1234%nosuch");
}

static void choose__malformed_names_the_grammar(void **state) {
  (void)state;
  const char *bad[] = {"^", "=", "^=", ",", "lo,", ",lo", "lo, eth", "a-name-far-too-long", "10.0.0.0/33", "10.0.0.0/",
                       "10.0.0.0/x", "10.0.0.0/-1", "::/129", "eth/8"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) expect_error(bad[i], -EINVAL, "^docker");
  char huge[600];
  memset(huge, 'x', sizeof huge);
  huge[599] = 0;
  expect_error(huge, -EINVAL, "599");
}

static void choose__works_without_room_for_an_error(void **state) {
  (void)state;
  tb_netif n;
  char tiny[8];
  assert_int_equal(tb_netif_choose("nosuch", NULL, &n, NULL, 0), -ENODEV);
  assert_int_equal(tb_netif_choose("nosuch", NULL, &n, tiny, sizeof tiny), -ENODEV);
  assert_true(strlen(tiny) < sizeof tiny);
}

static void list__counts_beyond_the_room(void **state) {
  (void)state;
  tb_netif one[1];
  int n = tb_netif_list(NULL, 0);
  assert_true(n >= 1);
  assert_int_equal(tb_netif_list(one, 1), n);
  assert_true(one[0].mtu >= 68);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(choose__takes_names_and_prefixes),
      cmocka_unit_test(choose__takes_addresses_and_networks),
      cmocka_unit_test(choose__every_listed_address_can_be_named),
      cmocka_unit_test(choose__brackets_around_an_ipv6_address),
      cmocka_unit_test(choose__exclusion_leaves_the_others),
      cmocka_unit_test(choose__follows_the_route_to_the_rendezvous),
      cmocka_unit_test(choose__unknown_interface_lists_the_known),
      cmocka_unit_test(choose__malformed_names_the_grammar),
      cmocka_unit_test(choose__works_without_room_for_an_error),
      cmocka_unit_test(list__counts_beyond_the_room),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
