/* hierarchy.h - ranks in groups: who talks to whom, and in which order. Pure arithmetic; relay.c is what it does.
 *
 * k groups of m ranks each. Ranks at the same place of their groups form a *column*. A rank has two kinds of kin: those
 * *near* it, of its group, and those *across*, of its column. It exchanges frames with these m - 1 + k - 1 only.
 *
 * Shards are owned as without groups: by one rank each (geometry.h). In every group the rank at the owner's place
 * stands for the owner: what the group has for that shard goes to it. Between ranks of one group a flow therefore holds
 * a whole column: the k shards whose owners stand there, chunk by chunk in stripes (the first chunk of each, then the
 * second ...), so that all owners have something to do from the first moment. Each group begins its stripes with the
 * group after it, itself last: when all are in step every owner hears from one group at a time.
 */
#ifndef TB_HIERARCHY_H
#define TB_HIERARCHY_H
#include "protocol/geometry.h"

typedef enum { TB_KIN_NONE, TB_KIN_SELF, TB_KIN_NEAR, TB_KIN_ACROSS } tb_kin;

typedef struct tb_hierarchy {
  uint32_t n, groups, size, me; /* ranks = groups * size */
  uint32_t id;                  /* for signatures: the size in the upper half, a check of all of it in the lower */
  uint32_t kin_n;
  uint16_t *group, *place;      /* [n] */
  uint16_t *rank;               /* [groups * size], group by group */
  uint8_t *kin;                 /* [n], tb_kin */
} tb_hierarchy;

/* group_of[n]: any numbers below n. *out is NULL where there is one group only, or nobody has company: that is no
 * hierarchy. -EINVAL: the groups are not of one size. */
int tb_hierarchy_new(const uint16_t *group_of, uint32_t n, uint32_t me, tb_hierarchy **out);
void tb_hierarchy_free(tb_hierarchy *t);

static inline uint32_t tb_rank_at(const tb_hierarchy *t, uint32_t group, uint32_t place) {
  return t->rank[group * t->size + place];
}
/* Who stands for rank r in this rank's group. */
static inline uint32_t tb_stand_in(const tb_hierarchy *t, uint32_t r) {
  return tb_rank_at(t, t->group[t->me], t->place[r]);
}

/* The i-th of its kin in a rank's sending order (those near it first), and the place of one there. */
uint32_t tb_kin_order(const tb_hierarchy *t, uint32_t round, uint32_t i);
uint32_t tb_kin_place(const tb_hierarchy *t, uint32_t round, uint32_t p);

/* Chunks of a column; whose shard's and which chunk the i-th is (i below that); and which one it is in its column. */
typedef struct { uint32_t owner, chunk; } tb_piece;
uint32_t tb_column_chunks(const tb_hierarchy *t, const tb_geometry *g, uint32_t place);
tb_piece tb_column_piece(const tb_hierarchy *t, const tb_geometry *g, uint32_t place, uint32_t i);
uint32_t tb_column_index(const tb_hierarchy *t, const tb_geometry *g, tb_piece piece);
uint32_t tb_longest_shard(const tb_geometry *g); /* in chunks */

#endif
