/* neighbour.c - see neighbour.h. A table of entries that only grows, found by IP through an open hash. */
#include "ether/neighbour.h"
#include "ether/neighbour_frames.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { EMPTY = UINT32_MAX, RIVALS = 8, OFTEN = 5 };
static const uint64_t FIRST_NS = 100000000, LAST_NS = 1000000000, STALE_NS = 60000000000u;

typedef struct {
  tb_ip ip;
  tb_mac mac;
  bool known;
  bool given;             /* by the rendezvous, that is by its owner */
  bool doubted;           /* another claims its address */
  bool fresh;             /* heard of at a time that due() has yet to note */
  uint32_t asked;         /* requests since it was last heard of */
  uint64_t ask_at, asked_at;
} neighbour;

struct tb_neighbours {
  tb_net_self self;
  tb_ip gateway;
  bool has_gateway;
  neighbour *entry;
  uint32_t count, cap, turn; /* turn: where due() looks first */
  uint32_t *slot, slots;     /* a power of two, at least twice as many as entries */
  uint32_t changes;
  tb_mac rival[RIVALS];      /* that said our address is theirs; no more are told */
  uint32_t rivals;
  tb_ip silent;
  bool has_silent;
  uint64_t next;
};

int tb_neighbours_new(const tb_net_self *self, const tb_ip *gateway, tb_neighbours **out) {
  tb_neighbours *n = calloc(1, sizeof *n);
  if (!n) return -ENOMEM;
  n->self = *self;
  n->has_gateway = gateway;
  if (gateway) n->gateway = *gateway;
  n->next = UINT64_MAX;
  *out = n;
  return 0;
}

void tb_neighbours_free(tb_neighbours *n) {
  if (!n) return;
  free(n->entry);
  free(n->slot);
  free(n);
}

/* The slot that holds ip, or the empty one where it belongs. */
static uint32_t *slot_of(const tb_neighbours *n, const tb_ip *ip) {
  uint32_t i = 0;
  for (uint32_t k = 0; k < sizeof ip->b; k += 4) i = (i ^ tb_get32(ip->b + k)) * 2654435761u;
  for (i ^= i >> 15;; i++) {
    uint32_t *s = &n->slot[i & (n->slots - 1)];
    if (*s == EMPTY || tb_ip_equal(&n->entry[*s].ip, ip)) return s;
  }
}

static neighbour *find(const tb_neighbours *n, const tb_ip *ip) {
  if (!n->slots) return NULL;
  uint32_t s = *slot_of(n, ip);
  return s == EMPTY ? NULL : &n->entry[s];
}

static int grow(tb_neighbours *n) {
  uint32_t cap = n->cap ? 2 * n->cap : 16;
  neighbour *entry = realloc(n->entry, cap * sizeof *entry);
  if (!entry) return -ENOMEM;
  n->entry = entry;
  uint32_t *slot = malloc(2 * cap * sizeof *slot);
  if (!slot) return -ENOMEM;
  free(n->slot);
  n->slot = slot;
  n->slots = 2 * cap;
  n->cap = cap;
  memset(slot, 0xff, n->slots * sizeof *slot);
  for (uint32_t i = 0; i < n->count; i++) *slot_of(n, &entry[i].ip) = i;
  return 0;
}

static void hear(tb_neighbours *n, neighbour *e, const tb_mac *mac) {
  if (!e->known || !tb_mac_equal(&e->mac, mac)) n->changes++;
  e->mac = *mac;
  e->known = e->fresh = true;
  e->doubted = false;
  e->asked = 0;
  n->next = 0; /* due() notes when to ask again */
}

int tb_neighbours_want(tb_neighbours *n, const tb_ip *ip, const tb_mac *mac) {
  bool direct = tb_ip_within(ip, &n->self.ip, n->self.bits) || tb_ip6_link_local(ip);
  if (!direct && !n->has_gateway) return -ENETUNREACH;
  if (!direct) mac = NULL; /* who is behind a gateway has no MAC here */
  if (!direct) ip = &n->gateway;
  if (tb_ip_equal(ip, &n->self.ip)) mac = &n->self.mac;
  neighbour *e = find(n, ip);
  if (!e) {
    if (n->count == n->cap && grow(n)) return -ENOMEM;
    *slot_of(n, ip) = n->count;
    e = &n->entry[n->count++];
    *e = (neighbour){.ip = *ip};
    n->next = 0;
  }
  if (mac && tb_mac_of_one(mac)) {
    hear(n, e, mac);
    e->given = true;
  }
  return (int)(e - n->entry);
}

const tb_mac *tb_neighbours_mac(const tb_neighbours *n, int entry) {
  return entry >= 0 && (uint32_t)entry < n->count && n->entry[entry].known ? &n->entry[entry].mac : NULL;
}

uint32_t tb_neighbours_changes(const tb_neighbours *n) { return n->changes; }

static bool is4(const tb_neighbours *n) { return tb_ip_is4(&n->self.ip); }

/* Somebody says that our address is his. True: that is news, and he has to be told. Each once: several of them hear one
 * another, and what all of them answer to all would never end. */
static bool claimed(tb_neighbours *n, const tb_neighbour_word *w) {
  if (!w->told || !tb_ip_equal(&w->about, &n->self.ip) || n->rivals == RIVALS) return false;
  for (uint32_t i = 0; i < n->rivals; i++)
    if (tb_mac_equal(&n->rival[i], &w->mac)) return false;
  n->rival[n->rivals++] = w->mac;
  return true;
}

/* Who claims our address does not get our entry. A word without a MAC says that the one we know still holds, unless
 * it is a question. */
static void believe(tb_neighbours *n, const tb_neighbour_word *w) {
  neighbour *e = tb_ip_equal(&w->about, &n->self.ip) ? NULL : find(n, &w->about);
  if (!e || (!w->told && (w->asks || !e->known))) return;
  bool other = w->told && e->known && !tb_mac_equal(&w->mac, &e->mac);
  if (other && w->yields) return;
  if (other && e->given && e->asked < OFTEN) {
    if (!e->asked) n->next = 0;
    e->doubted = true;
    return;
  }
  tb_mac mac = w->told ? w->mac : e->mac;
  hear(n, e, &mac);
}

/* A rival who asks hears from the answer that the address is taken; one who does not (IPv6) is told so, once. */
uint32_t tb_neighbours_hear(tb_neighbours *n, const uint8_t *f, const tb_net_in *in, uint8_t reply[TB_NEIGHBOUR_MOST]) {
  tb_neighbour_word w;
  if (is4(n) ? !tb_arp_read(&n->self, f, in, &w) : !tb_nd_read(f, in, &w)) return 0;
  bool ours = tb_mac_equal(&w.back, &n->self.mac) || (w.told && tb_mac_equal(&w.mac, &n->self.mac));
  if (ours) return 0; /* come back from a loop */
  bool news = claimed(n, &w);
  believe(n, &w);
  if (w.asks && tb_ip_equal(&w.target, &n->self.ip))
    return is4(n) ? tb_arp_answer(reply, &n->self, &w) : tb_nd_answer(reply, &n->self, &w);
  return news && !is4(n) ? tb_nd_announce(reply, &n->self) : 0;
}

/* Known ones are asked directly first: nobody else need be disturbed. */
static uint32_t ask(tb_neighbours *n, neighbour *e, uint64_t now, uint8_t *request) {
  const tb_mac *to = e->known && !e->asked ? &e->mac : NULL;
  uint64_t pause = e->asked < 4 ? FIRST_NS << e->asked : LAST_NS;
  e->asked_at = now;
  e->ask_at = now + (pause < LAST_NS ? pause : LAST_NS);
  if (++e->asked == OFTEN && !e->known && !n->has_silent) {
    n->silent = e->ip;
    n->has_silent = true;
  }
  return is4(n) ? tb_arp_ask(request, &n->self, to, &e->ip) : tb_nd_ask(request, &n->self, to, &e->ip);
}

uint32_t tb_neighbours_due(tb_neighbours *n, uint64_t now, uint8_t request[TB_NEIGHBOUR_MOST]) {
  if (now < n->next) return 0;
  uint64_t next = UINT64_MAX;
  for (uint32_t i = 0; i < n->count; i++) {
    neighbour *e = &n->entry[n->turn++ % n->count];
    if (tb_ip_equal(&e->ip, &n->self.ip)) continue;
    if (e->fresh) e->ask_at = now + STALE_NS;
    e->fresh = false;
    if (e->doubted && !e->asked) e->ask_at = e->asked_at + FIRST_NS;
    if (e->ask_at <= now) return ask(n, e, now, request); /* next stays in the past: more may be due */
    if (e->ask_at < next) next = e->ask_at;
  }
  n->next = next;
  return 0;
}

uint64_t tb_neighbours_next(const tb_neighbours *n) { return n->next; }

const tb_ip *tb_neighbours_silent(const tb_neighbours *n) { return n->has_silent ? &n->silent : NULL; }

const tb_mac *tb_neighbours_rival(const tb_neighbours *n) { return n->rivals ? &n->rival[0] : NULL; }

uint32_t tb_neighbours_announce(const tb_neighbours *n, uint8_t frame[TB_NEIGHBOUR_MOST]) {
  return is4(n) ? tb_arp_announce(frame, &n->self) : tb_nd_announce(frame, &n->self);
}
