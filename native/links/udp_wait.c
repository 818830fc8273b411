/* udp_wait.c - sleeping until something happens, and being woken.
 *
 * One ppoll over the sockets and an eventfd both polls and sleeps, in nanoseconds, with no state in the kernel to keep
 * in step: room to send is asked for only when the last burst lacked it. */
#include "links/udp.h"
#include <errno.h>
#include <time.h>
#include <unistd.h>

uint64_t tb_udp_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The eventfd is emptied before the flag is: the other way round a wake between the two would raise the flag over an
 * empty eventfd, and nobody would be woken again. */
static void take_wake(udp_link *u) {
  uint64_t count;
  ssize_t r = read(u->event_fd, &count, sizeof count);
  (void)r; /* a waker that raised the flag may not have written yet; its write only causes one spurious wake */
  atomic_exchange(&u->wake_pending, false);
}

void tb_udp_wake(tb_link *link, uint32_t lane) {
  udp_link *u = udp_of(link);
  uint64_t one = 1;
  int saved = errno; /* may run in a signal handler */
  if (lane || atomic_exchange(&u->wake_pending, true)) return;
  ssize_t r = write(u->event_fd, &one, sizeof one);
  (void)r; /* cannot fail but by a full counter, which wakes as well */
  errno = saved;
}

/* What is known without asking the kernel. */
static int known(udp_link *u) {
  int bits = 0;
  if (u->next != u->head) bits |= TB_WAIT_RX;
  if (tb_events_fresh(&u->events)) bits |= TB_WAIT_EVENT;
  if (atomic_load_explicit(&u->wake_pending, memory_order_relaxed)) {
    take_wake(u);
    bits |= TB_WAIT_WAKE;
  }
  return bits;
}

/* A pending ICMP error would end every sleep at once; reading it clears it. What it concerns is lost anyhow. */
static void clear_error(int fd) {
  int error;
  socklen_t len = sizeof error;
  (void)getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
}

static int collect(udp_link *u) {
  int bits = 0;
  for (uint32_t i = 0; i < u->flows; i++) {
    short got = u->poll[i].revents;
    u->sock[i].dry = !(got & POLLIN); /* saves the next pass a fruitless call per idle socket */
    if (got & POLLIN) bits |= TB_WAIT_RX;
    if (got & POLLOUT) {
      bits |= TB_WAIT_TX;
      u->blocked = -1;
    }
    if (got & (POLLERR | POLLHUP)) clear_error(u->sock[i].fd);
  }
  u->polled = true;
  if (u->poll[u->flows].revents & POLLIN) {
    take_wake(u);
    bits |= TB_WAIT_WAKE;
  }
  return bits;
}

int tb_udp_wait(tb_link *link, uint32_t lane, uint64_t deadline_ns) {
  udp_link *u = udp_of(link);
  if (lane) return -EINVAL;
  int bits = known(u);
  if (bits) return bits;
  for (uint32_t i = 0; i < u->flows; i++) u->poll[i].events = (int)i == u->blocked ? POLLIN | POLLOUT : POLLIN;
  for (;;) {
    uint64_t now = tb_udp_now(), left = deadline_ns > now ? deadline_ns - now : 0;
    struct timespec t = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
    int r = ppoll(u->poll, u->flows + 1, deadline_ns == UINT64_MAX ? NULL : &t, NULL);
    if (r < 0 && errno != EINTR) return -errno;
    if (r > 0 && (bits = collect(u))) return bits;
    if (!left && r >= 0) return TB_WAIT_TIMEOUT; /* polled at or after the deadline */
    if (r == 0 && tb_udp_now() >= deadline_ns) return TB_WAIT_TIMEOUT;
  }
}
