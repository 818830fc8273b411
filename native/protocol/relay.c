/* relay.c - hierarchical all-reduce: ranks in groups, each talking to m - 1 + k - 1 others instead of N - 1, for the
 * same bytes (2 S (1 - 1/N) a rank). hierarchy.h says who talks to whom.
 *
 * DESIGN NOTES. One operation, one round, one OPEN and one deadline as without groups; only the ways are longer.
 * Owners and their shards are the same. In each group the rank at the owner's place *relays* for it:
 *
 *   stage 1, level 0   contributions go to the relay in the own group, which adds them up
 *            level 1   the relay sends the partial sum, with the number of ranks in it, to the owner
 *   stage 2, level 1   the owner hands the decided chunk out to the relays of all groups
 *            level 2   and these, like the owner itself, to their groups
 *
 * A rank relays for k - 1 owners, those of its column, and owns a shard itself; what belongs to these k shards is kept
 * in one accumulator of S / m, chunk by chunk, numbered as in a flow between ranks of a group. Each chunk goes its way
 * as soon as it can. What comes from a rank of the own group adds 1 to a chunk's count, a partial sum what it says: the
 * owner scales once, by N / count, over original ranks (rules 11, 16).
 *
 * A RELAYED CHUNK:  open --complete, or close time of relays--> partial --decided chunk comes--> decided
 *                    \------------------ decided chunk comes (its partial sum came too late) -------^
 * An own one is open -> decided, as without groups. `closed` means that nothing is added any more, `count` of a partial
 * never changes, and partial and decided bytes share their memory: a partial sum whose decided chunk is here is not
 * wanted.
 *
 * DUTY. Relaying is an owner's duty (rule 6): it begins with the first OPEN heard from anyone, needs no issue here, and
 * goes on after the return while anybody near has not passed the round. So a rank that issues late, or never, or
 * returns early, costs only its own contribution. Therefore kin across are served whether or not they have opened the
 * round, and CLOSED, which tells that a rank contributes and wants nothing itself any more, says nothing of them; FINAL
 * does. A *dead* rank is another matter: its group misses the column that it relayed (1/m of the tensor), and the other
 * groups miss its group's contributions there, until it is voted out.
 *
 * TIME. Owners close as without groups, with one more hop to come; relays earlier, by what moving the partial sums
 * takes and a round trip to repair one (rule 2). An owner's close may go by the deadline of a rank near it, of which
 * the relays in other groups hear nothing: so what is announced across is what the close goes by. The later stages take
 * at most half of the budget, and that hop at most half of the rest.
 *
 * INVARIANTS. 1. A contribution is in one partial sum at most, hence once in a decided chunk. 2. Decided bytes are the
 * owner's on all ranks: relays copy them. 3. "Yours is in it" (TB_F_OWN) is true only if the receiver's part was in
 * this group's partial sum *and* the owner counted that. 4. Nothing waits for a relay longer than for a rank.
 */
#include <string.h>
#include "compute/compute.h"
#include "protocol/core.h"

bool tb_groups_valid(const tb_signature *s) {
  bool plain = !s->missing && !s->consistency && !s->hadamard && s->wire_dtype == s->dtype && !(s->tag & TB_TAG_ORDERED);
  /* A partial sum travels as elements: halves would be rounded once more on the way. */
  bool whole = tb_acc_size((tb_dtype)s->dtype) == tb_dtype_size((tb_dtype)s->dtype);
  return !s->groups || (plain && whole && s->kind == TB_ALL_REDUCE);
}

uint32_t tb_groups_for(const tb_core *c, const tb_signature *s) {
  tb_signature with = *s;
  if (!c->tree || c->team || c->tune.deadline_policy != TB_POLICY_AUTO) return 0;
  with.groups = c->tree->id;
  return tb_groups_valid(&with) ? with.groups : 0;
}

void tb_relay_flows(const tb_core *c, const tb_op *op, uint32_t p, uint32_t tx[2], uint32_t rx[2]) {
  bool s1 = tb_geo_scatters(&op->geo), s2 = tb_geo_hands_out(&op->geo);
  uint32_t me = c->cfg.rank, own = tb_geo_chunks(&op->geo, me), theirs = tb_geo_chunks(&op->geo, p);
  if (op->tree && !tb_across(op, p)) {
    own = op->chunks;
    theirs = tb_column_chunks(op->tree, &op->geo, op->tree->place[p]);
  }
  tx[0] = s1 ? theirs : 0;
  tx[1] = s2 ? own : 0;
  rx[0] = s1 ? own : 0;
  rx[1] = s2 ? theirs : 0;
}

tb_piece tb_flow_piece(const tb_core *c, const tb_op *op, uint32_t p, int stage, tb_direction d, uint32_t i) {
  uint32_t whose = (d == TB_SENT) == (stage == 0) ? p : c->cfg.rank;
  if (!op->tree || tb_across(op, p)) return (tb_piece){whose, i};
  return tb_column_piece(op->tree, &op->geo, op->tree->place[whose], i);
}

uint32_t tb_keeper(const tb_op *op, uint32_t owner) { return op->tree ? tb_stand_in(op->tree, owner) : owner; }

uint32_t tb_giver(const tb_core *c, const tb_op *op, uint32_t owner) {
  uint32_t p = tb_keeper(op, owner);
  return p == c->cfg.rank ? owner : p;
}

uint32_t tb_flow_index(const tb_op *op, uint32_t with, tb_piece x) {
  return !op->tree || tb_across(op, with) ? x.chunk : tb_column_index(op->tree, &op->geo, x);
}

uint32_t tb_kept_index(const tb_op *op, tb_piece x) {
  return op->tree ? tb_column_index(op->tree, &op->geo, x) : x.chunk;
}

uint8_t tb_level(const tb_op *op, uint32_t p, int stage) {
  if (!op->tree) return 0;
  return tb_across(op, p) ? 1 : stage == 0 ? 0 : 2;
}

/* A partial sum holds at most a group, a decided chunk without the receiver's part at most all others. */
bool tb_count_valid(const tb_op *op, const tb_data *d) {
  const tb_head *h = d->h;
  uint32_t own = h->flags & TB_F_OWN ? 1 : 0, others = op->geo.n - 1;
  bool across = tb_across(op, h->source);
  if (h->stage == 1) return h->count >= 1 && h->count <= (across ? op->tree->size : 1) && !own;
  if (!across) return h->count >= 1 && h->count <= others + own;
  uint32_t at = tb_kept_index(op, d->piece);
  if (tb_bit(op->peer[h->source].rx[1].bits, h->chunk)) return h->count >= 1; /* a second one: it changes nothing */
  uint32_t mine = tb_bit(op->closed, at) ? op->count[at] : 0, most = op->geo.n - op->tree->size;
  if (!own) return h->count >= 1 && h->count <= most;
  return mine && h->count >= mine && h->count - mine <= most;
}

bool tb_relays(const tb_core *c, const tb_op *op, uint32_t chunk) {
  return op->tree && tb_column_piece(op->tree, &op->geo, op->tree->place[c->cfg.rank], chunk).owner != c->cfg.rank;
}

uint32_t tb_contributors(const tb_core *c, const tb_op *op, uint32_t chunk) {
  if (!op->tree) return op->geo.n;
  return op->tree->size + (tb_relays(c, op, chunk) ? 0 : op->tree->groups - 1);
}

/* p's partial sum may still come: whether or not p itself has passed. */
static bool partial_expected(const tb_core *c, const tb_op *op, uint32_t p) {
  return !op->lossy || (tb_live(c, p) && !op->peer[p].nothing && !op->peer[p].left);
}

bool tb_owes_chunk(const tb_core *c, const tb_op *op, uint32_t p, uint32_t chunk) {
  const tb_flow_rx *r = &op->peer[p].rx[0];
  if (!tb_across(op, p)) return tb_op_takes_part(op, p) && !tb_bit(r->bits, chunk) && tb_peer_expected(op, c, p);
  tb_piece x = tb_column_piece(op->tree, &op->geo, op->tree->place[c->cfg.rank], chunk);
  return x.owner == c->cfg.rank && !tb_bit(r->bits, x.chunk) && partial_expected(c, op, p);
}

/* What is there to be sent across about a shard of the column, in its order: partial sums for its owner, or, of the own
 * one, decided chunks. */
static void add_partial(tb_op *op, tb_piece x) {
  uint32_t g = op->tree->group[x.owner];
  op->partial_order[g * tb_longest_shard(&op->geo) + op->partials[g]++] = x.chunk;
}

static void relay_closed(tb_core *c, tb_op *op) {
  if (--op->relays_open) return;
  for (uint32_t g = 0; g < op->tree->groups; g++) { /* who got less than all must be told that it is all */
    uint32_t p = tb_rank_at(op->tree, g, op->tree->place[c->cfg.rank]);
    if (p != c->cfg.rank) tb_tx_ready(c, op, p, 0);
  }
}

void tb_partial_close(tb_core *c, tb_op *op, uint32_t chunk, tb_piece x) {
  if (op->count[chunk]) {
    add_partial(op, x);
    tb_tx_ready(c, op, x.owner, 0);
  }
  relay_closed(c, op);
}

void tb_decided_chunk(tb_core *c, tb_op *op, uint32_t chunk) {
  op->decided_order[op->decided_n++] = chunk;
  if (op->tree && !tb_relays(c, op, chunk))
    add_partial(op, tb_column_piece(op->tree, &op->geo, op->tree->place[c->cfg.rank], chunk));
  tb_tx_ready_all(op, 1);
}

void tb_relay_decided(tb_core *c, tb_op *op, const tb_data *d, uint64_t now) {
  uint32_t at = tb_kept_index(op, d->piece);
  memcpy(tb_decided_at(op, at), d->pay, (size_t)d->elems * op->geo.elem);
  op->count[at] = d->h->count;
  if (d->h->flags & TB_F_OWN) tb_bit_set(op->relayed, at);
  if (!tb_bit(op->closed, at)) {
    tb_bit_set(op->closed, at);
    op->closed_n++;
    relay_closed(c, op);
    op->recheck = true; /* it may have been the last */
    tb_due(c, op, now);
  }
  tb_decided_chunk(c, op, at);
}

/* Does anybody near still want what p has decided? */
bool tb_relay_wanted(const tb_core *c, const tb_op *op, uint32_t p) {
  const tb_op_peer *q = &op->peer[p];
  if (!tb_across(op, p) || op->status || op->state == TB_OP_ISSUED || q->rx[1].got == q->rx[1].total) return false;
  if (q->nothing || q->left || c->peer[p].gone || tb_nothing_more(op, p)) return false;
  if (op->state == TB_OP_EARLY) return true;
  const tb_hierarchy *t = op->tree;
  for (uint32_t i = 0; i < t->size; i++) {
    uint32_t r = tb_rank_at(t, t->group[t->me], i);
    if (r != t->me && tb_live(c, r) && !op->peer[r].passed) return true;
  }
  return false;
}

bool tb_relay_over(const tb_core *c, const tb_op *op) {
  const tb_hierarchy *t = op->tree;
  for (uint32_t g = 0; t && g < t->groups; g++) {
    uint32_t p = tb_rank_at(t, g, t->place[t->me]);
    const tb_op_peer *q = &op->peer[p];
    bool more = q->rx[1].got < q->rx[1].total && tb_live(c, p) && !q->nothing && !q->left && !tb_nothing_more(op, p);
    if (p != t->me && more) return false;
  }
  return true;
}

/* A relay that has handed out all that it got is not to blame for the rest. */
bool tb_gave_all(const tb_op *op, uint32_t p) {
  const tb_flow_rx *r = op->peer[p].rx;
  bool relayed = op->tree && op->tree->kin[p] == TB_KIN_NEAR && tb_nothing_more(op, p);
  return r[0].got == r[0].total && (r[1].got == r[1].total || relayed);
}

tb_ready tb_flow_ready(const tb_core *c, const tb_op *op, uint32_t p, int stage) {
  bool across = tb_across(op, p), open = tb_geo_scatters(&op->geo) && !op->swept;
  if (across) {
    uint32_t g = op->tree->group[stage == 0 ? p : c->cfg.rank];
    bool more = stage == 0 ? op->relays_open > 0 : open;
    return (tb_ready){op->partial_order + g * tb_longest_shard(&op->geo), op->partials[g], more};
  }
  if (stage == 0) return (tb_ready){NULL, op->peer[p].tx[0].total, false};
  return (tb_ready){op->decided_order, op->decided_n, open || !tb_relay_over(c, op)};
}

bool tb_own_in(const tb_core *c, const tb_op *op, uint32_t p, uint32_t chunk) {
  if (!tb_bit(op->peer[p].rx[0].bits, chunk)) return false;
  return tb_across(op, p) || !tb_relays(c, op, chunk) || tb_bit(op->relayed, chunk);
}

/* Moving the partial sums that are still open, out and as many in, and a round trip to repair one. */
uint64_t tb_relays_close_at(tb_core *c, const tb_op *op, uint64_t close_at) {
  uint64_t start = op->issued ? op->issued : op->born;
  if (close_at == UINT64_MAX || close_at <= start) return close_at;
  uint64_t bytes = 2ull * op->relays_open * tb_geo_payload(&op->geo, op->geo.chunk_elems);
  uint64_t keep = (uint64_t)((double)bytes * c->ns_per_byte) + tb_repair_trip(c) + c->lateness;
  uint64_t half = (close_at - start) / 2;
  return close_at - (keep < half ? keep : half);
}
