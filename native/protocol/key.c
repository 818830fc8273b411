/* key.c - keys: names that match operations across ranks, and the rounds each peer has reached in them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "compute/compute.h"
#include "protocol/core.h"

uint32_t tb_key_hash(const char *key, uint32_t len) {
  uint32_t h = tb_crc32c(0x6b657931u, key, len);
  return h ? h : 1; /* 0 means "no operation" on the wire */
}

tb_key *tb_key_find(tb_core *c, uint32_t hash) {
  tb_key *k = c->key_hash[hash % TB_BUCKETS];
  while (k && k->hash != hash) k = k->hash_next;
  return k;
}

tb_key *tb_key_named(tb_core *c, const char *name, uint32_t len) {
  tb_key *k = tb_key_find(c, tb_key_hash(name, len));
  return k && k->len == len && !memcmp(k->name, name, len) ? k : NULL;
}

static void key_free(tb_core *c, tb_key *k) {
  tb_store_empty(c, &k->late);
  tb_store_empty(c, &k->residual);
  tb_history_free_all(c, k);
  free(k->transform);
  free(k->peer);
  free(k);
}

/* Messages make a key per tag, and peers make keys by speaking of them: when there are too many, those go that nothing
 * has used for a minute, and at once those that were forgotten. A key used by name here stays: its rounds are a
 * promise. */
static bool reclaim(tb_core *c, uint64_t now) {
  uint32_t before = c->keys;
  for (int b = 0; b < TB_BUCKETS; b++)
    for (tb_key **at = &c->key_hash[b], *k; (k = *at);) {
      bool busy = k->ops || (k->own && !k->forgotten && !tb_key_of_messages(k->name, k->len));
      for (tb_settling *s = c->settling; s && !busy; s = s->next) busy = s->key == k;
      if (busy || (!k->forgotten && now - k->used < 60 * TB_SEC)) {
        at = &k->hash_next;
        continue;
      }
      *at = k->hash_next;
      key_free(c, k);
      c->keys--;
    }
  return c->keys < before;
}

int tb_key_get(tb_core *c, const char *name, uint32_t len, bool own, uint64_t now, tb_key **out) {
  uint32_t hash = tb_key_hash(name, len);
  tb_key *k = tb_key_find(c, hash);
  *out = k;
  if (k) {
    if (k->len != len || memcmp(k->name, name, len)) return -EEXIST;
    k->used = now;
    k->own |= own;
    if (own) k->forgotten = false;
    return 0;
  }
  /* Packets may not take all the room: half of it is for calls made here. */
  uint64_t most = own ? c->tune.key_cap : c->tune.key_cap / 2;
  if (c->keys >= most && ((!own && now - c->reclaimed_at < TB_SEC) || !reclaim(c, c->reclaimed_at = now)))
    return -ENOBUFS;
  k = calloc(1, sizeof *k);
  if (k) k->peer = calloc(c->cfg.n, sizeof *k->peer);
  if (!k || !k->peer) {
    free(k);
    return -ENOMEM;
  }
  k->hash = hash;
  k->len = (uint8_t)len;
  memcpy(k->name, name, len);
  k->used = now;
  k->own = own;
  k->next_round = k->first_round = tb_key_of_messages(name, len) ? 0 : c->vote.base;
  k->hash_next = c->key_hash[hash % TB_BUCKETS];
  c->key_hash[hash % TB_BUCKETS] = k;
  c->keys++;
  *out = k;
  return 0;
}

void tb_key_restart(tb_core *c, tb_key *k, uint64_t now) {
  for (tb_op *op = k->ops, *next; op; op = next) { /* members.c has failed what somebody waited for */
    next = op->key_next;
    if (op->state == TB_OP_EARLY || op->state == TB_OP_RETURNED) tb_op_free(c, op, now);
  }
  k->next_round = k->first_round = 0;
  k->failed = 0;
  memset(k->peer, 0, c->cfg.n * sizeof *k->peer);
}

void tb_key_free_all(tb_core *c) {
  for (int b = 0; b < TB_BUCKETS; b++)
    for (tb_key *k = c->key_hash[b], *next; k; k = next) {
      next = k->hash_next;
      key_free(c, k);
    }
}

void tb_key_saw_open(tb_key *k, uint16_t p, uint32_t round) {
  if (!k->peer[p].has_open || tb_before(k->peer[p].open, round)) k->peer[p].open = round;
  k->peer[p].has_open = true;
}

void tb_key_saw_closed(tb_key *k, uint16_t p, uint32_t round) {
  if (!k->peer[p].has_closed || tb_before(k->peer[p].closed, round)) k->peer[p].closed = round;
  k->peer[p].has_closed = true;
}

/* Where a peer is: the highest round it opened, or the one after the last it closed, which it will open next. A rank
 * that joined the closed one would run a round that is over, and with peers in step would do so for ever. (The price:
 * at the very end of a job a laggard's last call waits out its deadline for a round that nobody opens.) */
static bool reached(const tb_key *k, uint32_t p, uint32_t *round) {
  bool o = k->peer[p].has_open, d = k->peer[p].has_closed;
  uint32_t next = k->peer[p].closed + 1;
  *round = !d || (o && tb_before(next, k->peer[p].open)) ? k->peer[p].open : next;
  return o || d;
}

uint32_t tb_key_jump(tb_core *c, const tb_key *k) {
  /* The highest round that a quorum has reached: sort by how far ahead of us everybody is, take the q-th from the top.
   * Own rank is at its own next round, that is, 0 ahead; with two ranks the peer alone is the quorum. */
  uint32_t live = 0, n = c->cfg.n;
  uint64_t *ahead = c->scratch64;
  bool grouped = k->bound && k->sig.groups && c->tree && k->sig.groups == c->tree->id;
  for (uint32_t p = 0; p < n; p++) {
    if (p == c->cfg.rank || !tb_live(c, p)) continue;
    if (grouped && c->tree->kin[p] == TB_KIN_NONE) continue; /* nothing is ever heard of its rounds */
    uint32_t round;
    bool known = reached(k, p, &round);
    ahead[live++] = known && tb_before(k->next_round, round) ? round - k->next_round : 0;
  }
  if (!live) return k->next_round;
  bool two = tb_team_n(c) == 2;
  if (!two) ahead[live++] = 0;
  uint32_t quorum = two ? 1 : live / 2 + 1;
  tb_median(ahead, live); /* sorts, ascending */
  return k->next_round + (uint32_t)ahead[live - quorum];
}
