/* rendezvous_gather.c - rank 0's side of an exchange: takes a blob from every rank, then gives all of them to everyone.
 * A peer that dies while the answers go out does not keep the others from theirs; they hear of it afterwards. */
#include "engine/rendezvous_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Ends the exchange: everybody who can be told is told. */
static int end_all(tb_rendezvous *r) {
  for (int i = 1; i < r->size; i++) tb_rv_say_error(&r->peer[i], r, r->failed, r->reason);
  tb_rv_farewell(r->peer, r->size);
  return r->failed;
}

typedef struct {
  tb_rendezvous *r;
  const char *tag;
  uint8_t *all;
  uint32_t stride;
  uint8_t odd[TB_RENDEZVOUS_RANKS]; /* ranks whose tag, stride or order differs */
  bool any_odd;
  char example[160];
  char *error;
  size_t error_len;
} gather;

static void lost(gather *g, int rank, const char *how) {
  tb_rv_fail(g->r, -ECONNRESET, g->error, g->error_len,
             "rank 0 at %s: rank %d (%s) %s during the exchange '%s': see its own output", g->r->where, rank,
             g->r->peer[rank].who, how, g->tag);
}

static void read_blob(gather *g, int rank) {
  rv_conn *c = &g->r->peer[rank];
  size_t got = c->got;
  if (got < RV_HEAD) {
    int in = tb_rv_recv(c->fd, c->head, RV_HEAD, &got);
    c->got = (uint32_t)got;
    if (in < 0) lost(g, rank, "hung up");
    if (in <= 0) return;
    if (tb_rv_decode(c->head, &c->h) || c->h.type != RV_BLOB) {
      lost(g, rank, "sent something that is no answer");
      return;
    }
    if (c->h.arg != g->stride || c->h.seq != g->r->seq || strcmp(c->h.tag, g->tag) != 0) {
      if (!g->any_odd)
        snprintf(g->example, sizeof g->example, "rank %d is at '%s' (%u bytes, number %u)", rank, c->h.tag, c->h.arg,
                 c->h.seq);
      g->any_odd = true;
      g->odd[rank] = 1;
      c->done = true;
      return;
    }
    if (c->h.len > g->stride) {
      lost(g, rank, "sent more than its share");
      return;
    }
  }
  got -= RV_HEAD;
  int in = tb_rv_recv(c->fd, g->all + (size_t)rank * g->stride, c->h.len, &got);
  c->got = (uint32_t)got + RV_HEAD;
  if (in < 0) lost(g, rank, "hung up");
  c->done = in == 1;
}

/* Polls those not done; their number. */
static int wait_undone(tb_rendezvous *r, short events, uint64_t deadline_ns, int *err) {
  int n = 0;
  for (int i = 1; i < r->size; i++) {
    r->polls[i] = (struct pollfd){.fd = r->peer[i].done ? -1 : r->peer[i].fd, .events = events};
    n += !r->peer[i].done;
  }
  *err = n ? tb_rv_wait(r->polls, (nfds_t)r->size, deadline_ns) : 0;
  return n;
}

static void give_up(gather *g, int err, uint64_t start, const char *verb) {
  tb_rendezvous *r = g->r;
  char who[200];
  uint8_t flag[TB_RENDEZVOUS_RANKS] = {0};
  for (int i = 1; i < r->size; i++) flag[i] = !r->peer[i].done;
  tb_rv_ranks(flag, r->size, who, sizeof who);
  if (err == -EINTR)
    tb_rv_fail(r, err, g->error, g->error_len,
               "rank 0 at %s was interrupted in the exchange '%s'; ranks %s of %d were still to %s", r->where, g->tag,
               who, r->size, verb);
  else
    tb_rv_fail(r, err, g->error, g->error_len,
               "rank 0 at %s: ranks %s of %d did not %s in the exchange '%s' within %.3g s: are they stopped, or stuck "
               "before it?",
               r->where, who, r->size, verb, g->tag, (double)(tb_rv_now() - start) / 1e9);
}

static int collect(gather *g, uint64_t deadline_ns) {
  tb_rendezvous *r = g->r;
  uint64_t start = tb_rv_now();
  int err;
  for (int i = 0; i < r->size; i++) r->peer[i].done = i == 0, r->peer[i].got = 0, r->peer[i].sent = 0;
  r->polls[0].fd = -1;
  while (wait_undone(r, POLLIN, deadline_ns, &err)) {
    for (int i = 1; i < r->size && !r->failed; i++)
      if (r->polls[i].revents && !r->peer[i].done) read_blob(g, i);
    if (g->any_odd) { /* those seen in this pass are named; waiting for more could last until the deadline */
      char who[200];
      tb_rv_ranks(g->odd, r->size, who, sizeof who);
      tb_rv_fail(r, -EPROTO, g->error, g->error_len,
                 "rank 0 at %s is at the exchange '%s' (%u bytes, number %u) but ranks %s are not: %s; the ranks run "
                 "different programs or settings",
                 r->where, g->tag, g->stride, r->seq, who, g->example);
    }
    if (!r->failed && err) give_up(g, err, start, "answer");
    if (!r->failed && tb_rv_now() >= deadline_ns) {
      bool all = true;
      for (int i = 1; i < r->size; i++) all &= r->peer[i].done;
      if (!all) give_up(g, -ETIMEDOUT, start, "answer");
    }
    if (r->failed) return end_all(r);
  }
  return 0;
}

static int hand_out(gather *g, uint64_t deadline_ns) {
  tb_rendezvous *r = g->r;
  uint64_t start = tb_rv_now();
  size_t total = (size_t)r->size * g->stride;
  uint8_t head[RV_HEAD];
  int err;
  rv_head h = {.version = RV_VERSION,
               .type = RV_ALL,
               .size = (uint32_t)r->size,
               .arg = g->stride,
               .seq = r->seq,
               .len = (uint32_t)total};
  memcpy(h.tag, g->tag, strlen(g->tag) + 1);
  tb_rv_encode(&h, head);
  for (int i = 1; i < r->size; i++) r->peer[i].done = false;
  while (wait_undone(r, POLLOUT, deadline_ns, &err)) {
    for (int i = 1; i < r->size; i++) {
      rv_conn *c = &r->peer[i];
      if (c->done || !r->polls[i].revents) continue;
      int out = 1;
      if (c->sent < RV_HEAD) out = tb_rv_send(c->fd, head, RV_HEAD, &c->sent);
      if (out == 1) {
        size_t sent = c->sent - RV_HEAD;
        out = tb_rv_send(c->fd, g->all, total, &sent);
        c->sent = sent + RV_HEAD;
      }
      if (out < 0) lost(g, i, "hung up");
      c->mid_frame = out == 0 && c->sent > 0;
      c->done = out != 0;
    }
    bool all = true;
    for (int i = 1; i < r->size; i++) all &= r->peer[i].done;
    if (!all && err) give_up(g, err, start, "take the answers");
    if (!all && !err && tb_rv_now() >= deadline_ns) give_up(g, -ETIMEDOUT, start, "take the answers");
    if (r->failed && (err || tb_rv_now() >= deadline_ns)) break;
  }
  return r->failed ? end_all(r) : 0;
}

int tb_rv_root_exchange(tb_rendezvous *r, const char *tag, uint8_t *all, uint32_t stride, uint64_t deadline_ns,
                        char *error, size_t error_len) {
  gather g = {.r = r, .tag = tag, .all = all, .stride = stride, .error = error, .error_len = error_len};
  int err = collect(&g, deadline_ns);
  return err ? err : hand_out(&g, deadline_ns);
}
