/* progress.c - the progress thread: from init to close the only user of the lane. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <time.h>
#include "engine/comm.h"

uint64_t tb_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * TB_SEC + (uint64_t)t.tv_nsec;
}

uint64_t tb_comm_now(const tb_comm *c) { return c->world ? tb_world_time(c->world) : tb_now(); }

void tb_comm_lock(tb_comm *c) {
  atomic_fetch_add(&c->waiters, 1);
  pthread_mutex_lock(c->lock);
  atomic_fetch_sub(&c->waiters, 1);
}

void tb_comm_unlock(tb_comm *c) {
  if (c->world) tb_world_touch(c->world, c->rank);
  pthread_mutex_unlock(c->lock);
}

void tb_comm_wake(tb_comm *c) {
  if (c->running) c->ops->wake(c->link, 0);
}

/* Looks for frames a little longer before sleeping while an operation is under way. Not for the microseconds alone: two
 * ranks that only ever wake each other look to the scheduler like one task, and it keeps them on one core; a thread
 * that is still runnable is moved to the idle one. Only where every rank of this host has a core to itself. */
static bool spin(tb_comm *c, uint64_t next) {
  uint64_t until = tb_now() + tb_config_tunables(c->cfg)->spin;
  for (uint64_t now = 0; now < until && now < next && !atomic_load(&c->stop); now = tb_now())
    if (c->ops->wait(c->link, 0, 0) & ~TB_WAIT_TIMEOUT) return true;
  return false;
}

static void *progress(void *arg) {
  tb_comm *c = arg;
  while (!atomic_load(&c->stop)) {
    for (int turn = 0; turn < 100 && atomic_load(&c->waiters); turn++) sched_yield();
    pthread_mutex_lock(c->lock);
    bool more = tb_pump(c);
    uint64_t next = tb_pump_next(c);
    bool busy = c->spins && c->works;
    pthread_mutex_unlock(c->lock);
    if (!more && !(busy && spin(c, next)) && c->ops->wait(c->link, 0, next) < 0)
      nanosleep(&(struct timespec){0, 1000000}, NULL);
  }
  return NULL;
}

int tb_progress_start(tb_comm *c) {
  sigset_t all, old; /* signals belong to the caller's threads: Ctrl-C must reach Python, not us */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  int rc = pthread_create(&c->thread, NULL, progress, c);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (rc) return -rc;
  c->running = true;
  return 0;
}

void tb_progress_stop(tb_comm *c) {
  if (!c->running) return;
  atomic_store(&c->stop, 1);
  c->ops->wake(c->link, 0);
  pthread_join(c->thread, NULL);
  c->running = false;
}
