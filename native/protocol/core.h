/* core.h - the protocol's private structures. See docs/protocol.md for the state machine they hold.
 *
 * An operation here is one round of one key. It exists from the first OPEN heard or from the own issue (rule 6), takes
 * part in up to two flows per peer and stage, and is retired when every peer has what it may still ask for (rule 5).
 */
#ifndef TB_CORE_H
#define TB_CORE_H
#include <string.h>
#include "protocol/bits.h"
#include "protocol/clocks.h"
#include "protocol/hierarchy.h"
#include "protocol/pool.h"
#include "protocol/protocol.h"
#include "protocol/store.h"
#include "protocol/team.h"
#include "protocol/view.h"

enum { TB_OUT_MAX = 128, TB_DATA_MAX = 96, TB_CTL_MAX = 64, TB_SECTIONS = 40, TB_HISTORY = 32, TB_HISTORIES = 256,
       TB_CALIBRATE = 64 };
#define TB_X_FIRST 0.10 /* share of a stage's usual time that may pass without progress, at first */

/* What this rank sends one peer in one stage. */
typedef struct {
  uint32_t total, acked;    /* chunks; receipted, or no longer wanted */
  uint32_t confirmed;       /* chunks the peer said it has */
  uint32_t next;            /* stage 1: next chunk never sent; stage 2: next place in op->decided_order */
  uint32_t resend_n, resend_from; /* how many; below that none */
  uint64_t *ack, *resend;
  uint32_t *last_step;      /* per chunk: step of its last transmission */
  uint64_t *ref;            /* per chunk: newest REF to it, counted from 1 (stage 1 with async_refs only) */
  uint64_t mark_at;         /* when the last-chunk mark is due again; UINT64_MAX = not waiting */
  uint32_t marks;           /* said in a row: the interval doubles up to rto_max */
} tb_flow_tx;

/* What one peer sends this rank in one stage. */
typedef struct {
  uint32_t total, got;
  uint32_t late, drained;   /* arrived after the close; of these, so soon that they were under way */
  uint32_t delayed;         /* of `got`: delivered late, and not so soon */
  uint32_t sent_known;      /* as told by the peer's mark */
  bool marked, peer_final;  /* a mark was heard; the peer has nothing more unless asked */
  bool tail;                /* a chunk of its last percent came */
  uint64_t *bits;
  uint64_t done_at;         /* when the last chunk came */
} tb_flow_rx;

typedef struct { uint32_t n; uint64_t *known, *applied; } tb_fate_map; /* own chunks towards a peer (carry.c) */

typedef struct {
  tb_flow_tx tx[2];
  tb_flow_rx rx[2];
  tb_fate_map fate;
  uint64_t announced;       /* the peer's deadline in own time, earliest estimate; 0 = not known */
  uint64_t open_at;         /* when OPEN is due (again); UINT64_MAX = heard */
  uint64_t opened_at;       /* when the peer's OPEN was first heard; 0 = not */
  uint64_t error_at;        /* when ERROR is due (again); UINT64_MAX = not wanted */
  bool opened, passed, nothing, sampled;
  bool knows;               /* the peer knows what was counted here of its stage 1 */
  uint64_t tell_at;         /* when it is told (again); 0 = not decided yet */
  uint32_t tells, tell_from;
  bool left;                /* it was voted out since, or was out: nothing of it counts any more */
  bool settled;             /* and what it had counted is known, as well as it can be */
  uint32_t heir_from;       /* it has said which chunks before this one it has of an owner that left ... */
  uint64_t heir_at;         /* ... and is asked for more then (heirs.c) */
  uint32_t heir_asks;       /* in a row, without an answer: the interval doubles up to rto_max */
  bool apart;               /* it runs this round in the other mode of hadamard=auto: nothing will come */
  uint64_t heard_due;       /* when "I heard your OPEN" must be said; UINT64_MAX = said */
} tb_op_peer;

typedef enum { TB_OP_EARLY, TB_OP_ISSUED, TB_OP_FINISHING, TB_OP_RETURNED } tb_op_state;

typedef struct tb_key tb_key;

/* What ranks tell each other in OPEN about earlier rounds, ns; 0 = nothing yet. */
typedef enum { TB_WANT, TB_STAGE1, TB_STAGE2, TB_TOLD } tb_told;

typedef struct {
  uint64_t offsets[TB_HISTORY];    /* ns from the own issue until all of its data had come */
  uint32_t offsets_n;              /* samples ever */
  /* of what it owes that was counted here; own entry: of the own data, by all owners */
  double share;
  double told_share, told_before;  /* what it says of its own data, now and when the last round ended */
  uint64_t told[TB_TOLD];          /* as it says; own entry: what this rank says */
} tb_history_peer;

/* Earlier rounds of one kind of operation: of a named key, or, under the anonymous key, of one signature. */
typedef struct tb_history {
  struct tb_history *next;
  uint32_t sig_hash, rounds;       /* issued here under deadline=auto */
  bool told;                       /* the chosen deadline was logged */
  double stretch;                  /* of the automatic deadline, for peers below min_share */
  uint64_t warned_at;              /* of such a peer */
  double x;                        /* early timeout: share of a stage's usual time without progress */
  /* deadline_policy=optireduce: rounds measured, their stages' times, and the bounds */
  uint32_t calibrated;
  uint64_t took[2][TB_CALIBRATE], bound[2];
  tb_history_peer peer[];          /* [n] */
} tb_history;

/* hadamard=auto, per key (auto_transform.c): the newest switch, and what was measured here and elsewhere. */
typedef struct tb_auto {
  tb_switch now;
  uint32_t rounds;
  double loss, gain;
  struct { bool told; uint32_t round; double loss, gain; } peer[]; /* [n] */
} tb_auto;

struct tb_op {
  tb_op *hash_next, *next, *prev;  /* bucket; list in order of deadline */
  tb_op *key_next, *key_prev;      /* list of its key's, in order of round */
  tb_key *key;
  uint32_t round;
  uint32_t view;                   /* it was made in */
  tb_op_state state;
  tb_signature sig;
  uint32_t sig_hash;               /* of the signature and, under hadamard=auto, the mode of this round */
  bool transformed;                /* this round travels transformed */
  tb_geometry geo;
  const tb_hierarchy *tree;        /* NULL: everybody talks to everybody */
  bool strange;                    /* its signature names groups that this rank does not have: it is only told so */
  uint32_t peers;                  /* ranks with which it has flows, or would have */
  bool lossy;                      /* this round is not exact (the class, and past the exact first rounds) */
  uint64_t born, issued, deadline; /* absolute; deadline UINT64_MAX = exact */
  uint64_t returned;               /* absolute; 0 = not. EARLY: failed */
  uint64_t error_bound;            /* absolute; exact calls only */
  uint64_t due;                    /* when timers must look at it */
  uint32_t turn;                   /* whose turn it is among the peers served side by side */
  bool hot;                        /* something may be sendable, to the peers in `ready` */
  bool again;                      /* contributions among it that were asked for again */
  /* per stage, bits by place in the sending order: may get data; waits for credit or pace */
  uint64_t *ready[2], *parked[2];
  tb_clocks clock;                 /* per peer: when the first of its clocks here is due, or earlier */
  const uint8_t *in;               /* caller's memory until returned, then a library copy */
  uint8_t *out;                    /* caller's memory, or `work`; NULL once returned */
  bool in_is_user;
  const uint8_t *user_in;          /* the caller's input until done */
  uint8_t *work, *user_out;        /* with a transform: where it lies, and the caller's output (transform.c) */
  uint64_t ahead;                  /* with a transform: `deadline` is so much earlier than the caller's */
  uint8_t *save;                   /* in place: what was overwritten (or, where `held`, what is to be written) */
  /* chunk bits like outcome->mask: the aggregate waits in library memory for the commit */
  uint64_t *held;
  /* in place: it will be committed whatever comes, nothing is saved any more (gather.c) */
  bool settled;
  uint32_t opened_n;               /* peers that have opened it */
  uint64_t last_ref;               /* newest REF into the caller's memory, counted from 1 */

  bool orphan;                     /* its key was forgotten since: nothing of it goes into another round */
  bool ghost;                      /* EARLY and skipped here: received all the same, for the next output (flush.c) */
  bool fill;                       /* the own input stands where nothing came ... */
  tb_store filled;                 /* ... and that is what stood there, until something comes (late.c) */
  tb_store mixed;                  /* contributions with what earlier rounds had left added (carry.c) */
  bool carries;                    /* what is not counted in this round goes into the next */
  double carried;                  /* ... their share of the tensor */

  uint32_t chunks;                 /* of the own shard; with groups of the own column */
  /* With groups (relay.c), per chunk of the column: contributions and partial sums that came; "yours is in it", as the
   * owner told of this group's partial sum. Per group: the order in which partial sums for its owner closed, and how
   * many have. */
  uint16_t *arrived;
  uint64_t *relayed;
  uint32_t *partial_order, *partials;
  uint32_t relays_open;            /* chunks of the column's other owners that still take contributions */
  uint8_t *acc, *decided;          /* accumulator; decided payloads, in a row (the same memory where the types agree) */
  uint16_t *count;                 /* per chunk: ranks summed, or waiting to be, then the decided count */
  uint8_t *in_wait;                /* in the order of ranks: what came before its turn; NULL: in any order (order.c) */
  uint16_t *upto;                  /* ... per chunk: so many members of the team have been added */
  uint64_t *own_in, *closed;       /* per chunk */
  uint32_t *decided_order, decided_n, closed_n;
  bool swept;                      /* stage 1 is closed for good */
  bool repaired;                   /* something of it was asked for again, here or by a peer */
  bool recheck;                    /* who is waited for has changed: chunks may be complete without a frame */
  uint64_t swept_at;
  /* deadlines announced by peers that are not away, ascending: stage 1 closes by them */
  uint64_t *told;
  uint32_t told_n, untold;         /* how many; and how many are still to come */
  bool told_stale;                 /* to be collected again */
  uint32_t passed_n;               /* peers that have passed this round */
  uint32_t waits_for;              /* the peer that the last look found missing: the next one begins with it */
  uint64_t silence_at;             /* exact: when to look next who is silent */
  uint64_t waits_told_at;          /* exact: when to say (again) that it waits for a peer's issue */
  uint64_t received_sum;           /* elements x foreign contributions that reached this rank's output */
  uint64_t received_elems;
  uint64_t others_sum;             /* elements x (ranks in them - 1): the same on all ranks that have all */

  tb_history *history;             /* NULL: none kept (early, or too many signatures) */
  tb_outcome *outcome;             /* until done */
  double min_received, min_stage[2];
  bool halt;
  uint64_t thread;
  int status;
  uint32_t behind;
  bool hit, by_passing;            /* ended by the deadline; because those who were missing have passed the round */
  bool own_missed;                 /* some decided value lacks this rank's own part */
  uint64_t own_elems;              /* received elements that have it */
  bool automatic;                  /* under deadline=auto */
  bool early, cut_short;           /* the early timeout may end a stage of it; it has */
  uint64_t moved[2];               /* per stage: when a chunk last came */
  uint64_t usual[2];               /* per stage: the time it usually takes, as known at the issue; 0 = not */
  uint16_t tail_of;                /* a peer that the early timeout found not through yet: it is looked at first */
  /* what each stage may take at most, where a policy fixed that; 0 = rule 2 alone decides */
  uint64_t bound[2];
  uint16_t opener;                 /* whose OPEN created it, for the text of a mismatch */
  tb_signature called;             /* what our OPEN says: how it was called here, though another's may have created it */
  uint32_t called_hash;
  uint32_t closed_through;         /* as told in its OPEN */
  bool has_closed;
  char error[TB_TEXT_MAX + 1];
  size_t bytes;                    /* library memory, against memory_cap */
  tb_op_peer *peer;
  void *arena;
};

struct tb_key {
  tb_key *hash_next;
  uint32_t hash;
  uint8_t len;
  char name[TB_KEY_MAX + 1];
  bool bound;                      /* named keys: to this signature */
  tb_signature sig;
  uint32_t next_round;             /* the next own one */
  uint32_t first_round;            /* of the view, or of a key that began in it */
  uint64_t used;                   /* newest operation of it, own or heard */
  bool own, forgotten;             /* issued here, not only heard of; forget() was called since */
  uint32_t skips;
  bool unsure;                     /* an agreed round failed here: other ranks may have returned it */
  uint32_t sure_in;                /* the view in which resync() was called last */
  int failed;                      /* an error learnt after returning, raised at the next call */
  char failed_text[TB_TEXT_MAX + 1];
  tb_history *history;
  tb_auto *transform;              /* NULL: no operation under hadamard=auto yet */
  tb_op *ops, *ops_last;           /* by round */
  tb_store residual;               /* contributions that were not counted (carry.c) */
  /* final receipts through lost_round were given up here before their senders knew them */
  bool fates_lost;
  uint32_t lost_round;
  tb_store late;                   /* decided chunks that missed their round (late.c) */
  struct { uint32_t open, closed; bool has_open, has_closed; } *peer; /* [n] */
};

/* got: should the operation be gone by then */
typedef struct { uint32_t key, round, got; uint8_t stage, flags; } tb_pending_section;

/* What all peers were promised and has not come, frames; shares that idle peers have given back (grant.c). */
typedef struct { uint64_t promised; uint32_t returned; } tb_grants; /* of one buffer */
typedef enum { TB_IDLE_NOT, TB_IDLE_TOLD, TB_IDLE_RETURNED } tb_idle;

typedef struct {
  uint64_t last_heard, last_sent, silent_mark;
  uint32_t silent_rounds;
  bool at_home;                    /* frames of its have come from its own address: from no other are they believed */
  bool absent, gone, down;         /* down: an exact call failed for its silence, and it was not heard since */
  /* gone, as it is no member of this rank's view, or this rank is in none (members.c) */
  bool out;
  uint64_t answered_at;            /* when it was last told which view this is */
  /* round trip (RFC 6298) */
  uint32_t echo_stamp;
  uint64_t echo_at;                /* 0 = none */
  uint64_t srtt, rttvar, rtt_min;
  /* sending */
  uint32_t step, credit;           /* data frames sent; absolute grant heard */
  uint32_t credit_stamp;           /* the peer's clock when it was made; a grant may also be taken back ... */
  uint64_t credit_at;              /* ... and own clock when it was heard */
  /* the largest room its grants have shown; what it lets this rank have under way now ... */
  uint32_t widest, peer_window;
  uint32_t asked_stamp, asked_from; /* ... when it had seen the data frame of this stamp, of this step or a later one */
  uint8_t incast;                  /* what it wants (rate.c) */
  bool asking, narrow;             /* such a one is under way; the window is much smaller than the widest */
  uint32_t ahead;                  /* frames of rounds that it has not opened, less what it has granted since */
  uint64_t stalled_at, ask_grant_at; /* out of credit since; 0 = not. When to ask whether a grant was lost */
  bool parked;                     /* some operation has data for it that waits for credit or pace ... */
  uint64_t resume_at;              /* ... and may go on then; UINT64_MAX = only credit helps */
  uint64_t pace_at, repair_at;     /* token clocks: the next frame may leave at */
  uint64_t probed_at;              /* the newest probe of a silent or absent peer */
  /* receiving */
  uint32_t seen, granted;          /* highest step + 1; last grant told */
  uint32_t promised;               /* frames of it that may still come, as counted in the pool (grant.c) */
  tb_idle idle;                    /* its share went unused ... */
  uint64_t idle_at;                /* ... and can be another's from then on */
  uint32_t window, epoch_seen;     /* granted beyond `seen`; seen when the present round trip began, at epoch_at */
  uint64_t epoch_at;
  uint32_t rate_epoch;             /* the last in which it sent (rate.c) ... */
  uint64_t data_at;                /* ... and when data of it last came */
  uint32_t epoch_step;             /* data_seen at its first frame of that epoch: what lacks below was missed before */
  uint32_t data_seen;              /* highest step of a data frame + 1: control frames tell of gaps, but are no data */
  /* measured: how much later than a gap its frames still come; when it was last noticed */
  uint64_t reorder, gap_at;
  uint64_t suspect_at;             /* frames below suspect_step may be lost, first noticed at; 0 = none */
  uint32_t suspect_step, missing;  /* frames in the gaps: when all have come after all, nothing is suspected */
  bool again;                      /* another gap was seen meanwhile, below again_step */
  uint32_t again_step, ask_step;
  uint64_t again_at;
  uint64_t asked_at;
  bool want_grant, want_pong;
  uint32_t pong_id, ping_len, ponged;
  bool want_ping;
  uint8_t goodbyes;
  uint64_t missed[2], missed_warned; /* of the last 100 rounds: a bit for each that lacked data of it */
  tb_pending_section section[TB_SECTIONS];
  uint32_t sections;
  tb_peer_counters n;
} tb_peer;

/* What comes in, of all peers together (rate.c). */
typedef struct {
  uint32_t epoch, cut_epoch, cuts; /* the present one; in which the limit was last lowered; how often */
  uint64_t epoch_at, last_at;      /* when it began; when data last came */
  /* in this epoch: data frames, those that lack below them, measured round trips ... */
  uint32_t frames, missing, trips;
  uint64_t trip, base_sum;         /* ... their sum, and that of their peers' shortest */
  /* the epoch before, whose gaps may be filled yet: frames (0 = it was not judged), those that lack; did they queue? */
  uint32_t past_frames, past_missing;
  bool past_queued;
  uint32_t active, active_before;  /* peers that have sent in it, and in the one before */
  uint64_t base;                   /* shortest round trip, mean over those who sent */
  /* over some epochs: frames that came, that lack, that might have come at the best rate */
  double came, lost, could;
  double best, room;               /* frames per ns, the best rate seen lately; frames of queue that are wanted */
  /* the first two over more epochs; and the share of epochs that lacked any */
  double long_came, long_lost, often;
  uint32_t opened_epoch;           /* when the limit was lifted, with opened_at */
  uint32_t limit;                  /* frames that all may have under way; 0 = no limit but the buffer */
  uint64_t lossy_at, opened_at, forget;
  /* how many this rank wants to be sent to at a time; epochs without loss since; last lowered in */
  uint32_t incast, clean, incast_epoch;
  uint32_t told_incast;            /* least that any peer wants; 0 = none said */
} tb_rate;

#define TB_POOL_KEEP (1ull << 30) /* most that buffers without a use may hold, however large memory_cap is */
/* Somebody waits until nothing of a key is open any more (flush.c). */
typedef struct tb_settling { struct tb_settling *next; tb_outcome *outcome; tb_key *key; uint64_t since, ask_at;
    } tb_settling;

enum { TB_BUCKETS = 1024, TB_SURE = 1 << 30 };

struct tb_core {
  tb_core_cfg cfg;
  tb_tunables tune;
  tb_pool *pool;
  tb_peer *peer;
  tb_team *teams;                  /* all there were: operations, and what waits for later rounds, refer to them */
  const tb_team *team;             /* the members; NULL = all ranks */
  tb_hierarchy *tree;              /* the groups there are; NULL = none */
  tb_membership vote;              /* the view, and how it changes */
  bool no_team;                    /* no memory for the members of this view: nothing can go on */
  bool evicted;                    /* it was voted out, and no rejoin has ended since */
  tb_outcome *rejoin;              /* waits until this rank is a member again */
  uint64_t now;                    /* of the event that the vote is told of */
  uint64_t changed_at;             /* the view */
  bool untold;                     /* nothing has failed for it here: the next exact call will */
  tb_op *ops, *ops_last;           /* by deadline */
  tb_op *op_hash[TB_BUCKETS];
  tb_key *key_hash[TB_BUCKETS];
  tb_settling *settling;
  uint32_t keys, live_ops, finishing;
  uint64_t issued_bytes;           /* of the operations that callers wait for */
  size_t memory, early_memory;     /* counted against memory_cap; of it, operations not issued here yet */
  uint64_t due;                    /* when timers must run */
  uint64_t lateness;               /* measured: how late timers run (decaying maximum) */
  double ns_per_byte;              /* measured cost of moving a byte */
  bool measured;
  double commit_cost[2];           /* measured: ns per byte from an operation's end to its return; with a transform */
  uint64_t reaped, reclaimed_at;
  bool liveness_changed;           /* timers look at every operation */
  uint32_t away;                   /* peers absent or gone */
  tb_rate rate;
  tb_grants *grants;               /* [cfg.buffers] */
  tb_clocks clock;                 /* per peer: when its timers must run */
  tb_clocks trips;                 /* per peer: complement of its shortest round trip, so that the longest is first */
  uint64_t drop_told_at;
  uint64_t warned_at, overflow, overflow_warned;
  bool closing;                    /* nothing is wanted for later rounds any more */
  bool goodbye;
  uint64_t goodbye_at;
  bool starved;                    /* a timer had something to say and found no room */
  bool control_due;                /* some peer has sections, grants, pings or goodbyes to say: */
  uint64_t *say;                   /* those peers, bits */
  tb_comm_counters n;
  tb_out out[TB_OUT_MAX];
  uint32_t out_n, out_at;
  uint8_t (*head)[TB_HEAD];
  uint8_t (*ctl)[TB_CONTROL_MAX];
  uint8_t *coded;                  /* payloads of out[] in a wire dtype, one each; NULL until the first is needed */
  uint8_t *decoded;                /* a chunk of one, until the next */
  float *rounding;                 /* what rounding takes of a chunk, until the next */
  uint32_t ctl_n;
  uint64_t *scratch64;             /* [n + 1] for medians and counts */
  const uint8_t *zeros;            /* padding of MTU probes */
};

/* A frame of peer p is refused: counted at it and in the whole. cause: one of TB_REJECTED. */
#define tb_reject(c, p, cause) ((c)->n.cause++, (c)->peer[p].n.cause++)

/* key.c */
tb_key *tb_key_find(tb_core *c, uint32_t hash);
/* by its bytes; NULL: not known, or another has its hash */
tb_key *tb_key_named(tb_core *c, const char *name, uint32_t len);
/* Creates it where needed. -EEXIST: another key has this hash; -ENOBUFS: too many, and none is idle. own: for a call
 * here. */
int tb_key_get(tb_core *c, const char *name, uint32_t len, bool own, uint64_t now, tb_key **out);
void tb_key_restart(tb_core *c, tb_key *k, uint64_t now); /* as if never used: every operation of it ends */
void tb_key_saw_open(tb_key *k, uint16_t p, uint32_t round);
void tb_key_saw_closed(tb_key *k, uint16_t p, uint32_t round);
uint32_t tb_key_jump(tb_core *c, const tb_key *k); /* the round a bounded keyed operation takes (rule 8) */
void tb_key_free_all(tb_core *c);

/* signature.c: two that differ, in words: what differs comes first, and what has no room is left out. room: for
 * both. */
enum { TB_SIGNATURE_TEXT = 160 };
void tb_signatures_text(const tb_signature *a, const tb_signature *b, char ta[TB_SIGNATURE_TEXT],
                        char tb[TB_SIGNATURE_TEXT], size_t room);
const char *tb_kind_name(const tb_signature *s);

/* op.c */
tb_op *tb_op_find(tb_core *c, uint32_t key, uint32_t round);
typedef enum { TB_OPENED_HERE, TB_OPENED_ELSEWHERE } tb_opened; /* only what others opened is held to early_cap */
int tb_op_new(tb_core *c, tb_key *k, uint32_t round, const tb_signature *sig, tb_opened by, uint64_t now, tb_op **out);
void tb_op_grown(tb_core *c, tb_op *op, size_t bytes); /* so much more, taken already */
void tb_op_free(tb_core *c, tb_op *op, uint64_t now);
void tb_op_reorder(tb_core *c, tb_op *op);  /* after its deadline changed */
/* All library memory of calls is counted: buffers and arrays of operations, and arrival histories. What the pool keeps
 * for the next operation makes room first. False: it would exceed memory_cap. */
bool tb_memory_take(tb_core *c, size_t bytes);
void tb_memory_give(tb_core *c, size_t bytes);
/* The operation's buffer of the tensor's size (op->save), counted as its memory: 0, -EAGAIN (the cap), -ENOMEM. */
int tb_op_add_save(tb_core *c, tb_op *op, size_t bytes);
void tb_op_drop_save(tb_core *c, tb_op *op); /* nothing may point at it any more */
uint8_t *tb_op_part_with_work(tb_core *c, tb_op *op); /* it stays counted; frames that point into it are dropped */
bool tb_op_takes_part(const tb_op *op, uint32_t p); /* it has flows with p */
bool tb_op_concerns(const tb_op *op, uint32_t p);   /* p may speak of it, if only to disagree */
bool tb_op_past(const tb_key *k, uint32_t round); /* this rank will never issue it (again) */

/* A data frame of an operation in which its source takes part, checked by rx.c: which chunk of whose shard it is. */
typedef struct { const tb_head *h; const uint8_t *pay; tb_piece piece; uint32_t elems; } tb_data;

/* reduce.c: stage 1 at the owner */
void tb_stage1_data(tb_core *c, tb_op *op, const tb_data *d, uint64_t now);
/* Closes what need not wait any longer, and what may not: nothing, all, or (with groups) what is relayed. */
typedef enum { TB_CLOSE_COMPLETE, TB_CLOSE_ALL, TB_CLOSE_RELAYS } tb_close_what;
void tb_stage1_sweep(tb_core *c, tb_op *op, uint64_t now, tb_close_what what);
void tb_decided_chunk(tb_core *c, tb_op *op, uint32_t chunk); /* it may be handed out */

/* order.c: deterministic reductions */
bool tb_order_matters(const tb_core *c, const tb_signature *s);
size_t tb_order_bytes(const tb_op *op); /* of op->in_wait */
void tb_order_came(const tb_core *c, tb_op *op, uint32_t p, uint32_t chunk, uint64_t first, uint32_t n,
                   const uint8_t *pay);
void tb_order_close(const tb_core *c, tb_op *op, uint32_t chunk, uint64_t first, uint32_t n);

/* close.c: when stage 1 closes */
uint64_t tb_stage1_close_at(tb_core *c, tb_op *op);
uint64_t tb_deadline_told(const tb_core *c, tb_op *op, uint32_t p);
uint64_t tb_relays_close_at(tb_core *c, const tb_op *op, uint64_t close_at);
/* p's deadline; earlier than what it said before */
void tb_stage1_announced(tb_core *c, tb_op *op, uint16_t p, uint64_t at);

/* gather.c: stage 2 at the receiver */
void tb_stage2_data(tb_core *c, tb_op *op, const tb_data *d, uint64_t now);
void tb_output_chunk(tb_core *c, tb_op *op, uint32_t owner, uint32_t chunk, const uint8_t *pay, uint32_t foreign,
                     bool own);

/* relay.c: with groups. Flat operations have none of kin across. */
static inline bool tb_across(const tb_op *op, uint32_t p) { return op->tree && op->tree->kin[p] == TB_KIN_ACROSS; }
bool tb_groups_valid(const tb_signature *s);
/* what such an operation's signature names; 0 = none */
uint32_t tb_groups_for(const tb_core *c, const tb_signature *s);
void tb_relay_flows(const tb_core *c, const tb_op *op, uint32_t p, uint32_t tx[2], uint32_t rx[2]); /* chunks in each */
/* Chunk i of what is sent to p, or received from it, in a stage (0, 1). */
typedef enum { TB_SENT, TB_RECEIVED } tb_direction;
tb_piece tb_flow_piece(const tb_core *c, const tb_op *op, uint32_t p, int stage, tb_direction d, uint32_t i);
/* From whom this rank gets a shard's decided chunks and to whom it sends what is its own of it (itself: it keeps it),
 * and which chunk that is there. */
uint32_t tb_keeper(const tb_op *op, uint32_t owner);
uint32_t tb_giver(const tb_core *c, const tb_op *op, uint32_t owner);
uint32_t tb_flow_index(const tb_op *op, uint32_t with, tb_piece x);
uint32_t tb_kept_index(const tb_op *op, tb_piece x); /* of a shard that is kept here: the place among op->chunks */
uint8_t tb_level(const tb_op *op, uint32_t p, int stage);
bool tb_count_valid(const tb_op *op, const tb_data *d);
uint32_t tb_contributors(const tb_core *c, const tb_op *op, uint32_t chunk); /* how many it is complete with */
bool tb_owes_chunk(const tb_core *c, const tb_op *op, uint32_t p, uint32_t chunk);
void tb_partial_close(tb_core *c, tb_op *op, uint32_t chunk, tb_piece x);
bool tb_relays(const tb_core *c, const tb_op *op, uint32_t chunk); /* of another owner's shard */
bool tb_relay_wanted(const tb_core *c, const tb_op *op, uint32_t p);
bool tb_relay_over(const tb_core *c, const tb_op *op);
void tb_relay_decided(tb_core *c, tb_op *op, const tb_data *d, uint64_t now);
/* Of a flow's chunks those that may go, in that order (NULL: by number), and whether there will be more. */
typedef struct { const uint32_t *order; uint32_t n; bool more; } tb_ready;
tb_ready tb_flow_ready(const tb_core *c, const tb_op *op, uint32_t p, int stage);
bool tb_gave_all(const tb_op *op, uint32_t p); /* of what it had to give */
bool tb_own_in(const tb_core *c, const tb_op *op, uint32_t p, uint32_t chunk); /* p's part is in a decided chunk */

/* coding.c: wire dtypes. Where there is none, plain copies and sums. */
static inline bool tb_coded(const tb_op *op) { return op->sig.wire_dtype != op->sig.dtype; }
bool tb_coding_valid(const tb_signature *s);
void tb_coding_geometry(const tb_signature *s, tb_geometry *g);        /* elem, wire_elem, wire_head */
uint32_t tb_coding_chunk(const tb_signature *s, uint32_t chunk_bytes); /* elements of a full chunk */
int tb_coding_room(tb_core *c);                                        /* before the first coded operation */
const uint8_t *tb_encode_own(tb_core *c, const tb_op *op, uint32_t owner, uint32_t chunk, const uint8_t *x,
                             uint32_t n); /* the payload of the next tb_out */
/* lost: NULL, or what rounding takes; false: it cannot be told, something is not finite */
bool tb_encode_decided(const tb_core *c, const tb_op *op, uint32_t chunk, const uint8_t *mean, uint32_t n, float *lost);
/* ... of the contribution x, once more */
bool tb_encode_lost(const tb_core *c, const tb_op *op, uint32_t owner, uint32_t chunk, const uint8_t *x, uint32_t n,
                    float *lost);
void tb_coded_first(const tb_op *op, uint8_t *acc, const uint8_t *pay, uint32_t n); /* acc = payload */
void tb_coded_next(const tb_op *op, uint8_t *acc, const uint8_t *pay, uint32_t n);  /* acc = acc op payload */
void tb_decode(const tb_op *op, uint8_t *out, const uint8_t *pay, uint32_t n);
/* elements, until the next call */
const uint8_t *tb_decoded(tb_core *c, const tb_op *op, const uint8_t *pay, uint32_t n);
static inline uint8_t *tb_decided_at(const tb_op *op, uint32_t chunk) {
  return op->decided + (size_t)chunk * tb_geo_payload(&op->geo, op->geo.chunk_elems);
}

/* transform.c */
int tb_transform_take(tb_core *c, tb_op *op, tb_outcome *o, const tb_signature *s); /* its plan and memory */
void tb_transform_begin(tb_core *c, tb_op *op);            /* from here on the operation runs in `work` */
/* The input into the caller's output, or the coefficients of the result into the outcome. */
void tb_transform_end(tb_core *c, tb_op *op, bool commit);

void tb_transform_none(tb_outcome *o);                     /* what was prepared is not needed */

/* auto_transform.c: hadamard=auto */
bool tb_auto_on(const tb_key *k, const tb_signature *s, uint32_t round); /* the mode of a round that begins now */
uint32_t tb_auto_hash(const tb_signature *s, bool on);                   /* what frames of that mode carry */
void tb_auto_told(const tb_core *c, tb_key *k, uint16_t p, uint32_t round, const tb_open *o);
void tb_auto_tell(const tb_key *k, tb_open *o);
void tb_auto_decide(tb_core *c, tb_op *op);                /* at the issue, before it is announced */
void tb_auto_measure(tb_core *c, tb_op *op);               /* at the end */

/* issue.c */
/* What an issue would find. */
int tb_issue_preview(tb_core *c, const tb_call *call, tb_signature *s, uint32_t *key, uint32_t *round,
                     bool *transformed);

/* late.c: stage 2 after the return */
bool tb_late_kind(const tb_core *c, const tb_op *op);
/* p still owes decided chunks of this returned round */
bool tb_late_wanted(const tb_core *c, const tb_op *op, uint32_t p);
bool tb_after_wanted(const tb_core *c, const tb_op *op, uint32_t p); /* ... or of one that is only relayed here */
/* Into the next output of the key, if it can be; else it is counted (late_dropped). */
bool tb_late_put(tb_core *c, tb_op *op, uint32_t owner, uint32_t chunk, const void *x, int sign);
void tb_late_chunk(tb_core *c, tb_op *op, const tb_data *d, uint64_t now);
void tb_late_skip(tb_core *c, tb_op *op); /* carry: an aggregate that is not committed is kept for the next round */
/* A chunk that did not come by the commit: zero, or the own input (at x; out may be x), which what comes late
 * replaces. */
void tb_fill_chunk(tb_core *c, tb_op *op, uint32_t owner, uint32_t chunk, uint8_t *out, const uint8_t *x, size_t bytes);
/* Takes off, under carry, what stands for chunks that will not come any more; for_good: none will. */
void tb_fill_settle(tb_core *c, tb_op *op, bool for_good);
void tb_late_give_up(tb_core *c, tb_op *op); /* what may still come is not waited for any longer, and counted */
void tb_late_forget(tb_core *c, tb_key *k);   /* what waits for the next output is dropped, and counted */
double tb_late_commit(tb_core *c, tb_op *op); /* adds what came late to the output; the share of it that was touched */

/* carry.c: what an owner did not count goes into the next round */
/* as sent; in the caller's memory? */
const uint8_t *tb_contribution(const tb_op *op, uint32_t owner, uint32_t chunk, bool *user);
void tb_carry_issue(tb_core *c, tb_op *op);
/* the caller's memory is left: settle what is known, keep the rest */
void tb_carry_return(tb_core *c, tb_op *op, uint64_t now);
void tb_carry_free(tb_core *c, tb_op *op, uint64_t now);
/* of own chunks [from, to) */
void tb_fate(tb_core *c, tb_op *op, uint32_t p, uint32_t from, uint32_t to, bool applied, uint64_t now);
void tb_carry_forget(tb_core *c, tb_key *k);
bool tb_carry_over(tb_core *c, tb_op *op, uint32_t owner, uint32_t chunk, const uint8_t *y, const uint32_t *since,
    uint64_t now);
const uint8_t *tb_input(const tb_core *c, const tb_op *op, uint32_t owner, uint32_t chunk);
bool tb_fate_unknown(const tb_op *op, uint32_t p); /* of some own chunk towards p */
/* for "no such operation here": nothing was counted, or not known */
uint8_t tb_fates_of_past(const tb_key *k, uint32_t round);
uint64_t tb_fates_tell(tb_core *c, tb_op *op, uint16_t p, uint64_t now);
uint32_t tb_fates_put(tb_op *op, uint16_t p, uint8_t *out, uint32_t room, tb_section *s, bool *more);
bool tb_fates_got(tb_core *c, tb_op *op, uint16_t p, const tb_section *s, const uint8_t *body, uint64_t now);

/* p's decided chunk has not come */
bool tb_value_due(const tb_op *op, uint32_t p, uint32_t chunk);
/* p counted own chunks in values that have not come: their bytes are kept */
bool tb_counted_unseen(const tb_op *op, uint32_t p);
/* p was voted out: what it said it had counted is not known to be in any output, unless its decided chunk is here. */
void tb_carry_left(tb_core *c, tb_op *op, uint32_t p, uint64_t now);
/* One own chunk, which may have been counted: it is given up, and told. */
void tb_fate_lost(tb_core *c, tb_op *op, uint32_t owner, uint32_t chunk, uint64_t now);

/* heirs.c: owners that left */
bool tb_heirs_open(const tb_op *op, uint32_t p); /* p has left, and others are to be asked about it */
void tb_heirs_anew(const tb_core *c, tb_op *op); /* somebody left: the owner that is asked about may be another now */
uint64_t tb_heirs_ask(tb_core *c, tb_op *op, uint64_t now); /* when to come back */
bool tb_heirs_got(tb_core *c, uint16_t p, const tb_section *s, const uint8_t *body, uint64_t now); /* false: not sane */

/* rounding.c: under carry, what a wire dtype's rounding takes away goes into the next round */
/* y was counted; sign -1: it is not known to be, after all */
void tb_rounding_sent(tb_core *c, tb_op *op, uint32_t owner, uint32_t chunk, const uint8_t *y, int sign, uint64_t now);
void tb_rounding_decide(tb_core *c, tb_op *op, uint32_t chunk, const uint8_t *mean, uint32_t n, uint64_t now);
void tb_rounding_return(tb_core *c, tb_op *op, uint64_t now); /* an exact round: all of it was counted */

/* flush.c */
/* rounds [from, to) are skipped here */
void tb_ghosts(tb_core *c, tb_key *k, uint32_t from, uint32_t to, uint64_t now);
void tb_ghost_decided(tb_core *c, tb_op *op, uint32_t chunk);
void tb_settle_timers(tb_core *c, uint64_t now);
bool tb_settle_cancel(tb_core *c, tb_outcome *o, int status, const char *why, uint64_t now);
void tb_settle_free_all(tb_core *c);

/* issue.c */
void tb_announce(tb_core *c, tb_op *op, uint64_t now); /* OPEN to everybody */
void tb_closed_through(tb_op *op, uint32_t first); /* what it will say: all before `first` is over here, or less */

/* finish.c */
bool tb_nothing_more(const tb_op *op, uint32_t p); /* all that p decided is here, and p said that it is all */
void tb_op_check(tb_core *c, tb_op *op, uint64_t now);     /* returns it if nothing more can come */
void tb_op_finish(tb_core *c, tb_op *op, uint64_t now);    /* returns it now */
void tb_op_fail(tb_core *c, tb_op *op, int status, const char *text, uint64_t now, bool tell);
void tb_op_mismatch(tb_core *c, tb_op *op, uint16_t a, const tb_signature *sa, uint16_t b, const tb_signature *sb,
                    uint64_t now);                         /* rule 19: rank a says sa, rank b says sb */
void tb_op_sample(tb_op *op, uint16_t p);                  /* p's arrival offset, once it is complete */
void tb_op_retire(tb_core *c, tb_op *op, uint64_t now);    /* frees it if nobody needs it */
/* So many rounds of its key a returned one may be old and still be kept for an absent peer (without carry: for all). */
uint64_t tb_rounds_kept(const tb_core *c, const tb_op *op);

/* agree.c */
static inline bool tb_agrees(const tb_op *op) { return op->sig.consistency != 0; }
void tb_agree_after_deadline(tb_core *c, tb_op *op, uint64_t now);
double tb_agree_share(const tb_op *op); /* what all ranks judge by */

/* history.c */
tb_history *tb_history_get(tb_core *c, tb_key *k, uint32_t sig_hash); /* NULL: no memory, or too many signatures */
tb_history *tb_history_find(const tb_key *k, uint32_t sig_hash);      /* makes none */
void tb_history_free_all(tb_core *c, tb_key *k);
void tb_offset_sample(tb_history *h, uint16_t p, uint64_t offset);
void tb_history_tell(const tb_core *c, const tb_history *h, tb_open *o);
void tb_history_told(tb_history *h, uint16_t p, const tb_open *o);
/* median over live ranks that told; uses scratch64 */
uint64_t tb_over_nodes(tb_core *c, const tb_history *h, tb_told what);

/* safeguard.c */
typedef struct { const char *name; double least, share; } tb_shortfall;
/* Is a threshold missed? why: the first that is, else the total's. `received`: the total share that counts. */
bool tb_too_little(const tb_core *c, const tb_op *op, double received, tb_shortfall *why);

/* share.c */
void tb_share_round(tb_core *c, tb_op *op, uint64_t now); /* a round has ended: who contributed? */
uint32_t tb_peer_missed(const tb_peer *q);                /* rounds of the last 100 that lacked data of it */

/* early_timeout.c */
bool tb_early_wanted(const tb_core *c, bool automatic);
bool tb_last_percent(uint32_t place, uint32_t total);
uint64_t tb_stage_time(tb_core *c, const tb_history *h, int stage);    /* usual; 0 = not known */
/* when to end it as things are; UINT64_MAX = not */
uint64_t tb_early_end(tb_core *c, tb_op *op, int stage);
void tb_stage_samples(tb_core *c, tb_op *op, uint64_t now);
void tb_came_after(tb_core *c, tb_op *op, uint16_t p, int stage, uint64_t now); /* came after the end of the stage */
void tb_came_late(const tb_core *c, tb_op *op, uint16_t p, uint64_t now); /* a late chunk (late.c) */
uint64_t tb_grace(const tb_core *c);
double tb_loss_after_draining(const tb_core *c, const tb_op *op);
double tb_x_after(double x, double loss);

/* policy_optireduce.c */
uint32_t tb_exact_rounds(const tb_core *c);                            /* of a key, under deadline=auto */
uint64_t tb_percentile95(uint64_t *v, uint32_t n);                     /* reorders v */
void tb_calibrate(tb_core *c, tb_op *op, uint64_t now);
uint64_t tb_calibrated_deadline(const tb_core *c, tb_op *op);

/* deadline.c */
uint64_t tb_auto_deadline(tb_core *c, tb_history *h);
uint64_t tb_stage2_time(const tb_core *c, const tb_op *op, uint64_t bytes);
void tb_cost_sample(tb_core *c, const tb_op *op, uint64_t now);
void tb_sort(uint64_t *v, uint32_t n);       /* ascending */
uint64_t tb_median(uint64_t *v, uint32_t n); /* sorts v */

/* peer.c */
uint64_t tb_rto(const tb_core *c, const tb_peer *q);
uint64_t tb_rto_doubled(const tb_core *c, const tb_peer *q, uint32_t times); /* up to rto_max */
/* The longest round trip of live peers: of their present means; and of the shortest that each ever showed, without the
 * queues of our own sending and without a rank that was stopped: what a repair takes once the queue has drained. */
uint64_t tb_rtt_max(const tb_core *c);
uint64_t tb_repair_trip(const tb_core *c);
void tb_peer_heard(tb_core *c, uint16_t p, const tb_head *h, uint64_t now);
void tb_peer_presence(tb_core *c, uint16_t p); /* after it became absent, gone or heard again */
void tb_peer_silent(tb_core *c, tb_op *op, uint64_t now); /* at a close: who said nothing? */
bool tb_peer_expected(const tb_op *op, const tb_core *c, uint32_t p); /* may still contribute to this operation */
void tb_section_add(tb_core *c, uint16_t p, const tb_op *op, uint8_t stage, uint8_t flags);
/* none such here */
void tb_section_add_raw(tb_core *c, uint16_t p, uint32_t key, uint32_t round, uint8_t stage, uint8_t flags);
uint64_t tb_reorder_wait(const tb_peer *q);
uint32_t tb_window_start(const tb_core *c, uint32_t share);
/* of the frames that p may have under way: its share of the buffer */
uint32_t tb_window_most(const tb_core *c, uint32_t p);
void tb_window_shares(tb_core *c); /* no window is larger than that */
/* Frames below step may be lost: `missing` of them, TB_SURE when a mark says so. */
void tb_suspect(tb_core *c, uint16_t p, uint32_t step, uint32_t missing, uint64_t now);
uint64_t tb_pace_interval(const tb_peer *q); /* rule 21: senders pace at grant / round trip */

/* grant.c: what a peer may send this rank, and this rank a peer */
tb_grants *tb_grants_of(const tb_core *c, uint16_t p);                   /* of the buffer in which p's share lies */
/* frames beyond `seen` that q may have under way now */
uint32_t tb_grant_window(const tb_core *c, const tb_peer *q, uint64_t now);
uint32_t tb_grant(tb_core *c, tb_peer *q, uint64_t now);                 /* grants them: the credit for a header */
void tb_grant_tell_all(tb_core *c);                                      /* less than it was promised, perhaps */
void tb_grant_needed(tb_core *c, uint64_t now);                          /* those who send have used up their shares */
void tb_grant_used(tb_core *c, tb_peer *q);                              /* data of q came */
void tb_grant_timers(tb_core *c, uint16_t p, uint64_t now);
bool tb_grant_covers(const tb_core *c, const tb_op *op, uint16_t p);     /* may a data frame of op go to p? */

/* rate.c: what comes in, of all peers together */
/* of its share of the buffer, what q may use now */
uint32_t tb_rate_window(const tb_core *c, const tb_peer *q, uint32_t share, uint64_t now);
/* Was p promised more than who is silent may keep? When to look at it, UINT64_MAX = never. */
uint64_t tb_rate_promised(tb_core *c, uint16_t p, uint64_t now);
void tb_rate_data(tb_core *c, uint16_t p, uint32_t step, uint64_t now);  /* a data frame came, the step-th of p's */
uint8_t tb_rate_incast(const tb_core *c);                                /* as told in every header; 0 = says nothing */
void tb_rate_incast_told(tb_core *c, uint16_t p, uint8_t incast);
void tb_rate_least_told(tb_core *c);                                     /* again, after a peer left or came back */
/* frames to each peer in its turn, of a flow of so many */
uint32_t tb_rate_burst(const tb_core *c, uint32_t flow);
void tb_rate_trip(tb_core *c, uint16_t p, uint64_t trip);                /* a round trip that a data frame told of */

/* members.c: the view */
void tb_members_init(tb_core *c);
int tb_members_refuse(const tb_core *c, char *why, size_t room); /* this rank is in no view: a status, and the remedy */
/* that the membership has changed: once, to an exact call */
int tb_members_tell(tb_core *c, char *why, size_t room);
void tb_members_silent(tb_core *c, uint16_t p, uint64_t now);    /* a round has ended, or failed, without p */
void tb_members_alive(tb_core *c, uint16_t p, uint64_t now);
void tb_members_heard(tb_core *c, uint16_t p, const tb_view_msg *m, uint64_t now);
void tb_members_stranger(tb_core *c, uint16_t p, uint32_t their_view, uint64_t now); /* a frame of another view */
void tb_members_timers(tb_core *c, uint64_t now);
/* -ENETRESET, if a change of the view has passed it; else -EINVAL */
int tb_members_passed(const tb_core *c, uint32_t round);
void tb_rejoined(tb_core *c); /* tells who waits for it, if it is so */
bool tb_rejoin_cancel(tb_core *c, tb_outcome *o, int status, const char *why, uint64_t now);

/* control.c: what peers say about operations */
void tb_on_open(tb_core *c, uint16_t p, const tb_head *h, const tb_open *o, uint64_t now);
void tb_on_receipt(tb_core *c, uint16_t p, const tb_receipt *r, uint64_t now);
void tb_on_probe(tb_core *c, uint16_t p, const tb_head *h, const tb_probe *m, uint64_t now);
void tb_on_error(tb_core *c, uint16_t p, const tb_head *h, const tb_error_body *e, uint64_t now);
void tb_on_goodbye(tb_core *c, uint16_t p, uint64_t now);
void tb_opened_by(tb_core *c, tb_op *op, uint16_t p, const tb_head *h, uint64_t now);
/* p runs it in the other mode of hadamard=auto: it is told that nothing will come from here, and is not waited for */
void tb_apart(tb_core *c, tb_op *op, uint16_t p, uint8_t stage, uint64_t now);
static inline bool tb_is_other_mode(const tb_op *op, uint32_t hash) {
  return hash != op->sig_hash && op->sig.hadamard & TB_HADAMARD_AUTO && hash == tb_auto_hash(&op->sig, !op->transformed);
}

/* Time for one more try at most: what helps it is said twice and at once. */
bool tb_urgent(const tb_op *op, const tb_peer *q, uint64_t now);

/* say.c: control frames out */
void tb_say_control(tb_core *c, uint64_t now);
uint8_t *tb_say_begin(tb_core *c, uint16_t p, uint8_t type, tb_op *op, uint64_t now); /* body; NULL = no room */
void tb_say_end(tb_core *c, uint32_t body_len, uint32_t padding);
void tb_fill_head(tb_core *c, uint16_t p, tb_head *h, tb_op *op, uint64_t now);

/* tx.c */
bool tb_tx_flow_wanted(const tb_core *c, const tb_op *op, uint32_t p, int s);
void tb_flow_ack_all(tb_flow_tx *f); /* nothing of it is wanted (any more) */
void tb_flow_ack(tb_flow_tx *f, uint32_t from, uint32_t to);
bool tb_refs_quiet(const tb_core *c, const tb_op *op, uint64_t now);
void tb_tx_data(tb_core *c, uint64_t now);
void tb_tx_ready(tb_core *c, tb_op *op, uint32_t p, int s); /* there may be data to send to p, or p may get it now */
void tb_tx_ready_all(tb_op *op, int s);
void tb_tx_resume(tb_core *c, uint16_t p);                  /* what waited for p's credit or pace may go on */
void tb_tx_unstall(tb_core *c, uint16_t p);                 /* ... if it was credit */
tb_out *tb_out_slot(tb_core *c); /* NULL = no room */

/* Ranks besides this one; 1 for a rank alone, which may be divided by. */
static inline uint32_t tb_peers(const tb_core *c) { return c->cfg.n > 1 ? c->cfg.n - 1u : 1u; }
/* The key of messages between two ranks, which are matched apart from everything else. */
static inline bool tb_key_of_messages(const char *name, uint32_t len) { return len >= 4 && !memcmp(name, "p2p:", 4); }
static inline uint32_t tb_team_n(const tb_core *c) { return c->team ? c->team->n : c->cfg.n; }
/* It is here, by all that is known. */
static inline bool tb_live(const tb_core *c, uint32_t p) { return !c->peer[p].absent && !c->peer[p].gone; }
static inline double tb_share(uint64_t part, uint64_t whole) { return whole ? (double)part / (double)whole : 1.0; }

static inline void tb_due(tb_core *c, tb_op *op, uint64_t t) {
  if (t < op->due) op->due = t;
  if (t < c->due) c->due = t;
}
/* A clock of p's timers, or of what an operation keeps towards p. */
static inline void tb_peer_due(tb_core *c, uint16_t p, uint64_t t) {
  tb_clocks_earlier(&c->clock, p, t);
  if (t < c->due) c->due = t;
}
static inline void tb_op_peer_due(tb_core *c, tb_op *op, uint16_t p, uint64_t t) {
  tb_clocks_earlier(&op->clock, p, t);
  tb_due(c, op, t);
}
/* There is something to say to p. */
static inline void tb_say_to(tb_core *c, uint16_t p) {
  tb_bit_set(c->say, p);
  c->control_due = true;
}
void tb_logf(tb_core *c, int level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
