/* comm.h - a communicator's private structure: one core, one link, and who may touch them.
 *
 * DESIGN NOTES. One mutex (comm->lock) guards the core. The progress thread holds it for one pass at a time and lets a
 * waiting caller in between passes (tb_comm_lock counts them: a plain mutex would starve callers, because the thread
 * that just released it nearly always wins it again). The link's lane belongs to the progress thread alone; callers
 * only wake it. In a simulated world all communicators share the world's mutex, and whoever waits does the progress.
 */
#ifndef TB_COMM_H
#define TB_COMM_H
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>
#include "engine/config.h"
#include "engine/early.h"
#include "engine/fault.h"
#include "engine/logring.h"
#include "links/link.h"
#include "protocol/protocol.h"

/* OVER: the core has said its last word, but the output is still to be made (an inverse transform): whoever looks first
 * does it. ENDING: somebody does. */
enum { TB_RUNNING, TB_DONE, TB_OVER, TB_ENDING };

struct tb_work {
  tb_outcome o;          /* first: done() gets a pointer to it */
  tb_comm *comm;         /* valid until done */
  tb_world *world;       /* the communicator's: looked at without its lock */
  bool registered;
  atomic_int done;       /* TB_RUNNING .. */
  pthread_mutex_t lock;
  pthread_cond_t cond;
  tb_work *next;         /* works in flight, guarded by the communicator's lock */
  uint8_t scratch[16];   /* a barrier's element */
};

struct tb_comm {
  uint16_t rank, n;
  tb_config *cfg;
  const tb_link_ops *ops; /* NULL for a communicator of one */
  tb_link *link;
  tb_core *core;
  tb_fault *fault;
  tb_early *early;
  tb_logring *log;
  tb_world *world;       /* NULL = real time, own thread */
  pthread_mutex_t *lock, own_lock;
  atomic_int waiters, stop;
  pthread_t thread;
  atomic_bool closing;
  bool running, tx_blocked;
  bool spins;            /* as many cores as ranks on this host: polling a little costs nobody anything */
  bool sealed;           /* payloads carry a check of their own, as some rank's link has none */
  bool stalled;            /* this process was stopped or starved, and has not yet read all that came meanwhile */
  pid_t pid;
  tb_work *works, *over; /* in flight; TB_OVER and TB_ENDING */
  uint64_t refs;         /* REFs the lane has accepted */
  uint64_t tx_refused;   /* frames the link would never take */
  uint64_t abort_ns;     /* of the newest tx_abort, until a result has told it */
  uint64_t stats_at;
  uint32_t window;
  char describe[400];
};

uint64_t tb_comm_now(const tb_comm *c);
void tb_comm_lock(tb_comm *c);
void tb_comm_unlock(tb_comm *c);
void tb_comm_wake(tb_comm *c);

/* comm.c: common to real and simulated communicators */
int tb_comm_new(const tb_config *cfg, uint16_t rank, uint16_t n, tb_comm **out);
int tb_comm_core(tb_comm *c, uint32_t mtu, uint32_t job);
void tb_comm_free(tb_comm *c);
uint32_t tb_comm_window(const tb_comm *c, const tb_link_caps *caps, uint32_t mtu);
void tb_comm_abandon(tb_comm *c, const char *why); /* under the lock: ends every operation in flight */

/* work.c */
void tb_works_end(tb_comm *c); /* without the lock: makes the outputs that nobody has asked for yet */

/* pump.c */
bool tb_pump(tb_comm *c); /* under the lock: one pass; true = there may be more to do at once */
/* Progress did not run for much longer than a scheduler's delay. */
bool tb_pump_overdue(const tb_comm *c, uint64_t now);
uint64_t tb_pump_next(const tb_comm *c);
void tb_comm_events(tb_comm *c); /* what the link has to tell goes to the log */

/* progress.c */
int tb_progress_start(tb_comm *c);
void tb_progress_stop(tb_comm *c);

/* world.c */
int tb_world_wait(tb_world *w, tb_work *work, int64_t timeout_ns);
uint64_t tb_world_time(const tb_world *w);
void tb_world_touch(tb_world *w, int rank); /* under the lock: something was done to this rank from outside */
int tb_world_close_rank(tb_comm *c); /* it says goodbye; its memory stays until the world is freed */

#endif
