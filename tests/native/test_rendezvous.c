/* test_rendezvous.c - it comes together, whoever comes first. */
#include "rendezvous_fixture.h"

static void open__one_rank_needs_no_socket(void **state) {
  (void)state;
  tb_rendezvous *r;
  char error[300] = "", all[8];
  assert_int_equal(tb_rendezvous_open(NULL, 0, 0, 1, "j", 0, &r, error, sizeof error), 0);
  memset(all, 'x', sizeof all);
  assert_int_equal(tb_rendezvous_exchange(r, "t", "abc", 3, all, sizeof all, 0, error, sizeof error), 0);
  assert_memory_equal(all, "abc\0\0\0\0\0", 8);
  assert_int_equal(tb_rendezvous_exchange(r, "t", "abc", 9, all, 8, 0, error, sizeof error), -EINVAL);
  tb_rendezvous_close(r);
}

static void open__impossible_ranks_are_refused(void **state) {
  (void)state;
  static const int bad[][2] = {{0, 0}, {1, 1}, {-1, 2}, {0, 1025}};
  tb_rendezvous *r;
  char error[300];
  for (unsigned i = 0; i < 4; i++)
    assert_int_equal(tb_rendezvous_open("127.0.0.1", 1, bad[i][0], bad[i][1], "j", 0, &r, error, sizeof error),
                     -EINVAL);
  assert_int_equal(tb_rendezvous_open("", 1, 0, 2, "j", 0, &r, error, sizeof error), -EINVAL);
  assert_non_null(strstr(error, "MASTER_ADDR"));
}

static void open__sixty_four_ranks(void **state) {
  (void)state;
  static member m[MOST];
  fill(m, MOST, 60000);
  for (int i = 0; i < MOST; i++) m[i].stride = 128, m[i].exchanges = 3;
  run_all(m, MOST);
  succeeded(m, MOST);
}

static void open__late_ranks_and_a_late_rank_0(void **state) {
  (void)state;
  for (int late = 0; late < 3; late++) {
    member m[3];
    fill(m, 3, 20000);
    m[late].late_ms = 300;
    run_all(m, 3);
    succeeded(m, 3);
  }
}

static void open__over_ipv6_and_by_name(void **state) {
  (void)state;
  static const char *const addrs[] = {"localhost", "::1", "[::1]"};
  struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  int fd = socket(AF_INET6, SOCK_STREAM, 0);
  bool has_ipv6 = fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0;
  if (fd >= 0) close(fd);
  for (int k = 0; k < (has_ipv6 ? 3 : 1); k++) {
    member m[3];
    fill(m, 3, 20000);
    for (int i = 0; i < 3; i++) m[i].addr = addrs[k];
    run_all(m, 3);
    succeeded(m, 3);
  }
}

/* Rank 0 listens everywhere when it is given a name: it need not resolve it, and may resolve it to loopback. */
static void open__rank_0_need_not_know_its_own_name(void **state) {
  (void)state;
  member m[2];
  fill(m, 2, 20000);
  m[0].addr = "rank-0.invalid";
  run_all(m, 2);
  succeeded(m, 2);
}

/* A translated address is not one of rank 0's own (192.0.2.1 is nobody's). */
static void open__rank_0_behind_a_translated_address(void **state) {
  (void)state;
  member m[2];
  fill(m, 2, 20000);
  m[0].addr = "192.0.2.1";
  run_all(m, 2);
  succeeded(m, 2);
}

static void open__a_rank_that_hung_up_may_come_again(void **state) {
  (void)state;
  member m[3];
  fill(m, 3, 20000);
  start(&m[0]);
  int fd = raw_connect(m[0].port);
  raw_hello(fd, RV_VERSION, 1, 3, "j");
  pause_ms(100);
  close(fd);
  start(&m[1]);
  start(&m[2]);
  for (int i = 0; i < 3; i++) finish(&m[i]);
  succeeded(m, 3);
}

static void ranks__text(void **state) {
  (void)state;
  uint8_t flag[1024] = {0};
  char text[200];
  tb_rv_ranks(flag, 1024, text, sizeof text);
  assert_string_equal(text, "");
  flag[2] = flag[3] = flag[7] = flag[8] = flag[9] = flag[1023] = 1;
  tb_rv_ranks(flag, 1024, text, sizeof text);
  assert_string_equal(text, "2,3,7-9,1023");
  for (int i = 0; i < 1024; i++) flag[i] = i % 2;
  tb_rv_ranks(flag, 1024, text, sizeof text);
  assert_non_null(strstr(text, "1,3,5,"));
  assert_non_null(strstr(text, " and "));
  assert_non_null(strstr(text, " more"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(open__one_rank_needs_no_socket),
      cmocka_unit_test(open__impossible_ranks_are_refused),
      cmocka_unit_test(open__sixty_four_ranks),
      cmocka_unit_test(open__late_ranks_and_a_late_rank_0),
      cmocka_unit_test(open__over_ipv6_and_by_name),
      cmocka_unit_test(open__rank_0_need_not_know_its_own_name),
      cmocka_unit_test(open__rank_0_behind_a_translated_address),
      cmocka_unit_test(open__a_rank_that_hung_up_may_come_again),
      cmocka_unit_test(ranks__text),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
