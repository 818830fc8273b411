/* view.h - the agreed list of members: how it changes (rule 9). A machine of its own, without I/O or clock: frames and
 * time go in, frames and the next time come out. The data path never waits for it. view.c has the reasoning; members.c
 * drives it. */
#ifndef TB_VIEW_H
#define TB_VIEW_H
#include <stdbool.h>
#include <stdint.h>

enum { TB_VIEW_MOST = 1024, TB_VIEW_WORDS = TB_VIEW_MOST / 64 };
typedef struct { uint64_t bits[TB_VIEW_WORDS]; } tb_members;

static inline bool tb_member(const tb_members *m, uint32_t rank) { return m->bits[rank / 64] >> (rank % 64) & 1; }
static inline void tb_member_add(tb_members *m, uint32_t rank) { m->bits[rank / 64] |= 1ull << (rank % 64); }
static inline void tb_member_drop(tb_members *m, uint32_t rank) { m->bits[rank / 64] &= ~(1ull << (rank % 64)); }
uint32_t tb_member_count(const tb_members *m);
tb_members tb_members_all(uint32_t n);

typedef enum {
  TB_V_PREPARE = 1, /* will you follow this ballot for `view`? */
  TB_V_PROMISE,     /* yes; `accepted` and what follows: the newest that was accepted, else base: own rounds so far */
  TB_V_ACCEPT,      /* accept these members and this base */
  TB_V_ACCEPTED,    /* done */
  TB_V_REFUSE,      /* a higher ballot (told) was promised */
  TB_V_COMMIT,      /* `view` is decided: these members, rounds from base on */
  TB_V_ASK,         /* which view is it? */
  TB_V_JOIN         /* let me in (again) */
} tb_view_kind;

typedef struct {
  uint8_t kind;
  uint32_t view, ballot, accepted, base;
  tb_members members;
} tb_view_msg;
enum { TB_VIEW_BODY = 20 + TB_VIEW_MOST / 8 };
uint32_t tb_view_encode(const tb_view_msg *m, uint8_t *out, uint32_t cap);
int tb_view_decode(const uint8_t *body, uint32_t len, tb_view_msg *out); /* 0 or -EBADMSG */

typedef struct tb_membership {
  uint16_t me, n;
  uint32_t number;            /* of the present view */
  tb_members members;
  uint32_t base;              /* rounds of every key go on from here in this view */
  bool joining;               /* tb_view_join was called, and we are not in yet */
  uint64_t due;               /* when tb_view_timer is wanted */
  uint64_t retry;             /* ns between repetitions: about a retransmission time-out */
  void *ctx;
  bool (*send)(void *ctx, uint16_t to, const tb_view_msg *m); /* false: there is no room for it now */
  uint32_t (*rounds)(void *ctx);  /* above every round this rank has issued, of any key */
  void (*changed)(void *ctx);     /* number, members and base are new */
  /* acceptor, of view number + 1 */
  uint32_t promised, accepted, accepted_base;
  tb_members accepted_members;
  /* proposer */
  enum { TB_V_IDLE, TB_V_PREPARING, TB_V_ACCEPTING } phase;
  uint32_t ballot, attempt, asked, value_from, value_base;
  tb_members value, answered, suspects, wanting; /* wanting: ranks that asked to join */
  uint64_t start_at;          /* when this rank proposes, unless somebody else has */
  uint32_t next;              /* with whom to go on asking: there was no room for more */
} tb_membership;

void tb_view_init(tb_membership *v, uint16_t me, uint16_t n, uint32_t number);
/* Members that were silent for too long, as seen here; again whenever that changes. */
void tb_view_suspect(tb_membership *v, const tb_members *suspects, uint64_t now);
void tb_view_join(tb_membership *v, uint64_t now); /* this rank was voted out and is alive */
void tb_view_heard(tb_membership *v, uint16_t from, const tb_view_msg *m, uint64_t now);
void tb_view_stranger(tb_membership *v, uint16_t from, uint32_t their_view); /* a frame of another view came from it */
void tb_view_timer(tb_membership *v, uint64_t now);
static inline bool tb_view_in(const tb_membership *v) { return tb_member(&v->members, v->me); }

#endif
