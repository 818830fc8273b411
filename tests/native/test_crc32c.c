/* test_crc32c.c - the check sum against RFC 3720's examples and against a bit-by-bit computation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "compute/crc32c.h"

#define LONGEST 9016
#define SEED 20240917u

static uint8_t bytes[LONGEST + 8];

static uint32_t bit_by_bit(uint32_t seed, const uint8_t *p, size_t n) {
  uint32_t crc = ~seed;
  while (n--) {
    crc ^= *p++;
    for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
  }
  return ~crc;
}

static int setup(void **state) {
  (void)state;
  uint32_t x = SEED;
  print_message("seed %u\n", SEED);
  for (size_t i = 0; i < sizeof bytes; i++) {
    x = x * 1664525u + 1013904223u;
    bytes[i] = (uint8_t)(x >> 24);
  }
  return 0;
}

static void check_vectors(tb_crc32c_fn *crc) {
  uint8_t v[48];
  memset(v, 0, 32);
  assert_int_equal(crc(0, v, 32), 0x8a9136aau);
  memset(v, 0xff, 32);
  assert_int_equal(crc(0, v, 32), 0x62a8ab43u);
  for (int i = 0; i < 32; i++) v[i] = (uint8_t)i;
  assert_int_equal(crc(0, v, 32), 0x46dd794eu);
  for (int i = 0; i < 32; i++) v[i] = (uint8_t)(31 - i);
  assert_int_equal(crc(0, v, 32), 0x113fdb5cu);
  static const uint8_t read_command[48] = { /* an iSCSI SCSI Read (10) command PDU */
    0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0, 0, 0, 0, 0x14, 0, 0, 0, 0x18,
    0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0};
  assert_int_equal(crc(0, read_command, sizeof read_command), 0xd9963a56u);
  assert_int_equal(crc(0, "123456789", 9), 0xe3069283u);
  assert_int_equal(crc(0, NULL, 0), 0);
  assert_int_equal(crc(77, NULL, 0), 77);
}

static void check_lengths(tb_crc32c_fn *crc) {
  for (size_t n = 0; n <= 1700; n += n < 800 ? 1 : 13)
    for (size_t offset = 0; offset < 8; offset += 3)
      assert_int_equal(crc((uint32_t)n, bytes + offset, n), bit_by_bit((uint32_t)n, bytes + offset, n));
  for (size_t n = LONGEST - 20; n <= LONGEST; n++) assert_int_equal(crc(0, bytes, n), bit_by_bit(0, bytes, n));
}

static void crc32c__rfc3720_vectors(void **state) {
  (void)state;
  check_vectors(tb_crc32c);
  check_vectors(tb_crc32c_by_table());
}

static void crc32c__any_length_and_alignment(void **state) {
  (void)state;
  check_lengths(tb_crc32c);
  check_lengths(tb_crc32c_by_table());
}

static void crc32c__continues_from_a_seed(void **state) {
  (void)state;
  uint32_t whole = tb_crc32c(0, bytes, 3000);
  for (size_t cut = 0; cut <= 3000; cut += 97)
    assert_int_equal(tb_crc32c(tb_crc32c(0, bytes, cut), bytes + cut, 3000 - cut), whole);
}

static void crc32c__sees_every_flipped_bit(void **state) {
  (void)state;
  uint8_t frame[1464];
  memcpy(frame, bytes, sizeof frame);
  uint32_t good = tb_crc32c(0, frame, sizeof frame);
  for (size_t bit = 0; bit < 8 * sizeof frame; bit++) {
    frame[bit / 8] ^= (uint8_t)(1u << bit % 8);
    assert_int_not_equal(tb_crc32c(0, frame, sizeof frame), good);
    frame[bit / 8] ^= (uint8_t)(1u << bit % 8);
  }
}

static void crc32c_by_hardware__equals_table(void **state) {
  (void)state;
  tb_crc32c_fn *crc = tb_crc32c_by_hardware();
  if (!crc) skip(); /* no such instruction here */
  check_vectors(crc);
  check_lengths(crc);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(crc32c__rfc3720_vectors),       cmocka_unit_test(crc32c__any_length_and_alignment),
    cmocka_unit_test(crc32c__continues_from_a_seed), cmocka_unit_test(crc32c__sees_every_flipped_bit),
    cmocka_unit_test(crc32c_by_hardware__equals_table),
  };
  return cmocka_run_group_tests(tests, setup, NULL);
}
