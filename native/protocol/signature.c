/* signature.c - how calls differ, in words: what a user can set, and first where the two are not alike. */
#include <stdio.h>
#include <string.h>
#include "compute/compute.h"
#include "protocol/core.h"

/* In the order in which they are told; the first SHOWN also where they are alike. */
typedef enum { COUNT, DTYPE, OP, CLASS, CONSISTENCY, MIN_RECEIVED, ORDER, MISSING, WIRE, HADAMARD, ROOT, PEER, TAG, CHUNK, GROUPS,
               FIELDS } field;
enum { SHOWN = CLASS + 1, FIELD_TEXT = 40 };

const char *tb_kind_name(const tb_signature *s) {
  static const char *const names[TB_KINDS] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "barrier",
                                              "send", "send"};
  return names[s->kind];
}

/* Empty: it has none. */
static void field_text(const tb_signature *s, field f, char t[FIELD_TEXT]) {
  bool reduces = s->kind == TB_ALL_REDUCE || s->kind == TB_REDUCE_SCATTER, agrees = s->consistency == TB_AGREE;
  t[0] = 0;
  switch (f) {
  case COUNT: snprintf(t, FIELD_TEXT, "count=%llu", (unsigned long long)s->count); break;
  case DTYPE: snprintf(t, FIELD_TEXT, "dtype=%s", tb_dtype_name((tb_dtype)s->dtype)); break;
  case OP: if (reduces) snprintf(t, FIELD_TEXT, "op=%s", tb_redop_name((tb_redop)s->redop)); break;
  case CLASS: snprintf(t, FIELD_TEXT, "class=%s", s->exact ? "exact" : "lossy"); break;
  case CONSISTENCY: snprintf(t, FIELD_TEXT, "consistency=%s", agrees ? "agree" : "local"); break;
  case MIN_RECEIVED: if (agrees) snprintf(t, FIELD_TEXT, "min_received=%.7g", (s->tag & ~TB_TAG_ORDERED) * 1e-6); break;
  case ORDER: if (reduces) snprintf(t, FIELD_TEXT, "order=%s", s->tag & TB_TAG_ORDERED ? "ranks" : "any"); break;
  case MISSING: snprintf(t, FIELD_TEXT, "missing=%s", s->missing == TB_CARRY ? "carry" : "renormalise"); break;
  case WIRE:
    snprintf(t, FIELD_TEXT, "wire=%s", s->wire_dtype == s->dtype ? "none" : tb_dtype_name((tb_dtype)s->wire_dtype));
    break;
  case HADAMARD:
    if (s->hadamard & TB_HADAMARD_AUTO) snprintf(t, FIELD_TEXT, "hadamard=auto(2^%u)", s->hadamard & 0x7f);
    else if (s->hadamard) snprintf(t, FIELD_TEXT, "hadamard=2^%u", s->hadamard);
    else snprintf(t, FIELD_TEXT, "hadamard=off");
    break;
  case ROOT: snprintf(t, FIELD_TEXT, "root=%u", s->root); break;
  case PEER: snprintf(t, FIELD_TEXT, "peer=%u", s->peer); break;
  case TAG: if (!agrees) snprintf(t, FIELD_TEXT, "tag=%u", s->tag); break;
  case CHUNK: snprintf(t, FIELD_TEXT, "chunk=%u", s->chunk_elems); break;
  case GROUPS:
    if (s->groups) snprintf(t, FIELD_TEXT, "groups=of %u (#%04x)", s->groups >> 16, s->groups & 0xffff);
    else snprintf(t, FIELD_TEXT, "groups=off");
    break;
  case FIELDS: break;
  }
}

static bool sends(const tb_signature *s) { return s->kind == TB_SEND || s->kind == TB_RECV; }

/* Where a tag is only one side's it is the threshold of the other, which is told as such. */
static bool differs(const tb_signature *s, const tb_signature *other, field f) {
  char a[FIELD_TEXT], b[FIELD_TEXT];
  if (f == TAG && !sends(s) && !sends(other)) return false;
  field_text(s, f, a);
  field_text(other, f, b);
  return strcmp(a, b) != 0;
}

/* s in at most n - 1 bytes; whole fields, as many as fit. */
static void write_down(const tb_signature *s, const tb_signature *other, char *out, size_t n) {
  size_t at = (size_t)snprintf(out, n, "%s(", tb_kind_name(s));
  const char *gap = "";
  for (int alike = 0; alike < 2; alike++)
    for (field f = 0; f < (alike ? (field)SHOWN : FIELDS); f++) {
      char t[FIELD_TEXT];
      if (differs(s, other, f) == alike) continue;
      field_text(s, f, t);
      if (!*t || at + strlen(gap) + strlen(t) + 2 > n) continue;
      at += (size_t)snprintf(out + at, n - at, "%s%s", gap, t);
      gap = " ";
    }
  snprintf(out + at, n - at, ")");
}

void tb_signatures_text(const tb_signature *a, const tb_signature *b, char ta[TB_SIGNATURE_TEXT],
                        char tb[TB_SIGNATURE_TEXT], size_t room) {
  if (room > 2 * (TB_SIGNATURE_TEXT - 1)) room = 2 * (TB_SIGNATURE_TEXT - 1);
  write_down(a, b, ta, room / 2 + 1);
  write_down(b, a, tb, room / 2 + 1);
}
