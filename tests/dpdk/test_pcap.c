/* test_pcap.c - golden captures. Received: golden/received.pcap, which a Linux kernel sent (golden/make_received.py).
 * Sent: what DPDK wrote of ours into a file is read here byte by byte, by nothing that made it. */
#include "pair.h"
#include <unistd.h>

#define FROM "tests/dpdk/golden/received.pcap"
enum { KERNEL_IP = 0x0a000009, OUR_IP = 0x0a000005 };
static const uint8_t our_mac[] = {2, 0x70, 0x63, 0x61, 0x70, 0}, kernel_mac[] = {2, 0, 0, 0, 0, 9};
static char written[64];

static uint8_t *read_file(const char *path, size_t *len) {
  FILE *f = fopen(path, "rb");
  if (!f) fail_msg("%s is missing", path);
  uint8_t *data = malloc(1 << 20);
  *len = fread(data, 1, 1 << 20, f);
  fclose(f);
  return data;
}

static uint32_t little(const uint8_t *p) {
  return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint16_t sum(const uint8_t *p, uint32_t len) {
  uint32_t s = 0;
  for (uint32_t i = 0; i < len; i += 2) s += (uint32_t)(p[i] << 8 | p[i + 1]);
  while (s >> 16) s = (s & 0xffff) + (s >> 16);
  return (uint16_t)s;
}

/* Frame `which` of a capture; its length. */
static uint32_t frame_of(const uint8_t *file, size_t size, uint32_t which, const uint8_t **frame) {
  size_t at = 24;
  for (uint32_t i = 0; at + 16 <= size; i++) {
    uint32_t len = little(file + at + 8);
    assert_true(at + 16 + len <= size && len == little(file + at + 12));
    *frame = file + at + 16;
    if (i == which) return len;
    at += 16 + len;
  }
  return 0;
}

static void check_arp(const uint8_t *f, uint32_t len, uint32_t op, const uint8_t *to, const uint8_t *target,
                      uint32_t ip) {
  static const uint8_t kind[] = {8, 6, 0, 1, 8, 0, 6, 4, 0};
  assert_int_equal(len, 60);
  assert_memory_equal(f, to, 6);
  assert_memory_equal(f + 6, our_mac, 6);
  assert_memory_equal(f + 12, kind, sizeof kind);
  assert_int_equal(f[21], op);
  assert_memory_equal(f + 22, our_mac, 6);
  assert_int_equal(tb_get32(f + 28), OUR_IP);
  assert_memory_equal(f + 32, target, 6);
  assert_int_equal(tb_get32(f + 38), ip);
}

static void check_udp(const uint8_t *f, uint32_t len, const char *head, uint32_t pay) {
  uint32_t data = (uint32_t)strlen(head) + pay, whole = 42 + data;
  assert_int_equal(len, whole < 60 ? 60 : whole);
  assert_memory_equal(f, kernel_mac, 6);
  assert_memory_equal(f + 6, our_mac, 6);
  assert_int_equal(tb_get16(f + 12), 0x0800);
  assert_int_equal(f[14], 0x45);
  assert_int_equal(tb_get16(f + 16), 28 + data);
  assert_int_equal(tb_get16(f + 20), 0x4000);
  assert_true(f[22] > 1);
  assert_int_equal(f[23], 17);
  assert_int_equal(sum(f + 14, 20), 0xffff);
  assert_int_equal(tb_get32(f + 26), OUR_IP);
  assert_int_equal(tb_get32(f + 30), KERNEL_IP);
  assert_in_range(tb_get16(f + 34), 5000, 5001);
  assert_int_equal(tb_get16(f + 36), 7000);
  assert_int_equal(tb_get16(f + 38), 8 + data);
  assert_int_equal(tb_get16(f + 40), 0); /* no sum: the payload carries a seal */
  assert_memory_equal(f + 42, head, strlen(head));
  for (uint32_t i = 0; i < pay; i++) assert_int_equal(f[42 + strlen(head) + i], (uint8_t)i);
  for (uint32_t i = whole; i < len; i++) assert_int_equal(f[i], 0);
}

static tb_link *open_files(void) {
  char device[200];
  snprintf(device, sizeof device, "pcap:%s,%s", FROM, written);
  tb_link_cfg cfg = config(device, "10.0.0.5/24");
  cfg.port_lo = 5000;
  cfg.port_hi = 5001;
  return open_link(&cfg);
}

static void what_a_kernel_sent_is_understood(tb_link *link) {
  tb_addr kernel = {.len = 9, .bytes = {1, 4, 1, 10, 0, 0, 9, 7000 >> 8, 7000 & 255}};
  tb_rx rx[16];
  assert_int_equal(OPS->peer_add(link, 9, &kernel), 0);
  assert_int_equal(OPS->peer_state(link, 9), -EINPROGRESS);
  assert_int_equal(OPS->rx_burst(link, 0, rx, 16), 4);
  assert_int_equal(rx[0].len, 4);
  assert_memory_equal(rx[0].data, "asks", 4);
  assert_true(rx[1].len == 1 && rx[1].data[0] == 'x');
  assert_int_equal(rx[2].len, 1024);
  for (uint32_t i = 0; i < 1024; i++) assert_int_equal(rx[2].data[i], i & 255);
  assert_int_equal(rx[3].len, 12);
  assert_memory_equal(rx[3].data, "with options", 12);
  for (int i = 0; i < 4; i++) assert_true(OPS->came_from(link, &rx[i], 9));
  OPS->rx_release(link, 0);
  assert_int_equal(OPS->rx_burst(link, 0, rx, 16), 0);
  tb_link_stats s = stats_of(link);
  assert_int_equal(s.rx_foreign, 4); /* another port, TCP, two fragments */
  assert_int_equal(s.rx_truncated, 0);
  assert_int_equal(OPS->peer_state(link, 9), 0); /* its request told its MAC */
}

static void captures__both_ways(void **state) {
  (void)state;
  static const uint8_t all[] = {255, 255, 255, 255, 255, 255}, none[6];
  uint8_t pay[1000];
  const uint8_t *f = NULL;
  size_t size;
  strcpy(written, "/tmp/tb_sent_XXXXXX");
  int fd = mkstemp(written);
  assert_true(fd >= 0);
  close(fd);
  for (uint32_t i = 0; i < sizeof pay; i++) pay[i] = (uint8_t)i;
  tb_link *link = open_files();
  assert_memory_equal(dpdk_of(link)->self.mac.b, our_mac, 6);
  what_a_kernel_sent_is_understood(link);
  tb_tx tx[] = {frame_to(9, "head", 4, pay, 1000), frame_to(9, "h", 1, NULL, 0), frame_to(9, "odd", 3, pay, 14),
                frame_to(9, "", 0, pay, 500)};
  assert_int_equal(OPS->mem_reg(link, pay, sizeof pay, &tx[0].region), 0);
  tx[0].ref = true; /* from where it lies: in two pieces */
  assert_int_equal(OPS->tx_burst(link, 0, tx, 4), 4);
  assert_int_equal(OPS->tx_reap(link, 0), 1);
  assert_int_equal(stats_of(link).tx_copied, 14 + 500);
  OPS->close(link);
  uint8_t *file = read_file(written, &size);
  assert_true(little(file) == 0xa1b2c3d4 || little(file) == 0xa1b23c4d); /* times in us, or ns */
  uint32_t len = frame_of(file, size, 0, &f);
  check_arp(f, len, 1, all, none, OUR_IP); /* our announcement */
  len = frame_of(file, size, 1, &f);
  check_arp(f, len, 1, all, none, KERNEL_IP);
  len = frame_of(file, size, 2, &f);
  check_arp(f, len, 2, kernel_mac, kernel_mac, KERNEL_IP);
  static const struct { const char *head; uint32_t pay; } sent[] = {{"head", 1000}, {"h", 0}, {"odd", 14}, {"", 500}};
  for (uint32_t i = 0; i < 4; i++) {
    len = frame_of(file, size, 3 + i, &f);
    check_udp(f, len, sent[i].head, sent[i].pay);
  }
  assert_int_equal(frame_of(file, size, 7, &f), 0);
  free(file);
}

static int remove_written(void **state) {
  (void)state;
  return *written ? unlink(written) : 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(captures__both_ways)};
  return cmocka_run_group_tests(tests, NULL, remove_written);
}
