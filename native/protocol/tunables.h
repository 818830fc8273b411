/* tunables.h - every number the protocol can be tuned by, with its default and its reason, once. The configuration
 * (engine/config.c) makes an option and an environment variable TAILBOUND_<NAME> of each row.
 * X(name, default, min, max, unit, why) */
#ifndef TB_TUNABLES_H
#define TB_TUNABLES_H
#include <stdint.h>

#define TB_MS 1000000ull
#define TB_SEC 1000000000ull

#define TB_TUNABLES(X)                                                                                                 \
  X(absent_after, 3, 1, 1000, "rounds", "k: closed rounds without one frame before a peer counts as absent")           \
  X(auto_exact_rounds, 8, 0, 1000000, "rounds", "first rounds of a key that run exact under deadline=auto, for samples") \
  X(auto_k, 6, 1, 100, "MADs", "auto deadline: median + k*MAD of a peer's arrival offsets")                            \
  X(deadline_floor, 20 * TB_MS, 0, 3600 * TB_SEC, "ns", "auto deadline: margin over the median at least; a scheduler quantum must not lose data") \
  X(deadline_ceiling, 10 * TB_SEC, 1000, 3600 * TB_SEC, "ns", "auto deadline never above")                             \
  X(min_share, 90, 0, 100, "percent", "auto deadline: of a live peer's data, else it is stretched; medians see only what is missing more than half the time") \
  X(share_window, 1000, 1, 1000000, "rounds", "... over so many rounds of a key")                                      \
  X(calibrate_rounds, 20, 1, 64, "rounds", "deadline_policy=optireduce: exact first rounds of a key that fix the bounds of its stages") \
  X(early_cap, 1ull << 30, 0, 1ull << 50, "bytes", "memory for rounds peers opened before this rank did; beyond it counts as loss") \
  X(memory_cap, 16ull << 30, 1 << 20, 1ull << 50, "bytes", "library memory of all calls of a rank: operations, arrival histories, buffers kept for the next (at most 1 GiB, these go first); " \
    "beyond it issue gives EAGAIN")                                                                                     \
  X(keep_rounds, 4, 1, 64, "rounds", "W: a returned round answers repairs until receipted or this many rounds old")    \
  X(keep_age, 5 * TB_SEC, TB_MS, 3600 * TB_SEC, "ns", "... or this old")                                               \
  X(late_delivery, 1, 0, 1, "0 | 1", "1: a decided chunk that missed its deadline still comes and is added to its key's next output") \
  X(carry_age, 60 * TB_SEC, TB_MS, 3600 * TB_SEC, "ns", "carry: after this an unanswered contribution, or an unasked final receipt, is given up") \
  X(carry_rounds, 64, 0, 65536, "rounds", "carry: of the rounds that a rank skips it receives the last so many late; what went before is rounds_lost") \
  X(carry_rounding, 1, 0, 1, "0 | 1", "carry: what a wire dtype's rounding takes is carried too, by every sender that rounds") \
  X(max_skips, 3, 1, 1000000, "rounds", "skip verdicts in a row before a call raises")                                 \
  X(peer_timeout, 10 * TB_SEC, 10 * TB_MS, 3600 * TB_SEC, "ns", "an exact operation fails when a peer is silent this long") \
  X(evict_after, 10, 0, 1u << 30, "rounds", "a peer silent for so many rounds, and for peer_timeout, is voted out: others take over its shard, N shrinks; 0 = never") \
  X(probe_every, 1 * TB_SEC, TB_MS, 3600 * TB_SEC, "ns", "how often a waiting exact operation, or a lossy one with an absent peer, probes") \
  X(keepalive, 15 * TB_SEC, TB_MS, 3600 * TB_SEC, "ns", "idle probe that keeps NAT and conntrack entries alive")       \
  X(rto_min, 1 * TB_MS, 1000, 10 * TB_SEC, "ns", "retransmission time-out never below; scheduling noise looks like loss otherwise") \
  X(rto_max, 200 * TB_MS, 1000, 60 * TB_SEC, "ns", "... nor above: repair must fit a deadline")                        \
  X(repair, 1, 0, 1, "0 or 1", "whether a lossy operation asks again for what was lost; 0 shows what best effort alone would deliver") \
  X(linger, 2 * TB_SEC, 0, 60 * TB_SEC, "ns", "close waits this long for receipts, then says goodbye")                 \
  X(window_min, 4, 1, 65536, "frames", "a peer may always have this many frames under way, however small the buffer")  \
  X(window_max, 65536, 1, 1u << 24, "frames", "... and never more")                                                    \
  X(window_start, 4ull << 20, 1024, 1ull << 40, "bytes", "what a peer may have under way at first; doubled while a round trip "     \
    "fills it without queueing, up to the share of the real buffer")                                                    \
  X(grant_pool, 1, 0, 1, "0 | 1", "1: of a share of the receive buffer that a peer leaves unused for an RTO, half goes to those that need more") \
  X(queue_room, 48 * 1024, 1, 1ull << 40, "bytes", "rate control: what may wait in the queue before a rank, once a queue there was seen to overflow") \
  X(rate_forget, 1 * TB_SEC, TB_MS, 3600 * TB_SEC, "ns", "... and how long it stays so after the last overflow; twice as long each time that this was too short") \
  X(incast, 0, 0, 1024, "peers", "how many peers are sent to side by side; 0 = all")                                     \
  X(burst, 0, 0, 65536, "frames", "what one of them gets before the next one's turn: few meet in a queue, many share a system call; 0 = as the link likes") \
  X(spin, 50000, 0, 10 * TB_MS, "ns", "progress polls this long before it sleeps while an operation is under way, if every local rank has a core") \
  X(hadamard_block, 12, 11, 15, "log2 of elements", "length of a block of the Hadamard transform; the same on all ranks")     \
  X(hadamard_loss, 20, 1, 500, "thousandths", "hadamard=auto: switched on from this mean loss, off below a quarter of it, if it gains anything") \
  X(hadamard_ahead, 8, 1, 1000, "rounds", "hadamard=auto: a switch is announced so long before, that everybody may hear of it") \
  X(key_cap, 65536, 16, 1u << 24, "keys", "keys a rank remembers; a new one beyond it is ENOBUFS")

/* Those that are one word of a list; the value is its place in it. X(name, default, its place, words, unit, why) */
#define TB_CHOICES(X)                                                                                                  \
  X(deadline_policy, "auto", 0, "auto optireduce", "auto | optireduce",                                                \
    "how deadline=auto chooses: from each peer's arrivals, or by bounds calibrated once (the published policy, to compare with)") \
  X(rate_control, "auto", 1, "off auto always", "off | auto | always",                                                   \
    "when a queue before this rank overflows, all peers together may have no more under way than fits; auto: not on loopback, where there is none") \
  X(incast_policy, "dynamic", 1, "fixed dynamic", "fixed | dynamic",                                                      \
    "how many peers are sent to side by side: as `incast` says; or at most so many, and as many as all of them ask for") \
  X(early_timeout, "auto", 1, "off auto always", "off | auto | always",                                                \
    "a stage ends before its time when all senders are through and nothing moves; auto: only under deadline=auto")
enum { TB_INCAST_FIXED, TB_INCAST_DYNAMIC };
enum { TB_RATE_OFF, TB_RATE_AUTO, TB_RATE_ALWAYS };
enum { TB_POLICY_AUTO, TB_POLICY_OPTIREDUCE };
enum { TB_EARLY_OFF, TB_EARLY_AUTO, TB_EARLY_ALWAYS };

typedef struct {
#define X(name, def, lo, hi, unit, why) uint64_t name;
  TB_TUNABLES(X)
#undef X
#define X(name, def, place, words, unit, why) uint64_t name;
  TB_CHOICES(X)
#undef X
} tb_tunables;

void tb_tunables_default(tb_tunables *t);

#endif
