/* test_core_untrusted.c - rules 10 and 24: every field of a frame is checked before anything is written; what is
 * refused is counted by its cause; what is stale lands nowhere. */
#include "core_pair.h"

enum { COUNT = 64 }; /* two shards of 32 elements: two chunks each */
static const uint64_t EXACT = UINT64_MAX;

typedef struct { cp *net; cp_work w; float x[COUNT]; tb_head data; float pay[16]; uint32_t sig; } victim;

/* Rank 0 has an operation in flight; rank 1 is dumb and speaks through forged frames only. */
static void up(victim *v, uint64_t deadline) {
  memset(v, 0, sizeof *v);
  v->net = cp_plain(2);
  v->net->stopped[1] = true;
  cp_fill(v->x, COUNT, 1, 1);
  tb_call call = cp_call("k", v->x, v->x, COUNT, deadline);
  call.min_received = 0;
  assert_int_equal(cp_issue(v->net, 0, &v->w, &call), 0);
  cp_settle(v->net);
  v->sig = v->net->core[0]->ops->sig_hash;
  v->data = (tb_head){.type = TB_T_DATA, .key = tb_key_hash("k", 1), .stage = 1, .count = 1,
                      .remaining_us = TB_REMAINING_NONE,
                      .hold_us = TB_HOLD_NONE, .signature = v->sig};
  for (int i = 0; i < 16; i++) v->pay[i] = 100;
}

static void down(victim *v) {
  if (!v->w.done) tb_core_cancel(v->net->core[0], &v->w.o, -ECANCELED, "end of test", v->net->now);
  cp_work_free(&v->w, 1);
  cp_free(v->net);
}

static void send(victim *v, const tb_head *h, const void *body, uint32_t len) {
  static uint8_t f[70000];
  uint32_t n = cp_forge(v->net, 1, 0, h, body, len, f);
  cp_give(v->net, 0, f, n);
}

static const tb_comm_counters *counted(const victim *v) { return &v->net->core[0]->n; }
static const tb_peer_counters *of_peer(const victim *v) { return &v->net->core[0]->peer[1].n; }
static uint32_t got(const victim *v, int s) { return v->net->core[0]->ops->peer[1].rx[s].got; }

/* Sum of all causes: garbage is counted once, under one of them. */
static uint64_t garbage(const victim *v) {
  const tb_comm_counters *n = counted(v);
  return n->bad_short + n->bad_magic + n->bad_version + n->bad_type + n->bad_check + n->bad_job + n->bad_view +
         n->bad_rank + n->bad_index + n->bad_length + n->bad_body + n->bad_signature;
}

/* The same, of those counted at rank 1: whose source can be believed. */
static uint64_t of_peer_garbage(const victim *v) {
  uint64_t sum = 0;
#define X(name) sum += of_peer(v)->name;
  TB_REJECTED(X)
#undef X
  return sum;
}

static void head__each_cause_is_counted(void **state) {
  (void)state;
  victim v;
  up(&v, EXACT);
  uint8_t f[TB_HEAD + 64];
  uint32_t n = cp_forge(v.net, 1, 0, &v.data, v.pay, 64, f);
  uint64_t heard = v.net->core[0]->peer[1].last_heard;
#define DAMAGED(cause, ...)                          \
  do {                                               \
    uint8_t g[sizeof f];                             \
    uint32_t len = n;                                \
    memcpy(g, f, n);                                 \
    __VA_ARGS__;                                     \
    uint64_t before = garbage(&v), c = counted(&v)->cause; \
    cp_give(v.net, 0, g, len);                       \
    assert_int_equal(garbage(&v), before + 1);       \
    assert_int_equal(counted(&v)->cause, c + 1);     \
    assert_int_equal(got(&v, 0), 0);                 \
  } while (0)
#define SEALED tb_head_seal(g, g + TB_HEAD, len - TB_HEAD)
  for (uint32_t k = 0; k < TB_HEAD; k++) DAMAGED(bad_short, len = k);
  DAMAGED(bad_magic, g[0] = 0);
  DAMAGED(bad_version, g[2] = 2);
  DAMAGED(bad_type, g[3] = 9);
  DAMAGED(bad_type, g[3] = 0);
  DAMAGED(bad_check, g[63] ^= 1);
  DAMAGED(bad_check, g[TB_HEAD + 5] ^= 1);
  DAMAGED(bad_check, len--);
  DAMAGED(bad_job, g[7]++; SEALED);
  DAMAGED(bad_rank, g[25] = 2; SEALED);   /* source: not a rank */
  DAMAGED(bad_rank, g[25] = 0; SEALED);   /* source: ourselves */
  DAMAGED(bad_rank, g[24] = 0xff; SEALED);
  assert_int_equal(of_peer_garbage(&v), 0); /* so far nobody can be blamed */
  DAMAGED(bad_view, g[11]++; SEALED);
  assert_int_equal(of_peer(&v)->bad_view, 1);
  DAMAGED(bad_rank, g[27] = 1; SEALED);   /* destination: somebody else */
  assert_int_equal(of_peer(&v)->bad_rank, 1);
  DAMAGED(bad_body, g[31] = TB_F_TAG; SEALED);
  assert_int_equal(of_peer(&v)->bad_body, 1);
  assert_int_equal(v.net->core[0]->peer[1].last_heard, heard); /* none of them counts as a sign of life */
  DAMAGED(bad_body, g[3] = TB_T_VIEW; SEALED);
  assert_int_equal(of_peer(&v)->bad_body, 2);
  assert_int_equal(of_peer_garbage(&v), 4);
  down(&v);
}

/* Whoever knows the job can claim to be a rank. Once that rank was heard from its own address, another is not
 * believed. */
static void source__another_address(void **state) {
  (void)state;
  victim v;
  up(&v, EXACT);
  const tb_head goodbye = {.type = TB_T_GOODBYE, .hold_us = TB_HOLD_NONE, .remaining_us = TB_REMAINING_NONE};
  const tb_head grant = {.type = TB_T_GRANT, .hold_us = TB_HOLD_NONE, .remaining_us = TB_REMAINING_NONE};
  const uint8_t body[1] = {TB_BODY_VERSION};
  v.net->from = TB_FROM_OTHER; /* translated from the start: nothing to compare with */
  send(&v, &grant, body, 1);
  assert_int_equal(of_peer(&v)->control_received, 1);
  v.net->from = TB_FROM_SOURCE;
  uint8_t f[TB_HEAD + 1];
  uint32_t n = cp_forge(v.net, 1, 0, &grant, body, 1, f);
  f[63] ^= 1; /* damaged: that proves nothing */
  cp_give(v.net, 0, f, n);
  assert_false(v.net->core[0]->peer[1].at_home);
  send(&v, &grant, body, 1);
  assert_true(v.net->core[0]->peer[1].at_home);
  v.net->from = TB_FROM_OTHER;
  v.net->now += TB_MS;
  uint64_t heard = v.net->core[0]->peer[1].last_heard;
  send(&v, &goodbye, body, 1);
  assert_int_equal(of_peer(&v)->bad_source, 1);
  assert_int_equal(counted(&v)->bad_source, 1);
  assert_false(v.net->core[0]->peer[1].gone);
  assert_int_equal(v.net->core[0]->peer[1].last_heard, heard);
  v.net->from = TB_FROM_UNKNOWN; /* a link that cannot tell */
  send(&v, &goodbye, body, 1);
  assert_true(v.net->core[0]->peer[1].gone);
  down(&v);
}

static void data__every_index_and_length(void **state) {
  (void)state;
  victim v;
  up(&v, EXACT);
#define REFUSED(cause, len, ...)                              \
  do {                                                        \
    tb_head h = v.data;                                       \
    __VA_ARGS__;                                              \
    uint64_t c = counted(&v)->cause, before = garbage(&v);    \
    uint64_t p = of_peer(&v)->cause;                          \
    send(&v, &h, v.pay, (len));                               \
    assert_int_equal(counted(&v)->cause, c + 1);              \
    assert_int_equal(of_peer(&v)->cause, p + 1);              \
    assert_int_equal(garbage(&v), before + 1);                \
    assert_int_equal(got(&v, 0) + got(&v, 1), 0);             \
  } while (0)
  for (int s = 1; s <= 2; s++) {
    REFUSED(bad_index, 64, h.stage = (uint8_t)s; h.chunk = 2);
    REFUSED(bad_index, 64, h.stage = (uint8_t)s; h.chunk = 0x80000000);
    REFUSED(bad_index, 64, h.stage = (uint8_t)s; h.chunk = UINT32_MAX);
    for (uint32_t len = 0; len < 64; len += 3) REFUSED(bad_length, len, h.stage = (uint8_t)s);
    REFUSED(bad_signature, 64, h.stage = (uint8_t)s; h.signature++);
    REFUSED(bad_length, 64, h.stage = (uint8_t)s; h.count = 0);
  }
  REFUSED(bad_length, 64, h.count = 2);                /* a contribution is one rank's */
  REFUSED(bad_length, 64, h.stage = 2; h.count = 3);   /* more than there are */
  REFUSED(bad_length, 64, h.stage = 2; h.count = 0xffff; h.flags = TB_F_OWN);
  REFUSED(bad_body, 64, h.stage = 0);
  REFUSED(bad_body, 64, h.stage = 3);
  REFUSED(bad_body, 64, h.level = 1);
  for (uint32_t len = 65; len < 70; len++) {
    uint8_t big[80] = {0};
    tb_head h = v.data;
    uint64_t c = counted(&v)->bad_length;
    send(&v, &h, big, len);
    assert_int_equal(counted(&v)->bad_length, c + 1);
  }
  /* And the frame itself is good: it lands, once. */
  send(&v, &v.data, v.pay, 64);
  assert_int_equal(got(&v, 0), 1);
  send(&v, &v.data, v.pay, 64);
  assert_int_equal(got(&v, 0), 1);
  assert_int_equal(of_peer(&v)->duplicate, 1);
  down(&v);
}

/* Stage 2 of a chunk twice, with other bytes: the first ones stay. */
static void data__decided_bytes_land_once(void **state) {
  (void)state;
  victim v;
  up(&v, EXACT);
  tb_head h = v.data;
  h.stage = 2;
  h.count = 2;
  h.flags = TB_F_OWN;
  send(&v, &h, v.pay, 64);
  uint64_t start, len;
  tb_geo_shard(&v.net->core[0]->ops->geo, 1, &start, &len);
  for (int i = 0; i < 16; i++) assert_true(v.x[start + (uint64_t)i] == 100);
  for (int i = 0; i < 16; i++) v.pay[i] = 200;
  send(&v, &h, v.pay, 64);
  for (int i = 0; i < 16; i++) assert_true(v.x[start + (uint64_t)i] == 100);
  assert_int_equal(of_peer(&v)->duplicate, 1);
  down(&v);
}

/* Data of another round of the key: earlier ones are late, later ones early; nothing lands. */
static void data__another_round(void **state) {
  (void)state;
  victim v;
  up(&v, 5 * TB_MS);
  cp_wait(v.net, &v.w);
  cp_work_free(&v.w, 1);
  cp_until(v.net, v.net->now + TB_SEC);
  cp_fill(v.x, COUNT, 1, 1);
  tb_call call = cp_call("k", v.x, v.x, COUNT, TB_SEC);
  assert_int_equal(cp_issue(v.net, 0, &v.w, &call), 0); /* round 1; round 0 waits for receipts still */
  tb_op *op = tb_op_find(v.net->core[0], v.data.key, 1);
  for (int s = 1; s <= 2; s++) {
    uint64_t late = of_peer(&v)->late;
    tb_head h = v.data;
    h.stage = (uint8_t)s;
    h.chunk = 1;
    send(&v, &h, v.pay, 64);
    assert_int_equal(of_peer(&v)->late, late + 1);
    h.round = 2;
    uint64_t early = of_peer(&v)->early;
    send(&v, &h, v.pay, 64);
    assert_int_equal(of_peer(&v)->early, early + 1);
    h.round = 0xffffffff; /* before round 0, in serial arithmetic */
    send(&v, &h, v.pay, 64);
    assert_int_equal(of_peer(&v)->late, late + 2);
    h.key ^= 1;
    send(&v, &h, v.pay, 64);
    assert_int_equal(of_peer(&v)->early, early + 2);
    assert_int_equal(op->peer[1].rx[0].got + op->peer[1].rx[1].got, 0);
  }
  cp_expect(v.x, COUNT, 1, 1);
  down(&v);
}

/* A contribution that comes after the chunk was closed is dropped and counted; what was decided stays. */
static void data__late_contribution(void **state) {
  (void)state;
  victim v;
  up(&v, EXACT);
  tb_op *op = v.net->core[0]->ops;
  tb_stage1_sweep(v.net->core[0], op, v.net->now, true); /* as a deadline would */
  float decided[32];
  memcpy(decided, op->decided, sizeof decided);
  send(&v, &v.data, v.pay, 64);
  assert_int_equal(of_peer(&v)->late, 1);
  assert_int_equal(got(&v, 0), 0);
  assert_memory_equal(decided, op->decided, sizeof decided);
  down(&v);
}

static uint32_t receipt(uint8_t *b, uint32_t seen, const tb_section *s, const uint32_t *ranges) {
  tb_receipt_begin(b, seen);
  tb_section_encode(s, b + TB_RECEIPT_HEAD);
  for (uint32_t i = 0; i < 2u * s->ranges; i++) tb_put32(b + TB_RECEIPT_HEAD + TB_SECTION + 4 * i, ranges[i]);
  tb_receipt_finish(b, 1);
  return TB_RECEIPT_HEAD + TB_SECTION + 8u * s->ranges;
}

static void receipt__out_of_bounds(void **state) {
  (void)state;
  const uint32_t bad[][4] = {{2, 1}, {3, 0}, {0, 3}, {1, 2}, {UINT32_MAX, 1}, {1, UINT32_MAX}, {0, UINT32_MAX},
                             {1, 1, 0, 1}, {0, 2, 1, 1},
                             {0x80000000, 0x80000000}};
  victim v;
  up(&v, EXACT);
  tb_flow_tx *f = &v.net->core[0]->ops->peer[1].tx[0];
  assert_int_equal(f->total, 2);
  uint8_t b[200];
  tb_head h = {.type = TB_T_RECEIPT, .hold_us = TB_HOLD_NONE, .remaining_us = TB_REMAINING_NONE};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    tb_section s = {.key = v.data.key, .stage = 1, .flags = TB_R_REQUEST, .ranges = i >= 7 && i <= 8 ? 2 : 1};
    uint64_t before = counted(&v)->bad_body, of = of_peer(&v)->bad_body;
    send(&v, &h, b, receipt(b, 2, &s, bad[i]));
    assert_int_equal(counted(&v)->bad_body, before + 1);
    assert_int_equal(of_peer(&v)->bad_body, of + 1);
    assert_true(f->acked <= 2 && f->resend_n <= 2);
  }
  /* upto beyond the flow acknowledges no more than there is; unknown operations and stages are ignored. */
  tb_section s = {.key = v.data.key, .stage = 1, .upto = UINT32_MAX};
  send(&v, &h, b, receipt(b, 2, &s, NULL));
  assert_int_equal(f->acked, 2);
  s.key++;
  send(&v, &h, b, receipt(b, 2, &s, NULL));
  s = (tb_section){.key = v.data.key, .round = 77, .stage = 2, .flags = 0xff};
  send(&v, &h, b, receipt(b, 2, &s, NULL));
  assert_false(v.w.done);
  down(&v);
}

/* A request names what the peer had seen: frames made later than that are still under way and not sent again. */
static void receipt__asks_only_for_what_was_seen_missing(void **state) {
  (void)state;
  victim v;
  up(&v, EXACT);
  tb_op *op = v.net->core[0]->ops;
  tb_flow_tx *f = &op->peer[1].tx[0];
  uint8_t b[200];
  tb_head h = {.type = TB_T_RECEIPT, .hold_us = TB_HOLD_NONE, .remaining_us = TB_REMAINING_NONE,
               .credit = v.net->core[0]->peer[1].credit};
  tb_section s = {.key = v.data.key, .stage = 1, .flags = TB_R_REQUEST, .ranges = 1, .upto = 2};
  assert_int_equal(f->next, 2); /* both chunks were sent, with steps 0 and 1 */
  const uint32_t all[2] = {0, 2};
  uint64_t sent = v.net->data_sent[0][1];
  send(&v, &h, b, receipt(b, 0, &s, all));
  assert_int_equal(f->resend_n, 0);
  send(&v, &h, b, receipt(b, 1, &s, all));
  assert_int_equal(f->resend_n, 1);
  cp_until(v.net, v.net->now + 5 * TB_MS);
  assert_int_equal(v.net->data_sent[0][1], sent + 1);
  send(&v, &h, b, receipt(b, 1, &s, all)); /* the repair is under way, chunk 1 as well */
  assert_int_equal(f->resend_n, 0);
  down(&v);
}

static uint32_t forge_open(victim *v, tb_head *h, const tb_open *o, uint8_t *b) {
  *h = (tb_head){.type = TB_T_OPEN, .key = tb_key_hash(o->key, o->key_len), .round = 5, .hold_us = TB_HOLD_NONE,
                 .remaining_us = 1000, .signature = tb_signature_hash(&o->sig)};
  (void)v;
  return tb_open_encode(o, b, 900);
}

static void open__every_check(void **state) {
  (void)state;
  victim v;
  up(&v, EXACT);
  uint8_t b[900];
  tb_head h;
  const tb_open good = {.sig = {.kind = TB_ALL_REDUCE, .dtype = TB_F32, .chunk_elems = 16, .count = 100}, .key_len = 1,
                        .key = "n"};
#define BAD_OPEN(...)                                        \
  do {                                                       \
    tb_open o = good;                                        \
    int spoil = 0;                                           \
    __VA_ARGS__;                                             \
    uint32_t len = forge_open(&v, &h, &o, b);                \
    if (spoil == 1) h.key++;                                 \
    if (spoil == 2) h.signature++;                           \
    uint64_t before = counted(&v)->bad_body;                 \
    send(&v, &h, b, len);                                    \
    assert_int_equal(counted(&v)->bad_body, before + 1);     \
    assert_int_equal(of_peer(&v)->bad_body, before + 1);     \
    assert_int_equal(v.net->core[0]->live_ops, 1);           \
  } while (0)
  BAD_OPEN(spoil = 1);
  BAD_OPEN(spoil = 2);
  BAD_OPEN(o.sig.root = 2);
  BAD_OPEN(o.sig.peer = 2);
  BAD_OPEN(o.sig.kind = TB_RECV);
  BAD_OPEN(o.sig.chunk_elems = 15);
  BAD_OPEN(o.sig.chunk_elems = UINT32_MAX);
  BAD_OPEN(o.sig.count = 1ull << 34);
  BAD_OPEN(o.sig.count = UINT64_MAX);
  BAD_OPEN(o.sig.kind = TB_SEND; o.sig.root = 1; o.sig.peer = 1);
  uint32_t len = forge_open(&v, &h, &good, b);
  send(&v, &h, b, len);
  assert_int_equal(v.net->core[0]->live_ops, 2); /* and the good one opens a round */
  tb_open huge = good; /* its memory would exceed the cap: counted as loss, not kept */
  huge.sig.count = 1ull << 33;
  huge.key[0] = 'h';
  len = forge_open(&v, &h, &huge, b);
  send(&v, &h, b, len);
  assert_int_equal(counted(&v)->early_dropped, 1);
  assert_int_equal(v.net->core[0]->live_ops, 2);
  down(&v);
}

/* Headers and bodies of every type with all bits set or clear: nothing crashes, nothing lands. */
static void frames__extremes(void **state) {
  (void)state;
  victim v;
  up(&v, EXACT);
  static uint8_t body[1500];
  for (int type = TB_T_DATA; type <= TB_T_VIEW; type++) {
    if (type == TB_T_GOODBYE) continue; /* it is obeyed */
    for (int fill = 0; fill < 256; fill += 51)
      for (uint32_t len = 0; len < sizeof body; len = len * 2 + 1) {
        tb_head h;
        memset(&h, fill, sizeof h);
        memset(body, fill, sizeof body);
        h.type = (uint8_t)type;
        h.flags &= (uint8_t)~TB_F_TAG;
        h.stage &= 15;
        send(&v, &h, body, len);
        if (len) body[0] = TB_BODY_VERSION;
        send(&v, &h, body, len);
        cp_settle(v.net);
      }
  }
  assert_false(v.w.done);
  assert_int_equal(got(&v, 0) + got(&v, 1), 0);
  cp_until(v.net, v.net->now + TB_SEC);
  down(&v);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(head__each_cause_is_counted),
    cmocka_unit_test(source__another_address),
    cmocka_unit_test(data__every_index_and_length),
    cmocka_unit_test(data__decided_bytes_land_once),
    cmocka_unit_test(data__another_round),
    cmocka_unit_test(data__late_contribution),
    cmocka_unit_test(receipt__out_of_bounds),
    cmocka_unit_test(receipt__asks_only_for_what_was_seen_missing),
    cmocka_unit_test(open__every_check),
    cmocka_unit_test(frames__extremes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
