/* pump.c - one pass of progress: link -> core -> link. The same code runs on real links and in the simulator. */
#include <string.h>
#include "engine/comm.h"

enum { RX_BATCH = 512, TX_BURSTS = 4, ABORT_GRACE = 2000000, STALL = 20000000 };

static bool receive_one(tb_comm *c, const uint8_t *f, uint32_t len, tb_from from, uint64_t now) {
  switch (tb_fault_rx(c->fault, f, len, -1, now)) {
  case TB_FAULT_DUP: tb_core_rx(c->core, f, len, from, now); /* fall through */
  case TB_FAULT_PASS: return tb_core_rx(c->core, f, len, from, now);
  default: return true;
  }
}

static tb_from origin(const tb_comm *c, const tb_rx *f) {
  if (!c->ops->came_from || f->len < TB_HEAD) return TB_FROM_UNKNOWN;
  return c->ops->came_from(c->link, f, tb_head_source(f->data)) ? TB_FROM_SOURCE : TB_FROM_OTHER;
}

static bool receive(tb_comm *c, uint64_t now) {
  tb_rx rx[RX_BATCH];
  int n = c->ops->rx_burst(c->link, 0, rx, RX_BATCH);
  bool faulty = tb_fault_active(c->fault);
  for (int i = 0; i < n; i++) {
    const uint8_t *f = rx[i].data;
    uint32_t len = rx[i].len;
    tb_from from = origin(c, &rx[i]);
    bool taken = faulty ? receive_one(c, f, len, from, now) : tb_core_rx(c->core, f, len, from, now);
    if (!taken) tb_early_put(c->early, c->core, f, len, now);
  }
  c->ops->rx_release(c->link, 0);
  const uint8_t *f;
  uint32_t len;
  while (faulty && (f = tb_fault_due(c->fault, now, &len)))
    if (!tb_core_rx(c->core, f, len, TB_FROM_UNKNOWN, now)) tb_early_put(c->early, c->core, f, len, now);
  tb_early_retry(c->early, c->core, now);
  if (n == 0) c->stalled = false;
  return n > 0;
}

static bool transmit(tb_comm *c, uint64_t now) {
  bool any = false;
  for (int burst = 0; burst < TX_BURSTS; burst++) {
    const tb_out *o;
    int n = tb_core_out(c->core, now, &o), kept = 0;
    if (n == 0) return any;
    tb_tx tx[128];
    bool faulty = tb_fault_active(c->fault), by_ref = c->ops->caps(c->link)->ref != TB_REF_NONE;
    uint64_t before = c->refs;
    int most = c->tx_blocked ? 8 : 128; /* a full link takes few: do not prepare many for nothing */
    for (int i = 0; i < n && i < most; i++) {
      bool ref = o[i].ref && by_ref && o[i].pay_len;
      tx[kept++] = (tb_tx){.peer = o[i].peer, .head_len = o[i].head_len, .head = o[i].head, .pay_len = o[i].pay_len,
                           .ref = ref, .region = o[i].region, .pay = o[i].pay};
    }
    int took = 0;
    if (!faulty) {
      took = c->ops->tx_burst(c->link, 0, tx, kept);
    } else { /* one by one, so that a dropped frame counts as taken; a REF that never left is at once done */
      for (; took < kept; took++) {
        tb_fault_verdict v = tb_fault_tx(c->fault, tx[took].head, tx[took].head_len, (int)tx[took].peer);
        if (v == TB_FAULT_DROP) {
          tb_core_sent(c->core, 1, UINT64_MAX, now);
          continue;
        }
        if (v == TB_FAULT_DUP) {
          tb_tx copy = tx[took];
          copy.ref = false;
          c->ops->tx_burst(c->link, 0, &copy, 1);
        }
        int one = c->ops->tx_burst(c->link, 0, &tx[took], 1);
        if (one < 0) { /* refused for good: lost */
          c->tx_refused++;
          tb_core_sent(c->core, 1, UINT64_MAX, now);
          continue;
        }
        if (one == 0) break;
        uint64_t r = c->refs;
        c->refs += tx[took].ref;
        tb_core_sent(c->core, 1, r, now);
      }
      if (took == 0) return any;
      any = true;
      continue;
    }
    if (took < 0) { /* refused for good: it counts as lost, or it would block all behind it for ever */
      if (!c->tx_refused++)
        tb_logring_put(c->log, 40, "link %s refused a frame to rank %u (%u + %u bytes): %s", c->ops->name, tx[0].peer,
                       tx[0].head_len, tx[0].pay_len, strerror(-took));
      tb_core_sent(c->core, 1, UINT64_MAX, now);
      any = true;
      continue;
    }
    if (took == 0) {
      c->tx_blocked = true;
      return any;
    }
    for (int i = 0; i < took; i++) c->refs += tx[i].ref;
    tb_core_sent(c->core, took, before, now);
    any = true;
    c->tx_blocked = took < kept;
    if (c->tx_blocked) return any;
  }
  return any;
}

void tb_comm_events(tb_comm *c) {
  tb_link_event e[4];
  if (!c->link) return;
  for (int i = 0, n = c->ops->events(c->link, e, 4); i < n; i++) tb_logring_put(c->log, e[i].level, "%s", e[i].text);
}

static void say_events(tb_comm *c, uint64_t now) {
  if (now < c->stats_at) return;
  c->stats_at = now + 100 * TB_MS;
  tb_comm_events(c);
  tb_link_stats s;
  if (c->ops->stats(c->link, &s) == 0 && s.rx_overflow != TB_NONE) tb_core_note_overflow(c->core, s.rx_overflow);
}

/* LINKS rule 7: a device that does not let go of the caller's memory is stopped. Its time is reported. */
static void abort_overdue(tb_comm *c, uint64_t now) {
  uint64_t since = tb_core_refs_overdue(c->core), took = 0;
  const tb_link_caps *caps = c->ops->caps(c->link);
  if (since == UINT64_MAX || now < since + caps->quiesce_ns + ABORT_GRACE) return;
  if (c->ops->tx_quiesce(c->link, 0, now) != 0) {
    c->ops->tx_abort(c->link, 0, &took);
    c->abort_ns = took ? took : 1;
    tb_logring_put(c->log, 30, "link %s held on to the caller's memory %.3f ms after the end of an operation: its "
                   "transmit side was stopped (%.3f ms)", c->ops->name, (double)(now - since) * 1e-6,
                   (double)took * 1e-6);
  }
  tb_core_reaped(c->core, c->ops->tx_reap(c->link, 0), now);
}

bool tb_pump_overdue(const tb_comm *c, uint64_t now) {
  uint64_t due = tb_core_next(c->core);
  return due && due < now && now - due > STALL;
}

bool tb_pump(tb_comm *c) {
  uint64_t now = tb_comm_now(c);
  if (!c->ops) { /* a communicator of one has nobody to talk to */
    tb_core_timers(c->core, now);
    return false;
  }
  c->stalled |= tb_pump_overdue(c, now);
  bool more = receive(c, now);
  tb_core_reaped(c->core, c->ops->tx_reap(c->link, 0), now);
  tb_core_timers(c->core, now);
  more |= transmit(c, now);
  abort_overdue(c, now);
  say_events(c, now);
  return more;
}

uint64_t tb_pump_next(const tb_comm *c) {
  if (!c->ops) return tb_core_next(c->core);
  uint64_t t = tb_core_next(c->core), f = tb_fault_next(c->fault), e = tb_early_next(c->early),
      r = tb_core_refs_overdue(c->core);
  if (f < t) t = f;
  if (e < t) t = e;
  if (r != UINT64_MAX && r + c->ops->caps(c->link)->quiesce_ns + ABORT_GRACE < t)
    t = r + c->ops->caps(c->link)->quiesce_ns + ABORT_GRACE;
  return t;
}
