/* rendezvous.h - every rank gives a blob and gets everybody's, over one TCP connection to rank 0. Needs no Python.
 *
 * Rank 0 listens on addr:port; the others connect with retries until the deadline. open() returns on every rank once
 * all are connected. exchange() may be called any number of times; all ranks must call it in the same order with the
 * same tag and stride (checked; a mismatch is an error on every rank that names the ranks and both values). Every wait
 * is bounded by deadline_ns of CLOCK_MONOTONIC (rank 0 adds at most 0.2 s to tell the others why it failed); an error
 * names rank, address and the remedy. Connections are untrusted: whoever sends garbage or nothing is dropped and
 * counted, lengths are checked. A process of another job is turned away by name; another size, version or a rank taken
 * twice within the job ends it on every rank. Nobody is authenticated: who can reach the port and knows the job's name
 * can join, so the port belongs on a trusted network.
 *
 * A handle belongs to one thread at a time. */
#ifndef TB_RENDEZVOUS_H
#define TB_RENDEZVOUS_H
#include <stddef.h>
#include <stdint.h>

enum {
  TB_RENDEZVOUS_RANKS = 1024,
  TB_RENDEZVOUS_TAG = 31,        /* longest tag, bytes */
  TB_RENDEZVOUS_STRIDE = 1 << 20 /* largest stride, bytes */
};

typedef struct tb_rendezvous tb_rendezvous;

/* addr: IPv4, IPv6 (brackets allowed, scope kept) or a host name. An address is bound as it is; for a name rank 0
 * listens on all interfaces, because a host often resolves its own name to a loopback address.
 * -ETIMEDOUT: ranks are missing (named). -EADDRINUSE: the port is taken (by whom, if that can be seen). -EPROTO: size,
 * job, version or rank do not fit together. -EINTR: the interrupt hook said so. */
int tb_rendezvous_open(const char *addr, uint16_t port, int rank, int size, const char *job, uint64_t deadline_ns,
                       tb_rendezvous **out, char *error, size_t error_len);
/* all receives size blobs of `stride` bytes: a blob of len <= stride, zero-padded; its true length is the caller's
 * matter. After an error the handle can only be closed; -ECONNRESET names the peer that died. */
int tb_rendezvous_exchange(tb_rendezvous *r, const char *tag, const void *mine, uint32_t len, void *all,
                           uint32_t stride, uint64_t deadline_ns, char *error, size_t error_len);
void tb_rendezvous_close(tb_rendezvous *r);

/* Another number in every process and at every call; it is no secret. */
uint64_t tb_rendezvous_nonce(void);

uint64_t tb_rendezvous_strays(const tb_rendezvous *r); /* connections dropped because they were not ours */

/* Called at least every 20 ms while this thread waits in open or exchange; non-zero ends the wait with -EINTR.
 * Per thread, NULL = none. So Ctrl-C can stop a blocking init. */
void tb_rendezvous_set_interrupt(int (*interrupted)(void *), void *ctx);

#endif
