/* Deterministic reductions: contributions are added by rank, whatever the order in which they arrive. */
#include <math.h>
#include "compute/compute.h"
#include "core_pair.h"

enum { RANKS = 5, ELEMS = 150 };
static const uint64_t SOON = 20 * TB_MS;

static cp_work w[RANKS];
static float in[RANKS][ELEMS], out[RANKS][ELEMS];

/* Sums of these differ by their order, all of them. */
static float value(uint32_t rank, uint32_t i) {
  static const float big[RANKS] = {1e8f, 3.0f, -1e8f, 0.7f, 3e7f};
  return big[rank] * (1 + 0.01f * (float)(i % 17));
}

/* Each frame takes its own time. *seed 0: all the same. */
typedef struct { uint32_t seed, lost; } network;

static int shuffle(cp *net, cp_frame *f) {
  network *k = net->ctx;
  uint32_t h = (f->src * 31u + f->dst * 7u + f->h.chunk * 101u + f->h.stage * 13u + k->seed * 7919u) * 2654435761u;
  if (k->seed) f->at += (h >> 16) % 200 * 1000;
  bool contribution = f->h.type == TB_T_DATA && f->h.stage == 1;
  return contribution && k->lost >> f->src & 1 ? 0 : 1;
}

typedef struct {
  bool ordered, late_owner;
  uint64_t deadline;
  tb_redop op;
  tb_kind kind;
  int agree, wire, hadamard;
} job;

static void without_late_delivery(tb_tunables *t) { t->late_delivery = 0; }

static void run(const job *j, network *k) {
  cp *net = cp_new(&(cp_options){.n = RANKS, .chunk_bytes = 64, .window = 256, .delay = 100000,
                                 .tune = without_late_delivery});
  net->fate = shuffle;
  net->ctx = k;
  for (uint16_t i = 0; i < RANKS; i++) {
    uint16_t r = (uint16_t)(k->seed ? (i * 2 + k->seed) % RANKS : i); /* in another order, too */
    for (uint32_t e = 0; e < ELEMS; e++) {
      in[r][e] = j->op == TB_PROD ? 1 + 0.1f * sinf((float)(e * 3 + r)) : value(r, e);
      if (j->wire && r == 4) in[r][e] = 0.3f; /* what is left is small: rounding shows it */
    }
    tb_call call = cp_call("k", in[r], out[r], ELEMS, j->deadline);
    call.kind = (int32_t)j->kind;
    call.redop = (int32_t)j->op;
    call.consistency = j->agree;
    call.wire_dtype = j->wire;
    call.hadamard = j->hadamard;
    call.min_received = 0;
    call.deterministic = j->ordered;
    if (j->late_owner && i == 3) cp_until(net, net->now + TB_MS);
    assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
  }
  cp_wait_all(net, w, RANKS);
  cp_until(net, net->now + 10 * TB_SEC);
  for (uint16_t r = 0; r < RANKS; r++) {
    assert_int_equal(w[r].o.result.status, 0);
    assert_int_equal(net->core[r]->memory, 0);
  }
  cp_free(net);
}

static const job jobs[] = {
    {.deadline = SOON}, {.deadline = SOON, .agree = TB_AGREE}, {.deadline = UINT64_MAX},
    {.deadline = UINT64_MAX, .op = TB_PROD}, {.deadline = SOON, .op = TB_AVG, .late_owner = true},
    {.deadline = UINT64_MAX, .wire = TB_BF16}, {.deadline = SOON, .hadamard = TB_TRANSFORMED, .agree = TB_AGREE},
    {.deadline = UINT64_MAX, .kind = TB_REDUCE_SCATTER}};

static void order__same_bits_whatever_arrives_first(void **state) {
  (void)state;
  static float first[RANKS][ELEMS];
  for (size_t k = 0; k < 2 * sizeof jobs / sizeof *jobs; k++) {
    job j = jobs[k / 2];
    j.ordered = k & 1;
    uint32_t differ = 0;
    for (uint32_t seed = 0; seed < 6; seed++) {
      run(&j, &(network){.seed = seed});
      for (int r = 0; r < RANKS; r++) {
        assert_int_equal(w[r].o.result.verdict, TB_VERDICT_OK);
        if (seed == 0) memcpy(first[r], w[r].result, w[r].out_bytes);
        else differ += memcmp(first[r], w[r].result, w[r].out_bytes) != 0;
      }
      cp_work_free(w, RANKS);
    }
    if (j.ordered) assert_int_equal(differ, 0);
    else if (!differ) fail_msg("job %zu: no order differs", k / 2);
  }
}

/* The order is that of ranks, also among those that count. */
static void order__is_that_of_ranks(void **state) {
  (void)state;
  uint32_t came = 0;
  for (uint32_t lost = 0; lost < 1 << RANKS; lost++)
    for (int mean = 0; mean < 2; mean++) {
      job j = {.ordered = true, .deadline = 3 * TB_MS, .op = mean ? TB_AVG : TB_SUM};
      run(&j, &(network){.seed = lost + 1, .lost = lost});
      tb_geometry g = w[0].o.geometry;
      uint8_t mask[ELEMS];
      tb_outcome_mask(&w[0].o, mask);
      for (uint32_t owner = 0; owner < RANKS; owner++) {
        uint64_t start, len;
        tb_geo_shard(&g, owner, &start, &len);
        for (uint64_t i = start; i < start + len; i++) {
          if (!mask[i]) continue; /* decided so late that it did not come */
          came++;
          float sum = 0;
          uint32_t count = 0;
          for (uint32_t r = 0; r < RANKS; r++) {
            if (r != owner && lost >> r & 1) continue;
            if (count++) tb_reduce_next(TB_SUM, TB_F32, &sum, &(float){value(r, (uint32_t)i)}, 1);
            else sum = value(r, (uint32_t)i);
          }
          tb_reduce_last(TB_F32, &sum, &sum, mean || count == RANKS ? 1 : RANKS, mean || count < RANKS ? count : 1, 1);
          assert_memory_equal(&w[0].result[i], &sum, sizeof sum);
        }
      }
      cp_work_free(w, RANKS);
    }
  assert_in_range(came, 32 * ELEMS, 64 * ELEMS);
}

static void order__is_agreed_on(void **state) {
  (void)state;
  cp *net = cp_plain(2);
  for (uint16_t r = 0; r < 2; r++) {
    cp_fill(in[r], ELEMS, 0, 1);
    tb_call call = cp_call("k", in[r], in[r], ELEMS, SOON);
    call.deterministic = r;
    assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
  }
  cp_wait_all(net, w, 2);
  for (int r = 0; r < 2; r++) {
    assert_int_equal(w[r].o.result.status, -EPROTO);
    assert_non_null(strstr(w[r].o.error, "order=any"));
    assert_non_null(strstr(w[r].o.error, "order=ranks"));
  }
  cp_work_free(w, 2);
  cp_free(net);
}

static void order__memory_is_counted_where_it_matters(void **state) {
  (void)state;
  static const struct { int type, deterministic; size_t more; } at[] = {
      {TB_F32, 0, 0}, {TB_F32, 1, ELEMS * 4}, {TB_I32, 1, 0}};
  size_t plain = 0;
  for (size_t k = 0; k < sizeof at / sizeof *at; k++) {
    cp *net = cp_plain(RANKS);
    tb_call call = cp_call("k", in[0], out[0], ELEMS, UINT64_MAX);
    call.dtype = at[k].type;
    call.deterministic = at[k].deterministic;
    assert_int_equal(cp_issue(net, 0, &w[0], &call), 0);
    if (k == 0) plain = net->core[0]->memory;
    assert_in_range(net->core[0]->memory - plain, at[k].more, at[k].more + (at[k].more ? 64 * RANKS + 32 : 0));
    tb_core_cancel(net->core[0], &w[0].o, -ECANCELED, "end of test", net->now);
    cp_wait(net, &w[0]);
    cp_work_free(w, 1);
    cp_free(net);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(order__same_bits_whatever_arrives_first),
      cmocka_unit_test(order__is_that_of_ranks),
      cmocka_unit_test(order__is_agreed_on),
      cmocka_unit_test(order__memory_is_counted_where_it_matters),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
