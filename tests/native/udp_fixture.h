/* udp_fixture.h - links over loopback that know each other, and frames that say what they are. */
#ifndef UDP_FIXTURE_H
#define UDP_FIXTURE_H
#include "links/udp.h"
#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#define OPS (&tb_link_udp)
enum { HEAD = 64, LINKS = 4 };

typedef struct { tb_link *link[LINKS]; int n; } net;

static __attribute__((unused)) char error[1024];

static inline uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline tb_link_cfg config(void) {
  error[0] = 0;
  return (tb_link_cfg){.interface = "127.0.0.1", .flows = 2, .peers = LINKS, .error = error, .error_len = sizeof error};
}

static inline tb_link *open_link(const tb_link_cfg *cfg) {
  tb_link *link = NULL;
  int rc = OPS->open(cfg, &link);
  if (rc) fail_msg("open: %d %s", rc, error);
  return link;
}

/* n links, each of them knowing all others by number. */
static inline net open_net(int n, const tb_link_cfg *cfg) {
  net w = {.n = n};
  for (int i = 0; i < n; i++) w.link[i] = open_link(cfg);
  for (int i = 0; i < n; i++) {
    tb_addr addr;
    assert_int_equal(OPS->local_addr(w.link[i], &addr), 0);
    for (int j = 0; j < n; j++) assert_int_equal(OPS->peer_add(w.link[j], (uint32_t)i, &addr), 0);
  }
  return w;
}

static inline void close_net(net *w) {
  for (int i = 0; i < w->n; i++) OPS->close(w->link[i]);
}

static inline tb_link_stats stats_of(tb_link *link) {
  tb_link_stats s;
  assert_int_equal(OPS->stats(link, &s), 0);
  return s;
}

static inline int events_of(tb_link *link, tb_link_event *e, int n) { return OPS->events(link, e, n); }

/* Byte j of frame `id`: different for neighbours in both directions. */
static inline uint8_t pattern(uint32_t id, uint32_t j) { return (uint8_t)(id * 131 + j * 7 + (j >> 8) + 1); }

typedef struct { uint8_t head[HEAD], *pay; uint32_t pay_len; } frame;

/* A frame says its number and length in its head, so that the receiver can check it alone. */
static inline frame make_frame(uint32_t id, uint32_t pay_len) {
  frame f = {.pay = malloc(pay_len ? pay_len : 1), .pay_len = pay_len};
  memcpy(f.head, &id, 4);
  memcpy(f.head + 4, &pay_len, 4);
  for (uint32_t j = 8; j < HEAD; j++) f.head[j] = pattern(id, j);
  for (uint32_t j = 0; j < pay_len; j++) f.pay[j] = pattern(id, HEAD + j);
  return f;
}

static inline uint32_t check_frame(const tb_rx *rx) {
  uint32_t id, pay_len;
  assert_true(rx->len >= HEAD);
  memcpy(&id, rx->data, 4);
  memcpy(&pay_len, rx->data + 4, 4);
  assert_int_equal(rx->len, HEAD + pay_len);
  for (uint32_t j = 8; j < rx->len; j++)
    if (rx->data[j] != pattern(id, j)) fail_msg("frame %u of %u bytes differs at %u", id, rx->len, j);
  return id;
}

/* Receives until `want` frames came or nothing more does; counts how often each number below `ids` arrived. */
static inline int receive(tb_link *link, int want, uint8_t *seen, uint32_t ids) {
  tb_rx rx[64];
  int got = 0;
  while (got < want) {
    int k = OPS->rx_burst(link, 0, rx, 64);
    assert_true(k >= 0);
    for (int i = 0; i < k; i++) {
      uint32_t id = check_frame(&rx[i]);
      assert_true(id < ids);
      seen[id]++;
    }
    OPS->rx_release(link, 0);
    got += k;
    if (!k && (OPS->wait(link, 0, now_ns() + 200000000) & TB_WAIT_TIMEOUT)) break;
  }
  return got;
}

static inline void assert_each_once(const uint8_t *seen, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    if (seen[i] != 1) fail_msg("frame %u arrived %u times", i, seen[i]);
}

/* Everything in, in as many bursts as it takes. */
static inline void send_all(tb_link *link, const tb_tx *tx, int n) {
  for (int done = 0, idle = 0; done < n;) {
    int k = OPS->tx_burst(link, 0, tx + done, n - done);
    if (k < 0) fail_msg("tx_burst: %d at frame %d", k, done);
    done += k;
    idle = k ? 0 : idle + 1;
    assert_true(idle < 100);
  }
}


/* n frames of one size, frame i to peer peers[i % peer_count]. */
static inline frame *make_burst(tb_tx *tx, int n, uint32_t pay_len, const uint32_t *peers, int peer_count) {
  frame *f = calloc((size_t)n, sizeof *f);
  for (int i = 0; i < n; i++) {
    f[i] = make_frame((uint32_t)i, pay_len);
    tx[i] = (tb_tx){.peer = peers[i % peer_count], .head = f[i].head, .head_len = HEAD, .pay = f[i].pay,
                    .pay_len = pay_len};
  }
  return f;
}

static inline void free_burst(frame *f, int n) {
  for (int i = 0; i < n; i++) free(f[i].pay);
  free(f);
}

static const __attribute__((unused)) uint32_t to_1[] = {1};

static inline int first_port(tb_link *link) { return ((udp_link *)link)->sock[0].port; }

static inline void send_raw_from(const char *source, tb_link *to, const void *data, size_t len) {
  struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)first_port(to))},
      own = {.sin_family = AF_INET};
  int fd = socket(AF_INET, SOCK_DGRAM, 0);
  assert_int_equal(inet_pton(AF_INET, source, &own.sin_addr), 1);
  assert_int_equal(bind(fd, (struct sockaddr *)&own, sizeof own), 0);
  sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  assert_int_equal(sendto(fd, data, len, 0, (struct sockaddr *)&sa, sizeof sa), len);
  close(fd);
}

static inline void send_raw(tb_link *to, const void *data, size_t len) { send_raw_from("127.0.0.1", to, data, len); }

#endif
