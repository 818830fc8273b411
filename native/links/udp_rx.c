/* udp_rx.c - rx_burst: the kernel fills slabs, frames are handed out from them in place.
 *
 * One slab takes one message: with GRO that is a train of datagrams of one size (the last may be shorter), else one
 * datagram. Slabs form a ring with three counters that only grow: [tail, next) hold frames the caller leases,
 * [next, head) wait to be handed out. Slab `next` itself may be both, when its train was longer than the caller's
 * array; it then stays over the release and gives its rest in the next pass.
 *
 * A socket that gave fewer messages than asked is dry for the rest of the pass: the pass ends with at most one
 * fruitless call per socket. */
#include "links/udp.h"
#include <errno.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifndef UDP_GRO
#define UDP_GRO 104
#endif

static int kernel_recvmmsg(int fd, struct mmsghdr *msg, unsigned n, int flags, struct timespec *timeout) {
  return recvmmsg(fd, msg, n, flags, timeout);
}
int (*tb_udp_recvmmsg)(int fd, struct mmsghdr *msg, unsigned n, int flags, struct timespec *timeout) = kernel_recvmmsg;

int tb_udp_rx_open(udp_link *u) {
  size_t bytes = (size_t)UDP_SLABS * UDP_SLAB_BYTES;
  const size_t huge = 2 << 20;
  u->slabs = aligned_alloc(huge, (bytes + huge - 1) / huge * huge); /* a multiple of its alignment, as C11 wants */
  if (!u->slabs) return -ENOMEM;
  (void)madvise(u->slabs, bytes, MADV_HUGEPAGE);
  memset(u->slabs, 0, bytes); /* no page faults once data flows */
  for (uint32_t i = 0; i < UDP_SLABS; i++) {
    u->rx_iov[i] = (struct iovec){u->slabs + (size_t)i * UDP_SLAB_BYTES, UDP_SLAB_BYTES};
    u->rx_msg[i].msg_hdr = (struct msghdr){.msg_iov = &u->rx_iov[i], .msg_iovlen = 1, .msg_control = u->rx_control[i],
                                            .msg_name = &u->rx_from[i]};
  }
  return 0;
}

/* Datagram size within the message, 0 = the message is damaged. */
static uint32_t segment_of(struct mmsghdr *m) {
  struct msghdr *h = &m->msg_hdr;
  if (h->msg_flags & (MSG_TRUNC | MSG_CTRUNC)) return 0;
  for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c)) {
    int size;
    if (c->cmsg_level != IPPROTO_UDP || c->cmsg_type != UDP_GRO || c->cmsg_len < CMSG_LEN(sizeof size)) continue;
    memcpy(&size, CMSG_DATA(c), sizeof size);
    return size > 0 && (uint32_t)size < m->msg_len ? (uint32_t)size : m->msg_len;
  }
  return m->msg_len;
}

/* Up to `want` messages into the free slabs from head on; the number, 0 when there are none. */
static int read_socket(udp_link *u, udp_sock *s, uint32_t want) {
  uint32_t at = u->head % UDP_SLABS;
  for (uint32_t i = at; i < at + want; i++) {
    u->rx_msg[i].msg_hdr.msg_controllen = u->gro ? UDP_CONTROL_BYTES : 0;
    u->rx_msg[i].msg_hdr.msg_namelen = sizeof u->rx_from[i];
    u->rx_msg[i].msg_hdr.msg_flags = 0;
  }
  int r = -1;
  for (int attempt = 0; attempt < 3 && r < 0; attempt++) { /* an ICMP answer to something sent may come first */
    r = tb_udp_recvmmsg(s->fd, u->rx_msg + at, want, MSG_DONTWAIT, NULL);
    udp_add(&u->counters.rx_calls, 1);
    if (r < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
  }
  for (int i = 0; i < r; i++) {
    struct mmsghdr *m = &u->rx_msg[at + (uint32_t)i];
    uint32_t len = m->msg_len <= UDP_SLAB_BYTES ? m->msg_len : 0, seg = segment_of(m);
    if ((!seg && m->msg_len) || len != m->msg_len) {
      udp_add(&u->counters.rx_truncated, 1);
      len = 0;
    }
    u->slab[at + (uint32_t)i] = (udp_slab){.len = len, .seg = seg};
  }
  if (r > 0) u->head += (uint32_t)r;
  return r > 0 ? r : 0;
}

/* Hands out frames that were read already; empty datagrams and damaged messages vanish here. */
static int hand_out(udp_link *u, tb_rx *frames, int n) {
  uint64_t bytes = 0;
  int k = 0;
  while (u->next != u->head) {
    udp_slab *s = &u->slab[u->next % UDP_SLABS];
    const uint8_t *base = u->slabs + (size_t)(u->next % UDP_SLABS) * UDP_SLAB_BYTES;
    while (s->off < s->len && k < n) {
      uint32_t len = s->len - s->off < s->seg ? s->len - s->off : s->seg;
      frames[k++] = (tb_rx){base + s->off, len, u->next % UDP_SLABS};
      s->off += len;
      bytes += len;
    }
    if (s->off < s->len) break;
    u->next++;
  }
  if (!k) return 0;
  u->leased = true;
  udp_add(&u->counters.rx_frames, (uint64_t)k);
  udp_add(&u->counters.rx_bytes, bytes);
  return k;
}

static udp_sock *next_socket(udp_link *u) {
  for (uint32_t i = 0; i < u->flows; i++) {
    udp_sock *s = &u->sock[u->rx_turn++ % u->flows];
    if (!s->dry) return s;
  }
  return NULL;
}

static void new_pass(udp_link *u) {
  u->tail = u->next;
  if (u->tail == u->head) u->tail = u->next = u->head = 0; /* all in one piece, and the warmest slabs first */
  for (uint32_t i = 0; i < u->flows && !u->polled; i++) u->sock[i].dry = false;
}

int tb_udp_rx_burst(tb_link *link, uint32_t lane, tb_rx *frames, int n) {
  udp_link *u = udp_of(link);
  udp_sock *s;
  if (lane || n < 0) return -EINVAL;
  if (!u->leased) new_pass(u); /* nothing to release, so a caller that got nothing need not */
  u->polled = false;
  int k = hand_out(u, frames, n);
  while (k < n) {
    uint32_t room = UDP_SLABS - (u->head - u->tail), to_wrap = UDP_SLABS - u->head % UDP_SLABS;
    uint32_t want = room < to_wrap ? room : to_wrap;
    if (want > (uint32_t)(n - k)) want = (uint32_t)(n - k); /* each message has at least one frame */
    if (!want || !(s = next_socket(u))) break;
    if ((uint32_t)read_socket(u, s, want) < want) s->dry = true;
    k += hand_out(u, frames + k, n - k);
  }
  return k;
}

void tb_udp_rx_release(tb_link *link, uint32_t lane) {
  udp_link *u = udp_of(link);
  if (lane) return;
  u->leased = false;
  new_pass(u);
}

bool tb_udp_came_from(const tb_link *link, const tb_rx *frame, uint32_t peer) {
  const udp_link *u = udp_of_const(link);
  const udp_addr *from = &u->rx_from[frame->slot], *to = peer < u->peers_cap ? u->peers[peer].to : NULL;
  if (!to) return false;
  return u->family == AF_INET ? from->v4.sin_addr.s_addr == to->v4.sin_addr.s_addr
                              : !memcmp(&from->v6.sin6_addr, &to->v6.sin6_addr, sizeof to->v6.sin6_addr);
}
