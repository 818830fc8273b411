/* Tests of plugins/dpdk/memif.c: who serves a socket, between processes. */
#include "plugins/dpdk/dpdk.h"
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static char error[DPDK_ERROR], dir[32], path[64], lock_path[80];
static dpdk_device server;

static void expect(const char *word) {
  if (!strstr(error, word)) fail_msg("\"%s\" lacks \"%s\"", error, word);
}

static int claim(void) { return dpdk_memif_claim(&server, error, sizeof error); }

static void parse(const char *format) {
  char spec[128];
  snprintf(spec, sizeof spec, format, path);
  assert_int_equal(dpdk_device_parse(spec, 0, &server, error, sizeof error), 0);
}

static int listener(void) {
  struct sockaddr_un to = {.sun_family = AF_UNIX};
  snprintf(to.sun_path, sizeof to.sun_path, "%s", path);
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&to, sizeof to), 0);
  assert_int_equal(listen(fd, 1), 0);
  return fd;
}

static bool exists(const char *file) { return !access(file, F_OK); }

/* A process that serves until it is killed; own_net: seen from another network namespace. */
static pid_t serving(bool own_net) {
  int ready[2];
  char byte;
  assert_int_equal(pipe(ready), 0);
  pid_t pid = fork();
  if (!pid) {
    if (own_net && unshare(CLONE_NEWNET)) _exit(2);
    if (claim()) _exit(1);
    (void)listener();
    if (write(ready[1], "", 1) != 1) _exit(1);
    for (;;) pause();
  }
  close(ready[1]);
  assert_int_equal(read(ready[0], &byte, 1), 1);
  close(ready[0]);
  return pid;
}

static void bury(pid_t pid) {
  assert_int_equal(kill(pid, SIGKILL), 0);
  assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void a_living_server_keeps_its_socket(bool own_net) {
  char number[32];
  pid_t pid = serving(own_net);
  snprintf(number, sizeof number, "number %d", (int)pid);
  assert_int_equal(claim(), -EADDRINUSE);
  expect(number);
  expect("give this one the role client, or another path");
  assert_true(exists(path));
  bury(pid);
  assert_true(exists(path));
  assert_int_equal(claim(), 0); /* and the dead one's is removed */
  assert_false(exists(path));
  assert_true(exists(lock_path));
}

static void claim__of_a_living_server(void **state) {
  (void)state;
  a_living_server_keeps_its_socket(false);
}

static void claim__of_a_living_server_in_another_network_namespace(void **state) {
  (void)state;
  a_living_server_keeps_its_socket(true);
}

static void claim__again_in_the_same_process_leaves_the_socket(void **state) {
  (void)state;
  assert_int_equal(claim(), 0);
  int fd = listener();
  assert_int_equal(claim(), 0);
  assert_true(exists(path));
  close(fd);
}

static void claim__is_not_a_forked_childs(void **state) {
  (void)state;
  int status;
  assert_int_equal(claim(), 0);
  pid_t pid = fork();
  if (!pid) {
    dpdk_memif_release(&server); /* of what it inherited */
    _exit(claim() == -EADDRINUSE ? 0 : 1);
  }
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_int_equal(status, 0);
}

static void release__lets_others_serve(void **state) {
  (void)state;
  assert_int_equal(claim(), 0);
  dpdk_memif_release(&server);
  bury(serving(false));
}

static void claim__servers_without_a_lock_are_left_alone(void **state) {
  (void)state;
  int fd = listener();
  assert_int_equal(claim(), -EADDRINUSE);
  expect("ss -xlp");
  assert_true(exists(path));
  close(fd);
  assert_int_equal(claim(), 0);
}

static void turn__tells_whether_a_server_takes_clients(void **state) {
  (void)state;
  dpdk_device client;
  char spec[128];
  snprintf(spec, sizeof spec, "memif:%s,client", path);
  assert_int_equal(dpdk_device_parse(spec, 1, &client, error, sizeof error), 0);
  assert_true(dpdk_memif_turn(&client) == DPDK_MEMIF_UNTOLD); /* no lock: only trying tells */
  assert_int_equal(claim(), 0);
  assert_int_equal(dpdk_memif_turn(&client), 0);
  dpdk_memif_takes(&server, true);
  uint64_t first = dpdk_memif_turn(&client);
  assert_true(first & 1);
  dpdk_memif_takes(&server, true);
  assert_int_equal(dpdk_memif_turn(&client), first);
  dpdk_memif_takes(&server, false);
  assert_int_equal(dpdk_memif_turn(&client), 0);
  dpdk_memif_release(&server);
  pid_t pid = fork(); /* another process goes on counting */
  if (!pid) {
    if (claim()) _exit(1);
    dpdk_memif_takes(&server, true);
    for (;;) pause();
  }
  uint64_t turn = 0;
  for (int i = 0; i < 500 && (turn = dpdk_memif_turn(&client)) <= first; i++) usleep(10000);
  bury(pid);
  assert_true(turn > first && turn & 1);
  assert_int_equal(dpdk_memif_turn(&client), 0); /* dead: what the file says does not count */
}

static void claim__refusals_name_the_file(void **state) {
  (void)state;
  assert_int_equal(mkdir(lock_path, 0700), 0);
  assert_int_equal(claim(), -EISDIR);
  expect(lock_path);
  assert_int_equal(rmdir(lock_path), 0);
  assert_int_equal(symlink("/etc/passwd", lock_path), 0);
  assert_int_equal(claim(), -ELOOP);
  assert_int_equal(unlink(lock_path), 0);
  snprintf(path, sizeof path, "%s/none/m.sock", dir);
  parse("memif:%s,server");
  assert_int_equal(claim(), -ENOENT);
  expect("there is no folder for");
}

static void claim__asks_nothing_of_clients_and_abstract_sockets(void **state) {
  (void)state;
  parse("memif:%s,client");
  assert_int_equal(claim(), 0);
  parse("net_memif0,role=server,socket=%s"); /* abstract, if nothing else is said: the kernel removes it */
  assert_int_equal(claim(), 0);
  assert_false(exists(lock_path));
  parse("net_memif0,role=server,socket=%s,socket-abstract=no");
  assert_int_equal(claim(), 0);
  assert_true(exists(lock_path));
}

static int set_up(void **state) {
  (void)state;
  snprintf(dir, sizeof dir, "/tmp/tb_memif_XXXXXX");
  if (!mkdtemp(dir)) return -1;
  snprintf(path, sizeof path, "%s/m.sock", dir);
  snprintf(lock_path, sizeof lock_path, "%s.lock", path);
  parse("memif:%s,server");
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  char text[64];
  dpdk_memif_release(&server);
  snprintf(text, sizeof text, "rm -r %s", dir);
  return system(text);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {
      TEST(claim__of_a_living_server),
      TEST(claim__of_a_living_server_in_another_network_namespace),
      TEST(claim__again_in_the_same_process_leaves_the_socket),
      TEST(claim__is_not_a_forked_childs),
      TEST(release__lets_others_serve),
      TEST(claim__servers_without_a_lock_are_left_alone),
      TEST(turn__tells_whether_a_server_takes_clients),
      TEST(claim__refusals_name_the_file),
      TEST(claim__asks_nothing_of_clients_and_abstract_sockets),
  };
  return cmocka_run_group_tests_name("memif", tests, NULL, NULL);
}
