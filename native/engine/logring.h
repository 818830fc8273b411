/* logring.h - the log of a communicator: any thread puts lines, one reader (Python's logging) takes them.
 *
 * Bounded: when nobody reads, the oldest lines go, are counted, and the reader is told how many. A C program without
 * a reader lets the ring echo to stderr instead. Levels are those of Python's logging. */
#ifndef TB_LOGRING_H
#define TB_LOGRING_H
#include <stdbool.h>
#include <stdint.h>

enum { TB_LOG_DEBUG = 10, TB_LOG_INFO = 20, TB_LOG_WARNING = 30, TB_LOG_ERROR = 40, TB_LOG_OFF = 100 };

#define TB_LOG_LINE 512 /* longest line with its end, bytes; longer ones are cut */

typedef struct tb_logring tb_logring;

int tb_logring_new(uint32_t lines, tb_logring **out);
/* One more owner: tb_logring_free by the last one frees it. */
void tb_logring_hold(tb_logring *ring);
void tb_logring_free(tb_logring *ring);

/* From now on lines of at least `level` also go to stderr as "tailbound[WHO] LEVEL: text"; who as in "rank 2".
 * TB_LOG_OFF (the state after new) stops it. */
void tb_logring_echo(tb_logring *ring, int level, const char *who);

/* From any thread; takes a mutex, so never once per packet. A line break in the text becomes a space. */
void tb_logring_put(tb_logring *ring, int level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The oldest unread line: 1 = written to out (cut to n bytes), 0 = none. Lost lines are announced first, once. */
int tb_logring_next(tb_logring *ring, char *out, uint32_t n, int *level);
uint64_t tb_logring_dropped(tb_logring *ring); /* lines lost since new */

#endif
