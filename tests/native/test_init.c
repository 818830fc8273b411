/* test_init.c - communicators begin, alone and together; what fails or is cancelled leaves nothing; who may end a
 * peer's part. Runs under the thread sanitizer too. */
#include <arpa/inet.h>
#include "engine/comm.h"
#include "engine_fixture.h"
#include "protocol/core.h"

enum { FIRST_PORT = 29810 };

static void init__sums_and_counts(void **state) {
  (void)state;
  tb_comm *comm[RANKS];
  static float x[RANKS][COUNT];
  tb_work *w[RANKS];
  up(RANKS, comm);
  for (int round = 0; round < 5; round++) {
    for (int r = 0; r < RANKS; r++) {
      assert_int_equal(tb_rank(comm[r]), r);
      assert_int_equal(tb_size(comm[r]), RANKS);
      fill(x[r], COUNT, (float)r);
      tb_call call = all_reduce("k", x[r], x[r], COUNT, EXACT);
      assert_int_equal(tb_issue(comm[r], &call, &w[r]), 0);
    }
    for (int r = 0; r < RANKS; r++) {
      tb_result res;
      double share[RANKS];
      uint8_t mask[COUNT];
      assert_int_equal(tb_wait(w[r], -1), 0);
      assert_int_equal(tb_done(w[r]), 1);
      assert_int_equal(tb_work_result(w[r], &res), 0);
      assert_true(res.received == 1.0 && res.round == (uint32_t)round);
      for (int i = 0; i < COUNT; i++) assert_true(x[r][i] == (float)(6 + 4 * i));
      assert_int_equal(tb_work_per_peer(w[r], 1, share, RANKS), 0);
      assert_int_equal(tb_work_per_peer(w[r], 3, share, RANKS), -EINVAL);
      assert_int_equal(tb_work_mask(w[r], mask, COUNT), 0);
      assert_int_equal(tb_work_mask(w[r], mask, COUNT - 1), -EINVAL);
      for (int i = 0; i < COUNT; i++) assert_int_equal(mask[i], 1);
      tb_work_free(w[r]);
    }
  }
  for (int r = 0; r < RANKS; r++) {
    assert_int_equal(counter(comm[r], -1, "operations"), 5);
    assert_int_equal(counter(comm[r], -1, "ok"), 5);
    assert_int_equal(counter(comm[r], -1, "bad_check"), 0);
    assert_true(counter(comm[r], (r + 1) % RANKS, "data_received") > 0);
  }
  uint64_t v;
  assert_int_equal(tb_counters(comm[0], RANKS, &v, 1), -EINVAL);
  assert_int_equal(tb_counters(comm[0], -2, &v, 1), -EINVAL);
  down(RANKS, comm);
}

static void alone__is_complete_at_once(void **state) { /* N = 1: no link, no thread */
  (void)state;
  tb_comm *comm[1];
  float x[8], y[8];
  tb_work *w;
  tb_result res;
  up(1, comm);
  assert_string_equal(tb_link_name(comm[0]), "self");
  for (int kind = TB_ALL_REDUCE; kind <= TB_BARRIER; kind++) {
    fill(x, 8, 3);
    memset(y, 0, sizeof y);
    tb_call call = all_reduce("", x, x, 8, EXACT);
    call.kind = kind;
    call.out = y;
    assert_int_equal(tb_issue(comm[0], &call, &w), 0);
    assert_int_equal(tb_done(w), 1);
    assert_int_equal(tb_wait(w, 0), 0);
    assert_int_equal(tb_work_result(w, &res), 0);
    assert_true(res.received == 1.0);
    if (kind != TB_BARRIER) assert_memory_equal(x, y, sizeof x);
    tb_work_free(w);
  }
  assert_int_equal(tb_close(comm[0]), 0);
}

/* A fault in the exchange of one rank ends init on all of them, within the time-out, and nothing leaks. */
static void init__fails_cleanly(void **state) {
  (void)state;
  hall h;
  starter s = {.rank = 0, .n = 2, .h = &h};
  hall_new(&h, 2);
  h.fail_rank = 0;
  begin(&s);
  assert_int_equal(s.rc, -EIO);
  assert_non_null(strstr(s.error, "step 'addr'"));
  starter bad = {.rank = 2, .n = 2, .h = &h};
  begin(&bad);
  assert_int_equal(bad.rc, -EINVAL);
  assert_non_null(strstr(bad.error, "rank 2 is out of range"));
  hall_free(&h);
}

static void *begins_in_vain(void *cfg) {
  tb_comm *comm = NULL;
  int rc = tb_init(cfg, NULL, NULL, &comm);
  assert_null(comm);
  return (void *)(intptr_t)rc;
}

static void init__cancel_ends_the_wait(void **state) {
  (void)state;
  for (int rank = 0; rank < 2; rank++) { /* rank 0 waits for the other to come, rank 1 for rank 0 to be there */
    tb_config *cfg;
    pthread_t thread;
    void *rc;
    assert_int_equal(tb_config_new(&cfg), 0);
    assert_int_equal(tb_config_set(cfg, "rank", rank ? "1" : "0"), 0);
    assert_int_equal(tb_config_set(cfg, "size", "2"), 0);
    assert_int_equal(tb_config_set(cfg, "interface", "=lo"), 0);
    assert_int_equal(tb_config_set(cfg, "master_addr", "127.0.0.1"), 0);
    assert_int_equal(tb_config_set(cfg, "master_port", "29777"), 0);
    assert_int_equal(pthread_create(&thread, NULL, begins_in_vain, cfg), 0);
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    uint64_t start = tb_now();
    tb_init_cancel(cfg);
    pthread_join(thread, &rc);
    assert_int_equal((intptr_t)rc, -EINTR);
    assert_in_range(tb_now() - start, 0, 2000 * MS); /* not init_timeout */
    tb_config_free(cfg);
  }
}

static void init__what_failed_has_told_its_log(void **state) {
  (void)state;
  char line[512] = "";
  int level = 0;
  tb_config *cfg;
  tb_comm *comm = NULL;
  assert_int_equal(tb_config_new(&cfg), 0);
  assert_int_equal(tb_init_log_next(cfg, line, sizeof line, &level), 0); /* nothing has begun */
  for (int again = 0; again < 2; again++) { /* each has a log of its own */
    assert_int_equal(tb_config_set(cfg, "rank", "0"), 0);
    assert_int_equal(tb_config_set(cfg, "size", "2"), 0);
    assert_int_equal(tb_config_set(cfg, "interface", "=nonesuch0"), 0);
    assert_int_equal(tb_config_set(cfg, "master_addr", "127.0.0.1"), 0);
    assert_int_equal(tb_config_set(cfg, "master_port", "29777"), 0);
    assert_int_equal(tb_config_set(cfg, "init_timeout", "500ms"), 0);
    assert_true(tb_init(cfg, NULL, NULL, &comm) < 0);
    assert_null(comm);
    assert_int_equal(tb_init_log_next(cfg, line, sizeof line, &level), 1);
    assert_int_equal(level, 40);
    assert_non_null(strstr(line, "nonesuch0"));
    assert_int_equal(tb_init_log_next(cfg, line, sizeof line, &level), 0);
  }
  tb_config_free(cfg);
}

/* From all ports of an address to all of rank 0's: a goodbye in rank 1's name. */
static void forge_goodbye(const char *source, uint32_t job) {
  uint8_t f[TB_HEAD + 1] = {0};
  tb_head h = {.type = TB_T_GOODBYE, .source = 1, .job = job, .view = 1, .hold_us = TB_HOLD_NONE,
               .remaining_us = TB_REMAINING_NONE};
  tb_head_encode(&h, f);
  f[TB_HEAD] = TB_BODY_VERSION;
  tb_head_seal(f, f + TB_HEAD, 1);
  struct sockaddr_in own = {.sin_family = AF_INET}, to = own;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fd = socket(AF_INET, SOCK_DGRAM, 0);
  assert_int_equal(inet_pton(AF_INET, source, &own.sin_addr), 1);
  assert_int_equal(bind(fd, (struct sockaddr *)&own, sizeof own), 0);
  for (int port = FIRST_PORT; port < FIRST_PORT + 8; port++) {
    to.sin_port = htons((uint16_t)port);
    sendto(fd, f, sizeof f, 0, (struct sockaddr *)&to, sizeof to);
  }
  close(fd);
}

static uint64_t counter_within(tb_comm *c, const char *name, uint64_t least) {
  for (uint64_t end = tb_now() + 20000 * MS; counter(c, 1, name) < least && tb_now() < end;)
    nanosleep(&(struct timespec){0, 1000000}, NULL);
  return counter(c, 1, name);
}

static void goodbye__forged_from_another_address_is_not_believed(void **state) {
  (void)state;
  tb_comm *comm[2];
  char range[32];
  snprintf(range, sizeof range, "%d-%d", FIRST_PORT, FIRST_PORT + 7);
  up_with(2, comm, "port_range", range);
  forge_goodbye("127.0.0.2", comm[0]->core->cfg.job);
  assert_true(counter_within(comm[0], "bad_source", 1) > 0);
  assert_int_equal(counter(comm[0], 1, "gone"), 0);
  /* the limit of it: whoever can send from that address is that rank */
  forge_goodbye("127.0.0.1", comm[0]->core->cfg.job);
  assert_int_equal(counter_within(comm[0], "gone", 1), 1);
  down(2, comm);
}

/* Frames of one are strangers' to the other: it may come to have its ports. */
static void init__each_has_a_job_number_of_its_own(void **state) {
  (void)state;
  tb_comm *first[2], *second[2];
  up(2, first);
  up(2, second);
  assert_int_equal(first[0]->core->cfg.job, first[1]->core->cfg.job);
  assert_int_equal(second[0]->core->cfg.job, second[1]->core->cfg.job);
  assert_int_not_equal(first[0]->core->cfg.job, second[0]->core->cfg.job);
  down(2, first);
  down(2, second);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(init__sums_and_counts),
    cmocka_unit_test(alone__is_complete_at_once),
    cmocka_unit_test(goodbye__forged_from_another_address_is_not_believed),
    cmocka_unit_test(init__each_has_a_job_number_of_its_own),
    cmocka_unit_test(init__fails_cleanly),
    cmocka_unit_test(init__cancel_ends_the_wait),
    cmocka_unit_test(init__what_failed_has_told_its_log),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
