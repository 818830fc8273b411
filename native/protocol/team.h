/* team.h - the ranks that take part in an operation: the members of a view, or a part of them. NULL stands for all
 * ranks, which needs no table. Teams never change and are kept by what made them, so two are the same if their
 * addresses are. */
#ifndef TB_TEAM_H
#define TB_TEAM_H
#include <stdbool.h>
#include <stdint.h>

enum { TB_NOT_IN = UINT16_MAX };
typedef struct tb_team {
  struct tb_team *next;
  uint32_t n, ranks;   /* members; ranks there are */
  uint16_t *place;     /* [ranks]: of a rank among the members, or TB_NOT_IN */
  uint16_t rank[];     /* [n]: the members, ascending; then the places */
} tb_team;

/* From a list made before, or added to it. NULL: no memory, or there is no member. `in`: a bit for each rank. */
const tb_team *tb_team_get(tb_team **list, const uint64_t *in, uint32_t ranks);
tb_team *tb_team_copy(const tb_team *t); /* one of its own, for free() */
void tb_teams_free(tb_team **list);

static inline bool tb_team_has(const tb_team *t, uint32_t rank) { return !t || t->place[rank] != TB_NOT_IN; }
static inline uint32_t tb_team_place(const tb_team *t, uint32_t rank) { return t ? t->place[rank] : rank; }
static inline uint32_t tb_team_rank(const tb_team *t, uint32_t place) { return t ? t->rank[place] : place; }

#endif
