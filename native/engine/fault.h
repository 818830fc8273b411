/* fault.h - drops, delays, duplicates, reorders or corrupts frames on purpose, on any link. It sits between the link
 * and the protocol; the protocol cannot tell it from a bad network.
 *
 * A specification is clauses separated by ';', each of items separated by ','. Every frame goes through the clauses in
 * order until one acts on it.
 *   drop=P                 with probability P (0.02 or 2%) the frame is lost
 *   dup=P                  it arrives twice
 *   delay=TIME[:P]         it arrives TIME later; P = 1 when left out. TIME has a unit: 200us, 2ms, 1s
 *   reorder=P[:TIME]       delay by 1 ms unless TIME says otherwise: later frames overtake it
 *   corrupt=P              one bit of it is flipped
 *   rank=N  peer=N         only on this rank; only frames from (side=tx: to) that rank
 *   type=T                 only data, open, receipt, grant, error, probe, goodbye, view, or a number
 *   side=rx|tx             where it acts: on what is received (default) or sent; tx knows drop and dup only
 *   after=N  count=N       leave the first N matching frames alone; act N times at most
 *   seed=N                 of this clause; the same seed, rank and frames give the same faults
 * Example: "drop=0.02,type=data;delay=2ms:0.01,rank=2,peer=1;drop=1,after=3,count=1,seed=7"
 *
 * Not thread-safe: the caller has a lock. No call on the path of frames allocates. */
#ifndef TB_FAULT_H
#define TB_FAULT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tb_fault tb_fault;

/* PASS: as if nothing was. DROP: forget it. DUP: take it twice. DELAYED: forget it, tb_fault_due will give a copy. */
typedef enum { TB_FAULT_PASS, TB_FAULT_DROP, TB_FAULT_DUP, TB_FAULT_DELAYED } tb_fault_verdict;

/* *out is never NULL on success, so an empty or NULL specification can be changed later. -EINVAL: *error says why. */
int tb_fault_parse(const char *spec, int rank, tb_fault **out, char *error, size_t error_len);
int tb_fault_check(const char *spec, char *error, size_t error_len); /* is it well-formed? */
/* Another specification from now on. On failure the old one stays. What is delayed already still comes. */
int tb_fault_reset(tb_fault *f, const char *spec, char *error, size_t error_len);
void tb_fault_free(tb_fault *f);

uint64_t tb_fault_acted(const tb_fault *f); /* frames that the present specification did something to; f may be NULL */
bool tb_fault_active(const tb_fault *f); /* some clause acts on this rank, or frames are still delayed */
/* src < 0: read from the frame's header. f may be NULL. */
tb_fault_verdict tb_fault_rx(tb_fault *f, const uint8_t *frame, uint32_t len, int src, uint64_t now);
/* PASS, DROP or DUP for a frame about to be sent; head may be all of the frame or its 64-byte header. */
tb_fault_verdict tb_fault_tx(tb_fault *f, const uint8_t *head, uint32_t len, int dst);
/* A delayed frame whose time has come, in order of time, valid until the next call with f; NULL = none. */
const uint8_t *tb_fault_due(tb_fault *f, uint64_t now, uint32_t *len);
uint64_t tb_fault_next(const tb_fault *f); /* when the next delayed frame is due, UINT64_MAX = none */

/* One line for the log; "" when nothing acts on this rank. */
void tb_fault_describe(const tb_fault *f, char *out, size_t n);

#endif
