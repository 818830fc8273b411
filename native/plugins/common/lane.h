/* lane.h - what plugins share of a lane: being woken, and letting others in while its owner waits.
 *
 * A waker raises a flag, and writes to the eventfd only when the owner says that it sleeps: each sets its own flag and
 * then looks at the other's, so one of them sees. The guard is held by the owner while it looks at the device inside
 * wait(), and by those who may work on the link meanwhile (link.h, rule 1): the owner lets them go first, as mutexes are
 * not fair. */
#ifndef TB_PLUGIN_LANE_H
#define TB_PLUGIN_LANE_H
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

typedef struct {
  int fd;                  /* eventfd; -1 = not opened */
  atomic_bool woken, asleep;
} tb_waker;

static inline int tb_waker_open(tb_waker *w) {
  w->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  return w->fd < 0 ? -errno : 0;
}

static inline void tb_waker_close(tb_waker *w) {
  if (w->fd >= 0) close(w->fd);
  w->fd = -1;
}

/* Ends a sleep, without saying why. From any thread, and in a signal handler. */
static inline void tb_waker_nudge(tb_waker *w) {
  uint64_t one = 1;
  int saved = errno;
  if (!atomic_load(&w->asleep)) return;
  ssize_t r = write(w->fd, &one, sizeof one);
  (void)r; /* cannot fail but by a full counter, which wakes as well */
  errno = saved;
}

static inline void tb_waker_wake(tb_waker *w) {
  if (!atomic_exchange(&w->woken, true)) tb_waker_nudge(w);
}

/* The owner: whether somebody woke it since it asked last. */
static inline bool tb_waker_taken(tb_waker *w) {
  return atomic_load_explicit(&w->woken, memory_order_relaxed) && atomic_exchange(&w->woken, false);
}

/* The owner, around its poll(); rang: the eventfd was readable. */
static inline void tb_waker_lie_down(tb_waker *w) { atomic_store(&w->asleep, true); }
static inline bool tb_waker_may_sleep(tb_waker *w) { return !atomic_load(&w->woken); }
static inline void tb_waker_get_up(tb_waker *w, bool rang) {
  uint64_t count;
  atomic_store(&w->asleep, false);
  if (!rang) return;
  ssize_t r = read(w->fd, &count, sizeof count);
  (void)r; /* the flag is what counts */
}

static inline void tb_lane_pause(void) { /* of a spinning thread: its sibling on the core gets the core's units */
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

typedef struct {
  pthread_mutex_t lock;
  atomic_uint guests;      /* threads that want it */
} tb_guard;

static inline void tb_guard_init(tb_guard *g) { pthread_mutex_init(&g->lock, NULL); }
static inline void tb_guard_destroy(tb_guard *g) { pthread_mutex_destroy(&g->lock); }

static inline void tb_guard_visit(tb_guard *g) {
  atomic_fetch_add(&g->guests, 1);
  pthread_mutex_lock(&g->lock);
  atomic_fetch_sub(&g->guests, 1);
}

static inline void tb_guard_enter(tb_guard *g) { /* the owner */
  while (atomic_load_explicit(&g->guests, memory_order_relaxed)) sched_yield();
  pthread_mutex_lock(&g->lock);
}

static inline void tb_guard_leave(tb_guard *g) { pthread_mutex_unlock(&g->lock); }

#endif
