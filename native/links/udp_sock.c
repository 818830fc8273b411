/* udp_sock.c - the sockets of a udp link: their ports, buffers, offload probes and path MTU behaviour. */
#include "links/udp.h"
#include <errno.h>
#include <limits.h>
#include <netinet/udp.h>
#include <linux/sock_diag.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif
#ifndef SO_MEMINFO
#define SO_MEMINFO 55
#endif

static void set_int(int fd, int level, int name, int value) { (void)setsockopt(fd, level, name, &value, sizeof value); }

static uint64_t get_buffer(int fd, int name) {
  int value = 0;
  socklen_t len = sizeof value;
  return getsockopt(fd, SOL_SOCKET, name, &value, &len) || value < 0 ? 0 : (uint64_t)value;
}

/* The kernel cuts a wish down to net.core.{r,w}mem_max without a word, so the result is read back. It doubles it too:
 * the figure is what the kernel charges, packets and their bookkeeping together. */
static uint64_t set_buffer(int fd, int name, int force, uint64_t wanted) {
  int value = wanted > INT_MAX / 2 ? INT_MAX / 2 : (int)wanted;
  set_int(fd, SOL_SOCKET, name, value);
  if (get_buffer(fd, name) < 2 * (uint64_t)value) set_int(fd, SOL_SOCKET, force, value); /* works for root only */
  return get_buffer(fd, name);
}

/* What one frame costs the receive buffer beyond its length. A frame that arrives singly over loopback sits in one
 * power-of-two block with 320 bytes of bookkeeping and up to 128 of headroom, beside a 256 byte descriptor; network
 * cards' page rounding stays below that. Blocks beyond 16 KiB are made of pages. Frames that arrive as one GSO message
 * cost next to nothing each, but no sender is sure to batch, so the single frame's price is the one told. */
uint32_t tb_udp_frame_overhead(uint32_t mtu) {
  uint32_t need = mtu + 320 + 128, block = 512;
  if (need > 16384) return 320 + 256 + 4096;
  while (block < need) block *= 2;
  return block + 256 - mtu;
}

static void forbid_fragments(int fd, int family) {
  if (family == AF_INET) {
    set_int(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
  } else {
    set_int(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO);
    set_int(fd, IPPROTO_IPV6, IPV6_DONTFRAG, 1);
  }
}

/* The chunk size is frozen once the MTU is agreed; a path that narrows later can only be served by fragments. */
void tb_udp_allow_fragments(udp_link *u) {
  u->fragmenting = true;
  for (uint32_t i = 0; i < u->flows; i++) {
    if (u->family == AF_INET) {
      set_int(u->sock[i].fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_WANT);
    } else {
      set_int(u->sock[i].fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_WANT);
      set_int(u->sock[i].fd, IPPROTO_IPV6, IPV6_DONTFRAG, 0);
    }
  }
}

static int bind_port(const udp_link *u, int fd, uint16_t port) {
  struct sockaddr_storage sa = u->netif.addr;
  socklen_t len = u->family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
  if (u->family == AF_INET)
    ((struct sockaddr_in *)&sa)->sin_port = htons(port);
  else
    ((struct sockaddr_in6 *)&sa)->sin6_port = htons(port);
  return bind(fd, (struct sockaddr *)&sa, len) ? -errno : 0;
}

/* *port: the first port to try; becomes the one after what was taken. Ranks on one host share a range, so each takes
 * what the others left. */
static int bind_in_range(const udp_link *u, int fd, uint32_t *port) {
  if (!u->port_lo) return bind_port(u, fd, 0);
  while (*port <= u->port_hi) {
    int rc = bind_port(u, fd, (uint16_t)(*port)++);
    if (rc != -EADDRINUSE) return rc;
  }
  return -EADDRINUSE;
}

static int refuse(const udp_link *u, const tb_link_cfg *cfg, const char *what, int err) {
  char ip[INET6_ADDRSTRLEN + IF_NAMESIZE + 1];
  if (!cfg->error || !cfg->error_len) return err;
  tb_udp_ip_text(u, ip, sizeof ip);
  if (err == -EADDRINUSE)
    snprintf(cfg->error, cfg->error_len,
             "udp: no %u free UDP ports left in %u-%u on %s (%s): every rank on this host needs %u, widen "
             "TAILBOUND_PORT_RANGE or set it to 0 for any port",
             u->flows, u->port_lo, u->port_hi, ip, u->netif.name, u->flows);
  else
    snprintf(cfg->error, cfg->error_len, "udp: %s on %s (%s) failed: %s", what, ip, u->netif.name, strerror(-err));
  return err;
}

static int open_one(udp_link *u, const tb_link_cfg *cfg, udp_sock *s, uint32_t *port) {
  udp_addr bound;
  socklen_t len = sizeof bound;
  s->fd = socket(u->family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (s->fd < 0) return refuse(u, cfg, "socket", -errno);
  if (u->family == AF_INET6) set_int(s->fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
  forbid_fragments(s->fd, u->family);
  int rc = bind_in_range(u, s->fd, port);
  if (rc) return refuse(u, cfg, "bind", rc);
  if (getsockname(s->fd, &bound.sa, &len)) return refuse(u, cfg, "getsockname", -errno);
  s->port = ntohs(u->family == AF_INET ? bound.v4.sin_port : bound.v6.sin6_port);
  s->rcvbuf = set_buffer(s->fd, SO_RCVBUF, SO_RCVBUFFORCE, u->buffer_wanted);
  s->sndbuf = set_buffer(s->fd, SO_SNDBUF, SO_SNDBUFFORCE, u->buffer_wanted);
  return 0;
}

/* Offloads are asked for per socket, hence per address family. Whether the device behind the route really segments is
 * told only by sending: tb_udp_tx_burst degrades when it does not. */
static void probe_offloads(udp_link *u, bool allowed) {
  int size = (int)u->caps.mtu, one = 1, off = 0;
  u->gso = u->gro = allowed;
  for (uint32_t i = 0; i < u->flows && allowed; i++) {
    if (setsockopt(u->sock[i].fd, IPPROTO_UDP, UDP_SEGMENT, &size, sizeof size)) u->gso = false;
    (void)setsockopt(u->sock[i].fd, IPPROTO_UDP, UDP_SEGMENT, &off, sizeof off);
    if (setsockopt(u->sock[i].fd, IPPROTO_UDP, UDP_GRO, &one, sizeof one)) u->gro = false;
  }
  if (allowed && !u->gso) tb_udp_event(u, 30, "udp: no send offload (UDP_SEGMENT) in this kernel; sending singly");
  if (allowed && !u->gro) tb_udp_event(u, 30, "udp: no receive offload (UDP_GRO) in this kernel; receiving singly");
}

static void report_buffers(udp_link *u) {
  char got[24], want[24];
  uint64_t receive = UINT64_MAX;
  for (uint32_t i = 0; i < u->flows; i++)
    if (u->sock[i].rcvbuf < receive) receive = u->sock[i].rcvbuf;
  if (receive / 2 >= u->buffer_wanted) return;
  tb_udp_event(u, 30, "udp: receive buffers of %s instead of %s: run sysctl -w net.core.rmem_max=%llu (and wmem_max)",
               tb_udp_size_text(receive / 2, got, sizeof got), tb_udp_size_text(u->buffer_wanted, want, sizeof want),
               (unsigned long long)u->buffer_wanted);
}

/* The kernel's count of datagrams it dropped at a socket: [8] of the memory figures. One GSO message counts once. */
static bool read_drops(int fd, uint32_t *out) {
  uint32_t info[SK_MEMINFO_VARS] = {0};
  socklen_t len = sizeof info;
  if (getsockopt(fd, SOL_SOCKET, SO_MEMINFO, info, &len) || len <= SK_MEMINFO_DROPS * sizeof *info) return false;
  *out = info[SK_MEMINFO_DROPS];
  return true;
}

/* Asked from the socket when somebody wants to know: a counter that rides on datagrams (SO_RXQ_OVFL) would miss what
 * was dropped after the last one and cost every receive a control message. */
uint64_t tb_udp_drops(udp_link *u) {
  pthread_mutex_lock(&u->drops_lock);
  for (uint32_t i = 0; i < u->flows && u->drops_known; i++) {
    uint32_t now;
    if (!read_drops(u->sock[i].fd, &now)) continue;
    u->drops += (uint32_t)(now - u->sock[i].drops_seen);
    u->sock[i].drops_seen = now;
  }
  uint64_t total = u->drops_known ? u->drops : TB_NONE;
  pthread_mutex_unlock(&u->drops_lock);
  return total;
}

int tb_udp_sockets_open(udp_link *u, const tb_link_cfg *cfg) {
  uint32_t port = u->port_lo;
  for (uint32_t i = 0; i < u->flows; i++) u->sock[i].fd = -1;
  for (uint32_t i = 0; i < u->flows; i++) {
    int rc = open_one(u, cfg, &u->sock[i], &port);
    if (rc) return rc;
  }
  probe_offloads(u, !cfg->no_offload);
  report_buffers(u);
  u->drops_known = read_drops(u->sock[0].fd, &u->sock[0].drops_seen);
  /* A peer always sends to the same one of the sockets (udp_peer.c): as many shares lie in each. */
  uint64_t senders = u->peers_most > 1 ? u->peers_most - 1u : 1, least = UINT64_MAX;
  for (uint32_t i = 0; i < u->flows; i++)
    if (u->sock[i].rcvbuf < least) least = u->sock[i].rcvbuf;
  /* the kernel books what was taken out off again in lumps of a quarter of the buffer (udp_rmem_release) */
  least -= least / 4;
  u->caps.rx_buffer = least / ((senders + u->flows - 1) / u->flows) * senders;
  return 0;
}

void tb_udp_sockets_close(udp_link *u) {
  for (uint32_t i = 0; i < u->flows; i++)
    if (u->sock[i].fd >= 0) close(u->sock[i].fd);
}
