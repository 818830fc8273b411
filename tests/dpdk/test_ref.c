/* test_ref.c - payloads that are sent from where they lie: on devices whose drivers copy them in tx_burst, so that the
 * memory is the caller's again when it returns; and on a ring, which keeps what it was given. */
#include "pair.h"
#include "leaks.h"
#include "switch.h"

enum { MEMORY = 1 << 20, BURST = 100, LEAST = 512 };
static uint8_t *memory;
static char folder[] = "/tmp/tb_ref_XXXXXX";

typedef struct { tb_link *a, *b; dpdk_link *da, *db; uint32_t region; } pair;

static pair open_pair(const char *left, const char *right) {
  pair p = {.a = open_at(left, "10.0.0.1/24"), .b = open_at(right, "10.0.0.2/24")};
  p.da = dpdk_of(p.a);
  p.db = dpdk_of(p.b);
  introduce(p.a, 1, p.b, true);
  assert_int_equal(OPS->mem_reg(p.a, memory, MEMORY, &p.region), 0);
  for (uint32_t i = 0; i < MEMORY; i++) memory[i] = (uint8_t)(i * 7 >> 4);
  return p;
}

static pair open_memif(void) {
  char left[100], right[100];
  snprintf(left, sizeof left, "memif:%s/m,server", folder);
  snprintf(right, sizeof right, "memif:%s/m,client", folder);
  return open_pair(left, right);
}

static void close_pair(pair *p) {
  OPS->close(p->a);
  OPS->close(p->b);
}

static tb_tx ref(const pair *p, const void *head, uint32_t head_len, uint32_t at, uint32_t len) {
  tb_tx tx = frame_to(1, head, head_len, memory + at, len);
  tx.ref = true;
  tx.region = p->region;
  return tx;
}

static uint16_t readers(const pair *p) { return (uint16_t)(rte_mbuf_ext_refcnt_read(&p->da->port->readers) - 1); }

typedef struct { unsigned tails, heads; } pools;

static pools pools_of(const pair *p) {
  return (pools){rte_mempool_avail_count(p->da->port->tail_pool), rte_mempool_avail_count(p->da->port->tx_pool)};
}

static void all_back(const pair *p, const pools *before) {
  pools now = pools_of(p);
  assert_int_equal(now.tails, before->tails);
  assert_int_equal(now.heads, before->heads);
}

static void expect_frame(tb_link *link, uint32_t number, const uint8_t *pay, uint32_t len) {
  uint8_t data[9100];
  assert_int_equal(receive_one(link, data), 4 + len);
  assert_memory_equal(data, &number, 4);
  assert_memory_equal(data + 4, pay, len);
}

/* A burst of all kinds; at once everything it was made of is overwritten, and the far end has the bytes of before. */
static void memory_is_free_when_tx_burst_returns(pair *p) {
  static uint8_t before[MEMORY];
  const uint32_t sizes[] = {0, 1, 13, LEAST - 1, LEAST, 1000, p->da->caps.mtu - 4};
  uint32_t number[BURST], at[BURST], len[BURST], next = 0;
  uint64_t copied = 0, refs = 0, bytes = 0;
  tb_tx tx[BURST];
  for (uint32_t i = 0; i < BURST; i++, next += 1501) {
    number[i] = i;
    at[i] = next % (MEMORY - 9000);
    len[i] = sizes[i % 7];
    tx[i] = ref(p, &number[i], 4, at[i], len[i]);
    if (i % 5 == 4) tx[i].ref = false;
    refs += tx[i].ref;
    bytes += 4 + len[i];
    if (len[i] < LEAST) copied += len[i];
  }
  memcpy(before, memory, MEMORY);
  pools before_it = pools_of(p);
  assert_int_equal(OPS->tx_burst(p->a, 0, tx, BURST), BURST);
  memset(memory, 0xee, MEMORY);
  memset(number, 0xee, sizeof number);
  assert_int_equal(readers(p), 0);
  assert_int_equal(OPS->tx_reap(p->a, 0), refs);
  all_back(p, &before_it);
  for (uint32_t i = 0; i < BURST; i++) expect_frame(p->b, i, before + at[i], len[i]);
  tb_link_stats s = stats_of(p->a);
  assert_int_equal(s.tx_copied, copied);
  assert_int_equal(s.tx_bytes, bytes);
}

static void af_packet__memory_is_free_when_tx_burst_returns(void **state) {
  (void)state;
  pair p = open_pair("af_packet:tb0", "af_packet:tb1");
  assert_int_equal(OPS->caps(p.a)->ref, TB_REF_SYNC);
  memory_is_free_when_tx_burst_returns(&p);
  close_pair(&p);
}

static void memif__memory_is_free_when_tx_burst_returns(void **state) {
  (void)state;
  pair p = open_memif();
  assert_int_equal(OPS->caps(p.a)->ref, TB_REF_SYNC);
  memory_is_free_when_tx_burst_returns(&p);
  close_pair(&p);
}

/* 0 copied per byte sent, where payloads are as long as frames are. */
static void memif__nothing_is_copied_of_a_tensor(void **state) {
  (void)state;
  pair p = open_memif();
  uint32_t pay = 1408, sent = 0;
  tb_tx tx[32];
  while (sent < 3200) {
    for (uint32_t i = 0; i < 32; i++) tx[i] = ref(&p, "head", 4, (sent + i) % 700 * pay, pay), tx[i].ref = i % 2;
    assert_int_equal(OPS->tx_burst(p.a, 0, tx, 32), 32);
    sent += 32;
    for (int i = 0; i < 32; i++) assert_int_equal(receive_one(p.b, (uint8_t[9100]){0}), 4 + pay);
  }
  tb_link_stats s = stats_of(p.a);
  assert_int_equal(s.tx_copied, 0);
  assert_int_equal(OPS->tx_reap(p.a, 0), sent / 2);
  assert_int_equal(s.tx_bytes, (uint64_t)sent * (4 + pay));
  close_pair(&p);
}

static void memif__what_a_full_device_leaves_is_let_go(void **state) {
  (void)state;
  pair p = open_memif();
  tb_tx tx[64];
  uint32_t number[64], taken = 0;
  pools before = pools_of(&p);
  for (int k = 64; k == 64; taken += (uint32_t)k) {
    for (uint32_t i = 0; i < 64; i++) number[i] = taken + i, tx[i] = ref(&p, &number[i], 4, i * 1000, 1000);
    k = OPS->tx_burst(p.a, 0, tx, 64);
    assert_in_range(k, 0, 64);
  }
  assert_in_range(taken, 500, 1200);
  assert_int_equal(readers(&p), 0);
  assert_int_equal(OPS->tx_reap(p.a, 0), taken);
  all_back(&p, &before);
  for (uint32_t i = 0; i < taken; i++) expect_frame(p.b, i, memory + i % 64 * 1000, 1000);
  assert_int_equal(OPS->mem_unreg(p.a, p.region), 0);
  close_pair(&p);
}

static void memif__refs_lost_for_want_of_a_mac_are_done(void **state) {
  (void)state;
  pair p = open_memif();
  tb_addr other = {.len = 9, .bytes = {1, 4, 1, 10, 0, 0, 77, 20, 0}};
  assert_int_equal(OPS->peer_add(p.a, 3, &other), 0);
  tb_tx tx = ref(&p, "head", 4, 0, 1000);
  tx.peer = 3;
  assert_int_equal(OPS->tx_burst(p.a, 0, &tx, 1), 1);
  assert_int_equal(OPS->tx_reap(p.a, 0), 1);
  assert_int_equal(stats_of(p.a).tx_dropped, 1);
  close_pair(&p);
}

/* The pool of tails is used up: a copy does as well. */
static void memif__without_a_tail_the_payload_is_copied(void **state) {
  (void)state;
  pair p = open_memif();
  struct rte_mempool *pool = p.da->port->tail_pool;
  struct rte_mbuf *all[2048];
  uint32_t n = 0, number = 5;
  while (n < 2048 && (all[n] = rte_pktmbuf_alloc(pool))) n++;
  assert_in_range(n, 64, 2047);
  tb_tx tx = ref(&p, &number, 4, 3, 1000);
  assert_int_equal(OPS->tx_burst(p.a, 0, &tx, 1), 1);
  assert_int_equal(OPS->tx_reap(p.a, 0), 1);
  assert_int_equal(stats_of(p.a).tx_copied, 1000);
  expect_frame(p.b, 5, memory + 3, 1000);
  rte_pktmbuf_free_bulk(all, n);
  assert_int_equal(OPS->tx_burst(p.a, 0, &tx, 1), 1);
  assert_int_equal(stats_of(p.a).tx_copied, 1000);
  close_pair(&p);
}

static void ring__refuses_refs_since_the_other_end_reads_later(void **state) {
  (void)state;
  pair p = open_pair("ring", "ring");
  tb_tx tx = ref(&p, "head", 4, 0, 1000);
  assert_int_equal(OPS->caps(p.a)->ref, TB_REF_NONE);
  assert_int_equal(OPS->tx_burst(p.a, 0, &tx, 1), -EOPNOTSUPP);
  assert_int_equal(OPS->tx_reap(p.a, 0), 0);
  close_pair(&p);
}

/* A driver that breaks its promise: a ring that claims to be SYNC. */
static void a_driver_that_keeps_payloads_is_told_and_gets_copies(void **state) {
  (void)state;
  pair p = open_pair("ring", "ring");
  assert_int_equal(OPS->tx_burst(p.a, 0, &(tb_tx){.peer = 1, .pay = memory, .pay_len = 1000}, 1), 1);
  assert_int_equal(stats_of(p.a).tx_copied, 1000); /* never from where it lies, as it is */
  assert_int_equal(receive_one(p.b, (uint8_t[9100]){0}), 1000);
  uint32_t number = 1;
  uint64_t took = 0;
  tb_link_event e[2];
  p.da->caps.ref = TB_REF_SYNC;
  p.da->port->tail_pool = rte_pktmbuf_pool_create("tb_tails", 127, 0, 0, 0, SOCKET_ID_ANY);
  assert_non_null(p.da->port->tail_pool);
  assert_int_equal(OPS->events(p.a, e, 2), 0);
  tb_tx tx = ref(&p, &number, 4, 0, 1000);
  assert_int_equal(OPS->tx_burst(p.a, 0, &tx, 1), 1);
  assert_int_equal(readers(&p), 1);
  assert_int_equal(OPS->events(p.a, e, 2), 1);
  assert_non_null(strstr(e[0].text, "keeps payloads"));
  assert_int_equal(OPS->tx_burst(p.a, 0, &tx, 1), 1);
  assert_int_equal(readers(&p), 1); /* that one was copied */
  assert_int_equal(stats_of(p.a).tx_copied, 2000);
  assert_int_equal(OPS->tx_reap(p.a, 0), 0);
  assert_int_equal(OPS->mem_unreg(p.a, p.region), -EBUSY);
  assert_int_equal(OPS->tx_quiesce(p.a, 0, dpdk_now() + 5 * MS), -ETIMEDOUT);
  expect_frame(p.b, 1, memory, 1000);
  expect_frame(p.b, 1, memory, 1000);
  assert_int_equal(readers(&p), 0);
  assert_int_equal(OPS->tx_quiesce(p.a, 0, 0), 0);
  assert_int_equal(OPS->tx_reap(p.a, 0), 2);
  assert_int_equal(OPS->tx_abort(p.a, 0, &took), 0);
  assert_int_equal(OPS->mem_unreg(p.a, p.region), 0);
  close_pair(&p);
}

static int begin(void **state) {
  (void)state;
  make_switch(2);
  memory = malloc(MEMORY);
  return memory && mkdtemp(folder) ? 0 : -1;
}

static int end(void **state) {
  (void)state;
  free(memory);
  char socket[100];
  snprintf(socket, sizeof socket, "%s/m", folder);
  (void)unlink(socket); /* memif's server leaves it, and its lock */
  snprintf(socket, sizeof socket, "%s/m.lock", folder);
  (void)unlink(socket);
  return rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(af_packet__memory_is_free_when_tx_burst_returns),
      cmocka_unit_test(memif__memory_is_free_when_tx_burst_returns),
      cmocka_unit_test(memif__nothing_is_copied_of_a_tensor),
      cmocka_unit_test(memif__what_a_full_device_leaves_is_let_go),
      cmocka_unit_test(memif__refs_lost_for_want_of_a_mac_are_done),
      cmocka_unit_test(memif__without_a_tail_the_payload_is_copied),
      cmocka_unit_test(ring__refuses_refs_since_the_other_end_reads_later),
      cmocka_unit_test(a_driver_that_keeps_payloads_is_told_and_gets_copies),
  };
  return cmocka_run_group_tests(tests, begin, end);
}
