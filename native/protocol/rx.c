/* rx.c - a frame came. Everything in it is checked here or in the branch it is sent to before anything is written. */
#include "protocol/core.h"

typedef enum { DATA_GOOD, DATA_BAD, DATA_LATE, DATA_EARLY, DATA_APART } data_kind;

/* Everything about a data frame that can be wrong, before anything is done with it. For DATA_GOOD *op and *d are
 * set. */
static data_kind judge(tb_core *c, const tb_head *h, const uint8_t *pay, uint32_t len, tb_op **found, tb_data *d) {
  uint16_t p = h->source;
  if (h->stage < 1 || h->stage > 2 || h->level > 2) {
    tb_reject(c, p, bad_body);
    return DATA_BAD;
  }
  tb_op *op = *found = tb_op_find(c, h->key, h->round);
  if (!op) {
    tb_key *k = tb_key_find(c, h->key);
    return k && tb_op_past(k, h->round) ? DATA_LATE : DATA_EARLY;
  }
  if (tb_op_takes_part(op, p) && tb_is_other_mode(op, h->signature)) return DATA_APART;
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
  if (h->level != tb_level(op, p, h->stage - 1)) {
    tb_reject(c, p, bad_body);
    return DATA_BAD;
  }
  uint64_t first;
  *d = (tb_data){.h = h, .pay = pay, .piece = tb_flow_piece(c, op, p, h->stage - 1, TB_RECEIVED, h->chunk)};
  d->elems = tb_geo_chunk(&op->geo, d->piece.owner, d->piece.chunk, &first);
  if (len != tb_geo_payload(&op->geo, d->elems) || !tb_count_valid(op, d)) {
    tb_reject(c, p, bad_length);
    return DATA_BAD;
  }
  return DATA_GOOD;
}

static void good(tb_core *c, tb_op *op, const tb_data *d, uint64_t now) {
  const tb_head *h = d->h;
  uint16_t p = h->source;
  if (op->status || op->peer[p].left) return;
  tb_flow_rx *r = &op->peer[p].rx[h->stage - 1];
  if (h->percentile && !r->tail) {
    r->tail = true;
    if (op->early) tb_due(c, op, now); /* perhaps it was the last sender that the stage waited for */
  }
  if (h->flags & TB_F_LAST) {
    r->marked = r->peer_final = true;
    r->sent_known = r->total;
    if (c->peer[p].suspect_at) tb_peer_due(c, p, now); /* the request waited for the end of the flow */
  }
  bool duty = tb_across(op, p); /* which may be all that it does */
  if ((h->stage == 1 && !duty) || h->remaining_us != TB_REMAINING_NONE) tb_opened_by(c, op, p, h, now);
  if (h->stage == 1) tb_stage1_data(c, op, d, now);
  else tb_stage2_data(c, op, d, now);
}

static void too_late(tb_core *c, const tb_head *h) {
  uint8_t fates = tb_fates_of_past(tb_key_find(c, h->key), h->round);
  c->peer[h->source].n.late++;
  tb_section_add_raw(c, h->source, h->key, h->round, h->stage, TB_R_FINAL | TB_R_CLOSED | TB_R_UNKNOWN | fates);
}

/* A data frame whose header is good. `again`: it was kept when it first came, and has been counted. */
static bool on_data(tb_core *c, const tb_head *h, const uint8_t *pay, uint32_t len, bool again, uint64_t now) {
  tb_op *op;
  tb_data d;
  data_kind kind = judge(c, h, pay, len, &op, &d);
  if (!again && kind != DATA_BAD) {
    tb_peer_heard(c, h->source, h, now);
    c->peer[h->source].n.data_received++;
    c->peer[h->source].n.bytes_received += len;
  }
  if (kind == DATA_GOOD) good(c, op, &d, now);
  if (kind == DATA_LATE) too_late(c, h);
  if (kind == DATA_APART) tb_apart(c, op, h->source, h->stage, now);
  return kind != DATA_EARLY;
}

bool tb_core_rx_again(tb_core *c, const uint8_t *f, uint32_t len, uint64_t now) {
  tb_head h;
  /* Its header cannot be bad: it was good the first time. */
  if (tb_head_decode(f, len, c->cfg.seal_payload, &h) != TB_BAD_NONE) return true;
  /* but its view may be over: that round is void, or another now */
  if (h.view != c->vote.number || c->peer[h.source].out) {
    tb_reject(c, h.source, bad_view);
    return true;
  }
  return on_data(c, &h, f + TB_HEAD, len - TB_HEAD, true, now);
}

/* Only a frame whose body decodes is a sign of life. */
static void on_control(tb_core *c, const tb_head *h, const uint8_t *body, uint32_t len, uint64_t now) {
  union { tb_open open; tb_receipt receipt; tb_probe probe; tb_error_body error; } b;
  uint16_t p = h->source;
  int bad = 0;
  switch (h->type) {
  case TB_T_OPEN: bad = tb_open_decode(body, len, &b.open); break;
  case TB_T_RECEIPT: bad = tb_receipt_decode(body, len, &b.receipt); break;
  case TB_T_PROBE: bad = tb_probe_decode(body, len, &b.probe); break;
  case TB_T_ERROR: bad = tb_error_decode(body, len, &b.error); break;
  case TB_T_GRANT:
  case TB_T_GOODBYE: bad = len < 1 || body[0] != TB_BODY_VERSION; break;
  default:
    tb_reject(c, p, bad_type);
    return;
  }
  if (bad) {
    tb_reject(c, p, bad_body);
    return;
  }
  tb_peer_heard(c, p, h, now);
  c->peer[p].n.control_received++;
  switch (h->type) {
  case TB_T_OPEN: tb_on_open(c, p, h, &b.open, now); break;
  case TB_T_RECEIPT: tb_on_receipt(c, p, &b.receipt, now); break;
  case TB_T_PROBE: tb_on_probe(c, p, h, &b.probe, now); break;
  case TB_T_ERROR: tb_on_error(c, p, h, &b.error, now); break;
  case TB_T_GOODBYE: tb_on_goodbye(c, p, now); break;
  default: break; /* GRANT: the header said it all */
  }
}

/* Of any view, from anybody; only a member's is a sign of life. */
static void on_view(tb_core *c, const tb_head *h, const uint8_t *body, uint32_t len, uint64_t now) {
  tb_view_msg m;
  if (tb_view_decode(body, len, &m)) {
    tb_reject(c, h->source, bad_body);
    return;
  }
  c->peer[h->source].n.control_received++;
  if (h->view == c->vote.number && !c->peer[h->source].out) tb_peer_heard(c, h->source, h, now);
  tb_members_heard(c, h->source, &m, now);
}

void tb_core_give_up_early(tb_core *c, const uint8_t *f, uint32_t len) {
  tb_head h;
  if (tb_head_decode(f, len, c->cfg.seal_payload, &h) == TB_BAD_NONE) c->peer[h.source].n.early++;
}

bool tb_core_rx(tb_core *c, const uint8_t *f, uint32_t len, tb_from from, uint64_t now) {
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
  if (h.source >= c->cfg.n || h.source == c->cfg.rank) {
    c->n.bad_rank++;
    return true;
  }
  /* Whoever knows the job can claim to be a rank, but not so easily from that rank's address. Address translation may
   * show a rank under another one from the start: then there is nothing to compare with. */
  if (from == TB_FROM_OTHER && c->peer[h.source].at_home) {
    tb_reject(c, h.source, bad_source);
    return true;
  }
  /* From here on the source can be believed, and what is wrong is counted at it too. */
  if (h.destination != c->cfg.rank) {
    tb_reject(c, h.source, bad_rank);
    return true;
  }
  c->peer[h.source].at_home |= from == TB_FROM_SOURCE;
  if (h.flags & TB_F_TAG) { /* authentication tags are a trailer of a later version: nobody here makes them */
    tb_reject(c, h.source, bad_body);
    return true;
  }
  if (h.type == TB_T_VIEW) {
    on_view(c, &h, f + TB_HEAD, len - TB_HEAD, now);
    return true;
  }
  if (h.view != c->vote.number || c->peer[h.source].out) {
    tb_reject(c, h.source, bad_view);
    tb_members_stranger(c, h.source, h.view, now);
    return true;
  }
  if (h.type == TB_T_DATA) return on_data(c, &h, f + TB_HEAD, len - TB_HEAD, false, now);
  on_control(c, &h, f + TB_HEAD, len - TB_HEAD, now);
  return true;
}
