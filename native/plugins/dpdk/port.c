/* port.c - ports: found or probed, configured, started, parked, and found again.
 *
 * PARKED means: nothing of ours is in the device, and nothing leaves. How that is done depends on the driver:
 *   PCI, memif, pcap, others   stopped; the next open starts it, configured as it was unless another MTU is wanted
 *   af_packet                  left running, since a stop closes its socket for good and a new ring costs 0.1-0.4 s: it
 *                              copies, so nothing of ours is in it, and once its ring is full the kernel drops early
 *   af_xdp                     stopped, which only tells DPDK, and its program taken off (xdp.c); it cannot be probed again
 *                              while its interface lives
 *   ring                       two ends in this process, made by the library; the open takes one that is free
 * What came meanwhile is thrown away at the next open. Pools live as long as the port: frames of a ring may lie at its
 * other end. */
#include "plugins/dpdk/port.h"
#include <errno.h>
#include <rte_dev.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

pthread_mutex_t dpdk_ports_lock = PTHREAD_MUTEX_INITIALIZER;
static dpdk_port *ports;
static _Thread_local sigset_t callers; /* signals, while this thread opens a port */

int dpdk_refuse_call(dpdk_answer a, const dpdk_device *d, int rc, const char *what) {
  char said[240];
  const char *more = d->kind == DPDK_AF_XDP ? dpdk_xdp_said() : "";
  dpdk_eal_log_first(said, sizeof said);
  if (rc == -1) rc = -EIO; /* drivers that give no reason; it is not a permission */
  if (strstr(said, "PACKET_FANOUT"))
    more = "another af_packet rank of this network namespace has the same number, which DPDK makes of process and "
           "interface: start this one again, or give it a namespace of its own, or af_xdp";
  return dpdk_refuse(a.error, a.n, rc, "dpdk: %s of %s failed: %s (%s%s%s)", what, d->name, strerror(-rc), said,
                     *more ? "; " : "", more);
}

/* Others may open and park meanwhile: a port that is being opened is marked so. */
void dpdk_ports_nap(void) {
  sigset_t held;
  pthread_mutex_unlock(&dpdk_ports_lock);
  pthread_sigmask(SIG_SETMASK, &callers, &held);
  nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  pthread_sigmask(SIG_SETMASK, &held, NULL);
  pthread_mutex_lock(&dpdk_ports_lock);
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

static bool stays_running(const dpdk_port *p) { return p->device.kind == DPDK_AF_PACKET; }

/* Gives the device back: its interface is gone, or it is to be another. */
static void discard(dpdk_port *p) {
  struct rte_eth_dev_info info;
  (void)dpdk_port_switch(p, false);
  if (!rte_eth_dev_info_get(p->id, &info) && info.device) (void)rte_dev_remove(info.device);
  dpdk_memif_release(&p->device);
  dpdk_iface_release(p->claim);
  dpdk_xdp_forget(p);
  unlist(p);
  dpdk_pools_free(p);
  if (rte_mbuf_ext_refcnt_read(&p->readers) <= 1) free(p); /* else a tail that the driver kept still points at the count */
}

static int probe(const dpdk_device *d, unsigned ifindex, uint16_t *id, dpdk_answer a) {
  if (d->kind == DPDK_PCI && !dpdk_eal_pci())
    return dpdk_refuse(a.error, a.n, -EBUSY, "dpdk: DPDK runs in this process without the PCI bus: restart the process with "
                       "the PCI device first");
  if (d->kind == DPDK_RING) return dpdk_ring_ends(d->name, d->rx_ring, id, a.error, a.n);
  int rc = d->kind == DPDK_MEMIF ? dpdk_memif_claim(d, a.error, a.n) : 0;
  if (rc) return rc;
  dpdk_eal_log_clear();
  /* Known to EAL already: a PCI device that its start was told of. */
  if (d->kind == DPDK_PCI && !rte_eth_dev_get_port_by_name(d->name, id)) return 0;
  rc = dpdk_fanout_probe(d, ifindex);
  if (rc) return dpdk_refuse_call(a, d, rc < 0 ? rc : -EIO, "probing");
  rc = rte_eth_dev_get_port_by_name(d->name, id);
  return rc ? dpdk_refuse_call(a, d, rc, "finding the port") : 0;
}

/* DPDK wants somebody to tell that the last reader is gone. That is the port, and it does not read. */
static void all_back(void *memory, void *opaque) { (void)memory, (void)opaque; }

static int create(const dpdk_device *d, const dpdk_wish *w, dpdk_port **out, dpdk_answer a) {
  uint16_t id;
  dpdk_sockets before;
  unsigned ifindex = d->iface[0] ? if_nametoindex(d->iface) : 0;
  dpdk_sockets_before(d, ifindex, &before);
  uint32_t program = dpdk_xdp_before(d, ifindex);
  dpdk_port *p = calloc(1, sizeof *p);
  if (!p) return dpdk_refuse(a.error, a.n, -ENOMEM, "dpdk: out of memory");
  int rc = dpdk_iface_claim(d, &p->claim, a.error, a.n);
  if (!rc) rc = probe(d, ifindex, &id, a);
  if (rc) {
    dpdk_memif_release(d);
    dpdk_iface_release(p->claim);
    free(p);
    return rc;
  }
  p->device = *d;
  p->id = id;
  p->ifindex = ifindex;
  p->kernel_fd = p->xdp_fd = -1;
  p->socket = rte_eth_dev_socket_id(id);
  p->open = true; /* from here on nobody else takes it */
  p->readers.free_cb = all_back;
  rte_mbuf_ext_refcnt_set(&p->readers, 1); /* us, so that the count never ends */
  p->next = ports;
  ports = p;
  rc = dpdk_port_configure(p, w->ip_mtu, !w->busy, a);
  if (!rc) rc = dpdk_port_start(p, w, a);
  if (rc) {
    discard(p);
    return rc;
  }
  p->kernel_fd = dpdk_socket_since(d, ifindex, &before);
  dpdk_xdp_remember(p, program);
  if ((rc = dpdk_socket_room(p))) {
    discard(p);
    return dpdk_refuse(a.error, a.n, rc, "dpdk: the kernel grants the socket of %s no send buffer for its whole ring, and a "
                       "full ring would stop this process: raise net.core.wmem_max to %llu, or run outside a user namespace",
                       d->name, (unsigned long long)dpdk_socket_bytes(d->rx_ring, d->ip_mtu));
  }
  *out = p;
  return 0;
}

/* Whether a parked port can be what is asked for now, as it was probed. */
static bool is_same(const dpdk_port *p, const dpdk_device *d) {
  if (strcmp(p->device.devargs, d->devargs)) return false;
  return !d->iface[0] || p->ifindex == if_nametoindex(d->iface);
}

/* af_xdp is never configured twice: a second socket on its queue is refused. */
static int reopen(dpdk_port *p, const dpdk_device *d, const dpdk_wish *w, dpdk_answer a) {
  uint32_t ip_mtu = w->ip_mtu;
  bool other = d->set_mtu && (ip_mtu ? ip_mtu : 1500) != p->ip_mtu;
  int rc = 0;
  p->device.ip_mtu = d->ip_mtu; /* the interface's may be another by now */
  bool sleeps = !w->busy && !p->asked_interrupts && d->kind == DPDK_PCI;
  if (other || !p->rx_pool || sleeps) rc = dpdk_port_configure(p, ip_mtu, !w->busy, a);
  if (rc) return rc;
  if (d->ip_mtu) p->ip_mtu = ip_mtu && ip_mtu < d->ip_mtu ? ip_mtu : d->ip_mtu;
  if ((rc = dpdk_xdp_switch(p, true))) return dpdk_refuse_call(a, d, rc, "putting its XDP program back");
  if (!stays_running(p)) return dpdk_port_start(p, w, a);
  if ((rc = dpdk_port_find_mac(p))) return dpdk_refuse_call(a, d, rc, "reading the MAC");
  dpdk_port_drain(p);
  return rte_eth_stats_get(p->id, &p->since) ? dpdk_refuse_call(a, d, -EIO, "reading the counters") : 0;
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

static int open_locked(const dpdk_device *d, const dpdk_wish *w, dpdk_port **out, dpdk_answer a) {
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
  dpdk_answer a = {error, n};
  if (dpdk_eal_forked())
    return dpdk_refuse(error, n, -EXDEV, "dpdk: the devices stay with the process that this one was forked from: start "
                       "processes with exec (multiprocessing: \"spawn\")");
  if (!dpdk_eal_running()) return dpdk_refuse(error, n, -EINVAL, "dpdk: DPDK was not started");
  tb_plugin_signals_hold(&callers); /* drivers make threads */
  pthread_mutex_lock(&dpdk_ports_lock);
  int rc = open_locked(d, w, out, a);
  pthread_mutex_unlock(&dpdk_ports_lock);
  pthread_sigmask(SIG_SETMASK, &callers, NULL);
  return rc;
}

void dpdk_port_park(dpdk_port *p) {
  if (dpdk_eal_forked()) return;
  pthread_mutex_lock(&dpdk_ports_lock);
  if (stays_running(p)) {
    dpdk_port_drain(p);
  } else {
    if (p->device.kind == DPDK_RING) dpdk_port_drain(p); /* mbufs of the other end's pool */
    dpdk_memif_takes(&p->device, false);
    (void)dpdk_port_switch(p, false);
    (void)dpdk_xdp_switch(p, false); /* if not, the kernel gets no frames there until it is done by hand */
  }
  p->open = false;
  pthread_mutex_unlock(&dpdk_ports_lock);
}
