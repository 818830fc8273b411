/* udp.h - private to the udp link: its state, and who owns which part of it.
 *
 *   udp.c       open, close, the operations table, address, counters, events
 *   udp_sock.c  sockets: ports, buffers, offload probes, path MTU behaviour
 *   udp_peer.c  peers' addresses and memory regions (control path; the table itself is regions.h)
 *   udp_tx.c    tx_burst: grouping frames into messages, errors, degradation
 *   udp_rx.c    rx_burst: slabs, splitting, leases
 *   tb_udp_wait.c  wait and wake
 *
 * There is one lane. Everything but wake, stats, events and mem_reg/mem_unreg belongs to the thread that owns it. */
#ifndef TB_UDP_H
#define TB_UDP_H
#include "links/events.h"
#include "links/link.h"
#include "links/netif.h"
#include "links/regions.h"
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

enum {
  UDP_FLOWS_DEFAULT = 2,
  UDP_FLOWS_MAX = 32,
  UDP_MTU_DEFAULT = 7744,          /* jumbo, and with 448 bytes of bookkeeping exactly an 8 KiB block in the
                                      receiver's buffer, where 8960 would cost a 16 KiB one. Larger frames gain
                                      little over GSO and lose more at once. */
  UDP_MTU_LOOPBACK = 15936,        /* a 16 KiB block: where only an overflow loses frames, fewer of them cost less */
  UDP_MTU_MIN = 128,
  UDP_PAYLOAD_MAX = 65507,         /* of one datagram or one GSO message, IPv4 */
  UDP_SEGMENTS_MAX = 64,           /* kernels before 6.9 refuse more */
  UDP_TX_MESSAGES = 64,
  UDP_TX_IOVS = 1024,
  UDP_FLOW_BYTES = 128 << 10,      /* sent on one flow before another one is drawn ... */
  UDP_FLOW_NS = 200000,           /* ... or so long after it was drawn */
  UDP_SLABS = 8,                  /* a power of two: 32 * 64 KiB is one huge page */
  UDP_SLAB_BYTES = 64 << 10,
  UDP_CONTROL_BYTES = CMSG_SPACE(sizeof(int)),
  UDP_PEERS_MAX = 65536,           /* ranks are 16 bits on the wire */
};

typedef union {
  struct sockaddr sa;
  struct sockaddr_in v4;
  struct sockaddr_in6 v6;
} udp_addr;

typedef struct {
  int fd;
  uint16_t port;
  bool dry;                        /* nothing more to expect in this pass */
  uint64_t rcvbuf, sndbuf;         /* as read back: the kernel doubles what was asked, to pay for its own structures */
  uint32_t drops_seen;             /* the kernel's counter has 32 bits */
} udp_sock;

typedef struct {
  udp_addr *to;                    /* one per port of the peer; NULL = no such peer */
  uint32_t port;                   /* which of them it hears us on */
  int error;                       /* last hard send error, cleared by a success */
  bool told;                       /* a hard send error was reported: once per peer */
  bool own_device;                 /* its driver is in user space: on a veth nobody would cut a train for it */
  bool single;                     /* GSO towards it fails though it works elsewhere: its path is too narrow, say */
} udp_peer;

typedef struct {
  struct mmsghdr msg[UDP_TX_MESSAGES];
  struct iovec iov[UDP_TX_IOVS];
  char control[UDP_TX_MESSAGES][CMSG_SPACE(sizeof(uint16_t))] __attribute__((aligned(8)));
  uint32_t peer[UDP_TX_MESSAGES];
  uint32_t frames[UDP_TX_MESSAGES]; /* frames in the message */
  uint32_t count;
} udp_batch;

typedef struct { uint32_t len, seg, off; } udp_slab;

/* Single writer (the lane), any reader. */
typedef struct {
  _Atomic uint64_t tx_frames, tx_bytes, tx_calls, tx_dropped, rx_frames, rx_bytes, rx_calls, rx_truncated;
} udp_counters;

typedef struct {
  tb_link_caps caps;
  tb_netif netif;
  int family;
  uint32_t mtu;                    /* agreed; caps.mtu until set_mtu */
  bool agreed;                     /* set_mtu was called: from now on a path that narrows is served by fragments */
  bool fragmenting;
  uint32_t flows;
  udp_sock sock[UDP_FLOWS_MAX];
  uint8_t advertise[16];
  uint64_t buffer_wanted;
  uint16_t port_lo, port_hi;

  udp_peer *peers;
  uint32_t peers_cap, peers_most, self;
  tb_regions regions;

  /* tx */
  bool gso, gso_suspect;           /* suspect: a GSO send failed and the frames, sent singly, have not yet told why */
  int gso_errno;
  uint32_t flow;
  int blocked;                     /* the flow on which the last tx_burst stopped for lack of room, or -1 */
  int attempts;                    /* at the message in front */
  uint64_t flow_bytes, flow_at, random;
  uint64_t refs;                   /* accepted, and done: SYNC */
  udp_batch *batch;

  /* rx: slabs [tail, next) are leased, [next, head) filled and not yet wholly handed out; counts only grow */
  bool gro;
  uint8_t *slabs;
  struct mmsghdr rx_msg[UDP_SLABS];
  struct iovec rx_iov[UDP_SLABS];
  char rx_control[UDP_SLABS][UDP_CONTROL_BYTES] __attribute__((aligned(8)));
  udp_addr rx_from[UDP_SLABS];
  udp_slab slab[UDP_SLABS];
  uint32_t tail, next, head, rx_turn;
  bool leased;
  bool polled;                     /* wait has just marked the dry sockets of the pass to come */

  /* wait */
  int event_fd;
  atomic_bool wake_pending;
  struct pollfd poll[UDP_FLOWS_MAX + 1];

  udp_counters counters;
  bool drops_known;
  uint64_t drops;                  /* under drops_lock: not on the data path */
  pthread_mutex_t drops_lock;
  tb_events events;
} udp_link;

static inline udp_link *udp_of(tb_link *link) { return (udp_link *)link; }
static inline const udp_link *udp_of_const(const tb_link *link) { return (const udp_link *)link; }

static inline void udp_add(_Atomic uint64_t *counter, uint64_t n) {
  atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n, memory_order_relaxed);
}

void tb_udp_event(udp_link *u, int level, const char *format, ...) __attribute__((format(printf, 3, 4)));
const char *tb_udp_size_text(uint64_t bytes, char *out, size_t n);

int tb_udp_ip_text(const udp_link *u, char *out, size_t n);

int tb_udp_sockets_open(udp_link *u, const tb_link_cfg *cfg);
void tb_udp_sockets_close(udp_link *u);
void tb_udp_allow_fragments(udp_link *u);
uint32_t tb_udp_frame_overhead(uint32_t mtu);
uint64_t tb_udp_drops(udp_link *u);

int tb_udp_local_addr(const tb_link *link, tb_addr *out);
int tb_udp_mem_reg(tb_link *link, const void *base, size_t len, uint32_t *region);
int tb_udp_mem_unreg(tb_link *link, uint32_t region);
int tb_udp_peer_add(tb_link *link, uint32_t peer, const tb_addr *addr);
int tb_udp_peer_del(tb_link *link, uint32_t peer);
int tb_udp_peer_state(const tb_link *link, uint32_t peer);
void tb_udp_tables_free(udp_link *u);

int tb_udp_tx_burst(tb_link *link, uint32_t lane, const tb_tx *frames, int n);
int tb_udp_rx_burst(tb_link *link, uint32_t lane, tb_rx *frames, int n);
void tb_udp_rx_release(tb_link *link, uint32_t lane);
bool tb_udp_came_from(const tb_link *link, const tb_rx *frame, uint32_t peer);
int tb_udp_rx_open(udp_link *u);
int tb_udp_wait(tb_link *link, uint32_t lane, uint64_t deadline_ns);
uint64_t tb_udp_now(void); /* CLOCK_MONOTONIC, ns */
void tb_udp_wake(tb_link *link, uint32_t lane);

/* Where every datagram passes; tests replace them to make the kernel refuse. */
extern int (*tb_udp_sendmmsg)(int fd, struct mmsghdr *msg, unsigned n, int flags);
extern int (*tb_udp_recvmmsg)(int fd, struct mmsghdr *msg, unsigned n, int flags, struct timespec *timeout);

#endif
