/* counters.h - what a rank counts, once for the code and for whoever prints it. */
#ifndef TB_COUNTERS_H
#define TB_COUNTERS_H
#include <stdint.h>

/* Why frames of a source that can be believed (a frame of this job, whole, from a rank of it) were refused:
 * counted at that peer and in the whole. X(name) */
#define TB_REJECTED(X) X(bad_view) X(bad_source) X(bad_type) X(bad_rank) X(bad_index) X(bad_length) X(bad_body) X(bad_signature)

/* Per peer. */
#define TB_PEER_COUNTERS(X)                                                                                            \
  X(data_sent) X(data_received) X(bytes_sent) X(bytes_received) X(control_sent) X(control_received) X(repaired)        \
  X(duplicate) X(late) X(early) X(requests_sent) X(requests_received) X(rounds_missed) X(absences) X(credit_stalls)        \
  TB_REJECTED(X)

/* Whole communicator. */
#define TB_COMM_COUNTERS(X)                                                                                            \
  X(operations) X(ok) X(partial) X(skipped) X(failed) X(deadline_hits) X(early_timeouts) X(rounds_behind) X(bad_short) X(bad_magic)      \
  X(bad_version) X(bad_check) X(bad_job) TB_REJECTED(X) X(rate_cuts) X(early_dropped) X(memory_refused)                  \
  X(late_delivered) X(late_dropped) X(carry_deferred) X(carry_applied) X(carry_rounds) X(dropped_chunks)               \
  X(dropped_values) X(transformed) X(apart) X(rounds_lost) X(view_changes)

typedef struct {
#define X(name) uint64_t name;
  TB_PEER_COUNTERS(X)
#undef X
} tb_peer_counters;

typedef struct {
#define X(name) uint64_t name;
  TB_COMM_COUNTERS(X)
#undef X
  double dropped_mass;             /* sum of the absolute values of what was dropped */
} tb_comm_counters;

#endif
