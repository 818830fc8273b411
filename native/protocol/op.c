/* op.c - an operation's memory: found by (key, round), listed by deadline, accounted against the caps. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "compute/compute.h"
#include "protocol/core.h"

static uint32_t bucket(uint32_t key, uint32_t round) { return (key ^ round * 2654435761u) % TB_BUCKETS; }

tb_op *tb_op_find(tb_core *c, uint32_t key, uint32_t round) {
  tb_op *op = c->op_hash[bucket(key, round)];
  while (op && (op->round != round || op->key->hash != key)) op = op->hash_next;
  return op;
}

bool tb_op_concerns(const tb_op *op, uint32_t p) {
  return op->geo.kind == TB_SEND ? p == op->sig.root || p == op->sig.peer : tb_team_has(op->geo.team, p);
}

bool tb_op_takes_part(const tb_op *op, uint32_t p) {
  if (op->tree) return op->tree->kin[p] != TB_KIN_NONE;
  return !op->strange && tb_op_concerns(op, p);
}

bool tb_op_past(const tb_key *k, uint32_t round) {
  return tb_before(round, k->next_round);
}

/* What has returned is served after everything that somebody waits for, exact operations (without a deadline) too. */
static uint64_t place(const tb_op *op) {
  if (op->state == TB_OP_RETURNED) return UINT64_MAX;
  return op->deadline < UINT64_MAX ? op->deadline : UINT64_MAX - 1;
}

static void let_pool_keep(tb_core *c) {
  size_t left = c->memory < c->tune.memory_cap ? c->tune.memory_cap - c->memory : 0;
  tb_pool_keep(c->pool, left < TB_POOL_KEEP ? left : TB_POOL_KEEP);
}

bool tb_memory_take(tb_core *c, size_t bytes) {
  if (c->memory > c->tune.memory_cap || bytes > c->tune.memory_cap - c->memory) return false;
  c->memory += bytes;
  let_pool_keep(c);
  return true;
}

void tb_memory_give(tb_core *c, size_t bytes) {
  c->memory -= bytes;
  let_pool_keep(c);
}

void tb_op_grown(tb_core *c, tb_op *op, size_t bytes) {
  op->bytes += bytes;
  if (op->state == TB_OP_EARLY) c->early_memory += bytes;
}

int tb_op_add_save(tb_core *c, tb_op *op, size_t bytes) {
  if (!tb_memory_take(c, bytes)) return -EAGAIN;
  op->save = tb_pool_get(c->pool, bytes);
  if (!op->save) {
    tb_memory_give(c, bytes);
    return -ENOMEM;
  }
  tb_op_grown(c, op, bytes);
  return 0;
}

/* Frames not yet taken must not point at freed memory: at a buffer of the tensor's size, or at anything of op
 * (NULL). */
static void drop_frames(tb_core *c, const tb_op *op, const uint8_t *buffer) {
  for (uint32_t i = c->out_at; i < c->out_n; i++) {
    tb_out *o = &c->out[i];
    bool in_it = buffer && o->pay >= buffer && o->pay < buffer + op->geo.count * op->geo.elem;
    if (o->op == op && (!buffer || in_it)) *o = c->out[--c->out_n], i--;
  }
}

uint8_t *tb_op_part_with_work(tb_core *c, tb_op *op) {
  uint8_t *work = op->work;
  drop_frames(c, op, work);
  op->bytes -= op->geo.count * op->geo.elem;
  op->work = NULL;
  return work;
}

void tb_op_drop_save(tb_core *c, tb_op *op) {
  size_t bytes = op->geo.count * op->geo.elem;
  drop_frames(c, op, op->save);
  tb_pool_put(c->pool, op->save);
  op->save = NULL;
  op->bytes -= bytes;
  tb_memory_give(c, bytes);
}

static void link_by_deadline(tb_core *c, tb_op *op) {
  tb_op *at = c->ops_last; /* from the end: most come with the latest deadline so far */
  while (at && place(at) > place(op)) at = at->prev;
  op->prev = at;
  op->next = at ? at->next : c->ops;
  *(op->next ? &op->next->prev : &c->ops_last) = op;
  *(at ? &at->next : &c->ops) = op;
}

static void unlink_op(tb_core *c, tb_op *op) {
  *(op->next ? &op->next->prev : &c->ops_last) = op->prev;
  *(op->prev ? &op->prev->next : &c->ops) = op->next;
}

static void link_to_key(tb_key *k, tb_op *op) {
  tb_op *at = k->ops_last;
  while (at && tb_before(op->round, at->round)) at = at->key_prev;
  op->key_prev = at;
  op->key_next = at ? at->key_next : k->ops;
  *(op->key_next ? &op->key_next->key_prev : &k->ops_last) = op;
  *(at ? &at->key_next : &k->ops) = op;
}

static void unlink_from_key(tb_key *k, tb_op *op) {
  *(op->key_next ? &op->key_next->key_prev : &k->ops_last) = op->key_prev;
  *(op->key_prev ? &op->key_prev->key_next : &k->ops) = op->key_next;
}

void tb_op_reorder(tb_core *c, tb_op *op) {
  unlink_op(c, op);
  link_by_deadline(c, op);
}

static void geometry_of(const tb_core *c, const tb_signature *s, uint32_t round, tb_geometry *g) {
  *g = (tb_geometry){.kind = s->kind == TB_RECV ? TB_SEND : s->kind, .team = c->team, .n = tb_team_n(c), .count = s->count,
                     .chunk_elems = s->chunk_elems};
  tb_coding_geometry(s, g);
  g->root = s->kind == TB_BROADCAST ? s->root : s->peer;
  if (s->kind == TB_ALL_REDUCE) g->rotation = round % g->n;
}

/* One allocation holds every per-peer and per-chunk array; two passes over this function size it and then cut it. */
static size_t carve(const tb_core *c, tb_op *op, uint8_t *base) {
  size_t at = 0;
#define CUT(ptr, count_)                                             \
  do {                                                               \
    if (base) (ptr) = (void *)(base + at);                           \
    at += ((size_t)(count_) * sizeof *(ptr) + 7) / 8 * 8;            \
  } while (0)
  uint32_t n = c->cfg.n, me = c->cfg.rank;
  tb_op_peer *peers = NULL;
  CUT(peers, n);
  if (base) op->peer = peers;
  uint32_t own = op->chunks;
  for (uint32_t p = 0; p < n; p++) {
    if (p == me || !tb_op_takes_part(op, p) || !tb_op_takes_part(op, me)) continue;
    tb_op_peer dummy, *q = base ? &op->peer[p] : &dummy;
    uint32_t tx[2], rx[2];
    tb_relay_flows(c, op, p, tx, rx);
    for (int s = 0; s < 2; s++) {
      if (base) {
        q->tx[s].total = tx[s];
        q->rx[s].total = rx[s];
      }
      CUT(q->tx[s].ack, tb_words(tx[s]));
      CUT(q->tx[s].resend, tb_words(tx[s]));
      CUT(q->tx[s].last_step, tx[s]);
      CUT(q->rx[s].bits, tb_words(rx[s]));
    }
    if (c->cfg.async_refs) CUT(q->tx[0].ref, tx[0]);
    CUT(q->fate.known, op->sig.missing ? tb_words(tx[0]) : 0);
    CUT(q->fate.applied, op->sig.missing ? tb_words(tx[0]) : 0);
  }
  CUT(op->count, own);
  CUT(op->upto, tb_order_matters(c, &op->sig) ? own : 0);
  CUT(op->own_in, tb_words(own));
  CUT(op->closed, tb_words(own));
  CUT(op->decided_order, own);
  if (op->tree) {
    CUT(op->arrived, own);
    CUT(op->relayed, tb_words(own));
    CUT(op->partials, op->tree->groups);
    CUT(op->partial_order, op->tree->groups * tb_longest_shard(&op->geo));
  }
  uint32_t held = 0;
  for (uint32_t p = 0; p < n; p++) held += tb_words(tb_geo_chunks(&op->geo, p));
  CUT(op->held, held);
  uint64_t *clocks = NULL;
  CUT(clocks, tb_clocks_words(n));
  if (base) tb_clocks_init(&op->clock, n, clocks);
  for (int s = 0; s < 2; s++) {
    CUT(op->ready[s], tb_words(n));
    CUT(op->parked[s], tb_words(n));
  }
  CUT(op->told, n);
#undef CUT
  return at;
}

int tb_op_new(tb_core *c, tb_key *k, uint32_t round, const tb_signature *sig, tb_opened by, uint64_t now,
              tb_op **out) {
  tb_op *op = calloc(1, sizeof *op);
  if (!op) return -ENOMEM;
  op->key = k;
  op->round = round;
  op->sig = *sig;
  op->transformed = tb_auto_on(k, sig, round);
  op->called = *sig;
  op->called_hash = op->sig_hash = tb_auto_hash(sig, op->transformed);
  geometry_of(c, sig, round, &op->geo);
  op->view = c->vote.number;
  op->born = now;
  op->deadline = op->due = op->error_bound = UINT64_MAX;
  op->lossy = !sig->exact;
  op->told_stale = true;
  op->carries = op->lossy && sig->missing == TB_CARRY;
  op->tree = sig->groups && c->tree && sig->groups == c->tree->id && !c->team ? c->tree : NULL;
  op->strange = sig->groups && !op->tree;
  op->peers = op->tree ? op->tree->kin_n : op->geo.n - 1;
  op->chunks = op->strange ? 0 : tb_geo_chunks(&op->geo, c->cfg.rank);
  uint64_t first, len;
  tb_geo_shard(&op->geo, c->cfg.rank, &first, &len);
  if (op->strange) { /* there is nothing to reduce, and nothing of it lasts */
    len = 0;
    op->swept = true;
    op->swept_at = now;
  }
  if (op->tree) { /* the shards of its column, each chunk at a place of its own */
    op->relays_open = op->chunks;
    op->chunks = tb_column_chunks(op->tree, &op->geo, op->tree->place[c->cfg.rank]);
    op->relays_open = op->chunks - op->relays_open;
    len = (uint64_t)op->chunks * op->geo.chunk_elems;
  }
  size_t arena = carve(c, op, NULL), acc = 0, dec = 0;
  size_t wide = tb_acc_size((tb_dtype)sig->dtype), elem = op->geo.elem;
  if (tb_geo_scatters(&op->geo)) {
    acc = len * wide;
    dec = tb_coded(op) || wide != elem ? tb_geo_payloads(&op->geo, op->chunks, len) : 0;
  } else if (op->geo.kind != TB_SEND) {
    dec = len * elem; /* what is handed out must outlive the call */
  }
  size_t wait = acc && tb_order_matters(c, sig) ? tb_order_bytes(op) : 0, bytes = sizeof *op + arena + acc + dec + wait;
  bool capped = by == TB_OPENED_ELSEWHERE && c->early_memory + bytes > c->tune.early_cap;
  if (capped || !tb_memory_take(c, bytes)) {
    free(op);
    return -EAGAIN;
  }
  op->arena = tb_pool_get(c->pool, arena);
  op->acc = acc ? tb_pool_get(c->pool, acc) : NULL;
  op->decided = dec ? tb_pool_get(c->pool, dec) : op->acc;
  op->in_wait = wait ? tb_pool_get(c->pool, wait) : NULL;
  if (!op->arena || (acc && !op->acc) || (dec && !op->decided) || (wait && !op->in_wait) || (tb_coded(op) && tb_coding_room(c))) {
    if (op->decided != op->acc) tb_pool_put(c->pool, op->decided);
    tb_pool_put(c->pool, op->in_wait);
    tb_pool_put(c->pool, op->acc);
    tb_pool_put(c->pool, op->arena);
    tb_memory_give(c, bytes);
    free(op);
    return -ENOMEM;
  }
  memset(op->arena, 0, arena);
  carve(c, op, op->arena);
  for (uint32_t p = 0; p < c->cfg.n; p++) {
    tb_op_peer *q = &op->peer[p];
    q->open_at = q->error_at = q->heard_due = q->tx[0].mark_at = q->tx[1].mark_at = UINT64_MAX;
  }
  c->live_ops++;
  tb_op_grown(c, op, bytes);
  op->hash_next = c->op_hash[bucket(k->hash, round)];
  c->op_hash[bucket(k->hash, round)] = op;
  link_by_deadline(c, op);
  link_to_key(k, op);
  *out = op;
  return 0;
}

void tb_op_free(tb_core *c, tb_op *op, uint64_t now) {
  tb_carry_free(c, op, now);
  tb_late_give_up(c, op);
  if (c->settling && now < c->due) c->due = now; /* somebody waits for this */
  tb_op **at = &c->op_hash[bucket(op->key->hash, op->round)];
  while (*at != op) at = &(*at)->hash_next;
  *at = op->hash_next;
  unlink_op(c, op);
  unlink_from_key(op->key, op);
  drop_frames(c, op, NULL);
  tb_memory_give(c, op->bytes);
  if (op->state == TB_OP_EARLY) c->early_memory -= op->bytes;
  c->live_ops--;
  if (op->decided != op->acc) tb_pool_put(c->pool, op->decided);
  tb_pool_put(c->pool, op->acc);
  tb_pool_put(c->pool, op->save);
  tb_pool_put(c->pool, op->in_wait);
  tb_pool_put(c->pool, op->work);
  tb_pool_put(c->pool, op->arena);
  free(op);
}
