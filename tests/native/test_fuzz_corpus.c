/* test_fuzz_corpus.c - replays what the fuzzer once found worth keeping (tests/native/corpus), and as many inputs again
 * from a fixed seed, so that the packet path is exercised where there is no libFuzzer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include "fuzz_packet.c"

static void corpus__every_file(void **state) {
  (void)state;
  char folder[600], path[900];
  static uint8_t data[1 << 16];
  const char *slash = strrchr(__FILE__, '/');
  snprintf(folder, sizeof folder, "%.*scorpus", slash ? (int)(slash - __FILE__ + 1) : 0, __FILE__);
  DIR *d = opendir(folder);
  if (!d) fail_msg("%s: run from the root of the repository", folder);
  int files = 0;
  for (struct dirent *e; (e = readdir(d));) {
    if (e->d_name[0] == '.') continue;
    snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(data, 1, sizeof data, f);
    fclose(f);
    LLVMFuzzerTestOneInput(data, n);
    files++;
  }
  closedir(d);
  assert_true(files >= 20);
}

static void corpus__from_a_seed(void **state) {
  (void)state;
  uint64_t s = 20260101;
  for (int run = 0; run < 1500; run++) {
    uint8_t data[2048];
    size_t n = 16 + (size_t)run % (sizeof data - 16);
    for (size_t i = 0; i < n; i++) {
      s = s * 6364136223846793005ull + 1442695040888963407ull;
      data[i] = (uint8_t)(s >> 56);
      if (run % 3 == 0 && i % 5) data[i] &= 15; /* small numbers are more often meaningful */
    }
    LLVMFuzzerTestOneInput(data, n);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(corpus__every_file),
    cmocka_unit_test(corpus__from_a_seed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
