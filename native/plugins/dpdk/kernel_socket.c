/* kernel_socket.c - the kernel's socket under af_packet and af_xdp, which DPDK opens and shows to nobody. Found among the
 * descriptors of this process, it gives what those drivers lack:
 *
 *   sleep   poll() tells when a frame came: nobody has to look every 100 us
 *   room    af_packet's driver puts frames in a ring, tells the kernel once, and counts all of them as sent; but the kernel
 *           stops where the socket's send buffer is full, and what is left lies in the ring until the next burst, which
 *           may never come; and a ring that is full makes the driver wait without an end. So the buffer gets room for the
 *           whole ring, or the port is refused; and for what else may stop the kernel, whoever waits tells it again
 *           (kick) until nothing is left
 *   drops   what found af_packet's receive ring full, which 22.11 does not count */
#include "plugins/dpdk/dpdk.h"
#include <dirent.h>
#include <fcntl.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <stdlib.h>
#include <sys/socket.h>

enum { FRAME_COST = 4096 }; /* of a frame of 1500 bytes on its way, twice what the kernel books; more for longer ones */

static int family_of(const dpdk_device *d) {
  return d->kind == DPDK_AF_PACKET ? AF_PACKET : d->kind == DPDK_AF_XDP ? AF_XDP : AF_UNSPEC;
}

static bool is_candidate(int fd, int family, unsigned ifindex) {
  int domain = AF_UNSPEC;
  socklen_t len = sizeof domain;
  if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) || domain != family) return false;
  if (family != AF_PACKET) return true;
  struct sockaddr_ll at = {0};
  int version = -1;
  len = sizeof version; /* the driver's ring is of the second kind: a socket of somebody else's on that interface hardly is */
  if (getsockopt(fd, SOL_PACKET, PACKET_VERSION, &version, &len) || version != TPACKET_V2) return false;
  len = sizeof at;
  return !getsockname(fd, (struct sockaddr *)&at, &len) && (unsigned)at.sll_ifindex == ifindex;
}

/* Each candidate to `see`, which says whether to go on. */
static void look_through(int family, unsigned ifindex, bool (*see)(void *, int), void *arg) {
  DIR *open = opendir("/proc/self/fd");
  if (!open) return;
  bool on = true;
  for (struct dirent *e; on && (e = readdir(open));) {
    int fd = *e->d_name == '.' ? -1 : atoi(e->d_name);
    if (fd >= 0 && is_candidate(fd, family, ifindex)) on = see(arg, fd);
  }
  closedir(open);
}

static bool remember(void *arg, int fd) {
  dpdk_sockets *s = arg;
  if (s->count < (int)(sizeof s->fd / sizeof *s->fd)) s->fd[s->count++] = fd;
  return true;
}

void dpdk_sockets_before(const dpdk_device *d, unsigned ifindex, dpdk_sockets *out) {
  out->count = 0;
  if (family_of(d)) look_through(family_of(d), ifindex, remember, out);
}

typedef struct { const dpdk_sockets *before; int found; } search;

static bool is_new(void *arg, int fd) {
  search *s = arg;
  for (int i = 0; i < s->before->count; i++)
    if (s->before->fd[i] == fd) return true;
  s->found = fd;
  return false;
}

int dpdk_socket_since(const dpdk_device *d, unsigned ifindex, const dpdk_sockets *before) {
  search s = {before, -1};
  if (family_of(d) && before->count < (int)(sizeof before->fd / sizeof *before->fd))
    look_through(family_of(d), ifindex, is_new, &s);
  if (s.found >= 0) (void)fcntl(s.found, F_SETFD, FD_CLOEXEC); /* the driver forgot: a child would hold the interface */
  return s.found;
}

uint64_t dpdk_socket_bytes(uint32_t tx_desc, uint32_t ip_mtu) {
  uint64_t want = (uint64_t)tx_desc * (FRAME_COST + (uint64_t)ip_mtu * 2);
  return want > 1u << 30 ? 1u << 30 : want;
}

/* Forcing it needs CAP_NET_ADMIN, and in the first user namespace; what is granted is read back, doubled by the kernel. */
int dpdk_socket_room(const dpdk_port *p) {
  int bytes = (int)dpdk_socket_bytes(p->tx_desc, p->ip_mtu), granted = 0;
  socklen_t len = sizeof granted;
  if (p->kernel_fd < 0 || p->device.kind != DPDK_AF_PACKET) return 0;
  if (setsockopt(p->kernel_fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes))
    (void)setsockopt(p->kernel_fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  (void)getsockopt(p->kernel_fd, SOL_SOCKET, SO_SNDBUF, &granted, &len);
  return granted / 2 >= bytes / 2 ? 0 : -EPERM;
}

/* An interface that is down or gone takes nothing however often it is asked: stats.c asks once more when it is up. */
bool dpdk_socket_kick(const dpdk_port *p) {
  ssize_t sent = send(p->kernel_fd, NULL, 0, MSG_DONTWAIT);
  return sent == 0 || (sent < 0 && errno != EAGAIN && errno != ENOBUFS && errno != EINTR);
}

void dpdk_socket_clear(const dpdk_port *p) {
  int error;
  socklen_t len = sizeof error;
  (void)getsockopt(p->kernel_fd, SOL_SOCKET, SO_ERROR, &error, &len);
}

uint64_t dpdk_socket_drops(dpdk_port *p) {
  struct tpacket_stats s = {0};
  socklen_t len = sizeof s;
  if (p->kernel_fd < 0 || p->device.kind != DPDK_AF_PACKET) return TB_NONE;
  if (getsockopt(p->kernel_fd, SOL_PACKET, PACKET_STATISTICS, &s, &len)) return TB_NONE; /* which begins anew each time */
  return atomic_fetch_add(&p->kernel_drops, s.tp_drops) + s.tp_drops;
}
