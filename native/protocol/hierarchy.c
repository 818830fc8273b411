/* hierarchy.c - see hierarchy.h.
 *
 * Shards differ by one element at most, hence by one chunk at most. A column is `least` full stripes, and then the last
 * chunks of those of its shards that have one more: no table is needed, and the walk over a column is for these only.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "compute/compute.h"
#include "protocol/hierarchy.h"

static uint32_t name_groups(const uint16_t *group_of, uint32_t n, uint16_t *group, uint16_t *known) {
  uint32_t groups = 0; /* by the first rank of each, so that the same groups get the same numbers */
  for (uint32_t r = 0; r < n; r++) known[r] = UINT16_MAX;
  for (uint32_t r = 0; r < n; r++) {
    if (known[group_of[r]] == UINT16_MAX) known[group_of[r]] = (uint16_t)groups++;
    group[r] = known[group_of[r]];
  }
  return groups;
}

int tb_hierarchy_new(const uint16_t *group_of, uint32_t n, uint32_t me, tb_hierarchy **out) {
  *out = NULL;
  for (uint32_t r = 0; r < n; r++)
    if (group_of[r] >= n) return -EINVAL;
  tb_hierarchy *t = calloc(1, sizeof *t + n * (3 * sizeof(uint16_t) + 1));
  if (!t) return -ENOMEM;
  t->group = (uint16_t *)(t + 1);
  t->place = t->group + n;
  t->rank = t->place + n;
  t->kin = (uint8_t *)(t->rank + n);
  t->n = n;
  t->me = me;
  t->groups = name_groups(group_of, n, t->group, t->rank);
  t->size = n / t->groups;
  if (t->size * t->groups != n) goto uneven;
  uint16_t *members = t->place; /* so many of each group so far; then overwritten, from the end, by places */
  memset(members, 0, n * sizeof *members);
  for (uint32_t r = 0; r < n; r++) {
    uint32_t g = t->group[r];
    if (members[g] == t->size) goto uneven;
    t->rank[g * t->size + members[g]++] = (uint16_t)r;
  }
  for (uint32_t i = 0; i < n; i++) t->place[t->rank[i]] = (uint16_t)(i % t->size);
  for (uint32_t r = 0; r < n; r++) {
    bool near = t->group[r] == t->group[me], across = t->place[r] == t->place[me];
    t->kin[r] = near && across ? TB_KIN_SELF : near ? TB_KIN_NEAR : across ? TB_KIN_ACROSS : TB_KIN_NONE;
  }
  t->kin_n = t->size - 1 + t->groups - 1;
  uint32_t check = n;
  for (uint32_t r = 0; r < n; r++) {
    uint8_t b[2] = {(uint8_t)(t->group[r] >> 8), (uint8_t)t->group[r]};
    check = tb_crc32c(check, b, 2);
  }
  t->id = t->size << 16 | (check ^ check >> 16) % 0xffff;
  if (t->groups > 1 && t->size > 1) *out = t;
  else free(t);
  return 0;
uneven:
  free(t);
  return -EINVAL;
}

void tb_hierarchy_free(tb_hierarchy *t) { free(t); }

uint32_t tb_kin_order(const tb_hierarchy *t, uint32_t round, uint32_t i) {
  uint32_t g = t->group[t->me], a = t->place[t->me], near = t->size - 1;
  if (i < near) return tb_rank_at(t, g, tb_geo_order(t->size, a, round, i));
  return tb_rank_at(t, tb_geo_order(t->groups, g, round, i - near), a);
}

uint32_t tb_kin_place(const tb_hierarchy *t, uint32_t round, uint32_t p) {
  uint32_t g = t->group[t->me], a = t->place[t->me];
  if (t->kin[p] == TB_KIN_NEAR) return tb_geo_place(t->size, a, round, t->place[p]);
  return t->size - 1 + tb_geo_place(t->groups, g, round, t->group[p]);
}

static uint32_t chunks_of(const tb_geometry *g, uint64_t elems) {
  return (uint32_t)((elems + g->chunk_elems - 1) / g->chunk_elems);
}

static uint32_t least(const tb_geometry *g) { return chunks_of(g, g->count / g->n); }

uint32_t tb_longest_shard(const tb_geometry *g) { return chunks_of(g, g->count / g->n + (g->count % g->n > 0)); }

/* The j-th owner of a stripe. */
static uint32_t owner_at(const tb_hierarchy *t, uint32_t place, uint32_t j) {
  return tb_rank_at(t, (t->group[t->me] + 1 + j) % t->groups, place);
}

static uint32_t turn_of(const tb_hierarchy *t, uint32_t owner) {
  return (t->group[owner] + t->groups - t->group[t->me] - 1) % t->groups;
}

/* Of the first `turns` shards of a stripe, those that are longer than the shortest. */
static uint32_t longer(const tb_hierarchy *t, const tb_geometry *g, uint32_t place, uint32_t turns) {
  uint32_t n = 0, few = least(g);
  if (few == tb_longest_shard(g)) return 0;
  for (uint32_t j = 0; j < turns; j++) n += tb_geo_chunks(g, owner_at(t, place, j)) > few;
  return n;
}

uint32_t tb_column_chunks(const tb_hierarchy *t, const tb_geometry *g, uint32_t place) {
  return t->groups * least(g) + longer(t, g, place, t->groups);
}

tb_piece tb_column_piece(const tb_hierarchy *t, const tb_geometry *g, uint32_t place, uint32_t i) {
  uint32_t few = least(g), whole = t->groups * few;
  if (i < whole) return (tb_piece){owner_at(t, place, i % t->groups), i / t->groups};
  for (uint32_t j = 0, rest = i - whole;; j++) {
    uint32_t owner = owner_at(t, place, j);
    if (tb_geo_chunks(g, owner) > few && !rest--) return (tb_piece){owner, few};
  }
}

uint32_t tb_column_index(const tb_hierarchy *t, const tb_geometry *g, tb_piece x) {
  uint32_t few = least(g), j = turn_of(t, x.owner);
  return x.chunk < few ? x.chunk * t->groups + j : t->groups * few + longer(t, g, t->place[x.owner], j);
}
