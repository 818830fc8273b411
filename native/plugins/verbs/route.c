/* route.c - address handles. Making one may ask the kernel who has an address, and wait a second for the answer: so a
 * thread of its own makes them, one after the other, and hands each to the lane by an atomic pointer. The same thread
 * hears the device's asynchronous events. */
#include "plugins/verbs/verbs.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { AGAIN_MS = 500, HOPS = 64 };

static struct ibv_ah *make(verbs_link *l, const verbs_where *w) {
  struct ibv_ah_attr a = {.dlid = w->lid, .port_num = (uint8_t)l->at.port};
  a.is_global = l->at.ethernet || memcmp(w->gid, l->gid, 8); /* another subnet: only the GID leads there */
  a.grh = (struct ibv_global_route){.sgid_index = (uint8_t)l->at.gid.index, .hop_limit = HOPS};
  memcpy(a.grh.dgid.raw, w->gid, 16);
  return ibv_create_ah(l->pd, &a);
}

static void tell(verbs_link *l, verbs_route *r, int error) {
  char text[64] = "";
  if (r->told) return;
  r->told = true;
  verbs_gid_text(r->where.gid, text, sizeof text);
  verbs_event(l, 40, "verbs: %s cannot be reached from port %u of %s (%s): is it up, in this network or behind a router, "
              "and of the same kind? It is tried again", text, l->at.port, l->at.device, strerror(error));
}

static void resolve(verbs_link *l, verbs_route *r) {
  struct ibv_ah *ah = make(l, &r->where), *unused;
  int error = ah ? 0 : errno ? errno : EIO;
  if (ah) {
    unused = atomic_exchange(&r->fresh, ah);
    if (unused) ibv_destroy_ah(unused); /* the lane never saw it */
    r->told = false;
  } else {
    tell(l, r, error);
  }
  atomic_store(&r->state, -error);
  pthread_mutex_lock(&l->router.lock);
  r->again = error;
  pthread_mutex_unlock(&l->router.lock);
}

/* Under the lock. */
static void enqueue(verbs_router *w, verbs_route *r) {
  if (r->queued) return;
  r->queued = true;
  r->again = false;
  r->next_job = NULL;
  *w->jobs_end = r;
  w->jobs_end = &r->next_job;
}

static verbs_route *next_job(verbs_router *w) {
  pthread_mutex_lock(&w->lock);
  verbs_route *r = w->stop ? NULL : w->jobs;
  if (r) {
    w->jobs = r->next_job;
    if (!w->jobs) w->jobs_end = &w->jobs;
    r->queued = false;
  }
  pthread_mutex_unlock(&w->lock);
  return r;
}

/* Those that failed get another turn; false = there are none. */
static bool retry(verbs_link *l, bool now) {
  bool any = false;
  pthread_mutex_lock(&l->router.lock);
  for (verbs_route *r = l->routes; r; r = r->next) {
    any |= r->again;
    if (r->again && now) enqueue(&l->router, r);
  }
  pthread_mutex_unlock(&l->router.lock);
  return any;
}

static void hear(verbs_link *l, const struct ibv_async_event *e) {
  const char *device = l->at.device;
  switch (e->event_type) {
  case IBV_EVENT_QP_FATAL:
  case IBV_EVENT_QP_REQ_ERR:
  case IBV_EVENT_QP_ACCESS_ERR:
    if (e->element.qp == l->qp) atomic_store(&l->broken, true);
    break;
  case IBV_EVENT_PORT_ERR:
    if ((uint32_t)e->element.port_num == l->at.port)
      verbs_event(l, 30, "verbs: port %u of %s went down: the cable, the other end, or ip link set up dev %s",
                  l->at.port, device, *l->at.gid.netdev ? l->at.gid.netdev : "IFACE");
    break;
  case IBV_EVENT_PORT_ACTIVE:
    if ((uint32_t)e->element.port_num == l->at.port)
      verbs_event(l, 20, "verbs: port %u of %s is up", l->at.port, device);
    break;
  case IBV_EVENT_DEVICE_FATAL:
  case IBV_EVENT_CQ_ERR:
  case IBV_EVENT_SRQ_ERR:
    verbs_event(l, 40, "verbs: %s reports a fatal error (%s): nothing comes any more; see dmesg, and start this rank "
                "again", device, ibv_event_type_str(e->event_type));
    break;
  default: break;
  }
}

static void hear_all(verbs_link *l) {
  struct ibv_async_event e;
  while (!ibv_get_async_event(l->context, &e)) {
    hear(l, &e);
    ibv_ack_async_event(&e);
  }
  tb_waker_nudge(&l->waker);
}

static void *loop(void *arg) {
  verbs_link *l = arg;
  verbs_router *w = &l->router;
  struct pollfd p[2] = {{.fd = w->fd, .events = POLLIN}, {.fd = l->context->async_fd, .events = POLLIN}};
  uint64_t count;
  for (bool failed = false;;) {
    int rc = poll(p, 2, failed ? AGAIN_MS : -1);
    if (rc > 0 && p[0].revents && read(w->fd, &count, sizeof count) < 0 && errno != EAGAIN) break;
    if (rc > 0 && p[1].revents) hear_all(l);
    if (!rc) retry(l, true);
    for (verbs_route *r; (r = next_job(w));) resolve(l, r);
    failed = retry(l, false);
    pthread_mutex_lock(&w->lock);
    bool stop = w->stop;
    pthread_mutex_unlock(&w->lock);
    if (stop) break;
  }
  return NULL;
}

static void ring(verbs_router *w) {
  uint64_t one = 1;
  ssize_t r = write(w->fd, &one, sizeof one);
  (void)r; /* cannot fail but by a full counter, which wakes as well */
}

int verbs_router_start(verbs_link *l) {
  verbs_router *w = &l->router;
  sigset_t before;
  w->jobs_end = &w->jobs;
  w->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (w->fd < 0) return -errno;
  if (fcntl(l->context->async_fd, F_SETFL, fcntl(l->context->async_fd, F_GETFL) | O_NONBLOCK)) return -errno;
  tb_plugin_signals_hold(&before);
  int rc = pthread_create(&w->thread, NULL, loop, l);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  w->running = !rc;
  return -rc;
}

void verbs_router_stop(verbs_link *l) {
  verbs_router *w = &l->router;
  if (w->running) {
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_mutex_unlock(&w->lock);
    ring(w);
    pthread_join(w->thread, NULL);
  }
  w->running = false;
}

/* A known one is made anew as well: who came back at the same address may have another MAC. Until then the old one
 * serves. */
verbs_route *verbs_route_want(verbs_link *l, const verbs_where *where) {
  verbs_router *w = &l->router;
  verbs_route *r = l->routes; /* only callers of peer_* add to it, and they exclude each other */
  while (r && (memcmp(r->where.gid, where->gid, 16) || r->where.lid != where->lid)) r = r->next;
  bool fresh = !r;
  if (fresh && !(r = calloc(1, sizeof *r))) return NULL;
  pthread_mutex_lock(&w->lock);
  if (fresh) {
    r->where = *where;
    atomic_store(&r->state, -EINPROGRESS);
    r->next = l->routes;
    l->routes = r;
  }
  enqueue(w, r);
  pthread_mutex_unlock(&w->lock);
  ring(w);
  return r;
}

void verbs_routes_reap(verbs_link *l) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < l->olds; i++) {
    if (l->old[i].at <= l->tail) ibv_destroy_ah(l->old[i].ah);
    else l->old[kept++] = l->old[i];
  }
  l->olds = kept;
}

struct ibv_ah *verbs_route_take(verbs_link *l, verbs_route *r) {
  if (!atomic_load_explicit(&r->fresh, memory_order_relaxed)) return r->ah;
  if (r->ah) {
    if (l->olds == VERBS_TX_SLOTS) return r->ah; /* later */
    l->old[l->olds].ah = r->ah;
    l->old[l->olds++].at = l->head + VERBS_CHAIN; /* the chain that is being made may have it already */
  }
  return r->ah = atomic_exchange(&r->fresh, NULL);
}

void verbs_routes_free(verbs_link *l, bool ours) {
  if (ours) l->tail = UINT64_MAX; /* the queue pair is gone: nothing uses them */
  if (ours) verbs_routes_reap(l);
  while (l->routes) {
    verbs_route *r = l->routes;
    struct ibv_ah *fresh = atomic_load(&r->fresh);
    l->routes = r->next;
    if (ours && r->ah) ibv_destroy_ah(r->ah);
    if (ours && fresh) ibv_destroy_ah(fresh);
    free(r);
  }
  if (l->router.fd >= 0) close(l->router.fd);
}
