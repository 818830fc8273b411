/* work.c - operations as their callers see them: issue, wait, result. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "compute/compute.h"
#include "engine/comm.h"
#include "engine/error.h"

static int usable(const tb_comm *c) {
  if (c->pid != getpid())
    return tb_fail(-EXDEV, "this communicator was made in another process: sockets and threads do not survive fork; "
                   "start workers with the 'spawn' method and call init there");
  if (c->closing) return tb_fail(-ESHUTDOWN, "this communicator is closed");
  return 0;
}

static int check_size(const tb_call *call) {
  if (call->struct_size == sizeof *call) return 0;
  return tb_fail(-EINVAL, "tb_call.struct_size is %u: set it to sizeof(tb_call), which is %zu bytes here (a program "
                 "made with another tailbound.h must be made again)", call->struct_size, sizeof *call);
}

static uint64_t input_bytes(const tb_call *call) {
  return call->count * tb_dtype_size((tb_dtype)call->dtype);
}

/* A process that was stopped learns from what lies in its sockets where the others are. An operation issued before that
 * was read would run a round that is over, and waste its deadline (rule 8). The clock of the operation runs already. */
static void catch_up(tb_comm *c, const tb_call *call, uint64_t issued) {
  uint64_t limit = call->deadline_ns && call->deadline_ns < 40 * TB_MS ? call->deadline_ns / 4 : 10 * TB_MS;
  for (uint64_t now = issued; now - issued < limit && !c->closing && (c->stalled || tb_pump_overdue(c, now));
       now = tb_now()) {
    tb_comm_unlock(c);
    tb_comm_wake(c);
    nanosleep(&(struct timespec){0, 50000}, NULL);
    tb_comm_lock(c);
  }
}

static tb_work *work_new(tb_comm *c) {
  tb_work *w = calloc(1, sizeof *w);
  if (!w) return NULL;
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_mutex_init(&w->lock, NULL);
  pthread_cond_init(&w->cond, &attr);
  pthread_condattr_destroy(&attr);
  w->comm = c;
  w->world = c->world;
  return w;
}

static void work_drop(tb_work *w) {
  pthread_mutex_destroy(&w->lock);
  pthread_cond_destroy(&w->cond);
  tb_outcome_free(&w->o);
  free(w);
}

/* Other threads, and the progress of what is under way, do not wait for the transform. Ranks of a simulated world run
 * one at a time anyway. */
static void prepare(tb_comm *c, const tb_call *call, tb_work *w) {
  if (c->closing || c->world || !tb_core_prepare(c->core, call, &w->o)) return;
  tb_comm_unlock(c);
  uint64_t start = tb_now();
  tb_core_transform(call, &w->o);
  uint64_t took = tb_now() - start;
  tb_comm_lock(c);
  tb_core_note_commit(c->core, input_bytes(call), true, took); /* the inverse will take about as long */
}

int tb_issue(tb_comm *c, const tb_call *given, tb_work **out) {
  int rc = usable(c);
  if (!rc) rc = check_size(given);
  if (rc) return rc;
  uint64_t issued = c->world ? 0 : tb_now(); /* the clock starts here, before any lock */
  tb_work *w = work_new(c);
  if (!w) return tb_fail(-ENOMEM, "no memory for an operation");
  tb_call call = *given;
  if (call.kind == TB_BARRIER) { /* an exact sum of one element: complete only when everybody came */
    call.dtype = TB_I32;
    call.redop = TB_SUM;
    call.count = 1;
    call.in = call.out = w->scratch;
    call.deadline_ns = UINT64_MAX;
  }
  tb_comm_lock(c);
  if (c->world) issued = tb_comm_now(c);
  else if (c->ops) catch_up(c, &call, issued);
  prepare(c, &call, w);
  uint64_t bytes = call.in ? input_bytes(&call) : 0;
  uint32_t region = 0;
  if (c->closing) rc = tb_fail(-ESHUTDOWN, "this communicator is closed");
  if (!rc && c->ops && bytes) {
    rc = c->ops->mem_reg(c->link, call.in, bytes, &region);
    if (rc) tb_set_error("link %s could not register %llu bytes", c->ops->name, (unsigned long long)bytes);
    w->registered = !rc;
  }
  if (!rc) {
    w->next = c->works;
    c->works = w;
    w->o.region = region;
    rc = tb_core_issue(c->core, &call, issued, tb_comm_now(c), &w->o);
    if (rc) {
      tb_set_error("%s", w->o.error);
      c->works = w->next;
      if (w->registered) c->ops->mem_unreg(c->link, region);
    }
  }
  tb_core_unprepare(c->core, &w->o);
  tb_comm_unlock(c);
  if (rc) {
    work_drop(w);
    return rc;
  }
  tb_comm_wake(c);
  *out = w;
  return 0;
}

static int status_of(const tb_work *w) {
  int rc = w->o.result.status;
  if (rc) tb_set_error("%s", w->o.error);
  return rc;
}

/* The inverse transform takes milliseconds: the lock and the progress thread are left to others. The caller was counted
 * on to need as long as this thread does for the transform of an input. */
static void make_output(tb_work *w) {
  tb_comm *c = w->comm;
  uint64_t bytes = w->o.geometry.count * w->o.geometry.elem, start = tb_now();
  tb_core_invert(&w->o);
  uint64_t took = tb_now() - start;
  w->o.result.elapsed_ns += took;
  tb_comm_lock(c);
  tb_core_inverted(c->core, &w->o);
  tb_core_note_commit(c->core, bytes, true, took);
  for (tb_work **at = &c->over; *at; at = &(*at)->next)
    if (*at == w) {
      *at = w->next;
      break;
    }
  tb_comm_unlock(c); /* from here on the communicator may be gone */
  pthread_mutex_lock(&w->lock);
  atomic_store(&w->done, TB_DONE);
  pthread_cond_broadcast(&w->cond);
  pthread_mutex_unlock(&w->lock);
}

static bool claim(tb_work *w) {
  int over = TB_OVER;
  return atomic_compare_exchange_strong(&w->done, &over, TB_ENDING);
}

/* False: it is under way. */
static bool ended(tb_work *w) {
  int at = atomic_load(&w->done);
  if (at == TB_RUNNING) return false;
  if (at == TB_DONE) return true;
  if (claim(w)) make_output(w);
  pthread_mutex_lock(&w->lock);
  while (atomic_load(&w->done) != TB_DONE) pthread_cond_wait(&w->cond, &w->lock);
  pthread_mutex_unlock(&w->lock);
  return true;
}

void tb_works_end(tb_comm *c) {
  for (;;) {
    tb_comm_lock(c);
    tb_work *w = c->over;
    bool none = !w;
    while (w && !claim(w)) w = w->next; /* claimed under the lock: until it is done nobody frees it */
    tb_comm_unlock(c);
    if (none) return;
    if (w) make_output(w);
    else nanosleep(&(struct timespec){0, 50000}, NULL); /* others are at it */
  }
}

int tb_done(tb_work *w) { return ended(w); }

int tb_wait(tb_work *w, int64_t timeout_ns) {
  if (ended(w)) return status_of(w);
  if (w->world) {
    int rc = tb_world_wait(w->world, w, timeout_ns);
    return rc ? rc : status_of(w);
  }
  uint64_t until = timeout_ns < 0 ? 0 : tb_now() + (uint64_t)timeout_ns;
  struct timespec t = {(time_t)(until / TB_SEC), (long)(until % TB_SEC)};
  int rc = 0;
  pthread_mutex_lock(&w->lock);
  while (atomic_load(&w->done) == TB_RUNNING && rc == 0)
    rc = timeout_ns < 0 ? pthread_cond_wait(&w->cond, &w->lock) : pthread_cond_timedwait(&w->cond, &w->lock, &t);
  pthread_mutex_unlock(&w->lock);
  return ended(w) ? status_of(w) : -EAGAIN;
}

int tb_cancel(tb_work *w) {
  if (ended(w)) return 0;
  tb_comm *c = w->comm;
  tb_comm_lock(c);
  if (atomic_load(&w->done) == TB_RUNNING) tb_core_cancel(c->core, &w->o, -ECANCELED, "cancelled by its caller", tb_comm_now(c));
  tb_comm_unlock(c);
  tb_comm_wake(c);
  if (!c->world) tb_wait(w, -1); /* at most until its REFs are reaped, or the link's transmit side was stopped */
  return 0;
}

void tb_work_free(tb_work *w) {
  if (!w) return;
  if (!ended(w)) tb_cancel(w);
  pthread_mutex_lock(&w->lock); /* the thread that set done has left */
  pthread_mutex_unlock(&w->lock);
  work_drop(w);
}

static int finished(const tb_work *w) {
  return atomic_load(&w->done) == TB_DONE ? 0 : tb_fail(-EAGAIN, "the operation is not done: wait for it first");
}

int tb_work_result(const tb_work *w, tb_result *out) {
  int rc = finished(w);
  if (!rc) *out = w->o.result;
  return rc;
}

int tb_work_per_peer(const tb_work *w, int stage, double *out, uint32_t n) {
  int rc = finished(w);
  if (rc) return rc;
  if (stage < 1 || stage > 2 || n != tb_geo_ranks(&w->o.geometry))
    return tb_fail(-EINVAL, "stage must be 1 or 2, and n the number of ranks");
  memcpy(out, w->o.per_peer[stage - 1], n * sizeof *out);
  return 0;
}

int tb_work_mask(const tb_work *w, uint8_t *out, uint64_t n) {
  int rc = finished(w);
  if (rc) return rc;
  if (n != tb_geo_out_elems(&w->o.geometry)) return tb_fail(-EINVAL, "the mask has one byte per element of the output");
  tb_outcome_mask(&w->o, out);
  return 0;
}

const char *tb_work_error(const tb_work *w) { return atomic_load(&w->done) == TB_DONE ? w->o.error : ""; }

int tb_forget(tb_comm *c, const char *key, uint32_t len) {
  int rc = usable(c);
  if (rc) return rc;
  tb_comm_lock(c);
  rc = tb_core_forget(c->core, key, len);
  tb_comm_unlock(c);
  return rc ? tb_fail(rc, "key '%.*s' is not known here", (int)len, key) : 0;
}

int tb_next_round(tb_comm *c, const char *key, uint32_t len, uint32_t *round) {
  int rc = usable(c);
  if (rc) return rc;
  *round = 0;
  tb_comm_lock(c);
  (void)tb_core_next_round(c->core, key, len, round);
  tb_comm_unlock(c);
  return 0;
}

static int view_passed(int rc, const char *key, uint32_t len) {
  return tb_fail(rc, "the membership changed between the steps about key '%.*s': call it again, on every rank", (int)len, key);
}

int tb_resync(tb_comm *c, const char *key, uint32_t len, uint32_t round) {
  int rc = usable(c);
  if (rc) return rc;
  tb_comm_lock(c);
  rc = tb_core_resync(c->core, key, len, round, tb_comm_now(c));
  tb_comm_unlock(c);
  if (rc == -EBUSY)
    return tb_fail(rc, "key '%.*s' has an operation in flight: wait for it before resync", (int)len, key);
  if (rc == -ENETRESET) return view_passed(rc, key, len);
  if (rc == -EINVAL)
    return tb_fail(rc, "key '%.*s' has passed round %u here: take the largest next round of all ranks", (int)len, key,
                   round);
  return rc ? tb_fail(rc, "key '%.*s' cannot be used: too many keys, or its hash is another's", (int)len, key) : 0;
}

static int no_such_key(int rc, const char *key, uint32_t len) {
  if (rc == -ENETRESET) return view_passed(rc, key, len);
  if (rc == -ENOENT) return tb_fail(rc, "key '%.*s' was never used here: flush is for keys that this rank has used",
      (int)len, key);
  if (rc == -EINVAL) return tb_fail(rc, "key '%.*s': the largest next round of all ranks, and a tensor of its size, are needed", (int)len, key);
  return rc ? tb_fail(rc, "no memory to flush key '%.*s'", (int)len, key) : 0;
}

int tb_flush_like(tb_comm *c, const char *key, uint32_t len, tb_call *like) {
  tb_signature sig;
  int rc = usable(c);
  if (rc) return rc;
  tb_comm_lock(c);
  rc = tb_core_flush_like(c->core, key, len, &sig);
  tb_comm_unlock(c);
  if (!rc) *like = (tb_call){.struct_size = sizeof *like, .kind = sig.kind, .dtype = sig.dtype, .redop = sig.redop,
      .count = sig.count, .missing = sig.missing};
  return no_such_key(rc, key, len);
}

int tb_flush_begin(tb_comm *c, const char *key, uint32_t len, uint32_t round) {
  int rc = usable(c);
  if (rc) return rc;
  tb_comm_lock(c);
  rc = tb_core_flush_begin(c->core, key, len, round, tb_comm_now(c));
  tb_comm_unlock(c);
  tb_comm_wake(c);
  return no_such_key(rc, key, len);
}

/* Something to wait for that is no collective: to settle a key, or without one to be a member again. */
static int await(tb_comm *c, const char *key, uint32_t len, tb_work **out) {
  int rc = usable(c);
  tb_work *w = rc ? NULL : work_new(c);
  if (rc) return rc;
  if (!w) return tb_fail(-ENOMEM, "no memory for an operation");
  tb_comm_lock(c);
  w->next = c->works;
  c->works = w;
  if (c->closing) rc = -ESHUTDOWN;
  else rc = key ? tb_core_settle(c->core, key, len, tb_comm_now(c), &w->o) : tb_core_rejoin(c->core, tb_comm_now(c), &w->o);
  for (tb_work **at = &c->works; rc && *at; at = &(*at)->next)
    if (*at == w) {
      *at = w->next;
      break;
    }
  tb_comm_unlock(c);
  if (rc) {
    work_drop(w);
    return rc;
  }
  tb_comm_wake(c);
  *out = w;
  return 0;
}

int tb_settle(tb_comm *c, const char *key, uint32_t len, tb_work **out) {
  int rc = await(c, key, len, out);
  return rc == -ESHUTDOWN ? tb_fail(rc, "this communicator is closed") : no_such_key(rc, key, len);
}

int tb_rejoin(tb_comm *c, tb_work **out) {
  int rc = await(c, NULL, 0, out);
  if (rc == -EBUSY) return tb_fail(rc, "another thread waits in rejoin already");
  return rc == -ESHUTDOWN ? tb_fail(rc, "this communicator is closed") : rc;
}

typedef int correction(tb_core *c, const char *key, uint32_t len, void *out, uint64_t bytes);

static int correct(tb_comm *c, const char *key, uint32_t len, void *out, uint64_t bytes, correction *step) {
  int rc = usable(c);
  if (rc) return rc;
  tb_comm_lock(c);
  rc = step(c->core, key, len, out, bytes);
  tb_comm_unlock(c);
  return no_such_key(rc, key, len);
}

int tb_flush_take(tb_comm *c, const char *key, uint32_t len, void *out, uint64_t bytes) {
  return correct(c, key, len, out, bytes, tb_core_flush_take);
}

int tb_flush_end(tb_comm *c, const char *key, uint32_t len, void *out, uint64_t bytes) {
  return correct(c, key, len, out, bytes, tb_core_flush_end);
}

int tb_min_deadline(tb_comm *c, const tb_call *call, uint64_t *ns) {
  int rc = usable(c);
  if (!rc) rc = check_size(call);
  if (rc) return rc;
  if (call->dtype < 0 || call->dtype >= TB_DTYPES) return tb_fail(-EINVAL, "unknown dtype %d", call->dtype);
  tb_comm_lock(c);
  *ns = tb_core_min_deadline(c->core, call);
  tb_comm_unlock(c);
  return 0;
}
