/* core_pair.h - two or more protocol cores joined back to back under virtual time, with no link in between.
 *
 * Every frame a core hands out is copied, crosses a wire of fixed delay and is given to its destination. A test may
 * look at each frame, drop it, repeat it or hold it back (`fate`), stop a rank (`stopped`), forge frames, and read the
 * cores' private state. Payloads that are referred to are read late (`ref_hold`), as a device would. Nothing is random.
 *
 * Rule 5 is watched everywhere: the moment an operation returns its output is kept in work->result, and the caller's
 * buffers are overwritten; cp_work_free finds out whether anybody wrote to them after that.
 */
#ifndef CORE_PAIR_H
#define CORE_PAIR_H
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "protocol/core.h"

enum { CP_RANKS = 8, CP_JOB = 77, CP_VIEW = 1, CP_LINES = 64 };

typedef struct cp cp;
typedef struct cp_frame {
  struct cp_frame *next;
  uint64_t sent, at;    /* made; arrives */
  uint16_t src, dst;
  uint32_t len;
  tb_head h;
  const uint8_t *late;  /* where a referred payload lies until `leaves` */
  uint64_t leaves;
  uint32_t late_len;
  uint8_t data[];
} cp_frame;

typedef struct {
  tb_outcome o; /* first: done() gets a pointer to it */
  cp *net;
  uint16_t rank;
  int done;     /* times done() was called: 0 or 1 */
  uint64_t done_at;
  void *in, *out;
  size_t in_bytes, out_bytes;
  float *result; /* the output as it was on return */
} cp_work;

typedef struct {
  uint32_t n, chunk_bytes, window;
  uint64_t delay, ref_hold, quiesce;
  uint32_t ring;        /* a rank hands over at most so many frames every 10 us; the rest waits in the core; 0 = all */
  bool async_refs, no_seal;
  void (*tune)(tb_tunables *t);
} cp_options;

typedef struct { cp *net; uint16_t rank; } cp_who;

struct cp {
  cp_options opt;
  uint32_t n;
  uint64_t now;
  tb_core *core[CP_RANKS];
  cp_who who[CP_RANKS];
  bool stopped[CP_RANKS];
  tb_from from; /* what is told of the sender of all frames that arrive */
  uint64_t refs[CP_RANKS], reaped[CP_RANKS];
  uint32_t room[CP_RANKS];      /* frames the ring takes until `refill` */
  uint64_t refill[CP_RANKS];
  bool full[CP_RANKS];
  cp_frame *wire;
  /* How many copies of a frame arrive; it may change f->at. NULL = one each. */
  int (*fate)(cp *net, cp_frame *f);
  void (*arrive)(cp *net); /* called before frames that have arrived leave the wire */
  void *ctx;
  uint64_t sent[9], data_sent[CP_RANKS][CP_RANKS]; /* frames made, by type; data frames by direction */
  char line[CP_LINES][480];
  int lines;
};

cp *cp_new(const cp_options *o);
cp *cp_plain(uint32_t n); /* chunks of 64 bytes, window 256, delay 100 us */
void cp_free(cp *net);

/* Issues at the present time; gives tb_core_issue's status. */
int cp_issue(cp *net, uint16_t rank, cp_work *w, const tb_call *call);
tb_call cp_call(const char *key, const float *in, float *out, uint64_t count, uint64_t deadline_ns);
void cp_settle(cp *net);                 /* all that can happen at the present time happens */
void cp_until(cp *net, uint64_t t);      /* time moves to t */
void cp_wait(cp *net, cp_work *w);       /* until it is done; fails the test after an hour of virtual time */
void cp_wait_all(cp *net, cp_work *w, uint32_t n);
void cp_work_free(cp_work *w, uint32_t n);

/* A frame as src would send it to dst: magic, version, job, view, ranks and check are made right, the rest is h's. */
uint32_t cp_forge(const cp *net, uint16_t src, uint16_t dst, const tb_head *h, const void *body, uint32_t len,
                  uint8_t *out);
void cp_give(cp *net, uint16_t dst, const uint8_t *frame, uint32_t len); /* arrives now */
bool cp_logged(const cp *net, const char *text); /* some log line holds it */

void cp_fill(float *x, uint64_t count, float first, float step);
void cp_expect_poison(const void *x, size_t bytes);
void cp_expect(const float *x, uint64_t count, float first, float step);

#endif
