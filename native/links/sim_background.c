/* sim_background.c - traffic of others at a switch port: an on/off source whose frames queue with the real ones, take
 * their time there and are then gone.
 *
 * It needs no events. A port is first in, first out, so when a real frame will have drained is known as it arrives, and
 * what comes later cannot change that: it is enough to let in, at that moment, all that the source has sent until then.
 * An idle port costs nothing, and a burst that left no trace by the next look is passed over.
 */
#include "links/sim_dice.h"
#include "links/sim_internal.h"

static void next_burst(tb_link *e) {
  tb_sim_source *b = &e->background;
  dice d = dice_of(e->net->seed, TB_SIM_MAX, e->id, b->bursts++);
  b->next = b->until + exponential(d, DRAW_OFF, b->off);
  b->until = b->next + exponential(d, DRAW_ON, b->on);
  b->spacing = roll(d, DRAW_SPACING);
}

void tb_sim_background_start(tb_link *e) {
  e->background.until = e->net->now;
  next_burst(e);
}

/* Whole bytes that wait at the port or are being sent, as their time tells. */
uint64_t tb_sim_backlog(const tb_link *e, uint64_t rate, uint64_t at) {
  return e->port_free > at ? (uint64_t)((double)(e->port_free - at) * (double)rate / 8e9) : 0;
}

void tb_sim_background_until_now(tb_link *e, const tb_sim_params *p) {
  tb_sim_source *b = &e->background;
  uint64_t len = e->net->mtu, now = e->net->now, takes = tb_sim_serialise_ns(p->rate, len);
  uint64_t gap = tb_sim_serialise_ns(b->rate, len), drained = tb_sim_serialise_ns(p->rate, p->queue + len);
  while (b->next <= now) {
    if (b->until + drained <= now || b->next >= b->until) {
      next_burst(e);
      continue;
    }
    if (e->port_free < b->next) e->port_free = b->next;
    if (e->port_free == b->next || tb_sim_backlog(e, p->rate, b->next) + len <= p->queue) e->port_free += takes;
    /* Even spacing would lock step with a stream of the same rate, and the same one of the two would always be
     * dropped. */
    b->next += (uint64_t)(2 * unit((dice){b->spacing++ << 16}, 0) * (double)gap);
  }
}
