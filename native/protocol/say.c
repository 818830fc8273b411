/* say.c - control frames out: receipts (all sections due to a peer in one frame), grants, probes, goodbyes. */
#include <string.h>
#include "compute/compute.h"
#include "protocol/core.h"

tb_out *tb_out_slot(tb_core *c) { return c->out_n < TB_OUT_MAX ? &c->out[c->out_n] : NULL; }

/* What every frame to p carries, whatever it is about. */
void tb_fill_head(tb_core *c, uint16_t p, tb_head *h, tb_op *op, uint64_t now) {
  tb_peer *q = &c->peer[p];
  *h = (tb_head){.source = c->cfg.rank, .destination = p, .job = c->cfg.job, .view = c->vote.number,
                 .incast = tb_rate_incast(c), .remaining_us = TB_REMAINING_NONE, .stamp_ns = (uint32_t)now,
                 .hold_us = TB_HOLD_NONE, .step = q->step};
  uint64_t hold = q->echo_at ? (now - q->echo_at) / 1000 : TB_HOLD_NONE;
  if (hold < TB_HOLD_NONE) {
    h->echo_ns = q->echo_stamp;
    h->hold_us = (uint16_t)hold;
  }
  h->credit = tb_grant(c, q, now);
  q->want_grant = false;
  q->last_sent = now;
  if (!op) return;
  h->key = op->key->hash;
  h->round = op->round;
  h->signature = op->called_hash;
  if (op->deadline != UINT64_MAX) { /* not issued yet, or exact: none to announce */
    uint64_t until = tb_deadline_told(c, op, p), us = until > now ? (until - now) / 1000 : 0;
    h->remaining_us = us < TB_REMAINING_NONE ? (uint32_t)us : TB_REMAINING_NONE - 1;
  }
}

uint8_t *tb_say_begin(tb_core *c, uint16_t p, uint8_t type, tb_op *op, uint64_t now) {
  tb_out *o = tb_out_slot(c);
  if (!o || c->ctl_n == TB_CTL_MAX) {
    c->starved = true;
    return NULL;
  }
  uint8_t *b = c->ctl[c->ctl_n];
  tb_head h;
  tb_fill_head(c, p, &h, op, now);
  h.type = type;
  tb_head_encode(&h, b);
  *o = (tb_out){.peer = p, .head = b};
  return b + TB_HEAD;
}

void tb_say_end(tb_core *c, uint32_t body_len, uint32_t padding) {
  tb_out *o = &c->out[c->out_n++];
  uint8_t *b = c->ctl[c->ctl_n++];
  uint32_t check = tb_crc32c(tb_crc32c(0, b, 60), b + TB_HEAD, body_len);
  if (padding) check = tb_crc32c(check, c->zeros, padding);
  tb_put32(b + 60, check);
  o->head_len = TB_HEAD + body_len;
  o->pay = padding ? c->zeros : NULL;
  o->pay_len = padding;
  c->peer[o->peer].n.control_sent++;
}

/* The next chunk that has not come, and may: stage 1 with groups has some that are `closed` while others are open. */
static uint32_t next_wanted(const tb_flow_rx *r, const uint64_t *closed, uint32_t from) {
  uint32_t at = tb_bit_next(r->bits, from, r->total, false);
  while (closed && at < r->total && tb_bit(closed, at)) at = tb_bit_next(r->bits, at + 1, r->total, false);
  return at;
}

/* Ranges of chunks not received; as many as fit into room. */
static uint32_t put_ranges(const tb_flow_rx *r, const uint64_t *closed, uint8_t *out, uint32_t room, tb_section *s) {
  uint32_t at = next_wanted(r, closed, 0), n = 0;
  s->upto = r->total;
  while (at < r->total) {
    if ((n + 1) * 8 > room) {
      s->upto = at;
      break;
    }
    uint32_t end = tb_bit_next(r->bits, at, r->total, true);
    if (closed) {
      uint32_t over = tb_bit_next(closed, at, r->total, true);
      if (over < end) end = over;
    }
    tb_put32(out + 8 * n, at);
    tb_put32(out + 8 * n + 4, end - at);
    n++;
    at = next_wanted(r, closed, end);
  }
  s->ranges = (uint16_t)n;
  return 8 * n;
}

static void say_receipt(tb_core *c, uint16_t p, uint64_t now) {
  tb_peer *q = &c->peer[p];
  while (q->sections) {
    uint8_t *b = tb_say_begin(c, p, TB_T_RECEIPT, NULL, now);
    if (!b) return;
    uint32_t at = TB_RECEIPT_HEAD, cap = TB_CONTROL_MAX - TB_HEAD, n = 0;
    bool twice = false, more = false;
    tb_receipt_begin(b, q->ask_step);
    while (n < q->sections && !more && cap - at >= TB_SECTION + 16 && n < 255) {
      tb_pending_section *w = &q->section[n++];
      tb_section s = {.key = w->key, .round = w->round, .stage = w->stage, .flags = w->flags, .got = w->got};
      tb_op *op = tb_op_find(c, w->key, w->round);
      uint32_t used = 0;
      if (op && tb_op_takes_part(op, p)) {
        const tb_flow_rx *r = &op->peer[p].rx[w->stage - 1];
        s.got = r->got;
        if (r->got == r->total) s.flags = (s.flags & (uint8_t)~TB_R_REQUEST) | TB_R_FINAL;
        if (op->peer[p].opened) s.flags |= TB_R_HEARD;
        op->peer[p].heard_due = UINT64_MAX;
        if (s.flags & TB_R_FATES && r->got < r->total) used = tb_fates_put(op, p, b + at + TB_SECTION,
            cap - at - TB_SECTION, &s, &more);
        else if (!(s.flags & TB_R_FINAL)) used = put_ranges(r, op->tree && w->stage == 1 && !tb_across(op, p) ? op->closed : NULL, b + at + TB_SECTION, cap - at - TB_SECTION, &s);
      } else if (!op || !tb_op_concerns(op, p)) {
        s.flags &= (uint8_t)~TB_R_REQUEST; /* retired meanwhile: nothing is wanted */
        s.flags |= TB_R_FINAL;
      }
      if (s.flags & TB_R_REQUEST) {
        q->n.requests_sent++;
        twice |= op && tb_urgent(op, q, now);
      }
      tb_section_encode(&s, b + at);
      at += TB_SECTION + used;
    }
    tb_receipt_finish(b, (uint8_t)n);
    tb_say_end(c, at, 0);
    if (twice && tb_out_slot(c)) { /* the same bytes */
      c->out[c->out_n] = c->out[c->out_n - 1];
      c->out_n++;
    }
    if (more) n--; /* its next part goes into the next frame */
    q->sections -= n;
    memmove(q->section, q->section + n, q->sections * sizeof *q->section);
  }
}

static bool say_probe(tb_core *c, uint16_t p, uint8_t kind, uint32_t id, uint32_t frame_len, uint64_t now) {
  uint8_t *b = tb_say_begin(c, p, TB_T_PROBE, NULL, now);
  if (!b) return false;
  tb_probe m = {.kind = kind, .id = id};
  uint32_t n = tb_probe_encode(&m, b, TB_CONTROL_MAX - TB_HEAD);
  tb_say_end(c, n, frame_len > TB_HEAD + n ? frame_len - TB_HEAD - n : 0);
  return true;
}

/* False: no room for more now. */
static bool say_all(tb_core *c, uint16_t p, uint64_t now) {
  tb_peer *q = &c->peer[p];
  if (q->sections) say_receipt(c, p, now);
  if (q->want_pong && say_probe(c, p, TB_P_PONG, q->pong_id, 0, now)) q->want_pong = false;
  if (q->want_ping && say_probe(c, p, TB_P_PING, q->ping_len, q->ping_len, now)) q->want_ping = false;
  if (q->goodbyes && tb_say_begin(c, p, TB_T_GOODBYE, NULL, now)) {
    c->ctl[c->ctl_n][TB_HEAD] = TB_BODY_VERSION;
    tb_say_end(c, 1, 0);
    q->goodbyes--;
  }
  if (q->want_grant && tb_say_begin(c, p, TB_T_GRANT, NULL, now)) {
    c->ctl[c->ctl_n][TB_HEAD] = TB_BODY_VERSION;
    tb_say_end(c, 1, 0);
  }
  return !(q->sections || q->want_pong || q->want_ping || q->goodbyes || q->want_grant);
}

void tb_say_control(tb_core *c, uint64_t now) {
  if (!c->control_due) return;
  uint32_t n = c->cfg.n, me = c->cfg.rank;
  for (int part = 0; part < 2; part++) { /* from the next rank on: else all speak to rank 0 first, at the same moment */
    uint32_t from = part ? 0 : me + 1u, to = part ? me + 1u : n;
    for (uint32_t p = tb_bit_next(c->say, from, to, true); p < to; p = tb_bit_next(c->say, p + 1, to, true)) {
      if (!say_all(c, (uint16_t)p, now)) return;
      tb_bit_clear(c->say, p);
    }
  }
  c->control_due = false;
}
