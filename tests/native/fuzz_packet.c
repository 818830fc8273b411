/* fuzz_packet.c - libFuzzer on the packet path: arbitrary frames to one core, among issues, timers and transmission.
 *
 * The input is a program of small steps. A step gives a frame as it stands (raw bytes), or one with a right header,
 * check and job around fuzzed fields and body, or a frame that the core itself could have been sent (a plausible OPEN,
 * data of an operation in flight, a receipt of what it sent); or it lets time pass, issues, cancels, forgets, or takes
 * what is to be sent. Checked besides what the sanitizers see: an outcome is final once, memory stays under its cap,
 * the caller's memory is not written after the return, and everything is given back at the end.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include "compute/compute.h"
#include "protocol/core.h"

#undef NDEBUG
#define CHECK(x) do { if (!(x)) abort(); } while (0)

enum { OPS = 6, BYTES = 4096, RANKS = 4, POISON = 0x5a };

typedef struct { tb_outcome o; bool busy, done; uint8_t in[BYTES], out[BYTES]; bool in_place; size_t bytes; } call_state;
typedef struct { const uint8_t *at, *end; } feed;
typedef struct { tb_core *core; call_state call[OPS]; uint64_t now, refs, reaped; bool async; } world;

static uint32_t take(feed *f, uint32_t bytes) {
  uint32_t v = 0;
  while (bytes-- && f->at < f->end) v = v << 8 | *f->at++;
  return v;
}

static void on_done(void *ctx, tb_outcome *o) {
  call_state *s = (call_state *)o;
  if (tb_core_unfinished(o)) {
    tb_core_invert(o);
    tb_core_inverted(((world *)ctx)->core, o);
  }
  CHECK(s->busy && !s->done);
  s->done = true;
  memset(s->in, POISON, sizeof s->in);
  memset(s->out, POISON, sizeof s->out);
}

static void on_log(void *ctx, int level, const char *text) {
  (void)ctx;
  CHECK(level > 0 && strlen(text) < 2000);
}

static void finish(call_state *s) {
  for (size_t i = 0; i < BYTES; i++) CHECK(s->in[i] == POISON && s->out[i] == POISON);
  CHECK(s->o.result.received >= 0 && s->o.result.received <= 1);
  CHECK(strnlen(s->o.error, sizeof s->o.error) < sizeof s->o.error);
  tb_outcome_free(&s->o);
  s->busy = false;
}

static const char names[] = "aabc";

static void issue(world *w, feed *f) {
  call_state *s = &w->call[take(f, 1) % OPS];
  if (s->busy) {
    if (s->done) finish(s);
    return;
  }
  static const uint64_t deadlines[] = {0, UINT64_MAX, 1000000, 20000000, 300000000, UINT64_MAX - 1};
  uint32_t key = take(f, 1);
  tb_call c = {.kind = (int32_t)(take(f, 1) % (TB_KINDS + 1)), .dtype = (int32_t)(take(f, 1) % (TB_DTYPES + 1)),
               .redop = (int32_t)(take(f, 1) % TB_REDOPS),
               .root = (int32_t)(take(f, 1) % (RANKS + 1)), .count = take(f, 1), .key = names + key % 4,
               .key_len = key / 4 % 3,
               .tag = key & 1, .deadline_ns = deadlines[take(f, 1) % 6], .min_received = (double)(key % 3) / 2,
               .missing = key >> 4 & 1, .fill = key >> 5 & 1};
  uint32_t coding = key >> 6 & 1 ? take(f, 1) : 0; /* most combinations are refused, which is tried as well */
  c.hadamard = coding & 1 ? 1 + (int32_t)(coding >> 7) : 0;
  c.deterministic = coding >> 2 & 1;
  c.consistency = coding >> 1 & coding >> 2 & 1;
  if (coding >> 3 & 1) c.wire_dtype = (int32_t)(coding >> 4) % (TB_DTYPES + 1);
  if (coding >> 3 & 1 && coding & 1) c.dtype = TB_F32, c.kind = TB_ALL_REDUCE, c.redop = TB_SUM, c.missing = c.fill = 0;
  c.groups = (coding & 0x30) == 0x30 ? -1 : (coding & 0x30) == 0x20;
  if (key % 4 + c.key_len > 4) c.key_len = 1;
  size_t elem = c.dtype < TB_DTYPES ? tb_dtype_size((tb_dtype)c.dtype) : 8;
  size_t bytes = c.count * elem * (c.kind == TB_ALL_GATHER ? RANKS : 1);
  if (bytes > BYTES) c.count = 16;
  memset(s->in, 0x3c, sizeof s->in);
  memset(s->out, 0x3d, sizeof s->out);
  c.in = s->in;
  c.out = key & 8 && c.kind != TB_ALL_GATHER && c.kind != TB_REDUCE_SCATTER ? s->in : s->out;
  s->busy = true;
  s->done = false;
  if (tb_core_issue(w->core, &c, w->now, w->now, &s->o)) {
    CHECK(!s->done && s->o.error[0]);
    s->busy = false;
  }
}

static void give(world *w, const uint8_t *frame, uint32_t len, bool again) {
  uint8_t *exact = malloc(len ? len : 1);
  CHECK(exact);
  memcpy(exact, frame, len);
  if (!tb_core_rx(w->core, exact, len, (tb_from)(w->now % 3), w->now)) {
    if (again && tb_core_rx_again(w->core, exact, len, w->now)) CHECK(len >= TB_HEAD);
    else tb_core_give_up_early(w->core, exact, len);
  }
  free(exact);
}

/* What a peer could truly say: taken from an operation that the core has. */
static void plausible(world *w, feed *f, tb_head *h, uint8_t *body, uint32_t *len) {
  uint32_t skip = take(f, 1) % 8;
  tb_op *op = w->core->ops;
  while (op && skip-- && op->next) op = op->next;
  if (!op) return;
  h->key = op->key->hash;
  h->round = op->round;
  h->signature = op->sig_hash;
  h->count = (uint16_t)(h->count % (RANKS + 1));
  if (h->type == TB_T_DATA) {
    h->stage = (uint8_t)(1 + (h->stage & 1));
    uint32_t chunks = h->source < w->core->cfg.n ? op->peer[h->source].rx[h->stage - 1].total : 0;
    if (!chunks) return;
    h->chunk %= chunks;
    h->level = tb_level(op, h->source, h->stage - 1);
    uint64_t first;
    tb_piece at = tb_flow_piece(w->core, op, h->source, h->stage - 1, TB_RECEIVED, h->chunk);
    uint32_t want = tb_geo_payload(&op->geo, tb_geo_chunk(&op->geo, at.owner, at.chunk, &first));
    if (want <= 1024) *len = want;
    if (h->stage == 1 && h->level == 0) h->count = 1;
  } else if (h->type == TB_T_OPEN) {
    tb_open o = {.sig = op->sig, .heard = h->chunk & 1, .has_closed = h->chunk >> 1 & 1,
                 .closed_through = op->round + take(f, 1) - 3, .key_len = op->key->len};
    memcpy(o.key, op->key->name, o.key_len);
    *len = tb_open_encode(&o, body, 1024);
    h->round += take(f, 1) % 4;
  } else if (h->type == TB_T_RECEIPT) {
    tb_section s = {.key = h->key, .round = h->round, .stage = (uint8_t)(1 + take(f, 1) % 2),
                    .flags = (uint8_t)take(f, 1), .ranges = (uint16_t)(take(f, 1) % 3),
                    .upto = take(f, 1)};
    tb_receipt_begin(body, take(f, 1));
    tb_section_encode(&s, body + TB_RECEIPT_HEAD);
    for (uint32_t i = 0; i < 2u * s.ranges; i++) tb_put32(body + TB_RECEIPT_HEAD + TB_SECTION + 4 * i, take(f, 1));
    tb_receipt_finish(body, 1);
    *len = TB_RECEIPT_HEAD + TB_SECTION + 8u * s.ranges;
  } else if (h->type == TB_T_PROBE) {
    tb_probe p = {.kind = (uint8_t)(1 + take(f, 1) % 3), .final = (uint8_t)(take(f, 1) & 1), .sent = take(f, 1),
                  .id = take(f, 2)};
    h->stage = (uint8_t)(1 + (h->stage & 1));
    *len = tb_probe_encode(&p, body, 1024);
  }
}

static void packet(world *w, feed *f, bool honest) {
  uint8_t frame[TB_HEAD + 1024] = {0};
  tb_head h = {.type = (uint8_t)(1 + take(f, 1) % 8), .source = (uint16_t)(take(f, 1) % (RANKS + 1)), .destination = 0,
               .job = 7, .view = 1};
  uint32_t what = take(f, 1);
  h.flags = (uint8_t)(what & 3);
  h.stage = (uint8_t)(what >> 2 & 3);
  h.count = (uint16_t)take(f, 1);
  h.level = (what & 0xc0) == 0xc0 ? h.count & 3 : 0;
  h.chunk = what & 0x40 ? take(f, 4) : take(f, 1);
  h.round = what & 0x20 ? take(f, 4) : take(f, 1) % 8;
  h.remaining_us = what & 0x10 ? TB_REMAINING_NONE : take(f, 2) * 16;
  h.stamp_ns = take(f, 1) << 16;
  h.echo_ns = (uint32_t)w->now - take(f, 3);
  h.hold_us = what & 0x80 ? TB_HOLD_NONE : (uint16_t)take(f, 1);
  h.step = what & 0x10 ? take(f, 4) : take(f, 1);
  h.credit = take(f, what & 0x20 ? 4 : 2);
  h.key = tb_key_hash(names + what % 4, 1);
  uint32_t len = take(f, 2) % 1025;
  if (len > (uint32_t)(f->end - f->at)) len = (uint32_t)(f->end - f->at);
  memcpy(frame + TB_HEAD, f->at, len);
  f->at += len;
  if (h.type != TB_T_DATA && what & 1) frame[TB_HEAD] = TB_BODY_VERSION;
  if (h.type == TB_T_GOODBYE && what % 16) h.type = TB_T_GRANT; /* obeyed at once: it would end too many runs early */
  if (honest) plausible(w, f, &h, frame + TB_HEAD, &len);
  tb_head_encode(&h, frame);
  bool covered = w->core->cfg.seal_payload || h.type != TB_T_DATA;
  tb_head_seal(frame, covered ? frame + TB_HEAD : NULL, len);
  give(w, frame, TB_HEAD + len, what & 1);
}

static void transmit(world *w, feed *f) {
  const tb_out *o;
  int n = tb_core_out(w->core, w->now, &o);
  if (n <= 0) return;
  int some = (int)(take(f, 1) % (uint32_t)(n + 1));
  uint64_t before = w->refs;
  uint8_t sink = 0;
  for (int i = 0; i < some; i++) { /* what is sent must be readable */
    tb_head h;
    CHECK(o[i].peer < w->core->cfg.n && o[i].peer != 0 && o[i].head_len >= TB_HEAD);
    if (!o[i].pay_len) CHECK(tb_head_decode(o[i].head, o[i].head_len, true, &h) == TB_BAD_NONE);
    for (uint32_t k = 0; k < o[i].pay_len; k += 97) sink ^= o[i].pay[k];
    if (o[i].pay_len) sink ^= o[i].pay[o[i].pay_len - 1];
    w->refs += w->async && o[i].ref && o[i].pay_len;
  }
  volatile uint8_t keep = sink;
  (void)keep;
  tb_core_sent(w->core, some, before, w->now);
}

static void step(world *w, feed *f) {
  uint32_t op = take(f, 1);
  switch (op % 12) {
  case 0: { /* as it stands */
    uint32_t len = take(f, 2) % 1200;
    if (len > (uint32_t)(f->end - f->at)) len = (uint32_t)(f->end - f->at);
    give(w, f->at, len, true);
    f->at += len;
    break;
  }
  case 1: case 2: packet(w, f, false); break;
  case 3: case 4: case 5: case 6: packet(w, f, true); break;
  case 7: issue(w, f); break;
  case 8: w->now += (uint64_t)take(f, 2) << (op / 12 % 3 * 8); break;
  case 9: tb_core_timers(w->core, w->now); break;
  case 10: transmit(w, f); break;
  default:
    if (op & 1) {
      call_state *s = &w->call[take(f, 1) % OPS];
      if (s->busy && !s->done) tb_core_cancel(w->core, &s->o, -125, "cancelled", w->now);
    } else {
      tb_core_forget(w->core, names + take(f, 1) % 4, 1);
      tb_core_ping(w->core, (uint16_t)(op % w->core->cfg.n), take(f, 2));
    }
    if (w->async && w->reaped < w->refs)
      tb_core_reaped(w->core, w->reaped += 1 + take(f, 1) % (uint32_t)(w->refs - w->reaped), w->now);
  }
  CHECK(w->core->memory + tb_pool_kept(w->core->pool) <= w->core->tune.memory_cap);
  CHECK(w->core->early_memory <= w->core->memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  feed f = {data, data + size};
  static world w;
  memset(&w, 0, sizeof w);
  uint32_t mode = take(&f, 1);
  tb_core_cfg cfg = {.rank = 0, .n = (uint16_t)(mode & 8 ? 2 : RANKS), .job = 7, .view = 1,
                     .chunk_bytes = mode & 4 ? 64 : 1024, .window = mode & 16 ? 4 : 64,
                     .seal_payload = mode & 1, .async_refs = mode & 2, .quiesce_ns = mode & 2 ? 1000 : 0, .ctx = &w,
                     .done = on_done, .log = on_log};
  tb_tunables_default(&cfg.tune);
  cfg.tune.early_cap = 200000;
  cfg.tune.memory_cap = 500000;
  cfg.tune.key_cap = 32;
  cfg.tune.carry_age = 2 * cfg.tune.keep_age;
  cfg.tune.keepalive = cfg.tune.peer_timeout / 3; /* an exact round is kept for a silent peer so long, three times */
  cfg.tune.auto_exact_rounds = mode >> 5;
  w.async = cfg.async_refs;
  w.now = 1000000000;
  CHECK(tb_core_new(&cfg, &w.core) == 0);
  if ((mode & 0x68) == 0x60) CHECK(tb_core_set_groups(w.core, (uint16_t[]){0, 0, 1, 1}) == 0);
  while (f.at < f.end) step(&w, &f);
  /* The end: everything in flight is cancelled, time passes, nothing is left that was the callers'. */
  for (int i = 0; i < OPS; i++) {
    call_state *s = &w.call[i];
    if (s->busy && !s->done) tb_core_cancel(w.core, &s->o, -125, "the end", w.now);
  }
  tb_core_reaped(w.core, UINT64_MAX, w.now);
  for (int i = 0; i < OPS; i++)
    if (w.call[i].busy) {
      CHECK(w.call[i].done);
      finish(&w.call[i]);
    }
  const tb_out *o;
  for (int n, turns = 0; (n = tb_core_out(w.core, w.now, &o)) > 0 && turns < 1000; turns++)
    tb_core_sent(w.core, n, w.refs, w.now);
  for (int i = 0; i < 600; i++) { /* a minute: bound rounds are kept for whoever was heard at keep-alive pace */
    w.now += 100000000;
    tb_core_timers(w.core, w.now);
    for (int n, turns = 0; (n = tb_core_out(w.core, w.now, &o)) > 0 && turns < 100; turns++)
      tb_core_sent(w.core, n, w.refs, w.now);
  }
  for (tb_op *op = w.core->ops; op; op = op->next) CHECK(op->state == TB_OP_EARLY); /* the rest has retired (rule 5) */
  tb_core_free(w.core);
  return 0;
}
