/* test_config.c - the table of options: environment, launchers, precedence, values, errors. */
#include "engine/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/config_parse.h"
#include "engine/config_table.h"

static int clean(void **state) {
  (void)state;
  return clearenv();
}

static tb_config *fresh(void) {
  tb_config *cfg = NULL;
  if (tb_config_new(&cfg)) fail_msg("tb_config_new: %s", tb_last_error());
  return cfg;
}

static const char *source_of(const tb_config *cfg, const char *wanted) {
  const char *name, *source;
  for (uint32_t i = 0; tb_config_row(cfg, i, &name, NULL, NULL, &source, NULL, NULL) == 0; i++)
    if (strcmp(name, wanted) == 0) return source;
  return NULL;
}

/* A new configuration must fail, and the sentence must hold all the words. */
static void refused(const char *const *words) {
  tb_config *cfg = NULL;
  assert_int_equal(tb_config_new(&cfg), -EINVAL);
  for (; *words; words++)
    if (!strstr(tb_last_error(), *words)) fail_msg("'%s' is not in: %s", *words, tb_last_error());
}
#define REFUSED(...) refused((const char *const[]){__VA_ARGS__, NULL})

static void new__defaults_are_those_of_the_tables(void **state) {
  (void)state;
  tb_config *cfg = fresh();
  tb_tunables wanted;
  tb_tunables_default(&wanted);
  assert_memory_equal(tb_config_tunables(cfg), &wanted, sizeof wanted);
  assert_string_equal(tb_config_str(cfg, "peer_timeout"), "10s");
  uint64_t cap;
  assert_int_equal(tb_parse_size(tb_config_str(cfg, "early_cap"), &cap), 0);
  assert_true(cap == wanted.early_cap);
  assert_string_equal(tb_config_str(cfg, "rto_min"), "1ms");
  assert_int_equal(tb_config_u64(cfg, "rank"), 0);
  assert_int_equal(tb_config_u64(cfg, "size"), 1);
  assert_string_equal(tb_config_str(cfg, "link"), "auto");
  assert_int_equal(tb_config_u64(cfg, "deadline"), 0);
  assert_int_equal(tb_config_u64(cfg, "init_timeout"), 60000000000ull);
  assert_true(tb_config_share(cfg, "min_received") == 0.5);
  assert_string_equal(source_of(cfg, "size"), "default");
  assert_int_equal(tb_config_check(cfg), 0);
  tb_config_free(cfg);
}

static void row__every_option_is_complete_and_named_once(void **state) {
  (void)state;
  tb_config *cfg = fresh();
  const char *name, *env, *value, *source, *unit, *why;
  uint32_t n = 0;
  while (tb_config_row(cfg, n, &name, &env, &value, &source, &unit, &why) == 0) {
    assert_true(strncmp(env, "TAILBOUND_", 10) == 0);
    assert_true(*unit && *why);
    assert_string_equal(tb_config_get(cfg, name), value);
    assert_int_equal(tb_option_find(name), n);            /* a second row of that name would be found first */
    assert_int_equal(tb_config_set(cfg, name, value), 0); /* a default is a value that can be given */
    n++;
  }
  assert_int_equal(n, tb_option_count);
  tb_config_free(cfg);
}

static void env__own_variable_wins_over_launchers(void **state) {
  (void)state;
  setenv("SLURM_PROCID", "5", 1);
  setenv("OMPI_COMM_WORLD_RANK", "4", 1);
  tb_config *cfg = fresh();
  assert_int_equal(tb_config_u64(cfg, "rank"), 4);
  assert_string_equal(source_of(cfg, "rank"), "env OMPI_COMM_WORLD_RANK");
  tb_config_free(cfg);
  setenv("RANK", "3", 1);
  cfg = fresh();
  assert_int_equal(tb_config_u64(cfg, "rank"), 3);
  tb_config_free(cfg);
  setenv("TAILBOUND_RANK", "2", 1);
  cfg = fresh();
  assert_int_equal(tb_config_u64(cfg, "rank"), 2);
  assert_string_equal(source_of(cfg, "rank"), "env TAILBOUND_RANK");
  assert_int_equal(tb_config_set(cfg, "rank", "1"), 0);
  assert_int_equal(tb_config_u64(cfg, "rank"), 1);
  assert_string_equal(source_of(cfg, "rank"), "set");
  tb_config_free(cfg);
}

static void env__empty_counts_as_unset(void **state) {
  (void)state;
  setenv("TAILBOUND_RANK", "", 1);
  setenv("RANK", "", 1);
  setenv("SLURM_PROCID", "6", 1);
  tb_config *cfg = fresh();
  assert_int_equal(tb_config_u64(cfg, "rank"), 6);
  tb_config_free(cfg);
}

static void env__torchrun(void **state) {
  (void)state;
  setenv("RANK", "3", 1);
  setenv("WORLD_SIZE", "8", 1);
  setenv("LOCAL_RANK", "1", 1);
  setenv("LOCAL_WORLD_SIZE", "2", 1);
  setenv("MASTER_ADDR", "node7", 1);
  setenv("MASTER_PORT", "29500", 1);
  setenv("TORCHELASTIC_RUN_ID", "abc", 1);
  setenv("TORCHELASTIC_RESTART_COUNT", "2", 1);
  setenv("SLURM_NTASKS", "99", 1); /* a job that runs torchrun itself */
  setenv("SLURM_JOB_ID", "7", 1);
  setenv("SLURM_STEP_NODELIST", "other[1-4]", 1);
  tb_config *cfg = fresh();
  char job[300];
  assert_int_equal(tb_config_u64(cfg, "rank"), 3);
  assert_int_equal(tb_config_u64(cfg, "size"), 8);
  assert_int_equal(tb_config_u64(cfg, "local_rank"), 1);
  assert_int_equal(tb_config_u64(cfg, "local_size"), 2);
  assert_string_equal(tb_config_str(cfg, "master_addr"), "node7");
  assert_int_equal(tb_config_u64(cfg, "master_port"), 29501); /* torch's store has 29500 */
  assert_string_equal(source_of(cfg, "master_port"), "env MASTER_PORT");
  tb_config_job(cfg, job, sizeof job);
  assert_string_equal(job, "abc#2");
  assert_int_equal(tb_config_check(cfg), 0);
  tb_config_free(cfg);
  setenv("TAILBOUND_MASTER_PORT", "29500", 1); /* exact */
  cfg = fresh();
  assert_int_equal(tb_config_u64(cfg, "master_port"), 29500);
  tb_config_free(cfg);
}

static void env__slurm(void **state) {
  (void)state;
  setenv("SLURM_PROCID", "5", 1);
  setenv("SLURM_NTASKS", "7", 1);
  setenv("SLURM_LOCALID", "1", 1);
  setenv("SLURM_NODEID", "2", 1);
  setenv("SLURM_STEP_TASKS_PER_NODE", "2(x3),1", 1);
  setenv("SLURM_STEP_NODELIST", "node[001-004,7],x", 1);
  setenv("SLURM_JOB_ID", "123456", 1);
  setenv("SLURM_STEP_ID", "3", 1);
  tb_config *cfg = fresh();
  assert_int_equal(tb_config_u64(cfg, "rank"), 5);
  assert_int_equal(tb_config_u64(cfg, "size"), 7);
  assert_int_equal(tb_config_u64(cfg, "local_rank"), 1);
  assert_int_equal(tb_config_u64(cfg, "local_size"), 2);
  assert_string_equal(tb_config_str(cfg, "master_addr"), "node001");
  assert_int_equal(tb_config_u64(cfg, "master_port"), 23456);
  assert_string_equal(tb_config_str(cfg, "job"), "123456.3");
  assert_int_equal(tb_config_check(cfg), 0);
  tb_config_free(cfg);
}

static void env__open_mpi(void **state) {
  (void)state;
  setenv("OMPI_COMM_WORLD_RANK", "1", 1);
  setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
  setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1", 1);
  setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "4", 1);
  setenv("PMIX_NAMESPACE", "4711", 1);
  tb_config *cfg = fresh();
  assert_int_equal(tb_config_u64(cfg, "size"), 4);
  assert_string_equal(tb_config_str(cfg, "job"), "4711");
  assert_string_equal(tb_config_str(cfg, "master_addr"), "127.0.0.1"); /* all ranks are here */
  assert_int_equal(tb_config_check(cfg), 0);
  tb_config_free(cfg);
  setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2", 1); /* two hosts: nobody said where rank 0 is */
  cfg = fresh();
  assert_int_equal(tb_config_check(cfg), -EINVAL);
  assert_non_null(strstr(tb_last_error(), "MASTER_ADDR"));
  tb_config_free(cfg);
}

static void env__bad_values_name_variable_value_and_form(void **state) {
  (void)state;
  static const struct {
    const char *variable, *value, *form;
  } bad[] = {
      {"RANK", "two", "whole number"},
      {"WORLD_SIZE", "0", "from 1 to 1024"},
      {"MASTER_PORT", "70000", "1 to 65535"},
      {"TAILBOUND_MASTER_ADDR", "10.0.0.1:29500", "address alone"},
      {"TAILBOUND_RTO_MIN", "5parsecs", "ns us ms s min"},
      {"TAILBOUND_RTO_MIN", "20s", "to 10s"},
      {"TAILBOUND_RTO_MIN", "-1ms", "a time"},
      {"TAILBOUND_BUFFER", "8Q", "k M G"},
      {"TAILBOUND_LINK", "carrier-pigeon", "udp"},
      {"TAILBOUND_OFFLOAD", "maybe", "on | off"},
      {"TAILBOUND_PORT_RANGE", "9-3", "lo-hi"},
      {"TAILBOUND_DEADLINE", "soon", "auto, exact"},
      {"TAILBOUND_DEADLINE", "0", "auto, exact"},
      {"TAILBOUND_MIN_RECEIVED", "1.5", "0 to 1"},
      {"TAILBOUND_MISSING", "ignore", "renormalise | carry"},
      {"TAILBOUND_LOG", "loud", "debug"},
      {"TAILBOUND_FAULT", "dorp=0.1", "drop"},
      {"SLURM_NODELIST", "node[001-", "node list"},
  };
  for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
    clearenv();
    setenv(bad[i].variable, bad[i].value, 1);
    REFUSED(bad[i].variable, bad[i].value, bad[i].form);
  }
}

static void set__unknown_name_suggests_the_nearest(void **state) {
  (void)state;
  tb_config *cfg = fresh();
  assert_int_equal(tb_config_set(cfg, "deadlin", "auto"), -ENOENT);
  assert_non_null(strstr(tb_last_error(), "did you mean deadline"));
  assert_int_equal(tb_config_set(cfg, "wholly_other", "1"), -ENOENT);
  assert_null(strstr(tb_last_error(), "did you mean"));
  assert_null(tb_config_get(cfg, "wholly_other"));
  assert_int_equal(tb_config_set(cfg, "rank", NULL), -EINVAL);
  tb_config_free(cfg);
}

static void set__failure_leaves_the_old_value(void **state) {
  (void)state;
  tb_config *cfg = fresh();
  assert_int_equal(tb_config_set(cfg, "rto_max", "100ms"), 0);
  assert_int_equal(tb_config_set(cfg, "rto_max", "100 years"), -EINVAL);
  assert_string_equal(tb_config_get(cfg, "rto_max"), "100ms");
  assert_int_equal(tb_config_tunables(cfg)->rto_max, 100000000);
  tb_config_free(cfg);
}

static void set__strings_of_a_row_stay_readable(void **state) {
  (void)state;
  tb_config *cfg = fresh();
  const char *before = tb_config_get(cfg, "job");
  assert_int_equal(tb_config_set(cfg, "job", "another"), 0);
  assert_string_equal(before, "default");
  assert_string_equal(tb_config_get(cfg, "job"), "another");
  tb_config_free(cfg);
}

static void u64__kinds(void **state) {
  (void)state;
  tb_config *cfg = fresh();
  assert_int_equal(tb_config_set(cfg, "deadline", "inf"), 0);
  assert_true(tb_config_u64(cfg, "deadline") == UINT64_MAX);
  assert_int_equal(tb_config_set(cfg, "deadline", "0.05"), 0); /* seconds */
  assert_int_equal(tb_config_u64(cfg, "deadline"), 50000000);
  assert_int_equal(tb_config_set(cfg, "buffer", "1.5M"), 0);
  assert_int_equal(tb_config_u64(cfg, "buffer"), 1572864);
  assert_int_equal(tb_config_set(cfg, "offload", "no"), 0);
  assert_int_equal(tb_config_u64(cfg, "offload"), 0);
  assert_int_equal(tb_config_set(cfg, "consistency", "agree"), 0);
  assert_int_equal(tb_config_u64(cfg, "consistency"), 1);
  assert_int_equal(tb_config_set(cfg, "log", "error"), 0);
  assert_int_equal(tb_config_u64(cfg, "log"), 40);
  assert_int_equal(tb_config_set(cfg, "port_range", "5000-5100"), 0);
  assert_int_equal(tb_config_u64(cfg, "port_range"), 5000u << 16 | 5100);
  assert_int_equal(tb_config_set(cfg, "min_received", "90%"), 0);
  assert_true(tb_config_share(cfg, "min_received") == 0.9);
  assert_int_equal(tb_config_set(cfg, "early_cap", "3G"), 0);
  assert_true(tb_config_tunables(cfg)->early_cap == 3ull << 30);
  assert_int_equal(tb_config_set(cfg, "interface", "^docker,lo"), 0);
  assert_int_equal(tb_config_set(cfg, "master_addr", "fe80::1%eth0"), 0);
  tb_config_free(cfg);
}

static void dup__is_independent(void **state) {
  (void)state;
  tb_config *cfg = fresh();
  assert_int_equal(tb_config_set(cfg, "flows", "2"), 0);
  tb_config *copy = tb_config_dup(cfg);
  assert_int_equal(tb_config_set(cfg, "flows", "3"), 0);
  tb_config_free(cfg);
  assert_int_equal(tb_config_u64(copy, "flows"), 2);
  assert_string_equal(source_of(copy, "flows"), "set");
  tb_config_free(copy);
}

static void check__names_what_does_not_fit_together(void **state) {
  (void)state;
  tb_config *cfg = fresh();
  assert_int_equal(tb_config_set(cfg, "size", "4"), 0);
  assert_int_equal(tb_config_check(cfg), -EINVAL);
  assert_non_null(strstr(tb_last_error(), "no rank is given"));
  assert_int_equal(tb_config_set(cfg, "rank", "4"), 0);
  assert_int_equal(tb_config_check(cfg), -EINVAL);
  assert_non_null(strstr(tb_last_error(), "rank 4 (set) is not below size 4 (set)"));
  assert_int_equal(tb_config_set(cfg, "rank", "3"), 0);
  assert_int_equal(tb_config_check(cfg), 0);
  assert_int_equal(tb_config_set(cfg, "rto_min", "1s"), 0);
  assert_int_equal(tb_config_check(cfg), -EINVAL);
  assert_non_null(strstr(tb_last_error(), "rto_max"));
  assert_int_equal(tb_config_set(cfg, "missing", "carry"), 0);
  assert_int_equal(tb_config_set(cfg, "consistency", "agree"), 0);
  assert_int_equal(tb_config_check(cfg), -EINVAL);
  assert_non_null(strstr(tb_last_error(), "missing=carry (set) cannot go with consistency=agree (set)"));
  tb_config_free(cfg);
}

static void stranger__a_slip_in_a_variable_is_told(void **state) {
  (void)state;
  char text[300];
  setenv("TAILBOUND_RANK", "0", 1);
  setenv("TAILBOUND_SOMETHING_ELSE_ENTIRELY", "1", 1);
  assert_int_equal(tb_config_stranger(text, sizeof text), 0);
  setenv("TAILBOUND_DEADLNE", "1s", 1);
  assert_int_equal(tb_config_stranger(text, sizeof text), 1);
  assert_non_null(strstr(text, "TAILBOUND_DEADLNE"));
  assert_non_null(strstr(text, "did you mean TAILBOUND_DEADLINE?"));
}

static void nodelist_first__grammar(void **state) {
  (void)state;
  static const struct {
    const char *list, *first;
  } good[] = {{"node1", "node1"},
              {"a,b,c", "a"},
              {"node[001-004,7],x", "node001"},
              {"n[7]", "n7"},
              {"n[9,1-3]", "n9"},
              {"x,n[1-2]", "x"},
              {"rack[1-2]n[03-4]", "rack1n03"},
              {"gpu[1-2]-ib", "gpu1-ib"},
              {"a.b-c_d.org", "a.b-c_d.org"},
              {"[10-12]node", "10node"}};
  static const char *const bad[] = {"", ",a", "n[", "n[1", "n[]", "n[a]", "n[-3]", "n]", "n[1-2", "n 1", "n[1[2]]"};
  char host[64];
  for (unsigned i = 0; i < sizeof good / sizeof *good; i++) {
    assert_int_equal(tb_nodelist_first(good[i].list, host, sizeof host), 0);
    assert_string_equal(host, good[i].first);
  }
  for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++)
    if (tb_nodelist_first(bad[i], host, sizeof host) != -EINVAL) fail_msg("'%s' was taken as %s", bad[i], host);
  assert_int_equal(tb_nodelist_first("node1", host, 5), -EINVAL); /* no room */
  assert_int_equal(tb_nodelist_first("node1", host, 6), 0);
}

static void tasks_on_node__grammar(void **state) {
  (void)state;
  static const uint64_t wanted[] = {2, 2, 2, 1, 4};
  uint64_t tasks;
  for (unsigned i = 0; i < 5; i++) {
    assert_int_equal(tb_tasks_on_node("2(x3),1,4", i, &tasks), 0);
    assert_int_equal(tasks, wanted[i]);
  }
  assert_int_equal(tb_tasks_on_node("2(x3),1,4", 5, &tasks), -EINVAL);
  assert_int_equal(tb_tasks_on_node("", 0, &tasks), -EINVAL);
  assert_int_equal(tb_tasks_on_node("2(x", 3, &tasks), -EINVAL);
  assert_int_equal(tb_tasks_on_node("2(x0)", 0, &tasks), -EINVAL);
}

static void parse__numbers(void **state) {
  (void)state;
  uint64_t v = 0;
  double share;
  static const struct {
    const char *text;
    uint64_t ns;
  } times[] = {
      {"2ms", 2000000}, {"1.5s", 1500000000},      {"0.5", 500000000},       {"3", 3000000000ull}, {"100us", 100000},
      {"7ns", 7},       {"2min", 120000000000ull}, {"1h", 3600000000000ull}, {"1e-05", 10000},     {".25s", 250000000},
      {"0", 0},         {"1e3", 1000000000000ull}};
  static const char *const bad_times[] = {"",     "ms",  "-1",  "+1",   " 1s", "1 s",  "1s ",         "1S",
                                          "0x10", "nan", "inf", "1e99", "1e",  "1..2", "99999999999h"};
  for (unsigned i = 0; i < sizeof times / sizeof *times; i++) {
    assert_int_equal(tb_parse_time(times[i].text, &v), 0);
    assert_int_equal(v, times[i].ns);
  }
  for (unsigned i = 0; i < sizeof bad_times / sizeof *bad_times; i++)
    assert_int_equal(tb_parse_time(bad_times[i], &v), -EINVAL);
  assert_int_equal(tb_parse_size("64MiB", &v), 0);
  assert_int_equal(v, 64u << 20);
  assert_int_equal(tb_parse_size("1k", &v), 0);
  assert_int_equal(v, 1024);
  assert_int_equal(tb_parse_count("18446744073709551615", &v), 0);
  assert_true(v == UINT64_MAX);
  assert_int_equal(tb_parse_count("18446744073709551616", &v), -EINVAL);
  assert_int_equal(tb_parse_count("1e3", &v), -EINVAL);
  assert_int_equal(tb_parse_share("2%", &share), 0);
  assert_true(share == 0.02);
  assert_int_equal(tb_parse_share("101%", &share), -EINVAL);
  assert_int_equal(tb_parse_ports("0", &v), 0);
  assert_int_equal(v, 0);
  assert_int_equal(tb_parse_ports("70", &v), 0);
  assert_int_equal(v, 70u << 16 | 70);
  assert_int_equal(tb_parse_ports("1-65536", &v), -EINVAL);
  assert_int_equal(tb_parse_ports("-5", &v), -EINVAL);
}

static void format__is_read_back(void **state) {
  (void)state;
  static const uint64_t numbers[] = {
      0, 1, 999, 1000, 1024, 1500000, 2000000, 64ull << 20, 3600000000000ull, 1ull << 50, 123456789};
  char text[32];
  uint64_t back;
  for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++) {
    tb_format_time(numbers[i], text, sizeof text);
    assert_int_equal(tb_parse_time(text, &back), 0);
    assert_true(back == numbers[i]);
    tb_format_size(numbers[i], text, sizeof text);
    assert_int_equal(tb_parse_size(text, &back), 0);
    assert_true(back == numbers[i]);
  }
}

#define CASE(f) cmocka_unit_test_setup(f, clean)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(new__defaults_are_those_of_the_tables),
      CASE(row__every_option_is_complete_and_named_once),
      CASE(env__own_variable_wins_over_launchers),
      CASE(env__empty_counts_as_unset),
      CASE(env__torchrun),
      CASE(env__slurm),
      CASE(env__open_mpi),
      CASE(env__bad_values_name_variable_value_and_form),
      CASE(set__unknown_name_suggests_the_nearest),
      CASE(set__failure_leaves_the_old_value),
      CASE(set__strings_of_a_row_stay_readable),
      CASE(u64__kinds),
      CASE(dup__is_independent),
      CASE(check__names_what_does_not_fit_together),
      CASE(stranger__a_slip_in_a_variable_is_told),
      CASE(nodelist_first__grammar),
      CASE(tasks_on_node__grammar),
      CASE(parse__numbers),
      CASE(format__is_read_back),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
