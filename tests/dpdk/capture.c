/* capture.c - a program for test_capture.py: a dpdk link between two capture files. It hears all of IN, sends a few
 * frames of the protocol to 10.0.0.9, and says on stdout, a line each, what it took (hex) and counted (frames, foreign,
 * truncated, bytes copied to be sent). What comes and what
 * goes is judged there, by a reader that shares nothing with this one.
 *
 *   capture IN OUT     at 10.0.0.5/24, UDP ports 5000 and 5001, the MAC of DPDK's first pcap port
 */
#include <stdio.h>
#include "links/plugin.h"
#include "protocol/wire.h"

const tb_link_plugin *tb_link_plugin_get(void);
#define OPS (tb_link_plugin_get()->ops)

enum { SENT_TO = 9, PASSES = 64 };
static const uint32_t payloads[] = {0, 1, 13, 500, 512, 1001, 1408};

static void hear(tb_link *link) {
  tb_rx rx[32];
  for (int pass = 0; pass < PASSES; pass++) { /* bursts of frames that are not for us give nothing */
    int k = OPS->rx_burst(link, 0, rx, 32);
    for (int i = 0; i < k; i++) {
      printf("took ");
      for (uint32_t j = 0; j < rx[i].len; j++) printf("%02x", rx[i].data[j]);
      printf("\n");
    }
    OPS->rx_release(link, 0);
  }
}

static int say_counters(tb_link *link) {
  tb_link_stats s;
  tb_link_event e;
  if (OPS->stats(link, &s)) return 1;
  printf("counted %llu %llu %llu %llu\n", (unsigned long long)s.rx_frames, (unsigned long long)s.rx_foreign,
         (unsigned long long)s.rx_truncated, (unsigned long long)s.tx_copied);
  while (OPS->events(link, &e, 1) == 1) printf("event %s\n", e.text);
  return 0;
}

/* Data frames of all lengths, with COPY payloads and with REFs. */
static int send_some(tb_link *link) {
  static uint8_t pay[1500];
  uint32_t region;
  for (uint32_t i = 0; i < sizeof pay; i++) pay[i] = (uint8_t)(i * 7);
  if (OPS->mem_reg(link, pay, sizeof pay, &region)) return 1;
  for (uint32_t way = 0; way < 2; way++)
    for (uint32_t i = 0; i < sizeof payloads / sizeof *payloads; i++) {
      uint8_t head[TB_HEAD];
      tb_head h = {.type = TB_T_DATA, .source = 5, .destination = SENT_TO, .round = i};
      tb_head_encode(&h, head);
      tb_head_seal(head, payloads[i] ? pay : NULL, payloads[i]);
      tb_tx tx = {.peer = SENT_TO, .head = head, .head_len = sizeof head, .pay = pay, .pay_len = payloads[i],
                  .ref = way, .region = region};
      if (OPS->tx_burst(link, 0, &tx, 1) != 1) return 1;
    }
  return 0;
}

int main(int argc, char **argv) {
  char device[600], error[1000];
  tb_link *link;
  tb_addr other = {.len = 9, .bytes = {1, 4, 1, 10, 0, 0, 9, 7000 >> 8, 7000 & 255}};
  if (argc != 3) return 2;
  snprintf(device, sizeof device, "pcap:%s,%s", argv[1], argv[2]);
  tb_link_cfg cfg = {.device = device, .ip = "10.0.0.5/24", .port_lo = 5000, .port_hi = 5001, .flows = 2, .peers = 16,
                     .error = error, .error_len = sizeof error};
  if (OPS->open(&cfg, &link)) {
    fprintf(stderr, "%s\n", error);
    return 1;
  }
  int failed = OPS->peer_add(link, SENT_TO, &other);
  hear(link);
  if (!failed) failed = send_some(link);
  if (!failed) failed = say_counters(link);
  OPS->close(link);
  return failed;
}
