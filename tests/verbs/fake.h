/* fake.h - a verbs device for tests on machines that have none: a context whose data-path operations (post_send,
 * post_srq_recv, poll_cq) are functions of the test, and a link around it as open would leave it, but for the queues.
 * Control-path verbs (modify_qp, create_ah) are not called through it. */
#ifndef VERBS_FAKE_H
#define VERBS_FAKE_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "plugins/verbs/verbs.h"

#define FAKE_MTU 1024
#define FAKE_RX 256

typedef struct {
  struct ibv_context context;
  struct ibv_qp qp;
  struct ibv_cq tx_cq, rx_cq;
  struct ibv_srq srq;
  struct ibv_mr mr;
  verbs_route route;
  verbs_link *l;
  /* send side */
  struct { uint64_t wr_id; unsigned flags; uint32_t bytes, pieces; uint8_t head[64]; uint32_t qpn; } sent[4096];
  uint32_t sents, doorbells, completed; /* completed: of `sent`, those that poll_cq has passed */
  int refuse;               /* errno of the next post_send */
  uint32_t refuse_after;    /* work requests it takes before it refuses */
  uint32_t hold;            /* poll_cq gives no completion beyond this many work requests */
  uint64_t fail_at;         /* this work request, counted from 1, completes with an error, and all behind it are flushed */
  /* receive side */
  uint64_t posted[FAKE_RX]; /* buffers, in the order in which they are filled */
  uint32_t posts, filled, taken, srq_calls;
  uint32_t srq_room;        /* more are refused */
  struct ibv_wc done[FAKE_RX];
} fake;

static fake *the_fake;

static inline int fake_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
  fake *f = the_fake;
  uint32_t n = 0;
  assert_ptr_equal(qp, &f->qp);
  f->doorbells++;
  for (; wr; wr = wr->next, n++) {
    if (f->refuse && n == f->refuse_after) {
      int rc = f->refuse;
      f->refuse = 0;
      *bad = wr;
      return rc;
    }
    uint32_t bytes = 0;
    for (int i = 0; i < wr->num_sge; i++) {
      const struct ibv_sge *s = &wr->sg_list[i];
      uint32_t room = sizeof f->sent[0].head - (bytes < 64 ? bytes : 64);
      memcpy(f->sent[f->sents].head + (bytes < 64 ? bytes : 64), (const void *)(uintptr_t)s->addr,
             s->length < room ? s->length : room);
      bytes += s->length;
    }
    f->sent[f->sents].wr_id = wr->wr_id;
    f->sent[f->sents].flags = wr->send_flags;
    f->sent[f->sents].bytes = bytes;
    f->sent[f->sents].pieces = (uint32_t)wr->num_sge;
    f->sent[f->sents++].qpn = wr->wr.ud.remote_qpn;
  }
  return 0;
}

static inline int fake_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
  fake *f = the_fake;
  assert_ptr_equal(srq, &f->srq);
  f->srq_calls++;
  for (; wr; wr = wr->next) {
    if (f->posts - f->taken == f->srq_room) {
      *bad = wr;
      return ENOMEM;
    }
    f->posted[f->posts++ % FAKE_RX] = wr->wr_id;
  }
  return 0;
}

/* A completion for each signalled work request, and for each that failed or was flushed. */
static inline int fake_poll_tx(fake *f, int n, struct ibv_wc *wc) {
  int k = 0;
  for (; k < n && f->completed < f->sents && f->completed < f->hold; f->completed++) {
    uint64_t number = f->completed + 1;
    bool bad = f->fail_at && number >= f->fail_at;
    if (!bad && !(f->sent[f->completed].flags & IBV_SEND_SIGNALED)) continue;
    wc[k++] = (struct ibv_wc){.wr_id = f->sent[f->completed].wr_id,
                              .status = !bad ? IBV_WC_SUCCESS : number == f->fail_at ? IBV_WC_LOC_QP_OP_ERR
                                                                                     : IBV_WC_WR_FLUSH_ERR};
  }
  return k;
}

static inline int fake_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc) {
  fake *f = the_fake;
  int k = 0;
  if (cq == &f->tx_cq) return fake_poll_tx(f, n, wc);
  for (; k < n && f->taken < f->filled; f->taken++) wc[k++] = f->done[f->taken % FAKE_RX];
  return k;
}

/* A datagram of `len` bytes (its address in front not counted) arrives, from 10.0.0.<from>. */
static inline void fake_arrive(fake *f, uint8_t from, const void *data, uint32_t len) {
  assert_true(f->filled < f->posts);
  uint64_t slot = f->posted[f->filled % FAKE_RX];
  uint8_t *at = verbs_slab_at(&f->l->rx, (uint32_t)slot) + VERBS_LEAD;
  memset(at - VERBS_GRH, 0xa5, VERBS_GRH);
  at[-20] = 0x45;
  memcpy(at - 8, (const uint8_t[]){10, 0, 0, from}, 4);
  memcpy(at, data, len < FAKE_MTU ? len : FAKE_MTU);
  f->done[f->filled++ % FAKE_RX] = (struct ibv_wc){.wr_id = slot, .byte_len = len + VERBS_GRH, .wc_flags = IBV_WC_GRH};
}

static inline void fake_gid(uint8_t gid[16], uint8_t last) {
  assert_int_equal(verbs_gid_of("10.0.0.0", gid), 0);
  gid[15] = last;
}

/* Peer i of 4 is at 10.0.0.<i + 1>, queue pair 100 + i; all by one route, which is resolved. */
static inline int fake_setup(void **state) {
  fake *f = the_fake = calloc(1, sizeof *f);
  verbs_link *l = calloc(1, sizeof *l);
  assert_true(f && l);
  f->l = l;
  f->hold = UINT32_MAX;
  f->srq_room = FAKE_RX;
  f->context.ops.post_send = fake_post_send;
  f->context.ops.post_srq_recv = fake_post_srq_recv;
  f->context.ops.poll_cq = fake_poll_cq;
  f->qp.context = f->tx_cq.context = f->rx_cq.context = f->srq.context = &f->context;
  l->at = (verbs_choice){.device = "fake0", .port = 1, .ethernet = true};
  fake_gid(l->gid, 1);
  l->qp = &f->qp, l->tx_cq = &f->tx_cq, l->rx_cq = &f->rx_cq, l->srq = &f->srq;
  l->port_mtu = l->mtu = FAKE_MTU;
  l->caps = (tb_link_caps){.mtu = FAKE_MTU, .lanes = 1};
  l->inline_most = VERBS_INLINE;
  l->waker.fd = l->router.fd = -1;
  tb_guard_init(&l->guard);
  tb_regions_init(&l->regions);
  tb_events_init(&l->events);
  assert_int_equal(verbs_slab_map(&l->tx, FAKE_MTU, VERBS_TX_SLOTS), 0);
  assert_int_equal(verbs_slab_map(&l->rx, VERBS_LEAD + FAKE_MTU, FAKE_RX), 0);
  l->tx.mr = l->rx.mr = &f->mr;
  l->rwr = calloc(FAKE_RX, sizeof *l->rwr);
  l->rsge = calloc(FAKE_RX, sizeof *l->rsge);
  l->slid = calloc(FAKE_RX, sizeof *l->slid);
  l->has_grh = calloc(FAKE_RX, 1);
  l->free_slot = calloc(FAKE_RX, sizeof *l->free_slot);
  l->lease = calloc(FAKE_RX, sizeof *l->lease);
  l->peers = calloc(4, sizeof *l->peers);
  l->peers_cap = 4;
  f->route.ah = (struct ibv_ah *)&f->route; /* nobody looks into it */
  for (uint32_t i = 0; i < 4; i++) {
    l->peers[i] = (verbs_peer){.route = &f->route, .qpn = 100 + i, .qkey = 1};
    fake_gid(l->peers[i].gid, (uint8_t)(i + 1));
  }
  verbs_rx_prepare(l);
  assert_int_equal(verbs_rx_post(l), 0);
  *state = f;
  return 0;
}

static inline int fake_teardown(void **state) {
  fake *f = *state;
  verbs_link *l = f->l;
  l->tx.mr = l->rx.mr = NULL;
  verbs_slab_free(&l->tx, true);
  verbs_slab_free(&l->rx, true);
  free(l->rwr), free(l->rsge), free(l->slid), free(l->has_grh), free(l->free_slot), free(l->lease), free(l->peers);
  tb_guard_destroy(&l->guard);
  tb_regions_destroy(&l->regions);
  tb_events_destroy(&l->events);
  free(l);
  free(f);
  return 0;
}

#endif
