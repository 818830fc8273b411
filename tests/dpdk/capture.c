/* capture.c - a program for test_capture*.py: a dpdk link between two capture files. It hears all of IN, sends a few
 * frames of the protocol to another host, and says on stdout, a line each, what it took (hex) and counted (frames,
 * foreign, truncated, bytes copied to be sent). What comes and what goes is judged there, by a reader that shares
 * nothing with it.
 *
 *   capture IN OUT OURS OTHER VLAN     at OURS ("10.0.0.5/24"), UDP ports 5000 and 5001, the MAC of DPDK's first pcap
 *                                      port; OTHER has UDP port 7000
 * */
#include <stdio.h>
#include <stdlib.h>
#include "ether/address.h"
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

/* Data frames of all lengths, with COPY payloads and with REFs, or COPY again where the link takes none. */
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
                  .ref = way && OPS->caps(link)->ref != TB_REF_NONE, .region = region};
      if (OPS->tx_burst(link, 0, &tx, 1) != 1) return 1;
    }
  return 0;
}

/* Its address as the rendezvous brings it, without a MAC. */
static int address_of(const char *text, tb_addr *out) {
  tb_ip ip;
  uint32_t bits;
  if (tb_ip_parse(text, &ip, &bits)) return 1;
  uint8_t before = tb_ip_is4(&ip) ? TB_IP4_AT : 0, len = sizeof ip.b - before;
  *out = (tb_addr){.len = 3 + len + 2, .bytes = {1, before ? 4 : 6, 1}};
  memcpy(out->bytes + 3, ip.b + before, len);
  out->bytes[3 + len] = 7000 >> 8;
  out->bytes[4 + len] = 7000 & 255;
  return 0;
}

int main(int argc, char **argv) {
  char device[600], error[1000];
  tb_link *link;
  tb_addr other;
  if (argc != 6 || address_of(argv[4], &other)) return 2;
  snprintf(device, sizeof device, "pcap:%s,%s", argv[1], argv[2]);
  tb_link_cfg cfg = {.device = device, .ip = argv[3], .vlan = (uint32_t)atoi(argv[5]), .port_lo = 5000, .port_hi = 5001,
                     .flows = 2, .peers = 16, .error = error, .error_len = sizeof error};
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
