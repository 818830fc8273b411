/* rehearsal.c - runs rehearse.c, which lies beside the plugin, and judges what came of it.
 *
 * The program is a process of its own by posix_spawn, which shares nothing with our threads: whatever kills it there
 * (rte_exit, SIGBUS, a usage page) would have killed or spoilt this process. It ends with a line of ours, "ready" or the
 * reason: an exit code alone would also be 0 for a usage page, and where the program ignores SIGCHLD there is none. */
#include "plugins/dpdk/dpdk.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATH = 512, LOOK_MS = 50, SAID = 8192 };
int dpdk_rehearse_ms = 45000;
#define VERDICT "tailbound: "

extern char **environ;

/* libtailbound_dpdk-23.so -> tailbound_dpdk-23_rehearse; for a program with this linked into it, rehearse. */
static int find_program(char *out, char *error, size_t n) {
  Dl_info info;
  if (!dladdr((void *)(uintptr_t)&dpdk_eal_rehearse, &info) || !info.dli_fname)
    return dpdk_refuse(error, n, -ENOENT, "dpdk: cannot tell where this plugin lies");
  const char *slash = strrchr(info.dli_fname, '/'), *base = slash ? slash + 1 : info.dli_fname;
  int folder = (int)(base - info.dli_fname);
  size_t len = strlen(base);
  int k;
  if (!strncmp(base, "lib", 3) && len > 6 && !strcmp(base + len - 3, ".so"))
    k = snprintf(out, PATH, "%.*s%.*s_rehearse", folder, info.dli_fname, (int)len - 6, base + 3);
  else
    k = snprintf(out, PATH, "%.*srehearse", folder, info.dli_fname);
  if (k < PATH && !access(out, X_OK)) return 0;
  return dpdk_refuse(error, n, -ENOENT, "dpdk: %s is missing or cannot be run: tailbound build-plugin dpdk", out);
}

static int spawn(const char *program, char *const argv[], int to, pid_t *pid) {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t how;
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  sigdelset(&all, SIGKILL);
  sigdelset(&all, SIGSTOP);
  posix_spawn_file_actions_init(&files);
  posix_spawnattr_init(&how);
  int rc = posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  if (!rc) rc = posix_spawnattr_setsigmask(&how, &none);
  if (!rc) rc = posix_spawnattr_setsigdefault(&how, &all);
  if (!rc) rc = posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  if (!rc) rc = posix_spawn_file_actions_adddup2(&files, to, 1);
  if (!rc) rc = posix_spawn_file_actions_adddup2(&files, to, 2);
#if __GLIBC_PREREQ(2, 34)
  if (!rc) rc = posix_spawn_file_actions_addclosefrom_np(&files, 3);
#endif
  if (!rc) rc = posix_spawn(pid, program, &files, &how, argv, environ);
  posix_spawnattr_destroy(&how);
  posix_spawn_file_actions_destroy(&files);
  return -rc;
}

/* Until there is something to read: 0, or its end; else -ETIMEDOUT, -EINTR. */
static int await(int fd, uint64_t until, const dpdk_eal_args *args) {
  struct pollfd p = {.fd = fd, .events = POLLIN};
  for (;;) {
    int ready = poll(&p, 1, LOOK_MS);
    if (ready > 0) return 0;
    if (ready < 0 && errno != EINTR) return -errno;
    if (args->cancelled && args->cancelled(args->cancel_of)) return -EINTR;
    if (dpdk_now() >= until) return -ETIMEDOUT;
  }
}

/* All it says, until it ends; the end of what does not fit is what counts. */
static int listen_to(int fd, char *said, const dpdk_eal_args *args) {
  uint64_t until = dpdk_now() + (uint64_t)dpdk_rehearse_ms * 1000000;
  size_t len = 0;
  for (;;) {
    int rc = await(fd, until, args);
    if (rc) return rc;
    if (len > SAID / 2) {
      memmove(said, said + len - SAID / 4, SAID / 4);
      len = SAID / 4;
    }
    ssize_t got = read(fd, said + len, SAID - 1 - len);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return 0;
    len += (size_t)got;
    said[len] = 0;
  }
}

/* Our last line in it, or, without one, the last of all. */
static const char *last_line(char *said, bool *ours) {
  char *line = NULL;
  *ours = false;
  for (char *at = said, *next; at && *at; at = next) {
    if ((next = strchr(at, '\n'))) *next++ = 0;
    if (!strncmp(at, VERDICT, strlen(VERDICT))) line = at, *ours = true;
    if (*at && !*ours) line = at;
  }
  return !line ? "it said nothing" : *ours ? line + strlen(VERDICT) : line;
}

static int judge(int rc, int status, char *said, const dpdk_eal_args *args, char *error, size_t n) {
  bool ours;
  const char *line = last_line(said, &ours);
  char check[220] = "check the device";
  if (*args->users) snprintf(check, sizeof check, "check the device and TAILBOUND_EAL_ARGS=\"%s\"", args->users);
  if (rc == -EINTR) return dpdk_refuse(error, n, rc, "dpdk: interrupted while DPDK's start was tried");
  if (rc)
    return dpdk_refuse(error, n, -ETIMEDOUT, "dpdk: DPDK would not start in %d s (%.200s); it was tried in another "
                       "process, so this one can go on with another link", dpdk_rehearse_ms / 1000, line);
  if (ours && !strcmp(line, "ready")) return 0;
  if (!ours && status > 0 && WIFSIGNALED(status))
    return dpdk_refuse(error, n, -EIO, "dpdk: DPDK would have ended this process by signal %d (%.200s); it was tried in "
                       "another one: %s", WTERMSIG(status), line, check);
  return dpdk_refuse(error, n, -EIO, "dpdk: DPDK would not start here: %.300s (tried in another process; %s)", line, check);
}

int dpdk_eal_rehearse(const dpdk_eal_args *args, char *error, size_t n) {
  char program[PATH], said[SAID] = "";
  char *argv[sizeof args->arg / sizeof *args->arg + 3];
  int ends[2], status = 0, count = 0;
  pid_t pid;
  int rc = find_program(program, error, n);
  if (rc) return rc;
  argv[count++] = program;
  argv[count++] = (char *)(uintptr_t)args->probe;
  for (int i = 1; i < args->count; i++) argv[count++] = (char *)(uintptr_t)args->arg[i];
  argv[count] = NULL;
  if (pipe2(ends, O_CLOEXEC)) return dpdk_refuse(error, n, -errno, "dpdk: pipe: %s", strerror(errno));
  rc = spawn(program, argv, ends[1], &pid);
  close(ends[1]);
  if (rc) {
    close(ends[0]);
    return dpdk_refuse(error, n, rc, "dpdk: cannot run %s: %s", program, strerror(-rc));
  }
  rc = listen_to(ends[0], said, args);
  close(ends[0]);
  if (rc) kill(pid, SIGKILL);
  pid_t got;
  while ((got = waitpid(pid, &status, 0)) < 0 && errno == EINTR) continue;
  return judge(rc, got == pid ? status : 0, said, args, error, n);
}
