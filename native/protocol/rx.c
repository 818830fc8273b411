/* rx.c - a frame came. Everything in it is checked here or in the branch it is sent to before anything is written. */
#include "protocol/core.h"

typedef enum { DATA_GOOD, DATA_BAD, DATA_LATE, DATA_EARLY } data_kind;

/* Everything about a data frame that can be wrong, before anything is done with it. *op is set for DATA_GOOD. */
static data_kind judge(tb_core *c, uint16_t p, const tb_head *h, uint32_t len, tb_op **found) {
  if (h->stage < 1 || h->stage > 2 || h->level) {
    tb_reject(c, p, bad_body);
    return DATA_BAD;
  }
  tb_op *op = *found = tb_op_find(c, h->key, h->round);
  if (!op) {
    tb_key *k = tb_key_find(c, h->key);
    return k && tb_op_past(c, k, h->round) ? DATA_LATE : DATA_EARLY;
  }
  if (h->signature != op->sig_hash) {
    tb_reject(c, p, bad_signature);
    return DATA_BAD;
  }
  if (!tb_op_takes_part(op, p)) {
    tb_reject(c, p, bad_rank);
    return DATA_BAD;
  }
  if (h->chunk >= op->peer[p].rx[h->stage - 1].total) {
    tb_reject(c, p, bad_index);
    return DATA_BAD;
  }
  uint64_t first;
  uint32_t own = h->flags & TB_F_OWN ? 1 : 0;
  uint32_t elems = tb_geo_chunk(&op->geo, h->stage == 1 ? c->cfg.rank : p, h->chunk, &first);
  bool count = h->stage == 1 ? h->count == 1 && !own : h->count >= 1 && h->count <= c->cfg.n - 1u + own; /* without ours at most the others */
  if (len != elems * op->geo.elem || !count) {
    tb_reject(c, p, bad_length);
    return DATA_BAD;
  }
  return DATA_GOOD;
}

static void on_data(tb_core *c, tb_op *op, uint16_t p, const tb_head *h, const uint8_t *pay, uint64_t now) {
  if (op->status) return;
  if (h->flags & TB_F_LAST) {
    tb_flow_rx *r = &op->peer[p].rx[h->stage - 1];
    r->marked = r->peer_final = true;
    r->sent_known = r->total;
    if (c->peer[p].suspect_at) c->due = now; /* the request waited for the end of the flow */
  }
  if (h->stage == 1 || h->remaining_us != TB_REMAINING_NONE) tb_opened_by(c, op, p, h, now);
  if (h->stage == 1) tb_stage1_data(c, op, p, h, pay, now);
  else tb_stage2_data(c, op, p, h, pay, now);
}

static void too_late(tb_core *c, uint16_t p, const tb_head *h) {
  c->peer[p].n.late++;
  tb_section_add_raw(c, p, h->key, h->round, h->stage, TB_R_FINAL | TB_R_CLOSED | TB_R_UNKNOWN);
}

bool tb_core_rx_again(tb_core *c, const uint8_t *f, uint32_t len, uint64_t now) {
  tb_head h;
  tb_op *op;
  if (tb_head_decode(f, len, c->cfg.seal_payload, &h) != TB_BAD_NONE) return true; /* cannot be: it was good the first time */
  data_kind kind = judge(c, h.source, &h, len - TB_HEAD, &op);
  if (kind == DATA_GOOD) on_data(c, op, h.source, &h, f + TB_HEAD, now);
  if (kind == DATA_LATE) too_late(c, h.source, &h);
  return kind != DATA_EARLY;
}

/* Does the body decode? Only then is the frame a sign of life. */
static bool sane(tb_core *c, uint16_t p, const tb_head *h, const uint8_t *body, uint32_t len) {
  union { tb_open open; tb_probe probe; tb_error_body error; } b;
  uint8_t sections;
  uint32_t seen;
  bool ok = true;
  switch (h->type) {
  case TB_T_OPEN: ok = !tb_open_decode(body, len, &b.open); break;
  case TB_T_RECEIPT: ok = !tb_receipt_decode(body, len, &sections, &seen); break;
  case TB_T_PROBE: ok = !tb_probe_decode(body, len, &b.probe); break;
  case TB_T_ERROR: ok = !tb_error_decode(body, len, &b.error); break;
  case TB_T_GRANT:
  case TB_T_GOODBYE: ok = len >= 1 && body[0] == TB_BODY_VERSION; break;
  default: /* VIEW: not in this version of the protocol */
    tb_reject(c, p, bad_type);
    return false;
  }
  if (!ok) tb_reject(c, p, bad_body);
  return ok;
}

void tb_core_give_up_early(tb_core *c, const uint8_t *f, uint32_t len) {
  tb_head h;
  if (tb_head_decode(f, len, c->cfg.seal_payload, &h) == TB_BAD_NONE) c->peer[h.source].n.early++;
}

bool tb_core_rx(tb_core *c, const uint8_t *f, uint32_t len, uint64_t now) {
  tb_head h;
  switch (tb_head_decode(f, len, c->cfg.seal_payload, &h)) {
  case TB_BAD_NONE: break;
  case TB_BAD_SHORT: c->n.bad_short++; return true;
  case TB_BAD_MAGIC: c->n.bad_magic++; return true;
  case TB_BAD_VERSION: c->n.bad_version++; return true;
  case TB_BAD_TYPE: c->n.bad_type++; return true;
  default: c->n.bad_check++; return true;
  }
  if (h.job != c->cfg.job) {
    c->n.bad_job++;
    return true;
  }
  if (h.view != c->cfg.view) {
    c->n.bad_view++;
    return true;
  }
  if (h.source >= c->cfg.n || h.source == c->cfg.rank) {
    c->n.bad_rank++;
    return true;
  }
  uint16_t p = h.source; /* from here on it can be believed, and what is wrong is counted at it too */
  if (h.destination != c->cfg.rank) {
    tb_reject(c, p, bad_rank);
    return true;
  }
  const uint8_t *pay = f + TB_HEAD;
  uint32_t n = len - TB_HEAD;
  if (h.flags & TB_F_TAG) { /* authentication tags are a trailer of a later version: nobody here makes them */
    tb_reject(c, p, bad_body);
    return true;
  }
  if (h.type == TB_T_DATA) {
    tb_op *op;
    data_kind kind = judge(c, p, &h, n, &op);
    if (kind == DATA_BAD) return true;
    tb_peer_heard(c, p, &h, now);
    c->peer[p].n.data_received++;
    c->peer[p].n.bytes_received += n;
    if (kind == DATA_GOOD) on_data(c, op, p, &h, pay, now);
    if (kind == DATA_LATE) too_late(c, p, &h);
    return kind != DATA_EARLY;
  }
  if (!sane(c, p, &h, pay, n)) return true;
  tb_peer_heard(c, p, &h, now);
  c->peer[p].n.control_received++;
  switch (h.type) {
  case TB_T_OPEN: tb_on_open(c, p, &h, pay, n, now); break;
  case TB_T_RECEIPT: tb_on_receipt(c, p, &h, pay, n, now); break;
  case TB_T_PROBE: tb_on_probe(c, p, &h, pay, n, now); break;
  case TB_T_ERROR: tb_on_error(c, p, &h, pay, n, now); break;
  case TB_T_GOODBYE: tb_on_goodbye(c, p, &h, now); break;
  default: break; /* GRANT: the header said it all */
  }
  return true;
}
