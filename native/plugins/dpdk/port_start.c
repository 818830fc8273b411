/* port_start.c - starts and stops a port's device; a memif client waits for its server here, a NIC for its cable. */
#include "plugins/dpdk/port.h"
#include <errno.h>
#include <rte_alarm.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

enum { LINK_WAIT_MS = 2000, WAIT_MS = 10000, ACCEPT_MS = 2000, UNTOLD_MS = 300, DRAIN_MAX = 1 << 16 };

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

int dpdk_port_switch(const dpdk_port *p, bool on) {
  switching s = {.id = p->id, .on = on};
  if (p->device.kind != DPDK_MEMIF) return switch_now(p->id, on);
  sem_init(&s.done, 0, 0);
  int rc = rte_eal_alarm_set(1, switch_there, &s);
  while (!rc && sem_wait(&s.done)) continue; /* EINTR */
  sem_destroy(&s.done);
  return rc ? rc : s.rc;
}

void dpdk_port_drain(const dpdk_port *p) {
  struct rte_mbuf *m[DPDK_RX_BURST];
  for (uint32_t left = DRAIN_MAX; left;) {
    uint16_t got = rte_eth_rx_burst(p->id, 0, m, DPDK_RX_BURST);
    if (!got) return;
    rte_pktmbuf_free_bulk(m, got);
    left -= got;
  }
}

/* Of an interface the kernel knows it, which may have got another one while the port was parked; the driver only what it
 * saw when it was probed. A device that has none gets one from its name: locally administered, of one station. */
int dpdk_port_find_mac(dpdk_port *p) {
  static const tb_mac none;
  struct rte_ether_addr mac;
  struct ifreq kernel;
  int rc = rte_eth_macaddr_get(p->id, &mac);
  if (rc) return rc;
  memcpy(p->mac.b, mac.addr_bytes, 6);
  if (*p->device.iface && dpdk_iface_ask(p->device.iface, SIOCGIFHWADDR, &kernel))
    memcpy(p->mac.b, kernel.ifr_hwaddr.sa_data, 6);
  if (memcmp(&p->mac, &none, 6)) return 0;
  uint64_t h = 1469598103934665603u;
  for (const char *c = p->device.name; *c; c++) h = (h ^ (uint8_t)*c) * 1099511628211u;
  for (int i = 0; i < 6; i++) p->mac.b[i] = (uint8_t)(h >> (8 * i));
  p->mac.b[0] = (uint8_t)((p->mac.b[0] & 0xfc) | 2);
  return 0;
}

/* A cable takes its time; no link is told by the link's owner and is no error: the other end may come later. */
static void await_link(const dpdk_port *p) {
  struct rte_eth_link link;
  for (int ms = 0; p->device.kind == DPDK_PCI && ms < LINK_WAIT_MS; ms += 10) {
    memset(&link, 0, sizeof link);
    if (rte_eth_link_get_nowait(p->id, &link) || link.link_status) return;
    dpdk_ports_nap();
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
  if (dpdk_port_switch(p, true)) p->turn = 0;
}

static bool may_try(const dpdk_port *p, uint64_t turn) {
  const uint64_t patience = (uint64_t)(turn == DPDK_MEMIF_UNTOLD ? UNTOLD_MS : ACCEPT_MS) * 1000000;
  return turn && (turn != p->turn || dpdk_now() - p->tried_at >= patience);
}

void dpdk_port_reconnect(dpdk_port *p) {
  uint64_t turn = is_client(p) ? dpdk_memif_turn(&p->device) : 0;
  if (!turn || !may_try(p, turn)) return;
  (void)dpdk_port_switch(p, false);
  connect_once(p, turn);
}

/* A memif client starts only where a server listens, and ranks start in any order. */
static int start_client(dpdk_port *p, const dpdk_wish *w, dpdk_answer a) {
  uint64_t wait = w->wait_ns ? w->wait_ns : (uint64_t)WAIT_MS * 1000000, until = dpdk_now() + wait;
  const char *path = strstr(p->device.devargs, ",socket=");
  path = path ? path + 8 : p->device.name;
  for (p->turn = 0; !is_up(p); dpdk_ports_nap()) {
    if (given_up(w)) {
      (void)dpdk_port_switch(p, false);
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

static int start_device(dpdk_port *p, const dpdk_wish *w, dpdk_answer a) {
  dpdk_eal_log_clear();
  if (is_client(p)) return start_client(p, w, a);
  int rc = dpdk_port_switch(p, true);
  if (!rc) dpdk_memif_takes(&p->device, true);
  return rc;
}

int dpdk_port_start(dpdk_port *p, const dpdk_wish *w, dpdk_answer a) {
  int rc = start_device(p, w, a);
  if (rc == -ECONNREFUSED || rc == -EINTR) return rc;
  if (rc && p->rx_interrupts) { /* vectors ran out: without then */
    rc = dpdk_port_configure(p, p->ip_mtu, false, a);
    p->asked_interrupts = true;
    if (!rc) rc = dpdk_port_switch(p, true);
  }
  if (rc) return dpdk_refuse_call(a, &p->device, rc, "starting");
  if (p->rx_interrupts) {
    p->rx_interrupts = !rte_eth_dev_rx_intr_enable(p->id, 0);
    if (p->rx_interrupts) (void)rte_eth_dev_rx_intr_disable(p->id, 0);
  }
  if ((rc = dpdk_port_find_mac(p))) return dpdk_refuse_call(a, &p->device, rc, "reading the MAC");
  await_link(p);
  if (p->device.kind != DPDK_PCAP) dpdk_port_drain(p); /* what a file holds is all that will ever come */
  memset(&p->since, 0, sizeof p->since);
  (void)rte_eth_stats_get(p->id, &p->since);
  return 0;
}

/* Drivers that copy have nothing of the caller's memory once tx_burst returned: stopping them would only lose frames. */
int dpdk_port_restart(dpdk_port *p, uint64_t *took_ns) {
  uint64_t began = dpdk_now();
  int rc = 0;
  *took_ns = 0;
  if (dpdk_eal_forked()) return -EXDEV;
  if (p->device.kind != DPDK_PCI && p->device.kind != DPDK_OTHER) return 0;
  pthread_mutex_lock(&dpdk_ports_lock);
  rc = dpdk_port_switch(p, false);
  if (!rc) rc = dpdk_port_switch(p, true);
  pthread_mutex_unlock(&dpdk_ports_lock);
  *took_ns = dpdk_now() - began;
  return rc;
}
