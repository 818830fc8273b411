/* test_signature.c - the words for two calls that differ: never the same words, whatever differs. */
#include <errno.h>
#include "core_round.h"

static const tb_signature LONGEST = {.kind = TB_REDUCE_SCATTER, .redop = TB_PROD, .dtype = TB_BF16, .wire_dtype = TB_BF16,
                                     .chunk_elems = 1, .count = UINT64_MAX};

static void each_field_alone_is_told_first(void **state) {
  (void)state;
  tb_signature base = {.kind = TB_ALL_REDUCE, .dtype = TB_F32, .wire_dtype = TB_F32, .chunk_elems = 360, .count = 1000,
                       .consistency = TB_AGREE, .tag = 500000};
  tb_signature s[12];
  for (int i = 0; i < 12; i++) s[i] = base;
  s[0].count = 1001;
  s[1].dtype = s[1].wire_dtype = TB_F64;
  s[2].redop = TB_AVG;
  s[3].exact = 1;
  s[4].consistency = TB_LOCAL, s[4].tag = 0;
  s[5].tag = 900000;
  s[6].missing = TB_CARRY;
  s[7].wire_dtype = TB_I8;
  s[8].hadamard = 12;
  s[9].root = 1;
  s[10].chunk_elems = 100;
  s[11].groups = 4 << 16 | 0xab;
  static const char *const words[12][2] = {
    {"(count=1000 ", "(count=1001 "}, {"(dtype=float32 ", "(dtype=float64 "}, {"(op=sum ", "(op=avg "},
    {"(class=lossy ", "(class=exact "}, {"(consistency=agree ", "(consistency=local "},
    {"(min_received=0.5 ", "(min_received=0.9 "}, {"(missing=renormalise ", "(missing=carry "},
    {"(wire=none ", "(wire=int8 "}, {"(hadamard=off ", "(hadamard=2^12 "}, {"(root=0 ", "(root=1 "},
    {"(chunk=360 ", "(chunk=100 "}, {"(groups=off ", "(groups=of 4 (#00ab) "}};
  for (int i = 0; i < 12; i++) {
    char a[TB_SIGNATURE_TEXT], b[TB_SIGNATURE_TEXT];
    tb_signatures_text(&base, &s[i], a, b, 160);
    if (!strstr(a, words[i][0]) || !strstr(b, words[i][1])) fail_msg("%d: %s, %s", i, a, b);
    assert_true(strlen(a) + strlen(b) <= 160 && a[strlen(a) - 1] == ')' && b[strlen(b) - 1] == ')');
    if (i < 9) assert_null(strstr(a, "root")); /* nobody sets these */
    if (i != 10) assert_null(strstr(a, "chunk"));
  }
}

static void the_least_room_holds_what_differs(void **state) {
  (void)state;
  char a[TB_SIGNATURE_TEXT], b[TB_SIGNATURE_TEXT];
  tb_signature other = LONGEST;
  other.count--;
  tb_signatures_text(&LONGEST, &other, a, b, 88);
  assert_non_null(strstr(a, "count=18446744073709551615)"));
  assert_non_null(strstr(b, "count=18446744073709551614)"));
}

/* As a caller sees it: agree against local, and two thresholds, under the longest key. */
static void mismatch__names_key_and_difference(void **state) {
  (void)state;
  for (int thresholds = 0; thresholds < 2; thresholds++) {
    cp *net = cp_plain(2);
    static cp_work w[2];
    static float x[2][COUNT];
    char key[TB_KEY_MAX + 1];
    memset(key, 'k', TB_KEY_MAX);
    key[TB_KEY_MAX] = 0;
    for (uint16_t r = 0; r < 2; r++) {
      cp_fill(x[r], COUNT, 1, 1);
      tb_call call = cp_call(key, x[r], x[r], COUNT, TB_SEC);
      call.consistency = thresholds || !r ? TB_AGREE : TB_LOCAL;
      if (thresholds && r) call.min_received = 0.75;
      assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
    }
    cp_wait_all(net, w, 2);
    for (uint16_t r = 0; r < 2; r++) {
      assert_int_equal(w[r].o.result.status, -EPROTO);
      assert_non_null(strstr(w[r].o.error, "key 'kkkk"));
      assert_non_null(strstr(w[r].o.error, thresholds ? "(min_received=0.5" : "(consistency=agree"));
      assert_non_null(strstr(w[r].o.error, thresholds ? "(min_received=0.75" : "(consistency=local"));
      assert_non_null(strstr(w[r].o.error, "forget(key) on every rank frees the key"));
    }
    cp_work_free(w, 2);
    cp_free(net);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(each_field_alone_is_told_first),
    cmocka_unit_test(the_least_room_holds_what_differs),
    cmocka_unit_test(mismatch__names_key_and_difference),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
