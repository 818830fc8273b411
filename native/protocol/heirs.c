/* heirs.c - the books of a rank that was voted out (rule 15): what it had counted under carry, and to whom it had told
 * it.
 *
 * DESIGN NOTES. An owner that leaves takes the fates of contributions with it. What matters is whether a decided chunk
 * of its reached anybody who stays. If it reached nobody, its values are in no output, and each contribution goes back
 * to its sender in full. If it reached somebody, they may be in there, and the sender cannot know: that is told
 * (dropped_*), and so is the chunk that the outputs of others will lack (late_dropped).
 *
 * So each rank with an unknown fate asks every other member which of the chunks it has, in pieces that fit a frame, and
 * asks again each RTO (doubling). INVARIANTS. 1. An answer never changes: it is given in a view without the owner,
 * whose frames are dropped from then on; what the owner itself kept of these rounds is void, should it come back. 2. A
 * fate is settled when all members have answered for it, or left themselves; a round that a member does not know any
 * more may have been counted. 3. Nobody waits for any of this but flush, and carry_age bounds it.
 */
#include <string.h>
#include "protocol/core.h"

bool tb_heirs_open(const tb_op *op, uint32_t p) {
  const tb_op_peer *q = &op->peer[p];
  return q->left && !q->settled && op->carries && !op->status && q->rx[1].got < q->rx[1].total;
}

/* An owner that has left with chunks that are not here, the next from p on; n: none. */
static uint32_t left_owner(const tb_core *c, const tb_op *op, uint32_t p) {
  while (p < c->cfg.n && !tb_heirs_open(op, p)) p++;
  return p;
}

static bool wanted(const tb_core *c, const tb_op *op) { return op->carries && op->state == TB_OP_RETURNED && c->n.view_changes; }

static bool heir(const tb_core *c, const tb_op *op, uint32_t p) {
  return p != c->cfg.rank && tb_op_takes_part(op, p) && !op->peer[p].left && !c->peer[p].gone;
}

/* r: of the owner; what is said begins with the chunk s->upto. */
static void say(tb_core *c, uint16_t p, tb_section s, const tb_flow_rx *r, uint64_t now) {
  uint8_t *b = tb_say_begin(c, p, TB_T_RECEIPT, NULL, now);
  if (!b) return; /* it is asked again */
  uint8_t *at = b + TB_RECEIPT_HEAD + TB_SECTION;
  s.stage = 2;
  if (r) {
    uint32_t room = (TB_CONTROL_MAX - TB_HEAD - TB_RECEIPT_HEAD - TB_SECTION) / 8 - 1, word = s.upto / 64;
    uint32_t total = r->total, words = tb_words(total) - word, n = words < room ? words : room;
    uint32_t end = (word + n) * 64 < total ? (word + n) * 64 : total;
    tb_put32(at, word * 64);
    tb_put32(at + 4, end - word * 64);
    for (uint32_t i = 0; i < n; i++) tb_put64(at + 8 + 8 * i, r->bits[word + i]);
    s.ranges = (uint16_t)(n + 1);
  }
  tb_receipt_begin(b, 0);
  tb_section_encode(&s, b + TB_RECEIPT_HEAD);
  tb_receipt_finish(b, 1);
  tb_say_end(c, TB_RECEIPT_HEAD + TB_SECTION + 8u * s.ranges, 0);
}

void tb_heirs_anew(const tb_core *c, tb_op *op) {
  for (uint32_t p = 0; p < c->cfg.n; p++) op->peer[p].heir_from = op->peer[p].heir_asks = 0;
}

/* All have answered for this owner: what nobody has was counted nowhere. What somebody has is missing in the outputs
 * here. */
static void settle(tb_core *c, tb_op *op, uint32_t owner, uint64_t now) {
  tb_op_peer *o = &op->peer[owner];
  const tb_flow_rx *r = &o->rx[1];
  o->settled = true;
  for (uint32_t i = tb_bit_next(r->bits, 0, r->total, false); i < r->total; i = tb_bit_next(r->bits, i + 1, r->total, false)) {
    bool held = tb_bit(o->fate.applied, i), known = tb_bit(o->fate.known, i);
    c->n.late_dropped += held;
    if (!known && held) tb_fate_lost(c, op, owner, i, now);
    else if (!known) tb_fate(c, op, owner, i, i + 1, false, now);
  }
  tb_heirs_anew(c, op);
}

uint64_t tb_heirs_ask(tb_core *c, tb_op *op, uint64_t now) {
  if (!wanted(c, op)) return UINT64_MAX;
  for (uint32_t owner = left_owner(c, op, 0); owner < c->cfg.n; owner = left_owner(c, op, owner + 1)) {
    uint64_t next = UINT64_MAX;
    bool open = false;
    for (uint32_t p = 0; p < c->cfg.n; p++) {
      tb_op_peer *q = &op->peer[p];
      if (!heir(c, op, p) || q->heir_from >= op->peer[owner].tx[0].total) continue;
      open = true;
      if (q->heir_at <= now) {
        say(c, (uint16_t)p, (tb_section){.key = op->key->hash, .round = op->round, .flags = TB_R_HELD | TB_R_REQUEST, .got = owner,
            .upto = q->heir_from}, NULL, now);
        q->heir_at = now + tb_rto_doubled(c, &c->peer[p], q->heir_asks++);
      }
      if (q->heir_at < next) next = q->heir_at;
    }
    if (open) return next; /* one owner at a time */
    settle(c, op, owner, now);
  }
  return UINT64_MAX;
}

static void answer(tb_core *c, const tb_op *op, uint16_t p, const tb_section *q, uint64_t now) {
  const tb_flow_rx *r = op ? &op->peer[q->got].rx[1] : NULL;
  tb_section s = {.key = q->key, .round = q->round, .flags = TB_R_HELD, .got = q->got, .upto = q->upto};
  if (!r || q->upto >= r->total) s.flags |= TB_R_UNKNOWN; /* it is forgotten here, or never was */
  say(c, p, s, s.flags & TB_R_UNKNOWN ? NULL : r, now);
}

bool tb_heirs_got(tb_core *c, uint16_t p, const tb_section *s, const uint8_t *body, uint64_t now) {
  tb_op *op = tb_op_find(c, s->key, s->round);
  if (s->got >= c->cfg.n || s->got == c->cfg.rank || s->got == p) return false;
  if (op && (!tb_op_takes_part(op, p) || !tb_op_takes_part(op, s->got))) return false;
  if (s->flags & TB_R_REQUEST) {
    if (!op || op->peer[s->got].left) answer(c, op, p, s, now); /* else more may come of it here: p asks again */
    return true;
  }
  if (!op || !wanted(c, op) || left_owner(c, op, 0) != s->got) return true;
  tb_op_peer *o = &op->peer[s->got], *q = &op->peer[p];
  uint32_t total = o->tx[0].total, from = q->heir_from, bits = total - from;
  if (from >= total) return true; /* it has answered */
  bool unknown = s->flags & TB_R_UNKNOWN;
  if (!unknown) {
    if (!s->ranges) return false;
    from = tb_get32(body);
    bits = tb_get32(body + 4);
    if (from > total || bits > total - from || !bits || from % 64 || tb_words(bits) != s->ranges - 1u) return false;
    if (from != q->heir_from) return true; /* said twice */
  }
  for (uint32_t i = 0; i < bits; i++) {
    bool held = unknown || tb_get64(body + 8 + i / 64 * 8) >> i % 64 & 1;
    if (held && !tb_bit(o->rx[1].bits, from + i)) tb_bit_set(o->fate.applied, from + i);
  }
  q->heir_from = from + bits;
  q->heir_at = now;
  q->heir_asks = 0;
  tb_due(c, op, now);
  return true;
}
