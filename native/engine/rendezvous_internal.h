/* rendezvous_internal.h - shared by the files of the rendezvous.
 *
 * On a connection every message is a 72-byte head, big-endian, and `len` bytes of body. The head never changes between
 * versions, so that a version mismatch can be told by name.
 *   HELLO    rank -> 0   body: job name; nonce tells a reconnecting process from a second one with the same rank
 *   WAITING  0 -> rank   body: the ranks still missing, as text, so that a rank whose patience ends can name them
 *   WELCOME  0 -> rank   all are connected
 *   BLOB     rank -> 0   arg: stride, tag, seq of the exchange; body: the blob
 *   ALL      0 -> rank   arg: stride; body: size * stride bytes
 *   ERROR    0 -> rank   arg: errno; body: the sentence */
#ifndef TB_RENDEZVOUS_INTERNAL_H
#define TB_RENDEZVOUS_INTERNAL_H
#include "engine/rendezvous.h"

#include <poll.h>
#include <stdbool.h>
#include <sys/socket.h>

enum {
  RV_MAGIC = 0x54425256, /* "TBRV" */
  RV_VERSION = 1,
  RV_HEAD = 72,
  RV_JOB = 255,  /* longest job name */
  RV_TEXT = 768, /* longest sentence in an ERROR, its end included */
  RV_WHO = 72,   /* an address as text */
  RV_LISTENERS = 2,
  RV_ADDRS = 8
};
enum { RV_HELLO = 1, RV_WAITING, RV_WELCOME, RV_BLOB, RV_ALL, RV_ERROR };

#define RV_MS 1000000ull
#define RV_SLICE (20 * RV_MS) /* between two looks at the interrupt hook */

typedef struct {
  uint16_t version, type;
  uint32_t rank, size, arg, seq, len;
  uint64_t nonce;
  char tag[TB_RENDEZVOUS_TAG + 1];
} rv_head;

typedef struct {
  int fd;         /* -1 = none */
  bool done;      /* this exchange: its blob is in, or all is out */
  bool mid_frame; /* part of a message went out: nothing else may be sent before the rest */
  uint32_t got;   /* bytes of head and body that are in */
  size_t sent;
  uint8_t head[RV_HEAD];
  rv_head h; /* of head, once it is in */
  char who[RV_WHO];
} rv_conn;

struct tb_rendezvous {
  int rank, size;
  uint32_t seq; /* of the next exchange */
  int failed;   /* -errno that ended it, 0 = alive */
  uint64_t strays, nonce;
  char job[RV_JOB + 1];
  char where[RV_WHO + 256]; /* rank 0's address as given, with the port */
  char reason[RV_TEXT];
  rv_conn *peer;        /* rank 0: `size` of them by rank, the first unused; others: one */
  struct pollfd *polls; /* rank 0: size */
};

/* rendezvous_wire.c */
void tb_rv_encode(const rv_head *h, uint8_t out[RV_HEAD]);
int tb_rv_decode(const uint8_t in[RV_HEAD], rv_head *out); /* -EBADMSG: not ours; the version is not looked at */
bool tb_rv_begins(const uint8_t *bytes, size_t n);         /* the first n bytes of a head could be ours */
void tb_rv_printable(char *text);                          /* what strangers sent, made safe to show */
void tb_rv_ranks(const uint8_t *flag, int n, char *out, size_t out_len); /* "2,3,7-9 and 14 more" */
/* Fails the handle for good; the first reason stays. Returns err. */
int tb_rv_fail(tb_rendezvous *r, int err, char *error, size_t error_len, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* rendezvous_net.c */
uint64_t tb_rv_now(void);
/* Sleeps until an event, the deadline or 100 ms, whichever is first. 0, or -EINTR when the hook says stop. */
int tb_rv_wait(struct pollfd *fds, nfds_t n, uint64_t deadline_ns);
int tb_rv_recv(int fd, void *buf, size_t n,
               size_t *got); /* 1 = n bytes are in, 0 = not yet, -errno; end = -ECONNRESET */
int tb_rv_send(int fd, const void *buf, size_t n, size_t *sent); /* 1 = all out, 0 = not yet, -errno */
int tb_rv_accept(int listener, char who[RV_WHO]);                /* fd or -errno */
void tb_rv_who(const struct sockaddr_storage *addr, char out[RV_WHO]);
int tb_rv_listen(const char *host, uint16_t port, uint64_t deadline_ns, int out[RV_LISTENERS], char *error,
                 size_t error_len);
int tb_rv_connect(const struct sockaddr_storage *addr, uint64_t deadline_ns);        /* fd or -errno */
void tb_rv_say_error(rv_conn *c, const tb_rendezvous *r, int err, const char *text); /* then only reads remain */
/* Reads and drops what still comes until the peers hang up, at most 200 ms: closing earlier would reset the connection
 * and destroy the sentence on its way. Closes them. */
void tb_rv_farewell(rv_conn *conns, int n);

/* rendezvous_resolve.c: all addresses of a host; the lookup itself runs in a thread of its own because the system's
 * resolver knows no deadline. -EAGAIN = it has none now (*error says why), -ETIMEDOUT, -EINTR. */
int tb_rv_resolve(const char *host, uint16_t port, uint64_t deadline_ns, struct sockaddr_storage out[RV_ADDRS],
                  int *count, char *error, size_t error_len);
int tb_rv_numeric(const char *host, uint16_t port, struct sockaddr_storage *out); /* -EINVAL: a name */
socklen_t tb_rv_socklen(const struct sockaddr_storage *addr);

/* rendezvous_owner.c: the process that holds a local TCP port, as far as it can be seen. 0 = unknown. */
int tb_rv_port_owner(uint16_t port, char *name, size_t name_len);

/* rendezvous_root.c, rendezvous_gather.c (rank 0) and rendezvous_leaf.c (the others) */
int tb_rv_root_open(tb_rendezvous *r, const char *host, uint16_t port, uint64_t deadline_ns, char *error,
                    size_t error_len);
int tb_rv_root_exchange(tb_rendezvous *r, const char *tag, uint8_t *all, uint32_t stride, uint64_t deadline_ns,
                        char *error, size_t error_len);
int tb_rv_leaf_open(tb_rendezvous *r, const char *host, uint16_t port, uint64_t deadline_ns, char *error,
                    size_t error_len);
int tb_rv_leaf_exchange(tb_rendezvous *r, const char *tag, const void *mine, uint32_t len, uint8_t *all,
                        uint32_t stride, uint64_t deadline_ns, char *error, size_t error_len);

#endif
