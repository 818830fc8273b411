#include "core_pair.h"
#include "compute/compute.h"

static const uint64_t HOUR = 3600 * TB_SEC;
enum { POISON = 0xa5, RING_EVERY = 10000 };

static void on_done(void *ctx, tb_outcome *o) {
  cp_who *who = ctx;
  cp_work *w = (cp_work *)o;
  assert_int_equal(w->rank, who->rank);
  if (tb_core_unfinished(o)) {
    tb_core_invert(o);
    tb_core_inverted(who->net->core[who->rank], o);
  }
  w->done++;
  w->done_at = who->net->now;
  if (w->out_bytes) {
    w->result = malloc(w->out_bytes);
    assert_non_null(w->result);
    memcpy(w->result, w->out, w->out_bytes);
    memset(w->out, POISON, w->out_bytes);
  }
  if (w->in_bytes) memset(w->in, POISON, w->in_bytes);
}

static void on_log(void *ctx, int level, const char *text) {
  cp *net = ((cp_who *)ctx)->net;
  (void)level;
  snprintf(net->line[net->lines++ % CP_LINES], sizeof net->line[0], "%s", text);
}

bool cp_logged(const cp *net, const char *text) {
  for (int i = 0; i < net->lines && i < CP_LINES; i++)
    if (strstr(net->line[i], text)) return true;
  return false;
}

cp *cp_new(const cp_options *o) {
  cp *net = calloc(1, sizeof *net);
  assert_non_null(net);
  assert_in_range(o->n, 1, CP_RANKS);
  net->opt = *o;
  net->n = o->n;
  net->now = TB_SEC; /* not 0: that means "never" in places */
  for (uint16_t r = 0; r < net->n; r++) {
    net->who[r] = (cp_who){net, r};
    tb_core_cfg cfg = {.rank = r, .n = (uint16_t)net->n, .job = CP_JOB, .view = CP_VIEW, .chunk_bytes = o->chunk_bytes,
                       .window = o->window, .seal_payload = !o->no_seal, .async_refs = o->async_refs,
                       .quiesce_ns = o->quiesce,
                       .ctx = &net->who[r], .done = on_done, .log = on_log};
    tb_tunables_default(&cfg.tune);
    if (o->tune) o->tune(&cfg.tune);
    assert_int_equal(tb_core_new(&cfg, &net->core[r]), 0);
  }
  return net;
}

cp *cp_plain(uint32_t n) {
  return cp_new(&(cp_options){.n = n, .chunk_bytes = 64, .window = 256, .delay = 100000});
}

void cp_free(cp *net) {
  for (uint32_t r = 0; r < net->n; r++) tb_core_free(net->core[r]);
  for (cp_frame *f = net->wire, *next; f; f = next) {
    next = f->next;
    free(f);
  }
  free(net);
}

int cp_issue(cp *net, uint16_t rank, cp_work *w, const tb_call *call) {
  size_t bytes = call->count * tb_dtype_size((tb_dtype)call->dtype);
  *w = (cp_work){.net = net, .rank = rank, .in = (void *)(uintptr_t)call->in, .out = call->out};
  if (call->in) w->in_bytes = bytes;
  if (call->out)
    w->out_bytes = call->kind == TB_ALL_GATHER       ? bytes * net->n
                   : call->kind == TB_REDUCE_SCATTER ? bytes / net->n
                                                     : bytes;
  return tb_core_issue(net->core[rank], call, net->now, net->now, &w->o);
}

tb_call cp_call(const char *key, const float *in, float *out, uint64_t count, uint64_t deadline_ns) {
  return (tb_call){.kind = TB_ALL_REDUCE, .dtype = TB_F32, .redop = TB_SUM, .count = count, .in = in, .out = out,
                   .key = key ? key : "", .key_len = key ? (uint32_t)strlen(key) : 0, .deadline_ns = deadline_ns,
                   .min_received = 0.5};
}

static void enqueue(cp *net, cp_frame *f) {
  cp_frame **at = &net->wire;
  while (*at && (*at)->at <= f->at) at = &(*at)->next; /* first in, first out among equals */
  f->next = *at;
  *at = f;
}

static void depart(cp *net, uint16_t src, const tb_out *o) {
  cp_frame *f = malloc(sizeof *f + o->head_len + o->pay_len), *copy;
  assert_non_null(f);
  *f = (cp_frame){.sent = net->now, .at = net->now + net->opt.delay, .src = src, .dst = o->peer,
                  .len = o->head_len + o->pay_len};
  memcpy(f->data, o->head, o->head_len);
  if (o->pay_len) memcpy(f->data + o->head_len, o->pay, o->pay_len);
  if (o->ref && o->pay_len && net->opt.async_refs) {
    f->late = o->pay;
    f->late_len = o->pay_len;
    f->leaves = net->now + net->opt.ref_hold;
    f->at = f->leaves + net->opt.delay;
  }
  /* Whatever a core sends, its peers must be able to read. */
  assert_int_equal(tb_head_decode(f->data, f->len, !net->opt.no_seal, &f->h), TB_BAD_NONE);
  assert_int_equal(f->h.source, src);
  assert_int_equal(f->h.destination, o->peer);
  net->sent[f->h.type]++;
  net->data_sent[src][o->peer] += f->h.type == TB_T_DATA;
  int copies = net->fate ? net->fate(net, f) : 1;
  for (; copies > 1; copies--) {
    copy = malloc(sizeof *f + f->len);
    assert_non_null(copy);
    memcpy(copy, f, sizeof *f + f->len);
    copy->late = NULL;
    enqueue(net, copy);
  }
  if (copies) {
    enqueue(net, f);
  } else if (f->late) { /* a lost frame is read all the same */
    f->dst = UINT16_MAX;
    enqueue(net, f);
  } else {
    free(f);
  }
}

/* Payloads that leave by now are read now; a rank's REFs complete in order. */
static void read_late(cp *net) {
  uint64_t first[CP_RANKS];
  for (uint32_t r = 0; r < net->n; r++) first[r] = 0;
  for (cp_frame *f = net->wire; f; f = f->next) {
    if (!f->late) continue;
    if (f->leaves > net->now) {
      first[f->src]++;
      continue;
    }
    memcpy(f->data + f->len - f->late_len, f->late, f->late_len);
    f->late = NULL;
  }
  for (uint32_t r = 0; r < net->n && net->opt.async_refs; r++) {
    uint64_t done = net->refs[r] - first[r];
    if (done > net->reaped[r]) net->reaped[r] = done;
    tb_core_reaped(net->core[r], net->reaped[r], net->now);
  }
}

void cp_give(cp *net, uint16_t dst, const uint8_t *frame, uint32_t len) {
  uint8_t *exact = malloc(len ? len : 1); /* a heap block of the very length: the sanitizer sees every byte too far */
  assert_non_null(exact);
  memcpy(exact, frame, len);
  if (!tb_core_rx(net->core[dst], exact, len, net->from, net->now)) tb_core_give_up_early(net->core[dst], exact, len);
  memset(exact, 0xee, len); /* a lease ends: nobody may look at it later */
  free(exact);
}

static bool deliver(cp *net) {
  bool any = false;
  if (net->arrive) net->arrive(net);
  while (net->wire && net->wire->at <= net->now) {
    cp_frame *f = net->wire;
    net->wire = f->next;
    if (f->dst < net->n && !net->stopped[f->dst]) cp_give(net, f->dst, f->data, f->len);
    free(f);
    any = true;
  }
  return any;
}

static bool transmit(cp *net, uint16_t r) {
  const tb_out *o;
  bool any = false;
  if (net->opt.ring && net->refill[r] <= net->now) {
    net->room[r] = net->opt.ring;
    net->refill[r] = net->now + RING_EVERY;
  }
  net->full[r] = false;
  for (int n; (n = tb_core_out(net->core[r], net->now, &o)) > 0; any = true) {
    uint64_t before = net->refs[r];
    if (net->opt.ring) {
      net->full[r] = net->room[r] < (uint32_t)n;
      if (net->full[r]) n = (int)net->room[r];
      net->room[r] -= (uint32_t)n;
      if (n == 0) break;
    }
    for (int i = 0; i < n; i++) {
      net->refs[r] += o[i].ref && o[i].pay_len && net->opt.async_refs;
      depart(net, r, &o[i]);
    }
    tb_core_sent(net->core[r], n, before, net->now);
  }
  return any;
}

void cp_settle(cp *net) {
  for (int turn = 0, again = 1; again; turn++) {
    assert_true(turn < 10000); /* time must move */
    read_late(net);
    again = deliver(net);
    for (uint16_t r = 0; r < net->n; r++) {
      if (net->stopped[r]) continue;
      if (tb_core_next(net->core[r]) <= net->now) {
        tb_core_timers(net->core[r], net->now);
        again = 1;
      }
      again |= transmit(net, r);
    }
    if (net->opt.async_refs && net->opt.ref_hold == 0) read_late(net);
  }
}

static uint64_t next_event(const cp *net) {
  uint64_t t = net->wire ? net->wire->at : UINT64_MAX;
  for (const cp_frame *f = net->wire; f; f = f->next)
    if (f->late && f->leaves < t) t = f->leaves;
  for (uint32_t r = 0; r < net->n; r++) {
    if (!net->stopped[r] && tb_core_next(net->core[r]) < t) t = tb_core_next(net->core[r]);
    if (net->full[r] && !net->stopped[r] && net->refill[r] < t) t = net->refill[r];
  }
  return t > net->now ? t : net->now + 1;
}

static bool step(cp *net, uint64_t limit) {
  cp_settle(net);
  uint64_t t = next_event(net);
  net->now = t < limit ? t : limit;
  cp_settle(net);
  return net->now < limit;
}

void cp_until(cp *net, uint64_t t) {
  while (net->now < t) step(net, t);
  cp_settle(net);
}

void cp_wait(cp *net, cp_work *w) {
  uint64_t stop = net->now + HOUR;
  cp_settle(net);
  while (!w->done && step(net, stop)) {
  }
  if (!w->done) fail_msg("rank %u waits for ever", w->rank);
}

void cp_wait_all(cp *net, cp_work *w, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) cp_wait(net, &w[i]);
}

void cp_work_free(cp_work *w, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    assert_true(w[i].done <= 1);
    if (w[i].done) {
      cp_expect_poison(w[i].in, w[i].in_bytes);
      cp_expect_poison(w[i].out, w[i].out_bytes);
    }
    free(w[i].result);
    w[i].result = NULL;
    tb_outcome_free(&w[i].o);
  }
}

uint32_t cp_forge(const cp *net, uint16_t src, uint16_t dst, const tb_head *given, const void *body, uint32_t len,
                  uint8_t *out) {
  tb_head h = *given;
  h.source = src;
  h.destination = dst;
  h.job = CP_JOB;
  h.view = CP_VIEW;
  tb_head_encode(&h, out);
  if (len) memcpy(out + TB_HEAD, body, len);
  bool covered = !net->opt.no_seal || h.type != TB_T_DATA;
  tb_head_seal(out, covered ? out + TB_HEAD : NULL, len);
  return TB_HEAD + len;
}

void cp_expect_poison(const void *x, size_t bytes) {
  for (size_t i = 0; i < bytes; i++)
    if (((const uint8_t *)x)[i] != POISON) fail_msg("byte %zu of the caller's memory was written after the return", i);
}

void cp_fill(float *x, uint64_t count, float first, float step) {
  for (uint64_t i = 0; i < count; i++) x[i] = first + (float)i * step;
}

void cp_expect(const float *x, uint64_t count, float first, float step) {
  for (uint64_t i = 0; i < count; i++)
    if (x[i] != first + (float)i * step)
      fail_msg("element %llu is %.9g, not %.9g", (unsigned long long)i, (double)x[i],
               (double)(first + (float)i * step));
}
