/* sim_internal.h - the simulator's own state. sim.c: life, time and log; sim_options.c: the option table;
 * sim_memory.c: frames and the event heap; sim_wire.c: what happens to a frame; sim_dice.h: random numbers;
 * sim_background.c: other traffic at the ports; sim_link.c and sim_tx.c: the link interface.
 *
 * Everything runs in the thread of the network's owner; only an endpoint's `woken` is touched by others. Nothing here
 * allocates per frame once the pools have grown: the heap always has room for every frame of the pool plus the five
 * events an endpoint can have pending, so scheduling cannot fail.
 */
#ifndef TB_SIM_INTERNAL_H
#define TB_SIM_INTERNAL_H
#include <stdatomic.h>
#include "links/sim.h"

#define TB_SIM_MAX 1024u
#define TB_SIM_NEVER UINT64_MAX
#define TB_SIM_SMALL 192u /* bytes of a small frame at most: control frames, shards of a few elements */

typedef struct tb_sim_frame {
  _Alignas(64) struct tb_sim_frame *next; /* what the queues touch lies in one line */
  uint8_t *data;
  const uint8_t *ref;     /* REF payload that has not been read yet; NULL = all bytes are in data */
  uint32_t region;        /* of the REF; meaningful while is_ref */
  union {
    uint64_t arrives;     /* while it is in its source's `wire` */
    uint64_t drains;      /* while it is in its destination's port */
  };
  uint32_t head_len, len; /* len: header and payload */
  uint16_t src, dst;
  bool is_ref;            /* completion is owed to the sender at departure */
  uint8_t damage;         /* 0, or fate 3 or 4: it arrives all the same */
  bool small;             /* which pool it came from */
  tb_sim_log line;        /* what is known of it; filled in when logging */
} tb_sim_frame;

typedef struct { tb_sim_frame *head, *tail; } tb_sim_fifo;

enum { TB_SIM_ARRIVE, TB_SIM_LAND, TB_SIM_DEPART, TB_SIM_DRAIN, TB_SIM_DONE, TB_SIM_RESUME };
#define TB_SIM_EVENTS 5u  /* that an endpoint can have pending: all but ARRIVE */

typedef struct {
  uint64_t time;
  uint64_t order;         /* push counter << 3 | kind: events of one moment happen in the order they were made */
  void *of;               /* ARRIVE: the frame; else the endpoint */
} tb_sim_event;

/* What a direction does to frames. One shared default; a direction has its own copy only once it was set apart. */
typedef struct {
  uint64_t rate, queue, delay, jitter, tail, reorder_by;
  double tail_p, loss, ge_p, ge_r, ge_loss, dup, corrupt, truncate, reorder;
  bool blackhole;
  bool random;            /* derived: at least one draw per frame is needed */
} tb_sim_params;

typedef struct {
  uint64_t frames;        /* frames drawn for: the position in this direction's random stream */
  uint32_t params;        /* index into own_params, 0 = the shared default */
  bool bad;               /* Gilbert-Elliott state */
} tb_sim_dir;

typedef struct { const uint8_t *base; size_t len; uint64_t outstanding; bool used; } tb_sim_region;
typedef struct { uint64_t time; uint32_t region; } tb_sim_done;

/* Background traffic towards one endpoint: bursts of mean length `on` at `rate`, mean `off` apart; rate 0 = none. */
typedef struct {
  uint64_t rate, on, off;
  uint64_t bursts;        /* drawn so far: the position in this port's random stream */
  uint64_t next, until;   /* time of the next frame; end of its burst */
  uint64_t spacing;       /* position in the stream of its frames' distances */
} tb_sim_source;

enum { TB_SIM_ROOM = 1, TB_SIM_COMPLETED = 2 };

/* An endpoint; also the handle that tb_link_sim gives out. */
struct tb_link {
  tb_sim *net;
  uint32_t id;
  bool open;
  tb_link_caps caps;
  uint32_t mtu;           /* agreed, at most caps.mtu */
  uint32_t *peers;        /* peer -> endpoint, UINT32_MAX = unknown */
  uint32_t peers_n;
  tb_sim_region *regions;
  uint32_t regions_n;

  tb_sim_fifo tx;         /* egress; the head is being serialised */
  uint32_t tx_waiting;
  bool refused;           /* tx_burst took fewer than it was given; room is news */
  uint8_t tx_news, tx_news_owner; /* ROOM, COMPLETED since wait, or the network's owner, was last told */
  uint64_t refs, refs_done, refs_told;
  tb_sim_done *done;      /* ring of completions under way (reap_delay) */
  uint32_t done_head, done_n, done_cap;

  tb_sim_fifo wire;       /* frames under way that overtook none: one event serves them all */
  tb_sim_fifo port;       /* the switch port towards this endpoint; the head is being serialised */
  uint64_t port_bytes;    /* of real frames */
  uint64_t port_free;     /* when all that the port has taken has left it */
  tb_sim_source background;
  tb_sim_fifo ring;       /* what rx_burst takes from */
  uint64_t ring_bytes;
  tb_sim_fifo leased;
  uint64_t paused_until;
  atomic_bool woken;
  bool stirred;           /* listed in the network's `stirred` */
  tb_link_stats stats;
};

struct tb_sim {
  uint32_t n;
  uint64_t now;
  /* global options */
  uint64_t seed, log_on, poison, mtu, tx_ring, rx_buffer, ref, reap_delay, csum;
  tb_sim_params defaults;
  tb_link *ends;
  uint32_t *stirred, stirred_n; /* endpoints whose owner has not looked since something came */
  uint32_t *dir_of;       /* src * n + dst -> index into dirs, 0 = nothing of its own */
  tb_sim_dir *dirs;
  uint32_t dirs_n, dirs_cap;
  tb_sim_params *own_params;
  uint32_t params_n, params_cap;

  tb_sim_event *heap;
  size_t heap_n, heap_cap;
  uint64_t pushed;
  tb_sim_frame *pool[2];  /* free frames, last used first: of full size; small, which most frames of many ranks are */
  void **slabs;
  size_t slabs_n, slabs_cap, frames_n[2], data_size[2];

  tb_sim_log *log;
  uint64_t log_n, log_cap;
  bool log_failed;
};

/* sim_memory.c */
int tb_sim_heap_reserve(tb_sim *net, size_t events);
void tb_sim_push(tb_sim *net, uint64_t time, int kind, void *of);
void tb_sim_pop(tb_sim *net, tb_sim_event *out);
void tb_sim_cancel(tb_sim *net, int kind, const void *of);
tb_sim_frame *tb_sim_frame_get(tb_sim *net, uint32_t len); /* for so many bytes; NULL = no memory */
void tb_sim_frame_put(tb_sim *net, tb_sim_frame *f);
void tb_sim_fifo_put(tb_sim_fifo *q, tb_sim_frame *f);
tb_sim_frame *tb_sim_fifo_get(tb_sim_fifo *q);
void tb_sim_fifo_free(tb_sim *net, tb_sim_fifo *q);

/* sim_options.c */
tb_sim_dir *tb_sim_dir_own(tb_sim *net, uint32_t src, uint32_t dst); /* makes it; NULL = no memory */
const tb_sim_params *tb_sim_params_of(const tb_sim *net, uint32_t src, uint32_t dst);
int tb_sim_options_new(tb_sim *net, const char *options, char *error, size_t error_len);

/* sim_wire.c */
void tb_sim_event_do(tb_sim *net, const tb_sim_event *ev);
void tb_sim_egress_start(tb_link *e); /* the head of e->tx begins to leave */
uint64_t tb_sim_serialise_ns(uint64_t rate, uint64_t bytes);

/* sim_background.c */
void tb_sim_background_start(tb_link *e); /* from now on, with the parameters it has */
void tb_sim_background_until_now(tb_link *e, const tb_sim_params *p); /* lets in what came since the last look */
uint64_t tb_sim_backlog(const tb_link *e, uint64_t rate, uint64_t at); /* bytes at the port at that time */

/* sim_link.c, sim_tx.c */
int tb_sim_peer_state(const tb_link *e, uint32_t peer);
int tb_sim_tx_burst(tb_link *e, uint32_t lane, const tb_tx *frames, int n);
uint64_t tb_sim_tx_reap(tb_link *e, uint32_t lane);
int tb_sim_tx_quiesce(tb_link *e, uint32_t lane, uint64_t until_ns);
int tb_sim_tx_abort(tb_link *e, uint32_t lane, uint64_t *took_ns);
uint64_t tb_sim_discard(tb_link *e, bool all); /* ends every REF; all: copies too. How many frames had not departed */
void tb_sim_heard(tb_link *e, int news);

/* sim.c */
void tb_sim_log_line(tb_sim *net, const tb_sim_frame *f, int fate, uint64_t arrived_ns);
void tb_sim_stir(tb_link *e);
void tb_sim_drop(tb_sim *net, tb_sim_frame *f, int fate); /* a log line, and the frame is free */

#endif
