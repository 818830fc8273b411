/* device.h - verbs links on real (soft-RoCE) devices for tests: opened, introduced to each other, looked into. The test
 * names its devices on the command line; tests/guest runs it. */
#ifndef VERBS_DEVICE_H
#define VERBS_DEVICE_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "links/plugin.h"
#include "plugins/verbs/verbs.h"

const tb_link_plugin *tb_link_plugin_get(void);
#define OPS (tb_link_plugin_get()->ops)
#define MS 1000000ull

static __attribute__((unused)) char error[1024];

static inline void nap(uint64_t ns) {
  nanosleep(&(struct timespec){(time_t)(ns / 1000000000), (long)(ns % 1000000000)}, NULL);
}

static inline tb_link_cfg config(const char *device) {
  *error = 0;
  return (tb_link_cfg){.device = device, .buffer = 1 << 20, .peers = 8, .ref_from = 4096,
                       .error = error, .error_len = sizeof error};
}

static inline tb_link *open_at(const char *device) {
  tb_link_cfg cfg = config(device);
  tb_link *link = NULL;
  int rc = OPS->open(&cfg, &link);
  if (rc) fail_msg("open %s: %d %s", device, rc, error);
  return link;
}

static inline int state_of(tb_link *link, uint32_t peer, uint64_t patience) {
  uint64_t until = verbs_now() + patience;
  while (OPS->peer_state(link, peer) && verbs_now() < until) nap(MS);
  return OPS->peer_state(link, peer);
}

static inline tb_addr address(tb_link *link) {
  tb_addr a;
  assert_int_equal(OPS->local_addr(link, &a), 0);
  return a;
}

static inline void introduce(tb_link *to, uint32_t peer, tb_link *other) {
  tb_addr a = address(other);
  assert_int_equal(OPS->peer_add(to, peer, &a), 0);
  assert_int_equal(state_of(to, peer, 5000 * MS), 0);
}

static inline tb_tx frame_to(uint32_t peer, const void *head, uint32_t head_len, const void *pay, uint32_t pay_len) {
  return (tb_tx){.peer = peer, .head = head, .head_len = head_len, .pay = pay, .pay_len = pay_len};
}

static inline int send_text(tb_link *link, uint32_t peer, const char *text) {
  tb_tx tx = frame_to(peer, text, (uint32_t)strlen(text), NULL, 0);
  return OPS->tx_burst(link, 0, &tx, 1);
}

/* One frame in time, into out; its length, 0 = none. */
static inline uint32_t receive_one(tb_link *link, uint8_t *out, uint64_t patience) {
  uint64_t until = verbs_now() + patience;
  tb_rx rx;
  do {
    int k = OPS->rx_burst(link, 0, &rx, 1);
    assert_true(k >= 0);
    if (k) memcpy(out, rx.data, rx.len);
    OPS->rx_release(link, 0);
    if (k) return rx.len;
    OPS->wait(link, 0, verbs_now() + 10 * MS);
  } while (verbs_now() < until);
  return 0;
}

static inline void expect_text(tb_link *link, const char *text) {
  uint8_t data[4096];
  uint32_t len = receive_one(link, data, 3000 * MS);
  assert_int_equal(len, strlen(text));
  assert_memory_equal(data, text, len);
}

static inline void expect_nothing(tb_link *link) {
  uint8_t data[4096];
  assert_int_equal(receive_one(link, data, 100 * MS), 0);
}

/* Waits for an event that has this word in it. */
static inline void expect_event(tb_link *link, const char *word, uint64_t patience) {
  uint64_t until = verbs_now() + patience;
  tb_link_event e = {.text = "(none)"};
  do {
    while (OPS->events(link, &e, 1) == 1)
      if (strstr(e.text, word)) return;
    nap(5 * MS);
  } while (verbs_now() < until);
  fail_msg("no event with \"%s\"; the last was \"%s\"", word, e.text);
}

static inline void balanced(tb_link *link) {
  const verbs_link *l = verbs_of(link);
  assert_int_equal(l->posted + (l->stashed - l->stash_at) + l->leases + l->free_count, l->rx.count);
}

static inline __attribute__((format(printf, 1, 2))) void run(const char *format, ...) {
  char line[300];
  va_list args;
  va_start(args, format);
  vsnprintf(line, sizeof line, format, args);
  va_end(args);
  if (system(line)) fail_msg("failed: %s", line);
}

/* KiB of this process that devices hold in memory. */
static inline uint64_t pinned(void) {
  char line[200];
  unsigned long kib = 0;
  FILE *f = fopen("/proc/self/status", "r");
  while (fgets(line, sizeof line, f))
    if (sscanf(line, "VmPin: %lu", &kib) == 1) break;
  fclose(f);
  return kib;
}

#endif
