/* common_spawn.c - --ranks N: this program N times on this host, without a launcher.
 *
 * The parent makes no tailbound call: a communicator does not survive fork, so the children are exec'ed afresh and
 * find their rank in the library's own variables, which come before those of any launcher around us. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "common.h"

#define LOCAL_MARK "BENCH_LOCAL_RANK" /* set in children: --ranks has been served */
#define GRACE_MS 15000                     /* survivors get this long to report which peer they miss */

int bench_is_local_child(void) { return getenv(LOCAL_MARK) != NULL; }

static int free_port(void) {
  int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof a;
  if (s < 0 || bind(s, (struct sockaddr *)&a, len) != 0 || getsockname(s, (struct sockaddr *)&a, &len) != 0)
    bench_die("no free TCP port on 127.0.0.1: %s", strerror(errno));
  close(s);
  return ntohs(a.sin_port);
}

static void set_number(const char *name, int value) {
  char text[16];
  snprintf(text, sizeof text, "%d", value);
  if (setenv(name, text, 1) != 0) bench_die("setenv %s: %s", name, strerror(errno));
}

static void become_rank(int rank, int n, int port, pid_t parent, char **argv) {
  prctl(PR_SET_PDEATHSIG, SIGTERM); /* a parent that is killed leaves nobody behind */
  if (getppid() != parent) _exit(1);
  set_number("TAILBOUND_RANK", rank);
  set_number("TAILBOUND_LOCAL_RANK", rank);
  set_number("TAILBOUND_SIZE", n);
  set_number("TAILBOUND_LOCAL_SIZE", n);
  set_number("TAILBOUND_MASTER_PORT", port);
  setenv("TAILBOUND_MASTER_ADDR", "127.0.0.1", 1);
  setenv(LOCAL_MARK, "1", 1);
  execv("/proc/self/exe", argv);
  bench_die("exec of this program: %s", strerror(errno));
}

void bench_spawn_local(int n, char **argv) {
  pid_t *child = calloc((size_t)n, sizeof *child), parent = getpid();
  if (!child) bench_die("out of memory");
  int port = free_port(), worst = 0, left = n, patience = GRACE_MS;
  fflush(NULL);
  for (int i = 0; i < n; i++) {
    child[i] = fork();
    if (child[i] < 0) bench_die("fork: %s", strerror(errno)); /* the others get SIGTERM as we end */
    if (child[i] == 0) become_rank(i, n, port, parent, argv);
  }
  while (left > 0) {
    int status;
    pid_t pid = waitpid(-1, &status, worst ? WNOHANG : 0);
    if (pid < 0 && errno == EINTR) continue;
    if (pid < 0) bench_die("wait: %s", strerror(errno));
    if (pid == 0) {
      struct timespec ms10 = {0, 10000000};
      nanosleep(&ms10, NULL);
      patience -= 10;
      for (int i = 0; patience == 0 && i < n; i++)
        if (child[i]) kill(child[i], SIGTERM);
      for (int i = 0; patience == -2000 && i < n; i++)
        if (child[i]) kill(child[i], SIGKILL);
      continue;
    }
    left--;
    for (int i = 0; i < n; i++) {
      if (child[i] != pid) continue;
      child[i] = 0;
      if (WIFSIGNALED(status))
        fprintf(stderr, "%s: rank %d was ended by signal %d\n", bench_program, i, WTERMSIG(status));
    }
    int rc = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (rc > worst) worst = rc;
  }
  free(child);
  exit(worst);
}
