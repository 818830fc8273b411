/* test_networks.c - the dpdk link with itself over IPv6 and in a VLAN: two ends of a ring in one process, where every
 * frame can be made by hand. Over IPv4 without a tag: test_link.c. */
#include "pair.h"

typedef struct { tb_link *a, *b; dpdk_link *da, *db; } pair;

static pair open_pair(const char *a, const char *b, uint32_t vlan) {
  tb_link_cfg cfg = config("ring", a);
  cfg.vlan = vlan;
  pair p = {.a = open_link(&cfg)};
  cfg.ip = b;
  p.b = open_link(&cfg);
  p.da = dpdk_of(p.a);
  p.db = dpdk_of(p.b);
  introduce(p.a, 1, p.b, true);
  introduce(p.b, 0, p.a, true);
  for (int i = 0; i < 20; i++) OPS->wait(p.a, 0, dpdk_now()), OPS->wait(p.b, 0, dpdk_now()); /* announcements */
  return p;
}

static void close_pair(pair *p) {
  OPS->close(p->a);
  OPS->close(p->b);
}

/* A right frame from b to a, by hand; its length. */
static uint32_t make(const pair *p, uint8_t *f, uint32_t pay) {
  tb_net_template t;
  tb_net_prepare(&t, &p->db->self, &p->da->self.mac, &p->da->self.ip);
  tb_net_head(f, &t, p->db->self.port, p->da->self.port, pay, true);
  for (uint32_t i = 0; i < pay; i++) f[t.len + i] = (uint8_t)(i * 5 + pay);
  tb_net_finish(f + t.udp, pay);
  return t.len + pay;
}

/* Towards a, in pieces of `piece` bytes. tag: what a device took out of it, or TB_NET_UNTAGGED. */
static void inject(const pair *p, const uint8_t *f, uint32_t len, uint32_t piece, int32_t tag) {
  struct rte_mbuf *first = NULL, *last = NULL;
  for (uint32_t at = 0; at < len; at += piece) {
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
  if (tag != TB_NET_UNTAGGED) {
    first->ol_flags |= RTE_MBUF_F_RX_VLAN | RTE_MBUF_F_RX_VLAN_STRIPPED;
    first->vlan_tci = (uint16_t)tag;
  }
  assert_int_equal(rte_eth_tx_burst(p->db->port->id, 0, &first, 1), 1);
}

static const struct { const char *a, *b; uint32_t vlan; } ways[] = {
  {"10.0.0.1/24", "10.0.0.2/24", 9}, {"fd00::1/64", "fd00::2/64", 0}, {"fd00::1/64", "fd00::2/64", 4094}};
enum { WAYS = sizeof ways / sizeof *ways };

static void rx__a_frame_in_pieces_is_whole_and_its_sum_is_checked(void **state) {
  (void)state;
  for (size_t i = 0; i < WAYS; i++) {
    pair p = open_pair(ways[i].a, ways[i].b, ways[i].vlan);
    bool six = strchr(ways[i].a, ':');
    uint8_t f[1500], got[9100];
    for (uint32_t piece = 7; piece < 1500; piece += 31) {
      uint32_t len = make(&p, f, 1300);
      inject(&p, f, len, piece, TB_NET_UNTAGGED);
      assert_int_equal(receive_one(p.a, got), 1300);
      assert_memory_equal(got, f + len - 1300, 1300);
      f[len - 1] ^= 1;
      inject(&p, f, len, piece, TB_NET_UNTAGGED);
      uint64_t before = stats_of(p.a).rx_truncated;
      tb_rx rx;
      assert_int_equal(OPS->rx_burst(p.a, 0, &rx, 1), six ? 0 : 1); /* IPv4's may be a kernel's, unfinished */
      assert_int_equal(stats_of(p.a).rx_truncated - before, six ? 1 : 0);
      OPS->rx_release(p.a, 0);
    }
    close_pair(&p);
  }
}

/* What a device took out counts like what is there. */
static void rx__a_tag_that_the_device_took_out_counts(void **state) {
  (void)state;
  static const int32_t other[] = {8, 0, 0xe008, 0x1000, TB_NET_UNTAGGED};
  for (size_t i = 0; i < WAYS; i++) {
    pair p = open_pair(ways[i].a, ways[i].b, ways[i].vlan);
    uint16_t vlan = p.db->self.vlan;
    uint8_t f[200], got[9100];
    tb_rx rx;
    p.db->self.vlan = 0; /* frames without a tag */
    uint32_t len = make(&p, f, 50);
    for (size_t k = 0; k < sizeof other / sizeof *other; k++) {
      uint64_t before = stats_of(p.a).rx_foreign;
      bool ours = !vlan && (other[k] == TB_NET_UNTAGGED || !(other[k] & 0xfff)); /* without a number: a priority alone */
      inject(&p, f, len, len, other[k]);
      assert_int_equal(OPS->rx_burst(p.a, 0, &rx, 1), ours);
      assert_int_equal(stats_of(p.a).rx_foreign - before, !ours);
      OPS->rx_release(p.a, 0);
    }
    for (int priority = 0; vlan && priority < 8; priority++) {
      inject(&p, f, len, len, priority << 13 | vlan);
      assert_int_equal(receive_one(p.a, got), 50);
      assert_memory_equal(got, f + len - 50, 50);
    }
    close_pair(&p);
  }
}

/* Of two that have it both hear, as over IPv4. */
static void open__one_address_twice_is_told_at_both_ends(void **state) {
  (void)state;
  expect_rivals("ring:twice6", "fd00::1/64");
}

static void peer__addresses_of_ipv6(void **state) {
  (void)state;
  pair p = open_pair("fd00::1/64", "fd00::2/64", 0);
  tb_addr good, bad;
  assert_int_equal(OPS->local_addr(p.b, &good), 0);
  assert_int_equal(good.len, 3 + 16 + 2 * 2 + 7);
  for (int i = 0; i < 256; i++) {
    bad = good;
    bad.len = (uint8_t)i;
    if (i != good.len && i != good.len - 7) assert_int_equal(OPS->peer_add(p.a, 5, &bad), -EINVAL);
  }
  static const struct { uint8_t at, value; } spoil[] = {{0, 2}, {1, 5}, {2, 0}, {2, 3}, {3, 0xff}, {18, 0}, {23, 2}};
  for (size_t i = 0; i < sizeof spoil / sizeof *spoil; i++) {
    bad = good;
    bad.bytes[spoil[i].at] = spoil[i].value;
    if (OPS->peer_add(p.a, 5, &bad) != -EINVAL) fail_msg("byte %u = %u was taken", spoil[i].at, spoil[i].value);
  }
  static const tb_ip mapped = TB_IP4(0x0a000002);
  bad = good;
  memcpy(bad.bytes + 3, mapped.b, 16);
  assert_int_equal(OPS->peer_add(p.a, 5, &bad), -EINVAL);
  bad = (tb_addr){.len = 9, .bytes = {1, 4, 1, 10, 0, 0, 9, 20, 0}};
  assert_int_equal(OPS->peer_add(p.a, 5, &bad), -EAFNOSUPPORT);
  assert_int_equal(OPS->peer_state(p.a, 5), -ENOENT);
  bad = good;
  bad.bytes[4] = 9; /* fd09::2 */
  tb_link_event e[2];
  assert_int_equal(OPS->peer_add(p.a, 3, &bad), 0);
  assert_int_equal(OPS->peer_state(p.a, 3), -ENETUNREACH);
  assert_int_equal(OPS->events(p.a, e, 2), 1);
  assert_non_null(strstr(e[0].text, "rank 3 at fd09::2 lies outside our network"));
  close_pair(&p);
}

/* What is in front of a frame takes of the device's MTU; a tag does not, for it is Ethernet's. */
static void mtu__leaves_room_for_the_headers(void **state) {
  (void)state;
  for (size_t i = 0; i < WAYS; i++) {
    pair p = open_pair(ways[i].a, ways[i].b, ways[i].vlan);
    static uint8_t pay[9000], got[9100];
    uint32_t mtu = 9000 - (strchr(ways[i].a, ':') ? 48 : 28);
    assert_int_equal(OPS->caps(p.a)->mtu, mtu);
    tb_tx tx = frame_to(1, "12345678", 8, pay, mtu - 8);
    assert_int_equal(OPS->tx_burst(p.a, 0, &tx, 1), 1);
    assert_int_equal(receive_one(p.b, got), mtu);
    tx.pay_len++;
    assert_int_equal(OPS->tx_burst(p.a, 0, &tx, 1), -EMSGSIZE);
    close_pair(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rx__a_frame_in_pieces_is_whole_and_its_sum_is_checked),
      cmocka_unit_test(rx__a_tag_that_the_device_took_out_counts),
      cmocka_unit_test(open__one_address_twice_is_told_at_both_ends),
      cmocka_unit_test(peer__addresses_of_ipv6),
      cmocka_unit_test(mtu__leaves_room_for_the_headers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
