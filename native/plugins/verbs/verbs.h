/* verbs.h - private to the verbs link: its state, and which file owns what. docs/rdma.md is for users.
 *
 *   device.c   the `device` option -> device, port, GID: what sysfs says (no verbs call)
 *   memlock.c  may so much memory be locked? Asked before it is registered
 *   slab.c     registered memory of the link's own
 *   mr.c       the callers' memory, registered while calls use it
 *   qp.c       queues: made, brought to RTS, cycled through ERR, destroyed
 *   route.c    address handles, made by a thread of their own, which also hears the device's asynchronous events
 *   peer.c     peers' addresses and ours
 *   chain.c    frames -> a chain of work requests (no verbs call)
 *   tx.c       tx_burst: posting chains; send completions
 *   rx.c       rx_burst: receive completions, leases, refilling
 *   wait.c     wait and wake, both poll modes
 *   open.c     open, close, caps, description, counters, table of operations
 *
 * UNRELIABLE DATAGRAMS. One queue pair of type UD is the lane's: it reaches every peer, so a thousand of them cost a
 * thousand table entries and no queue. A frame is one datagram, at most the path MTU long; nothing is acknowledged or
 * sent again below the protocol. What is longer completes as if it had been sent, and is gone (rxe 6.1): lengths are
 * checked here. Received ones lie behind 40 bytes that hold the sender's address (GRH, or an IPv4 header in its last
 * 20 bytes), for which each receive buffer has room.
 *
 * STATES of the queue pair   RESET -> INIT -> RTR -> RTS (UP) at open. UP -> BROKEN: a completion with an error, a chain
 *     that was posted in part, or an asynchronous event of it. BROKEN -> UP by a cycle: ERR, all send completions
 *     awaited, RESET, INIT, RTR, RTS. It keeps its number: peers notice lost frames and nothing else. If the cycle
 *     fails: DOWN. Frames are then lost (counted as dropped, accepted: a dead device must not keep the protocol from
 *     its deadline), and the cycle is tried again every CYCLE_AGAIN_NS. tx_abort is a cycle too.
 * STATES of a receive buffer  POSTED (in the shared receive queue) -> STASHED (completed) -> LEASED (handed out) -> FREE
 *     (released) -> POSTED. Posted in bulk, at the latest when half of them are free. They belong to the shared receive
 *     queue: a cycle of the queue pair leaves them posted.
 * STATES of a send buffer     its number is that of the work request modulo their count: FREE -> POSTED -> FREE.
 * STATES of a route           PENDING -> READY or FAILED (-errno; tried again). Peers of one host and GID share it.
 *
 * INVARIANTS  posted + stashed + leased + free == rx.count. head - tail <= tx.count: work requests that were posted, and
 *     of them those known to be done; they complete in order, and the last of each chain says so (at most CHAIN of them
 *     without a completion). A REF is done when tail has passed the work request that carries it, whatever its status;
 *     one that was dropped before it was posted is done with the one before it. Completion queues hold every work
 *     request at once: they cannot overflow. No address handle is destroyed before all that was posted with it is done.
 *
 * REGIONS  Memory of at least ref_from bytes is registered by mem_reg, in whole pages and for reading only, and REFs
 *     into it are read by the device from where they lie; one registration serves the regions within it that come
 *     while the one it was made for is there, and ends with the last of them. Whoever has a region keeps its memory; a
 *     registration that served later ones could have outlived pages of its own, and the device would read what was
 *     there before. Smaller memory, memory that cannot be registered, and all of it where a fork could move pages, is
 *     copied: a REF into it is done when the chain is, as the others.
 *
 * FAILURES  no device, port down, no GID, locked memory: open says which, and the remedy. A peer whose address cannot be
 *     resolved: its frames are lost, an event says why, and it is tried again. The device's fatal events: DOWN, and an
 *     event. The receive queue ran dry: the device drops silently; nobody counts it (rx_overflow is "none"). A fork: the
 *     slabs are not the child's (MADV_DONTFORK), and its close touches no queue.
 *
 * THREADS. As link.h says; no lock and no system call per frame. route.c's thread makes address handles, since that may
 * ask the kernel's neighbour table and block; it hands them over in an atomic pointer, and touches nothing else. */
#ifndef TB_VERBS_H
#define TB_VERBS_H
#include <infiniband/verbs.h>
#include <net/if.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "links/events.h"
#include "links/link.h"
#include "links/regions.h"
#include "plugins/common/lane.h"
#include "plugins/common/say.h"

enum {
  VERBS_CHAIN = 64,          /* work requests behind one doorbell, and without a completion */
  VERBS_POLL = 64,           /* completions taken at once */
  VERBS_INLINE = 256,        /* bytes a work request shall carry by itself; the device may have fewer */
  VERBS_GRH = 40,            /* in front of each received datagram */
  VERBS_LEAD = 64,           /* of a receive buffer, before the frame: so that frames begin on a cache line */
  VERBS_TX_SLOTS = 512,      /* a power of two */
  VERBS_RX_LEAST = 256,
  VERBS_MTU_MIN = 128,
  VERBS_PEERS_MAX = 65536,
  VERBS_GIDS_MAX = 256,
  VERBS_MRS_MAX = 64,
  VERBS_REF_FROM = 1 << 20,  /* copying less costs less than registering it */
};
#define VERBS_CYCLE_AGAIN_NS 100000000u
#define VERBS_DRAIN_NS 200000000u /* for what was posted to complete, at close and in a cycle */

/* ---- device.c ---- */

typedef struct {
  uint32_t index;            /* in the port's table */
  uint8_t raw[16];
  bool v2, ib;               /* RoCE v2; what InfiniBand has (and RoCE v1, which no router passes on) */
  char netdev[IF_NAMESIZE];  /* "" = not told */
} verbs_gid;

typedef struct {
  char device[64];
  uint32_t port;
  bool ethernet;
  verbs_gid gid;
} verbs_choice;

/* 0 = none; else how well it serves: RoCE v2, of this IP family (4, 6, 0 = either), routable. want: this very one;
 * NULL = any. Of equals the first is taken. */
uint32_t verbs_gid_worth(const verbs_gid *g, bool ethernet, const uint8_t *want, int family);
bool verbs_gid_is_v4(const uint8_t *raw);
int verbs_gid_text(const uint8_t *raw, char *out, size_t n); /* 10.0.0.1, or fe80::1 */
int verbs_gid_of(const char *text, uint8_t raw[16]);         /* of an address, "/24" behind it allowed; -EINVAL */
/* The port's GIDs that can be read, below `root`; how many. */
uint32_t verbs_gids(const char *root, const char *device, uint32_t port, verbs_gid *out, uint32_t n);
/* `device` of the configuration: NAME, NAME:PORT, an IP, a PCI address; "" = the only one with a port that is up. */
int verbs_device_choose(const char *root, const tb_link_cfg *cfg, verbs_choice *out);

/* ---- memlock.c ---- status: the text of /proc/self/status */
int verbs_memlock_check(const char *status, uint64_t limit, uint64_t bytes, char *error, size_t n);
int verbs_memlock(uint64_t bytes, char *error, size_t n);

/* ---- slab.c ---- */
typedef struct {
  uint8_t *base;
  size_t bytes;
  uint32_t stride, count;
  struct ibv_mr *mr;
} verbs_slab;
int verbs_slab_map(verbs_slab *s, uint32_t stride, uint32_t count);
int verbs_slab_register(verbs_slab *s, struct ibv_pd *pd);
void verbs_slab_free(verbs_slab *s, bool ours); /* ours: false in a forked child */
static inline uint8_t *verbs_slab_at(const verbs_slab *s, uint32_t i) { return s->base + (size_t)i * s->stride; }

/* ---- mr.c ---- */
typedef struct {
  uintptr_t from, to;        /* whole pages */
  struct ibv_mr *mr;
  uint32_t uses, founder;    /* regions; the one it was made for */
  bool open;                 /* that one is still there: others may share it */
} verbs_mr;

/* ---- route.c ---- */
typedef struct { uint8_t gid[16]; uint16_t lid; } verbs_where;

typedef struct verbs_route {
  verbs_where where;
  struct ibv_ah *ah;                 /* the lane's; NULL = none yet */
  struct ibv_ah *_Atomic fresh;      /* from the thread to the lane */
  atomic_int state;                  /* 0, -EINPROGRESS, -errno */
  bool queued, again;                /* under the thread's lock: waits for its turn; failed, later once more */
  bool told;
  struct verbs_route *next, *next_job;
} verbs_route;

typedef struct {
  pthread_t thread;
  bool running;
  int fd;                            /* eventfd: there is something to do */
  pthread_mutex_t lock;
  verbs_route *jobs, **jobs_end;
  bool stop;
} verbs_router;

/* ---- the link ---- */

typedef struct {
  verbs_route *route;                /* NULL = no such peer */
  uint32_t qpn, qkey;
  uint8_t gid[16];
  uint16_t lid;
} verbs_peer;

typedef struct {                     /* a chain on its way to the device */
  struct ibv_send_wr wr[VERBS_CHAIN];
  struct ibv_sge sge[2 * VERBS_CHAIN];
  uint32_t at[VERBS_CHAIN];          /* of which frame each is */
  uint32_t count, frames;            /* work requests; frames, those that are lost here included */
} verbs_chain;

typedef struct { /* written by the lane, read by anybody */
  atomic_uint_least64_t tx_frames, tx_bytes, rx_frames, rx_bytes, tx_calls, rx_calls, tx_copied, tx_dropped, tx_errors,
      rx_truncated, rx_foreign, rx_refills, cycles, regs;
} verbs_counters;

typedef struct { uint32_t slot, len; } verbs_got;

typedef struct verbs_link {
  tb_link_caps caps;
  verbs_choice at;
  struct ibv_context *context;
  struct ibv_pd *pd;
  struct ibv_comp_channel *channel;
  struct ibv_cq *tx_cq, *rx_cq;
  struct ibv_srq *srq;
  struct ibv_qp *qp;
  uint8_t gid[16];
  uint16_t lid;
  uint32_t qkey, port_mtu, mtu;      /* mtu: of a frame, the agreed one */
  uint64_t drain_ns;                 /* what the send queue holds may take so long to leave */
  uint32_t inline_most;
  bool busy;
  pid_t pid;                         /* that opened it */

  verbs_peer *peers;
  uint32_t peers_cap;
  verbs_route *routes;
  verbs_router router;
  tb_regions regions;                /* that REFs may point into; tag: of mrs + 1, 0 = it is copied */
  verbs_mr mrs[VERBS_MRS_MAX];
  uint64_t ref_from;
  bool told_unregistered;

  verbs_slab tx;
  uint64_t head, tail;               /* work requests posted, done */
  uint64_t refs, reaped;
  uint64_t refs_at[VERBS_TX_SLOTS];  /* REFs accepted up to this work request */
  bool blocked;                      /* the last tx_burst stopped for want of room */
  atomic_bool broken;                /* to be cycled */
  uint64_t down_until;               /* DOWN: when the cycle is tried again; 0 = not down */
  verbs_chain chain;
  struct { struct ibv_ah *ah; uint64_t at; } old[VERBS_TX_SLOTS]; /* replaced; goes once tail has reached `at` */
  uint32_t olds;

  verbs_slab rx;
  struct ibv_recv_wr *rwr;           /* one for each receive buffer, made once */
  struct ibv_sge *rsge;
  uint16_t *slid;                    /* of a received frame's sender, where there is no GRH */
  uint8_t *has_grh;
  uint32_t *free_slot, free_count;   /* to be posted */
  uint32_t *lease, leases;
  verbs_got stash[VERBS_POLL];
  uint32_t stashed, stash_at;
  uint32_t posted;

  uint64_t idle_since;               /* wait.c: nothing came since; 0 = something just did */
  uint32_t unacked_tx, unacked_rx;   /* events of the completion queues */
  tb_guard guard;                    /* of the queues while the owner waits */
  tb_waker waker;
  verbs_counters n;
  tb_events events;
} verbs_link;

static inline verbs_link *verbs_of(tb_link *link) { return (verbs_link *)link; }
static inline const verbs_link *verbs_of_const(const tb_link *link) { return (const verbs_link *)link; }
static inline void verbs_add(atomic_uint_least64_t *counter, uint64_t n) { /* one writer: no locked instruction */
  atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n, memory_order_relaxed);
}
#define verbs_refuse tb_plugin_refuse
#define verbs_event(link, ...) tb_plugin_event(&(link)->events, __VA_ARGS__)
#define VERBS_REFUSE(cfg, rc, ...) tb_plugin_refuse((cfg)->error, (cfg)->error_len, rc, __VA_ARGS__)
static inline uint64_t verbs_now(void) { return tb_plugin_now(); }

/* qp.c */
int verbs_queues_open(verbs_link *l, const tb_link_cfg *cfg);
int verbs_qp_up(verbs_link *l);      /* RESET -> RTS */
void verbs_qp_cycle(verbs_link *l);  /* BROKEN -> UP, or DOWN */
void verbs_qp_mend(verbs_link *l);   /* a cycle if one is due */
void verbs_queues_close(verbs_link *l, bool ours);

/* route.c */
int verbs_router_start(verbs_link *l);
void verbs_router_stop(verbs_link *l);
verbs_route *verbs_route_want(verbs_link *l, const verbs_where *where); /* NULL = no memory */
struct ibv_ah *verbs_route_take(verbs_link *l, verbs_route *r);         /* the lane's handle, the newest; NULL = none */
void verbs_routes_free(verbs_link *l, bool ours);
void verbs_routes_reap(verbs_link *l);                                  /* destroys old ones that nothing uses */

/* peer.c. An address: 'R', version, transport, layer, queue pair number, key, LID, MTU, GID. */
int verbs_local_addr(const tb_link *link, tb_addr *out);
int verbs_peer_add(tb_link *link, uint32_t peer, const tb_addr *addr);
int verbs_peer_set(tb_link *link, uint32_t peer, const tb_addr *addr);
int verbs_peer_del(tb_link *link, uint32_t peer);
int verbs_peer_state(const tb_link *link, uint32_t peer);

/* mr.c */
bool verbs_fork_is_safe(void);       /* a child's writes do not move pages that the device knows */
int verbs_mem_reg(tb_link *link, const void *base, size_t len, uint32_t *region);
int verbs_mem_unreg(tb_link *link, uint32_t region);
struct ibv_mr *verbs_mr_of(const verbs_link *l, uint32_t region); /* NULL = it is copied */
void verbs_mrs_close(verbs_link *l);

/* chain.c: the first frames that may go, at most `room` work requests. None: *error says why not the first one. */
void verbs_chain_build(verbs_link *l, const tb_tx *frames, uint32_t n, uint32_t room, int *error);

/* tx.c */
int verbs_tx_burst(tb_link *link, uint32_t lane, const tb_tx *frames, int n);
uint64_t verbs_tx_reap(tb_link *link, uint32_t lane);
int verbs_tx_quiesce(tb_link *link, uint32_t lane, uint64_t until_ns);
int verbs_tx_abort(tb_link *link, uint32_t lane, uint64_t *took_ns);
bool verbs_tx_poll(verbs_link *l);   /* send completions; true = there were some */

/* rx.c */
int verbs_rx_burst(tb_link *link, uint32_t lane, tb_rx *frames, int n);
void verbs_rx_release(tb_link *link, uint32_t lane);
bool verbs_came_from(const tb_link *link, const tb_rx *frame, uint32_t peer);
bool verbs_rx_fill(verbs_link *l);   /* completions into the empty stash; false = nothing came */
void verbs_rx_prepare(verbs_link *l); /* all buffers are free */
int verbs_rx_post(verbs_link *l);    /* posts what is free */

/* wait.c */
int verbs_wait(tb_link *link, uint32_t lane, uint64_t deadline_ns);
void verbs_wake(tb_link *link, uint32_t lane);

#endif
