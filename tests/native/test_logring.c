/* test_logring.c - the bounded log, its echo, its rate limit. */
#include "engine/logring.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <unistd.h>
#include <cmocka.h>

static void next__gives_lines_in_order_with_their_level(void **state) {
  (void)state;
  tb_logring *ring;
  char line[TB_LOG_LINE];
  int level = 0;
  assert_int_equal(tb_logring_new(4, &ring), 0);
  assert_int_equal(tb_logring_next(ring, line, sizeof line, &level), 0);
  tb_logring_put(ring, TB_LOG_INFO, "link %s, mtu %d", "udp", 1472);
  tb_logring_put(ring, TB_LOG_ERROR, "two\nlines");
  assert_int_equal(tb_logring_next(ring, line, sizeof line, &level), 1);
  assert_string_equal(line, "link udp, mtu 1472");
  assert_int_equal(level, TB_LOG_INFO);
  assert_int_equal(tb_logring_next(ring, line, sizeof line, &level), 1);
  assert_string_equal(line, "two lines");
  assert_int_equal(level, TB_LOG_ERROR);
  assert_int_equal(tb_logring_next(ring, line, sizeof line, &level), 0);
  tb_logring_free(ring);
}

static void next__cuts_to_the_reader_s_buffer(void **state) {
  (void)state;
  tb_logring *ring;
  char small[5], huge[2 * TB_LOG_LINE], line[2 * TB_LOG_LINE];
  int level;
  memset(huge, 'x', sizeof huge - 1);
  huge[sizeof huge - 1] = 0;
  assert_int_equal(tb_logring_new(4, &ring), 0);
  tb_logring_put(ring, TB_LOG_INFO, "%s", huge);
  tb_logring_put(ring, TB_LOG_INFO, "abcdefgh");
  assert_int_equal(tb_logring_next(ring, line, sizeof line, &level), 1);
  assert_int_equal(strlen(line), TB_LOG_LINE - 1);
  assert_int_equal(tb_logring_next(ring, small, sizeof small, &level), 1);
  assert_string_equal(small, "abcd");
  tb_logring_free(ring);
}

static void put__full_ring_loses_the_oldest_and_says_so_once(void **state) {
  (void)state;
  tb_logring *ring;
  char line[TB_LOG_LINE];
  int level = 0;
  assert_int_equal(tb_logring_new(3, &ring), 0);
  for (int i = 0; i < 8; i++) tb_logring_put(ring, TB_LOG_INFO, "line %d", i);
  assert_int_equal(tb_logring_dropped(ring), 5);
  assert_int_equal(tb_logring_next(ring, line, sizeof line, &level), 1);
  assert_non_null(strstr(line, "5 log lines were lost"));
  assert_int_equal(level, TB_LOG_WARNING);
  for (int i = 5; i < 8; i++) {
    char wanted[32];
    snprintf(wanted, sizeof wanted, "line %d", i);
    assert_int_equal(tb_logring_next(ring, line, sizeof line, &level), 1);
    assert_string_equal(line, wanted);
  }
  assert_int_equal(tb_logring_next(ring, line, sizeof line, &level), 0);
  assert_int_equal(tb_logring_dropped(ring), 5);
  tb_logring_free(ring);
}

static void *put_many(void *ring) {
  for (int i = 0; i < 500; i++) tb_logring_put(ring, TB_LOG_DEBUG, "n %d", i);
  return NULL;
}

static void put__many_threads_lose_nothing_uncounted(void **state) {
  (void)state;
  tb_logring *ring;
  pthread_t thread[4];
  char line[TB_LOG_LINE];
  int level, value;
  uint64_t read = 0;
  assert_int_equal(tb_logring_new(64, &ring), 0);
  for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&thread[i], NULL, put_many, ring), 0);
  for (int i = 0; i < 4; i++) assert_int_equal(pthread_join(thread[i], NULL), 0);
  while (tb_logring_next(ring, line, sizeof line, &level)) read += sscanf(line, "n %d", &value) == 1;
  assert_int_equal(read, 64);
  assert_int_equal(tb_logring_dropped(ring), 4 * 500 - 64);
  tb_logring_free(ring);
}

static void echo__writes_lines_of_its_level_to_stderr(void **state) {
  (void)state;
  tb_logring *ring;
  int ends[2], saved = dup(STDERR_FILENO);
  char text[512] = "";
  assert_int_equal(pipe(ends), 0);
  assert_int_equal(tb_logring_new(8, &ring), 0);
  dup2(ends[1], STDERR_FILENO);
  tb_logring_put(ring, TB_LOG_ERROR, "before the echo");
  tb_logring_echo(ring, TB_LOG_WARNING, "rank 2");
  tb_logring_put(ring, TB_LOG_INFO, "too quiet");
  tb_logring_put(ring, TB_LOG_WARNING, "peer 1 is late");
  tb_logring_echo(ring, TB_LOG_OFF, "rank 2");
  tb_logring_put(ring, TB_LOG_ERROR, "after the echo");
  dup2(saved, STDERR_FILENO);
  close(saved);
  close(ends[1]);
  assert_true(read(ends[0], text, sizeof text - 1) > 0);
  close(ends[0]);
  assert_string_equal(text, "tailbound[rank 2] WARNING: peer 1 is late\n");
  tb_logring_free(ring);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(next__gives_lines_in_order_with_their_level),
      cmocka_unit_test(next__cuts_to_the_reader_s_buffer),
      cmocka_unit_test(put__full_ring_loses_the_oldest_and_says_so_once),
      cmocka_unit_test(put__many_threads_lose_nothing_uncounted),
      cmocka_unit_test(echo__writes_lines_of_its_level_to_stderr),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
