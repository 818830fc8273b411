/* udp.c - the link over kernel UDP: the default, unprivileged, IPv4 and IPv6. Opening and closing it, what it says
 * about itself, and the table of operations. udp.h tells which file does what. */
#include "links/udp.h"
#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

void tb_udp_event(udp_link *u, int level, const char *format, ...) {
  va_list args;
  va_start(args, format);
  tb_events_add(&u->events, level, format, args);
  va_end(args);
}

const char *tb_udp_size_text(uint64_t bytes, char *out, size_t n) {
  if (bytes >= 1 << 20)
    snprintf(out, n, "%.3g MiB", (double)bytes / (1 << 20));
  else
    snprintf(out, n, "%.3g KiB", (double)bytes / 1024);
  return out;
}

int tb_udp_ip_text(const udp_link *u, char *out, size_t n) {
  const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&u->netif.addr;
  const void *ip = u->family == AF_INET ? (const void *)&((const struct sockaddr_in *)&u->netif.addr)->sin_addr
                                        : (const void *)&v6->sin6_addr;
  char text[INET6_ADDRSTRLEN];
  inet_ntop(u->family, ip, text, sizeof text);
  bool scoped = u->family == AF_INET6 && v6->sin6_scope_id;
  return snprintf(out, n, "%s%s%s", text, scoped ? "%" : "", scoped ? u->netif.name : "");
}

static int refuse(const tb_link_cfg *cfg, int err, const char *format, ...) {
  va_list args;
  va_start(args, format);
  if (cfg->error && cfg->error_len) vsnprintf(cfg->error, cfg->error_len, format, args);
  va_end(args);
  return err;
}

/* Judged by the address, not the interface: routed addresses on lo reach far. */
static bool is_loopback(const udp_link *u) {
  return u->family == AF_INET ? u->advertise[0] == 127 : !memcmp(u->advertise, &in6addr_loopback, 16);
}

static int choose_mtu(udp_link *u, const tb_link_cfg *cfg) {
  uint32_t headers = u->family == AF_INET ? 28 : 48, usual = is_loopback(u) ? UDP_MTU_LOOPBACK : UDP_MTU_DEFAULT;
  uint32_t limit = cfg->mtu ? cfg->mtu : usual;
  uint32_t fits = u->netif.mtu > headers ? u->netif.mtu - headers : 0;
  if (limit > UDP_PAYLOAD_MAX) limit = UDP_PAYLOAD_MAX;
  u->mtu = fits < limit ? fits : limit;
  if (u->mtu < UDP_MTU_MIN)
    return refuse(cfg, -EINVAL, "udp: frames of %u bytes are too small: %s has MTU %u and the limit is %u; at least %d "
                  "are needed", u->mtu, u->netif.name, u->netif.mtu, limit, UDP_MTU_MIN);
  return 0;
}

static int choose_advertise(udp_link *u, const tb_link_cfg *cfg) {
  const struct sockaddr_storage *sa = &u->netif.addr;
  if (cfg->advertise && *cfg->advertise) {
    if (inet_pton(u->family, cfg->advertise, u->advertise) == 1) return 0;
    return refuse(cfg, -EINVAL, "udp: cannot advertise \"%s\": give the numeric %s address under which peers reach %s",
                  cfg->advertise, u->family == AF_INET ? "IPv4" : "IPv6", u->netif.name);
  }
  if (u->family == AF_INET)
    memcpy(u->advertise, &((const struct sockaddr_in *)sa)->sin_addr, 4);
  else
    memcpy(u->advertise, &((const struct sockaddr_in6 *)sa)->sin6_addr, 16);
  return 0;
}

static int check_config(const tb_link_cfg *cfg) {
  if (cfg->flows > UDP_FLOWS_MAX)
    return refuse(cfg, -EINVAL, "udp: %u flows are too many: at most %d", cfg->flows, UDP_FLOWS_MAX);
  if (cfg->port_lo > cfg->port_hi || (!cfg->port_lo && cfg->port_hi))
    return refuse(cfg, -EINVAL, "udp: port range %u-%u is not a range: write lowest-highest, or 0 for any port",
                  cfg->port_lo, cfg->port_hi);
  if (cfg->peers > UDP_PEERS_MAX)
    return refuse(cfg, -EINVAL, "udp: %u peers are too many: at most %d", cfg->peers, UDP_PEERS_MAX);
  return 0;
}

static void udp_close(tb_link *link) {
  udp_link *u = udp_of(link);
  if (!u) return;
  tb_udp_sockets_close(u);
  if (u->event_fd >= 0) close(u->event_fd);
  tb_udp_tables_free(u);
  pthread_mutex_destroy(&u->drops_lock);
  tb_events_destroy(&u->events);
  free(u->slabs);
  free(u->batch);
  free(u);
}

static int udp_start(udp_link *u, const tb_link_cfg *cfg) {
  int rc = tb_netif_choose(cfg->interface, cfg->route_to, &u->netif, cfg->error, cfg->error_len);
  if (rc) return rc;
  u->family = u->netif.addr.ss_family;
  if ((rc = choose_advertise(u, cfg)) || (rc = choose_mtu(u, cfg))) return rc;
  u->caps = (tb_link_caps){.mtu = u->mtu, .lanes = 1, .csum = true, .ref = TB_REF_SYNC, .timer_ns = 100000,
                           .burst = 256, .train = 16, .rx_parts = u->flows,
                           .rx_overhead = tb_udp_frame_overhead(u->mtu)};
  u->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (u->event_fd < 0) return refuse(cfg, -errno, "udp: eventfd failed: %s", strerror(errno));
  u->batch = calloc(1, sizeof *u->batch);
  if (!u->batch || tb_udp_rx_open(u)) return refuse(cfg, -ENOMEM, "udp: no memory for the receive slabs");
  if ((rc = tb_udp_sockets_open(u, cfg))) return rc;
  for (uint32_t i = 0; i < u->flows; i++) u->poll[i] = (struct pollfd){.fd = u->sock[i].fd, .events = POLLIN};
  u->poll[u->flows] = (struct pollfd){.fd = u->event_fd, .events = POLLIN};
  return 0;
}

static int udp_open(const tb_link_cfg *cfg, tb_link **out) {
  int rc = check_config(cfg);
  if (rc) return rc;
  udp_link *u = calloc(1, sizeof *u);
  if (!u) return -ENOMEM;
  tb_regions_init(&u->regions);
  tb_events_init(&u->events);
  pthread_mutex_init(&u->drops_lock, NULL);
  u->event_fd = u->blocked = -1;
  u->buffer_wanted = cfg->buffer ? cfg->buffer : 4 << 20;
  u->port_lo = cfg->port_lo;
  u->port_hi = cfg->port_hi;
  u->random = 0x9e3779b97f4a7c15u; /* any nonzero start will do: only the absence of a pattern counts */
  uint32_t flows = cfg->flows ? cfg->flows : UDP_FLOWS_DEFAULT;
  for (uint32_t i = 0; i < flows; i++) u->sock[i].fd = -1;
  u->flows = flows;
  u->peers_most = cfg->peers;
  u->self = cfg->self;
  rc = udp_start(u, cfg);
  if (rc) {
    udp_close((tb_link *)u);
    return rc;
  }
  *out = (tb_link *)u;
  return 0;
}

static const tb_link_caps *udp_caps(const tb_link *link) { return &udp_of_const(link)->caps; }

static bool udp_is_loopback(const tb_link *link) { return is_loopback(udp_of_const(link)); }

static int udp_describe(const tb_link *link, char *out, size_t n) {
  const udp_link *u = udp_of_const(link);
  char ip[INET6_ADDRSTRLEN + IF_NAMESIZE + 1], ports[UDP_FLOWS_MAX * 6 + 1] = "", got[24], want[24];
  size_t used = 0;
  bool run = true;
  tb_udp_ip_text(u, ip, sizeof ip);
  for (uint32_t i = 1; i < u->flows; i++) run &= u->sock[i].port == u->sock[0].port + i;
  if (run && u->flows > 1)
    snprintf(ports, sizeof ports, "s %u-%u", u->sock[0].port, u->sock[u->flows - 1].port);
  else
    for (uint32_t i = 0; i < u->flows; i++)
      used += (size_t)snprintf(ports + used, sizeof ports - used, "%s%u", i ? "," : u->flows > 1 ? "s " : " ",
                               u->sock[i].port);
  tb_udp_size_text(u->sock[0].rcvbuf / 2, got, sizeof got);
  tb_udp_size_text(u->buffer_wanted, want, sizeof want);
  snprintf(out, n, "udp %s (%s) port%s, mtu %u, %u flow%s, rcvbuf %s each (asked %s), GSO %s, GRO %s", ip,
           u->netif.name, ports, u->mtu, u->flows, u->flows > 1 ? "s" : "", got, want, u->gso ? "on" : "off",
           u->gro ? "on" : "off");
  return 0;
}

static int udp_peer_set(tb_link *link, uint32_t peer, const tb_addr *addr) {
  int rc = tb_udp_peer_state(link, peer);
  return rc == -ENOENT ? rc : tb_udp_peer_add(link, peer, addr);
}

static int udp_set_mtu(tb_link *link, uint32_t mtu) {
  udp_link *u = udp_of(link);
  if (mtu < UDP_MTU_MIN || mtu > u->caps.mtu) return -EINVAL;
  u->mtu = mtu;
  u->caps.rx_overhead = tb_udp_frame_overhead(mtu);
  u->agreed = true;
  for (uint32_t i = 0; i < u->peers_cap; i++) u->peers[i].single = false; /* larger probes may have set it */
  return 0;
}

/* The kernel has read everything when sendmmsg returns, so there is never anything to wait for or to stop. */
static uint64_t udp_tx_reap(tb_link *link, uint32_t lane) { return lane ? 0 : udp_of(link)->refs; }

static int udp_tx_quiesce(tb_link *link, uint32_t lane, uint64_t until_ns) {
  (void)link, (void)until_ns;
  return lane ? -EINVAL : 0;
}

static int udp_tx_abort(tb_link *link, uint32_t lane, uint64_t *took_ns) {
  (void)link;
  if (lane) return -EINVAL;
  if (took_ns) *took_ns = 0;
  return 0;
}

static int udp_stats(const tb_link *link, tb_link_stats *out) {
  const udp_link *u = udp_of_const(link);
  const udp_counters *c = &u->counters;
  *out = (tb_link_stats){
      .tx_frames = atomic_load_explicit(&c->tx_frames, memory_order_relaxed),
      .tx_bytes = atomic_load_explicit(&c->tx_bytes, memory_order_relaxed),
      .rx_frames = atomic_load_explicit(&c->rx_frames, memory_order_relaxed),
      .rx_bytes = atomic_load_explicit(&c->rx_bytes, memory_order_relaxed),
      .tx_calls = atomic_load_explicit(&c->tx_calls, memory_order_relaxed),
      .rx_calls = atomic_load_explicit(&c->rx_calls, memory_order_relaxed),
      .rx_truncated = atomic_load_explicit(&c->rx_truncated, memory_order_relaxed),
      .tx_dropped = atomic_load_explicit(&c->tx_dropped, memory_order_relaxed),
      .rx_overflow = tb_udp_drops((udp_link *)u),
      .rx_foreign = TB_NONE, .rx_nobuf = TB_NONE, .tx_errors = TB_NONE, /* the kernel's own business */
  };
  return 0;
}

static int udp_events(tb_link *link, tb_link_event *out, int n) {
  return tb_events_take(&udp_of(link)->events, out, n);
}

const tb_link_ops tb_link_udp = {
    .name = "udp",
    .open = udp_open,
    .close = udp_close,
    .caps = udp_caps,
    .local_addr = tb_udp_local_addr,
    .is_loopback = udp_is_loopback,
    .describe = udp_describe,
    .mem_reg = tb_udp_mem_reg,
    .mem_unreg = tb_udp_mem_unreg,
    .peer_add = tb_udp_peer_add,
    .peer_set = udp_peer_set,
    .peer_del = tb_udp_peer_del,
    .peer_state = tb_udp_peer_state,
    .set_mtu = udp_set_mtu,
    .tx_burst = tb_udp_tx_burst,
    .tx_reap = udp_tx_reap,
    .tx_quiesce = udp_tx_quiesce,
    .tx_abort = udp_tx_abort,
    .rx_burst = tb_udp_rx_burst,
    .rx_release = tb_udp_rx_release,
    .came_from = tb_udp_came_from,
    .wait = tb_udp_wait,
    .wake = tb_udp_wake,
    .stats = udp_stats,
    .events = udp_events,
};
