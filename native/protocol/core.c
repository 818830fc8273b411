/* core.c - the core as a whole: its life, and the queue of frames between it and a link. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/core.h"

enum { ZEROS = 65536 };

int tb_core_new(const tb_core_cfg *cfg, tb_core **out) {
  tb_core *c = calloc(1, sizeof *c);
  if (!c) return -ENOMEM;
  c->cfg = *cfg;
  c->tune = cfg->tune;
  if (!c->cfg.train) c->cfg.train = 16;
  if (!c->cfg.buffers) c->cfg.buffers = 1;
  c->grants = calloc(c->cfg.buffers, sizeof *c->grants);
  c->peer = calloc(cfg->n, sizeof *c->peer);
  c->pool = tb_pool_new();
  c->head = calloc(TB_OUT_MAX, sizeof *c->head);
  c->ctl = calloc(TB_CTL_MAX, sizeof *c->ctl);
  c->scratch64 = calloc(cfg->n + 1u, sizeof *c->scratch64);
  c->zeros = calloc(1, ZEROS);
  c->say = calloc(tb_words(cfg->n), sizeof *c->say);
  uint64_t *clocks = calloc(2 * (size_t)tb_clocks_words(cfg->n), sizeof *clocks);
  if (clocks) {
    tb_clocks_init(&c->clock, cfg->n, clocks);
    tb_clocks_init(&c->trips, cfg->n, clocks + tb_clocks_words(cfg->n));
  }
  if (!c->peer || !c->pool || !c->head || !c->ctl || !c->scratch64 || !c->zeros || !c->say || !c->grants || !clocks) {
    tb_core_free(c);
    return -ENOMEM;
  }
  c->due = UINT64_MAX;
  for (uint32_t p = 0; p < cfg->n; p++) {
    c->peer[p].resume_at = UINT64_MAX;
    if (p != cfg->rank) tb_clocks_set(&c->clock, p, 0); /* the first time that timers run, each peer's clocks start */
  }
  tb_core_set_chunk(c, cfg->chunk_bytes, cfg->window);
  tb_members_init(c);
  *out = c;
  return 0;
}

void tb_core_free(tb_core *c) {
  if (!c) return;
  c->closing = true;
  tb_settle_free_all(c);
  while (c->ops) tb_op_free(c, c->ops, 0);
  tb_key_free_all(c);
  tb_pool_free(c->pool);
  tb_teams_free(&c->teams);
  tb_hierarchy_free(c->tree);
  free(c->peer);
  free(c->head);
  free(c->ctl);
  free(c->coded);
  free(c->decoded);
  free(c->rounding);
  free(c->scratch64);
  free(c->say);
  free(c->grants);
  free(c->clock.at);
  free((void *)c->zeros);
  free(c);
}

/* What has waited here since an earlier pass may be wanted no more, and in place, or of a partial sum, its bytes may
 * have been overwritten by the decided ones since: they are never sent as a contribution (LINKS rule 6). Nor is a link
 * that was slow to take it to read the caller's memory so near the deadline (LINKS rule 7): what counts is when it is
 * taken. */
static void look_again(tb_core *c, uint64_t now) {
  uint32_t kept = c->out_at;
  for (uint32_t i = c->out_at; i < c->out_n; i++) {
    tb_out *o = &c->out[i];
    if (o->ref && tb_refs_quiet(c, o->op, now)) o->ref = false;
    bool scattered = o->op && o->stage == 1 && (o->user || o->op->work || tb_across(o->op, o->peer));
    if (!scattered || !tb_bit(o->op->peer[o->peer].tx[0].ack, o->chunk)) c->out[kept++] = *o;
  }
  c->out_n = kept;
}

int tb_core_out(tb_core *c, uint64_t now, const tb_out **frames) {
  if (c->out_at < c->out_n) look_again(c, now);
  if (c->out_at == c->out_n) {
    c->out_at = c->out_n = c->ctl_n = 0;
    tb_say_control(c, now);
    tb_tx_data(c, now);
  }
  *frames = c->out + c->out_at;
  return (int)(c->out_n - c->out_at);
}

void tb_core_sent(tb_core *c, int taken, uint64_t refs_before, uint64_t now) {
  for (int i = 0; i < taken; i++) {
    tb_out *o = &c->out[c->out_at++];
    if (!o->ref || !o->pay_len || !c->cfg.async_refs || refs_before == UINT64_MAX) continue;
    o->op->last_ref = ++refs_before;
    tb_flow_tx *f = &o->op->peer[o->peer].tx[0];
    if (f->ref && o->chunk < f->total) f->ref[o->chunk] = refs_before;
  }
  if (c->out_at < c->out_n) return;
  c->out_at = c->out_n = c->ctl_n = 0;
  if (!c->starved) return;
  c->starved = false;
  for (tb_op *op = c->ops; op; op = op->next) tb_due(c, op, now);
}

void tb_core_reaped(tb_core *c, uint64_t done, uint64_t now) {
  if (done <= c->reaped) return;
  c->reaped = done;
  for (tb_op *op = c->finishing ? c->ops : NULL, *next; op; op = next) {
    next = op->next;
    if (op->state == TB_OP_FINISHING) tb_op_finish(c, op, now);
  }
}

uint64_t tb_core_refs_overdue(const tb_core *c) {
  uint64_t since = UINT64_MAX;
  for (const tb_op *op = c->finishing ? c->ops : NULL; op; op = op->next)
    if (op->state == TB_OP_FINISHING && op->returned < since) since = op->returned;
  return since;
}

uint64_t tb_core_next(const tb_core *c) { return c->liveness_changed ? 0 : c->due; }

bool tb_core_wants_tx(const tb_core *c) {
  return c->out_at < c->out_n || c->control_due;
}

void tb_core_ping(tb_core *c, uint16_t peer, uint32_t pad_to) {
  tb_peer *q = &c->peer[peer];
  if (peer == c->cfg.rank) return;
  q->want_ping = true;
  tb_say_to(c, peer);
  q->ping_len = pad_to < ZEROS ? pad_to : ZEROS;
}

bool tb_core_ponged(const tb_core *c, uint16_t peer, uint32_t at_least) {
  return c->peer[peer].ponged && c->peer[peer].ponged >= at_least;
}

void tb_core_set_credit(tb_core *c, uint16_t p, uint32_t share) { c->peer[p].credit = c->peer[p].widest = c->peer[p].peer_window = tb_window_start(c, share); }


void tb_core_set_chunk(tb_core *c, uint32_t chunk_bytes, uint32_t window) {
  c->cfg.chunk_bytes = chunk_bytes;
  c->cfg.window = window;
  memset(c->grants, 0, c->cfg.buffers * sizeof *c->grants);
  for (uint32_t p = 0; p < c->cfg.n; p++) {
    tb_peer *q = &c->peer[p];
    q->window = q->credit = q->granted = q->widest = q->peer_window = tb_window_start(c, window);
    q->promised = p == c->cfg.rank ? 0 : q->window;
    tb_grants_of(c, (uint16_t)p)->promised += q->promised;
  }
  tb_window_shares(c);
}

int tb_core_set_groups(tb_core *c, const uint16_t *group_of) {
  tb_hierarchy_free(c->tree);
  int rc = tb_hierarchy_new(group_of, c->cfg.n, c->cfg.rank, &c->tree);
  tb_window_shares(c);
  return rc;
}

uint32_t tb_core_groups(const tb_core *c) { return c->tree ? c->tree->groups : 1; }

void tb_core_goodbye(tb_core *c) {
  for (uint32_t p = 0; p < c->cfg.n; p++)
    if (p != c->cfg.rank && !c->peer[p].gone) {
      c->peer[p].goodbyes = 1;
      tb_say_to(c, (uint16_t)p);
    }
}

bool tb_core_idle(const tb_core *c) {
  for (const tb_op *op = c->ops; op; op = op->next)
    if (op->state != TB_OP_EARLY) return false;
  return !tb_core_wants_tx(c);
}

void tb_core_note_commit(tb_core *c, uint64_t bytes, bool transformed, uint64_t ns) {
  if (bytes < 65536) return;
  double cost = (double)ns / (double)bytes, *known = &c->commit_cost[transformed];
  *known += (cost - *known) / (cost > *known ? *known > 0 ? 2 : 1 : 16);
}

void tb_core_note_overflow(tb_core *c, uint64_t total) { c->overflow = total; }
const tb_comm_counters *tb_core_counters(const tb_core *c) { return &c->n; }
const tb_peer_counters *tb_core_peer_counters(const tb_core *c, uint16_t p) { return &c->peer[p].n; }

void tb_core_peer_view(const tb_core *c, uint16_t p, tb_peer_view *v) {
  const tb_peer *q = &c->peer[p];
  *v = (tb_peer_view){.srtt_ns = q->srtt, .rttvar_ns = q->rttvar, .last_heard_ns = q->last_heard, .absent = q->absent, .gone = q->gone,
                      .missed_of_100 = tb_peer_missed(q)};
  uint64_t all[TB_HISTORY * 8];
  uint32_t n = 0;
  for (int b = 0; b < TB_BUCKETS; b++)
    for (const tb_key *k = c->key_hash[b]; k; k = k->hash_next)
      for (const tb_history *h = k->history; h; h = h->next)
        for (uint32_t i = 0; i < TB_HISTORY && i < h->peer[p].offsets_n && n < TB_HISTORY * 8; i++)
          all[n++] = h->peer[p].offsets[i];
  v->offset_median_ns = tb_median(all, n);
  if (n) v->offset_p99_ns = all[(n - 1) * 99 / 100]; /* tb_median sorted it */
}
