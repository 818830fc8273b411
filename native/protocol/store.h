/* store.h - values of a key that wait for a later round: chunks of a whole tensor, most of them empty.
 *
 * A chunk keeps its place in the tensor from round to round, only its shard's owner changes: a store is indexed by
 * shard and chunk. Where the number of shards has changed since (a view change), values go to the chunks that lie there
 * now. Memory is taken with the first chunk, counted against memory_cap, and given back when the store is emptied.
 */
#ifndef TB_STORE_H
#define TB_STORE_H
#include "protocol/geometry.h"
#include "protocol/wire.h"

struct tb_core;
struct tb_op;

typedef struct {
  tb_signature sig;
  tb_geometry geo;       /* without rotation: owner = shard */
  uint32_t stride;       /* bits of a shard in `bits` */
  uint32_t used;         /* chunks in it */
  uint8_t *data;         /* NULL: empty */
  uint64_t *bits, *whole; /* chunks in it; those that hold more than what rounding took (rounding.c) */
  uint32_t *since;       /* per chunk: the oldest round in it */
  size_t bytes;
} tb_store;

/* one chunk: its bit; elements from `first` of the tensor */
typedef struct { uint32_t at, n, since; uint64_t first; bool whole; } tb_stored;

/* Adds (sign 1) or subtracts (-1) a chunk of op's tensor. -ENOSPC: memory_cap or no memory; -ESTALE: of another
 * signature. */
int tb_store_put(struct tb_core *c, tb_store *s, const struct tb_op *op, uint32_t owner, uint32_t chunk,
    const void *x, int sign,
                 uint32_t since);
/* Of op's signature, whichever way its values go (groups end with a view change). */
bool tb_store_fits(const tb_store *s, const struct tb_op *op);
/* Adds what rounding took of a chunk: it is of no round. */
int tb_store_put_rounding(struct tb_core *c, tb_store *s, const struct tb_op *op, uint32_t owner, uint32_t chunk,
    const void *x, int sign);
/* NULL: not in it. since: the oldest round in it, left as it is where there is none. */
const void *tb_store_get(const tb_store *s, const struct tb_op *op, uint32_t owner, uint32_t chunk, uint32_t *since);
/* for (tb_stored e = {0}; tb_store_each(s, &e); e.at++) runs over its chunks */
bool tb_store_each(const tb_store *s, tb_stored *e);
uint8_t *tb_store_at(const tb_store *s, const tb_stored *e);
void tb_store_remove(struct tb_core *c, tb_store *s, const tb_stored *e);
void tb_store_move(tb_store *to, tb_store *from);      /* to is empty */
/* In shards and chunks as op has them: what a chunk lacks is zero. 0, or -ENOSPC and it is as before. */
int tb_store_regroup(struct tb_core *c, tb_store *s, const struct tb_op *op);
void tb_store_empty(struct tb_core *c, tb_store *s);

#endif
