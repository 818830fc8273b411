/* store.c - see store.h. */
#include <errno.h>
#include <string.h>
#include "compute/compute.h"
#include "protocol/core.h"

static bool begin(tb_core *c, tb_store *s, const tb_op *op) {
  *s = (tb_store){.sig = op->sig, .geo = op->geo};
  s->geo.rotation = 0;
  uint32_t n = c->cfg.n;
  s->stride = 64 * tb_words(tb_geo_chunks(&s->geo, 0)); /* the first shard is never shorter than another */
  size_t data = (s->geo.count * s->geo.elem + 63) / 64 * 64, bits = (size_t)n * s->stride / 8;
  size_t bytes = data + bits + (size_t)n * s->stride * sizeof *s->since;
  if (!tb_memory_take(c, bytes)) return false;
  s->data = tb_pool_get(c->pool, bytes);
  if (!s->data) {
    tb_memory_give(c, bytes);
    return false;
  }
  s->bits = (void *)(s->data + data);
  s->since = (void *)(s->data + data + bits);
  memset(s->bits, 0, bits);
  s->bytes = bytes;
  return true;
}

static uint32_t bit_of(const tb_store *s, const tb_op *op, uint32_t owner, uint32_t chunk) {
  return (owner + op->geo.rotation) % op->geo.n * s->stride + chunk;
}

static tb_stored describe(const tb_store *s, uint32_t bit) {
  tb_stored e = {.at = bit, .since = s->since[bit]};
  uint64_t start, len, first;
  tb_geo_shard(&s->geo, bit / s->stride, &start, &len);
  e.n = tb_geo_chunk(&s->geo, bit / s->stride, bit % s->stride, &first);
  e.first = start + first;
  return e;
}

int tb_store_put(tb_core *c, tb_store *s, const tb_op *op, uint32_t owner, uint32_t chunk, const void *x, int sign,
    uint32_t since) {
  if (!s->data && !begin(c, s, op)) return -ENOSPC;
  if (memcmp(&s->sig, &op->sig, sizeof op->sig)) return -ESTALE;
  uint32_t bit = bit_of(s, op, owner, chunk);
  bool fresh = !tb_bit(s->bits, bit);
  if (fresh) {
    tb_bit_set(s->bits, bit);
    s->since[bit] = since;
    s->used++;
  } else if (tb_before(since, s->since[bit])) {
    s->since[bit] = since;
  }
  tb_stored e = describe(s, bit);
  uint8_t *at = tb_store_at(s, &e);
  tb_dtype t = (tb_dtype)s->sig.dtype;
  if (fresh && sign > 0) {
    memcpy(at, x, (size_t)e.n * s->geo.elem);
  } else {
    if (fresh) memset(at, 0, (size_t)e.n * s->geo.elem);
    (sign > 0 ? tb_add : tb_subtract)(t, at, x, e.n);
  }
  return 0;
}

const void *tb_store_get(const tb_store *s, const tb_op *op, uint32_t owner, uint32_t chunk, uint32_t *since) {
  if (!s->data) return NULL;
  uint32_t bit = bit_of(s, op, owner, chunk);
  if (!tb_bit(s->bits, bit)) return NULL;
  tb_stored e = describe(s, bit);
  if (since) *since = e.since;
  return tb_store_at(s, &e);
}

bool tb_store_each(const tb_store *s, tb_stored *e) {
  if (!s->data) return false;
  uint32_t end = s->geo.n * s->stride, bit = tb_bit_next(s->bits, e->at, end, true);
  if (bit == end) return false;
  *e = describe(s, bit);
  return true;
}

uint8_t *tb_store_at(const tb_store *s, const tb_stored *e) { return s->data + e->first * s->geo.elem; }

void tb_store_remove(tb_core *c, tb_store *s, const tb_stored *e) {
  tb_bit_clear(s->bits, e->at);
  if (!--s->used) tb_store_empty(c, s);
}

void tb_store_move(tb_store *to, tb_store *from) {
  *to = *from;
  *from = (tb_store){0};
}

void tb_store_empty(tb_core *c, tb_store *s) {
  if (s->data) tb_memory_give(c, s->bytes);
  tb_pool_put(c->pool, s->data);
  *s = (tb_store){0};
}
