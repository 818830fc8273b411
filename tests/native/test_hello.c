/* Tests of engine/hello.c: what ranks tell each other at init, and what does not fit together. */
#include "engine/hello.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include "tailbound.h"
#include <cmocka.h>

enum { N = 4 };
static tb_hello all[N];
static uint32_t mtu;

static int check(void) { return tb_hellos_check(all, N, &mtu); }

static void expect(int rc, const char *word) {
  assert_int_equal(check(), rc);
  if (!strstr(tb_last_error(), word)) fail_msg("\"%s\" lacks \"%s\"", tb_last_error(), word);
}

static int set_up(void **state) {
  (void)state;
  memset(all, 0, sizeof all);
  for (uint32_t p = 0; p < N; p++) {
    all[p] = (tb_hello){.order = 1, .mtu = 1472 + 10 * p, .job = 7, .version = "1", .host = "a"};
    all[p].addr = (tb_addr){.len = 9, .bytes = {1, 4, 1, 10, 0, 0, (uint8_t)(p + 1), 20, 0}};
  }
  return 0;
}

static void fits__and_the_least_frame_is_everybodys(void **state) {
  (void)state;
  all[2].mtu = 1400;
  assert_int_equal(check(), 0);
  assert_int_equal(mtu, 1400);
  all[2].mtu = 100;
  expect(-EMSGSIZE, "a frame of 100 bytes, as rank 2 has them");
}

static void error__of_another_is_passed_on(void **state) {
  (void)state;
  all[3].error = -ENODEV;
  strcpy(all[3].why, "no such device\nat all");
  all[1].version[0] = '2'; /* it says more than what does not fit */
  expect(-ENODEV, "rank 3 could not begin: no such device at all");
  memset(all[3].why, 'x', sizeof all[3].why); /* without an end */
  all[3].error = INT32_MIN;
  expect(-EIO, "rank 3 could not begin: xxx");
  all[3].error = 1;
  expect(-EIO, "rank 3");
}

static void mismatch__names_the_rank(void **state) {
  (void)state;
  all[1].version[0] = '2';
  expect(-EPROTO, "rank 1 runs tailbound 2 but rank 0 runs 1");
  set_up(NULL);
  all[3].job = 8;
  expect(-EPROTO, "rank 3 belongs to another job");
  set_up(NULL);
  all[2].groups = 1;
  expect(-EPROTO, "rank 2 was given other groups");
  set_up(NULL);
  all[2].order = 1u << 24;
  expect(-EPROTO, "rank 2 has another byte order");
  set_up(NULL);
  all[2].rx_overhead = UINT32_MAX;
  expect(-EPROTO, "rank 2 gave impossible link limits");
  set_up(NULL);
  all[2].addr.len = TB_ADDR_MAX + 1;
  expect(-EPROTO, "rank 2 gave a malformed address");
}

static void loopback__reaches_no_other_host(void **state) {
  (void)state;
  for (int p = 0; p < N; p++) all[p].loopback = 1;
  assert_int_equal(check(), 0);
  all[3].host[0] = 'b';
  expect(-EADDRNOTAVAIL, "rank 0 would be reached at a loopback address but rank 3 is on another host");
}

static void address__twice_names_both(void **state) {
  (void)state;
  all[1].addr.bytes[6] = 4; /* rank 3's */
  assert_int_equal(check(), 0);
  memcpy(all[1].addr.bytes + 9, (uint8_t[]){1, 2, 0, 0, 0, 0, 9}, 7);
  all[1].addr.len = 16;
  expect(-EINVAL, "rank 1 and rank 3 both have the address 10.0.0.4");
}

#define TEST(f) cmocka_unit_test_setup(f, set_up)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(fits__and_the_least_frame_is_everybodys), TEST(error__of_another_is_passed_on), TEST(mismatch__names_the_rank),
      TEST(loopback__reaches_no_other_host),         TEST(address__twice_names_both),
  };
  return cmocka_run_group_tests_name("hello", tests, NULL, NULL);
}
