/* rendezvous_lobby.c - who comes to rank 0's door: lets in, hears HELLO, judges, tells. */
#include "engine/rendezvous_lobby.h"

#include <errno.h>
#include <linux/sockios.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

void tb_rv_drop(rv_lobby *l, rv_visitor *v) {
  if (v->state == RV_MEMBER) {
    l->by_rank[v->c.h.rank] = -1;
    l->joined--;
    l->changed = true;
  }
  close(v->c.fd);
  v->c.fd = -1;
  v->state = RV_FREE;
}

static void dismiss(rv_lobby *l, rv_visitor *v, int err, const char *text) {
  if (v->state == RV_MEMBER) l->by_rank[v->c.h.rank] = -1, l->joined--;
  tb_rv_say_error(&v->c, l->r, err, text);
  v->state = RV_LEAVING;
  v->since = tb_rv_now();
}

void tb_rv_tell_all(rv_lobby *l, uint64_t patience) {
  uint64_t end = tb_rv_now() + patience;
  l->await_all = patience == RV_TELL_NS;
  if (end < l->until || !l->await_all) l->until = end;
  for (int i = 0; i < l->visitors; i++)
    if (l->v[i].state == RV_MEMBER) {
      dismiss(l, &l->v[i], l->err, l->r->reason);
      l->told++;
    }
}

void tb_rv_missing_text(const rv_lobby *l, char *out, size_t n) {
  uint8_t flag[TB_RENDEZVOUS_RANKS] = {0};
  for (int i = 1; i < l->r->size; i++) flag[i] = l->by_rank[i] < 0;
  tb_rv_ranks(flag, l->r->size, out, n);
}

/* Only when the last message has left our side: an unread pile must not end in half a message. */
static void say_waiting(rv_lobby *l, rv_visitor *v, const char *missing) {
  uint8_t message[RV_HEAD + 200];
  int unsent = 0;
  size_t sent = 0, len = strlen(missing);
  if (ioctl(v->c.fd, SIOCOUTQ, &unsent) == 0 && unsent > 0) return;
  tb_rv_encode(
      &(rv_head){.version = RV_VERSION, .type = RV_WAITING, .size = (uint32_t)l->r->size, .len = (uint32_t)len},
      message);
  memcpy(message + RV_HEAD, missing, len);
  if (tb_rv_send(v->c.fd, message, RV_HEAD + len, &sent) != 1) tb_rv_drop(l, v);
}

void tb_rv_tell_missing(rv_lobby *l) {
  char missing[200];
  tb_rv_missing_text(l, missing, sizeof missing);
  l->changed = false;
  for (int i = 0; i < l->visitors; i++)
    if (l->v[i].state == RV_MEMBER) say_waiting(l, &l->v[i], missing);
}

bool tb_rv_hung_up(int fd) {
  char byte;
  ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

/* A complete HELLO. */
static void judge(rv_lobby *l, rv_visitor *v) {
  tb_rendezvous *r = l->r;
  const rv_head *h = &v->c.h;
  char text[RV_TEXT];
  if (strcmp(v->job, r->job) != 0) {
    tb_rv_printable(v->job);
    snprintf(text, sizeof text,
             "rank 0 at %.100s belongs to job '%.100s', this process to job '%.100s': set TAILBOUND_JOB to one name on "
             "all ranks of a job, and give each job its own TAILBOUND_MASTER_PORT",
             r->where, r->job, v->job);
    snprintf(l->last_stranger, sizeof l->last_stranger, "rank %u of job '%.60s' from %s", h->rank, v->job, v->c.who);
    l->turned_away++;
    dismiss(l, v, -EPROTO, text);
    return;
  }
  if (l->err) {
    dismiss(l, v, l->err, r->reason);
    l->told++;
    return;
  }
  if (h->version != RV_VERSION) {
    tb_rv_fatal(l, -EPROTO, RV_TELL_NS,
                "rank 0 at %s: rank %u (%s) speaks version %u of the rendezvous, rank 0 version %d: install the same "
                "Tailbound on every host",
                r->where, h->rank, v->c.who, h->version, RV_VERSION);
  } else if (h->size != (uint32_t)r->size) {
    tb_rv_fatal(l, -EPROTO, RV_TELL_NS,
                "rank 0 at %s: rank %u (%s) says the job has %u ranks, rank 0 says %d: WORLD_SIZE must be the same on "
                "every rank",
                r->where, h->rank, v->c.who, h->size, r->size);
  } else if (h->rank == 0 || h->rank >= (uint32_t)r->size) {
    tb_rv_fatal(l, -EPROTO, RV_TELL_NS, "rank 0 at %s: %s says it is rank %u of %d%s: check RANK", r->where, v->c.who,
                h->rank, r->size, h->rank == 0 ? ", as rank 0 does" : "");
  }
  if (!l->err && l->by_rank[h->rank] >= 0) {
    rv_visitor *first = &l->v[l->by_rank[h->rank]];
    if (first->c.h.nonce == h->nonce || tb_rv_hung_up(first->c.fd))
      tb_rv_drop(l, first); /* the same process again, or its successor */
    else
      tb_rv_fatal(l, -EPROTO, RV_TELL_NS, "rank 0 at %s: two processes say they are rank %u (%s and %s): check RANK",
                  r->where, h->rank, first->c.who, v->c.who);
  }
  if (l->err) {
    dismiss(l, v, l->err, r->reason);
    l->told++;
    return;
  }
  v->state = RV_MEMBER;
  l->by_rank[h->rank] = (int)(v - l->v);
  l->joined++;
  l->changed = true;
  char missing[200];
  tb_rv_missing_text(l, missing, sizeof missing);
  say_waiting(l, v, missing);
}

static void stray(rv_lobby *l, rv_visitor *v) {
  l->r->strays++;
  tb_rv_drop(l, v);
}

/* Reads what a guest says of itself; the first wrong byte ends it. */
void tb_rv_read_guest(rv_lobby *l, rv_visitor *v) {
  size_t got = v->c.got;
  int in = got < RV_HEAD ? tb_rv_recv(v->c.fd, v->c.head, RV_HEAD, &got) : 1;
  v->c.got = (uint32_t)got;
  if (in < 0) {
    stray(l, v);
    return;
  }
  if (!tb_rv_begins(v->c.head, got)) {
    stray(l, v);
    return;
  }
  if (in == 0) return;
  if (tb_rv_decode(v->c.head, &v->c.h) || v->c.h.type != RV_HELLO || v->c.h.len > RV_JOB) {
    stray(l, v);
    return;
  }
  got -= RV_HEAD;
  in = tb_rv_recv(v->c.fd, v->job, v->c.h.len, &got);
  v->c.got = (uint32_t)got + RV_HEAD;
  if (in < 0) {
    stray(l, v);
  } else if (in == 1) {
    v->job[got] = 0;
    judge(l, v);
  }
}

void tb_rv_read_leaving(rv_lobby *l, rv_visitor *v) {
  char waste[1024];
  ssize_t got;
  do got = recv(v->c.fd, waste, sizeof waste, MSG_DONTWAIT);
  while (got > 0);
  if (got == 0 || (errno != EAGAIN && errno != EINTR)) tb_rv_drop(l, v);
}

/* Room for one more; the longest silent guest makes it if need be. */
static rv_visitor *seat(rv_lobby *l) {
  rv_visitor *oldest = NULL, *empty = NULL;
  int guests = 0;
  for (int i = 0; i < l->visitors; i++) {
    rv_visitor *v = &l->v[i];
    if (v->state == RV_FREE) empty = v;
    if (v->state == RV_GUEST || v->state == RV_LEAVING) {
      guests++;
      if (!oldest || v->since < oldest->since) oldest = v;
    }
  }
  if (empty && (guests < RV_GUESTS || l->err)) return empty;
  if (!oldest) return NULL;
  l->r->strays += oldest->state == RV_GUEST;
  tb_rv_drop(l, oldest);
  return oldest;
}

void tb_rv_let_in(rv_lobby *l, int listener) {
  for (int i = 0; i < 64; i++) {
    char who[RV_WHO];
    int fd = tb_rv_accept(listener, who);
    if (fd == -EMFILE || fd == -ENFILE) {
      rv_visitor *oldest = NULL;
      for (int k = 0; k < l->visitors; k++)
        if (l->v[k].state == RV_GUEST && (!oldest || l->v[k].since < oldest->since)) oldest = &l->v[k];
      if (oldest)
        stray(l, oldest);
      else if (!l->err)
        tb_rv_fatal(l, fd, 0,
                    "rank 0 at %s: no file descriptor left with %d of %d ranks connected: raise the limit (ulimit -n) "
                    "where rank 0 runs",
                    l->r->where, l->joined + 1, l->r->size);
      return;
    }
    if (fd == -EAGAIN) return;
    if (fd < 0) continue; /* one that was gone before we looked */
    rv_visitor *v = seat(l);
    if (!v) {
      close(fd);
      return;
    }
    *v = (rv_visitor){.state = RV_GUEST, .since = tb_rv_now(), .c = {.fd = fd}};
    memcpy(v->c.who, who, sizeof who);
  }
}
