/* events.h - what a link has to say, kept until somebody asks. When nobody does, the first ones stay: later ones are
 * usually their consequences. Nothing of it is on the data path. */
#ifndef TB_EVENTS_H
#define TB_EVENTS_H
#include "links/link.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>

enum { TB_EVENTS_MOST = 16 };

typedef struct {
  pthread_mutex_t lock;
  tb_link_event event[TB_EVENTS_MOST];
  uint32_t count;
  atomic_bool fresh;       /* wait has not told yet */
} tb_events;

void tb_events_init(tb_events *e); /* of zeroed memory */
void tb_events_destroy(tb_events *e);
void tb_events_add(tb_events *e, int level, const char *format, va_list args);
int tb_events_take(tb_events *e, tb_link_event *out, int n);

/* For wait: true once after something was added. */
static inline bool tb_events_fresh(tb_events *e) {
  return atomic_load_explicit(&e->fresh, memory_order_relaxed) && atomic_exchange(&e->fresh, false);
}

#endif
