/* test_explore.c - the C code itself as a checked model: small jobs are run again and again, once for every way the
 * network can treat them, and each run is judged.
 *
 * Exhaustive are: every subset of any WINDOW frames in a row lost (of every type: data, OPEN, receipts, marks, grants),
 * the frames that take their place again under the same rule where they fall into the window; the same with duplicates
 * that arrive late; and a rank that stops for good at any frame. Two rounds follow each other, so that frames of the
 * first are about in the second.
 *
 * Judged are: never late (1, 2); never torn, never added twice, never from another round (10): every decided chunk is
 * the renormalised sum of a set of contributions to that round, whole; that set is the same on all ranks (11); what is
 * not decided is zero and not in the mask, unless it comes late from a round before (13); carried rounds add up to all
 * contributions once the key is flushed (15); exact rounds are complete or an error with the input restored; agreed
 * rounds are the same bytes or an error with the input restored, and without a crash never an error (17).
 */
#include "core_pair.h"

enum { TURNS = 2, CHUNKS = 2, PER_CHUNK = 4, MOST = 3, WINDOW = 9, STEP = 3, LAST_FRAME = 60 };
typedef enum { LOCAL, AGREE, EXACT, CARRY } mode;
typedef enum { LOSE, REPEAT } treatment;

typedef struct {
  uint32_t n, begin, mask;  /* bit i: frame begin + i is treated */
  treatment how;
  mode class;
  uint32_t crash_at;        /* rank n - 1 stops when so many frames were made; UINT32_MAX = never */
  uint32_t frames;
} plan;

typedef struct {
  cp_work w[TURNS];
  float x[TURNS][MOST * CHUNKS * PER_CHUNK], before[TURNS][MOST * CHUNKS * PER_CHUNK];
  int begun;
} rank_state;

static const uint64_t DEADLINE = TB_MS;
/* of the present test: runs, and results of their calls */
static struct { uint32_t runs, whole, partial, failed; } tally;

static void quick(tb_tunables *t) {
  t->rto_min = TB_MS / 5;
  t->rto_max = 2 * TB_MS;
  t->peer_timeout = 20 * TB_MS;
}

static int treat(cp *net, cp_frame *f) {
  plan *p = net->ctx;
  uint32_t i = p->frames++;
  if (p->frames > p->crash_at) net->stopped[p->n - 1] = true;
  if (i < p->begin || i - p->begin >= WINDOW || !(p->mask >> (i - p->begin) & 1)) return 1;
  if (p->how == LOSE) return 0;
  /* the copy that depart() makes arrives as late as this one: the first is what retransmission gives */
  f->at += 7 * net->opt.delay;
  return 2;
}

/* What rank r gives in its t-th call: sums of any subset, scaled or not, differ from all others. */
static float gift(uint32_t r, int t) {
  static const float of[MOST][TURNS] = {{6, 42}, {66, 486}, {606, 5046}};
  return of[r][t];
}

static void begin(cp *net, const plan *p, uint16_t r, rank_state *s) {
  uint64_t count = p->n * CHUNKS * PER_CHUNK;
  int t = s->begun++;
  cp_fill(s->x[t], count, gift(r, t), 0);
  memcpy(s->before[t], s->x[t], sizeof s->x[t]);
  tb_call call = cp_call("k", s->x[t], s->x[t], count, p->class == EXACT ? UINT64_MAX : DEADLINE);
  call.consistency = p->class == AGREE ? TB_AGREE : TB_LOCAL;
  call.missing = p->class == CARRY ? TB_CARRY : TB_RENORMALISE;
  call.min_received = 0;
  int rc = cp_issue(net, r, &s->w[t], &call);
  if (rc) { /* after a failure the next call may be refused: that ends this rank's job */
    assert_true(rc == -ESTALE || rc == -EHOSTDOWN);
    s->begun = TURNS + t; /* remembers how many were begun */
  }
}

static int calls(const rank_state *s) { return s->begun >= TURNS ? (s->begun == TURNS ? TURNS : s->begun - TURNS) : s->begun; }

static void play(cp *net, const plan *p, rank_state *s) {
  for (uint16_t r = 0; r < p->n; r++) begin(net, p, r, &s[r]);
  uint64_t stop = net->now + TB_SEC;
  for (bool more = true; more && net->now < stop;) {
    more = false;
    for (uint16_t r = 0; r < p->n; r++) {
      int t = calls(&s[r]) - 1;
      if (net->stopped[r]) continue;
      if (t >= 0 && !s[r].w[t].done) more = true;
      else if (s[r].begun < TURNS) {
        begin(net, p, r, &s[r]);
        more = true;
      }
    }
    if (more) cp_until(net, net->now + net->opt.delay);
  }
}

/* The set of contributions whose sum, scaled, is v; 0 = none. */
static uint32_t set_of(const plan *p, const rank_state *s, uint32_t round, float v) {
  uint32_t found = 0;
  for (uint32_t set = 1; set < 1u << p->n; set++) {
    float sum = 0;
    uint32_t count = 0;
    bool possible = true;
    for (uint32_t r = 0; r < p->n; r++) {
      if (!(set >> r & 1)) continue;
      int turn = -1;
      for (int t = 0; t < calls(&s[r]); t++) {
        const tb_outcome *o = &s[r].w[t].o;
        /* still under way: nobody jumped in such short jobs but late */
        uint32_t mine = s[r].w[t].done ? o->result.round : (uint32_t)t;
        if (mine == round) turn = t;
      }
      if (turn < 0) possible = false;
      else sum += gift(r, turn);
      count++;
    }
    if (possible && sum * (float)p->n / (float)count == v) {
      assert_int_equal(found, 0);
      found = set;
    }
  }
  return found;
}

static bool has(const cp_work *w, uint32_t at) {
  uint8_t mask[MOST * CHUNKS * PER_CHUNK];
  tb_outcome_mask(&w->o, mask);
  return mask[at * PER_CHUNK];
}

/* Rule 13: v is this round's value (or none), and with it may be that of a round before, which had not come in time. */
static uint32_t set_with_late(const plan *p, const rank_state *s, uint32_t r, int t, uint32_t at, float v,
                              uint32_t decided[TURNS + 2][MOST * CHUNKS]) {
  for (int before = -1; before < t; before++) {
    if (before >= 0 && (!s[r].w[before].done || has(&s[r].w[before], at))) continue;
    uint32_t round = before < 0 ? 0 : s[r].w[before].o.result.round;
    for (uint32_t late = before < 0 ? 0 : 1; late < (before < 0 ? 1u : 1u << p->n); late++) {
      float sum = 0;
      for (uint32_t q = 0; q < p->n; q++) /* these jobs are short: the turn is the round, but for a rank that jumped */
        if (late >> q & 1) sum += gift(q, (int)round < TURNS ? (int)round : TURNS - 1);
      if (late) sum = sum * (float)p->n / (float)__builtin_popcount(late);
      if (late && decided[round][at] && decided[round][at] != late) continue;
      uint32_t mine = has(&s[r].w[t], at) ? set_of(p, s, s[r].w[t].o.result.round, v - sum) : 0;
      bool fits = has(&s[r].w[t], at) ? mine != 0 : v == sum;
      uint32_t known = decided[s[r].w[t].o.result.round][at];
      if (fits && (!mine || !known || known == mine)) return mine ? mine : UINT32_MAX;
    }
  }
  return 0;
}

static void expect_input(const plan *p, const rank_state *s, int t) {
  assert_memory_equal(s->w[t].result, s->before[t], p->n * CHUNKS * PER_CHUNK * sizeof(float));
}

static void judge(const plan *p, const rank_state *s, const cp *net) {
  uint32_t decided[TURNS + 2][MOST * CHUNKS] = {{0}};
  const rank_state *agreed[TURNS + 2] = {NULL};
  int agreed_turn[TURNS + 2];
  for (uint32_t r = 0; r < p->n; r++) {
    for (int t = 0; t < calls(&s[r]); t++) {
      const cp_work *w = &s[r].w[t];
      const tb_result *o = &w->o.result;
      if (net->stopped[r] && !w->done) continue;
      assert_true(w->done); /* nothing waits without a bound */
      if (p->class == LOCAL) assert_true(o->elapsed_ns <= DEADLINE);
      tally.whole += o->verdict == TB_VERDICT_OK;
      tally.partial += !o->status && o->verdict != TB_VERDICT_OK;
      tally.failed += o->status != 0;
      if (o->status) {
        assert_true(p->class != LOCAL && p->crash_at != UINT32_MAX);
        expect_input(p, &s[r], t);
        continue;
      }
      if (o->verdict == TB_VERDICT_SKIP) {
        expect_input(p, &s[r], t);
        continue;
      }
      assert_true(o->round < TURNS + 2);
      uint8_t mask[MOST * CHUNKS * PER_CHUNK];
      tb_outcome_mask(&w->o, mask);
      double share = 0;
      for (uint32_t at = 0; at < p->n * CHUNKS; at++) {
        const float *v = w->result + at * PER_CHUNK;
        for (int i = 1; i < PER_CHUNK; i++)
          assert_true(v[i] == v[0] && mask[at * PER_CHUNK + i] == mask[at * PER_CHUNK]);
        if (o->late > 0) {
          uint32_t set = set_with_late(p, s, r, t, at, v[0], decided);
          assert_int_not_equal(set, 0);
          if (set != UINT32_MAX) {
            decided[o->round][at] = set;
            share += (double)__builtin_popcount(set & ~(1u << r));
          }
          continue;
        }
        if (!mask[at * PER_CHUNK]) {
          assert_true(v[0] == 0 && p->class != EXACT);
          continue;
        }
        uint32_t set = set_of(p, s, o->round, v[0]);
        assert_int_not_equal(set, 0);
        if (p->class == EXACT) assert_int_equal(set, (1u << p->n) - 1);
        if (decided[o->round][at]) assert_int_equal(set, decided[o->round][at]);
        decided[o->round][at] = set;
        share += (double)__builtin_popcount(set & ~(1u << r));
      }
      share /= (double)(p->n * CHUNKS * (p->n - 1));
      assert_true(o->received > share - 1e-9 && o->received < share + 1e-9);
      if (p->class != AGREE) continue;
      if (agreed[o->round])
        assert_memory_equal(agreed[o->round]->w[agreed_turn[o->round]].result, w->result,
                            p->n * CHUNKS * PER_CHUNK * sizeof(float));
      agreed[o->round] = &s[r];
      agreed_turn[o->round] = t;
    }
  }
}

/* Rule 15: flush, with the exact sum done by hand; then all outputs and the correction are all contributions,
 * everywhere. */
static void expect_conserved(cp *net, const plan *p, const rank_state *s) {
  uint64_t count = p->n * CHUNKS * PER_CHUNK;
  uint32_t most = 0, next;
  float residual[MOST * CHUNKS * PER_CHUNK] = {0}, part[MOST * CHUNKS * PER_CHUNK];
  cp_work settled[MOST];
  double given = 0;
  for (uint16_t r = 0; r < p->n; r++) {
    assert_int_equal(tb_core_next_round(net->core[r], "k", 1, &next), 0);
    if (tb_before(most, next)) most = next;
    for (int t = 0; t < calls(&s[r]); t++) given += (double)gift(r, t);
  }
  for (uint16_t r = 0; r < p->n; r++) {
    settled[r] = (cp_work){.net = net, .rank = r};
    assert_int_equal(tb_core_flush_begin(net->core[r], "k", 1, most, net->now), 0);
    assert_int_equal(tb_core_settle(net->core[r], "k", 1, net->now, &settled[r].o), 0);
  }
  cp_wait_all(net, settled, p->n);
  for (uint16_t r = 0; r < p->n; r++) {
    assert_int_equal(settled[r].o.result.status, 0);
    assert_int_equal(tb_core_flush_take(net->core[r], "k", 1, part, count * sizeof(float)), 0);
    for (uint64_t i = 0; i < count; i++) residual[i] += part[i];
  }
  for (uint16_t r = 0; r < p->n; r++) {
    memcpy(part, residual, sizeof part);
    assert_int_equal(tb_core_flush_end(net->core[r], "k", 1, part, count * sizeof(float)), 0);
    for (int t = 0; t < calls(&s[r]); t++)
      for (uint64_t i = 0; i < count; i++) part[i] += s[r].w[t].result[i];
    for (uint64_t i = 0; i < count; i++) assert_true((double)part[i] == given);
    assert_int_equal(net->core[r]->n.dropped_values, 0);
  }
  cp_work_free(settled, p->n);
}

static void tally_carried(const plan *p, const rank_state *s) {
  for (uint32_t r = 0; r < p->n; r++)
    for (int t = 0; t < calls(&s[r]); t++) {
      const tb_result *o = &s[r].w[t].o.result;
      assert_true(s[r].w[t].done && !o->status && o->elapsed_ns <= DEADLINE);
      tally.whole += o->verdict == TB_VERDICT_OK;
      tally.partial += o->verdict != TB_VERDICT_OK;
    }
}

static void run(plan p) {
  cp *net = cp_new(&(cp_options){.n = p.n, .chunk_bytes = PER_CHUNK * sizeof(float), .window = 64, .delay = 50000,
                                 .tune = quick});
  static rank_state s[MOST];
  memset(s, 0, sizeof s);
  net->fate = treat;
  net->ctx = &p;
  play(net, &p, s);
  if (p.class == CARRY) {
    tally_carried(&p, s);
    expect_conserved(net, &p, s);
  } else {
    judge(&p, s, net);
  }
  for (uint32_t r = 0; r < p.n; r++)
    if (!net->stopped[r]) cp_work_free(s[r].w, (uint32_t)calls(&s[r]));
    else
      for (int t = 0; t < TURNS; t++) {
        if (!s[r].w[t].done && t < calls(&s[r]))
          tb_core_cancel(net->core[r], &s[r].w[t].o, -ECANCELED, "over", net->now);
        free(s[r].w[t].result);
        tb_outcome_free(&s[r].w[t].o);
      }
  cp_free(net);
  tally.runs++;
}

static void told(const char *what, uint32_t n, mode class) {
  static const char *const name[] = {"local", "agree", "exact", "carry"};
  print_message("  %s, %u ranks, %s: %u runs; calls: %u whole, %u partial, %u failed\n", what, n, name[class],
                tally.runs,
                tally.whole, tally.partial, tally.failed);
  memset(&tally, 0, sizeof tally);
}

static void every_subset(uint32_t n, mode class, treatment how, uint32_t bits, uint32_t step) {
  for (uint32_t begin = 0; begin < LAST_FRAME; begin += step)
    for (uint32_t mask = 1; mask < 1u << bits; mask++)
      run((plan){.n = n, .begin = begin, .mask = mask, .how = how, .class = class, .crash_at = UINT32_MAX});
  /* else nothing was put to the test */
  assert_true(tally.whole > 0 && (class != LOCAL || how != LOSE || tally.partial > 0));
  told(how == LOSE ? "every loss" : "every duplicate", n, class);
}

static void every_crash(uint32_t n, mode class, uint32_t bits) {
  for (uint32_t at = 0; at < LAST_FRAME; at++)
    for (uint32_t mask = 0; mask < 1u << bits; mask++)
      run((plan){.n = n, .begin = at, .mask = mask, .class = class, .crash_at = at});
  assert_true(class == LOCAL ? tally.partial > 0 : tally.failed > 0);
  told("a crash at every frame", n, class);
}

static void loss__local_two_ranks(void **state) { (void)state; every_subset(2, LOCAL, LOSE, WINDOW, STEP); }
static void loss__local_three_ranks(void **state) { (void)state; every_subset(3, LOCAL, LOSE, 7, 4); }
static void loss__carry_two_ranks(void **state) { (void)state; every_subset(2, CARRY, LOSE, WINDOW, STEP); }
static void loss__carry_three_ranks(void **state) { (void)state; every_subset(3, CARRY, LOSE, 7, 4); }
static void repeat__carry(void **state) { (void)state; every_subset(2, CARRY, REPEAT, 7, 4); }
static void loss__agree_two_ranks(void **state) { (void)state; every_subset(2, AGREE, LOSE, WINDOW, STEP); }
static void loss__agree_three_ranks(void **state) { (void)state; every_subset(3, AGREE, LOSE, 7, 4); }
static void loss__exact_two_ranks(void **state) { (void)state; every_subset(2, EXACT, LOSE, WINDOW, STEP); }
static void repeat__local(void **state) { (void)state; every_subset(2, LOCAL, REPEAT, 7, 4); }
static void repeat__agree(void **state) { (void)state; every_subset(2, AGREE, REPEAT, 7, 4); }
static void crash__local(void **state) { (void)state; every_crash(3, LOCAL, 3); }
static void crash__agree(void **state) { (void)state; every_crash(3, AGREE, 3); }
static void crash__exact(void **state) { (void)state; every_crash(3, EXACT, 3); }

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(loss__local_two_ranks), cmocka_unit_test(loss__local_three_ranks),
    cmocka_unit_test(loss__carry_two_ranks), cmocka_unit_test(loss__carry_three_ranks), cmocka_unit_test(repeat__carry),
    cmocka_unit_test(loss__agree_two_ranks), cmocka_unit_test(loss__agree_three_ranks),
    cmocka_unit_test(loss__exact_two_ranks), cmocka_unit_test(repeat__local),
    cmocka_unit_test(repeat__agree),         cmocka_unit_test(crash__local),
    cmocka_unit_test(crash__agree),          cmocka_unit_test(crash__exact),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
