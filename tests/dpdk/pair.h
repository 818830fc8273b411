/* pair.h - dpdk links for tests: opened, introduced to each other, and looked into. */
#ifndef DPDK_TEST_PAIR_H
#define DPDK_TEST_PAIR_H
#include "plugins/dpdk/dpdk.h"
#include "links/plugin.h"
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

const tb_link_plugin *tb_link_plugin_get(void);
#define OPS (tb_link_plugin_get()->ops)
#define MS 1000000ull

static __attribute__((unused)) char error[1024];

static inline tb_link_cfg config(const char *device, const char *ip) {
  *error = 0;
  return (tb_link_cfg){.device = device, .ip = ip, .flows = 2, .peers = 8, .error = error, .error_len = sizeof error};
}

static inline tb_link *open_link(const tb_link_cfg *cfg) {
  tb_link *link = NULL;
  int rc = OPS->open(cfg, &link);
  if (rc) fail_msg("open %s: %d %s", cfg->device, rc, error);
  return link;
}

static inline tb_link *open_at(const char *device, const char *ip) {
  tb_link_cfg cfg = config(device, ip);
  return open_link(&cfg);
}

/* `with_mac`: as the rendezvous brings it; without, ARP has to find it. */
static inline void introduce(tb_link *to, uint32_t peer, tb_link *other, bool with_mac) {
  tb_addr addr;
  assert_int_equal(OPS->local_addr(other, &addr), 0);
  if (!with_mac) addr.len = (uint8_t)(addr.len - 7);
  assert_int_equal(OPS->peer_add(to, peer, &addr), 0);
}

static inline tb_link_stats stats_of(tb_link *link) {
  tb_link_stats s;
  assert_int_equal(OPS->stats(link, &s), 0);
  return s;
}

static inline tb_tx frame_to(uint32_t peer, const void *head, uint32_t head_len, const void *pay, uint32_t pay_len) {
  return (tb_tx){.peer = peer, .head = head, .head_len = head_len, .pay = pay, .pay_len = pay_len};
}

static inline int send_text(tb_link *link, uint32_t peer, const char *text) {
  tb_tx tx = frame_to(peer, text, (uint32_t)strlen(text), NULL, 0);
  return OPS->tx_burst(link, 0, &tx, 1);
}

/* One frame within 2 s, into out; its length, 0 = none. */
static inline uint32_t receive_one(tb_link *link, uint8_t *out) {
  uint64_t give_up = dpdk_now() + 2000 * MS;
  tb_rx rx;
  for (int k = 0; dpdk_now() < give_up;) {
    k = OPS->rx_burst(link, 0, &rx, 1);
    assert_true(k >= 0);
    if (k) memcpy(out, rx.data, rx.len);
    OPS->rx_release(link, 0);
    if (k) return rx.len;
    OPS->wait(link, 0, dpdk_now() + 20 * MS);
  }
  return 0;
}

static inline void expect_text(tb_link *link, const char *text) {
  uint8_t data[9100];
  uint32_t len = receive_one(link, data);
  assert_int_equal(len, strlen(text));
  assert_memory_equal(data, text, len);
}

/* Both ends of a ring have this address, IP/bits: each is told so, by the second's announcement or the answer to it. */
static inline void expect_rivals(const char *ring, const char *ip_bits) {
  tb_link *end[2];
  char words[128];
  snprintf(words, sizeof words, "%.*s is also that of", (int)strcspn(ip_bits, "/"), ip_bits);
  for (int i = 0; i < 2; i++) end[i] = open_at(ring, ip_bits);
  for (int i = 0; i < 2; i++) {
    tb_link_event e[2];
    assert_int_equal(OPS->wait(end[i], 0, dpdk_now() + 1000 * MS), TB_WAIT_EVENT);
    assert_int_equal(OPS->events(end[i], e, 2), 1);
    assert_non_null(strstr(e[0].text, words));
  }
  for (int i = 0; i < 2; i++) OPS->close(end[i]);
}

#endif
