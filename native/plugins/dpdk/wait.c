/* wait.c - waiting on a device that nobody announces frames of, and being woken.
 *
 * busy      looks without end and, but for the state of the link twice a second, without a system call: a core a rank.
 * adaptive  looks for some microseconds after the last frame either way, since the next one is likely near; then gives
 *           the core away after each look, since another rank may be what it waits for; then sleeps, a quarter of the
 *           time that nothing came and at most 100 us. With a receive interrupt, or a socket of the kernel's under the
 *           device, it sleeps until that tells.
 *
 * Each look is made under the guard (lane.h), which nobody else holds but for a moment. */
#include "plugins/dpdk/dpdk.h"
#include <errno.h>
#include <poll.h>
#include <rte_pause.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

enum { SPIN_NS = 20000, YIELD_NS = 100000, SLEEP_NS = 100000, ROOM_NS = 20000, LOOK_BURSTS = 16 };

/* Sleeping ends late by the kernel's timer slack (50 us) and what scheduling takes. */
uint64_t dpdk_wait_timer_ns(const dpdk_link *l) { return l->busy ? 5000 : 100000; }

void dpdk_wake(tb_link *link, uint32_t lane) {
  if (!lane) tb_waker_wake(&dpdk_of(link)->waker);
}

/* What there is without looking at the device. */
static int known(dpdk_link *l) {
  int bits = l->stash_at < l->stashed ? TB_WAIT_RX : 0;
  if (tb_events_fresh(&l->events)) bits |= TB_WAIT_EVENT;
  if (tb_waker_taken(&l->waker)) {
    bits |= TB_WAIT_WAKE;
    l->idle_since = 0;
  }
  return bits;
}

/* Until a frame of ours is there, or nothing is left: behind a flood of foreign ones ours would wait, and find the ring
 * full. Bounded, so that a flood does not keep others from the guard. True: there may be more, and no time to sleep. */
static bool empty_device(dpdk_link *l) {
  for (int i = 0; i < LOOK_BURSTS; i++)
    if (dpdk_rx_fill(l) < DPDK_RX_BURST || l->stashed) return false;
  l->idle_since = 0;
  return true;
}

/* One look at the device; *next: when a neighbour has to be asked. */
static int look(dpdk_link *l, uint64_t now, uint64_t *next) {
  int bits = known(l);
  if (bits) return bits;
  tb_guard_enter(&l->guard);
  (void)empty_device(l);
  dpdk_peers_timers(l, now);
  dpdk_link_look(l, now);
  *next = tb_neighbours_next(l->neighbours);
  tb_guard_leave(&l->guard);
  return known(l);
}

/* Interrupts are on, and what came before they were is in the stash, or `more` than that is left: else sleeping is
 * safe. */
static bool arm(dpdk_link *l, bool *more) {
  if (l->rx_fd < 0) return false;
  tb_guard_enter(&l->guard);
  int rc = rte_eth_dev_rx_intr_enable(l->port->id, 0);
  if (!rc) *more = empty_device(l);
  tb_guard_leave(&l->guard);
  if (!rc) return true;
  l->rx_fd = -1;
  dpdk_event(l, 30, "dpdk: %s refuses its receive interrupt (%d): sleeping %d us at a time from now on",
             l->port->device.name, rc, SLEEP_NS / 1000);
  return false;
}

/* Not every kind of interrupt file gives 8 bytes: those of uio give 4. */
static void disarm(dpdk_link *l, bool rang) {
  uint64_t count;
  tb_guard_enter(&l->guard);
  (void)rte_eth_dev_rx_intr_disable(l->port->id, 0);
  tb_guard_leave(&l->guard);
  if (rang && read(l->rx_fd, &count, sizeof count) < 0 && read(l->rx_fd, &count, 4) < 0) l->rx_fd = -1;
}

/* A descriptor that tells of frames by itself, as long as there are any. */
static bool level(const dpdk_link *l) { return l->rx_fd < 0 && l->port->kernel_fd >= 0; }

static void sleep_until(dpdk_link *l, uint64_t now, uint64_t until) {
  struct pollfd p[2] = {{.fd = l->waker.fd, .events = POLLIN},
                        {.fd = level(l) ? l->port->kernel_fd : l->rx_fd, .events = POLLIN}};
  uint64_t left = until > now ? until - now : 0;
  struct timespec t = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
  tb_waker_lie_down(&l->waker);
  bool more = false, armed = arm(l, &more), told = armed || level(l);
  if (!told && left > SLEEP_NS) t = (struct timespec){0, SLEEP_NS};
  if (!more && tb_waker_may_sleep(&l->waker) && l->stash_at == l->stashed) (void)ppoll(p, told ? 2 : 1, &t, NULL);
  tb_waker_get_up(&l->waker, p[0].revents & POLLIN);
  if (armed) disarm(l, p[1].revents & POLLIN);
  else if (told && p[1].revents & POLLERR) dpdk_socket_clear(l->port); /* its interface went down: said again, else, for ever */
}

/* Lets some time go by. */
static void pause_once(dpdk_link *l, uint64_t now, uint64_t until) {
  if (!l->idle_since) l->idle_since = now;
  uint64_t idle = now > l->idle_since ? now - l->idle_since : 0;
  if (l->kick_due && idle >= SPIN_NS) l->kick_due = !dpdk_socket_kick(l->port);
  if (l->busy || idle < SPIN_NS) {
    rte_pause();
  } else if (idle < YIELD_NS) {
    sched_yield();
  } else {
    uint64_t step = idle / 4 < SLEEP_NS ? idle / 4 : SLEEP_NS;
    if (l->kick_due || (l->rx_fd < 0 && !level(l))) until = now + step < until ? now + step : until;
    sleep_until(l, now, until);
  }
}

int dpdk_wait(tb_link *link, uint32_t lane, uint64_t deadline_ns) {
  dpdk_link *l = dpdk_of(link);
  if (lane) return -EINVAL;
  int rc = dpdk_thread_enter();
  if (rc) return rc;
  uint64_t start = 0, next = UINT64_MAX;
  for (;;) {
    uint64_t now = dpdk_now();
    int bits = look(l, now, &next);
    if (bits) return bits;
    if (!start) start = now;
    if (l->blocked && now - start >= ROOM_NS) { /* by now the device may have room: only trying tells */
      l->blocked = false;
      return TB_WAIT_TX;
    }
    if (now >= deadline_ns) return TB_WAIT_TIMEOUT;
    uint64_t until = deadline_ns < next ? deadline_ns : next;
    if (l->link_look_at < until) until = l->link_look_at;
    if (l->blocked && start + ROOM_NS < until) until = start + ROOM_NS;
    pause_once(l, now, until);
  }
}
