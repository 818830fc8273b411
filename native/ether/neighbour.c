/* neighbour.c - see neighbour.h. A table of entries that only grows, found by IP through an open hash. */
#include "ether/neighbour.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { ARP = TB_ETHER_HEAD, ARP_LEN = ARP + 28, OP = ARP + 6, FROM_MAC = ARP + 8, FROM_IP = ARP + 14, TO_MAC = ARP + 18,
       TO_IP = ARP + 24, REQUEST = 1, REPLY = 2 };
enum { EMPTY = UINT32_MAX };
static const uint64_t FIRST_NS = 100000000, LAST_NS = 1000000000, STALE_NS = 60000000000u;
static const tb_mac everybody = {{255, 255, 255, 255, 255, 255}};

typedef struct {
  uint32_t ip;
  tb_mac mac;
  bool known;
  bool fresh;             /* heard of at a time that due() has yet to note */
  uint32_t asked;         /* requests since it was last heard of */
  uint64_t ask_at;
} neighbour;

struct tb_neighbours {
  tb_net_self self;
  uint32_t gateway;
  neighbour *entry;
  uint32_t count, cap, turn; /* turn: where due() looks first */
  uint32_t *slot, slots;     /* a power of two, at least twice as many as entries */
  uint32_t changes;
  tb_mac rival;
  uint64_t next;
};

int tb_neighbours_new(const tb_net_self *self, uint32_t gateway, tb_neighbours **out) {
  tb_neighbours *n = calloc(1, sizeof *n);
  if (!n) return -ENOMEM;
  n->self = *self;
  n->gateway = gateway;
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
static uint32_t *slot_of(const tb_neighbours *n, uint32_t ip) {
  uint32_t i = ip * 2654435761u;
  for (i ^= i >> 15;; i++) {
    uint32_t *s = &n->slot[i & (n->slots - 1)];
    if (*s == EMPTY || n->entry[*s].ip == ip) return s;
  }
}

static neighbour *find(const tb_neighbours *n, uint32_t ip) {
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
  for (uint32_t i = 0; i < n->count; i++) *slot_of(n, entry[i].ip) = i;
  return 0;
}

static void hear(tb_neighbours *n, neighbour *e, const tb_mac *mac) {
  if (!e->known || !tb_mac_equal(&e->mac, mac)) n->changes++;
  e->mac = *mac;
  e->known = e->fresh = true;
  e->asked = 0;
  n->next = 0; /* due() notes when to ask again */
}

int tb_neighbours_want(tb_neighbours *n, uint32_t ip, const tb_mac *mac) {
  bool direct = ((ip ^ n->self.ip) & n->self.mask) == 0;
  if (!direct && !n->gateway) return -ENETUNREACH;
  if (!direct) mac = NULL; /* who is behind a gateway has no MAC here */
  if (!direct) ip = n->gateway;
  if (ip == n->self.ip) mac = &n->self.mac;
  neighbour *e = find(n, ip);
  if (!e) {
    if (n->count == n->cap && grow(n)) return -ENOMEM;
    *slot_of(n, ip) = n->count;
    e = &n->entry[n->count++];
    *e = (neighbour){.ip = ip};
    n->next = 0;
  }
  if (mac && tb_mac_of_one(mac)) hear(n, e, mac);
  return (int)(e - n->entry);
}

const tb_mac *tb_neighbours_mac(const tb_neighbours *n, int entry) {
  return entry >= 0 && (uint32_t)entry < n->count && n->entry[entry].known ? &n->entry[entry].mac : NULL;
}

uint32_t tb_neighbours_changes(const tb_neighbours *n) { return n->changes; }

static void make(const tb_neighbours *n, uint8_t *f, uint16_t op, const tb_mac *to, const tb_mac *target, uint32_t ip) {
  static const uint8_t kind[] = {0x08, 0x06, 0, 1, 0x08, 0, 6, 4}; /* ARP: Ethernet, IPv4, lengths of their addresses */
  memset(f, 0, TB_ETHER_LEAST);
  memcpy(f, to->b, 6);
  memcpy(f + 6, n->self.mac.b, 6);
  memcpy(f + 12, kind, sizeof kind);
  tb_put16(f + OP, op);
  memcpy(f + FROM_MAC, n->self.mac.b, 6);
  tb_put32(f + FROM_IP, n->self.ip);
  if (target) memcpy(f + TO_MAC, target->b, 6);
  tb_put32(f + TO_IP, ip);
}

static bool well_formed(const tb_neighbours *n, const uint8_t *f, uint32_t len) {
  static const uint8_t kind[] = {0x08, 0x06, 0, 1, 0x08, 0, 6, 4};
  if (len < ARP_LEN || memcmp(f + 12, kind, sizeof kind)) return false;
  if (memcmp(f, everybody.b, 6) && memcmp(f, n->self.mac.b, 6)) return false;
  return tb_get16(f + OP) == REQUEST || tb_get16(f + OP) == REPLY;
}

bool tb_neighbours_arp(tb_neighbours *n, const uint8_t *f, uint32_t len, uint8_t *reply) {
  tb_mac mac;
  if (!well_formed(n, f, len)) return false;
  uint32_t ip = tb_get32(f + FROM_IP);
  memcpy(mac.b, f + FROM_MAC, 6);
  if (!tb_mac_of_one(&mac) || tb_mac_equal(&mac, &n->self.mac)) return false; /* nobody's, or our own come back */
  neighbour *e = ip == n->self.ip ? NULL : find(n, ip); /* who claims our address does not get our entry */
  if (ip == n->self.ip) n->rival = mac;
  if (e) hear(n, e, &mac);
  if (tb_get16(f + OP) != REQUEST || tb_get32(f + TO_IP) != n->self.ip) return false;
  make(n, reply, REPLY, &mac, &mac, ip); /* also to one without an address yet, who asks whether ours is free */
  return true;
}

/* Known ones are asked directly first: nobody else need be disturbed. */
static void ask(const tb_neighbours *n, neighbour *e, uint64_t now, uint8_t *request) {
  bool directly = e->known && !e->asked;
  make(n, request, REQUEST, directly ? &e->mac : &everybody, directly ? &e->mac : NULL, e->ip);
  uint64_t pause = e->asked < 4 ? FIRST_NS << e->asked : LAST_NS;
  e->ask_at = now + (pause < LAST_NS ? pause : LAST_NS);
  e->asked++;
}

bool tb_neighbours_due(tb_neighbours *n, uint64_t now, uint8_t *request) {
  if (now < n->next) return false;
  uint64_t next = UINT64_MAX;
  for (uint32_t i = 0; i < n->count; i++) {
    neighbour *e = &n->entry[n->turn++ % n->count];
    if (e->ip == n->self.ip) continue;
    if (e->fresh) e->ask_at = now + STALE_NS;
    e->fresh = false;
    if (e->ask_at <= now) {
      ask(n, e, now, request);
      return true; /* next stays in the past: more may be due */
    }
    if (e->ask_at < next) next = e->ask_at;
  }
  n->next = next;
  return false;
}

uint64_t tb_neighbours_next(const tb_neighbours *n) { return n->next; }

const tb_mac *tb_neighbours_rival(const tb_neighbours *n) { return tb_mac_of_one(&n->rival) ? &n->rival : NULL; }

void tb_neighbours_announce(const tb_neighbours *n, uint8_t *frame) {
  make(n, frame, REQUEST, &everybody, NULL, n->self.ip);
}
