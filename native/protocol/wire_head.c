/* wire_head.c - the 64-byte header: encode, seal, decode. */
#include <assert.h>
#include <string.h>
#include "compute/compute.h"
#include "protocol/wire.h"

void tb_head_encode(const tb_head *h, uint8_t out[TB_HEAD]) {
  tb_put16(out, TB_MAGIC);
  out[2] = TB_WIRE_VERSION;
  out[3] = h->type;
  tb_put32(out + 4, h->job);
  tb_put32(out + 8, h->view);
  tb_put32(out + 12, h->key);
  tb_put32(out + 16, h->round);
  tb_put32(out + 20, h->chunk);
  tb_put16(out + 24, h->source);
  tb_put16(out + 26, h->destination);
  tb_put16(out + 28, h->count);
  out[30] = (uint8_t)(h->stage << 4 | (h->level & 15));
  out[31] = h->flags;
  tb_put32(out + 32, h->remaining_us);
  tb_put32(out + 36, h->stamp_ns);
  tb_put32(out + 40, h->echo_ns);
  tb_put16(out + 44, h->hold_us);
  out[46] = h->incast;
  out[47] = h->percentile;
  tb_put32(out + 48, h->credit);
  tb_put32(out + 52, h->signature);
  tb_put32(out + 56, h->step);
  memset(out + 60, 0, 4);
}

static uint32_t check_of(const uint8_t *head, const void *payload, uint32_t len) {
  uint32_t c = tb_crc32c(0, head, 60);
  return payload && len ? tb_crc32c(c, payload, len) : c;
}

void tb_head_seal(uint8_t head[TB_HEAD], const void *payload, uint32_t len) {
  tb_put32(head + 60, check_of(head, payload, len));
}

tb_bad tb_head_decode(const uint8_t *f, uint32_t len, bool check_payload, tb_head *h) {
  if (len < TB_HEAD) return TB_BAD_SHORT;
  if (tb_get16(f) != TB_MAGIC) return TB_BAD_MAGIC;
  if (f[2] != TB_WIRE_VERSION) return TB_BAD_VERSION;
  if (f[3] < TB_T_DATA || f[3] > TB_T_VIEW) return TB_BAD_TYPE;
  /* Control bodies are small and steer everything: they are always covered, data only where the link does not check. */
  bool covered = check_payload || f[3] != TB_T_DATA;
  if (tb_get32(f + 60) != check_of(f, covered ? f + TB_HEAD : NULL, covered ? len - TB_HEAD : 0)) return TB_BAD_CHECK;
  h->type = f[3];
  h->job = tb_get32(f + 4);
  h->view = tb_get32(f + 8);
  h->key = tb_get32(f + 12);
  h->round = tb_get32(f + 16);
  h->chunk = tb_get32(f + 20);
  h->source = tb_get16(f + 24);
  h->destination = tb_get16(f + 26);
  h->count = tb_get16(f + 28);
  h->stage = f[30] >> 4;
  h->level = f[30] & 15;
  h->flags = f[31];
  h->remaining_us = tb_get32(f + 32);
  h->stamp_ns = tb_get32(f + 36);
  h->echo_ns = tb_get32(f + 40);
  h->hold_us = tb_get16(f + 44);
  h->incast = f[46];
  h->percentile = f[47];
  h->credit = tb_get32(f + 48);
  h->signature = tb_get32(f + 52);
  h->step = tb_get32(f + 56);
  return TB_BAD_NONE;
}
