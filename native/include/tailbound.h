/* tailbound.h - the one public header of the native core.
 *
 * Every function returns 0 (or a count that is documented) on success and -errno on failure; tb_last_error() then
 * gives the sentence with the remedy, per thread. Handles are opaque. There are no static inline functions, so
 * foreign languages can bind what stands here. All times are nanoseconds of CLOCK_MONOTONIC (of virtual time for a
 * simulated communicator). Units stand in the name of every field that has one.
 */
#ifndef TAILBOUND_H
#define TAILBOUND_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* [cdef] - from here to [/cdef] is also read by the Python binding; keep it free of preprocessor lines. */
typedef struct tb_config tb_config;
typedef struct tb_comm tb_comm;
typedef struct tb_work tb_work;
typedef struct tb_world tb_world;

/* Element types. The numbers are on the wire: never renumber. */
typedef enum {
  TB_F32 = 0, TB_F64 = 1, TB_F16 = 2, TB_BF16 = 3,
  TB_I8 = 4, TB_U8 = 5, TB_I16 = 6, TB_U16 = 7, TB_I32 = 8, TB_U32 = 9, TB_I64 = 10, TB_U64 = 11,
  TB_DTYPES = 12
} tb_dtype;

typedef enum { TB_SUM = 0, TB_AVG = 1, TB_MIN = 2, TB_MAX = 3, TB_PROD = 4, TB_REDOPS = 5 } tb_redop;

typedef enum {
  TB_ALL_REDUCE = 0, TB_REDUCE_SCATTER = 1, TB_ALL_GATHER = 2, TB_BROADCAST = 3, TB_BARRIER = 4,
  TB_SEND = 5, TB_RECV = 6, TB_KINDS = 7
} tb_kind;

typedef enum { TB_LOCAL = 0, TB_AGREE = 1 } tb_consistency; /* AGREE: all ranks return the same bytes, or some fail */
typedef enum { TB_RENORMALISE = 0, TB_CARRY = 1 } tb_missing;
typedef enum { TB_PLAIN = 0, TB_TRANSFORMED = 1, TB_BY_LOSS = 2 } tb_transforms;
typedef enum { TB_FILL_ZERO = 0, TB_FILL_OWN = 1 } tb_fill; /* where no decided value came in time */
typedef enum { TB_VERDICT_OK = 0, TB_VERDICT_PARTIAL = 1, TB_VERDICT_SKIP = 2 } tb_verdict;

/* One call. in and out may be the same buffer (all_reduce, broadcast) or lie apart; nothing between. When a call fails,
 * an in-place all_reduce gets its input back; the output of other calls is undefined. A lossy one in place that has
 * enough to be sure of its commit does not fail any more: cancelled or told of an error it ends with what has arrived.
 * deadline_ns: 0 = auto, UINT64_MAX = exact, anything else nanoseconds from the call.
 * key: 0..255 bytes; key_len 0 = anonymous, matched by order of issue.
 * New fields (kinds of memory, streams) will come at the end, and zero in them will mean what is so today. */
typedef struct {
  uint32_t struct_size;    /* sizeof(tb_call), so that the struct can grow */
  int32_t kind;            /* tb_kind */
  int32_t dtype;           /* tb_dtype */
  int32_t redop;           /* tb_redop; ignored by kinds that do not reduce */
  int32_t root;            /* BROADCAST: source rank; SEND: destination; RECV: source */
  uint64_t count;          /* elements of the input (ALL_GATHER: of one rank's input; RECV: of the output) */
  const void *in;          /* may equal out (in place); NULL for RECV and for non-root BROADCAST */
  void *out;               /* NULL for SEND */
  const char *key;
  uint32_t key_len;
  uint32_t tag;            /* SEND, RECV */
  uint64_t deadline_ns;
  uint64_t error_bound_ns; /* exact calls only: give up (-ETIMEDOUT, input restored) after this; 0 = none */
  double min_received;     /* below this the operation is not committed (verdict skip) */
  int32_t consistency;     /* tb_consistency; lossy all_reduce only */
  /* an identity of the calling thread; a key may not be shared by two at once; 0 = not checked */
  uint64_t thread;
  /* tb_missing: what did not reach an owner in time is estimated, or added to the next round (which needs a key) */
  int32_t missing;
  /* tb_fill; lossy all_reduce only, not with TB_AGREE. OWN: the input as it is; taken off again by what comes late */
  int32_t fill;
  double min_stage[2];     /* the same for what live peers owed this rank in each stage; 0 = no such threshold */
  int32_t halt;            /* the first skip is an error (-ENODATA), not the max_skips-th in a row */
  int32_t wire_dtype;      /* all_reduce of float32, sum or avg: TB_BF16, TB_F16, TB_I8 travels; 0 = as it is */
  int32_t hadamard;        /* 1: all_reduce of float32, float64, sum or avg travels transformed, TB_BY_LOSS: by what is
                              lost of its key; exact ones ignore it */
  int32_t deterministic;   /* all_reduce, reduce_scatter: contributions are added in the order of ranks */
  /* all_reduce: 0 = by the communicator's groups where that can be, 1 = by them or -EINVAL, -1 = without */
  int32_t groups;
} tb_call;

typedef struct {
  int32_t status;          /* 0 or -errno: what tb_wait returned */
  int32_t verdict;         /* tb_verdict */
  int32_t deadline_hit;    /* the deadline ended it */
  uint32_t round;
  uint32_t behind;         /* rounds that were skipped to catch up */
  uint32_t view;           /* the view whose members took part */
  double received;         /* mean over elements of (count - own) / (N - 1) */
  uint64_t elapsed_ns;
  uint64_t deadline_ns;    /* the one that applied, relative; UINT64_MAX = exact */
  /* share of this rank's contribution to which values of earlier rounds were added: TB_CARRY */
  double carried;
  /* share of the output to which values of earlier rounds were added that came too late for those */
  double late;
  uint64_t abort_ns;       /* time spent in a link's tx_abort, excluded from rule 1; 0 = none */
} tb_result;

/* Configuration: one table of options, each with an environment variable. tb_config_new reads the environment. */
int tb_config_new(tb_config **out);
void tb_config_free(tb_config *cfg);
int tb_config_set(tb_config *cfg, const char *name, const char *value); /* -ENOENT unknown name, -EINVAL bad value */
const char *tb_config_get(const tb_config *cfg, const char *name);      /* NULL = unknown name */
/* Row i of the table; -ENOENT past the end. Strings live as long as cfg. source: "default" | "env NAME" | "set". */
int tb_config_row(const tb_config *cfg, uint32_t i, const char **name, const char **env, const char **value,
                  const char **source, const char **unit, const char **why);

/* Life of a communicator. tb_init blocks at most init_timeout. exchange: NULL = the embedded TCP rendezvous. */
typedef int (*tb_exchange_fn)(void *ctx, const char *tag, const void *mine, uint32_t len, void *all, uint32_t stride);
int tb_init(const tb_config *cfg, tb_exchange_fn exchange, void *ctx, tb_comm **out);
/* From another thread: whatever tb_init waits for with this configuration, now or later, it gives up (-EINTR), after it
 * told the other ranks so. An exchange that was given is its owner's to end. */
void tb_init_cancel(tb_config *cfg);
/* From any thread, while tb_init runs with this configuration and after it failed: its log, as tb_log_next. */
int tb_init_log_next(tb_config *cfg, char *out, uint32_t n, int *level);
/* Ends what is in flight (-ECANCELED), lingers at most 2 s for receipts, frees comm. Works still held stay readable. No
 * other thread may be in, or enter, a call on this communicator from here on (waiting on a work is one); Python sees to
 * that. A simulated one says goodbye at once and is freed with its world. */
int tb_close(tb_comm *comm);
int tb_rank(const tb_comm *comm);
int tb_size(const tb_comm *comm);
/* The view: its number, and who is a member (NULL, or out[size]: 1 = a member). Others vote a silent rank out
 * (evict_after); it may come back: the work is done when it is a member again. */
uint32_t tb_view(tb_comm *comm, uint8_t *member, uint32_t n);
int tb_rejoin(tb_comm *comm, tb_work **out);
const char *tb_link_name(const tb_comm *comm);
/* Can a link of that name be had in this process? 0, and one line about it: library, version, file. Else -ENOENT or
 * -ELIBACC, and out has the sentence with the remedy. Loads its plugin. */
int tb_link_about(const tb_config *cfg, const char *name, char *out, uint32_t n);
const char *tb_describe(const tb_comm *comm); /* one line: link, why, MTU, buffers, GSO */

/* Operations. tb_issue never blocks on a peer. */
int tb_issue(tb_comm *comm, const tb_call *call, tb_work **out);
int tb_wait(tb_work *work, int64_t timeout_ns); /* -EAGAIN: not yet (< 0 = no limit); else the operation's status */
int tb_done(tb_work *work); /* 1 done, 0 not; with hadamard the first to ask may make the output, which takes ms */
/* ends it now: input restored, status -ECANCELED; or committed (tb_call) */
int tb_cancel(tb_work *work);
void tb_work_free(tb_work *work);               /* cancels when not done */
int tb_work_result(const tb_work *work, tb_result *out);
/* stage 1 or 2; out[N]: fraction 0..1 of what each rank owed this one and that arrived; NaN: it owed nothing in this
 * stage; -1: it is no member of the view. The own entry is 1 where the kind has that stage. */
int tb_work_per_peer(const tb_work *work, int stage, double *out, uint32_t n);
/* one byte per output element: a decided value arrived */
int tb_work_mask(const tb_work *work, uint8_t *out, uint64_t n);
const char *tb_work_error(const tb_work *work);                  /* sentence for a failed one, "" otherwise */
int tb_forget(tb_comm *comm, const char *key, uint32_t key_len);
/* After an agreed round failed: every rank asks for its next round, all take the largest (an exact MAX), and set it. */
int tb_next_round(tb_comm *comm, const char *key, uint32_t key_len, uint32_t *round); /* 0 for a key never used */
int tb_resync(tb_comm *comm, const char *key, uint32_t key_len, uint32_t round);
/* The last correction of a key, collective and exact: added to the sum of all outputs it makes the sum of all
 * contributions under TB_CARRY; it is what came late without. tb_flush_like tells what the key is like (kind, dtype,
 * redop, count, missing). All ranks: tb_next_round, the largest of them (an exact MAX); tb_flush_begin with it;
 * tb_settle, and wait until no fate is unknown and no decided chunk missing; under TB_CARRY tb_flush_take into a
 * tensor, and an exact all_reduce of that with the key's redop; tb_flush_end adds what came late here. */
int tb_flush_like(tb_comm *comm, const char *key, uint32_t key_len, tb_call *like);
int tb_flush_begin(tb_comm *comm, const char *key, uint32_t key_len, uint32_t round);
int tb_settle(tb_comm *comm, const char *key, uint32_t key_len, tb_work **out);
int tb_flush_take(tb_comm *comm, const char *key, uint32_t key_len, void *out, uint64_t bytes);
int tb_flush_end(tb_comm *comm, const char *key, uint32_t key_len, void *out, uint64_t bytes);
/* the measured reserve; 0 before the first measurement */
int tb_min_deadline(tb_comm *comm, const tb_call *call, uint64_t *ns);

/* Counters, in two scopes: 0 = communicator, 1 = per peer. tb_counter_name gives NULL past the end.
 * dropped_mass is a double: its bits. */
const char *tb_counter_name(int scope, uint32_t i);
int tb_counters(tb_comm *comm, int peer, uint64_t *out, uint32_t n); /* peer -1 = communicator; UINT64_MAX = "none" */
/* Log lines since the last call: 1 = one was written, 0 = none. level as Python's logging (20, 30, 40). */
int tb_log_next(tb_comm *comm, char *out, uint32_t n, int *level);

/* The simulator: n communicators in this process over virtual time. Options are "name=value" separated by commas or
 * spaces, listed in docs/links.md. A waiting caller drives the time; between tb_world_enter and tb_world_leave a thread
 * speaks for one rank, ranks run one at a time in rank order, and time moves when all of them wait. */
int tb_world_new(int n, const char *options, tb_world **out);
void tb_world_free(tb_world *world); /* closes its communicators */
tb_comm *tb_world_comm(tb_world *world, int rank);
uint64_t tb_world_now(const tb_world *world);
int tb_world_advance(tb_world *world, uint64_t ns);
int tb_world_set(tb_world *world, int src, int dst, const char *options); /* -1 = every rank; changes from now on */
int tb_world_expect(tb_world *world, int n);  /* that many threads will enter; nobody moves before they have */
int tb_world_enter(tb_world *world, int rank);
int tb_world_leave(tb_world *world, int rank);
int tb_world_sleep(tb_world *world, int rank, uint64_t ns); /* inside enter/leave: virtual compute time */

/* One line of the simulator's delivery log. */
typedef struct {
  uint64_t sent_ns, arrived_ns; /* arrived_ns: 0 when it was not delivered */
  uint32_t key, round, chunk, step;
  uint16_t src, dst;
  /* fate: 0 delivered, 1 lost, 2 queue overflow, 3 corrupted, 4 truncated, 5 blackholed, 6 ring overflow */
  uint8_t type, stage, fate;
  uint8_t copy;                 /* 1 = a duplicate made by the network */
} tb_sim_log;
int64_t tb_world_log(const tb_world *world, uint64_t from, tb_sim_log *out, uint64_t n); /* lines copied */

const char *tb_last_error(void);
const char *tb_version(void);
uint32_t tb_key_hash(const char *key, uint32_t key_len);
uint64_t tb_now(void);
/* [/cdef] */

#ifdef __cplusplus
}
#endif
#endif
