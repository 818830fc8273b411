/* fanout.c - af_packet's driver probed where its number is free.
 *
 * It puts its socket into a PACKET_FANOUT group, even a single one, whose number is made of this process's and the
 * interface's (pid ^ ifindex, 16 bits of it). Groups are a network namespace's, and one spans no two interfaces: ranks that
 * were started one after the other, on interfaces that were made so, meet in a number as often as not, and the second one
 * would be refused. It keeps its group for the socket's life, and a process keeps its number. So where the number is taken
 * the driver is called by a child that shares our memory and our files, but for its number is this very thread: which is
 * stopped meanwhile, as by vfork(). What the driver made is ours when the child is gone; nobody hears of it (no SIGCHLD). */
#include "plugins/dpdk/dpdk.h"
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <rte_dev.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TRIES = 64, STACK = 1 << 20 };

typedef struct {
  const dpdk_device *d;
  unsigned ifindex;
  bool called;
  int rc;
} probing;

/* Of the process that asks. By trying: a group of that number on another interface refuses us as it would the driver. */
static bool is_free(unsigned ifindex) {
  int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0), number = (getpid() ^ (int)ifindex) & 0xffff;
  struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_LOOPBACK), .sll_ifindex = (int)ifindex};
  bool yes = fd < 0 || bind(fd, (struct sockaddr *)&to, sizeof to) ||
             !setsockopt(fd, SOL_PACKET, PACKET_FANOUT, &number, sizeof number); /* else the driver says what is wrong */
  if (fd >= 0) close(fd);
  return yes;
}

static int call_there(void *arg) {
  probing *p = arg;
  if (!is_free(p->ifindex)) return 0;
  p->called = true;
  p->rc = rte_dev_probe(p->d->devargs);
  return 0;
}

int dpdk_fanout_probe(const dpdk_device *d, unsigned ifindex) {
  probing p = {.d = d, .ifindex = ifindex};
  if (d->kind != DPDK_AF_PACKET || is_free(ifindex)) return rte_dev_probe(d->devargs);
  char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  for (int i = 0; stack != MAP_FAILED && i < TRIES && !p.called; i++) {
    int flags = CLONE_VM | CLONE_VFORK | CLONE_FILES | CLONE_FS | CLONE_SYSVSEM;
    int pid = clone(call_there, stack + STACK, flags, &p);
    if (pid < 0) break;
    while (waitpid(pid, NULL, __WCLONE) < 0 && errno == EINTR) continue;
  }
  if (stack != MAP_FAILED) munmap(stack, STACK);
  return p.called ? p.rc : rte_dev_probe(d->devargs); /* the refusal names what else can be done */
}
