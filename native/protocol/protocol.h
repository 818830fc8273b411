/* protocol.h - the all-reduce by a deadline, without I/O and without a clock. (event, now) in; frames and a next time
 * out. The engine drives it from one thread; nothing here locks, sleeps or reads a clock. docs/protocol.md has the
 * states, the timers and the invariants.
 */
#ifndef TB_PROTOCOL_H
#define TB_PROTOCOL_H
#include "protocol/counters.h"
#include "protocol/geometry.h"
#include "protocol/transform.h"
#include "protocol/tunables.h"
#include "protocol/wire.h"
#include "tailbound.h"

typedef struct tb_core tb_core;
typedef struct tb_op tb_op;

/* What the caller of an operation will look at. Belongs to the caller; the core fills it in and calls done(). */
typedef struct tb_outcome {
  uint32_t region;       /* the caller's: where the link registered the input; copied into tb_out */
  uint64_t issued_ns;
  tb_result result;      /* elapsed_ns is the core's view; done() may put in what the clock says by then */
  tb_geometry geometry;
  tb_team *team;         /* its own, of the geometry */
  uint32_t rank;
  double *per_peer[2];   /* [stage-1][n] */
  uint64_t *mask;        /* chunk bitmaps, one per owner, at mask_at[owner] words */
  uint32_t *mask_at;     /* n + 1 entries */
  char error[TB_TEXT_MAX + 1];
  tb_transform *transform; /* NULL: none */
  uint8_t *prepared;     /* the core's, between tb_core_prepare and the issue */
  size_t prepared_bytes;
} tb_outcome;
int tb_outcome_init(tb_outcome *o, const tb_geometry *g, uint32_t rank);
void tb_outcome_free(tb_outcome *o);
void tb_outcome_mask(const tb_outcome *o, uint8_t *out);

typedef struct {
  uint16_t rank, n;
  uint32_t job, view;
  uint32_t chunk_bytes;       /* payload of a full chunk */
  /* frames each peer may have under way towards this rank at most: its share of the buffer */
  uint32_t window;
  uint32_t buffers;           /* so many that they lie in: peer p's in ((p - rank - 1) mod n) mod buffers; 0 = one */
  uint32_t train;             /* frames to one peer in a row, where nothing else is asked for; 0 = many */
  bool seal_payload;          /* the link does not detect damaged payloads */
  bool async_refs;            /* REFs are reaped later (caps.ref == PROMPT) */
  uint64_t quiesce_ns, timer_ns;
  tb_tunables tune;
  void *ctx;
  void (*done)(void *ctx, tb_outcome *o);                 /* an operation's result is final */
  void (*log)(void *ctx, int level, const char *text);
} tb_core_cfg;

/* One frame to send. user: the payload lies in the caller's memory (else in the library's); ref: and may be referred to
 * (else the link must copy it: too near the deadline for it to let go in time). */
typedef struct {
  uint16_t peer;
  bool user, ref;
  uint32_t head_len, pay_len;
  const uint8_t *head;
  const uint8_t *pay;
  uint32_t region;  /* of the operation's outcome, when user */
  tb_op *op;        /* of a data frame, else NULL */
  uint32_t chunk;
  uint8_t stage;    /* of a data frame */
} tb_out;

int tb_core_new(const tb_core_cfg *cfg, tb_core **out);
void tb_core_free(tb_core *c);

/* The transform of an input takes milliseconds that others should not wait for. Before the issue: prepare gives 1 if
 * tb_core_transform is to be called, which touches nothing of the core. Without an issue tb_core_unprepare must
 * follow. */
int tb_core_prepare(tb_core *c, const tb_call *call, tb_outcome *o);
void tb_core_transform(const tb_call *call, tb_outcome *o);
void tb_core_unprepare(tb_core *c, tb_outcome *o);

/* done() may give an outcome whose output is still to be made from coefficients: then tb_core_invert makes it, in any
 * thread and without the lock, and tb_core_inverted, with it, gives its memory back. */
bool tb_core_unfinished(const tb_outcome *o);
void tb_core_invert(tb_outcome *o);
void tb_core_inverted(tb_core *c, tb_outcome *o);

/* Starts an operation whose clock runs since `issued`, not after now. The outcome must stay until done() was called for
 * it. */
int tb_core_issue(tb_core *c, const tb_call *call, uint64_t issued, uint64_t now, tb_outcome *o);
void tb_core_cancel(tb_core *c, tb_outcome *o, int status, const char *why, uint64_t now);
/* The round that the next call of a key would take, and setting it: on all ranks to the same, not below any of them. */
int tb_core_next_round(tb_core *c, const char *key, uint32_t len, uint32_t *round);
int tb_core_resync(tb_core *c, const char *key, uint32_t len, uint32_t round, uint64_t now);
/* A rank that was voted out asks to be let in; done() when it is. -EBUSY: it waits already. */
int tb_core_rejoin(tb_core *c, uint64_t now, tb_outcome *o);
uint32_t tb_core_members(const tb_core *c, uint8_t *member); /* the view's number; NULL, or [n]: 1 = a member */
int tb_core_forget(tb_core *c, const char *key, uint32_t len);
/* Rule 15, in this order, on every rank (flush.c has the protocol). -ENOENT: the key was never used here. */
/* what the key is like */
int tb_core_flush_like(tb_core *c, const char *key, uint32_t len, tb_signature *sig);
/* the largest next round */
int tb_core_flush_begin(tb_core *c, const char *key, uint32_t len, uint32_t round, uint64_t now);
/* done() when nothing of it is open */
int tb_core_settle(tb_core *c, const char *key, uint32_t len, uint64_t now, tb_outcome *o);
/* the residual; zero elsewhere */
int tb_core_flush_take(tb_core *c, const char *key, uint32_t len, void *out, uint64_t bytes);
/* adds what came late; both are empty then */
int tb_core_flush_end(tb_core *c, const char *key, uint32_t len, void *out, uint64_t bytes);
uint64_t tb_core_min_deadline(const tb_core *c, const tb_call *call);

/* What a link can tell of a frame's sender: nothing; that its address is the one given for the rank that the header
 * names as its source; or that it is another one. */
typedef enum { TB_FROM_UNKNOWN, TB_FROM_SOURCE, TB_FROM_OTHER } tb_from;

/* False: data of a round of which no OPEN was heard yet (flows reorder). Whoever can keeps the frame and gives it to
 * tb_core_rx_again after others have arrived (false again: still not), or says that it was given up. */
bool tb_core_rx(tb_core *c, const uint8_t *frame, uint32_t len, tb_from from, uint64_t now);
bool tb_core_rx_again(tb_core *c, const uint8_t *frame, uint32_t len, uint64_t now);
void tb_core_give_up_early(tb_core *c, const uint8_t *frame, uint32_t len);
void tb_core_timers(tb_core *c, uint64_t now);
/* Frames to send, oldest first; valid until tb_core_sent says how many of them the link took, and how many REFs the
 * lane had accepted before (UINT64_MAX: they were dropped on purpose and hold no REF). */
int tb_core_out(tb_core *c, uint64_t now, const tb_out **frames);
void tb_core_sent(tb_core *c, int taken, uint64_t refs_before, uint64_t now);
void tb_core_reaped(tb_core *c, uint64_t refs_done, uint64_t now);
uint64_t tb_core_next(const tb_core *c);    /* when timers() is wanted next; UINT64_MAX = never */
bool tb_core_wants_tx(const tb_core *c);
/* since when a finished operation waits for its REFs; UINT64_MAX = none */
uint64_t tb_core_refs_overdue(const tb_core *c);

void tb_core_ping(tb_core *c, uint16_t peer, uint32_t pad_to); /* pad_to: frame bytes, for an MTU probe */
/* a pong came for a ping of that size or more */
bool tb_core_ponged(const tb_core *c, uint16_t peer, uint32_t at_least);
void tb_core_trip(tb_core *c, uint16_t peer, uint64_t ns); /* a round trip that was found otherwise than by frames */
void tb_core_set_credit(tb_core *c, uint16_t peer, uint32_t share); /* the peer's buffer share for us, in frames */
void tb_core_set_chunk(tb_core *c, uint32_t chunk_bytes, uint32_t window); /* before the first operation */
/* Before the first operation: the group of each rank. -EINVAL: they are not of one size. With one group, or nobody in
 * company, there is no hierarchy. */
int tb_core_set_groups(tb_core *c, const uint16_t *group_of);
uint32_t tb_core_groups(const tb_core *c); /* how many; 1 = no hierarchy */
void tb_core_goodbye(tb_core *c);
void tb_core_closing(tb_core *c, uint64_t now); /* no round comes after those in flight: nothing is wanted for one */
bool tb_core_idle(const tb_core *c);        /* nothing left that a peer may still ask for */

/* What committing and keeping `bytes` at the end of an operation took: deadlines are met in spite of it. */
void tb_core_note_commit(tb_core *c, uint64_t bytes, bool transformed, uint64_t ns);
void tb_core_note_overflow(tb_core *c, uint64_t total); /* the link's rx_overflow, for the cause in warnings */
const tb_comm_counters *tb_core_counters(const tb_core *c);
const tb_peer_counters *tb_core_peer_counters(const tb_core *c, uint16_t peer);
typedef struct {
  uint64_t srtt_ns, rttvar_ns, last_heard_ns, offset_median_ns, offset_p99_ns, missed_of_100;
  bool absent, gone;
} tb_peer_view;
void tb_core_peer_view(const tb_core *c, uint16_t peer, tb_peer_view *out);

#endif
