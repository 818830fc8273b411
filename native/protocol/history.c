/* history.c - what earlier rounds of a key have shown, here and, as the others tell in their OPENs, at the peers.
 *
 * Medians over nodes are always taken of a copy: sorting what is stored by rank would give each later reading to the
 * wrong rank.
 */
#include <stdlib.h>
#include "protocol/core.h"

tb_history *tb_history_find(const tb_key *k, uint32_t sig_hash) {
  for (tb_history *h = k->history; h; h = h->next)
    if (k->len || h->sig_hash == sig_hash) return h;
  return NULL;
}

static size_t bytes(const tb_core *c) { return sizeof(tb_history) + c->cfg.n * sizeof(tb_history_peer); }

tb_history *tb_history_get(tb_core *c, tb_key *k, uint32_t sig_hash) {
  uint32_t n = 0;
  for (tb_history *h = k->history; h; h = h->next, n++)
    if (h->sig_hash == sig_hash) return h;
  if (n >= TB_HISTORIES || !tb_memory_take(c, bytes(c))) return NULL;
  tb_history *h = calloc(1, bytes(c));
  if (!h) {
    tb_memory_give(c, bytes(c));
    return NULL;
  }
  for (uint32_t p = 0; p < c->cfg.n; p++) h->peer[p].share = h->peer[p].told_share = 1;
  h->stretch = 1;
  h->x = TB_X_FIRST;
  h->sig_hash = sig_hash;
  h->next = k->history;
  k->history = h;
  return h;
}

void tb_history_free_all(tb_core *c, tb_key *k) {
  for (tb_history *h = k->history, *next; h; h = next) {
    next = h->next;
    free(h);
    tb_memory_give(c, bytes(c));
  }
  k->history = NULL;
}

void tb_offset_sample(tb_history *h, uint16_t p, uint64_t offset) {
  if (h) h->peer[p].offsets[h->peer[p].offsets_n++ % TB_HISTORY] = offset;
}

static uint32_t to_us(uint64_t ns) {
  uint64_t us = (ns + 999) / 1000; /* up: a time that is short is not none */
  return us < UINT32_MAX ? (uint32_t)us : UINT32_MAX;
}

void tb_history_tell(const tb_core *c, const tb_history *h, tb_open *o) {
  if (!h) return;
  const tb_history_peer *own = &h->peer[c->cfg.rank];
  o->share = (uint16_t)(own->share * 65535 + 0.5);
  o->want_us = to_us(own->told[TB_WANT]);
  for (int s = 0; s < 2; s++) o->stage_us[s] = to_us(own->told[TB_STAGE1 + s]);
}

void tb_history_told(tb_history *h, uint16_t p, const tb_open *o) {
  if (!h) return;
  tb_history_peer *q = &h->peer[p];
  q->told_share = (double)o->share / 65535;
  q->told[TB_WANT] = o->want_us * 1000ull;
  for (int s = 0; s < 2; s++) q->told[TB_STAGE1 + s] = o->stage_us[s] * 1000ull;
}

uint64_t tb_over_nodes(tb_core *c, const tb_history *h, tb_told what) {
  uint32_t n = 0;
  for (uint32_t p = 0; p < c->cfg.n; p++) {
    bool live = p == c->cfg.rank || tb_live(c, p);
    if (live && h->peer[p].told[what]) c->scratch64[n++] = h->peer[p].told[what];
  }
  return tb_median(c->scratch64, n);
}
