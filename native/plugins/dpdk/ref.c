/* ref.c - payloads that are sent from where they lie.
 *
 * Such a frame is two mbufs: the headers in one of the sending pool, and behind it a tail, an mbuf without room of its
 * own that is attached to the payload. Which drivers get that says device.c: those that copy in tx_burst, so that they
 * are done with the memory when it returns (TB_REF_SYNC). That is all a COPY payload asks for as well: both kinds go so,
 * the caller's tensor and what the engine has summed elsewhere. REFs are counted, and must lie in their region.
 *
 * All tails of a port share one count of readers. It lies in the port, which outlives every link, and is looked at after
 * each burst: should a driver keep a tail all the same, its REFs are not reaped until it gave them back, and the link
 * copies from then on.
 *
 * A tail costs an mbuf more, taken, attached, given back: a short payload is copied sooner. */
#include "plugins/dpdk/dpdk.h"
#include <errno.h>
#include <time.h>

/* Measured on memif and af_packet, from warm memory and from cold: shorter ones cost less when they are copied. */
enum { LEAST = 512 };

int dpdk_mem_reg(tb_link *link, const void *base, size_t len, uint32_t *region) {
  return tb_regions_add(&dpdk_of(link)->regions, base, len, region);
}

static bool let_go(const dpdk_link *l) { return rte_mbuf_ext_refcnt_read(&l->port->readers) <= 1; }

static bool settled(dpdk_link *l) {
  if (let_go(l)) l->reaped = l->refs;
  return l->reaped == l->refs;
}

int dpdk_mem_unreg(tb_link *link, uint32_t region) {
  dpdk_link *l = dpdk_of(link);
  return settled(l) ? tb_regions_remove(&l->regions, region) : -EBUSY;
}

int dpdk_ref_check(const dpdk_link *l, const tb_tx *f) {
  if (l->caps.ref == TB_REF_NONE) return -EOPNOTSUPP;
  return tb_regions_check(&l->regions, f->region, f->pay, f->pay_len);
}

bool dpdk_ref_gathers(const dpdk_link *l, const tb_tx *f) {
  return l->caps.ref == TB_REF_SYNC && f->pay_len >= LEAST && !l->told_kept;
}

uint32_t dpdk_ref_tails(dpdk_link *l, struct rte_mbuf **tail, uint32_t want) {
  if (!want || rte_pktmbuf_alloc_bulk(l->port->tail_pool, tail, want)) return 0;
  rte_mbuf_ext_refcnt_update(&l->port->readers, (int16_t)want);
  return want;
}

/* A virtual device needs no address for DMA. */
void dpdk_ref_attach(dpdk_link *l, struct rte_mbuf *m, struct rte_mbuf *tail, const tb_tx *f) {
  rte_pktmbuf_attach_extbuf(tail, (void *)f->pay, RTE_BAD_IOVA, (uint16_t)f->pay_len, &l->port->readers);
  tail->data_len = (uint16_t)f->pay_len;
  m->next = tail;
  m->nb_segs = 2;
  m->pkt_len += f->pay_len;
}

void dpdk_ref_look(dpdk_link *l) {
  if (l->told_kept || let_go(l)) return;
  l->told_kept = true;
  dpdk_event(l, 40, "dpdk: the driver of %s keeps payloads that it should have copied: they are copied before it gets "
             "them from now on; please report it with the version of DPDK", l->port->device.name);
}

uint64_t dpdk_tx_reap(tb_link *link, uint32_t lane) {
  dpdk_link *l = dpdk_of(link);
  if (lane) return 0;
  (void)settled(l);
  return l->reaped;
}

int dpdk_tx_quiesce(tb_link *link, uint32_t lane, uint64_t until_ns) {
  dpdk_link *l = dpdk_of(link);
  if (lane) return -EINVAL;
  while (!settled(l)) {
    if (dpdk_now() >= until_ns) return -ETIMEDOUT;
    nanosleep(&(struct timespec){0, 50000}, NULL);
  }
  return 0;
}
