/* comm.c - what real and simulated communicators have in common: memory, the core's settings, names, counters. */
#include "engine/comm.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "engine/error.h"
#include "links/registry.h"

static void on_log(void *ctx, int level, const char *text) { tb_logring_put(((tb_comm *)ctx)->log, level, "%s", text); }

/* The core's last word on an operation. Runs under the communicator's lock. */
static void on_done(void *ctx, tb_outcome *o) {
  tb_comm *c = ctx;
  tb_work *w = (tb_work *)o;
  if (w->registered) c->ops->mem_unreg(c->link, o->region);
  w->registered = false;
  uint64_t now = tb_comm_now(c), core = o->result.elapsed_ns;
  if (c->world && tb_core_unfinished(o)) { /* its ranks run one at a time: nobody is held up */
    tb_core_invert(o);
    tb_core_inverted(c->core, o);
  }
  o->result.elapsed_ns = now - o->issued_ns; /* with what committing took */
  bool over = tb_core_unfinished(o);
  if (core <= o->result.elapsed_ns && !over)
    tb_core_note_commit(c->core, o->geometry.count * o->geometry.elem, o->transform && o->transform->ended, o->result.elapsed_ns - core);
  o->result.abort_ns = c->abort_ns;
  c->abort_ns = 0;
  for (tb_work **at = &c->works; *at; at = &(*at)->next)
    if (*at == w) {
      *at = w->next;
      break;
    }
  if (over) {
    w->next = c->over;
    c->over = w;
  }
  pthread_mutex_lock(&w->lock);
  atomic_store(&w->done, over ? TB_OVER : TB_DONE);
  pthread_cond_broadcast(&w->cond);
  pthread_mutex_unlock(&w->lock);
}

int tb_comm_new(const tb_config *cfg, uint16_t rank, uint16_t n, tb_comm **out) {
  tb_comm *c = calloc(1, sizeof *c);
  char error[240] = "", who[32];
  if (!c) return -ENOMEM;
  c->rank = rank;
  c->n = n;
  c->pid = getpid();
  pthread_mutex_init(&c->own_lock, NULL);
  c->lock = &c->own_lock;
  c->cfg = tb_config_dup(cfg);
  int rc = c->cfg ? tb_logring_new(1024, &c->log) : -ENOMEM;
  if (!rc) rc = tb_fault_parse(tb_config_str(cfg, "fault"), rank, &c->fault, error, sizeof error);
  if (rc) {
    tb_set_error("%s", *error ? error : "no memory for a communicator");
    tb_comm_free(c);
    return rc;
  }
  snprintf(who, sizeof who, "rank %u", rank);
  tb_logring_echo(c->log, (int)tb_config_u64(cfg, "log"), who);
  *out = c;
  return 0;
}

uint32_t tb_comm_window(const tb_comm *c, const tb_link_caps *caps, uint32_t mtu) {
  const tb_tunables *t = tb_config_tunables(c->cfg);
  uint64_t w = caps->rx_buffer / (c->n > 1 ? c->n - 1u : 1u) / ((uint64_t)mtu + caps->rx_overhead);
  if (w < t->window_min) w = t->window_min;
  return (uint32_t)(w > t->window_max ? t->window_max : w);
}

int tb_comm_core(tb_comm *c, uint32_t mtu, uint32_t job) {
  tb_core_cfg k = {.rank = c->rank, .n = c->n, .job = job, .view = 1, .chunk_bytes = (mtu - TB_HEAD) & ~7u,
                   .tune = *tb_config_tunables(c->cfg), .ctx = c, .done = on_done, .log = on_log, .window = 1};
  if (c->ops) {
    const tb_link_caps *caps = c->ops->caps(c->link);
    k.seal_payload = c->sealed || !caps->csum;
    k.async_refs = caps->ref == TB_REF_PROMPT;
    k.quiesce_ns = caps->quiesce_ns;
    k.timer_ns = caps->timer_ns;
    k.window = c->window = tb_comm_window(c, caps, mtu);
    k.train = caps->train;
    k.buffers = caps->rx_parts;
    /* Where the receiver's buffer is the only queue, its share is the whole truth. */
    bool loopback = c->ops->is_loopback && c->ops->is_loopback(c->link);
    if (k.tune.rate_control == TB_RATE_AUTO && loopback) k.tune.rate_control = TB_RATE_OFF;
    /* virtual time has no scheduling noise */
    if (!caps->timer_ns && k.tune.rto_min == TB_MS) k.tune.rto_min = TB_MS / 20;
  }
  int rc = c->ops ? tb_early_new(mtu, &c->early) : 0;
  return rc ? rc : tb_core_new(&k, &c->core);
}

void tb_comm_free(tb_comm *c) {
  if (!c) return;
  tb_core_free(c->core);
  if (c->link) c->ops->close(c->link);
  tb_early_free(c->early);
  tb_fault_free(c->fault);
  tb_logring_free(c->log);
  tb_config_free(c->cfg);
  pthread_mutex_destroy(&c->own_lock);
  free(c);
}

void tb_comm_abandon(tb_comm *c, const char *why) {
  while (c->works) {
    tb_work *w = c->works;
    uint64_t now = tb_comm_now(c);
    tb_core_cancel(c->core, &w->o, -ECANCELED, why, now);
    if (c->works == w && c->ops) { /* its REFs are still under way */
      uint64_t took;
      c->ops->tx_abort(c->link, 0, &took);
      tb_core_reaped(c->core, c->ops->tx_reap(c->link, 0), now);
    }
  }
}

int tb_rank(const tb_comm *c) { return c->rank; }
int tb_size(const tb_comm *c) { return c->n; }
uint32_t tb_view(tb_comm *c, uint8_t *member, uint32_t n) {
  tb_comm_lock(c);
  uint32_t number = tb_core_members(c->core, n == c->n ? member : NULL);
  tb_comm_unlock(c);
  return number;
}
const char *tb_link_name(const tb_comm *c) { return c->ops ? c->ops->name : "self"; }

int tb_link_about(const tb_config *cfg, const char *name, char *out, uint32_t n) {
  if (!cfg || !name || !out || !n) return tb_fail(-EINVAL, "tb_link_about needs a name and room for its answer");
  return tb_link_words(name, tb_config_str(cfg, "plugins"), out, n);
}

const char *tb_describe(const tb_comm *c) { return c->describe; }
const char *tb_version(void) { return "0.1.0"; }

int tb_log_next(tb_comm *c, char *out, uint32_t n, int *level) { return tb_logring_next(c->log, out, n, level); }

#define LINK_COUNTERS(X)                                                                                             \
  X(tx_frames) X(tx_bytes) X(rx_frames) X(rx_bytes) X(tx_calls) X(rx_calls) X(tx_copied) X(rx_overflow) X(rx_truncated) \
  X(tx_dropped) X(rx_foreign) X(rx_nobuf) X(tx_errors)
#define VIEW_COUNTERS(X) X(srtt_ns) X(rttvar_ns) X(last_heard_ns) X(offset_median_ns) X(offset_p99_ns) X(missed_of_100) X(absent) X(gone)
#define NAME(x) #x,

static const char *const comm_names[] = {TB_COMM_COUNTERS(NAME) "dropped_mass",
    LINK_COUNTERS(NAME) "window_frames", "log_dropped", "faults"};
static const char *const peer_names[] = {TB_PEER_COUNTERS(NAME) VIEW_COUNTERS(NAME)};

const char *tb_counter_name(int scope, uint32_t i) {
  if (scope == 0) return i < sizeof comm_names / sizeof *comm_names ? comm_names[i] : NULL;
  return i < sizeof peer_names / sizeof *peer_names ? peer_names[i] : NULL;
}

int tb_counters(tb_comm *c, int peer, uint64_t *out, uint32_t n) {
  if (peer < -1 || peer >= c->n)
    return tb_fail(-EINVAL, "rank %d is out of range: this communicator has ranks 0 to %u", peer, c->n - 1u);
  uint32_t i = 0;
#define PUT(v) do { if (i < n) out[i] = (v); i++; } while (0);
  tb_comm_lock(c);
  if (peer < 0) {
    const tb_comm_counters *k = tb_core_counters(c->core);
    tb_link_stats s = {0};
    if (c->ops) c->ops->stats(c->link, &s);
#define X(name) PUT(k->name)
    TB_COMM_COUNTERS(X)
#undef X
    uint64_t mass;
    memcpy(&mass, &k->dropped_mass, sizeof mass);
    PUT(mass)
#define X(name) PUT(s.name)
    LINK_COUNTERS(X)
#undef X
    PUT(c->window)
    PUT(tb_logring_dropped(c->log))
    PUT(tb_fault_acted(c->fault))
  } else {
    const tb_peer_counters *k = tb_core_peer_counters(c->core, (uint16_t)peer);
    tb_peer_view v;
    tb_core_peer_view(c->core, (uint16_t)peer, &v);
#define X(name) PUT(k->name)
    TB_PEER_COUNTERS(X)
#undef X
#define X(name) PUT(v.name)
    VIEW_COUNTERS(X)
#undef X
  }
  tb_comm_unlock(c);
  return 0;
}
