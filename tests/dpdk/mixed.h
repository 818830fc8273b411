/* mixed.h - a dpdk link at tb0 of a switch (switch.h) and a udp link of this process's kernel, which know each other. */
#ifndef MIXED_H
#define MIXED_H
#include "pair.h"

enum { MANY = 200, PAY = 1300 };

typedef struct { tb_link *kernel, *dpdk; } mixed;

static inline const tb_link_ops *ops_of(const mixed *m, const tb_link *l) { return l == m->kernel ? &tb_link_udp : OPS; }

/* told: the kernel's link hears, by the MAC in the address, that its peer has a device of its own. */
static inline void introduce_udp(tb_link *dpdk, tb_link *kernel, bool told) {
  tb_addr addr;
  assert_int_equal(tb_link_udp.local_addr(kernel, &addr), 0);
  assert_int_equal(OPS->peer_add(dpdk, 0, &addr), 0); /* no MAC in it: ARP finds it */
  assert_int_equal(OPS->local_addr(dpdk, &addr), 0);
  if (!told) addr.len = (uint8_t)(addr.len - 7);
  assert_int_equal(tb_link_udp.peer_add(kernel, 1, &addr), 0);
}

static inline mixed open_mixed(const char *dpdk, const char *kernel, uint32_t vlan, uint32_t mtu, bool told) {
  tb_link_cfg cfg = config("af_packet:tb0", dpdk);
  mixed m;
  cfg.mtu = mtu;
  cfg.vlan = vlan;
  m.dpdk = open_link(&cfg);
  cfg.interface = kernel;
  if (tb_link_udp.open(&cfg, &m.kernel)) fail_msg("%s", error);
  introduce_udp(m.dpdk, m.kernel, told);
  return m;
}

static inline void close_mixed(mixed *m) {
  OPS->close(m->dpdk);
  tb_link_udp.close(m->kernel);
}

/* Both ends look, until `want` frames came at `to` or 2 s are over; each frame's number is checked and marked. */
static inline uint32_t exchange(mixed *m, tb_link *to, uint32_t want, uint8_t *seen) {
  uint64_t give_up = dpdk_now() + 2000 * MS;
  uint32_t came = 0;
  tb_rx rx[64];
  while (came < want && dpdk_now() < give_up) {
    int k = ops_of(m, to)->rx_burst(to, 0, rx, 64);
    for (int i = 0; i < k; i++, came++) {
      uint32_t number;
      memcpy(&number, rx[i].data, 4);
      assert_true(number < MANY && rx[i].len == 4 + PAY);
      assert_int_equal(rx[i].data[4 + number % PAY], (uint8_t)(number % PAY));
      seen[number]++;
    }
    ops_of(m, to)->rx_release(to, 0);
    OPS->wait(m->dpdk, 0, dpdk_now() + MS);
  }
  return came;
}

static inline void send_many(mixed *m, tb_link *from, uint32_t peer) {
  static uint8_t pay[PAY];
  static uint32_t number[MANY];
  static tb_tx tx[MANY];
  for (uint32_t i = 0; i < PAY; i++) pay[i] = (uint8_t)i;
  for (uint32_t i = 0; i < MANY; i++) number[i] = i, tx[i] = frame_to(peer, &number[i], 4, pay, PAY);
  int done = 0;
  for (int k; done < MANY && (k = ops_of(m, from)->tx_burst(from, 0, tx + done, MANY - done)) > 0;) done += k;
  assert_int_equal(done, MANY);
}

static inline void await_neighbour(mixed *m) {
  for (int i = 0; i < 100 && OPS->peer_state(m->dpdk, 0); i++) OPS->wait(m->dpdk, 0, dpdk_now() + 20 * MS);
  assert_int_equal(OPS->peer_state(m->dpdk, 0), 0);
}

#endif
