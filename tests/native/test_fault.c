/* test_fault.c - the fault hook: grammar, rates, filters, the store of delayed frames. */
#include "engine/fault.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "protocol/wire.h"

enum { LEN = 200 };

static void make_frame(uint8_t out[LEN], uint8_t type, uint16_t source, uint32_t number) {
  memset(out, 0, LEN);
  out[3] = type;
  tb_put16(out + 24, source);
  tb_put32(out + 100, number);
}

static tb_fault *make(const char *spec, int rank) {
  tb_fault *f = NULL;
  char error[300] = "";
  if (tb_fault_parse(spec, rank, &f, error, sizeof error)) fail_msg("%s: %s", spec, error);
  return f;
}

/* How often each verdict came for n data frames from rank 1. */
static void count(tb_fault *f, int n, int verdicts[4]) {
  uint8_t frame[LEN];
  memset(verdicts, 0, 4 * sizeof *verdicts);
  for (int i = 0; i < n; i++) {
    make_frame(frame, TB_T_DATA, 1, (uint32_t)i);
    verdicts[tb_fault_rx(f, frame, LEN, -1, 0)]++;
  }
}

static void parse__grammar(void **state) {
  (void)state;
  static const char *const good[] = {"",
                                     " ",
                                     ";",
                                     "drop=0.02",
                                     "drop=2%,seed=9",
                                     "drop=0",
                                     "drop=0.02,dup=0.001,delay=2ms:0.01,reorder=0.01,corrupt=0.0001,seed=7,rank=2,"
                                     "peer=1,type=data",
                                     "drop=0.1,type=receipt; delay=200us",
                                     "dup=1,side=tx",
                                     "reorder=0.5:3ms",
                                     "drop=1,after=10,count=2,type=99"};
  static const struct {
    const char *spec, *says;
  } bad[] = {{"drop", "no value"},
             {"drop=", "probability"},
             {"drop=2", "probability"},
             {"drop=-0.1", "probability"},
             {"delay=2", "2ms"},
             {"delay=2ms:3", "2ms:0.01"},
             {"reorder=2ms", "0.01"},
             {"dorp=1", "no item 'dorp'"},
             {"drop=1,type=dta", "data"},
             {"drop=1,rank=x", "a rank"},
             {"drop=1,side=up", "rx or tx"},
             {"rank=2,seed=3", "does nothing"},
             {"delay=1ms,side=tx", "side=tx"},
             {"drop=0.1;;dup", "no value"}};
  char error[300];
  for (unsigned i = 0; i < sizeof good / sizeof *good; i++)
    if (tb_fault_check(good[i], error, sizeof error)) fail_msg("%s: %s", good[i], error);
  for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
    assert_int_equal(tb_fault_check(bad[i].spec, error, sizeof error), -EINVAL);
    if (!strstr(error, bad[i].says)) fail_msg("%s: '%s' is not in: %s", bad[i].spec, bad[i].says, error);
  }
}

static void parse__an_empty_one_passes_everything_and_can_be_changed(void **state) {
  (void)state;
  int v[4];
  char error[300], text[600];
  tb_fault *f = make(NULL, 0);
  assert_false(tb_fault_active(f));
  tb_fault_describe(f, text, sizeof text);
  assert_string_equal(text, "");
  count(f, 100, v);
  assert_int_equal(v[TB_FAULT_PASS], 100);
  assert_int_equal(tb_fault_reset(f, "drop=1", error, sizeof error), 0);
  assert_true(tb_fault_active(f));
  count(f, 100, v);
  assert_int_equal(v[TB_FAULT_DROP], 100);
  assert_int_equal(tb_fault_reset(f, "nonsense", error, sizeof error), -EINVAL); /* the old one stays */
  count(f, 100, v);
  assert_int_equal(v[TB_FAULT_DROP], 100);
  assert_int_equal(tb_fault_reset(f, "", error, sizeof error), 0);
  count(f, 100, v);
  assert_int_equal(v[TB_FAULT_PASS], 100);
  tb_fault_free(f);
}

static void rx__null_passes(void **state) {
  (void)state;
  uint8_t frame[LEN];
  uint32_t len;
  make_frame(frame, TB_T_DATA, 0, 0);
  assert_int_equal(tb_fault_rx(NULL, frame, LEN, 0, 0), TB_FAULT_PASS);
  assert_int_equal(tb_fault_tx(NULL, frame, LEN, 0), TB_FAULT_PASS);
  assert_null(tb_fault_due(NULL, 0, &len));
  assert_true(tb_fault_next(NULL) == UINT64_MAX);
  assert_false(tb_fault_active(NULL));
}

static void rx__rates_are_as_asked(void **state) {
  (void)state;
  int v[4];
  tb_fault *f = make("drop=0.02,dup=0.1,seed=5", 0);
  count(f, 100000, v);
  assert_in_range(v[TB_FAULT_DROP], 1800, 2200); /* sigma is 44 */
  assert_in_range(v[TB_FAULT_DUP], 9400, 10200); /* 0.98 * 10000, sigma 94 */
  tb_fault_free(f);
}

static void rx__same_seed_same_faults_other_rank_other_faults(void **state) {
  (void)state;
  uint8_t frame[LEN];
  tb_fault *a = make("drop=0.5,seed=3", 1), *b = make("drop=0.5,seed=3", 1), *c = make("drop=0.5,seed=3", 2);
  int differ = 0;
  make_frame(frame, TB_T_DATA, 0, 0);
  for (int i = 0; i < 1000; i++) {
    tb_fault_verdict va = tb_fault_rx(a, frame, LEN, 0, 0);
    assert_int_equal(va, tb_fault_rx(b, frame, LEN, 0, 0));
    differ += va != tb_fault_rx(c, frame, LEN, 0, 0);
  }
  assert_in_range(differ, 400, 600);
  tb_fault_free(a);
  tb_fault_free(b);
  tb_fault_free(c);
}

static void rx__filters_by_rank_peer_and_type(void **state) {
  (void)state;
  uint8_t data1[LEN], data2[LEN], open1[LEN];
  make_frame(data1, TB_T_DATA, 1, 0);
  make_frame(data2, TB_T_DATA, 2, 0);
  make_frame(open1, TB_T_OPEN, 1, 0);
  tb_fault *elsewhere = make("drop=1,rank=2", 0), *here = make("drop=1,rank=2,peer=1,type=data", 2);
  assert_false(tb_fault_active(elsewhere));
  assert_int_equal(tb_fault_rx(elsewhere, data1, LEN, -1, 0), TB_FAULT_PASS);
  assert_int_equal(tb_fault_rx(here, data1, LEN, -1, 0), TB_FAULT_DROP);
  assert_int_equal(tb_fault_rx(here, data2, LEN, -1, 0), TB_FAULT_PASS);
  assert_int_equal(tb_fault_rx(here, data2, LEN, 1, 0), TB_FAULT_DROP); /* the caller knows the source better */
  assert_int_equal(tb_fault_rx(here, open1, LEN, -1, 0), TB_FAULT_PASS);
  assert_int_equal(tb_fault_rx(here, data1, 3, -1, 0), TB_FAULT_PASS); /* too short to have a type or a source */
  tb_fault_free(elsewhere);
  tb_fault_free(here);
}

static void rx__after_and_count_choose_exact_frames(void **state) {
  (void)state;
  uint8_t frame[LEN];
  tb_fault *f = make("drop=1,after=3,count=2,type=data", 0);
  make_frame(frame, TB_T_DATA, 1, 0);
  for (int i = 0; i < 10; i++)
    assert_int_equal(tb_fault_rx(f, frame, LEN, -1, 0), i == 3 || i == 4 ? TB_FAULT_DROP : TB_FAULT_PASS);
  tb_fault_free(f);
}

static void rx__clauses_act_in_order(void **state) {
  (void)state;
  uint8_t data[LEN], probe[LEN];
  tb_fault *f = make("drop=1,type=data;dup=1", 0);
  make_frame(data, TB_T_DATA, 1, 0);
  make_frame(probe, TB_T_PROBE, 1, 0);
  assert_int_equal(tb_fault_rx(f, data, LEN, -1, 0), TB_FAULT_DROP);
  assert_int_equal(tb_fault_rx(f, probe, LEN, -1, 0), TB_FAULT_DUP);
  tb_fault_free(f);
}

static void tx__acts_on_what_is_sent_only(void **state) {
  (void)state;
  uint8_t frame[LEN];
  tb_fault *f = make("drop=1,side=tx,peer=3", 0);
  make_frame(frame, TB_T_DATA, 0, 0);
  assert_int_equal(tb_fault_tx(f, frame, TB_HEAD, 3), TB_FAULT_DROP);
  assert_int_equal(tb_fault_tx(f, frame, TB_HEAD, 2), TB_FAULT_PASS);
  assert_int_equal(tb_fault_rx(f, frame, LEN, 3, 0), TB_FAULT_PASS);
  tb_fault_free(f);
}

static void due__delayed_frames_come_whole_and_on_time(void **state) {
  (void)state;
  uint8_t frame[LEN];
  uint32_t len = 0;
  tb_fault *f = make("delay=2ms", 0);
  for (uint32_t i = 0; i < 3; i++) {
    make_frame(frame, TB_T_DATA, 1, i);
    assert_int_equal(tb_fault_rx(f, frame, LEN - i, -1, 1000 + i), TB_FAULT_DELAYED);
  }
  assert_int_equal(tb_fault_next(f), 2001000);
  assert_null(tb_fault_due(f, 2000999, &len));
  for (uint32_t i = 0; i < 3; i++) {
    const uint8_t *out = tb_fault_due(f, 2001002, &len);
    assert_non_null(out);
    make_frame(frame, TB_T_DATA, 1, i);
    assert_int_equal(len, LEN - i);
    assert_memory_equal(out, frame, len);
  }
  assert_null(tb_fault_due(f, UINT64_MAX, &len));
  assert_true(tb_fault_next(f) == UINT64_MAX);
  tb_fault_free(f);
}

static void due__random_times_come_sorted_and_stable(void **state) {
  (void)state;
  uint8_t frame[LEN];
  uint32_t len, got = 0, last_number = 0;
  uint64_t seed = 12345, last_due = 0, due[500];
  print_message("seed %llu\n", (unsigned long long)seed);
  tb_fault *f = make("delay=1ms", 0);
  for (uint32_t i = 0; i < 500; i++) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    due[i] = (seed >> 33) % 50; /* many ties */
    make_frame(frame, TB_T_DATA, 1, i);
    assert_int_equal(tb_fault_rx(f, frame, LEN, -1, due[i]), TB_FAULT_DELAYED);
  }
  for (const uint8_t *out; (out = tb_fault_due(f, UINT64_MAX - 1, &len)); got++) {
    uint32_t number = tb_get32(out + 100);
    assert_true(due[number] > last_due || (due[number] == last_due && (number > last_number || got == 0)));
    last_due = due[number];
    last_number = number;
  }
  assert_int_equal(got, 500);
  tb_fault_free(f);
}

static void rx__reordered_frames_are_overtaken(void **state) {
  (void)state;
  uint8_t frame[LEN];
  uint32_t len;
  tb_fault *f = make("reorder=1:10us,count=1", 0);
  make_frame(frame, TB_T_DATA, 1, 0);
  assert_int_equal(tb_fault_rx(f, frame, LEN, -1, 0), TB_FAULT_DELAYED);
  assert_int_equal(tb_fault_rx(f, frame, LEN, -1, 5000), TB_FAULT_PASS);
  assert_non_null(tb_fault_due(f, 10000, &len));
  tb_fault_free(f);
}

static void rx__corruption_flips_one_bit_of_a_copy(void **state) {
  (void)state;
  uint8_t frame[LEN], original[LEN];
  uint32_t len;
  int flipped = 0;
  tb_fault *f = make("corrupt=1", 0);
  make_frame(frame, TB_T_DATA, 1, 7);
  memcpy(original, frame, LEN);
  assert_int_equal(tb_fault_rx(f, frame, LEN, -1, 50), TB_FAULT_DELAYED);
  assert_memory_equal(frame, original, LEN);
  const uint8_t *out = tb_fault_due(f, 50, &len);
  assert_non_null(out);
  assert_int_equal(len, LEN);
  for (int i = 0; i < LEN; i++) flipped += __builtin_popcount(out[i] ^ original[i]);
  assert_int_equal(flipped, 1);
  tb_fault_free(f);
}

static void rx__a_full_store_passes(void **state) {
  (void)state;
  uint8_t frame[LEN], *giant = calloc(1, 70000);
  uint32_t len, came = 0;
  int v[4];
  tb_fault *f = make("delay=1s", 0);
  count(f, 3000, v);
  assert_int_equal(v[TB_FAULT_DELAYED] + v[TB_FAULT_PASS], 3000);
  assert_true(v[TB_FAULT_PASS] > 0);
  while (tb_fault_due(f, 1000000000, &len)) came++;
  assert_int_equal(came, v[TB_FAULT_DELAYED]);
  make_frame(frame, TB_T_DATA, 1, 0);
  assert_int_equal(tb_fault_rx(f, frame, LEN, -1, 0), TB_FAULT_DELAYED); /* room again */
  assert_int_equal(tb_fault_rx(f, giant, 70000, -1, 0), TB_FAULT_PASS);  /* larger than any frame */
  free(giant);
  tb_fault_free(f);
}

static void reset__what_is_delayed_still_comes(void **state) {
  (void)state;
  uint8_t frame[LEN];
  uint32_t len;
  char error[300];
  tb_fault *f = make("delay=1ms", 0);
  make_frame(frame, TB_T_DATA, 1, 42);
  assert_int_equal(tb_fault_rx(f, frame, LEN, -1, 0), TB_FAULT_DELAYED);
  assert_int_equal(tb_fault_reset(f, "", error, sizeof error), 0);
  assert_true(tb_fault_active(f));
  const uint8_t *out = tb_fault_due(f, 1000000, &len);
  assert_non_null(out);
  assert_memory_equal(out, frame, LEN);
  assert_false(tb_fault_active(f));
  tb_fault_free(f);
}

static void describe__says_what_acts_here(void **state) {
  (void)state;
  char text[600], tiny[16];
  tb_fault *f = make("drop=0.02,type=data,peer=1;delay=2ms:0.5,seed=9;drop=1,rank=7", 2);
  tb_fault_describe(f, text, sizeof text);
  assert_string_equal(text,
                      "fault injection is on for rank 2: drop 2% of the data frames received from rank 1 (seed 1);"
                      " delay 50% by 2ms of all frames received (seed 9)");
  tb_fault_describe(f, tiny, sizeof tiny);
  assert_int_equal(strlen(tiny), sizeof tiny - 1);
  tb_fault_free(f);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(parse__grammar),
      cmocka_unit_test(parse__an_empty_one_passes_everything_and_can_be_changed),
      cmocka_unit_test(rx__null_passes),
      cmocka_unit_test(rx__rates_are_as_asked),
      cmocka_unit_test(rx__same_seed_same_faults_other_rank_other_faults),
      cmocka_unit_test(rx__filters_by_rank_peer_and_type),
      cmocka_unit_test(rx__after_and_count_choose_exact_frames),
      cmocka_unit_test(rx__clauses_act_in_order),
      cmocka_unit_test(tx__acts_on_what_is_sent_only),
      cmocka_unit_test(due__delayed_frames_come_whole_and_on_time),
      cmocka_unit_test(due__random_times_come_sorted_and_stable),
      cmocka_unit_test(rx__reordered_frames_are_overtaken),
      cmocka_unit_test(rx__corruption_flips_one_bit_of_a_copy),
      cmocka_unit_test(rx__a_full_store_passes),
      cmocka_unit_test(reset__what_is_delayed_still_comes),
      cmocka_unit_test(describe__says_what_acts_here),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
