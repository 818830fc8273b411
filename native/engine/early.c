#include "engine/early.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FRAMES = 256 };
static const uint64_t AGE = 5 * TB_MS; /* by then an OPEN was repeated, and the data is better repaired than hoarded */

struct tb_early {
  uint32_t frame_bytes, n, len[FRAMES];
  uint64_t since[FRAMES];
  uint8_t *slot[FRAMES]; /* pointers, so that giving one up moves no data */
  uint8_t *memory;
};

int tb_early_new(uint32_t frame_bytes, tb_early **out) {
  tb_early *e = calloc(1, sizeof *e);
  if (e) e->memory = malloc((size_t)FRAMES * frame_bytes);
  if (!e || !e->memory) {
    free(e);
    return -ENOMEM;
  }
  e->frame_bytes = frame_bytes;
  for (uint32_t i = 0; i < FRAMES; i++) e->slot[i] = e->memory + (size_t)i * frame_bytes;
  *out = e;
  return 0;
}

void tb_early_free(tb_early *e) {
  if (e) free(e->memory);
  free(e);
}

void tb_early_put(tb_early *e, tb_core *c, const uint8_t *frame, uint32_t len, uint64_t now) {
  if (e->n == FRAMES || len > e->frame_bytes) {
    tb_core_give_up_early(c, frame, len);
    return;
  }
  memcpy(e->slot[e->n], frame, len);
  e->len[e->n] = len;
  e->since[e->n++] = now;
}

void tb_early_retry(tb_early *e, tb_core *c, uint64_t now) {
  for (uint32_t i = 0; i < e->n;) {
    bool taken = tb_core_rx_again(c, e->slot[i], e->len[i], now), old = now - e->since[i] > AGE;
    if (!taken && !old) {
      i++;
      continue;
    }
    if (!taken) tb_core_give_up_early(c, e->slot[i], e->len[i]);
    uint8_t *free_slot = e->slot[i];
    e->n--;
    e->slot[i] = e->slot[e->n];
    e->len[i] = e->len[e->n];
    e->since[i] = e->since[e->n];
    e->slot[e->n] = free_slot;
  }
}

uint64_t tb_early_next(const tb_early *e) {
  uint64_t t = UINT64_MAX;
  for (uint32_t i = 0; i < e->n; i++)
    if (e->since[i] + AGE + 1 < t) t = e->since[i] + AGE + 1;
  return t;
}
