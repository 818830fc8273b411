/* memlock.c - RLIMIT_MEMLOCK, asked before memory is registered: the library's own answer would be "out of memory". */
#include "plugins/verbs/verbs.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { CAP_IPC_LOCK_BIT = 14 };

/* The number behind a word at the beginning of a line; 0 = there is none. */
static uint64_t value_of(const char *status, const char *word, int base) {
  size_t len = strlen(word);
  for (const char *line = status; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
    if (!strncmp(line, word, len)) return strtoull(line + len, NULL, base);
  return 0;
}

int verbs_memlock_check(const char *status, uint64_t limit, uint64_t bytes, char *error, size_t n) {
  uint64_t pinned = value_of(status, "VmPin:", 10) << 10;
  bool may = value_of(status, "CapEff:", 16) >> CAP_IPC_LOCK_BIT & 1;
  if (may || limit == RLIM_INFINITY || (pinned <= limit && bytes <= limit - pinned)) return 0;
  return verbs_refuse(error, n, -ENOMEM, "verbs: %llu KiB of memory must be locked for the device, and this process may "
                      "lock %llu KiB, of which %llu are taken: raise the limit (ulimit -l unlimited; memlock in "
                      "/etc/security/limits.conf; LimitMEMLOCK=infinity of a service; --ulimit memlock=-1 of a "
                      "container), or set a smaller TAILBOUND_BUFFER", (unsigned long long)bytes >> 10,
                      (unsigned long long)limit >> 10, (unsigned long long)pinned >> 10);
}

int verbs_memlock(uint64_t bytes, char *error, size_t n) {
  struct rlimit limit;
  char status[8192] = "";
  int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    ssize_t k = read(fd, status, sizeof status - 1);
    status[k > 0 ? k : 0] = 0;
    close(fd);
  }
  if (getrlimit(RLIMIT_MEMLOCK, &limit)) return 0; /* registering will tell */
  return verbs_memlock_check(status, limit.rlim_cur, bytes, error, n);
}
