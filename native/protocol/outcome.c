/* outcome.c - what is left of an operation for its caller: shares per peer and the mask of decided values. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/bits.h"
#include "protocol/protocol.h"

int tb_outcome_init(tb_outcome *o, const tb_geometry *g, uint32_t rank) {
  *o = (tb_outcome){.region = o->region, .transform = o->transform, .prepared = o->prepared, /* set before the issue */
                    .prepared_bytes = o->prepared_bytes};
  uint32_t n = tb_geo_ranks(g);
  o->geometry = *g;
  o->rank = rank;
  o->team = g->team ? tb_team_copy(g->team) : NULL; /* the caller may look at it after the core is gone */
  o->geometry.team = o->team;
  o->mask_at = calloc(n + 1, sizeof *o->mask_at);
  o->per_peer[0] = calloc(2 * (size_t)n, sizeof(double));
  if ((g->team && !o->team) || !o->mask_at || !o->per_peer[0]) goto fail;
  o->per_peer[1] = o->per_peer[0] + n;
  for (uint32_t p = 0; p < n; p++) o->mask_at[p + 1] = o->mask_at[p] + tb_words(tb_geo_chunks(g, p));
  o->mask = calloc(o->mask_at[n] + 1, sizeof *o->mask);
  if (!o->mask) goto fail;
  return 0;
fail:
  tb_outcome_free(o);
  return -ENOMEM;
}

void tb_outcome_free(tb_outcome *o) {
  free(o->team);
  free(o->mask_at);
  free(o->per_peer[0]);
  free(o->mask);
  free(o->transform);
  o->transform = NULL;
  o->team = NULL;
  o->mask_at = NULL;
  o->per_peer[0] = o->per_peer[1] = NULL;
  o->mask = NULL;
}

void tb_outcome_mask(const tb_outcome *o, uint8_t *out) {
  const tb_geometry *g = &o->geometry;
  for (uint32_t p = 0, n = tb_geo_ranks(g); p < n; p++) {
    if (g->kind == TB_REDUCE_SCATTER && p != o->rank) continue;
    uint64_t start, len, first;
    tb_geo_shard(g, p, &start, &len);
    if (g->kind == TB_REDUCE_SCATTER) start = 0;
    for (uint32_t c = 0, chunks = tb_geo_chunks(g, p); c < chunks; c++) {
      uint32_t elems = tb_geo_chunk(g, p, c, &first);
      memset(out + start + first, tb_bit(o->mask, o->mask_at[p] * 64 + c), elems);
    }
  }
  if (o->transform) tb_transform_mask(o->transform, out);
}
