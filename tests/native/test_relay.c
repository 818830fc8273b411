/* test_relay.c - hierarchical all-reduce (relay.c): values, counts, who talks to whom, loss of any frame, rounds,
 * errors and frames that lie. test_relay_duty.c has ranks that are late, away, or return early. */
#include "relay_round.h"


/* ---- the same values as without groups */

static void all_reduce__any_count_op_and_shape(void **state) {
  (void)state;
  static const uint64_t counts[] = {0, 1, 3, 8, 16, 17, 127, 128, 129, 640, 1001};
  static cp_work w[CP_RANKS];
  static float x[CP_RANKS][1001], y[CP_RANKS][1001];
  for (int s = 0; s < SHAPES; s++)
    for (int spread = 0; spread < 2; spread++) {
      cp *net = grouped(shapes[s].n, shapes[s].size, spread);
      uint32_t n = net->n;
      for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
        for (int op = TB_SUM; op <= TB_MAX; op++)
          for (int lossy = 0; lossy < (op <= TB_AVG ? 2 : 1); lossy++) {
            bool in_place = (k + (size_t)op) % 2;
            for (uint16_t r = 0; r < n; r++) {
              cp_fill(x[r], counts[k], r, 1);
              tb_call call = cp_call(NULL, x[r], in_place ? x[r] : y[r], counts[k], lossy ? 50 * TB_MS : EXACT);
              call.redop = op;
              call.groups = 1;
              assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
            }
            cp_wait_all(net, w, n);
            float all = (float)(n * (n - 1)) / 2, m = (float)n;
            for (uint16_t r = 0; r < n; r++) {
              assert_int_equal(w[r].o.result.status, 0);
              assert_true(w[r].o.result.received == 1.0);
              assert_int_equal(w[r].o.result.verdict, TB_VERDICT_OK);
              if (op == TB_SUM) cp_expect(w[r].result, counts[k], all, m);
              if (op == TB_AVG) cp_expect(w[r].result, counts[k], all / m, 1);
              if (op == TB_MIN) cp_expect(w[r].result, counts[k], 0, 1);
              if (op == TB_MAX) cp_expect(w[r].result, counts[k], m - 1, 1);
            }
            cp_work_free(w, n);
          }
      cp_until(net, net->now + TB_SEC);
      for (uint16_t r = 0; r < n; r++) assert_int_equal(net->core[r]->memory, 0);
      cp_free(net);
    }
}

/* The point of it: nobody sends to more than m - 1 + k - 1 others, neither data nor OPENs; each sends what it would
 * without. */
static void kin__nobody_else_hears_anything(void **state) {
  (void)state;
  static cp_work w[CP_RANKS];
  static double x[CP_RANKS][RR_COUNT];
  for (int s = 0; s < SHAPES; s++) {
    cp *net = grouped(shapes[s].n, shapes[s].size, s & 1);
    for (uint16_t r = 0; r < net->n; r++) assert_int_equal(give(net, r, &w[r], "k", x[r], EXACT), 0);
    cp_wait_all(net, w, net->n);
    for (uint16_t r = 0; r < net->n; r++)
      for (uint16_t p = 0; p < net->n; p++) {
        bool kin = net->core[r]->tree->kin[p] >= TB_KIN_NEAR;
        assert_int_equal(net->data_sent[r][p] > 0, kin);
        assert_int_equal(net->core[r]->peer[p].n.control_sent > 0, kin);
        if (p != r) assert_int_equal(isnan(w[r].o.per_peer[0][p]), !kin); /* it owed nothing */
      }
    check_results(net, w, net->n, NULL);
    cp_work_free(w, net->n);
    cp_free(net);
  }
}

/* The switch: groups = -1, or a call that cannot be grouped, goes to everybody. */
static void switch__without_groups_everybody_hears(void **state) {
  (void)state;
  static cp_work w[4];
  static float x[4][RR_COUNT];
  for (int how = 0; how < 3; how++) {
    cp *net = grouped(4, 2, false);
    for (uint16_t r = 0; r < 4; r++) {
      cp_fill(x[r], RR_COUNT, r, 1);
      tb_call call = cp_call("k", x[r], x[r], RR_COUNT, 50 * TB_MS);
      if (how == 0) call.groups = -1;
      if (how == 1) call.consistency = TB_AGREE;
      if (how == 2) call.missing = TB_CARRY;
      assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
    }
    cp_wait_all(net, w, 4);
    for (uint16_t r = 0; r < 4; r++) {
      cp_expect(w[r].result, RR_COUNT, 6, 4);
      for (uint16_t p = 0; p < 4; p++) assert_int_equal(net->data_sent[r][p] > 0, p != r);
    }
    cp_work_free(w, 4);
    cp_free(net);
  }
}

static void refused__where_it_cannot_be(void **state) {
  (void)state;
  cp *net = grouped(4, 2, false), *flat = cp_plain(4);
  cp_work w;
  float x[8];
  for (int how = 0; how < 8; how++) {
    tb_call call = cp_call("k", x, x, 8, 50 * TB_MS);
    call.groups = 1;
    if (how == 0) call.missing = TB_CARRY;
    if (how == 1) call.consistency = TB_AGREE;
    if (how == 2) call.wire_dtype = TB_BF16;
    if (how == 3) call.hadamard = 1;
    if (how == 4) call.dtype = TB_F16;
    if (how == 5) call.kind = TB_BROADCAST;
    if (how == 6) call.groups = 2;
    if (how == 7) call.deterministic = 1;
    assert_int_equal(cp_issue(net, 0, &w, &call), -EINVAL);
    assert_non_null(strstr(w.o.error, "groups"));
  }
  tb_call call = cp_call("k", x, x, 8, 50 * TB_MS);
  call.groups = 1;
  assert_int_equal(cp_issue(flat, 0, &w, &call), -EINVAL);
  assert_non_null(strstr(w.o.error, "has no groups"));
  cp_free(net);
  cp_free(flat);
}

/* ---- loss of any frame */

typedef struct { uint64_t seed; double loss, twice, late; uint64_t until; } weather;

static double dice(weather *w) {
  w->seed = w->seed * 6364136223846793005u + 1442695040888963407u;
  return (double)(w->seed >> 11) / 9007199254740992.0;
}

static int bad_weather(cp *net, cp_frame *f) {
  weather *w = net->ctx;
  if (net->now >= w->until) return 1;
  if (dice(w) < w->loss) return 0;
  if (dice(w) < w->late) f->at += 150000; /* behind what was sent after it */
  return dice(w) < w->twice ? 2 : 1;
}

/* Frames of all types lost, repeated and overtaken. Exact: all of it; lossy: by the deadline, and nothing but whole
 * contributions counted once. With time for repair nothing is missing. */
static void loss__of_any_frame(void **state) {
  (void)state;
  static cp_work w[CP_RANKS];
  static double x[CP_RANKS][RR_COUNT];
  for (int s = 0; s < SHAPES; s++)
    for (uint64_t seed = 1; seed <= 6; seed++)
      for (int how = 0; how < 3; how++) { /* exact, a deadline with time for repair, one without */
        weather bad = {.seed = seed * 977 + (uint64_t)s, .loss = how == 2 ? 0.2 : 0.05, .twice = 0.05, .late = 0.1,
                       .until = UINT64_MAX};
        cp *net = cp_new(&(cp_options){.n = shapes[s].n, .chunk_bytes = 64, .window = 256, .delay = 100000,
                                       .async_refs = seed & 1, .ref_hold = seed & 2 ? 150000 : 0});
        group(net, shapes[s].size, seed & 1);
        uint32_t n = net->n;
        net->fate = bad_weather;
        net->ctx = &bad;
        for (uint32_t round = 0; round < 4; round++) {
          uint64_t began = net->now, deadline = how == 0 ? EXACT : how == 1 ? 300 * TB_MS : 2 * TB_MS;
          const char *key = how == 2 ? NULL : "k";
          for (uint16_t r = 0; r < n; r++) assert_int_equal(give(net, r, &w[r], key, x[r], deadline), 0);
          cp_wait_all(net, w, n);
          check_results(net, w, n, NULL);
          for (uint16_t r = 0; r < n; r++) {
            assert_int_equal(w[r].o.result.status, 0);
            if (how == 2) assert_in_range(w[r].done_at - began, 0, deadline + (bad.seed ? net->opt.ref_hold : 0));
            else if (w[r].o.result.received != 1.0)
              fail_msg("shape %d, seed %d, how %d, round %u: rank %u received %g", s, (int)seed, how, round, r,
                       w[r].o.result.received);
          }
          cp_work_free(w, n);
        }
        bad.until = net->now;
        cp_until(net, net->now + 30 * TB_SEC);
        for (uint16_t r = 0; r < n; r++) assert_null(net->core[r]->ops);
        cp_free(net);
      }
}

/* Rule 13: decided chunks that miss the deadline on their way across come late, to the relay and to its group. */
typedef struct { uint64_t until; } outage;

static int no_hand_out_across(cp *net, cp_frame *f) {
  const outage *o = net->ctx;
  bool handed = f->h.type == TB_T_DATA && f->h.stage == 2 && f->h.level == 1;
  return !(handed && f->dst == 0 && net->now < o->until);
}

static void late__decided_chunks_reach_the_group(void **state) {
  (void)state;
  cp *net = grouped(4, 2, false);
  static cp_work w[4];
  static double x[4][RR_COUNT];
  for (uint16_t r = 0; r < 4; r++) assert_int_equal(give(net, r, &w[r], "warm", x[r], EXACT), 0);
  cp_wait_all(net, w, 4);
  cp_work_free(w, 4);
  outage o = {net->now + 25 * TB_MS};
  net->fate = no_hand_out_across;
  net->ctx = &o;
  double late[4];
  for (uint32_t round = 0; round < 2; round++) {
    for (uint16_t r = 0; r < 4; r++) assert_int_equal(give(net, r, &w[r], "k", x[r], 20 * TB_MS), 0);
    cp_wait_all(net, w, 4);
    for (uint16_t r = 0; r < 4; r++) late[r] = w[r].o.result.late;
    if (round == 1)
      for (uint16_t r = 0; r < 2; r++) { /* rank 2's shard of round 0, added to round 1 */
        double want = weight[0] + weight[1] + weight[2] + weight[3], *y = (double *)(void *)w[r].result;
        uint64_t first, len;
        tb_geometry g = w[r].o.geometry;
        g.rotation = 0;
        tb_geo_shard(&g, 2, &first, &len);
        for (uint64_t i = 0; i < RR_COUNT; i++) assert_true(y[i] == (i >= first && i < first + len ? 2 * want : want));
        assert_true(fabs(late[r] - (double)len / RR_COUNT) < 1e-12);
      }
    else for (uint16_t r = 0; r < 4; r++) assert_int_equal(w[r].o.result.received == 1.0, r >= 2);
    cp_work_free(w, 4);
    cp_until(net, net->now + 200 * TB_MS);
  }
  assert_true(late[2] == 0 && late[3] == 0);
  cp_until(net, net->now + 30 * TB_SEC);
  for (uint16_t r = 0; r < 4; r++) assert_null(net->core[r]->ops);
  cp_free(net);
}

/* ---- rounds, mismatches and lies */

/* Rule 8: nothing is heard of strangers' rounds, so the quorum is one of kin. */
static void jump__goes_by_the_kin(void **state) {
  (void)state;
  static cp_work w[8];
  static double x[8][RR_COUNT];
  cp *net = grouped(8, 2, false);
  for (int i = 0; i < 3; i++) {
    for (uint16_t r = 1; r < 8; r++) assert_int_equal(give(net, r, &w[r], "k", x[r], 5 * TB_MS), 0);
    for (uint16_t r = 1; r < 8; r++) cp_wait(net, &w[r]);
    cp_work_free(w + 1, 7);
    cp_until(net, net->now + TB_MS);
  }
  /* It has never issued, and takes the key's groups from its call. */
  for (uint16_t r = 0; r < 8; r++) assert_int_equal(give(net, r, &w[r], "k", x[r], 20 * TB_MS), 0);
  cp_wait_all(net, w, 8);
  for (uint16_t r = 0; r < 8; r++) assert_int_equal(w[r].o.result.round, 3);
  for (uint16_t r = 0; r < 8; r++) assert_true(w[r].o.result.received == 1.0);
  assert_int_equal(w[0].o.result.behind, 3);
  cp_work_free(w, 8);
  cp_free(net);
}

/* Rule 19: one without groups, or with other groups: everybody is told, those too that talk to neither. */
static void mismatch__is_named_on_every_rank(void **state) {
  (void)state;
  static cp_work w[8];
  static double x[8][RR_COUNT];
  for (int other = 0; other < 3; other++)
    for (int lossy = 0; lossy < 2; lossy++) {
      cp *net = grouped(8, 4, false);
      uint16_t odd = 5;
      if (other == 1) {
        uint16_t spread[8] = {0, 1, 0, 1, 0, 1, 0, 1};
        assert_int_equal(tb_core_set_groups(net->core[odd], spread), 0);
      }
      for (uint16_t r = 0; r < 8; r++) {
        for (int i = 0; i < RR_COUNT; i++) x[r][i] = weight[r];
        tb_call call = cp_call("k", NULL, NULL, RR_COUNT, lossy ? 200 * TB_MS : EXACT);
        call.dtype = TB_F64;
        call.in = call.out = x[r];
        call.min_received = 1; /* nothing settles before all is there */
        call.groups = other == 0 && r == odd ? -1 : other == 2 && r != odd ? -1 : 0;
        assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
      }
      for (uint16_t r = 0; r < 8; r++) {
        cp_wait(net, &w[r]);
        if (w[r].o.result.status != -EPROTO || !strstr(w[r].o.error, "groups=of 4") ||
            !strstr(w[r].o.error, other == 1 ? "groups=of 4 (#" : "groups=off"))
          fail_msg("rank %u: %d %s", r, w[r].o.result.status, w[r].o.error);
        const double *y = (const double *)(void *)w[r].result;
        for (int i = 0; i < RR_COUNT; i++) assert_true(y[i] == weight[r]); /* restored */
      }
      cp_work_free(w, 8);
      cp_until(net, net->now + 30 * TB_SEC);
      for (uint16_t r = 0; r < 8; r++) assert_null(net->core[r]->ops);
      cp_free(net);
    }
}

/* An OPEN that names groups for what cannot be grouped makes no operation. */
static void untrusted__groups_where_they_cannot_be(void **state) {
  (void)state;
  for (int how = 0; how < 6; how++) {
    cp *net = grouped(4, 2, false);
    tb_open o = {.sig = {.kind = TB_ALL_REDUCE, .dtype = TB_F32, .wire_dtype = TB_F32, .chunk_elems = 16, .count = 64,
                         .groups = net->core[0]->tree->id}, .key_len = 1, .key = "k"};
    if (how == 1) o.sig.missing = TB_CARRY;
    if (how == 2) o.sig.consistency = TB_AGREE;
    if (how == 3) o.sig.dtype = o.sig.wire_dtype = TB_F16, o.sig.chunk_elems = 32;
    if (how == 4) o.sig.wire_dtype = TB_BF16, o.sig.chunk_elems = 32;
    if (how == 5) o.sig.kind = TB_ALL_GATHER;
    uint8_t body[256], frame[TB_HEAD + 256];
    tb_head h = {.type = TB_T_OPEN, .key = tb_key_hash("k", 1), .signature = tb_signature_hash(&o.sig),
                 .remaining_us = 1000, .hold_us = TB_HOLD_NONE, .credit = 256};
    uint32_t len = tb_open_encode(&o, body, sizeof body);
    cp_give(net, 0, frame, cp_forge(net, 1, 0, &h, body, len, frame));
    assert_int_equal(net->core[0]->ops != NULL, how == 0);
    assert_int_equal(net->core[0]->n.bad_body, how > 0);
    cp_free(net);
  }
}

/* Rule 24: wrong level, stage, count or chunk, and frames of a rank that is no kin. */
static void untrusted__levels_counts_and_strangers(void **state) {
  (void)state;
  cp *net = grouped(8, 4, false); /* of rank 0: 1 2 3 near, 4 across, 5 6 7 strangers */
  static cp_work w[8];
  static double x[8][RR_COUNT];
  for (uint16_t r = 0; r < 8; r++)
    if (r != 4 && r != 1) assert_int_equal(give(net, r, &w[r], "k", x[r], EXACT), 0);
  cp_until(net, net->now + TB_MS);
  tb_op *op = net->core[0]->ops;
  uint8_t frame[TB_HEAD + 64], pay[64];
  memset(pay, 0x7f, sizeof pay);
  uint32_t column = op->chunks, shard = tb_geo_chunks(&op->geo, 0);
  assert_true(column > shard);
  const struct { uint16_t src; uint8_t stage, level, flags; uint16_t count; uint32_t chunk; bool good; } lies[] = {
    {1, 1, 1, 0, 1, 0, false}, {1, 1, 2, 0, 1, 0, false}, {1, 1, 3, 0, 1, 0, false},
    {1, 1, 0, 0, 2, 0, false}, {1, 1, 0, 0, 1, column, false}, {1, 1, 0, TB_F_OWN, 1, 0, false},
    {4, 1, 0, 0, 1, 0, false}, {4, 1, 1, 0, 5, 0, false}, {4, 1, 1, 0, 0, 0, false},
    {4, 1, 1, 0, 4, shard, false}, {4, 2, 1, 0, 5, 0, false}, {4, 2, 1, 0, 0, 0, false},
    {4, 2, 1, TB_F_OWN, 4, 0, false}, /* no partial sum of ours was closed */
    {4, 2, 2, 0, 4, 0, false}, {1, 2, 1, 0, 4, 0, false}, {1, 2, 2, 0, 8, 0, false},
    {1, 2, 2, TB_F_OWN, 9, 0, false}, {5, 1, 0, 0, 1, 0, false}, {5, 1, 1, 0, 1, 0, false},
    {5, 2, 1, 0, 1, 0, false}, {5, 2, 2, 0, 1, 0, false},
    {4, 1, 1, 0, 4, 0, true},       {1, 1, 0, 0, 1, column - 1, true}};
  for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
    tb_head h = {.type = TB_T_DATA, .key = op->key->hash, .round = 0, .signature = op->sig_hash, .stage = lies[i].stage,
                 .level = lies[i].level, .flags = lies[i].flags, .count = lies[i].count, .chunk = lies[i].chunk,
                 .remaining_us = TB_REMAINING_NONE, .hold_us = TB_HOLD_NONE, .credit = 256};
    uint64_t first, refused = 0;
    tb_piece at = {0, 0};
    if (lies[i].src < 5 && lies[i].chunk < (lies[i].src == 4 ? shard : column))
      at = tb_flow_piece(net->core[0], op, lies[i].src, lies[i].stage - 1, TB_RECEIVED, lies[i].chunk);
    uint32_t len = tb_geo_chunk(&op->geo, at.owner, at.chunk, &first) * 8;
    const tb_peer_counters *n = &net->core[0]->peer[lies[i].src].n;
#define X(name) refused += n->name;
    TB_REJECTED(X)
    uint64_t before = refused, got = op->peer[lies[i].src].rx[lies[i].stage - 1].got;
    cp_give(net, 0, frame, cp_forge(net, lies[i].src, 0, &h, pay, len, frame));
    refused = 0;
    TB_REJECTED(X)
#undef X
    if ((refused > before) == lies[i].good || (op->peer[lies[i].src].rx[lies[i].stage - 1].got > got) != lies[i].good)
      fail_msg("frame %zu was %s", i, lies[i].good ? "refused" : "taken");
  }
  for (uint16_t r = 0; r < 8; r++)
    if (r != 4 && r != 1) tb_core_cancel(net->core[r], &w[r].o, -ECANCELED, "over", net->now);
  cp_until(net, net->now + TB_MS);
  for (uint16_t r = 0; r < 8; r++)
    if (r != 4 && r != 1) cp_work_free(&w[r], 1);
  cp_free(net);
}

/* A rank without groups hears of a round in groups: it holds no memory for its chunks and takes no data of it. */
static void strange__groups_that_are_not_known_here(void **state) {
  (void)state;
  cp *net = grouped(4, 2, false);
  static cp_work w[4];
  static double x[4][RR_COUNT];
  tb_hierarchy_free(net->core[3]->tree);
  net->core[3]->tree = NULL;
  for (uint16_t r = 0; r < 3; r++) assert_int_equal(give(net, r, &w[r], "k", x[r], 20 * TB_MS), 0);
  cp_until(net, net->now + 10 * TB_MS);
  const tb_op *op = net->core[3]->ops;
  assert_non_null(op);
  assert_true(op->strange && !op->chunks && !op->acc);
  assert_true(net->core[3]->peer[1].n.bad_rank > 0); /* its data */
  cp_wait_all(net, w, 3);
  cp_work_free(w, 3);
  cp_until(net, net->now + 30 * TB_SEC);
  for (uint16_t r = 0; r < 4; r++) assert_int_equal(net->core[r]->memory, 0);
  cp_free(net);
}

/* An exact operation in which a rank dies that most never talk to: all are told, by name. */
static void exact__a_dead_stranger_is_named(void **state) {
  (void)state;
  static cp_work w[8];
  static double x[8][RR_COUNT];
  cp *net = grouped(8, 2, false);
  for (uint16_t r = 0; r < 8; r++) assert_int_equal(give(net, r, &w[r], "warm", x[r], EXACT), 0);
  cp_wait_all(net, w, 8);
  cp_work_free(w, 8);
  net->stopped[7] = true;
  for (uint16_t r = 0; r < 7; r++) assert_int_equal(give(net, r, &w[r], "k", x[r], EXACT), 0);
  for (uint16_t r = 0; r < 7; r++) {
    cp_wait(net, &w[r]);
    assert_int_equal(w[r].o.result.status, -EHOSTDOWN);
    assert_non_null(strstr(w[r].o.error, "rank 7 was silent"));
    const double *y = (const double *)(void *)w[r].result;
    for (int i = 0; i < RR_COUNT; i++) assert_true(y[i] == weight[r]);
  }
  cp_work_free(w, 7);
  cp_free(net);
}

/* Rule 21: kin share three quarters of the buffer, and their windows grow into it; strangers the rest. */
static void windows__are_for_the_kin(void **state) {
  (void)state;
  static cp_work w[8];
  static float x[8][40000];
  for (int grouped_too = 0; grouped_too < 2; grouped_too++) {
    cp *net = cp_plain(8);
    if (grouped_too) group(net, 4, false);
    for (uint16_t r = 0; r < 8; r++) {
      cp_fill(x[r], 40000, r, 1);
      tb_call call = cp_call("k", x[r], x[r], 40000, EXACT);
      assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
    }
    cp_wait_all(net, w, 8);
    const tb_core *c = net->core[0];
    uint64_t all = 0;
    for (uint32_t p = 1; p < 8; p++) {
      all += c->peer[p].window;
      if (!grouped_too) assert_int_equal(c->peer[p].window, 256);
      else if (c->tree->kin[p] == TB_KIN_NONE) assert_int_equal(c->peer[p].window, 64);
      else assert_true(c->peer[p].window <= 336);
    }
    assert_true(all <= 7 * 256);
    if (grouped_too) assert_int_equal(c->peer[1].window, 336);
    cp_work_free(w, 8);
    cp_free(net);
  }
}

static void decided(cp *net, uint32_t view, uint64_t members) {
  tb_view_msg m = {.kind = TB_V_COMMIT, .view = view, .base = view * 100, .members = {{members}}};
  uint8_t body[TB_VIEW_BODY], frame[TB_CONTROL_MAX];
  tb_view_encode(&m, body, sizeof body);
  tb_head h = {.type = TB_T_VIEW};
  for (uint16_t r = 0; r < net->n; r++)
    cp_give(net, r, frame, cp_forge(net, r ? 0 : 1, r, &h, body, sizeof body, frame));
  cp_until(net, net->now + TB_MS);
}

static void exact_round(cp *net, uint16_t ranks, const char *key) {
  static cp_work w[8];
  static float x[8][40000];
  for (uint16_t r = 0; r < ranks; r++) {
    tb_call call = cp_call(key, x[r], x[r], 40000, EXACT);
    net->core[r]->untold = false;
    assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
  }
  cp_wait_all(net, w, ranks);
  cp_work_free(w, ranks);
}

/* Without a member rounds go to everybody, and all have the same share; with it again they are the kin's. */
static void windows__follow_the_view(void **state) {
  (void)state;
  cp *net = cp_plain(8);
  group(net, 4, false);
  exact_round(net, 8, "k");
  const tb_core *c = net->core[0];
  assert_int_equal(c->peer[1].window, 336);
  decided(net, 2, 0x7f);
  exact_round(net, 7, "flat");
  for (uint32_t p = 1; p < 7; p++) assert_int_equal(tb_grant_window(c, &c->peer[p], net->now), 256);
  decided(net, 3, 0xff);
  cp_work back = {.net = net, .rank = 7};
  assert_int_equal(tb_core_rejoin(net->core[7], net->now, &back.o), 0);
  cp_work_free(&back, 1);
  exact_round(net, 8, "k");
  for (uint32_t p = 1; p < 8; p++) {
    uint32_t window = tb_grant_window(c, &c->peer[p], net->now);
    assert_true(c->tree->kin[p] == TB_KIN_NONE ? window <= 64 : window >= 336);
  }
  cp_free(net);
}

/* What ends on one rank ends on all: two steps are enough, and each rank passes it on. */
static void error__is_passed_on(void **state) {
  (void)state;
  static cp_work w[8];
  static double x[8][RR_COUNT];
  cp *net = grouped(8, 4, false);
  for (uint16_t r = 0; r < 7; r++) assert_int_equal(give(net, r, &w[r], "k", x[r], EXACT), 0);
  cp_until(net, net->now + TB_MS);
  tb_core_cancel(net->core[0], &w[0].o, -ECANCELED, "rank 0 had enough", net->now);
  cp_until(net, net->now + 10 * TB_MS);
  assert_int_equal(give(net, 7, &w[7], "k", x[7], EXACT), 0); /* it hears of it before, or at once */
  for (uint16_t r = 0; r < 8; r++) {
    cp_wait(net, &w[r]);
    assert_int_equal(w[r].o.result.status, -ECANCELED);
    assert_string_equal(w[r].o.error, "rank 0 had enough");
  }
  cp_work_free(w, 8);
  cp_until(net, net->now + 30 * TB_SEC);
  for (uint16_t r = 0; r < 8; r++) assert_null(net->core[r]->ops);
  cp_free(net);
}

static int no_last_hand_out(cp *net, cp_frame *f) {
  (void)net;
  return !(f->h.type == TB_T_DATA && f->h.stage == 2 && f->src == 1 && f->dst == 0 && f->h.chunk == 0);
}

/* A lossy one in place is sure of its commit as soon as its kin have opened it: nobody else ever will. */
static void settled__when_the_kin_have_opened_it(void **state) {
  (void)state;
  static cp_work w[4];
  static double x[4][RR_COUNT];
  cp *net = grouped(4, 2, false);
  net->fate = no_last_hand_out;
  for (uint16_t r = 0; r < 4; r++) assert_int_equal(give(net, r, &w[r], "k", x[r], 50 * TB_MS), 0);
  cp_until(net, net->now + 10 * TB_MS);
  assert_false(w[0].done);
  assert_true(tb_op_find(net->core[0], tb_key_hash("k", 1), 0)->settled);
  tb_core_cancel(net->core[0], &w[0].o, -ECANCELED, "no more", net->now);
  cp_wait_all(net, w, 4);
  assert_int_equal(w[0].o.result.status, 0); /* what had come */
  check_results(net, w, 4, NULL);
  cp_work_free(w, 4);
  cp_free(net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(all_reduce__any_count_op_and_shape),
    cmocka_unit_test(kin__nobody_else_hears_anything),
    cmocka_unit_test(switch__without_groups_everybody_hears),
    cmocka_unit_test(refused__where_it_cannot_be),
    cmocka_unit_test(loss__of_any_frame),
    cmocka_unit_test(late__decided_chunks_reach_the_group),
    cmocka_unit_test(jump__goes_by_the_kin),
    cmocka_unit_test(mismatch__is_named_on_every_rank),
    cmocka_unit_test(untrusted__levels_counts_and_strangers),
    cmocka_unit_test(untrusted__groups_where_they_cannot_be),
    cmocka_unit_test(strange__groups_that_are_not_known_here),
    cmocka_unit_test(exact__a_dead_stranger_is_named),
    cmocka_unit_test(windows__are_for_the_kin),
    cmocka_unit_test(windows__follow_the_view),
    cmocka_unit_test(error__is_passed_on),
    cmocka_unit_test(settled__when_the_kin_have_opened_it),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
