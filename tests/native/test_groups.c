/* test_groups.c - the option `groups`: every form of it, and what is wrong with the others. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "engine/groups.h"

enum { MOST = 16 };
static char why[200];
static uint16_t group_of[MOST];

static int read_them(const char *text, uint32_t n, const tb_seat *seats) {
  memset(group_of, 0xff, sizeof group_of);
  return tb_groups_read(text, n, seats, group_of, why, sizeof why);
}

static void expect(const char *text, uint32_t n, const tb_seat *seats, const char *groups) {
  if (read_them(text, n, seats) != 1) fail_msg("groups=%s of %u ranks: %s", text, n, why);
  for (uint32_t r = 0; r < n; r++)
    for (uint32_t p = 0; p < n; p++) assert_int_equal(group_of[r] == group_of[p], groups[r] == groups[p]);
}

static void expect_none(int rc, const char *text, uint32_t n, const tb_seat *seats, const char *says) {
  assert_int_equal(read_them(text, n, seats), rc);
  if (!strstr(why, says)) fail_msg("groups=%s: '%s', not '%s'", text, why, says);
}

static void number__of_ranks_in_each(void **state) {
  (void)state;
  expect("2", 6, NULL, "aabbcc");
  expect("3", 6, NULL, "aaabbb");
  expect_none(-EINVAL, "4", 6, NULL, "not of one size");
  expect_none(-EINVAL, "0", 6, NULL, "groups=0");
  expect_none(0, "6", 6, NULL, "one group");
  expect_none(0, "1", 6, NULL, "each a group");
  expect_none(0, "off", 6, NULL, "");
  assert_int_equal(*why, 0); /* it was asked for: nothing to tell */
  expect_none(0, "2", 1, NULL, "");
}

static void list__of_ranks(void **state) {
  (void)state;
  expect("0-2/3-5", 6, NULL, "aaabbb");
  expect("0+3/1+4/5+2", 6, NULL, "abcabc");
  expect("0+2-3/1+4-5", 6, NULL, "abaabb");
  static const char *const bad[] = {"0-2/3-6", "0-2/3-5/", "0-2//3-5", "-2/3-5", "0,1/2,3", "0-2/5-3", "a/b",
                                    "0-2/3-5x", "4294967296/1"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    expect_none(-EINVAL, bad[i], 6, NULL, "ranks below 6 are needed");
  expect_none(-EINVAL, "0-2/2-5", 6, NULL, "rank 2 is in two");
  expect_none(-EINVAL, "0-2/3-4", 6, NULL, "rank 5 is in none");
  expect_none(-EINVAL, "0-3/4-5", 6, NULL, "not of one size");
  expect_none(-EINVAL, "0/0/0/0/0/0/0/0", 6, NULL, "rank 0 is in two");
}

static void seat(tb_seat *s, const char *host, uint32_t local) {
  snprintf(s->host, sizeof s->host, "%s", host);
  s->local_rank = local;
}

static void host__and_auto(void **state) {
  (void)state;
  tb_seat s[6];
  for (uint32_t r = 0; r < 6; r++) seat(&s[r], r % 2 ? "b" : "a", 0);
  expect("host", 6, s, "ababab");
  expect("auto", 6, s, "ababab");
  seat(&s[1], "a", 0);
  expect_none(-EINVAL, "host", 6, s, "not of one size");
  expect_none(0, "auto", 6, s, "none are made");
  for (uint32_t r = 0; r < 6; r++) seat(&s[r], "a", 0);
  expect_none(0, "auto", 6, s, "one group");
  expect_none(-EINVAL, "host", 6, NULL, "no hosts");
  expect_none(0, "auto", 6, NULL, "no hosts");
}

static void local_rank__of_hosts_in_a_row(void **state) {
  (void)state;
  tb_seat s[6];
  for (uint32_t r = 0; r < 6; r++) seat(&s[r], "a", r % 3);
  expect("local_rank", 6, s, "aaabbb");
  for (uint32_t r = 0; r < 6; r++) seat(&s[r], "a", r / 2); /* dealt out in turns */
  expect_none(-EINVAL, "local_rank", 6, s, "in a row");
  seat(&s[0], "a", 1);
  expect_none(-EINVAL, "local_rank", 6, s, "rank 0 has local rank 1");
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(number__of_ranks_in_each),
    cmocka_unit_test(list__of_ranks),
    cmocka_unit_test(host__and_auto),
    cmocka_unit_test(local_rank__of_hosts_in_a_row),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
