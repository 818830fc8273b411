/* common_lb.h - link_bench: what it was asked, its two ends, and what they report. */
#ifndef BENCH_LB_H
#define BENCH_LB_H
#include <stdbool.h>
#include <stdint.h>
#include "common_meter.h"
#include "links/link.h"

enum { LB_HEAD = 64, LB_BURST_MAX = 256, LB_STEP_TURNS = 2, LB_SENDER = 0, LB_RECEIVER = 1 };

typedef struct {
  const tb_link_ops *ops;
  const char *interface;
  const char *device[2], *ip[2], *netns[2]; /* sender's, receiver's */
  int cpu[2];              /* -1 = any */
  double seconds, window_mib; /* 0 = no window: as fast as the link takes */
  uint32_t frame, burst, flows;
  int hugepages;
  bool no_offload, reduce, busy, steps, said; /* said: the ends were described already */
} lb_options;

/* One end's figures. */
typedef struct {
  uint64_t frames, calls;  /* that it sent or received; calls that moved any */
  bench_reading loop;      /* of the whole loop, idle looks included */
  double call_ticks;       /* per frame, inside of tx_burst, or rx_burst and rx_release: median of slices */
  uint64_t active_ns;      /* receiver: from the first frame to the last */
  uint64_t payload, copied, link_calls, overflow; /* the link's own counters */
  int no_counter;          /* errno of perf_event_open, 0 = loop.instructions counts */
} lb_outcome;

void lb_sender(const lb_options *o, int fd) __attribute__((noreturn));   /* each in a process of its own; fd: a */
void lb_receiver(const lb_options *o, int fd) __attribute__((noreturn)); /* SEQPACKET socket to the parent */

/* The ends speak to each other and to the parent in messages of one byte and a body; the parent passes on. */
enum { LB_ADDRESS = 'a', LB_HEARD = 'h', LB_OUTCOME = 'o', LB_STEP = 's', LB_STEPPED = 'S', LB_OVER = 'e' };
typedef struct {
  char kind;
  union {
    tb_addr address;
    lb_outcome outcome;
    uint32_t frames[2 * LB_STEP_TURNS]; /* that each stepped stretch moved; the first of them is empty */
  };
} lb_message;
void lb_say(int fd, const lb_message *m);
void lb_hear(int fd, char kind, lb_message *m); /* ends the program when something else comes, or nothing */

#endif
