/* test_ref.c - payloads that the device reads from where they lie: right bytes however memory comes and goes, nothing kept,
 * and an end to the reading when it is asked for. Devices as for test_device.c. */
#include "device.h"
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, BIG = 1 << 20, PIECE = 3000 };
static tb_link *a, *b;

static int make_two(void **state) {
  (void)state;
  a = open_at("rxe0");
  b = open_at("rxe1");
  introduce(a, 1, b);
  assert_int_equal(OPS->caps(a)->ref, TB_REF_PROMPT); /* this kernel's forks are harmless */
  return 0;
}

static int close_two(void **state) {
  (void)state;
  OPS->close(a);
  OPS->close(b);
  return 0;
}

static uint32_t registered(const void *at, size_t len) {
  uint32_t region;
  assert_int_equal(OPS->mem_reg(a, at, len, &region), 0);
  return region;
}

static int send_ref(uint32_t region, const void *at, uint32_t len) {
  tb_tx t = frame_to(1, "ref:", 4, at, len);
  t.ref = true;
  t.region = region;
  return OPS->tx_burst(a, 0, &t, 1);
}

static void expect_bytes(uint8_t value, uint32_t len) {
  uint8_t got[4096];
  assert_int_equal(receive_one(b, got, 3000 * MS), len + 4);
  for (uint32_t i = 0; i < len; i++)
    if (got[4 + i] != value) fail_msg("byte %u is %u instead of %u", i, got[4 + i], value);
}

static void settle_refs(void) { assert_int_equal(OPS->tx_quiesce(a, 0, verbs_now() + 3000 * MS), 0); }

static uint32_t registrations(void) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < VERBS_MRS_MAX; i++) n += verbs_of(a)->mrs[i].mr != NULL;
  return n;
}

static uint8_t *map(void *at, size_t bytes, uint8_t value) {
  uint8_t *p = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
  assert_ptr_not_equal(p, MAP_FAILED);
  memset(p, value, bytes);
  return p;
}

static void ref__is_read_from_where_it_lies(void **state) {
  (void)state;
  uint8_t *p = map(NULL, BIG, 7);
  uint32_t region = registered(p, BIG);
  assert_int_equal(registrations(), 1);
  for (int i = 0; i < 20; i++) {
    assert_int_equal(send_ref(region, p + i * 40001, PIECE), 1);
    expect_bytes(7, PIECE);
  }
  assert_int_equal(atomic_load(&verbs_of(a)->n.tx_copied), 0);
  settle_refs();
  assert_int_equal(OPS->mem_unreg(a, region), 0);
  assert_int_equal(registrations(), 0);
  munmap(p, BIG);
}

static void ref__to_memory_that_can_only_be_read(void **state) {
  (void)state;
  uint8_t *p = map(NULL, BIG, 9);
  assert_int_equal(mprotect(p, BIG, PROT_READ), 0);
  uint32_t region = registered(p, BIG);
  assert_int_equal(send_ref(region, p, PIECE), 1);
  expect_bytes(9, PIECE);
  settle_refs();
  assert_int_equal(OPS->mem_unreg(a, region), 0);
  munmap(p, BIG);
}

/* Regions within one share its registration; what comes after it is gone does not: part of its pages may be others'. */
static void region__shares_only_what_is_still_held(void **state) {
  (void)state;
  uint8_t *p = map(NULL, BIG, 1), *tail = p + BIG - 8 * PAGE;
  uint32_t whole = registered(p, BIG), part = registered(tail, 8 * PAGE);
  assert_int_equal(registrations(), 1);
  assert_int_equal(OPS->mem_unreg(a, whole), 0);
  assert_int_equal(registrations(), 1);
  munmap(p, BIG / 2);
  map(p, BIG / 2, 2);
  uint32_t again = registered(p, BIG);
  assert_int_equal(registrations(), 2);
  assert_int_equal(send_ref(again, p + PAGE, PIECE), 1);
  expect_bytes(2, PIECE);
  assert_int_equal(send_ref(part, tail, PIECE), 1);
  expect_bytes(1, PIECE);
  settle_refs();
  assert_int_equal(OPS->mem_unreg(a, part), 0);
  assert_int_equal(OPS->mem_unreg(a, again), 0);
  assert_int_equal(registrations(), 0);
  munmap(p, BIG);
}

/* As arrays come and go: at addresses that were others' a moment ago. */
static void region__two_thousand_of_churned_memory(void **state) {
  (void)state;
  enum { TURNS = 2000, CHECKED = 50 }; /* thirty times the table */
  uint64_t before = pinned(), regs = atomic_load(&verbs_of(a)->n.regs);
  uint32_t seed = 12345, reused = 0;
  uintptr_t last = 0;
  for (int i = 0; i < TURNS; i++) {
    seed = seed * 1664525 + 1013904223;
    size_t bytes = (1 + (seed >> 16) % 8) * PAGE;
    uint8_t *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(p, MAP_FAILED);
    reused += (uintptr_t)p == last;
    last = (uintptr_t)p;
    memset(p, i, PIECE);
    uint32_t region = registered(p, bytes);
    if (i % CHECKED == 0) {
      assert_int_equal(send_ref(region, p, PIECE), 1);
      expect_bytes((uint8_t)i, PIECE);
      settle_refs();
    }
    assert_int_equal(OPS->mem_unreg(a, region), 0);
    munmap(p, bytes);
  }
  assert_true(reused > TURNS / 20); /* else this shows nothing */
  assert_int_equal(atomic_load(&verbs_of(a)->n.regs) - regs, TURNS);
  assert_int_equal(registrations(), 0);
  assert_int_equal(pinned(), before);
  print_message("%d registrations, %u of them where the last one was\n", TURNS, reused);
}

static void region__beyond_the_table_is_copied(void **state) {
  (void)state;
  uint32_t region[VERBS_MRS_MAX + 1];
  uint8_t *p = map(NULL, (VERBS_MRS_MAX + 1) * 2 * PAGE, 3);
  for (uint32_t i = 0; i <= VERBS_MRS_MAX; i++) region[i] = registered(p + i * 2 * PAGE, 2 * PAGE);
  assert_int_equal(registrations(), VERBS_MRS_MAX);
  assert_int_equal(send_ref(region[VERBS_MRS_MAX], p + VERBS_MRS_MAX * 2 * PAGE, PIECE), 1);
  expect_bytes(3, PIECE);
  assert_int_equal(atomic_load(&verbs_of(a)->n.tx_copied), PIECE);
  settle_refs();
  for (uint32_t i = 0; i <= VERBS_MRS_MAX; i++) assert_int_equal(OPS->mem_unreg(a, region[i]), 0);
  munmap(p, (VERBS_MRS_MAX + 1) * 2 * PAGE);
}

/* After it the bytes may change: either they left before, or they never will. */
static void abort__ends_all_reading(void **state) {
  (void)state;
  enum { FRAMES = 200 };
  uint8_t *p = map(NULL, BIG, 5), got[4096];
  uint32_t region = registered(p, BIG), sent = 0, came = 0;
  uint64_t took = 0;
  while (sent < FRAMES && send_ref(region, p + sent * 4096 % (BIG / 2), PIECE) == 1) sent++;
  assert_int_equal(OPS->tx_abort(a, 0, &took), 0);
  memset(p, 6, BIG);
  assert_int_equal(OPS->tx_reap(a, 0), sent);
  assert_int_equal(OPS->mem_unreg(a, region), 0);
  while (receive_one(b, got, 100 * MS)) {
    came++;
    for (uint32_t i = 4; i < PIECE + 4; i++)
      if (got[i] != 5) fail_msg("a frame left with bytes of after the end");
  }
  print_message("%u of %u had left when the reading ended, which took %.3f ms\n", came, sent, (double)took * 1e-6);
  assert_int_equal(send_text(a, 1, "on"), 1);
  expect_text(b, "on");
  munmap(p, BIG);
}

/* A child that writes gets copies of its own; the device goes on reading the parent's pages. */
static void fork__moves_no_page(void **state) {
  (void)state;
  uint8_t *p = map(NULL, BIG, 4);
  uint32_t region = registered(p, BIG);
  int ready[2], go[2], status;
  char c = 0;
  assert_int_equal(pipe(ready) | pipe(go), 0);
  pid_t child = fork();
  if (!child) {
    memset(p, 99, BIG);
    if (write(ready[1], &c, 1) != 1 || read(go[0], &c, 1) != 1) _exit(1);
    _exit(0);
  }
  assert_int_equal(read(ready[0], &c, 1), 1);
  memset(p, 8, BIG); /* the parent's first write after the fork: here old kernels gave it other pages */
  assert_int_equal(send_ref(region, p + PAGE, PIECE), 1);
  expect_bytes(8, PIECE);
  assert_int_equal(write(go[1], &c, 1), 1);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  settle_refs();
  assert_int_equal(OPS->mem_unreg(a, region), 0);
  for (int i = 0; i < 2; i++) close(ready[i]), close(go[i]);
  munmap(p, BIG);
}

#define TWO(name) cmocka_unit_test_setup_teardown(name, make_two, close_two)
int main(void) {
  const struct CMUnitTest tests[] = {
      TWO(ref__is_read_from_where_it_lies),
      TWO(ref__to_memory_that_can_only_be_read),
      TWO(region__shares_only_what_is_still_held),
      TWO(region__two_thousand_of_churned_memory),
      TWO(region__beyond_the_table_is_copied),
      TWO(abort__ends_all_reading),
      TWO(fork__moves_no_page),
  };
  return cmocka_run_group_tests_name("verbs ref", tests, NULL, NULL);
}
