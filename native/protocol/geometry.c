#include "protocol/geometry.h"

bool tb_geo_scatters(const tb_geometry *g) {
  return g->kind == TB_ALL_REDUCE || g->kind == TB_REDUCE_SCATTER || g->kind == TB_BARRIER;
}

bool tb_geo_hands_out(const tb_geometry *g) { return g->kind != TB_REDUCE_SCATTER; }

void tb_geo_shard(const tb_geometry *g, uint32_t owner, uint64_t *first, uint64_t *len) {
  if (!tb_team_has(g->team, owner)) {
    *first = *len = 0;
  } else if (g->kind == TB_ALL_GATHER) {
    *first = owner * g->count;
    *len = g->count;
  } else if (g->kind == TB_BROADCAST || g->kind == TB_SEND) {
    *first = 0;
    *len = owner == g->root ? g->count : 0;
  } else { /* balanced: the first count mod n shards have one element more */
    bool fixed = g->kind == TB_REDUCE_SCATTER; /* who leaves takes its part along */
    uint64_t s = fixed ? owner : tb_geo_shard_of(g, owner), n = fixed ? tb_geo_ranks(g) : g->n;
    uint64_t each = g->count / n, more = g->count % n;
    *first = s * each + (s < more ? s : more);
    *len = each + (s < more);
  }
}

uint32_t tb_geo_chunks(const tb_geometry *g, uint32_t owner) {
  uint64_t first, len;
  tb_geo_shard(g, owner, &first, &len);
  return (uint32_t)((len + g->chunk_elems - 1) / g->chunk_elems);
}

uint32_t tb_geo_chunk(const tb_geometry *g, uint32_t owner, uint32_t c, uint64_t *first) {
  uint64_t start, len;
  tb_geo_shard(g, owner, &start, &len);
  *first = (uint64_t)c * g->chunk_elems;
  return len - *first < g->chunk_elems ? (uint32_t)(len - *first) : g->chunk_elems;
}

uint64_t tb_geo_out_elems(const tb_geometry *g) {
  uint32_t ranks = tb_geo_ranks(g);
  return g->kind == TB_ALL_GATHER ? g->count * ranks : g->kind == TB_REDUCE_SCATTER ? g->count / ranks : g->count;
}

uint32_t tb_geo_order(uint32_t n, uint32_t rank, uint32_t round, uint32_t i) {
  uint32_t step = (i + round) % (n - 1) + 1;
  return (rank + n - step) % n;
}

uint32_t tb_geo_place(uint32_t n, uint32_t rank, uint32_t round, uint32_t p) {
  uint32_t step = (rank + n - p) % n;
  return (step - 1 + (n - 1) - round % (n - 1)) % (n - 1);
}
