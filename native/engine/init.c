/* init.c - from a configuration to a communicator on a real link, and back. Rounds of the rendezvous: "addr" (who is
 * where, what everybody can carry), "start" (all progress threads run), "probe" (which pairs hear each other over UDP
 * at the agreed frame size). Every step is bounded by init_timeout and its error names ranks and addresses. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "compute/compute.h"
#include "engine/comm.h"
#include "engine/error.h"
#include "engine/groups.h"
#include "engine/hello.h"
#include "engine/rendezvous.h"
#include "links/registry.h"

enum { PROBE_EVERY_MS = 20, LADDER_AFTER_MS = 400, SETTLE_AFTER_MS = 1200 };
/* smaller frames to try when the agreed one is lost */
static const uint32_t ladder[] = {8192, 4096, 1472, 1400, 1232, 1100};
/* A rank without a link tells the others so, if they come by then. */
#define TELL_MOST (8 * TB_SEC) /* others start their links meanwhile */
#define TELL_SHARE 5 /* of init_timeout */

typedef struct {
  const tb_config *cfg; /* the caller's, which tb_init_cancel is told */
  tb_comm *c;
  tb_exchange_fn exchange;
  void *ctx;
  tb_rendezvous *rv;
  uint64_t deadline;
  char error[600];
} setup;

static int trade(setup *s, const char *tag, const void *mine, uint32_t len, void *all, uint32_t stride) {
  int rc;
  if (s->exchange) {
    rc = s->exchange(s->ctx, tag, mine, len, all, stride);
    if (rc)
      return tb_fail(rc, "the given store failed in step '%s' of init (rank %u): %s", tag, s->c->rank, strerror(-rc));
    return 0;
  }
  rc = tb_rendezvous_exchange(s->rv, tag, mine, len, all, stride, s->deadline, s->error, sizeof s->error);
  return rc ? tb_fail(rc, "%s", s->error) : 0;
}

static int interrupted(void *cfg) { return tb_config_cancelled(cfg); }

/* Two ranks are on one host when they share a boot and a network namespace: then a loopback address reaches. */
static void host_id(char out[40]) {
  char boot[40] = "", ns[64] = "";
  int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    ssize_t n = read(fd, boot, sizeof boot - 1);
    boot[n > 0 ? n : 0] = 0;
    close(fd);
  }
  ssize_t n = readlink("/proc/self/ns/net", ns, sizeof ns - 1);
  ns[n > 0 ? n : 0] = 0;
  snprintf(out, 40, "%08x%08x", tb_crc32c(0, boot, strlen(boot)), tb_crc32c(1, ns, strlen(ns)));
}

static uint32_t job_of(const tb_config *cfg) {
  char job[320];
  tb_config_job(cfg, job, sizeof job);
  return tb_crc32c(0, job, strlen(job));
}

static int open_link(setup *s, tb_hello *mine) {
  tb_comm *c = s->c;
  const tb_config *k = c->cfg;
  uint64_t ports = tb_config_u64(k, "port_range");
  const char *link = tb_config_str(k, "link");
  if (!strcmp(link, "sim")) return tb_fail(-EINVAL, "link 'sim' lives in one process: use simulate(), not init()");
  uint64_t now = tb_now();
  tb_link_cfg l = {.interface = tb_config_str(k, "interface"), .route_to = tb_config_str(k, "master_addr"),
                   .advertise = tb_config_str(k, "advertise"), .port_lo = (uint16_t)(ports >> 16),
                   .port_hi = (uint16_t)ports,
                   .mtu = (uint32_t)tb_config_u64(k, "mtu"), .flows = (uint32_t)tb_config_u64(k, "flows"),
                   .buffer = tb_config_u64(k, "buffer"), .peers = c->n, .self = c->rank, .no_offload = !tb_config_u64(k, "offload"),
                   .device = tb_config_str(k, "device"), .ip = tb_config_str(k, "ip"),
                   .gateway = tb_config_str(k, "gateway"), .vlan = (uint32_t)tb_config_u64(k, "vlan"),
                   .eal_args = tb_config_str(k, "eal_args"), .ref_from = tb_config_u64(k, "zero_copy_from"),
                   .busy = tb_config_u64(k, "poll") == 1, .hugepages = (int)tb_config_u64(k, "hugepages"),
                   .wait_ns = s->deadline > now ? s->deadline - now : 1, .cancelled = interrupted, .cancel_of = (void *)s->cfg,
                   .error = s->error, .error_len = sizeof s->error};
  int rc = tb_link_find(link, tb_config_str(k, "plugins"), &c->ops, s->error, sizeof s->error);
  if (!rc) rc = c->ops->open(&l, &c->link);
  if (rc == -EADDRINUSE) rc = -EBUSY; /* ports, a device: this rank's options; the rendezvous' port is another matter */
  if (rc) {
    c->ops = NULL;
    c->link = NULL;
    return tb_fail(rc, "rank %u: %s", c->rank, s->error);
  }
  const tb_link_caps *caps = c->ops->caps(c->link);
  *mine = (tb_hello){.order = 1, .mtu = caps->mtu, .rx_overhead = caps->rx_overhead, .rx_buffer = caps->rx_buffer,
                  .groups = tb_crc32c(0, tb_config_str(k, "groups"), strlen(tb_config_str(k, "groups"))),
                  .local_rank = (uint32_t)tb_config_u64(k, "local_rank"), .job = job_of(k), .nonce = tb_rendezvous_nonce()};
  snprintf(mine->version, sizeof mine->version, "%s", tb_version());
  host_id(mine->host);
  mine->csum = caps->csum;
  mine->loopback = c->ops->is_loopback ? (uint8_t)c->ops->is_loopback(c->link) : 0;
  return c->ops->local_addr(c->link, &mine->addr);
}

static int group_all(tb_comm *c, const tb_hello *all) {
  tb_seat *seats = calloc(c->n, sizeof *seats);
  if (!seats) return -ENOMEM;
  for (uint32_t p = 0; p < c->n; p++) {
    snprintf(seats[p].host, sizeof seats[p].host, "%.39s", all[p].host);
    seats[p].local_rank = all[p].local_rank;
  }
  int rc = tb_groups_set(c, seats);
  free(seats);
  return rc;
}

static bool core_each(const tb_comm *c, const tb_hello *all) {
  cpu_set_t allowed;
  int local = 0;
  for (uint32_t p = 0; p < c->n; p++) local += !strncmp(all[p].host, all[c->rank].host, sizeof all[p].host);
  return !sched_getaffinity(0, sizeof allowed, &allowed) && CPU_COUNT(&allowed) >= local;
}

static void grant_all(tb_comm *c, const tb_hello *all, uint32_t mtu) { /* what each peer's buffer can take from us */
  for (uint32_t p = 0; p < c->n; p++) {
    tb_link_caps theirs = {.rx_buffer = all[p].rx_buffer, .rx_overhead = all[p].rx_overhead};
    if (p != c->rank) tb_core_set_credit(c->core, (uint16_t)p, tb_comm_window(c, &theirs, mtu));
  }
}

/* Every init has its own: frames of another job of that name, say of one that had these ports before, are
 * strangers'. */
static uint32_t number_of(const tb_hello *rank_0) {
  return tb_crc32c(rank_0->job, &rank_0->nonce, sizeof rank_0->nonce);
}

/* A peer that the link knows it cannot reach: probing would take long and blame a firewall. The link has said why. */
static int check_reach(tb_comm *c, uint32_t p) {
  tb_link_event e[8];
  int rc = c->ops->peer_state(c->link, p), worst = 0;
  if (!rc || rc == -EINPROGRESS) return 0;
  int n = c->ops->events(c->link, e, 8);
  for (int i = 1; i < n; i++) worst = e[i].level > e[worst].level ? i : worst;
  return tb_fail(rc, "rank %u cannot reach rank %u: %s", c->rank, p, n > 0 ? e[worst].text : strerror(-rc));
}

static int connect_all(setup *s, const tb_hello *all, uint32_t mtu) {
  tb_comm *c = s->c;
  c->spins = core_each(c, all);
  for (uint32_t p = 0; p < c->n; p++) c->sealed |= !all[p].csum; /* one that cannot tell needs everybody's seal */
  int rc = c->ops->set_mtu(c->link, mtu);
  if (!rc) rc = tb_comm_core(c, mtu, number_of(&all[0]));
  if (!rc) {
    rc = group_all(c, all);
    if (rc) return rc; /* with its own words */
  }
  for (uint32_t p = 0; p < c->n && !rc; p++) {
    if (p == c->rank) continue;
    rc = c->ops->peer_add(c->link, p, &all[p].addr);
    if (rc == -EAFNOSUPPORT)
      return tb_fail(rc, "of rank %u and rank %u one has an IPv4 address and one an IPv6 address: give all ranks one "
                     "kind (TAILBOUND_INTERFACE takes an address too; on link dpdk it is TAILBOUND_IP)", c->rank, p);
    int out = rc ? 0 : check_reach(c, p);
    if (out) return out;
  }
  if (!rc) grant_all(c, all, mtu);
  if (!rc) return 0;
  return tb_fail(rc, "rank %u could not set up its peers on link %s: %s", c->rank, c->ops->name, strerror(-rc));
}

static uint32_t highest(tb_core *core, uint32_t p, uint32_t mtu) {
  if (tb_core_ponged(core, (uint16_t)p, mtu)) return mtu;
  for (size_t i = 0; i < sizeof ladder / sizeof *ladder; i++)
    if (ladder[i] < mtu && tb_core_ponged(core, (uint16_t)p, ladder[i])) return ladder[i];
  return 0;
}

/* reached[p]: the largest probe that came back from p, 0 = none. */
static void probe(setup *s, uint32_t mtu, uint32_t *reached) {
  tb_comm *c = s->c;
  uint64_t start = tb_now(), patience = (s->deadline > start ? s->deadline - start : 0) / 2;
  if (patience > 5 * TB_SEC) patience = 5 * TB_SEC;
  for (int turn = 0;; turn++) {
    bool all = true, lower = tb_now() - start > LADDER_AFTER_MS * TB_MS,
        some = tb_now() - start > SETTLE_AFTER_MS * TB_MS;
    tb_comm_lock(c);
    for (uint32_t p = 0; p < c->n; p++) {
      if (p == c->rank || tb_core_ponged(c->core, (uint16_t)p, mtu)) continue;
      all = false;
      some = some && highest(c->core, p, mtu); /* everybody answers, if only to less: the agreed size does not pass */
      uint32_t size = mtu, rung = (uint32_t)turn % (sizeof ladder / sizeof *ladder + 1);
      if (lower && rung && ladder[rung - 1] < mtu) size = ladder[rung - 1];
      if (turn % 4 == 0 || lower) tb_core_ping(c->core, (uint16_t)p, size);
    }
    tb_comm_unlock(c);
    tb_comm_wake(c);
    if (all || some || tb_now() - start > patience || tb_config_cancelled(s->cfg)) break;
    nanosleep(&(struct timespec){0, lower ? PROBE_EVERY_MS * 1000000 : 2000000}, NULL);
  }
  tb_comm_lock(c);
  for (uint32_t p = 0; p < c->n; p++) reached[p] = p == c->rank ? mtu : highest(c->core, p, mtu);
  tb_comm_unlock(c);
}

/* all[a * n + b]: what a's probes reached at b. */
static int settle(setup *s, const tb_hello *hellos, const uint32_t *all, uint32_t mtu) {
  tb_comm *c = s->c;
  uint32_t least = mtu, n = c->n, blocked = 0, la = 0, lb = 0;
  char pairs[300] = "";
  size_t at = 0;
  for (uint32_t a = 0; a < n; a++)
    for (uint32_t b = a + 1; b < n; b++) { /* an answer needs both directions: a pair is the most that can be told */
      uint32_t r = all[a * n + b] < all[b * n + a] ? all[a * n + b] : all[b * n + a];
      if (!r && blocked++ < 8)
        at += (size_t)snprintf(pairs + at, sizeof pairs - at, "%srank %u and rank %u", at ? "; " : "", a, b);
      if (r && r < least) least = r, la = a, lb = b;
    }
  if (blocked)
    return tb_fail(-EHOSTUNREACH, "no answer between %u pair%s of ranks (%s%s) although the rendezvous worked: a "
                   "firewall or security group blocks UDP; open the ports (TAILBOUND_PORT_RANGE fixes them) or choose "
                   "another TAILBOUND_INTERFACE",
                   blocked, blocked > 1 ? "s" : "", pairs, blocked > 8 ? "; ..." : "");
  if (least < mtu) {
    tb_logring_put(c->log, 30, "frames of %u bytes do not pass between rank %u and rank %u: everybody uses %u (a "
                   "smaller MTU on the path than on the interfaces)", mtu, la, lb, least);
    tb_comm_lock(c);
    int rc = c->ops->set_mtu(c->link, least);
    tb_core_set_chunk(c->core, (least - TB_HEAD) & ~7u, c->window = tb_comm_window(c, c->ops->caps(c->link), least));
    grant_all(c, hellos, least);
    tb_comm_unlock(c);
    if (rc) return tb_fail(rc, "could not lower the frame size to %u", least);
  }
  bool chosen = !strcmp(tb_config_str(c->cfg, "link"), "auto");
  int k = snprintf(c->describe, sizeof c->describe, "rank %u of %u, link %s (%s): frames of %u bytes, window %u; ",
                   c->rank, n, c->ops->name,
                   chosen ? "chosen by auto: works everywhere, needs no privileges" : "asked for", least, c->window);
  c->ops->describe(c->link, c->describe + k, sizeof c->describe - (size_t)k);
  return 0;
}

static int bring_up(setup *s, const tb_hello *mine) {
  tb_comm *c = s->c;
  uint32_t n = c->n, mtu;
  int rc = 0;
  tb_hello *all = calloc(n, sizeof *all);
  uint32_t *reached = calloc(n, sizeof *reached), *matrix = calloc((size_t)n * n, sizeof *matrix);
  if (!rc && (!all || !reached || !matrix)) rc = tb_fail(-ENOMEM, "no memory for %u ranks", n);
  if (!rc) rc = trade(s, "addr", mine, sizeof *mine, all, sizeof *all);
  if (!rc) rc = tb_hellos_check(all, n, &mtu);
  if (!rc) rc = connect_all(s, all, mtu);
  if (!rc) rc = tb_progress_start(c);
  uint8_t one = 1;
  if (!rc) rc = trade(s, "start", &one, 1, matrix, 1);
  if (!rc) {
    probe(s, mtu, reached);
    rc = trade(s, "probe", reached, n * (uint32_t)sizeof *reached, matrix, n * (uint32_t)sizeof *reached);
  }
  if (!rc) rc = settle(s, all, matrix, mtu);
  if (!rc) rc = trade(s, "ready", &one, 1, matrix, 1); /* nobody sends with the old frame size any more */
  free(all);
  free(reached);
  free(matrix);
  return rc;
}

static int open_rendezvous(setup *s, const char *job) {
  const tb_config *cfg = s->cfg;
  int rc = tb_rendezvous_open(tb_config_str(cfg, "master_addr"), (uint16_t)tb_config_u64(cfg, "master_port"), s->c->rank,
                              s->c->n, job, s->deadline, &s->rv, s->error, sizeof s->error);
  if (rc) tb_set_error("%s", s->error);
  return rc;
}

/* Else they would wait out init_timeout, and blame a port or a firewall. Our own error is said at once, and returned. */
static void tell_others(setup *s, tb_hello *mine, int rc, const char *job) {
  uint64_t now = tb_now(), left = s->deadline > now ? s->deadline - now : 0, share = left / TELL_SHARE;
  tb_hello *all = calloc(s->c->n, sizeof *all);
  char own[sizeof s->error];
  snprintf(own, sizeof own, "%s", tb_last_error());
  snprintf(mine->why, sizeof mine->why, "%.399s", *s->error ? s->error : own);
  mine->order = 1;
  mine->error = rc;
  s->deadline = now + (share < TELL_MOST ? share : TELL_MOST);
  tb_logring_put(s->c->log, 40, "%s", own);
  if (all && !open_rendezvous(s, job)) (void)trade(s, "addr", mine, sizeof *mine, all, sizeof *all);
  free(all);
  tb_set_error("%s", own);
}

/* What a rank alone cannot have checked. */
static void warn_alone(const setup *s) {
  const char *device = tb_config_str(s->cfg, "device");
  if (*device)
    tb_logring_put(s->c->log, 30, "a job of one rank opens no link: whether device %s can be had was not looked at", device);
}

int tb_init(const tb_config *cfg, tb_exchange_fn exchange, void *ctx, tb_comm **out) {
  uint64_t rank = tb_config_u64(cfg, "rank"), n = tb_config_u64(cfg, "size");
  if (n < 1 || n > 1024) return tb_fail(-EINVAL, "size=%llu is out of range: 1 to 1024 ranks", (unsigned long long)n);
  if (rank >= n)
    return tb_fail(-EINVAL, "rank %llu is out of range for size %llu: ranks count from 0 (check RANK and WORLD_SIZE)",
                   (unsigned long long)rank, (unsigned long long)n);
  int bad = tb_config_check(cfg);
  if (bad) return bad;
  setup s = {.cfg = cfg, .exchange = exchange, .ctx = ctx, .deadline = tb_now() + tb_config_u64(cfg, "init_timeout")};
  int rc = tb_comm_new(cfg, (uint16_t)rank, (uint16_t)n, &s.c);
  if (rc) return rc;
  tb_config_log(cfg, s.c->log);
  char stranger[300];
  if (tb_config_stranger(stranger, sizeof stranger)) tb_logring_put(s.c->log, 30, "%s", stranger);
  if (n == 1) {
    warn_alone(&s);
    snprintf(s.c->describe, sizeof s.c->describe, "rank 0 of 1: no link, every operation is complete at once");
    rc = tb_comm_core(s.c, 1472, job_of(cfg));
    if (!rc) *out = s.c;
    else tb_comm_free(s.c);
    return rc;
  }
  char job[320];
  tb_config_job(cfg, job, 256); /* what a rendezvous can carry */
  tb_hello mine = {0};
  tb_rendezvous_set_interrupt(interrupted, (void *)cfg);
  rc = open_link(&s, &mine); /* first: what is wrong here alone need not wait for the others */
  if (rc && rc != -EINTR && !exchange) tell_others(&s, &mine, rc, job);
  if (!rc && !exchange) rc = open_rendezvous(&s, job);
  if (!rc) rc = bring_up(&s, &mine);
  tb_rendezvous_close(s.rv);
  tb_rendezvous_set_interrupt(NULL, NULL);
  if (rc) {
    tb_progress_stop(s.c);
    tb_comm_events(s.c); /* they may tell why */
    tb_comm_free(s.c);
    return rc;
  }
  char fault[200];
  tb_fault_describe(s.c->fault, fault, sizeof fault);
  tb_logring_put(s.c->log, 20, "%s", s.c->describe);
  if (*fault) tb_logring_put(s.c->log, 30, "%s", fault);
  *out = s.c;
  return 0;
}

/* Not acknowledged, so said more than once. The thread that sends it may have to wait for a core: stopped before, it
 * would leave the others to find out by their peer_timeout. */
static void say_goodbye(tb_comm *c) {
  uint64_t until = tb_now() + 1000000000;
  for (int i = 0; i < 3; i++) {
    bool said = false;
    tb_comm_lock(c);
    tb_core_goodbye(c->core);
    tb_comm_unlock(c);
    tb_comm_wake(c);
    do {
      nanosleep(&(struct timespec){0, 1000000}, NULL);
      tb_comm_lock(c);
      said = !tb_core_wants_tx(c->core);
      tb_comm_unlock(c);
    } while (!said && tb_now() < until);
  }
}

int tb_close(tb_comm *c) {
  if (!c) return 0;
  if (c->world) return tb_world_close_rank(c);
  if (c->pid != getpid()) return tb_fail(-EXDEV, "this communicator belongs to another process: close it there");
  tb_comm_lock(c);
  c->closing = true;
  tb_comm_abandon(c, "the communicator was closed");
  tb_core_closing(c->core, tb_now());
  tb_comm_unlock(c);
  tb_works_end(c);
  if (c->running) {
    uint64_t until = tb_now() + tb_config_tunables(c->cfg)->linger;
    bool idle = false;
    tb_comm_wake(c);
    while (!idle && tb_now() < until) { /* rule 5: linger for receipts, bounded */
      tb_comm_lock(c);
      idle = tb_core_idle(c->core);
      tb_comm_unlock(c);
      if (!idle) nanosleep(&(struct timespec){0, 500000}, NULL);
    }
    say_goodbye(c);
    tb_progress_stop(c);
  }
  tb_comm_free(c);
  return 0;
}
