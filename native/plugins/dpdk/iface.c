/* iface.c - an interface under af_packet or af_xdp serves one process at a time.
 *
 * The kernel gives every packet socket on it all frames that arrive, and none that another one sends: two ranks on one
 * interface would hear everybody but each other, and init would blame a firewall. Of AF_XDP sockets it refuses the second,
 * as an invalid argument. So the first binds an abstract socket
 * named after the interface: that name lives in the interface's own network namespace, and goes with the process,
 * whatever ends it. A forked child drops its copy, or it would hold the name for longer than its parent lives. */
#include "plugins/dpdk/dpdk.h"
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { HELD_MOST = 32 };

static atomic_int held[HELD_MOST]; /* descriptor + 1; 0 = free */
static pthread_once_t once = PTHREAD_ONCE_INIT;

bool dpdk_iface_ask(const char *iface, unsigned long what, struct ifreq *out) {
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  *out = (struct ifreq){0};
  memcpy(out->ifr_name, iface, strnlen(iface, IF_NAMESIZE - 1));
  bool told = fd >= 0 && !ioctl(fd, what, out);
  if (fd >= 0) close(fd);
  return told;
}

static void drop_copies(void) {
  for (int i = 0; i < HELD_MOST; i++) {
    int fd = atomic_exchange(&held[i], 0) - 1;
    if (fd >= 0) close(fd);
  }
}

static void at_fork(void) { (void)pthread_atfork(NULL, NULL, drop_copies); }

static int name_it(int fd, const char *iface) {
  struct sockaddr_un name = {.sun_family = AF_UNIX};
  int len = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "tailbound/dpdk/%s", iface);
  size_t size = offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len;
  return bind(fd, (struct sockaddr *)&name, (socklen_t)size) ? -errno : 0;
}

static int keep(int fd) {
  for (int i = 0; i < HELD_MOST; i++) {
    int none = 0;
    if (atomic_compare_exchange_strong(&held[i], &none, fd + 1)) return 0;
  }
  return -EMFILE;
}

int dpdk_iface_claim(const dpdk_device *d, int *out, char *error, size_t n) {
  *out = -1;
  if (!d->iface[0]) return 0;
  pthread_once(&once, at_fork);
  int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  int rc = fd < 0 ? -errno : name_it(fd, d->iface);
  if (!rc) rc = keep(fd);
  if (!rc) *out = fd;
  if (!rc) return 0;
  if (fd >= 0) close(fd);
  if (rc == -EADDRINUSE)
    return dpdk_refuse(error, n, rc, "dpdk: another process has a device on %s, open or parked (ss -xp names it at "
                       "@tailbound/dpdk/%s): end it, or give each rank of this host an interface of its own (a veth pair, "
                       "an SR-IOV VF)", d->iface, d->iface);
  return dpdk_refuse(error, n, rc, "dpdk: cannot reserve %s: %s", d->iface, strerror(-rc));
}

void dpdk_iface_release(int fd) {
  if (fd < 0) return;
  for (int i = 0; i < HELD_MOST; i++) {
    int ours = fd + 1;
    if (atomic_compare_exchange_strong(&held[i], &ours, 0)) close(fd);
  }
}
