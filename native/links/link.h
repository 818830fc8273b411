/* link.h - the one interface between the engine and whatever moves frames.
 *
 * A link carries frames (header + payload, at most caps.mtu bytes together) between peers and may lose, repeat, reorder
 * or delay them. It knows nothing of rounds, keys or deadlines. docs/links.md says why the interface has this shape.
 *
 *  1. A lane belongs to one thread, the progress thread; wake() may be called from any. While that thread is inside
 *     wait(), and only then, another may call peer_*, set_mtu, mem_*, stats, events and, at close, tx_reap and
 *     tx_abort (the engine's lock sees to it).
 *  2. tx_burst takes the first k <= n frames; frames from k on stay the caller's. Header memory is free on return.
 *  3. A payload is COPY (its memory is free on return) or REF, inside one registered region. Accepted REFs of a lane
 *     count 0, 1, 2, ...
 *  4. tx_reap returns how many REFs, counted from the start, will never be read again by anything. Success, flush
 *     and discard all count.
 *  5. caps.ref says when that happens: NONE (copy everything), SYNC (before tx_burst returns), PROMPT (soon, without
 *     further traffic).
 *  6. Frames from rx_burst are leases, valid until rx_release, which ends one progress pass.
 *  7. Counters a device cannot give are TB_NONE, never 0.
 */
#ifndef TB_LINK_H
#define TB_LINK_H
#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>

#define TB_NONE UINT64_MAX
#define TB_ADDR_MAX 120

typedef struct tb_link tb_link;

/* A link address as it travels through the rendezvous: opaque to everybody else. */
typedef struct { uint8_t len; uint8_t bytes[TB_ADDR_MAX]; } tb_addr;

typedef enum { TB_REF_NONE, TB_REF_SYNC, TB_REF_PROMPT } tb_ref_kind;

typedef struct {
  uint32_t mtu;          /* largest frame, header and payload together, bytes */
  uint32_t lanes;
  tb_ref_kind ref;
  bool csum;             /* the link itself detects damaged payloads */
  uint64_t quiesce_ns;   /* how long before a deadline REFs to user memory must stop */
  /* bytes that may wait for us before the device drops, as read back from it: all peers' shares */
  uint64_t rx_buffer;
  /* so many buffers they lie in; a peer (p - self - 1) mod N uses the one of that number mod rx_parts */
  uint32_t rx_parts;
  uint32_t rx_overhead;  /* bytes of rx_buffer a frame costs beyond its own length */
  uint64_t timer_ns;     /* wake-ups are not finer than this; 0 = exact (virtual time) */
  uint32_t burst;        /* frames worth handing over at once */
  /* of them, to one peer in a row: where segments share a cost, many; else 1, or they meet in its queue */
  uint32_t train;
} tb_link_caps;

typedef struct {
  uint32_t peer;
  uint32_t head_len;
  const void *head;
  uint32_t pay_len;
  bool ref;              /* payload: false = COPY, true = REF */
  uint32_t region;       /* REF only */
  const void *pay;       /* COPY and REF alike: where it lies (for REF inside the region) */
} tb_tx;

typedef struct { const uint8_t *data; uint32_t len; uint32_t slot; } tb_rx; /* slot: the link's own, for came_from */

enum { TB_WAIT_RX = 1, TB_WAIT_TX = 2, TB_WAIT_WAKE = 4, TB_WAIT_EVENT = 8, TB_WAIT_TIMEOUT = 16 };

typedef struct {
  uint64_t tx_frames, tx_bytes, rx_frames, rx_bytes;
  uint64_t tx_calls, rx_calls;    /* system calls or doorbells */
  uint64_t tx_copied;             /* payload bytes the link copied in user space */
  uint64_t rx_overflow;           /* dropped by the device for want of buffer space */
  uint64_t rx_truncated, tx_dropped;
  uint64_t rx_foreign;            /* not for this link: other protocols, addresses, ports */
  uint64_t rx_nobuf, tx_errors;   /* the device had no memory for it; could not send it */
} tb_link_stats;

/* Things the engine should say once: a degradation, an address change, a link that went down. */
typedef struct { int level; char text[240]; } tb_link_event;

typedef struct {
  const char *interface; /* NCCL grammar, an IP or a CIDR; NULL or "" = route to the rendezvous */
  const char *route_to;  /* address of the rendezvous, helps to choose the interface; may be NULL */
  const char *advertise; /* address to tell the peers instead of the bound one (NAT); may be NULL */
  uint16_t port_lo, port_hi; /* 0 = any */
  uint32_t mtu;          /* upper limit on a frame; 0 = the interface's, capped */
  uint32_t flows;        /* sockets or queues per peer */
  uint64_t buffer;       /* wanted receive and send buffer, bytes */
  uint32_t peers, self;  /* peers that will be added at most, this one counted; its own number */
  bool no_offload;       /* do not use segmentation offloads */
  /* Links with a device of their own, or an RDMA one: which one, their address on it ("10.0.0.5/24", "fd00::5/64") and the
   * way out of that network; NULL or "" = choose. Whether the progress thread may keep a core busy; where the device's
   * memory comes from; the VLAN they are on, 0 = none. */
  const char *device, *ip, *gateway, *eal_args;
  bool busy;
  /* Memory of at least so many bytes is sent from where it lies, if the link can register it; 0 = the link's own limit. */
  uint64_t ref_from;
  enum { TB_HUGE_AUTO, TB_HUGE_ON, TB_HUGE_OFF } hugepages;
  uint32_t vlan;
  /* How long open may take where it depends on another rank; 0 = the link's own limit. Asked meanwhile: non-zero = it
   * shall give up, with -EINTR. NULL = it never has to. */
  uint64_t wait_ns;
  int (*cancelled)(void *of);
  void *cancel_of;
  void *context;         /* sim: the network and the endpoint's number */
  char *error;           /* receives the sentence with the remedy when open fails */
  size_t error_len;
} tb_link_cfg;

typedef struct {
  const char *name;
  int (*open)(const tb_link_cfg *cfg, tb_link **out);
  void (*close)(tb_link *link);
  const tb_link_caps *(*caps)(const tb_link *link);
  int (*local_addr)(const tb_link *link, tb_addr *out);
  bool (*is_loopback)(const tb_link *link);                     /* only this host can reach local_addr; NULL = never */
  int (*describe)(const tb_link *link, char *out, size_t n);    /* one line for people: interface, buffers, offloads */

  int (*mem_reg)(tb_link *link, const void *base, size_t len, uint32_t *region);
  int (*mem_unreg)(tb_link *link, uint32_t region);             /* -EBUSY while a REF into it is outstanding */

  int (*peer_add)(tb_link *link, uint32_t peer, const tb_addr *addr); /* never blocks */
  int (*peer_set)(tb_link *link, uint32_t peer, const tb_addr *addr);
  int (*peer_del)(tb_link *link, uint32_t peer);
  int (*peer_state)(const tb_link *link, uint32_t peer);        /* 0 usable, -EINPROGRESS, -errno */
  int (*set_mtu)(tb_link *link, uint32_t mtu);                  /* the agreed one, at most caps.mtu */

  int (*tx_burst)(tb_link *link, uint32_t lane, const tb_tx *frames, int n);
  uint64_t (*tx_reap)(tb_link *link, uint32_t lane);
  int (*tx_quiesce)(tb_link *link, uint32_t lane, uint64_t until_ns); /* 0 all reaped, -ETIMEDOUT */
  int (*tx_abort)(tb_link *link, uint32_t lane, uint64_t *took_ns);   /* after it nothing is read again */
  int (*rx_burst)(tb_link *link, uint32_t lane, tb_rx *frames, int n);
  void (*rx_release)(tb_link *link, uint32_t lane);
  /* Of a leased frame: was its sender's address, whatever its port, the one that was given for peer? NULL = cannot
   * tell. */
  bool (*came_from)(const tb_link *link, const tb_rx *frame, uint32_t peer);

  int (*wait)(tb_link *link, uint32_t lane, uint64_t deadline_ns); /* arms, polls again, sleeps; TB_WAIT_* bits */
  void (*wake)(tb_link *link, uint32_t lane);
  int (*stats)(const tb_link *link, tb_link_stats *out);
  int (*events)(tb_link *link, tb_link_event *out, int n);
} tb_link_ops;

extern const tb_link_ops tb_link_udp;
extern const tb_link_ops tb_link_sim;

#endif
