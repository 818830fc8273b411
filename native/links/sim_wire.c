/* sim_wire.c - what happens to a frame between tx_burst and rx_burst.
 *
 * DESIGN NOTES
 * Every stage that serialises (an endpoint's egress, the switch port in front of an endpoint) is a FIFO with one event
 * for its head. So is the wire of a source for frames that do not overtake the one before them (without jitter: all),
 * which keeps the heap small; a frame that does overtake has an arrival event of its own.
 */
#include <string.h>
#include "links/sim_dice.h"
#include "links/sim_internal.h"

uint64_t tb_sim_serialise_ns(uint64_t rate, uint64_t bytes) {
  return rate ? (bytes * 8 * 1000000000u + rate - 1) / rate : 0;
}

static uint64_t trip_ns(const tb_sim_params *p, dice d, int first) {
  uint64_t t = p->delay;
  if (p->jitter) t += (uint64_t)(unit(d, first) * ((double)p->jitter + 1));
  if (chance(d, first + 1, p->tail_p)) t += exponential(d, first + 2, p->tail);
  if (chance(d, first + 3, p->reorder)) t += p->reorder_by;
  return t;
}

static bool lost(const tb_sim_params *p, tb_sim_dir *dir, dice d) {
  if (dir->bad) dir->bad = !chance(d, DRAW_GE_MOVE, p->ge_r);
  else dir->bad = chance(d, DRAW_GE_MOVE, p->ge_p);
  return (dir->bad && chance(d, DRAW_GE_LOSS, p->ge_loss)) || chance(d, DRAW_LOSS, p->loss);
}

static void fly(tb_sim *net, tb_sim_frame *f, uint64_t trip) {
  tb_link *e = &net->ends[f->src];
  f->arrives = net->now + trip;
  if (!e->wire.head) tb_sim_push(net, f->arrives, TB_SIM_LAND, e);
  else if (f->arrives < e->wire.tail->arrives) {
    tb_sim_push(net, f->arrives, TB_SIM_ARRIVE, f);
    return;
  }
  tb_sim_fifo_put(&e->wire, f);
}

static void duplicate(tb_sim *net, const tb_sim_params *p, const tb_sim_frame *f, dice d) {
  tb_sim_frame *copy = tb_sim_frame_get(net, f->len);
  if (!copy) return;
  uint8_t *data = copy->data;
  bool small = copy->small;
  *copy = *f;
  copy->small = small;
  copy->data = memcpy(data, f->data, f->len);
  copy->line.copy = 1;
  fly(net, copy, trip_ns(p, d, DRAW_TRIP_COPY));
}

static void damage(const tb_sim_params *p, tb_sim_frame *f, dice d) {
  if (f->len && chance(d, DRAW_CORRUPT, p->corrupt)) {
    uint64_t r = roll(d, DRAW_CORRUPT_WHERE);
    f->data[(r >> 8) % f->len] ^= (uint8_t)(1 + r % 255); /* never 0, so the byte does change */
    f->damage = 3;
  }
  if (f->len && chance(d, DRAW_TRUNCATE, p->truncate)) {
    f->len = (uint32_t)(roll(d, DRAW_TRUNCATE_AT) % f->len);
    f->damage = 4;
  }
}

static void onto_wire(tb_sim *net, tb_sim_frame *f) {
  uint32_t src = f->src, dst = f->dst;
  const tb_sim_params *p = tb_sim_params_of(net, src, dst);
  if (p->blackhole) {
    tb_sim_drop(net, f, 5);
    return;
  }
  if (!p->random) {
    fly(net, f, p->delay);
    return;
  }
  tb_sim_dir *dir = tb_sim_dir_own(net, src, dst);
  dice d = dice_of(net->seed, src, dst, dir ? dir->frames++ : 0);
  if (!dir || lost(p, dir, d)) { /* without memory for its state a direction can only lose */
    tb_sim_drop(net, f, 1);
    return;
  }
  fly(net, f, trip_ns(p, d, DRAW_TRIP));
  if (chance(d, DRAW_DUP, p->dup)) duplicate(net, p, f, d);
  damage(p, f, d);
}

static void tell(tb_link *e, int news) {
  e->tx_news |= (uint8_t)news;
  e->tx_news_owner |= (uint8_t)news;
  tb_sim_stir(e);
}

static void complete(tb_link *e, uint32_t region) {
  e->regions[region].outstanding--;
  e->refs_done++;
  /* Notices are moderated like a NIC's interrupts; tx_reap itself is always exact. */
  if (e->refs_done == e->refs || e->refs_done - e->refs_told >= e->caps.burst) {
    e->refs_told = e->refs_done;
    tell(e, TB_SIM_COMPLETED);
  }
}

static void owe_completion(tb_sim *net, tb_link *e, uint32_t region) {
  if (net->reap_delay == TB_SIM_NEVER) return;
  if (!net->reap_delay) {
    complete(e, region);
    return;
  }
  /* tx_burst made sure there is a place for every REF it accepted. */
  e->done[(e->done_head + e->done_n++) & (e->done_cap - 1)] = (tb_sim_done){net->now + net->reap_delay, region};
  if (e->done_n == 1) tb_sim_push(net, net->now + net->reap_delay, TB_SIM_DONE, e);
}

static void completed(tb_sim *net, tb_link *e) {
  while (e->done_n && e->done[e->done_head].time <= net->now) {
    complete(e, e->done[e->done_head].region);
    e->done_head = (e->done_head + 1) & (e->done_cap - 1);
    e->done_n--;
  }
  if (e->done_n) tb_sim_push(net, e->done[e->done_head].time, TB_SIM_DONE, e);
}

void tb_sim_egress_start(tb_link *e) {
  const tb_sim_frame *f = e->tx.head;
  uint64_t rate = tb_sim_params_of(e->net, f->src, f->dst)->rate;
  tb_sim_push(e->net, e->net->now + tb_sim_serialise_ns(rate, f->len), TB_SIM_DEPART, e);
}

static void depart(tb_sim *net, tb_link *e) {
  tb_sim_frame *f = tb_sim_fifo_get(&e->tx);
  e->tx_waiting--;
  if (f->ref) memcpy(f->data + f->head_len, f->ref, f->len - f->head_len);
  f->ref = NULL;
  if (f->is_ref) owe_completion(net, e, f->region);
  f->is_ref = false;
  if (e->tx.head) tb_sim_egress_start(e);
  /* Room becomes news at half a ring, or a sender under back pressure would be called for every single frame. */
  if (e->refused && e->tx_waiting <= net->tx_ring / 2) {
    e->refused = false;
    tell(e, TB_SIM_ROOM);
  }
  onto_wire(net, f);
}

static void into_ring(tb_sim *net, tb_link *e, tb_sim_frame *f) {
  int fate = f->damage;
  if (!e->open) {
    tb_sim_drop(net, f, 5);
  } else if (fate && net->csum) {
    if (fate == 4) e->stats.rx_truncated++;
    tb_sim_drop(net, f, fate);
  } else if (e->ring_bytes + f->len > net->rx_buffer) {
    e->stats.rx_overflow++;
    tb_sim_drop(net, f, 6);
  } else {
    e->ring_bytes += f->len;
    tb_sim_fifo_put(&e->ring, f);
    tb_sim_stir(e);
    tb_sim_log_line(net, f, fate, net->now);
  }
}


static void arrive(tb_sim *net, tb_sim_frame *f) {
  tb_link *e = &net->ends[f->dst];
  const tb_sim_params *p = tb_sim_params_of(net, f->src, f->dst);
  if (!e->port.head && !p->rate) { /* nothing to wait for */
    into_ring(net, e, f);
    return;
  }
  bool shared = e->background.rate && p->rate;
  if (shared) tb_sim_background_until_now(e, p);
  bool busy = e->port.head || (shared && e->port_free > net->now); /* an idle port takes any frame, even with queue=0 */
  if (busy && (shared ? tb_sim_backlog(e, p->rate, net->now) : e->port_bytes) + f->len > p->queue) {
    tb_sim_drop(net, f, 2);
    return;
  }
  if (e->port_free < net->now) e->port_free = net->now;
  f->drains = e->port_free += tb_sim_serialise_ns(p->rate, f->len);
  e->port_bytes += f->len;
  if (!e->port.head) tb_sim_push(net, f->drains, TB_SIM_DRAIN, e);
  tb_sim_fifo_put(&e->port, f);
}

static void land(tb_sim *net, tb_link *e) {
  tb_sim_frame *f = tb_sim_fifo_get(&e->wire);
  if (e->wire.head) tb_sim_push(net, e->wire.head->arrives, TB_SIM_LAND, e);
  arrive(net, f);
}

static void drain(tb_sim *net, tb_link *e) {
  tb_sim_frame *f = tb_sim_fifo_get(&e->port);
  e->port_bytes -= f->len;
  if (e->port.head) tb_sim_push(net, e->port.head->drains, TB_SIM_DRAIN, e);
  into_ring(net, e, f);
}

void tb_sim_event_do(tb_sim *net, const tb_sim_event *ev) {
  switch (ev->order & 7) {
    case TB_SIM_ARRIVE: arrive(net, ev->of); break;
    case TB_SIM_LAND: land(net, ev->of); break;
    case TB_SIM_DEPART: depart(net, ev->of); break;
    case TB_SIM_DRAIN: drain(net, ev->of); break;
    case TB_SIM_DONE: completed(net, ev->of); break;
    default: tb_sim_stir(ev->of); break; /* RESUME: its owner looks again */
  }
}
