/* Tests of links/registry.c: where plugins are looked for. What happens to those found: tests/transport/test_plugins.py. */
#include "engine/config.h"
#include "links/registry.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

/* What this program, in that file, says of `what` when it is called as `name`; uid: by that user, 0 = by us. */
static void ask(const char *file, const char *name, const char *what, uid_t uid, char *out, size_t n) {
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  pid_t pid = fork();
  if (!pid) {
    dup2(ends[1], 1);
    if (uid && (setgid(uid) || setuid(uid))) _exit(1);
    execl(file, name, what, (char *)NULL);
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
  ask("/proc/self/exe", "bare", "folders", 0, said, sizeof said);
  assert_memory_equal(said, want, strlen(want));
  for (char *rest = said, *one; (one = strsep(&rest, ":"));) assert_int_equal(*one, '/');
}

static void set_hostile_environment(void) {
  assert_int_equal(setenv("XDG_DATA_HOME", "/hostile", 1), 0);
  assert_int_equal(setenv("HOME", "/hostile", 1), 0);
  assert_int_equal(setenv("TAILBOUND_PLUGINS", "/hostile", 1), 0);
  assert_int_equal(setenv("TAILBOUND_EAL_ARGS", "-d/hostile", 1), 0);
  assert_int_equal(setenv("TAILBOUND_IP", "10.0.0.5/24", 1), 0);
  assert_int_equal(setenv("ASAN_OPTIONS", "detect_leaks=0", 1), 0); /* that needs ptrace, which such a program refuses */
}

/* A program that gained rights at its start loads nothing that its caller's environment chose. */
static void environment__chooses_no_code_for_a_program_with_more_rights(void **state) {
  (void)state;
  char dir[] = "/tmp/tb_rights_XXXXXX", file[64], line[256], said[4096];
  if (geteuid()) {
    print_message("not run: only root can make a program that gains rights\n");
    skip();
  }
  assert_non_null(mkdtemp(dir));
  snprintf(file, sizeof file, "%s/program", dir);
  snprintf(line, sizeof line, "chmod 755 %s && cp /proc/%d/exe %s && chmod 4755 %s", dir, (int)getpid(), file, file);
  assert_int_equal(system(line), 0);
  set_hostile_environment();
  ask(file, file, "folders", 65534, said, sizeof said);
  assert_non_null(strstr(said, "/plugins"));
  assert_null(strstr(said, "/hostile"));
  ask(file, file, "options", 65534, said, sizeof said);
  assert_string_equal(said, "plugins= eal_args= ip=10.0.0.5/24");
  snprintf(line, sizeof line, "chmod 755 %s", file);
  assert_int_equal(system(line), 0);
  ask(file, file, "options", 65534, said, sizeof said); /* one that gained none: they count */
  assert_string_equal(said, "plugins=/hostile eal_args=-d/hostile ip=10.0.0.5/24");
  snprintf(line, sizeof line, "rm -r %s", dir);
  assert_int_equal(system(line), 0);
}

static int tell_folders(void) {
  char out[4096];
  tb_plugin_folders(out, sizeof out);
  return fputs(out, stdout) < 0;
}

static int tell_options(void) {
  tb_config *cfg;
  if (tb_config_new(&cfg)) return 1;
  printf("plugins=%s eal_args=%s ip=%s", tb_config_str(cfg, "plugins"), tb_config_str(cfg, "eal_args"),
         tb_config_str(cfg, "ip"));
  tb_config_free(cfg);
  return 0;
}

int main(int argc, char **argv) {
  if (argc == 2 && !strcmp(argv[1], "folders")) return tell_folders();
  if (argc == 2 && !strcmp(argv[1], "options")) return tell_options();
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(folders__are_beside_the_program_however_it_is_called),
      cmocka_unit_test(environment__chooses_no_code_for_a_program_with_more_rights),
  };
  return cmocka_run_group_tests_name("registry", tests, NULL, NULL);
}
