/* rx.c - a frame came. Everything in it is checked here or in the branch it is sent to before anything is written. */
#include "protocol/core.h"

/* False: no OPEN for it was heard yet. */
static bool on_data(tb_core *c, uint16_t p, const tb_head *h, const uint8_t *pay, uint32_t len, uint64_t now) {
  if (h->stage < 1 || h->stage > 2 || h->level) {
    c->n.bad_body++;
    return true;
  }
  tb_op *op = tb_op_find(c, h->key, h->round);
  if (!op) {
    tb_key *k = tb_key_find(c, h->key);
    if (k && tb_op_past(c, k, h->round)) {
      c->peer[p].n.late++;
      tb_section_add_raw(c, p, h->key, h->round, h->stage, TB_R_FINAL | TB_R_CLOSED | TB_R_UNKNOWN);
      return true;
    }
    return false;
  }
  if (h->signature != op->sig_hash) {
    c->n.bad_signature++;
    return true;
  }
  if (!tb_op_takes_part(op, p)) {
    c->n.bad_rank++;
    return true;
  }
  if (op->status) return true;
  if (h->flags & TB_F_LAST) {
    tb_flow_rx *r = &op->peer[p].rx[h->stage - 1];
    r->marked = r->peer_final = true;
    r->sent_known = r->total;
    if (c->peer[p].suspect_at) c->due = now; /* the request waited for the end of the flow */
  }
  if (h->stage == 1 || h->remaining_us != TB_REMAINING_NONE) tb_opened_by(c, op, p, h, now);
  if (h->stage == 1) tb_stage1_data(c, op, p, h, pay, len, now);
  else tb_stage2_data(c, op, p, h, pay, len, now);
  return true;
}

bool tb_core_rx_again(tb_core *c, const uint8_t *f, uint32_t len, uint64_t now) {
  tb_head h;
  if (tb_head_decode(f, len, c->cfg.seal_payload, &h) != TB_BAD_NONE) return true; /* cannot be: it was good the first time */
  return on_data(c, h.source, &h, f + TB_HEAD, len - TB_HEAD, now);
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
  if (h.source >= c->cfg.n || h.source == c->cfg.rank || h.destination != c->cfg.rank) {
    c->n.bad_rank++;
    return true;
  }
  uint16_t p = h.source;
  const uint8_t *pay = f + TB_HEAD;
  uint32_t n = len - TB_HEAD;
  if (h.flags & TB_F_TAG) { /* authentication tags are a trailer of a later version: nobody here makes them */
    c->n.bad_body++;
    return true;
  }
  tb_peer_heard(c, p, &h, now);
  if (h.type == TB_T_DATA) {
    c->peer[p].n.data_received++;
    c->peer[p].n.bytes_received += n;
    return on_data(c, p, &h, pay, n, now);
  }
  c->peer[p].n.control_received++;
  switch (h.type) {
  case TB_T_OPEN: tb_on_open(c, p, &h, pay, n, now); break;
  case TB_T_RECEIPT: tb_on_receipt(c, p, &h, pay, n, now); break;
  case TB_T_PROBE: tb_on_probe(c, p, &h, pay, n, now); break;
  case TB_T_ERROR: tb_on_error(c, p, &h, pay, n, now); break;
  case TB_T_GOODBYE: tb_on_goodbye(c, p, &h, now); break;
  case TB_T_GRANT: break; /* the header said it all */
  default: c->n.bad_type++; /* VIEW: not in this version of the protocol */
  }
  return true;
}
