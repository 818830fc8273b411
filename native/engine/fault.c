/* fault.c - applies fault clauses to frames and keeps the delayed ones. */
#include "engine/fault.h"

#include "engine/fault_spec.h"
#include "protocol/wire.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Any UDP datagram fits a slot. Slots are handed out most recently used first, and memory that is never written is
 * never backed, so the store costs what is delayed at one time, not SLOTS * SLOT_BYTES. */
enum { SLOTS = 2048, SLOT_BYTES = 65536, NO_SLOT = -1 };

typedef struct {
  uint64_t due, order; /* order: frames due at the same time keep theirs */
  uint32_t len;
  int slot;
} waiting;

struct tb_fault {
  int rank;
  tb_fault_spec spec;
  uint64_t order;
  uint8_t *store; /* NULL until a specification needs it */
  int free_slots[SLOTS];
  uint32_t free_count;
  waiting heap[SLOTS]; /* smallest (due, order) first */
  uint32_t heap_count;
  int lent; /* slot that tb_fault_due gave out last */
};

static uint64_t next_random(uint64_t *state) { /* splitmix64 */
  uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ z >> 27) * 0x94d049bb133111ebull;
  return z ^ z >> 31;
}

/* Drawn even when p is 0 or 1, so that changing one probability leaves the other draws as they were. */
static bool happens(tb_fault_clause *c, double p) { return (double)(next_random(&c->random) >> 11) * 0x1p-53 < p; }

static bool needs_store(const tb_fault_spec *spec) {
  for (uint32_t i = 0; i < spec->clauses; i++)
    if (spec->clause[i].delay > 0 || spec->clause[i].reorder > 0 || spec->clause[i].corrupt > 0) return true;
  return false;
}

int tb_fault_check(const char *spec, char *error, size_t error_len) {
  tb_fault_spec parsed;
  return tb_fault_spec_parse(spec, -1, &parsed, error, error_len);
}

int tb_fault_reset(tb_fault *f, const char *spec, char *error, size_t error_len) {
  tb_fault_spec parsed;
  int err = tb_fault_spec_parse(spec, f->rank, &parsed, error, error_len);
  if (err) return err;
  if (needs_store(&parsed) && !f->store) {
    f->store = malloc((size_t)SLOTS * SLOT_BYTES);
    if (!f->store) {
      snprintf(error, error_len, "fault: no memory for delayed frames");
      return -ENOMEM;
    }
    for (int i = 0; i < SLOTS; i++) f->free_slots[i] = SLOTS - 1 - i;
    f->free_count = SLOTS;
  }
  for (uint32_t i = 0; i < parsed.clauses; i++) {
    tb_fault_clause *c = &parsed.clause[i];
    c->random = c->seed ^ (uint64_t)(f->rank + 1) << 32 ^ (uint64_t)i << 48;
    next_random(&c->random);
  }
  f->spec = parsed;
  return 0;
}

int tb_fault_parse(const char *spec, int rank, tb_fault **out, char *error, size_t error_len) {
  tb_fault *f = calloc(1, sizeof *f);
  if (!f) {
    snprintf(error, error_len, "fault: no memory");
    return -ENOMEM;
  }
  f->rank = rank;
  f->lent = NO_SLOT;
  int err = tb_fault_reset(f, spec, error, error_len);
  if (err) {
    tb_fault_free(f);
    return err;
  }
  *out = f;
  return 0;
}

void tb_fault_free(tb_fault *f) {
  if (!f) return;
  free(f->store);
  free(f);
}

uint64_t tb_fault_acted(const tb_fault *f) {
  uint64_t n = 0;
  for (uint32_t i = 0; f && i < f->spec.clauses; i++) n += f->spec.clause[i].acted;
  return n;
}

bool tb_fault_active(const tb_fault *f) { return f && (f->spec.clauses > 0 || f->heap_count > 0); }

static bool before(const waiting *a, const waiting *b) {
  return a->due != b->due ? a->due < b->due : a->order < b->order;
}

static void push(tb_fault *f, waiting w) {
  uint32_t i = f->heap_count++;
  while (i > 0 && before(&w, &f->heap[(i - 1) / 2])) {
    f->heap[i] = f->heap[(i - 1) / 2];
    i = (i - 1) / 2;
  }
  f->heap[i] = w;
}

static waiting pop(tb_fault *f) {
  waiting top = f->heap[0], last = f->heap[--f->heap_count];
  uint32_t i = 0;
  for (;;) {
    uint32_t child = 2 * i + 1;
    if (child >= f->heap_count) break;
    if (child + 1 < f->heap_count && before(&f->heap[child + 1], &f->heap[child])) child++;
    if (!before(&f->heap[child], &last)) break;
    f->heap[i] = f->heap[child];
    i = child;
  }
  if (f->heap_count) f->heap[i] = last;
  return top;
}

/* Where the copy lies, NULL = no room. */
static uint8_t *hold(tb_fault *f, const uint8_t *frame, uint32_t len, uint64_t due) {
  if (!f->store || f->free_count == 0 || len > SLOT_BYTES) return NULL;
  int slot = f->free_slots[--f->free_count];
  uint8_t *copy = f->store + (size_t)slot * SLOT_BYTES;
  memcpy(copy, frame, len);
  push(f, (waiting){.due = due, .order = f->order++, .len = len, .slot = slot});
  return copy;
}

static bool matches(tb_fault_clause *c, const uint8_t *frame, uint32_t len, int peer) {
  if (c->peer >= 0 && c->peer != peer) return false;
  if (c->type >= 0 && (len < 4 || frame[3] != c->type)) return false;
  return c->seen++ >= c->after && c->acted < c->count;
}

tb_fault_verdict tb_fault_rx(tb_fault *f, const uint8_t *frame, uint32_t len, int src, uint64_t now) {
  if (!f) return TB_FAULT_PASS;
  if (src < 0 && len >= TB_HEAD) src = tb_head_source(frame);
  for (uint32_t i = 0; i < f->spec.clauses; i++) {
    tb_fault_clause *c = &f->spec.clause[i];
    if (c->tx || !matches(c, frame, len, src)) continue;
    bool drop = happens(c, c->drop), corrupt = happens(c, c->corrupt), delay = happens(c, c->delay);
    bool reorder = happens(c, c->reorder), dup = happens(c, c->dup);
    if (!(drop || corrupt || delay || reorder || dup)) continue;
    c->acted++;
    if (drop) return TB_FAULT_DROP;
    if (corrupt || delay || reorder) {
      uint64_t due = now + (delay ? c->delay_ns : 0) + (reorder ? c->reorder_ns : 0);
      uint8_t *copy = hold(f, frame, len, due);
      if (!copy) return TB_FAULT_PASS;
      if (corrupt && len) {
        uint64_t bit = next_random(&c->random) % ((uint64_t)len * 8);
        copy[bit / 8] ^= (uint8_t)(1u << bit % 8);
      }
      if (dup) hold(f, copy, len, due);
      return TB_FAULT_DELAYED;
    }
    return TB_FAULT_DUP;
  }
  return TB_FAULT_PASS;
}

tb_fault_verdict tb_fault_tx(tb_fault *f, const uint8_t *head, uint32_t len, int dst) {
  if (!f) return TB_FAULT_PASS;
  for (uint32_t i = 0; i < f->spec.clauses; i++) {
    tb_fault_clause *c = &f->spec.clause[i];
    if (!c->tx || !matches(c, head, len, dst)) continue;
    bool drop = happens(c, c->drop), dup = happens(c, c->dup);
    if (!drop && !dup) continue;
    c->acted++;
    return drop ? TB_FAULT_DROP : TB_FAULT_DUP;
  }
  return TB_FAULT_PASS;
}

const uint8_t *tb_fault_due(tb_fault *f, uint64_t now, uint32_t *len) {
  if (!f) return NULL;
  if (f->lent != NO_SLOT) {
    f->free_slots[f->free_count++] = f->lent;
    f->lent = NO_SLOT;
  }
  if (f->heap_count == 0 || f->heap[0].due > now) return NULL;
  waiting w = pop(f);
  f->lent = w.slot;
  *len = w.len;
  return f->store + (size_t)w.slot * SLOT_BYTES;
}

uint64_t tb_fault_next(const tb_fault *f) { return f && f->heap_count ? f->heap[0].due : UINT64_MAX; }

void tb_fault_describe(const tb_fault *f, char *out, size_t n) {
  out[0] = 0;
  if (f) tb_fault_spec_describe(&f->spec, f->rank, out, n);
}
