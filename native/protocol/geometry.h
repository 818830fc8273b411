/* geometry.h - which rank owns which elements, in which chunks, and in which order a rank sends. Pure arithmetic. */
#ifndef TB_GEOMETRY_H
#define TB_GEOMETRY_H
#include <stdbool.h>
#include <stdint.h>
#include "protocol/team.h"
#include "tailbound.h"

typedef struct {
  int32_t kind;          /* tb_kind; RECV counts as SEND */
  const tb_team *team;   /* who takes part; NULL = ranks 0 .. n - 1, and there are no others */
  uint32_t n, rotation;  /* how many take part; shard = (place + rotation) mod n */
  uint32_t root;         /* BROADCAST: source; SEND: sender */
  uint32_t elem;         /* bytes of an element */
  uint32_t wire_elem;    /* bytes of an element in a frame */
  uint32_t wire_head;    /* bytes before a chunk's elements there (a scale) */
  uint32_t chunk_elems;
  uint64_t count;
} tb_geometry;

static inline uint32_t tb_geo_ranks(const tb_geometry *g) { return g->team ? g->team->ranks : g->n; }
/* A rank's shard among n, where shards are dealt out among those who take part; and whose a shard is. */
static inline uint32_t tb_geo_shard_of(const tb_geometry *g, uint32_t rank) {
  return (tb_team_place(g->team, rank) + g->rotation) % g->n;
}
static inline uint32_t tb_geo_owner(const tb_geometry *g, uint32_t shard) {
  return tb_team_rank(g->team, (shard + g->n - g->rotation) % g->n);
}
bool tb_geo_scatters(const tb_geometry *g);  /* has a stage 1 */
bool tb_geo_hands_out(const tb_geometry *g); /* has a stage 2 */
/* The shard that `owner` reduces or gives: first element in the operation's element space, and its length (0 for who
 * takes no part). An all_gather has a row for each rank, and a reduce_scatter a part, whether it takes part or not. */
void tb_geo_shard(const tb_geometry *g, uint32_t owner, uint64_t *first, uint64_t *len);
uint32_t tb_geo_chunks(const tb_geometry *g, uint32_t owner);
/* Elements of chunk c of owner's shard; *first counts from the shard's start. */
uint32_t tb_geo_chunk(const tb_geometry *g, uint32_t owner, uint32_t c, uint64_t *first);
/* Payload bytes of a chunk of so many elements, and of all chunks of a shard together. */
static inline uint32_t tb_geo_payload(const tb_geometry *g, uint32_t elems) {
  return g->wire_head + elems * g->wire_elem;
}
static inline uint64_t tb_geo_payloads(const tb_geometry *g, uint32_t chunks, uint64_t elems) {
  return (uint64_t)chunks * g->wire_head + elems * g->wire_elem;
}
uint64_t tb_geo_out_elems(const tb_geometry *g); /* elements of the output */
/* i-th peer (0 <= i < n-1) in the sending order of `rank` in `round`, all of them places in a team: with everybody in
 * step each position is a perfect matching (TAR, OptiReduce section 3), and rounds start at different positions, so
 * that nobody is always last. */
/* The place of peer p in that order. */
uint32_t tb_geo_place(uint32_t n, uint32_t rank, uint32_t round, uint32_t p);
uint32_t tb_geo_order(uint32_t n, uint32_t rank, uint32_t round, uint32_t i);

#endif
