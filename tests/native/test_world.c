/* test_world.c - communicators over the simulated network: time, threads, faults, and what a lossy round may and may
 * not give (rules 1, 10, 11, 13). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "comm_call.h"

enum { MOST = 6, COUNT = 20000 };
static const uint64_t MS = 1000000, SECOND = 1000000000, EXACT = UINT64_MAX;

static float x[MOST][COUNT], y[MOST][COUNT];

static tb_world *world(int n, const char *options) {
  tb_world *w;
  if (tb_world_new(n, options, &w)) fail_msg("%s", tb_last_error());
  return w;
}

/* Contributions of 2^rank: a value tells which ranks are in it, and how it was scaled. */
static bool possible(float value, int n) {
  for (int set = 1; set < 1 << n; set++) {
    int count = __builtin_popcount((unsigned)set);
    if (value == (float)((double)set * n / count)) return true;
  }
  return false;
}

typedef struct { tb_work *work[MOST]; uint8_t *mask[MOST]; tb_result result[MOST]; } outcome;

/* One lossy round of everybody. The moment a rank's call returns its buffers are the caller's again: they are spoilt,
 * and what the others get must not show it. */
static void lossy_round(tb_world *w, int n, bool in_place, uint64_t deadline, outcome *o) {
  static float kept[MOST][COUNT];
  for (int r = 0; r < n; r++) {
    for (int i = 0; i < COUNT; i++) x[r][i] = (float)(1 << r);
    memset(y[r], 0x77, sizeof y[r]);
    tb_call call = all_reduce("k", x[r], in_place ? x[r] : y[r], COUNT, deadline);
    if (tb_issue(tb_world_comm(w, r), &call, &o->work[r])) fail_msg("%s", tb_last_error());
  }
  bool done[MOST] = {false};
  for (int left = n; left;) {
    for (int r = 0; r < n; r++) {
      if (done[r] || !tb_done(o->work[r])) continue;
      done[r] = true;
      left--;
      memcpy(kept[r], in_place ? x[r] : y[r], sizeof kept[r]);
      memset(x[r], 0x7f, sizeof x[r]);
      memset(y[r], 0x7f, sizeof y[r]);
    }
    if (left) tb_world_advance(w, 20000);
  }
  for (int r = 0; r < n; r++) {
    assert_int_equal(tb_wait(o->work[r], 0), 0);
    o->mask[r] = malloc(COUNT);
    assert_int_equal(tb_work_result(o->work[r], &o->result[r]), 0);
    assert_int_equal(tb_work_mask(o->work[r], o->mask[r], COUNT), 0);
    assert_true(o->result[r].elapsed_ns <= deadline); /* rule 1 */
  }
  tb_world_advance(w, 5 * MS); /* repairs of what is not the callers' any more */
  for (int r = 0; r < n; r++)
    for (int i = 0; i < COUNT; i++) assert_true(((uint8_t *)x[r])[i] == 0x7f && ((uint8_t *)y[r])[i] == 0x7f);
  for (int i = 0; i < COUNT; i++) {
    float decided = 0;
    for (int r = 0; r < n; r++) {
      float v = kept[r][i];
      /* values of earlier rounds are in it: test_late.c and the oracle look at those */
      if (o->result[r].late > 0) continue;
      if (!o->mask[r][i]) {
        assert_true(v == 0); /* rule 13: zero, and reported */
        continue;
      }
      if (!possible(v, n)) fail_msg("rank %d element %d is %g: no set of contributions gives that", r, i, (double)v);
      if (decided == 0) decided = v;
      else if (v != decided) fail_msg("element %d: rank %d has %g, another %g", i, r, (double)v, (double)decided);
    }
  }
}

static void drop(outcome *o, int n) {
  for (int r = 0; r < n; r++) {
    tb_work_free(o->work[r]);
    free(o->mask[r]);
  }
}

static void lossy__every_fault_at_once(void **state) {
  (void)state;
  static const char *const faults[] = {
    "loss=0.02 seed=1",
    "loss=0.3 seed=2",
    "dup=0.2 reorder=0.2 reorder_by=300us seed=3",
    "corrupt=0.05 csum=0 seed=4",
    "truncate=0.05 seed=5",
    "ge_p=0.01 ge_r=0.1 ge_loss=0.9 seed=6",
    "loss=0.02 dup=0.05 corrupt=0.02 truncate=0.02 reorder=0.1 reorder_by=200us jitter=50us csum=0 ref=prompt "
    "reap_delay=300us seed=7",
    "loss=0.05 ref=prompt reap_delay=1ms seed=8",
    "loss=0.05 ref=none seed=9",
    "tail_p=0.01 tail=20ms seed=10",
  };
  for (size_t f = 0; f < sizeof faults / sizeof *faults; f++)
    for (int n = 2; n <= 4; n += 2) {
      char options[300];
      snprintf(options, sizeof options, "%s delay=50us rate=10G poison=1", faults[f]);
      tb_world *w = world(n, options);
      double worst = 1;
      for (int round = 0; round < 6; round++) {
        outcome o;
        lossy_round(w, n, round % 2, 8 * MS, &o);
        for (int r = 0; r < n; r++)
          if (o.result[r].received < worst) worst = o.result[r].received;
        drop(&o, n);
      }
      if (f == 0 && worst < 0.99) fail_msg("%d ranks, %s: received %.4f at worst", n, options, worst);
      tb_world_free(w);
    }
}

static void damage__is_counted_and_lands_nowhere(void **state) {
  (void)state;
  tb_world *w = world(2, "corrupt=0.1 truncate=0.1 csum=0 delay=50us seed=11");
  outcome o;
  for (int round = 0; round < 3; round++) {
    lossy_round(w, 2, true, 20 * MS, &o);
    drop(&o, 2);
  }
  uint64_t bad = 0;
  for (int r = 0; r < 2; r++)
    for (int i = 0; i < 4; i++)
      bad += counter(tb_world_comm(w, r), -1, (const char *[]){"bad_check", "bad_magic", "bad_version",
                                                               "bad_short"}[i]);
  assert_true(bad > 20);
  tb_world_free(w);
}

/* Exact is exact, whatever the wire does. */
static void exact__every_fault_at_once(void **state) {
  (void)state;
  for (int n = 2; n <= 5; n++) {
    tb_world *w = world(n, "loss=0.1 dup=0.05 corrupt=0.02 truncate=0.02 reorder=0.1 reorder_by=200us csum=0 "
                        "delay=50us rate=10G ref=prompt reap_delay=100us seed=12 poison=1");
    tb_work *work[MOST];
    for (int round = 0; round < 3; round++) {
      for (int r = 0; r < n; r++) {
        for (int i = 0; i < COUNT; i++) x[r][i] = (float)((r + 1) * (i % 1000) + round);
        tb_call call = all_reduce("k", x[r], x[r], COUNT, EXACT);
        assert_int_equal(tb_issue(tb_world_comm(w, r), &call, &work[r]), 0);
      }
      for (int r = 0; r < n; r++) {
        assert_int_equal(tb_wait(work[r], -1), 0);
        for (int i = 0; i < COUNT; i++) assert_true(x[r][i] == (float)(n * (n + 1) / 2 * (i % 1000) + n * round));
        memset(x[r], 0x7f, sizeof x[r]);
        tb_work_free(work[r]);
      }
    }
    tb_world_free(w);
  }
}

static void buckets__many_in_flight_by_reference(void **state) {
  (void)state;
  enum { BUCKETS = 30, EACH = 600 };
  static const char *const refs[] = {"ref=prompt reap_delay=200us", "ref=sync", "ref=none"};
  for (int how = 0; how < 3; how++) {
    char options[200];
    snprintf(options, sizeof options, "%s delay=50us rate=10G poison=1", refs[how]);
    tb_world *w = world(3, options);
    static tb_work *work[3][BUCKETS];
    for (int b = 0; b < BUCKETS; b++)
      for (int r = 0; r < 3; r++) {
        char key[16];
        float *at = &x[r][b * EACH];
        snprintf(key, sizeof key, "b%d", b);
        for (int i = 0; i < EACH; i++) at[i] = (float)(1000 * b + r);
        tb_call call = all_reduce(key, at, at, EACH, EXACT);
        assert_int_equal(tb_issue(tb_world_comm(w, r), &call, &work[r][b]), 0);
      }
    for (int b = 0; b < BUCKETS; b++)
      for (int r = 0; r < 3; r++) {
        assert_int_equal(tb_wait(work[r][b], -1), 0);
        for (int i = 0; i < EACH; i++) assert_true(x[r][b * EACH + i] == (float)(3000 * b + 3));
        tb_work_free(work[r][b]);
      }
    tb_world_free(w);
  }
}

/* A device that never lets go: its transmit side is stopped, the call returns, the time is reported (LINKS rule 7). */
static void refs__never_completed(void **state) {
  (void)state;
  tb_world *w = world(2, "ref=prompt reap_delay=never delay=50us");
  tb_work *work[2];
  for (int r = 0; r < 2; r++) {
    for (int i = 0; i < COUNT; i++) x[r][i] = (float)(r + 1);
    tb_call call = all_reduce("k", x[r], x[r], COUNT, 20 * MS);
    assert_int_equal(tb_issue(tb_world_comm(w, r), &call, &work[r]), 0);
  }
  for (int r = 0; r < 2; r++) {
    tb_result res;
    assert_int_equal(tb_wait(work[r], -1), 0);
    assert_int_equal(tb_work_result(work[r], &res), 0);
    assert_true(res.abort_ns > 0);
    assert_true(res.received == 1.0);
    for (int i = 0; i < COUNT; i++) assert_true(x[r][i] == 3);
    tb_work_free(work[r]);
  }
  tb_world_free(w);
}

static void pause__a_stopped_rank_costs_at_most_the_deadline(void **state) {
  (void)state;
  tb_world *w = world(3, "delay=50us rate=10G");
  outcome o;
  lossy_round(w, 3, true, 10 * MS, &o);
  drop(&o, 3);
  char pause[40];
  snprintf(pause, sizeof pause, "pause=%lluns", (unsigned long long)(tb_world_now(w) + 2 * SECOND));
  assert_int_equal(tb_world_set(w, 2, -1, pause), 0);
  for (int round = 0; round < 6; round++) {
    tb_work *work[2];
    tb_result res;
    for (int r = 0; r < 2; r++) {
      for (int i = 0; i < COUNT; i++) x[r][i] = 1;
      tb_call call = all_reduce("k", x[r], x[r], COUNT, 10 * MS);
      assert_int_equal(tb_issue(tb_world_comm(w, r), &call, &work[r]), 0);
    }
    for (int r = 0; r < 2; r++) {
      assert_int_equal(tb_wait(work[r], -1), 0);
      assert_int_equal(tb_work_result(work[r], &res), 0);
      assert_true(res.elapsed_ns <= 10 * MS);
      if (round >= 4) assert_true(res.elapsed_ns < 5 * MS); /* absent: it costs nothing any more */
      tb_work_free(work[r]);
    }
  }
  assert_int_equal(counter(tb_world_comm(w, 0), 2, "absences"), 1);
  tb_world_advance(w, 4 * SECOND);
  assert_int_equal(counter(tb_world_comm(w, 0), 2, "absent"), 0);
  /* The woken rank takes the round after the last that the others have closed, together with them. */
  lossy_round(w, 3, true, 50 * MS, &o);
  for (int r = 0; r < 3; r++) assert_true(o.result[r].received == 1.0);
  assert_int_equal(o.result[2].round, 7);
  assert_int_equal(o.result[2].behind, 6);
  drop(&o, 3);
  tb_world_free(w);
}

static void time__moves_only_by_waiting(void **state) {
  (void)state;
  tb_world *w = world(2, "delay=1ms");
  assert_int_equal(tb_world_now(w), 0);
  tb_work *work;
  memset(x, 0, sizeof x);
  tb_call call = all_reduce("k", x[0], x[0], 10, EXACT);
  assert_int_equal(tb_issue(tb_world_comm(w, 0), &call, &work), 0);
  assert_int_equal(tb_world_now(w), 0);
  assert_int_equal(tb_wait(work, 5 * (int64_t)MS), -EAGAIN);
  assert_int_equal(tb_world_now(w), 5 * MS);
  assert_int_equal(tb_world_advance(w, 7), 0);
  assert_int_equal(tb_world_now(w), 5 * MS + 7);
  assert_int_equal(tb_wait(work, -1), -EDEADLK); /* nobody else will ever issue */
  assert_non_null(strstr(tb_last_error(), "has every rank issued?"));
  tb_work_free(work);
  tb_world_free(w);
}

static void options__errors_name_what_is_wrong(void **state) {
  (void)state;
  tb_world *w;
  assert_int_equal(tb_world_new(0, "", &w), -EINVAL);
  assert_int_equal(tb_world_new(1025, "", &w), -EINVAL);
  assert_int_equal(tb_world_new(2, "nonsense=1", &w), -EINVAL);
  assert_non_null(strstr(tb_last_error(), "nonsense"));
  assert_int_equal(tb_world_new(2, "loss=2", &w), -EINVAL);
  assert_int_equal(tb_world_new(2, "absent_after=none", &w), -EINVAL); /* an option of the configuration */
  w = world(2, "");
  assert_int_equal(tb_world_set(w, 0, 1, "seed=4"), -EINVAL);
  assert_int_equal(tb_world_set(w, 5, 1, "loss=0.5"), -EINVAL);
  assert_null(tb_world_comm(w, 2));
  assert_null(tb_world_comm(w, -1));
  assert_int_equal(tb_close(tb_world_comm(w, 0)), 0); /* says goodbye; its memory goes with its world */
  assert_int_equal(tb_close(tb_world_comm(w, 0)), 0);
  assert_int_equal(tb_world_enter(w, 2), -EINVAL);
  assert_int_equal(tb_world_leave(w, 0), -EINVAL);
  assert_int_equal(tb_world_sleep(w, 0, 5), -EINVAL);
  assert_int_equal(tb_world_expect(w, 3), -EINVAL);
  tb_world_free(w);
  tb_world_free(NULL);
}

typedef struct { tb_world *w; int rank; uint64_t ends[8]; float sum; int rc; } player;

static void *play(void *arg) {
  player *p = arg;
  tb_work *work;
  tb_world_enter(p->w, p->rank);
  for (int i = 0; i < 8 && !p->rc; i++) {
    for (int k = 0; k < 2000; k++) x[p->rank][k] = (float)(p->rank + i);
    tb_call call = all_reduce("k", x[p->rank], x[p->rank], 2000, 3 * MS);
    p->rc = tb_world_sleep(p->w, p->rank, (uint64_t)((p->rank * 7 + i * 3) % 5) * 100000);
    if (!p->rc) p->rc = tb_issue(tb_world_comm(p->w, p->rank), &call, &work);
    if (p->rc) break;
    p->rc = tb_wait(work, -1);
    p->sum += x[p->rank][0] + x[p->rank][1999];
    p->ends[i] = tb_world_now(p->w);
    tb_work_free(work);
  }
  tb_world_leave(p->w, p->rank);
  return NULL;
}

/* A thread per rank: the same seed gives the same run to the nanosecond, however the host schedules them. */
static void threads__are_deterministic(void **state) {
  (void)state;
  static player p[3][4];
  for (int run = 0; run < 3; run++) {
    tb_world *w = world(4, run < 2 ? "loss=0.05 delay=100us jitter=50us rate=1G seed=21" : "loss=0.05 delay=100us "
                        "jitter=50us rate=1G seed=22");
    pthread_t t[4];
    memset(p[run], 0, sizeof p[run]);
    assert_int_equal(tb_world_expect(w, 4), 0);
    for (int r = 0; r < 4; r++) {
      p[run][r] = (player){.w = w, .rank = r};
      assert_int_equal(pthread_create(&t[r], NULL, play, &p[run][r]), 0);
    }
    for (int r = 0; r < 4; r++) {
      pthread_join(t[r], NULL);
      assert_int_equal(p[run][r].rc, 0);
      p[run][r].w = NULL;
    }
    tb_world_free(w);
  }
  assert_memory_equal(p[0], p[1], sizeof p[0]);
  assert_memory_not_equal(p[0], p[2], sizeof p[0]);
}

static void free__with_operations_in_flight(void **state) {
  (void)state;
  for (int how = 0; how < 3; how++) {
    tb_world *w = world(3, how == 2 ? "ref=prompt reap_delay=never" : "delay=1ms");
    tb_work *work[3];
    for (int r = 0; r < 3; r++) {
      for (int i = 0; i < COUNT; i++) x[r][i] = 5;
      tb_call call = all_reduce("k", x[r], x[r], COUNT, how ? EXACT : SECOND);
      if (r < 2) assert_int_equal(tb_issue(tb_world_comm(w, r), &call, &work[r]), 0);
    }
    tb_world_advance(w, 3 * MS);
    tb_world_free(w);
    for (int r = 0; r < 2; r++) {
      assert_int_equal(tb_wait(work[r], -1), -ECANCELED);
      assert_non_null(strstr(tb_work_error(work[r]), "closed"));
      for (int i = 0; i < COUNT; i++) assert_true(x[r][i] == 5);
      tb_work_free(work[r]);
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(lossy__every_fault_at_once),
    cmocka_unit_test(damage__is_counted_and_lands_nowhere),
    cmocka_unit_test(exact__every_fault_at_once),
    cmocka_unit_test(buckets__many_in_flight_by_reference),
    cmocka_unit_test(refs__never_completed),
    cmocka_unit_test(pause__a_stopped_rank_costs_at_most_the_deadline),
    cmocka_unit_test(time__moves_only_by_waiting),
    cmocka_unit_test(options__errors_name_what_is_wrong),
    cmocka_unit_test(threads__are_deterministic),
    cmocka_unit_test(free__with_operations_in_flight),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
