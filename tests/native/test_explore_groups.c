/* test_explore_groups.c - test_explore.c's questions put to ranks in groups: two groups of two, every subset of any
 * WINDOW frames in a row lost, or repeated late; and the death of each rank at any frame. Judged by relay_round.h:
 * values are whole, counted once, and the same everywhere; and nobody is late, waits for ever, or keeps anything. */
#include "relay_round.h"

enum { N = 4, WINDOW = 7, STEP = 20, LAST_FRAME = 190 };
static const uint64_t DEADLINE = TB_MS;

typedef struct {
  uint32_t begin, mask, frames; /* bit i: frame begin + i is treated */
  bool repeat;
  uint32_t crash_at, dead;      /* rank `dead` stops when so many frames were made */
} plan;

static void quick(tb_tunables *t) {
  t->rto_min = TB_MS / 5;
  t->rto_max = 2 * TB_MS;
  t->peer_timeout = 20 * TB_MS;
}

static int treat(cp *net, cp_frame *f) {
  plan *p = net->ctx;
  uint32_t i = p->frames++;
  if (p->frames > p->crash_at) net->stopped[p->dead] = true;
  if (i < p->begin || i - p->begin >= WINDOW || !(p->mask >> (i - p->begin) & 1)) return 1;
  f->at += p->repeat ? 7 * net->opt.delay : 0;
  return p->repeat ? 2 : 0;
}

static void judge(const cp *net, const plan *p, const cp_work *w, uint64_t began, bool exact) {
  bool crash = p->crash_at != UINT32_MAX;
  check_results(net, w, N, NULL);
  for (uint32_t r = 0; r < N; r++) {
    if (net->stopped[r]) continue;
    const tb_result *o = &w[r].o.result;
    const double *y = (const double *)(void *)w[r].result;
    if (!exact) assert_in_range(w[r].done_at - began, 0, DEADLINE);
    if (exact && o->status == 0) assert_true(o->received == 1.0);
    if (o->status == 0) continue;
    assert_true(exact && crash && o->status == -EHOSTDOWN);
    for (int i = 0; i < RR_COUNT; i++) assert_true(y[i] == weight[r]); /* restored */
  }
}

static void run(plan p, bool exact) {
  static cp_work w[N];
  static double x[N][RR_COUNT];
  cp *net = cp_new(&(cp_options){.n = N, .chunk_bytes = 64, .window = 256, .delay = 20000, .tune = quick});
  group(net, 2, false);
  uint64_t began = net->now;
  memset(w, 0, sizeof w);
  net->fate = treat;
  net->ctx = &p;
  for (uint16_t r = 0; r < N; r++) assert_int_equal(give(net, r, &w[r], "k", x[r], exact ? EXACT : DEADLINE), 0);
  for (uint16_t r = 0; r < N; r++)
    while (!w[r].done && !net->stopped[r]) cp_until(net, net->now + TB_MS / 4);
  judge(net, &p, w, began, exact);
  p.mask = 0;
  cp_until(net, net->now + 60 * TB_SEC);
  for (uint16_t r = 0; r < N; r++)
    if (!net->stopped[r]) assert_null(net->core[r]->ops);
  for (uint16_t r = 0; r < N; r++) {
    if (!w[r].done) tb_core_cancel(net->core[r], &w[r].o, -ECANCELED, "over", net->now);
    cp_work_free(&w[r], 1);
  }
  cp_free(net);
}

static void every_subset(bool exact, bool repeat) {
  for (uint32_t begin = 0; begin < LAST_FRAME; begin += STEP)
    for (uint32_t mask = 1; mask < 1u << WINDOW; mask += 2) /* the first one always: else it is a later window's */
      run((plan){.begin = begin, .mask = mask, .repeat = repeat, .crash_at = UINT32_MAX}, exact);
}

static void every_crash(bool exact) {
  for (uint32_t dead = 0; dead < N; dead++)
    for (uint32_t at = 0; at < LAST_FRAME; at += 3) run((plan){.crash_at = at, .dead = dead}, exact);
}

static void loss__local(void **state) { (void)state; every_subset(false, false); }
static void loss__exact(void **state) { (void)state; every_subset(true, false); }
static void repeat__local(void **state) { (void)state; every_subset(false, true); }
static void crash__local(void **state) { (void)state; every_crash(false); }
static void crash__exact(void **state) { (void)state; every_crash(true); }

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(loss__local),  cmocka_unit_test(loss__exact),  cmocka_unit_test(repeat__local),
    cmocka_unit_test(crash__local), cmocka_unit_test(crash__exact),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
