/* rendezvous_root.c - rank 0 from listening to WELCOME. */
#include "engine/rendezvous_lobby.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HELLO_NS (5000 * RV_MS) /* a guest has this long to introduce itself */
#define LEAVE_NS (1000 * RV_MS) /* one that was told to go, to hang up */
#define UPDATE_NS (250 * RV_MS) /* how often members hear who is missing */

static void time_out(rv_lobby *l, uint64_t patience_ns) {
  char missing[200], again[300] = "", rest[320] = "", strays[80] = "";
  uint8_t flag[TB_RENDEZVOUS_RANKS] = {0};
  bool any = false;
  tb_rv_missing_text(l, missing, sizeof missing);
  for (int i = 1; i < l->r->size; i++) any |= flag[i] = l->by_rank[i] < 0 && l->left_again[i];
  if (any) {
    char who[200];
    tb_rv_ranks(flag, l->r->size, who, sizeof who);
    snprintf(again, sizeof again, "; %s connected and hung up again", who);
  }
  if (l->turned_away)
    snprintf(rest, sizeof rest, "; %d processes of another job were turned away (last: %s)", l->turned_away,
             l->last_stranger);
  if (l->r->strays)
    snprintf(strays, sizeof strays, "; %llu connections that are not ours were dropped",
             (unsigned long long)l->r->strays);
  tb_rv_fatal(l, -ETIMEDOUT, 200 * RV_MS,
              "rank 0 at %s: ranks %s of %d did not connect within %.3g s%s%s%s; check that they run, that MASTER_ADDR "
              "and MASTER_PORT are the same on every rank, and that no firewall blocks this TCP port",
              l->r->where, missing, l->r->size, (double)patience_ns / 1e9, again, rest, strays);
}

static bool anybody_leaving(const rv_lobby *l) {
  for (int i = 0; i < l->visitors; i++)
    if (l->v[i].state == RV_LEAVING) return true;
  return false;
}

static void serve(rv_lobby *l, struct pollfd *p, int n, const int *of) {
  for (int i = 0; i < n; i++) {
    if (!p[i].revents) continue;
    if (of[i] < 0) {
      tb_rv_let_in(l, p[i].fd);
      continue;
    }
    rv_visitor *v = &l->v[of[i]];
    if (v->c.fd != p[i].fd) continue; /* dropped, or its seat taken, in this very pass */
    if (v->state == RV_GUEST) {
      tb_rv_read_guest(l, v);
    } else if (v->state == RV_LEAVING) {
      tb_rv_read_leaving(l, v);
    } else if (v->state == RV_MEMBER) { /* a member has nothing to say before WELCOME */
      if (tb_rv_hung_up(v->c.fd)) l->left_again[v->c.h.rank] = 1;
      tb_rv_drop(l, v);
    }
  }
}

static void host(rv_lobby *l, uint64_t start, uint64_t deadline_ns, struct pollfd *p, int *of) {
  uint64_t told = start;
  while (l->joined < l->r->size - 1 || l->err) {
    uint64_t now = tb_rv_now();
    if (l->err && !anybody_leaving(l) && (!l->await_all || l->told >= l->r->size - 1)) return;
    if (now >= l->until) {
      if (l->err) return;
      time_out(l, deadline_ns > start ? deadline_ns - start : 0);
      continue;
    }
    int n = 0;
    for (int i = 0; i < RV_LISTENERS; i++)
      if (l->listener[i] >= 0) p[n] = (struct pollfd){.fd = l->listener[i], .events = POLLIN}, of[n++] = -1;
    for (int i = 0; i < l->visitors; i++) {
      rv_visitor *v = &l->v[i];
      if ((v->state == RV_GUEST && now - v->since > HELLO_NS) ||
          (v->state == RV_LEAVING && now - v->since > LEAVE_NS)) {
        if (v->state == RV_GUEST) l->r->strays++;
        tb_rv_drop(l, v);
      }
      if (v->state != RV_FREE) p[n] = (struct pollfd){.fd = v->c.fd, .events = POLLIN}, of[n++] = i;
    }
    int stop = tb_rv_wait(p, (nfds_t)n, l->until);
    if (stop && l->await_all) l->await_all = false, l->until = tb_rv_now() + 100 * RV_MS;
    if (stop && !l->err)
      tb_rv_fatal(l, -EINTR, 100 * RV_MS, "rank 0 at %s was interrupted while it waited for the other ranks",
                  l->r->where);
    serve(l, p, n, of);
    if (l->changed && !l->err && tb_rv_now() - told > UPDATE_NS) {
      tb_rv_tell_missing(l);
      told = tb_rv_now();
    }
  }
}

/* All are here: everybody may go on. */
static int welcome(rv_lobby *l) {
  tb_rendezvous *r = l->r;
  uint8_t head[RV_HEAD];
  tb_rv_encode(&(rv_head){.version = RV_VERSION, .type = RV_WELCOME, .size = (uint32_t)r->size}, head);
  for (int i = 1; i < r->size; i++) {
    rv_visitor *v = &l->v[l->by_rank[i]];
    size_t sent = 0;
    r->peer[i] = (rv_conn){.fd = v->c.fd};
    memcpy(r->peer[i].who, v->c.who, sizeof v->c.who);
    v->state = RV_FREE;
    if (tb_rv_send(r->peer[i].fd, head, RV_HEAD, &sent) != 1 && !l->err) {
      r->peer[i].mid_frame = sent > 0;
      l->err = tb_rv_fail(r, -ECONNRESET, l->error, l->error_len,
                          "rank 0 at %s: rank %d (%s) hung up as the job came together: see its own output", r->where,
                          i, v->c.who);
    }
  }
  if (!l->err) return 0;
  for (int i = 1; i < r->size; i++) tb_rv_say_error(&r->peer[i], r, l->err, r->reason);
  tb_rv_farewell(r->peer, r->size);
  return l->err;
}

int tb_rv_root_open(tb_rendezvous *r, const char *name, uint16_t port, uint64_t deadline_ns, char *error,
                    size_t error_len) {
  rv_lobby l = {
      .r = r, .visitors = r->size - 1 + RV_GUESTS, .until = deadline_ns, .error = error, .error_len = error_len};
  uint64_t start = tb_rv_now();
  char why[256];
  int err = tb_rv_listen(name, port, deadline_ns, l.listener, why, sizeof why);
  if (err) return tb_rv_fail(r, err, error, error_len, "rank 0 at %s: %s", r->where, why);

  size_t slots = (size_t)l.visitors + RV_LISTENERS;
  struct pollfd *p = calloc(slots, sizeof *p);
  int *of = calloc(slots, sizeof *of);
  l.v = calloc((size_t)l.visitors, sizeof *l.v);
  l.by_rank = malloc(sizeof *l.by_rank * (size_t)r->size);
  l.left_again = calloc((size_t)r->size, 1);
  if (p && of && l.v && l.by_rank && l.left_again) {
    for (int i = 0; i < r->size; i++) l.by_rank[i] = -1;
    host(&l, start, deadline_ns, p, of);
    err = l.err ? l.err : welcome(&l);
    for (int i = 0; i < l.visitors; i++)
      if (l.v[i].state != RV_FREE) close(l.v[i].c.fd);
  } else {
    err = tb_rv_fail(r, -ENOMEM, error, error_len, "rank 0: no memory for the rendezvous of %d ranks", r->size);
  }
  for (int i = 0; i < RV_LISTENERS; i++)
    if (l.listener[i] >= 0) close(l.listener[i]);
  free(p);
  free(of);
  free(l.v);
  free(l.by_rank);
  free(l.left_again);
  return err;
}
