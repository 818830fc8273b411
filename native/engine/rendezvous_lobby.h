/* rendezvous_lobby.h - rank 0's connections until all ranks are there.
 *
 * A connection starts as a guest, becomes a member by a HELLO that fits, and leaves after an ERROR. Guests are few and
 * short-lived, so whoever connects and says nothing takes neither memory nor time from the members. When the job cannot
 * come together (a rank with another size, a deadline), rank 0 stays a moment longer to tell the sentence to everybody,
 * those who knock only then included; else they would see nothing but a closed port. */
#ifndef TB_RENDEZVOUS_LOBBY_H
#define TB_RENDEZVOUS_LOBBY_H
#include "engine/rendezvous_internal.h"

#define RV_TELL_NS (1500 * RV_MS) /* after a mismatch: time for the others to knock and be told */
enum { RV_GUESTS = 128, RV_FREE = 0, RV_GUEST, RV_MEMBER, RV_LEAVING };

typedef struct {
  int state;
  rv_conn c;
  uint64_t since;
  char job[RV_JOB + 1];
} rv_visitor;

typedef struct {
  tb_rendezvous *r;
  int listener[RV_LISTENERS];
  rv_visitor *v;
  int visitors;        /* length of v */
  int *by_rank;        /* visitor, -1 = missing */
  uint8_t *left_again; /* was here and hung up */
  int joined, told, turned_away;
  bool changed;   /* members should hear who is missing */
  int err;        /* it cannot come together: everybody is being told */
  bool await_all; /* ... those who have not knocked yet included */
  uint64_t until; /* give up then */
  char last_stranger[160];
  char *error;
  size_t error_len;
} rv_lobby;

/* From here on the lobby only tells its sentence. */
#define tb_rv_fatal(l, code, patience, ...)                                       \
  do {                                                                            \
    (l)->err = tb_rv_fail((l)->r, code, (l)->error, (l)->error_len, __VA_ARGS__); \
    tb_rv_tell_all(l, patience);                                                  \
  } while (0)

void tb_rv_drop(rv_lobby *l, rv_visitor *v);
void tb_rv_tell_all(rv_lobby *l, uint64_t patience);
void tb_rv_tell_missing(rv_lobby *l);
void tb_rv_missing_text(const rv_lobby *l, char *out, size_t n);
bool tb_rv_hung_up(int fd);
void tb_rv_let_in(rv_lobby *l, int listener);
void tb_rv_read_guest(rv_lobby *l, rv_visitor *v);
void tb_rv_read_leaving(rv_lobby *l, rv_visitor *v);

#endif
