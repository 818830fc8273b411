/* Tests of links/registry.c: where plugins are looked for. What happens to those found: tests/transport/test_plugins.py. */
#include "links/registry.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/wait.h>
#include <cmocka.h>

/* This program's answer when it is called as `name`. */
static void folders_called(const char *name, char *out, size_t n) {
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  pid_t pid = fork();
  if (!pid) {
    dup2(ends[1], 1);
    execl("/proc/self/exe", name, "folders", (char *)NULL);
    _exit(1);
  }
  close(ends[1]);
  FILE *from = fdopen(ends[0], "r");
  size_t got = fread(out, 1, n - 1, from);
  out[got] = 0;
  fclose(from);
  assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* However the program was called: never the working folder, which may be anybody's. */
static void folders__are_beside_the_program_however_it_is_called(void **state) {
  (void)state;
  char here[4096], said[4096], want[4200];
  ssize_t len = readlink("/proc/self/exe", here, sizeof here - 1);
  assert_true(len > 0);
  here[len] = 0;
  *strrchr(here, '/') = 0;
  snprintf(want, sizeof want, "%s/plugins:", here);
  assert_int_equal(setenv("XDG_DATA_HOME", "/data", 1), 0);
  folders_called("bare", said, sizeof said);
  assert_memory_equal(said, want, strlen(want));
  for (char *rest = said, *one; (one = strsep(&rest, ":"));) assert_int_equal(*one, '/');
}

int main(int argc, char **argv) {
  if (argc == 2 && !strcmp(argv[1], "folders")) {
    char out[4096];
    tb_plugin_folders(out, sizeof out);
    fputs(out, stdout);
    return 0;
  }
  const struct CMUnitTest tests[] = {cmocka_unit_test(folders__are_beside_the_program_however_it_is_called)};
  return cmocka_run_group_tests_name("registry", tests, NULL, NULL);
}
