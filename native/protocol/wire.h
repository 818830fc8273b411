/* wire.h - the only place that knows the packet. Frozen: later work adds behaviour and frame bodies, not header fields.
 *
 * Every frame starts with this 64-byte header, big-endian. A data frame's payload follows: whole elements,
 * little-endian, as they lie in memory. A control frame's payload is a body whose first byte is its own version.
 * Whoever adds a frame type adds: its number here, encode and decode in wire_body.c, its branch in rx.c, its golden
 * bytes in tests.
 *
 *  off size field
 *    0  2   magic      "TB"
 *    2  1   version    of this header, 1
 *    3  1   type       tb_frame_type
 *    4  4   job        of job name, restart count and a number that rank 0 drew at init: strangers' frames are dropped
 *    8  4   view       number of the agreed membership
 *   12  4   key        hash of the key's bytes; 0 for frames that belong to no operation
 *   16  4   round      of that key, serial arithmetic (RFC 1982)
 *   20  4   chunk      index within the shard
 *   24  2   source     rank
 *   26  2   destination rank
 *   28  2   count      original ranks summed in this payload
 *   30  1   stage      high nibble: 1 scatter to the owner, 2 hand out by the owner; low nibble: hierarchy level
 *   31  1   flags      TB_F_*
 *   32  4   remaining  us until the sender's deadline; TB_REMAINING_NONE = it has none
 *   36  4   stamp      sender's clock, low 32 bits of ns, when the frame was made
 *   40  4   echo       the newest stamp the sender had from the destination; 0 with hold = TB_HOLD_NONE
 *   44  2   hold       us between receiving that stamp and making this frame
 *   46  1   incast     concurrent senders the source is ready for (advertised)
 *   47  1   percentile mark: this chunk lies in the last n percent of its flow; 0 = not marked
 *   48  4   credit     absolute grant: data frames the destination may have sent the source in all, serial arithmetic
 *   52  4   signature  hash of the operation's signature
 *   56  4   step       data frames sent by the source to the destination before this one (or a carry batch's id)
 *   60  4   check      CRC32C over bytes 0..59 and, where the link does not check payloads itself, the payload
 */
#ifndef TB_WIRE_H
#define TB_WIRE_H
#include <stdbool.h>
#include <stdint.h>
#include "ether/bytes.h"
#include "tailbound.h"

enum {
  TB_HEAD = 64,
  TB_MAGIC = 0x5442,
  TB_WIRE_VERSION = 1,
  TB_BODY_VERSION = 1,
  TB_KEY_MAX = 255,
  TB_CONTROL_MAX = 1024, /* a control frame, header included, never exceeds this: any MTU carries it */
  TB_HOLD_NONE = 0xffff,
  TB_TEXT_MAX = 240
};
#define TB_REMAINING_NONE 0xffffffffu

typedef enum {
  TB_T_DATA = 1, TB_T_OPEN = 2, TB_T_RECEIPT = 3, TB_T_GRANT = 4, TB_T_ERROR = 5, TB_T_PROBE = 6, TB_T_GOODBYE = 7,
  TB_T_VIEW = 8
} tb_frame_type;

enum { TB_F_OWN = 1, TB_F_LAST = 2, TB_F_TAG = 4 };

typedef struct {
  uint8_t type, stage, level, flags, incast, percentile;
  uint16_t source, destination, count, hold_us;
  uint32_t job, view, key, round, chunk, remaining_us, stamp_ns, echo_ns, credit, signature, step;
} tb_head;

/* What all ranks must agree on for one operation (rule 7). Its hash travels in every data frame. */
typedef struct {
  uint8_t kind, redop, dtype, exact, missing, consistency, wire_dtype, hadamard;
  uint16_t root;       /* BROADCAST; SEND/RECV: the receiver, with `peer` the sender */
  uint16_t peer;
  uint32_t chunk_elems, groups;
  uint32_t tag;        /* SEND/RECV; of reductions min_received under agree, in millionths, and TB_TAG_ORDERED */
  uint64_t count;
} tb_signature;

/* A change of mode under hadamard=auto (auto_transform.c); number 0: none so far. */
typedef struct { uint16_t number, by; bool on; uint32_t from; } tb_switch;

#define TB_TAG_ORDERED 0x80000000u /* a reduction: in the order of ranks */

typedef struct {
  tb_signature sig;
  uint8_t heard;           /* the sender has heard the destination's OPEN */
  uint8_t has_closed;
  uint32_t closed_through; /* last round of this key the sender has closed */
  /* What the sender has measured in earlier rounds of the key, for rules 3 and 4 (0 = nothing yet): */
  uint16_t share;          /* of its own contributions, what owners counted: 65535 = all */
  uint32_t want_us;        /* the automatic deadline that its own samples suggest */
  uint32_t stage_us[2];    /* smoothed time of each stage */
  /* hadamard=auto, else 0: the newest switch, and what the sender has measured: 65535 = all is lost, 32767 = gains 1 */
  tb_switch turn;
  bool measured;
  uint16_t loss;
  int16_t gain;
  uint8_t key_len;
  char key[TB_KEY_MAX + 1];
} tb_open;

/* A receipt holds sections, one per flow (operation, stage) from the destination to the source. */
enum {
  TB_R_HEARD = 1,    /* your OPEN was heard */
  TB_R_FINAL = 2,    /* nothing more is wanted of this flow: complete, or closed without the rest */
  TB_R_CLOSED = 4,   /* the operation has returned here (all rounds of the key through this one) */
  TB_R_REQUEST = 8,  /* send what is missing again */
  TB_R_UNKNOWN = 16, /* no such operation here (any more): nothing will come from this rank for it */
  /* carry: the sender of this knows what was counted here of its stage 1: no final receipt is needed */
  TB_R_KNOWN = 32,
  /* carry: a final receipt: (start, bits), then a bitmap of what was counted; with UNKNOWN: nothing was */
  TB_R_FATES = 64,
  /* carry: of the owner in `got`, which is no member any more: which of its decided chunks, from `upto` on, are here?
   * With
   * REQUEST the question; else the answer, like a final receipt, or with UNKNOWN: that round is not known here (any
   * more) */
  TB_R_HELD = 128
};
typedef struct { uint32_t start, len; } tb_range;
typedef struct {
  uint32_t key, round;
  uint8_t stage, flags;
  uint16_t ranges;
  uint32_t got;   /* chunks received so far */
  uint32_t upto;  /* chunks below it that lie in no range were received */
} tb_section;
enum { TB_SECTION = 20, TB_RECEIPT_HEAD = 8 };
typedef struct {
  uint8_t sections;
  uint32_t seen;      /* highest step + 1 when its sender became suspicious: what left later is still under way */
  const uint8_t *at;  /* the first section, in the frame */
} tb_receipt;

typedef enum { TB_P_PING = 1, TB_P_PONG = 2, TB_P_MARK = 3 } tb_probe_kind;
typedef struct {
  uint8_t kind;
  uint8_t final;  /* MARK: no further chunk of this flow will be sent unasked */
  uint32_t sent;  /* MARK: distinct chunks sent so far */
  uint32_t id;    /* PING/PONG */
} tb_probe;

typedef struct {
  uint8_t ack;            /* this only acknowledges an error frame */
  int32_t status;         /* -errno */
  uint16_t rank_a, rank_b;
  uint8_t text_len;
  char text[TB_TEXT_MAX + 1];
} tb_error_body;

/* Encoders write exactly what they return; cap is checked. Decoders return 0 or -EBADMSG and never read past len. */
void tb_head_encode(const tb_head *h, uint8_t out[TB_HEAD]);      /* check left zero */
void tb_head_seal(uint8_t head[TB_HEAD], const void *payload, uint32_t len); /* payload NULL: header only */
typedef enum {
  TB_BAD_NONE, TB_BAD_SHORT, TB_BAD_MAGIC, TB_BAD_VERSION, TB_BAD_TYPE, TB_BAD_CHECK, TB_BAD_CAUSES
} tb_bad;
tb_bad tb_head_decode(const uint8_t *frame, uint32_t len, bool check_payload, tb_head *out);

uint32_t tb_signature_hash(const tb_signature *s);
uint32_t tb_open_encode(const tb_open *o, uint8_t *out, uint32_t cap);
int tb_open_decode(const uint8_t *body, uint32_t len, tb_open *out);
uint32_t tb_probe_encode(const tb_probe *p, uint8_t *out, uint32_t cap);
int tb_probe_decode(const uint8_t *body, uint32_t len, tb_probe *out);
uint32_t tb_error_encode(const tb_error_body *e, uint8_t *out, uint32_t cap);
int tb_error_decode(const uint8_t *body, uint32_t len, tb_error_body *out);
/* Receipts are written section by section. */
void tb_receipt_begin(uint8_t *body, uint32_t seen_step);
void tb_section_encode(const tb_section *s, uint8_t *out);
void tb_section_decode(const uint8_t *in, tb_section *out);
void tb_receipt_finish(uint8_t *body, uint8_t sections);
int tb_receipt_decode(const uint8_t *body, uint32_t len, tb_receipt *out);

/* of an encoded one, unchecked */
static inline uint16_t tb_head_source(const uint8_t *head) { return tb_get16(head + 24); }
/* Changes to an encoded header that is not sealed yet. */
static inline void tb_head_about(uint8_t *head, uint32_t key, uint32_t round) {
  tb_put32(head + 12, key);
  tb_put32(head + 16, round);
}
static inline void tb_head_stage(uint8_t *head, uint8_t stage) { head[30] = (uint8_t)(stage << 4); }

/* Serial arithmetic: is a before b? */
static inline bool tb_before(uint32_t a, uint32_t b) { return (int32_t)(a - b) < 0; }

#endif
