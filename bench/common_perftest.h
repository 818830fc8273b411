/* common_perftest.h - the server/client form of stream_bw and pingpong_lat: options, connection, end of a run, JSON. */
#ifndef BENCH_PERFTEST_H
#define BENCH_PERFTEST_H
#include "common.h"

#define PT_MAX_SET 32
#define PT_MAX_BYTES (1ull << 23) /* last size of -a */

typedef struct {
  const char *host;           /* NULL: this side is the server */
  const char *bind, *link, *json;
  const char *set[PT_MAX_SET];
  uint32_t port, iters, depth;
  int sets, all, both, gbits;
  uint64_t bytes, duration_ns, deadline_ns;
} pt_options;

/* defaults: filled in by the program; what: its first line of help; latency: which options it has. */
void pt_parse(int argc, char **argv, pt_options *o, const char *what, int latency);
tb_comm *pt_connect(const pt_options *o); /* server = rank 0; ends both sides when their options differ */
void pt_banner(const pt_options *o, tb_comm *comm);

/* The message of size `bytes` as a call; elements of two bytes, so the size must be even. Tags match by (size, way). */
enum { PT_FORTH = 0, PT_BACK = 1, PT_STOP = 2 }; /* PT_STOP + way: the message that ends that way */
tb_call pt_message(const pt_options *o, int kind, int peer, uint64_t bytes, int way, void *buffer);

/* -D: a sender knows when the time is up and tells the receiver, in an exact message, how many there were. */
typedef struct {
  tb_work *work;
  uint64_t total;
} pt_stop;
void pt_stop_post(pt_stop *s, tb_comm *comm, int peer, uint64_t bytes, int way); /* receiver */
int pt_stop_heard(pt_stop *s);                                                   /* receiver: 1 = total is known */
void pt_stop_tell(pt_stop *s, tb_comm *comm, int peer, uint64_t bytes, int way, uint64_t total); /* sender */
void pt_stop_end(pt_stop *s);                                                    /* both; waits */

/* One JSON object per size, in "results". */
FILE *pt_json_open(const pt_options *o, tb_comm *comm, const char *test);
void pt_json_row(FILE *f, int first, const char *const *names, const double *values, int n);
void pt_json_close(const pt_options *o, FILE *f);

#endif
