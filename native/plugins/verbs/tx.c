/* tx.c - tx_burst: chains of work requests, one doorbell each; and what completions say. */
#include "plugins/verbs/verbs.h"
#include <errno.h>
#include <time.h>

enum { QUIESCE_STEP_NS = 20000 };

static void done(verbs_link *l, const struct ibv_wc *c) {
  if (c->wr_id > l->tail && c->wr_id <= l->head) { /* they complete in order: all before it are done too */
    l->tail = c->wr_id;
    l->reaped = l->refs_at[(c->wr_id - 1) % l->tx.count];
  }
  if (c->status == IBV_WC_SUCCESS) return;
  verbs_add(c->status == IBV_WC_WR_FLUSH_ERR ? &l->n.tx_dropped : &l->n.tx_errors, 1);
  atomic_store(&l->broken, true);
}

bool verbs_tx_poll(verbs_link *l) {
  struct ibv_wc c[VERBS_POLL];
  int n = ibv_poll_cq(l->tx_cq, VERBS_POLL, c);
  for (int i = 0; i < n; i++) done(l, &c[i]);
  if (n < 0) atomic_store(&l->broken, true);
  return n > 0;
}

/* Frames that are the link's now: those posted, and those lost among them. */
static uint32_t account(verbs_link *l, const tb_tx *frames, uint32_t posted, uint32_t taken) {
  const verbs_chain *c = &l->chain;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < posted; i++) bytes += frames[c->at[i]].head_len + frames[c->at[i]].pay_len;
  for (uint32_t i = 0; i < taken; i++) l->refs += frames[i].ref;
  if (l->head == l->tail) l->reaped = l->refs; /* nothing is under way */
  else l->refs_at[(l->head - 1) % l->tx.count] = l->refs; /* lost ones are done with the one before them */
  verbs_add(&l->n.tx_frames, posted);
  verbs_add(&l->n.tx_bytes, bytes);
  verbs_add(&l->n.tx_dropped, taken - posted);
  return taken;
}

/* A full queue leaves frames to the caller; any other refusal is the device's last word on these: they are lost. */
static uint32_t post(verbs_link *l, const tb_tx *frames) {
  verbs_chain *c = &l->chain;
  struct ibv_send_wr *bad = NULL;
  uint32_t posted = c->count, taken = c->frames;
  if (c->count) {
    int rc = ibv_post_send(l->qp, c->wr, &bad);
    verbs_add(&l->n.tx_calls, 1);
    if (rc) {
      posted = bad >= c->wr && bad < c->wr + c->count ? (uint32_t)(bad - c->wr) : 0;
      if (rc == ENOMEM) taken = c->at[posted];
      else verbs_add(&l->n.tx_errors, 1);
      if (rc != ENOMEM || posted) atomic_store(&l->broken, true); /* in part: the rest's last one was to be signalled */
    }
  }
  l->head += posted;
  return account(l, frames, posted, taken);
}

static uint32_t room(verbs_link *l, uint32_t want) {
  uint32_t used = (uint32_t)(l->head - l->tail);
  if (want > VERBS_CHAIN) want = VERBS_CHAIN;
  if (used > l->tx.count / 2 || l->tx.count - used < want) verbs_tx_poll(l);
  return l->tx.count - (uint32_t)(l->head - l->tail);
}

int verbs_tx_burst(tb_link *link, uint32_t lane, const tb_tx *frames, int n) {
  verbs_link *l = verbs_of(link);
  int sent = 0, error = 0;
  if (lane || n < 0) return -EINVAL;
  l->blocked = false;
  while (sent < n && !error) {
    verbs_qp_mend(l);
    uint32_t left = (uint32_t)(n - sent), free_ones = room(l, left);
    l->blocked = !free_ones;
    if (l->blocked) break;
    verbs_chain_build(l, frames + sent, left, free_ones, &error);
    if (!l->chain.frames) break;
    if (l->down_until) l->chain.count = 0; /* all of them are lost */
    uint32_t taken = post(l, frames + sent);
    sent += (int)taken;
    l->blocked = taken < l->chain.frames;
    if (l->blocked) break;
  }
  if (sent) l->idle_since = 0; /* an answer may come soon */
  return sent ? sent : error;
}

uint64_t verbs_tx_reap(tb_link *link, uint32_t lane) {
  verbs_link *l = verbs_of(link);
  if (lane) return 0;
  if (l->reaped == l->refs) return l->reaped;
  tb_guard_visit(&l->guard);
  verbs_tx_poll(l);
  uint64_t reaped = l->reaped;
  tb_guard_leave(&l->guard);
  return reaped;
}

int verbs_tx_quiesce(tb_link *link, uint32_t lane, uint64_t until_ns) {
  verbs_link *l = verbs_of(link);
  if (lane) return -EINVAL;
  while (verbs_tx_reap(link, 0) != l->refs) {
    if (verbs_now() >= until_ns) return -ETIMEDOUT;
    nanosleep(&(struct timespec){0, QUIESCE_STEP_NS}, NULL);
  }
  return 0;
}

/* Without REFs under way nothing of the caller's is read, and a cycle would only lose frames. */
int verbs_tx_abort(tb_link *link, uint32_t lane, uint64_t *took_ns) {
  verbs_link *l = verbs_of(link);
  uint64_t start = verbs_now();
  int rc = 0;
  if (lane) return -EINVAL;
  if (took_ns) *took_ns = 0;
  if (l->reaped == l->refs) return 0;
  tb_guard_visit(&l->guard);
  verbs_qp_cycle(l);
  if (l->reaped != l->refs) rc = -EIO;
  tb_guard_leave(&l->guard);
  if (took_ns) *took_ns = verbs_now() - start;
  return rc;
}
