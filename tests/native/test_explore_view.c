/* test_explore_view.c - membership in the C code itself as a checked model: a rank of three dies, or is cut off and
 * comes back, at every frame of a job, while every subset of the frames of the vote is lost; and each run is judged.
 *
 * Judged are: one view number has one list of members and one base on all ranks (9); a round has one view, and of it
 * all ranks have the same values: the renormalised sum of a set of contributions of that view's members, whole (10,
 * 11); a failed call has its input back; agreed and exact rounds are the same bytes, or an error (17); nothing waits
 * for ever, and in the end those who live are members of one view and complete rounds among themselves; carried
 * contributions of those who live are in everybody's sum, once each, but for what is told to be dropped (15).
 */
#include "core_pair.h"

enum { N = 3, COUNT = 12, CHUNK = 4, CALLS = 400, WINDOW = 5, LAST_FRAME = 30, VIEWS = 12 };
typedef enum { LOCAL, AGREE, EXACT, CARRY } mode;
static const uint64_t DEADLINE = TB_MS;
static const float gift[N] = {6, 66, 606}; /* sums of any subset, scaled for two or three, differ */
static const float digit[N] = {1, 1000, 1000000}; /* under carry: a sum over rounds tells how often each is in it */

typedef struct {
  mode class;
  bool returns;          /* it was only cut off */
  uint32_t crash_at;     /* frames made until then */
  uint32_t begin, mask;  /* bit i: VIEW frame begin + i is lost */
  uint32_t frames, votes;
  bool cut;
} plan;

typedef struct { int status; uint32_t round, view; bool skip, late; float value[COUNT]; } call_record;
typedef struct {
  cp_work w;
  float x[COUNT];
  bool busy, refused;
  cp_work sync;          /* the exact part of resync */
  float most;
  bool syncing;
  cp_work back;          /* waits in rejoin */
  bool asked;
  uint32_t calls;
  call_record call[CALLS];
} rank_state;

static rank_state s[N];
static struct { bool known; uint8_t member[N]; uint32_t base; } decided[VIEWS];
static struct { uint32_t runs, whole, failed, rejoined, most_views; uint64_t dropped; } tally;

static void quick(tb_tunables *t) {
  t->rto_min = TB_MS / 5;
  t->rto_max = 2 * TB_MS;
  t->probe_every = TB_MS;
  t->peer_timeout = 4 * TB_MS;
  t->evict_after = 1;
}

static int treat(cp *net, cp_frame *f) {
  plan *p = net->ctx;
  if (p->frames++ == p->crash_at) p->cut = true;
  if (p->cut && (f->src == N - 1 || f->dst == N - 1)) return 0;
  if (f->h.type != TB_T_VIEW) return 1;
  uint32_t i = p->votes++;
  return i < p->begin || i - p->begin >= WINDOW || !(p->mask >> (i - p->begin) & 1);
}

static void note_views(cp *net) {
  for (uint16_t r = 0; r < N; r++) {
    uint8_t member[N];
    uint32_t v = tb_core_members(net->core[r], member);
    assert_true(v < VIEWS);
    if (decided[v].known) {
      assert_memory_equal(decided[v].member, member, sizeof member);
      assert_int_equal(decided[v].base, net->core[r]->vote.base);
    }
    decided[v].known = true;
    memcpy(decided[v].member, member, sizeof member);
    decided[v].base = net->core[r]->vote.base;
    if (v > tally.most_views) tally.most_views = v;
  }
}

static void begin(cp *net, const plan *p, uint16_t r) {
  rank_state *q = &s[r];
  cp_fill(q->x, COUNT, p->class == CARRY ? digit[r] : gift[r], 0);
  tb_call call = cp_call("k", q->x, q->x, COUNT, p->class == EXACT ? UINT64_MAX : DEADLINE);
  call.consistency = p->class == AGREE ? TB_AGREE : TB_LOCAL;
  call.missing = p->class == CARRY ? TB_CARRY : TB_RENORMALISE;
  call.min_received = 0;
  q->w = (cp_work){.net = net, .rank = r};
  int rc = cp_issue(net, r, &q->w, &call);
  q->refused = rc == -ESTALE;
  q->busy = !rc;
  if (rc) assert_true(rc == -ESTALE || rc == -EHOSTDOWN || rc == -ENETRESET);
  if (rc == -ENETRESET && !q->asked) {
    q->asked = true;
    q->back = (cp_work){.net = net, .rank = r};
    assert_int_equal(tb_core_rejoin(net->core[r], net->now, &q->back.o), 0);
  }
}

static void end(const plan *p, uint16_t r) {
  rank_state *q = &s[r];
  assert_true(q->calls < CALLS);
  call_record *c = &q->call[q->calls++];
  const tb_result *o = &q->w.o.result;
  *c = (call_record){.status = o->status, .round = o->round, .view = o->view, .skip = o->verdict == TB_VERDICT_SKIP,
                      .late = o->late > 0};
  memcpy(c->value, q->w.result, sizeof c->value);
  if (o->status || c->skip)
    for (int i = 0; i < COUNT; i++) assert_true(c->value[i] == (p->class == CARRY ? digit : gift)[r]);
  tally.whole += o->verdict == TB_VERDICT_OK && !o->status;
  tally.failed += o->status != 0;
  cp_work_free(&q->w, 1);
  q->busy = false;
}

/* Resync as the engine does it: the largest next round, by the exact class. */
static void ask_all(cp *net, uint16_t r) {
  rank_state *q = &s[r];
  uint32_t next;
  assert_int_equal(tb_core_next_round(net->core[r], "k", 1, &next), 0);
  q->most = (float)next;
  tb_call call = cp_call("r", &q->most, &q->most, 1, UINT64_MAX);
  call.redop = TB_MAX;
  q->sync = (cp_work){.net = net, .rank = r};
  q->syncing = !cp_issue(net, r, &q->sync, &call);
}

static void end_resync(cp *net, uint16_t r) {
  rank_state *q = &s[r];
  q->syncing = false;
  if (!q->sync.o.result.status && !tb_core_resync(net->core[r], "k", 1, (uint32_t)q->sync.result[0], net->now)) q->refused = false;
  cp_work_free(&q->sync, 1);
}

/* All who live are members of one view, and have had two whole rounds in it. */
static bool settled(const cp *net, const plan *p) {
  uint32_t live = p->returns ? N : N - 1, view = net->core[0]->vote.number;
  if (view < (p->returns ? 3u : 2u)) return false;
  for (uint16_t r = 0; r < live; r++) {
    const rank_state *q = &s[r];
    if (net->core[r]->vote.number != view || !tb_view_in(&net->core[r]->vote) || q->calls < 2) return false;
    for (uint32_t i = q->calls - 2; i < q->calls; i++) {
      if (q->call[i].status || q->call[i].view != view || q->call[i].skip) return false;
      float sum = 0;
      for (uint16_t m = 0; m < live; m++) sum += gift[m];
      for (int k = 0; k < COUNT; k++)
        if (p->class != CARRY && q->call[i].value[k] != sum) return false;
    }
  }
  return true;
}

static void play(cp *net, plan *p) {
  uint64_t stop = net->now + 300 * TB_MS;
  bool healed = !p->returns;
  for (; !settled(net, p); cp_until(net, net->now + net->opt.delay)) {
    assert_true(net->now < stop); /* nothing waits for ever */
    note_views(net);
    if (!healed && net->core[0]->vote.number > 1 && net->core[1]->vote.number > 1) {
      p->cut = false;
      p->crash_at = UINT32_MAX;
      healed = true;
    }
    for (uint16_t r = 0; r < N; r++) {
      if (s[r].busy && s[r].w.done) end(p, r);
      if (s[r].asked && s[r].back.done) {
        cp_work_free(&s[r].back, 1);
        s[r].asked = false;
        tally.rejoined++;
      }
      if (s[r].syncing && s[r].sync.done) end_resync(net, r);
      if (s[r].busy || s[r].asked || s[r].syncing) continue;
      if (s[r].refused && tb_view_in(&net->core[r]->vote)) ask_all(net, r);
      else if (s[r].calls < CALLS - 1) begin(net, p, r);
    }
  }
  note_views(net);
}

/* The set of contributions that v is, among the members of a view. */
static uint32_t set_of(uint32_t view, float v) {
  uint32_t n = 0, found = 0;
  for (int r = 0; r < N; r++) n += decided[view].member[r];
  for (uint32_t set = 1; set < 1u << N; set++) {
    float sum = 0;
    bool possible = true;
    for (int r = 0; r < N; r++) {
      if (!(set >> r & 1)) continue;
      possible = possible && decided[view].member[r];
      sum += gift[r];
    }
    if (possible && sum * (float)n / (float)__builtin_popcount(set) == v) found = set;
  }
  return found;
}

static void judge(const plan *p) {
  for (uint32_t r = 0; r < N; r++)
    for (uint32_t i = 0; i < s[r].calls; i++) {
      const call_record *a = &s[r].call[i];
      if (a->status || a->skip) continue;
      for (int k = 0; k < COUNT; k++) {
        uint32_t set = set_of(a->view, a->value[k]), all = decided[a->view].member[N - 1] ? 7 : 3;
        assert_true(a->late || set || a->value[k] == 0); /* what missed its round comes with a later one (13) */
        if (p->class == EXACT) assert_int_equal(set, all);
      }
      for (uint32_t q = 0; q < r; q++)
        for (uint32_t j = 0; j < s[q].calls; j++) {
          const call_record *b = &s[q].call[j];
          if (b->status || b->skip || b->round != a->round) continue;
          assert_int_equal(a->view, b->view);
          for (int k = 0; k < COUNT; k++) {
            bool both = p->class != LOCAL || (!a->late && !b->late && a->value[k] != 0 && b->value[k] != 0);
            if (both) assert_true(a->value[k] == b->value[k]);
          }
        }
    }
}

/* Rule 15 among those who live: flush, with the exact sum done by hand. */
static void expect_conserved(cp *net) {
  uint32_t most = 0, next;
  double sum[N - 1][COUNT] = {{0}};
  float part[COUNT];
  cp_work w[N - 1];
  uint64_t dropped = 0, deficit = 0;
  for (uint16_t r = 0; r < N - 1; r++) {
    if (s[r].busy) cp_wait(net, &s[r].w);
    if (s[r].busy) end(&(plan){.class = CARRY}, r);
    assert_int_equal(tb_core_next_round(net->core[r], "k", 1, &next), 0);
    if (tb_before(most, next)) most = next;
  }
  for (uint16_t r = 0; r < N - 1; r++) {
    w[r] = (cp_work){.net = net, .rank = r};
    assert_int_equal(tb_core_flush_begin(net->core[r], "k", 1, most, net->now), 0);
    assert_int_equal(tb_core_settle(net->core[r], "k", 1, net->now, &w[r].o), 0);
  }
  cp_wait_all(net, w, N - 1);
  cp_work_free(w, N - 1);
  for (uint16_t r = 0; r < N - 1; r++) {
    assert_int_equal(tb_core_flush_take(net->core[r], "k", 1, part, sizeof part), 0);
    for (uint16_t q = 0; q < N - 1; q++)
      for (int k = 0; k < COUNT; k++) sum[q][k] += (double)part[k];
    memset(part, 0, sizeof part);
    assert_int_equal(tb_core_flush_end(net->core[r], "k", 1, part, sizeof part), 0);
    for (int k = 0; k < COUNT; k++) sum[r][k] += (double)part[k];
    for (uint32_t i = 0; i < s[r].calls; i++)
      for (int k = 0; k < COUNT; k++) sum[r][k] += s[r].call[i].skip ? 0 : (double)s[r].call[i].value[k];
    dropped += net->core[r]->n.dropped_values + net->core[r]->n.late_dropped * CHUNK;
    assert_true(s[r].calls < 1000);
  }
  for (uint16_t r = 0; r < N - 1; r++)
    for (int k = 0; k < COUNT; k++) {
      uint64_t v = (uint64_t)sum[r][k], of[N - 1] = {v % 1000, v / 1000 % 1000};
      for (uint16_t q = 0; q < N - 1; q++) {
        assert_true(of[q] <= s[q].calls); /* never twice */
        deficit += s[q].calls - of[q];
      }
    }
  assert_true(dropped || !deficit);
  assert_true(deficit <= dropped * (N - 1) * (N - 1)); /* a chunk that one has and the other lacks */
  tally.dropped += dropped;
}

static void run(plan p) {
  cp *net = cp_new(&(cp_options){.n = N, .chunk_bytes = CHUNK * sizeof(float), .window = 64, .delay = 50000, .tune = quick});
  memset(s, 0, sizeof s);
  memset(decided, 0, sizeof decided);
  net->fate = treat;
  net->ctx = &p;
  play(net, &p);
  if (p.class == CARRY) expect_conserved(net);
  else judge(&p);
  for (uint16_t r = 0; r < N; r++) {
    if (s[r].busy && !s[r].w.done) tb_core_cancel(net->core[r], &s[r].w.o, -ECANCELED, "over", net->now);
    if (s[r].asked && !s[r].back.done) tb_core_cancel(net->core[r], &s[r].back.o, -ECANCELED, "over", net->now);
    if (s[r].syncing && !s[r].sync.done) tb_core_cancel(net->core[r], &s[r].sync.o, -ECANCELED, "over", net->now);
    if (s[r].busy) cp_work_free(&s[r].w, 1);
    if (s[r].syncing) cp_work_free(&s[r].sync, 1);
    if (s[r].asked) cp_work_free(&s[r].back, 1);
  }
  cp_free(net);
  tally.runs++;
}

static void every(mode class, bool returns, uint32_t bits, uint32_t last_begin) {
  static const char *const name[] = {"local", "agree", "exact", "carry"};
  memset(&tally, 0, sizeof tally);
  for (uint32_t at = 0; at < LAST_FRAME; at++)
    for (uint32_t first = 0; first <= last_begin; first += bits)
      for (uint32_t mask = first ? 1 : 0; mask < 1u << bits; mask++)
        run((plan){.class = class, .returns = returns, .crash_at = at, .begin = first, .mask = mask});
  assert_true(tally.whole > 0 && (class == LOCAL || class == CARRY || tally.failed > 0) && (!returns || tally.rejoined >= tally.runs));
  print_message("  %s at every frame, %s: %u runs; calls: %u whole, %u failed; %u rejoined, up to %u views; "
                "%llu values dropped\n",
                returns ? "cut off" : "death", name[class], tally.runs, tally.whole, tally.failed, tally.rejoined, tally.most_views, (unsigned long long)tally.dropped);
}

static void death__local(void **state) { (void)state; every(LOCAL, false, WINDOW, 5); }
static void death__agree(void **state) { (void)state; every(AGREE, false, WINDOW, 5); }
static void death__exact(void **state) { (void)state; every(EXACT, false, WINDOW, 5); }
static void death__carry(void **state) { (void)state; every(CARRY, false, WINDOW, 5); }
static void return__local(void **state) { (void)state; every(LOCAL, true, 4, 12); }
static void return__agree(void **state) { (void)state; every(AGREE, true, 4, 12); }
static void return__exact(void **state) { (void)state; every(EXACT, true, 4, 12); }

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(death__local),  cmocka_unit_test(death__agree),  cmocka_unit_test(death__exact),
    cmocka_unit_test(death__carry),
    cmocka_unit_test(return__local), cmocka_unit_test(return__agree), cmocka_unit_test(return__exact),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
