/* world.c - a simulated world: n communicators, one network, virtual time.
 *
 * DESIGN NOTES. Nothing runs by itself. Whoever waits drives: drive() lets every communicator do what it can at the
 * present time, then moves the time to the next event. Two ways to use it: one thread that issues for all ranks and
 * waits (tests of the protocol), or a thread per rank between tb_world_enter and tb_world_leave. Those threads pass a
 * baton: exactly one runs, the lowest-numbered that can; when none can, time moves. So a run depends on seeds alone,
 * never on the host.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/comm.h"
#include "engine/error.h"
#include "engine/groups.h"
#include "links/sim.h"
#include "protocol/clocks.h"

static const uint64_t PATIENCE = 3600 * TB_SEC; /* of virtual time, in one wait: beyond it nothing will ever happen */

typedef struct { bool entered, waiting; tb_work *work; uint64_t until; bool expired; pthread_cond_t turn; } seat;

struct tb_world {
  int n, expected, entered;
  tb_sim *net;
  tb_comm **comm;
  tb_sim_port *port;
  seat *seat;
  tb_clocks next;        /* when each rank has something to do; 0 = look at it */
  bool any_done;         /* what some thread waits for is done: look whose turn it is */
  int turn;              /* whose thread runs; -1 = nobody yet */
  bool dead;             /* nothing can happen any more */
  pthread_mutex_t lock;
};

uint64_t tb_world_time(const tb_world *w) { return tb_sim_now(w->net); }
uint64_t tb_world_now(const tb_world *w) { return tb_sim_now(w->net); }

void tb_world_touch(tb_world *w, int rank) { tb_clocks_set(&w->next, (uint32_t)rank, 0); }

/* When rank i has something to do by itself. A sender that its link has no room for waits for news of room. */
static uint64_t next_of(const tb_world *w, uint32_t i) {
  const tb_comm *c = w->comm[i];
  if (tb_sim_paused(w->net, i)) return UINT64_MAX;
  if (tb_sim_readable(w->net, i)) return 0;
  return tb_core_wants_tx(c->core) && !c->tx_blocked ? 0 : tb_pump_next(c);
}

static void settle(tb_world *w) { /* everybody does what can be done now, in the order of ranks */
  uint32_t i, n = (uint32_t)w->n;
  while (tb_sim_stirred(w->net, &i)) tb_clocks_set(&w->next, i, 0);
  for (bool again = true; again;) {
    uint64_t now = tb_sim_now(w->net);
    again = false;
    for (i = tb_clocks_due(&w->next, 0, now); i < n; i = tb_clocks_due(&w->next, i + 1, now)) {
      tb_comm *c = w->comm[i];
      uint64_t next = next_of(w, i);
      if (next <= now) {
        bool more = tb_pump(c);
        again |= more;
        next = more ? 0 : tb_sim_readable(w->net, i) ? now : tb_pump_next(c);
        w->any_done |= w->seat[i].work && tb_done(w->seat[i].work);
      }
      tb_clocks_set(&w->next, i, next);
    }
  }
}

/* Moves to the next event, at most to `limit`. False: there is none up to then, and now is limit. */
static bool drive(tb_world *w, uint64_t limit) {
  settle(w);
  uint64_t t = tb_sim_next(w->net), first = tb_clocks_first(&w->next);
  if (first < t) t = first;
  if (t < tb_sim_now(w->net)) t = tb_sim_now(w->net);
  if (t > limit) {
    if (limit != UINT64_MAX) tb_sim_run_until(w->net, limit);
    return false;
  }
  tb_sim_run_until(w->net, t);
  settle(w);
  return true;
}

static bool ready(const tb_world *w, seat *s) {
  if (!s->entered || !s->waiting) return s->entered;
  if (s->work && tb_done(s->work)) return true;
  if (s->until <= tb_sim_now(w->net)) return s->expired = true;
  return w->dead;
}

/* Hands the baton to the lowest rank that can run, moving time until one can. */
static void pass_on(tb_world *w) {
  uint64_t stop = tb_sim_now(w->net) + PATIENCE;
  for (;;) {
    uint64_t until = stop;
    bool any = false;
    for (int i = 0; i < w->n; i++) {
      seat *s = &w->seat[i];
      if (!s->entered) continue;
      any = true;
      if (ready(w, s)) {
        w->turn = i;
        pthread_cond_signal(&s->turn);
        return;
      }
      if (s->until < until) until = s->until;
    }
    if (!any) {
      w->turn = -1;
      w->expected = w->entered = 0;
      return;
    }
    w->any_done = false;
    bool moved = true;
    while (moved && !w->any_done && tb_sim_now(w->net) < until) moved = drive(w, until);
    if (!moved && until == stop) w->dead = true;
  }
}

static int threaded_wait(tb_world *w, int rank, tb_work *work, uint64_t until) {
  seat *s = &w->seat[rank];
  s->waiting = true;
  s->expired = false;
  s->work = work;
  s->until = until;
  pass_on(w);
  while (w->turn != rank) pthread_cond_wait(&w->seat[rank].turn, &w->lock);
  s->waiting = false;
  s->work = NULL;
  if (work && tb_done(work)) return 0;
  if (s->expired) return work ? -EAGAIN : 0;
  w->dead = false;
  return tb_fail(-EDEADLK, "simulation: rank %d waits for something that cannot happen any more", rank);
}

int tb_world_wait(tb_world *w, tb_work *work, int64_t timeout_ns) {
  pthread_mutex_lock(&w->lock);
  uint64_t now = tb_sim_now(w->net), until = timeout_ns < 0 ? UINT64_MAX : now + (uint64_t)timeout_ns;
  int rank = work->comm->rank, rc = 0;
  if (w->expected && w->seat[rank].entered) {
    rc = threaded_wait(w, rank, work, until);
  } else {
    uint64_t stop = until < now + PATIENCE ? until : now + PATIENCE;
    while (!tb_done(work) && rc == 0)
      if (!drive(w, stop) && !tb_done(work))
        rc = stop == until ? -EAGAIN
                           : tb_fail(-EDEADLK, "simulation: rank %d waits for something that does not happen within an hour of "
                                     "virtual time: has every rank issued?", rank);
  }
  pthread_mutex_unlock(&w->lock);
  return rc;
}

int tb_world_new(int n, const char *options, tb_world **out) {
  char error[600] = "";
  if (n < 1 || n > 1024) return tb_fail(-EINVAL, "simulate: %d ranks is out of range: 1 to 1024", n);
  tb_world *w = calloc(1, sizeof *w);
  tb_config *cfg = NULL;
  int rc = w ? tb_config_new(&cfg) : -ENOMEM;
  if (rc) {
    free(w);
    return rc;
  }
  pthread_mutex_init(&w->lock, NULL);
  w->n = n;
  w->turn = -1;
  w->comm = calloc((size_t)n, sizeof(tb_comm *));
  w->port = calloc((size_t)n, sizeof *w->port);
  w->seat = calloc((size_t)n, sizeof *w->seat);
  uint64_t *clocks = malloc(tb_clocks_words((uint32_t)n) * sizeof *clocks);
  if (!w->comm || !w->port || !w->seat || !clocks) rc = -ENOMEM;
  if (clocks) tb_clocks_init(&w->next, (uint32_t)n, clocks);
  for (int i = 0; w->seat && i < n; i++) pthread_cond_init(&w->seat[i].turn, NULL);
  /* Options of the configuration may stand among the network's: they are taken out here. */
  char *net = calloc(1, (options ? strlen(options) : 0) + 2), *text = strdup(options ? options : ""), *save = NULL;
  if (!net || !text) rc = -ENOMEM;
  tb_config_set(cfg, "log", "off");
  tb_config_set(cfg, "deadline_floor", "100us");
  for (char *word = rc ? NULL : strtok_r(text, ", ;", &save); word && !rc; word = strtok_r(NULL, ", ;", &save)) {
    char *eq = strchr(word, '=');
    if (eq) *eq = 0;
    bool ours = eq && strcmp(word, "mtu") && strcmp(word, "log") && tb_config_get(cfg, word);
    if (ours) rc = tb_config_set(cfg, word, eq + 1);
    else sprintf(net + strlen(net), "%s%s%s ", word, eq ? "=" : "", eq ? eq + 1 : "");
  }
  if (!rc) {
    rc = tb_sim_new((uint32_t)n, net, &w->net, error, sizeof error);
    if (rc) tb_set_error("%s", error);
  }
  for (int i = 0; i < n && !rc; i++) {
    tb_comm *c;
    rc = tb_comm_new(cfg, (uint16_t)i, (uint16_t)n, &c);
    if (rc) break;
    w->comm[i] = c;
    c->world = w;
    c->lock = &w->lock;
    w->port[i] = (tb_sim_port){w->net, (uint32_t)i};
    tb_link_cfg l = {.context = &w->port[i], .error = error, .error_len = sizeof error, .peers = (uint32_t)n};
    c->ops = &tb_link_sim;
    rc = c->ops->open(&l, &c->link);
    if (rc) {
      c->ops = NULL;
      tb_set_error("%s", error);
      break;
    }
    uint32_t mtu = c->ops->caps(c->link)->mtu, least = TB_CONTROL_MAX;
    if (mtu < least) {
      rc = tb_fail(-EINVAL, "simulate: mtu=%u is too small: control frames need up to %u bytes", mtu, least);
      break;
    }
    rc = tb_comm_core(c, mtu, 1);
    if (!rc) rc = tb_groups_set(c, NULL);
    snprintf(c->describe, sizeof c->describe, "rank %d of %d, link sim, frames of %u bytes, window %u", i, n, mtu, c->window);
  }
  for (int i = 0; i < n && !rc; i++) {
    tb_addr a;
    for (int j = 0; j < n && !rc; j++) {
      rc = w->comm[j]->ops->local_addr(w->comm[j]->link, &a);
      if (rc || i == j) continue;
      rc = w->comm[i]->ops->peer_add(w->comm[i]->link, (uint32_t)j, &a);
      /* What init's probes measure on a real link: later samples stand behind the sender's own data. */
      tb_core_trip(w->comm[i]->core, (uint16_t)j, tb_sim_trip(w->net, (uint32_t)i, (uint32_t)j));
    }
  }
  free(net);
  free(text);
  tb_config_free(cfg);
  if (rc) {
    tb_world_free(w);
    return rc;
  }
  *out = w;
  return 0;
}

void tb_world_free(tb_world *w) {
  if (!w) return;
  for (int i = 0; w->comm && i < w->n; i++)
    if (w->comm[i]) {
      if (w->comm[i]->core) tb_comm_abandon(w->comm[i], "the world was closed");
      tb_comm_free(w->comm[i]);
    }
  tb_sim_free(w->net);
  for (int i = 0; w->seat && i < w->n; i++) pthread_cond_destroy(&w->seat[i].turn);
  free(w->next.at);
  free(w->comm);
  free(w->port);
  free(w->seat);
  pthread_mutex_destroy(&w->lock);
  free(w);
}

tb_comm *tb_world_comm(tb_world *w, int rank) { return rank >= 0 && rank < w->n ? w->comm[rank] : NULL; }

int tb_world_advance(tb_world *w, uint64_t ns) {
  pthread_mutex_lock(&w->lock);
  uint64_t until = tb_sim_now(w->net) + ns;
  while (drive(w, until)) {
  }
  pthread_mutex_unlock(&w->lock);
  return 0;
}

int tb_world_set(tb_world *w, int src, int dst, const char *options) {
  char error[600];
  pthread_mutex_lock(&w->lock);
  int rc = tb_sim_set(w->net, src, dst, options, error, sizeof error);
  pthread_mutex_unlock(&w->lock);
  return rc ? tb_fail(rc, "%s", error) : 0;
}

int tb_world_expect(tb_world *w, int n) {
  if (n < 1 || n > w->n) return tb_fail(-EINVAL, "expect: %d is out of range: 1 to %d", n, w->n);
  pthread_mutex_lock(&w->lock);
  w->expected = n;
  w->entered = 0;
  w->turn = -1;
  pthread_mutex_unlock(&w->lock);
  return 0;
}

int tb_world_enter(tb_world *w, int rank) {
  if (rank < 0 || rank >= w->n) return tb_fail(-EINVAL, "enter: rank %d is out of range", rank);
  pthread_mutex_lock(&w->lock);
  w->seat[rank].entered = true;
  w->seat[rank].waiting = w->seat[rank].expired = false;
  w->seat[rank].work = NULL;
  if (++w->entered == w->expected) pass_on(w);
  while (w->turn != rank) pthread_cond_wait(&w->seat[rank].turn, &w->lock);
  pthread_mutex_unlock(&w->lock);
  return 0;
}

int tb_world_leave(tb_world *w, int rank) {
  if (rank < 0 || rank >= w->n || !w->seat[rank].entered) return tb_fail(-EINVAL, "leave: rank %d has not entered", rank);
  pthread_mutex_lock(&w->lock);
  w->seat[rank].entered = false;
  pass_on(w);
  pthread_mutex_unlock(&w->lock);
  return 0;
}

int tb_world_sleep(tb_world *w, int rank, uint64_t ns) {
  if (rank < 0 || rank >= w->n || !w->seat[rank].entered) return tb_fail(-EINVAL, "sleep: rank %d has not entered", rank);
  pthread_mutex_lock(&w->lock);
  int rc = threaded_wait(w, rank, NULL, tb_sim_now(w->net) + ns);
  pthread_mutex_unlock(&w->lock);
  return rc;
}

int tb_world_close_rank(tb_comm *c) {
  tb_comm_lock(c);
  if (!c->closing) {
    c->closing = true;
    tb_comm_abandon(c, "the communicator was closed");
    tb_core_goodbye(c->core);
    tb_world_touch(c->world, c->rank);
    settle(c->world);
  }
  tb_comm_unlock(c);
  return 0;
}

int64_t tb_world_log(const tb_world *w, uint64_t from, tb_sim_log *out, uint64_t n) {
  return tb_sim_log_read(w->net, from, out, n);
}
