/* test_core.c - whole operations between cores: every kind, the edges of N and count, damage, duplicates, and the rules
 * about the caller's memory (watched by core_pair: what is returned is overwritten at once). */
#include "compute/compute.h"
#include <math.h>
#include "core_pair.h"

static const uint64_t EXACT = UINT64_MAX;

typedef struct { float *x[CP_RANKS], *y[CP_RANKS]; uint64_t count; } buffers;

static buffers make(uint32_t n, uint64_t count, uint64_t out_count) {
  buffers b = {.count = count};
  for (uint32_t r = 0; r < n; r++) {
    b.x[r] = calloc(count + 1, sizeof(float));
    b.y[r] = calloc(out_count + 1, sizeof(float));
    cp_fill(b.x[r], count, (float)(1 + r), 1);
  }
  return b;
}

static void drop(buffers *b, uint32_t n) {
  for (uint32_t r = 0; r < n; r++) {
    free(b->x[r]);
    free(b->y[r]);
  }
}

/* All that operations held must be gone after receipts (rule 5). */
static void expect_nothing_held(cp *net) {
  cp_until(net, net->now + 20 * TB_SEC);
  for (uint32_t r = 0; r < net->n; r++) {
    assert_int_equal(net->core[r]->live_ops, 0);
    assert_int_equal(net->core[r]->memory, 0);
    assert_int_equal(net->core[r]->early_memory, 0);
    assert_true(tb_core_idle(net->core[r]));
  }
}

static void sum_once(const cp_options *o, uint64_t count, uint64_t deadline, bool in_place) {
  cp *net = cp_new(o);
  cp_work w[CP_RANKS];
  buffers b = make(net->n, count, count);
  for (uint16_t r = 0; r < net->n; r++) {
    tb_call call = cp_call("k", b.x[r], in_place ? b.x[r] : b.y[r], count, deadline);
    assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
  }
  cp_wait_all(net, w, net->n);
  float first = (float)(net->n * (net->n + 1) / 2);
  for (uint16_t r = 0; r < net->n; r++) {
    const tb_result *res = &w[r].o.result;
    assert_int_equal(res->status, 0);
    assert_int_equal(res->verdict, TB_VERDICT_OK);
    assert_true(res->received == 1.0);
    assert_false(res->deadline_hit);
    cp_expect(w[r].result, count, first, (float)net->n);
    uint8_t *mask = calloc(count + 1, 1);
    tb_outcome_mask(&w[r].o, mask);
    for (uint64_t i = 0; i < count; i++) assert_int_equal(mask[i], 1);
    free(mask);
    for (uint32_t p = 0; p < net->n; p++) /* NaN: it owed nothing */
      for (int s = 0; s < 2; s++)
        assert_true(w[r].o.per_peer[s][p] == 1.0 || (p != r && isnan(w[r].o.per_peer[s][p]) && count < net->n));
  }
  if (net->n == 1) assert_int_equal(w[0].done_at, TB_SEC); /* at once */
  expect_nothing_held(net);
  cp_work_free(w, net->n);
  drop(&b, net->n);
  cp_free(net);
}

static void all_reduce__every_count_and_size(void **state) {
  (void)state;
  const uint64_t counts[] = {0, 1, 2, 3, 15, 16, 17, 100, 1000};
  for (uint32_t n = 1; n <= 6; n++)
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
      for (int how = 0; how < 4; how++)
        sum_once(&(cp_options){.n = n, .chunk_bytes = 64, .window = 256, .delay = 100000}, counts[i],
                 how & 1 ? EXACT : 500 * TB_MS, how & 2);
}

/* LINKS rules 4 to 7: payloads are read late; the call returns only after that, and what a REF still needs is not
 * overwritten (held chunks), in place above all. Frames are sealed here: a payload that changed would not pass. */
static void all_reduce__late_reading_device(void **state) {
  (void)state;
  for (uint32_t n = 2; n <= 5; n++)
    for (int how = 0; how < 4; how++)
      for (uint64_t hold = 0; hold <= 3 * TB_MS; hold = hold ? hold * 3 : 40000) {
        cp_options o = {.n = n, .chunk_bytes = 64, .window = 256, .delay = 20000, .async_refs = true, .ref_hold = hold};
        sum_once(&o, 333, how & 1 ? EXACT : 500 * TB_MS, how & 2);
        o.ring = 3;
        sum_once(&o, 333, how & 1 ? EXACT : 500 * TB_MS, how & 2);
      }
}

/* A device that reads so late that the decided bytes come first: they wait (held chunks), what is read is still the
 * contribution, and the call returns only when nothing will be read any more. */
static void refs__outlive_the_deadline(void **state) {
  (void)state;
  for (int skip = 0; skip < 2; skip++) {
    cp *net = cp_new(&(cp_options){.n = 2, .chunk_bytes = 64, .window = 256, .delay = 20000, .async_refs = true,
                                   .ref_hold = 8 * TB_MS});
    cp_work w[2];
    buffers b = make(2, 64, 64);
    uint64_t began = net->now;
    for (uint16_t r = 0; r < 2; r++) {
      tb_call call = cp_call("k", b.x[r], b.x[r], 64, 5 * TB_MS);
      call.min_received = skip ? 0.9 : 0;
      assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
    }
    cp_until(net, began + 5 * TB_MS + TB_MS);
    for (uint16_t r = 0; r < 2; r++) {
      assert_false(w[r].done);
      uint64_t theirs = r ? 0 : 32; /* what is still read is overwritten by nothing yet */
      cp_expect(b.x[r] + theirs, 32, (float)(1 + r + theirs), 1);
    }
    cp_wait_all(net, w, 2);
    for (uint16_t r = 0; r < 2; r++) {
      assert_in_range(w[r].done_at - began, 8 * TB_MS, 14 * TB_MS);
      /* of the other's shard: its owner's part, which is the one foreign one */
      assert_true(w[r].o.result.received == 0.5);
      if (skip) cp_expect(w[r].result, 64, (float)(1 + r), 1);
      for (int i = 0; i < 64 && !skip; i++) /* each shard: its owner's values alone, scaled */
        assert_true(w[r].result[i] == (float)(2 * (i < 32 ? 1 + i : 2 + i)));
      cp_until(net, net->now + TB_MS);
      assert_int_equal(net->core[r]->n.bad_check, 0); /* what was read late was what had been sealed */
      assert_true(net->core[r]->peer[1 - r].n.late > 0);
    }
    expect_nothing_held(net);
    cp_work_free(w, 2);
    drop(&b, 2);
    cp_free(net);
  }
}

/* A link that takes few frames: what it has not taken when a round ends is never sent. Frames are sealed when they are
 * made, and core_pair refuses one whose payload has changed since. */
static void ring__holds_nothing_of_the_caller(void **state) {
  (void)state;
  for (int async = 0; async < 2; async++)
    for (uint64_t us = 50; us <= 800; us += 150) {
      cp *net = cp_new(&(cp_options){.n = 3, .chunk_bytes = 64, .window = 256, .delay = 20000, .ring = 2,
                                     .async_refs = async, .ref_hold = 30000});
      cp_work w[3];
      buffers b = make(3, 2000, 2000);
      for (int round = 0; round < 6; round++) {
        uint64_t began = net->now;
        for (uint16_t r = 0; r < 3; r++) {
          cp_fill(b.x[r], 2000, (float)(1 + r), 1);
          tb_call call = cp_call("k", b.x[r], round % 2 ? b.x[r] : b.y[r], 2000, us * 1000 + (uint64_t)r * 30000);
          call.min_received = 0;
          assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
        }
        if (round == 3) tb_core_cancel(net->core[1], &w[1].o, -ECANCELED, "in the midst of it", net->now);
        cp_wait_all(net, w, 3);
        for (uint16_t r = 0; r < 3; r++)
          assert_true(w[r].done_at - began <= us * 1000 + (uint64_t)r * 30000 + (async ? 60000 : 0));
        cp_work_free(w, 3);
        for (uint16_t r = 0; r < 3; r++) assert_int_equal(net->core[r]->n.bad_check, 0);
      }
      drop(&b, 3);
      cp_free(net);
    }
}

static int each_one_thrice(cp *net, cp_frame *f) {
  (void)net;
  f->at += f->h.chunk % 3 * 30000; /* and out of order */
  return 3;
}

static void duplicates__are_never_added_twice(void **state) { /* rule 10 */
  (void)state;
  for (int how = 0; how < 4; how++) {
    cp *net = cp_plain(4);
    net->fate = each_one_thrice;
    cp_work w[4];
    buffers b = make(4, 500, 500);
    for (int round = 0; round < 3; round++) {
      for (uint16_t r = 0; r < 4; r++) {
        cp_fill(b.x[r], 500, (float)(1 + r), 1);
        tb_call call = cp_call("k", b.x[r], how & 2 ? b.x[r] : b.y[r], 500, how & 1 ? EXACT : 100 * TB_MS);
        assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
      }
      cp_wait_all(net, w, 4);
      for (uint16_t r = 0; r < 4; r++) cp_expect(w[r].result, 500, 10, 4);
      cp_work_free(w, 4);
    }
    uint64_t seen = 0;
    cp_until(net, net->now + 20 * TB_SEC); /* copies still come after the return */
    for (uint16_t r = 0; r < 4; r++)
      for (uint16_t p = 0; p < 4; p++) seen += tb_core_peer_counters(net->core[r], p)->duplicate;
    assert_true(seen > 100);
    drop(&b, 4);
    cp_free(net);
  }
}

static void kinds__all_of_them(void **state) {
  (void)state;
  enum { N = 4, COUNT = 44 };
  for (int kind = TB_ALL_REDUCE; kind <= TB_BROADCAST; kind++) {
    cp *net = cp_plain(N);
    cp_work w[N];
    buffers b = make(N, COUNT, COUNT * N);
    for (uint16_t r = 0; r < N; r++) {
      tb_call call = cp_call("k", b.x[r], b.y[r], COUNT, EXACT);
      call.kind = kind;
      call.root = 2;
      if (kind == TB_BROADCAST && r != 2) call.in = NULL;
      assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
    }
    cp_wait_all(net, w, N);
    for (uint16_t r = 0; r < N; r++) {
      assert_int_equal(w[r].o.result.status, 0);
      const float *y = w[r].result;
      if (kind == TB_ALL_REDUCE) cp_expect(y, COUNT, 10, 4);
      if (kind == TB_REDUCE_SCATTER) cp_expect(y, COUNT / N, 10 + 4.0f * (float)(r * COUNT / N), 4);
      if (kind == TB_BROADCAST) cp_expect(y, COUNT, 3, 1);
      for (uint32_t p = 0; kind == TB_ALL_GATHER && p < N; p++) cp_expect(y + p * COUNT, COUNT, (float)(1 + p), 1);
    }
    expect_nothing_held(net);
    cp_work_free(w, N);
    drop(&b, N);
    cp_free(net);
  }
}

static void all_reduce__every_op_and_dtype(void **state) { /* exact class: integers, min, max, prod (rule 17) */
  (void)state;
  for (int dtype = 0; dtype < TB_DTYPES; dtype++)
    for (int op = 0; op < TB_REDOPS; op++) {
      cp *net = cp_plain(3);
      cp_work w[3];
      uint64_t in[3][64], out[3][64], one, three, two;
      size_t size = tb_dtype_size((tb_dtype)dtype);
      bool is_float = tb_dtype_is_float((tb_dtype)dtype);
      /* The bits of 1, 2 and 3 in each type. */
      const uint64_t ones[] = {0x3f800000, 0x3ff0000000000000, 0x3c00, 0x3f80},
                     twos[] = {0x40000000, 0x4000000000000000, 0x4000, 0x4000},
                     threes[] = {0x40400000, 0x4008000000000000, 0x4200, 0x4040},
                     sixes[] = {0x40c00000, 0x4018000000000000, 0x4600, 0x40c0};
      one = is_float ? ones[dtype] : 1;
      two = is_float ? twos[dtype] : 2;
      three = is_float ? threes[dtype] : 3;
      uint64_t six = is_float ? sixes[dtype] : 6, want = op == TB_MIN ? one : op == TB_MAX ? three : op == TB_AVG ? two : six;
      int rc = 0;
      for (uint16_t r = 0; r < 3; r++) {
        uint64_t v = r == 0 ? one : r == 1 ? two : three;
        for (size_t i = 0; i < 60; i++) memcpy((uint8_t *)in[r] + i * size, &v, size);
        tb_call call = {.kind = TB_ALL_REDUCE, .dtype = dtype, .redop = op, .count = 60, .in = in[r], .out = out[r],
                        .key = "k", .key_len = 1, .min_received = 0.5,
                        .deadline_ns = op <= TB_AVG && is_float ? 100 * TB_MS : EXACT};
        rc = cp_issue(net, r, &w[r], &call);
        if (op == TB_AVG && !is_float) {
          assert_int_equal(rc, -EINVAL);
          assert_non_null(strstr(w[r].o.error, "avg of integers"));
        } else {
          assert_int_equal(rc, 0);
        }
      }
      if (rc == 0) {
        cp_wait_all(net, w, 3);
        for (uint16_t r = 0; r < 3; r++)
          for (size_t i = 0; i < 60; i++) assert_memory_equal((uint8_t *)w[r].result + i * size, &want, size);
        cp_work_free(w, 3);
      }
      cp_free(net);
    }
}

static void send__bounded_and_exact(void **state) {
  (void)state;
  for (int exact = 0; exact < 2; exact++)
    for (int order = 0; order < 2; order++) { /* recv first, or send first */
      cp *net = cp_plain(3);
      cp_work s, r;
      float x[100], y[100];
      cp_fill(x, 100, 5, 1);
      tb_call send = {.kind = TB_SEND, .dtype = TB_F32, .root = 2, .count = 100, .in = x, .tag = 9,
                      .deadline_ns = exact ? EXACT : 50 * TB_MS};
      tb_call recv = {.kind = TB_RECV, .dtype = TB_F32, .root = 0, .count = 100, .out = y, .tag = 9,
                      .deadline_ns = exact ? EXACT : 50 * TB_MS};
      if (order) assert_int_equal(cp_issue(net, 0, &s, &send), 0);
      else assert_int_equal(cp_issue(net, 2, &r, &recv), 0);
      cp_until(net, net->now + 5 * TB_MS);
      if (order) assert_int_equal(cp_issue(net, 2, &r, &recv), 0);
      else assert_int_equal(cp_issue(net, 0, &s, &send), 0);
      cp_wait(net, &s);
      cp_wait(net, &r);
      assert_int_equal(s.o.result.status, 0);
      assert_true(s.o.result.received == 1.0 && r.o.result.received == 1.0);
      cp_expect(r.result, 100, 5, 1);
      expect_nothing_held(net);
      assert_int_equal(net->core[1]->n.operations, 0); /* the third rank has no part in it */
      cp_work_free(&s, 1);
      cp_work_free(&r, 1);
      cp_free(net);
    }
}

/* Rule 22: several operations in flight, issued in different orders on different ranks (rule 7). */
static void keys__any_order_on_any_rank(void **state) {
  (void)state;
  enum { N = 3, K = 12 };
  cp *net = cp_plain(N);
  static cp_work w[N][K];
  static float x[N][K][97];
  for (uint16_t r = 0; r < N; r++)
    for (int i = 0; i < K; i++) {
      int k = r == 0 ? i : r == 1 ? K - 1 - i : (i * 5 + 3) % K;
      char key[16];
      snprintf(key, sizeof key, "k%d", k);
      cp_fill(x[r][k], 97, (float)(r + 100 * k), 1);
      tb_call call = cp_call(key, x[r][k], x[r][k], 97, i % 2 ? EXACT : 200 * TB_MS);
      call.deadline_ns = k % 2 ? EXACT : 200 * TB_MS;
      assert_int_equal(cp_issue(net, r, &w[r][k], &call), 0);
    }
  for (uint16_t r = 0; r < N; r++) {
    cp_wait_all(net, w[r], K);
    for (int k = 0; k < K; k++) cp_expect(w[r][k].result, 97, (float)(3 + 300 * k), 3);
  }
  expect_nothing_held(net);
  for (uint16_t r = 0; r < N; r++) cp_work_free(w[r], K);
  cp_free(net);
}

static void cancel__gives_the_input_back_and_tells_the_others(void **state) {
  (void)state;
  cp *net = cp_plain(2);
  cp_work w[2];
  float x[2][50];
  for (int r = 0; r < 2; r++) cp_fill(x[r], 50, (float)r, 1);
  tb_call call = cp_call("k", x[0], x[0], 50, EXACT);
  assert_int_equal(cp_issue(net, 0, &w[0], &call), 0);
  cp_until(net, net->now + 10 * TB_MS);
  assert_false(w[0].done);
  tb_core_cancel(net->core[0], &w[0].o, -ECANCELED, "the caller said so", net->now);
  assert_true(w[0].done);
  assert_int_equal(w[0].o.result.status, -ECANCELED);
  assert_string_equal(w[0].o.error, "the caller said so");
  cp_expect(w[0].result, 50, 0, 1);
  cp_until(net, net->now + 10 * TB_MS);
  call = cp_call("k", x[1], x[1], 50, EXACT);
  int rc = cp_issue(net, 1, &w[1], &call); /* its round was cancelled: the call says so, at once or as its result */
  if (!rc) {
    cp_wait(net, &w[1]);
    assert_int_equal(w[1].o.result.status, -ECANCELED);
    cp_expect(w[1].result, 50, 1, 1);
    cp_work_free(&w[1], 1);
  } else {
    assert_int_equal(rc, -ECANCELED);
  }
  cp_work_free(&w[0], 1);
  cp_free(net);
}

static int lose_opens(cp *net, cp_frame *f) {
  return !(f->h.type == TB_T_OPEN && net->ctx);
}

/* After an error both are at the next round: nobody waits for a round that the other has behind it. Rank 1 has the
 * round open when it ends, or never heard of it; it knows the key from an earlier round, or does not. */
static void cancel__leaves_the_ranks_in_step(void **state) {
  (void)state;
  for (int heard = 0; heard < 2; heard++)
    for (int known = 0; known < 2; known++) {
      cp *net = cp_plain(2);
      net->fate = lose_opens;
      cp_work w[2];
      float x[2][50];
      for (uint16_t r = 0; r < 2 && known; r++) {
        tb_call call = cp_call("k", x[r], x[r], 50, EXACT);
        assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
      }
      if (known) {
        cp_wait_all(net, w, 2);
        cp_work_free(w, 2);
        cp_until(net, net->now + TB_SEC);
      }
      if (!heard) net->ctx = net;
      tb_call call = cp_call("k", x[0], x[0], 50, EXACT);
      assert_int_equal(cp_issue(net, 0, &w[0], &call), 0);
      cp_until(net, net->now + 10 * TB_MS);
      tb_core_cancel(net->core[0], &w[0].o, -ECANCELED, "the caller said so", net->now);
      cp_work_free(&w[0], 1);
      cp_until(net, net->now + 10 * TB_MS);
      net->ctx = NULL;
      call = cp_call("k", x[1], x[1], 50, EXACT);
      int rc = cp_issue(net, 1, &w[1], &call);
      if (rc == 0) {
        cp_wait(net, &w[1]);
        rc = w[1].o.result.status;
        cp_work_free(&w[1], 1);
      }
      assert_int_equal(rc, -ECANCELED);
      assert_true(strlen(w[1].o.error) > 10);
      for (uint16_t r = 0; r < 2; r++) {
        cp_fill(x[r], 50, (float)r, 1);
        call = cp_call("k", x[r], x[r], 50, EXACT);
        assert_int_equal(cp_issue(net, r, &w[r], &call), 0);
      }
      cp_wait_all(net, w, 2);
      for (uint16_t r = 0; r < 2; r++) {
        assert_int_equal(w[r].o.result.status, 0);
        cp_expect(w[r].result, 50, 1, 2);
      }
      expect_nothing_held(net);
      cp_work_free(w, 2);
      cp_free(net);
    }
}

static void issue__refuses_nonsense(void **state) {
  (void)state;
  cp *net = cp_plain(3);
  cp_work w;
  float x[12] = {0};
  const tb_call good = cp_call("k", x, x, 12, EXACT);
#define REFUSED(text, ...)                                       \
  do {                                                           \
    tb_call call = good;                                         \
    __VA_ARGS__;                                                 \
    assert_int_equal(cp_issue(net, 0, &w, &call), -EINVAL);      \
    if (!strstr(w.o.error, text)) fail_msg("%s", w.o.error);     \
    assert_int_equal(net->core[0]->live_ops, 0);                 \
  } while (0)
  REFUSED("unknown kind", call.kind = -1);
  REFUSED("unknown kind", call.kind = TB_KINDS);
  REFUSED("unknown kind", call.dtype = TB_DTYPES);
  REFUSED("unknown kind", call.dtype = -1);
  REFUSED("unknown kind", call.redop = TB_REDOPS);
  REFUSED("longer than 255", call.key_len = 256);
  REFUSED("rank 3 is out of range", call.kind = TB_BROADCAST; call.root = 3);
  REFUSED("rank -1 is out of range", call.kind = TB_BROADCAST; call.root = -1);
  REFUSED("cannot send to itself", call.kind = TB_SEND; call.root = 0);
  REFUSED("divides", call.kind = TB_REDUCE_SCATTER; call.count = 11);
  REFUSED("NULL", call.in = NULL);
  REFUSED("NULL", call.out = NULL);
  REFUSED("2^30 chunks", call.count = 1ull << 34);
  REFUSED("2^30 chunks", call.count = UINT64_MAX);
  cp_free(net);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(all_reduce__every_count_and_size),
    cmocka_unit_test(all_reduce__late_reading_device),
    cmocka_unit_test(refs__outlive_the_deadline),
    cmocka_unit_test(ring__holds_nothing_of_the_caller),
    cmocka_unit_test(duplicates__are_never_added_twice),
    cmocka_unit_test(kinds__all_of_them),
    cmocka_unit_test(all_reduce__every_op_and_dtype),
    cmocka_unit_test(send__bounded_and_exact),
    cmocka_unit_test(keys__any_order_on_any_rank),
    cmocka_unit_test(cancel__gives_the_input_back_and_tells_the_others),
    cmocka_unit_test(cancel__leaves_the_ranks_in_step),
    cmocka_unit_test(issue__refuses_nonsense),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
