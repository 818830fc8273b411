/* chain.c - frames -> work requests. Each frame is one: what the device can carry in the request itself is put there when
 * it is posted; else header and payload are copied into the buffer of that request, and a REF's payload is a second
 * piece, read from where it lies. The last of a chain is signalled: its completion speaks for all before it. */
#include "plugins/verbs/verbs.h"
#include <errno.h>
#include <string.h>

static int check(const verbs_link *l, const tb_tx *f) {
  if (f->peer >= l->peers_cap || !l->peers[f->peer].route) return -ENOENT;
  if ((f->head_len && !f->head) || (f->pay_len && !f->pay)) return -EINVAL;
  uint64_t total = (uint64_t)f->head_len + f->pay_len;
  if (!total) return -EINVAL;
  if (total > l->mtu) return -EMSGSIZE;
  if (!f->ref) return 0;
  return l->caps.ref == TB_REF_NONE ? -EOPNOTSUPP : tb_regions_check(&l->regions, f->region, f->pay, f->pay_len);
}

static struct ibv_sge piece(const void *at, uint32_t len, uint32_t key) {
  return (struct ibv_sge){.addr = (uintptr_t)at, .length = len, .lkey = key};
}

/* The pieces of a frame, into sge[0] and sge[1]; how many. Inline ones need no key: the processor copies them. */
static int gather(verbs_link *l, const tb_tx *f, uint64_t number, bool carried, struct ibv_sge *sge) {
  int n = 0;
  if (carried) {
    if (f->head_len) sge[n++] = piece(f->head, f->head_len, 0);
    if (f->pay_len) sge[n++] = piece(f->pay, f->pay_len, 0);
    return n;
  }
  uint8_t *slot = verbs_slab_at(&l->tx, (uint32_t)(number % l->tx.count));
  const struct ibv_mr *user = f->ref && f->pay_len ? verbs_mr_of(l, f->region) : NULL;
  uint32_t here = f->head_len + (user ? 0 : f->pay_len);
  if (f->head_len) memcpy(slot, f->head, f->head_len);
  if (!user && f->pay_len) memcpy(slot + f->head_len, f->pay, f->pay_len);
  if (!user) verbs_add(&l->n.tx_copied, f->pay_len);
  if (here) sge[n++] = piece(slot, here, l->tx.mr->lkey);
  if (user) sge[n++] = piece(f->pay, f->pay_len, user->lkey);
  return n;
}

static void request(verbs_link *l, const tb_tx *f, struct ibv_ah *ah) {
  verbs_chain *c = &l->chain;
  const verbs_peer *p = &l->peers[f->peer];
  struct ibv_send_wr *w = &c->wr[c->count];
  uint64_t number = l->head + c->count;
  bool carried = f->head_len + f->pay_len <= l->inline_most;
  w->wr_id = number + 1;
  w->sg_list = &c->sge[2 * c->count];
  w->num_sge = gather(l, f, number, carried, w->sg_list);
  w->opcode = IBV_WR_SEND;
  w->send_flags = carried ? IBV_SEND_INLINE : 0;
  w->next = w + 1;
  w->wr.ud.ah = ah;
  w->wr.ud.remote_qpn = p->qpn;
  w->wr.ud.remote_qkey = p->qkey;
}

void verbs_chain_build(verbs_link *l, const tb_tx *frames, uint32_t n, uint32_t room, int *error) {
  verbs_chain *c = &l->chain;
  uint64_t refs = l->refs;
  c->count = c->frames = 0;
  *error = 0;
  for (; c->frames < n && c->count < room && c->count < VERBS_CHAIN; c->frames++) {
    const tb_tx *f = &frames[c->frames];
    if ((*error = check(l, f))) break;
    refs += f->ref;
    struct ibv_ah *ah = verbs_route_take(l, l->peers[f->peer].route);
    if (!ah) continue; /* its address is not resolved yet: lost, as a kernel loses it */
    request(l, f, ah);
    l->refs_at[(l->head + c->count) % l->tx.count] = refs;
    c->at[c->count++] = c->frames;
  }
  if (!c->count) return;
  struct ibv_send_wr *last = &c->wr[c->count - 1];
  last->next = NULL;
  last->send_flags |= IBV_SEND_SIGNALED;
}
