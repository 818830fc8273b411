/* sim.c - life, virtual time and delivery log of the simulated network. The model is described in docs/links.md. */
#include "links/sim.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "links/sim_internal.h"

int tb_sim_new(uint32_t n, const char *options, tb_sim **out, char *error, size_t error_len) {
  if (n < 1 || n > TB_SIM_MAX) {
    if (error && error_len)
      snprintf(error, error_len, "a simulated network has 1 to %u endpoints, not %u", TB_SIM_MAX, n);
    return -EINVAL;
  }
  tb_sim *net = calloc(1, sizeof *net);
  if (!net) {
    if (error && error_len) snprintf(error, error_len, "no memory for a simulated network");
    return -ENOMEM;
  }
  net->n = n;
  int rc = tb_sim_options_new(net, options, error, error_len);
  if (rc) {
    tb_sim_free(net);
    return rc;
  }
  net->data_size[0] = (net->mtu + 63) & ~(size_t)63;
  net->data_size[1] = TB_SIM_SMALL;
  net->dirs_n = net->params_n = 1; /* entry 0 of both is "none" */
  net->dirs_cap = net->params_cap = 16;
  net->ends = calloc(n, sizeof *net->ends);
  net->stirred = calloc(n, sizeof *net->stirred);
  net->dir_of = calloc((size_t)n * n, sizeof *net->dir_of);
  net->dirs = calloc(net->dirs_cap, sizeof *net->dirs);
  net->own_params = calloc(net->params_cap, sizeof *net->own_params);
  if (!net->ends || !net->stirred || !net->dir_of || !net->dirs || !net->own_params ||
      tb_sim_heap_reserve(net, TB_SIM_EVENTS * (size_t)n)) {
    tb_sim_free(net);
    if (error && error_len) snprintf(error, error_len, "no memory for a simulated network of %u endpoints", n);
    return -ENOMEM;
  }
  for (uint32_t i = 0; i < n; i++) {
    net->ends[i].net = net;
    net->ends[i].id = i;
    net->ends[i].background = (tb_sim_source){.on = 100000, .off = 900000};
    atomic_init(&net->ends[i].woken, false);
  }
  *out = net;
  return 0;
}

void tb_sim_free(tb_sim *net) {
  if (!net) return;
  for (uint32_t i = 0; net->ends && i < net->n; i++) {
    free(net->ends[i].peers);
    free(net->ends[i].regions);
    free(net->ends[i].done);
  }
  for (size_t i = 0; i < net->slabs_n; i++) free(net->slabs[i]);
  free(net->slabs);
  free(net->ends);
  free(net->stirred);
  free(net->dir_of);
  free(net->dirs);
  free(net->own_params);
  free(net->heap);
  free(net->log);
  free(net);
}

uint64_t tb_sim_now(const tb_sim *net) { return net->now; }

uint64_t tb_sim_trip(const tb_sim *net, uint32_t a, uint32_t b) {
  const tb_sim_params *to = tb_sim_params_of(net, a, b), *fro = tb_sim_params_of(net, b, a);
  return to->delay + fro->delay + 2 * (tb_sim_serialise_ns(to->rate, 64) + tb_sim_serialise_ns(fro->rate, 64));
}

uint64_t tb_sim_next(const tb_sim *net) { return net->heap_n ? net->heap[0].time : UINT64_MAX; }

void tb_sim_run_until(tb_sim *net, uint64_t t) {
  tb_sim_event ev;
  while (net->heap_n && net->heap[0].time <= t) {
    tb_sim_pop(net, &ev);
    if (ev.time > net->now) net->now = ev.time;
    tb_sim_event_do(net, &ev);
  }
  if (t > net->now) net->now = t;
}

bool tb_sim_paused(const tb_sim *net, uint32_t endpoint) {
  return endpoint < net->n && net->ends[endpoint].paused_until > net->now;
}

bool tb_sim_readable(const tb_sim *net, uint32_t endpoint) {
  if (endpoint >= net->n || tb_sim_paused(net, endpoint)) return false;
  const tb_link *e = &net->ends[endpoint];
  return e->open && (e->ring.head || e->tx_news_owner);
}

void tb_sim_stir(tb_link *e) {
  if (e->stirred) return;
  e->stirred = true;
  e->net->stirred[e->net->stirred_n++] = e->id;
}

bool tb_sim_stirred(tb_sim *net, uint32_t *endpoint) {
  if (!net->stirred_n) return false;
  *endpoint = net->stirred[--net->stirred_n];
  net->ends[*endpoint].stirred = false;
  return true;
}

void tb_sim_log_line(tb_sim *net, const tb_sim_frame *f, int fate, uint64_t arrived_ns) {
  if (!net->log_on || net->log_failed) return;
  if (net->log_n == net->log_cap) {
    uint64_t cap = net->log_cap ? net->log_cap * 2 : 4096;
    tb_sim_log *log = realloc(net->log, cap * sizeof *log);
    if (!log) {
      net->log_failed = true; /* told by tb_sim_log_read: a log with holes would be worse than none */
      return;
    }
    net->log = log;
    net->log_cap = cap;
  }
  tb_sim_log *line = &net->log[net->log_n++];
  *line = f->line;
  line->src = f->src;
  line->dst = f->dst;
  line->fate = (uint8_t)fate;
  line->arrived_ns = arrived_ns;
}

void tb_sim_drop(tb_sim *net, tb_sim_frame *f, int fate) {
  tb_sim_log_line(net, f, fate, 0);
  tb_sim_frame_put(net, f);
}

int64_t tb_sim_log_read(const tb_sim *net, uint64_t from, tb_sim_log *out, uint64_t n) {
  if (net->log_failed) return -ENOMEM;
  if (from >= net->log_n) return 0;
  if (n > net->log_n - from) n = net->log_n - from;
  if (n) memcpy(out, net->log + from, n * sizeof *out);
  return (int64_t)n;
}
