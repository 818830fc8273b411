/* wait.c - waiting for completions, and being woken.
 *
 * busy      polls without end and without a system call: a core a rank.
 * adaptive  polls for some microseconds after the last frame either way, since the next one is likely near; then asks
 *           the completion queues to ring, polls once more, and sleeps until they do.
 *
 * Each look is made under the guard (lane.h), which nobody else holds but for a moment. */
#include "plugins/verbs/verbs.h"
#include <errno.h>
#include <poll.h>

enum { SPIN_NS = 20000, ACK_MOST = 64 };

void verbs_wake(tb_link *link, uint32_t lane) {
  if (!lane) tb_waker_wake(&verbs_of(link)->waker);
}

/* What there is without looking at the device. */
static int known(verbs_link *l) {
  int bits = l->stash_at < l->stashed ? TB_WAIT_RX : 0;
  if (tb_events_fresh(&l->events)) bits |= TB_WAIT_EVENT;
  if (tb_waker_taken(&l->waker)) {
    bits |= TB_WAIT_WAKE;
    l->idle_since = 0;
  }
  return bits;
}

/* Room to send, where it was lacking; the caller's memory, where it is being read. */
static int sent(verbs_link *l) {
  bool reading = l->reaped != l->refs;
  if (!l->blocked && !reading) return 0;
  bool came = verbs_tx_poll(l);
  if (l->blocked && l->head - l->tail < l->tx.count) {
    l->blocked = false;
    return TB_WAIT_TX;
  }
  return came && reading && l->reaped == l->refs ? TB_WAIT_TX : 0;
}

static int look(verbs_link *l) {
  int bits = known(l);
  if (bits) return bits;
  tb_guard_enter(&l->guard);
  verbs_rx_fill(l);
  bits = sent(l);
  verbs_qp_mend(l);
  if (l->olds) verbs_routes_reap(l);
  tb_guard_leave(&l->guard);
  return bits | known(l);
}

static void count_rings(verbs_link *l) {
  struct ibv_cq *cq;
  void *of;
  while (!ibv_get_cq_event(l->channel, &cq, &of)) ++*(cq == l->tx_cq ? &l->unacked_tx : &l->unacked_rx);
  if (l->unacked_tx >= ACK_MOST) ibv_ack_cq_events(l->tx_cq, l->unacked_tx), l->unacked_tx = 0;
  if (l->unacked_rx >= ACK_MOST) ibv_ack_cq_events(l->rx_cq, l->unacked_rx), l->unacked_rx = 0;
}

/* What completes after it was asked to ring does; what completed before is seen by the look in between. */
static int sleep_until(verbs_link *l, uint64_t now, uint64_t until) {
  struct pollfd p[2] = {{.fd = l->waker.fd, .events = POLLIN}, {.fd = l->channel->fd, .events = POLLIN}};
  uint64_t left = until > now ? until - now : 0;
  struct timespec t = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
  tb_waker_lie_down(&l->waker);
  int bits = 0;
  if (ibv_req_notify_cq(l->rx_cq, 0) || ((l->blocked || l->reaped != l->refs) && ibv_req_notify_cq(l->tx_cq, 0)))
    t = (struct timespec){0, left < SPIN_NS ? (long)left : SPIN_NS}; /* it does not ring: look again soon */
  bits = look(l);
  if (!bits && tb_waker_may_sleep(&l->waker)) (void)ppoll(p, 2, &t, NULL);
  tb_waker_get_up(&l->waker, p[0].revents & POLLIN);
  if (p[1].revents & POLLIN) count_rings(l);
  return bits;
}

/* Lets some time go by. */
static int pause_once(verbs_link *l, uint64_t now, uint64_t until) {
  if (!l->idle_since) l->idle_since = now;
  if (l->busy || now - l->idle_since < SPIN_NS) {
    tb_lane_pause();
    return 0;
  }
  if (l->down_until && l->down_until < until) until = l->down_until;
  return sleep_until(l, now, until);
}

int verbs_wait(tb_link *link, uint32_t lane, uint64_t deadline_ns) {
  verbs_link *l = verbs_of(link);
  if (lane) return -EINVAL;
  for (;;) {
    int bits = look(l);
    if (bits) return bits;
    uint64_t now = verbs_now();
    if (now >= deadline_ns) return TB_WAIT_TIMEOUT;
    bits = pause_once(l, now, deadline_ns);
    if (bits) return bits;
  }
}
