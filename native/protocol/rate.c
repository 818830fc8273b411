/* rate.c - how much may be on its way to this rank in all, and how many ought to send to it at a time (rule 21).
 *
 * WHY HERE. Many senders meet at one receiver, and only the receiver sees all of them: what they may have under way
 * together is its to decide, and to divide among those that send. It tells them with the credit that every header has.
 * Credit from the receive buffer alone protects that buffer, and not the queue of a switch in front of it.
 *
 * EPOCHS. Time in which data comes is cut into epochs of a round trip. Of each are known: frames that came, frames that
 * are missing below those (what fills a gap later, whichever flow it came by, is taken off again: reordering is no
 * loss), the mean round trip of the frames that came, hold times taken off, and how many peers sent. A pause of two
 * round trips ends an epoch unjudged: how fast data came in it says nothing about the path.
 *
 * STATES.
 *   OPEN      no limit but each peer's share of the real receive buffer. So it stays as long as nothing is lost in a
 *             queue.
 *   LIMITED   all peers together may have `limit` frames under way: what the path holds by itself (the best rate seen x
 *             the shortest round trip) and `room` more. It is divided by how many sent in this epoch or the last; who
 *             is silent may begin at any moment, and is promised a (N - 1)th. What peers were promised beyond that is
 *             taken back: credit may fall, and a sender goes by the newest it heard.
 * OPEN -> LIMITED  of the frames of the last epochs (about eight) 35 in 100 lack, and frames came at 92 in 100 of the
 *             best rate: the line was full, and of ours, all the time. (After a burst of others whatever it cost is
 *             repaired at once, and that overflows as well; but with the burst itself no more than 87 in 100 came. It
 *             is over in a few epochs, and a limit would stay for `rate_forget`.) Or 12 in 100 of the last 64 epochs,
 *             and half of these epochs lack something, whoever else has the line: short bursts of others lose as much,
 *             but in a few epochs, and giving way to them costs more than it saves. In both the queueing delay is above
 *             half of what `room` costs. Loss alone proves nothing: a lossy line drops without a queue. Nor does delay:
 *             one's own line delays without a drop.
 * LIMITED   an epoch that lacks more than 1 in 16 with such a delay takes a third of `room` (at most once in two
 *             epochs: what left before the last cut is still coming). While the delay is below half, room grows by a
 *             frame each epoch.
 * LIMITED -> OPEN  `rate_forget` without such an epoch, twice as long each time that it proves wrong, up to a minute.
 *
 * INVARIANTS. The limit is never below what the path holds at the rate seen, so that a rank to which many send a little
 * each is not slowed by more than an empty queue costs. The best rate fades while the line is open, and hardly while
 * it is limited: a limit that follows what it lets through falls by itself. Every peer may always have one frame under
 * way. Nothing here waits: a grant that is lost is asked for (timers.c).
 *
 * DYNAMIC INCAST. Each header says how many peers at a time this rank is ready for, 1 to N - 1. An epoch that lacks
 * more than 1 frame in 100 with a queue halves it (at most once in two epochs), a hundred epochs without loss give one
 * back. It is judged as the next epoch ends, when what was only overtaken has come: on a fast line a microsecond of
 * jitter leaves more than 1 in 100 in gaps. A sender goes by the least that any peer says, and shortens its turns: side
 * by side with all peers, but fewer frames each, from `burst` (N - 1) to one (1). Fewer peers at a time, in long turns,
 * would do as much for the queue; but where ranks are not in step it leaves lines idle (docs/incast.md).
 *
 * WHAT CAN FAIL. A peer that grants nothing any more is asked by a probe; a credit that was overtaken is older than the
 * one known (its stamp) and is ignored. A lossy line that loses a third or more while the own line queues looks like a
 * full queue, and so does jitter longer than the path. That costs more than the invariant says where senders have other
 * peers as well, an all-reduce: what waits in their own rings counts as under way. Where the receiver is the queue
 * (loopback), the buffer's share is the whole truth and the limit is left off (engine/comm.c).
 */
#include "protocol/core.h"

enum { CLEAN_EPOCHS = 100, FEWEST = 4, MANY = 64, LONG = 64, SHORT_FLOW = 16, BEST_FADES = 64, BEST_KEEPS = 1024 };
static const double SUDDEN_LOSS = 0.35, OWN_LINE = 0.92, LASTING_LOSS = 0.12, OFTEN = 0.5, ARMED_LOSS = 1. / 16,
                    TOLERATED_LOSS = 0.01;

static bool limited(const tb_core *c) { return c->rate.limit != 0; }

static double frame_bytes(const tb_core *c) { return (double)(c->cfg.chunk_bytes + TB_HEAD); }

static uint32_t active(const tb_rate *r) {
  uint32_t n = r->active > r->active_before ? r->active : r->active_before;
  return n ? n : 1;
}

static uint64_t epoch_length(const tb_rate *r) {
  uint64_t trip = r->trips ? r->trip / r->trips : 0;
  return trip > r->base ? trip : r->base;
}

static bool sends(const tb_rate *r, const tb_peer *q, uint64_t now) {
  return q->data_at && now - q->data_at <= 2 * epoch_length(r);
}

uint32_t tb_rate_window(const tb_core *c, const tb_peer *q, uint32_t share, uint64_t now) {
  const tb_rate *r = &c->rate;
  if (!limited(c)) return share;
  /* Who is silent may begin at any moment: it is promised what it would have if all of them did. */
  uint32_t part = r->limit / (sends(r, q, now) ? active(r) : tb_peers(c));
  if (part < 1) part = 1;
  return part < share ? part : share;
}

/* A share that was a large one while few sent must not stand for the time when many begin. */
uint64_t tb_rate_promised(tb_core *c, uint16_t p, uint64_t now) {
  const tb_rate *r = &c->rate;
  tb_peer *q = &c->peer[p];
  if (!limited(c)) return UINT64_MAX;
  if (sends(r, q, now)) return q->data_at + 2 * epoch_length(r) + 1;
  if ((int32_t)(q->granted - q->seen) <= (int32_t)tb_grant_window(c, q, now)) return UINT64_MAX;
  q->want_grant = true;
  tb_say_to(c, p);
  return UINT64_MAX;
}

/* Frames that the path holds without a queue. Clocks that run late make it longer. */
static double held(const tb_core *c) { return c->rate.best * ((double)c->rate.base + (double)c->lateness); }

static void set_limit(tb_core *c) {
  double limit = held(c) + c->rate.room;
  c->rate.limit = limit < 1 ? 1 : limit > (double)(1u << 30) ? 1u << 30 : (uint32_t)limit;
}

static void open_up(tb_core *c, uint64_t now) {
  c->rate.limit = 0;
  c->rate.opened_at = now;
  c->rate.opened_epoch = c->rate.epoch;
  c->rate.long_came = c->rate.long_lost = c->rate.often = 0;
}

static void cut(tb_core *c, uint64_t now) {
  tb_rate *r = &c->rate;
  if (r->epoch - r->cut_epoch < 2 && r->cuts) return;
  if (!limited(c)) {
    uint64_t least = c->tune.rate_forget, most = 60 * TB_SEC;
    r->forget = r->cuts && now - r->opened_at < r->forget ? 2 * r->forget : least;
    if (r->forget > most) r->forget = most;
    r->room = (double)c->tune.queue_room / frame_bytes(c);
  } else {
    r->room -= r->room / 3;
  }
  r->cuts++;
  c->n.rate_cuts++;
  r->cut_epoch = r->epoch;
  r->lossy_at = now;
  set_limit(c);
  tb_grant_tell_all(c);
}

static bool dynamic(const tb_core *c) { return c->tune.incast_policy == TB_INCAST_DYNAMIC; }

/* By the epoch before this one: what was only overtaken has come by now. */
static void adapt_incast(tb_core *c) {
  tb_rate *r = &c->rate;
  uint32_t most = tb_peers(c), now = r->incast ? r->incast : most;
  if (!r->past_frames || !dynamic(c)) return;
  if (r->past_queued && r->past_missing > TOLERATED_LOSS * (r->past_frames + r->past_missing)) {
    r->clean = 0;
    if (r->epoch - r->incast_epoch < 2 && r->incast) return;
    now /= 2;
    r->incast_epoch = r->epoch;
  } else if (!r->past_missing && ++r->clean >= CLEAN_EPOCHS) {
    r->clean = 0;
    now++;
  }
  r->incast = now < 1 ? 1 : now > most ? most : now;
}

uint8_t tb_rate_incast(const tb_core *c) {
  uint32_t now = c->rate.incast;
  if (!dynamic(c)) return 0;
  return now && now < tb_peers(c) && now < UINT8_MAX ? (uint8_t)now : UINT8_MAX;
}

void tb_rate_incast_told(tb_core *c, uint16_t p, uint8_t incast) {
  if (c->peer[p].incast == incast) return;
  c->peer[p].incast = incast;
  tb_rate_least_told(c);
}

void tb_rate_least_told(tb_core *c) {
  uint32_t least = 0;
  for (uint32_t i = 0; i < c->cfg.n; i++) {
    const tb_peer *q = &c->peer[i];
    if (i != c->cfg.rank && q->incast && tb_live(c, i) && (!least || q->incast < least)) least = q->incast;
  }
  c->rate.told_incast = least;
}

uint32_t tb_rate_burst(const tb_core *c, uint32_t flow) {
  uint64_t told = c->rate.told_incast, burst = c->tune.burst ? c->tune.burst : c->cfg.train, most = tb_peers(c);
  if (dynamic(c) && told && told < most && told < UINT8_MAX)
    return (uint32_t)(1 + (burst - 1) * (told - 1) / (most - 1)); /* told < most: there are two peers at least */
  /* A short flow goes in one turn: its owner is done with it sooner, and it fills no queue. */
  return !c->tune.burst && flow <= SHORT_FLOW && burst < flow ? flow : (uint32_t)burst;
}

/* An epoch is over: `took` ns long. */
static void judge(tb_core *c, uint64_t took, uint64_t now) {
  tb_rate *r = &c->rate;
  double rate = (double)r->frames / (double)took;
  adapt_incast(c);
  r->past_frames = r->past_missing = 0;
  r->best = rate > r->best ? rate : r->best - r->best / (limited(c) ? BEST_KEEPS : BEST_FADES);
  if (!r->trips) return;
  uint64_t trip = r->trip / r->trips, base = r->base_sum / r->trips, delay = trip > base ? trip - base : 0;
  r->base = base;
  double wanted = (double)c->tune.queue_room / frame_bytes(c) / r->best + (double)c->lateness; /* ns of queue */
  double share = (double)r->missing / (double)(r->frames + r->missing);
  r->came += r->frames - r->came / 8;
  r->lost += r->missing - r->lost / 8;
  r->could += r->best * (double)took - r->could / 8;
  r->long_came += r->frames - r->long_came / 64;
  r->long_lost += r->missing - r->long_lost / 64;
  r->often += ((r->missing > 0) - r->often) / 64;
  bool queued = (double)delay > wanted / 2;
  bool sudden = r->lost >= MANY && r->lost > SUDDEN_LOSS * (r->lost + r->came) && r->came > OWN_LINE * r->could;
  bool lasting = r->epoch - r->opened_epoch >= LONG && r->often > OFTEN &&
      r->long_lost > LASTING_LOSS * (r->long_lost + r->long_came);
  bool lossy = limited(c) ? r->missing >= FEWEST && share > ARMED_LOSS : sudden || lasting;
  /* All that could come came, and there was no queue: with more credit there would have been more. */
  if (!limited(c) && 4 * r->frames >= 3 * r->active * c->cfg.window && trip < 2 * base) tb_grant_needed(c, now);
  r->past_frames = r->frames;
  r->past_missing = r->missing;
  r->past_queued = queued;
  if (!c->tune.rate_control) return;
  if (lossy && queued) cut(c, now);
  else if (limited(c) && now - r->lossy_at > r->forget) open_up(c, now);
  else if (limited(c)) {
    if ((double)delay < wanted / 2) r->room += 1;
    set_limit(c);
  }
}

static void roll(tb_core *c, uint64_t now) {
  tb_rate *r = &c->rate;
  r->epoch++;
  r->epoch_at = now;
  r->frames = r->missing = r->trips = r->active = 0;
  r->trip = r->base_sum = 0;
}

static void one_less(double *sum) { *sum = *sum < 1 ? 0 : *sum - 1; }

static void fill_gap(tb_rate *r, const tb_peer *q, uint32_t step) {
  bool past = tb_before(step, q->epoch_step);
  uint32_t *missing = past ? &r->past_missing : &r->missing;
  if (!*missing) return;
  --*missing;
  if (!past) return;
  one_less(&r->lost);
  one_less(&r->long_lost);
}

/* What lacks below a data frame is counted there, and taken off again by what fills it. */
static void note_gap(tb_rate *r, tb_peer *q, uint32_t step) {
  uint32_t gap = step - q->data_seen;
  if (tb_before(step, q->data_seen)) {
    fill_gap(r, q, step);
    return;
  }
  r->missing += gap < q->window ? gap : q->window; /* no more can have been on its way */
  q->data_seen = step + 1;
}

void tb_rate_data(tb_core *c, uint16_t p, uint32_t step, uint64_t now) {
  tb_rate *r = &c->rate;
  tb_peer *q = &c->peer[p];
  uint64_t length = epoch_length(r);
  if (q->rtt_min > length) length = q->rtt_min;
  if (!length) {
    q->data_seen = step + 1;
    return;
  }
  if (now - r->last_at > 2 * length) {
    adapt_incast(c);
    r->past_frames = r->past_missing = 0;
    r->active_before = active(r);
    roll(c, now);
  } else if (now - r->epoch_at >= length) {
    judge(c, now - r->epoch_at, now);
    r->active_before = r->active;
    roll(c, now);
  }
  r->last_at = now;
  r->frames++;
  if (q->rate_epoch != r->epoch) q->epoch_step = q->data_seen;
  note_gap(r, q, step);
  q->data_at = now;
  if (q->idle != TB_IDLE_NOT) tb_grant_used(c, q);
  if (limited(c)) tb_peer_due(c, p, now + 2 * length + 1);
  if (q->rate_epoch == r->epoch && r->epoch) return;
  q->rate_epoch = r->epoch;
  r->active++;
}

void tb_rate_trip(tb_core *c, uint16_t p, uint64_t trip) {
  c->rate.trip += trip;
  c->rate.base_sum += c->peer[p].rtt_min;
  c->rate.trips++;
}
