/* rendezvous_resolve.c - host names to addresses, bounded by a deadline. */
#include "engine/rendezvous_internal.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  pthread_mutex_t lock;
  int owners; /* the waiting thread and the looking one; the last frees it */
  bool done;
  int err, system_errno, count;
  struct sockaddr_storage addr[RV_ADDRS];
  char host[256], port[8];
} lookup;

socklen_t tb_rv_socklen(const struct sockaddr_storage *addr) {
  return addr->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

static int collect(const char *host, const char *port, int flags, struct sockaddr_storage *out, int *count) {
  struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = flags}, *list;
  int err = getaddrinfo(host, port, &hints, &list);
  *count = 0;
  if (err) return err;
  for (struct addrinfo *a = list; a && *count < RV_ADDRS; a = a->ai_next) {
    if (a->ai_family != AF_INET && a->ai_family != AF_INET6) continue;
    memset(&out[*count], 0, sizeof out[*count]);
    memcpy(&out[(*count)++], a->ai_addr, a->ai_addrlen);
  }
  freeaddrinfo(list);
  return *count ? 0 : EAI_NONAME;
}

int tb_rv_numeric(const char *host, uint16_t port, struct sockaddr_storage *out) {
  struct sockaddr_storage found[RV_ADDRS];
  char service[8];
  int count;
  snprintf(service, sizeof service, "%u", port);
  if (collect(host, service, AI_NUMERICHOST | AI_NUMERICSERV, found, &count)) return -EINVAL;
  *out = found[0];
  return 0;
}

static void release(lookup *l) {
  pthread_mutex_lock(&l->lock);
  int owners = --l->owners;
  pthread_mutex_unlock(&l->lock);
  if (owners) return;
  pthread_mutex_destroy(&l->lock);
  free(l);
}

static void *look_up(void *arg) {
  lookup *l = arg;
  struct sockaddr_storage addr[RV_ADDRS];
  int count, err = collect(l->host, l->port, AI_NUMERICSERV, addr, &count);
  int system_errno = errno;
  pthread_mutex_lock(&l->lock);
  l->err = err;
  l->system_errno = system_errno;
  l->count = count;
  memcpy(l->addr, addr, sizeof *addr * (size_t)count);
  l->done = true;
  pthread_mutex_unlock(&l->lock);
  release(l);
  return NULL;
}

int tb_rv_resolve(const char *host, uint16_t port, uint64_t deadline_ns, struct sockaddr_storage out[RV_ADDRS],
                  int *count, char *error, size_t error_len) {
  *count = 1;
  if (tb_rv_numeric(host, port, out) == 0) return 0;
  *count = 0;
  lookup *l = calloc(1, sizeof *l);
  if (!l) return -ENOMEM;
  pthread_mutex_init(&l->lock, NULL);
  l->owners = 2;
  snprintf(l->host, sizeof l->host, "%s", host);
  snprintf(l->port, sizeof l->port, "%u", port);

  pthread_t thread;
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
  int err = -pthread_create(&thread, &attr, look_up, l);
  pthread_attr_destroy(&attr);
  if (err) {
    l->owners = 1;
    release(l);
    snprintf(error, error_len, "no thread for resolving '%s': %s", host, strerror(-err));
    return err;
  }

  bool done = false;
  for (uint64_t nap = RV_MS / 2; !done && !err; nap = nap < 20 * RV_MS ? nap * 2 : nap) {
    uint64_t now = tb_rv_now();
    if (now >= deadline_ns) err = -ETIMEDOUT;
    if (!err) err = tb_rv_wait(NULL, 0, now + nap < deadline_ns ? now + nap : deadline_ns);
    pthread_mutex_lock(&l->lock);
    done = l->done;
    pthread_mutex_unlock(&l->lock);
  }
  if (done) {
    err = l->err ? -EAGAIN : 0;
    *count = l->count;
    memcpy(out, l->addr, sizeof *out * (size_t)l->count);
    if (l->err)
      snprintf(error, error_len, "cannot resolve '%s': %s", host,
               l->err == EAI_SYSTEM ? strerror(l->system_errno) : gai_strerror(l->err));
  } else if (err == -ETIMEDOUT) {
    snprintf(error, error_len, "resolving '%s' took too long", host);
  }
  release(l);
  return err;
}
