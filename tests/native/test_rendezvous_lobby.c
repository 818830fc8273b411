/* test_rendezvous_lobby.c - strangers, and ports that are taken. */
#include "rendezvous_fixture.h"

static void open__garbage_cannot_stop_it(void **state) {
  (void)state;
  static const char *const lines[] = {"GET / HTTP/1.1\r\n\r\n", "TBRx", "\n", "SSH-2.0-x\r\n"};
  member m[3];
  int fds[220], n = 0;
  uint64_t random = 99;
  uint8_t bytes[300];
  print_message("seed %llu\n", (unsigned long long)random);
  fill(m, 3, 60000);
  start(&m[0]);
  for (int i = 0; i < 150; i++) fds[n++] = raw_connect(m[0].port); /* say nothing, more than there are seats */
  for (int i = 0; i < 40; i++) {
    for (unsigned k = 0; k < sizeof bytes; k++) {
      random = random * 6364136223846793005ull + 1442695040888963407ull;
      bytes[k] = (uint8_t)(random >> 56);
    }
    fds[n] = raw_connect(m[0].port);
    send(fds[n++], bytes, 1 + (size_t)(random >> 40) % sizeof bytes, MSG_NOSIGNAL);
  }
  for (int i = 0; i < 4; i++) {
    fds[n] = raw_connect(m[0].port);
    send(fds[n++], lines[i], strlen(lines[i]), MSG_NOSIGNAL);
  }
  fds[n] = raw_connect(m[0].port); /* a head that promises 4 GB */
  tb_rv_encode(&(rv_head){.version = RV_VERSION, .type = RV_HELLO, .rank = 1, .size = 3, .len = UINT32_MAX}, bytes);
  send(fds[n++], bytes, RV_HEAD, MSG_NOSIGNAL);
  fds[n] = raw_connect(m[0].port); /* half a head, then silence */
  send(fds[n++], bytes, RV_HEAD / 2, MSG_NOSIGNAL);
  fds[n] = raw_connect(m[0].port); /* an answer before the question */
  tb_rv_encode(&(rv_head){.version = RV_VERSION, .type = RV_BLOB, .rank = 1, .size = 3}, bytes);
  send(fds[n++], bytes, RV_HEAD, MSG_NOSIGNAL);
  close(fds[n] = raw_connect(m[0].port)); /* comes and goes */
  start(&m[1]);
  start(&m[2]);
  for (int i = 0; i < 3; i++) finish(&m[i]);
  for (int i = 0; i < n; i++) close(fds[i]);
  succeeded(m, 3);
  assert_in_range(m[0].strays, 40 + 4 + 2, 300);
  assert_in_range(m[0].took_ms, 0, 20000);
}

static void open__port_in_use_names_port_and_owner(void **state) {
  (void)state;
  int ends[2];
  char wanted[64];
  member m[2];
  fill(m, 2, 400);
  assert_int_equal(pipe(ends), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) { /* another program on the port */
    int listeners[RV_LISTENERS];
    char error[300];
    int err = tb_rv_listen("127.0.0.1", m[0].port, 0, listeners, error, sizeof error);
    if (write(ends[1], err ? "n" : "y", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char ready = 0;
  assert_int_equal(read(ends[0], &ready, 1), 1);
  assert_int_equal(ready, 'y');
  run_all(m, 1);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  close(ends[0]);
  close(ends[1]);
  assert_int_equal(m[0].open_err, -EADDRINUSE);
  snprintf(wanted, sizeof wanted, "port %u is in use by process %d (test_rendezvous", m[0].port, (int)child);
  says(&m[0], wanted);
  says(&m[0], "TAILBOUND_MASTER_PORT");
  assert_in_range(m[0].took_ms, 0, 400 + SLACK_MS);
}

static void open__port_in_use_by_this_process(void **state) {
  (void)state;
  int listeners[RV_LISTENERS];
  char error[300];
  member m[2];
  fill(m, 2, 200);
  assert_int_equal(tb_rv_listen("127.0.0.1", m[0].port, 0, listeners, error, sizeof error), 0);
  run_all(m, 1);
  close(listeners[0]);
  assert_int_equal(m[0].open_err, -EADDRINUSE);
  says(&m[0], "this very process");
}

static void open__a_port_let_go_in_time_is_taken(void **state) {
  (void)state;
  int listeners[RV_LISTENERS];
  char error[300];
  member m[2];
  fill(m, 2, 20000);
  assert_int_equal(tb_rv_listen("127.0.0.1", m[0].port, 0, listeners, error, sizeof error), 0);
  start(&m[0]);
  pause_ms(200);
  close(listeners[0]);
  start(&m[1]);
  for (int i = 0; i < 2; i++) finish(&m[i]);
  succeeded(m, 2);
}

static void open__another_program_answers(void **state) {
  (void)state;
  int listeners[RV_LISTENERS];
  char error[300], who[RV_WHO];
  member m[2];
  fill(m, 2, 20000);
  assert_int_equal(tb_rv_listen("127.0.0.1", m[1].port, 0, listeners, error, sizeof error), 0);
  start(&m[1]);
  struct pollfd p = {.fd = listeners[0], .events = POLLIN};
  assert_int_equal(poll(&p, 1, 10000), 1);
  int fd = tb_rv_accept(listeners[0], who);
  assert_true(fd >= 0);
  send(fd, "SSH-2.0-x\r\n", 11, MSG_NOSIGNAL);
  finish(&m[1]);
  close(fd);
  close(listeners[0]);
  assert_int_equal(m[1].open_err, -EPROTO);
  says(&m[1], "not rank 0 of a Tailbound job (it said 'SSH-2.0-x");
}

static void open__another_program_is_silent(void **state) {
  (void)state;
  int listeners[RV_LISTENERS];
  char error[300];
  member m[2];
  fill(m, 2, 400);
  assert_int_equal(tb_rv_listen("127.0.0.1", m[1].port, 0, listeners, error, sizeof error), 0);
  run_all(m + 1, 1);
  close(listeners[0]);
  assert_int_equal(m[1].open_err, -ETIMEDOUT);
  assert_in_range(m[1].took_ms, 400, 400 + SLACK_MS);
  says(&m[1], "does not answer as rank 0 would");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(open__port_in_use_names_port_and_owner), /* forks: before any thread */
      cmocka_unit_test(open__garbage_cannot_stop_it),
      cmocka_unit_test(open__port_in_use_by_this_process),
      cmocka_unit_test(open__a_port_let_go_in_time_is_taken),
      cmocka_unit_test(open__another_program_answers),
      cmocka_unit_test(open__another_program_is_silent),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
