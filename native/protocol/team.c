/* team.c - see team.h. */
#include <stdlib.h>
#include <string.h>
#include "protocol/bits.h"
#include "protocol/team.h"

static size_t size(uint32_t n, uint32_t ranks) { return sizeof(tb_team) + (n + ranks) * sizeof(uint16_t); }

static bool same(const tb_team *t, const uint64_t *in, uint32_t ranks) {
  for (uint32_t r = 0; r < ranks; r++)
    if (tb_team_has(t, r) != tb_bit(in, r)) return false;
  return true;
}

const tb_team *tb_team_get(tb_team **list, const uint64_t *in, uint32_t ranks) {
  uint32_t n = 0;
  for (uint32_t r = 0; r < ranks; r++) n += tb_bit(in, r);
  for (tb_team *t = *list; t; t = t->next)
    if (t->n == n && same(t, in, ranks)) return t;
  tb_team *t = n ? calloc(1, size(n, ranks)) : NULL;
  if (!t) return NULL;
  t->ranks = ranks;
  t->place = t->rank + n;
  for (uint32_t r = 0; r < ranks; r++) {
    t->place[r] = tb_bit(in, r) ? (uint16_t)t->n : TB_NOT_IN;
    if (tb_bit(in, r)) t->rank[t->n++] = (uint16_t)r;
  }
  t->next = *list;
  return *list = t;
}

tb_team *tb_team_copy(const tb_team *t) {
  tb_team *own = malloc(size(t->n, t->ranks));
  if (!own) return NULL;
  memcpy(own, t, size(t->n, t->ranks));
  own->next = NULL;
  own->place = own->rank + own->n;
  return own;
}

void tb_teams_free(tb_team **list) {
  for (tb_team *t = *list, *next; t; t = next) {
    next = t->next;
    free(t);
  }
  *list = NULL;
}
