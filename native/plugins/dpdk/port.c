/* port.c - ports: found or probed, configured, started, parked, and found again.
 *
 * PARKED means: nothing of ours is in the device, and nothing leaves. How that is done depends on the driver:
 *   PCI, memif, pcap, others   stopped; the next open starts it, configured as it was unless another MTU is wanted
 *   af_packet                  left running, since a stop closes its socket for good and a new ring costs 0.1-0.4 s: it
 *                              copies, so nothing of ours is in it, and once its ring is full the kernel drops early
 *   af_xdp                     stopped, which only tells DPDK; it cannot be probed again while its interface lives
 *   ring                       two ends in this process, made by the library; the open takes one that is free
 * What came meanwhile is thrown away at the next open. Pools live as long as the port: frames of a ring may lie at its
 * other end. */
#include "plugins/dpdk/dpdk.h"
#include <errno.h>
#include <rte_alarm.h>
#include <rte_dev.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_mbuf_pool_ops.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LINK_WAIT_MS = 2000, WAIT_MS = 10000, ACCEPT_MS = 2000, UNTOLD_MS = 300, CACHE = 256, DRAIN_MAX = 1 << 16 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the list, and of opens and parks altogether */
static dpdk_port *ports;
static unsigned pools_made;

typedef struct { char *error; size_t n; } answer;

static int refuse_call(answer a, const dpdk_device *d, int rc, const char *what) {
  char said[240];
  const char *more = d->kind == DPDK_AF_XDP ? dpdk_xdp_said() : "";
  dpdk_eal_log_first(said, sizeof said);
  if (rc == -1) rc = -EIO; /* drivers that give no reason; it is not a permission */
  return dpdk_refuse(a.error, a.n, rc, "dpdk: %s of %s failed: %s (%s%s%s)", what, d->name, strerror(-rc), said,
                     *more ? "; " : "", more);
}

static dpdk_port *find(const char *name) {
  for (dpdk_port *p = ports; p; p = p->next)
    if (!strcmp(p->device.name, name)) return p;
  return NULL;
}

static void unlist(dpdk_port *gone) {
  for (dpdk_port **at = &ports; *at; at = &(*at)->next)
    if (*at == gone) {
      *at = gone->next;
      return;
    }
}

/* Starts or stops it. memif's driver handles its peer's messages in EAL's interrupt thread, without a lock against those
 * who start and stop: when both ends closed at once, heaps were destroyed. So its device is switched in that thread too. */
static int switch_now(uint16_t id, bool on) { return on ? rte_eth_dev_start(id) : rte_eth_dev_stop(id); }

typedef struct {
  uint16_t id;
  bool on;
  int rc;
  sem_t done;
} switching;

static void switch_there(void *arg) {
  switching *s = arg;
  s->rc = switch_now(s->id, s->on);
  sem_post(&s->done);
}

static int switch_device(const dpdk_port *p, bool on) {
  switching s = {.id = p->id, .on = on};
  if (p->device.kind != DPDK_MEMIF) return switch_now(p->id, on);
  sem_init(&s.done, 0, 0);
  int rc = rte_eal_alarm_set(1, switch_there, &s);
  while (!rc && sem_wait(&s.done)) continue; /* EINTR */
  sem_destroy(&s.done);
  return rc ? rc : s.rc;
}

static void drain(const dpdk_port *p) {
  struct rte_mbuf *m[DPDK_RX_BURST];
  for (uint32_t left = DRAIN_MAX; left;) {
    uint16_t got = rte_eth_rx_burst(p->id, 0, m, DPDK_RX_BURST);
    if (!got) return;
    rte_pktmbuf_free_bulk(m, got);
    left -= got;
  }
}

/* A pool some of whose mbufs lie elsewhere is never freed: whoever has them would write into foreign memory. */
static void free_pool(struct rte_mempool *pool) {
  if (pool && rte_mempool_full(pool)) rte_mempool_free(pool);
}

static void free_pools(dpdk_port *p) {
  if (p->tx_pool != p->rx_pool) free_pool(p->tx_pool);
  free_pool(p->rx_pool);
  free_pool(p->tail_pool);
  p->rx_pool = p->tx_pool = p->tail_pool = NULL;
}

/* rte_pktmbuf_pool_create, but with objects as close as they can be: in ordinary pages each begins a page of its own, and
 * af_xdp takes a pool for objects end to end; what lay beyond it would be refused frame by frame. */
static struct rte_mempool *dense_pool(const char *name, uint32_t mbufs, uint32_t room, int socket) {
  struct rte_pktmbuf_pool_private private = {.mbuf_data_room_size = (uint16_t)room};
  uint32_t elt = (uint32_t)sizeof(struct rte_mbuf) + room;
  struct rte_mempool *pool =
      rte_mempool_create_empty(name, mbufs, elt, CACHE, sizeof private, socket, RTE_MEMPOOL_F_NO_SPREAD);
  if (!pool) return NULL;
  rte_pktmbuf_pool_init(pool, &private);
  bool exact = pool->header_size + pool->elt_size + pool->trailer_size == DPDK_DENSE;
  if (!exact || rte_mempool_set_ops_byname(pool, rte_mbuf_best_mempool_ops(), NULL) ||
      rte_mempool_populate_default(pool) < 0) {
    if (!exact) rte_errno = EINVAL;
    rte_mempool_free(pool);
    return NULL;
  }
  rte_mempool_obj_iter(pool, rte_pktmbuf_init, NULL);
  return pool;
}

static struct rte_mempool *try_pool(const dpdk_port *p, uint32_t mbufs, uint32_t room, int socket) {
  char name[RTE_MEMZONE_NAMESIZE];
  snprintf(name, sizeof name, "tb_pool_%u", pools_made++);
  if (p->device.one_pool) return dense_pool(name, mbufs, room, socket);
  return rte_pktmbuf_pool_create(name, mbufs, CACHE, 0, (uint16_t)room, socket);
}

static struct rte_mempool *make_pool(const dpdk_port *p, uint32_t mbufs, uint32_t room) {
  struct rte_mempool *pool = try_pool(p, mbufs, room, p->socket);
  if (pool || p->socket == SOCKET_ID_ANY) return pool;
  return try_pool(p, mbufs, room, SOCKET_ID_ANY); /* far memory beats none */
}

static int make_pools(dpdk_port *p, answer a) {
  const dpdk_pools *want = &p->pools;
  p->rx_pool = make_pool(p, want->rx, want->room);
  p->tx_pool = !p->rx_pool ? NULL : want->tx ? make_pool(p, want->tx, want->room) : p->rx_pool;
  if (p->tx_pool && want->tails) p->tail_pool = make_pool(p, want->tails, 0);
  if (p->tx_pool && (p->tail_pool || !want->tails)) return 0;
  free_pools(p);
  return dpdk_refuse(a.error, a.n, -ENOMEM, "dpdk: no memory for the buffers of %s, %llu MB: %s", p->device.name,
                     (unsigned long long)(want->bytes >> 20),
                     dpdk_eal_huge() ? "set aside more huge pages (/proc/sys/vm/nr_hugepages)"
                                     : "restart the process with more, TAILBOUND_EAL_ARGS=\"-m 2048\"");
}

/* Interrupts are asked for where somebody sleeps; drivers without them refuse here, or at the queue. */
static int configure_queues(dpdk_port *p, const struct rte_eth_dev_info *info, uint32_t mtu, bool interrupts) {
  struct rte_eth_conf conf = {0};
  conf.rxmode.mtu = p->device.set_mtu ? mtu : 0; /* af_packet refuses any that it is told */
  conf.rxmode.offloads = info->rx_offload_capa & (RTE_ETH_RX_OFFLOAD_IPV4_CKSUM | RTE_ETH_RX_OFFLOAD_UDP_CKSUM);
  conf.txmode.offloads = info->tx_offload_capa & (RTE_ETH_TX_OFFLOAD_UDP_CKSUM | RTE_ETH_TX_OFFLOAD_MULTI_SEGS);
  conf.intr_conf.rxq = interrupts;
  uint16_t rx = (uint16_t)p->pools.rx_desc, tx = (uint16_t)p->pools.tx_desc;
  if (!rx) rx = 512;
  if (!tx) tx = 512;
  int rc = rte_eth_dev_configure(p->id, 1, 1, &conf);
  if (!rc) rc = rte_eth_dev_adjust_nb_rx_tx_desc(p->id, &rx, &tx);
  if (!rc) rc = rte_eth_rx_queue_setup(p->id, 0, rx, (unsigned)p->socket, NULL, p->rx_pool);
  if (!rc) rc = rte_eth_tx_queue_setup(p->id, 0, tx, (unsigned)p->socket, NULL);
  if (rc) return rc;
  p->rx_desc = rx;
  p->tx_desc = tx;
  p->rx_sum = (conf.rxmode.offloads & RTE_ETH_RX_OFFLOAD_UDP_CKSUM) != 0;
  p->tx_sum = (conf.txmode.offloads & RTE_ETH_TX_OFFLOAD_UDP_CKSUM) != 0;
  p->rx_interrupts = interrupts;
  return 0;
}

/* The largest IP packet: what is wanted, the driver's limit, the device's. */
static uint32_t choose_mtu(const dpdk_port *p, const struct rte_eth_dev_info *info, uint32_t wanted) {
  const dpdk_device *d = &p->device;
  uint16_t now = 0;
  uint32_t mtu = d->ip_mtu;
  if (!mtu) mtu = d->set_mtu && wanted ? wanted : rte_eth_dev_get_mtu(p->id, &now) || !now ? 1500 : now;
  if (wanted && wanted < mtu) mtu = wanted;
  if (d->set_mtu && info->max_mtu && mtu > info->max_mtu) mtu = info->max_mtu;
  return mtu < DPDK_IP_MTU_MAX ? mtu : DPDK_IP_MTU_MAX;
}

static int configure(dpdk_port *p, uint32_t wanted, bool interrupts, answer a) {
  struct rte_eth_dev_info info;
  dpdk_pools need;
  int rc = rte_eth_dev_info_get(p->id, &info);
  if (rc) return refuse_call(a, &p->device, rc, "asking for the limits");
  uint32_t mtu = choose_mtu(p, &info, wanted);
  dpdk_device_pools(&p->device, mtu, &need);
  if (p->rx_pool && need.room > p->pools.room) free_pools(p);
  if (!p->rx_pool) {
    p->pools = need;
    if ((rc = make_pools(p, a))) return rc;
  }
  dpdk_eal_log_clear();
  bool possible = interrupts && p->device.kind == DPDK_PCI; /* no virtual device has any */
  rc = configure_queues(p, &info, mtu, possible);
  if (rc && possible) rc = configure_queues(p, &info, mtu, false);
  if (rc) return refuse_call(a, &p->device, rc, "configuring the queues");
  p->ip_mtu = mtu;
  p->asked_interrupts = interrupts;
  p->rx_frames = p->device.rx_ring ? p->device.rx_ring : p->rx_desc;
  return 0;
}

/* A device that has no MAC gets one from its name: locally administered, of one station. */
static int find_mac(dpdk_port *p) {
  static const tb_mac none;
  struct rte_ether_addr mac;
  int rc = rte_eth_macaddr_get(p->id, &mac);
  if (rc) return rc;
  memcpy(p->mac.b, mac.addr_bytes, 6);
  if (memcmp(&p->mac, &none, 6)) return 0;
  uint64_t h = 1469598103934665603u;
  for (const char *c = p->device.name; *c; c++) h = (h ^ (uint8_t)*c) * 1099511628211u;
  for (int i = 0; i < 6; i++) p->mac.b[i] = (uint8_t)(h >> (8 * i));
  p->mac.b[0] = (uint8_t)((p->mac.b[0] & 0xfc) | 2);
  return 0;
}

/* Others may open and park meanwhile: a port that is being opened is marked so. */
static void nap(void) {
  pthread_mutex_unlock(&lock);
  nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  pthread_mutex_lock(&lock);
}

/* A cable takes its time; no link is told by the link's owner and is no error: the other end may come later. */
static void await_link(const dpdk_port *p) {
  struct rte_eth_link link;
  for (int ms = 0; p->device.kind == DPDK_PCI && ms < LINK_WAIT_MS; ms += 10) {
    memset(&link, 0, sizeof link);
    if (rte_eth_link_get_nowait(p->id, &link) || link.link_status) return;
    nap();
  }
}

static bool given_up(const dpdk_wish *w) { return w->cancelled && w->cancelled(w->cancel_of); }

static bool is_up(const dpdk_port *p) {
  struct rte_eth_link link = {0};
  return !rte_eth_link_get_nowait(p->id, &link) && link.link_status;
}

static bool is_client(const dpdk_port *p) {
  return p->device.kind == DPDK_MEMIF && !strstr(p->device.devargs, "role=server");
}

/* One try where a server takes clients. A connection that a server may not have accepted yet is left alone for long: if
 * it went away before that, the server's process would be ended by its driver (memif.c). */
static void connect_once(dpdk_port *p, uint64_t turn) {
  p->turn = turn;
  p->tried_at = dpdk_now();
  if (switch_device(p, true)) p->turn = 0;
}

static bool may_try(const dpdk_port *p, uint64_t turn) {
  const uint64_t patience = (uint64_t)(turn == DPDK_MEMIF_UNTOLD ? UNTOLD_MS : ACCEPT_MS) * 1000000;
  return turn && (turn != p->turn || dpdk_now() - p->tried_at >= patience);
}

void dpdk_port_reconnect(dpdk_port *p) {
  uint64_t turn = is_client(p) ? dpdk_memif_turn(&p->device) : 0;
  if (!turn || !may_try(p, turn)) return;
  (void)switch_device(p, false);
  connect_once(p, turn);
}

/* A memif client starts only where a server listens, and ranks start in any order. */
static int start_client(dpdk_port *p, const dpdk_wish *w, answer a) {
  uint64_t wait = w->wait_ns ? w->wait_ns : (uint64_t)WAIT_MS * 1000000, until = dpdk_now() + wait;
  const char *path = strstr(p->device.devargs, ",socket=");
  path = path ? path + 8 : p->device.name;
  for (p->turn = 0; !is_up(p); nap()) {
    if (given_up(w)) {
      (void)switch_device(p, false);
      return dpdk_refuse(a.error, a.n, -EINTR, "dpdk: interrupted while nobody served %.*s", (int)strcspn(path, ","), path);
    }
    if (dpdk_now() >= until) break;
    dpdk_port_reconnect(p);
  }
  if (p->turn) return 0; /* connected, if not accepted yet: it may be soon */
  return dpdk_refuse(a.error, a.n, -ECONNREFUSED, "dpdk: nobody served %.*s within %.3g s: start the rank with the role "
                     "server, with the same socket, or allow more time (TAILBOUND_INIT_TIMEOUT)",
                     (int)strcspn(path, ","), path, (double)wait / 1e9);
}

static int start_device(dpdk_port *p, const dpdk_wish *w, answer a) {
  dpdk_eal_log_clear();
  if (is_client(p)) return start_client(p, w, a);
  int rc = switch_device(p, true);
  if (!rc) dpdk_memif_takes(&p->device, true);
  return rc;
}

static int start(dpdk_port *p, const dpdk_wish *w, answer a) {
  int rc = start_device(p, w, a);
  if (rc == -ECONNREFUSED || rc == -EINTR) return rc;
  if (rc && p->rx_interrupts) { /* vectors ran out: without then */
    rc = configure(p, p->ip_mtu, false, a);
    p->asked_interrupts = true;
    if (!rc) rc = switch_device(p, true);
  }
  if (rc) return refuse_call(a, &p->device, rc, "starting");
  if (p->rx_interrupts) {
    p->rx_interrupts = !rte_eth_dev_rx_intr_enable(p->id, 0);
    if (p->rx_interrupts) (void)rte_eth_dev_rx_intr_disable(p->id, 0);
  }
  if ((rc = find_mac(p))) return refuse_call(a, &p->device, rc, "reading the MAC");
  await_link(p);
  if (p->device.kind != DPDK_PCAP) drain(p); /* what a file holds is all that will ever come */
  memset(&p->since, 0, sizeof p->since);
  (void)rte_eth_stats_get(p->id, &p->since);
  return 0;
}

static bool stays_running(const dpdk_port *p) { return p->device.kind == DPDK_AF_PACKET; }

/* Gives the device back: its interface is gone, or it is to be another. */
static void discard(dpdk_port *p) {
  struct rte_eth_dev_info info;
  (void)switch_device(p, false);
  if (!rte_eth_dev_info_get(p->id, &info) && info.device) (void)rte_dev_remove(info.device);
  dpdk_memif_release(&p->device);
  dpdk_iface_release(p->claim);
  unlist(p);
  free_pools(p);
  if (rte_mbuf_ext_refcnt_read(&p->readers) <= 1) free(p); /* else a tail that the driver kept still points at the count */
}

static int probe(const dpdk_device *d, uint16_t *id, answer a) {
  if (d->kind == DPDK_PCI && !dpdk_eal_pci())
    return dpdk_refuse(a.error, a.n, -EBUSY, "dpdk: DPDK runs in this process without the PCI bus: restart the process with "
                       "the PCI device first");
  if (d->kind == DPDK_RING) return dpdk_ring_ends(d->name, d->rx_ring, id, a.error, a.n);
  int rc = d->kind == DPDK_MEMIF ? dpdk_memif_claim(d, a.error, a.n) : 0;
  if (rc) return rc;
  dpdk_eal_log_clear();
  /* Known to EAL already: a PCI device that its start was told of. */
  if (d->kind == DPDK_PCI && !rte_eth_dev_get_port_by_name(d->name, id)) return 0;
  rc = rte_dev_probe(d->devargs);
  if (rc) return refuse_call(a, d, rc < 0 ? rc : -EIO, "probing");
  rc = rte_eth_dev_get_port_by_name(d->name, id);
  return rc ? refuse_call(a, d, rc, "finding the port") : 0;
}

/* DPDK wants somebody to tell that the last reader is gone. That is the port, and it does not read. */
static void all_back(void *memory, void *opaque) { (void)memory, (void)opaque; }

static int create(const dpdk_device *d, const dpdk_wish *w, dpdk_port **out, answer a) {
  uint16_t id;
  dpdk_sockets before;
  unsigned ifindex = d->iface[0] ? if_nametoindex(d->iface) : 0;
  dpdk_sockets_before(d, ifindex, &before);
  dpdk_port *p = calloc(1, sizeof *p);
  if (!p) return dpdk_refuse(a.error, a.n, -ENOMEM, "dpdk: out of memory");
  int rc = dpdk_iface_claim(d, &p->claim, a.error, a.n);
  if (!rc) rc = probe(d, &id, a);
  if (rc) {
    dpdk_memif_release(d);
    dpdk_iface_release(p->claim);
    free(p);
    return rc;
  }
  p->device = *d;
  p->id = id;
  p->ifindex = ifindex;
  p->kernel_fd = -1;
  p->socket = rte_eth_dev_socket_id(id);
  p->open = true; /* from here on nobody else takes it */
  p->readers.free_cb = all_back;
  rte_mbuf_ext_refcnt_set(&p->readers, 1); /* us, so that the count never ends */
  p->next = ports;
  ports = p;
  rc = configure(p, w->ip_mtu, !w->busy, a);
  if (!rc) rc = start(p, w, a);
  if (rc) {
    discard(p);
    return rc;
  }
  p->kernel_fd = dpdk_socket_since(d, ifindex, &before);
  dpdk_socket_room(p);
  *out = p;
  return 0;
}

/* Whether a parked port can be what is asked for now, as it was probed. */
static bool is_same(const dpdk_port *p, const dpdk_device *d) {
  if (strcmp(p->device.devargs, d->devargs)) return false;
  return !d->iface[0] || p->ifindex == if_nametoindex(d->iface);
}

/* af_xdp is never configured twice: a second socket on its queue is refused. */
static int reopen(dpdk_port *p, const dpdk_device *d, const dpdk_wish *w, answer a) {
  uint32_t ip_mtu = w->ip_mtu;
  bool other = d->set_mtu && (ip_mtu ? ip_mtu : 1500) != p->ip_mtu;
  int rc = 0;
  p->device.ip_mtu = d->ip_mtu; /* the interface's may be another by now */
  if (other || !p->rx_pool || (!w->busy && !p->asked_interrupts && d->kind == DPDK_PCI)) rc = configure(p, ip_mtu, !w->busy, a);
  if (rc) return rc;
  if (d->ip_mtu) p->ip_mtu = ip_mtu && ip_mtu < d->ip_mtu ? ip_mtu : d->ip_mtu;
  if (!stays_running(p)) return start(p, w, a);
  drain(p);
  return rte_eth_stats_get(p->id, &p->since) ? refuse_call(a, d, -EIO, "reading the counters") : 0;
}

/* Of a ring's two ends the one that is free; of others the device itself. */
static dpdk_port *find_end(const dpdk_device *d, dpdk_device *end) {
  *end = *d;
  if (d->kind != DPDK_RING) return find(d->name);
  for (char c = 'a'; c <= 'b'; c++) {
    snprintf(end->name, sizeof end->name, "%.60s_%c", d->name, c);
    dpdk_port *p = find(end->name);
    if (!p || !p->open || c == 'b') return p;
  }
  return NULL;
}

static int open_locked(const dpdk_device *d, const dpdk_wish *w, dpdk_port **out, answer a) {
  dpdk_device end;
  dpdk_port *p = find_end(d, &end);
  if (p && p->open)
    return dpdk_refuse(a.error, a.n, -EBUSY, "dpdk: %s is open already in this process: one communicator at a time; close "
                       "that one, or give this one another device", d->name);
  int rc;
  if (d->kind == DPDK_AF_XDP) dpdk_xdp_listen(true);
  if (p && !is_same(p, &end)) {
    discard(p);
    p = NULL;
  }
  if (p) {
    p->open = true;
    if ((rc = reopen(p, &end, w, a))) p->open = false;
  } else {
    rc = create(&end, w, &p, a);
  }
  if (d->kind == DPDK_AF_XDP) dpdk_xdp_listen(false);
  if (rc) return rc;
  p->drops_before = dpdk_socket_drops(p); /* those of the time it was parked too */
  *out = p;
  return rc;
}

int dpdk_port_open(const dpdk_device *d, const dpdk_wish *w, dpdk_port **out, char *error, size_t n) {
  sigset_t before;
  answer a = {error, n};
  if (dpdk_eal_forked())
    return dpdk_refuse(error, n, -EXDEV, "dpdk: the devices stay with the process that this one was forked from: start "
                       "processes with exec (multiprocessing: \"spawn\")");
  if (!dpdk_eal_running()) return dpdk_refuse(error, n, -EINVAL, "dpdk: DPDK was not started");
  tb_plugin_signals_hold(&before); /* drivers make threads */
  pthread_mutex_lock(&lock);
  int rc = open_locked(d, w, out, a);
  pthread_mutex_unlock(&lock);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return rc;
}

void dpdk_port_park(dpdk_port *p) {
  if (dpdk_eal_forked()) return;
  pthread_mutex_lock(&lock);
  if (stays_running(p)) {
    drain(p);
  } else {
    if (p->device.kind == DPDK_RING) drain(p); /* mbufs of the other end's pool */
    dpdk_memif_takes(&p->device, false);
    (void)switch_device(p, false);
  }
  p->open = false;
  pthread_mutex_unlock(&lock);
}

/* Drivers that copy have nothing of the caller's memory once tx_burst returned: stopping them would only lose frames. */
int dpdk_port_restart(dpdk_port *p, uint64_t *took_ns) {
  uint64_t began = dpdk_now();
  int rc = 0;
  *took_ns = 0;
  if (dpdk_eal_forked()) return -EXDEV;
  if (p->device.kind != DPDK_PCI && p->device.kind != DPDK_OTHER) return 0;
  pthread_mutex_lock(&lock);
  rc = switch_device(p, false);
  if (!rc) rc = switch_device(p, true);
  pthread_mutex_unlock(&lock);
  *took_ns = dpdk_now() - began;
  return rc;
}
