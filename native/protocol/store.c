/* store.c - see store.h. */
#include <errno.h>
#include <string.h>
#include "compute/compute.h"
#include "protocol/core.h"

static bool begin(tb_core *c, tb_store *s, const tb_op *op) {
  *s = (tb_store){.sig = op->sig, .geo = op->geo};
  s->geo.rotation = 0;
  uint32_t n = op->geo.n;
  /* the first shard is never shorter than another */
  s->stride = 64 * tb_words(tb_geo_chunks(&s->geo, tb_geo_owner(&s->geo, 0)));
  size_t data = (s->geo.count * s->geo.elem + 63) / 64 * 64, bits = (size_t)n * s->stride / 8;
  size_t bytes = data + 2 * bits + (size_t)n * s->stride * sizeof *s->since;
  if (!tb_memory_take(c, bytes)) return false;
  s->data = tb_pool_get(c->pool, bytes);
  if (!s->data) {
    tb_memory_give(c, bytes);
    return false;
  }
  s->bits = (void *)(s->data + data);
  s->whole = (void *)(s->data + data + bits);
  s->since = (void *)(s->data + data + 2 * bits);
  memset(s->bits, 0, 2 * bits);
  s->bytes = bytes;
  return true;
}

static uint32_t bit_of(const tb_store *s, const tb_op *op, uint32_t owner, uint32_t chunk) {
  return tb_geo_shard_of(&op->geo, owner) * s->stride + chunk;
}

static tb_stored describe(const tb_store *s, uint32_t bit) {
  tb_stored e = {.at = bit, .since = s->since[bit], .whole = tb_bit(s->whole, bit)};
  uint64_t start, len, first;
  uint32_t owner = tb_geo_owner(&s->geo, bit / s->stride);
  tb_geo_shard(&s->geo, owner, &start, &len);
  e.n = tb_geo_chunk(&s->geo, owner, bit % s->stride, &first);
  e.first = start + first;
  return e;
}

/* Values from element `first` on, all of them of the chunk at `bit`. */
static void add(tb_store *s, uint32_t bit, uint64_t first, const void *x, size_t n, int sign,
    const uint32_t *since) {
  bool fresh = !tb_bit(s->bits, bit);
  if (fresh) {
    tb_bit_set(s->bits, bit);
    s->since[bit] = 0;
    s->used++;
  }
  if (since && (!tb_bit(s->whole, bit) || tb_before(*since, s->since[bit]))) s->since[bit] = *since;
  if (since) tb_bit_set(s->whole, bit);
  tb_stored e = describe(s, bit);
  uint8_t *at = tb_store_at(s, &e);
  bool whole = n == e.n;
  if (fresh && !(whole && sign > 0)) memset(at, 0, (size_t)e.n * s->geo.elem);
  at += (first - e.first) * s->geo.elem;
  if (fresh && whole && sign > 0) memcpy(at, x, n * s->geo.elem);
  else (sign > 0 ? tb_add : tb_subtract)((tb_dtype)s->sig.dtype, at, x, n);
}

/* The chunk in which an element lies. */
static uint32_t bit_at(const tb_store *s, uint64_t elem) {
  uint64_t each = s->geo.count / s->geo.n, more = s->geo.count % s->geo.n, start, len;
  uint64_t shard = elem < more * (each + 1) ? elem / (each + 1) : more + (elem - more * (each + 1)) / each;
  tb_geo_shard(&s->geo, tb_geo_owner(&s->geo, (uint32_t)shard), &start, &len);
  return (uint32_t)(shard * s->stride + (elem - start) / s->geo.chunk_elems);
}

static void add_across(tb_store *s, uint64_t first, const uint8_t *x, size_t n, int sign, const uint32_t *since) {
  while (n) {
    uint32_t bit = bit_at(s, first);
    tb_stored e = describe(s, bit);
    size_t part = e.first + e.n - first < n ? (size_t)(e.first + e.n - first) : n;
    add(s, bit, first, x, part, sign, since);
    first += part;
    x += part * s->geo.elem;
    n -= part;
  }
}

bool tb_store_fits(const tb_store *s, const tb_op *op) {
  tb_signature sig = op->sig;
  sig.groups = s->sig.groups;
  return !memcmp(&s->sig, &sig, sizeof sig);
}

static int put(tb_core *c, tb_store *s, const tb_op *op, uint32_t owner, uint32_t chunk, const void *x, int sign,
    const uint32_t *since) {
  if (!s->data && !begin(c, s, op)) return -ENOSPC;
  if (!tb_store_fits(s, op)) return -ESTALE;
  uint64_t start, len, first;
  tb_geo_shard(&op->geo, owner, &start, &len);
  uint32_t n = tb_geo_chunk(&op->geo, owner, chunk, &first);
  if (s->geo.team == op->geo.team) add(s, bit_of(s, op, owner, chunk), start + first, x, n, sign, since);
  else add_across(s, start + first, x, n, sign, since);
  return 0;
}

int tb_store_regroup(tb_core *c, tb_store *s, const tb_op *op) {
  tb_store to;
  if (!s->data || s->geo.team == op->geo.team) return 0;
  if (!begin(c, &to, op)) return -ENOSPC;
  for (tb_stored e = {0}; tb_store_each(s, &e); e.at++)
    add_across(&to, e.first, tb_store_at(s, &e), e.n, 1, e.whole ? &e.since : NULL);
  tb_store_empty(c, s);
  *s = to;
  return 0;
}

int tb_store_put(tb_core *c, tb_store *s, const tb_op *op, uint32_t owner, uint32_t chunk, const void *x, int sign,
    uint32_t since) {
  return put(c, s, op, owner, chunk, x, sign, &since);
}

int tb_store_put_rounding(tb_core *c, tb_store *s, const tb_op *op, uint32_t owner, uint32_t chunk, const void *x,
    int sign) {
  return put(c, s, op, owner, chunk, x, sign, NULL);
}

const void *tb_store_get(const tb_store *s, const tb_op *op, uint32_t owner, uint32_t chunk, uint32_t *since) {
  if (!s->data) return NULL;
  uint32_t bit = bit_of(s, op, owner, chunk);
  if (!tb_bit(s->bits, bit)) return NULL;
  tb_stored e = describe(s, bit);
  if (since && e.whole) *since = e.since;
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
  tb_bit_clear(s->whole, e->at);
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
