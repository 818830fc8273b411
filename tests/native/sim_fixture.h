/* sim_fixture.h - a simulated network with all endpoints open and every peer known by its endpoint's number. */
#ifndef SIM_FIXTURE_H
#define SIM_FIXTURE_H
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "links/sim.h"

#define L tb_link_sim
#define FAR 1000000000000u

typedef struct { tb_sim *net; uint32_t n; tb_link *at[64]; } sim_fixture;

static inline sim_fixture sim_up(uint32_t n, const char *options) {
  sim_fixture s = {.n = n};
  char error[256] = "";
  if (tb_sim_new(n, options, &s.net, error, sizeof error)) fail_msg("%s", error);
  for (uint32_t i = 0; i < n; i++) {
    tb_sim_port port = {s.net, i};
    tb_link_cfg cfg = {.context = &port, .peers = n};
    assert_int_equal(L.open(&cfg, &s.at[i]), 0);
  }
  for (uint32_t i = 0; i < n; i++) {
    tb_addr addr;
    assert_int_equal(L.local_addr(s.at[i], &addr), 0);
    for (uint32_t j = 0; j < n; j++) assert_int_equal(L.peer_add(s.at[j], i, &addr), 0);
  }
  return s;
}

static inline void sim_down(sim_fixture *s) {
  for (uint32_t i = 0; i < s->n; i++) L.close(s->at[i]);
  tb_sim_free(s->net);
}

static inline void sim_set(sim_fixture *s, int src, int dst, const char *options) {
  char error[256] = "";
  if (tb_sim_set(s->net, src, dst, options, error, sizeof error)) fail_msg("%s", error);
}

/* A frame of len bytes, all copied; the first four say which. */
static inline int sim_send(sim_fixture *s, uint32_t src, uint32_t dst, uint32_t number, uint32_t len) {
  static uint8_t bytes[65536];
  memset(bytes, (int)(number & 0xff), len);
  memcpy(bytes, &number, sizeof number);
  tb_tx tx = {.peer = dst, .head = bytes, .head_len = 4, .pay = bytes + 4, .pay_len = len - 4};
  return L.tx_burst(s->at[src], 0, &tx, 1);
}

/* Takes one frame: its number, or -1. */
static inline int64_t sim_take(sim_fixture *s, uint32_t at, uint32_t *len) {
  tb_rx rx;
  uint32_t number = 0;
  if (L.rx_burst(s->at[at], 0, &rx, 1) != 1) return -1;
  if (rx.len >= 4) memcpy(&number, rx.data, 4);
  if (len) *len = rx.len;
  L.rx_release(s->at[at], 0);
  return number;
}

static inline uint64_t sim_log(sim_fixture *s, tb_sim_log *out, uint64_t n) {
  int64_t got = tb_sim_log_read(s->net, 0, out, n);
  assert_true(got >= 0);
  return (uint64_t)got;
}

#endif
