/* common_steps.c - instructions by single steps (common_meter.h).
 *
 * A mark is SIGTRAP that the child sends itself: the tracer sees it before it would be delivered and takes it away.
 * Between an odd mark and the next one the child goes on by one instruction at a time. An instruction that repeats
 * itself (rep movs) traps at each turn with the same address, and counts once. */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common_meter.h"

void bench_steps_mark(void) { syscall(SYS_tgkill, getpid(), (pid_t)syscall(SYS_gettid), SIGTRAP); }

int bench_steps_seize(pid_t child) { return ptrace(PTRACE_SEIZE, child, NULL, NULL) ? -errno : 0; }

static int readable(int fd) {
  struct pollfd p = {.fd = fd, .events = POLLIN};
  return poll(&p, 1, 0) > 0;
}

typedef enum { ENDED, MARK, STEP, OTHER } stop;

/* Why the child stands; of a step, where. */
static stop look(pid_t child, int status, void **at) {
  siginfo_t info;
  if (!WIFSTOPPED(status)) return ENDED;
  if (WSTOPSIG(status) != SIGTRAP || status >> 16 || ptrace(PTRACE_GETSIGINFO, child, NULL, &info)) return OTHER;
  *at = info.si_addr;
  return info.si_code == SI_TKILL ? MARK : STEP;
}

static int follow(pid_t child, int fd, uint64_t *counts, int most) {
  int found = 0, stepping = 0, status;
  void *last = NULL, *at = NULL;
  uint64_t steps = 0;
  for (;;) {
    pid_t who = waitpid(child, &status, stepping ? __WALL : __WALL | WNOHANG);
    if (!who) {
      if (readable(fd)) return found;
      usleep(200);
      continue;
    }
    stop why = who < 0 ? ENDED : look(child, status, &at);
    if (why == ENDED) return found;
    if (why == MARK) {
      if (stepping && found < most) counts[found++] = steps;
      stepping = !stepping;
      steps = 0;
    } else if (why == STEP) {
      steps += at != last;
      last = at;
    }
    long pass = why == OTHER && !(status >> 16) ? WSTOPSIG(status) : 0;
    if (ptrace(stepping ? PTRACE_SINGLESTEP : PTRACE_CONT, child, NULL, (void *)pass)) return found;
  }
}

/* Each step is two switches between child and tracer: much dearer when these sit on different cores. */
static void share_a_core(pid_t child) {
  cpu_set_t one;
  if (sched_getaffinity(child, sizeof one, &one)) return;
  size_t cpu = 0;
  while (cpu < CPU_SETSIZE - 1 && !CPU_ISSET(cpu, &one)) cpu++;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  if (!sched_setaffinity(child, sizeof one, &one)) (void)sched_setaffinity(0, sizeof one, &one); /* else only slower */
}

int bench_steps_follow(pid_t child, int fd, uint64_t *counts, int most) {
  cpu_set_t before;
  int known = !sched_getaffinity(0, sizeof before, &before);
  share_a_core(child);
  int found = follow(child, fd, counts, most);
  if (known) (void)sched_setaffinity(0, sizeof before, &before);
  return found;
}
