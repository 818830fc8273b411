/* eal.c - EAL, once per process, as a guest (see dpdk.h).
 *
 * It runs on a thread of its own that takes no signals, and so do the threads that it makes. Synchronous ones stay open:
 * EAL itself catches SIGBUS while it touches new huge pages, and a blocked SIGBUS would end the process. Its log is kept
 * here and quoted in sentences; it says nothing on the program's own streams. What it loads is its folder of drivers
 * (RTE_EAL_PMD_PATH, all of them, 0.2 s warm): it finds that by itself because it is a shared library, and each driver
 * names what it needs, so that it does not matter that this plugin was loaded with local symbols. */
#include "plugins/dpdk/dpdk.h"
#include <errno.h>
#include <rte_config.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { START_SECONDS = 60 };

typedef enum { EAL_UNSTARTED, EAL_RUNNING, EAL_BROKEN } eal_state;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static eal_state state;
static _Atomic pid_t owner;      /* the process that started it; 0 = none */
static dpdk_eal_args *used;      /* lives as long as EAL, which keeps pointers */
static char *argv[sizeof used->arg / sizeof *used->arg + 1];
static int result, reason;
static char broken[DPDK_ERROR];

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char first_line[240];
static FILE *log_stream;

static ssize_t log_write(void *cookie, const char *text, size_t n) {
  (void)cookie;
  pthread_mutex_lock(&log_lock);
  if (!*first_line) {
    size_t len = 0;
    while (len < n && len < sizeof first_line - 1 && text[len] != '\n') len++;
    memcpy(first_line, text, len);
    first_line[len] = 0;
  }
  pthread_mutex_unlock(&log_lock);
  return (ssize_t)n;
}

void dpdk_eal_log_clear(void) {
  pthread_mutex_lock(&log_lock);
  *first_line = 0;
  pthread_mutex_unlock(&log_lock);
}

void dpdk_eal_log_first(char *out, size_t n) {
  pthread_mutex_lock(&log_lock);
  snprintf(out, n, "%s", *first_line ? first_line : "DPDK gives no reason");
  pthread_mutex_unlock(&log_lock);
}

bool dpdk_eal_forked(void) {
  pid_t pid = atomic_load(&owner);
  return pid && pid != getpid();
}

static bool running_with(bool *huge, bool *pci) {
  if (dpdk_eal_forked()) return false;
  pthread_mutex_lock(&lock);
  bool yes = state == EAL_RUNNING;
  *huge = yes && used->huge;
  *pci = yes && used->pci;
  pthread_mutex_unlock(&lock);
  return yes;
}

bool dpdk_eal_running(void) {
  bool huge, pci;
  return running_with(&huge, &pci);
}

bool dpdk_eal_huge(void) {
  bool huge, pci;
  return running_with(&huge, &pci) && huge;
}

bool dpdk_eal_pci(void) {
  bool huge, pci;
  return running_with(&huge, &pci) && pci;
}

static void *start_thread(void *unused) {
  (void)unused;
  rte_openlog_stream(log_stream);
  int rc = rte_eal_init(used->count, argv);
  reason = rc < 0 ? rte_errno : 0;
  result = rc;
  return NULL;
}

/* The rehearsal went well, so this does; if it hangs all the same, the thread is left alone for ever. */
static int run_start(void) {
  pthread_t thread;
  sigset_t before;
  struct timespec until;
  tb_plugin_signals_hold(&before);
  int rc = pthread_create(&thread, NULL, start_thread, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (rc) return -rc;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += START_SECONDS;
  rc = pthread_timedjoin_np(thread, NULL, &until);
  if (!rc) return result < 0 ? -(reason ? reason : EIO) : 0;
  pthread_detach(thread);
  return -rc;
}

static int break_it(int rc, char *error, size_t n) {
  char said[sizeof first_line];
  dpdk_eal_log_first(said, sizeof said);
  state = EAL_BROKEN;
  snprintf(broken, sizeof broken, "dpdk: DPDK did not start (%s: %s) and cannot be started a second time: restart the "
           "process", strerror(-rc), said);
  return dpdk_refuse(error, n, rc, "%s", broken);
}

static int start(const dpdk_eal_args *args, char *error, size_t n) {
  int rc = dpdk_eal_rehearse(args, error, n);
  if (rc) return rc;
  cookie_io_functions_t to = {.write = log_write};
  if (!log_stream) log_stream = fopencookie(NULL, "w", to);
  used = malloc(sizeof *used);
  if (!log_stream || !used) {
    free(used);
    used = NULL;
    return dpdk_refuse(error, n, -ENOMEM, "dpdk: out of memory");
  }
  *used = *args;
  for (int i = 0; i < used->count; i++) argv[i] = used->arg[i];
  argv[used->count] = NULL;
  atomic_store(&owner, getpid());
  dpdk_eal_log_clear();
  if ((rc = run_start())) return break_it(rc, error, n);
  state = EAL_RUNNING;
  return 0;
}

static int suits(const dpdk_eal_args *args, char *error, size_t n) {
  if (args->needs_pci && !used->pci)
    return dpdk_refuse(error, n, -EBUSY, "dpdk: DPDK runs in this process without the PCI bus, for a virtual device, and "
                       "cannot be started a second time: restart the process with the PCI device first");
  if (args->needs_huge && !used->huge)
    return dpdk_refuse(error, n, -EBUSY, "dpdk: DPDK runs in this process without huge pages and cannot be started a second "
                       "time: restart the process with TAILBOUND_HUGEPAGES=on");
  return 0;
}

int dpdk_eal_start(const dpdk_eal_args *args, char *error, size_t n) {
  if (dpdk_eal_forked()) /* before the lock: somebody may have held it at the fork */
    return dpdk_refuse(error, n, -EXDEV, "dpdk: DPDK was started before this process was forked, and its devices and "
                       "memory stay with the parent: start processes with exec (multiprocessing: \"spawn\"), or open the "
                       "link only after the fork");
  pthread_mutex_lock(&lock);
  int rc = state == EAL_RUNNING  ? suits(args, error, n)
           : state == EAL_BROKEN ? dpdk_refuse(error, n, -EIO, "%s", broken)
                             : start(args, error, n);
  pthread_mutex_unlock(&lock);
  return rc;
}

static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t key;

static void leave(void *unused) {
  (void)unused;
  if (!dpdk_eal_forked()) rte_thread_unregister();
}

static void make_key(void) { (void)pthread_key_create(&key, leave); }

int dpdk_thread_enter(void) {
  static _Thread_local bool known;
  if (known) return 0;
  if (rte_lcore_id() == LCORE_ID_ANY) {
    pthread_once(&key_once, make_key);
    if (rte_thread_register()) return -(rte_errno ? rte_errno : ENOMEM); /* others may leave: next time it may do */
    pthread_setspecific(key, &key);
  }
  known = true;
  return 0;
}
