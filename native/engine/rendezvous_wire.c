/* rendezvous_wire.c - heads of rendezvous messages, and the words of its errors. */
#include "engine/rendezvous_internal.h"
#include "protocol/wire.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void tb_rv_encode(const rv_head *h, uint8_t out[RV_HEAD]) {
  memset(out, 0, RV_HEAD);
  tb_put32(out, RV_MAGIC);
  tb_put16(out + 4, h->version);
  tb_put16(out + 6, h->type);
  tb_put32(out + 8, h->rank);
  tb_put32(out + 12, h->size);
  tb_put32(out + 16, h->arg);
  tb_put32(out + 20, h->seq);
  tb_put32(out + 24, h->len);
  tb_put64(out + 28, h->nonce); /* 36..39 reserved */
  memcpy(out + 40, h->tag, sizeof h->tag);
}

int tb_rv_decode(const uint8_t in[RV_HEAD], rv_head *out) {
  if (tb_get32(in) != RV_MAGIC) return -EBADMSG;
  out->version = tb_get16(in + 4);
  out->type = tb_get16(in + 6);
  out->rank = tb_get32(in + 8);
  out->size = tb_get32(in + 12);
  out->arg = tb_get32(in + 16);
  out->seq = tb_get32(in + 20);
  out->len = tb_get32(in + 24);
  out->nonce = tb_get64(in + 28);
  memcpy(out->tag, in + 40, sizeof out->tag);
  out->tag[sizeof out->tag - 1] = 0;
  tb_rv_printable(out->tag);
  return 0;
}

bool tb_rv_begins(const uint8_t *bytes, size_t n) {
  uint8_t magic[4];
  tb_put32(magic, RV_MAGIC);
  return memcmp(bytes, magic, n < 4 ? n : 4) == 0;
}

void tb_rv_printable(char *text) {
  for (; *text; text++)
    if ((unsigned char)*text < 32 || *text == 127) *text = '?';
}

void tb_rv_ranks(const uint8_t *flag, int n, char *out, size_t out_len) {
  size_t used = 0;
  int left = 0;
  out[0] = 0;
  for (int i = 0; i < n; i++) left += flag[i] != 0;
  for (int i = 0; i < n;) {
    if (!flag[i]) {
      i++;
      continue;
    }
    int end = i;
    while (end + 1 < n && flag[end + 1]) end++;
    if (end == i + 1) end = i; /* "2,3" reads better than "2-3" */
    if (used + 40 > out_len || used > 120) {
      snprintf(out + used, out_len - used, " and %d more", left);
      return;
    }
    used += (size_t)snprintf(out + used, out_len - used, end > i ? "%s%d-%d" : "%s%d", used ? "," : "", i, end);
    left -= end - i + 1;
    i = end + 1;
  }
}

int tb_rv_fail(tb_rendezvous *r, int err, char *error, size_t error_len, const char *fmt, ...) {
  char text[RV_TEXT];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  if (!r->failed) {
    r->failed = err;
    memcpy(r->reason, text, sizeof text);
  }
  snprintf(error, error_len, "%s", text);
  return err;
}
