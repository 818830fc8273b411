/* test_link.c - the dpdk link with itself: two ends of a ring in one process, where every frame can be made by hand and
 * nothing is lost but by rule. */
#include "pair.h"
#include <sys/wait.h>
#include <unistd.h>

enum { HEAD = TB_ETHER_HEAD + TB_IP4_HEAD + TB_UDP_HEAD };
typedef struct { tb_link *a, *b; dpdk_link *da, *db; } pair;

static int open_pair(void **state) {
  pair *p = calloc(1, sizeof *p);
  p->a = open_at("ring", "10.0.0.1/24");
  p->b = open_at("ring", "10.0.0.2/24");
  p->da = dpdk_of(p->a);
  p->db = dpdk_of(p->b);
  introduce(p->a, 1, p->b, true);
  introduce(p->b, 0, p->a, true);
  *state = p;
  return 0;
}

static int close_pair(void **state) {
  pair *p = *state;
  OPS->close(p->a);
  OPS->close(p->b);
  free(p);
  return 0;
}

static uint32_t next_random(uint32_t *x) {
  *x ^= *x << 13;
  *x ^= *x >> 17;
  *x ^= *x << 5;
  return *x;
}

/* A right frame from b to a, by hand. */
static uint32_t make(pair *p, uint8_t *f, uint32_t pay) {
  tb_net_template t;
  tb_net_prepare(&t, &p->db->self, &p->da->self.mac, &p->da->self.ip);
  assert_int_equal(t.len, HEAD);
  tb_net_head(f, &t, p->db->self.port, p->da->self.port, pay, false);
  for (uint32_t i = 0; i < pay; i++) f[HEAD + i] = (uint8_t)(i * 5 + pay);
  return HEAD + pay;
}

/* Puts a frame on the wire towards a, in pieces of `piece` bytes. */
static void inject(pair *p, const uint8_t *f, uint32_t len, uint32_t piece) {
  struct rte_mbuf *first = NULL, *last = NULL;
  for (uint32_t at = 0; at < len || !first; at += piece) {
    struct rte_mbuf *m = rte_pktmbuf_alloc(p->db->port->tx_pool);
    assert_non_null(m);
    uint32_t n = len - at < piece ? len - at : piece;
    memcpy(rte_pktmbuf_mtod(m, void *), f + at, n);
    m->data_len = (uint16_t)n;
    if (!first) first = m;
    else last->next = m, first->nb_segs++;
    first->pkt_len += n;
    last = m;
  }
  assert_int_equal(rte_eth_tx_burst(p->db->port->id, 0, &first, 1), 1);
}

static uint64_t looked_through(const dpdk_link *l) {
  return atomic_load(&l->n.rx_frames) + atomic_load(&l->n.rx_foreign) + atomic_load(&l->n.rx_truncated) +
         atomic_load(&l->n.rx_bad_sum) + atomic_load(&l->n.neighbours_in);
}

/* One piece of garbage or one right frame; whether it is a right one. */
static bool inject_any(pair *p, uint32_t *x) {
  uint8_t f[2000];
  uint32_t kind = next_random(x) % 8, len = make(p, f, 1 + next_random(x) % 300);
  switch (kind) {
  case 0: /* random bytes */
    len = 1 + next_random(x) % sizeof f;
    for (uint32_t i = 0; i < len; i++) f[i] = (uint8_t)next_random(x);
    break;
  case 1: len = next_random(x) % len; break; /* cut anywhere */
  case 2: f[next_random(x) % 12] ^= 0x40; break;
  case 3: f[14 + next_random(x) % 20] ^= 0x21; break;
  case 4: /* ARP, or what says so */
    f[12] = 8, f[13] = 6;
    break;
  case 5: tb_put16(f + 36, next_random(x) & 0xffff ? p->da->self.port - 1u : 1); break;
  case 6: inject(p, f, len, 50 + next_random(x) % 200); return true; /* right, in pieces */
  case 7: inject(p, f, len, len); return true;
  }
  if (kind == 2 && !memcmp(f, p->da->self.mac.b, 6)) { /* only the sender's MAC was hit: nobody looks at it */
    inject(p, f, len, len);
    return true;
  }
  inject(p, f, len, len ? len : 1);
  return false;
}

static uint32_t drain(tb_link *link) {
  tb_rx rx[64];
  uint32_t total = 0;
  for (int k; (k = OPS->rx_burst(link, 0, rx, 64)) > 0; OPS->rx_release(link, 0))
    for (int i = 0; i < k; i++, total++) assert_in_range(rx[i].len, 1, 9000 - 28);
  return total;
}

static void buffers__are_all_back_after_10000_frames_each_way(void **state) {
  pair *p = *state;
  struct rte_mempool *pool[] = {p->da->port->tx_pool, p->da->port->rx_pool, p->db->port->tx_pool, p->db->port->rx_pool};
  unsigned before[4];
  uint32_t x = 99, right = 0, sent = 0, came = 0, back = 0;
  uint8_t pay[500];
  memset(pay, 7, sizeof pay);
  assert_int_equal(drain(p->a) + drain(p->b), 0); /* announcements */
  for (int i = 0; i < 4; i++) before[i] = rte_mempool_avail_count(pool[i]);
  uint64_t looked = looked_through(p->da);
  for (uint32_t turn = 0; turn < 10000; turn++) {
    tb_tx tx = frame_to(1, &turn, sizeof turn, pay, next_random(&x) % sizeof pay);
    right += inject_any(p, &x);
    sent += (uint32_t)OPS->tx_burst(p->a, 0, &tx, 1);
    if (turn % 97) continue;
    came += drain(p->a);
    back += drain(p->b);
  }
  came += drain(p->a);
  back += drain(p->b);
  assert_int_equal(came, right);
  assert_int_equal(sent, 10000);
  assert_int_equal(back, 10000);
  assert_int_equal(looked_through(p->da) - looked, 10000);
  assert_in_range(atomic_load(&p->da->n.rx_foreign), 1000, 5000);
  assert_in_range(atomic_load(&p->da->n.rx_truncated), 500, 3000);
  assert_in_range(atomic_load(&p->da->n.rx_bad_sum), 300, 3000);
  assert_in_range(atomic_load(&p->da->n.neighbours_in), 500, 3000);
  assert_in_range(atomic_load(&p->da->n.rx_linearised), 200, 2000);
  for (int i = 0; i < 4; i++) assert_int_equal(rte_mempool_avail_count(pool[i]), before[i]);
  tb_link_event e[4];
  assert_int_equal(OPS->events(p->a, e, 4), 1); /* told once, with the remedy */
  assert_non_null(strstr(e[0].text, "ethtool -K IFACE tx off"));
}

static void rx__a_frame_in_pieces_is_whole(void **state) {
  pair *p = *state;
  uint8_t f[1600], got[1600];
  static const uint32_t piece[] = {20, 41, 42, 43, 100, 700, 1500};
  for (size_t i = 0; i < sizeof piece / sizeof *piece; i++) {
    uint32_t len = make(p, f, 1400);
    inject(p, f, len, piece[i]);
    assert_int_equal(receive_one(p->a, got), 1400);
    assert_memory_equal(got, f + HEAD, 1400);
  }
  assert_int_equal(atomic_load(&p->da->n.rx_linearised), 6); /* the last lay in one piece */
}

/* Damaged ones take no place: leases are as they were, however many come in one pass. */
static void rx__damaged_pieces_leave_leases_alone(void **state) {
  pair *p = *state;
  uint8_t f[1600];
  tb_rx rx[2];
  p->da->caps.csum = true; /* as with a device that sums, so that wrong sums are seen */
  uint32_t len = make(p, f, 1400);
  inject(p, f, len, 100);
  assert_int_equal(OPS->rx_burst(p->a, 0, rx, 1), 1);
  uint8_t first[1400];
  memcpy(first, rx[0].data, sizeof first);
  for (uint32_t i = 0; i < DPDK_LEASES + DPDK_RX_BURST + 1; i++) {
    len = make(p, f, 1400);
    tb_put16(f + HEAD - 2, 1); /* a sum, and a wrong one */
    memset(f + HEAD, (int)i, 1400);
    inject(p, f, len, 100);
    assert_int_equal(OPS->rx_burst(p->a, 0, rx + 1, 1), 0);
  }
  assert_memory_equal(rx[0].data, first, sizeof first);
  OPS->rx_release(p->a, 0);
}

/* A forked child has copies of our pointers; the frames behind them are ours. */
static void close__in_a_forked_child_gives_no_buffers_back(void **state) {
  pair *p = *state;
  uint8_t f[1600];
  tb_rx rx;
  int status;
  inject(p, f, make(p, f, 100), 200);
  assert_int_equal(OPS->rx_burst(p->a, 0, &rx, 1), 1);
  pid_t pid = fork();
  if (!pid) {
    struct rte_mempool *pool = p->db->port->tx_pool;
    unsigned before = rte_mempool_avail_count(pool);
    OPS->close(p->a);
    _exit(rte_mempool_avail_count(pool) != before);
  }
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status) && !WEXITSTATUS(status));
  OPS->rx_release(p->a, 0);
}

static void rx__forged_senders_are_seen(void **state) {
  pair *p = *state;
  uint8_t f[200];
  tb_rx rx;
  uint32_t len = make(p, f, 50);
  inject(p, f, len, len);
  assert_int_equal(OPS->rx_burst(p->a, 0, &rx, 1), 1);
  introduce(p->a, 1, p->b, true);
  assert_true(OPS->came_from(p->a, &rx, 1));
  OPS->rx_release(p->a, 0);
  tb_net_self other = p->db->self;
  other.ip.b[15]++;
  tb_net_template t;
  tb_net_prepare(&t, &other, &p->da->self.mac, &p->da->self.ip);
  tb_net_head(f, &t, 5, p->da->self.port, 50, false);
  inject(p, f, len, len);
  assert_int_equal(OPS->rx_burst(p->a, 0, &rx, 1), 1);
  assert_false(OPS->came_from(p->a, &rx, 1));
  OPS->rx_release(p->a, 0);
}

static uint16_t complement(const uint8_t *p, uint32_t len) { return (uint16_t)~tb_net_sum(p, len); }

/* An ICMP message from b to a. */
static uint32_t make_icmp(pair *p, uint8_t *f, const uint8_t *icmp, uint32_t len) {
  make(p, f, len); /* the addresses */
  tb_put16(f + 16, 20 + len);
  f[23] = 1;
  tb_put16(f + 24, 0);
  tb_put16(f + 24, complement(f + 14, 20));
  memcpy(f + 34, icmp, len);
  tb_put16(f + 36, 0);
  tb_put16(f + 36, complement(f + 34, len));
  return 34 + len;
}

static void icmp__ping_is_answered_whatever_pieces_it_came_in(void **state) {
  (void)state;
  pair *p = *state;
  uint8_t f[1514], ping[1400] = {8, 0, 0, 0, 0x12, 0x34, 0, 1};
  drain(p->b);
  for (uint32_t piece = 20; piece <= 1514; piece += 747) {
    struct rte_mbuf *m;
    uint64_t out = atomic_load(&p->da->n.raw_out);
    uint32_t len = make_icmp(p, f, ping, sizeof ping);
    inject(p, f, len, piece);
    assert_int_equal(drain(p->a), 0);
    assert_int_equal(rte_eth_rx_burst(p->db->port->id, 0, &m, 1), 1);
    const uint8_t *got = rte_pktmbuf_mtod(m, uint8_t *);
    assert_int_equal(m->pkt_len, len);
    assert_memory_equal(got, p->db->self.mac.b, 6);
    assert_int_equal(tb_get32(got + 30), 0x0a000002);
    assert_int_equal(got[34], 0);
    assert_int_equal(tb_net_sum(got + 34, sizeof ping), 0xffff);
    rte_pktmbuf_free(m);
    assert_int_equal(atomic_load(&p->da->n.raw_out), out + 1);
  }
  assert_int_equal(stats_of(p->a).rx_foreign, 3);
}

static void icmp__a_router_that_cannot_pass_our_frames_is_told_once(void **state) {
  (void)state;
  pair *p = *state;
  uint8_t f[200], icmp[36] = {3, 4, 0, 0, 0, 0, 1400 >> 8, 1400 & 255, 0x45};
  tb_link_event e[2];
  icmp[8 + 9] = 17;
  tb_put32(icmp + 8 + 12, 0x0a000001);
  tb_put32(icmp + 8 + 16, 0x0a000909);
  tb_put16(icmp + 8 + 20, p->da->self.port);
  for (int i = 0; i < 2; i++) {
    uint32_t len = make_icmp(p, f, icmp, sizeof icmp);
    inject(p, f, len, len);
  }
  assert_int_equal(drain(p->a), 0);
  assert_int_equal(OPS->events(p->a, e, 2), 1);
  assert_non_null(strstr(e[0].text, "10.0.0.2 says that the way to 10.0.9.9 carries IP packets of at most 1400 bytes"));
  assert_non_null(strstr(e[0].text, "TAILBOUND_MTU to 1372 at every rank"));
}

static void rx__a_frame_that_was_never_cut_is_dropped_and_told(void **state) {
  pair *p = *state;
  static uint8_t f[9100];
  uint32_t len = make(p, f, p->da->caps.mtu + 1);
  inject(p, f, len, 4000);
  assert_int_equal(drain(p->a), 0);
  assert_int_equal(stats_of(p->a).rx_truncated, 1);
  tb_link_event e[2];
  assert_int_equal(OPS->wait(p->a, 0, 0), TB_WAIT_EVENT);
  assert_int_equal(OPS->events(p->a, e, 2), 1);
  assert_non_null(strstr(e[0].text, "several made one"));
}

static void rx__leases_of_a_pass_are_bounded(void **state) {
  pair *p = *state;
  enum { N = DPDK_LEASES + 100 };
  static tb_rx rx[N];
  uint8_t f[200];
  for (int i = 0; i < N; i++) {
    uint32_t len = make(p, f, 1 + (uint32_t)i % 100);
    inject(p, f, len, i % 3 ? len : 30);
  }
  int k = OPS->rx_burst(p->a, 0, rx, N);
  assert_int_equal(k, DPDK_LEASES);
  assert_int_equal(OPS->rx_burst(p->a, 0, rx + k, N - k), 0);
  for (int i = 0; i < k; i++) { /* all of them at once, those in pieces too */
    uint32_t pay = 1 + (uint32_t)i % 100;
    assert_int_equal(rx[i].len, pay);
    for (uint32_t j = 0; j < pay; j++) assert_int_equal(rx[i].data[j], (uint8_t)(j * 5 + pay));
  }
  OPS->rx_release(p->a, 0);
  assert_int_equal(OPS->rx_burst(p->a, 0, rx, N), 100);
  OPS->rx_release(p->a, 0);
}

static void tx__a_full_device_leaves_the_rest_to_the_caller(void **state) {
  pair *p = *state;
  enum { N = 64 };
  tb_tx tx[N];
  uint32_t number[N], taken = 0, expected = 0;
  for (int k = N; k == N;) {
    for (uint32_t i = 0; i < N; i++) number[i] = taken + i, tx[i] = frame_to(1, &number[i], 4, "rest", 4);
    k = OPS->tx_burst(p->a, 0, tx, N);
    assert_in_range(k, 0, N);
    taken += (uint32_t)k;
  }
  assert_in_range(taken, 500, 2048);
  assert_int_equal(OPS->tx_burst(p->a, 0, tx, 1), 0);
  assert_int_equal(OPS->wait(p->a, 0, dpdk_now() + 1000 * MS), TB_WAIT_TX);
  assert_int_equal(stats_of(p->a).tx_dropped, 0);
  tb_rx rx[64];
  for (int k; (k = OPS->rx_burst(p->b, 0, rx, 64)) > 0; OPS->rx_release(p->b, 0))
    for (int i = 0; i < k; i++, expected++) assert_memory_equal(rx[i].data, &expected, 4);
  assert_int_equal(expected, taken);
  assert_int_equal(send_text(p->a, 1, "room again"), 1);
  expect_text(p->b, "room again");
}

static void tx__an_end_that_takes_nothing_loses_frames(void **state) {
  pair *p = *state;
  uint64_t give_up = dpdk_now() + 2000 * MS;
  while (!stats_of(p->a).tx_dropped && dpdk_now() < give_up) assert_in_range(send_text(p->a, 1, "into the wall"), 0, 1);
  assert_true(stats_of(p->a).tx_dropped > 0);
  drain(p->b);
  assert_int_equal(send_text(p->a, 1, "back"), 1);
  uint64_t dropped = stats_of(p->a).tx_dropped;
  expect_text(p->b, "back");
  assert_int_equal(stats_of(p->a).tx_dropped, dropped);
}

static void tx__to_an_unknown_mac_is_lost_while_arp_asks(void **state) {
  pair *p = *state;
  introduce(p->a, 2, p->b, false); /* the entry is known already: the same IP */
  assert_int_equal(OPS->peer_state(p->a, 2), 0);
  OPS->close(p->a);
  p->a = open_at("ring", "10.0.0.1/24");
  p->da = dpdk_of(p->a);
  introduce(p->a, 1, p->b, false);
  assert_int_equal(OPS->peer_state(p->a, 1), -EINPROGRESS);
  assert_int_equal(send_text(p->a, 1, "too early"), 1);
  assert_int_equal(stats_of(p->a).tx_dropped, 1);
  assert_int_equal(OPS->wait(p->a, 0, 0), TB_WAIT_TIMEOUT);                /* asks */
  assert_int_equal(OPS->wait(p->b, 0, dpdk_now() + MS), TB_WAIT_TIMEOUT); /* answers */
  assert_int_equal(OPS->wait(p->a, 0, dpdk_now() + MS), TB_WAIT_TIMEOUT); /* hears */
  assert_int_equal(OPS->peer_state(p->a, 1), 0);
  assert_int_equal(send_text(p->a, 1, "now"), 1);
  expect_text(p->b, "now");
}

static void tx__source_ports_change(void **state) {
  pair *p = *state;
  static uint8_t pay[4000];
  uint32_t seen = 0;
  for (int i = 0; i < 2000 && seen != 3; i++) {
    tb_tx tx = frame_to(1, pay, 64, pay, sizeof pay);
    struct rte_mbuf *m;
    assert_int_equal(OPS->tx_burst(p->a, 0, &tx, 1), 1);
    assert_int_equal(rte_eth_rx_burst(p->db->port->id, 0, &m, 1), 1);
    uint32_t port = tb_get16(rte_pktmbuf_mtod_offset(m, uint8_t *, 34)) - p->da->self.port;
    assert_in_range(port, 0, 1);
    seen |= 1u << port;
    rte_pktmbuf_free(m);
  }
  assert_int_equal(seen, 3);
}

static void tx__one_more_than_a_device_burst(void **state) {
  pair *p = *state;
  enum { N = 200 };
  static tb_tx tx[N];
  static uint32_t number[N];
  for (uint32_t i = 0; i < N; i++) number[i] = i, tx[i] = frame_to(1, &number[i], 4, "payload", 7);
  tx[150].peer = 77;
  assert_int_equal(OPS->tx_burst(p->a, 0, tx, N), 150);
  assert_int_equal(OPS->tx_burst(p->a, 0, tx + 150, N - 150), -ENOENT);
  assert_int_equal(stats_of(p->a).tx_calls, 3);
  assert_int_equal(stats_of(p->a).tx_copied, 150 * 7);
  assert_int_equal(drain(p->b), 150);
}

static void peer__outside_the_network_is_told(void **state) {
  pair *p = *state;
  tb_addr far = {.len = 9, .bytes = {1, 4, 1, 192, 168, 0, 1, 20, 0}};
  tb_link_event e[2];
  assert_int_equal(OPS->peer_add(p->a, 3, &far), 0);
  assert_int_equal(OPS->peer_state(p->a, 3), -ENETUNREACH);
  assert_int_equal(OPS->events(p->a, e, 2), 1);
  assert_non_null(strstr(e[0].text, "192.168.0.1"));
  assert_non_null(strstr(e[0].text, "TAILBOUND_GATEWAY"));
  assert_int_equal(send_text(p->a, 3, "lost"), 1);
  assert_int_equal(stats_of(p->a).tx_dropped, 1);
}

static void peer__malformed_addresses_are_refused(void **state) {
  pair *p = *state;
  tb_addr good, bad;
  assert_int_equal(OPS->local_addr(p->b, &good), 0);
  assert_int_equal(good.len, 3 + 4 + 2 * 2 + 7);
  for (int i = 0; i < 256; i++) {
    bad = good;
    bad.len = (uint8_t)i;
    if (i != good.len && i != good.len - 7) assert_int_equal(OPS->peer_add(p->a, 5, &bad), -EINVAL);
  }
  static const struct { uint8_t at, value; } spoil[] = {
    {0, 2}, {1, 5}, {2, 0}, {2, 3}, {2, 255}, {3, 0}, {3, 127}, {3, 224}, {6, 255}, {11, 2}};
  for (size_t i = 0; i < sizeof spoil / sizeof *spoil; i++) {
    bad = good;
    bad.bytes[spoil[i].at] = spoil[i].value;
    if (OPS->peer_add(p->a, 5, &bad) != -EINVAL) fail_msg("byte %u = %u was taken", spoil[i].at, spoil[i].value);
  }
  bad = good;
  bad.bytes[7] = bad.bytes[8] = 0; /* port 0 */
  assert_int_equal(OPS->peer_add(p->a, 5, &bad), -EINVAL);
  bad = (tb_addr){.len = 3 + 16 + 2, .bytes = {1, 6, 1, 0xfe, 0x80}};
  bad.bytes[20] = 1;
  assert_int_equal(OPS->peer_add(p->a, 5, &bad), -EAFNOSUPPORT);
  assert_int_equal(OPS->peer_state(p->a, 5), -ENOENT);
}

static void open__one_address_twice_is_told_at_both_ends(void **state) {
  (void)state;
  expect_rivals("ring:twice", "10.0.0.1/24");
}

static void open__wrong_words_are_explained(void **state) {
  (void)state;
  static const struct {
    const char *ip, *gateway, *advertise;
    uint16_t lo, hi;
    uint32_t flows, mtu, vlan;
    int rc;
    const char *says;
  } wrong[] = {
    {"10.0.0", NULL, NULL, 0, 0, 0, 0, 0, -EINVAL, "TAILBOUND_IP"},
    {"10.0.0.5/24", "10.0.1.1", NULL, 0, 0, 0, 0, 0, -EINVAL, "not in the network"},
    {"10.0.0.5/24", "router", NULL, 0, 0, 0, 0, 0, -EINVAL, "TAILBOUND_GATEWAY"},
    {NULL, "10.0.1.1", NULL, 0, 0, 0, 0, 0, -EINVAL, "link-local"},
    {NULL, NULL, "host", 0, 0, 0, 0, 0, -EINVAL, "advertise"},
    {NULL, NULL, NULL, 9, 8, 0, 0, 0, -EINVAL, "9-8"},
    {NULL, NULL, NULL, 8, 8, 2, 0, 0, -EADDRINUSE, "TAILBOUND_PORT_RANGE"},
    {NULL, NULL, NULL, 0, 0, 33, 0, 0, -EINVAL, "33 flows"},
    {NULL, NULL, NULL, 0, 0, 0, 100, 0, -EINVAL, "100 bytes"},
    {NULL, NULL, NULL, 0, 0, 0, 0, 4095, -EINVAL, "1-4094"},
    {"fd00::", NULL, NULL, 0, 0, 0, 0, 0, -EINVAL, "fd00::5/64"},
    {"fd00::5", "10.0.0.1", NULL, 0, 0, 0, 0, 0, -EINVAL, "IPv6 address"},
    {"10.0.0.5", "fd00::1", NULL, 0, 0, 0, 0, 0, -EINVAL, "IPv4 address"},
    {"fd00::5/64", "fd01::1", NULL, 0, 0, 0, 0, 0, -EINVAL, "not in the network"},
    {"fd00::5/64", NULL, "10.0.0.1", 0, 0, 0, 0, 0, -EINVAL, "IPv6 address"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    tb_link_cfg cfg = config("ring:wrong", wrong[i].ip);
    tb_link *link = NULL;
    cfg.gateway = wrong[i].gateway;
    cfg.advertise = wrong[i].advertise;
    cfg.port_lo = wrong[i].lo;
    cfg.port_hi = wrong[i].hi;
    cfg.mtu = wrong[i].mtu;
    cfg.vlan = wrong[i].vlan;
    if (wrong[i].flows) cfg.flows = wrong[i].flows;
    assert_int_equal(OPS->open(&cfg, &link), wrong[i].rc);
    assert_null(link);
    if (!strstr(error, wrong[i].says)) fail_msg("\"%s\" lacks \"%s\"", error, wrong[i].says);
  }
}

static void open__says_what_it_is(void **state) {
  (void)state;
  tb_link_cfg cfg = config("ring:said", NULL);
  cfg.port_lo = cfg.port_hi = 6000;
  cfg.flows = 1;
  cfg.busy = true;
  cfg.advertise = "203.0.113.7";
  tb_link *link = open_link(&cfg);
  char line[400];
  tb_addr addr;
  static const uint8_t told[] = {1, 4, 1, 203, 0, 113, 7, 6000 >> 8, 6000 & 255}; /* and no MAC */
  assert_int_equal(OPS->describe(link, line, sizeof line), 0);
  assert_ptr_equal(strstr(line, "dpdk net_ring_said_a (net_ring) "), line);
  assert_non_null(strstr(line, "169.254."));
  assert_non_null(strstr(line, "/16 port 6000-6000, mtu 8972, rings 1024 rx 1024 tx, rules 0, checksums by us, huge "
                               "pages off, busy"));
  assert_int_equal(OPS->local_addr(link, &addr), 0);
  assert_int_equal(addr.len, sizeof told);
  assert_memory_equal(addr.bytes, told, sizeof told);
  const tb_link_caps *c = OPS->caps(link);
  assert_int_equal(c->rx_buffer / (1472 + c->rx_overhead), 1003); /* near the 1024 that there are, never more */
  assert_int_equal(c->rx_buffer / (128 + c->rx_overhead), 1024);
  assert_true(!c->csum && c->timer_ns && c->burst == 64 && c->train == 1 && c->rx_parts == 1);
  tb_link_stats s = stats_of(link);
  assert_true(s.rx_overflow == TB_NONE && s.rx_nobuf == TB_NONE && s.tx_errors == TB_NONE); /* a ring cannot tell */
  OPS->close(link);
}

#define WITH_PAIR(test) cmocka_unit_test_setup_teardown(test, open_pair, close_pair)

/* A device that nobody empties meanwhile would drop ours: foreign frames are done with in one look. */
static void wait__looks_behind_a_flood_of_foreign_frames(void **state) {
  pair *p = *state;
  uint8_t f[200], foreign[200];
  uint32_t len = make(p, f, 100);
  memcpy(foreign, f, len);
  foreign[0] ^= 0x40; /* another station's */
  while (OPS->wait(p->a, 0, dpdk_now() + 5 * MS) != TB_WAIT_TIMEOUT) continue; /* announcements; and nothing came lately */
  uint64_t before = atomic_load(&p->da->n.rx_foreign);
  for (int i = 0; i < 15 * DPDK_RX_BURST; i++) inject(p, foreign, len, len);
  inject(p, f, len, len);
  assert_int_equal(OPS->wait(p->a, 0, 0), TB_WAIT_RX);
  assert_int_equal(atomic_load(&p->da->n.rx_foreign) - before, 15 * DPDK_RX_BURST);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      WITH_PAIR(buffers__are_all_back_after_10000_frames_each_way),
      WITH_PAIR(rx__a_frame_in_pieces_is_whole),
      WITH_PAIR(rx__damaged_pieces_leave_leases_alone),
      WITH_PAIR(close__in_a_forked_child_gives_no_buffers_back),
      WITH_PAIR(rx__forged_senders_are_seen),
      WITH_PAIR(icmp__ping_is_answered_whatever_pieces_it_came_in),
      WITH_PAIR(icmp__a_router_that_cannot_pass_our_frames_is_told_once),
      WITH_PAIR(rx__a_frame_that_was_never_cut_is_dropped_and_told),
      WITH_PAIR(rx__leases_of_a_pass_are_bounded),
      WITH_PAIR(wait__looks_behind_a_flood_of_foreign_frames),
      WITH_PAIR(tx__a_full_device_leaves_the_rest_to_the_caller),
      WITH_PAIR(tx__an_end_that_takes_nothing_loses_frames),
      WITH_PAIR(tx__to_an_unknown_mac_is_lost_while_arp_asks),
      WITH_PAIR(tx__source_ports_change),
      WITH_PAIR(tx__one_more_than_a_device_burst),
      WITH_PAIR(peer__outside_the_network_is_told),
      WITH_PAIR(peer__malformed_addresses_are_refused),
      cmocka_unit_test(open__one_address_twice_is_told_at_both_ends),
      cmocka_unit_test(open__wrong_words_are_explained),
      cmocka_unit_test(open__says_what_it_is),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
