/* conformance.h - three endpoints of one link (two where it has no more), whichever it is, and the little that differs
 * between links: how time passes, and what the link declares about itself. */
#ifndef CONFORMANCE_H
#define CONFORMANCE_H
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "links/sim.h"

#define MS 1000000u
#define ENDS 3
#define MTU 1472
#define MEMORY 65536
#define GOT 512

typedef struct {
  const char *name;
  const tb_link_ops *ops;
  const char *sim;        /* options of the simulated network; NULL = the link is real */
  const char *interface;
  const char *device[ENDS]; /* links that own a device: each endpoint's */
  uint32_t ends;          /* 0 = ENDS; a cable has 2 */
  bool last_first;        /* the order of opening: one end waits for another */
  bool cuts_at_close;     /* what the other end has not read by then goes with the cable */
  bool busy;
  tb_ref_kind ref;
  uint64_t ref_from;      /* memory of at least so many bytes is sent from where it lies; 0 = the link's own limit */
  uint64_t buffer;        /* wanted; 0 = 4 MiB */
  size_t capacity;        /* frames tx_burst takes while nothing leaves; 0 = cannot be said */
  bool truncation_known;  /* rx_truncated is counted */
  bool may_be_absent;
  const char *ip[ENDS];   /* of links that own a device: NULL = of their own choice */
  uint32_t vlan;
} link_kind;

typedef struct {
  const link_kind *kind;
  const tb_link_ops *ops;
  tb_sim *net;
  uint32_t ends;
  tb_link *at[ENDS];
  tb_addr addr[ENDS];
  uint32_t region;        /* memory, registered at endpoint 0 */
  uint8_t memory[MEMORY];
} fixture;

/* The tests, without names and links: conformance.c multiplies them out with the links that a program names. */
#define CONFORMANCE(test) {#test, test, open_all, close_if_open, NULL}
extern const struct CMUnitTest conformance_tx[], conformance_rx[];
extern const size_t conformance_tx_count, conformance_rx_count;
int conformance_run(const char *name, link_kind *kinds, size_t count);

typedef struct { uint32_t len; uint8_t data[MTU]; } got_frame;
static got_frame got[GOT];

static inline uint64_t clock_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t link_now(const fixture *f) { return f->net ? tb_sim_now(f->net) : clock_ns(); }

static inline int close_all(void **state) {
  fixture *f = *state;
  for (int i = 0; i < ENDS; i++)
    if (f->at[i]) f->ops->close(f->at[i]);
  tb_sim_free(f->net);
  free(f);
  return 0;
}

/* Until a peer that was just added can be reached: some links have to find out where it is. */
static inline void settle(const tb_link_ops *ops, const tb_link *link, uint32_t peer) {
  for (int i = 0; i < 5000 && ops->peer_state(link, peer) == -EINPROGRESS; i++) nanosleep(&(struct timespec){0, MS}, NULL);
}

/* An end that was opened before the other one tells later that it is there. */
static inline void hear_out(fixture *f) {
  tb_link_event event;
  for (uint32_t i = 0; i < f->ends; i++)
    while (f->ops->wait(f->at[i], 0, clock_ns() + 150 * MS) != TB_WAIT_TIMEOUT)
      while (f->ops->events(f->at[i], &event, 1) == 1) continue;
}

/* Peers are numbered as the endpoints; every endpoint knows all of them, itself too. */
static inline int open_all(void **state) {
  const link_kind *kind = *state;
  fixture *f = calloc(1, sizeof *f);
  if (!f) return -1;
  char error[512] = "";
  f->kind = kind;
  f->ops = kind->ops;
  f->ends = kind->ends ? kind->ends : ENDS;
  if (kind->sim && tb_sim_new(ENDS, kind->sim, &f->net, error, sizeof error)) fail_msg("%s", error);
  *state = f;
  for (uint32_t k = 0; k < f->ends; k++) {
    uint32_t i = kind->last_first ? f->ends - 1 - k : k;
    tb_sim_port port = {f->net, i};
    tb_link_cfg cfg = {.interface = kind->interface, .mtu = MTU, .flows = 1, .peers = ENDS, .self = i,
                       .buffer = kind->buffer ? kind->buffer : 4 << 20, .device = kind->device[i], .ip = kind->ip[i],
                       .vlan = kind->vlan, .busy = kind->busy, .ref_from = kind->ref_from,
                       .context = f->net ? &port : NULL,
                       .error = error, .error_len = sizeof error};
    int rc = f->ops->open(&cfg, &f->at[i]);
    if (rc == -ENODEV && kind->may_be_absent) {
      print_message("%s: %s\n", kind->name, error);
      close_all(state);
      *state = NULL;
      return 0;
    }
    if (rc) fail_msg("%s: open: %d %s", kind->name, rc, error);
    assert_int_equal(f->ops->local_addr(f->at[i], &f->addr[i]), 0);
  }
  for (uint32_t i = 0; i < f->ends; i++)
    for (uint32_t j = 0; j < f->ends; j++) {
      assert_int_equal(f->ops->peer_add(f->at[i], j, &f->addr[j]), 0);
      settle(f->ops, f->at[i], j);
    }
  assert_int_equal(f->ops->mem_reg(f->at[0], f->memory, sizeof f->memory, &f->region), 0);
  if (kind->ends) hear_out(f);
  return 0;
}

static inline int close_if_open(void **state) { return *state ? close_all(state) : 0; }

static inline fixture *opened(void **state) {
  if (!*state) skip();
  return *state;
}

/* Lets the link do what it has to do. */
static inline void pass_time(fixture *f, uint64_t ns) {
  if (f->net) tb_sim_run_until(f->net, tb_sim_now(f->net) + ns);
}

/* Takes frames at one endpoint into got[] until `want` have come or 2 s are over; how many. */
static inline int take(fixture *f, int at, int want) {
  int n = 0;
  uint64_t give_up = clock_ns() + 2000u * MS;
  tb_rx rx[32];
  while (n < want && clock_ns() < give_up) {
    pass_time(f, MS);
    int k = f->ops->rx_burst(f->at[at], 0, rx, want - n < 32 ? want - n : 32);
    assert_true(k >= 0);
    for (int i = 0; i < k; i++, n++) {
      assert_true(n < GOT && rx[i].len <= MTU);
      got[n].len = rx[i].len;
      memcpy(got[n].data, rx[i].data, rx[i].len);
    }
    f->ops->rx_release(f->at[at], 0);
    if (!k) f->ops->wait(f->at[at], 0, link_now(f) + 20 * MS);
    if (!k && f->net && tb_sim_next(f->net) == UINT64_MAX) break; /* nothing can come any more */
  }
  return n;
}

static inline void nothing_comes(fixture *f, int at) {
  tb_rx rx;
  pass_time(f, 20 * MS);
  if (!f->net) f->ops->wait(f->at[at], 0, clock_ns() + 20 * MS);
  assert_int_equal(f->ops->rx_burst(f->at[at], 0, &rx, 1), 0);
  f->ops->rx_release(f->at[at], 0);
}

static inline tb_tx frame_copy(uint32_t peer, const void *head, uint32_t head_len, const void *pay, uint32_t pay_len) {
  return (tb_tx){.peer = peer, .head = head, .head_len = head_len, .pay = pay, .pay_len = pay_len};
}

static inline tb_tx frame_ref(fixture *f, uint32_t peer, const void *head, size_t offset, uint32_t len) {
  return (tb_tx){.peer = peer, .head = head, .head_len = 4, .ref = true, .region = f->region, .pay = f->memory + offset,
                 .pay_len = len};
}

static inline int send_one(fixture *f, int at, tb_tx tx) { return f->ops->tx_burst(f->at[at], 0, &tx, 1); }

/* Waits until tx_reap of endpoint 0 reaches `want`; the last value. Never lets it shrink or exceed `want`. */
static inline uint64_t reap(fixture *f, uint64_t want) {
  uint64_t give_up = clock_ns() + 2000u * MS, last = 0;
  for (int i = 0; last < want && clock_ns() < give_up; i++) {
    uint64_t now = f->ops->tx_reap(f->at[0], 0);
    assert_true(now >= last && now <= want);
    last = now;
    pass_time(f, 100);
  }
  return last;
}

#endif
