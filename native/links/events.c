/* events.c - see events.h. */
#include "links/events.h"
#include <stdio.h>
#include <string.h>

void tb_events_init(tb_events *e) { pthread_mutex_init(&e->lock, NULL); }

void tb_events_destroy(tb_events *e) { pthread_mutex_destroy(&e->lock); }

void tb_events_add(tb_events *e, int level, const char *format, va_list args) {
  pthread_mutex_lock(&e->lock);
  if (e->count < TB_EVENTS_MOST) {
    tb_link_event *new = &e->event[e->count++];
    new->level = level;
    vsnprintf(new->text, sizeof new->text, format, args);
    atomic_store(&e->fresh, true);
  }
  pthread_mutex_unlock(&e->lock);
}

int tb_events_take(tb_events *e, tb_link_event *out, int n) {
  pthread_mutex_lock(&e->lock);
  int k = n < 0 ? 0 : n < (int)e->count ? n : (int)e->count;
  memcpy(out, e->event, (size_t)k * sizeof *out);
  e->count -= (uint32_t)k;
  memmove(e->event, e->event + k, e->count * sizeof *out);
  pthread_mutex_unlock(&e->lock);
  return k;
}
