/* peer.c - a verbs link at the end of two pipes, for tests in which another program is its peer: peer DEVICE MTU. It says
 * `addr HEX`, and then answers a line for each that it reads:
 *
 *   peer HEX     the other's address             -> ok, or the error
 *   send HEX     that frame to it                -> sent, or the error
 *   receive      one frame within 3 s            -> frame HEX, or `stranger HEX` of another's address, or none
 *   stats                                        -> stats FOREIGN TRUNCATED */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "links/plugin.h"
#include "plugins/verbs/verbs.h"

const tb_link_plugin *tb_link_plugin_get(void);
enum { OTHER = 1, MOST = 4096 };
static const tb_link_ops *ops;
static tb_link *link_;

static void print_hex(const char *word, const uint8_t *p, uint32_t n) {
  printf("%s ", word);
  for (uint32_t i = 0; i < n; i++) printf("%02x", p[i]);
  printf("\n");
}

static uint32_t read_hex(const char *text, uint8_t *out) {
  uint32_t n = 0;
  unsigned byte;
  while (n < MOST && sscanf(text + 2 * n, "%2x", &byte) == 1) out[n++] = (uint8_t)byte;
  return n;
}

static int add(const char *hex) {
  uint8_t bytes[MOST];
  tb_addr addr;
  addr.len = (uint8_t)read_hex(hex, bytes);
  memcpy(addr.bytes, bytes, addr.len <= TB_ADDR_MAX ? addr.len : TB_ADDR_MAX);
  int rc = ops->peer_add(link_, OTHER, &addr);
  uint64_t until = verbs_now() + 5000000000u;
  while (!rc && (rc = ops->peer_state(link_, OTHER)) == -EINPROGRESS && verbs_now() < until)
    rc = ops->wait(link_, 0, verbs_now() + 1000000) < 0;
  return rc;
}

static int send_frame(const char *hex) {
  uint8_t bytes[MOST];
  tb_tx t = {.peer = OTHER, .head = bytes, .head_len = read_hex(hex, bytes)};
  int rc = ops->tx_burst(link_, 0, &t, 1);
  return rc == 1 ? 0 : rc ? rc : -EAGAIN;
}

static void receive(void) {
  uint64_t until = verbs_now() + 3000000000u;
  tb_rx rx;
  int k;
  while (!(k = ops->rx_burst(link_, 0, &rx, 1)) && verbs_now() < until) ops->wait(link_, 0, verbs_now() + 10000000);
  if (k == 1) print_hex(ops->came_from(link_, &rx, OTHER) ? "frame" : "stranger", rx.data, rx.len);
  else printf("none\n");
  ops->rx_release(link_, 0);
}

static void answer(const char *line) {
  tb_link_stats s;
  int rc = 0;
  if (!strncmp(line, "peer ", 5)) rc = add(line + 5), puts(rc ? strerror(-rc) : "ok");
  else if (!strncmp(line, "send ", 5)) rc = send_frame(line + 5), puts(rc ? strerror(-rc) : "sent");
  else if (!strncmp(line, "receive", 7)) receive();
  else if (!strncmp(line, "stats", 5) && !ops->stats(link_, &s))
    printf("stats %llu %llu\n", (unsigned long long)s.rx_foreign, (unsigned long long)s.rx_truncated);
  else printf("what?\n");
}

int main(int argc, char **argv) {
  static char line[2 * MOST + 100], error[1024];
  tb_addr own;
  if (argc != 3) return 2;
  ops = tb_link_plugin_get()->ops;
  tb_link_cfg cfg = {.device = argv[1], .mtu = (uint32_t)atoi(argv[2]), .buffer = 1 << 20, .peers = 2, .error = error,
                     .error_len = sizeof error};
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (ops->open(&cfg, &link_) || ops->local_addr(link_, &own)) {
    fprintf(stderr, "%s\n", error);
    return 1;
  }
  print_hex("addr", own.bytes, own.len);
  while (fgets(line, sizeof line, stdin)) answer(line);
  ops->close(link_);
  return 0;
}
