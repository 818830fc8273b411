/* Tests of plugins/dpdk/eal.c and rehearsal.c: a guest in this process. They run in this order: EAL starts once. */
#include "plugins/dpdk/dpdk.h"
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <rte_lcore.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static char error[DPDK_ERROR];
static dpdk_eal_args args;

static void prepare(const char *spec, const char *eal_args) {
  dpdk_device d;
  tb_link_cfg cfg = {.eal_args = eal_args, .hugepages = TB_HUGE_OFF};
  assert_int_equal(dpdk_device_parse(spec, 0, &d, error, sizeof error), 0);
  int rc = dpdk_preflight(&d, &cfg, &args, error, sizeof error);
  if (rc) fail_msg("%s: %d %s", spec, rc, error);
}

static void expect(const char *word) {
  if (!strstr(error, word)) fail_msg("\"%s\" lacks \"%s\"", error, word);
}

static void rehearse__arguments_that_eal_refuses(void **state) {
  (void)state;
  prepare("ring", "--nosuchoption");
  assert_int_equal(dpdk_eal_start(&args, error, sizeof error), -EIO);
  expect("tried in another process");
  prepare("ring", "--lcores 0 -l 1");
  assert_int_equal(dpdk_eal_start(&args, error, sizeof error), -EIO);
  assert_false(dpdk_eal_running());
}

static void rehearse__a_device_that_cannot_be_had(void **state) {
  (void)state;
  prepare("net_nosuchdriver0", NULL);
  assert_int_equal(dpdk_eal_start(&args, error, sizeof error), -EIO);
  expect("net_nosuchdriver0");
  assert_false(dpdk_eal_running());
}

static void rehearse__exit_with_success_is_no_success(void **state) {
  (void)state;
  prepare("ring", NULL); /* past preflight, which knows this one */
  snprintf(args.arg[args.count++], sizeof args.arg[0], "--help");
  assert_int_equal(dpdk_eal_start(&args, error, sizeof error), -EIO);
  assert_false(dpdk_eal_running());
}

static void rehearse__death_by_a_signal(void **state) {
  (void)state;
  struct rlimit before, tight;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  tight = (struct rlimit){1 << 20, before.rlim_max};
  prepare("ring", NULL);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0); /* its memory is a file larger than that: SIGXFSZ */
  int rc = dpdk_eal_start(&args, error, sizeof error);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
  assert_int_equal(rc, -EIO);
  expect("by signal 25");
  assert_false(dpdk_eal_running());
}

static void rehearse__a_hang_is_ended(void **state) {
  (void)state;
  char dir[] = "/tmp/tb_eal_XXXXXX", fifo[64];
  assert_non_null(mkdtemp(dir));
  snprintf(fifo, sizeof fifo, "%s/fifo", dir);
  assert_int_equal(mkfifo(fifo, 0600), 0); /* whoever opens it to read waits for a writer */
  prepare("ring", NULL);
  snprintf(args.probe, sizeof args.probe, "net_pcap9,rx_pcap=%s,tx_pcap=%s/out", fifo, dir);
  int usual = dpdk_rehearse_ms;
  uint64_t began = dpdk_now();
  dpdk_rehearse_ms = 4000;
  int rc = dpdk_eal_start(&args, error, sizeof error);
  uint64_t took = dpdk_now() - began;
  dpdk_rehearse_ms = usual;
  unlink(fifo);
  assert_int_equal(rmdir(dir), 0);
  assert_int_equal(rc, -ETIMEDOUT);
  assert_true(took >= 4000000000u && took < 30000000000u);
  assert_false(dpdk_eal_running());
}

typedef struct {
  cpu_set_t cpus;
  sigset_t mask;
  struct sigaction act[65];
  char locale[256];
} guest;

static void note(guest *g) {
  memset(g, 0, sizeof *g);
  assert_int_equal(sched_getaffinity(0, sizeof g->cpus, &g->cpus), 0);
  pthread_sigmask(SIG_SETMASK, NULL, &g->mask);
  for (int s = 1; s <= 64; s++) (void)sigaction(s, NULL, &g->act[s]);
  snprintf(g->locale, sizeof g->locale, "%s", setlocale(LC_ALL, NULL));
}

static void on_signal(int s) { (void)s; }

static void start__leaves_the_process_as_it_was(void **state) {
  (void)state;
  static guest before, after;
  cpu_set_t one;
  struct sigaction mine = {.sa_handler = on_signal};
  assert_int_equal(sigaction(SIGUSR1, &mine, NULL), 0);
  assert_int_equal(sigaction(SIGBUS, &mine, NULL), 0);
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
  prepare("ring", NULL);
  note(&before);
  FILE *heard = tmpfile();
  fflush(stdout);
  fflush(stderr);
  int out = dup(1), err = dup(2);
  dup2(fileno(heard), 1);
  dup2(fileno(heard), 2);
  int rc = dpdk_eal_start(&args, error, sizeof error);
  fflush(stdout);
  fflush(stderr);
  dup2(out, 1);
  dup2(err, 2);
  close(out);
  close(err);
  note(&after);
  if (rc) fail_msg("%d %s", rc, error);
  assert_true(dpdk_eal_running());
  assert_false(dpdk_eal_huge());
  assert_false(dpdk_eal_pci());
  assert_true(CPU_EQUAL(&before.cpus, &after.cpus));
  assert_memory_equal(&before.mask, &after.mask, sizeof before.mask);
  for (int s = 1; s <= 64; s++) assert_ptr_equal(before.act[s].sa_handler, after.act[s].sa_handler);
  assert_string_equal(before.locale, after.locale);
  assert_int_equal(lseek(fileno(heard), 0, SEEK_END), 0);
  fclose(heard);
}

/* Of every thread but this one. */
static void start__threads_take_no_signals(void **state) {
  (void)state;
  char path[64], line[128];
  int seen = 0;
  FILE *list = popen("ls /proc/$PPID/task", "r");
  for (int tid; fscanf(list, "%d", &tid) == 1;) {
    if (tid == getpid()) continue;
    snprintf(path, sizeof path, "/proc/self/task/%d/status", tid);
    FILE *f = fopen(path, "r");
    unsigned long long blocked = 0;
    while (f && fgets(line, sizeof line, f)) (void)sscanf(line, "SigBlk: %llx", &blocked);
    if (!f) continue;
    fclose(f);
    seen++;
    assert_true(blocked >> (SIGUSR1 - 1) & 1);
    assert_true(blocked >> (SIGINT - 1) & 1);
    assert_false(blocked >> (SIGBUS - 1) & 1);
  }
  pclose(list);
  assert_true(seen >= 1);
}

static void start__again_is_well_and_keeps_to_what_it_has(void **state) {
  (void)state;
  dpdk_eal_args other = args;
  assert_int_equal(dpdk_eal_start(&args, error, sizeof error), 0);
  other.needs_pci = true;
  assert_int_equal(dpdk_eal_start(&other, error, sizeof error), -EBUSY);
  expect("restart the process");
  other.needs_pci = false;
  other.needs_huge = true;
  assert_int_equal(dpdk_eal_start(&other, error, sizeof error), -EBUSY);
  expect("without huge pages");
  prepare("ring", NULL); /* preflight does not count memory that is taken already */
  assert_int_equal(args.count, 0);
}

static void start__refused_in_a_forked_child(void **state) {
  (void)state;
  int status;
  pid_t pid = fork();
  if (!pid) {
    dpdk_device d;
    dpdk_port *p;
    dpdk_wish wish = {.busy = true};
    int bad = dpdk_eal_running() ? 1 : 0;
    if (dpdk_eal_start(&args, error, sizeof error) != -EXDEV || !strstr(error, "spawn")) bad |= 2;
    if (dpdk_device_parse("ring", 0, &d, error, sizeof error)) bad |= 4;
    if (dpdk_port_open(&d, &wish, &p, error, sizeof error) != -EXDEV || !strstr(error, "spawn")) bad |= 8;
    _exit(bad);
  }
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

static void *enter(void *out) {
  int *rc = out;
  *rc = dpdk_thread_enter();
  if (!*rc) *rc = dpdk_thread_enter();
  if (!*rc && rte_lcore_id() == LCORE_ID_ANY) *rc = 1;
  return NULL;
}

static void thread_enter__leaves_its_place_at_exit(void **state) {
  (void)state;
  for (int i = 0; i < 2 * RTE_MAX_LCORE; i++) {
    pthread_t t;
    int rc = 1;
    assert_int_equal(pthread_create(&t, NULL, enter, &rc), 0);
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_int_equal(rc, 0);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rehearse__arguments_that_eal_refuses),
      cmocka_unit_test(rehearse__a_device_that_cannot_be_had),
      cmocka_unit_test(rehearse__exit_with_success_is_no_success),
      cmocka_unit_test(rehearse__death_by_a_signal),
      cmocka_unit_test(rehearse__a_hang_is_ended),
      cmocka_unit_test(start__leaves_the_process_as_it_was),
      cmocka_unit_test(start__threads_take_no_signals),
      cmocka_unit_test(start__again_is_well_and_keeps_to_what_it_has),
      cmocka_unit_test(start__refused_in_a_forked_child),
      cmocka_unit_test(thread_enter__leaves_its_place_at_exit),
  };
  setlocale(LC_ALL, "C.UTF-8");
  return cmocka_run_group_tests_name("eal", tests, NULL, NULL);
}
