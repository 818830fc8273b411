/* wire_body.c - bodies of control frames. Each begins with its version; lengths are checked before anything is read. */
#include <errno.h>
#include <string.h>
#include "compute/compute.h"
#include "protocol/wire.h"

enum { SIG_BYTES = 32, OPEN_BYTES = 1 + SIG_BYTES + 34, PROBE_BYTES = 12, ERROR_BYTES = 11 };

static void signature_put(const tb_signature *s, uint8_t *p) {
  p[0] = s->kind; p[1] = s->redop; p[2] = s->dtype; p[3] = s->exact;
  p[4] = s->missing; p[5] = s->consistency; p[6] = s->wire_dtype; p[7] = s->hadamard;
  tb_put16(p + 8, s->root);
  tb_put16(p + 10, s->peer);
  tb_put32(p + 12, s->chunk_elems);
  tb_put32(p + 16, s->groups);
  tb_put32(p + 20, s->tag);
  tb_put64(p + 24, s->count);
}

static int signature_get(const uint8_t *p, tb_signature *s) {
  s->kind = p[0]; s->redop = p[1]; s->dtype = p[2]; s->exact = p[3];
  s->missing = p[4]; s->consistency = p[5]; s->wire_dtype = p[6]; s->hadamard = p[7];
  s->root = tb_get16(p + 8);
  s->peer = tb_get16(p + 10);
  s->chunk_elems = tb_get32(p + 12);
  s->groups = tb_get32(p + 16);
  s->tag = tb_get32(p + 20);
  s->count = tb_get64(p + 24);
  if (s->kind >= TB_KINDS || s->redop >= TB_REDOPS || s->dtype >= TB_DTYPES || s->wire_dtype >= TB_DTYPES ||
      s->exact > 1 || s->missing > TB_CARRY || !s->chunk_elems)
    return -EBADMSG;
  return 0;
}

uint32_t tb_signature_hash(const tb_signature *s) {
  uint8_t b[SIG_BYTES];
  signature_put(s, b);
  return tb_crc32c(0x7461696cu, b, sizeof b);
}

uint32_t tb_open_encode(const tb_open *o, uint8_t *b, uint32_t cap) {
  uint32_t len = OPEN_BYTES + o->key_len;
  if (len > cap) return 0;
  b[0] = TB_BODY_VERSION;
  signature_put(&o->sig, b + 1);
  uint8_t *p = b + 1 + SIG_BYTES;
  p[0] = o->heard;
  p[1] = o->has_closed;
  tb_put32(p + 2, o->closed_through);
  tb_put16(p + 6, o->share);
  tb_put32(p + 8, o->want_us);
  tb_put32(p + 12, o->stage_us[0]);
  tb_put32(p + 16, o->stage_us[1]);
  tb_put16(p + 20, o->turn.number);
  tb_put16(p + 22, o->turn.by);
  tb_put32(p + 24, o->turn.from);
  p[28] = (uint8_t)(o->turn.on | o->measured << 1);
  tb_put16(p + 29, o->loss);
  tb_put16(p + 31, (uint16_t)o->gain);
  p[33] = o->key_len;
  memcpy(p + 34, o->key, o->key_len);
  return len;
}

int tb_open_decode(const uint8_t *b, uint32_t len, tb_open *o) {
  if (len < OPEN_BYTES || b[0] != TB_BODY_VERSION) return -EBADMSG;
  const uint8_t *p = b + 1 + SIG_BYTES;
  if (len != (uint32_t)OPEN_BYTES + p[33] || p[0] > 1 || p[1] > 1 || p[28] > 3) return -EBADMSG;
  o->heard = p[0];
  o->has_closed = p[1];
  o->closed_through = tb_get32(p + 2);
  o->share = tb_get16(p + 6);
  o->want_us = tb_get32(p + 8);
  o->stage_us[0] = tb_get32(p + 12);
  o->stage_us[1] = tb_get32(p + 16);
  o->turn = (tb_switch){.number = tb_get16(p + 20), .by = tb_get16(p + 22), .from = tb_get32(p + 24), .on = p[28] & 1};
  o->measured = p[28] >> 1;
  o->loss = tb_get16(p + 29);
  o->gain = (int16_t)tb_get16(p + 31);
  o->key_len = p[33];
  memcpy(o->key, p + 34, o->key_len);
  o->key[o->key_len] = 0;
  return signature_get(b + 1, &o->sig);
}

uint32_t tb_probe_encode(const tb_probe *p, uint8_t *b, uint32_t cap) {
  if (cap < PROBE_BYTES) return 0;
  b[0] = TB_BODY_VERSION;
  b[1] = p->kind;
  b[2] = p->final;
  b[3] = 0;
  tb_put32(b + 4, p->sent);
  tb_put32(b + 8, p->id);
  return PROBE_BYTES;
}

int tb_probe_decode(const uint8_t *b, uint32_t len, tb_probe *p) { /* longer is padding: an MTU probe */
  if (len < PROBE_BYTES || b[0] != TB_BODY_VERSION || b[1] < TB_P_PING || b[1] > TB_P_MARK || b[2] > 1) return -EBADMSG;
  p->kind = b[1];
  p->final = b[2];
  p->sent = tb_get32(b + 4);
  p->id = tb_get32(b + 8);
  return 0;
}

uint32_t tb_error_encode(const tb_error_body *e, uint8_t *b, uint32_t cap) {
  uint32_t len = ERROR_BYTES + e->text_len;
  if (len > cap) return 0;
  b[0] = TB_BODY_VERSION;
  b[1] = e->ack;
  tb_put32(b + 2, (uint32_t)e->status);
  tb_put16(b + 6, e->rank_a);
  tb_put16(b + 8, e->rank_b);
  b[10] = e->text_len;
  memcpy(b + 11, e->text, e->text_len);
  return len;
}

int tb_error_decode(const uint8_t *b, uint32_t len, tb_error_body *e) {
  if (len < ERROR_BYTES || b[0] != TB_BODY_VERSION || b[1] > 1) return -EBADMSG;
  if (len != (uint32_t)ERROR_BYTES + b[10] || b[10] > TB_TEXT_MAX) return -EBADMSG;
  e->ack = b[1];
  e->status = (int32_t)tb_get32(b + 2);
  if (e->status >= 0 || e->status < -4095) return -EBADMSG;
  e->rank_a = tb_get16(b + 6);
  e->rank_b = tb_get16(b + 8);
  e->text_len = b[10];
  for (uint32_t i = 0; i < e->text_len; i++) e->text[i] = b[11 + i] >= 32 && b[11 + i] < 127 ? (char)b[11 + i] : '?';
  e->text[e->text_len] = 0;
  return 0;
}

void tb_receipt_begin(uint8_t *b, uint32_t seen_step) {
  b[0] = TB_BODY_VERSION;
  b[1] = 0;
  tb_put16(b + 2, 0);
  tb_put32(b + 4, seen_step);
}

void tb_receipt_finish(uint8_t *b, uint8_t sections) { b[1] = sections; }

void tb_section_encode(const tb_section *s, uint8_t *p) {
  tb_put32(p, s->key);
  tb_put32(p + 4, s->round);
  p[8] = s->stage;
  p[9] = s->flags;
  tb_put16(p + 10, s->ranges);
  tb_put32(p + 12, s->got);
  tb_put32(p + 16, s->upto);
}

void tb_section_decode(const uint8_t *p, tb_section *s) {
  s->key = tb_get32(p);
  s->round = tb_get32(p + 4);
  s->stage = p[8];
  s->flags = p[9];
  s->ranges = tb_get16(p + 10);
  s->got = tb_get32(p + 12);
  s->upto = tb_get32(p + 16);
}

int tb_receipt_decode(const uint8_t *b, uint32_t len, tb_receipt *r) {
  if (len < TB_RECEIPT_HEAD || b[0] != TB_BODY_VERSION) return -EBADMSG;
  uint32_t at = TB_RECEIPT_HEAD;
  for (uint32_t i = 0; i < b[1]; i++) {
    if (len - at < TB_SECTION) return -EBADMSG;
    uint32_t ranges = tb_get16(b + at + 10);
    if (b[at + 8] < 1 || b[at + 8] > 2) return -EBADMSG;
    at += TB_SECTION;
    if ((len - at) / 8 < ranges) return -EBADMSG;
    at += 8 * ranges;
  }
  if (at != len) return -EBADMSG;
  *r = (tb_receipt){.sections = b[1], .seen = tb_get32(b + 4), .at = b + TB_RECEIPT_HEAD};
  return 0;
}
