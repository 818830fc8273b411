/* dpdk.h - private to the dpdk link: its state, and which file owns what. docs/dpdk.md is for users.
 *
 *   device.c     the `device` option -> devargs, and what is known about that driver (no DPDK call)
 *   preflight.c  huge pages, cgroup limit, permissions: everything EAL would die of, before it starts
 *   cgroup.c     huge pages that this process's cgroups still allow
 *   preflight_pci.c  a PCI device's driver and vfio group; the list of devices there are
 *   rehearsal.c  runs rehearse.c
 *   eal.c        EAL, once per process: rehearsed in a child that is exec'ed, then started on a thread of its own
 *   memif.c      which process serves a memif's socket
 *   iface.c      which process has the interface under a device
 *   port.c       a port: probe, configure, pools, start; parked at close and found again at the next open
 *   port_pools.c port_configure.c port_start.c  its parts (port.h): buffers; queues and offloads; the device on and off
 *   fanout.c     a probe of af_packet beside others in this network namespace
 *   xdp.c        the XDP program on an interface: off while the port is parked
 *   ring.c       the two ends of a ring within one process
 *   loaded.c     what the drivers that EAL loaded offer beside DPDK's interface
 *   open.c       the link's open, close, caps, description and table of operations
 *   address.c    the `ip`, `gateway` and `advertise` options -> our addresses
 *   listen.c     what a device is told so that it hands us all that is ours: groups, our VLAN
 *   flow.c       and, where it takes rules (rte_flow), that our UDP ports go to our queue
 *   peer.c       peers: addresses, neighbours, header templates
 *   tx.c rx.c    bursts
 *   ref.c        payloads that are sent from where they lie: registered, attached, reaped
 *   kernel_socket.c  the kernel's socket under af_packet and af_xdp: sleeping, room, drops
 *   wait.c       wait and wake, both poll modes
 *   stats.c      counters and events
 *   rehearse.c   a program of its own, beside the plugin: EAL's start with the same arguments, in a process that may die
 *
 * A GOOD GUEST. EAL is started by the first open and never cleaned up (rte_eal_cleanup makes it unusable for ever). It
 * runs on a thread of its own, so that the caller's affinity stays; signal handlers, locale and stdout stay too. Its
 * failures are told as -errno and a sentence. What could end the process (rte_exit, SIGBUS on huge pages that a cgroup
 * refuses) is found out before: by preflight.c, and by the rehearsal for what that does not know. A port that was
 * opened stays, stopped, for the next open: devices are not all able to come back.
 *
 * STATES of the process   UNSTARTED -> (rehearsal and rte_eal_init well) RUNNING -> for ever; or -> BROKEN: only a new
 *                         process can help, and every later open says so. A forked child has neither: refused.
 * STATES of a port        ABSENT -> (probe) PARKED -> (configure, start) OPEN -> (stop) PARKED. OPEN belongs to one link.
 *
 * THREADS. As link.h says: one lane, one owner at a time, no locks on the data path. The owner is registered with EAL
 * when it first sends or receives (mempool caches are per lcore) and unregistered when it exits. While the owner is in
 * wait(), others may add peers or abort: wait polls the device and its neighbours under `guard`, a turn at a time.
 *
 * INVARIANTS. An mbuf has one owner: the pool, the device, or the lease list of the present pass. What the device did
 * not take of a burst is freed before tx_burst returns. Nothing from the wire is used before headers.h has checked it. */
#ifndef TB_DPDK_H
#define TB_DPDK_H
#include <net/if.h>
#include <pthread.h>
#include <rte_ethdev.h>
#include <rte_flow.h>
#include <rte_mbuf.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include "ether/headers.h"
#include "ether/icmp.h"
#include "ether/neighbour.h"
#include "links/events.h"
#include "links/link.h"
#include "links/regions.h"
#include "plugins/common/lane.h"
#include "plugins/common/say.h"

enum {
  DPDK_PEERS_MAX = 65536,
  DPDK_FLOWS_MAX = 32,
  DPDK_TX_BURST = 64,
  DPDK_RX_BURST = 64,
  DPDK_LEASES = 512,       /* frames of one progress pass */
  DPDK_DENSE = 4096,       /* an object of a pool that a driver takes for objects end to end */
  DPDK_IP_MTU_MAX = 65280, /* with its headers it fits an mbuf, whose length has 16 bits */
  DPDK_MTU_MIN = 128,      /* of a frame, without the headers in front */
  DPDK_ERROR = 512,
};

/* What `device` asked for, and what its driver is like. */
typedef enum { DPDK_AF_PACKET, DPDK_AF_XDP, DPDK_MEMIF, DPDK_RING, DPDK_PCAP, DPDK_PCI, DPDK_OTHER } dpdk_kind;

typedef struct {
  dpdk_kind kind;
  char devargs[512];       /* for rte_dev_probe: "net_af_packet0,iface=veth0,..." or "0000:00:04.0" */
  char name[64];           /* EAL's name of it: up to the first comma */
  char iface[IF_NAMESIZE]; /* af_packet, af_xdp: the kernel's interface under it; else "" */
  uint32_t ip_mtu;         /* largest IP packet its driver carries; 0 = ask the port */
  uint32_t rx_ring;        /* frames it holds before it drops; 0 = the descriptors that port_configure.c asks for */
  uint32_t frame_room;     /* bytes of a frame that an mbuf must hold; 0 = what ip_mtu needs */
  bool one_pool;           /* it sends only from the pool it receives into (af_xdp) */
  bool set_mtu;            /* rte_eth_dev_set_mtu works */
  bool point_to_point;     /* memif, ring: whatever leaves arrives at the one other end */
  bool may_shut;           /* tx_burst returns 0 for ever when the other end stops (memif) */
  tb_ref_kind ref;         /* when its driver is done with memory of the caller's; NONE = it gets copies */
} dpdk_device;

/* device.c. `spec` is one of
 *   af_packet:IFACE  af_xdp:IFACE  memif:SOCKET[,server|client]  ring[:NAME]  pcap:RX_FILE,TX_FILE
 *   0000:03:00.0 or 03:00.0 (PCI)      net_...,key=value (devargs as EAL takes them)
 * self: this rank, so that of two memif ends the lower serves. -EINVAL and the sentence when it is none of them. */
int dpdk_device_parse(const char *spec, uint32_t self, dpdk_device *out, char *error, size_t n);

/* What its pools need, for IP packets of up to ip_mtu (0 = the device's, or Ethernet's 1500). */
typedef struct {
  uint32_t rx_desc, tx_desc; /* that are asked for */
  uint32_t rx, tx;         /* mbufs; tx 0 = sends from the rx pool */
  uint32_t tails;          /* mbufs without room, for payloads that are sent from where they lie; 0 = none are */
  uint32_t room;           /* of an mbuf's data, headroom included */
  uint64_t bytes;          /* all pools */
} dpdk_pools;
void dpdk_device_pools(const dpdk_device *d, uint32_t ip_mtu, dpdk_pools *out);

/* preflight.c: what EAL will be started with. */
typedef struct {
  char arg[40][160];
  int count;
  bool huge;               /* huge pages are used */
  bool pci;                /* the PCI bus is looked at: PCI devices can be had */
  bool needs_pci, needs_huge; /* by this device */
  char probe[512];         /* devargs that the rehearsal probes as well; "" = none */
  char users[160];         /* the program's own among them, as given, for sentences */
  int (*cancelled)(void *); /* of tb_link_cfg */
  void *cancel_of;
} dpdk_eal_args;
int dpdk_preflight(const dpdk_device *d, const tb_link_cfg *cfg, dpdk_eal_args *out, char *error, size_t n);
/* The same with /proc and /sys below `root`; running: EAL has its memory already. */
int dpdk_preflight_at(const char *root, bool running, const dpdk_device *d, const tb_link_cfg *cfg, dpdk_eal_args *out,
                      char *error, size_t n);
/* cgroup.c: bytes of these pages; UINT64_MAX = no limit. file: the one that limits. */
uint64_t dpdk_cgroup_room(const char *root, uint64_t page, char *file, size_t n);
/* preflight_pci.c: the driver and the permissions of a PCI device; the devices there are, as part of a sentence. */
int dpdk_preflight_pci(const char *root, const dpdk_device *d, bool huge, uint64_t bytes, char *error, size_t n);
int dpdk_pci_node(const char *root, const char *name); /* NUMA, -1 = none said */
void dpdk_list_devices(const char *root, char *out, size_t n);

/* eal.c. Started already: well if the running EAL can serve this device, else a sentence. In a child of fork: -EXDEV. */
int dpdk_eal_start(const dpdk_eal_args *args, char *error, size_t n);
bool dpdk_eal_running(void);         /* and this process started it */
bool dpdk_eal_forked(void);          /* another process did: this is its child */
bool dpdk_eal_huge(void);            /* the running one has huge pages */
bool dpdk_eal_pci(void);
void dpdk_eal_log_clear(void);       /* DPDK's own errors, the first since then: why a call failed */
void dpdk_eal_log_first(char *out, size_t n);
/* rehearsal.c */
extern int dpdk_rehearse_ms; /* so long EAL may take; an emulated machine needs most of it */
int dpdk_eal_rehearse(const dpdk_eal_args *args, char *error, size_t n);
int dpdk_thread_enter(void);         /* the calling thread may use mempool caches; cheap when it is known already */

/* A port that is open, or parked. */
typedef struct dpdk_port {
  dpdk_device device;
  uint16_t id;
  struct rte_mempool *rx_pool, *tx_pool, *tail_pool;
  struct rte_mbuf_ext_shared_info readers; /* of the callers' memory: 1 + the payloads that the device still has */
  tb_mac mac;
  uint32_t ip_mtu;         /* largest IP packet */
  uint32_t rx_frames;      /* that wait for us before it drops */
  uint32_t rx_desc, tx_desc;
  int socket;              /* NUMA */
  bool tx_sum, rx_sum;     /* UDP is summed and checked by the device */
  bool rx_interrupts, asked_interrupts;
  bool open;
  unsigned ifindex;        /* of device.iface: another one of that name is another device */
  dpdk_pools pools;        /* that it was configured with */
  int claim;               /* of iface.c */
  uint64_t turn, tried_at; /* of memif.c, when a client connected last */
  struct rte_eth_stats since; /* counters at open: a parked port keeps counting where it was */
  int kernel_fd;           /* the socket under af_packet and af_xdp, the driver's own; -1 = none, or not found */
  atomic_uint_least64_t kernel_drops;
  uint64_t drops_before;   /* of them, at open */
  int xdp_fd;              /* of xdp.c: the program that came with us; -1 = none, or it stays on */
  uint32_t xdp_mode, xdp_id;
  struct dpdk_port *next;
} dpdk_port;

/* kernel_socket.c. The sockets there were before a probe; the one there is since. */
typedef struct { int fd[64], count; } dpdk_sockets;
void dpdk_sockets_before(const dpdk_device *d, unsigned ifindex, dpdk_sockets *out);
int dpdk_socket_since(const dpdk_device *d, unsigned ifindex, const dpdk_sockets *before); /* -1 = none */
uint64_t dpdk_socket_bytes(uint32_t tx_desc, uint32_t ip_mtu); /* that af_packet's send buffer has to hold */
int dpdk_socket_room(const dpdk_port *p);        /* -EPERM: it is not allowed to hold them */
void dpdk_socket_clear(const dpdk_port *p);      /* of an error that poll() tells */
bool dpdk_socket_kick(const dpdk_port *p);       /* true: nothing is left in the ring that can leave now */
uint64_t dpdk_socket_drops(dpdk_port *p);        /* since the socket was made; TB_NONE = cannot tell */

/* memif.c. Before a server's device is probed: nobody else may serve that socket, and nobody can until the release. */
int dpdk_memif_claim(const dpdk_device *d, char *error, size_t n);
void dpdk_memif_release(const dpdk_device *d);
void dpdk_memif_takes(const dpdk_device *d, bool clients); /* a server's device was started; is about to be stopped */
/* For a client: 0 = nobody takes it now; UNTOLD = only trying tells; else a number that is new at each server's start. */
#define DPDK_MEMIF_UNTOLD UINT64_MAX
uint64_t dpdk_memif_turn(const dpdk_device *d);

int dpdk_fanout_probe(const dpdk_device *d, unsigned ifindex); /* fanout.c: rte_dev_probe */

/* xdp.c. The program on an interface before a probe; what is there since then is remembered, if it came with us; that one
 * is put on (-EBUSY: there is another) or taken off. */
uint32_t dpdk_xdp_before(const dpdk_device *d, unsigned ifindex);
void dpdk_xdp_remember(dpdk_port *p, uint32_t before);
int dpdk_xdp_switch(const dpdk_port *p, bool on);
void dpdk_xdp_forget(dpdk_port *p);

/* iface.c. *fd: to release with; -1 = nothing to. */
int dpdk_iface_claim(const dpdk_device *d, int *fd, char *error, size_t n);
void dpdk_iface_release(int fd);
/* What the kernel says of an interface: `what` is a SIOCGIF... request. False: it is not there, or cannot be asked. */
bool dpdk_iface_ask(const char *iface, unsigned long what, struct ifreq *out);

typedef struct {
  uint32_t ip_mtu;         /* the largest IP packet, 0 = what the port has */
  bool busy;               /* no interrupts are needed */
  uint64_t wait_ns;        /* for the other end of a memif; 0 = WAIT_MS of port_start.c */
  int (*cancelled)(void *); /* NULL = nobody gives up */
  void *cancel_of;
} dpdk_wish;

/* port.c */
int dpdk_port_open(const dpdk_device *d, const dpdk_wish *w, dpdk_port **out, char *error, size_t n);
void dpdk_port_reconnect(dpdk_port *p); /* its other end went away: asks whether it is back */
void dpdk_port_park(dpdk_port *p);   /* stops it: every frame in it is released */
/* loaded.c. NULL = that library is not among the loaded ones, or lacks it. */
void *dpdk_loaded_symbol(const char *library, const char *symbol);
void dpdk_xdp_listen(bool on);       /* to what libxdp and libbpf would print */
const char *dpdk_xdp_said(void);     /* the last of it */
int dpdk_ring_ends(const char *end, uint32_t frames, uint16_t *id, char *error, size_t n); /* ring.c: makes one end */
int dpdk_port_restart(dpdk_port *p, uint64_t *took_ns); /* tx_abort: nothing of before is read again */

typedef struct {
  bool used;
  tb_ip ip;
  uint16_t port;           /* the one of its UDP ports that it hears us on */
  int neighbour;           /* entry in neighbours; < 0: -errno, cannot be reached */
  uint32_t made;           /* tb_neighbours_changes of the template, + 1; 0 = none */
  tb_net_template head;
  uint64_t flow_at;        /* when, and after how many bytes, another source port is drawn */
  uint32_t flow_bytes, flow;
} dpdk_peer;

typedef struct { /* written by the lane, read by anybody */
  atomic_uint_least64_t tx_frames, tx_bytes, rx_frames, rx_bytes, tx_calls, rx_calls, tx_copied, tx_dropped, rx_truncated,
      rx_foreign, rx_bad_sum, rx_linearised, tx_full, neighbours_in, raw_out;
} dpdk_counters;

typedef struct { /* a received frame of ours */
  struct rte_mbuf *m;
  const uint8_t *data;
  uint32_t len;
  tb_ip ip;                /* of its sender */
} dpdk_frame;

/* Who puts the UDP sum of our frames there. Over IPv4 it may be left out; over IPv6 it may not. */
typedef enum { DPDK_SUM_NONE, DPDK_SUM_DEVICE, DPDK_SUM_US } dpdk_sum;

typedef struct dpdk_link {
  tb_link_caps caps;
  dpdk_port *port;
  tb_net_self self;
  tb_ip gateway, advertise;
  bool has_gateway;
  uint32_t head;           /* bytes in front of each frame: Ethernet, tag, IP, UDP */
  dpdk_sum sum;
  uint32_t mtu;            /* of a frame, the agreed one */
  uint32_t flows;
  bool busy;
  tb_neighbours *neighbours;
  dpdk_peer *peers;
  uint32_t peers_cap, peers_most, self_rank;
  tb_regions regions;      /* that REFs may point into */
  uint64_t refs, reaped;   /* accepted; of them, those that nothing will read again */
  uint64_t random;         /* of source ports */
  bool blocked;            /* the last tx_burst stopped for want of room */
  bool kick_due;           /* the kernel may have left frames in the device's ring */
  uint64_t shut_since;     /* it has taken nothing since, although it was asked; 0 = it takes */
  dpdk_frame stash[DPDK_RX_BURST]; /* received, not handed out yet */
  uint32_t stashed, stash_at;
  struct rte_mbuf *lease[DPDK_LEASES];
  tb_ip from[DPDK_LEASES]; /* a leased frame's source address */
  uint32_t leases;
  uint8_t *flat;           /* frames that came in pieces, made one: a ring with room for all leases and the stash */
  uint32_t flat_next;
  uint64_t idle_since;     /* wait.c: nothing came since; 0 = something just did */
  tb_guard guard;          /* of port and neighbours while the owner waits */
  tb_waker waker;
  int rx_fd;               /* of the receive interrupt, -1 = none */
  int group_fd;            /* listen.c: while it is open, the interface under the device hears our groups; -1 = none */
  bool filters_vlan;       /* the device was told of our VLAN */
  struct rte_flow *rule[DPDK_FLOWS_MAX]; /* flow.c: one for each of our UDP ports, or none at all */
  uint32_t rules;
  dpdk_counters n;
  tb_events events;
  unsigned counted;        /* stats.c: which counters its driver keeps */
  tb_icmp_pace pace;       /* of answers to ping */
  uint64_t link_look_at;
  bool told_damaged, told_rival, told_kept, told_narrow, told_tag, told_silent, link_up;
} dpdk_link;

static inline dpdk_link *dpdk_of(tb_link *link) { return (dpdk_link *)link; }
static inline const dpdk_link *dpdk_of_const(const tb_link *link) { return (const dpdk_link *)link; }
static inline void dpdk_add(atomic_uint_least64_t *counter, uint64_t n) { /* one writer: no locked instruction */
  atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n, memory_order_relaxed);
}

static inline uint64_t dpdk_now(void) { return tb_plugin_now(); }
#define dpdk_refuse tb_plugin_refuse
#define dpdk_event(link, ...) tb_plugin_event(&(link)->events, __VA_ARGS__)

/* address.c. What was asked for; then, once the port's MAC is known, the rest. */
int dpdk_address_choose(dpdk_link *l, const tb_link_cfg *cfg);
void dpdk_address_from_mac(dpdk_link *l, const tb_link_cfg *cfg);

/* listen.c. Best effort: what a device refuses is told. */
void dpdk_listen(dpdk_link *l);
void dpdk_listen_no_more(dpdk_link *l);

/* flow.c. The rule for one UDP port of ours, in one piece: rte_flow takes pointers into it. */
typedef struct {
  struct rte_flow_attr attr;
  struct rte_flow_item_vlan vlan, vlan_mask;
  struct rte_flow_item_ipv4 ip4, ip4_mask;
  struct rte_flow_item_ipv6 ip6, ip6_mask;
  struct rte_flow_item_udp udp, udp_mask;
  struct rte_flow_action_queue queue;
  struct rte_flow_item pattern[5];
  struct rte_flow_action action[2];
} dpdk_flow_rule;
void dpdk_flow_make(dpdk_flow_rule *out, const tb_net_self *self, uint16_t port, uint16_t queue);
void dpdk_flow_add(dpdk_link *l);    /* all of them, or none */
void dpdk_flow_remove(dpdk_link *l);

/* peer.c. An address is that of links/peer_addr.h, with our MAC. A udp rank sends to a dpdk rank and the other way round
 * unawares. */
int dpdk_local_addr(const tb_link *link, tb_addr *out);
int dpdk_peer_add(tb_link *link, uint32_t peer, const tb_addr *addr);
int dpdk_peer_set(tb_link *link, uint32_t peer, const tb_addr *addr);
int dpdk_peer_del(tb_link *link, uint32_t peer);
int dpdk_peer_state(const tb_link *link, uint32_t peer);
/* The peer's headers, up to date; NULL = its MAC is not known yet. */
const tb_net_template *dpdk_peer_head(dpdk_link *l, dpdk_peer *p);
void dpdk_peers_timers(dpdk_link *l, uint64_t now); /* sends the questions for MACs that are due */
/* For those who are not the owner. */
static inline void dpdk_guest_enter(dpdk_link *l) { tb_guard_visit(&l->guard); }
static inline void dpdk_guest_leave(dpdk_link *l) { tb_guard_leave(&l->guard); }

/* tx.c */
int dpdk_tx_burst(tb_link *link, uint32_t lane, const tb_tx *frames, int n);
void dpdk_tx_raw(dpdk_link *l, const uint8_t *frame, uint32_t len); /* ARP, ND, ICMP; best effort */

/* ref.c */
int dpdk_mem_reg(tb_link *link, const void *base, size_t len, uint32_t *region);
int dpdk_mem_unreg(tb_link *link, uint32_t region);
int dpdk_ref_check(const dpdk_link *l, const tb_tx *f); /* 0: may be sent */
bool dpdk_ref_gathers(const dpdk_link *l, const tb_tx *f); /* it goes without a copy */
/* Fewer than wanted: none. */
uint32_t dpdk_ref_tails(dpdk_link *l, struct rte_mbuf **tail, uint32_t want);
void dpdk_ref_attach(dpdk_link *l, struct rte_mbuf *m, struct rte_mbuf *tail, const tb_tx *f);
void dpdk_ref_look(dpdk_link *l); /* after a burst: the device kept none, or gets copies from now on */
uint64_t dpdk_tx_reap(tb_link *link, uint32_t lane);
int dpdk_tx_quiesce(tb_link *link, uint32_t lane, uint64_t until_ns);

/* rx.c */
int dpdk_rx_burst(tb_link *link, uint32_t lane, tb_rx *frames, int n);
void dpdk_rx_release(tb_link *link, uint32_t lane);
bool dpdk_came_from(const tb_link *link, const tb_rx *frame, uint32_t peer);
uint32_t dpdk_rx_fill(dpdk_link *l); /* one burst of the device into the empty stash; how many frames came, ours or not */
void dpdk_rx_drop_all(dpdk_link *l); /* leases and stash, at close */

/* wait.c */
uint64_t dpdk_wait_timer_ns(const dpdk_link *l); /* how much later than asked it may return */
int dpdk_wait(tb_link *link, uint32_t lane, uint64_t deadline_ns);
void dpdk_wake(tb_link *link, uint32_t lane);

/* stats.c */
unsigned dpdk_stats_counted(const dpdk_port *p);
int dpdk_stats(const tb_link *link, tb_link_stats *out);
int dpdk_events(tb_link *link, tb_link_event *out, int n);
bool dpdk_link_state(const dpdk_port *p);
void dpdk_link_look(dpdk_link *l, uint64_t now); /* says when the cable comes or goes */

#endif
