/* rendezvous_net.c - the sockets of the rendezvous: non-blocking, closed on exec, waits in slices. */
#include "engine/rendezvous_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static _Thread_local int (*interrupt_hook)(void *);
static _Thread_local void *interrupt_ctx;

void tb_rendezvous_set_interrupt(int (*interrupted)(void *), void *ctx) {
  interrupt_hook = interrupted;
  interrupt_ctx = ctx;
}

uint64_t tb_rv_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

int tb_rv_wait(struct pollfd *fds, nfds_t n, uint64_t deadline_ns) {
  uint64_t now = tb_rv_now(), left = deadline_ns > now ? deadline_ns - now : 0;
  if (left > RV_SLICE) left = RV_SLICE;
  struct timespec slice = {.tv_sec = 0, .tv_nsec = (long)left};
  if (ppoll(fds, n, &slice, NULL) < 0)
    for (nfds_t i = 0; i < n; i++) fds[i].revents = 0; /* a signal: nothing is known about the sockets */
  return interrupt_hook && interrupt_hook(interrupt_ctx) ? -EINTR : 0;
}

int tb_rv_recv(int fd, void *buf, size_t n, size_t *got) {
  while (*got < n) {
    ssize_t k = recv(fd, (char *)buf + *got, n - *got, MSG_DONTWAIT);
    if (k == 0) return -ECONNRESET;
    if (k < 0 && errno == EINTR) continue;
    if (k < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -errno;
    *got += (size_t)k;
  }
  return 1;
}

int tb_rv_send(int fd, const void *buf, size_t n, size_t *sent) {
  while (*sent < n) {
    ssize_t k = send(fd, (const char *)buf + *sent, n - *sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (k < 0 && errno == EINTR) continue;
    if (k < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -errno;
    *sent += (size_t)k;
  }
  return 1;
}

void tb_rv_who(const struct sockaddr_storage *addr, char out[RV_WHO]) {
  char ip[INET6_ADDRSTRLEN] = "?";
  if (addr->ss_family == AF_INET6) {
    const struct sockaddr_in6 *a = (const struct sockaddr_in6 *)addr;
    if (IN6_IS_ADDR_V4MAPPED(&a->sin6_addr)) { /* an IPv4 peer of a dual-stack listener */
      inet_ntop(AF_INET, a->sin6_addr.s6_addr + 12, ip, sizeof ip);
      snprintf(out, RV_WHO, "%s:%u", ip, ntohs(a->sin6_port));
      return;
    }
    inet_ntop(AF_INET6, &a->sin6_addr, ip, sizeof ip);
    snprintf(out, RV_WHO, "[%s]:%u", ip, ntohs(a->sin6_port));
  } else {
    const struct sockaddr_in *a = (const struct sockaddr_in *)addr;
    inet_ntop(AF_INET, &a->sin_addr, ip, sizeof ip);
    snprintf(out, RV_WHO, "%s:%u", ip, ntohs(a->sin_port));
  }
}

static void set_nodelay(int fd) {
  int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

int tb_rv_accept(int listener, char who[RV_WHO]) {
  struct sockaddr_storage addr = {0};
  socklen_t len = sizeof addr;
  int fd = accept4(listener, (struct sockaddr *)&addr, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) return -errno;
  set_nodelay(fd);
  tb_rv_who(&addr, who);
  return fd;
}

static int listen_on(const struct sockaddr_storage *addr, bool dual) {
  int on = 1, off = 0;
  int fd = socket(addr->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -errno;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); /* a restart must not wait for TIME_WAIT */
  if (addr->ss_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, dual ? &off : &on, sizeof on);
  if (bind(fd, (const struct sockaddr *)addr, tb_rv_socklen(addr)) == 0 && listen(fd, TB_RENDEZVOUS_RANKS) == 0)
    return fd;
  int err = -errno;
  close(fd);
  return err;
}

static void any(int family, uint16_t port, struct sockaddr_storage *out) {
  memset(out, 0, sizeof *out);
  out->ss_family = (sa_family_t)family;
  if (family == AF_INET6)
    ((struct sockaddr_in6 *)out)->sin6_port = htons(port);
  else
    ((struct sockaddr_in *)out)->sin_port = htons(port);
}

/* One pass over what can be listened on; out[0] >= 0 on success. */
static int listen_once(const char *host, uint16_t port, int out[RV_LISTENERS]) {
  struct sockaddr_storage addr;
  int fd;
  if (strcmp(host, "localhost") == 0) {
    tb_rv_numeric("127.0.0.1", port, &addr);
    if ((out[0] = listen_on(&addr, false)) < 0) return out[0];
    if (tb_rv_numeric("::1", port, &addr) == 0) out[1] = listen_on(&addr, false); /* no IPv6 here: IPv4 serves */
    return 0;
  }
  if (tb_rv_numeric(host, port, &addr) == 0) {
    fd = listen_on(&addr, false);
    if (fd != -EADDRNOTAVAIL) return (out[0] = fd) < 0 ? fd : 0;
    int family = addr.ss_family; /* not ours: an address that is translated on its way to us */
    any(family, port, &addr);
    return (out[0] = listen_on(&addr, false)) < 0 ? out[0] : 0;
  }
  any(AF_INET6, port, &addr);
  fd = listen_on(&addr, true);
  if (fd < 0 && fd != -EADDRINUSE) {
    any(AF_INET, port, &addr);
    fd = listen_on(&addr, false);
  }
  return (out[0] = fd) < 0 ? fd : 0;
}

int tb_rv_listen(const char *host, uint16_t port, uint64_t deadline_ns, int out[RV_LISTENERS], char *error,
                 size_t error_len) {
  uint64_t now = tb_rv_now(), patience = deadline_ns > now ? (deadline_ns - now) / 4 : 0;
  int err;
  /* A predecessor that is just going down gets a little time to let go of the port. */
  if (patience > 3000 * RV_MS) patience = 3000 * RV_MS;
  for (;;) {
    out[0] = out[1] = -1;
    err = listen_once(host, port, out);
    if (err != -EADDRINUSE || tb_rv_now() >= now + patience) break;
    uint64_t nap = tb_rv_now() + 50 * RV_MS;
    int stop = tb_rv_wait(NULL, 0, nap < now + patience ? nap : now + patience);
    if (stop) err = stop;
    if (stop) break;
  }
  if (err == 0) return 0;
  out[0] = out[1] = -1;
  if (err == -EINTR) {
    snprintf(error, error_len, "interrupted");
  } else if (err == -EADDRINUSE) {
    char name[64];
    int owner = tb_rv_port_owner(port, name, sizeof name);
    if (owner == (int)getpid())
      snprintf(error, error_len,
               "port %u is in use by this very process: give each communicator its own TAILBOUND_MASTER_PORT", port);
    else if (owner)
      snprintf(error, error_len,
               "port %u is in use by process %d (%s): end it, or set TAILBOUND_MASTER_PORT to another port on every "
               "rank",
               port, owner, name);
    else
      snprintf(error, error_len,
               "port %u is in use by another process: set TAILBOUND_MASTER_PORT to another port on every rank", port);
  } else {
    snprintf(error, error_len, "cannot listen on port %u: %s; check TAILBOUND_MASTER_ADDR and TAILBOUND_MASTER_PORT",
             port, strerror(-err));
  }
  return err;
}

int tb_rv_connect(const struct sockaddr_storage *addr, uint64_t deadline_ns) {
  struct sockaddr_storage self = {0}, peer = {0};
  socklen_t self_len = sizeof self, peer_len = sizeof peer, err_len = sizeof(int);
  int err = 0;
  int fd = socket(addr->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -errno;
  set_nodelay(fd);
  if (connect(fd, (const struct sockaddr *)addr, tb_rv_socklen(addr)) < 0 && errno != EINPROGRESS) err = -errno;
  while (!err) {
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    err = tb_rv_wait(&p, 1, deadline_ns);
    if (err || p.revents) break;
    if (tb_rv_now() >= deadline_ns) err = -ETIMEDOUT;
  }
  if (!err) {
    int status = 0;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &status, &err_len);
    err = -status;
  }
  /* Knocking at a closed local port, a socket can be given that very port and meet itself. It would then also keep
   * rank 0 from listening there. */
  if (!err && getsockname(fd, (struct sockaddr *)&self, &self_len) == 0 &&
      getpeername(fd, (struct sockaddr *)&peer, &peer_len) == 0 && self_len == peer_len &&
      memcmp(&self, &peer, self_len) == 0)
    err = -ECONNREFUSED;
  if (!err) return fd;
  close(fd);
  return err;
}

void tb_rv_say_error(rv_conn *c, const tb_rendezvous *r, int err, const char *text) {
  uint8_t message[RV_HEAD + RV_TEXT];
  size_t len = strlen(text), sent = 0;
  if (c->fd < 0) return;
  if (len > RV_TEXT) len = RV_TEXT;
  tb_rv_encode(&(rv_head){.version = RV_VERSION,
                          .type = RV_ERROR,
                          .rank = (uint32_t)r->rank,
                          .size = (uint32_t)r->size,
                          .arg = (uint32_t)-err,
                          .len = (uint32_t)len},
               message);
  memcpy(message + RV_HEAD, text, len);
  if (!c->mid_frame) tb_rv_send(c->fd, message, RV_HEAD + len, &sent);
  shutdown(c->fd, SHUT_WR);
}

void tb_rv_farewell(rv_conn *conns, int n) {
  uint64_t end = tb_rv_now() + 200 * RV_MS;
  struct pollfd fds[64];
  char waste[4096];
  for (;;) {
    int k = 0, of[64];
    for (int i = 0; i < n && k < 64; i++)
      if (conns[i].fd >= 0) fds[k] = (struct pollfd){.fd = conns[i].fd, .events = POLLIN}, of[k++] = i;
    if (k == 0 || tb_rv_now() >= end) break;
    uint64_t left = end - tb_rv_now();
    struct timespec slice = {.tv_nsec = (long)(left < 200 * RV_MS ? left : 0)};
    if (ppoll(fds, (nfds_t)k, &slice, NULL) <= 0)
      continue; /* not tb_rv_wait: an interrupt already being told must not cut it */
    for (int i = 0; i < k; i++) {
      ssize_t got;
      if (!fds[i].revents) continue;
      do got = recv(fds[i].fd, waste, sizeof waste, MSG_DONTWAIT);
      while (got > 0);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      close(fds[i].fd);
      conns[of[i]].fd = -1;
    }
  }
  for (int i = 0; i < n; i++) {
    if (conns[i].fd >= 0) close(conns[i].fd);
    conns[i].fd = -1;
  }
}
