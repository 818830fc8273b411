/* view_net.h - ranks that vote on who is a member (view.c), joined by a network of letters that loses, repeats and
 * delays them. Time is virtual; what chance there is comes of a seed. */
#ifndef VIEW_NET_H
#define VIEW_NET_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/view.h"

enum { MOST = 9, QUEUE = 4096, VIEWS = 64, RETRY = 1000, DELAY = 100 };

typedef struct { uint64_t at; uint16_t from, to; uint8_t body[TB_VIEW_BODY]; } letter;
typedef struct net {
  uint16_t n;
  tb_membership v[MOST];
  bool dead[MOST], cut[MOST][MOST];
  uint32_t rounds[MOST], changes[MOST];
  letter queue[QUEUE];
  int queued;
  uint64_t now, random;
  double loss, twice;
  bool hears; /* a letter ends the suspicion of its sender, as a frame does */
  uint32_t room, posted; /* letters that a rank can post at a time; 0 = any */
  uint32_t jitter, made, begin, mask; /* bit i of mask: letter begin + i is lost */
  struct { bool known; tb_members members; uint32_t base; } decided[VIEWS];
} net_t;
typedef struct { net_t *net; uint16_t rank; } who;
static who whos[MOST];

static inline double chance(net_t *t) {
  t->random ^= t->random << 13;
  t->random ^= t->random >> 7;
  t->random ^= t->random << 17;
  return (double)(t->random >> 11) * 0x1p-53;
}

static inline void post(net_t *t, uint16_t from, uint16_t to, const tb_view_msg *m) {
  uint32_t i = t->made++;
  if (t->cut[from][to] || t->dead[to] || (i >= t->begin && i - t->begin < 32 && t->mask >> (i - t->begin) & 1)) return;
  for (int copies = 1 + (chance(t) < t->twice); copies; copies--) {
    if (chance(t) < t->loss) continue;
    assert_true(t->queued < QUEUE);
    letter *l = &t->queue[t->queued++];
    *l = (letter){t->now + DELAY + (t->jitter ? (uint64_t)(chance(t) * t->jitter) : 0), from, to, {0}};
    assert_int_equal(tb_view_encode(m, l->body, sizeof l->body), TB_VIEW_BODY);
  }
}

static inline bool send(void *ctx, uint16_t to, const tb_view_msg *m) {
  who *w = ctx;
  if (w->net->room && w->net->posted == w->net->room) return false;
  w->net->posted++;
  post(w->net, w->rank, to, m);
  return true;
}

static inline uint32_t rounds(void *ctx) {
  who *w = ctx;
  return w->net->rounds[w->rank];
}

static inline void changed(void *ctx) {
  who *w = ctx;
  net_t *t = w->net;
  const tb_membership *v = &t->v[w->rank];
  t->changes[w->rank]++;
  assert_true(v->number < VIEWS);
  if (t->decided[v->number].known) { /* the one thing that must hold */
    assert_memory_equal(&t->decided[v->number].members, &v->members, sizeof v->members);
    assert_int_equal(t->decided[v->number].base, v->base);
  }
  t->decided[v->number].known = true;
  t->decided[v->number].members = v->members;
  t->decided[v->number].base = v->base;
}

static inline net_t *network(uint16_t n, uint64_t seed) {
  static net_t t;
  memset(&t, 0, sizeof t);
  t.n = n;
  t.random = seed * 0x9e3779b97f4a7c15ull + 1;
  for (uint16_t r = 0; r < n; r++) {
    whos[r] = (who){&t, r};
    tb_view_init(&t.v[r], r, n, 1);
    t.v[r].ctx = &whos[r];
    t.v[r].send = send;
    t.v[r].rounds = rounds;
    t.v[r].changed = changed;
    t.v[r].retry = RETRY;
    t.rounds[r] = 100 + 10 * r;
  }
  return &t;
}

static inline void until(net_t *t, uint64_t end) {
  while (t->now < end) {
    uint64_t next = end;
    for (int i = 0; i < t->queued; i++)
      if (t->queue[i].at < next) next = t->queue[i].at;
    for (uint16_t r = 0; r < t->n; r++)
      if (!t->dead[r] && t->v[r].due < next) next = t->v[r].due;
    t->now = next > t->now ? next : t->now + 1;
    for (int i = 0; i < t->queued;) {
      if (t->queue[i].at > t->now) {
        i++;
        continue;
      }
      letter l = t->queue[i];
      memmove(&t->queue[i], &t->queue[i + 1], (size_t)(t->queued - i - 1) * sizeof l);
      t->queued--;
      i = 0;
      tb_view_msg m;
      assert_int_equal(tb_view_decode(l.body, sizeof l.body, &m), 0);
      if (t->dead[l.to] || t->cut[l.from][l.to]) continue;
      if (t->hears && tb_member(&t->v[l.to].suspects, l.from)) {
        tb_members s = t->v[l.to].suspects;
        tb_member_drop(&s, l.from);
        tb_view_suspect(&t->v[l.to], &s, t->now);
      }
      t->posted = 0;
      tb_view_heard(&t->v[l.to], l.from, &m, t->now);
    }
    for (uint16_t r = 0; r < t->n; r++) {
      t->posted = 0;
      if (!t->dead[r]) tb_view_timer(&t->v[r], t->now);
    }
  }
}

/* What a rank hears nothing from, it suspects. */
static inline void suspect(net_t *t) {
  for (uint16_t r = 0; r < t->n; r++) {
    tb_members s = {{0}};
    for (uint16_t p = 0; p < t->n; p++)
      if (p != r && tb_member(&t->v[r].members, p) && (t->dead[p] || t->cut[p][r])) tb_member_add(&s, p);
    if (!t->dead[r]) tb_view_suspect(&t->v[r], &s, t->now);
  }
}

static inline void cut_off(net_t *t, uint16_t rank, bool off) {
  for (uint16_t p = 0; p < t->n; p++) t->cut[p][rank] = t->cut[rank][p] = off && p != rank;
}

#endif
