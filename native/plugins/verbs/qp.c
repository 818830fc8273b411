/* qp.c - the link's queues: made at open, cycled after an error, destroyed at close. Control path only. */
#include "plugins/verbs/verbs.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum { BUFFER_DEFAULT = 8 << 20, RX_MOST = 1 << 16, DRAIN_STEP_NS = 20000, DRAIN_LEAST_NS = 1000000,
       DRAINS = 4 }; /* others use the port too */

static uint32_t bytes_of(enum ibv_mtu mtu) { return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128u << mtu : 0; }

static int open_device(verbs_link *l, const tb_link_cfg *cfg) {
  int count = 0;
  struct ibv_device **list = ibv_get_device_list(&count), *found = NULL;
  for (int i = 0; list && i < count; i++)
    if (!strcmp(ibv_get_device_name(list[i]), l->at.device)) found = list[i];
  if (found) l->context = ibv_open_device(found);
  int error = errno;
  if (list) ibv_free_device_list(list);
  if (l->context) return 0;
  if (!found)
    return VERBS_REFUSE(cfg, -ENODEV, "verbs: the kernel has %s, but libibverbs does not: install its provider (Debian: "
                        "ibverbs-providers), load ib_uverbs, and give a container /dev/infiniband", l->at.device);
  return VERBS_REFUSE(cfg, error ? -error : -EIO, "verbs: %s cannot be opened (%s): may this user open /dev/infiniband/"
                      "uverbs*?", l->at.device, strerror(error ? error : EIO));
}

/* Mbit/s of a port; codes as in the standard. */
static uint64_t rate(const struct ibv_port_attr *p) {
  static const struct { uint8_t code; uint32_t mbit; } speed[] = {{1, 2500}, {2, 5000}, {4, 10000}, {8, 10000},
                                                                  {16, 14000},
                                                                  {32, 25000}, {64, 50000}, {128, 100000}};
  static const struct { uint8_t code, lanes; } width[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
  uint64_t mbit = 2500, lanes = 1;
  for (size_t i = 0; i < sizeof speed / sizeof *speed; i++)
    if (speed[i].code == p->active_speed) mbit = speed[i].mbit;
  for (size_t i = 0; i < sizeof width / sizeof *width; i++)
    if (width[i].code == p->active_width) lanes = width[i].lanes;
  return mbit * lanes;
}

static int look_at_port(verbs_link *l, const tb_link_cfg *cfg) {
  struct ibv_port_attr port;
  union ibv_gid gid;
  int rc = ibv_query_port(l->context, (uint8_t)l->at.port, &port);
  if (rc || port.state != IBV_PORT_ACTIVE)
    return VERBS_REFUSE(cfg, -ENETDOWN, "verbs: port %u of %s is not up%s%s: see `rdma link`", l->at.port, l->at.device,
                        *l->at.gid.netdev ? ": ip link set up dev " : "", l->at.gid.netdev);
  if (ibv_query_gid(l->context, (uint8_t)l->at.port, (int)l->at.gid.index, &gid) || memcmp(gid.raw, l->at.gid.raw, 16))
    return VERBS_REFUSE(cfg, -EAGAIN, "verbs: GID %u of %s changed just now: try again", l->at.gid.index, l->at.device);
  memcpy(l->gid, gid.raw, sizeof l->gid);
  l->lid = port.lid;
  l->port_mtu = bytes_of(port.active_mtu);
  uint64_t bits = (uint64_t)VERBS_TX_SLOTS * l->port_mtu * 8;
  l->drain_ns = DRAINS * bits * 1000 / rate(&port);
  if (l->drain_ns < DRAIN_LEAST_NS) l->drain_ns = DRAIN_LEAST_NS;
  l->mtu = cfg->mtu && cfg->mtu < l->port_mtu ? cfg->mtu : l->port_mtu;
  return 0;
}

static uint32_t least(uint32_t a, int b) { return b > 0 && (uint32_t)b < a ? (uint32_t)b : a; }

/* How many buffers, by the configuration and by what the device can hold. */
static int size_buffers(verbs_link *l, const tb_link_cfg *cfg, uint32_t *rx, uint32_t *tx, uint32_t *stride) {
  struct ibv_device_attr d;
  if (ibv_query_device(l->context, &d))
    return VERBS_REFUSE(cfg, -EIO, "verbs: %s does not answer: see dmesg", l->at.device);
  if (d.max_srq < 1 || d.max_srq_wr < VERBS_RX_LEAST)
    return VERBS_REFUSE(cfg, -EOPNOTSUPP, "verbs: %s has no shared receive queues, which this link needs: use link udp",
                        l->at.device);
  *stride = VERBS_LEAD + (l->port_mtu + 63) / 64 * 64;
  uint64_t want = (cfg->buffer ? cfg->buffer : BUFFER_DEFAULT) / *stride;
  if (want < VERBS_RX_LEAST) want = VERBS_RX_LEAST;
  *rx = least(least((uint32_t)(want > RX_MOST ? RX_MOST : want), d.max_srq_wr), d.max_cqe);
  *tx = VERBS_TX_SLOTS;
  while (*tx > VERBS_CHAIN && (*tx > least(*tx, d.max_qp_wr) || *tx > least(*tx, d.max_cqe))) *tx /= 2;
  return 0;
}

static int make_buffers(verbs_link *l, const tb_link_cfg *cfg) {
  uint32_t rx = 0, tx = 0, stride = 0;
  int rc = size_buffers(l, cfg, &rx, &tx, &stride);
  if (!rc) rc = verbs_memlock((uint64_t)stride * rx + (uint64_t)l->port_mtu * tx, cfg->error, cfg->error_len);
  if (rc) return rc;
  rc = verbs_slab_map(&l->rx, stride, rx);
  if (!rc) rc = verbs_slab_map(&l->tx, l->port_mtu, tx);
  if (!rc) rc = verbs_slab_register(&l->rx, l->pd);
  if (!rc) rc = verbs_slab_register(&l->tx, l->pd);
  if (rc)
    return VERBS_REFUSE(cfg, rc, "verbs: %s did not take %zu KiB of memory (%s): is locked memory limited (ulimit -l), or "
                        "this container's memory? A smaller TAILBOUND_BUFFER needs less", l->at.device,
                        (l->rx.bytes + l->tx.bytes) >> 10, strerror(-rc));
  l->rwr = calloc(rx, sizeof *l->rwr);
  l->rsge = calloc(rx, sizeof *l->rsge);
  l->slid = calloc(rx, sizeof *l->slid);
  l->has_grh = calloc(rx, 1);
  l->free_slot = calloc(rx, sizeof *l->free_slot);
  l->lease = calloc(rx, sizeof *l->lease);
  if (!l->rwr || !l->rsge || !l->slid || !l->has_grh || !l->free_slot || !l->lease)
    return VERBS_REFUSE(cfg, -ENOMEM, "verbs: no memory for the link's tables");
  verbs_rx_prepare(l);
  return 0;
}

static int make_completions(verbs_link *l) {
  l->channel = ibv_create_comp_channel(l->context);
  if (!l->channel) return -errno;
  if (fcntl(l->channel->fd, F_SETFL, fcntl(l->channel->fd, F_GETFL) | O_NONBLOCK)) return -errno;
  l->tx_cq = ibv_create_cq(l->context, (int)l->tx.count, NULL, l->channel, 0);
  if (!l->tx_cq) return -errno;
  l->rx_cq = ibv_create_cq(l->context, (int)l->rx.count, NULL, l->channel, 0);
  return l->rx_cq ? 0 : -errno;
}

static int make_qp(verbs_link *l) {
  static const uint32_t carry[] = {VERBS_INLINE, 64, 0}; /* a device that cannot do so much refuses */
  struct ibv_srq_init_attr s = {.attr = {.max_wr = l->rx.count, .max_sge = 1}};
  l->srq = ibv_create_srq(l->pd, &s);
  if (!l->srq) return -errno;
  for (size_t i = 0; i < sizeof carry / sizeof *carry && !l->qp; i++) {
    struct ibv_qp_init_attr q = {.send_cq = l->tx_cq, .recv_cq = l->rx_cq, .srq = l->srq, .qp_type = IBV_QPT_UD,
                                 .cap = {.max_send_wr = l->tx.count, .max_send_sge = 2, .max_inline_data = carry[i]}};
    l->qp = ibv_create_qp(l->pd, &q);
    l->inline_most = q.cap.max_inline_data < VERBS_INLINE ? q.cap.max_inline_data : VERBS_INLINE;
  }
  return l->qp ? 0 : -errno;
}

static int modify(verbs_link *l, struct ibv_qp_attr a, int mask) {
  int rc = ibv_modify_qp(l->qp, &a, mask | IBV_QP_STATE);
  return rc < 0 ? -errno : -rc;
}

int verbs_qp_up(verbs_link *l) {
  int rc = modify(l, (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = (uint8_t)l->at.port, .qkey = l->qkey},
                  IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
  if (!rc) rc = modify(l, (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR}, 0);
  if (!rc) rc = modify(l, (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS}, IBV_QP_SQ_PSN);
  return rc;
}

int verbs_queues_open(verbs_link *l, const tb_link_cfg *cfg) {
  int rc = open_device(l, cfg);
  if (rc || (rc = look_at_port(l, cfg))) return rc;
  if (l->mtu < VERBS_MTU_MIN)
    return VERBS_REFUSE(cfg, -EINVAL, "verbs: frames of %u bytes are too small: at least %d are needed: raise "
                        "TAILBOUND_MTU or leave it out", l->mtu, VERBS_MTU_MIN);
  if (getrandom(&l->qkey, sizeof l->qkey, 0) != sizeof l->qkey) l->qkey = (uint32_t)verbs_now();
  l->qkey = (l->qkey & 0x7fffffff) | 1; /* the upper half of all keys is for the privileged */
  l->pd = ibv_alloc_pd(l->context);
  if (!l->pd) return VERBS_REFUSE(cfg, -errno, "verbs: %s gave no protection domain: %s", l->at.device, strerror(errno));
  if ((rc = make_buffers(l, cfg))) return rc;
  rc = make_completions(l);
  if (!rc) rc = make_qp(l);
  if (!rc) rc = verbs_qp_up(l);
  if (!rc) rc = verbs_rx_post(l);
  if (rc)
    return VERBS_REFUSE(cfg, rc, "verbs: %s gave no queues (%s): are too many in use there, or is locked memory limited "
                        "(ulimit -l)?", l->at.device, strerror(-rc));
  return 0;
}

/* ERR flushes what was posted: it completes. */
static bool drain(verbs_link *l, uint64_t until) {
  while (l->tail != l->head) {
    if (verbs_tx_poll(l)) continue;
    if (verbs_now() >= until) return false;
    nanosleep(&(struct timespec){0, DRAIN_STEP_NS}, NULL);
  }
  return true;
}

void verbs_qp_cycle(verbs_link *l) {
  int rc = modify(l, (struct ibv_qp_attr){.qp_state = IBV_QPS_ERR}, 0);
  if (!rc && !drain(l, verbs_now() + VERBS_DRAIN_NS)) rc = -ETIMEDOUT;
  if (!rc) rc = modify(l, (struct ibv_qp_attr){.qp_state = IBV_QPS_RESET}, 0);
  if (!rc) rc = verbs_qp_up(l);
  verbs_add(&l->n.cycles, 1);
  atomic_store(&l->broken, rc != 0);
  if (rc && !l->down_until)
    verbs_event(l, 40, "verbs: the queue pair on %s failed and could not be brought back (%s): nothing is sent until it "
                "can; see dmesg", l->at.device, strerror(-rc));
  if (!rc && l->down_until) verbs_event(l, 20, "verbs: the queue pair on %s works again", l->at.device);
  l->down_until = rc ? verbs_now() + VERBS_CYCLE_AGAIN_NS : 0;
}

void verbs_qp_mend(verbs_link *l) {
  if (!atomic_load_explicit(&l->broken, memory_order_relaxed)) return;
  if (!l->down_until || verbs_now() >= l->down_until) verbs_qp_cycle(l);
}

static void free_tables(verbs_link *l) {
  free(l->rwr);
  free(l->rsge);
  free(l->slid);
  free(l->has_grh);
  free(l->free_slot);
  free(l->lease);
}

/* What was accepted still leaves. The queue pair goes before the memory that it reads and writes; if it does not go, the
 * memory stays. In a forked child all of it is the parent's. */
void verbs_queues_close(verbs_link *l, bool ours) {
  bool gone = true;
  if (ours && l->qp) {
    if (!l->down_until) drain(l, verbs_now() + VERBS_DRAIN_NS);
    gone = !ibv_destroy_qp(l->qp);
  }
  verbs_routes_free(l, ours);
  if (ours) {
    if (l->srq) gone = !ibv_destroy_srq(l->srq) && gone;
    if (l->unacked_tx) ibv_ack_cq_events(l->tx_cq, l->unacked_tx);
    if (l->unacked_rx) ibv_ack_cq_events(l->rx_cq, l->unacked_rx);
    if (l->tx_cq) ibv_destroy_cq(l->tx_cq);
    if (l->rx_cq) ibv_destroy_cq(l->rx_cq);
    if (l->channel) ibv_destroy_comp_channel(l->channel);
    if (gone) verbs_mrs_close(l);
    if (gone) verbs_slab_free(&l->tx, true);
    if (gone) verbs_slab_free(&l->rx, true);
    if (l->pd) ibv_dealloc_pd(l->pd);
    if (l->context) ibv_close_device(l->context);
  }
  free_tables(l);
}
