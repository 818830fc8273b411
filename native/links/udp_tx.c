/* udp_tx.c - tx_burst: frames become messages, messages go to the kernel in batches.
 *
 * DESIGN NOTES. Consecutive frames to one peer that have one size (the last may be shorter) form one GSO message of at
 * most 64 segments, gathered from the headers and the user's payloads without a copy in user space; the kernel cuts it
 * into datagrams as late as it can, over loopback never. Many messages go into one sendmmsg. A burst stays on one flow
 * so that it costs one system call; the next flow is drawn at random once enough bytes went, because any fixed turn
 * falls into step with somebody's sending pattern and fills one of the peer's socket buffers while the others idle. It
 * is drawn also once the present one is a millisecond old: its path may be dead, and who sends little, a request or a
 * repair, must not stay on it.
 *
 * The kernel reports an error at the first message only, so each one is found at the front of what remains:
 *  - no room: the burst ends there, the caller keeps the rest;
 *  - GSO refused: its frames go singly; if that works GSO is off from now on, if not it was not GSO's fault;
 *  - too large for the path: before the MTU is agreed the frame is lost, which is what a probe wants to learn; after it
 *    the kernel may fragment;
 *  - anything else may be an ICMP answer to an earlier datagram, which the failed call has consumed: it is tried again,
 *    and only an error that stays costs this message, never the rest of the batch. */
#include "links/udp.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/udp.h>
#include <string.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

static int kernel_sendmmsg(int fd, struct mmsghdr *msg, unsigned n, int flags) { return sendmmsg(fd, msg, n, flags); }
int (*tb_udp_sendmmsg)(int fd, struct mmsghdr *msg, unsigned n, int flags) = kernel_sendmmsg;

enum { ATTEMPTS = 3 };
typedef enum { STOP, AGAIN, REBUILD, DROP } verdict;

static int check(const udp_link *u, const tb_tx *f) {
  if (f->peer >= u->peers_cap || !u->peers[f->peer].to) return -ENOENT;
  if ((f->head_len && !f->head) || (f->pay_len && !f->pay)) return -EINVAL;
  uint64_t total = (uint64_t)f->head_len + f->pay_len;
  if (!total) return -EINVAL;
  if (total > u->mtu) return -EMSGSIZE;
  return f->ref ? tb_regions_check(&u->regions, f->region, f->pay, f->pay_len) : 0;
}

static void begin_message(udp_link *u, udp_batch *b, uint32_t peer, struct iovec *iov) {
  udp_peer *p = &u->peers[peer];
  struct msghdr *h = &b->msg[b->count].msg_hdr;
  h->msg_name = &p->to[p->port];
  h->msg_namelen = u->family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
  h->msg_iov = iov;
  h->msg_iovlen = 0;
  h->msg_control = NULL;
  h->msg_controllen = 0;
  h->msg_flags = 0;
  b->peer[b->count] = peer;
  b->frames[b->count] = 0;
}

static void end_message(udp_batch *b, uint32_t segment) {
  struct msghdr *h = &b->msg[b->count].msg_hdr;
  if (b->frames[b->count] > 1) {
    struct cmsghdr *c = (struct cmsghdr *)b->control[b->count];
    uint16_t size = (uint16_t)segment;
    c->cmsg_level = IPPROTO_UDP;
    c->cmsg_type = UDP_SEGMENT;
    c->cmsg_len = CMSG_LEN(sizeof size);
    memcpy(CMSG_DATA(c), &size, sizeof size);
    h->msg_control = c;
    h->msg_controllen = CMSG_SPACE(sizeof size);
  }
  b->count++;
}

/* Fills the batch from the first frames; how many. Zero with *error set: the first one is not acceptable. */
static int build(udp_link *u, const tb_tx *frames, int n, int *error) {
  udp_batch *b = u->batch;
  struct iovec *iov = b->iov, *end = b->iov + UDP_TX_IOVS;
  int i = 0;
  b->count = 0;
  while (i < n && b->count < UDP_TX_MESSAGES && iov + 2 <= end) {
    uint32_t peer = frames[i].peer, segment = frames[i].head_len + frames[i].pay_len, bytes = 0, last = segment;
    if ((*error = check(u, &frames[i]))) return i;
    bool train = u->gso && !u->gso_suspect && !u->peers[peer].single && !u->peers[peer].own_device;
    uint32_t segments = train ? UDP_SEGMENTS_MAX : 1;
    begin_message(u, b, peer, iov);
    struct iovec *first = iov;
    do {
      const tb_tx *f = &frames[i];
      if (f->head_len) *iov++ = (struct iovec){(void *)f->head, f->head_len};
      if (f->pay_len) *iov++ = (struct iovec){(void *)f->pay, f->pay_len};
      bytes += last;
      b->frames[b->count]++;
      if (++i == n || last < segment || b->frames[b->count] == segments || iov + 2 > end) break;
      if (frames[i].peer != peer || check(u, &frames[i])) break; /* a bad frame is told when it is the first one */
      last = frames[i].head_len + frames[i].pay_len;
    } while (last <= segment && bytes + last <= UDP_PAYLOAD_MAX);
    b->msg[b->count].msg_hdr.msg_iovlen = (size_t)(iov - first);
    end_message(b, segment);
  }
  return i;
}

static void tell_lost(udp_link *u, udp_peer *p, int err) {
  char ip[INET6_ADDRSTRLEN];
  p->error = err;
  if (p->told || (err == EMSGSIZE && !u->agreed)) return;
  p->told = true;
  const void *addr = u->family == AF_INET ? (void *)&p->to->v4.sin_addr : (void *)&p->to->v6.sin6_addr;
  tb_udp_event(u, 30, "udp: sending to %s fails: %s (errno %d)%s", inet_ntop(u->family, addr, ip, sizeof ip),
               strerror(err), err, err == EPERM ? "; a local firewall rule rejects it" : "");
}

/* The frame that failed as part of a GSO message has now been tried alone. */
static void resolve_suspicion(udp_link *u, udp_peer *p, bool alone_works) {
  if (!u->gso_suspect) return;
  u->gso_suspect = false;
  if (!alone_works) {
    p->single = true;
    return;
  }
  u->gso = false;
  tb_udp_event(u, 30, "udp: %s refused a segmentation offload send (%s); sending singly from now on", u->netif.name,
               strerror(u->gso_errno));
}

static verdict judge(udp_link *u, uint32_t message, int err) {
  udp_peer *p = &u->peers[u->batch->peer[message]];
  bool grouped = u->batch->frames[message] > 1;
  if (err == EINTR) return AGAIN;
  if (err == EAGAIN || err == EWOULDBLOCK || err == ENOBUFS || err == ENOMEM) return STOP;
  if (grouped && (err == EIO || err == EINVAL || err == EMSGSIZE || err == EOPNOTSUPP)) {
    if (err == EMSGSIZE && u->fragmenting) {
      p->single = true;
    } else {
      u->gso_suspect = true;
      u->gso_errno = err;
    }
    return REBUILD;
  }
  if (err == EMSGSIZE && u->agreed && !u->fragmenting) {
    resolve_suspicion(u, p, false);
    p->single = true;
    tb_udp_allow_fragments(u);
    tb_udp_event(u, 30, "udp: a path became narrower than the agreed frame of %u bytes; frames are fragmented, and one "
                 "lost fragment loses a frame: restart with TAILBOUND_MTU set to what the path carries", u->mtu);
    return AGAIN;
  }
  if (err != EMSGSIZE && ++u->attempts < ATTEMPTS) return AGAIN;
  resolve_suspicion(u, p, false);
  tell_lost(u, p, err);
  return DROP;
}

static void sent(udp_link *u, uint32_t from, uint32_t to, int *taken) {
  udp_batch *b = u->batch;
  uint64_t bytes = 0, frames = 0;
  resolve_suspicion(u, &u->peers[b->peer[from]], true);
  for (uint32_t i = from; i < to; i++) {
    bytes += b->msg[i].msg_len;
    frames += b->frames[i];
    u->peers[b->peer[i]].error = 0;
  }
  *taken += (int)frames;
  u->flow_bytes += bytes + frames * 512;
  udp_add(&u->counters.tx_frames, frames);
  udp_add(&u->counters.tx_bytes, bytes);
}

/* Sends the batch; returns the frames the link has taken, lost ones included. */
static int flush(udp_link *u, bool *stop) {
  udp_batch *b = u->batch;
  int taken = 0;
  u->attempts = 0;
  for (uint32_t i = 0; i < b->count;) {
    int r = tb_udp_sendmmsg(u->sock[u->flow].fd, b->msg + i, b->count - i, MSG_DONTWAIT);
    udp_add(&u->counters.tx_calls, 1);
    if (r > 0) {
      sent(u, i, i + (uint32_t)r, &taken);
      i += (uint32_t)r;
      u->attempts = 0;
      continue;
    }
    verdict v = judge(u, i, r ? errno : EAGAIN);
    if (v == AGAIN) continue;
    if (v == DROP) {
      udp_add(&u->counters.tx_dropped, b->frames[i]);
      taken += (int)b->frames[i++];
      u->attempts = 0;
      continue;
    }
    if (v == STOP) u->blocked = (int)u->flow;
    *stop = v == STOP;
    break;
  }
  return taken;
}

static void next_flow(udp_link *u) {
  if (u->flows < 2) return;
  uint64_t now = tb_udp_now();
  if (u->flow_bytes < UDP_FLOW_BYTES && now - u->flow_at < UDP_FLOW_NS) return;
  u->flow_bytes = 0;
  u->flow_at = now;
  u->random ^= u->random << 13;
  u->random ^= u->random >> 7;
  u->random ^= u->random << 17;
  u->flow = (uint32_t)(u->random >> 32) % u->flows;
}

int tb_udp_tx_burst(tb_link *link, uint32_t lane, const tb_tx *frames, int n) {
  udp_link *u = udp_of(link);
  int done = 0, error = 0;
  bool stop = false;
  if (lane || n < 0) return -EINVAL;
  u->blocked = -1;
  while (done < n && !stop) {
    if (!build(u, frames + done, n - done, &error)) break;
    int taken = flush(u, &stop);
    for (int i = done; i < done + taken; i++) u->refs += frames[i].ref;
    done += taken;
  }
  next_flow(u);
  return done ? done : error;
}
