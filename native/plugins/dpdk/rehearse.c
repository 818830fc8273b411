/* rehearse.c - a program: starts EAL as the plugin is about to, in a process that may die of it.
 *
 *   rehearse DEVARGS ARGUMENT...    DEVARGS: a device to probe as well, "" = none
 *
 * Ends with the thread that started it: a program that is killed leaves nobody behind on its device. Exits 0 after the line "tailbound: ready", else after "tailbound: the reason". No line: something ended it. */
#include <errno.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_log.h>
#include <stdio.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

static char *log_text;
static size_t log_size;

/* DPDK's first error says more than the ones that follow from it. */
static int tell(FILE *log, const char *what, int err) {
  fflush(log);
  int len = log_text ? (int)strcspn(log_text, "\n") : 0;
  fprintf(stderr, "tailbound: %s: %s%s%.*s\n", what, rte_strerror(err), len ? ": " : "", len, log_text ? log_text : "");
  return 1;
}

int main(int argc, char **argv) {
  if (argc < 2) {
    fprintf(stderr, "tailbound: usage: rehearse DEVARGS ARGUMENT...\n");
    return 2;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const char *probe = argv[1];
  FILE *log = open_memstream(&log_text, &log_size);
  if (!log || rte_openlog_stream(log)) {
    fprintf(stderr, "tailbound: out of memory\n");
    return 1;
  }
  argv[1] = argv[0];
  if (rte_eal_init(argc - 1, argv + 1) < 0) return tell(log, "EAL", rte_errno);
  int rc = *probe ? rte_dev_probe(probe) : 0;
  if (rc < 0 && rc != -EEXIST) return tell(log, probe, rc == -1 ? EIO : -rc); /* drivers say -1 */
  fprintf(stderr, "tailbound: ready\n");
  fflush(stderr);
  _exit(0); /* nothing of DPDK's is to be undone: the kernel does it */
}
