/* test_tx.c - who is sent to, in which turn (tx.c). */
#include "core_pair.h"

enum { COUNT = 4096, FRAMES = 100, LONGEST = 4 };

/* The destinations of the first data frames that rank 0 of 4 makes, as runs of (rank, length). */
typedef struct { uint32_t to, length; } stretch;

static void leave_turns_default(tb_tunables *t) { t->burst = LONGEST; }
static void one_after_the_other(tb_tunables *t) {
  t->burst = LONGEST;
  t->incast = 1;
}

static int note(cp *net, cp_frame *f) {
  stretch *s = net->ctx;
  if (f->h.type != TB_T_DATA || f->src != 0 || f->h.stage != 1) return 1;
  while (s->length && s[1].length) s++;
  if (s->length && s->to != f->dst) s++;
  s->to = f->dst;
  s->length++;
  return 1;
}

static void record(void (*tune)(tb_tunables *t), stretch *found) {
  cp *net = cp_new(&(cp_options){.n = 4, .chunk_bytes = 64, .window = 256, .delay = 100000, .tune = tune});
  cp_work w[4] = {{.rank = 0}};
  static float in[4][COUNT], out[4][COUNT];
  net->fate = note;
  net->ctx = found;
  for (uint16_t r = 0; r < 4; r++) {
    cp_fill(in[r], COUNT, 1, 0);
    tb_call call = cp_call("k", in[r], out[r], COUNT, UINT64_MAX);
    assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
  }
  cp_wait_all(net, w, 4);
  cp_expect(w[0].result, COUNT, 4, 0);
  cp_work_free(w, 4);
  cp_free(net);
}

/* Side by side: nobody gets more than a burst before the next one's turn, and the three get the same. */
static void turns__peers_are_served_side_by_side(void **state) {
  (void)state;
  static stretch found[4 * FRAMES];
  record(leave_turns_default, found);
  uint32_t sent[4] = {0};
  for (int i = 0; i < 9; i++) {
    assert_int_equal(found[i].length, LONGEST);
    sent[found[i].to] += found[i].length;
  }
  for (int p = 1; p < 4; p++) assert_int_equal(sent[p], 3 * LONGEST);
}

/* incast=1: the first peer of the round's order has everything before the second gets anything. */
static void turns__one_peer_after_the_other(void **state) {
  (void)state;
  static stretch found[4 * FRAMES];
  record(one_after_the_other, found);
  for (uint32_t i = 0; i < 3; i++) {
    assert_int_equal(found[i].to, tb_geo_order(4, 0, 0, i));
    assert_int_equal(found[i].length, COUNT / 4 * sizeof(float) / 64);
  }
  assert_int_equal(found[3].length, 0);
}

/* Who has something to say to everybody begins with the next rank: else all would speak to rank 0 at the same
 * moment. */
static int first_open(cp *net, cp_frame *f) {
  uint16_t *to = net->ctx;
  if (f->h.type == TB_T_OPEN && to[f->src] == UINT16_MAX) to[f->src] = f->dst;
  return 1;
}

static void order__control_frames_begin_with_the_next_rank(void **state) {
  (void)state;
  uint16_t to[4] = {UINT16_MAX, UINT16_MAX, UINT16_MAX, UINT16_MAX};
  cp *net = cp_new(&(cp_options){.n = 4, .chunk_bytes = 64, .window = 256, .delay = 20000});
  cp_work w[4] = {{.rank = 0}};
  static float in[4][COUNT], out[4][COUNT];
  net->fate = first_open;
  net->ctx = to;
  for (uint16_t r = 0; r < 4; r++) {
    cp_fill(in[r], COUNT, 1, 0);
    tb_call call = cp_call("k", in[r], out[r], COUNT, UINT64_MAX);
    assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
  }
  cp_wait_all(net, w, 4);
  for (uint16_t r = 0; r < 4; r++) assert_int_equal(to[r], (r + 1) % 4);
  cp_work_free(w, 4);
  cp_free(net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(turns__peers_are_served_side_by_side),
    cmocka_unit_test(turns__one_peer_after_the_other),
    cmocka_unit_test(order__control_frames_begin_with_the_next_rank),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
